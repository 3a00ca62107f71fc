/* SPDX-License-Identifier: Apache-2.0
 *
 * vcpu.h: the vCPU threads. mayfly-vmm. They are born parked; vcpus_run lets them go, vcpus_stop
 * parks them with no half-done access, so that their state can be read and set. These are called by
 * the device thread only. An exit goes to the board through the hooks, on the vCPU's thread;
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
	/* this VM is over; the first reason counts. Called at most once a vCPU, which then stays
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

/* The handler of the signal that kicks a vCPU out of KVM_RUN: behind the seal no handler can be set
 * any more. */
void vcpus_before_seal(void);
/* Makes n vCPUs and their threads; they wait at the gate. on_thread runs first on each thread (may
 * be NULL): the seal. */
int vcpus_create(
	struct vcpus *s, struct kvm *k, unsigned int n, const struct vcpu_hooks *h, struct err *e);
int vcpus_start(struct vcpus *s, void (*on_thread)(void), struct err *e);
void vcpus_run(struct vcpus *s);
/* Asks them to stop and does not wait: parked_fd becomes readable. A vCPU whose memory the host cannot read does
 * not come. vcpus_run() takes it back at any time. */
void vcpus_ask_stop(struct vcpus *s);
bool vcpus_parked(struct vcpus *s);
/* The same, and waits for at most limit_ms: -ETIMEDOUT, and they are still asked to stop. */
int vcpus_stop(struct vcpus *s, unsigned int limit_ms);
/* In a forked child: drops what stays shared with the parent, and forgets the threads, which are
 * not here. */
void vcpus_forget(struct vcpus *s);
void vcpus_destroy(struct vcpus *s);
