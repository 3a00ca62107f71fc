/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_exec.c: `mayfly run`, `create` and `exec`. The events of a command come as JSON objects with a
 * blank line between; what a program prints goes to our standard output and error as it is. The
 * first two ^C interrupt the command, the third ends us. With -i or -t, terminal.c says what ^C does.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/terminal.h"

#define EVENT_MAX MIB(8)
/* The documented start script of code-interpreter images. */
#define CODE_ENTRYPOINT "/opt/opensandbox/code-interpreter.sh"

/* ---- the stream of a command */

struct running {
	const struct client *c;
	const char *sandbox;
	char id[64];
	struct buf in;
	int code; /* -1: no end was seen */
	bool background, broken;
};

/* The exit code of a command that ended with an `error` event: its own, or the one that a shell and docker have for a signal or a failed start. */
static int code_of_error(const char *evalue, const char *trace)
{
	char *end;
	long v = strtol(evalue, &end, 10);

	if (*evalue && !*end && v >= 0 && v < 256)
		return (int)v;
	if (!strncmp(trace, "signal: ", 8))
		for (int s = 1; s < 32; s++)
			if (!strcasecmp(trace + 8, strsignal(s)))
				return 128 + s;
	fprintf(stderr, "mayfly: %s\n", *trace ? trace : evalue);
	if (*evalue && !*end)
		return 137;
	return strstr(evalue, "No such file") || strstr(evalue, "not found") ? 127 : 126;
}

/* cJSON ends a string at a NUL, and does not say how long it is. So each NUL becomes a character that
 * does not occur in this event (`stand_in`); print_text() prints a NUL for it. */
static size_t hide_nuls(char *p, size_t n, char stand_in[4])
{
	size_t found = 0, to = 0;

	for (unsigned int c = 0; c < 64; c++) {
		snprintf(stand_in, 4, "\xef\x80%c", 0x80 + c);
		if (!memmem(p, n, stand_in, 3))
			break;
	}
	for (size_t i = 0, k; i < n; i += k) {
		k = p[i] == '\\' && i + 1 < n ? 2 : 1;
		if (i + 6 <= n && !memcmp(p + i, "\\u0000", 6)) {
			memcpy(p + to, stand_in, 3);
			to += 3;
			k = 6;
			found++;
		} else {
			memmove(p + to, p + i, k);
			to += k;
		}
	}
	if (!found)
		*stand_in = 0;
	return to;
}

static void print_text(const char *s, const char stand_in[4], FILE *to)
{
	const char *at;

	while (*stand_in && (at = strstr(s, stand_in))) {
		fwrite(s, 1, (size_t)(at - s), to);
		fputc(0, to);
		s = at + 3;
	}
	fputs(s, to);
}

static void take_event(struct running *x, char *p, size_t n)
{
	char stand_in[4];
	cJSON *j = cJSON_ParseWithLength(p, hide_nuls(p, n, stand_in)),
	      *t = cJSON_GetObjectItem(j, "text"), *err = cJSON_GetObjectItem(j, "error");
	const char *type = json_text(j, "type"), *text = cJSON_IsString(t) ? t->valuestring : "";

	if (!strcmp(type, "init")) {
		snprintf(x->id, sizeof(x->id), "%s", text);
	} else if (!strcmp(type, "stdout")) {
		print_text(text, stand_in, stdout);
		fflush(stdout);
	} else if (!strcmp(type, "stderr")) {
		print_text(text, stand_in, stderr);
	} else if (!strcmp(type, "execution_complete")) {
		x->code = 0;
	} else if (!strcmp(type, "error")) {
		const cJSON *trace = cJSON_GetArrayItem(cJSON_GetObjectItem(err, "traceback"), 0);

		x->code = code_of_error(
			json_text(err, "evalue"), cJSON_IsString(trace) ? trace->valuestring : "");
	}
	cJSON_Delete(j);
}

static void interrupt(void *arg)
{
	struct running *x = arg;
	_cleanup_free_ char *path =
		client_path("/v1/sandboxes/%s/proxy/44772/command?id=%s", x->sandbox, x->id);
	_cleanup_answer_ struct answer a;
	struct err e;

	if (*x->id)
		client_call(x->c, "DELETE", path, NULL, &a, &e);
}

