/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_fork.c: `mayfly fork`: sandboxes from one moment of another. `mayfly rollback`: a sandbox back at a snapshot of its own.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/client.h"

struct fork_opts {
	struct client_opts co;
	struct opt_list env, labels;
	const char *snapshot;
	uint64_t count, timeout;
	bool pause;
};

/* A list of K=V as an object. NULL: one is not of that form. */
static cJSON *fork_pairs(const struct opt_list *l, const char *option)
{
	cJSON *o = cJSON_CreateObject();

	for (size_t i = 0; i < l->n; i++) {
		const char *eq = strchr(l->v[i], '=');
		_cleanup_free_ char *k = eq ? strndup(l->v[i], (size_t)(eq - l->v[i])) : NULL;

		if (!k || !*k) {
			fprintf(stderr, "mayfly: fork: %s '%s': write KEY=VALUE\n", option,
				l->v[i]);
			cJSON_Delete(o);
			return NULL;
		}
		cJSON_DeleteItemFromObjectCaseSensitive(o, k);
		cJSON_AddStringToObject(o, k, eq + 1);
	}
	return o;
}

static cJSON *fork_body(const struct fork_opts *o)
{
	cJSON *body = cJSON_CreateObject(), *env = fork_pairs(&o->env, "--env"),
	      *labels = fork_pairs(&o->labels, "--label");

	cJSON_AddNumberToObject(body, "count", (double)o->count);
	if (o->timeout)
		cJSON_AddNumberToObject(body, "timeout", (double)o->timeout);
	if (o->pause)
		cJSON_AddTrueToObject(body, "pauseSource");
	if (env)
		cJSON_AddItemToObject(body, "env", env);
	if (labels)
		cJSON_AddItemToObject(body, "metadata", labels);
	if (env && labels)
		return body;
	cJSON_Delete(body);
	return NULL;
}

/* The ids of the children; an error for each that was not made. */
static int fork_print(const cJSON *items)
{
	const cJSON *i, *part;
	int code = EXIT_OK;

	cJSON_ArrayForEach (i, items) {
		part = cJSON_GetObjectItem(i, "sandbox");
		if (part) {
			puts(json_text(part, "id"));
			continue;
		}
		part = cJSON_GetObjectItem(i, "error");
		fprintf(stderr, "mayfly: fork: %s (%s)\n", json_text(part, "message"),
			json_text(part, "code"));
		code = EXIT_FAILED;
	}
	return code;
}

/* For `mayfly fork SANDBOX -n 8`: options are read up to the first word, so SANDBOX is moved behind them. */
static void word_to_the_end(int argc, char **argv)
{
	char *word = argc > 1 ? argv[1] : NULL;

	if (!word || *word == '-')
		return;
	memmove(&argv[1], &argv[2], (size_t)(argc - 2) * sizeof(*argv));
	argv[argc - 1] = word;
}

int cmd_fork(int argc, char **argv)
{
	struct fork_opts o = {.count = 1};
	const struct opt opts[] = {
		{"count", 'n', OPT_UINT, &o.count, "N", "make N children (1)"},
		{"env", 'e', OPT_LIST, &o.env, "K=V",
			"an environment variable of their later commands"},
		{"label", 'l', OPT_LIST, &o.labels, "K=V", "metadata of the children"},
		{"timeout", 't', OPT_UINT, &o.timeout, "SECONDS",
			"remove them after SECONDS (default: when the source expires)"},
		{"pause", 'p', OPT_FLAG, &o.pause, NULL, "pause the source"},
		{"snapshot", 0, OPT_STR, &o.snapshot, "SNAPSHOT", "fork a snapshot, not a sandbox"},
		CLIENT_OPTS(o.co),
	};
	_cleanup_answer_ struct answer a = {0};
	_cleanup_free_ char *path = NULL;
	struct client c;
	struct err e;
	cJSON *body;
	char id[64];
	int at, code, rc;

	word_to_the_end(argc, argv);
	if (!client_begin(&c, &o.co,
		    "fork [OPTIONS] SANDBOX\n\nCreate sandboxes that go on from where a running "
		    "sandbox is now, and print their ids. They share its memory.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 0, &at, &code))
		return code;
	if (argc - at != (o.snapshot ? 0 : 1)) {
		fprintf(stderr, "mayfly: fork: name one sandbox, or --snapshot ID. `mayfly ls` "
				"shows sandboxes\n");
		return EXIT_USAGE;
	}
	body = fork_body(&o);
	if (!body)
		return EXIT_USAGE;
	rc = o.snapshot ? client_resolve_snapshot(&c, o.snapshot, id, &e)
			: client_resolve(&c, argv[at], id, &e);
	if (rc == 0) {
		path = client_path(
			o.snapshot ? "/v1/snapshots/%s/fork" : "/v1/sandboxes/%s/fork", id);
		rc = client_call(&c, "POST", path, body, &a, &e);
	}
	cJSON_Delete(body);
	if (rc < 0)
		return complain(EXIT_FAILED, &e);
	if (!o.co.json)
		return fork_print(cJSON_GetObjectItem(a.json, "items"));
	print_json(a.json);
	return EXIT_OK;
}

int cmd_rollback(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	_cleanup_answer_ struct answer a = {0};
	_cleanup_free_ char *path = NULL;
	struct client c;
	struct err e;
	cJSON *body;
	char id[64], snapshot[64];
	int at, code, rc;

	if (!client_begin(&c, &co,
		    "rollback SANDBOX SNAPSHOT\n\nPut a sandbox back to a snapshot of its own: "
		    "memory, "
		    "processes and disk. What it did since is lost.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 2, &at, &code))
		return code;
	if (client_resolve(&c, argv[at], id, &e) < 0 ||
		client_resolve_snapshot(&c, argv[at + 1], snapshot, &e) < 0)
		return complain(EXIT_FAILED, &e);
	body = cJSON_CreateObject();
	cJSON_AddStringToObject(body, "snapshotId", snapshot);
	path = client_path("/v1/sandboxes/%s/restore", id);
	rc = client_call(&c, "POST", path, body, &a, &e);
	cJSON_Delete(body);
	if (rc < 0)
		return complain(EXIT_FAILED, &e);
	if (co.json)
		printf("{\"id\": \"%s\"}\n", id);
	else
		puts(id);
	return EXIT_OK;
}
