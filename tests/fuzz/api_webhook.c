/* SPDX-License-Identifier: Apache-2.0
 *
 * api_webhook: the URL of a deny webhook, and the first bytes of what a server answers. What is taken can be written into a request: no
 * byte of it ends a line.
 */
#include "lib/test.h"

#include "api/network/webhook.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void plain(const char *s)
{
	for (; *s; s++)
		ASSERT(*s > ' ' && *s <= '~');
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	_cleanup_free_ char *url = malloc(n + 1);
	struct webhook_url u;
	struct err e;
	int status;

	if (!url)
		return 0;
	memcpy(url, p, n);
	url[n] = 0;
	if (webhook_url_parse(url, &u, &e) == 0) {
		ASSERT(u.port && *u.host && *u.path == '/');
		plain(u.host);
		plain(u.path);
	}
	status = webhook_status((const char *)p, n);
	ASSERT(status >= 0 && status <= 999);
	return 0;
}
