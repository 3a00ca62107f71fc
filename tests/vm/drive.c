/* SPDX-License-Identifier: Apache-2.0
 *
 * drive.c: the memory model, the rates and the ends of real VMs, driven as the daemon drives them.
 * Runs where KVM is (inside the appliance). drive VMM KERNEL INITRD DIR model CLONES | rate
 * RESTORES | rounds SECONDS | classes | boots N VCPUS | sizes [all] | disks | ends | busy CLONES VCPUS | balloon MIB ROUNDS. Prints one line a
 * step; exits 1 at the first thing that is not as it must be.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/vm/kit.h"

/* All at once; who was looked at is gone then, but for the first: the rest need the processor.
 * before: what the guest said at `at` of our clock, before its snapshot. */
static struct tg_msg clones(const struct stored *base, unsigned int n, struct vmctl *v,
	struct tg_msg before, uint64_t at)
{
	uint64_t seen[128] = {0};
	struct tg_msg c = {0};
	long kib[2];

	for (unsigned int i = 0; i < n; i++)
		blank(&v[i], KIT_MEM, 2);
	for (unsigned int i = 0; i < n; i++)
		restore(&v[i], base, -1, 0, false);
	for (unsigned int i = 0; i < n; i++)
		MUST(vmctl_wait_ready(&v[i], KIT_LIMIT));
	kib[0] = vmctl_rollup(&v[n - 1], "Private_Dirty");
	kib[1] = vmctl_rollup(&v[n - 1], "Pss");
	for (unsigned int i = 0; i < n; i++) {
		struct tg_msg r;

		check_guest(&v[i], 2000);
		c = ask(&v[i], TG_COUNT, 0, 0, 0);
		/* time goes on from where it stood, and no faster than ours */
		MUST(c.a >= before.a && c.c > before.c &&
			c.c - before.c < mono_ns() - at + 1000000000ull);
		r = ask(&v[i], TG_RANDOM, 0, 0, 0);
		seen[i] = r.a;
		for (unsigned int k = 0; k < i; k++)
			MUST(seen[k] != seen[i]);
		if (i > 0)
			vmctl_kill(&v[i]);
	}
	printf("ok %u clones: memory right, counters consistent, random numbers all different; "
	       "private %ld KiB, PSS %ld KiB of the last one\n",
		n, kib[0], kib[1]);
	return c;
}

