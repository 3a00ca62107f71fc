/* SPDX-License-Identifier: Apache-2.0
 *
 * session.c: one command in the appliance for one TCP connection. Each connection has a process of
 * its own, root in the appliance, so that a stuck or broken session affects no other. Untrusted:
 * everything from the socket until the token was right; frames are bounded afterwards, too. If a
 * connection ends early, the command's process group is killed.
 */
#include "guest/appliance/session.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>

#include "lib/machine_chan.h"

enum { TOKEN_WAIT_S = 10, PUMP_BYTES = 32768, STDIN_QUEUE_MAX = 262144 };

struct session {
	struct machine_chan ch;
	pid_t init_pid, pid;
	int pidfd;
	/* our ends of the command's streams; on a terminal in_fd and out_fd are the same */
	int in_fd, out_fd, err_fd;
	struct buf to_stdin;
	bool stdin_ended, tty, exited;
	uint32_t code;
};

struct request {
	uint32_t flags;
	struct winsize ws;
	char cwd[4096];
	char **argv, **env; /* strings live in `text` */
	char *text;
};

static const char *const base_env[] = {
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/root",
	"LANG=C.UTF-8",
};

/* Tells the client and ends this session. */
_noreturn_ static void refuse(struct session *s, const char *why)
{
	struct buf b;

	buf_init(&b, 4096);
	buf_str(&b, why);
	chan_send(&s->ch, MACHINE_ERROR, b.p, b.len);
	fd_set_nonblock(s->ch.fd, false);
	if (s->ch.out.len)
		write_full(s->ch.fd, s->ch.out.p, s->ch.out.len);
	_exit(1);
}

/* Waits for one frame; ends the session if there will be none. */
static enum machine_frame await_frame(struct session *s, struct cur *payload)
{
	enum machine_frame type;

	for (;;) {
		struct pollfd p = {.fd = s->ch.fd, .events = POLLIN};
		int rc = chan_next(&s->ch, &type, payload);

		if (rc < 0)
			refuse(s, "bad frame");
		if (rc > 0)
			return type;
		if (s->ch.eof || poll(&p, 1, TOKEN_WAIT_S * 1000) <= 0 || chan_fill(&s->ch) < 0)
			_exit(1);
	}
}

/* Parses one vector of strings, with a NULL at its end. Puts `before` first; *text is the place for
 * the strings that are parsed. */
static bool parse_strings(struct cur *c, char ***vec, const char *const *before, size_t nbefore,
	char **text, const char *limit)
{
	uint32_t n = cur_u32(c);

	if (c->bad || n > MACHINE_ARGS_MAX)
		return false;
	*vec = calloc(n + nbefore + 1, sizeof(char *));
	if (!*vec)
		return false;
	for (size_t i = 0; i < nbefore; i++)
		(*vec)[i] = strdup(before[i]);
	for (uint32_t i = 0; i < n; i++) {
		size_t room = (size_t)(limit - *text);

		if (!cur_str(c, *text, room))
			return false;
		(*vec)[nbefore + i] = *text;
		*text += strlen(*text) + 1;
	}
	return true;
}

static bool parse_request(struct cur c, struct request *r)
{
	/* terminated strings never need more room than their u32-prefixed form */
	size_t room = cur_left(&c) + 1;
	char *text = calloc(1, room);

	if (!text)
		return false;
	r->text = text;
	r->flags = cur_u32(&c);
	r->ws.ws_row = cur_u16(&c);
	r->ws.ws_col = cur_u16(&c);
	return cur_str(&c, r->cwd, sizeof(r->cwd)) &&
	       parse_strings(&c, &r->argv, NULL, 0, &text, r->text + room) &&
	       parse_strings(&c, &r->env, base_env, ARRAY_LEN(base_env), &text, r->text + room) &&
	       cur_done(&c) && r->argv[0];
}

