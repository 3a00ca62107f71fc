/* SPDX-License-Identifier: Apache-2.0
 *
 * pagemap.h: which pages of guest memory are present, and which are private. mayfly-vmm, the device
 * thread or a forked child. Each call opens /proc/self/pagemap, so a child sees its own memory.
 */
#pragma once

#include "lib/err.h"
#include "vmm/mem.h"

struct pm_range {
	uint64_t gpa, len;
	/* Not a page of a file and not the zero page: the guest or the monitor wrote it, or a
	 * restore made it ready for a write. Without PAGEMAP_SCAN the zero page counts as private. */
	bool priv;
};

struct pm_list {
	struct pm_range *r;
	size_t n, cap;
};

/* Lists the present pages, ascending. proc_fd: O_PATH descriptor of a /proc. only_private:
 * leaves out pages that are not `priv`. plain: does not try PAGEMAP_SCAN (tests). */
int pagemap_list(int proc_fd, const struct mem *m, bool only_private, bool plain,
	struct pm_list *out, struct err *e);
void pm_list_fini(struct pm_list *l);
/* Appends a range; joins it with the last one if they touch and priv is the same. 0 or -ENOMEM. */
int pm_list_add(struct pm_list *l, uint64_t gpa, uint64_t len, bool priv);
