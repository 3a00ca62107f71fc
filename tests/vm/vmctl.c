/* SPDX-License-Identifier: Apache-2.0
 *
 * vmctl.c: see vmctl.h. A test program.
 */
#include "tests/vm/vmctl.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "lib/fdpass.h"

const char *vmctl_template = "";
uint32_t vmctl_boot_flags;
const char *vmctl_program = "mayfly-vmm";

static int listen_at(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	unlink(path);
	ASSERT(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 16) == 0);
	return fd;
}

void vmctl_start(struct vmctl *v)
{
	static unsigned int number;
	int s[2], l, kvm;

	*v = (struct vmctl){.ready = -1};
	snprintf(v->sock, sizeof(v->sock), "/tmp/drive.%d.%u", (int)getpid(), number++);
	ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0);
	l = listen_at(v->sock);
	v->words = memfd_create("words", MFD_CLOEXEC);
	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	v->ctl = s[0];
	v->pid = fork();
	if (v->pid == 0) {
		/* a driver that is cut short leaves no VMs that run on */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* out of the way first: the numbers wanted may be in use */
		int from[4] = {fcntl(s[1], F_DUPFD, 20), fcntl(l, F_DUPFD, 20),
			fcntl(v->words, F_DUPFD, 20), fcntl(kvm, F_DUPFD, 20)};
		int to[4] = {VMM_FD_CONTROL, VMM_FD_VSOCK, VMM_FD_LASTWORDS, VMM_FD_KVM};

		for (int i = 0; i < 4; i++)
			dup2(from[i], to[i]);
		for (int i = VMM_FD_FIXED_END; i < 200; i++)
			close(i);
		execl(vmctl_program, "mayfly-vmm", getenv("VMM_ARG"), (char *)NULL);
		_exit(127);
	}
	close(s[1]);
	close(l);
	close(kvm);
}

static void note_event(struct vmctl *v, const struct vmm_hdr *h, const void *p, int fd)
{
	struct cur c = cur_of(p, h->len);

	if (h->type == VMM_EV_GUEST_CONN) {
		if (cur_u32(&c) == VSOCK_PORT_READY) {
			close_fd(&v->ready);
			v->ready = fd;
			return;
		}
	} else if (h->type == VMM_EV_EXITED) {
		v->exited = true;
		v->exit_why = cur_u32(&c);
		cur_str(&c, v->exit_text, sizeof(v->exit_text));
	} else if (h->type == VMM_EV_NEEDS_RESET) {
		char dev[32], why[200];

		cur_str(&c, dev, sizeof(dev));
		cur_str(&c, why, sizeof(why));
		snprintf(v->reset_text, sizeof(v->reset_text), "%s: %s", dev, why);
	} else if (h->type == VMM_EV_SNAPSHOT) {
		v->snapped = true;
		cur_u32(&c);
		v->snap_status = (int)cur_u32(&c);
		v->snap_bytes = cur_u64(&c);
		cur_str(&c, v->snap_text, sizeof(v->snap_text));
		v->snap_pages = cur_u64(&c);
		v->snap_kept = cur_u32(&c);
	}
	close_fd(&fd);
}

/* One message: its type, 0 after limit_ms, -1 when the VMM is gone. A reply's payload goes to out.
 */
static int receive(struct vmctl *v, int limit_ms, struct vmm_hdr *h, struct buf *out)
{
	struct pollfd p = {.fd = v->ctl, .events = POLLIN};
	static uint8_t room[VMM_MSG_MAX];
	size_t nfds = 1;
	int fd = -1;
	ssize_t n;

	if (poll(&p, 1, limit_ms) <= 0)
		return 0;
	n = fdpass_recv(v->ctl, room, sizeof(room), &fd, &nfds);
	if (n < (ssize_t)sizeof(*h))
		return -1;
	if (!nfds)
		fd = -1;
	memcpy(h, room, sizeof(*h));
	if (!(h->type & VMM_REPLY)) {
		note_event(v, h, room + sizeof(*h), fd);
		return h->type;
	}
	close_fd(&fd);
	if (h->status < 0)
		fprintf(stderr, "vmm: request %u: %d: %.*s\n", h->type & ~VMM_REPLY, h->status,
			(int)h->len - 4, room + sizeof(*h) + 4);
	else if (out)
		buf_put(out, room + sizeof(*h), h->len);
	return h->type;
}

