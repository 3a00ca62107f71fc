/* SPDX-License-Identifier: Apache-2.0
 *
 * registry.h: pulls from registries that speak the OCI distribution protocol. Runs in a pull job: network, but no files besides its folder.
 */
#pragma once

#include "images/oci/oci.h"
#include "images/oci/ref.h"
#include "images/pull/stagefile.h"
#include "images/pull/channel.h"

#define PULL_MAX_BASES 16

struct pull_base {
	char registry[256]; /* applies to names of this registry */
	char url[512];      /* "https://mirror.example/prefix", without /v2 */
	uint32_t flags;     /* JOB_REG_* */
};

struct pull {
	struct job *job;
	char name[REF_MAX];
	struct platform platform;
	char user[256], password[4096], token[8192];
	struct image_limits lim;
	/* asked in order; then the registry itself, if it is not among them */
	struct pull_base base[PULL_MAX_BASES];
	unsigned int nbases;
	/* out */
	struct digest manifest;
	struct blob_list blobs;
};

/* "localhost", 127.0.0.0/8 or [::1], with or without a port */
bool registry_is_loopback(const char *registry);
int pull_run(struct pull *p, struct err *e);
