/* SPDX-License-Identifier: Apache-2.0
 *
 * vsock_stream.c: the streams of the vsock device and their Unix sockets. mayfly-vmm, device
 * thread, device's lock held.
 *
 * Sockets are watched edge-triggered, and for output only while bytes wait: a quiet or a blocked
 * stream costs nothing. Bytes for a slow peer wait in the stream's ring. The ring is
 * as large as the credit that the guest has, so one stream never blocks the queue for the others.
 * Payload and ports are hostile; the Unix clients are the daemon's, and are still not trusted to
 * speak sense.
 */
#include "vmm/vsock_impl.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "lib/log.h"

static void on_sock(void *arg, uint32_t events);

static unsigned int bucket(const struct vsock *v, uint32_t gport, uint32_t hport)
{
	uint64_t k = ((uint64_t)gport << 32 | hport) ^ v->hash_seed;

	k *= 0x9e3779b97f4a7c15ull;
	return (unsigned int)(k >> 56);
}
static_assert(VSOCK_HASH == 256, "bucket() takes the top 8 bits");

struct stream *vsock_find(struct vsock *v, uint32_t gport, uint32_t hport)
{
	struct stream *s = v->hash[bucket(v, gport, hport)];

	while (s && (s->gport != gport || s->hport != hport))
		s = s->hash_next;
	return s;
}

static void hash_add(struct stream *s)
{
	struct stream **at = &s->v->hash[bucket(s->v, s->gport, s->hport)];

	s->hash_next = *at;
	*at = s;
}

static void hash_del(struct stream *s)
{
	struct stream **at = &s->v->hash[bucket(s->v, s->gport, s->hport)];

	for (; *at; at = &(*at)->hash_next)
		if (*at == s) {
			*at = s->hash_next;
			return;
		}
}

uint32_t stream_credit(const struct stream *s)
{
	uint32_t flying = s->tx_cnt - s->peer_fwd;

	return flying < s->peer_buf ? s->peer_buf - flying : 0;
}

bool stream_can_send(const struct stream *s)
{
	return s->state == ST_OPEN && s->in_ready && !s->in_eof && !s->guest_deaf &&
	       stream_credit(s) > 0;
}

void stream_poke(struct stream *s)
{
	struct vsock *v = s->v;

	if (s->queued || s->state == ST_FREE || (!s->pend && !stream_can_send(s)))
		return;
	s->queued = true;
	s->next = NULL;
	s->prev = v->ready_tail;
	if (v->ready_tail)
		v->ready_tail->next = s;
	else
		v->ready_head = s;
	v->ready_tail = s;
}

void stream_unqueue(struct stream *s)
{
	struct vsock *v = s->v;

	if (!s->queued)
		return;
	s->queued = false;
	*(s->prev ? &s->prev->next : &v->ready_head) = s->next;
	*(s->next ? &s->next->prev : &v->ready_tail) = s->prev;
}

static void close_list_del(struct stream *s)
{
	struct vsock *v = s->v;

	if (!s->closing)
		return;
	s->closing = false;
	*(s->close_prev ? &s->close_prev->close_next : &v->close_head) = s->close_next;
	*(s->close_next ? &s->close_next->close_prev : &v->close_tail) = s->close_prev;
}

void stream_closing(struct stream *s)
{
	struct vsock *v = s->v;

	if (s->closing)
		return;
	s->state = ST_CLOSING;
	s->closing = true;
	s->deadline_ns = mono_ns() + VSOCK_CLOSE_NS;
	s->close_next = NULL;
	s->close_prev = v->close_tail;
	*(v->close_tail ? &v->close_tail->close_next : &v->close_head) = s;
	v->close_tail = s;
	if (v->close_head == s)
		timer_set(v->close_timer, s->deadline_ns);
}

static void on_close_timer(void *arg)
{
	struct vsock *v = arg;
	uint64_t now = mono_ns();

	virtio_lock(&v->dev);
	while (v->close_head && v->close_head->deadline_ns <= now) {
		struct stream *s = v->close_head;

		close_list_del(s);
		s->pend = P_RST;
		stream_poke(s);
	}
	if (v->close_head)
		timer_set(v->close_timer, v->close_head->deadline_ns);
	vsock_run(v);
	virtio_unlock(&v->dev);
}

