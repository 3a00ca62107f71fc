/* SPDX-License-Identifier: Apache-2.0
 *
 * control.c: connections, requests, replies, events. mayfly-vmm, the device thread. Peers are not
 * trusted (ctlmsg.c parses what they send). A peer that does not read is cut off, nothing waits for
 * it. Requests are a table. A request that is answered later keeps a struct ctl_ref; if its
 * connection is gone by then, the reply is dropped.
 */
#include "vmm/control.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/fdpass.h"
#include "lib/log.h"
#include "vmm/ctlmsg.h"
#include "vmm/devices.h"
#include "vmm/fault.h"
#include "vmm/restore.h"
#include "vmm/snapshot.h"
#include "vmm/vblk.h"

#define MAX_CONNS  8u
#define MAX_KEPT   32u
#define MAX_QUEUED 256u
#define BUILD      "mayfly-vmm 0.1"

static_assert(VMM_FDS_MAX <= FDPASS_MAX, "a message holds what the protocol promises");

struct msg { /* header and payload */
	struct msg *next;
	size_t n;
	uint8_t b[];
};

struct conn {
	struct control *ctl;
	int fd;
	struct watch *watch;
	uint64_t serial;
	struct msg *out, **out_end;
	unsigned int queued;
};

struct ctl_ref {
	uint64_t conn;
	uint32_t id;
	uint16_t type;
};

struct control {
	struct vm *vm;
	int listen_fd;
	struct watch *watch;
	struct conn *conn[MAX_CONNS];
	uint64_t serials;
	struct msg *kept[MAX_KEPT]; /* ring: events for which there was no connection */
	unsigned int kept_at, kept_n;
	uint8_t room[VMM_MSG_MAX];
};

struct request {
	struct control *ctl;
	struct ctl_ref ref;
	struct cur in;
	int fds[FDPASS_MAX];
	size_t nfds;
	struct buf out;
};

/* ---- sending */

static void conn_drop(struct conn *c)
{
	struct control *ctl = c->ctl;

	for (unsigned int i = 0; i < MAX_CONNS; i++)
		if (ctl->conn[i] == c)
			ctl->conn[i] = NULL;
	watch_remove(c->watch);
	close(c->fd);
	while (c->out) {
		struct msg *m = c->out;

		c->out = m->next;
		free(m);
	}
	free(c);
}

static struct msg *msg_make(
	uint16_t type, uint32_t id, int status, const void *payload, size_t n, unsigned int nfds)
{
	struct vmm_hdr h = {.magic = VMM_MAGIC,
		.version = VMM_VERSION,
		.type = type,
		.id = id,
		.len = (uint32_t)n,
		.status = status,
		.nfds = nfds};
	struct msg *m = n <= VMM_MSG_MAX - sizeof(h) ? malloc(sizeof(*m) + sizeof(h) + n) : NULL;

	if (!m)
		return NULL;
	m->next = NULL;
	m->n = sizeof(h) + n;
	memcpy(m->b, &h, sizeof(h));
	if (n)
		memcpy(m->b + sizeof(h), payload, n);
	return m;
}

/* Sends or queues; takes m. A peer that leaves MAX_QUEUED messages unread is cut off. False: the
 * connection is gone. */
static bool conn_send(struct conn *c, struct msg *m)
{
	int rc = c->out ? -EAGAIN : fdpass_send(c->fd, m->b, m->n, NULL, 0);

	if (rc == -EAGAIN && c->queued < MAX_QUEUED) {
		*c->out_end = m;
		c->out_end = &m->next;
		c->queued++;
		watch_events(c->watch, EPOLLIN | EPOLLOUT);
		return true;
	}
	free(m);
	if (rc == 0)
		return true;
	conn_drop(c);
	return false;
}

static void conn_flush(struct conn *c)
{
	while (c->out) {
		struct msg *m = c->out;

		if (fdpass_send(c->fd, m->b, m->n, NULL, 0) == -EAGAIN)
			return;
		c->out = m->next;
		c->queued--;
		free(m);
	}
	c->out_end = &c->out;
	watch_events(c->watch, EPOLLIN);
}

