/* SPDX-License-Identifier: Apache-2.0
 *
 * netaddr.c: see netaddr.h. Any process. Hostile: texts of addresses. The table of special places follows the IANA registries of
 * special-purpose addresses (RFC 6890 and its updates).
 */
#include "lib/netaddr.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool net_addr_is4(const struct net_addr *a)
{
	return memcmp(a->b, mapped, sizeof(mapped)) == 0;
}

struct net_addr net_addr4(uint32_t v)
{
	struct net_addr a;

	memcpy(a.b, mapped, sizeof(mapped));
	for (int i = 0; i < 4; i++)
		a.b[12 + i] = (uint8_t)(v >> (24 - 8 * i));
	return a;
}

bool net_addr_equal(const struct net_addr *a, const struct net_addr *b)
{
	return memcmp(a->b, b->b, sizeof(a->b)) == 0;
}

bool net_addr_parse(const char *s, struct net_addr *out)
{
	struct net_addr a;
	struct in_addr four;

	if (strlen(s) >= NET_ADDR_TEXT)
		return false;
	if (strchr(s, ':')) {
		if (inet_pton(AF_INET6, s, a.b) != 1)
			return false;
	} else {
		if (inet_pton(AF_INET, s, &four) != 1)
			return false;
		a = net_addr4(ntohl(four.s_addr));
	}
	*out = a;
	return true;
}

const char *net_addr_text(const struct net_addr *a, char to[NET_ADDR_TEXT])
{
	if (net_addr_is4(a))
		return inet_ntop(AF_INET, a->b + 12, to, NET_ADDR_TEXT);
	return inet_ntop(AF_INET6, a->b, to, NET_ADDR_TEXT);
}

static void prefix_clear(struct net_prefix *p)
{
	for (unsigned int i = 0; i < 16; i++) {
		unsigned int left = p->bits > i * 8 ? p->bits - i * 8 : 0;

		p->addr.b[i] &= left >= 8 ? 0xff : (uint8_t)(0xff00 >> left);
	}
}

/* one to three digits, no leading zero */
static bool prefix_length(const char *s, unsigned int max, unsigned int *out)
{
	unsigned int v = 0;
	size_t n = strlen(s);

	if (n < 1 || n > 3 || (n > 1 && s[0] == '0'))
		return false;
	for (size_t i = 0; i < n; i++) {
		if (s[i] < '0' || s[i] > '9')
			return false;
		v = v * 10 + (unsigned int)(s[i] - '0');
	}
	*out = v;
	return v <= max;
}

bool net_prefix_parse(const char *s, struct net_prefix *out)
{
	const char *slash = strchr(s, '/');
	char text[NET_ADDR_TEXT];
	struct net_prefix p = {.bits = 128};
	unsigned int bits;

	if (!slash) {
		if (!net_addr_parse(s, &p.addr))
			return false;
		*out = p;
		return true;
	}
	if ((size_t)(slash - s) >= sizeof(text))
		return false;
	memcpy(text, s, (size_t)(slash - s));
	text[slash - s] = 0;
	if (!net_addr_parse(text, &p.addr))
		return false;
	if (!prefix_length(slash + 1, strchr(text, ':') ? 128 : 32, &bits))
		return false;
	p.bits = (uint8_t)(strchr(text, ':') ? bits : bits + 96);
	prefix_clear(&p);
	*out = p;
	return true;
}

bool net_prefix_has(const struct net_prefix *p, const struct net_addr *a)
{
	unsigned int whole = p->bits / 8, rest = p->bits % 8;

	/* ::/0 means all of IPv6. An IPv4 address is only stored as an IPv6 address: it is not in
	 * ::/0. */
	if (p->bits < 96 && net_addr_is4(a))
		return false;
	if (memcmp(p->addr.b, a->b, whole) != 0)
		return false;
	return !rest || !((p->addr.b[whole] ^ a->b[whole]) & (0xff00 >> rest) & 0xff);
}

bool net_prefix_covers(const struct net_prefix *p, const struct net_prefix *in)
{
	return in->bits >= p->bits && net_prefix_has(p, &in->addr);
}

#define V4(a, b, c, d)                                                                             \
	{                                                                                          \
		{                                                                                  \
			0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d                       \
		}                                                                                  \
	}

