/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel_channel.c: see kernel_channel.h.
 */
#include "api/code/kernel_channel.h"

#include <stdio.h>
#include <string.h>

#include "api/core/account.h"
#include "api/links/agent_client.h"
#include "lib/websocket.h"

#define OPEN_LIMIT_NS 60000000000ull
#define AGAIN_NS      100000000ull

struct kernel_channel {
	struct agentc *agent;
	struct jupyter_server server;
	char kernel[JUPYTER_ID_MAX + 1], session[33];
	const struct kernel_channel_ops *ops;
	void *arg;
	struct agent_dial *dial;
	struct ws *ws;
	struct timer *late; /* limit for the first connection to open */
	struct timer *again;
	uint64_t begun_ns;   /* the connection */
	unsigned int losses; /* in a row */
	struct account *account;
	/* bytes of a message that is not complete yet; bytes that are charged to account */
	size_t pending, charged;
	bool was_open, lost, held, over;
};

static void channel_connect(struct kernel_channel *c);

/* Charges the bytes of an incomplete message to the sandbox. false: there is no room. */
static bool channel_charge(struct kernel_channel *c, size_t now)
{
	if (now > c->charged && !account_take(c->account, now - c->charged))
		return false;
	if (now < c->charged)
		account_give(c->account, c->charged - now);
	c->charged = now;
	return true;
}

static void channel_disconnect(struct kernel_channel *c)
{
	c->pending = 0;
	channel_charge(c, 0);
	ws_destroy(take_ptr(c->ws));
	agent_dial_close(take_ptr(c->dial));
}

/* Calls closed(), which destroys c. */
static void channel_end(struct kernel_channel *c, int err, const char *why)
{
	if (c->over)
		return;
	c->over = true;
	timer_set(c->late, 0);
	timer_set(c->again, 0);
	channel_disconnect(c);
	c->ops->closed(c->arg, err, why);
}

static void channel_late(void *arg)
{
	channel_end(arg, ETIMEDOUT, "the kernel's connection did not open in time");
}

/* ---- the WebSocket */

static void on_ws_opened(void *arg, const char *protocol)
{
	struct kernel_channel *c = arg;
	bool again = c->was_open;

	timer_set(c->late, 0);
	c->begun_ns = mono_ns();
	c->was_open = true;
	c->lost = false;
	if (again)
		c->ops->resumed(c->arg);
	else
		c->ops->opened(c->arg);
}

static void on_ws_message(void *arg, bool text, const uint8_t *p, size_t n)
{
	struct kernel_channel *c = arg;
	struct kernel_message m;

	c->pending = 0;
	channel_charge(c, 0);
	/* binary messages carry buffers of widgets, for which there is no event */
	if (c->over || !text)
		return;
	if (kernel_message_read(&m, p, n) < 0)
		channel_end(c, EPROTO, "the kernel sent something that is no message");
	else
		c->ops->message(c->arg, &m);
}

static void on_ws_closed(void *arg, int code, const char *reason)
{
	struct kernel_channel *c = arg;
	char why[160];

	if (code == WS_TOO_BIG)
		snprintf(why, sizeof(why), "the kernel sent a message of more than %u MiB",
			KERNEL_MESSAGE_MAX >> 20);
	else
		snprintf(why, sizeof(why),
			"the Jupyter server closed the kernel's connection (%d%s%s)", code,
			*reason ? ": " : "", reason);
	/* before it was open: the handshake was refused, which means that there is no such kernel */
	channel_end(c, c->was_open ? (code == WS_TOO_BIG ? EMSGSIZE : EPROTO) : ENOENT, why);
}

static const struct ws_ops ws_ops = {
	.opened = on_ws_opened, .message = on_ws_message, .closed = on_ws_closed};

static bool wire_send(void *to, const void *p, size_t n)
{
	struct kernel_channel *c = to;

	return c->dial && agent_dial_send(c->dial, p, n);
}

static bool channel_handshake(struct kernel_channel *c)
{
	char target[256 + JUPYTER_ID_MAX], host[32], headers[JUPYTER_TOKEN_MAX + 32];
	const struct ws_request request = {
		.target = target, .host = host, .headers = c->server.token[0] ? headers : NULL};
	/* No pings of ours: while a slow client holds the stream, no answer to them would be read. The Jupyter server sends its own. */
	const struct ws_config config = {
		.role = WS_CLIENT, .message_max = KERNEL_MESSAGE_MAX, .request = &request};
	const struct ws_wire wire = {.to = c, .send = wire_send};

	snprintf(target, sizeof(target), "%s/api/kernels/%s/channels?session_id=%s",
		c->server.prefix, c->kernel, c->session);
	snprintf(host, sizeof(host), "127.0.0.1:%u", c->server.port);
	snprintf(headers, sizeof(headers), "Authorization: token %s\r\n", c->server.token);
	c->ws = ws_create(agentc_loop(c->agent), &config, &wire, &ws_ops, c);
	return c->ws;
}

