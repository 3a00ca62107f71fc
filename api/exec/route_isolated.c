/* SPDX-License-Identifier: Apache-2.0
 *
 * route_isolated.c: isolated sessions: capabilities, create, list, get, delete, commit, runs. mayflyd. Bodies are a client's, answers a
 * guest's: both hostile. The files of a session go through route_files.c and route_transfer.c, its differences through route_files.c.
 *
 * The agent keeps the sessions. It keeps the parameters of a session as that session's note (JSON), so that any later daemon can describe it. The
 * agent's name of a session is "iso-" and its id. A background run is named by the first 16 digits of its session's id and its own id.
 */
#include "api/exec/execd_int.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "api/core/config.h"
#include "api/core/text.h"

#define OVERLAYS_MAX 16u
#define MAKE_MS      60000u
#define COMMIT_MS    600000u
#define LIST_BYTES   MIB(4)

static const char *why(const struct agent_reply *rep)
{
	return rep->text[0] ? rep->text : strerror(rep->err);
}

void isolated_fail(struct http_req *r, const struct agent_reply *rep)
{
	/* errors that the request caused. All others are the sandbox's. */
	static const int wrong[] = {
		EACCES, EINVAL, ENOENT, ENOTDIR, E2BIG, ELOOP, ENAMETOOLONG, ESTALE, EROFS};

	if (rep->step == AGENT_STEP_SESSION) {
		execd_no_session(r, http_param(r, "id"));
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		if (rep->err == wrong[i]) {
			execd_error(r, 400, "INVALID_REQUEST_BODY", "%s", why(rep));
			return;
		}
	}
	execd_error(r, 503, rep->err == ENOTSUP ? "NOT_SUPPORTED" : "SERVICE_UNAVAILABLE", "%s",
		rep->err == ECANCELED ? "the sandbox has ended" : why(rep));
}

/* The agent's name of the session in the path; NULL: answered. */
static const char *session_of(struct http_req *r)
{
	const char *id = http_param(r, "id"), *name = execd_isolated(r, id);

	if (!name)
		execd_no_session(r, id);
	return name;
}

/* ---- capabilities */

static const char *layer_state(uint32_t state)
{
	static const char *const names[] = {[AGENT_LAYER_ACTIVE] = "active",
		[AGENT_LAYER_DISABLED] = "disabled",
		[AGENT_LAYER_DEGRADED] = "degraded",
		[AGENT_LAYER_UNSUPPORTED] = "unsupported"};

	return state < ARRAY_LEN(names) && names[state] ? names[state] : "unsupported";
}

/* The agent's layers as members of "hardening". False: malformed. */
static bool put_layers(struct buf *b, struct cur c)
{
	uint32_t n = cur_u32(&c);
	char name[32], message[256];

	for (uint32_t i = 0; i < n && i < 16 && !c.bad; i++) {
		uint32_t state;

		cur_str(&c, name, sizeof(name));
		state = cur_u32(&c);
		cur_str(&c, message, sizeof(message));
		if (c.bad)
			break;
		buf_put(b, ",", 1);
		json_string(b, name);
		if (!strcmp(name, "signal_shield")) {
			buf_printf(b, ":%s", state == AGENT_LAYER_ACTIVE ? "true" : "false");
			continue;
		}
		buf_printf(b, ":{\"state\":\"%s\"", layer_state(state));
		if (!message[0] && state == AGENT_LAYER_DISABLED)
			snprintf(message, sizeof(message), "not configured");
		if (message[0]) {
			buf_printf(b, ",\"message\":");
			json_string(b, message);
		}
		buf_put(b, "}", 1);
	}
	return cur_done(&c);
}

/* Always 200: an agent that cannot answer has no sessions either. */
static void got_caps(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct buf b, layers;
	bool ok;

	buf_init(&b, 16384);
	buf_init(&layers, 8192);
	ok = !rep->err && put_layers(&layers, rep->body) && !layers.bad;
	buf_printf(&b, "{\"available\":%s", ok ? "true" : "false");
	if (ok) {
		/* clients look for this name: it stands for the documented behaviour, not for the program */
		buf_printf(&b, ",\"isolator\":\"bwrap\",\"version\":\"mayfly-agent\"");
	} else {
		buf_printf(&b, ",\"message\":");
		json_string(&b, rep->err == ENOSYS
					? "the agent of this sandbox is older than isolated "
					  "sessions: create the sandbox again"
				: rep->err ? why(rep)
					   : "the sandbox gave no valid answer");
	}
	buf_printf(&b,
		",\"setpriv_available\":%s,\"userns_available\":false,\"commit_supported\":%s,"
		"\"diff_supported\":%s,\"hardening\":{\"init_mode\":\"pid1\"",
		ok ? "true" : "false", ok ? "true" : "false", ok ? "true" : "false");
	if (ok)
		buf_put(&b, layers.p, layers.len);
	else
		buf_printf(&b, ",\"signal_shield\":true");
	buf_printf(&b, "}}");
	buf_fini(&layers);
	execd_reply_buf(r, 200, "application/json", &b);
}

