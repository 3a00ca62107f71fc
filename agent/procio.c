/* SPDX-License-Identifier: Apache-2.0
 *
 * procio.c: output and input of processes. The loop's thread; the bytes are never looked at.
 *
 * A pipe is read as soon as it has something, so that nothing is delayed. While AGENT_WINDOW bytes
 * are not acknowledged it is not read: that is the back-pressure. A terminal keeps its last
 * megabyte instead, and waits only for the connection that holds it. So do the pipes of a terminal
 * session (PROC_X_REPLAY), whose two streams are kept as one. A process that was reaped may leave
 * its pipe open in others (`server &`). The command has ended all the same. What they write later
 * goes to a sink, because a closed pipe would kill them.
 */
#include "agent/procio.h"

#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "agent/conn.h"
#include "agent/isolate.h"

#define READ_MAX  KIB(64)
#define CHUNK_MAX KIB(64)
#define OUT_HEAD  9 /* u8 stream, u64 offset */

#define MARKS_MAX 1024u

/* PROC_X_REPLAY: the bytes of out[0] from the mark before this one up to `end` came from `stream`. Kept for what the holder has not got. */
struct mark {
	uint64_t end;
	uint8_t stream;
};

static bool keeps_replay(const struct proc *p)
{
	return p->flags & (AGENT_X_PTY | PROC_X_REPLAY);
}

/* Where the bytes of p->out[i].fd are kept. */
static struct stream *kept_in(struct proc *p, int i)
{
	return &p->out[keeps_replay(p) ? 0 : i];
}

static uint64_t stream_end(const struct stream *s)
{
	return s->base + s->ring.len;
}

size_t procio_kept(const struct proc *p)
{
	return p->out[0].ring.len + p->out[1].ring.len;
}

uint64_t procio_out_bytes(const struct proc *p)
{
	struct stat st;

	if (p->file_fd >= 0 && fstat(p->file_fd, &st) == 0)
		return (uint64_t)st.st_size;
	return stream_end(&p->out[0]) + stream_end(&p->out[1]);
}

static void out_event(void *arg, uint32_t events);
static void err_event(void *arg, uint32_t events);

static int stream_watch(struct proc *p, int i)
{
	struct stream *s = &p->out[i];

	if (s->fd < 0 || s->w)
		return 0;
	s->w = loop_watch(p->a->loop, s->fd, EPOLLIN, i ? err_event : out_event, p);
	return s->w ? 0 : -errno;
}

static void stream_unwatch(struct stream *s)
{
	watch_remove(s->w);
	s->w = NULL;
}

static void stream_close(struct stream *s)
{
	stream_unwatch(s);
	close_fd(&s->fd);
}

/* How much may be read now without losing anything; a terminal's ring is cut from the front
 * instead. */
static size_t room_of(struct proc *p)
{
	size_t kept = procio_kept(p);

	if (p->discard)
		return READ_MAX;
	if (keeps_replay(p)) {
		struct stream *s = &p->out[0];
		uint64_t behind = p->conn ? stream_end(s) - s->sent : 0;

		if (behind && p->marks.len >= MARKS_MAX * sizeof(struct mark))
			return 0;
		return behind >= AGENT_WINDOW ? 0 : MIN(READ_MAX, AGENT_WINDOW - behind);
	}
	return kept >= AGENT_WINDOW ? 0 : MIN(READ_MAX, AGENT_WINDOW - kept);
}

static void pty_trim(struct proc *p)
{
	struct stream *s = &p->out[0];
	size_t over;

	if (!keeps_replay(p) || s->ring.len <= AGENT_WINDOW + READ_MAX)
		return;
	over = s->ring.len - AGENT_WINDOW;
	buf_consume(&s->ring, over);
	s->base += over;
	s->sent = MAX(s->sent, s->base);
}

