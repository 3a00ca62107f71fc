/* SPDX-License-Identifier: Apache-2.0
 *
 * io_max: the limit of a sandbox's disk traffic on a real disk and cgroup, by the helper's own functions, as root, where the kernel has the io
 * controller with throttling and /var/lib/mayfly is on a disk.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "priv/groups.h"

static char dir[300];

/* Four mebibytes past the page cache, by a process in that cgroup. */
static void write_in(int cgroup)
{
	void *block = aligned_alloc(4096, MIB(1));
	char path[400];
	int fd, procs, status = -1;
	pid_t pid;

	REQUIRE(block);
	memset(block, 7, MIB(1));
	snprintf(path, sizeof(path), "%s/other", dir);
	pid = fork();
	REQUIRE(pid >= 0);
	if (pid == 0) {
		procs = openat(cgroup, "cgroup.procs", O_WRONLY | O_CLOEXEC);
		fd = open(path, O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
		for (int i = 0; i < 4; i++)
			if (procs < 0 || (i == 0 && write(procs, "0", 1) != 1) ||
				pwrite(fd, block, MIB(1), (off_t)MIB(i)) != (ssize_t)MIB(1))
				_exit(1);
		_exit(0);
	}
	CHECK_INT(waitpid(pid, &status, 0), pid);
	CHECK_INT(status, 0);
	free(block);
}

static void writes_of_a_group_are_throttled(void)
{
	static const char at[] = "/sys/fs/cgroup/mayfly-io-max-test";
	static const struct priv_limits none = {0},
					some = {.io_bytes_max = MIB(1), .io_ops_max = 500};
	_cleanup_close_ int root = open("/sys/fs/cgroup", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_close_ int group = -1;
	uint64_t before;
	char name[24];

	REQUIRE(io_device_of(dir, name, sizeof(name)) && root >= 0);
	REQUIRE(mkdir(at, 0700) == 0);
	group = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(group >= 0);
	CHECK_INT(cgroup_io_limits(group, name, &some), 0);
	before = mono_ns();
	write_in(group);
	CHECK(mono_ns() - before > 2000000000ull); /* 4 MiB, 1 MiB a second */
	CHECK_INT(cgroup_io_limits(group, name, &none), 0);
	write_in(group);
	CHECK_INT(rmdir(at), 0);
}

static const struct test tests[] = {
	{"writes_of_a_group_are_throttled", writes_of_a_group_are_throttled},
};

int main(int argc, char **argv)
{
	int root = open("/sys/fs/cgroup", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;
	char name[24], path[400];

	snprintf(dir, sizeof(dir), "/var/lib/mayfly/io-max-XXXXXX");
	if (geteuid() != 0 || !mkdtemp(dir)) {
		printf("root and /var/lib/mayfly are needed\n");
		return 77;
	}
	if (root < 0 || !cgroup_has_io(root) || access("/sys/fs/cgroup/cgroup.type", F_OK) == 0 ||
		!io_device_of(dir, name, sizeof(name))) {
		printf("no io controller for %s here\n", dir);
		rmdir(dir);
		return 77;
	}
	rc = test_main(argc, argv, tests, ARRAY_LEN(tests));
	snprintf(path, sizeof(path), "%s/other", dir);
	unlink(path);
	rmdir(dir);
	return rc;
}
