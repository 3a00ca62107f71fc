/* SPDX-License-Identifier: Apache-2.0
 *
 * sandbox.h: one sandbox: its record, its phase and operation, its VM and agent. mayflyd's loop.
 *
 * The table of operation_table.c says which event leads to which phase. Only sandbox_accept(), sandbox_delete() and the reader of records
 * (record.c) set a phase by themselves.
 * The result of an operation is in the database before anybody hears of it (operation_commit()). Failures and the end of a monitor hold even
 * if the record cannot be written (sandbox_apply()). A struct lives while anything has a reference to it: the table of sandboxes, a request,
 * an operation in progress.
 */
#pragma once

#include <stdio.h>

#include "api/core/budgets.h"
#include "api/core/daemon.h"
#include "api/checkpoint/files.h"
#include "api/sandbox/idle.h"
#include "api/sandbox/index.h"
#include "api/sandbox/operation.h"
#include "api/core/create_request.h"
#include "api/core/text.h"

enum origin { FROM_BOOT, FROM_TEMPLATE, FROM_MEMORY };

struct transaction;

/* For a fork, pool or worker run, which waits for a create in place of a client. Called once. x NULL is one of three:
 * - the sandbox runs;
 * - the create takes long, and its promise is written (launch_promise()): a client would get the answer Pending now;
 * - a pool's machine waits (STEP_HELD).
 * x not NULL: the create failed, and the sandbox is deleted. */
typedef void (*created_fn)(void *arg, struct sandbox *sb, const struct refusal *x);

struct sandbox {
	struct daemon *d;
	struct sandbox *next, **prev, *index_next;
	struct sandbox_load counted; /* what it adds to the load of all */
	unsigned int refs;
	bool internal; /* no client knows of it: in no list, and the next daemon deletes it */
	bool run;      /* internal, and it is for a worker run */
	bool hold;     /* a pool's machine: its create waits before its set-up (STEP_HELD) */

	char id[37];
	char owner[OWNER_MAX]; /* whose it is: api/core/principal.h. Set by sandbox_own(). */
	struct owner_budget *budget;
	/* Bytes that the daemon holds. traffic: for requests to the sandbox and its agent; its parent is budget->guests. record: for its record;
	 * its parent is budget->records. */
	struct account traffic, record;
	uint64_t weighed;  /* what record has for everything but the events */
	bool counts_ended; /* in budget->ended */
	bool spent;        /* its id is not given again, if a client with the role peer chose it */
	enum sb_phase phase;
	struct operation op; /* what happens to it now */
	struct op_wish queue[OP_QUEUE_MAX];
	enum sb_state
		state; /* what clients see: follows from phase and operation, set by sandbox_settle() */
	char reason[64], message[512];
	int64_t changed_ns, created_ns, expires_ns; /* wall clock; expires_ns 0 = never */
	struct spec spec;
	struct size_class cls;
	char image_digest[72];
	struct cJSON *image_config;
	char template_key[200]; /* "" = none */
	enum origin origin;
	char origin_id[37];
	char boot_id[37]; /* what its guest shows; the machine id is made of the sandbox's id */
	struct disk disk;
	struct memory memory; /* the memory files that it was restored from, or is paused to */
	uint64_t generation;
	struct record_write *writes; /* of its record: the write in flight, and those that wait */
	uint64_t saves;              /* calls of sandbox_transaction_now(); see record_writer.c */

	struct vm *vm;
	uint32_t vm_slot;
	int vm_pid;
	uint64_t vm_start;
	struct agentc *agent;
	struct agent_exec *entry;
	/* disk_guard.c: the private layer at the last look, its size then, the bytes written in the last seconds; the limit that this daemon
	 * sent to the monitor and the file system, 0: none yet */
	struct {
		char layer[BLOB_ID];
		uint64_t bytes, lately, limit;
	} disk_use;
	uint64_t disk_waits_ns; /* when disk_waits changed last, by mono_ns(); 0: never */
	/* writes of its guest wait: the disk of this host is full, or the sandbox has reached its own limit */
	bool disk_waits;
	bool entry_missed; /* the entrypoint ended during a pause or resume: entry_watch() asks again */

	struct fileserver *files; /* of its volumes; NULL: none now */
	bool volumes_held;        /* it holds their claims */

	char egress_token[33]; /* "": it was made without a policy */
	char secure_token[33]; /* "": it was made without secureAccess */

	/* own_api.c: streams that wait for a program in it, and those that have one */
	unsigned int own_waiting, own_active;
	bool own_refused; /* its agent takes none */
	/* own_begun streams began since own_since_ns (mono_ns()). own_later fires when more may begin; NULL: never needed yet */
	uint64_t own_since_ns;
	unsigned int own_begun;
	struct timer *own_later;

	struct timer *expiry, *deadline /* of the operation's step */,
		*pending /* when a client learns that its request is in progress */,
		*waited /* how long a pause may stand in the queue */;
	struct build *build; /* the template build that it is for; NULL: none */
	created_fn created;  /* NULL: no fork, pool or run waits */
	void *created_arg;
	struct idle idle;
	struct waiter *waiters; /* requests to its endpoints that wait until it runs */
	uint64_t phase_ns[PH_COUNT];
	uint64_t renewed_ns;
	char *events[40]; /* lines, the oldest first */
	unsigned int nevents;
};

