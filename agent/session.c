/* SPDX-License-Identifier: Apache-2.0
 *
 * session.c: the registry, and SHELL sessions. The loop's thread. A run's shell ends by executing this very program as a helper, which inherits exactly
 * the exported variables and the working directory and writes them down: no shell's quoting has to be parsed. The dump is written by
 * programs of the guest, so it is hostile: bounded, and only ever made into variables and a working directory.
 *
 * A session keeps differences to what the run was given, not the whole environment, so that variables which are set for all
 * later commands reach sessions, too.
 */
#include "agent/session.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/env.h"
#include "agent/isolate.h"
#include "agent/terminal.h"

#define DUMP_MAX     (1u << 20)
#define SESSIONS_MAX 1024u

static void session_free(struct session *s)
{
	if (s->run)
		s->run->session = NULL;
	s->run = NULL;
	terminal_free(s->terminal);
	isolate_free(s->iso);
	free(s->cwd);
	free(s->note);
	env_unref(s->set);
	env_unref(s->unset);
	free(s);
}

struct session *session_find(struct agent *a, const char *id)
{
	for (struct session *s = a->sessions; s; s = s->next)
		if (!strcmp(s->id, id))
			return s;
	return NULL;
}

int session_make(struct agent *a, const char *id, const char *cwd, enum agent_session_kind kind,
	struct session **made)
{
	struct session *s;
	size_t n = 0;

	if (!*id || strlen(id) >= sizeof(s->id))
		return -EINVAL;
	if (session_find(a, id))
		return -EEXIST;
	for (s = a->sessions; s; s = s->next)
		n++;
	s = n < SESSIONS_MAX ? calloc(1, sizeof(*s)) : NULL;
	if (!s)
		return -ENOMEM;
	*s = (struct session){.a = a, .kind = kind, .created_ns = wall_ns()};
	snprintf(s->id, sizeof(s->id), "%s", id);
	s->cwd = strdup(cwd);
	s->set = env_new();
	s->unset = env_new();
	if (!s->cwd || !s->set || !s->unset) {
		session_free(s);
		return -ENOMEM;
	}
	s->next = a->sessions;
	a->sessions = s;
	if (made)
		*made = s;
	return 0;
}

int session_create(struct agent *a, const char *id, const char *cwd)
{
	return session_make(a, id, cwd, AGENT_SE_SHELL, NULL);
}

struct session *session_take(struct agent *a, const char *id)
{
	for (struct session **l = &a->sessions; *l; l = &(*l)->next) {
		struct session *s = *l;

		if (strcmp(s->id, id) != 0)
			continue;
		*l = s->next;
		return s;
	}
	return NULL;
}

void session_drop(struct session *s)
{
	if (s)
		session_free(s);
}

int session_destroy(struct agent *a, const char *id)
{
	struct session *s = session_take(a, id);

	if (!s)
		return -ENOENT;
	if (s->run && s->kind == AGENT_SE_SHELL)
		proc_signal(s->run, SIGKILL);
	session_free(s);
	return 0;
}

void sessions_free(struct agent *a)
{
	while (a->sessions) {
		struct session *s = a->sessions;

		a->sessions = s->next;
		session_free(s);
	}
}

bool session_busy(const struct session *s)
{
	return s->run != NULL;
}

const char *session_cwd(const struct session *s)
{
	return s->cwd;
}

int session_apply(const struct session *s, struct envset *env)
{
	for (size_t i = 0; i < s->unset->n; i++) {
		char name[256];

		snprintf(name, sizeof(name), "%.*s", (int)strcspn(s->unset->kv[i], "="),
			s->unset->kv[i]);
		env_unset(env, name);
	}
	return env_merge(env, s->set);
}

char *session_script(const char *text)
{
	static const char head[] = "trap 'exec /proc/self/fd/198 --dump-env \"$?\"' EXIT\n";
	size_t n = strlen(text);
	char *s = malloc(sizeof(head) + n);

	if (s) {
		memcpy(s, head, sizeof(head) - 1);
		memcpy(s + sizeof(head) - 1, text, n + 1);
	}
	return s;
}

void session_run_begins(
	struct session *s, struct proc *p, struct envset *given, int dump_fd, bool own_cwd)
{
	s->last_run_ns = wall_ns();
	p->session = s;
	p->given = given;
	p->dump_fd = dump_fd;
	s->run = p;
	s->own_cwd = own_cwd;
}

