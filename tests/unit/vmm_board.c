/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_board: device tree, boot parameters, the ELF loader with malformed kernels, control messages,
 * options.
 */
#include "lib/test.h"

#include <asm/bootparam.h>
#include <elf.h>
#include <fcntl.h>
#include <libfdt.h>
#include <sys/mman.h>

#include "vmm/board.h"
#include "vmm/config.h"
#include "vmm/ctlmsg.h"
#include "vmm/x86_64/elf.h"

static struct mem fake_mem(uint64_t bytes)
{
	struct mem m = {.base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
		.ram_bytes = bytes,
		.low_bytes = bytes,
		.span_bytes = bytes};

	return m;
}

static void tree_names_what_is_there(void)
{
	static char fdt[ARCH_FDT_MAX];
	struct virtio_dev d = {0};
	struct board b = {.dev = {[SLOT_VSOCK] = &d, [SLOT_DISK0] = &d}};
	struct err e;
	size_t n = 0;
	int at, len, cpus = 0;
	const fdt32_t *irq;

	CHECK_INT(board_fdt(&b, 16, fdt, sizeof(fdt), &n, &e), 0);
	CHECK_INT(fdt_check_full(fdt, n), 0);
	fdt_for_each_subnode(at, fdt, fdt_path_offset(fdt, "/cpus")) cpus++;
	CHECK_INT(cpus, 16);
	CHECK(fdt_path_offset(fdt, "/virtio@d0000000") >= 0);
	CHECK(fdt_path_offset(fdt, "/virtio@d0001000") < 0);
	at = fdt_path_offset(fdt, "/virtio@d0005000");
	CHECK(at >= 0);
	irq = fdt_getprop(fdt, at, "interrupts", &len);
	CHECK(irq && len == 8 && fdt32_to_cpu(irq[0]) == BOARD_VIRTIO_IRQ + SLOT_DISK0);
	CHECK(fdt_path_offset(fdt, "/vmgenid@e0000") >= 0);
	CHECK(board_fdt(&b, 16, fdt, 500, &n, &e) < 0);
}

struct kernel {
	Elf64_Ehdr h;
	Elf64_Phdr p[2];
	uint8_t code[64];
};

static struct kernel good_kernel(void)
{
	struct kernel k = {.h = {.e_type = ET_EXEC,
				   .e_machine = EM_X86_64,
				   .e_entry = MIB(16) + 8,
				   .e_phoff = offsetof(struct kernel, p),
				   .e_phentsize = sizeof(Elf64_Phdr),
				   .e_phnum = 2},
		.p = {{.p_type = PT_LOAD,
			.p_offset = offsetof(struct kernel, code),
			.p_paddr = MIB(16),
			.p_filesz = 64,
			.p_memsz = 8192}}};

	memcpy(k.h.e_ident, ELFMAG, SELFMAG);
	k.h.e_ident[EI_CLASS] = ELFCLASS64;
	k.h.e_ident[EI_DATA] = ELFDATA2LSB;
	memset(k.code, 0x90, sizeof(k.code));
	return k;
}

static int load(const struct kernel *k, size_t n, struct mem *m, uint64_t *entry, uint64_t *end,
	struct err *e)
{
	int fd = memfd_create("k", MFD_CLOEXEC), rc;

	CHECK(write(fd, k, n) == (ssize_t)n);
	rc = elf_load(m, fd, entry, end, e);
	close(fd);
	return rc;
}

