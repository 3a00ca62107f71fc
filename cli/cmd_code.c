/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_code.c: `mayfly code`: runs code in a context of a sandbox's code interpreter. What the code prints goes to our standard output and error, its value to
 * standard output, pictures into files. The first two ^C interrupt the cell, the third ends us. The events come from a guest: text is printed as it is, as a command's.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "lib/json.h"

#define EVENT_MAX MIB(64)
#define CODE_MAX  MIB(8)

struct code_run {
	const struct client *c;
	const char *sandbox, *folder; /* where pictures go */
	char context[64];
	struct buf in;
	unsigned int pictures; /* written so far */
	int code;              /* -1: no end was seen */
	bool broken;
};

/* ---- pictures */

static int base64_value(char c)
{
	static const char letters[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *at = c ? strchr(letters, c) : NULL;

	return at ? (int)(at - letters) : -1;
}

/* Blanks between are passed over; stops at the padding, or at what is no base64. */
static void base64_decode(struct buf *out, const char *s)
{
	unsigned int bits = 0, n = 0;

	for (; *s && *s != '='; s++) {
		int v = base64_value(*s);

		if (v < 0 && strchr(" \r\n\t", *s))
			continue;
		if (v < 0)
			return;
		bits = bits << 6 | (unsigned int)v;
		if (++n % 4 == 0) {
			buf_u8(out, (uint8_t)(bits >> 16));
			buf_u8(out, (uint8_t)(bits >> 8));
			buf_u8(out, (uint8_t)bits);
		}
	}
	if (n % 4 == 2)
		buf_u8(out, (uint8_t)(bits >> 4));
	if (n % 4 == 3) {
		buf_u8(out, (uint8_t)(bits >> 10));
		buf_u8(out, (uint8_t)(bits >> 2));
	}
}

static const struct {
	const char *mime, *suffix;
	bool base64;
} kinds[] = {
	{"image/png", "png", true},
	{"image/jpeg", "jpg", true},
	{"image/svg+xml", "svg", false},
	{"application/pdf", "pdf", true},
};

/* A file of its own: one that is there already is left alone, so that code of a guest cannot replace a file of ours. */
static void picture_write(struct code_run *x, const char *suffix, const void *p, size_t n)
{
	char path[4200];
	int fd = -1;

	while (fd < 0 && x->pictures < 10000) {
		snprintf(path, sizeof(path), "%s/figure-%u.%s", x->folder, ++x->pictures, suffix);
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
		if (fd < 0 && errno != EEXIST)
			break;
	}
	if (fd < 0 || write_full(fd, p, n) < 0)
		fprintf(stderr, "mayfly: cannot write %s: %s\n", path, strerror(errno));
	else
		fprintf(stderr, "mayfly: a picture is in %s\n", path);
	if (fd >= 0)
		close(fd);
}

/* The richest form that we can show: a picture, else text. */
static void take_result(struct code_run *x, const cJSON *results)
{
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		const char *v = json_str(results, kinds[i].mime);
		struct buf b;

		if (!v)
			continue;
		buf_init(&b, EVENT_MAX);
		if (kinds[i].base64)
			base64_decode(&b, v);
		else
			buf_put(&b, v, strlen(v));
		if (!b.bad)
			picture_write(x, kinds[i].suffix, b.p, b.len);
		buf_fini(&b);
		return;
	}
	if (json_str(results, "text"))
		puts(json_str(results, "text"));
	fflush(stdout);
}

/* ---- events */

static void take_error(const cJSON *err)
{
	const cJSON *line;

	cJSON_ArrayForEach (line, json_arr(err, "traceback"))
		if (cJSON_IsString(line))
			fprintf(stderr, "%s\n", line->valuestring);
}

