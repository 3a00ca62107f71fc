/* SPDX-License-Identifier: Apache-2.0
 *
 * hooks.c: lifecycle hooks. The loop's thread. The text is a client's. A hook runs as root without
 * a shell, with a command's environment; its output is kept like a background command's, under the
 * id hook.NAME or "hook.preStart", until it runs again.
 */
#include "agent/hooks.h"

#include <stdio.h>
#include <string.h>

#include "agent/env.h"
#include "agent/exec.h"
#include "agent/json.h"
#include "agent/life.h"
#include "agent/conn.h"
#include "agent/proc.h"
#include "agent/req_exec.h"
#include "agent/schedule.h"
#include "agent/session.h"

#define HOOKS_MAX 32u
#define ARGV_MAX  256u
#define WAITS_MAX 8u

#define SCRIPT_VAR      "EXECD_BOOTSTRAP_PRE_SCRIPT"
#define SCRIPT_LIMIT_MS 300000

struct hook {
	struct agent *a;
	char id[PROC_ID_MAX + 1], name[48];
	char **argv;
	uint32_t argc;
	uint64_t timeout_s;
	struct schedule when;
	struct timer *timer;
	bool runs;
};

struct hooks {
	struct hook pre;
	struct hook periodic[HOOKS_MAX];
	size_t n;
	char **entry_argv;
	uint32_t entry_argc;
	bool started, pre_pending;
	struct {
		uint64_t conn;
		uint32_t id;
	} waits[WAITS_MAX]; /* for the entrypoint */
	size_t nwaits;
};

static void hook_fini(struct hook *h)
{
	for (uint32_t i = 0; i < h->argc; i++)
		free(h->argv[i]);
	free(h->argv);
	timer_remove(h->timer);
	*h = (struct hook){0};
}

void hooks_fini(struct agent *a)
{
	if (!a->hooks)
		return;
	hook_fini(&a->hooks->pre);
	for (size_t i = 0; i < a->hooks->n; i++)
		hook_fini(&a->hooks->periodic[i]);
	free(a->hooks->entry_argv);
	free(a->hooks);
	a->hooks = NULL;
}

static bool take_text(struct json *j, char *to, size_t cap)
{
	struct buf b;
	bool ok;

	buf_init(&b, 4096);
	ok = json_string(j, &b) && b.len < cap && strlen(buf_cstr(&b)) == b.len;
	if (ok)
		memcpy(to, buf_cstr(&b), b.len + 1);
	buf_fini(&b);
	return ok;
}

static bool take_command(struct json *j, struct hook *h)
{
	bool first = true;

	if (h->argv || !json_array(j))
		return false;
	h->argv = calloc(ARGV_MAX + 1, sizeof(*h->argv));
	while (h->argv && json_item(j, &first)) {
		struct buf b;
		bool ok;

		buf_init(&b, KIB(64));
		ok = h->argc < ARGV_MAX && json_string(j, &b) && strlen(buf_cstr(&b)) == b.len;
		if (ok)
			ok = (h->argv[h->argc] = strdup(buf_cstr(&b))) != NULL;
		buf_fini(&b);
		if (!ok)
			return false;
		h->argc++;
	}
	return !j->bad && h->argc > 0 && h->argv[0][strspn(h->argv[0], " \t")];
}

static bool take_hook(struct agent *a, struct json *j, struct hook *h, bool periodic)
{
	char key[32], when[256] = "";
	bool first = true, ok = true;

	h->a = a;
	h->timeout_s = 60;
	if (!json_object(j))
		return false;
	while (ok && json_key(j, key, sizeof(key), &first)) {
		if (json_null(j))
			continue;
		if (!strcmp(key, "command"))
			ok = take_command(j, h);
		else if (!strcmp(key, "timeoutSeconds"))
			ok = json_u64(j, &h->timeout_s) && h->timeout_s >= 1 &&
			     h->timeout_s <= 10800;
		else if (periodic && !strcmp(key, "name"))
			ok = take_text(j, h->name, sizeof(h->name)) && h->name[0];
		else if (periodic && !strcmp(key, "schedule"))
			ok = take_text(j, when, sizeof(when));
		else
			json_skip(j);
	}
	if (!ok || j->bad || !h->argc)
		return false;
	if (!periodic)
		return true;
	return h->name[0] && schedule_parse(when, &h->when) == 0;
}

static bool take_periodic(struct agent *a, struct json *j, struct hooks *hs)
{
	bool first = true;

	if (!json_array(j))
		return false;
	while (json_item(j, &first)) {
		struct hook *h = &hs->periodic[hs->n];

		if (hs->n == HOOKS_MAX)
			return false;
		hs->n++;
		if (!take_hook(a, j, h, true))
			return false;
		memcpy(h->id, "hook.", 5);
		memcpy(h->id + 5, h->name, sizeof(h->name));
		for (size_t i = 0; i + 1 < hs->n; i++)
			if (!strcmp(hs->periodic[i].name, h->name))
				return false;
	}
	return !j->bad;
}

