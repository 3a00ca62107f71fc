/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_image_remote.c: `mayfly image ls`, `pull` and `rm` by the daemon. Its answers come from the network.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/cmd_image.h"
#include "images/store/store.h"
#include "lib/json.h"

static double number(const cJSON *o, const char *key)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

	return cJSON_IsNumber(v) ? v->valuedouble : 0;
}

static void list_row(struct table *t, const cJSON *i)
{
	char shown[REF_MAX], id[16], stored[32], size[32], when[32] = "-", pins[32];
	const char *name = json_text(i, "name"), *digest = json_text(i, "digest");
	time_t used = (time_t)number(i, "usedAt");
	struct image_ref ref;
	struct tm tm;

	if (localtime_r(&used, &tm))
		strftime(when, sizeof(when), "%Y-%m-%d %H:%M", &tm);
	snprintf(stored, sizeof(stored), "%.0f MiB", number(i, "storedBytes") / 1048576);
	snprintf(size, sizeof(size), "%.1f GiB", number(i, "diskBytes") / 1073741824);
	snprintf(pins, sizeof(pins), "%s", number(i, "pins") > 0 ? "yes" : "");
	if (!*name)
		name = "-";
	else if (ref_parse(name, &ref, NULL) == 0)
		name = ref_familiar(&ref, shown);
	digest += strncmp(digest, "sha256:", 7) == 0 ? 7 : 0;
	snprintf(id, sizeof(id), "%.12s", digest);
	table_row(t, 7, name, cJSON_IsTrue(cJSON_GetObjectItem(i, "local")) ? "local" : "registry",
		id, stored, size, when, pins);
}

int remote_ls(const char *url, bool json)
{
	_cleanup_answer_ struct answer a = {0};
	struct table t = {0};
	struct client c;
	struct err e;
	const cJSON *i;

	client_open(&c, url);
	if (client_call(&c, "GET", "/v1/mayfly/images", NULL, &a, &e) < 0)
		return complain(EXIT_FAILED, &e);
	table_row(&t, 7, "NAME", "FROM", "IMAGE", "STORED", "SIZE", "LAST USE", "IN USE");
	cJSON_ArrayForEach (i, cJSON_GetObjectItem(a.json, "items")) {
		_cleanup_free_ char *text = json ? cJSON_PrintUnformatted(i) : NULL;

		if (json)
			puts(text ? text : "");
		else
			list_row(&t, i);
	}
	cJSON_ArrayForEach (i, cJSON_GetObjectItem(a.json, "aliases")) {
		_cleanup_free_ char *text = json ? cJSON_PrintUnformatted(i) : NULL;

		if (json)
			puts(text ? text : "");
		else
			table_row(&t, 7, json_text(i, "name"), "alias", json_text(i, "alias"), "",
				"", "", "");
	}
	if (!json)
		table_print(&t);
	return EXIT_OK;
}

/* ---- pull: lines of JSON as they come */

struct pull_stream {
	struct buf line;
	bool terminal, drawn, failed, ended;
};

static void take_line(struct pull_stream *p)
{
	_cleanup_json_ cJSON *j = NULL;
	const char *text;

	json_read(&j, p->line.p, p->line.len, JSON_OBJECT, NULL);
	if (*(text = json_text(j, "progress"))) {
		p->drawn |= p->terminal;
		fprintf(stderr, p->terminal ? "\r%s\033[K" : "%s\n", text);
		return;
	}
	if (p->drawn)
		fprintf(stderr, "\r\033[K");
	p->drawn = false;
	if (*(text = json_text(j, "error"))) {
		p->failed = true;
		fprintf(stderr, "mayfly: %s\n", text);
	} else if (*(text = json_text(j, "digest"))) {
		p->ended = true;
		printf("sha256:%s\n", text);
	}
}

static bool take_bytes(void *arg, const char *bytes, size_t n)
{
	struct pull_stream *p = arg;

	for (; n > 0; bytes++, n--) {
		if (*bytes != '\n') {
			buf_put(&p->line, bytes, 1);
			continue;
		}
		take_line(p);
		p->line.len = 0;
	}
	return !p->line.bad;
}

int remote_pull(const char *url, const char *name, const char *user, const char *password)
{
	struct pull_stream p = {.terminal = isatty(2)};
	struct client_stream s = {.data = take_bytes, .arg = &p};
	cJSON *body = cJSON_CreateObject();
	struct client c;
	struct err e = {0};
	int rc;

	client_open(&c, url);
	buf_init(&p.line, KIB(64));
	cJSON_AddStringToObject(body, "name", name);
	if (user) {
		cJSON_AddStringToObject(body, "username", user);
		cJSON_AddStringToObject(body, "password", password);
	}
	rc = client_stream(&c, "POST", "/v1/mayfly/images", body, &s, &e);
	if (rc == 0 && !p.failed && !p.ended)
		rc = err_plain(&e, EIO, "the daemon ended the pull without a result");
	cJSON_Delete(body);
	buf_fini(&p.line);
	if (rc < 0)
		complain(EXIT_FAILED, &e);
	return rc < 0 || p.failed ? EXIT_FAILED : EXIT_OK;
}

int remote_rm(const char *url, int n, char **names)
{
	int code = EXIT_OK;
	struct client c;

	client_open(&c, url);
	for (int i = 0; i < n; i++) {
		_cleanup_answer_ struct answer a = {0};
		_cleanup_free_ char *name = client_escape(names[i]);
		_cleanup_free_ char *path = client_path("/v1/mayfly/images?name=%s", name);
		struct err e;

		if (client_call(&c, "DELETE", path, NULL, &a, &e) < 0)
			code = complain(EXIT_FAILED, &e);
	}
	return code;
}
