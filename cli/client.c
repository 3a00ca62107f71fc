/* SPDX-License-Identifier: Apache-2.0
 *
 * client.c: requests to the daemon. `mayfly` only. Answers come from the network: parsed by cJSON,
 * shown printable.
 */
#include "cli/client.h"

#include <curl/curl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/appliance/machine.h"
#include "cli/run.h"
#include "lib/json.h"

#define BODY_MAX MIB(256)

volatile int client_interrupts, client_ending;

static void on_sigint(int sig)
{
	client_interrupts++;
}

static void on_end(int sig)
{
	client_ending = sig;
	client_interrupts++;
}

void client_catch_end(void)
{
	static const int ends[] = {SIGTERM, SIGHUP};
	struct sigaction sa = {.sa_handler = on_end}, was;

	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		/* nohup: it is ignored, and stays so */
		if (!sigaction(ends[i], NULL, &was) && was.sa_handler != SIG_IGN)
			sigaction(ends[i], &sa, NULL);
}

/* ---- where the daemon is */

static void base_from(struct client *c, const char *domain)
{
	const char *proto = getenv("OPEN_SANDBOX_PROTOCOL");
	size_t n;

	if (!strncmp(domain, "unix://", 7)) {
		snprintf(c->socket, sizeof(c->socket), "%s", domain + 7);
		domain = "http://localhost";
	}
	if (strstr(domain, "://"))
		snprintf(c->base, sizeof(c->base), "%s", domain);
	else
		snprintf(c->base, sizeof(c->base), "%s://%s", proto && *proto ? proto : "http",
			domain);
	n = strlen(c->base);
	while (n && c->base[n - 1] == '/')
		c->base[--n] = 0;
	if (n > 3 && !strcmp(c->base + n - 3, "/v1"))
		c->base[n - 3] = 0;
}

int client_settings(char *text, size_t cap)
{
	char path[PATH_MAX];
	struct err e;

	if (machine_root(path, sizeof(path), &e) == 0) {
		snprintf(path + strlen(path) - strlen("/machine"), sizeof("/client.env"),
			"/client.env");
		if (file_read(path, text, cap) == 0)
			return 0;
	}
	return file_read("/etc/mayfly/client.env", text, cap);
}

/* A value of the environment, else what `make up` or the package left ("NAME=value" lines). */
static void setting(const char *name, char *to, size_t cap)
{
	const char *v = getenv(name);
	char text[2048], *save = NULL;
	size_t n = strlen(name);

	snprintf(to, cap, "%s", v ? v : "");
	if (v || client_settings(text, sizeof(text)) < 0)
		return;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		if (!strncmp(line, name, n) && line[n] == '=')
			snprintf(to, cap, "%s", line + n + 1);
}

static void client_find(struct client *c, const char *url)
{
	char domain[256], local[64] = "127.0.0.1:8080";
	const char *name = getenv("MAYFLY_MACHINE");
	struct machine m;
	struct err e;

	setting("OPEN_SANDBOX_API_KEY", c->key, sizeof(c->key));
	setting("OPEN_SANDBOX_DOMAIN", domain, sizeof(domain));
	if (url || *domain) {
		base_from(c, url ? url : domain);
		return;
	}
	if (machine_open(&m, name && *name ? name : "default", &e) == 0) {
		if (machine_is_running(&m, true) && machine_load(&m) == 0 && m.port)
			snprintf(
				local, sizeof(local), "127.0.0.1:%llu", (unsigned long long)m.port);
		machine_close(&m);
	}
	base_from(c, local);
}

void client_open(struct client *c, const char *url)
{
	struct sigaction sa = {.sa_handler = on_sigint};

	*c = (struct client){0};
	client_find(c, url);
	curl_global_init(CURL_GLOBAL_DEFAULT);
	sigaction(SIGINT, &sa, NULL);
	signal(SIGPIPE, SIG_IGN);
}

