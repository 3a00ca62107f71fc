/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_client.c: the CONTROL connection of a sandbox and the list of its streams. The daemon's loop
 * thread; answers are hostile. An id is never used twice on a connection. An answer to a request that
 * nobody waits for any more is dropped. An answer to an id that was never given ends the connection.
 */
#include "api/links/agent_client_int.h"

#include <string.h>

#include "lib/log.h"

#define STREAMS_QUEUED ((size_t)MIB(16))
#define CALL_BUCKETS   256u
#define STRAYS_MAX     16u   /* answers to nothing, then the connection ends */
#define PIECES_MAX     4096u /* of long answers that are no longer waited for */

struct agent_call {
	struct agentc *a;
	struct agent_call *prev, *next; /* in the order of their ids */
	struct agent_call *same;        /* the next one of the same bucket */
	uint32_t id;
	agent_reply_fn fn;
	void *arg;
	struct timer *limit;
	uint16_t type, flags;
	struct buf payload; /* kept until it was handed to a connection */
	bool sent;
};

struct agentc {
	struct loop *loop;
	char *path;
	uint32_t port;
	bool up, gone, keep_spare;
	uint32_t version;
	struct aconn *spare; /* an EXEC connection that nobody uses */
	struct aconn *control;
	bool control_ready;
	struct agent_call *first, *last;
	struct agent_call *buckets[CALL_BUCKETS]; /* by id */
	size_t ncalls, nstreams;
	struct aconn_budget *budget;
	struct account queued; /* bytes of requests that were not sent; below the budget */
	/* Answers to requests that were sent and are no longer waited for may still come, one each. Others are strays. */
	uint32_t owed, strays, pieces;
	uint64_t reconnect_ns, unread_ns;
	unsigned int losses; /* of the control connection, in a row */
	uint64_t opened_ns;
	bool waits; /* for the timer `again`, which makes the control connection again */
	uint32_t next_id;
	struct agent_stream *streams,
		*walk; /* walk: the next one of a loop over all, kept right by agent_stream_drop */
	struct {
		void *p;
		void (*fn)(void *data);
	} data[AGENTC_SLOTS];
	struct timer *again;
};

#define RECONNECT_NS 200000000ull
#define UNREAD_NS    1000000000ull

static void control_open(struct agentc *a);

uint64_t agent_backoff_ns(uint64_t first_ns, unsigned int n)
{
	return first_ns << MIN(n, 5u);
}

/* An agent that ends each connection at once is asked again later and later. */
static void control_wait(struct agentc *a)
{
	a->waits = true;
	timer_after(a->again, agent_backoff_ns(a->reconnect_ns, a->losses));
	a->losses += a->losses < 5;
}

struct loop *agentc_loop(const struct agentc *a)
{
	return a->loop;
}

void agentc_pace(struct agentc *a, uint64_t reconnect_ns, uint64_t unread_ns)
{
	a->reconnect_ns = reconnect_ns;
	a->unread_ns = unread_ns;
}

uint64_t agent_unread_ns(const struct agentc *a)
{
	return a->unread_ns;
}

bool agentc_is_up(const struct agentc *a)
{
	return a->up;
}

struct account *agentc_account(const struct agentc *a)
{
	return a->budget->account.parent;
}

void *agentc_data(const struct agentc *a, enum agentc_slot slot)
{
	return a->data[slot].p;
}

void agentc_set_data(struct agentc *a, enum agentc_slot slot, void *data, void (*fn)(void *data))
{
	a->data[slot].p = data;
	a->data[slot].fn = fn;
}

int agent_err_read(struct cur body, struct agent_reply *r, char text[AGENT_TEXT_MAX])
{
	uint32_t err = cur_u32(&body);
	size_t len;
	const char *s;

	r->step = cur_u32(&body);
	s = cur_strp(&body, &len, AGENT_FRAME_MAX);
	if (!s || !cur_done(&body) || err == 0 || err > 4095)
		return EPROTO;
	len = MIN(len, (size_t)AGENT_TEXT_MAX - 1);
	for (size_t i = 0; i < len; i++)
		text[i] = (unsigned char)s[i] < 0x20 || s[i] == 0x7f ? ' ' : s[i];
	text[len] = 0;
	r->err = (int)err;
	r->text = text;
	r->body = cur_of(NULL, 0);
	return 0;
}

/* ---- calls */

static struct agent_call **call_bucket(struct agentc *a, uint32_t id)
{
	return &a->buckets[id % CALL_BUCKETS];
}

