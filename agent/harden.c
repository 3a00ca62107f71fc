/* SPDX-License-Identifier: Apache-2.0
 *
 * harden.c: the floor. The loop's thread. The request is the host's. What the kernel does not have is reported and left out, never silently:
 * the host decides whether that is enough.
 */
#include "agent/harden.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "agent/request.h"
#include "agent/seal.h"
#include "agent/spawn.h"

/* by number: libc's headers of older distributions lack them */
#define NR_LANDLOCK_CREATE 444
#define NR_LANDLOCK_RULE   445
#define CREATE_VERSION     1u
#define RULE_PATH          1
/* rights to read a directory and everything below it */
#define READ_ACCESS                                                                                \
	(LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
/* of the rights that a rule on a file may name, those that we give: not the one for device ioctls */
#define FILE_ACCESS                                                                                \
	(LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE |                               \
		LANDLOCK_ACCESS_FS_WRITE_FILE | ACCESS_TRUNCATE)
#define ACCESS_TRUNCATE (1ull << 14) /* from the interface's version 3 on */

struct layer {
	enum agent_layer_state state;
	char message[200];
};

struct harden {
	uint32_t flags;
	uint64_t drop_caps;
	int landlock_fd;
	struct layer caps, seccomp, landlock;
};

static void set_layer(struct layer *l, enum agent_layer_state state, const char *message)
{
	l->state = state;
	snprintf(l->message, sizeof(l->message), "%s", message);
}

static void take_paths(struct cur *b, char to[][256], uint32_t *n)
{
	*n = cur_u32(b);
	if (*n > AGENT_ALLOWED_MAX)
		b->bad = true;
	for (uint32_t i = 0; i < *n && !b->bad; i++)
		if (!cur_str(b, to[i], 256) || to[i][0] != '/')
			b->bad = true;
}

int harden_parse(struct cur *b, struct harden_req *r)
{
	*r = (struct harden_req){0};
	r->flags = cur_u32(b);
	r->keep_caps = cur_u64(b);
	take_paths(b, r->read, &r->nread);
	take_paths(b, r->write, &r->nwrite);
	if (!cur_done(b) || (r->flags & ~(AGENT_H_CAPS | AGENT_H_SECCOMP | AGENT_H_LANDLOCK |
						AGENT_H_NO_NEW_PRIVS)))
		return -EPROTO;
	return 0;
}

/* What the kernel's version of the interface can control. 0: none. */
static uint64_t landlock_rights(void)
{
	long abi = syscall(NR_LANDLOCK_CREATE, NULL, 0, CREATE_VERSION);

	if (abi < 1)
		return 0;
	/* 13 rights at first, then renaming between directories, truncation, device ioctls */
	return (1ull << (abi < 2 ? 13 : abi < 3 ? 14 : abi < 5 ? 15 : 16)) - 1;
}

static int add_path(int rules, const char *path, uint64_t rights)
{
	_cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC);
	struct landlock_path_beneath_attr at = {.allowed_access = rights, .parent_fd = fd};
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode))
		at.allowed_access &= FILE_ACCESS;
	return syscall(NR_LANDLOCK_RULE, rules, RULE_PATH, &at, 0) < 0 ? -errno : 0;
}

/* A missing path gets no rule, and the layer is DEGRADED: somebody may make the path later, and it
 * stays closed. */
static void make_landlock(struct harden *h, const struct harden_req *r)
{
	uint64_t all = landlock_rights();
	struct landlock_ruleset_attr attr = {.handled_access_fs = all};
	char text[200] = "";

	set_layer(&h->landlock, AGENT_LAYER_UNSUPPORTED, "this kernel has no Landlock");
	if (!all)
		return;
	h->landlock_fd = (int)syscall(NR_LANDLOCK_CREATE, &attr, sizeof(attr.handled_access_fs), 0);
	if (h->landlock_fd < 0) {
		set_layer(&h->landlock, AGENT_LAYER_UNSUPPORTED, strerror(errno));
		return;
	}
	for (uint32_t i = 0; i < r->nread + r->nwrite; i++) {
		const char *path = i < r->nread ? r->read[i] : r->write[i - r->nread];
		int rc = add_path(h->landlock_fd, path, i < r->nread ? READ_ACCESS & all : all);

		if (rc < 0 && !*text)
			snprintf(text, sizeof(text), "%.120s: %s", path, strerror(-rc));
	}
	set_layer(&h->landlock, *text ? AGENT_LAYER_DEGRADED : AGENT_LAYER_ACTIVE, text);
}

