/* SPDX-License-Identifier: Apache-2.0
 *
 * vnet.c: see vnet.h. mayfly-vmm, device thread. Hostile: the chains and every byte in them, and
 * the packets of mayfly-net, which faces the internet and the guest's frames.
 *
 * The device keeps no packet: a packet is in the guest's buffers or in the socket. A full socket
 * leaves frames in the guest's queue, a guest without buffers leaves packets in the socket.
 */
#include "vmm/vnet.h"

#include <string.h>
#include <sys/socket.h>

enum { VQ_RX, VQ_TX };

/* virtio 1.2, 5.1.3 */
#define F_CSUM       (1ull << 0) /* the guest may leave checksums to us: mayfly-net finishes them */
#define F_GUEST_CSUM (1ull << 1) /* we may say that a checksum is good */
#define F_MTU        (1ull << 3)
#define F_MAC        (1ull << 5)
#define F_MRG_RXBUF  (1ull << 15)
#define FEATURES     (F_CSUM | F_GUEST_CSUM | F_MTU | F_MAC | F_MRG_RXBUF)

#define VHDR_DATA_VALID 2u
#define RX_CHAINS       VNET_QUEUE
#define RX_RANGES       512u
#define TX_RANGES       64u
#define STATE_VERSION   1u
#define VNET_RATE_MAX   1000000000000ull

enum vnet_state {
	NET_IDLE,  /* no link: a frame asks for one */
	NET_ASKED, /* a link was asked for; frames wait in the queue */
	NET_LINKED,
	NET_ABSENT, /* there is no network: frames are dropped */
};

struct vnet_bucket {
	uint64_t rate, filled_ns;
	int64_t tokens; /* in millionths; below zero: the last packet took more than there were */
};

struct vnet {
	struct virtio_dev dev; /* first */
	struct vnet_config cfg;
	enum vnet_state state;
	int fd;
	struct watch *watch;
	struct timer *timer; /* the end of waiting for a link; the end of waiting for tokens */
	bool rx_starved;     /* packets wait, and the guest has no buffer that is large enough */
	bool tx_full;        /* frames wait, and the socket takes none */
	bool throttled;
	uint64_t asked_ns;
	struct vnet_bucket bytes[2], packets[2]; /* by queue */
	uint64_t tx_packets, tx_bytes, tx_dropped, rx_packets, rx_bytes, rx_dropped, waits, asks;
};

static struct vnet *vnet_of(struct virtio_dev *d)
{
	return container_of(d, struct vnet, dev);
}

/* ---- limits */

static bool bucket_has(struct vnet_bucket *b, uint64_t now_ns)
{
	uint64_t us = (now_ns - b->filled_ns) / 1000;

	if (!b->rate)
		return true;
	if (us) {
		b->filled_ns = now_ns;
		/* a tenth of a second may be saved up */
		b->tokens = MIN(b->tokens + (int64_t)(MIN(us, 1000000u) * b->rate),
			(int64_t)(b->rate * 100000u));
	}
	return b->tokens > 0;
}

/* One packet may overdraw it; the next one waits until that is paid back. */
static void bucket_take(struct vnet_bucket *b, uint64_t n)
{
	if (b->rate)
		b->tokens -= (int64_t)n * 1000000;
}

static bool may_move(struct vnet *v, unsigned int queue)
{
	uint64_t now = v->bytes[queue].rate || v->packets[queue].rate ? mono_ns() : 0;

	if (bucket_has(&v->bytes[queue], now) && bucket_has(&v->packets[queue], now))
		return true;
	v->throttled = true;
	timer_after(v->timer, 2000000);
	return false;
}

static void moved(struct vnet *v, unsigned int queue, size_t n)
{
	bucket_take(&v->bytes[queue], n);
	bucket_take(&v->packets[queue], 1);
}

/* ---- the link */

