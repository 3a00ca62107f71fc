/* SPDX-License-Identifier: Apache-2.0
 *
 * volumes.h: named claims, and the file servers (mayfly-fs) of sandboxes. mayflyd's loop.
 *
 * A claim is a folder that the helper keeps, with a record here: its name is unique within its owner's namespace. A sandbox that names a
 * claim holds it from its create to its deletion. A claim that is deleted is emptied by a jailed process first.
 */
#pragma once

#include "api/core/create_request.h"
#include "api/core/principal.h"
#include "lib/err.h"

struct cJSON;
struct daemon;
struct http_req;
struct priv_msg;
struct vm;
struct volumes;

#define CLAIM_FOLDER 33

struct claim {
	struct claim *next;
	char folder[CLAIM_FOLDER]; /* 32 hexadecimal digits: also the record's key */
	char name[254], owner[OWNER_MAX];
	int64_t created_ns;
	uint64_t max_bytes; /* what its files may take on the disk; 0: no limit of its own */
	bool delete_after;  /* it is deleted with the last sandbox that holds it */
	bool deleting;
	bool committed;      /* its record is written */
	unsigned int uses;   /* sandboxes that hold it */
	unsigned int writes; /* writes of its record that are in progress */
};

struct volumes *volumes_create(struct daemon *d, struct err *e);
void volumes_destroy(struct volumes *v);
/* Loads the claims' records. Call it before those of sandboxes are loaded. */
void volumes_load(struct volumes *v);
/* The sandboxes and monitors are known: continues deletions and takes over file servers. complete: every record was read. */
void volumes_loaded(struct volumes *v, bool complete);
/* Called for each process of which the helper reports the end. v may be NULL. */
void volumes_process_exited(struct volumes *v, const struct priv_msg *ev);

/* ---- claims */

#define CLAIMS_MAX 4096u /* of one namespace */
bool claims_have_room(const struct volumes *v, const char *owner);
struct claim *claims_first(const struct volumes *v);
/* Finds a claim of this owner's namespace by its name, or one that the owner may use by its folder. NULL: none. */
struct claim *claim_find(const struct volumes *v, const char *owner, const char *name);
typedef void (*claim_fn)(void *arg, const struct claim *c, const struct err *e);
struct claim_options {
	bool delete_after;
	uint64_t max_bytes;
};
/* Makes a claim. done: its record is written (e NULL), or not; in that case c is freed afterwards if nobody holds it. NULL: no memory. The caller has
 * made sure that the name is free. */
struct claim *claim_new(struct volumes *v, const char *owner, const char *name,
	struct claim_options o, claim_fn done, void *arg);
/* claim_find() does not find it any more. done: that is written, or not. Its files are deleted afterwards. It must not be held. */
void claim_delete(struct volumes *v, struct claim *c, claim_fn done, void *arg);

/* Holds the claims of a list of volumes (volume_request.h), and writes their folders into the list. Missing claims are made. -EINVAL: *x, and
 * nothing is held. */
int volumes_hold(struct volumes *v, struct cJSON *list, const char *owner, struct refusal *x);
/* The same for a record's list, whose folders are known. */
void volumes_hold_again(struct volumes *v, const struct cJSON *list);
/* Can a machine with the volumes `had` go on with those of `want`? The mounts are there already: only what is behind them may change. */
bool volumes_fit(const struct cJSON *had, const struct cJSON *want);
/* No longer holds the claims. undo: the create failed, so claims that it made are deleted, too. */
void volumes_release(struct volumes *v, const struct cJSON *list, bool undo);

/* ---- the file server of one sandbox */

struct fileserver;
/* x NULL: done. */
typedef void (*fileserver_fn)(void *arg, const struct refusal *x);
/* Opens the sources; make: a missing folder is made. fn follows. NULL: *x. */
struct fileserver *fileserver_open(struct volumes *v, const struct cJSON *list, bool make,
	fileserver_fn fn, void *arg, struct refusal *x);
/* Starts mayfly-fs in the group of this monitor and links them. fn follows. */
void fileserver_attach(struct fileserver *f, struct vm *vm, fileserver_fn fn, void *arg);
/* Takes over the file server of a monitor that an earlier daemon left. NULL: no memory. */
struct fileserver *fileserver_adopt(struct volumes *v, const struct cJSON *list, struct vm *vm);
/* The monitor has lost its file server: starts it again. */
void fileserver_lost(struct fileserver *f, const char *why);
/* Gives it the table of nodes, from the monitor or from a checkpoint. Takes fd. */
void fileserver_table(struct fileserver *f, int fd);
/* The table of nodes, for a checkpoint: a descriptor of the caller's, or -1 while it is not known. */
int fileserver_table_dup(const struct fileserver *f);
/* Is volume i a file? */
bool fileserver_is_file(const struct fileserver *f, unsigned int i);
/* Ends it. fn is not called any more. NULL is fine. */
void fileserver_destroy(struct fileserver *f);