void session_run_lost(struct proc *p)
{
	if (p->session)
		p->session->run = NULL;
	p->session = NULL;
}

/* Is this a variable that the shell sets itself, or that is new in each process? It is not kept. */
static bool is_passing(const char *kv)
{
	static const char *const names[] = {
		"_=", "PWD=", "SHLVL=", "EXECD_ENVS=", "BASH_EXECUTION_STRING=", "BASHPID="};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (!strncmp(kv, names[i], strlen(names[i])))
			return true;
	return false;
}

static int keep_var(struct session *s, const char *kv, const struct envset *given)
{
	const char *eq = strchr(kv, '='), *was;
	char name[256];
	int rc = 0;

	if (!eq || eq == kv || (size_t)(eq - kv) >= sizeof(name) || is_passing(kv))
		return 0;
	snprintf(name, sizeof(name), "%.*s", (int)(eq - kv), kv);
	was = env_get(given, name);
	if (!was || strcmp(was, eq + 1) != 0)
		rc = env_set(s->set, name, eq + 1);
	if (rc == 0)
		env_unset(s->unset, name);
	return rc;
}

int session_take_dump(struct session *s, const char *bytes, size_t n, const struct envset *given,
	bool own_cwd, const char *run_cwd)
{
	const char *end = bytes + n, *cwd = bytes;
	struct envset *now;
	int rc = 0;

	if (n < 2 || n > DUMP_MAX || bytes[n - 1] != 0 || bytes[0] != '/')
		return -EPROTO;
	now = env_new();
	if (!now)
		return -ENOMEM;
	for (const char *p = bytes + strlen(bytes) + 1; p < end && rc == 0; p += strlen(p) + 1) {
		const char *eq = strchr(p, '=');

		rc = keep_var(s, p, given);
		if (rc == 0 && eq && eq != p)
			rc = env_setn(now, p, (size_t)(eq - p), "", 0);
	}
	for (size_t i = 0; i < given->n && rc == 0; i++) {
		char name[256];

		if (is_passing(given->kv[i]) || strcspn(given->kv[i], "=") >= sizeof(name))
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(given->kv[i], "="), given->kv[i]);
		if (env_get(now, name))
			continue;
		env_unset(s->set, name);
		rc = env_set(s->unset, name, "");
	}
	env_unref(now);
	/* a directory given for one run is not kept, unless the run changed it */
	if (rc == 0 && (!own_cwd || strcmp(cwd, run_cwd) != 0)) {
		char *d = strdup(cwd);

		if (d) {
			free(s->cwd);
			s->cwd = d;
		}
	}
	return rc;
}

void session_run_ended(struct proc *p)
{
	struct session *s = p->session;
	_cleanup_free_ char *bytes = NULL;
	struct stat st;

	session_run_lost(p);
	if (fstat(p->dump_fd, &st) == 0 && st.st_size > 0 && st.st_size <= DUMP_MAX)
		bytes = malloc((size_t)st.st_size);
	/* no dump: it was killed, or executed something else; the session keeps what it had */
	if (bytes && pread_full(p->dump_fd, bytes, (size_t)st.st_size, 0) == 0 &&
		session_take_dump(s, bytes, (size_t)st.st_size, p->given, s->own_cwd, p->run_cwd) <
			0)
		log_limited(LOG_WARN, "a session's state could not be kept");
	close_fd(&p->dump_fd);
}

int session_helper(const char *code)
{
	extern char **environ;
	char cwd[AGENT_PATH_MAX];
	struct buf b;
	int rc;

	buf_init(&b, DUMP_MAX);
	if (!getcwd(cwd, sizeof(cwd)))
		snprintf(cwd, sizeof(cwd), "/");
	buf_put(&b, cwd, strlen(cwd) + 1);
	for (char **e = environ; *e; e++)
		buf_put(&b, *e, strlen(*e) + 1);
	rc = b.bad ? -E2BIG : pwrite_full(SESSION_DUMP_FD, b.p, b.len, 0);
	buf_fini(&b);
	if (rc < 0)
		return 127;
	rc = 0;
	for (; *code >= '0' && *code <= '9'; code++)
		rc = (rc * 10 + *code - '0') & 0xff;
	return rc;
}
