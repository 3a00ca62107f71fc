/* SPDX-License-Identifier: Apache-2.0
 *
 * lib_dns: questions of guests and answers of resolvers, good and bad.
 */
#include "lib/test.h"

#include "lib/dns.h"

struct msg {
	uint8_t p[2048];
	size_t n;
};

static void bytes(struct msg *m, const void *p, size_t n)
{
	memcpy(m->p + m->n, p, n);
	m->n += n;
}

static void u16(struct msg *m, unsigned int v)
{
	uint8_t b[2] = {(uint8_t)(v >> 8), (uint8_t)v};

	bytes(m, b, 2);
}

static void u32(struct msg *m, uint32_t v)
{
	u16(m, v >> 16);
	u16(m, v & 0xffff);
}

/* "a.b" into labels */
static void name(struct msg *m, const char *s)
{
	while (*s) {
		size_t n = strcspn(s, ".");
		uint8_t len = (uint8_t)n;

		bytes(m, &len, 1);
		bytes(m, s, n);
		s += n + (s[n] == '.');
	}
	bytes(m, "", 1);
}

static void head(struct msg *m, unsigned int id, unsigned int flags, unsigned int q,
	unsigned int an, unsigned int ns, unsigned int ar)
{
	m->n = 0;
	u16(m, id);
	u16(m, flags);
	u16(m, q);
	u16(m, an);
	u16(m, ns);
	u16(m, ar);
}

static void ask(struct msg *m, const char *n, unsigned int type)
{
	head(m, 0x1234, 0x0100, 1, 0, 0, 0);
	name(m, n);
	u16(m, type);
	u16(m, 1);
}

static void record(struct msg *m, const char *owner, unsigned int type, const void *data, size_t n)
{
	name(m, owner);
	u16(m, type);
	u16(m, 1);
	u32(m, 3600);
	u16(m, (unsigned int)n);
	bytes(m, data, n);
}

static void alias(struct msg *m, const char *owner, const char *to)
{
	struct msg d = {.n = 0};

	name(&d, to);
	record(m, owner, DNS_CNAME, d.p, d.n);
}

static struct dns_answer an;

static void questions_are_read_and_asked_again(void)
{
	uint8_t out[DNS_QUERY_MAX];
	struct dns_question q, again;
	struct msg m;
	size_t n;

	ask(&m, "WwW.Example.COM", DNS_A);
	CHECK_INT(dns_question_read(m.p, m.n, &q), 0);
	CHECK_STR(q.name, "www.example.com");
	CHECK_INT(q.id, 0x1234);
	CHECK(q.rd && !q.edns);
	n = dns_query_write(&q, 0xabcd, out);
	CHECK_INT(dns_question_read(out, n, &again), 0);
	CHECK_STR(again.name, "www.example.com");
	CHECK_INT(again.id, 0xabcd);
	CHECK(again.edns && again.udp_size == 1232);
	/* every shorter message is refused, or only answered with an error */
	for (size_t k = 0; k < m.n; k++)
		CHECK(dns_question_read(m.p, k, &q) != 0);
}

