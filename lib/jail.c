/* SPDX-License-Identifier: Apache-2.0
 *
 * jail.c: the stages in which a process gives up its privileges. Runs in mayfly-vmm, mayfly-net,
 * mayfly-broker, mayfly-fs and mayfly-image while they are still root; reads nothing hostile. Order
 * matters: what needs root (mounts, users) comes first, what cannot be undone (Landlock, seccomp)
 * last, and the descriptors before anything, so that a leaked one cannot outlive a failed stage.
 */
#include "lib/jail.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/landlock.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/capability.h>
#include <linux/mount.h>

#define NEW_ROOT                                                                                   \
	"/proc" /* any folder that surely exists: it is covered in our own mount namespace only */

/* Newer than the headers we may be built with. */
#ifndef LANDLOCK_ACCESS_FS_REFER
#define LANDLOCK_ACCESS_FS_REFER (1ULL << 13)
#endif
#define LL_FS_TRUNCATE    (1ULL << 14)
#define LL_FS_IOCTL_DEV   (1ULL << 15)
#define LL_NET_BIND       (1ULL << 0)
#define LL_NET_CONNECT    (1ULL << 1)
#define LL_SCOPE_ABSTRACT (1ULL << 0)
#define LL_SCOPE_SIGNAL   (1ULL << 1)
struct ll_attr {
	uint64_t fs, net, scoped;
};

/* 1. Descriptors. Should: keep 0 .. nfds-1. Mustn't: leave one open that nobody listed, whatever
 * started us. */
static int stage_descriptors(const struct jail_conf *c, struct err *e)
{
	if (syscall(SYS_close_range, c->nfds, ~0u, 0) < 0)
		return err_set(e, errno, "close_range");
	return 0;
}

/* 2. Session. Should: no terminal, no environment, no inherited umask. Mustn't: be killed with its
 * starter; sandboxes outlive the daemon. */
static int stage_session(struct err *e)
{
	if (setsid() < 0 && errno != EPERM) /* EPERM: it leads a group already */
		return err_set(e, errno, "setsid");
	umask(077);
	if (clearenv())
		return err_plain(e, ENOMEM, "clearenv failed");
	return 0;
}

static int clone_tree(int dirfd, const char *path, bool submounts)
{
	return (int)syscall(SYS_open_tree, dirfd, path,
		OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (submounts ? AT_RECURSIVE : 0) |
			(*path ? 0 : AT_EMPTY_PATH));
}

#define ONLY_READ (MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)
#define MAX_RO    8
struct trees {
	int folder[JAIL_FOLDERS_MAX], ro[MAX_RO];
	size_t n;
};

static void trees_init(struct trees *t)
{
	t->n = 0;
	memset(t->folder, -1, sizeof(t->folder));
	memset(t->ro, -1, sizeof(t->ro));
}

static void trees_fini(struct trees *t)
{
	for (size_t i = 0; i < JAIL_FOLDERS_MAX; i++)
		close_fd(&t->folder[i]);
	for (size_t i = 0; i < MAX_RO; i++)
		close_fd(&t->ro[i]);
}

/* Copies of what will be shown inside, taken while we are still in the namespace that their
 * descriptors belong to. */
static int collect_trees(const struct jail_conf *c, struct trees *t, struct err *e)
{
	for (; c->ro_paths && c->ro_paths[t->n]; t->n++) {
		if (t->n == MAX_RO)
			return err_plain(e, E2BIG, "too many read-only paths");
		t->ro[t->n] = clone_tree(AT_FDCWD, c->ro_paths[t->n], true);
		if (t->ro[t->n] < 0 && errno != ENOENT)
			return err_set(e, errno, "open_tree %s", c->ro_paths[t->n]);
	}
	if (c->nfolders > JAIL_FOLDERS_MAX)
		return err_plain(e, E2BIG, "too many folders");
	for (size_t i = 0; i < c->nfolders; i++) {
		const struct jail_folder *f = &c->folders[i];

		t->folder[i] = clone_tree(f->fd, "", !f->handle_only);
		/* a detached copy belongs to no namespace and cannot be copied again: it is mounted as it is */
		if (t->folder[i] < 0 && errno == EINVAL)
			t->folder[i] = fcntl(f->fd, F_DUPFD_CLOEXEC, 3);
		if (t->folder[i] < 0)
			return err_set(e, errno, "open_tree of %s", f->path);
	}
	return 0;
}

