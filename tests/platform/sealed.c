/* SPDX-License-Identifier: Apache-2.0
 *
 * sealed: goes into each kind of jail as its program does, the last stage included, and tries what
 * must be impossible: the monitor's device thread, its vCPU threads, the forked snapshot writer,
 * image jobs with and without network. Each try is a process of its own, because most end it.
 * mayfly-net has net_wall.c. Needs root (77 = skipped). The neighbour to attack is another process
 * of this test, of another user.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <liburing.h>
#include <linux/kvm.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "images/job/seal.h"
#include "lib/jail.h"
#include "lib/proto_vmm.h"
#include "tests/platform/inside.h"
#include "vmm/bio.h"
#include "vmm/crash.h"
#include "vmm/seal.h"

#define JAIL_UID     312345
#define NEIGHBOUR    312346
#define FD_STAGE     4 /* a folder; the monitor has its vsock listener there */
#define FD_LENT      3 /* what a job reads of the store: read-only */
#define FD_WORDS     5 /* the monitor's last words */
#define FD_BASE      6 /* the base image: read-only, and nobody's who is jailed */
#define DIES         (128 + SIGSYS)
#define REPORTED     200 /* ended, and its last words say by which signal */
#define ANY_ERRNO(r) ((r) < 0 ? errno : 0)

enum kind { DEVICE, VCPU, WRITER, BUILD, PULL, KINDS };
static const char *const names[KINDS] = {"monitor", "vCPU", "writer", "image build", "image pull"};
#define M(k)    (1u << (k))
#define MONITOR (M(DEVICE) | M(VCPU) | M(WRITER))
#define JOBS    (M(BUILD) | M(PULL))
#define ALL     (MONITOR | JOBS)

static struct {
	int proc_fd;
	pid_t neighbour;
	char file[64]; /* the neighbour's */
	struct io_uring ring;
	bool has_ring, reports;
} G;

