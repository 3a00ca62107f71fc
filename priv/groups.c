/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.c: leases, groups and leaves. mayfly-priv, root. Reads only what the kernel wrote in cgroupfs and procfs.
 */
#include "priv/groups.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "lib/log.h"
#include "lib/procfs.h"

#define CONTROLLERS "+cpu +memory +pids"

static int64_t read_number(int dir, const char *name, const char *key)
{
	char text[4096], *p;
	ssize_t n;
	_cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || (n = read(fd, text, sizeof(text) - 1)) <= 0)
		return -1;
	text[n] = 0;
	p = key ? strstr(text, key) : text;
	return p ? strtoll(p + (key ? strlen(key) : 0), NULL, 10) : -1;
}

static void group_name(char *to, size_t cap, uint32_t group)
{
	snprintf(to, cap, "g%u", group);
}

static void leaf_name(char *to, size_t cap, struct place at, uint32_t slot)
{
	if (at.flat)
		snprintf(to, cap, "s%u", slot);
	else
		snprintf(to, cap, "g%u/s%u", at.group, slot);
}

static int lease_open(const struct leases *t, struct place at, const char *name)
{
	int lease = at.lease < t->n ? t->l[at.lease].cgroup_fd : -1, fd;

	if (lease < 0)
		return -ENOENT;
	fd = openat(lease, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int group_open(const struct leases *t, struct place at)
{
	char name[16];

	/* In a flat place the group has one leaf of the same number, and no cgroup of its own. */
	group_name(name, sizeof(name), at.group);
	return at.flat ? leaf_open(t, at, at.group) : lease_open(t, at, name);
}

int leaf_open(const struct leases *t, struct place at, uint32_t slot)
{
	char name[32];

	leaf_name(name, sizeof(name), at, slot);
	return lease_open(t, at, name);
}

int cgroup_limits(int dir, const struct priv_limits *l, bool group)
{
	uint64_t pids = l->pids_max || group ? l->pids_max : 64;
	char text[64];
	int rc;

	snprintf(text, sizeof(text), l->cpu_max_us ? "%" PRIu64 " 100000" : "max 100000",
		l->cpu_max_us);
	if ((rc = file_put(dir, "cpu.max", text)) < 0)
		return rc;
	snprintf(text, sizeof(text), l->memory_max ? "%" PRIu64 : "max", l->memory_max);
	if ((rc = file_put(dir, "memory.max", text)) < 0)
		return rc;
	snprintf(text, sizeof(text), pids ? "%" PRIu64 : "max", pids);
	if ((rc = file_put(dir, "pids.max", text)) < 0)
		return rc;
	/* When the limit of a sandbox kills one of its processes, it kills all of them. When the limit of one
	 * process kills, only that leaf ends. */
	(void)file_put(dir, "memory.oom.group", "1");
	(void)file_put(dir, "memory.swap.max", "0");
	return 0;
}

/* ---- the io controller */

static size_t text_read(int dir, const char *path, char *to, size_t cap)
{
	_cleanup_close_ int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, to, cap - 1);

	to[MAX(n, 0)] = 0;
	return strcspn(to, "\n");
}

/* A partition has no limits of its own: its disk is one folder further up. */
bool io_device_of(const char *path, char *to, size_t cap)
{
	char at[80], text[24];
	struct stat st;
	bool part;
	size_t n;

	if (stat(path, &st) < 0)
		return false;
	snprintf(at, sizeof(at), "/sys/dev/block/%u:%u/partition", major(st.st_dev),
		minor(st.st_dev));
	part = access(at, F_OK) == 0;
	snprintf(at, sizeof(at), "/sys/dev/block/%u:%u/%s", major(st.st_dev), minor(st.st_dev),
		part ? "../dev" : "dev");
	n = text_read(AT_FDCWD, at, text, sizeof(text));
	if (!n || n >= cap)
		return false;
	snprintf(to, cap, "%.*s", (int)n, text);
	return true;
}

bool cgroup_has_io(int lease)
{
	char text[256];

	text_read(lease, "cgroup.subtree_control", text, sizeof(text));
	for (const char *p = text; (p = strstr(p, "io")); p++)
		if ((p == text || p[-1] == ' ') && (p[2] == ' ' || p[2] == '\n' || !p[2]))
			return true;
	return false;
}

static void io_number(char *to, size_t cap, uint64_t v)
{
	if (v)
		snprintf(to, cap, "%" PRIu64, v);
	else
		snprintf(to, cap, "max");
}

int cgroup_io_limits(int dir, const char *device, const struct priv_limits *l)
{
	char bytes[24], ops[24], text[160];
	uint64_t weight = l->io_weight ? l->io_weight : 100;
	int rc;

	io_number(bytes, sizeof(bytes), l->io_bytes_max);
	io_number(ops, sizeof(ops), l->io_ops_max);
	snprintf(text, sizeof(text), "%s rbps=%s wbps=%s riops=%s wiops=%s", device, bytes, bytes,
		ops, ops);
	rc = file_put(dir, "io.max", text);
	/* A kernel without throttling has no io.max: an error only if there are limits to set. */
	if (rc < 0 && (l->io_bytes_max || l->io_ops_max))
		return rc;
	snprintf(text, sizeof(text), "default %" PRIu64, weight);
	/* iocost; else bfq, which has a name of its own */
	if (file_put(dir, "io.weight", text) < 0)
		(void)file_put(dir, "io.bfq.weight", text);
	return 0;
}

static int group_make(int lease, uint32_t group)
{
	_cleanup_close_ int fd = -1;
	char name[16];

	group_name(name, sizeof(name), group);
	if (mkdirat(lease, name, 0755) < 0)
		return errno == EEXIST ? 0 : -errno;
	fd = openat(lease, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	(void)file_put(fd, "memory.oom.group", "1");
	(void)file_put(fd, "memory.swap.max", "0");
	return file_put(fd, "cgroup.subtree_control", CONTROLLERS);
}

int leaf_make(const struct leases *t, struct place at, uint32_t slot, const struct priv_limits *l)
{
	int lease = at.lease < t->n ? t->l[at.lease].cgroup_fd : -1, rc;
	_cleanup_close_ int fd = -1;
	char name[32];

	if (lease < 0)
		return -ENOENT;
	rc = group_make(lease, at.group);
	if (rc < 0)
		return rc;
	leaf_name(name, sizeof(name), at, slot);
	if (mkdirat(lease, name, 0755) < 0 && errno != EEXIST)
		return -errno;
	fd = leaf_open(t, at, slot);
	rc = fd < 0 ? fd : cgroup_limits(fd, l, false);
	return rc < 0 ? rc : take_fd(&fd);
}

void cgroup_usage(int fd, struct priv_usage *u)
{
	u->cpu_us = (uint64_t)MAX(0, read_number(fd, "cpu.stat", "usage_usec "));
	u->memory_bytes = (uint64_t)MAX(0, read_number(fd, "memory.current", NULL));
	u->memory_peak = (uint64_t)MAX(0, read_number(fd, "memory.peak", NULL));
	u->pids = (uint64_t)MAX(0, read_number(fd, "pids.current", NULL));
	u->oom_kills = (uint64_t)MAX(0, read_number(fd, "memory.events", "oom_kill "));
}

uint64_t cgroup_private_bytes(int dir)
{
	return (uint64_t)MAX(0, read_number(dir, "memory.stat", "anon "));
}

/* strtoll() makes 0 of "max". */
uint64_t cgroup_memory_limit(int dir)
{
	return (uint64_t)MAX(0, read_number(dir, "memory.max", NULL));
}

static int memory_limit_set(int dir, uint64_t bytes)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, bytes);
	return file_put(dir, "memory.max", text);
}

