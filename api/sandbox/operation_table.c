/* SPDX-License-Identifier: Apache-2.0
 *
 * operation_table.c: phase x operation x event. Pure data: tests/unit/operation.c looks at every cell. mayflyd's loop.
 */
#include "api/sandbox/operation.h"

#include "api/core/metrics.h"

const char *const sb_state_names[SB_STATES] = {[SB_PENDING] = "Pending",
	[SB_RUNNING] = "Running",
	[SB_PAUSING] = "Pausing",
	[SB_PAUSED] = "Paused",
	[SB_RESUMING] = "Resuming",
	[SB_STOPPING] = "Stopping",
	[SB_TERMINATED] = "Terminated",
	[SB_FAILED] = "Failed"};

const char *const sb_phase_names[PHASE_COUNT] = {[PHASE_NEW] = "new",
	[PHASE_ACCEPTED] = "accepted",
	[PHASE_RUNNING] = "running",
	[PHASE_PAUSED] = "paused",
	[PHASE_RESIDENT] = "paused in memory",
	[PHASE_TERMINATED] = "terminated",
	[PHASE_FAILED] = "failed",
	[PHASE_DELETED] = "deleted"};

const char *const op_kind_names[OP_KINDS] = {[OP_NONE] = "none",
	[OP_CREATE] = "create",
	[OP_TEMPLATE] = "template",
	[OP_SNAPSHOT] = "snapshot",
	[OP_PAUSE] = "pause",
	[OP_PAUSE_MEMORY] = "pause in memory",
	[OP_RESUME] = "resume",
	[OP_RESUME_MEMORY] = "resume from memory",
	[OP_THAW] = "thaw",
	[OP_DELETE] = "delete"};

const char *const op_event_names[OP_EVENTS] = {[ASK_CREATE] = "create asked",
	[ASK_SNAPSHOT] = "snapshot asked",
	[ASK_PAUSE] = "pause asked",
	[ASK_PAUSE_MEMORY] = "pause in memory asked",
	[ASK_RESUME] = "resume asked",
	[ASK_DELETE] = "delete asked",
	[ASK_USE] = "use asked",
	[EV_DONE] = "done",
	[EV_FAILED] = "failed",
	[EV_VM_ENDED] = "VM ended",
	[EV_ENTRY_OK] = "entrypoint ended",
	[EV_ENTRY_BAD] = "entrypoint failed"};

const struct op_step_desc op_steps[STEP_COUNT] = {
	[STEP_NONE] = {.name = "", .phase = PH_COUNT},
	[STEP_VOLUMES] = {.name = "opening the volumes", .phase = PH_COUNT},
	[STEP_IMAGE] = {.name = "getting the image", .phase = PH_IMAGE},
	[STEP_TURN] = {.name = "waiting for its turn", .phase = PH_TURN},
	[STEP_DISK] = {.name = "making the disk", .phase = PH_DISK},
	[STEP_VMM] = {.name = "starting the VMM", .phase = PH_BLANK, .limited = true},
	[STEP_BOOT] = {.name = "booting", .phase = PH_BOOT, .limited = true},
	[STEP_RESTORE] = {.name = "restoring", .phase = PH_RESTORE, .limited = true},
	[STEP_AGENT] = {.name = "waiting for the agent", .phase = PH_AGENT},
	[STEP_AGENT_BACK] = {.name = "waiting for the agent", .phase = PH_AGENT, .limited = true},
	[STEP_THAW] = {.name = "giving it its identity", .phase = PH_SETUP, .limited = true},
	[STEP_TEMPLATE] = {.name = "taking the template", .phase = PH_SNAPSHOT},
	[STEP_MOUNT] = {.name = "mounting the volumes", .phase = PH_COUNT, .limited = true},
	[STEP_HOOK] = {.name = "running the restore hook", .phase = PH_SETUP, .limited = true},
	[STEP_HELD] = {.name = "waiting in its pool", .phase = PH_COUNT},
	[STEP_SETUP] = {.name = "starting the entrypoint", .phase = PH_SETUP, .limited = true},
	[STEP_RUN] = {.name = "running", .phase = PH_SETUP},
	[STEP_FREEZE] = {.name = "freezing the guest",
		.phase = PH_COUNT,
		.holds = true,
		.limited = true},
	[STEP_COPY] = {.name = "copying the machine",
		.phase = PH_COUNT,
		.holds = true,
		.limited = true},
	[STEP_WRITE] = {.name = "writing", .phase = PH_COUNT},
	[STEP_STOP] = {.name = "stopping the vCPUs",
		.phase = PH_COUNT,
		.holds = true,
		.limited = true},
	[STEP_CONTINUE] = {.name = "continuing the vCPUs", .phase = PH_COUNT, .holds = true},
	[STEP_RELEASE] = {.name = "thawing the guest", .phase = PH_COUNT, .holds = true},
	[STEP_SETTLE] = {.name = "looking how far it got",
		.phase = PH_COUNT,
		.holds = true,
		.limited = true},
	[STEP_BEGIN] = {.name = "writing the record", .phase = PH_COUNT},
	[STEP_COMMIT] = {.name = "writing the record", .phase = PH_COMMIT},
	[STEP_RECORD] = {.name = "deleting the record", .phase = PH_COUNT},
};

