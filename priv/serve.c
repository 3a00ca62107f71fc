/* SPDX-License-Identifier: Apache-2.0
 *
 * serve.c: requests of the daemon, one function for each. mayfly-priv, root. Every field of every message is hostile: the daemon reads the
 * network. A request that is not exactly in the table is refused, counted and logged; nothing here exits because of one.
 */
#include "priv/serve.h"

#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "lib/log.h"
#include "priv/quota.h"
#include "priv/spawn.h"

struct req {
	struct priv_msg in;
	const int *fds;
	size_t nfds;
	struct priv_msg *out;
	int *out_fd;
	struct place at;  /* of a request about a group */
	const char *text; /* behind the message */
	size_t ntext;
};

static int do_hello(struct serve *s, struct req *r)
{
	r->out->nslots = s->slots->n;
	r->out->nleases = s->slots->leases.n;
	r->out->flags = s->host_flags;
	r->out->uid = s->daemon_uid;
	return 0;
}

static bool limits_ok(const struct priv_limits *l)
{
	return l->cpu_max_us <= 100000ull * 1024 && (l->cpu_max_us == 0 || l->cpu_max_us >= 1000) &&
	       (l->memory_max == 0 || (l->memory_max >= MIB(16) && l->memory_max <= GIB(1024))) &&
	       l->pids_max <= 4096 && l->io_weight <= 10000 &&
	       (l->io_bytes_max == 0 || l->io_bytes_max >= 4096) && l->io_bytes_max <= GIB(1024);
}

static int do_spawn(struct serve *s, struct req *r)
{
	const struct kind *k = kind_of(r->in.kind);
	struct slot *slot = &s->slots->s[r->in.slot];
	struct place at = {.lease = r->in.lease, .group = r->in.group}, there;
	_cleanup_close_ int stage = -1;
	struct spawned new = {.pidfd = -1};
	int pid, rc;

	if (!k || r->nfds < k->min_fds || r->nfds > k->max_fds || !limits_ok(&r->in.limits))
		return -EINVAL;
	if (r->in.kind == PRIV_K_FILES && r->in.what > 1)
		return -EINVAL;
	if (slot->kind)
		return -EBUSY;
	if (at.group >= s->slots->n || at.lease >= MAX(s->slots->leases.n, 1u))
		return -EINVAL;
	if (group_lease(s->slots, at.group, &there) && (there.lease != at.lease || there.flat))
		return -EXDEV;
	if (k->stage_fd && (stage = fcntl(r->fds[k->stage_fd - 3], F_DUPFD_CLOEXEC, 3)) < 0)
		return -errno;
	pid = s->spawn(s->slots, s->bin_fd, &r->in, at, r->fds, r->nfds, &new);
	if (pid < 0)
		return pid;
	rc = slot_used(s->slots, r->in.slot, r->in.kind, at, pid, new.pidfd);
	slot->stage_fd = stage < 0 ? 0 : take_fd(&stage);
	slot->log_fd = new.log_fd;
	if (rc < 0)
		log_error("slot %u: its state file could not be written: %s", r->in.slot,
			strerror(-rc));
	s->started(s, r->in.slot);
	r->out->pid = pid;
	r->out->uid = slot->uid;
	r->out->start_time = slot->start_time;
	*r->out_fd = fcntl(new.pidfd, F_DUPFD_CLOEXEC, 3);
	log_info("slot %u: started %s as process %d, user %u, in group %u", r->in.slot, k->program,
		pid, slot->uid, at.group);
	return 0;
}

/* A memory limit can be changed but not removed: 0 leaves it as it is. */
static int limits_change(int fd, const struct priv_limits *l, bool group)
{
	struct priv_limits all = *l;

	if (!all.memory_max)
		all.memory_max = cgroup_memory_limit(fd);
	return cgroup_limits(fd, &all, group);
}

static int do_limits(struct serve *s, struct req *r)
{
	_cleanup_close_ int fd = -1;

	if (!limits_ok(&r->in.limits))
		return -EINVAL;
	fd = leaf_open(&s->slots->leases, s->slots->s[r->in.slot].at, r->in.slot);
	return fd < 0 ? fd : limits_change(fd, &r->in.limits, false);
}

