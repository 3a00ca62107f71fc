/* SPDX-License-Identifier: Apache-2.0
 *
 * restore.h: brings a snapshot back into a prepared VM. mayfly-vmm, the device thread. The files
 * are hostile: lib/snap reads them.
 */
#pragma once

#include "lib/snap.h"
#include "vmm/pagemap.h"
#include "vmm/vm.h"

#define RESTORE_MAX_PHASES 16u

struct restore_phases { /* how long each step took, in order */
	unsigned int n;
	struct {
		const char *name;
		uint64_t ns;
	} p[RESTORE_MAX_PHASES];
	uint64_t last_ns;
};

/* The files that memory is mapped from. A later difference refers to them. vmm/memtable.h has which
 * range is in which file. */
struct restored_mem {
	struct snap_file file[VMM_MAX_MEM];
	unsigned int nfiles;
	struct pm_list along; /* private pages that the restore copied but that were not written */
};
void restored_free(struct restored_mem *m);

/* The VM is prepared and its disks are attached. Descriptors are borrowed; flags are VMM_F_*. A
 * snapshot that is refused leaves the VM prepared. A later failure ends it (VMM_S_ENDED),
 * because it may have parts of the state. */
int restore_vm(struct vm *vm, int state_fd, const int *mem_fd, unsigned int nmem, int ws_fd,
	uint32_t flags, struct restore_phases *ph, struct err *e);
/* The size of the VM that a state file is from, for a caller that must prepare the VM first. */
int restore_peek(int state_fd, struct vm_size *s, struct err *e);
/* Writes the pages touched since the restore to fd, as a working-set file. The VM may run. */
int restore_record_workset(
	struct vm *vm, int fd, uint64_t *nread, uint64_t *nwritten, struct err *e);