static struct conn *conn_find(struct control *ctl, uint64_t serial)
{
	for (unsigned int i = 0; i < MAX_CONNS; i++)
		if (ctl->conn[i] && ctl->conn[i]->serial == serial)
			return ctl->conn[i];
	return NULL;
}

static void reply(struct control *ctl, const struct ctl_ref *r, int status, const struct buf *out,
	const struct err *e)
{
	struct conn *c = conn_find(ctl, r->conn);
	struct buf text;
	struct msg *m;

	if (!c)
		return;
	buf_init(&text, 4096);
	if (status < 0)
		buf_str(&text, e && e->code ? e->msg : strerror(-status));
	else if (out)
		buf_put(&text, out->p, out->len);
	m = msg_make(r->type | VMM_REPLY, r->id, status, text.p, text.len, 0);
	buf_fini(&text);
	if (m)
		conn_send(c, m);
}

static struct conn *newest(struct control *ctl)
{
	struct conn *best = NULL;

	for (unsigned int i = 0; i < MAX_CONNS; i++)
		if (ctl->conn[i] && (!best || ctl->conn[i]->serial > best->serial))
			best = ctl->conn[i];
	return best;
}

static void keep(struct control *ctl, struct msg *m)
{
	unsigned int at = (ctl->kept_at + ctl->kept_n) % MAX_KEPT;

	if (ctl->kept_n == MAX_KEPT) {
		free(ctl->kept[ctl->kept_at]);
		ctl->kept_at = (ctl->kept_at + 1) % MAX_KEPT;
		ctl->kept_n--;
	}
	ctl->kept[at] = m;
	ctl->kept_n++;
}

void control_event(struct control *ctl, enum vmm_type ev, const void *payload, size_t n, int fd)
{
	struct conn *c = newest(ctl);
	struct msg *m = msg_make((uint16_t)ev, 0, 0, payload, n, fd >= 0);

	if (!m)
		return;
	if (fd >= 0) {
		/* never queued: the descriptor is only lent. If the socket is full, the event is
		 * lost: a connection of the guest (VMM_EV_GUEST_CONN) then ends. */
		if (!c || c->out || fdpass_send(c->fd, m->b, m->n, &fd, 1) < 0)
			log_limited(LOG_WARN,
				"a descriptor was dropped: no control connection takes it");
		free(m);
		return;
	}
	if (c)
		conn_send(c, m);
	else
		keep(ctl, m);
}

/* ---- requests: 0 = reply with out, -errno = reply with the text, -EINPROGRESS = the reply comes
 * later */

static int do_hello(struct request *r, struct err *e)
{
	buf_u16(&r->out, VMM_VERSION);
	buf_str(&r->out, BUILD);
	buf_u32(&r->out, r->ctl->vm->state);
	buf_u32(&r->out, (uint32_t)getpid());
	return 0;
}

static void wait_for_restore(void *arg)
{
	vm_wait_for_restore(arg);
}

static int do_prepare(struct request *r, struct err *e)
{
	struct vm_size s;
	int rc = ctl_parse_prepare(&r->in, &s, e);

	if (rc == 0)
		rc = vm_prepare(r->ctl->vm, &s, e);
	/* after the reply: the client need not wait for this work */
	if (rc == 0)
		loop_defer(r->ctl->vm->loop, wait_for_restore, r->ctl->vm);
	return rc;
}

/* The devices own the descriptors of these disks now: the request must not close them. */
static void forget_fds(struct request *r, const struct vm_disk *d, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		const struct cow_fds *f = &d[i].fds;

		for (size_t k = 0; k < r->nfds; k++) {
			bool used = r->fds[k] == f->base || r->fds[k] == f->index ||
				    r->fds[k] == f->data || r->fds[k] == f->bitmap;

			for (unsigned int j = 0; j < f->nfrozen; j++)
				used |= r->fds[k] == f->frozen[j];
			if (used)
				r->fds[k] = -1;
		}
	}
}

