/* SPDX-License-Identifier: Apache-2.0
 *
 * vsock.c: the queues and the packet machine of the vsock device. mayfly-vmm, device thread,
 * device's lock held.
 *
 * Every header that comes from the guest is hostile: it is copied once, its length is checked
 * against the chain's, and a packet that fits no stream is answered with a reset. Streams that have
 * something for the guest are in one list and take turns. Payload goes between guest memory and
 * the sockets without a copy of ours: sendmsg from the transmit chain, one readv into many receive
 * buffers.
 */
#include "vmm/vsock_impl.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "lib/log.h"

#define STATE_VERSION 1u
#define QUEUE_SIZE    256u
enum { EVENT_TRANSPORT_RESET = 0 };
enum { SENT, NO_BUFFERS, BROKEN };

static struct vsock *vsock_of(struct virtio_dev *d)
{
	return container_of(d, struct vsock, dev);
}

/* ---- towards the guest ---- */

static int pop_rx(struct vsock *v, struct virtq_chain *c)
{
	struct virtq *q = &v->dev.queue[VQ_RX];
	int rc = virtq_pop(q, c);

	if (rc > 0 && c->in_bytes <= sizeof(struct vsock_hdr)) {
		q->why = "receive buffer too small";
		rc = -EPROTO;
	}
	if (rc < 0)
		virtio_broken(&v->dev, q->why);
	return rc > 0 ? SENT : rc == 0 ? NO_BUFFERS : BROKEN;
}

static struct vsock_hdr header(struct vsock *v, uint32_t gport, uint32_t hport, uint16_t op)
{
	return (struct vsock_hdr){
		.src_cid = VSOCK_HOST_CID,
		.dst_cid = v->guest_cid,
		.src_port = hport,
		.dst_port = gport,
		.type = VSOCK_TYPE_STREAM,
		.op = op,
	};
}

static int put_header(struct vsock *v, const struct vsock_hdr *h)
{
	struct iovec iov[16];
	struct virtq_chain c = {.iov = iov, .cap = ARRAY_LEN(iov)};
	int rc = pop_rx(v, &c);

	if (rc != SENT)
		return rc;
	iov_write(virtq_in(&c), c.nin, 0, h, sizeof(*h));
	virtq_push(&v->dev.queue[VQ_RX], c.head, sizeof(*h));
	TRACE("vsock: to guest: op %u %u->%u flags %u fwd %u", h->op, h->src_port, h->dst_port,
		h->flags, h->fwd_cnt);
	return SENT;
}

static void add_credit(struct stream *s, struct vsock_hdr *h)
{
	h->buf_alloc = (uint32_t)VSOCK_BUF_BYTES;
	h->fwd_cnt = s->fwd_cnt;
}

static void credit_told(struct stream *s)
{
	s->fwd_told = s->fwd_cnt;
	s->pend &= (uint8_t)~P_CREDIT;
}

static const struct {
	uint8_t pend;
	uint16_t op;
} control_order[] = {{P_RST, OP_RST}, {P_REQUEST, OP_REQUEST}, {P_RESPONSE, OP_RESPONSE},
	{P_CREDIT, OP_CREDIT_UPDATE}};

/* One control packet of the stream. A reset ends it. */
static int send_control(struct stream *s, uint8_t pend, uint16_t op)
{
	struct vsock *v = s->v;
	struct vsock_hdr h = header(v, s->gport, s->hport, op);
	int rc;

	if (op == OP_SHUTDOWN)
		h.flags = s->shut_due;
	add_credit(s, &h);
	rc = put_header(v, &h);
	if (rc != SENT)
		return rc; /* nothing was sent: `pend` is unchanged */
	credit_told(s);
	s->pend &= (uint8_t)~pend;
	s->asked |= op == OP_REQUEST;
	if (op == OP_RST) {
		v->n.resets_sent++;
		stream_end(s);
	} else if (op == OP_SHUTDOWN && s->shut_due == SHUT_F_BOTH) {
		stream_closing(s);
	}
	return SENT;
}