int hooks_set(struct agent *a, const char *text, struct err *e)
{
	struct json j = {.p = text, .end = text + strlen(text)};
	char key[32];
	bool first = true, ok = true;

	hooks_fini(a);
	a->hooks = calloc(1, sizeof(*a->hooks));
	if (!a->hooks)
		return err_plain(e, ENOMEM, "no memory");
	if (json_null(&j))
		return 0;
	json_object(&j);
	while (ok && json_key(&j, key, sizeof(key), &first)) {
		if (json_null(&j))
			continue;
		if (!strcmp(key, "preStart"))
			ok = take_hook(a, &j, &a->hooks->pre, false);
		else if (!strcmp(key, "periodic"))
			ok = take_periodic(a, &j, a->hooks);
		else
			json_skip(&j);
	}
	if (ok && json_end(&j))
		return 0;
	hooks_fini(a);
	return err_plain(e, EINVAL, "the lifecycle is not valid near \"%.20s\"",
		j.p < j.end ? j.p : "its end");
}

bool hooks_wait(struct agent *a, struct conn *c, uint32_t id)
{
	struct hooks *hs = a->hooks;

	if (!hs || !hs->pre_pending)
		return false;
	if (hs->nwaits == WAITS_MAX) {
		conn_error(c, id, EAGAIN, AGENT_STEP_BUSY, "too many wait for the entrypoint");
		return true;
	}
	hs->waits[hs->nwaits].conn = conn_number(c);
	hs->waits[hs->nwaits++].id = id;
	return true;
}

/* The script and preStart have ended, and the entrypoint was started or its failure recorded.
 * Answers the requests that wait. */
static void hooks_pre_done(struct agent *a)
{
	struct hooks *hs = a->hooks;

	hs->pre_pending = false;
	while (hs->nwaits) {
		struct conn *c = conn_find(a, hs->waits[--hs->nwaits].conn);

		if (c)
			exec_attach(a, c, hs->waits[hs->nwaits].id, ENTRYPOINT_ID, 0, 0, 0);
	}
}

static void hook_ended(struct agent *a, struct proc *p)
{
	struct hook *h = p->on_end_arg;

	h->runs = false;
	if (p->state != AGENT_EXITED || p->code)
		log_warn("%s: state %d, code %u", p->id, p->state, p->code);
	p->on_end = NULL;
	if (h == &a->hooks->pre) {
		char why[100];
		char **argv = take_ptr(a->hooks->entry_argv);

		snprintf(why, sizeof(why), "preStart %s %u",
			p->state == AGENT_TIMED_OUT  ? "took too long: signal"
			: p->state == AGENT_SIGNALED ? "ended by signal"
						     : "failed with",
			p->code);
		if (p->state != AGENT_EXITED || p->code)
			life_entrypoint_failed(a, ECANCELED, why);
		else if (a->hooks->entry_argc)
			life_start_entrypoint(a, argv, a->hooks->entry_argc);
		free(argv);
		hooks_pre_done(a);
	}
}

static void hook_started(struct agent *a, struct proc *p, void *arg, int code, enum agent_step step,
	const char *text)
{
	struct hook *h = arg;

	if (!code) {
		p->on_end = hook_ended;
		p->on_end_arg = h;
		return;
	}
	h->runs = false;
	log_warn("hook %s: %s", h->id, text);
	if (h == &a->hooks->pre) {
		life_entrypoint_failed(a, code, text);
		hooks_pre_done(a);
	}
}

static void hook_run(struct hook *h)
{
	struct agent *a = h->a;
	struct exec_req r = {
		.flags = AGENT_X_BACKGROUND, .uid = 0, .gid = 0, .argc = h->argc, .argv = h->argv};
	struct proc *old = proc_find(a, h->id);
	enum agent_step step;
	struct err e = {0};
	int rc;

	/* destroy the last run's record, even if the host has not forgotten it: its id is needed */
	if (old && old->exited)
		proc_destroy(old);
	snprintf(r.id, sizeof(r.id), "%s", h->id);
	r.timeout_ms = h->timeout_s * 1000;
	r.cwd = strdup("");
	r.env = env_new();
	rc = r.cwd && r.env ? exec_start(a, &r, hook_started, h, &step, &e)
			    : err_plain(&e, ENOMEM, "no memory");
	h->runs = rc == 0;
	r.argv = NULL;
	exec_req_free(&r);
	if (rc < 0)
		hook_started(a, NULL, h, -rc, step, e.msg);
}

static void hook_arm(struct hook *h)
{
	uint64_t now = wall_ns(), next = schedule_next(&h->when, now / 1000000000);

	if (h->timer && h->when.every_s)
		timer_after(h->timer, h->when.every_s * 1000000000);
	else if (h->timer && next)
		timer_after(h->timer, next * 1000000000 - now);
}

static void hook_due(void *arg)
{
	struct hook *h = arg;

	hook_arm(h);
	/* skip this tick if the last run has not ended, or a snapshot is being taken */
	if (!h->runs && !h->a->frozen)
		hook_run(h);
}