static void model(unsigned int n)
{
	struct vmctl *v = calloc(n + 1, sizeof(*v)), *src = &v[n], next;
	struct stored base, d;
	uint64_t stopped = 0, pages = 2000, at;
	struct tg_msg before;
	int ws;

	boot(src, KIT_MEM, 2);
	ask(src, TG_FILL, 0, pages, 1);
	MUST(ask(src, TG_CPUS, 0, 0, 0).a == 2);
	at = mono_ns();
	before = ask(src, TG_COUNT, 0, 0, 0);
	base = snapshot(src, NULL, VMM_F_LIVE, &stopped);
	printf("ok template: %llu pages, source stood for %llu us\n",
		(unsigned long long)src->snap_pages, (unsigned long long)stopped / 1000);
	check_guest(src, pages);
	vmctl_kill(src);
	clones(&base, n, v, before, at);

	/* a difference, live, of a clone that goes on */
	ask(&v[0], TG_FILL, 1500, 1000, 2);
	pages = 2500;
	d = snapshot(&v[0], &base, VMM_F_LIVE | VMM_F_DIFF, &stopped);
	printf("ok live difference: %llu pages on %u files, stood for %llu us\n",
		(unsigned long long)v[0].snap_pages, d.n, (unsigned long long)stopped / 1000);
	MUST(d.n == 2 && v[0].snap_pages >= 1000 && v[0].snap_pages < 16000);
	check_guest(&v[0], pages);

	/* pause and resume, over and over: never more than four files */
	for (uint32_t i = 0; i < 8; i++) {
		struct tg_msg c;

		d = snapshot(&v[0], i ? &d : &base, VMM_F_EXIT | VMM_F_DIFF, &stopped);
		MUST(vmctl_wait_exit(&v[0], KIT_LIMIT) && v[0].exit_why == VMM_X_SNAPSHOTTED);
		vmctl_kill(&v[0]);
		blank(&next, KIT_MEM, 2);
		restore(&next, &d, -1, 0, false);
		v[0] = next;
		MUST(vmctl_wait_ready(&v[0], KIT_LIMIT));
		check_guest(&v[0], pages);
		c = ask(&v[0], TG_COUNT, 0, 0, 0);
		MUST(c.a > before.a);
		before = c;
		ask(&v[0], TG_FILL, 2500 + i * 100, 100, 3 + i);
		pages += 100;
		printf("ok pause and resume %u: %u files\n", i, d.n);
	}

	/* the working set of a restore, used by the next */
	ws = make_file("ws", 0);
	MUST(vmctl_call(&v[0], VMM_WORKSET, NULL, &ws, 1, NULL) == 0);
	vmctl_kill(&v[0]);
	blank(&v[0], KIT_MEM, 2);
	printf("restore with working set:");
	restore(&v[0], &d, ws, 0, true);
	MUST(vmctl_wait_ready(&v[0], KIT_LIMIT));
	check_guest(&v[0], pages - 100);
	d = snapshot(&v[0], NULL, VMM_F_LIVE, &stopped);
	MUST(d.n == 1 && v[0].snap_kept == 0);
	vmctl_kill(&v[0]);
	blank(&v[0], KIT_MEM, 2);
	restore(&v[0], &d, -1, 0, false);
	MUST(vmctl_wait_ready(&v[0], KIT_LIMIT));
	check_guest(&v[0], pages - 100);
	printf("ok snapshot of a clone, restored\n");
	vmctl_kill(&v[0]);
	free(v);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void print_times(const char *what, double *t, unsigned int n)
{
	qsort(t, n, sizeof(*t), compare);
	printf("%s: n %u p50 %.1f p95 %.1f max %.1f ms\n", what, n, t[n / 2], t[n * 95 / 100],
		t[n - 1]);
}

static void rate(unsigned int n)
{
	double *t = calloc(n, sizeof(*t));
	uint64_t *seen = calloc(n, sizeof(*seen));
	unsigned int good = 0;
	struct stored base;
	struct vmctl v;

	boot(&v, KIT_MEM, 1);
	ask(&v, TG_FILL, 0, 1000, 1);
	base = snapshot(&v, NULL, VMM_F_EXIT, NULL);
	vmctl_kill(&v);
	for (unsigned int i = 0; i < n; i++) {
		struct tg_msg m = {.cmd = TG_CHECK}, c = {.cmd = TG_COUNT};
		uint64_t t0;

		blank(&v, KIT_MEM, 1);
		t0 = mono_ns();
		restore(&v, &base, -1, 0, i % 50 == 0);
		if (vmctl_wait_ready(&v, 20000)) {
			t[good] = (double)(mono_ns() - t0) / 1e6;
			if (vmctl_guest(&v, &m) && m.a == 0 && m.b == 1000 && vmctl_guest(&v, &c) &&
				c.b == 0) {
				seen[good] = ask(&v, TG_RANDOM, 0, 0, 0).a;
				good++;
			}
		}
		vmctl_kill(&v);
	}
	printf("restores in a row: %u of %u good\n", good, n);
	if (good)
		print_times("restore request to the guest's announcement", t, good);
	MUST(good == n);
	qsort(seen, n, sizeof(*seen), compare_u64);
	for (unsigned int i = 1; i < n; i++)
		MUST(seen[i] != seen[i - 1]);
	printf("ok the first random numbers of %u restores all differ\n", n);
	free(seen);
	free(t);
}

static void boots(unsigned int n, uint32_t vcpus)
{
	double *t = calloc(n, sizeof(*t));
	unsigned int good = 0;

	for (unsigned int i = 0; i < n; i++) {
		uint64_t t0 = mono_ns();
		struct vmctl v;

		vmctl_start(&v);
		MUST(vmctl_prepare(&v, KIT_MEM, vcpus) == 0 &&
			vmctl_boot(&v, kit_kernel, kit_initrd, "") == 0);
		if (vmctl_wait_ready(&v, KIT_LIMIT)) {
			struct tg_msg m = {.cmd = TG_CPUS};

			t[good] = (double)(mono_ns() - t0) / 1e6;
			good += vmctl_guest(&v, &m) && m.a == vcpus;
		}
		vmctl_kill(&v);
	}
	printf("boots with %u vCPUs: %u of %u\n", vcpus, good, n);
	print_times("exec to announcement", t, good);
	MUST(good == n);
	free(t);
}

static void one_size(uint64_t mem, uint32_t vcpus)
{
	struct vmctl v;

	boot(&v, mem, vcpus);
	MUST(ask(&v, TG_CPUS, 0, 0, 0).a == vcpus);
	ask(&v, TG_FILL, 0, 3000, 1);
	check_guest(&v, 3000);
	if (mem > GIB(4)) { /* above the hole, too */
		struct stored s = snapshot(&v, NULL, VMM_F_EXIT, NULL);

		vmctl_kill(&v);
		blank(&v, mem, vcpus);
		restore(&v, &s, -1, 0, false);
		MUST(vmctl_wait_ready(&v, KIT_LIMIT));
		check_guest(&v, 3000);
	}
	vmctl_kill(&v);
	printf("ok %llu MiB, %u vCPUs\n", (unsigned long long)mem >> 20, vcpus);
}

/* every size once, each number of vCPUs once, and sixteen; all: each with each */
static void sizes(bool all)
{
	static const uint64_t mem[] = {MIB(128), GIB(2), GIB(5)};
	static const uint32_t vcpus[] = {1, 4, 2};

	for (size_t i = 0; i < ARRAY_LEN(mem); i++)
		for (size_t k = 0; k < ARRAY_LEN(vcpus); k++)
			if (all || i == k)
				one_size(mem[i], vcpus[k]);
	one_size(MIB(512), VMM_MAX_VCPUS);
}

/* Seccomp lists on the thread that a status file is about. */
static int count_filters(const char *path)
{
	FILE *f = fopen(path, "re");
	char line[200];
	int n = -1;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "Seccomp_filters: %d", &n) == 1)
			break;
	if (f)
		fclose(f);
	return n;
}

