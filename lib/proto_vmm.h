/* SPDX-License-Identifier: Apache-2.0
 *
 * proto_vmm.h: the control protocol of mayfly-vmm. One SOCK_SEQPACKET listener per VM. Each message
 * is a struct vmm_hdr, a payload of little-endian fields in the order given below, and descriptors
 * (SCM_RIGHTS) in the order given. The fields are written with lib/buf.h; strings are u32 length +
 * bytes. A request is answered by one message with the same id and type | VMM_REPLY, in any order;
 * several may be in flight. Events have id 0. The newest connection gets the events. If there is no
 * connection, events are kept (the last 32) and given to the next one; an event with a descriptor is
 * lost. Neither side trusts the other: the VMM faces the guest, and may be under its control.
 */
#pragma once

#include "lib/base.h"

#define VMM_MAGIC      0x314d564du /* "MVM1" */
#define VMM_VERSION    1u
#define VMM_MSG_MAX    65536u
#define VMM_MAX_VCPUS  16u
#define VMM_MAX_DISKS  8u
#define VMM_MAX_FROZEN 8u /* frozen layers under a disk's private one */
#define VMM_MAX_MEM    4u /* memory files that a state may need */
#define VMM_REPLY      0x8000u

struct vmm_hdr {
	uint32_t magic;
	uint16_t version;
	uint16_t type;
	uint32_t id;
	uint32_t len;   /* payload after this header */
	int32_t status; /* replies: 0 or -errno; then the payload is a string for humans */
	uint32_t nfds;
};
static_assert(sizeof(struct vmm_hdr) == 24, "wire size");

enum vmm_type {
	/* {} -> u16 version, str build, u32 state (enum vmm_state), u32 pid */
	VMM_HELLO = 1,
	/* u64 mem_bytes, u32 vcpus, str cpu_template ("" = host), u32 flags -> {}
	 * Makes everything that does not depend on a guest (reservation, VM, slot, irqchip, vCPUs,
	 * threads): a blank monitor. */
	VMM_PREPARE = 2,
	/* str cmdline (ours is put before it), u32 flags (VMM_F_*), u16 ndisks, disks -> u64 boot_us
	 * fds: kernel, initrd, then each disk's. With VMM_F_WITH_PREPARE the payload begins with
	 * the fields of VMM_PREPARE, and the monitor does that work first. */
	VMM_BOOT = 3,
	/* u32 flags, u16 nmem, u16 ndisks, disks -> u16 n, then n x {str phase, u64 ns}: what the restore took
	 * fds: state, nmem memory files (oldest first), working set if VMM_F_HAS_WS, then each disk's.
	 * With VMM_F_RUN the vCPUs run before the answer is sent. */
	VMM_RESTORE = 4,
	/* {} -> {}: vCPUs stopped, queues quiet. -ECANCELED: a VMM_CONTINUE came first; -ETIMEDOUT: it did not stop
	 * in time (VMM_STOP_LIMIT_S). In both cases the VM runs. */
	VMM_PAUSE = 5,
	/* {} -> {}: it runs, also where it was still being paused. -EBUSY: it runs already; -EAGAIN: a snapshot has stopped it, and
	 * decides whether it goes on; -ESRCH: it has ended */
	VMM_CONTINUE = 6,
	/* u32 flags (VMM_F_LIVE, VMM_F_DIFF, VMM_F_EXIT, VMM_F_RAM, VMM_F_CARRY), u16 ndisks
	 * -> u64 stopped_ns
	 *    u64 pages: always 0, because the writer counts them later (VMM_EV_SNAPSHOT)
	 *    u16 ndisks, ndisks x i32: the position of the frozen layer that dropped out of that
	 *    disk's layers; -1: none
	 * fds: state out, memory out, then for every writable disk: merged index out, new private
	 * data, new private bitmap.
	 * LIVE: a forked child writes, the VM goes on. EXIT: it ends when durable. Neither: it stays paused. If the reply is an error, the VM is
	 * as before: it runs, or is paused. Its disks may have their new layers all the same (VMM_LAYERS says so).
	 * If EXIT fails after the reply (VMM_EV_SNAPSHOT), it stays paused.
	 * EXIT with ndisks 0: no disk is frozen. The private layers are flushed, and the next
	 * restore is given the same layers.
	 * The reply comes when the source runs again (LIVE) or has stopped for good (EXIT); VMM_EV_SNAPSHOT follows when all is durable. */
	VMM_SNAPSHOT = 7,
	/* u32 mode: 0: nothing (the daemon asks the guest, through the agent); 1: the VM ends now
	 * -> {} */
	VMM_SHUTDOWN = 8,
	VMM_STATS = 9, /* {} -> u16 n, then n x {str name, u64 value} */
	/* {} -> u64 read_pages, u64 written_pages
	 * fd: a file. The monitor writes into it which pages were touched since the restore. */
	VMM_WORKSET = 10,
	VMM_DEBUG = 11, /* u32 what (enum vmm_debug), u64 arg -> str */
	/* u16 n, n x u32 guest-to-host ports allowed -> {}. A guest connection to one of them comes
	 * as VMM_EV_GUEST_CONN. */
	VMM_ALLOW_PORTS = 12,
	/* {} -> u32 state (enum vmm_state), u32 a snapshot is being written (0, 1), u16 ndisks,
	 * ndisks x {u8 n, n x 16 bytes}: the ids of the layers of each disk, oldest first, the
	 * private one last. For a daemon that does not know how far a snapshot got. */
	VMM_LAYERS = 13,
	/* u32 there is a network (0, 1), u64 bytes a second, u64 packets a second (each direction; 0: no limit) -> {}
	 * fd if 1: the socket of frames, whose other end a mayfly-net has (lib/proto_net.h). The answer to VMM_EV_NET_WANTED; may also
	 * replace a link. */
	VMM_NET = 14,
	/* u32 link (0, 1) -> {}. 1: fds: the socket to a mayfly-fs (lib/proto_fs.h), and the memory file with its table of nodes, which the
	 * monitor only keeps. EBUSY: there is a file server. 0: VMM_EV_FS_TABLE follows, if there is such a memory file. */
	VMM_FS = 15,
	/* u16 ndisks, for every writable disk: u16 n, its frozen layers -> {}
	 * fds: for every writable disk: its n frozen data files (oldest first) and, if n > 0, the merged index, all read-only.
	 * After VMM_EV_SNAPSHOT: the monitor replaces the writable descriptors of what it froze. -EBUSY: not durable yet, ask again.
	 * The daemon publishes only what it then finds without a writer. */
	VMM_READ_ONLY = 16,
	/* u64 bytes -> {}: at most so many in the private layer of each writable disk; 0: no limit. A write beyond it waits, as one without room on
	 * the host (VMM_EV_DISK_FULL), until the guest discards something or the limit is raised. */
	VMM_DISK_LIMIT = 17,
	/* u64 bytes -> u64 bytes. The guest shall give so much of its memory away; 0: none, it
	 * takes back what it gave. Answered at once, with what the guest says it has given away so
	 * far. After a restore the amount is 0 until the next request. -ENODEV: the VM has no balloon. */
	VMM_BALLOON = 18,

