/* SPDX-License-Identifier: Apache-2.0
 *
 * worker_run.c: see worker_run.h. mayflyd's loop. The input and what the task prints are hostile: both are bounded, and charged to the principal.
 *
 * An attempt is a sandbox, its command and its deletion. Its end is noted where it is seen (attempt_ends) and handled in a turn of its own
 * (attempt_over), because an agent's connection may not be closed from inside its callback.
 */
#include "api/fleet/worker_run.h"

#include <cjson/cJSON.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

#include "api/core/budgets.h"
#include "api/core/database.h"
#include "api/fleet/schema.h"
#include "api/fleet/worker_task.h"
#include "api/links/agent_client.h"
#include "api/sandbox/admission.h"
#include "api/sandbox/guest.h"
#include "api/sandbox/launch.h"
#include "api/sandbox/user_template.h"
#include "lib/json.h"
#include "lib/log.h"
#include "lib/utf8.h"

#define SEC        1000000000ull
#define OUTPUT_MAX (256u * 1024) /* of standard output */
#define ERRORS_MAX (64u * 1024)  /* of standard error; the rest is dropped */
#define AGAIN_NS   SEC           /* before the next attempt, if no sandbox could be made */
#define PRUNE_NS   (600 * SEC)
#define EXEC_ID    "run"
#define WAITERS    32u /* requests that wait for one run */
#define KEY_CHARS  40u /* less than struct quarantined has for a key */

static const char *const status_names[RUN_STATUSES] = {[RUN_OK] = "ok",
	[RUN_RETRYABLE] = "retryable_error",
	[RUN_INVALID_REQUEST] = "invalid_request",
	[RUN_INVALID_OUTPUT] = "invalid_output"};

/* A request that waits for the answer of a run. */
struct waiter {
	struct waiter *next;
	struct run *run;
	struct http_req *r;
};

/* How an attempt ended. */
struct attempt {
	enum run_status status;
	char why[420];    /* "" with RUN_OK */
	bool ended;       /* the command ended, with `code` */
	bool pause_first; /* no sandbox could be made: wait before the next attempt */
	uint32_t code;
};

struct run {
	struct run *next;
	struct runs *all;
	char key[KEY_CHARS + 1]; /* of its owner and run_id */
	char owner[OWNER_MAX];
	struct account *account; /* its owner's */
	uint64_t charged;
	char digest[65]; /* of its input */
	int64_t at_ns;   /* when it was answered, by the wall clock */
	char *answer;    /* as it is stored and sent; NULL while it runs */
	bool stored;     /* the answer is in the database, and is given */

	/* while it runs */
	struct worker_task task;
	struct waiter *waiters;
	struct sandbox *sb; /* with a reference */
	struct agent_exec *exec;
	struct timer *timer; /* of the attempt's deadline, or before the next attempt */
	struct buf out, err;
	struct attempt last;
	unsigned int attempt;
	bool began; /* the command was started, in this or an earlier attempt */
	bool over;  /* attempt_over is due */
};

struct runs {
	struct daemon *d;
	pool_spec_fn parse;
	struct run *first;
	struct timer *prune;
};

/* ---- answers */

/* Makes an answer valid UTF-8: messages may have text of the guest, or be cut inside a character. Takes text. */
static char *answer_clean(char *text)
{
	_cleanup_(buf_fini) struct buf b = {0};
	char *clean = NULL;

	if (!text || utf8_ok(text, strlen(text)))
		return text;
	buf_init(&b, SIZE_MAX / 2);
	utf8_clean(&b, text, strlen(text));
	if (!b.bad)
		clean = strdup(buf_cstr(&b));
	cJSON_free(text);
	return clean;
}

/* The text of an answer, to be freed. Takes result. NULL: no memory. */
static char *answer_text(const char *run_id, enum run_status s, cJSON *result)
{
	cJSON *o = cJSON_CreateObject();
	char *text;

	cJSON_AddStringToObject(o, "run_id", run_id);
	cJSON_AddStringToObject(o, "status", status_names[s]);
	cJSON_AddItemToObject(o, "result", result);
	text = cJSON_PrintUnformatted(o);
	cJSON_Delete(o);
	return answer_clean(text);
}