/* Takes receive buffers for up to `want` bytes and lays out one readv over their payload parts. */
static unsigned int gather(struct vsock *v, struct virtq_chain *c, struct iovec *pool,
	unsigned int max, size_t want, struct iovec *to, unsigned int *nto, int *rc)
{
	unsigned int n = 0, used = 0, out = 0;
	size_t have = 0, bytes;

	*rc = SENT;
	while (n < max && have < want && used < VSOCK_BATCH * 2) {
		c[n] = (struct virtq_chain){
			.iov = pool + used, .cap = (uint16_t)MIN(VSOCK_BATCH * 2 - used, 16u)};
		*rc = pop_rx(v, &c[n]);
		if (*rc != SENT)
			break;
		used += c[n].nout + c[n].nin;
		out += iov_slice(virtq_in(&c[n]), c[n].nin, sizeof(struct vsock_hdr),
			MIN(want - have, VSOCK_PKT_MAX), to + out, VSOCK_BATCH * 2 - out, &bytes);
		have += bytes;
		n++;
	}
	*nto = out;
	return n;
}

/* readv() has filled the buffers: writes a header into each. Returns how many buffers were used. */
static unsigned int give_packets(struct stream *s, const struct virtq_chain *c, size_t got)
{
	struct vsock *v = s->v;
	struct vsock_hdr h = header(v, s->gport, s->hport, OP_RW);
	unsigned int n = 0;

	add_credit(s, &h);
	credit_told(s);
	for (; got > 0; n++) {
		h.len = (uint32_t)MIN(MIN(got, c[n].in_bytes - sizeof(h)), VSOCK_PKT_MAX);
		iov_write(virtq_in(&c[n]), c[n].nin, 0, &h, sizeof(h));
		virtq_push(&v->dev.queue[VQ_RX], c[n].head, (uint32_t)sizeof(h) + h.len);
		got -= h.len;
		s->tx_cnt += h.len;
	}
	return n;
}

/* One readv of a stream into the guest. *sent: bytes. */
static int send_data(struct stream *s, size_t *sent)
{
	struct vsock *v = s->v;
	struct virtq_chain c[VSOCK_BATCH];
	struct iovec pool[VSOCK_BATCH * 2], to[VSOCK_BATCH * 2];
	size_t want = MIN((size_t)stream_credit(s), VSOCK_QUANTUM), room = 0;
	unsigned int n, nto, used = 0;
	ssize_t got;
	int rc, saved;

	n = gather(v, c, pool, s->burst, want, to, &nto, &rc);
	if (rc == BROKEN || n == 0)
		return rc;
	for (unsigned int i = 0; i < nto; i++)
		room += to[i].iov_len;
	do
		got = readv(s->fd, to, (int)nto);
	while (got < 0 && errno == EINTR);
	saved = got < 0 ? errno : 0;
	if (got > 0) {
		used = give_packets(s, c, (size_t)got);
		v->n.rx_bytes += (uint64_t)got;
		v->n.rx_packets += used;
		*sent += (size_t)got;
		/* after a short read the socket is empty; after EPOLLRDHUP read again, to see 0 */
		if ((size_t)got < room && !s->rdhup)
			s->in_ready = false;
	}
	virtq_unpop(&v->dev.queue[VQ_RX], (uint16_t)(n - used));
	if (saved == EAGAIN)
		s->in_ready = false;
	else if (got <= 0)
		stream_in_eof(s);
	s->burst =
		(uint8_t)(used == s->burst ? MIN(s->burst * 2u, VSOCK_BATCH) : MAX(used + 1u, 4u));
	return SENT;
}

/* A stream's turn: first the control packets that are due, then data, and a shutdown after the
 * data. */
