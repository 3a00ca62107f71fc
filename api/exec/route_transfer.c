/* SPDX-License-Identifier: Apache-2.0
 *
 * route_transfer.c: the bytes of files: multipart uploads and ranged downloads, both streamed.
 * mayflyd. Bodies, ranges and names are a client's, lengths and contents a guest's. Nothing is kept
 * but one piece: a slow guest stops the client, a slow client the guest.
 */
#include "api/exec/execd_int.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/http/multipart.h"

#define META_MAX 65536u

/* ---- upload: pairs of parts, metadata and file, each pair written before the next is read */

struct upload {
	struct http_req *r;
	struct multipart mp;
	enum { UP_SKIP, UP_META, UP_FILE } part;
	struct buf meta;
	/* waiting: for the agent, before more is read; closed: the last boundary was seen */
	bool have_meta, waiting, closed, ended;
	uint32_t uid, gid, files;
	struct agent_file *file;
	bool done;
};

static void upload_fail(struct upload *u, int status, const char *code, const char *why)
{
	u->done = true;
	execd_error(u->r, status, code, "%s", why);
}

static void upload_free(struct http_req *r)
{
	struct upload *u = r->user;

	agent_file_close(u->file);
	multipart_fini(&u->mp);
	buf_fini(&u->meta);
}

static void upload_gone(struct http_req *r)
{
	struct upload *u = r->user;

	if (u->done)
		return;
	u->done = true;
	agent_file_close(take_ptr(u->file));
	http_abort(r);
}

/* The form was read and its files are written. */
static void upload_finish(struct upload *u)
{
	if (u->done || !u->ended || u->waiting)
		return;
	if (!u->closed || u->have_meta || !u->files || u->file) {
		upload_fail(u, 400, "INVALID_FILE_METADATA",
			u->closed
				? "the numbers of metadata and file parts differ, or there are none"
				: "the form ends in the middle");
		return;
	}
	u->done = true;
	http_reply_empty(u->r, 200);
}

static void file_writable(void *arg)
{
	struct upload *u = arg;

	u->waiting = false;
	http_body_resume(u->r);
}

static void file_written(void *arg, const struct agent_reply *rep)
{
	struct upload *u = arg;

	agent_file_close(take_ptr(u->file));
	if (u->done)
		return;
	if (rep->err) {
		u->done = true;
		execd_fail_files(u->r, rep);
		return;
	}
	u->files++;
	u->waiting = false;
	if (u->ended)
		upload_finish(u);
	else
		http_body_resume(u->r);
}

static const struct agent_file_ops upload_ops = {.writable = file_writable, .ended = file_written};

static void begin_file(struct upload *u)
{
	_cleanup_json_ cJSON *j = NULL;
	struct agent_write_spec s = {.uid = u->uid,
		.gid = u->gid,
		.flags = AGENT_WR_PARENTS,
		.session = execd_view(u->r)};
	struct agentc *a = sandbox_agentc(u->r->sandbox);

	if (json_read(&j, u->meta.p, u->meta.len, JSON_OBJECT, NULL) < 0 ||
		!execd_mode(j, "mode", &s.mode)) {
		upload_fail(u, 400, "INVALID_FILE_METADATA",
			"a metadata part must be a JSON object, and its mode, if any, octal digits "
			"such as 644");
		return;
	}
	if (!execd_str(u->r, j, "path", &s.path) || !execd_str(u->r, j, "owner", &s.owner) ||
		!execd_str(u->r, j, "group", &s.group)) {
		u->done = true;
		return;
	}
	if (!*s.path || strlen(s.path) >= AGENT_PATH_MAX) {
		upload_fail(u, 400, "INVALID_FILE_METADATA", "metadata path is empty or too long");
		return;
	}
	u->have_meta = false;
	u->waiting = true;
	u->file = a ? agent_file_write(a, &s, &upload_ops, u) : NULL;
	if (!u->file)
		upload_fail(u, 503, "SERVICE_UNAVAILABLE",
			"the sandbox does not run, or too many files at one time");
}