int vmctl_call(struct vmctl *v, uint16_t type, const struct buf *in, const int *fds, size_t nfds,
	struct buf *out)
{
	struct vmm_hdr h = {.magic = VMM_MAGIC,
		.version = VMM_VERSION,
		.type = type,
		.id = ++v->ids,
		.len = in ? (uint32_t)in->len : 0,
		.nfds = (uint32_t)nfds};
	struct buf m;

	buf_init(&m, VMM_MSG_MAX);
	buf_put(&m, &h, sizeof(h));
	if (in)
		buf_put(&m, in->p, in->len);
	if (fdpass_send(v->ctl, m.p, m.len, fds, nfds) < 0) {
		buf_fini(&m);
		return -EPIPE;
	}
	buf_fini(&m);
	for (;;) {
		int t = receive(v, 300000, &h, out);

		if (t <= 0)
			return -ETIMEDOUT;
		if ((t & (int)VMM_REPLY) && h.id == v->ids)
			return h.status;
	}
}

int vmctl_prepare(struct vmctl *v, uint64_t mem, uint32_t vcpus)
{
	struct buf b;
	int rc;

	buf_init(&b, 256);
	buf_u64(&b, mem);
	buf_u32(&b, vcpus);
	buf_str(&b, vmctl_template);
	buf_u32(&b, 0);
	rc = vmctl_call(v, VMM_PREPARE, &b, NULL, 0, NULL);
	buf_fini(&b);
	return rc;
}

static size_t put_disk(struct buf *b, const struct vmctl_disk *d, int *fds)
{
	size_t k = 0;

	buf_u16(b, d ? 1 : 0);
	if (!d)
		return 0;
	buf_u32(b, 0);
	buf_str(b, "test");
	buf_u16(b, (uint16_t)d->nfrozen);
	fds[k++] = d->base;
	for (unsigned int i = 0; i < d->nfrozen; i++)
		fds[k++] = d->frozen[i];
	if (d->nfrozen)
		fds[k++] = d->index;
	fds[k++] = d->data;
	fds[k++] = d->bitmap;
	return k;
}

int vmctl_boot(struct vmctl *v, int kernel, int initrd, const char *cmdline)
{
	int fds[20] = {kernel, initrd}, rc;
	size_t k = 2;
	struct buf b;

	buf_init(&b, 4096);
	buf_str(&b, cmdline);
	buf_u32(&b, vmctl_boot_flags);
	k += put_disk(&b, v->disk, fds + k);
	rc = vmctl_call(v, VMM_BOOT, &b, fds, k, NULL);
	buf_fini(&b);
	return rc;
}

int vmctl_restore(struct vmctl *v, int state, const int *mem, unsigned int n, int ws,
	uint32_t flags, struct buf *out)
{
	int fds[24] = {state}, rc;
	size_t k = 1;
	struct buf b;

	for (unsigned int i = 0; i < n; i++)
		fds[k++] = mem[i];
	if (ws >= 0)
		fds[k++] = ws;
	buf_init(&b, 256);
	buf_u32(&b, flags | (ws >= 0 ? VMM_F_HAS_WS : 0));
	buf_u16(&b, (uint16_t)n);
	k += put_disk(&b, v->disk, fds + k);
	rc = vmctl_call(v, VMM_RESTORE, &b, fds, k, out);
	buf_fini(&b);
	return rc;
}

