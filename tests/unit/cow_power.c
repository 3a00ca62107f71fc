/* SPDX-License-Identifier: Apache-2.0
 *
 * cow_power: the power is cut, or the process killed, at every single write and sync of a workload
 * of writes, zeros, flushes and freezes. Afterwards each sector of the disk is one of the versions
 * it had since the last flush that was acknowledged, and nothing that was flushed is lost. A cut
 * loses any part of what was not synced, sector by sector: the last write is torn.
 */
#include "lib/test.h"

#include "lib/cow_format.h"
#include "lib/cow_tools.h"
#include "tests/unit/cow_files.h"

#define UNITS    24u
#define SECTORS  (UNITS * 8)
#define BYTES    (UNITS * (uint64_t)COW_UNIT)
#define VERSIONS 64u
#define FILES    40u
#define STEPS    40u

struct file {
	int fd;   /* the disk's, its name here: a number is used once in a run */
	int keep; /* ours */
	uint8_t *durable;
	size_t len;
};
struct pending {
	int fd;
	uint64_t off;
	size_t n;
	uint8_t *p; /* NULL: punched */
};

static struct file files[FILES];
static unsigned int nfiles, npending, ops, cut_at;
static int next_fd;
static struct pending pending[4000];
static bool dead;
static unsigned int seed;
/* versions of each sector: what is flushed, then what came after */
static uint32_t ver[SECTORS][VERSIONS];
static unsigned int nver[SECTORS];

static struct file *file_of(int fd)
{
	for (unsigned int i = 0; i < nfiles; i++)
		if (files[i].fd == fd)
			return &files[i];
	abort();
}

/* A file that exists durably as it is now (created; its directory entry is not what is tested
 * here). Takes fd, returns its name. */
static int file_new(int fd)
{
	struct file *f = &files[nfiles++];
	uint64_t len = 0;

	ASSERT(nfiles <= FILES);
	cow_file_bytes(fd, "", &len, NULL);
	f->keep = fd;
	f->fd = fcntl(fd, F_DUPFD_CLOEXEC, next_fd++);
	f->len = len;
	f->durable = calloc(1, len ? len : 1);
	pread_full(fd, f->durable, len, 0);
	return f->fd;
}

static void file_grow(struct file *f, uint64_t len)
{
	if (len <= f->len)
		return;
	f->durable = realloc(f->durable, len);
	memset(f->durable + f->len, 0, len - f->len);
	f->len = len;
}

static void note(int fd, const void *p, size_t n, uint64_t off)
{
	struct pending *k = &pending[npending++];

	ASSERT(npending < ARRAY_LEN(pending));
	*k = (struct pending){fd, off, n, NULL};
	if (p) {
		k->p = malloc(n);
		memcpy(k->p, p, n);
	}
}

/* Some of the sectors of a write reach the disk. */
static void apply(const struct pending *k, unsigned int percent)
{
	struct file *f = file_of(k->fd);

	file_grow(f, k->off + k->n);
	for (size_t at = 0; at < k->n;) {
		size_t n = MIN((size_t)512 - (k->off + at) % 512, k->n - at);

		if ((unsigned int)rand_r(&seed) % 100 < percent) {
			if (k->p)
				memcpy(f->durable + k->off + at, k->p + at, n);
			else
				memset(f->durable + k->off + at, 0, n);
		}
		at += n;
	}
}

static bool step(void)
{
	if (dead || ++ops == cut_at)
		dead = true;
	return !dead;
}

static int t_write(void *ctx, int fd, const void *p, size_t n, uint64_t off)
{
	bool alive = step(), was_cut = ops == cut_at && dead;

	if (!alive && !was_cut)
		return -EIO;
	note(fd, p, n, off);
	if (!alive) {
		ops++; /* only this one is torn */
		return -EIO;
	}
	return pwrite_full(fd, p, n, off);
}

static int t_punch(void *ctx, int fd, uint64_t off, uint64_t len)
{
	if (!step())
		return -EIO;
	note(fd, NULL, len, off);
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len) < 0
		       ? -errno
		       : 0;
}

static int t_sync(void *ctx, int fd)
{
	unsigned int out = 0;

	if (!step())
		return -EIO;
	for (unsigned int i = 0; i < npending; i++) {
		if (pending[i].fd != fd) {
			pending[out++] = pending[i];
			continue;
		}
		apply(&pending[i], 100);
		free(pending[i].p);
	}
	npending = out;
	return 0;
}

