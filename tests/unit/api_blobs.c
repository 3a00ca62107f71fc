/* SPDX-License-Identifier: Apache-2.0
 *
 * api_blobs: counted files: what the last reference, the sweep and a start with unreadable records
 * do to them; large ones go in another thread, and never while a process has them mapped.
 */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "api/checkpoint/files.h"
#include "api/core/io_pool.h"
#include "api/core/text.h"
#include "lib/loop.h"

static struct {
	char dir[64];
	struct loop *loop;
	struct io_pool *io;
	struct blobs *b;
} G;

static bool rig_up(void)
{
	struct err e;

	snprintf(G.dir, sizeof(G.dir), "/tmp/api_blobs.XXXXXX");
	if (!mkdtemp(G.dir))
		return false;
	G.loop = loop_create();
	G.io = io_pool_create(G.loop, &e);
	G.b = blobs_create(G.dir, G.io, &e);
	return G.b && io_pool_start(G.io, &e) == 0;
}

static void rig_down(void)
{
	blobs_destroy(G.b);
	io_pool_destroy(G.io);
	loop_destroy(G.loop);
	rmdir(G.dir);
}

static bool there(const char *id, const char *kind)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s.%s", G.dir, id, kind);
	return access(path, F_OK) == 0;
}

static int make(char id[BLOB_ID], uint64_t bytes)
{
	int fd;

	blob_id_make(id);
	fd = blob_make(G.b, id, "mem");
	if (bytes)
		CHECK_INT(posix_fallocate(fd, 0, (off_t)bytes), 0);
	return fd;
}

static void idle(void)
{
	for (int i = 0; i < 500 && io_pool_busy(G.io); i++)
		loop_turn(G.loop, 20);
	CHECK_INT(io_pool_busy(G.io), 0);
}

/* Each way to keep write access to a file that is about to be published. */
static void a_writer_is_found(void)
{
	int fd, mine[2], got = -1;
	char id[BLOB_ID], byte;
	struct iovec io = {&byte, 1};
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c = {.h = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct msghdr m = {
		.msg_iov = &io, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof(c)};
	void *map;

	REQUIRE(rig_up());
	fd = make(id, 4096);
	CHECK_INT(blob_has_writer(G.b, id, "mem"), -EBUSY);
	map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	REQUIRE(map != MAP_FAILED);
	REQUIRE(socketpair(AF_UNIX, SOCK_DGRAM, 0, mine) == 0);
	memcpy(CMSG_DATA(&c.h), &fd, sizeof(fd));
	CHECK_INT(sendmsg(mine[0], &m, 0), 1);
	close_fd(&fd);
	CHECK_INT(blob_has_writer(G.b, id, "mem"), -EBUSY); /* a mapping, and a message */
	munmap(map, 4096);
	CHECK_INT(blob_has_writer(G.b, id, "mem"), -EBUSY); /* a message that nobody received */
	close(mine[0]);
	close(mine[1]);
	/* the kernel frees what was in a message a moment later */
	for (int i = 0; i < 1000 && (got = blob_has_writer(G.b, id, "mem")) == -EBUSY; i++)
		usleep(1000);
	CHECK_INT(got, 0);
	fd = blob_open(G.b, id, "mem", false);
	CHECK_INT(blob_has_writer(G.b, id, "mem"), 0); /* readers are none */
	close_fd(&fd);
	CHECK_INT(blob_has_writer(G.b, id, "data"), -ENOENT);
	blobs_loaded(G.b, true);
	rig_down();
}

/* A file in RAM: the same ways, and then no one can write it, not by a descriptor that was kept either. */
static void a_file_in_ram_is_sealed(void)
{
	char id[BLOB_ID];
	int fd, again;
	void *map;

	REQUIRE(rig_up());
	blobs_loaded(G.b, true);
	blob_ram_id_make(id);
	CHECK(uuid_ok(id) && blob_in_ram(id) && !blob_in_ram(""));
	blob_ref(G.b, id);
	CHECK_INT(blob_open(G.b, id, "mem", false), -ENOENT);
	fd = blob_make(G.b, id, "mem");
	REQUIRE(fd >= 0);
	CHECK_INT(ftruncate(fd, 8192), 0);
	map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	REQUIRE(map != MAP_FAILED);
	*(char *)map = 1;
	CHECK_INT(blob_has_writer(G.b, id, "mem"), -EBUSY);
	CHECK_INT(blobs_ram_bytes(G.b), 0);
	munmap(map, 4096);
	CHECK_INT(blob_has_writer(G.b, id, "mem"), 0);
	CHECK_INT(blob_has_writer(G.b, id, "mem"), 0);
	CHECK_INT(blobs_ram_bytes(G.b), 4096);
	CHECK_INT(blob_bytes(G.b, id), 4096);
	CHECK(pwrite(fd, "x", 1, 0) < 0 && errno == EPERM);
	CHECK(ftruncate(fd, 0) < 0 && ftruncate(fd, 16384) < 0);
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	again = blob_open(G.b, id, "mem", false);
	CHECK(again >= 0 && again != fd);
	map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, again, 0);
	CHECK(map != MAP_FAILED && *(char *)map == 1);
	munmap(map, 4096);
	CHECK(!there(id, "mem"));
	CHECK_INT(blob_has_writer(G.b, id, "state"), -ENOENT);
	blob_unref(G.b, id);
	CHECK_INT(blobs_ram_bytes(G.b), 0);
	CHECK_INT(blob_open(G.b, id, "mem", false), -ENOENT);
	close(fd);
	close(again);
	rig_down();
}

