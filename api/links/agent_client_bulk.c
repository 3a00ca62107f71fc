/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_client_bulk.c: one file read or written on a BULK connection, a byte stream to a port inside
 * the guest on a DIAL connection, and a request with a long answer on a CONTROL connection of its own.
 * The daemon's loop thread. What arrives is hostile. A read that gives more than it announced, data or
 * an answer out of place end the stream. So does a lost connection: these streams do not continue.
 */
#include "api/links/agent_client_int.h"

#include <string.h>

#define ID_ASK 1u

/* What files, pages and dials have in common: a request that waits for the agent, a connection, one end. */
struct bulk {
	struct agent_stream stream;
	enum agent_conn kind;
	const struct aconn_ops *conn_ops;
	struct aconn *conn;
	struct timer *late; /* reports in a later turn that an opening failed at once */
	struct buf ask;
	uint16_t ask_type, ask_flags;
	bool held, over, answered;
	void (*told_end)(struct bulk *b, const struct agent_reply *r);
};

static void bulk_end(struct bulk *b, const struct agent_reply *r)
{
	if (b->over)
		return;
	b->over = true;
	aconn_close(take_ptr(b->conn));
	b->told_end(b, r);
}

static void bulk_fail(struct bulk *b, int err)
{
	struct agent_reply r = {.err = err, .text = ""};

	bulk_end(b, &r);
}

static void bulk_connect(struct bulk *b)
{
	b->conn = agent_stream_open(&b->stream, b->kind, b->conn_ops, b);
	if (!b->conn || !aconn_send_flags(
				b->conn, b->ask_type, b->ask_flags, ID_ASK, b->ask.p, b->ask.len)) {
		timer_set(b->late, 1);
		return;
	}
	if (b->held)
		aconn_hold(b->conn, true);
}

/* To be called before anything else is put into b->ask. */
static void bulk_session(struct bulk *b, const char *session)
{
	if (!session)
		return;
	b->ask_flags = AGENT_FL_SESSION;
	buf_str(&b->ask, session);
}

static void bulk_late(void *arg)
{
	bulk_fail(arg, ENOMEM);
}

static void bulk_up(struct agent_stream *s)
{
	struct bulk *b = container_of(s, struct bulk, stream);

	if (!b->conn && !b->over)
		bulk_connect(b);
}

static void bulk_down(struct agent_stream *s)
{
	struct bulk *b = container_of(s, struct bulk, stream);

	if (b->conn)
		bulk_fail(b, ECONNRESET);
}

static void bulk_cancel(struct agent_stream *s, int err)
{
	bulk_fail(container_of(s, struct bulk, stream), err);
}

static void bulk_closed(void *arg, int err)
{
	bulk_fail(arg, err ? err : ECONNRESET);
}

static void bulk_fini(struct bulk *b)
{
	agent_stream_drop(&b->stream);
	aconn_close(b->conn);
	timer_remove(b->late);
	buf_fini(&b->ask);
}

static bool bulk_start(struct agentc *a, struct bulk *b)
{
	b->stream = (struct agent_stream){.up = bulk_up, .down = bulk_down, .cancel = bulk_cancel};
	if (b->ask.bad) {
		errno = EMSGSIZE;
		return false;
	}
	b->late = loop_timer(agentc_loop(a), bulk_late, b);
	if (!b->late) {
		errno = ENOMEM;
		return false;
	}
	if (!agent_stream_add(a, &b->stream))
		return false;
	if (agentc_is_up(a))
		bulk_connect(b);
	return true;
}

static void bulk_hold(struct bulk *b, bool hold)
{
	b->held = hold;
	if (b->conn)
		aconn_hold(b->conn, hold);
}

/* ---- items */

bool agent_item_read(struct cur *c, struct agent_item *i)
{
	size_t n, m;
	const char *p, *l;

	memset(i, 0, sizeof(*i));
	p = cur_strp(c, &n, AGENT_PATH_MAX);
	i->path = p ? strndup(p, n) : NULL;
	i->type = cur_u8(c);
	i->size = cur_u64(c);
	i->mtime_ns = (int64_t)cur_u64(c);
	i->ctime_ns = (int64_t)cur_u64(c);
	cur_str(c, i->owner, sizeof(i->owner));
	cur_str(c, i->group, sizeof(i->group));
	i->mode = cur_u32(c) & 07777;
	i->uid = cur_u32(c);
	i->gid = cur_u32(c);
	l = cur_strp(c, &m, AGENT_PATH_MAX);
	i->link = l ? strndup(l, m) : NULL;
	if (i->path && i->link && !c->bad)
		return true;
	agent_item_fini(i);
	return false;
}

