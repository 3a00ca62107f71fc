/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_client_exec.c: one process in the guest, on an EXEC connection of its own. The daemon's loop
 * thread; frames are hostile. The bytes that were passed on are counted for each stream. So after a
 * lost connection (a pause, a restore) the next one continues at exactly the next byte: bytes seen
 * before are dropped, a gap is an error. If the start was not confirmed, the next connection first asks
 * whether the process exists, and starts it only if not: never twice.
 */
#include "api/links/agent_client_int.h"

#include <string.h>

#define ACK_EVERY  (128u * 1024)
#define TRIES_MAX  20
#define AGAIN_NS   50000000ull          /* doubled up to 1.6 s */
#define DETACH_NS  (10ull * 1000000000) /* for the guest to answer AGENT_DETACH */
#define UNREAD_MAX MIB(1)               /* of output that nobody reads, in each agent_unread_ns() */
#define ID_START   1u
#define ID_DETACH  2u

struct agent_exec {
	struct agent_stream stream;
	const struct agent_exec_ops *ops;
	void *arg;
	struct aconn *conn;
	struct timer *again, *slow; /* slow: until output that nobody reads may go on */
	uint64_t opened_ns, unread, unread_ns;
	char exec_id[64];
	struct buf spec; /* AGENT_EXEC's payload; empty for one that was attached to */
	bool asked, started, orphan, held, slowed, over;
	bool busy, dead; /* inside output(): freed when it returns */
	bool attaching;  /* the answer awaited is ATTACH's */
	uint64_t off[3]; /* by stream number */
	uint64_t in_sent, in_taken;
	uint64_t acked;
	int tries;
};

static void exec_connect(struct agent_exec *x);

static void exec_free(struct agent_exec *x)
{
	if (x->busy) {
		x->dead = true;
		return;
	}
	agent_stream_drop(&x->stream);
	aconn_close(x->conn);
	timer_remove(x->again);
	timer_remove(x->slow);
	buf_fini(&x->spec);
	free(x);
}

static void exec_end(
	struct agent_exec *x, const struct agent_reply *r, uint32_t state, uint32_t code)
{
	if (x->over)
		return;
	x->over = true;
	aconn_close(take_ptr(x->conn));
	timer_set(x->again, 0);
	agent_spare_make(x->stream.agentc);
	if (x->orphan)
		exec_free(x);
	else
		x->ops->ended(x->arg, r, state, code);
}

static void exec_fail(struct agent_exec *x, int err)
{
	struct agent_reply r = {.err = err, .text = ""};

	exec_end(x, &r, 0, 0);
}

static void send_ack(struct agent_exec *x)
{
	struct buf b;

	buf_init(&b, 64);
	buf_u64(&b, x->off[1]);
	buf_u64(&b, x->off[2]);
	if (aconn_send(x->conn, AGENT_ACK, 0, b.p, b.len))
		x->acked = x->off[1] + x->off[2];
	buf_fini(&b);
}

static int send_start(struct agent_exec *x)
{
	struct buf b;
	bool ok;

	if (!x->asked) {
		size_t len = x->spec.len;

		x->asked = true;
		x->attaching = false;
		agent_exec_finish(x->stream.agentc, &x->spec);
		ok = !x->spec.bad &&
		     aconn_send(x->conn, AGENT_EXEC, ID_START, x->spec.p, x->spec.len);
		x->spec.len = len;
		return ok ? 0 : EBUSY;
	}
	x->attaching = true;
	buf_init(&b, 256);
	buf_str(&b, x->exec_id);
	buf_u64(&b, x->off[1]);
	buf_u64(&b, x->off[2]);
	ok = !b.bad && aconn_send(x->conn, AGENT_ATTACH, ID_START, b.p, b.len);
	buf_fini(&b);
	return ok ? 0 : EBUSY;
}

static int got_answer(struct agent_exec *x, const struct agent_hdr *h, struct cur body)
{
	struct agent_reply r = {.text = ""};
	char text[AGENT_TEXT_MAX];
	uint32_t v;

	if (h->id == ID_DETACH) {
		exec_fail(x, ECANCELED);
		return 0;
	}
	if (h->id != ID_START)
		return EPROTO;
	if (h->type == AGENT_ERR) {
		if (agent_err_read(body, &r, text))
			return EPROTO;
		if (x->attaching && !x->started && x->spec.len &&
			(r.err == ENOENT || r.err == ESRCH)) {
			x->asked = false;
			return send_start(x);
		}
		exec_end(x, &r, 0, 0);
		return 0;
	}
	v = cur_u32(&body);
	if (!cur_done(&body))
		return EPROTO;
	if (x->started)
		return 0;
	x->started = true;
	if (!x->orphan && x->ops->started)
		x->ops->started(x->arg, x->attaching ? 0 : v);
	return 0;
}

static void exec_hold(struct agent_exec *x)
{
	if (x->conn)
		aconn_hold(x->conn, x->held || x->slowed);
}

