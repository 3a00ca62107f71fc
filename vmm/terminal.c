/* SPDX-License-Identifier: Apache-2.0
 *
 * terminal.c: see terminal.h. mayfly-vmm, the device thread. The bytes are the developer's.
 */
#include "vmm/terminal.h"

#include <sys/eventfd.h>
#include <termios.h>

#include "vmm/console.h"

struct terminal {
	struct vm *vm;
	struct watch *in, *room;
	bool plain, over; /* plain: input is a file: epoll refuses it, and it never blocks */
	bool changed;
	struct termios was;
	uint8_t buf[4096];
	size_t at, n;
};

/* false: the guest has no room now */
static bool hand_over(struct terminal *t)
{
	struct board *b = &t->vm->board;
	const uint8_t *p = t->buf + t->at;
	size_t left = t->n - t->at;

	t->at += b->serial_on ? serial_input(&b->serial, p, left)
			      : console_input(b->dev[SLOT_CONSOLE], p, left);
	return t->at == t->n;
}

static void pump(struct terminal *t)
{
	do {
		ssize_t n;

		if (!hand_over(t))
			break;
		n = read(0, t->buf, sizeof(t->buf));
		t->at = 0;
		t->n = n > 0 ? (size_t)n : 0;
		t->over = n == 0 || (n < 0 && errno != EINTR);
	} while (t->plain && !t->over);
	if (t->over)
		watch_remove(take_ptr(t->in));
	else if (!t->plain)
		watch_events(t->in, hand_over(t) ? EPOLLIN : 0);
}

static void on_input(void *arg, uint32_t events)
{
	pump(arg);
}

static void on_room(void *arg, uint32_t events)
{
	struct terminal *t = arg;
	uint64_t n;

	(void)!read(t->vm->room_fd, &n, sizeof(n));
	if (t->over)
		hand_over(t);
	else if (t->plain)
		pump(t);
	else
		watch_events(t->in, hand_over(t) ? EPOLLIN : 0);
}

static void first_read(void *arg)
{
	pump(arg);
}

static void no_lines(struct terminal *t)
{
	struct termios now;

	/* in a background job tcsetattr() would stop this process */
	if (tcgetpgrp(0) != getpgrp() || tcgetattr(0, &t->was) < 0)
		return;
	now = t->was;
	now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	t->changed = tcsetattr(0, TCSANOW, &now) == 0;
}

struct terminal *terminal_start(struct vm *vm, struct err *e)
{
	struct terminal *t = calloc(1, sizeof(*t));

	if (!t) {
		err_set(e, ENOMEM, "terminal");
		return NULL;
	}
	t->vm = vm;
	vm->room_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (vm->room_fd >= 0)
		t->room = loop_watch(vm->loop, vm->room_fd, EPOLLIN, on_room, t);
	if (!t->room) {
		err_set(e, errno, "terminal");
		terminal_stop(t);
		return NULL;
	}
	t->in = loop_watch(vm->loop, 0, EPOLLIN, on_input, t);
	t->plain = !t->in;
	if (t->plain)
		loop_defer(vm->loop, first_read, t);
	no_lines(t);
	return t;
}

void terminal_stop(struct terminal *t)
{
	if (!t)
		return;
	if (t->changed)
		tcsetattr(0, TCSANOW, &t->was);
	watch_remove(t->in);
	watch_remove(t->room);
	loop_undefer(t->vm->loop, first_read, t);
	close_fd(&t->vm->room_fd);
	free(t);
}
