/* SPDX-License-Identifier: Apache-2.0
 *
 * What a guest's agent answers about its hardening layers, a client's User-Agent, and names of capabilities. The first byte chooses.
 */
#include "api/core/config.h"
#include "api/core/hardening.h"
#include "api/exec/client_generation.h"
#include "api/links/agent_client.h"
#include "api/sandbox/floor.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static struct config c;
	struct agent_reply r = {.text = ""};
	struct err e = {0};
	uint64_t bits;
	char *text;

	if (!n)
		return 0;
	if (!*c.harden_keep)
		conf_defaults(&c);
	c.harden_caps = p[0] & 4;
	c.landlock = p[0] & 8;
	text = strndup((const char *)p + 1, n - 1);
	ASSERT(text);
	switch (p[0] % 4) {
	case 0:
		r.body = cur_of(p + 1, n - 1);
		(void)floor_check(&c, &r, &e);
		break;
	case 1:
		(void)client_is_older(text);
		break;
	default:
		if (capabilities_parse(text, &bits, &e) == 0)
			ASSERT(bits < 1ull << 41);
		break;
	}
	free(text);
	return 0;
}
