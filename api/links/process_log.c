/* SPDX-License-Identifier: Apache-2.0
 *
 * process_log.c: see process_log.h. A line is logged as ours, with the number of the slot before it, so that no process can speak for
 * another one or for the daemon. A process that writes more than its share is read later: its pipe fills, and it drops lines (lib/log).
 */
#include "api/links/process_log.h"

#include <ctype.h>
#include <fcntl.h>
#include <string.h>

#include "lib/log.h"

#define LINE_MAX_BYTES 1400u
#define WINDOW_NS      1000000000ull
#define SHARE_BYTES    KIB(16)  /* of one process, in a window */
#define ALL_BYTES      KIB(256) /* of all of them */

struct follower {
	struct process_logs *p;
	struct follower *next;
	uint32_t slot;
	int fd;
	struct watch *watch;
	struct timer *later;
	uint64_t window_ns;
	uint32_t taken; /* bytes, in this window */
	size_t n;
	bool cut; /* the rest of a line that was too long is passed over */
	char line[LINE_MAX_BYTES + 1];
};

struct process_logs {
	struct loop *loop;
	struct follower *all;
	uint64_t window_ns;
	uint32_t taken;
};

struct process_logs *process_logs_create(struct loop *l)
{
	struct process_logs *p = calloc(1, sizeof(*p));

	if (p)
		p->loop = l;
	return p;
}

static void follower_free(struct follower *f)
{
	struct follower **at = &f->p->all;

	while (*at != f)
		at = &(*at)->next;
	*at = f->next;
	watch_remove(f->watch);
	timer_remove(f->later);
	close_fd(&f->fd);
	free(f);
}

void process_logs_destroy(struct process_logs *p)
{
	while (p && p->all)
		follower_free(p->all);
	free(p);
}

bool process_log_is_followed(const struct process_logs *p, uint32_t slot)
{
	for (const struct follower *f = p->all; f; f = f->next)
		if (f->slot == slot)
			return true;
	return false;
}

/* ---- lines */

/* "2026-01-02T03:04:05.678Z info  mayfly-vmm: text": our own line has a time, and shows its level. */
static size_t time_length(const char *s, size_t n)
{
	static const char form[] = "dddd-dd-ddTdd:dd:dd.dddZ ";

	if (n < sizeof(form) - 1)
		return 0;
	for (size_t i = 0; i < sizeof(form) - 1; i++)
		if (form[i] == 'd' ? !isdigit((unsigned char)s[i]) : s[i] != form[i])
			return 0;
	return sizeof(form) - 1;
}

char *process_log_line(char *line, size_t n, int *level)
{
	static const char *const names[] = {[LOG_ERROR] = "error ",
		[LOG_WARN] = "warn  ",
		[LOG_INFO] = "info  ",
		[LOG_DEBUG] = "debug "};
	char *text = line + time_length(line, n);

	*level = LOG_INFO;
	for (size_t i = 0; i < n; i++)
		if (!line[i])
			line[i] = '?';
	line[n] = 0;
	for (size_t i = 0; text > line && i < ARRAY_LEN(names); i++) {
		if (strncmp(text, names[i], strlen(names[i])) != 0)
			continue;
		*level = (int)i;
		return text + strlen(names[i]);
	}
	return text;
}

static void line_say(struct follower *f)
{
	int level;
	char *text = process_log_line(f->line, f->n, &level);

	if (*text)
		log_write((enum log_level)level, NULL, "slot %u: %s%s", f->slot, text,
			f->cut ? "..." : "");
	f->n = 0;
}

static void bytes_take(struct follower *f, const char *p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (p[i] == '\n') {
			if (!f->cut)
				line_say(f);
			f->cut = false;
		} else if (f->cut) {
			continue;
		} else if (f->n < LINE_MAX_BYTES) {
			f->line[f->n++] = p[i];
		} else {
			f->cut = true;
			line_say(f);
		}
	}
}

/* ---- reading */

static uint32_t share_left(struct follower *f)
{
	uint64_t now = mono_ns();

	if (now - f->p->window_ns > WINDOW_NS) {
		f->p->window_ns = now;
		f->p->taken = 0;
	}
	if (now - f->window_ns > WINDOW_NS) {
		f->window_ns = now;
		f->taken = 0;
	}
	return MIN(
		SHARE_BYTES - MIN(f->taken, SHARE_BYTES), ALL_BYTES - MIN(f->p->taken, ALL_BYTES));
}

static void on_pipe(void *arg, uint32_t events)
{
	struct follower *f = arg;
	char chunk[4096];
	uint32_t left = share_left(f);
	ssize_t n;

	if (left == 0) {
		/* epoll reports EPOLLHUP with any mask, so the watch is removed for a while */
		watch_remove(f->watch);
		f->watch = NULL;
		timer_after(f->later, WINDOW_NS);
		return;
	}
	n = read(f->fd, chunk, MIN(sizeof(chunk), left));
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		if (f->n && !f->cut)
			line_say(f);
		follower_free(f);
		return;
	}
	f->taken += (uint32_t)n;
	f->p->taken += (uint32_t)n;
	bytes_take(f, chunk, (size_t)n);
}

static void on_rested(void *arg)
{
	struct follower *f = arg;

	f->watch = loop_watch(f->p->loop, f->fd, EPOLLIN, on_pipe, f);
	if (!f->watch)
		timer_after(f->later, WINDOW_NS);
}

void process_log_follow(struct process_logs *p, uint32_t slot, int fd)
{
	struct follower *f = calloc(1, sizeof(*f));

	if (!f || fd_set_nonblock(fd, true) < 0) {
		free(f);
		close(fd);
		return;
	}
	*f = (struct follower){.p = p, .slot = slot, .fd = fd, .next = p->all};
	p->all = f;
	f->later = loop_timer(p->loop, on_rested, f);
	f->watch = f->later ? loop_watch(p->loop, fd, EPOLLIN, on_pipe, f) : NULL;
	if (!f->watch)
		follower_free(f);
}
