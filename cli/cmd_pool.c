/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_pool.c: `mayfly pool`: machines of one image that wait for their creates.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/client.h"

struct pool_opts {
	struct client_opts co;
	uint64_t min, max, pool_min, pool_max, adapt;
	const char *cpus, *memory;
	struct opt_list env;
};

#define POOL_SIZE_OPTS(o)                                                                          \
	{"min", 0, OPT_UINT, &(o).min, "N", "keep at least N machines ready (1)"},                 \
		{"max", 0, OPT_UINT, &(o).max, "N",                                                \
			"keep at most N machines ready (default: as --min)"},                      \
		{"total-min", 0, OPT_UINT, &(o).pool_min, "N",                                     \
			"have at least N machines, ready and in use together (0)"},                \
		{"total", 0, OPT_UINT, &(o).pool_max, "N",                                         \
			"have at most N machines, ready and in use together (100)"},               \
	{                                                                                          \
		"adaptive", 0, OPT_UINT, &(o).adapt, "SECONDS",                                    \
			"keep as many ready as were taken in the last SECONDS, within min and max" \
	}

static cJSON *pool_capacity(const struct pool_opts *o)
{
	cJSON *c = cJSON_CreateObject();

	cJSON_AddNumberToObject(c, "bufferMin", (double)o->min);
	cJSON_AddNumberToObject(c, "bufferMax", (double)MAX(o->max, o->min));
	cJSON_AddNumberToObject(c, "poolMin", (double)o->pool_min);
	cJSON_AddNumberToObject(c, "poolMax", (double)o->pool_max);
	if (o->adapt)
		cJSON_AddNumberToObject(c, "adaptiveSeconds", (double)o->adapt);
	return c;
}

static int pool_send(const struct client *c, const char *method, const char *path, cJSON *body)
{
	_cleanup_answer_ struct answer a = {0};
	struct err e;
	int rc = client_call(c, method, path, body, &a, &e);

	cJSON_Delete(body);
	if (rc < 0)
		return complain(EXIT_FAILED, &e);
	puts(json_text(a.json, "name"));
	return EXIT_OK;
}

static cJSON *pool_template(const struct pool_opts *o, const char *image)
{
	cJSON *t = cJSON_CreateObject(), *spec = cJSON_AddObjectToObject(t, "spec"),
	      *list = cJSON_AddArrayToObject(spec, "containers"), *box = cJSON_CreateObject(), *env,
	      *limits;

	cJSON_AddItemToArray(list, box);
	cJSON_AddStringToObject(box, "image", image);
	env = cJSON_AddArrayToObject(box, "env");
	for (size_t i = 0; i < o->env.n; i++) {
		const char *eq = strchr(o->env.v[i], '=');
		_cleanup_free_ char *k =
			eq ? strndup(o->env.v[i], (size_t)(eq - o->env.v[i])) : NULL;
		cJSON *v = cJSON_CreateObject();

		cJSON_AddStringToObject(v, "name", k ? k : o->env.v[i]);
		cJSON_AddStringToObject(v, "value", eq ? eq + 1 : "");
		cJSON_AddItemToArray(env, v);
	}
	limits = cJSON_AddObjectToObject(cJSON_AddObjectToObject(box, "resources"), "limits");
	cJSON_AddStringToObject(limits, "cpu", o->cpus);
	cJSON_AddStringToObject(limits, "memory", o->memory);
	return t;
}

