/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_virtio: the split ring's walk and the MMIO transport, with a device that echoes.
 */
#include "lib/test.h"

#include "tests/unit/lib/fake_guest.h"

#define ALL (VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC)

/* copies what is readable into what is writable */
struct echo {
	struct virtio_dev dev;
	unsigned int activations, resets, kicks, busy;
	uint32_t budget;
};

static bool echo_kick(struct virtio_dev *d, unsigned int qi)
{
	struct echo *e = container_of(d, struct echo, dev);
	struct virtq *q = &d->queue[qi];
	struct iovec iov[100]; /* more than the ring, so that a loop is found as one */
	struct virtq_chain c = {.iov = iov, .cap = ARRAY_LEN(iov)};
	uint32_t left = e->budget ? e->budget : 1000;
	char bytes[4096];
	int rc;

	e->kicks++;
	do {
		while ((rc = virtq_pop(q, &c)) > 0) {
			size_t n = iov_read(virtq_out(&c), c.nout, 0, bytes, sizeof(bytes));

			n = iov_write(virtq_in(&c), c.nin, 0, bytes, n);
			virtq_push(q, c.head, (uint32_t)n);
			if (--left == 0)
				return true;
		}
		if (rc < 0) {
			virtio_broken(d, q->why);
			return false;
		}
	} while (virtq_arm(q));
	return false;
}

static void echo_activate(struct virtio_dev *d)
{
	container_of(d, struct echo, dev)->activations++;
}

static void echo_reset(struct virtio_dev *d)
{
	container_of(d, struct echo, dev)->resets++;
}

static bool echo_busy(struct virtio_dev *d)
{
	return container_of(d, struct echo, dev)->busy;
}

static void echo_config_read(struct virtio_dev *d, uint32_t off, void *to, uint32_t len)
{
	memset(to, 0x5a, len);
}

static const struct virtio_ops echo_ops = {
	.name = "echo",
	.device_id = 42,
	.nqueues = 2,
	.queue_max = 64,
	.features = 1,
	.config_bytes = 8,
	.config_read = echo_config_read,
	.activate = echo_activate,
	.reset = echo_reset,
	.busy = echo_busy,
	.kick = echo_kick,
};

struct rig {
	struct fake_guest g;
	struct echo e;
};

static bool rig_up(struct rig *r, uint64_t features)
{
	struct err e;

	memset(r, 0, sizeof(*r));
	fg_init(&r->g);
	return virtio_init(&r->e.dev, &echo_ops, &r->g.env, 3, &e) == 0 &&
	       fg_probe(&r->g, &r->e.dev, features, 64);
}

static void rig_down(struct rig *r)
{
	virtio_fini(&r->e.dev);
	fg_fini(&r->g);
}

static void echoes(uint64_t features, bool indirect)
{
	struct rig r;
	uint64_t a;
	uint32_t len;
	uint16_t head, got;

	REQUIRE(rig_up(&r, features));
	CHECK_INT(r.e.activations, 1);
	r.g.q[1].indirect = indirect;
	a = fg_alloc(&r.g, 4096);
	memcpy(fg_ptr(&r.g, a), "hello, world", 12);
	for (int i = 0; i < 300; i++) {
		struct fg_range out[2] = {{a, 7}, {a + 7, 5}},
				in[3] = {{a + 100, 3}, {a + 103, 4}, {a + 107, 100}};

		memset(fg_ptr(&r.g, a + 100), 0, 200);
		head = fg_add(&r.g, 1, out, 2, in, 3);
		fg_kick(&r.g, 1);
		REQUIRE(fg_used(&r.g, 1, &got, &len));
		CHECK_INT(got, head);
		CHECK_INT(len, 12);
		CHECK(!memcmp(fg_ptr(&r.g, a + 100), "hello, world\0", 13));
		CHECK(!fg_used(&r.g, 1, &got, &len));
	}
	CHECK_INT(r.g.needs_resets, 0);
	CHECK_INT(r.e.dev.queue[1].chains, 300);
	rig_down(&r);
}

static void chains_are_echoed(void)
{
	echoes(0, false);
	echoes(ALL, false);
	echoes(ALL, true);
}