/* Every thread of the monitor has a list of its own on top of what it was started with. */
static void check_sealed(const struct vmctl *v)
{
	int mine = count_filters("/proc/self/status"), threads = 0;
	char path[300];
	struct dirent *d;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)v->pid);
	dir = opendir(path);
	MUST(dir);
	while ((d = readdir(dir))) {
		if (d->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/status", (int)v->pid, d->d_name);
		MUST(count_filters(path) > mine);
		threads++;
	}
	closedir(dir);
	MUST(threads > 2); /* the device thread, two vCPUs */
	printf("ok %d threads, each with its list of system calls\n", threads);
}

static void disks(void)
{
	struct vmctl_disk d = {.base = make_file("base", 0), .index = -1}, mine[4];
	struct vmctl v, c[4];
	struct stored s;

	MUST(ftruncate(d.base, DISK_BYTES) == 0);
	new_layer(&d);
	vmctl_start(&v);
	v.disk = &d;
	MUST(vmctl_prepare(&v, KIT_MEM, 2) == 0);
	MUST(vmctl_boot(&v, kit_kernel, kit_initrd, "") == 0 && vmctl_wait_ready(&v, KIT_LIMIT));
	ask(&v, TG_FILL, 0, 500, 1);
	MUST(ask(&v, TG_DISK_FILL, 0, 8, 1).a == 0);
	check_disk(&v, 0, 8, 1);
	check_sealed(&v);
	s = freeze(&v, &d, VMM_F_LIVE, NULL);
	printf("ok frozen live\n");
	/* the source writes over it: no clone may see that */
	MUST(ask(&v, TG_DISK_FILL, 4, 8, 2).a == 0);
	check_disk(&v, 0, 4, 1);
	check_disk(&v, 4, 8, 2);
	for (unsigned int i = 0; i < 3; i++) {
		mine[i] = d;
		new_layer(&mine[i]);
		blank(&c[i], KIT_MEM, 2);
		c[i].disk = &mine[i];
		restore(&c[i], &s, -1, 0, false);
	}
	for (uint32_t i = 0; i < 3; i++) {
		MUST(vmctl_wait_ready(&c[i], KIT_LIMIT));
		check_guest(&c[i], 500);
		check_disk(&c[i], 0, 8, 1);
		MUST(ask(&c[i], TG_DISK_FILL, 6, 4, 10 + i).a == 0);
	}
	for (uint32_t i = 0; i < 3; i++) {
		check_disk(&c[i], 0, 6, 1);
		check_disk(&c[i], 6, 4, 10 + i);
	}
	printf("ok three clones on one frozen layer, each with its own writes\n");
	/* pause without a freeze: the private layer is what the resume is given */
	s = snapshot(&c[0], &s, VMM_F_EXIT | VMM_F_DIFF, NULL);
	MUST(vmctl_wait_exit(&c[0], KIT_LIMIT));
	vmctl_kill(&c[0]);
	blank(&c[0], KIT_MEM, 2);
	c[0].disk = &mine[0];
	restore(&c[0], &s, -1, 0, false);
	MUST(vmctl_wait_ready(&c[0], KIT_LIMIT));
	check_disk(&c[0], 0, 6, 1);
	check_disk(&c[0], 6, 4, 10);
	printf("ok paused and resumed on its private layer\n");
	/* the wrong disk is refused */
	blank(&c[3], KIT_MEM, 2);
	c[3].disk = &mine[1];
	MUST(vmctl_restore(&c[3], s.state, s.mem, s.n, -1, VMM_F_RUN, NULL) == -EINVAL);
	printf("ok another disk is refused\n");
	for (uint32_t i = 0; i < 10; i++) {
		MUST(ask(&c[2], TG_DISK_FILL, 20 + i, 1, 30 + i).a == 0);
		s = freeze(&c[2], &mine[2], VMM_F_LIVE, NULL);
		MUST(mine[2].nfrozen <= VMM_MAX_FROZEN);
	}
	vmctl_kill(&c[2]);
	new_layer(&mine[2]);
	blank(&c[2], KIT_MEM, 2);
	c[2].disk = &mine[2];
	restore(&c[2], &s, -1, 0, false);
	MUST(vmctl_wait_ready(&c[2], KIT_LIMIT));
	check_disk(&c[2], 0, 6, 1);
	check_disk(&c[2], 6, 4, 12);
	for (uint32_t i = 0; i < 10; i++)
		check_disk(&c[2], 20 + i, 1, 30 + i);
	printf("ok ten freezes in a chain: %u layers\n", mine[2].nfrozen);
	for (unsigned int i = 0; i < 4; i++)
		vmctl_kill(&c[i]);
	vmctl_kill(&v);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	if (argc < 6)
		return 2;
	vmctl_program = argv[1];
	kit_kernel = open(argv[2], O_RDONLY | O_CLOEXEC);
	kit_initrd = open(argv[3], O_RDONLY | O_CLOEXEC);
	kit_dir = argv[4];
	MUST(kit_kernel >= 0 && kit_initrd >= 0);
	mkdir(kit_dir, 0700);
	if (!strcmp(argv[5], "model"))
		model((unsigned int)atoi(argc > 6 ? argv[6] : "20"));
	else if (!strcmp(argv[5], "rate"))
		rate((unsigned int)atoi(argc > 6 ? argv[6] : "20"));
	else if (!strcmp(argv[5], "rounds"))
		rounds((unsigned int)atoi(argc > 6 ? argv[6] : "10"));
	else if (!strcmp(argv[5], "classes"))
		classes();
	else if (!strcmp(argv[5], "boots"))
		boots((unsigned int)atoi(argc > 6 ? argv[6] : "5"),
			(uint32_t)atoi(argc > 7 ? argv[7] : "2"));
	else if (!strcmp(argv[5], "sizes"))
		sizes(argc > 6 && !strcmp(argv[6], "all"));
	else if (!strcmp(argv[5], "disks"))
		disks();
	else if (!strcmp(argv[5], "ends"))
		ends();
	else if (!strcmp(argv[5], "busy"))
		busy((unsigned int)atoi(argc > 6 ? argv[6] : "20"),
			(uint32_t)atoi(argc > 7 ? argv[7] : "2"));
	else if (!strcmp(argv[5], "balloon"))
		balloon((uint64_t)atoi(argc > 6 ? argv[6] : "128"),
			(unsigned int)atoi(argc > 7 ? argv[7] : "1"));
	else
		return 2;
	return 0;
}
