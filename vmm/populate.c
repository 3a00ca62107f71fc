/* SPDX-License-Identifier: Apache-2.0
 *
 * populate.c: see populate.h. The device thread, and one thread that only maps pages for reading
 * while the device thread loads CPU and device state. The working set was checked by lib/snap: its
 * ranges lie in the guest's addresses. The working set is only advice: a page too few or too many
 * is no error.
 *
 * Copies come first and on the device thread: they replace mappings, and the state that is loaded
 * afterwards may write guest memory.
 */
#include "vmm/populate.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

#define STACK_BYTES KIB(64)
/* If the first copy takes this long, the file was not in the page cache: then the kernel is
 * asked to read all areas of the plan ahead. */
#define COLD_NS 300000ull

struct populate {
	uint8_t *
		reserve; /* POPULATE_RESERVE of address space; ready pages are taken from the front */
	uint64_t left;
	pthread_t thread;
	bool has_thread, joined;
	pthread_mutex_t mu;
	pthread_cond_t cv;
	enum { P_WAITS, P_WORKS, P_ENDS } order;
	struct mem *m;
	const struct populate_plan *plan;
};

/* ---- the plan */

static int grow(void **p, unsigned int n, size_t each)
{
	void *q;

	if (n % 64)
		return 0;
	q = realloc(*p, (n + 64) * each);
	if (!q)
		return -ENOMEM;
	*p = q;
	return 0;
}

static uint64_t window(uint64_t gpa)
{
	return gpa / (POPULATE_AROUND_PAGES * PAGE_BYTES);
}

/* Adds a piece of one range of the table. It joins the last area if no page between the two would
 * need a fault of its own. */
static int add_area(struct populate_plan *p, const struct mem_range *r, uint64_t gpa, uint64_t len)
{
	struct populate_area *last = p->narea ? &p->area[p->narea - 1] : NULL;
	bool in_file = memtable_in_file(r);

	if (last && last->in_file == in_file && last->gpa >= r->gpa &&
		(in_file ? window(gpa) <= window(last->gpa + last->len - 1) + 1
			 : gpa == last->gpa + last->len)) {
		last->len = gpa + len - last->gpa;
		return 0;
	}
	if (grow((void **)&p->area, p->narea, sizeof(*p->area)) < 0)
		return -ENOMEM;
	p->area[p->narea++] = (struct populate_area){gpa, len, in_file};
	return 0;
}

/* Adds written pages. Pages that lie close together in one range of the table are one copy. */
static int add_copy(struct populate_plan *p, const struct mem_range *r, uint64_t gpa, uint64_t len)
{
	struct populate_copy *last = p->ncopy ? &p->copy[p->ncopy - 1] : NULL;
	bool in_file = memtable_in_file(r);
	uint64_t gap = in_file ? POPULATE_GAP_PAGES * PAGE_BYTES : 0;

	if (last && last->gpa >= r->gpa && gpa - (last->gpa + last->len) <= gap) {
		last->len = gpa + len - last->gpa;
		last->written += len / PAGE_BYTES;
		return 0;
	}
	if (grow((void **)&p->copy, p->ncopy, sizeof(*p->copy)) < 0)
		return -ENOMEM;
	p->copy[p->ncopy++] = (struct populate_copy){.gpa = gpa,
		.len = len,
		.off = in_file ? r->off + (gpa - r->gpa) : 0,
		.file = in_file ? r->file : POPULATE_NO_FILE,
		.written = len / PAGE_BYTES};
	return 0;
}

/* Keeps only the copies that are worth their system calls and for which there are ready pages. */
static void choose_copies(struct populate_plan *p, uint64_t room)
{
	unsigned int kept = 0;

	for (unsigned int i = 0; i < p->ncopy; i++) {
		if (p->copy[i].written < POPULATE_COPY_MIN || p->copy[i].len > room)
			continue;
		room -= p->copy[i].len;
		p->copy[kept++] = p->copy[i];
	}
	p->ncopy = kept;
}

struct pieces { /* a walk over the working set, cut at the borders of the table's ranges */
	const struct mem_table *t;
	const struct snap_ws_range *ws;
	uint32_t n, i;
	unsigned int x;
	uint64_t at;
};

