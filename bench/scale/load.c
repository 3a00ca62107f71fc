/* SPDX-License-Identifier: Apache-2.0
 *
 * load.c: a client of the daemon's API that measures it: CLIENTS threads, each with a kept connection.
 * First they create LIVE sandboxes. Then for SECONDS every thread creates one, runs a command in it and deletes it, again and again.
 * Beside them one connection asks for a page that the daemon answers from memory, 100 times a second: the answer takes as long as
 * the daemon's loop keeps others waiting.
 *
 * usage: load PORT LIVE SECONDS CLIENTS IMAGE PATH-OF-PAGE
 * When the LIVE sandboxes are there it prints a line "filled SECONDS ERRORS FIRST-ERROR", and waits for a line on standard input. At the end it
 * prints one JSON object.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MAX   65536
#define SAMPLES_MAX  400000u
#define PROBE_GAP_NS 10000000ull

struct answer {
	int status;
	size_t n;
	char text[ANSWER_MAX];
};

struct client {
	pthread_t thread;
	int fd;
	struct answer a;
};

struct samples {
	atomic_uint n;
	uint32_t us[SAMPLES_MAX];
};

static struct {
	int port;
	unsigned int live, clients;
	uint64_t end_ns;
	const char *image, *page;
	atomic_uint made, errors, done;
	atomic_bool ended;
	char first_error[600];
	struct samples create, command, delete, probe;
} G;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sample(struct samples *s, uint64_t begun_ns)
{
	unsigned int i = atomic_fetch_add(&s->n, 1);

	if (i < SAMPLES_MAX)
		s->us[i] = (uint32_t)((now_ns() - begun_ns) / 1000);
}

/* ---- HTTP/1.1 on a kept connection */

static int dial(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)G.port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0) {
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		return fd;
	}
	close(fd);
	return -1;
}

/* The answer is whole when its length says so, or its last chunk is there. */
static bool is_whole(const struct answer *a)
{
	const char *body = strstr(a->text, "\r\n\r\n"),
		   *length = strcasestr(a->text, "\r\nContent-Length:");

	if (!body)
		return false;
	body += 4;
	if (length && length < body)
		return (size_t)(a->text + a->n - body) >= strtoul(length + 17, NULL, 10);
	if (a->status == 204)
		return true;
	return a->n >= 5 && !memcmp(a->text + a->n - 5, "0\r\n\r\n", 5);
}

static bool ask(struct client *c, const char *method, const char *path, const char *body)
{
	char head[900];
	int n = snprintf(head, sizeof(head),
		"%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
		"Content-Length: %zu\r\n\r\n%s",
		method, path, G.port, strlen(body), body);

	c->a.n = 0;
	c->a.status = 0;
	if (c->fd < 0)
		c->fd = dial();
	if (c->fd < 0 || send(c->fd, head, (size_t)n, MSG_NOSIGNAL) != n)
		return false;
	while (c->a.n < ANSWER_MAX - 1) {
		ssize_t k = recv(c->fd, c->a.text + c->a.n, ANSWER_MAX - 1 - c->a.n, 0);

		if (k <= 0)
			break;
		c->a.n += (size_t)k;
		c->a.text[c->a.n] = 0;
		if (!c->a.status && c->a.n > 12)
			c->a.status = (int)strtol(c->a.text + 9, NULL, 10);
		if (is_whole(&c->a))
			return true;
	}
	return false;
}

static bool expect(
	struct client *c, int status, const char *method, const char *path, const char *body)
{
	bool whole = ask(c, method, path, body);
	const char *text = c->a.n ? strstr(c->a.text, "\r\n\r\n") : NULL;

	if (whole && c->a.status == status)
		return true;
	if (atomic_fetch_add(&G.errors, 1) == 0)
		snprintf(G.first_error, sizeof(G.first_error), "%s %s: %s %.300s", method, path,
			whole ? "" : strerror(errno), text ? text + 4 : "");
	if (!whole) {
		close(c->fd);
		c->fd = -1;
	}
	return false;
}

/* ---- what a client does */

static bool create(struct client *c, char id[37])
{
	char body[400];
	const char *at;

	snprintf(body, sizeof(body),
		"{\"image\":{\"uri\":\"%s\"},\"entrypoint\":[\"tail\",\"-f\",\"/dev/null\"],"
		"\"resourceLimits\":{\"cpu\":\"1\",\"memory\":\"256Mi\"},\"timeout\":86400}",
		G.image);
	if (!expect(c, 202, "POST", "/v1/sandboxes", body))
		return false;
	at = strstr(c->a.text, "\"id\":\"");
	snprintf(id, 37, "%.36s", at ? at + 6 : "");
	return strlen(id) == 36;
}

