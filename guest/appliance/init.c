/* SPDX-License-Identifier: Apache-2.0
 *
 * init.c: PID 1 of the appliance (the VM that `mayfly machine` starts): mounts what the daemon
 * needs, says that it is ready, is the exec server (one process for each connection, session.c),
 * reaps processes, and powers off. Root in the appliance. Untrusted: a client until it has sent
 * the token. The server uses TCP behind QEMU's user-mode network, because a port takes any number
 * of commands at once. A virtio-serial port carries one stream and would need a multiplexer; vsock
 * needs a kernel module of the host.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <poll.h>
#include <time.h>

#include "guest/appliance/session.h"

#define TOKEN_PATH "/sys/firmware/qemu_fw_cfg/by_name/opt/mayfly/token/raw"

enum { HALT_WAIT_S = 5 };

/* Mounted in this order. must: the appliance stops if it fails. If two rows have the same
 * place, the second is tried only if the first failed. */
static const struct mount_point {
	const char *what, *where, *type, *data;
	unsigned long flags;
	bool must;
} mounts[] = {
	{"proc", "/proc", "proc", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, true},
	{"sys", "/sys", "sysfs", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, true},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, true},
	{"devpts", "/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666", MS_NOSUID | MS_NOEXEC,
		true},
	{"shm", "/dev/shm", "tmpfs", "mode=1777", MS_NOSUID | MS_NODEV, true},
	{"run", "/run", "tmpfs", "mode=755", MS_NOSUID | MS_NODEV, true},
	{"tmp", "/tmp", "tmpfs", "mode=1777", MS_NOSUID | MS_NODEV, true},
	/* cache=loose is safe: the folders are named by their content, so no file ever changes */
	{"share", "/share", "9p",
		"trans=virtio,version=9p2000.L,msize=1048576,cache=loose,access=any",
		MS_RDONLY | MS_NODEV, true},
	{"exchange", "/exchange", "9p",
		"trans=virtio,version=9p2000.L,msize=1048576,cache=mmap,access=any", MS_NODEV,
		true},
	/* project quotas limit disks and claims; a kernel given with --kernel may lack them */
	{"/dev/vdb", "/var/lib/mayfly", "xfs", "prjquota", MS_NOATIME | MS_NODEV, false},
	{"/dev/vdb", "/var/lib/mayfly", "xfs", NULL, MS_NOATIME | MS_NODEV, true},
};

/* kernel settings that the daemon needs */
static const struct setting {
	const char *path, *value;
} settings[] = {
	{"/sys/kernel/mm/transparent_hugepage/enabled", "always"}, /* fewer nested page faults */
	{"/sys/fs/cgroup/cgroup.subtree_control", "+cpu +memory +pids +io"},
	{"/proc/sys/vm/overcommit_memory", "1"}, /* guest memory is reserved, not used */
	{"/proc/sys/vm/max_map_count", "1048576"},
	{"/proc/sys/fs/inotify/max_user_instances", "8192"},
	{"/proc/sys/kernel/core_pattern", "/tmp/core.%e.%p"},
};

static int ready_fd = -1;

/* One line to the host: on the ready port and on the console. */
_printf_(1, 2) static void tell(const char *fmt, ...)
{
	char line[256];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line) - 1, fmt, ap);
	va_end(ap);
	n = MIN(n, (int)sizeof(line) - 2);
	line[n++] = '\n';
	if (ready_fd >= 0)
		(void)!write(ready_fd, line, (size_t)n);
	(void)!write(1, line, (size_t)n);
}

_noreturn_ static void power_off(void)
{
	sync();
	/* QEMU runs with -no-reboot: a reset ends it, without ACPI */
	reboot(RB_AUTOBOOT);
	for (;;)
		pause();
}

_noreturn_ static void give_up(const char *what, const char *which)
{
	tell("error: %s %s: %s", what, which, strerror(errno));
	power_off();
}

