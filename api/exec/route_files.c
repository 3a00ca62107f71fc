/* SPDX-License-Identifier: Apache-2.0
 *
 * route_files.c: files and directories, without their contents: info, remove, permissions, move,
 * replace, search, list, make. mayflyd. Paths and names are a client's, items a guest's: any bytes.
 * A path is only ever opened inside the guest. Requests with several entries are done one after the
 * other and stop at the first that fails.
 */
#include "api/exec/execd_int.h"

#include <string.h>

#define ITEMS_MAX      100000u
#define ANSWER_MAX     (8 * AGENT_FRAME_MAX) /* of one frame: a byte becomes at most six */
#define FILES_LIMIT_MS 120000u

static void put_ids(struct buf *b, uint32_t uid, uint32_t gid)
{
	buf_u32(b, uid);
	buf_u32(b, gid);
}

static const char *type_name(uint8_t t)
{
	switch (t) {
	case 'f':
		return "file";
	case 'd':
		return "directory";
	case 'l':
		return "symlink";
	default:
		return "other";
	}
}

/* change: NULL, or what happened to it */
static void put_item(struct buf *b, const struct agent_item *i, const char *change)
{
	if (change)
		buf_printf(b, "{\"change\":\"%s\",\"path\":", change);
	else
		buf_printf(b, "{\"path\":");
	json_string(b, i->path);
	buf_printf(b, ",\"type\":\"%s\",\"size\":%llu,\"modified_at\":", type_name(i->type),
		(unsigned long long)MIN(i->size, (uint64_t)INT64_MAX));
	execd_time(b, i->mtime_ns);
	buf_printf(b, ",\"created_at\":");
	execd_time(b, i->ctime_ns);
	buf_printf(b, ",\"owner\":");
	json_string(b, i->owner);
	buf_printf(b, ",\"group\":");
	json_string(b, i->group);
	/* octal digits as a decimal number: 0755 is 755 */
	buf_printf(b, ",\"mode\":%o}", i->mode);
}

static void bad_answer(struct http_req *r)
{
	execd_error(r, 503, "SERVICE_UNAVAILABLE", "the sandbox gave no valid answer");
}

/* ---- paths in the query */

struct paths {
	uint32_t uid, gid;
	size_t n;
	const char *p[];
};

static struct paths *query_paths(struct http_req *r)
{
	struct paths *q;
	size_t max = 1;

	for (const char *p = r->query; (p = strchr(p, '&')); p++)
		max++;
	q = http_alloc(r, sizeof(*q) + max * sizeof(q->p[0]));
	if (!q) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return NULL;
	}
	if (!execd_files(r, &q->uid, &q->gid))
		return NULL;
	q->n = http_query_all(r, "path", q->p, max);
	return q;
}

static void ask_paths(
	struct http_req *r, struct paths *q, uint16_t type, int flags, execd_reply_fn fn)
{
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	put_ids(&b, q->uid, q->gid);
	if (flags >= 0)
		buf_u32(&b, (uint32_t)flags);
	buf_u32(&b, (uint32_t)q->n);
	for (size_t i = 0; i < q->n; i++)
		buf_str(&b, q->p[i]);
	execd_ask(r, type, &b, FILES_LIMIT_MS, fn, q);
	buf_fini(&b);
}

