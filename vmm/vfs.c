/* SPDX-License-Identifier: Apache-2.0
 *
 * vfs.c: see vfs.h. mayfly-vmm, device thread, under the device's lock. Hostile: chains and their lengths from the guest; every byte
 * from mayfly-fs, which reads what guests wrote. A reply names its request by the slot; it is believed if that slot was sent and the
 * reply fits into the buffers that the request came with.
 *
 * Nothing is buffered here: requests go from guest memory into the socket and replies from the socket into guest memory. While a server
 * does not read, the bytes stay in guest memory: at most FS_QUEUE requests are taken from the queues, and the others stay in them.
 */
#include "vmm/vfs.h"

#include <linux/fuse.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "vmm/virtio.h"

enum { VQ_URGENT, VQ_REQUESTS, VQ_COUNT }; /* FORGET and INTERRUPT come through the first */

#define RING_SIZE    512u /* the driver asks for as many pages at once as the ring has room for */
#define RANGES       (FS_DATA_MAX / PAGE_BYTES + 8)
#define BUDGET       64u /* requests of one turn; replies of one turn */
#define BUDGET_BYTES MIB(4)
#define CONFIG_BYTES 40u

struct vfs_conf {
	char tag[36];
	uint32_t request_queues_le;
};
static_assert(sizeof(struct vfs_conf) == CONFIG_BYTES, "virtio 1.2, 5.11.4");

enum request_state {
	REQUEST_FREE,
	REQUEST_WAITS, /* in the list of requests to send; the first may be sent in part */
	REQUEST_SENT,  /* the server has it */
};

struct request {
	TAILQ_ENTRY(request) list;
	enum request_state state;
	bool dropped; /* the guest has its answer, or was reset: the reply is read and thrown away */
	uint8_t queue;
	uint16_t head, nout, nin;
	uint32_t out_bytes, in_bytes;
	uint64_t unique; /* of its FUSE header, for errors */
	struct iovec iov[RANGES];
};

struct vfs {
	struct virtio_dev dev; /* first */
	struct vfs_config cfg;
	int sock;
	struct watch *watch;
	struct request *request; /* FS_QUEUE of them; only those that were ever used are touched */
	TAILQ_HEAD(, request) waiting, free;
	unsigned int used;  /* requests that are not free and not dropped */
	unsigned int fresh; /* the first that was never used */
	uint32_t
		sent; /* bytes of the first waiting request that are in the socket, its header included */
	struct fs_reply_hdr in; /* the reply that is being read */
	uint32_t in_got;        /* bytes of it so far, its header included */
	struct timer *stop_limit;
	void (*quiet)(void *); /* called after the last reply */
	void *quiet_arg;
	uint64_t n_requests, n_failed, n_out, n_in;
};

static struct vfs *vfs_of(struct virtio_dev *d)
{
	return container_of(d, struct vfs, dev);
}

/* ---- the life of a request */

static struct request *request_new(struct vfs *f)
{
	struct request *r = TAILQ_FIRST(&f->free);

	if (r)
		TAILQ_REMOVE(&f->free, r, list);
	else if (f->fresh < FS_QUEUE)
		r = &f->request[f->fresh++];
	return r;
}

static void request_free(struct vfs *f, struct request *r)
{
	r->state = REQUEST_FREE;
	TAILQ_INSERT_HEAD(&f->free, r, list);
}

/* Gives the chain back to the guest. The slot stays in use if the server still owes a reply. */
static void request_answer(struct vfs *f, struct request *r, uint32_t written)
{
	virtq_push(&f->dev.queue[r->queue], r->head, written);
	r->dropped = true;
	f->used--;
	if (f->used == 0 && f->quiet) {
		void (*quiet)(void *) = take_ptr(f->quiet);

		timer_set(f->stop_limit, 0);
		quiet(f->quiet_arg);
	}
}

static void request_fail(struct vfs *f, struct request *r)
{
	struct fuse_out_header o = {.len = sizeof(o), .error = -EIO, .unique = r->unique};
	size_t n = 0;

	if (r->in_bytes >= sizeof(o))
		n = iov_write(r->iov + r->nout, r->nin, 0, &o, sizeof(o));
	f->n_failed++;
	request_answer(f, r, (uint32_t)n);
}

/* ---- the socket */

static void vfs_watch(struct vfs *f)
{
	uint32_t want = f->dev.quiet && !f->quiet ? 0 : EPOLLIN;

	if (!f->watch)
		return;
	if (want && !TAILQ_EMPTY(&f->waiting))
		want |= EPOLLOUT;
	watch_events(f->watch, want);
}