/* The virtio-serial port named "ready"; ports have numbers in /dev and names in sysfs. */
static void open_ready(void)
{
	static const char dir[] = "/sys/class/virtio-ports";
	char path[320], name[32] = "";
	struct dirent *e;
	DIR *d = opendir(dir);

	while (d && (e = readdir(d))) {
		int fd;
		ssize_t n;

		snprintf(path, sizeof(path), "%s/%s/name", dir, e->d_name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		n = read(fd, name, sizeof(name) - 1);
		close(fd);
		if (n < 5 || strncmp(name, "ready", 5) != 0)
			continue;
		snprintf(path, sizeof(path), "/dev/%s", e->d_name);
		ready_fd = open(path, O_WRONLY | O_CLOEXEC);
		break;
	}
	if (d)
		closedir(d);
}

static void mount_all(void)
{
	bool mounted = false;

	for (size_t i = 0; i < ARRAY_LEN(mounts); i++) {
		const struct mount_point *m = &mounts[i];

		if (mounted && i && strcmp(m->where, mounts[i - 1].where) == 0)
			continue;
		mkdir(m->where, 0755);
		mounted = mount(m->what, m->where, m->type, m->flags, m->data) == 0;
		if (!mounted && m->must)
			give_up("mount", m->where);
		if (strcmp(m->where, "/sys") == 0)
			open_ready();
	}
	for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
		int fd = open(settings[i].path, O_WRONLY | O_CLOEXEC);

		if (fd < 0 || write(fd, settings[i].value, strlen(settings[i].value)) < 0)
			tell("warning: %s: %s", settings[i].path, strerror(errno));
		if (fd >= 0)
			close(fd);
	}
}

static void read_token(uint8_t token[MACHINE_TOKEN_BYTES])
{
	_cleanup_close_ int fd = open(TOKEN_PATH, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read_full(fd, token, MACHINE_TOKEN_BYTES) < 0)
		give_up("read", TOKEN_PATH);
}

static int listen_exec(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(MACHINE_EXEC_PORT)};
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
		bind(fd, (struct sockaddr *)(void *)&a, sizeof(a)) < 0 || listen(fd, 64) < 0)
		give_up("listen", "exec server");
	return fd;
}

static void reap(void)
{
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

/* Sends SIGTERM to all processes, waits, sends SIGKILL, unmounts the data disk and powers off. */
_noreturn_ static void halt_all(void)
{
	struct timespec t = {.tv_sec = HALT_WAIT_S};
	uint64_t end = mono_ns() + HALT_WAIT_S * 1000000000ull;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	kill(-1, SIGTERM);
	while (mono_ns() < end) {
		reap();
		if (waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD)
			break;
		sigtimedwait(&set, NULL, &t);
	}
	kill(-1, SIGKILL);
	while (waitpid(-1, NULL, 0) > 0)
		;
	sync();
	if (umount2("/var/lib/mayfly", 0) < 0)
		umount2("/var/lib/mayfly", MNT_DETACH);
	power_off();
}

static void accept_one(int listener, const uint8_t *token)
{
	int one = 1, c = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	pid_t pid;

	if (c < 0)
		return;
	setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(c, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	pid = fork();
	if (pid == 0) {
		sigset_t none;

		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		close(listener);
		session_serve(c, token, 1);
	}
	close(c);
}

int main(void)
{
	uint8_t token[MACHINE_TOKEN_BYTES];
	struct timespec up;
	struct pollfd p[2];
	sigset_t set;

	mount_all();
	read_token(token);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	p[0] = (struct pollfd){
		.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .events = POLLIN};
	p[1] = (struct pollfd){.fd = listen_exec(), .events = POLLIN};
	clock_gettime(CLOCK_BOOTTIME, &up);
	tell("ready %ld", up.tv_sec * 1000 + up.tv_nsec / 1000000);
	for (;;) {
		struct signalfd_siginfo si;

		if (poll(p, 2, -1) < 0)
			continue;
		while (read(p[0].fd, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
			if (si.ssi_signo == SIGTERM)
				halt_all();
			reap();
		}
		if (p[1].revents)
			accept_one(p[1].fd, token);
	}
}
