/* SPDX-License-Identifier: Apache-2.0
 *
 * spares.c: see spares.h. mayflyd's loop. Nothing here reads a byte: a waiting process says nothing.
 *
 * A spare's group has the number of its own slot, so no monitor has that number. The next daemon therefore finds no sandbox for the spare and
 * ends it; without any daemon the spare reads the end of its sockets and ends by itself.
 */
#include "api/network/spares.h"

#include <string.h>
#include <sys/socket.h>

#include "api/core/daemon.h"
#include "api/links/helper_client.h"
#include "api/links/monitors.h"
#include "lib/log.h"
#include "lib/proto_net.h"

#define FRAMES_BUFFER (1 << 20)
#define REFILL_NS     50000000ull
#define RETRY_NS      5000000000ull

struct spare {
	struct spare *next;
	struct spares *s;
	struct net_ends ends;
	bool running; /* the helper has started it */
};

struct spares {
	struct daemon *d;
	struct spare *all;
	struct timer *refill;
	uint64_t failed_ns; /* the last start that failed */
	bool off;
};

int net_ends_make(struct net_ends *e, int theirs[2])
{
	const int type = SOCK_SEQPACKET | SOCK_CLOEXEC;
	int chan[2], frames[2];

	if (socketpair(AF_UNIX, type, 0, chan) < 0)
		return -errno;
	if (socketpair(AF_UNIX, type, 0, frames) < 0) {
		int rc = -errno;

		close(chan[0]);
		close(chan[1]);
		return rc;
	}
	/* a packet is up to 64 KiB: room for more than three of them, as far as the host lets us */
	for (int i = 0; i < 2; i++)
		setsockopt(frames[i], SOL_SOCKET, SO_SNDBUF, &(int){FRAMES_BUFFER}, sizeof(int));
	*e = (struct net_ends){.chan = chan[0], .frames = frames[0]};
	theirs[NET_FD_BROKER - 3] = chan[1];
	theirs[NET_FD_FRAMES - 3] = frames[1];
	return 0;
}

void net_ends_close(struct net_ends *e)
{
	close_fd(&e->chan);
	close_fd(&e->frames);
}

static void spare_forget(struct spare *x)
{
	struct spare **at = &x->s->all;

	while (*at != x)
		at = &(*at)->next;
	*at = x->next;
	net_ends_close(&x->ends);
	free(x);
}

static void spare_spawned(void *arg, const struct priv_msg *m, int fd)
{
	struct spare *x = arg;

	close_fd(&fd);
	if (m->status == 0 && x->s->off) { /* it reads the end of its sockets */
		spare_forget(x);
		return;
	}
	if (m->status == 0) {
		x->running = true;
		return;
	}
	log_limited(LOG_ERROR, "mayfly-net could not be started ahead: %s", strerror(-m->status));
	x->s->failed_ns = mono_ns();
	vms_slot_give(x->s->d->vms, x->ends.slot);
	spare_forget(x);
}

static int spare_start(struct spares *s)
{
	struct spare *x = calloc(1, sizeof(*x));
	struct priv_msg m = {.op = PRIV_SPAWN, .kind = PRIV_K_NETWORK};
	int theirs[2], rc = x ? net_ends_make(&x->ends, theirs) : -ENOMEM;

	if (rc < 0) {
		free(x);
		return rc;
	}
	rc = vms_slot_take(s->d->vms, &x->ends.slot) ? 0 : -EAGAIN;
	x->s = s;
	x->next = s->all;
	s->all = x;
	m.slot = m.group = x->ends.slot;
	if (rc == 0) {
		rc = privctl_call(s->d->priv, &m, theirs, 2, spare_spawned, x);
		if (rc < 0)
			vms_slot_give(s->d->vms, x->ends.slot);
	}
	if (rc < 0)
		spare_forget(x);
	close(theirs[0]);
	close(theirs[1]);
	return rc;
}

/* One at a time, so that a burst of creates is not behind a burst of these. */
static void spares_fill(void *arg)
{
	struct spares *s = arg;
	const struct config *c = &s->d->cfg;
	int64_t n = 0;

	for (const struct spare *x = s->all; x; x = x->next)
		n++;
	if (s->off || !c->network_enabled || n >= c->network_spare || privctl_is_direct(s->d->priv))
		return;
	if (s->failed_ns && mono_ns() - s->failed_ns < RETRY_NS)
		return; /* the next create tries again */
	if (spare_start(s) < 0)
		s->failed_ns = mono_ns();
	timer_after(s->refill, REFILL_NS);
}

void spares_refill(struct spares *s)
{
	timer_after(s->refill, REFILL_NS);
}

bool spares_take(struct spares *s, struct net_ends *out)
{
	struct spare *x = s->all;

	while (x && (!x->running || s->off))
		x = x->next;
	spares_refill(s);
	if (!x)
		return false;
	*out = x->ends;
	x->ends.chan = x->ends.frames = -1;
	spare_forget(x);
	return true;
}

void spares_stop(struct spares *s)
{
	struct spare *next;

	s->off = true;
	for (struct spare *x = s->all; x; x = next) {
		next = x->next;
		if (x->running)
			spare_forget(x);
	}
}

void spares_process_exited(struct spares *s, uint32_t slot)
{
	for (struct spare *x = s->all; x; x = x->next)
		if (x->running && x->ends.slot == slot) {
			s->failed_ns = mono_ns(); /* it had no reason to end */
			spare_forget(x);
			return;
		}
}

struct spares *spares_create(struct daemon *d)
{
	struct spares *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	*s = (struct spares){.d = d};
	s->refill = loop_timer(d->loop, spares_fill, s);
	if (s->refill)
		return s;
	free(s);
	return NULL;
}

void spares_destroy(struct spares *s)
{
	if (!s)
		return;
	while (s->all)
		spare_forget(s->all);
	timer_remove(s->refill);
	free(s);
}
