/* SPDX-License-Identifier: Apache-2.0
 *
 * volumes: what mayfly-priv opens as a volume, with the kernel's own openat2 and shifted mounts, as root. Sources are made to lead out, to
 * be of the wrong kind, and to be missing.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "priv/volumes.h"

#define OWNER 4711u
#define SLOT  1000000u

/* Of this kernel. test_platform_tests_inside wants none of them. */
static unsigned int not_tried;

static char dir[] = "/tmp/mayfly-volumes-XXXXXX", root[64];
static struct volumes v = {.ids_base = 900000};

static const char *below(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	return path;
}

/* 0 or -errno; *st: what the file server would see. */
static int open_as(
	uint32_t what, const char *path, const char *sub, uint32_t flags, struct stat *st)
{
	struct volume_ask a = {.op = PRIV_VOLUME,
		.what = what,
		.flags = flags,
		.slot_ids = SLOT,
		.path = path,
		.sub = sub};
	bool folder;
	int fd = -1, rc = volume_do(&v, &a, &fd, &folder);

	*st = (struct stat){0};
	if (rc == 0) {
		CHECK_INT(fstat(fd, st), 0);
		CHECK_INT(folder, S_ISDIR(st->st_mode));
		close(fd);
	}
	return rc;
}

static int host(const char *path, const char *sub, uint32_t flags)
{
	struct stat st;

	return open_as(PRIV_V_HOST, path, sub, flags, &st);
}

static void set_up(void)
{
	struct err e;

	REQUIRE(mkdtemp(dir) && chmod(dir, 0755) == 0);
	snprintf(root, sizeof(root), "%s/allowed", dir);
	REQUIRE(mkdir(root, 0755) == 0 && mkdir(below("data"), 0700) == 0 &&
		mkdir(below("data/sub"), 0700) == 0 && chown(below("data"), OWNER, OWNER) == 0);
	REQUIRE(close(creat(below("file"), 0600)) == 0 && mkfifo(below("fifo"), 0600) == 0);
	REQUIRE(mknod(below("null"), S_IFCHR | 0600, makedev(1, 3)) == 0 || errno == EPERM);
	REQUIRE(mknod(below("socket"), S_IFSOCK | 0600, 0) == 0);
	REQUIRE(symlink("/etc", below("etc")) == 0 && symlink("../..", below("up")) == 0 &&
		symlink("data", below("inside")) == 0 &&
		symlink("nowhere", below("dangling")) == 0 &&
		symlink("/etc", below("data/out")) == 0 &&
		symlink("../file", below("data/beside")) == 0);
	v.root[0] = root;
	v.nroots = 1;
	REQUIRE(volumes_open(&v, dir, &e) == 0);
}

static void ids_are_those_of_the_slot(void)
{
	struct stat st;

	CHECK_INT(open_as(PRIV_V_HOST, below("data"), "", 0, &st), 0);
	CHECK_INT(st.st_uid, SLOT);
	CHECK_INT(st.st_gid, SLOT);
	CHECK_INT(open_as(PRIV_V_HOST, below("file"), "", 0, &st), 0);
	CHECK(S_ISREG(st.st_mode));
}

static void sources_do_not_lead_out(void)
{
	char beside[80];

	CHECK_INT(host("/etc", "", 0), -EPERM);
	CHECK_INT(host(dir, "", 0), -EPERM);
	snprintf(beside, sizeof(beside), "%s2", root);
	CHECK_INT(host(beside, "", 0), -EPERM);
	CHECK_INT(host(root, "", 0), 0);
	CHECK_INT(host(below("etc"), "", 0), -EXDEV);
	CHECK_INT(host(below("up"), "", 0), -EXDEV);
	CHECK_INT(host(below("etc/ssl"), "", PRIV_V_MAKE), -EXDEV);
	CHECK_INT(host(below("inside"), "sub", 0), 0);
	/* a sub-path stays below its folder, although the operator's folder is larger */
	CHECK_INT(host(below("data"), "out", 0), -EXDEV);
	CHECK_INT(host(below("data"), "beside", 0), -EXDEV);
	CHECK_INT(host(below("data"), "out/new", PRIV_V_MAKE), -EXDEV);
}

