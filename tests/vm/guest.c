/* SPDX-License-Identifier: Apache-2.0
 *
 * guest.c: PID 1 of a test guest: memory whose contents are known, a counter in a thread of its
 * own, writers on a disk, streams, random numbers, and ends of all kinds. Tells the host that it is
 * ready as the agent does; answers on vsock, each connection in a thread.
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
static _Atomic uint64_t half[2], differed; /* or: time went back */

static void fill(uint64_t from, uint64_t n, uint32_t seed)
{
	for (uint64_t p = from; p < from + n && p < TG_ARENA_PAGES; p++) {
		for (unsigned int i = 0; i < 512; i++)
			arena[p * 512 + i] = tg_word(p, seed, i);
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
			bad |= arena[p * 512 + i] != tg_word(p, seeds[p], i);
		m->a += bad;
		m->b++;
	}
}

/* ---- memory that is used for a while */

static uint64_t *used;
static uint64_t used_pages;

static void use(uint64_t mib)
{
	used_pages = mib * 256;
	used = mmap(NULL, used_pages * PAGE_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (uint64_t p = 0; p < used_pages; p++)
		for (unsigned int i = 0; i < 512; i += 64)
			used[p * 512 + i] = tg_word(p, 77, i);
}

static void drop(struct tg_msg *m)
{
	m->a = 0;
	m->b = used_pages;
	for (uint64_t p = 0; p < used_pages; p++) {
		bool bad = false;

		for (unsigned int i = 0; i < 512; i++)
			bad |= used[p * 512 + i] != (i % 64 ? 0 : tg_word(p, 77, i));
		m->a += bad;
	}
	munmap(used, used_pages * PAGE_BYTES);
	used_pages = 0;
}

/* Two halves that are only ever apart by the one store between them; in vector registers as well
 * where the compiler uses them. */
static void *counting(void *arg)
{
	uint64_t last = 0;

	for (uint64_t n = 1;; n++) {
		half[0] = n;
		if (half[1] != n - 1)
			differed++;
		half[1] = n;
		if (n % 1024 == 0) {
			uint64_t now = mono_ns();

			if (now < last)
				differed++;
			last = now;
			usleep(10000);
		}
	}
	return NULL;
}

/* /dev/vda, past the page cache, one MiB at a time; every 512 bytes say where they are and of which
 * generation */
static void disk(struct tg_msg *m, bool wr)
{
	static uint64_t buf[MIB(1) / 8] __attribute__((aligned(4096)));
	_cleanup_close_ int fd = open("/dev/vda", O_RDWR | O_DIRECT | O_CLOEXEC);
	uint64_t bad = fd < 0, failed = 0;

	for (uint64_t i = m->a; fd >= 0 && i < m->a + m->b; i++) {
		bool ok = true;

		for (unsigned int k = 0; wr && k < ARRAY_LEN(buf); k++)
			buf[k] = tg_word(i, m->seed, k);
		ok &= (wr ? pwrite_full(fd, buf, sizeof(buf), i << 20)
			  : pread_full(fd, buf, sizeof(buf), i << 20)) == 0;
		failed += !ok;
		for (unsigned int k = 0; !wr && k < ARRAY_LEN(buf); k++)
			ok &= buf[k] == tg_word(i, m->seed, k);
		bad += !ok;
	}
	if (fd >= 0 && wr)
		bad += fsync(fd) != 0;
	m->a = bad;
	m->b = failed;
}

/* ---- writers: what a snapshot is taken in the middle of */

static struct writer {
	pthread_t thread;
	unsigned int id;
	bool on;
	uint64_t quota;
	uint32_t gen[TG_BLOCKS]; /* what each block holds, as far as this memory knows */
} writers[TG_WRITERS];
static _Atomic uint64_t writes, wrong, writing;
static _Atomic uint32_t at_reset; /* writes made when the first stream was reset by a restore */

static uint64_t block_number(const struct writer *w, uint64_t i)
{
	return w->id * TG_BLOCKS + i;
}

/* number of words that are not what they should be; sum: all of them, in order */
static uint64_t read_block(const struct writer *w, int fd, uint64_t *buf, uint64_t i, uint64_t *sum)
{
	uint64_t n = block_number(w, i), bad = 0;

	if (pread_full(fd, buf, TG_BLOCK_BYTES, n * TG_BLOCK_BYTES) < 0)
		return TG_BLOCK_BYTES / 8;
	for (unsigned int k = 0; k < TG_BLOCK_BYTES / 8; k++) {
		bad += buf[k] != tg_word(n * 16, w->gen[i], k);
		if (sum)
			*sum = (*sum ^ buf[k]) * 0x100000001b3ull;
	}
	return bad;
}

static void *writer_main(void *arg)
{
	struct writer *w = arg;
	uint64_t *buf = aligned_alloc(4096, TG_BLOCK_BYTES);
	_cleanup_close_ int fd = open("/dev/vda", O_RDWR | O_DIRECT | O_CLOEXEC);

	for (uint64_t n = 0; n < w->quota; n++) {
		uint64_t i = n % TG_BLOCKS;

		w->gen[i]++;
		for (unsigned int k = 0; k < TG_BLOCK_BYTES / 8; k++)
			buf[k] = tg_word(block_number(w, i) * 16, w->gen[i], k);
		if (pwrite_full(fd, buf, TG_BLOCK_BYTES, block_number(w, i) * TG_BLOCK_BYTES) < 0 ||
			(n % 16 == 15 && fsync(fd) < 0))
			wrong++;
		/* half a turn back: maybe of before the snapshot */
		if (n >= TG_BLOCKS / 2 && n % 4 == 0)
			wrong += read_block(w, fd, buf, (i + TG_BLOCKS / 2) % TG_BLOCKS, NULL);
		writes++;
	}
	free(buf);
	writing--;
	return NULL;
}

static void busy(const struct tg_msg *m)
{
	for (unsigned int i = 0; i < m->a && i < TG_WRITERS; i++) {
		writers[i] = (struct writer){.id = i, .on = true, .quota = m->b};
		writing++;
		pthread_create(&writers[i].thread, NULL, writer_main, &writers[i]);
	}
}

static void busy_sum(struct tg_msg *m)
{
	uint64_t *buf = aligned_alloc(4096, TG_BLOCK_BYTES);
	_cleanup_close_ int fd = open("/dev/vda", O_RDWR | O_DIRECT | O_CLOEXEC);
	uint64_t sum = 0;

	for (unsigned int i = 0; i < TG_WRITERS; i++) {
		struct writer *w = &writers[i];

		if (!w->on)
			continue;
		pthread_join(w->thread, NULL);
		w->on = false;
		wrong += fsync(fd) != 0;
		for (uint64_t k = 0; k < TG_BLOCKS; k++)
			wrong += w->gen[k] ? read_block(w, fd, buf, k, &sum) : 0;
	}
	free(buf);
	m->a = sum;
	m->b = wrong;
	m->c = writes;
}

/* ---- streams: each word that comes must be the next one, and goes back */

static _Atomic uint64_t streams, stream_wrong, stream_bytes;

static void stream(int s, uint32_t seed)
{
	uint64_t w, n = 0;
	uint64_t buf[512];
	int rc;

	streams++;
	while ((rc = read_full(s, buf, sizeof(buf))) == 0) {
		for (unsigned int i = 0; i < ARRAY_LEN(buf); i++) {
			w = tg_word(n, seed, i);
			stream_wrong += buf[i] != w;
		}
		n++;
		if (write_full(s, buf, sizeof(buf)) < 0)
			break;
		stream_bytes += sizeof(buf);
	}
	if (rc != -EPIPE && !at_reset)
		at_reset = (uint32_t)writes;
	streams--;
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
		case TG_BUSY:
			busy(&m);
			break;
		case TG_BUSY_LOOK:
			m.a = writes;
			m.b = wrong;
			m.c = writing;
			m.seed = at_reset;
			break;
		case TG_BUSY_SUM:
			busy_sum(&m);
			break;
		case TG_STREAM:
			stream(s, m.seed);
			return;
		case TG_STREAMS:
			m.a = streams;
			m.b = stream_wrong;
			m.c = stream_bytes;
			break;
		case TG_USE:
			use(m.a);
			break;
		case TG_DROP:
			drop(&m);
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

static void *conn_main(void *arg)
{
	int s = (int)(intptr_t)arg;

	serve(s);
	close(s);
	return NULL;
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
		if (pthread_create(&t, NULL, conn_main, (void *)(intptr_t)s) == 0)
			pthread_detach(t);
		else
			close(s);
	}
}