void route_isolated_caps(struct http_req *r)
{
	struct buf none;

	buf_init(&none, 16);
	execd_ask(r, AGENT_HARDEN, &none, 30000, got_caps, NULL);
	buf_fini(&none);
}

/* ---- POST /v1/isolated/session */

struct iso_mount {
	uint32_t mode, flags;
	const char *source, *dest;
};

struct iso_spec {
	struct iso_mount mounts[AGENT_MOUNTS_MAX];
	size_t nmounts, noverlays; /* the overlays come first */
	uint32_t profile, flags, uid, gid, env_mode;
	uint64_t idle_s, memory, pids, upper;
	const char *names[AGENT_NAMES_MAX];
	size_t nnames;
	cJSON *echo;     /* what a later GET shows */
	const char *cwd; /* the path of the first overlay of the request */
};

static bool bad(struct http_req *r, const char *what)
{
	execd_error(r, 400, "INVALID_REQUEST_BODY", "invalid request: %s", what);
	return false;
}

/* Absolute, no "." or ".." or empty part, nothing behind the last name. */
static bool is_clean(const char *p)
{
	if (*p != '/' || strlen(p) >= AGENT_PATH_MAX)
		return false;
	if (!p[1])
		return true;
	while (*p) {
		size_t n = strcspn(++p, "/");

		if (!n || (n <= 2 && !strncmp(p, "..", n)))
			return false;
		p += n;
	}
	return true;
}

/* Position in a table of words, "" counts as dflt; -1: none of them. */
static int word_at(const char *const *words, size_t n, const char *text, int dflt)
{
	if (!*text)
		return dflt;
	for (size_t i = 0; i < n; i++)
		if (words[i] && !strcmp(words[i], text))
			return (int)i;
	return -1;
}

static const char *const modes[] = {
	[AGENT_IM_RO] = "ro", [AGENT_IM_RW] = "rw", [AGENT_IM_OVERLAY] = "overlay"};

static bool take_overlay(struct http_req *r, const cJSON *o, struct iso_spec *s)
{
	struct iso_mount *m = &s->mounts[s->noverlays];
	const cJSON *persist = json_field(o, "persist");
	const char *mode;
	int at;

	if (!cJSON_IsObject(o))
		return bad(r, "an overlay must be an object");
	if (!execd_str(r, o, "path", &m->source) || !execd_str(r, o, "mode", &mode))
		return false;
	if (!is_clean(m->source))
		return bad(r, "the path of a workspace or overlay must be absolute and clean: no "
			      "'.', '..' or slash at its end");
	if (s->noverlays == OVERLAYS_MAX)
		return bad(r, "more than 16 overlays");
	for (size_t i = 0; i < s->noverlays; i++)
		if (!strcmp(s->mounts[i].source, m->source))
			return bad(r, "two overlays have the same path");
	at = word_at(modes, ARRAY_LEN(modes), mode, AGENT_IM_OVERLAY);
	if (at < 0)
		return bad(r, "mode must be rw, overlay or ro");
	m->mode = (uint32_t)at;
	m->dest = "";
	m->flags = at == AGENT_IM_RO ? 0 : AGENT_IM_MAKE;
	if (persist && !cJSON_IsBool(persist))
		return bad(r, "persist must be true or false");
	if (persist && at != AGENT_IM_OVERLAY)
		return bad(r, "persist belongs to mode overlay only");
	if (persist && cJSON_IsFalse(persist))
		m->flags |= AGENT_IM_EPHEMERAL;
	s->noverlays++;
	return true;
}

static size_t depth_of(const char *p)
{
	size_t n = 0;

	for (; *p; p++)
		n += *p == '/' && p[1];
	return n;
}