static void got_info(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct paths *q = data;
	struct agent_reply failed = {.text = ""};
	struct cur c = rep->body;
	struct buf b;

	if (rep->err) {
		execd_fail_files(r, rep);
		return;
	}
	buf_init(&b, ANSWER_MAX);
	buf_put(&b, "{", 1);
	for (size_t i = 0; i < q->n && !failed.err; i++) {
		uint32_t err = cur_u32(&c);
		struct agent_item item;

		if (!agent_item_read(&c, &item)) {
			failed.err = EPROTO;
			break;
		}
		if (err && err < 4096) {
			failed.err = (int)err;
			failed.text = http_printf(r, "%s: %s", q->p[i], strerror((int)err));
		}
		buf_put(&b, ",", i ? 1 : 0);
		json_string(&b, q->p[i]);
		buf_put(&b, ":", 1);
		put_item(&b, &item, NULL);
		agent_item_fini(&item);
	}
	buf_put(&b, "}", 1);
	if (!failed.err && cur_done(&c)) {
		execd_reply_buf(r, 200, "application/json", &b);
		return;
	}
	buf_fini(&b);
	if (failed.err && failed.err != EPROTO && failed.text)
		execd_fail_files(r, &failed);
	else
		bad_answer(r);
}

void route_files_info(struct http_req *r)
{
	struct paths *q = query_paths(r);

	if (!q)
		return;
	if (q->n)
		ask_paths(r, q, AGENT_STAT, -1, got_info);
	else
		http_reply(r, 200, "application/json", "{}", 2);
}

static void got_done(struct http_req *r, void *data, const struct agent_reply *rep)
{
	if (rep->err)
		execd_fail_files(r, rep);
	else
		http_reply_empty(r, 200);
}

void route_files_remove(struct http_req *r)
{
	struct paths *q = query_paths(r);

	if (q)
		ask_paths(r, q, AGENT_REMOVE, AGENT_RM_MISSING_OK | AGENT_RM_NO_DIR, got_done);
}

void route_dirs_remove(struct http_req *r)
{
	struct paths *q = query_paths(r);

	if (q)
		ask_paths(r, q, AGENT_REMOVE, AGENT_RM_MISSING_OK | AGENT_RM_TREE, got_done);
}

/* ---- bodies with several entries, done in order */

struct entry {
	struct entry *next;
	const char *path;
	const char *a, *b; /* owner and group; or the destination; or the old and the new text */
	uint32_t mode;
};

struct series {
	uint32_t uid, gid;
	uint16_t type;
	bool verbose;
	struct entry *first, **tail, *now;
	struct buf out; /* the counts of replace */
};

static void series_free(void *data)
{
	struct series *s = data;

	buf_fini(&s->out);
	free(s);
}

static struct series *series_new(struct http_req *r, uint16_t type)
{
	struct series *s = calloc(1, sizeof(*s));

	if (!s) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return NULL;
	}
	s->type = type;
	s->tail = &s->first;
	buf_init(&s->out, MIB(4));
	if (!execd_own(r, s, series_free)) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return NULL;
	}
	return execd_files(r, &s->uid, &s->gid) ? s : NULL;
}

static bool series_add(struct http_req *r, struct series *s, const char *path, const char *a,
	const char *b, uint32_t mode)
{
	struct entry *e = http_alloc(r, sizeof(*e));

	if (!e)
		return false;
	e->path = http_strdup(r, path, strlen(path));
	e->a = http_strdup(r, a, strlen(a));
	e->b = http_strdup(r, b, strlen(b));
	e->mode = mode;
	*s->tail = e;
	s->tail = &e->next;
	return e->path && e->a && e->b;
}

static void series_step(struct http_req *r, struct series *s);

static void series_answer(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct series *s = data;
	struct cur c = rep->body;
	uint64_t count;

	if (rep->err) {
		execd_fail_files(r, rep);
		return;
	}
	if (s->type == AGENT_REPLACE) {
		count = cur_u64(&c);
		if (!cur_done(&c)) {
			bad_answer(r);
			return;
		}
		buf_put(&s->out, s->out.len ? "," : "{", 1);
		json_string(&s->out, s->now->path);
		buf_printf(&s->out, ":{\"replacedCount\":%llu}", (unsigned long long)count);
	}
	s->now = s->now->next;
	series_step(r, s);
}

static void series_end(struct http_req *r, struct series *s)
{
	if (!s->verbose) {
		http_reply_empty(r, 200);
		return;
	}
	if (!s->out.len)
		buf_put(&s->out, "{", 1);
	buf_put(&s->out, "}", 1);
	http_reply(r, 200, "application/json", s->out.p, s->out.len);
}

