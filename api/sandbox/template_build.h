/* SPDX-License-Identifier: Apache-2.0
 *
 * template_build.h: a sandbox that is started only to take a template of it, and is deleted afterwards. It is not in the list of sandboxes, and one that
 * a killed daemon left is removed at the next start. mayflyd's loop.
 */
#pragma once

#include "api/sandbox/sandbox.h"

struct build;

/* How to find out that the sandbox is ready for the template. */
enum probe_kind {
	PROBE_NONE,   /* as soon as the entrypoint is started */
	PROBE_WINDOW, /* some seconds later */
	PROBE_TCP,    /* when something listens on the port */
	PROBE_CMD,    /* when the command ends with 0 */
};

struct probe {
	enum probe_kind kind;
	uint32_t limit_s; /* WINDOW: wait so long; TCP and CMD: give up after this time */
	uint16_t port;
	char *cmd;
};

/* The last call. err 0: disk, mem and base (see snapshot_base()) are the callee's, with references. If
 * build_start() got no probe, disk and mem are NULL. */
typedef void (*build_fn)(void *arg, int err, const char *text, struct disk *disk,
	struct memory *mem, struct cJSON *base);

/* Takes spec. p NULL: no snapshot is taken; the sandbox only leaves its image's template. Returns NULL
 * after an error: x says why. */
struct build *build_start(struct daemon *d, struct spec *spec, const char *owner,
	const struct probe *p, build_fn fn, void *arg, struct refusal *x);
/* fn will not be called. */
void build_cancel(struct build *b);
/* To be called when the sandbox's state changed, or its operation ended. */
void build_changed(struct build *b);