/* Each waiter gets a copy. A copy that does not fit into the budget is refused with 429; the stored answer stays. */
static void answer_send(struct http_req *r, const char *text)
{
	if (text)
		http_reply_kept(r, 200, "application/json", text, strlen(text));
	else
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
}

/* An answer that is not stored: nothing was run for it. */
static void answer_now(struct http_req *r, const char *run_id, enum run_status s, const char *why)
{
	struct daemon *d = r->app;
	cJSON *result = cJSON_CreateObject();
	char *text;

	d->metrics.runs[s]++;
	cJSON_AddStringToObject(result, "message", why);
	text = answer_text(run_id, s, result);
	answer_send(r, text);
	cJSON_free(text);
}

static void waiter_gone(struct http_req *r)
{
	struct waiter *w = r->user, **at = &w->run->waiters;

	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	http_abort(r);
}

static unsigned int run_waiters(const struct run *run)
{
	unsigned int n = 0;

	for (const struct waiter *w = run->waiters; w; w = w->next)
		n++;
	return n;
}

static bool run_wait(struct run *run, struct http_req *r)
{
	struct waiter *w = http_alloc(r, sizeof(*w));

	if (!w) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return false;
	}
	*w = (struct waiter){.next = run->waiters, .run = run, .r = r};
	run->waiters = w;
	r->user = w;
	http_on_gone(r, waiter_gone);
	return true;
}

/* ---- the table */

static void run_charge(struct run *run, uint64_t bytes)
{
	if (bytes > run->charged)
		account_force(run->account, bytes - run->charged);
	else
		account_give(run->account, run->charged - bytes);
	run->charged = bytes;
}

static void run_free(struct run *run)
{
	account_give(run->account, run->charged);
	timer_remove(run->timer);
	worker_task_fini(&run->task);
	buf_fini(&run->out);
	buf_fini(&run->err);
	cJSON_free(run->answer);
	free(run);
}

static void run_unlink(struct run *run)
{
	struct run **at = &run->all->first;

	while (*at != run)
		at = &(*at)->next;
	*at = run->next;
}

static void run_key(const char *owner, const char *run_id, char out[static KEY_CHARS + 1])
{
	uint8_t md[SHA256_DIGEST_LENGTH];
	char both[OWNER_MAX + WORKER_ID_MAX + 1];
	/* owner, NUL, run_id: the NUL separates them */
	size_t n = strlen(owner) + 1;

	str_copy(both, OWNER_MAX, owner);
	str_copy(both + n, sizeof(both) - n, run_id);
	SHA256((const unsigned char *)both, n + strlen(run_id), md);
	for (size_t i = 0; i < KEY_CHARS / 2; i++)
		snprintf(out + 2 * i, 3, "%02x", md[i]);
}

static struct run *run_find(const struct runs *all, const char *key)
{
	struct run *run = all->first;

	while (run && strcmp(run->key, key) != 0)
		run = run->next;
	return run;
}

/* The owner's oldest stored answer. NULL: there is none. *n: how many. */
static struct run *run_oldest(const struct runs *all, const char *owner, size_t *n)
{
	struct run *oldest = NULL;

	*n = 0;
	for (struct run *run = all->first; run; run = run->next)
		if (run->stored && !strcmp(run->owner, owner)) {
			*n += 1;
			if (!oldest || run->at_ns < oldest->at_ns)
				oldest = run;
		}
	return oldest;
}

static void run_forget(struct run *run, struct transaction *t)
{
	transaction_delete(t, DB_RUN, run->key);
	run_unlink(run);
	run_free(run);
}

/* Is the owner's own budget full? What others hold does not count: deleting the owner's answers would not help then. */
static bool run_owner_full(const struct run *run, uint64_t bytes)
{
	/* its present charge is replaced: only the difference is new */
	uint64_t more = bytes > run->charged ? bytes - run->charged : 0;
	const struct account *full = account_full(run->account, more);

	return full && (full == run->account || full == run->account->parent);
}

