/* SPDX-License-Identifier: Apache-2.0
 *
 * kvm.h: the KVM descriptors of one VM and the few calls on them that are the same on every
 * architecture. mayfly-vmm. kvm_open() asks once for what only some hosts have; the answers are the
 * bits of `have`.
 */
#pragma once

#include <linux/kvm.h>

#include "lib/base.h"
#include "lib/err.h"
#include "vmm/mem.h"

#ifndef KVM_CAP_PRE_FAULT_MEMORY
#define KVM_CAP_PRE_FAULT_MEMORY 236
struct kvm_pre_fault_memory {
	__u64 gpa;
	__u64 size;
	__u64 flags;
	__u64 padding[5];
};
#define KVM_PRE_FAULT_MEMORY _IOWR(KVMIO, 0xd5, struct kvm_pre_fault_memory)
#endif

enum kvm_have {
	KVM_HAVE_PRE_FAULT = 1, /* Linux 6.11 */
	KVM_HAVE_TSC_CONTROL = 2,
	KVM_HAVE_XSAVE2 = 4,
	KVM_HAVE_DEBUGREGS = 8,
	KVM_HAVE_XCRS = 16,
};

struct kvm {
	int fd, vm_fd;
	uint32_t run_bytes; /* of the page(s) shared with the kernel for each vCPU */
	uint32_t have;      /* enum kvm_have */
	uint32_t xsave_bytes;
};

/* Takes fd (-1: opens /dev/kvm). Fails if KVM lacks a capability that every VM needs; *e names
 * it. */
int kvm_open(struct kvm *k, int fd, struct err *e);
/* Makes the VM and registers its memory slots over the reservation. Call it before the irqchip is
 * made: a slot takes ten times as long afterwards. */
int kvm_vm_create(struct kvm *k, const struct mem *m, struct err *e);
/* kvm_irqfd: a write to evfd pulses the interrupt line. kvm_ioeventfd: KVM signals evfd when the
 * guest writes 32 bits at gpa; on = false ends that. */
int kvm_irqfd(struct kvm *k, int evfd, unsigned int line, struct err *e);
int kvm_ioeventfd(struct kvm *k, int evfd, uint64_t gpa, bool on, struct err *e);
/* Maps the range into the vCPU's nested tables. Blocks for ever if that vCPU runs. 0 or -errno. */
int kvm_pre_fault(struct kvm *k, int vcpu_fd, uint64_t gpa, uint64_t bytes);
void kvm_close(struct kvm *k);

/* ioctl with EINTR retried. */
int kvm_ioctl(int fd, unsigned long req, void *arg);
