/* SPDX-License-Identifier: Apache-2.0
 *
 * template_build.c: see template_build.h. mayflyd's loop. The probe's answer comes from the guest, and is only used as ready or not.
 */
#include "api/sandbox/template_build.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/sandbox/admission.h"
#include "api/links/agent_client.h"
#include "api/sandbox/launch.h"
#include "api/sandbox/snapshot.h"
#include "lib/log.h"

#define SEC         1000000000ull
#define AGAIN_NS    (SEC / 2)
#define CMD_LIMIT_S 30u

enum stage { B_STARTS, B_PROBED, B_READY, B_TAKEN };

struct build {
	struct daemon *d;
	struct sandbox *sb;
	enum stage stage;
	bool point, cancelled;
	struct probe probe;
	uint64_t until_ns;
	unsigned int tries;
	struct timer *timer;
	struct agent_call *call;
	struct agent_exec *exec;
	int err; /* how the snapshot went */
	char text[200];
	struct disk disk;
	struct memory mem;
	build_fn fn;
	void *arg;
};

static void build_step(void *arg);
static void taken_end(void *arg);

static void probe_stop(struct build *b)
{
	if (b->call)
		agent_call_cancel(b->call);
	if (b->exec)
		agent_exec_close(b->exec);
	b->call = NULL;
	b->exec = NULL;
	timer_set(b->timer, 0);
}

static void build_free(struct build *b)
{
	loop_undefer(b->d->loop, build_step, b);
	loop_undefer(b->d->loop, taken_end, b);
	timer_remove(b->timer);
	free(b->probe.cmd);
	free(b);
}

static void sandbox_goes(struct build *b)
{
	struct sandbox *sb = b->sb;

	probe_stop(b);
	b->sb = NULL;
	sb->build = NULL;
	sandbox_delete(sb, "its point is taken");
	sandbox_unref(sb);
}

static void build_end(
	struct build *b, int err, const char *text, struct disk *disk, struct memory *mem)
{
	cJSON *base = !err ? snapshot_base(b->sb) : NULL;
	_cleanup_free_ char *why = strdup(text); /* it may be the sandbox's */

	sandbox_goes(b);
	b->fn(b->arg, err, why ? why : "", disk, mem, base);
	build_free(b);
}

/* ---- the snapshot */

static void taken_end(void *arg)
{
	struct build *b = arg;

	if (!b->cancelled) {
		build_end(b, b->err, b->text, b->err ? NULL : &b->disk, b->err ? NULL : &b->mem);
		return;
	}
	if (!b->err) {
		disk_unref(b->d->blobs, &b->disk);
		memory_unref(b->d->blobs, &b->mem);
	}
	build_free(b);
}

/* Called within the last step of the snapshot, where its sandbox may not be deleted: the rest is deferred. */
static void taken(void *arg, int err, const char *text, struct disk *disk, struct memory *mem)
{
	struct build *b = arg;

	b->err = err;
	snprintf(b->text, sizeof(b->text), "%s", text);
	if (!err) {
		b->disk = *disk;
		b->mem = *mem;
	}
	if (loop_defer(b->d->loop, taken_end, b) < 0)
		log_error("no memory to end a build");
}

/* ---- the probe */

static void is_ready(struct build *b)
{
	probe_stop(b);
	b->stage = B_READY;
	build_changed(b);
}

static void port_answered(void *arg, const struct agent_reply *r)
{
	struct build *b = arg;

	b->call = NULL;
	if (r->err == ECANCELED)
		return;
	if (r->err)
		timer_after(b->timer, AGAIN_NS);
	else
		is_ready(b);
}

static void probe_output(void *arg, int stream, const uint8_t *p, size_t n)
{
}

static void probe_started(void *arg, uint32_t pid)
{
}

static void forgotten(void *arg, const struct agent_reply *r)
{
}

static void probe_ended(void *arg, const struct agent_reply *r, uint32_t state, uint32_t code)
{
	struct build *b = arg;
	char id[32];
	struct buf p;

	if (r->err == ECANCELED)
		return;
	/* each try has an id of its own; the agent forgets the one that ended */
	snprintf(id, sizeof(id), "probe.%u", b->tries);
	buf_init(&p, 64);
	buf_str(&p, id);
	if (b->sb->agent)
		agentc_call(b->sb->agent, AGENT_FORGET, &p, 5000, forgotten, NULL);
	buf_fini(&p);
	if (!r->err && state == AGENT_EXITED && code == 0)
		b->stage = B_READY;
	/* not from inside the command's own callback, in which it may not be closed */
	timer_after(b->timer, b->stage == B_READY ? 1 : AGAIN_NS);
}

static const struct agent_exec_ops probe_ops = {
	.started = probe_started, .output = probe_output, .ended = probe_ended};

