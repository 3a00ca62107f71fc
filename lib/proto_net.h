/* SPDX-License-Identifier: Apache-2.0
 *
 * proto_net.h: the wire of the network: daemon and broker, mayfly-net and broker, monitor and mayfly-net. Every socket is a Unix
 * SOCK_SEQPACKET; a message is a struct net_hdr and little-endian fields in the order given (lib/buf.h), with descriptors where said.
 * The frames between monitor and mayfly-net have no such header: see the end.
 *
 * Who has what, and who trusts whom:
 *   mayfly-broker  one a host, in the host's network. It makes and connects every socket that a sandbox uses, keeps a duplicate of each,
 *                  and shuts it down when the policy no longer allows it. It reads DNS messages. It trusts the daemon.
 *   mayfly-net     one a sandbox that has sent a frame, in an empty network namespace. It reads frames and TCP. It has the sockets that the
 *                  broker gave, and nothing that makes another. Nobody trusts it.
 *   monitor        has the other end of the frame socket. It trusts neither the guest nor mayfly-net.
 *   daemon         starts mayfly-net through the helper when a monitor says VMM_EV_NET_WANTED, gives it a frame socket and a channel to the
 *                  broker, and gives the monitor the other end. It restarts mayfly-net when that ends, at the guest's next frame. It starts
 *                  the broker again when that ends: each mayfly-net is ended then, because nobody could take its sockets back. When the
 *                  daemon ends, the broker keeps everything and waits for the next daemon at its listening socket.
 *
 * A mayfly-net whose channel to the broker closes ends itself; a broker whose channel to a mayfly-net closes shuts that one's sockets down.
 */
#pragma once

#include "lib/base.h"

#define NET_MAGIC   0x314e464du /* "MFN1" */
#define NET_MSG_MAX 65536u      /* a longer policy comes in parts */
#define NET_REPLY   0x8000u
#define NET_ALL     UINT32_MAX /* no sandbox has this number */
/* the daemon itself, for its webhooks about denied places. Its policy is that of a sandbox whose client gave none. */
#define NET_DAEMON  (UINT32_MAX - 1)
#define NET_VERSION 2u /* of all messages below; the daemon ends a broker that speaks another one */

/* A policy that does not fit into one message comes in parts. The first part drops what an earlier policy left unfinished. */
#define NET_PART_MORE  1u
#define NET_PART_FIRST 2u

struct net_hdr {
	uint32_t magic;
	uint16_t type;
	uint16_t nfds;
	uint32_t id;    /* of the request; replies repeat it; events have 0 */
	int32_t status; /* replies: 0 or -errno; then the payload is a string for humans */
};
static_assert(sizeof(struct net_hdr) == 16, "wire size");

enum net_type {
	/* ---- daemon to broker; `sandbox` is a number that the daemon chose ---- */
	/* u32 sandbox, u32 nlimits, nlimits x u64 (enum net_limit) -> {}. fd: the broker's end of the channel to mayfly-net. The policy is
	 * that of NET_POLICY, which comes first: a sandbox that has none is refused. A second channel replaces the first. */
	NET_CHANNEL = 1,
	/* u32 sandbox, u8 part (NET_PART_*), bytes of a policy (net/policy.h) -> {}. Parts are put together until one is the last. Then the
	 * policy is in force: sockets that it does not allow are shut down before the reply. */
	NET_POLICY = 2,
	NET_REMOVE = 3, /* u32 sandbox -> {}: its sockets are shut down, all is forgotten */
	/* u32 sandbox -> u32 n, n x u64 (enum net_counter), u32 n, n x {str place, str verdict, u64 count}. NET_ALL: the sums of all sandboxes
	 * that there were, and no places. */
	NET_COUNTERS = 4,
	/* u8 part (NET_PART_*), bytes of the operator's rules (net_world_get) -> {}. Holds for all sandboxes at once. */
	NET_OPERATOR = 5,
	/* u32 n, n x {16 bytes address, u16 port} -> {}: the resolvers to ask. n = 0: those of the file, which is read again when it changes.
	 * fd (with n = 0): the file, /etc/resolv.conf as it is now. The broker cannot open it, and asks by NET_EV_RESOLVERS for a newer one. */
	NET_RESOLVERS = 6,
	/* u32 NET_VERSION -> u32 the broker's. A daemon that takes over a broker says this first. */
	NET_HELLO = 7,
	/* {} -> {}: removes each sandbox that has had no NET_POLICY since the last NET_HELLO: its monitor ended while no daemon was there. */
	NET_SWEEP = 8,

