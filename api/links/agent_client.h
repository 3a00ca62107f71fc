/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_client.h: the host's side of lib/proto_agent.h: one struct agentc per sandbox. The daemon's loop
 * thread. One CONTROL connection is kept and carries many requests; a running command, a file and a
 * dialled port have a connection each. Nothing here blocks. Only agentc_down() and agentc_destroy() call
 * back before they return. What the agent sends is hostile: bounded, checked, and at worst the end of a connection.
 *
 * An agentc is down until agentc_up() says that the agent listens (the daemon learns that from
 * VSOCK_PORT_READY), and again from agentc_down() (pause, restore). While it is down, requests wait.
 * Streams of running commands continue later where they stopped.
 */
#pragma once

#include "api/core/account.h"
#include "lib/buf.h"
#include "lib/loop.h"
#include "lib/proto_agent.h"

struct agentc;

/* requests in flight for one sandbox; more are refused with EBUSY */
#define AGENTC_CALLS_MAX 1024u
/* bytes of requests that wait for a connection; more are refused with EBUSY */
#define AGENTC_QUEUED_MAX  MIB(8)
#define AGENTC_STREAMS_MAX 512u /* commands, files and dials at one time */

/* The answer to a request, or how a stream ended. */
struct agent_reply {
	int err; /* 0, or a positive errno: the agent's; or ours if the connection was lost, or the
		    request timed out or was cancelled */
	uint32_t step;    /* enum agent_step */
	const char *text; /* for humans; "" if there is none. Made printable. */
	struct cur body;  /* err == 0: the payload of AGENT_OK, valid during the call */
	bool more;        /* another answer to the same request follows */
};
typedef void (*agent_reply_fn)(void *arg, const struct agent_reply *r);

/* path: the socket that leads to the agent; port: the vsock port behind it, 0 = the agent's own
 * socket. account: what its buffers are charged to; outlives it; NULL: no limit. Starts down. */
struct agentc *agentc_create(
	struct loop *l, const char *path, uint32_t port, struct account *account);
/* Every request and stream ends with ECANCELED, from inside this call. Not to be called from inside one
 * of its own callbacks: defer the call. */
void agentc_destroy(struct agentc *a);
/* For tests, which cannot wait so long. reconnect_ns: after a first loss, the time until the control connection is opened again.
 * unread_ns: the period in which 1 MiB of output that nobody reads is accepted. */
void agentc_pace(struct agentc *a, uint64_t reconnect_ns, uint64_t unread_ns);
void agentc_up(struct agentc *a);
void agentc_down(struct agentc *a);
/* Keeps one EXEC connection open in advance, after the end of the first command: a command then costs
 * one round trip to the guest instead of two. */
void agentc_keep_spare(struct agentc *a);
/* The agent has another socket now, after a resume in another VM. To be called while the agentc is down. */
int agentc_move(struct agentc *a, const char *path);
bool agentc_is_up(const struct agentc *a);
struct loop *agentc_loop(const struct agentc *a);
/* Who is charged for what is held for this sandbox; NULL: nobody. */
struct account *agentc_account(const struct agentc *a);

/* How long after its n-th loss in a row a connection is made again: twice as long each time, up to 32 times the first. */
uint64_t agent_backoff_ns(uint64_t first_ns, unsigned int n);
/* After a connection that was open for so long, a loss counts as the first in a row. */
#define AGENT_GOOD_NS (5ull * 1000000000)

/* What others remember of this sandbox, a slot each; freed by fn in agentc_destroy. */
enum agentc_slot { AGENTC_DATA_METRICS, AGENTC_DATA_CODE, AGENTC_SLOTS };
void *agentc_data(const struct agentc *a, enum agentc_slot slot);
void agentc_set_data(struct agentc *a, enum agentc_slot slot, void *data, void (*fn)(void *data));

/* ---- CONTROL. limit_ms 0 = none. NULL: refused (errno EBUSY, ENOMEM, EMSGSIZE), fn will not be
 * called. */
struct agent_call;
struct agent_call *agentc_call(struct agentc *a, uint16_t type, const struct buf *payload,
	uint32_t limit_ms, agent_reply_fn fn, void *arg);
