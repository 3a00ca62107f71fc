/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_snapshot.c: `mayfly snapshot` and `mayfly template`: create, build, ls, inspect, rm and verify
 * what a sandbox can be made from instead of an image.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/client.h"

#define READY_MS 50

/* What differs between the two. */
struct kind {
	const char *noun, *path, *id, *word;
};
static const struct kind snapshots = {"snapshot", "/v1/snapshots", "id", "SNAPSHOT"};
static const struct kind templates = {"template", "/v1/templates", "templateId", "ID"};

/* The templates that images get by themselves have a list of their own, and plain ids. */
static const char own_templates[] = "/v1/mayfly/templates";

static const char *path_of(const struct kind *k, const char *id)
{
	return k == &templates && strncmp(id, "tpl-", 4) != 0 ? own_templates : k->path;
}

/* The id of what is named; templates have no names, and are given by their ids. */
static int id_of(
	const struct client *c, const struct kind *k, const char *word, char id[64], struct err *e)
{
	if (k == &snapshots)
		return client_resolve_snapshot(c, word, id, e);
	snprintf(id, 64, "%s", word);
	return 0;
}

static int list_own(struct client *c, struct table *t, cJSON *all, struct err *e)
{
	_cleanup_answer_ struct answer a;
	cJSON *i;

	/* only operators may list the templates of images */
	if (client_call(c, "GET", own_templates, NULL, &a, e) < 0)
		return e->code == EPERM ? 0 : -EIO;
	cJSON_ArrayForEach (i, cJSON_GetObjectItem(a.json, "items")) {
		const cJSON *bytes = cJSON_GetObjectItem(i, "bytes");
		char made[32], size[32];

		age_text(json_text(i, "createdAt"), made, sizeof(made));
		snprintf(size, sizeof(size), "automatic, %.0f MiB",
			cJSON_IsNumber(bytes) ? bytes->valuedouble / 1048576 : 0.0);
		table_row(t, 5, json_text(i, "id"), json_text(i, "image"), json_text(i, "state"),
			size, made);
		cJSON_AddItemToArray(all, cJSON_Duplicate(i, true));
	}
	return 0;
}

static int list(const struct kind *k, int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	struct table t = {0};
	struct client c;
	struct err e;
	cJSON *all = cJSON_CreateArray();
	bool more = true, snap = k == &snapshots;
	char usage[64];
	int at, code;

	snprintf(usage, sizeof(usage), "%s ls\n", k->noun);
	if (!client_begin(&c, &co, usage, opts, ARRAY_LEN(opts), argc, argv, 0, &at, &code))
		return code;
	table_row(&t, 5, "ID", snap ? "NAME" : "IMAGE", "STATE", snap ? "SANDBOX" : "KEPT",
		"CREATED");
	for (int page = 1; more; page++) {
		_cleanup_answer_ struct answer a;
		_cleanup_free_ char *path = client_path("%s?page=%d&pageSize=200", k->path, page);
		cJSON *i;

		if (client_call(&c, "GET", path, NULL, &a, &e) < 0)
			return complain(EXIT_FAILED, &e);
		cJSON_ArrayForEach (i, cJSON_GetObjectItem(a.json, "items")) {
			const cJSON *st = cJSON_GetObjectItem(i, "status");
			char made[32];

			age_text(json_text(i, "createdAt"), made, sizeof(made));
			table_row(&t, 5, json_text(i, k->id), json_text(i, snap ? "name" : "image"),
				json_text(st, snap ? "state" : "phase"),
				json_text(i, snap ? "sandboxId" : "publish"), made);
			cJSON_AddItemToArray(all, cJSON_Duplicate(i, true));
		}
		more = cJSON_IsTrue(cJSON_GetObjectItem(
			cJSON_GetObjectItem(a.json, "pagination"), "hasNextPage"));
	}
	if (!snap && list_own(&c, &t, all, &e) < 0)
		return complain(EXIT_FAILED, &e);
	if (co.json)
		print_json(all);
	else
		table_print(&t);
	cJSON_Delete(all);
	return EXIT_OK;
}

