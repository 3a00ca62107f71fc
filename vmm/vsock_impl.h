/* SPDX-License-Identifier: Apache-2.0
 *
 * vsock_impl.h: what vsock.c (queues and packets) and vsock_stream.c (streams and their Unix
 * sockets) share. Nobody else includes it.
 */
#pragma once

#include "vmm/vsock.h"

enum { VQ_RX, VQ_TX, VQ_EVENT };
enum {
	OP_REQUEST = 1,
	OP_RESPONSE,
	OP_RST,
	OP_SHUTDOWN,
	OP_RW,
	OP_CREDIT_UPDATE,
	OP_CREDIT_REQUEST
};
enum { SHUT_F_RCV = 1, SHUT_F_SEND = 2, SHUT_F_BOTH = 3 };
enum { VSOCK_TYPE_STREAM = 1 };

struct vsock_hdr { /* virtio 1.2, 5.10.6; little endian, as the host */
	uint64_t src_cid, dst_cid;
	uint32_t src_port, dst_port;
	uint32_t len;
	uint16_t type, op;
	uint32_t flags, buf_alloc, fwd_cnt;
} _packed_;
static_assert(sizeof(struct vsock_hdr) == 44, "virtio 1.2, 5.10.6");

#define VSOCK_PKT_MAX     65536u
#define VSOCK_BATCH       64u       /* receive buffers of the guest filled by one readv */
#define VSOCK_QUANTUM     KIB(128)  /* bytes a stream may send before the next one's turn */
#define VSOCK_BUDGET      KIB(1024) /* bytes either way before the other devices' turn */
#define VSOCK_BUDGET_PKTS 512u
#define VSOCK_RSTS                                                                                 \
	256u /* resets owed for packets of no stream; more of them wait in the guest's queue */
#define VSOCK_HASH        256u
#define VSOCK_GUEST_BURST 32u /* connections a guest may open at once ... */
#define VSOCK_GUEST_RATE                                                                           \
	10u /* ... and per second after that: each one is an event for the daemon */
#define VSOCK_CLOSE_NS 2000000000ull /* how long a guest may take to answer a full shutdown */

enum stream_state {
	ST_FREE,
	ST_HELLO,   /* a client that has not sent its port yet */
	ST_WAIT,    /* the port is known, but the guest is not ready for connections */
	ST_REQUEST, /* the guest was, or will be, asked */
	ST_OPEN,
	ST_CLOSING, /* both directions are shut; waits for the guest's reset, or the deadline */
	ST_DRAIN,   /* closed for the guest; the Unix peer still gets the rest. Not in the hash. */
};

/* control packets that are due */
enum { P_REQUEST = 1, P_RESPONSE = 2, P_CREDIT = 4, P_SHUTDOWN = 8, P_RST = 16 };

struct stream {
	struct vsock *v;
	enum stream_state state;
	int fd;
	struct watch *watch;
	uint32_t gport, hport;
	bool by_guest;
	bool asked;                 /* OP_REQUEST was really sent */
	uint8_t pend;               /* P_* */
	uint8_t shut_due;           /* SHUT_F_*: flags for the guest, sent or due (P_SHUTDOWN) */
	bool in_ready;              /* the Unix socket may have bytes */
	bool rdhup, hup;            /* EPOLLRDHUP: read until 0; EPOLLHUP: the peer is gone */
	bool in_eof;                /* read() has returned 0 or an error */
	bool guest_eof, guest_deaf; /* OP_SHUTDOWN flags of the guest */
	bool wr_shut, out_dead;     /* shutdown(SHUT_WR) done; the peer reads no more */
	bool want_out;
	uint8_t burst; /* receive buffers to take for the next readv: more than the last readv
			  used, at most VSOCK_BATCH */
	uint32_t peer_buf, peer_fwd, tx_cnt; /* towards the guest */
	uint32_t rx_cnt, fwd_cnt, fwd_told;  /* from the guest */
	uint8_t *buf;                        /* ring of VSOCK_BUF_BYTES for a slow peer */
	uint32_t buf_head, buf_len, buf_touched;
	uint8_t hello[sizeof(struct vsock_open)];
	uint8_t hello_len;
	uint64_t deadline_ns;
	struct stream *hash_next;
	struct stream *prev, *next; /* in v->ready when queued */
	struct stream *close_prev, *close_next;
	bool queued, closing;
	struct stream *free_next;
};