static struct agent_call *call_find(struct agentc *a, uint32_t id)
{
	struct agent_call *c = *call_bucket(a, id);

	while (c && c->id != id)
		c = c->same;
	return c;
}

static void call_link(struct agent_call *c)
{
	struct agentc *a = c->a;
	struct agent_call **b = call_bucket(a, c->id);

	c->same = *b;
	*b = c;
	c->prev = a->last;
	*(a->last ? &a->last->next : &a->first) = c;
	a->last = c;
	a->ncalls++;
	account_force(&a->queued, c->payload.len);
}

static void call_unlink(struct agent_call *c)
{
	struct agentc *a = c->a;
	struct agent_call **b = call_bucket(a, c->id);

	while (*b != c)
		b = &(*b)->same;
	*b = c->same;
	*(c->prev ? &c->prev->next : &a->first) = c->next;
	*(c->next ? &c->next->prev : &a->last) = c->prev;
	a->ncalls--;
	if (!c->sent)
		account_give(&a->queued, c->payload.len);
}

static void call_free(struct agent_call *c)
{
	call_unlink(c);
	timer_remove(c->limit);
	buf_fini(&c->payload);
	free(c);
}

static void call_end(struct agent_call *c, int err)
{
	struct agent_reply r = {.err = err, .text = ""};
	agent_reply_fn fn = c->fn;
	void *arg = c->arg;

	call_free(c);
	if (fn)
		fn(arg, &r);
}

void agent_call_cancel(struct agent_call *c)
{
	if (!c)
		return;
	c->a->owed += c->sent;
	call_free(c);
}

static void call_timed_out(void *arg)
{
	struct agent_call *c = arg;

	c->a->owed += c->sent;
	call_end(c, ETIMEDOUT);
}

void agent_exec_finish(const struct agentc *a, struct buf *b)
{
	if (a->version >= 2)
		buf_u32(b, 0); /* no limits: the API has none */
}

static bool call_send(struct agent_call *c)
{
	size_t len = c->payload.len;

	ASSERT(!c->sent);
	if (c->type == AGENT_EXEC)
		agent_exec_finish(c->a, &c->payload);
	c->sent = aconn_send_flags(
		c->a->control, c->type, c->flags, c->id, c->payload.p, c->payload.len);
	c->payload.len = len;
	if (c->sent) {
		account_give(&c->a->queued, len);
		buf_fini(&c->payload);
	}
	return c->sent;
}

struct agent_call *agentc_call(struct agentc *a, uint16_t type, const struct buf *payload,
	uint32_t limit_ms, agent_reply_fn fn, void *arg)
{
	return agentc_call_in(a, NULL, type, payload, limit_ms, fn, arg);
}

struct agent_call *agentc_call_in(struct agentc *a, const char *session, uint16_t type,
	const struct buf *payload, uint32_t limit_ms, agent_reply_fn fn, void *arg)
{
	struct agent_call *c;
	size_t n =
		(payload ? payload->len : 0) + (session ? sizeof(uint32_t) + strlen(session) : 0);

	if (a->gone || a->ncalls >= AGENTC_CALLS_MAX || account_full(&a->queued, n)) {
		errno = EBUSY;
		return NULL;
	}
	if (n > AGENT_FRAME_MAX || (payload && payload->bad)) {
		errno = EMSGSIZE;
		return NULL;
	}
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	*c = (struct agent_call){.a = a, .id = ++a->next_id, .fn = fn, .arg = arg, .type = type};
	buf_init(&c->payload, AGENT_FRAME_MAX);
	if (session) {
		c->flags = AGENT_FL_SESSION;
		buf_str(&c->payload, session);
	}
	if (payload && payload->len)
		buf_put(&c->payload, payload->p, payload->len);
	c->limit = limit_ms ? loop_timer(a->loop, call_timed_out, c) : NULL;
	if (c->payload.bad || (limit_ms && !c->limit)) {
		timer_remove(c->limit);
		buf_fini(&c->payload);
		free(c);
		errno = ENOMEM;
		return NULL;
	}
	if (limit_ms)
		timer_after(c->limit, limit_ms * 1000000ull);
	call_link(c);
	if (a->control && a->control_ready && !call_send(c)) {
		call_free(c);
		errno = EBUSY;
		return NULL;
	}
	if (a->up && !a->control && !a->waits)
		control_open(a);
	return c;
}