/* Makes room for one more answer of this owner, of so many bytes. */
static void runs_make_room(
	struct runs *all, const struct run *next, uint64_t bytes, struct transaction *t)
{
	struct run *oldest;
	size_t n;

	while ((oldest = run_oldest(all, next->owner, &n)) &&
		(n >= (size_t)all->d->cfg.runs_keep || run_owner_full(next, bytes)))
		run_forget(oldest, t);
}

static void runs_prune(void *arg)
{
	struct runs *all = arg;
	int64_t before = (int64_t)wall_ns() - all->d->cfg.runs_keep_seconds * (int64_t)SEC;
	struct transaction *t = transaction_new();

	timer_after(all->prune, PRUNE_NS);
	if (!t)
		return;
	for (struct run *run = all->first, *next; run; run = next) {
		next = run->next;
		if (run->stored && run->at_ns < before)
			run_forget(run, t);
	}
	database_commit(all->d->database, t, NULL, NULL);
}

/* ---- the end of a run */

static void run_answer(struct run *run, const char *text)
{
	struct waiter *w;

	while ((w = run->waiters)) {
		run->waiters = w->next;
		answer_send(w->r, text);
	}
}

/* Frees what only a run in progress needs. */
static void run_lighten(struct run *run)
{
	timer_remove(take_ptr(run->timer));
	worker_task_fini(&run->task);
	buf_fini(&run->out);
	buf_fini(&run->err);
}

static void run_unstored(struct run *run, enum run_status s, const char *why)
{
	cJSON *result = cJSON_CreateObject();
	char *text;

	cJSON_AddStringToObject(result, "message", why);
	text = answer_text(run->task.run_id, s, result);
	run_answer(run, text);
	cJSON_free(text);
	run_unlink(run);
	run_free(run);
}

static void run_stored(void *arg, const struct err *e)
{
	struct run *run = arg;

	if (e) {
		log_error("run %.64s: %s", run->task.run_id, e->msg);
		run_unstored(run, RUN_RETRYABLE, "The answer cannot be stored.");
		return;
	}
	run->stored = true;
	run_lighten(run);
	run_charge(run, sizeof(*run) + strlen(run->answer));
	run_answer(run, run->answer);
}

static void run_store(struct run *run)
{
	struct transaction *t = transaction_new();
	_cleanup_json_ cJSON *doc = cJSON_CreateObject();
	static const struct err no_memory = {.code = ENOMEM, .msg = "no memory"};

	if (!t) {
		run_stored(run, &no_memory);
		return;
	}
	runs_make_room(run->all, run, sizeof(*run) + strlen(run->answer), t);
	run->at_ns = (int64_t)wall_ns();
	cJSON_AddStringToObject(doc, "owner", run->owner);
	cJSON_AddStringToObject(doc, "input", run->digest);
	cJSON_AddStringToObject(doc, "answer", run->answer);
	json_put_i64(doc, "at", run->at_ns);
	transaction_put(t, DB_RUN, run->key, doc);
	/* synced: an answer that a client has seen must survive the host */
	transaction_sync(t);
	database_commit(run->all->d->database, t, run_stored, run);
}

static void add_text(cJSON *o, const char *name, const struct buf *b)
{
	struct buf clean;

	buf_init(&clean, 4 * (size_t)OUTPUT_MAX);
	utf8_clean(&clean, b->p, b->len);
	cJSON_AddStringToObject(o, name, buf_cstr(&clean));
	buf_fini(&clean);
}

static cJSON *run_result(const struct run *run)
{
	cJSON *o = cJSON_CreateObject(), *value = NULL;

	cJSON_AddNumberToObject(o, "attempts", run->attempt);
	if (*run->last.why)
		cJSON_AddStringToObject(o, "message", run->last.why);
	if (!run->last.ended)
		return o;
	cJSON_AddNumberToObject(o, "exit_code", run->last.code);
	add_text(o, "stdout", &run->out);
	add_text(o, "stderr", &run->err);
	if (run->out.len &&
		json_read(&value, run->out.p, run->out.len, JSON_OBJECT | JSON_ARRAY, NULL) == 0)
		cJSON_AddItemToObject(o, "value", value);
	return o;
}

