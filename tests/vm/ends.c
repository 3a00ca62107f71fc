/* SPDX-License-Identifier: Apache-2.0
 *
 * ends.c: every way a guest or its host can end a VM: each must leave its reason, in the event and
 * in the last words. A program of vm-drive.
 */
#include <dirent.h>
#include <elf.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "lib/log.h"
#include "tests/vm/kit.h"

static void force(struct vmctl *v)
{
	struct buf b;

	buf_init(&b, 16);
	buf_u32(&b, 1);
	MUST(vmctl_call(v, VMM_SHUTDOWN, &b, NULL, 0, NULL) == 0);
	buf_fini(&b);
}

static void one_end(const char *name, enum tg_end how, uint32_t why)
{
	struct tg_msg m = {.cmd = TG_END, .a = how};
	struct vmm_last_words w = {0};
	struct vmctl v;

	boot(&v, MIB(128), 1);
	vmctl_guest(&v, &m);
	if (how == TG_HANG)
		force(&v);
	MUST(vmctl_wait_exit(&v, KIT_LIMIT));
	MUST(pread(v.words, &w, sizeof(w), 0) == sizeof(w) && w.magic == LAST_WORDS_MAGIC);
	printf("%s %-12s reason %u \"%s\"%s\n",
		v.exit_why == why && w.reason == why ? "ok" : "FAILED", name, v.exit_why,
		v.exit_text,
		strstr(w.console, "panic") ? ", its last words on the console kept" : "");
	MUST(v.exit_why == why && w.reason == why);
	MUST(vmctl_gone(&v, KIT_LIMIT));
	vmctl_kill(&v);
}

/* What its owner may ask of a sealed monitor at any time; the guest goes on. */
static void looked_at(void)
{
	static const struct {
		uint32_t what;
		uint64_t arg;
		const char *answer;
	} rows[] = {{VMM_DBG_LOG_LEVEL, LOG_DEBUG, ""}, {VMM_DBG_REGS, 0, "rip"},
		{VMM_DBG_CONSOLE, 0, ""}, {VMM_DBG_NMI, 0, ""}};
	struct buf in, out;
	struct vmctl v;

	boot(&v, KIT_MEM, 1);
	buf_init(&out, VMM_MSG_MAX);
	MUST(vmctl_call(&v, VMM_STATS, NULL, NULL, 0, &out) == 0);
	MUST(memmem(out.p, out.len, "rss_max_bytes", 13));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		buf_init(&in, 16);
		buf_u32(&in, rows[i].what);
		buf_u64(&in, rows[i].arg);
		buf_reset(&out);
		MUST(vmctl_call(&v, VMM_DEBUG, &in, NULL, 0, &out) == 0);
		MUST(memmem(out.p, out.len, rows[i].answer, strlen(rows[i].answer)));
		buf_fini(&in);
	}
	buf_fini(&out);
	check_guest(&v, 0);
	printf("ok counters, registers, console and an NMI by request, and it goes on\n");
	vmctl_kill(&v);
}

/* ---- guests of a few bytes in ring 0: what no kernel of ours does */

#define RAW_GPA MIB(16)

static int raw_kernel(const void *code, size_t n)
{
	struct {
		Elf64_Ehdr h;
		Elf64_Phdr p;
		uint8_t code[256];
	} f = {.h = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
		       .e_type = ET_EXEC,
		       .e_machine = EM_X86_64,
		       .e_entry = RAW_GPA,
		       .e_phoff = sizeof(Elf64_Ehdr),
		       .e_phentsize = sizeof(Elf64_Phdr),
		       .e_phnum = 1},
		.p = {.p_type = PT_LOAD,
			.p_offset = sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr),
			.p_paddr = RAW_GPA,
			.p_filesz = 256,
			.p_memsz = 256}};
	int fd = memfd_create("raw", MFD_CLOEXEC);

	MUST(fd >= 0 && n <= sizeof(f.code));
	memcpy(f.code, code, n);
	MUST(write_full(fd, &f, sizeof(f)) == 0);
	return fd;
}