static void take_event(struct code_run *x, const char *p, size_t n)
{
	_cleanup_json_ cJSON *j = NULL;
	const char *type, *text;

	if (json_read(&j, p, n, JSON_OBJECT, NULL) < 0)
		return;
	type = json_text(j, "type");
	text = json_str(j, "text") ? json_str(j, "text") : "";
	if (!strcmp(type, "init")) {
		snprintf(x->context, sizeof(x->context), "%s", text);
	} else if (!strcmp(type, "stdout")) {
		fputs(text, stdout);
		fflush(stdout);
	} else if (!strcmp(type, "stderr")) {
		fputs(text, stderr);
	} else if (!strcmp(type, "result")) {
		take_result(x, json_obj(j, "results"));
	} else if (!strcmp(type, "execution_complete")) {
		x->code = 0;
	} else if (!strcmp(type, "error")) {
		x->code = EXIT_FAILED;
		take_error(json_obj(j, "error"));
	}
}

static void interrupt(void *arg)
{
	struct code_run *x = arg;
	_cleanup_free_ char *path =
		client_path("/v1/sandboxes/%s/proxy/44772/code?id=%s", x->sandbox, x->context);
	_cleanup_answer_ struct answer a;
	struct err e;

	if (*x->context)
		client_call(x->c, "DELETE", path, NULL, &a, &e);
}

static bool take_bytes(void *arg, const char *p, size_t n)
{
	struct code_run *x = arg;
	const char *sep;

	buf_put(&x->in, p, n);
	if (x->in.bad) {
		x->broken = true;
		return false;
	}
	while ((sep = memmem(x->in.p, x->in.len, "\n\n", 2))) {
		size_t len = (size_t)(sep - (const char *)x->in.p);

		take_event(x, (const char *)x->in.p, len);
		buf_consume(&x->in, len + 2);
		if (ferror(stdout)) {
			interrupt(x);
			return false;
		}
	}
	return true;
}

/* ---- one cell */

struct code_opts {
	struct client_opts co;
	const char *language, *context, *pictures, *file;
};

/* The exit code. */
static int run_cell(struct code_run *x, const struct code_opts *o, const char *text)
{
	_cleanup_free_ char *path = client_path("/v1/sandboxes/%s/proxy/44772/code", x->sandbox);
	struct client_stream s = {.data = take_bytes, .interrupted = interrupt, .arg = x};
	_cleanup_json_ cJSON *body = cJSON_CreateObject();
	cJSON *ctx = cJSON_AddObjectToObject(body, "context");
	struct err e = {0};
	int rc;

	cJSON_AddStringToObject(body, "code", text);
	if (o->context)
		cJSON_AddStringToObject(ctx, "id", o->context);
	else
		cJSON_AddStringToObject(ctx, "language", o->language);
	x->code = -1;
	x->broken = false;
	buf_init(&x->in, EVENT_MAX);
	rc = client_stream(x->c, "POST", path, body, &s, &e);
	buf_fini(&x->in);
	if (rc < 0 && x->code < 0)
		return complain(EXIT_FAILED, &e);
	if (x->code < 0) {
		err_plain(&e, EPROTO,
			x->broken ? "an event of the code is too long"
				  : "the stream ended before the code did");
		return complain(EXIT_FAILED, &e);
	}
	return x->code;
}

static int read_all(FILE *from, struct buf *b, struct err *e)
{
	char part[65536];
	size_t n;

	while ((n = fread(part, 1, sizeof(part), from)) > 0)
		buf_put(b, part, n);
	if (ferror(from))
		return err_set(e, errno, "reading the code");
	return b->bad ? err_plain(e, EFBIG, "the code is longer than %llu bytes",
				(unsigned long long)CODE_MAX)
		      : 0;
}

/* Does the line begin a block, which an empty line ends? */
static bool line_continues(const char *line, size_t n)
{
	while (n && strchr(" \t\r\n", line[n - 1]))
		n--;
	return n && strchr(":{\\(", line[n - 1]);
}

