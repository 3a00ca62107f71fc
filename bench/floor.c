/* SPDX-License-Identifier: Apache-2.0
 *
 * floor.c: the bench's floor: what KVM makes unavoidable to bring a snapshot back, and nothing
 * else: objects, memory mapped, registers set, run, and the guest's console, which shows that
 * the guest runs. No jail, no threads, no event descriptors, no other device, no checks of
 * checksums beyond what the readers do. One vCPU. It uses the monitor's own readers and register
 * lists, so that both arms restore the same.
 *
 *   bench-floor MARK STATE MEMORY...: writes the guest's console to stdout; after the second MARK
 * (a word of the guest's output) it prints `PHASE name microseconds` and ends.
 *   bench-floor --fork MIB FILE: prints `FORK microseconds`, see fork_floor().
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "lib/log.h"
#include "lib/snap.h"
#include "vmm/arch.h"
#include "vmm/console.h"

#define MARKS 2u

struct floor_vm {
	struct kvm kvm;
	struct mem mem;
	struct loop *loop;
	struct dev_env env;
	struct arch_cpu *cpu;
	struct virtio_dev *console;
	int vcpu_fd;
	struct kvm_run *run;
	struct snap snap;
	uint64_t last_ns;
	const char *mark;   /* a word without a prefix of itself inside */
	unsigned int at;    /* characters of it that were seen */
	unsigned int marks; /* the first may have been queued when the snapshot was taken */
	unsigned int nphases;
	struct {
		const char *name;
		uint64_t ns;
	} phase[8];
};

static void mark(struct floor_vm *v, const char *name)
{
	uint64_t now = mono_ns();

	v->phase[v->nphases].name = name;
	v->phase[v->nphases++].ns = now - v->last_ns;
	v->last_ns = now;
}

static void on_irq(void *ctx, unsigned int line)
{
	struct floor_vm *v = ctx;
	struct kvm_irq_level l = {.irq = line, .level = 1};

	kvm_ioctl(v->kvm.vm_fd, KVM_IRQ_LINE, &l);
	l.level = 0;
	kvm_ioctl(v->kvm.vm_fd, KVM_IRQ_LINE, &l);
}

static void on_console(void *ctx, const void *p, size_t n)
{
	struct floor_vm *v = ctx;
	const char *s = p;

	(void)!write(1, p, n);
	for (size_t i = 0; i < n; i++) {
		v->at = s[i] == v->mark[v->at] ? v->at + 1 : s[i] == v->mark[0];
		if (v->mark[v->at])
			continue;
		v->marks++;
		v->at = 0;
	}
}

static int make_objects(struct floor_vm *v, struct err *e)
{
	const struct snap_head *h = &v->snap.head;
	int rc = kvm_open(&v->kvm, -1, e);

	if (rc == 0)
		rc = mem_reserve(&v->mem, h->mem_bytes, e);
	if (rc == 0)
		rc = kvm_vm_create(&v->kvm, &v->mem, e);
	if (rc == 0)
		rc = arch_vm_init(&v->kvm, e);
	if (rc < 0)
		return rc;
	v->cpu = arch_cpu_create(&v->kvm, 1, h->cpu_template, e);
	if (!v->cpu)
		return -e->code;
	v->vcpu_fd = ioctl(v->kvm.vm_fd, KVM_CREATE_VCPU, 0ul);
	if (v->vcpu_fd < 0)
		return err_set(e, errno, "KVM_CREATE_VCPU");
	v->run = mmap(NULL, v->kvm.run_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, v->vcpu_fd, 0);
	if (v->run == MAP_FAILED)
		return err_set(e, errno, "map kvm_run");
	return arch_vcpu_init(&v->kvm, v->cpu, v->vcpu_fd, 0, e);
}

static int map_memory(struct floor_vm *v, char **files, unsigned int nfiles, struct err *e)
{
	int fd[SNAP_MAX_FILES];

	if (nfiles != v->snap.head.nfiles)
		return err_plain(
			e, EINVAL, "the snapshot needs %u memory files", v->snap.head.nfiles);
	for (unsigned int i = 0; i < nfiles; i++) {
		fd[i] = open(files[i], O_RDONLY | O_CLOEXEC);
		if (fd[i] < 0)
			return err_set(e, errno, "%s", files[i]);
	}
	return mem_map_files(&v->mem, v->snap.ext, v->snap.nextents, fd, e);
}

static int load_state(struct floor_vm *v, struct err *e)
{
	struct console_config cc = {.ctx = v, .out = on_console};
	struct cur c = snap_section(&v->snap, SNAP_S_CPU, 0);
	int rc = arch_cpu_load(&v->kvm, v->cpu, &v->vcpu_fd, 1, &c, e);

	c = snap_section(&v->snap, SNAP_S_VM, 0);
	if (rc == 0)
		rc = arch_vm_load(&v->kvm, &c, e);
	c = snap_section(&v->snap, SNAP_S_VCPU, 0);
	if (rc == 0)
		rc = arch_vcpu_load(&v->kvm, v->cpu, v->vcpu_fd, &c, e);
	if (rc < 0)
		return rc;
	v->console = console_create(&v->env, &cc, e);
	if (!v->console)
		return -e->code;
	c = snap_section(&v->snap, SNAP_S_DEVICE, SLOT_CONSOLE);
	rc = virtio_load(v->console, &c, e);
	if (rc == 0)
		virtio_resume(v->console, true);
	return rc;
}

