/* SPDX-License-Identifier: Apache-2.0
 *
 * host.c: what the broker must know about its host at every moment: its own addresses (closed to sandboxes), told by the kernel over
 * netlink, and its resolvers. The kernel and root write both.
 */
#include "net/broker/broker.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/log.h"

#define HOST_ADDRS_MAX 65536u /* more than that: nothing new is opened */
#define HOST_RETRY_NS  1000000000ull
#define DUMPS_MAX      5u /* a dump that a change interrupts is asked for again */
#define RESOLV_MAX     8192u
#define RESOLV_LOOK_NS 1000000000ull

struct addr_list {
	struct net_addr *a;
	uint32_t n, room;
	int rc;
};

static void list_add(struct addr_list *l, int family, struct rtattr *r)
{
	struct net_addr a, *more;
	uint8_t b[4];

	if (family == AF_INET && RTA_PAYLOAD(r) == sizeof(b)) {
		memcpy(b, RTA_DATA(r), sizeof(b));
		a = net_addr4(
			(uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3]);
	} else if (family == AF_INET6 && RTA_PAYLOAD(r) == sizeof(a.b)) {
		memcpy(a.b, RTA_DATA(r), sizeof(a.b));
	} else {
		return;
	}
	if (l->n == l->room) {
		more = l->room < HOST_ADDRS_MAX
			       ? reallocarray(l->a, MAX(2 * l->room, 64u), sizeof(*more))
			       : NULL;
		if (!more) {
			l->rc = l->room < HOST_ADDRS_MAX ? -ENOMEM : -E2BIG;
			return;
		}
		l->a = more;
		l->room = MAX(2 * l->room, 64u);
	}
	l->a[l->n++] = a;
}

static void list_message(struct addr_list *l, struct nlmsghdr *h)
{
	struct ifaddrmsg *m = NLMSG_DATA(h);
	int len = (int)h->nlmsg_len - (int)NLMSG_LENGTH(sizeof(*m));

	if (h->nlmsg_type != RTM_NEWADDR || len < 0)
		return;
	for (struct rtattr *r = IFA_RTA(m); RTA_OK(r, len); r = RTA_NEXT(r, len))
		if (r->rta_type == IFA_ADDRESS || r->rta_type == IFA_LOCAL ||
			r->rta_type == IFA_BROADCAST || r->rta_type == IFA_ANYCAST)
			list_add(l, m->ifa_family, r);
}

/* One answer to our question; 1: more come, 0: that was the last, or -errno. */
static int dump_part(int fd, uint32_t seq, struct addr_list *l)
{
	_Alignas(struct nlmsghdr) char p[32768];
	ssize_t n = recv(fd, p, sizeof(p), 0);
	unsigned int left = n < 0 ? 0 : (unsigned int)n;

	if (n < 0)
		return -errno;
	for (struct nlmsghdr *h = (struct nlmsghdr *)p; NLMSG_OK(h, left);
		h = NLMSG_NEXT(h, left)) {
		if (h->nlmsg_seq != seq)
			continue;
		if (h->nlmsg_flags & NLM_F_DUMP_INTR)
			return -EINTR;
		if (h->nlmsg_type == NLMSG_DONE)
			return l->rc;
		if (h->nlmsg_type == NLMSG_ERROR)
			return -EIO;
		list_message(l, h);
	}
	return 1;
}

/* All addresses of the host, asked over a socket of its own, so that news and answers are not mixed. */
static int dump_addresses(struct addr_list *l)
{
	struct {
		struct nlmsghdr h;
		struct ifaddrmsg m;
	} ask = {.h = {.nlmsg_len = sizeof(ask),
			 .nlmsg_type = RTM_GETADDR,
			 .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
			 .nlmsg_seq = 1}};
	_cleanup_close_ int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	int rc = 1;

	l->n = 0;
	l->rc = 0;
	if (fd < 0 || send(fd, &ask, sizeof(ask), 0) < 0)
		return -errno;
	while (rc > 0)
		rc = dump_part(fd, ask.h.nlmsg_seq, l);
	return rc;
}

/* Fails closed: while the host's own addresses are not known, each public address may be one of them. */
static int host_addresses(struct broker *b, struct err *e)
{
	struct addr_list l = {0};
	int rc = -EINTR;

	for (unsigned int i = 0; rc == -EINTR && i < DUMPS_MAX; i++)
		rc = dump_addresses(&l);
	if (rc == 0)
		rc = net_world_host(&b->world, l.a, l.n);
	free(l.a);
	b->world.host_unknown = rc < 0;
	if (rc == 0)
		return 0;
	if (b->host_retry)
		timer_after(b->host_retry, HOST_RETRY_NS);
	return err_set(e, -rc,
		"cannot read this host's addresses (netlink): nothing new is opened meanwhile");
}