/* An answer that nobody waits for: a late one, or one that was never asked for. */
static int control_stray(struct agentc *a, bool more)
{
	if (a->owed && (!more || a->pieces < PIECES_MAX)) {
		if (more)
			a->pieces++;
		else
			a->owed--;
		return 0;
	}
	if (!a->owed && a->strays < STRAYS_MAX) {
		a->strays++;
		return 0;
	}
	log_limited(LOG_WARN, "agent: its connection ends: too many answers that nobody asked for");
	return EPROTO;
}

static int control_frame(void *arg, const struct agent_hdr *h, struct cur body)
{
	struct agentc *a = arg;
	struct agent_call *c = call_find(a, h->id);
	struct agent_reply r = {.text = ""};
	char text[AGENT_TEXT_MAX];
	agent_reply_fn fn;
	void *fn_arg;

	if ((h->type != AGENT_OK && h->type != AGENT_ERR) || h->id == 0 || h->id > a->next_id)
		return EPROTO;
	if (h->type == AGENT_ERR) {
		if (agent_err_read(body, &r, text))
			return EPROTO;
	} else {
		r.body = body;
		r.more = h->flags & AGENT_FL_MORE;
	}
	if (!c)
		return control_stray(a, r.more);
	if (!c->sent)
		return EPROTO;
	/* callbacks of all other requests are called once only */
	if (r.more && c->type != AGENT_LIST && c->type != AGENT_SEARCH)
		return EPROTO;
	fn = c->fn;
	fn_arg = c->arg;
	if (!r.more)
		call_free(c);
	if (fn)
		fn(fn_arg, &r);
	return 0;
}

static void control_ready(void *arg, uint64_t generation)
{
	struct agentc *a = arg;
	struct agent_call *next;

	a->control_ready = true;
	a->owed = a->strays = a->pieces = 0;
	for (struct agent_call *c = a->first; c; c = next) {
		next = c->next;
		if (!c->sent && !call_send(c)) {
			call_end(c, EBUSY);
			next = a->first; /* the callback may have cancelled others */
		}
	}
}

/* What was sent may or may not have been done: it ends. What was not sent waits for the next
 * connection. */
static void control_lost(struct agentc *a, int err, bool all)
{
	struct agent_call *c = a->first;

	aconn_close(take_ptr(a->control));
	a->control_ready = false;
	while (c) {
		if (!c->sent && !all) {
			c = c->next;
			continue;
		}
		call_end(c, err ? err : ECONNRESET);
		c = a->first;
	}
}

static void control_closed(void *arg, int err)
{
	struct agentc *a = arg;
	/* all: the greeting failed. Then requests that were not sent fail, too, or they would wait for ever */
	bool older = err == EPROTONOSUPPORT && agent_version_refused(a);
	bool all = !a->control_ready && a->up && !older;

	log_debug("agent control connection: %s", err ? strerror(err) : "closed");
	a->losses = mono_ns() - a->opened_ns >= AGENT_GOOD_NS ? 0 : a->losses;
	/* before control_lost(): a callback may send its request again at once */
	if (a->up && !a->gone && !older)
		control_wait(a);
	control_lost(a, err, all);
	if (older && a->up)
		control_open(a);
}

static const struct aconn_ops control_ops = {
	.ready = control_ready,
	.frame = control_frame,
	.closed = control_closed,
};

static void control_open(struct agentc *a)
{
	struct aconn_target t = {
		.path = a->path, .port = a->port, .version = a->version, .budget = a->budget};

	a->opened_ns = mono_ns();
	a->control = aconn_open(a->loop, &t, AGENT_CONN_CONTROL, &control_ops, a);
	if (!a->control)
		control_wait(a);
}

static void open_again(void *arg)
{
	struct agentc *a = arg;

	a->waits = false;
	/* without a waiting request, the next request opens the connection */
	if (a->up && !a->control && a->first)
		control_open(a);
}

/* ---- streams */

bool agent_stream_add(struct agentc *a, struct agent_stream *s)
{
	if (a->gone || a->nstreams >= AGENTC_STREAMS_MAX) {
		errno = EBUSY;
		return false;
	}
	s->agentc = a;
	s->prev = NULL;
	s->next = a->streams;
	if (a->streams)
		a->streams->prev = s;
	a->streams = s;
	a->nstreams++;
	return true;
}

void agent_stream_drop(struct agent_stream *s)
{
	struct agentc *a = s->agentc;

	if (!a)
		return;
	if (a->walk == s)
		a->walk = s->next;
	if (s->prev)
		s->prev->next = s->next;
	else
		a->streams = s->next;
	if (s->next)
		s->next->prev = s->prev;
	a->nstreams--;
	s->agentc = NULL;
}

