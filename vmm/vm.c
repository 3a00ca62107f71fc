/* SPDX-License-Identifier: Apache-2.0
 *
 * vm.c: prepares, starts, stops and ends one virtual machine. mayfly-vmm; the device thread,
 * except vm_end() and the hooks that the board and the vCPU threads call. The guest decides when
 * it ends and how: the reason is one of a fixed list, and its console output is only copied.
 *
 * The end: any thread may begin it (vm_end), which wakes the device thread. The device thread
 * stops the vCPUs, lets the devices finish their output (the console's last lines), writes the
 * last words, sends the event, and leaves the loop. A panic is not yet the end: the guest's kernel
 * reboots right after it (panic=-1). If it does not within PANIC_WAIT_NS, the monitor ends the VM.
 *
 * Stopping: the vCPUs are asked to park, then the devices to finish their requests in flight. The
 * device thread waits for neither, so the control socket answers meanwhile; next_state decides
 * what a request may do then. If a stop takes too long or is cancelled, the VM runs on.
 */
#include "vmm/vm.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include "lib/log.h"
#include "vmm/bio.h"
#include "vmm/crash.h"
#include "vmm/devices.h"
#include "vmm/populate.h"
#include "vmm/restore.h"
#include "vmm/seal.h"

static const char *const exit_names[] = {
	[VMM_X_POWEROFF] = "poweroff",
	[VMM_X_RESET] = "reset",
	[VMM_X_PANIC] = "panic",
	[VMM_X_TRIPLE_FAULT] = "triple-fault",
	[VMM_X_FORCED] = "forced",
	[VMM_X_SNAPSHOTTED] = "snapshotted",
	[VMM_X_KVM_ERROR] = "kvm-error",
	[VMM_X_HOST_ERROR] = "host-error",
	[VMM_X_INTERNAL] = "internal",
};
static_assert(ARRAY_LEN(exit_names) == VMM_X_COUNT, "a name for every reason");

const char *vm_exit_name(enum vmm_exit why)
{
	return (unsigned int)why < VMM_X_COUNT ? exit_names[why] : "unknown";
}

/* ---- the states */

static const char *const state_names[VMM_S_COUNT] = {
	[VMM_S_BLANK] = "blank",
	[VMM_S_PREPARED] = "prepared",
	[VMM_S_RUNNING] = "running",
	[VMM_S_PAUSED] = "paused",
	[VMM_S_SNAPSHOTTING] = "being snapshotted",
	[VMM_S_ENDED] = "ended",
	[VMM_S_PAUSING] = "being paused",
	[VMM_S_STOPPING] = "being stopped for a snapshot",
};

static const char *const event_names[VM_E_COUNT] = {
	[VM_E_PREPARED] = "prepare",
	[VM_E_RUN] = "run",
	[VM_E_HOLD] = "hold",
	[VM_E_PAUSE] = "pause",
	[VM_E_SNAPSHOT] = "snapshot",
	[VM_E_QUIET] = "quiet",
	[VM_E_LATE] = "late",
	[VM_E_CONTINUE] = "continue",
	[VM_E_END] = "end",
};

/* The state after each event. No event leads to VMM_S_BLANK, so its value 0 means "not possible in
 * this state". */
#define NO VMM_S_BLANK
static const enum vmm_state next_state[VMM_S_COUNT][VM_E_COUNT] = {
	[VMM_S_BLANK] = {[VM_E_PREPARED] = VMM_S_PREPARED, [VM_E_END] = VMM_S_ENDED},
	[VMM_S_PREPARED] =
		{[VM_E_RUN] = VMM_S_RUNNING, [VM_E_HOLD] = VMM_S_PAUSED, [VM_E_END] = VMM_S_ENDED},
	[VMM_S_RUNNING] = {[VM_E_PAUSE] = VMM_S_PAUSING,
		[VM_E_SNAPSHOT] = VMM_S_STOPPING,
		[VM_E_END] = VMM_S_ENDED},
	[VMM_S_PAUSING] = {[VM_E_QUIET] = VMM_S_PAUSED,
		[VM_E_LATE] = VMM_S_RUNNING,
		[VM_E_CONTINUE] = VMM_S_RUNNING,
		[VM_E_END] = VMM_S_ENDED},
	[VMM_S_PAUSED] = {[VM_E_CONTINUE] = VMM_S_RUNNING,
		[VM_E_SNAPSHOT] = VMM_S_SNAPSHOTTING,
		[VM_E_END] = VMM_S_ENDED},
	/* no CONTINUE: the client of the snapshot waits for its reply */
	[VMM_S_STOPPING] = {[VM_E_QUIET] = VMM_S_SNAPSHOTTING,
		[VM_E_LATE] = VMM_S_RUNNING,
		[VM_E_END] = VMM_S_ENDED},
	[VMM_S_SNAPSHOTTING] =
		{[VM_E_RUN] = VMM_S_RUNNING, [VM_E_HOLD] = VMM_S_PAUSED, [VM_E_END] = VMM_S_ENDED},
	[VMM_S_ENDED] = {[VM_E_END] = VMM_S_ENDED},
};

