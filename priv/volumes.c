/* SPDX-License-Identifier: Apache-2.0
 *
 * volumes.c: see volumes.h. mayfly-priv, root; volume_do() runs in a child.
 *
 * A folder is opened once, beneath its root: openat2() follows no link out of it, whenever the link was made. From then on it is a
 * descriptor. What is handed out is a copy of its mount, detached, private, without set-user-id, devices and execution, with the ids on
 * disk shifted into the range of one slot: a file server, even one that was taken over, can use no others.
 */
#include "priv/volumes.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "lib/fdpass.h"
#include "lib/log.h"
#include "lib/procfs.h"

#define DEADLINE_NS 10000000000ull

/* ---- names */

bool volume_path_ok(const char *path, bool absolute)
{
	size_t n = strlen(path);

	if ((path[0] == '/') != absolute || n >= PATH_MAX)
		return false;
	for (const char *p = path + absolute; *p;) {
		size_t k = strcspn(p, "/");

		if (k == 0 || k > NAME_MAX || (k == 1 && p[0] == '.') ||
			(k == 2 && p[0] == '.' && p[1] == '.'))
			return false;
		p += k;
		if (*p && !*++p)
			return false; /* ends with a slash */
	}
	return true;
}

/* A claim's folder: 32 hexadecimal digits. */
static bool claim_ok(const char *s)
{
	return strlen(s) == 32 && strspn(s, "0123456789abcdef") == 32;
}

/* Is path the folder, or below it? Both passed volume_path_ok(). */
static bool is_within(const char *path, const char *folder)
{
	size_t n = strlen(folder);

	return !folder[1] || (strncmp(path, folder, n) == 0 && (path[n] == '/' || !path[n]));
}

int volume_parse(struct volume_ask *a, const struct priv_msg *m, const char *text, size_t n)
{
	size_t path = n ? strnlen(text, n) : 0,
	       sub = path < n ? strnlen(text + path + 1, n - path - 1) : 0, at = path + sub + 2;

	*a = (struct volume_ask){.op = m->op, .what = m->what, .flags = m->flags};
	if (n == 0 || at > n || (m->flags & ~PRIV_V_FLAGS))
		return -EINVAL;
	if (at < n) {
		a->within = text + at;
		if (at + strnlen(a->within, n - at) + 1 != n)
			return -EINVAL;
	}
	a->path = text;
	a->sub = text + path + 1;
	if (m->what != PRIV_V_HOST && m->what != PRIV_V_CLAIM)
		return -EINVAL;
	if (m->what == PRIV_V_CLAIM ? !claim_ok(a->path) : !volume_path_ok(a->path, true))
		return -EINVAL;
	if (a->within && (m->what != PRIV_V_HOST || !volume_path_ok(a->within, true) ||
				 !is_within(a->path, a->within)))
		return -EINVAL;
	return volume_path_ok(a->sub, false) ? 0 : -EINVAL;
}

/* ---- opening */

static int open_how(int dir, const char *path, uint64_t flags, uint64_t resolve)
{
	struct open_how how = {
		.flags = flags | O_CLOEXEC, .resolve = resolve | RESOLVE_NO_MAGICLINKS};
	long fd = syscall(SYS_openat2, dir, *path ? path : ".", &how, sizeof(how));

	return fd < 0 ? -errno : (int)fd;
}

/* Makes a missing folder with the rights of its parent's owner, not with root's. */
static int make_folder(int parent, const char *name)
{
	struct stat st;
	int rc;

	if (fstat(parent, &st) < 0)
		return -errno;
	setfsgid(st.st_gid);
	setfsuid(st.st_uid);
	rc = mkdirat(parent, name, 0755) < 0 ? -errno : 0;
	setfsuid(0);
	setfsgid(0);
	/* EEXIST: a link into nowhere, or a folder that somebody else has just made */
	return rc == -EEXIST ? -ENOENT : rc;
}

