/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.c: see snapshot.h. mayfly-vmm, the device thread, and a forked child, the writer. The
 * guest's memory is opaque bytes.
 *
 * Order: the vCPUs stop, the devices finish their requests, the disks freeze, registers and device
 * state go into a buffer, then a fork. The child has the memory of this moment. The parent runs
 * the VM on (LIVE), or keeps it stopped. A child writes in both cases, because the device thread
 * must answer the control socket and must not wait for the disk. The writer writes the memory file
 * (data, sums, sync, head, sync), then the state file (written, synced). So if the state file is
 * complete, everything that it refers to is durable. With VMM_F_RAM both files are in RAM and are
 * not synced; the disks are.
 *
 * The writer's result comes through a pipe and completes the snapshot. The kernel then needs a
 * while to free gigabytes of the writer's memory. Only after that the pipe ends, and wait4() does
 * not block.
 */
#include "vmm/snapshot.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "lib/fdpass.h"
#include "lib/log.h"
#include "vmm/bio.h"
#include "vmm/crash.h"
#include "vmm/fault.h"
#include "vmm/memplan.h"
#include "vmm/restore.h"
#include "vmm/seal.h"
#include "vmm/vblk.h"

struct snapshot_job {
	struct vm *vm;
	struct snapshot_req req;
	struct snapshot_done done;
	struct snap_writer state;
	uint64_t t0;
	bool was_running;
	unsigned int carry_disk; /* whose layers are being copied in advance */
	pid_t child;
	int pipe_fd; /* the child's result comes here, then end-of-file */
	struct watch *watch;
	bool over; /* durable() was called; the child has not ended yet */
};

struct result { /* child to parent */
	int32_t status;
	uint32_t kept;
	uint32_t lost; /* bit i: a sync of disk i failed */
	uint64_t bytes, pages;
	char text[500];
};

/* ---- state */

static int save_disks(struct vm *vm, const struct snapshot_req *q, struct snap_writer *w)
{
	for (unsigned int i = 0; i < vm->ndisks; i++) {
		uint8_t ids[COW_MAX_FROZEN + 1][COW_ID_BYTES];
		struct cow *c = vblk_cow(vm->disk[i]);
		unsigned int n = cow_layer_ids(c, ids);
		size_t at = snap_sec_begin(w, SNAP_S_DISK, i);

		/* after a freeze the private layer is new and empty; a restore has one of its
		 * own */
		if (n && q->ndisks && !cow_is_read_only(c))
			n--;
		buf_u8(&w->out, (uint8_t)n);
		buf_put(&w->out, ids, n * sizeof(ids[0]));
		snap_sec_end(w, at);
	}
	return 0;
}

static int save_state(struct vm *vm, struct snap_writer *w, struct err *e)
{
	size_t at;
	int rc;

	snap_write_begin(w);
	w->head.mem_bytes = vm->size.mem_bytes;
	w->head.vcpus = vm->size.vcpus;
	w->head.wall_ns = wall_ns();
	memcpy(w->head.cpu_template, vm->size.tmpl, sizeof(w->head.cpu_template));
	snprintf(w->head.board, sizeof(w->head.board), "%s", BOARD_NAME);
	at = snap_sec_begin(w, SNAP_S_CPU, 0);
	rc = arch_cpu_save(&vm->kvm, vm->cpu, vm->vcpus.v[0].fd, &w->out, e);
	snap_sec_end(w, at);
	for (unsigned int i = 0; rc == 0 && i < vm->vcpus.n; i++) {
		at = snap_sec_begin(w, SNAP_S_VCPU, i);
		rc = arch_vcpu_save(&vm->kvm, vm->cpu, vm->vcpus.v[i].fd, &w->out, e);
		snap_sec_end(w, at);
	}
	if (rc < 0)
		return rc;
	at = snap_sec_begin(w, SNAP_S_VM, 0);
	rc = arch_vm_save(&vm->kvm, &w->out, e);
	snap_sec_end(w, at);
	at = snap_sec_begin(w, SNAP_S_BOARD, 0);
	board_save(&vm->board, &w->out);
	snap_sec_end(w, at);
	for (unsigned int i = 0; i < BOARD_VIRTIO_SLOTS; i++) {
		if (!vm->board.dev[i])
			continue;
		at = snap_sec_begin(w, SNAP_S_DEVICE, i);
		board_save_dev(&vm->board, i, &w->out);
		snap_sec_end(w, at);
	}
	return rc;
}