static void drop_fd(struct stream *s)
{
	watch_remove(s->watch);
	s->watch = NULL;
	close_fd(&s->fd);
}

static void accept_clients(struct vsock *v);

static void stream_free(struct stream *s)
{
	struct vsock *v = s->v;
	uint8_t *buf = s->buf;

	stream_unqueue(s);
	close_list_del(s);
	drop_fd(s);
	if (s->buf_touched)
		madvise(buf, VSOCK_BUF_BYTES, MADV_DONTNEED);
	if (s->by_guest)
		v->nguest--;
	v->nused--;
	*s = (struct stream){.v = v, .fd = -1, .buf = buf, .free_next = v->free};
	v->free = s;
	if (v->accept_more)
		accept_clients(v);
}

void stream_end(struct stream *s)
{
	if (s->state == ST_OPEN || s->state == ST_REQUEST || s->state == ST_CLOSING)
		hash_del(s);
	stream_unqueue(s);
	close_list_del(s);
	s->pend = 0;
	if (s->fd >= 0 && s->buf_len > 0 && !s->out_dead) {
		s->state = ST_DRAIN;
		return;
	}
	stream_free(s);
}

void vsock_end_all(struct vsock *v)
{
	v->accept_more = false;
	for (unsigned int i = 0; i < v->nmade; i++) {
		struct stream *s = &v->streams[i];

		/* a client without a request to the guest (ST_HELLO, ST_WAIT) keeps waiting;
		 * ST_DRAIN has ended already */
		if (s->state == ST_FREE || s->state == ST_HELLO || s->state == ST_WAIT ||
			s->state == ST_DRAIN)
			continue;
		if (s->state == ST_REQUEST)
			stream_answer(s, ECONNRESET);
		stream_end(s);
	}
	v->rst_len = 0;
	v->tx_stalled = false;
	accept_clients(v);
}

bool vsock_has_room(const struct vsock *v)
{
	return v->free || v->nmade < v->nstreams;
}

static struct stream *stream_new(struct vsock *v, int fd)
{
	struct stream *s = v->free;

	if (!s) {
		s = v->free = &v->streams[v->nmade];
		*s = (struct stream){
			.v = v, .fd = -1, .buf = v->slab + v->nmade++ * VSOCK_BUF_BYTES};
	}
	s->watch = loop_watch(v->dev.env->loop, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, on_sock, s);
	if (!s->watch)
		return NULL;
	v->free = s->free_next;
	v->nused++;
	s->fd = fd;
	s->burst = 4;
	return s;
}

static void accept_clients(struct vsock *v)
{
	v->accept_more = false;
	if (!v->listen_watch)
		return;
	for (;;) {
		struct stream *s;
		int fd;

		if (!vsock_has_room(v)) {
			v->accept_more = true;
			return;
		}
		fd = accept4(v->cfg.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
			continue;
		if (fd < 0) {
			/* no descriptors left: tried again as soon as a stream gives one back */
			v->accept_more = errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
					 errno == ENOBUFS;
			return;
		}
		s = stream_new(v, fd);
		if (!s) {
			close(fd);
			continue;
		}
		s->state = ST_HELLO;
	}
}

static void on_listen(void *arg, uint32_t events)
{
	struct vsock *v = arg;

	virtio_lock(&v->dev);
	accept_clients(v);
	virtio_unlock(&v->dev);
}

static bool guest_ready(const struct vsock *v)
{
	return v->dev.active && !v->dev.reset_due && !v->gate_closed;
}

static void ask_guest(struct stream *s)
{
	struct vsock *v = s->v;

	/* host ports go round; one that is still in use with this guest port is passed over */
	do
		v->next_hport = v->next_hport < 0x40000000u || v->next_hport == UINT32_MAX
					? 0x40000000u
					: v->next_hport + 1;
	while (vsock_find(v, s->gport, v->next_hport));
	s->hport = v->next_hport;
	s->state = ST_REQUEST;
	s->pend = P_REQUEST;
	hash_add(s);
	stream_poke(s);
}

void vsock_open_waiting(struct vsock *v)
{
	if (!guest_ready(v))
		return;
	for (unsigned int i = 0; i < v->nmade; i++)
		if (v->streams[i].state == ST_WAIT)
			ask_guest(&v->streams[i]);
}

static void read_hello(struct stream *s)
{
	struct vsock_open o;
	ssize_t n = read(s->fd, s->hello + s->hello_len, sizeof(s->hello) - s->hello_len);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		stream_free(s);
		return;
	}
	s->hello_len += (uint8_t)n;
	if (s->hello_len < sizeof(s->hello))
		return;
	memcpy(&o, s->hello, sizeof(o));
	if (o.magic != VSOCK_OPEN_MAGIC || o.status != 0) {
		log_limited(LOG_WARN, "vsock: a client was dropped: its request is not valid");
		stream_free(s);
		return;
	}
	s->gport = o.port;
	s->state = ST_WAIT;
	s->in_ready = true; /* bytes that came with the request cause no second event (EPOLLET) */
	if (guest_ready(s->v))
		ask_guest(s);
}

