/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_kvm.h: a KVM for unit tests. The file defines ioctl(2) for the whole test program: calls on the descriptors made here are answered from
 * one table, all others go to the kernel. The answers remember what was set, so that state can be saved and loaded. A test can
 * refuse any ioctl, capability, MSR or CPUID leaf. KVM_RUN waits until its vCPU is kicked. One fake KVM at a time.
 */
#pragma once

#include <linux/kvm.h>
#include <stdatomic.h>

#include "lib/base.h"

#define FAKE_VCPUS     16u
#define FAKE_MSRS      128u
#define FAKE_REFUSED   8u
#define FAKE_MSR_LOG   256u
#define FAKE_RUN_BYTES 12288u /* what KVM_GET_VCPU_MMAP_SIZE says on x86 */
#define FAKE_XSAVE_MAX 11008u /* a processor with AMX */

enum fake_msr_refuses { FAKE_MSR_READ = 1, FAKE_MSR_WRITE = 2 };

struct fake_msr {
	uint32_t index;
	uint64_t value[FAKE_VCPUS];
};

struct fake_vcpu {
	int fd;
	struct kvm_run *run; /* our own mapping of the shared page */
	struct kvm_mp_state mp;
	struct kvm_sregs sregs;
	struct kvm_regs regs;
	uint8_t xsave[FAKE_XSAVE_MAX];
	struct kvm_xcrs xcrs;
	struct kvm_debugregs debug;
	struct kvm_lapic_state lapic;
	struct kvm_vcpu_events events;
	struct kvm_cpuid_entry2 cpuid[256];
	uint32_t ncpuid;
	_Atomic bool in_guest; /* its thread is inside KVM_RUN */
	_Atomic bool stuck;    /* KVM_RUN does not come back, whatever kicks it */
	uint32_t msr_writes[FAKE_MSR_LOG];
	unsigned int nmsr_writes;
};

struct fake_kvm {
	int fd, vm_fd;
	struct fake_vcpu vcpu[FAKE_VCPUS];
	unsigned int nvcpus;
	struct fake_msr msr[FAKE_MSRS]; /* those that exist here */
	unsigned int nmsrs;
	struct {
		uint32_t index;
		int refuses; /* enum fake_msr_refuses */
	} no_msr[FAKE_REFUSED];
	unsigned long no_cap[FAKE_REFUSED];  /* number + 1: KVM_CHECK_EXTENSION says 0 */
	unsigned long no_call[FAKE_REFUSED]; /* fails with no_call_errno; 0: unused */
	int no_call_errno;
	struct kvm_cpuid_entry2 cpuid[256]; /* KVM_GET_SUPPORTED_CPUID */
	uint32_t ncpuid;
	uint32_t tsc_khz;
	uint32_t xsave_bytes; /* KVM_CAP_XSAVE2; KVM_SET_XSAVE reads as many */
	struct kvm_irqchip chip[3];
	struct kvm_clock_data clock;
	unsigned int nlines, nnotifications; /* KVM_IRQFD, KVM_IOEVENTFD that were taken */
	unsigned long unknown;               /* an ioctl that has no row: the last one */
};

/* A KVM with an Intel processor of level x86-64-v3 and every MSR of the table in fake_kvm.c. */
struct fake_kvm *fake_kvm_start(void);
/* The descriptors are the monitor's: kvm_open() takes f->fd, and kvm_close() closes it. */
void fake_kvm_stop(struct fake_kvm *f);
struct fake_msr *fake_msr(struct fake_kvm *f, uint32_t index);
struct kvm_cpuid_entry2 *fake_cpuid(struct fake_kvm *f, uint32_t leaf, uint32_t index);
void fake_refuse_msr(struct fake_kvm *f, uint32_t index, int refuses);
void fake_refuse_cap(struct fake_kvm *f, unsigned long cap);
/* The name of an ioctl that is in the table, "?" otherwise; row i of the table: 0 after the last. */
const char *fake_kvm_call_name(unsigned long nr);
unsigned long fake_kvm_call(size_t i);