/* Finds the next piece, and whether it was written. Returns the table's range in which the piece lies,
 * or NULL if there are no more. */
static const struct mem_range *next_piece(
	struct pieces *w, uint64_t *gpa, uint64_t *len, bool *written)
{
	while (w->i < w->n && w->x < w->t->n) {
		const struct mem_range *r = &w->t->r[w->x];
		uint64_t from = MAX((uint64_t)w->ws[w->i].page * PAGE_BYTES, w->at);
		uint64_t end = ((uint64_t)w->ws[w->i].page + w->ws[w->i].npages) * PAGE_BYTES;

		if (r->gpa + r->len <= from) {
			w->x++;
			continue;
		}
		from = MAX(from, r->gpa);
		if (from >= end) {
			w->i++;
			continue;
		}
		*written = w->ws[w->i].written;
		*gpa = from;
		*len = MIN(end, r->gpa + r->len) - from;
		w->at = from + *len;
		return r;
	}
	return NULL;
}

/* Fills p->write (written and not copied) and p->along (copied and not written). */
static int list_rest(struct populate_plan *p, struct pieces w)
{
	uint64_t gpa, len, at = 0;
	unsigned int c = 0;
	bool written;
	int rc = 0;

	while (rc == 0 && next_piece(&w, &gpa, &len, &written)) {
		if (!written)
			continue;
		while (c < p->ncopy && p->copy[c].gpa + p->copy[c].len <= gpa)
			c++;
		if (c == p->ncopy || gpa < p->copy[c].gpa) {
			rc = pm_list_add(&p->write, gpa, len, true);
			continue;
		}
		at = MAX(at, p->copy[c].gpa);
		if (gpa > at)
			rc = pm_list_add(&p->along, at, gpa - at, false);
		at = gpa + len;
	}
	return rc;
}

int populate_plan_make(struct populate_plan *p, const struct mem_table *t,
	const struct snap_ws_range *ws, uint32_t n, uint64_t reserve_bytes)
{
	const struct pieces begin = {.t = t, .ws = ws, .n = n};
	struct pieces w = begin;
	const struct mem_range *r;
	uint64_t gpa, len;
	bool written;
	int rc = 0;

	*p = (struct populate_plan){0};
	while (rc == 0 && (r = next_piece(&w, &gpa, &len, &written))) {
		if (!memtable_in_file(r) && !written)
			continue; /* anonymous memory that was only read: zeros */
		rc = add_area(p, r, gpa, len);
		if (rc == 0 && written)
			rc = add_copy(p, r, gpa, len);
	}
	choose_copies(p, reserve_bytes);
	if (rc == 0)
		rc = list_rest(p, begin);
	if (rc < 0)
		populate_plan_fini(p);
	return rc;
}

void populate_plan_fini(struct populate_plan *p)
{
	free(p->copy);
	free(p->area);
	pm_list_fini(&p->write);
	pm_list_fini(&p->along);
	*p = (struct populate_plan){0};
}

/* ---- mapping for reading */

static void map_areas(struct mem *m, const struct populate_plan *p)
{
	for (unsigned int i = 0; i < p->narea; i++)
		if (p->area[i].in_file)
			madvise(m->base + p->area[i].gpa, p->area[i].len, MADV_POPULATE_READ);
}

static void *populate_main(void *arg)
{
	struct populate *s = arg;

	pthread_setname_np(pthread_self(), "populate");
	pthread_mutex_lock(&s->mu);
	while (s->order == P_WAITS)
		pthread_cond_wait(&s->cv, &s->mu);
	pthread_mutex_unlock(&s->mu);
	if (s->order == P_WORKS)
		map_areas(s->m, s->plan);
	return NULL;
}

static void order_thread(struct populate *s, int order)
{
	pthread_mutex_lock(&s->mu);
	s->order = order;
	pthread_cond_signal(&s->cv);
	pthread_mutex_unlock(&s->mu);
}

/* ---- the reserve */

