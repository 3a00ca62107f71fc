/* SPDX-License-Identifier: Apache-2.0
 *
 * broker_client.h: the daemon's side of the broker (lib/proto_net.h): its start, its takeover from the last daemon, requests and answers.
 * mayflyd's loop. The broker is trusted. Of a guest's bytes only the names of denied places come through here.
 */
#pragma once

#include "lib/buf.h"
#include "lib/err.h"
#include "lib/proto_net.h"

struct broker_client;
struct daemon;

struct broker_client_ops {
	/* The broker ended or could not be started. Every socket of every sandbox is gone. */
	void (*lost)(void *arg);
	/* A sandbox was denied a place for the first time. */
	void (*denied)(void *arg, uint32_t id, const char *place, const char *why);
};
struct broker_client *broker_client_create(
	struct daemon *d, const struct broker_client_ops *ops, void *arg);
void broker_client_destroy(struct broker_client *b);

/* Starts the broker if there is none. 0: requests may be sent; a broker that still starts reads them later. -EAGAIN: not now. */
int broker_client_ensure(struct broker_client *b);
/* Takes over the broker that the last daemon left in this slot. 0, or -errno: it cannot be used; end it. Blocks, so only
 * at the daemon's start. broker_client_configure() must follow, once nobody waits for the helper any more. */
int broker_client_adopt(struct broker_client *b, uint32_t slot);
bool broker_client_there(const struct broker_client *b);
/* The process in this slot ended. True: it was the broker. */
bool broker_client_ended(struct broker_client *b, uint32_t slot);

/* policy NULL: the client gave none. */
int broker_client_policy(struct broker_client *b, uint32_t id, const struct buf *policy);
/* fd is lent. */
int broker_client_channel(
	struct broker_client *b, uint32_t id, const uint64_t limits[NET_L_COUNT], int fd);
void broker_client_remove(struct broker_client *b, uint32_t id);
/* Removes the networks for which no policy was sent since the takeover. */
void broker_client_sweep(struct broker_client *b);
/* Sends the operator's rules and resolvers, from the configuration as it is now. */
void broker_client_configure(struct broker_client *b);

/* id: a sandbox's, or NET_ALL. fn gets the payload of NET_COUNTERS, or NULL, within two seconds and once. -errno: it will not be called. */
typedef void (*broker_counters_fn)(void *arg, struct cur *payload);
int broker_client_counters(struct broker_client *b, uint32_t id, broker_counters_fn fn, void *arg);
/* fn is not called any more for requests with this arg. */
void broker_client_forget(struct broker_client *b, const void *arg);
