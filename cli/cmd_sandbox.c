/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_sandbox.c: `mayfly ls`, `inspect`, `rm`, `pause`, `resume`, `kill` and `renew`: one
 * request each, and what to print of it.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/client.h"

/* Long enough that two of a thousand sandboxes hardly ever have the same. */
#define SHORT_ID 12

static void list_row(struct table *t, const cJSON *box, bool whole)
{
	const cJSON *status = cJSON_GetObjectItem(box, "status");
	const char *image = json_text(cJSON_GetObjectItem(box, "image"), "uri");
	const char *state = json_text(status, "state");
	char id[64], made[32], ends[32];

	snprintf(id, sizeof(id), "%.*s", whole ? 63 : SHORT_ID, json_text(box, "id"));
	age_text(json_text(box, "createdAt"), made, sizeof(made));
	age_text(json_text(box, "expiresAt"), ends, sizeof(ends));
	table_row(t, 7, id, json_text(cJSON_GetObjectItem(box, "metadata"), "name"),
		*image ? image : json_text(box, "snapshotId"), state, made, ends,
		!strcmp(state, "Failed") || !strcmp(state, "Terminated")
			? json_text(status, "message")
			: "");
}

static const char *short_name(const cJSON *box, bool by_name)
{
	const char *name = json_text(cJSON_GetObjectItem(box, "metadata"), "name");

	return by_name && *name ? name : json_text(box, "id");
}

int cmd_ls(int argc, char **argv)
{
	struct client_opts co = {0};
	struct opt_list state = {0}, label = {0};
	bool quiet = false, whole = false, names = false;
	const struct opt opts[] = {
		{"quiet", 'q', OPT_FLAG, &quiet, NULL, "print whole ids only"},
		{"names", 0, OPT_FLAG, &names, NULL,
			"with -q: print a name instead of the id where there is one"},
		{"no-trunc", 0, OPT_FLAG, &whole, NULL, "do not shorten ids"},
		{"state", 's', OPT_LIST, &state, "STATE",
			"only sandboxes in this state (Running, Paused, ...)"},
		{"label", 'l', OPT_LIST, &label, "K=V", "only sandboxes with this metadata"},
		CLIENT_OPTS(co),
	};
	struct table t = {0};
	struct client c;
	struct err e;
	struct buf query;
	cJSON *all = cJSON_CreateArray();
	bool more = true;
	int at, code;

	if (!client_begin(&c, &co, "ls [OPTIONS]\n\nList sandboxes.\n", opts, ARRAY_LEN(opts), argc,
		    argv, 0, &at, &code))
		return code;
	buf_init(&query, KIB(64));
	for (size_t i = 0; i < state.n; i++) {
		_cleanup_free_ char *v = client_escape(state.v[i]);

		buf_printf(&query, "&state=%s", v);
	}
	for (size_t i = 0; i < label.n; i++) {
		/* one query string inside another: its values are escaped twice */
		_cleanup_free_ char *k = strdup(label.v[i]), *v = NULL, *once = NULL, *twice = NULL;
		char *eq = strchr(k, '=');

		if (eq)
			*eq = 0;
		v = client_escape(eq ? eq + 1 : "");
		once = client_path("%s=%s", k, v);
		twice = client_escape(once);
		buf_printf(&query, "%s%s", i ? "%26" : "&metadata=", twice);
	}
	table_row(&t, 7, "ID", "NAME", "IMAGE", "STATE", "CREATED", "EXPIRES", "REASON");
	for (int page = 1; more; page++) {
		_cleanup_answer_ struct answer a;
		_cleanup_free_ char *path =
			client_path("/v1/sandboxes?page=%d&pageSize=200%s", page, buf_cstr(&query));
		cJSON *i;

		if (client_call(&c, "GET", path, NULL, &a, &e) < 0)
			return complain(EXIT_FAILED, &e);
		cJSON_ArrayForEach (i, cJSON_GetObjectItem(a.json, "items")) {
			if (quiet && !co.json)
				puts(short_name(i, names));
			else if (co.json)
				cJSON_AddItemToArray(all, cJSON_Duplicate(i, true));
			else
				list_row(&t, i, whole);
		}
		more = cJSON_IsTrue(cJSON_GetObjectItem(
			cJSON_GetObjectItem(a.json, "pagination"), "hasNextPage"));
	}
	if (co.json)
		print_json(all);
	else if (!quiet)
		table_print(&t);
	cJSON_Delete(all);
	buf_fini(&query);
	return EXIT_OK;
}

/* Adds what the sandbox's network did and what was denied. A daemon without a network, or an older one, has no such route. */
static void add_network(struct client *c, const char *id, cJSON *to)
{
	_cleanup_free_ char *path = client_path("/v1/mayfly/sandboxes/%s/egress", id);
	_cleanup_answer_ struct answer a = {0};
	struct err e;

	if (client_call(c, "GET", path, NULL, &a, &e) == 0)
		cJSON_AddItemToObject(to, "network", cJSON_Duplicate(a.json, true));
}

