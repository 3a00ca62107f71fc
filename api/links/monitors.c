/* SPDX-License-Identifier: Apache-2.0
 *
 * monitors.c: starts, prepares, boots, restores and clears away mayfly-vmm processes, and keeps the pool
 * of blank ones. mayflyd's loop. What comes over the control connection and in the agent's ready
 * message may come from the guest: it is bounded and checked.
 *
 * A slot is free again only when its process is reaped and its cgroup empty (PRIV_FREE). The sockets
 * are in <run_dir>/vm/<slot>; the daemon makes them, so that the next daemon finds them.
 */
#include "api/links/monitors.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "api/core/daemon.h"
#include "api/links/images.h"
#include "api/links/helper_client.h"
#include "api/links/monitor_client.h"
#include "lib/fdpass.h"
#include "lib/log.h"
#include "lib/proto_agent.h"

/* the VMM's own memory and page tables, beside the guest's */
#define VMM_OVERHEAD_BYTES MIB(160)
#define CLASSES_MAX        16
#define FREE_RETRY_NS      20000000ull

struct pool_class {
	struct size_class c;
	bool wanted;
};

struct vms {
	struct daemon *d;
	struct vm *all;
	struct vm **by_slot;
	unsigned int nblank; /* whose ops are blank_ops */
	bool *slot_used;
	uint32_t nslots, next_slot;
	struct pool_class classes[CLASSES_MAX];
	unsigned int nclasses;
	struct timer *refill;
	bool ending;
};

static const struct vm_ops blank_ops;

struct size_class size_class_of(uint64_t memory_bytes, uint32_t vcpus)
{
	struct size_class c = {256, 1};

	while (c.mem_mib < memory_bytes >> 20 || ((uint64_t)c.mem_mib << 20) < memory_bytes)
		c.mem_mib *= 2;
	while (c.vcpus < vcpus)
		c.vcpus *= 2;
	return c;
}

/* ---- slots and their folders */

static void slot_rmdir(struct vms *v, uint32_t slot)
{
	char path[128];
	static const char *const files[] = {"ctl", "vsock"};

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		snprintf(path, sizeof(path), "%s/vm/%u/%s", v->d->cfg.run_dir, slot, files[i]);
		unlink(path);
	}
	snprintf(path, sizeof(path), "%s/vm/%u", v->d->cfg.run_dir, slot);
	rmdir(path);
}

static int listener(const char *path, int type)
{
	_cleanup_close_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	if (fd < 0)
		return -errno;
	if (strlen(path) >= sizeof(a.sun_path))
		return -ENAMETOOLONG;
	str_copy(a.sun_path, sizeof(a.sun_path), path);
	unlink(path);
	if (bind(fd, (void *)&a, sizeof(a)) < 0 || listen(fd, 128) < 0)
		return -errno;
	return take_fd(&fd);
}

static void vm_paths(struct vm *vm)
{
	snprintf(vm->dir, sizeof(vm->dir), "%.80s/vm/%u", vm->d->cfg.run_dir, vm->slot);
	snprintf(vm->ctl_path, sizeof(vm->ctl_path), "%s/ctl", vm->dir);
	snprintf(vm->vsock_path, sizeof(vm->vsock_path), "%s/vsock", vm->dir);
}

static struct vm *vm_new(
	struct vms *v, uint32_t slot, struct size_class c, const struct vm_ops *ops, void *arg)
{
	struct vm *vm = calloc(1, sizeof(*vm));

	if (!vm)
		return NULL;
	*vm = (struct vm){.d = v->d,
		.cls = c,
		.slot = slot,
		.lastwords_fd = -1,
		.ctl_listen = -1,
		.vsock_listen = -1,
		.ready_fd = -1,
		.reason = VMM_X_COUNT,
		.ops = ops,
		.arg = arg,
		.next = v->all,
		.spawned_ns = mono_ns()};
	vm_paths(vm);
	if (v->all)
		v->all->prev = vm;
	v->all = vm;
	v->by_slot[slot] = vm;
	v->nblank += ops == &blank_ops;
	v->slot_used[slot] = true;
	return vm;
}

