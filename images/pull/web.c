/* SPDX-License-Identifier: Apache-2.0
 *
 * web.c: requests of a pull job. Redirects are followed here, not by libcurl: each target is
 * checked, credentials stay with the host they were for, and the address that is really connected to is
 * checked (names can resolve to anything). A request ends when its server sends less than 1 KiB a second for
 * half a minute (limits.h: stall_s). Redirects and error bodies are bounded, too.
 */
#include "images/pull/web.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/netaddr.h"

#define MAX_REDIRECTS 6
#define CONNECT_S     15L
#define SLOW_BYTES    1024L
#define STALL_S       30L
#define ERROR_BODY    (256u * 1024) /* of a reply that is not a success: received and dropped */

struct web {
	CURL *c;
	/* of the request that runs */
	const struct web_request *q;
	struct web_reply *reply;
	char location[4096];
	bool redirected, refused, started, enough;
	size_t unread;
	long stall_s;
	int stop; /* -errno of a callback */
};

/* The same list of closed places as for sandboxes. */
bool address_is_private(const struct sockaddr *sa)
{
	socklen_t len =
		sa->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	struct net_addr a, carried[NET_CARRIED_MAX];
	struct net_prefix place;
	unsigned int n;
	uint16_t port;

	if (!net_addr_of_sockaddr(sa, len, &a, &port) || net_kind_of(&a, &place) != NET_PUBLIC)
		return true;
	n = net_addr_carried(&a, carried);
	for (unsigned int i = 0; i < n; i++)
		if (net_kind_of(&carried[i], &place) != NET_PUBLIC)
			return true;
	return false;
}

static bool peer_is_private(CURL *c)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
	char *ip = NULL;

	if (curl_easy_getinfo(c, CURLINFO_PRIMARY_IP, &ip) != CURLE_OK || !ip)
		return false;
	if (inet_pton(AF_INET, ip, &v4.sin_addr) == 1)
		return address_is_private((void *)&v4);
	return inet_pton(AF_INET6, ip, &v6.sin6_addr) == 1 && address_is_private((void *)&v6);
}

static curl_socket_t on_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
	struct web *h = arg;
	bool private = address_is_private(&a->addr);
	bool server_chose =
		(h->redirected || h->q->elsewhere) && !h->q->private_ok && !h->reply->peer_private;

	if (private && (server_chose || h->q->public_only)) {
		h->refused = true;
		return CURL_SOCKET_BAD;
	}
	return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static void copy_value(const char *p, size_t n, char *to, size_t cap)
{
	while (n && (*p == ' ' || *p == '\t')) {
		p++;
		n--;
	}
	while (n && (p[n - 1] == '\r' || p[n - 1] == '\n' || p[n - 1] == ' '))
		n--;
	if (n >= cap)
		n = 0; /* an overlong value counts as none */
	memcpy(to, p, n);
	to[n] = 0;
}

static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
	struct web *h = arg;
	const struct {
		const char *name;
		char *to;
		size_t cap;
	} wanted[] = {
		{"location:", h->location, sizeof(h->location)},
		{"content-type:", h->reply->type, sizeof(h->reply->type)},
		{"www-authenticate:", h->reply->challenge, sizeof(h->reply->challenge)},
	};

	for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
		size_t k = strlen(wanted[i].name);

		/* of several challenges Bearer is the one to keep */
		if (n > k && strncasecmp(p, wanted[i].name, k) == 0 &&
			!(i == 2 && strncasecmp(h->reply->challenge, "bearer", 6) == 0))
			copy_value(p + k, n - k, wanted[i].to, wanted[i].cap);
	}
	return n;
}

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
	struct web *h = arg;
	long status = 0;

	curl_easy_getinfo(h->c, CURLINFO_RESPONSE_CODE, &status);
	if (status < 200 || status > 299) {
		/* received and dropped, so that the connection can be used again; cut if it is too long */
		h->unread += n;
		h->enough = h->unread > ERROR_BODY;
		return h->enough ? 0 : n;
	}
	if (!h->started) {
		h->started = true;
		if (h->q->start && (h->stop = h->q->start(h->q->arg, status)) < 0)
			return 0;
	}
	if (h->q->body && (h->stop = h->q->body(h->q->arg, p, n)) < 0)
		return 0;
	return n;
}

struct web *web_create(uint32_t stall_s, struct err *e)
{
	struct web *h = calloc(1, sizeof(*h));

	if (h)
		h->c = curl_easy_init();
	if (!h || !h->c) {
		free(h);
		err_set(e, ENOMEM, "HTTP");
		return NULL;
	}
	h->stall_s = stall_s ? (long)stall_s : STALL_S;
	return h;
}

void web_destroy(struct web *h)
{
	if (!h)
		return;
	curl_easy_cleanup(h->c);
	free(h);
}

