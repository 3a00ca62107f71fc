/* SPDX-License-Identifier: Apache-2.0
 *
 * A hostile host with the whole protocol: files, bulk transfers, dials, sessions, set-up, commands.
 * The first byte is the kind of the connection, which is greeted; the rest is sent as it is. The
 * agent runs in a thread that has a file system (an empty tmpfs) and a network of its own, where it
 * may do what it is told; without the right to make these nothing is done. Left out: what stops the
 * loop or syncs the machine's disks.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <semaphore.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "agent/agent.h"
#include "agent/conn.h"
#include "agent/freeze.h"
#include "agent/hooks.h"
#include "agent/jobs.h"
#include "agent/proc.h"
#include "agent/procio.h"
#include "agent/session.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct agent A;
static struct {
	sem_t go, done;
	const uint8_t *p;
	size_t n;
	bool able;
} T;

static bool own_world(void)
{
	/* the thread's, and its children's, only */
	if (unshare(CLONE_FS | CLONE_NEWNS | CLONE_NEWNET) < 0 ||
		mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return false;
	return mount("none", "/tmp", "tmpfs", 0, "size=16m") == 0 && chdir("/tmp") == 0 &&
	       chroot(".") == 0;
}

static bool is_left_out(uint16_t type)
{
	return type == AGENT_SHUTDOWN || type == AGENT_PREPARE;
}

static void drain(int fd)
{
	static uint8_t sink[65536];

	while (recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
		;
}

static void greet(int fd, uint8_t kind)
{
	struct buf b;

	buf_init(&b, 64);
	buf_u32(&b, 12);
	buf_u16(&b, AGENT_HELLO);
	buf_u16(&b, 0);
	buf_u32(&b, 1);
	buf_u32(&b, AGENT_MAGIC);
	buf_u32(&b, AGENT_VERSION - (kind & 4 ? 1 : 0));
	buf_u32(&b, 1 + kind % 4);
	(void)!write(fd, b.p, b.len);
	buf_fini(&b);
}

static void send_all(int fd, const uint8_t *p, size_t n)
{
	struct frame f;
	size_t at = 0, used;

	while (at < n) {
		int rc = frame_next(p + at, n - at, &f, &used);

		if (rc <= 0)
			used = n - at;
		if (rc <= 0 || !is_left_out(f.h.type))
			(void)!send(fd, p + at, used, MSG_DONTWAIT | MSG_NOSIGNAL);
		at += used;
		loop_turn(A.loop, 0);
		drain(fd);
	}
}

static void one(const uint8_t *p, size_t n)
{
	int s[2];

	ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, s) == 0);
	conn_create(&A, s[0]);
	greet(s[1], p[0]);
	send_all(s[1], p + 1, n - 1);
	shutdown(s[1], SHUT_WR);
	/* to its end, and every thread with it */
	for (int i = 0; i < 4000 && (A.conns || jobs_running(&A) || A.n.dials); i++) {
		loop_turn(A.loop, 1);
		procs_reap(&A);
		drain(s[1]);
		if (i == 200)
			close_fd(&s[1]); /* a dial that waits for the other side */
	}
	close_fd(&s[1]);
	loop_turn(A.loop, 0);
	conn_close_all(&A);
	hooks_fini(&A);
	for (struct proc *q = A.procs; q; q = q->next)
		proc_signal(q, SIGKILL);
	for (int i = 0; i < 1000; i++) {
		bool any = false;

		for (struct proc *q = A.procs; q; q = q->next)
			any |= q->pid > 0;
		if (!any)
			break;
		loop_turn(A.loop, 1);
		procs_reap(&A);
	}
	procs_free(&A);
	sessions_free(&A);
	freeze_fini(&A);
	A.is_set_up = A.frozen = false;
	loop_turn(A.loop, 0);
	ASSERT(A.n.conns == 0 && A.nprocs == 0 && A.n.dials == 0 && jobs_running(&A) == 0);
}

/* libFuzzer's timer interrupts it: who goes on then frees the input that the other one reads */
static void wait_for(sem_t *s)
{
	while (sem_wait(s) < 0)
		;
}

static void *agent_thread(void *arg)
{
	struct agent_opts o = {.listen_path = "/sock", .run_dir = "/run"};
	struct err e;

	T.able = own_world();
	if (T.able) {
		log_level = LOG_ERROR;
		ASSERT(mkdir("/run", 0755) == 0 && agent_init(&A, &o, &e) == 0);
	}
	for (;;) {
		sem_post(&T.done);
		wait_for(&T.go);
		one(T.p, T.n);
	}
	return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static pthread_t t;

	if (!t) {
		sem_init(&T.go, 0, 0);
		sem_init(&T.done, 0, 0);
		ASSERT(pthread_create(&t, NULL, agent_thread, NULL) == 0);
		wait_for(&T.done);
	}
	if (!n || !T.able)
		return 0;
	T.p = p;
	T.n = n;
	sem_post(&T.go);
	wait_for(&T.done);
	return 0;
}