static void exec_goes_on(void *arg)
{
	struct agent_exec *x = arg;

	x->slowed = false;
	exec_hold(x);
}

/* Bounds the daemon's time for a process that prints without end: reading pauses, and the process's pipe fills. */
void agent_exec_unread(struct agent_exec *x, size_t n)
{
	uint64_t now = mono_ns(), every_ns = agent_unread_ns(x->stream.agentc);

	if (now - x->unread_ns >= every_ns) {
		x->unread_ns = now;
		x->unread = 0;
	}
	x->unread += n;
	if (x->unread < UNREAD_MAX || x->slowed)
		return;
	x->slowed = true;
	timer_set(x->slow, x->unread_ns + every_ns);
	exec_hold(x);
}

static int got_output(struct agent_exec *x, struct cur body)
{
	uint8_t stream = cur_u8(&body);
	uint64_t off = cur_u64(&body), skip;
	size_t n = cur_left(&body);
	const uint8_t *p = cur_bytes(&body, n);

	/* 3 is for terminals: agent_client_terminal.c. off[] and the reader of the output have no place for it. */
	if (!p || !x->started || (stream != 1 && stream != 2) || off + n < off ||
		off > x->off[stream])
		return EPROTO;
	skip = x->off[stream] - off;
	if (skip >= n)
		return 0;
	x->off[stream] += n - skip;
	x->busy = true;
	if (!x->orphan && x->ops->output)
		x->ops->output(x->arg, stream, p + skip, n - skip);
	else
		agent_exec_unread(x, n - skip);
	x->busy = false;
	if (x->dead)
		exec_free(x);
	else if (!x->over && x->conn && x->off[1] + x->off[2] - x->acked >= ACK_EVERY)
		send_ack(x);
	return 0;
}

static int got_exit(struct agent_exec *x, struct cur body)
{
	struct agent_reply r = {.text = ""};
	uint32_t state = cur_u32(&body), code = cur_u32(&body);
	char text[AGENT_TEXT_MAX];
	size_t len;
	const char *s = cur_strp(&body, &len, AGENT_FRAME_MAX);

	if (!s || !cur_done(&body) || !x->started || state < AGENT_EXITED ||
		state > AGENT_NOT_STARTED)
		return EPROTO;
	len = MIN(len, sizeof(text) - 1);
	memcpy(text, s, len);
	text[len] = 0;
	r.text = text;
	send_ack(x); /* of all output: the agent may free it */
	exec_end(x, &r, state, code);
	return 0;
}

/* How much of its input the process took. Nobody sends input here, so in_sent is 0, and only 0 is right. */
static int got_taken(struct agent_exec *x, struct cur body)
{
	uint64_t n = cur_u64(&body);

	if (!cur_done(&body) || n < x->in_taken || n > x->in_sent)
		return EPROTO;
	x->in_taken = n;
	return 0;
}

static int exec_frame(void *arg, const struct agent_hdr *h, struct cur body)
{
	struct agent_exec *x = arg;

	switch (h->type) {
	case AGENT_OK:
	case AGENT_ERR:
		return got_answer(x, h, body);
	case AGENT_OUT:
		return got_output(x, body);
	case AGENT_EXIT:
		return got_exit(x, body);
	case AGENT_STDIN_TAKEN:
		return got_taken(x, body);
	default:
		return EPROTO;
	}
}

static void exec_closed(void *arg, int err)
{
	struct agent_exec *x = arg;

	aconn_close(take_ptr(x->conn));
	/* the agent did not read the request: it is sent again, in the older version */
	if (err == EPROTONOSUPPORT && agent_version_refused(x->stream.agentc))
		x->asked = x->started;
	/* an agent that broke the protocol would do it again: only after a lost connection is another one
	 * tried */
	if (x->orphan || err == EPROTO || err == EMSGSIZE) {
		exec_fail(x, err ? err : ECONNRESET);
		return;
	}
	if (!agentc_is_up(x->stream.agentc))
		return;
	if (mono_ns() - x->opened_ns >= AGENT_GOOD_NS)
		x->tries = 0;
	if (++x->tries > TRIES_MAX)
		exec_fail(x, err ? err : ECONNRESET);
	else if (x->tries == 1)
		exec_connect(x);
	else
		timer_after(x->again, agent_backoff_ns(AGAIN_NS, (unsigned int)x->tries));
}

static const struct aconn_ops exec_conn_ops = {.frame = exec_frame, .closed = exec_closed};

static void exec_again(void *arg)
{
	struct agent_exec *x = arg;

	if (x->orphan)
		exec_fail(x, ETIMEDOUT);
	else if (!x->conn && agentc_is_up(x->stream.agentc))
		exec_connect(x);
}

