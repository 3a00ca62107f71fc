/* SPDX-License-Identifier: Apache-2.0
 *
 * create_request.c: see create_request.h. mayflyd's loop.
 */
#include "api/core/create_request.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int refuse(struct refusal *x, int status, const char *code, const char *fmt, ...)
{
	va_list ap;

	x->status = status;
	x->code = code;
	va_start(ap, fmt);
	vsnprintf(x->msg, sizeof(x->msg), fmt, ap);
	va_end(ap);
	return -EINVAL;
}

void spec_forget_credentials(struct spec *s)
{
	if (s->auth_password)
		explicit_bzero(s->auth_password, strlen(s->auth_password));
	free(take_ptr(s->auth_password));
	free(take_ptr(s->auth_user));
}

void spec_fini(struct spec *s)
{
	free(s->image);
	free(s->snapshot_id);
	free(s->template_id);
	free(s->deny_webhook);
	free(s->pool);
	spec_forget_credentials(s);
	cJSON_Delete(s->env);
	cJSON_Delete(s->metadata);
	cJSON_Delete(s->entrypoint);
	cJSON_Delete(s->extensions);
	cJSON_Delete(s->platform);
	cJSON_Delete(s->lifecycle);
	cJSON_Delete(s->idle);
	cJSON_Delete(s->network_policy);
	cJSON_Delete(s->volumes);
	memset(s, 0, sizeof(*s));
}
