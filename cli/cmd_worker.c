/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_worker.c: `mayfly worker run`: one task of a worker that a worker.md describes (docs/examples/worker.md), as a run of the daemon.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/worker_file.h"
#include "lib/json.h"

#define INPUT_MAX MIB(1)

struct worker_opts {
	struct client_opts co;
	const char *input, *task, *context, *run_id;
};

/* A whole file, "-": standard input. To be freed. NULL: e has the error. */
static char *file_text(const char *path, size_t max, size_t *n, struct err *e)
{
	bool in = !strcmp(path, "-");
	_cleanup_close_ int fd = in ? dup(0) : open(path, O_RDONLY | O_CLOEXEC);
	char *text = malloc(max + 2);
	ssize_t got = 1;

	*n = 0;
	while (fd >= 0 && text && *n <= max && (got = read(fd, text + *n, max + 1 - *n)) > 0)
		*n += (size_t)got;
	if (fd < 0 || got < 0)
		err_set(e, errno, "%s", in ? "standard input" : path);
	else if (!text)
		err_set(e, ENOMEM, "%s", path);
	else if (*n > max)
		err_plain(e, EFBIG, "%s: longer than %zu bytes", path, max);
	else
		return text;
	free(text);
	return NULL;
}

static cJSON *worker_read(const char *path, struct err *e)
{
	size_t n;
	_cleanup_free_ char *text = file_text(path, WORKER_FILE_MAX, &n, e);
	cJSON *o = NULL;

	if (text && worker_file_read(&o, text, n, e) < 0)
		err_wrap(e, "%s", path);
	return o;
}

/* The file may repeat what the worker contract fixes. It must then say the same. */
static int worker_check(const cJSON *worker, struct err *e)
{
	static const char *const status[] = {
		"ok", "retryable_error", "invalid_request", "invalid_output"};
	static const char *const named[] = {"id", "name", "version"};
	const cJSON *c = json_obj(worker, "constraints"), *v;
	const char *key = json_str(c, "idempotency_key");

	for (size_t i = 0; i < ARRAY_LEN(named); i++)
		if (!json_field(worker, named[i]))
			return err_plain(e, EINVAL, "the front matter has no '%s'", named[i]);
	if (key && strcmp(key, "run_id") != 0)
		return err_plain(e, EINVAL,
			"constraints.idempotency_key is '%s'; it can only be run_id", key);
	cJSON_ArrayForEach (v, json_arr(c, "status_enum")) {
		bool known = false;

		for (size_t i = 0; i < ARRAY_LEN(status); i++)
			known = known || (cJSON_IsString(v) && !strcmp(v->valuestring, status[i]));
		if (!known)
			return err_plain(e, EINVAL,
				"constraints.status_enum has a status that a run cannot have; "
				"known are ok, retryable_error, invalid_request and "
				"invalid_output");
	}
	return 0;
}

static cJSON *input_read(const char *path, struct err *e)
{
	size_t n;
	_cleanup_free_ char *text = file_text(path, INPUT_MAX, &n, e);
	cJSON *o = NULL;

	if (text && json_read(&o, text, n, JSON_OBJECT, e) < 0)
		err_wrap(e, "%s", strcmp(path, "-") ? path : "standard input");
	return o;
}

/* The input from --task and the like, and what the file has for it. NULL: e has the error. */
static cJSON *input_make(const struct worker_opts *o, const cJSON *worker, struct err *e)
{
	const char *task = o->task ? o->task : json_str(worker, "task");
	_cleanup_json_ cJSON *context = NULL;
	uint8_t random[16];
	char id[33];
	cJSON *input;

	if (!task) {
		err_plain(e, EINVAL, "no task: give --input FILE or --task TEXT");
		return NULL;
	}
	if (!o->context)
		context = cJSON_CreateObject();
	else if (json_read(&context, o->context, strlen(o->context), JSON_OBJECT, e) < 0) {
		err_wrap(e, "--context");
		return NULL;
	}
	random_bytes(random, sizeof(random));
	for (size_t i = 0; i < sizeof(random); i++)
		snprintf(id + 2 * i, 3, "%02x", random[i]);
	input = cJSON_CreateObject();
	cJSON_AddStringToObject(input, "run_id", o->run_id ? o->run_id : id);
	cJSON_AddStringToObject(input, "task", task);
	cJSON_AddItemToObject(input, "context", take_ptr(context));
	return input;
}

