/* SPDX-License-Identifier: Apache-2.0
 *
 * proc.c: the registry of processes. The loop's thread. A process is known by the id that the host gave it, from AGENT_EXEC until
 * AGENT_FORGET; the agent is init, so it also reaps every orphan, of which it knows nothing.
 */
#include "agent/proc.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "agent/conn.h"
#include "agent/env.h"
#include "agent/isolate.h"
#include "agent/life.h"
#include "agent/procio.h"
#include "agent/session.h"
#include "agent/terminal.h"

#define KEPT_ENDED_BYTES MIB(8)
#define KEPT_ENDED_PROCS 2048u

static void limit_fired(void *arg)
{
	struct proc *p = arg;

	if (p->exited)
		return;
	if (p->run_number) {
		isolate_timeout(p);
		return;
	}
	if (!p->pid)
		return;
	p->timed_out = true;
	proc_signal(p, SIGKILL);
}

static void kill_fired(void *arg)
{
	struct proc *p = arg;

	if (!p->exited)
		proc_signal(p, SIGKILL);
}

struct proc *proc_create(struct agent *a, const char *id, uint32_t flags)
{
	struct proc *p;

	procs_trim(a);
	if (a->nprocs >= PROCS_MAX || !(p = calloc(1, sizeof(*p))))
		return NULL;
	*p = (struct proc){
		.a = a, .flags = flags, .state = AGENT_RUNNING, .number = ++a->next_proc};
	snprintf(p->id, sizeof(p->id), "%s", id);
	p->in_fd = p->file_fd = p->dump_fd = p->cgroup.dir_fd = -1;
	for (int i = 0; i < 2; i++) {
		p->out[i].fd = -1;
		buf_init(&p->out[i].ring, 2 * AGENT_WINDOW);
	}
	buf_init(&p->in, 2 * AGENT_WINDOW);
	buf_init(&p->marks, KIB(64));
	buf_init(&p->argv, PROC_ARGV_KEPT + 64);
	p->next = a->procs;
	p->link = &a->procs;
	if (p->next)
		p->next->link = &p->next;
	a->procs = p;
	a->nprocs++;
	return p;
}

void proc_destroy(struct proc *p)
{
	if (!p)
		return;
	if (p->session)
		session_run_lost(p);
	if (p->terminal)
		terminal_take_back(p->terminal, p);
	if (p->iso)
		isolate_lost(p);
	procio_fini(p);
	timer_remove(p->limit_timer);
	timer_remove(p->kill_timer);
	cgroup_release(p->a, &p->cgroup);
	close_fd(&p->dump_fd);
	env_unref(p->given);
	free(p->run_cwd);
	buf_fini(&p->argv);
	*p->link = p->next;
	if (p->next)
		p->next->link = p->link;
	p->a->nprocs--;
	free(p);
}

struct proc *proc_find(struct agent *a, const char *id)
{
	for (struct proc *p = a->procs; p; p = p->next)
		if (!strcmp(p->id, id))
			return p;
	return NULL;
}

struct proc *proc_find_pid(struct agent *a, pid_t pid)
{
	for (struct proc *p = a->procs; p; p = p->next)
		if (p->pid == pid)
			return p;
	return NULL;
}

void proc_started(struct proc *p, uint64_t timeout_ms)
{
	p->started = true;
	p->started_ns = wall_ns();
	if (!timeout_ms)
		return;
	p->limit_timer = loop_timer(p->a->loop, limit_fired, p);
	if (p->limit_timer)
		timer_after(p->limit_timer, MIN(timeout_ms, UINT64_MAX / 4000000) * 1000000);
	else
		limit_fired(p); /* no timer: end it now, rather than let it run without its limit */
}

static void proc_set_ended(struct proc *p, enum agent_state state, uint32_t code)
{
	p->exited = true;
	p->finished_ns = wall_ns();
	p->state = state;
	p->code = code;
	timer_remove(p->limit_timer);
	timer_remove(p->kill_timer);
	p->limit_timer = p->kill_timer = NULL;
}

