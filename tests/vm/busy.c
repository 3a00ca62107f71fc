/* SPDX-License-Identifier: Apache-2.0
 *
 * busy.c: a guest that writes to its disk, echoes streams and counts is snapshotted in the middle
 * of it all, live, and restored many times at once. Each restore, and the source, must go on: the
 * same writes end in the same bytes, the streams of before are gone and new ones work, the counter
 * and the clock go on from where they stood. A program of vm-drive.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/vm/kit.h"

#define ARENA   1000u /* pages */
#define WRITERS 2u
#define QUOTA   200u /* writes each */
#define STREAMS 4u
#define CHUNK   4096u

/* One stream that echoes until it is told to stop or fails. */
struct pump {
	pthread_t thread;
	int fd;
	uint32_t seed;
	_Atomic bool stop, bad, ended;
	_Atomic uint64_t chunks;
};

static void *pump_main(void *arg)
{
	struct pump *p = arg;
	uint64_t out[CHUNK / 8], in[CHUNK / 8];

	while (!p->stop) {
		for (unsigned int i = 0; i < CHUNK / 8; i++)
			out[i] = tg_word(p->chunks, p->seed, i);
		if (write_full(p->fd, out, CHUNK) < 0 || read_full(p->fd, in, CHUNK) < 0)
			break;
		if (memcmp(in, out, CHUNK) != 0)
			p->bad = true;
		p->chunks++;
	}
	p->ended = !p->stop;
	return NULL;
}

static void pump_start(struct pump *p, struct vmctl *v, uint32_t seed)
{
	struct tg_msg m = {.cmd = TG_STREAM, .seed = seed};

	*p = (struct pump){.fd = vmctl_connect(v), .seed = seed};
	MUST(p->fd >= 0 && write_full(p->fd, &m, sizeof(m)) == 0);
	MUST(pthread_create(&p->thread, NULL, pump_main, p) == 0);
}

static void pump_stop(struct pump *p)
{
	p->stop = true;
	shutdown(p->fd, SHUT_WR);
	pthread_join(p->thread, NULL);
	close(p->fd);
}

static void wait_chunks(const struct pump *p, uint64_t more)
{
	uint64_t from = p->chunks, end = mono_ns() + KIT_LIMIT * 1000000ull;

	while (p->chunks < from + more && !p->ended && mono_ns() < end)
		usleep(1000); /* another thread's progress; the deadline is the limit of all waits
			       */
	MUST(p->chunks >= from + more);
}

struct before { /* what was known of the source last */
	struct tg_msg count, look;
	uint64_t asked_ns, replied_ns;
};

/* The guest's clock stood while there was no guest. */
static void check_clock(struct vmctl *v, const struct before *b, uint64_t t0, uint64_t running)
{
	uint64_t t1 = mono_ns(), t2;
	struct tg_msg c = ask(v, TG_COUNT, 0, 0, 0);

	t2 = mono_ns();
	MUST(c.b == 0 && c.a > b->count.a);
	MUST(c.c >= b->count.c + (t1 - running) * 99 / 100);
	MUST(c.c <= b->count.c + ((b->replied_ns - b->asked_ns) + (t2 - t0)) * 101 / 100);
}

static uint64_t finish(struct vmctl *v, const struct before *b)
{
	struct tg_msg m = ask(v, TG_BUSY_SUM, 0, 0, 0);

	MUST(m.b == 0 && m.c == (uint64_t)WRITERS * QUOTA && m.c > b->look.a);
	return m.a;
}

static void check_streams(struct vmctl *v)
{
	struct pump p[2];
	struct tg_msg m;

	for (uint32_t i = 0; i < ARRAY_LEN(p); i++)
		pump_start(&p[i], v, 100 + i);
	for (uint32_t i = 0; i < ARRAY_LEN(p); i++) {
		wait_chunks(&p[i], 16);
		pump_stop(&p[i]);
		MUST(!p[i].bad && !p[i].ended);
	}
	/* those of the source ended here with the transport's reset, these with their peer's end */
	for (uint64_t end = mono_ns() + KIT_LIMIT * 1000000ull;;) {
		m = ask(v, TG_STREAMS, 0, 0, 0);
		if (m.a == 0 || mono_ns() > end)
			break;
	}
	MUST(m.a == 0 && m.b == 0);
}

