/* SPDX-License-Identifier: Apache-2.0
 *
 * volume_request.h: the volumes of a create request, checked. mayflyd's loop. The JSON is a client's, hostile.
 */
#pragma once

#include "api/core/config.h"
#include "api/core/create_request.h"

/* A volume as a record has it. Texts are borrowed from the JSON. */
struct volume_item {
	bool host;          /* a host folder; else a claim */
	const char *source; /* absolute path; name of the claim */
	const char *folder; /* a claim's folder, when it is known; else NULL */
	const char *sub, *mount;
	bool read_only;
	bool create;        /* a missing claim is made */
	bool delete_after;  /* a claim that this makes is deleted with its last sandbox */
	uint64_t max_bytes; /* of a claim that this makes; 0: no limit */
};

/* 0: *out is the caller's, or NULL if there is no volume. -EINVAL: *x says why. */
int volumes_read(
	const struct cJSON *in, const struct config *c, struct cJSON **out, struct refusal *x);
/* false: not an item of a list that volumes_read() made. */
bool volume_item_get(const struct cJSON *v, struct volume_item *to);
/* The length of the configuration's host folder with which this path begins, of the longest if several fit. 0: the path is below none. */
size_t host_folder_of(const struct config *c, const char *path);
/* Are the host folders of a record's list still below what the configuration allows? -EINVAL: *x. */
int volumes_allowed(const struct cJSON *list, const struct config *c, struct refusal *x);
/* pvc.storage and the like: absent and null are no limit (0). false: it is not a quantity, or less than 1 MiB. */
bool claim_storage_read(const struct cJSON *o, const char *key, uint64_t *bytes);
/* A name of a claim: up to 253 of a-z 0-9 - and dots between them. */
bool claim_name_ok(const char *s);
