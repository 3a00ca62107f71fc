/* SPDX-License-Identifier: Apache-2.0
 *
 * fscompare: does one file system behave like another? Makes the same random calls in two folders and compares every answer.
 *
 *     fscompare FOLDER REFERENCE SECONDS SEED
 *
 * Calls: open, read, write, append, truncate, mmap, rename, link, unlink, mkdir, rmdir, symlink, chmod, utimens, fallocate, seek for
 * holes, lists of folders, sync. At the end both trees are compared byte for byte. Exits with 1 at the first difference, and prints
 * the calls before it.
 */
#include "lib/base.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#define FILE_MAX  (1024 * 1024)
#define OPEN_MAX  12
#define STEPS_LOG 40

struct side {
	int dir;
	int fd[OPEN_MAX];
	uint8_t buf[FILE_MAX + 65536];
	long rc;
	int err;
};

static struct side sides[2];
static uint64_t state;
static char history[STEPS_LOG][200];
static unsigned long steps;

static uint32_t rnd(uint32_t below)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % below;
}

static void path_make(char *to, size_t cap)
{
	/* few names, so that they meet */
	switch (rnd(4)) {
	case 0:
		snprintf(to, cap, "d%u/f%u", rnd(3), rnd(6));
		break;
	case 1:
		snprintf(to, cap, "d%u/d%u/f%u", rnd(3), rnd(3), rnd(3));
		break;
	case 2:
		snprintf(to, cap, "d%u", rnd(3));
		break;
	default:
		snprintf(to, cap, "f%u", rnd(8));
	}
}

static void differ(const char *what)
{
	printf("difference after %lu calls: %s: %ld (%s), reference %ld (%s)\n", steps, what,
		sides[0].rc, strerror(sides[0].err), sides[1].rc, strerror(sides[1].err));
	for (unsigned long i = steps > STEPS_LOG ? steps - STEPS_LOG : 0; i < steps; i++)
		printf("  %lu %s\n", i, history[i % STEPS_LOG]);
	exit(1);
}

static void result(struct side *s, long rc)
{
	s->rc = rc;
	s->err = rc < 0 ? errno : 0;
}

static void compare(const char *what)
{
	if (sides[0].rc != sides[1].rc || sides[0].err != sides[1].err)
		differ(what);
}

#define EACH(s)   for (struct side *s = sides; s < sides + 2; s++)
#define NOTE(...) snprintf(history[steps % STEPS_LOG], sizeof(history[0]), __VA_ARGS__)