void agent_item_fini(struct agent_item *i)
{
	free(i->path);
	free(i->link);
	i->path = i->link = NULL;
}

/* ---- files */

struct agent_file {
	struct bulk b;
	const struct agent_file_ops *ops;
	void *arg;
	bool reading, finished;
	uint64_t len, seen;
};

static void file_told_end(struct bulk *b, const struct agent_reply *r)
{
	struct agent_file *f = container_of(b, struct agent_file, b);

	f->ops->ended(f->arg, r);
}

static int read_opened(struct agent_file *f, struct cur body)
{
	uint64_t size = cur_u64(&body), off = cur_u64(&body), len = cur_u64(&body);
	struct agent_item i;
	bool ok = agent_item_read(&body, &i);

	if (!ok || !cur_done(&body)) {
		if (ok)
			agent_item_fini(&i);
		return EPROTO;
	}
	f->b.answered = true;
	f->len = len;
	f->ops->opened(f->arg, size, off, len, &i);
	agent_item_fini(&i);
	return 0;
}

static int read_data(struct agent_file *f, struct cur body)
{
	size_t n = cur_left(&body);
	struct agent_reply r = {.text = ""};

	if (!f->b.answered || n > f->len - f->seen)
		return EPROTO;
	f->seen += n;
	if (n == 0)
		bulk_end(&f->b, &r);
	else
		f->ops->data(f->arg, body.p, n);
	return 0;
}

static int file_frame(void *arg, const struct agent_hdr *h, struct cur body)
{
	struct agent_file *f = container_of(arg, struct agent_file, b);
	struct agent_reply r = {.text = ""};
	char text[AGENT_TEXT_MAX];

	if (h->type == AGENT_DATA && f->reading)
		return read_data(f, body);
	if (h->id != ID_ASK)
		return EPROTO;
	if (h->type == AGENT_ERR) {
		if (agent_err_read(body, &r, text))
			return EPROTO;
		bulk_end(&f->b, &r);
		return 0;
	}
	if (h->type != AGENT_OK)
		return EPROTO;
	if (!f->b.answered && f->reading)
		return read_opened(f, body);
	if (!f->b.answered) {
		f->b.answered = true;
		if (f->ops->writable)
			f->ops->writable(f->arg);
		return 0;
	}
	if (f->reading || !f->finished)
		return EPROTO;
	r.body = body;
	bulk_end(&f->b, &r);
	return 0;
}

static void file_drained(void *arg)
{
	struct agent_file *f = container_of(arg, struct agent_file, b);

	if (!f->reading && f->ops->writable && !f->b.over)
		f->ops->writable(f->arg);
}

static const struct aconn_ops file_conn_ops = {
	.frame = file_frame,
	.drained = file_drained,
	.closed = bulk_closed,
};

static struct agent_file *file_new(const struct agent_file_ops *ops, void *arg, uint16_t type)
{
	struct agent_file *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->ops = ops;
	f->arg = arg;
	f->b.kind = AGENT_CONN_BULK;
	f->b.conn_ops = &file_conn_ops;
	f->b.ask_type = type;
	f->b.told_end = file_told_end;
	buf_init(&f->b.ask, AGENT_FRAME_MAX);
	return f;
}

static struct agent_file *file_start(struct agentc *a, struct agent_file *f)
{
	int saved;

	if (bulk_start(a, &f->b))
		return f;
	saved = errno;
	agent_file_close(f);
	errno = saved;
	return NULL;
}

struct agent_file *agent_file_read(struct agentc *a, const struct agent_read_spec *s,
	const struct agent_file_ops *ops, void *arg)
{
	struct agent_file *f = file_new(ops, arg, AGENT_READ);

	if (!f)
		return NULL;
	f->reading = true;
	bulk_session(&f->b, s->session);
	buf_u32(&f->b.ask, s->uid);
	buf_u32(&f->b.ask, s->gid);
	buf_str(&f->b.ask, s->path);
	buf_u64(&f->b.ask, s->offset);
	buf_u64(&f->b.ask, s->len);
	buf_u32(&f->b.ask, s->flags);
	return file_start(a, f);
}