static void interrupts_are_batched_and_suppressed(void)
{
	struct rig r;
	uint16_t h;
	uint32_t len;
	unsigned int *irqs;
	struct fg_range in = {0, 16};

	REQUIRE(rig_up(&r, ALL));
	irqs = &r.g.irqs[BOARD_VIRTIO_IRQ + 3];
	in.gpa = fg_alloc(&r.g, 16);
	CHECK_INT(*irqs, 0);
	for (int i = 0; i < 10; i++)
		fg_add(&r.g, 0, NULL, 0, &in, 1);
	fg_kick(&r.g, 0);
	CHECK_INT(*irqs, 1);
	CHECK_INT(fg_read(&r.g, 0x60), 1);
	/* not acknowledged: no second pulse */
	fg_used_event(&r.g, 0, 10);
	fg_add(&r.g, 0, NULL, 0, &in, 1);
	fg_kick(&r.g, 0);
	CHECK_INT(*irqs, 1);
	fg_write(&r.g, 0x64, 1);
	CHECK_INT(fg_read(&r.g, 0x60), 0);
	/* the driver wants to hear of entry 15 first */
	fg_used_event(&r.g, 0, 15);
	for (int i = 11; i < 15; i++) {
		fg_add(&r.g, 0, NULL, 0, &in, 1);
		fg_kick(&r.g, 0);
	}
	CHECK_INT(*irqs, 1);
	fg_add(&r.g, 0, NULL, 0, &in, 1);
	fg_kick(&r.g, 0);
	CHECK_INT(*irqs, 2);
	CHECK_INT(fg_avail_event(&r.g, 0), 16);
	for (int i = 0; i < 16; i++)
		CHECK(fg_used(&r.g, 0, &h, &len));
	rig_down(&r);
	/* without the event index: the flag */
	REQUIRE(rig_up(&r, 0));
	*(uint16_t *)fg_ptr(&r.g, r.g.q[0].avail) = 1;
	in.gpa = fg_alloc(&r.g, 16);
	for (int i = 0; i < 2; i++) {
		fg_add(&r.g, 0, NULL, 0, &in, 1);
		fg_kick(&r.g, 0);
	}
	CHECK_INT(r.g.irqs[BOARD_VIRTIO_IRQ + 3], 1); /* the first is always signalled */
	rig_down(&r);
}

static void budget_yields_to_others(void)
{
	struct rig r;
	struct fg_range in = {0, 16};
	uint16_t h;
	uint32_t len;
	int n = 0;

	REQUIRE(rig_up(&r, ALL));
	in.gpa = fg_alloc(&r.g, 16);
	r.e.budget = 5;
	for (int i = 0; i < 60; i++)
		fg_add(&r.g, 0, NULL, 0, &in, 1);
	fg_kick(&r.g, 0);
	while (fg_used(&r.g, 0, &h, &len))
		n++;
	CHECK_INT(n, 60);
	CHECK_INT(atomic_load(&r.e.dev.n.yields), 12);
	rig_down(&r);
}

/* Each row makes one bad thing available on queue 0. */
static void bad_loop(struct fake_guest *g)
{
	fg_desc(g, 0, 0, 4096, 16, 1, 1);
	fg_desc(g, 0, 1, 4096, 16, 1, 0);
	fg_offer(g, 0, 0);
}

static void bad_self_loop(struct fake_guest *g)
{
	fg_desc(g, 0, 5, 4096, 16, 1, 5);
	fg_offer(g, 0, 5);
}

static void bad_address(struct fake_guest *g)
{
	fg_desc(g, 0, 0, FG_RAM - 8, 16, 0, 0);
	fg_offer(g, 0, 0);
}

static void bad_overflow(struct fake_guest *g)
{
	fg_desc(g, 0, 0, UINT64_MAX - 4, 16, 0, 0);
	fg_offer(g, 0, 0);
}

static void bad_empty(struct fake_guest *g)
{
	fg_desc(g, 0, 0, 4096, 0, 0, 0);
	fg_offer(g, 0, 0);
}

static void bad_head(struct fake_guest *g)
{
	fg_offer(g, 0, 64);
}

static void bad_next(struct fake_guest *g)
{
	fg_desc(g, 0, 0, 4096, 16, 1, 64);
	fg_offer(g, 0, 0);
}

static void bad_order(struct fake_guest *g)
{
	fg_desc(g, 0, 0, 4096, 16, 2 | 1, 1);
	fg_desc(g, 0, 1, 4096, 16, 0, 0);
	fg_offer(g, 0, 0);
}

static void bad_long(struct fake_guest *g)
{
	uint64_t t = fg_alloc(g, 16 * 101);
	char *to = fg_ptr(g, t);

	for (uint16_t i = 0; i < 101; i++) {
		uint64_t d[2] = {4096, 16 | (uint64_t)(i < 100) << 32 | (uint64_t)(i + 1) << 48};

		memcpy(to + 16 * i, d, sizeof(d));
	}
	fg_desc(g, 0, 0, t, 16 * 101, 4, 0);
	fg_offer(g, 0, 0);
}

