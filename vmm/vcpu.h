/* SPDX-License-Identifier: Apache-2.0
 *
 * vcpu.h: the vCPU threads. mayfly-vmm. They start parked. vcpus_run() lets them run; vcpus_stop()
 * parks them, with no access half done, so that their state can be read and set. Only the device
 * thread calls these functions. An exit goes to the board through the hooks, on the vCPU's thread;
 * nothing on that path allocates.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "lib/base.h"
#include "lib/err.h"
#include "lib/proto_vmm.h"
#include "vmm/kvm.h"

enum vcpu_stat { VS_MMIO, VS_PIO, VS_INTR, VS_OTHER, VS_COUNT };

struct vcpu_hooks {
	void *ctx;
	void (*mmio)(void *ctx, uint64_t gpa, void *data, uint32_t len, bool write);
	void (*pio)(void *ctx, uint16_t port, void *data, uint32_t size, bool write);
	/* The VM must end; the first reason counts. Each vCPU calls it at most once and then stays
	 * parked for good. */
	void (*end)(void *ctx, enum vmm_exit why, const char *text);
};

#define VCPU_TRAIL 16u /* last exits kept for the crash report */

struct vcpu {
	struct vcpus *all;
	unsigned int id;
	int fd;
	struct kvm_run *run;
	pthread_t thread;
	bool started;
	bool half_done; /* an access that KVM finishes at the next KVM_RUN */
	bool over;      /* under all->mu */
	_Atomic uint64_t stat[VS_COUNT];
	struct {
		uint32_t reason;
		uint64_t where; /* gpa or port */
	} trail[VCPU_TRAIL];
	unsigned int trail_at;
	_Atomic uint64_t ran_ns; /* CLOCK_MONOTONIC when it last left the gate */
};

struct vcpus {
	struct vcpu_hooks hooks;
	struct kvm *kvm;
	unsigned int n;
	pthread_mutex_t mu;
	pthread_cond_t cv;
	bool stop, quit;
	unsigned int parked, started;
	int parked_fd; /* eventfd: the last vCPU has parked */
	struct vcpu v[VMM_MAX_VCPUS];
};

/* Sets the handler of the signal that interrupts KVM_RUN. Call it before the seal, which forbids to
 * set handlers. */
void vcpus_before_seal(void);
/* vcpus_create() makes n vCPUs, vcpus_start() their threads, which are parked. on_thread runs
 * first on each thread: the seal. May be NULL. */
int vcpus_create(
	struct vcpus *s, struct kvm *k, unsigned int n, const struct vcpu_hooks *h, struct err *e);
int vcpus_start(struct vcpus *s, void (*on_thread)(void), struct err *e);
void vcpus_run(struct vcpus *s);
/* Asks the vCPUs to park and does not wait: parked_fd becomes readable when all are parked. A
 * vCPU that waits for memory which the host cannot read never parks. vcpus_run() cancels the
 * request at any time. */
void vcpus_ask_stop(struct vcpus *s);
bool vcpus_parked(struct vcpus *s);
/* The same, but waits for at most limit_ms. After -ETIMEDOUT they are still asked to park. */
int vcpus_stop(struct vcpus *s, unsigned int limit_ms);
/* In a forked child: unmaps and closes what it shares with the parent, and forgets the threads,
 * which the child does not have. */
void vcpus_forget(struct vcpus *s);
void vcpus_destroy(struct vcpus *s);
