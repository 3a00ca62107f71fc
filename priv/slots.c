/* SPDX-License-Identifier: Apache-2.0
 *
 * slots.c: the table of jails and their state files. mayfly-priv, root. Reads only files that root wrote (its
 * own folder, cgroupfs, procfs); slot numbers were checked by serve.c.
 */
#include "priv/slots.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "lib/log.h"
#include "lib/procfs.h"

struct slot_file {
	uint32_t magic, kind;
	int32_t pid;
	uint32_t uid;
	uint64_t start_time;
	/* not in the files of protocol 1, whose leaves are <lease 0>/s<slot> */
	uint32_t group, lease;
};
#define SLOT_FILE_MAGIC   0x32544c53u
#define SLOT_FILE_MAGIC_1 0x31544c53u
#define SLOT_FILE_BYTES_1 24u

/* A range of users for each kind: what an image job leaves behind never belongs to the user of a monitor. Both
 * kinds of image jobs share one, by which do_adopt() knows their files. */
#define UNUSED_RANGE 4 /* file servers have ranges of their own, from ids_base on */
static const uint32_t uid_range[PRIV_K_COUNT] = {[PRIV_K_MONITOR] = 0,
	[PRIV_K_NETWORK] = 1,
	[PRIV_K_IMAGE_BUILD] = 2,
	[PRIV_K_IMAGE_PULL] = 2,
	[PRIV_K_BROKER] = 3,
	[PRIV_K_FILES] = UNUSED_RANGE};

uint32_t slot_uid(const struct slots *t, uint32_t kind, uint32_t slot)
{
	if (kind == PRIV_K_FILES)
		return t->ids_base + (slot + 1) * SLOT_IDS;
	/* a kind without a row would have the users of the monitors */
	ASSERT(kind > 0 && kind < PRIV_K_COUNT && (kind == PRIV_K_MONITOR || uid_range[kind] > 0));
	return t->uid_base + uid_range[kind] * t->uid_width + slot;
}

static void slot_name(char *to, size_t cap, uint32_t slot)
{
	snprintf(to, cap, "s%u", slot);
}

int slot_used(
	struct slots *t, uint32_t slot, uint32_t kind, struct place at, int32_t pid, int pidfd)
{
	struct slot *s = &t->s[slot];
	struct slot_file f = {.magic = SLOT_FILE_MAGIC,
		.kind = kind,
		.pid = pid,
		.uid = slot_uid(t, kind, slot),
		.group = at.group,
		.lease = at.lease};
	_cleanup_close_ int fd = -1;
	char name[16];

	f.start_time = process_start_time(pid);
	*s = (struct slot){.kind = kind,
		.uid = f.uid,
		.pid = pid,
		.pidfd = pidfd,
		.at = at,
		.start_time = f.start_time};
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
	t->untold++;
}

int slot_kill(struct slots *t, uint32_t slot)
{
	struct slot *s = &t->s[slot];
	_cleanup_close_ int fd = leaf_open(&t->leases, s->at, slot);

	if (fd >= 0)
		(void)file_put(fd, "cgroup.kill", "1");
	/* pid 1 of its namespace takes all others with it, cgroups or not */
	if (s->pid && syscall(SYS_pidfd_send_signal, s->pidfd, SIGKILL, NULL, 0) < 0 &&
		errno != ESRCH)
		return -errno;
	return 0;
}

/* Does the stage folder still hold files of this slot's user? The user id is not given out again until the daemon has
 * adopted or removed them. A job cannot make folders in it. A folder that cannot be read may hold such files: true. */
