/* SPDX-License-Identifier: Apache-2.0
 *
 * api_monitor_client: the host's side of the control protocol against a scripted VMM on a socket pair: answers out of order, events with
 * descriptors, and a VMM that has been taken over.
 */
#include "lib/test.h"

#include <sys/socket.h>

#include "api/links/monitor_client.h"
#include "lib/fdpass.h"

static struct {
	int answers, last_err, events, closed, event_fd;
	uint16_t event_type;
	uint64_t value;
	char text[100];
} G;

static void event(void *arg, uint16_t type, struct cur *body, int fd)
{
	G.events++;
	G.event_type = type;
	if (fd >= 0) {
		G.event_fd++;
		close(fd);
	}
}

static void closed(void *arg)
{
	G.closed++;
}

static void answered(void *arg, const struct vmm_answer *a)
{
	struct cur c = a->body;

	G.answers++;
	G.last_err = a->err;
	snprintf(G.text, sizeof(G.text), "%s", a->text ? a->text : "");
	if (!a->err)
		G.value = cur_u64(&c);
}

static const struct vmmctl_ops ops = {event, closed};

struct rig {
	struct loop *l;
	struct vmmctl *v;
	int peer;
};

static bool rig_up(struct rig *r)
{
	int sv[2];

	memset(&G, 0, sizeof(G));
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv))
		return false;
	r->l = loop_create();
	r->peer = sv[1];
	r->v = vmmctl_create(r->l, sv[0], &ops, NULL);
	return r->v != NULL;
}

static void rig_down(struct rig *r)
{
	vmmctl_destroy(r->v);
	loop_destroy(r->l);
	close_fd(&r->peer);
}

static void turn(struct rig *r)
{
	for (int i = 0; i < 5; i++)
		loop_turn(r->l, 10);
}

static struct vmm_hdr take(struct rig *r)
{
	uint8_t m[4096];
	struct vmm_hdr h = {0};
	ssize_t n = recv(r->peer, m, sizeof(m), MSG_DONTWAIT);

	if (n >= (ssize_t)sizeof(h))
		memcpy(&h, m, sizeof(h));
	return h;
}

static void say(struct rig *r, struct vmm_hdr h, const void *body, size_t n, int fd)
{
	uint8_t m[4096];

	memcpy(m, &h, sizeof(h));
	if (n)
		memcpy(m + sizeof(h), body, n);
	fdpass_send(r->peer, m, sizeof(h) + n, &fd, fd >= 0);
}

static struct vmm_hdr reply_to(const struct vmm_hdr *q, int32_t status, uint32_t len)
{
	return (struct vmm_hdr){.magic = VMM_MAGIC,
		.version = VMM_VERSION,
		.type = q->type | VMM_REPLY,
		.id = q->id,
		.len = len,
		.status = status};
}

static void answers_find_their_questions(void)
{
	struct rig r;
	struct vmm_hdr a, b;
	uint64_t v = 42;

	REQUIRE(rig_up(&r));
	CHECK_INT(vmmctl_call(r.v, VMM_PAUSE, NULL, NULL, 0, answered, NULL), 0);
	CHECK_INT(vmmctl_call(r.v, VMM_STATS, NULL, NULL, 0, answered, NULL), 0);
	a = take(&r);
	b = take(&r);
	CHECK(a.type == VMM_PAUSE && b.type == VMM_STATS && a.id != b.id);
	say(&r, reply_to(&b, 0, 8), &v, 8, -1);
	turn(&r);
	CHECK_INT(G.answers, 1);
	CHECK_INT(G.value, 42);
	say(&r, reply_to(&a, -EBUSY, 7), "no\x1b!way", 7, -1);
	turn(&r);
	CHECK_INT(G.answers, 2);
	CHECK_INT(G.last_err, EBUSY);
	CHECK_STR(G.text, "no?!way");
	CHECK_INT(G.closed, 0);
	rig_down(&r);
}

static void events_bring_descriptors(void)
{
	struct rig r;
	struct vmm_hdr h = {.magic = VMM_MAGIC,
		.version = VMM_VERSION,
		.type = VMM_EV_GUEST_CONN,
		.len = 8,
		.nfds = 1};
	uint32_t ports[2] = {1023, 5};

	REQUIRE(rig_up(&r));
	say(&r, h, ports, 8, 1);
	turn(&r);
	CHECK_INT(G.events, 1);
	CHECK_INT(G.event_fd, 1);
	CHECK_INT(G.event_type, VMM_EV_GUEST_CONN);
	rig_down(&r);
}