static void bad_index(struct fake_guest *g)
{
	((uint16_t *)fg_ptr(g, g->q[0].avail))[1] = 65;
}

static void table(struct fake_guest *g, uint32_t len, uint16_t outer, uint16_t flags, uint16_t next)
{
	uint64_t t = fg_alloc(g, 64);
	struct {
		uint64_t a;
		uint32_t l;
		uint16_t f, n;
	} d = {4096, 16, flags, next};

	memcpy(fg_ptr(g, t), &d, sizeof(d));
	fg_desc(g, 0, 0, t, len, outer, 0);
	fg_offer(g, 0, 0);
}

static void bad_table_size(struct fake_guest *g)
{
	table(g, 17, 4, 0, 0);
}

static void bad_table_empty(struct fake_guest *g)
{
	table(g, 0, 4, 0, 0);
}

static void bad_table_nested(struct fake_guest *g)
{
	table(g, 16, 4, 4, 0);
}

static void bad_table_chained(struct fake_guest *g)
{
	table(g, 16, 4 | 1, 0, 0);
}

static void bad_table_loop(struct fake_guest *g)
{
	table(g, 32, 4, 1, 0);
}

static void bad_table_next(struct fake_guest *g)
{
	table(g, 16, 4, 1, 1);
}

static void nonsense_asks_for_a_reset(void)
{
	static const struct {
		void (*make)(struct fake_guest *g);
		const char *why;
	} bad[] = {
		{bad_loop, "descriptor loop"},
		{bad_self_loop, "descriptor loop"},
		{bad_address, "descriptor outside memory or empty"},
		{bad_overflow, "descriptor outside memory or empty"},
		{bad_empty, "descriptor outside memory or empty"},
		{bad_head, "head outside the table"},
		{bad_next, "next descriptor outside the table"},
		{bad_order, "readable descriptor after a writable one"},
		{bad_long, "chain too long"},
		{bad_index, "available index ran away"},
		{bad_table_size, "indirect table size"},
		{bad_table_empty, "indirect table size"},
		{bad_table_nested, "indirect table in an indirect table"},
		{bad_table_chained, "indirect descriptor not allowed here"},
		{bad_table_loop, "descriptor loop"},
		{bad_table_next, "next descriptor outside the table"},
	};
	struct fg_range in = {4096, 16};
	struct rig r;
	uint16_t h;
	uint32_t len;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		unsigned int kicks;

		REQUIRE(rig_up(&r, ALL));
		bad[i].make(&r.g);
		fg_kick(&r.g, 0);
		CHECK(fg_read(&r.g, 0x70) & VIRTIO_S_NEEDS_RESET);
		CHECK_INT(r.g.needs_resets, 1);
		CHECK_STR(r.g.why, bad[i].why);
		CHECK_INT(fg_read(&r.g, 0x60), 2);
		CHECK(!fg_used(&r.g, 0, &h, &len));
		/* deaf until it is reset, then well again */
		kicks = r.e.kicks;
		fg_kick(&r.g, 1);
		CHECK_INT(r.e.kicks, kicks);
		CHECK(fg_probe(&r.g, &r.e.dev, ALL, 64));
		fg_add(&r.g, 0, NULL, 0, &in, 1);
		fg_kick(&r.g, 0);
		CHECK(fg_used(&r.g, 0, &h, &len));
		CHECK_INT(r.e.resets, 1);
		rig_down(&r);
	}
}

static void *vcpu_breaks(void *arg)
{
	struct rig *r = arg;

	fg_write(&r->g, 0x30, 1);
	fg_write(&r->g, 0x44, 0);
	fg_write(&r->g, 0x38, 3);
	fg_write(&r->g, 0x44, 1);
	return NULL;
}

/* A vCPU's thread breaks the device: who is told of it is told on the device thread, and not
 * without end. */
static void told_on_the_device_thread_and_not_for_ever(void)
{
	struct rig r;
	pthread_t t;

	REQUIRE(rig_up(&r, ALL));
	REQUIRE(!pthread_create(&t, NULL, vcpu_breaks, &r));
	pthread_join(t, NULL);
	CHECK(fg_read(&r.g, 0x70) & VIRTIO_S_NEEDS_RESET);
	CHECK_INT(r.g.needs_resets, 0);
	fg_run(&r.g);
	CHECK_INT(r.g.needs_resets, 1);
	for (int i = 0; i < 50; i++) {
		CHECK(fg_probe(&r.g, &r.e.dev, ALL, 64));
		vcpu_breaks(&r);
		fg_run(&r.g);
	}
	CHECK_INT(r.g.needs_resets, 10);
	CHECK_INT(atomic_load(&r.e.dev.n.broken), 51);
	rig_down(&r);
}