static void exec_connect(struct agent_exec *x)
{
	x->opened_ns = mono_ns();
	x->conn = agent_stream_open(&x->stream, AGENT_CONN_EXEC, &exec_conn_ops, x);
	if (!x->conn) {
		x->tries++;
		timer_after(x->again, agent_backoff_ns(AGAIN_NS, (unsigned int)x->tries));
		return;
	}
	send_start(x);
	exec_hold(x);
}

static void exec_up(struct agent_stream *s)
{
	struct agent_exec *x = container_of(s, struct agent_exec, stream);

	x->tries = 0;
	if (!x->conn && !x->over)
		exec_connect(x);
}

static void exec_down(struct agent_stream *s)
{
	struct agent_exec *x = container_of(s, struct agent_exec, stream);

	timer_set(x->again, 0);
	aconn_close(take_ptr(x->conn));
	if (x->orphan)
		exec_fail(x, ECONNRESET);
}

static void exec_cancel(struct agent_stream *s, int err)
{
	exec_fail(container_of(s, struct agent_exec, stream), err);
}

void agent_exec_encode(struct buf *b, const struct agent_exec_spec *s)
{
	buf_str(b, s->exec_id);
	buf_u32(b, s->flags);
	buf_u32(b, s->uid);
	buf_u32(b, s->gid);
	buf_str(b, s->user);
	buf_str(b, s->cwd);
	buf_u64(b, s->timeout_ms);
	buf_u16(b, s->cols);
	buf_u16(b, s->rows);
	buf_str(b, s->session);
	buf_u32(b, (uint32_t)s->argc);
	for (size_t i = 0; i < s->argc; i++)
		buf_str(b, s->argv[i]);
	buf_u32(b, (uint32_t)s->envc);
	for (size_t i = 0; i < s->envc; i++) {
		buf_str(b, s->env_keys[i]);
		buf_str(b, s->env_vals[i]);
	}
}

static struct agent_exec *exec_new(
	struct agentc *a, const char *id, const struct agent_exec_ops *ops, void *arg)
{
	struct agent_exec *x;

	if (strlen(id) >= sizeof(x->exec_id)) {
		errno = EINVAL;
		return NULL;
	}
	x = calloc(1, sizeof(*x));
	if (!x)
		return NULL;
	x->stream = (struct agent_stream){.up = exec_up, .down = exec_down, .cancel = exec_cancel};
	x->ops = ops;
	x->arg = arg;
	memcpy(x->exec_id, id, strlen(id) + 1);
	buf_init(&x->spec, AGENT_FRAME_MAX);
	x->again = loop_timer(agentc_loop(a), exec_again, x);
	x->slow = loop_timer(agentc_loop(a), exec_goes_on, x);
	if (!x->again || !x->slow || !agent_stream_add(a, &x->stream)) {
		int saved = x->again && x->slow ? errno : ENOMEM;

		exec_free(x);
		errno = saved;
		return NULL;
	}
	return x;
}

struct agent_exec *agent_exec_start(struct agentc *a, const struct agent_exec_spec *s,
	const struct agent_exec_ops *ops, void *arg)
{
	struct agent_exec *x = exec_new(a, s->exec_id, ops, arg);

	if (!x)
		return NULL;
	agent_exec_encode(&x->spec, s);
	/* agent_exec_finish adds to it, by the agent's version */
	if (x->spec.bad || x->spec.len > AGENT_FRAME_MAX - sizeof(uint32_t)) {
		exec_free(x);
		errno = E2BIG;
		return NULL;
	}
	if (agentc_is_up(a))
		exec_connect(x);
	return x;
}

struct agent_exec *agent_exec_attach(struct agentc *a, const char *exec_id, uint64_t out_off,
	uint64_t err_off, const struct agent_exec_ops *ops, void *arg)
{
	struct agent_exec *x = exec_new(a, exec_id, ops, arg);

	if (!x)
		return NULL;
	x->asked = true;
	x->off[1] = out_off;
	x->off[2] = err_off;
	x->acked = out_off + err_off;
	if (agentc_is_up(a))
		exec_connect(x);
	return x;
}

void agent_exec_hold(struct agent_exec *x, bool hold)
{
	x->held = hold;
	exec_hold(x);
}

void agent_exec_close(struct agent_exec *x)
{
	struct buf b;

	if (!x)
		return;
	if (x->over || !x->stream.agentc || !x->asked) {
		exec_free(x);
		return;
	}
	/* AGENT_DETACH is sent after the start, on the same connection, so that it cannot arrive first.
	 * Without such a connection it is sent on the control connection. */
	buf_init(&b, 256);
	buf_str(&b, x->exec_id);
	x->orphan = true;
	if (x->conn && aconn_send(x->conn, AGENT_DETACH, ID_DETACH, b.p, b.len)) {
		x->held = false;
		exec_hold(x);
		timer_after(x->again, DETACH_NS);
	} else {
		agentc_call(x->stream.agentc, AGENT_DETACH, &b, 0, NULL, NULL);
		exec_free(x);
	}
	buf_fini(&b);
}
