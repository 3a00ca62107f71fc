/* SPDX-License-Identifier: Apache-2.0
 *
 * balloon.c: memory that a guest used and freed comes back to the host, by reports and by inflating, and what is snapshotted and restored
 * afterwards is right. A program of vm-drive.
 */
#include <string.h>

#include "tests/vm/kit.h"

/* What the guest's kernel and its one program keep when the balloon is inflated. */
#define GUEST_KEEPS MIB(80)
#define PAGES       1000u /* of the arena: what must survive */

static uint64_t stat_of(struct vmctl *v, const char *want)
{
	uint64_t value, found = UINT64_MAX;
	unsigned int n;
	struct buf out;
	char name[64];
	struct cur c;

	buf_init(&out, VMM_MSG_MAX);
	MUST(vmctl_call(v, VMM_STATS, NULL, NULL, 0, &out) == 0);
	c = cur_of(out.p, out.len);
	n = cur_u16(&c);
	for (unsigned int i = 0; i < n; i++) {
		cur_str(&c, name, sizeof(name));
		value = cur_u64(&c);
		if (!strcmp(name, want))
			found = value;
	}
	buf_fini(&out);
	MUST(found != UINT64_MAX);
	return found;
}

static long held_kib(struct vmctl *v)
{
	return vmctl_rollup(v, "Private_Dirty") + vmctl_rollup(v, "Private_Clean");
}

/* The guest holds `mib` more, until drop(). What the monitor holds then. */
static long use(struct vmctl *v, uint64_t mib)
{
	long before = held_kib(v), now;

	ask(v, TG_USE, mib, 0, 1);
	now = held_kib(v);
	MUST(now - before > (long)(mib << 10) * 8 / 10);
	return now;
}

static void drop(struct vmctl *v, uint64_t mib)
{
	struct tg_msg m = ask(v, TG_DROP, 0, 0, 0);

	MUST(m.a == 0 && m.b == mib * 256);
}

/* Until the monitor holds so much less than `peak`: ms. */
static uint64_t wait_given_back(struct vmctl *v, long peak, uint64_t mib)
{
	uint64_t t0 = mono_ns();

	while (peak - held_kib(v) < (long)(mib << 10) * 9 / 10) {
		MUST(mono_ns() - t0 < KIT_LIMIT * 1000000ull);
		usleep(100000);
	}
	return (mono_ns() - t0) / 1000000;
}

static void set_target(struct vmctl *v, uint64_t bytes)
{
	struct buf b, out;

	buf_init(&b, 16);
	buf_init(&out, 16);
	buf_u64(&b, bytes);
	MUST(vmctl_call(v, VMM_BALLOON, &b, NULL, 0, &out) == 0 && out.len == 8);
	buf_fini(&b);
	buf_fini(&out);
}

static void wait_deflated(struct vmctl *v)
{
	uint64_t t0 = mono_ns();

	while (stat_of(v, "balloon.actual_bytes") != 0) {
		MUST(mono_ns() - t0 < KIT_LIMIT * 1000000ull);
		usleep(100000);
	}
}

static void a_round(struct vmctl *v, struct stored *base, uint64_t mem, uint64_t mib)
{
	uint64_t ms[2], reported = stat_of(v, "balloon.reported_bytes");
	struct stored d;
	long peak = use(v, mib);

	drop(v, mib);
	ms[0] = wait_given_back(v, peak, mib);
	MUST(stat_of(v, "balloon.reported_bytes") - reported >= MIB(mib) * 9 / 10);
	check_guest(v, PAGES);

	peak = use(v, mib);
	drop(v, mib);
	set_target(v, mem - GUEST_KEEPS);
	ms[1] = wait_given_back(v, peak, mib);
	check_guest(v, PAGES);

	/* inflated as it is */
	d = snapshot(v, base, VMM_F_LIVE | VMM_F_DIFF, NULL);
	MUST(v->snap_pages < mib * 128);
	check_guest(v, PAGES);
	printf("ok %llu MiB: given back by reports in %llu ms, by inflating in %llu ms; the "
	       "difference has %llu pages\n",
		(unsigned long long)mib, (unsigned long long)ms[0], (unsigned long long)ms[1],
		(unsigned long long)v->snap_pages);
	vmctl_kill(v);
	blank(v, mem, 1);
	restore(v, &d, -1, 0, false);
	MUST(vmctl_wait_ready(v, KIT_LIMIT));
	wait_deflated(v);
	check_guest(v, PAGES);
	/* the next round begins without it */
	peak = use(v, mib);
	drop(v, mib);
	wait_given_back(v, peak, mib);
	check_guest(v, PAGES);
	close_stored(base, &d);
	*base = d;
}

/* A restored guest that does nothing: what the balloon costs it. */
static void idle_cost(struct vmctl *v)
{
	static const char *const names[] = {
		"balloon.kicks", "balloon.irqs", "balloon.reported_bytes", "exits_mmio"};
	uint64_t was[ARRAY_LEN(names)];
	long kib = held_kib(v);

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		was[i] = stat_of(v, names[i]);
	sleep(6);
	printf("idle for 6 s after a restore:");
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		printf(" %s %llu +%llu", names[i], (unsigned long long)was[i],
			(unsigned long long)(stat_of(v, names[i]) - was[i]));
	printf(", private memory %ld +%ld KiB\n", kib, held_kib(v) - kib);
}

void balloon(uint64_t mib, unsigned int rounds)
{
	uint64_t mem = ALIGN_UP(MIB(mib) + MIB(128), MIB(256));
	struct stored base;
	struct vmctl v;

	vmctl_boot_flags = VMM_F_BALLOON;
	boot(&v, mem, 1);
	ask(&v, TG_FILL, 0, PAGES, 1);
	base = snapshot(&v, NULL, VMM_F_LIVE, NULL);
	check_guest(&v, PAGES);
	vmctl_kill(&v);
	blank(&v, mem, 1);
	restore(&v, &base, -1, 0, false);
	MUST(vmctl_wait_ready(&v, KIT_LIMIT));
	if (rounds > 1)
		idle_cost(&v);
	for (unsigned int i = 0; i < rounds; i++)
		a_round(&v, &base, mem, mib);
	vmctl_kill(&v);
	printf("ok %u rounds of %llu MiB used, freed and given back\n", rounds,
		(unsigned long long)mib);
}
