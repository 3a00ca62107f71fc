/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.c: see snapshot.h. mayfly-vmm, the device thread.
 */
#include "vmm/snapshot.h"

int snapshot_start(struct vm *vm, const struct snapshot_req *req, struct err *e)
{
	return err_plain(e, EOPNOTSUPP, "snapshot: not in this build");
}