static int do_boot(struct request *r, struct err *e)
{
	_cleanup_free_ struct ctl_boot *b = malloc(sizeof(*b));
	struct vm *vm = r->ctl->vm;
	unsigned int taken = 0;
	uint64_t t0 = mono_ns();
	int rc;

	if (!b)
		return err_set(e, ENOMEM, "boot");
	rc = ctl_parse_boot(&r->in, r->fds, r->nfds, b, e);
	if (rc == 0 && b->prepare && vm->state == VMM_S_BLANK)
		rc = vm_prepare(vm, &b->size, e);
	if (rc == 0 && vm->state != VMM_S_PREPARED)
		rc = err_plain(e, EBUSY, "boot: the VM is not in the prepared state");
	if (rc == 0 && (b->flags & VMM_F_NET))
		rc = devices_add_net(vm, e);
	if (rc == 0 && (b->flags & VMM_F_BALLOON))
		rc = devices_add_balloon(vm, e);
	if (rc == 0)
		rc = vm_add_disks(vm, b->disk, b->ndisks, &taken, e);
	forget_fds(r, b->disk, taken);
	if (rc < 0)
		return rc;
	rc = vm_boot(vm, b->kernel_fd, b->initrd_fd, b->cmdline, e);
	if (rc == 0)
		buf_u64(&r->out, (mono_ns() - t0) / 1000);
	return rc;
}

struct pause { /* a request that is answered when the VM is paused */
	struct control *ctl;
	struct ctl_ref ref;
};

static void pause_done(void *arg, int status)
{
	_cleanup_free_ struct pause *p = arg;
	struct err e = {0};

	if (status == -ETIMEDOUT)
		err_plain(&e, ETIMEDOUT, "pause: the VM did not stop within %u s, it runs on",
			VMM_STOP_LIMIT_S);
	else if (status == -ECANCELED)
		err_plain(&e, ECANCELED, "pause: cancelled by a continue, the VM runs");
	else if (status < 0)
		err_plain(&e, -status, "pause: the VM has ended");
	reply(p->ctl, &p->ref, status, NULL, &e);
}

static int do_pause(struct request *r, struct err *e)
{
	struct pause *p = malloc(sizeof(*p));
	int rc;

	if (!p)
		return err_set(e, ENOMEM, "pause");
	/* allowed while a live snapshot is written: its writer has a copy of the memory */
	*p = (struct pause){r->ctl, r->ref};
	rc = vm_pause(r->ctl->vm, pause_done, p, e);
	if (rc < 0)
		free(p);
	return rc < 0 ? rc : -EINPROGRESS;
}

static int do_continue(struct request *r, struct err *e)
{
	return vm_continue(r->ctl->vm, e);
}

static int do_net(struct request *r, struct err *e)
{
	uint32_t there = cur_u32(&r->in);
	uint64_t bytes = cur_u64(&r->in), packets = cur_u64(&r->in);

	if (!cur_done(&r->in) || there > 1 || r->nfds != there)
		return err_plain(e, EBADMSG, "net: payload");
	return devices_link_net(r->ctl->vm, there ? take_fd(&r->fds[0]) : -1, bytes, packets, e);
}

static int do_fs(struct request *r, struct err *e)
{
	uint32_t link = cur_u32(&r->in);

	if (!cur_done(&r->in) || link > 1 || r->nfds != 2 * link)
		return err_plain(e, EBADMSG, "file server: payload");
	if (link)
		return devices_link_fs(r->ctl->vm, take_fd(&r->fds[0]), take_fd(&r->fds[1]), e);
	devices_tell_fs_table(r->ctl->vm);
	return 0;
}

static int do_shutdown(struct request *r, struct err *e)
{
	uint32_t mode = cur_u32(&r->in);

	if (!cur_done(&r->in) || mode > 1)
		return err_plain(e, EBADMSG, "shutdown: mode");
	if (mode == 1)
		vm_end(r->ctl->vm, VMM_X_FORCED, "shut down by request");
	return 0; /* mode 0: the daemon asks the guest, through the agent; nothing to do here */
}

