/* SPDX-License-Identifier: Apache-2.0
 *
 * webhook.c: see webhook.h. A hook asks the broker for the server's address, then for a connected socket, writes one request, and reads the
 * first bytes of the answer. HOOKS_MAX hooks exist at a time and each has a deadline, so a server that is slow costs little.
 */
#include "api/network/webhook.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "api/core/text.h"
#include "api/network/broker_client.h"
#include "lib/dns.h"
#include "lib/fdpass.h"
#include "lib/log.h"
#include "lib/loop.h"

#define HOOKS_MAX     32u
#define HOOK_LIMIT_NS 10000000000ull
#define REQUEST_MAX   4096u

struct hook {
	struct hook *next;
	struct webhooks *w;
	struct webhook_url url;
	char sandbox[64];
	char place[NET_NAME_MAX];
	struct dns_question q;
	uint32_t id; /* of the message to the broker that is unanswered */
	uint32_t flow;
	int fd;
	struct watch *watch;
	struct timer *timer;
	bool sent;
};

struct webhooks {
	struct loop *loop;
	struct broker_client *broker;
	struct hook *hooks;
	unsigned int n;
	int chan; /* -1: none */
	struct watch *watch;
	uint32_t next_id;
	struct dns_answer answer;
	uint8_t msg[NET_MSG_MAX + 64];
};

/* ---- bytes */

static bool host_ok(const char *host)
{
	struct net_addr a;

	if (net_addr_parse(host, &a))
		return true;
	for (const char *p = host; *p; p++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._",
			    *p))
			return false;
	return *host && *host != '.';
}

static bool port_read(const char *p, const char *end, uint16_t *port)
{
	uint32_t n = 0;

	if (p == end)
		return false;
	for (; p < end; p++) {
		if (*p < '0' || *p > '9' || (n = n * 10 + (uint32_t)(*p - '0')) > 65535)
			return false;
	}
	*port = (uint16_t)n;
	return n > 0;
}

int webhook_url_parse(const char *url, struct webhook_url *out, struct err *e)
{
	static const char scheme[] = "http://";
	const char *host, *path, *end, *colon;
	struct webhook_url u = {.port = 80};

	if (strlen(url) >= WEBHOOK_URL_MAX)
		return err_plain(e, EINVAL, "the URL is longer than %u bytes", WEBHOOK_URL_MAX - 1);
	if (strncmp(url, scheme, strlen(scheme)) != 0)
		return err_plain(e, EINVAL, "\"%.60s\" does not begin with http://", url);
	for (const char *p = url; *p; p++)
		if (*p <= ' ' || *p > '~' || *p == '#' || *p == '@')
			return err_plain(e, EINVAL,
				"the URL has a blank, a control character, '#', '@' or a byte "
				"beyond ASCII in it");
	host = url + strlen(scheme);
	path = host + strcspn(host, "/?");
	colon = *host == '[' ? memchr(host, ']', (size_t)(path - host)) : host;
	colon = colon ? memchr(colon, ':', (size_t)(path - colon)) : NULL;
	if (colon && !port_read(colon + 1, path, &u.port))
		return err_plain(e, EINVAL, "the port of \"%.60s\" is not 1 to 65535", url);
	end = colon ? colon : path;
	if (*host == '[' && end > host + 1 && end[-1] == ']') {
		host++;
		end--;
	}
	if ((size_t)(end - host) >= sizeof(u.host))
		return err_plain(e, EINVAL, "the host's name is too long");
	memcpy(u.host, host, (size_t)(end - host));
	if (!host_ok(u.host))
		return err_plain(e, EINVAL, "\"%.60s\" names no host by name or address", url);
	snprintf(u.path, sizeof(u.path), "%s%s", *path == '/' ? "" : "/", path);
	*out = u;
	return 0;
}

int webhook_status(const char *p, size_t n)
{
	if (n < 12 || strncmp(p, "HTTP/1.", 7) != 0 || p[8] != ' ')
		return 0;
	for (int i = 9; i < 12; i++)
		if (p[i] < '0' || p[i] > '9')
			return 0;
	return (p[9] - '0') * 100 + (p[10] - '0') * 10 + p[11] - '0';
}

