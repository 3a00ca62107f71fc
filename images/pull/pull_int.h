/* SPDX-License-Identifier: Apache-2.0
 *
 * pull_int.h: what registry.c and download.c share.
 */
#pragma once

#include "images/pull/web.h"
#include "images/pull/registry.h"

#include <pthread.h>

/* One registry or mirror that is asked for one image. */
struct source {
	struct pull *p;
	struct pull_base base;
	char repo[256];
	bool plain, private;
	pthread_mutex_t lock; /* authorization, basic, the job's socket */
	char authorization[8256];
	bool basic;
};

int source_get(struct source *s, struct web *h, const char *path, const char *accept,
	struct web_request *q, struct web_reply *reply, struct err *e);
/* The value of key="value" in a WWW-Authenticate header; false: it is not there, or does not fit. */
bool challenge_field(const char *challenge, const char *key, char *to, size_t cap);
/* Fetches the configuration and layers that the store does not have, several at a time. */
int pull_blobs(struct source *s, const struct oci_manifest *m, struct err *e);