struct stat_out {
	struct buf *out;
	uint16_t n;
};

static void put_stat(void *arg, const char *name, uint64_t value)
{
	struct stat_out *o = arg;

	buf_str(o->out, name);
	buf_u64(o->out, value);
	o->n++;
}

static int do_stats(struct request *r, struct err *e)
{
	struct stat_out o = {.out = &r->out};

	buf_u16(&r->out, 0);
	vm_stats(r->ctl->vm, put_stat, &o);
	if (r->out.bad)
		return err_plain(e, E2BIG, "stats: more than a message holds");
	r->out.p[0] = (uint8_t)o.n;
	r->out.p[1] = (uint8_t)(o.n >> 8);
	return 0;
}

static int debug_regs(struct vm *vm, void *arg)
{
	struct buf *out = arg;
	char text[1200];

	for (unsigned int i = 0; i < vm->vcpus.n; i++) {
		size_t n = arch_regs_text(vm->vcpus.v[i].fd, text, sizeof(text));

		buf_printf(out, "vcpu%u\n", i);
		buf_put(out, text, n);
	}
	return 0;
}

/* With the vCPUs parked: on a running vCPU the ioctl waits, and this thread with it. */
static int debug_nmi(struct vm *vm, void *arg)
{
	return vm->vcpus.n ? arch_nmi(vm->vcpus.v[0].fd) : -ENODEV;
}

static int do_debug(struct request *r, struct err *e)
{
	uint32_t what = cur_u32(&r->in);
	uint64_t arg = cur_u64(&r->in);
	struct vm *vm = r->ctl->vm;
	char tail[VM_TAIL_MAX + 1];
	struct buf text;
	int rc = 0;

	if (!cur_done(&r->in))
		return err_plain(e, EBADMSG, "debug: payload");
	buf_init(&text, 32768);
	switch (what) {
	case VMM_DBG_LOG_LEVEL:
		log_level = (int)MIN(arg, LOG_TRACE);
		break;
	case VMM_DBG_NMI:
		rc = vm_with_parked(vm, debug_nmi, NULL);
		break;
	case VMM_DBG_REGS:
		rc = vm_with_parked(vm, debug_regs, &text);
		break;
	case VMM_DBG_CONSOLE:
		vm_console_tail(vm, tail, sizeof(tail));
		buf_printf(&text, "%s", tail);
		break;
	case VMM_DBG_FAULT:
		rc = fault_set(vm, arg);
		break;
	default:
		rc = -EINVAL;
	}
	buf_blob(&r->out, text.p, text.len);
	buf_fini(&text);
	return rc;
}

static int do_restore(struct request *r, struct err *e)
{
	_cleanup_free_ struct ctl_restore *q = malloc(sizeof(*q));
	struct restore_phases ph = {0};
	unsigned int taken = 0;
	int rc;

	if (!q)
		return err_set(e, ENOMEM, "restore");
	rc = ctl_parse_restore(&r->in, r->fds, r->nfds, q, e);
	if (rc == 0)
		rc = vm_add_disks(r->ctl->vm, q->disk, q->ndisks, &taken, e);
	forget_fds(r, q->disk, taken);
	if (rc < 0)
		return rc;
	rc = restore_vm(r->ctl->vm, q->state_fd, q->mem_fd, q->nmem, q->ws_fd, q->flags, &ph, e);
	buf_u16(&r->out, (uint16_t)ph.n);
	for (unsigned int i = 0; i < ph.n; i++) {
		buf_str(&r->out, ph.p[i].name);
		buf_u64(&r->out, ph.p[i].ns);
	}
	return rc;
}

static void snapshot_replied(void *arg, const struct snapshot_done *d)
{
	struct ctl_ref *ref = arg;
	struct control *ctl = d->ctx;
	struct buf out;

	buf_init(&out, 4096);
	buf_u64(&out, d->stopped_ns);
	buf_u64(&out, d->pages);
	buf_u16(&out, (uint16_t)d->ndisks);
	for (unsigned int i = 0; i < d->ndisks; i++)
		buf_u32(&out, (uint32_t)d->dropped[i]);
	reply(ctl, ref, d->status, &out, &d->err);
	buf_fini(&out);
}

