/* SPDX-License-Identifier: Apache-2.0
 *
 * operation: every cell of phase x operation x event, written down a second time as a letter, and what must hold for
 * all of them.
 */
#include "lib/test.h"

#include <string.h>

#include "api/core/metrics.h"
#include "api/sandbox/operation.h"

/* Events in the order of enum op_event: create, snapshot, pause, pause in memory, resume, delete, use; done, failed, VM
 * ended, entrypoint ended, entrypoint failed.
 * Letters: S starts, Q queued, W wrong state, B busy, G goes, H held, L later, I ignored, - never. The phase that is
 * entered: r running, p paused, m resident, t terminated, f failed. */
static const struct {
	enum sb_phase phase;
	enum op_kind op;
	enum sb_state shows;
	const char *cells;
} rows[] = {
	{PHASE_NEW, OP_NONE, SB_PENDING,
		"S----S-"
		"-----"},
	{PHASE_ACCEPTED, OP_NONE, SB_PENDING,
		"SWWWWSH"
		"-f---"},
	{PHASE_ACCEPTED, OP_CREATE, SB_PENDING,
		"-WWWWSH"
		"rffLL"},
	{PHASE_RUNNING, OP_NONE, SB_RUNNING,
		"-SSSWSG"
		"--ftf"},
	{PHASE_RUNNING, OP_TEMPLATE, SB_RUNNING,
		"-QQQWSG"
		"rrftf"},
	{PHASE_RUNNING, OP_SNAPSHOT, SB_RUNNING,
		"-BQQWSG"
		"rrftf"},
	{PHASE_RUNNING, OP_PAUSE, SB_PAUSING,
		"-WWWWSW"
		"prfLL"},
	{PHASE_RUNNING, OP_PAUSE_MEMORY, SB_PAUSING,
		"-WWWWSW"
		"mrfLL"},
	{PHASE_RUNNING, OP_THAW, SB_RUNNING,
		"-QQQWSG"
		"r-ftf"},
	{PHASE_PAUSED, OP_NONE, SB_PAUSED,
		"-WWWSSW"
		"--ILL"},
	{PHASE_PAUSED, OP_RESUME, SB_RESUMING,
		"-WWWWSH"
		"rppLL"},
	{PHASE_RESIDENT, OP_NONE, SB_PAUSED,
		"-WWWSSW"
		"--fLL"},
	{PHASE_RESIDENT, OP_RESUME_MEMORY, SB_RESUMING,
		"-WWWWSH"
		"rmfLL"},
	{PHASE_TERMINATED, OP_NONE, SB_TERMINATED,
		"-WWWWSW"
		"IIIII"},
	{PHASE_TERMINATED, OP_TEMPLATE, SB_TERMINATED,
		"-WWWWSW"
		"IIIII"},
	{PHASE_TERMINATED, OP_SNAPSHOT, SB_TERMINATED,
		"-WWWWSW"
		"IIIII"},
	{PHASE_TERMINATED, OP_THAW, SB_TERMINATED,
		"-WWWWSW"
		"IIIII"},
	{PHASE_FAILED, OP_NONE, SB_FAILED,
		"-WWWWSW"
		"IIIII"},
	{PHASE_FAILED, OP_TEMPLATE, SB_FAILED,
		"-WWWWSW"
		"IIIII"},
	{PHASE_FAILED, OP_SNAPSHOT, SB_FAILED,
		"-WWWWSW"
		"IIIII"},
	{PHASE_FAILED, OP_THAW, SB_FAILED,
		"-WWWWSW"
		"IIIII"},
	{PHASE_DELETED, OP_NONE, SB_STOPPING,
		"-WWWWIW"
		"IIIII"},
	{PHASE_DELETED, OP_DELETE, SB_STOPPING,
		"-WWWWIW"
		"IIIII"},
};

static char letter(struct op_cell c)
{
	static const char acts[] = {[ACT_NEVER] = '-',
		[ACT_IGNORE] = 'I',
		[ACT_START] = 'S',
		[ACT_QUEUE] = 'Q',
		[ACT_WRONG] = 'W',
		[ACT_BUSY] = 'B',
		[ACT_GO] = 'G',
		[ACT_HOLD] = 'H',
		[ACT_LATER] = 'L'};
	static const char phases[] = {[PHASE_NEW] = 'n',
		[PHASE_ACCEPTED] = 'a',
		[PHASE_RUNNING] = 'r',
		[PHASE_PAUSED] = 'p',
		[PHASE_RESIDENT] = 'm',
		[PHASE_TERMINATED] = 't',
		[PHASE_FAILED] = 'f',
		[PHASE_DELETED] = 'd'};

	if (c.action == ACT_TO)
		return c.what < PHASE_COUNT ? phases[c.what] : '?';
	return c.action < sizeof(acts) && acts[c.action] ? acts[c.action] : '?';
}

static int row_of(enum sb_phase p, enum op_kind k)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (rows[i].phase == p && rows[i].op == k)
			return (int)i;
	return -1;
}

