/* SPDX-License-Identifier: Apache-2.0
 *
 * agentload: the host's half of the agent's bench: agentload SOCKET waits for the agent of a guest
 * behind a monitor's vsock socket and then does one thing per line of its input, answering each
 * with the microseconds it took, or "failed TEXT":
 *
 *   ping               an empty request on a kept connection
 *   true               AGENT_EXEC of `true` on an open connection, until AGENT_EXIT has come
 *   true-cold          the same, with the connection
 *   fork               fork + exec + wait of the same program, done and measured by a process in
 *                      the guest (bench/forkexec.c)
 *   put N, get N       one file of N bytes to or from the guest
 *   puts K N, gets K N K files of N bytes, one after the other on one connection
 */
#include "tests/agent_host.h"

#include <inttypes.h>

#define FORKEXEC "/bin/forkexec"

static struct host H;
static struct got G;
static int ctl = -1, forker = -1;
static uint8_t data[AGENT_FRAME_MAX];

static bool run_ping(uint64_t *ns)
{
	uint64_t t = mono_ns();
	bool ok = host_ask(&H, ctl, AGENT_PING, NULL, &G);

	*ns = mono_ns() - t;
	return ok;
}

static bool start_exec(int fd, const char *id, uint32_t flags, const char *const *argv)
{
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	host_exec_body(&b, id, flags, "/", 0, "", argv, NULL);
	host_send(fd, AGENT_EXEC, 2, &b);
	buf_fini(&b);
	return true;
}

/* The connection stands before the clock starts, as the daemon's spare one does; `cold` has to make
 * it first. */
static bool run_true(bool cold, uint64_t *ns)
{
	static const char *const argv[] = {"/bin/true", NULL};
	static int spare = -1;
	uint64_t t;
	struct buf b;
	bool ok;
	int fd;

	if (!cold && spare < 0)
		spare = host_open(&H, AGENT_CONN_EXEC, &G);
	t = mono_ns();
	fd = cold ? host_connect(&H, AGENT_CONN_EXEC) : spare;
	if (fd < 0)
		return false;
	start_exec(fd, "true", 0, argv);
	do
		ok = host_recv(fd, &G) && G.h.type != AGENT_ERR;
	while (ok && G.h.type != AGENT_EXIT);
	*ns = mono_ns() - t;
	ok = ok && cur_u32(&G.c) == AGENT_EXITED && cur_u32(&G.c) == 0;
	close(fd);
	if (!cold)
		spare = -1;
	buf_init(&b, 64);
	buf_str(&b, "true");
	ok = host_ask(&H, ctl, AGENT_FORGET, &b, &G) && ok;
	buf_fini(&b);
	if (!cold)
		spare = host_open(&H, AGENT_CONN_EXEC, &G);
	return ok;
}

static bool run_fork(uint64_t *ns)
{
	static const char *const argv[] = {FORKEXEC, "serve", NULL};
	struct buf b;

	if (forker < 0) {
		forker = host_open(&H, AGENT_CONN_EXEC, &G);
		if (forker < 0 || !start_exec(forker, "forker", AGENT_X_STDIN, argv) ||
			!host_recv(forker, &G) || G.h.type != AGENT_OK)
			return false;
	}
	buf_init(&b, 16);
	buf_put(&b, "\n", 1);
	host_send(forker, AGENT_STDIN, 0, &b);
	buf_fini(&b);
	for (;;) {
		uint64_t off, n;

		if (!host_recv(forker, &G) || G.h.type == AGENT_ERR || G.h.type == AGENT_EXIT)
			return false;
		if (G.h.type != AGENT_OUT)
			continue;
		cur_u8(&G.c);
		off = cur_u64(&G.c);
		n = cur_left(&G.c);
		*ns = strtoull((const char *)G.c.p, NULL, 10);
		buf_init(&b, 16);
		buf_u64(&b, off + n);
		buf_u64(&b, 0);
		host_send(forker, AGENT_ACK, 0, &b);
		buf_fini(&b);
		return *ns > 0;
	}
}