/* The first row that has the address says the kind: narrower rows come first. */
static const struct {
	struct net_prefix place;
	enum net_kind kind;
} places[] = {
	{{V4(255, 255, 255, 255), 128}, NET_BROADCAST},
	{{V4(0, 0, 0, 0), 104}, NET_UNSPECIFIED},
	{{V4(10, 0, 0, 0), 104}, NET_PRIVATE},
	{{V4(100, 64, 0, 0), 106}, NET_SHARED},
	{{V4(127, 0, 0, 0), 104}, NET_LOOPBACK},
	{{V4(168, 63, 129, 16), 128}, NET_METADATA}, /* Azure's wire server has a public address */
	{{V4(169, 254, 0, 0), 112}, NET_LINK_LOCAL}, /* 169.254.169.254 and its relatives */
	{{V4(172, 16, 0, 0), 108}, NET_PRIVATE},
	{{V4(192, 0, 0, 0), 120}, NET_RESERVED},
	{{V4(192, 0, 2, 0), 120}, NET_RESERVED}, /* the sandbox's own network is in here */
	{{V4(192, 88, 99, 0), 120}, NET_RESERVED},
	{{V4(192, 168, 0, 0), 112}, NET_PRIVATE},
	{{V4(198, 18, 0, 0), 111}, NET_RESERVED},
	{{V4(198, 51, 100, 0), 120}, NET_RESERVED},
	{{V4(203, 0, 113, 0), 120}, NET_RESERVED},
	{{V4(224, 0, 0, 0), 100}, NET_MULTICAST},
	{{V4(240, 0, 0, 0), 100}, NET_RESERVED},
	{{{{[15] = 0}}, 128}, NET_UNSPECIFIED},
	{{{{[15] = 1}}, 128}, NET_LOOPBACK},
	{{{{0}}, 96}, NET_RESERVED},                      /* IPv4-compatible addresses */
	{{{{[8] = 0xff, [9] = 0xff}}, 96}, NET_RESERVED}, /* IPv4-translated addresses (SIIT) */
	{{{{0x00, 0x64, 0xff, 0x9b, 0x00, 0x01}}, 48}, NET_PRIVATE}, /* NAT64 of a local network */
	{{{{0x01, 0x00}}, 64}, NET_RESERVED},
	{{{{0x20, 0x01, 0x0d, 0xb8}}, 32}, NET_RESERVED},
	{{{{0x3f, 0xff}}, 20}, NET_RESERVED},
	{{{{0x5f, 0x00}}, 16}, NET_RESERVED},
	{{{{0xfc}}, 7},
		NET_PRIVATE}, /* with the metadata addresses fd00:ec2::254 and fd20:ce::254 */
	{{{{0xfe, 0x80}}, 10}, NET_LINK_LOCAL},
	{{{{0xfe, 0xc0}}, 10}, NET_PRIVATE},
	{{{{0xff}}, 8}, NET_MULTICAST},
};

enum net_kind net_kind_of(const struct net_addr *a, struct net_prefix *place)
{
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		if (!net_prefix_has(&places[i].place, a))
			continue;
		*place = places[i].place;
		return places[i].kind;
	}
	*place = (struct net_prefix){.addr = *a, .bits = 128};
	return NET_PUBLIC;
}

const char *net_kind_name(enum net_kind k)
{
	static const char *const names[] = {
		[NET_PUBLIC] = "public",
		[NET_UNSPECIFIED] = "unspecified",
		[NET_LOOPBACK] = "loopback",
		[NET_LINK_LOCAL] = "link-local",
		[NET_METADATA] = "metadata",
		[NET_PRIVATE] = "private",
		[NET_SHARED] = "shared",
		[NET_RESERVED] = "reserved",
		[NET_MULTICAST] = "multicast",
		[NET_BROADCAST] = "broadcast",
		[NET_HOST_OWN] = "host",
	};

	static_assert(ARRAY_LEN(names) == NET_KIND_COUNT, "a name for each kind");
	return names[k];
}

static struct net_addr carried_at(const struct net_addr *a, unsigned int at, uint8_t flip)
{
	uint32_t v = 0;

	for (unsigned int i = 0; i < 4; i++)
		v = v << 8 | (uint8_t)(a->b[at + i] ^ flip);
	return net_addr4(v);
}

/* At which byte of an address with that prefix the IPv4 address is; Teredo writes the client's
 * inverted (RFC 4380, 4). */
static const struct {
	struct net_prefix in;
	uint8_t at, flip;
} carriers[] = {
	{{{{0}}, 96}, 12, 0},
	{{{{0x00, 0x64, 0xff, 0x9b}}, 96}, 12, 0},
	{{{{[8] = 0xff, [9] = 0xff}}, 96}, 12, 0}, /* IPv4-translated, RFC 2765, 2.1 */
	{{{{0x20, 0x02}}, 16}, 2, 0},
	{{{{0x20, 0x01, 0, 0}}, 32}, 4, 0},
	{{{{0x20, 0x01, 0, 0}}, 32}, 12, 0xff},
};

unsigned int net_addr_carried(const struct net_addr *a, struct net_addr out[NET_CARRIED_MAX])
{
	unsigned int n = 0;

	for (size_t i = 0; i < ARRAY_LEN(carriers); i++) {
		if (!net_prefix_has(&carriers[i].in, a))
			continue;
		ASSERT(n < NET_CARRIED_MAX);
		out[n++] = carried_at(a, carriers[i].at, carriers[i].flip);
	}
	return n;
}

socklen_t net_addr_sockaddr(const struct net_addr *a, uint16_t port, struct sockaddr_storage *to)
{
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)to;
	struct sockaddr_in *four = (struct sockaddr_in *)to;

	memset(to, 0, sizeof(*to));
	if (net_addr_is4(a)) {
		four->sin_family = AF_INET;
		four->sin_port = htons(port);
		memcpy(&four->sin_addr, a->b + 12, 4);
		return sizeof(*four);
	}
	six->sin6_family = AF_INET6;
	six->sin6_port = htons(port);
	memcpy(&six->sin6_addr, a->b, 16);
	return sizeof(*six);
}

bool net_addr_of_sockaddr(const struct sockaddr *s, socklen_t n, struct net_addr *a, uint16_t *port)
{
	struct sockaddr_in6 six;
	struct sockaddr_in four;

	if (n >= sizeof(four) && s->sa_family == AF_INET) {
		memcpy(&four, s, sizeof(four));
		*a = net_addr4(ntohl(four.sin_addr.s_addr));
		*port = ntohs(four.sin_port);
		return true;
	}
	if (n >= sizeof(six) && s->sa_family == AF_INET6) {
		memcpy(&six, s, sizeof(six));
		memcpy(a->b, &six.sin6_addr, 16);
		*port = ntohs(six.sin6_port);
		return true;
	}
	return false;
}