static void probe_run(struct build *b)
{
	struct agentc *a = b->sb->agent;
	uint64_t left_s = (b->until_ns - mono_ns()) / SEC + 1;
	char id[32];
	struct buf p;

	if (b->probe.kind == PROBE_TCP) {
		buf_init(&p, 16);
		buf_u16(&p, b->probe.port);
		buf_u32(&p, (uint32_t)left_s * 1000);
		b->call = agentc_call(
			a, AGENT_WAIT_PORT, &p, ((uint32_t)left_s + 5) * 1000, port_answered, b);
		buf_fini(&p);
	} else {
		const char *argv[] = {b->probe.cmd};
		struct agent_exec_spec s = {.exec_id = id,
			.flags = AGENT_X_SHELL,
			.uid = AGENT_NO_ID,
			.gid = AGENT_NO_ID,
			.user = "",
			.cwd = "",
			.session = "",
			.timeout_ms = MIN(left_s, CMD_LIMIT_S) * 1000,
			.argc = 1,
			.argv = argv};

		snprintf(id, sizeof(id), "probe.%u", ++b->tries);
		b->exec = agent_exec_start(a, &s, &probe_ops, b);
	}
	if (!b->call && !b->exec)
		timer_after(b->timer, AGAIN_NS);
}

static void timer_fired(void *arg)
{
	struct build *b = arg;

	if (b->exec)
		agent_exec_close(b->exec);
	b->exec = NULL;
	if (b->stage == B_PROBED && mono_ns() >= b->until_ns) {
		if (b->probe.kind != PROBE_WINDOW) {
			build_end(b, ETIMEDOUT, "it did not become ready in time", NULL, NULL);
			return;
		}
		b->stage = B_READY;
	}
	if (b->stage == B_READY)
		build_step(b);
	else if (b->stage == B_PROBED)
		probe_run(b);
}

/* ---- the steps */

static void start_probe(struct build *b)
{
	b->stage = B_PROBED;
	b->until_ns = mono_ns() + b->probe.limit_s * SEC;
	if (!b->point || b->probe.kind == PROBE_NONE) {
		b->stage = B_READY;
		build_step(b);
	} else if (b->probe.kind == PROBE_WINDOW) {
		timer_set(b->timer, b->until_ns);
	} else {
		probe_run(b);
	}
}

static void build_step(void *arg)
{
	struct build *b = arg;
	struct sandbox *sb = b->sb;

	if (sb->state == SB_FAILED || sb->state == SB_TERMINATED || sandbox_gone(sb)) {
		if (b->stage != B_TAKEN) /* else taken() follows, with the snapshot's result */
			build_end(b, ECHILD, *sb->message ? sb->message : "the sandbox ended", NULL,
				NULL);
		return;
	}
	if (sb->state != SB_RUNNING)
		return;
	if (b->stage == B_STARTS) {
		start_probe(b);
		return;
	}
	/* the image's own template may still be written; we are called again when it is */
	if (b->stage != B_READY || sb->op.kind)
		return;
	if (!b->point) {
		build_end(b, 0, "", NULL, NULL);
		return;
	}
	b->stage = B_TAKEN;
	if (operation_ask_snapshot(sb, taken, b) < 0)
		build_end(b, EBUSY, "no snapshot can be taken of it", NULL, NULL);
}

void build_changed(struct build *b)
{
	loop_undefer(b->d->loop, build_step, b);
	if (loop_defer(b->d->loop, build_step, b) < 0)
		timer_after(b->timer, AGAIN_NS);
}

struct build *build_start(struct daemon *d, struct spec *spec, const char *owner,
	const struct probe *p, build_fn fn, void *arg, struct refusal *x)
{
	struct build *b = calloc(1, sizeof(*b));
	struct sandbox *sb = NULL;
	char id[37];

	uuid_make(id);
	if (b) {
		*b = (struct build){.d = d,
			.fn = fn,
			.arg = arg,
			.point = p != NULL,
			.timer = loop_timer(d->loop, timer_fired, b)};
		if (b->timer && (sb = sandbox_new(d, id))) {
			sb->spec = *spec;
			memset(spec, 0, sizeof(*spec));
		}
	}
	if (p && b) {
		b->probe = *p;
		b->probe.cmd = p->cmd ? strdup(p->cmd) : NULL;
	}
	if (!sb || (p && p->cmd && !b->probe.cmd)) {
		if (sb)
			sandbox_delete(sb, "no memory");
		if (b)
			build_free(b);
		refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return NULL;
	}
	b->sb = sb;
	sb->cls = size_class_of(sb->spec.memory_bytes, sb->spec.vcpus ? sb->spec.vcpus : 1);
	if (admission_check(sb, x) < 0) {
		sandbox_delete(sb, "refused");
		build_free(b);
		return NULL;
	}
	sandbox_ref(sb);
	sb->internal = true;
	sandbox_own(sb, owner);
	sb->build = b;
	launch_create(sb);
	return b;
}

void build_cancel(struct build *b)
{
	bool later = b->stage == B_TAKEN;

	b->cancelled = true;
	loop_undefer(b->d->loop, build_step, b);
	/* a snapshot in progress calls taken(), now or later, which frees b */
	sandbox_goes(b);
	if (!later)
		build_free(b);
}