static void queues_are_checked(void)
{
	static const struct {
		uint32_t reg, v;
	} bad[] = {{0x38, 0}, {0x38, 3}, {0x38, 128}, {0x38, 65537}, {0x80, 8}, {0x90, 1},
		{0xa0, 2}, {0x84, 1}, {0x94, 0xffffffff}, {0xa4, 0x80000000}, {0xa0, FG_RAM - 64}};
	struct rig r;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		REQUIRE(rig_up(&r, ALL));
		fg_write(&r.g, 0x30, 0);
		fg_write(&r.g, 0x44, 0);
		CHECK_INT(fg_read(&r.g, 0x44), 0);
		fg_write(&r.g, 0x80, 4096);
		fg_write(&r.g, 0x90, 8192);
		fg_write(&r.g, 0xa0, 12288);
		fg_write(&r.g, bad[i].reg, bad[i].v);
		fg_write(&r.g, 0x44, 1);
		CHECK_INT(fg_read(&r.g, 0x44), 0);
		CHECK(fg_read(&r.g, 0x70) & VIRTIO_S_NEEDS_RESET);
		rig_down(&r);
	}
}

static void features_are_negotiated(void)
{
	struct rig r;

	REQUIRE(rig_up(&r, ALL));
	/* after FEATURES_OK they stand */
	fg_write(&r.g, 0x24, 0);
	fg_write(&r.g, 0x20, 0);
	CHECK(r.e.dev.features & VIRTIO_F_EVENT_IDX);
	/* one that is not offered, then without VERSION_1 */
	for (int i = 0; i < 2; i++) {
		fg_write(&r.g, 0x70, 0);
		fg_write(&r.g, 0x70, 3);
		fg_write(&r.g, 0x24, 0);
		fg_write(&r.g, 0x20, i ? 0 : 2);
		fg_write(&r.g, 0x24, 1);
		fg_write(&r.g, 0x20, i ? 0 : 1);
		fg_write(&r.g, 0x70, 3 | VIRTIO_S_FEATURES_OK);
		CHECK_INT(fg_read(&r.g, 0x70), 3);
		fg_write(&r.g, 0x70, 3 | VIRTIO_S_FEATURES_OK | VIRTIO_S_DRIVER_OK);
		CHECK_INT(fg_read(&r.g, 0x70), 3);
	}
	rig_down(&r);
}

static void registers_refuse_nonsense(void)
{
	struct rig r;
	uint64_t refused;
	uint8_t b[8];

	REQUIRE(rig_up(&r, ALL));
	CHECK_INT(fg_read(&r.g, 0), 0x74726976);
	CHECK_INT(fg_read(&r.g, 4), 2);
	CHECK_INT(fg_read(&r.g, 8), 42);
	CHECK_INT(fg_read(&r.g, 0xb0), 0xffffffff);
	refused = atomic_load(&r.e.dev.n.refused);
	virtio_mmio_read(&r.e.dev, 0, b, 8);
	virtio_mmio_read(&r.e.dev, 2, b, 4);
	virtio_mmio_read(&r.e.dev, 0xffc, b, 8);
	virtio_mmio_write(&r.e.dev, 0x101, b, 8);
	virtio_mmio_read(&r.e.dev, 0x101, b, 8);
	fg_write(&r.g, 0, 1);
	fg_read(&r.g, 0x20);
	fg_write(&r.g, 0x30, 99);
	fg_write(&r.g, 0x38, 1);
	CHECK_INT(atomic_load(&r.e.dev.n.refused) - refused, 8);
	CHECK_INT(fg_read(&r.g, 0x34), 0);
	for (uint32_t len = 1; len <= 8; len *= 2) {
		memset(b, 0, sizeof(b));
		virtio_mmio_read(&r.e.dev, 0x100, b, len);
		CHECK_INT(b[len - 1], 0x5a);
	}
	rig_down(&r);
}

static void reset_waits_for_requests(void)
{
	struct rig r;

	REQUIRE(rig_up(&r, ALL));
	r.e.busy = 1;
	fg_write(&r.g, 0x70, 0);
	CHECK_INT(fg_read(&r.g, 0x70), VIRTIO_S_NEEDS_RESET);
	r.e.busy = 0;
	CHECK_INT(fg_read(&r.g, 0x70), 0);
	fg_run(&r.g);
	CHECK_INT(r.e.resets, 1);
	/* a reset and a new start before the device thread has looked */
	CHECK(fg_probe(&r.g, &r.e.dev, ALL, 64));
	CHECK_INT(r.e.activations, 2);
	rig_down(&r);
}