static int refusal(enum vmm_state s)
{
	switch (s) {
	case VMM_S_ENDED:
		return ESRCH;
	case VMM_S_STOPPING:
	case VMM_S_SNAPSHOTTING:
		return EAGAIN;
	case VMM_S_BLANK:
	case VMM_S_PREPARED:
	case VMM_S_RUNNING:
	case VMM_S_PAUSED:
	case VMM_S_PAUSING:
	case VMM_S_COUNT:
		break;
	}
	return EBUSY;
}

/* 0, or why not; e may be NULL. */
static int vm_may(const struct vm *vm, enum vm_event ev, struct err *e)
{
	if (next_state[vm->state][ev] != NO)
		return 0;
	return e ? err_plain(e, refusal(vm->state), "%s: the VM is %s", event_names[ev],
			   state_names[vm->state])
		 : -refusal(vm->state);
}

int vm_may_snapshot(const struct vm *vm, struct err *e)
{
	return vm_may(vm, VM_E_SNAPSHOT, e);
}

/* The one place where the state changes. Less than 0: not in this state, and nothing has changed; e may be NULL. */
static int vm_step(struct vm *vm, enum vm_event ev, struct err *e)
{
	enum vmm_state next = next_state[vm->state][ev];
	int rc = vm_may(vm, ev, e);

	if (rc < 0)
		return rc;
	TRACE("%s: %s -> %s", event_names[ev], state_names[vm->state], state_names[next]);
	vm->state = next;
	return 0;
}

static void wake_end(struct vm *vm)
{
	uint64_t one = 1;

	(void)!write(vm->end_fd, &one, sizeof(one));
}

void vm_end(struct vm *vm, enum vmm_exit why, const char *text)
{
	if (atomic_exchange(&vm->end_claimed, 1))
		return;
	/* after a panic the reason is the panic: the kernel reboots, or faults while it tries */
	vm->end_why = atomic_load(&vm->panicked) && why != VMM_X_FORCED ? VMM_X_PANIC : why;
	snprintf(vm->end_text, sizeof(vm->end_text), "%s",
		vm->end_why != why ? "the guest's kernel panicked" : text);
	atomic_store(&vm->end_ready, 1);
	wake_end(vm);
}

/* ---- hooks of board and vCPUs */

static void hook_end(void *ctx, enum vmm_exit why, const char *text)
{
	vm_end(ctx, why, text);
}

static void hook_mmio(void *ctx, uint64_t gpa, void *data, uint32_t len, bool write)
{
	struct vm *vm = ctx;

	board_mmio(&vm->board, gpa, data, len, write);
}

static void hook_pio(void *ctx, uint16_t port, void *data, uint32_t size, bool write)
{
	struct vm *vm = ctx;

	board_pio(&vm->board, port, data, size, write);
}

static void hook_panicked(void *ctx)
{
	struct vm *vm = ctx;

	atomic_store(&vm->panicked, true);
	wake_end(vm);
}

static void hook_needs_reset(void *ctx, const char *dev, const char *why)
{
	struct vm *vm = ctx;
	struct buf b;

	log_limited(LOG_WARN, "%s asks for a reset: %s", dev, why);
	buf_init(&b, 1024);
	buf_str(&b, dev);
	buf_str(&b, why);
	vm->hooks.event(vm->hooks.ctx, VMM_EV_NEEDS_RESET, b.p, b.len, -1);
	buf_fini(&b);
}

