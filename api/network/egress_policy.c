/* SPDX-License-Identifier: Apache-2.0
 *
 * egress_policy.c: see egress_policy.h. mayflyd's loop. Hostile: the documents. Each rule is read with lib/netrule, which the broker uses,
 * too: what is accepted here is understood there.
 */
#include "api/network/egress_policy.h"

#include <cjson/cJSON.h>
#include <string.h>
#include <strings.h>

#include "lib/netrule.h"

#define REMOVE_MAX 256  /* each is compared with each rule */
#define PORTS_MAX  8192 /* of all rules of a policy: they take memory in every copy */

static const cJSON *member(const cJSON *o, const char *name)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);

	return v && !cJSON_IsNull(v) ? v : NULL;
}

/* allow or deny; missing: deny. -1: anything else. */
static int action_of(const cJSON *v)
{
	if (!v)
		return 0;
	if (!cJSON_IsString(v))
		return -1;
	return !strcmp(v->valuestring, "allow") ? 1 : !strcmp(v->valuestring, "deny") ? 0 : -1;
}

static int ports_of(const cJSON *v, uint16_t *to, size_t *n, struct err *e)
{
	const cJSON *p;

	*n = 0;
	if (v && !cJSON_IsArray(v))
		return err_plain(e, EINVAL, "ports is a list of numbers");
	cJSON_ArrayForEach (p, v) {
		if (*n == NET_PORTS_MAX)
			return err_plain(e, EINVAL, "a rule has more than %u ports", NET_PORTS_MAX);
		if (!cJSON_IsNumber(p) || p->valuedouble != (double)p->valueint ||
			p->valueint < 1 || p->valueint > 65535)
			return err_plain(e, EINVAL, "a port is a number from 1 to 65535");
		to[(*n)++] = (uint16_t)p->valueint;
	}
	return 0;
}

static cJSON *rule_json(bool allow, const char *target, const uint16_t *ports, size_t n)
{
	cJSON *o = cJSON_CreateObject(), *list = NULL;

	cJSON_AddStringToObject(o, "action", allow ? "allow" : "deny");
	if (*target)
		cJSON_AddStringToObject(o, "target", target);
	if (n)
		list = cJSON_AddArrayToObject(o, "ports");
	for (size_t i = 0; list && i < n; i++)
		cJSON_AddItemToArray(list, cJSON_CreateNumber(ports[i]));
	return o;
}

/* One rule of a client, checked, in the form that is kept. */
static int rule_read(const cJSON *v, cJSON **out, struct err *e)
{
	const cJSON *target = member(v, "target");
	int action = action_of(member(v, "action")), rc;
	_cleanup_(net_rule_fini) struct net_rule r = {.allow = action == 1};
	uint16_t ports[NET_PORTS_MAX];
	size_t n;

	if (!cJSON_IsObject(v))
		return err_plain(e, EINVAL, "a rule is an object with action and target");
	if (action < 0)
		return err_plain(e, EINVAL, "the action of a rule is allow or deny");
	if (target && (!cJSON_IsString(target) || !*target->valuestring))
		return err_plain(e, EINVAL, "the target of a rule is empty or not a text");
	if (target && strlen(target->valuestring) > NET_NAME_MAX)
		return err_plain(
			e, EINVAL, "rule target \"%.80s...\" is too long", target->valuestring);
	rc = ports_of(member(v, "ports"), ports, &n, e);
	if (rc == 0)
		rc = net_rule_target(target ? target->valuestring : "", &r, e);
	if (rc == 0)
		rc = net_rule_ports(ports, n, &r, e);
	if (rc == 0)
		*out = rule_json(r.allow, target ? target->valuestring : "", r.ports, r.nports);
	return rc;
}

static cJSON *policy_new(bool allow)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "defaultAction", allow ? "allow" : "deny");
	cJSON_AddArrayToObject(o, "egress");
	return o;
}

static size_t ports_in(const cJSON *rule)
{
	return (size_t)cJSON_GetArraySize(member(rule, "ports"));
}

