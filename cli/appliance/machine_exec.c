/* SPDX-License-Identifier: Apache-2.0
 *
 * machine_exec.c: the client of the appliance's exec server: one poll loop between our standard
 * streams and the connection, both ways at once. It never blocks on the connection, so that `exec
 * cat` with a large file cannot stall. A write to our standard output or error may block.
 * Untrusted: the server's frames.
 */
#include "cli/appliance/machine.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <termios.h>

#include "lib/machine_chan.h"

enum { CLOCK_LOOKS = 8 };

static struct termios saved_tty;

static void restore_tty(void)
{
	tcsetattr(0, TCSADRAIN, &saved_tty);
}

static bool make_raw(void)
{
	struct termios t;

	if (tcgetattr(0, &saved_tty) < 0)
		return false;
	t = saved_tty;
	cfmakeraw(&t);
	atexit(restore_tty);
	return tcsetattr(0, TCSADRAIN, &t) == 0;
}

/* Connected, token queued. */
static int chan_connect(const struct machine *m, struct machine_chan *ch, struct err *e)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)m->exec_port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	_cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), tfd = -1;
	uint8_t token[MACHINE_TOKEN_BYTES];
	char path[PATH_MAX];
	int one = 1, rc;

	tfd = open(machine_path(m, "token", path), O_RDONLY | O_CLOEXEC);
	if (tfd < 0)
		return err_set(e, errno, "%s", path);
	rc = read_full(tfd, token, sizeof(token));
	if (rc < 0)
		return err_set(e, -rc, "%s", path);
	if (fd < 0 || connect(fd, (struct sockaddr *)(void *)&a, sizeof(a)) < 0)
		return err_set(e, errno, "machine %s does not answer", m->name);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	fd_set_nonblock(fd, true);
	chan_init(ch, take_fd(&fd));
	return chan_send(ch, MACHINE_TOKEN, token, sizeof(token));
}

static void chan_end(struct machine_chan *ch)
{
	close(ch->fd);
	chan_fini(ch);
}

static void send_size(struct machine_chan *ch)
{
	struct winsize ws = {0};
	struct buf b;

	if (ioctl(0, TIOCGWINSZ, &ws) < 0)
		return;
	buf_init(&b, 16);
	buf_u16(&b, ws.ws_row);
	buf_u16(&b, ws.ws_col);
	chan_send(ch, MACHINE_WINCH, b.p, b.len);
	buf_fini(&b);
}

static int send_request(struct machine_chan *ch, const struct machine_exec *x, struct err *e)
{
	struct winsize ws = {0};
	struct buf b;
	int rc;

	if (x->tty)
		ioctl(0, TIOCGWINSZ, &ws);
	buf_init(&b, MACHINE_FRAME_MAX);
	buf_u32(&b, x->tty ? MACHINE_TTY : 0);
	buf_u16(&b, ws.ws_row);
	buf_u16(&b, ws.ws_col);
	buf_str(&b, x->cwd);
	buf_u32(&b, (uint32_t)x->nargv);
	for (size_t i = 0; i < x->nargv; i++)
		buf_str(&b, x->argv[i]);
	buf_u32(&b, (uint32_t)x->nenv);
	for (size_t i = 0; i < x->nenv; i++)
		buf_str(&b, x->env[i]);
	rc = b.bad ? err_plain(e, E2BIG, "the command line is longer than %u bytes",
			     MACHINE_FRAME_MAX)
		   : chan_send(ch, MACHINE_EXEC, b.p, b.len);
	buf_fini(&b);
	return rc;
}

/* Takes one frame of the server's. 1: the command ended, *code is its exit code; 0: go on; -errno. */
static int take_frame(enum machine_frame type, struct cur *c, int *code, struct err *e)
{
	char why[400];

	switch ((int)type) {
	case MACHINE_STDOUT:
	case MACHINE_STDERR:
		if (cur_left(c) &&
			write_full(type == MACHINE_STDOUT ? 1 : 2, c->p, cur_left(c)) < 0)
			return err_set(e, errno, "writing the command's output");
		return 0;
	case MACHINE_EXIT:
		*code = (int)(cur_u32(c) & 0xff);
		return c->bad ? err_plain(e, EPROTO, "the machine sent an invalid frame") : 1;
	case MACHINE_ERROR:
		return err_plain(e, EREMOTEIO, "the machine says: %s",
			cur_str(c, why, sizeof(why)) ? why : "(nothing readable)");
	default:
		return err_plain(e, EPROTO, "the machine sent an invalid frame");
	}
}

/* Reads what the server has sent until now. Returns what take_frame() returns. */
static int turn(struct machine_chan *ch, int *code, struct err *e)
{
	enum machine_frame type;
	struct cur c;
	int rc = chan_fill(ch);

	if (rc < 0)
		return err_set(e, -rc, "the machine went away");
	while ((rc = chan_next(ch, &type, &c)) > 0) {
		rc = take_frame(type, &c, code, e);
		if (rc)
			return rc;
	}
	if (rc < 0)
		return err_plain(e, EPROTO, "the machine sent an invalid frame");
	if (ch->eof)
		return err_plain(e, EPIPE, "the machine closed the connection (did it stop?)");
	return 0;
}

static void read_stdin(struct machine_chan *ch, int *in_fd)
{
	uint8_t b[32768];
	ssize_t n = read(*in_fd, b, sizeof(b));

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	chan_send(ch, MACHINE_STDIN, b, n > 0 ? (size_t)n : 0);
	if (n <= 0)
		*in_fd = -1;
}