/* Writes a DNS question for this name. Returns its bytes; 0: a label is too long or empty. */
static size_t question_write(
	const char *host, uint16_t type, uint16_t id, uint8_t to[DNS_QUERY_MAX])
{
	const uint8_t head[12] = {(uint8_t)(id >> 8), (uint8_t)id, 1, 0, 0, 1};
	size_t at = sizeof(head);

	memcpy(to, head, sizeof(head));
	while (*host) {
		size_t k = strcspn(host, ".");

		if (k == 0 || k > 63 || at + k + 6 > DNS_QUERY_MAX)
			return 0;
		to[at++] = (uint8_t)k;
		memcpy(to + at, host, k);
		at += k;
		host += k + (host[k] == '.');
	}
	to[at++] = 0;
	to[at++] = (uint8_t)(type >> 8);
	to[at++] = (uint8_t)type;
	to[at++] = 0;
	to[at++] = 1; /* the internet's class */
	return at;
}

/* The host in the broker's word for a place: "tcp 192.0.2.9:80", or a name alone. */
static void place_host(const char *place, char *to, size_t cap)
{
	const char *at = strchr(place, ' '), *end;

	at = at ? at + 1 : place;
	end = at == place ? at + strlen(at) : strrchr(at, ':');
	if (*at == '[' && end && end > at + 1) {
		at++;
		end--;
	}
	snprintf(to, cap, "%.*s", end ? (int)(end - at) : (int)strlen(at), at);
}

static size_t request_write(const struct hook *h, char to[REQUEST_MAX])
{
	char host[NET_NAME_MAX], when[TIME_TEXT];
	cJSON *o = cJSON_CreateObject();
	bool six = strchr(h->url.host, ':') != NULL;
	char *body;
	int n = -1;

	place_host(h->place, host, sizeof(host));
	cJSON_AddStringToObject(o, "hostname", host);
	cJSON_AddStringToObject(o, "timestamp", time_format(wall_ns(), when));
	cJSON_AddStringToObject(o, "source", "opensandbox-egress");
	cJSON_AddStringToObject(o, "sandboxId", h->sandbox);
	body = cJSON_PrintUnformatted(o);
	cJSON_Delete(o);
	if (body)
		n = snprintf(to, REQUEST_MAX,
			"POST %s HTTP/1.1\r\nHost: %s%s%s:%u\r\nUser-Agent: mayfly\r\n"
			"Content-Type: application/json\r\nContent-Length: %zu\r\nConnection: "
			"close\r\n\r\n%s",
			h->url.path, six ? "[" : "", h->url.host, six ? "]" : "", h->url.port,
			strlen(body), body);
	free(body);
	return n > 0 && n < (int)REQUEST_MAX ? (size_t)n : 0;
}

/* ---- one hook */

static int chan_write(struct webhooks *w, uint16_t type, uint32_t id, const struct buf *body)
{
	struct net_hdr h = {.magic = NET_MAGIC, .type = type, .id = id};
	struct buf b;
	int rc;

	buf_init(&b, NET_MSG_MAX);
	buf_put(&b, &h, sizeof(h));
	buf_put(&b, body->p, body->len);
	rc = b.bad || body->bad ? -ENOMEM : fdpass_send(w->chan, b.p, b.len, NULL, 0);
	buf_fini(&b);
	return rc;
}

static void flow_close(struct webhooks *w, uint32_t flow)
{
	struct buf b;

	if (w->chan < 0)
		return;
	buf_init(&b, 64);
	buf_u32(&b, flow);
	buf_u64(&b, 0);
	buf_u64(&b, 0);
	chan_write(w, NET_CLOSE, ++w->next_id, &b);
	buf_fini(&b);
}

static void chan_close(struct webhooks *w)
{
	watch_remove(w->watch);
	w->watch = NULL;
	close_fd(&w->chan);
}

