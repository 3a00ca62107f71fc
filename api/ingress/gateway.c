/* SPDX-License-Identifier: Apache-2.0
 *
 * gateway.c: see gateway.h.
 */
#include "api/ingress/gateway.h"

#include <stdio.h>
#include <string.h>

#include "api/core/daemon.h"
#include "api/ingress/guesses.h"
#include "api/ingress/sign.h"
#include "api/sandbox/access.h"
#include "api/sandbox/sandbox.h"
#include "lib/log.h"

#define INGRESS_TO     "OpenSandbox-Ingress-To"
#define INGRESS_TO_OLD "OPEN-SANDBOX-INGRESS"

struct ingress {
	struct sign_keys keys;
	struct guesses guesses;
};

/* ---- keys */

static int keys_of(const struct config *c, struct sign_keys *k, struct err *e)
{
	const char *env = getenv("OPENSANDBOX_SECURE_ACCESS_KEYS"),
		   *text = *c->ingress_keys ? c->ingress_keys : (env ? env : "");

	if (sign_keys_parse(text, k, e) < 0)
		return err_wrap(e, "ingress.secure_access.keys");
	if (*c->ingress_active_key && !sign_keys_activate(k, c->ingress_active_key))
		return err_plain(e, EINVAL,
			"ingress.secure_access.active_key: there is no key %s in "
			"ingress.secure_access.keys",
			c->ingress_active_key);
	return 0;
}

int gateway_check(const struct config *c, struct err *e)
{
	struct sign_keys k;

	return keys_of(c, &k, e);
}

int gateway_configure(struct daemon *d)
{
	struct err e;

	if (!d->ingress) {
		d->ingress = calloc(1, sizeof(*d->ingress));
		if (!d->ingress)
			return -ENOMEM;
		guesses_init(&d->ingress->guesses);
	}
	return keys_of(&d->cfg, &d->ingress->keys, &e);
}

/* ---- which sandbox */

/* "*.example.org:8443" -> "example.org" */
static void domain_of(const struct config *c, char to[static 192])
{
	const char *p = c->ingress_address;

	p += strncmp(p, "*.", 2) ? 0 : 2;
	snprintf(to, 192, "%.*s", (int)strcspn(p, ":"), p);
}

/* Upper and lower case are the same in host names. -ENOENT: the host is not below our domain. */
static int by_host(const struct config *c, const char *host, struct ingress_address *a)
{
	size_t name = strcspn(host, ":"), port = host[name] ? name + 1 : name;
	char domain[192], low[300];
	int rc;

	if (strlen(host) >= sizeof(low) || host[port + strspn(host + port, "0123456789")])
		return -EINVAL;
	for (size_t i = 0; i <= strlen(host); i++)
		low[i] = host[i] >= 'A' && host[i] <= 'Z' ? (char)(host[i] | 0x20) : host[i];
	domain_of(c, domain);
	rc = ingress_parse_host(low, domain, a);
	/* Whatever our domain is, names below localhost are ours, too: browsers resolve them to their own machine. */
	return rc == -ENOENT ? ingress_parse_host(low, "localhost", a) : rc;
}

struct named {
	struct ingress_address a;
	const char *rest; /* what the sandbox is asked for */
	bool by_path, by_host;
};

static bool mode_is(const struct config *c, const char *mode)
{
	return !strcmp(c->ingress_route, mode);
}

/* 0, or -errno: no sandbox is named, or in a malformed way. */
static int find_name(const struct http_req *r, const struct config *c, struct named *n)
{
	const char *to = http_header(r, INGRESS_TO), *host = http_header(r, "Host");
	int rc = -ENOENT;

	*n = (struct named){.rest = r->path};
	to = to ? to : http_header(r, INGRESS_TO_OLD);
	if (to && !mode_is(c, "uri"))
		return ingress_parse_label(to, strcspn(to, "."), &n->a);
	if (host)
		rc = by_host(c, host, &n->a);
	n->by_host = rc == 0;
	if (rc == -ENOENT && mode_is(c, "uri")) {
		n->by_path = true;
		rc = ingress_parse_path(r->path, &n->a, &n->rest);
	}
	return rc;
}

/* ---- what the sandbox is shown */

/* The URL of a page without its signature: its host may be a signed label, or its path a signed route. NULL: show none. */
static const char *unsigned_url(struct http_req *r, const struct config *c, const char *url)
{
	const char *at = url ? strstr(url, "://") : NULL, *host, *after;
	_cleanup_free_ char *name = NULL;
	struct ingress_address a;

	if (!at)
		return url && !strcmp(url, "null") ? "null" : NULL;
	host = at + 3;
	after = host + strcspn(host, "/?#");
	name = strndup(host, (size_t)(after - host));
	if (!name)
		return NULL;
	/* where routes are paths, the page's path may be signed: show its origin only */
	if (by_host(c, name, &a) < 0)
		return mode_is(c, "uri") ? http_printf(r, "%.*s%s", (int)(after - url), url,
						   *after ? "/" : "")
					 : url;
	return http_printf(r, "%.*s%s-%u%s%s", (int)(host - url), url, a.sandbox, a.port,
		name + strcspn(name, "."), after);
}

