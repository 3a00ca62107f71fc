/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.h: a layer blob as its tar bytes: read, hashed and decompressed (plain, gzip, zstd) by a
 * thread of its own, a few buffers ahead of whoever reads. Bytes are hostile.
 */
#pragma once

#include "images/oci/digest.h"
#include "images/oci/limits.h"

struct archive;
struct stream;

/* Adds the filter that the file's first bytes name, and only that one. libarchive's own search would look for further filters
 * inside: nobody counts the bytes between two filters, and a few hundred bytes can keep it busy for hours. */
void stream_filter(struct archive *a, int fd);
/* fd is borrowed until stream_close(). size: the blob's length, as the manifest says. */
struct stream *stream_open(int fd, uint64_t size, const struct image_limits *lim, struct err *e);
/* The next bytes, valid until the next call; 0 at the end, -errno and e on bad data. */
ssize_t stream_next(struct stream *s, const void **p, struct err *e);
/* After the end was seen: digests of the blob as stored and of the tar in it, and the tar's length.
 */
int stream_digests(struct stream *s, struct digest *blob, struct digest *tar, uint64_t *tar_bytes,
	struct err *e);
/* bytes of the blob read so far; any thread */
uint64_t stream_read_bytes(const struct stream *s);
/* Waits for the thread, which ends when it has filled its buffer, or with the blob. */
void stream_close(struct stream *s);
static inline void stream_closep(struct stream **s)
{
	stream_close(*s);
}
