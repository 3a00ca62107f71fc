/* SPDX-License-Identifier: Apache-2.0
 *
 * template_request.h: the body of the Sandbox Protocol's POST /templates, checked field by field. The JSON is hostile. No I/O here.
 */
#pragma once

#include "api/sandbox/template_build.h"

/* The fields as a GET shows them, with defaults filled in; NULL: x says why. body need not be
 * terminated. */
struct cJSON *template_req_parse(
	const void *body, size_t n, const struct config *c, struct refusal *x);
/* What to build and when it is ready. s is to be given to spec_fini either way; p->cmd points into req. */
int template_req_spec(const struct cJSON *req, const struct config *c, struct spec *s,
	struct probe *p, struct refusal *x);
