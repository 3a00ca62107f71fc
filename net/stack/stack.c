/* SPDX-License-Identifier: Apache-2.0
 *
 * stack.c: see stack.h. Making, running and ending the network of one sandbox.
 */
#include "net/stack/stack.h"

static void on_frames(void *arg, uint32_t events)
{
	link_ready(arg);
}

static void on_broker(void *arg, uint32_t events)
{
	ask_ready(arg);
}

struct stack *stack_create(int frames, int broker, struct err *e)
{
	struct stack *s = calloc(1, sizeof(*s));

	if (!s) {
		err_set(e, ENOMEM, "mayfly-net");
		return NULL;
	}
	s->frames = frames;
	s->broker = broker;
	s->placeholder = -1;
	s->loop = loop_create();
	if (s->loop) {
		s->frames_watch = loop_watch(s->loop, frames, EPOLLIN, on_frames, s);
		s->broker_watch = loop_watch(s->loop, broker, EPOLLIN, on_broker, s);
	}
	if (!s->frames_watch || !s->broker_watch)
		err_set(e, errno, "mayfly-net: loop");
	else if (tcp_start(s, e) == 0)
		return s;
	stack_destroy(s);
	return NULL;
}

void stack_destroy(struct stack *s)
{
	if (!s)
		return;
	tcp_stop(s);
	datagrams_end(s);
	dns_end(s);
	watch_remove(s->frames_watch);
	watch_remove(s->broker_watch);
	loop_destroy(s->loop);
	free(s);
}

int stack_run(struct stack *s)
{
	uint64_t swept_ns = mono_ns();

	while (!s->stop) {
		int rc = tcp_turn(s);
		uint64_t now = mono_ns();

		if (rc < 0)
			return rc;
		if (now - swept_ns > SWEEP_MS * 1000000ull) {
			datagrams_sweep(s, now);
			swept_ns = now;
		}
	}
	return 0;
}
