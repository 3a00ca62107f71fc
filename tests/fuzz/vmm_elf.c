/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_elf: kernels into 32 MiB of guest memory; under ASan a byte beyond it is a finding.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "vmm/x86_64/elf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define RAM MIB(4)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static uint8_t *ram;
	struct mem m = {.ram_bytes = RAM, .low_bytes = RAM, .span_bytes = RAM};
	uint64_t entry = 0, end = 0;
	struct err e = {0};
	int fd = memfd_create("kernel", MFD_CLOEXEC);

	if (!ram)
		ram = malloc(RAM);
	m.base = ram;
	ASSERT(write(fd, data, n) == (ssize_t)n);
	if (elf_load(&m, fd, &entry, &end, &e) == 0)
		ASSERT(entry >= ELF_LOAD_MIN && entry < RAM && end <= RAM);
	else
		ASSERT(e.code && e.msg[0]);
	close(fd);
	return 0;
}