static void hook_disk_full(void *ctx, unsigned int disk, unsigned int waiting)
{
	struct vm *vm = ctx;
	struct buf b;

	log_limited(LOG_WARN, "disk %u: the host has %s", disk,
		waiting ? "no room: writes wait" : "room again");
	buf_init(&b, 16);
	buf_u32(&b, disk);
	buf_u32(&b, waiting);
	vm->hooks.event(vm->hooks.ctx, VMM_EV_DISK_FULL, b.p, b.len, -1);
	buf_fini(&b);
}

static void hook_given_back(void *ctx, uint64_t bytes)
{
	struct vm *vm = ctx;
	struct buf b;

	buf_init(&b, 16);
	buf_u64(&b, bytes);
	vm->hooks.event(vm->hooks.ctx, VMM_EV_GIVEN_BACK, b.p, b.len, -1);
	buf_fini(&b);
}

void vm_console_bytes(struct vm *vm, const void *p, size_t n)
{
	const char *c = p;

	for (size_t i = 0; i < n; i++)
		vm->tail[vm->tail_at++ % VM_TAIL_MAX] = c[i];
}

size_t vm_console_tail(const struct vm *vm, char *to, size_t cap)
{
	size_t have = MIN(vm->tail_at, VM_TAIL_MAX), n = MIN(have, cap - 1);

	for (size_t i = 0; i < n; i++) {
		char c = vm->tail[(vm->tail_at - n + i) % VM_TAIL_MAX];

		to[i] = c == '\n' || (c >= 0x20 && c < 0x7f) ? c : c == '\r' ? ' ' : '?';
	}
	to[n] = 0;
	return n;
}

static void hook_serial(void *ctx, uint8_t byte)
{
	struct vm *vm = ctx;

	/* Called on a vCPU thread with the serial port's lock held. No lock protects vm->tail: the
	 * serial port is for debugging, and a torn line does no harm. */
	vm_console_bytes(vm, &byte, 1);
	if (vm->serial_fd >= 0)
		(void)!write(vm->serial_fd, &byte, 1);
}

/* Calls back the caller that waits for the stop, once. */
static void stop_over(struct vm *vm, int status)
{
	vm_stopped_fn fn = vm->stop.fn;

	timer_set(vm->stop.limit, 0);
	vm->stop.fn = NULL;
	vm->stop.draining = false;
	if (fn)
		fn(vm->stop.arg, status);
}

/* ---- the end, on the device thread */

static void say_panic(struct vm *vm)
{
	char tail[VM_TAIL_MAX + 1];
	struct buf b;

	vm_console_tail(vm, tail, sizeof(tail));
	buf_init(&b, 8192);
	buf_str(&b, tail);
	vm->hooks.event(vm->hooks.ctx, VMM_EV_PANIC, b.p, b.len, -1);
	buf_fini(&b);
}

static void write_last_words(struct vm *vm)
{
	struct vmm_last_words w = {
		.magic = LAST_WORDS_MAGIC, .reason = vm->end_why, .wall_ns = wall_ns()};

	if (vm->lastwords_fd < 0)
		return;
	snprintf(w.text, sizeof(w.text), "%s", vm->end_text);
	w.text_len = (uint32_t)strlen(w.text);
	w.console_len = (uint32_t)vm_console_tail(vm, w.console, sizeof(w.console));
	if (pwrite_full(vm->lastwords_fd, &w, sizeof(w), 0) < 0)
		log_warn("last words could not be written");
}

static void carry_out_end(struct vm *vm)
{
	struct buf b;

	/* Wait for the writer of a snapshot: in a jail it would be killed with this process. A
	 * forced end does not wait. */
	if (vm->job && vm->end_why != VMM_X_FORCED) {
		vm->end_waits = true;
		return;
	}
	vm->end_waits = false;

	if (atomic_load(&vm->panicked))
		say_panic(vm);
	write_last_words(vm);
	log_info("the VM has ended: %s: %s", vm_exit_name(vm->end_why), vm->end_text);
	buf_init(&b, 4096);
	buf_u32(&b, vm->end_why);
	buf_str(&b, vm->end_text);
	vm->hooks.event(vm->hooks.ctx, VMM_EV_EXITED, b.p, b.len, -1);
	buf_fini(&b);
	vm->hooks.over(vm->hooks.ctx);
}

