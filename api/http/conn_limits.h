/* SPDX-License-Identifier: Apache-2.0
 *
 * conn_limits.h: who may keep a connection open. mayflyd's loop. A connection is a stranger's until a request on it showed a key. Strangers that wait
 * (no request is being answered) make room: when the server is full the one that waits longest is closed for the newcomer, and so is an address's
 * own oldest one beyond its share. So no number of silent connections keeps anybody out. What is never closed for a newcomer: a request that is being
 * answered, and a connection that showed a key. Pure bookkeeping; no system calls.
 */
#pragma once

#include "lib/base.h"

struct sockaddr;
struct conn_address;

struct conn_slot {
	struct conn_address *from;
	/* two lists, the longest waiting first: of all, and of its address */
	struct conn_slot *prev, *next, *addr_prev, *addr_next;
	bool waits, known, leaving;
};

struct conn_limits {
	unsigned int max, per_address; /* 0: no limit of that kind */
	bool count_busy; /* an address's share holds for all its connections, not only for those that wait: nobody shows a key here */
	unsigned int open; /* that are not leaving */
	struct conn_slot *first, *last;
	struct conn_address *buckets[256];
	uint64_t closed_full, closed_address;
};

void conn_limits_init(struct conn_limits *l, unsigned int max, unsigned int per_address);
/* A connection begins; s is zeroed and then the caller's to keep. *out: a connection to close for it, or NULL. False: there is no room and
 * nobody to close (or no memory): close the new one; s is not in any list. */
bool conn_limits_add(struct conn_limits *l, struct conn_slot *s, const struct sockaddr *from,
	struct conn_slot **out);
void conn_limits_remove(struct conn_limits *l, struct conn_slot *s);
/* A request begins; it has ended, and the connection waits for the next one. */
void conn_limits_busy(struct conn_limits *l, struct conn_slot *s);
void conn_limits_waits(struct conn_limits *l, struct conn_slot *s);
/* A request on it showed a key. */
void conn_limits_known(struct conn_limits *l, struct conn_slot *s);
/* Is there room, or somebody to close? Otherwise new connections may wait in the kernel. */
bool conn_limits_room(const struct conn_limits *l);
