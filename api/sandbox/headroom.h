/* SPDX-License-Identifier: Apache-2.0
 *
 * headroom.h: the memory that a live snapshot costs beside its sandbox's own. mayflyd's loop. While the snapshot is written, the source pays for
 * every page that it writes, and the old page counts as well. The helper raises the sandbox's limit by as much as the sandbox holds, and
 * admission counts that. The limit goes back when the snapshot has ended.
 */
#pragma once

#include "lib/err.h"

struct daemon;
struct headroom;
struct vm;

/* Asks the helper for a higher limit. Its answer comes long before the guest is quiet. NULL: not asked, and the limit stays. */
struct headroom *headroom_take(struct vm *vm);
/* 0, or -ENOMEM: this host has no room for the copies. An answer that is not there yet counts as 0. */
int headroom_check(const struct headroom *h, struct err *e);
/* To be called when the monitor has forked its writer: if memory runs out all the same, the writer dies and not the source. */
void headroom_writer(const struct headroom *h);
/* The snapshot has ended. Takes h; it lives until the helper has taken the limit back. NULL is fine. */
void headroom_end(struct headroom *h);
/* By how much limits are raised now, in MiB: for admission. */
uint64_t headroom_mib(const struct daemon *d);
