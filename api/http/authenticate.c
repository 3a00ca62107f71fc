/* SPDX-License-Identifier: Apache-2.0
 *
 * authenticate.c: see authenticate.h. mayflyd's loop. Keys are compared in constant time; the length of a key is no secret.
 */
#include "api/http/authenticate.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "api/core/budgets.h"
#include "api/core/daemon.h"

#define BEARER "Bearer "

static const struct principal operator_by_default = {
	.role = ROLE_OPERATOR, .name = "operator", .namespace = OPERATOR_NAMESPACE};

/* Compares with all keys, so that the time does not tell which one matched. */
static const struct principal *principal_of_key(const struct config *c, const char *key)
{
	const struct principal *found = secret_equal(key, c->api_key) ? &operator_by_default : NULL;

	for (unsigned int i = 0; i < c->nkeys; i++)
		if (secret_equal(key, c->keys[i].key))
			found = &c->keys[i].who;
	return found;
}

static const struct principal *principal_of_uid(const struct config *c, uid_t uid)
{
	for (unsigned int i = 0; i < c->nkeys; i++)
		if (c->keys[i].uid >= 0 && (uid_t)c->keys[i].uid == uid)
			return &c->keys[i].who;
	return uid == 0 || uid == geteuid() ? &operator_by_default : NULL;
}

static const char *key_of(struct http_req *r, bool bearer)
{
	const char *key = http_header(r, "OPEN-SANDBOX-API-KEY"),
		   *auth = bearer ? http_header(r, "Authorization") : NULL;

	if (key && *key)
		return key;
	if (!auth || strncasecmp(auth, BEARER, strlen(BEARER)) != 0)
		return NULL;
	auth += strlen(BEARER);
	auth += strspn(auth, " ");
	return *auth ? auth : NULL;
}

bool holds_our_key(const struct http_req *r, const char *authorization)
{
	const struct daemon *d = r->app;
	const char *word = strchr(authorization, ' ');

	if (!d)
		return false;
	if (word)
		word += strspn(word, " ");
	return principal_of_key(&d->cfg, authorization) ||
	       (word && principal_of_key(&d->cfg, word));
}

const struct principal *principal_shown(const struct http_req *r)
{
	const struct daemon *d = r->app;
	const char *key = http_header(r, "OPEN-SANDBOX-API-KEY");
	uid_t uid;

	if (key && *key)
		return principal_of_key(&d->cfg, key);
	return http_peer_uid(r, &uid) ? principal_of_uid(&d->cfg, uid) : NULL;
}

static void charge_principal(struct http_req *r)
{
	const struct daemon *d = r->app;
	struct owner_budget *b;
	char owner[OWNER_MAX];

	principal_owner(&r->principal, owner);
	b = budget_of(d->budgets, &d->cfg, owner);
	r->account = &b->memory;
	r->connections = &b->connections;
}

bool authenticate(struct http_req *r, bool bearer)
{
	const struct daemon *d = r->app;
	const char *key = key_of(r, bearer);
	const struct principal *p = NULL;
	uid_t uid;

	if (http_peer_uid(r, &uid) && !key)
		p = principal_of_uid(&d->cfg, uid);
	else if (!conf_has_key(&d->cfg) && !conf_has_tenants(&d->cfg) && !http_peer_uid(r, &uid))
		p = &operator_by_default;
	else if (key)
		p = principal_of_key(&d->cfg, key);
	if (p) {
		r->principal = *p;
		charge_principal(r);
		return true;
	}
	if (key)
		http_error(r, 401, "INVALID_API_KEY",
			"Authentication credentials are invalid. Check the API key in the "
			"OPEN-SANDBOX-API-KEY header.");
	else
		http_error(r, 401, "MISSING_API_KEY",
			"Authentication credentials are missing. Provide a valid API key in the "
			"OPEN-SANDBOX-API-KEY header.");
	return false;
}

/* ---- without a key */

/* Do both name the same host? Ports are ignored. */
static bool host_is(const char *host, const char *name)
{
	size_t n = strcspn(name, ":"), m = strcspn(host, ":");

	return n && n == m && !strncasecmp(host, name, n);
}

/* Does it name this machine? An address in 127.0.0.0/8 has four numbers: "127.evil.example" is a host name. */
static bool host_is_loopback(const char *host)
{
	unsigned int a, b, c;
	int n = 0;

	if (!strncmp(host, "[::1]", 5) && (!host[5] || host[5] == ':'))
		return true;
	if (sscanf(host, "127.%3u.%3u.%3u%n", &a, &b, &c, &n) == 3)
		return !host[n] || host[n] == ':';
	n = (int)strcspn(host, ":");
	return host_is(host, "localhost") ||
	       (n > 10 && !strncasecmp(host + n - 10, ".localhost", 10));
}

bool request_is_local(struct http_req *r, bool origin_too)
{
	const struct daemon *d = r->app;
	const char *host = http_header(r, "Host");
	uid_t uid;

	if (conf_has_key(&d->cfg) || http_peer_uid(r, &uid))
		return true;
	if (host && !host_is_loopback(host) && !host_is(host, d->cfg.host) &&
		!host_is(host, d->cfg.eip)) {
		http_error(r, 403, "FORBIDDEN_HOST",
			"This server has no API key, so it answers only to its own host. Ask it as "
			"localhost, or set server.api_key.");
		return false;
	}
	/* The pages of sandboxes have this server's own origin (/ID/PORT/), so no origin can be trusted, not even our own. */
	if (origin_too && http_header(r, "Origin")) {
		http_error(r, 403, "FORBIDDEN_ORIGIN",
			"This server has no API key, so it takes nothing from web pages. Set "
			"server.api_key.");
		return false;
	}
	return true;
}