static struct harden *harden_make(const struct harden_req *r)
{
	struct harden *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->landlock_fd = -1;
	h->flags = r->flags;
	set_layer(&h->caps, AGENT_LAYER_DISABLED, "");
	set_layer(&h->seccomp, AGENT_LAYER_DISABLED, "");
	set_layer(&h->landlock, AGENT_LAYER_DISABLED, "");
	if (r->flags & AGENT_H_CAPS) {
		h->drop_caps = ~r->keep_caps & ((2ull << CAP_LAST_CAP) - 1);
		set_layer(&h->caps, AGENT_LAYER_ACTIVE, "");
	}
	if ((r->flags & AGENT_H_SECCOMP) && !seal_filter())
		set_layer(&h->seccomp, AGENT_LAYER_UNSUPPORTED, "no filter for this processor");
	else if (r->flags & AGENT_H_SECCOMP)
		set_layer(&h->seccomp, AGENT_LAYER_ACTIVE, "");
	if (r->flags & AGENT_H_LANDLOCK)
		make_landlock(h, r);
	return h;
}

void harden_fini(struct agent *a)
{
	if (!a->harden)
		return;
	close_fd(&a->harden->landlock_fd);
	free(take_ptr(a->harden));
}

void harden_spawn(const struct agent *a, struct spawn *s)
{
	const struct harden *h = a->harden;

	if (!h)
		return;
	s->drop_caps |= h->drop_caps;
	s->no_new_privs = h->flags & AGENT_H_NO_NEW_PRIVS;
	s->landlock_fd = h->landlock_fd;
	if (h->flags & AGENT_H_SECCOMP)
		s->filter = seal_filter();
}

static void put_layer(
	struct buf *b, const char *name, enum agent_layer_state state, const char *text)
{
	buf_str(b, name);
	buf_u32(b, state);
	buf_str(b, text);
}

static void harden_report(struct agent *a, struct conn *c, uint32_t id)
{
	static const struct layer off = {.state = AGENT_LAYER_DISABLED};
	const struct harden *h = a->harden;
	const struct layer *caps = h ? &h->caps : &off, *seccomp = h ? &h->seccomp : &off,
			   *landlock = h ? &h->landlock : &off;
	struct buf b;

	buf_init(&b, 4096);
	buf_u32(&b, 5);
	/* no program of the guest ends PID 1 or looks into it */
	put_layer(&b, "signal_shield",
		a->opts.init || a->opts.guarded ? AGENT_LAYER_ACTIVE : AGENT_LAYER_DISABLED, "");
	put_layer(&b, "cap_drop", caps->state, caps->message);
	put_layer(&b, "seccomp", seccomp->state, seccomp->message);
	put_layer(&b, "landlock", landlock->state, landlock->message);
	put_layer(&b, "ebpf", AGENT_LAYER_UNSUPPORTED, "not used here");
	conn_ok(c, id, &b);
	buf_fini(&b);
}

void req_harden(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct harden_req r;
	struct harden *h;

	if (cur_done(b)) {
		harden_report(a, c, id);
		return;
	}
	if (harden_parse(b, &r) < 0) {
		req_bad(a, c, id);
		return;
	}
	h = harden_make(&r);
	if (!h) {
		conn_error(c, id, ENOMEM, AGENT_STEP_NONE, "no memory");
		return;
	}
	harden_fini(a);
	a->harden = h;
	harden_report(a, c, id);
}
