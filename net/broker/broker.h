/* SPDX-License-Identifier: Apache-2.0
 *
 * broker.h: mayfly-broker, the one process of a host that makes sockets for sandboxes (lib/proto_net.h says who has what). One thread, one
 * loop. Untrusted: what a mayfly-net sends, what a resolver answers. Trusted: the daemon.
 *
 * Every sandbox has a budget: flows, new flows a second, queries a second, queries in flight. A sandbox beyond its budget is refused and
 * counted; the others do not notice.
 */
#pragma once

#include "lib/err.h"
#include "lib/loop.h"
#include "lib/proto_net.h"
#include "lib/dns.h"
#include "net/policy.h"

#define DENIED_MAX        64u         /* places kept in the list of what was denied */
#define CHANNEL_TURN      32u         /* messages of one mayfly-net a turn of the loop */
#define TALK_PAUSE_NS     10000000ull /* a mayfly-net that says too much is not heard for this long */
#define FLOWS_MAX         16384u      /* of one sandbox, whatever its limit says */
#define BUFFERS_MAX       MIB(1536) /* of all flows; the helper gives this process 2 GiB (priv/spawn.c) */
#define RESOLVERS_MAX     3u
#define RESOLVER_RETRY_NS 1500000000ull
#define QUERY_DEADLINE_NS 6000000000ull
#define CLOSING_LOOK_NS   1000000000ull
#define CLOSING_MAX_NS    60000000000ull

struct net_flow_entry {
	uint32_t id; /* index in the table, and a generation above it; 0: free */
	enum net_flow kind;
	int fd; /* our duplicate */
	struct net_addr addr;
	uint16_t port;
	uint32_t committed; /* bytes that its buffers may take */
	char *name;         /* the allowed name by which it was open, or NULL */
	/* mayfly-net closed it with bytes unsent: when the peer last acknowledged some; 0: it is open */
	uint64_t closing_ns;
	uint64_t acked; /* while it is closing: bytes acknowledged at the last look */
};

/* A bucket of tokens that fills by time. */
struct net_bucket {
	uint64_t rate;      /* tokens a second; also the burst */
	uint64_t tokens_ns; /* in nanoseconds of filling: one token is 1e9 / rate */
	uint64_t filled_ns;
};

struct net_sandbox {
	struct broker *broker;
	struct net_sandbox *next;
	uint32_t id;
	int chan; /* -1: no mayfly-net */
	struct watch *watch;
	bool has_policy;
	bool claimed; /* the daemon that is connected now has sent its policy */
	struct policy policy;
	struct buf parts; /* of a policy that comes in several messages */
	struct learned learned;
	uint64_t limit[NET_L_COUNT];
	struct net_bucket opens, asks;
	struct net_bucket talk; /* all messages: a denied request costs this process time, too */
	struct timer *talk_timer;
	uint64_t count[NET_C_COUNT];
	struct net_flow_entry *flow;
	uint32_t nflow, open, generation; /* nflow: entries of the table; open: those in use */
	uint64_t committed;
	unsigned int queries;
	struct {
		char place[NET_NAME_MAX];
		uint8_t verdict;
		uint64_t count, last; /* last: the number of the last denial (`denials`) */
	} denied[DENIED_MAX];
	unsigned int ndenied, told; /* told: denials that the daemon was sent as events */
	uint64_t denials;
};

struct net_resolver {
	struct net_addr addr;
	uint16_t port;
};

struct query;

