/* SPDX-License-Identifier: Apache-2.0
 *
 * network.h: the network of sandboxes as the daemon sees it: one broker, and one mayfly-net for each monitor whose guest has sent a frame
 * (lib/proto_net.h). mayflyd's loop. The broker knows a network by the slot of its monitor.
 */
#pragma once

#include "lib/buf.h"
#include "lib/err.h"
#include "lib/proto_net.h"

struct daemon;
struct networks;
struct priv_msg;
struct vm;

struct networks *networks_create(struct daemon *d, struct err *e);
void networks_destroy(struct networks *n);
/* Called for each process of which the helper reports the end: a monitor, a mayfly-net, the broker. n may be NULL. */
void networks_process_exited(struct networks *n, const struct priv_msg *ev);
/* The operator's lists were read again. */
void networks_reload(struct networks *n);

/* Limits of one sandbox. 0: the configuration's, which they cannot exceed. */
struct network_limits {
	uint64_t connections;                 /* open at one time */
	uint64_t connection_rate, query_rate; /* new connections and DNS questions, each second */
	uint64_t mbit, packets;               /* each second, in each direction */
};
/* From a sandbox's extensions ("mayfly.network.connections" and so on), which may be NULL. -EINVAL: *e names the bad one. */
struct cJSON;
int network_limits_read(const struct cJSON *extensions, struct network_limits *out, struct err *e);

/* At the daemon's start, when the monitors were adopted: the broker and the network processes of the last daemon are taken over, with all
 * their connections. vms_sweep() and network_policy() for each sandbox follow, then networks_adopted(), which removes what belongs to none. */
void networks_adopt(struct networks *n);
void networks_adopted(struct networks *n);

/* The guest has sent a frame (VMM_EV_NET_WANTED): a mayfly-net is started, and the monitor gets its link. policy: in the form of
 * net/policy.h; NULL: the client gave none. */
void network_start(struct networks *n, struct vm *vm, const struct buf *policy,
	const struct network_limits *own);
/* The policy has changed. Connections that it does not allow end when the broker has read it. Without a network yet it does nothing. */
void network_policy(struct networks *n, const struct vm *vm, const struct buf *policy);

/* What a sandbox's network has done. fn gets the payload of NET_COUNTERS, later and once; NULL: the sandbox has no network (yet), or the broker
 * did not answer in time. -errno: fn will not be called. */
typedef void (*network_counters_fn)(void *arg, struct cur *payload);
int network_counters(struct networks *n, const struct vm *vm, network_counters_fn fn, void *arg);
/* The same for all sandboxes together, also those that are gone. */
int networks_counters(struct networks *n, network_counters_fn fn, void *arg);
/* Tells a sandbox's deny webhook (webhook.h) of a place. */
void network_hook(struct networks *n, const char *url, const char *sandbox, const char *place);
/* fn is not called any more for requests with this arg. */
void network_forget(struct networks *n, const void *arg);
