/* SPDX-License-Identifier: Apache-2.0
 *
 * client.h: the daemon as the command line sees it: HTTP only, by libcurl. Where it is: --url, else
 * OPEN_SANDBOX_DOMAIN (and OPEN_SANDBOX_PROTOCOL), else what `make up` left, else what an installed
 * package left, else a running `mayfly machine`, else 127.0.0.1:8080. The key: OPEN_SANDBOX_API_KEY,
 * else the one that `make up` or the package left.
 */
#pragma once

#include <cjson/cJSON.h>
#include <stdio.h>

#include "lib/opt.h"
#include "lib/buf.h"

struct client {
	char base[300];   /* "http://127.0.0.1:8080", no /v1 */
	char socket[108]; /* of "unix:///run/mayfly/api"; then base is http://localhost */
	char key[300];
	bool patient; /* the first ^C does not end a request: its answer must be known */
	/* Called at least about once a second while a request is under way, and often while bytes move. It may make requests of its own. */
	void (*tick)(void *arg);
	void *tick_arg;
	long limit_s; /* a whole request; 0: none */
};

/* The text of client.env ("NAME=value" lines): the user's own, else the host's. 0 or -errno. */
int client_settings(char *text, size_t cap);

/* The options of every command that asks the daemon, for its table of options. */
struct client_opts {
	const char *url;
	bool json, help;
};
#define CLIENT_OPTS(o)                                                                             \
	{"url", 0, OPT_STR, &(o).url, "URL", "the daemon, instead of OPEN_SANDBOX_DOMAIN"},        \
		{"json", 0, OPT_FLAG, &(o).json, NULL, "JSON on standard output"},                 \
	{                                                                                          \
		"help", 'h', OPT_FLAG, &(o).help, NULL, "this text"                                \
	}

/* Finds the daemon. url: NULL for where it is by default. */
void client_open(struct client *c, const char *url);
/* Reads options and finds the daemon. True: go on, *rest is the first word left; false: return
 * *code. `words`: the least number of words that must be left. */
bool client_begin(struct client *c, struct client_opts *co, const char *usage, const struct opt *o,
	size_t n, int argc, char **argv, int words, int *rest, int *code);

struct answer {
	long status;
	struct buf body;
	cJSON *json;     /* of the body, if it is JSON */
	uint64_t cursor; /* of a command's logs: where the next part begins */
};
void answer_fini(struct answer *a);
#define _cleanup_answer_ _cleanup_(answer_fini)

/* path from /v1 on. body (borrowed) may be NULL. 0 if the status is 2xx; else -errno with e in
 * words for a person, and what to do. */
int client_call(const struct client *c, const char *method, const char *path, const cJSON *body,
	struct answer *a, struct err *e);
/* The same, the body handed to data() as it comes; data() returns false to end early.
 * interrupted() is called at the first and the second ^C; the third ends the request. NULL: the first ends it. */
struct client_stream {
	bool (*data)(void *arg, const char *p, size_t n);
	void (*interrupted)(void *arg);
	void *arg;
	FILE *upload;     /* NULL, or what the multipart upload reads its file part from */
	const char *meta; /* JSON of the metadata part */
};
int client_stream(const struct client *c, const char *method, const char *path, const cJSON *body,
	struct client_stream *s, struct err *e);
/* "a/b c" -> "a%2Fb%20c", to be freed */
char *client_escape(const char *s);
char *client_path(const char *fmt, ...) _printf_(1, 2); /* to be freed; aborts without memory */

/* A sandbox by its name (metadata "name"), its id or the beginning of one; into id[64]. */
int client_resolve(const struct client *c, const char *word, char id[64], struct err *e);
/* A snapshot, in the same ways. */
int client_resolve_snapshot(const struct client *c, const char *word, char id[64], struct err *e);

/* Runs the code in a file ("-": standard input) in the default context of a language (NULL: by the file's suffix), as `mayfly code` does. The exit code. */
int code_run_file(
	const struct client *c, const char *sandbox, const char *language, const char *file);

/* Writes one stream to a file of the sandbox, and makes the folders above the file. */
int copy_upload(const struct client *c, const char *id, FILE *from, const char *to, unsigned mode,
	struct err *e);

/* Copies as `mayfly cp` does it: a local path or "-" into the sandbox's path, and back. */
int copy_in(
	const struct client *c, const char *from, const char *id, const char *to, struct err *e);
int copy_out(
	const struct client *c, const char *id, const char *from, const char *to, struct err *e);
/* "NAME:PATH" -> both; false: a local path */
bool copy_remote_of(const char *word, char *name, size_t cap, const char **path);

/* A sandbox that lives as long as this command, with one volume as --volume has it. While requests are under way its expiry is
 * renewed; if this process is killed, it expires. Call passing_end() also after a failure. */
struct passing;
struct passing *passing_begin(
	struct client *c, const char *image, const char *volume, struct err *e);
const char *passing_id(const struct passing *p);
void passing_end(struct client *c, struct passing *p); /* NULL is fine */

/* ---- output */
void print_json(const cJSON *j);                        /* indented */
const char *json_text(const cJSON *o, const char *key); /* "" if absent; printable */
/* Columns as wide as their widest cell; cells are copied. The first row is the heading. */
struct table {
	char ***rows;
	size_t nrows, cols;
};
void table_row(struct table *t, size_t cols, ...);
void table_print(struct table *t); /* and frees it */
/* "3 min ago", "in 9 min" of an RFC 3339 time; "-" for none */
void age_text(const char *rfc3339, char *to, size_t cap);

extern volatile int client_interrupts; /* how often the user pressed ^C */
/* From now on SIGTERM and SIGHUP end the request under way instead of the process, so that what was made can be removed. */
void client_catch_end(void);
extern volatile int client_ending; /* 0, or the signal that came */