/* Remembers that the last bytes came from stream i. Drops marks of what the holder has got. */
static void mark_stream(struct proc *p, int i)
{
	struct stream *s = &p->out[0];
	struct mark m = {.end = stream_end(s), .stream = (uint8_t)(i + 1)};
	struct mark *last;
	size_t n, old = 0;

	if (!(p->flags & PROC_X_REPLAY))
		return;
	n = p->marks.len / sizeof(m);
	last = (struct mark *)(void *)p->marks.p;
	while (old < n && last[old].end <= (p->conn ? s->sent : m.end))
		old++;
	buf_consume(&p->marks, old * sizeof(m));
	n -= old;
	last = (struct mark *)(void *)p->marks.p;
	if (n && last[n - 1].stream == m.stream)
		last[n - 1].end = m.end;
	else
		buf_put(&p->marks, &m, sizeof(m));
}

/* Which stream the byte at off came from. *n is cut so that all n bytes came from it. */
static uint8_t stream_at(const struct proc *p, uint64_t off, size_t *n)
{
	const struct mark *m = (const struct mark *)(const void *)p->marks.p;

	for (size_t k = 0; k < p->marks.len / sizeof(*m); k++) {
		if (m[k].end <= off)
			continue;
		*n = MIN(*n, m[k].end - off);
		return m[k].stream;
	}
	return 1;
}

enum got { GOT_SOME, GOT_NONE, GOT_END, GOT_FULL };

static enum got stream_read(struct proc *p, int i)
{
	struct stream *s = kept_in(p, i);
	size_t room = room_of(p);
	int fd = p->out[i].fd;
	uint8_t *to;
	ssize_t k;

	if (fd < 0)
		return GOT_END;
	if (p->run_number && p->exited) {
		if (!p->drain_left)
			return GOT_NONE;
		room = MIN(room, p->drain_left);
	}
	if (!room)
		return GOT_FULL;
	/* grow with what really comes: most commands say little */
	room = MIN(room, s->ring.len < KIB(4) ? KIB(4) : READ_MAX);
	to = buf_room(&s->ring, room);
	if (!to) {
		s->ring.bad = false;
		return GOT_FULL;
	}
	do
		k = read(fd, to, room);
	while (k < 0 && errno == EINTR);
	if (k < 0 && errno == EAGAIN)
		return GOT_NONE;
	if (k <= 0) /* a terminal whose last user left says EIO */
		return GOT_END;
	if (p->exited)
		p->drain_left -= MIN(p->drain_left, (size_t)k);
	if (p->discard) {
		s->base += (uint64_t)k;
		s->sent = s->base;
		return GOT_SOME;
	}
	s->ring.len += (size_t)k;
	mark_stream(p, i);
	pty_trim(p);
	return GOT_SOME;
}

static void stream_event(struct proc *p, int i)
{
	switch (stream_read(p, i)) {
	case GOT_SOME:
	case GOT_NONE:
		break;
	case GOT_FULL:
		/* not watched at all: a hung-up pipe is reported without being asked for */
		stream_unwatch(&p->out[i]);
		break;
	case GOT_END:
		stream_close(&p->out[i]);
		break;
	}
	if (p->exited)
		procio_drain(p);
	else
		procio_pump(p);
}

static void out_event(void *arg, uint32_t events)
{
	stream_event(arg, 0);
}

static void err_event(void *arg, uint32_t events)
{
	stream_event(arg, 1);
}

/* Reads and drops what others write to the pipe of a command that has ended. */
struct sink {
	struct agent *a;
	int fd;
	struct watch *w;
};

static void sink_event(void *arg, uint32_t events)
{
	static char scratch[4096];
	struct sink *k = arg;
	ssize_t n = read(k->fd, scratch, sizeof(scratch));

	if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
		return;
	watch_remove(k->w);
	close(k->fd);
	k->a->n.sinks--;
	free(k);
}

static void sink_make(struct proc *p, struct stream *s)
{
	struct sink *k;

	stream_unwatch(s);
	if (s->fd < 0)
		return;
	k = calloc(1, sizeof(*k));
	if (k) {
		*k = (struct sink){.a = p->a, .fd = s->fd};
		k->w = loop_watch(p->a->loop, s->fd, EPOLLIN, sink_event, k);
	}
	if (!k || !k->w) {
		free(k);
		close_fd(&s->fd);
		return;
	}
	p->a->n.sinks++;
	take_fd(&s->fd);
}