/* The shallow ones first, so that a nested one is mounted into its ancestor; otherwise as they came. */
static void sort_overlays(struct iso_spec *s)
{
	for (size_t i = 1; i < s->noverlays; i++) {
		struct iso_mount m = s->mounts[i];
		size_t k = i;

		for (; k && depth_of(s->mounts[k - 1].source) > depth_of(m.source); k--)
			s->mounts[k] = s->mounts[k - 1];
		s->mounts[k] = m;
	}
}

static cJSON *echo_overlay(const struct iso_mount *m, bool legacy)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "path", m->source);
	cJSON_AddStringToObject(o, "mode", modes[m->mode]);
	if (m->mode == AGENT_IM_OVERLAY && !legacy)
		cJSON_AddBoolToObject(o, "persist", !(m->flags & AGENT_IM_EPHEMERAL));
	return o;
}

static bool take_overlays(struct http_req *r, const cJSON *j, struct iso_spec *s)
{
	const cJSON *ws = json_field(j, "workspace"), *list = json_field(j, "overlays"), *o;
	cJSON *echo;

	if (ws && json_field(ws, "persist"))
		return bad(r, "workspace takes no persist: use overlays");
	if (ws && !take_overlay(r, ws, s))
		return false;
	if (list && !cJSON_IsArray(list))
		return bad(r, "overlays must be an array");
	cJSON_ArrayForEach (o, list)
		if (!take_overlay(r, o, s))
			return false;
	if (!s->noverlays)
		return bad(r, "workspace or overlays is needed");
	s->nmounts = s->noverlays;
	if (ws && s->noverlays == 1)
		cJSON_AddItemToObject(s->echo, "workspace", echo_overlay(&s->mounts[0], true));
	s->cwd = s->mounts[0].source;
	sort_overlays(s);
	echo = cJSON_AddArrayToObject(s->echo, "overlays");
	for (size_t i = 0; i < s->noverlays; i++)
		cJSON_AddItemToArray(echo, echo_overlay(&s->mounts[i], false));
	return true;
}

static bool add_mount(struct http_req *r, struct iso_spec *s, struct iso_mount m)
{
	if (*m.source != '/' || (*m.dest && *m.dest != '/') || strlen(m.source) >= AGENT_PATH_MAX ||
		strlen(m.dest) >= AGENT_PATH_MAX)
		return bad(r, "extra_writable, source and dest must be absolute paths");
	if (s->nmounts == AGENT_MOUNTS_MAX)
		return bad(r, "more than 64 mounts");
	s->mounts[s->nmounts++] = m;
	return true;
}

static bool take_extra(struct http_req *r, const cJSON *j, struct iso_spec *s)
{
	const cJSON *list = json_field(j, "extra_writable"), *v;

	if (list && !cJSON_IsArray(list))
		return bad(r, "extra_writable must be an array of paths");
	cJSON_ArrayForEach (v, list) {
		struct iso_mount m = {.mode = AGENT_IM_RW, .flags = AGENT_IM_CHECKED, .dest = ""};

		if (!cJSON_IsString(v))
			return bad(r, "extra_writable must be an array of paths");
		m.source = v->valuestring;
		if (!add_mount(r, s, m))
			return false;
	}
	return true;
}

static bool take_binds(struct http_req *r, const cJSON *j, struct iso_spec *s)
{
	const cJSON *list = json_field(j, "binds"), *v;

	if (list && !cJSON_IsArray(list))
		return bad(r, "binds must be an array");
	cJSON_ArrayForEach (v, list) {
		struct iso_mount m = {.flags = AGENT_IM_CHECKED};
		bool readonly;

		if (!cJSON_IsObject(v))
			return bad(r, "a bind must be an object");
		if (!execd_str(r, v, "source", &m.source) || !execd_str(r, v, "dest", &m.dest) ||
			!execd_bool(r, v, "readonly", &readonly))
			return false;
		m.mode = readonly ? AGENT_IM_RO : AGENT_IM_RW;
		if (!add_mount(r, s, m))
			return false;
	}
	return true;
}