static int freeze_disks(struct snapshot_job *j, struct err *e)
{
	unsigned int k = 0;

	for (unsigned int i = 0; i < j->vm->ndisks; i++) {
		struct cow *c = vblk_cow(j->vm->disk[i]);
		struct snapshot_disk *d = &j->req.disk[k];
		int rc;

		if (cow_is_read_only(c))
			continue;
		if (!j->req.ndisks)
			continue; /* the writer flushes it */
		rc = cow_freeze(c, d->index_fd, d->data_fd, d->bitmap_fd, &j->done.dropped[k], e);
		if (rc == 0)
			*d = (struct snapshot_disk){-1, -1, -1}; /* the disk owns them now */
		k++;
		if (rc < 0)
			return err_wrap(e, "disk %u", i);
	}
	return 0;
}

/* In the writer: makes the disks' layers durable. */
static int finish_disks(struct vm *vm, bool frozen, struct err *e)
{
	for (unsigned int i = 0; i < vm->ndisks; i++) {
		struct cow *c = vblk_cow(vm->disk[i]);
		int rc = 0;

		if (!cow_is_read_only(c))
			rc = frozen ? cow_freeze_finish(c, e) : cow_flush(c, e);
		if (rc < 0)
			return err_wrap(e, "disk %u", i);
	}
	return 0;
}

/* ---- memory */

static bool is_zero(const void *page)
{
	const uint64_t *p = page;

	for (unsigned int i = 0; i < PAGE_BYTES / 8; i += 8)
		if (p[i] | p[i + 1] | p[i + 2] | p[i + 3] | p[i + 4] | p[i + 5] | p[i + 6] |
			p[i + 7])
			return false;
	return true;
}

static int add_nonzero(const struct mem *m, uint64_t gpa, uint64_t len, struct pm_list *out)
{
	int rc = 0;

	for (uint64_t at = gpa; rc == 0 && at < gpa + len; at += PAGE_BYTES)
		if (!is_zero(mem_ptr(m, GPA(at), PAGE_BYTES)))
			rc = pm_list_add(out, at, PAGE_BYTES, true);
	return rc;
}

/* Lists all of memory without its zero pages: private pages, and those that are still mapped
 * from the files of the restore. */
static int list_all(struct vm *vm, const struct pm_list *priv, struct pm_list *out)
{
	const struct mem_table *t = &vm->mem.table;
	unsigned int x = 0;
	uint64_t at = 0;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i <= priv->n; i++) {
		uint64_t from = i < priv->n ? priv->r[i].gpa : UINT64_MAX;

		/* file pages before this private range */
		for (; rc == 0 && x < t->n && t->r[x].gpa < from; x++) {
			const struct mem_range *r = &t->r[x];
			uint64_t lo = MAX(at, r->gpa), hi = MIN(r->gpa + r->len, from);

			if (lo < hi && memtable_in_file(r))
				rc = add_nonzero(&vm->mem, lo, hi - lo, out);
			if (r->gpa + r->len > from)
				break;
		}
		if (rc == 0 && i < priv->n) {
			rc = add_nonzero(&vm->mem, from, priv->r[i].len, out);
			at = from + priv->r[i].len;
		}
	}
	return rc;
}

/* Splits private pages for a difference. `zeros` gets runs of zeros that are too long to be written
 * with their neighbours; the new snapshot has no extent for them. `out` gets all others. */
static int drop_zeros(
	struct vm *vm, const struct pm_list *priv, struct pm_list *out, struct pm_list *zeros)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < priv->n; i++) {
		uint64_t end = priv->r[i].gpa + priv->r[i].len, run = priv->r[i].gpa;

		for (uint64_t at = run; rc == 0 && at < end; at += PAGE_BYTES) {
			if (is_zero(mem_ptr(&vm->mem, GPA(at), PAGE_BYTES)))
				continue;
			if (at - run >= MEMPLAN_GAP)
				rc = pm_list_add(zeros, run, at - run, true);
			else if (at > run)
				rc = pm_list_add(out, run, at - run, true);
			if (rc == 0)
				rc = pm_list_add(out, at, PAGE_BYTES, true);
			run = at + PAGE_BYTES;
		}
		if (rc == 0 && end - run >= MEMPLAN_GAP)
			rc = pm_list_add(zeros, run, end - run, true);
		else if (rc == 0 && end > run)
			rc = pm_list_add(out, run, end - run, true);
	}
	return rc;
}