_noreturn_ static void run_child(const struct request *r, const int std[3], bool tty)
{
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	setsid();
	for (int i = 0; i < 3; i++)
		if (dup2(std[i], i) < 0)
			_exit(126);
	if (tty)
		ioctl(0, TIOCSCTTY, 0);
	syscall(SYS_close_range, 3u, ~0u, 0u);
	if (chdir(r->cwd[0] ? r->cwd : "/root") < 0) {
		fprintf(stderr, "mayfly machine: %s: %s\n", r->cwd, strerror(errno));
		_exit(126);
	}
	/* execvpe() takes PATH from environ; of two PATH entries the first counts, base_env's */
	environ = r->env;
	execvpe(r->argv[0], r->argv, r->env);
	fprintf(stderr, "mayfly machine: %s: %s\n", r->argv[0], strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

/* our ends and the child's, either one terminal or three pipes */
static int make_streams(struct session *s, const struct request *r, int child[3])
{
	int p[3][2];

	if (s->tty) {
		int m = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), t;

		if (m < 0 || grantpt(m) < 0 || unlockpt(m) < 0)
			return -errno;
		t = open(ptsname(m), O_RDWR | O_NOCTTY | O_CLOEXEC);
		if (t < 0)
			return -errno;
		ioctl(m, TIOCSWINSZ, &r->ws);
		s->in_fd = s->out_fd = m;
		child[0] = child[1] = child[2] = t;
		return fd_set_nonblock(m, true);
	}
	for (int i = 0; i < 3; i++)
		if (pipe2(p[i], O_CLOEXEC) < 0)
			return -errno;
	child[0] = p[0][0];
	child[1] = p[1][1];
	child[2] = p[2][1];
	s->in_fd = p[0][1];
	s->out_fd = p[1][0];
	s->err_fd = p[2][0];
	fd_set_nonblock(s->in_fd, true);
	fd_set_nonblock(s->out_fd, true);
	return fd_set_nonblock(s->err_fd, true);
}

static void start_command(struct session *s, const struct request *r)
{
	int child[3] = {-1, -1, -1};

	s->tty = r->flags & MACHINE_TTY;
	if (make_streams(s, r, child) < 0)
		refuse(s, "no pipes or terminals left in the appliance");
	s->pid = fork();
	if (s->pid < 0)
		refuse(s, "fork failed in the appliance");
	if (s->pid == 0)
		run_child(r, child, s->tty);
	for (int i = 0; i < (s->tty ? 1 : 3); i++)
		close(child[i]);
	s->pidfd = (int)syscall(SYS_pidfd_open, s->pid, 0);
	if (s->pidfd < 0)
		refuse(s, "pidfd_open failed in the appliance");
}

static void close_stdin(struct session *s)
{
	static const char eot = 4;

	if (s->tty) { /* the end of file of a terminal is a character */
		if (s->in_fd >= 0)
			(void)!write(s->in_fd, &eot, 1);
		return;
	}
	close_fd(&s->in_fd);
}

static void push_stdin(struct session *s)
{
	while (s->to_stdin.len && s->in_fd >= 0) {
		ssize_t n = write(s->in_fd, s->to_stdin.p, s->to_stdin.len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0) { /* the command reads no more: drop its input */
			buf_reset(&s->to_stdin);
			if (!s->tty)
				close_fd(&s->in_fd);
			return;
		}
		buf_consume(&s->to_stdin, (size_t)n);
	}
	if (s->stdin_ended && !s->to_stdin.len) {
		close_stdin(s);
		s->stdin_ended = false;
	}
}

static void handle_frame(struct session *s, enum machine_frame type, struct cur *c)
{
	struct winsize ws = {0};
	uint32_t sig;

	if (type == MACHINE_STDIN) {
		if (cur_left(c) == 0)
			s->stdin_ended = true;
		else if (s->in_fd >= 0)
			buf_put(&s->to_stdin, c->p, cur_left(c));
		push_stdin(s);
	} else if (type == MACHINE_WINCH) {
		ws.ws_row = cur_u16(c);
		ws.ws_col = cur_u16(c);
		if (cur_done(c) && s->tty)
			ioctl(s->in_fd, TIOCSWINSZ, &ws);
	} else if (type == MACHINE_SIGNAL) {
		sig = cur_u32(c);
		if (cur_done(c) && sig > 0 && sig < 64 && !s->exited)
			kill(-s->pid, (int)sig);
	} else {
		refuse(s, "unexpected frame");
	}
}

/* True if there may be more to come from *fd. */
static bool pump_output(struct session *s, int *fd, enum machine_frame type)
{
	uint8_t b[PUMP_BYTES];
	ssize_t n;

	if (*fd < 0 || chan_is_full(&s->ch))
		return *fd >= 0;
	n = read(*fd, b, sizeof(b));
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (n <= 0) { /* EIO: the last user of the terminal is gone */
		if (s->tty)
			*fd = -1; /* in_fd still owns it */
		else
			close_fd(fd);
		return false;
	}
	chan_send(&s->ch, type, b, (size_t)n);
	return true;
}

static void note_exit(struct session *s)
{
	siginfo_t si = {0};

	if (waitid(P_PID, (id_t)s->pid, &si, WEXITED) < 0)
		return;
	s->exited = true;
	s->code = si.si_code == CLD_EXITED ? (uint32_t)si.si_status : 128u + (uint32_t)si.si_status;
	close_fd(&s->pidfd);
}

_noreturn_ static void finish(struct session *s)
{
	struct buf b;

	buf_init(&b, 16);
	buf_u32(&b, s->code);
	chan_send(&s->ch, MACHINE_EXIT, b.p, b.len);
	fd_set_nonblock(s->ch.fd, false);
	write_full(s->ch.fd, s->ch.out.p, s->ch.out.len);
	shutdown(s->ch.fd, SHUT_WR);
	_exit(0);
}

/* Handles the received frames while the command's input has room. Less than 0: a bad frame. */
static int handle_frames(struct session *s)
{
	enum machine_frame type;
	struct cur c;
	int rc = 0;

	while (s->to_stdin.len <= STDIN_QUEUE_MAX && (rc = chan_next(&s->ch, &type, &c)) > 0)
		handle_frame(s, type, &c);
	return rc;
}

_noreturn_ static void pump(struct session *s)
{
	/* frames that were received with the request: poll() does not report them any more */
	if (handle_frames(s) < 0)
		_exit(1);
	for (;;) {
		bool full = chan_is_full(&s->ch);
		struct pollfd p[] = {
			{.fd = s->ch.fd, .events = chan_events(&s->ch)},
			{.fd = s->to_stdin.len ? s->in_fd : -1, .events = POLLOUT},
			{.fd = full ? -1 : s->out_fd, .events = POLLIN},
			{.fd = full ? -1 : s->err_fd, .events = POLLIN},
			{.fd = s->pidfd, .events = POLLIN},
		};

		if (s->to_stdin.len > STDIN_QUEUE_MAX)
			p[0].events &= (short)~POLLIN;
		if (poll(p, ARRAY_LEN(p), -1) < 0 && errno != EINTR)
			break;
		if (p[4].revents)
			note_exit(s);
		if (p[1].revents)
			push_stdin(s);
		if (p[2].revents)
			pump_output(s, &s->out_fd, MACHINE_STDOUT);
		if (p[3].revents)
			pump_output(s, &s->err_fd, MACHINE_STDERR);
		if ((p[0].revents & (POLLIN | POLLHUP | POLLERR)) && chan_fill(&s->ch) < 0)
			break;
		if (handle_frames(s) < 0 || s->ch.eof || chan_flush(&s->ch) < 0)
			break;
		/* Send what the command wrote before it ended. Do not wait for what a background
		 * process of the command may write later. */
		if (s->exited && !chan_is_full(&s->ch)) {
			bool more = pump_output(s, &s->out_fd, MACHINE_STDOUT);

			if (!pump_output(s, &s->err_fd, MACHINE_STDERR) && !more)
				finish(s);
		}
	}
	if (!s->exited)
		kill(-s->pid, SIGKILL);
	_exit(1);
}

/* Moves the wall clock by the client's difference, and replies with the time that it then shows. */
static void answer_clock(struct session *s, struct cur *c)
{
	uint64_t by = cur_u64(c), now = wall_ns() + by;
	struct timespec t = {
		.tv_sec = (time_t)(now / 1000000000), .tv_nsec = (long)(now % 1000000000)};
	struct buf b;

	if (c->bad || (by && clock_settime(CLOCK_REALTIME, &t) < 0))
		refuse(s, "bad clock");
	buf_init(&b, 8);
	buf_u64(&b, wall_ns());
	if (chan_send(&s->ch, MACHINE_CLOCK, b.p, b.len) < 0 || chan_flush(&s->ch) < 0)
		_exit(1);
	buf_fini(&b);
}

_noreturn_ void session_serve(int sock, const uint8_t token[MACHINE_TOKEN_BYTES], pid_t init_pid)
{
	struct session s = {
		.init_pid = init_pid, .pidfd = -1, .in_fd = -1, .out_fd = -1, .err_fd = -1};
	struct request r = {0};
	struct cur c;
	enum machine_frame type;

	signal(SIGPIPE, SIG_IGN);
	chan_init(&s.ch, sock);
	buf_init(&s.to_stdin, STDIN_QUEUE_MAX + 2 * MACHINE_FRAME_MAX);
	if (await_frame(&s, &c) != MACHINE_TOKEN || cur_left(&c) != MACHINE_TOKEN_BYTES ||
		!secret_bytes_equal(c.p, token, MACHINE_TOKEN_BYTES))
		refuse(&s, "wrong token");
	while ((type = await_frame(&s, &c)) == MACHINE_CLOCK)
		answer_clock(&s, &c);
	if (type == MACHINE_PING)
		finish(&s);
	if (type == MACHINE_HALT) {
		signal(SIGTERM, SIG_IGN); /* init sends it to all: this process must reply first */
		kill(init_pid, SIGTERM);
		finish(&s);
	}
	if (type != MACHINE_EXEC || !parse_request(c, &r))
		refuse(&s, "bad request");
	start_command(&s, &r);
	pump(&s);
}