bool client_begin(struct client *c, struct client_opts *co, const char *usage, const struct opt *o,
	size_t n, int argc, char **argv, int words, int *rest, int *code)
{
	struct err e;
	int at;

	if (opt_parse(o, n, argc, argv, &at, &e) < 0) {
		*code = complain(EXIT_USAGE, &e);
		return false;
	}
	if (co->help || argc - at < words) {
		fprintf(co->help ? stdout : stderr, "usage: mayfly %s\n", usage);
		if (co->help)
			opt_help(stdout, o, n);
		*code = co->help ? EXIT_OK : EXIT_USAGE;
		return false;
	}
	*rest = at;
	client_open(c, co->url);
	return true;
}

/* ---- requests */

struct transfer {
	const struct client *c;
	CURL *curl;
	struct curl_slist *headers;
	char *text, *url;
	curl_mime *mime;
	struct client_stream *stream;
	struct buf error; /* the body of a failed streamed request */
	struct buf *whole;
	int interrupts;
	bool stopped, patient;
};

static void transfer_fini(struct transfer *t)
{
	curl_slist_free_all(t->headers);
	curl_mime_free(t->mime);
	curl_easy_cleanup(t->curl);
	cJSON_free(t->text);
	free(t->url);
	buf_fini(&t->error);
}

void answer_fini(struct answer *a)
{
	buf_fini(&a->body);
	cJSON_Delete(a->json);
	a->json = NULL;
}

static size_t take_bytes(char *p, size_t size, size_t n, void *arg)
{
	struct transfer *t = arg;
	long status = 0;

	n *= size;
	curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
	if (t->whole || status < 200 || status > 299) {
		struct buf *b = t->whole ? t->whole : &t->error;

		buf_put(b, p, n);
		return b->bad ? 0 : n;
	}
	if (!t->stream->data(t->stream->arg, p, n)) {
		t->stopped = true;
		return 0;
	}
	return n;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
	struct transfer *t = arg;

	if (t->c->tick)
		t->c->tick(t->c->tick_arg);
	if (client_ending && !t->patient)
		return 1;
	if (client_interrupts == t->interrupts || (t->patient && client_interrupts < 2))
		return 0;
	t->interrupts = client_interrupts;
	if (t->stream && t->stream->interrupted && client_interrupts < 3) {
		t->stream->interrupted(t->stream->arg);
		return 0;
	}
	return 1;
}

static size_t give_bytes(char *to, size_t size, size_t n, void *arg)
{
	return fread(to, size, n, arg);
}

static void set_upload(struct transfer *t, const struct client_stream *s)
{
	curl_mimepart *p;

	t->mime = curl_mime_init(t->curl);
	p = curl_mime_addpart(t->mime);
	curl_mime_name(p, "metadata");
	curl_mime_filename(p, "metadata");
	curl_mime_type(p, "application/json");
	curl_mime_data(p, s->meta, CURL_ZERO_TERMINATED);
	p = curl_mime_addpart(t->mime);
	curl_mime_name(p, "file");
	curl_mime_filename(p, "file");
	curl_mime_type(p, "application/octet-stream");
	curl_mime_data_cb(p, -1, give_bytes, NULL, NULL, s->upload);
	curl_easy_setopt(t->curl, CURLOPT_MIMEPOST, t->mime);
}

static int transfer_init(struct transfer *t, const struct client *c, const char *method,
	const char *path, const cJSON *body)
{
	char key[330];

	t->curl = curl_easy_init();
	if (!t->curl || asprintf(&t->url, "%s%s", c->base, path) < 0)
		return -ENOMEM;
	buf_init(&t->error, MIB(1));
	t->c = c;
	t->patient = c->patient;
	t->interrupts = client_interrupts;
	if (c->key[0]) {
		snprintf(key, sizeof(key), "OPEN-SANDBOX-API-KEY: %s", c->key);
		t->headers = curl_slist_append(t->headers, key);
	}
	t->headers = curl_slist_append(t->headers, "Expect:");
	curl_easy_setopt(t->curl, CURLOPT_URL, t->url);
	if (c->socket[0])
		curl_easy_setopt(t->curl, CURLOPT_UNIX_SOCKET_PATH, c->socket);
	curl_easy_setopt(t->curl, CURLOPT_NOPROXY, "*");
	curl_easy_setopt(t->curl, CURLOPT_PATH_AS_IS, 1L);
	curl_easy_setopt(t->curl, CURLOPT_CONNECTTIMEOUT, 10L);
	curl_easy_setopt(t->curl, CURLOPT_TIMEOUT, c->limit_s);
	curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, take_bytes);
	curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, t);
	curl_easy_setopt(t->curl, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(t->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
	curl_easy_setopt(t->curl, CURLOPT_XFERINFODATA, t);
	curl_easy_setopt(t->curl, CURLOPT_NOSIGNAL, 1L);
	if (body) {
		t->text = cJSON_PrintUnformatted(body);
		t->headers = curl_slist_append(t->headers, "Content-Type: application/json");
		curl_easy_setopt(t->curl, CURLOPT_POSTFIELDS, t->text);
	} else if (!strcmp(method, "POST")) {
		curl_easy_setopt(t->curl, CURLOPT_POSTFIELDS, "");
	}
	curl_easy_setopt(t->curl, CURLOPT_CUSTOMREQUEST, method);
	curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, t->headers);
	return 0;
}