static bool take_env(struct http_req *r, const cJSON *j, struct iso_spec *s)
{
	static const char *const words[] = {[AGENT_EM_ALLOW] = "allow", [AGENT_EM_DENY] = "deny"};
	const cJSON *o = json_field(j, "env_passthrough"), *list, *v;
	const char *mode;
	int at;

	if (!o)
		return true;
	if (!cJSON_IsObject(o))
		return bad(r, "env_passthrough must be an object");
	if (!execd_str(r, o, "mode", &mode))
		return false;
	at = word_at(words, ARRAY_LEN(words), mode, AGENT_EM_DENY);
	if (at < 0)
		return bad(r, "env_passthrough.mode must be allow or deny");
	s->env_mode = (uint32_t)at;
	list = json_field(o, "keys");
	if (list && !cJSON_IsArray(list))
		return bad(r, "env_passthrough.keys must be an array of names");
	cJSON_ArrayForEach (v, list) {
		if (!cJSON_IsString(v) || s->nnames == AGENT_NAMES_MAX)
			return bad(r, "env_passthrough.keys must be an array of at most 256 names");
		s->names[s->nnames++] = v->valuestring;
	}
	return true;
}

static bool take_user(struct http_req *r, const cJSON *j, struct iso_spec *s)
{
	uint64_t uid, gid;
	bool has_uid, has_gid;
	const char *mode;

	if (!execd_uint(r, j, "uid", AGENT_NO_ID - 1, &uid, &has_uid) ||
		!execd_uint(r, j, "gid", AGENT_NO_ID - 1, &gid, &has_gid) ||
		!execd_str(r, j, "uid_mode", &mode))
		return false;
	if (has_gid && !has_uid)
		return bad(r, "gid needs uid");
	if (!strcmp(mode, "userns")) {
		execd_error(r, 503, "NOT_SUPPORTED",
			"uid_mode userns is not available: use setpriv, which switches the user");
		return false;
	}
	if (*mode && strcmp(mode, "setpriv") != 0)
		return bad(r, "uid_mode must be setpriv or userns");
	s->uid = has_uid ? (uint32_t)uid : AGENT_NO_ID;
	s->gid = has_gid ? (uint32_t)gid : AGENT_NO_ID;
	return true;
}

static bool take_limits(struct http_req *r, const cJSON *j, struct iso_spec *s)
{
	const cJSON *o = json_field(j, "limits");
	bool given;

	if (!execd_uint(r, j, "idle_timeout_seconds", 1ull << 31, &s->idle_s, &given))
		return false;
	if (!o)
		return true;
	if (!cJSON_IsObject(o))
		return bad(r, "limits must be an object");
	return execd_uint(r, o, "memory_bytes", 1ull << 52, &s->memory, &given) &&
	       execd_uint(r, o, "pids", 1u << 22, &s->pids, &given) &&
	       execd_uint(r, o, "upper_bytes", 1ull << 52, &s->upper, &given);
}

static bool take_profile(struct http_req *r, const cJSON *j, struct iso_spec *s)
{
	static const char *const words[] = {
		[AGENT_STRICT] = "strict", [AGENT_BALANCED] = "balanced"};
	const cJSON *net = json_field(j, "share_net");
	const char *profile;
	int at;

	if (!execd_str(r, j, "profile", &profile))
		return false;
	at = word_at(words, ARRAY_LEN(words), profile, AGENT_STRICT);
	if (at < 0)
		return bad(r, "profile must be strict or balanced");
	s->profile = (uint32_t)at;
	if (net && !cJSON_IsBool(net))
		return bad(r, "share_net must be true or false");
	s->flags = net && cJSON_IsFalse(net) ? AGENT_IS_NO_NET : 0;
	cJSON_AddStringToObject(s->echo, "profile", words[at]);
	cJSON_AddBoolToObject(s->echo, "share_net", !s->flags);
	return true;
}

static bool take_spec(struct http_req *r, const cJSON *j, struct iso_spec *s)
{
	static const char *const as_given[] = {
		"extra_writable", "binds", "env_passthrough", "uid", "gid", "uid_mode", "limits"};

	if (!take_profile(r, j, s) || !take_overlays(r, j, s) || !take_extra(r, j, s) ||
		!take_binds(r, j, s) || !take_env(r, j, s) || !take_user(r, j, s) ||
		!take_limits(r, j, s))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(as_given); i++) {
		const cJSON *v = json_field(j, as_given[i]);

		if (v)
			cJSON_AddItemToObject(s->echo, as_given[i], cJSON_Duplicate(v, true));
	}
	cJSON_AddNumberToObject(s->echo, "idle_timeout_seconds", (double)s->idle_s);
	return true;
}

/* The directories of isolation.allowed, with blanks between. */
static void put_allowed(struct buf *b, const char *list)
{
	uint32_t n = 0;
	size_t at = b->len;

	buf_u32(b, 0);
	for (size_t k; *list && n < AGENT_ALLOWED_MAX; list += k) {
		list += strspn(list, " ");
		k = strcspn(list, " ");
		if (!k)
			break;
		buf_blob(b, list, k);
		n++;
	}
	if (!b->bad)
		b->p[at] = (uint8_t)n;
}

