/* SPDX-License-Identifier: Apache-2.0
 *
 * harden.h: the floor under every command and the entrypoint, when the host's configuration asks
 * for one: fewer capabilities, a filter of system calls, Landlock. The answer says of each layer
 * whether it is active.
 */
#pragma once

#include "agent/conn.h"

struct spawn;

void req_harden(struct agent *a, struct conn *c, uint32_t id, struct cur *b);
/* Sets in s what the floor demands of a child. */
void harden_spawn(const struct agent *a, struct spawn *s);
void harden_fini(struct agent *a);

/* A parser of the host's bytes: 0 or -EPROTO. */
struct harden_req {
	uint32_t flags;
	uint64_t keep_caps;
	char read[AGENT_ALLOWED_MAX][256], write[AGENT_ALLOWED_MAX][256];
	uint32_t nread, nwrite;
};
int harden_parse(struct cur *b, struct harden_req *r);
