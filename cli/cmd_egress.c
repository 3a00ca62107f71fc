/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_egress.c: `mayfly egress`: what a sandbox may reach, what it tried to reach, and changing the first.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/client.h"

static void print_policy(const cJSON *answer)
{
	const cJSON *policy = cJSON_GetObjectItem(answer, "policy"), *rule;
	struct table t = {0};

	printf("%s, default %s\n", json_text(answer, "mode"), json_text(policy, "defaultAction"));
	table_row(&t, 3, "ACTION", "TARGET", "PORTS");
	cJSON_ArrayForEach (rule, cJSON_GetObjectItem(policy, "egress")) {
		char *ports = cJSON_PrintUnformatted(cJSON_GetObjectItem(rule, "ports"));

		table_row(&t, 3, json_text(rule, "action"), json_text(rule, "target"),
			ports ? ports : "");
		cJSON_free(ports);
	}
	table_print(&t);
}

static void print_seen(const cJSON *seen)
{
	const cJSON *v;
	struct table t = {0};

	cJSON_ArrayForEach (v, cJSON_GetObjectItem(seen, "counters"))
		printf("%s %.0f\n", v->string, v->valuedouble);
	if (!cJSON_GetArraySize(cJSON_GetObjectItem(seen, "denied")))
		return;
	table_row(&t, 3, "DENIED", "REASON", "COUNT");
	cJSON_ArrayForEach (v, cJSON_GetObjectItem(seen, "denied")) {
		char count[32];

		snprintf(count, sizeof(count), "%.0f",
			cJSON_GetNumberValue(cJSON_GetObjectItem(v, "count")));
		table_row(&t, 3, json_text(v, "destination"), json_text(v, "reason"), count);
	}
	table_print(&t);
}

