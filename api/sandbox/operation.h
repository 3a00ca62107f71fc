/* SPDX-License-Identifier: Apache-2.0
 *
 * operation.h: what the daemon is doing to a sandbox. mayflyd's loop.
 *
 * Each sandbox has a phase (what it is while nothing happens to it), at most one running operation and a short queue.
 * The table in operation_table.c says for every phase, operation and event what happens. The state that clients see follows from phase and
 * operation. Whether a request for the guest waits depends on the running step and on the idle policy, too (sandbox_use()). A delete is
 * possible in every phase: sandbox_delete() does not look at the table.
 *
 * A new operation is: a row in enum op_kind, its cells in the table, and its steps here. A step that only the monitor or
 * the agent can finish has a deadline of its own. Exceptions: the deadline of the whole operation is enough (the guest's boot: STEP_AGENT), or
 * the time depends on the disk (STEP_WRITE, which no deadline bounds).
 */
#pragma once

#include "lib/base.h"

struct http_req;
struct launch;
struct rollback;
struct snap;

/* What the sandbox is while no operation changes it. */
enum sb_phase {
	PHASE_NEW,      /* not accepted yet: it has no record */
	PHASE_ACCEPTED, /* it has a record; it was never started */
	PHASE_RUNNING,
	PHASE_PAUSED,   /* on disk, no monitor */
	PHASE_RESIDENT, /* paused, its monitor keeps the memory */
	PHASE_TERMINATED,
	PHASE_FAILED,
	PHASE_DELETED, /* its record may still be there: the delete operation tries again */
	PHASE_COUNT
};

/* What clients see. */
enum sb_state {
	SB_PENDING,
	SB_RUNNING,
	SB_PAUSING,
	SB_PAUSED,
	SB_RESUMING,
	SB_STOPPING,
	SB_TERMINATED,
	SB_FAILED,
	SB_STATES
};
extern const char *const sb_state_names[SB_STATES];

enum op_kind {
	OP_NONE,
	OP_CREATE,
	OP_TEMPLATE, /* the image's template is still being written; the sandbox runs */
	OP_SNAPSHOT,
	OP_PAUSE,        /* to disk */
	OP_PAUSE_MEMORY, /* the vCPUs stop, memory stays */
	OP_RESUME,       /* from disk */
	OP_RESUME_MEMORY,
	OP_THAW, /* the result of another operation is known; the guest's processes are being continued */
	OP_DELETE,
	OP_KINDS
};

enum op_event {
	/* somebody asks */
	ASK_CREATE,
	ASK_SNAPSHOT,
	ASK_PAUSE,
	ASK_PAUSE_MEMORY,
	ASK_RESUME,
	ASK_DELETE,
	ASK_USE, /* a request that needs the guest: a command, a file, a port */
	/* something happened */
	EV_DONE,
	EV_FAILED,
	EV_VM_ENDED,
	EV_ENTRY_OK, /* the entrypoint ended with code 0 */
	EV_ENTRY_BAD,
	OP_EVENTS
};

enum op_action {
	ACT_NEVER,  /* cannot happen: ignored, and logged as a bug */
	ACT_IGNORE, /* may happen, changes nothing */
	ACT_START,  /* the operation begins now */
	ACT_QUEUE,  /* it begins when the running one has ended */
	ACT_WRONG,  /* refused: the sandbox is in another state */
	ACT_BUSY,   /* refused: another operation runs */
	ACT_GO, /* the request goes to the guest (or waits while a step of the operation holds requests) */
	ACT_HOLD,  /* the request waits for the operation */
	ACT_LATER, /* not now: asked for again when the sandbox runs */
	ACT_TO,    /* the sandbox enters another phase */
	ACT_COUNT
};

struct op_cell {
	uint8_t action; /* enum op_action */
	uint8_t what;   /* ACT_START, ACT_QUEUE: enum op_kind. ACT_TO: enum sb_phase */
};
struct op_cell operation_cell(enum sb_phase p, enum op_kind running, enum op_event ev);
/* The state that clients see. SB_STATES: this operation never runs in this phase. */
enum sb_state operation_shows(enum sb_phase p, enum op_kind running);
extern const char *const op_kind_names[OP_KINDS];
extern const char *const op_event_names[OP_EVENTS];
extern const char *const sb_phase_names[PHASE_COUNT];

