/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: mayfly-vmm: one process, one virtual machine. The order matters: descriptors, jail, loop
 * and ring, seal, and only then the first byte that somebody else wrote. If the daemon starts
 * it, its descriptors have fixed numbers (lib/proto_vmm.h). If a developer starts it, it opens
 * files by name.
 */
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "lib/log.h"
#include "vmm/config.h"
#include "vmm/control.h"
#include "vmm/crash.h"
#include "vmm/local.h"
#include "vmm/seal.h"

struct daemon_mode {
	struct control *ctl;
	struct loop *loop;
};

static void daemon_event(void *ctx, enum vmm_type ev, const void *payload, size_t n, int fd)
{
	struct daemon_mode *d = ctx;

	if (d->ctl)
		control_event(d->ctl, ev, payload, n, fd);
}

static void daemon_over(void *ctx)
{
	struct daemon_mode *d = ctx;

	loop_stop(d->loop, 0);
}

/* The descriptors with fixed numbers. check_fds() finds out which of them are open, and checks that
 * each is what it must be. It runs before this process opens anything, or its own epoll descriptor
 * could have the number of KVM's. */
static const struct fixed_fd {
	int fd;
	const char *what;
	mode_t kind;   /* 0: a regular file or a character device */
	int sock_type; /* if kind is S_IFSOCK */
} fixed_fds[] = {
	{VMM_FD_CONTROL, "the control socket", S_IFSOCK, SOCK_SEQPACKET},
	{VMM_FD_VSOCK, "the listener for streams", S_IFSOCK, SOCK_STREAM},
	{VMM_FD_LASTWORDS, "the file for last words", 0, 0},
	{VMM_FD_KVM, "KVM", S_IFCHR, 0},
};

static int check_fd(const struct fixed_fd *f, bool *there, struct err *e)
{
	struct stat st;
	int type = 0;
	socklen_t len = sizeof(type);

	*there = fstat(f->fd, &st) == 0;
	if (!*there)
		return 0;
	if (f->kind && (st.st_mode & S_IFMT) != f->kind)
		return err_plain(e, EBADF, "descriptor %d is not %s", f->fd, f->what);
	if (!f->kind && !S_ISREG(st.st_mode) && !S_ISCHR(st.st_mode))
		return err_plain(e, EBADF, "descriptor %d is not %s", f->fd, f->what);
	if (f->kind == S_IFSOCK &&
		(getsockopt(f->fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0 || type != f->sock_type))
		return err_plain(e, EBADF, "descriptor %d is a socket, but not %s", f->fd, f->what);
	if (f->fd == VMM_FD_KVM && ioctl(f->fd, KVM_GET_API_VERSION, 0) != KVM_API_VERSION)
		return err_plain(e, EBADF, "descriptor %d is a device, but not KVM", f->fd);
	return 0;
}

static int check_fds(bool given[VMM_FD_FIXED_END], struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(fixed_fds); i++) {
		int rc = check_fd(&fixed_fds[i], &given[fixed_fds[i].fd], e);

		if (rc < 0)
			return rc;
	}
	return given[VMM_FD_CONTROL] ? 0
				     : err_plain(e, EBADF,
					       "descriptor %d is not there: --help says how to "
					       "start a VM by hand",
					       VMM_FD_CONTROL);
}

static int enter_jail(const struct config *c, int *proc_fd, struct err *e)
{
	uint32_t missing = 0;
	int rc = vmm_jail(c->jail_uid, proc_fd, &missing, e);

	if (rc == 0 && missing)
		log_warn("this host has no Landlock: the jail is used without it");
	return rc;
}

static int run_daemon(struct vm *vm, struct daemon_mode *d, const bool *given, struct err *e)
{
	if (given[VMM_FD_VSOCK])
		vm->vsock_fd_given = VMM_FD_VSOCK;
	if (given[VMM_FD_LASTWORDS])
		vm->lastwords_fd = VMM_FD_LASTWORDS;
	if (given[VMM_FD_KVM])
		vm->kvm_fd_given = VMM_FD_KVM;
	vm->serial_fd = 2;
	if (vm->sealed && vmm_seal(vm->proc_fd, e) < 0)
		return -e->code;
	d->ctl = control_create(vm, VMM_FD_CONTROL, e);
	if (!d->ctl)
		return -e->code;
	return loop_run(d->loop);
}

int main(int argc, char **argv)
{
	struct daemon_mode d = {0};
	struct vm_hooks h = {.ctx = &d, .event = daemon_event, .over = daemon_over};
	static struct vm vm; /* large, and a signal handler reads it */
	struct err e = {0};
	bool given[VMM_FD_FIXED_END] = {false};
	struct config c;
	int proc_fd = -1, rc;

	/* one heap for all threads: they allocate little, and the ninth heap would make the C library
	 * count CPUs in /sys, which a sealed thread may not open */
	mallopt(M_ARENA_MAX, 1);
	/* Large tables (a disk's requests, those of the device for volumes) are mapped, so that only the
	 * entries in use cost memory. The C library would raise this threshold at the first large free();
	 * after that calloc() takes such a table from the heap, clears it and touches every page. */
	mallopt(M_MMAP_THRESHOLD, 64 * 1024);
	rc = config_parse(&c, argc, argv, &e);
	if (rc == 0 && c.jail && c.jail_uid == 0)
		rc = err_plain(&e, EINVAL, "--jail 0: the jail's user must not be root");
	if (rc == 0 && c.no_jail == 1 && geteuid() == 0)
		rc = err_plain(&e, EPERM, "--no-jail as root: say it twice if you mean it");
	if (rc == 0 && !c.local && !c.help)
		rc = check_fds(given, &e);
	if (rc == 0 && c.jail)
		rc = enter_jail(&c, &proc_fd, &e);
	if (rc < 0) {
		fprintf(stderr, "mayfly-vmm: %s\n", e.msg);
		return 2;
	}
	if (c.help) {
		config_usage();
		return 0;
	}
	log_init(c.name ? c.name : "mayfly-vmm", 2, c.json_log);
	if (c.trace)
		log_level = LOG_TRACE;
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a write beyond the file's limit fails with EFBIG */
	d.loop = loop_create();
	rc = d.loop ? vm_init(&vm, d.loop, &h, &e) : err_set(&e, errno, "event loop");
	if (rc < 0)
		goto out;
	crash_install(given[VMM_FD_LASTWORDS] ? VMM_FD_LASTWORDS : -1);
	vm.proc_fd = proc_fd >= 0 ? proc_fd : open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	vm.sealed = !c.no_jail && !c.local; /* developer mode opens files while the VM runs */
	if (c.no_jail)
		log_warn("--no-jail: NOTHING BUT KVM STANDS BETWEEN THE GUEST AND THIS HOST");
	else if (c.local)
		log_warn("started by hand: no jail and no system-call filter, the guest is held by "
			 "KVM and by what this user may do");
	else if (!c.jail)
		log_warn("started without --jail: system calls are filtered, but files and network "
			 "are this user's");
	rc = c.local ? local_run(&vm, &c, &e) : run_daemon(&vm, &d, given, &e);
out:
	if (rc < 0)
		log_error("%s", e.code ? e.msg : strerror(-rc));
	/* no vm_fini(): the kernel frees everything, and faster */
	fflush(stdout);
	_exit(rc < 0 ? 1 : rc);
}
