/* SPDX-License-Identifier: Apache-2.0
 *
 * lib_dns.c: a guest's question, then two bytes of length and a resolver's answer to it. What is written of both can be read again and
 * says no more than what was allowed.
 */
#include "lib/test.h"
#include "lib/dns.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct dns_answer a, again;
static uint8_t out[DNS_MESSAGE_MAX];

static void fuzz_reply(const struct dns_question *q, size_t limit)
{
	size_t len = dns_reply_write(q, &a, DNS_NOERROR, out, limit);

	ASSERT(len >= 12 && len <= limit);
	ASSERT(dns_answer_read(out, len, q, q->id, &again) == 0);
	ASSERT(again.nchain <= a.nchain);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct dns_question q, r;
	uint8_t query[DNS_QUERY_MAX];
	size_t first;

	if (n < 2)
		return 0;
	first = MIN((size_t)(p[0] << 8 | p[1]), n - 2);
	if (dns_question_read(p + 2, first, &q) != 0) {
		if (q.wire_len)
			ASSERT(dns_reply_write(&q, NULL, DNS_REFUSED, out, DNS_QUERY_MAX) <=
				DNS_QUERY_MAX);
		return 0;
	}
	ASSERT(dns_question_read(query, dns_query_write(&q, 7, query), &r) == 0);
	ASSERT(strcmp(r.name, q.name) == 0 && r.type == q.type);
	if (dns_answer_read(p + 2 + first, n - 2 - first, &q, 7, &a) < 0)
		return 0;
	fuzz_reply(&q, DNS_MESSAGE_MAX);
	fuzz_reply(&q, dns_udp_limit(&q));
	return 0;
}