/* Which operation runs in which phase, and what clients see then. +1, so that an empty cell means never. */
#define SHOW(s) ((s) + 1)
static const uint8_t shows[PHASE_COUNT][OP_KINDS] = {
	[PHASE_NEW] = {[OP_NONE] = SHOW(SB_PENDING)},
	[PHASE_ACCEPTED] = {[OP_NONE] = SHOW(SB_PENDING), [OP_CREATE] = SHOW(SB_PENDING)},
	[PHASE_RUNNING] = {[OP_NONE] = SHOW(SB_RUNNING),
		[OP_TEMPLATE] = SHOW(SB_RUNNING),
		[OP_SNAPSHOT] = SHOW(SB_RUNNING),
		[OP_PAUSE] = SHOW(SB_PAUSING),
		[OP_PAUSE_MEMORY] = SHOW(SB_PAUSING),
		[OP_THAW] = SHOW(SB_RUNNING)},
	[PHASE_PAUSED] = {[OP_NONE] = SHOW(SB_PAUSED), [OP_RESUME] = SHOW(SB_RESUMING)},
	[PHASE_RESIDENT] = {[OP_NONE] = SHOW(SB_PAUSED), [OP_RESUME_MEMORY] = SHOW(SB_RESUMING)},
	/* The entrypoint ended while a checkpoint was written: the operation stays until launch_teardown(). */
	[PHASE_TERMINATED] = {[OP_NONE] = SHOW(SB_TERMINATED),
		[OP_TEMPLATE] = SHOW(SB_TERMINATED),
		[OP_SNAPSHOT] = SHOW(SB_TERMINATED),
		[OP_THAW] = SHOW(SB_TERMINATED)},
	[PHASE_FAILED] = {[OP_NONE] = SHOW(SB_FAILED),
		[OP_TEMPLATE] = SHOW(SB_FAILED),
		[OP_SNAPSHOT] = SHOW(SB_FAILED),
		[OP_THAW] = SHOW(SB_FAILED)},
	[PHASE_DELETED] = {[OP_NONE] = SHOW(SB_STOPPING), [OP_DELETE] = SHOW(SB_STOPPING)},
};

enum sb_state operation_shows(enum sb_phase p, enum op_kind running)
{
	uint8_t s = shows[p][running];

	return s ? (enum sb_state)(s - 1) : SB_STATES;
}

/* A cell is one byte: the action, and which operation or phase. */
#define CELL(act, what) ((act) << 4 | (what))
#define IGNORE          CELL(ACT_IGNORE, 0)
#define START(k)        CELL(ACT_START, k)
#define QUEUE(k)        CELL(ACT_QUEUE, k)
#define WRONG           CELL(ACT_WRONG, 0)
#define BUSY            CELL(ACT_BUSY, 0)
#define GO              CELL(ACT_GO, 0)
#define HOLD            CELL(ACT_HOLD, 0)
#define LATER           CELL(ACT_LATER, 0)
#define TO(p)           CELL(ACT_TO, p)

/* ASKS: neither a snapshot nor a pause may be asked for. ALONE: nothing but a delete. */
#define ASKS(resume, delete)                                                                       \
	[ASK_SNAPSHOT] = WRONG, [ASK_PAUSE] = WRONG, [ASK_PAUSE_MEMORY] = WRONG,                   \
	[ASK_RESUME] = (resume), [ASK_DELETE] = (delete)
#define ALONE ASKS(WRONG, START(OP_DELETE))
/* The guest runs: when its monitor or its entrypoint ends, the sandbox ends. */
#define RUNS                                                                                       \
	[EV_VM_ENDED] = TO(PHASE_FAILED), [EV_ENTRY_OK] = TO(PHASE_TERMINATED),                    \
	[EV_ENTRY_BAD] = TO(PHASE_FAILED)
#define ENTRY_LATER [EV_ENTRY_OK] = LATER, [EV_ENTRY_BAD] = LATER
#define QUEUES_PAUSE                                                                               \
	[ASK_PAUSE] = QUEUE(OP_PAUSE), [ASK_PAUSE_MEMORY] = QUEUE(OP_PAUSE_MEMORY),                \
	[ASK_RESUME] = WRONG, [ASK_DELETE] = START(OP_DELETE)
/* The sandbox has ended; a checkpoint may still be written. */
#define ENDED(delete)                                                                              \
	ASKS(WRONG, delete), [ASK_USE] = WRONG, [EV_DONE] = IGNORE, [EV_FAILED] = IGNORE,          \
			     [EV_VM_ENDED] = IGNORE, [EV_ENTRY_OK] = IGNORE,                       \
			     [EV_ENTRY_BAD] = IGNORE