static void series_step(struct http_req *r, struct series *s)
{
	const struct entry *e = s->now;
	struct buf b;

	if (!e) {
		series_end(r, s);
		return;
	}
	buf_init(&b, AGENT_FRAME_MAX);
	put_ids(&b, s->uid, s->gid);
	buf_str(&b, e->path);
	buf_str(&b, e->a);
	if (s->type != AGENT_MOVE)
		buf_str(&b, e->b);
	if (s->type == AGENT_CHMOD || s->type == AGENT_MKDIR)
		buf_u32(&b, e->mode);
	execd_ask(r, s->type, &b, FILES_LIMIT_MS, series_answer, s);
	buf_fini(&b);
}

static void bad_body(struct http_req *r, const char *why)
{
	execd_error(r, 400, "INVALID_REQUEST_BODY",
		"error parsing request, MAYBE invalid body format. %s", why);
}

/* {path: {owner, group, mode}}: permissions, directories */
static void permissions(struct http_req *r, uint16_t type)
{
	_cleanup_json_ cJSON *j = execd_body(r, cJSON_Object, false);
	struct series *s = j ? series_new(r, type) : NULL;
	const cJSON *e;

	if (!s)
		return;
	cJSON_ArrayForEach (e, j) {
		const char *owner = "", *group = "";
		uint32_t mode = AGENT_NO_MODE;

		if (!cJSON_IsObject(e) && !cJSON_IsNull(e)) {
			bad_body(r, "Each path needs an object.");
			return;
		}
		if (!execd_str(r, e, "owner", &owner) || !execd_str(r, e, "group", &group))
			return;
		if (!e->string[0] || !execd_mode(e, "mode", &mode) ||
			!series_add(r, s, e->string, owner, group, mode)) {
			bad_body(r, "A path is empty or a mode is not of octal digits.");
			return;
		}
	}
	s->now = s->first;
	series_step(r, s);
}

void route_files_permissions(struct http_req *r)
{
	permissions(r, AGENT_CHMOD);
}

void route_dirs_make(struct http_req *r)
{
	permissions(r, AGENT_MKDIR);
}

void route_files_mv(struct http_req *r)
{
	_cleanup_json_ cJSON *j = execd_body(r, cJSON_Array, false);
	struct series *s = j ? series_new(r, AGENT_MOVE) : NULL;
	const cJSON *e;

	if (!s)
		return;
	cJSON_ArrayForEach (e, j) {
		const char *src, *dest;

		if (!cJSON_IsObject(e)) {
			bad_body(r, "Each entry needs src and dest.");
			return;
		}
		if (!execd_str(r, e, "src", &src) || !execd_str(r, e, "dest", &dest))
			return;
		if (!*src || !*dest || !series_add(r, s, src, dest, "", 0)) {
			bad_body(r, "Each entry needs src and dest.");
			return;
		}
	}
	s->now = s->first;
	series_step(r, s);
}

void route_files_replace(struct http_req *r)
{
	_cleanup_json_ cJSON *j = execd_body(r, cJSON_Object, false);
	struct series *s = j ? series_new(r, AGENT_REPLACE) : NULL;
	const char *verbose = http_query(r, "verbose");
	const cJSON *e;

	if (!s)
		return;
	cJSON_ArrayForEach (e, j) {
		const char *old, *new;

		if (!cJSON_IsObject(e)) {
			bad_body(r, "Each path needs old and new.");
			return;
		}
		if (!execd_str(r, e, "old", &old) || !execd_str(r, e, "new", &new))
			return;
		if (!*old || !e->string[0] || !series_add(r, s, e->string, old, new, 0)) {
			bad_body(r, "old must not be empty.");
			return;
		}
	}
	s->verbose = verbose && (!strcmp(verbose, "true") || !strcmp(verbose, "1"));
	s->now = s->first;
	series_step(r, s);
}

