/* SPDX-License-Identifier: Apache-2.0
 *
 * netaddr.h: IP addresses as 16 bytes (an IPv4 address is held in its IPv6-mapped form), prefixes of them, and what kind of place an
 * address is. The network programs and the daemon use this one reader, so that both understand a rule in the same way.
 * Any process, any thread. The text and the bytes are hostile.
 */
#pragma once

#include "lib/base.h"

#include <netinet/in.h>
#include <sys/socket.h>

struct net_addr {
	uint8_t b[16]; /* network order; ::ffff:a.b.c.d is IPv4 */
};
#define NET_ADDR_TEXT 48

/* bits counts in the 128-bit form: an IPv4 /24 has 120 bits. */
struct net_prefix {
	struct net_addr addr; /* bits beyond the prefix are 0 */
	uint8_t bits;
};

bool net_addr_is4(const struct net_addr *a);
struct net_addr net_addr4(uint32_t host_order);
bool net_addr_equal(const struct net_addr *a, const struct net_addr *b);
/* Exactly "1.2.3.4" or an IPv6 address without a zone. Refused: a blank, a sign, and in IPv4 a leading zero. */
bool net_addr_parse(const char *s, struct net_addr *out);
const char *net_addr_text(const struct net_addr *a, char to[NET_ADDR_TEXT]);

/* An address, or an address and /LENGTH. Bits beyond the length are cleared. */
bool net_prefix_parse(const char *s, struct net_prefix *out);
bool net_prefix_has(const struct net_prefix *p, const struct net_addr *a);
/* Is every address of `in` also one of `p`? */
bool net_prefix_covers(const struct net_prefix *p, const struct net_prefix *in);

/* Kinds of places. Everything but NET_PUBLIC is closed to a sandbox unless it is opened. */
enum net_kind {
	NET_PUBLIC,
	NET_UNSPECIFIED, /* 0.0.0.0/8, :: */
	NET_LOOPBACK,
	NET_LINK_LOCAL,
	NET_METADATA, /* a cloud's metadata service, if its address is of no other kind */
	NET_PRIVATE,  /* RFC 1918, fc00::/7, fec0::/10 */
	NET_SHARED,   /* 100.64.0.0/10 */
	NET_RESERVED, /* documentation, benchmarks, discard, future use */
	NET_MULTICAST,
	NET_BROADCAST,
	NET_HOST_OWN, /* an address of this host: net_kind_of() never says this, the policy does */
	NET_KIND_COUNT
};

/* The kind, and in *place the prefix that made it so (for NET_PUBLIC: the address itself). */
enum net_kind net_kind_of(const struct net_addr *a, struct net_prefix *place);
const char *net_kind_name(enum net_kind k);

/* The IPv4 addresses that an IPv6 address carries (NAT64, 6to4, Teredo's server and client, IPv4-compatible,
 * IPv4-translated): a packet to it may end there. How many, at most NET_CARRIED_MAX. */
#define NET_CARRIED_MAX 2
unsigned int net_addr_carried(const struct net_addr *a, struct net_addr out[NET_CARRIED_MAX]);

/* To and from the kernel's form; the length of what was filled. */
socklen_t net_addr_sockaddr(const struct net_addr *a, uint16_t port, struct sockaddr_storage *to);
bool net_addr_of_sockaddr(
	const struct sockaddr *s, socklen_t n, struct net_addr *a, uint16_t *port);
