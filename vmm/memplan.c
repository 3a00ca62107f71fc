/* SPDX-License-Identifier: Apache-2.0
 *
 * memplan.c: see memplan.h. No hostile bytes: lib/snap checked the base table when this VM was
 * restored.
 */
#include "vmm/memplan.h"

#include <string.h>

#define GAP_MAX GIB(16)
#define NEW     UINT32_MAX /* file number while planning */

static bool joinable(uint64_t end, uint64_t start, uint64_t gap)
{
	/* never across the hole: nothing is mapped there */
	return start - end < gap && !(end <= MEM_HOLE_START && start >= MEM_HOLE_END);
}

/* The written ranges with gaps closed, as extents of the new file. False: more than cap. */
static bool close_gaps(const struct pm_list *w, uint64_t gap, struct snap_extent *x,
	unsigned int cap, unsigned int *n)
{
	*n = 0;
	for (size_t i = 0; i < w->n; i++) {
		const struct pm_range *r = &w->r[i];
		struct snap_extent *last = *n ? &x[*n - 1] : NULL;

		if (last && joinable(last->gpa + last->len, r->gpa, gap)) {
			last->len = r->gpa + r->len - last->gpa;
			continue;
		}
		if (*n == cap)
			return false;
		x[(*n)++] = (struct snap_extent){.gpa = r->gpa, .len = r->len, .file = NEW};
	}
	return true;
}

struct out {
	struct snap_extent *x;
	unsigned int n;
	bool full;
};

static void emit(struct out *o, const struct snap_extent *x, uint64_t from, uint64_t to)
{
	struct snap_extent y = *x, *last = o->n ? &o->x[o->n - 1] : NULL;

	if (from >= to)
		return;
	y.gpa = from;
	y.len = to - from;
	y.off = x->file == NEW ? 0 : x->off + (from - x->gpa);
	if (last && last->file == y.file && last->gpa + last->len == y.gpa &&
		(y.file == NEW || last->off + last->len == y.off)) {
		last->len += y.len;
		return;
	}
	if (o->n == SNAP_MAX_EXTENTS) {
		o->full = true;
		return;
	}
	o->x[o->n++] = y;
}

/* Puts the pieces of `top` over those of `base`. Both lists are ascending. */
static bool overlay(const struct snap_extent *base, unsigned int nbase,
	const struct snap_extent *top, unsigned int ntop, struct memplan *p)
{
	struct out o = {.x = p->ext};
	unsigned int t = 0;

	for (unsigned int b = 0; b < nbase; b++) {
		uint64_t at = base[b].gpa, end = at + base[b].len;

		for (; t < ntop && top[t].gpa < end; t++) {
			uint64_t tend = top[t].gpa + top[t].len;

			emit(&o, &base[b], at, MIN(top[t].gpa, end));
			at = MAX(at, tend);
			if (tend > end)
				break; /* it reaches beyond this piece: emitted later, as a whole */
			emit(&o, &top[t], top[t].gpa, tend);
		}
		emit(&o, &base[b], at, end);
	}
	for (; t < ntop; t++)
		emit(&o, &top[t], top[t].gpa, top[t].gpa + top[t].len);
	p->n = o.n;
	return !o.full;
}

static void live_bytes(const struct memplan *p, uint64_t *live, unsigned int nfiles)
{
	memset(live, 0, nfiles * sizeof(*live));
	for (unsigned int i = 0; i < p->n; i++)
		if (p->ext[i].file != NEW)
			live[p->ext[i].file] += p->ext[i].len;
}

/* The new list of pieces to write: those of the plan, and the live pieces of one base file. */
static int carry(struct pm_list *w, const struct memplan *p, uint32_t file)
{
	struct pm_list both = {0};
	int rc = 0;

	for (unsigned int i = 0; rc == 0 && i < p->n; i++)
		if (p->ext[i].file == file || p->ext[i].file == NEW)
			rc = pm_list_add(&both, p->ext[i].gpa, p->ext[i].len, true);
	pm_list_fini(w);
	*w = both;
	return rc;
}

