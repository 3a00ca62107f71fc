/* SPDX-License-Identifier: Apache-2.0
 *
 * cli.h: the commands of `mayfly`. Each is fn(argc, argv) with argv[0] its own name, and returns
 * the exit code.
 */
#pragma once

#include "lib/err.h"

/* exit codes: 2 usage, 1 failure, 125-127 as `docker run` has them, else the command's own */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_OURS = 125 };

struct command {
	const char *name;
	int (*fn)(int argc, char **argv);
	const char *help;
};

/* Finds argv[1] in the table and runs it with the rest. Prints the table for --help, and an error for an unknown command. */
int command_run(const char *prog, const struct command *table, size_t n, int argc, char **argv);
/* "mayfly: <text>" on stderr; returns code. */
int complain(int code, const struct err *e);

/* For commands with no options of their own: --json and --help. -1: go on, with *rest at the first
 * word; else the exit code. */
int plain_options(int argc, char **argv, const char *usage, bool *json, int *rest);

int cmd_run(int argc, char **argv);
int cmd_create(int argc, char **argv);
int cmd_ls(int argc, char **argv);
int cmd_exec(int argc, char **argv);
int cmd_attach(int argc, char **argv);
int cmd_logs(int argc, char **argv);
int cmd_events(int argc, char **argv);
int cmd_stats(int argc, char **argv);
int cmd_wait(int argc, char **argv);
int cmd_stop(int argc, char **argv);
int cmd_kill(int argc, char **argv);
int cmd_code(int argc, char **argv);
int cmd_cp(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_rm(int argc, char **argv);
int cmd_pause(int argc, char **argv);
int cmd_resume(int argc, char **argv);
int cmd_renew(int argc, char **argv);
int cmd_fork(int argc, char **argv);
int cmd_pool(int argc, char **argv);
int cmd_worker(int argc, char **argv);
int cmd_rollback(int argc, char **argv);
int cmd_port_forward(int argc, char **argv);
int cmd_egress(int argc, char **argv);
int cmd_volume(int argc, char **argv);
int cmd_snapshot(int argc, char **argv);
int cmd_template(int argc, char **argv);
int cmd_machine(int argc, char **argv);
int cmd_image(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_env(int argc, char **argv);
int cmd_completion(int argc, char **argv);
int cmd_disk(int argc, char **argv);
int cmd_version(int argc, char **argv);
