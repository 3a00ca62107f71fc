/* SPDX-License-Identifier: Apache-2.0
 *
 * control.c: what the daemon asks of the broker. The daemon is trusted, but a policy that it passes on comes from a client: it is read with
 * all checks.
 */
#include "net/broker/broker.h"

#include <string.h>

#include "lib/fdpass.h"
#include "lib/log.h"

struct request {
	struct broker *b;
	struct net_hdr h;
	struct cur c;
	int *fd;
	struct buf out;
	struct err e;
};

static struct net_sandbox *request_sandbox(struct request *r, bool make)
{
	uint32_t id = cur_u32(&r->c);
	struct net_sandbox *s = r->c.bad ? NULL : net_sandbox_find(r->b, id);

	if (!s && make && !r->c.bad)
		s = net_sandbox_add(r->b, id);
	if (!s)
		err_plain(&r->e, r->c.bad ? EBADMSG : ENOENT, "the broker knows no sandbox %u", id);
	return s;
}

static int do_channel(struct request *r)
{
	struct net_sandbox *s = request_sandbox(r, false);
	uint64_t limit[NET_L_COUNT] = {0};
	uint32_t n = cur_u32(&r->c);
	int rc;

	if (!s)
		return -r->e.code;
	if (!s->has_policy || n > NET_L_COUNT || *r->fd < 0)
		return err_plain(&r->e, EINVAL,
			"sandbox %u: a channel needs a policy first, a descriptor, and at most %u "
			"limits",
			s->id, NET_L_COUNT);
	for (uint32_t i = 0; i < n; i++)
		limit[i] = cur_u64(&r->c);
	if (!cur_done(&r->c))
		return err_plain(&r->e, EBADMSG, "limits are cut off");
	net_sandbox_limits(s, limit, n);
	rc = net_sandbox_channel(s, take_fd(r->fd));
	return rc < 0 ? err_set(&r->e, -rc, "sandbox %u: channel", s->id) : 0;
}

/* Adds one part: 1 if more parts follow, 0 if this was the last. *whole: the parts so far, put together. */
static int parts_add(struct buf *parts, struct request *r, struct cur *whole)
{
	uint8_t part = cur_u8(&r->c);
	size_t n = cur_left(&r->c);

	if (r->c.bad || part > (NET_PART_MORE | NET_PART_FIRST))
		return err_plain(&r->e, EBADMSG, "a part is cut off");
	if (part & NET_PART_FIRST)
		buf_reset(parts);
	else if (!parts->len)
		return err_plain(&r->e, EBADMSG, "a part comes without the first one");
	buf_put(parts, r->c.p, n);
	if (parts->bad) {
		buf_reset(parts);
		return err_plain(
			&r->e, E2BIG, "the parts of a policy are more than %zu bytes", parts->max);
	}
	*whole = cur_of(parts->p, parts->len);
	return part & NET_PART_MORE;
}

static int do_policy(struct request *r)
{
	struct net_sandbox *s = request_sandbox(r, true);
	struct policy p = {0};
	struct cur whole;
	int rc;

	if (!s)
		return -r->e.code;
	rc = parts_add(&s->parts, r, &whole);
	if (rc > 0)
		return 0;
	if (rc == 0) {
		rc = policy_get(&whole, &p, &r->e);
		buf_reset(&s->parts);
	}
	if (rc < 0) {
		/* the older policy may be the wider one: nothing is open until there is one again */
		net_sandbox_drop(s);
		s->has_policy = false;
		return rc;
	}
	policy_fini(&s->policy);
	s->policy = p;
	s->has_policy = s->claimed = true;
	learned_review(&s->learned, &s->policy, &r->b->world);
	flows_review(s);
	return 0;
}

static int do_remove(struct request *r)
{
	struct net_sandbox *s = request_sandbox(r, false);

	if (s)
		net_sandbox_remove(s);
	return s ? 0 : -r->e.code;
}

static void add_counters(const struct net_sandbox *s, uint64_t to[NET_C_COUNT])
{
	for (unsigned int i = 0; i < NET_C_COUNT; i++)
		to[i] += s->count[i];
	to[NET_C_OPEN] += s->open;
	flows_bytes(s, &to[NET_C_BYTES_OUT], &to[NET_C_BYTES_IN]);
}

static void put_counters(struct request *r, const uint64_t count[NET_C_COUNT])
{
	buf_u32(&r->out, NET_C_COUNT);
	for (unsigned int i = 0; i < NET_C_COUNT; i++)
		buf_u64(&r->out, count[i]);
}