static int say_curl(const struct client *c, CURLcode rc, struct err *e)
{
	if (client_interrupts)
		return err_plain(e, EINTR, "interrupted");
	if (rc == CURLE_COULDNT_CONNECT)
		return err_plain(e, ECONNREFUSED,
			"no daemon answers at %s: start it (`make up`, or `systemctl start mayfly` "
			"for the package), or say where it is with OPEN_SANDBOX_DOMAIN=HOST:PORT",
			c->socket[0] ? c->socket : c->base);
	return err_plain(e, EIO, "%s: %s", c->base, curl_easy_strerror(rc));
}

/* NULL: the answer is no JSON. */
static cJSON *json_of(const struct buf *body)
{
	cJSON *j = NULL;

	json_read(&j, body->p, body->len, JSON_OBJECT | JSON_ARRAY | JSON_ANY_BYTES, NULL);
	return j;
}

/* The daemon's own message. After a 401: also the next step. */
static int say_status(long status, const struct buf *body, struct err *e)
{
	_cleanup_json_ cJSON *j = json_of(body);
	const char *message = json_text(j, "message"), *code = json_text(j, "code");

	if (!*message)
		message = json_text(j, "detail");
	if (status == 401)
		err_plain(e, EACCES,
			"%s: set OPEN_SANDBOX_API_KEY to a key of the daemon's configuration",
			*message ? message : "no key");
	else if (*message)
		err_plain(e,
			status == 404   ? ENOENT
			: status == 403 ? EPERM
			: status == 409 ? EBUSY
					: EREMOTEIO,
			"%s%s%s%s", message, *code ? " (" : "", code, *code ? ")" : "");
	else
		err_plain(e, EREMOTEIO, "the daemon answered %ld without a reason", status);
	return -e->code;
}

int client_call(const struct client *c, const char *method, const char *path, const cJSON *body,
	struct answer *a, struct err *e)
{
	_cleanup_(transfer_fini) struct transfer t = {.whole = &a->body};
	struct curl_header *cursor;
	CURLcode rc;

	*a = (struct answer){0};
	buf_init(&a->body, BODY_MAX);
	if (transfer_init(&t, c, method, path, body) < 0)
		return err_set(e, ENOMEM, "request");
	rc = curl_easy_perform(t.curl);
	if (rc != CURLE_OK)
		return say_curl(c, rc, e);
	curl_easy_getinfo(t.curl, CURLINFO_RESPONSE_CODE, &a->status);
	if (!curl_easy_header(t.curl, "EXECD-COMMANDS-TAIL-CURSOR", 0, CURLH_HEADER, -1, &cursor))
		uint_parse(cursor->value, &a->cursor);
	if (a->status < 200 || a->status > 299)
		return say_status(a->status, &a->body, e);
	a->json = json_of(&a->body);
	return 0;
}

int client_stream(const struct client *c, const char *method, const char *path, const cJSON *body,
	struct client_stream *s, struct err *e)
{
	_cleanup_(transfer_fini) struct transfer t = {.stream = s};
	long status = 0;
	CURLcode rc;

	if (transfer_init(&t, c, method, path, body) < 0)
		return err_set(e, ENOMEM, "request");
	if (s->upload)
		set_upload(&t, s);
	rc = curl_easy_perform(t.curl);
	if (rc != CURLE_OK && !t.stopped)
		return say_curl(c, rc, e);
	curl_easy_getinfo(t.curl, CURLINFO_RESPONSE_CODE, &status);
	if (status < 200 || status > 299)
		return say_status(status, &t.error, e);
	return 0;
}

