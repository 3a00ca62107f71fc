/* SPDX-License-Identifier: Apache-2.0
 *
 * headroom.c: see headroom.h. mayflyd's loop. The object outlives snapshot and VM: it is tied to a slot and to the process in it, and the helper
 * refuses when that process is gone.
 */
#include "api/sandbox/headroom.h"

#include <string.h>

#include "api/core/daemon.h"
#include "api/links/helper_client.h"
#include "api/links/monitors.h"
#include "api/sandbox/admission.h"
#include "lib/log.h"
#include "lib/proto_priv.h"

#define GIVE_BACK_RETRY_NS 500000000ull /* -EBUSY until the writer's memory is freed */

enum { ROOM_GIVE_BACK = 0, ROOM_TAKE = 1, ROOM_WRITER = 2 }; /* PRIV_ROOM's what */

struct headroom {
	struct daemon *d;
	struct headroom *next;
	uint32_t slot;
	int pid;
	uint64_t bytes; /* that the limit was raised by; 0: it was not (yet) */
	bool answered, over, refused;
	struct timer *retry;
};

static void headroom_free(struct headroom *h)
{
	struct headroom **at = &h->d->headrooms;

	while (*at && *at != h)
		at = &(*at)->next;
	if (*at)
		*at = h->next;
	timer_remove(h->retry);
	free(h);
}

static int headroom_ask(
	const struct headroom *h, uint32_t what, uint64_t bytes, privctl_fn fn, void *arg)
{
	struct priv_msg m = {.op = PRIV_ROOM,
		.slot = h->slot,
		.pid = h->pid,
		.what = what,
		.limits.memory_max = bytes};

	return privctl_call(h->d->priv, &m, NULL, 0, fn, arg);
}

static void headroom_give_back(void *arg);

static void on_given_back(void *arg, const struct priv_msg *m, int fd)
{
	struct headroom *h = arg;

	close_fd(&fd);
	if (m->status == -EBUSY) {
		if (!h->retry)
			h->retry = loop_timer(h->d->loop, headroom_give_back, h);
		if (h->retry) {
			timer_after(h->retry, GIVE_BACK_RETRY_NS);
			return;
		}
	}
	if (m->status < 0 && m->status != -ENOENT)
		log_warn("slot %u: its memory limit stays raised by %llu MiB: %s", h->slot,
			(unsigned long long)(h->bytes >> 20), strerror(-m->status));
	headroom_free(h);
}

static void headroom_give_back(void *arg)
{
	struct headroom *h = arg;

	if (!h->bytes || headroom_ask(h, ROOM_GIVE_BACK, h->bytes, on_given_back, h) < 0)
		headroom_free(h);
}

static void on_taken(void *arg, const struct priv_msg *m, int fd)
{
	struct headroom *h = arg;

	close_fd(&fd);
	h->answered = true;
	/* a host without cgroups has no limit that could be met */
	if (m->status < 0 && m->status != -ENOENT)
		log_warn("slot %u: its memory limit cannot be raised for a snapshot: %s", h->slot,
			strerror(-m->status));
	h->bytes = m->status < 0 ? 0 : m->usage.memory_bytes;
	h->refused = !admission_has_memory(h->d);
	if (h->over)
		headroom_give_back(h);
}

struct headroom *headroom_take(struct vm *vm)
{
	struct headroom *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	*h = (struct headroom){
		.d = vm->d, .slot = vm->slot, .pid = vm->pid, .next = vm->d->headrooms};
	h->d->headrooms = h;
	/* no process holds more than its guest's memory */
	if (headroom_ask(h, ROOM_TAKE, MIB(vm->cls.mem_mib), on_taken, h) < 0) {
		headroom_free(h);
		return NULL;
	}
	return h;
}

int headroom_check(const struct headroom *h, struct err *e)
{
	if (!h || !h->refused)
		return 0;
	return err_plain(e, ENOMEM,
		"This host has no memory for the copies of a live snapshot: %llu MiB more are "
		"needed. Delete or pause a sandbox, or raise limits.memory_mib.",
		(unsigned long long)(h->bytes >> 20));
}

void headroom_writer(const struct headroom *h)
{
	if (h && h->bytes)
		headroom_ask(h, ROOM_WRITER, 0, NULL, NULL);
}

void headroom_end(struct headroom *h)
{
	if (!h)
		return;
	h->over = true;
	if (h->answered)
		headroom_give_back(h);
}

uint64_t headroom_mib(const struct daemon *d)
{
	uint64_t sum = 0;

	for (const struct headroom *h = d->headrooms; h; h = h->next)
		sum += h->bytes;
	return sum >> 20;
}