/* The number of turns of the loop between the vCPUs' stop and the last words. In them the
 * devices carry out what the guest kicked before, above all the console's last lines. */
#define END_TURNS 4u

static void end_turn(void *arg)
{
	struct vm *vm = arg;

	if (++vm->end_turns < END_TURNS && loop_defer(vm->loop, end_turn, vm) == 0)
		return;
	carry_out_end(vm);
}

void vm_job_over(struct vm *vm)
{
	vm->job = NULL;
	if (vm->end_waits)
		carry_out_end(vm);
}

#define END_LIMIT_NS 2000000000ull

/* The vCPUs are parked, or one did not park within END_LIMIT_NS. */
static void end_after_vcpus(void *arg)
{
	struct vm *vm = arg;

	timer_set(vm->end_limit, 0);
	if (!vm->end_turns)
		end_turn(vm);
}

static void begin_end(struct vm *vm)
{
	if (vm->end_begun)
		return;
	vm->end_begun = true;
	vm_step(vm, VM_E_END, NULL);
	stop_over(vm, -ESRCH);
	if (!vm->vcpus.n) {
		end_after_vcpus(vm);
		return;
	}
	timer_after(vm->end_limit, MIN(END_LIMIT_NS, vm->stop.limit_ns));
	vcpus_ask_stop(&vm->vcpus);
}

void vm_broken(struct vm *vm)
{
	vm_step(vm, VM_E_END, NULL);
}

/* ---- stopping and going on, on the device thread */

static void on_quiet(void *arg)
{
	struct vm *vm = arg;

	if (vm_step(vm, VM_E_QUIET, NULL) == 0)
		stop_over(vm, 0);
}

static bool is_stopping(const struct vm *vm)
{
	return vm->state == VMM_S_PAUSING || vm->state == VMM_S_STOPPING;
}

static void on_parked(void *arg, uint32_t events)
{
	struct vm *vm = arg;
	uint64_t n;

	(void)!read(vm->vcpus.parked_fd, &n, sizeof(n));
	/* the event may be of a stop that was cancelled in the meantime */
	if (!vcpus_parked(&vm->vcpus))
		return;
	if (vm->state == VMM_S_ENDED) {
		end_after_vcpus(vm);
		return;
	}
	if (!is_stopping(vm) || vm->stop.draining)
		return;
	vm->stop.draining = true;
	if (board_quiesce(&vm->board, on_quiet, vm) == 0)
		on_quiet(vm);
}

/* Starts the devices and the vCPUs again. restored: after a restore. */
static void go_on(struct vm *vm, bool restored)
{
	if (vcpus_parked(&vm->vcpus)) {
		board_resume(&vm->board, restored);
		/* after a restore arch_vcpu_load() has done this already */
		for (unsigned int i = 0; i < vm->vcpus.n && !restored; i++)
			arch_vcpu_resumed(vm->vcpus.v[i].fd);
	}
	vm->run_ns = mono_ns();
	vcpus_run(&vm->vcpus);
}

static void on_stop_late(void *arg)
{
	struct vm *vm = arg;
	const char *what = vm->stop.draining ? "a device still has requests in flight"
					     : "a vCPU has not left the guest";

	if (vm_step(vm, VM_E_LATE, NULL) < 0)
		return;
	log_warn("the VM was not stopped within %u s: %s; it runs on", VMM_STOP_LIMIT_S, what);
	go_on(vm, false);
	stop_over(vm, -ETIMEDOUT);
}

static int stop_begin(struct vm *vm, enum vm_event ev, vm_stopped_fn fn, void *arg, struct err *e)
{
	int rc = vm_step(vm, ev, e);

	if (rc < 0)
		return rc;
	vm->stop.fn = fn;
	vm->stop.arg = arg;
	vm->stop.draining = false;
	if (!is_stopping(vm)) { /* the VM was paused already */
		stop_over(vm, 0);
		return 0;
	}
	timer_after(vm->stop.limit, vm->stop.limit_ns);
	vcpus_ask_stop(&vm->vcpus);
	return 0;
}

