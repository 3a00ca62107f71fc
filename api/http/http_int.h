/* SPDX-License-Identifier: Apache-2.0
 *
 * http_int.h: what server.c, request.c and reply.c share, and nobody else.
 */
#pragma once

#include <microhttpd.h>

#include "api/http/conn_limits.h"
#include "api/http/http.h"
#include "lib/buf.h"

#define HTTP_BODY_MAX_DEFAULT (1u << 20)
#define HTTP_DISCARD_MAX      (64u << 20) /* bytes of an unwanted body before the connection is cut */
/* A body up to this is read to its end before an early answer: a client that still writes does not read. */
#define HTTP_EARLY_MAX   (4u << 20)
#define HTTP_STREAM_SOFT (256u << 10)
#define HTTP_STREAM_HARD (1u << 20)
#define HTTP_HEADERS_MAX 64
/* Charged for every request: this struct, libmicrohttpd's pages, the first piece of the request's memory. Its head is charged twice: as it came
 * and as our copy. */
#define HTTP_REQUEST_COST (12u << 10)
/* An answer up to this is always given: an error, the result of a change. */
#define HTTP_SMALL_ANSWER 4096u

struct arena_chunk {
	struct arena_chunk *next;
	size_t used, cap;
	max_align_t p[];
};

struct http_conn {
	struct http *http;
	int fd;
	struct timer *deadline;
	struct http_conn *prev, *next;
	struct request *req; /* the one that is being received or answered */
	struct conn_slot slot;
	struct account *counted; /* in which it counts as one connection */
	bool local;              /* over the Unix socket, by this user */
	bool upgraded;           /* its request continues without libmicrohttpd */
	bool left;               /* libmicrohttpd has closed it */
	char inward[37];         /* the sandbox named to http_adopt(); else "" */
	uid_t uid;
};

#define HTTP_LISTENERS_MAX 2

struct request {
	struct http_req pub;
	struct MHD_Connection *conn; /* NULL: libmicrohttpd is done with it */
	struct http_conn *hc;
	struct arena_chunk *arena;
	struct http_pair params[HTTP_PARAMS_MAX], *queries, headers[HTTP_HEADERS_MAX];
	size_t nparams, nqueries, nheaders;
	bool queries_parsed;

	struct http_upgrade *upgrade; /* the answer is a 101: waiting for it, or after it */
	bool is_1_1, given_away;      /* given_away: see request_give_away() */
	/* seen: its headers were checked; invoked: its handler was called; finished: the handler is done; gone: the client left; aborted: the connection
	 * is cut instead of an answer; suspended: libmicrohttpd waits for request_resume(); queued: libmicrohttpd has the answer */
	bool seen, has_body, invoked, finished, gone, aborted, suspended, queued;
	int busy; /* a callback of the handler is on the stack: do not free */

	struct buf whole;
	/* what the request is charged to: pub.account, or the server's account if that is NULL. Set once, so that bytes go back to the account from
	 * which they were taken */
	struct account *account;
	size_t held; /* bytes that are charged to it, without what the stream has not sent */
	const struct account *full; /* the account that had no room for this request */
	size_t body_seen;
	http_body_fn body_fn;
	bool body_ended, body_end_told, body_paused;

	struct MHD_Response *resp;
	int status;
	bool streaming, stream_ended, stream_full;
	struct buf out;
	size_t out_off;
	/* the server's list of streams with unsent bytes; first the one whose client took nothing for longest */
	struct request *stall_prev, *stall_next;
	bool stalls;
	uint64_t took_ns;
	int64_t stream_length;
	http_fn writable, gone_fn, free_fns[4];
	unsigned int nfree;
	struct watch *gone_watch;
};

struct http {
	struct loop *loop;
	struct http_config c;
	struct MHD_Daemon *mhd;
	struct watch *watch;
	struct http_conn *conns;
	struct conn_limits limits;
	struct http_listener {
		struct http *http;
		int fd;
		struct watch *watch;
	} listeners[HTTP_LISTENERS_MAX];
	size_t nlisteners;
	size_t live; /* requests not freed */
	bool run_pending, quiescing;
	timer_fn drained;
	void *drained_arg;
	struct http_stats stats;
	struct request *stall_first, *stall_last;
	struct timer *stall_timer;
};

static inline struct request *request_of(const struct http_req *r)
{
	return container_of((struct http_req *)(uintptr_t)r, struct request, pub);
}

/* server.c */
void http_kick(struct http *h);
void request_resume(struct request *r);   /* lets libmicrohttpd look at it again */
void request_finished(struct request *r); /* the handler is done; may free r */
void request_watch_client(struct request *r);
void conn_deadline(struct http_conn *hc, uint64_t after_ns); /* 0: none */
/* From here on r and its connection no longer end when libmicrohttpd ends them. fd: the socket, borrowed. */
void request_give_away(struct request *r, int fd);
/* Ends such a connection. The caller still finishes the request. */
void request_end_given_away(struct request *r);
/* upgrade.c */
void upgrade_lost(struct request *r);  /* the connection of r->upgrade is gone */
void upgrade_leave(struct request *r); /* the daemon ends */
/* request.c */
void arena_free(struct request *r);
/* reply.c */
/* The answer is a 101 for u. The request continues. */
void request_upgrade(struct request *r, struct MHD_Response *takes, struct http_upgrade *u);
void stream_forget(struct request *r); /* its unsent bytes are gone */
void streams_cut_off(void *arg);       /* the server's timer */
ssize_t stream_read(void *cls, uint64_t pos, char *to, size_t max);