static void snapshot_durable(void *arg, const struct snapshot_done *d)
{
	struct ctl_ref *ref = arg;
	struct buf b;

	buf_init(&b, 4096);
	buf_u32(&b, ref->id);
	buf_u32(&b, (uint32_t)d->status);
	buf_u64(&b, d->bytes);
	buf_str(&b, d->status < 0 ? d->err.msg : "");
	buf_u64(&b, d->pages);
	buf_u32(&b, d->kept_mem);
	control_event(d->ctx, VMM_EV_SNAPSHOT, b.p, b.len, -1);
	buf_fini(&b);
	free(ref);
}

static int do_snapshot(struct request *r, struct err *e)
{
	_cleanup_free_ struct ctl_snapshot *q = malloc(sizeof(*q));
	struct ctl_ref *ref = malloc(sizeof(*ref));
	struct snapshot_req req;
	int rc;

	if (!q || !ref) {
		free(ref);
		return err_set(e, ENOMEM, "snapshot");
	}
	*ref = r->ref;
	rc = ctl_parse_snapshot(&r->in, r->fds, r->nfds, q, e);
	if (rc == 0) {
		req = (struct snapshot_req){.flags = q->flags,
			.state_fd = q->state_fd,
			.mem_fd = q->mem_fd,
			.ndisks = q->ndisks,
			.ctx = r->ctl,
			.arg = ref,
			.replied = snapshot_replied,
			.durable = snapshot_durable};
		for (unsigned int i = 0; i < q->ndisks; i++)
			req.disk[i] = (struct snapshot_disk){
				q->disk[i].index_fd, q->disk[i].data_fd, q->disk[i].bitmap_fd};
		rc = snapshot_start(r->ctl->vm, &req, e);
	}
	if (rc < 0) {
		free(ref);
		return rc;
	}
	for (size_t i = 0; i < r->nfds; i++)
		r->fds[i] = -1; /* the job's now */
	return -EINPROGRESS;
}

static int do_workset(struct request *r, struct err *e)
{
	uint64_t nread = 0, nwritten = 0;
	int rc;

	if (r->nfds != 1 || !cur_done(&r->in))
		return err_plain(e, EBADMSG, "workset: takes one descriptor and no payload");
	rc = restore_record_workset(r->ctl->vm, r->fds[0], &nread, &nwritten, e);
	buf_u64(&r->out, nread);
	buf_u64(&r->out, nwritten);
	return rc;
}

static int do_ports(struct request *r, struct err *e)
{
	uint32_t ports[64];
	unsigned int n;
	int rc = ctl_parse_ports(&r->in, ports, ARRAY_LEN(ports), &n, e);

	return rc ? rc : devices_allow_ports(r->ctl->vm, ports, n, e);
}

static int do_layers(struct request *r, struct err *e)
{
	struct vm *vm = r->ctl->vm;

	if (!cur_done(&r->in))
		return err_plain(e, EBADMSG, "layers: takes no payload");
	buf_u32(&r->out, vm->state);
	buf_u32(&r->out, vm->job != NULL);
	buf_u16(&r->out, (uint16_t)vm->ndisks);
	for (unsigned int i = 0; i < vm->ndisks; i++) {
		uint8_t ids[COW_MAX_FROZEN + 1][COW_ID_BYTES];
		unsigned int n = cow_layer_ids(vblk_cow(vm->disk[i]), ids);

		buf_u8(&r->out, (uint8_t)n);
		buf_put(&r->out, ids, n * sizeof(ids[0]));
	}
	return 0;
}

static void taken(struct request *r, int fd)
{
	for (size_t i = 0; i < r->nfds; i++)
		if (r->fds[i] == fd)
			r->fds[i] = -1;
}