static void strange_questions_get_their_code(void)
{
	struct dns_question q;
	struct msg m;

	ask(&m, "a.example", DNS_ANY);
	CHECK_INT(dns_question_read(m.p, m.n, &q), DNS_REFUSED);
	ask(&m, "a.example", DNS_AXFR);
	CHECK_INT(dns_question_read(m.p, m.n, &q), DNS_REFUSED);
	ask(&m, "a b.example", DNS_A);
	CHECK_INT(dns_question_read(m.p, m.n, &q), DNS_FORMERR);
	ask(&m, "", DNS_A);
	CHECK_INT(dns_question_read(m.p, m.n, &q), DNS_FORMERR);
	ask(&m, "a.example", DNS_A);
	m.p[m.n - 1] = 3; /* class CHAOS */
	CHECK_INT(dns_question_read(m.p, m.n, &q), DNS_REFUSED);
	ask(&m, "a.example", DNS_A);
	m.p[5] = 2;
	CHECK_INT(dns_question_read(m.p, m.n, &q), DNS_FORMERR);
	m.p[2] = 0x28; /* an update */
	CHECK_INT(dns_question_read(m.p, m.n, &q), DNS_NOTIMP);
	m.p[2] = 0x80; /* an answer */
	CHECK_INT(dns_question_read(m.p, m.n, &q), -EBADMSG);
	/* a pointer to itself, and two that point at each other */
	head(&m, 1, 0x100, 1, 0, 0, 0);
	u16(&m, 0xc00c);
	u16(&m, 1);
	u16(&m, 1);
	CHECK_INT(dns_question_read(m.p, m.n, &q), DNS_FORMERR);
	head(&m, 1, 0x100, 1, 0, 0, 0);
	u16(&m, 0xc00e);
	u16(&m, 0xc00c);
	CHECK_INT(dns_question_read(m.p, m.n, &q), DNS_FORMERR);
	/* a label with a dot in it must not look like another name */
	head(&m, 1, 0x100, 1, 0, 0, 0);
	bytes(&m,
		"\x07"
		"a.b.com",
		9);
	u16(&m, 1);
	u16(&m, 1);
	CHECK_INT(dns_question_read(m.p, m.n, &q), DNS_FORMERR);
}

static int answer(struct msg *m, struct dns_question *q)
{
	return dns_answer_read(m->p, m->n, q, 7, &an);
}

static void start_answer(struct msg *m, struct dns_question *q, const char *n, unsigned int type,
	unsigned int answers, unsigned int auth)
{
	struct msg question;

	ask(&question, n, type);
	CHECK_INT(dns_question_read(question.p, question.n, q), 0);
	head(m, 7, 0x8180, 1, answers, auth, 0);
	name(m, n);
	u16(m, type);
	u16(m, 1);
}

static void the_chain_leads_to_the_addresses(void)
{
	uint8_t out[512];
	struct dns_question q;
	struct net_addr a;
	char text[NET_ADDR_TEXT];
	struct msg m;
	unsigned int found = 0;
	size_t n;

	start_answer(&m, &q, "www.example.com", DNS_A, 5, 0);
	alias(&m, "WWW.example.com", "cdn.example.net");
	record(&m, "evil.example.org", DNS_A, "\x06\x06\x06\x06", 4); /* nobody asked */
	alias(&m, "cdn.example.net", "x.example.net");
	record(&m, "x.example.NET", DNS_A, "\x05\x05\x05\x05", 4);
	record(&m, "www.example.com", DNS_A, "\x06\x06\x06\x07",
		4); /* beside an alias: not the end of the chain */
	CHECK_INT(answer(&m, &q), 0);
	CHECK_INT(an.nchain, 2);
	CHECK_STR(an.chain[0], "cdn.example.net");
	CHECK_STR(an.chain[1], "x.example.net");
	for (unsigned int i = 0; i < an.n; i++)
		if (dns_answer_addr(&an, i, &a)) {
			found++;
			CHECK_STR(net_addr_text(&a, text), "5.5.5.5");
		}
	CHECK_INT(found, 1);
	n = dns_reply_write(&q, &an, an.rcode, out, sizeof(out));
	/* what the guest gets says the same when it is read again */
	CHECK_INT(dns_answer_read(out, n, &q, q.id, &an), 0);
	CHECK_INT(an.n, 3);
	CHECK_INT(an.rec[0].ttl, DNS_TTL_MAX_S);
	/* dropped by the policy: a reply without it */
	an.rec[2].dropped = true;
	n = dns_reply_write(&q, &an, DNS_NOERROR, out, sizeof(out));
	CHECK_INT(out[7], 2);
	CHECK(n < sizeof(out));
}

