/* SPDX-License-Identifier: Apache-2.0
 *
 * websocket.c: see websocket.h. libwslay reads and writes frames, joins fragments, answers pings and checks text; added here are the client's handshake,
 * deadlines, and one end for every way in which a WebSocket ends.
 *
 * libwslay pulls its input, so the bytes that ws_input() got are kept in `in` meanwhile. Output
 * never stays in libwslay's queue: the wire takes everything or ends the WebSocket. This bounds the
 * memory for a peer that sends pings and reads no answers.
 */
#include "lib/websocket.h"

#include <stdio.h>
#include <string.h>
#include <wslay/wslay.h>

#include "lib/http1.h"

#define SEC              1000000000ull
#define CLOSE_LIMIT_S    5  /* for a peer to answer a close frame */
#define HANDSHAKE_WAIT_S 30 /* where the configuration has no limit */
#define REASON_MAX       123
#define REQUEST_MAX      65536u
#define FRAGMENTS_MAX    1024u /* of one message: libwslay allocates memory for each */
#define FRAGMENT_COST    64u   /* beside its bytes */

#define WS_HEAD_MAX 14    /* of a frame */
#define WS_TOGETHER 4096u /* payloads up to this leave in one piece with their head */

enum ws_state { WS_S_HANDSHAKE, WS_S_OPEN, WS_S_CLOSING, WS_S_OVER };

/* Only until the server has answered. */
struct ws_handshake {
	struct http1_response response;
	char key[WS_KEY_CHARS + 1];
	char protocols[WS_PROTOCOLS_BYTES];
};

struct ws {
	struct ws_wire wire;
	const struct ws_ops *ops;
	void *arg;
	enum ws_state state;
	unsigned int ping_s, dead_s;
	wslay_event_context_ptr frames;
	struct ws_handshake *handshake;
	struct timer *timer;
	uint64_t heard_ns, ping_ns, limit_ns; /* limit_ns: of handshake or close */
	struct cur in;
	int code; /* of the end; 0: not known yet */
	char reason[REASON_MAX + 1];
	int in_call;
	uint8_t head[WS_HEAD_MAX]; /* of a frame whose payload comes next */
	size_t head_n;
	unsigned int fragments; /* of the message that comes in */
	size_t partial;         /* bytes of it */
	bool wire_over, held, dead;
};

static void ws_free(struct ws *w)
{
	timer_remove(w->timer);
	if (w->frames)
		wslay_event_context_free(w->frames);
	if (w->handshake)
		http1_fini(&w->handshake->response);
	free(w->handshake);
	free(w);
}

void ws_destroy(struct ws *w)
{
	if (!w)
		return;
	w->dead = true;
	w->state = WS_S_OVER;
	if (!w->in_call)
		ws_free(w);
}

bool ws_is_open(const struct ws *w)
{
	return w->state == WS_S_OPEN;
}

bool ws_code_may_be_sent(int code)
{
	return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) ||
	       (code >= 3000 && code <= 4999);
}

/* What the peer gave as its reason, for our logs. */
static void ws_keep_reason(struct ws *w, const char *p, size_t n)
{
	n = MIN(n, (size_t)REASON_MAX);
	for (size_t i = 0; i < n; i++)
		w->reason[i] = p[i] >= ' ' && p[i] < 127 ? p[i] : '?';
	w->reason[n] = 0;
}

static void ws_over(struct ws *w, int code, const char *reason)
{
	if (w->state == WS_S_OVER)
		return;
	w->state = WS_S_OVER;
	timer_set(w->timer, 0);
	if (!w->code)
		w->code = code;
	if (!*w->reason)
		ws_keep_reason(w, reason, strlen(reason));
	w->in_call++;
	w->ops->closed(w->arg, w->code, w->reason);
	w->in_call--;
}

/* ---- the deadline and the next ping */

static void ws_arm(struct ws *w)
{
	uint64_t at = w->limit_ns;

	if (w->state == WS_S_OVER)
		return;
	if (w->dead_s && !w->held && (!at || w->heard_ns + w->dead_s * SEC < at))
		at = w->heard_ns + w->dead_s * SEC;
	if (w->state == WS_S_OPEN && w->ping_s && (!at || w->ping_ns < at))
		at = w->ping_ns;
	timer_set(w->timer, at);
}