static void kernels(void)
{
	struct mem m = fake_mem(MIB(32));
	uint64_t entry = 0, end = 0;
	struct kernel k = good_kernel(), bad;
	struct err e = {0};

	CHECK_INT(load(&k, sizeof(k), &m, &entry, &end, &e), 0);
	CHECK_INT(entry, MIB(16) + 8);
	CHECK_INT(end, MIB(16) + 8192);
	CHECK_INT(m.base[MIB(16) + 63], 0x90);
	CHECK_INT(m.base[MIB(16) + 64], 0);
	for (size_t n = 0; n < sizeof(k); n++)
		CHECK(load(&k, n, &m, &entry, &end, &e) < 0);
#define BAD(change)                                                                                \
	do {                                                                                       \
		bad = k;                                                                           \
		change;                                                                            \
		CHECK(load(&bad, sizeof(bad), &m, &entry, &end, &e) < 0);                          \
	} while (0)
	BAD(bad.h.e_ident[0] = 0);
	BAD(bad.h.e_ident[EI_CLASS] = ELFCLASS32);
	BAD(bad.h.e_machine = EM_AARCH64);
	BAD(bad.h.e_type = ET_DYN);
	BAD(bad.h.e_phnum = 0);
	BAD(bad.h.e_phnum = 65535);
	BAD(bad.h.e_phentsize = 55);
	BAD(bad.h.e_phoff = UINT64_MAX);
	BAD(bad.h.e_phoff = UINT64_MAX - 64);
	BAD(bad.h.e_entry = MIB(17));
	BAD(bad.p[0].p_offset = UINT64_MAX);
	BAD(bad.p[0].p_filesz = UINT64_MAX);
	BAD(bad.p[0].p_filesz = 65);
	BAD(bad.p[0].p_filesz = 9000);
	BAD(bad.p[0].p_memsz = UINT64_MAX);
	BAD(bad.p[0].p_memsz = MIB(16) + 4096);
	BAD(bad.p[0].p_paddr = UINT64_MAX - 4096);
	BAD(bad.p[0].p_paddr = 0x7000);
	BAD(bad.p[0].p_paddr = MIB(32));
	BAD(bad.p[0].p_type = PT_NOTE);
	munmap(m.base, m.span_bytes);
}

static void boot_parameters(void)
{
	struct mem m = fake_mem(MIB(128));
	struct kernel k = good_kernel();
	int kfd = memfd_create("k", MFD_CLOEXEC), ifd = memfd_create("i", MFD_CLOEXEC);
	struct arch_boot b = {.kernel_fd = kfd,
		.initrd_fd = ifd,
		.cmdline = "quiet x=1",
		.fdt = "tree",
		.fdt_bytes = 4};
	static char longest[ARCH_CMDLINE_MAX + 2];
	const struct boot_params *p;
	const struct setup_data *d;
	uint64_t entry = 0;
	struct err e;

	CHECK(write(kfd, &k, sizeof(k)) == sizeof(k));
	CHECK(arch_boot_load(&m, &b, &entry, &e) < 0); /* empty initramfs */
	CHECK(write(ifd, "initrd", 6) == 6);
	CHECK_INT(arch_boot_load(&m, &b, &entry, &e), 0);
	p = (const void *)(m.base + 0x7000);
	CHECK_STR((const char *)m.base + p->hdr.cmd_line_ptr, "quiet x=1");
	CHECK_INT(p->hdr.ramdisk_size, 6);
	CHECK(!memcmp(m.base + p->hdr.ramdisk_image, "initrd", 6));
	CHECK(p->hdr.ramdisk_image >= MIB(16) + 8192);
	CHECK_INT(p->e820_entries, 2);
	CHECK_INT(p->e820_table[1].addr + p->e820_table[1].size, MIB(128));
	d = (const void *)(m.base + p->hdr.setup_data);
	CHECK_INT(d->type, 9);
	CHECK_INT(d->len, 32);
	d = (const void *)(m.base + d->next);
	CHECK_INT(d->type, 2);
	CHECK(!memcmp(d->data, "tree", 4));
	memset(longest, 'a', sizeof(longest) - 1);
	b.cmdline = longest;
	CHECK_INT(arch_boot_load(&m, &b, &entry, &e), -E2BIG);
	CHECK(strstr(e.msg, "command line") != NULL);
	b.cmdline = "";
	CHECK(ftruncate(ifd, MIB(120)) == 0);
	CHECK_INT(arch_boot_load(&m, &b, &entry, &e), -EFBIG);
	munmap(m.base, m.span_bytes);
	/* the tables that it starts with end there */
	m = fake_mem(GIB(2));
	k.h.e_entry = k.p[0].p_paddr = GIB(1);
	CHECK_INT(pwrite_full(kfd, &k, sizeof(k), 0), 0);
	b.initrd_fd = -1;
	CHECK_INT(arch_boot_load(&m, &b, &entry, &e), -ENOEXEC);
	CHECK_STR(e.msg, "kernel: entry 0x40000000 is beyond the first GiB");
	close(kfd);
	close(ifd);
	munmap(m.base, m.span_bytes);
}

