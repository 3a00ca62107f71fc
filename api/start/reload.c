/* SPDX-License-Identifier: Apache-2.0
 *
 * reload.c: see reload.h. mayflyd's loop. The file is the administrator's. The helper opens it, as
 * it was given to the daemon at its start: the daemon itself can open nothing but its own folders.
 */
#include "api/start/reload.h"

#include <fcntl.h>

#include "api/core/budgets.h"
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
	if (rc < 0)
		return err_wrap(e, "%s", d->config_path);
	conf_take(&all, &next, NULL, NULL);
	/* what it was started with may want what is not said any more: a key, where others reach it
	 */
	if (conf_check(&all, e) < 0)
		return err_wrap(e, "%s, with what is taken at a start only", d->config_path);
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
	budgets_limit(d->budgets, &d->cfg);
	networks_reload(d->networks);
	images_publish_aliases(d);
	log_info("configuration: read anew from %s", d->config_path);
}

void daemon_reload(struct daemon *d)
{
	struct priv_msg m = {.op = PRIV_OPEN, .what = PRIV_F_CONFIG}, direct = {0};
	int fd;

	if (!d->config_path) {
		log_warn("configuration: none was given at the start, so there is nothing to read "
			 "anew");
	} else if (privctl_is_direct(d->priv)) {
		fd = open(d->config_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		direct.status = fd < 0 ? -errno : 0;
		came(d, &direct, fd);
	} else if (privctl_call(d->priv, &m, NULL, 0, came, d) < 0) {
		log_error("configuration: it stays as it is: the helper takes no requests");
	}
}
