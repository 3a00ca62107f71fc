/* SPDX-License-Identifier: Apache-2.0
 *
 * network.c: see network.h. mayflyd's loop. Of a guest's bytes only the names of denied places come through here; they are passed on as text.
 *
 * Slots of the helper come from the table of the monitors (monitors.h), which also gives them back when a process is gone. A network process
 * is in the group of its monitor: the limits of the sandbox hold for both together.
 */
#include "api/network/network.h"

#include <string.h>
#include <sys/socket.h>

#include "api/core/daemon.h"
#include "api/links/helper_client.h"
#include "api/links/monitor_client.h"
#include "api/links/monitors.h"
#include "api/network/broker_client.h"
#include "api/network/webhook.h"
#include "lib/log.h"

#define FRAMES_BUFFER (1 << 20)

struct net_proc {
	struct networks *n;
	struct network_limits limits;
	struct net_proc *next;
	uint32_t monitor; /* slot of its monitor; what the broker knows it by */
	uint32_t slot;    /* its own */
	bool running;     /* the helper has started it */
	bool unwanted;    /* its monitor went before it was started */
	int frames;       /* the monitor's end, until the monitor has it */
};

struct networks {
	struct daemon *d;
	struct broker_client *broker;
	struct webhooks *webhooks;
	struct net_proc *procs;
	bool ending;
};

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

