/* SPDX-License-Identifier: Apache-2.0
 *
 * net_frame: frames of the guest, good and bad, and frames for it, whose checksums are computed a second time here.
 */
#include "lib/test.h"

#include "net/stack/frame.h"

static uint8_t in[NET_PACKET_MAX + 64], out[NET_PACKET_MAX];

static void put16(uint8_t *p, size_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

/* A packet of the guest to dst: its length. The transport part is n bytes of zero but for what the caller writes. */
static size_t packet(const char *dst, uint8_t proto, size_t n, uint8_t **transport)
{
	struct net_addr a = {{0}}, guest;
	uint8_t *ip = in + NET_VHDR_BYTES + 14;
	bool four;

	CHECK(net_addr_parse(dst, &a));
	four = net_addr_is4(&a);
	guest = frame_guest(four);
	memset(in, 0, sizeof(in));
	put16(ip - 2, four ? 0x0800 : 0x86dd);
	if (four) {
		ip[0] = 0x45;
		put16(ip + 2, 20 + n);
		ip[8] = 64;
		ip[9] = proto;
		memcpy(ip + 12, guest.b + 12, 4);
		memcpy(ip + 16, a.b + 12, 4);
	} else {
		ip[0] = 0x60;
		put16(ip + 4, n);
		ip[6] = proto;
		memcpy(ip + 8, guest.b, 16);
		memcpy(ip + 24, a.b, 16);
	}
	*transport = ip + (four ? 20 : 40);
	return (size_t)(*transport - in) + n;
}

/* A plain and slow sum over a pseudo header and what follows; 0 when the checksum inside is right. */
static unsigned int sum_of(const uint8_t *ip, bool pseudo)
{
	bool four = ip[0] >> 4 == 4;
	size_t n = four ? (size_t)(ip[2] << 8 | ip[3]) - 20 : (size_t)(ip[4] << 8 | ip[5]);
	const uint8_t *p = ip + (four ? 20 : 40), *a = ip + (four ? 12 : 8);
	uint32_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += i % 2 ? p[i] : (uint32_t)p[i] << 8;
	if (pseudo) {
		for (size_t i = 0; i < (four ? 8 : 32); i++)
			sum += i % 2 ? a[i] : (uint32_t)a[i] << 8;
		sum += (uint32_t)n + ip[four ? 9 : 6];
	}
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return ~sum & 0xffff;
}

static void good_packets_are_read(void)
{
	static const char *const to[] = {"8.8.8.8", "2606:4700::1111"};
	struct frame f;
	uint8_t *t;
	size_t n;

	for (int i = 0; i < 2; i++) {
		n = packet(to[i], 17, 8 + 5, &t);
		put16(t, 1000);
		put16(t + 2, 53);
		put16(t + 4, 13);
		memcpy(t + 8, "hello", 5);
		in[0] = 1; /* the checksum is ours to finish */
		CHECK_INT(frame_read(in, n, &f), FRAME_UDP);
		CHECK_INT(f.sport, 1000);
		CHECK_INT(f.dport, 53);
		CHECK(f.payload_len == 5 && !memcmp(f.payload, "hello", 5));
		CHECK_INT(sum_of(f.ip, true), 0);
		/* longer than its UDP header says: the rest is padding; shorter: refused */
		put16(t + 4, 11);
		CHECK_INT(frame_read(in, n, &f), FRAME_UDP);
		CHECK_INT(f.payload_len, 3);
		put16(t + 4, 14);
		CHECK_INT(frame_read(in, n, &f), FRAME_DROP);
		n = packet(to[i], 6, 20 + 1001, &t);
		t[12] = 0x50;
		for (int k = 20; k < 1021; k++)
			t[k] = (uint8_t)(k * 7);
		in[0] = 1;
		CHECK_INT(frame_read(in, n, &f), FRAME_TCP);
		CHECK_INT(sum_of(f.ip, true), 0);
		n = packet(to[i], i ? 58 : 1, 8 + 10, &t);
		t[0] = i ? 128 : 8;
		put16(t + 4, 77);
		CHECK_INT(frame_read(in, n, &f), FRAME_ECHO);
		CHECK_INT(f.sport, 77);
		CHECK_INT(f.payload_len, 18);
		/* padding of Ethernet behind the packet */
		CHECK_INT(frame_read(in, n + 30, &f), FRAME_ECHO);
		CHECK_INT(f.payload_len, 18);
		/* every cut is refused */
		for (size_t k = 0; k < n; k++)
			CHECK_INT(frame_read(in, k, &f), FRAME_DROP);
	}
}

static enum frame_drop why(size_t n)
{
	struct frame f;

	CHECK_INT(frame_read(in, n, &f), FRAME_DROP);
	return f.why;
}

static void strange_packets_are_dropped(void)
{
	uint8_t *t, *ip = in + NET_VHDR_BYTES + 14;
	size_t n = packet("8.8.8.8", 17, 20, &t);

	put16(t + 4, 20);
	ip[0] = 0x46;
	CHECK_INT(why(n), DROP_OPTIONS);
	ip[0] = 0x44;
	CHECK_INT(why(n), DROP_LENGTH);
	ip[0] = 0x55;
	CHECK_INT(why(n), DROP_LENGTH);
	ip[0] = 0x45;
	put16(ip + 6, 0x2000);
	CHECK_INT(why(n), DROP_FRAGMENT);
	put16(ip + 6, 100);
	CHECK_INT(why(n), DROP_FRAGMENT);
	put16(ip + 6, 0x4000);
	put16(ip + 2, 2000);
	CHECK_INT(why(n), DROP_LENGTH);
	put16(ip + 2, 19);
	CHECK_INT(why(n), DROP_LENGTH);
	put16(ip + 2, 40);
	ip[15] = 3;
	CHECK_INT(why(n), DROP_SOURCE);
	ip[15] = 2;
	in[0] = 2;
	CHECK_INT(why(n), DROP_OFFLOAD);
	in[0] = 0;
	in[1] = 1; /* segmentation */
	CHECK_INT(why(n), DROP_OFFLOAD);
	in[1] = 0;
	ip[9] = 47;
	CHECK_INT(why(n), DROP_TYPE);
	ip[9] = 58; /* ICMPv6 over IPv4 */
	CHECK_INT(why(n), DROP_TYPE);
	n = packet("224.0.0.251", 17, 20, &t);
	CHECK_INT(why(n), DROP_GROUP);
	n = packet("255.255.255.255", 17, 20, &t);
	CHECK_INT(why(n), DROP_GROUP);
	n = packet("ff02::2", 58, 20, &t);
	CHECK_INT(why(n), DROP_GROUP);
	n = packet("2606::1", 0, 20, &t); /* hop-by-hop options */
	CHECK_INT(why(n), DROP_OPTIONS);
	n = packet("2606::1", 44, 20, &t); /* a fragment */
	CHECK_INT(why(n), DROP_OPTIONS);
	n = packet("2606::1", 17, 20, &t);
	put16(t + 4, 20);
	/* the loopback of the host in IPv6 clothes */
	memcpy(in + NET_VHDR_BYTES + 14 + 24, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\1", 16);
	CHECK_INT(why(n), DROP_TYPE);
	put16(in + NET_VHDR_BYTES + 12, 0x88cc);
	CHECK_INT(why(n), DROP_TYPE);
}

static void the_gateway_is_found(void)
{
	uint8_t *p = in + NET_VHDR_BYTES, *t;
	struct frame f;
	size_t n;

	memset(in, 0, sizeof(in));
	put16(p + 12, 0x0806);
	memcpy(p + 14, "\0\1\x08\0\6\4\0\1", 8);
	memcpy(p + 14 + 24, "\xc0\0\2\1", 4);
	CHECK_INT(frame_read(in, NET_VHDR_BYTES + 42, &f), FRAME_ARP);
	p[14 + 27] = 9;
	CHECK_INT(frame_read(in, NET_VHDR_BYTES + 42, &f), FRAME_DROP);
	n = frame_arp_reply(out);
	CHECK_INT(n, NET_VHDR_BYTES + 42);
	CHECK(!memcmp(out + NET_VHDR_BYTES + 14 + 8,
		NET_GATEWAY_MAC "\xc0\0\2\1" NET_GUEST_MAC "\xc0\0\2\2", 20));
	n = packet("ff02::1:ff00:1", 58, 32, &t);
	t[0] = 135;
	memcpy(t + 8, NET_GATEWAY_IP6, 16);
	CHECK_INT(frame_read(in, n, &f), FRAME_NEIGHBOUR);
	n = frame_neighbour_reply(out);
	CHECK_INT(n, NET_VHDR_BYTES + 14 + 40 + 32);
	CHECK_INT(sum_of(out + NET_VHDR_BYTES + 14, true), 0);
	frame_teach6(in);
	CHECK_INT(sum_of(in + 14, true), 0);
}

static void packets_for_the_guest_have_right_sums(void)
{
	static const char *const from[] = {"8.8.4.4", "2606:4700::1001"};
	static uint8_t data[65536];
	struct net_addr a = {{0}};
	struct frame f;
	uint8_t *t;

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 31 >> 3);
	for (int i = 0; i < 2; i++) {
		CHECK(net_addr_parse(from[i], &a));
		for (size_t n = 0; n < 3000; n += 1 + n / 7) {
			size_t len = frame_udp(out, &a, 53, 999, data + n % 13, n);

			CHECK_INT(len, NET_VHDR_BYTES + 14 + (i ? 40u : 20u) + 8 + n);
			CHECK_INT(sum_of(out + NET_VHDR_BYTES + 14, true), 0);
			if (n >= 4) {
				CHECK(frame_icmp(out, &a, data + n % 5, n) > 0);
				CHECK_INT(sum_of(out + NET_VHDR_BYTES + 14, i), 0);
			}
		}
		/* the largest, and one more */
		CHECK_INT(frame_udp(out, &a, 1, 2, data, NET_MTU - (i ? 40 : 20) - 8),
			NET_PACKET_MAX);
		CHECK_INT(frame_udp(out, &a, 1, 2, data, NET_MTU - (i ? 40 : 20) - 7), 0);
		put16(in, 0);
		{
			size_t n = packet(from[i], 17, 2000, &t);

			put16(t + 4, 2000);
			CHECK_INT(frame_read(in, n, &f), FRAME_UDP);
			for (int prohibited = 0; prohibited < 2; prohibited++) {
				CHECK(frame_unreachable(out, &f, prohibited) > 0);
				CHECK_INT(sum_of(out + NET_VHDR_BYTES + 14, i), 0);
			}
		}
	}
}

static const struct test tests[] = {
	{"good_packets_are_read", good_packets_are_read},
	{"strange_packets_are_dropped", strange_packets_are_dropped},
	{"the_gateway_is_found", the_gateway_is_found},
	{"packets_for_the_guest_have_right_sums", packets_for_the_guest_have_right_sums},
};
TEST_MAIN(tests)
