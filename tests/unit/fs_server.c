/* SPDX-License-Identifier: Apache-2.0
 *
 * fs_server: mayfly-fs as a hostile guest sees it: messages by hand, over its socket, on a folder of this test's own.
 */
#include "lib/test.h"

#include "fs/server.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

struct setting {
	char dir[64];
	struct volumes vols;
	struct server s;
	pthread_t thread;
	int sock, table;
	uint64_t unique;
	uint8_t reply[FS_MESSAGE_MAX];
	size_t reply_len; /* without the header */
	int error;
};

static void *serve(void *arg)
{
	server_run(arg);
	return NULL;
}

static void begin_server(struct setting *t)
{
	int pair[2];
	struct err e = {0};

	REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	t->sock = pair[0];
	t->s = (struct server){.vols = &t->vols, .sock = pair[1]};
	REQUIRE(nodes_open(&t->s.nodes, dup(t->table), &t->vols, 64, &e) == 0);
	pthread_create(&t->thread, NULL, serve, &t->s);
}

static void end_server(struct setting *t)
{
	close(t->sock);
	pthread_join(t->thread, NULL);
	close(t->s.sock);
	nodes_close(t->s.nodes);
}

static int at(const struct setting *t, const char *name)
{
	int fd = open(t->dir, O_PATH | O_DIRECTORY), sub;

	if (!*name)
		return fd;
	sub = openat(fd, name, O_PATH);
	close(fd);
	return sub;
}

/* Sends one message as it is. false: the server closed the connection. */
static bool send_raw(
	struct setting *t, uint32_t slot, const void *p, uint32_t len, uint32_t reply_max)
{
	struct fs_request_hdr h = {.slot = slot, .len = len, .reply_max = reply_max};
	struct fs_reply_hdr r;

	if (write_full(t->sock, &h, sizeof(h)) < 0 || write_full(t->sock, p, len) < 0 ||
		read_full(t->sock, &r, sizeof(r)) < 0)
		return false;
	CHECK_INT(r.slot, slot);
	if (r.len > sizeof(t->reply) || read_full(t->sock, t->reply, r.len) < 0)
		return false;
	t->reply_len = r.len;
	t->error = r.len ? ((struct fuse_out_header *)(void *)t->reply)->error : 0;
	return true;
}

/* A request: header, fixed part, then n bytes. The error; the answer in t->reply. */
static int ask(struct setting *t, uint32_t op, uint64_t node, const void *arg, size_t arg_len,
	const void *more, size_t n)
{
	static _Alignas(8) uint8_t msg[FS_MESSAGE_MAX];
	struct fuse_in_header h = {.len = (uint32_t)(sizeof(h) + arg_len + n),
		.opcode = op,
		.unique = ++t->unique,
		.nodeid = node};

	memcpy(msg, &h, sizeof(h));
	if (arg_len)
		memcpy(msg + sizeof(h), arg, arg_len);
	if (n)
		memcpy(msg + sizeof(h) + arg_len, more, n);
	if (!send_raw(t, 0, msg, h.len, FS_MESSAGE_MAX))
		return -EPIPE;
	return t->error;
}

static const void *answer(const struct setting *t)
{
	return t->reply + sizeof(struct fuse_out_header);
}

static int look_up(struct setting *t, uint64_t dir, const char *name, uint64_t *id)
{
	int rc = ask(t, FUSE_LOOKUP, dir, NULL, 0, name, strlen(name) + 1);

	*id = rc == 0 ? ((const struct fuse_entry_out *)answer(t))->nodeid : 0;
	return rc;
}

static void init(struct setting *t)
{
	struct fuse_init_in in = {.major = 7, .minor = 38, .flags = ~0u};

	CHECK_INT(ask(t, FUSE_INIT, 0, &in, sizeof(in), NULL, 0), 0);
	CHECK_INT(((const struct fuse_init_out *)answer(t))->max_write, FS_DATA_MAX);
	CHECK(!(((const struct fuse_init_out *)answer(t))->flags &
		(FUSE_WRITEBACK_CACHE | FUSE_POSIX_LOCKS)));
}

