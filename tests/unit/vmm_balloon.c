/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_balloon: the memory balloon, with a scripted driver.
 */
#include "lib/test.h"

#include <sys/mman.h>

#include "tests/unit/lib/fake_guest.h"
#include "vmm/balloon.h"

#define F_DEFLATE_ON_OOM (1ull << 2)
#define F_REPORTING      (1ull << 5)
#define ALL              (VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC | F_DEFLATE_ON_OOM | F_REPORTING)
#define NUM_PAGES        0x100u /* registers of the configuration */
#define ACTUAL           0x104u
#define ISR              0x060u
#define ISR_ACK          0x064u
#define ISR_CONFIG       2u
#define LINE             (BOARD_VIRTIO_IRQ + SLOT_BALLOON)
/* what the tests give away: the rings lie below it */
#define DATA      MIB(2)
#define PFN(page) (uint32_t)((DATA >> 12) + (page))

enum { INFLATE, DEFLATE, REPORT };

static struct {
	struct fake_guest g;
	struct virtio_dev *d;
	uint64_t pfns, told;
	unsigned int tells;
} F;

static void on_given_back(void *ctx, uint64_t bytes)
{
	F.told = bytes;
	F.tells++;
}

static bool up(void)
{
	struct err e;

	memset(&F, 0, sizeof(F));
	fg_init(&F.g);
	F.g.env.given_back = on_given_back;
	F.d = balloon_create(&F.g.env, &e);
	if (!F.d || !fg_probe(&F.g, F.d, ALL, 128))
		return false;
	F.pfns = fg_alloc(&F.g, 4 * (BALLOON_PFNS_MAX + 1));
	memset(fg_ptr(&F.g, DATA), 7, FG_RAM - DATA);
	return true;
}

static void down(void)
{
	balloon_destroy(F.d);
	fg_fini(&F.g);
}

static uint64_t counter_value;
static const char *counter_name;

static void on_stat(void *arg, const char *dev, const char *name, uint64_t value)
{
	if (!strcmp(name, counter_name))
		counter_value = value;
}

static uint64_t counter(const char *name)
{
	counter_name = name;
	counter_value = UINT64_MAX;
	virtio_stats(F.d, on_stat, NULL);
	return counter_value;
}

/* Is the page there? The host has it, or not: reading it would bring it back. */
static bool present(uint64_t page)
{
	unsigned char v = 0;

	CHECK_INT(mincore(fg_ptr(&F.g, DATA + page * PAGE_BYTES), PAGE_BYTES, &v), 0);
	return v & 1;
}

static unsigned int used(unsigned int q)
{
	unsigned int n = 0;
	uint32_t len;
	uint16_t h;

	for (; fg_used(&F.g, q, &h, &len); n++)
		CHECK_INT(len, 0);
	return n;
}

static void send_pfns(unsigned int q, const uint32_t *pfn, unsigned int n, uint32_t bytes)
{
	struct fg_range r = {F.pfns, bytes};

	memcpy(fg_ptr(&F.g, F.pfns), pfn, n * sizeof(*pfn));
	fg_add(&F.g, q, &r, 1, NULL, 0);
	fg_kick(&F.g, q);
}

static void inflating_gives_pages_back(void)
{
	/* up, down, alone, twice, then one that is above all memory */
	static const uint32_t pfn[] = {
		PFN(0), PFN(1), PFN(2), PFN(9), PFN(8), PFN(7), PFN(20), PFN(20), 0xffffffff};
	static const unsigned int gone[] = {0, 1, 2, 7, 8, 9, 20};
	unsigned int k = 0;

	REQUIRE(up());
	CHECK_INT(fg_read(&F.g, 0x008), VIRTIO_ID_BALLOON);
	send_pfns(INFLATE, pfn, ARRAY_LEN(pfn), sizeof(pfn));
	CHECK_INT(used(INFLATE), 1);
	for (unsigned int i = 0; i < 30; i++) {
		bool want = k < ARRAY_LEN(gone) && gone[k] == i;

		k += want;
		CHECK_INT(present(i), !want);
		CHECK_INT(*(uint8_t *)fg_ptr(&F.g, DATA + i * PAGE_BYTES), want ? 0 : 7);
	}
	CHECK_INT(counter("inflated_bytes"), 8 * PAGE_BYTES);
	CHECK_INT(counter("refused"), 1);
	/* a page that comes back needs nothing: the guest just uses it */
	send_pfns(DEFLATE, pfn, 3, 12);
	CHECK_INT(used(DEFLATE), 1);
	CHECK_INT(F.g.needs_resets, 0);
	down();
}