/* Where an extent must start in the file's data to be mapped by 2 MiB, from `off` on. */
static uint64_t huge_place(const struct snap_extent *x, uint64_t off)
{
	return off + (x->gpa - (SNAP_HEAD_PAGE + off)) % MIB(2);
}

static bool is_large(const struct snap_extent *x)
{
	return ALIGN_UP(x->gpa, MIB(2)) + MIB(2) <= x->gpa + x->len;
}

static uint64_t put_at(struct memplan *p, unsigned int i, uint64_t off)
{
	p->ext[i].file = p->new_file;
	p->ext[i].off = off;
	p->order[p->nnew++] = (uint16_t)i;
	p->pages += p->ext[i].len / PAGE_BYTES;
	return off + p->ext[i].len;
}

/* Small extents that are not placed yet, as many as fit before `end`. */
static uint64_t fill_gap(struct memplan *p, uint64_t off, uint64_t end)
{
	for (unsigned int i = 0; i < p->n; i++)
		if (p->ext[i].file == NEW && !is_large(&p->ext[i]) && p->ext[i].len <= end - off)
			off = put_at(p, i, off);
	return off;
}

static void place_new(struct memplan *p)
{
	uint64_t off = 0;

	p->pages = p->nnew = 0;
	for (unsigned int i = 0; i < p->n; i++) {
		uint64_t at;

		if (p->ext[i].file != NEW || !is_large(&p->ext[i]))
			continue;
		at = huge_place(&p->ext[i], off);
		fill_gap(p, off, at);
		off = put_at(p, i, at);
	}
	p->bytes = fill_gap(p, off, UINT64_MAX);
}

static void number_files(struct memplan *p, const uint64_t *live, unsigned int nfiles)
{
	uint32_t map[SNAP_MAX_FILES];

	p->kept = 0;
	p->nfiles = 0;
	for (unsigned int f = 0; f < nfiles; f++)
		if (live[f]) {
			map[f] = p->nfiles++;
			p->kept |= 1u << f;
		}
	p->new_file = p->nfiles++;
	for (unsigned int i = 0; i < p->n; i++)
		if (p->ext[i].file != NEW)
			p->ext[i].file = map[p->ext[i].file];
	place_new(p);
}

static int plan_once(struct memplan *p, const struct pm_list *w, const struct snap_extent *base,
	unsigned int nbase, struct err *e)
{
	struct snap_extent top[SNAP_MAX_EXTENTS];

	for (uint64_t gap = MEMPLAN_GAP; gap <= GAP_MAX; gap *= 2) {
		unsigned int n;

		if (close_gaps(w, gap, top, ARRAY_LEN(top), &n) && overlay(base, nbase, top, n, p))
			return 0;
	}
	return err_plain(e, E2BIG, "memory cannot be described by %u extents", SNAP_MAX_EXTENTS);
}

/* The base file to carry along: one that must not stay, or, if there are too many files, the
 * one with the fewest live bytes. Returns nfiles if there is none. */
static unsigned int file_to_carry(const uint64_t *live, unsigned int nfiles, uint32_t drop)
{
	unsigned int used = 0, least = 0;

	for (unsigned int f = 0; f < nfiles; f++) {
		if (!live[f])
			continue;
		if (drop & 1u << f)
			return f;
		if (!used++ || live[f] < live[least])
			least = f;
	}
	return used < SNAP_MAX_FILES ? nfiles : least;
}

int memplan_make(struct memplan *p, const struct pm_list *w, const struct snap_extent *base,
	unsigned int nbase, unsigned int nfiles, uint32_t drop, struct err *e)
{
	struct pm_list mine = {0};
	uint64_t live[SNAP_MAX_FILES];
	int rc = plan_once(p, w, base, nbase, e);

	while (rc == 0) {
		unsigned int f;

		live_bytes(p, live, nfiles);
		f = file_to_carry(live, nfiles, drop);
		if (f == nfiles)
			break;
		rc = carry(&mine, p, f);
		if (rc < 0)
			err_set(e, -rc, "plan of memory");
		else
			rc = plan_once(p, &mine, base, nbase, e);
	}
	if (rc == 0)
		number_files(p, live, nfiles);
	pm_list_fini(&mine);
	return rc;
}