static void set_up(struct setting *t)
{
	struct err e = {0};

	signal(SIGPIPE, SIG_IGN);
	memset(t, 0, sizeof(*t));
	str_copy(t->dir, sizeof(t->dir), "/tmp/mayfly-fs-XXXXXX");
	REQUIRE(mkdtemp(t->dir) != NULL);
	REQUIRE(chdir(t->dir) == 0);
	REQUIRE(mkdir("rw", 0755) == 0 && mkdir("ro", 0755) == 0 && mkdir("outside", 0755) == 0);
	REQUIRE(close(creat("ro/file", 0644)) == 0 && close(creat("outside/secret", 0600)) == 0);
	REQUIRE(symlink("../outside", "rw/out") == 0 && symlink("/etc", "rw/abs") == 0 &&
		mkdir("rw/d", 0755) == 0);
	REQUIRE(close(creat("rw/file", 0644)) == 0 && mkfifo("rw/fifo", 0644) == 0);
	REQUIRE(volumes_add(&t->vols, at(t, "rw"), false, false, &e) == 0);
	REQUIRE(volumes_add(&t->vols, at(t, "ro"), true, false, &e) == 0);
	t->table = memfd_create("nodes", MFD_CLOEXEC);
	REQUIRE(chdir("/proc/self/fd") == 0);
	begin_server(t);
	init(t);
}

static void tear_down(struct setting *t)
{
	char cmd[100];
	pid_t pid;

	end_server(t);
	volumes_close(&t->vols);
	close(t->table);
	snprintf(cmd, sizeof(cmd), "%s", t->dir);
	pid = fork();
	if (pid == 0) {
		execlp("rm", "rm", "-rf", cmd, NULL);
		_exit(1);
	}
	waitpid(pid, NULL, 0);
}

static struct setting t;

static void volumes_are_named_by_number(void)
{
	static const char *const wrong[] = {
		"2", "00", "-1", "+1", " 1", "x", "1x", "99999999999999999999"};
	struct fuse_mkdir_in mk = {.mode = 0755};
	uint64_t id;

	set_up(&t);
	CHECK_INT(look_up(&t, 1, "0", &id), 0);
	CHECK_INT(look_up(&t, 1, "1", &id), 0);
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		CHECK_INT(look_up(&t, 1, wrong[i], &id), -ENOENT);
	CHECK_INT(ask(&t, FUSE_MKDIR, 1, &mk, sizeof(mk), "x", 2), -EROFS);
	CHECK_INT(ask(&t, FUSE_UNLINK, 1, NULL, 0, "0", 2), -EROFS);
	tear_down(&t);
}

static void names_lead_nowhere_else(void)
{
	static const char *const wrong[] = {"..", ".", "", "d/../..", "/etc", "a/b"};
	struct fuse_open_in o = {.flags = O_RDONLY};
	uint64_t vol, id;
	char longest[300];

	set_up(&t);
	REQUIRE(look_up(&t, 1, "0", &vol) == 0);
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		CHECK_INT(look_up(&t, vol, wrong[i], &id), -EINVAL);
	memset(longest, 'a', sizeof(longest));
	longest[299] = 0;
	CHECK_INT(look_up(&t, vol, longest, &id), -ENAMETOOLONG);
	/* a name without its end */
	CHECK_INT(ask(&t, FUSE_LOOKUP, vol, NULL, 0, "abc", 3), -EINVAL);
	/* a symbolic link is itself, and is not followed */
	REQUIRE(look_up(&t, vol, "out", &id) == 0);
	CHECK(S_ISLNK(((const struct fuse_entry_out *)answer(&t))->attr.mode));
	CHECK_INT(ask(&t, FUSE_OPEN, id, &o, sizeof(o), NULL, 0), -EACCES);
	CHECK_INT(look_up(&t, id, "secret", &id), -ENOTDIR);
	REQUIRE(look_up(&t, vol, "abs", &id) == 0);
	CHECK_INT(look_up(&t, id, "passwd", &id), -ENOTDIR);
	/* a FIFO is not opened on the host: that would wait */
	REQUIRE(look_up(&t, vol, "fifo", &id) == 0);
	CHECK_INT(ask(&t, FUSE_OPEN, id, &o, sizeof(o), NULL, 0), -EACCES);
	tear_down(&t);
}

