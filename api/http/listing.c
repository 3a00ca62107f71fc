/* SPDX-License-Identifier: Apache-2.0
 *
 * listing.c: see listing.h. mayflyd's loop.
 */
#include "api/http/listing.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "lib/json.h"

#define PARAM "SANDBOX::INVALID_PARAMETER"

static bool page_query(struct http_req *r, long *page, long *size)
{
	static const struct {
		const char *name;
		long dflt, max;
	} q[] = {{"page", 1, 1000000000}, {"pageSize", 20, 200}};
	long *out[] = {page, size};

	for (size_t i = 0; i < ARRAY_LEN(q); i++) {
		const char *v = http_query(r, q[i].name);
		char *end;

		*out[i] = v ? strtol(v, &end, 10) : q[i].dflt;
		if (v && (!*v || *end || *out[i] < 1 || *out[i] > q[i].max)) {
			http_error(r, 400, PARAM, "%s must be an integer from 1 to %ld.", q[i].name,
				q[i].max);
			return false;
		}
	}
	return true;
}

/* A cursor is NANOSECONDS.ID, as list_shows() made it. An empty one asks for the first page. */
static bool cursor_query(struct http_req *r, struct list *l)
{
	const char *v = http_query(r, "cursor"), *id;
	size_t digits;

	if (!v)
		return true;
	l->by_cursor = true;
	digits = strspn(v, "0123456789");
	id = v + digits + 1;
	if (http_query(r, "page")) {
		http_error(r, 400, PARAM, "cursor cannot be used together with page.");
		return false;
	}
	if (!*v)
		return true;
	if (!digits || digits > 19 || v[digits] != '.' || !*id ||
		strlen(id) >= sizeof(l->cursor_id) ||
		id[strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-")]) {
		http_error(r, 400, PARAM,
			"cursor must be empty, or the nextCursor of another page of this list.");
		return false;
	}
	l->cursor_ns = strtoll(v, NULL, 10);
	snprintf(l->cursor_id, sizeof(l->cursor_id), "%s", id);
	return true;
}

static int metadata_query(struct http_req *r, struct http_pair *out, size_t max)
{
	const char *q = http_query(r, "metadata");
	char *s, *save = NULL;
	size_t n = 0;

	if (!q || !*q)
		return 0;
	s = http_strdup(r, q, strlen(q));
	for (s = s ? strtok_r(s, "&", &save) : NULL; s; s = strtok_r(NULL, "&", &save)) {
		char *v = strchr(s, '=');

		if (!v || n == max)
			return -EINVAL;
		*v++ = 0;
		/* the query value is itself a query string, whose parts are escaped once more */
		if (!*s || !url_decode(s, true) || !url_decode(v, true))
			return -EINVAL;
		out[n++] = (struct http_pair){s, v};
	}
	return (int)n;
}

bool list_begin(struct http_req *r, struct list *l, bool by_metadata)
{
	*l = (struct list){.r = r};
	l->nstates = http_query_all(r, "state", l->states, ARRAY_LEN(l->states));
	l->nmeta = by_metadata ? metadata_query(r, l->meta, ARRAY_LEN(l->meta)) : 0;
	if (l->nmeta < 0) {
		http_error(r, 400, "INVALID_METADATA_FORMAT",
			"metadata must be a query string of key=value pairs.");
		return false;
	}
	if (!page_query(r, &l->page, &l->size) || !cursor_query(r, l))
		return false;
	l->reached = !l->cursor_id[0];
	buf_init(&l->text, SIZE_MAX / 2);
	buf_printf(&l->text, "{\"items\":[");
	return true;
}

bool list_reached(struct list *l, const char *id, int64_t created_ns)
{
	if (l->reached)
		return true;
	if (!l->cursor_lives)
		return l->reached = created_ns < l->cursor_ns;
	/* the page begins behind this record */
	l->reached = !strcmp(id, l->cursor_id);
	return false;
}

bool list_wants(const struct list *l, const char *state, const cJSON *metadata)
{
	bool fits = l->nstates == 0 || !state;

	for (size_t i = 0; i < l->nstates && !fits; i++)
		fits = !strcasecmp(l->states[i], state);
	for (int i = 0; i < l->nmeta && fits; i++) {
		const cJSON *v = cJSON_GetObjectItemCaseSensitive(metadata, l->meta[i].key);

		fits = cJSON_IsString(v) && !strcmp(v->valuestring, l->meta[i].val);
	}
	return fits;
}

bool list_shows(struct list *l, const char *id, int64_t created_ns)
{
	long n = l->total++;
	bool shows =
		l->by_cursor ? n < l->size : n >= (l->page - 1) * l->size && n < l->page * l->size;

	if (shows)
		snprintf(l->last, sizeof(l->last), "%lld.%s", (long long)created_ns, id);
	return shows && !l->over;
}

void list_put(struct list *l, cJSON *takes)
{
	_cleanup_free_ char *s = takes ? cJSON_PrintUnformatted(takes) : NULL;
	size_t had = l->text.len;

	cJSON_Delete(takes);
	if (!s) {
		l->text.bad = true;
		return;
	}
	if (l->text.p[had - 1] != '[')
		buf_put(&l->text, ",", 1);
	/* JSON must be UTF-8; a guest's text, or ours cut inside a character, may not be */
	utf8_clean(&l->text, s, strlen(s));
	if (l->text.bad)
		return;
	if (http_hold(l->r, l->text.len - had))
		l->held += l->text.len - had;
	else
		l->over = true;
}

static void put_pages(struct list *l)
{
	long pages = (l->total + l->size - 1) / l->size;

	buf_printf(&l->text,
		"],\"pagination\":{\"page\":%ld,\"pageSize\":%ld,\"totalItems\":%ld,"
		"\"totalPages\":%ld,\"hasNextPage\":%s}}",
		l->page, l->size, l->total, pages, l->page < pages ? "true" : "false");
}

static void put_cursor(struct list *l)
{
	bool more = l->total > l->size;

	buf_printf(&l->text, "],\"pagination\":{\"pageSize\":%ld,\"hasNextPage\":%s", l->size,
		more ? "true" : "false");
	if (more)
		buf_printf(&l->text, ",\"nextCursor\":\"%s\"", l->last);
	buf_put(&l->text, "}}", 2);
}

void list_end(struct list *l)
{
	if (l->by_cursor)
		put_cursor(l);
	else
		put_pages(l);
	/* http_reply() charges the whole text */
	http_unhold(l->r, l->held);
	if (l->over)
		http_error_full(l->r);
	else if (l->text.bad)
		http_error(l->r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	else
		http_reply(l->r, 200, "application/json", l->text.p, l->text.len);
	buf_fini(&l->text);
}