void procio_drain(struct proc *p)
{
	if (p->ended)
		return;
	for (int i = 0; i < 2; i++) {
		struct stream *s = &p->out[i];
		enum got g;

		do
			g = stream_read(p, i);
		while (g == GOT_SOME);
		if (g == GOT_FULL) {
			stream_unwatch(s);
			procio_pump(p);
			return; /* procio_ack() or, for a terminal, procio_pump() calls this again */
		}
		if (g == GOT_END)
			stream_close(s);
	}
	p->ended = true;
	for (int i = 0; i < 2; i++) {
		/* a run's pipe belongs to its session, which continues to read it */
		if (p->run_number)
			stream_close(&p->out[i]);
		else
			sink_make(p, &p->out[i]);
	}
	watch_remove(p->in_w);
	p->in_w = NULL;
	close_fd(&p->in_fd);
	buf_fini(&p->in);
	if (p->conn)
		conn_hold(p->conn, false);
	if (p->iso)
		isolate_drained(p);
	procio_pump(p);
}

static void put_out(struct conn *c, uint8_t stream, uint64_t off, const uint8_t *p, size_t n)
{
	struct buf b;

	buf_init(&b, OUT_HEAD + CHUNK_MAX);
	buf_u8(&b, stream);
	buf_u64(&b, off);
	buf_put(&b, p, n);
	if (!b.bad)
		conn_frame(c, AGENT_OUT, 0, b.p, b.len);
	else
		conn_close(c);
	buf_fini(&b);
}

static void put_exit(struct proc *p, struct conn *c)
{
	struct buf b;

	buf_init(&b, 1024);
	buf_u32(&b, p->state);
	buf_u32(&b, p->code);
	buf_str(&b, p->error);
	conn_frame(c, AGENT_EXIT, 0, b.p, b.len);
	buf_fini(&b);
}

/* Sends from *sent on; true when all was sent. */
static bool pump_stream(struct proc *p, struct conn *c, int i, uint64_t *sent)
{
	struct stream *s = &p->out[i];

	*sent = MAX(*sent, s->base);
	while (*sent < stream_end(s)) {
		size_t n = MIN(stream_end(s) - *sent, CHUNK_MAX);
		uint64_t off = *sent;
		bool is_replay = keeps_replay(p) && off < p->replay_end;
		uint8_t from = is_replay ? 3 : (uint8_t)(i + 1);

		if (conn_backlog(c) >= CONN_FEW)
			return false;
		if (is_replay)
			n = MIN(n, p->replay_end - off);
		else if (p->flags & PROC_X_REPLAY)
			from = stream_at(p, off, &n);
		*sent += n;
		/* may close c, and then p->conn is NULL */
		put_out(c, from, off, s->ring.p + (off - s->base), n);
		if (c != p->conn)
			return false;
	}
	return true;
}

static void pump_watchers(struct proc *p)
{
	for (size_t k = 0; k < ARRAY_LEN(p->watchers); k++) {
		struct conn *c = p->watchers[k];
		struct stream *s = &p->out[0];

		if (!c)
			continue;
		if (p->watch_sent[k] < s->base) {
			p->watch_sent[k] = s->base;
			p->watch_jump[k] = true;
		}
		while (p->watchers[k] == c && p->watch_sent[k] < stream_end(s) &&
			conn_backlog(c) < CONN_FEW) {
			uint64_t off = p->watch_sent[k];
			size_t n = MIN(stream_end(s) - off, CHUNK_MAX);
			bool jump = p->watch_jump[k];

			p->watch_jump[k] = false;
			p->watch_sent[k] += n;
			put_out(c, jump ? 3 : 1, off, s->ring.p + (off - s->base), n);
		}
		if (p->watchers[k] == c && p->ended && p->watch_sent[k] == stream_end(s)) {
			p->watchers[k] = NULL;
			conn_set_proc(c, NULL);
			put_exit(p, c);
		}
	}
}

