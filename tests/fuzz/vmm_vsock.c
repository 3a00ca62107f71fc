/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_vsock: the packet machine. Commands: packets whose ports are mostly those of streams that
 * exist, buffers, clients that come, write, read, half-close and leave, restores. At the end all
 * clients leave and the guest resets every stream: no slot may stay taken.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/log.h"
#include "tests/unit/lib/fake_vsock.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define CLIENTS  6u
#define RESTORES 4u /* an input; each costs as much as all the rest */

static struct fake_vsock F;
static int client[CLIENTS];
static uint32_t seen[CLIENTS + 64]; /* host ports the guest was asked from */
static unsigned int nseen, restores;
static uint8_t junk[VSOCK_PKT_MAX];

static void drain(bool answer)
{
	struct vsock_hdr h;

	for (int i = 0; i < 200 && fv_recv(&F, &h); i++) {
		if (h.op == OP_REQUEST && nseen < ARRAY_LEN(seen))
			seen[nseen++] = h.src_port;
		if (h.op == OP_REQUEST && answer)
			fv_send(&F, OP_RESPONSE, h.dst_port, h.src_port, NULL, 0, 0, 0);
	}
	fg_kick(&F.g, VQ_RX);
}

static void packet(struct cur *c)
{
	uint8_t what = cur_u8(c), op = cur_u8(c) % 10, flags = cur_u8(c);
	uint32_t hport = nseen && what & 1 ? seen[what % nseen]
			 : what & 2        ? VSOCK_PORT_READY
					   : cur_u32(c);
	uint32_t gport = what & 4 ? 1024 : cur_u8(c), len = op == OP_RW ? cur_u16(c) : 0;

	if (F.g.q[VQ_TX].nfree < 2)
		return;
	fv_send(&F, op, gport, hport, junk, len, flags, cur_u32(c));
}

static void raw_packet(struct cur *c)
{
	struct fg_range out = {F.tx, 1 + cur_u8(c) % 80u};
	uint16_t head;
	uint32_t used;

	if (F.g.q[VQ_TX].nfree < 1)
		return;
	cur_copy(c, fg_ptr(&F.g, F.tx), MIN(out.len, cur_left(c)));
	fg_add(&F.g, VQ_TX, &out, 1, NULL, 0);
	fg_kick(&F.g, VQ_TX);
	while (fg_used(&F.g, VQ_TX, &head, &used))
		;
}

static void client_does(struct cur *c)
{
	uint8_t what = cur_u8(c);
	int *fd = &client[what % CLIENTS];
	static uint8_t b[65536];

	switch (what >> 3 & 7) {
	case 0:
	case 1:
		if (*fd < 0)
			*fd = fv_client(&F, what & 0x40 ? 1024 : cur_u8(c));
		break;
	case 2:
		close_fd(fd);
		break;
	case 3:
		if (*fd >= 0)
			shutdown(*fd, what & 0x40 ? SHUT_WR : SHUT_RD);
		break;
	case 4:
	case 5:
		if (*fd >= 0)
			(void)!send(*fd, junk, cur_u16(c), MSG_NOSIGNAL | MSG_DONTWAIT);
		break;
	default:
		if (*fd >= 0)
			(void)!read(*fd, b, sizeof(b));
		break;
	}
	fg_run(&F.g);
}

static void restore(void)
{
	struct vsock_config cfg = {
		.listen_fd = fcntl(((struct vsock *)F.d)->cfg.listen_fd, F_DUPFD_CLOEXEC, 3),
		.max_streams = 8,
		.ctx = &F,
		.guest_conn = ((struct vsock *)F.d)->cfg.guest_conn};
	struct virtio_dev *to = vsock_create(&F.g.env, &cfg, NULL);

	ASSERT(to && fg_move(&F.g, to) == 0);
	vsock_destroy(F.d);
	F.d = to;
	virtio_resume(to, true);
}

static void give_back_events(void)
{
	struct fg_range r = {F.ev, 4};
	uint16_t head;
	uint32_t len;

	while (fg_used(&F.g, VQ_EVENT, &head, &len))
		fg_add(&F.g, VQ_EVENT, NULL, 0, &r, 1);
	fg_kick(&F.g, VQ_EVENT);
}

static void finish(void)
{
	struct vsock *v = (struct vsock *)F.d;
	struct vsock_hdr h;

	for (unsigned int i = 0; i < CLIENTS; i++)
		close_fd(&client[i]);
	for (unsigned int i = 0; i < F.nconns; i++)
		close_fd(&F.conns[i].fd);
	fg_run(&F.g);
	if (!(v->dev.status & VIRTIO_S_NEEDS_RESET)) {
		give_back_events();
		for (int i = 0; i < 2000; i++) {
			fg_kick(&F.g, VQ_RX);
			if (!fv_recv(&F, &h))
				break;
			if (h.op != OP_RST)
				fv_send(&F, OP_RST, h.dst_port, h.src_port, NULL, 0, 0, 0);
		}
		for (unsigned int i = 0; i < v->nstreams; i++)
			if (v->streams[i].state != ST_FREE)
				fv_send(&F, OP_RST, v->streams[i].gport, v->streams[i].hport, NULL,
					0, 0, 0);
		fg_run(&F.g);
		ASSERT(v->nused == 0 && v->nguest == 0 && !v->ready_head && !v->close_head);
	}
	vsock_destroy(F.d);
	F.nconns = 0;
	fg_fini(&F.g);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct cur c = cur_of(p, n);

	log_level = -1;
	ASSERT(fv_up(&F, 8));
	nseen = restores = 0;
	for (unsigned int i = 0; i < CLIENTS; i++)
		client[i] = -1;
	for (int i = 0; i < 100 && cur_left(&c); i++) {
		uint8_t op = cur_u8(&c);

		switch (op % 8) {
		case 0:
			raw_packet(&c);
			break;
		case 1:
		case 2:
		case 3:
			packet(&c);
			break;
		case 4:
		case 5:
			client_does(&c);
			break;
		case 6:
			drain(op & 8);
			break;
		default:
			if (op & 0x40 && restores++ < RESTORES)
				restore();
			else
				give_back_events();
			break;
		}
	}
	finish();
	return 0;
}
