/* SPDX-License-Identifier: Apache-2.0
 *
 * A hostile agent: the input is what it sends on every connection, each of another kind. The
 * greeting is given, so that the input begins where the requests are answered; nothing may crash,
 * leak or be called after its end.
 */
#include "api/links/agent_client.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct {
	struct loop *l;
	int listener;
	char path[64];
	int ended;
} F;

static void on_reply(void *arg, const struct agent_reply *r)
{
	struct cur c = r->body;
	struct agent_item i;

	while (!c.bad && cur_left(&c) && agent_item_read(&c, &i))
		agent_item_fini(&i);
	F.ended += strlen(r->text) > 100000;
}

static void x_output(void *arg, int s, const uint8_t *p, size_t n)
{
	ASSERT(s == 1 || s == 2);
	F.ended += n && p[n - 1] == 1;
}

static void x_ended(void *arg, const struct agent_reply *r, uint32_t state, uint32_t code)
{
	F.ended++;
}

static const struct agent_exec_ops x_ops = {.output = x_output, .ended = x_ended};

static void f_opened(void *arg, uint64_t a, uint64_t b, uint64_t c, const struct agent_item *i)
{
	F.ended += (int)strlen(i->path) > 9000;
}

static void f_data(void *arg, const uint8_t *p, size_t n)
{
	F.ended += p[n - 1] == 1;
}

static void f_ended(void *arg, const struct agent_reply *r)
{
	F.ended++;
}

static const struct agent_file_ops f_ops = {.opened = f_opened, .data = f_data, .ended = f_ended};
static struct agent_dial *dial;

static void d_opened(void *arg)
{
	agent_dial_send(dial, "x", 1);
}

static void d_bytes(void *arg, const uint8_t *p, size_t n)
{
	F.ended += n && p[n - 1] == 1;
}

static const struct agent_dial_ops d_ops = {
	.opened = d_opened, .bytes = d_bytes, .closed = f_ended};

static void setup(void)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};

	snprintf(F.path, sizeof(F.path), "/tmp/fuzz-agentc-%d", getpid());
	memcpy(sa.sun_path, F.path, sizeof(F.path));
	unlink(F.path);
	F.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	ASSERT(!bind(F.listener, (const struct sockaddr *)&sa, sizeof(sa)) &&
		!listen(F.listener, 64));
	F.l = loop_create();
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static const uint8_t hello[] = {12, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, AGENT_VERSION, 0, 0, 0,
		1, 0, 0, 0, 0, 0, 0, 0};
	static const char *const argv[] = {"x"};
	struct agent_exec_spec spec = {.exec_id = "x", .argc = 1, .argv = argv};
	struct agent_read_spec rs = {.path = "/x", .len = UINT64_MAX};
	struct agentc *a;
	struct agent_exec *x;
	struct agent_file *f;

	if (!F.l)
		setup();
	a = agentc_create(F.l, F.path, 0, NULL);
	agentc_up(a);
	agentc_call(a, AGENT_STAT, NULL, 0, on_reply, NULL);
	x = agent_exec_start(a, &spec, &x_ops, NULL);
	f = agent_file_read(a, &rs, &f_ops, NULL);
	dial = agent_dial_tcp(a, 80, &d_ops, NULL);
	for (int turn = 0; turn < 8; turn++) {
		int fd = accept4(F.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			(void)!send(fd, hello, sizeof(hello), MSG_NOSIGNAL);
			(void)!send(fd, p, n, MSG_NOSIGNAL);
			for (int i = 0; i < 4; i++) /* connected, greeted, read */
				loop_turn(F.l, 0);
			close(fd);
		}
		loop_turn(F.l, 0);
	}
	agent_exec_close(x);
	agent_file_close(f);
	agent_dial_close(dial);
	agentc_destroy(a);
	loop_turn(F.l, 0);
	/* what it left in the backlog is not the next input's */
	for (int fd; (fd = accept4(F.listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
		close(fd);
	return 0;
}
