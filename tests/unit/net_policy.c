/* SPDX-License-Identifier: Apache-2.0
 *
 * net_policy: addresses, prefixes, rules, and what a policy decides, alone and with the operator's lists, the host's own addresses and
 * learned addresses.
 */
#include "lib/test.h"

#include "net/policy.h"

static struct net_addr A(const char *s) {
	struct net_addr a = {{0}};

	CHECK(net_addr_parse(s, &a));
	return a;
}

static void
addresses_have_one_reading(void)
{
	static const char *const good[] = {
		"1.2.3.4", "0.0.0.0", "255.255.255.255", "::", "::1", "2001:db8::1", "fe80::1"};
	static const char *const bad[] = {"", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.256",
		" 1.2.3.4", "1.2.3.4 ", "+1.2.3.4", "0x1.2.3.4", "1.2.3.4/8", "fe80::1%eth0",
		":::", "1::2::3", "g::", "12345::"};
	char text[NET_ADDR_TEXT];
	struct net_addr a;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		a = A(good[i]);
		CHECK_STR(net_addr_text(&a, text), good[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		if (net_addr_parse(bad[i], &a))
			printf("accepted \"%s\"\n", bad[i]);
		CHECK(!net_addr_parse(bad[i], &a));
	}
	a = A("::ffff:10.0.0.1");
	CHECK(net_addr_is4(&a));
	CHECK_STR(net_addr_text(&a, text), "10.0.0.1");
}

static void prefixes_contain_what_they_say(void)
{
	static const struct {
		const char *prefix, *addr;
		bool in;
	} rows[] = {
		{"10.0.0.0/8", "10.255.0.1", true},
		{"10.0.0.0/8", "11.0.0.0", false},
		{"10.1.2.3/8", "10.9.9.9", true},
		{"0.0.0.0/0", "255.1.2.3", true},
		{"0.0.0.0/0", "2001::1", false},
		{"::/0", "2001::1", true},
		{"::/0", "1.2.3.4", false},
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"192.0.2.128/25", "192.0.2.127", false},
		{"fc00::/7", "fdff::1", true},
		{"::ffff:10.0.0.0/104", "10.1.1.1", true},
	};
	static const char *const bad[] = {"10.0.0.0/33", "10.0.0.0/", "10.0.0.0/08", "10.0.0.0/-1",
		"::/129", "/8", "a/8", "1.2.3.4/8/8", "1.2.3.4/0x8"};
	struct net_prefix p, q;
	struct net_addr a;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		CHECK(net_prefix_parse(rows[i].prefix, &p));
		a = A(rows[i].addr);
		if (net_prefix_has(&p, &a) != rows[i].in)
			printf("%s in %s\n", rows[i].addr, rows[i].prefix);
		CHECK(net_prefix_has(&p, &a) == rows[i].in);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		CHECK(!net_prefix_parse(bad[i], &p));
	CHECK(net_prefix_parse("10.0.0.0/8", &p) && net_prefix_parse("10.2.0.0/16", &q));
	CHECK(net_prefix_covers(&p, &q) && !net_prefix_covers(&q, &p) && net_prefix_covers(&p, &p));
}

