/* SPDX-License-Identifier: Apache-2.0
 *
 * isolate_view.c: the file system that an isolated session sees. Runs in the session's first process, which is root in mount, pid, UTS, IPC
 * and cgroup namespaces of its own, before any program of the image runs there. The sandbox's files are hostile to the session's walls: any path
 * may be a link, and may become one at any time. So each path is resolved once, by openat2 inside a root and without magic links, and only the
 * descriptor that came out is used afterwards.
 *
 *   /               the sandbox's root with all its mounts, read-only, no devices, no set-id
 *   /proc /dev /run new; /sys read-only; /tmp new (strict) or the sandbox's (balanced)
 *   workspace, binds, extra writable paths: the request's list, in its order
 *   hidden          storage of all sessions, the file of environment variables, the kernel's files that tell too much
 */
#include "agent/isolate_conf.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>

#include "lib/log.h"

/* numbers and values of the kernel's: libc's headers of older distributions lack them, newer ones clash with the kernel's */
#define NR_OPEN_TREE     428
#define NR_MOVE_MOUNT    429
#define NR_OPENAT2       437
#define NR_MOUNT_SETATTR 442
#define TREE_CLONE       1
#define TREE_CLOEXEC     O_CLOEXEC
#define TREE_RECURSIVE   0x8000
#define TREE_EMPTY_PATH  0x1000
#define MOVE_F_EMPTY     0x04
#define MOVE_T_EMPTY     0x40
#define ATTR_RDONLY      0x01
#define ATTR_NOSUID      0x02
#define ATTR_NODEV       0x04

struct view_attr {
	uint64_t set, clear, propagation, userns_fd;
};

static int in_root(int root, const char *path, int flags)
{
	struct open_how how = {.flags = (uint64_t)flags | O_CLOEXEC,
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
	long fd = syscall(NR_OPENAT2, root, path, &how, sizeof(how));

	return fd < 0 ? -errno : (int)fd;
}

static int tree_clone(int fd)
{
	long t = syscall(
		NR_OPEN_TREE, fd, "", TREE_CLONE | TREE_CLOEXEC | TREE_EMPTY_PATH | TREE_RECURSIVE);

	return t < 0 ? -errno : (int)t;
}

static int tree_attr(int tree, uint64_t set)
{
	struct view_attr a = {.set = set};

	return syscall(NR_MOUNT_SETATTR, tree, "", TREE_EMPTY_PATH | TREE_RECURSIVE, &a,
		       sizeof(a)) < 0
		       ? -errno
		       : 0;
}

static int tree_move(int tree, int to)
{
	return syscall(NR_MOVE_MOUNT, tree, "", to, "", MOVE_F_EMPTY | MOVE_T_EMPTY) < 0 ? -errno
											 : 0;
}

/* Bind-mounts what `from` names over what `to` names. */
static int bind_fd(int from, int to, uint64_t attr)
{
	_cleanup_close_ int tree = tree_clone(from);
	int rc = tree < 0 ? tree : tree_attr(tree, attr);

	return rc < 0 ? rc : tree_move(tree, to);
}

static int mount_fd(int to, const char *type, unsigned long flags, const char *data)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", to);
	return mount(type, path, type, flags, data) < 0 ? -errno : 0;
}

static int mount_in(struct iso_view *v, const char *dir, const char *type, unsigned long flags,
	const char *data)
{
	_cleanup_close_ int to = in_root(v->root, dir, O_PATH | O_DIRECTORY);
	int rc = to < 0 ? to : mount_fd(to, type, flags, data);

	return rc < 0 ? err_set(v->e, -rc, "%s in the session", dir) : 0;
}

/* The whole root, read-only, at DIR/root. */
static int make_root(struct iso_view *v)
{
	_cleanup_close_ int at = -1, tree = -1;
	char path[600];
	int rc;

	snprintf(path, sizeof(path), "%s/root", v->dir);
	v->old = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	at = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (v->old < 0 || at < 0)
		return err_set(v->e, errno, "%s", path);
	tree = tree_clone(v->old);
	rc = tree < 0 ? tree : tree_attr(tree, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV);
	if (rc == 0)
		rc = tree_move(tree, at);
	if (rc < 0)
		return err_set(v->e, -rc, "the read-only root");
	v->root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return v->root < 0 ? err_set(v->e, errno, "%s", path) : 0;
}

