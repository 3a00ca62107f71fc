/* SPDX-License-Identifier: Apache-2.0
 *
 * policy.c: see policy.h. The broker. Hostile: the rules that come from a client; addresses and ports from a network process that may be
 * taken over.
 */
#include "net/policy.h"

#include <stdio.h>
#include <string.h>

#define DNS_OVER_TLS_PORT 853 /* DNS over TLS and over QUIC */

static void rules_fini(struct net_rule *r, uint32_t n)
{
	for (uint32_t i = 0; r && i < n; i++)
		net_rule_fini(&r[i]);
	free(r);
}

void policy_fini(struct policy *p)
{
	rules_fini(p->rules, p->n);
	*p = (struct policy){0};
}

/* u32 n, then the rules. */
static int rules_get(struct cur *c, struct net_rule **out, uint32_t *nout, struct err *e)
{
	uint32_t n = cur_u32(c);
	struct net_rule *r;
	int rc = 0;

	if (!c->bad && n > NET_RULES_MAX)
		return err_plain(e, E2BIG, "a list has %u rules: at most %u", n, NET_RULES_MAX);
	/* a rule takes seven bytes at least: a count that the bytes cannot hold allocates nothing */
	if (c->bad || (size_t)n * 7 > cur_left(c))
		return err_plain(e, EBADMSG, "a list of rules is cut off");
	r = calloc(n ? n : 1, sizeof(*r));
	if (!r)
		return err_set(e, ENOMEM, "%u rules", n);
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		rc = net_rule_get(c, &r[i], e);
		if (rc < 0)
			err_wrap(e, "rule %u", i + 1);
	}
	if (rc < 0) {
		rules_fini(r, n);
		return rc;
	}
	*out = r;
	*nout = n;
	return 0;
}

int policy_get(struct cur *c, struct policy *out, struct err *e)
{
	uint8_t given = cur_u8(c), allow = cur_u8(c);
	struct policy p = {.given = given == 1, .allow_default = allow == 1};
	int rc;

	if (c->bad || given > 1 || allow > 1)
		return err_plain(e, EBADMSG, "a policy is cut off");
	rc = rules_get(c, &p.rules, &p.n, e);
	if (rc == 0 && !cur_done(c)) {
		policy_fini(&p);
		return err_plain(e, EBADMSG, "a policy has bytes left over");
	}
	if (rc == 0)
		*out = p;
	return rc;
}

int net_world_get(struct cur *c, struct net_world *w, struct err *e)
{
	struct net_rule *r = NULL;
	uint32_t n = 0, kinds;
	int rc = rules_get(c, &r, &n, e);

	if (rc < 0)
		return rc;
	kinds = cur_u32(c);
	if (!cur_done(c) || kinds >> NET_KIND_COUNT) {
		rules_fini(r, n);
		return err_plain(
			e, EBADMSG, "the operator's rules are cut off or have bytes left over");
	}
	rules_fini(w->rules, w->nrules);
	w->rules = r;
	w->nrules = n;
	w->fixed_kinds = kinds;
	return 0;
}

void net_world_fini(struct net_world *w)
{
	rules_fini(w->rules, w->nrules);
	free(w->host);
	*w = (struct net_world){0};
}

static int by_bytes(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct net_addr));
}

int net_world_host(struct net_world *w, const struct net_addr *a, uint32_t n)
{
	struct net_addr *copy = calloc(n ? n : 1, sizeof(*copy));

	if (!copy)
		return -ENOMEM;
	if (n)
		memcpy(copy, a, n * sizeof(*copy));
	qsort(copy, n, sizeof(*copy), by_bytes);
	free(w->host);
	w->host = copy;
	w->nhost = n;
	return 0;
}

const char *net_verdict_name(enum net_verdict v)
{
	static const char *const names[] = {
		[NET_V_ALLOW] = "allowed",
		[NET_V_OPERATOR] = "operator",
		[NET_V_RULE] = "rule",
		[NET_V_PORT] = "port",
		[NET_V_CLOSED] = "closed",
		[NET_V_DEFAULT] = "default",
	};

	static_assert(ARRAY_LEN(names) == NET_V_COUNT, "a name for each verdict");
	return names[v];
}

