/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.h: the appliance: one QEMU process per name, its state under
 * ~/.local/state/mayfly/machine/NAME/:
 *   lock        flock'ed by the QEMU process itself (it inherits the descriptor): held = it runs
 *   start.lock  flock'ed by the process that starts it
 *   pid         pid and start time, written by the child before it becomes QEMU
 *   info        how it was started ("key value" lines)
 *   token       what the exec server asks for, new at each start
 *   data.img    the disk that lasts
 *   share/, exchange/  folders that are seen inside
 *   console.log, qemu.log
 */
#pragma once

#include <limits.h>

#include "lib/err.h"
#include "lib/proto_machine.h"

struct machine {
	char name[33];
	char dir[PATH_MAX - 64];
	uint64_t port, exec_port, memory_bytes, cpus; /* from info; 0 while never started */
	char accel[8];
	int lock_fd; /* ours while we hold the lock, else -1 */
};

struct machine_opts {
	uint64_t port, memory_bytes, cpus, disk_bytes;
	bool idle_poll;
	const char *kernel; /* a file, or NULL: the kernel of `make kernel` */
	const char *append; /* more words for the kernel's command line, or NULL */
};

/* Where all machines live. 0 or -errno. */
int machine_root(char *to, size_t cap, struct err *e);
/* Names are DNS labels, so that they can be in paths and host names. Makes no files. */
int machine_open(struct machine *m, const char *name, struct err *e);
void machine_close(struct machine *m);
char *machine_path(const struct machine *m, const char *file, char to[static PATH_MAX]);
/* True if its QEMU runs. Otherwise the lock is ours from here on (m->lock_fd), unless `peek`. */
bool machine_is_running(struct machine *m, bool peek);
/* A pidfd of the running QEMU, or -errno; pid may be NULL. */
int machine_pidfd(const struct machine *m, int *pid);
int machine_load(struct machine *m);
int machine_save(const struct machine *m);

/* machine_qemu.c: starts QEMU; the caller holds the lock, which goes over to QEMU. Waits until the
 * appliance is ready. */
int machine_launch(struct machine *m, const struct machine_opts *o, struct err *e);

/* machine_exec.c */
struct machine_exec {
	const char *const *argv;
	const char *const *env;
	size_t nargv, nenv;
	const char *cwd;
	bool tty;
	int null_stdin;
};
/* Runs a command with our stdin, stdout, stderr. Its exit code, or -errno with e. */
int machine_exec_run(const struct machine *m, const struct machine_exec *x, struct err *e);
/* PING and HALT. 0 or -errno; waits at most timeout_ms. */
int machine_ask(const struct machine *m, enum machine_frame what, int timeout_ms, struct err *e);
/* Sets its wall clock to ours, to within a few milliseconds. Waits at most timeout_ms. */
int machine_set_clock(const struct machine *m, int timeout_ms, struct err *e);

/* machine_publish.c: copies files (or folders' files) into share/<hash of their names and content>;
 * `to` is the path seen inside. */
int machine_publish(const struct machine *m, const char *const *paths, size_t n,
	char to[static PATH_MAX], struct err *e);