int vm_pause(struct vm *vm, vm_stopped_fn fn, void *arg, struct err *e)
{
	return stop_begin(vm, VM_E_PAUSE, fn, arg, e);
}

int vm_stop_for_snapshot(struct vm *vm, vm_stopped_fn fn, void *arg, struct err *e)
{
	return stop_begin(vm, VM_E_SNAPSHOT, fn, arg, e);
}

void vm_snapshot_taken(struct vm *vm, bool run)
{
	if (vm_step(vm, run ? VM_E_RUN : VM_E_HOLD, NULL) == 0 && run)
		go_on(vm, false);
}

int vm_continue(struct vm *vm, struct err *e)
{
	int rc = vm_step(vm, VM_E_CONTINUE, e);

	if (rc < 0)
		return rc;
	go_on(vm, vm->resume_restored);
	vm->resume_restored = false;
	stop_over(vm, -ECANCELED);
	return 0;
}

/* Before the guest runs: afterwards KVM would wait for a running vCPU at each device, and the
 * device thread with it. */
static void connect_devices(struct vm *vm)
{
	while (board_connect(&vm->board, false))
		;
}

void vm_restored(struct vm *vm, bool run)
{
	vm->resume_restored = !run;
	connect_devices(vm);
	if (vm_step(vm, run ? VM_E_RUN : VM_E_HOLD, NULL) == 0 && run)
		go_on(vm, true);
}

#define LOOK_LIMIT_MS 1000u

int vm_with_parked(struct vm *vm, int (*fn)(struct vm *vm, void *arg), void *arg)
{
	bool runs = vm->state == VMM_S_RUNNING;
	int rc = 0;

	/* while the VM is being stopped, the vCPUs park anyway and must not be resumed here */
	if (runs || is_stopping(vm))
		rc = vcpus_stop(&vm->vcpus, LOOK_LIMIT_MS);
	if (rc == 0)
		rc = fn(vm, arg);
	if (runs)
		vcpus_run(&vm->vcpus);
	return rc;
}

#define PANIC_WAIT_NS 2000000000ull

static void on_panic_wait(void *arg)
{
	vm_end(arg, VMM_X_PANIC, "the guest's kernel panicked");
}

static void on_end_event(void *arg, uint32_t events)
{
	struct vm *vm = arg;
	uint64_t n;

	(void)!read(vm->end_fd, &n, sizeof(n));
	if (atomic_load(&vm->end_ready))
		begin_end(vm);
	else if (atomic_load(&vm->panicked))
		timer_after(vm->panic_timer, PANIC_WAIT_NS);
}

/* ---- life */

/* block operations in flight for all disks together; more wait in bio.c */
#define VM_BIO_DEPTH 256u

int vm_init(struct vm *vm, struct loop *l, const struct vm_hooks *h, struct err *e)
{
	*vm = (struct vm){.loop = l,
		.hooks = *h,
		.kvm = {.fd = -1, .vm_fd = -1},
		.kvm_fd_given = -1,
		.vsock_fd_given = -1,
		.proc_fd = -1,
		.lastwords_fd = -1,
		.serial_fd = -1,
		.console_fd = -1,
		.room_fd = -1,
		.fs_table_fd = -1,
		.stop.limit_ns = VMM_STOP_LIMIT_S * 1000000000ull,
		.born_ns = mono_ns()};
	vm->end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (vm->end_fd < 0)
		return err_set(e, errno, "eventfd");
	vm->end_watch = loop_watch(l, vm->end_fd, EPOLLIN, on_end_event, vm);
	vm->panic_timer = loop_timer(l, on_panic_wait, vm);
	vm->end_limit = loop_timer(l, end_after_vcpus, vm);
	vm->stop.limit = loop_timer(l, on_stop_late, vm);
	if (!vm->end_watch || !vm->panic_timer || !vm->end_limit || !vm->stop.limit)
		return err_set(e, ENOMEM, "event loop");
	vcpus_before_seal();
	return bio_create(&vm->bio, l, VM_BIO_DEPTH, 0, e);
}

