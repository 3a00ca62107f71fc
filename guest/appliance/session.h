/* SPDX-License-Identifier: Apache-2.0
 *
 * session.h: one connection of the exec server: checks the token, runs one command, pumps its
 * streams. Runs in a process of its own.
 */
#pragma once

#include "lib/proto_machine.h"

/* Serves the connected socket to its end; never returns. init_pid is signalled with SIGTERM for
 * MACHINE_HALT. */
_noreturn_ void session_serve(int sock, const uint8_t token[MACHINE_TOKEN_BYTES], pid_t init_pid);