static void vfs_lost(struct vfs *f, const char *why)
{
	if (f->sock < 0)
		return;
	watch_remove(f->watch);
	f->watch = NULL;
	close_fd(&f->sock);
	for (unsigned int i = 0; i < f->fresh; i++) {
		struct request *r = &f->request[i];
		bool begun =
			r->state == REQUEST_SENT || (r == TAILQ_FIRST(&f->waiting) && f->sent > 0);

		if (r->state == REQUEST_FREE || !(begun || r->dropped))
			continue;
		if (r->state == REQUEST_WAITS) {
			TAILQ_REMOVE(&f->waiting, r, list);
			f->sent = 0; /* the next one has not begun */
		}
		if (!r->dropped)
			request_fail(f, r);
		request_free(f, r);
	}
	f->sent = f->in_got = 0;
	if (f->cfg.lost)
		f->cfg.lost(f->cfg.ctx, why);
}

/* One call to send more of the first waiting request: 0, or -errno. */
static int send_part(struct vfs *f, struct request *r)
{
	struct fs_request_hdr h = {
		.slot = (uint32_t)(r - f->request), .len = r->out_bytes, .reply_max = r->in_bytes};
	struct iovec iov[RANGES + 1];
	struct msghdr m = {.msg_iov = iov};
	unsigned int n = 0;
	size_t bytes = 0, body = f->sent > sizeof(h) ? f->sent - sizeof(h) : 0;
	ssize_t done;

	if (f->sent < sizeof(h))
		iov[n++] = (struct iovec){(uint8_t *)&h + f->sent, sizeof(h) - f->sent};
	n += iov_slice(r->iov, r->nout, body, r->out_bytes - body, iov + n, RANGES, &bytes);
	m.msg_iovlen = n;
	done = sendmsg(f->sock, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (done < 0)
		return -errno;
	f->sent += (uint32_t)done;
	return 0;
}

static void vfs_send(struct vfs *f)
{
	struct request *r;
	int rc = 0;

	while (f->sock >= 0 && rc == 0 && (r = TAILQ_FIRST(&f->waiting))) {
		rc = send_part(f, r);
		if (rc == -EINTR)
			rc = 0;
		if (rc == 0 && f->sent == sizeof(struct fs_request_hdr) + r->out_bytes) {
			TAILQ_REMOVE(&f->waiting, r, list);
			r->state = REQUEST_SENT;
			f->sent = 0;
			f->n_out += r->out_bytes;
		}
	}
	if (rc < 0 && rc != -EAGAIN)
		vfs_lost(f, "the file server's socket ended");
}

static bool reply_is_good(const struct vfs *f)
{
	const struct request *r;

	if (f->in.slot >= f->fresh)
		return false;
	r = &f->request[f->in.slot];
	return r->state == REQUEST_SENT &&
	       (f->in.len == 0 || f->in.len >= sizeof(struct fuse_out_header)) &&
	       f->in.len <= r->in_bytes;
}

/* Where the rest of the reply goes: the guest's buffers, or `nowhere` for a request that was
 * dropped. */
static unsigned int reply_place(struct vfs *f, struct iovec *iov)
{
	static uint8_t nowhere[16384]; /* written by the device thread only, never read */
	const struct request *r = &f->request[f->in.slot];
	size_t at = f->in_got - sizeof(f->in), left = f->in.len - at, bytes;

	if (!r->dropped)
		return iov_slice(r->iov + r->nout, r->nin, at, left, iov, RANGES, &bytes);
	iov[0] = (struct iovec){nowhere, MIN(left, sizeof(nowhere))};
	return 1;
}

/* One call to read more of a reply: bytes, 0 at the end, or -errno. */
static ssize_t receive_part(struct vfs *f)
{
	struct iovec iov[RANGES] = {
		{(uint8_t *)&f->in + f->in_got, sizeof(f->in) - f->in_got},
	};
	ssize_t n;

	n = readv(f->sock, iov, f->in_got < sizeof(f->in) ? 1 : (int)reply_place(f, iov));
	if (n > 0)
		f->in_got += (uint32_t)n;
	return n < 0 ? -errno : n;
}

/* The reply is whole. */
static void reply_done(struct vfs *f)
{
	struct request *r = &f->request[f->in.slot];

	if (!r->dropped)
		request_answer(f, r, f->in.len);
	request_free(f, r);
	f->n_in += f->in.len;
	f->in_got = 0;
}

static void vfs_receive(struct vfs *f)
{
	unsigned int left = BUDGET;
	size_t bytes = 0;

	while (f->sock >= 0 && left > 0 && bytes < BUDGET_BYTES) {
		ssize_t n = receive_part(f);

		if (n == -EAGAIN)
			return;
		if (n == -EINTR)
			continue;
		if (n <= 0) {
			vfs_lost(f, "the file server's socket ended");
			return;
		}
		bytes += (size_t)n;
		if (f->in_got < sizeof(f->in))
			continue;
		if (f->in_got == sizeof(f->in) && !reply_is_good(f)) {
			vfs_lost(f, "the file server sent a reply to nothing, or one that does not "
				    "fit");
			return;
		}
		if (f->in_got == sizeof(f->in) + f->in.len) {
			reply_done(f);
			left--;
		}
	}
}

/* ---- queues */

/* Checks a new request and appends it to the list. */
static void request_begin(
	struct vfs *f, struct request *r, const struct virtq_chain *c, unsigned int queue)
{
	struct fuse_in_header h = {0};

	r->dropped = false;
	r->queue = (uint8_t)queue;
	r->head = c->head;
	r->nout = c->nout;
	r->nin = c->nin;
	r->out_bytes = c->out_bytes;
	r->in_bytes = c->in_bytes;
	iov_read(r->iov, r->nout, 0, &h, sizeof(h));
	r->unique = h.unique;
	r->state = REQUEST_WAITS;
	f->used++;
	f->n_requests++;
	if (c->out_bytes < FS_MESSAGE_MIN || c->out_bytes > FS_MESSAGE_MAX) {
		atomic_fetch_add(&f->dev.n.refused, 1);
		request_fail(f, r);
		request_free(f, r);
		return;
	}
	TAILQ_INSERT_TAIL(&f->waiting, r, list);
}

static bool vfs_kick(struct virtio_dev *d, unsigned int queue)
{
	struct vfs *f = vfs_of(d);
	struct virtq *q = &d->queue[queue];
	unsigned int left = BUDGET;
	int rc;

	do {
		rc = 0;
		while (left > 0) {
			struct request *r = request_new(f);
			struct virtq_chain c;

			if (!r)
				break; /* the next reply calls again */
			c = (struct virtq_chain){.iov = r->iov, .cap = RANGES};
			rc = virtq_pop(q, &c);
			if (rc <= 0) {
				request_free(f, r);
				break;
			}
			request_begin(f, r, &c, queue);
			left--;
		}
		vfs_send(f);
		if (rc < 0)
			virtio_broken(d, q->why);
		if (left == 0)
			return true;
	} while (rc == 0 && !(TAILQ_EMPTY(&f->free) && f->fresh == FS_QUEUE) && virtq_arm(q));
	vfs_watch(f);
	return false;
}

static void on_socket(void *arg, uint32_t events)
{
	struct vfs *f = arg;
	bool was_full;

	(void)events;
	virtio_lock(&f->dev);
	was_full = TAILQ_EMPTY(&f->free) && f->fresh == FS_QUEUE;
	vfs_send(f);
	vfs_receive(f);
	if (virtio_runs(&f->dev)) {
		for (unsigned int q = 0; was_full && q < VQ_COUNT; q++)
			if (f->dev.queue[q].ready && vfs_kick(&f->dev, q))
				virtio_again(&f->dev);
	}
	vfs_watch(f);
	virtio_signal(&f->dev);
	virtio_unlock(&f->dev);
}

/* ---- the device */

static void vfs_config_read(struct virtio_dev *d, uint32_t off, void *to, uint32_t len)
{
	struct vfs_conf c = {.tag = FS_TAG, .request_queues_le = 1};

	(void)d;
	memcpy(to, (const char *)&c + off, len);
}

/* The transport has forgotten the chains already. Replies to requests that the server has are
 * thrown away. Requests that were not sent are dropped, except one that is half in the socket:
 * its rest is sent, or the server would read the next request as that rest. */
static void vfs_reset(struct virtio_dev *d)
{
	struct vfs *f = vfs_of(d);

	for (unsigned int i = 0; i < f->fresh; i++) {
		struct request *r = &f->request[i];

		if (r->state == REQUEST_FREE)
			continue;
		r->dropped = true;
		if (r->state == REQUEST_WAITS && !(r == TAILQ_FIRST(&f->waiting) && f->sent > 0)) {
			TAILQ_REMOVE(&f->waiting, r, list);
			request_free(f, r);
		}
	}
	f->used = 0;
	if (f->quiet) {
		void (*quiet)(void *) = take_ptr(f->quiet);

		timer_set(f->stop_limit, 0);
		quiet(f->quiet_arg);
	}
}

/* Not all replies came in time: the other requests get EIO, so that the VM can stop. */
static void on_stop_limit(void *arg)
{
	struct vfs *f = arg;

	virtio_lock(&f->dev);
	for (unsigned int i = 0; i < f->fresh && f->quiet; i++) {
		struct request *r = &f->request[i];

		if (r->state == REQUEST_FREE || r->dropped)
			continue;
		request_fail(f, r);
		if (r->state == REQUEST_WAITS && !(r == TAILQ_FIRST(&f->waiting) && f->sent > 0)) {
			TAILQ_REMOVE(&f->waiting, r, list);
			request_free(f, r);
		}
	}
	vfs_watch(f);
	virtio_signal(&f->dev);
	virtio_unlock(&f->dev);
}

static int vfs_quiesce(struct virtio_dev *d, void (*done)(void *), void *arg)
{
	struct vfs *f = vfs_of(d);

	if (f->used == 0) {
		vfs_watch(f);
		return 0;
	}
	f->quiet = done;
	f->quiet_arg = arg;
	timer_after(f->stop_limit, (f->cfg.stop_ms ? f->cfg.stop_ms : VFS_STOP_MS) * 1000000ull);
	vfs_watch(f);
	return -EINPROGRESS;
}

static void vfs_resume(struct virtio_dev *d)
{
	struct vfs *f = vfs_of(d);

	f->quiet = NULL;
	timer_set(f->stop_limit, 0);
	vfs_watch(f);
}

static void vfs_stats(struct virtio_dev *d, dev_stat_fn fn, void *arg)
{
	const struct vfs *f = vfs_of(d);

	fn(arg, "fs", "requests", f->n_requests);
	fn(arg, "fs", "failed", f->n_failed);
	fn(arg, "fs", "sent_bytes", f->n_out);
	fn(arg, "fs", "received_bytes", f->n_in);
}

static const struct virtio_ops vfs_ops = {
	.name = "fs",
	.device_id = VIRTIO_ID_FS,
	.nqueues = VQ_COUNT,
	.queue_max = RING_SIZE,
	.config_bytes = CONFIG_BYTES,
	.config_read = vfs_config_read,
	.reset = vfs_reset,
	.kick = vfs_kick,
	.quiesce = vfs_quiesce,
	.resume = vfs_resume,
	.stats = vfs_stats,
};

struct virtio_dev *vfs_create(
	const struct dev_env *env, const struct vfs_config *cfg, struct err *e)
{
	struct vfs *f = calloc(1, sizeof(*f));

	if (!f) {
		err_set(e, ENOMEM, "virtio-fs");
		return NULL;
	}
	f->cfg = *cfg;
	f->sock = -1;
	TAILQ_INIT(&f->waiting);
	TAILQ_INIT(&f->free);
	f->request = calloc(FS_QUEUE, sizeof(*f->request));
	f->stop_limit = loop_timer(env->loop, on_stop_limit, f);
	if (!f->request || !f->stop_limit || virtio_init(&f->dev, &vfs_ops, env, SLOT_FS, e) < 0) {
		timer_remove(f->stop_limit);
		free(f->request);
		free(f);
		if (e && !e->code)
			err_set(e, ENOMEM, "virtio-fs");
		return NULL;
	}
	return &f->dev;
}

void vfs_destroy(struct virtio_dev *d)
{
	struct vfs *f;

	if (!d)
		return;
	f = vfs_of(d);
	virtio_fini(d);
	watch_remove(f->watch);
	timer_remove(f->stop_limit);
	close_fd(&f->sock);
	free(f->request);
	free(f);
}

int vfs_attach(struct virtio_dev *d, int sock)
{
	struct vfs *f = vfs_of(d);
	_cleanup_close_ int fd = sock;
	int rc;

	if (f->sock >= 0)
		return -EBUSY;
	rc = fd_set_nonblock(fd, true);
	if (rc < 0)
		return rc;
	virtio_lock(d);
	f->watch = loop_watch(d->env->loop, fd, EPOLLIN, on_socket, f);
	rc = f->watch ? 0 : -errno;
	if (f->watch) {
		f->sock = take_fd(&fd);
		f->sent = f->in_got = 0;
		vfs_send(f);
		vfs_watch(f);
		virtio_signal(d);
	}
	virtio_unlock(d);
	return rc;
}
