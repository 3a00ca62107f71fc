/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_vsock.c: see fake_vsock.h. Test programs only.
 */
#include "tests/unit/lib/fake_vsock.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

static void on_conn(void *ctx, uint32_t hport, uint32_t gport, int fd)
{
	struct fake_vsock *f = ctx;

	if (f->nconns == ARRAY_LEN(f->conns)) {
		close(fd);
		return;
	}
	f->conns[f->nconns].hport = hport;
	f->conns[f->nconns].gport = gport;
	f->conns[f->nconns++].fd = fd;
}

bool fv_up(struct fake_vsock *f, unsigned int max_streams)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct vsock_config cfg = {.max_streams = max_streams, .ctx = f, .guest_conn = on_conn};
	struct err e;
	int n;

	memset(f, 0, sizeof(*f));
	fg_init(&f->g);
	/* an abstract name: nothing in the file system */
	n = snprintf(f->path, sizeof(f->path), "fake-vsock-%d-%p", getpid(), (void *)f);
	memcpy(a.sun_path + 1, f->path, (size_t)n);
	cfg.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(cfg.listen_fd, (struct sockaddr *)&a,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) < 0 ||
		listen(cfg.listen_fd, 128) < 0)
		return false;
	f->d = vsock_create(&f->g.env, &cfg, &e);
	if (!f->d || !fg_probe(&f->g, f->d, VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC, 64))
		return false;
	for (unsigned int i = 0; i < FV_NBUFS; i++)
		f->rx[i] = fg_alloc(&f->g, FV_BUF);
	f->tx = fg_alloc(&f->g, 44 + VSOCK_PKT_MAX);
	f->ev = fg_alloc(&f->g, 64);
	fv_fill(f);
	return true;
}

void fv_fill(struct fake_vsock *f)
{
	for (unsigned int i = 0; i < FV_NBUFS && f->g.q[VQ_RX].nfree; i++) {
		struct fg_range r = {f->rx[i], FV_BUF};

		f->rx_head[fg_add(&f->g, VQ_RX, NULL, 0, &r, 1)] = (uint16_t)i;
	}
	for (unsigned int i = 0; i < FV_NEVENT; i++) {
		struct fg_range r = {f->ev + 8 * i, 4};

		fg_add(&f->g, VQ_EVENT, NULL, 0, &r, 1);
	}
	fg_kick(&f->g, VQ_EVENT);
}

void fv_down(struct fake_vsock *f)
{
	for (unsigned int i = 0; i < f->nconns; i++)
		close_fd(&f->conns[i].fd);
	vsock_destroy(f->d);
	fg_fini(&f->g);
}

int fv_client_unheard(struct fake_vsock *f, uint32_t port)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct vsock_open o = {.magic = VSOCK_OPEN_MAGIC, .port = port};
	size_t n = strlen(f->path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	memcpy(a.sun_path + 1, f->path, n);
	if (connect(fd, (struct sockaddr *)&a,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) < 0 ||
		write(fd, &o, sizeof(o)) != sizeof(o)) {
		close(fd);
		return -1;
	}
	return fd;
}

int fv_client(struct fake_vsock *f, uint32_t port)
{
	int fd = fv_client_unheard(f, port);

	fg_run(&f->g);
	return fd;
}

void fv_send(struct fake_vsock *f, uint16_t op, uint32_t gport, uint32_t hport, const void *data,
	uint32_t len, uint32_t flags, uint32_t fwd_cnt)
{
	struct vsock_hdr h = {.src_cid = VSOCK_GUEST_CID,
		.dst_cid = VSOCK_HOST_CID,
		.src_port = gport,
		.dst_port = hport,
		.len = len,
		.type = VSOCK_TYPE_STREAM,
		.op = op,
		.flags = flags,
		.buf_alloc = 65536,
		.fwd_cnt = fwd_cnt};
	struct fg_range out[2] = {{f->tx, sizeof(h)}, {f->tx + sizeof(h), len}};
	uint16_t head;
	uint32_t used;

	memcpy(fg_ptr(&f->g, f->tx), &h, sizeof(h));
	if (len)
		memcpy(fg_ptr(&f->g, f->tx + sizeof(h)), data, len);
	fg_add(&f->g, VQ_TX, out, len ? 2 : 1, NULL, 0);
	fg_kick(&f->g, VQ_TX);
	while (fg_used(&f->g, VQ_TX, &head, &used))
		;
}

bool fv_recv(struct fake_vsock *f, struct vsock_hdr *h)
{
	struct fg_range r = {.len = FV_BUF};
	uint16_t head, buf;
	uint32_t used;

	if (!fg_used(&f->g, VQ_RX, &head, &used))
		return false;
	buf = f->rx_head[head];
	r.gpa = f->rx[buf];
	memcpy(h, fg_ptr(&f->g, r.gpa), sizeof(*h));
	ASSERT(used == sizeof(*h) + h->len && used <= FV_BUF);
	memcpy(f->payload, (char *)fg_ptr(&f->g, r.gpa) + sizeof(*h), h->len);
	f->rx_head[fg_add(&f->g, VQ_RX, NULL, 0, &r, 1)] = buf;
	return true;
}

int fv_open(struct fake_vsock *f, uint32_t port, struct vsock_hdr *req)
{
	struct vsock_open o;
	int fd = fv_client(f, port);

	memset(req, 0, sizeof(*req));
	if (fd < 0 || !fv_recv(f, req) || req->op != OP_REQUEST)
		return fd;
	fv_send(f, OP_RESPONSE, port, req->src_port, NULL, 0, 0, 0);
	if (read(fd, &o, sizeof(o)) != sizeof(o) || o.status != 0)
		req->op = 0;
	return fd;
}