static void hook_free(struct hook *h)
{
	struct webhooks *w = h->w;
	struct hook **at = &w->hooks;

	while (*at != h)
		at = &(*at)->next;
	*at = h->next;
	w->n--;
	watch_remove(h->watch);
	close_fd(&h->fd);
	timer_remove(h->timer);
	if (h->flow)
		flow_close(w, h->flow);
	free(h);
	if (!w->hooks) /* the broker then closes what it still has for this channel */
		chan_close(w);
}

static void hook_fail(struct hook *h, const char *why)
{
	log_limited(LOG_WARN, "sandbox %s: its deny webhook at %s, port %u was not told: %s",
		h->sandbox, h->url.host, h->url.port, why);
	hook_free(h);
}

static void on_late(void *arg)
{
	hook_fail(arg, "no answer in time");
}

static void on_server(void *arg, uint32_t events)
{
	struct hook *h = arg;
	char text[REQUEST_MAX], why[32];
	ssize_t n;
	int status;

	if (!h->sent) {
		size_t k = request_write(h, text);

		/* the socket is new and empty: it takes all of it, or it is not connected */
		h->sent = k && send(h->fd, text, k, MSG_NOSIGNAL) == (ssize_t)k;
		if (!h->sent)
			hook_fail(h, "the connection failed");
		else
			watch_events(h->watch, EPOLLIN);
		return;
	}
	n = recv(h->fd, text, sizeof(text), MSG_DONTWAIT);
	if (n < 0 && errno == EAGAIN)
		return;
	status = n > 0 ? webhook_status(text, (size_t)n) : 0;
	if (status >= 200 && status < 300) {
		hook_free(h);
		return;
	}
	snprintf(why, sizeof(why), "it answered %d", status);
	hook_fail(h, status ? why : "its answer is not HTTP");
}

static void hook_open(struct hook *h, const struct net_addr *a)
{
	struct buf b;
	int rc;

	h->id = ++h->w->next_id;
	buf_init(&b, 64);
	buf_u8(&b, NET_FLOW_TCP);
	buf_put(&b, a->b, sizeof(a->b));
	buf_u16(&b, h->url.port);
	rc = chan_write(h->w, NET_OPEN, h->id, &b);
	buf_fini(&b);
	if (rc < 0)
		hook_fail(h, strerror(-rc));
}

static void hook_resolve(struct hook *h, uint16_t type)
{
	uint8_t m[DNS_QUERY_MAX];
	size_t n;
	struct buf b;
	int rc;

	h->id = ++h->w->next_id;
	n = question_write(h->url.host, type, (uint16_t)h->id, m);
	if (!n || dns_question_read(m, n, &h->q) != 0) {
		hook_fail(h, "its name cannot be asked for");
		return;
	}
	buf_init(&b, 1024);
	buf_u8(&b, 1);
	buf_put(&b, m, n);
	rc = chan_write(h->w, NET_DNS, h->id, &b);
	buf_fini(&b);
	if (rc < 0)
		hook_fail(h, strerror(-rc));
}

/* Connects to the first address. For a name without an IPv4 address, asks for IPv6 ones. */
static void hook_resolved(struct hook *h, const struct cur *c)
{
	struct dns_answer *a = &h->w->answer;
	struct net_addr addr;

	if (dns_answer_read(c->p, cur_left(c), &h->q, h->q.id, a) < 0) {
		hook_fail(h, "the answer about its name cannot be read");
		return;
	}
	for (unsigned int i = 0; i < a->n; i++)
		if (dns_answer_addr(a, i, &addr)) {
			hook_open(h, &addr);
			return;
		}
	if (h->q.type == DNS_A)
		hook_resolve(h, DNS_AAAA);
	else
		hook_fail(h, "its name has no address that sandboxes may reach");
}

static void hook_opened(struct hook *h, const struct net_hdr *hdr, struct cur *c, int *fd)
{
	if (hdr->status < 0 || *fd < 0) {
		hook_fail(h, hdr->status == -EACCES ? "its address is closed for sandboxes"
						    : "the connection failed");
		return;
	}
	h->flow = cur_u32(c);
	h->fd = take_fd(fd);
	h->watch = loop_watch(h->w->loop, h->fd, EPOLLOUT, on_server, h);
	if (!h->watch)
		hook_fail(h, "no memory");
}

