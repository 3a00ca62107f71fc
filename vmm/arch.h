/* SPDX-License-Identifier: Apache-2.0
 *
 * arch.h: everything that depends on the processor's architecture; vmm/<arch>/ implements it.
 * mayfly-vmm. State is saved as records with lengths, which the snapshot code does not look into.
 */
#pragma once

#include "lib/base.h"
#include "lib/buf.h"
#include "lib/err.h"
#include "vmm/kvm.h"
#include "vmm/mem.h"

struct vcpu;
struct arch_cpu; /* what every vCPU of this VM is: identification, list of saved registers; made
		    once */

#define ARCH_CMDLINE_MAX 2047u /* the longest that Linux accepts, without the terminator */
#define ARCH_FDT_MAX     16384u

struct arch_boot {
	int kernel_fd, initrd_fd; /* initrd_fd -1: none */
	const char *cmdline;
	const void *fdt;
	size_t fdt_bytes;
};

/* Makes the interrupt controllers. Call it after the memory slots and before the vCPUs exist. */
int arch_vm_init(struct kvm *k, struct err *e);

/* tmpl: name of a CPU template, "" = all that this host can save and restore. NULL and *e on error.
 */
struct arch_cpu *arch_cpu_create(
	struct kvm *k, unsigned int nvcpus, const char *tmpl, struct err *e);
void arch_cpu_destroy(struct arch_cpu *c);
/* identification and fixed registers of a vCPU that has not run */
int arch_vcpu_init(struct kvm *k, struct arch_cpu *c, int vcpu_fd, unsigned int id, struct err *e);

/* Loads kernel, initramfs, command line and device tree into fresh, zeroed memory; *entry is where
 * vCPU 0 begins. The files are hostile. */
int arch_boot_load(struct mem *m, const struct arch_boot *b, uint64_t *entry, struct err *e);
int arch_boot_regs(int vcpu_fd, struct mem *m, uint64_t entry, struct err *e);

/* The state of the VM (interrupt controllers, clock) and of one vCPU. The vCPUs are parked, with no
 * access half done (vcpu.h). What is loaded is hostile. */
int arch_vm_save(struct kvm *k, struct buf *out, struct err *e);
int arch_vm_load(struct kvm *k, struct cur *in, struct err *e);
int arch_cpu_save(struct kvm *k, struct arch_cpu *c, int vcpu_fd, struct buf *out, struct err *e);
/* Sets the vCPUs' CPUID to that of the snapshot, or names the feature that this host lacks. Call it
 * before arch_vcpu_load(). */
int arch_cpu_load(struct kvm *k, struct arch_cpu *c, const int *vcpu_fds, unsigned int nvcpus,
	struct cur *in, struct err *e);
int arch_vcpu_save(struct kvm *k, struct arch_cpu *c, int vcpu_fd, struct buf *out, struct err *e);
int arch_vcpu_load(struct kvm *k, struct arch_cpu *c, int vcpu_fd, struct cur *in, struct err *e);
/* Before a vCPU runs on after a stop: the guest's soft-lockup detector learns that it was
 * stopped. */
void arch_vcpu_resumed(int vcpu_fd);

/* For debugging: gives the guest a non-maskable interrupt; writes the registers as text. The vCPU
 * must be parked: both ioctls wait while it is in KVM_RUN. */
int arch_nmi(int vcpu_fd);
size_t arch_regs_text(int vcpu_fd, char *to, size_t cap);
/* Why KVM cannot go on, from kvm_run, as one line. No allocation. */
void arch_exit_text(int vcpu_fd, const struct kvm_run *run, char *to, size_t cap);