static int send_turn(struct stream *s, size_t *sent)
{
	int rc;

	for (size_t i = 0; i < ARRAY_LEN(control_order); i++) {
		if (!(s->pend & control_order[i].pend))
			continue;
		/* data that follows carries the credit */
		if (control_order[i].pend == P_CREDIT && stream_can_send(s))
			continue;
		rc = send_control(s, control_order[i].pend, control_order[i].op);
		if (rc != SENT || control_order[i].pend == P_RST)
			return rc; /* a reset ends the stream: the slot may be another's already */
	}
	if (stream_can_send(s)) {
		rc = send_data(s, sent);
		if (rc != SENT)
			return rc;
	}
	/* SHUT_F_SEND is only due once everything was read, SHUT_F_RCV may go before */
	if (s->pend & P_SHUTDOWN)
		return send_control(s, P_SHUTDOWN, OP_SHUTDOWN);
	return SENT;
}

static int send_resets(struct vsock *v)
{
	while (v->rst_len > 0) {
		struct vsock_hdr h =
			header(v, v->rst[v->rst_head].gport, v->rst[v->rst_head].hport, OP_RST);
		int rc = put_header(v, &h);

		if (rc != SENT)
			return rc;
		v->rst_head = (v->rst_head + 1) % VSOCK_RSTS;
		v->rst_len--;
		v->n.resets_sent++;
	}
	return SENT;
}

/* All streams in turn, while the guest has buffers. True: budget used up. */
static bool rx_service(struct vsock *v)
{
	size_t sent = 0;
	unsigned int turns = 0;
	int rc = SENT;

	for (;;) {
		struct stream *s;

		rc = send_resets(v);
		s = v->ready_head;
		if (rc == SENT && !s)
			return false;
		if (rc == SENT && (sent >= VSOCK_BUDGET || turns++ >= VSOCK_BUDGET_PKTS))
			return true;
		if (rc == SENT) {
			rc = send_turn(s, &sent);
			/* round robin: behind the others, if there is more (a slot that was freed
			 * is not the head any more) */
			if (rc == SENT && v->ready_head == s) {
				stream_unqueue(s);
				stream_poke(s);
			}
		}
		if (rc == BROKEN)
			return false;
		if (rc == NO_BUFFERS && !virtq_arm(&v->dev.queue[VQ_RX]))
			return false;
	}
}

/* ---- from the guest ---- */

static void owe_reset(struct vsock *v, const struct vsock_hdr *h)
{
	unsigned int i = (v->rst_head + v->rst_len) % VSOCK_RSTS;

	ASSERT(v->rst_len < VSOCK_RSTS); /* tx_service takes no packet when it is full */
	v->rst[i].gport = h->src_port;
	v->rst[i].hport = h->dst_port;
	v->rst_len++;
}

static void kill_stream(struct stream *s)
{
	s->v->n.bad_packets++;
	stream_unqueue(s);
	s->pend = P_RST;
	stream_poke(s);
}

static void packet_for_request(struct stream *s, const struct vsock_hdr *h)
{
	if (h->op == OP_RESPONSE && s->asked && s->fd >= 0) {
		s->state = ST_OPEN;
		stream_answer(s, 0);
		stream_poke(s);
	} else if (h->op == OP_RST) {
		stream_answer(s, ECONNREFUSED);
		stream_end(s);
	} else {
		stream_answer(s, EPROTO);
		kill_stream(s);
	}
}

static void packet_for_stream(
	struct stream *s, const struct vsock_hdr *h, const struct virtq_chain *c)
{
	struct iovec payload[64];
	unsigned int n;
	size_t bytes;