/* The ranges of the table that are in files, without those in `zeros`. False: more than cap. */
static bool base_pieces(const struct mem_table *t, const struct pm_list *zeros,
	struct snap_extent *x, unsigned int cap, unsigned int *n)
{
	size_t z = 0;

	*n = 0;
	for (unsigned int i = 0; i < t->n; i++) {
		const struct mem_range *r = &t->r[i];
		uint64_t at = r->gpa, end = r->gpa + r->len;

		if (!memtable_in_file(r))
			continue;
		while (z < zeros->n && zeros->r[z].gpa + zeros->r[z].len <= at)
			z++;
		for (size_t k = z; at < end; k++) {
			bool cut = k < zeros->n && zeros->r[k].gpa < end;
			uint64_t to = cut ? MAX(at, zeros->r[k].gpa) : end;

			if (to > at && *n == cap)
				return false;
			if (to > at)
				x[(*n)++] = (struct snap_extent){.gpa = at,
					.len = to - at,
					.off = r->off + (at - r->gpa),
					.file = r->file};
			at = cut ? zeros->r[k].gpa + zeros->r[k].len : end;
		}
	}
	return true;
}

static int plan_difference(
	struct vm *vm, const struct pm_list *priv, uint32_t drop, struct memplan *p, struct err *e)
{
	struct snap_extent base[SNAP_MAX_EXTENTS];
	struct pm_list written = {0}, zeros = {0};
	unsigned int n;
	int rc = drop_zeros(vm, priv, &written, &zeros);

	if (rc < 0)
		err_set(e, -rc, "list of pages");
	/* -E2BIG: too many pieces. Then the zeros are written, too (below). */
	else if (base_pieces(&vm->mem.table, &zeros, base, ARRAY_LEN(base), &n))
		rc = memplan_make(p, &written, base, n, vm->restored->nfiles, drop, e);
	else
		rc = -E2BIG;
	if (rc == -E2BIG) {
		pm_list_fini(&zeros);
		rc = base_pieces(&vm->mem.table, &zeros, base, ARRAY_LEN(base), &n)
			     ? memplan_make(p, priv, base, n, vm->restored->nfiles, drop, e)
			     : -E2BIG;
	}
	pm_list_fini(&written);
	pm_list_fini(&zeros);
	return rc;
}

static int make_plan(
	struct vm *vm, uint32_t flags, struct memplan *p, uint64_t *pages, struct err *e)
{
	uint32_t drop = (flags & VMM_F_CARRY) >> VMM_F_CARRY_SHIFT;
	struct pm_list priv = {0}, all = {0};
	int rc = pagemap_list(vm->proc_fd, &vm->mem, true, false, &priv, e);

	if (rc < 0)
		return rc;
	/* All of memory is written if there is no restore that a difference could refer to, or if
	 * the difference has too many pieces (-E2BIG). */
	rc = (flags & VMM_F_DIFF) && vm->restored ? plan_difference(vm, &priv, drop, p, e) : -E2BIG;
	if (rc == -E2BIG) {
		rc = list_all(vm, &priv, &all);
		if (rc < 0)
			err_set(e, -rc, "list of pages");
		else
			rc = memplan_make(p, &all, NULL, 0, 0, 0, e);
	}
	if (rc == 0)
		*pages = p->pages;
	pm_list_fini(&priv);
	pm_list_fini(&all);
	return rc;
}

#define DENSE_PAGES 448u

/* Is this region worth a 2 MiB mapping? A region with hardly a zero page is kernel code or data, or
 * files that were read: many restores read all of it. A region with zero pages belongs to an
 * allocator, and its first write would split the mapping again. */
static bool region_is_dense(const uint8_t *p)
{
	unsigned int n = 0;

	for (uint64_t o = 0; o < SNAP_HUGE; o += PAGE_BYTES)
		n += !is_zero(p + o);
	return n >= DENSE_PAGES;
}

/* Whole regions are written from a buffer at another address modulo 2 MiB. Without the buffer,
 * guest memory and the page cache's folio agree modulo 2 MiB. An emulated processor has one slot of
 * its address cache for both, and the kernel's copy took 30 times as long. On hardware the buffer
 * costs one memcpy, in the writer. */
#define BOUNCE_SHIFT (37u * PAGE_BYTES)