void vm_fini(struct vm *vm)
{
	watch_remove(vm->stop.parked);
	vcpus_destroy(&vm->vcpus);
	if (vm->board_up)
		board_fini(&vm->board);
	bio_destroy(vm->bio);
	populate_destroy(vm->populate);
	restored_free(vm->restored);
	arch_cpu_destroy(vm->cpu);
	kvmstat_close(&vm->kvmstat);
	kvm_close(&vm->kvm);
	mem_fini(&vm->mem);
	watch_remove(vm->end_watch);
	timer_remove(vm->panic_timer);
	timer_remove(vm->end_limit);
	timer_remove(vm->stop.limit);
	close_fd(&vm->end_fd);
}

static int check_size(const struct vm_size *s, struct err *e)
{
	if (s->mem_bytes < VM_MEM_MIN || s->mem_bytes > VM_MEM_MAX || s->mem_bytes % MIB(2))
		return err_plain(e, EINVAL,
			"memory of %llu bytes: 128 MiB to 16 GiB, a multiple of 2 MiB",
			(unsigned long long)s->mem_bytes);
	if (s->vcpus < 1 || s->vcpus > VMM_MAX_VCPUS)
		return err_plain(e, EINVAL, "%u vCPUs: 1 to %u", s->vcpus, VMM_MAX_VCPUS);
	return 0;
}

static int make_vcpus(struct vm *vm, struct err *e)
{
	struct vcpu_hooks h = {.ctx = vm, .mmio = hook_mmio, .pio = hook_pio, .end = hook_end};
	int rc;

	vm->cpu = arch_cpu_create(&vm->kvm, vm->size.vcpus, vm->size.tmpl, e);
	if (!vm->cpu)
		return -e->code;
	rc = vcpus_create(&vm->vcpus, &vm->kvm, vm->size.vcpus, &h, e);
	if (rc == 0) {
		vm->stop.parked = loop_watch(vm->loop, vm->vcpus.parked_fd, EPOLLIN, on_parked, vm);
		rc = vm->stop.parked ? 0 : err_set(e, errno, "event loop");
	}
	for (unsigned int i = 0; rc == 0 && i < vm->size.vcpus; i++)
		rc = arch_vcpu_init(&vm->kvm, vm->cpu, vm->vcpus.v[i].fd, i, e);
	return rc ? rc : vcpus_start(&vm->vcpus, vm->sealed ? vmm_seal_vcpu : NULL, e);
}

static void open_statistics(struct vm *vm)
{
	int fds[VMM_MAX_VCPUS];

	for (unsigned int i = 0; i < vm->vcpus.n; i++)
		fds[i] = vm->vcpus.v[i].fd;
	kvmstat_open(&vm->kvmstat, vm->kvm.vm_fd, fds, vm->vcpus.n);
}

int vm_prepare(struct vm *vm, const struct vm_size *s, struct err *e)
{
	struct board_hooks h = {.ctx = vm,
		.panicked = hook_panicked,
		.end = hook_end,
		.needs_reset = hook_needs_reset,
		.disk_full = hook_disk_full,
		.given_back = hook_given_back,
		.serial_out = hook_serial};
	int rc;

	if (vm->state != VMM_S_BLANK)
		return err_plain(e, EBUSY, "this VM is prepared already");
	rc = check_size(s, e);
	if (rc < 0)
		return rc;
	vm->size = *s;
	rc = kvm_open(&vm->kvm, take_fd(&vm->kvm_fd_given), e);
	if (rc == 0)
		rc = mem_reserve(&vm->mem, s->mem_bytes, e);
	/* the slots first: see kvm_vm_create() */
	if (rc == 0)
		rc = kvm_vm_create(&vm->kvm, &vm->mem, e);
	if (rc == 0)
		rc = arch_vm_init(&vm->kvm, e);
	if (rc == 0)
		rc = make_vcpus(vm, e);
	if (rc < 0)
		return rc;
	open_statistics(vm);
	rc = board_init(&vm->board, &vm->kvm, &vm->mem, vm->loop, &h, e);
	vm->board_up = true;
	vm->board.serial_on = s->serial;
	if (rc == 0)
		rc = devices_create(vm, e);
	if (rc < 0)
		return rc;
	crash_know(vm);
	return vm_step(vm, VM_E_PREPARED, e);
}

void vm_wait_for_restore(struct vm *vm)
{
	if (vm->state != VMM_S_PREPARED || vm->populate)
		return;
	while (board_connect(&vm->board, true))
		;
	vm->populate = populate_create();
}

