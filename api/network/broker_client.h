/* SPDX-License-Identifier: Apache-2.0
 *
 * broker_client.h: the daemon's side of the broker (lib/proto_net.h): its start, its takeover from the last daemon, requests and answers.
 * mayflyd's loop. The broker is trusted; nothing here reads a byte of a guest's.
 */
#pragma once

#include "lib/buf.h"
#include "lib/err.h"
#include "lib/proto_net.h"

struct broker_client;
struct daemon;

struct broker_client_ops {
	void (*lost)(
		void *arg); /* the broker ended, or could not be started; every socket of every sandbox is gone */
	void (*denied)(void *arg, uint32_t id, const char *place,
		const char *why); /* for the first time */
};
struct broker_client *broker_client_create(
	struct daemon *d, const struct broker_client_ops *ops, void *arg);
void broker_client_destroy(struct broker_client *b);

/* 0: there is a broker, or one is being started and what is sent waits for it. -EAGAIN: not now. */
int broker_client_ensure(struct broker_client *b);
/* The broker that the last daemon left in this slot. 0, or -errno: it cannot be used, and is to be ended. Waits; at the
 * daemon's start only. broker_client_configure() must follow, once nobody waits for the helper any more. */
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
/* What no policy was sent for since the takeover is removed. */
void broker_client_sweep(struct broker_client *b);
/* The operator's rules and resolvers, from the configuration as it is now. */
void broker_client_configure(struct broker_client *b);

/* id: a sandbox's, or NET_ALL. fn gets the payload of NET_COUNTERS, or NULL, within two seconds and once. -errno: it will not be called. */
typedef void (*broker_counters_fn)(void *arg, struct cur *payload);
int broker_client_counters(struct broker_client *b, uint32_t id, broker_counters_fn fn, void *arg);
/* Who asked with this arg goes. */
void broker_client_forget(struct broker_client *b, const void *arg);
