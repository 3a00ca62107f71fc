/* SPDX-License-Identifier: Apache-2.0
 *
 * guest.c: PID 1 of a test guest: memory whose contents are known, a counter in a thread of its
 * own, random numbers, and ends of all kinds. Tells the host that it is ready as the agent does;
 * answers on vsock.
 */
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include "lib/proto_vmm.h"
#include "tests/vm/proto.h"

static uint64_t *arena;
static uint8_t seeds[TG_ARENA_PAGES];
static _Atomic uint64_t half[2], differed;

static uint64_t word(uint64_t page, uint32_t seed, unsigned int i)
{
	uint64_t x = (page * 512 + i) * 0x9e3779b97f4a7c15ull + seed * 0xc2b2ae3d27d4eb4full;

	x ^= x >> 29;
	return x * 0xbf58476d1ce4e5b9ull ^ (x >> 32);
}

static void fill(uint64_t from, uint64_t n, uint32_t seed)
{
	for (uint64_t p = from; p < from + n && p < TG_ARENA_PAGES; p++) {
		for (unsigned int i = 0; i < 512; i++)
			arena[p * 512 + i] = word(p, seed, i);
		seeds[p] = (uint8_t)seed;
	}
}

static void check(struct tg_msg *m)
{
	m->a = m->b = 0;
	for (uint64_t p = 0; p < TG_ARENA_PAGES; p++) {
		bool bad = false;

		if (!seeds[p])
			continue;
		for (unsigned int i = 0; i < 512; i++)
			bad |= arena[p * 512 + i] != word(p, seeds[p], i);
		m->a += bad;
		m->b++;
	}
}

/* Two halves that are only ever apart by the one store between them; in vector registers as well
 * where the compiler uses them. */
static void *counting(void *arg)
{
	for (uint64_t n = 1;; n++) {
		half[0] = n;
		if (half[1] != n - 1)
			differed++;
		half[1] = n;
		if (n % 1024 == 0)
			usleep(10000);
	}
	return NULL;
}

/* /dev/vda, past the page cache, one MiB at a time; every 512 bytes say where they are and of which
 * generation */
static void disk(struct tg_msg *m, bool wr)
{
	static uint64_t buf[MIB(1) / 8] __attribute__((aligned(4096)));
	_cleanup_close_ int fd = open("/dev/vda", O_RDWR | O_DIRECT | O_CLOEXEC);
	uint64_t bad = fd < 0;

	for (uint64_t i = m->a; fd >= 0 && i < m->a + m->b; i++) {
		bool ok = true;

		for (unsigned int k = 0; wr && k < ARRAY_LEN(buf); k++)
			buf[k] = word(i, m->seed, k);
		ok &= (wr ? pwrite_full(fd, buf, sizeof(buf), i << 20)
			  : pread_full(fd, buf, sizeof(buf), i << 20)) == 0;
		for (unsigned int k = 0; !wr && k < ARRAY_LEN(buf); k++)
			ok &= buf[k] == word(i, m->seed, k);
		bad += !ok;
	}
	if (fd >= 0 && wr)
		bad += fsync(fd) != 0;
	m->a = bad;
}

static int vsock(void)
{
	return socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static void *announce(void *arg)
{
	struct sockaddr_vm a = {
		.svm_family = AF_VSOCK, .svm_cid = VSOCK_HOST_CID, .svm_port = VSOCK_PORT_READY};
	char c;

	for (;;) {
		int s = vsock();

		/* the transport's reset after a restore ends the read: announced again */
		if (connect(s, (struct sockaddr *)&a, sizeof(a)) == 0)
			(void)!read(s, &c, 1);
		close(s);
	}
	return NULL;
}

static void put(const char *path, const char *s)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	(void)!write(fd, s, strlen(s));
	close(fd);
}

static void end(uint64_t how)
{
	switch (how) {
	case TG_POWEROFF:
		reboot(RB_POWER_OFF);
		break;
	case TG_RESET:
		reboot(RB_AUTOBOOT);
		break;
	case TG_PANIC:
		put("/proc/sys/kernel/sysrq", "1");
		put("/proc/sysrq-trigger", "c");
		break;
	case TG_EXIT:
		_exit(3); /* PID 1 gone: the kernel panics */
	default:
		for (;;)
			pause();
	}
}

static void serve(int s)
{
	struct tg_msg m;

	while (read_full(s, &m, sizeof(m)) == 0) {
		switch (m.cmd) {
		case TG_FILL:
			fill(m.a, m.b, m.seed);
			break;
		case TG_CHECK:
			check(&m);
			break;
		case TG_COUNT:
			m.a = half[0];
			m.b = differed;
			m.c = mono_ns();
			break;
		case TG_RANDOM:
			random_bytes(&m.a, 16);
			break;
		case TG_DISK_FILL:
		case TG_DISK_CHECK:
			disk(&m, m.cmd == TG_DISK_FILL);
			break;
		case TG_CPUS:
			m.a = (uint64_t)get_nprocs();
			break;
		case TG_END:
			write_full(s, &m, sizeof(m));
			end(m.a);
			break;
		default:
			m.a = UINT64_MAX;
		}
		if (write_full(s, &m, sizeof(m)) < 0)
			return;
	}
}

int main(void)
{
	struct sockaddr_vm a = {
		.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = TG_PORT};
	pthread_t t;
	int l;

	mount("proc", "/proc", "proc", 0, NULL);
	mount("sys", "/sys", "sysfs", 0, NULL);
	mount("dev", "/dev", "devtmpfs", 0, NULL);
	arena = mmap(NULL, TG_ARENA_PAGES * (size_t)PAGE_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	l = vsock();
	if (bind(l, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(l, 16) < 0)
		printf("GUEST no vsock: %m\n");
	pthread_create(&t, NULL, counting, NULL);
	pthread_create(&t, NULL, announce, NULL);
	for (;;) {
		int s = accept(l, NULL, NULL);

		if (s < 0)
			continue;
		serve(s);
		close(s);
	}
}
