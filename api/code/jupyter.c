/* SPDX-License-Identifier: Apache-2.0
 *
 * jupyter.c: see jupyter.h. One connection carries one request and its answer.
 */
#include "api/code/jupyter.h"

#include <stdio.h>
#include <string.h>

#include "api/links/agent_client.h"
#include "api/sandbox/guest.h"
#include "lib/http1.h"

#define SEC       1000000000ull
#define TRIES_MAX 8u

/* ---- the server's address */

static bool text_is_plain(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s <= 0x20 || (unsigned char)*s >= 0x7f)
			return false;
	return true;
}

/* Only the guest's own loopback address can be dialled. A client on the same machine reaches it as 0.0.0.0, too. */
static const char *skip_own_host(const char *s)
{
	static const char *const own[] = {"127.0.0.1", "localhost", "0.0.0.0"};

	for (size_t i = 0; i < ARRAY_LEN(own); i++) {
		size_t n = strlen(own[i]);

		if (!strncmp(s, own[i], n) && strchr(":/", s[n]))
			return s + n;
	}
	return NULL;
}

int jupyter_server_read(const char *host, const char *token, struct jupyter_server *s)
{
	unsigned long port = 80;
	size_t n;
	char *end;

	if (!host || !*host)
		return -ENOENT;
	if (strncmp(host, "http://", 7) != 0 || !text_is_plain(host) ||
		(token && !text_is_plain(token)))
		return -EINVAL;
	host = skip_own_host(host + 7);
	if (host && *host == ':') {
		port = strtoul(host + 1, &end, 10);
		if (host[1] < '0' || host[1] > '9')
			return -EINVAL;
		host = end;
	}
	if (!host || (*host && *host != '/') || port < 1 || port > 65535 || strpbrk(host, "?#"))
		return -EINVAL;
	n = strlen(host);
	while (n && host[n - 1] == '/')
		n--;
	if (n >= sizeof(s->prefix) || (token && strlen(token) >= sizeof(s->token)))
		return -EINVAL;
	*s = (struct jupyter_server){.port = (uint16_t)port};
	memcpy(s->prefix, host, n);
	if (token)
		str_copy(s->token, sizeof(s->token), token);
	return 0;
}

int jupyter_server_of(const struct sandbox *sb, struct jupyter_server *s)
{
	const char *host = sandbox_env(sb, "JUPYTER_HOST"),
		   *token = sandbox_env(sb, "JUPYTER_TOKEN");

	if (!host)
		host = sandbox_image_env(sb, "JUPYTER_HOST");
	if (!token)
		token = sandbox_image_env(sb, "JUPYTER_TOKEN");
	return jupyter_server_read(host, token, s);
}

