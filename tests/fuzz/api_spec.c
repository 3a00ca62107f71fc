/* SPDX-License-Identifier: Apache-2.0
 *
 * api_spec: the bodies of POST /sandboxes and /templates, and the grammars for times and limits:
 * what a client sends first.
 */
#include <cjson/cJSON.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/core/config.h"
#include "api/core/text.h"
#include "api/lifecycle/spec.h"
#include "api/lifecycle/template_request.h"

/* the body of POST /templates: what was taken can be built, and is taken again as it is shown */
static void template_request(const uint8_t *p, size_t n, const struct config *c)
{
	struct refusal x = {0};
	struct probe probe;
	struct spec s;
	cJSON *req = template_req_parse(p, n, c, &x), *again;
	char *text, *text_again;

	if (!req) {
		ASSERT(x.status >= 400 && x.code && x.msg[0]);
		return;
	}
	ASSERT(template_req_spec(req, c, &s, &probe, &x) == 0 && s.image && s.entrypoint &&
		s.vcpus >= 1);
	ASSERT(probe.kind != PROBE_TCP || probe.port);
	spec_fini(&s);
	text = cJSON_PrintUnformatted(req);
	ASSERT(text);
	again = template_req_parse(text, strlen(text), c, &x);
	/* as text: of two members of one name cJSON_Compare looks at the first only */
	text_again = again ? cJSON_PrintUnformatted(again) : NULL;
	ASSERT(text_again && !strcmp(text, text_again));
	cJSON_Delete(again);
	cJSON_Delete(req);
	free(text_again);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static struct config c;
	struct refusal x = {0};
	struct spec s;
	char *text = malloc(n + 1), out[TIME_TEXT];
	int64_t t;
	uint64_t bytes;
	uint32_t millis;

	conf_defaults(&c);
	if (spec_parse(&s, p, n, &c, &x) == 0) {
		/* what was accepted keeps its promises */
		ASSERT(s.source != SRC_IMAGE || (s.image && s.entrypoint));
		ASSERT(s.source == SRC_TEMPLATE ||
			(s.vcpus >= 1 && s.vcpus <= 16 && s.memory_bytes > 0));
		ASSERT(!s.has_timeout || s.timeout_s >= 60);
	} else {
		ASSERT(x.status >= 400 && x.code && x.msg[0]);
	}
	spec_fini(&s);
	template_request(p, n, &c);
	memcpy(text, p, n);
	text[n] = 0;
	if (time_parse(text, &t))
		time_format(t, out);
	if (quantity_parse(text, &bytes))
		ASSERT(bytes > 0);
	if (cpu_parse(text, &millis))
		ASSERT(millis > 0);
	metadata_key_ok(text);
	metadata_value_ok(text);
	uuid_ok(text);
	free(text);
	return 0;
}
