/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_forward.c: `mayfly port-forward`: local ports that lead to ports and Unix sockets in a sandbox, for any protocol. Each accepted connection becomes one request
 * GET .../stream that the daemon upgrades; then bytes pass both ways unread, with half-closes. Each connection has a thread, which only copies in both directions. A
 * thread never blocks in a write: if it did, two peers that both send without reading would wait for each other for ever.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/dial.h"
#include "lib/http1.h"
#include "lib/json.h"

#define FORWARDS_MAX    64u
#define CONNECTIONS_MAX 1024u
#define STEP            65536u
#define STDIO           (-2) /* the local side is our standard input and output */

/* One LOCAL:REMOTE of the command line. */
struct forward {
	const struct client *c;
	char sandbox[64];
	char *remote; /* for people: "port 80", "/run/x.sock" */
	char *query;  /* for the daemon */
	uint64_t local;
	int fd; /* the listener, or STDIO */
};

struct connection {
	const struct forward *f;
	int in, out; /* the local side; one socket is both */
};

static _Atomic unsigned int connections;

/* ---- bytes */

struct flow {
	int from, to;
	bool eof, shut;
	size_t at, len;
	uint8_t bytes[STEP];
};

/* false: the connection broke. */
static bool flow_read(struct flow *w)
{
	ssize_t n;

	if (w->eof || w->len)
		return true;
	n = read(w->from, w->bytes, sizeof(w->bytes));
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	w->eof = n == 0;
	w->at = 0;
	w->len = (size_t)n;
	return true;
}

static void flow_end(struct flow *w)
{
	w->shut = true;
	/* a pipe is no socket: its reader sees the end only when it is closed */
	if (shutdown(w->to, SHUT_WR) < 0 && errno == ENOTSOCK)
		close(w->to);
}

static bool flow_write(struct flow *w)
{
	while (w->len) {
		ssize_t n = write(w->to, w->bytes + w->at, w->len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN;
		w->at += (size_t)n;
		w->len -= (size_t)n;
	}
	if (w->eof && !w->shut)
		flow_end(w);
	return true;
}

/* A descriptor of which nothing is wanted is left out: poll would report its hang-up again and again. */
static struct pollfd wanted(int fd, short events)
{
	return (struct pollfd){.fd = events ? fd : -1, .events = events};
}

static void copy_both(struct flow w[static 2])
{
	while (!w[0].shut || !w[1].shut) {
		struct pollfd p[4];

		for (int i = 0; i < 2; i++) {
			p[2 * i] = wanted(w[i].from, w[i].eof || w[i].len ? 0 : POLLIN);
			p[2 * i + 1] = wanted(w[i].to, w[i].len ? POLLOUT : 0);
		}
		if (poll(p, 4, -1) < 0 && errno != EINTR)
			return;
		for (int i = 0; i < 2; i++)
			if ((p[2 * i].revents && !flow_read(&w[i])) || !flow_write(&w[i]))
				return;
	}
}

/* ---- the daemon's answer */

static int ask(const struct forward *f, int fd)
{
	char key[400] = "";
	_cleanup_free_ char *head = NULL;

	if (*f->c->key)
		snprintf(key, sizeof(key), "OPEN-SANDBOX-API-KEY: %s\r\n", f->c->key);
	head = client_path("GET /v1/sandboxes/%s/proxy/44772/stream?%s HTTP/1.1\r\nHost: %s\r\n%s"
			   "Connection: Upgrade\r\nUpgrade: mayfly-stream\r\n\r\n",
		f->sandbox, f->query, strstr(f->c->base, "://") + 3, key);
	return write_full(fd, head, strlen(head));
}

/* The words of a refusal. */
static void say_refused(const struct forward *f, int status, const struct buf *body)
{
	_cleanup_json_ cJSON *j = NULL;

	json_read(&j, body->p, body->len, JSON_OBJECT | JSON_ANY_BYTES, NULL);
	fprintf(stderr, "mayfly: port-forward: %s: %s (%d)\n", f->remote,
		*json_text(j, "message") ? json_text(j, "message") : "the daemon refused", status);
}

/* Reads until the answer's head is whole. true: upgraded, and w has what came behind it. */
static bool await_upgrade(const struct forward *f, int fd, struct flow *w)
{
	_cleanup_(http1_fini) struct http1_response h;
	_cleanup_(buf_fini) struct buf body;
	enum http1_ev ev = H1_MORE;
	const uint8_t *p = NULL, *data;
	size_t n = 0, len;

	buf_init(&body, STEP);
	http1_init(&h, false);
	h.upgrade_ok = true;
	do {
		ssize_t k = read(fd, w->bytes, sizeof(w->bytes));

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			break;
		for (p = w->bytes, n = (size_t)k;
			(ev = http1_next(&h, &p, &n, &data, &len)) == H1_DATA ||
			(ev == H1_HEAD && h.status != 101);)
			if (ev == H1_DATA)
				buf_put(&body, data, len);
	} while (ev == H1_MORE);
	if (ev != H1_HEAD) {
		say_refused(f, h.status, &body);
		return false;
	}
	w->at = (size_t)(p - w->bytes);
	w->len = n;
	return true;
}

/* ---- one connection */

static void carry(const struct connection *k)
{
	struct flow *w = calloc(2, sizeof(*w));
	struct err e;
	int fd = client_dial(k->f->c, &e);

	if (fd < 0)
		complain(EXIT_FAILED, &e);
	if (w && fd >= 0 && ask(k->f, fd) == 0 && await_upgrade(k->f, fd, &w[1])) {
		w[0].from = k->in;
		w[0].to = w[1].from = fd;
		w[1].to = k->out;
		fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK);
		if (flow_write(&w[1]))
			copy_both(w);
	}
	close_fd(&fd);
	free(w);
}

