/* SPDX-License-Identifier: Apache-2.0
 *
 * devices.h: the devices of a VM. A table has those of every VM; functions add disks, network,
 * volumes and balloon. mayfly-vmm, the device thread.
 */
#pragma once

#include "vmm/vm.h"

/* Those that every VM has: vsock, rng, console. */
int devices_create(struct vm *vm, struct err *e);
/* Which ports of the host the guest may connect to, in addition to the ready port. */
int devices_allow_ports(struct vm *vm, const uint32_t *ports, unsigned int n, struct err *e);
/* Adds the network device: once, to a prepared VM, before it is booted or its state is loaded. */
int devices_add_net(struct vm *vm, struct err *e);
/* Gives the network device a link. Takes fd; -1: there is no network. */
int devices_link_net(
	struct vm *vm, int fd, uint64_t bytes_per_s, uint64_t packets_per_s, struct err *e);
/* Adds the device for volumes, like devices_add_net(). Every VM that is booted has it; a
 * snapshot of an earlier build may not have it. */
int devices_add_fs(struct vm *vm, struct err *e);
/* Adds the balloon, like devices_add_net(). */
int devices_add_balloon(struct vm *vm, struct err *e);
/* Asks the guest to give away this much memory; *actual: what it has given away so far. */
int devices_balloon(struct vm *vm, uint64_t bytes, uint64_t *actual, struct err *e);
/* Gives the device for volumes a file server: its socket, and a memfd with its table of nodes,
 * which the monitor only keeps. Takes both. */
int devices_link_fs(struct vm *vm, int sock, int table, struct err *e);
/* Sends that table with VMM_EV_FS_TABLE, if there is one. */
void devices_tell_fs_table(struct vm *vm);
void devices_stats(struct vm *vm, vm_stat_fn fn, void *arg);