/* Opens the path beneath dir; with make, missing folders are made. -EXDEV: a link leads out. */
static int open_beneath(int dir, const char *path, bool make)
{
	int fd = open_how(dir, path, O_PATH, RESOLVE_BENEATH), parent = dir, rc = 0;
	char part[PATH_MAX];

	if (fd != -ENOENT || !make)
		return fd;
	for (const char *p = path; rc == 0 && *p;) {
		size_t k = strcspn(p, "/");

		snprintf(part, sizeof(part), "%.*s", (int)(p + k - path), path);
		fd = open_how(dir, part, O_PATH | O_DIRECTORY, RESOLVE_BENEATH);
		if (fd == -ENOENT) {
			snprintf(part, sizeof(part), "%.*s", (int)k, p);
			rc = make_folder(parent, part);
			if (rc == 0)
				fd = open_how(parent, part, O_PATH | O_DIRECTORY,
					RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
		}
		if (rc == 0 && fd < 0)
			rc = fd;
		if (parent != dir)
			close(parent);
		parent = rc == 0 ? fd : dir;
		p += k + (p[k] == '/');
	}
	return rc < 0 ? rc : parent;
}

/* The longest of the operator's folders that holds the path. */
static int host_root(const struct volumes *v, const char *path, const char **rest)
{
	size_t best = 0;
	int fd;

	for (uint32_t i = 0; i < v->nroots; i++) {
		size_t n = strlen(v->root[i]);

		while (n > 1 && v->root[i][n - 1] == '/')
			n--;
		if (n == 1) /* all of the host */
			n = 0;
		if (strncmp(path, v->root[i], n) == 0 && (path[n] == '/' || !path[n]) &&
			n + 1 > best) {
			best = n + 1;
			*rest = path + n + (path[n] == '/');
		}
	}
	if (!best)
		return -EPERM;
	/* the operator's own path: its links are followed */
	fd = open_how(AT_FDCWD, strndupa(path, MAX(best - 1, (size_t)1)), O_PATH | O_DIRECTORY, 0);
	return fd;
}

static int open_host(const struct volumes *v, const struct volume_ask *a)
{
	bool make = a->flags & PRIV_V_MAKE;
	_cleanup_close_ int root = -1, folder = -1;
	size_t n = a->within ? strlen(a->within) : 0, head;
	const char *rest = "";

	root = host_root(v, a->path, &rest);
	if (root < 0)
		return root;
	head = (size_t)(rest - a->path);
	if (n <= head || !a->path[n]) /* not narrower than the operator's, or the source itself */
		return open_beneath(root, rest, make);
	folder = open_beneath(root, strndupa(rest, n - head), make);
	return folder < 0 ? folder : open_beneath(folder, a->path + n + 1, make);
}

static int open_claim(const struct volumes *v, const struct volume_ask *a)
{
	uint32_t id = v->ids_base;
	_cleanup_close_ int fd = -1;

	if (v->claims_fd < 0)
		return -ENOTDIR;
	if ((a->flags & PRIV_V_MAKE) && mkdirat(v->claims_fd, a->path, 0755) == 0) {
		if (fchownat(v->claims_fd, a->path, id, id, AT_SYMLINK_NOFOLLOW) < 0 ||
			fsync(v->claims_fd) < 0)
			return -errno;
	}
	fd = open_how(
		v->claims_fd, a->path, O_PATH | O_DIRECTORY, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
	return fd < 0 ? fd : take_fd(&fd);
}

int volume_claim_open(const struct volumes *v, const char *name)
{
	if (!claim_ok(name))
		return -EINVAL;
	if (v->claims_fd < 0)
		return -ENOTDIR;
	/* a quota is set by ioctl(), which an O_PATH descriptor refuses */
	return open_how(
		v->claims_fd, name, O_RDONLY | O_DIRECTORY, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
}

/* ---- ids */

_noreturn_ static void idle(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;)
		pause();
}

/* A user namespace in which the ids from `disk` on are those from `slot` on outside: what mount_setattr() takes. */
static int users_of(uint32_t disk_uid, uint32_t disk_gid, uint32_t slot, uint32_t n)
{
	struct clone_args a = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
	char path[64], map[64];
	int fd = -1, rc;
	pid_t pid = (pid_t)syscall(SYS_clone3, &a, sizeof(a));

	if (pid == 0)
		idle();
	if (pid < 0)
		return -errno;
	snprintf(path, sizeof(path), "/proc/%d/uid_map", (int)pid);
	snprintf(map, sizeof(map), "%u %u %u\n", disk_uid, slot, n);
	rc = file_put(AT_FDCWD, path, map);
	if (rc == 0) {
		snprintf(path, sizeof(path), "/proc/%d/gid_map", (int)pid);
		snprintf(map, sizeof(map), "%u %u %u\n", disk_gid, slot, n);
		rc = file_put(AT_FDCWD, path, map);
	}
	if (rc == 0) {
		snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		rc = fd < 0 ? -errno : 0;
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return rc < 0 ? rc : fd;
}

/* A private, detached copy of the mount at fd. -EOPNOTSUPP: this file system cannot shift ids. */
static int mount_of(
	int fd, const struct volumes *v, const struct volume_ask *a, const struct stat *st)
{
	bool claim = a->what == PRIV_V_CLAIM;
	_cleanup_close_ int users = users_of(claim ? v->ids_base : st->st_uid,
		claim ? v->ids_base : st->st_gid, a->slot_ids, claim ? VOLUME_IDS : 1);
	_cleanup_close_ int tree = -1;
	struct mount_attr at = {
		.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC |
			    MOUNT_ATTR_IDMAP | (a->flags & PRIV_V_RO ? MOUNT_ATTR_RDONLY : 0),
		.propagation = MS_PRIVATE,
		.userns_fd = (uint64_t)users,
	};

	if (users < 0)
		return users;
	tree = (int)syscall(
		SYS_open_tree, fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
	if (tree < 0)
		return -errno;
	if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &at, sizeof(at)) < 0)
		return errno == EINVAL || errno == EPERM ? -EOPNOTSUPP : -errno;
	return take_fd(&tree);
}

int volume_do(const struct volumes *v, const struct volume_ask *a, int *fd, bool *folder)
{
	_cleanup_close_ int at = -1, sub = -1;
	struct stat st;

	if (a->op == PRIV_VOLUME_REMOVE) {
		if (v->claims_fd < 0 || a->what != PRIV_V_CLAIM)
			return -EINVAL;
		return unlinkat(v->claims_fd, a->path, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno
											    : 0;
	}
	at = a->what == PRIV_V_CLAIM ? open_claim(v, a) : open_host(v, a);
	if (at < 0)
		return at;
	sub = *a->sub ? open_beneath(at, a->sub, a->flags & PRIV_V_MAKE)
		      : fcntl(at, F_DUPFD_CLOEXEC, 3);
	if (sub < 0)
		return sub;
	if (fstat(sub, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
		return -EMEDIUMTYPE;
	*folder = S_ISDIR(st.st_mode);
	*fd = mount_of(sub, v, a, &st);
	return *fd < 0 ? *fd : 0;
}

int volumes_open(struct volumes *v, const char *state_dir, struct err *e)
{
	_cleanup_close_ int state = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (state < 0)
		return err_set(e, errno, "open %s", state_dir);
	if (mkdirat(state, "volumes", 0700) < 0 && errno != EEXIST)
		return err_set(e, errno, "mkdir %s/volumes", state_dir);
	v->claims_fd = openat(state, "volumes", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (v->claims_fd < 0 || fstat(v->claims_fd, &st) < 0)
		return err_set(e, errno, "open %s/volumes", state_dir);
	if (st.st_uid != 0 || (st.st_mode & 077))
		return err_plain(e, EPERM,
			"%s/volumes is open to others than root (chown root, chmod 700)",
			state_dir);
	return 0;
}

/* ---- jobs */

struct job {
	struct volume_jobs *j;
	struct priv_msg m;
	int sock;  /* -1: the child has answered */
	pid_t pid; /* 0: this place is free */
	struct watch *watch;
	struct timer *late;
	bool answered;
};

struct volume_jobs {
	struct loop *loop;
	const struct volumes *v;
	volume_done_fn done;
	void *arg;
	struct job job[VOLUME_JOBS_MAX];
};

struct answer {
	int32_t rc;
	uint32_t folder;
};

static void job_answer(struct job *b, int rc, bool folder, int fd)
{
	struct priv_msg r = {.magic = PRIV_MAGIC,
		.version = PRIV_VERSION,
		.op = b->m.op,
		.id = b->m.id,
		.slot = b->m.slot,
		.status = rc,
		.flags = folder ? PRIV_V_FOLDER : 0};

	b->answered = true;
	b->j->done(b->j->arg, &r, fd);
}

/* The end of a child may wait for a disk too, so the helper never waits for it. */
void volume_jobs_reap(struct volume_jobs *j)
{
	for (size_t i = 0; i < VOLUME_JOBS_MAX; i++) {
		struct job *b = &j->job[i];

		if (b->pid && b->sock < 0 && waitpid(b->pid, NULL, WNOHANG) != 0)
			b->pid = 0;
	}
}

uint32_t volume_jobs_unanswered(const struct volume_jobs *j)
{
	uint32_t n = 0;

	for (size_t i = 0; i < VOLUME_JOBS_MAX; i++)
		n += j->job[i].pid && !j->job[i].answered;
	return n;
}

static void on_job(void *arg, uint32_t events)
{
	struct job *b = arg;
	struct answer a = {.rc = -EIO};
	size_t nfds = 1;
	int fd = -1;
	ssize_t n = fdpass_recv(b->sock, &a, sizeof(a), &fd, &nfds);

	(void)events;
	if (n == -EAGAIN)
		return;
	if (n != sizeof(a))
		a = (struct answer){.rc = -EIO};
	if (nfds == 0)
		fd = -1;
	timer_set(b->late, 0);
	watch_remove(b->watch);
	close_fd(&b->sock);
	if (!b->answered)
		job_answer(b, a.rc, a.folder, fd);
	else
		close_fd(&fd);
	volume_jobs_reap(b->j);
}

/* The source hangs. The child's place is free again only when the kernel has ended it. */
static void on_late(void *arg)
{
	struct job *b = arg;

	log_limited(LOG_WARN, "a volume's source does not answer");
	kill(b->pid, SIGKILL);
	if (!b->answered)
		job_answer(b, -ETIMEDOUT, false, -1);
}

struct volume_jobs *volume_jobs_create(
	struct loop *l, const struct volumes *v, volume_done_fn done, void *arg)
{
	struct volume_jobs *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	*j = (struct volume_jobs){.loop = l, .v = v, .done = done, .arg = arg};
	for (size_t i = 0; i < VOLUME_JOBS_MAX; i++) {
		j->job[i] = (struct job){.j = j, .sock = -1};
		j->job[i].late = loop_timer(l, on_late, &j->job[i]);
		if (!j->job[i].late)
			return NULL;
	}
	return j;
}

void volume_jobs_forget(struct volume_jobs *j)
{
	for (size_t i = 0; i < VOLUME_JOBS_MAX; i++)
		j->job[i].answered = true;
}

/* The child may hang in the kernel for long: it must not keep the helper's lock and sockets open. */
static void close_others(int a, int b)
{
	unsigned int low = (unsigned int)MAX(MIN(a, b), 2), high = (unsigned int)MAX(MAX(a, b), 2);

	if (low > 3)
		syscall(SYS_close_range, 3, low - 1, 0);
	if (high > low + 1)
		syscall(SYS_close_range, low + 1, high - 1, 0);
	syscall(SYS_close_range, high + 1, ~0u, 0);
}

_noreturn_ static void job_child(const struct volumes *v, const struct volume_ask *a, int sock)
{
	struct answer r = {0};
	bool folder = false;
	int fd = -1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close_others(v->claims_fd, sock);
	r.rc = volume_do(v, a, &fd, &folder);
	r.folder = folder;
	fdpass_send(sock, &r, sizeof(r), &fd, fd >= 0);
	_exit(0);
}

int volume_start(struct volume_jobs *j, const struct volume_ask *a, const struct priv_msg *m)
{
	struct job *b = NULL;
	unsigned int hosts = 0;
	int pair[2];
	pid_t pid;

	volume_jobs_reap(j);
	for (size_t i = 0; i < VOLUME_JOBS_MAX; i++) {
		if (!j->job[i].pid)
			b = &j->job[i];
		else
			hosts += j->job[i].m.what == PRIV_V_HOST;
	}
	if (!b || (m->what == PRIV_V_HOST && hosts >= VOLUME_HOST_JOBS))
		return -EAGAIN;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	pid = fork();
	if (pid == 0)
		job_child(j->v, a, pair[1]);
	close(pair[1]);
	if (pid < 0) {
		close(pair[0]);
		return -EAGAIN;
	}
	b->pid = pid;
	b->answered = true;
	b->watch = loop_watch(j->loop, pair[0], EPOLLIN, on_job, b);
	if (!b->watch) {
		close(pair[0]);
		kill(pid, SIGKILL);
		return -ENOMEM;
	}
	fd_set_nonblock(pair[0], true);
	b->sock = pair[0];
	b->m = *m;
	b->answered = false;
	timer_after(b->late, DEADLINE_NS);
	return 0;
}
