/* SPDX-License-Identifier: Apache-2.0
 *
 * crash.c: the crash report, on stderr and in the last-words descriptor. mayfly-vmm, any thread, in
 * a signal handler: only system calls, no stdio locks, no allocation (snprintf writes numbers and
 * strings into a buffer on the stack; it takes no lock and allocates nothing for them). The one
 * global here is what a signal handler needs to find its VM.
 */
#include "vmm/crash.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "vmm/vm.h"

static struct {
	int lastwords_fd;
	struct vm *vm;
	_Atomic int busy;
} known = {.lastwords_fd = -1};

static bool in_guest_memory(const void *addr)
{
	const struct vm *vm = known.vm;
	uintptr_t a = (uintptr_t)addr;

	return vm && vm->mem.base && a >= (uintptr_t)vm->mem.base &&
	       a - (uintptr_t)vm->mem.base < vm->mem.span_bytes;
}

static void say(const char *s)
{
	(void)!write(2, s, strlen(s));
}

static void leave_words(uint32_t reason, const char *text)
{
	static struct vmm_last_words w; /* 4 KiB: not on a signal stack */

	w.magic = LAST_WORDS_MAGIC;
	w.reason = reason;
	w.wall_ns = wall_ns();
	w.text_len = (uint32_t)MIN(strlen(text), sizeof(w.text) - 1);
	memcpy(w.text, text, w.text_len);
	if (known.vm)
		w.console_len = (uint32_t)vm_console_tail(known.vm, w.console, sizeof(w.console));
	if (known.lastwords_fd >= 0)
		(void)!pwrite(known.lastwords_fd, &w, sizeof(w), 0);
}

static void report_vcpus(struct vm *vm)
{
	char line[900];

	for (unsigned int i = 0; i < vm->vcpus.n; i++) {
		struct vcpu *v = &vm->vcpus.v[i];

		snprintf(line, sizeof(line), "vcpu%u last exits:", i);
		say(line);
		for (unsigned int k = 0; k < VCPU_TRAIL; k++) {
			unsigned int at = (v->trail_at + k) % VCPU_TRAIL;

			if (!v->trail[at].reason)
				continue;
			snprintf(line, sizeof(line), " %u@%#llx", v->trail[at].reason,
				(unsigned long long)v->trail[at].where);
			say(line);
		}
		say("\n");
	}
	for (unsigned int i = 0; i < BOARD_VIRTIO_SLOTS; i++)
		if (vm->board_up && vm->board.dev[i]) {
			virtio_dump(vm->board.dev[i], line, sizeof(line));
			say(line);
			say("\n");
		}
}

static void on_fatal(int sig, siginfo_t *si, void *uc)
{
	bool guest = (sig == SIGBUS || sig == SIGSEGV) && in_guest_memory(si->si_addr);
	int me = gettid(), nobody = 0;
	char text[200];

	if (!atomic_compare_exchange_strong(&known.busy, &nobody, me)) {
		/* either the report itself crashed, or another thread writes one: give that thread
		 * some time to finish */
		for (int i = 0; nobody != me && i < 100000; i++)
			sched_yield();
		_exit(128 + sig);
	}
	if (guest && sig == SIGBUS)
		snprintf(text, sizeof(text),
			"guest memory at %#llx cannot be read any more (a memory file was "
			"shortened or its disk failed)",
			(unsigned long long)((uintptr_t)si->si_addr -
					     (uintptr_t)known.vm->mem.base));
	else if (sig == SIGSYS)
		snprintf(text, sizeof(text),
			"system call %d is not on this thread's list (vmm/seal.c), called from %p",
			si->si_syscall, si->si_call_addr);
	else
		snprintf(text, sizeof(text), "the monitor died of signal %d at address %p", sig,
			si->si_addr);
	leave_words(guest && sig == SIGBUS ? VMM_X_HOST_ERROR : VMM_X_INTERNAL, text);
	say("CRASH: ");
	say(text);
	say("\n");
	if (known.vm)
		report_vcpus(known.vm);
	/* after SIGSYS: signal() and raise() may be forbidden, too */
	if ((guest && sig == SIGBUS) || sig == SIGSYS)
		_exit(1);
	signal(sig, SIG_DFL);
	raise(sig);
}

void crash_install(int lastwords_fd)
{
	static const int sigs[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS};
	struct sigaction sa = {
		.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};

	known.lastwords_fd = lastwords_fd;
	for (size_t i = 0; i < ARRAY_LEN(sigs); i++)
		sigaction(sigs[i], &sa, NULL);
}

void crash_know(struct vm *vm)
{
	known.vm = vm;
}

void crash_child(void)
{
	known.lastwords_fd = -1;
}
