/* SPDX-License-Identifier: Apache-2.0
 *
 * machine_state.c: names, folders, locks and the small state files of the appliances. Whether one
 * runs is asked of the lock that its QEMU holds, never of a file that a kill could leave behind.
 */
#include "cli/appliance/machine.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "lib/opt.h"
#include "cli/run.h"

int machine_root(char *to, size_t cap, struct err *e)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	int n;

	if (state && *state == '/')
		n = snprintf(to, cap, "%s/mayfly/machine", state);
	else if (home && *home == '/')
		n = snprintf(to, cap, "%s/.local/state/mayfly/machine", home);
	else
		return err_plain(
			e, ENOENT, "neither XDG_STATE_HOME nor HOME says where state may be kept");
	return n < (int)cap ? 0 : err_plain(e, ENAMETOOLONG, "the state folder's path is too long");
}

static bool is_label(const char *s)
{
	size_t n = strlen(s);

	return n > 0 && n <= 32 && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == n &&
	       s[0] != '-' && s[n - 1] != '-';
}

int machine_open(struct machine *m, const char *name, struct err *e)
{
	char root[PATH_MAX - 128];
	int rc = machine_root(root, sizeof(root), e);

	*m = (struct machine){.lock_fd = -1};
	if (rc < 0)
		return rc;
	if (!is_label(name))
		return err_plain(e, EINVAL,
			"'%s' is no name for a machine: a-z, 0-9 and - , at most 32", name);
	snprintf(m->name, sizeof(m->name), "%s", name);
	snprintf(m->dir, sizeof(m->dir), "%s/%s", root, name);
	return 0;
}

void machine_close(struct machine *m)
{
	close_fd(&m->lock_fd);
}

char *machine_path(const struct machine *m, const char *file, char to[static PATH_MAX])
{
	snprintf(to, PATH_MAX, "%s/%s", m->dir, file);
	return to;
}

bool machine_is_running(struct machine *m, bool peek)
{
	char path[PATH_MAX];

	if (m->lock_fd >= 0)
		return false;
	m->lock_fd = open(machine_path(m, "lock", path), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (m->lock_fd < 0)
		return false; /* no folder: it never was */
	if (flock(m->lock_fd, LOCK_EX | LOCK_NB) < 0) {
		close_fd(&m->lock_fd);
		return true;
	}
	if (peek)
		close_fd(&m->lock_fd);
	return false;
}

/* field 22 of /proc/PID/stat: with the pid it names one process for ever */
static int start_time_of(int pid, uint64_t *to)
{
	char path[64], line[1024], *p;
	int rc;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	rc = file_read(path, line, sizeof(line));
	if (rc < 0)
		return rc;
	p = strrchr(line, ')');
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	return p && sscanf(p, " %" SCNu64, to) == 1 ? 0 : -ESRCH;
}

int machine_pidfd(const struct machine *m, int *pid_out)
{
	char path[PATH_MAX], line[64];
	uint64_t pid, recorded, now;
	int fd, rc = file_read(machine_path(m, "pid", path), line, sizeof(line));

	if (rc < 0)
		return rc;
	if (sscanf(line, "%" SCNu64 " %" SCNu64, &pid, &recorded) != 2 || pid == 0 || pid > INT_MAX)
		return -ESRCH;
	fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
	if (fd < 0)
		return -errno;
	if (start_time_of((int)pid, &now) < 0 || now != recorded) {
		close(fd);
		return -ESRCH;
	}
	if (pid_out)
		*pid_out = (int)pid;
	return fd;
}

int machine_load(struct machine *m)
{
	char path[PATH_MAX], text[512];
	int rc = file_read(machine_path(m, "info", path), text, sizeof(text));

	if (rc < 0)
		return rc;
	if (sscanf(text,
		    "port %" SCNu64 " exec %" SCNu64 " memory %" SCNu64 " cpus %" SCNu64
		    " accel %7s",
		    &m->port, &m->exec_port, &m->memory_bytes, &m->cpus, m->accel) != 5)
		return -EINVAL;
	return 0;
}

int machine_save(const struct machine *m)
{
	char path[PATH_MAX], text[512];
	int n = snprintf(text, sizeof(text),
		"port %" PRIu64 "\nexec %" PRIu64 "\nmemory %" PRIu64 "\ncpus %" PRIu64
		"\naccel %s\n",
		m->port, m->exec_port, m->memory_bytes, m->cpus, m->accel);

	return file_write(machine_path(m, "info", path), text, (size_t)n, 0600);
}
