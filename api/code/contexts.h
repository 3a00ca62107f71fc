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
#define CONTEXT_DEFAULT_NAME                                                                       \
	"mayfly-default-" /* images/recipes/code-interpreter starts kernels under these names */
#define CONTEXTS_MAX 256u /* remembered for one sandbox, and shown in a list */

struct context {
	LIST_ENTRY(context) link;
	struct contexts *of;
	char id[JUPYTER_ID_MAX + 1], kernel[JUPYTER_ID_MAX + 1], language[CONTEXT_LANGUAGE_MAX + 1];
	bool is_default;
	struct kernel_channel *channel; /* open, or about to be; the cell's if there is one */
	struct cell *cell;              /* runs in it now: no other may */
	bool channel_open;
	uint64_t used_ns;
};

struct contexts *contexts_of(struct agentc *a);
/* One that is remembered; NULL: none. */
struct context *context_find(struct contexts *cs, const char *id);
/* Its channel is closed, and it is no longer remembered. Not while a cell runs in it. */
void context_forget(struct context *x);
/* How many cells run in them. */
unsigned int contexts_running(const struct contexts *cs);
/* After a cell: closes the channels that were unused for longest, beyond a few. */
void contexts_tidy(struct contexts *cs);

/* ---- asking the server */

struct context_answer {
	int err; /* 0, or an errno: EINVAL no kernel for that language, ENOENT no such context, others */
	const char *why;                  /* err: for people */
	struct context *ctx;              /* context_resolve */
	const struct context_item *items; /* context_list */
	size_t n;
};
struct context_item {
	char id[JUPYTER_ID_MAX + 1], kernel[JUPYTER_ID_MAX + 1], language[CONTEXT_LANGUAGE_MAX + 1];
	bool is_default;
};
typedef void (*context_fn)(void *arg, const struct context_answer *a);

/* Requests of several steps. fn is called once, never before they return; NULL: no memory. */
struct context_ask;
/* One by its id, or the default one of a language, which is made if there is none (id NULL). */
struct context_ask *context_resolve(struct contexts *cs, const struct jupyter_server *s,
	const char *id, const char *language, const char *cwd, context_fn fn, void *arg);
/* A new one. */
struct context_ask *context_create(struct contexts *cs, const struct jupyter_server *s,
	const char *language, const char *cwd, context_fn fn, void *arg);
/* All, or those of a language (NULL: all); items. */
struct context_ask *context_list(struct contexts *cs, const struct jupyter_server *s,
	const char *language, context_fn fn, void *arg);
/* One by its id; items has it. */
struct context_ask *context_get(struct contexts *cs, const struct jupyter_server *s, const char *id,
	context_fn fn, void *arg);
/* Its kernel ends, and so does a cell in it. */
struct context_ask *context_delete(struct contexts *cs, const struct jupyter_server *s,
	const char *id, context_fn fn, void *arg);
/* All of a language. */
struct context_ask *context_delete_all(struct contexts *cs, const struct jupyter_server *s,
	const char *language, context_fn fn, void *arg);
/* Stops the cell that its kernel works at. */
struct context_ask *context_interrupt(struct contexts *cs, const struct jupyter_server *s,
	const char *id, context_fn fn, void *arg);
/* fn will not be called. What was asked of the server goes on there. NULL is fine. */
void context_cancel(struct context_ask *k);