static void nonsense_is_refused(void)
{
	static uint32_t many[BALLOON_PFNS_MAX + 1];
	struct fg_range r = {FG_RAM - PAGE_BYTES, 2 * PAGE_BYTES};

	REQUIRE(up());
	for (unsigned int i = 0; i < ARRAY_LEN(many); i++)
		many[i] = PFN(i % 16);
	send_pfns(INFLATE, many, 2, 7);
	send_pfns(INFLATE, many, ARRAY_LEN(many), sizeof(many));
	CHECK_INT(used(INFLATE), 2);
	CHECK_INT(counter("refused"), 2);
	CHECK(present(0) && present(15));
	/* a report of readable ranges says nothing */
	r = (struct fg_range){DATA, PAGE_BYTES};
	fg_add(&F.g, REPORT, &r, 1, NULL, 0);
	fg_kick(&F.g, REPORT);
	CHECK_INT(used(REPORT), 1);
	CHECK(present(0));
	/* the size is the host's */
	fg_write(&F.g, NUM_PAGES, 5);
	CHECK_INT(fg_read(&F.g, NUM_PAGES), 0);
	CHECK_INT(F.g.needs_resets, 0);
	/* beyond memory */
	r = (struct fg_range){FG_RAM - PAGE_BYTES, 2 * PAGE_BYTES};
	fg_add(&F.g, REPORT, NULL, 0, &r, 1);
	fg_kick(&F.g, REPORT);
	CHECK_INT(F.g.needs_resets, 1);
	down();
}

static void reported_pages_are_given_back(void)
{
	struct fg_range r[3] = {{DATA + 10 * PAGE_BYTES, 4 * PAGE_BYTES},
		{DATA + 20 * PAGE_BYTES - 100, 2 * PAGE_BYTES}, {DATA + 30 * PAGE_BYTES + 5, 50}};

	REQUIRE(up());
	fg_add(&F.g, REPORT, NULL, 0, r, ARRAY_LEN(r));
	fg_kick(&F.g, REPORT);
	CHECK_INT(used(REPORT), 1);
	for (unsigned int i = 0; i < 40; i++)
		CHECK_INT(present(i), !((i >= 10 && i < 14) || i == 20));
	/* what the edges of a range share with others stays */
	CHECK_INT(*(uint8_t *)fg_ptr(&F.g, DATA + 20 * PAGE_BYTES - 50), 7);
	CHECK_INT(*(uint8_t *)fg_ptr(&F.g, DATA + 30 * PAGE_BYTES + 5), 7);
	/* the rings themselves: the guest's own loss */
	r[0] = (struct fg_range){0, FG_RAM};
	fg_add(&F.g, REPORT, NULL, 0, r, 1);
	fg_kick(&F.g, REPORT);
	down();
}

/* A report beyond one turn's budget goes on in the next, and a snapshot may come in between. */
static void a_long_report_takes_turns(void)
{
	unsigned int turns = 2 * BALLOON_TURN_BYTES / MIB(1);
	struct virtio_dev *to, *from;
	struct fg_range r[128];
	struct err e;

	REQUIRE(up());
	for (unsigned int i = 0; i < 2 * turns; i++)
		r[i] = (struct fg_range){DATA + i % 2 * MIB(1), MIB(1)};
	REQUIRE(2 * turns <= ARRAY_LEN(r));
	fg_add(&F.g, REPORT, NULL, 0, r, 2 * turns);
	fg_write(&F.g, VIRTIO_MMIO_NOTIFY, REPORT);
	loop_turn(F.g.loop, 0);
	CHECK_INT(used(REPORT), 0);
	CHECK_INT(counter("reported_bytes"), BALLOON_TURN_BYTES);
	CHECK_INT(F.d->queue[REPORT].inflight, 0);
	/* into another device, which begins it again */
	to = balloon_create(&F.g.env, &e);
	REQUIRE(to);
	from = F.d;
	CHECK_INT(fg_move(&F.g, to), 0);
	F.d = to;
	balloon_destroy(from);
	virtio_resume(to, true);
	fg_run(&F.g);
	CHECK_INT(used(REPORT), 1);
	CHECK_INT(counter("reported_bytes"), 4 * BALLOON_TURN_BYTES);
	CHECK(counter("yields") >= 3);
	down();
}