int cgroup_raise(int dir, uint64_t bytes)
{
	uint64_t limit = cgroup_memory_limit(dir);
	int rc = limit ? memory_limit_set(dir, limit + bytes) : 0;

	return rc ? rc : file_put(dir, "memory.oom.group", "0");
}

int cgroup_lower(int dir, uint64_t bytes)
{
	uint64_t limit = cgroup_memory_limit(dir);
	int rc = 0;

	if (limit && (limit <= bytes || cgroup_private_bytes(dir) > limit - bytes))
		return limit <= bytes ? -EINVAL : -EBUSY;
	if (limit)
		rc = memory_limit_set(dir, limit - bytes);
	return rc ? rc : file_put(dir, "memory.oom.group", "1");
}

/* The process ids of a cgroup, as many as fit. */
static int procs_read(int dir, char *text, size_t cap)
{
	_cleanup_close_ int fd = openat(dir, "cgroup.procs", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, cap - 1);

	if (n < 0)
		return -errno;
	/* an id that was cut would name another process */
	while (n == (ssize_t)cap - 1 && n > 0 && text[n - 1] != '\n')
		text[--n] = 0;
	text[n] = 0;
	return 0;
}

/* Is the process in the cgroup now? The caller has /proc/PID open: if it is, that descriptor belongs to a process of this cgroup, even if the
 * kernel gave the number again meanwhile. */