struct vsock_counters {
	uint64_t host_opened, guest_opened, refused_conns, resets_sent, rx_bytes, tx_bytes,
		rx_packets, stalls, bad_packets, credit_violations, guest_refused;
};

struct vsock {
	struct virtio_dev dev; /* first */
	uint64_t guest_cid;
	struct vsock_config cfg;
	struct watch *listen_watch;
	bool accept_more; /* a client waits, but there was no room */
	struct stream *streams, *free;
	/* Streams from `nmade` on were never used: their memory is untouched, and stays so. */
	unsigned int nstreams, nmade, nused, nguest;
	uint8_t *slab;
	struct stream *hash[VSOCK_HASH];
	uint32_t hash_seed;
	struct stream *ready_head, *ready_tail;
	struct stream *close_head, *close_tail;
	struct timer *close_timer;
	struct {
		uint32_t hport, gport;
	} rst[VSOCK_RSTS];
	unsigned int rst_head, rst_len;
	bool run_due;    /* vsock_run_later was called */
	bool tx_stalled; /* no room for the resets that more packets might need */
	uint32_t ports[VSOCK_PORTS_MAX];
	unsigned int nports;
	uint32_t next_hport;
	uint64_t guest_tokens, guest_filled_ns; /* connections it may still open, in billionths */
	/* After a restore: no new connections until the guest has handled the event. event_due:
	 * the event waits for a buffer. gate_target: the event queue's available index that
	 * ends this. */
	bool gate_closed, event_due;
	uint16_t gate_target;
	struct vsock_counters n;
};

/* vsock_stream.c. None of these sends a packet: they make it due and put the stream in the ready
 * list. */
int vsock_streams_init(struct vsock *v, struct err *e);
void vsock_streams_fini(struct vsock *v);
struct stream *vsock_find(struct vsock *v, uint32_t gport, uint32_t hport);
bool vsock_has_room(const struct vsock *v);
/* If the stream has something for the guest, puts it at the end of the ready list. */
void stream_poke(struct stream *s);
void stream_unqueue(struct stream *s);
/* May bytes be read from the Unix socket for the guest now? */
bool stream_can_send(const struct stream *s);
uint32_t stream_credit(const struct stream *s);
/* If the guest is ready for connections, makes a request due for each stream in ST_WAIT. */
void vsock_open_waiting(struct vsock *v);
/* The guest asks for a connection: false = refuse. */
bool vsock_guest_request(struct vsock *v, const struct vsock_hdr *h);
/* The guest took a connection, or not (positive errno): tells the client. */
void stream_answer(struct stream *s, uint32_t status);
/* Payload of an OP_RW, in guest memory. False: the guest broke its credit. */
bool stream_deliver(struct stream *s, const struct iovec *iov, unsigned int n, size_t len);
void stream_guest_shutdown(struct stream *s, uint32_t flags);
/* read() gave 0 or an error. */
void stream_in_eof(struct stream *s);
/* Both directions are shut: waits for the guest's reset. */
void stream_closing(struct stream *s);
/* The stream has ended for the guest: the peer gets the rest, then the slot is free. */
void stream_end(struct stream *s);
void vsock_end_all(struct vsock *v);

/* vsock.c: sends what is due to the guest, with one interrupt. */
void vsock_run(struct vsock *v);
/* The same, but after the events of all sockets in this turn of the loop: one interrupt for all. */
void vsock_run_later(struct vsock *v);
