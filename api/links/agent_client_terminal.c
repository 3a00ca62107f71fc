/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_client_terminal.c: one attached terminal session on an EXEC connection of its own. The daemon's loop thread; frames are hostile. A lost connection ends
 * the stream. The session stays in the guest: a client can attach again, from the offset that it has.
 */
#include "api/links/agent_client_int.h"

#include <string.h>

#define ID_ASK 1u

struct agent_terminal {
	struct agent_stream stream;
	const struct agent_terminal_ops *ops;
	void *arg;
	struct aconn *conn;
	struct timer *late; /* reports in a later turn that an opening failed at once */
	struct buf ask;
	uint64_t in_sent, in_taken;
	bool held, attached, over, refused;
	int in_call;
	bool dead;
};

static void terminal_free(struct agent_terminal *t)
{
	agent_stream_drop(&t->stream);
	aconn_close(t->conn);
	timer_remove(t->late);
	buf_fini(&t->ask);
	free(t);
}

static void terminal_end(
	struct agent_terminal *t, const struct agent_reply *r, const struct agent_terminal_end *e)
{
	if (t->over)
		return;
	t->over = true;
	aconn_close(take_ptr(t->conn));
	timer_set(t->late, 0);
	t->in_call++;
	t->ops->ended(t->arg, r, e);
	t->in_call--;
	if (t->dead && !t->in_call)
		terminal_free(t);
}

static void terminal_fail(struct agent_terminal *t, int err)
{
	struct agent_reply r = {.err = err, .text = ""};
	struct agent_terminal_end e = {0};

	terminal_end(t, &r, &e);
}

static int got_attached(struct agent_terminal *t, struct cur body)
{
	uint32_t mode = cur_u32(&body);
	uint64_t from = cur_u64(&body), offset = cur_u64(&body);

	if (!cur_done(&body) || t->attached || from > offset ||
		(mode != AGENT_TM_PTY && mode != AGENT_TM_PIPE))
		return EPROTO;
	t->attached = true;
	t->ops->attached(t->arg, mode, from, offset);
	return 0;
}

static int got_answer(struct agent_terminal *t, const struct agent_hdr *h, struct cur body)
{
	struct agent_reply r = {.text = ""};
	struct agent_terminal_end e = {0};
	char text[AGENT_TEXT_MAX];

	if (h->id != ID_ASK)
		return EPROTO;
	if (h->type == AGENT_OK)
		return got_attached(t, body);
	if (agent_err_read(body, &r, text))
		return EPROTO;
	terminal_end(t, &r, &e);
	return 0;
}

static int got_output(struct agent_terminal *t, struct cur body)
{
	uint8_t stream = cur_u8(&body);
	uint64_t off = cur_u64(&body);
	size_t n = cur_left(&body);
	const uint8_t *p = cur_bytes(&body, n);

	if (!p || !t->attached || stream < 1 || stream > 3 || off + n < off)
		return EPROTO;
	if (n)
		t->ops->output(t->arg, stream, off, p, n);
	return 0;
}

static int got_exit(struct agent_terminal *t, struct cur body)
{
	struct agent_reply r = {.text = ""};
	struct agent_terminal_end e = {.state = cur_u32(&body), .code = cur_u32(&body)};
	char text[AGENT_TEXT_MAX];
	size_t len;
	const char *s = cur_strp(&body, &len, AGENT_FRAME_MAX);

	if (!s || !cur_done(&body) || !t->attached || e.state < AGENT_EXITED ||
		e.state > AGENT_NOT_STARTED)
		return EPROTO;
	len = MIN(len, sizeof(text) - 1);
	memcpy(text, s, len);
	text[len] = 0;
	r.text = text;
	terminal_end(t, &r, &e);
	return 0;
}

static int got_taken(struct agent_terminal *t, struct cur body)
{
	uint64_t n = cur_u64(&body);

	if (!cur_done(&body) || n < t->in_taken || n > t->in_sent)
		return EPROTO;
	t->in_taken = n;
	if (t->refused) {
		t->refused = false;
		t->ops->taken(t->arg);
	}
	return 0;
}

static int terminal_take(struct agent_terminal *t, const struct agent_hdr *h, struct cur body)
{
	struct agent_reply r = {.text = ""};
	struct agent_terminal_end e = {.evicted = true};

	switch (h->type) {
	case AGENT_OK:
	case AGENT_ERR:
		return got_answer(t, h, body);
	case AGENT_OUT:
		return got_output(t, body);
	case AGENT_EXIT:
		return got_exit(t, body);
	case AGENT_STDIN_TAKEN:
		return got_taken(t, body);
	case AGENT_EVICTED:
		terminal_end(t, &r, &e);
		return 0;
	default:
		return EPROTO;
	}
}

