/* SPDX-License-Identifier: Apache-2.0
 *
 * quota: limits that the file system keeps for the files of one sandbox or claim, by the helper's own functions, as root, where the kernel and
 * the file system of /var/lib/mayfly (or $QUOTA_DIR) have project quotas. The appliance's data disk has them: test_jail runs this there.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "priv/groups.h"
#include "priv/quota.h"

static char dir[300];

static int make(const char *name)
{
	char path[400];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

/* Bytes that fit, by mebibytes; *err: what ended it. */
static uint64_t fill(int fd, uint64_t from, int *err)
{
	static uint8_t block[1 << 20];
	uint64_t at = from;
	ssize_t n;

	memset(block, 7, sizeof(block));
	while ((n = pwrite(fd, block, sizeof(block), (off_t)at)) > 0)
		at += (uint64_t)n;
	*err = errno;
	return at - from;
}

static void a_sandbox_has_its_bytes_and_others_keep_theirs(void)
{
	uint32_t one = quota_project(false, 0xfedcba1), two = quota_project(false, 0xfedcba2);
	struct priv_quota small = {.bytes = MIB(8)}, used = {0};
	int data = make("data"), bitmap = make("bitmap"), other = make("other"), err = 0;

	REQUIRE(data >= 0 && bitmap >= 0 && other >= 0);
	CHECK_INT(quota_limit(data, one, &small), 0);
	CHECK_INT(quota_give(data, one), 0);
	CHECK_INT(quota_give(bitmap, one), 0);
	CHECK_INT(quota_limit(other, two, &small), 0);
	CHECK_INT(quota_give(other, two), 0);
	/* both files count */
	CHECK_INT(pwrite(bitmap, "x", 1, MIB(1)), 1);
	CHECK(fill(data, 0, &err) < MIB(8) + 1);
	CHECK(err == EDQUOT || err == ENOSPC);
	CHECK_INT(quota_usage(data, one, &used), 0);
	CHECK(used.bytes > MIB(6) && used.bytes <= MIB(8));
	CHECK_INT(used.inodes, 2);
	/* a neighbour's write goes on */
	CHECK_INT(pwrite(other, "y", 1, 0), 1);
	/* more is given, and what was refused fits */
	small.bytes = MIB(12);
	CHECK_INT(quota_limit(data, one, &small), 0);
	CHECK(fill(data, MIB(100), &err) >= MIB(2));
	close(data);
	close(bitmap);
	close(other);
}

/* A claim's folder with its limit; -1: there is none, which is a failure. */
static int claim_make(const char *name, uint32_t claim, const struct priv_quota *limit)
{
	char path[400];
	int folder;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	folder = mkdir(path, 0700) == 0 ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	CHECK(folder >= 0);
	CHECK_INT(quota_limit(folder, claim, limit), 0);
	CHECK_INT(quota_give(folder, claim), 0);
	return folder;
}

/* What is made in a claim's folder belongs to it. */
static void a_folder_hands_its_project_down(void)
{
	struct priv_quota few = {.bytes = MIB(4), .inodes = 3};
	int folder = claim_make("claim", quota_project(true, 0xfedcba1), &few), fds[4], err;

	REQUIRE(folder >= 0);
	fds[0] = make("claim/a");
	fds[1] = make("claim/b");
	CHECK(fds[0] >= 0 && fds[1] >= 0);
	fds[2] = make("claim/c"); /* the folder is the third */
	CHECK(fds[2] < 0 && (errno == EDQUOT || errno == ENOSPC));
	CHECK(fill(fds[0], 0, &err) <= MIB(4));
	close(fds[0]);
	close(fds[1]);
	close(folder);
}

static uint64_t disk_size(int fd)
{
	struct statfs st = {0};

	CHECK_INT(fstatfs(fd, &st), 0);
	return (uint64_t)st.f_blocks * (uint64_t)st.f_bsize;
}

/* What mayfly-fs relies on: statfs of a claim's folders tells of the claim's limit, that of its files, one without a name included, of the disk. */
static void a_file_tells_of_the_disk(void)
{
	struct priv_quota few = {.bytes = MIB(4)};
	int folder = claim_make("told", quota_project(true, 0xfedcba3), &few), sub, file, unnamed;

	REQUIRE(folder >= 0);
	REQUIRE(mkdirat(folder, "sub", 0700) == 0);
	sub = openat(folder, "sub", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	file = openat(sub, "file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	unnamed = openat(folder, ".", O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0);
	CHECK(disk_size(folder) <= MIB(4) && disk_size(sub) <= MIB(4));
	CHECK(disk_size(file) > MIB(64) && disk_size(unnamed) > MIB(64));
	close(file);
	close(unnamed);
	close(sub);
	close(folder);
}

static void the_disk_has_a_name_for_io_max(void)
{
	unsigned int a, b;
	char name[24];

	if (!io_device_of(dir, name, sizeof(name))) {
		printf("(%s is on no block device)\n", dir);
		return;
	}
	CHECK_INT(sscanf(name, "%u:%u", &a, &b), 2);
	CHECK(!io_device_of("/proc", name, sizeof(name)));
}

static void clean_up(void)
{
	static const char *const made[] = {
		"data", "bitmap", "other", "claim/a", "claim/b", "claim/c", "told/sub/file"};
	static const char *const folders[] = {"told/sub", "told", "claim"};
	char path[400];

	for (size_t i = 0; i < ARRAY_LEN(made); i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, made[i]);
		unlink(path);
	}
	for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, folders[i]);
		rmdir(path);
	}
	rmdir(dir);
}

static const struct test tests[] = {
	{"a_sandbox_has_its_bytes_and_others_keep_theirs",
		a_sandbox_has_its_bytes_and_others_keep_theirs},
	{"a_folder_hands_its_project_down", a_folder_hands_its_project_down},
	{"a_file_tells_of_the_disk", a_file_tells_of_the_disk},
	{"the_disk_has_a_name_for_io_max", the_disk_has_a_name_for_io_max},
};

int main(int argc, char **argv)
{
	const char *at = getenv("QUOTA_DIR");
	int fd, rc;

	snprintf(dir, sizeof(dir), "%s/quota-XXXXXX", at ? at : "/var/lib/mayfly");
	if (geteuid() != 0 || !mkdtemp(dir)) {
		printf("root and a folder for the files are needed\n");
		return 77;
	}
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || !quota_is_there(fd)) {
		printf("this file system has no project quotas (mount it with prjquota)\n");
		rmdir(dir);
		return 77;
	}
	close(fd);
	rc = test_main(argc, argv, tests, ARRAY_LEN(tests));
	clean_up();
	return rc;
}