/* Changes the owner. Blank monitors change their owner only here, because they are counted. */
static void vm_give(struct vm *vm, const struct vm_ops *ops)
{
	struct vms *v = vm->d->vms;

	v->nblank -= vm->ops == &blank_ops;
	v->nblank += ops == &blank_ops;
	vm->ops = ops;
}

static void vm_free(struct vm *vm)
{
	struct vms *v = vm->d->vms;

	*(vm->prev ? &vm->prev->next : &v->all) = vm->next;
	if (vm->next)
		vm->next->prev = vm->prev;
	v->by_slot[vm->slot] = NULL;
	vm_give(vm, NULL);
	watch_remove(vm->ready_watch);
	vmmctl_destroy(vm->ctl);
	close_fd(&vm->lastwords_fd);
	close_fd(&vm->ctl_listen);
	close_fd(&vm->vsock_listen);
	close_fd(&vm->ready_fd);
	free(vm);
}

/* The slot goes back when the helper says that nothing of its last owner is left. */
struct freeing {
	struct vms *v;
	uint32_t slot;
	struct timer *retry;
};

static void slot_free(void *arg);

static void slot_freed(void *arg, const struct priv_msg *m, int fd)
{
	struct freeing *f = arg;

	close_fd(&fd);
	if (m->status == -EBUSY) {
		/* the cgroup is empty a moment after its last process ended; nobody waits for that */
		if (!f->retry)
			f->retry = loop_timer(f->v->d->loop, slot_free, f);
		if (f->retry) {
			timer_after(f->retry, FREE_RETRY_NS);
			return;
		}
	}
	if (m->status == 0 || m->status == -ENOENT)
		f->v->slot_used[f->slot] = false;
	else
		log_warn("slot %u cannot be used again: %s", f->slot, strerror(-m->status));
	timer_remove(f->retry);
	free(f);
}

static void slot_free(void *arg)
{
	struct freeing *f = arg;
	struct priv_msg m = {.op = PRIV_FREE, .slot = f->slot};

	if (privctl_call(f->v->d->priv, &m, NULL, 0, slot_freed, f) < 0) {
		timer_remove(f->retry);
		free(f);
	}
}

static void slot_release(struct vms *v, uint32_t slot)
{
	struct freeing *f = calloc(1, sizeof(*f));

	slot_rmdir(v, slot);
	if (!f)
		return;
	*f = (struct freeing){.v = v, .slot = slot};
	slot_free(f);
}

/* ---- the end of a VM */

static void read_last_words(struct vm *vm, int wait_status)
{
	struct vmm_last_words w;

	if (vm->lastwords_fd >= 0 &&
		pread(vm->lastwords_fd, &w, sizeof(w), 0) == (ssize_t)sizeof(w) &&
		w.magic == LAST_WORDS_MAGIC) {
		size_t n = MIN((size_t)w.text_len, sizeof(w.text));

		if (w.reason < VMM_X_COUNT)
			vm->reason = w.reason;
		if (!vm->text[0] && n) {
			n = MIN(n, sizeof(vm->text) - 1);
			for (size_t i = 0; i < n; i++)
				vm->text[i] = w.text[i] >= ' ' && w.text[i] < 127 ? w.text[i] : '?';
			vm->text[n] = 0;
		}
	}
	if (vm->text[0])
		return;
	if (wait_status >= 0 && WIFSIGNALED(wait_status))
		snprintf(vm->text, sizeof(vm->text), "mayfly-vmm was ended by signal %d",
			WTERMSIG(wait_status));
	else if (wait_status >= 0)
		snprintf(vm->text, sizeof(vm->text), "mayfly-vmm ended with status %d",
			WEXITSTATUS(wait_status));
	else
		snprintf(vm->text, sizeof(vm->text), "mayfly-vmm ended");
}

static void vm_over(struct vm *vm, int wait_status)
{
	struct vms *v = vm->d->vms;
	const struct vm_ops *ops = vm->ops;
	uint32_t slot = vm->slot;

	read_last_words(vm, wait_status);
	vm->phase = VM_ENDING;
	vm_give(vm, NULL);
	if (ops && ops->ended)
		ops->ended(vm->arg, vm->reason, vm->text);
	vm_free(vm);
	slot_release(v, slot);
}