static const struct raw_end {
	const char *name;
	uint8_t code[16];
	uint32_t why;
	bool forced; /* it would run for ever */
	const char *says;
} raw_ends[] = {
	/* an empty IDT is what it is started with: int3. AMD's KVM has reset the vCPU by the time
	 * it says so: its rip is no help */
	{"triple fault", {0xcc}, VMM_X_TRIPLE_FAULT, false, "triple fault"},
	/* mov $0x30000000,%eax; jmp *%rax: an instruction where there is no memory */
	{"no code there", {0xb8, 0, 0, 0, 0x30, 0xff, 0xe0}, VMM_X_KVM_ERROR, false,
		"KVM internal error 1 at rip 0x30000000"},
	/* mov $0xfe,%al; out %al,$0x64 */
	{"raw reset", {0xb0, 0xfe, 0xe6, 0x64}, VMM_X_RESET, false, "asked for a reset"},
	/* cli; hlt: asleep for ever, nothing can wake it */
	{"halted", {0xfa, 0xf4, 0xeb, 0xfd}, VMM_X_FORCED, true, "by request"},
	/* cli; jmp . */
	{"spinning", {0xfa, 0xeb, 0xfe}, VMM_X_FORCED, true, "by request"},
};

static void raw_end(const struct raw_end *r, uint32_t vcpus)
{
	_cleanup_close_ int kernel = raw_kernel(r->code, sizeof(r->code));
	struct vmm_last_words w = {0};
	struct vmctl v;

	vmctl_start(&v);
	MUST(vmctl_prepare(&v, MIB(128), vcpus) == 0);
	MUST(vmctl_boot(&v, kernel, kit_initrd, "") == 0);
	if (r->forced)
		force(&v);
	MUST(vmctl_wait_exit(&v, KIT_LIMIT));
	MUST(pread(v.words, &w, sizeof(w), 0) == sizeof(w) && w.magic == LAST_WORDS_MAGIC);
	printf("%s %s, %u vCPUs: reason %u \"%s\"\n", v.exit_why == r->why ? "ok" : "FAILED",
		r->name, vcpus, v.exit_why, v.exit_text);
	MUST(v.exit_why == r->why && w.reason == r->why);
	MUST(strstr(v.exit_text, r->says) && strstr(w.text, r->says));
	MUST(vmctl_gone(&v, KIT_LIMIT));
	vmctl_kill(&v);
}

#define RNG_MMIO 0xd0001000u /* vmm/device.h: slot 1 */

static const struct {
	uint32_t off, value;
} bad_queue[] = {{0x70, 3}, {0x24, 1}, {0x20, 1}, {0x70, 11}, /* features: version 1 only */
	{0x38, 16}, {0x80, 0x200000}, {0x90, 0x201000}, {0xa0, 0x202000}, {0x44, 1}, {0x70, 15},
	{0x50, 0}};

/* A driver whose available ring runs ahead of itself, in ring 0 and without a kernel: the device
 * asks for a reset, by event; the guest and the other devices stay. */
static void needs_reset(void)
{
	static const uint8_t map[] = {/* the fourth GiB: mov $0xc0000083,%eax; mov %rax,0xa018 */
		0xb8, 0x83, 0, 0, 0xc0, 0x48, 0x89, 0x04, 0x25, 0x18, 0xa0, 0, 0,
		/* movw $0x8000,0x201002: the index of the available ring */
		0x66, 0xc7, 0x04, 0x25, 0x02, 0x10, 0x20, 0, 0, 0x80,
		/* mov $RNG_MMIO,%ebx */
		0xbb, 0, 0x10, 0, 0xd0};
	static const uint8_t halt[] = {0xfa, 0xf4, 0xeb, 0xfd};
	uint8_t code[256];
	size_t n = sizeof(map);
	struct vmctl v;
	int kernel;

	memcpy(code, map, n);
	for (size_t i = 0; i < ARRAY_LEN(bad_queue); i++, n += 10) {
		code[n] = 0xc7; /* movl $value,off(%rbx) */
		code[n + 1] = 0x83;
		memcpy(code + n + 2, &bad_queue[i].off, 4);
		memcpy(code + n + 6, &bad_queue[i].value, 4);
	}
	memcpy(code + n, halt, sizeof(halt));
	kernel = raw_kernel(code, n + sizeof(halt));
	vmctl_start(&v);
	MUST(vmctl_prepare(&v, MIB(128), 1) == 0);
	MUST(vmctl_boot(&v, kernel, kit_initrd, "") == 0);
	MUST(vmctl_wait_reset(&v, KIT_LIMIT));
	printf("ok a device needs a reset: \"%s\"\n", v.reset_text);
	MUST(strstr(v.reset_text, "rng: "));
	force(&v);
	MUST(vmctl_wait_exit(&v, KIT_LIMIT) && v.exit_why == VMM_X_FORCED);
	close(kernel);
	vmctl_kill(&v);
}