static bool take_bytes(void *arg, const char *p, size_t n)
{
	struct running *x = arg;
	const char *sep;

	buf_put(&x->in, p, n);
	if (x->in.bad) {
		x->broken = true;
		return false;
	}
	while ((sep = memmem(x->in.p, x->in.len, "\n\n", 2))) {
		size_t len = (size_t)(sep - (const char *)x->in.p);

		take_event(x, (char *)x->in.p, len);
		buf_consume(&x->in, len + 2);
		if (ferror(stdout)) {
			interrupt(x); /* nobody reads its output any more */
			return false;
		}
	}
	return true;
}

struct exec_opts {
	struct client_opts co;
	struct opt_list env;
	const char *cwd, *user;
	uint64_t timeout;
	bool background, shell, input, tty;
};

/* "UID" or "UID:GID", by number: strtod() would make 0 of a name, which is root */
static bool user_ok(const char *s)
{
	size_t n = strspn(s, "0123456789"), m = s[n] == ':' ? strspn(s + n + 1, "0123456789") : 0;

	return n > 0 && n < 11 && (!s[n] || (m > 0 && m < 11 && !s[n + 1 + m]));
}

static cJSON *pairs(const struct opt_list *l)
{
	cJSON *o = cJSON_CreateObject();

	for (size_t i = 0; i < l->n; i++) {
		_cleanup_free_ char *k = strdup(l->v[i]);
		char *eq = k ? strchr(k, '=') : NULL;

		if (eq)
			*eq = 0;
		cJSON_AddStringToObject(o, k, eq ? eq + 1 : getenv(k) ? getenv(k) : "");
	}
	return o;
}

static void join_words(struct buf *t, int n, char **words)
{
	for (int i = 0; i < n; i++)
		buf_printf(t, "%s%s", i ? " " : "", words[i]);
}

/* The words as one text for a shell, which replaces itself with the command (exec). */
static void quote_words(struct buf *t, int n, char **words)
{
	buf_printf(t, "exec");
	for (int i = 0; i < n; i++) {
		buf_printf(t, " '");
		for (const char *p = words[i]; *p; p++)
			buf_printf(t, *p == '\'' ? "'\\''" : "%c", *p);
		buf_printf(t, "'");
	}
}

/* as_text: for a session's shell, which takes no list of words */
static cJSON *command_body(const struct exec_opts *o, bool as_text, int n, char **words)
{
	cJSON *b = cJSON_CreateObject(), *argv;

	if (o->shell || as_text) {
		struct buf t;

		buf_init(&t, MIB(1));
		if (o->shell)
			join_words(&t, n, words);
		else
			quote_words(&t, n, words);
		cJSON_AddStringToObject(b, "command", buf_cstr(&t));
		buf_fini(&t);
	} else {
		argv = cJSON_AddArrayToObject(b, "argv");
		for (int i = 0; i < n; i++)
			cJSON_AddItemToArray(argv, cJSON_CreateString(words[i]));
	}
	if (o->cwd)
		cJSON_AddStringToObject(b, "cwd", o->cwd);
	if (o->user && *o->user) {
		char *gid = strchr(o->user, ':');

		cJSON_AddNumberToObject(b, "uid", strtod(o->user, NULL));
		if (gid)
			cJSON_AddNumberToObject(b, "gid", strtod(gid + 1, NULL));
	}
	if (o->timeout)
		cJSON_AddNumberToObject(b, "timeout", (double)o->timeout * 1000);
	if (o->env.n)
		cJSON_AddItemToObject(b, "envs", pairs(&o->env));
	if (o->background)
		cJSON_AddBoolToObject(b, "background", true);
	return b;
}

