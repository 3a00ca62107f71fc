/* SPDX-License-Identifier: Apache-2.0
 *
 * agent.c: puts the modules together: the listener, SIGCHLD, readiness, shutdown. The loop's thread.
 */
#include "agent/agent.h"

#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "agent/cgroup.h"
#include "agent/conn.h"
#include "agent/env.h"
#include "agent/freeze.h"
#include "agent/harden.h"
#include "agent/hooks.h"
#include "agent/inward.h"
#include "agent/isolate.h"
#include "agent/jobs.h"
#include "agent/life.h"
#include "agent/ports.h"
#include "agent/proc.h"
#include "agent/ready.h"
#include "agent/session.h"

static void listen_event(void *arg, uint32_t events)
{
	struct agent *a = arg;

	for (int i = 0; i < 16; i++) {
		struct sockaddr_vm peer = {0};
		socklen_t n = sizeof(peer);
		int fd = accept4(
			a->listen_fd, (struct sockaddr *)&peer, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0)
			return;
		/* any program of the guest reaches this port through vsock's loopback, and would be
		 * served as root: only the host is served */
		if (peer.svm_family == AF_VSOCK && peer.svm_cid != VMADDR_CID_HOST) {
			a->n.conns_refused++;
			close(fd);
			continue;
		}
		conn_create(a, fd);
	}
}

static int listen_unix(const char *path, struct err *e)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (strlen(path) >= sizeof(sa.sun_path))
		return err_plain(e, ENAMETOOLONG, "%s: too long for a socket", path);
	memcpy(sa.sun_path, path, strlen(path));
	unlink(path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(fd, 64) < 0)
		return err_set(e, errno, "listening on %s", path);
	return take_fd(&fd);
}

static void signal_event(void *arg, uint32_t events)
{
	struct agent *a = arg;
	struct signalfd_siginfo si;
	bool child = false;

	while (read(a->sig_fd, &si, sizeof(si)) == sizeof(si)) {
		if (si.ssi_signo == SIGCHLD)
			child = true;
		else if (si.ssi_signo != SIGINT)
			life_signal(a, (int)si.ssi_signo);
		else if (!a->opts.init)
			loop_stop(a->loop, 0);
	}
	if (child)
		procs_reap(a);
}

/* SIGINT is Ctrl-Alt-Del for PID 1, which ignores it. An agent of a test stops on it. */
static const int taken_signals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH};

static int watch_signals(struct agent *a)
{
	struct sigaction sa;
	sigset_t all, some;

	/* a parent may have left signals ignored: the agent's children would inherit that through
	 * execve */
	for (int i = 1; i < NSIG; i++)
		if (sigaction(i, NULL, &sa) == 0 && sa.sa_handler == SIG_IGN)
			signal(i, SIG_DFL);
	/* all are blocked: a stray signal from the guest's root must not end init, a broken pipe is
	 * an error code */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	sigemptyset(&some);
	for (size_t i = 0; i < ARRAY_LEN(taken_signals); i++)
		sigaddset(&some, taken_signals[i]);
	a->sig_fd = signalfd(-1, &some, SFD_CLOEXEC | SFD_NONBLOCK);
	if (a->sig_fd < 0)
		return -errno;
	a->sig_w = loop_watch(a->loop, a->sig_fd, EPOLLIN, signal_event, a);
	return a->sig_w ? 0 : -errno;
}

int agent_init(struct agent *a, const struct agent_opts *o, struct err *e)
{
	int rc;

	*a = (struct agent){.opts = *o,
		.listen_fd = -1,
		.sig_fd = -1,
		.record_fd = -1,
		.exe_fd = -1,
		.ready_fd = -1};
	a->loop = loop_create();
	a->image_env = env_new();
	if (!a->loop || !a->image_env)
		return err_plain(e, ENOMEM, "no memory");
	if (o->init || o->guarded) {
		/* Programs written for the protocol look for a process of this name. No command may
		 * read the agent's memory or environment (exec.c takes CAP_SYS_PTRACE away). */
		prctl(PR_SET_NAME, "execd");
		prctl(PR_SET_DUMPABLE, 0);
	}
	rc = watch_signals(a);
	if (rc < 0)
		return err_set(e, -rc, "signals");
	rc = jobs_init(a);
	if (rc < 0)
		return err_set(e, -rc, "jobs");
	a->exe_fd = open(o->helper ? o->helper : "/proc/self/exe", O_RDONLY | O_CLOEXEC);
	if (o->record_path) {
		a->record_fd = open(o->record_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		if (a->record_fd < 0)
			return err_set(e, errno, "%s", o->record_path);
	}
	mkdir(o->run_dir, 0755);
	if (o->cgroup_dir) {
		rc = cgroups_init(a, o->cgroup_dir);
		if (rc < 0)
			log_warn("no cgroups: %s", strerror(-rc));
	}
	a->listen_fd = o->listen_path ? listen_unix(o->listen_path, e) : ready_listen(e);
	if (a->listen_fd < 0)
		return a->listen_fd;
	a->listen_w = loop_watch(a->loop, a->listen_fd, EPOLLIN, listen_event, a);
	if (!a->listen_w)
		return err_set(e, errno, "watching the listener");
	if (!o->listen_path)
		ready_announce(a);
	return 0;
}

int agent_run(struct agent *a)
{
	return loop_run(a->loop);
}

void agent_fini(struct agent *a)
{
	conn_close_all(a);
	freeze_fini(a);
	ports_fini(a);
	hooks_fini(a);
	harden_fini(a);
	inward_fini(a);
	jobs_fini(a);
	conn_close_all(a); /* connections that jobs_fini() gave back */
	procs_free(a);
	isolate_fini(a);
	sessions_free(a);
	session_drop(a->pre_script);
	cgroups_fini(a);
	ready_fini(a);
	watch_remove(a->listen_w);
	watch_remove(a->sig_w);
	timer_remove(a->shutdown_timer);
	if (a->loop)
		loop_turn(a->loop, 0); /* runs deferred work: connections are freed there */
	loop_destroy(a->loop);
	close_fd(&a->listen_fd);
	close_fd(&a->sig_fd);
	close_fd(&a->record_fd);
	close_fd(&a->exe_fd);
	env_unref(a->image_env);
	env_unref(a->setup_env);
	free(a->workdir);
	free(a->user);
}