/* Checks the answer against output_schema. */
static void run_check_output(struct run *run, const cJSON *result)
{
	_cleanup_json_ cJSON *o = cJSON_CreateObject();
	struct err e = {0};

	if (run->last.status != RUN_OK || !run->task.output_schema)
		return;
	cJSON_AddStringToObject(o, "run_id", run->task.run_id);
	cJSON_AddStringToObject(o, "status", status_names[RUN_OK]);
	cJSON_AddItemToObject(o, "result", cJSON_Duplicate(result, true));
	if (schema_match(run->task.output_schema, o, "output", &e) == 0)
		return;
	run->last.status = RUN_INVALID_OUTPUT;
	snprintf(run->last.why, sizeof(run->last.why), "%.400s", e.msg);
}

static void run_finish(struct run *run)
{
	cJSON *result = run_result(run);

	run_check_output(run, result);
	if (run->last.status == RUN_INVALID_OUTPUT && !json_field(result, "message"))
		cJSON_AddStringToObject(result, "message", run->last.why);
	run->all->d->metrics.runs[run->last.status]++;
	if (!run->began || run->last.status == RUN_INVALID_REQUEST) {
		cJSON_Delete(result);
		run_unstored(run, run->last.status, run->last.why);
		return;
	}
	run->answer = answer_text(run->task.run_id, run->last.status, result);
	if (run->answer)
		run_store(run);
	else
		run_unstored(run, RUN_RETRYABLE, "out of memory");
}

/* ---- one attempt */

static void attempt_begin(struct run *run);

/* Deletes the sandbox of the attempt. Not from inside a callback of its agent. */
static void attempt_clear(struct run *run)
{
	struct sandbox *sb = take_ptr(run->sb);

	timer_set(run->timer, 0);
	agent_exec_close(take_ptr(run->exec));
	if (!sb)
		return;
	sb->created = NULL;
	sandbox_delete(sb, "its run ended");
	sandbox_unref(sb);
}

static void attempt_over(void *arg)
{
	struct run *run = arg;

	run->over = false;
	attempt_clear(run);
	if (run->last.status != RUN_RETRYABLE || run->attempt >= run->task.attempts)
		run_finish(run);
	else if (run->last.pause_first)
		timer_after(run->timer, AGAIN_NS);
	else
		attempt_begin(run);
}

/* The first end that is seen counts. */
static void attempt_ends(struct run *run, struct attempt how)
{
	if (run->over)
		return;
	run->over = true;
	run->last = how;
	if (loop_defer(run->all->d->loop, attempt_over, run) < 0)
		timer_after(run->timer, 1);
}

static struct attempt attempt_lost(const char *why)
{
	struct attempt a = {.status = RUN_RETRYABLE};

	snprintf(a.why, sizeof(a.why), "%s", why);
	return a;
}

/* The deadline of an attempt, the pause before one, or an end for which there was no memory. */
static void run_timer(void *arg)
{
	struct run *run = arg;
	struct attempt a = attempt_lost("");

	if (!run->over && !run->sb) {
		attempt_begin(run);
		return;
	}
	if (!run->over) {
		snprintf(a.why, sizeof(a.why), "The task did not end within %llu s.",
			(unsigned long long)run->task.timeout_s);
		run->last = a;
	}
	loop_undefer(run->all->d->loop, attempt_over, run);
	attempt_over(run);
}

static void exec_started(void *arg, uint32_t pid)
{
	struct run *run = arg;

	run->began = true;
	sandbox_count_exec(run->sb, false);
}

