/* SPDX-License-Identifier: Apache-2.0
 *
 * host_limits.c: see host_limits.h. What a sandbox takes at most: 8 descriptors and 8 epoll watches
 * of the daemon; 64 open files of the host; 16 processes and threads (monitor, network process,
 * file server, children while they start); 4 cgroups (its own, and one for each process).
 */
#include "lib/host_limits.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static bool text_read(const char *path, char *text, size_t cap)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, cap - 1);

	text[n > 0 ? n : 0] = 0;
	return n > 0;
}

static bool number_read(const char *path, uint64_t *v)
{
	char text[64], *end;

	if (!text_read(path, text, sizeof(text)))
		return false;
	if (!strncmp(text, "max", 3)) {
		*v = UINT64_MAX;
		return true;
	}
	*v = strtoull(text, &end, 10);
	return end != text;
}

/* The hard limit: helper and daemon raise their own up to it. */
static bool files_read(const char *path, uint64_t *v)
{
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l) < 0)
		return false;
	*v = l.rlim_max == RLIM_INFINITY ? UINT64_MAX : (uint64_t)l.rlim_max;
	return true;
}

/* "32768 60999": how many local ports there are for outgoing connections. */
static bool ports_read(const char *path, uint64_t *v)
{
	unsigned int from, to;
	char text[64];

	if (!text_read(path, text, sizeof(text)) || sscanf(text, "%u %u", &from, &to) != 2 ||
		to < from)
		return false;
	*v = to - from + 1;
	return true;
}

static const struct {
	const char *name, *path, *knob;
	bool (*read)(const char *path, uint64_t *v);
	uint64_t each, fixed; /* for each sandbox; for everything else together */
} rows[] = {
	{"open files of a process", "", "LimitNOFILE= of mayfly-priv's unit, or ulimit -Hn",
		files_read, 8, 12000},
	{"open files of the host", "/proc/sys/fs/file-max", "sysctl fs.file-max", number_read, 64,
		20000},
	{"mappings of a process", "/proc/sys/vm/max_map_count", "sysctl vm.max_map_count",
		number_read, 0, 65530},
	{"process ids", "/proc/sys/kernel/pid_max", "sysctl kernel.pid_max", number_read, 16, 2000},
	{"threads", "/proc/sys/kernel/threads-max", "sysctl kernel.threads-max", number_read, 16,
		2000},
	{"cgroups", "/sys/fs/cgroup/cgroup.max.descendants",
		"/sys/fs/cgroup/cgroup.max.descendants", number_read, 4, 100},
	{"epoll watches of a user", "/proc/sys/fs/epoll/max_user_watches",
		"sysctl fs.epoll.max_user_watches", number_read, 8, 12000},
	{"ports for connections out", "/proc/sys/net/ipv4/ip_local_port_range",
		"the range of sysctl net.ipv4.ip_local_port_range", ports_read, 0, 16000},
};
static_assert(ARRAY_LEN(rows) == HOST_LIMITS, "a place for each");

size_t host_limits_read(struct host_limit l[static HOST_LIMITS], uint64_t sandboxes)
{
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		uint64_t have;

		/* skip a limit that this host does not show */
		if (!rows[i].read(rows[i].path, &have))
			continue;
		l[n++] = (struct host_limit){.name = rows[i].name,
			.knob = rows[i].knob,
			.have = have,
			.want = rows[i].each * sandboxes + rows[i].fixed};
	}
	return n;
}
