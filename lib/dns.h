/* SPDX-License-Identifier: Apache-2.0
 *
 * dns.h: DNS messages (RFC 1035, EDNS of RFC 6891), read with bounds and written again. Nothing of a guest's query but its question goes
 * to a resolver, and nothing of a resolver's answer but the records that belong to the question goes to a guest. The broker, one thread;
 * the daemon's loop for its webhooks. Both messages are hostile.
 */
#pragma once

#include "lib/netrule.h"

#define DNS_WIRE_NAME_MAX 255u
#define DNS_QUERY_MAX     512u   /* a query with one question and EDNS takes less than 300 */
#define DNS_MESSAGE_MAX   65535u /* over TCP */
#define DNS_RECORDS_MAX   256u
#define DNS_CHAIN_MAX     16u
#define DNS_TTL_MAX_S     300u /* the longest TTL that a guest gets: less than LEARNED_MAX_S */
#define DNS_UDP_MAX       4096u

enum dns_type {
	DNS_A = 1,
	DNS_NS = 2,
	DNS_CNAME = 5,
	DNS_SOA = 6,
	DNS_PTR = 12,
	DNS_MX = 15,
	DNS_AAAA = 28,
	DNS_SRV = 33,
	DNS_OPT = 41,
	DNS_IXFR = 251,
	DNS_AXFR = 252,
	DNS_ANY = 255,
};

enum dns_rcode {
	DNS_NOERROR = 0,
	DNS_FORMERR = 1,
	DNS_SERVFAIL = 2,
	DNS_NXDOMAIN = 3,
	DNS_NOTIMP = 4,
	DNS_REFUSED = 5,
};

struct dns_question {
	uint16_t id, type;
	bool rd, edns;
	uint16_t udp_size;               /* what the guest takes over UDP */
	char name[NET_NAME_MAX];         /* normal form: what policies look at */
	uint8_t wire[DNS_WIRE_NAME_MAX]; /* as asked, with its letters' case */
	uint8_t wire_len;
};

/* Reads a guest's query. 0: all fields are set. A positive rcode: the guest is to be answered with
 * it; id and rd are set, and if wire_len is not 0, wire and type, too. -EBADMSG: no answer. */
int dns_question_read(const void *p, size_t n, struct dns_question *q);
/* Writes our query to a resolver, with our id. Returns its length. */
size_t dns_query_write(const struct dns_question *q, uint16_t id, uint8_t to[DNS_QUERY_MAX]);

struct dns_record {
	uint8_t section; /* 1 answer, 2 authority */
	bool dropped;    /* not for the guest */
	uint16_t type;
	uint32_t ttl;
	uint16_t owner, owner_len; /* in the arena, wire form without compression */
	uint16_t data, data_len;   /* the same */
};

struct dns_answer {
	uint8_t rcode;
	bool cut; /* TC, or more records than DNS_RECORDS_MAX. Over UDP: ask again over TCP */
	unsigned int n;
	struct dns_record rec[DNS_RECORDS_MAX];
	size_t used;
	uint8_t arena[65536];
	/* the names that lead from the question to the addresses, without the question's own */
	unsigned int nchain;
	char chain[DNS_CHAIN_MAX][NET_NAME_MAX];
};

/* Reads a resolver's answer to `q` that was asked with `id`: 0, -EBADMSG if the bytes are no message or the answer is to something else.
 * Records that the question does not lead to have `dropped` set. */
int dns_answer_read(
	const void *p, size_t n, const struct dns_question *q, uint16_t id, struct dns_answer *a);
/* Is record i an address at the end of the chain? */
bool dns_answer_addr(const struct dns_answer *a, unsigned int i, struct net_addr *to);

/* Writes the answer for the guest. limit: bytes that the guest takes, at least DNS_QUERY_MAX; a
 * longer answer is cut (TC). a == NULL: only rcode. Returns the length, never more than limit. */
size_t dns_reply_write(const struct dns_question *q, const struct dns_answer *a,
	enum dns_rcode rcode, uint8_t *to, size_t limit);
static inline size_t dns_udp_limit(const struct dns_question *q)
{
	return q->edns ? MIN(MAX(q->udp_size, DNS_QUERY_MAX), DNS_UDP_MAX) : DNS_QUERY_MAX;
}