static int do_usage(struct serve *s, struct req *r)
{
	_cleanup_close_ int fd =
		leaf_open(&s->slots->leases, s->slots->s[r->in.slot].at, r->in.slot);

	if (fd >= 0)
		cgroup_usage(fd, &r->out->usage);
	return fd < 0 ? fd : 0;
}

static int do_group_limits(struct serve *s, struct req *r)
{
	_cleanup_close_ int fd = -1;
	int rc;

	if (!limits_ok(&r->in.limits))
		return -EINVAL;
	fd = group_open(&s->slots->leases, r->at);
	/* Without a group of its own the limits are those of the only leaf. */
	rc = fd < 0 ? fd : limits_change(fd, &r->in.limits, !r->at.flat);
	if (rc == 0 && *s->slots->leases.io_device)
		rc = cgroup_io_limits(fd, s->slots->leases.io_device, &r->in.limits);
	return rc;
}

static int do_group_usage(struct serve *s, struct req *r)
{
	_cleanup_close_ int fd = group_open(&s->slots->leases, r->at);

	if (fd >= 0)
		cgroup_usage(fd, &r->out->usage);
	return fd < 0 ? fd : 0;
}

/* A leaf that is alone in a flat place is its own group: then there is one limit. */
static int room_take(int leaf, int group, uint64_t bytes)
{
	int rc = group < 0 ? 0 : cgroup_raise(group, bytes);

	return rc ? rc : cgroup_raise(leaf, bytes);
}

static int room_give_back(int leaf, int group, uint64_t bytes)
{
	int rc = cgroup_lower(leaf, bytes);

	if (rc < 0 || group < 0)
		return rc;
	rc = cgroup_lower(group, bytes);
	if (rc < 0)
		(void)cgroup_raise(leaf, bytes); /* both, or neither */
	return rc;
}

/* what: 0 gives the room back, 1 takes it, 2 spares the monitor if memory runs out (lib/proto_priv.h). */
static int do_room(struct serve *s, struct req *r)
{
	struct slot *slot = &s->slots->s[r->in.slot];
	struct place at = slot->at;
	_cleanup_close_ int leaf = -1, group = -1;
	uint64_t bytes = r->in.limits.memory_max;
	int rc;

	if (!limits_ok(&r->in.limits) || (!bytes && r->in.what != 2) || r->in.what > 2)
		return -EINVAL;
	if (r->in.pid != slot->pid)
		return -ENOENT;
	leaf = leaf_open(&s->slots->leases, at, r->in.slot);
	group = at.flat ? -1 : group_open(&s->slots->leases, at);
	if (leaf < 0)
		return leaf;
	if (!r->in.what) {
		rc = room_give_back(leaf, group, bytes);
		slot->room_bytes = rc ? slot->room_bytes : 0;
		return rc;
	}
	if (r->in.what == 2)
		return cgroup_spare(leaf, r->in.pid);
	/* raised once only: if a daemon asks again after its predecessor was killed, it gets the same number */
	if (slot->room_bytes) {
		r->out->usage.memory_bytes = slot->room_bytes;
		return 0;
	}
	/* limits_ok() refuses less than this when the daemon gives it back */
	bytes = MIN(MAX(cgroup_private_bytes(leaf), MIB(16)), bytes);
	r->out->usage.memory_bytes = bytes;
	rc = room_take(leaf, group, bytes);
	slot->room_bytes = rc ? 0 : bytes;
	return rc;
}

static int do_group_kill(struct serve *s, struct req *r)
{
	log_info("group %u: kill", r->in.group);
	return group_kill(s->slots, r->in.group);
}