static void part_begins(struct upload *u)
{
	const char *name = u->mp.has_name ? u->mp.name : "";

	u->part = UP_SKIP;
	if (!strcmp(name, "metadata")) {
		if (u->have_meta) {
			upload_fail(u, 400, "INVALID_FILE_METADATA",
				"two metadata parts without a file between them");
			return;
		}
		u->part = UP_META;
		buf_reset(&u->meta);
	} else if (!strcmp(name, "file")) {
		if (!u->have_meta) {
			upload_fail(u, 400, "INVALID_FILE_METADATA",
				"a file part without its metadata");
			return;
		}
		u->part = UP_FILE;
		begin_file(u);
	}
}

static void part_data(struct upload *u, const uint8_t *p, size_t n)
{
	if (u->part == UP_META) {
		buf_put(&u->meta, p, n);
		if (u->meta.bad)
			upload_fail(u, 400, "INVALID_FILE_METADATA", "a metadata part is too long");
	} else if (u->part == UP_FILE && u->file) {
		/* it refuses bytes only after a failure, and then file_written() follows */
		(void)agent_file_put(u->file, p, n);
		u->waiting = agent_file_full(u->file);
	}
}

static void part_ends(struct upload *u)
{
	if (u->part == UP_META)
		u->have_meta = true;
	if (u->part == UP_FILE && u->file) {
		u->waiting = true;
		agent_file_finish(u->file);
	}
	u->part = UP_SKIP;
}

static size_t upload_body(struct http_req *r, const uint8_t *p, size_t n)
{
	struct upload *u = r->user;
	const uint8_t *at = p, *data = NULL;
	size_t left = n, len = 0;

	if (u->done)
		return n;
	if (!p) {
		u->ended = true;
		if (n == 0)
			upload_finish(u);
		return 0;
	}
	while (!u->done && !u->waiting) {
		enum multipart_ev ev = multipart_next(&u->mp, &at, &left, &data, &len);

		if (ev == MP_PART)
			part_begins(u);
		else if (ev == MP_DATA)
			part_data(u, data, len);
		else if (ev == MP_END)
			part_ends(u);
		else if (ev == MP_DONE)
			u->closed = true;
		else if (ev == MP_BAD)
			upload_fail(u, 400, "INVALID_FILE_CONTENT",
				u->mp.why ? u->mp.why : "not multipart");
		else
			break;
	}
	return u->done ? n : n - left;
}

void route_files_upload(struct http_req *r)
{
	struct upload *u = http_alloc(r, sizeof(*u));

	if (!u) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return;
	}
	if (!execd_files(r, &u->uid, &u->gid))
		return;
	if (multipart_init(&u->mp, http_header(r, "Content-Type"))) {
		multipart_fini(&u->mp);
		execd_error(r, 400, "INVALID_FILE", "the body is not multipart/form-data");
		return;
	}
	u->r = r;
	buf_init(&u->meta, META_MAX);
	r->user = u;
	http_on_gone(r, upload_gone);
	http_on_free(r, upload_free);
	http_body_read(r, upload_body);
}

/* ---- download */

struct download {
	struct http_req *r;
	struct agent_call *stat;
	struct agent_file *file;
	char *path;
	uint32_t uid, gid, flags;
	uint64_t offset, len, total;
	bool ranged, streaming, done;
	bool newline; /* with AGENT_RD_LINES: a newline that is sent only if more follows */
	uint64_t sent, announced;
};

static void download_free(struct http_req *r)
{
	struct download *d = r->user;

	agent_call_cancel(d->stat);
	agent_file_close(d->file);
}

static void download_gone(struct http_req *r)
{
	struct download *d = r->user;

	if (d->done)
		return;
	d->done = true;
	agent_call_cancel(take_ptr(d->stat));
	agent_file_close(take_ptr(d->file));
	http_abort(r);
}

static void set_disposition(struct http_req *r, const char *path)
{
	const char *base = strrchr(path, '/');
	struct buf b;

	buf_init(&b, 32768);
	buf_printf(&b, "attachment; filename=\"");
	for (base = base ? base + 1 : path; *base; base++) {
		unsigned char c = (unsigned char)*base;

		if (c < 0x20 || c == 0x7f)
			buf_put(&b, "_", 1);
		else if (c == '"' || c == '\\')
			buf_printf(&b, "\\%c", c);
		else
			buf_put(&b, base, 1);
	}
	buf_put(&b, "\"", 1);
	http_add_header(r, "Content-Disposition", buf_cstr(&b));
	buf_fini(&b);
}