/* ---- lists: the agent sends pages, the client gets one array. One page at a time is in memory. */

struct listing {
	struct http_req *r;
	struct agent_pages *pages;
	struct timer *limit; /* for the next page */
	struct buf out;      /* of one page */
	size_t out_at;       /* bytes of it that were sent */
	uint32_t n;
	bool streaming, last, done;
	bool diff; /* of an isolated session's overlay: each item begins with what happened to it */
};

#define LISTING_PIECE (64u * 1024)

static void listing_free(struct http_req *r)
{
	struct listing *l = r->user;

	agent_pages_close(l->pages);
	timer_remove(l->limit);
	buf_fini(&l->out);
}

static void listing_gone(struct http_req *r)
{
	struct listing *l = r->user;

	if (l->done)
		return;
	l->done = true;
	agent_pages_close(take_ptr(l->pages));
	http_abort(r);
}

/* What was sent cannot be taken back: the client sees an answer that breaks off. */
static void listing_fail(struct listing *l, const struct agent_reply *rep)
{
	l->done = true;
	timer_set(l->limit, 0);
	agent_pages_close(take_ptr(l->pages));
	if (l->streaming)
		http_abort(l->r);
	else if (rep && l->diff)
		isolated_fail(l->r, rep);
	else if (rep)
		execd_fail_files(l->r, rep);
	else
		bad_answer(l->r);
}

static void listing_too_late(void *arg)
{
	listing_fail(arg, &(struct agent_reply){.err = ETIMEDOUT, .text = ""});
}

static const char *change_name(uint8_t c)
{
	return c == 'A' ? "added" : c == 'D' ? "deleted" : "modified";
}

static bool put_page(struct listing *l, struct cur c)
{
	uint32_t n;

	cur_u32(&c); /* whether there are more than were asked for */
	n = cur_u32(&c);
	for (uint32_t i = 0; i < n && !c.bad; i++) {
		const char *change = l->diff ? change_name(cur_u8(&c)) : NULL;
		struct agent_item item;

		if (!agent_item_read(&c, &item) || l->n++ == ITEMS_MAX)
			return false;
		buf_put(&l->out, l->n > 1 ? "," : "[", 1);
		put_item(&l->out, &item, change);
		agent_item_fini(&item);
	}
	return cur_done(&c) && !l->out.bad;
}

/* Sends what the client has room for. The next page is read when this one was sent. */
static void listing_flow(struct listing *l)
{
	while (l->out_at < l->out.len && http_stream_room(l->r) > 0) {
		size_t n = MIN(l->out.len - l->out_at, (size_t)LISTING_PIECE);

		http_stream_write(l->r, l->out.p + l->out_at, n);
		l->out_at += n;
	}
	if (l->out_at < l->out.len) {
		timer_set(l->limit, 0); /* it waits for the client now */
		if (l->pages)
			agent_pages_hold(l->pages, true);
		return;
	}
	buf_reset(&l->out);
	l->out_at = 0;
	if (l->last) {
		l->done = true;
		timer_set(l->limit, 0);
		http_stream_end(l->r);
	} else {
		timer_after(l->limit, FILES_LIMIT_MS * 1000000ull);
		agent_pages_hold(l->pages, false);
	}
}

static void listing_writable(struct http_req *r)
{
	struct listing *l = r->user;

	if (!l->done)
		listing_flow(l);
}

static void got_page(void *arg, const struct agent_reply *rep)
{
	struct listing *l = arg;

	if (l->done)
		return;
	if (rep->err || !put_page(l, rep->body)) {
		listing_fail(l, rep->err ? rep : NULL);
		return;
	}
	if (!l->streaming)
		http_stream_begin(l->r, 200, "application/json", -1);
	l->streaming = true;
	if (!rep->more)
		buf_put(&l->out, l->n ? "]" : "[]", l->n ? 1 : 2);
	l->last = !rep->more;
	listing_flow(l);
}