struct agent_file *agent_file_write(struct agentc *a, const struct agent_write_spec *s,
	const struct agent_file_ops *ops, void *arg)
{
	struct agent_file *f = file_new(ops, arg, AGENT_WRITE);

	if (!f)
		return NULL;
	bulk_session(&f->b, s->session);
	buf_u32(&f->b.ask, s->uid);
	buf_u32(&f->b.ask, s->gid);
	buf_str(&f->b.ask, s->path);
	buf_str(&f->b.ask, s->owner);
	buf_str(&f->b.ask, s->group);
	buf_u32(&f->b.ask, s->mode);
	buf_u32(&f->b.ask, s->flags);
	return file_start(a, f);
}

void agent_file_hold(struct agent_file *f, bool hold)
{
	bulk_hold(&f->b, hold);
}

bool agent_file_put(struct agent_file *f, const void *p, size_t n)
{
	const uint8_t *at = p;

	if (f->b.over || !f->b.conn || !f->b.answered || f->finished)
		return false;
	while (n > 0) {
		size_t part = MIN(n, (size_t)AGENT_FRAME_MAX);

		if (!aconn_send(f->b.conn, AGENT_DATA, ID_ASK, at, part))
			return false;
		at += part;
		n -= part;
	}
	return true;
}

void agent_file_finish(struct agent_file *f)
{
	if (f->b.over || !f->b.conn || f->finished)
		return;
	f->finished = true;
	aconn_send(f->b.conn, AGENT_DATA, ID_ASK, NULL, 0);
}

bool agent_file_full(const struct agent_file *f)
{
	return !f->b.conn || !f->b.answered || aconn_full(f->b.conn);
}

void agent_file_close(struct agent_file *f)
{
	if (!f)
		return;
	bulk_fini(&f->b);
	free(f);
}

/* ---- requests whose answers come in pages */

struct agent_pages {
	struct bulk b;
	agent_reply_fn fn;
	void *arg;
};

static void pages_told_end(struct bulk *b, const struct agent_reply *r)
{
	struct agent_pages *p = container_of(b, struct agent_pages, b);

	p->fn(p->arg, r);
}

static int pages_frame(void *arg, const struct agent_hdr *h, struct cur body)
{
	struct agent_pages *p = container_of(arg, struct agent_pages, b);
	struct agent_reply r = {.text = ""};
	char text[AGENT_TEXT_MAX];

	if (h->id != ID_ASK || (h->type != AGENT_OK && h->type != AGENT_ERR))
		return EPROTO;
	if (h->type == AGENT_ERR && agent_err_read(body, &r, text))
		return EPROTO;
	if (h->type == AGENT_OK) {
		r.body = body;
		r.more = h->flags & AGENT_FL_MORE;
	}
	if (r.more)
		p->fn(p->arg, &r);
	else
		bulk_end(&p->b, &r);
	return 0;
}

static const struct aconn_ops pages_conn_ops = {.frame = pages_frame, .closed = bulk_closed};

struct agent_pages *agent_pages_ask(struct agentc *a, const char *session, uint16_t type,
	const struct buf *payload, agent_reply_fn fn, void *arg)
{
	struct agent_pages *p = calloc(1, sizeof(*p));
	int saved;

	if (!p)
		return NULL;
	p->fn = fn;
	p->arg = arg;
	p->b.kind = AGENT_CONN_CONTROL;
	p->b.conn_ops = &pages_conn_ops;
	p->b.ask_type = type;
	p->b.told_end = pages_told_end;
	buf_init(&p->b.ask, AGENT_FRAME_MAX);
	bulk_session(&p->b, session);
	buf_put(&p->b.ask, payload->p, payload->len);
	p->b.ask.bad |= payload->bad;
	if (bulk_start(a, &p->b))
		return p;
	saved = errno;
	agent_pages_close(p);
	errno = saved;
	return NULL;
}

void agent_pages_hold(struct agent_pages *p, bool hold)
{
	bulk_hold(&p->b, hold);
}

void agent_pages_close(struct agent_pages *p)
{
	if (!p)
		return;
	bulk_fini(&p->b);
	free(p);
}

/* ---- dials */

struct agent_dial {
	struct bulk b;
	const struct agent_dial_ops *ops;
	void *arg;
};

static void dial_told_end(struct bulk *b, const struct agent_reply *r)
{
	struct agent_dial *d = container_of(b, struct agent_dial, b);

	d->ops->closed(d->arg, r);
}