void stream_answer(struct stream *s, uint32_t status)
{
	struct vsock_open o = {.magic = VSOCK_OPEN_MAGIC, .port = s->gport, .status = status};

	if (s->by_guest || s->fd < 0)
		return;
	/* the first bytes on a fresh socket always fit; if they do not, the client is gone and its
	 * end will be seen */
	(void)!send(s->fd, &o, sizeof(o), MSG_NOSIGNAL);
	if (status)
		s->v->n.refused_conns++;
	else
		s->v->n.host_opened++;
}

/* Takes the token for one connection from the guest's bucket. False: there is none. */
static bool guest_token(struct vsock *v)
{
	const uint64_t one = 1000000000;
	uint64_t now = mono_ns(), gone = MIN(now - v->guest_filled_ns, 60 * one);

	v->guest_filled_ns = now;
	v->guest_tokens = MIN(v->guest_tokens + gone * VSOCK_GUEST_RATE, VSOCK_GUEST_BURST * one);
	if (v->guest_tokens < one)
		return false;
	v->guest_tokens -= one;
	return true;
}

bool vsock_guest_request(struct vsock *v, const struct vsock_hdr *h)
{
	bool allowed = h->dst_port == VSOCK_PORT_READY;
	struct stream *s;
	int p[2];

	for (unsigned int i = 0; i < v->nports; i++)
		allowed |= v->ports[i] == h->dst_port;
	/* a guest that opens streams for ever must leave room for the host's */
	if (!allowed || !v->cfg.guest_conn || !vsock_has_room(v) ||
		v->nguest >= MAX(v->nstreams / 4, 1u) || !guest_token(v)) {
		v->n.guest_refused++;
		return false;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p) < 0)
		return false;
	fd_set_nonblock(p[0], true);
	s = stream_new(v, p[0]);
	if (!s) {
		close(p[0]);
		close(p[1]);
		return false;
	}
	s->by_guest = true;
	v->nguest++;
	s->gport = h->src_port;
	s->hport = h->dst_port;
	s->peer_buf = h->buf_alloc;
	s->peer_fwd = h->fwd_cnt;
	s->state = ST_OPEN;
	s->pend = P_RESPONSE;
	hash_add(s);
	stream_poke(s);
	v->n.guest_opened++;
	v->cfg.guest_conn(v->cfg.ctx, s->hport, s->gport, p[1]);
	return true;
}

static void set_want_out(struct stream *s, bool on)
{
	if (s->want_out == on || !s->watch)
		return;
	s->want_out = on;
	watch_events(s->watch, EPOLLIN | EPOLLRDHUP | EPOLLET | (on ? EPOLLOUT : 0));
}

static void shut_due(struct stream *s, uint8_t flags)
{
	if (s->state != ST_OPEN || (s->shut_due & flags) == flags)
		return;
	s->shut_due |= flags;
	s->pend |= P_SHUTDOWN;
	stream_poke(s);
}

