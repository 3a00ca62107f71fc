/* SPDX-License-Identifier: Apache-2.0
 *
 * broker_client.c: see broker_client.h. mayflyd's loop.
 *
 * The broker outlives the daemon: its control socket listens in a folder of the daemon's (run_dir), and the next daemon connects there.
 * Without a helper (--no-jail) the control socket is a pair, and the broker ends with the daemon.
 */
#include "api/network/broker_client.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/core/daemon.h"
#include "api/links/helper_client.h"
#include "api/links/monitors.h"
#include "lib/fdpass.h"
#include "lib/log.h"
#include "lib/netrule.h"

#define BROKER_WAIT_MS  1000
#define BROKER_HELLO_MS 5000
#define ASK_WAIT_NS     2000000000ull
#define BROKER_RETRY_NS 1000000000ull
#define PART_BYTES      (NET_MSG_MAX - 1024u)
#define RESOLVERS_MAX   3u

struct broker_ask {
	struct broker_ask *next;
	uint64_t due_ns;
	uint32_t id;
	broker_counters_fn fn;
	void *arg;
};

struct broker_client {
	struct daemon *d;
	const struct broker_client_ops *ops;
	void *arg;
	struct broker_ask *asks;
	struct timer *late;
	bool runs;
	uint32_t slot;
	int control; /* -1: there is no broker */
	struct watch *watch;
	uint64_t tried_ns;
	uint32_t next_id;
};

/* ---- requests */

static void request_start(struct broker_client *n, struct buf *b, uint16_t type, size_t max)
{
	struct net_hdr h = {.magic = NET_MAGIC, .type = type, .id = ++n->next_id};

	buf_init(b, max);
	buf_put(b, &h, sizeof(h));
}

/* Waits if the socket is full. The broker reads the next request as soon as it has answered one, so this takes microseconds. */
static int request_send(struct broker_client *n, struct buf *b, int fd)
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

/* Sends a policy or the operator's rules, in parts. head: a number before the part in each message, or NULL. */
static int send_parts(
	struct broker_client *n, uint16_t type, const struct buf *all, const uint32_t *head)
{
	size_t at = 0;
	int rc;

	do {
		size_t k = MIN(all->len - at, PART_BYTES);
		struct buf b;

		request_start(n, &b, type, NET_MSG_MAX);
		if (head)
			buf_u32(&b, *head);
		buf_u8(&b, (at + k < all->len ? NET_PART_MORE : 0) | (at ? 0 : NET_PART_FIRST));
		buf_put(&b, all->p + at, k);
		rc = request_send(n, &b, -1);
		at += k;
	} while (rc == 0 && at < all->len);
	return rc;
}