static bool is_in(int dir, long pid)
{
	char text[4096], *at = text;
	long other;

	if (procs_read(dir, text, sizeof(text)) < 0)
		return false;
	while ((other = strtol(at, &at, 10)) > 0)
		if (other == pid)
			return true;
	return false;
}

int cgroup_spare(int dir, int pid)
{
	char text[4096], *at = text;
	int rc = procs_read(dir, text, sizeof(text));
	long other;

	if (rc < 0)
		return rc;
	while ((other = strtol(at, &at, 10)) > 0) {
		_cleanup_close_ int proc = -1;
		char path[32];

		if (other == pid)
			continue;
		snprintf(path, sizeof(path), "/proc/%ld", other);
		proc = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		/* a process that has ended meanwhile needs nothing */
		if (proc >= 0 && is_in(dir, other))
			(void)file_put(proc, "oom_score_adj", "1000");
	}
	return 0;
}

int leaf_remove(const struct leases *t, struct place at, uint32_t slot)
{
	int lease = at.lease < t->n ? t->l[at.lease].cgroup_fd : -1;
	char name[32];

	if (lease < 0)
		return 0;
	leaf_name(name, sizeof(name), at, slot);
	/* rmdir fails while one process is left in it: that is the check */
	if (unlinkat(lease, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		return -errno;
	group_name(name, sizeof(name), at.group);
	/* fails while the group has another leaf */
	(void)unlinkat(lease, name, AT_REMOVEDIR);
	return 0;
}

/* The number after the letter, below n; n: the name is not one of ours. */
static uint32_t name_number(const char *name, char letter, uint32_t n)
{
	unsigned long v;
	char *end;

	if (name[0] != letter || name[1] < '0' || name[1] > '9')
		return n;
	v = strtoul(name + 1, &end, 10);
	return *end || v > n ? n : (uint32_t)v;
}

static DIR *dir_of(int fd)
{
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d && fd >= 0)
		close(fd);
	return d;
}

static void group_each(const struct leases *t, struct place at, uint32_t n,
	void (*fn)(void *arg, struct place at, uint32_t slot), void *arg)
{
	DIR *d = dir_of(group_open(t, at));
	const struct dirent *de;
	char name[16];

	while (d && (de = readdir(d))) {
		uint32_t slot = name_number(de->d_name, 's', n);

		if (slot < n)
			fn(arg, at, slot);
	}
	if (d)
		closedir(d);
	group_name(name, sizeof(name), at.group);
	(void)unlinkat(t->l[at.lease].cgroup_fd, name, AT_REMOVEDIR);
}

void leaves_each(const struct leases *t, uint32_t n,
	void (*fn)(void *arg, struct place at, uint32_t slot), void *arg)
{
	for (uint32_t lease = 0; lease < t->n; lease++) {
		DIR *d = dir_of(lease_open(t, (struct place){.lease = lease}, "."));
		const struct dirent *de;

		while (d && (de = readdir(d))) {
			uint32_t slot = name_number(de->d_name, 's', n),
				 group = name_number(de->d_name, 'g', n);

			if (slot < n)
				fn(arg, (struct place){lease, slot, true}, slot);
			if (group < n)
				group_each(t, (struct place){lease, group, false}, n, fn, arg);
		}
		if (d)
			closedir(d);
	}
}

/* ---- the table of leases */

static int find_own_group(char *to, size_t cap, struct err *e)
{
	char text[512], *p;
	struct statfs fs;
	ssize_t n;
	_cleanup_close_ int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || (n = read(fd, text, sizeof(text) - 1)) <= 0)
		return err_set(e, fd < 0 ? errno : EIO, "read /proc/self/cgroup");
	text[n] = 0;
	p = strstr(text, "0::/");
	if (!p || statfs("/sys/fs/cgroup", &fs) < 0 || fs.f_type != CGROUP2_SUPER_MAGIC)
		return err_plain(e, ENOENT,
			"/sys/fs/cgroup is not cgroup v2 (boot with "
			"systemd.unified_cgroup_hierarchy=1)");
	p[strcspn(p, "\n")] = 0;
	/* never the root cgroup itself: take one below it */
	snprintf(to, cap, "/sys/fs/cgroup%s", strcmp(p + 3, "/") == 0 ? "/mayfly" : p + 3);
	return 0;
}

