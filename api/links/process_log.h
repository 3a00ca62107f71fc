/* SPDX-License-Identifier: Apache-2.0
 *
 * process_log.h: the log lines of jailed processes. Each process writes into a pipe of its own; the helper keeps the pipe's other end,
 * so that it lasts while this daemon is away, and lends it to us. mayflyd's loop. Every byte is hostile.
 */
#pragma once

#include "lib/loop.h"

struct process_logs;

struct process_logs *process_logs_create(struct loop *l);
void process_logs_destroy(struct process_logs *p);
bool process_log_is_followed(const struct process_logs *p, uint32_t slot);
/* Takes fd, the reading end. Ends by itself when the last process that can write has ended. */
void process_log_follow(struct process_logs *p, uint32_t slot, int fd);

/* Splits one line, without its newline. Returns the text within `line`, which is changed; *level is the level that the line has, else
 * LOG_INFO. Public for tests and the fuzzer. */
char *process_log_line(char *line, size_t n, int *level);