enum net_verdict policy_name(const struct policy *p, const struct net_world *w, const char *normal)
{
	bool opened = false;

	for (uint32_t i = 0; i < w->nrules; i++) {
		if (!net_rule_name(&w->rules[i], normal))
			continue;
		if (!w->rules[i].allow)
			return NET_V_OPERATOR;
		opened = true;
	}
	if (opened || !p->given)
		return NET_V_ALLOW;
	for (uint32_t i = 0; i < p->n; i++)
		if (net_rule_name(&p->rules[i], normal))
			return p->rules[i].allow ? NET_V_ALLOW : NET_V_RULE;
	return p->allow_default ? NET_V_ALLOW : NET_V_DEFAULT;
}

/* The closed place that the address is in: its kind (NET_PUBLIC: none), and the prefix in which a rule must lie to open it. */
static enum net_kind closed_by(
	const struct net_world *w, const struct net_addr *a, struct net_prefix *place)
{
	enum net_kind k = net_kind_of(a, place);

	if ((w->nhost && bsearch(a, w->host, w->nhost, sizeof(*a), by_bytes)) ||
		(w->host_unknown && k == NET_PUBLIC)) {
		*place = (struct net_prefix){.addr = *a, .bits = 128};
		return NET_HOST_OWN;
	}
	return k;
}

static bool rule_address(const struct net_rule *r, const struct net_addr *a)
{
	return r->what == NET_T_ANY || (r->what == NET_T_PREFIX && net_prefix_has(&r->prefix, a));
}

static bool denied_by(
	const struct net_rule *r, uint32_t n, const struct net_addr *a, bool tcp, uint16_t port)
{
	for (uint32_t i = 0; i < n; i++)
		if (!r[i].allow && rule_address(&r[i], a) && net_rule_port(&r[i], tcp, port))
			return true;
	return false;
}

/* What the allow rules say about an address. A rule opens a closed place only if it lies inside: 0.0.0.0/0 does not open 10.0.0.0/8, and
 * 10.1.0.0/16 opens that part of it. */
struct allowed {
	bool open; /* a rule allows the address */
	bool into; /* a rule opens the closed place that the address is in */
};

static struct allowed allowed_by(const struct net_rule *r, uint32_t n, const struct net_addr *a,
	const struct net_prefix *place, bool any_port, bool tcp, uint16_t port)
{
	struct allowed s = {false, false};

	for (uint32_t i = 0; i < n; i++) {
		if (!r[i].allow || !rule_address(&r[i], a))
			continue;
		if (!any_port && !net_rule_port(&r[i], tcp, port))
			continue;
		s.open = true;
		if (r[i].what == NET_T_PREFIX && net_prefix_covers(place, &r[i].prefix))
			s.into = true;
	}
	return s;
}

static bool never_opened(enum net_kind k)
{
	return k == NET_UNSPECIFIED || k == NET_MULTICAST || k == NET_BROADCAST;
}

/* Is the address in a closed place that no rule opens for this sandbox? */
static bool place_closed(const struct policy *p, const struct net_world *w,
	const struct net_addr *a, bool any_port, bool tcp, uint16_t port)
{
	struct net_prefix place;
	enum net_kind k = closed_by(w, a, &place);

	if (k == NET_PUBLIC)
		return false;
	if (never_opened(k))
		return true;
	if (allowed_by(w->rules, w->nrules, a, &place, any_port, tcp, port).into)
		return false;
	if (w->fixed_kinds & (1u << k))
		return true;
	return !allowed_by(p->rules, p->n, a, &place, any_port, tcp, port).into;
}

static const char *learned_name(const struct learned *l, const struct net_addr *a, uint64_t now_ns)
{
	for (uint32_t i = 0; l && i < l->n; i++)
		if (net_addr_equal(&l->entry[i].addr, a) && l->entry[i].until_ns > now_ns)
			return l->entry[i].name;
	return NULL;
}

/* Deny lists and closed places, for one address. */
static enum net_verdict refused(const struct policy *p, const struct net_world *w,
	const struct net_addr *a, bool tcp, uint16_t port)
{
	if (denied_by(w->rules, w->nrules, a, tcp, port))
		return NET_V_OPERATOR;
	if (denied_by(p->rules, p->n, a, tcp, port))
		return NET_V_RULE;
	return place_closed(p, w, a, false, tcp, port) ? NET_V_CLOSED : NET_V_ALLOW;
}

