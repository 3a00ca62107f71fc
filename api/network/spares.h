/* SPDX-License-Identifier: Apache-2.0
 *
 * spares.h: the pool of network processes that wait for a sandbox. mayflyd's loop. Each is jailed, in a group of its own, and has never seen a
 * frame: its peers' ends of the channel and of the frames are here. A process that has served a sandbox never comes back.
 */
#pragma once

#include "lib/base.h"

struct daemon;
struct priv_msg;
struct spares;

/* A network process, or what one is started with. */
struct net_ends {
	uint32_t slot;
	int chan;   /* the broker's end of the channel */
	int frames; /* the monitor's end of the frames */
};

/* Both pairs of sockets. theirs[]: what the process gets, in the order of its descriptors. 0 or -errno. */
int net_ends_make(struct net_ends *e, int theirs[2]);
void net_ends_close(struct net_ends *e);

struct spares *spares_create(struct daemon *d);
void spares_destroy(struct spares *s);
/* A sandbox is being made: there should be as many as the configuration says, soon. */
void spares_refill(struct spares *s);
/* One that runs; it is the caller's. False: there is none. */
bool spares_take(struct spares *s, struct net_ends *out);
/* None is of use on this host: those that wait end, and no more are started. */
void spares_stop(struct spares *s);
/* A network process ended. */
void spares_process_exited(struct spares *s, uint32_t slot);
