/* SPDX-License-Identifier: Apache-2.0
 *
 * vmctl.h: a test's view of one mayfly-vmm process: started with the descriptors that the daemon
 * gives it, driven over the control socket.
 */
#pragma once

#include <signal.h>
#include <sys/types.h>

#include "lib/buf.h"
#include "lib/proto_vmm.h"
#include "tests/vm/proto.h"

struct vmctl_disk { /* -1: not there */
	int base, frozen[VMM_MAX_FROZEN], index, data, bitmap;
	unsigned int nfrozen;
};

struct vmctl {
	pid_t pid;
	int ctl, words; /* control socket, last-words file */
	int ready;      /* the guest's announcement, kept open */
	char sock[64];  /* vsock path */
	uint32_t ids;
	struct vmctl_disk *disk; /* given to boot and restore if not NULL */
	int freeze[3]; /* index, data, bitmap for the next snapshot's freeze; freeze[0] 0: none */
	int dropped;   /* by the last freeze */
	bool exited;
	uint32_t exit_why;
	char exit_text[256];
	char reset_text[256]; /* of the last VMM_EV_NEEDS_RESET: device, why */
	/* the last VMM_EV_SNAPSHOT */
	bool snapped;
	uint64_t snap_replied_ns;
	int snap_status;
	uint64_t snap_bytes, snap_pages;
	uint32_t snap_kept;
	char snap_text[256];
};

extern const char *vmctl_program; /* path of mayfly-vmm */
extern const char
	*vmctl_template;          /* CPU template of what is prepared from now on; "": the host's */
extern uint32_t vmctl_boot_flags; /* VMM_F_* of what is booted from now on */

void vmctl_start(struct vmctl *v);
/* Sends and waits for the reply (events on the way are noted). Returns its status; out, if not
 * NULL, gets the payload. */
int vmctl_call(struct vmctl *v, uint16_t type, const struct buf *in, const int *fds, size_t nfds,
	struct buf *out);
int vmctl_prepare(struct vmctl *v, uint64_t mem, uint32_t vcpus);
int vmctl_boot(struct vmctl *v, int kernel, int initrd, const char *cmdline);
int vmctl_restore(struct vmctl *v, int state, const int *mem, unsigned int n, int ws,
	uint32_t flags, struct buf *out);
int vmctl_snapshot(struct vmctl *v, int state, int mem, uint32_t flags, uint64_t *stopped_ns);
/* Until the guest announced itself / the snapshot is durable / the VM has exited; false after
 * limit_ms. */
bool vmctl_wait_ready(struct vmctl *v, int limit_ms);
bool vmctl_wait_snapshot(struct vmctl *v, int limit_ms);
bool vmctl_wait_reset(struct vmctl *v, int limit_ms);
bool vmctl_wait_exit(struct vmctl *v, int limit_ms);
/* The process itself is gone. */
bool vmctl_gone(struct vmctl *v, int limit_ms);
/* A stream to the test guest; -1: none. */
int vmctl_connect(struct vmctl *v);
/* One command to the guest. False: no answer. */
bool vmctl_guest(struct vmctl *v, struct tg_msg *m);
/* kB of the line "key:" in /proc/PID/smaps_rollup */
long vmctl_rollup(struct vmctl *v, const char *key);
void vmctl_kill(struct vmctl *v);