static_assert(OP_KINDS <= 16 && PHASE_COUNT <= 16 && ACT_COUNT <= 16, "a cell is one byte");
static const uint8_t cells[PHASE_COUNT][OP_KINDS][OP_EVENTS] = {
	[PHASE_NEW] =
		{[OP_NONE] = {[ASK_CREATE] = START(OP_CREATE), [ASK_DELETE] = START(OP_DELETE)}},
	[PHASE_ACCEPTED] = {[OP_NONE] = {ALONE, [ASK_CREATE] = START(OP_CREATE), [ASK_USE] = HOLD,
				    /* an earlier daemon was making it, and nobody knows of it */
				    [EV_FAILED] = TO(PHASE_FAILED)},
		[OP_CREATE] = {ALONE, [ASK_USE] = HOLD, [EV_DONE] = TO(PHASE_RUNNING),
			[EV_FAILED] = TO(PHASE_FAILED), [EV_VM_ENDED] = TO(PHASE_FAILED),
			[EV_ENTRY_OK] = LATER, [EV_ENTRY_BAD] = LATER}},
	[PHASE_RUNNING] =
		{[OP_NONE] = {RUNS, [ASK_SNAPSHOT] = START(OP_SNAPSHOT),
			 [ASK_PAUSE] = START(OP_PAUSE), [ASK_PAUSE_MEMORY] = START(OP_PAUSE_MEMORY),
			 [ASK_RESUME] = WRONG, [ASK_DELETE] = START(OP_DELETE), [ASK_USE] = GO},
			[OP_TEMPLATE] = {RUNS,
				QUEUES_PAUSE, [ASK_SNAPSHOT] = QUEUE(OP_SNAPSHOT), [ASK_USE] = GO,
				[EV_DONE] = TO(PHASE_RUNNING), [EV_FAILED] = TO(PHASE_RUNNING)},
			[OP_SNAPSHOT] = {RUNS, QUEUES_PAUSE, [ASK_SNAPSHOT] = BUSY, [ASK_USE] = GO,
				[EV_DONE] = TO(PHASE_RUNNING), [EV_FAILED] = TO(PHASE_RUNNING)},
			[OP_PAUSE] = {ALONE,
				ENTRY_LATER, [ASK_USE] = WRONG, [EV_DONE] = TO(PHASE_PAUSED),
				[EV_FAILED] = TO(PHASE_RUNNING), [EV_VM_ENDED] = TO(PHASE_FAILED)},
			[OP_PAUSE_MEMORY] = {ALONE, ENTRY_LATER, [ASK_USE] = WRONG,
				[EV_DONE] = TO(PHASE_RESIDENT), [EV_FAILED] = TO(PHASE_RUNNING),
				[EV_VM_ENDED] = TO(PHASE_FAILED)},
			[OP_THAW] =
				{RUNS, QUEUES_PAUSE, [ASK_SNAPSHOT] = QUEUE(OP_SNAPSHOT),
					[ASK_USE] = GO, [EV_DONE] = TO(PHASE_RUNNING)}},
	[PHASE_PAUSED] =
		{/* the end of its monitor is expected: EV_VM_ENDED is ignored */
			[OP_NONE] = {ASKS(START(OP_RESUME), START(OP_DELETE)),
				ENTRY_LATER, [ASK_USE] = WRONG, [EV_VM_ENDED] = IGNORE},
			/* whichever step fails: the files of the pause are complete */
			[OP_RESUME] = {ALONE, ENTRY_LATER, [ASK_USE] = HOLD,
				[EV_DONE] = TO(PHASE_RUNNING), [EV_FAILED] = TO(PHASE_PAUSED),
				[EV_VM_ENDED] = TO(PHASE_PAUSED)}},
	[PHASE_RESIDENT] =
		{[OP_NONE] = {ASKS(START(OP_RESUME_MEMORY), START(OP_DELETE)),
			 ENTRY_LATER, [ASK_USE] = WRONG, [EV_VM_ENDED] = TO(PHASE_FAILED)},
			[OP_RESUME_MEMORY] = {ALONE, ENTRY_LATER, [ASK_USE] = HOLD,
				[EV_DONE] = TO(PHASE_RUNNING), [EV_FAILED] = TO(PHASE_RESIDENT),
				[EV_VM_ENDED] = TO(PHASE_FAILED)}},
	[PHASE_TERMINATED] = {[OP_NONE] = {ENDED(START(OP_DELETE))},
		[OP_TEMPLATE] = {ENDED(START(OP_DELETE))},
		[OP_SNAPSHOT] = {ENDED(START(OP_DELETE))},
		[OP_THAW] = {ENDED(START(OP_DELETE))}},
	[PHASE_FAILED] = {[OP_NONE] = {ENDED(START(OP_DELETE))},
		[OP_TEMPLATE] = {ENDED(START(OP_DELETE))},
		[OP_SNAPSHOT] = {ENDED(START(OP_DELETE))},
		[OP_THAW] = {ENDED(START(OP_DELETE))}},
	[PHASE_DELETED] = {[OP_NONE] = {ENDED(IGNORE)}, [OP_DELETE] = {ENDED(IGNORE)}},
};

struct op_cell operation_cell(enum sb_phase p, enum op_kind running, enum op_event ev)
{
	uint8_t c = cells[p][running][ev];

	return (struct op_cell){.action = c >> 4, .what = c & 15};
}
