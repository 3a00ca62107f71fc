/* SPDX-License-Identifier: Apache-2.0
 *
 * ident.h: who this machine is. AGENT_SETUP says it once, after the boot or after the restore of an
 * image template. AGENT_THAW says it after every other restore and after a live snapshot.
 */
#pragma once

#include "agent/agent.h"
#include "agent/env.h"

struct identity {
	uint64_t generation, wall_ns;
	uint8_t entropy[64];
	size_t entropy_len;
	char hostname[65], machine_id[33], boot_id[37];
	struct envset *env;
	char *resolv_conf;
};

struct setup_req {
	struct identity id;
	struct envset *image_env;
	char *workdir, *user, *lifecycle;
	uint32_t argc;
	char **argv;
};

/* 0 or -errno; they free what they made on failure. */
int identity_parse(struct cur *c, struct identity *id);
void identity_free(struct identity *id);
int setup_parse(struct cur *c, struct setup_req *r);
void setup_req_free(struct setup_req *r);

/* Applies what needs no file of the root: entropy, clock, host name, the files in run_dir, the
 * environment. 0 or an error; *step says what failed. */
int identity_apply(struct agent *a, struct identity *id, enum agent_step *step, struct err *e);
/* Writes the files in /etc. The root must not be frozen. */
int identity_apply_root(
	struct agent *a, const struct identity *id, enum agent_step *step, struct err *e);
