/* SPDX-License-Identifier: Apache-2.0
 *
 * dns.c: see dns.h. The broker, the daemon. Hostile: every byte that is read. A name's compression pointers must lead backwards, so that reading ends
 * (RFC 1035, 4.1.4); a name has at most 255 bytes, a message at most DNS_RECORDS_MAX records that are kept.
 */
#include "lib/dns.h"

#include <string.h>

enum {
	FLAG_QR = 0x8000,
	FLAG_OPCODE = 0x7800,
	FLAG_TC = 0x0200,
	FLAG_RD = 0x0100,
	FLAG_RA = 0x0080,
	FLAG_RCODE = 0x000f
};
#define CLASS_IN  1
#define HEAD      12u
#define LABEL_MAX 63u
#define UDP_OURS  1232u /* what survives a path without fragments (DNS flag day 2020) */

/* A reader over the whole message: names may point back into it. */
struct dns_in {
	const uint8_t *p;
	size_t n, at;
	bool bad;
};

static uint16_t in_u16(struct dns_in *d)
{
	uint16_t v;

	if (d->bad || d->n - d->at < 2) {
		d->bad = true;
		return 0;
	}
	v = (uint16_t)(d->p[d->at] << 8 | d->p[d->at + 1]);
	d->at += 2;
	return v;
}

static uint32_t in_u32(struct dns_in *d)
{
	uint32_t hi = in_u16(d);

	return hi << 16 | in_u16(d);
}

/* A name into wire form without compression. Its length, 0 if it is bad. */
static size_t in_name(struct dns_in *d, uint8_t to[DNS_WIRE_NAME_MAX])
{
	size_t at = d->at, n = 0, before = d->at;
	bool jumped = false;

	while (!d->bad && at < d->n) {
		uint8_t len = d->p[at];

		if ((len & 0xc0) == 0xc0) {
			size_t target =
				at + 1 < d->n ? (size_t)((len & 0x3f) << 8 | d->p[at + 1]) : before;

			if (target >= before)
				break;
			if (!jumped)
				d->at = at + 2;
			jumped = true;
			at = before = target;
			continue;
		}
		if (len > LABEL_MAX || n + len + 1 > DNS_WIRE_NAME_MAX || len + 1u > d->n - at)
			break;
		memcpy(to + n, d->p + at, len + 1u);
		n += len + 1u;
		at += len + 1u;
		if (len == 0) {
			if (!jumped)
				d->at = at;
			return n;
		}
	}
	d->bad = true;
	return 0;
}

static uint8_t lower(uint8_t c)
{
	return c >= 'A' && c <= 'Z' ? (uint8_t)(c - 'A' + 'a') : c;
}

/* Length bytes are below 'A', so that the whole name can be compared at once. */
static bool wire_equal(const uint8_t *a, size_t n, const uint8_t *b, size_t m)
{
	if (n != m)
		return false;
	for (size_t i = 0; i < n; i++)
		if (lower(a[i]) != lower(b[i]))
			return false;
	return true;
}

/* The text that policies look at. False for the root and for names with bytes that no host name has. */
static bool wire_normal(const uint8_t *w, size_t n, char to[NET_NAME_MAX])
{
	char text[DNS_WIRE_NAME_MAX + 1];
	size_t len = 0;

	for (size_t i = 0; i + 1 < n; i += w[i] + 1u) {
		for (size_t k = 1; k <= w[i]; k++)
			if (w[i + k] == '.')
				return false;
		memcpy(text + len, w + i + 1, w[i]);
		len += w[i];
		text[len++] = '.';
	}
	return len && net_name_normal(text, len, to);
}

/* Looks for an OPT record among the additional records: it says how many bytes the guest takes over UDP. */
static void question_edns(
	struct dns_in *d, unsigned int skip, unsigned int n, struct dns_question *q)
{
	uint8_t name[DNS_WIRE_NAME_MAX];

	for (unsigned int i = 0; i < skip + n && !d->bad; i++) {
		uint16_t type, size, len;

		if (!in_name(d, name))
			return;
		type = in_u16(d);
		size = in_u16(d);
		(void)in_u32(d);
		len = in_u16(d);
		if (d->bad || d->n - d->at < len)
			return;
		d->at += len;
		if (i >= skip && type == DNS_OPT) {
			q->edns = true;
			q->udp_size = size;
		}
	}
}