/* With our standard input, or a terminal: a terminal session of the sandbox. */
static int run_session(
	const struct client *c, const char *sandbox, const struct exec_opts *o, int n, char **words)
{
	struct terminal_opts t = {.tty = o->tty, .input = o->input, .timeout_s = o->timeout};
	cJSON *body = command_body(o, true, n, words), *envs = cJSON_GetObjectItem(body, "envs");
	int code;

	cJSON_DeleteItemFromObject(body, "timeout");
	if (o->tty && getenv("TERM")) {
		envs = envs ? envs : cJSON_AddObjectToObject(body, "envs");
		if (!cJSON_GetObjectItem(envs, "TERM"))
			cJSON_AddStringToObject(envs, "TERM", getenv("TERM"));
	}
	code = terminal_run(c, sandbox, body, &t);
	cJSON_Delete(body);
	return code;
}

/* The command's exit code; or 125, with the reason on standard error. */
static int run_in(
	const struct client *c, const char *sandbox, const struct exec_opts *o, int n, char **words)
{
	struct running x = {.c = c, .sandbox = sandbox, .code = -1, .background = o->background};
	struct client_stream s = {.data = take_bytes, .interrupted = interrupt, .arg = &x};
	_cleanup_free_ char *path = client_path("/v1/sandboxes/%s/proxy/44772/command", sandbox);
	cJSON *body;
	struct err e;
	int rc;

	if (o->input || o->tty)
		return run_session(c, sandbox, o, n, words);
	body = command_body(o, false, n, words);
	buf_init(&x.in, EVENT_MAX);
	rc = client_stream(c, "POST", path, body, &s, &e);
	cJSON_Delete(body);
	buf_fini(&x.in);
	if (client_ending)
		return 128 + client_ending;
	if (rc < 0)
		return complain(EXIT_OURS, &e);
	if (x.code < 0 && ferror(stdout))
		return 128 + SIGPIPE; /* the exit code of a program that does not ignore SIGPIPE */
	if (x.code < 0) {
		fprintf(stderr, "mayfly: the stream ended before the command did%s\n",
			x.broken ? ": an event was too long" : "");
		return EXIT_OURS;
	}
	if (x.background)
		puts(x.id);
	return x.code;
}

