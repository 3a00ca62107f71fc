/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_env.c: `mayfly env`: what the official SDKs and osb read from the environment, as `make up` or the package left
 * it. Read as data: a value that needs quotes in a shell is refused.
 */
#include "cli/cli.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "cli/client.h"
#include "cli/run.h"

/* Values are host:port and hexadecimal keys; anything else would have to be quoted for a shell, and
 * is refused. */
static bool is_plain(const char *s)
{
	return s[strspn(s,
		       "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_=.:-[]")] ==
	       0;
}

int cmd_env(int argc, char **argv)
{
	char text[2048], *save = NULL;
	struct err e = {0};
	cJSON *o = NULL;
	bool json;
	int rest, rc = plain_options(argc, argv,
			  "mayfly env\n\nPrint shell exports of the daemon's address and key "
			  "for the SDKs and osb: eval \"$(mayfly env)\"",
			  &json, &rest);

	if (rc >= 0)
		return rc;
	if (client_settings(text, sizeof(text)) < 0) {
		err_plain(&e, ENOENT,
			"no daemon is known: make up starts one. An installed one writes "
			"/etc/mayfly/client.env for the group mayfly");
		return complain(EXIT_FAILED, &e);
	}
	if (json)
		o = cJSON_CreateObject();
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (!is_plain(line)) {
			err_plain(&e, EINVAL,
				"client.env holds a value that is not plain text: make up writes "
				"it again");
			cJSON_Delete(o);
			return complain(EXIT_FAILED, &e);
		}
		if (json && strchr(line, '=')) {
			char *v = strchr(line, '=');

			*v++ = 0;
			cJSON_AddStringToObject(o, line, v);
		} else if (!json) {
			printf("export %s\n", line);
		}
	}
	if (json)
		print_json(o);
	cJSON_Delete(o);
	return EXIT_OK;
}
