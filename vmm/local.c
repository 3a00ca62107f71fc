/* SPDX-License-Identifier: Apache-2.0
 *
 * local.c: see local.h. mayfly-vmm, the device thread. Files are named by the developer who started
 * it; what is in them is still checked.
 */
#include "vmm/local.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "lib/log.h"
#include "vmm/restore.h"
#include "vmm/seal.h"
#include "vmm/snapshot.h"
#include "vmm/terminal.h"

struct local {
	struct vm *vm;
	const struct config *c;
	int sig_fd, ready_fd, code;
	bool snapping;
};

static int open_ro(const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? err_set(e, errno, "open %s", path) : fd;
}

static int open_in(const char *dir, const char *name, int flags, struct err *e)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, flags | O_CLOEXEC, 0600);
	return fd < 0 ? err_set(e, errno, "open %s", path) : fd;
}

/* ---- snapshot into a folder */

static void snap_replied(void *arg, const struct snapshot_done *d)
{
	log_info("snapshot: vCPUs were stopped for %llu us, %llu pages",
		(unsigned long long)d->stopped_ns / 1000, (unsigned long long)d->pages);
}

static void snap_durable(void *arg, const struct snapshot_done *d)
{
	struct local *l = arg;

	l->snapping = false;
	if (d->status < 0) {
		log_error("snapshot: %s", d->err.msg);
		if (!l->c->stay)
			loop_stop(l->vm->loop, 1);
		return;
	}
	log_info("snapshot: durable, %llu KiB", (unsigned long long)d->bytes >> 10);
	l->code = 0;
}

static void snap_now(void *arg)
{
	struct local *l = arg;
	struct snapshot_req r = {.flags = l->c->stay ? VMM_F_LIVE : VMM_F_EXIT,
		.arg = l,
		.ctx = l,
		.replied = snap_replied,
		.durable = snap_durable};
	struct err e = {0};

	if (!l->c->snapshot || l->snapping)
		return;
	mkdir(l->c->snapshot, 0700);
	r.state_fd = open_in(l->c->snapshot, "state", O_CREAT | O_TRUNC | O_RDWR, &e);
	r.mem_fd = r.state_fd < 0
			   ? -1
			   : open_in(l->c->snapshot, "mem.0", O_CREAT | O_TRUNC | O_RDWR, &e);
	if (r.mem_fd >= 0 && snapshot_start(l->vm, &r, &e) == 0) {
		l->snapping = true;
		return;
	}
	log_error("snapshot: %s", e.msg);
	loop_stop(l->vm->loop, 1);
}

/* ---- hooks */

static void on_event(void *ctx, enum vmm_type ev, const void *payload, size_t n, int fd)
{
	struct local *l = ctx;
	struct cur c = cur_of(payload, n);

	if (ev == VMM_EV_GUEST_CONN) {
		uint32_t port = cur_u32(&c);

		log_info("the guest connects to host port %u", port);
		/* stays open: if it is closed, the agent connects again */
		if (l->ready_fd >= 0)
			close(l->ready_fd);
		l->ready_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		/* deferred: we are called with the device's lock held */
		if (port == VSOCK_PORT_READY)
			loop_defer(l->vm->loop, snap_now, l);
	} else if (ev == VMM_EV_EXITED) {
		uint32_t why = cur_u32(&c);

		l->code = why == VMM_X_POWEROFF || why == VMM_X_RESET || why == VMM_X_FORCED ||
					  why == VMM_X_SNAPSHOTTED
				  ? 0
				  : 1;
	}
}

static void on_over(void *ctx)
{
	struct local *l = ctx;

	loop_stop(l->vm->loop, l->code);
}

static void print_stat(void *arg, const char *name, uint64_t value)
{
	dprintf(2, "%s=%llu\n", name, (unsigned long long)value);
}

static void on_signal(void *arg, uint32_t events)
{
	struct local *l = arg;
	struct signalfd_siginfo si;

	if (read(l->sig_fd, &si, sizeof(si)) != sizeof(si))
		return;
	if (si.ssi_signo == SIGUSR2)
		snap_now(l);
	else if (si.ssi_signo == SIGHUP)
		vm_stats(l->vm, print_stat, NULL);
	else
		vm_end(l->vm, VMM_X_FORCED, "interrupted");
}

static int watch_signals(struct local *l, struct err *e)
{
	sigset_t s;

	sigemptyset(&s);
	sigaddset(&s, SIGHUP);
	sigaddset(&s, SIGUSR2);
	sigaddset(&s, SIGINT);
	sigaddset(&s, SIGTERM);
	sigprocmask(SIG_BLOCK, &s, NULL);
	l->sig_fd = signalfd(-1, &s, SFD_CLOEXEC | SFD_NONBLOCK);
	if (l->sig_fd < 0 || !loop_watch(l->vm->loop, l->sig_fd, EPOLLIN, on_signal, l))
		return err_set(e, errno, "signalfd");
	return 0;
}

/* ---- what the options name */

static int listen_at(const char *path, struct err *e)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd;

	if (strlen(path) >= sizeof(a.sun_path))
		return err_plain(e, ENAMETOOLONG, "socket path %s", path);
	memcpy(a.sun_path, path, strlen(path) + 1);
	unlink(path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 64) < 0)
		return err_set(e, errno, "listen at %s", path);
	return fd;
}

