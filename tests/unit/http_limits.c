/* SPDX-License-Identifier: Apache-2.0
 *
 * http_limits: whose connection is closed for a newcomer.
 */
#include "lib/test.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "api/http/conn_limits.h"

static struct sockaddr_in from(uint8_t n)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a000000u + n)};
}

static bool add(struct conn_limits *l, struct conn_slot *s, uint8_t address, struct conn_slot **out)
{
	struct sockaddr_in sa = from(address);

	return conn_limits_add(l, s, (void *)&sa, out);
}

static void the_longest_waiting_makes_room(void)
{
	struct conn_limits l;
	struct conn_slot s[5], *out;

	conn_limits_init(&l, 3, 0);
	for (int i = 0; i < 3; i++)
		CHECK(add(&l, &s[i], 1, &out) && !out);
	/* the first one's request is being answered: the second waits longest */
	conn_limits_busy(&l, &s[0]);
	CHECK(add(&l, &s[3], 2, &out) && out == &s[1]);
	conn_limits_waits(&l, &s[0]);
	CHECK(add(&l, &s[4], 2, &out) && out == &s[2]);
	CHECK_INT(l.open, 3);
	CHECK_INT(l.closed_full, 2);
	for (int i = 0; i < 5; i++)
		conn_limits_remove(&l, &s[i]);
	CHECK(!l.open && !l.first && !l.last);
	for (size_t i = 0; i < ARRAY_LEN(l.buckets); i++)
		CHECK(!l.buckets[i]);
}

static void who_showed_a_key_stays(void)
{
	struct conn_limits l;
	struct conn_slot s[4], *out;

	conn_limits_init(&l, 2, 0);
	CHECK(add(&l, &s[0], 1, &out) && add(&l, &s[1], 1, &out));
	conn_limits_known(&l, &s[0]);
	conn_limits_waits(&l, &s[0]);
	CHECK(add(&l, &s[2], 1, &out) && out == &s[1]);
	conn_limits_known(&l, &s[2]);
	/* nobody is left to close: the newcomer waits outside */
	CHECK(!conn_limits_room(&l));
	CHECK(!add(&l, &s[3], 1, &out) && !out);
	conn_limits_remove(&l, &s[3]);
	conn_limits_remove(&l, &s[1]);
	conn_limits_remove(&l, &s[0]);
	CHECK(conn_limits_room(&l));
	conn_limits_remove(&l, &s[2]);
	CHECK_INT(l.open, 0);
}

static void an_address_has_its_share(void)
{
	struct conn_limits l;
	struct conn_slot mine, s[4], *out;

	conn_limits_init(&l, 100, 2);
	CHECK(add(&l, &mine, 9, &out) && !out);
	CHECK(add(&l, &s[0], 1, &out) && !out);
	CHECK(add(&l, &s[1], 1, &out) && !out);
	/* its own oldest one, not another address's */
	CHECK(add(&l, &s[2], 1, &out) && out == &s[0]);
	/* what showed a key does not count */
	conn_limits_known(&l, &s[1]);
	CHECK(add(&l, &s[3], 1, &out) && !out);
	CHECK_INT(l.closed_address, 1);
	for (int i = 0; i < 4; i++)
		conn_limits_remove(&l, &s[i]);
	conn_limits_remove(&l, &mine);
	CHECK_INT(l.open, 0);
}

/* The gateway's: every request there has a sandbox and nobody has a key. */
static void a_share_may_count_busy_ones(void)
{
	struct conn_limits l;
	struct conn_slot s[6], *out;

	conn_limits_init(&l, 100, 2);
	l.count_busy = true;
	CHECK(add(&l, &s[0], 1, &out) && !out);
	CHECK(add(&l, &s[1], 1, &out) && !out);
	conn_limits_busy(&l, &s[0]);
	/* the one that waits makes room */
	CHECK(add(&l, &s[2], 1, &out) && out == &s[1]);
	conn_limits_busy(&l, &s[2]);
	/* both are busy: the third is refused, another address's is not */
	CHECK(!add(&l, &s[3], 1, &out) && !out);
	conn_limits_remove(&l, &s[3]);
	CHECK(add(&l, &s[4], 2, &out) && !out);
	conn_limits_remove(&l, &s[0]);
	CHECK(add(&l, &s[5], 1, &out) && !out);
	CHECK_INT(l.closed_address, 1);
	for (int i = 1; i < 6; i++)
		conn_limits_remove(&l, &s[i]);
	CHECK_INT(l.open, 0);
	for (size_t i = 0; i < ARRAY_LEN(l.buckets); i++)
		CHECK(!l.buckets[i]);
}

static const struct test tests[] = {
	{"the_longest_waiting_makes_room", the_longest_waiting_makes_room},
	{"who_showed_a_key_stays", who_showed_a_key_stays},
	{"an_address_has_its_share", an_address_has_its_share},
	{"a_share_may_count_busy_ones", a_share_may_count_busy_ones},
};
TEST_MAIN(tests)