static void on_mmio(struct floor_vm *v)
{
	typeof(v->run->mmio) *m = &v->run->mmio;
	uint64_t at = BOARD_VIRTIO_BASE + SLOT_CONSOLE * (uint64_t)PAGE_BYTES;

	if (m->phys_addr < at || m->phys_addr >= at + PAGE_BYTES) {
		if (!m->is_write)
			memset(m->data, 0, sizeof(m->data));
		return;
	}
	if (m->is_write)
		virtio_mmio_write(v->console, (uint32_t)(m->phys_addr - at), m->data, m->len);
	else
		virtio_mmio_read(v->console, (uint32_t)(m->phys_addr - at), m->data, m->len);
	loop_turn(v->loop, 0); /* a notification is an exit here: the device runs at once */
}

static int run(struct floor_vm *v, struct err *e)
{
	loop_turn(v->loop, 0);
	while (v->marks < MARKS) {
		if (ioctl(v->vcpu_fd, KVM_RUN, 0) < 0 && errno != EINTR)
			return err_set(e, errno, "KVM_RUN");
		switch (v->run->exit_reason) {
		case KVM_EXIT_MMIO:
			on_mmio(v);
			break;
		case KVM_EXIT_IO:
			if (v->run->io.direction == KVM_EXIT_IO_IN)
				memset((char *)v->run + v->run->io.data_offset, 0,
					(size_t)v->run->io.size * v->run->io.count);
			break;
		case KVM_EXIT_INTR:
			break;
		default:
			return err_plain(
				e, EIO, "the guest left with reason %u", v->run->exit_reason);
		}
	}
	return 0;
}

/* What a live snapshot cannot avoid: fork(2) of a process whose mapping of a file has `mib` MiB of
 * private pages, each of 4 KiB. */
static int fork_floor(uint64_t mib, const char *file)
{
	uint64_t bytes = mib << 20, t0, took;
	int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	uint8_t *p;
	pid_t pid;

	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
		return 1;
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
	if (p == MAP_FAILED)
		return 1;
	madvise(p, bytes, MADV_NOHUGEPAGE);
	for (uint64_t at = 0; at < bytes; at += PAGE_BYTES)
		p[at] = 1;
	t0 = mono_ns();
	pid = fork();
	if (pid == 0)
		_exit(0);
	took = mono_ns() - t0;
	if (pid < 0)
		return 1;
	waitpid(pid, NULL, 0);
	printf("FORK %llu\n", (unsigned long long)took / 1000);
	return 0;
}

int main(int argc, char **argv)
{
	static struct floor_vm v;
	struct err e = {0};
	void *state = NULL;
	size_t n = 0;
	int fd, rc;

	if (argc == 4 && strcmp(argv[1], "--fork") == 0)
		return fork_floor(strtoull(argv[2], NULL, 10), argv[3]);
	if (argc < 4 || !argv[1][0] || !argv[1][1]) {
		fprintf(stderr, "usage: bench-floor MARK STATE MEMORY...\n"
				"       bench-floor --fork MIB FILE\n");
		return 2;
	}
	log_level = LOG_ERROR;
	v.mark = argv[1];
	v.last_ns = mono_ns();
	v.loop = loop_create();
	v.env = (struct dev_env){.mem = &v.mem, .loop = v.loop, .ctx = &v, .irq = on_irq};
	fd = open(argv[2], O_RDONLY | O_CLOEXEC);
	rc = fd < 0 ? err_set(&e, errno, "%s", argv[2]) : snap_read_file(fd, &state, &n, &e);
	if (rc == 0)
		rc = snap_parse(&v.snap, state, n, &e);
	if (rc == 0 && v.snap.head.vcpus != 1)
		rc = err_plain(&e, EOPNOTSUPP, "the snapshot has %u vCPUs, the floor one",
			v.snap.head.vcpus);
	mark(&v, "tables");
	if (rc == 0)
		rc = make_objects(&v, &e);
	mark(&v, "objects");
	if (rc == 0)
		rc = map_memory(&v, argv + 3, (unsigned int)argc - 3, &e);
	mark(&v, "map");
	if (rc == 0)
		rc = load_state(&v, &e);
	mark(&v, "state");
	if (rc == 0)
		rc = run(&v, &e);
	mark(&v, "run");
	if (rc < 0) {
		fprintf(stderr, "bench-floor: %s\n", e.msg);
		return 1;
	}
	for (unsigned int i = 0; i < v.nphases; i++)
		printf("\nPHASE %s %llu\n", v.phase[i].name,
			(unsigned long long)v.phase[i].ns / 1000);
	printf("PHASE end\n");
	fflush(stdout);
	_exit(0);
}
