/* SPDX-License-Identifier: Apache-2.0
 *
 * A guest's conversation with mayfly-fs: FUSE messages one after the other, on a small volume in memory. Each input is a list of
 * {u16 length, message}; the header's own length is made right, so that most messages get past it. At the end the table of nodes that
 * the conversation left is loaded again, as a later process would.
 */
#include "fs/server.h"

#include <ftw.h>
#include <stdio.h>
#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static char dir[] = "/dev/shm/mayfly-fuzz-XXXXXX";
static struct volumes vols;
static int home; /* libFuzzer reads its files from where it was started */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *f)
{
	(void)st;
	(void)kind;
	return f->level == 0 ? 0 : remove(path);
}

static void remove_volume(void)
{
	nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	rmdir(dir);
}

static void set_up(void)
{
	struct err e = {0};

	ASSERT(mkdtemp(dir));
	ASSERT(volumes_add(&vols, open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC), false, false, &e) ==
		0);
	home = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	atexit(remove_volume);
}

static void begin_volume(void)
{
	int d = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	mkdirat(d, "d", 0755);
	close(openat(d, "f", O_CREAT | O_RDWR | O_CLOEXEC, 0644));
	(void)!symlinkat("/", d, "l");
	close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static _Alignas(8) uint8_t msg[FS_MESSAGE_MAX], out[FS_MESSAGE_MAX];
	struct server s = {.vols = &vols, .syncing = PTHREAD_MUTEX_INITIALIZER};
	int table;
	struct err e = {0};

	if (!vols.n)
		set_up();
	begin_volume();
	ASSERT(chdir("/proc/self/fd") == 0);
	table = memfd_create("nodes", MFD_CLOEXEC);
	ASSERT(nodes_open(&s.nodes, dup(table), &vols, 16, &e) == 0);
	for (int rounds = 0; n >= 2 + sizeof(struct fuse_in_header) && rounds < 64; rounds++) {
		size_t len = MIN((size_t)(p[0] | p[1] << 8), n - 2);
		struct fuse_in_header *h = (struct fuse_in_header *)(void *)msg;
		size_t got;

		if (len < sizeof(*h))
			break;
		memcpy(msg, p + 2, len);
		p += 2 + len;
		n -= 2 + len;
		h->len = (uint32_t)len;
		h->unique |= 1;
		/* sync of the whole host is not what is looked for, nor files that fill its memory */
		if (h->opcode == FUSE_SYNCFS || h->opcode == FUSE_FALLOCATE)
			continue;
		got = server_answer(&s, msg, h->len, FS_MESSAGE_MAX, out);
		ASSERT(got == 0 || (got >= sizeof(struct fuse_out_header) &&
					   got == ((struct fuse_out_header *)(void *)out)->len));
	}
	server_close(&s);
	nodes_close(s.nodes);
	ASSERT(nodes_open(&s.nodes, table, &vols, 16, &e) == 0);
	nodes_close(s.nodes);
	ASSERT(fchdir(home) == 0);
	return 0;
}
