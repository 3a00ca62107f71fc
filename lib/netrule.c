/* SPDX-License-Identifier: Apache-2.0
 *
 * netrule.c: see netrule.h. Any process. Hostile: the target, the ports, the wire form.
 */
#include "lib/netrule.h"

#include <stdio.h>
#include <string.h>

#define LABEL_MAX 63

static bool name_byte(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

bool net_name_normal(const char *s, size_t n, char out[NET_NAME_MAX])
{
	char to[NET_NAME_MAX];
	size_t label = 0;

	if (n && s[n - 1] == '.')
		n--;
	if (n == 0 || n >= NET_NAME_MAX)
		return false;
	for (size_t i = 0; i < n; i++) {
		char c = s[i] >= 'A' && s[i] <= 'Z' ? (char)(s[i] - 'A' + 'a') : s[i];

		if (c == '.') {
			if (label == 0)
				return false;
			label = 0;
		} else if (!name_byte(c) || ++label > LABEL_MAX) {
			return false;
		}
		to[i] = c;
	}
	if (label == 0)
		return false;
	memcpy(out, to, n);
	out[n] = 0;
	return true;
}

/* "1.2.3" or "10.0.0.0/33" is a mistyped address, never a name: no top-level domain is a number. */
static bool looks_like_address(const char *s) /* not empty */
{
	size_t n = strlen(s), digits = 0;

	if (strchr(s, '/') || strchr(s, ':'))
		return true;
	n -= s[n - 1] == '.';
	while (digits < n && s[n - 1 - digits] >= '0' && s[n - 1 - digits] <= '9')
		digits++;
	return digits && (digits == n || s[n - 1 - digits] == '.');
}

int net_rule_target(const char *target, struct net_rule *r, struct err *e)
{
	size_t n = strlen(target);
	bool suffix = n > 2 && target[0] == '*' && target[1] == '.';

	if (n == 0) {
		r->what = NET_T_ANY;
		return 0;
	}
	if (net_prefix_parse(target, &r->prefix)) {
		r->what = NET_T_PREFIX;
		return 0;
	}
	if (looks_like_address(target))
		return err_plain(e, EINVAL,
			"rule target \"%.80s\" is not an address or a prefix: write 192.0.2.1, "
			"192.0.2.0/24 or an IPv6 form",
			target);
	if (!net_name_normal(target + 2 * suffix, n - 2 * suffix, r->name))
		return err_plain(e, EINVAL,
			"rule target \"%.80s\" is not a host name, *.NAME, an address or a prefix",
			target);
	r->what = suffix ? NET_T_SUFFIX : NET_T_NAME;
	return 0;
}

static int by_number(const void *a, const void *b)
{
	const uint16_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

int net_rule_ports(const uint16_t *ports, size_t n, struct net_rule *r, struct err *e)
{
	_cleanup_free_ uint16_t *copy = NULL;

	if (n == 0) {
		if (r->what == NET_T_ANY)
			return err_plain(e, EINVAL, "a rule needs a target, ports, or both");
		return 0;
	}
	if (n > NET_PORTS_MAX)
		return err_plain(e, EINVAL, "a rule has %zu ports: at most %u", n, NET_PORTS_MAX);
	if (r->what == NET_T_NAME || r->what == NET_T_SUFFIX)
		return err_plain(e, EINVAL,
			"the rule for \"%.80s\" has ports: a name cannot have ports, an address "
			"can",
			r->name);
	copy = calloc(n, sizeof(*copy));
	if (!copy)
		return err_set(e, ENOMEM, "ports of a rule");
	memcpy(copy, ports, n * sizeof(*copy));
	qsort(copy, n, sizeof(*copy), by_number);
	for (size_t i = 0; i < n; i++)
		if (copy[i] == 0 || (i && copy[i] == copy[i - 1]))
			return err_plain(e, EINVAL,
				"rule port %u is %s: ports are 1 to 65535, each once", copy[i],
				copy[i] ? "given twice" : "not a port");
	r->ports = take_ptr(copy);
	r->nports = (uint16_t)n;
	return 0;
}

void net_rule_fini(struct net_rule *r)
{
	free(r->ports);
	r->ports = NULL;
	r->nports = 0;
}

bool net_rule_port(const struct net_rule *r, bool tcp, uint16_t port)
{
	if (!r->nports)
		return true;
	/* A rule that denies ports denies UDP's, too: HTTP/3 is the same service. One that allows ports allows TCP's only. */
	return (tcp || !r->allow) && bsearch(&port, r->ports, r->nports, sizeof(port), by_number);
}

bool net_rule_name(const struct net_rule *r, const char *normal)
{
	size_t n, m;

	if (r->what == NET_T_NAME)
		return strcmp(r->name, normal) == 0;
	if (r->what != NET_T_SUFFIX)
		return false;
	n = strlen(normal);
	m = strlen(r->name);
	return n > m + 1 && normal[n - m - 1] == '.' && strcmp(normal + n - m, r->name) == 0;
}

void net_rule_put(struct buf *b, bool allow, const char *target, const uint16_t *ports, uint16_t n)
{
	buf_u8(b, allow);
	buf_str(b, target);
	buf_u16(b, n);
	for (uint16_t i = 0; i < n; i++)
		buf_u16(b, ports[i]);
}

int net_rule_get(struct cur *c, struct net_rule *r, struct err *e)
{
	uint16_t ports[NET_PORTS_MAX], n;
	char target[NET_NAME_MAX + 4];
	uint8_t allow = cur_u8(c);
	int rc;

	*r = (struct net_rule){.allow = allow == 1};
	if (!cur_str(c, target, sizeof(target)) || allow > 1)
		return err_plain(e, EBADMSG, "a rule is cut off or its target is too long");
	n = cur_u16(c);
	if (n > NET_PORTS_MAX)
		return err_plain(e, EINVAL, "a rule has %u ports: at most %u", n, NET_PORTS_MAX);
	for (uint16_t i = 0; i < n; i++)
		ports[i] = cur_u16(c);
	if (c->bad)
		return err_plain(e, EBADMSG, "a rule is cut off");
	rc = net_rule_target(target, r, e);
	return rc < 0 ? rc : net_rule_ports(ports, n, r, e);
}
