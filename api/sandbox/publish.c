/* SPDX-License-Identifier: Apache-2.0
 *
 * publish.c: from written files to a checkpoint that other sandboxes read. mayflyd's loop. The monitor
 * that wrote the files continues to run the user's code, and may be taken over by it some day. So it is asked to give up write access
 * (VMM_READ_ONLY), and nothing is published before the kernel says that no process can write any of these files: a hostile monitor
 * may keep a copy of a descriptor, a mapping, or a descriptor in a message that nobody receives.
 */
#include "api/links/monitor_client.h"
#include "api/sandbox/take_int.h"
#include "lib/log.h"

/* A writer process that ends, and operations in flight, keep a file open for some more milliseconds, longer on a loaded host. */
#define LIMIT_NS (10 * 1000000000ull)
#define AGAIN_NS (10 * 1000000ull)
#define FDS_MAX  (DISK_FROZEN_MAX + 1)

static void gave_up(struct snap *s, int err, const char *text)
{
	log_warn("snapshot of %s is not published: %s", s->sb ? s->sb->id : "a deleted sandbox",
		text);
	snap_failed(s, err, text);
}

static void again_or_give_up(struct snap *s, int err, const char *text)
{
	if (mono_ns() < s->prove_until_ns)
		timer_after(s->prove, AGAIN_NS);
	else
		gave_up(s, err, text);
}

static void prove(struct snap *s)
{
	struct memory mem;
	struct err e;
	int rc;

	snap_memory_list(s, &mem);
	rc = point_has_writer(s->d->blobs, &s->point, &mem, &e);
	if (rc == 0 && s->in_ram && blob_bytes(s->d->blobs, s->mem_id) > s->ram_max_bytes)
		rc = err_plain(&e, EFBIG, "The monitor wrote more than the machine has memory.");
	if (rc == 0)
		snap_published(s);
	else if (rc == -EBUSY)
		again_or_give_up(s, EBUSY, e.msg);
	else
		gave_up(s, -rc, e.msg);
}

static void on_handed_over(void *arg, const struct vmm_answer *a)
{
	struct snap *s = arg;

	if (a->err == ECONNRESET)
		return; /* the end of the monitor comes as an event of its own */
	if (a->err == EBUSY)
		again_or_give_up(s, EBUSY, a->text);
	else if (a->err)
		/* EOPNOTSUPP: the monitor is of an earlier build */
		gave_up(s, a->err,
			a->err == EOPNOTSUPP ? "The monitor of this sandbox is of an earlier "
					       "version. Pause and resume the sandbox first."
					     : a->text);
	else {
		s->handed_over = true;
		prove(s);
	}
}

static void close_all(const int *fds, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++)
		close(fds[i]);
}

/* Hands over all frozen layers of the sandbox's disk: an earlier snapshot that failed may have left one, too. */
static void hand_over(struct snap *s)
{
	struct blobs *b = s->d->blobs;
	const struct disk *d = &s->sb->disk;
	int fds[FDS_MAX], rc = 0;
	unsigned int n = 0;
	struct buf p;

	for (int i = 0; i <= d->nfrozen && rc >= 0; i++) {
		rc = i < d->nfrozen ? blob_open(b, d->frozen[i], "data", false)
				    : blob_open(b, d->index, "index", false);
		if (rc >= 0)
			fds[n++] = rc;
	}
	if (rc >= 0) {
		buf_init(&p, 16);
		buf_u16(&p, 1);
		buf_u16(&p, (uint16_t)d->nfrozen);
		rc = vmmctl_call(s->sb->vm->ctl, VMM_READ_ONLY, &p, fds, n, on_handed_over, s);
		buf_fini(&p);
	}
	close_all(fds, n);
	if (rc >= 0)
		timer_set(s->prove, s->prove_until_ns); /* a hostile monitor never answers */
	else
		gave_up(s, -rc, "The layers cannot be handed over to the monitor.");
}

static void turn(void *arg)
{
	struct snap *s = arg;

	if (s->handed_over || !s->sb || !s->sb->vm)
		prove(s);
	else if (mono_ns() >= s->prove_until_ns)
		gave_up(s, ETIMEDOUT, "The monitor did not give up its write access in time.");
	else if (s->sb->vm->ctl)
		hand_over(s);
	else
		/* without a control connection the monitor ends, which comes as an event of its own */
		again_or_give_up(s, ENOTCONN, "The monitor does not answer.");
}

void publish_begin(struct snap *s)
{
	s->prove_until_ns = mono_ns() + LIMIT_NS;
	s->prove = loop_timer(s->d->loop, turn, s);
	if (s->prove)
		turn(s);
	else
		gave_up(s, ENOMEM, "out of memory");
}

void publish_without_monitor(struct snap *s)
{
	timer_after(s->prove, 1);
}
