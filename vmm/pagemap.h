/* SPDX-License-Identifier: Apache-2.0
 *
 * pagemap.h: which pages of guest memory are there, and which are private: design decision 5.
 * mayfly-vmm, the device thread or a forked child (which sees its own memory: the descriptor is
 * opened by whoever calls).
 */
#pragma once

#include "lib/err.h"
#include "vmm/mem.h"

struct pm_range {
	uint64_t gpa, len;
	bool priv; /* not a page of a file and not the zero page: written, or about to be */
};

struct pm_list {
	struct pm_range *r;
	size_t n, cap;
};

/* proc_fd: O_PATH descriptor of a /proc. only_private: leaves out what is only read. Ascending.
 * With `plain` PAGEMAP_SCAN is not tried (tests). */
int pagemap_list(int proc_fd, const struct mem *m, bool only_private, bool plain,
	struct pm_list *out, struct err *e);
void pm_list_fini(struct pm_list *l);
/* Appends, joining what touches and is alike. -ENOMEM. */
int pm_list_add(struct pm_list *l, uint64_t gpa, uint64_t len, bool priv);