static int do_open(struct serve *s, struct req *r)
{
	int fd;

	if (r->in.what == PRIV_F_KVM) {
		fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	} else if (r->in.what == PRIV_F_CONFIG && s->config) {
		fd = open(s->config, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	} else if (r->in.what == PRIV_F_RESOLV) {
		fd = open("/etc/resolv.conf", O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	} else {
		return -EINVAL;
	}
	if (fd < 0)
		return -errno;
	*r->out_fd = fd;
	return 0;
}

static int do_kill(struct serve *s, struct req *r)
{
	log_info("slot %u: kill", r->in.slot);
	return slot_kill(s->slots, r->in.slot);
}

static int do_list(struct serve *s, struct req *r)
{
	for (uint32_t i = r->in.slot; i < s->slots->n; i++) {
		const struct slot *x = &s->slots->s[i];

		if (!x->kind)
			continue;
		r->out->slot = i;
		r->out->kind = x->kind;
		r->out->group = x->at.group;
		r->out->lease = x->at.lease;
		r->out->pid = x->pid;
		r->out->uid = x->uid;
		r->out->start_time = x->start_time;
		r->out->wait_status = x->wait_status;
		if (x->pidfd >= 0)
			*r->out_fd = fcntl(x->pidfd, F_DUPFD_CLOEXEC, 3);
		return 0;
	}
	return -ENOENT;
}

static int do_log(struct serve *s, struct req *r)
{
	int fd = s->slots->s[r->in.slot].log_fd;

	if (!fd)
		return -ENOENT;
	*r->out_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	return *r->out_fd < 0 ? -errno : 0;
}

static int do_free(struct serve *s, struct req *r)
{
	return slot_free(s->slots, r->in.slot);
}

static int do_adopt(struct serve *s, struct req *r)
{
	uint32_t low = slot_uid(s->slots, PRIV_K_IMAGE_BUILD, 0);
	struct stat st;

	if (r->nfds != 1)
		return -EINVAL;
	if (fstat(r->fds[0], &st) < 0)
		return -errno;
	/* only what a job made: otherwise this would be a way to own any file that can be opened */
	if (!S_ISREG(st.st_mode) || st.st_uid < low || st.st_uid >= low + s->slots->uid_width ||
		st.st_nlink > 1)
		return -EPERM;
	if (fchmod(r->fds[0], 0444) < 0 || fchown(r->fds[0], s->daemon_uid, s->daemon_uid) < 0)
		return -errno;
	return 0;
}

static int do_volume(struct serve *s, struct req *r)
{
	struct volume_ask a;
	int rc = volume_parse(&a, &r->in, r->text, r->ntext);

	if (rc < 0)
		return rc;
	a.slot_ids = slot_uid(s->slots, PRIV_K_FILES, r->in.slot);
	rc = s->volume(s, &a, &r->in);
	return rc < 0 ? rc : -EINPROGRESS;
}

/* Limits first: a file that joins a project without limits would have none for a moment. */
static int quota_set(const struct req *r, int fd, uint32_t project)
{
	int rc = quota_limit(fd, project, &r->in.quota);

	if (rc == 0)
		rc = quota_give(fd, project);
	/* no such system call, no quotas, or project quotas are off */
	return rc == -ENOSYS || rc == -ESRCH || rc == -EINVAL ? -EOPNOTSUPP : rc;
}

static int quota_files(struct serve *s, struct req *r, uint32_t project)
{
	struct stat st;
	int rc = 0;

	for (size_t i = 0; i < r->nfds; i++) {
		if (fstat(r->fds[i], &st) < 0)
			return -errno;
		/* only the daemon's own files may count for a sandbox */
		if (st.st_uid != s->daemon_uid || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
			return -EPERM;
	}
	for (size_t i = 0; i < r->nfds && rc == 0; i++)
		rc = quota_set(r, r->fds[i], project);
	return rc ? rc : quota_usage(r->fds[0], project, &r->out->quota);
}

static int quota_claim(struct serve *s, struct req *r, uint32_t project)
{
	_cleanup_close_ int fd = -1;
	int rc;

	if (r->ntext == 0 || memchr(r->text, 0, r->ntext) != r->text + r->ntext - 1)
		return -EINVAL;
	fd = s->claims ? volume_claim_open(s->claims, r->text) : -ENOTDIR;
	if (fd < 0)
		return fd;
	rc = quota_set(r, fd, project);
	return rc ? rc : quota_usage(fd, project, &r->out->quota);
}

static int do_quota(struct serve *s, struct req *r)
{
	bool claim = r->in.what == PRIV_Q_CLAIM;

	if ((r->in.what != PRIV_Q_SANDBOX && !claim) || r->in.project == 0 ||
		r->in.project > PRIV_PROJECT_MAX || r->in.quota.bytes > 1ull << 60 ||
		r->in.quota.inodes > 1ull << 60)
		return -EINVAL;
	if (claim ? r->nfds != 0 : r->nfds == 0 || r->nfds > 4 || r->ntext)
		return -EINVAL;
	return claim ? quota_claim(s, r, quota_project(true, r->in.project))
		     : quota_files(s, r, quota_project(false, r->in.project));
}

enum { NEEDS_SLOT = 1, NEEDS_USED = 2, TAKES_FDS = 4, NEEDS_GROUP = 8, TAKES_TEXT = 16 };
static const struct {
	int (*fn)(struct serve *s, struct req *r);
	const char *name;
	unsigned int flags;
} ops[] = {
	[PRIV_HELLO] = {do_hello, "hello", 0},
	[PRIV_SPAWN] = {do_spawn, "spawn", NEEDS_SLOT | TAKES_FDS},
	[PRIV_LIMITS] = {do_limits, "limits", NEEDS_SLOT | NEEDS_USED},
	[PRIV_USAGE] = {do_usage, "usage", NEEDS_SLOT | NEEDS_USED},
	[PRIV_OPEN] = {do_open, "open", 0},
	[PRIV_KILL] = {do_kill, "kill", NEEDS_SLOT | NEEDS_USED},
	[PRIV_LIST] = {do_list, "list", 0},
	[PRIV_FREE] = {do_free, "free", NEEDS_SLOT | NEEDS_USED},
	[PRIV_ADOPT] = {do_adopt, "adopt", TAKES_FDS},
	[PRIV_GROUP_LIMITS] = {do_group_limits, "limits of the group", NEEDS_GROUP},
	[PRIV_GROUP_USAGE] = {do_group_usage, "usage of the group", NEEDS_GROUP},
	[PRIV_GROUP_KILL] = {do_group_kill, "kill of the group", NEEDS_GROUP},
	[PRIV_VOLUME] = {do_volume, "volume", NEEDS_SLOT | TAKES_TEXT},
	[PRIV_VOLUME_REMOVE] = {do_volume, "remove a volume", NEEDS_SLOT | TAKES_TEXT},
	[PRIV_LOG] = {do_log, "log", NEEDS_SLOT | NEEDS_USED},
	[PRIV_QUOTA] = {do_quota, "quota", TAKES_FDS | TAKES_TEXT},
	[PRIV_ROOM] = {do_room, "room for a snapshot", NEEDS_SLOT | NEEDS_USED},
};

static int checked(struct serve *s, struct req *r)
{
	unsigned int f;

	if (r->in.op >= ARRAY_LEN(ops) || !ops[r->in.op].fn)
		return -ENOSYS;
	f = ops[r->in.op].flags;
	if ((f & NEEDS_SLOT) && r->in.slot >= s->slots->n)
		return -EINVAL;
	if ((f & NEEDS_USED) && !s->slots->s[r->in.slot].kind)
		return -ENOENT;
	if ((f & NEEDS_GROUP) && !group_lease(s->slots, r->in.group, &r->at))
		return -ENOENT;
	if (!(f & TAKES_FDS) && r->nfds)
		return -EINVAL;
	if (!(f & TAKES_TEXT) && r->ntext)
		return -EMSGSIZE;
	return ops[r->in.op].fn(s, r);
}

bool serve_request(struct serve *s, const void *msg, size_t n, const int *fds, size_t nfds,
	struct priv_msg *out, int *out_fd)
{
	struct req r = {.fds = fds, .nfds = nfds, .out = out, .out_fd = out_fd};
	int rc;

	*out = (struct priv_msg){.magic = PRIV_MAGIC, .version = PRIV_VERSION};
	*out_fd = -1;
	if (n < sizeof(r.in) || n > sizeof(r.in) + PRIV_TEXT_MAX) {
		rc = -EMSGSIZE;
	} else {
		memcpy(&r.in, msg, sizeof(r.in));
		r.text = (const char *)msg + sizeof(r.in);
		r.ntext = n - sizeof(r.in);
		out->op = r.in.op;
		out->id = r.in.id;
		out->slot = r.in.slot;
		out->group = r.in.group;
		rc = r.in.magic == PRIV_MAGIC && r.in.version == PRIV_VERSION ? checked(s, &r)
									      : -EPROTO;
	}
	out->status = rc;
	s->served++;
	if (rc == -EINPROGRESS)
		return false;
	if (rc < 0 && rc != -ENOENT && rc != -EBUSY) {
		s->refused++;
		log_limited(LOG_WARN, "refused request %u (slot %u, kind %u): %s", r.in.op,
			r.in.slot, r.in.kind, strerror(-rc));
	} else {
		log_debug("request %s slot %u: %d", ops[r.in.op].name, r.in.slot, rc);
	}
	return true;
}