/* Makes a path read-only, or hides it. A path that does not exist is fine. */
static int guard(struct iso_view *v, const char *path, bool hide)
{
	_cleanup_close_ int at = in_root(v->root, path, O_PATH), null = -1;
	struct stat st;
	int rc;

	if (at == -ENOENT)
		return 0;
	if (at < 0)
		rc = at;
	else if (!hide)
		rc = bind_fd(at, at, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV);
	else if (fstat(at, &st) == 0 && S_ISDIR(st.st_mode))
		rc = mount_fd(at, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
			"size=4k,nr_inodes=2,mode=0555");
	else
		rc = (null = in_root(v->root, "/dev/null", O_PATH)) < 0 ? null
									: bind_fd(null, at, 0);
	return rc < 0 ? err_set(v->e, -rc, "guarding %s", path) : 0;
}

static int make_proc(struct iso_view *v)
{
	/* files of uid 0 that need no capability to be written: core_pattern would run a program outside */
	static const struct {
		const char *path;
		bool hide;
	} rows[] = {{"/proc/sys", false}, {"/proc/sysrq-trigger", false}, {"/proc/irq", false},
		{"/proc/bus", false}, {"/proc/fs", false}, {"/proc/driver", false},
		{"/proc/kcore", true}, {"/proc/keys", true}, {"/proc/timer_list", true},
		{"/proc/sched_debug", true}, {"/proc/kmsg", true}, {"/proc/config.gz", true},
		{"/proc/acpi", true}, {"/proc/scsi", true}, {"/proc/latency_stats", true},
		{"/proc/kpagecount", true}, {"/proc/kpageflags", true}, {"/proc/kpagecgroup", true},
		{"/sys/firmware", true}, {"/sys/kernel/debug", true},
		{"/sys/kernel/tracing", true}};
	int rc = mount_in(v, "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);

	for (size_t i = 0; i < ARRAY_LEN(rows) && rc == 0; i++)
		rc = guard(v, rows[i].path, rows[i].hide);
	return rc;
}

/* Mounts cgroup2, which shows the session's own part of the hierarchy only. guard() puts an empty
 * file system there before, because cgroup2 cannot be mounted onto itself. If the mount fails, the
 * session sees the empty one. */
static int make_cgroup(struct iso_view *v)
{
	_cleanup_close_ int at = -1;
	int rc = guard(v, "/sys/fs/cgroup", true);

	if (rc == 0)
		at = in_root(v->root, "/sys/fs/cgroup", O_PATH | O_DIRECTORY);
	if (at >= 0 &&
		mount_fd(at, "cgroup2", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		log_debug("a session does not see its cgroup: %s", strerror(errno));
	return rc;
}

static int make_dev(struct iso_view *v)
{
	static const struct {
		const char *name;
		unsigned int major, minor;
	} nodes[] = {{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8},
		{"urandom", 1, 9}, {"tty", 5, 0}};
	static const char *const links[][2] = {{"/proc/self/fd", "fd"},
		{"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"},
		{"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"}};
	_cleanup_close_ int dev = -1;
	int rc = mount_in(v, "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,mode=0755");

	if (rc < 0)
		return rc;
	dev = in_root(v->root, "/dev", O_RDONLY | O_DIRECTORY);
	for (size_t i = 0; i < ARRAY_LEN(nodes) && dev >= 0; i++)
		if (mknodat(dev, nodes[i].name, S_IFCHR | 0666,
			    makedev(nodes[i].major, nodes[i].minor)) < 0)
			return err_set(v->e, errno, "/dev/%s", nodes[i].name);
	for (size_t i = 0; i < ARRAY_LEN(links) && dev >= 0; i++)
		if (symlinkat(links[i][0], dev, links[i][1]) < 0)
			return err_set(v->e, errno, "/dev/%s", links[i][1]);
	if (dev < 0 || mkdirat(dev, "pts", 0755) < 0 || mkdirat(dev, "shm", 0755) < 0)
		return err_set(v->e, dev < 0 ? -dev : errno, "/dev");
	rc = mount_in(v, "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
		"newinstance,ptmxmode=0666,mode=620,gid=5");
	return rc < 0 ? rc
		      : mount_in(
				v, "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "size=25%,mode=1777");
}

static bool is_dest(const struct iso_view *v, const char *path)
{
	for (size_t i = 0; i < v->c->r.nmounts; i++)
		if (!strcmp(v->c->r.mounts[i].dest, path))
			return true;
	return false;
}

static int make_tmp(struct iso_view *v)
{
	_cleanup_close_ int to = in_root(v->root, "/tmp", O_PATH | O_DIRECTORY);
	int rc = to;

	if (to == -ENOENT)
		return 0;
	if (to >= 0)
		rc = mount_fd(to, "tmpfs", MS_NOSUID | MS_NODEV, "size=50%,mode=1777");
	return rc < 0 ? err_set(v->e, -rc, "/tmp") : 0;
}

/* Balanced: mounts the sandbox's /tmp over the new one, unless the request mounts something on
 * /tmp. */
static int share_tmp(struct iso_view *v)
{
	_cleanup_close_ int from = -1, to = -1;
	int rc;

	if (v->c->r.profile != AGENT_BALANCED || is_dest(v, "/tmp"))
		return 0;
	from = in_root(v->old, "/tmp", O_PATH | O_DIRECTORY);
	to = in_root(v->root, "/tmp", O_PATH | O_DIRECTORY);
	if (from == -ENOENT || to == -ENOENT)
		return 0;
	rc = from < 0 ? from : to < 0 ? to : bind_fd(from, to, ATTR_NOSUID | ATTR_NODEV);
	return rc < 0 ? err_set(v->e, -rc, "/tmp") : 0;
}

/* /run, and in it DIR/run, where the agent puts what is to be run. */
static int make_run(struct iso_view *v)
{
	_cleanup_close_ int from = -1, to = -1, run = -1;
	char path[600];
	int rc = mount_in(v, "/run", "tmpfs", MS_NOSUID | MS_NODEV, "size=25%,mode=0755");

	if (rc < 0)
		return rc;
	snprintf(path, sizeof(path), "%s/run", v->dir);
	from = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	run = in_root(v->root, "/run", O_RDONLY | O_DIRECTORY);
	if (run < 0 || mkdirat(run, strrchr(ISO_RUN_DIR, '/') + 1, 0755) < 0)
		return err_set(v->e, run < 0 ? -run : errno, ISO_RUN_DIR);
	to = in_root(v->root, ISO_RUN_DIR, O_PATH | O_DIRECTORY);
	rc = from < 0 ? -errno : to < 0 ? to : bind_fd(from, to, ATTR_NOSUID | ATTR_NODEV);
	return rc < 0 ? err_set(v->e, -rc, ISO_RUN_DIR) : 0;
}

/* Is path dir, or below it? */
static bool is_below(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	while (n > 1 && dir[n - 1] == '/')
		n--;
	if (n == 1 && dir[0] == '/')
		return true;
	return !strncmp(path, dir, n) && (path[n] == 0 || path[n] == '/');
}

static int path_of(int fd, char to[AGENT_PATH_MAX])
{
	char link[40];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, to, AGENT_PATH_MAX - 1);
	if (n < 0)
		return -errno;
	to[n] = 0;
	return 0;
}

/* Checks where a mount's source, or a folder on the way to it, really leads. Sessions can write
 * below a workspace and put links there. A link may lead only into the directories of the
 * allowlist, or a session could choose what the next one gets. */
static int check_source(
	struct iso_view *v, const struct iso_mount *m, int fd, const char *path, char *real)
{
	static const char *const never[] = {"/proc", "/sys", "/dev"};
	bool allowed = false;
	int rc = path_of(fd, real);

	if (rc < 0)
		return err_set(v->e, -rc, "%s", path);
	for (size_t i = 0; i < ARRAY_LEN(never); i++)
		if (is_below(real, never[i]))
			return err_plain(
				v->e, EACCES, "%s is the kernel's: it cannot be shared", path);
	for (size_t i = 0; i < v->c->r.nallowed && !allowed; i++)
		allowed = is_below(real, v->c->r.allowed[i]);
	if (allowed)
		return 0;
	if (m->flags & AGENT_IM_CHECKED)
		return err_plain(
			v->e, EACCES, "%s is not below a directory of the allowlist", real);
	if (strcmp(real, path) != 0)
		return err_plain(v->e, EACCES,
			"%s leads to %s, which is not below a directory of the allowlist", path,
			real);
	return 0;
}

/* Makes path and its missing parents. m NULL: in the session's root. Otherwise in the sandbox's
 * root, for the source of m: check_source() looks at each folder on the way. */
static int make_missing(
	struct iso_view *v, int root, const char *path, bool is_dir, const struct iso_mount *m)
{
	char p[AGENT_PATH_MAX], real[AGENT_PATH_MAX];
	_cleanup_close_ int dir = -1;
	char *slash;
	int fd, rc = 0;

	snprintf(p, sizeof(p), "%s", path);
	slash = strrchr(p, '/');
	if (!slash || !slash[1])
		return -EINVAL;
	*slash = 0;
	dir = in_root(root, *p ? p : "/", O_RDONLY | O_DIRECTORY);
	if (dir == -ENOENT) {
		rc = make_missing(v, root, p, true, m);
		dir = rc < 0 ? -1 : in_root(root, p, O_RDONLY | O_DIRECTORY);
	}
	if (rc < 0 || dir < 0)
		return rc < 0 ? rc : dir;
	if (m && (rc = check_source(v, m, dir, *p ? p : "/", real)) < 0)
		return rc;
	if (is_dir) {
		rc = mkdirat(dir, slash + 1, 0755) < 0 ? -errno : 0;
		/* another session that is made at the same time was faster */
		if (m && rc == -EEXIST)
			rc = 0;
	} else {
		fd = openat(
			dir, slash + 1, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
		rc = fd < 0 ? -errno : 0;
		close_fd(&fd);
	}
	if (rc == 0 && !m &&
		fchownat(dir, slash + 1, v->c->user.uid, v->c->user.gid, AT_SYMLINK_NOFOLLOW) < 0)
		rc = -errno;
	return rc;
}

/* Opens a mount's source, if the session may see it. */
static int open_source(struct iso_view *v, const struct iso_mount *m)
{
	_cleanup_close_ int fd = in_root(v->old, m->source, O_PATH);
	char real[AGENT_PATH_MAX];
	int rc;

	if (fd == -ENOENT && (m->flags & AGENT_IM_MAKE)) {
		rc = make_missing(v, v->old, m->source, true, m);
		if (rc < 0)
			return v->e->code ? rc : err_set(v->e, -rc, "%s", m->source);
		fd = in_root(v->old, m->source, O_PATH);
	}
	if (fd < 0)
		return err_set(v->e, -fd, "%s", m->source);
	rc = check_source(v, m, fd, m->source, real);
	if (rc < 0)
		return rc;
	if (is_below(real, v->c->state_dir) || is_below(v->c->state_dir, real))
		return err_plain(v->e, EACCES, "%s contains the storage of sessions (%s)",
			m->source, v->c->state_dir);
	return take_fd(&fd);
}

static int open_dest(struct iso_view *v, const struct iso_mount *m, bool is_dir)
{
	static const char *const never[] = {"/proc", "/sys", "/dev"};
	int fd = in_root(v->root, m->dest, O_PATH), rc;

	if (fd == -ENOENT) {
		rc = make_missing(v, v->root, m->dest, is_dir, NULL);
		if (rc < 0)
			return err_set(v->e, -rc,
				"%s does not exist in the session and cannot be made", m->dest);
		fd = in_root(v->root, m->dest, O_PATH);
	}
	if (fd < 0)
		return err_set(v->e, -fd, "%s", m->dest);
	for (size_t i = 0; i < ARRAY_LEN(never); i++)
		if (is_below(m->dest, never[i]) || !strcmp(m->dest, "/")) {
			close(fd);
			return err_plain(v->e, EINVAL, "%s cannot be mounted over", m->dest);
		}
	return fd;
}

static int make_overlay(struct iso_view *v, size_t i, const struct iso_mount *m, int from, int to)
{
	char base[600], data[1600], up[700], work[700];
	struct stat st;
	int rc;

	snprintf(base, sizeof(base), "%s", v->c->dir);
	if (m->flags & AGENT_IM_EPHEMERAL) {
		snprintf(base, sizeof(base), "%s/e%zu", v->c->dir, i);
		if (mkdir(base, 0700) < 0 || mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV,
						     "size=50%,mode=0700") < 0)
			return err_set(v->e, errno, "memory for changes of %s", m->dest);
	}
	snprintf(up, sizeof(up), "%s/u%zu", base, i);
	if (fstat(from, &st) < 0 || !S_ISDIR(st.st_mode))
		return err_plain(v->e, ENOTDIR, "%s is not a directory", m->source);
	/* remember the lower directory: a commit fails if the path names another one by then */
	snprintf(data, sizeof(data), "%llu:%llu", (unsigned long long)st.st_dev,
		(unsigned long long)st.st_ino);
	snprintf(work, sizeof(work), "%s/i%zu", v->c->dir, i);
	if (symlink(data, work) < 0)
		return err_set(v->e, errno, "storage for changes of %s", m->dest);
	snprintf(work, sizeof(work), "%s/w%zu", base, i);
	/* the overlay's root has the owner and mode of `up`: they are those of the source */
	if (mkdir(up, 0700) < 0 || mkdir(work, 0700) < 0 || chown(up, st.st_uid, st.st_gid) < 0 ||
		chmod(up, st.st_mode & 07777) < 0)
		return err_set(v->e, errno, "storage for changes of %s", m->dest);
	snprintf(data, sizeof(data),
		"lowerdir=/proc/self/fd/"
		"%d,upperdir=%s,workdir=%s,redirect_dir=off,metacopy=off,index=off",
		from, up, work);
	rc = mount_fd(to, "overlay", MS_NOSUID | MS_NODEV, data);
	return rc < 0 ? err_set(v->e, -rc, "overlay on %s", m->dest) : 0;
}

static int make_mount(struct iso_view *v, size_t i)
{
	const struct iso_mount *m = &v->c->r.mounts[i];
	_cleanup_close_ int from = open_source(v, m), to = -1;
	uint64_t attr = ATTR_NOSUID | ATTR_NODEV | (m->mode == AGENT_IM_RO ? ATTR_RDONLY : 0);
	struct stat st;
	int rc;

	if (from < 0)
		return from;
	if (fstat(from, &st) < 0 || (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)))
		return err_plain(v->e, EINVAL, "%s is neither a directory nor a file", m->source);
	to = open_dest(v, m, S_ISDIR(st.st_mode));
	if (to < 0)
		return to;
	if (m->mode == AGENT_IM_OVERLAY)
		return make_overlay(v, i, m, from, to);
	rc = bind_fd(from, to, attr);
	return rc < 0 ? err_set(v->e, -rc, "%s on %s", m->source, m->dest) : 0;
}

static int enter(struct iso_view *v)
{
	if (fchdir(v->root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 ||
		umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return err_set(v->e, errno, "entering the session's root");
	return 0;
}

int isolate_view_begin(struct iso_view *v)
{
	mode_t mask = umask(0);
	int rc;

	/* what is mounted in the sandbox later does not appear here, nor the other way round */
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return err_set(v->e, errno, "private mounts");
	rc = make_root(v);
	if (rc == 0)
		rc = make_dev(v);
	if (rc == 0)
		rc = make_proc(v);
	if (rc == 0)
		rc = make_cgroup(v);
	if (rc == 0)
		rc = make_tmp(v);
	if (rc == 0)
		rc = make_run(v);
	umask(mask);
	return rc;
}

/* /run was made before its user was known. */
static int give_run(struct iso_view *v)
{
	_cleanup_close_ int run = in_root(v->root, "/run", O_RDONLY | O_DIRECTORY);

	if (run < 0 || fchown(run, v->c->user.uid, v->c->user.gid) < 0)
		return err_set(v->e, run < 0 ? -run : errno, "/run");
	return 0;
}

int isolate_view_end(struct iso_view *v, const struct iso_conf *c)
{
	mode_t mask = umask(0);
	int rc;

	v->c = c;
	rc = give_run(v);
	if (rc == 0)
		rc = share_tmp(v);
	for (size_t i = 0; i < c->r.nmounts && rc == 0; i++)
		rc = make_mount(v, i);
	if (rc == 0)
		rc = guard(v, c->state_dir, true);
	if (rc == 0)
		rc = guard(v, c->env_file, true);
	if (rc == 0)
		rc = enter(v);
	close_fd(&v->old);
	close_fd(&v->root);
	umask(mask);
	return rc;
}
