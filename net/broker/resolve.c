/* SPDX-License-Identifier: Apache-2.0
 *
 * resolve.c: DNS for sandboxes: a guest's question is judged, asked again of the host's resolvers, and the answer is judged before any of
 * it leaves. Addresses are learned here and nowhere else. Hostile: the question (a mayfly-net passes it), and every answer, which
 * may be forged: so each question has a socket of its own, and with it a port, and a random id.
 *
 * No answer is kept for another question: a cache that sandboxes share would tell one what another asked.
 */
#include "net/broker/broker.h"

#include <stdio.h>
#include <string.h>

struct query {
	struct query *next;
	struct net_sandbox *s;
	uint32_t chan_id; /* of mayfly-net's message */
	bool guest_tcp;
	struct dns_question q;
	uint16_t id; /* ours */
	int fd;
	struct watch *watch;
	struct timer *timer;
	uint64_t ends_ns;
	unsigned int tries, resolver;
	bool tcp, asked; /* over TCP, and was the question written? */
	uint8_t *in;     /* over TCP: two bytes of length, then the answer */
	size_t in_len, in_want;
};

static void query_close(struct query *q)
{
	watch_remove(q->watch);
	q->watch = NULL;
	close_fd(&q->fd);
	free(q->in);
	q->in = NULL;
	q->in_len = q->in_want = 0;
}

static void query_free(struct query *q)
{
	struct query **at = &q->s->broker->query;

	while (*at != q)
		at = &(*at)->next;
	*at = q->next;
	q->s->queries--;
	q->s->broker->fds--;
	query_close(q);
	timer_remove(q->timer);
	free(q);
}

void queries_end(struct net_sandbox *s)
{
	struct query *q = s->broker->query, *next;

	for (; q; q = next) {
		next = q->next;
		if (q->s == s)
			query_free(q);
	}
}

static void reply(struct net_sandbox *s, uint32_t chan_id, bool tcp, const struct dns_question *q,
	const struct dns_answer *a, enum dns_rcode rcode)
{
	uint8_t *to = s->broker->message;
	size_t n = dns_reply_write(q, a, rcode, to, tcp ? DNS_MESSAGE_MAX : dns_udp_limit(q));

	net_sandbox_send(s, NET_DNS, chan_id, 0, to, n, -1);
}

static void query_fail(struct query *q)
{
	q->s->count[NET_C_QUERIES_FAILED]++;
	host_resolvers_stale(q->s->broker, mono_ns());
	reply(q->s, q->chan_id, q->guest_tcp, &q->q, NULL, DNS_SERVFAIL);
	query_free(q);
}

/* A name that a rule denies must not be reached through another name (CNAME) either. The default does not apply to names in between. */
static bool chain_denied(const struct net_sandbox *s, const struct dns_answer *a)
{
	for (unsigned int i = 0; i < a->nchain; i++) {
		enum net_verdict v = policy_name(&s->policy, &s->broker->world, a->chain[i]);

		if (v == NET_V_RULE || v == NET_V_OPERATOR)
			return true;
	}
	return false;
}

/* Learns the addresses, and drops those that the name must not have. False: the answer had addresses, and all are dropped. */
static bool answer_learn(struct net_sandbox *s, const char *name, struct dns_answer *a)
{
	unsigned int there = 0, left = 0;
	struct net_addr addr;

	for (unsigned int i = 0; i < a->n; i++) {
		if (!dns_answer_addr(a, i, &addr))
			continue;
		there++;
		if (!policy_answer(&s->policy, &s->broker->world, &addr) ||
			learned_add(&s->learned, &addr, name, a->rec[i].ttl, mono_ns()) < 0) {
			a->rec[i].dropped = true;
			s->count[NET_C_REBINDING]++;
			continue;
		}
		left++;
	}
	return left || !there;
}