int dns_question_read(const void *p, size_t n, struct dns_question *q)
{
	struct dns_in d = {.p = p, .n = n};
	uint16_t flags, count[4];

	*q = (struct dns_question){0};
	if (n < HEAD || n > DNS_MESSAGE_MAX)
		return -EBADMSG;
	q->id = in_u16(&d);
	flags = in_u16(&d);
	for (int i = 0; i < 4; i++)
		count[i] = in_u16(&d);
	if (flags & FLAG_QR)
		return -EBADMSG;
	q->rd = (flags & FLAG_RD) != 0;
	if (flags & FLAG_OPCODE)
		return DNS_NOTIMP;
	if (count[0] != 1)
		return DNS_FORMERR;
	q->wire_len = (uint8_t)in_name(&d, q->wire);
	q->type = in_u16(&d);
	if (in_u16(&d) != CLASS_IN && !d.bad) {
		q->wire_len = 0;
		return DNS_REFUSED;
	}
	if (d.bad) {
		q->wire_len = 0;
		return DNS_FORMERR;
	}
	question_edns(&d, count[1] + count[2], count[3], q);
	if (q->type == DNS_ANY || q->type == DNS_AXFR || q->type == DNS_IXFR ||
		q->type == DNS_OPT || q->type == 0)
		return DNS_REFUSED;
	return wire_normal(q->wire, q->wire_len, q->name) ? 0 : DNS_FORMERR;
}

/* A writer that never goes beyond its limit. */
struct dns_out {
	uint8_t *p;
	size_t cap, n;
	bool full;
};

static void out_bytes(struct dns_out *o, const void *p, size_t n)
{
	if (o->full || o->cap - o->n < n) {
		o->full = true;
		return;
	}
	memcpy(o->p + o->n, p, n);
	o->n += n;
}

static void out_u16(struct dns_out *o, uint16_t v)
{
	uint8_t b[2] = {(uint8_t)(v >> 8), (uint8_t)v};

	out_bytes(o, b, 2);
}

static void out_u32(struct dns_out *o, uint32_t v)
{
	out_u16(o, (uint16_t)(v >> 16));
	out_u16(o, (uint16_t)v);
}

static void out_head(
	struct dns_out *o, uint16_t id, uint16_t flags, uint16_t questions, uint16_t more)
{
	const uint16_t v[6] = {id, flags, questions, 0, 0, more};

	for (int i = 0; i < 6; i++)
		out_u16(o, v[i]);
}

static void out_edns(struct dns_out *o)
{
	out_bytes(o, "", 1);
	out_u16(o, DNS_OPT);
	out_u16(o, UDP_OURS);
	out_u32(o, 0);
	out_u16(o, 0);
}

size_t dns_query_write(const struct dns_question *q, uint16_t id, uint8_t to[DNS_QUERY_MAX])
{
	struct dns_out o = {.p = to, .cap = DNS_QUERY_MAX};
	uint8_t name[DNS_WIRE_NAME_MAX];

	for (unsigned int i = 0; i < q->wire_len; i++)
		name[i] = lower(q->wire[i]);
	out_head(&o, id, FLAG_RD, 1, 1);
	out_bytes(&o, name, q->wire_len);
	out_u16(&o, q->type);
	out_u16(&o, CLASS_IN);
	out_edns(&o);
	ASSERT(!o.full);
	return o.n;
}

/* Servers compress the names in a record's data. For each type: how many bytes come before the names, how many
 * names, how many bytes after them. */
static const struct {
	uint16_t type;
	int8_t before, names, after;
} shapes[] = {
	{DNS_A, 4, 0, 0},
	{DNS_AAAA, 16, 0, 0},
	{DNS_NS, 0, 1, 0},
	{DNS_CNAME, 0, 1, 0},
	{DNS_SOA, 0, 2, 20},
	{DNS_PTR, 0, 1, 0},
	{DNS_MX, 2, 1, 0},
	{DNS_SRV, 6, 1, 0},
};

static bool arena_put(struct dns_answer *a, const void *p, size_t n)
{
	if (sizeof(a->arena) - 1 - a->used < n)
		return false;
	memcpy(a->arena + a->used, p, n);
	a->used += n;
	return true;
}