	/* ---- broker to daemon, with id 0 */
	/* {}: the file of the resolvers was replaced, or no resolver answers; at most one a second */
	NET_EV_RESOLVERS = 12,
	/* u32 sandbox, str place, str verdict: a place was denied for the first time; NET_DENIED_TOLD of them for each sandbox */
	NET_EV_DENIED = 13,

	/* ---- mayfly-net to broker ---- */
	/* u8 kind (enum net_flow), 16 bytes address, u16 port -> u32 flow; fd: the socket, connected or connecting, non-blocking */
	NET_OPEN = 16,
	NET_CLOSE =
		17, /* u32 flow, u64 bytes out, u64 bytes in (UDP and ICMP; TCP's are the kernel's) : no reply */
	/* u8 tcp, bytes of a query -> bytes of the answer, which come when they are there. id is mayfly-net's. */
	NET_DNS = 18,
};

#define NET_DENIED_TOLD 8u

enum net_flow { NET_FLOW_TCP, NET_FLOW_UDP, NET_FLOW_ICMP, NET_FLOW_KINDS };

/* Limits of one sandbox; those that are 0 or not given have the broker's defaults (net/broker/sandbox.c). */
enum net_limit {
	NET_L_FLOWS,      /* open at a time, of all kinds */
	NET_L_NEW_RATE,   /* flows opened a second, after a burst of as many */
	NET_L_QUERY_RATE, /* DNS queries a second, after a burst of as many */
	NET_L_QUERIES,    /* unanswered at a time */
	NET_L_COUNT
};

enum net_counter {
	NET_C_TCP_OPENED,
	NET_C_UDP_OPENED,
	NET_C_ICMP_OPENED,
	NET_C_OPEN, /* now */
	NET_C_BYTES_OUT,
	NET_C_BYTES_IN,
	NET_C_QUERIES,
	NET_C_QUERIES_DENIED,
	NET_C_QUERIES_FAILED, /* no resolver answered */
	NET_C_REBINDING,      /* addresses left out of answers */
	NET_C_DENIED,         /* flows refused by the policy */
	NET_C_LIMITED,        /* flows and queries refused by a limit */
	NET_C_SHUT,           /* flows ended by a change of policy */
	NET_C_REFUSED,        /* messages of mayfly-net that made no sense */
	NET_C_COUNT
};

/* The network that every sandbox sees, the same in each (so that a restore changes nothing): one guest, one gateway that is also the
 * resolver. 192.0.2.0/24 and the ULA are never routed elsewhere. */
#define NET_GUEST_MAC   "\x02\x6d\x66\x6e\x00\x02"
#define NET_GATEWAY_MAC "\x02\x6d\x66\x6e\x00\x01"
#define NET_GUEST_IP4   0xc0000202u /* 192.0.2.2 */
#define NET_GATEWAY_IP4 0xc0000201u /* 192.0.2.1 */
#define NET_PREFIX4     24
#define NET_GUEST_IP6   "\xfd\x6d\x66\x6e\0\0\0\0\0\0\0\0\0\0\0\x02" /* fd6d:666e::2 */
#define NET_GATEWAY_IP6 "\xfd\x6d\x66\x6e\0\0\0\0\0\0\0\0\0\0\0\x01" /* fd6d:666e::1 */
#define NET_PREFIX6     64
#define NET_MTU         65520u

/* Monitor and mayfly-net: one message a frame: the 12 bytes of struct virtio_net_hdr_v1, as the guest wrote them or will read them
 * (num_buffers is the monitor's), then an Ethernet frame. mayfly-net reads batches by recvmmsg. It writes each message
 * by writev, because its seccomp list has no sendmmsg. */
#define NET_VHDR_BYTES 12u
#define NET_FRAME_MIN  14u
#define NET_FRAME_MAX  (14u + NET_MTU)
#define NET_PACKET_MAX (NET_VHDR_BYTES + NET_FRAME_MAX)

/* Descriptors that mayfly-net and mayfly-broker are started with, by number. BROKER_FD_CONTROL is a listening socket, which each daemon
 * connects to, or one connection, with whose end the broker ends. */
enum { NET_FD_BROKER = 3, NET_FD_FRAMES = 4, NET_FD_END = 5 };
enum { BROKER_FD_CONTROL = 3, BROKER_FD_END = 4 };
