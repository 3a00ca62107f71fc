/* SPDX-License-Identifier: Apache-2.0
 *
 * spawn.c: jobs as plain children, for the command line and the tests. The child has the caller's
 * rights. So the daemon uses this only without a helper (--no-jail, for debugging). Otherwise it starts
 * jobs through mayfly-priv, which jails them.
 */
#include "images/store/obtain.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char program[4096];

static int child_fds(const int *fds, size_t nfds)
{
	int high[8];

	for (size_t i = 0; i < nfds; i++)
		if ((high[i] = fcntl(fds[i], F_DUPFD, 64)) < 0)
			return -errno;
	for (size_t i = 0; i < nfds; i++)
		if (dup2(high[i], 3 + (int)i) < 0)
			return -errno;
	return close_range(3 + (unsigned int)nfds, ~0u, 0) < 0 ? -errno : 0;
}

static int direct_spawn(void *arg, bool net, const int *fds, size_t nfds, struct err *e)
{
	char job_word[] = "--job", net_word[] = "--net";
	char *argv[] = {program, job_word, net ? net_word : NULL, NULL};
	pid_t pid;

	if (access(program, X_OK) < 0)
		return err_set(e, errno, "image job: %s", program);
	if (nfds > 8)
		return err_plain(e, EINVAL, "image job: %zu descriptors", nfds);
	pid = fork();
	if (pid < 0)
		return err_set(e, errno, "image job");
	if (pid == 0) {
		if (child_fds(fds, nfds) == 0)
			execv(program, argv);
		_exit(127);
	}
	return (int)pid;
}

static void direct_end(void *arg, int handle)
{
	/* it has answered, or is not wanted any more; its socket is closed */
	kill((pid_t)handle, SIGKILL);
	while (waitpid((pid_t)handle, NULL, 0) < 0 && errno == EINTR)
		;
}

static int direct_adopt(void *arg, int fd)
{
	return fchmod(fd, 0444) < 0 ? -errno : 0;
}

const struct image_spawner *image_spawner_direct(const char *path)
{
	static const struct image_spawner direct = {
		.spawn = direct_spawn, .end = direct_end, .adopt = direct_adopt};
	ssize_t n;
	char *slash;

	if (path) {
		snprintf(program, sizeof(program), "%s", path);
		return &direct;
	}
	n = readlink("/proc/self/exe", program, sizeof(program) - 33);
	program[n < 0 ? 0 : n] = 0;
	slash = strrchr(program, '/');
	str_copy(slash ? slash + 1 : program, 32, "mayfly-image"); /* there is room for it */
	if (access(program, X_OK) < 0) /* where `make install` puts it */
		str_copy(slash ? slash + 1 : program, 32, "../lib/mayfly/mayfly-image");
	return &direct;
}

static unsigned int base_flag(const char *word)
{
	return strcmp(word, "plain-http") == 0 ? JOB_REG_PLAIN_HTTP
	       : strcmp(word, "private") == 0  ? JOB_REG_PRIVATE_OK
					       : 0;
}

static int read_base(char *line, struct pull_base *b, struct err *e)
{
	char *save = NULL, *reg = strtok_r(line, " \t\r\n", &save),
	     *url = reg ? strtok_r(NULL, " \t\r\n", &save) : NULL, *word;

	*b = (struct pull_base){0};
	if (!reg || !url || strlen(reg) >= sizeof(b->registry) || strlen(url) >= sizeof(b->url))
		return err_plain(e, EINVAL, "not \"REGISTRY URL [plain-http] [private]\"");
	str_copy(b->registry, sizeof(b->registry), reg); /* both fit: measured above */
	str_copy(b->url, sizeof(b->url), url);
	while ((word = strtok_r(NULL, " \t\r\n", &save))) {
		if (!base_flag(word))
			return err_plain(e, EINVAL, "unknown word %.40s", word);
		b->flags |= base_flag(word);
	}
	if (strncmp(url, "https://", 8) != 0 &&
		!(strncmp(url, "http://", 7) == 0 && (b->flags & JOB_REG_PLAIN_HTTP)))
		return err_plain(
			e, EINVAL, "%.200s: neither https:// nor http:// with plain-http", url);
	if (b->url[strlen(url) - 1] == '/')
		b->url[strlen(url) - 1] = 0;
	return 0;
}

int registries_read(const char *path, struct pull_base *bases, unsigned int *n, struct err *e)
{
	FILE *f = fopen(path, "re");
	char line[1024];
	int r = 0;

	*n = 0;
	if (!f)
		return errno == ENOENT ? 0 : err_set(e, errno, "%s", path);
	for (unsigned int no = 1; r == 0 && fgets(line, sizeof(line), f); no++) {
		line[strcspn(line, "#")] = 0;
		if (strspn(line, " \t\r\n") == strlen(line))
			continue;
		r = *n == PULL_MAX_BASES
			    ? err_plain(e, E2BIG, "more than %d registries", PULL_MAX_BASES)
			    : read_base(line, &bases[(*n)++], e);
		if (r < 0)
			err_wrap(e, "%s:%u", path, no);
	}
	fclose(f);
	return r;
}