static int try_ptrace(void)
{
	return ANY_ERRNO(ptrace(PTRACE_ATTACH, G.neighbour, NULL, NULL));
}
static int try_kill(void)
{
	return ANY_ERRNO(syscall(SYS_kill, G.neighbour, SIGKILL));
}
static int try_tgkill(void)
{
	return ANY_ERRNO(syscall(SYS_tgkill, G.neighbour, G.neighbour, SIGKILL));
}
static int try_read_memory(void)
{
	return ANY_ERRNO(syscall(SYS_process_vm_readv, G.neighbour, NULL, 0, NULL, 0, 0));
}
static int try_pidfd(void)
{
	return ANY_ERRNO(syscall(SYS_pidfd_open, G.neighbour, 0));
}
static int try_pidfd_getfd(void)
{
	return ANY_ERRNO(syscall(SYS_pidfd_getfd, 0, 0, 0));
}
static int try_neighbours_file(void)
{
	return ANY_ERRNO(openat(AT_FDCWD, G.file, O_RDONLY));
}
static int try_neighbours_file_by_proc(void)
{
	char path[100];

	snprintf(path, sizeof(path), "../../%s", G.file);
	return ANY_ERRNO(openat(G.proc_fd, path, O_RDONLY));
}
static int try_stage_dotdot(void)
{
	return ANY_ERRNO(openat(FD_STAGE, "../../../../../etc/passwd", O_RDONLY));
}
static int try_write_base(void)
{
	return ANY_ERRNO(pwrite(FD_BASE, "x", 1, 0));
}
static int try_cut_base(void)
{
	return ANY_ERRNO(ftruncate(FD_BASE, 0));
}
static int try_map_base(void)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, FD_BASE, 0);

	return p == MAP_FAILED ? errno : 0;
}
static int try_reopen_base(void)
{
	return ANY_ERRNO(openat(G.proc_fd, "self/fd/6", O_RDWR));
}
static int try_write_lent(void)
{
	return ANY_ERRNO(pwrite(FD_LENT, "x", 1, 0));
}
static int try_cut_lent(void)
{
	return ANY_ERRNO(ftruncate(FD_LENT, 0));
}
static int try_map_lent(void)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, FD_LENT, 0);

	return p == MAP_FAILED ? errno : 0;
}
static int try_reopen_lent(void)
{
	return ANY_ERRNO(openat(AT_FDCWD, "/proc/self/fd/3", O_RDWR));
}
static int try_exec(void)
{
	char *const none[] = {NULL};

	fcntl(FD_BASE, F_GETFL);
	execve("/proc/self/exe", none, none);
	return errno;
}
static int try_execveat(void)
{
	char *const none[] = {NULL};

	return ANY_ERRNO(syscall(SYS_execveat, FD_BASE, "", none, none, AT_EMPTY_PATH));
}
static int try_mount(void)
{
	return ANY_ERRNO(mount("t", "/", "tmpfs", 0, NULL));
}
static int try_unshare(void)
{
	return ANY_ERRNO(syscall(SYS_unshare, CLONE_NEWUSER));
}
static int try_clone_user(void)
{
	return ANY_ERRNO(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL));
}
static int try_clone3(void)
{
	return ANY_ERRNO(syscall(SYS_clone3, NULL, 0));
}
static int try_fork(void)
{
	return ANY_ERRNO(syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL));
}
static int try_code(void)
{
	void *p = mmap(
		NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? errno : 0;
}
static int try_mprotect_code(void)
{
	return ANY_ERRNO(syscall(SYS_mprotect, NULL, 0, PROT_EXEC));
}
static int try_inet(void)
{
	return ANY_ERRNO(socket(AF_INET, SOCK_STREAM, 0));
}
static int try_packet(void)
{
	return ANY_ERRNO(socket(AF_PACKET, SOCK_RAW, 0));
}
static int try_unix(void)
{
	return ANY_ERRNO(socket(AF_UNIX, SOCK_STREAM, 0));
}
static int try_listen(void)
{
	return ANY_ERRNO(listen(3, 1));
}
/* a pull finds registries by these, as the jail's user */
static int try_resolver_files(void)
{
	_cleanup_close_ int fd = openat(AT_FDCWD, "/etc/resolv.conf", O_RDONLY);

	return ANY_ERRNO(fd);
}
static int try_certificates(void)
{
	_cleanup_close_ int fd = openat(AT_FDCWD, "/etc/ssl", O_RDONLY | O_DIRECTORY);

	return ANY_ERRNO(fd);
}
static int try_tty(void)
{
	return ANY_ERRNO(ioctl(2, TIOCSTI, "x"));
}
static int try_kvm_create(void)
{
	return ANY_ERRNO(ioctl(3, KVM_CREATE_VM, 0));
}
static int try_kvm_run(void)
{
	return ANY_ERRNO(ioctl(99, KVM_RUN, 0));
}
static int try_read(void)
{
	char c;

	return ANY_ERRNO(read(99, &c, 1));
}
static int try_bpf(void)
{
	return ANY_ERRNO(syscall(SYS_bpf, 0, NULL, 0));
}
static int try_keyctl(void)
{
	return ANY_ERRNO(syscall(SYS_keyctl, 0, 0, 0, 0, 0));
}
static int try_perf(void)
{
	struct perf_event_attr a = {.size = sizeof(a)};

	return ANY_ERRNO(syscall(SYS_perf_event_open, &a, 0, -1, -1, 0));
}
static int try_userfaultfd(void)
{
	return ANY_ERRNO(syscall(SYS_userfaultfd, 0));
}
static int try_module(void)
{
	return ANY_ERRNO(syscall(SYS_init_module, NULL, 0, ""));
}
static int try_root(void)
{
	return ANY_ERRNO(syscall(SYS_setuid, 0));
}
static int try_handler(void)
{
	return signal(SIGSYS, SIG_IGN) == SIG_ERR ? errno : 0;
}
static int try_new_ring(void)
{
	struct io_uring_params p = {0};

	return ANY_ERRNO(syscall(SYS_io_uring_setup, 4, &p));
}
static int try_ring_register(void)
{
	return ANY_ERRNO(
		syscall(SYS_io_uring_register, G.ring.ring_fd, IORING_REGISTER_PROBE, NULL, 0));
}
/* an operation that the ring was not made for: seccomp never sees it */
static int ring_result(void)
{
	struct io_uring_cqe *c;

	if (io_uring_submit_and_wait(&G.ring, 1) < 0 || io_uring_peek_cqe(&G.ring, &c) < 0)
		return 125;
	return c->res < 0 ? -c->res : 0;
}
static int try_ring_openat(void)
{
	io_uring_prep_openat(io_uring_get_sqe(&G.ring), AT_FDCWD, "/", O_RDONLY, 0);
	return ring_result();
}
static int try_ring_connect(void)
{
	io_uring_prep_socket(io_uring_get_sqe(&G.ring), AF_INET, SOCK_STREAM, 0, 0);
	return ring_result();
}
static int try_ring_fsync(void)
{
	io_uring_prep_fsync(io_uring_get_sqe(&G.ring), FD_BASE, IORING_FSYNC_DATASYNC);
	return ring_result();
}

/* what must be possible to the very end */
static int try_assertion(void)
{
	abort();
}
static int try_stray_call(void)
{
	return ANY_ERRNO(syscall(SYS_sync));
}

/* a VM whose preparation fails joins its vCPUs' threads */
static void *short_vcpu(void *arg)
{
	vmm_seal_vcpu();
	return arg;
}
static int try_thread_end(void)
{
	pthread_t t;

	return pthread_create(&t, NULL, short_vcpu, NULL) ? 1 : pthread_join(t, NULL);
}

static const struct {
	const char *what;
	int (*fn)(void);
	unsigned int kinds;
	int want[2];
} rows[] = {
	{"ptrace a neighbour", try_ptrace, ALL, {DIES}},
	{"kill a neighbour", try_kill, ALL, {DIES}},
	{"signal a neighbour's thread", try_tgkill, ALL, {ESRCH}},
	{"read a neighbour's memory", try_read_memory, ALL, {DIES}},
	{"hold a neighbour by pidfd", try_pidfd, ALL, {DIES}},
	{"take a neighbour's descriptor", try_pidfd_getfd, ALL, {DIES}},
	{"open a neighbour's file by its path", try_neighbours_file, MONITOR, {DIES}},
	{"open a neighbour's file by its path", try_neighbours_file, JOBS, {ENOENT, EACCES}},
	{"open it from /proc upwards", try_neighbours_file_by_proc, M(DEVICE) | M(WRITER),
		{ENOENT, EACCES}},
	{"open it from /proc upwards", try_neighbours_file_by_proc, M(VCPU), {DIES}},
	{"read the resolver's configuration", try_resolver_files, M(PULL), {0}},
	{"read the resolver's configuration", try_resolver_files, M(BUILD), {ENOENT, EACCES}},
	{"see the certificates", try_certificates, M(PULL), {0}},
	{"see the certificates", try_certificates, M(BUILD), {ENOENT, EACCES}},
	{"leave the staging folder", try_stage_dotdot, JOBS, {ENOENT, EACCES}},
	{"write the base image", try_write_base, MONITOR, {EBADF}},
	{"cut the base image", try_cut_base, M(DEVICE) | M(WRITER), {EINVAL, EBADF}},
	{"map the base image writable", try_map_base, M(DEVICE) | M(WRITER), {EACCES}},
	{"open the base image again for writing", try_reopen_base, M(DEVICE) | M(WRITER), {EACCES}},
	{"write what it was lent of the store", try_write_lent, JOBS, {EBADF}},
	{"cut it", try_cut_lent, JOBS, {EINVAL}},
	{"map it writable", try_map_lent, JOBS, {EACCES}},
	{"open it again for writing", try_reopen_lent, JOBS, {ENOENT}},
	{"use a descriptor that nobody listed", try_write_base, JOBS, {EBADF}},
	{"keep a descriptor across exec", try_exec, ALL, {DIES}},
	{"run what a descriptor holds", try_execveat, ALL, {DIES}},
	{"mount", try_mount, ALL, {DIES}},
	{"make a user namespace", try_unshare, ALL, {DIES}},
	{"make one by clone", try_clone_user, ALL, {DIES}},
	{"clone3, whose flags cannot be seen", try_clone3, M(DEVICE) | JOBS, {ENOSYS}},
	{"clone3, whose flags cannot be seen", try_clone3, M(VCPU) | M(WRITER), {DIES}},
	{"fork", try_fork, ALL & ~M(DEVICE), {DIES}},
	{"map memory as code", try_code, ALL, {DIES}},
	{"make memory code", try_mprotect_code, ALL, {DIES}},
	{"make an internet socket", try_inet, ALL & ~M(PULL), {DIES}},
	{"make an internet socket", try_inet, M(PULL), {0}},
	{"make a packet socket", try_packet, ALL, {DIES}},
	{"make a Unix socket", try_unix, ALL & ~M(PULL), {DIES}},
	{"listen", try_listen, ALL, {DIES}},
	{"type on a terminal (forbidden ioctl)", try_tty, ALL, {DIES}},
	{"make another VM", try_kvm_create, ALL & ~M(DEVICE), {DIES}},
	{"run a vCPU", try_kvm_run, M(WRITER) | JOBS, {DIES}},
	{"run a vCPU", try_kvm_run, M(DEVICE) | M(VCPU), {EBADF}},
	{"read a descriptor", try_read, M(VCPU), {DIES}},
	{"load BPF", try_bpf, ALL, {DIES}},
	{"reach the kernel's keys", try_keyctl, ALL, {DIES}},
	{"watch by performance counters", try_perf, ALL, {DIES}},
	{"make a userfaultfd", try_userfaultfd, ALL, {DIES}},
	{"load a kernel module", try_module, ALL, {DIES}},
	{"become root", try_root, ALL, {DIES}},
	{"ignore the filter's signal", try_handler, MONITOR, {DIES}},
	{"make an io_uring of its own", try_new_ring, ALL, {DIES}},
	{"register with the ring it has", try_ring_register, M(DEVICE), {DIES}},
	{"open a file through the ring", try_ring_openat, M(DEVICE), {EACCES}},
	{"make a socket through the ring", try_ring_connect, M(DEVICE), {EACCES}},
	{"sync a file through the ring", try_ring_fsync, M(DEVICE), {0, EBADF}},
	{"end a vCPU's thread", try_thread_end, M(DEVICE), {0}},
	{"report a failed assertion", try_assertion, MONITOR, {REPORTED}},
	{"report a stray system call", try_stray_call, MONITOR, {REPORTED}},
	{"end by a failed assertion", try_assertion, JOBS, {128 + SIGABRT}},
};

struct attempt {
	enum kind kind;
	int (*fn)(void);
};

static int enter(enum kind k, struct err *e)
{
	uint32_t missing;

	if ((k == BUILD || k == PULL) && dup2(FD_BASE, FD_LENT) < 0)
		return err_set(e, errno, "dup2");
	if (k == BUILD || k == PULL)
		return job_sandbox(JAIL_UID, k == PULL, e);
	if (vmm_jail(JAIL_UID, &G.proc_fd, &missing, e) < 0)
		return -e->code;
	if (G.reports)
		crash_install(FD_WORDS);
	if (G.has_ring && bio_ring_open(&G.ring, 4) < 0)
		return err_plain(e, EIO, "no ring");
	if (vmm_seal(G.proc_fd, e) < 0)
		return -e->code;
	if (k == VCPU)
		vmm_seal_vcpu();
	if (k == WRITER)
		vmm_seal_child(G.proc_fd);
	return 0;
}

static int ring_in_jail(void *arg)
{
	struct err e;
	uint32_t missing;

	return vmm_jail(JAIL_UID, &G.proc_fd, &missing, &e) < 0 ? 2 : bio_ring_open(&G.ring, 4) < 0;
}

static int inside(void *arg)
{
	const struct attempt *a = arg;
	struct vmm_last_words w = {0};
	struct err e = {0};

	pid_t p;
	int st;

	G.reports = a->fn == try_assertion || a->fn == try_stray_call;
	/* not pid 1, which the kernel shields from signals of its own namespace */
	p = fork();
	if (p == 0) {
		if (enter(a->kind, &e) < 0) {
			fprintf(stderr, "%s\n", e.msg);
			_exit(126);
		}
		_exit(a->fn());
	}
	waitpid(p, &st, 0);
	if (G.reports && pread(FD_WORDS, &w, sizeof(w), 0) == sizeof(w) &&
		strstr(w.text,
			a->fn == try_assertion ? "died of signal 6" : "not on this thread's list"))
		return REPORTED;
	return WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
}

static void show(enum kind k, const char *what, int got, bool ok)
{
	printf("%s %-12s %-40s %s\n", ok ? "ok  " : "FAIL", names[k], what,
		got == DIES            ? "killed"
		: got == REPORTED      ? "reported"
		: got == 128 + SIGABRT ? "ended"
		: got                  ? strerror(got)
				       : "possible");
}

static void what_must_be_impossible_is_in_each_kind(void)
{
	for (enum kind k = 0; k < KINDS; k++)
		for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
			struct attempt a = {k, rows[i].fn};
			int got;
			bool ok;

			if (!(rows[i].kinds & M(k)) ||
				(!G.has_ring && strstr(rows[i].what, "the ring")))
				continue;
			CHECK_INT(ftruncate(FD_WORDS, 0), 0);
			got = in_new_pid_namespace(inside, &a);
			ok = got == rows[i].want[0] || (rows[i].want[1] && got == rows[i].want[1]);
			show(k, rows[i].what, got, ok);
			CHECK(ok);
		}
	CHECK_INT(kill(G.neighbour, 0), 0); /* it lives */
}

