/* SPDX-License-Identifier: Apache-2.0
 *
 * ctlmsg.h: the requests of the control protocol, parsed into plain structures. mayfly-vmm, the
 * device thread. The sender is the daemon, which parses HTTP and may have been taken over: nothing
 * that it sends is trusted. Pure: no descriptor is touched, so that a fuzzer can call it.
 */
#pragma once

#include "lib/buf.h"
#include "lib/err.h"
#include "lib/proto_vmm.h"
#include "vmm/vm.h"

#define CTL_CMDLINE_MAX 2048u

struct ctl_boot {
	bool prepare;
	struct vm_size size; /* if prepare */
	char cmdline[CTL_CMDLINE_MAX];
	uint32_t flags;
	unsigned int ndisks;
	struct vm_disk disk[VMM_MAX_DISKS];
	int kernel_fd, initrd_fd;
};

struct ctl_restore {
	uint32_t flags;
	unsigned int nmem, ndisks;
	int state_fd, ws_fd, mem_fd[VMM_MAX_MEM];
	struct vm_disk disk[VMM_MAX_DISKS];
};

struct ctl_freeze {
	int index_fd, data_fd, bitmap_fd;
};

struct ctl_snapshot {
	uint32_t flags;
	unsigned int ndisks;
	int state_fd, mem_fd;
	struct ctl_freeze disk[VMM_MAX_DISKS];
};

struct ctl_read_only {
	unsigned int ndisks;
	struct {
		unsigned int n;
		int frozen[VMM_MAX_FROZEN], index;
	} disk[VMM_MAX_DISKS];
};

/* The header of a message of n bytes. 0, -EBADMSG or -EPROTONOSUPPORT. After an error *h is
 * what was read, or zeros. */
int ctl_parse_hdr(const void *p, size_t n, struct vmm_hdr *h, struct err *e);
/* Payloads. fds belong to the message; the structures hold only their numbers. After an error a
 * structure must not be used. A descriptor too many is an error. */
int ctl_parse_prepare(struct cur *c, struct vm_size *s, struct err *e);
int ctl_parse_boot(struct cur *c, const int *fds, size_t nfds, struct ctl_boot *b, struct err *e);
int ctl_parse_restore(
	struct cur *c, const int *fds, size_t nfds, struct ctl_restore *r, struct err *e);
int ctl_parse_snapshot(
	struct cur *c, const int *fds, size_t nfds, struct ctl_snapshot *s, struct err *e);
int ctl_parse_read_only(
	struct cur *c, const int *fds, size_t nfds, struct ctl_read_only *q, struct err *e);
int ctl_parse_ports(
	struct cur *c, uint32_t *ports, unsigned int cap, unsigned int *n, struct err *e);
