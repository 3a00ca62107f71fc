/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_watch.c: `mayfly logs`, `events`, `stats`, `stop` and `wait`: what becomes of sandboxes. The
 * daemon is asked again after a moment where it has no stream for that. Output, states and numbers
 * come from the network.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/client.h"

#define LOGS_MS    250
#define KEPT_BYTES KIB(64) /* of an entrypoint's output */
#define STATE_MS   200
#define STATS_MS   2000

/* False: the user pressed ^C. */
static bool rest(int ms)
{
	if (!client_interrupts)
		poll(NULL, 0, ms);
	return !client_interrupts;
}

/* The answer of GET /v1/sandboxes/{id}; its state in *state. */
static int look(
	const struct client *c, const char *id, struct answer *a, const char **state, struct err *e)
{
	_cleanup_free_ char *path = client_path("/v1/sandboxes/%s", id);
	int rc = client_call(c, "GET", path, NULL, a, e);

	*state = rc < 0 ? "" : json_text(cJSON_GetObjectItem(a->json, "status"), "state");
	return rc;
}

static bool has_ended(const char *state)
{
	return !strcmp(state, "Terminated") || !strcmp(state, "Failed");
}

/* ---- logs */

static bool print_bytes(void *arg, const char *p, size_t n)
{
	return fwrite(p, 1, n, stdout) == n;
}

/* Prints from *from on. 0, or -errno when there is no such command any more. */
static int print_part(
	const struct client *c, const char *id, const char *command, uint64_t *from, struct err *e)
{
	_cleanup_free_ char *path =
		client_path("/v1/sandboxes/%s/proxy/44772/command/%s/logs?cursor=%llu", id, command,
			(unsigned long long)*from);
	_cleanup_answer_ struct answer a = {0};
	int rc = client_call(c, "GET", path, NULL, &a, e);

	if (rc < 0)
		return rc;
	fwrite(a.body.p, 1, a.body.len, stdout);
	fflush(stdout);
	*from = a.cursor;
	return 0;
}

/* -1: it runs; else it has ended. */
static int command_ended(const struct client *c, const char *id, const char *command)
{
	_cleanup_free_ char *path =
		client_path("/v1/sandboxes/%s/proxy/44772/command/status/%s", id, command);
	_cleanup_answer_ struct answer a = {0};
	struct err e;

	if (client_call(c, "GET", path, NULL, &a, &e) < 0)
		return 0;
	return cJSON_IsTrue(cJSON_GetObjectItem(a.json, "running")) ? -1 : 0;
}

/* Prints what the daemon keeps of the output of an entrypoint that has ended, from byte `from` on. Of more than KEPT_BYTES only the end is kept,
 * and its offset is not known: then nothing is printed. */
static void print_rest(const struct client *c, const char *id, uint64_t from)
{
	_cleanup_free_ char *path = client_path("/v1/sandboxes/%s/diagnostics/logs?tail=10000", id);
	_cleanup_answer_ struct answer a = {0};
	struct err e;

	if (client_call(c, "GET", path, NULL, &a, &e) < 0 || a.body.len >= KEPT_BYTES)
		return;
	if (a.body.len > from)
		fwrite(a.body.p + from, 1, a.body.len - from, stdout);
	fflush(stdout);
}

/* What a command prints, until it has ended or ^C. A sandbox's entrypoint is a command, too. */
static int follow(const struct client *c, const char *id, const char *command)
{
	uint64_t from = 0;
	bool over = false;
	struct err e;

	do {
		bool ended = command_ended(c, id, command) >= 0;

		if (print_part(c, id, command, &from, &e) < 0) {
			_cleanup_answer_ struct answer a = {0};
			const char *state;

			/* the sandbox has ended meanwhile */
			if (from && look(c, id, &a, &state, &e) == 0 && has_ended(state)) {
				if (!strcmp(command, "entrypoint"))
					print_rest(c, id, from);
				return EXIT_OK;
			}
			return complain(EXIT_FAILED, &e);
		}
		over = ended;
	} while (!over && rest(LOGS_MS));
	return EXIT_OK;
}