int vm_boot(struct vm *vm, int kernel_fd, int initrd_fd, const char *cmdline, struct err *e)
{
	_cleanup_free_ void *fdt = malloc(ARCH_FDT_MAX);
	struct arch_boot b = {.kernel_fd = kernel_fd, .initrd_fd = initrd_fd, .fdt = fdt};
	uint64_t entry = 0;
	struct buf line;
	int rc;

	if (vm->state != VMM_S_PREPARED)
		return err_plain(e, EBUSY, "a VM can be started once, after it was prepared");
	if (!fdt)
		return err_set(e, ENOMEM, "device tree");
	populate_destroy(vm->populate);
	vm->populate = NULL;
	buf_init(&line, 65536);
	board_cmdline(&vm->board, &line);
	if (*cmdline)
		buf_printf(&line, " %s", cmdline);
	b.cmdline = buf_cstr(&line);
	rc = vm->board.dev[SLOT_FS] ? 0 : devices_add_fs(vm, e);
	if (rc == 0)
		rc = mem_make_anon(&vm->mem, e);
	if (rc == 0)
		rc = board_fdt(&vm->board, vm->size.vcpus, fdt, ARCH_FDT_MAX, &b.fdt_bytes, e);
	if (rc == 0)
		rc = arch_boot_load(&vm->mem, &b, &entry, e);
	buf_fini(&line);
	if (rc == 0)
		rc = arch_boot_regs(vm->vcpus.v[0].fd, &vm->mem, entry, e);
	if (rc < 0)
		return rc;
	board_new_generation(&vm->board, false);
	connect_devices(vm);
	rc = vm_step(vm, VM_E_RUN, e);
	if (rc < 0)
		return rc;
	vm->run_ns = mono_ns();
	vcpus_run(&vm->vcpus);
	return 0;
}

void vm_stats(struct vm *vm, vm_stat_fn fn, void *arg)
{
	static const char *const names[VS_COUNT] = {[VS_MMIO] = "exits_mmio",
		[VS_PIO] = "exits_pio",
		[VS_INTR] = "exits_intr",
		[VS_OTHER] = "exits_other"};
	struct rusage ru;

	fn(arg, "mem_bytes", vm->size.mem_bytes);
	fn(arg, "vcpus", vm->size.vcpus);
	fn(arg, "up_ns", mono_ns() - vm->born_ns);
	fn(arg, "running_ns", vm->run_ns ? mono_ns() - vm->run_ns : 0);
	/* When vCPU 0 last left its gate to enter the guest (CLOCK_MONOTONIC): the true end of a
	 * restore. The reply to VMM_RESTORE may be sent before that, because it comes from this
	 * thread. */
	if (vm->vcpus.n)
		fn(arg, "entered_at_ns", atomic_load(&vm->vcpus.v[0].ran_ns));
	for (unsigned int s = 0; s < VS_COUNT; s++) {
		uint64_t sum = 0;

		for (unsigned int i = 0; i < vm->vcpus.n; i++)
			sum += atomic_load_explicit(&vm->vcpus.v[i].stat[s], memory_order_relaxed);
		fn(arg, names[s], sum);
	}
	if (!getrusage(RUSAGE_SELF, &ru)) {
		fn(arg, "cpu_user_us",
			(uint64_t)ru.ru_utime.tv_sec * 1000000 + (uint64_t)ru.ru_utime.tv_usec);
		fn(arg, "cpu_system_us",
			(uint64_t)ru.ru_stime.tv_sec * 1000000 + (uint64_t)ru.ru_stime.tv_usec);
		fn(arg, "faults_minor", (uint64_t)ru.ru_minflt);
		fn(arg, "faults_major", (uint64_t)ru.ru_majflt);
		fn(arg, "rss_max_bytes", (uint64_t)ru.ru_maxrss << 10);
	}
	kvmstat_report(&vm->kvmstat, fn, arg);
	if (!vm->board_up)
		return;
	fn(arg, "unknown_mmio", atomic_load(&vm->board.unknown_mmio));
	fn(arg, "unknown_pio", atomic_load(&vm->board.unknown_pio));
	devices_stats(vm, fn, arg);
}
