/* SPDX-License-Identifier: Apache-2.0
 *
 * route_diag.c: diagnostics of a sandbox: its entrypoint's output, its events, what it is made of. mayflyd's loop. The output is the guest's.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/sandbox/entrypoint_log.h"
#include "api/sandbox/launch.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/sandbox/access.h"

#define LOGS_LIMIT_MS 5000u

/* trimmed, lower case */
static void scope_text(const char *s, char to[32])
{
	size_t n = 0;

	s += strspn(s, " \t");
	for (; *s && n < 31; s++)
		to[n++] = (char)(*s >= 'A' && *s <= 'Z' ? *s | 0x20 : *s);
	while (n > 0 && to[n - 1] == ' ')
		n--;
	to[n] = 0;
}

static bool scope_ok(struct http_req *r, const char *kind, const char *own, char scope[32])
{
	scope_text(http_query(r, "scope"), scope);
	if (!strcmp(scope, own) || !strcmp(scope, "all"))
		return true;
	http_error(r, 400, "DIAGNOSTICS_SCOPE_UNSUPPORTED",
		"Unsupported %s diagnostics scope '%s'. Supported scopes: %s, all.", kind, scope,
		own);
	return false;
}

static void reply_content(struct http_req *r, const char *id, const char *kind, const char *scope,
	const char *text, bool truncated)
{
	cJSON *o = cJSON_CreateObject(), *w;

	cJSON_AddStringToObject(o, "sandboxId", id);
	cJSON_AddStringToObject(o, "kind", kind);
	cJSON_AddStringToObject(o, "scope", scope);
	cJSON_AddStringToObject(o, "delivery", "inline");
	cJSON_AddStringToObject(o, "contentType", "text/plain; charset=utf-8");
	cJSON_AddStringToObject(o, "content", text);
	cJSON_AddNumberToObject(o, "contentLength", (double)strlen(text));
	cJSON_AddBoolToObject(o, "truncated", truncated);
	if (!strcmp(scope, "all")) {
		w = cJSON_AddArrayToObject(o, "warnings");
		cJSON_AddItemToArray(
			w, cJSON_CreateString("Only one source contributes to this scope."));
	}
	http_reply_json(r, 200, o);
}

static void reply_plain(struct http_req *r, const char *text)
{
	http_add_header(r, "Deprecation", "true");
	http_reply(r, 200, "text/plain; charset=utf-8", text, strlen(text));
}

/* The last `max` lines of text, in place. */
static const char *last_lines(const char *text, unsigned int max, bool *cut)
{
	const char *p = text + strlen(text);
	unsigned int n = 0;

	if (p > text && p[-1] == '\n')
		p--;
	for (; p > text; p--)
		if (p[-1] == '\n' && ++n == max)
			break;
	*cut = p > text;
	return p;
}

struct logs {
	struct sandbox *sb;
	unsigned int tail;
	char scope[32];
	bool summary;
};

static void summary_send(struct http_req *r, const char *logs);

static void logs_send(struct http_req *r, const char *text)
{
	struct logs *l = r->user;
	bool cut = false;
	const char *tail = last_lines(text, l->tail, &cut);

	if (l->summary)
		summary_send(r, tail);
	else if (*l->scope)
		reply_content(r, l->sb->id, "logs", l->scope, tail, cut);
	else
		reply_plain(r, *tail ? tail : "(no logs)");
}

static void logs_free(struct http_req *r)
{
	struct logs *l = r->user;

	sandbox_unref(l->sb);
}

static void logs_came(void *arg, const char *text)
{
	logs_send(arg, text);
}

static unsigned int number_query(
	struct http_req *r, const char *name, unsigned int dflt, unsigned int max)
{
	const char *v = http_query(r, name);
	long n = v ? strtol(v, NULL, 10) : (long)dflt;

	return n < 1 ? 1 : n > (long)max ? max : (unsigned int)n;
}

