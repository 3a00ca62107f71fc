/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel_channel.h: the connection to one kernel: a WebSocket to the Jupyter server over a dialled stream, with messages both ways. mayflyd's loop. What
 * arrives is hostile. Anything but a message ends the channel.
 *
 * A channel that a pause of the sandbox cut is opened again under the same session name. The Jupyter server keeps what the kernel sent meanwhile and sends
 * it then, so a cell's output continues where it stopped.
 */
#pragma once

#include "api/code/jupyter.h"
#include "api/code/kernel_message.h"

struct kernel_channel;

struct kernel_channel_ops {
	void (*opened)(void *arg);
	/* A pause cut it. true: open it again; resumed() or closed() follows. */
	bool (*lost)(void *arg);
	/* It is open again. A probe then shows whether the kernel still runs a cell. */
	void (*resumed)(void *arg);
	void (*message)(void *arg, const struct kernel_message *m);
	/* The last call. err: ECANCELED the sandbox has ended, ENOENT the server knows no such kernel, others. why: a text for people. The owner then destroys it. */
	void (*closed)(void *arg, int err, const char *why);
};

/* kernel: checked by jupyter_id_ok. NULL: no memory. Makes no callback before it returns. */
struct kernel_channel *kernel_channel_open(struct agentc *a, const struct jupyter_server *s,
	const char *kernel, const struct kernel_channel_ops *ops, void *arg);
/* No callback follows. May be called from a callback. NULL is fine. */
void kernel_channel_destroy(struct kernel_channel *c);
/* id: 32 letters and digits. false: it is not open, or no memory. */
bool kernel_channel_execute(struct kernel_channel *c, const char *id, const char *code);
/* Sends a request that changes nothing. The kernel answers it with "idle", after all earlier requests. */
bool kernel_channel_probe(struct kernel_channel *c, const char *id);
/* Stops reading: what the kernel sends waits in the guest. */
void kernel_channel_hold(struct kernel_channel *c, bool hold);