static void start_thread(struct populate *s)
{
	pthread_attr_t a;

	pthread_mutex_init(&s->mu, NULL);
	pthread_cond_init(&s->cv, NULL);
	if (pthread_attr_init(&a) != 0)
		return;
	pthread_attr_setstacksize(&a, STACK_BYTES);
	s->has_thread = pthread_create(&s->thread, &a, populate_main, s) == 0;
	pthread_attr_destroy(&a);
}

struct populate *populate_create(void)
{
	struct populate *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->reserve = mmap(NULL, POPULATE_RESERVE, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (s->reserve == MAP_FAILED) {
		free(s);
		return NULL;
	}
	/* small pages: the unused part of a huge page would not be freed */
	madvise(s->reserve, POPULATE_RESERVE, MADV_NOHUGEPAGE);
	if (madvise(s->reserve, POPULATE_RESERVE, MADV_POPULATE_WRITE) == 0)
		s->left = POPULATE_RESERVE; /* else a kernel before 5.14: nothing is copied */
	start_thread(s);
	return s;
}

uint64_t populate_room(const struct populate *s)
{
	return s ? s->left : 0;
}

void populate_wait(struct populate *s)
{
	if (!s || !s->has_thread || s->order != P_WORKS)
		return;
	pthread_join(s->thread, NULL);
	s->has_thread = false;
}

void populate_destroy(struct populate *s)
{
	if (!s)
		return;
	if (s->has_thread) {
		if (s->order == P_WAITS)
			order_thread(s, P_ENDS);
		pthread_join(s->thread, NULL);
	}
	munmap(s->reserve, POPULATE_RESERVE);
	pthread_cond_destroy(&s->cv);
	pthread_mutex_destroy(&s->mu);
	free(s);
}

/* ---- copying */

static int copy_one(struct populate *s, struct mem *m, const struct populate_copy *c, const int *fd,
	struct err *e)
{
	uint8_t *from = s->reserve + POPULATE_RESERVE - s->left;
	int rc = 0;

	ASSERT(c->len <= s->left);
	if (c->file != POPULATE_NO_FILE)
		rc = pread_full(fd[c->file], from, c->len, SNAP_HEAD_PAGE + c->off);
	if (rc < 0)
		return err_set(e, -rc, "read %llu KiB of memory file %u",
			(unsigned long long)c->len >> 10, c->file);
	/* The pages themselves move: nothing is allocated, and nothing faults. The empty mapping
	 * stays behind: to cut it off each time took a third longer. */
	if (mremap(from, c->len, c->len, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
		    m->base + c->gpa) == MAP_FAILED)
		return err_set(e, errno, "move %llu KiB to %#llx", (unsigned long long)c->len >> 10,
			(unsigned long long)c->gpa);
	s->left -= c->len;
	return 0;
}

/* The files' pages that the guest will read, asked of the disk all at once. */
static void read_ahead(struct mem *m, const struct populate_plan *p)
{
	for (unsigned int i = 0; i < p->narea; i++)
		if (p->area[i].in_file)
			madvise(m->base + p->area[i].gpa, p->area[i].len, MADV_WILLNEED);
}

int populate_start(struct populate *s, struct mem *m, const struct populate_plan *p, const int *fd,
	struct err *e)
{
	uint64_t t0 = mono_ns();
	int rc = 0;

	for (unsigned int i = 0; rc == 0 && s && i < p->ncopy; i++) {
		rc = copy_one(s, m, &p->copy[i], fd, e);
		if (i == 0 && mono_ns() - t0 > COLD_NS)
			read_ahead(m, p);
	}
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < p->write.n; i++)
		madvise(m->base + p->write.r[i].gpa, p->write.r[i].len, MADV_POPULATE_WRITE);
	if (!s || !s->has_thread) {
		map_areas(m, p);
		return 0;
	}
	s->m = m;
	s->plan = p;
	order_thread(s, P_WORKS);
	return 0;
}

void populate_nested(struct kvm *k, int vcpu_fd, const struct populate_plan *p)
{
	for (unsigned int i = 0; i < p->narea; i++)
		if (kvm_pre_fault(k, vcpu_fd, p->area[i].gpa, p->area[i].len) < 0)
			return; /* not on this host, or not for this memory: the guest will fault */
}