static void put_spec(struct buf *b, const struct iso_spec *s, const char *allowed, const char *note)
{
	buf_u32(b, AGENT_SE_ISOLATED);
	buf_u32(b, s->profile);
	buf_u32(b, s->flags);
	buf_u32(b, s->uid);
	buf_u32(b, s->gid);
	buf_str(b, "");
	buf_u64(b, s->idle_s * 1000);
	buf_u64(b, s->memory);
	buf_u32(b, (uint32_t)s->pids);
	buf_u64(b, s->upper);
	put_allowed(b, allowed);
	buf_u32(b, (uint32_t)s->nmounts);
	for (size_t i = 0; i < s->nmounts; i++) {
		buf_u32(b, s->mounts[i].mode);
		buf_u32(b, s->mounts[i].flags);
		buf_str(b, s->mounts[i].source);
		buf_str(b, s->mounts[i].dest);
	}
	buf_u32(b, s->env_mode);
	buf_u32(b, (uint32_t)s->nnames);
	for (size_t i = 0; i < s->nnames; i++)
		buf_str(b, s->names[i]);
	buf_u32(b, 0); /* no variables of its own */
	buf_str(b, note);
}

struct made {
	char id[37];
	cJSON *echo;
};

static void made_free(void *data)
{
	struct made *m = data;

	cJSON_Delete(m->echo);
	free(m);
}

static void put_time_member(struct buf *b, const char *name, uint64_t ns)
{
	buf_printf(b, ",\"%s\":", name);
	execd_time(b, (int64_t)MIN(ns, (uint64_t)INT64_MAX));
}

/* Appends the members of o to an object that has members already. */
static void put_members(struct buf *b, const cJSON *o)
{
	char *text = cJSON_PrintUnformatted(o);
	size_t n = text ? strlen(text) : 0;

	if (n > 2) {
		buf_put(b, ",", 1);
		buf_put(b, text + 1, n - 2);
	}
	b->bad |= !text;
	cJSON_free(text);
}

static void session_made(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct made *m = data;
	struct cur c = rep->body;
	uint64_t created;
	struct buf b;

	if (rep->err) {
		isolated_fail(r, rep);
		return;
	}
	created = cur_u64(&c);
	buf_init(&b, 2 * AGENT_NOTE_MAX);
	buf_printf(&b, "{\"session_id\":\"%s\"", m->id);
	put_time_member(&b, "created_at", c.bad ? wall_ns() : created);
	put_members(&b, m->echo);
	buf_put(&b, "}", 1);
	execd_reply_buf(r, 201, "application/json", &b);
}

/* Takes the spec's echo. */
static void ask_session(struct http_req *r, const struct iso_spec *s)
{
	struct made *m = calloc(1, sizeof(*m));
	char *note = cJSON_PrintUnformatted(s->echo);
	struct buf b;

	if (!m || !note) {
		cJSON_Delete(s->echo);
		cJSON_free(note);
		free(m);
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return;
	}
	m->echo = s->echo;
	uuid_make(m->id);
	if (!execd_own(r, m, made_free)) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
	} else if (strlen(note) > AGENT_NOTE_MAX) {
		bad(r, "the session's parameters are longer than 64 KiB");
	} else {
		buf_init(&b, AGENT_FRAME_MAX);
		buf_str(&b, execd_isolated(r, m->id));
		buf_str(&b, s->cwd);
		put_spec(&b, s, sandbox_config(r->sandbox)->isolation_allowed, note);
		execd_ask(r, AGENT_SESSION_NEW, &b, MAKE_MS, session_made, m);
		buf_fini(&b);
	}
	cJSON_free(note);
}

void route_isolated_new(struct http_req *r)
{
	_cleanup_json_ cJSON *j = execd_body(r, cJSON_Object, false);
	_cleanup_free_ struct iso_spec *s = calloc(1, sizeof(*s));

	if (!j)
		return;
	if (!s || !(s->echo = cJSON_CreateObject()))
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
	else if (take_spec(r, j, s))
		ask_session(r, s);
	else
		cJSON_Delete(s->echo);
}

/* ---- list, get, delete */

struct item {
	char id[64];
	uint32_t kind, state, runs;
	uint64_t created_ns, last_run_ns, idle_left_ms;
};