static int too_many_ports(struct err *e)
{
	return err_plain(
		e, E2BIG, "the rules of a policy have more than %d ports together", PORTS_MAX);
}

static int rules_read(const cJSON *list, cJSON *to, struct err *e)
{
	const cJSON *v;
	size_t n = 0, ports = 0;

	cJSON_ArrayForEach (v, list) {
		cJSON *r = NULL;
		int rc = ++n > NET_RULES_MAX
				 ? err_plain(e, E2BIG, "a policy has more than %u rules",
					   NET_RULES_MAX)
				 : rule_read(v, &r, e);

		if (rc < 0)
			return rc == -E2BIG ? rc : err_wrap(e, "rule %zu", n);
		cJSON_AddItemToArray(to, r);
		ports += ports_in(r);
		if (ports > PORTS_MAX)
			return too_many_ports(e);
	}
	return 0;
}

int egress_policy_read(const cJSON *v, cJSON **out, struct err *e)
{
	const cJSON *egress = member(v, "egress"), *dflt = member(v, "defaultAction");
	int allow = action_of(dflt), rc;
	cJSON *p;

	if (v && !cJSON_IsNull(v) && !cJSON_IsObject(v))
		return err_plain(e, EINVAL, "a policy is an object with defaultAction and egress");
	if (allow < 0)
		return err_plain(e, EINVAL, "defaultAction is allow or deny");
	if (egress && !cJSON_IsArray(egress))
		return err_plain(e, EINVAL, "egress is a list of rules");
	p = policy_new(allow == 1);
	rc = rules_read(egress, cJSON_GetObjectItemCaseSensitive(p, "egress"), e);
	if (rc < 0)
		cJSON_Delete(p);
	else
		*out = p;
	return rc;
}

static const char *target_of(const cJSON *rule)
{
	const cJSON *t = member(rule, "target");

	return t ? t->valuestring : "";
}

/* A rule and its key. Rules with the same key are the same: it has the target in lower case, and the ports, which are sorted. */
struct keyed {
	char *key;
	const cJSON *rule;
	size_t at;
	bool again; /* one before it is the same */
};

static char *rule_key(const cJSON *rule)
{
	const cJSON *port;
	struct buf b;
	char *key;

	buf_init(&b, KIB(8));
	buf_printf(&b, "%s", target_of(rule));
	for (size_t i = 0; i < b.len; i++)
		if (b.p[i] >= 'A' && b.p[i] <= 'Z')
			b.p[i] = (uint8_t)(b.p[i] - 'A' + 'a');
	cJSON_ArrayForEach (port, member(rule, "ports"))
		buf_printf(&b, ",%d", port->valueint);
	key = b.bad ? NULL : strdup(buf_cstr(&b));
	buf_fini(&b);
	return key;
}

static int by_key(const void *a, const void *b)
{
	const struct keyed *x = a, *y = b;
	int c = strcmp(x->key, y->key);

	return c ? c : (x->at > y->at) - (x->at < y->at);
}

static int by_place(const void *a, const void *b)
{
	const struct keyed *x = a, *y = b;

	return (x->at > y->at) - (x->at < y->at);
}

static bool keyed_add(struct keyed *k, size_t *n, const cJSON *list)
{
	const cJSON *v;

	cJSON_ArrayForEach (v, list) {
		k[*n] = (struct keyed){.key = rule_key(v), .rule = v, .at = *n};
		if (!k[(*n)++].key)
			return false;
	}
	return true;
}