static bool put_one(int fd, const char *path, uint64_t size)
{
	struct buf b;

	buf_init(&b, AGENT_FRAME_MAX);
	buf_u32(&b, AGENT_NO_ID);
	buf_u32(&b, AGENT_NO_ID);
	buf_str(&b, path);
	buf_str(&b, "");
	buf_str(&b, "");
	buf_u32(&b, AGENT_NO_MODE);
	buf_u32(&b, AGENT_WR_PARENTS);
	host_send(fd, AGENT_WRITE, 3, &b);
	for (uint64_t left = size; left;) {
		size_t n = MIN(left, sizeof(data));

		buf_reset(&b);
		buf_put(&b, data, n);
		host_send(fd, AGENT_DATA, 3, &b);
		left -= n;
	}
	host_send(fd, AGENT_DATA, 3, NULL);
	buf_fini(&b);
	return host_recv(fd, &G) && G.h.type == AGENT_OK && host_recv(fd, &G) &&
	       G.h.type == AGENT_OK && cur_u64(&G.c) == size;
}

static bool get_one(int fd, const char *path, uint64_t size)
{
	uint64_t got = 0;
	struct buf b;

	buf_init(&b, AGENT_PATH_MAX + 64);
	buf_u32(&b, AGENT_NO_ID);
	buf_u32(&b, AGENT_NO_ID);
	buf_str(&b, path);
	buf_u64(&b, 0);
	buf_u64(&b, UINT64_MAX);
	buf_u32(&b, 0);
	host_send(fd, AGENT_READ, 4, &b);
	buf_fini(&b);
	if (!host_recv(fd, &G) || G.h.type != AGENT_OK || cur_u64(&G.c) != size)
		return false;
	while (host_recv(fd, &G) && G.h.type == AGENT_DATA) {
		if (!G.h.len)
			return got == size;
		/* what was put, at the same places */
		if (memcmp(G.p, data + got % sizeof(data),
			    MIN(G.h.len, sizeof(data) - got % sizeof(data))) != 0)
			return false;
		got += G.h.len;
	}
	return false;
}

static bool run_files(bool get, uint64_t n, uint64_t size, uint64_t *ns)
{
	int fd = host_open(&H, AGENT_CONN_BULK, &G);
	uint64_t t = mono_ns();
	bool ok = fd >= 0;
	char path[64];

	for (uint64_t i = 0; i < n && ok; i++) {
		snprintf(path, sizeof(path), "/bench/%" PRIu64 "/%" PRIu64, size, i);
		ok = (get ? get_one : put_one)(fd, path, size);
	}
	*ns = mono_ns() - t;
	if (fd >= 0)
		close(fd);
	return ok;
}

static bool run_line(const char *line, uint64_t *ns)
{
	uint64_t k = 1, n = 0;
	char verb[16] = "";

	if (sscanf(line, "%15s", verb) != 1)
		return false;
	if (!strcmp(verb, "ping"))
		return run_ping(ns);
	if (!strcmp(verb, "true") || !strcmp(verb, "true-cold"))
		return run_true(verb[4], ns);
	if (!strcmp(verb, "fork"))
		return run_fork(ns);
	if (sscanf(line, "%*s %" SCNu64 " %" SCNu64, &k, &n) == 1) {
		n = k;
		k = 1;
	}
	if (!n || (strncmp(verb, "put", 3) != 0 && strncmp(verb, "get", 3) != 0))
		return false;
	return run_files(verb[0] == 'g', k, n, ns);
}

int main(int argc, char **argv)
{
	uint64_t until = mono_ns() + 60000000000ull;
	char line[100];

	if (argc != 2) {
		fprintf(stderr, "agentload SOCKET\n");
		return 2;
	}
	setenv("AGENT_VSOCK", argv[1], 1);
	signal(SIGPIPE, SIG_IGN);
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7 + i / 256);
	if (!host_start(&H))
		return 1;
	/* the monitor refuses streams until the guest listens */
	while ((ctl = host_open(&H, AGENT_CONN_CONTROL, &G)) < 0 && mono_ns() < until)
		poll(NULL, 0, 20);
	printf(ctl < 0 ? "failed no agent\n" : "ready\n");
	fflush(stdout);
	while (ctl >= 0 && fgets(line, sizeof(line), stdin)) {
		uint64_t ns = 0;

		if (run_line(line, &ns))
			printf("%.1f\n", (double)ns / 1000);
		else
			printf("failed %s", line);
		fflush(stdout);
	}
	return ctl < 0;
}