static void folder_swapped_for_a_link(void)
{
	struct fuse_create_in in = {.flags = O_WRONLY, .mode = 0644};
	uint64_t vol, d, id;
	char a[100], b[100];

	set_up(&t);
	REQUIRE(look_up(&t, 1, "0", &vol) == 0 && look_up(&t, vol, "d", &d) == 0);
	snprintf(a, sizeof(a), "%s/rw/d", t.dir);
	snprintf(b, sizeof(b), "%s/rw/moved", t.dir);
	REQUIRE(rename(a, b) == 0 && symlink("../outside", a) == 0);
	/* the node is the folder, wherever it is now; never what has its name */
	CHECK_INT(look_up(&t, d, "secret", &id), -ENOENT);
	CHECK_INT(ask(&t, FUSE_CREATE, d, &in, sizeof(in), "new", 4), 0);
	snprintf(b, sizeof(b), "%s/rw/moved/new", t.dir);
	CHECK(access(b, F_OK) == 0);
	/* opened anew by its name, it is gone */
	end_server(&t);
	begin_server(&t);
	CHECK_INT(look_up(&t, d, "secret", &id), -ESTALE);
	CHECK_INT(ask(&t, FUSE_CREATE, d, &in, sizeof(in), "new2", 5), -ESTALE);
	tear_down(&t);
}

static void read_only_is_read_only(void)
{
	struct fuse_open_in o = {.flags = O_RDWR}, trunc = {.flags = O_RDONLY | O_TRUNC},
			    read = {.flags = O_RDONLY};
	struct fuse_create_in create = {.flags = O_WRONLY, .mode = 0644};
	struct fuse_setattr_in set = {.valid = FATTR_SIZE};
	struct fuse_rename_in ren = {0};
	struct fuse_write_in wr = {.size = 1};
	struct fuse_fallocate_in fa = {.length = 10};
	uint64_t vol, other, id;

	set_up(&t);
	REQUIRE(look_up(&t, 1, "1", &vol) == 0 && look_up(&t, vol, "file", &id) == 0 &&
		look_up(&t, 1, "0", &other) == 0);
	CHECK_INT(ask(&t, FUSE_OPEN, id, &o, sizeof(o), NULL, 0), -EROFS);
	CHECK_INT(ask(&t, FUSE_OPEN, id, &trunc, sizeof(trunc), NULL, 0), -EROFS);
	CHECK_INT(ask(&t, FUSE_CREATE, vol, &create, sizeof(create), "n", 2), -EROFS);
	CHECK_INT(ask(&t, FUSE_TMPFILE, vol, &create, sizeof(create), "/", 2), -EROFS);
	CHECK_INT(ask(&t, FUSE_UNLINK, vol, NULL, 0, "file", 5), -EROFS);
	CHECK_INT(ask(&t, FUSE_SETATTR, id, &set, sizeof(set), NULL, 0), -EROFS);
	CHECK_INT(ask(&t, FUSE_REMOVEXATTR, id, NULL, 0, "user.a", 7), -EROFS);
	ren.newdir = other;
	CHECK_INT(ask(&t, FUSE_RENAME, vol, &ren, sizeof(ren), "file\0f2", 8), -EROFS);
	ren.newdir = vol;
	CHECK_INT(ask(&t, FUSE_RENAME, other, &ren, sizeof(ren), "file\0f2", 8), -EROFS);
	/* a handle for reading does not write */
	CHECK_INT(ask(&t, FUSE_OPEN, id, &read, sizeof(read), NULL, 0), 0);
	wr.fh = fa.fh = ((const struct fuse_open_out *)answer(&t))->fh;
	CHECK_INT(ask(&t, FUSE_WRITE, id, &wr, sizeof(wr), "x", 1), -EROFS);
	CHECK_INT(ask(&t, FUSE_FALLOCATE, id, &fa, sizeof(fa), NULL, 0), -EROFS);
	tear_down(&t);
}

