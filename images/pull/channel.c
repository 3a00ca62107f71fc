/* SPDX-License-Identifier: Apache-2.0
 *
 * channel.c: see channel.h. Process mayfly-image, jailed; job_put_limits() also in the process that starts one. The other
 * side is the daemon or the command line; the form of its messages is checked.
 */
#include "images/pull/channel.h"

#include <string.h>

#include "lib/fdpass.h"

#define SAY_NS 100000000u

int job_send(struct job *j, enum job_type type, struct buf *payload)
{
	struct job_hdr h = {.magic = JOB_MAGIC,
		.type = (uint16_t)type,
		.len = payload ? (uint32_t)payload->len : 0};
	struct buf m;
	int r;

	buf_init(&m, JOB_MSG_MAX);
	buf_put(&m, &h, sizeof(h));
	if (payload)
		buf_put(&m, payload->p, payload->len);
	r = m.bad || (payload && payload->bad) ? -EMSGSIZE
					       : fdpass_send(j->sock, m.p, m.len, NULL, 0);
	buf_fini(&m);
	return r;
}

int job_recv(struct job *j, struct job_hdr *h, uint8_t *p, size_t cap, size_t *len, int *fds,
	size_t *nfds)
{
	ssize_t n = fdpass_recv(j->sock, p, cap, fds, nfds);

	if (n <= 0)
		return n < 0 ? (int)n : -EPIPE;
	if ((size_t)n < sizeof(*h))
		return -EPROTO;
	memcpy(h, p, sizeof(*h));
	if (h->magic != JOB_MAGIC || h->len != (size_t)n - sizeof(*h))
		return -EPROTO;
	*len = h->len;
	return 0;
}

static int ask(struct job *j, const struct digest *d, uint64_t size, int *fd, uint32_t *there,
	struct err *e)
{
	uint8_t m[256];
	struct job_hdr h = {0};
	char text[DIGEST_STR];
	struct buf b;
	struct cur c;
	size_t len = 0, nfds = 1;
	int got[1] = {-1}, r;

	buf_init(&b, 256);
	buf_str(&b, digest_str(d, text));
	buf_u64(&b, size);
	r = job_send(j, JOB_NEED, &b);
	buf_fini(&b);
	if (r == 0)
		r = job_recv(j, &h, m, sizeof(m), &len, got, &nfds);
	if (r == 0 && h.type != JOB_HAVE)
		r = -EPROTO;
	if (r < 0)
		return err_set(e, -r, "asking for %.19s", text);
	c = cur_of(m + sizeof(h), len);
	*there = cur_u32(&c);
	*fd = nfds ? got[0] : -1;
	return 0;
}

int job_need(struct job *j, const struct digest *d, uint64_t size, int *fd, struct err *e)
{
	uint32_t there;

	return ask(j, d, size, fd, &there, e);
}

int job_have(struct job *j, const struct digest *d, uint64_t size, int *part, struct err *e)
{
	_cleanup_close_ int fd = -1;
	uint32_t there = 0;
	int r = ask(j, d, size, &fd, &there, e);

	if (r < 0)
		return r;
	*part = there == JOB_PART_THERE ? take_fd(&fd) : -1;
	return there == JOB_THERE;
}

int job_progress(struct job *j, enum job_phase phase, uint64_t done, uint64_t total)
{
	uint64_t now = mono_ns();
	struct buf b;
	int r;

	if (now - j->said_ns < SAY_NS)
		return 0;
	j->said_ns = now;
	buf_init(&b, 64);
	buf_u32(&b, phase);
	buf_u64(&b, done);
	buf_u64(&b, total);
	r = job_send(j, JOB_PROGRESS, &b);
	buf_fini(&b);
	return r;
}

void job_put_limits(struct buf *b, const struct image_limits *l)
{
	buf_u64(b, l->max_bytes);
	buf_u64(b, l->max_entries);
	buf_u64(b, l->max_tar_bytes);
	buf_u64(b, l->ratio_from);
	buf_u64(b, l->room_bytes);
	buf_u32(b, l->max_ratio);
	buf_u32(b, l->stall_s);
}