/* The file says how the task is run (context.worker). The daemon checks the rest of the input. */
static int worker_into(cJSON *input, const cJSON *worker, struct err *e)
{
	static const char *const own[] = {"image", "template", "language", "env", "resource_limits",
		"input_schema", "output_schema"};
	static const char *const bounds[] = {"timeout_seconds", "max_attempts"};
	cJSON *context = cJSON_GetObjectItemCaseSensitive(input, "context"), *to;

	if (cJSON_GetObjectItemCaseSensitive(context, "worker"))
		return err_plain(e, EINVAL,
			"the input has context.worker, which is made from the worker's file");
	if (!cJSON_IsObject(context))
		return 0;
	to = cJSON_AddObjectToObject(context, "worker");
	for (size_t i = 0; i < ARRAY_LEN(own); i++)
		if (json_field(worker, own[i]))
			cJSON_AddItemToObject(
				to, own[i], cJSON_Duplicate(json_field(worker, own[i]), true));
	for (size_t i = 0; i < ARRAY_LEN(bounds); i++) {
		const cJSON *v = json_field(json_obj(worker, "constraints"), bounds[i]);

		if (v)
			cJSON_AddItemToObject(to, bounds[i], cJSON_Duplicate(v, true));
	}
	return 0;
}

static int exit_code(const char *status)
{
	static const struct {
		const char *status;
		int code;
	} codes[] = {{"ok", EXIT_OK}, {"invalid_output", EXIT_FAILED},
		{"invalid_request", EXIT_USAGE}, {"retryable_error", EX_TEMPFAIL}};

	for (size_t i = 0; i < ARRAY_LEN(codes); i++)
		if (!strcmp(status, codes[i].status))
			return codes[i].code;
	return EXIT_FAILED;
}

static int worker_run(int argc, char **argv)
{
	struct worker_opts o = {0};
	const struct opt opts[] = {
		{"input", 'i', OPT_STR, &o.input, "FILE",
			"the input {run_id, task, context} as JSON (-: standard input)"},
		{"task", 't', OPT_STR, &o.task, "TEXT",
			"the task, where no --input is given (default: `task` of FILE)"},
		{"context", 'c', OPT_STR, &o.context, "JSON", "context of the task (default: {})"},
		{"run-id", 0, OPT_STR, &o.run_id, "ID",
			"run id: a run with the same id gets the same answer (default: a new "
			"id)"},
		CLIENT_OPTS(o.co),
	};
	_cleanup_json_ cJSON *worker = NULL, *input = NULL;
	_cleanup_answer_ struct answer a = {0};
	struct client c;
	struct err e = {0};
	int at, code;

	if (!client_begin(&c, &o.co,
		    "worker run [OPTIONS] FILE\n\nRun one task of the worker that FILE describes, "
		    "a worker.md, in a sandbox of its own, and print\nthe answer {run_id, status, "
		    "result}. Exit code: 0 ok, 1 invalid_output, 2 invalid_request,\n75 "
		    "retryable_error.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	if (argc - at != 1) {
		fprintf(stderr, "mayfly: worker: name one FILE, after the options\n");
		return EXIT_USAGE;
	}
	if (o.input && (o.task || o.context || o.run_id)) {
		fprintf(stderr,
			"mayfly: worker: give --input, or --task, --context and --run-id\n");
		return EXIT_USAGE;
	}
	worker = worker_read(argv[at], &e);
	if (!worker || worker_check(worker, &e) < 0)
		return complain(EXIT_USAGE, &e);
	input = o.input ? input_read(o.input, &e) : input_make(&o, worker, &e);
	if (!input || worker_into(input, worker, &e) < 0)
		return complain(EXIT_USAGE, &e);
	if (client_call(&c, "POST", "/v1/mayfly/runs", input, &a, &e) < 0)
		return complain(EXIT_FAILED, &e);
	print_json(a.json);
	return exit_code(json_text(a.json, "status"));
}

int cmd_worker(int argc, char **argv)
{
	static const struct command table[] = {
		{"run", worker_run, "run one task of a worker"},
	};

	return command_run("mayfly worker", table, ARRAY_LEN(table), argc, argv);
}
