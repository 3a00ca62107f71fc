/* SPDX-License-Identifier: Apache-2.0
 *
 * api_config: the reader of the daemon's configuration.
 */
#include <stdint.h>

#include "api/core/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static struct config c;
	struct err e = {0};

	conf_defaults(&c);
	if (conf_parse(&c, (const char *)p, n, &e) == 0) {
		ASSERT(c.port >= 0 && c.port <= 65535 && c.nkeys <= CONFIG_KEYS_MAX);
		(void)conf_check(&c, &e);
	} else {
		ASSERT(e.code == EINVAL && e.msg[0]);
	}
	return 0;
}