/* Gives what libwslay has queued to the wire. */
static void ws_flush(struct ws *w)
{
	if (wslay_event_send(w->frames) < 0)
		w->wire_over = true;
}

static void ws_ping(struct ws *w, uint64_t now)
{
	struct wslay_event_msg m = {.opcode = WSLAY_PING};

	w->ping_ns = now + w->ping_s * SEC;
	if (wslay_event_queue_msg(w->frames, &m) == 0)
		ws_flush(w);
}

static void ws_call_end(struct ws *w)
{
	w->in_call--;
	if (!w->in_call && w->dead)
		ws_free(w);
}

static void ws_on_time(void *arg)
{
	struct ws *w = arg;
	uint64_t now = mono_ns();

	w->in_call++;
	if (w->wire_over)
		ws_over(w, WS_ABNORMAL, "the stream has ended");
	else if (w->limit_ns && now >= w->limit_ns)
		ws_over(w, WS_ABNORMAL,
			w->state == WS_S_HANDSHAKE ? "the handshake took too long"
						   : "the peer did not answer the close");
	else if (w->dead_s && !w->held && now >= w->heard_ns + w->dead_s * SEC)
		ws_over(w, WS_ABNORMAL, "the peer sent nothing for too long");
	else if (w->state == WS_S_OPEN && w->ping_s && now >= w->ping_ns)
		ws_ping(w, now);
	if (w->wire_over)
		ws_over(w, WS_ABNORMAL, "the stream has ended");
	ws_arm(w);
	ws_call_end(w);
}

/* ---- libwslay's calls */

static ssize_t ws_pull(wslay_event_context_ptr x, uint8_t *to, size_t max, int flags, void *arg)
{
	struct ws *w = arg;
	size_t n = MIN(max, cur_left(&w->in));

	if (n == 0 || w->state == WS_S_OVER) {
		wslay_event_set_error(x, WSLAY_ERR_WOULDBLOCK);
		return -1;
	}
	memcpy(to, cur_bytes(&w->in, n), n);
	return (ssize_t)n;
}

/* libwslay pushes head and payload apart. Sent apart, the echo of a keystroke would be two packets and two wake-ups. */
static bool ws_push_whole(struct ws *w, const uint8_t *p, size_t n)
{
	uint8_t frame[WS_HEAD_MAX + WS_TOGETHER];
	size_t head_n = w->head_n;

	w->head_n = 0;
	if (!head_n)
		return w->wire.send(w->wire.to, p, n);
	if (n > WS_TOGETHER)
		return w->wire.send(w->wire.to, w->head, head_n) && w->wire.send(w->wire.to, p, n);
	memcpy(frame, w->head, head_n);
	memcpy(frame + head_n, p, n);
	return w->wire.send(w->wire.to, frame, head_n + n);
}

static ssize_t ws_push(wslay_event_context_ptr x, const uint8_t *p, size_t n, int flags, void *arg)
{
	struct ws *w = arg;

	/* its owner destroyed it from inside message(), and the wire may be freed */
	if (w->dead || w->state == WS_S_OVER)
		w->wire_over = true;
	if (!w->wire_over && (flags & WSLAY_MSG_MORE) && !w->head_n && n <= sizeof(w->head)) {
		memcpy(w->head, p, n);
		w->head_n = n;
		return (ssize_t)n;
	}
	if (w->wire_over || !ws_push_whole(w, p, n)) {
		w->wire_over = true;
		wslay_event_set_error(x, WSLAY_ERR_CALLBACK_FAILURE);
		return -1;
	}
	return (ssize_t)n;
}

static int ws_mask(wslay_event_context_ptr x, uint8_t *to, size_t n, void *arg)
{
	random_bytes(to, n);
	return 0;
}

static void ws_message(
	wslay_event_context_ptr x, const struct wslay_event_on_msg_recv_arg *m, void *arg)
{
	struct ws *w = arg;

	w->heard_ns = mono_ns();
	if (w->state == WS_S_OVER)
		return;
	if (w->ops->alive)
		w->ops->alive(w->arg);
	if (m->opcode == WSLAY_CONNECTION_CLOSE) {
		if (!w->code)
			w->code = m->status_code ? m->status_code : WS_NO_CODE;
		/* two bytes are the code */
		if (m->msg_length > 2 && !*w->reason)
			ws_keep_reason(w, (const char *)m->msg + 2, m->msg_length - 2);
	} else if (!wslay_is_ctrl_frame(m->opcode) && w->state == WS_S_OPEN) {
		w->fragments = w->partial = 0;
		w->ops->message(w->arg, m->opcode == WSLAY_TEXT_FRAME, m->msg, m->msg_length);
	}
}

