/* SPDX-License-Identifier: Apache-2.0
 *
 * sandbox.c: one sandbox in the broker: its channel to mayfly-net, its budget, its counters, the list of what was denied. Hostile: every
 * message of the channel. A message that makes no sense is counted and not answered.
 */
#include "net/broker/broker.h"

#include <string.h>

#include "lib/fdpass.h"
#include "lib/log.h"

static const uint64_t default_limit[NET_L_COUNT] = {
	[NET_L_FLOWS] = 1024,
	[NET_L_NEW_RATE] = 1000,
	[NET_L_QUERY_RATE] = 500,
	[NET_L_QUERIES] = 64,
};

bool net_bucket_take(struct net_bucket *b, uint64_t now_ns)
{
	uint64_t one = b->rate ? 1000000000ull / b->rate : 0;

	if (!b->rate || !one)
		return b->rate != 0;
	b->tokens_ns = MIN(b->tokens_ns + (now_ns - b->filled_ns), 1000000000ull);
	b->filled_ns = now_ns;
	if (b->tokens_ns < one)
		return false;
	b->tokens_ns -= one;
	return true;
}

void net_sandbox_limits(struct net_sandbox *s, const uint64_t *limit, uint32_t n)
{
	for (uint32_t i = 0; i < NET_L_COUNT; i++)
		s->limit[i] = i < n && limit[i] ? limit[i] : default_limit[i];
	s->limit[NET_L_FLOWS] = MIN(s->limit[NET_L_FLOWS], FLOWS_MAX);
	s->opens = (struct net_bucket){.rate = s->limit[NET_L_NEW_RATE],
		.tokens_ns = 1000000000ull,
		.filled_ns = mono_ns()};
	s->asks = (struct net_bucket){.rate = s->limit[NET_L_QUERY_RATE],
		.tokens_ns = 1000000000ull,
		.filled_ns = mono_ns()};
	/* enough to open, close and ask as often as the limits allow, and to be refused as often again */
	s->talk = (struct net_bucket){
		.rate = MAX(4 * (s->limit[NET_L_NEW_RATE] + s->limit[NET_L_QUERY_RATE]), 1000u),
		.tokens_ns = 1000000000ull,
		.filled_ns = mono_ns()};
}

struct net_sandbox *net_sandbox_find(struct broker *b, uint32_t id)
{
	struct net_sandbox *s = b->sandbox;

	while (s && s->id != id)
		s = s->next;
	return s;
}

struct net_sandbox *net_sandbox_add(struct broker *b, uint32_t id)
{
	struct net_sandbox *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	*s = (struct net_sandbox){.broker = b, .id = id, .chan = -1, .next = b->sandbox};
	buf_init(&s->parts, MIB(4));
	net_sandbox_limits(s, default_limit, NET_L_COUNT);
	b->sandbox = s;
	b->nsandboxes++;
	return s;
}

void net_sandbox_drop(struct net_sandbox *s)
{
	flows_end(s);
	queries_end(s);
	watch_remove(s->watch);
	s->watch = NULL;
	timer_remove(s->talk_timer);
	s->talk_timer = NULL;
	s->broker->fds -= s->chan >= 0;
	close_fd(&s->chan);
}

void net_sandbox_remove(struct net_sandbox *s)
{
	struct net_sandbox **at = &s->broker->sandbox;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	s->broker->nsandboxes--;
	net_sandbox_drop(s);
	for (unsigned int i = 0; i < NET_C_COUNT; i++)
		s->broker->total[i] += s->count[i];
	policy_fini(&s->policy);
	learned_fini(&s->learned);
	buf_fini(&s->parts);
	free(s->flow);
	free(s);
}

/* A full list replaces the place that was denied least often: a flood of different names does not push out a place that is tried often. */
static unsigned int denied_slot(struct net_sandbox *s, const char *place, enum net_verdict v)
{
	unsigned int least = 0;

	for (unsigned int i = 0; i < s->ndenied; i++) {
		if (s->denied[i].verdict == v && strcmp(s->denied[i].place, place) == 0)
			return i;
		if (s->denied[i].count < s->denied[least].count ||
			(s->denied[i].count == s->denied[least].count &&
				s->denied[i].last < s->denied[least].last))
			least = i;
	}
	if (s->ndenied < DENIED_MAX)
		least = s->ndenied++;
	str_copy(s->denied[least].place, sizeof(s->denied[least].place), place);
	s->denied[least].verdict = (uint8_t)v;
	s->denied[least].count = 0;
	return least;
}