static const struct cow_io io = {t_write, t_sync, t_punch, NULL};

static void model_write(unsigned int sector, uint32_t v)
{
	ASSERT(nver[sector] < VERSIONS);
	ver[sector][nver[sector]++] = v;
}

static void model_flushed(void)
{
	for (unsigned int s = 0; s < SECTORS; s++) {
		ver[s][0] = ver[s][nver[s] - 1];
		nver[s] = 1;
	}
}

static void fill(uint8_t *p, uint32_t v)
{
	for (unsigned int i = 0; i < 512; i += 4)
		memcpy(p + i, &v, 4);
}

static bool sector_is(const uint8_t *p, uint32_t v)
{
	uint8_t want[512];

	fill(want, v);
	return memcmp(p, want, 512) == 0;
}

static struct cow_fds base_disk(void)
{
	struct cow_fds f = COW_FDS_NONE;
	uint8_t sec[512];

	f.base = cf_file();
	for (unsigned int s = 0; s < SECTORS; s++) {
		fill(sec, 1000 + s);
		pwrite_full(f.base, sec, 512, s * 512);
		ver[s][0] = 1000 + s;
		nver[s] = 1;
	}
	f.data = cf_file();
	f.bitmap = cf_file();
	cow_layer_create(f.data, f.bitmap, BYTES, NULL);
	f.base = file_new(f.base);
	f.data = file_new(f.data);
	f.bitmap = file_new(f.bitmap);
	return f;
}

struct state {
	struct cow *c;
	struct cow_fds cur;  /* the set that holds whatever was flushed */
	struct cow_fds next; /* after a freeze, until it is durable */
	bool freezing;
};

static void do_write(struct state *s, uint32_t v, bool zero)
{
	unsigned int first = (unsigned int)rand_r(&seed) % SECTORS, max = SECTORS - first;
	unsigned int n = 1 + (unsigned int)rand_r(&seed) % (max < 20 ? max : 20);
	uint8_t buf[20 * 512];

	/* before it is done: a cut may let any part of it through */
	for (unsigned int i = 0; i < n; i++) {
		fill(buf + i * 512, zero ? 0 : v + i);
		model_write(first + i, zero ? 0 : v + i);
	}
	if (zero)
		cow_zero(s->c, first * 512, n * 512);
	else
		cow_write(s->c, buf, n * 512, first * 512);
}

static void do_freeze(struct state *s)
{
	int ix = cf_file(), data = cf_file(), map = cf_file(), dropped;
	unsigned int n = s->cur.nfrozen, data_ix;
	uint64_t len;

	if (s->freezing || n >= COW_MAX_FROZEN) {
		close(ix);
		close(data);
		close(map);
		return;
	}
	ix = file_new(ix);
	data_ix = nfiles;
	/* new layers' headers are written by cow_layer_create, with plain system calls: taken as
	 * durable */
	nfiles += 2;
	ASSERT(nfiles <= FILES);
	files[data_ix] = (struct file){.fd = next_fd, .keep = data};
	files[data_ix + 1] = (struct file){.fd = next_fd + 1, .keep = map};
	if (cow_freeze(s->c, ix, fcntl(data, F_DUPFD_CLOEXEC, next_fd),
		    fcntl(map, F_DUPFD_CLOEXEC, next_fd + 1), &dropped, NULL) < 0) {
		close(ix); /* garbage, and still the caller's */
		close(next_fd);
		close(next_fd + 1);
		next_fd += 2;
		return;
	}
	next_fd += 2;
	for (unsigned int i = data_ix; i < data_ix + 2; i++) {
		cow_file_bytes(files[i].keep, "", &len, NULL);
		file_grow(&files[i], len);
		pread_full(files[i].keep, files[i].durable, len, 0);
	}
	s->next = s->cur;
	s->next.frozen[n] = s->cur.data;
	s->next.nfrozen = n + 1;
	s->next.index = ix;
	s->next.data = files[data_ix].fd;
	s->next.bitmap = files[data_ix + 1].fd;
	s->freezing = true;
}

static void flushed(struct state *s, bool all)
{
	if (s->freezing) {
		s->cur = s->next;
		s->freezing = false;
	}
	if (all)
		model_flushed();
}

