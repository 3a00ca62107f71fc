/* SPDX-License-Identifier: Apache-2.0
 *
 * http1.c: the response reader. mayflyd, mayfly; every byte is hostile. The reader refuses Content-Length
 * together with Transfer-Encoding, lengths that differ, and codings other than a lone "chunked". It
 * refuses folded lines, names that are no tokens, control characters in values, and an upgrade that
 * was not asked for.
 */
#include "lib/http1.h"

#include <string.h>
#include <strings.h>

enum {
	S_HEAD,
	S_LENGTH,
	S_CLOSE,
	S_CHUNK_SIZE,
	S_CHUNK_EXT,
	S_CHUNK_DATA,
	S_CHUNK_END,
	S_TRAILER,
	S_DONE,
	S_UPGRADED,
	S_BAD
};

#define EXT_MAX     4096u
#define INTERIM_MAX 16u

void http1_init(struct http1_response *r, bool request_was_head)
{
	memset(r, 0, sizeof(*r));
	r->to_head = request_was_head;
	buf_init(&r->head, HTTP1_HEAD_MAX);
}

void http1_fini(struct http1_response *r)
{
	buf_fini(&r->head);
}

static enum http1_ev bad(struct http1_response *r, const char *why)
{
	r->state = S_BAD;
	r->why = why;
	return H1_BAD;
}

bool http1_token(const char *s, size_t n)
{
	static const char ok[] =
		"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

	for (size_t i = 0; i < n; i++)
		if (!s[i] || !strchr(ok, s[i]))
			return false;
	return n > 0;
}

/* Digits only, no sign, no blanks, no overflow. */
static bool parse_length(const char *s, uint64_t *out)
{
	uint64_t v = 0;
	size_t n = strlen(s);

	if (n == 0 || n > 18)
		return false;
	for (size_t i = 0; i < n; i++) {
		if (s[i] < '0' || s[i] > '9')
			return false;
		v = v * 10 + (uint64_t)(s[i] - '0');
	}
	*out = v;
	return true;
}

static bool status_line(struct http1_response *r, char *line)
{
	/* HTTP/1.x SP 3DIGIT [SP reason] */
	if (strncmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') ||
		line[8] != ' ')
		return false;
	for (int i = 9; i < 12; i++)
		if (line[i] < '0' || line[i] > '9')
			return false;
	if (line[12] && line[12] != ' ')
		return false;
	r->status = (line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0');
	r->reason = line[12] ? line + 13 : line + 12;
	return r->status >= 100 && r->status <= 599;
}

static const char *take_header(struct http1_response *r, char *line)
{
	char *colon = strchr(line, ':'), *v, *e;
	uint64_t length;

	if (line[0] == ' ' || line[0] == '\t')
		return "a folded header line";
	if (!colon || !http1_token(line, (size_t)(colon - line)))
		return "a malformed header name";
	if (r->nheaders >= HTTP1_HEADERS_MAX)
		return "too many headers";
	*colon = 0;
	v = colon + 1 + strspn(colon + 1, " \t");
	for (e = v + strlen(v); e > v && (e[-1] == ' ' || e[-1] == '\t'); e--)
		;
	*e = 0;
	for (const char *c = v; *c; c++)
		if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f)
			return "a control character in a header";
	r->headers[r->nheaders++] = (struct http1_header){line, v};
	if (!strcasecmp(line, "content-length")) {
		if (!parse_length(v, &length) || (r->has_length && length != r->length))
			return "a malformed Content-Length";
		r->has_length = true;
		r->length = length;
	} else if (!strcasecmp(line, "transfer-encoding")) {
		if (r->chunked || strcasecmp(v, "chunked") != 0)
			return "an unknown transfer coding";
		r->chunked = true;
	}
	return NULL;
}

/* What the head says about the body. */
static enum http1_ev frame_body(struct http1_response *r)
{
	if (r->has_length && r->chunked)
		return bad(r, "both Content-Length and Transfer-Encoding");
	if (r->status == 101 && r->upgrade_ok) {
		r->no_body = true;
		r->state = S_UPGRADED;
		return H1_HEAD;
	}
	if (r->status < 200) {
		if (r->status == 101)
			return bad(r, "an upgrade that nobody asked for");
		if (++r->interim > INTERIM_MAX)
			return bad(r, "too many interim responses");
		buf_reset(&r->head);
		r->nheaders = 0;
		r->has_length = r->chunked = false;
		r->length = 0;
		return H1_MORE;
	}
	r->no_body = r->to_head || r->status == 204 || r->status == 304 ||
		     (r->has_length && r->length == 0);
	r->left = r->length;
	if (r->no_body)
		r->state = S_DONE;
	else if (r->chunked)
		r->state = S_CHUNK_SIZE;
	else
		r->state = r->has_length ? S_LENGTH : S_CLOSE;
	r->until_close = r->state == S_CLOSE;
	return H1_HEAD;
}

static enum http1_ev parse_head(struct http1_response *r)
{
	char *line, *next;
	const char *why;

