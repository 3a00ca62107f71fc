/* SPDX-License-Identifier: Apache-2.0
 *
 * testinit.c: PID 1 of a test guest: says how long the boot took and how many CPUs came up, then
 * does what the kernel's command line asks (testinit=config: print /proc/config.gz in hex;
 * testinit=echo: answer lines from the console until "end") and resets.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <time.h>

#include "lib/base.h"

static void print_config(void)
{
	_cleanup_close_ int fd = open("/proc/config.gz", O_RDONLY | O_CLOEXEC);
	uint8_t b[32];
	ssize_t n;

	while ((n = read(fd, b, sizeof(b))) > 0) {
		printf("CONFIG ");
		for (ssize_t i = 0; i < n; i++)
			printf("%02x", b[i]);
		printf("\n");
	}
}

static void echo_lines(void)
{
	char line[256];

	while (fgets(line, sizeof(line), stdin) && strncmp(line, "end", 3) != 0)
		printf("ECHO %s", line);
}

/* Runs a little on each CPU, so that one that only looks alive is found out. */
static int work_everywhere(int cpus)
{
	int worked = 0;

	for (int i = 0; i < cpus; i++) {
		cpu_set_t set;
		volatile unsigned sum = 0;

		CPU_ZERO(&set);
		CPU_SET(i, &set);
		if (sched_setaffinity(0, sizeof(set), &set) < 0)
			continue;
		for (unsigned k = 0; k < 100000; k++)
			sum += k;
		worked += sched_getcpu() == i;
	}
	return worked;
}

static const struct {
	const char *word;
	void (*fn)(void);
} jobs[] = {{"testinit=config", print_config}, {"testinit=echo", echo_lines}};

int main(void)
{
	char cmdline[4096] = "";
	struct timespec up;
	int fd, cpus;

	clock_gettime(CLOCK_BOOTTIME, &up);
	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sys", "/sys", "sysfs", 0, NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	cpus = get_nprocs();
	printf("TESTINIT boot_ms=%ld cpus=%d worked=%d\n", up.tv_sec * 1000 + up.tv_nsec / 1000000,
		cpus, work_everywhere(cpus));
	fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && read(fd, cmdline, sizeof(cmdline) - 1) < 0)
		cmdline[0] = 0;
	for (size_t i = 0; i < ARRAY_LEN(jobs); i++)
		if (strstr(cmdline, jobs[i].word))
			jobs[i].fn();
	printf("TESTINIT end\n");
	fflush(stdout);
	reboot(RB_AUTOBOOT);
	return 1;
}
