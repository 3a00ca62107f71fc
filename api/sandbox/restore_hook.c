/* SPDX-License-Identifier: Apache-2.0
 *
 * restore_hook.c: see restore_hook.h. mayflyd's loop. The guest's answer is hostile: only the end of the command and its code are used.
 */
#include "api/sandbox/restore_hook.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/links/agent_client.h"
#include "lib/json.h"

#define HOOK_ID       "restore-hook"
#define HOOK_LIMIT_MS 30000u

struct restore_hook {
	struct sandbox *sb;
	struct agent_exec *exec;
	restore_hook_fn done;
	bool failed;
	char why[120];
};

static const char *variable(const cJSON *env)
{
	const char *v = json_str(env, RESTORE_HOOK_VAR);

	return v && *v ? v : NULL;
}

const char *restore_hook_due(const struct sandbox *sb)
{
	const char *asked = json_str(sb->spec.extensions, RESTORE_HOOK_EXT), *own;

	if (sb->op.kind == OP_RESUME || sb->origin != FROM_MEMORY)
		return NULL;
	if (sb->spec.source != SRC_TEMPLATE && (!asked || strcmp(asked, "run") != 0))
		return NULL;
	own = variable(sb->spec.env);
	return own ? own : variable(cJSON_GetObjectItemCaseSensitive(sb->image_config, "env"));
}

static void hook_over(void *arg)
{
	struct restore_hook *h = arg;
	struct sandbox *sb = h->sb;
	restore_hook_fn done = h->done;
	bool failed = h->failed;
	char why[sizeof(h->why)];

	memcpy(why, h->why, sizeof(why));
	h->done = NULL; /* its owner cancels it, in done() or later */
	done(sb, failed ? why : NULL);
}

static void ignore_reply(void *arg, const struct agent_reply *r)
{
}

static void hook_forget(struct sandbox *sb)
{
	struct buf p;

	buf_init(&p, 64);
	buf_str(&p, HOOK_ID);
	if (sb->agent)
		agentc_call(sb->agent, AGENT_FORGET, &p, 5000, ignore_reply, NULL);
	buf_fini(&p);
}

static void hook_started(void *arg, uint32_t pid)
{
}

static void hook_output(void *arg, int stream, const uint8_t *p, size_t n)
{
}

/* A connection may not be closed from inside its own callback. */
static void hook_ended(void *arg, const struct agent_reply *r, uint32_t state, uint32_t code)
{
	struct restore_hook *h = arg;

	if (r->err == ECANCELED)
		return;
	h->failed = r->err || state != AGENT_EXITED || code != 0;
	if (r->err)
		snprintf(h->why, sizeof(h->why), "%.100s", *r->text ? r->text : strerror(r->err));
	else if (h->failed)
		snprintf(h->why, sizeof(h->why), "%s %u",
			state == AGENT_EXITED      ? "it ended with code"
			: state == AGENT_TIMED_OUT ? "it took too long: signal"
						   : "it was ended by signal",
			code);
	hook_forget(h->sb);
	if (loop_defer(h->sb->d->loop, hook_over, h) < 0)
		hook_over(h);
}

static const struct agent_exec_ops hook_ops = {
	.started = hook_started, .output = hook_output, .ended = hook_ended};

struct restore_hook *restore_hook_run(struct sandbox *sb, const char *command, restore_hook_fn done)
{
	struct restore_hook *h = calloc(1, sizeof(*h));
	const char *argv[] = {command};
	struct agent_exec_spec s = {.exec_id = HOOK_ID,
		.flags = AGENT_X_SHELL,
		.user = "",
		.cwd = "/",
		.session = "",
		.timeout_ms = HOOK_LIMIT_MS,
		.argc = 1,
		.argv = argv};

	if (!h)
		return NULL;
	*h = (struct restore_hook){.sb = sb, .done = done};
	h->exec = agent_exec_start(sb->agent, &s, &hook_ops, h);
	if (h->exec)
		return h;
	free(h);
	return NULL;
}

void restore_hook_cancel(struct restore_hook *h)
{
	if (!h)
		return;
	loop_undefer(h->sb->d->loop, hook_over, h);
	agent_exec_close(h->exec);
	free(h);
}
