/* SPDX-License-Identifier: Apache-2.0
 *
 * spec.c: the create request, checked. mayflyd. Hostile JSON; the order of the checks is the reference's, because clients see the
 * first that fails.
 */
#include "api/lifecycle/spec.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/core/config.h"
#include "api/core/text.h"
#include "api/network/egress_policy.h"
#include "api/network/network.h"
#include "api/network/webhook.h"
#include "api/volumes/volume_request.h"
#include "images/oci/ref.h"
#include "lib/json.h"

#define PARAM     "SANDBOX::INVALID_PARAMETER"
#define MIB_OF(b) ((b) >> 20)

struct cJSON *json_object(const void *body, size_t n, struct refusal *x)
{
	struct err e;
	cJSON *j = NULL;
	int rc = json_read(&j, body, n, JSON_OBJECT, &e);

	if (n == 0)
		refuse(x, 400, PARAM, "A JSON body is required.");
	else if (rc == -EINVAL)
		refuse(x, 400, PARAM, "The request body must be a JSON object.");
	else if (rc < 0)
		refuse(x, 400, PARAM, "The request body is not valid JSON.");
	return j;
}

static const cJSON *field(const cJSON *o, const char *name)
{
	return json_field(o, name);
}

static bool is_blank(const char *s)
{
	return !s[strspn(s, " \t\r\n")];
}

/* ---- grammars */

static bool name_ok(const char *s, size_t n)
{
	if (n < 1 || n > 63 || !isalnum((unsigned char)s[0]) || !isalnum((unsigned char)s[n - 1]))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)s[i]) && !strchr("-_.", s[i]))
			return false;
	return true;
}

static bool subdomain_ok(const char *s, size_t n)
{
	if (n < 1 || n > 253)
		return false;
	for (size_t i = 0; i < n;) {
		size_t l = 0;

		while (i + l < n && s[i + l] != '.') {
			if (!islower((unsigned char)s[i + l]) &&
				!isdigit((unsigned char)s[i + l]) && s[i + l] != '-')
				return false;
			l++;
		}
		if (l < 1 || l > 63 || s[i] == '-' || s[i + l - 1] == '-')
			return false;
		i += l + 1;
		if (i == n)
			return false; /* ends in a dot */
	}
	return true;
}

bool metadata_key_ok(const char *k)
{
	const char *slash = strchr(k, '/');

	if (slash && !subdomain_ok(k, (size_t)(slash - k)))
		return false;
	k = slash ? slash + 1 : k;
	return name_ok(k, strlen(k));
}

bool metadata_value_ok(const char *v)
{
	return !*v || name_ok(v, strlen(v));
}

int members_check(const cJSON *map, const char *what, size_t max, struct refusal *x)
{
	const cJSON *v = map ? map->child : NULL;

	for (size_t n = 0; v; v = v->next)
		if (++n > max)
			return refuse(x, 413, PARAM, "%s may have at most %zu members.", what, max);
	return 0;
}

int metadata_check(const cJSON *map, bool nulls, const char *reserved_code, struct refusal *x)
{
	const cJSON *v;

	if (!cJSON_IsObject(map))
		return refuse(x, 400, PARAM, "metadata must be an object of strings.");
	/* a patch may replace all that there is */
	if (members_check(map, "metadata", nulls ? 2 * METADATA_KEYS_MAX : METADATA_KEYS_MAX, x) <
		0)
		return -EINVAL;
	cJSON_ArrayForEach (v, map) {
		if (!strncmp(v->string, "opensandbox.io/", 15))
			return refuse(x, 400, reserved_code,
				"Metadata key '%s' uses the reserved prefix 'opensandbox.io/'.",
				v->string);
		if (!metadata_key_ok(v->string))
			return refuse(x, 400, "SANDBOX::INVALID_METADATA_LABEL",
				"Metadata key '%.100s' is not a valid label key.", v->string);
		if (nulls && cJSON_IsNull(v))
			continue;
		if (!cJSON_IsString(v))
			return refuse(x, 400, PARAM, "metadata.%s must be a string.", v->string);
		if (!metadata_value_ok(v->valuestring))
			return refuse(x, 400, "SANDBOX::INVALID_METADATA_LABEL",
				"Metadata value '%.100s' of '%s' is not a valid label value.",
				v->valuestring, v->string);
	}
	return 0;
}