static bool show(struct http_req *r, const struct config *c, const struct named *n)
{
	const char *host = http_header(r, "Host"), *path = r->path;

	r->shown_origin = unsigned_url(r, c, http_header(r, "Origin"));
	r->shown_referer = unsigned_url(r, c, http_header(r, "Referer"));
	r->own_origin = n->by_host;
	if (n->by_host)
		r->shown_host = http_printf(
			r, "%s-%u%s", n->a.sandbox, n->a.port, host + strcspn(host, "."));
	/* if the path ends with the port or the signature, rest is a "/" outside of the path */
	if (n->by_path && n->rest >= path && n->rest <= path + strlen(path))
		r->prefix = http_strdup(r, path, (size_t)(n->rest - path));
	else if (n->by_path)
		r->prefix = path;
	r->log_prefix = n->by_path ? http_printf(r, "/%s/%u", n->a.sandbox, n->a.port) : r->prefix;
	r->path = n->rest;
	return r->prefix && r->log_prefix && (r->shown_host || !n->by_host);
}

/* ---- who may */

static bool deny(struct http_req *r, int status, const char *why)
{
	http_error(r, status, "MISSING_OR_INVALID_SECURE_ACCESS", "%s", why);
	return false;
}

static bool signature_fits(struct http_req *r, const struct ingress_address *a)
{
	const struct daemon *d = r->app;
	struct ingress *g = d->ingress;
	char from[64] = "";
	int rc;

	http_client_address(r, d->cfg.ingress_behind_proxy, from, sizeof(from));
	if (!guesses_left(&g->guesses, a->sandbox, from, mono_ns())) {
		http_add_header(r, "Retry-After", "1");
		return deny(r, 429, "too many wrong signatures");
	}
	rc = sign_check(&g->keys, a, wall_ns() / 1000000000u);
	if (rc == 0) {
		guesses_right(&g->guesses, a->sandbox, from);
		return true;
	}
	if (rc == -ENOKEY)
		return deny(r, 503, "this gateway has no keys to check signatures with");
	if (rc == -EACCES) {
		guesses_wrong(&g->guesses, a->sandbox, from, mono_ns());
		log_limited(LOG_WARN, "ingress: a wrong signature for sandbox %s from %s",
			a->sandbox, from);
	}
	return deny(r, 401, rc == -ETIME ? "the route has expired" : "the signature is wrong");
}

/* If the request has a token, the token decides: with a wrong one a signature does not help. */
static bool gateway_admit(struct http_req *r, const struct ingress_address *a)
{
	const char *token = http_header(r, SECURE_ACCESS);

	if (!r->sandbox->spec.secure_access)
		return true;
	if (token)
		return access_token_fits(r->sandbox, token) ||
		       deny(r, 401, "the header " SECURE_ACCESS " is wrong");
	if (!a->is_signed)
		return deny(r, 401, "the header " SECURE_ACCESS " or a signed route is needed");
	return signature_fits(r, a);
}

const struct http_route *gateway_dispatch(struct http_req *r)
{
	const struct daemon *d = r->app;
	struct named n;

	r->gateway = true;
	r->error_text = "OpenSandbox Ingress: ";
	if (find_name(r, &d->cfg, &n) < 0) {
		http_error(
			r, 400, "INVALID_ROUTE", "no sandbox and port are named in this request");
		return NULL;
	}
	if (!n.by_host && http_preflight(r))
		return NULL;
	if (!d->router->sandboxes->enter(r, n.a.sandbox) || !gateway_admit(r, &n.a))
		return NULL;
	/* without secureAccess the third and fourth part of a path belong to the application */
	if (n.by_path && n.a.is_signed && !r->sandbox->spec.secure_access)
		n.rest = ingress_unsigned_rest(r->path);
	if (!show(r, &d->cfg, &n)) {
		http_abort(r);
		return NULL;
	}
	return router_port(r, n.a.port);
}

/* ---- endpoints */

int gateway_endpoint(struct http_req *r, const char *sandbox, uint16_t port, uint64_t expires_s,
	struct ingress_endpoint *out)
{
	const struct daemon *d = r->app;
	const struct config *c = &d->cfg;
	struct ingress_address a = {.port = port, .expires_s = expires_s};
	bool path = mode_is(c, "uri");
	const char *name, *sep = path ? "/" : "-";

	snprintf(a.sandbox, sizeof(a.sandbox), "%s", sandbox);
	if (expires_s) {
		int rc = sign_address(&d->ingress->keys, &a);

		if (rc < 0)
			return rc;
	}
	name = http_printf(r, "%s%s%u%s%s%s%s", sandbox, sep, port, expires_s ? sep : "", a.expires,
		expires_s ? sep : "", a.signature);
	out->header = mode_is(c, "header") ? name : "";
	if (mode_is(c, "header"))
		out->endpoint = c->ingress_address;
	else if (path)
		out->endpoint = http_printf(r, "%s/%s", c->ingress_address, name);
	else
		out->endpoint = http_printf(r, "%s%s", name, c->ingress_address + 1);
	return name && out->endpoint ? 0 : -ENOMEM;
}
