/* SPDX-License-Identifier: Apache-2.0
 *
 * working_set.c: see working_set.h. mayflyd's loop. A set only makes a restore faster; one that cannot be
 * recorded is no failure.
 */
#include "api/sandbox/working_set.h"

#include <stdio.h>
#include <string.h>

#include "api/sandbox/image_template.h"
#include "api/links/monitor_client.h"
#include "lib/buf.h"
#include "lib/log.h"
#include "lib/snap.h"

/* The first recording is made when the sandbox runs: every restore touches these pages. The next ones are made
 * when a first command had time to run. More recordings would add nothing. */
#define AFTER_NS 1500000000ull
#define ROUNDS   3
/* Limits in pages: 64 MiB and 8 MiB. Each later restore reads the whole set, and owns a copy of the written
 * pages. A command that went through much memory must not cost them that. */
#define READ_MAX    16384
#define WRITTEN_MAX 2048

struct recording {
	struct recording *next;
	struct daemon *d;
	struct sandbox *sb; /* NULL: it ended or was deleted, and vm is kept */
	struct vm *vm;
	struct timer *timer;
	bool asked, lost; /* lost: the VM's connection is gone, its end follows */
	int pid;          /* of the VM: after a pause it is another one, with other files */
	char point_id[37], ws_id[BLOB_ID];
};

static struct recording *all;

/* ---- recording */

static void recording_end(struct recording *rec)
{
	struct recording **at = &all;
	struct checkpoint *c = checkpoint_usable(rec->d, rec->point_id);

	while (*at != rec)
		at = &(*at)->next;
	*at = rec->next;
	if (c) {
		c->ws.recording = false;
		templates_bound(rec->d);
	}
	timer_remove(rec->timer);
	if (rec->sb)
		sandbox_unref(rec->sb);
	if (rec->vm)
		vm_abandon(rec->vm);
	free(rec);
}

/* What a monitor recorded, by our own count. */
struct pages {
	struct snap_ws_range r[SNAP_MAX_WS];
	uint8_t mem_id[16]; /* of the memory file it is about */
	uint32_t n;
	uint64_t read, written;
};

static int pages_read(
	struct blobs *b, const struct memory *m, const char *ws_id, struct pages *p, struct err *e)
{
	_cleanup_close_ int ws = blob_open(b, ws_id, "ws", false), mem = -1;
	struct snap_mem_head h;
	int rc;

	p->read = p->written = 0;
	mem = m->nmem ? blob_open(b, m->mem[m->nmem - 1], "mem", false) : -1;
	if (ws < 0 || mem < 0)
		return err_plain(e, ENOENT, "working set: a file is missing");
	rc = snap_mem_check(mem, NULL, &h, e);
	if (rc == 0)
		rc = snap_ws_read(ws, h.id, SNAP_MEM_MAX + GIB(4), p->r, &p->n, e);
	if (rc < 0)
		return rc;
	memcpy(p->mem_id, h.id, sizeof(p->mem_id));
	for (uint32_t i = 0; i < p->n; i++)
		*(p->r[i].written ? &p->written : &p->read) += p->r[i].npages;
	return 0;
}

/* Writes a new file: every later restore reads it, so no monitor may ever have had it open. */
static int pages_keep(struct checkpoint *c, const struct pages *p, struct err *e)
{
	_cleanup_close_ int fd = -1;
	struct blobs *b = c->d->blobs;
	char id[BLOB_ID];
	int rc;

	blob_id_make(id);
	fd = blob_make(b, id, "ws");
	if (fd < 0)
		return err_set(e, -fd, "working set");
	blob_ref(b, id);
	rc = snap_ws_write(fd, p->mem_id, p->r, p->n, e);
	if (rc < 0) {
		blob_unref(b, id);
		return rc;
	}
	blob_unref(b, c->mem.ws);
	memcpy(c->mem.ws, id, BLOB_ID);
	c->ws.read = p->read;
	c->ws.written = p->written;
	return 0;
}

