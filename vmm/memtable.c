/* SPDX-License-Identifier: Apache-2.0
 *
 * memtable.c: see memtable.h. The extents were checked by lib/snap before they come here.
 */
#include "vmm/memtable.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/mem.h"

static int memtable_room(struct mem_table *t, unsigned int n)
{
	struct mem_range *r;

	if (n > MEM_TABLE_MAX)
		return -E2BIG;
	if (n <= t->cap)
		return 0;
	r = realloc(t->r, n * sizeof(*r));
	if (!r)
		return -ENOMEM;
	t->r = r;
	t->cap = n;
	return 0;
}

static bool continues(const struct mem_range *a, const struct mem_range *b)
{
	return a->kind == b->kind && a->gpa + a->len == b->gpa &&
	       (!memtable_in_file(a) || (a->file == b->file && a->off + a->len == b->off));
}

/* Appends a range, or lengthens the last one. The caller made room. */
static void append(struct mem_table *t, const struct mem_range *r)
{
	struct mem_range *last = t->n ? &t->r[t->n - 1] : NULL;

	if (r->len == 0)
		return;
	if (last && continues(last, r))
		last->len += r->len;
	else
		t->r[t->n++] = *r;
}

static struct mem_range part(const struct mem_range *r, uint64_t from, uint64_t to)
{
	struct mem_range p = *r;

	p.gpa = from;
	p.len = to > from ? to - from : 0;
	if (memtable_in_file(r))
		p.off = r->off + (from - r->gpa);
	return p;
}

/* Anonymous memory in [from, to), the hole left out. */
static void append_empty(struct mem_table *t, uint64_t from, uint64_t to)
{
	struct mem_range r = {.kind = MEM_ANONYMOUS};

	if (from < MEM_HOLE_START && from < to) {
		r.gpa = from;
		r.len = MIN(to, MEM_HOLE_START) - from;
		append(t, &r);
	}
	if (to > MEM_HOLE_END) {
		r.gpa = MAX(from, MEM_HOLE_END);
		r.len = to > r.gpa ? to - r.gpa : 0;
		append(t, &r);
	}
}

int memtable_load(
	struct mem_table *t, uint64_t ram_bytes, const struct snap_extent *x, unsigned int n)
{
	uint64_t at = 0, end = ram_bytes;
	int rc = memtable_room(t, 2 * n + 2);

	if (rc < 0)
		return rc;
	if (ram_bytes > MEM_HOLE_START)
		end = ram_bytes - MEM_HOLE_START + MEM_HOLE_END;
	t->n = 0;
	for (unsigned int i = 0; i < n; i++) {
		struct mem_range r = {.gpa = x[i].gpa,
			.len = x[i].len,
			.off = x[i].off,
			.file = x[i].file,
			.kind = x[i].file ? MEM_DIFFERENCE : MEM_FILE};

		append_empty(t, at, x[i].gpa);
		append(t, &r);
		at = x[i].gpa + x[i].len;
	}
	append_empty(t, at, end);
	return 0;
}

int memtable_init(struct mem_table *t, uint64_t ram_bytes)
{
	return memtable_load(t, ram_bytes, NULL, 0);
}

int memtable_set(struct mem_table *t, const struct mem_range *r)
{
	struct mem_table old = *t, new = {0};
	uint64_t end = r->gpa + r->len;
	bool placed = false;
	int rc = memtable_room(&new, old.n + 2);

	if (rc < 0)
		return rc;
	for (unsigned int i = 0; i < old.n; i++) {
		const struct mem_range *o = &old.r[i];
		struct mem_range before = part(o, o->gpa, MIN(o->gpa + o->len, r->gpa));
		struct mem_range after = part(o, MAX(o->gpa, end), o->gpa + o->len);

		append(&new, &before);
		if (!placed && o->gpa + o->len > r->gpa) {
			append(&new, r);
			placed = true;
		}
		append(&new, &after);
	}
	memtable_fini(&old);
	*t = new;
	return 0;
}

const struct mem_range *memtable_find(const struct mem_table *t, uint64_t gpa)
{
	unsigned int lo = 0, hi = t->n;

	while (lo < hi) {
		unsigned int mid = lo + (hi - lo) / 2;
		const struct mem_range *r = &t->r[mid];

		if (gpa < r->gpa)
			hi = mid;
		else if (gpa - r->gpa < r->len)
			return r;
		else
			lo = mid + 1;
	}
	return NULL;
}

void memtable_fini(struct mem_table *t)
{
	free(t->r);
	*t = (struct mem_table){0};
}