static void nothing_dangerous_is_made(void)
{
	struct fuse_mknod_in dev = {.mode = S_IFCHR | 0666, .rdev = 0x103},
			     file = {.mode = S_IFREG | 06755};
	struct fuse_setattr_in set = {.valid = FATTR_MODE, .mode = 06777};
	struct fuse_setxattr_in x = {.size = 2};
	uint64_t vol, id;
	struct stat st;
	char path[100], xattr[64];

	set_up(&t);
	REQUIRE(look_up(&t, 1, "0", &vol) == 0);
	CHECK_INT(ask(&t, FUSE_MKNOD, vol, &dev, sizeof(dev), "dev", 4), -EPERM);
	dev.mode = S_IFBLK | 0666;
	CHECK_INT(ask(&t, FUSE_MKNOD, vol, &dev, sizeof(dev), "dev", 4), -EPERM);
	CHECK_INT(ask(&t, FUSE_MKNOD, vol, &file, sizeof(file), "suid", 5), 0);
	id = ((const struct fuse_entry_out *)answer(&t))->nodeid;
	snprintf(path, sizeof(path), "%s/rw/suid", t.dir);
	REQUIRE(stat(path, &st) == 0);
	CHECK_INT(st.st_mode & 07000, 0);
	CHECK_INT(ask(&t, FUSE_SETATTR, id, &set, sizeof(set), NULL, 0), 0);
	REQUIRE(stat(path, &st) == 0);
	CHECK_INT(st.st_mode & 07777, 0777);
	memcpy(xattr, &x, FUSE_COMPAT_SETXATTR_IN_SIZE);
	memcpy(xattr + FUSE_COMPAT_SETXATTR_IN_SIZE, "security.capability\0ab", 22);
	CHECK_INT(ask(&t, FUSE_SETXATTR, id, xattr, FUSE_COMPAT_SETXATTR_IN_SIZE,
			  xattr + FUSE_COMPAT_SETXATTR_IN_SIZE, 22),
		-EOPNOTSUPP);
	tear_down(&t);
}

static void forged_numbers(void)
{
	static const uint64_t ids[] = {
		0, 2 + 2, 40, 1000, UINT32_MAX, (uint64_t)5 << 32 | 1, UINT64_MAX};
	struct fuse_forget_in f = {.nlookup = UINT64_MAX};
	struct fuse_getattr_in g = {0};
	struct fuse_read_in rd = {.size = 100};
	struct fuse_release_in rel = {0};
	uint64_t vol, id, again;

	set_up(&t);
	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		CHECK_INT(ask(&t, FUSE_GETATTR, ids[i], &g, sizeof(g), NULL, 0), -ESTALE);
		rd.fh = rel.fh = ids[i];
		CHECK_INT(ask(&t, FUSE_READ, 1, &rd, sizeof(rd), NULL, 0), -EBADF);
		CHECK_INT(ask(&t, FUSE_RELEASE, 1, &rel, sizeof(rel), NULL, 0), 0);
	}
	REQUIRE(look_up(&t, 1, "0", &vol) == 0 && look_up(&t, vol, "file", &id) == 0);
	/* forgotten once too often, the number is used again with another generation */
	CHECK_INT(ask(&t, FUSE_FORGET, id, &f, sizeof(f), NULL, 0), 0);
	CHECK_INT(ask(&t, FUSE_FORGET, id, &f, sizeof(f), NULL, 0), 0);
	CHECK_INT(ask(&t, FUSE_FORGET, vol, &f, sizeof(f), NULL, 0), 0);
	CHECK_INT(ask(&t, FUSE_GETATTR, id, &g, sizeof(g), NULL, 0), -ESTALE);
	REQUIRE(look_up(&t, vol, "file", &again) == 0);
	CHECK(again != id && (uint32_t)again == (uint32_t)id);
	tear_down(&t);
}

static void malformed_messages(void)
{
	struct fuse_in_header h = {.len = 40, .opcode = FUSE_GETATTR, .unique = 7, .nodeid = 1};
	struct fuse_batch_forget_in bf = {.count = UINT32_MAX};
	struct fuse_write_in wr = {.size = 1000};
	static const uint32_t unknown[] = {0, 7, 19, 31, 39, 48, 999, 4096, UINT32_MAX};

	set_up(&t);
	for (size_t i = 0; i < ARRAY_LEN(unknown); i++)
		CHECK_INT(ask(&t, unknown[i], 1, NULL, 0, "abcdefgh", 8), -ENOSYS);
	CHECK_INT(ask(&t, FUSE_GETATTR, 1, NULL, 0, NULL, 0), -EINVAL);         /* too short */
	CHECK_INT(ask(&t, FUSE_GETATTR, 1, &wr, sizeof(wr), NULL, 0), -EINVAL); /* too long */
	CHECK_INT(ask(&t, FUSE_WRITE, 1, &wr, sizeof(wr), "abc", 3), -EINVAL);
	CHECK_INT(ask(&t, FUSE_BATCH_FORGET, 1, &bf, sizeof(bf), NULL, 0), 0);
	/* a length in the header that is not the message's */
	h.len = 41;
	CHECK(send_raw(&t, 3, &h, 40, 4096) && t.error == -EBADMSG);
	/* extensions longer than the message */
	h.len = 40;
	h.total_extlen = 0xffff;
	CHECK(send_raw(&t, 3, &h, 40, 4096) && t.error == -EINVAL);
	/* no room for a reply, or too little */
	h = (struct fuse_in_header){.len = 40, .opcode = FUSE_STATFS, .unique = 8, .nodeid = 1};
	CHECK(send_raw(&t, 4, &h, 40, 0) && t.reply_len == 0);
	CHECK(send_raw(&t, 4, &h, 40, sizeof(struct fuse_out_header)) && t.error == -EINVAL);
	tear_down(&t);
}