static void no_such_range(struct download *d, uint64_t size)
{
	char text[64];

	d->done = true;
	snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)size);
	http_add_header(d->r, "Content-Range", text);
	execd_error(d->r, 416, "UNKNOWN", "the range cannot be satisfied");
}

static void file_opened(
	void *arg, uint64_t size, uint64_t off, uint64_t len, const struct agent_item *i)
{
	struct download *d = arg;
	bool lines = d->flags & AGENT_RD_LINES;
	char text[96];

	if (d->ranged && (!len || len > INT64_MAX)) {
		agent_file_close(take_ptr(d->file));
		no_such_range(d, size);
		return;
	}
	d->streaming = true;
	d->announced = len;
	if (!lines)
		set_disposition(d->r, d->path);
	http_add_header(d->r, "Accept-Ranges", "bytes");
	if (d->ranged) {
		snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)off,
			(unsigned long long)(off + len - 1), (unsigned long long)size);
		http_add_header(d->r, "Content-Range", text);
	}
	http_stream_begin(d->r, d->ranged ? 206 : 200,
		lines ? "text/plain; charset=utf-8" : "application/octet-stream",
		lines || len > INT64_MAX ? -1 : (int64_t)len);
}

/* The reference joins the lines that it gives: behind the last one there is no newline. */
static void write_lines(struct download *d, const uint8_t *p, size_t n)
{
	if (d->newline)
		http_stream_write(d->r, "\n", 1);
	d->newline = p[n - 1] == '\n';
	http_stream_write(d->r, p, n - d->newline);
}

static void file_data(void *arg, const uint8_t *p, size_t n)
{
	struct download *d = arg;

	if (d->done)
		return;
	d->sent += n;
	if (d->flags & AGENT_RD_LINES && n)
		write_lines(d, p, n);
	else
		http_stream_write(d->r, p, n);
	if (http_stream_room(d->r) == 0)
		agent_file_hold(d->file, true);
}

static void file_ended(void *arg, const struct agent_reply *rep)
{
	struct download *d = arg;

	d->done = true;
	if (!d->streaming) {
		if (rep->err == EISDIR)
			execd_error(d->r, 400, "INVALID_FILE", "%s is a directory", d->path);
		else
			execd_fail_files(d->r, rep);
	} else if (rep->err || (d->announced <= INT64_MAX && d->sent != d->announced)) {
		http_abort(d->r); /* shorter than announced: the client must see that */
	} else {
		http_stream_end(d->r);
	}
}

static const struct agent_file_ops download_ops = {
	.opened = file_opened, .data = file_data, .ended = file_ended};

static void download_writable(struct http_req *r)
{
	struct download *d = r->user;

	if (!d->done && d->file)
		agent_file_hold(d->file, false);
}

static void start_reading(struct download *d)
{
	struct agent_read_spec s = {
		d->uid, d->gid, d->flags, d->path, d->offset, d->len, execd_view(d->r)};
	struct agentc *a = sandbox_agentc(d->r->sandbox);

	http_stream_writable(d->r, download_writable);
	d->file = a ? agent_file_read(a, &s, &download_ops, d) : NULL;
	if (d->file)
		return;
	d->done = true;
	execd_error(d->r, 503, "SERVICE_UNAVAILABLE",
		"the sandbox does not run, or too many files at one time");
}

/* Reads "bytes=a-b", "bytes=a-" or "bytes=-n". false: it cannot be satisfied. Several ranges are
 * ignored. */
static bool parse_range(const char *h, uint64_t size, uint64_t *off, uint64_t *len, bool *ranged)
{
	const char *p = h + 6;
	uint64_t a = 0, b = size ? size - 1 : 0;
	size_t na = strspn(p, "0123456789"),
	       nb = p[na] == '-' ? strspn(p + na + 1, "0123456789") : 0;

	*ranged = false;
	if (strchr(p, ','))
		return true;
	if (p[na] != '-' || p[na + 1 + nb] || (!na && !nb) || na > 18 || nb > 18)
		return false;
	if (na) {
		a = strtoull(p, NULL, 10);
		if (nb)
			b = MIN(b, (uint64_t)strtoull(p + na + 1, NULL, 10));
	} else {
		uint64_t last = strtoull(p + 1, NULL, 10);

		if (!last)
			return false;
		a = last < size ? size - last : 0;
	}
	if (a >= size || b < a)
		return false;
	*off = a;
	*len = b - a + 1;
	*ranged = true;
	return true;
}