static const struct test tests[] = {
	{"what_must_be_impossible_is_in_each_kind", what_must_be_impossible_is_in_each_kind},
};

int main(int argc, char **argv)
{
	char dir[] = "/tmp/sealed.XXXXXX";
	int file, d, rc;

	if (!inside_can())
		return 77;
	signal(SIGPIPE, SIG_IGN);
	if (!mkdtemp(dir) || chmod(dir, 0755) < 0 || (d = open(dir, O_RDONLY | O_DIRECTORY)) < 0)
		return 1;
	snprintf(G.file, sizeof(G.file), "%s/of-the-neighbour", dir);
	file = open(G.file, O_CREAT | O_RDWR, 0644);
	if (file < 0 || write(file, "secret", 6) != 6 || (file = open(G.file, O_RDONLY)) < 0)
		return 1;
	/* the highest first: none may fall on another's number before that was moved */
	file = fcntl(file, F_DUPFD, 20);
	d = fcntl(d, F_DUPFD, 20);
	dup2(file, FD_BASE);
	dup2(d, FD_STAGE);
	dup2(d, 3);
	dup2(memfd_create("words", 0), FD_WORDS);
	G.neighbour = new_neighbour(NEIGHBOUR);
	G.has_ring = in_new_pid_namespace(ring_in_jail, NULL) == 0;
	if (!G.has_ring)
		printf("(this host forbids io_uring in a jail: what must not go through a ring is "
		       "not tried here)\n");
	rc = test_main(argc, argv, tests, ARRAY_LEN(tests));
	kill(G.neighbour, SIGKILL);
	unlink(G.file);
	rmdir(dir);
	return rc;
}