static bool raw_data(struct dns_in *d, size_t n, size_t end, struct dns_answer *a)
{
	if (end - d->at < n || !arena_put(a, d->p + d->at, n))
		return false;
	d->at += n;
	return true;
}

/* One record's data, from d->at to `end`, into the arena without compression. */
static bool record_data(struct dns_in *d, size_t end, uint16_t type, struct dns_answer *a)
{
	uint8_t name[DNS_WIRE_NAME_MAX];

	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		if (shapes[i].type != type)
			continue;
		if (!raw_data(d, (size_t)shapes[i].before, end, a))
			return false;
		for (int k = 0; k < shapes[i].names; k++) {
			size_t n = in_name(d, name);

			if (!n || d->at > end || !arena_put(a, name, n))
				return false;
		}
		return raw_data(d, (size_t)shapes[i].after, end, a) && d->at == end;
	}
	return raw_data(d, end - d->at, end, a);
}

/* Reads the records of one section. Those that do not fit into the table are skipped: the answer is
 * then cut. */
static bool section_read(
	struct dns_in *d, unsigned int count, uint8_t section, struct dns_answer *a)
{
	for (unsigned int i = 0; i < count; i++) {
		struct dns_record r = {.section = section, .owner = (uint16_t)a->used};
		uint8_t name[DNS_WIRE_NAME_MAX];
		size_t n = in_name(d, name);
		uint16_t qclass, len;

		r.type = in_u16(d);
		qclass = in_u16(d);
		r.ttl = in_u32(d);
		len = in_u16(d);
		if (d->bad || d->n - d->at < len)
			return false;
		if (qclass != CLASS_IN || a->n == DNS_RECORDS_MAX) {
			a->cut |= a->n == DNS_RECORDS_MAX;
			d->at += len;
			continue;
		}
		if (!arena_put(a, name, n))
			return false;
		r.owner_len = (uint16_t)n;
		r.data = (uint16_t)a->used;
		if (!record_data(d, d->at + len, r.type, a))
			return false;
		r.data_len = (uint16_t)(a->used - r.data);
		a->rec[a->n++] = r;
	}
	return true;
}

/* The alias that a name has in the answer section, not followed before; -1: none. */
static int alias_of(const struct dns_answer *a, const uint8_t *w, size_t n)
{
	for (unsigned int i = 0; i < a->n; i++) {
		const struct dns_record *r = &a->rec[i];

		if (r->section == 1 && r->type == DNS_CNAME && r->dropped &&
			wire_equal(a->arena + r->owner, r->owner_len, w, n))
			return (int)i;
	}
	return -1;
}

/* Is `parent` the name or one above it? */
static bool wire_below(const uint8_t *w, size_t n, const uint8_t *parent, size_t m)
{
	for (size_t i = 0; i < n; i += w[i] + 1u)
		if (wire_equal(w + i, n - i, parent, m))
			return true;
	return false;
}

static void keep_records(struct dns_answer *a, const uint8_t *w, size_t n, uint16_t type)
{
	for (unsigned int i = 0; i < a->n; i++) {
		struct dns_record *r = &a->rec[i];
		const uint8_t *owner = a->arena + r->owner;

		if (r->section == 1 && r->type == type && wire_equal(owner, r->owner_len, w, n))
			r->dropped = false;
		if (r->section == 2 && r->type == DNS_SOA && wire_below(w, n, owner, r->owner_len))
			r->dropped = false;
	}
}

/* Follows the aliases from the question on; other records stay dropped. */
static void chain_follow(struct dns_answer *a, const struct dns_question *q)
{
	const uint8_t *w = q->wire;
	size_t n = q->wire_len;

	for (unsigned int i = 0; i < a->n; i++)
		a->rec[i].dropped = true;
	while (q->type != DNS_CNAME && a->nchain < DNS_CHAIN_MAX) {
		int next = alias_of(a, w, n);

		if (next < 0)
			break;
		w = a->arena + a->rec[next].data;
		n = a->rec[next].data_len;
		if (!wire_normal(w, n, a->chain[a->nchain]))
			return;
		a->nchain++;
		a->rec[next].dropped = false;
	}
	keep_records(a, w, n, q->type);
}

