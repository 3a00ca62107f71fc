/* SPDX-License-Identifier: Apache-2.0
 *
 * network.c: see network.h. mayflyd's loop. Nothing here reads a byte of a guest's; the broker's answers are read for their errors only.
 *
 * Slots of the helper come from the table of the monitors (monitors.h), which also gives them back when a process is gone. A network process
 * is in the group of its monitor: the limits of the sandbox hold for both together.
 */
#include "api/network/network.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "api/core/daemon.h"
#include "api/links/helper_client.h"
#include "api/links/monitor_client.h"
#include "api/links/monitors.h"
#include "lib/fdpass.h"
#include "lib/log.h"
#include "lib/netrule.h"

#define FRAMES_BUFFER   (1 << 20)
#define BROKER_WAIT_MS  1000
#define BROKER_RETRY_NS 1000000000ull
#define PART_BYTES      (NET_MSG_MAX - 1024u)

struct net_proc {
	struct networks *n;
	struct net_proc *next;
	uint32_t monitor; /* slot of its monitor; what the broker knows it by */
	uint32_t slot;    /* its own */
	bool running;     /* the helper has started it */
	bool unwanted;    /* its monitor went before it was started */
	int frames;       /* the monitor's end, until it has it */
};

struct net_ask {
	struct net_ask *next;
	uint32_t id;
	network_counters_fn fn;
	void *arg;
};

struct networks {
	struct daemon *d;
	struct net_ask *asks;
	struct net_proc *procs;
	bool broker_runs, ending;
	uint32_t broker_slot;
	int control; /* -1: there is no broker */
	struct watch *watch;
	uint64_t broker_tried_ns;
	uint32_t next_id;
};

/* ---- the broker */

static void request_start(struct networks *n, struct buf *b, uint16_t type, size_t max)
{
	struct net_hdr h = {.magic = NET_MAGIC, .type = type, .id = ++n->next_id};

	buf_init(b, max);
	buf_put(b, &h, sizeof(h));
}

/* The broker reads whenever it has answered: a full socket lasts microseconds. */
static int request_send(struct networks *n, struct buf *b, int fd)
{
	struct pollfd p = {.fd = n->control, .events = POLLOUT};
	int rc = b->bad ? -ENOMEM : n->control < 0 ? -ENOTCONN : -EAGAIN;

	for (int i = 0; rc == -EAGAIN && i < 3; i++) {
		rc = fdpass_send(n->control, b->p, b->len, &fd, fd >= 0);
		if (rc == -EAGAIN && poll(&p, 1, BROKER_WAIT_MS) <= 0)
			break;
	}
	buf_fini(b);
	if (rc < 0)
		log_limited(LOG_ERROR, "the broker does not take a request: %s", strerror(-rc));
	return rc;
}

/* A policy or the operator's rules, in parts. head: what stands before them in each message. */
static int send_parts(
	struct networks *n, uint16_t type, const struct buf *all, const uint32_t *head)
{
	size_t at = 0;
	int rc;

	do {
		size_t k = MIN(all->len - at, PART_BYTES);
		struct buf b;

		request_start(n, &b, type, NET_MSG_MAX);
		if (head)
			buf_u32(&b, *head);
		buf_u8(&b, at + k < all->len);
		buf_put(&b, all->p + at, k);
		rc = request_send(n, &b, -1);
		at += k;
	} while (rc == 0 && at < all->len);
	return rc;
}

/* body NULL: the broker is gone, or knows nothing. */
static void ask_answered(struct networks *n, uint32_t id, struct cur *body)
{
	struct net_ask **at = &n->asks, *a;

	while (*at && (*at)->id != id)
		at = &(*at)->next;
	a = *at;
	if (!a)
		return;
	*at = a->next;
	if (a->fn)
		a->fn(a->arg, body);
	free(a);
}

static void on_broker(void *arg, uint32_t events)
{
	struct networks *n = arg;
	static uint8_t p[NET_MSG_MAX];
	struct net_hdr h;
	struct cur body;
	size_t nfds = 0;
	ssize_t len = fdpass_recv(n->control, p, sizeof(p), NULL, &nfds);

	if (len == -EAGAIN)
		return;
	if (len <= 0) { /* the helper reports its end */
		watch_remove(n->watch);
		n->watch = NULL;
		close_fd(&n->control);
		return;
	}
	if (len < (ssize_t)sizeof(h))
		return;
	memcpy(&h, p, sizeof(h));
	body = cur_of(p + sizeof(h), (size_t)len - sizeof(h));
	if (h.type == (NET_COUNTERS | NET_REPLY))
		ask_answered(n, h.id, h.status < 0 ? NULL : &body);
	else if (h.status < 0 && h.status != -ENOENT)
		log_limited(LOG_WARN, "the broker refused request %u: %.*s", h.type & ~NET_REPLY,
			(int)MIN(len - (ssize_t)sizeof(h) - 4, 300),
			(const char *)p + sizeof(h) + 4);
}

