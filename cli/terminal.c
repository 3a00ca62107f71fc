/* SPDX-License-Identifier: Apache-2.0
 *
 * terminal.c: see terminal.h. `mayfly` only, one thread and its loop. Standard input is read only while less
 * than OUT_HIGH bytes wait for the daemon. Ctrl-P Ctrl-Q leaves the session running, as `docker` has it.
 */
#include "cli/terminal.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <termios.h>

#include "cli/cli.h"
#include "cli/dial.h"
#include "lib/websocket.h"

#define OUT_HIGH       (256u * 1024) /* unsent bytes from which standard input is not read */
#define OUT_MAX        MIB(4)
#define MESSAGE_MAX    MIB(2)
#define STEP           16384u
#define PTY_TAKEN_OVER 4001 /* the close code of the protocol */
#define CTRL_P         0x10
#define CTRL_Q         0x11

struct terminal {
	const struct terminal_opts *o;
	struct loop *loop;
	struct ws *ws;
	int fd;
	struct watch *watch, *in_watch;
	struct timer *limit;
	struct buf out;
	int code; /* -1: not known */
	bool connected, in_end, in_file, half_detach, detached, taken, over;
	char session[64], why[200];
	struct termios was;
	bool raw;
};

static volatile sig_atomic_t winch, interrupts;

/* A signal ends the loop's wait. One that comes just before the wait is seen a second later. */
static void on_signal(int sig)
{
	if (sig == SIGINT)
		interrupts++;
	else
		winch = 1;
}

static void terminal_over(struct terminal *t, const char *why)
{
	if (!t->over && t->code < 0)
		snprintf(t->why, sizeof(t->why), "%s", why);
	t->over = true;
}

/* ---- the connection */

static void terminal_flush(struct terminal *t)
{
	while (t->out.len) {
		ssize_t n = send(t->fd, t->out.p, t->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0) {
			terminal_over(t, "the connection to the daemon broke off");
			return;
		}
		buf_consume(&t->out, (size_t)n);
	}
	watch_events(t->watch, EPOLLIN | (t->out.len ? EPOLLOUT : 0));
}

static bool terminal_send(void *to, const void *p, size_t n)
{
	struct terminal *t = to;

	buf_put(&t->out, p, n);
	if (t->out.bad)
		return false;
	if (t->watch)
		terminal_flush(t);
	return true;
}

/* ---- our standard input */

static void terminal_say(struct terminal *t, const char *json)
{
	ws_send(t->ws, true, json, strlen(json));
}

/* Looks for the keys that detach; returns how many bytes are left to send. */
static size_t take_detach_keys(struct terminal *t, uint8_t *p, size_t n)
{
	size_t to = 0;

	for (size_t i = 0; i < n; i++) {
		if (t->half_detach && p[i] == CTRL_Q) {
			t->detached = true;
			terminal_over(t, "");
			return to;
		}
		if (p[i] == CTRL_P && !t->half_detach) {
			t->half_detach = true;
			continue;
		}
		if (t->half_detach)
			p[to++] = CTRL_P;
		t->half_detach = false;
		p[to++] = p[i];
	}
	return to;
}

static void terminal_in(void *arg, uint32_t events)
{
	struct terminal *t = arg;
	uint8_t buf[1 + 2 * STEP];
	ssize_t n = read(STDIN_FILENO, buf + 1, STEP);
	size_t len;

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n <= 0) {
		t->in_end = true;
		watch_remove(take_ptr(t->in_watch));
		terminal_say(t, t->o->tty ? "{\"type\":\"stdin\",\"data\":\"\\u0004\"}"
					  : "{\"type\":\"eof\"}");
		return;
	}
	buf[0] = 0;
	len = t->raw ? take_detach_keys(t, buf + 1, (size_t)n) : (size_t)n;
	if (len)
		ws_send(t->ws, false, buf, 1 + len);
}

static void terminal_size(struct terminal *t)
{
	struct winsize w;
	char json[80];

	winch = 0;
	if (!t->o->tty || ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0 || !w.ws_col || !w.ws_row)
		return;
	snprintf(json, sizeof(json), "{\"type\":\"resize\",\"cols\":%u,\"rows\":%u}", w.ws_col,
		w.ws_row);
	terminal_say(t, json);
}

