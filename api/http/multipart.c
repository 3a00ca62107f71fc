/* SPDX-License-Identifier: Apache-2.0
 *
 * multipart.c: the multipart/form-data reader (RFC 2046, RFC 7578). mayflyd; hostile input. The
 * delimiter begins with CR and has no other CR in it. So when a match fails, the bytes that matched are
 * data, and the search continues at the byte that did not match.
 */
#include "api/http/multipart.h"

#include <string.h>
#include <strings.h>

enum { ST_PREAMBLE, ST_BODY, ST_TAIL, ST_HEAD, ST_DONE, ST_BAD };

#define PREAMBLE_MAX 4096u

static enum multipart_ev bad(struct multipart *m, const char *why)
{
	m->state = ST_BAD;
	m->why = why;
	return MP_BAD;
}

/* One `key=value` of a header's parameters; value quoted or a token. Moves *s behind it. False at
 * the end or on nonsense. */
static bool next_param(const char **s, char *key, size_t key_cap, char *val, size_t val_cap)
{
	const char *p = *s;
	size_t n = 0;

	while (*p && *p != ';')
		p++;
	if (*p != ';')
		return false;
	p++;
	p += strspn(p, " \t");
	n = strcspn(p, "=; \t");
	if (p[n] != '=' || n == 0 || n >= key_cap)
		return false;
	memcpy(key, p, n);
	key[n] = 0;
	p += n + 1;
	n = 0;
	if (*p == '"') {
		for (p++; *p && *p != '"'; p++) {
			if (*p == '\\' && (p[1] == '"' || p[1] == '\\'))
				p++;
			if (n + 1 >= val_cap)
				return false;
			val[n++] = *p;
		}
		if (*p++ != '"')
			return false;
	} else {
		while (*p && *p != ';' && *p != ' ' && *p != '\t') {
			if (n + 1 >= val_cap)
				return false;
			val[n++] = *p++;
		}
	}
	val[n] = 0;
	*s = p;
	return true;
}

int multipart_init(struct multipart *m, const char *content_type)
{
	static const char want[] = "multipart/form-data";
	char key[64], val[256];
	const char *p = content_type;
	size_t n;

	memset(m, 0, sizeof(*m));
	buf_init(&m->head, MULTIPART_HEAD_MAX);
	if (!p || strncasecmp(p, want, sizeof(want) - 1) != 0)
		return -EINVAL;
	p += sizeof(want) - 1;
	while (next_param(&p, key, sizeof(key), val, sizeof(val))) {
		if (strcasecmp(key, "boundary") != 0)
			continue;
		n = strlen(val);
		if (n == 0 || n > 70 || strpbrk(val, "\r\n") || val[n - 1] == ' ')
			return -EINVAL;
		memcpy(m->delim, "\r\n--", 4);
		memcpy(m->delim + 4, val, n + 1);
		m->delim_len = n + 4;
		m->match = 2; /* the first one needs no CRLF before it */
		m->state = ST_PREAMBLE;
		return 0;
	}
	return -EINVAL;
}

void multipart_fini(struct multipart *m)
{
	buf_fini(&m->head);
}

static void take_header(struct multipart *m, char *line)
{
	char key[64], val[4097];
	char *colon = strchr(line, ':');
	const char *p;

	if (!colon)
		return;
	*colon = 0;
	p = colon + 1 + strspn(colon + 1, " \t");
	if (!strcasecmp(line, "content-type")) {
		size_t n = MIN(strlen(p), sizeof(m->type) - 1);

		memcpy(m->type, p, n);
		m->type[n] = 0;
	}
	if (strcasecmp(line, "content-disposition") != 0)
		return;
	while (next_param(&p, key, sizeof(key), val, sizeof(val))) {
		if (!strcasecmp(key, "name") && strlen(val) < sizeof(m->name)) {
			memcpy(m->name, val, strlen(val) + 1);
			m->has_name = true;
		} else if (!strcasecmp(key, "filename")) {
			memcpy(m->filename, val, strlen(val) + 1);
			m->has_filename = true;
		} else if (!strcasecmp(key, "filename*")) {
			m->has_filename = true;
		}
	}
}

/* The header block is whole. */
static enum multipart_ev begin_part(struct multipart *m)
{
	char *line, *save = NULL;

	m->has_name = m->has_filename = false;
	m->name[0] = m->filename[0] = m->type[0] = 0;
	if (m->head.bad || memchr(m->head.p, 0, m->head.len))
		return bad(m, "a part's headers are too long or hold a NUL");
	buf_cstr(&m->head);
	if (m->head.bad)
		return bad(m, "a part's headers are too long");
	for (line = strtok_r((char *)m->head.p, "\r\n", &save); line;
		line = strtok_r(NULL, "\r\n", &save))
		take_header(m, line);
	buf_reset(&m->head);
	m->state = ST_BODY;
	/* if the body is empty, the CRLF of the delimiter is that of the blank line */
	m->match = 2;
	m->in_part = true;
	return MP_PART;
}