static void broken_frames_end_the_connection(void)
{
	static const struct fs_request_hdr wrong[] = {{.slot = FS_QUEUE, .len = 40}, {.len = 39},
		{.len = FS_MESSAGE_MAX + 1}, {.len = UINT32_MAX}, {.len = 40, .reserved = 1}};
	struct fuse_in_header h = {.len = 40, .opcode = FUSE_STATFS, .unique = 8, .nodeid = 1};

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		struct fs_reply_hdr r;

		set_up(&t);
		(void)!write_full(t.sock, &wrong[i], sizeof(wrong[i]));
		(void)!write_full(t.sock, &h, sizeof(h));
		CHECK(read_full(t.sock, &r, sizeof(r)) < 0);
		tear_down(&t);
	}
}

/* More names than descriptors: the cache closes and opens again. */
static void many_nodes(void)
{
	struct fuse_create_in in = {.flags = O_WRONLY, .mode = 0644};
	struct fuse_getattr_in g = {0};
	static uint64_t ids[500];
	uint64_t vol;
	char name[16];

	set_up(&t);
	REQUIRE(look_up(&t, 1, "0", &vol) == 0);
	for (unsigned int i = 0; i < ARRAY_LEN(ids); i++) {
		struct fuse_release_in rel = {0};

		snprintf(name, sizeof(name), "n%u", i);
		REQUIRE(ask(&t, FUSE_CREATE, vol, &in, sizeof(in), name, strlen(name) + 1) == 0);
		ids[i] = ((const struct fuse_entry_out *)answer(&t))->nodeid;
		rel.fh = ((const struct fuse_open_out *)(const void
					  *)((const struct fuse_entry_out *)answer(&t) + 1))
				 ->fh;
		CHECK_INT(ask(&t, FUSE_RELEASE, ids[i], &rel, sizeof(rel), NULL, 0), 0);
	}
	for (unsigned int i = 0; i < ARRAY_LEN(ids); i++)
		CHECK_INT(ask(&t, FUSE_GETATTR, ids[i], &g, sizeof(g), NULL, 0), 0);
	end_server(&t);
	begin_server(&t);
	for (unsigned int i = 0; i < ARRAY_LEN(ids); i++)
		CHECK_INT(ask(&t, FUSE_GETATTR, ids[i], &g, sizeof(g), NULL, 0), 0);
	tear_down(&t);
}

/* The next process goes on with what was open, and says ESTALE for what is gone. */
static void a_later_process(void)
{
	struct fuse_create_in in = {.flags = O_RDWR, .mode = 0644};
	struct fuse_write_in wr = {.size = 5};
	struct fuse_read_in rd = {.size = 100};
	uint64_t vol, fh[3];
	const char *const names[] = {"kept", "gone", "swapped"};
	char path[100], other[100];

	set_up(&t);
	REQUIRE(look_up(&t, 1, "0", &vol) == 0);
	for (int i = 0; i < 3; i++) {
		REQUIRE(ask(&t, FUSE_CREATE, vol, &in, sizeof(in), names[i],
				strlen(names[i]) + 1) == 0);
		fh[i] = ((const struct fuse_open_out *)(const void
					 *)((const struct fuse_entry_out *)answer(&t) + 1))
				->fh;
		wr.fh = fh[i];
		CHECK_INT(ask(&t, FUSE_WRITE, vol, &wr, sizeof(wr), "12345", 5), 0);
	}
	CHECK_INT(ask(&t, FUSE_UNLINK, vol, NULL, 0, "gone", 5), 0);
	rd.fh = fh[1];
	CHECK_INT(ask(&t, FUSE_READ, vol, &rd, sizeof(rd), NULL, 0), 0);
	CHECK_INT(t.reply_len - sizeof(struct fuse_out_header), 5);
	end_server(&t);
	snprintf(path, sizeof(path), "%s/rw/swapped", t.dir);
	snprintf(other, sizeof(other), "%s/rw/other", t.dir);
	REQUIRE(close(creat(other, 0644)) == 0 && rename(other, path) == 0);
	begin_server(&t);
	rd.fh = fh[0];
	CHECK_INT(ask(&t, FUSE_READ, vol, &rd, sizeof(rd), NULL, 0), 0);
	CHECK_INT(t.reply_len - sizeof(struct fuse_out_header), 5);
	rd.fh = fh[1];
	CHECK_INT(ask(&t, FUSE_READ, vol, &rd, sizeof(rd), NULL, 0), -ESTALE);
	rd.fh = fh[2];
	CHECK_INT(ask(&t, FUSE_READ, vol, &rd, sizeof(rd), NULL, 0), -ESTALE);
	/* and INIT, from a guest's kernel that was started again, forgets all of it */
	init(&t);
	rd.fh = fh[0];
	CHECK_INT(ask(&t, FUSE_READ, vol, &rd, sizeof(rd), NULL, 0), -EBADF);
	tear_down(&t);
}