/* 3. Namespaces. Should: own mounts, IPC, host name, and network (unless keep_net). Mustn't: see or
 * signal anything of the host by them. */
static int leave_namespaces(int flags, struct err *e)
{
	if (unshare(flags) < 0)
		return err_set(e, errno, "unshare(%#x)", (unsigned int)flags);
	/* nothing we mount may travel back to the host */
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return err_set(e, errno, "make mounts private");
	return 0;
}

static int stage_namespaces(const struct jail_conf *c, struct trees *t, struct err *e)
{
	int flags = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | (c->keep_net ? 0 : CLONE_NEWNET);

	if (collect_trees(c, t, e) < 0)
		return -e->code;
	return leave_namespaces(flags, e);
}

static int make_parents(char *path, struct err *e)
{
	for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		/* whatever the umask: the jail's user goes through it */
		if (mkdir(path, 0755) < 0 ? errno != EEXIST : chmod(path, 0755) < 0)
			return err_set(e, errno, "mkdir %s", path);
		*p = '/';
	}
	return 0;
}

static int bind_tree(int tree, const char *path, uint64_t attributes, struct err *e)
{
	struct mount_attr at = {.attr_set = attributes};
	_cleanup_close_ int fd = -1;
	char to[300];
	struct stat st;

	if (fstat(tree, &st) < 0)
		return err_set(e, errno, "stat %s", path);
	if (S_ISCHR(st.st_mode))
		at.attr_set &= ~(uint64_t)MOUNT_ATTR_NODEV;
	if (snprintf(to, sizeof(to), NEW_ROOT "%s", path) >= (int)sizeof(to))
		return err_plain(e, ENAMETOOLONG, "path too long: %s", path);
	if (make_parents(to, e) < 0)
		return -e->code;
	if (S_ISDIR(st.st_mode))
		(void)!mkdir(to, 0755);
	else
		fd = open(to, O_CREAT | O_WRONLY | O_CLOEXEC, 0444);
	if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &at, sizeof(at)) < 0)
		return err_set(e, errno, "mount attributes of %s", path);
	if (syscall(SYS_move_mount, tree, "", AT_FDCWD, to, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		return err_set(e, errno, "show %s", path);
	return 0;
}

/* A /proc of this pid namespace alone, reachable through the descriptor only: no path leads to it.
 */
static int own_proc(int *fd, struct err *e)
{
	if (mkdir(NEW_ROOT "/proc", 0555) < 0)
		return err_set(e, errno, "mkdir proc");
	if (mount("proc", NEW_ROOT "/proc", "proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
		    "subset=pid") < 0)
		return err_set(e, errno, "mount proc");
	*fd = open(NEW_ROOT "/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (*fd < 0)
		return err_set(e, errno, "open proc");
	if (umount2(NEW_ROOT "/proc", MNT_DETACH) < 0 || rmdir(NEW_ROOT "/proc") < 0)
		return err_set(e, errno, "detach proc");
	return 0;
}

static int empty_root(struct err *e)
{
	if (mount("root", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
		    "mode=755,size=64k,nr_inodes=128") < 0)
		return err_set(e, errno, "mount the empty root");
	return 0;
}

static int enter_root(struct err *e)
{
	if (chdir(NEW_ROOT) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 ||
		umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return err_set(e, errno, "pivot_root");
	if (mount(NULL, "/", NULL,
		    MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		return err_set(e, errno, "make the root read-only");
	return 0;
}

/* 4. Root. Should: an empty, read-only root. Mustn't: any path of the host but those listed. */
static int stage_root(const struct jail_conf *c, struct trees *t, int *proc_fd, struct err *e)
{
	_cleanup_close_ int proc = -1;

	if (empty_root(e) < 0)
		return -e->code;
	if (c->want_proc && own_proc(&proc, e) < 0)
		return -e->code;
	for (size_t i = 0; i < t->n; i++)
		if (t->ro[i] >= 0 && bind_tree(t->ro[i], c->ro_paths[i], ONLY_READ, e) < 0)
			return -e->code;
	for (size_t i = 0; i < c->nfolders; i++) {
		const struct jail_folder *f = &c->folders[i];

		if (bind_tree(t->folder[i], f->path,
			    f->read_only ? ONLY_READ : ONLY_READ & ~(uint64_t)MOUNT_ATTR_RDONLY,
			    e) < 0)
			return -e->code;
	}
	if (enter_root(e) < 0)
		return -e->code;
	for (size_t i = 0; i < c->nfolders; i++) {
		const struct jail_folder *f = &c->folders[i];
		_cleanup_close_ int fd =
			open(f->path, (f->handle_only ? O_PATH : O_RDONLY) | O_CLOEXEC);

		if (fd < 0 || dup3(fd, f->fd, O_CLOEXEC) < 0)
			return err_set(e, errno, "open %s", f->path);
	}
	if (proc_fd)
		*proc_fd = take_fd(&proc);
	return 0;
}

int jail_root(const struct jail_show *show, size_t n, struct err *e)
{
	static const uint64_t attributes[] = {[JAIL_SHOW_READ] = ONLY_READ,
		[JAIL_SHOW_RUN] = ONLY_READ & ~(uint64_t)MOUNT_ATTR_NOEXEC,
		[JAIL_SHOW_WRITE] = ONLY_READ & ~(uint64_t)MOUNT_ATTR_RDONLY};
	int trees[JAIL_SHOW_MAX];

	if (n > JAIL_SHOW_MAX)
		return err_plain(e, E2BIG, "too many paths to show");
	/* the caller is a child that ends if this fails, which closes what is open */
	for (size_t i = 0; i < n; i++) {
		trees[i] = clone_tree(AT_FDCWD, show[i].path, true);
		if (trees[i] < 0 && errno != ENOENT)
			return err_set(e, errno, "open_tree %s", show[i].path);
	}
	if (leave_namespaces(CLONE_NEWNS | CLONE_NEWIPC, e) < 0 || empty_root(e) < 0)
		return -e->code;
	for (size_t i = 0; i < n; i++) {
		if (trees[i] >= 0 &&
			bind_tree(trees[i], show[i].path, attributes[show[i].how], e) < 0)
			return -e->code;
		close_fd(&trees[i]);
	}
	return enter_root(e);
}

static int set_limit(int what, rlim_t v, struct err *e)
{
	struct rlimit r = {v, v};

	return setrlimit(what, &r) < 0 ? err_set(e, errno, "setrlimit %d", what) : 0;
}

/* 5. Limits. Should: what the kind needs. Mustn't: cores (guest memory!), locked memory, message
 * queues. */
static int stage_limits(const struct jail_conf *c, struct err *e)
{
	/* 1, not 0: if core_pattern is a pipe, 1 is the only limit that the kernel obeys; if it
	 * names a file, both mean no core */
	if (set_limit(RLIMIT_CORE, 1, e) || set_limit(RLIMIT_MEMLOCK, 0, e) ||
		set_limit(RLIMIT_MSGQUEUE, 0, e) ||
		set_limit(RLIMIT_NOFILE, c->nofile ? c->nofile : 256, e))
		return -e->code;
	if (c->fsize_max && set_limit(RLIMIT_FSIZE, c->fsize_max, e))
		return -e->code;
	return 0;
}

/* The writer of a user namespace's maps: a child that is still root outside. It waits until its parent is in the new namespace. */
_noreturn_ static void write_maps(const struct jail_conf *c, int go)
{
	static const char *const files[] = {"uid_map", "gid_map"};
	char path[64], map[64], byte;
	int n = snprintf(map, sizeof(map), "0 %u %u\n", c->uid, c->nids);

	/* a writable /proc of this pid namespace, mounted nowhere */
	int fs = (int)syscall(SYS_fsopen, "proc", FSOPEN_CLOEXEC);
	int proc_fd = -1;

	if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
		proc_fd = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0);
	if (read(go, &byte, 1) != 1)
		_exit(1);
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		int fd;

		snprintf(path, sizeof(path), "%d/%s", (int)getppid(), files[i]);
		fd = openat(proc_fd, path, O_WRONLY | O_CLOEXEC);
		if (fd < 0 || write(fd, map, (size_t)n) != n)
			_exit(1);
		close(fd);
	}
	_exit(0);
}

/* Becomes user 0 of a user namespace whose ids are an unprivileged range outside. */
static int own_users(const struct jail_conf *c, struct err *e)
{
	int go[2], status = 0;
	pid_t writer;

	if (pipe2(go, O_CLOEXEC) < 0)
		return err_set(e, errno, "pipe");
	writer = fork();
	if (writer == 0) {
		close(go[1]);
		write_maps(c, go[0]);
	}
	close(go[0]);
	if (writer < 0 || unshare(CLONE_NEWUSER) < 0) {
		close(go[1]);
		return err_set(e, errno, "user namespace");
	}
	if (write(go[1], "", 1) != 1)
		return err_set(e, errno, "user namespace");
	close(go[1]);
	if (waitpid(writer, &status, 0) < 0 || status != 0)
		return err_plain(e, EPERM, "the ids of the user namespace could not be written");
	if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
		return err_set(e, errno, "become user 0 of the user namespace");
	return 0;
}

static int one_user(const struct jail_conf *c, struct err *e)
{
	if (setgroups(0, NULL) < 0 || setresgid(c->uid, c->uid, c->uid) < 0 ||
		setresuid(c->uid, c->uid, c->uid) < 0)
		return err_set(e, errno, "become user %u", c->uid);
	return 0;
}

/* 6. User and capabilities. Should: a user that nothing else has, or a namespace of users. Mustn't: any capability but those
 * listed, which hold for the namespace's ids only; any group; any way back. */
static int stage_user(const struct jail_conf *c, struct err *e)
{
	struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
	uint64_t keep = c->nids ? c->keep_caps : 0;
	struct __user_cap_data_struct caps[2] = {
		{.effective = (uint32_t)keep, .permitted = (uint32_t)keep},
		{.effective = (uint32_t)(keep >> 32), .permitted = (uint32_t)(keep >> 32)},
	};

	if (c->uid == 0)
		return err_plain(e, EINVAL, "the jail's user may not be root");
	if (c->nids && own_users(c, e) < 0)
		return -e->code;
	for (int cap = 0; cap < 64; cap++)
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno != EINVAL)
			return err_set(e, errno, "drop capability %d", cap);
	if (!c->nids && one_user(c, e) < 0)
		return -e->code;
	if (syscall(SYS_capset, &h, caps) < 0)
		return err_set(e, errno, "capset");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return err_set(e, errno, "no_new_privs");
	/* a snapshot's child reads its own pagemap. Without this, a process that changed its user
	 * may not read it. Nobody else has this user */
	if (prctl(PR_SET_DUMPABLE, c->want_proc ? 1 : 0, 0, 0, 0) < 0)
		return err_set(e, errno, "dumpable");
	if (!c->nids && setresuid(0, 0, 0) == 0)
		return err_plain(e, EPERM, "root could be had back");
	return 0;
}

int jail_landlock_abi(void)
{
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

	return abi < 0 ? 0 : (int)abi;
}

static int landlock_create(const struct ll_attr *a, int abi, struct err *e)
{
	int fd = (int)syscall(SYS_landlock_create_ruleset, a, abi >= 6 ? 24 : abi >= 4 ? 16 : 8, 0);

	return fd < 0 ? err_set(e, errno, "landlock_create_ruleset") : fd;
}

static int landlock_ruleset(uint64_t *fs, bool net, struct err *e)
{
	int abi = jail_landlock_abi();
	struct ll_attr a = {.fs = (1ULL << 13) - 1};

	if (abi == 0)
		return err_plain(e, EOPNOTSUPP,
			"this kernel has no Landlock (CONFIG_SECURITY_LANDLOCK, lsm=landlock)");
	if (abi >= 2)
		a.fs |= LANDLOCK_ACCESS_FS_REFER;
	if (abi >= 3)
		a.fs |= LL_FS_TRUNCATE;
	if (abi >= 5)
		a.fs |= LL_FS_IOCTL_DEV;
	if (abi >= 4 && !net)
		a.net = LL_NET_BIND | LL_NET_CONNECT;
	if (abi >= 6)
		a.scoped = LL_SCOPE_ABSTRACT | LL_SCOPE_SIGNAL;
	*fs = a.fs;
	return landlock_create(&a, abi, e);
}

static int landlock_allow(int rules, int fd, uint64_t access, struct err *e)
{
	struct landlock_path_beneath_attr a = {.allowed_access = access, .parent_fd = fd};
	struct stat st;

	/* the kernel refuses rights that only folders have in a rule for a file */
	if (fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode))
		a.allowed_access &= LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE |
				    LANDLOCK_ACCESS_FS_READ_FILE | LL_FS_TRUNCATE | LL_FS_IOCTL_DEV;
	if (syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &a, 0) < 0)
		return err_set(e, errno, "landlock_add_rule");
	return 0;
}

