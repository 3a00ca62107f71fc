/* SPDX-License-Identifier: Apache-2.0
 *
 * net_frame.c: a packet of the guest, read in place. What is accepted lies inside of the packet, comes from the guest's address, and goes to
 * no group of receivers; an error about it can be written.
 */
#include "lib/test.h"
#include "net/stack/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static uint8_t out[NET_PACKET_MAX];

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	uint8_t *exact;
	struct frame f;

	if (n > NET_PACKET_MAX)
		return 0;
	exact = malloc(n ? n : 1); /* a read beyond the packet is one beyond the allocation */
	ASSERT(exact);
	memcpy(exact, p, n);
	switch (frame_read(exact, n, &f)) {
	case FRAME_DROP:
		ASSERT(f.why < DROP_COUNT);
		break;
	case FRAME_ARP:
	case FRAME_NEIGHBOUR:
		break;
	case FRAME_TCP:
	case FRAME_UDP:
	case FRAME_ECHO: {
		struct net_addr guest = frame_guest(net_addr_is4(&f.dst));

		ASSERT(net_addr_equal(&f.src, &guest));
		ASSERT(f.ip >= exact && f.ip + f.ip_len <= exact + n);
		ASSERT(f.payload >= f.ip && f.payload + f.payload_len <= f.ip + f.ip_len);
		ASSERT(frame_unreachable(out, &f, n & 1) > 0);
		if (f.kind == FRAME_ECHO)
			ASSERT(frame_icmp(out, &f.dst, f.payload, f.payload_len) > 0);
	}
	}
	free(exact);
	return 0;
}