struct sandbox *sandbox_find(struct daemon *d, const char *id);
struct sandbox *sandbox_new(struct daemon *d, const char *id);
void sandbox_ref(struct sandbox *sb);
void sandbox_unref(struct sandbox *sb);
/* The record is deleted, or will be: the sandbox may not be used, and is shown only as long as sandbox_listed() says so. */
static inline bool sandbox_gone(const struct sandbox *sb)
{
	return sb->phase == PHASE_DELETED;
}
/* The only place that sets the state that clients see: phase and operation have changed. */
void sandbox_settle(struct sandbox *sb, enum op_kind k);
/* Whether clients find it. One that is being deleted is shown until the client that asked has its answer. */
static inline bool sandbox_listed(const struct sandbox *sb)
{
	return !sandbox_gone(sb) || sb->op.client;
}
/* Enters the phase that the table has for this event, has the record written, wakes the requests that wait. A result (EV_DONE,
 * EV_FAILED) ends the running operation: the caller clears away what that kept. false: the table has no such phase,
 * nothing happened. */
bool sandbox_apply(struct sandbox *sb, enum op_event ev, const char *reason, const char *fmt, ...)
	_printf_(4, 5);
/* A transaction that writes the record as it will be after this event. NULL: no memory, or a test wants it to fail. */
struct transaction *sandbox_transaction(
	struct sandbox *sb, enum op_event ev, int64_t changed_ns, const char *reason);
/* The same, for the beginning of an operation. */
struct transaction *sandbox_transaction_begin(
	struct sandbox *sb, enum op_kind k, int64_t changed_ns, const char *reason);
/* The same, as it is now. */
struct transaction *sandbox_transaction_now(struct sandbox *sb);
/* To be called when the transaction is committed: sb enters the phase, at the time that the record has. */
void sandbox_entered(struct sandbox *sb, enum op_event ev, int64_t changed_ns, const char *reason);
/* To be called after a change of state: writes the events and the log, wakes the requests that wait. */
void sandbox_said(struct sandbox *sb);
void sandbox_note(struct sandbox *sb, const char *fmt, ...) _printf_(2, 3);
/* A memory file is damaged: the sandboxes that were restored from it have that in their events. */
void sandboxes_damaged(struct daemon *d, const char *blob, const char *text);
/* Queues a write of the record; the loop does not wait. For changes that hold even if the write fails, such as the end of a
 * monitor: the next daemon finds the same. */
void sandbox_save_later(struct sandbox *sb);
/* Calls sb->created, if it is set, and clears it. true: it was set. */
bool sandbox_created(struct sandbox *sb, const struct refusal *x);
/* Ends all that runs for it, and deletes it. If its record cannot be deleted, that is tried again every second; nobody finds the sandbox
 * meanwhile. */
void sandbox_delete(struct sandbox *sb, const char *why);
#define ID_SPENT_KEY 48
/* In the table of idempotency keys, for a day: the sandbox with this id was deleted, and a peer had chosen the id. */
static inline const char *id_spent_key(const char *id, char out[static ID_SPENT_KEY])
{
	snprintf(out, ID_SPENT_KEY, "deleted-%s", id);
	return out;
}
/* sandbox_delete() for a client, which is answered when the record is deleted. */
void sandbox_delete_asked(struct sandbox *sb, struct http_req *r);
/* Queues the first write of its record. Nobody waits for it: the later commits of the create come after it. */
void sandbox_accept(struct sandbox *sb);
/* For a pool's machine that a client gets: it counts as created now, and becomes the first of the list. */
void sandbox_renew_birth(struct sandbox *sb);
void sandbox_delete_again(struct sandbox *sb); /* tries again to delete its record */
void sandbox_set_expiry(struct sandbox *sb, int64_t expires_ns);
/* Sets the timer for the moment at which the sandbox, or the record of one that ended, is deleted. */
void sandbox_due(struct sandbox *sb);
/* The oldest records of ended sandboxes are deleted until each owner keeps limits.max_ended. */
void sandboxes_bound(struct daemon *d);
void sandbox_own(struct sandbox *sb, const char *owner);
/* Charges the record as it is now, because the request or the image's configuration has changed. sandbox_note() charges the events. */
void sandbox_weigh(struct sandbox *sb);
/* Is there room for a record that is so much longer? */
bool sandbox_fits(const struct sandbox *sb, uint64_t more_bytes);
void sandbox_renew_on_access(struct sandbox *sb);
/* Calls the handler of r's route now, or when the sandbox runs, or answers with the error if it will not. */
void sandbox_when_up(struct sandbox *sb, struct http_req *r);
void sandboxes_wake(struct sandbox *sb);
bool sandbox_has_waiters(const struct sandbox *sb);
/* Requests that wait for a resume are told to ask again. */
void sandbox_refuse_waiters(struct sandbox *sb);
/* Is a sandbox based on the image with this digest (hex), or being made of it? */
bool sandboxes_need_image(const struct daemon *d, const char *image);
struct cJSON *sandbox_to_json(const struct sandbox *sb, bool for_create);
/* the record */
struct cJSON *sandbox_record(const struct sandbox *sb);
/* Takes parts out of doc. NULL: the record cannot be used, or there is no memory. */
struct sandbox *sandbox_from_record(struct daemon *d, const char *id, struct cJSON *doc);