static void query_answered(struct query *q)
{
	struct net_sandbox *s = q->s;
	struct dns_answer *a = &s->broker->answer;
	/* asked again: the policy may have changed since the question */
	enum net_verdict v = policy_name(&s->policy, &s->broker->world, q->q.name);
	enum dns_rcode rcode = (enum dns_rcode)a->rcode;

	if (v != NET_V_ALLOW || chain_denied(s, a)) {
		net_sandbox_denied(s, q->q.name, v == NET_V_ALLOW ? NET_V_RULE : v);
		s->count[NET_C_QUERIES_DENIED]++;
		a = NULL;
		rcode = DNS_NXDOMAIN;
	} else if (!answer_learn(s, q->q.name, a)) {
		net_sandbox_denied(s, q->q.name, NET_V_CLOSED);
		a = NULL;
		rcode = DNS_NXDOMAIN;
	}
	reply(s, q->chan_id, q->guest_tcp, &q->q, a, rcode);
	query_free(q);
}

static void query_ask(struct query *q);

static void query_next(struct query *q)
{
	q->tcp = false;
	query_ask(q);
}

/* A message came. An answer to this question ends the query, or makes us ask once more: over TCP if it was cut, the next resolver if it was an
 * error. Anything else is ignored over UDP, where anybody may send it; over TCP the next resolver is asked. */
static void query_message(struct query *q, const uint8_t *p, size_t n)
{
	struct dns_answer *a = &q->s->broker->answer;
	const struct broker *b = q->s->broker;

	if (dns_answer_read(p, n, &q->q, q->id, a) < 0) {
		if (q->tcp)
			query_next(q);
		return;
	}
	if (a->cut && !q->tcp) {
		q->tcp = true;
		q->tries--;
		query_ask(q);
		return;
	}
	if ((a->rcode == DNS_SERVFAIL || a->rcode == DNS_REFUSED || a->rcode == DNS_NOTIMP) &&
		q->tries < b->nresolvers) {
		query_next(q);
		return;
	}
	query_answered(q);
}

/* 1: written, 0: not yet, -errno */
static int tcp_ask(struct query *q)
{
	uint8_t m[2 + DNS_QUERY_MAX];
	size_t n = dns_query_write(&q->q, q->id, m + 2);
	ssize_t k;

	m[0] = (uint8_t)(n >> 8);
	m[1] = (uint8_t)n;
	k = send(q->fd, m, n + 2, MSG_NOSIGNAL);
	if (k < 0)
		return errno == EAGAIN ? 0 : -errno;
	return (size_t)k == n + 2 ? 1 : -EIO; /* 300 bytes fit an empty socket */
}

/* The next bytes: 1 when the message is whole. */
static int tcp_read(struct query *q)
{
	ssize_t n;

	if (!q->in) {
		q->in = malloc(DNS_MESSAGE_MAX + 2);
		q->in_want = 2;
	}
	if (!q->in)
		return -ENOMEM;
	n = recv(q->fd, q->in + q->in_len, q->in_want - q->in_len, 0);
	if (n < 0)
		return errno == EAGAIN ? 0 : -errno;
	if (n == 0)
		return -EPIPE;
	q->in_len += (size_t)n;
	if (q->in_len == 2 && q->in_want == 2)
		q->in_want = 2 + (size_t)(q->in[0] << 8 | q->in[1]);
	return q->in_len == q->in_want && q->in_want > 2;
}

static void on_tcp(struct query *q)
{
	int rc;

	if (!q->asked) {
		rc = tcp_ask(q);
		q->asked = rc > 0;
		if (rc < 0)
			query_next(q);
		else if (rc > 0)
			watch_events(q->watch, EPOLLIN);
		return;
	}
	rc = tcp_read(q);
	if (rc < 0)
		query_next(q);
	else if (rc > 0)
		query_message(q, q->in + 2, q->in_want - 2);
}

static void on_query(void *arg, uint32_t events)
{
	struct query *q = arg;
	uint8_t *p = q->s->broker->message;
	ssize_t n;

	if (q->tcp) {
		on_tcp(q);
		return;
	}
	n = recv(q->fd, p, DNS_MESSAGE_MAX, 0);
	if (n >= 0)
		query_message(q, p, (size_t)n);
	else if (errno != EAGAIN)
		query_next(q); /* nobody listens there */
}