void hooks_clock_changed(struct agent *a)
{
	if (!a->hooks || !a->hooks->started)
		return;
	for (size_t i = 0; i < a->hooks->n; i++)
		hook_arm(&a->hooks->periodic[i]);
}

/* The script has ended or there is none: preStart, then the entrypoint. */
static void hooks_pre_start(struct agent *a)
{
	struct hooks *hs = a->hooks;
	char **argv;

	if (hs->pre.argc) {
		snprintf(hs->pre.id, sizeof(hs->pre.id), "hook.preStart");
		hs->pre_pending = true;
		hook_run(&hs->pre);
		return;
	}
	argv = take_ptr(hs->entry_argv);
	if (hs->entry_argc)
		life_start_entrypoint(a, argv, hs->entry_argc);
	free(argv);
	if (hs->pre_pending)
		hooks_pre_done(a);
}

static void script_failed(struct agent *a, int code, const char *why)
{
	free(take_ptr(a->hooks->entry_argv));
	life_entrypoint_failed(a, code, why);
	hooks_pre_done(a);
}

static void script_ended(struct agent *a, struct proc *p)
{
	char why[100];

	p->on_end = NULL;
	session_drop(a->pre_script);
	a->pre_script = session_take(a, HOOKS_SCRIPT_ID);
	if (p->state == AGENT_EXITED && !p->code) {
		hooks_pre_start(a);
		return;
	}
	snprintf(why, sizeof(why), "EXECD_BOOTSTRAP_PRE_SCRIPT %s %u",
		p->state == AGENT_TIMED_OUT  ? "took too long: signal"
		: p->state == AGENT_SIGNALED ? "ended by signal"
					     : "failed with",
		p->code);
	script_failed(a, ECANCELED, why);
}

static void script_started(struct agent *a, struct proc *p, void *arg, int code,
	enum agent_step step, const char *text)
{
	if (!code) {
		p->on_end = script_ended;
		return;
	}
	(void)session_destroy(a, HOOKS_SCRIPT_ID);
	script_failed(a, code, text);
}

/* A shell session of its own (HOOKS_SCRIPT_ID) sources the script, so that its exports can be kept. A
 * missing script is skipped with a warning. A command that fails in the script does not count. The
 * script fails if its shell exits with another code than 0 (`exit 1`, `set -e`), is killed, or runs
 * longer than SCRIPT_LIMIT_MS. */
static void script_run(struct agent *a, const char *path)
{
	static char text[] = "if [ -f \"$" SCRIPT_VAR "\" ] && [ -r \"$" SCRIPT_VAR "\" ]; then\n"
			     "case $" SCRIPT_VAR " in\n*/*) . \"$" SCRIPT_VAR "\" ;;\n"
			     "*) . \"./$" SCRIPT_VAR "\" ;;\nesac\n"
			     "else echo \"$" SCRIPT_VAR ": not found or not readable\" >&2; fi\n:";
	char *argv[] = {text, NULL};
	struct exec_req r = {.flags = AGENT_X_SHELL | AGENT_X_BACKGROUND,
		.uid = AGENT_NO_ID,
		.gid = AGENT_NO_ID,
		.argc = 1,
		.argv = argv,
		.timeout_ms = SCRIPT_LIMIT_MS};
	enum agent_step step = AGENT_STEP_NONE;
	struct err e = {0};
	int rc;

	snprintf(r.id, sizeof(r.id), "hook.preScript");
	snprintf(r.session, sizeof(r.session), "%s", HOOKS_SCRIPT_ID);
	r.cwd = strdup("");
	r.env = env_new();
	rc = r.cwd && r.env ? env_set(r.env, SCRIPT_VAR, path) : -ENOMEM;
	if (rc == 0)
		rc = session_create(
			a, HOOKS_SCRIPT_ID, a->workdir && *a->workdir ? a->workdir : "/");
	if (rc == 0)
		rc = exec_start(a, &r, script_started, NULL, &step, &e);
	r.argv = NULL;
	exec_req_free(&r);
	if (rc < 0)
		script_started(a, NULL, NULL, -rc, step, e.code ? e.msg : "no memory");
}

void hooks_start(struct agent *a, char **argv, uint32_t argc)
{
	const char *script = exec_setup_var(a, SCRIPT_VAR);
	struct hooks *hs = a->hooks;

	if (!hs && script && *script)
		hs = a->hooks = calloc(1, sizeof(*hs));
	if (!hs) {
		if (argc)
			life_start_entrypoint(a, argv, argc);
		free(argv);
		return;
	}
	for (size_t i = 0; i < hs->n; i++)
		hs->periodic[i].timer = loop_timer(a->loop, hook_due, &hs->periodic[i]);
	hs->started = true;
	hooks_clock_changed(a);
	hs->entry_argv = argv;
	hs->entry_argc = argc;
	if (script && *script) {
		hs->pre_pending = true;
		script_run(a, script);
	} else {
		hooks_pre_start(a);
	}
}