	/* u32 reason (enum vmm_exit), str text: the process ends after this */
	VMM_EV_EXITED = 0x4001,
	VMM_EV_PANIC = 0x4002,       /* str last console lines */
	VMM_EV_NEEDS_RESET = 0x4003, /* str device, str why */
	/* 0x4004 was "out of memory". The kernel kills the process for it, so it cannot send an
	 * event; the helper counts such kills (PRIV_EV_EXITED). */
	/* u32 request id, i32 status, u64 bytes, str text, u64 pages written, u32 kept
	 * kept, bit i: memory file i of this VM's restore is still needed. A restore is given those
	 * files, oldest first, then the new one. */
	VMM_EV_SNAPSHOT = 0x4005,
	VMM_EV_GUEST_CONN = 0x4006, /* u32 host port, u32 guest port; fd: a stream socket */
	/* {}: the guest has sent a frame and there is no link; at most one a second. Frames wait until VMM_NET, for 5 s at most. */
	VMM_EV_NET_WANTED = 0x4007,
	/* str why: the file server is gone. The guest's requests wait for the next one. */
	VMM_EV_FS_LOST = 0x4008,
	/* u32 disk, u32 requests that wait, because the host's disk or a quota is full; 0: none
	 * waits any more. The monitor tries them again twice a second. A snapshot contains them. For
	 * each disk, at most ten events a minute say that it is full. */
	VMM_EV_DISK_FULL = 0x400a,
	/* u64 bytes: what this monitor's guest has given back, by reports and by inflating. A page counts each time that the guest gives it, whether
	 * the host had memory behind it or not. At most one a second. */
	VMM_EV_GIVEN_BACK = 0x400b,
	VMM_EV_FS_TABLE = 0x4009, /* fd: the memory file that the last VMM_FS brought */
};

/* a disk in a payload: u32 flags (VMM_DISK_*), str serial (<= 20), u16 nfrozen; its fds: base,
 * and unless read-only: nfrozen data files (oldest first), the merged index if nfrozen > 0, private data, private bitmap */
enum { VMM_DISK_RO = 1 };
#define VMM_DISK_FDS_MAX (VMM_MAX_FROZEN + 4u)
/* the largest message: a restore with a working set and every disk */
#define VMM_FDS_MAX (1u + VMM_MAX_MEM + 1u + VMM_MAX_DISKS * VMM_DISK_FDS_MAX)