	if (s->pend & P_RST) { /* a reset is due already */
		if (h->op == OP_RST)
			stream_end(s);
		return;
	}
	s->peer_buf = h->buf_alloc;
	s->peer_fwd = h->fwd_cnt;
	if (s->state == ST_REQUEST) {
		packet_for_request(s, h);
		return;
	}
	switch (h->op) {
	case OP_RW:
		n = iov_slice(virtq_out(c), c->nout, sizeof(*h), h->len, payload,
			ARRAY_LEN(payload), &bytes);
		if (s->guest_eof || bytes != h->len || !stream_deliver(s, payload, n, bytes)) {
			kill_stream(s);
			return;
		}
		s->v->n.tx_bytes += bytes;
		break;
	case OP_SHUTDOWN:
		stream_guest_shutdown(s, h->flags);
		if (s->guest_eof && s->guest_deaf) {
			/* nothing more either way: the reset is the answer that lets the guest
			 * forget it at once */
			owe_reset(s->v, h);
			stream_end(s);
			return;
		}
		break;
	case OP_RST:
		stream_end(s);
		return;
	case OP_CREDIT_UPDATE:
		break;
	case OP_CREDIT_REQUEST:
		s->pend |= P_CREDIT;
		break;
	default: /* a second request or response, or nothing we know */
		kill_stream(s);
		return;
	}
	stream_poke(s);
}

static void packet(struct vsock *v, const struct virtq_chain *c)
{
	struct vsock_hdr h;
	struct stream *s;

	if (iov_read(virtq_out(c), c->nout, 0, &h, sizeof(h)) != sizeof(h) ||
		h.len > c->out_bytes - sizeof(h) || h.len > VSOCK_PKT_MAX ||
		h.src_cid != v->guest_cid || h.dst_cid != VSOCK_HOST_CID) {
		v->n.bad_packets++;
		atomic_fetch_add(&v->dev.n.refused, 1);
		return;
	}
	TRACE("vsock: from guest: op %u %u->%u len %u flags %u fwd %u", h.op, h.src_port,
		h.dst_port, h.len, h.flags, h.fwd_cnt);
	s = vsock_find(v, h.src_port, h.dst_port);
	if (h.type != VSOCK_TYPE_STREAM) {
		v->n.bad_packets++;
		owe_reset(v, &h);
	} else if (s) {
		packet_for_stream(s, &h, c);
	} else if (h.op == OP_REQUEST) {
		if (!vsock_guest_request(v, &h))
			owe_reset(v, &h);
	} else if (h.op != OP_RST) {
		owe_reset(v, &h);
	}
}

static bool tx_service(struct vsock *v)
{
	struct virtq *q = &v->dev.queue[VQ_TX];
	struct iovec iov[64];
	struct virtq_chain c = {.iov = iov, .cap = ARRAY_LEN(iov)};
	size_t bytes = 0;
	int rc;

	v->tx_stalled = false;
	for (unsigned int n = 0; n < VSOCK_BUDGET_PKTS && bytes < VSOCK_BUDGET; n++) {
		if (v->rst_len == VSOCK_RSTS) {
			v->tx_stalled = true;
			return false;
		}
		rc = virtq_pop(q, &c);
		if (rc < 0) {
			virtio_broken(&v->dev, q->why);
			return false;
		}
		if (rc == 0) {
			if (!virtq_arm(q))
				return false;
			continue;
		}
		packet(v, &c);
		bytes += c.out_bytes;
		virtq_push(q, c.head, 0);
	}
	return true;
}

/* ---- after a restore ---- */

/* The available index of the event queue, with the buffers that the device has not taken yet. */
static uint16_t event_index(struct vsock *v)
{
	int n = virtq_pending(&v->dev.queue[VQ_EVENT]);

	return (uint16_t)(v->dev.queue[VQ_EVENT].last_avail + (n > 0 ? n : 0));
}