static int do_counters(struct request *r)
{
	struct cur c = r->c;
	bool all = cur_u32(&c) == NET_ALL && !c.bad;
	struct net_sandbox *s = all ? NULL : request_sandbox(r, false);
	uint64_t count[NET_C_COUNT] = {0};

	if (all) {
		memcpy(count, r->b->total, sizeof(count));
		for (s = r->b->sandbox; s; s = s->next)
			add_counters(s, count);
		put_counters(r, count);
		buf_u32(&r->out, 0);
		return 0;
	}
	if (!s)
		return -r->e.code;
	add_counters(s, count);
	put_counters(r, count);
	buf_u32(&r->out, s->ndenied);
	for (unsigned int i = 0; i < s->ndenied; i++) {
		buf_str(&r->out, s->denied[i].place);
		buf_str(&r->out, net_verdict_name((enum net_verdict)s->denied[i].verdict));
		buf_u64(&r->out, s->denied[i].count);
	}
	return 0;
}

static int do_operator(struct request *r)
{
	struct cur whole;
	int rc = parts_add(&r->b->world_parts, r, &whole);

	if (rc != 0)
		return MIN(rc, 0);
	rc = net_world_get(&whole, &r->b->world, &r->e);
	buf_reset(&r->b->world_parts);
	for (struct net_sandbox *s = r->b->sandbox; rc == 0 && s; s = s->next) {
		learned_review(&s->learned, &s->policy, &r->b->world);
		flows_review(s);
	}
	return rc;
}

static int do_resolvers(struct request *r)
{
	struct net_resolver to[RESOLVERS_MAX];
	uint32_t n = cur_u32(&r->c);

	if (n > RESOLVERS_MAX)
		return err_plain(&r->e, E2BIG, "%u resolvers: at most %u", n, RESOLVERS_MAX);
	for (uint32_t i = 0; i < n; i++) {
		if (!cur_copy(&r->c, to[i].addr.b, sizeof(to[i].addr.b)))
			r->c.bad = true;
		to[i].port = cur_u16(&r->c);
	}
	if (!cur_done(&r->c))
		return err_plain(&r->e, EBADMSG, "the list of resolvers is cut off");
	memcpy(r->b->resolver, to, n * sizeof(*to));
	r->b->nresolvers = n;
	r->b->resolvers_given = n > 0;
	host_resolvers_file(r->b, n ? -1 : take_fd(r->fd));
	return 0;
}

static int do_hello(struct request *r)
{
	uint32_t version = cur_u32(&r->c);

	if (!cur_done(&r->c))
		return err_plain(&r->e, EBADMSG, "a hello is cut off");
	for (struct net_sandbox *s = r->b->sandbox; s; s = s->next)
		s->claimed = false;
	buf_u32(&r->out, NET_VERSION);
	return version == NET_VERSION
		       ? 0
		       : err_plain(&r->e, EPROTO, "the broker speaks version %u, not %u",
				 NET_VERSION, version);
}

static int do_sweep(struct request *r)
{
	struct net_sandbox *next;

	for (struct net_sandbox *s = r->b->sandbox; s; s = next) {
		next = s->next;
		if (!s->claimed)
			net_sandbox_remove(s);
	}
	return 0;
}

static int (*const handler[])(struct request *r) = {
	[NET_CHANNEL] = do_channel,
	[NET_POLICY] = do_policy,
	[NET_REMOVE] = do_remove,
	[NET_COUNTERS] = do_counters,
	[NET_OPERATOR] = do_operator,
	[NET_RESOLVERS] = do_resolvers,
	[NET_HELLO] = do_hello,
	[NET_SWEEP] = do_sweep,
};

void control_event(struct broker *b, uint16_t type, const struct buf *body)
{
	struct net_hdr h = {.magic = NET_MAGIC, .type = type};
	struct buf m;

	buf_init(&m, 4096);
	buf_put(&m, &h, sizeof(h));
	if (body)
		buf_put(&m, body->p, body->len);
	if (b->control >= 0 && !m.bad)
		fdpass_send(b->control, m.p, m.len, NULL, 0);
	buf_fini(&m);
}

void control_message(struct broker *b, const uint8_t *p, size_t n, int *fd)
{
	struct request r = {.b = b, .c = cur_of(p, n), .fd = fd};
	struct buf m;
	int rc;

	if (!cur_copy(&r.c, &r.h, sizeof(r.h)) || r.h.magic != NET_MAGIC) {
		log_warn("a control message without a header was dropped");
		return;
	}
	buf_init(&r.out, NET_MSG_MAX);
	buf_init(&m, NET_MSG_MAX);
	if (r.h.type < ARRAY_LEN(handler) && handler[r.h.type])
		rc = handler[r.h.type](&r);
	else
		rc = err_plain(&r.e, ENOSYS, "the broker knows no request %u", r.h.type);
	r.h.type |= NET_REPLY;
	r.h.status = rc;
	r.h.nfds = 0;
	buf_put(&m, &r.h, sizeof(r.h));
	if (rc < 0)
		buf_str(&m, r.e.msg);
	else
		buf_put(&m, r.out.p, r.out.len);
	if (m.bad || b->control < 0 || fdpass_send(b->control, m.p, m.len, NULL, 0) < 0)
		log_warn("the answer to request %u could not be sent", r.h.id);
	buf_fini(&m);
	buf_fini(&r.out);
}
