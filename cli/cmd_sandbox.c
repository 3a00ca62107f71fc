/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_sandbox.c: `mayfly ls`, `inspect`, `rm`, `pause`, `resume`, `renew` and `logs`: one
 * request each, and what to print of it.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/client.h"

int cmd_ls(int argc, char **argv)
{
	struct client_opts co = {0};
	struct opt_list state = {0}, label = {0};
	const struct opt opts[] = {
		{"state", 's', OPT_LIST, &state, "STATE", "only these (Running, Paused, ...)"},
		{"label", 'l', OPT_LIST, &label, "K=V", "only with this metadata"},
		CLIENT_OPTS(co),
	};
	struct table t = {0};
	struct client c;
	struct err e;
	struct buf query;
	cJSON *all = cJSON_CreateArray();
	bool more = true;
	int at, code;

	if (!client_begin(
		    &c, &co, "ls [OPTIONS]\n", opts, ARRAY_LEN(opts), argc, argv, 0, &at, &code))
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
	table_row(&t, 6, "ID", "NAME", "IMAGE", "STATE", "CREATED", "EXPIRES");
	for (int page = 1; more; page++) {
		_cleanup_answer_ struct answer a;
		_cleanup_free_ char *path =
			client_path("/v1/sandboxes?page=%d&pageSize=200%s", page, buf_cstr(&query));
		cJSON *i;

		if (client_call(&c, "GET", path, NULL, &a, &e) < 0)
			return complain(EXIT_FAILED, &e);
		cJSON_ArrayForEach (i, cJSON_GetObjectItem(a.json, "items")) {
			char made[32], ends[32];
			const char *image = json_text(cJSON_GetObjectItem(i, "image"), "uri");

			age_text(json_text(i, "createdAt"), made, sizeof(made));
			age_text(json_text(i, "expiresAt"), ends, sizeof(ends));
			table_row(&t, 6, json_text(i, "id"),
				json_text(cJSON_GetObjectItem(i, "metadata"), "name"),
				*image ? image : json_text(i, "snapshotId"),
				json_text(cJSON_GetObjectItem(i, "status"), "state"), made, ends);
			cJSON_AddItemToArray(all, cJSON_Duplicate(i, true));
		}
		more = cJSON_IsTrue(cJSON_GetObjectItem(
			cJSON_GetObjectItem(a.json, "pagination"), "hasNextPage"));
	}
	if (co.json)
		print_json(all);
	else
		table_print(&t);
	cJSON_Delete(all);
	buf_fini(&query);
	return EXIT_OK;
}

/* What its network did and what was denied, beside what the API says of the sandbox. A server without a network, or an older one, has none. */
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
	code = EXIT_OK;
	for (; at < argc; at++) {
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
	return for_each(argc, argv, "inspect SANDBOX...\n", "GET", "", true);
}

int cmd_rm(int argc, char **argv)
{
	return for_each(argc, argv,
		"rm SANDBOX...\n\nRemoves sandboxes with all that is in them.\n", "DELETE", "",
		false);
}

int cmd_pause(int argc, char **argv)
{
	return for_each(argc, argv,
		"pause SANDBOX...\n\nMemory and processes are kept; a paused sandbox uses no "
		"CPU.\n",
		"POST", "/pause", false);
}

int cmd_resume(int argc, char **argv)
{
	return for_each(argc, argv, "resume SANDBOX...\n", "POST", "/resume", false);
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

	if (!client_begin(&c, &co, "renew SANDBOX SECONDS\n\nLets it live that long from now on.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 2, &at, &code))
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

static bool print_bytes(void *arg, const char *p, size_t n)
{
	return fwrite(p, 1, n, stdout) == n;
}

int cmd_logs(int argc, char **argv)
{
	struct client_opts co = {0};
	uint64_t tail = 0;
	const struct opt opts[] = {
		{"tail", 'n', OPT_UINT, &tail, "LINES", "only the last ones"},
		CLIENT_OPTS(co),
	};
	struct client_stream s = {.data = print_bytes};
	_cleanup_free_ char *path = NULL;
	struct client c;
	struct err e;
	char id[64];
	int at, code;

	if (!client_begin(&c, &co,
		    "logs [OPTIONS] SANDBOX [COMMAND-ID]\n\nWhat the entrypoint, or a command "
		    "started with exec --detach, has printed.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	if (client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	if (at + 1 < argc) {
		_cleanup_free_ char *cmd = client_escape(argv[at + 1]);

		path = client_path("/v1/sandboxes/%s/proxy/44772/command/%s/logs", id, cmd);
	} else if (co.json) {
		path = client_path("/v1/sandboxes/%s/diagnostics/logs?scope=container", id);
	} else {
		path = client_path("/v1/sandboxes/%s/diagnostics/logs?tail=%llu", id,
			(unsigned long long)(tail ? tail : 10000));
	}
	if (client_stream(&c, "GET", path, NULL, &s, &e) < 0)
		return complain(EXIT_FAILED, &e);
	return EXIT_OK;
}
