/* SPDX-License-Identifier: Apache-2.0
 *
 * idle.h: lifecycle.idlePolicy of a sandbox: it is paused or deleted when nobody has used its endpoints for a while, and resumed by the next request
 * to one of them. mayflyd's loop.
 *
 * Activity is a request to an endpoint, from its beginning to its end (streams and upgrades: to their close), and a probe's answer "active".
 * A sandbox is paused in memory first, and to disk when it stayed idle for idle.disk_after_seconds more. If memory is scarce when the pause
 * begins, it is paused to disk at once.
 */
#pragma once

#include "lib/base.h"

struct cJSON;
struct idle_probe;
struct sandbox;

struct idle {
	struct timer *timer;
	struct idle_probe *probe; /* one is under way */
	unsigned int open;        /* requests and streams */
	uint64_t active_ns;       /* the last activity, monotonic */
	bool paused;              /* by this policy */
	bool to_disk;             /* it was resumed only to be paused to disk */
	bool waking;              /* a request began its resume */
};

bool idle_init(struct sandbox *sb); /* false: no memory */
void idle_fini(struct sandbox *sb);
/* A request to an endpoint begins, and ends. */
void idle_entered(struct sandbox *sb);
void idle_left(struct sandbox *sb);
/* To be called when its state or operation changed: sets the timer. */
void idle_settle(struct sandbox *sb);
/* Does a request to an endpoint resume the sandbox, now or after the end of its pause? */
bool idle_wakes(const struct sandbox *sb);
/* To be called when requests wait: begins the resume soon, and once only. */
void idle_wake(struct sandbox *sb);
/* The requests have waited too long: answers them. */
void idle_wake_is_long(struct sandbox *sb);

/* ---- idle_probe.c: sends "GET path" to a port of the guest. The answer has to be a 200 with the body {"active": true} or {"active": false}.
 * What answers is hostile. */
typedef void (*idle_probe_fn)(void *arg, bool active);
/* NULL: it could not begin, and fn is not called. A guest that does not answer in time or as it should is not active. */
struct idle_probe *idle_probe_start(
	struct sandbox *sb, const struct cJSON *conf, idle_probe_fn fn, void *arg);
void idle_probe_cancel(struct idle_probe *p); /* NULL is fine */
/* true: n bytes of a body say that the sandbox is active. */
bool idle_probe_read(const void *body, size_t n);