struct bounce {
	uint8_t *map, *at;
};

static int bounce_make(struct bounce *b, struct err *e)
{
	b->map = mmap(NULL, 2 * SNAP_HUGE + BOUNCE_SHIFT, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (b->map == MAP_FAILED)
		return err_set(e, errno, "buffer of a memory file");
	b->at = (uint8_t *)ALIGN_UP((uintptr_t)b->map, SNAP_HUGE) + BOUNCE_SHIFT;
	return 0;
}

/* In the writer: writes a range and drops it at once. While the writer holds a page and the
 * running VM writes to it, the kernel copies the page, and both copies count against the
 * sandbox's limit. */
static int write_extent(struct vm *vm, struct snap_mem_writer *w, const struct bounce *b,
	uint64_t gpa, uint64_t len, struct err *e)
{
	int rc = 0;

	for (uint64_t done = 0, n; rc == 0 && done < len; done += n) {
		uint8_t *p;

		n = MIN(len - done, SNAP_HUGE - (gpa + done) % SNAP_HUGE);
		p = mem_ptr(&vm->mem, GPA(gpa + done), n);
		if (n == SNAP_HUGE && snap_mem_is_huge_place(w) && region_is_dense(p))
			rc = snap_mem_put_huge(w, memcpy(b->at, p, n), e);
		else
			rc = snap_mem_put(w, p, n, e);
		(void)madvise(p, n, MADV_DONTNEED);
	}
	return rc;
}

/* Reserves disk space before anything is written, with one call for pieces that touch. */
static int reserve_space(struct snap_mem_writer *w, const struct memplan *p, struct err *e)
{
	uint64_t from = 0, to = 0;
	int rc = 0;

	for (unsigned int i = 0; rc == 0 && i < p->nnew; i++) {
		const struct snap_extent *x = &p->ext[p->order[i]];

		if (x->off != to) {
			rc = to > from ? snap_mem_reserve(w, from, to - from, e) : 0;
			from = x->off;
		}
		to = x->off + x->len;
	}
	return rc == 0 && to > from ? snap_mem_reserve(w, from, to - from, e) : rc;
}

static int write_memory(
	struct snapshot_job *j, const struct memplan *p, struct snap_file *f, struct err *e)
{
	struct vm *vm = j->vm;
	struct snap_mem_writer w;
	struct bounce b = {0};
	int rc = snap_mem_begin(&w, j->req.mem_fd, e);

	w.in_ram = (j->req.flags & VMM_F_RAM) != 0;
	if (rc == 0)
		rc = bounce_make(&b, e);
	if (rc == 0)
		rc = reserve_space(&w, p, e);
	for (unsigned int i = 0; rc == 0 && i < p->nnew; i++) {
		const struct snap_extent *x = &p->ext[p->order[i]];

		snap_mem_skip(&w, x->off - w.at);
		rc = write_extent(vm, &w, &b, x->gpa, x->len, e);
	}
	if (rc == 0)
		rc = snap_mem_finish(&w, e);
	memcpy(f->id, w.head.id, sizeof(f->id));
	f->data_bytes = p->bytes;
	snap_mem_fini(&w);
	return rc;
}

/* Reads the new state back with the reader's checks. If a restore would refuse it, the snapshot
 * fails. The VM of a live snapshot runs on; another one stays paused, also with VMM_F_EXIT. */
static int can_be_read(const struct snap_writer *w, struct err *e)
{
	_cleanup_free_ struct snap *s = malloc(sizeof(*s));

	if (!s)
		return err_set(e, ENOMEM, "snapshot state");
	return snap_parse(s, w->out.p, w->out.len, e);
}

static int write_state(
	struct snapshot_job *j, const struct memplan *p, const struct snap_file *f, struct err *e)
{
	struct snap_writer *w = &j->state;
	struct vm *vm = j->vm;
	int fd = j->req.state_fd;
	size_t at = snap_sec_begin(w, SNAP_S_EXTENTS, 0);
	unsigned int k = 0;
	int rc;

	buf_put(&w->out, p->ext, p->n * sizeof(p->ext[0]));
	snap_sec_end(w, at);
	for (unsigned int i = 0; vm->restored && i < vm->restored->nfiles; i++)
		if (p->kept & (1u << i))
			w->head.file[k++] = vm->restored->file[i];
	w->head.file[k++] = *f;
	w->head.nfiles = k;
	rc = snap_write_finish(w, e);
	if (rc == 0)
		rc = can_be_read(w, e);
	if (rc < 0)
		return rc;
	rc = pwrite_full(fd, w->out.p, w->out.len, 0);
	if (rc == 0 && !(j->req.flags & VMM_F_RAM) && fsync(fd) < 0)
		rc = -errno;
	return rc < 0 ? err_set(e, -rc, "snapshot state: write") : 0;
}

/* In the writer: writes everything. */
static void write_all(struct snapshot_job *j)
{
	struct memplan *p = malloc(sizeof(*p));
	struct snapshot_done *d = &j->done;
	struct snap_file f;

	d->status = p ? 0 : err_set(&d->err, ENOMEM, "snapshot");
	if (d->status == 0)
		d->status = fault_at(j->vm, FAULT_VMM_WRITE, &d->err);
	if (d->status == 0)
		d->status = make_plan(j->vm, j->req.flags, p, &d->pages, &d->err);
	if (d->status == 0)
		d->status = finish_disks(j->vm, j->req.ndisks > 0, &d->err);
	if (d->status == 0)
		d->status = fault_at(j->vm, FAULT_VMM_DISKS, &d->err);
	if (d->status == 0)
		d->status = write_memory(j, p, &f, &d->err);
	if (d->status == 0)
		d->status = fault_at(j->vm, FAULT_VMM_MEMORY, &d->err);
	if (d->status == 0)
		d->status = write_state(j, p, &f, &d->err);
	if (d->status == 0)
		d->status = fault_at(j->vm, FAULT_VMM_STATE, &d->err);
	if (d->status == 0) {
		d->kept_mem = p->kept;
		d->bytes = p->bytes + j->state.out.len;
	}
	free(p);
}

/* ---- the job */

static void job_free(struct snapshot_job *j)
{
	close_fd(&j->req.state_fd);
	close_fd(&j->req.mem_fd);
	close_fd(&j->pipe_fd);
	for (unsigned int i = 0; i < j->req.ndisks; i++) {
		close_fd(&j->req.disk[i].index_fd);
		close_fd(&j->req.disk[i].data_fd);
		close_fd(&j->req.disk[i].bitmap_fd);
	}
	watch_remove(j->watch);
	snap_write_fini(&j->state);
	free(j);
}

/* Reports the result. job_free() follows when the child has ended. */
static void job_over(struct snapshot_job *j)
{
	struct vm *vm = j->vm;

	if (j->done.status < 0)
		log_warn("snapshot: %s", j->done.err.msg);
	j->over = true;
	j->req.durable(j->req.arg, &j->done);
	vm_job_over(vm);
}

static void take_result(struct snapshot_job *j, struct result *r)
{
	struct snapshot_done *d = &j->done;

	d->status = r->status;
	d->kept_mem = r->kept;
	d->bytes = r->bytes;
	d->pages = r->pages;
	for (unsigned int i = 0; i < j->vm->ndisks; i++) {
		if (r->lost & 1u << i)
			cow_fail(vblk_cow(j->vm->disk[i]), -EIO);
		if (r->status == 0 && j->req.ndisks)
			vblk_freeze_settled(j->vm->disk[i]);
	}
	r->text[sizeof(r->text) - 1] = 0;
	if (r->status < 0)
		err_plain(&d->err, -r->status, "%s", r->text);
}

static void no_result(struct snapshot_job *j, int ws)
{
	struct snapshot_done *d = &j->done;

	if (WIFSIGNALED(ws) && WTERMSIG(ws) == SIGKILL)
		d->status = err_plain(&d->err, ENOMEM,
			"the process that wrote it died: it was killed, most likely because the "
			"sandbox's memory limit was met");
	else
		d->status = err_plain(&d->err, EIO, "the process that wrote it died (%s %d)",
			WIFSIGNALED(ws) ? "signal" : "exit",
			WIFSIGNALED(ws) ? WTERMSIG(ws) : WEXITSTATUS(ws));
}

/* The files are complete, or the snapshot failed. A VM that was stopped all the time now becomes
 * paused or ends; the VM of a live snapshot runs already. */
static void job_done(struct snapshot_job *j)
{
	struct vm *vm = j->vm;
	bool live = (j->req.flags & VMM_F_LIVE) != 0;
	bool ends = !live && j->done.status == 0 && (j->req.flags & VMM_F_EXIT);

	if (!live && !ends)
		vm_snapshot_taken(vm, false);
	job_over(j);
	if (ends)
		vm_end(vm, VMM_X_SNAPSHOTTED, "the snapshot is durable");
}

static void on_child(void *arg, uint32_t events)
{
	struct snapshot_job *j = arg;
	struct result r;
	ssize_t n = read(j->pipe_fd, &r, sizeof(r));
	int ws = 0;

	if (n < 0 && errno == EAGAIN)
		return;
	if (n == sizeof(r) && !j->over) {
		take_result(j, &r);
		job_done(j);
		return;
	}
	waitpid(j->child, &ws, 0);
	if (!j->over) {
		no_result(j, ws);
		job_done(j);
	}
	job_free(j);
}

static void keep_files(struct snapshot_job *j, int out)
{
	int keep[4 + VMM_MAX_DISKS * COW_FDS_MAX] = {
		j->req.state_fd, j->req.mem_fd, out, j->vm->proc_fd};
	unsigned int n = 4;

	for (unsigned int i = 0; i < j->vm->ndisks; i++)
		n += cow_descriptors(vblk_cow(j->vm->disk[i]), keep + n);
	/* No socket and no stream stays open: when the VM ends, the peer must read end-of-file. No
	 * last words: the child must not write the VM's. */
	ASSERT(fd_keep_only(keep, n) == 0);
}

/* The child has the memory of the moment of the fork. It drops what it shares with the parent,
 * writes the files and reports the result. */
_noreturn_ static void child_main(struct snapshot_job *j, int out)
{
	struct result r = {0};

	prctl(PR_SET_NAME, "snapshot");
	crash_child();
	vcpus_forget(&j->vm->vcpus);
	bio_forget(j->vm->bio);
	kvm_close(&j->vm->kvm);
	keep_files(j, out);
	if (j->vm->sealed)
		vmm_seal_child(j->vm->proc_fd);
	write_all(j);
	r.status = j->done.status;
	r.kept = j->done.kept_mem;
	for (unsigned int i = 0; i < j->vm->ndisks && r.status < 0; i++) {
		struct cow_stats st;

		cow_stats(vblk_cow(j->vm->disk[i]), &st);
		r.lost |= st.failed ? 1u << i : 0;
	}
	/* Before the result is sent: the daemon publishes these files only if no process can write
	 * them. */
	close_fd(&j->req.state_fd);
	close_fd(&j->req.mem_fd);
	for (unsigned int i = 0; i < j->vm->ndisks; i++)
		cow_close(vblk_cow(j->vm->disk[i]));
	r.bytes = j->done.bytes;
	r.pages = j->done.pages;
	snprintf(r.text, sizeof(r.text), "%s", j->done.err.msg);
	(void)!write(out, &r, sizeof(r));
	_exit(0);
}

static int start_child(struct snapshot_job *j, struct err *e)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
		return err_set(e, errno, "pipe");
	j->child = fork();
	if (j->child == 0)
		child_main(j, p[1]);
	j->vm->fault_step = FAULT_NONE; /* a fault that was set is the child's now */
	close(p[1]);
	j->pipe_fd = p[0];
	if (j->child < 0)
		return err_set(e, errno, "fork the snapshot's writer");
	close_fd(&j->req.state_fd);
	close_fd(&j->req.mem_fd);
	j->watch = loop_watch(j->vm->loop, j->pipe_fd, EPOLLIN, on_child, j);
	ASSERT(j->watch);
	return 0;
}