/* "90s", "10m", "1h30m", "2d": in seconds. False: none of these. */
static bool duration_parse(const char *s, uint64_t *seconds)
{
	static const struct {
		char unit;
		uint64_t s;
	} units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
	size_t u = 0;

	for (*seconds = 0; *s; s++) {
		size_t n = strspn(s, "0123456789");
		uint64_t v = n && n <= 9 ? strtoull(s, NULL, 10) : 0;

		for (u = 0, s += n; u < ARRAY_LEN(units) && *s != units[u].unit; u++)
			;
		if (!n || n > 9 || u == ARRAY_LEN(units))
			return false;
		*seconds += v * units[u].s;
	}
	return *seconds > 0;
}

static bool bad_query(struct http_req *r, const char *name, const char *what)
{
	http_error(r, 400, "SANDBOX::INVALID_PARAMETER", "%s: %s", name, what);
	return false;
}

/* Reads the query of the plain-text form. *since: 0, or a wall clock time. */
static bool log_selection(struct http_req *r, int64_t *since)
{
	const char *container = http_query(r, "container"), *text = http_query(r, "since");
	uint64_t seconds;

	*since = 0;
	if (container && *container && strcmp(container, "sandbox") != 0)
		return bad_query(r, "container", "a sandbox has one, named sandbox");
	if (!text || !*text)
		return true;
	if (!duration_parse(text, &seconds))
		return bad_query(r, "since", "a duration is wanted, such as 90s, 10m or 1h");
	*since = (int64_t)wall_ns() - (int64_t)MIN(seconds, 1ull << 32) * 1000000000;
	return true;
}

/* Lines of output have no times. What is known is when the entrypoint ended: before that moment it printed all of them. */
static bool has_ended_before(const struct sandbox *sb, int64_t since)
{
	return since && (sb->state == SB_TERMINATED || sb->state == SB_FAILED) &&
	       sb->changed_ns < since;
}

/* l is complete except for sb */
static void logs_begin(struct http_req *r, struct logs *l, int64_t since)
{
	struct sandbox *sb = route_sandbox(r);
	_cleanup_free_ char *kept = NULL;

	if (!sb)
		return;
	l->sb = sb;
	r->user = l;
	sandbox_ref(sb);
	http_on_free(r, logs_free);
	if (sb->state != SB_PAUSED && entrylog_ask(sb, LOGS_LIMIT_MS, logs_came, r))
		return;
	kept = has_ended_before(sb, since) ? NULL : entrylog_kept(sb);
	logs_send(r, kept ? kept : "");
}

void route_diag_logs(struct http_req *r)
{
	struct logs *l = http_alloc(r, sizeof(*l));
	int64_t since = 0;

	if (!l) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return;
	}
	if (http_query(r, "scope") && !scope_ok(r, "logs", "container", l->scope))
		return;
	if (!*l->scope && !log_selection(r, &since))
		return;
	l->tail = *l->scope ? 100 : number_query(r, "tail", 100, 10000);
	logs_begin(r, l, since);
}

static char *events_text(struct http_req *r, const struct sandbox *sb, unsigned int max, bool *cut)
{
	unsigned int n = MIN(sb->nevents, max);
	size_t room = 1;
	char *text, *at;

	for (unsigned int i = 0; i < n; i++)
		room += strlen(sb->events[i]) + 1;
	at = text = http_alloc(r, room);
	*cut = sb->nevents > max;
	for (unsigned int i = 0; i < n; i++)
		at += snprintf(at, room - (size_t)(at - text), "%s\n", sb->events[i]);
	return text;
}

void route_diag_events(struct http_req *r)
{
	char scope[32] = "";
	struct sandbox *sb;
	char *text;
	bool cut;

	if (http_query(r, "scope") && !scope_ok(r, "events", "runtime", scope))
		return;
	sb = route_sandbox(r);
	if (!sb)
		return;
	text = events_text(r, sb, *scope ? 50 : number_query(r, "limit", 50, 500), &cut);
	if (*scope)
		reply_content(r, sb->id, "events", scope, text, cut);
	else
		reply_plain(r, *text ? text : "(no events)");
}