enum op_step {
	STEP_NONE,
	STEP_VOLUMES, /* the helper opens the sources of its volumes */
	STEP_IMAGE,
	STEP_TURN,
	STEP_DISK,
	STEP_VMM,
	STEP_BOOT,
	STEP_RESTORE,
	STEP_AGENT,
	STEP_AGENT_BACK, /* of a restored machine: it answers soon or never */
	STEP_THAW,       /* the agent gives a restored machine its identity */
	STEP_TEMPLATE,   /* the image's template is taken on the way of a create */
	STEP_MOUNT,      /* a file server is started, and the agent mounts the volumes */
	STEP_HOOK,       /* a command of the image runs in a restored machine (restore_hook.h) */
	STEP_HELD,       /* a pool's machine waits for its create */
	STEP_SETUP,
	STEP_RUN,
	STEP_FREEZE,   /* the agent stops the guest's processes */
	STEP_COPY,     /* the monitor freezes the disk's layer and copies what it needs */
	STEP_WRITE,    /* the checkpoint is written; the guest goes on, except for a pause */
	STEP_STOP,     /* the monitor stops the vCPUs */
	STEP_CONTINUE, /* the monitor continues the vCPUs */
	STEP_RELEASE,  /* the agent continues the guest's processes */
	STEP_SETTLE,   /* after a failure or a restart of the daemon: how far did it get? */
	STEP_BEGIN,    /* its beginning is being written; until then clients see what was before */
	STEP_COMMIT,   /* the result is being written; nobody sees it before */
	STEP_RECORD,   /* the record is deleted */
	STEP_COUNT
};
struct op_step_desc {
	const char *name; /* for people: "booting" */
	uint8_t phase;    /* enum phase: the histogram that counts its time */
	bool holds;       /* the guest is frozen: requests wait */
	bool limited;     /* only the monitor or the agent can finish it: step_timeout_seconds */
};
extern const struct op_step_desc op_steps[STEP_COUNT];

/* Called when a checkpoint is durable (err 0; disk and mem are the callee's, with references) or has failed. The sandbox
 * may be deleted by then. */
struct disk;
struct memory;
typedef void (*snap_fn)(
	void *arg, int err, const char *text, struct disk *disk, struct memory *mem);

/* The running operation; kind OP_NONE: there is none. */
struct operation {
	enum op_kind kind;
	enum op_step step;
	uint64_t begun_ns, step_ns, ends_ns; /* ends_ns 0: no deadline for the whole */
	int64_t limit_s;           /* for errors: the deadline in force, of step or whole */
	struct http_req *client;   /* the client that waits for its answer */
	const char *refused;       /* delete: the client's create failed for this reason */
	struct launch *launch;     /* create, resume: what its steps keep */
	struct rollback *rollback; /* pause, resume: it goes back to a snapshot */
	struct snap *
		snap; /* snapshot, template, pause, create with a template: the checkpoint that is taken */
};

/* An operation that waits in the queue. */
struct op_wish {
	enum op_kind kind;       /* OP_NONE: free */
	bool in_ram;             /* a snapshot: for a fork */
	struct http_req *client; /* NULL: nobody waits for the answer */
	snap_fn fn;
	void *arg;
};
#define OP_QUEUE_MAX 2u /* a snapshot and a pause; a second of a kind is refused */

/* ---- the engine (operation.c) */

struct sandbox;

bool operation_init(struct sandbox *sb); /* its timers; false: no memory */
void operation_fini(struct sandbox *sb);

/* A client asks for a pause or a resume: starts it, queues it, or answers with the reason why not. r NULL: the daemon itself asks. */
void operation_ask(struct sandbox *sb, enum op_event ask, struct http_req *r);
/* The daemon itself pauses it in memory, if it runs and nothing else happens to it. */
void operation_pause_memory(struct sandbox *sb);
/* Somebody asks for a snapshot. 0; -EBUSY or -EINVAL: fn is not called. */
int operation_ask_snapshot(struct sandbox *sb, snap_fn fn, void *arg);
/* The same operation; memory and state stay in RAM (take_fork). */
int operation_ask_fork(struct sandbox *sb, snap_fn fn, void *arg);
/* Makes k the running operation. limit_s: the deadline of the whole operation; 0: none. */
void operation_begin(struct sandbox *sb, enum op_kind k, int64_t limit_s);
typedef void (*op_saved_fn)(struct sandbox *sb, bool saved);
/* The same, but the beginning is first written into the record. fn is called with true when it is written, with false when it
 * cannot be: then nothing has happened, and fn answers the client. Not called if the operation ended meanwhile. The loop does not wait. */
void operation_begin_saved(
	struct sandbox *sb, enum op_kind k, int64_t limit_s, const char *reason, op_saved_fn fn);
void operation_step(struct sandbox *sb, enum op_step s);
/* Commits the result of the running operation: writes the record as it will be, and enters that phase when it is written. fn is
 * called with true then, or with false: the record cannot be written, and nothing has changed. Not called if the operation ended
 * meanwhile. The loop does not wait. */
void operation_commit(struct sandbox *sb, enum op_event ev, const char *reason, op_saved_fn fn);
/* Nothing runs any more: the next one of the queue begins, and requests that wait for the guest go on. */
void operation_end(struct sandbox *sb);
/* The guest's processes must be continued: sends the thaw to the agent. Its answer ends the operation, unless a checkpoint is still being
 * written. Requests wait until the answer. */
void operation_thaw(struct sandbox *sb);
/* The sandbox ends: client and queue are answered; nothing runs any more. */
void operation_drop(struct sandbox *sb);
/* r waits for the running operation, or for the one that begins next. A client that leaves waits no longer. r NULL: nobody waits. */
void operation_client_waits(struct sandbox *sb, struct http_req *r);
/* The client that waits, taken out; NULL: none. */
struct http_req *operation_client(struct sandbox *sb);
/* Requests for the guest wait. */
bool operation_holds(const struct sandbox *sb);
