/* SPDX-License-Identifier: Apache-2.0
 *
 * elf.c: see elf.h. Header and program headers are copied once and checked; segment bytes go
 * straight from the file to guest memory with pread, so that a file that shrinks under us is a
 * short read and not a SIGBUS.
 */
#include "vmm/x86_64/elf.h"

#include <elf.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_PHDRS 64

static int check_header(const Elf64_Ehdr *h, uint64_t file_bytes, struct err *e)
{
	if (memcmp(h->e_ident, ELFMAG, SELFMAG) != 0)
		return err_plain(e, ENOEXEC,
			"kernel: not an ELF file (a bzImage? an uncompressed vmlinux is needed)");
	if (h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_ident[EI_DATA] != ELFDATA2LSB ||
		h->e_machine != EM_X86_64)
		return err_plain(e, ENOEXEC, "kernel: not a 64-bit little-endian x86-64 ELF file");
	if (h->e_type != ET_EXEC)
		return err_plain(e, ENOEXEC, "kernel: e_type %u: not an executable", h->e_type);
	if (h->e_phentsize != sizeof(Elf64_Phdr) || h->e_phnum == 0 || h->e_phnum > MAX_PHDRS)
		return err_plain(e, ENOEXEC, "kernel: %u program headers of %u bytes", h->e_phnum,
			h->e_phentsize);
	if (h->e_phoff > file_bytes ||
		file_bytes - h->e_phoff < (uint64_t)h->e_phnum * sizeof(Elf64_Phdr))
		return err_plain(e, ENOEXEC, "kernel: program headers outside the file");
	return 0;
}

static int load_segment(struct mem *m, int fd, const Elf64_Phdr *p, unsigned int i,
	uint64_t file_bytes, struct err *e)
{
	uint8_t *to;
	int rc;

	if (p->p_filesz > p->p_memsz || p->p_offset > file_bytes ||
		file_bytes - p->p_offset < p->p_filesz)
		return err_plain(
			e, ENOEXEC, "kernel: segment %u lies outside the file (truncated?)", i);
	to = mem_ptr(m, GPA(p->p_paddr), p->p_memsz);
	if (p->p_paddr < ELF_LOAD_MIN || !to || p->p_paddr + p->p_memsz > m->low_bytes)
		return err_plain(e, ENOEXEC,
			"kernel: segment %u at %#llx (%llu KiB) does not fit %llu MiB of memory", i,
			(unsigned long long)p->p_paddr, (unsigned long long)(p->p_memsz >> 10),
			(unsigned long long)(m->ram_bytes >> 20));
	rc = pread_full(fd, to, p->p_filesz, p->p_offset);
	if (rc < 0)
		return err_set(e, -rc, "kernel: read segment %u", i);
	/* a hostile file's segments may overlap: this memory need not be zero any more */
	memset(to + p->p_filesz, 0, p->p_memsz - p->p_filesz);
	return 0;
}

int elf_load(struct mem *m, int fd, uint64_t *entry, uint64_t *end, struct err *e)
{
	Elf64_Phdr ph[MAX_PHDRS];
	Elf64_Ehdr h;
	struct stat st;
	uint64_t size, last = 0;
	bool entered = false;
	int rc;

	if (fstat(fd, &st) < 0)
		return err_set(e, errno, "kernel: fstat");
	size = (uint64_t)st.st_size;
	if (size < sizeof(h))
		return err_plain(e, ENOEXEC, "kernel: only %llu bytes", (unsigned long long)size);
	rc = pread_full(fd, &h, sizeof(h), 0);
	if (rc < 0)
		return err_set(e, -rc, "kernel: read ELF header");
	rc = check_header(&h, size, e);
	if (rc < 0)
		return rc;
	rc = pread_full(fd, ph, h.e_phnum * sizeof(ph[0]), h.e_phoff);
	if (rc < 0)
		return err_set(e, -rc, "kernel: read program headers");
	for (unsigned int i = 0; i < h.e_phnum; i++) {
		if (ph[i].p_type != PT_LOAD || ph[i].p_memsz == 0)
			continue;
		rc = load_segment(m, fd, &ph[i], i, size, e);
		if (rc < 0)
			return rc;
		entered |= h.e_entry >= ph[i].p_paddr && h.e_entry - ph[i].p_paddr < ph[i].p_filesz;
		last = MAX(last, ph[i].p_paddr + ph[i].p_memsz);
	}
	if (!entered)
		return err_plain(e, ENOEXEC, "kernel: entry %#llx is in no segment",
			(unsigned long long)h.e_entry);
	*entry = h.e_entry;
	*end = last;
	return 0;
}
