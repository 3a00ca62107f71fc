/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.h: the one store of checkpoints: memory, device state and frozen disk layers of a machine
 * at one moment, with an owner and a purpose. Snapshots, image templates and user templates are kinds
 * of it: they share the record, the list, the loading at start, the removal and the counted files.
 * The fields of one kind are in its own struct, which begins with a struct checkpoint. mayflyd's loop.
 *
 * A change of state is committed first and visible afterwards: until then every reader sees the old
 * state.
 */
#pragma once

#include "api/checkpoint/files.h"
#include "api/core/account.h"
#include "api/core/daemon.h"
#include "api/core/principal.h"

struct cJSON;
struct http_req;
struct checkpoint;

enum cp_state { CP_PENDING, CP_CREATING, CP_READY, CP_FAILED, CP_STATES };
extern const char *const cp_state_names[CP_STATES];

struct workset {
	unsigned int rounds;    /* how often it was recorded */
	uint64_t read, written; /* pages, in the last recording */
	bool recording;
};

/* What makes a kind. Each function may be NULL. */
struct checkpoint_kind {
	const char *purpose;    /* in records */
	const char *word;       /* in messages */
	size_t bytes;           /* of its struct */
	bool old_files_serve;   /* its files are used in any state: new ones may be in the making */
	bool image_comes_later; /* before it is Ready it may need any image */
	/* Its own fields. `local` holds what is true on this host only. */
	void (*save)(const struct checkpoint *c, struct cJSON *doc, struct cJSON *local);
	/* 0 or -errno: the record cannot be used. May take parts out of both. */
	int (*load)(struct checkpoint *c, struct cJSON *doc, const struct cJSON *local);
	void (*fini)(struct checkpoint *c);
	/* bytes that its own fields point to, beside its struct */
	uint64_t (*weight)(const struct checkpoint *c);
	/* One of its files is damaged. May remove c. */
	void (*damaged)(struct checkpoint *c, const char *text);
};

struct checkpoint {
	struct checkpoint *next; /* in the order of (created_ns, id), newest first */
	struct daemon *d;
	const struct checkpoint_kind *kind;
	char id[48], owner[OWNER_MAX];
	enum cp_state state;
	char reason[64], message[300];
	int64_t created_ns, changed_ns; /* wall clock */
	struct disk disk;
	struct memory mem;           /* state "": there are no files (yet) */
	struct workset ws, ws_saved; /* ws_saved: what the database has, and clients see */
	struct cJSON *base;          /* what its sandboxes need to know of its source */
	struct account record;       /* bytes of it, below the records of its owner */
	uint64_t weighed;
	bool listed;
	bool deleting; /* its deletion is being committed */
	struct cp_step *steps;
};

/* e NULL: committed. r: as it was handed over. */
typedef void (*checkpoint_fn)(struct checkpoint *c, struct http_req *r, const struct err *e);

/* ---- one of them */

/* In no list yet; created now, the operator's, Pending. NULL: no memory. */
struct checkpoint *checkpoint_new(
	struct daemon *d, const struct checkpoint_kind *k, const char *id);
/* Charges c to its owner. To be called before a checkpoint that a client asked for is listed. NULL: charged. Else the account that
 * is full; nothing was charged. */
struct account *checkpoint_charge(struct checkpoint *c);
void checkpoint_list_add(struct checkpoint *c);
/* Removes c from the list, drops its references to files and frees it. The record stays. Callbacks of commits in flight
 * are not called. */
void checkpoint_forget(struct checkpoint *c);
/* Takes disk and mem with their references, and drops the old ones. */
void checkpoint_files_set(struct checkpoint *c, const struct disk *disk, const struct memory *mem);
void checkpoint_files_drop(struct checkpoint *c);

/* Commits the state `to` with all other fields as they are now. When the commit has ended, c enters
 * the state and fn (may be NULL; an error is logged) is called. After a failed commit c keeps its
 * state, unless `to` is Failed: that is entered also then. sync: the commit is synced. Without memory
 * fn is called from inside. While c is being deleted nothing happens, and fn is not called. */
void checkpoint_set(struct checkpoint *c, enum cp_state to, bool sync, const char *reason,
	const char *message, checkpoint_fn fn, struct http_req *r);
/* Commits the fields as they are. Nobody waits. */
void checkpoint_save(struct checkpoint *c);
/* Commits the deletion, synced. Without an error c is out of the list when fn is called, and freed
 * afterwards. */
void checkpoint_delete(struct checkpoint *c, checkpoint_fn fn, struct http_req *r);
/* Removes c now and its record soon: for what can be made again. */
void checkpoint_drop(struct checkpoint *c);

/* ---- all of them */

/* Reads the records of these kinds; NULL ends the list. A record of any other kind is quarantined. A checkpoint that was
 * Creating when the last daemon ended is still Creating. */
void checkpoints_load(struct daemon *d, const struct checkpoint_kind *const *kinds);
/* The newest of this kind, and the next older one. */
struct checkpoint *checkpoint_first(const struct daemon *d, const struct checkpoint_kind *k);
struct checkpoint *checkpoint_next(const struct checkpoint *c);
struct checkpoint *checkpoint_find(
	const struct daemon *d, const struct checkpoint_kind *k, const char *id);
/* One of any kind whose files can be restored; "tpl-" before the id may be missing. */
struct checkpoint *checkpoint_usable(const struct daemon *d, const char *id);
bool checkpoint_has_files(const struct checkpoint *c);
/* Does one need the disk of the image of that digest (hex)? */
bool checkpoints_need_image(const struct daemon *d, const char *image);
/* Tells every checkpoint that has this memory file that it is damaged. */
void checkpoints_damaged(struct daemon *d, const char *blob, const char *text);

struct cJSON *workset_to_json(const struct workset *w);
void workset_from_json(struct workset *w, const struct cJSON *o);
