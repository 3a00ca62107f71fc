/* SPDX-License-Identifier: Apache-2.0
 *
 * lib_base: errors, buffers and cursors, descriptor passing, the event loop.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "lib/buf.h"
#include "lib/err.h"
#include "lib/fdpass.h"
#include "lib/loop.h"
#include "lib/proto_vmm.h"

static void errors_wrap_and_are_cut(void)
{
	struct err e;
	char big[1000];

	CHECK_INT(err_set(&e, ENOENT, "open %s", "x\ny"), -ENOENT);
	CHECK_STR(e.msg, "open x?y: No such file or directory");
	CHECK_INT(err_wrap(&e, "disk %d", 3), -ENOENT);
	CHECK_STR(e.msg, "disk 3: open x?y: No such file or directory");
	memset(big, 'a', sizeof(big));
	big[999] = 0;
	err_plain(&e, EINVAL, "%s", big);
	CHECK_INT(strlen(e.msg), sizeof(e.msg) - 1);
	CHECK_INT(err_set(NULL, EIO, "nobody reads this"), -EIO);
}

static void cursor_never_reads_past_its_end(void)
{
	struct buf b;
	struct cur c;
	char s[8];

	buf_init(&b, 64);
	buf_u16(&b, 0x1234);
	buf_str(&b, "hello");
	c = cur_of(b.p, b.len);
	CHECK_INT(cur_u16(&c), 0x1234);
	CHECK(cur_str(&c, s, sizeof(s)));
	CHECK_STR(s, "hello");
	CHECK(cur_done(&c));
	for (size_t n = 0; n < b.len; n++) {
		c = cur_of(b.p, n);
		cur_u16(&c);
		cur_str(&c, s, sizeof(s));
		CHECK(!cur_done(&c));
	}
	/* too long for its field; a NUL inside; something left over */
	c = cur_of(b.p, b.len);
	cur_u16(&c);
	CHECK(!cur_str(&c, s, 5));
	CHECK_INT(cur_u64(&c), 0);
	b.p[8] = 0;
	c = cur_of(b.p, b.len);
	cur_u16(&c);
	CHECK(!cur_str(&c, s, sizeof(s)));
	c = cur_of(b.p, b.len);
	cur_u8(&c);
	CHECK(!cur_done(&c));
	buf_fini(&b);
}

static void buffer_keeps_its_limit(void)
{
	struct buf b;

	buf_init(&b, 10);
	buf_put(&b, "12345678", 8);
	CHECK(!b.bad);
	buf_u32(&b, 1);
	CHECK(b.bad);
	CHECK_INT(b.len, 8);
	buf_consume(&b, 3);
	CHECK(!memcmp(b.p, "45678", 5));
	CHECK_STR(buf_cstr(&b), "");
	buf_fini(&b);
}

static void the_last_message_of_a_peer_that_left_some_unread(void)
{
	int s[2];
	char msg[8];

	REQUIRE(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s));
	CHECK_INT(fdpass_send(s[0], "abc", 3, NULL, 0), 0);
	CHECK_INT(fdpass_send(s[1], "unread", 6, NULL, 0), 0);
	close(s[0]);
	CHECK_INT(fdpass_recv(s[1], msg, sizeof(msg), NULL, NULL), 3);
	CHECK_INT(fdpass_recv(s[1], msg, sizeof(msg), NULL, NULL), 0);
	close(s[1]);
}

static void descriptors_travel_and_extras_are_closed(void)
{
	int s[2], fds[3], got[4];
	size_t n = ARRAY_LEN(got);
	char msg[8];

	REQUIRE(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s));
	for (int i = 0; i < 3; i++)
		fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	CHECK_INT(fdpass_send(s[0], "abc", 3, fds, 3), 0);
	CHECK_INT(fdpass_recv(s[1], msg, sizeof(msg), got, &n), 3);
	CHECK_INT(n, 3);
	for (size_t i = 0; i < n; i++) {
		CHECK(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
		close(got[i]);
	}
	n = 1;
	CHECK_INT(fdpass_send(s[0], "abc", 3, fds, 3), 0);
	CHECK_INT(fdpass_recv(s[1], msg, sizeof(msg), got, &n), -EMSGSIZE);
	CHECK_INT(n, 0);
	CHECK_INT(fdpass_send(s[0], "0123456789", 10, NULL, 0), 0);
	CHECK_INT(fdpass_recv(s[1], msg, sizeof(msg), NULL, NULL), -EMSGSIZE);
	for (int i = 0; i < 3; i++)
		close(fds[i]);
	/* the numbers are free again: nothing that came stayed open */
	CHECK_INT(open("/dev/null", O_RDONLY | O_CLOEXEC), fds[0]);
	close(fds[0]);
	close(s[0]);
	close(s[1]);
}

static struct {
	struct loop *l;
	struct timer *t[3];
	struct watch *w;
	char order[8];
	size_t n;
} L;

static void note_a(void *arg)
{
	L.order[L.n++] = *(const char *)arg;
	if (L.n == 4)
		loop_stop(L.l, 7);
}

static void on_pipe(void *arg, uint32_t ev)
{
	watch_remove(L.w);
	note_a(arg);
}