static void put_disk(struct buf *b, uint32_t flags, const char *serial, uint16_t frozen)
{
	buf_u32(b, flags);
	buf_str(b, serial);
	buf_u16(b, frozen);
}

static void control_messages(void)
{
	int fds[32];
	struct ctl_restore *r = malloc(sizeof(*r));
	struct ctl_boot *bo = malloc(sizeof(*bo));
	struct ctl_snapshot s;
	struct ctl_read_only ro;
	struct vmm_hdr h = {.magic = VMM_MAGIC, .version = VMM_VERSION}, got;
	struct err e;
	struct buf b;
	struct cur c;

	for (int i = 0; i < 32; i++)
		fds[i] = 100 + i;
	CHECK_INT(ctl_parse_hdr(&h, sizeof(h), &got, &e), 0);
	CHECK(ctl_parse_hdr(&h, sizeof(h) - 1, &got, &e) < 0);
	h.len = 1;
	CHECK(ctl_parse_hdr(&h, sizeof(h), &got, &e) < 0);
	h.len = 0;
	h.version = 9;
	CHECK_INT(ctl_parse_hdr(&h, sizeof(h), &got, &e), -EPROTONOSUPPORT);

	buf_init(&b, 65536);
	buf_u32(&b, VMM_F_HAS_WS);
	buf_u16(&b, 2);
	buf_u16(&b, 2);
	put_disk(&b, VMM_DISK_RO, "ro", 0);
	put_disk(&b, 0, "rw", 2);
	/* state, two memory files, working set, base, then base, two layers, index, data, bitmap */
	c = cur_of(b.p, b.len);
	CHECK_INT(ctl_parse_restore(&c, fds, 11, r, &e), 0);
	CHECK_INT(r->state_fd, 100);
	CHECK_INT(r->mem_fd[1], 102);
	CHECK_INT(r->ws_fd, 103);
	CHECK_INT(r->disk[0].fds.base, 104);
	CHECK_INT(r->disk[0].fds.data, -1);
	CHECK_INT(r->disk[1].fds.frozen[1], 107);
	CHECK_INT(r->disk[1].fds.index, 108);
	CHECK_INT(r->disk[1].fds.bitmap, 110);
	for (size_t n = 0; n < 20; n++) {
		c = cur_of(b.p, b.len);
		if (n != 11)
			CHECK(ctl_parse_restore(&c, fds, n, r, &e) < 0);
	}
	for (size_t n = 0; n < b.len; n++) {
		c = cur_of(b.p, n);
		CHECK(ctl_parse_restore(&c, fds, 11, r, &e) < 0);
	}
	buf_reset(&b);
	buf_str(&b, "quiet");
	buf_u32(&b, 0);
	buf_u16(&b, 0);
	c = cur_of(b.p, b.len);
	CHECK_INT(ctl_parse_boot(&c, fds, 2, bo, &e), 0);
	CHECK_STR(bo->cmdline, "quiet");
	CHECK(!bo->prepare);
	buf_reset(&b);
	buf_u64(&b, MIB(256));
	buf_u32(&b, 2);
	buf_str(&b, "x86-64-v2");
	buf_u32(&b, VMM_F_SERIAL);
	buf_str(&b, "quiet");
	buf_u32(&b, VMM_F_WITH_PREPARE);
	buf_u16(&b, 0);
	c = cur_of(b.p, b.len);
	CHECK_INT(ctl_parse_boot(&c, fds, 2, bo, &e), 0);
	CHECK(bo->prepare && bo->size.vcpus == 2 && bo->size.serial);
	buf_reset(&b);
	buf_u32(&b, VMM_F_LIVE);
	buf_u16(&b, 9);
	c = cur_of(b.p, b.len);
	CHECK(ctl_parse_snapshot(&c, fds, 29, &s, &e) < 0);
	/* what a later version may mean is not done by halves */
	buf_reset(&b);
	buf_u32(&b, VMM_F_LIVE | VMM_F_RUN);
	buf_u16(&b, 0);
	c = cur_of(b.p, b.len);
	CHECK_INT(ctl_parse_snapshot(&c, fds, 2, &s, &e), -EBADMSG);
	CHECK_STR(e.msg, "snapshot: flags 0x1 are not known");
	buf_reset(&b);
	buf_u32(&b, VMM_F_RUN | 128);
	buf_u16(&b, 1);
	buf_u16(&b, 0);
	c = cur_of(b.p, b.len);
	CHECK_INT(ctl_parse_restore(&c, fds, 2, r, &e), -EBADMSG);
	buf_reset(&b);
	buf_u32(&b, VMM_F_LIVE | VMM_F_DIFF | VMM_F_RAM | VMM_F_CARRY);
	buf_u16(&b, 0);
	c = cur_of(b.p, b.len);
	CHECK_INT(ctl_parse_snapshot(&c, fds, 2, &s, &e), 0);
	/* two disks, of two layers and of none: three descriptors */
	buf_reset(&b);
	buf_u16(&b, 2);
	buf_u16(&b, 2);
	buf_u16(&b, 0);
	c = cur_of(b.p, b.len);
	CHECK_INT(ctl_parse_read_only(&c, fds, 3, &ro, &e), 0);
	CHECK(ro.ndisks == 2 && ro.disk[0].n == 2 && ro.disk[0].frozen[1] == fds[1] &&
		ro.disk[0].index == fds[2] && ro.disk[1].index == -1);
	for (size_t n = 0; n < 5; n++) {
		c = cur_of(b.p, b.len);
		CHECK(n == 3 || ctl_parse_read_only(&c, fds, n, &ro, &e) == -EBADMSG);
	}
	buf_reset(&b);
	buf_u16(&b, 1);
	buf_u16(&b, VMM_MAX_FROZEN + 1);
	c = cur_of(b.p, b.len);
	CHECK_INT(ctl_parse_read_only(&c, fds, 10, &ro, &e), -EBADMSG);
	buf_fini(&b);
	free(r);
	free(bo);
}