static struct listing *listing_new(struct http_req *r, struct agentc *a)
{
	struct listing *l = http_alloc(r, sizeof(*l));

	if (!l || !(l->limit = loop_timer(agentc_loop(a), listing_too_late, l))) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return NULL;
	}
	l->r = r;
	/* a page is one frame of the agent; a byte of it becomes at most six */
	buf_init(&l->out, 8 * AGENT_FRAME_MAX);
	r->user = l;
	http_on_gone(r, listing_gone);
	http_on_free(r, listing_free);
	http_stream_writable(r, listing_writable);
	return l;
}

/* payload: the request; its memory is freed. */
static void ask_pages(struct http_req *r, uint16_t type, struct buf *payload, bool diff)
{
	struct agentc *a = sandbox_agentc(r->sandbox);
	struct listing *l = NULL;

	if (!a)
		execd_error(r, 503, "SERVICE_UNAVAILABLE", "the sandbox does not run");
	else
		l = listing_new(r, a);
	if (l) {
		l->diff = diff;
		timer_after(l->limit, FILES_LIMIT_MS * 1000000ull);
		l->pages = agent_pages_ask(a, execd_view(r), type, payload, got_page, l);
	}
	buf_fini(payload);
	if (!l || l->pages)
		return;
	l->done = true;
	timer_set(l->limit, 0);
	if (errno == EMSGSIZE)
		execd_error(r, 400, "INVALID_REQUEST_BODY", "the request is too long");
	else
		execd_error(r, 503, "SERVICE_UNAVAILABLE",
			"too many requests at one time for this sandbox");
}

static void ask_list(
	struct http_req *r, uint16_t type, const char *path, const char *glob, uint32_t depth)
{
	uint32_t uid, gid;
	struct buf b;

	if (!execd_files(r, &uid, &gid))
		return;
	buf_init(&b, AGENT_FRAME_MAX);
	put_ids(&b, uid, gid);
	buf_str(&b, path);
	if (type == AGENT_SEARCH)
		buf_str(&b, glob);
	else
		buf_u32(&b, depth);
	buf_u32(&b, ITEMS_MAX);
	ask_pages(r, type, &b, false);
}

/* GET /v1/isolated/session/{id}/diff?path=: what an overlay of the session changed; without a path its first one. */
void route_isolated_diff(struct http_req *r)
{
	const char *id = http_param(r, "id"), *name = execd_isolated(r, id);
	const char *path = http_query(r, "path");
	struct buf b;

	if (!name) {
		execd_no_session(r, id);
		return;
	}
	buf_init(&b, AGENT_FRAME_MAX);
	buf_str(&b, name);
	buf_str(&b, path ? path : "");
	buf_u32(&b, ITEMS_MAX);
	ask_pages(r, AGENT_SESSION_DIFF, &b, true);
}

void route_files_search(struct http_req *r)
{
	const char *path = http_query(r, "path"), *pattern = http_query(r, "pattern");

	if (!path || !*path)
		execd_error(r, 400, "MISSING_QUERY", "missing query parameter 'path'");
	else
		ask_list(r, AGENT_SEARCH, path, pattern && *pattern ? pattern : "**", 0);
}

void route_dirs_list(struct http_req *r)
{
	const char *path = http_query(r, "path"), *depth = http_query(r, "depth");
	char *end = NULL;
	long d = 1;

	if (depth && *depth)
		d = strtol(depth, &end, 10);
	if (!path || !*path)
		execd_error(r, 400, "MISSING_QUERY", "missing query parameter 'path'");
	else if ((end && *end) || d < 1)
		execd_error(r, 400, "INVALID_REQUEST_BODY", "depth must be a number from 1");
	else
		ask_list(r, AGENT_LIST, path, "", (uint32_t)MIN(d, 1000l));
}
