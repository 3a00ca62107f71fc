/* SPDX-License-Identifier: Apache-2.0
 *
 * machine_qemu.c: turns a folder of state into a running appliance: root image, data disk, token,
 * ports, QEMU's command line, and the wait for its "ready". The reason for each odd flag is
 * beside it; all were measured. Untrusted: nothing here but the one line that the appliance
 * writes to its ready port.
 */
#include "cli/appliance/machine.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>

#include "cli/assets.h"
#include "cli/kvm_probe.h"
#include "cli/run.h"

#define QEMU       "qemu-system-x86_64"
#define DISK_LEAST MIB(256)

enum { READY_WAIT_MS = 90000, ATTEMPTS = 3, ARGV_MAX = 80, FORWARD_BACKLOG = 1024 };

struct launch {
	struct machine *m;
	const struct machine_opts *o;
	char kernel[PATH_MAX], root[PATH_MAX];
	bool kvm;
	unsigned qemu_major;
	struct buf text; /* the argument strings, one after another */
	size_t at[ARGV_MAX], n;
};

_printf_(2, 3) static void arg(struct launch *l, const char *fmt, ...)
{
	char s[PATH_MAX + 512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s, sizeof(s), fmt, ap);
	va_end(ap);
	ASSERT(l->n < ARGV_MAX);
	l->at[l->n++] = l->text.len;
	buf_put(&l->text, s, strlen(s) + 1);
}

/* If *port is 0, finds a free port. Else tests whether that port is free. 0 or -errno. */
static int probe_port(uint64_t *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)*port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int one = 1;
	_cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	/* SO_REUSEADDR as QEMU sets it: connections of the last run in TIME_WAIT do not count */
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
		bind(fd, (struct sockaddr *)(void *)&a, sizeof(a)) < 0 || listen(fd, 1) < 0 ||
		getsockname(fd, (struct sockaddr *)(void *)&a, &len) < 0)
		return -errno;
	*port = ntohs(a.sin_port);
	return 0;
}

/* The time-stamp counter at a moment of the clock, read between two looks at that clock: the
 * closest of up to 64 pairs, because a preemption between two looks costs milliseconds. */
static uint64_t tsc_at(uint64_t *ns)
{
	uint64_t tsc = 0, best = UINT64_MAX;

	for (unsigned i = 0; i < 64 && best > 500; i++) {
		uint64_t a = mono_ns(), t = __builtin_ia32_rdtsc(), b = mono_ns();

		if (b - a >= best)
			continue;
		best = b - a;
		*ns = a + best / 2;
		tsc = t;
	}
	return tsc;
}

/* The rate of this host's time-stamp counter, which is also the guest's clock. Without it the
 * guest's kernel calibrates for half a second, and may end with a clock of 4 ms steps. */
static unsigned long tsc_khz(void)
{
	struct timespec t = {.tv_nsec = 40000000};
	uint64_t ns = 0, then = 0, tsc = tsc_at(&then);

	nanosleep(&t, NULL);
	tsc = tsc_at(&ns) - tsc;
	return (unsigned long)(tsc * 1000000 / (ns - then));
}

static int qemu_version(unsigned *major, struct err *e)
{
	static const char *const argv[] = {QEMU, "--version", NULL};
	static const char words[] = "version ";
	struct buf out;
	const char *at;
	int rc;

	buf_init(&out, 4096);
	rc = run_program(argv, &out, e);
	at = rc < 0 ? NULL : strstr(buf_cstr(&out), words);
	*major = at ? (unsigned)strtoul(at + strlen(words), NULL, 10) : 0;
	buf_fini(&out);
	if (rc < 0)
		return err_wrap(e, "QEMU is needed (apt install qemu-system-x86)");
	return *major ? 0 : err_plain(e, EINVAL, QEMU " does not tell its version");
}