static void tell_denied(struct net_sandbox *s, const char *place, enum net_verdict v)
{
	struct buf b;

	s->told++;
	buf_init(&b, 1024);
	buf_u32(&b, s->id);
	buf_str(&b, place);
	buf_str(&b, net_verdict_name(v));
	control_event(s->broker, NET_EV_DENIED, &b);
	buf_fini(&b);
}

void net_sandbox_denied(struct net_sandbox *s, const char *place, enum net_verdict v)
{
	unsigned int i = denied_slot(s, place, v);

	if (!s->denied[i].count && s->told < NET_DENIED_TOLD)
		tell_denied(s, place, v);
	s->denied[i].count++;
	s->denied[i].last = ++s->denials;
}

int net_sandbox_send(struct net_sandbox *s, uint16_t type, uint32_t id, int32_t status,
	const void *p, size_t n, int fd)
{
	struct net_hdr h = {.magic = NET_MAGIC,
		.type = type | NET_REPLY,
		.nfds = fd >= 0,
		.id = id,
		.status = status};
	uint8_t *m = s->broker->reply;
	int rc;

	ASSERT(n <= sizeof(s->broker->reply) - sizeof(h));
	memcpy(m, &h, sizeof(h));
	if (n)
		memcpy(m + sizeof(h), p, n);
	rc = fdpass_send(s->chan, m, sizeof(h) + n, &fd, fd >= 0);
	/* A mayfly-net that does not read loses the answer. */
	if (rc < 0)
		s->count[NET_C_REFUSED]++;
	return rc;
}

static void channel_message(struct net_sandbox *s, const uint8_t *p, size_t n)
{
	struct cur c = cur_of(p, n);
	struct net_hdr h;

	if (!cur_copy(&c, &h, sizeof(h)) || h.magic != NET_MAGIC || h.nfds) {
		s->count[NET_C_REFUSED]++;
		return;
	}
	switch ((enum net_type)h.type) {
	case NET_OPEN:
		flow_open(s, h.id, &c);
		break;
	case NET_CLOSE:
		flow_close(s, &c);
		break;
	case NET_DNS:
		query_start(s, h.id, &c);
		break;
	case NET_CHANNEL:
	case NET_POLICY:
	case NET_REMOVE:
	case NET_COUNTERS:
	case NET_OPERATOR:
	case NET_RESOLVERS:
	case NET_HELLO:
	case NET_SWEEP:
	case NET_EV_RESOLVERS:
	case NET_EV_DENIED:
	default: /* the daemon's, or nobody's */
		s->count[NET_C_REFUSED]++;
	}
}

/* The bucket has tokens again: hear mayfly-net. */
static void on_talk(void *arg)
{
	struct net_sandbox *s = arg;

	watch_events(s->watch, EPOLLIN);
}

static void on_channel(void *arg, uint32_t events)
{
	struct net_sandbox *s = arg;

	for (unsigned int i = 0; i < CHANNEL_TURN && s->chan >= 0; i++) {
		uint8_t *p = s->broker->message;
		uint64_t now = mono_ns();
		size_t nfds = 0;
		ssize_t n;

		/* Nothing is lost: the channel fills, and this mayfly-net waits. */
		if (!net_bucket_take(&s->talk, now)) {
			watch_events(s->watch, 0);
			timer_set(s->talk_timer, now + TALK_PAUSE_NS);
			return;
		}
		n = fdpass_recv(s->chan, p, sizeof(s->broker->message), NULL, &nfds);

		if (n == -EAGAIN)
			return;
		if (n == -EMSGSIZE) {
			s->count[NET_C_REFUSED]++;
			continue;
		}
		if (n <= 0) {
			net_sandbox_drop(s);
			return;
		}
		channel_message(s, p, (size_t)n);
	}
}

int net_sandbox_channel(struct net_sandbox *s, int fd)
{
	int rc = fd_set_nonblock(fd, true);

	net_sandbox_drop(s);
	if (rc == 0 && !broker_has_fd(s->broker, true))
		rc = -EMFILE;
	if (rc == 0) {
		s->talk_timer = loop_timer(s->broker->loop, on_talk, s);
		if (s->talk_timer)
			s->watch = loop_watch(s->broker->loop, fd, EPOLLIN, on_channel, s);
	}
	if (!s->watch) {
		rc = rc < 0 ? rc : -errno;
		timer_remove(s->talk_timer);
		s->talk_timer = NULL;
		close(fd);
		return rc;
	}
	s->chan = fd;
	s->broker->fds++;
	return 0;
}