static void every_cell(void)
{
	char got[OP_EVENTS + 1];

	for (int p = 0; p < PHASE_COUNT; p++)
		for (int k = 0; k < OP_KINDS; k++) {
			int i = row_of((enum sb_phase)p, (enum op_kind)k);

			for (int e = 0; e < OP_EVENTS; e++)
				got[e] = letter(operation_cell(
					(enum sb_phase)p, (enum op_kind)k, (enum op_event)e));
			got[OP_EVENTS] = 0;
			CHECK_STR(got, i < 0 ? "------------" : rows[i].cells);
			CHECK_INT(operation_shows((enum sb_phase)p, (enum op_kind)k),
				i < 0 ? SB_STATES : rows[i].shows);
			if (i >= 0 && strcmp(got, rows[i].cells) != 0)
				printf("%s, %s\n", sb_phase_names[p], op_kind_names[k]);
		}
}

static const enum op_kind asked[OP_EVENTS] = {[ASK_CREATE] = OP_CREATE,
	[ASK_SNAPSHOT] = OP_SNAPSHOT,
	[ASK_PAUSE] = OP_PAUSE,
	[ASK_PAUSE_MEMORY] = OP_PAUSE_MEMORY,
	[ASK_DELETE] = OP_DELETE};

static void what_is_asked_for_is_what_begins(void)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		for (int e = 0; e < OP_EVENTS; e++) {
			struct op_cell c =
				operation_cell(rows[i].phase, rows[i].op, (enum op_event)e);

			if (c.action != ACT_START && c.action != ACT_QUEUE)
				continue;
			CHECK(e < EV_DONE);
			if (e == ASK_RESUME)
				CHECK_INT(c.what, rows[i].phase == PHASE_RESIDENT ? OP_RESUME_MEMORY
										  : OP_RESUME);
			else
				CHECK_INT(c.what, asked[e]);
			/* what may begin in this phase has a state, and what waits may begin later */
			if (c.what == OP_DELETE)
				CHECK_INT(operation_shows(PHASE_DELETED, OP_DELETE), SB_STOPPING);
			else if (c.what == OP_CREATE)
				CHECK_INT(operation_shows(PHASE_ACCEPTED, OP_CREATE), SB_PENDING);
			else
				CHECK(operation_shows(rows[i].phase, (enum op_kind)c.what) !=
					SB_STATES);
			if (c.action == ACT_QUEUE)
				CHECK_INT(operation_cell(rows[i].phase, OP_NONE, (enum op_event)e)
						  .action,
					ACT_START);
		}
}

static void what_always_holds(void)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		enum op_kind k = rows[i].op;
		bool idle = k == OP_NONE;

		for (int e = 0; e < OP_EVENTS; e++) {
			struct op_cell c = operation_cell(rows[i].phase, k, (enum op_event)e);

			/* the phase that is entered exists by itself */
			if (c.action == ACT_TO)
				CHECK(operation_shows((enum sb_phase)c.what, OP_NONE) != SB_STATES);
			/* nothing but a happening changes the phase */
			CHECK(c.action != ACT_TO || e >= EV_DONE);
			/* only what runs can be waited for */
			CHECK(c.action != ACT_QUEUE || !idle);
		}
		/* a delete is never refused */
		CHECK(strchr("SI", letter(operation_cell(rows[i].phase, k, ASK_DELETE))));
		/* every operation can end well, and its failure is in the table; nobody waits for ever */
		if (!idle && k != OP_DELETE && k != OP_THAW) {
			CHECK(operation_cell(rows[i].phase, k, EV_DONE).action != ACT_NEVER);
			CHECK(operation_cell(rows[i].phase, k, EV_FAILED).action != ACT_NEVER);
		}
		/* where a request is held, an operation runs that lets it go (or will be made again) */
		if (operation_cell(rows[i].phase, k, ASK_USE).action == ACT_HOLD)
			CHECK(!idle || rows[i].phase == PHASE_ACCEPTED);
	}
}

static void names_and_steps(void)
{
	for (int i = 0; i < OP_KINDS; i++)
		CHECK(op_kind_names[i] && *op_kind_names[i]);
	for (int i = 0; i < OP_EVENTS; i++)
		CHECK(op_event_names[i] && *op_event_names[i]);
	for (int i = 0; i < PHASE_COUNT; i++)
		CHECK(sb_phase_names[i] && *sb_phase_names[i]);
	for (int i = 0; i < SB_STATES; i++)
		CHECK(sb_state_names[i] && *sb_state_names[i]);
	for (int i = 0; i < STEP_COUNT; i++) {
		CHECK(op_steps[i].name && op_steps[i].phase <= PH_COUNT);
		CHECK(i == STEP_NONE || *op_steps[i].name);
	}
	/* where the guest is frozen requests wait, and nowhere else */
	static const enum op_step still[] = {
		STEP_FREEZE, STEP_COPY, STEP_STOP, STEP_CONTINUE, STEP_RELEASE, STEP_SETTLE};
	unsigned int n = 0;

	for (int i = 0; i < STEP_COUNT; i++)
		n += op_steps[i].holds;
	CHECK_INT(n, ARRAY_LEN(still));
	for (size_t i = 0; i < ARRAY_LEN(still); i++)
		CHECK(op_steps[still[i]].holds);
}

static const struct test tests[] = {
	{"every_cell", every_cell},
	{"what_is_asked_for_is_what_begins", what_is_asked_for_is_what_begins},
	{"what_always_holds", what_always_holds},
	{"names_and_steps", names_and_steps},
};
TEST_MAIN(tests)
