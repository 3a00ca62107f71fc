/* SPDX-License-Identifier: Apache-2.0
 *
 * purge.c: the files of a claim that is deleted. mayflyd's loop. The tree is a guest's: a jailed mayfly-fs empties it, then the helper removes
 * the folder. A step that fails is tried again, also by the next daemon.
 */
#include "api/volumes/volumes_int.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "api/core/daemon.h"
#include "api/links/helper_client.h"
#include "api/links/monitors.h"
#include "lib/log.h"

#define AGAIN_NS  2000000000ull
#define AT_A_TIME 4u /* each has a process and a slot */

struct purge {
	struct volumes *v;
	struct purge *next;
	struct claim *c;
	uint32_t slot;
	bool running, has_slot;
	bool active; /* one of the AT_A_TIME */
	bool waits;  /* for one of them to end */
	struct timer *again;
};

static void purge_open(void *arg);

/* Starts the purge that waits for longest: the last one in the list. */
static void purge_next(struct volumes *v)
{
	struct purge *oldest = NULL;

	for (struct purge *p = v->purges; p; p = p->next)
		if (p->waits)
			oldest = p;
	if (!oldest)
		return;
	oldest->waits = false;
	timer_after(oldest->again, 0);
}

/* False: as many are active as may be; purge_next() calls it again. */
static bool purge_may_run(struct purge *p)
{
	unsigned int n = 0;

	for (struct purge *o = p->v->purges; o; o = o->next)
		n += o->active;
	p->active = n < AT_A_TIME;
	p->waits = !p->active;
	return p->active;
}

static void purge_free(struct purge *p)
{
	struct purge **at = &p->v->purges;

	while (*at && *at != p)
		at = &(*at)->next;
	if (*at)
		*at = p->next;
	timer_remove(p->again);
	free(p);
}

static void slot_back(struct purge *p)
{
	if (p->has_slot && !p->running)
		vms_slot_give(p->v->d->vms, p->slot);
	p->has_slot = false;
}

static void purge_later(struct purge *p, const char *what, int status)
{
	log_limited(
		LOG_WARN, "claim %s: %s: %s; trying again", p->c->name, what, strerror(-status));
	slot_back(p);
	p->active = false; /* it must not delay the others */
	timer_after(p->again, AGAIN_NS);
	purge_next(p->v);
}

static void on_removed(void *arg, const struct priv_msg *m, int fd)
{
	struct purge *p = arg;
	struct volumes *v = p->v;

	close_fd(&fd);
	if (m->status < 0) {
		purge_later(p, "removing its folder", m->status);
		return;
	}
	slot_back(p);
	claim_purged(v, p->c);
	purge_free(p);
	purge_next(v);
}

/* The helper does not look at the slot in this request. */
static void purge_remove(struct purge *p)
{
	struct priv_msg m = {.op = PRIV_VOLUME_REMOVE, .what = PRIV_V_CLAIM};
	int rc = privctl_volume(p->v->d->priv, &m, p->c->folder, "", "", on_removed, p);

	if (rc < 0)
		purge_later(p, "removing its folder", rc);
}

static void on_spawned(void *arg, const struct priv_msg *m, int fd)
{
	struct purge *p = arg;

	close_fd(&fd);
	if (m->status < 0)
		purge_later(p, "starting mayfly-fs", m->status);
	else
		p->running = true;
}

void purge_exited(struct volumes *v, const struct priv_msg *ev)
{
	for (struct purge *p = v->purges; p && ev->kind == PRIV_K_FILES; p = p->next) {
		if (!p->running || p->slot != ev->slot)
			continue;
		p->running = p->has_slot = false; /* monitors.c gives the slot back */
		if (ev->wait_status == 0)
			purge_remove(p);
		else
			purge_later(p, "emptying its folder", -EIO);
		return;
	}
}

static void on_opened(void *arg, const struct priv_msg *m, int fd)
{
	struct purge *p = arg;
	struct priv_msg spawn = {.op = PRIV_SPAWN,
		.kind = PRIV_K_FILES,
		.slot = p->slot,
		.group = p->slot,
		.what = 1,
		.volumes_ids = 1};
	_cleanup_close_ int volume = fd, none = -1;
	int rc;

	if (m->status == -ENOENT) {
		purge_remove(p);
		return;
	}
	/* it needs neither socket nor table */
	none = memfd_create("none", MFD_CLOEXEC);
	rc = m->status < 0 ? m->status : none < 0 ? -errno : 0;
	if (rc == 0) {
		const int fds[3] = {none, none, volume};

		rc = privctl_call(p->v->d->priv, &spawn, fds, 3, on_spawned, p);
	}
	if (rc < 0)
		purge_later(p, "opening its folder", rc);
}

static void purge_open(void *arg)
{
	struct purge *p = arg;
	struct priv_msg m = {.op = PRIV_VOLUME, .what = PRIV_V_CLAIM};
	int rc = -EAGAIN;

	if (!purge_may_run(p))
		return;
	p->has_slot = vms_slot_take(p->v->d->vms, &p->slot);
	m.slot = p->slot;
	if (p->has_slot)
		rc = privctl_volume(p->v->d->priv, &m, p->c->folder, "", "", on_opened, p);
	if (rc < 0)
		purge_later(p, "opening its folder", rc);
}

void purge_begin(struct volumes *v, struct claim *c)
{
	struct purge *p = calloc(1, sizeof(*p));

	if (p)
		*p = (struct purge){.v = v, .c = c, .next = v->purges};
	if (p)
		p->again = loop_timer(v->d->loop, purge_open, p);
	if (!p || !p->again) {
		log_error("claim %s: no memory: its files stay until the next start", c->name);
		free(p);
		return;
	}
	v->purges = p;
	timer_after(p->again, 0);
}

void purges_destroy(struct volumes *v)
{
	while (v->purges)
		purge_free(v->purges);
}