/* Each fragment costs more than its bytes, so message_max alone does not bound a message. */
static void ws_frame_begins(
	wslay_event_context_ptr x, const struct wslay_event_on_frame_recv_start_arg *f, void *arg)
{
	struct ws *w = arg;

	if (wslay_is_ctrl_frame(f->opcode))
		return;
	if (f->opcode != WSLAY_CONTINUATION_FRAME)
		w->fragments = w->partial = 0;
	w->partial += f->payload_length;
	if (++w->fragments <= FRAGMENTS_MAX)
		return;
	wslay_event_shutdown_read(x);
	wslay_event_queue_close(x, WS_TOO_BIG, NULL, 0);
}

static const struct wslay_event_callbacks ws_calls = {
	.recv_callback = ws_pull,
	.send_callback = ws_push,
	.genmask_callback = ws_mask,
	.on_frame_recv_start_callback = ws_frame_begins,
	.on_msg_recv_callback = ws_message,
};

/* ---- input */

/* Called after input was handled: has the WebSocket ended, and by which side? */
static void ws_look_for_end(struct ws *w)
{
	if (w->state == WS_S_OVER)
		return;
	/* the answer to the peer's close, or the reason why we stop reading, leaves first */
	ws_flush(w);
	if (w->wire_over)
		ws_over(w, WS_ABNORMAL, "the stream has ended");
	else if (wslay_event_get_close_received(w->frames))
		ws_over(w, WS_NO_CODE, "");
	else if (!wslay_event_get_read_enabled(w->frames))
		ws_over(w, wslay_event_get_status_code_sent(w->frames),
			"the peer broke the protocol");
}

static void ws_frames_in(struct ws *w)
{
	int rc;

	w->heard_ns = mono_ns();
	rc = wslay_event_recv(w->frames);
	w->in = cur_of(NULL, 0);
	if (rc < 0) {
		/* a malformed head of a frame: libwslay has queued a close without a code */
		ws_flush(w);
		ws_over(w, rc == WSLAY_ERR_NOMEM ? WS_INTERNAL : WS_PROTOCOL,
			"the peer sent a malformed frame");
	}
	ws_look_for_end(w);
	ws_arm(w);
}

static void ws_handshake_done(struct ws *w)
{
	struct ws_handshake *h = w->handshake;
	const char *protocol = NULL, *why;

	why = ws_response_check(&h->response, h->key, h->protocols, &protocol);
	if (why) {
		ws_over(w, WS_ABNORMAL, why);
		return;
	}
	w->state = WS_S_OPEN;
	w->limit_ns = 0;
	w->heard_ns = mono_ns();
	w->ping_ns = w->heard_ns + w->ping_s * SEC;
	ws_arm(w);
	if (w->ops->opened)
		w->ops->opened(w->arg, protocol);
	http1_fini(&h->response);
	free(take_ptr(w->handshake));
}

static void ws_handshake_in(struct ws *w, const uint8_t **p, size_t *n)
{
	const uint8_t *data;
	size_t len;
	enum http1_ev ev = http1_next(&w->handshake->response, p, n, &data, &len);

	if (ev == H1_HEAD)
		ws_handshake_done(w);
	else if (ev == H1_BAD)
		ws_over(w, WS_ABNORMAL, w->handshake->response.why);
}

void ws_input(struct ws *w, const uint8_t *p, size_t n)
{
	w->in_call++;
	while (w->state == WS_S_HANDSHAKE && n > 0)
		ws_handshake_in(w, &p, &n);
	if ((w->state == WS_S_OPEN || w->state == WS_S_CLOSING) && n > 0) {
		w->in = cur_of(p, n);
		ws_frames_in(w);
	}
	ws_call_end(w);
}

void ws_input_end(struct ws *w)
{
	w->in_call++;
	ws_over(w, WS_ABNORMAL, "the stream ended");
	ws_call_end(w);
}