static int landlock_enforce(int rules, struct err *e)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		syscall(SYS_landlock_restrict_self, rules, 0) < 0)
		return err_set(e, errno, "landlock_restrict_self");
	return 0;
}

#define LL_READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)

int jail_landlock(const struct jail_path *paths, size_t n, bool net, struct err *e)
{
	uint64_t all;
	_cleanup_close_ int rules = landlock_ruleset(&all, net, e);

	if (rules < 0)
		return rules;
	for (size_t i = 0; i < n; i++) {
		_cleanup_close_ int fd = open(paths[i].path, O_PATH | O_CLOEXEC);

		if (fd < 0 && errno == ENOENT)
			continue;
		if (fd < 0)
			return err_set(e, errno, "open %s", paths[i].path);
		if (landlock_allow(rules, fd,
			    paths[i].writable ? all & ~LANDLOCK_ACCESS_FS_EXECUTE : LL_READ, e) < 0)
			return err_wrap(e, "%s", paths[i].path);
	}
	return landlock_enforce(rules, e);
}

int jail_landlock_tcp(struct err *e)
{
	/* A second set of rules refuses every move from one folder to another (EXDEV), even if it
	 * has no rules for files, unless it allows REFER. */
	const struct ll_attr a = {
		.fs = LANDLOCK_ACCESS_FS_REFER, .net = LL_NET_BIND | LL_NET_CONNECT};
	int abi = jail_landlock_abi();
	_cleanup_close_ int rules = -1, top = -1;

	if (abi < 4)
		return err_plain(e, EOPNOTSUPP, "Landlock of this kernel has no rules for TCP");
	rules = landlock_create(&a, abi, e);
	if (rules < 0)
		return rules;
	top = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (top < 0)
		return err_set(e, errno, "open /");
	if (landlock_allow(rules, top, LANDLOCK_ACCESS_FS_REFER, e) < 0)
		return -e->code;
	return landlock_enforce(rules, e);
}