void procio_pump(struct proc *p)
{
	struct conn *c = p->conn;

	if (!p->started)
		return;
	if (keeps_replay(p))
		pump_watchers(p);
	if (c && !p->exit_sent) {
		bool all = true;

		for (int i = 0; i < 2 && all; i++)
			all = pump_stream(p, c, i, &p->out[i].sent);
		if (all && p->ended && p->conn == c) {
			p->exit_sent = true;
			put_exit(p, c);
		}
	}
	if (p->exited) {
		/* a terminal's output is not acknowledged: sending it makes room */
		if (keeps_replay(p) && !p->ended && room_of(p))
			procio_drain(p);
		return;
	}
	/* room again? */
	for (int i = 0; i < 2; i++)
		if (p->out[i].fd >= 0 && !p->out[i].w && room_of(p))
			stream_watch(p, i);
}

void procio_ack(struct proc *p, uint64_t out_off, uint64_t err_off)
{
	uint64_t off[2] = {out_off, err_off};

	if (keeps_replay(p))
		return;
	for (int i = 0; i < 2; i++) {
		struct stream *s = &p->out[i];

		/* only what was sent can have been taken */
		if (off[i] <= s->base || off[i] > s->sent)
			continue;
		buf_consume(&s->ring, off[i] - s->base);
		s->base = off[i];
		if (!s->ring.len && s->ring.cap > KIB(16))
			buf_fini(&s->ring);
	}
	if (p->exited)
		procio_drain(p);
	else
		procio_pump(p);
}

static int add_watcher(struct proc *p, struct conn *c, uint64_t sent)
{
	size_t k = 0;

	while (k < WATCHERS_MAX && p->watchers[k])
		k++;
	if (k == WATCHERS_MAX)
		return -EBUSY;
	p->watchers[k] = c;
	p->watch_sent[k] = sent;
	p->watch_jump[k] = false;
	return 0;
}

int procio_watch(struct proc *p, struct conn *c, uint64_t off)
{
	int rc = keeps_replay(p) ? add_watcher(p, c, MIN(off, stream_end(&p->out[0]))) : -EINVAL;

	if (rc == 0)
		conn_set_proc(c, p);
	return rc;
}

int procio_attach(struct proc *p, struct conn *c, uint64_t out_off, uint64_t err_off)
{
	uint64_t off[2] = {out_off, err_off};
	struct conn *old = p->conn;

	for (int i = 0; i < 2; i++) {
		if (keeps_replay(p))
			off[i] = MIN(MAX(off[i], p->out[i].base), stream_end(&p->out[i]));
		else if (off[i] < p->out[i].base || off[i] > stream_end(&p->out[i]))
			return -EPIPE;
	}
	if (old && old != c && keeps_replay(p)) {
		if (add_watcher(p, old, p->out[0].sent) < 0)
			return -EBUSY;
	} else if (old && old != c) {
		p->conn = NULL;
		conn_set_proc(old, NULL);
		conn_close(old);
	}
	p->conn = c;
	conn_set_proc(c, p);
	p->exit_sent = false;
	p->replay_end = stream_end(&p->out[0]);
	for (int i = 0; i < 2; i++)
		p->out[i].sent = off[i];
	return 0;
}

void procio_evict(struct proc *p)
{
	struct conn *c = take_ptr(p->conn);

	if (!c)
		return;
	conn_hold(c, false);
	conn_set_proc(c, NULL);
	conn_frame(c, AGENT_EVICTED, 0, NULL, 0);
}

int procio_resize(struct proc *p, uint16_t cols, uint16_t rows)
{
	struct winsize ws = {.ws_col = cols, .ws_row = rows};

	if (!(p->flags & AGENT_X_PTY) || p->out[0].fd < 0 ||
		ioctl(p->out[0].fd, TIOCSWINSZ, &ws) < 0)
		return -ENOTTY;
	return 0;
}

void procio_conn_gone(struct proc *p, struct conn *c)
{
	for (size_t k = 0; k < ARRAY_LEN(p->watchers); k++)
		if (p->watchers[k] == c)
			p->watchers[k] = NULL;
	if (p->conn == c)
		p->conn = NULL;
	/* a terminal runs on without waiting for anybody */
	if (p->started)
		procio_pump(p);
}

/* An acknowledgement wakes the host. So it is not sent for each key, but when it gives back a good
 * part of the window. */