/* The daemon's list may be narrower than the operator's. */
static int host_within(const char *path, const char *sub, const char *within)
{
	struct priv_msg m = {.op = PRIV_VOLUME, .what = PRIV_V_HOST};
	struct volume_ask a;
	char text[512];
	int n = snprintf(text, sizeof(text), "%s%c%s%c%s", path, 0, sub, 0, within), fd = -1, rc;
	bool folder;

	rc = volume_parse(&a, &m, text, (size_t)n + 1);
	a.slot_ids = SLOT;
	if (rc == 0)
		rc = volume_do(&v, &a, &fd, &folder);
	close_fd(&fd);
	return rc;
}

static void sources_do_not_leave_the_narrower_folder(void)
{
	char data[128], link[128], slash[130];

	snprintf(data, sizeof(data), "%s", below("data"));
	snprintf(link, sizeof(link), "%s", below("data/beside"));
	CHECK_INT(host(link, "", 0), 0); /* inside the operator's */
	CHECK_INT(host_within(link, "", data), -EXDEV);
	CHECK_INT(host_within(data, "beside", data), -EXDEV);
	CHECK_INT(host_within(below("data/sub"), "", data), 0);
	CHECK_INT(host_within(data, "sub", data), 0);
	CHECK_INT(host_within(data, "", root), 0);
	CHECK_INT(host_within(link, "", root), 0);
	CHECK_INT(host_within(link, "", "/"), 0);
	CHECK_INT(host_within(below("etc"), "", "/"), -EXDEV);
	CHECK_INT(host_within("/etc", "", "/"), -EPERM);
	/* it is not below */
	CHECK_INT(host_within(below("file"), "", data), -EINVAL);
	CHECK_INT(host_within(below("data2"), "", data), -EINVAL);
	snprintf(slash, sizeof(slash), "%s/", data);
	CHECK_INT(host_within(link, "", slash), -EINVAL);
}

static void only_folders_and_files(void)
{
	CHECK_INT(host(below("fifo"), "", 0), -EMEDIUMTYPE);
	CHECK_INT(host(below("socket"), "", 0), -EMEDIUMTYPE);
	if (access(below("null"), F_OK) == 0)
		CHECK_INT(host(below("null"), "", 0), -EMEDIUMTYPE);
	CHECK_INT(host(below("file"), "sub", 0), -ENOTDIR);
}

static _Atomic bool swapping;

/* "swap" is the folder and a link out of the allowed one, in turns. */
static void *swap_all_the_time(void *arg)
{
	char one[128], other[128];

	(void)arg;
	snprintf(one, sizeof(one), "%s/swap", root);
	snprintf(other, sizeof(other), "%s/swap2", root);
	while (swapping)
		renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE);
	return NULL;
}

