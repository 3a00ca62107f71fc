/* SPDX-License-Identifier: Apache-2.0
 *
 * kit.h: what the scenarios of vm-drive share: guests booted, snapshotted, restored and asked, and
 * layered disks for them. A step that fails ends the program and says where.
 */
#pragma once

#include <stdio.h>

#include "tests/vm/vmctl.h"

#define KIT_MEM MIB(256)
#define KIT_LIMIT                                                                                  \
	300000 /* ms; a deadline, on a machine that runs twenty guests on one emulated CPU */
#define DISK_BYTES MIB(64)

#define MUST(x)                                                                                    \
	do {                                                                                       \
		if (!(x)) {                                                                        \
			printf("FAILED %s:%d: %s\n", __FILE__, __LINE__, #x);                      \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

struct stored { /* a snapshot: its state file and the memory files that it names */
	int state, mem[VMM_MAX_MEM];
	unsigned int n;
};

extern const char *kit_dir;
extern int kit_kernel, kit_initrd;

int make_file(const char *what, int number);
struct tg_msg ask(struct vmctl *v, uint32_t cmd, uint64_t a, uint64_t b, uint32_t seed);
/* The arena holds what was written to it, `pages` of it, and the counter's halves never differed.
 */
void check_guest(struct vmctl *v, uint64_t pages);
void boot(struct vmctl *v, uint64_t mem, uint32_t vcpus);
void boot_on(struct vmctl *v, struct vmctl_disk *d, uint64_t mem, uint32_t vcpus);
void blank(struct vmctl *v, uint64_t mem, uint32_t vcpus);
/* base: what the VM was restored from, NULL: booted. Waits until it is durable and verifies it. */
struct stored snapshot(
	struct vmctl *v, const struct stored *base, uint32_t flags, uint64_t *stopped);
void restore(struct vmctl *v, const struct stored *s, int ws, uint32_t flags, bool say);

void new_layer(struct vmctl_disk *d);
void new_layer_in(struct vmctl_disk *d, const char *folder); /* "" or "NAME/" */
void check_disk(struct vmctl *v, uint64_t from, uint64_t n, uint32_t seed);
/* A snapshot that freezes the disk: `stack` gets the layers for its restores. The source goes on with
 * its new private layer. */
struct stored freeze(struct vmctl *v, struct vmctl_disk *stack, uint32_t flags, uint64_t *stopped);

/* Closes and removes the state file of `old`, and those of its memory files that `now` does not name. */
void close_stored(const struct stored *old, const struct stored *now);

/* scenarios: balloon.c, busy.c, ends.c, hardware.c */
void balloon(uint64_t mib, unsigned int rounds);
void rounds(unsigned int seconds);
void classes(void);
void busy(unsigned int clones, uint32_t vcpus);
void ends(void);
