/* SPDX-License-Identifier: Apache-2.0
 *
 * frame.h: Ethernet frames of the guest, read with bounds, and frames for it, written. mayfly-net, one thread. Every byte of a guest's
 * frame is hostile; the copy that is read here is ours, the guest cannot change it any more.
 *
 * What is understood: ARP and neighbour discovery for the gateway; TCP, UDP and ICMP echo from the guest's fixed addresses. IPv4 has no
 * options, IPv6 no extension headers. The MTU of 65520 makes no fragments. All else is dropped and counted.
 */
#pragma once

#include "lib/netaddr.h"
#include "lib/proto_net.h"

enum frame_kind {
	FRAME_DROP,
	FRAME_ARP,       /* who has the gateway's address? */
	FRAME_NEIGHBOUR, /* the same for IPv6 */
	FRAME_TCP,       /* the checksum is the guest's; made here if the guest left it to us */
	FRAME_UDP,
	FRAME_ECHO, /* sport: id, dport: sequence number */
};

enum frame_drop {
	DROP_SHORT,
	DROP_TYPE,    /* no protocol of ours */
	DROP_LENGTH,  /* lengths that contradict each other */
	DROP_OPTIONS, /* IPv4 options, IPv6 extension headers */
	DROP_FRAGMENT,
	DROP_SOURCE,  /* not the guest's address */
	DROP_OFFLOAD, /* a virtio header that asks for something not offered */
	DROP_GROUP,   /* multicast, broadcast */
	DROP_COUNT
};

struct frame {
	enum frame_kind kind;
	enum frame_drop why;
	struct net_addr src, dst;
	uint16_t sport, dport;
	uint8_t *ip;      /* the network header */
	size_t ip_len;    /* with everything behind it */
	uint8_t *payload; /* UDP: after its header; echo: the whole ICMP message */
	size_t payload_len;
};

/* p: a packet as the monitor sends it (virtio header, then the frame), n bytes. Missing checksums are put in. */
enum frame_kind frame_read(uint8_t *p, size_t n, struct frame *f);

/* All of these write a packet for the monitor into `to` (NET_PACKET_MAX bytes) and return its length, 0: does not fit. */
size_t frame_arp_reply(uint8_t *to);
size_t frame_neighbour_reply(uint8_t *to);
size_t frame_udp(uint8_t *to, const struct net_addr *src, uint16_t sport, uint16_t dport,
	const void *data, size_t n);
/* An ICMP message (echo reply) from src: p is the message, whose checksum is written here. */
size_t frame_icmp(uint8_t *to, const struct net_addr *src, const void *p, size_t n);
/* ICMP "unreachable" about a packet of the guest. prohibited: by policy; otherwise nobody listens on the port. */
size_t frame_unreachable(uint8_t *to, const struct frame *about, bool prohibited);

/* Frames that announce the guest's hardware address to libslirp, as if the guest had sent them: Ethernet, without a virtio header. */
#define FRAME_TEACH_MAX 128u
size_t frame_teach4(uint8_t to[FRAME_TEACH_MAX]);
size_t frame_teach6(uint8_t to[FRAME_TEACH_MAX]);

uint16_t frame_sum(uint32_t start, const void *p, size_t n);

extern const char *const frame_drop_names[DROP_COUNT];
struct net_addr frame_guest(bool four);
struct net_addr frame_gateway(bool four);