static void truncated(void)
{
	struct vmm_last_words w = {0};
	struct tg_msg m = {.cmd = TG_CHECK};
	struct stored s;
	struct vmctl v;

	boot(&v, KIT_MEM, 1);
	ask(&v, TG_FILL, 0, 4000, 1);
	s = snapshot(&v, NULL, VMM_F_EXIT, NULL);
	vmctl_kill(&v);
	blank(&v, KIT_MEM, 1);
	restore(&v, &s, -1, 0, false);
	MUST(ftruncate(s.mem[0], 8192) == 0);
	vmctl_guest(&v, &m);
	MUST(vmctl_wait_exit(&v, KIT_LIMIT) || pread(v.words, &w, sizeof(w), 0) == sizeof(w));
	MUST(pread(v.words, &w, sizeof(w), 0) == sizeof(w) && w.magic == LAST_WORDS_MAGIC &&
		w.reason == VMM_X_HOST_ERROR);
	printf("ok shortened memory file: \"%s\"\n", w.text);
	vmctl_kill(&v);
	blank(&v, KIT_MEM, 1);
	MUST(vmctl_restore(&v, s.state, s.mem, s.n, -1, VMM_F_RUN, NULL) == -EBADMSG);
	printf("ok it is refused the next time\n");
	vmctl_kill(&v);
}

/* A snapshot that finds no room says so, and its source goes on; the next one, with room, is whole.
 */
static void full_disk(void)
{
	const uint32_t how[] = {VMM_F_LIVE, VMM_F_EXIT};
	struct stored s;
	char small[300];
	struct vmctl v;

	snprintf(small, sizeof(small), "%s/small", kit_dir);
	mkdir(small, 0700);
	MUST(mount("none", small, "tmpfs", 0, "size=4m") == 0);
	boot(&v, KIT_MEM, 1);
	ask(&v, TG_FILL, 0, 4000, 1);
	for (size_t i = 0; i < ARRAY_LEN(how); i++) {
		int mem = make_file("small/mem", (int)i);

		MUST(vmctl_snapshot(&v, make_file("full", (int)i), mem, how[i], NULL) == 0);
		MUST(vmctl_wait_snapshot(&v, KIT_LIMIT) && v.snap_status == -ENOSPC);
		if (how[i] == VMM_F_EXIT)
			MUST(vmctl_call(&v, VMM_CONTINUE, NULL, NULL, 0, NULL) == 0);
		check_guest(&v, 4000);
		printf("ok no room for a snapshot: \"%s\", and it goes on\n", v.snap_text);
		close(mem);
	}
	MUST(umount2(small, MNT_DETACH) == 0);
	s = snapshot(&v, NULL, VMM_F_EXIT, NULL);
	vmctl_kill(&v);
	blank(&v, KIT_MEM, 1);
	restore(&v, &s, -1, 0, false);
	MUST(vmctl_wait_ready(&v, KIT_LIMIT));
	check_guest(&v, 4000);
	vmctl_kill(&v);
}

/* Descriptors of a process that are of a kind; -1: it is gone. */
static int count_fds(pid_t pid, const char *kind)
{
	char path[64], link[300];
	struct dirent *d;
	DIR *dir;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	if (!dir)
		return -1;
	while ((d = readdir(dir))) {
		ssize_t k = readlinkat(dirfd(dir), d->d_name, link, sizeof(link) - 1);

		link[MAX(k, 0)] = 0;
		n += strstr(link, kind) != NULL;
	}
	closedir(dir);
	return n;
}

static pid_t child_of(pid_t pid)
{
	char path[64];
	int child = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
	f = fopen(path, "re");
	if (f && fscanf(f, "%d", &child) != 1)
		child = 0;
	if (f)
		fclose(f);
	return child;
}