/* A hostile writer seals the file before it is whole: nothing is counted twice, and the seals that are missing fail it. */
static void a_writer_that_seals(void)
{
	char id[BLOB_ID];
	int fd;

	REQUIRE(rig_up());
	blobs_loaded(G.b, true);
	blob_ram_id_make(id);
	blob_ref(G.b, id);
	fd = blob_make(G.b, id, "mem");
	CHECK_INT(ftruncate(fd, 4096), 0);
	CHECK_INT(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL), 0);
	CHECK_INT(blob_has_writer(G.b, id, "mem"), -EPERM);
	close(fd);
	fd = blob_make(G.b, id, "state");
	CHECK_INT(write(fd, "x", 1), 1);
	CHECK_INT(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL),
		0);
	CHECK_INT(blob_has_writer(G.b, id, "state"), 0);
	CHECK_INT(blobs_ram_bytes(G.b), 4096);
	close(fd);
	blob_unref(G.b, id);
	CHECK_INT(blobs_ram_bytes(G.b), 0);
	rig_down();
}

static void the_last_reference_removes(void)
{
	char id[BLOB_ID];
	struct err e;
	int fd;

	REQUIRE(rig_up());
	fd = make(id, 0);
	close_fd(&fd);
	blobs_loaded(G.b, true);
	CHECK(!there(id, "mem"));
	fd = make(id, 0);
	close_fd(&fd);
	blob_ref(G.b, id);
	blob_ref(G.b, id);
	blob_unref(G.b, id);
	CHECK(there(id, "mem"));
	CHECK_INT(blobs_sync(G.b, &e), 0);
	blob_unref(G.b, id);
	CHECK(!there(id, "mem"));
	rig_down();
}

/* In place of libc's: counts, and may fail. */
static struct {
	unsigned int calls;
	int error;
} synced;

int fsync(int fd)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
		synced.calls++;
	errno = synced.error;
	return synced.error ? -1 : 0;
}

static void a_new_name_is_on_the_disk_before_its_record(void)
{
	char id[BLOB_ID];
	struct err e;
	int fd;

	REQUIRE(rig_up());
	memset(&synced, 0, sizeof(synced));
	CHECK_INT(blobs_sync(G.b, &e), 0);
	CHECK_INT(synced.calls, 0);
	fd = make(id, 0);
	close_fd(&fd);
	CHECK_INT(blobs_sync(G.b, &e), 0);
	CHECK_INT(synced.calls, 1);
	CHECK_INT(blobs_sync(G.b, &e), 0);
	CHECK_INT(synced.calls, 1);
	blob_discard(G.b, id, "mem");
	fd = make(id, 0);
	close_fd(&fd);
	synced.error = EIO;
	CHECK_INT(blobs_sync(G.b, &e), -EIO);
	/* the kernel reports it once */
	synced.error = 0;
	CHECK_INT(blobs_sync(G.b, &e), -EIO);
	blob_discard(G.b, id, "mem");
	rig_down();
}

static void nothing_goes_while_records_are_loaded(void)
{
	char kept[BLOB_ID], dropped[BLOB_ID];
	int fd;

	REQUIRE(rig_up());
	fd = make(kept, 0);
	close_fd(&fd);
	fd = make(dropped, 0);
	close_fd(&fd);
	blob_ref(G.b, kept);
	blob_ref(G.b, dropped);
	/* the last reference of those read so far */
	blob_unref(G.b, kept);
	blob_unref(G.b, dropped);
	CHECK(there(kept, "mem") && there(dropped, "mem"));
	blob_ref(G.b, kept);
	blobs_loaded(G.b, true);
	CHECK(there(kept, "mem") && !there(dropped, "mem"));
	blob_unref(G.b, kept);
	CHECK(!there(kept, "mem"));
	rig_down();
}