/* Headers, up to the blank line; a part may have none. */
static enum multipart_ev take_head(struct multipart *m, const uint8_t **p, size_t *n)
{
	while (*n) {
		uint8_t c = *(*p)++;

		(*n)--;
		buf_put(&m->head, &c, 1);
		if (m->head.bad)
			return bad(m, "a part's headers are too long");
		if (c != '\n')
			continue;
		if ((m->head.len == 2 && !memcmp(m->head.p, "\r\n", 2)) ||
			(m->head.len >= 4 && !memcmp(m->head.p + m->head.len - 4, "\r\n\r\n", 4)))
			return begin_part(m);
	}
	return MP_MORE;
}

/* After a boundary: "--" ends it all, blanks and CRLF begin a part. tail: 1 = one '-', 2 = CR seen.
 */
static enum multipart_ev take_tail(struct multipart *m, const uint8_t **p, size_t *n)
{
	while (*n) {
		uint8_t c = *(*p)++;

		(*n)--;
		if (m->tail == 1) {
			if (c != '-')
				return bad(m, "nonsense after a boundary");
			m->state = ST_DONE;
			return MP_DONE;
		}
		if (m->tail == 2) {
			if (c != '\n')
				return bad(m, "nonsense after a boundary");
			buf_reset(&m->head);
			m->state = ST_HEAD;
			return MP_MORE;
		}
		if (c == '-')
			m->tail = 1;
		else if (c == '\r')
			m->tail = 2;
		else if ((c != ' ' && c != '\t') || ++m->skipped > PREAMBLE_MAX)
			return bad(m, "nonsense after a boundary");
	}
	return MP_MORE;
}

/* Bytes up to the next delimiter. When a match fails, the bytes that matched are data: *data then
 * points into the delimiter, which has the same bytes. */
static enum multipart_ev take_body(
	struct multipart *m, const uint8_t **p, size_t *n, const uint8_t **data, size_t *len)
{
	const uint8_t *at = *p, *end = at + *n, *cr;
	size_t from = m->state == ST_BODY && m->tail == 0xff ? 2 : 0;

	while (m->match && at < end) {
		if (*at != (uint8_t)m->delim[m->match])
			break;
		at++;
		if (++m->match == m->delim_len) {
			*n -= (size_t)(at - *p);
			*p = at;
			m->state = ST_TAIL;
			m->match = m->skipped = 0;
			m->tail = 0;
			if (!m->in_part)
				return MP_MORE;
			m->in_part = false;
			return MP_END;
		}
	}
	*n -= (size_t)(at - *p);
	*p = at;
	if (at == end)
		return MP_MORE;
	if (m->match > from) {
		/* no delimiter: what matched is data, except the blank line's CRLF (begin_part()) */
		*data = (const uint8_t *)m->delim + from;
		*len = m->match - from;
		m->match = 0;
		m->tail = 0;
		return MP_DATA;
	}
	m->match = 0;
	m->tail = 0;
	cr = memchr(at, '\r', (size_t)(end - at));
	if (cr == at) {
		m->match = 1;
		(*p)++;
		(*n)--;
		return MP_MORE;
	}
	*data = at;
	*len = (size_t)((cr ? cr : end) - at);
	*p += *len;
	*n -= *len;
	return MP_DATA;
}

enum multipart_ev multipart_next(
	struct multipart *m, const uint8_t **p, size_t *n, const uint8_t **data, size_t *len)
{
	enum multipart_ev ev = MP_MORE;

	while (*n || ev != MP_MORE) {
		switch (m->state) {
		case ST_PREAMBLE:
			ev = take_body(m, p, n, data, len);
			if (ev == MP_DATA) {
				m->skipped += *len;
				ev = m->skipped > PREAMBLE_MAX ? bad(m, "no boundary") : MP_MORE;
			}
			break;
		case ST_BODY:
			ev = take_body(m, p, n, data, len);
			break;
		case ST_TAIL:
			ev = take_tail(m, p, n);
			break;
		case ST_HEAD:
			ev = take_head(m, p, n);
			/* the two bytes that match already are the blank line's */
			if (ev == MP_PART)
				m->tail = 0xff;
			break;
		case ST_DONE:
			*p += *n;
			*n = 0;
			return MP_MORE;
		default:
			*n = 0;
			return MP_BAD;
		}
		if (ev != MP_MORE)
			return ev;
	}
	return MP_MORE;
}
