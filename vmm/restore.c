/* SPDX-License-Identifier: Apache-2.0
 *
 * restore.c: see restore.h. mayfly-vmm, the device thread.
 */
#include "vmm/restore.h"

int restore_vm(struct vm *vm, int state_fd, const int *mem_fd, unsigned int nmem, int ws_fd, uint32_t flags, struct restore_phases *ph,
	struct err *e)
{
	return err_plain(e, EOPNOTSUPP, "restore: not in this build");
}

int restore_peek(int state_fd, struct vm_size *s, struct err *e)
{
	return err_plain(e, EOPNOTSUPP, "restore: not in this build");
}

int restore_record_workset(struct vm *vm, int fd, uint64_t *nread, uint64_t *nwritten, struct err *e)
{
	return err_plain(e, EOPNOTSUPP, "restore: not in this build");
}