static void after_an_incomplete_load_old_files_stay(void)
{
	char known[BLOB_ID], unknown[BLOB_ID], fresh[BLOB_ID], path[128];
	int fd;

	REQUIRE(rig_up());
	fd = make(known, 0);
	close_fd(&fd);
	fd = make(unknown, 0);
	close_fd(&fd);
	blob_ref(G.b, known);
	blobs_loaded(G.b, false);
	CHECK(there(known, "mem") && there(unknown, "mem"));
	blob_unref(G.b, known);
	CHECK(there(known, "mem"));
	fd = make(fresh, 0);
	close_fd(&fd);
	blob_ref(G.b, fresh);
	blob_unref(G.b, fresh);
	CHECK(!there(fresh, "mem"));
	for (const char *const *id = (const char *const[]){known, unknown, NULL}; *id; id++) {
		snprintf(path, sizeof(path), "%s/%s.mem", G.dir, *id);
		unlink(path);
	}
	rig_down();
}

static void a_large_file_goes_in_a_thread(void)
{
	char id[BLOB_ID];
	int fd;

	REQUIRE(rig_up());
	blobs_loaded(G.b, true);
	fd = make(id, MIB(200));
	close_fd(&fd);
	blob_ref(G.b, id);
	blob_unref(G.b, id);
	CHECK(!there(id, "mem"));
	CHECK_INT(io_pool_busy(G.io), 1);
	idle();
	rig_down();
}

static void a_mapped_file_keeps_its_length(void)
{
	char id[BLOB_ID];
	struct stat st;
	char *p;
	int fd;

	REQUIRE(rig_up());
	blobs_loaded(G.b, true);
	for (int mapped = 0; mapped < 2; mapped++) {
		fd = make(id, MIB(32));
		p = mmap(NULL, MIB(32), PROT_READ, MAP_PRIVATE, fd, 0);
		REQUIRE(p != MAP_FAILED);
		if (mapped)
			close_fd(&fd);
		blob_ref(G.b, id);
		blob_unref(G.b, id);
		idle();
		CHECK(mapped ||
			(fstat(fd, &st) == 0 && st.st_nlink == 0 && st.st_size == (off_t)MIB(32)));
		/* a SIGBUS if it was shortened */
		CHECK_INT(p[MIB(32) - 1], 0);
		munmap(p, MIB(32));
		close_fd(&fd);
	}
	rig_down();
}

static struct {
	int calls, err;
	char data[BLOB_ID];
} made;

static void on_layer(void *arg, const char *data, const struct err *e)
{
	made.calls++;
	made.err = e ? e->code : 0;
	snprintf(made.data, sizeof(made.data), "%s", data);
}

static void a_private_layer_is_made_in_a_thread(void)
{
	struct layer_job *j;

	REQUIRE(rig_up());
	blobs_loaded(G.b, true);
	made.calls = 0;
	REQUIRE(disk_private_make(G.b, MIB(64), on_layer, NULL));
	CHECK_INT(made.calls, 0);
	idle();
	CHECK(made.calls == 1 && !made.err && blob_is_known(G.b, made.data));
	CHECK(there(made.data, "data") && there(made.data, "bitmap"));
	blob_unref(G.b, made.data);
	CHECK(!there(made.data, "data") && !there(made.data, "bitmap"));
	/* nobody wants it any more */
	j = disk_private_make(G.b, MIB(64), on_layer, NULL);
	REQUIRE(j);
	disk_private_cancel(j);
	idle();
	/* a size that no layer has: its files go in the thread */
	REQUIRE(disk_private_make(G.b, 1, on_layer, NULL));
	idle();
	CHECK(made.calls == 2 && made.err);
	CHECK(!blob_is_known(G.b, made.data));
	rig_down(); /* rmdir: empty */
	CHECK(access(G.dir, F_OK) < 0);
}

static const struct test tests[] = {
	{"a_writer_is_found", a_writer_is_found},
	{"a_private_layer_is_made_in_a_thread", a_private_layer_is_made_in_a_thread},
	{"a_file_in_ram_is_sealed", a_file_in_ram_is_sealed},
	{"a_writer_that_seals", a_writer_that_seals},
	{"the_last_reference_removes", the_last_reference_removes},
	{"a_new_name_is_on_the_disk_before_its_record",
		a_new_name_is_on_the_disk_before_its_record},
	{"nothing_goes_while_records_are_loaded", nothing_goes_while_records_are_loaded},
	{"after_an_incomplete_load_old_files_stay", after_an_incomplete_load_old_files_stay},
	{"a_large_file_goes_in_a_thread", a_large_file_goes_in_a_thread},
	{"a_mapped_file_keeps_its_length", a_mapped_file_keeps_its_length},
};
TEST_MAIN(tests)