/* A request about files, done in the view of an isolated session. NULL: of the sandbox. */
struct agent_call *agentc_call_in(struct agentc *a, const char *session, uint16_t type,
	const struct buf *payload, uint32_t limit_ms, agent_reply_fn fn, void *arg);
/* fn will not be called any more; the agent's answer is dropped. */
void agent_call_cancel(struct agent_call *c);

/* ---- a process. All strings borrowed for the call. */
struct agent_exec_spec {
	const char *exec_id; /* <= 63 bytes, chosen by the caller */
	uint32_t flags;      /* AGENT_X_* */
	uint32_t uid, gid;   /* AGENT_NO_ID = not given */
	const char *user, *cwd, *session;
	uint64_t timeout_ms;
	uint16_t cols, rows;
	size_t argc, envc;
	const char *const *argv;
	const char *const *env_keys, *const *env_vals;
};
struct agent_exec_ops {
	void (*started)(void *arg, uint32_t pid);
	/* NULL: nobody reads the output. Then 1 MiB per second is accepted; the rest waits in the guest. */
	void (*output)(void *arg, int stream /* 1, 2 */, const uint8_t *p, size_t n);
	/* the last call. r->err: it did not start, or its output is lost for good; else state (enum
	 * agent_state), code and r->text */
	void (*ended)(void *arg, const struct agent_reply *r, uint32_t state, uint32_t code);
};
/* Writes the payload of AGENT_EXEC for agentc_call(), which starts a background command and adds the
 * fields of the agreed version. */
void agent_exec_encode(struct buf *b, const struct agent_exec_spec *s);
struct agent_exec;
struct agent_exec *agent_exec_start(struct agentc *a, const struct agent_exec_spec *s,
	const struct agent_exec_ops *ops, void *arg);
/* Attaches to a process that runs in the guest already, from these offsets of its output. */
struct agent_exec *agent_exec_attach(struct agentc *a, const char *exec_id, uint64_t out_off,
	uint64_t err_off, const struct agent_exec_ops *ops, void *arg);
void agent_exec_hold(struct agent_exec *x,
	bool hold); /* stops reading its output; the process blocks when its pipe is full */
/* To be called from output() when n bytes were thrown away: they count as output that nobody reads. */
void agent_exec_unread(struct agent_exec *x, size_t n);
/* No call follows. The process is not touched: it runs on, its output is thrown away. After ended()
 * this only frees. */
void agent_exec_close(struct agent_exec *x);

/* ---- attaching to a terminal session in the guest, to hold it or to watch it; see AGENT_SESSION_ATTACH */
struct agent_terminal_spec {
	const char *id;
	uint32_t flags; /* AGENT_SA_* */
	uint64_t since;
	uint16_t cols, rows; /* 0: as it is */
};
struct agent_terminal_end {
	bool evicted;         /* another connection took it over */
	uint32_t state, code; /* of the shell (enum agent_state); 0: it did not end */
};
struct agent_terminal_ops {
	/* output with stream 3 follows from replay_from up to offset, then what comes live */
	void (*attached)(void *arg, uint32_t mode, uint64_t replay_from, uint64_t offset);
	void (*output)(void *arg, int stream, uint64_t offset, const uint8_t *p, size_t n);
	/* there is room for input again, after agent_terminal_stdin() took less than all */
	void (*taken)(void *arg);
	/* the last call. r->err: it was refused, or its connection was lost */
	void (*ended)(void *arg, const struct agent_reply *r, const struct agent_terminal_end *e);
};
struct agent_terminal;
struct agent_terminal *agent_terminal_attach(struct agentc *a, const struct agent_terminal_spec *s,
	const struct agent_terminal_ops *ops, void *arg);
/* How many bytes were taken. */
size_t agent_terminal_stdin(struct agent_terminal *t, const void *p, size_t n);
void agent_terminal_eof(struct agent_terminal *t);
void agent_terminal_hold(struct agent_terminal *t, bool hold);
/* No call follows; the session stays. Also from inside its callbacks. NULL is fine. */
void agent_terminal_close(struct agent_terminal *t);