/* Whatever is exchanged while the path is walked: the folder inside, or a refusal. */
static void a_source_that_is_swapped(void)
{
	char outside[128], path[256], made[256];
	struct stat inside, st;
	unsigned int opened = 0;
	pthread_t t;

	snprintf(outside, sizeof(outside), "%s/outside", dir);
	REQUIRE(mkdir(outside, 0777) == 0 && mkdir(below("swap"), 0755) == 0);
	REQUIRE(mkdir(below("swap/x"), 0755) == 0 && stat(below("swap/x"), &inside) == 0);
	snprintf(path, sizeof(path), "%s/x", outside);
	REQUIRE(mkdir(path, 0755) == 0 && symlink("../outside", below("swap2")) == 0);
	snprintf(path, sizeof(path), "%s/swap/x", root);
	swapping = true;
	REQUIRE(pthread_create(&t, NULL, swap_all_the_time, NULL) == 0);
	for (int i = 0; i < 300 || (!opened && i < 3000); i++) {
		int rc = open_as(PRIV_V_HOST, path, "", 0, &st);

		opened += rc == 0;
		if (rc == 0)
			CHECK(st.st_ino == inside.st_ino);
		else
			CHECK(rc == -EXDEV || rc == -EAGAIN);
		snprintf(made, sizeof(made), "%s/swap/new%d/deep", root, i);
		rc = open_as(PRIV_V_HOST, made, "", PRIV_V_MAKE, &st);
		CHECK(rc == 0 || rc == -EXDEV || rc == -EAGAIN);
	}
	swapping = false;
	pthread_join(t, NULL);
	CHECK(opened > 0);
	/* nothing was made outside: ".", ".." and x */
	REQUIRE(stat(outside, &st) == 0);
	CHECK_INT(st.st_nlink, 3);
}