struct clone {
	struct vmctl v;
	struct vmctl_disk disk;
	uint64_t asked_ns, running_ns, sum;
};

static struct before start_source(
	struct vmctl *v, struct vmctl_disk *d, struct pump *p, uint32_t vcpus)
{
	struct before b;

	new_layer(d);
	boot_on(v, d, KIT_MEM, vcpus);
	MUST(ask(v, TG_CPUS, 0, 0, 0).a == vcpus);
	ask(v, TG_FILL, 0, ARENA, 1);
	for (uint32_t i = 0; i < STREAMS; i++)
		pump_start(&p[i], v, i);
	ask(v, TG_BUSY, WRITERS, QUOTA, 0);
	for (uint32_t i = 0; i < STREAMS; i++)
		wait_chunks(&p[i], 4);
	b.asked_ns = mono_ns();
	b.count = ask(v, TG_COUNT, 0, 0, 0);
	do
		b.look = ask(v, TG_BUSY_LOOK, 0, 0, 0);
	while (b.look.a < WRITERS * QUOTA / 8);
	return b;
}

void busy(unsigned int n, uint32_t vcpus)
{
	struct vmctl_disk d = {.base = make_file("base", 0), .index = -1};
	struct clone *c = calloc(n, sizeof(*c));
	struct pump p[STREAMS];
	struct before b;
	struct vmctl src;
	uint64_t sum, stopped = 0;
	struct stored s;

	MUST(c && ftruncate(d.base, DISK_BYTES) == 0);
	b = start_source(&src, &d, p, vcpus);
	s = freeze(&src, &d, VMM_F_LIVE, &stopped);
	b.replied_ns = src.snap_replied_ns;
	printf("ok snapshot in the middle of %llu of %u writes and %u streams, %u vCPUs: stood for "
	       "%llu us\n",
		(unsigned long long)b.look.a, WRITERS * QUOTA, STREAMS, vcpus,
		(unsigned long long)stopped / 1000);
	MUST(b.look.c == WRITERS);
	/* the source's streams did not notice */
	for (uint32_t i = 0; i < STREAMS; i++) {
		wait_chunks(&p[i], 4);
		pump_stop(&p[i]);
		MUST(!p[i].bad && !p[i].ended);
	}
	sum = finish(&src, &b);
	check_guest(&src, ARENA);
	vmctl_kill(&src);
	printf("ok the source went on: %u writes right\n", WRITERS * QUOTA);

	for (unsigned int i = 0; i < n; i++) {
		blank(&c[i].v, KIT_MEM, vcpus);
		c[i].disk = d;
		new_layer(&c[i].disk);
		c[i].v.disk = &c[i].disk;
	}
	for (unsigned int i = 0; i < n; i++) {
		c[i].asked_ns = mono_ns();
		restore(&c[i].v, &s, -1, 0, false);
		c[i].running_ns = mono_ns();
	}
	for (unsigned int i = 0; i < n; i++) {
		MUST(vmctl_wait_ready(&c[i].v, KIT_LIMIT));
		check_clock(&c[i].v, &b, c[i].asked_ns, c[i].running_ns);
	}
	for (unsigned int i = 0; i < n; i++) {
		struct tg_msg look;

		check_streams(&c[i].v);
		/* it was in the middle: some writes of before, some of this life */
		look = ask(&c[i].v, TG_BUSY_LOOK, 0, 0, 0);
		MUST(look.seed >= b.look.a && look.seed < WRITERS * QUOTA);
		MUST(finish(&c[i].v, &b) == sum);
		check_guest(&c[i].v, ARENA);
		check_clock(&c[i].v, &b, c[i].asked_ns, c[i].running_ns);
		vmctl_kill(&c[i].v);
	}
	printf("ok %u restored at once with %u vCPUs went on: disks and memory the same, counters, "
	       "clocks and streams right\n",
		n, vcpus);
	free(c);
}
