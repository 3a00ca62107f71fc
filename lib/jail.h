/* SPDX-License-Identifier: Apache-2.0
 *
 * jail.h: how a process gives up what it does not need. mayfly-vmm, mayfly-net, mayfly-broker,
 * mayfly-fs and mayfly-image call jail_enter as the first thing in main, while still root, before
 * they read a byte that somebody else wrote; mayflyd uses Landlock and seccomp. mayfly-priv has
 * already put the process into its own pid namespace and cgroup. Stages are numbered in jail.c,
 * each with its should and must-not; jail_enter either passes all of them or fails: a process that
 * gets an error exits.
 */
#pragma once

#include "lib/err.h"

#include <sys/types.h>

/* A descriptor (a folder, a file, or a detached copy of its mount) that is shown at `path`. It keeps its number, and leads to the
 * place inside afterwards. */
struct jail_folder {
	int fd;
	const char *path;
	bool read_only;
	bool handle_only; /* reopened with O_PATH, also where it may not be read; submounts are left out */
};
#define JAIL_FOLDERS_MAX 32

struct jail_conf {
	uid_t uid; /* own user and group, from mayfly-priv's range */
	/* Not 0: a user namespace of its own instead of one user. Ids 0 .. nids-1 inside are uid .. uid+nids-1 outside, the process
	 * is user 0 inside, and keeps these capabilities (bits) over files with those ids, and over nothing else. */
	uint32_t nids;
	uint64_t keep_caps;
	unsigned int nfds; /* descriptors 0 .. nfds-1 stay, all others are closed */
	bool keep_net;     /* image pulls and the broker: the host's network */
	/* *proc_fd: an O_PATH descriptor of a /proc that shows this pid namespace only */
	bool want_proc;
	/* folders and files that it works in, each a mount of its own: ".." from inside ends there */
	const struct jail_folder *folders;
	size_t nfolders;
	/* NULL-terminated: files and folders shown read-only under the same path (pulls: resolver,
	 * certificates) */
	const char *const *ro_paths;
	uint64_t fsize_max;  /* largest file it may make, 0 = no limit */
	unsigned int nofile; /* descriptors */
	bool allow_weaker;   /* a host without Landlock: go on, and say so in *missing */
};

/* 0 or -errno, then the text names the stage. missing: JAIL_NO_* of what this host lacks. */
int jail_enter(const struct jail_conf *c, int *proc_fd, uint32_t *missing, struct err *e);
enum { JAIL_NO_LANDLOCK = 1 };

/* Stages 3 and 4 alone, for a program that is started afterwards (mayflyd, by mayfly-priv): own mounts, and a read-only root that holds nothing but
 * these paths. What does not exist is left out. Needs root. */
struct jail_show {
	const char *path;
	enum { JAIL_SHOW_READ, JAIL_SHOW_RUN, JAIL_SHOW_WRITE } how;
};
#define JAIL_SHOW_MAX 32
int jail_root(const struct jail_show *show, size_t n, struct err *e);

/* Landlock alone (mayflyd): only these paths may be opened from now on, for reading or also for writing, by this process and its
 * children. Paths that do not exist are left out. -EOPNOTSUPP: this kernel has none. */
struct jail_path {
	const char *path;
	bool writable;
};
int jail_landlock(const struct jail_path *paths, size_t n, bool net, struct err *e);
/* From now on no TCP socket can connect or be bound. Sockets that listen already go on listening. A
 * listener or an accepted connection that is shut down cannot be connected to somewhere else.
 * -EOPNOTSUPP: this kernel (before 6.7) cannot say so. */
int jail_landlock_tcp(struct err *e);
int jail_landlock_abi(void); /* 0: none */

/* seccomp: an allow-list. Each system call names what needs it, and, if the test suite never makes
 * it (tests/trace/calls), why it stays. */
struct jail_rule {
	int nr;
	const char *need, *unseen;
	struct {
		unsigned int arg;
		uint64_t mask; /* 0: all bits */
		uint64_t value;
	} cmp[2];
	unsigned int ncmp;
	/* an errno: answered with it instead of being allowed (for what libraries try first) */
	int refuse;
};
/* after `why`: .unseen = "..." where there is something to say */
#define JAIL_CALL(name, why, ...)                                                                  \
	{                                                                                          \
		.nr = SCMP_SYS(name), .need = (why), __VA_ARGS__                                   \
	}
#define JAIL_CALL_MASK(name, a, m, v, why, ...)                                                    \
	{                                                                                          \
		.nr = SCMP_SYS(name), .need = (why), .cmp = {{(a), (m), (v)}}, .ncmp = 1,          \
		__VA_ARGS__                                                                        \
	}
#define JAIL_CALL_EQ(name, a, v, why, ...) JAIL_CALL_MASK(name, a, 0, v, why, __VA_ARGS__)

/* What happens to a call that is not listed. TRAP: SIGSYS, so that a handler that was installed
 * before can leave last words; the list must then not allow rt_sigaction for SIGSYS, or the handler
 * could be replaced. REFUSE: ENOSYS, for a process that serves many and must not end because of one call. */
enum jail_action { JAIL_KILL, JAIL_TRAP, JAIL_LOG, JAIL_REFUSE };

/* For the calling thread and what it starts; a second list on the same thread takes away more. */
int jail_seccomp(const struct jail_rule *r, size_t n, enum jail_action otherwise, struct err *e);