static int enter_leaf(int base, const char *leaf)
{
	char path[64], pid[16];

	if (mkdirat(base, leaf, 0755) < 0 && errno != EEXIST)
		return -errno;
	snprintf(path, sizeof(path), "%s/cgroup.procs", leaf);
	snprintf(pid, sizeof(pid), "%d", getpid());
	return file_put(base, path, pid);
}

static int open_cgroup(const char *given, struct err *e)
{
	char path[600], parent[640];
	_cleanup_close_ int fd = -1;
	int rc;

	if (given[0])
		snprintf(path, sizeof(path), "%s", given);
	else if (find_own_group(path, sizeof(path), e) < 0)
		return -e->code;
	/* a helper that is started again by hand is in the leaf of the one before */
	if (strlen(path) > 5 && !strcmp(path + strlen(path) - 5, "/priv"))
		path[strlen(path) - 5] = 0;
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		return err_set(e, errno, "mkdir %s", path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, errno, "open %s", path);
	snprintf(parent, sizeof(parent), "%s/../cgroup.subtree_control", path);
	/* may fail in a cgroup that is not ours: the write below shows whether the controllers are there */
	(void)file_put(AT_FDCWD, parent, CONTROLLERS);
	(void)file_put(AT_FDCWD, parent, "+io");
	rc = file_put(fd, "cgroup.subtree_control", CONTROLLERS);
	/* a cgroup with processes of its own cannot pass controllers on: this process is one, so it moves to a leaf */
	if (rc == -EBUSY && (rc = enter_leaf(fd, "priv")) == 0)
		rc = file_put(fd, "cgroup.subtree_control", CONTROLLERS);
	if (rc < 0)
		return err_set(e, -rc,
			"cannot delegate cpu, memory and pids below %s (systemd: Delegate=yes)",
			path);
	/* separate from the others: a host without the io controller still gets those */
	(void)file_put(fd, "cgroup.subtree_control", "+io");
	return take_fd(&fd);
}

static bool lease_number(const char *text, const char *name, uint64_t *out)
{
	size_t n = strlen(name);
	char *end;

	if (strncmp(text, name, n) != 0 || text[n] < '0' || text[n] > '9')
		return false;
	*out = strtoull(text + n, &end, 10);
	return !*end;
}

int lease_parse(const char *text, char *path, size_t cap, struct priv_limits *l, struct err *e)
{
	_cleanup_free_ char *copy = strdup(text);
	char *save = NULL, *part = copy ? strtok_r(copy, ",", &save) : NULL;
	uint64_t millis = 0;

	*l = (struct priv_limits){0};
	if (!part || part[0] != '/' || strlen(part) >= cap)
		return err_plain(
			e, EINVAL, "lease \"%s\": give the absolute path of its cgroup", text);
	snprintf(path, cap, "%s", part);
	while ((part = strtok_r(NULL, ",", &save)))
		if (!lease_number(part, "memory=", &l->memory_max) &&
			!lease_number(part, "cpu=", &millis))
			return err_plain(e, EINVAL,
				"lease \"%s\": \"%s\" is neither memory=BYTES nor cpu=MILLIS", text,
				part);
	l->cpu_max_us = millis * 100;
	return 0;
}

/* Sets only what was asked for: the cgroup of a lease may be somebody else's, with limits of its own. No memory.oom.group:
 * one sandbox that runs out of memory must not end the others. */
static int lease_limits(int fd, const struct priv_limits *l)
{
	char text[64];
	int rc = 0;

	if (l->memory_max) {
		snprintf(text, sizeof(text), "%" PRIu64, l->memory_max);
		rc = file_put(fd, "memory.max", text);
	}
	if (rc == 0 && l->cpu_max_us) {
		snprintf(text, sizeof(text), "%" PRIu64 " 100000", l->cpu_max_us);
		rc = file_put(fd, "cpu.max", text);
	}
	return rc;
}

int leases_add(struct leases *t, const char *path, const struct priv_limits *l, struct err *e)
{
	struct err ce = {0};
	int fd, rc;

	if (t->n == LEASES_MAX)
		return err_plain(e, E2BIG, "more than %u leases", LEASES_MAX);
	fd = open_cgroup(path, &ce);
	if (fd < 0)
		log_warn("no cgroup limits: %s", ce.msg);
	else if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return err_set(e, errno,
			"another mayfly-priv uses this cgroup, and would kill our processes: "
			"choose another one with --cgroup");
	rc = fd < 0 ? 0 : lease_limits(fd, l);
	if (rc < 0)
		return err_set(e, -rc, "limits of the lease %s", path);
	t->l[t->n++] = (struct lease){fd < 0 ? -1 : fd, *l};
	return 0;
}