static bool leaves_files(const struct slot *s)
{
	int fd = s->stage_fd ? openat(s->stage_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *de;
	bool left = false;
	struct stat st;

	if (!s->stage_fd)
		return false;
	if (!d) {
		log_limited(LOG_WARN, "the folder of user %u cannot be read: %s", s->uid,
			strerror(errno));
		close_fd(&fd);
		return true;
	}
	errno = 0;
	for (int n = 0; !left && (de = readdir(d)); n++, errno = 0) {
		bool there = fstatat(fd, de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0;

		left = n > 10000 || (there ? st.st_uid == s->uid : errno != ENOENT);
	}
	/* ENOENT: the folder was removed, and was empty then */
	if (!left && errno && errno != ENOENT)
		left = true;
	closedir(d);
	return left;
}

int slot_free(struct slots *t, uint32_t slot)
{
	struct slot *s = &t->s[slot];
	char name[16];
	int rc;

	if (s->pid || leaves_files(s))
		return -EBUSY;
	rc = leaf_remove(&t->leases, s->at, slot);
	if (rc < 0)
		return rc;
	slot_name(name, sizeof(name), slot);
	if (unlinkat(t->dir_fd, name, 0) < 0 && errno != ENOENT)
		return -errno;
	if (s->stage_fd)
		close(s->stage_fd);
	if (s->log_fd)
		close(s->log_fd);
	if (!s->told && t->untold)
		t->untold--;
	*s = (struct slot){.pidfd = -1, .told = true};
	return 0;
}

bool group_lease(const struct slots *t, uint32_t group, struct place *at)
{
	for (uint32_t i = 0; i < t->n; i++)
		if (t->s[i].kind && t->s[i].at.group == group) {
			*at = t->s[i].at;
			return true;
		}
	return false;
}

int group_kill(struct slots *t, uint32_t group)
{
	int rc = 0, one;

	for (uint32_t i = 0; i < t->n; i++)
		if (t->s[i].kind && t->s[i].at.group == group && (one = slot_kill(t, i)) < 0)
			rc = one;
	return rc;
}

/* false: there is no state file, or it is damaged */
static bool slot_file_read(const struct slots *t, uint32_t slot, struct slot_file *f)
{
	_cleanup_close_ int fd = -1;
	char name[16];

	*f = (struct slot_file){0};
	slot_name(name, sizeof(name), slot);
	fd = openat(t->dir_fd, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read_full(fd, f, SLOT_FILE_BYTES_1) < 0 || f->kind == 0 ||
		f->kind >= PRIV_K_COUNT)
		return false;
	if (f->magic == SLOT_FILE_MAGIC_1)
		return true;
	return f->magic == SLOT_FILE_MAGIC &&
	       read_full(fd, (char *)f + SLOT_FILE_BYTES_1, sizeof(*f) - SLOT_FILE_BYTES_1) == 0 &&
	       f->group < t->n && f->lease < MAX(t->leases.n, 1u);
}

/* The log's pipe that an earlier helper made: opens its reading end again through the process that has the other one. The process may have
 * something else there by now, so the file type is checked before it is opened. 0: none. */
static int log_find(int32_t pid)
{
	_cleanup_close_ int there = -1;
	char path[48];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/2", pid);
	there = open(path, O_PATH | O_CLOEXEC);
	if (there < 0 || fstat(there, &st) < 0 || !S_ISFIFO(st.st_mode))
		return 0;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", there);
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	return MAX(fd, 0);
}

static void slot_take_over(struct slots *t, uint32_t slot)
{
	struct slot *s = &t->s[slot];
	struct slot_file f;
	char name[16];

	slot_name(name, sizeof(name), slot);
	if (!slot_file_read(t, slot, &f)) {
		/* killed before or while the file was written: leaves_each finds what was started */
		(void)unlinkat(t->dir_fd, name, 0);
		return;
	}
	*s = (struct slot){.kind = f.kind,
		.uid = slot_uid(t, f.kind, slot),
		.pidfd = -1,
		.wait_status = -1,
		.at = {f.lease, f.group, false}};
	if (f.magic == SLOT_FILE_MAGIC_1)
		s->at = (struct place){0, slot, true};
	if (f.pid > 0 && f.start_time && process_start_time(f.pid) == f.start_time)
		s->pidfd = (int)syscall(SYS_pidfd_open, f.pid, 0);
	/* asked again now that the pidfd is open: only now is it sure that the number means this process */
	if (s->pidfd >= 0 && process_start_time(f.pid) == f.start_time) {
		s->pid = f.pid;
		s->start_time = f.start_time;
		s->log_fd = log_find(s->pid);
		log_info("slot %u: took over process %d", slot, s->pid);
		return;
	}
	close_fd(&s->pidfd);
	(void)slot_kill(t, slot);
}

/* For a leaf without a state file: its helper was killed after it had started the process and before it wrote the file. */
static void leaf_found(void *arg, struct place at, uint32_t slot)
{
	struct slots *t = arg;
	struct slot *s = &t->s[slot];

	if (s->kind && s->at.lease == at.lease && s->at.group == at.group && s->at.flat == at.flat)
		return;
	if (leaf_remove(&t->leases, at, slot) == 0)
		return;
	if (s->kind) {
		log_error("slot %u has a second leaf in group %u", slot, at.group);
		return;
	}
	log_warn("slot %u: no readable state file; its processes are killed", slot);
	*s = (struct slot){.kind = PRIV_K_MONITOR,
		.uid = slot_uid(t, PRIV_K_MONITOR, slot),
		.pidfd = -1,
		.wait_status = -1,
		.at = at};
	(void)slot_kill(t, slot);
}

int slots_alloc(struct slots *t, uint32_t n, uint32_t uid_base, uint32_t uid_width)
{
	t->n = n;
	t->uid_base = uid_base;
	t->uid_width = uid_width;
	t->untold = 0;
	t->s = calloc(n, sizeof(*t->s));
	for (uint32_t i = 0; t->s && i < n; i++)
		t->s[i] = (struct slot){.pidfd = -1, .told = true};
	return t->s ? 0 : -ENOMEM;
}

int slots_take_over(struct slots *t, const char *dir, struct err *e)
{
	struct stat st;

	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return err_set(e, errno, "mkdir %s", dir);
	t->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (t->dir_fd < 0 || fstat(t->dir_fd, &st) < 0)
		return err_set(e, errno, "open %s", dir);
	if (st.st_uid != geteuid() || (st.st_mode & 022))
		return err_plain(e, EPERM,
			"%s does not belong to root, or others may write to it: give another "
			"--run-dir",
			dir);
	for (uint32_t i = 0; i < t->n; i++)
		slot_take_over(t, i);
	leaves_each(&t->leases, t->n, leaf_found, t);
	return 0;
}
