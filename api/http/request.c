/* SPDX-License-Identifier: Apache-2.0
 *
 * request.c: what came with a request: headers, path parameters, query values, and the memory that
 * lives as long as it does. mayflyd. All of it is hostile; nothing here trusts an escape, a length
 * or a name.
 */
#include "api/http/http_int.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

void *http_alloc(struct http_req *pub, size_t n)
{
	struct request *r = request_of(pub);
	struct arena_chunk *c = r->arena;
	void *p;

	if (n > SIZE_MAX / 2)
		return NULL;
	n = ALIGN_UP(n, sizeof(max_align_t));
	if (!c || c->cap - c->used < n) {
		size_t cap = MAX(n, (size_t)2048);

		c = malloc(sizeof(*c) + cap);
		if (!c)
			return NULL;
		*c = (struct arena_chunk){.next = r->arena, .cap = cap};
		r->arena = c;
	}
	p = (char *)c->p + c->used;
	c->used += n;
	memset(p, 0, n);
	return p;
}

void arena_free(struct request *r)
{
	while (r->arena) {
		struct arena_chunk *c = r->arena;

		r->arena = c->next;
		free(c);
	}
}

char *http_strdup(struct http_req *r, const char *s, size_t n)
{
	char *p = http_alloc(r, n + 1);

	if (p && n)
		memcpy(p, s, n);
	return p;
}

char *http_printf(struct http_req *r, const char *fmt, ...)
{
	char small[256], *p;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(small, sizeof(small), fmt, ap);
	va_end(ap);
	if (n < 0)
		return NULL;
	if ((size_t)n < sizeof(small))
		return http_strdup(r, small, (size_t)n);
	p = http_alloc(r, (size_t)n + 1);
	if (!p)
		return NULL;
	va_start(ap, fmt);
	vsnprintf(p, (size_t)n + 1, fmt, ap);
	va_end(ap);
	return p;
}

const char *http_header(const struct http_req *pub, const char *name)
{
	struct request *r = request_of(pub);

	return r->conn ? MHD_lookup_connection_value(r->conn, MHD_HEADER_KIND, name) : NULL;
}

struct each {
	void (*fn)(void *arg, const char *k, const char *v);
	void *arg;
};

static enum MHD_Result each_header(void *cls, enum MHD_ValueKind kind, const char *k, const char *v)
{
	struct each *e = cls;

	e->fn(e->arg, k, v ? v : "");
	return MHD_YES;
}

void http_headers_each(
	const struct http_req *pub, void (*fn)(void *arg, const char *k, const char *v), void *arg)
{
	struct request *r = request_of(pub);
	struct each e = {fn, arg};

	if (r->conn)
		MHD_get_connection_values(r->conn, MHD_HEADER_KIND, each_header, &e);
}