char *client_escape(const char *s)
{
	struct buf b;

	buf_init(&b, MIB(1));
	for (; *s; s++) {
		if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~",
			    *s))
			buf_put(&b, s, 1);
		else
			buf_printf(&b, "%%%02X", (unsigned char)*s);
	}
	buf_cstr(&b);
	ASSERT(b.p && !b.bad);
	return (char *)b.p;
}

char *client_path(const char *fmt, ...)
{
	char *p = NULL;
	va_list ap;

	va_start(ap, fmt);
	ASSERT(vasprintf(&p, fmt, ap) >= 0);
	va_end(ap);
	return p;
}

static bool is_id(const char *s)
{
	return strlen(s) == 36 && strspn(s, "0123456789abcdef-") == 36;
}

/* What people name, with the words for it. */
struct named_kind {
	const char *path, *one, *many, *ls;
	/* The member with the name. NULL: this kind has only ids. An operator sees the snapshots of all
	 * namespaces, and anybody may give his the name of an operator's. */
	const char *named_in;
};
static const struct named_kind named_sandboxes = {"/v1/sandboxes", "sandbox", "sandboxes",
				       "mayfly ls", "metadata"},
			       named_snapshots = {"/v1/snapshots", "snapshot", "snapshots",
				       "mayfly snapshot ls", NULL};

/* What resolve() has seen so far. A name wins over the beginning of an id. */
struct found {
	char named[64], begun[64];
	unsigned int names, beginnings;
};

static void look_at(struct found *f, const struct named_kind *k, const cJSON *o, const char *word)
{
	const cJSON *names = k->named_in ? cJSON_GetObjectItem(o, k->named_in) : NULL;
	const char *id = json_text(o, "id");

	if (names && !strcmp(json_text(names, "name"), word)) {
		f->names++;
		snprintf(f->named, sizeof(f->named), "%s", id);
	} else if (!strncmp(id, word, strlen(word))) {
		f->beginnings++;
		snprintf(f->begun, sizeof(f->begun), "%s", id);
	}
}

static int resolve(const struct client *c, const struct named_kind *k, const char *word,
	char id[64], struct err *e)
{
	struct found f = {0};
	bool more = true;

	/* an empty variable of a script's must not mean the one sandbox without a name */
	if (!*word)
		return err_plain(e, EINVAL, "the name of a %s is empty", k->one);
	if (is_id(word)) {
		memcpy(id, word, 37);
		return 0;
	}
	for (int page = 1; more; page++) {
		_cleanup_answer_ struct answer a;
		_cleanup_free_ char *path = client_path("%s?page=%d&pageSize=200", k->path, page);
		const cJSON *i;
		int rc = client_call(c, "GET", path, NULL, &a, e);

		if (rc < 0)
			return rc;
		cJSON_ArrayForEach (i, cJSON_GetObjectItem(a.json, "items"))
			look_at(&f, k, i, word);
		more = cJSON_IsTrue(cJSON_GetObjectItem(
			cJSON_GetObjectItem(a.json, "pagination"), "hasNextPage"));
	}
	if (f.names > 1)
		return err_plain(e, EINVAL, "%u %s are named '%s': give an id (`%s` shows them)",
			f.names, k->many, word, k->ls);
	if (!f.names && f.beginnings > 1)
		return err_plain(e, EINVAL,
			"the ids of %u %s begin with '%s': give more of the id (`%s` shows them)",
			f.beginnings, k->many, word, k->ls);
	if (!f.names && !f.beginnings)
		return err_plain(
			e, ENOENT, "no %s '%s': `%s` shows those there are", k->one, word, k->ls);
	memcpy(id, f.names ? f.named : f.begun, 64);
	return 0;
}

int client_resolve(const struct client *c, const char *word, char id[64], struct err *e)
{
	return resolve(c, &named_sandboxes, word, id, e);
}

int client_resolve_snapshot(const struct client *c, const char *word, char id[64], struct err *e)
{
	return resolve(c, &named_snapshots, word, id, e);
}