static void terminal_kill(void *arg)
{
	terminal_say(arg, "{\"type\":\"signal\",\"signal\":\"SIGKILL\"}");
}

static void terminal_connected(struct terminal *t)
{
	t->connected = true;
	terminal_size(t);
	if (t->o->timeout_s)
		timer_after(t->limit, t->o->timeout_s * 1000000000ull);
	if (!t->o->input) {
		if (!t->o->tty && !t->o->session)
			terminal_say(t, "{\"type\":\"eof\"}");
		t->in_end = true;
		return;
	}
	t->in_watch = loop_watch(t->loop, STDIN_FILENO, EPOLLIN, terminal_in, t);
	t->in_file = !t->in_watch; /* epoll takes no files: they are always ready */
}

/* ---- what comes */

static void terminal_json(struct terminal *t, const char *p, size_t n)
{
	cJSON *j = cJSON_ParseWithLength(p, n);
	const char *type = json_text(j, "type");

	if (!strcmp(type, "connected"))
		terminal_connected(t);
	else if (!strcmp(type, "exit"))
		t->code = (int)cJSON_GetNumberValue(cJSON_GetObjectItem(j, "exit_code")) & 255;
	else if (!strcmp(type, "error"))
		terminal_over(t, json_text(j, "error"));
	cJSON_Delete(j);
}

static void terminal_message(void *arg, bool text, const uint8_t *p, size_t n)
{
	struct terminal *t = arg;
	size_t head = n && p[0] == 3 ? 9 : 1;

	if (text) {
		terminal_json(t, (const char *)p, n);
	} else if (n > head &&
		   write_full(p[0] == 2 ? STDERR_FILENO : STDOUT_FILENO, p + head, n - head) < 0) {
		t->code =
			128 + SIGPIPE; /* the exit code of a program that does not ignore SIGPIPE */
		t->over = true;
	}
}

static void terminal_closed(void *arg, int code, const char *reason)
{
	struct terminal *t = arg;
	char why[200];

	t->taken = code == PTY_TAKEN_OVER;
	snprintf(why, sizeof(why), "%s",
		code == WS_ABNORMAL ? reason
		: *reason           ? reason
				    : "closed");
	terminal_over(t, why);
}

static const struct ws_ops terminal_ops = {.message = terminal_message, .closed = terminal_closed};

static void terminal_event(void *arg, uint32_t events)
{
	struct terminal *t = arg;
	static uint8_t piece[65536];
	ssize_t n;

	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
		n = recv(t->fd, piece, sizeof(piece), MSG_DONTWAIT);
		if (n > 0)
			ws_input(t->ws, piece, (size_t)n);
		else if (n == 0 || (errno != EAGAIN && errno != EINTR))
			ws_input_end(t->ws);
	}
	if (!t->over)
		terminal_flush(t);
}

/* ---- beginning and end */

static int terminal_open(
	struct terminal *t, const struct client *c, const char *sandbox, struct err *e)
{
	_cleanup_free_ char *target = client_path("/v1/sandboxes/%s/proxy/44772/pty/%s/ws?pty=%d%s",
		sandbox, t->session, t->o->tty,
		!t->o->session ? ""
		: t->o->input  ? "&since=0&takeover=1"
			       : "&since=0&mode=viewer");
	char key[400] = "";
	struct ws_request q = {
		.target = target, .host = strstr(c->base, "://") + 3, .headers = key};
	struct ws_config cfg = {.role = WS_CLIENT, .message_max = MESSAGE_MAX, .request = &q};
	struct ws_wire wire = {t, terminal_send};

	if (*c->key)
		snprintf(key, sizeof(key), "OPEN-SANDBOX-API-KEY: %s\r\n", c->key);
	t->ws = ws_create(t->loop, &cfg, &wire, &terminal_ops, t);
	t->watch = t->ws ? loop_watch(t->loop, t->fd, EPOLLIN, terminal_event, t) : NULL;
	t->limit = loop_timer(t->loop, terminal_kill, t);
	if (!t->watch || !t->limit)
		return err_plain(e, ENOMEM, "no memory for a terminal");
	terminal_flush(t);
	return 0;
}

