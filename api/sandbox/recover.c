/* SPDX-License-Identifier: Apache-2.0
 *
 * recover.c: what to do with a checkpoint whose daemon, monitor or disk space was lost while it was
 * taken. If the monitor lives, it is asked how far it got. Otherwise the files are read
 * (files_check.c). The result is the old state or the new one. If the monitor's answer fits
 * neither, the monitor is killed and the sandbox fails. mayflyd's loop. The monitor's answer is hostile:
 * ids of layers are compared with those of our own files.
 */
#include <string.h>

#include "api/sandbox/take_int.h"
#include "api/links/monitor_client.h"
#include "lib/cow.h"
#include "lib/log.h"

static bool read_ids(struct cur *c, uint8_t (*ids)[COW_ID_BYTES], unsigned int *n)
{
	*n = cur_u8(c);
	if (c->bad || *n == 0 || *n > COW_MAX_FROZEN + 1)
		return false;
	for (unsigned int i = 0; i < *n; i++)
		cur_copy(c, ids[i], COW_ID_BYTES);
	return !c->bad;
}

/* Which layers has the VM's disk? 0: those of the record; 1: the new ones, *now; -EINVAL: neither. */
static int where(
	const struct snap *s, const uint8_t (*ids)[COW_ID_BYTES], unsigned int n, struct disk *now)
{
	struct blobs *b = s->d->blobs;
	const struct disk *d = &s->sb->disk;

	*now = *d;
	if (disk_layer_is(b, d, d->data, ids[n - 1]))
		return n == (unsigned int)d->nfrozen + 1 ? 0 : -EINVAL;
	if (!disk_layer_is(b, d, s->data_id, ids[n - 1]) ||
		disk_frozen_of(b, d, ids, n - 1, now) < 0)
		return -EINVAL;
	str_copy(now->index, sizeof(now->index), s->index_id);
	str_copy(now->data, sizeof(now->data), s->data_id);
	return 1;
}

static void ignore(void *arg, const struct vmm_answer *a)
{
}

static void lost(struct snap *s, const char *why)
{
	log_error("sandbox %s: it is not known which layers its disk has: %s", s->sb->id, why);
	vm_kill(s->sb->vm); /* not vm_abandon(): ended() is called, and the sandbox fails */
}

static void on_layers(void *arg, const struct vmm_answer *a)
{
	uint8_t ids[COW_MAX_FROZEN + 1][COW_ID_BYTES];
	struct snap *s = arg;
	struct cur c = a->body;
	uint32_t state, busy;
	unsigned int n;
	struct disk now;
	int rc;

	if (a->err == ECONNRESET)
		return; /* the end of the VM comes as an event of its own */
	s->asking = false;
	if (a->err) {
		lost(s, a->text);
		return;
	}
	state = cur_u32(&c);
	busy = cur_u32(&c);
	if (cur_u16(&c) != 1 || !read_ids(&c, ids, &n) || !cur_done(&c)) {
		lost(s, "its monitor's answer breaks the protocol");
		return;
	}
	rc = s->followed ? 0 : where(s, (const uint8_t(*)[COW_ID_BYTES])ids, n, &now);
	if (rc < 0) {
		lost(s, "its layers are neither the old nor the new ones");
		return;
	}
	if (rc == 1)
		snap_follow(s, &now);
	/* The monitor continues the source of a live snapshot by itself. The thaw is sent now: the agent gets it when the vCPUs run. */
	if (s->kind == SNAP_LIVE)
		snap_source_goes_on(s);
	if (busy || state == VMM_S_ENDED) {
		/* the event at the end of the writing calls settle_ask() again; if the process
		 * ends, settle_files() reads the files */
		if (s->kind == SNAP_PAUSE)
			operation_step(s->sb, STEP_WRITE);
		return;
	}
	if (state == VMM_S_PAUSED)
		vmmctl_call(s->sb->vm->ctl, VMM_CONTINUE, NULL, NULL, 0, ignore, NULL);
	snap_failed(s, s->err, s->why);
}

void settle_ask(struct snap *s)
{
	enum op_step step = s->sb->op.step;

	if (s->asking)
		return;
	s->asking = true;
	if (step == STEP_COPY || step == STEP_WRITE)
		operation_step(s->sb, STEP_SETTLE);
	if (vmmctl_call(s->sb->vm->ctl, VMM_LAYERS, NULL, NULL, 0, on_layers, s) < 0)
		vm_kill(s->sb->vm);
}

int settle_files(struct snap *s, struct err *e)
{
	struct point_files f = {s->mem_id, s->index_id, s->data_id, &s->sb->disk, &s->sb->memory};
	struct disk now;
	int rc;

	rc = point_read(s->d->blobs, &f, &now, &s->mem, e);
	if (rc < 0)
		return rc;
	if (!s->followed)
		snap_follow(s, &now);
	memory_ref(s->d->blobs, &s->mem);
	blob_unref(s->d->blobs, s->mem_id);
	s->mem_id[0] = 0;
	return 0;
}
