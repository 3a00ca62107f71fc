/* SPDX-License-Identifier: Apache-2.0
 *
 * stack.h: mayfly-net, the network of one sandbox: frames of the guest on one side, sockets that the broker made on the other. One thread,
 * one loop. Untrusted: the frames, and what comes out of the sockets. TCP is libslirp's; UDP, ICMP echo, DNS, ARP and neighbour discovery
 * are carried here. This process is expected to be taken over some day: what it may do then is in seal.c, and what it may reach is
 * decided by the broker.
 */
#pragma once

#include "lib/err.h"
#include "lib/loop.h"
#include "lib/proto_net.h"
#include "net/stack/frame.h"

#define LINK_BATCH     8u
#define DATAGRAMS_MAX  256u /* UDP and ICMP flows at a time */
#define QUESTIONS_MAX  64u  /* DNS questions in flight */
#define FLOW_FDS_MAX   4096u
#define DATAGRAM_BATCH 16u
#define REFUSED_KEPT   16u
#define SWEEP_MS       5000

struct Slirp;
struct datagram;
struct dns_conn;

enum stack_stat {
	ST_FRAMES_IN,
	ST_FRAMES_OUT,
	ST_LOST, /* frames that the guest did not take in time */
	ST_DROPPED,
	ST_REFUSED, /* flows that the broker refused */
	ST_COUNT
};

struct question {
	uint32_t id; /* of the message to the broker; 0: free */
	struct net_addr dst;
	uint16_t sport;
	struct dns_conn *conn; /* over TCP */
};

struct stack {
	struct loop *loop;
	int frames, broker;
	struct watch *frames_watch, *broker_watch;
	uint32_t next_id;
	bool stop;
	bool link_stuck; /* the guest takes nothing: frames are lost until it does again */
	struct Slirp *slirp;
	uint32_t flow_of[FLOW_FDS_MAX]; /* TCP: descriptor to the broker's flow */
	uint8_t shut_of[FLOW_FDS_MAX];  /* 1: reading was shut down, 2: writing */
	int placeholder;                /* what libslirp holds between socket() and connect() */
	struct datagram *datagram;
	unsigned int ndatagrams;
	struct {
		struct net_addr dst;
		uint16_t port;
		bool echo;
		uint64_t until_ns;
	} refused[REFUSED_KEPT]; /* a flood to a closed place does not ask the broker each time */
	unsigned int next_refused;
	struct question question[QUESTIONS_MAX];
	unsigned int next_question;
	struct dns_conn *dns_conn;
	unsigned int ndns_conns;
	uint64_t stat[ST_COUNT], drop[DROP_COUNT];
	struct {
		struct pollfd *p;
		size_t n, cap;
	} polls; /* libslirp's */
	uint8_t in[LINK_BATCH][NET_PACKET_MAX];
	uint8_t out[NET_PACKET_MAX];
	uint8_t msg[65536 + 64];
};

/* frames, broker: borrowed, non-blocking. NULL: *e says why. There is one per process: libslirp's calls of socket() and connect() have no
 * argument that could say whose they are (main.c). */
struct stack *stack_create(int frames, int broker, struct err *e);
void stack_destroy(struct stack *s);
/* Runs until the monitor or the broker closes its socket: 0, or -errno. */
int stack_run(struct stack *s);

/* link.c: packets to and from the monitor */
void link_ready(struct stack *s);
/* Sends the packet in s->out. It is lost if the guest does not take it in time. */
void link_send(struct stack *s, size_t n);
/* The same for a frame of libslirp's, without a virtio header. */
void link_send_frame(struct stack *s, const void *frame, size_t n);

/* ask.c: the broker */
int ask_open(struct stack *s, enum net_flow kind, const struct net_addr *a, uint16_t port,
	uint32_t *flow, int *fd);
void ask_close(struct stack *s, uint32_t flow, uint64_t out, uint64_t in);
/* The answer comes to dns_answered(). 0 or -errno. */
int ask_dns(struct stack *s, uint32_t id, bool tcp, const void *p, size_t n);
void ask_ready(struct stack *s);

/* tcp.c: libslirp */
int tcp_start(struct stack *s, struct err *e);
void tcp_stop(struct stack *s);
void tcp_frame(struct stack *s, const uint8_t *frame, size_t n);
/* One turn: waits for libslirp's descriptors and for the loop. */
int tcp_turn(struct stack *s);
/* What main.c's socket(), connect() and shutdown() do: as the C library's, errno included. */
int tcp_socket(struct stack *s);
int tcp_shutdown(struct stack *s, int fd, int how);
int tcp_connect(struct stack *s, int fd, const struct sockaddr *to, socklen_t len);

/* datagram.c: UDP and ICMP echo */
void datagram_frame(struct stack *s, struct frame *f);
/* Ends the flows that were quiet for long. */
void datagrams_sweep(struct stack *s, uint64_t now_ns);
void datagrams_end(struct stack *s);

/* dns.c: questions over UDP and TCP to any address's port 53 */
void dns_frame(struct stack *s, const struct frame *f);
void dns_answered(struct stack *s, uint32_t id, const uint8_t *p, size_t n);
/* A socket that answers DNS over TCP, for a connection to port 53; or -errno. */
int dns_connect(struct stack *s);
void dns_end(struct stack *s);
