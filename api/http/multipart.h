/* SPDX-License-Identifier: Apache-2.0
 *
 * multipart.h: a streaming reader of multipart/form-data. Each call takes some of the input
 * and yields at most one event, so that the caller can stop anywhere. mayflyd. All input is
 * hostile. Memory: one part's headers, nothing of a body is kept.
 */
#pragma once

#include "lib/buf.h"

#define MULTIPART_HEAD_MAX 16384u

enum multipart_ev {
	MP_MORE, /* all input was taken */
	MP_PART, /* a part begins: name, filename, type are set */
	MP_DATA, /* *data, *len: bytes of its body, valid until the next call */
	MP_END,  /* the part is whole */
	MP_DONE, /* the closing boundary: what follows is ignored */
	MP_BAD,  /* not multipart, or over a limit; nothing follows; m->why says which */
};

struct multipart {
	char delim[80]; /* "\r\n--" boundary */
	size_t delim_len, match;
	int state;
	uint8_t tail; /* state of take_tail(); 0xff: of take_body(), in a body's first bytes */
	bool in_part;
	size_t skipped;
	struct buf head;
	bool has_name, has_filename;
	char name[256], filename[4097], type[256];
	const char *why;
};

/* content_type: the request's header. 0, or -EINVAL: not multipart/form-data with a usable
 * boundary. */
int multipart_init(struct multipart *m, const char *content_type);
void multipart_fini(struct multipart *m);
enum multipart_ev multipart_next(
	struct multipart *m, const uint8_t **p, size_t *n, const uint8_t **data, size_t *len);
