/* SPDX-License-Identifier: Apache-2.0
 *
 * api_floor: the hardening floor: from the configuration to the agent's request, and whether the agent's answer is good enough.
 */
#include "lib/test.h"

#include "api/core/config.h"
#include "api/core/hardening.h"
#include "api/links/agent_client.h"
#include "api/sandbox/floor.h"

static void names_are_capabilities(void)
{
	struct err e = {0};
	uint64_t bits;

	CHECK_INT(capabilities_parse("", &bits, &e), 0);
	CHECK_INT(bits, 0);
	CHECK_INT(capabilities_parse("  chown CAP_KILL  cap_checkpoint_restore ", &bits, &e), 0);
	CHECK_INT(bits, 1ull << 0 | 1ull << 5 | 1ull << 40);
	CHECK_INT(capabilities_parse("chow", &bits, &e), -EINVAL);
	CHECK_INT(capabilities_parse("chownx", &bits, &e), -EINVAL);
}

static void the_request_has_what_is_configured(void)
{
	struct config c;
	struct buf b;
	struct cur k;
	char path[64];

	conf_defaults(&c);
	CHECK(!floor_wanted(&c));
	c.harden_caps = c.landlock = true;
	snprintf(c.harden_keep, sizeof(c.harden_keep), "setuid");
	snprintf(c.landlock_read, sizeof(c.landlock_read), "/");
	snprintf(c.landlock_write, sizeof(c.landlock_write), " /tmp  /run ");
	CHECK(floor_wanted(&c));
	buf_init(&b, 4096);
	floor_put(&b, &c);
	k = cur_of(b.p, b.len);
	CHECK_INT(cur_u32(&k), AGENT_H_CAPS | AGENT_H_LANDLOCK);
	CHECK_INT(cur_u64(&k), 1ull << 7);
	CHECK_INT(cur_u32(&k), 1);
	cur_str(&k, path, sizeof(path));
	CHECK_STR(path, "/");
	CHECK_INT(cur_u32(&k), 2);
	cur_str(&k, path, sizeof(path));
	CHECK_STR(path, "/tmp");
	cur_str(&k, path, sizeof(path));
	CHECK_STR(path, "/run");
	CHECK(cur_done(&k));
	buf_fini(&b);
}

/* caps, landlock: their states; 0 leaves the layer out */
static int answered(struct config *c, uint32_t caps, uint32_t landlock, bool cut, struct err *e)
{
	struct agent_reply r = {.text = ""};
	struct buf b;
	int rc;

	buf_init(&b, 4096);
	buf_u32(&b, !!caps + !!landlock);
	if (caps) {
		buf_str(&b, "cap_drop");
		buf_u32(&b, caps);
		buf_str(&b, "");
	}
	if (landlock) {
		buf_str(&b, "landlock");
		buf_u32(&b, landlock);
		buf_str(&b, "/x is missing");
	}
	r.body = cur_of(b.p, b.len - cut);
	rc = floor_check(c, &r, e);
	buf_fini(&b);
	return rc;
}

static void a_layer_that_does_not_hold_is_told(void)
{
	struct agent_reply failed = {.err = ENOSYS, .text = ""};
	struct config c;
	struct err e = {0};

	conf_defaults(&c);
	c.harden_caps = c.landlock = true;
	CHECK_INT(answered(&c, AGENT_LAYER_ACTIVE, AGENT_LAYER_ACTIVE, false, &e), 0);
	CHECK_INT(answered(&c, AGENT_LAYER_ACTIVE, AGENT_LAYER_DEGRADED, false, &e), 0);
	CHECK_INT(
		answered(&c, AGENT_LAYER_ACTIVE, AGENT_LAYER_UNSUPPORTED, false, &e), -EOPNOTSUPP);
	CHECK(strstr(e.msg, "landlock"));
	CHECK_INT(answered(&c, AGENT_LAYER_DISABLED, AGENT_LAYER_ACTIVE, false, &e), -EOPNOTSUPP);
	CHECK_INT(answered(&c, 0, AGENT_LAYER_ACTIVE, false, &e), -EOPNOTSUPP);
	CHECK_INT(answered(&c, AGENT_LAYER_ACTIVE, AGENT_LAYER_ACTIVE, true, &e), -EPROTO);
	CHECK_INT(floor_check(&c, &failed, &e), -EOPNOTSUPP);
}

static const struct test tests[] = {
	{"names_are_capabilities", names_are_capabilities},
	{"the_request_has_what_is_configured", the_request_has_what_is_configured},
	{"a_layer_that_does_not_hold_is_told", a_layer_that_does_not_hold_is_told},
};

int main(int argc, char **argv)
{
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