/* With the VM stopped: freezes the disks, saves the state and starts the writer. */
static int capture(struct snapshot_job *j, struct err *e)
{
	struct vm *vm = j->vm;
	int rc = fault_at(vm, FAULT_VMM_QUIET, e);

	if (rc == 0)
		rc = freeze_disks(j, e);
	if (rc == 0)
		rc = fault_at(vm, FAULT_VMM_FROZEN, e);
	if (rc == 0)
		rc = save_state(vm, &j->state, e);
	if (rc == 0)
		rc = save_disks(vm, &j->req, &j->state);
	if (rc == 0)
		rc = fault_at(vm, FAULT_VMM_SAVED, e);
	return rc ? rc : start_child(j, e);
}

/* The VM has stopped. status < 0: it did not, because it runs on or has ended: no snapshot. */
static void on_stopped(void *arg, int status)
{
	struct snapshot_job *j = arg;
	struct snapshot_done *d = &j->done;
	bool live = (j->req.flags & VMM_F_LIVE) != 0;

	if (status < 0) {
		d->status = err_plain(&d->err, -status,
			status == -ESRCH ? "the VM has ended"
					 : "the VM did not stop in time, it runs on");
	} else {
		d->status = capture(j, &d->err);
		if (live || d->status < 0)
			vm_snapshot_taken(j->vm, j->was_running);
	}
	d->stopped_ns = mono_ns() - j->t0;
	j->req.replied(j->req.arg, d);
	if (d->status == 0)
		return;
	job_over(j);
	job_free(j);
}

