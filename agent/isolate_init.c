/* SPDX-License-Identifier: Apache-2.0
 *
 * isolate_init.c: process 1 of an isolated session. The agent clones it into the session's
 * namespaces and executes this very program with --isolate, so none of the agent's memory is there.
 * It builds the part of the view that is the same for all sessions and waits until the agent says
 * which session it is. Then it builds the rest, gives up all privileges and starts the shell as
 * process 2. It reaps until the shell ends; the kernel then kills what is left in the session.
 * Nothing of the image runs in it before it was told.
 *
 * The shell is one for all runs. It reads the name of a file to run from ISO_SHELL_CMD, sources it with that descriptor closed, and writes
 * the exit code to ISO_SHELL_STATUS: no program of a run inherits the two.
 */
#include "agent/isolate_conf.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sched.h>

#include "agent/seal.h"
#include "agent/text.h"

/* SIGINT ends the run, not the shell. In bash the trap returns from the function or file that runs.
 * Then a DEBUG trap makes every command of the files around it return as well (functrace and
 * extdebug, code 2), until the loop is reached, where no file is being sourced. Other shells leave
 * one function with each SIGINT. They exit on a syntax error in a file that they source, so `sh -n`
 * tries the file first. The wrapper of a background run has ISO_SHELL_STATUS, because it reports the
 * run's start and end there; the run's own code does not inherit it. */
static const char driver[] =
	"EXECD_INT=\n"
	"[ -z \"$BASH_VERSION\" ] || set -T\n"
	"printf 'r\\n' >&9\n"
	"while trap '[ -z \"$BASH_VERSION\" ] || { EXECD_INT=1; shopt -s extdebug; trap "
	"'\\''[ ${#BASH_SOURCE[@]} = 0 ] || test a b c 2>/dev/null'\\'' DEBUG; }; "
	"return 130 2>/dev/null' INT; IFS= read -r EXECD_RUN <&8; do\n"
	"case $EXECD_RUN in\n"
	"b*) . \"" ISO_RUN_DIR "/$EXECD_RUN\" </dev/null 8<&- ;;\n"
	"*) if [ -n \"$BASH_VERSION\" ] || sh -n \"" ISO_RUN_DIR "/c${EXECD_RUN#?}\"; then\n"
	". \"" ISO_RUN_DIR "/$EXECD_RUN\" </dev/null 8<&- 9>&-\n"
	"EXECD_CODE=$?\n"
	"else EXECD_CODE=2; fi\n"
	"[ -z \"$EXECD_INT\" ] || { EXECD_INT=; trap - DEBUG; shopt -u extdebug; EXECD_CODE=130; "
	"}\n"
	"printf 'd %s\\n' \"$EXECD_CODE\" >&9 ;;\n"
	"esac\n"
	"done\n";

#define CLOSE_CLOEXEC 4u /* CLOSE_RANGE_CLOEXEC */

static void say(const char *text)
{
	(void)!write(ISO_FD_STATUS, text, strlen(text));
}

static int failed(int code, const char *text)
{
	char line[ISO_LINE_MAX];

	snprintf(line, sizeof(line), "f %d %.500s\n", code < 0 ? -code : code, text);
	for (char *p = line; *p && p[1]; p++)
		if (*p == '\n')
			*p = ' ';
	say(line);
	return 1;
}

/* Waits until the agent says which session this is. False: the agent no longer needs this
 * process. */
static bool wait_for_go(void)
{
	char got[sizeof(ISO_GO)] = "";

	/* no byte more than that: what follows is for the shell */
	for (size_t n = 0; n < strlen(ISO_GO);) {
		ssize_t k = read(ISO_FD_CMD, got + n, strlen(ISO_GO) - n);

		if (k <= 0 && !(k < 0 && errno == EINTR))
			return false;
		n += (size_t)MAX(k, 0);
	}
	return !strcmp(got, ISO_GO);
}

static int read_conf(struct iso_conf *c)
{
	_cleanup_free_ uint8_t *p = NULL;
	struct stat st;
	struct cur b;
	size_t n;

	if (fstat(ISO_FD_CONF, &st) < 0)
		return -errno;
	if (st.st_size < ISO_CONF_AT)
		return -EPROTO;
	n = (size_t)st.st_size - ISO_CONF_AT;
	p = malloc(n + 1);
	if (!p || pread_full(ISO_FD_CONF, p, n, ISO_CONF_AT) < 0)
		return -EIO;
	b = cur_of(p, n);
	return iso_conf_parse(&b, c);
}

