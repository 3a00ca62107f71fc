/* SPDX-License-Identifier: Apache-2.0
 *
 * restore.c: see restore.h. mayfly-vmm, the device thread; the vCPUs are parked. lib/snap checks
 * state and tables as a whole before a byte of them is used. Size, files, disks and the list of
 * devices are checked before memory is touched. The loaders of processor and devices check their
 * own parts later, and a refusal by them ends the VM.
 */
#include "vmm/restore.h"

#include <string.h>

#include "lib/log.h"
#include "vmm/devices.h"
#include "vmm/fault.h"
#include "vmm/pagemap.h"
#include "vmm/populate.h"
#include "vmm/vblk.h"

static void mark(struct restore_phases *ph, const char *name)
{
	uint64_t now = mono_ns();

	if (ph->n < RESTORE_MAX_PHASES) {
		ph->p[ph->n].name = name;
		ph->p[ph->n++].ns = now - ph->last_ns;
	}
	ph->last_ns = now;
}

struct plan { /* what a restore reads before it changes anything */
	void *state;
	struct snap snap;
	struct snap_ws_range *ws;
	uint32_t nws;
	struct vm *vm;
	struct populate_plan populate;
};

static void plan_free(struct plan **p)
{
	if (!*p)
		return;
	if ((*p)->vm)
		populate_wait((*p)->vm->populate);
	populate_plan_fini(&(*p)->populate);
	free((*p)->state);
	free((*p)->ws);
	free(*p);
}

static int check_fit(struct vm *vm, const struct snap_head *h, unsigned int nmem, struct err *e)
{
	if (vm->state != VMM_S_PREPARED)
		return err_plain(e, EBUSY, "restore: the VM is not in the prepared state");
	if (strcmp(h->board, BOARD_NAME) != 0)
		return err_plain(e, EOPNOTSUPP, "the snapshot is of board %s, this is %s", h->board,
			BOARD_NAME);
	if (h->mem_bytes != vm->size.mem_bytes || h->vcpus != vm->size.vcpus)
		return err_plain(e, EINVAL,
			"the snapshot has %llu MiB and %u vCPUs, this VM %llu and %u",
			(unsigned long long)h->mem_bytes >> 20, h->vcpus,
			(unsigned long long)vm->size.mem_bytes >> 20, vm->size.vcpus);
	if (h->nfiles != nmem)
		return err_plain(e, EINVAL, "the snapshot needs %u memory files, %u were given",
			h->nfiles, nmem);
	return 0;
}

/* The disks must have the frozen layers of the snapshot at the bottom, in the same order,
 * because the guest's page cache holds their contents. Layers above them may be new. */
static int check_disks(struct vm *vm, const struct snap *s, struct err *e)
{
	for (unsigned int i = 0; i < VMM_MAX_DISKS; i++) {
		uint8_t have[COW_MAX_FROZEN + 1][COW_ID_BYTES], want[COW_ID_BYTES];
		struct cur c = snap_section(s, SNAP_S_DISK, i);
		unsigned int n, k;

		if (c.bad != (i >= vm->ndisks))
			return err_plain(e, EINVAL, "disk %u: %s", i,
				c.bad ? "not in the snapshot" : "missing");
		if (c.bad)
			continue;
		n = cow_layer_ids(vblk_cow(vm->disk[i]), have);
		k = cur_u8(&c);
		if (k > n)
			return err_plain(
				e, EINVAL, "disk %u: %u layers, the snapshot has %u", i, n, k);
		for (unsigned int j = 0; j < k; j++)
			if (!cur_copy(&c, want, sizeof(want)) ||
				memcmp(want, have[j], sizeof(want)) != 0)
				return err_plain(e, EINVAL,
					"disk %u: layer %u is not the one that the snapshot needs",
					i, j);
		if (!cur_done(&c))
			return err_plain(e, EBADMSG, "disk %u: damaged list of layers", i);
	}
	return 0;
}

