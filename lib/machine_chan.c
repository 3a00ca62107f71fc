/* SPDX-License-Identifier: Apache-2.0
 *
 * machine_chan.c: the frames between `mayfly machine` and the exec server. Both ends; every byte
 * that comes in is hostile. Invariant: in.len never exceeds one frame of the largest size plus one
 * read.
 */
#include "lib/machine_chan.h"

#include <endian.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

enum { READ_BYTES = 65536, QUEUE_MAX = 4 * MACHINE_FRAME_MAX };

void chan_init(struct machine_chan *c, int fd)
{
	*c = (struct machine_chan){.fd = fd};
	buf_init(&c->in, sizeof(struct machine_hdr) + MACHINE_FRAME_MAX + READ_BYTES);
	buf_init(&c->out, QUEUE_MAX + 2 * (sizeof(struct machine_hdr) + MACHINE_FRAME_MAX));
}

void chan_fini(struct machine_chan *c)
{
	buf_fini(&c->in);
	buf_fini(&c->out);
}

int chan_send(struct machine_chan *c, enum machine_frame type, const void *p, size_t n)
{
	struct machine_hdr h = {.type = (uint8_t)type, .len_le = htole32((uint32_t)n)};

	if (n > MACHINE_FRAME_MAX || !buf_room(&c->out, sizeof(h) + n))
		return -ENOBUFS;
	buf_put(&c->out, &h, sizeof(h));
	buf_put(&c->out, p, n);
	return 0;
}

bool chan_is_full(const struct machine_chan *c)
{
	return c->out.len >= QUEUE_MAX;
}

short chan_events(const struct machine_chan *c)
{
	return (short)((c->eof ? 0 : POLLIN) | (c->out.len ? POLLOUT : 0));
}

int chan_flush(struct machine_chan *c)
{
	while (c->out.len) {
		ssize_t n = send(c->fd, c->out.p, c->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? 0 : -errno;
		buf_consume(&c->out, (size_t)n);
	}
	return 0;
}

int chan_fill(struct machine_chan *c)
{
	uint8_t *to;
	ssize_t n;

	buf_consume(&c->in, c->taken);
	c->taken = 0;
	/* a whole frame is waiting: the owner takes it first, so that a flood does not grow the
	 * buffer */
	if (c->in.len > sizeof(struct machine_hdr) + MACHINE_FRAME_MAX)
		return 0;
	to = buf_room(&c->in, READ_BYTES);
	if (!to)
		return -ENOMEM;
	n = recv(c->fd, to, READ_BYTES, MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	if (n == 0)
		c->eof = true;
	c->in.len += (size_t)n;
	return 0;
}

int chan_next(struct machine_chan *c, enum machine_frame *type, struct cur *payload)
{
	struct machine_hdr h;
	uint32_t len;

	if (c->in.len - c->taken < sizeof(h))
		return 0;
	memcpy(&h, c->in.p + c->taken, sizeof(h));
	len = le32toh(h.len_le);
	if (h.type == 0 || h.type >= MACHINE_FRAME_COUNT || h.zero[0] || h.zero[1] || h.zero[2] ||
		len > MACHINE_FRAME_MAX)
		return -EPROTO;
	if (c->in.len - c->taken - sizeof(h) < len)
		return 0;
	*type = (enum machine_frame)h.type;
	*payload = cur_of(c->in.p + c->taken + sizeof(h), len);
	c->taken += sizeof(h) + len;
	return 1;
}