int dns_answer_read(
	const void *p, size_t n, const struct dns_question *q, uint16_t id, struct dns_answer *a)
{
	struct dns_in d = {.p = p, .n = n};
	uint8_t name[DNS_WIRE_NAME_MAX];
	uint16_t flags, count[4];
	size_t len;

	a->n = a->nchain = 0;
	a->used = 0;
	if (n < HEAD || n > DNS_MESSAGE_MAX || in_u16(&d) != id)
		return -EBADMSG;
	flags = in_u16(&d);
	for (int i = 0; i < 4; i++)
		count[i] = in_u16(&d);
	if (!(flags & FLAG_QR) || (flags & FLAG_OPCODE) || count[0] != 1)
		return -EBADMSG;
	len = in_name(&d, name);
	if (!len || !wire_equal(name, len, q->wire, q->wire_len))
		return -EBADMSG;
	if (in_u16(&d) != q->type || in_u16(&d) != CLASS_IN || d.bad)
		return -EBADMSG;
	a->rcode = flags & FLAG_RCODE;
	a->cut = (flags & FLAG_TC) != 0;
	if (a->cut) /* what is there is not used: the caller asks again, over TCP */
		return 0;
	if (!section_read(&d, count[1], 1, a) || !section_read(&d, count[2], 2, a))
		return -EBADMSG;
	chain_follow(a, q);
	return 0;
}

bool dns_answer_addr(const struct dns_answer *a, unsigned int i, struct net_addr *to)
{
	const struct dns_record *r = &a->rec[i];
	const uint8_t *p = a->arena + r->data;

	if (r->section != 1 || r->dropped)
		return false;
	if (r->type == DNS_A)
		*to = net_addr4(
			(uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]);
	else if (r->type == DNS_AAAA)
		memcpy(to->b, p, 16);
	else
		return false;
	return true;
}

static void out_record(struct dns_out *o, const struct dns_question *q, const struct dns_answer *a,
	const struct dns_record *r)
{
	const uint8_t *owner = a->arena + r->owner;

	if (wire_equal(owner, r->owner_len, q->wire, q->wire_len))
		out_u16(o, 0xc000 | HEAD);
	else
		out_bytes(o, owner, r->owner_len);
	out_u16(o, r->type);
	out_u16(o, CLASS_IN);
	out_u32(o, MIN(r->ttl, DNS_TTL_MAX_S));
	out_u16(o, r->data_len);
	out_bytes(o, a->arena + r->data, r->data_len);
}

static uint16_t out_section(struct dns_out *o, const struct dns_question *q,
	const struct dns_answer *a, uint8_t section)
{
	uint16_t n = 0;

	for (unsigned int i = 0; i < a->n; i++) {
		if (a->rec[i].dropped || a->rec[i].section != section)
			continue;
		out_record(o, q, a, &a->rec[i]);
		n++;
	}
	return n;
}

static void put_u16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

size_t dns_reply_write(const struct dns_question *q, const struct dns_answer *a,
	enum dns_rcode rcode, uint8_t *to, size_t limit)
{
	struct dns_out o = {.p = to, .cap = limit};
	uint16_t flags = (uint16_t)(FLAG_QR | FLAG_RA | (q->rd ? FLAG_RD : 0) | (uint16_t)rcode);
	uint16_t counts[2] = {0, 0};
	size_t question;

	ASSERT(limit >= DNS_QUERY_MAX);
	out_head(&o, q->id, flags, q->wire_len ? 1 : 0, q->edns ? 1 : 0);
	if (q->wire_len) {
		out_bytes(&o, q->wire, q->wire_len);
		out_u16(&o, q->type);
		out_u16(&o, CLASS_IN);
	}
	question = o.n;
	if (a && q->wire_len) {
		counts[0] = out_section(&o, q, a, 1);
		if (counts[0] == 0)
			counts[1] = out_section(&o, q, a, 2);
	}
	if (q->edns)
		out_edns(&o);
	if (o.full || (a && a->cut)) {
		o.n = question;
		o.full = false;
		counts[0] = counts[1] = 0;
		put_u16(to + 2, flags | FLAG_TC);
		if (q->edns)
			out_edns(&o);
	}
	put_u16(to + 6, counts[0]);
	put_u16(to + 8, counts[1]);
	return o.n;
}
