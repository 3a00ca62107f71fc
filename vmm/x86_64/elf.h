/* SPDX-License-Identifier: Apache-2.0
 *
 * elf.h: loads an uncompressed x86-64 vmlinux by its physical addresses. mayfly-vmm, before the
 * vCPUs run. The file is hostile.
 */
#pragma once

#include "lib/base.h"
#include "lib/err.h"
#include "vmm/mem.h"

#define ELF_LOAD_MIN                                                                               \
	MIB(1) /* below are our own data: boot parameters, page tables, command line, device tree */

/* Reads the segments into fresh, zeroed memory. *entry: physical; *end: first byte after the last
 * segment, its bss included. */
int elf_load(struct mem *m, int fd, uint64_t *entry, uint64_t *end, struct err *e);