static void event_service(struct vsock *v)
{
	struct virtq *q = &v->dev.queue[VQ_EVENT];
	uint32_t id = EVENT_TRANSPORT_RESET;
	struct iovec iov[4];
	struct virtq_chain c = {.iov = iov, .cap = ARRAY_LEN(iov)};
	int rc = 0;

	if (!v->event_due && !v->gate_closed)
		return;
	do {
		if (v->event_due) {
			rc = virtq_pop(q, &c);
			if (rc < 0 || (rc > 0 && c.in_bytes < sizeof(id))) {
				virtio_broken(&v->dev, rc < 0 ? q->why : "event buffer too small");
				return;
			}
		}
		if (rc > 0) {
			iov_write(virtq_in(&c), c.nin, 0, &id, sizeof(id));
			virtq_push(q, c.head, sizeof(id));
			v->event_due = false;
			rc = 0;
		}
		/* the guest makes each event's buffer available again when it has handled the
		 * event, and in order */
		if (!v->event_due && (int16_t)(event_index(v) - v->gate_target) >= 0) {
			v->gate_closed = false;
			vsock_open_waiting(v);
			return;
		}
	} while (virtq_arm_beyond(q));
}

static void vsock_after_restore(struct virtio_dev *d)
{
	struct vsock *v = vsock_of(d);
	uint16_t now, left = 0;

	vsock_end_all(v);
	if (!d->queue[VQ_EVENT].ready) {
		v->gate_closed = v->event_due = false;
		return;
	}
	/* buffers of events of earlier restores, which the guest had not handled when it was saved,
	 * come first */
	now = event_index(v);
	if (v->gate_closed && (int16_t)(v->gate_target - now) > 0)
		left = MIN((uint16_t)(v->gate_target - now), d->queue[VQ_EVENT].size);
	v->gate_target = (uint16_t)(now + left + (v->event_due ? 0 : 1));
	if (v->event_due && left == 0)
		v->gate_target = (uint16_t)(now + 1);
	v->gate_closed = v->event_due = true;
}

/* ---- the device ---- */

static bool vsock_kick(struct virtio_dev *d, unsigned int queue)
{
	struct vsock *v = vsock_of(d);
	bool more = false;

	if (queue == VQ_EVENT)
		event_service(v);
	if (queue == VQ_TX)
		more = tx_service(v);
	if (!virtio_runs(d))
		return false;
	more |= rx_service(v);
	/* there is room for resets again: take the packets that waited */
	return more || (v->tx_stalled && v->rst_len < VSOCK_RSTS);
}

void vsock_run(struct vsock *v)
{
	if (!virtio_runs(&v->dev) || !v->dev.queue[VQ_RX].ready)
		return;
	if (rx_service(v) || (v->tx_stalled && v->rst_len < VSOCK_RSTS))
		virtio_again(&v->dev);
	virtio_signal(&v->dev);
}

static void run_deferred(void *arg)
{
	struct vsock *v = arg;

	virtio_lock(&v->dev);
	v->run_due = false;
	vsock_run(v);
	virtio_unlock(&v->dev);
}

void vsock_run_later(struct vsock *v)
{
	if (v->run_due || !v->ready_head)
		return;
	v->run_due = true;
	if (loop_defer(v->dev.env->loop, run_deferred, v) < 0) {
		v->run_due = false;
		vsock_run(v);
	}
}

static void vsock_activate(struct virtio_dev *d)
{
	vsock_open_waiting(vsock_of(d));
}

static void vsock_reset(struct virtio_dev *d)
{
	struct vsock *v = vsock_of(d);

	v->gate_closed = v->event_due = false;
	vsock_end_all(v);
}

static void vsock_config_read(struct virtio_dev *d, uint32_t off, void *to, uint32_t len)
{
	uint64_t cid = vsock_of(d)->guest_cid;

	memcpy(to, (const char *)&cid + off, len);
}

static void vsock_save(struct virtio_dev *d, struct buf *out)
{
	const struct vsock *v = vsock_of(d);

	buf_u16(out, STATE_VERSION);
	buf_u64(out, v->guest_cid);
	buf_u32(out, v->next_hport);
	buf_u8(out, v->gate_closed);
	buf_u8(out, v->event_due);
	buf_u16(out, v->gate_target);
}