/* The same request for each sandbox named; the worst exit code of all. */
static int for_each(
	int argc, char **argv, const char *usage, const char *method, const char *tail, bool show)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	struct client c;
	struct err e;
	int at, code;

	if (!client_begin(&c, &co, usage, opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	for (code = EXIT_OK; at < argc; at++) {
		_cleanup_answer_ struct answer a = {0};
		_cleanup_free_ char *path = NULL;
		char id[64];

		if (client_resolve(&c, argv[at], id, &e) < 0) {
			code = complain(EXIT_FAILED, &e);
			continue;
		}
		path = client_path("/v1/sandboxes/%s%s", id, tail);
		if (client_call(&c, method, path, NULL, &a, &e) < 0)
			code = complain(EXIT_FAILED, &e);
		else if (show) {
			add_network(&c, id, a.json);
			print_json(a.json);
		}
	}
	return code;
}

int cmd_inspect(int argc, char **argv)
{
	return for_each(argc, argv,
		"inspect SANDBOX...\n\nShow everything about sandboxes, as JSON.\n", "GET", "",
		true);
}

int cmd_rm(int argc, char **argv)
{
	return for_each(argc, argv, "rm SANDBOX...\n\nRemove sandboxes with all that is in them.\n",
		"DELETE", "", false);
}

int cmd_pause(int argc, char **argv)
{
	return for_each(argc, argv,
		"pause SANDBOX...\n\nPause sandboxes. Memory and processes are kept; a paused "
		"sandbox uses no "
		"CPU.\n",
		"POST", "/pause", false);
}

/* KILL, SIGKILL or 9. 0: none of these. */
static int signal_of(const char *text)
{
	uint64_t number;

	if (uint_parse(text, &number))
		return number >= 1 && number <= 64 ? (int)number : 0;
	if (!strncasecmp(text, "SIG", 3))
		text += 3;
	for (int sig = 1; sig < 32; sig++) {
		const char *name = sigabbrev_np(sig);

		if (name && !strcasecmp(text, name))
			return sig;
	}
	return 0;
}

int cmd_kill(int argc, char **argv)
{
	struct client_opts co = {0};
	const char *text = "KILL";
	const struct opt opts[] = {
		{"signal", 's', OPT_STR, &text, "SIGNAL", "KILL (the default), TERM, 9, ..."},
		CLIENT_OPTS(co),
	};
	struct client c;
	struct err e;
	int at, code, sig;

	if (!client_begin(&c, &co,
		    "kill [OPTIONS] SANDBOX...\n\nSend a signal to the entrypoint. A sandbox ends "
		    "when its entrypoint ends.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	sig = signal_of(text);
	if (!sig) {
		fprintf(stderr, "mayfly: kill: '%s' is not a signal\n", text);
		return EXIT_USAGE;
	}
	for (code = EXIT_OK; at < argc; at++) {
		_cleanup_answer_ struct answer a = {0};
		_cleanup_free_ char *path = NULL;
		char id[64];

		if (client_resolve(&c, argv[at], id, &e) == 0) {
			path = client_path(
				"/v1/sandboxes/%s/proxy/44772/command?id=entrypoint&signal=%d", id,
				sig);
			if (client_call(&c, "DELETE", path, NULL, &a, &e) == 0)
				continue;
		}
		code = complain(EXIT_FAILED, &e);
	}
	return code;
}

int cmd_resume(int argc, char **argv)
{
	return for_each(argc, argv, "resume SANDBOX...\n\nContinue paused sandboxes.\n", "POST",
		"/resume", false);
}

int cmd_renew(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	_cleanup_answer_ struct answer a = {0};
	_cleanup_free_ char *path = NULL;
	struct client c;
	struct err e;
	char id[64], text[40];
	uint64_t seconds;
	time_t when;
	cJSON *body;
	int at, code, rc;

	if (!client_begin(&c, &co,
		    "renew SANDBOX SECONDS\n\nLet a sandbox expire SECONDS from now.\n", opts,
		    ARRAY_LEN(opts), argc, argv, 2, &at, &code))
		return code;
	if (!uint_parse(argv[at + 1], &seconds)) {
		fprintf(stderr, "mayfly: renew: '%s' is not a number of seconds\n", argv[at + 1]);
		return EXIT_USAGE;
	}
	if (client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	when = time(NULL) + (time_t)seconds;
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", gmtime(&when));
	body = cJSON_CreateObject();
	cJSON_AddStringToObject(body, "expiresAt", text);
	path = client_path("/v1/sandboxes/%s/renew-expiration", id);
	rc = client_call(&c, "POST", path, body, &a, &e);
	cJSON_Delete(body);
	if (rc < 0)
		return complain(EXIT_FAILED, &e);
	puts(json_text(a.json, "expiresAt"));
	return EXIT_OK;
}