static int do_read_only(struct request *r, struct err *e)
{
	struct vm *vm = r->ctl->vm;
	struct ctl_read_only q;
	unsigned int k = 0;
	int rc = ctl_parse_read_only(&r->in, r->fds, r->nfds, &q, e);

	for (unsigned int i = 0; i < vm->ndisks && rc == 0; i++) {
		if (cow_is_read_only(vblk_cow(vm->disk[i])))
			continue;
		if (k == q.ndisks)
			return err_plain(e, EINVAL,
				"read-only layers: the request is for %u disks, more are writable",
				k);
		rc = vblk_frozen_read_only(
			vm->disk[i], q.disk[k].frozen, q.disk[k].n, q.disk[k].index, e);
		for (unsigned int x = 0; x < q.disk[k].n && rc == 0; x++)
			taken(r, q.disk[k].frozen[x]);
		if (rc == 0)
			taken(r, q.disk[k].index);
		k++;
	}
	if (rc == 0 && k != q.ndisks)
		rc = err_plain(e, EINVAL,
			"read-only layers: the request is for %u disks, %u are writable", q.ndisks,
			k);
	return rc;
}

static int do_disk_limit(struct request *r, struct err *e)
{
	struct vm *vm = r->ctl->vm;
	uint64_t bytes = cur_u64(&r->in);

	if (!cur_done(&r->in) || r->nfds)
		return err_plain(e, EBADMSG, "disk limit: the payload must be a number of bytes");
	for (unsigned int i = 0; i < vm->ndisks; i++)
		vblk_limit(vm->disk[i], bytes);
	return vm->ndisks ? 0 : err_plain(e, EAGAIN, "disk limit: there is no disk yet");
}

static int do_balloon(struct request *r, struct err *e)
{
	uint64_t bytes = cur_u64(&r->in), actual = 0;
	int rc;

	if (!cur_done(&r->in) || r->nfds)
		return err_plain(e, EBADMSG, "balloon: the payload must be a number of bytes");
	rc = devices_balloon(r->ctl->vm, bytes, &actual, e);
	buf_u64(&r->out, actual);
	return rc;
}

static const struct {
	int (*fn)(struct request *r, struct err *e);
	const char *name;
} ops[] = {
	[VMM_HELLO] = {do_hello, "hello"},
	[VMM_PREPARE] = {do_prepare, "prepare"},
	[VMM_BOOT] = {do_boot, "boot"},
	[VMM_RESTORE] = {do_restore, "restore"},
	[VMM_PAUSE] = {do_pause, "pause"},
	[VMM_CONTINUE] = {do_continue, "continue"},
	[VMM_SNAPSHOT] = {do_snapshot, "snapshot"},
	[VMM_SHUTDOWN] = {do_shutdown, "shutdown"},
	[VMM_STATS] = {do_stats, "stats"},
	[VMM_WORKSET] = {do_workset, "workset"},
	[VMM_DEBUG] = {do_debug, "debug"},
	[VMM_ALLOW_PORTS] = {do_ports, "ports"},
	[VMM_LAYERS] = {do_layers, "layers"},
	[VMM_NET] = {do_net, "net"},
	[VMM_FS] = {do_fs, "file server"},
	[VMM_READ_ONLY] = {do_read_only, "read-only layers"},
	[VMM_DISK_LIMIT] = {do_disk_limit, "disk limit"},
	[VMM_BALLOON] = {do_balloon, "balloon"},
};

static void on_message(struct control *ctl, uint64_t conn, struct request *r, size_t n)
{
	struct err e = {0};
	struct vmm_hdr h;
	int rc = ctl_parse_hdr(ctl->room, n, &h, &e);

	r->ctl = ctl;
	r->ref = (struct ctl_ref){.conn = conn, .id = h.id, .type = h.type};
	if (rc == 0 && (h.type >= ARRAY_LEN(ops) || !ops[h.type].fn))
		rc = err_plain(&e, EOPNOTSUPP, "request %u is not known", h.type);
	if (rc == 0) {
		r->in = cur_of(ctl->room + sizeof(h), h.len);
		buf_init(&r->out, VMM_MSG_MAX - sizeof(h));
		rc = ops[h.type].fn(r, &e);
		TRACE("%s: %d", ops[h.type].name, rc);
		if (rc < 0 && rc != -EINPROGRESS)
			log_info("%s: %s", ops[h.type].name, e.code ? e.msg : strerror(-rc));
	}
	for (size_t i = 0; i < r->nfds; i++)
		if (r->fds[i] >= 0)
			close(r->fds[i]);
	if (rc != -EINPROGRESS)
		reply(ctl, &r->ref, rc, &r->out, &e);
	buf_fini(&r->out);
}