static int dial_frame(void *arg, const struct agent_hdr *h, struct cur body)
{
	struct agent_dial *d = container_of(arg, struct agent_dial, b);
	struct agent_reply r = {.text = ""};
	char text[AGENT_TEXT_MAX];

	if (h->id != ID_ASK || d->b.answered)
		return EPROTO;
	if (h->type == AGENT_ERR) {
		if (agent_err_read(body, &r, text))
			return EPROTO;
		bulk_end(&d->b, &r);
		return 0;
	}
	if (h->type != AGENT_OK)
		return EPROTO;
	d->b.answered = true;
	aconn_make_raw(d->b.conn);
	d->ops->opened(d->arg);
	return 0;
}

static void dial_bytes(void *arg, const uint8_t *p, size_t n)
{
	struct agent_dial *d = container_of(arg, struct agent_dial, b);

	d->ops->bytes(d->arg, p, n);
}

static void dial_drained(void *arg)
{
	struct agent_dial *d = container_of(arg, struct agent_dial, b);

	if (d->ops->drained)
		d->ops->drained(d->arg);
}

static void dial_closed(void *arg, int err)
{
	struct agent_dial *d = container_of(arg, struct agent_dial, b);

	bulk_fail(&d->b, err || d->b.answered ? err : ECONNRESET);
}

static const struct aconn_ops dial_conn_ops = {
	.frame = dial_frame,
	.bytes = dial_bytes,
	.drained = dial_drained,
	.closed = dial_closed,
};

static struct agent_dial *dial_new(uint16_t type, const struct agent_dial_ops *ops, void *arg)
{
	struct agent_dial *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->ops = ops;
	d->arg = arg;
	d->b.kind = AGENT_CONN_DIAL;
	d->b.conn_ops = &dial_conn_ops;
	d->b.ask_type = type;
	d->b.told_end = dial_told_end;
	buf_init(&d->b.ask, AGENT_PATH_MAX + 64);
	return d;
}

static struct agent_dial *dial_start(struct agentc *a, struct agent_dial *d)
{
	int saved;

	if (bulk_start(a, &d->b))
		return d;
	saved = errno;
	agent_dial_close(d);
	errno = saved;
	return NULL;
}

struct agent_dial *agent_dial_tcp(
	struct agentc *a, uint16_t port, const struct agent_dial_ops *ops, void *arg)
{
	struct agent_dial *d = dial_new(AGENT_DIAL_TCP, ops, arg);

	if (!d)
		return NULL;
	buf_u16(&d->b.ask, port);
	return dial_start(a, d);
}

struct agent_dial *agent_dial_unix(
	struct agentc *a, const char *path, const struct agent_dial_ops *ops, void *arg)
{
	struct agent_dial *d = dial_new(AGENT_DIAL_UNIX, ops, arg);

	if (!d)
		return NULL;
	buf_str(&d->b.ask, path);
	return dial_start(a, d);
}

struct agent_dial *agent_dial_accept(struct agentc *a, const struct agent_dial_ops *ops, void *arg)
{
	struct agent_dial *d = dial_new(AGENT_DIAL_ACCEPT, ops, arg);

	if (!d)
		return NULL;
	buf_u32(&d->b.ask, AGENT_AC_API);
	return dial_start(a, d);
}

void agent_dial_give(struct agent_dial *d, const struct agent_dial_ops *ops, void *arg)
{
	d->ops = ops;
	d->arg = arg;
}

bool agent_dial_send(struct agent_dial *d, const void *p, size_t n)
{
	return !d->b.over && d->b.conn && aconn_send_raw(d->b.conn, p, n);
}

void agent_dial_end(struct agent_dial *d)
{
	if (!d->b.over && d->b.conn)
		aconn_send_end(d->b.conn);
}

bool agent_dial_ending(const struct agent_dial *d)
{
	return !d->b.over && d->b.conn && aconn_ending(d->b.conn);
}

bool agent_dial_full(const struct agent_dial *d)
{
	return !d->b.conn || aconn_full(d->b.conn);
}

void agent_dial_hold(struct agent_dial *d, bool hold)
{
	bulk_hold(&d->b, hold);
}

void agent_dial_close(struct agent_dial *d)
{
	if (!d)
		return;
	bulk_fini(&d->b);
	free(d);
}