void vms_process_exited(void *arg, const struct priv_msg *ev)
{
	struct vms *v = *(struct vms **)arg;
	struct vm *vm;

	if (v && (ev->kind == PRIV_K_IMAGE_BUILD || ev->kind == PRIV_K_IMAGE_PULL))
		images_process_exited(v->d->images, ev);
	if (v &&
		(ev->kind == PRIV_K_NETWORK || ev->kind == PRIV_K_BROKER ||
			ev->kind == PRIV_K_FILES) &&
		ev->slot < v->nslots)
		slot_release(v, ev->slot);
	if (ev->kind != PRIV_K_MONITOR || !v)
		return;
	vm = vms_find(v, ev->slot);
	if (vm && vm->spawned) {
		/* The process may be gone before its last messages were read: the result of a snapshot is one. */
		vmmctl_drain(vm->ctl);
		if (ev->usage.oom_kills)
			snprintf(vm->text, sizeof(vm->text),
				"the VM was killed: out of its memory limit");
		vm_over(vm, ev->wait_status);
		return;
	}
	if (ev->slot < v->nslots)
		slot_release(v, ev->slot);
}

void vm_kill(struct vm *vm)
{
	struct priv_msg m = {.op = PRIV_KILL, .slot = vm->slot};

	vm->phase = VM_ENDING;
	if (vm->spawned)
		privctl_call(vm->d->priv, &m, NULL, 0, NULL, NULL);
}

void vm_abandon(struct vm *vm)
{
	vm_give(vm, NULL);
	vmmctl_destroy(vm->ctl);
	vm->ctl = NULL;
	vm_kill(vm);
}

void vm_fail(struct vm *vm, const char *why)
{
	if (!vm->text[0])
		snprintf(vm->text, sizeof(vm->text), "%s", why);
	vm_kill(vm);
}

/* ---- the agent's ready message */

