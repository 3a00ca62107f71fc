/* SPDX-License-Identifier: Apache-2.0
 *
 * blocks.h: the data area of the disk that is being built. Blocks are handed out in rising order and never reused, so that data
 * can be written while the layers are read. The size of the file system is not known then: room for its tables is kept in front (ext4.h).
 */
#pragma once

#include "images/build/tree.h"

#define DISK_BLOCK 4096u
#define DISK_CHUNK (64u * 1024) /* unit in which runs of zeros become holes */

struct blocks;

/* Data goes to fd from block `first` on; never more than max_bytes of it (-EFBIG). fd is borrowed.
 */
struct blocks *blocks_create(int fd, uint32_t first, uint64_t max_bytes);
void blocks_destroy(struct blocks *b);
static inline void blocks_destroyp(struct blocks **b)
{
	blocks_destroy(*b);
}

/* One file at a time: begin, write with rising offsets (what lies between is a hole), end. n gets
 * its extents and size. */
void blocks_begin(struct blocks *b, struct node *n);
int blocks_write(struct blocks *b, uint64_t off, const void *p, size_t len);
int blocks_end(struct blocks *b, uint64_t size);

/* Whole blocks at the next place (directories, long links); *pblk is where. */
int blocks_append(struct blocks *b, const void *p, uint32_t nblocks, uint32_t *pblk);

/* For tree.freed: blocks_flush() gives those blocks back to the host. */
void blocks_free(void *b, const struct extent *x, uint32_t n);
/* Writes everything to the file, and punches holes where data was freed. */
int blocks_flush(struct blocks *b);

uint32_t blocks_first(const struct blocks *b);
uint32_t blocks_next(const struct blocks *b); /* one behind the last block in use */
/* the freed ranges, in no order */
const struct extent *blocks_freed(const struct blocks *b, size_t *n);
