/* SPDX-License-Identifier: Apache-2.0
 *
 * template_build.h: a sandbox that nobody asked for by itself: it is started so that a point can be taken of it, and goes again. It is not in the list of
 * sandboxes, and one that a killed daemon left is removed at the next start. mayflyd's loop.
 */
#pragma once

#include "api/sandbox/sandbox.h"

struct build;

/* When the sandbox is what the point shall be of. */
enum probe_kind {
	PROBE_NONE,   /* as soon as the entrypoint is started */
	PROBE_WINDOW, /* some seconds later */
	PROBE_TCP,    /* when something listens on the port */
	PROBE_CMD,    /* when the command ends with 0 */
};

struct probe {
	enum probe_kind kind;
	uint32_t limit_s; /* WINDOW: so long; else at most so long */
	uint16_t port;
	char *cmd;
};

/* err 0: disk, mem and base (what snapshot_base says) are the callee's, with references; without a
 * probe there is only base. The last call. */
typedef void (*build_fn)(void *arg, int err, const char *text, struct disk *disk,
	struct memory *mem, struct cJSON *base);

/* spec is taken. p NULL: no point is taken, the sandbox only leaves its image's template behind.
 * NULL: x says why. */
struct build *build_start(struct daemon *d, struct spec *spec, const char *owner,
	const struct probe *p, build_fn fn, void *arg, struct refusal *x);
/* fn will not be called. */
void build_cancel(struct build *b);
/* The sandbox's state changed, or a point of it is done. */
void build_changed(struct build *b);