/* The Unix peer reads no more: drops what the guest sends, and asks the guest to stop
 * (SHUT_F_RCV). */
static void out_died(struct stream *s)
{
	s->out_dead = true;
	s->fwd_cnt += s->buf_len;
	s->buf_len = 0;
	set_want_out(s, false);
	shut_due(s, SHUT_F_RCV);
}

static void moved_on(struct stream *s, uint32_t n)
{
	s->fwd_cnt += n;
	if (s->state == ST_OPEN && s->fwd_cnt - s->fwd_told >= VSOCK_BUF_BYTES / 2) {
		s->pend |= P_CREDIT;
		stream_poke(s);
	}
}

static void after_flush(struct stream *s)
{
	if (s->buf_len > 0)
		return;
	set_want_out(s, false);
	if (s->state == ST_DRAIN) {
		stream_free(s);
		return;
	}
	if (s->guest_eof && !s->wr_shut && s->fd >= 0) {
		s->wr_shut = true;
		shutdown(s->fd, SHUT_WR);
	}
}

/* Sends from the ring. Frees the stream if it is in ST_DRAIN and the ring is empty. */
static void flush_ring(struct stream *s)
{
	while (s->buf_len > 0 && !s->out_dead) {
		uint32_t run = MIN(s->buf_len, (uint32_t)VSOCK_BUF_BYTES - s->buf_head);
		ssize_t n = send(s->fd, s->buf + s->buf_head, run, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			set_want_out(s, true);
			return;
		}
		if (n < 0) {
			out_died(s);
			break;
		}
		s->buf_head = (s->buf_head + (uint32_t)n) % (uint32_t)VSOCK_BUF_BYTES;
		s->buf_len -= (uint32_t)n;
		moved_on(s, (uint32_t)n);
	}
	after_flush(s);
}

static void ring_put(
	struct stream *s, const struct iovec *iov, unsigned int n, size_t off, size_t len)
{
	while (len > 0) {
		uint32_t at = (s->buf_head + s->buf_len) % (uint32_t)VSOCK_BUF_BYTES;
		size_t run = MIN(len, VSOCK_BUF_BYTES - at);

		run = iov_read(iov, n, off, s->buf + at, run);
		s->buf_len += (uint32_t)run;
		off += run;
		len -= run;
	}
	s->buf_touched = 1;
}

bool stream_deliver(struct stream *s, const struct iovec *iov, unsigned int n, size_t len)
{
	struct iovec part[64];
	size_t sent = 0, bytes;

	if (len > VSOCK_BUF_BYTES - (s->rx_cnt - s->fwd_cnt)) {
		s->v->n.credit_violations++;
		return false;
	}
	s->rx_cnt += (uint32_t)len;
	if (s->out_dead || s->fd < 0) {
		moved_on(s, (uint32_t)len);
		return true;
	}
	while (s->buf_len == 0 && sent < len) {
		struct msghdr m = {.msg_iov = part};
		ssize_t k;

		m.msg_iovlen = iov_slice(iov, n, sent, len - sent, part, ARRAY_LEN(part), &bytes);
		k = sendmsg(s->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0 && errno == EAGAIN)
			break;
		if (k < 0) {
			moved_on(s, (uint32_t)(len - sent));
			out_died(s);
			return true;
		}
		sent += (size_t)k;
		moved_on(s, (uint32_t)k);
	}
	if (sent < len) {
		if (s->buf_len == 0) {
			s->buf_head = 0;
			s->v->n.stalls++;
		}
		ring_put(s, iov, n, sent, len - sent);
		set_want_out(s, true);
	}
	return true;
}

/* If both directions have ended, a full shutdown is due to the guest. */
static void maybe_both_done(struct stream *s)
{
	if (s->state == ST_OPEN && s->in_eof && (s->guest_eof || s->hup))
		shut_due(s, SHUT_F_BOTH);
}