static void set_options(struct web *h, const char *url, struct curl_slist *headers)
{
	const struct web_request *q = h->q;
	char range[32];

	curl_easy_reset(h->c);
	curl_easy_setopt(h->c, CURLOPT_URL, url);
	curl_easy_setopt(h->c, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(h->c, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(h->c, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(h->c, CURLOPT_CONNECTTIMEOUT, MIN(CONNECT_S, h->stall_s));
	curl_easy_setopt(h->c, CURLOPT_LOW_SPEED_LIMIT, SLOW_BYTES);
	curl_easy_setopt(h->c, CURLOPT_LOW_SPEED_TIME, h->stall_s);
	curl_easy_setopt(h->c, CURLOPT_USERAGENT, "mayfly");
	curl_easy_setopt(h->c, CURLOPT_BUFFERSIZE, 256L * 1024);
	curl_easy_setopt(h->c, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(h->c, CURLOPT_OPENSOCKETFUNCTION, on_socket);
	curl_easy_setopt(h->c, CURLOPT_OPENSOCKETDATA, h);
	curl_easy_setopt(h->c, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(h->c, CURLOPT_HEADERDATA, h);
	curl_easy_setopt(h->c, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(h->c, CURLOPT_WRITEDATA, h);
	if (q->from) {
		snprintf(range, sizeof(range), "%llu-", (unsigned long long)q->from);
		curl_easy_setopt(h->c, CURLOPT_RANGE, range);
	}
	if (!h->redirected && q->user && *q->user) {
		curl_easy_setopt(h->c, CURLOPT_HTTPAUTH, (long)CURLAUTH_BASIC);
		curl_easy_setopt(h->c, CURLOPT_USERNAME, q->user);
		curl_easy_setopt(h->c, CURLOPT_PASSWORD, q->password ? q->password : "");
	}
}

static int perform(struct web *h, const char *url, struct err *e)
{
	const struct web_request *q = h->q;
	struct curl_slist *headers = NULL;
	char line[9216];
	CURLcode k;
	int r = 0;

	if (q->accept) {
		snprintf(line, sizeof(line), "Accept: %s", q->accept);
		headers = curl_slist_append(headers, line);
	}
	if (q->authorization && !h->redirected) {
		snprintf(line, sizeof(line), "Authorization: %s", q->authorization);
		headers = curl_slist_append(headers, line);
		explicit_bzero(line, sizeof(line));
	}
	h->location[0] = 0;
	h->started = h->refused = h->enough = false;
	h->unread = 0;
	h->stop = 0;
	*h->reply = (struct web_reply){
		.peer_private = h->reply->peer_private, .redirected = h->redirected};
	set_options(h, url, headers);
	k = curl_easy_perform(h->c);
	/* the address that answered: libcurl may have tried others before */
	if (!h->redirected && !h->q->elsewhere)
		h->reply->peer_private = peer_is_private(h->c);
	curl_easy_getinfo(h->c, CURLINFO_RESPONSE_CODE, &h->reply->status);
	curl_slist_free_all(headers);
	if (h->refused && h->q->public_only)
		r = err_plain(e, EACCES,
			"%.200s is on a private address. The operator can allow its registry with "
			"images.private_registries in the configuration",
			url);
	else if (h->refused)
		r = err_plain(e, EACCES, "%.200s: it leads to a private address", url);
	else if (h->stop < 0)
		r = e->code ? h->stop : err_set(e, -h->stop, "%.200s", url);
	else if (k == CURLE_OPERATION_TIMEDOUT)
		r = err_plain(e, ETIMEDOUT, "%.200s: too slow, or no answer", url);
	else if (k != CURLE_OK && !h->enough)
		r = err_plain(e, EIO, "%.200s: %s", url, curl_easy_strerror(k));
	return r;
}

/* The redirect's target as a URL of its own, in *out (curl_free). */
static int next_url(
	const char *base, const char *location, bool plain_ok, char **out, struct err *e)
{
	CURLU *u = curl_url();
	char *scheme = NULL;
	int r = 0;

	if (!u || curl_url_set(u, CURLUPART_URL, base, 0) ||
		curl_url_set(u, CURLUPART_URL, location, 0) ||
		curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) ||
		curl_url_get(u, CURLUPART_URL, out, 0))
		r = err_plain(e, EBADMSG, "%.150s: malformed redirect", base);
	else if (strcmp(scheme, "https") != 0 && !(plain_ok && strcmp(scheme, "http") == 0))
		r = err_plain(e, EACCES, "%.150s: redirected to %.20s:", base, scheme);
	if (r < 0 && *out) {
		curl_free(*out);
		*out = NULL;
	}
	curl_free(scheme);
	curl_url_cleanup(u);
	return r;
}

int web_get(struct web *h, const struct web_request *q, struct web_reply *out, struct err *e)
{
	char *url = NULL;
	int r;

	*out = (struct web_reply){0};
	h->q = q;
	h->reply = out;
	h->redirected = false;
	for (int hops = 0;; hops++) {
		char *next = NULL;

		r = perform(h, url ? url : q->url, e);
		if (r < 0 || out->status < 301 || out->status > 308 || !h->location[0])
			break;
		r = hops < MAX_REDIRECTS
			    ? next_url(url ? url : q->url, h->location, q->plain_ok, &next, e)
			    : err_plain(e, ELOOP, "%.200s: more than %d redirects", q->url,
				      MAX_REDIRECTS);
		if (r < 0)
			break;
		curl_free(url);
		url = next;
		h->redirected = true;
	}
	curl_free(url);
	return r;
}

static int to_buf(void *arg, const void *p, size_t n)
{
	struct buf *b = arg;

	buf_put(b, p, n);
	return b->bad ? -EFBIG : 0;
}

int web_get_buf(struct web *h, const struct web_request *q, struct buf *b, struct web_reply *out,
	struct err *e)
{
	struct web_request mine = *q;

	buf_reset(b);
	mine.body = to_buf;
	mine.start = NULL;
	mine.arg = b;
	return web_get(h, &mine, out, e);
}