static void inspect_text(struct buf *b, const struct sandbox *sb)
{
	static const char *const origins[] = {[FROM_BOOT] = "boot",
		[FROM_TEMPLATE] = "template",
		[FROM_MEMORY] = "memory snapshot"};
	char t[TIME_TEXT];

	buf_printf(b, "id: %s\nowner: %s\nstate: %s\nreason: %s\nmessage: %s\n", sb->id, sb->owner,
		sb_state_names[sb->state], sb->reason, sb->message);
	buf_printf(b, "image: %s\ndigest: %s\ncreated: %s\n", sb->spec.image ? sb->spec.image : "",
		sb->image_digest, time_format(sb->created_ns, t));
	buf_printf(b, "expires: %s\n", sb->expires_ns ? time_format(sb->expires_ns, t) : "never");
	buf_printf(b, "cpu_millis: %u\nmemory_bytes: %llu\nclass: %u MiB, %u vcpus\n",
		sb->spec.cpu_millis, (unsigned long long)sb->spec.memory_bytes, sb->cls.mem_mib,
		sb->cls.vcpus);
	buf_printf(b, "disk_bytes: %llu\nfrozen_layers: %d\nmemory_files: %d\n",
		(unsigned long long)sb->disk.bytes, sb->disk.nfrozen, sb->memory.nmem);
	buf_printf(b, "origin: %s\norigin_id: %s\n", origins[sb->origin], sb->origin_id);
	if (sb->vm)
		buf_printf(b, "vm: slot %u, pid %d\n", sb->vm->slot, sb->vm->pid);
	for (int p = 0; p < PH_COUNT; p++)
		if (sb->phase_ns[p])
			buf_printf(b, "phase_%s_ms: %.3f\n", phase_names[p],
				(double)sb->phase_ns[p] / 1e6);
}

void route_diag_inspect(struct http_req *r)
{
	struct sandbox *sb = route_sandbox(r);
	struct buf b;

	if (!sb)
		return;
	buf_init(&b, 65536);
	inspect_text(&b, sb);
	http_reply(r, 200, "text/plain; charset=utf-8", b.p, b.len);
	buf_fini(&b);
}

static void summary_send(struct http_req *r, const char *logs)
{
	const struct logs *l = r->user;
	struct buf b;
	bool cut;

	buf_init(&b, 262144 + 2 * ENTRYLOG_MAX);
	buf_printf(&b, "== inspect ==\n");
	inspect_text(&b, l->sb);
	buf_printf(&b, "\n== events ==\n%s",
		events_text(r, l->sb, number_query(r, "event_limit", 20, 500), &cut));
	buf_printf(&b, "\n== logs ==\n");
	logs = *logs ? logs : "(no logs)";
	buf_put(&b, logs, strlen(logs));
	if (logs[strlen(logs) - 1] != '\n')
		buf_put(&b, "\n", 1);
	http_reply(r, 200, "text/plain; charset=utf-8", b.p, b.len);
	buf_fini(&b);
}

void route_diag_summary(struct http_req *r)
{
	struct logs *l = http_alloc(r, sizeof(*l));

	if (!l) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return;
	}
	l->summary = true;
	l->tail = number_query(r, "tail", 50, 10000);
	logs_begin(r, l, 0);
}

/* The names by which an operator finds the sandbox on the host. */
void route_diag_context(struct http_req *r)
{
	struct sandbox *sb = route_sandbox(r);
	cJSON *o, *ids;
	char text[24];

	if (!sb)
		return;
	o = cJSON_CreateObject();
	cJSON_AddStringToObject(o, "sandboxId", sb->id);
	cJSON_AddStringToObject(o, "state", sb_state_names[sb->state]);
	cJSON_AddStringToObject(o, "backendType", "mayfly");
	ids = cJSON_AddObjectToObject(o, "backendIdentifiers");
	cJSON_AddStringToObject(ids, "bootId", sb->boot_id);
	if (sb->vm) {
		snprintf(text, sizeof(text), "%u", sb->vm->slot);
		cJSON_AddStringToObject(ids, "slot", text);
		snprintf(text, sizeof(text), "%d", sb->vm->pid);
		cJSON_AddStringToObject(ids, "pid", text);
	}
	http_reply_json(r, 200, o);
}
