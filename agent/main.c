/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: mayfly-agent. As PID 1 it is the guest's init; with --listen it is an ordinary process for tests. --dump-env is the helper
 * by which a session's shell hands over its environment (session.h), --isolate the first process of an isolated session (isolate_init.c).
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/boot.h"
#include "agent/isolate_conf.h"
#include "agent/session.h"

static const char usage[] = "usage: mayfly-agent [--listen PATH] [--record FILE] [--run-dir DIR] "
			    "[--cgroup DIR] [--state-dir DIR] [-v]\n";

static int run(struct agent_opts *o)
{
	struct agent a;
	struct err e = {0};
	int rc = agent_init(&a, o, &e);

	if (rc < 0) {
		log_error("%s", e.msg);
		return 1;
	}
	rc = agent_run(&a);
	agent_fini(&a);
	return rc < 0;
}

/* The kernel passes variables of its command line to init. They are wiped: /proc/1/environ shows
 * nothing. */
static void wipe_environment(void)
{
	extern char **environ;

	for (char **e = environ; *e; e++)
		memset(*e, 0, strlen(*e));
	*environ = NULL;
}

int main(int argc, char **argv)
{
	static const struct option opts[] = {{"listen", required_argument, NULL, 'l'},
		{"record", required_argument, NULL, 'r'}, {"run-dir", required_argument, NULL, 'd'},
		{"cgroup", required_argument, NULL, 'c'},
		{"state-dir", required_argument, NULL, 's'}, {0}};
	struct agent_opts o = {.run_dir = "/run/mayfly"};
	int ch;

	if (argc == 3 && !strcmp(argv[1], "--dump-env"))
		return session_helper(argv[2]);
	if (argc == 2 && !strcmp(argv[1], "--isolate"))
		return isolate_main();
	log_init("mayfly-agent", 2, false);
	if (getpid() == 1) {
		wipe_environment();
		/* the kernel passes words of its command line as arguments: they are not for us */
		boot_init(&o);
		run(&o);
		boot_dead("the agent could not go on");
	}
	while ((ch = getopt_long(argc, argv, "v", opts, NULL)) != -1) {
		switch (ch) {
		case 'l':
			o.listen_path = optarg;
			break;
		case 'r':
			o.record_path = optarg;
			break;
		case 'd':
			o.run_dir = optarg;
			break;
		case 'c':
			o.cgroup_dir = optarg;
			break;
		case 's':
			o.state_dir = optarg;
			break;
		case 'v':
			log_level++;
			break;
		default:
			fputs(usage, stderr);
			return 2;
		}
	}
	if (!o.listen_path) {
		fputs(usage, stderr);
		return 2;
	}
	return run(&o);
}