void proc_reaped(struct proc *p, int wait_status)
{
	if (!p->started) {
		p->has_status = true;
		p->wait_status = wait_status;
		return;
	}
	p->pid = 0;
	if (p->timed_out)
		proc_set_ended(p, AGENT_TIMED_OUT, SIGKILL);
	else if (WIFSIGNALED(wait_status))
		proc_set_ended(p, AGENT_SIGNALED, (uint32_t)WTERMSIG(wait_status));
	else
		proc_set_ended(p, AGENT_EXITED, (uint32_t)WEXITSTATUS(wait_status));
	if (p->session)
		session_run_ended(p);
	/* send its end first, because a client waits for it */
	procio_drain(p);
	cgroup_release(p->a, &p->cgroup);
	if (p->on_end)
		p->on_end(p->a, p);
	if (!p->forget)
		return;
	if (p->conn && !p->exit_sent)
		conn_close(p->conn);
	proc_destroy(p);
}

void proc_ended(struct proc *p, enum agent_state state, uint32_t code)
{
	int n = 0;

	/* the shell reported the end after the last byte of the run: what follows in the pipe is of
	 * other programs, which may never stop */
	if (p->out[0].fd >= 0 && ioctl(p->out[0].fd, FIONREAD, &n) == 0)
		p->drain_left = (size_t)n;
	proc_set_ended(p, state, code);
	procio_drain(p);
}

void proc_keep_argv(struct proc *p, char *const *argv, uint32_t argc)
{
	size_t bytes = 4;
	uint32_t n = 0;

	while (n < argc && bytes + strlen(argv[n]) + 4 <= PROC_ARGV_KEPT)
		bytes += strlen(argv[n++]) + 4;
	if (n == 0 && argc) {
		/* one text that is too long: its beginning */
		buf_u32(&p->argv, 1);
		buf_blob(&p->argv, argv[0], PROC_ARGV_KEPT - 8);
		return;
	}
	buf_u32(&p->argv, n);
	for (uint32_t i = 0; i < n; i++)
		buf_str(&p->argv, argv[i]);
}

int proc_signal(struct proc *p, int sig)
{
	if (p->run_number)
		return p->iso ? isolate_signal(p, sig) : -ESRCH;
	if (!p->pid || p->exited)
		return -ESRCH;
	/* a child between clone and setsid has no group yet */
	if (kill(-p->pid, sig) < 0 && kill(p->pid, sig) < 0)
		return -errno;
	if (sig == SIGKILL)
		cgroup_kill(p->a, &p->cgroup);
	return 0;
}

void proc_kill_after(struct proc *p, uint32_t ms)
{
	if (!ms)
		return;
	if (!p->kill_timer)
		p->kill_timer = loop_timer(p->a->loop, kill_fired, p);
	if (p->kill_timer)
		timer_after(p->kill_timer, (uint64_t)ms * 1000000);
	else
		proc_signal(p, SIGKILL);
}

void procs_reap(struct agent *a)
{
	bool any = false;
	pid_t pid;
	int st;

	while ((pid = waitpid(-1, &st, WNOHANG)) > 0) {
		struct proc *p = proc_find_pid(a, pid);

		any = true;
		a->n.reaped_total++;
		if (p)
			proc_reaped(p, st);
		else
			a->n.orphans_reaped++;
	}
	if (!any)
		return;
	cgroups_sweep(a);
	cgroup_make_spare(a);
	if (a->shutting_down)
		shutdown_check(a);
}

/* New processes are at the front of the list, so the last match is the oldest. */
static struct proc *oldest_ended(struct agent *a, bool delivered, size_t *n, size_t *bytes)
{
	struct proc *old = NULL;

	*n = *bytes = 0;
	for (struct proc *p = a->procs; p; p = p->next) {
		if (!p->ended || p->entrypoint || p->terminal)
			continue;
		(*n)++;
		*bytes += procio_kept(p);
		if (!delivered || p->exit_sent || (p->flags & AGENT_X_BACKGROUND))
			old = p;
	}
	return old;
}

void procs_trim(struct agent *a)
{
	size_t n, bytes;
	struct proc *p;

	for (;;) {
		p = oldest_ended(a, true, &n, &bytes);
		if (n < KEPT_ENDED_PROCS && bytes < KEPT_ENDED_BYTES)
			return;
		if (!p)
			p = oldest_ended(a, false, &n, &bytes);
		if (!p)
			return;
		proc_destroy(p);
	}
}

void procs_free(struct agent *a)
{
	while (a->procs)
		proc_destroy(a->procs);
}