/* Ends the process. Its slot is given back when it has ended. */
static void proc_kill(struct net_proc *p)
{
	struct priv_msg m = {.op = PRIV_KILL, .slot = p->slot};

	if (!p->running) { /* the helper has not answered yet: proc_spawned() then ends it */
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

/* Gives the monitor its end of the frames' socket. */
static void proc_link(struct net_proc *p)
{
	struct vm *vm = vms_find(p->n->d->vms, p->monitor);
	int rc = -ENOTCONN;
	struct buf b;

	buf_init(&b, 64);
	buf_u32(&b, 1);
	buf_u64(&b, p->limits.mbit * 125000u);
	buf_u64(&b, p->limits.packets);
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

static uint64_t lower(uint64_t own, int64_t configured)
{
	uint64_t c = (uint64_t)configured;

	return own && c ? MIN(own, c) : own ? own : c;
}

/* The limits of the configuration, or the sandbox's own where these are lower. */
static struct network_limits limits_of(const struct config *c, const struct network_limits *own)
{
	return (struct network_limits){
		.connections = lower(own->connections, c->network_connections),
		.connection_rate = lower(own->connection_rate, c->network_connection_rate),
		.query_rate = lower(own->query_rate, c->network_query_rate),
		.mbit = lower(own->mbit, c->network_mbit),
		.packets = lower(own->packets, c->network_packets),
	};
}

/* Asks the helper to start mayfly-net. fds: its ends of channel and frames. */
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

static int proc_start(struct networks *n, uint32_t monitor, const struct buf *policy,
	const struct network_limits *own)
{
	const struct network_limits l = limits_of(&n->d->cfg, own);
	const uint64_t broker_limits[NET_L_COUNT] = {[NET_L_FLOWS] = l.connections,
		[NET_L_NEW_RATE] = l.connection_rate,
		[NET_L_QUERY_RATE] = l.query_rate};
	struct net_proc *p = calloc(1, sizeof(*p));
	int chan[2] = {-1, -1}, frames[2] = {-1, -1},
	    rc = p ? broker_client_ensure(n->broker) : -ENOMEM;
	const int type = SOCK_SEQPACKET | SOCK_CLOEXEC;

	if (rc == 0 && (socketpair(AF_UNIX, type, 0, chan) < 0 ||
			       socketpair(AF_UNIX, type, 0, frames) < 0))
		rc = -errno;
	/* a packet is up to 64 KiB: room for more than three of them, as far as the host lets us */
	for (int i = 0; rc == 0 && i < 2; i++)
		setsockopt(frames[i], SOL_SOCKET, SO_SNDBUF, &(int){FRAMES_BUFFER}, sizeof(int));
	if (rc == 0)
		rc = broker_client_policy(n->broker, monitor, policy);
	if (rc == 0)
		rc = broker_client_channel(n->broker, monitor, broker_limits, chan[0]);
	if (rc == 0) {
		const int fds[2] = {[NET_FD_BROKER - 3] = chan[1], [NET_FD_FRAMES - 3] = frames[1]};

		*p = (struct net_proc){
			.n = n, .limits = l, .monitor = monitor, .frames = take_fd(&frames[0])};
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

void network_start(struct networks *n, struct vm *vm, const struct buf *policy,
	const struct network_limits *own)
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
	if (old) /* the monitor has lost its link, so this process is of no use any more */
		proc_kill(old);
	rc = proc_start(n, vm->slot, policy, own);
	if (rc < 0) /* the monitor asks again with a later frame */
		log_limited(LOG_ERROR, "vm%u: no network process: %s", vm->slot, strerror(-rc));
}

void network_policy(struct networks *n, const struct vm *vm, const struct buf *policy)
{
	struct net_proc *p = n && vm ? proc_find(n, vm->slot) : NULL;

	if (!p || !broker_client_there(n->broker))
		return;
	if (!policy->bad && broker_client_policy(n->broker, vm->slot, policy) == 0)
		return;
	/* the old policy may be the wider one: the process ends, and the next frame starts one with the policy of the record */
	proc_kill(p);
	broker_client_remove(n->broker, vm->slot);
}

static void monitor_gone(struct networks *n, uint32_t slot)
{
	struct net_proc *p = proc_find(n, slot);

	if (p)
		proc_kill(p);
	/* also if its process ended first: nothing of this network is left to the slot's next owner */
	broker_client_remove(n->broker, slot);
}

static void broker_lost(void *arg)
{
	struct networks *n = arg;
	struct net_proc *p = n->procs, *next;

	webhooks_lost(n->webhooks);
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
	if (ev->kind == PRIV_K_BROKER)
		broker_client_ended(n->broker, ev->slot);
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
	if (n)
		broker_client_configure(n->broker);
}

/* A mayfly-net of the last daemon. Its monitor has the other end of its frames. */
static void proc_adopt(struct networks *n, uint32_t monitor, uint32_t slot)
{
	struct net_proc *p = calloc(1, sizeof(*p));

	if (!p)
		return; /* the sweep ends it; the guest's next frame starts another one */
	vms_slot_claim(n->d->vms, slot);
	*p = (struct net_proc){.n = n,
		.next = n->procs,
		.monitor = monitor,
		.slot = slot,
		.running = true,
		.frames = -1};
	n->procs = p;
}

/* The next process of this kind from the slot m->slot on. */
static bool next_process(struct networks *n, uint32_t kind, struct priv_msg *m, struct priv_msg *r)
{
	int fd = -1;

	while (privctl_wait(n->d->priv, m, r, &fd) == 0) {
		close_fd(&fd);
		m->slot = r->slot + 1;
		if (r->kind == kind && r->pid)
			return true;
	}
	return false;
}

void networks_adopt(struct networks *n)
{
	struct priv_msg m = {.op = PRIV_LIST}, r = {0};
	int rc;

	if (privctl_is_direct(n->d->priv) || !next_process(n, PRIV_K_BROKER, &m, &r))
		return;
	rc = broker_client_adopt(n->broker, r.slot);
	if (rc < 0) {
		log_warn("the last daemon's broker cannot be taken over: %s. The sandboxes' "
			 "connections end with it.",
			strerror(-rc));
		return;
	}
	vms_slot_claim(n->d->vms, r.slot);
	m = (struct priv_msg){.op = PRIV_LIST};
	while (next_process(n, PRIV_K_NETWORK, &m, &r))
		if (vms_find(n->d->vms, r.group) && !proc_find(n, r.group))
			proc_adopt(n, r.group, r.slot);
}

void networks_adopted(struct networks *n)
{
	broker_client_sweep(n->broker);
	broker_client_configure(n->broker);
}

int network_counters(struct networks *n, const struct vm *vm, network_counters_fn fn, void *arg)
{
	if (!n || !vm)
		return -ENOENT;
	/* also while no mayfly-net is there: the broker keeps what it counted */
	return broker_client_counters(n->broker, vm->slot, fn, arg);
}

int networks_counters(struct networks *n, network_counters_fn fn, void *arg)
{
	return n ? broker_client_counters(n->broker, NET_ALL, fn, arg) : -ENOENT;
}

void network_hook(struct networks *n, const char *url, const char *sandbox, const char *place)
{
	if (n && broker_client_there(n->broker))
		webhook_send(n->webhooks, url, sandbox, place);
}

void network_forget(struct networks *n, const void *arg)
{
	if (n)
		broker_client_forget(n->broker, arg);
}

static void broker_denied(void *arg, uint32_t id, const char *place, const char *why)
{
	struct networks *n = arg;
	struct vm *vm = vms_find(n->d->vms, id);

	if (vm && vm->ops && vm->ops->net_denied)
		vm->ops->net_denied(vm->arg, place, why);
}

static const struct broker_client_ops broker_ops = {broker_lost, broker_denied};

struct networks *networks_create(struct daemon *d, struct err *e)
{
	struct networks *n = calloc(1, sizeof(*n));

	if (n) {
		*n = (struct networks){.d = d};
		n->broker = broker_client_create(d, &broker_ops, n);
		n->webhooks = n->broker ? webhooks_create(d->loop, n->broker) : NULL;
	}
	if (n && n->broker && n->webhooks)
		return n;
	networks_destroy(n);
	err_set(e, ENOMEM, "networks");
	return NULL;
}

void networks_destroy(struct networks *n)
{
	if (!n)
		return;
	n->ending = true;
	webhooks_destroy(n->webhooks);
	broker_client_destroy(n->broker);
	while (n->procs)
		proc_forget(n->procs);
	free(n);
}