static void link_events(struct vnet *v)
{
	/* ask for no event that the device cannot handle: a queue that is not ready takes no
	 * packet */
	bool rx_ready = v->dev.queue[VQ_RX].ready && !v->rx_starved;
	uint32_t want = v->dev.quiet ? 0
				     : (rx_ready ? (uint32_t)EPOLLIN : 0) |
					       (v->tx_full ? (uint32_t)EPOLLOUT : 0);

	if (v->watch)
		watch_events(v->watch, v->throttled ? want & (uint32_t)EPOLLOUT : want);
}

static void link_drop(struct vnet *v, enum vnet_state next)
{
	watch_remove(v->watch);
	v->watch = NULL;
	close_fd(&v->fd);
	v->rx_starved = v->tx_full = v->throttled = false;
	v->state = next;
}

/* A frame waits and there is no link. */
static void link_ask(struct vnet *v)
{
	uint64_t now = mono_ns();

	if (v->asked_ns && now - v->asked_ns < VNET_ASK_NS) {
		timer_set(v->timer, v->asked_ns + VNET_ASK_NS);
		return;
	}
	v->asked_ns = now;
	v->asks++;
	v->state = NET_ASKED;
	timer_after(v->timer, VNET_PATIENCE_MS * 1000000ull);
	v->cfg.wanted(v->cfg.ctx);
}

/* ---- guest to network */

/* Is this a frame for which no mayfly-net is started? Multicast frames mean nothing in our
 * network, and every guest sends some when it boots or is restored. A broadcast frame may be an
 * ARP request. */
static bool starts_nothing(const struct virtq_chain *c)
{
	uint8_t mac[6];

	if (iov_read(virtq_out(c), c->nout, NET_VHDR_BYTES, mac, sizeof(mac)) < sizeof(mac))
		return true;
	return (mac[0] & 1) && memcmp(mac, "\xff\xff\xff\xff\xff\xff", 6) != 0;
}

enum tx_result { TX_SENT, TX_DROPPED, TX_WAIT };

static enum tx_result tx_one(struct vnet *v, const struct virtq_chain *c)
{
	struct msghdr m = {.msg_iov = c->iov, .msg_iovlen = c->nout};