static bool put_operator_rules(struct buf *b, const char *list, bool allow, uint32_t *count)
{
	char text[sizeof(((struct config *)0)->network_allow)];
	char *save = NULL;

	str_copy(text, sizeof(text), list);
	for (char *w = strtok_r(text, " \t,", &save); w; w = strtok_r(NULL, " \t,", &save)) {
		struct net_rule r = {.allow = allow};
		struct err e = {0};

		if (net_rule_target(w, &r, &e) < 0) {
			log_error("configuration, network.%s: %s", allow ? "allow" : "deny", e.msg);
			continue;
		}
		net_rule_put(b, allow, w, NULL, 0);
		++*count;
	}
	return !b->bad;
}

/* Where keys belong to tenants, a tenant's policy opens neither this host's own services nor its cloud's metadata: the operator's rules do. */
#define HOST_KINDS                                                                                 \
	(1u << NET_LOOPBACK | 1u << NET_HOST_OWN | 1u << NET_LINK_LOCAL | 1u << NET_METADATA)

static int send_operator(struct networks *n)
{
	struct buf rules, all;
	uint32_t count = 0;
	int rc = -ENOMEM;

	buf_init(&rules, MIB(1));
	buf_init(&all, MIB(1));
	if (put_operator_rules(&rules, n->d->cfg.network_deny, false, &count) &&
		put_operator_rules(&rules, n->d->cfg.network_allow, true, &count)) {
		buf_u32(&all, count);
		buf_put(&all, rules.p, rules.len);
		buf_u32(&all, conf_has_tenants(&n->d->cfg) ? HOST_KINDS : 0);
		rc = send_parts(n, NET_OPERATOR, &all, NULL);
	}
	buf_fini(&rules);
	buf_fini(&all);
	return rc;
}

static void broker_gone(struct networks *n)
{
	n->broker_runs = false;
	watch_remove(n->watch);
	n->watch = NULL;
	close_fd(&n->control);
	while (n->asks)
		ask_answered(n, n->asks->id, NULL);
}

static void broker_spawned(void *arg, const struct priv_msg *m, int fd)
{
	struct networks *n = arg;

	close_fd(&fd);
	if (m->status == 0)
		return;
	log_error("mayfly-broker could not be started: %s", strerror(-m->status));
	vms_slot_give(n->d->vms, n->broker_slot);
	broker_gone(n);
}

/* What is sent before it runs waits in the socket. */
static int broker_ensure(struct networks *n)
{
	struct priv_msg m = {.op = PRIV_SPAWN, .kind = PRIV_K_BROKER};
	uint64_t now = mono_ns();
	int sv[2], rc;

	if (n->broker_runs)
		return n->control >= 0 ? 0 : -EAGAIN;
	if (n->broker_tried_ns && now - n->broker_tried_ns < BROKER_RETRY_NS)
		return -EAGAIN;
	n->broker_tried_ns = now;
	if (!vms_slot_take(n->d->vms, &n->broker_slot))
		return -EAGAIN;
	m.slot = m.group = n->broker_slot;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) < 0)
		return -errno;
	n->control = sv[0];
	n->watch = loop_watch(n->d->loop, n->control, EPOLLIN, on_broker, n);
	n->broker_runs = true;
	rc = n->watch ? privctl_call(n->d->priv, &m, &sv[1], 1, broker_spawned, n) : -ENOMEM;
	close(sv[1]);
	if (rc == 0 && !n->broker_runs) /* without a helper the answer has come already */
		rc = -EIO;
	if (rc == 0)
		rc = send_operator(n);
	if (rc < 0)
		broker_gone(n);
	return rc;
}

/* ---- one network process */

static struct net_proc *proc_find(struct networks *n, uint32_t monitor)
{
	struct net_proc *p = n->procs;

	while (p && (p->monitor != monitor || p->unwanted))
		p = p->next;
	return p;
}

static void proc_forget(struct net_proc *p)
{
	struct net_proc **at = &p->n->procs;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	close_fd(&p->frames);
	free(p);
}

/* It ends; its slot is given back when it has. */
static void proc_kill(struct net_proc *p)
{
	struct priv_msg m = {.op = PRIV_KILL, .slot = p->slot};

	if (!p->running) { /* the helper's answer is on its way: proc_spawned() goes on */
		p->unwanted = true;
		return;
	}
	privctl_call(p->n->d->priv, &m, NULL, 0, NULL, NULL);
	proc_forget(p);
}

