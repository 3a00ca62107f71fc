/* SPDX-License-Identifier: Apache-2.0
 *
 * net.c: see net.h. Runs before the loop. Its only input is the kernel's answers.
 *
 * The guest must say nothing by itself: no router solicitation, no duplicate address detection, no neighbour discovery (the gateway is a
 * permanent neighbour), no link-local address and so no multicast reports for it. A frame would start a network process for a sandbox that
 * nobody uses.
 */
#include "agent/net.h"

#include <linux/if_addr.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/text.h"
#include "lib/log.h"
#include "lib/proto_net.h"

#define DEVICE "eth0"

struct request {
	struct nlmsghdr h;
	uint8_t body[200];
};

static void request_start(struct request *r, uint16_t type, const void *body, size_t n)
{
	memset(r, 0, sizeof(*r));
	r->h.nlmsg_len = (uint32_t)NLMSG_LENGTH(n);
	r->h.nlmsg_type = type;
	r->h.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
	memcpy(r->body, body, n);
}

static void request_attr(struct request *r, uint16_t type, const void *p, size_t n)
{
	struct rtattr a = {.rta_len = (uint16_t)RTA_LENGTH(n), .rta_type = type};
	size_t at = NLMSG_ALIGN(r->h.nlmsg_len);

	ASSERT(at + RTA_SPACE(n) <= sizeof(*r));
	memcpy((uint8_t *)r + at, &a, sizeof(a));
	memcpy((uint8_t *)r + at + RTA_LENGTH(0), p, n);
	r->h.nlmsg_len = (uint32_t)(at + RTA_SPACE(n));
}

static void request_send(int s, const struct request *r, const char *what)
{
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
		uint8_t more[256];
	} a = {0};

	if (send(s, r, r->h.nlmsg_len, 0) < 0 ||
		recv(s, &a, sizeof(a), 0) < (ssize_t)NLMSG_LENGTH(sizeof(a.e)))
		log_warn("network: %s: %s", what, strerror(errno));
	else if (a.h.nlmsg_type == NLMSG_ERROR && a.e.error)
		log_warn("network: %s: %s", what, strerror(-a.e.error));
}

/* One family's address, default route and gateway. */
static void family_up(
	int s, int index, uint8_t family, const void *own, const void *gateway, uint8_t prefix)
{
	struct ifaddrmsg addr = {.ifa_family = family,
		.ifa_prefixlen = prefix,
		.ifa_flags = IFA_F_PERMANENT | IFA_F_NODAD,
		.ifa_index = (uint32_t)index};
	struct rtmsg route = {.rtm_family = family,
		.rtm_table = RT_TABLE_MAIN,
		.rtm_protocol = RTPROT_STATIC,
		.rtm_scope = RT_SCOPE_UNIVERSE,
		.rtm_type = RTN_UNICAST};
	struct ndmsg neighbour = {
		.ndm_family = family, .ndm_ifindex = index, .ndm_state = NUD_PERMANENT};
	size_t n = family == AF_INET ? 4 : 16;
	struct request r;

	request_start(&r, RTM_NEWADDR, &addr, sizeof(addr));
	request_attr(&r, IFA_LOCAL, own, n);
	request_attr(&r, IFA_ADDRESS, own, n);
	request_send(s, &r, "address");
	request_start(&r, RTM_NEWNEIGH, &neighbour, sizeof(neighbour));
	request_attr(&r, NDA_DST, gateway, n);
	request_attr(&r, NDA_LLADDR, NET_GATEWAY_MAC, 6);
	request_send(s, &r, "gateway");
	request_start(&r, RTM_NEWROUTE, &route, sizeof(route));
	request_attr(&r, RTA_GATEWAY, gateway, n);
	request_attr(&r, RTA_OIF, &index, sizeof(index));
	request_send(s, &r, "route");
}

static void link_up(int s, int index)
{
	struct ifinfomsg m = {.ifi_index = index, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
	uint32_t mtu = NET_MTU;
	struct request r;

	request_start(&r, RTM_NEWLINK, &m, sizeof(m));
	r.h.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
	request_attr(&r, IFLA_MTU, &mtu, sizeof(mtu));
	request_send(s, &r, DEVICE);
}

void net_up(void)
{
	static const char *const quiet[][2] = {{"accept_ra", "0"}, {"autoconf", "0"},
		{"accept_dad", "0"}, {"router_solicitations", "0"}, {"addr_gen_mode", "1"}};
	uint8_t own4[4] = {NET_GUEST_IP4 >> 24, NET_GUEST_IP4 >> 16 & 0xff,
		NET_GUEST_IP4 >> 8 & 0xff, NET_GUEST_IP4 & 0xff};
	uint8_t gateway4[4] = {NET_GATEWAY_IP4 >> 24, NET_GATEWAY_IP4 >> 16 & 0xff,
		NET_GATEWAY_IP4 >> 8 & 0xff, NET_GATEWAY_IP4 & 0xff};
	int index = (int)if_nametoindex(DEVICE);
	_cleanup_close_ int s = -1;
	char path[96];

	if (!index)
		return;
	for (size_t i = 0; i < ARRAY_LEN(quiet); i++) {
		snprintf(path, sizeof(path), "/proc/sys/net/ipv6/conf/" DEVICE "/%s", quiet[i][0]);
		text_poke(path, quiet[i][1]);
	}
	s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (s < 0) {
		log_warn("network: %s", strerror(errno));
		return;
	}
	link_up(s, index);
	family_up(s, index, AF_INET, own4, gateway4, NET_PREFIX4);
	family_up(s, index, AF_INET6, NET_GUEST_IP6, NET_GATEWAY_IP6, NET_PREFIX6);
}
