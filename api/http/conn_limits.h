/* SPDX-License-Identifier: Apache-2.0
 *
 * conn_limits.h: who may keep a connection open. mayflyd's loop. A connection is a stranger's until a request on it showed a key. A stranger's
 * connection waits when no request on it is being answered. When the server is full, the one that waits longest is closed for the newcomer. When
 * the newcomer's address has used up its share, the longest waiting connection of that address is closed. So no number of silent connections keeps
 * anybody out. Two kinds are never closed for a newcomer: a connection whose request is being answered, and one that showed a key. Pure
 * bookkeeping; no system calls.
 */
#pragma once

#include "lib/base.h"

struct sockaddr;
struct conn_address;

struct conn_slot {
	struct conn_address *from;
	/* two lists, the longest waiting first: of all, and of its address */
	struct conn_slot *prev, *next, *addr_prev, *addr_next;
	bool waits, known, leaving; /* in both lists; it showed a key; it is being closed */
};

struct conn_limits {
	unsigned int max, per_address; /* 0: no limit of that kind */
	bool count_busy; /* per_address counts all connections of an address, not only those that wait: for a listener without keys */
	unsigned int open; /* connections that are not leaving */
	struct conn_slot *first, *last;
	struct conn_address *buckets[256];
	uint64_t closed_full, closed_address;
};

void conn_limits_init(struct conn_limits *l, unsigned int max, unsigned int per_address);
/* A connection begins; s is zeroed and then the caller's to keep. *out: a connection to close for it, or NULL. False: there is no room and
 * no connection to close, or no memory. Then close the new one; s is in no list. */
bool conn_limits_add(struct conn_limits *l, struct conn_slot *s, const struct sockaddr *from,
	struct conn_slot **out);
void conn_limits_remove(struct conn_limits *l, struct conn_slot *s);
/* A request begins. */
void conn_limits_busy(struct conn_limits *l, struct conn_slot *s);
/* The request has ended, and the connection waits for the next one. */
void conn_limits_waits(struct conn_limits *l, struct conn_slot *s);
/* A request on it showed a key. */
void conn_limits_known(struct conn_limits *l, struct conn_slot *s);
/* Is there room, or a connection to close? Otherwise do not accept: new connections wait in the kernel. */
bool conn_limits_room(const struct conn_limits *l);