/* true: there may be more. */
static bool ready_message(struct vm *vm)
{
	struct {
		struct agent_hdr h;
		uint8_t body[64];
	} m;
	struct cur c;
	uint32_t magic, prepared;
	/* the monitor has this descriptor, too, and can make it block: its flags are not relied on */
	ssize_t n = recv(vm->ready_fd, &m, sizeof(m), MSG_PEEK | MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return false;
	if (n >= (ssize_t)sizeof(m.h) && m.h.len <= sizeof(m.body) &&
		(size_t)n < sizeof(m.h) + m.h.len)
		return false; /* the rest is on its way */
	if (n >= (ssize_t)sizeof(m.h) && m.h.type == AGENT_READY && m.h.len <= sizeof(m.body)) {
		(void)!recv(vm->ready_fd, &m, sizeof(m.h) + m.h.len, MSG_DONTWAIT);
		c = cur_of(m.body, m.h.len);
		magic = cur_u32(&c);
		(void)cur_u32(&c);
		(void)cur_u64(&c);
		prepared = cur_u32(&c);
		if (!c.bad && magic == AGENT_MAGIC) {
			vm->phase = VM_UP;
			if (vm->ops)
				vm->ops->ready(vm->arg, prepared != 0);
			return true;
		}
	}
	/* end of file, or not an agent's message. After a restore the vsock transport is reset, and a new
	 * connection follows */
	watch_remove(vm->ready_watch);
	vm->ready_watch = NULL;
	close_fd(&vm->ready_fd);
	return false;
}

/* The watch is edge-triggered: a guest that sends half a message costs nothing. Of many messages only the
 * first ones are read. */
static void on_ready_bytes(void *arg, uint32_t events)
{
	struct vm *vm = arg;
	int budget = 16;

	while (budget-- > 0 && vm->ready_fd >= 0 && ready_message(vm))
		;
}

static void guest_connected(struct vm *vm, struct cur *body, int fd)
{
	uint32_t port = cur_u32(body);

	if (body->bad || port != VSOCK_PORT_READY || fd < 0) {
		close_fd(&fd);
		return;
	}
	watch_remove(vm->ready_watch);
	close_fd(&vm->ready_fd);
	vm->ready_fd = fd;
	vm->ready_watch =
		loop_watch(vm->d->loop, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, on_ready_bytes, vm);
}

/* ---- control connection */

static void body_text(struct cur *body, char *to, size_t cap)
{
	size_t n = 0;
	const char *s = cur_strp(body, &n, 65536);

	if (!s)
		return;
	n = MIN(n, cap - 1);
	for (size_t i = 0; i < n; i++)
		to[i] = s[i] >= ' ' && s[i] < 127 ? s[i] : ' ';
	to[n] = 0;
}

/* A guest may give the same page back again and again. No honest one gives this many times its memory between two events. */
#define GIVEN_BACK_MOST 64u

static void count_given_back(struct vm *vm, uint64_t bytes)
{
	uint64_t most = GIVEN_BACK_MOST * MIB((uint64_t)vm->cls.mem_mib);

	if (bytes > vm->given_back)
		vm->d->metrics.given_back += MIN(bytes - vm->given_back, most);
	vm->given_back = bytes;
}

#define NET_WANTED_NS 500000000ull

static void ctl_event(void *arg, uint16_t type, struct cur *body, int fd)
{
	struct vm *vm = arg;

	if (type == VMM_EV_GUEST_CONN) {
		guest_connected(vm, body, take_fd(&fd));
	} else if (type == VMM_EV_EXITED) {
		uint32_t reason = cur_u32(body);

		if (!body->bad && reason < VMM_X_COUNT)
			vm->reason = reason;
		body_text(body, vm->text, sizeof(vm->text));
	} else if (type == VMM_EV_SNAPSHOT) {
		int32_t status = (cur_u32(body), (int32_t)cur_u32(body));
		char text[300] = "";
		uint32_t kept;

		(void)cur_u64(body);
		body_text(body, text, sizeof(text));
		(void)cur_u64(body);
		kept = cur_u32(body);
		if (vm->ops && vm->ops->snapshot)
			vm->ops->snapshot(vm->arg, body->bad ? -EPROTO : status, kept, text);
	} else if (type == VMM_EV_NET_WANTED) {
		/* Each request ends one network process and starts another. An honest monitor asks once a second, a hostile one
		 * all the time. */
		bool early = vm->net_wanted_ns && mono_ns() - vm->net_wanted_ns < NET_WANTED_NS;

		if (!early)
			vm->net_wanted_ns = mono_ns();
		if (!early && vm->ops && vm->ops->net_wanted)
			vm->ops->net_wanted(vm->arg);
	} else if (type == VMM_EV_FS_LOST) {
		char text[300] = "";

		body_text(body, text, sizeof(text));
		if (vm->ops && vm->ops->files_lost)
			vm->ops->files_lost(vm->arg, text);
	} else if (type == VMM_EV_FS_TABLE) {
		if (fd >= 0 && vm->ops && vm->ops->files_table)
			vm->ops->files_table(vm->arg, take_fd(&fd));
	} else if (type == VMM_EV_DISK_FULL) {
		uint32_t waiting = (cur_u32(body), cur_u32(body));

		if (!body->bad && vm->ops && vm->ops->disk_full)
			vm->ops->disk_full(vm->arg, waiting);
	} else if (type == VMM_EV_GIVEN_BACK) {
		count_given_back(vm, cur_u64(body));
	} else if (type == VMM_EV_PANIC || type == VMM_EV_NEEDS_RESET) {
		char text[300] = "";

		body_text(body, text, sizeof(text));
		log_limited(LOG_WARN, "vm%u: event 0x%x: %s", vm->slot, type, text);
		if (type == VMM_EV_PANIC)
			snprintf(vm->text, sizeof(vm->text), "the guest's kernel panicked: %s",
				text);
	}
	close_fd(&fd);
}

static void ctl_closed(void *arg)
{
	struct vm *vm = arg;

	/* its process ends, or is of no use without control; ended() comes with the process's end
	 */
	vmmctl_destroy(vm->ctl);
	vm->ctl = NULL;
	if (vm->phase != VM_ENDING)
		vm_kill(vm);
}

static const struct vmmctl_ops ctl_ops = {.event = ctl_event, .closed = ctl_closed};

static void prepared(void *arg, const struct vmm_answer *a)
{
	struct vm *vm = arg;

	if (a->err == ECONNRESET)
		return;
	if (a->err) {
		snprintf(vm->text, sizeof(vm->text), "preparing the VM: %s: %.300s",
			strerror(a->err), a->text);
		vm_kill(vm);
		return;
	}
	vm->phase = VM_BLANK;
	log_debug(
		"vm%u: blank after %.1f ms", vm->slot, (double)(mono_ns() - vm->spawned_ns) / 1e6);
	if (vm->ops && vm->ops->blank)
		vm->ops->blank(vm->arg);
}

static void spawned(void *arg, const struct priv_msg *m, int fd)
{
	struct vm *vm = arg;
	struct buf b;

	close_fd(&fd); /* the helper (or privctl) watches the process */
	close_fd(&vm->ctl_listen);
	close_fd(&vm->vsock_listen);
	if (m->status < 0) {
		snprintf(vm->text, sizeof(vm->text), "starting mayfly-vmm: %s",
			strerror(-m->status));
		vm_over(vm, -1);
		return;
	}
	vm->spawned = true;
	vm->pid = m->pid;
	vm->start_time = m->start_time;
	if (vm->phase == VM_ENDING) {
		vm_kill(vm);
		return;
	}
	vm->ctl = vmmctl_connect(vm->d->loop, vm->ctl_path, &ctl_ops, vm);
	if (!vm->ctl) {
		snprintf(vm->text, sizeof(vm->text), "connecting to mayfly-vmm: %s",
			strerror(errno));
		vm_fail(vm, "");
		return;
	}
	buf_init(&b, 4096);
	buf_u64(&b, MIB(vm->cls.mem_mib));
	buf_u32(&b, vm->cls.vcpus);
	buf_str(&b, "");
	buf_u32(&b, 0);
	vmmctl_call(vm->ctl, VMM_PREPARE, &b, NULL, 0, prepared, vm);
	buf_fini(&b);
}

static int vm_spawn(struct vm *vm)
{
	struct daemon *d = vm->d;
	struct priv_msg m = {
		.op = PRIV_SPAWN, .kind = PRIV_K_MONITOR, .slot = vm->slot, .group = vm->slot};
	int fds[4];

	if (mkdir(vm->dir, 0700) < 0 && errno != EEXIST)
		return -errno;
	vm->ctl_listen = listener(vm->ctl_path, SOCK_SEQPACKET);
	vm->vsock_listen = listener(vm->vsock_path, SOCK_STREAM);
	vm->lastwords_fd = memfd_create("last-words", MFD_CLOEXEC);
	if (vm->ctl_listen < 0 || vm->vsock_listen < 0 || vm->lastwords_fd < 0)
		return vm->ctl_listen < 0     ? vm->ctl_listen
		       : vm->vsock_listen < 0 ? vm->vsock_listen
					      : -errno;
	if (ftruncate(vm->lastwords_fd, sizeof(struct vmm_last_words)) < 0)
		return -errno;
	fds[VMM_FD_CONTROL - 3] = vm->ctl_listen;
	fds[VMM_FD_VSOCK - 3] = vm->vsock_listen;
	fds[VMM_FD_LASTWORDS - 3] = vm->lastwords_fd;
	fds[VMM_FD_KVM - 3] = d->kvm_fd;
	m.limits.memory_max = MIB(vm->cls.mem_mib) + VMM_OVERHEAD_BYTES;
	m.limits.io_bytes_max = MIB((uint64_t)vm->d->cfg.disk_mib_per_second);
	m.limits.io_ops_max = (uint64_t)vm->d->cfg.disk_operations_per_second;
	return privctl_call(d->priv, &m, fds, ARRAY_LEN(fds), spawned, vm);
}

struct vm *vms_find(struct vms *v, uint32_t slot)
{
	return slot < v->nslots ? v->by_slot[slot] : NULL;
}

bool vms_slot_take(struct vms *v, uint32_t *slot)
{
	for (uint32_t i = 0; i < v->nslots; i++) {
		uint32_t at = (v->next_slot + i) % v->nslots;

		if (v->slot_used[at])
			continue;
		v->slot_used[at] = true;
		v->next_slot = at + 1;
		*slot = at;
		return true;
	}
	return false;
}

void vms_slot_claim(struct vms *v, uint32_t slot)
{
	if (slot < v->nslots)
		v->slot_used[slot] = true;
}

void vms_slot_give(struct vms *v, uint32_t slot)
{
	slot_release(v, slot);
}

static struct vm *vm_make(
	struct vms *v, struct size_class c, const struct vm_ops *ops, void *arg, struct err *e)
{
	struct vm *vm;
	int rc;

	for (uint32_t i = 0; i < v->nslots; i++) {
		uint32_t slot = (v->next_slot + i) % v->nslots;

		if (v->slot_used[slot])
			continue;
		v->next_slot = slot + 1;
		vm = vm_new(v, slot, c, ops, arg);
		if (!vm)
			break;
		rc = vm_spawn(vm);
		if (rc < 0) {
			err_set(e, -rc, "starting a VMM in slot %u", slot);
			slot_rmdir(v, slot);
			v->slot_used[slot] = false;
			vm_free(vm);
			return NULL;
		}
		/* without a helper spawned() has been called already, and may have freed vm */
		if (v->by_slot[slot] == vm)
			return vm;
		err_plain(e, EIO, "mayfly-vmm could not be started");
		return NULL;
	}
	err_plain(e, EAGAIN, "no free slot for another VM");
	return NULL;
}

/* ---- the pool */

static void blank_ended(void *arg, uint32_t reason, const char *text)
{
	log_limited(LOG_WARN, "a blank VMM ended: %s", text);
}

static const struct vm_ops blank_ops = {.ended = blank_ended};

static bool same_class(struct size_class a, struct size_class b)
{
	return a.mem_mib == b.mem_mib && a.vcpus == b.vcpus;
}

static unsigned int blanks_of(struct vms *v, struct size_class c)
{
	unsigned int n = 0, left = v->nblank;

	for (struct vm *vm = v->all; vm && left; vm = vm->next) {
		if (vm->ops != &blank_ops)
			continue;
		left--;
		n += vm->phase != VM_ENDING && same_class(vm->cls, c);
	}
	return n;
}

static void refill(void *arg)
{
	struct vms *v = arg;
	struct err e;

	if (v->ending)
		return;
	for (unsigned int i = 0; i < v->nclasses; i++) {
		struct pool_class *p = &v->classes[i];

		if (!p->wanted)
			continue;
		if (blanks_of(v, p->c) < (unsigned int)v->d->cfg.blank_pool &&
			vm_make(v, p->c, &blank_ops, NULL, &e)) {
			/* one at a time, so that a burst of creates does not wait for a burst of blanks */
			timer_after(v->refill, 30000000);
			return;
		}
		p->wanted = false;
	}
}

void vms_refill(struct vms *v, struct size_class c)
{
	unsigned int i;

	for (i = 0; i < v->nclasses && !same_class(v->classes[i].c, c); i++)
		;
	if (i == CLASSES_MAX)
		return;
	if (i == v->nclasses)
		v->classes[v->nclasses++].c = c;
	v->classes[i].wanted = true;
	timer_after(v->refill, 5000000);
}

struct vm *vm_acquire(
	struct vms *v, struct size_class c, const struct vm_ops *ops, void *arg, struct err *e)
{
	struct vm *best = NULL;
	unsigned int left = v->nblank;

	/* The newest are first, and the blank ones are mostly new: this ends at the last of them. */
	for (struct vm *vm = v->all; vm && left; vm = vm->next) {
		if (vm->ops != &blank_ops)
			continue;
		left--;
		if (vm->phase <= VM_BLANK && same_class(vm->cls, c) &&
			(!best || vm->phase > best->phase))
			best = vm;
	}
	if (!best)
		return vm_make(v, c, ops, arg, e);
	vm_give(best, ops);
	best->arg = arg;
	return best;
}

unsigned int vms_blank_count(const struct vms *v)
{
	unsigned int n = 0;

	for (struct vm *vm = v->all; vm; vm = vm->next)
		n += vm->ops == &blank_ops && vm->phase == VM_BLANK;
	return n;
}

unsigned int vms_count(const struct vms *v)
{
	unsigned int n = 0;

	for (struct vm *vm = v->all; vm; vm = vm->next)
		n++;
	return n;
}

/* ---- boot and restore */

static void disk_payload(struct buf *b, const struct vm_disk_fds *d, int *fds, size_t *nfds)
{
	buf_u16(b, 1);
	buf_u32(b, 0);
	buf_str(b, "root");
	buf_u16(b, (uint16_t)d->nfrozen);
	fds[(*nfds)++] = d->base;
	for (int i = 0; i < d->nfrozen; i++)
		fds[(*nfds)++] = d->frozen[i];
	if (d->nfrozen)
		fds[(*nfds)++] = d->index;
	fds[(*nfds)++] = d->data;
	fds[(*nfds)++] = d->bitmap;
}

static void loaded(void *arg, const struct vmm_answer *a)
{
	struct vm *vm = arg;
	struct cur body = a->body;

	if (vm->ops && vm->ops->loaded && a->err != ECONNRESET)
		vm->ops->loaded(vm->arg, a->err, a->text, &body);
}

int vm_boot(struct vm *vm, const char *cmdline, const struct vm_disk_fds *disk)
{
	int fds[FDPASS_MAX], rc;
	size_t nfds = 0;
	struct buf b;

	if (!vm->ctl)
		return -ENOTCONN;
	buf_init(&b, 8192);
	buf_str(&b, cmdline);
	buf_u32(&b, vm->d->cfg.network_enabled ? VMM_F_NET : 0);
	fds[nfds++] = vm->d->kernel_fd;
	fds[nfds++] = vm->d->initrd_fd;
	disk_payload(&b, disk, fds, &nfds);
	vm->phase = VM_LOADING;
	rc = vmmctl_call(vm->ctl, VMM_BOOT, &b, fds, nfds, loaded, vm);
	buf_fini(&b);
	return rc;
}

int vm_restore(struct vm *vm, const struct vm_restore_fds *f, const struct vm_disk_fds *disk,
	uint32_t flags)
{
	int fds[FDPASS_MAX], rc;
	size_t nfds = 0;
	struct buf b;

	if (!vm->ctl)
		return -ENOTCONN;
	buf_init(&b, 8192);
	buf_u32(&b, flags | VMM_F_RUN | (f->workset >= 0 ? VMM_F_HAS_WS : 0));
	buf_u16(&b, (uint16_t)f->nmem);
	fds[nfds++] = f->state;
	for (int i = 0; i < f->nmem; i++)
		fds[nfds++] = f->mem[i];
	if (f->workset >= 0)
		fds[nfds++] = f->workset;
	disk_payload(&b, disk, fds, &nfds);
	vm->phase = VM_LOADING;
	rc = vmmctl_call(vm->ctl, VMM_RESTORE, &b, fds, nfds, loaded, vm);
	buf_fini(&b);
	return rc;
}

void vm_limits(struct vm *vm, uint32_t cpu_millis)
{
	struct priv_msg m = {.op = PRIV_GROUP_LIMITS, .group = vm->slot};

	/* a sandbox that asked for all CPUs of its class needs no quota */
	if (cpu_millis < vm->cls.vcpus * 1000)
		m.limits.cpu_max_us = MAX((uint64_t)cpu_millis * 100, (uint64_t)1000);
	m.limits.memory_max = MIB(vm->cls.mem_mib) + VMM_OVERHEAD_BYTES;
	privctl_call(vm->d->priv, &m, NULL, 0, NULL, NULL);
}

/* ---- the daemon's start and end */

struct vms *vms_create(struct daemon *d, struct err *e)
{
	struct vms *v = calloc(1, sizeof(*v));
	char path[128];

	if (!v) {
		err_set(e, ENOMEM, "vms");
		return NULL;
	}
	v->d = d;
	v->nslots = privctl_slots(d->priv) - IMAGE_SLOTS;
	v->slot_used = calloc(v->nslots, sizeof(*v->slot_used));
	v->by_slot = calloc(v->nslots, sizeof(*v->by_slot));
	v->refill = loop_timer(d->loop, refill, v);
	snprintf(path, sizeof(path), "%.100s/vm", d->cfg.run_dir);
	if (!v->slot_used || !v->by_slot || !v->refill ||
		(mkdir(path, 0700) < 0 && errno != EEXIST)) {
		err_set(e, errno, "%s", path);
		vms_destroy(v);
		return NULL;
	}
	return v;
}

void vms_destroy(struct vms *v)
{
	if (!v)
		return;
	v->ending = true;
	timer_remove(v->refill);
	while (v->all) {
		vm_give(v->all, NULL);
		vm_free(v->all);
	}
	free(v->by_slot);
	free(v->slot_used);
	free(v);
}

int vm_adopt(struct vms *v, uint32_t slot, int pid, uint64_t start_time, struct size_class c,
	const struct vm_ops *ops, void *arg, struct vm **out)
{
	struct priv_msg m = {.op = PRIV_LIST, .slot = slot, .pid = pid, .start_time = start_time},
			r = {0};
	struct vm *vm;
	int fd = -1, rc;

	if (slot >= v->nslots || v->slot_used[slot])
		return -EINVAL;
	rc = privctl_wait(v->d->priv, &m, &r, &fd);
	close_fd(&fd);
	if (rc < 0)
		return rc;
	if (r.slot != slot || r.pid != pid || r.start_time != start_time || r.pid == 0)
		return -ESRCH;
	vm = vm_new(v, slot, c, ops, arg);
	if (!vm)
		return -ENOMEM;
	vm->spawned = vm->adopted = true;
	vm->pid = pid;
	vm->start_time = start_time;
	vm->phase = VM_UP;
	vm->ctl = vmmctl_connect(v->d->loop, vm->ctl_path, &ctl_ops, vm);
	if (!vm->ctl) {
		rc = -errno;
		vm_abandon(vm);
		return rc;
	}
	*out = vm;
	return 0;
}

/* A file server talks with its monitor only, so it may run as long as its monitor does. */
static bool files_found(struct vms *v, const struct priv_msg *m, bool complete)
{
	struct vm *vm = vms_find(v, m->group);

	if (!m->pid || (!vm && complete))
		return false;
	v->slot_used[m->slot] = true;
	if (vm) {
		vm->has_files = true;
		vm->files_slot = m->slot;
	}
	return true;
}

void vms_sweep(struct vms *v, bool complete)
{
	struct priv_msg m = {.op = PRIV_LIST}, r = {0};
	char path[128];
	DIR *dir;
	int fd = -1;

	while (!privctl_is_direct(v->d->priv) && m.slot < v->nslots &&
		privctl_wait(v->d->priv, &m, &r, &fd) == 0) {
		close_fd(&fd);
		m.slot = r.slot + 1;
		if (v->slot_used[r.slot])
			continue;
		/* a network process or a broker that was not taken over belongs to nobody */
		if (r.kind != PRIV_K_MONITOR && r.kind != PRIV_K_NETWORK &&
			r.kind != PRIV_K_BROKER && r.kind != PRIV_K_FILES)
			continue;
		if (r.kind == PRIV_K_FILES && files_found(v, &r, complete))
			continue;
		v->slot_used[r.slot] = true;
		if (!complete && r.kind == PRIV_K_MONITOR)
			continue;
		log_info("slot %u: its process belongs to no sandbox: ended", r.slot);
		if (r.pid)
			privctl_call(v->d->priv,
				&(struct priv_msg){.op = PRIV_KILL, .slot = r.slot}, NULL, 0, NULL,
				NULL);
		else
			slot_release(v, r.slot);
	}
	snprintf(path, sizeof(path), "%.100s/vm", v->d->cfg.run_dir);
	dir = opendir(path);
	for (struct dirent *de; dir && (de = readdir(dir));) {
		unsigned long slot = strtoul(de->d_name, NULL, 10);

		if (de->d_name[0] == '.' || slot >= v->nslots || v->slot_used[slot])
			continue;
		if (complete)
			slot_rmdir(v, (uint32_t)slot);
		else
			v->slot_used[slot] = true;
	}
	if (dir)
		closedir(dir);
}