bool cpu_parse(const char *s, uint32_t *millis)
{
	char *end;
	double v;

	s += strspn(s, " \t");
	if (!isdigit((unsigned char)*s) && *s != '.')
		return false;
	if (s[strspn(s, "0123456789.m")] && !isspace((unsigned char)s[strspn(s, "0123456789.m")]))
		return false;
	v = strtod(s, &end);
	if (*end == 'm') {
		v /= 1000;
		end++;
	}
	if (end[strspn(end, " \t\r\n")] || !(v > 0) || v > 4096)
		return false;
	*millis = (uint32_t)(v * 1000 + 0.5);
	return *millis > 0;
}

/* ---- the request, part by part */

struct part {
	const cJSON *req;
	struct spec *s;
	const struct config *c;
	struct refusal *x;
};

static const char *text_of(const cJSON *o, const char *name)
{
	const cJSON *v = field(o, name);

	return cJSON_IsString(v) && !is_blank(v->valuestring) ? v->valuestring : NULL;
}

static int check_source(struct part *p)
{
	const cJSON *image = field(p->req, "image"), *auth;
	struct image_ref ref;
	struct err e;
	const char *snap = text_of(p->req, "snapshotId"), *tpl = text_of(p->req, "templateId"),
		   *uri = NULL;
	static const char *const refused[] = {"image", "snapshotId", "entrypoint", "env",
		"resourceLimits", "resourceRequests", "volumes", "platform", "credentialProxy"};

	if (field(p->req, "templateId") && !tpl)
		return refuse(p->x, 400, PARAM, "templateId must be a non-empty string.");
	if (tpl) {
		for (size_t i = 0; i < ARRAY_LEN(refused); i++)
			if (field(p->req, refused[i]))
				return refuse(p->x, 400, PARAM,
					"%s cannot be used together with templateId.", refused[i]);
		if (cJSON_IsTrue(field(p->req, "secureAccess")))
			return refuse(p->x, 400, PARAM,
				"secureAccess cannot be used together with templateId.");
		p->s->source = SRC_TEMPLATE;
		return (p->s->template_id = strdup(tpl))
			       ? 0
			       : refuse(p->x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	}
	if (image) {
		uri = text_of(image, "uri");
		if (!cJSON_IsObject(image) || !uri)
			return refuse(p->x, 400, PARAM, "image.uri must be a non-blank string.");
		if (strlen(uri) > 512)
			return refuse(p->x, 400, PARAM, "image.uri is longer than 512 bytes.");
		if (ref_parse(uri, &ref, &e) < 0)
			return refuse(p->x, 400, PARAM, "image.uri: %s", e.msg);
	}
	if (!image == !snap)
		return refuse(
			p->x, 400, PARAM, "Exactly one of image or snapshotId must be provided.");
	if (snap) {
		p->s->source = SRC_SNAPSHOT;
		return (p->s->snapshot_id = strdup(snap))
			       ? 0
			       : refuse(p->x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	}
	p->s->source = SRC_IMAGE;
	p->s->image = strdup(uri);
	auth = field(image, "auth");
	if (auth) {
		const cJSON *u = field(auth, "username"), *w = field(auth, "password");

		if (!cJSON_IsString(u) || !cJSON_IsString(w))
			return refuse(p->x, 400, PARAM, "image.auth needs username and password.");
		p->s->auth_user = strdup(u->valuestring);
		p->s->auth_password = strdup(w->valuestring);
		/* the document is not kept, and its memory is not wiped when it is freed */
		explicit_bzero(w->valuestring, strlen(w->valuestring));
	}
	return 0;
}

static int check_entrypoint(struct part *p)
{
	const cJSON *e = field(p->req, "entrypoint"), *v;
	size_t bytes = 0;

	if (!e) {
		if (p->s->source == SRC_IMAGE)
			return refuse(
				p->x, 400, PARAM, "Entrypoint is required when image is provided.");
		return 0;
	}
	if (!cJSON_IsArray(e) || !e->child)
		return refuse(
			p->x, 400, PARAM, "entrypoint must be a list of at least one string.");
	cJSON_ArrayForEach (v, e) {
		if (!cJSON_IsString(v))
			return refuse(p->x, 400, PARAM, "entrypoint must be a list of strings.");
		bytes += strlen(v->valuestring) + 1;
	}
	if (bytes > 131072)
		return refuse(p->x, 400, PARAM, "entrypoint is too long.");
	p->s->has_entrypoint = true;
	p->s->entrypoint = cJSON_Duplicate(e, true);
	return 0;
}

int timeout_check(const cJSON *t, const struct config *c, uint64_t *seconds, struct refusal *x)
{
	uint64_t s;

	if (!json_whole(t, 4000000000, &s) || s < 60)
		return refuse(
			x, 400, PARAM, "timeout must be a whole number of seconds, at least 60.");
	if (c->max_sandbox_timeout_seconds && s > (uint64_t)c->max_sandbox_timeout_seconds)
		return refuse(x, 400, PARAM,
			"timeout exceeds the server's maximum of %lld seconds.",
			(long long)c->max_sandbox_timeout_seconds);
	*seconds = s;
	return 0;
}

static int check_timeout(struct part *p)
{
	const cJSON *t = field(p->req, "timeout");

	if (!t)
		return p->s->source == SRC_TEMPLATE
			       ? refuse(p->x, 400, PARAM,
					 "timeout is required when templateId is provided.")
			       : 0;
	p->s->has_timeout = timeout_check(t, p->c, &p->s->timeout_s, p->x) == 0;
	return p->s->has_timeout ? 0 : -EINVAL;
}

static int bad_limit(struct part *p, const char *k, const char *v)
{
	return refuse(p->x, 400, PARAM,
		"Invalid resourceLimits.%s: '%.60s'; must resolve to a positive resource limit.", k,
		v);
}

static int check_limits(struct part *p)
{
	const cJSON *l = field(p->req, "resourceLimits"), *v;
	uint64_t max = (uint64_t)p->c->max_memory_mib << 20;

	p->s->cpu_millis = 1000;
	p->s->memory_bytes = MIB(512);
	if (!l)
		return p->s->source == SRC_TEMPLATE ? 0
						    : refuse(p->x, 400, PARAM,
							      "resourceLimits is required when "
							      "poolRef is not provided.");
	if (!cJSON_IsObject(l))
		return refuse(p->x, 400, PARAM, "resourceLimits must be an object of strings.");
	cJSON_ArrayForEach (v, l) {
		bool cpu = !strcmp(v->string, "cpu"), mem = !strcmp(v->string, "memory");

		if (cJSON_IsNull(v))
			continue;
		if (!cJSON_IsString(v))
			return refuse(p->x, 400, PARAM, "resourceLimits.%.60s must be a string.",
				v->string);
		if (!strcmp(v->string, "gpu"))
			return refuse(p->x, 400, PARAM,
				"resourceLimits.gpu: this server has no GPUs to give.");
		if ((cpu && !cpu_parse(v->valuestring, &p->s->cpu_millis)) ||
			(mem && !quantity_parse(v->valuestring, &p->s->memory_bytes)))
			return bad_limit(p, v->string, v->valuestring);
	}
	p->s->vcpus = (p->s->cpu_millis + 999) / 1000;
	if (p->s->vcpus > (uint64_t)p->c->max_vcpus)
		return refuse(p->x, 400, PARAM,
			"resourceLimits.cpu: at most %lld CPUs are given to one sandbox.",
			(long long)p->c->max_vcpus);
	if (p->s->memory_bytes > max)
		return refuse(p->x, 400, PARAM,
			"resourceLimits.memory: at most %lld MiB are given to one sandbox.",
			(long long)p->c->max_memory_mib);
	return 0;
}

#define EGRESS_ENV "OPENSANDBOX_EGRESS_"

/* Settings of the reference's egress process (protocol 1.3). They never reach the sandbox's environment, except the one with *shown. Only the
 * value of DENY_WEBHOOK is used here. False: a client may not give this one. */
static bool egress_env(const char *name, bool *shown)
{
	static const char *const names[] = {"LOG_LEVEL", "DNS_UPSTREAM_TIMEOUT",
		"MITMPROXY_SSL_INSECURE", "MITMPROXY_TRANSPARENT", "MITMPROXY_EXTRA_PORTS",
		"DENY_WEBHOOK", "METRICS_EXTRA_ATTRS", "CREDENTIAL_VAULT_REQUIRE_TLS",
		"CREDENTIAL_VAULT_REQUIRE_SCOPED_MATCH", "CREDENTIAL_VAULT_TRUSTED_PROXY_CIDRS",
		"POLICY_FILE"};

	name += strlen(EGRESS_ENV);
	*shown = strcmp(name, "MITMPROXY_TRANSPARENT") == 0;
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (!strcmp(names[i], name))
			return true;
	return false;
}

#define WEBHOOK_ENV EGRESS_ENV "DENY_WEBHOOK"

static int webhook_check(const cJSON *v, struct refusal *x)
{
	struct webhook_url u;
	struct err e;

	if (strcmp(v->string, WEBHOOK_ENV) != 0 || webhook_url_parse(v->valuestring, &u, &e) == 0)
		return 0;
	return refuse(x, 400, PARAM, "env.%s: %.200s.", v->string, e.msg);
}

int env_check(const cJSON *e, cJSON *to, struct refusal *x)
{
	const cJSON *v;
	size_t bytes = 0;

	if (!cJSON_IsObject(e))
		return refuse(x, 400, PARAM, "env must be an object of strings.");
	if (members_check(e, "env", ENV_KEYS_MAX, x) < 0)
		return -EINVAL;
	cJSON_ArrayForEach (v, e) {
		if (cJSON_IsNull(v))
			continue;
		if (!cJSON_IsString(v))
			return refuse(x, 400, PARAM, "env.%.60s must be a string.", v->string);
		if (!v->string[0] || strchr(v->string, '='))
			return refuse(x, 400, PARAM, "env: '%.60s' is not the name of a variable.",
				v->string);
		if (!strcmp(v->string, "OPENSANDBOX_LIFECYCLE"))
			return refuse(x, 422, PARAM, "env.OPENSANDBOX_LIFECYCLE is reserved.");
		if (!strncmp(v->string, EGRESS_ENV, strlen(EGRESS_ENV))) {
			bool shown = false;

			if (!egress_env(v->string, &shown))
				return refuse(x, 400, PARAM,
					"env.%.80s is not an egress setting that a client may "
					"give.",
					v->string);
			if (webhook_check(v, x) < 0)
				return -EINVAL;
			if (!shown)
				continue;
		}
		bytes += strlen(v->string) + strlen(v->valuestring) + 2;
		cJSON_AddStringToObject(to, v->string, v->valuestring);
	}
	return bytes > 131072 ? refuse(x, 400, PARAM, "env is too long.") : 0;
}

static int check_env(struct part *p)
{
	const cJSON *e = field(p->req, "env");
	const char *url;
	int rc;

	p->s->env = cJSON_CreateObject();
	rc = e ? env_check(e, p->s->env, p->x) : 0;
	url = e && rc == 0 ? json_str(e, WEBHOOK_ENV) : NULL;
	if (url && !(p->s->deny_webhook = strdup(url)))
		return refuse(p->x, 500, PARAM, "no memory.");
	p->s->has_env = cJSON_GetArraySize(p->s->env) > 0;
	return rc;
}

static int check_metadata(struct part *p)
{
	const cJSON *m = field(p->req, "metadata");

	if (!m)
		return 0;
	if (metadata_check(m, false, "SANDBOX::INVALID_METADATA_LABEL", p->x) < 0)
		return -EINVAL;
	p->s->metadata = cJSON_Duplicate(m, true);
	return 0;
}

static int check_extensions(struct part *p)
{
	const cJSON *e = field(p->req, "extensions"), *v;
	struct network_limits limits;
	struct err bad = {0};
	size_t bytes = 0;

	if (!e)
		return 0;
	if (!cJSON_IsObject(e))
		return refuse(p->x, 400, PARAM, "extensions must be an object of strings.");
	if (members_check(e, "extensions", EXTENSIONS_KEYS_MAX, p->x) < 0)
		return -EINVAL;
	cJSON_ArrayForEach (v, e) {
		if (!cJSON_IsString(v))
			return refuse(
				p->x, 400, PARAM, "extensions.%.60s must be a string.", v->string);
		bytes += strlen(v->string) + strlen(v->valuestring);
	}
	if (bytes > EXTENSIONS_BYTES_MAX)
		return refuse(p->x, 413, PARAM, "extensions may have at most %d bytes.",
			EXTENSIONS_BYTES_MAX);
	v = field(e, "access.renew.extend.seconds");
	if (v) {
		size_t n = strlen(v->valuestring);
		long s = n <= 5 ? strtol(v->valuestring, NULL, 10) : 0;

		if (n == 0 || v->valuestring[strspn(v->valuestring, "0123456789")] || s < 300 ||
			s > 86400)
			return refuse(p->x, 400, PARAM,
				"extensions['access.renew.extend.seconds'] must be an integer "
				"between 300 and 86400.");
		p->s->renew_s = (uint32_t)s;
	}
	v = field(e, "mayfly.snapshot");
	if (v && strcmp(v->valuestring, "memory") != 0 && strcmp(v->valuestring, "disk") != 0)
		return refuse(
			p->x, 400, PARAM, "extensions['mayfly.snapshot'] must be memory or disk.");
	v = field(e, "mayfly.pause");
	if (v && strcmp(v->valuestring, "resident") != 0 && strcmp(v->valuestring, "disk") != 0)
		return refuse(
			p->x, 400, PARAM, "extensions['mayfly.pause'] must be disk or resident.");
	v = field(e, "mayfly.restore-hook");
	if (v && strcmp(v->valuestring, "run") != 0 && strcmp(v->valuestring, "skip") != 0)
		return refuse(
			p->x, 400, PARAM, "extensions['mayfly.restore-hook'] must be run or skip.");
	v = field(e, "mayfly.id");
	if (v && !uuid_ok(v->valuestring))
		return refuse(
			p->x, 400, PARAM, "extensions['mayfly.id'] must be a UUID in lower case.");
	if (network_limits_read(e, &limits, &bad) < 0)
		return refuse(p->x, 400, PARAM, "%s", bad.msg);
	p->s->extensions = cJSON_Duplicate(e, true);
	return 0;
}

static int check_platform(struct part *p)
{
	const cJSON *o = field(p->req, "platform");
	const char *os, *arch;

	if (!o)
		return 0;
	os = text_of(o, "os");
	arch = text_of(o, "arch");
	if (!os || !arch)
		return refuse(p->x, 400, PARAM, "platform needs os and arch.");
	if (strcmp(os, "linux") != 0 || strcmp(arch, "amd64") != 0)
		return refuse(p->x, 400, PARAM,
			"platform %.20s/%.20s is not available: this host runs linux/amd64.", os,
			arch);
	p->s->platform = cJSON_CreateObject();
	cJSON_AddStringToObject(p->s->platform, "os", os);
	cJSON_AddStringToObject(p->s->platform, "arch", arch);
	return 0;
}

/* Members that this server, or this configuration, cannot serve. They are never ignored silently. */
static int check_unsupported(struct part *p)
{
	const cJSON *cp = field(p->req, "credentialProxy"), *np = field(p->req, "networkPolicy");

	if (cp && cJSON_IsTrue(field(cp, "enabled"))) {
		if (!np)
			return refuse(p->x, 400, PARAM,
				"credentialProxy.enabled requires networkPolicy.");
		return refuse(
			p->x, 400, PARAM, "credentialProxy is not available on this server yet.");
	}
	p->s->secure_access = cJSON_IsTrue(field(p->req, "secureAccess"));
	if (p->s->secure_access && !conf_has_gateway(p->c))
		return refuse(p->x, 400, PARAM,
			"secureAccess needs a gateway: ingress.mode = \"gateway\" in the server's "
			"configuration.");
	return 0;
}

static int check_volumes(struct part *p)
{
	return volumes_read(field(p->req, "volumes"), p->c, &p->s->volumes, p->x);
}

static int check_policy(struct part *p)
{
	const cJSON *np = field(p->req, "networkPolicy");
	struct err e = {0};
	int rc;

	if (!np)
		return 0;
	if (!p->c->network_enabled)
		return refuse(p->x, 400, PARAM,
			"networkPolicy: sandboxes have no network on this server (network.enabled "
			"is false).");
	rc = egress_policy_read(np, &p->s->network_policy, &e);
	return rc < 0 ? refuse(p->x, rc == -E2BIG ? 413 : 400, PARAM, "networkPolicy: %.300s",
				e.msg)
		      : 0;
}

/* lifecycle.renewalPolicy is the newer form of extensions['access.renew.extend.seconds']. */
static int take_renewal(struct part *p, const cJSON *seconds)
{
	uint32_t s = (uint32_t)seconds->valuedouble;

	if (p->s->renew_s && p->s->renew_s != s)
		return refuse(p->x, 400, PARAM,
			"lifecycle.renewalPolicy and extensions['access.renew.extend.seconds'] "
			"differ.");
	p->s->renew_s = s;
	return 0;
}

/* As the protocol says, the sandbox gets it, too: in a variable that a client may not set. */
static int check_lifecycle(struct part *p)
{
	const cJSON *l = field(p->req, "lifecycle"), *renewal;
	char *text;

	if (!l)
		return 0;
	if (lifecycle_check(l, p->c, p->x) < 0)
		return -EINVAL;
	renewal = field(l, "renewalPolicy");
	if (renewal && take_renewal(p, field(renewal, "extendSeconds")) < 0)
		return -EINVAL;
	if (p->s->source == SRC_TEMPLATE && (field(l, "preStart") || field(l, "periodic")))
		return refuse(p->x, 400, PARAM,
			"lifecycle.preStart and lifecycle.periodic cannot be used together with "
			"templateId.");
	p->s->lifecycle = cJSON_Duplicate(l, true);
	p->s->idle = cJSON_DetachItemFromObjectCaseSensitive(p->s->lifecycle, "idlePolicy");
	if (cJSON_IsNull(p->s->idle))
		cJSON_Delete(take_ptr(p->s->idle));
	/* the agent gets the rest */
	cJSON_DeleteItemFromObjectCaseSensitive(p->s->lifecycle, "renewalPolicy");
	if (p->s->lifecycle && !p->s->lifecycle->child) {
		cJSON_Delete(take_ptr(p->s->lifecycle));
		return 0;
	}
	text = cJSON_PrintUnformatted(p->s->lifecycle);
	if (!text || !p->s->lifecycle ||
		!cJSON_AddStringToObject(p->s->env, "OPENSANDBOX_LIFECYCLE", text)) {
		cJSON_free(text);
		return refuse(p->x, 500, "SANDBOX::INTERNAL_ERROR", "no memory");
	}
	cJSON_free(text);
	return 0;
}

int spec_parse(
	struct spec *s, const void *body, size_t n, const struct config *c, struct refusal *x)
{
	static int (*const checks[])(struct part * p) = {check_source, check_entrypoint,
		check_timeout, check_limits, check_env, check_metadata, check_extensions,
		check_platform, check_volumes, check_unsupported, check_policy, check_lifecycle};
	cJSON *req;
	int rc = 0;

	memset(s, 0, sizeof(*s));
	req = json_object(body, n, x);
	if (!req)
		return -EINVAL;
	for (size_t i = 0; i < ARRAY_LEN(checks) && !rc; i++)
		rc = checks[i](&(struct part){req, s, c, x});
	cJSON_Delete(req);
	return rc;
}
