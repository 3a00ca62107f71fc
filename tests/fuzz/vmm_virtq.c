/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_virtq: the split ring's walk over memory that the input fills. Byte 0: flags (1 event index,
 * 2 indirect), byte 1: ring size, byte 2: turns; then the descriptor table, the two rings, and what
 * else there is of memory, in this order. Every range handed out is read or written in full, so
 * that ASan sees one byte too many; between turns the available index moves on, as a guest moves
 * it.
 */
#include <string.h>

#include "vmm/virtq.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define RAM    16384u
#define DESC   0u
#define AVAIL  1024u
#define USED   2048u
#define TABLES 4096u

static void use(const struct virtq_chain *c)
{
	static volatile uint8_t sum;
	struct iovec part[8];
	size_t bytes, total = 0;

	for (unsigned int i = 0; i < c->nout; i++) {
		const uint8_t *b = virtq_out(c)[i].iov_base;

		for (size_t k = 0; k < virtq_out(c)[i].iov_len; k += 61)
			sum = sum ^ b[k];
		sum = sum ^ b[virtq_out(c)[i].iov_len - 1];
		total += virtq_out(c)[i].iov_len;
	}
	ASSERT(total == c->out_bytes);
	/* not the rings: what the device writes there is another matter than what it reads */
	for (unsigned int i = 0; i < c->nin; i++) {
		volatile uint8_t *first = virtq_in(c)[i].iov_base,
				 *last = first + virtq_in(c)[i].iov_len - 1;
		uint8_t was = *first;

		*first = was;
		was = *last;
		*last = was;
	}
	ASSERT(iov_slice(virtq_in(c), c->nin, 44, 100000, part, 8, &bytes) <= 8);
	ASSERT(bytes <= c->in_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct mem m = {.ram_bytes = RAM, .low_bytes = RAM, .span_bytes = RAM};
	struct iovec iov[40];
	struct virtq_chain c = {.iov = iov};
	uint16_t held[64];
	unsigned int nheld = 0;
	struct virtq q;

	if (n < 3)
		return 0;
	m.base = aligned_alloc(PAGE_BYTES, RAM);
	ASSERT(m.base);
	memset(m.base, 0, RAM);
	memcpy(m.base, p + 3, MIN(n - 3, RAM));
	virtq_init(&q, &m, 64);
	q.event_idx = p[0] & 1;
	q.indirect = p[0] & 2;
	c.cap = (uint16_t)(1 + p[0] % ARRAY_LEN(iov));
	q.size = (uint16_t)(1u << p[1] % 7);
	q.desc_gpa = GPA(DESC);
	q.avail_gpa = GPA(AVAIL);
	q.used_gpa = GPA(USED);
	ASSERT(virtq_enable(&q) == 0);
	for (unsigned int turn = 0; turn <= p[2]; turn++) {
		int rc = virtq_pop(&q, &c);

		if (rc < 0)
			break;
		if (rc > 0) {
			ASSERT(c.head < q.size && c.nout + c.nin > 0 && c.nout + c.nin <= c.cap);
			use(&c);
			ASSERT(nheld < ARRAY_LEN(held));
			held[nheld++] = c.head;
		}
		if (rc == 0 || turn % 3 == 2) {
			while (nheld > 0)
				virtq_push(&q, held[--nheld], turn);
			virtq_publish(&q);
		}
		if (turn % 5 == 4 && nheld > 0) {
			virtq_unpop(&q, 1);
			nheld--;
		}
		if (rc == 0) {
			if (virtq_arm(&q) || virtq_arm_beyond(&q))
				continue;
			((uint16_t *)(void *)(m.base + AVAIL))[1] += (uint16_t)(turn % 4);
		}
	}
	ASSERT(q.inflight == nheld);
	free(m.base);
	return 0;
}