struct broker {
	struct loop *loop;
	int control; /* -1: no daemon is there */
	struct watch *control_watch;
	int listen; /* the next daemon connects here; -1: there is one daemon only */
	struct watch *listen_watch;
	struct net_sandbox *sandbox;
	unsigned int nsandboxes;
	struct net_world world;
	struct buf world_parts;
	/* descriptors of all sandboxes: flows, questions, channels; fds_max leaves room for the process's own */
	uint32_t fds, fds_max;
	uint64_t committed, committed_max; /* bytes that the buffers of all flows may take */
	struct timer *closing_timer;
	bool closing_due;        /* the timer runs */
	uint64_t closing_max_ns; /* a closing flow without progress for this long is reset */
	/* the host as it is now */
	int netlink;
	struct watch *netlink_watch;
	struct timer *host_retry; /* the addresses could not be read */
	bool resolvers_given;     /* by the daemon: the file is not looked at */
	struct net_resolver resolver[RESOLVERS_MAX];
	unsigned int nresolvers;
	int resolv_fd; /* resolv.conf; -1: the daemon has not given it yet */
	uint64_t resolv_looked_ns, resolv_asked_ns;
	int64_t resolv_mtime[2];
	uint64_t resolv_inode;
	struct query *query;
	uint64_t total[NET_C_COUNT]; /* of sandboxes that are gone */
	struct dns_answer answer;    /* one at a time */
	uint8_t message[DNS_MESSAGE_MAX + 2];
	uint8_t reply[sizeof(struct net_hdr) + DNS_MESSAGE_MAX];
};

/* control: borrowed until broker_destroy: a listening socket, or a connection to the daemon. fds_max: what the limit on descriptors leaves
 * for flows, questions and channels. NULL: *e says why. */
struct broker *broker_create(struct loop *l, int control, uint32_t fds_max, struct err *e);
void broker_destroy(struct broker *b);

/* sandbox.c. net_sandbox_channel() takes fd. */
struct net_sandbox *net_sandbox_find(struct broker *b, uint32_t id);
struct net_sandbox *net_sandbox_add(struct broker *b, uint32_t id);
void net_sandbox_remove(struct net_sandbox *s);
int net_sandbox_channel(struct net_sandbox *s, int fd);
/* Closes the channel to mayfly-net, which has ended or is replaced, and ends its flows and queries. */
void net_sandbox_drop(struct net_sandbox *s);
void net_sandbox_limits(struct net_sandbox *s, const uint64_t *limit, uint32_t n);
void net_sandbox_denied(struct net_sandbox *s, const char *place, enum net_verdict v);
bool net_bucket_take(struct net_bucket *b, uint64_t now_ns);
/* Replies to mayfly-net. If the channel is full the reply is lost: -errno. fd may be -1. */
int net_sandbox_send(struct net_sandbox *s, uint16_t type, uint32_t id, int32_t status,
	const void *p, size_t n, int fd);

/* flows.c */
/* Is there a descriptor for one more flow or question? channel: for one more channel, which may take the last ones. */
bool broker_has_fd(const struct broker *b, bool channel);
void flow_open(struct net_sandbox *s, uint32_t id, struct cur *c);
void flow_close(struct net_sandbox *s, struct cur *c);
void flows_end(struct net_sandbox *s);
/* After a change of policy, of the operator's rules or of the host's addresses: ends the flows that are not allowed any more. */
void flows_review(struct net_sandbox *s);
/* closing_timer's function: looks at the flows that mayfly-net closed with bytes unsent. */
void flows_closing(void *broker);
/* Adds the bytes of the open TCP flows: s->count gets them only when a flow ends. */
void flows_bytes(const struct net_sandbox *s, uint64_t *out, uint64_t *in);

/* resolve.c */
void query_start(struct net_sandbox *s, uint32_t id, struct cur *c);
void queries_end(struct net_sandbox *s);

/* host.c: this host's addresses and resolvers */
int host_watch(struct broker *b, struct err *e);
void host_unwatch(struct broker *b);
void host_resolvers(struct broker *b, uint64_t now_ns);
/* Takes fd: resolv.conf, which this process cannot open. -1: keeps the descriptor that it has. Reads the file again at the next question. */
void host_resolvers_file(struct broker *b, int fd);
/* Asks the daemon for resolv.conf as it is now; at most once a second. */
void host_resolvers_stale(struct broker *b, uint64_t now_ns);
/* Reads the "nameserver" lines of resolv.conf: how many have an address. */
unsigned int host_parse_resolvers(const char *text, struct net_resolver to[RESOLVERS_MAX]);

/* control.c */
void control_message(struct broker *b, const uint8_t *p, size_t n, int *fd);
/* Sends an event, which has no reply. It is lost if no daemon is connected. body may be NULL. */
void control_event(struct broker *b, uint16_t type, const struct buf *body);