static int parse(struct config *c, const char *line, struct err *e)
{
	static char copy[256]; /* the strings stay pointed into */
	char *argv[32], *save = NULL;
	int n = 0;

	snprintf(copy, sizeof(copy), "%s", line);
	for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
		argv[n++] = w;
	return config_parse(c, n, argv, e);
}

static uint8_t sent[8];
static unsigned int nsent, nirqs;

static void serial_took(void *ctx, uint8_t b)
{
	sent[nsent++ % 8] = b;
}

static void serial_irq(void *ctx)
{
	nirqs++;
}

static void serial_port(void)
{
	struct serial s, t;
	struct buf b;
	struct cur c;

	serial_init(&s, NULL, serial_irq, serial_took);
	serial_write(&s, 0, 'a');
	CHECK(nsent == 1 && sent[0] == 'a' && nirqs == 0);
	serial_write(&s, 1, 2);
	CHECK_INT(nirqs, 1);
	CHECK_INT(serial_read(&s, 2) & 0xf, 2);
	CHECK_INT(serial_read(&s, 2) & 0xf, 1); /* told once */
	serial_write(&s, 0, 'b');
	CHECK_INT(nirqs, 2);
	/* the divisor is not data, loopback sends nothing */
	serial_write(&s, 3, 0x83);
	serial_write(&s, 0, 1);
	CHECK_INT(serial_read(&s, 0), 1);
	serial_write(&s, 3, 3);
	serial_write(&s, 4, 0x1b);
	serial_write(&s, 0, 'c');
	CHECK_INT(nsent, 2);
	CHECK_INT(serial_read(&s, 6), 0xb0);
	CHECK_INT(serial_read(&s, 5), 0x61); /* it came back in */
	CHECK_INT(serial_read(&s, 0), 'c');
	CHECK_INT(serial_read(&s, 5), 0x60);
	buf_init(&b, 64);
	serial_save(&s, &b);
	c = cur_of(b.p, b.len - 1);
	serial_init(&t, NULL, serial_irq, serial_took);
	CHECK(!serial_load(&t, &c));
	c = cur_of(b.p, b.len);
	CHECK(serial_load(&t, &c) && cur_done(&c));
	CHECK_INT(serial_read(&t, 3), 3);
	buf_fini(&b);
	serial_fini(&s);
	serial_fini(&t);
}

static void emptied(void *ctx)
{
	(*(unsigned int *)ctx)++;
}