/* ---- the stream */

static void on_dial_opened(void *arg)
{
	struct kernel_channel *c = arg;

	if (!channel_handshake(c))
		channel_end(c, ENOMEM, "out of memory");
}

static void on_dial_bytes(void *arg, const uint8_t *p, size_t n)
{
	struct kernel_channel *c = arg;

	c->pending += n;
	if (!channel_charge(c, c->pending))
		channel_end(c, ENOMEM, "too much of the kernel's output is held for this sandbox");
	else if (c->ws && n)
		ws_input(c->ws, p, n);
	else if (c->ws)
		ws_input_end(c->ws);
}

static void channel_again(void *arg)
{
	channel_connect(arg);
}

/* Reconnects at once after the first loss in a row, and then with growing delays: a guest that ends each connection must not keep the daemon busy. */
static void channel_reconnect(struct kernel_channel *c)
{
	channel_disconnect(c);
	if (mono_ns() - c->begun_ns >= AGENT_GOOD_NS)
		c->losses = 0;
	if (c->losses++ == 0)
		channel_connect(c);
	else
		timer_after(c->again, agent_backoff_ns(AGAIN_NS, c->losses));
}

/* The agent closes the guest's side: after a pause, a rollback, or when the daemon lost the monitor for a moment. If the connection that replaces it ends, too,
 * although the agent runs, the server is gone. */
static void on_dial_closed(void *arg, const struct agent_reply *r)
{
	struct kernel_channel *c = arg;

	if (r->err == ECANCELED)
		channel_end(c, ECANCELED, "the sandbox has ended");
	else if (c->was_open && (!c->lost || !agentc_is_up(c->agent)) && c->ops->lost(c->arg)) {
		c->lost = true;
		channel_reconnect(c);
	} else
		channel_end(c, ECONNREFUSED, "the Jupyter server in the sandbox cannot be reached");
}

static const struct agent_dial_ops dial_ops = {
	.opened = on_dial_opened, .bytes = on_dial_bytes, .closed = on_dial_closed};

/* The dial waits for as long as the sandbox is paused. Only the first connection of a channel has a limit. */
static void channel_connect(struct kernel_channel *c)
{
	c->begun_ns = mono_ns();
	c->dial = agent_dial_tcp(c->agent, c->server.port, &dial_ops, c);
	if (c->dial && c->held)
		agent_dial_hold(c->dial, true);
	/* channel_late() ends it, from the loop: no callback may come before this returns */
	if (!c->dial)
		timer_set(c->late, 1);
	else if (!c->was_open)
		timer_after(c->late, OPEN_LIMIT_NS);
}

struct kernel_channel *kernel_channel_open(struct agentc *a, const struct jupyter_server *s,
	const char *kernel, const struct kernel_channel_ops *ops, void *arg)
{
	struct kernel_channel *c = calloc(1, sizeof(*c));
	uint8_t raw[16];

	if (!c)
		return NULL;
	c->agent = a;
	c->account = agentc_account(a);
	c->server = *s;
	c->ops = ops;
	c->arg = arg;
	str_copy(c->kernel, sizeof(c->kernel), kernel);
	random_bytes(raw, sizeof(raw));
	for (size_t i = 0; i < sizeof(raw); i++)
		snprintf(c->session + 2 * i, 3, "%02x", raw[i]);
	c->late = loop_timer(agentc_loop(a), channel_late, c);
	c->again = loop_timer(agentc_loop(a), channel_again, c);
	if (!c->late || !c->again) {
		timer_remove(c->late);
		timer_remove(c->again);
		free(c);
		return NULL;
	}
	channel_connect(c);
	return c;
}

void kernel_channel_destroy(struct kernel_channel *c)
{
	if (!c)
		return;
	channel_disconnect(c);
	timer_remove(c->late);
	timer_remove(c->again);
	free(c);
}

bool kernel_channel_execute(struct kernel_channel *c, const char *id, const char *code)
{
	struct buf b;
	bool ok;

	buf_init(&b, MIB(16));
	kernel_execute_put(&b, id, c->session, code);
	ok = !b.bad && c->ws && ws_send(c->ws, true, b.p, b.len);
	buf_fini(&b);
	return ok;
}

bool kernel_channel_probe(struct kernel_channel *c, const char *id)
{
	struct buf b;
	bool ok;

	buf_init(&b, 4096);
	kernel_probe_put(&b, id, c->session);
	ok = !b.bad && c->ws && ws_send(c->ws, true, b.p, b.len);
	buf_fini(&b);
	return ok;
}

void kernel_channel_hold(struct kernel_channel *c, bool hold)
{
	c->held = hold;
	if (c->dial)
		agent_dial_hold(c->dial, hold);
}