static void places_have_a_kind(void)
{
	static const struct {
		const char *addr;
		enum net_kind kind;
	} rows[] = {
		{"8.8.8.8", NET_PUBLIC},
		{"0.1.2.3", NET_UNSPECIFIED},
		{"10.0.0.1", NET_PRIVATE},
		{"100.64.0.1", NET_SHARED},
		{"100.127.255.255", NET_SHARED},
		{"100.128.0.0", NET_PUBLIC},
		{"100.100.100.200", NET_SHARED},
		{"127.0.0.1", NET_LOOPBACK},
		{"127.255.255.254", NET_LOOPBACK},
		{"168.63.129.16", NET_METADATA},
		{"169.254.169.254", NET_LINK_LOCAL},
		{"172.15.255.255", NET_PUBLIC},
		{"172.16.0.0", NET_PRIVATE},
		{"172.31.255.255", NET_PRIVATE},
		{"172.32.0.0", NET_PUBLIC},
		{"192.0.2.1", NET_RESERVED},
		{"192.168.1.1", NET_PRIVATE},
		{"198.18.0.1", NET_RESERVED},
		{"198.20.0.1", NET_PUBLIC},
		{"224.0.0.1", NET_MULTICAST},
		{"239.255.255.255", NET_MULTICAST},
		{"240.0.0.1", NET_RESERVED},
		{"255.255.255.255", NET_BROADCAST},
		{"::", NET_UNSPECIFIED},
		{"::1", NET_LOOPBACK},
		{"::ffff:127.0.0.1", NET_LOOPBACK},
		{"::127.0.0.1", NET_RESERVED},
		{"fd00:ec2::254", NET_PRIVATE},
		{"fe80::1", NET_LINK_LOCAL},
		{"febf::1", NET_LINK_LOCAL},
		{"fec0::1", NET_PRIVATE},
		{"ff02::1", NET_MULTICAST},
		{"2606:4700::1111", NET_PUBLIC},
		{"2001:db8::1", NET_RESERVED},
		{"64:ff9b:1::1", NET_PRIVATE},
	};
	struct net_prefix place;
	struct net_addr a;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		a = A(rows[i].addr);
		if (net_kind_of(&a, &place) != rows[i].kind)
			printf("%s is %s\n", rows[i].addr, net_kind_name(net_kind_of(&a, &place)));
		CHECK_INT(net_kind_of(&a, &place), rows[i].kind);
		CHECK(net_prefix_has(&place, &a));
	}
}

static void rules_are_refused_with_their_text(void)
{
	static const char *const bad[] = {"1.2.3", "1.2.3.4/99", "*.", "*", "a..b", ".a", "a b",
		"a/b", "http://x", "*.*.x", "\xc3\xa9.example", "1.2.3.4.", "999.1.1.1",
		"example.com:443", "-\n",
		"a_very_long_label_a_very_long_label_a_very_long_label_a_very_long.x"};
	static const char *const good[] = {"example.com", "EXAMPLE.com.", "*.example.com",
		"_srv.example.com", "x", "10.0.0.0/8", "::1", "*.com"};
	uint16_t ports[NET_PORTS_MAX + 1] = {443, 80};
	struct net_rule r;
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		r = (struct net_rule){0};
		CHECK_INT(net_rule_target(bad[i], &r, &e), -EINVAL);
		CHECK(strstr(e.msg, "target \""));
	}
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		r = (struct net_rule){0};
		CHECK_INT(net_rule_target(good[i], &r, &e), 0);
	}
	r = (struct net_rule){0};
	CHECK_INT(net_rule_ports(ports, 0, &r, &e), -EINVAL); /* neither target nor ports */
	CHECK_INT(net_rule_ports(ports, 2, &r, &e), 0);
	CHECK(net_rule_port(&r, true, 443) && !net_rule_port(&r, true, 22) &&
		net_rule_port(&r, false, 443) && !net_rule_port(&r, false, 0));
	r.allow = true; /* a rule that allows ports allows TCP's only */
	CHECK(net_rule_port(&r, true, 443) && !net_rule_port(&r, false, 443));
	net_rule_fini(&r);
	CHECK_INT(net_rule_ports(ports, NET_PORTS_MAX + 1, &r, &e), -EINVAL);
	ports[1] = 443;
	CHECK_INT(net_rule_ports(ports, 2, &r, &e), -EINVAL);
	ports[1] = 0;
	CHECK_INT(net_rule_ports(ports, 2, &r, &e), -EINVAL);
	r = (struct net_rule){0};
	CHECK_INT(net_rule_target("example.com", &r, &e), 0);
	CHECK_INT(net_rule_ports(ports, 1, &r, &e), -EINVAL); /* a name with ports */
	CHECK(strstr(e.msg, "example.com"));
}

struct text_rule {
	const char *target;
	bool allow;
	uint16_t port;
};

static void put_rules(struct buf *b, const struct text_rule *t, uint32_t n)
{
	buf_u32(b, n);
	for (uint32_t i = 0; i < n; i++)
		net_rule_put(b, t[i].allow, t[i].target, &t[i].port, t[i].port ? 1 : 0);
}

static struct policy make_policy(bool allow, const struct text_rule *t, uint32_t n)
{
	struct policy p = {0};
	struct err e = {0};
	struct buf b;
	struct cur c;