static void serial_hears(void)
{
	unsigned int room = 0;
	uint8_t many[100];
	struct serial s;

	serial_init(&s, NULL, serial_irq, serial_took);
	s.room = emptied;
	s.room_ctx = &room;
	nirqs = 0;
	CHECK_INT(serial_input(&s, (const uint8_t *)"ab", 2), 2);
	CHECK_INT(nirqs, 0); /* nobody asked */
	CHECK_INT(serial_read(&s, 5), 0x61);
	serial_write(&s, 1, 1);
	CHECK_INT(nirqs, 1); /* it waits already */
	CHECK_INT(serial_read(&s, 2) & 0xf, 4);
	CHECK_INT(serial_read(&s, 2) & 0xf, 4); /* until it is read */
	CHECK_INT(serial_read(&s, 0), 'a');
	CHECK_INT(room, 0);
	CHECK_INT(serial_read(&s, 0), 'b');
	CHECK_INT(room, 1);
	CHECK_INT(serial_read(&s, 0), 0); /* nothing there */
	CHECK_INT(serial_read(&s, 2) & 0xf, 1);
	CHECK_INT(serial_read(&s, 5), 0x60);
	/* more than it holds; the driver's reset of the queue makes room */
	memset(many, 'x', sizeof(many));
	CHECK_INT(serial_input(&s, many, sizeof(many)), SERIAL_FIFO);
	CHECK_INT(serial_input(&s, many, 1), 0);
	serial_write(&s, 2, 3);
	CHECK_INT(room, 2);
	CHECK_INT(serial_read(&s, 5), 0x60);
	serial_fini(&s);
}

static void options(void)
{
	static const char nine[] = "x --disk=a --disk=a --disk=a --disk=a --disk=a --disk=a "
				   "--disk=a --disk=a --disk=a";
	static const char *const bad[] = {"x --memory 2X", "x --vcpus -1", "x --nonsense 1",
		"x --kernel", "x kernel 1", "x --vcpus 4294967296", "x --memory 99999999999G",
		nine};
	struct config c;
	struct err e;

	CHECK_INT(
		parse(&c, "x --memory 2G --vcpus=4 --kernel k --serial --disk=a --disk b,c,d", &e),
		0);
	CHECK_INT(c.memory_bytes, GIB(2));
	CHECK_INT(c.vcpus, 4);
	CHECK_INT(c.ndisks, 2);
	CHECK(c.local && c.serial);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		CHECK(parse(&c, bad[i], &e) < 0);
}

/* A file of options; what is said of it, or how long the command line is. */
static void option_file(const void *text, size_t n, const char *says, size_t cmdline)
{
	char path[64], where[128], line[80];
	int fd = memfd_create("conf", MFD_CLOEXEC);
	struct config c;
	struct err e = {0};

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	CHECK_INT(write_full(fd, text, n), 0);
	snprintf(line, sizeof(line), "x --config %s", path);
	CHECK_INT(parse(&c, line, &e), says ? -EINVAL : 0);
	if (says) {
		snprintf(where, sizeof(where), "%s:%s", path, says);
		CHECK_STR(e.msg, where);
	} else {
		CHECK_INT(strlen(c.cmdline), cmdline);
	}
	close(fd);
}

static void option_files(void)
{
	static char text[8192] = "vcpus = 2\ncmdline = ";
	size_t n = strlen(text);
	struct config c;
	struct err e;

	memset(text + n, 'c', sizeof(text) - n);
	option_file(text, 4000, NULL, 4000 - n);
	/* its end would be taken for an option of its own */
	option_file(text, sizeof(text), "2: longer than 4094 bytes", 0);
	option_file("vcpus = 2\0", 10, "1: a byte of value 0", 0);
	option_file(
		"vcpus = 2\n\nmemory = x\n", 22, "3: memory: \"x\" is not a size (256M, 2G)", 0);
	CHECK_INT(parse(&c, "x --config /proc", &e), -EISDIR);
}

static const struct test tests[] = {
	{"tree_names_what_is_there", tree_names_what_is_there},
	{"kernels", kernels},
	{"boot_parameters", boot_parameters},
	{"control_messages", control_messages},
	{"serial_port", serial_port},
	{"serial_hears", serial_hears},
	{"options", options},
	{"option_files", option_files},
};
TEST_MAIN(tests)