static int vsock_load(struct virtio_dev *d, struct cur *in, struct err *e)
{
	struct vsock *v = vsock_of(d);
	unsigned int version = cur_u16(in);

	if (version != STATE_VERSION)
		return err_plain(e, EINVAL, "vsock: state of version %u", version);
	v->guest_cid = cur_u64(in);
	/* continue with the next port: the guest may still have streams of earlier ports */
	v->next_hport = cur_u32(in);
	v->gate_closed = cur_u8(in);
	v->event_due = cur_u8(in);
	v->gate_target = cur_u16(in);
	if (in->bad || v->guest_cid <= VSOCK_HOST_CID || v->guest_cid >= UINT32_MAX)
		return err_plain(
			e, EINVAL, "vsock: the state is cut off, or its context id is invalid");
	return 0;
}

static void vsock_stats(struct virtio_dev *d, dev_stat_fn fn, void *arg)
{
	const struct vsock *v = vsock_of(d);
	const struct {
		const char *name;
		uint64_t n;
	} t[] = {
		{"streams", v->nused},
		{"host_opened", v->n.host_opened},
		{"guest_opened", v->n.guest_opened},
		{"guest_refused", v->n.guest_refused},
		{"refused_connections", v->n.refused_conns},
		{"resets_sent", v->n.resets_sent},
		{"to_guest_bytes", v->n.rx_bytes},
		{"to_guest_packets", v->n.rx_packets},
		{"from_guest_bytes", v->n.tx_bytes},
		{"stalls", v->n.stalls},
		{"bad_packets", v->n.bad_packets},
		{"credit_violations", v->n.credit_violations},
	};

	for (size_t i = 0; i < ARRAY_LEN(t); i++)
		fn(arg, d->ops->name, t[i].name, t[i].n);
}

static const struct virtio_ops vsock_ops = {
	.name = "vsock",
	.device_id = VIRTIO_ID_VSOCK,
	.nqueues = 3,
	.queue_max = QUEUE_SIZE,
	.config_bytes = 8,
	.config_read = vsock_config_read,
	.activate = vsock_activate,
	.reset = vsock_reset,
	.kick = vsock_kick,
	.save = vsock_save,
	.load = vsock_load,
	.after_restore = vsock_after_restore,
	.stats = vsock_stats,
};

struct virtio_dev *vsock_create(
	const struct dev_env *env, const struct vsock_config *cfg, struct err *e)
{
	struct vsock *v = calloc(1, sizeof(*v));

	if (!v) {
		int fd = cfg->listen_fd;

		close_fd(&fd);
		err_set(e, ENOMEM, "vsock");
		return NULL;
	}
	v->cfg = *cfg;
	v->guest_cid = VSOCK_GUEST_CID;
	v->nstreams = cfg->max_streams ? cfg->max_streams : VSOCK_STREAMS_MAX;
	if (virtio_init(&v->dev, &vsock_ops, env, SLOT_VSOCK, e) < 0) {
		close_fd(&v->cfg.listen_fd);
		free(v);
		return NULL;
	}
	if (vsock_streams_init(v, e) < 0) {
		vsock_destroy(&v->dev);
		return NULL;
	}
	return &v->dev;
}

void vsock_destroy(struct virtio_dev *d)
{
	struct vsock *v;

	if (!d)
		return;
	v = vsock_of(d);
	loop_undefer(d->env->loop, run_deferred, v);
	vsock_streams_fini(v);
	virtio_fini(d);
	free(v);
}

int vsock_allow(struct virtio_dev *d, const uint32_t *ports, unsigned int n)
{
	struct vsock *v = vsock_of(d);

	if (n > VSOCK_PORTS_MAX)
		return -E2BIG;
	virtio_lock(d);
	if (n)
		memcpy(v->ports, ports, n * sizeof(*ports));
	v->nports = n;
	virtio_unlock(d);
	return 0;
}