static void exec_output(void *arg, int stream, const uint8_t *p, size_t n)
{
	struct run *run = arg;
	size_t room = ERRORS_MAX - run->err.len;
	struct attempt a = {.status = RUN_INVALID_OUTPUT};

	if (run->over)
		return;
	if (stream == 2) {
		buf_put(&run->err, p, MIN(n, room));
		if (n > room)
			agent_exec_unread(run->exec, n - room);
		return;
	}
	if (n <= OUTPUT_MAX - run->out.len) {
		buf_put(&run->out, p, n);
		return;
	}
	snprintf(a.why, sizeof(a.why), "The task wrote more than %u KiB to its standard output.",
		OUTPUT_MAX / 1024);
	attempt_ends(run, a);
}

/* Its sandbox was lost, or the agent says why the command cannot be started. */
static struct attempt exec_failed(const struct run *run, const struct agent_reply *r)
{
	struct attempt a = attempt_lost("The sandbox was lost while the task ran.");

	if (run->began || r->step == AGENT_STEP_NONE)
		return a;
	a.status = RUN_INVALID_REQUEST;
	snprintf(a.why, sizeof(a.why), "The task cannot be started: %.300s", r->text);
	return a;
}

static void exec_ended(void *arg, const struct agent_reply *r, uint32_t state, uint32_t code)
{
	struct run *run = arg;
	struct attempt a = {.status = RUN_OK, .ended = true, .code = code};

	if (r->err) {
		attempt_ends(run, exec_failed(run, r));
		return;
	}
	if (state == AGENT_EXITED && code == 0 && !run->out.bad) {
		attempt_ends(run, a);
		return;
	}
	sandbox_count_exec(run->sb, true);
	a.status = RUN_INVALID_OUTPUT;
	if (state == AGENT_EXITED) {
		snprintf(a.why, sizeof(a.why), "The task ended with code %u.", code);
	} else if (state == AGENT_NOT_STARTED) {
		a.status = RUN_INVALID_REQUEST;
		snprintf(a.why, sizeof(a.why), "The task cannot be started: %.300s", r->text);
	} else {
		snprintf(a.why, sizeof(a.why), "The task was ended by signal %u.", code);
		a.code = 128 + code;
	}
	attempt_ends(run, a);
}

static const struct agent_exec_ops exec_ops = {
	.started = exec_started, .output = exec_output, .ended = exec_ended};

static void exec_start(struct run *run)
{
	const struct worker_task *t = &run->task;
	size_t n = (size_t)cJSON_GetArraySize(t->env), k = 0;
	_cleanup_free_ const char **keys = calloc(n + 3, sizeof(*keys));
	_cleanup_free_ const char **vals = calloc(n + 3, sizeof(*vals));
	struct agent_exec_spec s = {.exec_id = EXEC_ID,
		.flags = t->shell ? AGENT_X_SHELL : 0,
		.uid = AGENT_NO_ID,
		.gid = AGENT_NO_ID,
		.user = "",
		.cwd = "",
		.session = "",
		.argc = t->argc,
		.argv = t->argv};
	char attempt[16];
	const cJSON *v;

	if (keys && vals) {
		cJSON_ArrayForEach (v, t->env) {
			keys[k] = v->string;
			vals[k++] = v->valuestring;
		}
		snprintf(attempt, sizeof(attempt), "%u", run->attempt);
		keys[k] = "MAYFLY_RUN_ID";
		vals[k++] = t->run_id;
		keys[k] = "MAYFLY_ATTEMPT";
		vals[k++] = attempt;
		keys[k] = "MAYFLY_CONTEXT";
		vals[k++] = t->context;
		s.envc = k;
		s.env_keys = keys;
		s.env_vals = vals;
		run->exec = agent_exec_start(run->sb->agent, &s, &exec_ops, run);
	}
	if (!run->exec)
		attempt_ends(run, attempt_lost("The sandbox takes no command."));
}

/* A wrong request stays wrong. Every other failure may not come again at the next attempt. */
static struct attempt create_failed(const struct refusal *x)
{
	struct attempt a = {.status = x->status >= 400 && x->status < 500 && x->status != 409 &&
						      x->status != 429
					      ? RUN_INVALID_REQUEST
					      : RUN_RETRYABLE,
		.pause_first = true};

	snprintf(a.why, sizeof(a.why), "%.400s", x->msg);
	return a;
}

