/* SPDX-License-Identifier: Apache-2.0
 *
 * A hostile host: any bytes on a connection of the real agent's loop, which has a process, a terminal and a background process to ask about. Requests
 * that would change the machine it runs on are left out here; agent_requests.c has their parsers.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "agent/agent.h"
#include "agent/conn.h"
#include "agent/procio.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct agent A;

static bool is_harmless(uint16_t type)
{
	switch (type) {
	case AGENT_EXEC:
	case AGENT_SETUP:
	case AGENT_PREPARE:
	case AGENT_THAW:
	case AGENT_SHUTDOWN:
	case AGENT_SESSION_NEW:
	case AGENT_DIAL_TCP:
	case AGENT_DIAL_UNIX:
		return false;
	default:
		return type < AGENT_STAT || type > AGENT_DATA;
	}
}

static struct proc *make_proc(const char *id, uint32_t flags)
{
	struct proc *q = proc_create(&A, id, flags);

	ASSERT(q);
	q->started = true;
	for (int i = 0; i < 3000; i++) {
		buf_u8(&q->out[0].ring, (uint8_t)i);
		buf_u8(&q->out[1].ring, (uint8_t)i);
	}
	if (flags & AGENT_X_BACKGROUND)
		q->file_fd = memfd_create("out", MFD_CLOEXEC);
	return q;
}

static void drain(int fd)
{
	static uint8_t sink[65536];

	while (recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
		;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct agent_opts o = {.listen_path = "/tmp/agent-fuzz.sock", .run_dir = "/tmp"};
	struct frame f;
	size_t at = 0, used;
	int s[2];

	if (!A.loop) {
		struct err e;

		ASSERT(agent_init(&A, &o, &e) == 0);
		log_level = LOG_ERROR;
	}
	ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, s) == 0);
	make_proc("p", AGENT_X_STDIN);
	make_proc("t", AGENT_X_PTY);
	make_proc("b", AGENT_X_BACKGROUND);
	conn_create(&A, s[0]);
	while (at < n) {
		int rc = frame_next(p + at, n - at, &f, &used);

		if (rc <= 0) {
			(void)!write(s[1], p + at, n - at);
			break;
		}
		if (is_harmless(f.h.type))
			(void)!write(s[1], p + at, used);
		at += used;
		loop_turn(A.loop, 0);
		drain(s[1]);
	}
	loop_turn(A.loop, 0);
	loop_turn(A.loop, 0);
	drain(s[1]);
	close(s[1]);
	for (int i = 0; i < 4 && A.conns; i++)
		loop_turn(A.loop, 0);
	conn_close_all(&A);
	procs_free(&A);
	loop_turn(A.loop, 0);
	ASSERT(A.n.conns == 0 && A.nprocs == 0);
	return 0;
}
