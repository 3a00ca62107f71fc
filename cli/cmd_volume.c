/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_volume.c: `mayfly volume`: create, ls, inspect, rm and cp of claims.
 * File names in a listing of a claim are hostile: cmd_copy.c checks them.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/client.h"

#define PATH "/v1/mayfly/volumes"

static int volume_create(int argc, char **argv)
{
	struct client_opts co = {0};
	const char *size = NULL;
	const struct opt opts[] = {
		{"size", 0, OPT_STR, &size, "SIZE",
			"limit of the bytes of its files: 500Mi, 10Gi (default: no limit)"},
		CLIENT_OPTS(co),
	};
	struct client c;
	struct err e;
	int at, code;

	if (!client_begin(&c, &co,
		    "volume create [OPTIONS] NAME...\n\nMake claims: folders that sandboxes can "
		    "share, and "
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
		if (size)
			cJSON_AddStringToObject(body, "storage", size);
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

/* A claim's limit: "10 GiB", or "-" for none. */
static void size_text(const cJSON *n, char *to, size_t cap)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double v = cJSON_IsNumber(n) ? n->valuedouble : 0;
	size_t u = 0;

	for (; v >= 1024 && u + 1 < ARRAY_LEN(units); u++)
		v /= 1024;
	if (v > 0)
		snprintf(to, cap, "%.4g %s", v, units[u]);
	else
		snprintf(to, cap, "-");
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

	if (!client_begin(&c, &co, "volume ls\n\nList claims.\n", opts, ARRAY_LEN(opts), argc, argv,
		    0, &at, &code))
		return code;
	if (client_call(&c, "GET", PATH, NULL, &a, &e) < 0)
		return complain(EXIT_FAILED, &e);
	if (co.json) {
		print_json(cJSON_GetObjectItem(a.json, "items"));
		return EXIT_OK;
	}
	table_row(&t, 5, "NAME", "SANDBOXES", "SIZE", "KEPT", "CREATED");
	cJSON_ArrayForEach (i, cJSON_GetObjectItem(a.json, "items")) {
		const cJSON *n = cJSON_GetObjectItem(i, "sandboxes");
		bool goes = cJSON_IsTrue(cJSON_GetObjectItem(i, "deleteOnSandboxTermination"));
		char made[32], uses[16], size[32];

		age_text(json_text(i, "createdAt"), made, sizeof(made));
		snprintf(uses, sizeof(uses), "%d", cJSON_IsNumber(n) ? n->valueint : 0);
		size_text(cJSON_GetObjectItem(i, "storageBytes"), size, sizeof(size));
		table_row(&t, 5, json_text(i, "name"), uses, size,
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
	return volume_each("volume rm NAME...\n\nDelete claims with all that is in them.\n",
		"DELETE", argc, argv);
}

/* ---- cp */

#define MOUNTED "/mayfly-volume"

/* The claim's path in the sandbox. -EINVAL: it leads out of the claim. */
static int path_within(const char *path, char **to, struct err *e)
{
	while (*path == '/')
		path++;
	for (const char *p = path; *p; p += strcspn(p, "/") + (p[strcspn(p, "/")] == '/'))
		if (!strncmp(p, "..", 2) && (p[2] == '/' || !p[2]))
			return err_plain(e, EINVAL, "volume cp: '%s' has a '..'", path);
	*to = client_path(MOUNTED "/%s", strcmp(path, ".") != 0 ? path : "");
	return 0;
}

struct copying {
	const char *image, *claim, *local, *path;
	bool out;
};

/* A claim that does not exist is an error, and not made. */
static int claim_must_exist(const struct client *c, const char *name, struct err *e)
{
	_cleanup_free_ char *q = client_escape(name), *path = client_path(PATH "/%s", q);
	_cleanup_answer_ struct answer a = {0};

	return client_call(c, "GET", path, NULL, &a, e);
}

static int volume_copy(struct client *c, const struct copying *w, struct err *e)
{
	_cleanup_free_ char *within = NULL, *volume = NULL;
	struct passing *p;
	int rc = path_within(w->path, &within, e);

	if (rc == 0 && !w->out && strcmp(w->local, "-") != 0 && access(w->local, R_OK) < 0)
		rc = err_set(e, errno, "%s", w->local);
	if (rc == 0)
		rc = claim_must_exist(c, w->claim, e);
	if (rc < 0)
		return rc;
	volume = client_path("%s:%s%s", w->claim, MOUNTED, w->out ? ":ro" : "");
	p = passing_begin(c, w->image, volume, e);
	if (!p)
		return -e->code;
	rc = w->out ? copy_out(c, passing_id(p), within, w->local, e)
		    : copy_in(c, w->local, passing_id(p), within, e);
	passing_end(c, p);
	return rc;
}

static int volume_cp(int argc, char **argv)
{
	struct client_opts co = {0};
	struct copying w = {.image = "base"};
	const struct opt opts[] = {
		{"image", 0, OPT_STR, &w.image, "IMAGE", "image of the sandbox that copies (base)"},
		CLIENT_OPTS(co),
	};
	char from_name[256], to_name[256];
	const char *from, *to;
	struct client c;
	struct err e;
	int at, code;
	bool in;

	if (!client_begin(&c, &co,
		    "volume cp [OPTIONS] FILE|FOLDER|- NAME:PATH\n       mayfly volume cp "
		    "[OPTIONS] "
		    "NAME:PATH FILE|FOLDER|-\n\nCopy files into a claim, or out of it. A new "
		    "sandbox does the copying, also while others use the claim.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 2, &at, &code))
		return code;
	w.out = copy_remote_of(argv[at], from_name, sizeof(from_name), &from);
	in = copy_remote_of(argv[at + 1], to_name, sizeof(to_name), &to);
	if (w.out == in || argc - at != 2) {
		fprintf(stderr,
			"mayfly: volume cp: one side must be NAME:PATH, the other a path here\n");
		return EXIT_USAGE;
	}
	w.claim = w.out ? from_name : to_name;
	w.local = argv[at + w.out];
	w.path = w.out ? from : to;
	return volume_copy(&c, &w, &e) < 0 ? complain(EXIT_FAILED, &e) : EXIT_OK;
}

int cmd_volume(int argc, char **argv)
{
	static const struct command table[] = {
		{"create", volume_create, "make claims"},
		{"ls", volume_ls, "list claims"},
		{"inspect", volume_inspect, "show a claim, as JSON"},
		{"cp", volume_cp, "copy files into a claim, or out of it"},
		{"rm", volume_rm, "delete claims and their files"},
	};

	return command_run("mayfly volume", table, ARRAY_LEN(table), argc, argv);
}