static void run_created(void *arg, struct sandbox *sb, const struct refusal *x)
{
	struct run *run = arg;

	if (x) {
		attempt_ends(run, create_failed(x));
	} else if (sb->phase != PHASE_RUNNING) {
		/* it is still Pending, where a client would have its answer: wait on */
		sb->created = run_created;
		sb->created_arg = run;
	} else if (!run->over) {
		exec_start(run);
	}
}

/* Makes the sandbox of an attempt. NULL: x says why. */
static struct sandbox *run_sandbox(struct run *run, struct refusal *x)
{
	struct daemon *d = run->all->d;
	struct sandbox *sb;
	char id[37];

	uuid_make(id);
	sb = sandbox_new(d, id);
	if (!sb) {
		refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return NULL;
	}
	/* in no list, and the next daemon deletes it */
	sb->internal = sb->run = true;
	sandbox_own(sb, run->owner);
	if (run->all->parse(&sb->spec, run->task.create, &d->cfg, x) == 0 &&
		utemplate_source(sb, x) == 0) {
		sb->cls = size_class_of(sb->spec.memory_bytes, sb->spec.vcpus ? sb->spec.vcpus : 1);
		if (sb->spec.network_policy)
			random_hex(sb->egress_token, sizeof(sb->egress_token));
		sandbox_weigh(sb);
		if (!sandbox_fits(sb, 0))
			refuse(x, 429, "", "%s have no room for another sandbox.",
				sb->budget->records.whose);
		else if (admission_check(sb, x) == 0)
			return sb;
	}
	sandbox_delete(sb, "refused");
	return NULL;
}

static void attempt_begin(struct run *run)
{
	struct refusal x = {0};

	run->attempt++;
	run->last = (struct attempt){0};
	buf_reset(&run->out);
	buf_reset(&run->err);
	timer_after(run->timer, run->task.timeout_s * SEC);
	run->sb = run_sandbox(run, &x);
	if (!run->sb) {
		attempt_ends(run, create_failed(&x));
		return;
	}
	sandbox_ref(run->sb);
	run->sb->created = run_created;
	run->sb->created_arg = run;
	launch_create(run->sb);
}

/* ---- a request */

/* The bytes that a run in progress may hold: the parsed input, and what the task may print. A list of many zeros takes 40 times its
 * length when it is parsed. */
static uint64_t run_weight(const struct worker_task *t)
{
	return sizeof(struct run) + json_memory(t->body) + json_memory(t->create) +
	       strlen(t->context) + OUTPUT_MAX + ERRORS_MAX;
}

static bool runs_full(const struct runs *all, const char *owner)
{
	int64_t n = 0;

	for (const struct run *run = all->first; run; run = run->next)
		n += !run->stored && !strcmp(run->owner, owner);
	return n >= all->d->cfg.runs_max_running;
}

/* NULL: *why says the reason. Takes task. */
static struct run *run_new(struct daemon *d, const char *owner, const char *key,
	struct worker_task *task, const char **why)
{
	struct account *a = &budget_of(d->budgets, &d->cfg, owner)->records;
	uint64_t weight = run_weight(task);
	struct run *run;

	*why = "The server is being stopped.";
	if (d->ending)
		return NULL;
	*why = "Too many runs of this key are in progress: wait, or raise runs.max_running.";
	if (runs_full(d->runs, owner))
		return NULL;
	*why = "The server holds as much for this key as limits.budget_key_mib allows.";
	if (!account_take(a, weight))
		return NULL;
	*why = "out of memory";
	run = calloc(1, sizeof(*run));
	if (!run) {
		account_give(a, weight);
		return NULL;
	}
	*run = (struct run){.all = d->runs, .account = a, .charged = weight};
	run->timer = loop_timer(d->loop, run_timer, run);
	if (!run->timer) {
		run_free(run);
		return NULL;
	}
	str_copy(run->owner, sizeof(run->owner), owner);
	str_copy(run->key, sizeof(run->key), key);
	str_copy(run->digest, sizeof(run->digest), task->digest);
	buf_init(&run->out, OUTPUT_MAX);
	buf_init(&run->err, ERRORS_MAX);
	run->task = *task;
	*task = (struct worker_task){0};
	run->next = d->runs->first;
	d->runs->first = run;
	return run;
}