int cmd_exec(int argc, char **argv)
{
	struct exec_opts o = {0};
	const struct opt opts[] = {
		{"env", 'e', OPT_LIST, &o.env, "K=V",
			"an environment variable of the command (K alone: with its value here)"},
		{"workdir", 'w', OPT_STR, &o.cwd, "DIR",
			"working directory, instead of the image's"},
		{"user", 'u', OPT_STR, &o.user, "UID[:GID]",
			"run it as this user and group, by number"},
		{"timeout", 0, OPT_UINT, &o.timeout, "SECONDS", "kill it after SECONDS"},
		{"interactive", 'i', OPT_FLAG, &o.input, NULL,
			"pass standard input to the command"},
		{"tty", 't', OPT_FLAG, &o.tty, NULL, "run the command on a terminal"},
		{"detach", 'd', OPT_FLAG, &o.background, NULL,
			"do not wait; print the command's id (see mayfly logs)"},
		{"shell", 's', OPT_FLAG, &o.shell, NULL,
			"run the words with the image's shell, as one text"},
		CLIENT_OPTS(o.co),
	};
	struct client c;
	struct err e;
	char id[64];
	int at, code;

	if (!client_begin(&c, &o.co,
		    "exec [OPTIONS] SANDBOX [--] COMMAND [ARG...]\n\nRun a command in a sandbox, "
		    "print its output, and exit with its exit code. -i passes our\nstandard input "
		    "to it, else its input is empty. -it runs it on a terminal: Ctrl-P Ctrl-Q\n"
		    "leaves the command running. -i and -t need a shell in the sandbox.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 2, &at, &code))
		return code;
	if (o.user && !user_ok(o.user)) {
		fprintf(stderr, "mayfly: exec: --user '%s' is not UID[:GID], by number\n", o.user);
		return EXIT_USAGE;
	}
	if (o.background && (o.input || o.tty)) {
		fprintf(stderr, "mayfly: exec: --detach cannot be combined with -i or -t\n");
		return EXIT_USAGE;
	}
	if (client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_OURS, &e);
	at++;
	if (at < argc && !strcmp(argv[at], "--"))
		at++;
	if (at == argc) {
		fprintf(stderr, "usage: mayfly exec [OPTIONS] SANDBOX [--] COMMAND [ARG...]\n");
		return EXIT_USAGE;
	}
	return run_in(&c, id, &o, argc - at, argv + at);
}

/* ---- create */

struct create_opts {
	struct client_opts co;
	struct opt_list env, label, entrypoint;
	const char *name, *cpus, *memory, *snapshot, *template_id, *user, *network;
	struct opt_list allow, deny, volume;
	uint64_t timeout;
	bool keep;
	struct keeper *keeper; /* renews its expiry while we run; NULL: it outlives us */
};
#define CREATE_OPTS(o)                                                                             \
	{"name", 'n', OPT_STR, &(o).name, "NAME",                                                  \
		"a name that can be used instead of the id (metadata \"name\")"},                  \
		{"cpus", 'c', OPT_STR, &(o).cpus, "N", "CPUs: 1, 0.5, 500m (1)"},                  \
		{"memory", 'm', OPT_STR, &(o).memory, "SIZE", "memory: 512Mi, 2Gi (512Mi)"},       \
		{"label", 'l', OPT_LIST, &(o).label, "K=V", "metadata"},                           \
		{"network", 0, OPT_STR, &(o).network, "MODE",                                      \
			"open, none, or deny (all but allowed targets). Default: deny if a "       \
			"target is allowed, else open"},                                           \
		{"allow", 0, OPT_LIST, &(o).allow, "TARGET",                                       \
			"let the sandbox reach a name, *.NAME, address or prefix"},                \
		{"deny", 0, OPT_LIST, &(o).deny, "TARGET",                                         \
			"keep the sandbox from a name, *.NAME, address or prefix. Wins over "      \
			"allowed ones"},                                                           \
		{"volume", 'v', OPT_LIST, &(o).volume, "SOURCE:PATH[:ro]",                         \
			"mount a claim (NAME, or NAME/SUB-PATH) or a host folder (/...) at PATH"}, \
	{                                                                                          \
		"registry-user", 0, OPT_STR, &(o).user, "USER:PASS",                               \
			"credentials for the image's registry; never stored"                       \
	}

static void add_rules(cJSON *to, const struct opt_list *targets, const char *action)
{
	for (size_t i = 0; i < targets->n; i++) {
		cJSON *rule = cJSON_CreateObject();

		cJSON_AddStringToObject(rule, "action", action);
		cJSON_AddStringToObject(rule, "target", targets->v[i]);
		cJSON_AddItemToArray(to, rule);
	}
}

/* Without a network option neither the request nor the sandbox has a policy. */
static void add_policy(cJSON *body, const struct create_opts *o)
{
	bool open = o->network ? !strcmp(o->network, "open") : !o->allow.n;
	cJSON *p, *egress;

	if (!o->network && !o->allow.n && !o->deny.n)
		return;
	p = cJSON_AddObjectToObject(body, "networkPolicy");
	cJSON_AddStringToObject(p, "defaultAction", open ? "allow" : "deny");
	egress = cJSON_AddArrayToObject(p, "egress");
	add_rules(egress, &o->deny, "deny");
	add_rules(egress, &o->allow, "allow");
}

/* SOURCE:PATH[:ro], as docker has it. A source that begins with a slash is the host's. */
static int add_volume(cJSON *to, const char *text, size_t number, struct err *e)
{
	_cleanup_free_ char *source = strdup(text);
	char *path = source ? strchr(source, ':') : NULL,
	     *how = path ? strchr(path + 1, ':') : NULL;
	cJSON *v, *backend;
	char name[24], *sub;

	if (!path || (how && strcmp(how, ":ro") != 0 && strcmp(how, ":rw") != 0))
		return err_plain(e, EINVAL,
			"--volume %.100s: not NAME:PATH or /FOLDER:PATH (add :ro at the end for "
			"read-only)",
			text);
	*path++ = 0;
	v = cJSON_CreateObject();
	snprintf(name, sizeof(name), "v%zu", number);
	cJSON_AddStringToObject(v, "name", name);
	if (how) {
		*how = 0;
		cJSON_AddBoolToObject(v, "readOnly", !strcmp(how + 1, "ro"));
	}
	cJSON_AddStringToObject(v, "mountPath", path);
	sub = *source == '/' ? NULL : strchr(source, '/');
	if (sub) {
		*sub++ = 0;
		cJSON_AddStringToObject(v, "subPath", sub);
	}
	backend = cJSON_AddObjectToObject(v, *source == '/' ? "host" : "pvc");
	cJSON_AddStringToObject(backend, *source == '/' ? "path" : "claimName", source);
	cJSON_AddItemToArray(to, v);
	return 0;
}

static int add_volumes(cJSON *body, const struct opt_list *l, struct err *e)
{
	cJSON *all = l->n ? cJSON_AddArrayToObject(body, "volumes") : NULL;
	int rc = 0;

	for (size_t i = 0; i < l->n && rc == 0; i++)
		rc = add_volume(all, l->v[i], i, e);
	return rc;
}

static int check_network(const struct create_opts *o, struct err *e)
{
	const char *n = o->network;

	if (n && strcmp(n, "open") != 0 && strcmp(n, "deny") != 0 && strcmp(n, "none") != 0)
		return err_plain(e, EINVAL, "--network %.40s: not open, deny or none", n);
	if (n && !strcmp(n, "none") && o->allow.n)
		return err_plain(e, EINVAL,
			"--network none and --allow contradict each other: use --network deny with "
			"--allow");
	return 0;
}

static cJSON *create_body(const struct create_opts *o, const char *image, const char *snapshot,
	const struct opt_list *env)
{
	cJSON *b = cJSON_CreateObject(), *m, *i;

	if (o->template_id) {
		cJSON_AddStringToObject(b, "templateId", o->template_id);
		cJSON_AddNumberToObject(b, "timeout", o->timeout ? (double)o->timeout : 3600);
	} else if (o->snapshot) {
		cJSON_AddStringToObject(b, "snapshotId", snapshot);
	} else {
		i = cJSON_AddObjectToObject(b, "image");
		cJSON_AddStringToObject(i, "uri", image);
		if (o->user && strchr(o->user, ':')) {
			cJSON *auth = cJSON_AddObjectToObject(i, "auth");
			_cleanup_free_ char *u =
				strndup(o->user, (size_t)(strchr(o->user, ':') - o->user));

			cJSON_AddStringToObject(auth, "username", u);
			cJSON_AddStringToObject(auth, "password", strchr(o->user, ':') + 1);
		}
	}
	if (!o->template_id) {
		cJSON *ep = cJSON_AddArrayToObject(b, "entrypoint"), *limits;
		static const char *const idle[] = {"tail", "-f", "/dev/null"};

		for (size_t k = 0; k < o->entrypoint.n; k++)
			cJSON_AddItemToArray(ep, cJSON_CreateString(o->entrypoint.v[k]));
		for (size_t k = 0; !o->entrypoint.n && k < ARRAY_LEN(idle); k++)
			cJSON_AddItemToArray(ep, cJSON_CreateString(idle[k]));
		limits = cJSON_AddObjectToObject(b, "resourceLimits");
		cJSON_AddStringToObject(limits, "cpu", o->cpus ? o->cpus : "1");
		cJSON_AddStringToObject(limits, "memory", o->memory ? o->memory : "512Mi");
		if (o->timeout)
			cJSON_AddNumberToObject(b, "timeout", (double)o->timeout);
		if (env->n)
			cJSON_AddItemToObject(b, "env", pairs(env));
	}
	m = pairs(&o->label);
	if (o->name)
		cJSON_AddStringToObject(m, "name", o->name);
	cJSON_AddItemToObject(b, "metadata", m);
	add_policy(b, o);
	return b;
}

/* If `mayfly run` is killed, its sandbox expires RUN_EXPIRY_S later, because nobody renews it any more. The times are the
 * daemon's, whose clock may differ from ours. */
#define RUN_EXPIRY_S 300
#define RUN_RENEW_S  60

struct keeper {
	struct client c;
	char id[64];
	time_t made_s; /* by the daemon's clock */
	uint64_t begun_ns, next_ns;
};

static void keeper_tick(void *arg)
{
	struct keeper *k = arg;
	uint64_t now = mono_ns();
	time_t when = k->made_s + (time_t)((now - k->begun_ns) / 1000000000) + RUN_EXPIRY_S;
	_cleanup_answer_ struct answer a = {0};
	_cleanup_free_ char *path = NULL;
	char text[40];
	struct err e;
	cJSON *body;

	if (now < k->next_ns)
		return;
	k->next_ns = now + RUN_RENEW_S * 1000000000ull;
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", gmtime(&when));
	body = cJSON_CreateObject();
	cJSON_AddStringToObject(body, "expiresAt", text);
	path = client_path("/v1/sandboxes/%s/renew-expiration", k->id);
	/* if the daemon cannot be reached now, the next try is a minute later */
	client_call(&k->c, "POST", path, body, &a, &e);
	cJSON_Delete(body);
}

/* Renews the sandbox from the create's answer on, also while its image is still being pulled. */
static void keeper_begin(struct keeper *k, struct client *c, const struct answer *made)
{
	struct tm tm = {0};

	if (!strptime(json_text(made->json, "createdAt"), "%Y-%m-%dT%H:%M:%S", &tm))
		return;
	*k = (struct keeper){.c = *c, .made_s = timegm(&tm), .begun_ns = mono_ns()};
	k->c.limit_s = 10;
	snprintf(k->id, sizeof(k->id), "%s", json_text(made->json, "id"));
	k->next_ns = k->begun_ns + RUN_RENEW_S * 1000000000ull;
	c->tick = keeper_tick;
	c->tick_arg = k;
}

/* Creates a sandbox and waits until its agent answers: the daemon holds the ping until then. 0 or
 * -errno. */
static int make(struct client *c, const struct create_opts *o, const char *image,
	const struct opt_list *env, char id[64], struct answer *made, struct err *e)
{
	struct client once = *c;
	_cleanup_free_ char *ping = NULL, *get = NULL;
	_cleanup_answer_ struct answer a = {0}, again = {0};
	struct err lost;
	char snapshot[64] = "";
	cJSON *body;
	int rc = check_network(o, e);

	if (rc == 0 && o->snapshot)
		rc = client_resolve_snapshot(c, o->snapshot, snapshot, e);
	if (rc < 0)
		return rc;
	body = create_body(o, image, snapshot, env);
	rc = add_volumes(body, &o->volume, e);
	if (rc < 0) {
		cJSON_Delete(body);
		return rc;
	}

	/* ^C must not end this request: the answer, which comes within seconds, has the id of
	 * the sandbox to remove */
	once.patient = true;
	rc = client_call(&once, "POST", "/v1/sandboxes", body, made, e);
	cJSON_Delete(body);
	if (rc < 0)
		return rc;
	snprintf(id, 64, "%s", json_text(made->json, "id"));
	if (client_interrupts)
		return err_plain(e, EINTR, "interrupted");
	if (o->keeper)
		keeper_begin(o->keeper, c, made);
	if (!strcmp(json_text(cJSON_GetObjectItem(made->json, "status"), "state"), "Running"))
		return 0;
	if (isatty(2))
		fprintf(stderr, "%s: %s\n", id,
			json_text(cJSON_GetObjectItem(made->json, "status"), "message"));
	ping = client_path("/v1/sandboxes/%s/proxy/44772/ping", id);
	rc = client_call(c, "GET", ping, NULL, &a, e);
	if (rc == 0)
		return 0;
	get = client_path("/v1/sandboxes/%s", id);
	if (client_call(c, "GET", get, NULL, &again, &lost) == 0) {
		const cJSON *st = cJSON_GetObjectItem(again.json, "status");

		return err_plain(e, EIO, "the sandbox %s is %s: %s", id, json_text(st, "state"),
			json_text(st, "message"));
	}
	return rc;
}

/* Deletes the sandbox. The request is made also after ^C, so that nothing is left behind. */
static void drop(const struct client *c, const char *id)
{
	_cleanup_free_ char *path = client_path("/v1/sandboxes/%s", id);
	_cleanup_answer_ struct answer gone = {0};
	struct err e;

	client_interrupts = client_ending = 0;
	if (client_call(c, "DELETE", path, NULL, &gone, &e) < 0 && e.code != ENOENT)
		complain(0, &e);
}

struct passing {
	struct keeper keeper;
	char id[64];
};

struct passing *passing_begin(
	struct client *c, const char *image, const char *volume, struct err *e)
{
	struct passing *p = calloc(1, sizeof(*p));
	struct create_opts o = {.memory = "256Mi", .timeout = RUN_EXPIRY_S};
	_cleanup_answer_ struct answer made = {0};

	if (!p) {
		err_set(e, ENOMEM, "a sandbox");
		return NULL;
	}
	o.keeper = &p->keeper;
	o.volume.v[o.volume.n++] = volume;
	client_catch_end();
	if (make(c, &o, image, &o.env, p->id, &made, e) == 0)
		return p;
	passing_end(c, p);
	return NULL;
}

const char *passing_id(const struct passing *p)
{
	return p->id;
}

void passing_end(struct client *c, struct passing *p)
{
	c->tick = NULL;
	if (p && *p->id)
		drop(c, p->id);
	free(p);
}

int cmd_create(int argc, char **argv)
{
	struct create_opts o = {0};
	const struct opt opts[] = {
		CREATE_OPTS(o),
		{"env", 'e', OPT_LIST, &o.env, "K=V",
			"an environment variable of everything in it (K alone: with its value "
			"here)"},
		{"timeout", 't', OPT_UINT, &o.timeout, "SECONDS",
			"remove it after SECONDS (default: never)"},
		{"snapshot", 0, OPT_STR, &o.snapshot, "SNAPSHOT",
			"create it from a snapshot instead of an image"},
		{"template", 0, OPT_STR, &o.template_id, "ID",
			"create it from a template instead of an image"},
		CLIENT_OPTS(o.co),
	};
	_cleanup_answer_ struct answer made = {0};
	struct client c;
	struct err e;
	char id[64] = "";
	int at, code;

	if (!client_begin(&c, &o.co,
		    "create [OPTIONS] IMAGE [ENTRYPOINT [ARG...]]\n\nCreate a sandbox and print "
		    "its id. Without an entrypoint it runs tail -f /dev/null.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 0, &at, &code))
		return code;
	if (at == argc && !o.snapshot && !o.template_id) {
		fprintf(stderr, "mayfly: create: which image? `mayfly image ls` shows those that "
				"are here\n");
		return EXIT_USAGE;
	}
	for (int i = at + (o.snapshot || o.template_id ? 0 : 1);
		i < argc && o.entrypoint.n < ARRAY_LEN(o.entrypoint.v); i++)
		if (o.entrypoint.n || strcmp(argv[i], "--") != 0)
			o.entrypoint.v[o.entrypoint.n++] = argv[i];
	client_catch_end();
	if (make(&c, &o, argv[at], &o.env, id, &made, &e) < 0) {
		if (*id && client_interrupts)
			drop(&c, id);
		return complain(EXIT_FAILED, &e);
	}
	if (o.co.json)
		print_json(made.json);
	else
		puts(id);
	return EXIT_OK;
}

/* What `mayfly run` runs: a command, or code in the sandbox's code interpreter. */
struct run_what {
	const char *code, *language;
};

/* The exit code. words: those behind the image. */
static int run_made(const struct client *c, const char *id, const struct run_what *w,
	const struct exec_opts *x, int n, char **words)
{
	int code;

	if (!w->code)
		return run_in(c, id, x, n, words);
	code = code_run_file(c, id, w->language, w->code);
	return client_ending ? 128 + client_ending : code;
}

/* Reads --code and -l NAME behind the image (argv[0]), too: no command is named "--code". false: the
 * options are wrong. */
static bool run_read_code(struct run_what *w, int argc, char **argv, int *words)
{
	const struct opt opts[] = {{"code", 0, OPT_STR, &w->code, "FILE", ""},
		{"language", 'l', OPT_STR, &w->language, "NAME", ""}};
	struct err e;
	int rest;

	if (argc < 2 || strcmp(argv[1], "--code") != 0)
		return true;
	if (opt_parse(opts, ARRAY_LEN(opts), argc, argv, &rest, &e) < 0) {
		complain(EXIT_USAGE, &e);
		return false;
	}
	*words += rest - 1;
	return true;
}

static bool run_usage_ok(const struct run_what *w, const struct exec_opts *x, int n)
{
	if (!w->code && n == 0)
		fprintf(stderr, "usage: mayfly run [OPTIONS] IMAGE [--] COMMAND [ARG...]\n");
	else if (w->code && n)
		fprintf(stderr, "mayfly: run: --code takes no COMMAND\n");
	else if (w->code && (x->cwd || x->timeout || x->input || x->tty || x->shell))
		fprintf(stderr, "mayfly: run: --code cannot be combined with --workdir, --timeout, "
				"-i, -t or --shell\n");
	else
		return true;
	return false;
}

int cmd_run(int argc, char **argv)
{
	struct create_opts o = {0};
	struct keeper keeper;
	struct exec_opts x = {0};
	struct run_what what = {0};
	const struct opt opts[] = {
		CREATE_OPTS(o),
		{"env", 'e', OPT_LIST, &x.env, "K=V",
			"an environment variable of the command (K alone: with its value here)"},
		{"workdir", 'w', OPT_STR, &x.cwd, "DIR",
			"working directory, instead of the image's"},
		{"timeout", 0, OPT_UINT, &x.timeout, "SECONDS", "kill the command after SECONDS"},
		{"interactive", 'i', OPT_FLAG, &x.input, NULL,
			"pass standard input to the command"},
		{"tty", 't', OPT_FLAG, &x.tty, NULL, "run the command on a terminal"},
		{"shell", 's', OPT_FLAG, &x.shell, NULL,
			"run the words with the image's shell, as one text"},
		{"code", 0, OPT_STR, &what.code, "FILE",
			"run the code in FILE (-: standard input) instead of a command"},
		{"language", 0, OPT_STR, &what.language, "NAME",
			"language of the code (by FILE's suffix, or python)"},
		{"keep", 'k', OPT_FLAG, &o.keep, NULL,
			"do not remove the sandbox afterwards; its id goes to standard error"},
		CLIENT_OPTS(o.co),
	};
	_cleanup_answer_ struct answer made = {0};
	struct client c;
	struct err e;
	char id[64] = "";
	int at, code, words;

	if (!client_begin(&c, &o.co,
		    "run [OPTIONS] IMAGE [--] COMMAND [ARG...]\n       mayfly run [OPTIONS] IMAGE "
		    "--code FILE [-l LANGUAGE]\n\nCreate a sandbox, run one command in it, print "
		    "its output, remove the sandbox, and exit with\nthe command's exit code. 125: "
		    "mayfly failed. 126 and 127 are as docker run has them.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 1, &at, &code))
		return code;
	words = at + 1 + (at + 1 < argc && !strcmp(argv[at + 1], "--"));
	if (!run_read_code(&what, argc - at, argv + at, &words) ||
		!run_usage_ok(&what, &x, argc - words))
		return EXIT_USAGE;
	if (what.code)
		o.entrypoint = (struct opt_list){.n = 1, .v = {CODE_ENTRYPOINT}};
	code = EXIT_OURS;
	client_catch_end();
	if (!o.keep) {
		o.keeper = &keeper;
		o.timeout = RUN_EXPIRY_S;
	}
	if (make(&c, &o, argv[at], &x.env, id, &made, &e) < 0)
		code = client_ending ? 128 + client_ending : complain(EXIT_OURS, &e);
	else
		code = run_made(&c, id, &what, &x, argc - words, argv + words);
	if (!*id)
		return code;
	if (o.keep) {
		fprintf(stderr, "%s\n", id);
		return code;
	}
	c.tick = NULL;
	drop(&c, id);
	return code;
}