/* A disk that is read-only, and one that is full: what is there can be opened, and nothing is made. */
static void disks_that_take_nothing(void)
{
	struct stat st;

	REQUIRE(mkdir(below("disk"), 0755) == 0);
	if (mount("none", below("disk"), "tmpfs", 0, "nr_inodes=2") < 0) {
		puts("not tried: no tmpfs can be mounted here");
		not_tried++;
		return;
	}
	REQUIRE(mkdir(below("disk/there"), 0755) == 0);
	CHECK_INT(host(below("disk/new"), "", PRIV_V_MAKE), -ENOSPC);
	CHECK_INT(host(below("disk/there"), "new/deep", PRIV_V_MAKE), -ENOSPC);
	REQUIRE(mount(NULL, below("disk"), NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	CHECK_INT(host(below("disk/new"), "", PRIV_V_MAKE), -EROFS);
	CHECK_INT(open_as(PRIV_V_HOST, below("disk/there"), "", PRIV_V_RO, &st), 0);
	REQUIRE(umount2(below("disk"), MNT_DETACH) == 0);
}

static struct {
	unsigned int answered, failed;
	int status;
} jobs;

static void on_done(void *arg, const struct priv_msg *m, int fd)
{
	(void)arg;
	close_fd(&fd);
	jobs.answered++;
	jobs.failed += m->status < 0;
	jobs.status = m->status;
}

static int start(struct volume_jobs *j, uint32_t what, const char *path)
{
	struct priv_msg m = {.op = PRIV_VOLUME, .what = what};
	struct volume_ask a = {
		.op = PRIV_VOLUME, .what = what, .slot_ids = SLOT, .path = path, .sub = ""};

	return volume_start(j, &a, &m);
}

/* A host folder whose file system does not answer: it takes some places, and a claim still has one. */
static void a_folder_that_hangs(void)
{
	static const char *const name = "fedcba9876543210fedcba9876543210";
	int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	struct volume_jobs *j;
	struct loop *l;
	char how[100], path[128];

	REQUIRE(mkdir(below("hung"), 0755) == 0);
	snprintf(path, sizeof(path), "%s", below("hung"));
	snprintf(how, sizeof(how), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
	if (fuse < 0 || mount("none", path, "fuse", MS_NOSUID | MS_NODEV, how) < 0) {
		puts("not tried: FUSE cannot be mounted here");
		not_tried++;
		close_fd(&fuse);
		return;
	}
	l = loop_create();
	j = l ? volume_jobs_create(l, &v, on_done, NULL) : NULL;
	REQUIRE(j);
	for (unsigned int i = 0; i < VOLUME_HOST_JOBS; i++)
		CHECK_INT(start(j, PRIV_V_HOST, path), 0);
	CHECK_INT(start(j, PRIV_V_HOST, path), -EAGAIN);
	CHECK_INT(start(j, PRIV_V_CLAIM, name), 0);
	for (int i = 0; i < 1000 && !jobs.answered; i++)
		loop_turn(l, 10);
	CHECK_INT(jobs.answered, 1);
	CHECK_INT(jobs.status, -ENOENT);
	CHECK_INT(volume_jobs_unanswered(j), VOLUME_HOST_JOBS);
	/* the file system's end is the end of their wait */
	close(fuse);
	for (int i = 0; i < 1000 && volume_jobs_unanswered(j); i++)
		loop_turn(l, 10);
	CHECK_INT(jobs.failed, VOLUME_HOST_JOBS + 1);
	umount2(path, MNT_DETACH);
}

static void missing_folders_are_made_as_their_parent(void)
{
	struct stat st;

	CHECK_INT(host(below("data/new"), "", 0), -ENOENT);
	CHECK_INT(host(below("data/new/deep"), "er/still", PRIV_V_MAKE), 0);
	REQUIRE(stat(below("data/new/deep/er/still"), &st) == 0);
	CHECK_INT(st.st_uid, OWNER);
	CHECK_INT(host(below("dangling"), "", PRIV_V_MAKE), -ENOENT);
	CHECK(access(below("nowhere"), F_OK) < 0);
}

static void claims(void)
{
	static const char *const name = "0123456789abcdef0123456789abcdef";
	struct volume_ask gone = {
		.op = PRIV_VOLUME_REMOVE, .what = PRIV_V_CLAIM, .path = name, .sub = ""};
	char path[128];
	struct stat st;
	bool folder;
	int fd = -1;

	CHECK_INT(open_as(PRIV_V_CLAIM, name, "", 0, &st), -ENOENT);
	CHECK_INT(open_as(PRIV_V_CLAIM, name, "", PRIV_V_MAKE, &st), 0);
	CHECK_INT(st.st_uid, SLOT);
	snprintf(path, sizeof(path), "%s/volumes/%s", dir, name);
	REQUIRE(stat(path, &st) == 0);
	CHECK_INT(st.st_uid, 900000);
	CHECK_INT(open_as(PRIV_V_CLAIM, name, "a/b", PRIV_V_MAKE, &st), 0);
	CHECK_INT(volume_do(&v, &gone, &fd, &folder), -ENOTEMPTY);
	snprintf(path, sizeof(path), "%s/volumes/%s/a/b", dir, name);
	for (int i = 0; i < 2; i++) {
		CHECK_INT(rmdir(path), 0);
		*strrchr(path, '/') = 0;
	}
	CHECK_INT(volume_do(&v, &gone, &fd, &folder), 0);
	CHECK_INT(volume_do(&v, &gone, &fd, &folder), 0);
}

static void tear_down(void)
{
	char cmd[100];

	close(v.claims_fd);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	CHECK_INT(system(cmd), 0);
}

static const struct test tests[] = {
	{"set_up", set_up},
	{"ids_are_those_of_the_slot", ids_are_those_of_the_slot},
	{"sources_do_not_lead_out", sources_do_not_lead_out},
	{"sources_do_not_leave_the_narrower_folder", sources_do_not_leave_the_narrower_folder},
	{"only_folders_and_files", only_folders_and_files},
	{"a_source_that_is_swapped", a_source_that_is_swapped},
	{"disks_that_take_nothing", disks_that_take_nothing},
	{"a_folder_that_hangs", a_folder_that_hangs},
	{"missing_folders_are_made_as_their_parent", missing_folders_are_made_as_their_parent},
	{"claims", claims},
	{"tear_down", tear_down},
};

int main(int argc, char **argv)
{
	int rc;

	if (geteuid() != 0) {
		puts("needs root: it copies mounts");
		return 77;
	}
	rc = test_main(argc, argv, tests, ARRAY_LEN(tests));
	if (rc == 0 && not_tried) {
		printf("passed, but for %u that this kernel cannot do (see above)\n", not_tried);
		return 77;
	}
	return rc;
}
