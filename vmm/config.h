/* SPDX-License-Identifier: Apache-2.0
 *
 * config.h: options of mayfly-vmm, from the command line and from a file with the same names. One
 * table. Only developer mode (local.h) has paths of files; the daemon's VMs get descriptors.
 */
#pragma once

#include "lib/err.h"
#include "vmm/vm.h"

struct config {
	const char *name, *kernel, *initrd, *cmdline, *cpu, *vsock, *snapshot, *restore;
	const char *disk[VMM_MAX_DISKS]; /* base[,private data,private bitmap] */
	unsigned int ndisks;
	uint64_t memory_bytes;
	uint32_t vcpus;
	uint32_t jail_uid;
	unsigned int no_jail; /* how often the option was given */
	bool jail, serial, json_log, help, trace, local, stay;
};

/* 0, or less than 0 and *e names the option. Strings point into argv or into memory that is never
 * freed. */
int config_parse(struct config *c, int argc, char **argv, struct err *e);
void config_usage(void);
