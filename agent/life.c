/* SPDX-License-Identifier: Apache-2.0
 *
 * life.c: the sandbox's life: set-up with its entrypoint, environment, shutdown. The loop's thread;
 * payloads are the host's.
 */
#include "agent/life.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/boot.h"
#include "agent/exec.h"
#include "agent/freeze.h"
#include "agent/hooks.h"
#include "agent/ident.h"
#include "agent/proc.h"
#include "agent/procio.h"
#include "agent/request.h"

#define STOP_GRACE_MS 10000 /* from SIGTERM to SIGKILL, as container engines have it */

void req_ping(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	if (cur_done(b))
		conn_ok(c, id, NULL);
	else
		req_bad(a, c, id);
}

void req_set_env(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct envset *e = env_new();
	int rc = e ? env_parse(e, b) : -ENOMEM;

	if (rc < 0 || !cur_done(b)) {
		env_unref(e);
		req_bad(a, c, id);
		return;
	}
	env_unref(a->setup_env);
	a->setup_env = e;
	conn_ok(c, id, NULL);
}

void req_limits(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	uint64_t memory = cur_u64(b);
	int rc;

	if (!cur_done(b)) {
		req_bad(a, c, id);
		return;
	}
	rc = cgroups_memory(a, memory);
	if (rc < 0)
		conn_error(c, id, -rc, AGENT_STEP_NONE, "limit of %llu bytes of memory: %s",
			(unsigned long long)memory, strerror(-rc));
	else
		conn_ok(c, id, NULL);
}

/* Records an entrypoint that could not start, as a process that has ended, for later requests. */
static void entrypoint_failed(struct agent *a, int code, const char *text)
{
	struct proc *p = proc_create(a, ENTRYPOINT_ID, AGENT_X_BACKGROUND);

	log_warn("entrypoint: %s", text);
	if (!p)
		return;
	p->entrypoint = p->exited = p->ended = p->started = true;
	p->state = AGENT_NOT_STARTED;
	p->code = (uint32_t)code;
	p->started_ns = p->finished_ns = wall_ns();
	snprintf(p->error, sizeof(p->error), "%s", text);
}

static void entrypoint_started(struct agent *a, struct proc *p, void *arg, int code,
	enum agent_step step, const char *text)
{
	struct conn *c;

	if (!code) {
		p->entrypoint = true;
		return;
	}
	/* The failed process is destroyed when we return. The record needs its id now, and takes
	 * over the connection that waits for its end. */
	p->id[0] = 0;
	c = take_ptr(p->conn);
	entrypoint_failed(a, code, text);
	p = proc_find(a, ENTRYPOINT_ID);
	if (c && p && procio_attach(p, c, 0, 0) == 0)
		procio_pump(p);
	else
		conn_close(c);
}

void life_entrypoint_failed(struct agent *a, int code, const char *text)
{
	entrypoint_failed(a, code, text);
}

void life_start_entrypoint(struct agent *a, char **argv, uint32_t argc)
{
	struct exec_req r = {.flags = AGENT_X_BACKGROUND,
		.uid = AGENT_NO_ID,
		.gid = AGENT_NO_ID,
		.argc = argc,
		.argv = argv};
	enum agent_step step;
	struct err e = {0};
	int rc;

	snprintf(r.id, sizeof(r.id), ENTRYPOINT_ID);
	r.cwd = strdup("");
	r.env = env_new();
	rc = r.cwd && r.env ? exec_start(a, &r, entrypoint_started, NULL, &step, &e)
			    : err_plain(&e, ENOMEM, "no memory");
	r.argv = NULL; /* the caller's */
	exec_req_free(&r);
	if (rc < 0)
		entrypoint_failed(a, -rc, e.msg);
}

void req_setup(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	enum agent_step step = AGENT_STEP_NONE;
	struct setup_req r;
	struct err e = {0};
	int rc;

	if (freeze_park(a, c, id, req_setup, b))
		return;
	rc = setup_parse(b, &r);
	if (rc < 0) {
		conn_error(c, id, rc, AGENT_STEP_NONE, "the set-up request is not valid");
		return;
	}
	if (a->is_set_up)
		rc = err_plain(&e, EALREADY, "this sandbox is set up already");
	if (rc == 0 && *r.lifecycle)
		rc = hooks_set(a, r.lifecycle, &e);
	/* a template is restored frozen: its set-up is its thaw */
	if (rc == 0)
		rc = freeze_end(a, &r.id, &step, &e);
	if (rc < 0) {
		conn_error(c, id, rc, step, "%s", e.msg);
		setup_req_free(&r);
		return;
	}
	env_unref(a->image_env);
	a->image_env = take_ptr(r.image_env);
	free(a->workdir);
	a->workdir = take_ptr(r.workdir);
	free(a->user);
	a->user = take_ptr(r.user);
	a->is_set_up = true;
	if (a->opts.init && *a->workdir == '/')
		mkdir(a->workdir, 0755); /* as container engines do; EEXIST as a rule */
	hooks_start(a, take_ptr(r.argv), r.argc);
	conn_ok(c, id, NULL);
	setup_req_free(&r);
}

static bool others_left(struct agent *a)
{
	return a->opts.init ? kill(-1, 0) == 0 : false;
}

static void shutdown_fired(void *arg)
{
	struct agent *a = arg;

	if (a->opts.init) {
		kill(-1, SIGKILL);
		procs_reap(a);
		boot_power_off();
	}
	for (struct proc *p = a->procs; p; p = p->next)
		proc_signal(p, SIGKILL);
	loop_stop(a->loop, 0);
}

void shutdown_check(struct agent *a)
{
	bool any = others_left(a);

	for (struct proc *p = a->procs; p && !any; p = p->next)
		any = p->pid > 0;
	if (a->shutting_down && !any)
		timer_after(a->shutdown_timer, 0);
}

/* 0 or -ENOMEM. */
static int shutdown_begin(struct agent *a, uint32_t grace_ms)
{
	if (!a->shutdown_timer)
		a->shutdown_timer = loop_timer(a->loop, shutdown_fired, a);
	if (!a->shutdown_timer)
		return -ENOMEM;
	a->shutting_down = true;
	if (a->opts.init)
		kill(-1, SIGTERM);
	else
		for (struct proc *p = a->procs; p; p = p->next)
			proc_signal(p, SIGTERM);
	timer_after(a->shutdown_timer, (uint64_t)grace_ms * 1000000);
	return 0;
}

void req_shutdown(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	uint32_t grace_ms = cur_u32(b);

	if (!cur_done(b)) {
		req_bad(a, c, id);
		return;
	}
	if (shutdown_begin(a, grace_ms) < 0) {
		conn_error(c, id, ENOMEM, AGENT_STEP_NONE, "no memory");
		return;
	}
	conn_ok(c, id, NULL);
	shutdown_check(a);
}

void life_signal(struct agent *a, int sig)
{
	struct proc *p = proc_find(a, ENTRYPOINT_ID);
	bool runs = p && p->entrypoint && proc_signal(p, sig) == 0;

	if (sig != SIGTERM)
		return;
	if (runs)
		proc_kill_after(p, STOP_GRACE_MS);
	else if (shutdown_begin(a, STOP_GRACE_MS) == 0)
		shutdown_check(a);
}