static void on_conn(void *arg, uint32_t events)
{
	struct conn *c = arg;
	struct control *ctl = c->ctl;
	uint64_t serial = c->serial;

	if (events & EPOLLOUT)
		conn_flush(c);
	/* a few messages at a time, because the devices have their turns on this thread, too */
	for (int i = 0; i < 8; i++) {
		struct request r = {.nfds = FDPASS_MAX};
		ssize_t n = fdpass_recv(c->fd, ctl->room, sizeof(ctl->room), r.fds, &r.nfds);

		if (n == -EAGAIN)
			return;
		if (n <= 0) {
			conn_drop(c);
			return;
		}
		on_message(ctl, serial, &r, (size_t)n);
		c = conn_find(ctl, serial);
		if (!c)
			return;
	}
}

static void conn_add(struct control *ctl, int fd)
{
	struct conn *c = calloc(1, sizeof(*c));
	unsigned int at = 0;

	while (at < MAX_CONNS && ctl->conn[at])
		at++;
	if (!c || at == MAX_CONNS || fd_set_nonblock(fd, true) < 0) {
		log_limited(LOG_WARN, "a control connection was refused: at most %u, or no memory",
			MAX_CONNS);
		free(c);
		close(fd);
		return;
	}
	*c = (struct conn){.ctl = ctl, .fd = fd, .serial = ++ctl->serials, .out_end = &c->out};
	c->watch = loop_watch(ctl->vm->loop, fd, EPOLLIN, on_conn, c);
	ctl->conn[at] = c;
	if (!c->watch) {
		conn_drop(c);
		return;
	}
	for (; ctl->kept_n; ctl->kept_n--) {
		struct msg *m = ctl->kept[ctl->kept_at];

		ctl->kept_at = (ctl->kept_at + 1) % MAX_KEPT;
		if (!conn_send(c, m)) {
			ctl->kept_n--;
			return;
		}
	}
}

static void on_listen(void *arg, uint32_t events)
{
	struct control *ctl = arg;
	int fd = accept4(ctl->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd >= 0)
		conn_add(ctl, fd);
}

struct control *control_create(struct vm *vm, int listen_fd, struct err *e)
{
	struct control *ctl = calloc(1, sizeof(*ctl));
	int listening = 0;
	socklen_t len = sizeof(listening);

	if (!ctl) {
		err_set(e, ENOMEM, "control socket");
		return NULL;
	}
	ctl->vm = vm;
	ctl->listen_fd = -1;
	if (getsockopt(listen_fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) < 0) {
		err_set(e, errno, "descriptor %d is not a control socket", listen_fd);
		free(ctl);
		return NULL;
	}
	if (!listening) {
		conn_add(ctl, listen_fd);
		return ctl;
	}
	ctl->listen_fd = listen_fd;
	fd_set_nonblock(listen_fd, true);
	ctl->watch = loop_watch(vm->loop, listen_fd, EPOLLIN, on_listen, ctl);
	if (!ctl->watch) {
		err_set(e, errno, "watch the control socket");
		free(ctl);
		return NULL;
	}
	return ctl;
}

void control_destroy(struct control *ctl)
{
	if (!ctl)
		return;
	for (unsigned int i = 0; i < MAX_CONNS; i++)
		if (ctl->conn[i])
			conn_drop(ctl->conn[i]);
	watch_remove(ctl->watch);
	close_fd(&ctl->listen_fd);
	for (; ctl->kept_n; ctl->kept_n--, ctl->kept_at = (ctl->kept_at + 1) % MAX_KEPT)
		free(ctl->kept[ctl->kept_at]);
	free(ctl);
}
