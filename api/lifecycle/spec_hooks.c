/* SPDX-License-Identifier: Apache-2.0
 *
 * spec_hooks.c: `lifecycle` of a create request: its shape and bounds. mayflyd's loop; the object is
 * a client's. The agent reads the schedules. When the sandbox starts, it refuses one that it does not
 * understand.
 */
#include "api/lifecycle/spec.h"

#include <string.h>

#include <cjson/cJSON.h>

#include "api/core/config.h"

#define PARAM          "SANDBOX::INVALID_PARAMETER"
#define ARGV_MAX       256
#define HOOKS_MAX      32
#define TEXT_MAX       65536 /* of the whole object as text: the agent takes no more */
#define PRE_LIMIT_S    10800
#define RUN_LIMIT_S    300
#define PROBE_PATH_MAX 512u

static const cJSON *get(const cJSON *o, const char *name)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);

	return v && !cJSON_IsNull(v) ? v : NULL;
}

static int only_keys(const cJSON *o, const char *what, const char *const *names, struct refusal *x)
{
	const cJSON *v;

	if (!cJSON_IsObject(o))
		return refuse(x, 400, PARAM, "%s must be an object.", what);
	cJSON_ArrayForEach (v, o) {
		size_t i = 0;

		while (names[i] && strcmp(names[i], v->string) != 0)
			i++;
		if (!names[i])
			return refuse(x, 400, PARAM, "%s.%.60s is not known.", what, v->string);
	}
	return 0;
}

static int check_hook(const cJSON *h, const char *what, int limit_s, struct refusal *x)
{
	const cJSON *cmd = get(h, "command"), *limit = get(h, "timeoutSeconds"), *v;
	uint64_t s;
	int n = 0;

	if (!cJSON_IsArray(cmd) || !cmd->child)
		return refuse(
			x, 400, PARAM, "%s.command must be a list of at least one string.", what);
	cJSON_ArrayForEach (v, cmd) {
		bool blank = !cJSON_IsString(v) || !v->valuestring[strspn(v->valuestring, " \t")];

		if (!cJSON_IsString(v) || ++n > ARGV_MAX || (n == 1 && blank))
			return refuse(x, 400, PARAM,
				"%s.command must be a list of at most %d strings, the first not "
				"blank.",
				what, ARGV_MAX);
	}
	if (limit && (!json_whole(limit, (uint64_t)limit_s, &s) || s < 1))
		return refuse(x, 400, PARAM, "%s.timeoutSeconds must be between 1 and %d.", what,
			limit_s);
	return 0;
}

static int check_periodic(const cJSON *list, struct refusal *x)
{
	static const char *const keys[] = {"name", "schedule", "command", "timeoutSeconds", NULL};
	const cJSON *h, *other;
	int n = 0;

	if (!cJSON_IsArray(list))
		return refuse(x, 400, PARAM, "lifecycle.periodic must be a list.");
	cJSON_ArrayForEach (h, list) {
		const cJSON *name, *when;

		if (++n > HOOKS_MAX)
			return refuse(x, 400, PARAM, "lifecycle.periodic has more than %d entries.",
				HOOKS_MAX);
		if (only_keys(h, "lifecycle.periodic", keys, x) < 0)
			return -EINVAL;
		name = get(h, "name");
		when = get(h, "schedule");
		if (!cJSON_IsString(name) || !name->valuestring[0] ||
			strlen(name->valuestring) > 47)
			return refuse(x, 400, PARAM,
				"lifecycle.periodic.name must be a string of 1 to 47 bytes.");
		if (!cJSON_IsString(when) || !when->valuestring[0] ||
			strlen(when->valuestring) > 255)
			return refuse(
				x, 400, PARAM, "lifecycle.periodic.schedule must be a string.");
		if (check_hook(h, "lifecycle.periodic", RUN_LIMIT_S, x) < 0)
			return -EINVAL;
		for (other = list->child; other != h; other = other->next)
			if (!strcmp(get(other, "name")->valuestring, name->valuestring))
				return refuse(x, 400, PARAM,
					"lifecycle.periodic.name %.47s is there twice.",
					name->valuestring);
	}
	return 0;
}

static int check_renewal(const cJSON *o, struct refusal *x)
{
	static const char *const keys[] = {"extendSeconds", NULL};
	uint64_t s;

	if (only_keys(o, "lifecycle.renewalPolicy", keys, x) < 0)
		return -EINVAL;
	if (json_whole(get(o, "extendSeconds"), 86400, &s) && s >= 300)
		return 0;
	return refuse(x, 400, PARAM,
		"lifecycle.renewalPolicy.extendSeconds must be an integer between 300 and 86400.");
}