static int check_devices(struct vm *vm, const struct snap *s, struct err *e)
{
	/* not every snapshot has these devices: a VM may have none, older builds had none */
	if (snap_has(s, SNAP_S_DEVICE, SLOT_NET) && !vm->board.dev[SLOT_NET]) {
		int rc = devices_add_net(vm, e);

		if (rc < 0)
			return rc;
	}
	if (snap_has(s, SNAP_S_DEVICE, SLOT_FS) && !vm->board.dev[SLOT_FS]) {
		int rc = devices_add_fs(vm, e);

		if (rc < 0)
			return rc;
	}
	if (snap_has(s, SNAP_S_DEVICE, SLOT_BALLOON) && !vm->board.dev[SLOT_BALLOON]) {
		int rc = devices_add_balloon(vm, e);

		if (rc < 0)
			return rc;
	}
	for (unsigned int i = 0; i < BOARD_VIRTIO_SLOTS; i++)
		if (snap_has(s, SNAP_S_DEVICE, i) != (vm->board.dev[i] != NULL))
			return err_plain(e, EINVAL, "device in slot %u: %s", i,
				vm->board.dev[i] ? "not in the snapshot"
						 : "in the snapshot, not in this VM");
	for (unsigned int i = 0; i < vm->size.vcpus; i++)
		if (!snap_has(s, SNAP_S_VCPU, i))
			return err_plain(e, EBADMSG, "snapshot state: vCPU %u is missing", i);
	return 0;
}

static int load_tables(struct vm *vm, struct plan *p, int state_fd, const int *mem_fd,
	unsigned int nmem, int ws_fd, struct err *e)
{
	struct err why = {0};
	size_t n = 0;
	int rc = snap_read_file(state_fd, &p->state, &n, e);

	if (rc == 0)
		rc = snap_parse(&p->snap, p->state, n, e);
	if (rc == 0)
		rc = check_fit(vm, &p->snap.head, nmem, e);
	/* disks first: their errors name the disk, those of devices only a slot */
	if (rc == 0)
		rc = check_disks(vm, &p->snap, e);
	if (rc == 0)
		rc = check_devices(vm, &p->snap, e);
	for (unsigned int i = 0; rc == 0 && i < nmem; i++) {
		struct snap_mem_head h;

		rc = snap_mem_check(mem_fd[i], &p->snap.head.file[i], &h, e);
		if (rc < 0)
			err_wrap(e, "memory file %u", i);
	}
	if (rc < 0 || ws_fd < 0)
		return rc;
	/* a working set only makes the restore faster: a bad one is logged and not used */
	p->ws = malloc(SNAP_MAX_WS * sizeof(*p->ws));
	if (p->ws && snap_ws_read(ws_fd, p->snap.head.file[nmem - 1].id, vm->mem.span_bytes, p->ws,
			     &p->nws, &why) < 0) {
		log_warn("%s", why.msg);
		p->nws = 0;
	}
	return 0;
}

/* Checks the chunks that the guest will touch first. The daemon asks for this unless it knows that the
 * whole files were checked since the host booted. The daemon checks them after the restore. */
static int verify_prefetched(
	const struct plan *p, const int *mem_fd, unsigned int nmem, struct err *e)
{
	_cleanup_free_ uint8_t(*map)[SNAP_CHUNK_MAP] = calloc(SNAP_MAX_FILES, sizeof(*map));
	int rc = map ? 0 : err_set(e, ENOMEM, "restore");

	for (uint32_t i = 0; rc == 0 && i < p->nws; i++)
		snap_mark_chunks(&p->snap, (uint64_t)p->ws[i].page * PAGE_BYTES,
			(uint64_t)p->ws[i].npages * PAGE_BYTES, map);
	for (unsigned int i = 0; rc == 0 && i < nmem; i++) {
		rc = snap_mem_verify_some(mem_fd[i], &p->snap.head.file[i], map[i], e);
		if (rc < 0)
			err_wrap(e, "memory file %u", i);
	}
	return rc;
}

void restored_free(struct restored_mem *m)
{
	if (m)
		pm_list_fini(&m->along);
	free(m);
}

static void remember(struct vm *vm, struct plan *p)
{
	struct restored_mem *m = malloc(sizeof(*m));

	restored_free(vm->restored);
	vm->restored = m;
	if (!m)
		return; /* no memory: a later difference then holds all of guest memory */
	*m = (struct restored_mem){.nfiles = p->snap.head.nfiles, .along = p->populate.along};
	p->populate.along = (struct pm_list){0};
	memcpy(m->file, p->snap.head.file, sizeof(m->file));
}