static void got_size(void *arg, const struct agent_reply *rep)
{
	struct download *d = arg;
	struct agent_reply failed = {.text = rep->text, .err = rep->err, .step = rep->step};
	struct cur c = rep->body;
	const char *range = http_header(d->r, "Range");
	struct agent_item i = {0};
	bool ok = true;

	d->stat = NULL;
	if (!rep->err) {
		failed.err = (int)cur_u32(&c);
		if (!agent_item_read(&c, &i) || failed.err > 4095)
			failed.err = EPROTO;
		else if (failed.err)
			failed.text = http_printf(d->r, "%s: %s", d->path, strerror(failed.err));
	}
	d->total = i.size;
	agent_item_fini(&i);
	/* The size of a link's target is known only when it is opened. Until then every offset may be
	 * right, and a range from the end ("=-n") is ignored. */
	if (!failed.err && i.type == 'l')
		d->total = strstr(range, "=-") ? 0 : INT64_MAX;
	if (!failed.err && !(i.type == 'l' && !d->total))
		ok = parse_range(range, d->total, &d->offset, &d->len, &d->ranged);
	if (failed.err || !ok) {
		d->done = true;
		if (failed.err) {
			execd_fail_files(d->r, &failed);
			return;
		}
		no_such_range(d, d->total);
		return;
	}
	start_reading(d);
}

static void ask_size(struct download *d)
{
	struct agentc *a = sandbox_agentc(d->r->sandbox);
	struct buf b;

	buf_init(&b, 2 * AGENT_PATH_MAX);
	buf_u32(&b, d->uid);
	buf_u32(&b, d->gid);
	buf_u32(&b, 1);
	buf_str(&b, d->path);
	d->stat =
		a ? agentc_call_in(a, execd_view(d->r), AGENT_STAT, &b, 60000, got_size, d) : NULL;
	buf_fini(&b);
	if (d->stat)
		return;
	d->done = true;
	execd_error(d->r, 503, "SERVICE_UNAVAILABLE", "the sandbox does not run");
}

static bool query_line(struct http_req *r, const char *key, uint64_t *out)
{
	const char *v = http_query(r, key);

	if (!v)
		return true;
	if (!*v || strspn(v, "0123456789") != strlen(v) || strlen(v) > 18 ||
		!strtoull(v, NULL, 10)) {
		execd_error(r, 400, "INVALID_REQUEST_BODY", "%s must be a number from 1", key);
		return false;
	}
	*out = strtoull(v, NULL, 10);
	return true;
}

void route_files_download(struct http_req *r)
{
	const char *path = http_query(r, "path"), *range = http_header(r, "Range");
	bool lines = http_query(r, "offset") || http_query(r, "limit");
	struct download *d = http_alloc(r, sizeof(*d));

	if (!d) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return;
	}
	*d = (struct download){.r = r, .len = UINT64_MAX};
	if (!execd_files(r, &d->uid, &d->gid))
		return;
	if (!path || !*path) {
		execd_error(r, 400, "MISSING_QUERY", "missing query parameter 'path'");
		return;
	}
	if (strlen(path) >= AGENT_PATH_MAX) {
		execd_error(r, 404, "FILE_NOT_FOUND", "the path is too long");
		return;
	}
	if (range && lines) {
		execd_error(r, 400, "INVALID_REQUEST_BODY",
			"Range and offset or limit exclude each other");
		return;
	}
	if (lines) {
		d->flags = AGENT_RD_LINES;
		d->offset = 1;
		if (!query_line(r, "offset", &d->offset) || !query_line(r, "limit", &d->len))
			return;
	}
	d->path = http_strdup(r, path, strlen(path));
	if (!d->path) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return;
	}
	r->user = d;
	http_on_gone(r, download_gone);
	http_on_free(r, download_free);
	if (range && !strncasecmp(range, "bytes=", 6))
		ask_size(d);
	else
		start_reading(d);
}