static int ensure_data(const struct machine *m, uint64_t bytes, struct err *e)
{
	char path[PATH_MAX], tmp[PATH_MAX];
	const char *const mkfs[] = {
		"mkfs.xfs", "-q", "-f", "-K", "-m", "reflink=1", "-L", "mayfly", tmp, NULL};
	_cleanup_close_ int fd = -1;
	struct statvfs fs;
	int rc;

	/* If the host's disk is full, programs in the machine get I/O errors. The user can do
	 * something about it only here. */
	if (statvfs(m->dir, &fs) == 0 && fs.f_bavail * fs.f_frsize < DISK_LEAST)
		return err_plain(e, ENOSPC,
			"%s has %" PRIu64 " MiB free, the machine's disk needs %" PRIu64
			" to begin with: make room, or set XDG_STATE_HOME to a larger disk",
			m->dir, (uint64_t)fs.f_bavail * fs.f_frsize >> 20, DISK_LEAST >> 20);
	if (access(machine_path(m, "data.img", path), F_OK) == 0)
		return 0;
	fd = open(
		machine_path(m, "data.img.new", tmp), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
		return err_set(e, errno, "%s", tmp);
	rc = run_program(mkfs, NULL, e);
	if (rc < 0)
		return err_wrap(e, "making the data disk (apt install xfsprogs)");
	if (fsync(fd) < 0 || rename(tmp, path) < 0)
		return err_set(e, errno, "%s", path);
	return 0;
}

static void add_board(struct launch *l)
{
	char p[PATH_MAX];

	arg(l, QEMU);
	arg(l, "-name");
	arg(l, "mayfly-machine-%s", l->m->name);
	arg(l, "-machine");
	arg(l, "q35,usb=off,vmport=off,smm=off,sata=off,smbus=off"); /* the HPET stays: without it
									some starts had a 4 ms clock
								      */
	arg(l, "-accel");
	arg(l, l->kvm ? "kvm" : "tcg,thread=multi,tb-size=512");
	arg(l, "-cpu");
	/* QEMU 7.2 loses the nested guest's XCR0, so XSAVE is hidden from all guests */
	arg(l, l->kvm ? "host" : l->qemu_major < 10 ? "max,+svm,+npt,-xsave" : "max,+svm,+npt");
	arg(l, "-smp");
	arg(l, "%" PRIu64, l->m->cpus);
	arg(l, "-m");
	arg(l, "%" PRIu64 "M", l->m->memory_bytes >> 20);
	for (const char *const *s = (const char *const[]){"-nodefaults", "-no-user-config",
		     "-no-reboot", "-display", "none", "-monitor", "none", NULL};
		*s; s++)
		arg(l, "%s", *s);
	arg(l, "-serial");
	arg(l, "file:%s", machine_path(l->m, "console.log", p));
	arg(l, "-device");
	arg(l, "virtio-rng-pci");
}

static void add_devices(struct launch *l, int ready_fd)
{
	static const char *const shares[][2] = {{"share", ",readonly=on"}, {"exchange", ""}};
	char p[PATH_MAX];

	/* what is written to the root is gone at the next start; one image serves all machines */
	arg(l, "-drive");
	arg(l, "file=%s,if=virtio,format=raw,snapshot=on", l->root);
	arg(l, "-drive");
	arg(l,
		"file=%s,if=virtio,format=raw,cache=writeback,aio=threads,discard=unmap,detect-"
		"zeroes=off",
		machine_path(l->m, "data.img", p));
	for (size_t i = 0; i < ARRAY_LEN(shares); i++) {
		arg(l, "-fsdev");
		arg(l, "local,id=%s,path=%s,security_model=none,multidevs=remap%s", shares[i][0],
			machine_path(l->m, shares[i][0], p), shares[i][1]);
		arg(l, "-device");
		arg(l, "virtio-9p-pci,fsdev=%s,mount_tag=%s", shares[i][0], shares[i][0]);
	}
	arg(l, "-netdev");
	arg(l,
		"user,id=n,hostfwd=tcp:127.0.0.1:%" PRIu64 "-:%d,hostfwd=tcp:127.0.0.1:%" PRIu64
		"-:%d",
		l->m->port, MACHINE_API_PORT, l->m->exec_port, MACHINE_EXEC_PORT);
	arg(l, "-device");
	arg(l, "virtio-net-pci,netdev=n,romfile=");
	arg(l, "-add-fd");
	arg(l, "fd=%d,set=1", ready_fd);
	arg(l, "-chardev");
	arg(l, "file,id=ready,path=/dev/fdset/1,append=on");
	arg(l, "-device");
	arg(l, "virtio-serial-pci");
	arg(l, "-device");
	arg(l, "virtserialport,chardev=ready,name=ready");
	arg(l, "-fw_cfg"); /* not on the command line of the kernel: any process in there can read
			      that */
	arg(l, "name=opt/mayfly/token,file=%s", machine_path(l->m, "token", p));
}

static void add_kernel(struct launch *l)
{
	char tsc[128] = "";

	/* The kernel in there refines the rate after its KVM took it. A difference above KVM's
	 * tolerance (250 ppm) makes it set up a scaling that this CPU lacks, and the VMs' clocks
	 * jump and their timers never end. */
	if (!l->kvm)
		snprintf(tsc, sizeof(tsc),
			" tsc=reliable tsc_early_khz=%lu no_timer_check "
			"kvm.tsc_tolerance_ppm=20000",
			tsc_khz());
	arg(l, "-kernel");
	arg(l, "%s", l->kernel);
	arg(l, "-append");
	/* loglevel=1: a nested VM's "Unhandled WRMSR" lines each cost an exit to the serial port */
	arg(l,
		"root=/dev/vda rootfstype=ext4 rw init=/sbin/mayfly-machine-init console=ttyS0 "
		"quiet loglevel=1 panic=-1 oops=panic"
		" ip=10.0.2.15::10.0.2.2:255.255.255.0:mayfly-machine:eth0:off kvm.ignore_msrs=1 "
		"kvm.report_ignored_msrs=0%s%s%s%s",
		tsc, l->o->idle_poll ? " idle=poll" : "", l->o->append ? " " : "",
		l->o->append ? l->o->append : "");
}

/* In the child: becomes QEMU, holding the lock and the ready pipe. */
_noreturn_ static void become_qemu(struct launch *l, char **argv, int ready_fd)
{
	char path[PATH_MAX], text[1024], *p;
	unsigned long long start = 0;
	int log_to, null_fd = open("/dev/null", O_RDWR | O_CLOEXEC), n;

	setsid();
	if (file_read("/proc/self/stat", text, sizeof(text)) == 0) {
		p = strrchr(text, ')');
		for (int field = 2; p && field < 22; field++)
			p = strchr(p + 1, ' ');
		if (p)
			start = strtoull(p, NULL, 10);
	}
	n = snprintf(text, sizeof(text), "%d %llu\n", (int)getpid(), start);
	if (file_write(machine_path(l->m, "pid", path), text, (size_t)n, 0600) < 0)
		_exit(1);
	log_to = open(machine_path(l->m, "qemu.log", path),
		O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (log_to < 0 || dup2(null_fd, 0) < 0 || dup2(log_to, 1) < 0 || dup2(log_to, 2) < 0)
		_exit(1);
	/* QEMU outlives us. It must not inherit the descriptors of our caller, which may be
	 * locks. */
	close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
	fcntl(l->m->lock_fd, F_SETFD, 0);
	fcntl(ready_fd, F_SETFD, 0);
	setenv("TMPDIR", machine_path(l->m, "tmp", path), 1); /* the root's throw-away layer */
	execvp(argv[0], argv);
	dprintf(2, "%s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

/* The appliance's one line, or what QEMU said before it ended. */
static int await_ready(const struct machine *m, int fd, struct err *e)
{
	uint64_t end = mono_ns() + READY_WAIT_MS * UINT64_C(1000000);
	char line[300] = "", path[PATH_MAX], log[1024];
	size_t n = 0;

	while (n < sizeof(line) - 1 && !strstr(line, "ready ") && !strstr(line, "error: ")) {
		int64_t left = (int64_t)(end - mono_ns()) / 1000000;
		struct pollfd p = {.fd = fd, .events = POLLIN};
		ssize_t got;

		if (left <= 0 || poll(&p, 1, (int)left) == 0)
			return err_plain(e, ETIMEDOUT,
				"the machine was not ready within %d s: see %s",
				READY_WAIT_MS / 1000, machine_path(m, "console.log", path));
		got = read(fd, line + n, sizeof(line) - 1 - n);
		if (got <= 0)
			break;
		n += (size_t)got;
		line[n] = 0;
	}
	line[strcspn(line, "\n")] = 0;
	if (strstr(line, "ready "))
		return 0;
	if (n)
		return err_plain(e, EIO, "the machine gave up: %s", line);
	if (file_read(machine_path(m, "qemu.log", path), log, sizeof(log)) == 0 && log[0])
		return err_plain(e, EIO, "QEMU: %s", log);
	return err_plain(e, EIO, "the machine ended before it was ready: see %s",
		machine_path(m, "console.log", path));
}

/* QEMU's user network listens for its forwarded ports with a backlog of one. A burst of clients
 * overflows that: the last packet of their handshake is thrown away, they believe that they are
 * connected, and a minute later they are reset. A second listen() on the same socket widens it.
 * Where we may not have the socket it stays as it was. */
static void widen_backlogs(pid_t pid)
{
	_cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	char path[64];
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = pidfd < 0 ? NULL : opendir(path);
	for (struct dirent *de; d && (de = readdir(d));) {
		_cleanup_close_ int fd = -1;
		int listening = 0, domain = 0;
		socklen_t n = sizeof(listening), m = sizeof(domain);

		if (de->d_name[0] == '.')
			continue;
		fd = (int)syscall(SYS_pidfd_getfd, pidfd, (int)strtol(de->d_name, NULL, 10), 0);
		if (fd >= 0 && !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &n) &&
			listening && !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &m) &&
			domain == AF_INET)
			listen(fd, FORWARD_BACKLOG);
	}
	if (d)
		closedir(d);
}

static int launch_once(struct launch *l, struct err *e)
{
	_cleanup_close_ int rd = -1, wr = -1;
	char *argv[ARGV_MAX + 1];
	uint8_t token[MACHINE_TOKEN_BYTES];
	char path[PATH_MAX];
	int p[2], rc;
	pid_t pid;

	random_bytes(token, sizeof(token));
	rc = file_write(machine_path(l->m, "token", path), token, sizeof(token), 0600);
	l->m->exec_port = 0;
	if (rc == 0)
		rc = probe_port(&l->m->exec_port);
	if (rc == 0)
		rc = machine_save(l->m);
	if (rc < 0)
		return err_set(e, -rc, "%s", l->m->dir);
	if (pipe2(p, O_CLOEXEC) < 0)
		return err_set(e, errno, "pipe");
	rd = p[0];
	wr = p[1];
	buf_reset(&l->text);
	l->n = 0;
	add_board(l);
	add_devices(l, wr);
	add_kernel(l);
	for (size_t i = 0; i < l->n; i++)
		argv[i] = (char *)l->text.p + l->at[i];
	argv[l->n] = NULL;
	pid = fork();
	if (pid < 0)
		return err_set(e, errno, "fork");
	if (pid == 0)
		become_qemu(l, argv, wr);
	close_fd(&wr);
	rc = await_ready(l->m, rd, e);
	if (rc == 0)
		widen_backlogs(pid);
	return rc;
}

static int find_parts(struct launch *l, struct err *e)
{
	struct kvm_verdict v;
	struct sysinfo si;
	int rc = qemu_version(&l->qemu_major, e);

	if (rc == 0)
		rc = asset_kernel("appliance-vmlinux", l->o->kernel, l->kernel, e);
	if (rc == 0)
		rc = asset_machine_root(l->root, e);
	if (rc < 0)
		return rc;
	if (sysinfo(&si) == 0 &&
		l->m->memory_bytes + MIB(256) > (uint64_t)si.totalram * si.mem_unit)
		return err_plain(e, ENOMEM,
			"this host has %" PRIu64 " MiB of memory, and the machine needs %" PRIu64
			" and 256 more: choose less with --memory",
			(uint64_t)si.totalram * si.mem_unit >> 20, l->m->memory_bytes >> 20);
	kvm_probe(&v);
	l->kvm = v.usable;
	snprintf(l->m->accel, sizeof(l->m->accel), "%s", v.usable ? "kvm" : "tcg");
	if (!v.usable && l->qemu_major < 10)
		fprintf(stderr,
			"mayfly: QEMU %u: XSAVE and AVX are hidden from the sandboxes (QEMU 10 "
			"would not need that)\n",
			l->qemu_major);
	return 0;
}

int machine_launch(struct machine *m, const struct machine_opts *o, struct err *e)
{
	static const char *const dirs[] = {"share", "exchange", "tmp"};
	struct launch l = {.m = m, .o = o};
	uint64_t port = o->port;
	char path[PATH_MAX];
	int rc = probe_port(&port);

	if (rc < 0)
		return err_set(e, -rc,
			"port %" PRIu64 " (choose another with --port, or 0 for any)", o->port);
	m->port = port;
	m->memory_bytes = o->memory_bytes;
	m->cpus = o->cpus;
	tree_remove(machine_path(m, "tmp", path)); /* layers of a run that was killed */
	for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
		if (mkdir(machine_path(m, dirs[i], path), 0755) < 0 && errno != EEXIST)
			return err_set(e, errno, "%s", path);
	rc = find_parts(&l, e);
	if (rc == 0)
		rc = ensure_data(m, o->disk_bytes, e);
	buf_init(&l.text, KIB(128));
	for (int i = 0; rc == 0 && i < ATTEMPTS; i++) {
		rc = launch_once(&l, e);
		/* another process took a port between probe_port() and QEMU's bind: try again */
		if (rc == 0 || !e || !strstr(e->msg, "host forwarding rule"))
			break;
		if (i < ATTEMPTS - 1)
			rc = 0;
	}
	buf_fini(&l.text);
	close_fd(&m->lock_fd); /* QEMU holds it now, or nobody */
	return rc;
}