static int pool_create(int argc, char **argv)
{
	struct pool_opts o = {.min = 1, .pool_max = 100, .cpus = "1", .memory = "512Mi"};
	const struct opt opts[] = {POOL_SIZE_OPTS(o),
		{"cpus", 0, OPT_STR, &o.cpus, "N", "CPUs of each (1)"},
		{"memory", 'm', OPT_STR, &o.memory, "SIZE", "memory of each (512Mi)"},
		{"env", 'e', OPT_LIST, &o.env, "K=V",
			"an environment variable of everything in them"},
		CLIENT_OPTS(o.co)};
	struct client c;
	cJSON *body;
	int at, code;

	if (!client_begin(&c, &o.co,
		    "pool create [OPTIONS] NAME IMAGE\n\nKeep machines of an image ready. A create "
		    "with "
		    "the extension poolRef=NAME takes one.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 2, &at, &code))
		return code;
	body = cJSON_CreateObject();
	cJSON_AddStringToObject(body, "name", argv[at]);
	cJSON_AddItemToObject(body, "template", pool_template(&o, argv[at + 1]));
	cJSON_AddItemToObject(body, "capacitySpec", pool_capacity(&o));
	return pool_send(&c, "POST", "/v1/pools", body);
}

static int pool_scale(int argc, char **argv)
{
	struct pool_opts o = {.min = 1, .pool_max = 100};
	const struct opt opts[] = {POOL_SIZE_OPTS(o), CLIENT_OPTS(o.co)};
	_cleanup_free_ char *path = NULL;
	struct client c;
	cJSON *body;
	int at, code;

	if (!client_begin(&c, &o.co,
		    "pool scale [OPTIONS] NAME\n\nChange how many machines wait. An option that is "
		    "not given gets its default.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	body = cJSON_CreateObject();
	cJSON_AddItemToObject(body, "capacitySpec", pool_capacity(&o));
	path = client_path("/v1/pools/%s", argv[at]);
	return pool_send(&c, "PUT", path, body);
}

static int pool_ls(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	_cleanup_answer_ struct answer a = {0};
	struct table t = {0};
	struct client c;
	struct err e;
	cJSON *i;
	int at, code;

	if (!client_begin(&c, &co, "pool ls\n", opts, ARRAY_LEN(opts), argc, argv, 0, &at, &code))
		return code;
	if (client_call(&c, "GET", "/v1/pools", NULL, &a, &e) < 0)
		return complain(EXIT_FAILED, &e);
	if (co.json) {
		print_json(cJSON_GetObjectItem(a.json, "items"));
		return EXIT_OK;
	}
	table_row(&t, 4, "NAME", "AVAILABLE", "ALLOCATED", "CREATED");
	cJSON_ArrayForEach (i, cJSON_GetObjectItem(a.json, "items")) {
		const cJSON *st = cJSON_GetObjectItem(i, "status");
		char made[32], available[24], allocated[24];

		age_text(json_text(i, "createdAt"), made, sizeof(made));
		snprintf(available, sizeof(available), "%.0f",
			cJSON_GetNumberValue(cJSON_GetObjectItem(st, "available")));
		snprintf(allocated, sizeof(allocated), "%.0f",
			cJSON_GetNumberValue(cJSON_GetObjectItem(st, "allocated")));
		table_row(&t, 4, json_text(i, "name"), available, allocated, made);
	}
	table_print(&t);
	return EXIT_OK;
}

static int pool_rm(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	struct client c;
	struct err e;
	int at, code;

	if (!client_begin(&c, &co,
		    "pool rm NAME...\n\nRemove pools. Sandboxes that were taken from a pool go "
		    "on.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	for (int i = at; i < argc; i++) {
		_cleanup_free_ char *path = client_path("/v1/pools/%s", argv[i]);
		_cleanup_answer_ struct answer a = {0};

		if (client_call(&c, "DELETE", path, NULL, &a, &e) < 0)
			code = complain(EXIT_FAILED, &e);
		else
			puts(argv[i]);
	}
	return code == EXIT_FAILED ? code : EXIT_OK;
}

int cmd_pool(int argc, char **argv)
{
	static const struct command table[] = {
		{"create", pool_create, "keep machines of an image ready"},
		{"ls", pool_ls, "list pools"},
		{"scale", pool_scale, "change how many machines wait"},
		{"rm", pool_rm, "remove pools"}};

	return command_run("mayfly pool", table, ARRAY_LEN(table), argc, argv);
}
