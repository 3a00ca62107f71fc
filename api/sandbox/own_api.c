/* SPDX-License-Identifier: Apache-2.0
 *
 * own_api.c: a program in a sandbox reaches the sandbox's own execution API at 127.0.0.1:44772. mayflyd's loop. The program is hostile: it is a client
 * of the HTTP server as any other, but the connection carries the sandbox's id, and the router serves only that
 * sandbox's execution API on it.
 *
 * WAITING streams to the agent (AGENT_DIAL_ACCEPT) wait for a program. One that gets a program becomes a connection of the HTTP server: a socket pair,
 * with the bytes of both directions copied here. limits.own_api_connections bounds them; without a waiting stream the agent answers 503 by itself, and
 * 403 to programs of isolated sessions. An agent that does not know the request, or whose port is taken by a program of the image, is asked again only
 * after a resume from disk, and by the next daemon.
 */
#include "api/sandbox/own_api.h"

#include <string.h>
#include <sys/socket.h>

#include "api/links/agent_client.h"
#include "api/http/http.h"
#include "api/sandbox/guest.h"
#include "api/sandbox/sandbox.h"
#include "lib/log.h"

#define WAITING 2u
#define RATE                                                                                       \
	100u /* streams that one sandbox may begin in a second: each costs the daemon a dial and a connection */
#define RATE_NS  1000000000ull
#define READ_MAX KIB(64)
#define OUT_MAX  (AGENT_FRAME_MAX + KIB(64))

struct own_stream {
	struct sandbox *sb;
	struct agent_dial *dial;
	int fd; /* our end of the pair, -1: no program yet */
	struct watch *w;
	struct buf out; /* from the program, not yet taken by the server */
	bool program_ended, server_ended;
};

static void own_api_fill(struct sandbox *sb);

static void own_free(struct own_stream *s)
{
	struct sandbox *sb = s->sb;

	if (s->fd < 0)
		sb->own_waiting--;
	else
		sb->own_active--;
	agent_dial_close(s->dial);
	watch_remove(s->w);
	close_fd(&s->fd);
	buf_fini(&s->out);
	free(s);
	own_api_fill(sb);
	sandbox_unref(sb);
}

/* epoll reports a hang-up all the time, with any mask. So the watch is removed until there is something to do. */
static void own_unwatch(struct own_stream *s)
{
	watch_remove(take_ptr(s->w));
	if (s->server_ended)
		buf_fini(&s->out); /* nobody takes it */
	agent_dial_hold(s->dial, false);
}

static void own_update(struct own_stream *s)
{
	uint32_t ev = (!s->server_ended && !agent_dial_full(s->dial) ? EPOLLIN : 0) |
		      (s->out.len ? EPOLLOUT : 0);

	if (!s->w)
		return;
	watch_events(s->w, ev);
	agent_dial_hold(s->dial, s->out.len > 0);
}