/* Each line is a cell. A block of lines is one cell, which ends at an empty line. */
static int interactive(struct code_run *x, const struct code_opts *o)
{
	_cleanup_free_ char *line = NULL;
	size_t cap = 0;
	bool block = false;
	struct buf cell;
	ssize_t n;

	buf_init(&cell, CODE_MAX);
	for (;;) {
		fputs(block ? "... " : ">>> ", stderr);
		n = getline(&line, &cap, stdin);
		if (n < 0)
			break;
		if (cell.len + (size_t)n <= CODE_MAX)
			buf_put(&cell, line, (size_t)n);
		block = (block && n > 1) || line_continues(line, (size_t)n);
		if (block)
			continue;
		if (strspn(buf_cstr(&cell), " \t\r\n") < cell.len)
			run_cell(x, o, buf_cstr(&cell));
		buf_reset(&cell);
	}
	fputc('\n', stderr);
	buf_fini(&cell);
	return EXIT_OK;
}

/* From the argument, a file, or what comes on standard input. */
static int run_text(struct code_run *x, const struct code_opts *o, const char *text)
{
	FILE *from = stdin;
	struct err e = {0};
	struct buf b;
	int rc;

	if (text)
		return run_cell(x, o, text);
	if (o->file && strcmp(o->file, "-") != 0)
		from = fopen(o->file, "re");
	if (!from) {
		err_set(&e, errno, "%s", o->file);
		return complain(EXIT_FAILED, &e);
	}
	buf_init(&b, CODE_MAX);
	rc = read_all(from, &b, &e);
	if (from != stdin)
		fclose(from);
	rc = rc < 0 ? complain(EXIT_FAILED, &e) : run_cell(x, o, buf_cstr(&b));
	buf_fini(&b);
	return rc;
}

/* "python", unless the name of the file tells. */
static const char *code_language(const char *file)
{
	static const char *const suffixes[][2] = {{".sh", "bash"}, {".js", "javascript"},
		{".ts", "typescript"}, {".java", "java"}, {".go", "go"}};
	size_t n = file ? strlen(file) : 0;

	for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
		size_t len = strlen(suffixes[i][0]);

		if (n > len && !strcmp(file + n - len, suffixes[i][0]))
			return suffixes[i][1];
	}
	return "python";
}

int code_run_file(
	const struct client *c, const char *sandbox, const char *language, const char *file)
{
	struct code_run x = {.c = c, .sandbox = sandbox, .folder = "."};
	const struct code_opts o = {
		.language = language ? language : code_language(file), .file = file};

	return run_text(&x, &o, NULL);
}

int cmd_code(int argc, char **argv)
{
	struct code_opts o = {.pictures = "."};
	const struct opt opts[] = {CLIENT_OPTS(o.co),
		{"language", 'l', OPT_STR, &o.language, "NAME",
			"python, bash, javascript, typescript, java, go, or another language for "
			"which the sandbox has a kernel (by FILE's suffix, or python)"},
		{"context", 'c', OPT_STR, &o.context, "ID",
			"run it in this context, instead of the language's default one"},
		{"file", 'f', OPT_STR, &o.file, "FILE", "run the code in FILE (-: standard input)"},
		{"pictures", 0, OPT_STR, &o.pictures, "DIR",
			"write pictures into DIR (default: the working directory)"}};
	struct code_run x = {0};
	struct client c;
	struct err e = {0};
	char id[64];
	int rest, code;

	if (!client_begin(&c, &o.co,
		    "code [OPTIONS] SANDBOX [CODE]\n\nRun code in a sandbox's code interpreter. "
		    "Without CODE, run what comes on standard\ninput; on a terminal, run each "
		    "line when it is typed.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &rest, &code))
		return code;
	if (client_resolve(&c, argv[rest], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	if (!o.language)
		o.language = code_language(o.file);
	x.c = &c;
	x.sandbox = id;
	x.folder = o.pictures;
	if (!argv[rest + 1] && !o.file && isatty(0))
		return interactive(&x, &o);
	return run_text(&x, &o, argv[rest + 1]);
}