/* ---- one file, read or written */
struct agent_item {
	char *path; /* terminated; made by agent_item_read, freed by agent_item_fini */
	char *link;
	char owner[64], group[64];
	uint8_t type;
	uint64_t size;
	int64_t mtime_ns, ctime_ns;
	uint32_t mode, uid, gid;
};
bool agent_item_read(struct cur *c, struct agent_item *i);
void agent_item_fini(struct agent_item *i);

struct agent_file;
struct agent_file_ops {
	void (*opened)(void *arg, uint64_t size, uint64_t offset, uint64_t len,
		const struct agent_item *i);                 /* read */
	void (*data)(void *arg, const uint8_t *p, size_t n); /* read */
	void (*writable)(
		void *arg); /* write: began, or has drained after agent_file_full() was true */
	void (*ended)(void *arg, const struct agent_reply *r); /* the last call */
};
struct agent_read_spec {
	uint32_t uid, gid, flags; /* AGENT_RD_* */
	const char *path;
	uint64_t offset, len;
	const char *session; /* an isolated one, in whose view the path is; NULL: none */
};
struct agent_write_spec {
	uint32_t uid, gid, flags; /* AGENT_WR_* */
	const char *path, *owner, *group;
	uint32_t mode; /* AGENT_NO_MODE */
	const char *session;
};
struct agent_file *agent_file_read(struct agentc *a, const struct agent_read_spec *s,
	const struct agent_file_ops *ops, void *arg);
struct agent_file *agent_file_write(struct agentc *a, const struct agent_write_spec *s,
	const struct agent_file_ops *ops, void *arg);
void agent_file_hold(struct agent_file *f, bool hold);
bool agent_file_put(struct agent_file *f, const void *p, size_t n); /* n > 0 */
void agent_file_finish(struct agent_file *f); /* the whole was put; ended() follows */
bool agent_file_full(const struct agent_file *f);
void agent_file_close(struct agent_file *f); /* no call follows; an unfinished write is given up */

/* ---- AGENT_LIST, AGENT_SEARCH and AGENT_SESSION_DIFF: an answer in many pages, on a connection of its own, so that a reader who is slow holds
 * up nothing else */
struct agent_pages;
/* fn gets each page (r->more) and, as its last call, the last page or the error. session: as in agentc_call_in. NULL: refused (errno). */
struct agent_pages *agent_pages_ask(struct agentc *a, const char *session, uint16_t type,
	const struct buf *payload, agent_reply_fn fn, void *arg);
void agent_pages_hold(struct agent_pages *p, bool hold);
void agent_pages_close(struct agent_pages *p); /* no call follows */

/* ---- a byte stream to something that listens inside the guest */
struct agent_dial;
struct agent_dial_ops {
	void (*opened)(void *arg);
	void (*bytes)(void *arg, const uint8_t *p, size_t n); /* n = 0: they will send no more */
	void (*drained)(void *arg);
	void (*closed)(void *arg,
		const struct agent_reply *r); /* the last call; err 0 after both sides ended */
};
struct agent_dial *agent_dial_tcp(
	struct agentc *a, uint16_t port, const struct agent_dial_ops *ops, void *arg);
/* path: of a Unix socket, at most 107 bytes. */
struct agent_dial *agent_dial_unix(
	struct agentc *a, const char *path, const struct agent_dial_ops *ops, void *arg);
/* The other way round: waits until a program in the guest connects to 127.0.0.1:44772; opened() says so. closed() before opened(): with
 * ECONNRESET or ECANCELED the agent is gone. ENOMEM, ENOBUFS and ETIMEDOUT may come from this side's connection. With any other error the agent
 * takes no such stream. */
struct agent_dial *agent_dial_accept(struct agentc *a, const struct agent_dial_ops *ops, void *arg);
/* From now on its callbacks are these. May be called from inside its own callbacks. */
void agent_dial_give(struct agent_dial *d, const struct agent_dial_ops *ops, void *arg);
bool agent_dial_send(struct agent_dial *d, const void *p, size_t n); /* after opened() */
void agent_dial_end(struct agent_dial *d);
bool agent_dial_ending(const struct agent_dial
		*d); /* after agent_dial_end(): bytes are queued, drained() will come */
bool agent_dial_full(const struct agent_dial *d);
void agent_dial_hold(struct agent_dial *d, bool hold);
void agent_dial_close(struct agent_dial *d);
