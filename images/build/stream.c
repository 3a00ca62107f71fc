/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.c: one producer thread (read, sha256 of the blob, decompress by libarchive's filters), one
 * consumer (sha256 of the tar, then the tar reader). They meet in a ring of buffers. Runs in the
 * image job. What decompresses to more than the limits allow is stopped here.
 */
#include "images/build/stream.h"

#include <archive.h>
#include <archive_entry.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define RING     8u
#define PIECE    (256u * 1024)
#define IN_BYTES (128u * 1024)
/* small: decompressors work on the heap, and a sanitizer clears all of each thread's stack */
#define STACK (512u * 1024)

struct piece {
	uint8_t *p;
	size_t len;
};

struct stream {
	int fd;
	uint64_t size;
	struct image_limits lim;
	pthread_t thread;
	bool started;
	pthread_mutex_t lock;
	pthread_cond_t more, room;
	struct piece ring[RING];
	uint32_t head, tail; /* produced, consumed */
	bool end, stop, holding;
	struct err err;
	/* producer */
	uint8_t *in;
	_Atomic uint64_t in_bytes;
	uint64_t out_bytes;
	struct digest_ctx *blob, *tar;
};

static la_ssize_t on_read(struct archive *a, void *arg, const void **p)
{
	struct stream *s = arg;
	uint64_t at = atomic_load(&s->in_bytes);
	ssize_t k;

	if (at >= s->size)
		return 0;
	do
		k = pread(s->fd, s->in, MIN(IN_BYTES, s->size - at), (off_t)at);
	while (k < 0 && errno == EINTR);
	if (k < 0) {
		archive_set_error(a, errno, "read: %s", strerror(errno));
		return -1;
	}
	if (k == 0) {
		archive_set_error(a, EIO, "blob is shorter than its descriptor says");
		return -1;
	}
	digest_update(s->blob, s->in, (size_t)k);
	atomic_store(&s->in_bytes, at + (uint64_t)k);
	*p = s->in;
	return k;
}

/* Hands the filled buffer at head over; waits for room. False: the reader has gone. */
static bool push(struct stream *s)
{
	bool go;

	pthread_mutex_lock(&s->lock);
	s->head++;
	pthread_cond_signal(&s->more);
	while (s->head - s->tail >= RING && !s->stop)
		pthread_cond_wait(&s->room, &s->lock);
	go = !s->stop;
	pthread_mutex_unlock(&s->lock);
	return go;
}

static int check_bomb(struct stream *s, struct err *e)
{
	uint64_t in = atomic_load(&s->in_bytes);

	if (s->out_bytes > s->lim.max_tar_bytes)
		return err_plain(e, EFBIG, "more than %llu bytes decompressed",
			(unsigned long long)s->lim.max_tar_bytes);
	if (s->out_bytes > s->lim.ratio_from && s->out_bytes / MAX(in, 1) > s->lim.max_ratio)
		return err_plain(
			e, EFBIG, "decompresses to more than %u times its size", s->lim.max_ratio);
	return 0;
}

static int archive_err(struct archive *a, struct err *e)
{
	int code = archive_errno(a);
	const char *text = archive_error_string(a);

	return err_plain(
		e, code > 0 && code < 4096 ? code : EBADMSG, "%s", text ? text : "damaged");
}

void stream_filter(struct archive *a, int fd)
{
	uint8_t m[4] = {0};

	(void)!pread(fd, m, sizeof(m), 0);
	if (m[0] == 0x1f && m[1] == 0x8b)
		archive_read_append_filter(a, ARCHIVE_FILTER_GZIP);
	/* zstd: a frame, or a skippable frame before it */
	else if (!memcmp(m, "\x28\xb5\x2f\xfd", 4) ||
		 ((m[0] & 0xf0) == 0x50 && !memcmp(m + 1, "\x2a\x4d\x18", 3)))
		archive_read_append_filter(a, ARCHIVE_FILTER_ZSTD);
}

static int decompress(struct stream *s, struct archive *a, struct err *e)
{
	struct archive_entry *en;
	int r;

	stream_filter(a, s->fd);
	archive_read_support_format_raw(a);
	archive_read_support_format_empty(a);
	if (archive_read_open(a, s, NULL, on_read, NULL) != ARCHIVE_OK)
		return archive_err(a, e);
	r = archive_read_next_header(a, &en);
	if (r == ARCHIVE_EOF)
		return 0;
	if (r != ARCHIVE_OK)
		return archive_err(a, e);
	for (;;) {
		struct piece *b = &s->ring[s->head % RING];

		/* most layers are small: a buffer is allocated when it is first needed */
		if (!b->p && !(b->p = malloc(PIECE)))
			return err_set(e, ENOMEM, "decompressing");
		b->len = 0;
		while (b->len < PIECE) {
			la_ssize_t k = archive_read_data(a, b->p + b->len, PIECE - b->len);

			if (k < 0)
				return archive_err(a, e);
			if (k == 0)
				break;
			b->len += (size_t)k;
		}
		if (!b->len)
			return 0;
		s->out_bytes += b->len;
		r = check_bomb(s, e);
		if (r < 0)
			return r;
		if (!push(s))
			return -ECANCELED;
	}
}

/* Reads on for the digest, which is of the whole blob: decompressors stop at the end of their stream. */
static int read_rest(struct stream *s, struct archive *a, struct err *e)
{
	const void *p;
	la_ssize_t k;

	while ((k = on_read(a, s, &p)) > 0)
		;
	return k < 0 ? archive_err(a, e) : 0;
}

static void *produce(void *arg)
{
	struct stream *s = arg;
	struct archive *a = archive_read_new();
	struct err e = {0};
	int r = -ENOMEM;

	if (!a)
		err_set(&e, ENOMEM, "decompressing");
	else
		r = decompress(s, a, &e);
	if (r == 0)
		r = read_rest(s, a, &e);
	archive_read_free(a);
	pthread_mutex_lock(&s->lock);
	s->err = e;
	s->end = true;
	pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static int start(struct stream *s)
{
	pthread_attr_t a;
	int r = pthread_attr_init(&a);

	if (r)
		return r;
	r = pthread_attr_setstacksize(&a, STACK);
	if (r == 0)
		r = pthread_create(&s->thread, &a, produce, s);
	pthread_attr_destroy(&a);
	return r;
}

struct stream *stream_open(int fd, uint64_t size, const struct image_limits *lim, struct err *e)
{
	struct stream *s = calloc(1, sizeof(*s));
	int r = ENOMEM;

	if (!s)
		goto fail;
	s->fd = fd;
	s->size = size;
	s->lim = *lim;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->more, NULL);
	pthread_cond_init(&s->room, NULL);
	s->in = malloc(IN_BYTES);
	s->blob = digest_begin();
	s->tar = digest_begin();
	if (!s->in || !s->blob || !s->tar)
		goto fail;
	r = start(s);
	if (r)
		goto fail;
	s->started = true;
	return s;
fail:
	stream_close(s);
	err_set(e, r, "starting to read a layer");
	return NULL;
}

ssize_t stream_next(struct stream *s, const void **p, struct err *e)
{
	struct piece *b;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	if (s->holding) {
		s->tail++;
		s->holding = false;
		pthread_cond_signal(&s->room);
	}
	while (s->head == s->tail && !s->end)
		pthread_cond_wait(&s->more, &s->lock);
	b = s->head == s->tail ? NULL : &s->ring[s->tail % RING];
	s->holding = b != NULL;
	if (!b && s->err.code) {
		*e = s->err;
		r = -s->err.code;
	}
	pthread_mutex_unlock(&s->lock);
	if (!b)
		return r;
	digest_update(s->tar, b->p, b->len);
	*p = b->p;
	return (ssize_t)b->len;
}

int stream_digests(struct stream *s, struct digest *blob, struct digest *tar, uint64_t *tar_bytes,
	struct err *e)
{
	const void *p;
	ssize_t k;

	/* reads on: a tar reader stops at the end marker */
	while ((k = stream_next(s, &p, e)) > 0)
		;
	if (k < 0)
		return (int)k;
	digest_end(s->blob, blob);
	digest_end(s->tar, tar);
	*tar_bytes = s->out_bytes;
	return 0;
}

uint64_t stream_read_bytes(const struct stream *s)
{
	return atomic_load(&s->in_bytes);
}

void stream_close(struct stream *s)
{
	if (!s)
		return;
	if (s->started) {
		pthread_mutex_lock(&s->lock);
		s->stop = true;
		pthread_cond_signal(&s->room);
		pthread_mutex_unlock(&s->lock);
		pthread_join(s->thread, NULL);
	}
	for (uint32_t i = 0; i < RING; i++)
		free(s->ring[i].p);
	free(s->in);
	digest_free(s->blob);
	digest_free(s->tar);
	free(s);
}