static void host_again(void *arg)
{
	struct broker *b = arg;
	struct err e = {0};

	if (host_addresses(b, &e) < 0) {
		log_limited(LOG_ERROR, "%s", e.msg);
		return;
	}
	for (struct net_sandbox *s = b->sandbox; s; s = s->next)
		flows_review(s);
}

static void on_netlink(void *arg, uint32_t events)
{
	struct broker *b = arg;
	char p[8192];

	/* The content of the news does not matter: all addresses are read again, also after an overflow (ENOBUFS). */
	while (recv(b->netlink, p, sizeof(p), MSG_DONTWAIT) > 0)
		;
	host_again(b);
}

int host_watch(struct broker *b, struct err *e)
{
	struct sockaddr_nl any = {
		.nl_family = AF_NETLINK, .nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR};

	b->netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
	if (b->netlink < 0 || bind(b->netlink, (struct sockaddr *)&any, sizeof(any)) < 0)
		return err_set(e, errno, "netlink: watch the host's addresses");
	b->netlink_watch = loop_watch(b->loop, b->netlink, EPOLLIN, on_netlink, b);
	b->host_retry = loop_timer(b->loop, host_again, b);
	if (!b->netlink_watch || !b->host_retry)
		return err_set(e, errno, "netlink: no watch or timer");
	return host_addresses(b, e);
}

void host_unwatch(struct broker *b)
{
	watch_remove(b->netlink_watch);
	b->netlink_watch = NULL;
	timer_remove(b->host_retry);
	b->host_retry = NULL;
	close_fd(&b->netlink);
}

unsigned int host_parse_resolvers(const char *text, struct net_resolver to[RESOLVERS_MAX])
{
	static const char word[] = "nameserver";
	unsigned int n = 0;

	while (*text && n < RESOLVERS_MAX) {
		size_t line = strcspn(text, "\n"), at = strspn(text, " \t"), len;
		char addr[NET_ADDR_TEXT];

		if (at + sizeof(word) <= line && strncmp(text + at, word, sizeof(word) - 1) == 0 &&
			strchr(" \t", text[at + sizeof(word) - 1])) {
			at += sizeof(word) - 1;
			at += strspn(text + at, " \t");
			len = strcspn(text + at, " \t\r\n#;");
			if (len > 0 && len < sizeof(addr)) {
				memcpy(addr, text + at, len);
				addr[len] = 0;
				if (net_addr_parse(addr, &to[n].addr))
					to[n++].port = 53;
			}
		}
		text += line + (text[line] == '\n');
	}
	return n;
}

/* Another file was renamed over this one: the open file has no name any more. */
static bool file_replaced(const struct stat *st)
{
	return st->st_nlink == 0;
}

void host_resolvers_file(struct broker *b, int fd)
{
	if (fd >= 0) {
		close_fd(&b->resolv_fd);
		b->resolv_fd = fd;
	}
	b->resolv_inode = 0; /* read it, whatever it is */
	b->resolv_looked_ns = 0;
}

void host_resolvers_stale(struct broker *b, uint64_t now_ns)
{
	if (b->resolvers_given ||
		(b->resolv_asked_ns && now_ns - b->resolv_asked_ns < RESOLV_LOOK_NS))
		return;
	b->resolv_asked_ns = now_ns;
	control_event(b, NET_EV_RESOLVERS, NULL);
}

void host_resolvers(struct broker *b, uint64_t now_ns)
{
	char text[RESOLV_MAX + 1];
	struct stat st;
	ssize_t n;

	if (b->resolvers_given ||
		(b->resolv_looked_ns && now_ns - b->resolv_looked_ns < RESOLV_LOOK_NS))
		return;
	b->resolv_looked_ns = now_ns;
	if (b->resolv_fd < 0 || fstat(b->resolv_fd, &st) < 0) {
		host_resolvers_stale(b, now_ns);
		return;
	}
	if (file_replaced(&st))
		host_resolvers_stale(b, now_ns); /* the old resolvers stay meanwhile */
	if (st.st_ino == b->resolv_inode && st.st_mtim.tv_sec == b->resolv_mtime[0] &&
		st.st_mtim.tv_nsec == b->resolv_mtime[1])
		return;
	n = pread(b->resolv_fd, text, RESOLV_MAX, 0);
	if (n < 0)
		return;
	text[n] = 0;
	b->nresolvers = host_parse_resolvers(text, b->resolver);
	if (!b->nresolvers)
		log_limited(LOG_WARN,
			"resolv.conf has no nameserver with a usable address (one without %%ZONE): "
			"names do not resolve in sandboxes. Set network.resolvers");
	b->resolv_inode = st.st_ino;
	b->resolv_mtime[0] = st.st_mtim.tv_sec;
	b->resolv_mtime[1] = st.st_mtim.tv_nsec;
}
