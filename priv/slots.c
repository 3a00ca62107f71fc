/* SPDX-License-Identifier: Apache-2.0
 *
 * slots.c: the table of jails, their cgroups and their state files. mayfly-priv, root. Reads only files that root wrote (its own folder,
 * cgroupfs, procfs); slot numbers were checked by serve.c.
 */
#include "priv/slots.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "lib/log.h"
#include "lib/procfs.h"

struct slot_file {
	uint32_t magic, kind;
	int32_t pid;
	uint32_t uid;
	uint64_t start_time;
};
#define SLOT_FILE_MAGIC 0x31544c53u

uint32_t slot_uid(const struct slots *t, uint32_t kind, uint32_t slot)
{
	/* a range per kind: what an image job leaves behind never belongs to the user of a monitor
	 */
	uint32_t range = kind == PRIV_K_VMM ? 0 : (kind == PRIV_K_NET ? 1 : 2);

	return t->uid_base + range * PRIV_MAX_SLOTS + slot;
}

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

static void slot_name(char *to, size_t cap, uint32_t slot)
{
	snprintf(to, cap, "s%u", slot);
}

static int open_group(struct slots *t, uint32_t slot)
{
	char name[16];
	int fd;

	if (t->cgroup_fd < 0)
		return -ENOENT;
	slot_name(name, sizeof(name), slot);
	fd = openat(t->cgroup_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int put_limits(int dir, const struct priv_limits *l)
{
	char text[64];
	int rc;

	snprintf(text, sizeof(text), l->cpu_max_us ? "%" PRIu64 " 100000" : "max 100000",
		l->cpu_max_us);
	if ((rc = file_put(dir, "cpu.max", text)) < 0)
		return rc;
	snprintf(text, sizeof(text), l->memory_max ? "%" PRIu64 : "max", l->memory_max);
	if ((rc = file_put(dir, "memory.max", text)) < 0)
		return rc;
	snprintf(text, sizeof(text), "%" PRIu64, l->pids_max ? l->pids_max : 64);
	if ((rc = file_put(dir, "pids.max", text)) < 0)
		return rc;
	/* one death in the group is the death of the sandbox: never leave half of it */
	(void)file_put(dir, "memory.oom.group", "1");
	(void)file_put(dir, "memory.swap.max", "0");
	return 0;
}

int slot_cgroup_make(struct slots *t, uint32_t slot, const struct priv_limits *l)
{
	_cleanup_close_ int fd = -1;
	char name[16];
	int rc;

	if (t->cgroup_fd < 0)
		return -ENOENT;
	slot_name(name, sizeof(name), slot);
	if (mkdirat(t->cgroup_fd, name, 0755) < 0 && errno != EEXIST)
		return -errno;
	fd = open_group(t, slot);
	if (fd < 0)
		return fd;
	rc = put_limits(fd, l);
	return rc < 0 ? rc : take_fd(&fd);
}

int slot_cgroup_limits(struct slots *t, uint32_t slot, const struct priv_limits *l)
{
	_cleanup_close_ int fd = open_group(t, slot);

	return fd < 0 ? fd : put_limits(fd, l);
}

int slot_usage(struct slots *t, uint32_t slot, struct priv_usage *u)
{
	_cleanup_close_ int fd = open_group(t, slot);

	if (fd < 0)
		return fd;
	u->cpu_us = (uint64_t)MAX(0, read_number(fd, "cpu.stat", "usage_usec "));
	u->memory_bytes = (uint64_t)MAX(0, read_number(fd, "memory.current", NULL));
	u->memory_peak = (uint64_t)MAX(0, read_number(fd, "memory.peak", NULL));
	u->pids = (uint64_t)MAX(0, read_number(fd, "pids.current", NULL));
	u->oom_kills = (uint64_t)MAX(0, read_number(fd, "memory.events", "oom_kill "));
	return 0;
}

int slot_used(struct slots *t, uint32_t slot, uint32_t kind, int32_t pid, int pidfd)
{
	struct slot *s = &t->s[slot];
	struct slot_file f = {
		.magic = SLOT_FILE_MAGIC, .kind = kind, .pid = pid, .uid = slot_uid(t, kind, slot)};
	_cleanup_close_ int fd = -1;
	char name[16];

	f.start_time = process_start_time(pid);
	*s = (struct slot){
		.kind = kind, .uid = f.uid, .pid = pid, .pidfd = pidfd, .start_time = f.start_time};
	slot_name(name, sizeof(name), slot);
	fd = openat(t->dir_fd, name, O_CREAT | O_TRUNC | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	return write_full(fd, &f, sizeof(f));
}

void slot_ended(struct slots *t, uint32_t slot, int32_t wait_status)
{
	struct slot *s = &t->s[slot];

	watch_remove(s->watch);
	s->watch = NULL;
	close_fd(&s->pidfd);
	s->pid = 0;
	s->wait_status = wait_status;
	s->told = false;
}

int slot_kill(struct slots *t, uint32_t slot)
{
	struct slot *s = &t->s[slot];
	_cleanup_close_ int fd = open_group(t, slot);

	if (fd >= 0)
		(void)file_put(fd, "cgroup.kill", "1");
	/* pid 1 of its namespace takes all others with it, cgroups or not */
	if (s->pid && syscall(SYS_pidfd_send_signal, s->pidfd, SIGKILL, NULL, 0) < 0 &&
		errno != ESRCH)
		return -errno;
	return 0;
}

/* Nobody else becomes their user until the daemon has adopted or removed them. A job can make no
 * folders in its own. */
static bool leaves_files(const struct slot *s)
{
	int fd = s->stage_fd ? openat(s->stage_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *de;
	bool left = false;
	struct stat st;

	for (int n = 0; d && !left && (de = readdir(d)); n++)
		left = n > 10000 || (fstatat(fd, de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
					    st.st_uid == s->uid);
	if (d)
		closedir(d);
	return left;
}

int slot_free(struct slots *t, uint32_t slot)
{
	struct slot *s = &t->s[slot];
	char name[16];

	if (s->pid || leaves_files(s))
		return -EBUSY;
	slot_name(name, sizeof(name), slot);
	/* rmdir fails while one process is left in it: that is the check */
	if (t->cgroup_fd >= 0 && unlinkat(t->cgroup_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		return errno == EBUSY ? -EBUSY : -errno;
	if (unlinkat(t->dir_fd, name, 0) < 0 && errno != ENOENT)
		return -errno;
	if (s->stage_fd)
		close(s->stage_fd);
	*s = (struct slot){.pidfd = -1};
	return 0;
}

static void take_over(struct slots *t, uint32_t slot)
{
	struct slot *s = &t->s[slot];
	struct slot_file f;
	_cleanup_close_ int fd = -1;
	char name[16];

	slot_name(name, sizeof(name), slot);
	fd = openat(t->dir_fd, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && (t->cgroup_fd < 0 || unlinkat(t->cgroup_fd, name, AT_REMOVEDIR) == 0 ||
			      errno == ENOENT))
		return;
	if (read_full(fd, &f, sizeof(f)) < 0 || f.magic != SLOT_FILE_MAGIC || f.kind == 0 ||
		f.kind >= PRIV_K_COUNT) {
		/* killed before or while writing it: whatever was started is in the cgroup */
		log_warn("slot %u: no readable state file; its processes are killed", slot);
		f = (struct slot_file){.kind = PRIV_K_VMM};
	}
	*s = (struct slot){
		.kind = f.kind, .uid = slot_uid(t, f.kind, slot), .pidfd = -1, .wait_status = -1};
	if (f.pid > 0 && f.start_time && process_start_time(f.pid) == f.start_time)
		s->pidfd = (int)syscall(SYS_pidfd_open, f.pid, 0);
	/* asked again with the pidfd in hand: only now is the number known to mean this process */
	if (s->pidfd >= 0 && process_start_time(f.pid) == f.start_time) {
		s->pid = f.pid;
		s->start_time = f.start_time;
		log_info("slot %u: took over process %d", slot, s->pid);
		return;
	}
	close_fd(&s->pidfd);
	(void)slot_kill(t, slot);
}

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
	/* the root group is nobody's: take one below it */
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
	static const char controllers[] = "+cpu +memory +pids";
	char path[600], parent[640];
	_cleanup_close_ int fd = -1;
	int rc;

	if (given[0])
		snprintf(path, sizeof(path), "%s", given);
	else if (find_own_group(path, sizeof(path), e) < 0)
		return -e->code;
	/* a helper that restarts by hand finds itself in its own leaf */
	if (strlen(path) > 5 && !strcmp(path + strlen(path) - 5, "/priv"))
		path[strlen(path) - 5] = 0;
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		return err_set(e, errno, "mkdir %s", path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, errno, "open %s", path);
	snprintf(parent, sizeof(parent), "%s/../cgroup.subtree_control", path);
	/* fails where it is given already, or not ours: the next line tells */
	(void)file_put(AT_FDCWD, parent, controllers);
	rc = file_put(fd, "cgroup.subtree_control", controllers);
	/* a group with processes of its own gives nothing to those below it: we are one of them */
	if (rc == -EBUSY && (rc = enter_leaf(fd, "priv")) == 0)
		rc = file_put(fd, "cgroup.subtree_control", controllers);
	if (rc < 0)
		return err_set(e, -rc,
			"delegate cpu, memory and pids below %s (systemd: Delegate=yes)", path);
	return take_fd(&fd);
}

int slots_init(struct slots *t, uint32_t n, uint32_t uid_base, const char *dir, const char *cgroup,
	struct err *e)
{
	struct err ce = {0};
	struct stat st;

	t->n = n;
	t->uid_base = uid_base;
	for (uint32_t i = 0; i < PRIV_MAX_SLOTS; i++)
		t->s[i] = (struct slot){.pidfd = -1};
	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return err_set(e, errno, "mkdir %s", dir);
	t->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (t->dir_fd < 0 || fstat(t->dir_fd, &st) < 0)
		return err_set(e, errno, "open %s", dir);
	if (st.st_uid != geteuid() || (st.st_mode & 022))
		return err_plain(e, EPERM, "%s is not root's alone: another --run-dir", dir);
	t->cgroup_fd = open_cgroup(cgroup, &ce);
	if (t->cgroup_fd < 0)
		log_warn("no cgroup limits: %s", ce.msg);
	else if (flock(t->cgroup_fd, LOCK_EX | LOCK_NB) < 0)
		return err_set(e, errno,
			"another mayfly-priv has this cgroup, its kill of a slot would be ours: "
			"--cgroup keeps two apart");
	for (uint32_t i = 0; i < n; i++)
		take_over(t, i);
	return 0;
}