static int check_probe(const cJSON *o, struct refusal *x)
{
	static const char *const keys[] = {"port", "path", "timeoutSeconds", NULL};
	const char *path = json_str(o, "path");
	uint64_t n;

	if (only_keys(o, "lifecycle.idlePolicy.activeProbe", keys, x) < 0)
		return -EINVAL;
	if (!json_whole(get(o, "port"), 65535, &n) || n < 1)
		return refuse(x, 400, PARAM,
			"lifecycle.idlePolicy.activeProbe.port must be between 1 and 65535.");
	if (!path || *path != '/' || strlen(path) > PROBE_PATH_MAX)
		return refuse(x, 400, PARAM,
			"lifecycle.idlePolicy.activeProbe.path must begin with / and have at most "
			"%u "
			"characters.",
			PROBE_PATH_MAX);
	/* it becomes a part of the first line of a request */
	for (const char *p = path; *p; p++)
		if (*p <= ' ' || *p > '~')
			return refuse(x, 400, PARAM,
				"lifecycle.idlePolicy.activeProbe.path has a blank or a character "
				"that no URL has.");
	if (get(o, "timeoutSeconds") && (!json_whole(get(o, "timeoutSeconds"), 10, &n) || n < 1))
		return refuse(x, 400, PARAM,
			"lifecycle.idlePolicy.activeProbe.timeoutSeconds must be between 1 and "
			"10.");
	return 0;
}

static int check_idle(const cJSON *o, const struct config *c, struct refusal *x)
{
	static const char *const keys[] = {
		"idleTimeoutSeconds", "onIdle", "wakeOnAccess", "activeProbe", NULL};
	const cJSON *timeout = get(o, "idleTimeoutSeconds"), *what = get(o, "onIdle"),
		    *wake = get(o, "wakeOnAccess"), *probe = get(o, "activeProbe");
	uint64_t s, min = (uint64_t)c->idle_min_timeout_seconds,
		    max = (uint64_t)c->idle_activity_ttl_seconds;

	if (only_keys(o, "lifecycle.idlePolicy", keys, x) < 0)
		return -EINVAL;
	if (!c->idle_enabled)
		return refuse(x, 400, PARAM,
			"lifecycle.idlePolicy is switched off on this server (idle.enabled).");
	if (timeout && (!json_whole(timeout, max, &s) || s < min))
		return refuse(x, 400, PARAM,
			"lifecycle.idlePolicy.idleTimeoutSeconds must be an integer between %llu "
			"and "
			"%llu.",
			(unsigned long long)min, (unsigned long long)max);
	if (!timeout != !what ||
		(what && (!cJSON_IsString(what) ||
				 (strcmp(what->valuestring, "pause") != 0 &&
					 strcmp(what->valuestring, "delete") != 0))))
		return refuse(x, 400, PARAM,
			"lifecycle.idlePolicy.onIdle must be pause or delete, together with "
			"idleTimeoutSeconds.");
	if (wake && !cJSON_IsBool(wake))
		return refuse(
			x, 400, PARAM, "lifecycle.idlePolicy.wakeOnAccess must be true or false.");
	return probe ? check_probe(probe, x) : 0;
}

int lifecycle_check(const cJSON *l, const struct config *c, struct refusal *x)
{
	static const char *const keys[] = {"preStart", "periodic", "renewalPolicy", "idlePolicy",
		NULL},
				 *const pre_keys[] = {"command", "timeoutSeconds", NULL};
	const cJSON *pre, *periodic;
	char *text;
	size_t n;

	if (only_keys(l, "lifecycle", keys, x) < 0)
		return -EINVAL;
	pre = get(l, "preStart");
	periodic = get(l, "periodic");
	if (pre && (only_keys(pre, "lifecycle.preStart", pre_keys, x) < 0 ||
			   check_hook(pre, "lifecycle.preStart", PRE_LIMIT_S, x) < 0))
		return -EINVAL;
	if (periodic && check_periodic(periodic, x) < 0)
		return -EINVAL;
	if (get(l, "renewalPolicy") && check_renewal(get(l, "renewalPolicy"), x) < 0)
		return -EINVAL;
	if (get(l, "idlePolicy") && check_idle(get(l, "idlePolicy"), c, x) < 0)
		return -EINVAL;
	text = cJSON_PrintUnformatted(l);
	n = text ? strlen(text) : TEXT_MAX;
	cJSON_free(text);
	return n < TEXT_MAX ? 0 : refuse(x, 400, PARAM, "lifecycle is too long.");
}