/* If the stored answer cannot be read, the task must not run again. */
static bool run_is_quarantined(const struct daemon *d, const char *key)
{
	const struct quarantined *q = database_quarantine(d->database);

	while (q && (q->in != DB_RUN || strcmp(q->key, key) != 0))
		q = q->next;
	return q != NULL;
}

static void run_again(struct run *run, struct http_req *r, const struct worker_task *t)
{
	if (strcmp(run->digest, t->digest) != 0)
		answer_now(r, t->run_id, RUN_INVALID_REQUEST,
			"This run_id was used with another input. Choose a new run_id.");
	else if (run->stored)
		answer_send(r, run->answer);
	else if (run_waiters(run) < WAITERS)
		run_wait(run, r);
	else
		answer_now(r, t->run_id, RUN_RETRYABLE,
			"No more requests may wait for this run: ask again later.");
}

void runs_submit(struct http_req *r)
{
	_cleanup_(worker_task_fini) struct worker_task t = {0};
	struct daemon *d = r->app;
	char owner[OWNER_MAX], key[KEY_CHARS + 1];
	const char *why = "";
	struct err e = {0};
	struct run *run;

	if (worker_task_read(&t, r->body, r->body_len, &d->cfg, &e) < 0) {
		answer_now(r, t.run_id, RUN_INVALID_REQUEST, e.msg);
		return;
	}
	principal_owner(&r->principal, owner);
	run_key(owner, t.run_id, key);
	run = run_find(d->runs, key);
	if (run) {
		run_again(run, r, &t);
		return;
	}
	if (run_is_quarantined(d, key)) {
		answer_now(r, t.run_id, RUN_RETRYABLE,
			"The stored answer of this run_id cannot be read: an operator sees it with "
			"`mayfly doctor records`.");
		return;
	}
	run = run_new(d, owner, key, &t, &why);
	if (!run)
		answer_now(r, t.run_id, RUN_RETRYABLE, why);
	else if (run_wait(run, r))
		attempt_begin(run);
	else {
		run_unlink(run);
		run_free(run);
	}
}

/* ---- at start */

static int run_load(void *arg, const char *key, cJSON *doc)
{
	struct runs *all = arg;
	const char *owner = json_str(doc, "owner"), *digest = json_str(doc, "input"),
		   *answer = json_str(doc, "answer");
	bool ok = owner && digest && answer && strlen(key) == KEY_CHARS &&
		  strlen(owner) < OWNER_MAX && strlen(digest) == 64;
	struct run *run = ok ? calloc(1, sizeof(*run)) : NULL;

	if (run && !(run->answer = strdup(answer)))
		free(take_ptr(run));
	if (run) {
		run->all = all;
		run->account = &budget_of(all->d->budgets, &all->d->cfg, owner)->records;
		str_copy(run->key, sizeof(run->key), key);
		str_copy(run->owner, sizeof(run->owner), owner);
		str_copy(run->digest, sizeof(run->digest), digest);
		run->at_ns = json_get_i64(doc, "at");
		run->stored = true;
		run_charge(run, sizeof(*run) + strlen(answer));
		run->next = all->first;
		all->first = run;
	}
	cJSON_Delete(doc);
	return run ? 0 : ok ? -ENOMEM : -EINVAL;
}

void runs_load(struct daemon *d)
{
	database_load(d->database, DB_RUN, run_load, d->runs);
	runs_prune(d->runs);
}

struct runs *runs_create(struct daemon *d, pool_spec_fn parse)
{
	struct runs *all = calloc(1, sizeof(*all));

	if (!all)
		return NULL;
	*all = (struct runs){.d = d, .parse = parse};
	all->prune = loop_timer(d->loop, runs_prune, all);
	if (!all->prune)
		free(take_ptr(all));
	return all;
}
