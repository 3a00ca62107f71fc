/* SPDX-License-Identifier: Apache-2.0
 *
 * entrypoint_log.c: see entrypoint_log.h. mayflyd's loop. Two questions: how much is there, and then its end;
 * the guest may answer anything.
 */
#include "api/sandbox/entrypoint_log.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "api/core/database.h"
#include "api/links/agent_client.h"
#include "api/http/event_stream.h"
#include "lib/log.h"
#include "lib/proto_agent.h"

struct ask {
	struct sandbox *sb;
	uint32_t limit_ms;
	entrylog_fn fn;
	void *arg;
};

static void path_of(const struct daemon *d, const char *id, char *to, size_t cap)
{
	snprintf(to, cap, "%s/logs/%.255s", d->cfg.state_dir, id);
}

/* If the beginning was cut off, the text starts with a whole line. */
static void answer(struct ask *a, const void *p, size_t n, bool cut)
{
	const uint8_t *line = cut && p ? memchr(p, '\n', n) : NULL;
	struct buf b;

	buf_init(&b, 3 * ENTRYLOG_MAX + 16);
	if (line) {
		n -= (size_t)(line + 1 - (const uint8_t *)p);
		p = line + 1;
	}
	utf8_clean(&b, p, n);
	a->fn(a->arg, buf_cstr(&b));
	buf_fini(&b);
	sandbox_unref(a->sb);
	free(a);
}

/* The guest did not answer: the sandbox may have ended meanwhile. Then its output was kept before the connection to it was closed. */
static void answer_kept(struct ask *a)
{
	_cleanup_free_ char *kept = entrylog_kept(a->sb);

	a->fn(a->arg, kept ? kept : "");
	sandbox_unref(a->sb);
	free(a);
}

static void text_came(void *arg, const struct agent_reply *rep)
{
	struct ask *a = arg;
	struct cur c = rep->body;
	uint64_t next = rep->err ? 0 : cur_u64(&c);
	size_t n = rep->err || c.bad ? 0 : MIN(cur_left(&c), (size_t)ENTRYLOG_MAX);

	if (rep->err) {
		answer_kept(a);
		return;
	}
	answer(a, n ? cur_bytes(&c, n) : NULL, n, next > n);
}

static bool question(struct ask *a, uint16_t type, uint64_t offset,
	void (*fn)(void *arg, const struct agent_reply *rep))
{
	struct agent_call *c;
	struct buf b;

	buf_init(&b, 256);
	buf_str(&b, "entrypoint");
	if (type == AGENT_LOGS) {
		buf_u64(&b, offset);
		buf_u32(&b, ENTRYLOG_MAX);
	}
	c = a->sb->agent ? agentc_call(a->sb->agent, type, &b, a->limit_ms, fn, a) : NULL;
	buf_fini(&b);
	return c != NULL;
}

static void size_came(void *arg, const struct agent_reply *rep)
{
	struct ask *a = arg;
	struct cur c = rep->body;
	uint64_t bytes;

	/* state, code, started, finished */
	(void)cur_bytes(&c, 24);
	bytes = cur_u64(&c);
	if (rep->err || c.bad ||
		!question(
			a, AGENT_LOGS, bytes > ENTRYLOG_MAX ? bytes - ENTRYLOG_MAX : 0, text_came))
		answer_kept(a);
}

bool entrylog_ask(struct sandbox *sb, uint32_t limit_ms, entrylog_fn fn, void *arg)
{
	struct ask *a = calloc(1, sizeof(*a));

	if (!a)
		return false;
	*a = (struct ask){sb, limit_ms, fn, arg};
	sandbox_ref(sb);
	if (question(a, AGENT_STATUS, 0, size_came))
		return true;
	sandbox_unref(sb);
	free(a);
	return false;
}

void entrylog_keep(const struct sandbox *sb, const char *text)
{
	_cleanup_close_ int fd = -1;
	char path[520];

	if (!*text || sandbox_gone(sb))
		return;
	path_of(sb->d, sb->id, path, sizeof(path));
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write_full(fd, text, strlen(text)) < 0)
		log_warn("sandbox %s: its output is not kept: %s", sb->id, strerror(errno));
}

char *entrylog_kept(const struct sandbox *sb)
{
	_cleanup_close_ int fd = -1;
	size_t cap = 3 * ENTRYLOG_MAX + 16;
	char path[520], *text;
	ssize_t n;

	path_of(sb->d, sb->id, path, sizeof(path));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	text = fd < 0 ? NULL : calloc(1, cap + 1);
	n = text ? pread(fd, text, cap, 0) : -1;
	if (n >= 0)
		return text;
	free(text);
	return NULL;
}

void entrylog_forget(const struct sandbox *sb)
{
	char path[520];

	path_of(sb->d, sb->id, path, sizeof(path));
	unlink(path);
}

void entrylog_sweep(struct daemon *d)
{
	char path[520];
	DIR *dir;

	path_of(d, "", path, sizeof(path));
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		log_warn("%s: %s: output of ended sandboxes is not kept", path, strerror(errno));
	/* some of it may be of a sandbox whose record could not be read */
	if (!database_complete(d->database))
		return;
	dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));) {
		if (e->d_name[0] == '.' || (uuid_ok(e->d_name) && sandbox_find(d, e->d_name)))
			continue;
		path_of(d, e->d_name, path, sizeof(path));
		unlink(path);
	}
	if (dir)
		closedir(dir);
}
