/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel_message.c: see kernel_message.h. mayflyd; the text is hostile.
 */
#include "api/code/kernel_message.h"

#include <string.h>

#include "api/http/event_stream.h"

#define COUNT_MAX (1ull << 53)

/* ---- reading */

static void read_error(struct kernel_message *m, struct json_slice content)
{
	m->ename = json_slice_member(content, "ename");
	m->evalue = json_slice_member(content, "evalue");
	m->traceback = json_slice_member(content, "traceback");
}

static void read_input(struct kernel_message *m, struct json_slice content)
{
	m->kind = KERNEL_INPUT;
	json_slice_whole(json_slice_member(content, "execution_count"), COUNT_MAX, &m->count);
}

static void read_stream(struct kernel_message *m, struct json_slice content)
{
	m->name = json_slice_member(content, "name");
	m->text = json_slice_member(content, "text");
	if (json_slice_kind(m->text) == '"')
		m->kind = KERNEL_STREAM;
}

static void read_result(struct kernel_message *m, struct json_slice content)
{
	m->data = json_slice_member(content, "data");
	json_slice_whole(json_slice_member(content, "execution_count"), COUNT_MAX, &m->count);
	if (json_slice_kind(m->data) == '{')
		m->kind = KERNEL_RESULT;
}

static void read_failure(struct kernel_message *m, struct json_slice content)
{
	m->kind = KERNEL_ERROR;
	read_error(m, content);
}

static void read_reply(struct kernel_message *m, struct json_slice content)
{
	m->kind = KERNEL_REPLY;
	m->failed = !json_slice_is(json_slice_member(content, "status"), "ok");
	if (m->failed)
		read_error(m, content);
}

static void read_status(struct kernel_message *m, struct json_slice content)
{
	struct json_slice state = json_slice_member(content, "execution_state");

	if (json_slice_is(state, "idle"))
		m->kind = KERNEL_IDLE;
	else if (json_slice_is(state, "restarting") || json_slice_is(state, "autorestarting") ||
		 json_slice_is(state, "dead"))
		m->kind = KERNEL_DIED;
}

static void read_input_request(struct kernel_message *m, struct json_slice content)
{
	m->kind = KERNEL_ASKS;
}

/* The most frequent first. clear_output and update_display_data change what was shown before, which a stream of events cannot do. So the former is
 * dropped, and the latter is shown as a further result. */
static const struct {
	const char *type;
	void (*read)(struct kernel_message *m, struct json_slice content);
} readers[] = {
	{"stream", read_stream},
	{"status", read_status},
	{"execute_input", read_input},
	{"execute_result", read_result},
	{"execute_reply", read_reply},
	{"error", read_failure},
	{"display_data", read_result},
	{"update_display_data", read_result},
	{"input_request", read_input_request},
};

int kernel_message_read(struct kernel_message *m, const void *p, size_t n)
{
	struct json_slice all, header, content;

	*m = (struct kernel_message){.kind = KERNEL_OTHER};
	if (!json_slice_read(&all, p, n) || json_slice_kind(all) != '{')
		return -EBADMSG;
	header = json_slice_member(all, "header");
	content = json_slice_member(all, "content");
	if (json_slice_kind(header) != '{' || json_slice_kind(content) != '{')
		return -EBADMSG;
	m->parent = json_slice_member(json_slice_member(all, "parent_header"), "msg_id");
	header = json_slice_member(header, "msg_type");
	for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
		if (!json_slice_is(header, readers[i].type))
			continue;
		readers[i].read(m, content);
		break;
	}
	return 0;
}

/* ---- writing */

static void put_header(struct buf *out, const char *type, const char *id, const char *session)
{
	buf_printf(out,
		"{\"channel\":\"shell\",\"header\":{\"msg_id\":\"%s\",\"msg_type\":\"%s\","
		"\"username\":\"mayfly\",\"session\":\"%s\","
		"\"date\":\"\",\"version\":\"5.3\"},\"parent_header\":{},\"metadata\":{},"
		"\"buffers\":[],\"content\":{",
		id, type, session);
}