static void not_started(struct snapshot_job *j, int status)
{
	j->done.status = status;
	j->req.replied(j->req.arg, &j->done);
	job_over(j);
	job_free(j);
}

static void carry_turn(void *arg);

static void on_settled(void *arg, int status)
{
	struct snapshot_job *j = arg;

	if (status < 0)
		not_started(j, err_set(&j->done.err, -status, "make the last freeze durable"));
	else
		carry_turn(j);
}

/* If an earlier snapshot failed after its freeze, that freeze is not durable yet. Makes it durable
 * without waiting; cow_freeze() would wait for the disk. */
static int settle_disks(struct snapshot_job *j)
{
	struct vm *vm = j->vm;
	int rc = 0;

	for (unsigned int i = 0; i < vm->ndisks && j->req.ndisks && rc == 0; i++)
		rc = vblk_finish_freeze(vm->disk[i], on_settled, j);
	if (rc < 0 && rc != -EINPROGRESS)
		err_set(&j->done.err, -rc, "make the last freeze durable");
	return rc;
}

/* While the guest runs: if a disk has as many layers as it may have, the freeze must copy the live
 * units of one of them. This copies most of them in advance, a little in each turn of the loop. The
 * freeze then copies only the units that had a write in flight. */
static void carry_turn(void *arg)
{
	struct snapshot_job *j = arg;
	struct snapshot_done *d = &j->done;
	struct vm *vm = j->vm;
	int more = 0, rc;

	rc = settle_disks(j);
	if (rc == -EINPROGRESS)
		return;
	if (rc < 0) {
		not_started(j, rc);
		return;
	}
	/* a disk that is done is not asked again: it would choose a layer to copy once more */
	while (j->carry_disk < vm->ndisks && j->req.ndisks && more == 0) {
		more = vblk_carry(vm->disk[j->carry_disk], &d->err);
		j->carry_disk += more == 0;
	}
	if (more > 0 && loop_defer(vm->loop, carry_turn, j) == 0)
		return;
	j->t0 = mono_ns();
	j->was_running = vm->state == VMM_S_RUNNING;
	/* if the VM is paused, on_stopped() has run when this returns, and may have freed j */
	rc = more < 0 ? more : vm_stop_for_snapshot(vm, on_stopped, j, &d->err);
	if (rc < 0)
		not_started(j, rc);
}