/* The fourth access mode of open(2) lets neither read nor write. A table with such a handle would be refused by the next process. */
static void the_fourth_access_mode(void)
{
	struct fuse_create_in cr = {.flags = O_ACCMODE, .mode = 0644};
	struct fuse_open_in in = {.flags = O_ACCMODE};
	struct fuse_read_in rd = {.size = 100};
	uint64_t vol, file, fh;

	set_up(&t);
	REQUIRE(look_up(&t, 1, "0", &vol) == 0 && look_up(&t, vol, "file", &file) == 0);
	CHECK_INT(ask(&t, FUSE_OPEN, file, &in, sizeof(in), NULL, 0), -EINVAL);
	CHECK_INT(ask(&t, FUSE_CREATE, vol, &cr, sizeof(cr), "new", 4), -EINVAL);
	in.flags = O_RDONLY;
	REQUIRE(ask(&t, FUSE_OPEN, file, &in, sizeof(in), NULL, 0) == 0);
	fh = ((const struct fuse_open_out *)answer(&t))->fh;
	end_server(&t);
	begin_server(&t);
	rd.fh = fh;
	CHECK_INT(ask(&t, FUSE_READ, file, &rd, sizeof(rd), NULL, 0), 0);
	tear_down(&t);
}

/* A table from a damaged checkpoint is refused, or read without harm. */
static void damaged_tables(void)
{
	struct fuse_getattr_in g = {0};
	uint64_t vol, id;
	uint32_t refused = 0;

	set_up(&t);
	REQUIRE(look_up(&t, 1, "0", &vol) == 0 && look_up(&t, vol, "d", &id) == 0 &&
		look_up(&t, vol, "file", &id) == 0);
	for (unsigned int round = 0; round < 200; round++) {
		struct err e = {0};
		struct nodes *n = NULL;
		uint8_t bytes[8192];
		int copy = memfd_create("copy", MFD_CLOEXEC);
		struct stat st;

		REQUIRE(fstat(t.table, &st) == 0 && ftruncate(copy, st.st_size) == 0);
		REQUIRE(pread_full(t.table, bytes, sizeof(bytes), 0) == 0);
		for (unsigned int k = 0; k < 1 + round % 4; k++)
			bytes[(round % 2 ? 4096 + 34 * 40 : 0) +
				(round * 7919 + k * 104729) % 120] ^= (uint8_t)(1 + round * 31);
		REQUIRE(pwrite_full(copy, bytes, sizeof(bytes), 0) == 0);
		if (nodes_open(&n, copy, &t.vols, 64, &e) < 0) {
			refused++;
			continue;
		}
		for (uint64_t i = 1; i < 50; i++) {
			struct node_ref r;

			if (node_get(n, i, &r) == 0)
				node_put(n, &r);
		}
		nodes_start(n, (struct fs_session){0});
		nodes_close(n);
	}
	CHECK(refused > 10);
	CHECK_INT(ask(&t, FUSE_GETATTR, id, &g, sizeof(g), NULL, 0), 0);
	tear_down(&t);
}

/* Where things stand in the table (fs/nodes.c). */
#define AT_CHUNKS  (4096 + (uint64_t)FS_NODES_MAX * 40)
#define AT_HANDLES (AT_CHUNKS + 2ull * FS_NODES_MAX * 32)