int vmctl_snapshot(struct vmctl *v, int state, int mem, uint32_t flags, uint64_t *stopped_ns)
{
	int fds[5] = {state, mem, v->freeze[0], v->freeze[1], v->freeze[2]}, rc;
	bool freeze = v->freeze[0] != 0;
	struct buf b, out;
	struct cur c;

	v->snapped = false;
	buf_init(&b, 256);
	buf_init(&out, 4096);
	buf_u32(&b, flags);
	buf_u16(&b, freeze);
	rc = vmctl_call(v, VMM_SNAPSHOT, &b, fds, freeze ? 5 : 2, &out);
	v->snap_replied_ns = mono_ns();
	c = cur_of(out.p, out.len);
	if (stopped_ns)
		*stopped_ns = cur_u64(&c);
	else
		cur_u64(&c);
	cur_u64(&c);
	v->dropped = cur_u16(&c) ? (int)cur_u32(&c) : -1;
	memset(v->freeze, 0, sizeof(v->freeze));
	buf_fini(&b);
	buf_fini(&out);
	return rc;
}

enum what { READY, SNAPPED, EXITED, RESET };

static bool is(const struct vmctl *v, enum what w)
{
	return w == READY     ? v->ready >= 0
	       : w == SNAPPED ? v->snapped
	       : w == RESET   ? v->reset_text[0] != 0
			      : v->exited;
}

static bool wait_for(struct vmctl *v, enum what w, int limit_ms)
{
	uint64_t end = mono_ns() + (uint64_t)limit_ms * 1000000;
	struct vmm_hdr h;

	while (!is(v, w)) {
		uint64_t now = mono_ns();

		if (now >= end || receive(v, (int)((end - now) / 1000000) + 1, &h, NULL) < 0)
			break;
	}
	return is(v, w);
}

bool vmctl_wait_ready(struct vmctl *v, int limit_ms)
{
	return wait_for(v, READY, limit_ms);
}

bool vmctl_wait_snapshot(struct vmctl *v, int limit_ms)
{
	return wait_for(v, SNAPPED, limit_ms);
}

bool vmctl_wait_reset(struct vmctl *v, int limit_ms)
{
	return wait_for(v, RESET, limit_ms);
}

bool vmctl_wait_exit(struct vmctl *v, int limit_ms)
{
	return wait_for(v, EXITED, limit_ms);
}

bool vmctl_gone(struct vmctl *v, int limit_ms)
{
	_cleanup_close_ int fd = (int)syscall(SYS_pidfd_open, v->pid, 0);
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return fd >= 0 && poll(&p, 1, limit_ms) == 1;
}

int vmctl_connect(struct vmctl *v)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct vsock_open o = {.magic = VSOCK_OPEN_MAGIC, .port = TG_PORT};
	_cleanup_close_ int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct timeval limit = {.tv_sec = 300}; /* twenty guests on one emulated CPU */

	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", v->sock);
	if (connect(s, (struct sockaddr *)&a, sizeof(a)) < 0 || write_full(s, &o, sizeof(o)) < 0 ||
		read_full(s, &o, sizeof(o)) < 0)
		return -1;
	if (o.status) {
		fprintf(stderr, "vsock: %s\n", strerror((int)o.status));
		return -1;
	}
	return take_fd(&s);
}

bool vmctl_guest(struct vmctl *v, struct tg_msg *m)
{
	_cleanup_close_ int s = vmctl_connect(v);

	return s >= 0 && write_full(s, m, sizeof(*m)) == 0 && read_full(s, m, sizeof(*m)) == 0;
}

long vmctl_rollup(struct vmctl *v, const char *key)
{
	char path[64], line[200];
	long kb = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)v->pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)) && line[strlen(key)] == ':')
			kb = atol(line + strlen(key) + 1);
	if (f)
		fclose(f);
	return kb;
}

void vmctl_kill(struct vmctl *v)
{
	int st;

	if (v->pid > 0) {
		kill(v->pid, SIGKILL);
		waitpid(v->pid, &st, 0);
	}
	v->pid = 0;
	close_fd(&v->ctl);
	close_fd(&v->words);
	close_fd(&v->ready);
	unlink(v->sock);
}