/* body NULL: the broker ended, did not answer in time, or has no counters. */
static void ask_answered(struct broker_client *n, uint32_t id, struct cur *body)
{
	struct broker_ask **at = &n->asks, *a;

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

/* Answers the clients that wait for counters if the broker does not reply in time. */
static void asks_late(void *arg)
{
	struct broker_client *n = arg;
	uint64_t now = mono_ns(), next = 0;
	struct broker_ask *a = n->asks;

	while (a) {
		struct broker_ask *after = a->next;

		if (a->due_ns <= now)
			ask_answered(n, a->id, NULL);
		else
			next = next ? MIN(next, a->due_ns) : a->due_ns;
		a = after;
	}
	if (next)
		timer_set(n->late, next);
}

static void ask_resolvers(struct broker_client *n);

static void denied_came(struct broker_client *n, struct cur *c)
{
	uint32_t id = cur_u32(c);
	char place[NET_NAME_MAX], why[32];

	cur_str(c, place, sizeof(place));
	cur_str(c, why, sizeof(why));
	if (cur_done(c))
		n->ops->denied(n->arg, id, place, why);
}

static void on_message(struct broker_client *n, const uint8_t *p, size_t len)
{
	struct cur body = cur_of(p, len);
	struct net_hdr h;

	if (!cur_copy(&body, &h, sizeof(h)))
		return;
	if (h.type == (NET_COUNTERS | NET_REPLY))
		ask_answered(n, h.id, h.status < 0 ? NULL : &body);
	else if (h.type == NET_EV_RESOLVERS)
		ask_resolvers(n);
	else if (h.type == NET_EV_DENIED)
		denied_came(n, &body);
	else if (h.status < 0 && h.status != -ENOENT)
		/* the body is a str: four bytes of length, then the text */
		log_limited(LOG_WARN, "the broker refused request %u: %.*s", h.type & ~NET_REPLY,
			(int)MIN(cur_left(&body), (size_t)300) - 4, (const char *)body.p + 4);
}

static void on_broker(void *arg, uint32_t events)
{
	static uint8_t p[NET_MSG_MAX];
	struct broker_client *n = arg;
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
	on_message(n, p, (size_t)len);
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

/* Kinds of addresses that a tenant's policy cannot open, where keys belong to tenants: this host's own services and its cloud's metadata. Only the operator's
 * rules can. */
#define HOST_KINDS                                                                                 \
	(1u << NET_LOOPBACK | 1u << NET_HOST_OWN | 1u << NET_LINK_LOCAL | 1u << NET_METADATA)

static int send_operator(struct broker_client *n)
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

/* "1.2.3.4", "1.2.3.4:53", "::1" or "[::1]:53" */
static bool resolver_parse(char *w, struct net_addr *a, uint16_t *port)
{
	char *colon = strrchr(w, ':'), *end;
	unsigned long n;

	*port = 53;
	if (net_addr_parse(w, a))
		return true;
	if (!colon || colon == w)
		return false;
	n = strtoul(colon + 1, &end, 10);
	if (end == colon + 1 || *end || !n || n > 65535 || colon[1] < '0' || colon[1] > '9')
		return false;
	*port = (uint16_t)n;
	*colon = 0;
	if (*w == '[' && colon[-1] == ']') {
		colon[-1] = 0;
		w++;
	}
	return net_addr_parse(w, a);
}

/* fd: resolv.conf, which is used if the configuration names no resolvers; -1: the broker keeps the one it has. */
static int send_resolvers(struct broker_client *n, int fd)
{
	char text[sizeof(((struct config *)0)->network_resolvers)], *save = NULL;
	struct buf b, list;
	uint32_t count = 0;
	int rc;

	str_copy(text, sizeof(text), n->d->cfg.network_resolvers);
	buf_init(&list, 256);
	for (char *w = strtok_r(text, " \t,", &save); w; w = strtok_r(NULL, " \t,", &save)) {
		struct net_addr a;
		uint16_t port;

		if (count == RESOLVERS_MAX || !resolver_parse(w, &a, &port)) {
			log_error("configuration, network.resolvers: %s is not an ADDRESS or "
				  "ADDRESS:PORT, or not one of the first %u",
				w, RESOLVERS_MAX);
			continue;
		}
		buf_put(&list, a.b, sizeof(a.b));
		buf_u16(&list, port);
		count++;
	}
	request_start(n, &b, NET_RESOLVERS, 512);
	buf_u32(&b, count);
	buf_put(&b, list.p, list.len);
	rc = request_send(n, &b, count ? -1 : fd);
	buf_fini(&list);
	return rc;
}

static void resolvers_came(void *arg, const struct priv_msg *m, int fd)
{
	struct broker_client *n = arg;

	if (fd < 0)
		log_limited(LOG_WARN, "the host's /etc/resolv.conf cannot be read: %s",
			strerror(-m->status));
	else if (n->control >= 0)
		send_resolvers(n, fd);
	close_fd(&fd);
}

/* Asks the helper for resolv.conf as it is now: neither the daemon nor the broker sees the host's /etc. */
static void ask_resolvers(struct broker_client *n)
{
	struct priv_msg m = {.op = PRIV_OPEN, .what = PRIV_F_RESOLV};

	if (privctl_call(n->d->priv, &m, NULL, 0, resolvers_came, n) < 0)
		log_limited(LOG_WARN, "resolvers: the helper takes no requests");
}

void broker_client_configure(struct broker_client *n)
{
	if (n->control < 0)
		return;
	send_operator(n);
	send_resolvers(n, -1);
	ask_resolvers(n);
}

/* ---- the process */

static void broker_gone(struct broker_client *n)
{
	n->runs = false;
	watch_remove(n->watch);
	n->watch = NULL;
	close_fd(&n->control);
	while (n->asks)
		ask_answered(n, n->asks->id, NULL);
}

static void broker_spawned(void *arg, const struct priv_msg *m, int fd)
{
	struct broker_client *n = arg;

	close_fd(&fd);
	if (m->status == 0)
		return;
	log_error("mayfly-broker could not be started: %s", strerror(-m->status));
	vms_slot_give(n->d->vms, n->slot);
	broker_gone(n);
	n->ops->lost(n->arg);
}

static int control_address(const struct broker_client *n, struct sockaddr_un *a)
{
	*a = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (snprintf(a->sun_path, sizeof(a->sun_path), "%s/net/control", n->d->cfg.run_dir) >=
		(int)sizeof(a->sun_path))
		return -ENAMETOOLONG;
	return 0;
}

/* Whoever connects there decides what every sandbox may reach. So the folder must be the daemon's alone, whoever may use run_dir. */
static int control_folder(const struct broker_client *n)
{
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	struct stat st;

	snprintf(path, sizeof(path), "%.90s/net", n->d->cfg.run_dir);
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	if (stat(path, &st) < 0)
		return -errno;
	return S_ISDIR(st.st_mode) && !(st.st_mode & 0077) && st.st_uid == geteuid() ? 0 : -EPERM;
}

/* Makes the control socket: our end in n->control, the broker's in *theirs. */
static int control_make(struct broker_client *n, int *theirs)
{
	const int type = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
	_cleanup_close_ int ours = -1;
	struct sockaddr_un a;
	int sv[2], rc;

	if (privctl_is_direct(n->d->priv)) {
		if (socketpair(AF_UNIX, type, 0, sv) < 0)
			return -errno;
		n->control = sv[0];
		*theirs = sv[1];
		return 0;
	}
	rc = control_address(n, &a);
	if (rc == 0)
		rc = control_folder(n);
	if (rc < 0)
		return rc;
	unlink(a.sun_path);
	*theirs = socket(AF_UNIX, type, 0);
	ours = socket(AF_UNIX, type, 0);
	if (*theirs < 0 || ours < 0 || bind(*theirs, (void *)&a, sizeof(a)) < 0 ||
		listen(*theirs, 8) < 0 || connect(ours, (void *)&a, sizeof(a)) < 0)
		return -errno;
	n->control = take_fd(&ours);
	return 0;
}

/* Requests that are sent before the broker runs wait in the socket. */
int broker_client_ensure(struct broker_client *n)
{
	struct priv_msg m = {.op = PRIV_SPAWN, .kind = PRIV_K_BROKER};
	_cleanup_close_ int theirs = -1;
	uint64_t now = mono_ns();
	int rc;

	if (n->runs)
		return n->control >= 0 ? 0 : -EAGAIN;
	if (n->tried_ns && now - n->tried_ns < BROKER_RETRY_NS)
		return -EAGAIN;
	n->tried_ns = now;
	if (!vms_slot_take(n->d->vms, &n->slot))
		return -EAGAIN;
	m.slot = m.group = n->slot;
	rc = control_make(n, &theirs);
	if (rc == 0) {
		n->watch = loop_watch(n->d->loop, n->control, EPOLLIN, on_broker, n);
		rc = n->watch ? 0 : -ENOMEM;
	}
	if (rc < 0) {
		vms_slot_give(n->d->vms, n->slot);
		broker_gone(n);
		return rc;
	}
	n->runs = true;
	rc = privctl_call(n->d->priv, &m, &theirs, 1, broker_spawned, n);
	if (rc < 0)
		vms_slot_give(n->d->vms, n->slot);
	if (rc == 0 && !n->runs) /* without a helper the answer has come already */
		rc = -EIO;
	if (rc == 0)
		rc = send_operator(n);
	if (rc == 0)
		rc = send_resolvers(n, -1);
	if (rc == 0)
		ask_resolvers(n);
	else
		broker_gone(n);
	return rc;
}

/* Does the broker speak this version? 0, or -errno. Other messages in the socket are events, and are dropped. */
static int hello(struct broker_client *n)
{
	uint8_t p[1024];
	uint64_t until = mono_ns() + BROKER_HELLO_MS * 1000000ull;
	struct pollfd w = {.fd = n->control, .events = POLLIN};
	struct buf b;
	int rc;

	request_start(n, &b, NET_HELLO, 64);
	buf_u32(&b, NET_VERSION);
	rc = request_send(n, &b, -1);
	while (rc == 0 && mono_ns() < until && poll(&w, 1, BROKER_HELLO_MS) > 0) {
		size_t nfds = 0;
		ssize_t len = fdpass_recv(n->control, p, sizeof(p), NULL, &nfds);
		struct net_hdr h;

		if (len < (ssize_t)sizeof(h))
			return len < 0 ? (int)len : -EPIPE;
		memcpy(&h, p, sizeof(h));
		if (h.magic != NET_MAGIC)
			return -EPROTO;
		if (h.type == (NET_HELLO | NET_REPLY))
			return h.status;
	}
	return rc < 0 ? rc : -ETIMEDOUT;
}

int broker_client_adopt(struct broker_client *n, uint32_t slot)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un a;
	int rc = fd < 0 ? -errno : control_address(n, &a);

	if (rc == 0)
		rc = control_folder(n);
	if (rc == 0 && connect(fd, (void *)&a, sizeof(a)) < 0)
		rc = -errno;
	if (rc < 0)
		return rc;
	n->control = take_fd(&fd);
	rc = hello(n);
	if (rc == 0)
		n->watch = loop_watch(n->d->loop, n->control, EPOLLIN, on_broker, n);
	if (!n->watch) {
		close_fd(&n->control);
		return rc < 0 ? rc : -ENOMEM;
	}
	n->runs = true;
	n->slot = slot;
	return 0;
}

bool broker_client_there(const struct broker_client *n)
{
	return n->control >= 0;
}

bool broker_client_ended(struct broker_client *n, uint32_t slot)
{
	if (!n->runs || slot != n->slot)
		return false;
	log_error("mayfly-broker ended; the sandboxes' connections end with it");
	broker_gone(n);
	n->ops->lost(n->arg);
	return true;
}

/* ---- sandboxes */

int broker_client_channel(
	struct broker_client *n, uint32_t id, const uint64_t limits[NET_L_COUNT], int fd)
{
	struct buf b;

	request_start(n, &b, NET_CHANNEL, 256);
	buf_u32(&b, id);
	buf_u32(&b, NET_L_COUNT);
	for (unsigned int i = 0; i < NET_L_COUNT; i++)
		buf_u64(&b, limits[i]);
	return request_send(n, &b, fd);
}

int broker_client_policy(struct broker_client *n, uint32_t id, const struct buf *policy)
{
	static uint8_t none[] = {0, 1, 0, 0, 0, 0}; /* not given, allow by default, no rule */
	struct buf open = {.p = none, .len = sizeof(none)};

	return send_parts(n, NET_POLICY, policy ? policy : &open, &id);
}

void broker_client_remove(struct broker_client *n, uint32_t id)
{
	struct buf b;

	if (n->control < 0)
		return;
	request_start(n, &b, NET_REMOVE, 64);
	buf_u32(&b, id);
	request_send(n, &b, -1);
}

void broker_client_sweep(struct broker_client *n)
{
	struct buf b;

	if (n->control < 0)
		return;
	request_start(n, &b, NET_SWEEP, 64);
	request_send(n, &b, -1);
}

int broker_client_counters(struct broker_client *n, uint32_t id, broker_counters_fn fn, void *arg)
{
	struct broker_ask *a;
	struct buf b;
	int rc;

	if (n->control < 0)
		return -ENOENT;
	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	request_start(n, &b, NET_COUNTERS, 64);
	buf_u32(&b, id);
	*a = (struct broker_ask){.next = n->asks,
		.due_ns = mono_ns() + ASK_WAIT_NS,
		.id = n->next_id,
		.fn = fn,
		.arg = arg};
	rc = request_send(n, &b, -1);
	if (rc < 0) {
		free(a);
		return rc;
	}
	if (!n->asks)
		timer_set(n->late, a->due_ns);
	n->asks = a;
	return 0;
}

void broker_client_forget(struct broker_client *n, const void *arg)
{
	for (struct broker_ask *a = n->asks; a; a = a->next)
		if (a->arg == arg)
			a->fn = NULL;
}

struct broker_client *broker_client_create(
	struct daemon *d, const struct broker_client_ops *ops, void *arg)
{
	struct broker_client *n = calloc(1, sizeof(*n));

	if (!n)
		return NULL;
	*n = (struct broker_client){.d = d, .ops = ops, .arg = arg, .control = -1};
	n->late = loop_timer(d->loop, asks_late, n);
	if (n->late)
		return n;
	free(n);
	return NULL;
}

void broker_client_destroy(struct broker_client *n)
{
	if (!n)
		return;
	broker_gone(n);
	timer_remove(n->late);
	free(n);
}