static bool take_item(struct cur *c, struct item *i)
{
	cur_str(c, i->id, sizeof(i->id));
	i->kind = cur_u32(c);
	i->state = cur_u32(c);
	i->runs = cur_u32(c);
	i->created_ns = cur_u64(c);
	i->last_run_ns = cur_u64(c);
	i->idle_left_ms = cur_u64(c);
	cur_u64(c); /* a terminal's offset */
	cur_u32(c);
	cur_u32(c); /* how its last run ended */
	return !c->bad;
}

static bool is_isolated(const struct item *i)
{
	size_t n = strlen(EXECD_ISOLATED);

	return i->kind == AGENT_SE_ISOLATED && !strncmp(i->id, EXECD_ISOLATED, n) &&
	       uuid_ok(i->id + n);
}

static void put_item(struct buf *b, const struct item *i)
{
	buf_printf(b, "{\"session_id\":\"%s\",\"status\":\"%s\"", i->id + strlen(EXECD_ISOLATED),
		i->state == AGENT_SE_ACTIVE ? "active" : "dead");
	put_time_member(b, "created_at", i->created_ns);
	put_time_member(b, "last_run_at", i->last_run_ns ? i->last_run_ns : i->created_ns);
	if (i->idle_left_ms != UINT64_MAX)
		buf_printf(b, ",\"idle_remaining_seconds\":%llu",
			(unsigned long long)(i->idle_left_ms / 1000));
}

static void no_answer(struct http_req *r)
{
	execd_error(r, 503, "SERVICE_UNAVAILABLE", "the sandbox gave no valid answer");
}

static void got_list(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct cur c = rep->body;
	uint32_t n, given = 0;
	struct buf b;

	if (rep->err) {
		isolated_fail(r, rep);
		return;
	}
	n = cur_u32(&c);
	buf_init(&b, LIST_BYTES);
	buf_printf(&b, "{\"sessions\":[");
	for (uint32_t k = 0; k < n && !c.bad; k++) {
		struct item i;

		if (!take_item(&c, &i) || !is_isolated(&i))
			continue;
		buf_put(&b, ",", given++ ? 1 : 0);
		put_item(&b, &i);
		buf_put(&b, "}", 1);
	}
	buf_printf(&b, "]}");
	if (cur_done(&c)) {
		execd_reply_buf(r, 200, "application/json", &b);
		return;
	}
	buf_fini(&b);
	no_answer(r);
}

void route_isolated_list(struct http_req *r)
{
	struct buf none;

	buf_init(&none, 16);
	execd_ask(r, AGENT_SESSION_LIST, &none, 30000, got_list, NULL);
	buf_fini(&none);
}

static void ask_by_name(
	struct http_req *r, uint16_t type, const char *name, execd_reply_fn fn, void *data)
{
	struct buf b;

	buf_init(&b, 256);
	buf_str(&b, name);
	execd_ask(r, type, &b, 30000, fn, data);
	buf_fini(&b);
}

/* The answer to AGENT_SESSION_GET. note: what the session was created with, the caller's; NULL if it cannot be read. False: answered. */
static bool read_session(
	struct http_req *r, const struct agent_reply *rep, struct item *i, cJSON **note)
{
	struct cur c = rep->body;
	const char *text;
	size_t n;

	*note = NULL;
	if (rep->err) {
		isolated_fail(r, rep);
		return false;
	}
	take_item(&c, i);
	text = cur_strp(&c, &n, AGENT_NOTE_MAX);
	if (!cur_done(&c) || !is_isolated(i)) {
		no_answer(r);
		return false;
	}
	/* The guest may have replaced the note. That harms nobody else: only clients of this sandbox see it. */
	if (json_read(note, text, n, JSON_OBJECT, NULL) < 0)
		*note = NULL;
	return true;
}

static void got_session(struct http_req *r, void *data, const struct agent_reply *rep)
{
	static const char *const ours[] = {
		"session_id", "status", "created_at", "last_run_at", "idle_remaining_seconds"};
	_cleanup_json_ cJSON *note = NULL;
	struct item i;
	struct buf b;

	if (!read_session(r, rep, &i, &note))
		return;
	for (size_t k = 0; note && k < ARRAY_LEN(ours); k++)
		cJSON_DeleteItemFromObjectCaseSensitive(note, ours[k]);
	buf_init(&b, 8 * AGENT_NOTE_MAX);
	put_item(&b, &i);
	if (note)
		put_members(&b, note);
	buf_put(&b, "}", 1);
	execd_reply_buf(r, 200, "application/json", &b);
}