static int terminal_frame(void *arg, const struct agent_hdr *h, struct cur body)
{
	struct agent_terminal *t = arg;
	int rc;

	t->in_call++;
	rc = terminal_take(t, h, body);
	t->in_call--;
	if (!t->dead)
		return rc;
	if (!t->in_call)
		terminal_free(t);
	return 0;
}

static void terminal_closed(void *arg, int err)
{
	struct agent_terminal *t = arg;

	/* the agent is older: it knows no terminals */
	if (err == EPROTONOSUPPORT)
		err = ENOSYS;
	terminal_fail(t, err ? err : ECONNRESET);
}

static const struct aconn_ops terminal_conn_ops = {
	.frame = terminal_frame, .closed = terminal_closed};

static void terminal_connect(struct agent_terminal *t)
{
	t->conn = agent_stream_open(&t->stream, AGENT_CONN_EXEC, &terminal_conn_ops, t);
	if (!t->conn || !aconn_send(t->conn, AGENT_SESSION_ATTACH, ID_ASK, t->ask.p, t->ask.len)) {
		timer_set(t->late, 1);
		return;
	}
	if (t->held)
		aconn_hold(t->conn, true);
}

static void terminal_late(void *arg)
{
	terminal_fail(arg, ENOMEM);
}

static void terminal_up(struct agent_stream *s)
{
	struct agent_terminal *t = container_of(s, struct agent_terminal, stream);

	if (!t->conn && !t->over)
		terminal_connect(t);
}

static void terminal_down(struct agent_stream *s)
{
	struct agent_terminal *t = container_of(s, struct agent_terminal, stream);

	if (t->conn)
		terminal_fail(t, ECONNRESET);
}

static void terminal_cancel(struct agent_stream *s, int err)
{
	terminal_fail(container_of(s, struct agent_terminal, stream), err);
}

struct agent_terminal *agent_terminal_attach(struct agentc *a, const struct agent_terminal_spec *s,
	const struct agent_terminal_ops *ops, void *arg)
{
	struct agent_terminal *t = calloc(1, sizeof(*t));
	int saved;

	if (!t)
		return NULL;
	t->stream = (struct agent_stream){
		.up = terminal_up, .down = terminal_down, .cancel = terminal_cancel};
	t->ops = ops;
	t->arg = arg;
	buf_init(&t->ask, 256);
	buf_str(&t->ask, s->id);
	buf_u32(&t->ask, s->flags);
	buf_u64(&t->ask, s->since);
	buf_u16(&t->ask, s->cols);
	buf_u16(&t->ask, s->rows);
	t->late = loop_timer(agentc_loop(a), terminal_late, t);
	if (t->ask.bad || !t->late || !agent_stream_add(a, &t->stream)) {
		saved = t->late && !t->ask.bad ? errno : ENOMEM;
		terminal_free(t);
		errno = saved;
		return NULL;
	}
	if (agentc_is_up(a))
		terminal_connect(t);
	return t;
}

size_t agent_terminal_stdin(struct agent_terminal *t, const void *p, size_t n)
{
	size_t room = AGENT_WINDOW - (size_t)(t->in_sent - t->in_taken);
	const uint8_t *at = p;

	if (t->over || !t->conn)
		return n; /* nobody is left to read it */
	t->refused |= n > room;
	n = MIN(n, room);
	for (size_t left = n; left > 0;) {
		size_t part = MIN(left, (size_t)AGENT_FRAME_MAX);

		if (!aconn_send(t->conn, AGENT_STDIN, 0, at, part))
			break;
		at += part;
		left -= part;
	}
	t->in_sent += n;
	return n;
}

void agent_terminal_eof(struct agent_terminal *t)
{
	if (!t->over && t->conn)
		aconn_send(t->conn, AGENT_STDIN, 0, NULL, 0);
}

void agent_terminal_hold(struct agent_terminal *t, bool hold)
{
	t->held = hold;
	if (t->conn)
		aconn_hold(t->conn, hold);
}

void agent_terminal_close(struct agent_terminal *t)
{
	if (!t)
		return;
	t->over = t->dead = true;
	if (!t->in_call)
		terminal_free(t);
}
