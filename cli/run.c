/* SPDX-License-Identifier: Apache-2.0
 *
 * run.c: runs other programs, reads and writes small files. `mayfly` only. Nothing untrusted comes here.
 */
#include "cli/run.h"

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

int run_program(const char *const argv[], struct buf *out, struct err *e)
{
	_cleanup_close_ int rd = -1, wr = -1;
	posix_spawn_file_actions_t fa;
	int p[2], status, rc;
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) < 0)
		return err_set(e, errno, "pipe");
	rd = p[0];
	wr = p[1];
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, wr, 1);
	posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
	rc = posix_spawnp(&pid, argv[0], &fa, NULL, (char *const *)(uintptr_t)argv, environ);
	posix_spawn_file_actions_destroy(&fa);
	if (rc)
		return err_set(e, rc, "%s", argv[0]);
	close_fd(&wr);
	for (;;) {
		uint8_t b[4096];
		ssize_t n = read(rd, b, sizeof(b));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		if (out)
			buf_put(out, b, (size_t)n);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return err_set(e, errno, "wait for %s", argv[0]);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return err_plain(e, EIO, "%s failed (%s %d)", argv[0],
			WIFEXITED(status) ? "exit code" : "signal",
			WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	return 0;
}

int file_read(const char *path, char *to, size_t cap)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t n = 0;

	if (fd < 0)
		return -errno;
	while (n < cap - 1) {
		ssize_t got = read(fd, to + n, cap - 1 - n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		n += (size_t)got;
	}
	if (n && to[n - 1] == '\n')
		n--;
	to[n] = 0;
	return 0;
}

int file_write(const char *path, const void *p, size_t n, unsigned mode)
{
	_cleanup_close_ int fd = -1;
	char tmp[PATH_MAX];
	int rc;

	if (snprintf(tmp, sizeof(tmp), "%s.new", path) >= (int)sizeof(tmp))
		return -ENAMETOOLONG;
	unlink(tmp);
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	rc = write_full(fd, p, n);
	if (rc < 0)
		return rc;
	return rename(tmp, path) < 0 ? -errno : 0;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	return remove(path);
}

int tree_remove(const char *path)
{
	if (nftw(path, remove_one, 32, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) < 0 && errno != ENOENT)
		return -errno;
	return 0;
}