static int egress_show(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	_cleanup_answer_ struct answer policy = {0}, seen = {0};
	_cleanup_free_ char *path = NULL, *more = NULL;
	struct client c;
	struct err e;
	char id[64];
	int at, code;

	if (!client_begin(&c, &co,
		    "egress show SANDBOX\n\nShow what a sandbox may reach, what it has done since "
		    "it runs, and which destinations were denied.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	if (client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	path = client_path("/v1/sandboxes/%s/networkpolicy", id);
	more = client_path("/v1/mayfly/sandboxes/%s/egress", id);
	if (client_call(&c, "GET", path, NULL, &policy, &e) < 0 ||
		client_call(&c, "GET", more, NULL, &seen, &e) < 0)
		return complain(EXIT_FAILED, &e);
	if (co.json) {
		cJSON_AddItemToObject(policy.json, "seen", cJSON_Duplicate(seen.json, true));
		print_json(policy.json);
	} else {
		print_policy(policy.json);
		print_seen(seen.json);
	}
	return EXIT_OK;
}

static double before(const cJSON *list, const cJSON *entry)
{
	const cJSON *v;

	cJSON_ArrayForEach (v, list)
		if (!strcmp(json_text(v, "destination"), json_text(entry, "destination")) &&
			!strcmp(json_text(v, "reason"), json_text(entry, "reason")))
			return cJSON_GetNumberValue(cJSON_GetObjectItem(v, "count"));
	return 0;
}

/* What is new since the last look: a line for each place that was denied, and one for what went through. */
static void print_changes(const cJSON *was, const cJSON *is)
{
	const cJSON *v, *old = cJSON_GetObjectItem(was, "counters");
	char when[16];
	time_t now = time(NULL);
	bool any = false;

	strftime(when, sizeof(when), "%H:%M:%S", localtime(&now));
	cJSON_ArrayForEach (v, cJSON_GetObjectItem(is, "denied")) {
		double n = cJSON_GetNumberValue(cJSON_GetObjectItem(v, "count")) -
			   before(cJSON_GetObjectItem(was, "denied"), v);

		if (n > 0)
			printf("%s denied %s (%s) x %.0f\n", when, json_text(v, "destination"),
				json_text(v, "reason"), n);
	}
	cJSON_ArrayForEach (v, cJSON_GetObjectItem(is, "counters")) {
		const cJSON *o = cJSON_GetObjectItem(old, v->string);
		double n = v->valuedouble - (o ? o->valuedouble : 0);

		if (n != 0) {
			printf("%s %s %+.0f", any ? "" : when, v->string, n);
			any = true;
		}
	}
	if (any)
		putchar('\n');
	fflush(stdout);
}

static int egress_watch(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	_cleanup_free_ char *path = NULL;
	struct answer seen = {0}, last = {0};
	struct client c;
	struct err e;
	char id[64];
	int at, code;

	if (!client_begin(&c, &co,
		    "egress watch SANDBOX\n\nPrint each second what a sandbox has sent, received "
		    "and tried to reach. Ends with the sandbox, or by ^C.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	if (client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	path = client_path("/v1/mayfly/sandboxes/%s/egress", id);
	while (!client_interrupts && client_call(&c, "GET", path, NULL, &seen, &e) == 0) {
		print_changes(last.json, seen.json);
		answer_fini(&last);
		last = seen;
		seen = (struct answer){0};
		sleep(1); /* ^C ends it */
	}
	if (client_interrupts || (seen.status == 404 && last.json))
		code = EXIT_OK;
	else
		code = complain(EXIT_FAILED, &e);
	answer_fini(&last);
	answer_fini(&seen);
	return code;
}

/* One request that changes the policy, with a list made of the words. */
static int change(const char *method, const char *action, const char *usage, int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	_cleanup_answer_ struct answer a = {0};
	_cleanup_free_ char *path = NULL;
	cJSON *list;
	struct client c;
	struct err e;
	char id[64];
	int at, code, rc;

	if (!client_begin(&c, &co, usage, opts, ARRAY_LEN(opts), argc, argv, 2, &at, &code))
		return code;
	if (client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	list = cJSON_CreateArray();
	for (int i = at + 1; i < argc; i++) {
		cJSON *rule = action ? cJSON_CreateObject() : cJSON_CreateString(argv[i]);

		if (action) {
			cJSON_AddStringToObject(rule, "action", action);
			cJSON_AddStringToObject(rule, "target", argv[i]);
		}
		cJSON_AddItemToArray(list, rule);
	}
	path = client_path("/v1/sandboxes/%s/networkpolicy", id);
	rc = client_call(&c, method, path, list, &a, &e);
	cJSON_Delete(list);
	if (rc < 0)
		return complain(EXIT_FAILED, &e);
	if (co.json)
		print_json(a.json);
	return EXIT_OK;
}

static int egress_allow(int argc, char **argv)
{
	return change("PATCH", "allow",
		"egress allow SANDBOX TARGET...\n\nLet a sandbox reach names, *.NAMES, addresses "
		"or prefixes.\n",
		argc, argv);
}

static int egress_deny(int argc, char **argv)
{
	return change("PATCH", "deny",
		"egress deny SANDBOX TARGET...\n\nKeep a sandbox from names, *.NAMES, addresses "
		"or prefixes. Open connections to them end.\n",
		argc, argv);
}

static int egress_rm(int argc, char **argv)
{
	return change("DELETE", NULL,
		"egress rm SANDBOX TARGET...\n\nRemove the rules for these targets.\n", argc, argv);
}

static int egress_set(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	_cleanup_answer_ struct answer a = {0};
	_cleanup_free_ char *path = NULL;
	cJSON *body;
	struct client c;
	struct err e;
	char id[64];
	int at, code, rc;

	if (!client_begin(&c, &co,
		    "egress set SANDBOX open|deny\n\nReplace the whole policy: everything is "
		    "allowed, or nothing.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 2, &at, &code))
		return code;
	if (strcmp(argv[at + 1], "open") != 0 && strcmp(argv[at + 1], "deny") != 0) {
		fprintf(stderr, "mayfly: egress set: '%s' is not open or deny\n", argv[at + 1]);
		return EXIT_USAGE;
	}
	if (client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	body = cJSON_CreateObject();
	cJSON_AddStringToObject(
		body, "defaultAction", strcmp(argv[at + 1], "open") ? "deny" : "allow");
	path = client_path("/v1/sandboxes/%s/networkpolicy", id);
	rc = client_call(&c, "PUT", path, body, &a, &e);
	cJSON_Delete(body);
	return rc < 0 ? complain(EXIT_FAILED, &e) : EXIT_OK;
}

int cmd_egress(int argc, char **argv)
{
	static const struct command verbs[] = {
		{"show", egress_show,
			"show the policy, what was sent and received, and what was denied"},
		{"watch", egress_watch, "show the same as it happens"},
		{"allow", egress_allow, "let a sandbox reach more"},
		{"deny", egress_deny, "keep a sandbox from something"},
		{"rm", egress_rm, "remove rules"},
		{"set", egress_set, "replace the policy: open or deny"},
	};

	return command_run("mayfly egress", verbs, ARRAY_LEN(verbs), argc, argv);
}