/* a memfd with what of a file survived */
static int survivor(int fd, bool power)
{
	struct file *f = file_of(fd);
	int n = cf_file();
	uint64_t len;

	if (power) {
		pwrite_full(n, f->durable, f->len, 0);
		return n;
	}
	/* killed: the page cache lives */
	len = f->len;
	cow_file_bytes(f->keep, "", &len, NULL);
	for (uint64_t at = 0; at < len; at += 4096) {
		uint8_t b[4096];
		uint64_t k = MIN(len - at, sizeof(b));

		pread_full(f->keep, b, k, at);
		pwrite_full(n, b, k, at);
	}
	return n;
}

static void verify(struct cow_fds *set, bool power, const char *which)
{
	struct cow_fds got = COW_FDS_NONE, keep;
	struct cow *c = NULL;
	struct err e = {0};
	uint8_t sec[512];

	got.nfrozen = set->nfrozen;
	got.base = survivor(set->base, power);
	for (unsigned int i = 0; i < set->nfrozen; i++)
		got.frozen[i] = survivor(set->frozen[i], power);
	if (set->index >= 0)
		got.index = survivor(set->index, power);
	got.data = survivor(set->data, power);
	got.bitmap = survivor(set->bitmap, power);
	keep = got;
	if (cow_open(&c, &got, &e) < 0) {
		printf("%s, cut at %u, power %d: %s\n", which, cut_at, power, e.msg);
		test_failures++;
		cf_close_all(&keep);
		return;
	}
	for (unsigned int s = 0; s < SECTORS && test_failures < 20; s++) {
		bool ok = false;

		CHECK_INT(cow_read(c, sec, 512, s * 512), 0);
		for (unsigned int v = 0; v < nver[s]; v++)
			ok |= sector_is(sec, ver[s][v]);
		if (!ok) {
			uint32_t first;

			memcpy(&first, sec, 4);
			printf("%s, cut at %u, power %d: sector %u holds %u, flushed was %u, %u "
			       "versions\n",
				which, cut_at, power, s, first, ver[s][0], nver[s]);
			test_failures++;
		}
	}
	cow_close(c);
}

static void run(unsigned int cut, unsigned int rounds_seed, bool power)
{
	struct state s = {0};
	struct cow_fds d;

	nfiles = npending = ops = 0;
	next_fd = 200;
	memset(files, 0, sizeof(files));
	dead = false;
	cut_at = cut;
	seed = rounds_seed;
	s.cur = base_disk();
	d = s.cur;
	if (cow_open_io(&s.c, &d, &io, NULL) < 0)
		abort();
	for (unsigned int i = 0; i < STEPS && !dead; i++) {
		unsigned int what = (unsigned int)rand_r(&seed) % 16;

		if (what == 0) {
			do_freeze(&s);
		} else if (what == 1 && s.freezing) {
			if (cow_freeze_finish(s.c, NULL) == 0)
				flushed(&s, false);
		} else if (what < 5) {
			if (cow_flush(s.c, NULL) == 0)
				flushed(&s, true);
		} else {
			do_write(&s, 100000 + i * 100, what < 8);
		}
	}
	for (unsigned int i = 0; power && i < npending; i++)
		apply(&pending[i], 50);
	verify(&s.cur, power, s.freezing ? "the set before the freeze" : "the set");
	for (unsigned int i = 0; i < npending; i++)
		free(pending[i].p);
	cow_close(s.c);
	for (unsigned int i = 0; i < nfiles; i++) {
		free(files[i].durable);
		close(files[i].keep);
	}
}

static void cut_everywhere(bool power)
{
	unsigned int total = 0;

	for (unsigned int round = 1; round <= 6 && test_failures < 20; round++) {
		run(0, round, power);
		total = ops;
		for (unsigned int cut = 1; cut <= total && test_failures < 20; cut++)
			run(cut, round, power);
	}
	printf("last workload had %u steps\n", total);
}

static void power_is_cut_at_every_step(void)
{
	cut_everywhere(true);
}

static void process_is_killed_at_every_step(void)
{
	cut_everywhere(false);
}

static const struct test tests[] = {
	{"power_is_cut_at_every_step", power_is_cut_at_every_step},
	{"process_is_killed_at_every_step", process_is_killed_at_every_step},
};
TEST_MAIN(tests)
