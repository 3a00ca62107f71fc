/* SPDX-License-Identifier: Apache-2.0
 *
 * kvmstat.h: KVM's own counters of one VM and its vCPUs (exits by reason, guest page faults),
 * through its statistics descriptors. mayfly-vmm, the device thread.
 */
#pragma once

#include "lib/base.h"
#include "lib/proto_vmm.h"

#define KVMSTAT_NAME_MAX 64u

struct kvmstat {
	unsigned int n; /* 0: this host has no statistics descriptors (before Linux 5.14) */
	int fd[1 + VMM_MAX_VCPUS];
};

/* Opens the descriptor of the VM and one for each vCPU. The vCPUs must not run yet: KVM answers
 * this request only after a running vCPU has left the guest. Before Linux 5.14
 * there are no such descriptors, which is no error: kvmstat_report() then reports nothing. */
void kvmstat_open(struct kvmstat *s, int vm_fd, const int *vcpu_fd, unsigned int nvcpus);
void kvmstat_close(struct kvmstat *s);

/* Calls fn once for each counter of one descriptor, in KVM's order. Histograms are left out.
 * 0 or -errno. */
typedef void (*kvmstat_fn)(void *arg, const char *name, uint64_t value);
int kvmstat_read(int fd, kvmstat_fn fn, void *arg);

/* Every counter as "kvm.NAME", the vCPUs' counters summed. */
void kvmstat_report(const struct kvmstat *s, kvmstat_fn fn, void *arg);
