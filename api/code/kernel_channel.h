/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel_channel.h: the connection to one kernel: a WebSocket to the Jupyter server over a dialled stream, with messages both ways. mayflyd's loop. What
 * arrives is hostile; what is no message ends the channel.
 *
 * A channel that a pause of the sandbox cut is opened again under the same session name. The Jupyter server keeps what the kernel sent meanwhile and sends
 * it then, so a cell's output goes on where it stopped.
 */
#pragma once

#include "api/code/jupyter.h"
#include "api/code/kernel_message.h"

struct kernel_channel;

struct kernel_channel_ops {
	void (*opened)(void *arg);
	/* A pause cut it. true: it is to be opened again; resumed() follows, or closed(). */
	bool (*lost)(void *arg);
	/* It is open again. A probe then shows whether the kernel still works at a cell. */
	void (*resumed)(void *arg);
	void (*message)(void *arg, const struct kernel_message *m);
	/* The last call. err: ECANCELED the sandbox has ended, ENOENT the server knows no such kernel, others; why: for people. The owner destroys it. */
	void (*closed)(void *arg, int err, const char *why);
};

/* kernel: checked by jupyter_id_ok. NULL: no memory. Calls back later only. */
struct kernel_channel *kernel_channel_open(struct agentc *a, const struct jupyter_server *s,
	const char *kernel, const struct kernel_channel_ops *ops, void *arg);
/* No call follows. Also from inside its callbacks. NULL is fine. */
void kernel_channel_destroy(struct kernel_channel *c);
/* id: 32 letters and digits. false: it is not open, or no memory. */
bool kernel_channel_execute(struct kernel_channel *c, const char *id, const char *code);
/* A request that changes nothing and is answered with "idle", after all that was asked before. */
bool kernel_channel_probe(struct kernel_channel *c, const char *id);
/* Stops reading: what the kernel sends waits in the guest. */
void kernel_channel_hold(struct kernel_channel *c, bool hold);