void route_isolated_get(struct http_req *r)
{
	const char *name = session_of(r);

	if (name)
		ask_by_name(r, AGENT_SESSION_GET, name, got_session, NULL);
}

static void got_done(struct http_req *r, void *data, const struct agent_reply *rep)
{
	if (rep->err)
		isolated_fail(r, rep);
	else
		http_reply_empty(r, 200);
}

void route_isolated_del(struct http_req *r)
{
	const char *name = session_of(r);

	if (name)
		ask_by_name(r, AGENT_SESSION_DEL, name, got_done, NULL);
}

/* ---- POST commit {path?}: writes the changes of an overlay to the directory below it */

static void got_commit(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct cur c = rep->body;
	uint64_t entries = cur_u64(&c);
	struct buf b;

	if (rep->err) {
		isolated_fail(r, rep);
		return;
	}
	buf_init(&b, 128);
	buf_printf(&b, "{\"committed\":%llu}", (unsigned long long)entries);
	execd_reply_buf(r, 200, "application/json", &b);
}

void route_isolated_commit(struct http_req *r)
{
	_cleanup_json_ cJSON *j = execd_body(r, cJSON_Object, true);
	const char *name = j ? session_of(r) : NULL, *path;
	struct buf b;

	if (!name || !execd_str(r, j, "path", &path))
		return;
	buf_init(&b, AGENT_FRAME_MAX);
	buf_str(&b, name);
	buf_str(&b, path);
	execd_ask(r, AGENT_SESSION_COMMIT, &b, COMMIT_MS, got_commit, NULL);
	buf_fini(&b);
}

/* ---- runs */

struct run {
	char id[37], exec_id[64];
	struct buf payload;
};

static void run_free(void *data)
{
	struct run *run = data;

	buf_fini(&run->payload);
	free(run);
}

/* A background run at the agent: 16 digits of its session's id and all of its own. */
static void run_name(char out[64], const char *session, const char *run)
{
	size_t n = 0;

	for (const char *p = session; *p && n < 16; p++)
		if (*p != '-')
			out[n++] = *p;
	out[n++] = '.';
	for (const char *p = run; *p && n < 49; p++)
		if (*p != '-')
			out[n++] = *p;
	out[n] = 0;
}

/* The agent's name of the run in the path. NULL: answered. */
static char *exec_id_of(struct http_req *r)
{
	const char *run = http_param(r, "run");
	char name[64];

	if (!uuid_ok(run)) {
		execd_error(r, 404, "SESSION_NOT_FOUND", "no background run %s", run);
		return NULL;
	}
	run_name(name, http_param(r, "id"), run);
	return http_strdup(r, name, strlen(name));
}

static void background_began(struct http_req *r, void *data, const struct agent_reply *rep)
{
	const struct run *run = data;
	struct buf b;

	if (rep->err) {
		isolated_fail(r, rep);
		return;
	}
	sandbox_count_exec(r->sandbox, false);
	buf_init(&b, 512);
	buf_printf(&b, "{\"session_id\":\"%s\",\"run_id\":\"%s\"", http_param(r, "id"), run->id);
	put_time_member(&b, "started_at", wall_ns());
	buf_put(&b, "}", 1);
	execd_reply_buf(r, 202, "application/json", &b);
}

/* The protocol forbids it if the first overlay keeps no files: the reference has the log there. */
static bool may_run_in_background(const cJSON *note)
{
	const cJSON *first = cJSON_GetArrayItem(json_arr(note, "overlays"), 0);
	const cJSON *persist = first ? json_field(first, "persist") : NULL;
	const char *mode = first ? json_str(first, "mode") : NULL;

	return !(mode && !strcmp(mode, "ro")) && !(persist && cJSON_IsFalse(persist));
}

static void background_begin(struct http_req *r, void *data, const struct agent_reply *rep)
{
	_cleanup_json_ cJSON *note = NULL;
	struct run *run = data;
	struct item i;

	if (!read_session(r, rep, &i, &note))
		return;
	if (note && !may_run_in_background(note))
		bad(r, "the first overlay is read-only or ephemeral: a background run needs "
		       "a writable one");
	else
		execd_ask(r, AGENT_EXEC, &run->payload, MAKE_MS, background_began, run);
}