	if (memchr(r->head.p, 0, r->head.len))
		return bad(r, "a NUL in the head");
	buf_cstr(&r->head);
	if (r->head.bad)
		return bad(r, "the head is too long");
	for (line = (char *)r->head.p; *line; line = next) {
		char *nl = strchr(line, '\n');

		if (!nl)
			return bad(r, "a line without an end");
		next = nl + 1;
		*nl = 0;
		if (nl > line && nl[-1] == '\r')
			nl[-1] = 0;
		if (!*line)
			break;
		if (line == (char *)r->head.p) {
			if (!status_line(r, line))
				return bad(r, "a malformed status line");
			continue;
		}
		why = take_header(r, line);
		if (why)
			return bad(r, why);
	}
	return frame_body(r);
}

/* True when the bytes end in a blank line, be the lines ended by CRLF or LF. */
static bool blank_line(const struct buf *b)
{
	const uint8_t *e = b->p + b->len;

	if (b->len >= 2 && e[-1] == '\n' && e[-2] == '\n')
		return true;
	return b->len >= 3 && e[-1] == '\n' && e[-2] == '\r' && e[-3] == '\n';
}

static enum http1_ev take_head(struct http1_response *r, const uint8_t **p, size_t *n)
{
	while (*n) {
		const uint8_t *nl = memchr(*p, '\n', *n);
		size_t len = nl ? (size_t)(nl - *p) + 1 : *n;

		buf_put(&r->head, *p, len);
		if (r->head.bad)
			return bad(r, "the head is too long");
		*p += len;
		*n -= len;
		if (nl && blank_line(&r->head))
			return parse_head(r);
	}
	return H1_MORE;
}

static enum http1_ev take_left(
	struct http1_response *r, const uint8_t **p, size_t *n, const uint8_t **data, size_t *len)
{
	*data = *p;
	*len = r->left < *n ? (size_t)r->left : *n;
	*p += *len;
	*n -= *len;
	r->left -= *len;
	return H1_DATA;
}

static int hex_digit(uint8_t c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One byte of a chunk's size line, its end, or the trailers. */
static enum http1_ev chunk_byte(struct http1_response *r, uint8_t c)
{
	int d = hex_digit(c);

	switch (r->state) {
	case S_CHUNK_SIZE:
		if (d >= 0) {
			if (++r->digits > 15)
				return bad(r, "a chunk size too large");
			r->left = r->left * 16 + (uint64_t)d;
			return H1_MORE;
		}
		if (!r->digits || (c != ';' && c != '\r' && c != '\n' && c != ' ' && c != '\t'))
			return bad(r, "a malformed chunk size");
		r->state = S_CHUNK_EXT;
		r->skipped = 0;
		__attribute__((fallthrough));
	case S_CHUNK_EXT:
		if (c != '\n')
			return ++r->skipped > EXT_MAX ? bad(r, "a chunk extension too long")
						      : H1_MORE;
		r->digits = 0;
		r->skipped = 0;
		r->state = r->left ? S_CHUNK_DATA : S_TRAILER;
		return H1_MORE;
	case S_CHUNK_END:
		if (c == '\r')
			return H1_MORE;
		if (c != '\n')
			return bad(r, "a chunk longer than its size");
		r->left = 0;
		r->state = S_CHUNK_SIZE;
		return H1_MORE;
	default: /* trailers: dropped; `digits` counts the line's bytes */
		if (++r->skipped > HTTP1_HEAD_MAX)
			return bad(r, "trailers too long");
		if (c == '\r')
			return H1_MORE;
		if (c != '\n') {
			r->digits++;
			return H1_MORE;
		}
		if (r->digits) {
			r->digits = 0;
			return H1_MORE;
		}
		r->state = S_DONE;
		return H1_MORE;
	}
}

enum http1_ev http1_next(
	struct http1_response *r, const uint8_t **p, size_t *n, const uint8_t **data, size_t *len)
{
	enum http1_ev ev = H1_MORE;

	for (;;) {
		if (r->state == S_DONE) {
			*p += *n;
			*n = 0;
			return H1_DONE;
		}
		if (r->state == S_UPGRADED)
			return H1_DONE;
		if (r->state == S_BAD) {
			*n = 0;
			return H1_BAD;
		}
		if (!*n)
			return H1_MORE;
		switch (r->state) {
		case S_HEAD:
			ev = take_head(r, p, n);
			break;
		case S_CLOSE:
			r->left = UINT64_MAX;
			return take_left(r, p, n, data, len);
		case S_LENGTH:
			ev = take_left(r, p, n, data, len);
			if (!r->left)
				r->state = S_DONE;
			return ev;
		case S_CHUNK_DATA:
			ev = take_left(r, p, n, data, len);
			if (!r->left)
				r->state = S_CHUNK_END;
			return ev;
		default:
			ev = chunk_byte(r, **p);
			(*p)++;
			(*n)--;
			break;
		}
		if (ev != H1_MORE)
			return ev;
	}
}

bool http1_closed(struct http1_response *r)
{
	return r->state == S_DONE || r->state == S_CLOSE;
}