static void on_retry(void *arg)
{
	query_next(arg);
}

/* Makes a socket to the resolver whose turn it is, and over UDP sends the question. */
static int query_connect(struct query *q)
{
	struct broker *b = q->s->broker;
	const struct net_resolver *r = &b->resolver[q->resolver % b->nresolvers];
	struct sockaddr_storage ss;
	socklen_t n = net_addr_sockaddr(&r->addr, r->port, &ss);
	uint8_t m[DNS_QUERY_MAX];

	query_close(q);
	random_bytes(&q->id, sizeof(q->id));
	q->asked = false;
	q->fd = socket(ss.ss_family,
		(q->tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (q->fd < 0 ||
		(connect(q->fd, (const struct sockaddr *)&ss, n) < 0 && errno != EINPROGRESS))
		return -errno;
	if (!q->tcp && send(q->fd, m, dns_query_write(&q->q, q->id, m), MSG_NOSIGNAL) < 0)
		return -errno;
	q->watch = loop_watch(b->loop, q->fd, q->tcp ? EPOLLOUT : EPOLLIN, on_query, q);
	return q->watch ? 0 : -ENOMEM;
}

/* Asks the next resolver, or over TCP the same one again. Each gets the question twice at most; asking again over TCP does not count. */
static void query_ask(struct query *q)
{
	struct broker *b = q->s->broker;
	uint64_t now = mono_ns();

	host_resolvers(b, now);
	while (b->nresolvers && q->tries < 2 * b->nresolvers && now < q->ends_ns) {
		q->resolver = q->tcp ? q->resolver : q->tries;
		q->tries++;
		if (query_connect(q) < 0) {
			q->tcp = false;
			continue;
		}
		timer_set(q->timer, MIN(now + RESOLVER_RETRY_NS, q->ends_ns));
		return;
	}
	query_fail(q);
}

static struct query *query_make(
	struct net_sandbox *s, uint32_t chan_id, bool tcp, const struct dns_question *question)
{
	struct query *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	*q = (struct query){.s = s,
		.chan_id = chan_id,
		.guest_tcp = tcp,
		.q = *question,
		.fd = -1,
		.ends_ns = mono_ns() + QUERY_DEADLINE_NS};
	q->timer = loop_timer(s->broker->loop, on_retry, q);
	if (!q->timer) {
		free(q);
		return NULL;
	}
	q->next = s->broker->query;
	s->broker->query = q;
	s->queries++;
	s->broker->fds++;
	return q;
}

void query_start(struct net_sandbox *s, uint32_t id, struct cur *c)
{
	uint8_t tcp = cur_u8(c);
	struct dns_question question;
	struct query *q;
	enum net_verdict v;
	int rc = c->bad ? -EBADMSG : dns_question_read(c->p, cur_left(c), &question);

	if (rc < 0) {
		s->count[NET_C_REFUSED]++;
		return;
	}
	s->count[NET_C_QUERIES]++;
	if (rc > 0) {
		reply(s, id, tcp, &question, NULL, (enum dns_rcode)rc);
		return;
	}
	v = policy_name(&s->policy, &s->broker->world, question.name);
	if (v != NET_V_ALLOW) {
		net_sandbox_denied(s, question.name, v);
		s->count[NET_C_QUERIES_DENIED]++;
		reply(s, id, tcp, &question, NULL, DNS_NXDOMAIN);
		return;
	}
	if (s->queries >= s->limit[NET_L_QUERIES] || !broker_has_fd(s->broker, false) ||
		!net_bucket_take(&s->asks, mono_ns())) {
		s->count[NET_C_LIMITED]++;
		reply(s, id, tcp, &question, NULL, DNS_SERVFAIL);
		return;
	}
	q = query_make(s, id, tcp, &question);
	if (q)
		query_ask(q);
	else
		reply(s, id, tcp, &question, NULL, DNS_SERVFAIL);
}
