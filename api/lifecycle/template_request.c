/* SPDX-License-Identifier: Apache-2.0
 *
 * template_request.c: see template_request.h. The request is put in the form of a create request, so that the same code checks both.
 */
#include "api/lifecycle/template_request.h"
#include "api/lifecycle/spec.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/core/config.h"
#include "api/core/text.h"

#define PARAM       "SANDBOX::INVALID_PARAMETER"
#define WINDOW_S    60u
#define WINDOW_MAX  3600u
#define PROBE_MAX   4096u
#define PUBLISH_MAX 512u

static const cJSON *field(const cJSON *o, const char *name)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);

	return cJSON_IsNull(v) ? NULL : v;
}

static bool blank(const char *s)
{
	return !s[strspn(s, " \t\r\n")];
}

static bool env_name_ok(const char *s)
{
	static const char letters[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";

	return *s && (*s < '0' || *s > '9') && !s[strspn(s, letters)];
}

/* tcp://HOST:PORT, HOST being the sandbox itself; cmd://COMMAND */
static int probe_parse(const char *text, struct probe *p, struct refusal *x)
{
	static const char *const hosts[] = {
		"127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::]", "::1", ""};
	const char *colon;
	char *end;
	long port;

	if (strlen(text) > PROBE_MAX)
		return refuse(x, 400, PARAM, "readiness.probe is too long.");
	if (!strncmp(text, "cmd://", 6) && !blank(text + 6)) {
		p->kind = PROBE_CMD;
		p->cmd = (char *)(uintptr_t)(text + 6); /* the request's; it is not written to */
		return 0;
	}
	colon = strrchr(text, ':');
	if (strncmp(text, "tcp://", 6) != 0 || colon < text + 6)
		return refuse(
			x, 400, PARAM, "readiness.probe must be tcp://host:port or cmd://command.");
	port = strtol(colon + 1, &end, 10);
	if (end == colon + 1 || *end || colon[1] < '0' || colon[1] > '9' || port < 1 ||
		port > 65535)
		return refuse(x, 400, PARAM, "readiness.probe: no port from 1 to 65535.");
	for (size_t i = 0; i < ARRAY_LEN(hosts); i++)
		if (strlen(hosts[i]) == (size_t)(colon - text - 6) &&
			!strncmp(hosts[i], text + 6, strlen(hosts[i]))) {
			p->kind = PROBE_TCP;
			p->port = (uint16_t)port;
			return 0;
		}
	return refuse(
		x, 400, PARAM, "readiness.probe: the host must be the sandbox itself (127.0.0.1).");
}

/* Without a probe the template is ready after warmupSeconds. If the request has neither, the template is ready after a minute
 * if there is an entrypoint, and otherwise at once. */
static int readiness(const cJSON *req, const struct config *c, struct probe *p, struct refusal *x)
{
	const cJSON *r = field(req, "readiness"), *probe = field(r, "probe"),
		    *warm = field(r, "warmupSeconds"), *v;

	*p = (struct probe){.kind = PROBE_NONE, .limit_s = (uint32_t)c->create_timeout_seconds};
	if (r && !cJSON_IsObject(r))
		return refuse(x, 400, PARAM, "readiness must be an object.");
	cJSON_ArrayForEach (v, r)
		if (strcmp(v->string, "probe") != 0 && strcmp(v->string, "warmupSeconds") != 0)
			return refuse(x, 400, PARAM, "readiness.%.60s is not known.", v->string);
	if (warm && (!cJSON_IsNumber(warm) || !(warm->valuedouble >= 0) ||
			    warm->valuedouble > WINDOW_MAX ||
			    warm->valuedouble != (uint32_t)warm->valuedouble))
		return refuse(x, 400, PARAM,
			"readiness.warmupSeconds must be a whole number from 0 to %u.", WINDOW_MAX);
	if (probe && (!cJSON_IsString(probe) || blank(probe->valuestring)))
		return refuse(x, 400, PARAM, "readiness.probe must be a non-blank string.");
	if (probe)
		return probe_parse(probe->valuestring, p, x);
	if (!warm && !field(req, "entrypoint"))
		return 0;
	p->kind = PROBE_WINDOW;
	p->limit_s = warm ? (uint32_t)warm->valuedouble : WINDOW_S;
	return 0;
}

static int check_disk(const cJSON *req, const struct config *c, struct refusal *x)
{
	const cJSON *v = field(field(req, "resourceLimits"), "disk");
	uint64_t bytes;

	if (!v)
		return 0;
	if (!cJSON_IsString(v) || !quantity_parse(v->valuestring, &bytes))
		return refuse(x, 400, PARAM,
			"Invalid resourceLimits.disk; must resolve to a positive resource limit.");
	if (bytes > (uint64_t)c->disk_mib << 20)
		return refuse(x, 400, PARAM,
			"resourceLimits.disk: a sandbox's disk has %lld MiB on this host.",
			(long long)c->disk_mib);
	return 0;
}

int template_req_spec(const cJSON *req, const struct config *c, struct spec *s, struct probe *p,
	struct refusal *x)
{
	static const char *const tail[] = {"tail", "-f", "/dev/null"};
	cJSON *o = cJSON_CreateObject(), *l;
	const cJSON *v = field(req, "image");
	_cleanup_free_ char *text = NULL;
	int rc;

	memset(s, 0, sizeof(*s));
	if (readiness(req, c, p, x) < 0 || check_disk(req, c, x) < 0) {
		cJSON_Delete(o);
		return -EINVAL;
	}
	cJSON_AddStringToObject(cJSON_AddObjectToObject(o, "image"), "uri",
		cJSON_IsString(v) ? v->valuestring : "");
	v = field(req, "entrypoint");
	cJSON_AddItemToObject(o, "entrypoint",
		v ? cJSON_Duplicate(v, true) : cJSON_CreateStringArray(tail, ARRAY_LEN(tail)));
	v = field(req, "resourceLimits");
	if (v) {
		cJSON_AddItemToObject(o, "resourceLimits", cJSON_Duplicate(v, true));
	} else {
		l = cJSON_AddObjectToObject(o, "resourceLimits");
		cJSON_AddStringToObject(l, "cpu", "1");
		cJSON_AddStringToObject(l, "memory", "512Mi");
	}
	v = field(req, "env");
	if (v)
		cJSON_AddItemToObject(o, "env", cJSON_Duplicate(v, true));
	v = field(req, "metadata");
	if (v)
		cJSON_AddItemToObject(o, "metadata", cJSON_Duplicate(v, true));
	text = cJSON_PrintUnformatted(o);
	cJSON_Delete(o);
	rc = text ? spec_parse(s, text, strlen(text), c, x)
		  : refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	return rc;
}

cJSON *template_req_parse(const void *body, size_t n, const struct config *c, struct refusal *x)
{
	static const char *const known[] = {"image", "publish", "resourceLimits", "entrypoint",
		"env", "metadata", "readiness", "format"};
	static const char *const texts[] = {"image", "publish"};
	cJSON *req = json_object(body, n, x), *out;
	const cJSON *v, *env;
	struct probe p;
	struct spec s;
	int rc = req ? 0 : -EINVAL;

	memset(&s, 0, sizeof(s));
	cJSON_ArrayForEach (v, req) {
		bool ok = false;

		for (size_t i = 0; i < ARRAY_LEN(known); i++)
			ok |= !strcmp(v->string, known[i]);
		if (!ok && rc == 0)
			rc = refuse(
				x, 400, PARAM, "%.60s is not a field of a template.", v->string);
	}
	for (size_t i = 0; i < ARRAY_LEN(texts) && rc == 0; i++) {
		v = field(req, texts[i]);
		if (!cJSON_IsString(v) || blank(v->valuestring))
			rc = refuse(x, 400, PARAM, "%s must be a non-blank string.", texts[i]);
		else if (strlen(v->valuestring) > PUBLISH_MAX)
			rc = refuse(x, 400, PARAM, "%s is longer than %u bytes.", texts[i],
				PUBLISH_MAX);
	}
	env = field(req, "env");
	cJSON_ArrayForEach (v, env)
		if (rc == 0 && (!v->string || !env_name_ok(v->string)))
			rc = refuse(x, 400, PARAM, "env: '%.60s' is not the name of a variable.",
				v->string ? v->string : "");
	v = field(req, "format");
	if (rc == 0 && v &&
		(!cJSON_IsString(v) || (strcmp(v->valuestring, "native") != 0 &&
					       strcmp(v->valuestring, "overlaybd") != 0)))
		rc = refuse(x, 400, PARAM, "format must be native or overlaybd.");
	if (rc == 0 && cJSON_IsArray(field(req, "entrypoint")) && !field(req, "entrypoint")->child)
		cJSON_DeleteItemFromObjectCaseSensitive(req, "entrypoint"); /* empty: the default */
	if (rc == 0)
		rc = template_req_spec(req, c, &s, &p, x);
	spec_fini(&s);
	out = rc == 0 ? cJSON_CreateObject() : NULL;
	for (size_t i = 0; i < ARRAY_LEN(known) && out; i++)
		if (field(req, known[i]))
			cJSON_AddItemToObject(
				out, known[i], cJSON_Duplicate(field(req, known[i]), true));
	if (out && !field(out, "format"))
		cJSON_AddStringToObject(out, "format", "native"); /* there is one form here */
	cJSON_Delete(req);
	return out;
}