/* 7. Landlock. Should: the listed folders, the listed read-only paths, its own /proc. Mustn't: any
 * other file, any TCP port without network, signals outwards. */
static int stage_landlock(const struct jail_conf *c, int proc_fd, uint32_t *missing, struct err *e)
{
	uint64_t all = 0;
	_cleanup_close_ int rules = landlock_ruleset(&all, c->keep_net, e);

	if (rules == -EOPNOTSUPP && c->allow_weaker) {
		*missing |= JAIL_NO_LANDLOCK;
		return 0;
	}
	if (rules < 0)
		return rules;
	for (size_t i = 0; i < c->nfolders; i++) {
		uint64_t access =
			c->folders[i].read_only ? LL_READ : all & ~LANDLOCK_ACCESS_FS_EXECUTE;

		if (landlock_allow(rules, c->folders[i].fd, access, e) < 0)
			return -e->code;
	}
	if (proc_fd >= 0 && landlock_allow(rules, proc_fd, LL_READ, e) < 0)
		return -e->code;
	for (size_t i = 0; c->ro_paths && c->ro_paths[i]; i++) {
		_cleanup_close_ int fd = open(c->ro_paths[i], O_PATH | O_CLOEXEC);

		if (fd >= 0 && landlock_allow(rules, fd, LL_READ, e) < 0)
			return -e->code;
	}
	return landlock_enforce(rules, e);
}

int jail_enter(const struct jail_conf *c, int *proc_fd, uint32_t *missing, struct err *e)
{
	_cleanup_(trees_fini) struct trees t;
	int proc = -1;

	trees_init(&t);
	*missing = 0;
	if (c->want_proc && !proc_fd)
		return err_plain(e, EINVAL, "want_proc without a place for it");
	if (stage_descriptors(c, e) < 0)
		return err_wrap(e, "jail stage 1 (descriptors)");
	if (stage_session(e) < 0)
		return err_wrap(e, "jail stage 2 (session)");
	if (stage_namespaces(c, &t, e) < 0)
		return err_wrap(e, "jail stage 3 (namespaces)");
	if (stage_root(c, &t, &proc, e) < 0)
		return err_wrap(e, "jail stage 4 (root)");
	if (stage_limits(c, e) < 0)
		return err_wrap(e, "jail stage 5 (limits)");
	if (stage_user(c, e) < 0)
		return err_wrap(e, "jail stage 6 (user)");
	if (stage_landlock(c, proc, missing, e) < 0)
		return err_wrap(e, "jail stage 7 (Landlock)");
	if (proc_fd)
		*proc_fd = proc;
	return 0;
}
