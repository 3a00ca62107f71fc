/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_control: what the daemon may send to a monitor: header and every payload. First byte:
 * request, second: number of descriptors.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "vmm/ctlmsg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static union {
		struct ctl_boot boot;
		struct ctl_restore restore;
		struct ctl_snapshot snapshot;
		struct ctl_read_only read_only;
		struct vm_size size;
	} u;
	uint32_t ports[64];
	unsigned int k = 0;
	struct vmm_hdr h;
	struct err e = {0};
	struct cur c;
	int fds[32];
	size_t nfds;

	if (n < 2)
		return 0;
	nfds = data[1] % 33;
	for (int i = 0; i < 32; i++)
		fds[i] = 1000 + i;
	c = cur_of(data + 2, n - 2);
	switch (data[0] % 7) {
	case 0:
		(void)ctl_parse_hdr(data + 2, n - 2, &h, &e);
		break;
	case 1:
		if (ctl_parse_prepare(&c, &u.size, &e) == 0)
			ASSERT(memchr(u.size.tmpl, 0, sizeof(u.size.tmpl)));
		break;
	case 2:
		if (ctl_parse_boot(&c, fds, nfds, &u.boot, &e) == 0)
			ASSERT(u.boot.ndisks <= VMM_MAX_DISKS && u.boot.kernel_fd >= 1000 &&
				strlen(u.boot.cmdline) < CTL_CMDLINE_MAX);
		break;
	case 3:
		if (ctl_parse_restore(&c, fds, nfds, &u.restore, &e) == 0)
			ASSERT(u.restore.nmem >= 1 && u.restore.nmem <= VMM_MAX_MEM &&
				u.restore.state_fd >= 1000 &&
				u.restore.mem_fd[u.restore.nmem - 1] >= 1000);
		break;
	case 4:
		if (ctl_parse_snapshot(&c, fds, nfds, &u.snapshot, &e) == 0)
			ASSERT(u.snapshot.ndisks <= VMM_MAX_DISKS && u.snapshot.mem_fd >= 1000);
		break;
	case 6:
		if (ctl_parse_read_only(&c, fds, nfds, &u.read_only, &e) == 0)
			for (unsigned int i = 0; i < u.read_only.ndisks; i++)
				ASSERT(u.read_only.disk[i].n <= VMM_MAX_FROZEN &&
					(!u.read_only.disk[i].n ||
						u.read_only.disk[i].index >= 1000));
		break;
	default:
		if (ctl_parse_ports(&c, ports, 64, &k, &e) == 0)
			ASSERT(k <= 64);
	}
	return 0;
}