static void *serve(void *arg)
{
	struct connection *k = arg;

	carry(k);
	close(k->in);
	free(k);
	connections--;
	return NULL;
}

/* false: this process has no descriptor left. */
static bool accept_one(const struct forward *f)
{
	struct connection *k = malloc(sizeof(*k));
	int fd = accept4(f->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	pthread_t t;

	if (!k || fd < 0) {
		bool full = fd < 0 && (errno == EMFILE || errno == ENFILE);

		free(k);
		close_fd(&fd);
		return !full;
	}
	*k = (struct connection){.f = f, .in = fd, .out = fd};
	connections++;
	if (pthread_create(&t, NULL, serve, k)) {
		connections--;
		close(fd);
		free(k);
		return true;
	}
	pthread_detach(t);
	return true;
}

static int accept_all(const struct forward *f, size_t n)
{
	struct pollfd p[FORWARDS_MAX];
	bool full = false;

	while (!client_interrupts) {
		bool room = connections < CONNECTIONS_MAX && !full;

		full = false;
		for (size_t i = 0; i < n; i++)
			p[i] = wanted(f[i].fd, room ? POLLIN : 0);
		if (poll(p, n, room ? -1 : 100) < 0)
			continue;
		for (size_t i = 0; i < n; i++)
			if (p[i].revents)
				full |= !accept_one(&f[i]);
	}
	return EXIT_OK;
}

/* For ssh's ProxyCommand: our standard input and output are the connection. */
static int carry_stdio(const struct forward *f)
{
	const struct connection k = {.f = f, .in = STDIN_FILENO, .out = STDOUT_FILENO};
	int in = fcntl(STDIN_FILENO, F_GETFL), out = fcntl(STDOUT_FILENO, F_GETFL);

	fcntl(STDIN_FILENO, F_SETFL, in | O_NONBLOCK);
	fcntl(STDOUT_FILENO, F_SETFL, out | O_NONBLOCK);
	carry(&k);
	/* if they are a terminal, the shell uses the same open file: its flags must be as before */
	fcntl(STDIN_FILENO, F_SETFL, in);
	fcntl(STDOUT_FILENO, F_SETFL, out);
	return EXIT_OK;
}

/* ---- the command line */

static int forward_parse(struct forward *f, const char *word, struct err *e)
{
	const char *slash = strchr(word, '/'), *colon = strchr(word, ':'), *remote;
	uint64_t port = 0;

	if (slash && colon > slash)
		colon = NULL;
	remote = colon ? colon + 1 : word;
	if (*remote == '/') {
		_cleanup_free_ char *path = client_escape(remote);

		f->remote = client_path("%s", remote);
		f->query = client_path("path=%s", path);
	} else if (uint_parse(remote, &port) && port >= 1 && port <= 65535) {
		f->remote = client_path("port %s", remote);
		f->query = client_path("port=%s", remote);
	} else {
		return err_plain(e, EINVAL, "port-forward: '%s' is not a port or /path", remote);
	}
	f->local = port;
	if (colon) {
		_cleanup_free_ char *local = strndup(word, (size_t)(colon - word));

		if (local && !strcmp(local, "-"))
			f->fd = STDIO;
		else if (!local || !uint_parse(local, &f->local) || f->local > 65535)
			return err_plain(
				e, EINVAL, "port-forward: '%s' is not a port", local ? local : "");
	}
	return 0;
}

static int forward_listen(struct forward *f, const char *address, struct err *e)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->local)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)f->local)};
	bool is6 = inet_pton(AF_INET6, address, &v6.sin6_addr) == 1;
	socklen_t len = is6 ? sizeof(v6) : sizeof(v4);
	struct sockaddr *sa = is6 ? (void *)&v6 : (void *)&v4;
	int one = 1;

	if (!is6 && inet_pton(AF_INET, address, &v4.sin_addr) != 1)
		return err_plain(e, EINVAL, "--address: '%s' is not an IP address", address);
	f->fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	setsockopt(f->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (f->fd < 0 || bind(f->fd, sa, len) < 0 || listen(f->fd, 128) < 0 ||
		getsockname(f->fd, sa, &len) < 0)
		return err_set(
			e, errno, "listen on %s port %llu", address, (unsigned long long)f->local);
	printf(is6 ? "[%s]:%u -> %s %s\n" : "%s:%u -> %s %s\n", address,
		ntohs(is6 ? v6.sin6_port : v4.sin_port), f->sandbox, f->remote);
	return 0;
}