void kernel_execute_put(struct buf *out, const char *id, const char *session, const char *code)
{
	put_header(out, "execute_request", id, session);
	buf_printf(out, "\"silent\":false,\"store_history\":true,\"user_expressions\":{},\"allow_"
			"stdin\":false,"
			"\"stop_on_error\":true,\"code\":");
	json_string(out, code);
	buf_put(out, "}}", 2);
}

void kernel_probe_put(struct buf *out, const char *id, const char *session)
{
	put_header(out, "kernel_info_request", id, session);
	buf_put(out, "}}", 2);
}

static void event_end(struct buf *out)
{
	buf_printf(out, ",\"timestamp\":%llu}\n\n", (unsigned long long)sse_now_ms());
}

/* The client's name for a MIME type: the protocol renames one. */
static void put_mime(struct buf *out, struct json_slice mime)
{
	if (json_slice_is(mime, "text/plain"))
		buf_put(out, "\"text\"", 6);
	else
		json_slice_put(out, mime);
}

static void put_result(struct buf *out, struct json_slice data)
{
	struct json_walk w = json_walk_of(data);
	struct json_slice mime, value;
	const char *sep = "";

	buf_printf(out, "{\"type\":\"result\",\"results\":{");
	while (json_walk_next(&w, &mime, &value)) {
		/* not a MIME type: it could be "text", the name that text/plain gets */
		if (!memchr(mime.p, '/', mime.n))
			continue;
		buf_printf(out, "%s", sep);
		put_mime(out, mime);
		buf_put(out, ":", 1);
		json_slice_put(out, value);
		sep = ",";
	}
	buf_put(out, "}", 1);
	event_end(out);
}

/* Clients treat an empty text as a missing one. */
static void put_text(struct buf *out, struct json_slice s, const char *otherwise)
{
	if (json_slice_kind(s) == '"' && s.n > 2)
		json_slice_put(out, s);
	else
		json_string(out, otherwise);
}

static void put_error(struct buf *out, const struct kernel_message *m)
{
	struct json_walk w = json_walk_of(m->traceback);
	struct json_slice line;
	unsigned int n = 0;

	buf_printf(out, "{\"type\":\"error\",\"error\":{\"ename\":");
	put_text(out, m->ename, "ExecutionError");
	buf_printf(out, ",\"evalue\":");
	put_text(out, m->evalue, "the cell has failed");
	buf_printf(out, ",\"traceback\":[");
	while (n < KERNEL_TRACEBACK_MAX && json_walk_next(&w, NULL, &line)) {
		buf_printf(out, "%s", n++ ? "," : "");
		json_slice_put(out, line);
	}
	/* clients look for at least one line */
	if (n == 0)
		put_text(out, m->evalue, "the kernel sent no traceback");
	buf_printf(out, "]}");
	event_end(out);
}

void kernel_events_put(struct buf *out, const struct kernel_message *m)
{
	switch (m->kind) {
	case KERNEL_INPUT:
		buf_printf(out, "{\"type\":\"execution_count\",\"execution_count\":%llu",
			(unsigned long long)m->count);
		event_end(out);
		break;
	case KERNEL_STREAM:
		buf_printf(out, "{\"type\":\"%s\",\"text\":",
			json_slice_is(m->name, "stderr") ? "stderr" : "stdout");
		json_slice_put(out, m->text);
		event_end(out);
		break;
	case KERNEL_RESULT:
		put_result(out, m->data);
		break;
	case KERNEL_ERROR:
	case KERNEL_REPLY:
		if (m->kind == KERNEL_ERROR || m->failed)
			put_error(out, m);
		break;
	case KERNEL_OTHER:
	case KERNEL_IDLE:
	case KERNEL_DIED:
	case KERNEL_ASKS:
		break;
	}
}