static void linked(void *arg, const struct vmm_answer *a)
{
	if (a->err && a->err != ECONNRESET)
		log_limited(LOG_WARN, "a monitor did not take its network: %s", a->text);
}

/* The monitor's end goes to the monitor. */
static void proc_link(struct net_proc *p)
{
	struct vm *vm = vms_find(p->n->d->vms, p->monitor);
	int rc = -ENOTCONN;
	struct buf b;

	buf_init(&b, 64);
	buf_u32(&b, 1);
	buf_u64(&b, (uint64_t)p->n->d->cfg.network_mbit * 125000u);
	buf_u64(&b, (uint64_t)p->n->d->cfg.network_packets);
	if (vm && vm->ctl)
		rc = vmmctl_call(vm->ctl, VMM_NET, &b, &p->frames, 1, linked, p->n);
	buf_fini(&b);
	close_fd(&p->frames);
	if (rc < 0)
		proc_kill(p);
}

static void proc_spawned(void *arg, const struct priv_msg *m, int fd)
{
	struct net_proc *p = arg;

	close_fd(&fd);
	if (m->status < 0) {
		log_limited(LOG_ERROR, "mayfly-net could not be started: %s", strerror(-m->status));
		vms_slot_give(p->n->d->vms, p->slot);
		proc_forget(p);
		return;
	}
	p->running = true;
	if (p->unwanted)
		proc_kill(p);
	else
		proc_link(p);
}

static int send_channel(struct networks *n, uint32_t id, int fd)
{
	const struct config *c = &n->d->cfg;
	struct buf b;

	request_start(n, &b, NET_CHANNEL, 256);
	buf_u32(&b, id);
	buf_u32(&b, NET_L_COUNT);
	buf_u64(&b, (uint64_t)c->network_connections);
	buf_u64(&b, (uint64_t)c->network_connection_rate);
	buf_u64(&b, (uint64_t)c->network_query_rate);
	buf_u64(&b, 0);
	return request_send(n, &b, fd);
}

static int send_policy(struct networks *n, uint32_t id, const struct buf *policy)
{
	static uint8_t none[] = {0, 1, 0, 0, 0, 0}; /* not given, allow by default, no rule */
	struct buf open = {.p = none, .len = sizeof(none)};

	return send_parts(n, NET_POLICY, policy ? policy : &open, &id);
}

/* Takes p->frames into use; fds: mayfly-net's ends of channel and frames. */
static int proc_spawn(struct net_proc *p, const int fds[2])
{
	struct networks *n = p->n;
	struct priv_msg m = {.op = PRIV_SPAWN, .kind = PRIV_K_NETWORK, .group = p->monitor};
	int rc;

	if (!vms_slot_take(n->d->vms, &p->slot))
		return -EAGAIN;
	m.slot = p->slot;
	p->next = n->procs;
	n->procs = p;
	rc = privctl_call(n->d->priv, &m, fds, 2, proc_spawned, p);
	if (rc < 0) {
		vms_slot_give(n->d->vms, p->slot);
		n->procs = p->next;
	}
	return rc;
}

static int proc_start(struct networks *n, uint32_t monitor, const struct buf *policy)
{
	struct net_proc *p = calloc(1, sizeof(*p));
	int chan[2] = {-1, -1}, frames[2] = {-1, -1}, rc = p ? broker_ensure(n) : -ENOMEM;
	const int type = SOCK_SEQPACKET | SOCK_CLOEXEC;

	if (rc == 0 && (socketpair(AF_UNIX, type, 0, chan) < 0 ||
			       socketpair(AF_UNIX, type, 0, frames) < 0))
		rc = -errno;
	/* a packet is up to 64 KiB: room for more than three of them, as far as the host lets us */
	for (int i = 0; rc == 0 && i < 2; i++)
		setsockopt(frames[i], SOL_SOCKET, SO_SNDBUF, &(int){FRAMES_BUFFER}, sizeof(int));
	if (rc == 0)
		rc = send_policy(n, monitor, policy);
	if (rc == 0)
		rc = send_channel(n, monitor, chan[0]);
	if (rc == 0) {
		const int fds[2] = {[NET_FD_BROKER - 3] = chan[1], [NET_FD_FRAMES - 3] = frames[1]};

		*p = (struct net_proc){.n = n, .monitor = monitor, .frames = take_fd(&frames[0])};
		rc = proc_spawn(p, fds);
	}
	if (rc < 0 && p) {
		close_fd(&p->frames);
		free(p);
	}
	for (int i = 0; i < 2; i++) {
		close_fd(&chan[i]);
		close_fd(&frames[i]);
	}
	return rc;
}