	buf_init(&b, MIB(1));
	buf_u8(&b, 1);
	buf_u8(&b, allow);
	put_rules(&b, t, n);
	c = cur_of(b.p, b.len);
	CHECK_INT(policy_get(&c, &p, &e), 0);
	/* every shorter form is refused */
	for (size_t len = 0; len < b.len; len++) {
		struct policy q = {0};

		c = cur_of(b.p, len);
		CHECK(policy_get(&c, &q, &e) < 0);
	}
	buf_fini(&b);
	return p;
}

static void make_world(struct net_world *w, const struct text_rule *t, uint32_t n, uint32_t kinds)
{
	struct err e = {0};
	struct buf b;
	struct cur c;

	buf_init(&b, MIB(1));
	put_rules(&b, t, n);
	buf_u32(&b, kinds);
	c = cur_of(b.p, b.len);
	CHECK_INT(net_world_get(&c, w, &e), 0);
	buf_fini(&b);
}

static enum net_verdict to(
	const struct policy *p, const struct net_world *w, const char *addr, uint16_t port)
{
	struct net_addr a = A(addr);
	const char *name;

	return policy_address(p, w, NULL, &a, true, port, 1, &name);
}

static void without_a_policy_the_public_is_open(void)
{
	static const char *const closed[] = {"127.0.0.1", "0.0.0.0", "10.0.0.1", "169.254.169.254",
		"192.168.0.1", "172.20.1.1", "100.64.1.1", "224.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::10.0.0.1", "fe80::1",
		"fd00::1", "ff02::1",
		/* NAT64, 6to4, Teredo with the server and with the client in a closed place */
		"64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::1", "2002:a00:1::1",
		"2002:7f00:1::1", "2001:0:a00:1::1", "2001:0:808:808:0:0:f5ff:fffe",
		"168.63.129.16", "fd00:ec2::254", "203.0.113.7"};
	static const char *const open[] = {
		"8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::8.8.8.8", "2002:808:808::1"};
	struct net_world w = {0};
	struct net_addr own;
	struct policy p = {0};

	for (size_t i = 0; i < ARRAY_LEN(closed); i++) {
		if (to(&p, &w, closed[i], 443) != NET_V_CLOSED)
			printf("%s is %s\n", closed[i],
				net_verdict_name(to(&p, &w, closed[i], 443)));
		CHECK_INT(to(&p, &w, closed[i], 443), NET_V_CLOSED);
	}
	for (size_t i = 0; i < ARRAY_LEN(open); i++)
		CHECK_INT(to(&p, &w, open[i], 443), NET_V_ALLOW);
	CHECK_INT(to(&p, &w, "8.8.8.8", 853), NET_V_PORT);
	CHECK_INT(policy_name(&p, &w, "example.com"), NET_V_ALLOW);
	/* an address of this host, in each of its forms */
	own = A("51.15.1.1");
	CHECK_INT(to(&p, &w, "51.15.1.1", 443), NET_V_ALLOW);
	CHECK_INT(net_world_host(&w, &own, 1), 0);
	CHECK_INT(to(&p, &w, "51.15.1.1", 443), NET_V_CLOSED);
	CHECK_INT(to(&p, &w, "::ffff:51.15.1.1", 443), NET_V_CLOSED);
	CHECK_INT(to(&p, &w, "64:ff9b::51.15.1.1", 443), NET_V_CLOSED);
	CHECK_INT(to(&p, &w, "51.15.1.2", 443), NET_V_ALLOW);
	net_world_fini(&w);
}