static void state_moves_to_another_device(void)
{
	struct fg_range in = {4096, 16};
	struct rig r;
	struct echo two = {0};
	struct err e;
	uint16_t h;
	uint32_t len;

	REQUIRE(rig_up(&r, ALL));
	for (int i = 0; i < 70; i++) {
		fg_add(&r.g, 0, NULL, 0, &in, 1);
		fg_kick(&r.g, 0);
		CHECK(fg_used(&r.g, 0, &h, &len));
	}
	CHECK_INT(virtio_init(&two.dev, &echo_ops, &r.g.env, 3, &e), 0);
	/* one chain that nobody has heard of: the kick was lost with the old process */
	fg_add(&r.g, 0, NULL, 0, &in, 1);
	/* and a changed configuration that the driver has not acknowledged */
	virtio_config_changed(&r.e.dev);
	CHECK_INT(fg_move(&r.g, &two.dev), 0);
	CHECK(!fg_used(&r.g, 0, &h, &len));
	virtio_resume(&two.dev, true);
	CHECK(fg_used(&r.g, 0, &h, &len));
	CHECK_INT(fg_read(&r.g, 0x60) & 3, 3);
	CHECK_INT(fg_read(&r.g, 0x70), 15);
	fg_add(&r.g, 0, NULL, 0, &in, 1);
	fg_kick(&r.g, 0);
	CHECK(fg_used(&r.g, 0, &h, &len));
	virtio_fini(&two.dev);
	rig_down(&r);
}

static void unaccepted_features_are_saved(void)
{
	struct rig r;
	struct echo two = {0};
	struct err e;

	REQUIRE(rig_up(&r, ALL));
	fg_write(&r.g, 0x70, 0);
	fg_write(&r.g, 0x24, 1);
	fg_write(&r.g, 0x20, 0x90000000);
	CHECK_INT(virtio_init(&two.dev, &echo_ops, &r.g.env, 3, &e), 0);
	CHECK_INT(fg_move(&r.g, &two.dev), 0);
	CHECK(!two.dev.active);
	virtio_fini(&two.dev);
	rig_down(&r);
}

static void damaged_state_is_refused(void)
{
	struct rig r;
	struct echo two = {0};
	struct err e;
	struct buf b;
	struct cur c;

	REQUIRE(rig_up(&r, ALL));
	buf_init(&b, 65536);
	virtio_quiesce(&r.e.dev, NULL, NULL);
	virtio_save(&r.e.dev, &b);
	CHECK_INT(virtio_init(&two.dev, &echo_ops, &r.g.env, 3, &e), 0);
	for (size_t n = 0; n < b.len; n++) {
		c = cur_of(b.p, n);
		CHECK(virtio_load(&two.dev, &c, &e) < 0);
		CHECK(!two.dev.active && !two.dev.queue[0].ready);
	}
	b.p[4] ^= 1; /* the device's id */
	c = cur_of(b.p, b.len);
	CHECK(virtio_load(&two.dev, &c, &e) < 0);
	b.p[4] ^= 1;
	b.p[12] ^= 2; /* a feature that is not offered */
	c = cur_of(b.p, b.len);
	CHECK(virtio_load(&two.dev, &c, &e) < 0);
	b.p[12] ^= 2;
	b.p[48] = 0xff; /* queue 0 somewhere else */
	c = cur_of(b.p, b.len);
	CHECK(virtio_load(&two.dev, &c, &e) < 0);
	virtio_fini(&two.dev);
	buf_fini(&b);
	rig_down(&r);
}

static const struct test tests[] = {
	{"chains_are_echoed", chains_are_echoed},
	{"interrupts_are_batched_and_suppressed", interrupts_are_batched_and_suppressed},
	{"budget_yields_to_others", budget_yields_to_others},
	{"nonsense_asks_for_a_reset", nonsense_asks_for_a_reset},
	{"told_on_the_device_thread_and_not_for_ever", told_on_the_device_thread_and_not_for_ever},
	{"queues_are_checked", queues_are_checked},
	{"features_are_negotiated", features_are_negotiated},
	{"registers_refuse_nonsense", registers_refuse_nonsense},
	{"reset_waits_for_requests", reset_waits_for_requests},
	{"state_moves_to_another_device", state_moves_to_another_device},
	{"unaccepted_features_are_saved", unaccepted_features_are_saved},
	{"damaged_state_is_refused", damaged_state_is_refused},
};
TEST_MAIN(tests)
