/* SPDX-License-Identifier: Apache-2.0
 *
 * dns.c: DNS questions of the guest, to whatever address it sends them: only their bytes are passed to the broker, which alone reads them,
 * and the answer is sent as if that address had given it. Over TCP, libslirp's connection to a port 53 ends at a socket pair of ours.
 * Hostile: the questions, and the lengths on TCP.
 */
#include "net/stack/stack.h"

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>

#define DNS_CONNS_MAX 16u
/* A question takes less than 300 bytes (lib/dns.h). Longer messages are refused here. */
#define TCP_QUESTION 1024u
#define UDP_QUESTION 4096u

struct dns_conn {
	struct dns_conn *next;
	struct stack *s;
	int fd;
	struct watch *watch;
	uint8_t in[2 + TCP_QUESTION];
	size_t in_len;
};

static struct question *question_slot(struct stack *s)
{
	struct question *q = &s->question[s->next_question++ % QUESTIONS_MAX];

	s->next_id = s->next_id == UINT32_MAX ? 1 : s->next_id + 1;
	*q = (struct question){.id = s->next_id}; /* replaces the oldest: the guest retries it */
	return q;
}

static struct question *question_find(struct stack *s, uint32_t id)
{
	for (unsigned int i = 0; id && i < QUESTIONS_MAX; i++)
		if (s->question[i].id == id)
			return &s->question[i];
	return NULL;
}

void dns_frame(struct stack *s, const struct frame *f)
{
	struct question *q;

	if (f->payload_len > UDP_QUESTION)
		return;
	q = question_slot(s);
	q->dst = f->dst;
	q->sport = f->sport;
	if (ask_dns(s, q->id, false, f->payload, f->payload_len) < 0)
		q->id = 0;
}

static void conn_free(struct dns_conn *c)
{
	struct dns_conn **at = &c->s->dns_conn;

	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	c->s->ndns_conns--;
	for (unsigned int i = 0; i < QUESTIONS_MAX; i++)
		if (c->s->question[i].conn == c)
			c->s->question[i] = (struct question){0};
	watch_remove(c->watch);
	close_fd(&c->fd);
	free(c);
}

void dns_end(struct stack *s)
{
	while (s->dns_conn)
		conn_free(s->dns_conn);
}

/* Writes one answer, or ends the connection: the socket pair's buffer holds more than one answer, so if it is full the guest does not read. */
static void conn_answer(struct dns_conn *c, const uint8_t *p, size_t n)
{
	uint8_t m[2 + 65535];

	if (n > 65535)
		return;
	m[0] = (uint8_t)(n >> 8);
	m[1] = (uint8_t)n;
	memcpy(m + 2, p, n);
	if (send(c->fd, m, n + 2, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)(n + 2))
		/* on_conn() sees it and frees c: we may be in one of its calls */
		shutdown(c->fd, SHUT_RDWR);
}

void dns_answered(struct stack *s, uint32_t id, const uint8_t *p, size_t n)
{
	struct question *q = question_find(s, id);

	if (!q)
		return;
	if (q->conn)
		conn_answer(q->conn, p, n);
	else
		link_send(s, frame_udp(s->out, &q->dst, 53, q->sport, p, n));
	*q = (struct question){0};
}

/* Asks the complete questions in c->in; false: the connection must end. */
static bool conn_ask(struct dns_conn *c)
{
	while (c->in_len >= 2) {
		size_t n = (size_t)(c->in[0] << 8 | c->in[1]);
		struct question *q;

		if (n > TCP_QUESTION)
			return false;
		if (c->in_len < n + 2)
			break;
		q = question_slot(c->s);
		q->conn = c;
		if (ask_dns(c->s, q->id, true, c->in + 2, n) < 0)
			return false;
		memmove(c->in, c->in + n + 2, c->in_len - n - 2);
		c->in_len -= n + 2;
	}
	return true;
}

static void on_conn(void *arg, uint32_t events)
{
	struct dns_conn *c = arg;
	ssize_t n = recv(c->fd, c->in + c->in_len, sizeof(c->in) - c->in_len, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		conn_free(c);
		return;
	}
	c->in_len += (size_t)n;
	if (!conn_ask(c))
		conn_free(c);
}

int dns_connect(struct stack *s)
{
	struct dns_conn *c;
	int sv[2];

	if (s->ndns_conns == DNS_CONNS_MAX)
		return -EAGAIN;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv) < 0)
		return -errno;
	c = calloc(1, sizeof(*c));
	if (c) {
		*c = (struct dns_conn){.s = s, .fd = sv[1], .next = s->dns_conn};
		c->watch = loop_watch(s->loop, sv[1], EPOLLIN, on_conn, c);
	}
	if (!c || !c->watch) {
		free(c);
		close(sv[0]);
		close(sv[1]);
		return -ENOMEM;
	}
	s->dns_conn = c;
	s->ndns_conns++;
	return sv[0];
}
