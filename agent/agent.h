/* SPDX-License-Identifier: Apache-2.0
 *
 * agent.h: the one context of mayfly-agent, given as first argument everywhere. Each module keeps its own state behind a pointer
 * in it. Only the loop's thread touches it; file work runs in threads that see nothing but their own job (jobs.h).
 */
#pragma once

#include "lib/base.h"
#include "lib/buf.h"
#include "lib/err.h"
#include "lib/log.h"
#include "lib/loop.h"
#include "lib/proto_agent.h"

struct cgroup;
struct conn;
struct envset;
struct freeze;
struct harden;
struct hooks;
struct inward;
struct iso;
struct jobs;
struct ports;
struct proc;
struct session;

#define AGENT_ENDED_MAX 1024u

/* sinks: procio.c. cgroups_left: released but not empty yet. stores: storages of isolated sessions.
 * ahead: isolated sessions that began from the spare one (isolate.c). */
struct agent_counters {
	uint64_t conns, conns_total, conns_refused, frames_in, frames_bad, bytes_in, bytes_out;
	uint64_t execs_total, reaped_total, orphans_reaped, sinks, cgroups, cgroups_left, stores,
		ahead, jobs_total, dials;
};

/* what the command line says; a test fills it itself */
struct agent_opts {
	const char *listen_path; /* NULL: vsock */
	const char *record_path; /* NULL: none */
	const char *cgroup_dir;  /* NULL: found at boot, or none */
	const char *state_dir;   /* storage of isolated sessions; NULL: there are none */
	const char *run_dir;     /* where generation, machine-id and boot-id live */
	/* the program that dumps a session's environment and is the first process of isolated
	 * sessions; NULL: /proc/self/exe */
	const char *helper;
	/* for tests: named "execd", and commands cannot look into it, although it is not PID 1 */
	bool guarded;
	/* call sethostname although not PID 1: for tests in a namespace of their own */
	bool set_names;
	uint32_t prod_ms; /* 0: PROD_EVERY_MS (isolate_run.c); tests set less */
	/* PID 1 of a guest: boot.c mounts at the start and ends the machine */
	bool init;
};

struct agent {
	struct agent_opts opts;
	struct loop *loop;
	int listen_fd, sig_fd, record_fd, exe_fd;
	struct watch *listen_w, *sig_w;
	struct agent_counters n;

	struct conn *conns;
	uint64_t next_conn;
	struct proc *procs;
	size_t nprocs;
	uint64_t next_proc;
	struct session *sessions;
	struct hooks *hooks;
	struct jobs *jobs;
	struct ports *ports;
	struct freeze *freeze;
	struct inward *inward; /* NULL: closed */
	struct harden *harden; /* NULL: no floor */

	/* identity and image, by AGENT_SETUP and AGENT_THAW */
	uint64_t generation;
	bool is_set_up;
	/* from the start of AGENT_PREPARE until it fails, or until AGENT_THAW or AGENT_SETUP is done:
	 * no process is started, no file request is taken */
	bool frozen;
	bool shutting_down;
	struct envset *image_env, *setup_env;
	struct session *pre_script; /* what EXECD_BOOTSTRAP_PRE_SCRIPT exported; NULL: nothing */
	char *workdir, *user;

	char cgroup[256];            /* "" = none */
	uint64_t memory_limit;       /* of all processes in it; 0 = the whole machine */
	struct cgroup *spare_cgroup; /* made ahead, because the kernel makes them slowly */
	uint64_t next_cgroup, next_store;
	/* isos: isolated sessions, until a job begins to remove their storage. ended: the cgroup ids of
	 * the last ones that ended; the kernel never uses an id twice */
	struct iso *isos;
	struct iso *spare_iso; /* made ahead, for no session yet; also in isos. NULL: none */
	struct timer *spare_timer;
	uint64_t ended[AGENT_ENDED_MAX], nended;
	int ready_fd;
	struct watch *ready_w;
	struct timer *ready_timer, *shutdown_timer;
	unsigned ready_tries;
	uint64_t ready_since_ns;
};

/* Sets up all modules and listens; 0 or -errno. agent_run returns when the agent was shut down
 * (never, as PID 1 of a guest). */
int agent_init(struct agent *a, const struct agent_opts *o, struct err *e);
int agent_run(struct agent *a);
void agent_fini(struct agent *a);