/* Adds to `to` what the protocol has no field for: files, working set, whether the files were verified
 * since the host booted. A snapshot that is not ready yet has no such answer (404). */
static int add_point(struct client *c, const char *id, cJSON *to, struct err *e)
{
	_cleanup_free_ char *path = client_path("/v1/mayfly/points/%s", id);
	_cleanup_answer_ struct answer a = {0};
	cJSON *v;

	if (client_call(c, "GET", path, NULL, &a, e) < 0)
		return e->code == ENOENT ? 0 : -EIO;
	while (a.json && (v = a.json->child)) {
		cJSON_DetachItemViaPointer(a.json, v);
		/* an image template says only whether it has a working set; this is the working set itself */
		cJSON_DeleteItemFromObjectCaseSensitive(to, v->string);
		cJSON_AddItemToObject(to, v->string, v);
	}
	return 0;
}

static int each(const struct kind *k, const char *verb, const char *method, int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	struct client c;
	struct err e;
	char usage[64];
	int at, code;

	snprintf(usage, sizeof(usage), "%s %s %s...\n", k->noun, verb, k->word);
	if (!client_begin(&c, &co, usage, opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	code = EXIT_OK;
	for (; at < argc; at++) {
		_cleanup_answer_ struct answer a = {0};
		_cleanup_free_ char *id = NULL, *path = NULL;
		char named[64];

		if (id_of(&c, k, argv[at], named, &e) < 0) {
			code = complain(EXIT_FAILED, &e);
			continue;
		}
		id = client_escape(named);
		path = client_path("%s/%s", path_of(k, named), id);
		if (client_call(&c, method, path, NULL, &a, &e) < 0 ||
			(a.json && add_point(&c, id, a.json, &e) < 0))
			code = complain(EXIT_FAILED, &e);
		else if (a.json)
			print_json(a.json);
	}
	return code;
}

static int verify(const struct kind *k, int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	struct client c;
	struct err e;
	char usage[64];
	int at, code;

	snprintf(usage, sizeof(usage), "%s verify %s...\n", k->noun, k->word);
	if (!client_begin(&c, &co, usage, opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	for (code = EXIT_OK; at < argc; at++) {
		_cleanup_answer_ struct answer a = {0};
		_cleanup_free_ char *id = NULL, *path = NULL;
		char named[64];
		const cJSON *i;

		if (id_of(&c, k, argv[at], named, &e) < 0) {
			code = complain(EXIT_FAILED, &e);
			continue;
		}
		id = client_escape(named);
		path = client_path("/v1/mayfly/points/%s/verify", id);
		if (client_call(&c, "POST", path, NULL, &a, &e) < 0) {
			code = complain(EXIT_FAILED, &e);
			continue;
		}
		if (co.json)
			print_json(a.json);
		cJSON_ArrayForEach (i, cJSON_GetObjectItem(a.json, "files")) {
			const cJSON *bytes = cJSON_GetObjectItem(i, "bytes");
			bool ok = cJSON_IsTrue(cJSON_GetObjectItem(i, "ok"));

			if (!co.json)
				printf("%-4s %-6s %s %.0f bytes%s%s\n", ok ? "ok" : "BAD",
					json_text(i, "kind"), json_text(i, "id"),
					cJSON_IsNumber(bytes) ? bytes->valuedouble : 0.0,
					ok ? "" : ": ", ok ? "" : json_text(i, "error"));
		}
		if (!cJSON_IsTrue(cJSON_GetObjectItem(a.json, "ok")))
			code = EXIT_FAILED;
	}
	return code;
}

/* Waits until the daemon has written the snapshot. 0; or -errno, with the daemon's reason, if it
 * failed. */
static int until_ready(const struct client *c, const char *id, struct err *e)
{
	_cleanup_free_ char *path = client_path("/v1/snapshots/%s", id);

	while (!client_interrupts) {
		_cleanup_answer_ struct answer a = {0};
		const cJSON *status;
		const char *state;

		if (client_call(c, "GET", path, NULL, &a, e) < 0)
			return -e->code;
		status = cJSON_GetObjectItem(a.json, "status");
		state = json_text(status, "state");
		if (!strcmp(state, "Ready"))
			return 0;
		if (strcmp(state, "Creating") != 0)
			return err_plain(e, EIO, "snapshot %s is %s: %s", id, state,
				json_text(status, "message"));
		poll(NULL, 0, READY_MS);
	}
	return err_plain(e, EINTR, "snapshot %s is still being written", id);
}

static int snapshot_create(int argc, char **argv)
{
	struct client_opts co = {0};
	const char *name = NULL;
	bool at_once = false;
	const struct opt opts[] = {
		{"name", 'n', OPT_STR, &name, "NAME", "give the snapshot a name"},
		{"no-wait", 0, OPT_FLAG, &at_once, NULL, "do not wait until it can be used"},
		CLIENT_OPTS(co),
	};
	_cleanup_answer_ struct answer a = {0};
	_cleanup_free_ char *path = NULL;
	cJSON *body = cJSON_CreateObject();
	struct client c;
	struct err e;
	char id[64];
	int at, code, rc;

	if (!client_begin(&c, &co,
		    "snapshot create [OPTIONS] SANDBOX\n\nMake a snapshot of a running "
		    "sandbox, and print its id when it can be used.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	if (client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	if (name)
		cJSON_AddStringToObject(body, "name", name);
	path = client_path("/v1/sandboxes/%s/snapshots", id);
	rc = client_call(&c, "POST", path, body, &a, &e);
	cJSON_Delete(body);
	if (rc == 0 && !at_once)
		rc = until_ready(&c, json_text(a.json, "id"), &e);
	if (rc < 0)
		return complain(EXIT_FAILED, &e);
	if (co.json)
		print_json(a.json);
	else
		puts(json_text(a.json, "id"));
	return EXIT_OK;
}

static int template_create(int argc, char **argv)
{
	struct client_opts co = {0};
	const char *publish = NULL;
	struct opt_list env = {0};
	const struct opt opts[] = {
		{"publish", 'p', OPT_STR, &publish, "WHERE",
			"a note where it is published; nothing is sent there (s3://local/mayfly)"},
		{"env", 'e', OPT_LIST, &env, "K=V",
			"an environment variable of every sandbox made from it"},
		CLIENT_OPTS(co),
	};
	_cleanup_answer_ struct answer a = {0};
	cJSON *body = cJSON_CreateObject(), *o, *limits;
	struct client c;
	struct err e;
	int at, code, rc;

	if (!client_begin(&c, &co,
		    "template create [OPTIONS] IMAGE [ENTRYPOINT...]\n\nMake a template in which "
		    "the "
		    "entrypoint already runs, and print its id.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	cJSON_AddStringToObject(body, "image", argv[at]);
	cJSON_AddStringToObject(body, "publish", publish ? publish : "s3://local/mayfly");
	limits = cJSON_AddObjectToObject(body, "resourceLimits");
	cJSON_AddStringToObject(limits, "cpu", "1");
	cJSON_AddStringToObject(limits, "memory", "512Mi");
	if (at + 1 < argc) {
		o = cJSON_AddArrayToObject(body, "entrypoint");
		for (at++; at < argc; at++)
			cJSON_AddItemToArray(o, cJSON_CreateString(argv[at]));
	}
	if (env.n) {
		o = cJSON_AddObjectToObject(body, "env");
		for (size_t i = 0; i < env.n; i++) {
			_cleanup_free_ char *k = strdup(env.v[i]);
			char *eq = k ? strchr(k, '=') : NULL;

			if (eq)
				*eq = 0;
			cJSON_AddStringToObject(o, k, eq ? eq + 1 : "");
		}
	}
	rc = client_call(&c, "POST", "/v1/templates", body, &a, &e);
	cJSON_Delete(body);
	if (rc < 0)
		return complain(EXIT_FAILED, &e);
	if (co.json)
		print_json(a.json);
	else
		puts(json_text(a.json, "templateId"));
	return EXIT_OK;
}

static int template_build(int argc, char **argv)
{
	struct client_opts co = {0};
	const char *cpus = "1", *memory = "512Mi";
	const struct opt opts[] = {
		{"cpus", 'c', OPT_STR, &cpus, "N", "CPUs of the sandboxes that it is for (1)"},
		{"memory", 'm', OPT_STR, &memory, "SIZE",
			"memory of the sandboxes that it is for (512Mi)"},
		CLIENT_OPTS(co),
	};
	struct client c;
	struct err e;
	int at, code;

	if (!client_begin(&c, &co,
		    "template build [OPTIONS] IMAGE...\n\nBuild an image's restore template now, "
		    "instead "
		    "of with its first sandbox.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	for (code = EXIT_OK; at < argc; at++) {
		_cleanup_answer_ struct answer a = {0};
		cJSON *body = cJSON_CreateObject(), *limits;
		int rc;

		cJSON_AddStringToObject(body, "image", argv[at]);
		limits = cJSON_AddObjectToObject(body, "resourceLimits");
		cJSON_AddStringToObject(limits, "cpu", cpus);
		cJSON_AddStringToObject(limits, "memory", memory);
		rc = client_call(&c, "POST", own_templates, body, &a, &e);
		cJSON_Delete(body);
		if (rc < 0)
			code = complain(EXIT_FAILED, &e);
		else if (co.json)
			print_json(a.json);
		else
			puts(json_text(a.json, "id"));
	}
	return code;
}

#define VERBS(k)                                                                                   \
	static int k##_ls(int argc, char **argv)                                                   \
	{                                                                                          \
		return list(&k##s, argc, argv);                                                    \
	}                                                                                          \
	static int k##_inspect(int argc, char **argv)                                              \
	{                                                                                          \
		return each(&k##s, "inspect", "GET", argc, argv);                                  \
	}                                                                                          \
	static int k##_rm(int argc, char **argv)                                                   \
	{                                                                                          \
		return each(&k##s, "rm", "DELETE", argc, argv);                                    \
	}                                                                                          \
	static int k##_verify(int argc, char **argv)                                               \
	{                                                                                          \
		return verify(&k##s, argc, argv);                                                  \
	}
VERBS(snapshot)
VERBS(template)

int cmd_snapshot(int argc, char **argv)
{
	static const struct command verbs[] = {
		{"create", snapshot_create, "make a snapshot of a running sandbox"},
		{"ls", snapshot_ls, "list snapshots"},
		{"inspect", snapshot_inspect, "show snapshots, as JSON"},
		{"rm", snapshot_rm, "remove snapshots"},
		{"verify", snapshot_verify,
			"read all files of snapshots and compare their checksums"},
	};

	return command_run("mayfly snapshot", verbs, ARRAY_LEN(verbs), argc, argv);
}

int cmd_template(int argc, char **argv)
{
	static const struct command verbs[] = {
		{"create", template_create,
			"make a template from an image, with its entrypoint already started"},
		{"build", template_build,
			"build an image's restore template now, instead of with its first sandbox"},
		{"ls", template_ls, "list templates"},
		{"inspect", template_inspect, "show templates, as JSON"},
		{"rm", template_rm, "remove templates"},
		{"verify", template_verify,
			"read all files of templates and compare their checksums"},
	};

	return command_run("mayfly template", verbs, ARRAY_LEN(verbs), argc, argv);
}