static void run_background(struct http_req *r, struct agent_exec_spec *s)
{
	struct run *run = calloc(1, sizeof(*run));

	if (!run || !execd_own(r, run, run_free)) {
		http_error(r, 500, "RUNTIME_ERROR", "out of memory");
		return;
	}
	uuid_make(run->id);
	run_name(run->exec_id, http_param(r, "id"), run->id);
	s->exec_id = run->exec_id;
	s->flags |= AGENT_X_BACKGROUND;
	s->timeout_ms = 0;
	buf_init(&run->payload, AGENT_FRAME_MAX);
	agent_exec_encode(&run->payload, s);
	ask_by_name(r, AGENT_SESSION_GET, s->session, background_begin, run);
}

void route_isolated_run(struct http_req *r)
{
	_cleanup_json_ cJSON *j = execd_body(r, cJSON_Object, false);
	struct agent_exec_spec s = {.flags = AGENT_X_SHELL | AGENT_X_MERGE,
		.uid = AGENT_NO_ID,
		.gid = AGENT_NO_ID,
		.argc = 1};
	struct execd_envs envs = {0};
	const char *code;
	bool background, given;
	char id[33];

	if (!j || !(s.session = session_of(r)) || !execd_str(r, j, "code", &code) ||
		!execd_bool(r, j, "background", &background) ||
		!execd_uint(r, j, "timeout_seconds", 1ull << 31, &s.timeout_ms, &given) ||
		!execd_envs(r, j, &envs))
		return;
	if (!*code) {
		bad(r, "code is needed");
		return;
	}
	execd_new_id(id);
	s.exec_id = id;
	s.timeout_ms *= 1000;
	s.argv = &code;
	s.envc = envs.n;
	s.env_keys = envs.keys;
	s.env_vals = envs.vals;
	if (background)
		run_background(r, &s);
	else
		command_run_isolated(r, &s);
}

static void got_status(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct cur c = rep->body;
	uint32_t state = cur_u32(&c), code = cur_u32(&c);
	uint64_t started = cur_u64(&c), finished = cur_u64(&c);
	struct buf b;

	if (rep->err == ENOENT) {
		execd_error(
			r, 404, "SESSION_NOT_FOUND", "no background run %s", http_param(r, "run"));
		return;
	}
	if (rep->err || c.bad) {
		rep->err ? isolated_fail(r, rep) : no_answer(r);
		return;
	}
	buf_init(&b, 4096);
	buf_printf(&b, "{\"session_id\":\"%s\",\"run_id\":\"%s\",\"running\":%s",
		http_param(r, "id"), http_param(r, "run"),
		state == AGENT_RUNNING ? "true" : "false");
	if (state != AGENT_RUNNING)
		command_put_exit(
			&b, state, code, state == AGENT_SIGNALED ? "session terminated" : "");
	put_time_member(&b, "started_at", started);
	if (state != AGENT_RUNNING)
		put_time_member(&b, "finished_at", finished);
	buf_put(&b, "}", 1);
	execd_reply_buf(r, 200, "application/json", &b);
}

/* Asks for the run if the session exists: its runs end with it. */
static void status_begin(struct http_req *r, void *data, const struct agent_reply *rep)
{
	if (rep->err)
		isolated_fail(r, rep);
	else
		ask_by_name(r, AGENT_STATUS, data, got_status, NULL);
}

void route_isolated_status(struct http_req *r)
{
	const char *name = session_of(r);
	char *id = name ? exec_id_of(r) : NULL;

	if (id)
		ask_by_name(r, AGENT_SESSION_GET, name, status_begin, id);
}

struct log_of {
	const char *exec_id;
	uint64_t offset;
};

static void logs_begin(struct http_req *r, void *data, const struct agent_reply *rep)
{
	const struct log_of *l = data;

	if (rep->err)
		isolated_fail(r, rep);
	else
		command_logs_isolated(r, l->exec_id, l->offset);
}

void route_isolated_logs(struct http_req *r)
{
	const char *cursor = http_query(r, "cursor"), *name = session_of(r);
	struct log_of *l = name ? http_alloc(r, sizeof(*l)) : NULL;

	if (!l || !(l->exec_id = exec_id_of(r)))
		return;
	if (cursor && (!*cursor || strspn(cursor, "0123456789") != strlen(cursor) ||
			      strlen(cursor) > 18)) {
		execd_error(r, 400, "INVALID_REQUEST_BODY", "cursor must be a number of bytes");
		return;
	}
	l->offset = cursor ? strtoull(cursor, NULL, 10) : 0;
	ask_by_name(r, AGENT_SESSION_GET, name, logs_begin, l);
}