static void names_are_first_match(void)
{
	static const struct text_rule rules[] = {{"bad.example.com", false, 0},
		{"*.example.com", true, 0}, {"Example.ORG.", true, 0}, {"*.org", false, 0},
		{"10.0.0.0/8", true, 0}};
	struct policy deny = make_policy(false, rules, ARRAY_LEN(rules)),
		      allow = make_policy(true, rules, ARRAY_LEN(rules));
	struct net_world w = {0};
	static const struct text_rule always[] = {
		{"*.evil.example.com", false, 0}, {"mirror.org", true, 0}};

	CHECK_INT(policy_name(&deny, &w, "bad.example.com"), NET_V_RULE);
	CHECK_INT(policy_name(&deny, &w, "x.bad.example.com"), NET_V_ALLOW);
	CHECK_INT(policy_name(&deny, &w, "a.example.com"), NET_V_ALLOW);
	CHECK_INT(policy_name(&deny, &w, "example.com"), NET_V_DEFAULT); /* *.X is not X */
	CHECK_INT(policy_name(&deny, &w, "xexample.com"), NET_V_DEFAULT);
	CHECK_INT(policy_name(&deny, &w, "example.org"), NET_V_ALLOW);
	CHECK_INT(policy_name(&deny, &w, "other.org"), NET_V_RULE);
	CHECK_INT(policy_name(&deny, &w, "else.net"), NET_V_DEFAULT);
	CHECK_INT(policy_name(&allow, &w, "else.net"), NET_V_ALLOW);
	make_world(&w, always, ARRAY_LEN(always), 0);
	CHECK_INT(policy_name(&deny, &w, "a.evil.example.com"), NET_V_OPERATOR);
	CHECK_INT(policy_name(&deny, &w, "mirror.org"), NET_V_ALLOW);
	policy_fini(&deny);
	policy_fini(&allow);
	net_world_fini(&w);
}

static void denied_addresses_come_first(void)
{
	static const struct text_rule rules[] = {{"0.0.0.0/0", true, 0}, {"9.9.9.0/24", false, 0},
		{"9.9.9.9", true, 0}, {"10.1.0.0/16", true, 0}, {"10.1.2.3", false, 0},
		{"192.168.0.0/16", true, 8080}, {"", false, 25}, {"127.0.0.1", true, 0},
		{"8.0.0.0/5", true, 0}};
	struct policy p = make_policy(false, rules, ARRAY_LEN(rules));
	struct net_world w = {0};
	static const struct text_rule always[] = {
		{"7.7.7.7", false, 0}, {"172.16.5.0/24", true, 0}};

	CHECK_INT(to(&p, &w, "8.8.8.8", 443), NET_V_ALLOW);
	CHECK_INT(to(&p, &w, "8.8.8.8", 25), NET_V_RULE);
	CHECK_INT(to(&p, &w, "9.9.9.9", 443), NET_V_RULE); /* the order does not matter */
	CHECK_INT(to(&p, &w, "2606:4700::1", 443), NET_V_DEFAULT);
	/* 0.0.0.0/0 and 8.0.0.0/5 reach over 10.0.0.0/8 and do not open it; a rule inside does */
	CHECK_INT(to(&p, &w, "10.2.0.1", 443), NET_V_CLOSED);
	CHECK_INT(to(&p, &w, "10.1.0.1", 443), NET_V_ALLOW);
	CHECK_INT(to(&p, &w, "10.1.2.3", 443), NET_V_RULE);
	CHECK_INT(to(&p, &w, "192.168.1.1", 8080), NET_V_ALLOW);
	CHECK_INT(to(&p, &w, "192.168.1.1", 80), NET_V_CLOSED);
	CHECK_INT(to(&p, &w, "127.0.0.1", 80), NET_V_ALLOW);
	CHECK_INT(to(&p, &w, "127.0.0.2", 80), NET_V_CLOSED);
	make_world(&w, always, ARRAY_LEN(always), 1u << NET_LOOPBACK);
	CHECK_INT(to(&p, &w, "127.0.0.1", 80), NET_V_CLOSED); /* the operator keeps it closed */
	CHECK_INT(to(&p, &w, "7.7.7.7", 80), NET_V_OPERATOR);
	CHECK_INT(to(&p, &w, "172.16.5.5", 80), NET_V_ALLOW);
	CHECK_INT(to(&p, &w, "172.16.6.5", 80), NET_V_CLOSED);
	policy_fini(&p);
	net_world_fini(&w);
}

static void nothing_opens_multicast(void)
{
	static const struct text_rule rules[] = {{"224.0.0.0/4", true, 0}, {"0.0.0.0/8", true, 0},
		{"255.255.255.255", true, 0}, {"ff00::/8", true, 0}};
	struct policy p = make_policy(true, rules, ARRAY_LEN(rules));
	struct net_world w = {0};

	CHECK_INT(to(&p, &w, "224.0.0.251", 5353), NET_V_CLOSED);
	CHECK_INT(to(&p, &w, "0.0.0.0", 80), NET_V_CLOSED);
	CHECK_INT(to(&p, &w, "255.255.255.255", 80), NET_V_CLOSED);
	CHECK_INT(to(&p, &w, "ff02::1", 80), NET_V_CLOSED);
	policy_fini(&p);
}

