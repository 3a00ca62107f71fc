/* SPDX-License-Identifier: Apache-2.0
 *
 * frame.c: see frame.h. mayfly-net. Hostile: the packets that frame_read() gets. Offsets: a packet is NET_VHDR_BYTES of virtio header, 14
 * bytes Ethernet, then IP; each function checks how many bytes there are before it reads them.
 */
#include "net/stack/frame.h"

#include <string.h>

#define ETH         14u
#define IP4         20u
#define IP6         40u
#define UDP         8u
#define TYPE_IP4    0x0800u
#define TYPE_ARP    0x0806u
#define TYPE_IP6    0x86ddu
#define HOPS        64
#define VHDR_CSUM   1u /* a flag: the guest left the checksum to us */
#define ARP_BYTES   28u
#define ECHO4       8
#define ECHO6       128
#define SOLICIT     135
#define ADVERTISE   136
#define PROTO_ICMP  1
#define PROTO_TCP   6
#define PROTO_UDP   17
#define PROTO_ICMP6 58

const char *const frame_drop_names[DROP_COUNT] = {
	[DROP_SHORT] = "short",
	[DROP_TYPE] = "type",
	[DROP_LENGTH] = "length",
	[DROP_OPTIONS] = "options",
	[DROP_FRAGMENT] = "fragment",
	[DROP_SOURCE] = "source",
	[DROP_OFFLOAD] = "offload",
	[DROP_GROUP] = "group",
};

