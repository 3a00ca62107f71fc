/* SPDX-License-Identifier: Apache-2.0
 *
 * request.h: one FUSE request, read with bounds. The guest's kernel wrote the bytes, and it is hostile. Worker threads of mayfly-fs.
 */
#pragma once

#include "lib/base.h"

#include <linux/fuse.h>

/* What a request consists of. Everything points into the message, which stays as it is while the request is worked on. */
struct fs_request {
	uint32_t op;
	uint64_t unique, node;
	uint32_t uid, gid;
	const void *arg; /* the fixed part (fs_shape.arg bytes), 8-byte aligned; NULL: none */
	const char *name, *name2; /* NUL-terminated, or NULL */
	const void *data;         /* what follows the fixed part and the names */
	size_t data_len;
	uint32_t reply_max; /* bytes of the whole reply, its header included */
};

/* What a kind of request must look like. */
struct fs_shape {
	const char *label;
	uint16_t arg; /* bytes of the fixed part */
	uint8_t names; /* names after the fixed part; each is one component of a path, unless it is free */
	bool data;       /* more bytes may follow */
	bool free_name;  /* the first name may be any text (an attribute's name) */
	bool free_name2; /* the second one, too (a symbolic link's target) */
	bool silent;     /* FUSE has no reply to it */
};

/* 0; or -errno, which answers the request: -ENOSYS for an operation that is not in the table, -EINVAL for a message that breaks
 * its shape, -ENAMETOOLONG. Only a message whose header is incomplete or wrong (r->unique stays 0) is -EBADMSG. `p` is 8-byte aligned. */
int fs_request_parse(struct fs_request *r, const void *p, size_t len, uint32_t reply_max);
/* NULL: no such operation. */
const struct fs_shape *fs_shape_of(uint32_t op);