/* Counts the pages in the file, because a monitor that was taken over may report anything. */
static void pages_take(struct checkpoint *c, const char *ws_id)
{
	struct pages *p = malloc(sizeof(*p));
	struct err e = {0};
	int rc = p ? pages_read(c->d->blobs, &c->mem, ws_id, p, &e)
		   : err_set(&e, ENOMEM, "working set");
	bool fits = rc == 0 && p->read <= READ_MAX && p->written <= WRITTEN_MAX;

	c->ws.rounds++;
	if (fits)
		rc = pages_keep(c, p, &e);
	checkpoint_save(c);
	if (rc < 0)
		log_info("%s %s: %s", c->kind->word, c->id, e.msg);
	else
		log_info("%s %s: working set of %llu pages read, %llu written%s", c->kind->word,
			c->id, (unsigned long long)p->read, (unsigned long long)p->written,
			fits ? "" : ": too many, not used");
	free(p);
}

static void recorded(void *arg, const struct vmm_answer *a)
{
	struct recording *rec = arg;
	struct checkpoint *c = checkpoint_usable(rec->d, rec->point_id);

	if (a->err && a->err != ECONNRESET)
		log_debug("working set: %s %s", strerror(a->err), a->text);
	if (!a->err && c)
		pages_take(c, rec->ws_id);
	blob_unref(rec->d->blobs, rec->ws_id);
	rec->lost = a->err == ECONNRESET && rec->vm;
	if (!rec->lost)
		recording_end(rec);
}

static bool ask(struct recording *rec, struct vm *vm)
{
	_cleanup_close_ int fd = -1;

	blob_id_make(rec->ws_id);
	fd = vm && vm->ctl ? blob_make(rec->d->blobs, rec->ws_id, "ws") : -1;
	if (fd < 0)
		return false;
	blob_ref(rec->d->blobs, rec->ws_id);
	rec->asked = vmmctl_call(vm->ctl, VMM_WORKSET, NULL, &fd, 1, recorded, rec) >= 0;
	if (!rec->asked)
		blob_unref(rec->d->blobs, rec->ws_id);
	return rec->asked;
}

static void record_now(void *arg)
{
	struct recording *rec = arg;

	if (rec->sb->state != SB_RUNNING || sandbox_gone(rec->sb) || rec->sb->vm_pid != rec->pid ||
		!ask(rec, rec->sb->vm))
		recording_end(rec);
}

void workset_ran(struct sandbox *sb)
{
	struct checkpoint *c = checkpoint_usable(sb->d, sb->origin_id);
	struct recording *rec;

	if (!c || c->ws.recording || c->ws.rounds >= ROUNDS)
		return;
	rec = calloc(1, sizeof(*rec));
	if (!rec)
		return;
	*rec = (struct recording){.d = sb->d,
		.sb = sb,
		.pid = sb->vm_pid,
		.timer = loop_timer(sb->d->loop, record_now, rec),
		.next = all};
	all = rec;
	snprintf(rec->point_id, sizeof(rec->point_id), "%s", sb->origin_id);
	sandbox_ref(sb);
	c->ws.recording = true;
	if (rec->timer)
		timer_after(rec->timer, c->ws.rounds ? AFTER_NS : 1);
	else
		recording_end(rec);
}

/* ---- a sandbox that ends or is deleted earlier: its VM is kept until it has recorded its pages */

static void orphan_ready(void *arg, bool prepared)
{
}

static void orphan_ended(void *arg, uint32_t reason, const char *text)
{
	struct recording *rec = arg;

	/* if the connection is not lost yet, recorded() is called later and ends it */
	rec->vm = NULL;
	if (rec->lost)
		recording_end(rec);
}

static const struct vm_ops orphan_ops = {.ready = orphan_ready, .ended = orphan_ended};

static void paused(void *arg, const struct vmm_answer *a)
{
}

void workset_sandbox_goes(struct sandbox *sb)
{
	struct recording *rec = all;

	while (rec && rec->sb != sb)
		rec = rec->next;
	if (!rec || !sb->vm || sb->vm_pid != rec->pid || !sb->vm->ctl || sb->state == SB_PENDING ||
		sb->d->ending)
		return;
	timer_set(rec->timer, 0);
	vmmctl_call(sb->vm->ctl, VMM_PAUSE, NULL, NULL, 0, paused, NULL);
	/* if it was asked already, its VM is kept until the answer */
	if (!rec->asked && !ask(rec, sb->vm)) {
		recording_end(rec);
		return;
	}
	rec->vm = sb->vm;
	rec->vm->ops = &orphan_ops;
	rec->vm->arg = rec;
	sb->vm = NULL;
	rec->sb = NULL;
	sandbox_unref(sb);
}