	if (c->nin || c->out_bytes < NET_VHDR_BYTES + NET_FRAME_MIN ||
		c->out_bytes > NET_PACKET_MAX) {
		atomic_fetch_add(&v->dev.n.refused, 1);
		return TX_DROPPED;
	}
	if (v->state != NET_LINKED) {
		if (v->state == NET_ABSENT || starts_nothing(c))
			return TX_DROPPED;
		if (v->state == NET_IDLE)
			link_ask(v);
		return TX_WAIT;
	}
	if (!may_move(v, VQ_TX))
		return TX_WAIT;
	if (sendmsg(v->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
		moved(v, VQ_TX, c->out_bytes);
		v->tx_packets++;
		v->tx_bytes += c->out_bytes - NET_VHDR_BYTES;
		return TX_SENT;
	}
	if (errno == EAGAIN || errno == ENOBUFS) {
		v->tx_full = true;
		v->waits++;
		return TX_WAIT;
	}
	if (errno == EFAULT || errno == EMSGSIZE)
		return TX_DROPPED;
	link_drop(v, NET_IDLE);
	return TX_DROPPED;
}

static bool tx(struct vnet *v)
{
	struct virtq *q = &v->dev.queue[VQ_TX];
	struct iovec iov[TX_RANGES];
	struct virtq_chain c = {.iov = iov, .cap = ARRAY_LEN(iov)};
	unsigned int budget = VNET_TURN;
	int rc;

	/* the frames wait for the socket, for tokens or for a link: a kick would not help */
	if (v->tx_full || v->throttled || v->state == NET_ASKED)
		virtq_disarm(q);
	do {
		while ((rc = virtq_pop(q, &c)) > 0) {
			enum tx_result r = tx_one(v, &c);

			if (r == TX_WAIT) {
				virtq_unpop(q, 1);
				link_events(v);
				return false;
			}
			v->tx_dropped += r == TX_DROPPED;
			virtq_push(q, c.head, 0);
			if (--budget == 0)
				return true;
		}
		if (rc < 0) {
			virtio_broken(&v->dev, q->why);
			return false;
		}
	} while (virtq_arm(q));
	return false;
}

/* ---- network to guest */

/* The buffers taken for one packet. */
struct rx_take {
	struct iovec iov[RX_RANGES];
	struct {
		uint16_t head;
		uint32_t room;
	} chain[RX_CHAINS];
	unsigned int niov, n;
	size_t room;
};

/* Takes buffers for `want` bytes. 1: done; 0: the guest has not made enough available; -EPROTO. */
static int rx_take(struct vnet *v, struct rx_take *t, size_t want)
{
	struct virtq *q = &v->dev.queue[VQ_RX];
	bool merge = v->dev.features & F_MRG_RXBUF;

	t->niov = t->n = 0;
	t->room = 0;
	while (t->room < want && t->n < RX_CHAINS && (merge || !t->n)) {
		struct virtq_chain c = {
			.iov = t->iov + t->niov, .cap = (uint16_t)(RX_RANGES - t->niov)};
		int rc = virtq_pop(q, &c);

		if (rc <= 0)
			return rc;
		if (c.nout || c.in_bytes < NET_VHDR_BYTES) {
			q->why = "a receive buffer without room for a header";
			return -EPROTO;
		}
		t->chain[t->n].head = c.head;
		t->chain[t->n++].room = c.in_bytes;
		t->niov += c.nin;
		t->room += c.in_bytes;
	}
	return t->room >= want;
}

/* Gives the buffers to the guest. The device writes the header itself: the guest must not see
 * the one from mayfly-net. */
static void rx_give(struct vnet *v, const struct rx_take *t, size_t n)
{
	uint8_t head[NET_VHDR_BYTES] = {0};
	struct virtq *q = &v->dev.queue[VQ_RX];
	unsigned int used = 0;

	for (size_t left = n; left > 0; used++)
		left -= MIN(left, t->chain[used].room);
	head[0] = v->dev.features & F_GUEST_CSUM ? VHDR_DATA_VALID : 0;
	head[10] = (uint8_t)used;
	head[11] = (uint8_t)(used >> 8);
	iov_write(t->iov, t->niov, 0, head, sizeof(head));
	for (unsigned int i = 0; i < used; i++) {
		size_t k = MIN(n, t->chain[i].room);

		virtq_push(q, t->chain[i].head, (uint32_t)k);
		n -= k;
	}
}

/* Length of the next packet, 0: there is none, or the link is gone. */
static size_t rx_peek(struct vnet *v)
{
	struct msghdr m = {0};
	ssize_t n = recvmsg(v->fd, &m, MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC);

	if (n > 0)
		return (size_t)n;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	link_drop(v, NET_IDLE);
	return 0;
}

static void rx_discard(struct vnet *v)
{
	struct msghdr m = {0};

	(void)!recvmsg(v->fd, &m, MSG_DONTWAIT);
	v->rx_dropped++;
}

/* Can the guest's ring never hold this packet? Then it is dropped; otherwise it waits for
 * buffers. */
static bool rx_hopeless(const struct vnet *v, const struct rx_take *t)
{
	const struct virtq *q = &v->dev.queue[VQ_RX];

	return t->n == RX_CHAINS || t->n == q->size || (t->n && !(v->dev.features & F_MRG_RXBUF));
}

/* One packet of `want` bytes: 1 moved or dropped, 0: the guest has no room, -EPROTO. */
static int rx_one(struct vnet *v, struct rx_take *t, size_t want)
{
	struct virtq *q = &v->dev.queue[VQ_RX];
	struct msghdr m = {.msg_iov = t->iov};
	ssize_t n;
	int rc;

	if (want < NET_VHDR_BYTES + NET_FRAME_MIN || want > NET_PACKET_MAX) {
		rx_discard(v);
		return 1;
	}
	rc = rx_take(v, t, want);
	if (rc < 0)
		return rc;
	if (rc == 0) {
		bool hopeless = rx_hopeless(v, t);

		virtq_unpop(q, (uint16_t)t->n);
		if (hopeless)
			rx_discard(v);
		return hopeless;
	}
	m.msg_iovlen = t->niov;
	n = recvmsg(v->fd, &m, MSG_DONTWAIT);
	if (n != (ssize_t)want) { /* a guest buffer whose memory cannot be written */
		virtq_unpop(q, (uint16_t)t->n);
		v->rx_dropped++;
		return 1;
	}
	rx_give(v, t, want);
	moved(v, VQ_RX, want);
	v->rx_packets++;
	v->rx_bytes += want - NET_VHDR_BYTES;
	return 1;
}

static bool rx(struct vnet *v)
{
	struct virtq *q = &v->dev.queue[VQ_RX];
	struct rx_take t;

	v->rx_starved = false;
	for (unsigned int i = 0; i < VNET_TURN && v->state == NET_LINKED; i++) {
		size_t want = may_move(v, VQ_RX) ? rx_peek(v) : 0;
		int rc;

		if (!want)
			break;
		rc = rx_one(v, &t, want);
		if (rc < 0) {
			virtio_broken(&v->dev, q->why);
			return false;
		}
		if (rc == 0 && !virtq_arm_beyond(q)) {
			v->rx_starved = true;
			v->waits++;
			break;
		}
	}
	if (!v->rx_starved)
		virtq_disarm(q);
	link_events(v);
	return false; /* the socket is level triggered: it calls again */
}

static bool vnet_kick(struct virtio_dev *d, unsigned int queue)
{
	return queue == VQ_TX ? tx(vnet_of(d)) : rx(vnet_of(d));
}

/* Works on both queues, after an event of the link or a timer. */
static void vnet_work(struct vnet *v)
{
	bool more = false;

	if (virtio_runs(&v->dev) && v->dev.queue[VQ_RX].ready)
		rx(v);
	if (virtio_runs(&v->dev) && v->dev.queue[VQ_TX].ready)
		more = tx(v);
	virtio_signal(&v->dev);
	if (more)
		virtio_again(&v->dev);
}

static void on_link(void *arg, uint32_t events)
{
	struct vnet *v = arg;

	virtio_lock(&v->dev);
	if (events & EPOLLOUT)
		v->tx_full = false;
	if (virtio_runs(&v->dev)) {
		vnet_work(v);
		/* epoll always reports a hang-up. If packets wait that the guest cannot take now,
		 * the event would come again and again: drop the link. */
		if ((events & (EPOLLHUP | EPOLLERR)) && v->state == NET_LINKED &&
			(v->rx_starved || v->throttled || !v->dev.queue[VQ_RX].ready))
			link_drop(v, NET_IDLE);
		link_events(v);
	} else if (events & (EPOLLHUP | EPOLLERR))
		link_drop(v, NET_IDLE);
	else if (v->watch) /* the device is reset or stopped and takes no packets */
		watch_events(v->watch, 0);
	virtio_unlock(&v->dev);
}

static void on_timer(void *arg)
{
	struct vnet *v = arg;

	virtio_lock(&v->dev);
	v->throttled = false;
	if (v->state == NET_ASKED && mono_ns() - v->asked_ns >= VNET_PATIENCE_MS * 1000000ull) {
		/* no link came: drop the frames that wait; the next frame asks again */
		v->state = NET_ABSENT;
		vnet_work(v);
		v->state = NET_IDLE;
	} else {
		vnet_work(v);
	}
	link_events(v);
	virtio_unlock(&v->dev);
}

int vnet_link(struct virtio_dev *d, int fd, const struct vnet_limits *l)
{
	struct vnet *v = vnet_of(d);
	int rc = 0;

	virtio_lock(d);
	link_drop(v, NET_ABSENT);
	if (fd >= 0) {
		v->watch = loop_watch(d->env->loop, fd, EPOLLIN, on_link, v);
		rc = v->watch ? 0 : -errno;
		v->fd = fd;
		v->state = NET_LINKED;
		for (unsigned int i = 0; l && i < 2; i++) {
			v->bytes[i] = (struct vnet_bucket){
				.rate = MIN(l->bytes_per_s, VNET_RATE_MAX), .filled_ns = mono_ns()};
			v->packets[i] =
				(struct vnet_bucket){.rate = MIN(l->packets_per_s, VNET_RATE_MAX),
					.filled_ns = mono_ns()};
		}
		if (rc < 0)
			link_drop(v, NET_IDLE);
	}
	vnet_work(v);
	link_events(v);
	virtio_unlock(d);
	return rc;
}

static void vnet_reset(struct virtio_dev *d)
{
	struct vnet *v = vnet_of(d);

	v->rx_starved = v->tx_full = false;
	link_events(v);
}

static void vnet_activate(struct virtio_dev *d)
{
	link_events(vnet_of(d));
}

static int vnet_quiesce(struct virtio_dev *d, void (*done)(void *), void *arg)
{
	struct vnet *v = vnet_of(d);

	if (v->watch)
		watch_events(v->watch, 0);
	return 0;
}

static void vnet_resume(struct virtio_dev *d)
{
	link_events(vnet_of(d));
}

static void vnet_config_read(struct virtio_dev *d, uint32_t off, void *to, uint32_t len)
{
	/* mac, status, max_virtqueue_pairs, mtu (virtio 1.2, 5.1.4) */
	uint8_t c[12] = NET_GUEST_MAC "\1\0\1\0";

	c[10] = NET_MTU & 0xff;
	c[11] = NET_MTU >> 8;
	memset(to, 0, len);
	if (off < sizeof(c))
		memcpy(to, c + off, MIN(len, sizeof(c) - off));
}

/* A snapshot has no link: the restored machine asks with its first frame. */
static void vnet_save(struct virtio_dev *d, struct buf *out)
{
	buf_u16(out, STATE_VERSION);
}

static int vnet_load(struct virtio_dev *d, struct cur *in, struct err *e)
{
	uint16_t version = cur_u16(in);

	if (in->bad || version != STATE_VERSION)
		return err_plain(e, EBADMSG, "network device: state of version %u", version);
	return 0;
}

static void vnet_stats(struct virtio_dev *d, dev_stat_fn fn, void *arg)
{
	const struct vnet *v = vnet_of(d);
	const struct {
		const char *name;
		uint64_t value;
	} all[] = {{"tx_packets", v->tx_packets}, {"tx_bytes", v->tx_bytes},
		{"tx_dropped", v->tx_dropped}, {"rx_packets", v->rx_packets},
		{"rx_bytes", v->rx_bytes}, {"rx_dropped", v->rx_dropped}, {"waits", v->waits},
		{"asks", v->asks}, {"linked", v->state == NET_LINKED}};

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		fn(arg, d->ops->name, all[i].name, all[i].value);
}

static const struct virtio_ops vnet_ops = {
	.name = "net",
	.device_id = VIRTIO_ID_NET,
	.nqueues = 2,
	.queue_max = VNET_QUEUE,
	.features = FEATURES,
	.config_bytes = 12,
	.config_read = vnet_config_read,
	.activate = vnet_activate,
	.reset = vnet_reset,
	.kick = vnet_kick,
	.quiesce = vnet_quiesce,
	.resume = vnet_resume,
	.save = vnet_save,
	.load = vnet_load,
	.stats = vnet_stats,
};

struct virtio_dev *vnet_create(
	const struct dev_env *env, const struct vnet_config *cfg, struct err *e)
{
	struct vnet *v = calloc(1, sizeof(*v));

	if (!v) {
		err_set(e, ENOMEM, "net");
		return NULL;
	}
	v->cfg = *cfg;
	v->fd = -1;
	if (virtio_init(&v->dev, &vnet_ops, env, SLOT_NET, e) < 0) {
		free(v);
		return NULL;
	}
	v->timer = loop_timer(env->loop, on_timer, v);
	if (!v->timer) {
		err_set(e, ENOMEM, "net: timer");
		vnet_destroy(&v->dev);
		return NULL;
	}
	return &v->dev;
}

void vnet_destroy(struct virtio_dev *d)
{
	if (!d)
		return;
	link_drop(vnet_of(d), NET_IDLE);
	timer_remove(vnet_of(d)->timer);
	virtio_fini(d);
	free(vnet_of(d));
}