static void waiting_calls_end_with_the_connection(void)
{
	struct rig r;

	REQUIRE(rig_up(&r));
	vmmctl_call(r.v, VMM_PAUSE, NULL, NULL, 0, answered, NULL);
	shutdown(r.peer, SHUT_RDWR);
	turn(&r);
	CHECK_INT(G.closed, 1);
	CHECK_INT(vmmctl_call(r.v, VMM_PAUSE, NULL, NULL, 0, answered, NULL), -ENOTCONN);
	rig_down(&r);
	CHECK_INT(G.answers, 1);
	CHECK_INT(G.last_err, ECONNRESET);
}

/* The process ends with a request unread: its last messages count all the same. */
static void the_last_words_of_a_process_that_ended(void)
{
	struct vmm_hdr h = {.magic = VMM_MAGIC, .version = VMM_VERSION, .type = VMM_EV_NEEDS_RESET};

	for (int drained = 0; drained < 2; drained++) {
		struct rig r;

		REQUIRE(rig_up(&r));
		vmmctl_call(r.v, VMM_CONTINUE, NULL, NULL, 0, answered, NULL);
		for (int i = 0; i < 3; i++)
			say(&r, h, NULL, 0, -1);
		close(r.peer);
		r.peer = -1;
		if (drained)
			vmmctl_drain(r.v);
		else
			turn(&r);
		CHECK_INT(G.events, 3);
		CHECK_INT(G.closed, 1);
		rig_down(&r);
	}
}

static void what_is_not_the_protocol_ends_it(void)
{
	static const struct vmm_hdr bad[] = {
		{.magic = 1, .version = VMM_VERSION, .type = VMM_EV_PANIC},
		{.magic = VMM_MAGIC, .version = 9, .type = VMM_EV_PANIC},
		{.magic = VMM_MAGIC, .version = VMM_VERSION, .type = VMM_EV_PANIC, .len = 5},
		{.magic = VMM_MAGIC, .version = VMM_VERSION, .type = VMM_EV_PANIC, .nfds = 1},
		{.magic = VMM_MAGIC,
			.version = VMM_VERSION,
			.type = VMM_PAUSE | VMM_REPLY,
			.id = 77},
		{.magic = VMM_MAGIC,
			.version = VMM_VERSION,
			.type = VMM_STATS | VMM_REPLY,
			.id = 1},
		{.magic = VMM_MAGIC,
			.version = VMM_VERSION,
			.type = VMM_PAUSE | VMM_REPLY,
			.id = 1,
			.status = 5},
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct rig r;

		REQUIRE(rig_up(&r));
		vmmctl_call(r.v, VMM_PAUSE, NULL, NULL, 0, answered, NULL);
		(void)take(&r);
		say(&r, bad[i], NULL, 0, -1);
		turn(&r);
		CHECK_INT(G.closed, 1);
		CHECK_INT(G.answers, 0);
		rig_down(&r);
	}
}

static void a_full_socket_keeps_the_order(void)
{
	struct rig r;
	struct buf b;
	int n = 0, small = 4096;

	REQUIRE(rig_up(&r));
	setsockopt(r.peer, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	buf_init(&b, 4096);
	while (b.len < 3000)
		buf_u64(&b, 1);
	for (int i = 0; i < 300; i++)
		CHECK_INT(vmmctl_call(r.v, VMM_STATS, &b, NULL, 0, answered, NULL), 0);
	for (int i = 0; i < 1000 && n < 300; i++) {
		struct vmm_hdr h = take(&r);

		if (h.magic == VMM_MAGIC)
			CHECK_INT(h.id, ++n);
		else
			loop_turn(r.l, 0);
	}
	CHECK_INT(n, 300);
	buf_fini(&b);
	rig_down(&r);
}

static const struct test tests[] = {
	{"answers_find_their_questions", answers_find_their_questions},
	{"events_bring_descriptors", events_bring_descriptors},
	{"waiting_calls_end_with_the_connection", waiting_calls_end_with_the_connection},
	{"the_last_words_of_a_process_that_ended", the_last_words_of_a_process_that_ended},
	{"what_is_not_the_protocol_ends_it", what_is_not_the_protocol_ends_it},
	{"a_full_socket_keeps_the_order", a_full_socket_keeps_the_order},
};
TEST_MAIN(tests)
