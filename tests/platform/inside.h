/* SPDX-License-Identifier: Apache-2.0
 *
 * inside.h: what the tests that go into a jail share: a new pid namespace to do it in, as
 * mayfly-priv makes one.
 */
#pragma once

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/jail.h"

/* Whether a jail can be entered here at all; says why not. */
static inline bool inside_can(void)
{
	if (geteuid() != 0)
		printf("needs root\n");
	else if (!jail_landlock_abi())
		printf("this kernel has no Landlock\n");
	else
		return true;
	return false;
}

/* The exit code of fn(arg) as pid 1 of a new pid namespace; 128 + the signal that ended it. */
static inline int in_new_pid_namespace(int (*fn)(void *arg), void *arg)
{
	pid_t p = fork();
	int st;

	if (p == 0) {
		if (unshare(CLONE_NEWPID) < 0)
			_exit(99);
		p = fork();
		if (p == 0) {
			int rc = fn(arg);

			fflush(stdout);
			_exit(rc);
		}
		waitpid(p, &st, 0);
		_exit(WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st));
	}
	waitpid(p, &st, 0);
	return WIFEXITED(st) ? WEXITSTATUS(st) : -1;
}

/* A process of another user's, to attack; it ends with its parent. */
static inline pid_t new_neighbour(uid_t uid)
{
	pid_t p = fork();

	if (p == 0) {
		if (setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
			_exit(1);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pause();
		_exit(0);
	}
	return p;
}