static void fill(uint8_t *p, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

static void do_open(void)
{
	static const int flags[] = {O_RDONLY, O_RDWR, O_RDWR | O_CREAT, O_RDWR | O_CREAT | O_EXCL,
		O_RDWR | O_TRUNC, O_WRONLY | O_CREAT | O_APPEND, O_RDWR | O_CREAT | O_TRUNC,
		O_RDONLY | O_DIRECTORY, O_RDWR | O_NOFOLLOW};
	int f = flags[rnd(ARRAY_LEN(flags))];
	unsigned int slot = rnd(OPEN_MAX);
	mode_t mode = 0600 + rnd(0200);
	char p[64];

	path_make(p, sizeof(p));
	NOTE("open %s %#o -> slot %u", p, f, slot);
	EACH(s)
	{
		if (s->fd[slot] >= 0)
			close(s->fd[slot]);
		s->fd[slot] = openat(s->dir, p, f | O_CLOEXEC, mode);
		result(s, s->fd[slot] < 0 ? -1 : 0);
	}
	compare("open");
}

static void do_read(void)
{
	unsigned int slot = rnd(OPEN_MAX);
	off_t at = rnd(FILE_MAX);
	size_t n = 1 + rnd(65536);

	NOTE("read slot %u at %ld, %zu bytes", slot, (long)at, n);
	EACH(s)
	result(s, pread(s->fd[slot], s->buf, n, at));
	compare("read");
	if (sides[0].rc > 0 && memcmp(sides[0].buf, sides[1].buf, (size_t)sides[0].rc) != 0)
		differ("bytes read");
}

static void do_write(void)
{
	unsigned int slot = rnd(OPEN_MAX);
	off_t at = rnd(FILE_MAX);
	size_t n = 1 + rnd(65536);
	uint32_t seed = rnd(256);

	NOTE("write slot %u at %ld, %zu bytes", slot, (long)at, n);
	EACH(s)
	{
		fill(s->buf, n, seed);
		result(s, pwrite(s->fd[slot], s->buf, n, at));
	}
	compare("write");
}

static void do_truncate(void)
{
	off_t to = rnd(FILE_MAX);
	unsigned int slot = rnd(OPEN_MAX);
	char p[64];

	path_make(p, sizeof(p));
	NOTE("truncate slot %u or %s to %ld", slot, p, (long)to);
	EACH(s)
	{
		if (to & 1) {
			result(s, ftruncate(s->fd[slot], to));
		} else {
			int fd = openat(s->dir, p, O_WRONLY | O_CLOEXEC);

			result(s, fd < 0 ? -1 : ftruncate(fd, to));
			if (fd >= 0)
				close(fd);
		}
	}
	compare("truncate");
}

static void do_map(void)
{
	unsigned int slot = rnd(OPEN_MAX);
	size_t at = rnd(16) * PAGE_BYTES, n = PAGE_BYTES * (1 + rnd(4));
	uint32_t seed = rnd(256);

	NOTE("map slot %u at %zu", slot, at);
	EACH(s)
	{
		struct stat st;
		uint8_t *p;

		result(s, 0);
		if (fstat(s->fd[slot], &st) < 0 || !S_ISREG(st.st_mode) ||
			(size_t)st.st_size < at + n)
			continue;
		p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd[slot], (off_t)at);
		result(s, p == MAP_FAILED ? -1 : 1);
		if (p == MAP_FAILED)
			continue;
		memcpy(s->buf, p, n);
		fill(p + 100, n - 200, seed);
		msync(p, n, MS_SYNC);
		munmap(p, n);
	}
	compare("map");
	if (sides[0].rc == 1 && memcmp(sides[0].buf, sides[1].buf, n) != 0)
		differ("bytes mapped");
}

static void do_two_names(void)
{
	uint32_t what = rnd(4);
	char a[64], b[64];

	path_make(a, sizeof(a));
	path_make(b, sizeof(b));
	NOTE("%s %s %s", what < 2 ? "rename" : what == 2 ? "link" : "symlink", a, b);
	EACH(s)
	result(s, what < 2 ? renameat(s->dir, a, s->dir, b)
			   : (what == 2 ? linkat(s->dir, a, s->dir, b, 0)
					: symlinkat("../d0/f1", s->dir, b)));
	compare("rename, link or symlink");
}

static void do_one_name(void)
{
	uint32_t what = rnd(6);
	mode_t mode = 0600 + rnd(0200);
	char p[64];

	path_make(p, sizeof(p));
	NOTE("%s %s",
		((const char *[]){"unlink", "rmdir", "mkdir", "chmod", "utimens", "unlink"})[what],
		p);
	EACH(s)
	{
		struct timespec t[2] = {
			{.tv_sec = mode, .tv_nsec = 5}, {.tv_sec = mode + 1, .tv_nsec = 7}};

		switch (what) {
		case 1:
			result(s, unlinkat(s->dir, p, AT_REMOVEDIR));
			break;
		case 2:
			result(s, mkdirat(s->dir, p, 0755));
			break;
		case 3:
			result(s, fchmodat(s->dir, p, mode, 0));
			break;
		case 4:
			result(s, utimensat(s->dir, p, t, AT_SYMLINK_NOFOLLOW));
			break;
		default:
			result(s, unlinkat(s->dir, p, 0));
		}
	}
	compare("unlink, rmdir, mkdir, chmod or utimens");
}

static void do_stat(void)
{
	struct stat st[2];
	char p[64];

	path_make(p, sizeof(p));
	NOTE("stat %s", p);
	for (int i = 0; i < 2; i++)
		result(&sides[i], fstatat(sides[i].dir, p, &st[i], AT_SYMLINK_NOFOLLOW));
	compare("stat");
	if (sides[0].rc < 0)
		return;
	sides[0].rc = (long)st[0].st_size;
	sides[1].rc = (long)st[1].st_size;
	if (st[0].st_mode != st[1].st_mode || st[0].st_nlink != st[1].st_nlink ||
		(!S_ISDIR(st[0].st_mode) && st[0].st_size != st[1].st_size))
		differ("mode, links or size");
}