static void tell_absent(struct vm *vm)
{
	struct buf b;

	buf_init(&b, 64);
	buf_u32(&b, 0);
	buf_u64(&b, 0);
	buf_u64(&b, 0);
	if (vm->ctl)
		vmmctl_call(vm->ctl, VMM_NET, &b, NULL, 0, NULL, NULL);
	buf_fini(&b);
}

void network_start(struct networks *n, struct vm *vm, const struct buf *policy)
{
	struct net_proc *old;
	int rc;

	if (!n || !n->d->cfg.network_enabled) {
		tell_absent(vm);
		return;
	}
	old = proc_find(n, vm->slot);
	if (old && !old->running)
		return;
	if (old) /* the monitor has lost it: it is of no use any more */
		proc_kill(old);
	rc = proc_start(n, vm->slot, policy);
	if (rc < 0) /* the monitor asks again with a later frame */
		log_limited(LOG_ERROR, "vm%u: no network process: %s", vm->slot, strerror(-rc));
}

static void slot_remove(struct networks *n, uint32_t slot)
{
	struct buf b;

	if (n->control < 0)
		return;
	request_start(n, &b, NET_REMOVE, 64);
	buf_u32(&b, slot);
	request_send(n, &b, -1);
}

void network_policy(struct networks *n, const struct vm *vm, const struct buf *policy)
{
	struct net_proc *p = n && vm ? proc_find(n, vm->slot) : NULL;

	if (!p || n->control < 0)
		return;
	if (!policy->bad && send_policy(n, vm->slot, policy) == 0)
		return;
	/* the old policy may be the wider one: the process ends, and the next frame starts one with the policy of the record */
	proc_kill(p);
	slot_remove(n, vm->slot);
}

static void monitor_gone(struct networks *n, uint32_t slot)
{
	struct net_proc *p = proc_find(n, slot);

	if (p)
		proc_kill(p);
	/* also when its process went first: the slot's next owner begins with nothing of this one */
	slot_remove(n, slot);
}

static void broker_ended(struct networks *n)
{
	struct net_proc *p = n->procs, *next;

	log_error("mayfly-broker ended; the sandboxes' connections end with it");
	broker_gone(n);
	for (; p; p = next) {
		next = p->next;
		proc_kill(p);
	}
}

void networks_process_exited(struct networks *n, const struct priv_msg *ev)
{
	struct net_proc *p, *next;

	if (!n || n->ending)
		return;
	if (ev->kind == PRIV_K_MONITOR)
		monitor_gone(n, ev->slot);
	if (ev->kind == PRIV_K_BROKER && n->broker_runs && ev->slot == n->broker_slot)
		broker_ended(n);
	if (ev->kind == PRIV_K_NETWORK && ev->wait_status > 0)
		log_limited(LOG_WARN, "mayfly-net in slot %u ended with status %#x", ev->slot,
			(unsigned int)ev->wait_status);
	for (p = n->procs; ev->kind == PRIV_K_NETWORK && p; p = next) {
		next = p->next;
		if (p->running && p->slot == ev->slot)
			proc_forget(p);
	}
}

void networks_reload(struct networks *n)
{
	if (n && n->control >= 0)
		send_operator(n);
}

int network_counters(struct networks *n, const struct vm *vm, network_counters_fn fn, void *arg)
{
	struct net_ask *a;
	struct buf b;
	int rc;

	if (!n || !vm || n->control < 0 || !proc_find(n, vm->slot))
		return -ENOENT;
	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	request_start(n, &b, NET_COUNTERS, 64);
	buf_u32(&b, vm->slot);
	*a = (struct net_ask){.next = n->asks, .id = n->next_id, .fn = fn, .arg = arg};
	rc = request_send(n, &b, -1);
	if (rc < 0)
		free(a);
	else
		n->asks = a;
	return rc;
}

void network_forget(struct networks *n, const void *arg)
{
	for (struct net_ask *a = n ? n->asks : NULL; a; a = a->next)
		if (a->arg == arg)
			a->fn = NULL;
}

struct networks *networks_create(struct daemon *d, struct err *e)
{
	struct networks *n = calloc(1, sizeof(*n));

	if (n)
		*n = (struct networks){.d = d, .control = -1};
	else
		err_set(e, ENOMEM, "networks");
	return n;
}

void networks_destroy(struct networks *n)
{
	if (!n)
		return;
	n->ending = true;
	broker_gone(n);
	while (n->procs)
		proc_forget(n->procs);
	free(n);
}
