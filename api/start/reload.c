/* SPDX-License-Identifier: Apache-2.0
 *
 * reload.c: see reload.h. mayflyd's loop. The file is the administrator's. The helper opens it, by the
 * path that the daemon got at its start: the daemon itself can open nothing but its own folders.
 */
#include "api/start/reload.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "api/core/budgets.h"
#include "api/ingress/gateway.h"
#include "api/links/images.h"
#include "api/links/helper_client.h"
#include "api/network/network.h"
#include "lib/log.h"

void daemon_log_level(const struct daemon *d)
{
	static const char *const names[] = {"error", "warn", "info", "debug", "trace"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (!strcmp(names[i], d->cfg.log_level))
			log_level = (int)i;
	log_level = MIN(log_level + (int)d->verbose, (int)LOG_TRACE);
}

static void stays(void *arg, const char *table, const char *name)
{
	log_warn("configuration: %s.%s is taken at the next start", table, name);
}

static int take(struct daemon *d, int fd, struct err *e)
{
	struct config next, all = d->cfg;
	int rc;

	conf_defaults(&next);
	rc = conf_read(&next, fd, e);
	if (!rc)
		rc = conf_check(&next, e);
	if (!rc)
		rc = gateway_check(&next, e);
	if (rc < 0)
		return err_wrap(e, "%s", d->config_path);
	conf_take(&all, &next, NULL, NULL);
	/* Values that only a start can change may need others that the file does not have any more: a key, if the
	 * server listens on a public address. */
	if (conf_check(&all, e) < 0)
		return err_wrap(
			e, "%s, with the values that only a start can change", d->config_path);
	conf_take(&d->cfg, &next, stays, NULL);
	return 0;
}

static void came(void *arg, const struct priv_msg *reply, int owned)
{
	_cleanup_close_ int fd = owned;
	struct daemon *d = arg;
	struct err e;

	if (fd < 0)
		err_set(&e, reply->status ? -reply->status : EIO, "open %s", d->config_path);
	if (fd < 0 || take(d, fd, &e) < 0) {
		log_error("configuration: it stays as it is: %s", e.msg);
		return;
	}
	daemon_log_level(d);
	if (d->gateway)
		gateway_configure(d);
	budgets_limit(d->budgets, &d->cfg);
	networks_reload(d->networks);
	images_publish_aliases(d);
	log_info("configuration: read anew from %s", d->config_path);
}

/* Asks the helper to open the file, or opens it if there is no helper. */
static int ask_file(struct daemon *d, privctl_fn fn, void *arg)
{
	struct priv_msg m = {.op = PRIV_OPEN, .what = PRIV_F_CONFIG}, direct = {0};
	int fd;

	if (!privctl_is_direct(d->priv))
		return privctl_call(d->priv, &m, NULL, 0, fn, arg);
	fd = open(d->config_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	direct.status = fd < 0 ? -errno : 0;
	fn(arg, &direct, fd);
	return 0;
}

void daemon_reload(struct daemon *d)
{
	if (!d->config_path)
		log_warn("configuration: none was given at the start, so there is nothing to read "
			 "anew");
	else if (ask_file(d, came, d) < 0)
		log_error("configuration: it stays as it is: the helper takes no requests");
}

/* ---- the operator's lists */

#define LISTS_LOOK_NS 5000000000ull

struct lists_watch {
	struct daemon *d;
	struct timer *timer;
	struct stat seen, done; /* the file at the last look; the file that was read last */
	bool asked;
};

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static bool list_take(const char *name, char *now, size_t cap, const char *next)
{
	if (!strcmp(now, next))
		return false;
	str_copy(now, cap, next);
	log_info("configuration: network.%s has changed in the file and holds now", name);
	return true;
}

/* All else in the file waits for SIGHUP. */
static void lists_take(struct daemon *d, int fd)
{
	struct config next;
	struct err e;
	bool changed;

	conf_defaults(&next);
	if (conf_read(&next, fd, &e) < 0 || conf_check(&next, &e) < 0) {
		log_error("configuration: the lists of the network stay as they are: %s: %s",
			d->config_path, e.msg);
		return;
	}
	changed = list_take(
		"allow", d->cfg.network_allow, sizeof(d->cfg.network_allow), next.network_allow);
	changed |= list_take(
		"deny", d->cfg.network_deny, sizeof(d->cfg.network_deny), next.network_deny);
	changed |= list_take("resolvers", d->cfg.network_resolvers,
		sizeof(d->cfg.network_resolvers), next.network_resolvers);
	if (changed)
		networks_reload(d->networks);
}

/* The file is read when two looks in a row find it the same: then nobody is writing it. */
static void lists_came(void *arg, const struct priv_msg *reply, int owned)
{
	_cleanup_close_ int fd = owned;
	struct lists_watch *w = arg;
	struct stat st;

	w->asked = false;
	if (fd < 0 || fstat(fd, &st) < 0)
		return; /* a file that is away for a moment changes nothing */
	if (same_file(&st, &w->seen) && !same_file(&st, &w->done)) {
		w->done = st;
		lists_take(w->d, fd);
	}
	w->seen = st;
}

static void lists_look(void *arg)
{
	struct lists_watch *w = arg;

	if (w->d->ending)
		return;
	timer_after(w->timer, LISTS_LOOK_NS);
	if (!w->asked) {
		w->asked = true;
		/* without a helper lists_came() has been called already, and cleared it */
		w->asked = ask_file(w->d, lists_came, w) == 0 && w->asked;
	}
}

int daemon_watch_lists(struct daemon *d)
{
	struct lists_watch *w;

	if (!d->config_path)
		return 0;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	*w = (struct lists_watch){.d = d, .timer = loop_timer(d->loop, lists_look, w)};
	if (!w->timer) {
		free(w);
		return -ENOMEM;
	}
	timer_after(w->timer, LISTS_LOOK_NS);
	return 0;
}