void ws_hold(struct ws *w, bool hold)
{
	if (w->held == hold)
		return;
	w->held = hold;
	w->heard_ns = mono_ns();
	ws_arm(w);
}

size_t ws_held(const struct ws *w)
{
	return w->partial + w->fragments * FRAGMENT_COST;
}

/* ---- output */

/* Errors of the wire are reported from the loop, never from inside ws_send(). */
static void ws_tell_later(struct ws *w)
{
	if (w->wire_over && w->state != WS_S_OVER)
		timer_set(w->timer, 1);
}

bool ws_send(struct ws *w, bool text, const void *p, size_t n)
{
	struct wslay_event_msg m = {
		.opcode = text ? WSLAY_TEXT_FRAME : WSLAY_BINARY_FRAME, .msg = p, .msg_length = n};

	if (w->state != WS_S_OPEN || w->wire_over || wslay_event_queue_msg(w->frames, &m) != 0)
		return false;
	ws_flush(w);
	ws_tell_later(w);
	return !w->wire_over;
}

void ws_close(struct ws *w, int code, const char *reason)
{
	size_t n = reason ? strnlen(reason, REASON_MAX) : 0;

	if (w->state == WS_S_OVER || w->state == WS_S_CLOSING)
		return;
	w->limit_ns = mono_ns() + CLOSE_LIMIT_S * SEC;
	if (w->state == WS_S_OPEN) {
		wslay_event_queue_close(w->frames, (uint16_t)code, (const uint8_t *)reason, n);
		ws_flush(w);
	} else {
		w->limit_ns = 1; /* no WebSocket yet, so no close frame: end at once */
	}
	if (w->state != WS_S_HANDSHAKE)
		w->state = WS_S_CLOSING;
	ws_arm(w);
	ws_tell_later(w);
}

/* ---- the beginning */

static int ws_request_begin(struct ws *w, const struct ws_request *q)
{
	_cleanup_(buf_fini) struct buf b;
	struct ws_handshake *h = calloc(1, sizeof(*h));

	buf_init(&b, REQUEST_MAX);
	w->handshake = h;
	if (!h)
		return -ENOMEM;
	http1_init(&h->response, false);
	h->response.upgrade_ok = true;
	ws_new_key(h->key);
	if (q->protocols && strlen(q->protocols) >= sizeof(h->protocols))
		return -EINVAL;
	str_copy(h->protocols, sizeof(h->protocols), q->protocols ? q->protocols : "");
	if (!ws_request_put(&b, q, h->key))
		return -EINVAL;
	w->state = WS_S_HANDSHAKE;
	w->limit_ns = w->heard_ns + (w->dead_s ? w->dead_s : HANDSHAKE_WAIT_S) * SEC;
	w->wire_over = !w->wire.send(w->wire.to, b.p, b.len);
	return 0;
}

static int ws_begin(struct ws *w, const struct ws_config *c)
{
	int rc = c->role == WS_SERVER ? wslay_event_context_server_init(&w->frames, &ws_calls, w)
				      : wslay_event_context_client_init(&w->frames, &ws_calls, w);

	if (rc != 0)
		return -ENOMEM;
	wslay_event_config_set_max_recv_msg_length(w->frames, c->message_max);
	if (c->role == WS_CLIENT)
		return ws_request_begin(w, c->request);
	w->state = WS_S_OPEN;
	return 0;
}

struct ws *ws_create(struct loop *l, const struct ws_config *c, const struct ws_wire *wire,
	const struct ws_ops *ops, void *arg)
{
	struct ws *w = calloc(1, sizeof(*w));
	int rc;

	if (!w)
		return NULL;
	*w = (struct ws){.wire = *wire,
		.ops = ops,
		.arg = arg,
		.ping_s = c->ping_s,
		.dead_s = c->dead_s,
		.heard_ns = mono_ns()};
	w->ping_ns = w->heard_ns + w->ping_s * SEC;
	w->timer = loop_timer(l, ws_on_time, w);
	rc = w->timer ? ws_begin(w, c) : -ENOMEM;
	if (rc) {
		ws_free(w);
		errno = -rc;
		return NULL;
	}
	ws_arm(w);
	ws_tell_later(w);
	return w;
}