static void do_space(void)
{
	static const int modes[] = {0, FALLOC_FL_KEEP_SIZE,
		FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE};
	unsigned int slot = rnd(OPEN_MAX);
	int mode = modes[rnd(ARRAY_LEN(modes))];
	off_t at = rnd(FILE_MAX / 2), n = 1 + rnd(200000);

	NOTE("fallocate slot %u %#x at %ld, %ld bytes", slot, mode, (long)at, (long)n);
	EACH(s)
	result(s, fallocate(s->fd[slot], mode, at, n));
	compare("fallocate");
}

static void do_sync(void)
{
	unsigned int slot = rnd(OPEN_MAX);

	NOTE("fsync slot %u", slot);
	EACH(s)
	result(s, fdatasync(s->fd[slot]));
	compare("fsync");
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static size_t list(int dir, const char *path, char **names, size_t max)
{
	int fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	size_t n = 0;

	while (d && n < max && (e = readdir(d)))
		names[n++] = strdup(e->d_name);
	if (d)
		closedir(d);
	qsort(names, n, sizeof(*names), by_name);
	return n;
}

static void compare_folder(const char *path)
{
	char *names[2][4096];
	size_t n[2];

	for (int i = 0; i < 2; i++) {
		n[i] = list(sides[i].dir, path, names[i], 4096);
		result(&sides[i], (long)n[i]);
	}
	compare("entries of a folder");
	for (size_t i = 0; i < n[0]; i++) {
		if (strcmp(names[0][i], names[1][i]) != 0)
			differ("names in a folder");
	}
	for (int i = 0; i < 2; i++)
		for (size_t k = 0; k < n[i]; k++)
			free(names[i][k]);
}

static void do_list(void)
{
	char p[64] = ".";

	if (rnd(2))
		snprintf(p, sizeof(p), "d%u", rnd(3));
	NOTE("list %s", p);
	compare_folder(p);
}

static void compare_file(const char *p)
{
	EACH(s)
	{
		int fd = openat(s->dir, p, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

		result(s, fd < 0 ? -1 : pread(fd, s->buf, FILE_MAX + 65536, 0));
		if (fd >= 0)
			close(fd);
	}
	compare("a file's end");
	if (sides[0].rc > 0 && memcmp(sides[0].buf, sides[1].buf, (size_t)sides[0].rc) != 0)
		differ("a file's bytes at the end");
}

static void compare_all(void)
{
	char p[64];

	EACH(s)
	for (int i = 0; i < OPEN_MAX; i++)
		if (s->fd[i] >= 0)
			close(s->fd[i]), s->fd[i] = -1;
	compare_folder(".");
	for (int i = 0; i < 8; i++) {
		snprintf(p, sizeof(p), "f%d", i);
		compare_file(p);
	}
	for (int i = 0; i < 3; i++) {
		snprintf(p, sizeof(p), "d%d", i);
		compare_folder(p);
		for (int k = 0; k < 6; k++) {
			snprintf(p, sizeof(p), "d%d/f%d", i, k);
			compare_file(p);
		}
	}
}

int main(int argc, char **argv)
{
	static void (*const calls[])(void) = {do_open, do_open, do_read, do_read, do_write,
		do_write, do_truncate, do_map, do_two_names, do_one_name, do_one_name, do_stat,
		do_space, do_sync, do_list};
	uint64_t end;

	if (argc != 5)
		return 2;
	umask(022);
	for (int i = 0; i < 2; i++) {
		sides[i].dir = open(argv[1 + i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		for (int k = 0; k < OPEN_MAX; k++)
			sides[i].fd[k] = -1;
		if (sides[i].dir < 0)
			return perror(argv[1 + i]), 2;
	}
	state = strtoull(argv[4], NULL, 10);
	end = mono_ns() + strtoull(argv[3], NULL, 10) * 1000000000u;
	while (mono_ns() < end) {
		calls[rnd(ARRAY_LEN(calls))]();
		steps++;
	}
	compare_all();
	printf("%lu calls, no difference\n", steps);
	return 0;
}
