/* SPDX-License-Identifier: Apache-2.0
 *
 * boot.c: the Linux 64-bit boot protocol (Documentation/arch/x86/boot.rst, "64-bit boot protocol"),
 * without a real-mode part. mayfly-vmm, before the vCPUs run. Kernel and initramfs are hostile
 * files, the command line comes from the daemon.
 *
 * The layout below 1 MiB. The kernel may reuse it once it has read it:
 *   0x500 GDT     0x7000 boot_params   0x9000 page tables
 *   0x20000 command line   0x30000 seed   0x31000 device tree
 */
#include <asm/bootparam.h>
#include <string.h>
#include <sys/stat.h>

#include "vmm/arch.h"
#include "vmm/device.h"
#include "vmm/x86_64/elf.h"

#define GDT_GPA      0x500u
#define PARAMS_GPA   0x7000u
#define STACK_GPA    0x8ff0u
#define TABLES_GPA   0x9000u /* PML4, PDPT, PD: the first GiB, identity, 2 MiB pages */
#define CMDLINE_GPA  0x20000u
#define SEED_GPA     0x30000u
#define FDT_GPA      0x31000u
#define EBDA_GPA     0x9fc00u
#define SEED_BYTES   32u
#define E820_RAM     1u
#define HDR_MAGIC    0x53726448u /* "HdrS" */
#define BOOT_FLAG    0xaa55u
#define LOADER_OTHER 0xffu
#define PROTOCOL     0x020fu
#define SETUP_DTB_   2u /* setup_data types; <asm/bootparam.h> of older systems lacks the second */
#define SETUP_SEED_  9u
#define SEL_CODE     0x10u
#define SEL_DATA     0x18u
#define CR0_BOOT     0x80050033ull /* PG AM WP NE ET MP PE */
#define CR4_PAE      0x20ull
#define EFER_LME_LMA 0x500ull

static_assert(FDT_GPA + sizeof(struct setup_data) + ARCH_FDT_MAX <= EBDA_GPA,
	"the tree ends below the EBDA");

static void put_setup_data(
	struct mem *m, uint64_t gpa, uint64_t next, uint32_t type, const void *p, size_t n)
{
	struct setup_data d = {.next = next, .type = type, .len = (uint32_t)n};

	ASSERT(mem_write(m, GPA(gpa), &d, sizeof(d)));
	ASSERT(mem_write(m, GPA(gpa + sizeof(d)), p, n));
}

static int load_initrd(struct mem *m, int fd, uint64_t at, uint64_t *bytes, struct err *e)
{
	struct stat st;
	void *to;
	int rc;

	*bytes = 0;
	if (fd < 0)
		return 0;
	if (fstat(fd, &st) < 0)
		return err_set(e, errno, "initramfs: fstat");
	if (st.st_size == 0)
		return err_plain(e, EINVAL, "initramfs: empty file");
	to = mem_ptr(m, GPA(at), (uint64_t)st.st_size);
	if (!to || at + (uint64_t)st.st_size > m->low_bytes)
		return err_plain(e, EFBIG,
			"initramfs: %llu KiB do not fit behind the kernel in %llu MiB of memory",
			(unsigned long long)st.st_size >> 10,
			(unsigned long long)(m->ram_bytes >> 20));
	rc = pread_full(fd, to, (size_t)st.st_size, 0);
	if (rc < 0)
		return err_set(e, -rc, "initramfs: read");
	*bytes = (uint64_t)st.st_size;
	return 0;
}

static void put_params(
	struct mem *m, const struct arch_boot *b, uint64_t initrd, uint64_t initrd_bytes)
{
	struct boot_params *p = mem_ptr(m, GPA(PARAMS_GPA), sizeof(*p));
	uint64_t high = m->ram_bytes - m->low_bytes;
	uint8_t seed[SEED_BYTES];

