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

struct restore_phases { /* what took how long, in order */
	unsigned int n;
	struct {
		const char *name;
		uint64_t ns;
	} p[RESTORE_MAX_PHASES];
	uint64_t last_ns;
};

/* The files that memory is mapped from, for differences. vmm/memtable.h says which piece is where. */
struct restored_mem {
	struct snap_file file[VMM_MAX_MEM];
	unsigned int nfiles;
	struct pm_list
		along; /* private pages that the restore copied and nobody wrote (populate.h) */
};
void restored_free(struct restored_mem *m);

/* The VM is prepared and its disks are attached. Descriptors are borrowed; flags are VMM_F_*. On
 * failure the VM is of no use any more (it may have parts of the state) and says so by its state.
 */
int restore_vm(struct vm *vm, int state_fd, const int *mem_fd, unsigned int nmem, int ws_fd,
	uint32_t flags, struct restore_phases *ph, struct err *e);
/* The size a state file was taken at, for whoever has to prepare the VM first. */
int restore_peek(int state_fd, struct vm_size *s, struct err *e);
/* Writes the pages touched since the restore to fd, as a working-set file. The VM may run. */
int restore_record_workset(
	struct vm *vm, int fd, uint64_t *nread, uint64_t *nwritten, struct err *e);
