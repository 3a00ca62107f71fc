/* SPDX-License-Identifier: Apache-2.0
 *
 * blocks.c: a bump allocator with a write-behind buffer over the disk file. Runs in the image job; sizes and offsets come from hostile
 * archives, and are bounded by max_bytes and by 32-bit block numbers. Small files end up side by side in one large write.
 */
#include "images/build/blocks.h"

#include <fcntl.h>
#include <string.h>

#define OUT_BLOCKS   512u /* write-behind: 2 MiB */
#define CHUNK_BLOCKS (DISK_CHUNK / DISK_BLOCK)

struct blocks {
	int fd;
	uint32_t first, next;
	uint64_t max_blocks;
	/* write-behind: blocks [out_blk, out_blk + out_n) */
	uint8_t *out;
	uint32_t out_blk, out_n;
	/* the file being written */
	struct node *node;
	uint8_t *chunk;
	uint64_t chunk_no;
	uint32_t touched; /* a bit a block of the chunk */
	bool failed_nomem;
	struct extent *freed;
	size_t nfreed, cap_freed;
};

struct blocks *blocks_create(int fd, uint32_t first, uint64_t max_bytes)
{
	struct blocks *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->fd = fd;
	b->first = b->next = first;
	b->max_blocks = max_bytes / DISK_BLOCK;
	b->out = malloc((size_t)OUT_BLOCKS * DISK_BLOCK);
	b->chunk = calloc(1, DISK_CHUNK);
	if (!b->out || !b->chunk) {
		blocks_destroy(b);
		return NULL;
	}
	return b;
}

void blocks_destroy(struct blocks *b)
{
	if (!b)
		return;
	free(b->out);
	free(b->chunk);
	free(b->freed);
	free(b);
}

static int drain(struct blocks *b)
{
	int r;

	if (!b->out_n)
		return 0;
	r = pwrite_full(
		b->fd, b->out, (size_t)b->out_n * DISK_BLOCK, (uint64_t)b->out_blk * DISK_BLOCK);
	if (r == 0)
		/* begins to write now, so that the one fsync at the end has little left */
		sync_file_range(b->fd, (off_t)b->out_blk * DISK_BLOCK, (off_t)b->out_n * DISK_BLOCK,
			SYNC_FILE_RANGE_WRITE);
	b->out_n = 0;
	return r;
}

int blocks_append(struct blocks *b, const void *p, uint32_t nblocks, uint32_t *pblk)
{
	const uint8_t *from = p;

	if (nblocks > b->max_blocks || b->next - b->first > b->max_blocks - nblocks ||
		nblocks > UINT32_MAX - b->next)
		return -EFBIG;
	*pblk = b->next;
	while (nblocks) {
		uint32_t k;

		if (b->out_n == OUT_BLOCKS) {
			int r = drain(b);

			if (r < 0)
				return r;
		}
		if (!b->out_n)
			b->out_blk = b->next;
		k = MIN(nblocks, OUT_BLOCKS - b->out_n);
		memcpy(b->out + (size_t)b->out_n * DISK_BLOCK, from, (size_t)k * DISK_BLOCK);
		b->out_n += k;
		b->next += k;
		from += (size_t)k * DISK_BLOCK;
		nblocks -= k;
	}
	return 0;
}

static bool is_zero(const uint8_t *p, size_t n)
{
	return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

static int put_chunk(struct blocks *b)
{
	uint32_t t = b->touched;
	int r = 0;

	if (!t)
		return 0;
	b->touched = 0;
	if (t == (1u << CHUNK_BLOCKS) - 1 && is_zero(b->chunk, DISK_CHUNK))
		return 0;
	for (uint32_t i = 0; i < CHUNK_BLOCKS && r == 0;) {
		uint32_t n = 0, pblk;

		if (!(t & 1u << i)) {
			i++;
			continue;
		}
		while (i + n < CHUNK_BLOCKS && (t & 1u << (i + n)))
			n++;
		r = blocks_append(b, b->chunk + (size_t)i * DISK_BLOCK, n, &pblk);
		if (r == 0)
			r = node_add_extent(
				b->node, (uint32_t)(b->chunk_no * CHUNK_BLOCKS + i), pblk, n);
		i += n;
	}
	memset(b->chunk, 0, DISK_CHUNK);
	return r;
}

void blocks_begin(struct blocks *b, struct node *n)
{
	b->node = n;
	b->chunk_no = 0;
	if (b->touched)
		memset(b->chunk, 0, DISK_CHUNK);
	b->touched = 0;
}

int blocks_write(struct blocks *b, uint64_t off, const void *p, size_t len)
{
	const uint8_t *from = p;

	if (off > (uint64_t)UINT32_MAX * DISK_BLOCK ||
		len > (uint64_t)UINT32_MAX * DISK_BLOCK - off)
		return -EFBIG;
	if (off / DISK_CHUNK < b->chunk_no)
		return -EINVAL; /* an archive whose sparse map runs backwards */
	while (len) {
		uint64_t no = off / DISK_CHUNK;
		size_t at = off % DISK_CHUNK, k = MIN(len, DISK_CHUNK - at);

		if (no != b->chunk_no) {
			int r = put_chunk(b);

			if (r < 0)
				return r;
			b->chunk_no = no;
		}
		memcpy(b->chunk + at, from, k);
		for (size_t i = at / DISK_BLOCK; i <= (at + k - 1) / DISK_BLOCK; i++)
			b->touched |= 1u << i;
		off += k;
		from += k;
		len -= k;
	}
	return 0;
}

int blocks_end(struct blocks *b, uint64_t size)
{
	b->node->size = size;
	return put_chunk(b);
}

void blocks_free(void *arg, const struct extent *x, uint32_t n)
{
	struct blocks *b = arg;

	if (b->nfreed + n > b->cap_freed) {
		size_t cap = MAX(b->cap_freed * 2, b->nfreed + n);
		struct extent *p = realloc(b->freed, cap * sizeof(*p));

		if (!p) {
			b->failed_nomem = true; /* blocks_flush() reports it */
			return;
		}
		b->freed = p;
		b->cap_freed = cap;
	}
	memcpy(b->freed + b->nfreed, x, n * sizeof(*x));
	b->nfreed += n;
}

int blocks_flush(struct blocks *b)
{
	int r = drain(b);

	if (r < 0)
		return r;
	if (b->failed_nomem)
		return -ENOMEM;
	for (size_t i = 0; i < b->nfreed; i++)
		/* fails on a file system without holes: the space is not given back */
		(void)fallocate(b->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			(off_t)b->freed[i].pblk * DISK_BLOCK, (off_t)b->freed[i].len * DISK_BLOCK);
	return 0;
}

uint32_t blocks_first(const struct blocks *b)
{
	return b->first;
}

uint32_t blocks_next(const struct blocks *b)
{
	return b->next;
}

const struct extent *blocks_freed(const struct blocks *b, size_t *n)
{
	*n = b->nfreed;
	return b->freed;
}