/* The process that writes a live snapshot holds files, and nothing that others wait at. It is
 * stopped so that it can be looked at. */
static void writer_holds_files_only(void)
{
	uint64_t end = mono_ns() + KIT_LIMIT * 1000000ull;
	int sockets = -1, kvm = -1, state = make_file("state", 900), mem = make_file("mem", 900);
	struct vmctl v;
	pid_t pid = 0;

	boot(&v, KIT_MEM, 1);
	ask(&v, TG_FILL, 0, TG_ARENA_PAGES, 1);
	MUST(count_fds(v.pid, "socket:") > 0);
	MUST(vmctl_snapshot(&v, state, mem, VMM_F_LIVE, NULL) == 0);
	/* 64 MiB take it longer than the few calls after the fork */
	while (mono_ns() < end && (pid = child_of(v.pid))) {
		sockets = count_fds(pid, "socket:");
		kvm = count_fds(pid, "kvm");
		if (sockets == 0 && kvm == 0)
			break;
	}
	MUST(pid && sockets == 0 && kvm == 0);
	MUST(vmctl_wait_snapshot(&v, KIT_LIMIT) && v.snap_status == 0);
	printf("ok the writer of a live snapshot holds no socket and nothing of KVM\n");
	vmctl_kill(&v);
}

/* The base of a disk is shortened under a running guest: an I/O error in there, not zeros. */
static void short_base(void)
{
	struct vmctl_disk d = {.base = make_file("base", 0), .index = -1};
	struct tg_msg m;
	struct vmctl v;

	MUST(ftruncate(d.base, DISK_BYTES) == 0);
	new_layer(&d);
	boot_on(&v, &d, KIT_MEM, 1);
	MUST(ask(&v, TG_DISK_FILL, 0, 1, 1).a == 0);
	MUST(ftruncate(d.base, 4096) == 0);
	m = ask(&v, TG_DISK_CHECK, 4, 2, 1);
	MUST(m.b == 2);
	check_disk(&v, 0, 1, 1);
	check_guest(&v, 0);
	printf("ok a base that was shortened: I/O errors in the guest, which goes on\n");
	vmctl_kill(&v);
}

/* The host has no room for a layer: the guest's writes wait, and go on once there is room again. The guest sees no error. */
static void full_layer(void)
{
	struct vmctl_disk d = {.base = make_file("base", 1), .index = -1};
	char small[300];
	struct vmctl v;
	pid_t helper;

	snprintf(small, sizeof(small), "%s/small", kit_dir);
	mkdir(small, 0700);
	MUST(mount("none", small, "tmpfs", 0, "size=4m") == 0);
	MUST(ftruncate(d.base, DISK_BYTES) == 0);
	new_layer_in(&d, "small/");
	boot_on(&v, &d, KIT_MEM, 1);
	MUST(ask(&v, TG_DISK_FILL, 0, 2, 1).a == 0);
	helper = fork();
	if (helper == 0) {
		sleep(3); /* most writes are there by then, and wait */
		_exit(mount("none", small, "tmpfs", MS_REMOUNT, "size=32m") ? 1 : 0);
	}
	MUST(ask(&v, TG_DISK_FILL, 2, 6, 2).a == 0);
	MUST(waitpid(helper, NULL, 0) == helper);
	check_guest(&v, 0);
	check_disk(&v, 0, 2, 1);
	check_disk(&v, 2, 6, 2);
	printf("ok no room for a layer: the guest's writes wait, and go on with room\n");
	vmctl_kill(&v);
	close(d.base);
	close(d.data);
	close(d.bitmap);
	MUST(umount2(small, MNT_DETACH) == 0);
}

void ends(void)
{
	looked_at();
	one_end("power-off", TG_POWEROFF, VMM_X_POWEROFF);
	one_end("reset", TG_RESET, VMM_X_RESET);
	one_end("panic", TG_PANIC, VMM_X_PANIC);
	one_end("init gone", TG_EXIT, VMM_X_PANIC);
	one_end("forced", TG_HANG, VMM_X_FORCED);
	for (size_t i = 0; i < ARRAY_LEN(raw_ends); i++)
		raw_end(&raw_ends[i], i % 2 + 1);
	needs_reset();
	truncated();
	full_disk();
	short_base();
	full_layer();
	writer_holds_files_only();
}