static void ack_stdin(struct proc *p)
{
	struct buf b;

	if (!p->conn || !p->started || p->in_taken - p->in_told < AGENT_TAKEN_EVERY)
		return;
	p->in_told = p->in_taken;
	buf_init(&b, 16);
	/* the host did not send a terminal's ^D: we wrote it */
	buf_u64(&b, MAX(MIN(p->in_taken, p->in_came), p->in_base) - p->in_base);
	conn_frame(p->conn, AGENT_STDIN_TAKEN, 0, b.p, b.len);
	buf_fini(&b);
}

static void in_event(void *arg, uint32_t events);

/* Writes the input that waits. */
static void write_in(struct proc *p)
{
	while (p->in_fd >= 0 && p->in.len) {
		ssize_t k = write(p->in_fd, p->in.p, MIN(p->in.len, READ_MAX));

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0 && errno == EAGAIN)
			break;
		if (k < 0) {
			/* The process no longer reads its input. What comes is dropped. */
			p->in_taken += p->in.len;
			buf_reset(&p->in);
			p->in_eof = true;
			break;
		}
		buf_consume(&p->in, (size_t)k);
		p->in_taken += (uint64_t)k;
	}
	if (!p->in.len) {
		watch_remove(p->in_w);
		p->in_w = NULL;
		if (p->in_eof)
			close_fd(&p->in_fd);
		if (p->in.cap > KIB(4))
			buf_fini(&p->in);
	} else if (!p->in_w) {
		p->in_w = loop_watch(p->a->loop, p->in_fd, EPOLLOUT, in_event, p);
	}
	ack_stdin(p);
}

static void in_event(void *arg, uint32_t events)
{
	struct proc *p = arg;

	write_in(p);
	if (p->conn)
		conn_hold(p->conn, p->in.len > AGENT_WINDOW);
}

void procio_stdin(struct proc *p, struct conn *c, const void *bytes, size_t n)
{
	if (c != p->conn)
		return;
	p->in_came += n;
	if (p->in_fd < 0 || p->in_eof) {
		p->in_taken += n;
		ack_stdin(p);
		return;
	}
	if (n == 0 && (p->flags & AGENT_X_PTY))
		buf_u8(&p->in, 4); /* a terminal has no end of file but ^D */
	else if (n == 0)
		p->in_eof = true;
	buf_put(&p->in, bytes, n);
	if (p->in.bad) {
		conn_close(c);
		return;
	}
	if (p->started)
		write_in(p);
	/* the host was told not to send more than a window ahead */
	if (p->conn == c)
		conn_hold(c, p->in.len > AGENT_WINDOW);
}

void procio_discard(struct proc *p)
{
	p->discard = true;
	for (int i = 0; i < 2; i++) {
		struct stream *s = &p->out[i];

		s->base = stream_end(s);
		s->sent = s->base;
		buf_fini(&s->ring);
	}
	if (p->exited)
		procio_drain(p);
	else
		procio_pump(p);
}

int procio_start(struct proc *p)
{
	int rc = 0;

	for (int i = 0; i < 2 && rc == 0; i++) {
		if (p->out[i].fd < 0)
			continue;
		rc = fd_set_nonblock(p->out[i].fd, true);
		if (rc == 0)
			rc = stream_watch(p, i);
	}
	if (rc == 0 && p->in_fd >= 0)
		rc = fd_set_nonblock(p->in_fd, true);
	if (rc == 0 && p->in_fd >= 0 && (p->in.len || p->in_eof))
		write_in(p);
	return rc;
}

void procio_fini(struct proc *p)
{
	for (int i = 0; i < 2; i++) {
		if (p->pid > 0)
			sink_make(p, &p->out[i]);
		stream_close(&p->out[i]);
		buf_fini(&p->out[i].ring);
	}
	watch_remove(p->in_w);
	p->in_w = NULL;
	close_fd(&p->in_fd);
	buf_fini(&p->in);
	buf_fini(&p->marks);
	close_fd(&p->file_fd);
	for (size_t k = 0; k < ARRAY_LEN(p->watchers); k++)
		if (p->watchers[k])
			conn_set_proc(p->watchers[k], NULL);
	if (p->conn) {
		conn_hold(p->conn, false);
		conn_set_proc(p->conn, NULL);
	}
	p->conn = NULL;
}