static unsigned int writable_disks(struct vm *vm)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < vm->ndisks; i++)
		n += !cow_is_read_only(vblk_cow(vm->disk[i]));
	return n;
}

int snapshot_start(struct vm *vm, const struct snapshot_req *req, struct err *e)
{
	unsigned int w = writable_disks(vm);
	struct snapshot_job *j;
	int rc;

	if (vm->job)
		return err_plain(e, EBUSY, "snapshot: another one is being written");
	if (req->ndisks != w && !(req->ndisks == 0 && (req->flags & VMM_F_EXIT)))
		return err_plain(
			e, EINVAL, "snapshot: %u disks to freeze, the VM has %u", req->ndisks, w);
	j = calloc(1, sizeof(*j));
	if (!j)
		return err_set(e, ENOMEM, "snapshot");
	*j = (struct snapshot_job){
		.vm = vm,
		.req = *req,
		.pipe_fd = -1,
	};
	j->done.ctx = req->ctx;
	j->done.ndisks = req->ndisks;
	for (unsigned int i = 0; i < VMM_MAX_DISKS; i++)
		j->done.dropped[i] = -1;
	rc = vm_may_snapshot(vm, e);
	if (rc < 0) {
		free(j); /* the caller still owns the descriptors, and replies */
		return rc;
	}
	vm->job = j;
	carry_turn(j);
	return 0;
}