static void learned_addresses_open_and_end(void)
{
	static const struct text_rule rules[] = {
		{"example.com", true, 0}, {"6.6.6.0/24", false, 0}};
	struct policy p = make_policy(false, rules, ARRAY_LEN(rules)),
		      none = make_policy(false, NULL, 0);
	const uint64_t s = 1000000000ull;
	struct net_world w = {0};
	struct learned l = {0};
	struct net_addr good = A("5.5.5.5"), bad = A("6.6.6.6"), priv = A("10.0.0.1");
	const char *name;

	CHECK_INT(policy_address(&p, &w, &l, &good, true, 443, s, &name), NET_V_DEFAULT);
	CHECK_INT(learned_add(&l, &good, "example.com", 1, s), 0);
	CHECK_INT(learned_add(&l, &bad, "example.com", 1000, s), 0);
	CHECK_INT(learned_add(&l, &priv, "example.com", 1000, s), 0);
	CHECK_INT(policy_address(&p, &w, &l, &good, true, 443, s, &name), NET_V_ALLOW);
	CHECK_STR(name, "example.com");
	CHECK_INT(policy_address(&p, &w, &l, &good, true, 443, (1 + LEARNED_MIN_S) * s - 1, &name),
		NET_V_ALLOW);
	CHECK_INT(policy_address(&p, &w, &l, &good, true, 443, (1 + LEARNED_MIN_S) * s, &name),
		NET_V_DEFAULT);
	/* a learned address opens neither a denied nor a closed place */
	CHECK_INT(policy_address(&p, &w, &l, &bad, true, 443, s, &name), NET_V_RULE);
	CHECK_INT(policy_address(&p, &w, &l, &priv, true, 443, s, &name), NET_V_CLOSED);
	CHECK(!policy_answer(&p, &w, &priv) && policy_answer(&p, &w, &good));
	learned_review(&l, &none, &w);
	CHECK_INT(l.n, 0);
	/* a full table forgets the oldest, and never grows */
	for (uint32_t i = 0; i < LEARNED_MAX + 100; i++) {
		struct net_addr a = net_addr4(0x05000000 + i);

		CHECK_INT(learned_add(&l, &a, "example.com", 60 + i % 300, 2 * s), 0);
	}
	CHECK_INT(l.n, LEARNED_MAX);
	learned_fini(&l);
	policy_fini(&p);
	policy_fini(&none);
}

static void too_many_rules_are_refused(void)
{
	struct policy p = {0};
	struct err e = {0};
	struct buf b;
	struct cur c;

	buf_init(&b, MIB(4));
	buf_u8(&b, 1);
	buf_u8(&b, 0);
	buf_u32(&b, 10000);
	for (int i = 0; i < 10000; i++)
		net_rule_put(&b, true, "example.com", NULL, 0);
	c = cur_of(b.p, b.len);
	CHECK_INT(policy_get(&c, &p, &e), -E2BIG);
	buf_fini(&b);
	buf_init(&b, MIB(4));
	buf_u8(&b, 1);
	buf_u8(&b, 0);
	buf_u32(&b, 2);
	net_rule_put(&b, true, "example.com", NULL, 0);
	net_rule_put(&b, true, "no such/rule", NULL, 0);
	c = cur_of(b.p, b.len);
	CHECK_INT(policy_get(&c, &p, &e), -EINVAL);
	CHECK(strstr(e.msg, "rule 2") && strstr(e.msg, "no such/rule"));
	buf_fini(&b);
}

static const struct test tests[] = {
	{"addresses_have_one_reading", addresses_have_one_reading},
	{"prefixes_contain_what_they_say", prefixes_contain_what_they_say},
	{"places_have_a_kind", places_have_a_kind},
	{"rules_are_refused_with_their_text", rules_are_refused_with_their_text},
	{"without_a_policy_the_public_is_open", without_a_policy_the_public_is_open},
	{"names_are_first_match", names_are_first_match},
	{"denied_addresses_come_first", denied_addresses_come_first},
	{"nothing_opens_multicast", nothing_opens_multicast},
	{"learned_addresses_open_and_end", learned_addresses_open_and_end},
	{"too_many_rules_are_refused", too_many_rules_are_refused},
};
TEST_MAIN(tests)