/* A copy of the table with other flags in its only handle: 0 or -errno of loading it. */
static int table_with_flags(uint32_t flags)
{
	static const uint64_t pieces[] = {0, 4096, AT_CHUNKS, AT_HANDLES};
	int copy = memfd_create("copy", MFD_CLOEXEC), rc;
	struct nodes *n = NULL;
	struct err e = {0};
	uint8_t bytes[4096];
	struct stat st;

	ASSERT(fstat(t.table, &st) == 0 && ftruncate(copy, st.st_size) == 0);
	for (size_t i = 0; i < ARRAY_LEN(pieces); i++)
		ASSERT(pread_full(t.table, bytes, sizeof(bytes), pieces[i]) == 0 &&
			pwrite_full(copy, bytes, sizeof(bytes), pieces[i]) == 0);
	ASSERT(pwrite_full(copy, &flags, sizeof(flags), AT_HANDLES + 12 + 4) == 0);
	rc = nodes_open(&n, copy, &t.vols, 64, &e);
	nodes_close(n);
	return rc;
}

/* The flags of a handle go to open() when it is opened again: a forged table does not choose them. */
static void forged_handle_flags(void)
{
	struct fuse_open_in o = {.flags = O_RDONLY};
	uint64_t vol, id;

	set_up(&t);
	REQUIRE(look_up(&t, 1, "1", &vol) == 0 && look_up(&t, vol, "file", &id) == 0);
	REQUIRE(ask(&t, FUSE_OPEN, id, &o, sizeof(o), NULL, 0) == 0);
	CHECK_INT(table_with_flags(O_RDONLY), 0);
	CHECK_INT(table_with_flags(O_DIRECTORY), 0);
	CHECK_INT(table_with_flags(O_RDWR), -EBADMSG); /* volume 1 is read-only */
	CHECK_INT(table_with_flags(O_CREAT), -EBADMSG);
	CHECK_INT(table_with_flags(O_TRUNC), -EBADMSG);
	CHECK_INT(table_with_flags(O_TMPFILE | O_RDWR), -EBADMSG);
	CHECK_INT(table_with_flags(O_PATH), -EBADMSG);
	CHECK_INT(table_with_flags(O_ACCMODE), -EBADMSG);
	tear_down(&t);
}

static void forge(uint64_t at, uint64_t value, size_t n)
{
	REQUIRE(pwrite_full(t.table, &value, n, (off_t)at) == 0);
}

/* The monitor has the memory file, too, and may write to it while the server runs. */
static void forged_while_it_runs(void)
{
	static const uint32_t bad[] = {0xffffffff, 2 * FS_NODES_MAX, 0x7fffffff};
	struct fuse_read_in rd = {.size = 16};
	struct fuse_open_in o = {.flags = O_RDONLY};
	uint64_t vol, d, id, other;

	for (size_t k = 0; k < ARRAY_LEN(bad); k++) {
		set_up(&t);
		REQUIRE(look_up(&t, 1, "0", &vol) == 0 && look_up(&t, vol, "d", &d) == 0 &&
			look_up(&t, vol, "file", &id) == 0);
		REQUIRE(ask(&t, FUSE_OPEN, id, &o, sizeof(o), NULL, 0) == 0);
		rd.fh = ((const struct fuse_open_out *)answer(&t))->fh;
		for (uint64_t i = 2 + FS_VOLUMES_MAX; i < 4 + FS_VOLUMES_MAX; i++) {
			forge(4096 + i * 40 + 24, bad[k], 4); /* parent */
			if (k > 0)
				forge(4096 + i * 40 + 32, bad[k], 4); /* its first chunk */
			forge(4096 + i * 40 + 36, 0xffff, 2);         /* the length of its name */
			forge(4096 + i * 40 + 38, 0xff, 1);           /* volume */
		}
		for (uint64_t c = 0; c < 4; c++)
			forge(AT_CHUNKS + c * 32, k == 1 ? c : bad[k], 4);
		forge(AT_HANDLES + 12, bad[k], 4);
		for (uint64_t at = 12; at < 24; at += 4)
			forge(at, bad[k], 4); /* the first index never used, of each kind */
		CHECK_INT(ask(&t, FUSE_READ, id, &rd, sizeof(rd), NULL, 0), 0);
		look_up(&t, vol, "file", &other);
		CHECK(other == id);
		CHECK_INT(ask(&t, FUSE_UNLINK, vol, NULL, 0, "file", 5), 0);
		CHECK_INT(ask(&t, FUSE_RMDIR, vol, NULL, 0, "d", 2), 0);
		CHECK_INT(look_up(&t, vol, "fifo", &other), 0);
		CHECK_INT(ask(&t, FUSE_READ, 0xffffffff, &rd, sizeof(rd), NULL, 0), 0);
		tear_down(&t);
	}
}