static void a_target_is_told_once(void)
{
	struct virtio_dev *to, *from;
	unsigned int irqs;
	struct err e;

	REQUIRE(up());
	irqs = F.g.irqs[LINE];
	balloon_set_target(F.d, MIB(1) + 5);
	CHECK_INT(F.g.irqs[LINE], irqs + 1);
	CHECK_INT(fg_read(&F.g, ISR), ISR_CONFIG);
	CHECK_INT(fg_read(&F.g, NUM_PAGES), MIB(1) / PAGE_BYTES);
	fg_write(&F.g, ISR_ACK, ISR_CONFIG);
	balloon_set_target(F.d, MIB(1));
	CHECK_INT(F.g.irqs[LINE], irqs + 1);
	fg_write(&F.g, ACTUAL, 100);
	CHECK_INT(balloon_actual(F.d), 100 * PAGE_BYTES);
	balloon_set_target(F.d, UINT64_MAX);
	CHECK_INT(fg_read(&F.g, NUM_PAGES), FG_RAM / PAGE_BYTES);
	fg_write(&F.g, ISR_ACK, ISR_CONFIG);
	/* a restored guest is asked for nothing, and hears that */
	to = balloon_create(&F.g.env, &e);
	REQUIRE(to);
	from = F.d;
	CHECK_INT(fg_move(&F.g, to), 0);
	F.d = to;
	balloon_destroy(from);
	CHECK_INT(fg_read(&F.g, NUM_PAGES), 0);
	CHECK_INT(fg_read(&F.g, ACTUAL), 100);
	virtio_resume(to, true);
	CHECK(fg_read(&F.g, ISR) & ISR_CONFIG);
	down();
}

/* Each interrupt costs a restored guest two exits. */
static void an_idle_balloon_does_not_wake_a_restored_guest(void)
{
	struct virtio_dev *to, *from;
	unsigned int irqs;
	struct err e;

	REQUIRE(up());
	to = balloon_create(&F.g.env, &e);
	REQUIRE(to);
	from = F.d;
	CHECK_INT(fg_move(&F.g, to), 0);
	F.d = to;
	balloon_destroy(from);
	irqs = F.g.irqs[LINE];
	virtio_resume(to, true);
	fg_run(&F.g);
	CHECK_INT(F.g.irqs[LINE], irqs);
	/* one that was not acknowledged may have been lost: it comes again */
	balloon_set_target(F.d, MIB(1));
	irqs = F.g.irqs[LINE];
	to = balloon_create(&F.g.env, &e);
	REQUIRE(to);
	from = F.d;
	CHECK_INT(fg_move(&F.g, to), 0);
	F.d = to;
	balloon_destroy(from);
	virtio_resume(to, true);
	CHECK(F.g.irqs[LINE] > irqs);
	down();
}

/* The daemon counts it. However fast a guest gives, it hears of it once a second. */
static void what_was_given_back_is_told(void)
{
	static const uint32_t pfn[] = {PFN(0), PFN(1)};
	struct fg_range r = {DATA, 4 * PAGE_BYTES};
	uint64_t end = mono_ns() + 30000000000ull;

	REQUIRE(up());
	send_pfns(INFLATE, pfn, 2, sizeof(pfn));
	fg_add(&F.g, REPORT, NULL, 0, &r, 1);
	fg_kick(&F.g, REPORT);
	CHECK_INT(F.tells, 0);
	while (!F.tells && mono_ns() < end)
		loop_turn(F.g.loop, 100);
	CHECK_INT(F.tells, 1);
	CHECK_INT(F.told, 6 * PAGE_BYTES);
	down();
}

static void a_damaged_state_is_refused(void)
{
	static const uint8_t bad[] = {2, 0, 0, 0, 0, 0, 0, 0, 0, 0};
	struct cur c = cur_of(bad, sizeof(bad));
	struct err e;

	REQUIRE(up());
	CHECK_INT(F.d->ops->load(F.d, &c, &e), -EINVAL);
	c = cur_of(bad, 5);
	CHECK_INT(F.d->ops->load(F.d, &c, &e), -EINVAL);
	down();
}

static const struct test tests[] = {
	{"inflating_gives_pages_back", inflating_gives_pages_back},
	{"nonsense_is_refused", nonsense_is_refused},
	{"reported_pages_are_given_back", reported_pages_are_given_back},
	{"a_long_report_takes_turns", a_long_report_takes_turns},
	{"a_target_is_told_once", a_target_is_told_once},
	{"an_idle_balloon_does_not_wake_a_restored_guest",
		an_idle_balloon_does_not_wake_a_restored_guest},
	{"what_was_given_back_is_told", what_was_given_back_is_told},
	{"a_damaged_state_is_refused", a_damaged_state_is_refused},
};
TEST_MAIN(tests)