void stream_guest_shutdown(struct stream *s, uint32_t flags)
{
	s->guest_eof |= (flags & SHUT_F_SEND) != 0;
	if ((flags & SHUT_F_RCV) && !s->guest_deaf) {
		s->guest_deaf = true;
		if (s->fd >= 0)
			shutdown(s->fd, SHUT_RD);
	}
	after_flush(s);
	maybe_both_done(s);
}

void stream_in_eof(struct stream *s)
{
	s->in_eof = true;
	s->in_ready = false;
	shut_due(s, SHUT_F_SEND);
	maybe_both_done(s);
}

static void client_left(struct stream *s)
{
	if (s->state == ST_REQUEST && s->asked) {
		s->pend = P_RST;
		stream_poke(s);
		drop_fd(s);
		return;
	}
	stream_end(s);
}

static void on_sock(void *arg, uint32_t events)
{
	struct stream *s = arg;
	struct vsock *v = s->v;

	virtio_lock(&v->dev);
	s->rdhup |= (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
	s->hup |= (events & (EPOLLHUP | EPOLLERR)) != 0;
	s->in_ready |= (events & EPOLLIN) || s->rdhup;
	switch (s->state) {
	case ST_HELLO:
		read_hello(s);
		/* The client may have left already, and EPOLLHUP is reported only once. */
		if (s->hup && (s->state == ST_WAIT || s->state == ST_REQUEST))
			client_left(s);
		break;
	case ST_WAIT:
	case ST_REQUEST:
		if (s->hup)
			client_left(s);
		break;
	case ST_OPEN:
	case ST_CLOSING:
	case ST_DRAIN:
		if (s->hup && s->buf_len > 0 && !s->wr_shut)
			out_died(s);
		if (events & EPOLLOUT)
			flush_ring(s);
		else if (s->state == ST_DRAIN && s->out_dead)
			stream_free(s);
		break;
	case ST_FREE:
		break;
	}
	if (s->state == ST_OPEN) {
		maybe_both_done(s);
		/* the Unix peer is gone, and the guest reads no more either */
		if (s->hup && s->guest_deaf)
			shut_due(s, SHUT_F_BOTH);
	}
	stream_poke(s);
	vsock_run_later(v);
	virtio_unlock(&v->dev);
}

int vsock_streams_init(struct vsock *v, struct err *e)
{
	v->slab = mmap(NULL, v->nstreams * VSOCK_BUF_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (v->slab == MAP_FAILED) {
		v->slab = NULL;
		return err_set(e, errno, "vsock: stream buffers");
	}
	/* not calloc: it may clear memory of its heap, and so touch all of it */
	v->streams = mmap(NULL, v->nstreams * sizeof(*v->streams), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (v->streams == MAP_FAILED) {
		v->streams = NULL;
		return err_set(e, errno, "vsock: streams");
	}
	v->close_timer = loop_timer(v->dev.env->loop, on_close_timer, v);
	if (!v->close_timer)
		return err_set(e, ENOMEM, "vsock: streams");
	v->guest_tokens = VSOCK_GUEST_BURST * 1000000000ull;
	v->guest_filled_ns = mono_ns();
	random_bytes(&v->hash_seed, sizeof(v->hash_seed));
	if (v->cfg.listen_fd < 0)
		return 0;
	fd_set_nonblock(v->cfg.listen_fd, true);
	v->listen_watch =
		loop_watch(v->dev.env->loop, v->cfg.listen_fd, EPOLLIN | EPOLLET, on_listen, v);
	return v->listen_watch ? 0 : err_set(e, errno, "vsock: listening socket");
}

void vsock_streams_fini(struct vsock *v)
{
	watch_remove(v->listen_watch);
	v->listen_watch = NULL;
	for (unsigned int i = 0; v->streams && i < v->nmade; i++)
		drop_fd(&v->streams[i]);
	timer_remove(v->close_timer);
	if (v->streams)
		munmap(v->streams, v->nstreams * sizeof(*v->streams));
	if (v->slab)
		munmap(v->slab, v->nstreams * VSOCK_BUF_BYTES);
	close_fd(&v->cfg.listen_fd);
}