/* Joins two lists. Of rules that are the same the first one stays. There may be thousands, so they are sorted instead of compared each with each. */
static int rules_join(const cJSON *first, const cJSON *second, cJSON *to, struct err *e)
{
	size_t max = (size_t)cJSON_GetArraySize(first) + (size_t)cJSON_GetArraySize(second), n = 0,
	       kept = 0, ports = 0;
	_cleanup_free_ struct keyed *k = calloc(max + 1, sizeof(*k));
	bool ok = k && keyed_add(k, &n, first) && keyed_add(k, &n, second);

	if (ok)
		qsort(k, n, sizeof(*k), by_key);
	for (size_t i = 1; ok && i < n; i++)
		k[i].again = strcmp(k[i].key, k[i - 1].key) == 0;
	if (ok)
		qsort(k, n, sizeof(*k), by_place);
	for (size_t i = 0; i < n; i++) {
		cJSON *copy;

		free(k[i].key);
		if (!ok || k[i].again)
			continue;
		ports += ports_in(k[i].rule);
		if (++kept > NET_RULES_MAX || ports > PORTS_MAX)
			continue;
		/* a rule that is lost for want of memory could be the one that denies */
		copy = cJSON_Duplicate(k[i].rule, true);
		ok = copy && cJSON_AddItemToArray(to, copy);
	}
	if (!ok)
		return err_set(e, ENOMEM, "policy");
	if (ports > PORTS_MAX)
		return too_many_ports(e);
	return kept > NET_RULES_MAX
		       ? err_plain(e, E2BIG, "a policy has more than %u rules", NET_RULES_MAX)
		       : 0;
}

static bool default_allows(const cJSON *p)
{
	return !p || action_of(member(p, "defaultAction")) == 1;
}

int egress_policy_patch(const cJSON *now, const cJSON *rules, cJSON **out, struct err *e)
{
	cJSON *read = cJSON_CreateArray(), *p = policy_new(default_allows(now)),
	      *to = cJSON_GetObjectItemCaseSensitive(p, "egress");
	int rc = cJSON_IsArray(rules) && rules->child
			 ? rules_read(rules, read, e)
			 : err_plain(e, EINVAL, "a patch is a list of rules, and not empty");

	if (rc == 0)
		rc = rules_join(read, member(now, "egress"), to, e);
	cJSON_Delete(read);
	if (rc < 0)
		cJSON_Delete(p);
	else
		*out = p;
	return rc;
}

static bool is_named(const cJSON *targets, const cJSON *rule)
{
	const char *target = target_of(rule);
	const cJSON *t;

	cJSON_ArrayForEach (t, targets)
		if (strcasecmp(t->valuestring, target) == 0)
			return true;
	return false;
}

int egress_policy_remove(
	const cJSON *now, const cJSON *targets, cJSON **out, bool *found, struct err *e)
{
	const cJSON *v;
	cJSON *p, *to;

	if (!cJSON_IsArray(targets) || !targets->child)
		return err_plain(
			e, EINVAL, "what is to be removed is a list of targets, and not empty");
	if (cJSON_GetArraySize(targets) > REMOVE_MAX)
		return err_plain(e, E2BIG, "more than %d targets in one request", REMOVE_MAX);
	cJSON_ArrayForEach (v, targets)
		if (!cJSON_IsString(v))
			return err_plain(e, EINVAL, "a target is a text");
	p = policy_new(default_allows(now));
	to = cJSON_GetObjectItemCaseSensitive(p, "egress");
	*found = false;
	cJSON_ArrayForEach (v, member(now, "egress")) {
		if (is_named(targets, v))
			*found = true;
		else
			cJSON_AddItemToArray(to, cJSON_Duplicate(v, true));
	}
	*out = p;
	return 0;
}

const char *egress_policy_mode(const cJSON *p)
{
	const cJSON *egress = member(p, "egress");

	if (egress && egress->child)
		return "enforcing";
	return default_allows(p) ? "allow_all" : "deny_all";
}

void egress_policy_wire(const cJSON *p, struct buf *b)
{
	const cJSON *list = member(p, "egress"), *v, *port;

	buf_u8(b, p != NULL);
	buf_u8(b, default_allows(p));
	buf_u32(b, (uint32_t)cJSON_GetArraySize(list));
	cJSON_ArrayForEach (v, list) {
		uint16_t ports[NET_PORTS_MAX], n = 0;

		cJSON_ArrayForEach (port, member(v, "ports"))
			if (n < NET_PORTS_MAX)
				ports[n++] = (uint16_t)port->valueint;
		net_rule_put(b, action_of(member(v, "action")) == 1, target_of(v), ports, n);
	}
}