/* Notes the ranges that populate_start() copies from files, for mem_give_back(). */
static int note_copies(struct mem *m, const struct populate_plan *p)
{
	m->copied = malloc((p->ncopy + 1) * sizeof(*m->copied));
	if (!m->copied)
		return -ENOMEM;
	for (unsigned int i = 0; i < p->ncopy; i++)
		if (p->copy[i].file != POPULATE_NO_FILE)
			m->copied[m->ncopied++] =
				(struct mem_copied){p->copy[i].gpa, p->copy[i].len};
	return 0;
}

static int populate(struct vm *vm, struct plan *p, const int *mem_fd, struct err *e)
{
	int rc = populate_plan_make(
		&p->populate, &vm->mem.table, p->ws, p->nws, populate_room(vm->populate));

	if (rc == 0)
		rc = note_copies(&vm->mem, &p->populate);
	if (rc < 0)
		return err_set(e, -rc, "restore");
	p->vm = vm;
	return populate_start(vm->populate, &vm->mem, &p->populate, mem_fd, e);
}

static int load_section(
	const struct snap *s, uint32_t type, uint32_t id, struct cur *c, struct err *e)
{
	*c = snap_section(s, type, id);
	return c->bad ? err_plain(e, EBADMSG, "snapshot state: section type %u id %u is missing",
				type, id)
		      : 0;
}

static int whole(const struct cur *c, const char *what, struct err *e)
{
	return cur_done(c) ? 0 : err_plain(e, EBADMSG, "snapshot state: %s: bytes left over", what);
}

static int load_cpus(struct vm *vm, const struct snap *s, struct err *e)
{
	int fds[VMM_MAX_VCPUS], rc;
	struct cur c;

	for (unsigned int i = 0; i < vm->vcpus.n; i++)
		fds[i] = vm->vcpus.v[i].fd;
	rc = load_section(s, SNAP_S_CPU, 0, &c, e);
	if (rc == 0)
		rc = arch_cpu_load(&vm->kvm, vm->cpu, fds, vm->vcpus.n, &c, e);
	if (rc == 0)
		rc = whole(&c, "processor", e);
	if (rc == 0)
		rc = load_section(s, SNAP_S_VM, 0, &c, e);
	if (rc == 0)
		rc = arch_vm_load(&vm->kvm, &c, e);
	if (rc == 0)
		rc = whole(&c, "interrupt controllers", e);
	for (unsigned int i = 0; rc == 0 && i < vm->vcpus.n; i++) {
		rc = load_section(s, SNAP_S_VCPU, i, &c, e);
		if (rc == 0)
			rc = arch_vcpu_load(&vm->kvm, vm->cpu, fds[i], &c, e);
		if (rc == 0)
			rc = whole(&c, "vCPU", e);
		if (rc < 0)
			err_wrap(e, "vCPU %u", i);
	}
	return rc;
}

static int load_devices(struct vm *vm, const struct snap *s, struct err *e)
{
	struct cur c;
	int rc = load_section(s, SNAP_S_BOARD, 0, &c, e);

	if (rc == 0)
		rc = board_load(&vm->board, &c, e);
	for (unsigned int i = 0; rc == 0 && i < BOARD_VIRTIO_SLOTS; i++) {
		if (!vm->board.dev[i])
			continue;
		rc = load_section(s, SNAP_S_DEVICE, i, &c, e);
		if (rc == 0)
			rc = board_load_dev(&vm->board, i, &c, e);
	}
	return rc;
}

/* Frees the ready pages that the restore did not use. Deferred, so that the reply does not wait for
 * it. */
static void drop_reserve(void *arg)
{
	struct vm *vm = arg;

	populate_destroy(vm->populate);
	vm->populate = NULL;
}