/* ---- the channel */

void webhooks_lost(struct webhooks *w)
{
	chan_close(w);
	while (w->hooks)
		hook_fail(w->hooks, "the broker ended");
}

static void chan_message(struct webhooks *w, size_t n, int *fd)
{
	struct cur c = cur_of(w->msg, n);
	struct hook *h = w->hooks;
	struct net_hdr hdr;

	if (!cur_copy(&c, &hdr, sizeof(hdr)) || hdr.magic != NET_MAGIC)
		return;
	while (h && (h->id != hdr.id || h->fd >= 0))
		h = h->next;
	if (!h) { /* the hook timed out before */
		if (hdr.type == (NET_OPEN | NET_REPLY) && hdr.status == 0)
			flow_close(w, cur_u32(&c));
		return;
	}
	if (hdr.type == (NET_DNS | NET_REPLY))
		hook_resolved(h, &c);
	else if (hdr.type == (NET_OPEN | NET_REPLY))
		hook_opened(h, &hdr, &c, fd);
}

static void on_chan(void *arg, uint32_t events)
{
	struct webhooks *w = arg;
	int fd = -1;
	size_t nfds = 1;
	ssize_t n = fdpass_recv(w->chan, w->msg, sizeof(w->msg), &fd, &nfds);

	if (n == -EAGAIN)
		return;
	if (n <= 0) {
		webhooks_lost(w);
		return;
	}
	if (!nfds)
		fd = -1;
	chan_message(w, (size_t)n, &fd);
	close_fd(&fd);
}

static int chan_open(struct webhooks *w)
{
	const uint64_t limits[NET_L_COUNT] = {[NET_L_FLOWS] = HOOKS_MAX,
		[NET_L_NEW_RATE] = HOOKS_MAX,
		[NET_L_QUERY_RATE] = 2 * HOOKS_MAX};
	int sv[2], rc;

	if (w->chan >= 0)
		return 0;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) < 0)
		return -errno;
	rc = broker_client_policy(w->broker, NET_DAEMON, NULL);
	if (rc == 0)
		rc = broker_client_channel(w->broker, NET_DAEMON, limits, sv[1]);
	close(sv[1]);
	w->chan = sv[0];
	w->watch = rc < 0 ? NULL : loop_watch(w->loop, w->chan, EPOLLIN, on_chan, w);
	if (!w->watch)
		chan_close(w);
	return w->chan >= 0 ? 0 : rc < 0 ? rc : -ENOMEM;
}

void webhook_send(struct webhooks *w, const char *url, const char *sandbox, const char *place)
{
	struct hook *h = w->n < HOOKS_MAX ? calloc(1, sizeof(*h)) : NULL;
	struct net_addr a;
	struct err e = {0};

	if (!h || webhook_url_parse(url, &h->url, &e) < 0 || chan_open(w) < 0) {
		log_limited(LOG_WARN, "sandbox %s: its deny webhook was not told: %s", sandbox,
			!h         ? "too many are under way"
			: e.msg[0] ? e.msg
				   : "the broker cannot be reached");
		free(h);
		return;
	}
	h->w = w;
	h->fd = -1;
	h->next = w->hooks;
	w->hooks = h;
	w->n++;
	str_copy(h->sandbox, sizeof(h->sandbox), sandbox);
	str_copy(h->place, sizeof(h->place), place);
	h->timer = loop_timer(w->loop, on_late, h);
	if (!h->timer) {
		hook_free(h);
		return;
	}
	timer_after(h->timer, HOOK_LIMIT_NS);
	if (net_addr_parse(h->url.host, &a))
		hook_open(h, &a);
	else
		hook_resolve(h, DNS_A);
}

struct webhooks *webhooks_create(struct loop *l, struct broker_client *b)
{
	struct webhooks *w = calloc(1, sizeof(*w));

	if (w) {
		w->loop = l;
		w->broker = b;
		w->chan = -1;
	}
	return w;
}

void webhooks_destroy(struct webhooks *w)
{
	if (!w)
		return;
	chan_close(w);
	while (w->hooks)
		hook_free(w->hooks);
	free(w);
}