enum vmm_flags {
	VMM_F_RUN = 1,
	VMM_F_HAS_WS = 2,
	VMM_F_LIVE = 4,
	VMM_F_DIFF = 8,  /* only what changed since the files this VM was restored from */
	VMM_F_EXIT = 16, /* end the process when durable (pause) */
	VMM_F_SERIAL = 32,
	VMM_F_WITH_PREPARE = 64,
	/* check what the working set prefetches against its checksums, before anything runs */
	VMM_F_VERIFY = 256,
	VMM_F_NET = 512, /* boot: with a network device; a restore has one if the snapshot has */
	/* snapshot: state and memory are files in RAM (memfd). Nothing is synced to them. The disks are, as ever. */
	VMM_F_RAM = 1024,
	/* snapshot: bit VMM_F_CARRY_SHIFT + i: the new memory file takes over everything that memory file i of this VM's
	 * restore still holds. The snapshot does not refer to that file. */
	VMM_F_CARRY = 0xf << 16,
	VMM_F_BALLOON =
		2048, /* boot: with a memory balloon; a restore has one if the snapshot has */
};

#define VMM_F_CARRY_SHIFT 16u
static_assert(
	VMM_F_CARRY == ((1 << VMM_MAX_MEM) - 1) << VMM_F_CARRY_SHIFT, "one bit a memory file");

enum vmm_state {
	VMM_S_BLANK,    /* nothing is made yet */
	VMM_S_PREPARED, /* VMM_PREPARE is done: what is called a blank monitor elsewhere */
	VMM_S_RUNNING,
	VMM_S_PAUSED,
	VMM_S_SNAPSHOTTING, /* stopped; its state is read, or written */
	VMM_S_ENDED,
	VMM_S_PAUSING,  /* vCPUs and devices are being stopped for a pause */
	VMM_S_STOPPING, /* the same, for a snapshot */
	VMM_S_COUNT
};
/* A VM that has not stopped after this time runs on: a disk or a host that does not answer. */
#define VMM_STOP_LIMIT_S 20u

enum vmm_debug {
	VMM_DBG_LOG_LEVEL, /* arg: enum log_level */
	VMM_DBG_NMI,
	VMM_DBG_REGS,
	VMM_DBG_CONSOLE,
	VMM_DBG_FAULT /* arg: step, action << 32 (lib/fault.h) */
};

enum vmm_exit {
	VMM_X_POWEROFF,
	VMM_X_RESET,
	VMM_X_PANIC,
	VMM_X_TRIPLE_FAULT,
	VMM_X_FORCED,      /* VMM_SHUTDOWN 1 */
	VMM_X_SNAPSHOTTED, /* VMM_F_EXIT done */
	VMM_X_KVM_ERROR,
	/* Guest memory cannot be read: a memory file was shortened, or its disk failed. Or KVM had
	 * no memory. */
	VMM_X_HOST_ERROR,
	VMM_X_INTERNAL,
	VMM_X_COUNT
};

/* The content of the last-words descriptor. The monitor writes it in place, at offset 0, before it
 * ends, also from the crash handler. */
struct vmm_last_words {
	uint32_t magic;  /* LAST_WORDS_MAGIC; anything else: it never got so far */
	uint32_t reason; /* enum vmm_exit */
	uint64_t wall_ns;
	uint32_t text_len, console_len;
	char text[424];
	char console[3648]; /* last lines of the guest's console */
};
#define LAST_WORDS_MAGIC 0x3157574cu
static_assert(sizeof(struct vmm_last_words) == 4096, "one page");

/* Host to guest streams: connect to the VM's vsock Unix socket (SOCK_STREAM), write struct
 * vsock_open, read one of the same with the status: 0 = open, bytes follow; ECONNREFUSED: nobody
 * listens. After a restore the answer waits until the guest has handled the transport reset. */
struct vsock_open {
	uint32_t magic; /* VSOCK_OPEN_MAGIC */
	uint32_t port;
	uint32_t status; /* 0 in the request; positive errno in the answer */
};
#define VSOCK_OPEN_MAGIC 0x31534b56u
static_assert(sizeof(struct vsock_open) == 12, "wire size");

#define VSOCK_HOST_CID  2u
#define VSOCK_GUEST_CID 3u
/* the agent connects out to this host port when it listens: readiness is an event, after a boot and
 * after each restore */
#define VSOCK_PORT_READY 1023u
#define VSOCK_PORT_AGENT 1024u /* the agent listens here */

/* descriptors that mayfly-vmm is started with, by number */
enum {
	VMM_FD_CONTROL = 3,
	VMM_FD_VSOCK = 4,
	VMM_FD_LASTWORDS = 5,
	VMM_FD_KVM = 6,
	VMM_FD_FIXED_END = 7
};
