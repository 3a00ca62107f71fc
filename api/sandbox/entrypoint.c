/* SPDX-License-Identifier: Apache-2.0
 *
 * entrypoint.c: see entrypoint.h. mayflyd's loop. The guest says how it ended.
 */
#include "api/sandbox/entrypoint.h"

#include <cjson/cJSON.h>

#include "api/links/agent_client.h"
#include "api/sandbox/entrypoint_log.h"
#include "api/core/metrics.h"
#include "api/sandbox/launch.h"

#define LAST_WORDS_LIMIT_MS 3000u

static void teardown_later(void *arg)
{
	struct sandbox *sb = arg;

	/* a deletion has done the teardown already */
	if (!sandbox_gone(sb))
		launch_teardown(sb);
	sandbox_unref(sb);
}

/* Keeps the end of its output, then tears the machine down. */
static void last_words(void *arg, const char *text)
{
	struct sandbox *sb = arg;

	entrylog_keep(sb, text);
	if (loop_defer(sb->d->loop, teardown_later, sb) < 0)
		teardown_later(sb);
}

static void entry_ended(void *arg, const struct agent_reply *r, uint32_t state, uint32_t code)
{
	struct sandbox *sb = arg;
	bool over = false;

	if (r->err || sandbox_gone(sb))
		return;
	if (state == AGENT_EXITED && code == 0)
		over = sandbox_apply(
			sb, EV_ENTRY_OK, "CONTAINER_EXITED", "The entrypoint exited with code 0.");
	else if (state == AGENT_EXITED)
		over = sandbox_apply(sb, EV_ENTRY_BAD, "CONTAINER_EXITED_ERROR",
			"The entrypoint exited with code %u.", code);
	else if (state == AGENT_SIGNALED)
		over = sandbox_apply(sb, EV_ENTRY_BAD, "CONTAINER_EXITED_ERROR",
			"The entrypoint was ended by signal %u (code %u).", code, 128 + code);
	else
		over = sandbox_apply(sb, EV_ENTRY_BAD, "CONTAINER_EXITED_ERROR",
			"The entrypoint did not start: %.200s", r->text);
	if (!over) {
		sb->entry_missed =
			operation_cell(sb->phase, sb->op.kind, EV_ENTRY_OK).action == ACT_LATER;
		return;
	}
	sb->d->metrics.ended++;
	sandbox_ref(sb);
	if (!entrylog_ask(sb, LAST_WORDS_LIMIT_MS, last_words, sb))
		last_words(sb, "");
}

static void entry_started(void *arg, uint32_t pid)
{
}

static const struct agent_exec_ops entry_ops = {.started = entry_started, .ended = entry_ended};

void entry_watch(struct sandbox *sb)
{
	if (sb->entry_missed && sb->entry)
		agent_exec_close(take_ptr(sb->entry));
	sb->entry_missed = false;
	if (!sb->entry && sb->agent && cJSON_GetArraySize(sb->spec.entrypoint) > 0)
		sb->entry = agent_exec_attach(sb->agent, "entrypoint", 0, 0, &entry_ops, sb);
}