const char *http_param(const struct http_req *pub, const char *name)
{
	struct request *r = request_of(pub);

	for (size_t i = 0; i < r->nparams; i++)
		if (!strcmp(r->params[i].key, name))
			return r->params[i].val;
	return NULL;
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool url_decode(char *s, bool plus)
{
	char *to = s;

	for (; *s; s++) {
		if (*s == '%') {
			int hi = hex(s[1]), lo = hi < 0 ? -1 : hex(s[2]);

			if (lo < 0 || (!hi && !lo))
				return false;
			*to++ = (char)(hi * 16 + lo);
			s += 2;
		} else {
			*to++ = plus && *s == '+' ? ' ' : *s;
		}
	}
	*to = 0;
	return true;
}

static void queries_parse(struct request *r)
{
	char *s, *save = NULL;
	size_t max = 1;

	for (const char *p = r->pub.query; (p = strchr(p, '&')); p++)
		max++;
	r->queries_parsed = true;
	s = http_strdup(&r->pub, r->pub.query, strlen(r->pub.query));
	r->queries = http_alloc(&r->pub, max * sizeof(*r->queries));
	if (!s || !r->queries)
		return;
	for (s = strtok_r(s, "&", &save); s; s = strtok_r(NULL, "&", &save)) {
		char *v = strchr(s, '=');

		if (v)
			*v++ = 0;
		else
			v = s + strlen(s);
		/* a pair with a bad escape is ignored */
		if (!url_decode(s, true) || !url_decode(v, true))
			continue;
		r->queries[r->nqueries++] = (struct http_pair){s, v};
	}
}

size_t http_query_all(const struct http_req *pub, const char *key, const char **vals, size_t max)
{
	struct request *r = request_of(pub);
	size_t n = 0;

	if (!r->queries_parsed)
		queries_parse(r);
	for (size_t i = 0; i < r->nqueries && n < max; i++)
		if (!strcmp(r->queries[i].key, key))
			vals[n++] = r->queries[i].val;
	return n;
}

const char *http_query(const struct http_req *r, const char *key)
{
	const char *v;

	return http_query_all(r, key, &v, 1) ? v : NULL;
}

/* The address family, or 0. */
static socklen_t sockaddr_text(const struct sockaddr *sa, char *out, size_t cap, uint16_t *port)
{
	const struct sockaddr_in *v4 = (const void *)sa;
	const struct sockaddr_in6 *v6 = (const void *)sa;

	*port = ntohs(sa->sa_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
	if (sa->sa_family == AF_INET6)
		return inet_ntop(AF_INET6, &v6->sin6_addr, out, (socklen_t)cap) ? AF_INET6 : 0;
	if (sa->sa_family == AF_INET)
		return inet_ntop(AF_INET, &v4->sin_addr, out, (socklen_t)cap) ? AF_INET : 0;
	return 0;
}

bool http_address(const struct http_req *pub, char *out, size_t cap)
{
	struct request *r = request_of(pub);
	const union MHD_ConnectionInfo *i =
		r->conn ? MHD_get_connection_info(r->conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS)
			: NULL;
	uint16_t port;

	return i && i->client_addr && sockaddr_text(i->client_addr, out, cap, &port);
}

static void last_forwarded_for(void *arg, const char *k, const char *v)
{
	const char **last = arg;

	if (!strcasecmp(k, "X-Forwarded-For"))
		*last = v;
}

/* A proxy appends to the header, or adds one of its own behind the client's: only the last element of the last header comes from the proxy. */
bool http_client_address(const struct http_req *r, bool behind_proxy, char *out, size_t cap)
{
	const char *all = NULL, *last;
	uint8_t bin[16];

	if (behind_proxy)
		http_headers_each(r, last_forwarded_for, &all);
	if (!all)
		return http_address(r, out, cap);
	last = strrchr(all, ',');
	last = last ? last + 1 : all;
	last += strspn(last, " \t");
	snprintf(out, cap, "%s", last);
	out[strcspn(out, " \t")] = 0;
	return inet_pton(AF_INET, out, bin) == 1 || inet_pton(AF_INET6, out, bin) == 1 ||
	       http_address(r, out, cap);
}

bool http_peer_uid(const struct http_req *pub, uid_t *uid)
{
	const struct request *r = request_of(pub);

	if (!r->hc || !r->hc->local)
		return false;
	*uid = r->hc->uid;
	return true;
}

/* May the client's Host be part of an endpoint that we return? Nothing in it may read as a path, a header or
 * user info. */
static bool host_is_plain(const char *h)
{
	size_t n =
		strspn(h, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]");

	return n > 0 && n < 256 && !h[n];
}

const char *http_host(const struct http_req *pub)
{
	struct request *r = request_of(pub);
	const char *h = http_header(pub, "Host");
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	char ip[INET6_ADDRSTRLEN];
	uint16_t port;

	if (h && host_is_plain(h))
		return h;
	if (r->hc && !getsockname(r->hc->fd, (void *)&sa, &len)) {
		socklen_t family = sockaddr_text((void *)&sa, ip, sizeof(ip), &port);

		if (family)
			h = http_printf(
				&r->pub, family == AF_INET6 ? "[%s]:%u" : "%s:%u", ip, port);
		if (family && h)
			return h;
	}
	return "localhost";
}

/* One pattern against one raw path. Parameters are written even when a later segment fails: the
 * caller resets their number. */
static bool pattern_fits(struct request *r, const char *pat, const char *path)
{
	while (*pat == '/') {
		const char *name = ++pat, *seg;
		size_t plen = strcspn(pat, "/"), slen;
		char *val;

		pat += plen;
		if (plen > 3 && name[0] == '{' && name[plen - 2] == '*') {
			if ((*path && *path != '/') || r->nparams == HTTP_PARAMS_MAX)
				return false;
			r->params[r->nparams++] = (struct http_pair){
				http_strdup(&r->pub, name + 1, plen - 3), *path ? path + 1 : path};
			return r->params[r->nparams - 1].key;
		}
		if (*path != '/')
			return false;
		seg = ++path;
		slen = strcspn(path, "/");
		path += slen;
		if (name[0] != '{' && slen == plen && !memcmp(seg, name, plen))
			continue;
		if (name[0] != '{' && !memchr(seg, '%', slen))
			return false;
		val = http_strdup(&r->pub, seg, slen);
		if (!val || !url_decode(val, false))
			return false;
		if (name[0] != '{') {
			if (strlen(val) != plen || memcmp(val, name, plen) != 0)
				return false;
			continue;
		}
		if (!*val || !strcmp(val, ".") || !strcmp(val, "..") ||
			r->nparams == HTTP_PARAMS_MAX)
			return false;
		r->params[r->nparams++] =
			(struct http_pair){http_strdup(&r->pub, name + 1, plen - 2), val};
		if (!r->params[r->nparams - 1].key)
			return false;
	}
	return !*path;
}

const struct http_route *http_match(struct http_req *pub, const struct http_table *t, int *status)
{
	struct request *r = request_of(pub);
	bool path_known = false;

	for (size_t i = 0; i < t->n; i++) {
		const struct http_route *rt = &t->routes[i];
		bool method = rt->method[0] == '*' || !strcmp(rt->method, pub->method);

		r->nparams = 0;
		if (!pattern_fits(r, rt->path, pub->path))
			continue;
		if (method)
			return rt;
		path_known = true;
	}
	r->nparams = 0;
	*status = path_known ? 405 : 404;
	return NULL;
}