bool jupyter_id_ok(const char *id)
{
	static const char letters[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
	size_t n = strlen(id);

	return n >= 1 && n <= JUPYTER_ID_MAX && !id[strspn(id, letters)] && !strstr(id, "..") &&
	       id[0] != '.';
}

/* ---- one request */

struct jupyter_call {
	struct agentc *agent;
	uint16_t port;
	struct agent_dial *dial;
	struct agent_call *wait; /* for the server's port to open */
	struct http1_response *resp;
	struct buf request, body;
	struct account *account;
	size_t charged; /* of the body, to the sandbox's account */
	struct timer *limit;
	uint64_t until_ns;
	unsigned int tries;
	bool opened;
	jupyter_fn fn;
	void *arg;
};

static void call_dial(struct jupyter_call *c);

void jupyter_cancel(struct jupyter_call *c)
{
	if (!c)
		return;
	agent_dial_close(c->dial);
	if (c->wait)
		agent_call_cancel(c->wait);
	timer_remove(c->limit);
	if (c->resp)
		http1_fini(c->resp);
	free(c->resp);
	buf_fini(&c->request);
	buf_fini(&c->body);
	account_give(c->account, c->charged);
	free(c);
}

/* Calls fn and frees c. */
static void call_end(struct jupyter_call *c, const struct jupyter_answer *a)
{
	jupyter_fn fn = c->fn;
	void *arg = c->arg;

	/* no callback of its own may follow, but the body lives until fn has returned */
	agent_dial_close(take_ptr(c->dial));
	if (c->wait)
		agent_call_cancel(take_ptr(c->wait));
	timer_set(c->limit, 0);
	fn(arg, a);
	jupyter_cancel(c);
}

static void call_fail(struct jupyter_call *c, int err, const char *why)
{
	call_end(c, &(struct jupyter_answer){.err = err, .why = why});
}

static void call_late(void *arg)
{
	call_fail(arg, ETIMEDOUT, "the Jupyter server in the sandbox did not answer in time");
}

static void call_done(struct jupyter_call *c)
{
	struct jupyter_answer a = {.status = c->resp->status};
	struct json_slice body;

	if (c->body.bad)
		call_fail(c, EMSGSIZE, "the Jupyter server's answer is too long");
	else {
		if (json_slice_read(&body, c->body.p, c->body.len))
			a.body = body;
		call_end(c, &a);
	}
}

static void call_port_open(void *arg, const struct agent_reply *r)
{
	struct jupyter_call *c = arg;

	c->wait = NULL;
	if (!r->err)
		call_dial(c);
	else if (r->err == ECANCELED)
		call_fail(c, ECANCELED, "the sandbox has ended");
	else
		call_fail(c, ECONNREFUSED,
			"no Jupyter server listens in the sandbox. Its entrypoint must start one: "
			"see the entrypoint's log.");
}

/* Nothing listens yet, or the sandbox was paused meanwhile. Asks the agent to answer when the port is open. */
static void call_wait(struct jupyter_call *c)
{
	uint64_t now = mono_ns();
	uint32_t left_ms = c->until_ns > now ? (uint32_t)((c->until_ns - now) / 1000000) : 1;
	struct buf b;

	buf_init(&b, 64);
	buf_u16(&b, c->port);
	buf_u32(&b, left_ms);
	if (++c->tries <= TRIES_MAX)
		c->wait = agentc_call(
			c->agent, AGENT_WAIT_PORT, &b, left_ms + 5000, call_port_open, c);
	buf_fini(&b);
	if (!c->wait)
		call_fail(c, ECONNREFUSED, "the Jupyter server in the sandbox cannot be reached");
}

static void call_opened(void *arg)
{
	struct jupyter_call *c = arg;

	c->opened = true;
	agent_dial_send(c->dial, c->request.p, c->request.len);
}

/* Charges the answer to the sandbox while it is held. false: there is no room. */
static bool call_keep(struct jupyter_call *c, const uint8_t *p, size_t n)
{
	if (!account_take(c->account, n))
		return false;
	c->charged += n;
	buf_put(&c->body, p, n);
	return true;
}

static void call_bytes(void *arg, const uint8_t *p, size_t n)
{
	struct jupyter_call *c = arg;
	const uint8_t *data = NULL;
	size_t len = 0;

	if (n == 0) {
		if (http1_closed(c->resp))
			call_done(c);
		else
			call_fail(
				c, EPROTO, "the Jupyter server closed before its answer was whole");
		return;
	}
	for (;;) {
		switch (http1_next(c->resp, &p, &n, &data, &len)) {
		case H1_HEAD:
			break;
		case H1_DATA:
			if (call_keep(c, data, len))
				break;
			call_fail(c, ENOMEM,
				"too much of the Jupyter server's answers is held for this "
				"sandbox");
			return;
		case H1_DONE:
			call_done(c);
			return;
		case H1_BAD:
			call_fail(c, EPROTO, "the Jupyter server's answer is no HTTP");
			return;
		case H1_MORE:
			return;
		}
	}
}

static void call_closed(void *arg, const struct agent_reply *r)
{
	struct jupyter_call *c = arg;

	agent_dial_close(take_ptr(c->dial));
	if (r->err == ECANCELED)
		call_fail(c, ECANCELED, "the sandbox has ended");
	else if (c->opened)
		call_fail(c, EPROTO, "the connection to the Jupyter server broke off");
	else
		call_wait(c);
}

static const struct agent_dial_ops call_ops = {
	.opened = call_opened, .bytes = call_bytes, .closed = call_closed};

static void call_dial(struct jupyter_call *c)
{
	c->dial = agent_dial_tcp(c->agent, c->port, &call_ops, c);
	/* call_late() fails it, from the loop: fn may not be called before this returns */
	if (!c->dial)
		timer_set(c->limit, 1);
}

static void put_request(struct buf *b, const struct jupyter_server *s, const char *method,
	const char *path, const char *body)
{
	buf_printf(b,
		"%s %s%s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nConnection: close\r\nAccept: "
		"application/json\r\n",
		method, s->prefix, path, s->port);
	if (s->token[0])
		buf_printf(b, "Authorization: token %s\r\n", s->token);
	if (body)
		buf_printf(b, "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
			strlen(body), body);
	else if (strcmp(method, "POST") == 0)
		buf_printf(b, "Content-Length: 0\r\n\r\n");
	else
		buf_printf(b, "\r\n");
}

struct jupyter_call *jupyter_ask(struct agentc *a, const struct jupyter_server *s,
	const char *method, const char *path, const char *body, jupyter_fn fn, void *arg)
{
	struct jupyter_call *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->agent = a;
	c->account = agentc_account(a);
	c->port = s->port;
	c->fn = fn;
	c->arg = arg;
	buf_init(&c->request, MIB(1));
	buf_init(&c->body, JUPYTER_BODY_MAX);
	c->limit = loop_timer(agentc_loop(a), call_late, c);
	c->resp = malloc(sizeof(*c->resp));
	if (c->resp)
		http1_init(c->resp, false);
	put_request(&c->request, s, method, path, body);
	if (!c->limit || !c->resp || c->request.bad) {
		jupyter_cancel(c);
		return NULL;
	}
	c->until_ns = mono_ns() + JUPYTER_LIMIT_S * SEC;
	timer_set(c->limit, c->until_ns);
	call_dial(c);
	return c;
}
