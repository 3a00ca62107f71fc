/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_volume.c: `mayfly volume`: create, ls, inspect, rm of claims.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/client.h"

#define PATH "/v1/mayfly/volumes"

static int volume_create(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	struct client c;
	struct err e;
	int at, code;

	if (!client_begin(&c, &co,
		    "volume create NAME...\n\nMakes claims: folders that sandboxes can share, and "
		    "that outlive "
		    "them.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	code = EXIT_OK;
	for (; at < argc; at++) {
		_cleanup_answer_ struct answer a = {0};
		cJSON *body = cJSON_CreateObject();
		int rc;

		cJSON_AddStringToObject(body, "name", argv[at]);
		rc = client_call(&c, "POST", PATH, body, &a, &e);
		cJSON_Delete(body);
		if (rc < 0)
			code = complain(EXIT_FAILED, &e);
		else if (co.json)
			print_json(a.json);
		else
			puts(json_text(a.json, "name"));
	}
	return code;
}

static int volume_ls(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	_cleanup_answer_ struct answer a = {0};
	struct table t = {0};
	struct client c;
	struct err e;
	cJSON *i;
	int at, code;

	if (!client_begin(&c, &co, "volume ls\n", opts, ARRAY_LEN(opts), argc, argv, 0, &at, &code))
		return code;
	if (client_call(&c, "GET", PATH, NULL, &a, &e) < 0)
		return complain(EXIT_FAILED, &e);
	if (co.json) {
		print_json(cJSON_GetObjectItem(a.json, "items"));
		return EXIT_OK;
	}
	table_row(&t, 4, "NAME", "SANDBOXES", "KEPT", "CREATED");
	cJSON_ArrayForEach (i, cJSON_GetObjectItem(a.json, "items")) {
		const cJSON *n = cJSON_GetObjectItem(i, "sandboxes");
		bool goes = cJSON_IsTrue(cJSON_GetObjectItem(i, "deleteOnSandboxTermination"));
		char made[32], uses[16];

		age_text(json_text(i, "createdAt"), made, sizeof(made));
		snprintf(uses, sizeof(uses), "%d", cJSON_IsNumber(n) ? n->valueint : 0);
		table_row(&t, 4, json_text(i, "name"), uses,
			goes ? "until unused" : "until deleted", made);
	}
	table_print(&t);
	return EXIT_OK;
}

static int volume_each(const char *usage, const char *method, int argc, char **argv)
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
		_cleanup_free_ char *name = client_escape(argv[at]),
				    *path = client_path(PATH "/%s", name);

		if (client_call(&c, method, path, NULL, &a, &e) < 0)
			code = complain(EXIT_FAILED, &e);
		else if (a.json)
			print_json(a.json);
	}
	return code;
}

static int volume_inspect(int argc, char **argv)
{
	return volume_each("volume inspect NAME...\n", "GET", argc, argv);
}

static int volume_rm(int argc, char **argv)
{
	return volume_each("volume rm NAME...\n\nDeletes claims with all that is in them.\n",
		"DELETE", argc, argv);
}

int cmd_volume(int argc, char **argv)
{
	static const struct command table[] = {
		{"create", volume_create, "make claims"},
		{"ls", volume_ls, "list claims"},
		{"inspect", volume_inspect, "show a claim, as JSON"},
		{"rm", volume_rm, "delete claims and their files"},
	};

	return command_run("mayfly volume", table, ARRAY_LEN(table), argc, argv);
}
