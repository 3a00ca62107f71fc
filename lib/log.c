/* SPDX-License-Identifier: Apache-2.0
 *
 * log.c: log lines. Every process. Messages may quote hostile bytes: unprintable ones are replaced, JSON is escaped.
 */
#include "lib/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

int log_level = LOG_INFO;

static struct {
	char who[64];
	int fd;
	bool json;
} out = {.fd = 2};

static const char *const level_names[] = {[LOG_ERROR] = "error",
	[LOG_WARN] = "warn",
	[LOG_INFO] = "info",
	[LOG_DEBUG] = "debug",
	[LOG_TRACE] = "trace"};
static_assert(ARRAY_LEN(level_names) == LOG_TRACE + 1, "a name for every level");

void log_init(const char *who, int fd, bool json)
{
	time_t now = time(NULL);
	struct tm tm;

	/* make the C library open /etc/localtime now: it does so at the first conversion, and a
	 * seccomp list would refuse it later */
	gmtime_r(&now, &tm);
	snprintf(out.who, sizeof(out.who), "%s", who);
	out.fd = fd;
	out.json = json;
}

int log_fd(void)
{
	return out.fd;
}

static size_t put_escaped(char *to, size_t cap, const char *s, bool json)
{
	size_t n = 0;

	for (; *s && n + 7 < cap; s++) {
		unsigned char c = (unsigned char)*s;

		if (json && (c == '"' || c == '\\')) {
			to[n++] = '\\';
			to[n++] = (char)c;
		} else if (c < 0x20 || c == 0x7f) {
			to[n++] = '?';
		} else {
			to[n++] = (char)c;
		}
	}
	to[n] = 0;
	return n;
}

static atomic_uint dropped;

/* Nobody waits for a full pipe, whose reader is slow or gone: the line is dropped and counted. */
static void line_put(const char *line, size_t n)
{
	unsigned int lost = atomic_exchange(&dropped, 0);
	char text[80];
	int k;

	if (lost) {
		k = snprintf(text, sizeof(text), "%s%s(%u lines were dropped)\n", out.who,
			out.who[0] ? ": " : "", lost);
		if (write(out.fd, text, (size_t)k) != k) {
			atomic_fetch_add(&dropped, lost + 1);
			return;
		}
	}
	if (write(out.fd, line, n) < 0 && errno == EAGAIN)
		atomic_fetch_add(&dropped, 1);
}

void log_write(enum log_level l, const char *ctx, const char *fmt, ...)
{
	char msg[900], clean[1000], line[1300], when[40];
	struct timespec t;
	struct tm tm;
	va_list ap;
	int n, saved = errno;

	if ((int)l > log_level)
		return;
	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	put_escaped(clean, sizeof(clean), msg, out.json);
	clock_gettime(CLOCK_REALTIME, &t);
	gmtime_r(&t.tv_sec, &tm);
	n = (int)strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(when + n, sizeof(when) - (size_t)n, ".%03ldZ", t.tv_nsec / 1000000);
	if (out.json)
		n = snprintf(line, sizeof(line),
			"{\"ts\":\"%s\",\"level\":\"%s\",\"who\":\"%s\",\"ctx\":\"%s\",\"msg\":\"%"
			"s\"}\n",
			when, level_names[l], out.who, ctx ? ctx : "", clean);
	else
		n = snprintf(line, sizeof(line), "%s %-5s %s%s%s%s%s\n", when, level_names[l],
			out.who, out.who[0] ? ": " : "", ctx ? ctx : "", ctx ? " " : "", clean);
	if (n >= (int)sizeof(line)) {
		n = sizeof(line) - 1;
		line[n - 1] = '\n';
	}
	line_put(line, (size_t)n);
	errno = saved;
}

bool log_limit_pass(struct log_limit *l, uint32_t *held)
{
	uint64_t now = mono_ns();

	/* races between threads cost a line more or less, nothing else */
	if (now - l->window_ns > 60ull * 1000000000u || l->window_ns == 0) {
		l->window_ns = now;
		*held = l->held;
		l->said = l->held = 0;
	}
	if (l->said >= 10) {
		l->held++;
		return false;
	}
	l->said++;
	return true;
}