static int open_disks(const struct config *c, struct vm_disk *d, struct err *e)
{
	for (unsigned int i = 0; i < c->ndisks; i++) {
		_cleanup_free_ char *copy = strdup(c->disk[i]);
		char *save = NULL, *base = strtok_r(copy, ",", &save),
		     *data = strtok_r(NULL, ",", &save);
		char *bitmap = strtok_r(NULL, ",", &save);

		d[i] = (struct vm_disk){.fds = COW_FDS_NONE, .flags = data ? 0 : VMM_DISK_RO};
		snprintf(d[i].serial, sizeof(d[i].serial), "disk%u", i);
		if (!base || (data && !bitmap))
			return err_plain(
				e, EINVAL, "disk %s: BASE or BASE,DATA,BITMAP", c->disk[i]);
		d[i].fds.base = open_ro(base, e);
		if (d[i].fds.base < 0)
			return -e->code;
		if (!data)
			continue;
		d[i].fds.data = open(data, O_RDWR | O_CLOEXEC);
		d[i].fds.bitmap = open(bitmap, O_RDWR | O_CLOEXEC);
		if (d[i].fds.data < 0 || d[i].fds.bitmap < 0)
			return err_set(e, errno, "open %s, %s", data, bitmap);
	}
	return 0;
}

/* Errors of the other modules say "kernel:" or "disk 0:", because they have only descriptors. Puts
 * the file's name before. */
static int name_file(const struct config *c, struct err *e)
{
	unsigned int i;

	if (!strncmp(e->msg, "kernel:", 7))
		return err_wrap(e, "%s", c->kernel);
	if (!strncmp(e->msg, "initramfs:", 10))
		return err_wrap(e, "%s", c->initrd);
	if (sscanf(e->msg, "disk %u:", &i) == 1 && i < c->ndisks)
		return err_wrap(e, "%s", c->disk[i]);
	return -e->code;
}

static int boot(struct local *l, struct vm_disk *d, struct err *e)
{
	const struct config *c = l->c;
	struct vm_size s = {.mem_bytes = c->memory_bytes, .vcpus = c->vcpus, .serial = c->serial};
	_cleanup_close_ int kernel = -1, initrd = -1;
	unsigned int taken;
	int rc;

	if (!c->kernel)
		return err_plain(e, EINVAL, "no kernel is named: pass --kernel FILE");
	snprintf(s.tmpl, sizeof(s.tmpl), "%s", c->cpu);
	kernel = open_ro(c->kernel, e);
	if (kernel < 0)
		return kernel;
	if (c->initrd) {
		initrd = open_ro(c->initrd, e);
		if (initrd < 0)
			return initrd;
	}
	rc = vm_prepare(l->vm, &s, e);
	if (rc == 0)
		rc = vm_add_disks(l->vm, d, c->ndisks, &taken, e);
	if (rc == 0)
		rc = vm_boot(l->vm, kernel, initrd, c->cmdline, e);
	return rc < 0 ? name_file(c, e) : 0;
}

/* One line for all phases: each write wakes the reader of the log while the guest runs already. */
static void print_phases(const struct restore_phases *ph)
{
	struct buf b;

	buf_init(&b, 1024);
	for (unsigned int i = 0; i < ph->n; i++)
		buf_printf(
			&b, "%s%s %.3f", i ? ", " : "", ph->p[i].name, (double)ph->p[i].ns / 1e6);
	log_info("restore: %s ms", buf_cstr(&b));
	buf_fini(&b);
}

static int restore(struct local *l, struct vm_disk *d, struct err *e)
{
	const struct config *c = l->c;
	_cleanup_close_ int state = open_in(c->restore, "state", O_RDONLY, e), ws = -1;
	struct restore_phases ph = {0};
	int mem[VMM_MAX_MEM], rc;
	unsigned int n = 0, taken;
	struct vm_size s;

	if (state < 0)
		return state;
	rc = restore_peek(state, &s, e);
	if (rc == 0)
		rc = vm_prepare(l->vm, &s, e);
	if (rc == 0)
		rc = vm_add_disks(l->vm, d, c->ndisks, &taken, e);
	for (; rc == 0 && n < VMM_MAX_MEM; n++) {
		char name[16];

		snprintf(name, sizeof(name), "mem.%u", n);
		mem[n] = open_in(c->restore, name, O_RDONLY, e);
		if (mem[n] < 0)
			break;
	}
	if (rc == 0 && n == 0)
		rc = -e->code;
	ws = open_in(c->restore, "ws", O_RDONLY, NULL);
	if (rc == 0)
		rc = restore_vm(l->vm, state, mem, n, ws < 0 ? -1 : ws,
			VMM_F_RUN | (ws < 0 ? 0 : VMM_F_HAS_WS), &ph, e);
	if (rc == 0)
		print_phases(&ph);
	while (n--)
		close(mem[n]);
	if (rc == 0)
		return 0;
	name_file(c, e);
	return err_wrap(e, "%s", c->restore);
}

int local_run(struct vm *vm, const struct config *c, struct err *e)
{
	static struct local l;
	struct vm_disk d[VMM_MAX_DISKS];
	struct terminal *t = NULL;
	int rc;

	l = (struct local){.vm = vm, .c = c, .code = 1, .ready_fd = -1};
	vm->hooks = (struct vm_hooks){.ctx = &l, .event = on_event, .over = on_over};
	vm->serial_fd = vm->console_fd = 1;
	rc = watch_signals(&l, e);
	if (rc == 0 && c->vsock) {
		vm->vsock_fd_given = listen_at(c->vsock, e);
		rc = vm->vsock_fd_given < 0 ? -e->code : 0;
	}
	if (rc == 0)
		rc = open_disks(c, d, e);
	if (rc == 0)
		rc = c->restore ? restore(&l, d, e) : boot(&l, d, e);
	if (rc == 0 && !(t = terminal_start(vm, e)))
		rc = -e->code;
	if (rc == 0)
		rc = loop_run(vm->loop);
	terminal_stop(t);
	return rc;
}