static void terminal_raw(struct terminal *t)
{
	struct termios raw;

	if (!t->o->tty || !t->o->input || tcgetattr(STDIN_FILENO, &t->was) < 0)
		return;
	raw = t->was;
	cfmakeraw(&raw);
	t->raw = tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
}

/* ^C where our terminal is not raw, so that it is a signal: the first ^C interrupts the command, the second one ends us. */
static void terminal_interrupt(struct terminal *t, int *seen)
{
	if (*seen == interrupts)
		return;
	*seen = interrupts;
	if (*seen > 1 || !t->connected)
		client_ending = SIGINT;
	else
		terminal_say(t, "{\"type\":\"signal\",\"signal\":\"SIGINT\"}");
}

static void terminal_turns(struct terminal *t, const struct client *c)
{
	struct sigaction sa = {.sa_handler = on_signal};
	int seen = 0;

	sigaction(SIGWINCH, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	client_catch_end();
	terminal_raw(t);
	while (!t->over && !client_ending) {
		bool room = t->out.len < OUT_HIGH;

		if (t->in_watch)
			watch_events(t->in_watch, room ? EPOLLIN : 0);
		loop_turn(t->loop, t->in_file && !t->in_end && room ? 0 : 1000);
		if (winch && t->connected)
			terminal_size(t);
		terminal_interrupt(t, &seen);
		if (c->tick)
			c->tick(c->tick_arg);
		if (t->in_file && !t->in_end && !t->over && t->out.len < OUT_HIGH)
			terminal_in(t, EPOLLIN);
	}
	if (t->raw)
		tcsetattr(STDIN_FILENO, TCSADRAIN, &t->was);
}

static void terminal_fini(struct terminal *t)
{
	watch_remove(t->watch);
	watch_remove(t->in_watch);
	timer_remove(t->limit);
	ws_destroy(t->ws);
	close_fd(&t->fd);
	buf_fini(&t->out);
	loop_destroy(t->loop);
}

/* A session that somebody else holds, or that was there before, is not ours to delete, unless its shell ended while we were attached. */
static bool terminal_owns_session(const struct terminal *t)
{
	if (t->taken || !(t->o->input || !t->o->session))
		return false;
	return !t->o->session || t->code >= 0;
}

static int terminal_result(struct terminal *t, const struct client *c, const char *sandbox)
{
	_cleanup_free_ char *path =
		client_path("/v1/sandboxes/%s/proxy/44772/pty/%s", sandbox, t->session);
	_cleanup_answer_ struct answer a = {0};
	struct err ignored;

	if (t->detached) {
		fprintf(stderr, "\r\nmayfly: detached; the command goes on in session %s\n",
			t->session);
		return 0;
	}
	if (terminal_owns_session(t))
		client_call(c, "DELETE", path, NULL, &a, &ignored);
	if (client_ending)
		return 128 + client_ending;
	if (t->code >= 0)
		return t->code;
	fprintf(stderr, "mayfly: %s\n",
		*t->why ? t->why : "the session ended before the command did");
	return EXIT_OURS;
}

int terminal_run(const struct client *c, const char *sandbox, const cJSON *body,
	const struct terminal_opts *o)
{
	_cleanup_free_ char *path = client_path("/v1/sandboxes/%s/proxy/44772/pty", sandbox);
	_cleanup_answer_ struct answer a = {0};
	struct terminal t = {.o = o, .fd = -1, .code = -1};
	struct err e;
	int rc = o->session ? 0 : client_call(c, "POST", path, body, &a, &e);

	if (rc < 0)
		return complain(EXIT_OURS, &e);
	snprintf(t.session, sizeof(t.session), "%s",
		o->session ? o->session : json_text(a.json, "session_id"));
	buf_init(&t.out, OUT_MAX);
	t.loop = loop_create();
	rc = t.loop ? client_dial(c, &e) : err_plain(&e, ENOMEM, "no memory");
	if (rc >= 0) {
		t.fd = rc;
		rc = terminal_open(&t, c, sandbox, &e);
	}
	if (rc == 0)
		terminal_turns(&t, c);
	else
		complain(EXIT_OURS, &e);
	rc = rc ? EXIT_OURS : terminal_result(&t, c, sandbox);
	terminal_fini(&t);
	return rc;
}
