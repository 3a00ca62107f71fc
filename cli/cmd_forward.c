/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_forward.c: `mayfly port-forward`: a local port for a web server in a sandbox. Each connection
 * carries one request: its path gets the sandbox's prefix, "Connection: close" tells the browser to
 * open another for the next, then bytes go both ways until the daemon closes. One thread a
 * connection, because each is only two copies; clients are local, their bytes are passed on unread.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "cli/cli.h"
#include "cli/client.h"

#define HEAD_MAX 65536u

struct forward {
	char host[256], port[8], prefix[128], key[300];
	int fd;
};

static int dial(const struct forward *f)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	int fd = -1;

	if (getaddrinfo(f->host, f->port, &hints, &list))
		return -1;
	for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) < 0)
			close_fd(&fd);
	}
	freeaddrinfo(list);
	return fd;
}

/* Reads until the head is whole; its length, or 0. */
static size_t read_head(int fd, struct buf *in)
{
	for (;;) {
		const char *end = in->len ? memmem(in->p, in->len, "\r\n\r\n", 4) : NULL;
		uint8_t *to;
		ssize_t n;

		if (end)
			return (size_t)(end - (const char *)in->p) + 4;
		to = buf_room(in, 4096);
		n = to ? read(fd, to, 4096) : -1;
		if (n <= 0)
			return 0;
		in->len += (size_t)n;
	}
}

/* "GET /x HTTP/1.1" -> with the prefix; headers that keep a connection are left out. */
static bool rewrite(const struct forward *f, struct buf *in, size_t head, struct buf *out)
{
	char *p = (char *)in->p, *sp = memchr(p, ' ', head), *line;

	if (!sp || sp[1] != '/')
		return false;
	buf_put(out, p, (size_t)(sp - p) + 1);
	buf_printf(out, "%s", f->prefix);
	line = memmem(sp, head - (size_t)(sp - p), "\r\n", 2);
	buf_put(out, sp + 1, (size_t)(line + 2 - sp - 1));
	for (line += 2; line < p + head - 2;) {
		char *end = memmem(line, (size_t)(p + head - line), "\r\n", 2);

		if (strncasecmp(line, "connection:", 11) && strncasecmp(line, "keep-alive:", 11) &&
			strncasecmp(line, "open-sandbox-api-key:", 21))
			buf_put(out, line, (size_t)(end + 2 - line));
		line = end + 2;
	}
	/* so that cookies pass: the local port is an origin of the application's own */
	if (f->key[0])
		buf_printf(out, "OPEN-SANDBOX-API-KEY: %s\r\n", f->key);
	buf_printf(out, "Connection: close\r\n\r\n");
	buf_put(out, in->p + head, in->len - head);
	return !out->bad;
}

static void copy_both(int a, int b)
{
	struct pollfd p[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
	char bytes[65536];

	while (poll(p, 2, -1) > 0) {
		for (int i = 0; i < 2; i++) {
			ssize_t n;

			if (!p[i].revents)
				continue;
			n = read(p[i].fd, bytes, sizeof(bytes));
			if (n > 0) {
				if (write_full(i ? a : b, bytes, (size_t)n) < 0)
					return;
				continue;
			}
			if (i)
				return; /* the daemon's answer is whole */
			shutdown(b, SHUT_WR);
			p[0].fd = -1;
		}
	}
}

static void *serve(void *arg)
{
	_cleanup_free_ struct forward *f = arg;
	_cleanup_(buf_fini) struct buf in, out;
	int up = -1;
	size_t head;

	buf_init(&in, HEAD_MAX);
	buf_init(&out, 2 * HEAD_MAX);
	head = read_head(f->fd, &in);
	if (head && rewrite(f, &in, head, &out))
		up = dial(f);
	if (up >= 0 && write_full(up, out.p, out.len) == 0)
		copy_both(f->fd, up);
	close_fd(&up);
	close(f->fd);
	return NULL;
}

static int listen_on(uint64_t port, struct err *e)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(fd, 64) < 0)
		return err_set(e, errno, "listen on 127.0.0.1:%llu", (unsigned long long)port);
	return fd;
}

static int accept_all(int fd, const struct forward *f)
{
	while (!client_interrupts) {
		pthread_t t;
		struct forward *one = malloc(sizeof(*one));

		if (!one)
			return EXIT_FAILED;
		*one = *f;
		one->fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		if (one->fd < 0 || pthread_create(&t, NULL, serve, one)) {
			close_fd(&one->fd);
			free(one);
			continue;
		}
		pthread_detach(t);
	}
	return EXIT_OK;
}

int cmd_port_forward(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	struct forward f = {.fd = -1};
	struct sockaddr_in sa;
	socklen_t len = sizeof(sa);
	struct client c;
	struct err e;
	char id[64], *colon, *host;
	uint64_t local, port;
	int at, code, fd;

	if (!client_begin(&c, &co,
		    "port-forward SANDBOX [LOCAL:]PORT\n\nA local port (0: any) for an HTTP server "
		    "in the sandbox.\n"
		    "Other protocols than HTTP are not carried: use mayfly exec or cp.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 2, &at, &code))
		return code;
	colon = strchr(argv[at + 1], ':');
	if (!uint_parse(colon ? colon + 1 : argv[at + 1], &port) || port < 1 || port > 65535) {
		fprintf(stderr, "mayfly: port-forward: '%s' is not a port\n", argv[at + 1]);
		return EXIT_USAGE;
	}
	if (colon)
		*colon = 0;
	local = port;
	if (colon && (!uint_parse(argv[at + 1], &local) || local > 65535)) {
		fprintf(stderr, "mayfly: port-forward: '%s' is not a port\n", argv[at + 1]);
		return EXIT_USAGE;
	}
	if (client_resolve(&c, argv[at], id, &e) < 0)
		return complain(EXIT_FAILED, &e);
	host = strstr(c.base, "://");
	if (!host || strncmp(c.base, "http:", 5) || c.socket[0]) {
		fprintf(stderr,
			"mayfly: port-forward: only to a daemon spoken to by plain http, not %s\n",
			c.socket[0] ? c.socket : c.base);
		return EXIT_FAILED;
	}
	snprintf(f.host, sizeof(f.host), "%.*s", (int)strcspn(host + 3, ":/"), host + 3);
	snprintf(f.port, sizeof(f.port), "%.7s",
		host[3 + strlen(f.host)] == ':' ? host + 4 + strlen(f.host) : "80");
	f.port[strspn(f.port, "0123456789")] = 0;
	snprintf(f.key, sizeof(f.key), "%s", c.key);
	snprintf(f.prefix, sizeof(f.prefix), "/%s/%llu", id, (unsigned long long)port);
	fd = listen_on(local, &e);
	if (fd < 0)
		return complain(EXIT_FAILED, &e);
	getsockname(fd, (struct sockaddr *)&sa, &len);
	printf("http://127.0.0.1:%u -> %s port %llu\n", ntohs(sa.sin_port), id,
		(unsigned long long)port);
	fflush(stdout);
	return accept_all(fd, &f);
}