static uint16_t get16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static void put16(uint8_t *p, size_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

struct net_addr frame_guest(bool four)
{
	struct net_addr a = net_addr4(NET_GUEST_IP4);

	if (!four)
		memcpy(a.b, NET_GUEST_IP6, 16);
	return a;
}

struct net_addr frame_gateway(bool four)
{
	struct net_addr a = net_addr4(NET_GATEWAY_IP4);

	if (!four)
		memcpy(a.b, NET_GATEWAY_IP6, 16);
	return a;
}

/* The ones' complement sum works in any byte order (RFC 1071): here in the machine's, swapped at the end. */
uint16_t frame_sum(uint32_t start, const void *data, size_t n)
{
	const uint8_t *p = data;
	uint64_t sum = 0;
	uint32_t word;
	uint16_t half;

	for (; n >= 4; n -= 4, p += 4) {
		memcpy(&word, p, 4);
		sum += word;
	}
	if (n >= 2) {
		memcpy(&half, p, 2);
		sum += half;
		p += 2;
		n -= 2;
	}
	if (n)
		sum += p[0]; /* little endian: the first byte of a half is its low one */
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	sum = (uint64_t)__builtin_bswap16((uint16_t)sum) + start;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/* The start of a sum over addresses, protocol and length (RFC 793, RFC 8200). */
static uint32_t pseudo(
	const struct net_addr *a, const struct net_addr *b, uint8_t proto, size_t len)
{
	bool four = net_addr_is4(a);
	uint16_t s = (uint16_t)~frame_sum(0, a->b + (four ? 12 : 0), four ? 4 : 16);
	uint16_t d = (uint16_t)~frame_sum(0, b->b + (four ? 12 : 0), four ? 4 : 16);

	return (uint32_t)s + d + proto + (uint32_t)len;
}

static enum frame_kind drop(struct frame *f, enum frame_drop why)
{
	f->kind = FRAME_DROP;
	f->why = why;
	return FRAME_DROP;
}

static enum frame_kind read_arp(const uint8_t *p, size_t n, struct frame *f)
{
	struct net_addr target = frame_gateway(true);

	if (n < ARP_BYTES)
		return drop(f, DROP_SHORT);
	/* Ethernet, IPv4, a request for the gateway */
	if (memcmp(p, "\0\1\x08\0\6\4\0\1", 8) != 0 || memcmp(p + 24, target.b + 12, 4) != 0)
		return drop(f, DROP_TYPE);
	return f->kind = FRAME_ARP;
}

/* The part after the network header: n bytes at p, none of them checked yet. finish: the guest left the checksum to us. */
static enum frame_kind read_transport(
	uint8_t *p, size_t n, uint8_t proto, bool finish, struct frame *f)
{
	static const struct {
		uint8_t proto, least, sum_at;
		enum frame_kind kind;
	} kinds[] = {
		{PROTO_TCP, 20, 16, FRAME_TCP},
		{PROTO_UDP, UDP, 6, FRAME_UDP},
		{PROTO_ICMP, 8, 2, FRAME_ECHO},
		{PROTO_ICMP6, 8, 2, FRAME_ECHO},
	};
	bool four = net_addr_is4(&f->dst);
	size_t i = 0;

	while (i < ARRAY_LEN(kinds) && kinds[i].proto != proto)
		i++;
	if (i == ARRAY_LEN(kinds) || (proto == PROTO_ICMP && !four) ||
		(proto == PROTO_ICMP6 && four))
		return drop(f, DROP_TYPE);
	if (n < kinds[i].least)
		return drop(f, DROP_SHORT);
	f->payload = p;
	f->payload_len = n;
	f->sport = get16(p);
	f->dport = get16(p + 2);
	if (kinds[i].kind == FRAME_ECHO) {
		if (p[0] != (four ? ECHO4 : ECHO6) || p[1] != 0)
			return drop(f, DROP_TYPE);
		f->sport = get16(p + 4);
		f->dport = get16(p + 6);
	} else if (finish) {
		put16(p + kinds[i].sum_at, 0);
		put16(p + kinds[i].sum_at, frame_sum(pseudo(&f->src, &f->dst, proto, n), p, n));
	}
	if (kinds[i].kind == FRAME_UDP) {
		if (get16(p + 4) < UDP || get16(p + 4) > n)
			return drop(f, DROP_LENGTH);
		f->payload = p + UDP;
		f->payload_len = get16(p + 4) - UDP;
	}
	return f->kind = kinds[i].kind;
}

static bool is_group(const struct net_addr *a)
{
	struct net_prefix place;
	enum net_kind k = net_kind_of(a, &place);

	return k == NET_MULTICAST || k == NET_BROADCAST || k == NET_UNSPECIFIED;
}

static enum frame_kind read_ip4(uint8_t *p, size_t n, bool finish, struct frame *f)
{
	struct net_addr guest = frame_guest(true);
	size_t total;

	if (n < IP4)
		return drop(f, DROP_SHORT);
	if (p[0] != 0x45)
		return drop(f, p[0] >> 4 == 4 && (p[0] & 15) > 5 ? DROP_OPTIONS : DROP_LENGTH);
	total = get16(p + 2);
	if (total < IP4 || total > n)
		return drop(f, DROP_LENGTH);
	if (get16(p + 6) & 0x3fff) /* more fragments, or not the first */
		return drop(f, DROP_FRAGMENT);
	f->src = f->dst = guest;
	memcpy(f->src.b + 12, p + 12, 4);
	memcpy(f->dst.b + 12, p + 16, 4);
	if (!net_addr_equal(&f->src, &guest))
		return drop(f, DROP_SOURCE);
	if (is_group(&f->dst))
		return drop(f, DROP_GROUP);
	f->ip = p;
	f->ip_len = total;
	return read_transport(p + IP4, total - IP4, p[9], finish, f);
}

/* A question for the gateway's hardware address, at p with n bytes of ICMPv6. */
static bool is_solicitation(const uint8_t *p, size_t n)
{
	struct net_addr target = frame_gateway(false);

	return n >= 24 && p[0] == SOLICIT && memcmp(p + 8, target.b, 16) == 0;
}

static enum frame_kind read_ip6(uint8_t *p, size_t n, bool finish, struct frame *f)
{
	struct net_addr guest = frame_guest(false);
	size_t len;

	if (n < IP6)
		return drop(f, DROP_SHORT);
	len = get16(p + 4);
	if (p[0] >> 4 != 6 || len > n - IP6)
		return drop(f, DROP_LENGTH);
	memcpy(f->src.b, p + 8, 16);
	memcpy(f->dst.b, p + 24, 16);
	if (!net_addr_equal(&f->src, &guest))
		return drop(f, DROP_SOURCE);
	if (p[6] == PROTO_ICMP6 && is_solicitation(p + IP6, len))
		return f->kind = FRAME_NEIGHBOUR;
	if (is_group(&f->dst))
		return drop(f, DROP_GROUP);
	/* an IPv4-mapped address would be judged as IPv4 and sent as IPv6 */
	if (net_addr_is4(&f->dst))
		return drop(f, DROP_TYPE);
	if (p[6] != PROTO_TCP && p[6] != PROTO_UDP && p[6] != PROTO_ICMP6)
		return drop(f, DROP_OPTIONS);
	f->ip = p;
	f->ip_len = IP6 + len;
	return read_transport(p + IP6, len, p[6], finish, f);
}

enum frame_kind frame_read(uint8_t *p, size_t n, struct frame *f)
{
	bool finish;

	*f = (struct frame){.kind = FRAME_DROP};
	if (n < NET_VHDR_BYTES + ETH || n > NET_PACKET_MAX)
		return drop(f, DROP_SHORT);
	finish = p[0] & VHDR_CSUM;
	/* segmentation is not offered: the MTU is as large as a packet */
	if ((p[0] & ~VHDR_CSUM) || p[1])
		return drop(f, DROP_OFFLOAD);
	n -= NET_VHDR_BYTES + ETH;
	p += NET_VHDR_BYTES;
	switch (get16(p + 12)) {
	case TYPE_ARP:
		return read_arp(p + ETH, n, f);
	case TYPE_IP4:
		return read_ip4(p + ETH, n, finish, f);
	case TYPE_IP6:
		return read_ip6(p + ETH, n, finish, f);
	default:
		return drop(f, DROP_TYPE);
	}
}

/* Writes the virtio and Ethernet headers. Returns where the network header starts. */
static uint8_t *start(uint8_t *to, unsigned int type)
{
	memset(to, 0, NET_VHDR_BYTES);
	memcpy(to + NET_VHDR_BYTES, NET_GUEST_MAC, 6);
	memcpy(to + NET_VHDR_BYTES + 6, NET_GATEWAY_MAC, 6);
	put16(to + NET_VHDR_BYTES + 12, type);
	return to + NET_VHDR_BYTES + ETH;
}

/* Writes a network header from src to the guest for n bytes. Returns where these start. */
static uint8_t *start_ip(uint8_t *to, const struct net_addr *src, uint8_t proto, size_t n)
{
	bool four = net_addr_is4(src);
	struct net_addr guest = frame_guest(four);
	uint8_t *ip = start(to, four ? TYPE_IP4 : TYPE_IP6);

	if (four) {
		memset(ip, 0, IP4);
		ip[0] = 0x45;
		put16(ip + 2, IP4 + n);
		put16(ip + 6, 0x4000);
		ip[8] = HOPS;
		ip[9] = proto;
		memcpy(ip + 12, src->b + 12, 4);
		memcpy(ip + 16, guest.b + 12, 4);
		put16(ip + 10, frame_sum(0, ip, IP4));
		return ip + IP4;
	}
	memset(ip, 0, IP6);
	ip[0] = 0x60;
	put16(ip + 4, n);
	ip[6] = proto;
	ip[7] = HOPS;
	memcpy(ip + 8, src->b, 16);
	memcpy(ip + 24, guest.b, 16);
	return ip + IP6;
}

static bool fits(const struct net_addr *src, size_t n)
{
	return n <= NET_MTU - (net_addr_is4(src) ? IP4 : IP6);
}

size_t frame_udp(uint8_t *to, const struct net_addr *src, uint16_t sport, uint16_t dport,
	const void *data, size_t n)
{
	struct net_addr guest = frame_guest(net_addr_is4(src));
	uint16_t sum;
	uint8_t *p;

	if (!fits(src, n + UDP))
		return 0;
	p = start_ip(to, src, PROTO_UDP, n + UDP);
	put16(p, sport);
	put16(p + 2, dport);
	put16(p + 4, n + UDP);
	put16(p + 6, 0);
	if (n)
		memcpy(p + UDP, data, n);
	sum = frame_sum(pseudo(src, &guest, PROTO_UDP, n + UDP), p, n + UDP);
	put16(p + 6, sum ? sum : 0xffff); /* 0 would mean that there is no checksum */
	return (size_t)(p - to) + UDP + n;
}

size_t frame_icmp(uint8_t *to, const struct net_addr *src, const void *data, size_t n)
{
	bool four = net_addr_is4(src);
	struct net_addr guest = frame_guest(four);
	uint8_t *p;

	if (n < 4 || !fits(src, n))
		return 0;
	p = start_ip(to, src, four ? PROTO_ICMP : PROTO_ICMP6, n);
	memcpy(p, data, n);
	put16(p + 2, 0);
	put16(p + 2, frame_sum(four ? 0 : pseudo(src, &guest, PROTO_ICMP6, n), p, n));
	return (size_t)(p - to) + n;
}

size_t frame_unreachable(uint8_t *to, const struct frame *about, bool prohibited)
{
	uint8_t m[8 + 512] = {0};
	bool four = net_addr_is4(&about->dst);
	struct net_addr gateway = frame_gateway(four);
	size_t n = MIN(about->ip_len, sizeof(m) - 8);

	/* RFC 792 and RFC 4443: type, code */
	m[0] = four ? 3 : 1;
	m[1] = four ? (prohibited ? 13 : 3) : (prohibited ? 1 : 4);
	memcpy(m + 8, about->ip, n);
	return frame_icmp(to, prohibited ? &gateway : &about->dst, m, 8 + n);
}

size_t frame_arp_reply(uint8_t *to)
{
	struct net_addr gateway = frame_gateway(true), guest = frame_guest(true);
	uint8_t *p = start(to, TYPE_ARP);

	memcpy(p, "\0\1\x08\0\6\4\0\2", 8);
	memcpy(p + 8, NET_GATEWAY_MAC, 6);
	memcpy(p + 14, gateway.b + 12, 4);
	memcpy(p + 18, NET_GUEST_MAC, 6);
	memcpy(p + 24, guest.b + 12, 4);
	return (size_t)(p - to) + ARP_BYTES;
}

/* A neighbour advertisement from src about itself, with its hardware address `mac`. Hop limit 255 is what the receiver checks (RFC 4861, 7.1.2). */
static void advertise(
	uint8_t *ip, const struct net_addr *src, const struct net_addr *dst, const char *mac)
{
	uint8_t *p = ip + IP6;

	memset(ip, 0, IP6 + 32);
	ip[0] = 0x60;
	put16(ip + 4, 32);
	ip[6] = PROTO_ICMP6;
	ip[7] = 255;
	memcpy(ip + 8, src->b, 16);
	memcpy(ip + 24, dst->b, 16);
	p[0] = ADVERTISE;
	p[4] = 0x60; /* solicited, override */
	memcpy(p + 8, src->b, 16);
	p[24] = 2;
	p[25] = 1;
	memcpy(p + 26, mac, 6);
	put16(p + 2, frame_sum(pseudo(src, dst, PROTO_ICMP6, 32), p, 32));
}

size_t frame_neighbour_reply(uint8_t *to)
{
	struct net_addr gateway = frame_gateway(false), guest = frame_guest(false);
	uint8_t *ip = start(to, TYPE_IP6);

	advertise(ip, &gateway, &guest, NET_GATEWAY_MAC);
	return (size_t)(ip - to) + IP6 + 32;
}

size_t frame_teach4(uint8_t to[FRAME_TEACH_MAX])
{
	struct net_addr guest = frame_guest(true);
	uint8_t *p = to + ETH;

	memset(to, 0xff, 6);
	memcpy(to + 6, NET_GUEST_MAC, 6);
	put16(to + 12, TYPE_ARP);
	memcpy(p, "\0\1\x08\0\6\4\0\1", 8);
	memcpy(p + 8, NET_GUEST_MAC, 6);
	memcpy(p + 14, guest.b + 12, 4);
	memset(p + 18, 0, 6);
	memcpy(p + 24, guest.b + 12, 4);
	return ETH + ARP_BYTES;
}

size_t frame_teach6(uint8_t to[FRAME_TEACH_MAX])
{
	struct net_addr gateway = frame_gateway(false), guest = frame_guest(false);

	memcpy(to, NET_GATEWAY_MAC, 6);
	memcpy(to + 6, NET_GUEST_MAC, 6);
	put16(to + 12, TYPE_IP6);
	advertise(to + ETH, &guest, &gateway, NET_GUEST_MAC);
	return ETH + IP6 + 32;
}