bool agent_version_refused(struct agentc *a)
{
	if (a->version == AGENT_VERSION_MIN)
		return false;
	a->version--;
	return true;
}

static int spare_frame(void *arg, const struct agent_hdr *h, struct cur body)
{
	return EPROTO; /* nothing was asked on it */
}

static void spare_closed(void *arg, int err)
{
	struct agentc *a = arg;

	aconn_close(take_ptr(a->spare));
}

static const struct aconn_ops spare_ops = {.frame = spare_frame, .closed = spare_closed};

static struct aconn *open_kind(
	struct agentc *a, enum agent_conn kind, const struct aconn_ops *ops, void *arg)
{
	/* The streams share about STREAMS_QUEUED bytes for what a guest does not read: the more streams, the less for a new one. */
	struct aconn_target t = {.path = a->path,
		.port = a->port,
		.version = a->version,
		.budget = a->budget,
		.high = MAX(MIN(STREAMS_QUEUED / (a->nstreams + 1), (size_t)ACONN_HIGH),
			(size_t)KIB(64))};

	return aconn_open(a->loop, &t, kind, ops, arg);
}

void agentc_keep_spare(struct agentc *a)
{
	a->keep_spare = true;
}

void agent_spare_make(struct agentc *a)
{
	if (a->keep_spare && a->up && !a->gone && !a->spare)
		a->spare = open_kind(a, AGENT_CONN_EXEC, &spare_ops, a);
}

struct aconn *agent_stream_open(
	struct agent_stream *s, enum agent_conn kind, const struct aconn_ops *ops, void *arg)
{
	struct aconn *c = kind == AGENT_CONN_EXEC ? take_ptr(s->agentc->spare) : NULL;

	if (!c)
		return open_kind(s->agentc, kind, ops, arg);
	aconn_give(c, ops, arg);
	return c;
}

/* ---- life */

int agentc_move(struct agentc *a, const char *path)
{
	char *p = strdup(path);

	if (!p)
		return -ENOMEM;
	free(a->path);
	a->path = p;
	return 0;
}

struct agentc *agentc_create(
	struct loop *l, const char *path, uint32_t port, struct account *account)
{
	struct agentc *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->loop = l;
	a->port = port;
	a->version = AGENT_VERSION;
	a->budget = calloc(1, sizeof(*a->budget));
	if (a->budget)
		*a->budget = (struct aconn_budget){
			.account = {.whose = "this sandbox", .parent = account}, .refs = 1};
	agentc_pace(a, RECONNECT_NS, UNREAD_NS);
	a->queued = (struct account){.whose = "this sandbox",
		.limit = AGENTC_QUEUED_MAX,
		.parent = a->budget ? &a->budget->account : NULL};
	a->path = strdup(path);
	a->again = loop_timer(l, open_again, a);
	if (!a->path || !a->again || !a->budget) {
		agentc_destroy(a);
		return NULL;
	}
	return a;
}

void agentc_up(struct agentc *a)
{
	if (a->up)
		return;
	a->up = true;
	a->losses = 0;
	a->waits = false;
	a->version = AGENT_VERSION; /* a restore may have brought another agent */
	if (!a->control)
		control_open(a);
	for (struct agent_stream *s = a->streams; s; s = a->walk) {
		a->walk = s->next;
		s->up(s);
	}
}

void agentc_down(struct agentc *a)
{
	if (!a->up)
		return;
	a->up = false;
	a->waits = false;
	timer_set(a->again, 0);
	aconn_close(take_ptr(a->spare));
	control_lost(a, ECONNRESET, false);
	for (struct agent_stream *s = a->streams; s; s = a->walk) {
		a->walk = s->next;
		s->down(s);
	}
}

void agentc_destroy(struct agentc *a)
{
	if (!a)
		return;
	a->gone = true;
	a->up = false;
	aconn_close(take_ptr(a->spare));
	control_lost(a, ECANCELED, true);
	for (struct agent_stream *s = a->streams; s; s = a->walk) {
		a->walk = s->next;
		s->cancel(s, ECANCELED);
	}
	while (a->streams)
		agent_stream_drop(a->streams);
	timer_remove(a->again);
	for (size_t i = 0; i < AGENTC_SLOTS; i++)
		if (a->data[i].fn)
			a->data[i].fn(a->data[i].p);
	/* a connection that still closes keeps the budget, but not the account above it */
	if (a->budget)
		account_move(&a->budget->account, NULL);
	aconn_budget_unref(a->budget);
	free(a->path);
	free(a);
}
