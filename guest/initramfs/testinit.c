/* SPDX-License-Identifier: Apache-2.0
 *
 * testinit.c: PID 1 of a test guest: says how long the boot took and how many CPUs came up, then
 * does what the kernel's command line asks (testinit=config: print /proc/config.gz in hex;
 * testinit=echo: answer lines from the console until "end"; tick, disk, check, mount, run,
 * commands, vsock: below) and resets.
 */
#include <fcntl.h>
#include <sched.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <time.h>

#include "guest/initramfs/testinit_vsock.h"
#include "lib/base.h"

static int kmsg_fd = -1;

_printf_(1, 2) static void say(const char *fmt, ...)
{
	char line[1000] = "<0>"; /* a level that is shown even with quiet or loglevel= */
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line + 3, sizeof(line) - 3, fmt, ap);
	va_end(ap);
	if (kmsg_fd < 0 || write(kmsg_fd, line, MIN((size_t)n + 3, sizeof(line) - 1)) < 0)
		printf("%s", line + 3);
}

static void print_config(void)
{
	_cleanup_close_ int fd = open("/proc/config.gz", O_RDONLY | O_CLOEXEC);
	uint8_t b[400];
	ssize_t n;

	while ((n = read(fd, b, sizeof(b))) > 0) {
		char hex[2 * sizeof(b) + 1];

		for (ssize_t i = 0; i < n; i++)
			snprintf(hex + 2 * i, 3, "%02x", b[i]);
		/* not through the kernel's log: its ring drops lines when the console is slower
		 * than we are */
		printf("CONFIG %s\n", hex);
		fflush(stdout);
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

/* Prints a line about every millisecond, for ever. Nearly all of the time is spent in user
 * mode. So a restored guest prints at once, wherever it was stopped. */
static void tick(void)
{
	for (;;) {
		struct timespec t, now;

		printf("TICK\n");
		clock_gettime(CLOCK_MONOTONIC, &t);
		do
			clock_gettime(CLOCK_MONOTONIC, &now);
		while ((now.tv_sec - t.tv_sec) * 1000000000l + now.tv_nsec - t.tv_nsec < 1000000);
	}
}

/* /dev/vda: 32 MiB written and synced, read back past the page cache and compared, a part discarded
 */
static void use_disk(void)
{
	enum { CHUNK = 1 << 20, CHUNKS = 32 };
	static uint8_t buf[CHUNK] __attribute__((aligned(4096)));
	uint64_t t[3], range[2] = {0, CHUNK}, bad = 0;
	int fd;

	mkdir("/dev", 0755);
	mount("dev", "/dev", "devtmpfs", 0, NULL);
	fd = open("/dev/vda", O_RDWR | O_DIRECT | O_CLOEXEC);
	t[0] = mono_ns();
	for (int i = 0; i < CHUNKS; i++) {
		memset(buf, i + 1, CHUNK);
		bad += pwrite_full(fd, buf, CHUNK, (uint64_t)i * CHUNK) != 0;
	}
	bad += fsync(fd) != 0;
	t[1] = mono_ns();
	for (int i = 0; i < CHUNKS; i++) {
		bad += pread_full(fd, buf, CHUNK, (uint64_t)i * CHUNK) != 0;
		for (int k = 0; k < CHUNK; k += 512)
			bad += buf[k] != i + 1;
	}
	t[2] = mono_ns();
	bad += ioctl(fd, BLKDISCARD, range) != 0 || fsync(fd) != 0 ||
	       pread_full(fd, buf, CHUNK, 0) != 0;
	for (int k = 0; k < CHUNK; k += 512)
		bad += buf[k] != 0;
	printf("DISK bad=%llu write_us=%llu read_us=%llu bytes=%d\n", (unsigned long long)bad,
		(unsigned long long)(t[1] - t[0]) / 1000, (unsigned long long)(t[2] - t[1]) / 1000,
		CHUNK * CHUNKS);
}

/* after a restart: what use_disk left */
static void check_disk(void)
{
	enum { CHUNK = 1 << 20, CHUNKS = 32 };
	static uint8_t buf[CHUNK] __attribute__((aligned(4096)));
	unsigned int bad = 0;
	int fd;

	mkdir("/dev", 0755);
	mount("dev", "/dev", "devtmpfs", 0, NULL);
	fd = open("/dev/vda", O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < CHUNKS; i++) {
		bad += pread_full(fd, buf, CHUNK, (uint64_t)i * CHUNK) != 0;
		for (int k = 0; k < CHUNK; k += 512)
			bad += buf[k] != (i ? i + 1 : 0);
	}
	printf("DISK checked bad=%u\n", bad);
}

/* /dev/vda is ext4: mounted, written to, read */
static void mount_disk(void)
{
	char line[64] = "";
	int fd;

	mkdir("/dev", 0755);
	mkdir("/mnt", 0755);
	mount("dev", "/dev", "devtmpfs", 0, NULL);
	if (mount("/dev/vda", "/mnt", "ext4", 0, NULL) < 0) {
		printf("MOUNT failed: %m\n");
		return;
	}
	fd = open("/mnt/mark", O_RDWR | O_CREAT, 0644);
	if (fd >= 0 && read(fd, line, sizeof(line) - 1) == 0)
		(void)!write(fd, "was here", 8);
	fsync(fd);
	close(fd);
	printf("MOUNT ok mark=%s umount=%d\n", line[0] ? line : "none", umount("/mnt"));
}

/* for testinit=run and testinit=commands: the bench measures until a command of /dev/vda has run */
static bool mount_root(void)
{
	mkdir("/dev", 0755);
	mkdir("/mnt", 0755);
	mount("dev", "/dev", "devtmpfs", 0, NULL);
	if (mount("/dev/vda", "/mnt", "ext4", MS_RDONLY | MS_NOATIME, "noload") == 0)
		return true;
	printf("MOUNT failed: %m\n");
	return false;
}

/* Runs a command of the disk, as in any sandbox: fork, chroot, exec. */
static void one_command(void)
{
	char *const argv[] = {(char[]){"echo"}, (char[]){"COMMAND"}, NULL};

	if (fork() == 0) {
		if (chroot("/mnt") == 0 && chdir("/") == 0)
			execv("/bin/echo", argv);
		printf("EXEC failed: %m\n");
		_exit(1);
	}
	wait(NULL);
}

static void run_command(void)
{
	if (mount_root())
		one_command();
}

/* Runs commands for ever. Wherever the guest was stopped, the second output after its restore
 * is of a command that began after the restore. */
static void run_commands(void)
{
	if (mount_root())
		for (;;)
			one_command();
}

static const struct {
	const char *word;
	void (*fn)(void);
} jobs[] = {{"testinit=config", print_config}, {"testinit=echo", echo_lines},
	{"testinit=tick", tick}, {"testinit=disk", use_disk}, {"testinit=check", check_disk},
	{"testinit=mount", mount_disk}, {"testinit=run", run_command},
	{"testinit=commands", run_commands}, {"testinit=vsock", testinit_vsock}};

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
	kmsg_fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
	say("TESTINIT boot_ms=%ld cpus=%d worked=%d\n", up.tv_sec * 1000 + up.tv_nsec / 1000000,
		cpus, work_everywhere(cpus));
	fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && read(fd, cmdline, sizeof(cmdline) - 1) < 0)
		cmdline[0] = 0;
	for (size_t i = 0; i < ARRAY_LEN(jobs); i++)
		if (strstr(cmdline, jobs[i].word))
			jobs[i].fn();
	say("TESTINIT end\n");
	fflush(stdout);
	reboot(RB_AUTOBOOT);
	return 1;
}