static int pump(struct machine_chan *ch, const struct machine_exec *x, int sig_fd, struct err *e)
{
	int in_fd = x->null_stdin ? -1 : 0, code = 0, rc;

	if (x->null_stdin)
		chan_send(ch, MACHINE_STDIN, NULL, 0);
	for (;;) {
		struct pollfd p[] = {
			{.fd = ch->fd, .events = chan_events(ch)},
			{.fd = chan_is_full(ch) ? -1 : in_fd, .events = POLLIN},
			{.fd = sig_fd, .events = POLLIN},
		};
		struct signalfd_siginfo si;

		if (poll(p, ARRAY_LEN(p), -1) < 0 && errno != EINTR)
			return err_set(e, errno, "poll");
		if (p[1].revents)
			read_stdin(ch, &in_fd);
		if (p[2].revents && read(sig_fd, &si, sizeof(si)) == (ssize_t)sizeof(si))
			send_size(ch);
		rc = chan_flush(ch);
		/* the server may have closed after its last frames: read those first */
		if (rc < 0 && !(p[0].revents & POLLIN))
			return err_set(e, -rc, "the machine went away");
		if (p[0].revents & (POLLIN | POLLHUP | POLLERR)) {
			rc = turn(ch, &code, e);
			if (rc)
				return rc < 0 ? rc : code;
		}
	}
}

int machine_exec_run(const struct machine *m, const struct machine_exec *x, struct err *e)
{
	_cleanup_close_ int sig_fd = -1;
	struct machine_chan ch;
	sigset_t set;
	int rc = chan_connect(m, &ch, e);

	if (rc < 0)
		return rc;
	rc = send_request(&ch, x, e);
	if (rc == 0 && x->tty) {
		sigemptyset(&set);
		sigaddset(&set, SIGWINCH);
		sigprocmask(SIG_BLOCK, &set, NULL);
		sig_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
		if (!make_raw())
			rc = err_plain(e, ENOTTY, "-t wants a terminal on stdin");
	}
	if (rc == 0)
		rc = pump(&ch, x, sig_fd, e);
	chan_end(&ch);
	return rc;
}

/* Waits until `end` for the server's next frame. 0 or -errno. */
static int await_frame(const struct machine *m, struct machine_chan *ch, uint64_t end,
	enum machine_frame *type, struct cur *c, struct err *e)
{
	int rc;

	while ((rc = chan_next(ch, type, c)) == 0) {
		int64_t left = (int64_t)(end - mono_ns()) / 1000000;
		struct pollfd p = {.fd = ch->fd, .events = chan_events(ch)};

		if (ch->eof)
			return err_plain(e, EPIPE, "machine %s closed the connection", m->name);
		if (left <= 0 || poll(&p, 1, (int)left) == 0)
			return err_plain(e, ETIMEDOUT, "machine %s does not answer", m->name);
		rc = chan_flush(ch);
		if (rc == 0)
			rc = chan_fill(ch);
		if (rc < 0)
			return err_set(e, -rc, "machine %s went away", m->name);
	}
	return rc < 0 ? err_plain(e, EPROTO, "the machine sent an invalid frame") : 0;
}

int machine_ask(const struct machine *m, enum machine_frame what, int timeout_ms, struct err *e)
{
	uint64_t end = mono_ns() + (uint64_t)timeout_ms * 1000000;
	enum machine_frame type;
	struct machine_chan ch;
	struct cur c;
	int code = 0, rc = chan_connect(m, &ch, e);

	if (rc < 0)
		return rc;
	chan_send(&ch, what, NULL, 0);
	while (rc == 0) {
		rc = await_frame(m, &ch, end, &type, &c, e);
		if (rc == 0)
			rc = take_frame(type, &c, &code, e);
	}
	chan_end(&ch);
	return rc < 0 ? rc : 0;
}

/* Moves the machine's clock by `by` ns. *ahead: how far it is ahead of ours then, *unsure: the error of that. */
static int ask_clock(const struct machine *m, struct machine_chan *ch, uint64_t end, int64_t by,
	int64_t *ahead, int64_t *unsure, struct err *e)
{
	enum machine_frame type;
	uint64_t asked, answered;
	struct cur c;
	struct buf b;
	int code = 0, rc;

	buf_init(&b, 8);
	buf_u64(&b, (uint64_t)by);
	asked = wall_ns();
	chan_send(ch, MACHINE_CLOCK, b.p, b.len);
	buf_fini(&b);
	rc = await_frame(m, ch, end, &type, &c, e);
	answered = wall_ns();
	if (rc == 0 && type != MACHINE_CLOCK)
		rc = take_frame(type, &c, &code, e);
	if (rc)
		return rc < 0 ? rc : err_plain(e, EPROTO, "the machine sent an invalid frame");
	*ahead = (int64_t)(cur_u64(&c) - asked - (answered - asked) / 2);
	*unsure = (int64_t)(answered - asked) / 2;
	return c.bad ? err_plain(e, EPROTO, "the machine sent an invalid frame") : 0;
}

int machine_set_clock(const struct machine *m, int timeout_ms, struct err *e)
{
	uint64_t end = mono_ns() + (uint64_t)timeout_ms * 1000000;
	int64_t ahead = 0, unsure = 0, best = 0, best_unsure = INT64_MAX;
	struct machine_chan ch;
	int rc = chan_connect(m, &ch, e);

	if (rc < 0)
		return rc;
	/* The error of one look is half of the time that its answer took. The quickest of a few looks counts. */
	for (int i = 0; i < CLOCK_LOOKS && rc == 0; i++) {
		rc = ask_clock(m, &ch, end, 0, &ahead, &unsure, e);
		if (rc == 0 && unsure < best_unsure) {
			best = ahead;
			best_unsure = unsure;
		}
	}
	if (rc == 0 && (best > best_unsure || best < -best_unsure))
		rc = ask_clock(m, &ch, end, -best, &ahead, &unsure, e);
	chan_end(&ch);
	return rc;
}