static void timers_fire_in_order_and_watches_go(void)
{
	static char a = 'a', b = 'b', c = 'c', p = 'p';
	int pi[2];

	memset(&L, 0, sizeof(L));
	L.l = loop_create();
	REQUIRE(L.l && !pipe2(pi, O_CLOEXEC));
	L.t[0] = loop_timer(L.l, note_a, &a);
	L.t[1] = loop_timer(L.l, note_a, &b);
	L.t[2] = loop_timer(L.l, note_a, &c);
	timer_after(L.t[0], 6000000);
	timer_after(L.t[1], 2000000);
	timer_after(L.t[2], 4000000);
	timer_after(L.t[1], 9000000);
	L.w = loop_watch(L.l, pi[0], EPOLLIN, on_pipe, &p);
	CHECK(write(pi[1], "x", 1) == 1);
	CHECK_INT(loop_run(L.l), 7);
	CHECK_STR(L.order, "pcab");
	for (int i = 0; i < 3; i++)
		timer_remove(L.t[i]);
	loop_destroy(L.l);
	close(pi[0]);
	close(pi[1]);
}

static struct {
	char names[100];
	int turns;
	uint64_t longest;
} seen;

static void saw_turn(void *arg, uint64_t ns)
{
	seen.turns++;
}

static void saw_handler(void *arg, const char *name, uint64_t ns)
{
	size_t n = strlen(seen.names);

	snprintf(seen.names + n, sizeof(seen.names) - n, "%s ", name);
	seen.longest = MAX(seen.longest, ns);
}

static void on_timer_slow(void *arg)
{
	usleep(3000);
}

static void on_deferred(void *arg)
{
}

static void handlers_are_observed_by_name(void)
{
	static const struct loop_observer o = {saw_turn, saw_handler, NULL};
	struct loop *l = loop_create();
	struct timer *t;

	REQUIRE(l);
	t = loop_timer(l, on_timer_slow, NULL);
	REQUIRE(t && !loop_defer(l, on_deferred, NULL));
	loop_observe(l, &o);
	timer_after(t, 1);
	loop_turn(l, 100);
	loop_turn(l, 0);
	CHECK(strstr(seen.names, "lib_base.c:on_timer_slow "));
	CHECK(strstr(seen.names, "lib_base.c:on_deferred "));
	CHECK(seen.turns >= 1 && seen.longest >= 3000000);
	loop_observe(l, NULL);
	timer_remove(t);
	loop_destroy(l);
}

static void a_child_keeps_what_it_is_told(void)
{
	int p[2], q[2], st = 0;
	pid_t pid;

	REQUIRE(!pipe2(p, O_CLOEXEC) && !pipe2(q, O_CLOEXEC));
	pid = fork();
	if (pid == 0) {
		const int keep[] = {q[1], -1, p[1], 2, q[1]};
		int open = 0;

		if (fd_keep_only(keep, ARRAY_LEN(keep)) < 0)
			_exit(100);
		for (int fd = 0; fd < 1024; fd++)
			open += fcntl(fd, F_GETFD) >= 0 && fd > 2;
		_exit(open == 2 && fcntl(q[1], F_GETFD) >= 0 && fcntl(p[1], F_GETFD) >= 0 ? 7
											  : open);
	}
	waitpid(pid, &st, 0);
	CHECK(WIFEXITED(st));
	CHECK_INT(WEXITSTATUS(st), 7);
	for (int i = 0; i < 2; i++) {
		close(p[i]);
		close(q[i]);
	}
}

/* A restore with every disk at its most layers is the largest message there is. */
static void the_largest_message_holds_all_its_descriptors(void)
{
	int s[2], fds[FDPASS_MAX], got[FDPASS_MAX];
	size_t n = ARRAY_LEN(got);
	char text[3];

	CHECK(VMM_FDS_MAX == 102);
	CHECK_INT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
	for (unsigned int i = 0; i < VMM_FDS_MAX; i++)
		fds[i] = s[0];
	CHECK_INT(fdpass_send(s[0], "abc", 3, fds, VMM_FDS_MAX), 0);
	CHECK_INT(fdpass_recv(s[1], text, sizeof(text), got, &n), 3);
	CHECK_INT(n, VMM_FDS_MAX);
	for (size_t i = 0; i < n; i++)
		close(got[i]);
	close(s[0]);
	close(s[1]);
}

static void secrets_are_compared_whole(void)
{
	CHECK(secret_equal("abc", "abc"));
	CHECK(!secret_equal("abc", "abd") && !secret_equal("xbc", "abc"));
	CHECK(!secret_equal("abc", "abcd") && !secret_equal("abcd", "abc"));
	/* what is not set opens nothing */
	CHECK(!secret_equal("", "") && !secret_equal("", "a"));
	CHECK(secret_bytes_equal("a\0b", "a\0b", 3) && !secret_bytes_equal("a\0b", "a\0c", 3));
}

static const struct test tests[] = {
	{"secrets_are_compared_whole", secrets_are_compared_whole},
	{"errors_wrap_and_are_cut", errors_wrap_and_are_cut},
	{"cursor_never_reads_past_its_end", cursor_never_reads_past_its_end},
	{"buffer_keeps_its_limit", buffer_keeps_its_limit},
	{"the_last_message_of_a_peer_that_left_some_unread",
		the_last_message_of_a_peer_that_left_some_unread},
	{"descriptors_travel_and_extras_are_closed", descriptors_travel_and_extras_are_closed},
	{"handlers_are_observed_by_name", handlers_are_observed_by_name},
	{"a_child_keeps_what_it_is_told", a_child_keeps_what_it_is_told},
	{"timers_fire_in_order_and_watches_go", timers_fire_in_order_and_watches_go},
	{"the_largest_message_holds_all_its_descriptors",
		the_largest_message_holds_all_its_descriptors},
};
TEST_MAIN(tests)