	p->hdr.boot_flag = BOOT_FLAG;
	p->hdr.header = HDR_MAGIC;
	p->hdr.version = PROTOCOL;
	p->hdr.type_of_loader = LOADER_OTHER;
	p->hdr.loadflags = LOADED_HIGH;
	p->hdr.cmd_line_ptr = CMDLINE_GPA;
	p->hdr.cmdline_size = (uint32_t)strlen(b->cmdline);
	p->hdr.ramdisk_image = (uint32_t)initrd;
	p->hdr.ramdisk_size = (uint32_t)initrd_bytes;
	p->e820_table[0] = (struct boot_e820_entry){0, EBDA_GPA, E820_RAM};
	p->e820_table[1] = (struct boot_e820_entry){MIB(1), m->low_bytes - MIB(1), E820_RAM};
	p->e820_table[2] = (struct boot_e820_entry){MEM_HOLE_END, high, E820_RAM};
	p->e820_entries = high ? 3 : 2;
	/* With this seed the kernel's random pool is ready from the start. The kernel wipes it. */
	random_bytes(seed, sizeof(seed));
	put_setup_data(m, SEED_GPA, b->fdt_bytes ? FDT_GPA : 0, SETUP_SEED_, seed, sizeof(seed));
	if (b->fdt_bytes)
		put_setup_data(m, FDT_GPA, 0, SETUP_DTB_, b->fdt, b->fdt_bytes);
	p->hdr.setup_data = SEED_GPA;
	explicit_bzero(seed, sizeof(seed));
}

static void put_tables(struct mem *m)
{
	uint64_t *t = mem_ptr(m, GPA(TABLES_GPA), 3 * PAGE_BYTES);
	uint64_t *gdt = mem_ptr(m, GPA(GDT_GPA), 4 * sizeof(*gdt));

	t[0] = (TABLES_GPA + PAGE_BYTES) | 3;
	t[512] = (TABLES_GPA + 2 * PAGE_BYTES) | 3;
	for (uint64_t i = 0; i < 512; i++)
		t[1024 + i] = i * MIB(2) | 0x83;
	gdt[SEL_CODE / 8] = 0x00af9b000000ffffull;
	gdt[SEL_DATA / 8] = 0x00cf93000000ffffull;
}

int arch_boot_load(struct mem *m, const struct arch_boot *b, uint64_t *entry, struct err *e)
{
	uint64_t end = 0, initrd_bytes = 0, at, initrd;
	size_t n = strlen(b->cmdline);
	int rc;

	if (n > ARCH_CMDLINE_MAX)
		return err_plain(e, E2BIG, "command line: %zu bytes, the kernel takes %u", n,
			ARCH_CMDLINE_MAX);
	if (b->fdt_bytes > ARCH_FDT_MAX)
		return err_plain(e, E2BIG, "device tree: %zu bytes, room for %u", b->fdt_bytes,
			ARCH_FDT_MAX);
	rc = elf_load(m, b->kernel_fd, &at, &end, e);
	if (rc < 0)
		return rc;
	if (at >= GIB(1))
		return err_plain(e, ENOEXEC, "kernel: entry %#llx is beyond the first GiB",
			(unsigned long long)at);
	/* right after the kernel, so that what the guest leaves there needs few extents in a
	 * snapshot */
	initrd = ALIGN_UP(end, MIB(2));
	rc = load_initrd(m, b->initrd_fd, initrd, &initrd_bytes, e);
	if (rc < 0)
		return rc;
	ASSERT(mem_write(m, GPA(CMDLINE_GPA), b->cmdline, n + 1));
	put_params(m, b, initrd, initrd_bytes);
	put_tables(m);
	*entry = at;
	return 0;
}

int arch_boot_regs(int vcpu_fd, struct mem *m, uint64_t entry, struct err *e)
{
	struct kvm_segment code = {.limit = ~0u,
		.selector = SEL_CODE,
		.type = 11,
		.present = 1,
		.s = 1,
		.l = 1,
		.g = 1};
	struct kvm_segment data = {.limit = ~0u,
		.selector = SEL_DATA,
		.type = 3,
		.present = 1,
		.db = 1,
		.s = 1,
		.g = 1};
	struct kvm_regs r = {
		.rip = entry, .rsp = STACK_GPA, .rbp = STACK_GPA, .rsi = PARAMS_GPA, .rflags = 2};
	struct kvm_sregs s;

	if (kvm_ioctl(vcpu_fd, KVM_GET_SREGS, &s) < 0)
		return err_set(e, errno, "KVM_GET_SREGS");
	s.cr0 = CR0_BOOT;
	s.cr3 = TABLES_GPA;
	s.cr4 = CR4_PAE;
	s.efer = EFER_LME_LMA;
	s.cs = code;
	s.ds = s.es = s.ss = s.fs = s.gs = data;
	s.gdt.base = GDT_GPA;
	s.gdt.limit = 4 * 8 - 1;
	s.idt.limit = 0;
	if (kvm_ioctl(vcpu_fd, KVM_SET_SREGS, &s) < 0)
		return err_set(e, errno, "KVM_SET_SREGS");
	if (kvm_ioctl(vcpu_fd, KVM_SET_REGS, &r) < 0)
		return err_set(e, errno, "KVM_SET_REGS");
	return 0;
}