int restore_vm(struct vm *vm, int state_fd, const int *mem_fd, unsigned int nmem, int ws_fd,
	uint32_t flags, struct restore_phases *ph, struct err *e)
{
	_cleanup_(plan_free) struct plan *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return err_set(e, ENOMEM, "restore");
	ph->last_ns = mono_ns();
	rc = load_tables(vm, p, state_fd, mem_fd, nmem, ws_fd, e);
	if (rc == 0)
		rc = fault_at(vm, FAULT_VMM_TABLES, e);
	if (rc < 0)
		return rc;
	mark(ph, "tables");
	if (flags & VMM_F_VERIFY) {
		rc = verify_prefetched(p, mem_fd, nmem, e);
		if (rc < 0)
			return rc;
		mark(ph, "verify");
	}
	rc = mem_map_files(&vm->mem, p->snap.ext, p->snap.nextents, mem_fd, e);
	if (rc == 0)
		rc = fault_at(vm, FAULT_VMM_MAPPED, e);
	mark(ph, "map");
	if (rc == 0)
		rc = populate(vm, p, mem_fd, e);
	mark(ph, "populate");
	if (rc == 0)
		rc = load_cpus(vm, &p->snap, e);
	mark(ph, "cpus");
	if (rc == 0)
		rc = load_devices(vm, &p->snap, e);
	if (rc == 0)
		rc = fault_at(vm, FAULT_VMM_LOADED, e);
	mark(ph, "devices");
	populate_wait(vm->populate);
	mark(ph, "mapped");
	if (rc < 0) {
		vm_broken(vm);
		return rc;
	}
	populate_nested(&vm->kvm, vm->vcpus.v[0].fd, &p->populate);
	mark(ph, "prefault");
	remember(vm, p);
	board_new_generation(&vm->board, true);
	vm_restored(vm, (flags & VMM_F_RUN) != 0);
	mark(ph, "run");
	loop_defer(vm->loop, drop_reserve, vm);
	return fault_at(vm, FAULT_VMM_RUNS, e);
}

int restore_peek(int state_fd, struct vm_size *s, struct err *e)
{
	_cleanup_(plan_free) struct plan *p = calloc(1, sizeof(*p));
	size_t n = 0;
	int rc;

	if (!p)
		return err_set(e, ENOMEM, "restore");
	rc = snap_read_file(state_fd, &p->state, &n, e);
	if (rc == 0)
		rc = snap_parse(&p->snap, p->state, n, e);
	if (rc < 0)
		return rc;
	*s = (struct vm_size){.mem_bytes = p->snap.head.mem_bytes, .vcpus = p->snap.head.vcpus};
	memcpy(s->tmpl, p->snap.head.cpu_template, sizeof(s->tmpl));
	return 0;
}

struct ws_out {
	struct snap_ws_range *r;
	uint32_t n;
	uint64_t pages[2]; /* read, written */
};

static void ws_add(struct ws_out *o, uint64_t gpa, uint64_t end, bool written)
{
	uint32_t pages = (uint32_t)((end - gpa) / PAGE_BYTES);

	if (gpa >= end || o->n == SNAP_MAX_WS)
		return;
	o->r[o->n++] = (struct snap_ws_range){.page = (uint32_t)(gpa / PAGE_BYTES),
		.npages = pages & 0x7fffffffu,
		.written = written};
	o->pages[written] += pages;
}

/* Pages that this restore copied along count as read. If they counted as written, the next restore
 * would copy more pages along, and so on. */
static void ws_add_private(struct ws_out *o, const struct pm_range *r, const struct pm_list *along)
{
	uint64_t at = r->gpa, end = r->gpa + r->len;

	for (size_t i = 0; i < along->n && along->r[i].gpa < end; i++) {
		uint64_t from = MAX(at, along->r[i].gpa),
			 to = MIN(end, along->r[i].gpa + along->r[i].len);

		if (to <= at)
			continue;
		ws_add(o, at, from, true);
		ws_add(o, from, to, false);
		at = to;
	}
	ws_add(o, at, end, true);
}

int restore_record_workset(
	struct vm *vm, int fd, uint64_t *nread, uint64_t *nwritten, struct err *e)
{
	struct ws_out o = {0};
	struct pm_list l;
	int rc;

	if (!vm->restored)
		return err_plain(
			e, EINVAL, "working set: this VM's memory is not mapped from a snapshot");
	rc = pagemap_list(vm->proc_fd, &vm->mem, false, false, &l, e);
	if (rc < 0)
		return rc;
	o.r = malloc(SNAP_MAX_WS * sizeof(*o.r));
	for (size_t i = 0; o.r && i < l.n; i++)
		if (l.r[i].priv)
			ws_add_private(&o, &l.r[i], &vm->restored->along);
		else
			ws_add(&o, l.r[i].gpa, l.r[i].gpa + l.r[i].len, false);
	pm_list_fini(&l);
	*nread = o.pages[0];
	*nwritten = o.pages[1];
	rc = o.r ? snap_ws_write(fd, vm->restored->file[vm->restored->nfiles - 1].id, o.r, o.n, e)
		 : err_set(e, ENOMEM, "working set");
	free(o.r);
	return rc;
}
