/* SPDX-License-Identifier: Apache-2.0
 *
 * sandbox.h: one sandbox: its record, its state machine, its VM and agent. mayflyd's loop.
 *
 * Every transition goes through the table in sandbox.c and is in the database before anybody is
 * told. A struct lives while the table or a request refers to it; `gone` says that its record is
 * deleted.
 */
#pragma once

#include "api/core/daemon.h"
#include "api/checkpoint/files.h"
#include "api/core/create_request.h"
#include "api/core/text.h"

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
enum sb_event {
	EV_STARTED,
	EV_START_FAILED,
	EV_PAUSE,
	EV_PAUSED,
	EV_PAUSE_FAILED,
	EV_RESUME,
	EV_RESUMED,
	EV_ENTRY_OK,
	EV_ENTRY_BAD,
	EV_VM_DIED,
	EV_DELETE,
	SB_EVENTS
};

extern const char *const sb_state_names[SB_STATES];
/* SB_STATES: this event has no place in this state. */
enum sb_state sb_next(enum sb_state s, enum sb_event ev);

enum origin { FROM_BOOT, FROM_TEMPLATE, FROM_MEMORY };

/* When a point is durable (err 0; disk and mem are the callee's, with references) or failed. It may
 * outlive the sandbox. */
typedef void (*snap_fn)(
	void *arg, int err, const char *text, struct disk *disk, struct memory *mem);

/* What an image's configuration and a request make together; kept for snapshots. */
struct sandbox {
	struct daemon *d;
	struct sandbox *next, **prev;
	unsigned int refs;
	bool frozen; /* Running, but its guest stands still for a snapshot or was not let go yet:
			requests wait */
	bool gone, persisted, pause_waits,
		resident /* paused, or being resumed, with its VM alive */,
		pause_resident /* the pause that waits is of that kind */,
		zombie /* deleted, but its record is still there */;
	bool internal; /* a build's: in no list */

	char id[37];
	char owner[OWNER_MAX]; /* whose it is: api/core/principal.h */
	enum sb_state state;
	char reason[64], message[512];
	int64_t changed_ns, created_ns, expires_ns; /* wall clock; expires_ns 0 = never */
	struct spec spec;
	struct size_class cls;
	char image_digest[72];
	struct cJSON *image_config;
	char template_key[200]; /* "" = none */
	enum origin origin;
	char origin_id[37];
	char boot_id[37]; /* what its guest shows; the machine id is made of the sandbox's */
	struct disk disk;
	struct memory memory; /* what the running or paused memory stands on */
	uint64_t generation;

	struct vm *vm;
	uint32_t vm_slot;
	int vm_pid;
	uint64_t vm_start;
	struct agentc *agent;
	struct agent_exec *entry;
	bool entry_missed; /* its end came while it was paused or resumed: it is asked for again */

	struct timer *expiry, *deadline,
		*pending;      /* pending: when a client is told that it is under way */
	struct launch *launch; /* while it is being made, paused or resumed */
	struct snap *snap;     /* while a point of it is taken */
	struct snap_waits {    /* a snapshot that is taken when its template is written */
		snap_fn fn;
		void *arg;
	} snap_waits;
	struct build *build;     /* whose it is, if it is internal */
	struct http_req *answer; /* who waits for create, pause or resume */
	struct waiter *waiters;  /* execd requests held until it runs */
	uint64_t phase_ns[PH_COUNT], begun_ns;
	uint64_t renewed_ns;
	char events[40][160];
	unsigned int nevents;
};

struct sandbox *sandbox_find(struct daemon *d, const char *id);
struct sandbox *sandbox_new(struct daemon *d, const char *id);
void sandbox_ref(struct sandbox *sb);
void sandbox_unref(struct sandbox *sb);
/* Applies the event, writes the record, wakes who waits. false: no such transition, nothing
 * happened. */
bool sandbox_apply(struct sandbox *sb, enum sb_event ev, const char *reason, const char *fmt, ...)
	_printf_(4, 5);
/* The same, for what must not be so without standing in the record: false also if that cannot be
 * written, and then nothing happened. */
bool sandbox_apply_saved(struct sandbox *sb, enum sb_event ev, const char *reason);
void sandbox_note(struct sandbox *sb, const char *fmt, ...) _printf_(2, 3);
/* 0 or -errno: written. */
int sandbox_save(struct sandbox *sb, bool sync);
/* Answers 204 through r (if there is one) when the record is gone for good; the rest is cleared
 * away afterwards. */
/* -errno: it is gone, but its record is still there, and is tried again every second. */
int sandbox_delete(struct sandbox *sb, const char *why);
void sandbox_set_expiry(struct sandbox *sb, int64_t expires_ns);
void sandbox_renew_on_access(struct sandbox *sb);
/* Runs fn(r) now, or when the sandbox runs, or answers with the error if it will not. */
void sandbox_when_up(struct sandbox *sb, struct http_req *r);
void sandboxes_wake(struct sandbox *sb);
/* The guest was let go (or cannot be): no longer frozen. */
void sandbox_let_go(struct sandbox *sb);
struct cJSON *sandbox_to_json(const struct sandbox *sb, bool for_create);
/* the record */
struct cJSON *sandbox_record(const struct sandbox *sb);
/* Takes parts out of doc. NULL: the record cannot be used, or there is no memory. */
struct sandbox *sandbox_from_record(struct daemon *d, const char *id, struct cJSON *doc);

/* launch.c: making one run */
void launch_create(struct sandbox *sb);
/* One that an earlier daemon was making: made from the start, if its client knows of it. false:
 * not. */
bool launch_take_up(struct sandbox *sb);
void launch_pause(struct sandbox *sb);
void launch_resume(struct sandbox *sb);
bool launch_adopt(struct sandbox *sb);    /* false: it does not run any more */
void launch_teardown(struct sandbox *sb); /* VM, agent, timers: all that runs for it */
