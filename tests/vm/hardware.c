/* SPDX-License-Identifier: Apache-2.0
 *
 * hardware.c: scenarios of vm-drive that say something about a real machine: pauses and resumes for as long as one likes, and the CPU classes.
 */
#include <string.h>

#include "tests/vm/kit.h"

void rounds(unsigned int seconds)
{
	uint64_t end = mono_ns() + seconds * 1000000000ull, pages = 500;
	struct stored d = {0}, before = {0};
	unsigned int n = 0;
	struct vmctl v;

	boot(&v, KIT_MEM, 2);
	ask(&v, TG_FILL, 0, pages, 1);
	for (; mono_ns() < end || !n; n++) {
		struct tg_msg c = ask(&v, TG_COUNT, 0, 0, 0), again;

		d = snapshot(&v, n ? &before : NULL, VMM_F_EXIT | (n ? VMM_F_DIFF : 0), NULL);
		MUST(vmctl_wait_exit(&v, KIT_LIMIT) && v.exit_why == VMM_X_SNAPSHOTTED);
		vmctl_kill(&v);
		blank(&v, KIT_MEM, 2);
		restore(&v, &d, -1, 0, false);
		MUST(vmctl_wait_ready(&v, KIT_LIMIT));
		check_guest(&v, pages);
		again = ask(&v, TG_COUNT, 0, 0, 0);
		MUST(again.a > c.a);
		/* files of rounds that nothing stands on any more: only the numbers of open ones are bounded */
		close_stored(&before, &d);
		before = d;
		if (pages < 8000) {
			ask(&v, TG_FILL, pages, 50, 2 + n);
			pages += 50;
		}
	}
	printf("ok %u pauses and resumes in %u s: memory right, the counter never went back\n", n,
		seconds);
	vmctl_kill(&v);
}

/* A VM of this class: boots, is snapshotted and restored. */
static bool one_class(const char *tmpl)
{
	struct stored s;
	struct vmctl v;

	vmctl_template = tmpl;
	vmctl_start(&v);
	if (vmctl_prepare(&v, KIT_MEM, 2) < 0) {
		vmctl_kill(&v);
		return false;
	}
	MUST(vmctl_boot(&v, kit_kernel, kit_initrd, "") == 0);
	MUST(vmctl_wait_ready(&v, KIT_LIMIT));
	ask(&v, TG_FILL, 0, 500, 1);
	s = snapshot(&v, NULL, VMM_F_EXIT, NULL);
	vmctl_kill(&v);
	blank(&v, KIT_MEM, 2);
	restore(&v, &s, -1, 0, false);
	MUST(vmctl_wait_ready(&v, KIT_LIMIT));
	check_guest(&v, 500);
	vmctl_kill(&v);
	/* a blank of another class takes it, too: the snapshot's CPUID counts */
	vmctl_template = "";
	blank(&v, KIT_MEM, 2);
	restore(&v, &s, -1, 0, false);
	MUST(vmctl_wait_ready(&v, KIT_LIMIT));
	check_guest(&v, 500);
	vmctl_kill(&v);
	return true;
}

void classes(void)
{
	static const char *const names[] = {"x86-64-v2", "x86-64-v3"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		bool ok = one_class(names[i]);

		vmctl_template = "";
		/* the monitor's log says which bit is missing */
		printf(ok ? "ok class %s: booted, snapshotted, restored in its class and in the "
			    "host's\n"
			  : "ok class %s: refused, this host lacks a bit of it\n",
			names[i]);
	}
	MUST(!one_class("x86-64-v9"));
	vmctl_template = "";
	printf("ok a class that no host has is refused\n");
}