/* False: the server closed it. */
static bool own_flush(struct own_stream *s)
{
	while (s->out.len) {
		ssize_t n = send(s->fd, s->out.p, s->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN;
		buf_consume(&s->out, (size_t)n);
	}
	buf_fini(&s->out);
	if (s->program_ended)
		shutdown(s->fd, SHUT_WR);
	return true;
}

static bool own_read(struct own_stream *s)
{
	static uint8_t scratch[READ_MAX];
	ssize_t n = recv(s->fd, scratch, sizeof(scratch), MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	if (n == 0) {
		s->server_ended = true;
		agent_dial_end(s->dial);
		return true;
	}
	return agent_dial_send(s->dial, scratch, (size_t)n);
}

static void own_event(void *arg, uint32_t events)
{
	struct own_stream *s = arg;
	bool ok = true;

	if (events & EPOLLOUT)
		ok = own_flush(s);
	if (ok && (events & (EPOLLIN | EPOLLHUP)) && !s->server_ended && !agent_dial_full(s->dial))
		ok = own_read(s);
	if (!ok || (events & EPOLLERR))
		own_free(s);
	else if ((events & EPOLLHUP) && (s->server_ended || agent_dial_full(s->dial)))
		own_unwatch(
			s); /* what the program has not read yet goes on to it; own_closed() follows */
	else
		own_update(s);
}

static void own_opened(void *arg)
{
	struct own_stream *s = arg;
	struct sandbox *sb = s->sb;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
		return; /* the program waits until the stream is closed */
	s->w = loop_watch(sb->d->loop, pair[0], EPOLLIN, own_event, s);
	if (!s->w) {
		close(pair[0]);
		close(pair[1]);
		return;
	}
	s->fd = pair[0];
	sb->own_waiting--;
	sb->own_active++;
	http_adopt(sb->d->http, pair[1], sb->id);
	own_api_fill(sb);
}

static void own_bytes(void *arg, const uint8_t *p, size_t n)
{
	struct own_stream *s = arg;

	if (!n)
		s->program_ended = true;
	else if (s->fd >= 0)
		buf_put(&s->out, p, n);
	if (s->fd < 0 || !s->w) {
		buf_fini(&s->out);
		return;
	}
	if (own_flush(s) && !s->out.bad)
		own_update(s);
	else
		shutdown(s->fd, SHUT_RDWR); /* own_event() frees it */
}

static void own_drained(void *arg)
{
	struct own_stream *s = arg;

	/* the server hung up while the program did not read: watch again, to read the rest of the answer */
	if (s->fd >= 0 && !s->w && !s->server_ended)
		s->w = loop_watch(s->sb->d->loop, s->fd, EPOLLIN, own_event, s);
	if (s->fd >= 0)
		own_update(s);
}

static void own_closed(void *arg, const struct agent_reply *r)
{
	struct own_stream *s = arg;
	struct agentc *agent = sandbox_agentc(s->sb);

	/* the agent is up and refused the stream: it would refuse the next one, too */
	if (s->fd < 0 && r->err && agent && agentc_is_up(agent)) {
		s->sb->own_refused = true;
		log_debug("sandbox %s: programs in it do not reach the execution API: %s",
			s->sb->id, *r->text ? r->text : strerror(r->err));
	}
	own_free(s);
}

static const struct agent_dial_ops own_ops = {own_opened, own_bytes, own_drained, own_closed};

static bool own_wait(struct sandbox *sb, struct agentc *agent)
{
	struct own_stream *s = calloc(1, sizeof(*s));

	if (!s)
		return false;
	s->sb = sb;
	s->fd = -1;
	buf_init(&s->out, OUT_MAX);
	s->dial = agent_dial_accept(agent, &own_ops, s);
	if (!s->dial) {
		free(s);
		return false;
	}
	sandbox_ref(sb);
	sb->own_waiting++;
	return true;
}

static void own_later(void *arg)
{
	own_api_fill(arg);
}

/* A guest may take each stream and end it at once. So at most RATE streams begin in a second, and the others wait for the next second. */
static bool own_may_begin(struct sandbox *sb)
{
	uint64_t now = mono_ns();

	if (now - sb->own_since_ns >= RATE_NS) {
		sb->own_since_ns = now;
		sb->own_begun = 0;
	}
	if (sb->own_begun < RATE) {
		sb->own_begun++;
		return true;
	}
	if (!sb->own_later)
		sb->own_later = loop_timer(sb->d->loop, own_later, sb);
	if (sb->own_later)
		timer_set(sb->own_later, sb->own_since_ns + RATE_NS);
	return false;
}

/* Begins streams until WAITING of them wait, within limits.own_api_connections. */
static void own_api_fill(struct sandbox *sb)
{
	size_t max = (size_t)sb->d->cfg.own_api_connections;
	struct agentc *agent = sandbox_agentc(sb);

	while (agent && !sb->own_refused && sb->own_waiting < WAITING &&
		sb->own_waiting + sb->own_active < max)
		if (!own_may_begin(sb) || !own_wait(sb, agent))
			return;
}

void own_api_start(struct sandbox *sb)
{
	sb->own_refused = false;
	if (!sb->internal)
		own_api_fill(sb);
}
