/* SPDX-License-Identifier: Apache-2.0
 *
 * contexts.h: the code contexts of a sandbox. A context is a session of the guest's Jupyter server; that server knows all of them, the daemon remembers
 * only those that it ran code in. So they outlive the daemon, and a sandbox made from a snapshot has the source's. The default context of a language is
 * the session named CONTEXT_DEFAULT_NAME and the language. mayflyd's loop. What the server says is hostile.
 */
#pragma once

#include <sys/queue.h>

#include "api/code/jupyter.h"

struct agentc;
struct cell;
struct kernel_channel;

#define CONTEXT_LANGUAGE_MAX 31u
/* images/recipes/code-interpreter starts kernels under these names */
#define CONTEXT_DEFAULT_NAME "mayfly-default-"
#define CONTEXTS_MAX         256u /* remembered for one sandbox, and shown in a list */

struct context {
	LIST_ENTRY(context) link;
	struct contexts *of;
	char id[JUPYTER_ID_MAX + 1], kernel[JUPYTER_ID_MAX + 1], language[CONTEXT_LANGUAGE_MAX + 1];
	bool is_default;
	struct kernel_channel *channel; /* open, or being opened; a cell that runs uses it */
	struct cell *cell;              /* runs in it now: no other may */
	bool channel_open;
	uint64_t used_ns;
};

struct contexts *contexts_of(struct agentc *a);
/* A context that is remembered; NULL: none. */
struct context *context_find(struct contexts *cs, const char *id);
/* Closes its channel and frees it. Not while a cell runs in it. */
void context_forget(struct context *x);
/* How many cells run in the contexts. */
unsigned int contexts_running(const struct contexts *cs);
/* Closes the channels that were unused for longest, beyond CHANNELS_MAX, and forgets the contexts that were unused for longest, beyond CONTEXTS_MAX.
 * A context in which a cell runs stays as it is. */
void contexts_tidy(struct contexts *cs);

/* ---- asking the server */

struct context_answer {
	int err; /* 0, or an errno: EINVAL no kernel for that language, ENOENT no such context, others */
	const char *why;                  /* if err: a text for people */
	struct context *ctx;              /* context_resolve, context_create */
	const struct context_item *items; /* context_list, context_get, context_create */
	size_t n;
};
struct context_item {
	char id[JUPYTER_ID_MAX + 1], kernel[JUPYTER_ID_MAX + 1], language[CONTEXT_LANGUAGE_MAX + 1];
	bool is_default;
};
typedef void (*context_fn)(void *arg, const struct context_answer *a);

/* Requests of several steps to the Jupyter server. fn is called once, never before the function has returned. NULL: no memory. */
struct context_ask;
/* Finds a context by its id. id NULL: the default context of the language, which is made if there is none. */
struct context_ask *context_resolve(struct contexts *cs, const struct jupyter_server *s,
	const char *id, const char *language, const char *cwd, context_fn fn, void *arg);
/* Makes a context, in items. */
struct context_ask *context_create(struct contexts *cs, const struct jupyter_server *s,
	const char *language, const char *cwd, context_fn fn, void *arg);
/* Lists the contexts of a language (NULL: of all), in items. */
struct context_ask *context_list(struct contexts *cs, const struct jupyter_server *s,
	const char *language, context_fn fn, void *arg);
/* Gets a context by its id, in items. */
struct context_ask *context_get(struct contexts *cs, const struct jupyter_server *s, const char *id,
	context_fn fn, void *arg);
/* Deletes a context. Its kernel ends, and a cell that runs in it. */
struct context_ask *context_delete(struct contexts *cs, const struct jupyter_server *s,
	const char *id, context_fn fn, void *arg);
/* Deletes all contexts of a language. */
struct context_ask *context_delete_all(struct contexts *cs, const struct jupyter_server *s,
	const char *language, context_fn fn, void *arg);
/* Interrupts the cell that a context's kernel runs. */
struct context_ask *context_interrupt(struct contexts *cs, const struct jupyter_server *s,
	const char *id, context_fn fn, void *arg);
/* fn will not be called. The server finishes what it was asked. NULL is fine. */
void context_cancel(struct context_ask *k);