/* 0, or an exit code. */
static int forwards_parse(struct forward *f, size_t n, char **words, const struct client *c)
{
	struct err e;

	for (size_t i = 0; i < n; i++) {
		f[i] = (struct forward){.c = c, .fd = -1};
		if (forward_parse(&f[i], words[i], &e) < 0)
			return complain(EXIT_USAGE, &e);
		if (f[i].fd == STDIO && n > 1) {
			err_plain(&e, EINVAL, "port-forward: with - as LOCAL, give one port only");
			return complain(EXIT_USAGE, &e);
		}
	}
	return 0;
}

static const char usage[] =
	"port-forward SANDBOX [LOCAL:]PORT...\n\n"
	"Forward local ports to a sandbox, for any protocol over TCP. LOCAL is a port of this\n"
	"host (0: any free one; default: the same number), or - for standard input and output,\n"
	"as ssh's ProxyCommand wants it. Instead of PORT, the path of a Unix socket in the\n"
	"sandbox: 5432:/run/postgresql/.s.PGSQL.5432\n";

int cmd_port_forward(int argc, char **argv)
{
	struct client_opts co = {0};
	const char *address = "127.0.0.1";
	const struct opt opts[] = {CLIENT_OPTS(co),
		{"address", 0, OPT_STR, &address, "IP", "listen on IP instead of 127.0.0.1"}};
	struct forward f[FORWARDS_MAX];
	struct client c;
	struct err e;
	char id[64];
	int at, code, rc = 0;
	size_t n;

	if (!client_begin(&c, &co, usage, opts, ARRAY_LEN(opts), argc, argv, 2, &at, &code))
		return code;
	n = (size_t)(argc - at - 1);
	if (n > FORWARDS_MAX) {
		err_plain(&e, EINVAL, "port-forward: at most %u ports", FORWARDS_MAX);
		return complain(EXIT_USAGE, &e);
	}
	code = forwards_parse(f, n, argv + at + 1, &c);
	if (code)
		return code;
	if (client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	for (size_t i = 0; i < n && rc == 0; i++) {
		memcpy(f[i].sandbox, id, sizeof(id));
		if (f[i].fd != STDIO)
			rc = forward_listen(&f[i], address, &e);
	}
	if (rc < 0)
		return complain(EXIT_FAILED, &e);
	if (f[0].fd == STDIO)
		return carry_stdio(&f[0]);
	fflush(stdout);
	return accept_all(f, n);
}