int cmd_logs(int argc, char **argv)
{
	struct client_opts co = {0};
	uint64_t tail = 0;
	bool on = false;
	const struct opt opts[] = {
		{"follow", 'f', OPT_FLAG, &on, NULL, "keep printing what comes"},
		{"tail", 'n', OPT_UINT, &tail, "LINES", "print only the last LINES"},
		CLIENT_OPTS(co),
	};
	struct client_stream s = {.data = print_bytes};
	_cleanup_free_ char *path = NULL, *command = NULL;
	struct client c;
	struct err e;
	char id[64];
	int at, code;

	if (!client_begin(&c, &co,
		    "logs [OPTIONS] SANDBOX [COMMAND-ID]\n\nPrint the output of the entrypoint, or "
		    "of a command that was started detached.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	if (client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	command = client_escape(at + 1 < argc ? argv[at + 1] : "entrypoint");
	if (on)
		return follow(&c, id, command);
	if (at + 1 < argc)
		path = client_path("/v1/sandboxes/%s/proxy/44772/command/%s/logs", id, command);
	else if (co.json)
		path = client_path("/v1/sandboxes/%s/diagnostics/logs?scope=container", id);
	else
		path = client_path("/v1/sandboxes/%s/diagnostics/logs?tail=%llu", id,
			(unsigned long long)(tail ? tail : 10000));
	if (client_stream(&c, "GET", path, NULL, &s, &e) < 0)
		return complain(EXIT_FAILED, &e);
	return EXIT_OK;
}

int cmd_events(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	struct client_stream s = {.data = print_bytes};
	_cleanup_free_ char *path = NULL;
	struct client c;
	struct err e;
	char id[64];
	int at, code;

	if (!client_begin(&c, &co,
		    "events SANDBOX\n\nShow what happened to a sandbox, the newest first.\n", opts,
		    ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	if (client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	path = client_path("/v1/sandboxes/%s/diagnostics/events?%s", id,
		co.json ? "scope=runtime" : "limit=500");
	if (client_stream(&c, "GET", path, NULL, &s, &e) < 0)
		return complain(EXIT_FAILED, &e);
	return EXIT_OK;
}

/* ---- stop and wait */

/* The exit code in the message of the status: "exited with code 3", "signal 9 (code 137)". */
static int exit_code(const cJSON *status)
{
	const char *code = strstr(json_text(status, "message"), "code ");
	int n = 0;

	return code && sscanf(code, "code %d", &n) == 1 ? n : EXIT_FAILED;
}

/* 0, or -errno. *exit: the entrypoint's exit code. */
static int until_ended(const struct client *c, const char *id, int *exit, struct err *e)
{
	do {
		_cleanup_answer_ struct answer a = {0};
		const char *state;
		int rc = look(c, id, &a, &state, e);

		if (rc < 0)
			return rc;
		if (has_ended(state)) {
			*exit = exit_code(cJSON_GetObjectItem(a.json, "status"));
			return 0;
		}
	} while (rest(STATE_MS));
	return err_plain(e, EINTR, "interrupted");
}

int cmd_wait(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	struct client c;
	struct err e;
	int at, code;

	if (!client_begin(&c, &co,
		    "wait SANDBOX...\n\nWait until sandboxes have ended, and print the exit code "
		    "of each entrypoint.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	for (code = EXIT_OK; at < argc; at++) {
		char id[64];
		int exit;

		if (client_resolve(&c, argv[at], id, &e) < 0 || until_ended(&c, id, &exit, &e) < 0)
			code = complain(EXIT_FAILED, &e);
		else
			printf("%d\n", exit);
		fflush(stdout);
	}
	return code;
}

int cmd_stop(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	struct client c;
	struct err e;
	int at, code, exit;

	if (!client_begin(&c, &co,
		    "stop SANDBOX...\n\nSend SIGTERM to the entrypoint, and SIGKILL 3 seconds "
		    "later "
		    "if it still runs.\nThe sandbox has ended then; `mayfly rm` removes it.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	for (code = EXIT_OK; at < argc; at++) {
		_cleanup_answer_ struct answer a = {0};
		_cleanup_free_ char *path = NULL;
		char id[64];

		if (client_resolve(&c, argv[at], id, &e) == 0) {
			path = client_path(
				"/v1/sandboxes/%s/proxy/44772/command?id=entrypoint", id);
			if (client_call(&c, "DELETE", path, NULL, &a, &e) == 0 &&
				until_ended(&c, id, &exit, &e) == 0)
				continue;
		}
		code = complain(EXIT_FAILED, &e);
	}
	return code;
}

/* ---- stats */

static double number(const cJSON *o, const char *key)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

	return cJSON_IsNumber(v) ? v->valuedouble : 0;
}

/* One sandbox's numbers; none if it does not run. */
static void stats_row(const struct client *c, struct table *t, cJSON *all, const cJSON *box)
{
	const char *id = json_text(box, "id");
	_cleanup_free_ char *path = client_path("/v1/sandboxes/%s/proxy/44772/metrics", id);
	_cleanup_answer_ struct answer a = {0};
	char cpu[32], memory[64], share[32];
	double used, total;
	struct err e;

	if (client_call(c, "GET", path, NULL, &a, &e) < 0)
		return;
	used = number(a.json, "mem_used_mib");
	total = number(a.json, "mem_total_mib");
	snprintf(cpu, sizeof(cpu), "%.1f %%", number(a.json, "cpu_used_pct"));
	snprintf(memory, sizeof(memory), "%.0f of %.0f MiB", used, total);
	snprintf(share, sizeof(share), "%.1f %%", total > 0 ? 100 * used / total : 0.0);
	table_row(t, 5, id, json_text(cJSON_GetObjectItem(box, "metadata"), "name"), cpu, memory,
		share);
	cJSON_AddStringToObject(a.json, "id", id);
	cJSON_AddItemToArray(all, cJSON_Duplicate(a.json, true));
}

/* Of the sandbox `only`, or of all that run. */
static int stats_once(const struct client *c, const char *only, bool json, struct err *e)
{
	struct table t = {0};
	cJSON *all = cJSON_CreateArray();
	bool more = true;
	int rc = 0;

	table_row(&t, 5, "ID", "NAME", "CPU", "MEMORY", "USED");
	for (int page = 1; more && rc == 0; page++) {
		_cleanup_free_ char *path =
			only ? client_path("/v1/sandboxes/%s", only)
			     : client_path(
				       "/v1/sandboxes?state=Running&page=%d&pageSize=200", page);
		_cleanup_answer_ struct answer a = {0};
		const cJSON *i;

		rc = client_call(c, "GET", path, NULL, &a, e);
		if (only && rc == 0)
			stats_row(c, &t, all, a.json);
		else
			cJSON_ArrayForEach (i, cJSON_GetObjectItem(a.json, "items"))
				stats_row(c, &t, all, i);
		more = !only && cJSON_IsTrue(cJSON_GetObjectItem(
					cJSON_GetObjectItem(a.json, "pagination"), "hasNextPage"));
	}
	if (rc == 0 && json)
		print_json(all);
	if (rc == 0 && !json)
		table_print(&t);
	cJSON_Delete(all);
	return rc;
}

int cmd_stats(int argc, char **argv)
{
	struct client_opts co = {0};
	bool once = false;
	const struct opt opts[] = {
		{"no-stream", 0, OPT_FLAG, &once, NULL, "print once and end"},
		CLIENT_OPTS(co),
	};
	struct client c;
	struct err e;
	char id[64] = "";
	int at, code;

	if (!client_begin(&c, &co,
		    "stats [OPTIONS] [SANDBOX]\n\nShow CPU and memory of a sandbox, or of all that "
		    "run, every 2 seconds until ^C.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 0, &at, &code))
		return code;
	if (at < argc && client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	do {
		/* a terminal shows the newest numbers in the place of the last ones */
		if (!once && isatty(1))
			fputs("\033[H\033[J", stdout);
		if (stats_once(&c, *id ? id : NULL, co.json, &e) < 0)
			return client_interrupts ? EXIT_OK : complain(EXIT_FAILED, &e);
		fflush(stdout);
	} while (!once && rest(STATS_MS));
	return EXIT_OK;
}
