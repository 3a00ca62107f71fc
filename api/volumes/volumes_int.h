/* SPDX-License-Identifier: Apache-2.0
 *
 * volumes_int.h: what the files of this room share.
 */
#pragma once

#include "api/volumes/volumes.h"

struct purge;

struct volumes {
	struct daemon *d;
	struct claim *claims;
	struct fileserver *servers;
	struct purge *purges;
};

/* purge.c: empties a claim's folder and removes it, then calls claim_purged(). */
void purge_begin(struct volumes *v, struct claim *c);
void purge_exited(struct volumes *v, const struct priv_msg *ev);
void purges_destroy(struct volumes *v);
/* claims.c: the claim's files are gone. Deletes its record. */
void claim_purged(struct volumes *v, struct claim *c);
/* NULL: there is none. */
struct claim *claim_by_folder(const struct volumes *v, const char *folder);
/* fileserver.c */
void fileservers_loaded(struct volumes *v);
void fileserver_exited(struct volumes *v, const struct priv_msg *ev);
