/* SPDX-License-Identifier: Apache-2.0
 *
 * api_process_log: lines of hostile processes: each is logged with its slot's number, a flood is read slowly, a full pipe drops lines.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "api/links/process_log.h"
#include "lib/log.h"

static struct {
	struct loop *loop;
	struct process_logs *logs;
	int log; /* what we log comes here */
} G;

static bool rig_up(void)
{
	G.loop = loop_create();
	G.logs = process_logs_create(G.loop);
	G.log = memfd_create("log", MFD_CLOEXEC);
	log_init("daemon", G.log, false);
	return G.loop && G.logs && G.log >= 0;
}

static void rig_down(void)
{
	log_init("", 2, false);
	process_logs_destroy(G.logs);
	loop_destroy(G.loop);
	close(G.log);
}

static int pipe_followed(uint32_t slot)
{
	int p[2];

	ASSERT(pipe2(p, O_CLOEXEC | O_NONBLOCK) == 0);
	process_log_follow(G.logs, slot, p[0]);
	return p[1];
}

static const char *logged(void)
{
	static char text[1 << 20];
	ssize_t n;

	for (int i = 0; i < 40; i++)
		loop_turn(G.loop, 0);
	n = pread(G.log, text, sizeof(text) - 1, 0);
	text[MAX(n, 0)] = 0;
	return text;
}

static void say(int fd, const char *text)
{
	CHECK_INT(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void each_line_is_its_slots(void)
{
	int fd;
	const char *t;

	REQUIRE(rig_up());
	fd = pipe_followed(7);
	CHECK(process_log_is_followed(G.logs, 7) && !process_log_is_followed(G.logs, 8));
	say(fd, "2026-01-02T03:04:05.678Z warn  mayfly-vmm: one\nhalf of ");
	t = logged();
	CHECK(strstr(t, " warn  daemon: slot 7: mayfly-vmm: one\n") && !strstr(t, "half"));
	/* no line of a process looks like one of ours, or of another slot */
	say(fd, "two\r2026-01-02T03:04:05.678Z error daemon: slot 8: forged\n\n");
	say(fd, "2026-01-02T03:04:05.678Z error mayfly-vmm: \033[31mred\n");
	t = logged();
	CHECK(strstr(t, " info  daemon: slot 7: half of two?2026-01-02T03:04:05.678Z error daemon: "
			"slot 8: forged\n"));
	CHECK(strstr(t, " error daemon: slot 7: mayfly-vmm: ?[31mred\n"));
	CHECK_INT(write(fd, "nul\0nul\nlast words", 18), 18);
	close(fd);
	t = logged();
	CHECK(strstr(t, "slot 7: nul?nul\n") && strstr(t, "slot 7: last words\n"));
	CHECK(!process_log_is_followed(G.logs, 7));
	rig_down();
}

static void a_line_without_an_end_is_cut(void)
{
	char big[5000];
	const char *t;
	int fd;

	REQUIRE(rig_up());
	fd = pipe_followed(1);
	memset(big, 'x', sizeof(big));
	CHECK_INT(write(fd, big, sizeof(big)), sizeof(big));
	say(fd, "\nnext\n");
	t = logged();
	CHECK(strlen(t) < 1500); /* lib/log cuts it once more */
	CHECK(strstr(t, "slot 1: next\n"));
	close(fd);
	rig_down();
}

static void a_flood_waits_in_its_own_pipe(void)
{
	char line[1024];
	const char *t;
	int flood, other;
	ssize_t n = 0;

	REQUIRE(rig_up());
	flood = pipe_followed(1);
	other = pipe_followed(2);
	memset(line, 'f', sizeof(line));
	line[sizeof(line) - 1] = '\n';
	while (write(flood, line, sizeof(line)) > 0)
		n++;
	CHECK_INT(errno, EAGAIN); /* it is not held up */
	CHECK(n >= 16);
	say(other, "quiet\n");
	t = logged();
	CHECK(strstr(t, "slot 2: quiet\n"));
	CHECK(strlen(t) < 24 * 1024); /* one window's share, not the pipe's 64 KiB */
	close(flood);
	close(other);
	rig_down();
}

static void a_full_pipe_drops_lines_and_says_so(void)
{
	char text[70000];
	int p[2];
	ssize_t n;

	REQUIRE(pipe2(p, O_CLOEXEC | O_NONBLOCK) == 0);
	log_init("vmm", p[1], false);
	for (int i = 0; i < 3000; i++)
		log_info("line %d, and some more of it, to be a little longer", i);
	n = read(p[0], text, sizeof(text));
	CHECK(n > 60000);
	log_info("the reader is back");
	n = read(p[0], text, sizeof(text) - 1);
	text[MAX(n, 0)] = 0;
	CHECK(strstr(text, "lines were dropped)\n") && strstr(text, "the reader is back\n"));
	log_init("", 2, false);
	close(p[0]);
	close(p[1]);
}

static const struct test tests[] = {
	{"each_line_is_its_slots", each_line_is_its_slots},
	{"a_line_without_an_end_is_cut", a_line_without_an_end_is_cut},
	{"a_flood_waits_in_its_own_pipe", a_flood_waits_in_its_own_pipe},
	{"a_full_pipe_drops_lines_and_says_so", a_full_pipe_drops_lines_and_says_so},
};
TEST_MAIN(tests)
