/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_small: the entropy device and the console.
 */
#include "lib/test.h"

#include "tests/unit/lib/fake_guest.h"
#include "vmm/console.h"
#include "vmm/rng.h"

#define ALL (VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC)

static void rng_fills_buffers(void)
{
	static uint8_t zero[256];
	struct fake_guest g;
	struct virtio_dev *d;
	struct fg_range in[2], out;
	struct err e;
	uint16_t h;
	uint32_t len;

	fg_init(&g);
	d = rng_create(&g.env, &e);
	REQUIRE(d && fg_probe(&g, d, ALL, 16));
	in[0] = (struct fg_range){fg_alloc(&g, 256), 100};
	in[1] = (struct fg_range){in[0].gpa + 100, 156};
	fg_add(&g, 0, NULL, 0, in, 2);
	fg_kick(&g, 0);
	REQUIRE(fg_used(&g, 0, &h, &len));
	CHECK_INT(len, 256);
	for (int i = 0; i < 256; i += 32)
		CHECK(memcmp(fg_ptr(&g, in[0].gpa + (uint64_t)i), zero, 32) != 0);
	/* nothing to write to: given back empty */
	out = in[0];
	fg_add(&g, 0, &out, 1, NULL, 0);
	fg_kick(&g, 0);
	REQUIRE(fg_used(&g, 0, &h, &len));
	CHECK_INT(len, 0);
	CHECK_INT(g.needs_resets, 0);
	rng_destroy(d);
	fg_fini(&g);
}

static void rng_is_rate_limited(void)
{
	struct fake_guest g;
	struct virtio_dev *d;
	struct fg_range in;
	struct err e;
	uint64_t total = 0, start;
	uint16_t h;
	uint32_t len;

	fg_init(&g);
	d = rng_create(&g.env, &e);
	REQUIRE(d && fg_probe(&g, d, ALL, 16));
	in = (struct fg_range){fg_alloc(&g, 65536), 65536};
	start = mono_ns();
	for (int i = 0; i < 16; i++)
		fg_add(&g, 0, NULL, 0, &in, 1);
	fg_kick(&g, 0);
	while (fg_used(&g, 0, &h, &len)) {
		CHECK(len <= RNG_REQUEST);
		total += len;
	}
	/* the burst and what the time since allows, not sixteen times 16 KiB */
	CHECK(total >= RNG_BURST);
	CHECK(total <= RNG_BURST + (mono_ns() - start) / 1000 * RNG_RATE / 1000000 + 4096);
	CHECK(total < 16 * RNG_REQUEST);
	/* the timer brings the rest */
	for (int i = 0; i < 50 && d->queue[0].last_avail < 16; i++)
		loop_turn(g.loop, 20);
	CHECK_INT(d->queue[0].last_avail, 16);
	rng_destroy(d);
	fg_fini(&g);
}

static void rng_counts_requests_too(void)
{
	uint64_t start = mono_ns(), n = 0;
	struct fake_guest g;
	struct virtio_dev *d;
	struct fg_range in;
	struct err e;
	uint16_t h;
	uint32_t len;

	fg_init(&g);
	d = rng_create(&g.env, &e);
	REQUIRE(d && fg_probe(&g, d, ALL, 16));
	in = (struct fg_range){fg_alloc(&g, 64), 1};
	/* one byte at a time: as much work as many bytes */
	for (; n < 20000; n++) {
		fg_add(&g, 0, NULL, 0, &in, 1);
		fg_kick(&g, 0);
		if (!fg_used(&g, 0, &h, &len))
			break;
		CHECK_INT(len, 1);
	}
	CHECK(n * RNG_LEAST <= RNG_BURST + (mono_ns() - start) / 1000 * RNG_RATE / 1000000 + 64);
	rng_destroy(d);
	fg_fini(&g);
}

static struct {
	char p[300000];
	size_t n;
} O;

static void on_out(void *ctx, const void *p, size_t n)
{
	if (n <= sizeof(O.p) - O.n)
		memcpy(O.p + O.n, p, n);
	O.n += n;
}

static void console_speaks_and_hears(void)
{
	struct console_config cfg = {.out = on_out};
	struct fake_guest g;
	struct virtio_dev *d;
	struct fg_range r[2];
	struct err e;
	uint64_t a;
	uint16_t h;
	uint32_t len;

	O.n = 0;
	fg_init(&g);
	d = console_create(&g.env, &cfg, &e);
	REQUIRE(d && fg_probe(&g, d, ALL, 32));
	a = fg_alloc(&g, 65536);
	for (int i = 0; i < 65536; i++)
		((uint8_t *)fg_ptr(&g, a))[i] = (uint8_t)i;
	r[0] = (struct fg_range){a, 3000};
	r[1] = (struct fg_range){a + 3000, 62536};
	for (int i = 0; i < 4; i++)
		fg_add(&g, 1, r, 2, NULL, 0);
	fg_kick(&g, 1);
	CHECK_INT(O.n, 4 * 65536);
	CHECK(!memcmp(O.p + 65536 * 3, fg_ptr(&g, a), 65536));
	CHECK(atomic_load(&d->n.yields) >= 3);
	while (fg_used(&g, 1, &h, &len))
		CHECK_INT(len, 0);
	/* typed before there is a buffer, and more than one buffer holds */
	CHECK_INT(console_input(d, "hello world", 11), 11);
	r[0] = (struct fg_range){a, 8};
	fg_add(&g, 0, NULL, 0, r, 1);
	fg_kick(&g, 0);
	REQUIRE(fg_used(&g, 0, &h, &len));
	CHECK_INT(len, 8);
	fg_add(&g, 0, NULL, 0, r, 1);
	fg_kick(&g, 0);
	REQUIRE(fg_used(&g, 0, &h, &len));
	CHECK_INT(len, 3);
	CHECK(!memcmp(fg_ptr(&g, a), "rldlo wo", 8));
	memset(O.p, 'x', sizeof(O.p));
	CHECK_INT(console_input(d, O.p, 10000), CONSOLE_INPUT_BYTES);
	/* a buffer that cannot be written to */
	fg_add(&g, 0, r, 1, NULL, 0);
	fg_kick(&g, 0);
	CHECK_INT(g.needs_resets, 1);
	console_destroy(d);
	fg_fini(&g);
}

static const struct test tests[] = {
	{"rng_fills_buffers", rng_fills_buffers},
	{"rng_is_rate_limited", rng_is_rate_limited},
	{"rng_counts_requests_too", rng_counts_requests_too},
	{"console_speaks_and_hears", console_speaks_and_hears},
};
TEST_MAIN(tests)