enum net_verdict policy_address(const struct policy *p, const struct net_world *w,
	const struct learned *l, const struct net_addr *a, bool tcp, uint16_t port, uint64_t now_ns,
	const char **name)
{
	struct net_addr carried[NET_CARRIED_MAX];
	unsigned int n = net_addr_carried(a, carried);
	enum net_verdict v = refused(p, w, a, tcp, port);
	struct net_prefix self = {.addr = *a, .bits = 128};

	*name = NULL;
	for (unsigned int i = 0; v == NET_V_ALLOW && i < n; i++)
		v = refused(p, w, &carried[i], tcp, port);
	if (v != NET_V_ALLOW)
		return v;
	if (port == DNS_OVER_TLS_PORT)
		return NET_V_PORT;
	if (!p->given || p->allow_default)
		return NET_V_ALLOW;
	if (allowed_by(w->rules, w->nrules, a, &self, false, tcp, port).open ||
		allowed_by(p->rules, p->n, a, &self, false, tcp, port).open)
		return NET_V_ALLOW;
	*name = learned_name(l, a, now_ns);
	return *name ? NET_V_ALLOW : NET_V_DEFAULT;
}

bool policy_answer(const struct policy *p, const struct net_world *w, const struct net_addr *a)
{
	struct net_addr carried[NET_CARRIED_MAX];
	unsigned int n = net_addr_carried(a, carried);

	if (place_closed(p, w, a, true, true, 0))
		return false;
	for (unsigned int i = 0; i < n; i++)
		if (place_closed(p, w, &carried[i], true, true, 0))
			return false;
	return true;
}

static void learned_drop(struct learned *l, uint32_t i)
{
	free(l->entry[i].name);
	l->entry[i] = l->entry[--l->n];
}

static uint32_t learned_first_to_end(const struct learned *l)
{
	uint32_t first = 0;

	for (uint32_t i = 1; i < l->n; i++)
		if (l->entry[i].until_ns < l->entry[first].until_ns)
			first = i;
	return first;
}

/* Room for one more: false if there is no memory. */
static bool learned_room(struct learned *l, uint64_t now_ns)
{
	struct learned_entry *more;

	for (uint32_t i = l->n; i-- > 0;)
		if (l->entry[i].until_ns <= now_ns)
			learned_drop(l, i);
	if (l->n == LEARNED_MAX)
		learned_drop(l, learned_first_to_end(l));
	if (l->n & (l->n - 1)) /* grown by doubling: room is there up to the next power of two */
		return true;
	more = realloc(l->entry, (l->n ? 2 * (size_t)l->n : 1) * sizeof(*more));
	if (more)
		l->entry = more;
	return more;
}

int learned_add(struct learned *l, const struct net_addr *a, const char *name, uint32_t ttl_s,
	uint64_t now_ns)
{
	uint64_t until = now_ns + MIN(MAX(ttl_s, LEARNED_MIN_S), LEARNED_MAX_S) * 1000000000ull;
	char *copy;

	for (uint32_t i = 0; i < l->n; i++) {
		if (!net_addr_equal(&l->entry[i].addr, a) || strcmp(l->entry[i].name, name) != 0)
			continue;
		l->entry[i].until_ns = MAX(l->entry[i].until_ns, until);
		return 0;
	}
	copy = strdup(name);
	if (!copy || !learned_room(l, now_ns)) {
		free(copy);
		return -ENOMEM;
	}
	l->entry[l->n++] = (struct learned_entry){.addr = *a, .until_ns = until, .name = copy};
	return 0;
}

void learned_review(struct learned *l, const struct policy *p, const struct net_world *w)
{
	for (uint32_t i = l->n; i-- > 0;)
		if (policy_name(p, w, l->entry[i].name) != NET_V_ALLOW)
			learned_drop(l, i);
}

void learned_fini(struct learned *l)
{
	while (l->n)
		learned_drop(l, l->n - 1);
	free(l->entry);
	*l = (struct learned){0};
}