static void *fill(void *arg)
{
	struct client *c = arg;
	char id[37];

	while (atomic_fetch_add(&G.made, 1) < G.live)
		if (!create(c, id) && atomic_load(&G.errors) > 100)
			break;
	return NULL;
}

static void *churn(void *arg)
{
	struct client *c = arg;
	char id[37], path[100];

	while (now_ns() < G.end_ns) {
		uint64_t t = now_ns();

		if (!create(c, id))
			continue;
		sample(&G.create, t);
		t = now_ns();
		snprintf(path, sizeof(path), "/%s/44772/command", id);
		if (expect(c, 200, "POST", path, "{\"command\":\"true\"}"))
			sample(&G.command, t);
		t = now_ns();
		snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
		if (expect(c, 204, "DELETE", path, ""))
			sample(&G.delete, t);
		atomic_fetch_add(&G.done, 1);
	}
	return NULL;
}

static void *probe(void *arg)
{
	struct client *c = arg;
	uint64_t next = now_ns();

	while (!atomic_load(&G.ended)) {
		uint64_t t = now_ns();
		struct timespec gap = {0, (long)(next > t ? next - t : 0)};

		nanosleep(&gap, NULL);
		next += PROBE_GAP_NS;
		t = now_ns();
		if (expect(c, 200, "GET", G.page, ""))
			sample(&G.probe, t);
	}
	return NULL;
}

static double with_clients(struct client *c, void *(*fn)(void *))
{
	uint64_t t = now_ns();

	for (unsigned int i = 0; i < G.clients; i++)
		pthread_create(&c[i].thread, NULL, fn, &c[i]);
	for (unsigned int i = 0; i < G.clients; i++)
		pthread_join(c[i].thread, NULL);
	return (double)(now_ns() - t) / 1e9;
}

/* ---- what is said */

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void say(const char *name, struct samples *s)
{
	unsigned int n = atomic_load(&s->n);

	n = n < SAMPLES_MAX ? n : SAMPLES_MAX;
	qsort(s->us, n, sizeof(s->us[0]), by_size);
	printf("\"%s\": {\"n\": %u, \"p50_us\": %u, \"p99_us\": %u, \"max_us\": %u}, ", name, n,
		n ? s->us[n / 2] : 0, n ? s->us[(uint64_t)n * 99 / 100] : 0, n ? s->us[n - 1] : 0);
}

static void say_text(const char *s)
{
	putchar('"');
	for (; *s; s++)
		if (*s == '"' || *s == '\\')
			printf("\\%c", *s);
		else if ((unsigned char)*s >= ' ')
			putchar(*s);
	putchar('"');
}

/* A number of the command line, which bench/run wrote. */
static unsigned int number(const char *text)
{
	return (unsigned int)strtoul(text, NULL, 10);
}

int main(int argc, char **argv)
{
	struct client *c, prober = {.fd = -1};
	double filled, churned;
	char line[16];

	if (argc != 7) {
		fputs("usage: load PORT LIVE SECONDS CLIENTS IMAGE PAGE\n", stderr);
		return 2;
	}
	G.port = (int)number(argv[1]);
	G.live = number(argv[2]);
	G.clients = number(argv[4]);
	G.image = argv[5];
	G.page = argv[6];
	c = calloc(G.clients, sizeof(*c));
	if (!c)
		return 1;
	for (unsigned int i = 0; i < G.clients; i++)
		c[i].fd = -1;
	filled = with_clients(c, fill);
	/* the caller looks at the daemon's memory now */
	printf("filled %.3f %u %s\n", filled, atomic_exchange(&G.errors, 0), G.first_error);
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	G.end_ns = now_ns() + (uint64_t)number(argv[3]) * 1000000000u;
	pthread_create(&prober.thread, NULL, probe, &prober);
	churned = with_clients(c, churn);
	atomic_store(&G.ended, true);
	pthread_join(prober.thread, NULL);
	printf("{\"filled_s\": %.3f, \"seconds\": %.3f, \"rounds\": %u, \"creates_per_s\": %.1f, ",
		filled, churned, G.done, (double)G.create.n / churned);
	say("create", &G.create);
	say("command", &G.command);
	say("delete", &G.delete);
	say("probe", &G.probe);
	printf("\"errors\": %u, \"first_error\": ", G.errors);
	say_text(G.first_error);
	puts("}");
	free(c);
	return 0;
}
