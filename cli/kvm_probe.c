/* SPDX-License-Identifier: Apache-2.0
 *
 * kvm_probe.c: tries /dev/kvm. Some hosts offer one that interprets ring 0 at some 2 million
 * instructions a second and lacks much of the instruction set: a million instructions take 0.6 s
 * there, under 1 ms on hardware, a few ms under nested virtualization.
 */
#include "cli/kvm_probe.h"

#include <fcntl.h>
#include <linux/kvm.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>

enum { LOOPS = 500000, USABLE_US = 100000, GIVE_UP_S = 2 };

/* real mode: mov ecx, LOOPS; l: dec ecx; jnz l; hlt */
static const uint8_t code[] = {0x66, 0xb9, LOOPS & 0xff, LOOPS >> 8 & 0xff, LOOPS >> 16 & 0xff,
	LOOPS >> 24, 0x66, 0x49, 0x75, 0xfc, 0xf4};

static void on_alarm(int sig)
{
}

static void say(struct kvm_verdict *v, const char *what)
{
	snprintf(v->reason, sizeof(v->reason), "%s: %s", what, strerror(errno));
}

/* Runs until HLT; false with a reason. */
static bool run_loop(struct kvm_verdict *v, int vcpu, struct kvm_run *run)
{
	struct itimerval limit = {.it_value = {.tv_sec = GIVE_UP_S}}, none = {0};
	struct sigaction sa = {.sa_handler = on_alarm}, old;
	uint64_t start = mono_ns();
	int rc;

	sigaction(SIGALRM, &sa, &old);
	setitimer(ITIMER_REAL, &limit, NULL);
	rc = ioctl(vcpu, KVM_RUN, 0);
	setitimer(ITIMER_REAL, &none, NULL);
	sigaction(SIGALRM, &old, NULL);
	v->loop_us = (mono_ns() - start) / 1000;
	if (rc < 0 && errno == EINTR) {
		snprintf(v->reason, sizeof(v->reason),
			"/dev/kvm is there, but a million ring-0 instructions take over %d s: an "
			"imitation",
			GIVE_UP_S);
		return false;
	}
	if (rc < 0) {
		say(v, "KVM_RUN");
		return false;
	}
	if (run->exit_reason != KVM_EXIT_HLT) {
		snprintf(v->reason, sizeof(v->reason),
			"KVM cannot run a plain loop (exit reason %u)", run->exit_reason);
		return false;
	}
	return true;
}

static bool try_vm(struct kvm_verdict *v, int kvm, int vm, uint8_t *mem)
{
	struct kvm_userspace_memory_region slot = {
		.memory_size = PAGE_BYTES, .userspace_addr = (uintptr_t)mem};
	struct kvm_regs regs = {.rflags = 2};
	struct kvm_sregs sregs;
	_cleanup_close_ int vcpu = -1;
	struct kvm_run *run;
	int run_bytes = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	bool ok;

	for (size_t i = 0; i < sizeof(code); i++)
		mem[i] = code[i];
	if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot) < 0 ||
		(vcpu = ioctl(vm, KVM_CREATE_VCPU, 0)) < 0 || run_bytes <= 0) {
		say(v, "KVM_CREATE_VCPU");
		return false;
	}
	run = mmap(NULL, (size_t)run_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	if (run == MAP_FAILED || ioctl(vcpu, KVM_GET_SREGS, &sregs) < 0) {
		say(v, "KVM_GET_SREGS");
		return false;
	}
	sregs.cs.base = 0;
	sregs.cs.selector = 0;
	if (ioctl(vcpu, KVM_SET_SREGS, &sregs) < 0 || ioctl(vcpu, KVM_SET_REGS, &regs) < 0) {
		say(v, "KVM_SET_SREGS");
		munmap(run, (size_t)run_bytes);
		return false;
	}
	ok = run_loop(v, vcpu, run);
	munmap(run, (size_t)run_bytes);
	return ok;
}

void kvm_probe(struct kvm_verdict *v)
{
	_cleanup_close_ int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), vm = -1;
	uint8_t *mem;

	*v = (struct kvm_verdict){0};
	if (kvm < 0) {
		say(v, "/dev/kvm");
		return;
	}
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	mem = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (vm < 0 || mem == MAP_FAILED) {
		say(v, "KVM_CREATE_VM");
		return;
	}
	if (try_vm(v, kvm, vm, mem)) {
		v->usable = v->loop_us <= USABLE_US;
		snprintf(v->reason, sizeof(v->reason),
			v->usable ? "a million ring-0 instructions took %lu us"
				  : "/dev/kvm is there, but a million ring-0 instructions took %lu "
				    "us: an imitation",
			(unsigned long)v->loop_us);
	}
	munmap(mem, PAGE_BYTES);
}