static void answers_to_something_else_are_refused(void)
{
	struct dns_question q, other;
	struct msg m;

	start_answer(&m, &q, "a.example", DNS_A, 1, 0);
	record(&m, "a.example", DNS_A, "\x05\x05\x05\x05", 4);
	CHECK_INT(answer(&m, &q), 0);
	CHECK_INT(dns_answer_read(m.p, m.n, &q, 8, &an), -EBADMSG);
	other = q;
	other.type = DNS_AAAA;
	CHECK_INT(dns_answer_read(m.p, m.n, &other, 7, &an), -EBADMSG);
	other = q;
	other.wire[1] = 'b';
	CHECK_INT(dns_answer_read(m.p, m.n, &other, 7, &an), -EBADMSG);
	for (size_t n = 0; n < m.n; n++)
		CHECK_INT(dns_answer_read(m.p, n, &q, 7, &an), -EBADMSG);
	m.p[2] &= 0x7f; /* a question */
	CHECK_INT(answer(&m, &q), -EBADMSG);
	/* an address of three bytes */
	start_answer(&m, &q, "a.example", DNS_A, 1, 0);
	record(&m, "a.example", DNS_A, "\x05\x05\x05", 3);
	CHECK_INT(answer(&m, &q), -EBADMSG);
}

static void long_answers_are_cut(void)
{
	static uint8_t out[DNS_MESSAGE_MAX];
	struct dns_question q;
	struct msg m;
	size_t n;

	start_answer(&m, &q, "a.example", DNS_A, 60, 0);
	for (unsigned int i = 0; i < 60; i++)
		record(&m, "a.example", DNS_A, "\x05\x05\x05\x05", 4);
	CHECK_INT(answer(&m, &q), 0);
	n = dns_reply_write(&q, &an, DNS_NOERROR, out, dns_udp_limit(&q));
	CHECK(n <= 512 && (out[2] & 2));
	CHECK_INT(out[7], 0);
	n = dns_reply_write(&q, &an, DNS_NOERROR, out, DNS_MESSAGE_MAX);
	CHECK(!(out[2] & 2));
	CHECK_INT(out[7], 60);
	CHECK(n > 512);
	/* chains that never end */
	start_answer(&m, &q, "a.example", DNS_A, 2, 0);
	alias(&m, "a.example", "b.example");
	alias(&m, "b.example", "a.example");
	CHECK_INT(answer(&m, &q), 0);
	CHECK_INT(an.nchain, 2);
}

static void a_name_that_is_not_there_has_its_authority(void)
{
	uint8_t out[512];
	struct dns_question q;
	struct msg m, d = {.n = 0};
	size_t n;

	name(&d, "ns.example");
	name(&d, "root.example");
	for (int i = 0; i < 5; i++)
		u32(&d, 60);
	start_answer(&m, &q, "no.example", DNS_A, 0, 2);
	record(&m, "other", DNS_SOA, d.p, d.n);
	record(&m, "example", DNS_SOA, d.p, d.n);
	m.p[3] |= DNS_NXDOMAIN;
	CHECK_INT(answer(&m, &q), 0);
	CHECK_INT(an.rcode, DNS_NXDOMAIN);
	n = dns_reply_write(&q, &an, DNS_NXDOMAIN, out, sizeof(out));
	CHECK_INT(out[3] & 15, DNS_NXDOMAIN);
	CHECK_INT(out[9], 1);
	CHECK(n > 40);
}

static const struct test tests[] = {
	{"questions_are_read_and_asked_again", questions_are_read_and_asked_again},
	{"strange_questions_get_their_code", strange_questions_get_their_code},
	{"the_chain_leads_to_the_addresses", the_chain_leads_to_the_addresses},
	{"answers_to_something_else_are_refused", answers_to_something_else_are_refused},
	{"long_answers_are_cut", long_answers_are_cut},
	{"a_name_that_is_not_there_has_its_authority", a_name_that_is_not_there_has_its_authority},
};
TEST_MAIN(tests)
