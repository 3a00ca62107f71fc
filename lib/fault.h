/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.h: the steps of pause, resume and snapshot at which a test may kill the daemon or the
 * monitor, or make them fail as on a full disk. mayflyd (api/sandbox/fault.c) and mayfly-vmm (vmm/fault.c).
 * Only a daemon that was started with --faults and debug.faults = true ever looks; it tells a
 * monitor by VMM_DBG_FAULT, on the control socket that could end that VM anyway.
 */
#pragma once

#include "lib/base.h"

enum fault_step {
	FAULT_NONE,
	FAULT_RECORD, /* mayflyd: a sandbox's record is to be written */
	FAULT_LOAD,   /* mayflyd: a sandbox's record is read at start. FAIL: as without memory */
	/* mayflyd: a point is taken, for a pause or a snapshot */
	FAULT_POINT_BEGUN,    /* the guest is asked to be quiet */
	FAULT_POINT_QUIET,    /* the guest is quiet */
	FAULT_POINT_NOTED,    /* the files are made, and are in the record */
	FAULT_POINT_ASKED,    /* the monitor has its request */
	FAULT_POINT_FROZEN,   /* its disk has new layers, the record does not say so yet */
	FAULT_POINT_FOLLOWED, /* the record with the new layers is being written */
	FAULT_POINT_DURABLE,  /* all is on disk; nobody was told */
	FAULT_POINT_SAVED,    /* Paused, or Ready, is in the record; the client has no answer */
	/* mayflyd: resume */
	FAULT_RESUME_BEGUN,  /* Resuming is in the record */
	FAULT_RESUME_DISK,   /* the disk has a new private layer */
	FAULT_RESUME_ASKED,  /* the monitor has its request */
	FAULT_RESUME_LOADED, /* the machine runs, its processes are frozen */
	FAULT_RESUME_READY,  /* the agent listens */
	FAULT_RESUME_THAWED, /* processes run; the record says Resuming */
	FAULT_RESUME_SAVED,  /* Running is in the record; the client has no answer */
	/* mayfly-vmm */
	FAULT_VMM_QUIET,  /* vCPUs stopped, devices quiet */
	FAULT_VMM_FROZEN, /* the disks have new private layers */
	FAULT_VMM_SAVED,  /* device state is in a buffer: then the fork, and the answer */
	FAULT_VMM_WRITE,  /* the writer begins */
	FAULT_VMM_DISKS,  /* frozen layers are durable */
	FAULT_VMM_MEMORY, /* the memory file is durable */
	FAULT_VMM_STATE,  /* the state file is durable; nobody was told */
	FAULT_VMM_TABLES, /* restore: everything was read and checked */
	FAULT_VMM_MAPPED, /* memory is mapped */
	FAULT_VMM_LOADED, /* processors and devices are loaded; the VM runs next */
	FAULT_VMM_RUNS,   /* it runs, the answer was not sent */
	FAULT_COUNT
};
#define FAULT_VMM_FIRST FAULT_VMM_QUIET

/* KILL: the process that is at the step. FAIL: as on a full disk; of the daemon's steps only
 * FAULT_RECORD and FAULT_LOAD can fail. WAIT: three seconds, in a monitor only. KILL_VMM and PASS: in
 * the daemon only. PASS: nothing. A line of the file that the daemon reads (api/sandbox/fault.c) is
 * used up each time, so the line after a PASS is for the next time. */
enum fault_action {
	FAULT_KILL = 1,
	FAULT_FAIL,
	FAULT_WAIT,
	FAULT_KILL_VMM,
	FAULT_PASS,
	FAULT_ACTIONS
};

/* FAULT_NONE, 0: no such name. */
enum fault_step fault_step_of(const char *name);
enum fault_action fault_action_of(const char *name);