/* bash, or sh, from the environment's PATH. */
static void exec_shell(const struct envset *env)
{
	static const char *const names[] = {"bash", "sh"};
	const char *path = env_get(env, "PATH");

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		for (const char *p = path ? path : "/usr/local/bin:/usr/bin:/bin"; *p;) {
			size_t n = strcspn(p, ":");
			char file[AGENT_PATH_MAX];

			char *argv[] = {(char *)(uintptr_t)names[i], (char *)(uintptr_t) "-c",
				(char *)(uintptr_t)driver, (char *)(uintptr_t)names[i], NULL};

			if (*p == '/' && snprintf(file, sizeof(file), "%.*s/%s", (int)n, p,
						 names[i]) < (int)sizeof(file))
				execve(file, argv, env->kv);
			p += n + (p[n] == ':');
		}
	}
}

_noreturn_ static void shell_child(const struct iso_conf *c)
{
	sigset_t none;
	int rc;

	/* both sources are above both targets, so neither call overwrites the other's */
	dup2(ISO_FD_CMD, ISO_SHELL_CMD);
	dup2(ISO_FD_STATUS, ISO_SHELL_STATUS);
	/* everything else was given up before the fork; this keeps the shell away from the first
	 * process */
	rc = seal_apart();
	if (rc < 0) {
		failed(rc, "sealing the session's shell");
		_exit(127);
	}
	if (chdir(c->cwd) < 0) {
		char text[ISO_LINE_MAX];
		int code = errno;

		snprintf(text, sizeof(text), "the session's user cannot enter %.400s: %s", c->cwd,
			strerror(code));
		failed(code, text);
		_exit(127);
	}
	prctl(PR_SET_DUMPABLE, 1);
	/* the shell inherits 0, 1, 2 and its two, and nothing else */
	syscall(SYS_close_range, 3, ISO_SHELL_CMD - 1, CLOSE_CLOEXEC);
	syscall(SYS_close_range, ISO_SHELL_STATUS + 1, ~0u, CLOSE_CLOEXEC);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	exec_shell(c->env);
	failed(errno, "no shell in the session's PATH");
	_exit(127);
}

/* Reaps until the shell has ended; its wait status. */
static int reap(pid_t shell)
{
	for (;;) {
		int st;
		pid_t pid = waitpid(-1, &st, 0);

		if (pid == shell)
			return st;
		if (pid < 0 && errno != EINTR)
			return 0;
	}
}

int isolate_main(void)
{
	static struct iso_conf c;
	static char dir[ISO_CONF_AT];
	struct err e = {0};
	struct iso_view v = {.dir = dir, .old = -1, .root = -1, .e = &e};
	char line[40];
	sigset_t all;
	pid_t shell;
	int rc;

	/* what is sent to the session's group is for the shell */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	prctl(PR_SET_NAME, "execd-session");
	prctl(PR_SET_DUMPABLE, 0);
	if (pread_full(ISO_FD_CONF, dir, sizeof(dir), 0) < 0 || dir[sizeof(dir) - 1])
		return failed(EPROTO, "the session's directory");
	if (unshare(CLONE_NEWCGROUP) < 0 && errno != EINVAL)
		return failed(errno, "a cgroup namespace");
	if (sethostname("sandbox", 7) < 0)
		return failed(errno, "a host name");
	rc = isolate_view_begin(&v);
	if (rc < 0)
		return failed(rc, e.msg);
	if (!wait_for_go())
		return 0;
	rc = read_conf(&c);
	if (rc < 0)
		return failed(rc, "the session's configuration");
	rc = isolate_view_end(&v, &c);
	if (rc < 0)
		return failed(rc, e.msg);
	close(ISO_FD_CONF);
	/* once, for this process and for the shell */
	rc = seal_session(c.user.uid, c.user.gid, c.user.groups, c.user.ngroups);
	if (rc < 0)
		return failed(rc, "sealing the session");
	shell = fork();
	if (shell == 0)
		shell_child(&c);
	if (shell < 0)
		return failed(errno, "a process for the shell");
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	syscall(SYS_close_range, 3, ISO_FD_STATUS - 1, 0);
	syscall(SYS_close_range, ISO_FD_STATUS + 1, ~0u, 0);
	snprintf(line, sizeof(line), "x %d\n", reap(shell));
	say(line);
	return 0;
}