struct node_in_file {
	uint64_t ino;
	int64_t btime_ns;
	uint64_t lookups;
	uint32_t parent, generation, name;
	uint16_t name_len;
	uint8_t volume, flags;
};
static_assert(sizeof(struct node_in_file) == 40, "file format");

/* A guest that knows a million names and has all handles open is refused, and may go on when it gave one back. */
static void a_full_table(void)
{
	const uint32_t first = 2 + FS_VOLUMES_MAX;
	size_t n = FS_NODES_MAX - first;
	struct node_in_file *nodes = calloc(n, sizeof(*nodes));
	struct fuse_create_in in = {.flags = O_RDWR | O_CREAT, .mode = 0644};
	struct fuse_open_in o = {.flags = O_RDONLY};
	struct fuse_forget_in forget = {.nlookup = 1};
	struct fuse_release_in rel = {.fh = 1};
	uint64_t vol, id;

	set_up(&t);
	end_server(&t);
	REQUIRE(nodes != NULL);
	for (size_t i = 0; i < n; i++)
		nodes[i] = (struct node_in_file){.ino = i + (1ull << 50), .lookups = 1, .flags = 3};
	REQUIRE(pwrite_full(t.table, nodes, n * sizeof(*nodes), 4096 + first * sizeof(*nodes)) ==
		0);
	forge(12, FS_NODES_MAX, 4);
	for (uint64_t i = 1; i < FS_HANDLES_MAX; i++) {
		const uint32_t handle[] = {2, O_DIRECTORY};

		REQUIRE(pwrite_full(t.table, handle, sizeof(handle),
				(off_t)(AT_HANDLES + i * 12)) == 0);
	}
	forge(20, FS_HANDLES_MAX, 4);
	begin_server(&t);
	REQUIRE(look_up(&t, 1, "0", &vol) == 0);
	CHECK_INT(look_up(&t, vol, "d", &id), -ENFILE);
	CHECK_INT(ask(&t, FUSE_CREATE, vol, &in, sizeof(in), "new", 4), -ENFILE);
	CHECK_INT(ask(&t, FUSE_OPENDIR, vol, &o, sizeof(o), NULL, 0), -ENFILE);
	/* what was refused is not there */
	CHECK_INT(look_up(&t, vol, "new", &id), -ENOENT);
	CHECK_INT(ask(&t, FUSE_FORGET, first, &forget, sizeof(forget), NULL, 0), 0);
	CHECK_INT(look_up(&t, vol, "d", &id), 0);
	CHECK_INT(ask(&t, FUSE_RELEASEDIR, vol, &rel, sizeof(rel), NULL, 0), 0);
	CHECK_INT(ask(&t, FUSE_OPENDIR, vol, &o, sizeof(o), NULL, 0), 0);
	CHECK_INT(ask(&t, FUSE_OPENDIR, vol, &o, sizeof(o), NULL, 0), -ENFILE);
	tear_down(&t);
	free(nodes);
}

static const struct test tests[] = {
	{"a_full_table", a_full_table},
	{"volumes_are_named_by_number", volumes_are_named_by_number},
	{"names_lead_nowhere_else", names_lead_nowhere_else},
	{"folder_swapped_for_a_link", folder_swapped_for_a_link},
	{"read_only_is_read_only", read_only_is_read_only},
	{"nothing_dangerous_is_made", nothing_dangerous_is_made},
	{"forged_numbers", forged_numbers},
	{"forged_handle_flags", forged_handle_flags},
	{"forged_while_it_runs", forged_while_it_runs},
	{"malformed_messages", malformed_messages},
	{"broken_frames_end_the_connection", broken_frames_end_the_connection},
	{"many_nodes", many_nodes},
	{"a_later_process", a_later_process},
	{"the_fourth_access_mode", the_fourth_access_mode},
	{"damaged_tables", damaged_tables},
};
TEST_MAIN(tests)
