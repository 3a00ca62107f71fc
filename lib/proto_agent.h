/* SPDX-License-Identifier: Apache-2.0
 *
 * proto_agent.h: between the daemon and mayfly-agent, over vsock streams to VSOCK_PORT_AGENT.
 * Frames: struct agent_hdr, then `len` bytes of payload: little-endian fields in the order given,
 * strings are u32 length + bytes (lib/buf.h). Each end treats the other as hostile. A connection
 * says first what it is (AGENT_HELLO); requests may follow it without waiting for the answer.
 *
 *   CONTROL  many requests at a time, answered by id, in any order; small answers only
 *   EXEC     one running process: its output, input and end. Losing it kills nothing: attach again from the last offsets
 *   BULK     files read or written, one after the other
 *   DIAL     after AGENT_OK raw bytes, both ways, half-close kept
 *
 * A request is answered by AGENT_OK (its own payload) or AGENT_ERR with the same id. Unknown types: AGENT_ERR ENOSYS.
 */
#pragma once

#include "lib/base.h"

#define AGENT_MAGIC       0x3147414du /* "MAG1", first field of AGENT_HELLO */
#define AGENT_VERSION     3u /* 2: AGENT_EXEC ends with limits. 3: sessions of three kinds */
#define AGENT_VERSION_MIN 1u
#define AGENT_FRAME_MAX   (256u * 1024) /* payload */
/* output bytes of a process that are not yet acknowledged; at this number the agent stops reading its pipe */
#define AGENT_WINDOW (1024u * 1024)
/* of input: AGENT_STDIN_TAKEN comes after so many bytes */
#define AGENT_TAKEN_EVERY (AGENT_WINDOW / 4)
#define AGENT_PATH_MAX    4096u
#define AGENT_ARGS_MAX    (1024u * 1024) /* argv and environment together */

struct agent_hdr {
	uint32_t len;
	uint16_t type;
	uint16_t flags;
	uint32_t id;
};
static_assert(sizeof(struct agent_hdr) == 12, "wire size");

enum agent_conn {
	AGENT_CONN_CONTROL = 1,
	AGENT_CONN_EXEC = 2,
	AGENT_CONN_BULK = 3,
	AGENT_CONN_DIAL = 4
};

enum agent_type {
	AGENT_HELLO = 1, /* u32 magic, u32 version, u32 conn -> OK: u32 version, u64 generation */
	AGENT_OK = 2,
	AGENT_ERR = 3, /* u32 errno, u32 step (enum agent_step), str text */

	/* life of the sandbox (CONTROL) */
	AGENT_PING = 10, /* -> {} */
	/* identity, image, entrypoint: the fields are at the end of this file */
	AGENT_SETUP = 11,
	/* u32 flags (AGENT_PREP_*), u32 limit_ms -> {}: freezes processes and the root file
	 * system for a snapshot */
	AGENT_PREPARE = 12,
	AGENT_THAW = 13, /* identity -> {}: the identity is set before any user process runs */
	/* u32 grace_ms -> {} when TERM was sent; the VM powers off afterwards */
	AGENT_SHUTDOWN = 14,
	/* -> u32 cpus, u64 cpu_busy_ns, u64 cpu_total_ns, u64 mem_total, u64 mem_used, u64
	 * disk_total, u64 disk_used, u64 net_rx, u64 net_tx, u64 wall_ns */
	AGENT_METRICS = 15,
	/* -> u32 n, n x {str name, u64 value}: its own counters (processes, descriptors, bytes,
	 * refused frames) */
	AGENT_SELF = 16,
	/* u16 port, u32 limit_ms -> {} as soon as something listens on it, ETIMEDOUT */
	AGENT_WAIT_PORT = 17,
	/* u64 memory_bytes (0: no limit) -> {}: what all processes of the sandbox may use together, below the memory of
	 * the machine. EOPNOTSUPP: the guest has no cgroup for it. */
	AGENT_LIMITS = 19,
	/* the agent's own word on its connection to the host's VSOCK_PORT_READY, which the host
	 * keeps open: u32 magic, u32 version, u64 generation, u32 prepared (1: AGENT_THAW is due;
	 * after a restore from an image template it is AGENT_SETUP, which thaws, too). A restore's
	 * transport reset makes the agent connect and say it again. */
	AGENT_READY = 20,
	AGENT_SET_ENV = 18, /* u32 n, n x {str k, str v}: the environment of later commands -> {} */
	/* The floor under later commands and the entrypoint: u32 flags (AGENT_H_*), u64
	 * capabilities to keep (bits; AGENT_H_CAPS), u32 n, n x str path that may be read and
	 * executed, u32 n, n x str path that may be written, too (AGENT_H_LANDLOCK); replaces the
	 * one before.
	 * An empty payload changes nothing, it only asks.
	 * -> u32 n, n x {str layer, u32 state (enum agent_layer_state), str message} */
	AGENT_HARDEN = 21,
	/* The sandbox's volumes, before its entrypoint: u32 n, n x {str path, u32 flags
	 * (AGENT_MO_*)} -> {}: volume i of the virtio-fs device is mounted at path, which is made
	 * if it is missing. */
	AGENT_MOUNT = 22,

	/* processes */
	/* (EXEC or, for background, CONTROL) fields: above enum agent_exec_flags -> u32 pid, then
	 * frames on an EXEC connection */
	AGENT_EXEC = 30,
	/* (EXEC) str exec_id, u64 stdout_off, u64 stderr_off[, u32 flags (AGENT_AT_*)] -> u32
	 * state; output continues from there; EPIPE if those bytes are no longer kept. A terminal's
	 * earlier holder becomes a viewer. */
	AGENT_ATTACH = 31,
	/* (EXEC, no answer) u64 stdout_off, u64 stderr_off: the host has these bytes, the agent may
	 * drop them */
	AGENT_ACK = 32,
	AGENT_STDIN = 33, /* (EXEC, no answer) bytes; empty = end of file */
	/* (EXEC or CONTROL) str exec_id: drop its output, nobody will read it -> {} */
	AGENT_DETACH = 34,
	/* str exec_id, u32 signal, u32 kill_after_ms (0 = never) -> {}: to the whole group */
	AGENT_SIGNAL = 35,
	/* str exec_id -> u32 state, u32 code, u64 started_ns, u64 finished_ns, u64 out_bytes, str
	 * error, u32 flags (AGENT_X_*), u32 argc, argc x str: as it was asked for, at most 64 KiB
	 * of it */
	AGENT_STATUS = 36,
	/* str exec_id, u64 offset, u32 max -> u64 next_offset, bytes: background output, both
	 * streams in one */
	AGENT_LOGS = 37,
	AGENT_RESIZE = 38, /* str exec_id, u16 cols, u16 rows -> {} */
	AGENT_EXECS = 39,  /* -> u32 n, n x {str exec_id, u32 flags, u32 state} */
	AGENT_FORGET = 40, /* str exec_id -> {}: drop a finished process and its output */
	/* str exec_id -> u32 processes, u64 cpu_ns, u64 resident_bytes, u64 read_bytes, u64
	 * written_bytes (of the disk): its whole group now; cpu_ns also of those that ended */
	AGENT_USAGE = 41,
	/* agent: u8 stream (1 stdout, 2 stderr, 3 a terminal's stdout from before the attach, or
	 * after a gap: its offset may jump ahead), u64 offset, bytes */
	AGENT_OUT = 50,
	/* agent: u64 bytes of AGENT_STDIN that the process took so far; of a terminal session,
	 * those of this connection. It comes when AGENT_TAKEN_EVERY or more were taken since the
	 * last one. The host sends at most AGENT_WINDOW beyond it: otherwise its acknowledgements
	 * could wait behind input that the process does not take */
	AGENT_STDIN_TAKEN = 52,
	/* agent: u32 state, u32 code, str error; the last frame of an EXEC connection */
	AGENT_EXIT = 51,

	/* agent: {}: another connection took the terminal over. The last frame of this one. */
	AGENT_EVICTED = 53,

	/* Sessions. The three kinds share one set of ids and the requests DEL, LIST and GET. docs/agent.md has the rules.
	 * SHELL: each run is an AGENT_EXEC with its `session` set. Working directory and exported variables are kept.
	 * TERMINAL: one shell on a terminal or on pipes, used through AGENT_SESSION_ATTACH.
	 * ISOLATED: one shell in namespaces of its own. A run is an AGENT_EXEC with `session` and
	 * AGENT_X_SHELL, in the foreground (the shell is busy meanwhile: EBUSY) or with
	 * AGENT_X_BACKGROUND. File requests with AGENT_FL_SESSION act on what the session sees.
	 * str id, str cwd -> {}: a SHELL. From version 3 on: str id, str cwd, u32 kind, then
	 *   SHELL: nothing more
	 *   TERMINAL: str command ("" = a plain shell), u32 uid, u32 gid, str user, u32 envc, envc x {str k, str v}, str note
	 *   ISOLATED: see "an isolated session" below. Answered when its shell is ready, with u64 created_ns.
	 * The note is the host's own text of at most AGENT_NOTE_MAX bytes: AGENT_SESSION_GET gives it back. */
	AGENT_SESSION_NEW = 60,
	/* str id -> {}: whatever runs in it is killed */
	AGENT_SESSION_DEL = 61,
	AGENT_SESSION_LIST = 62, /* -> u32 n, n x session item */
	AGENT_SESSION_GET = 63,  /* str id -> session item, str note */
	/* (EXEC) str id, u32 flags (AGENT_SA_*), u64 since, u16 cols, u16 rows -> u32 mode (enum
	 * agent_terminal_mode), u64 replay_from, u64 offset. Then AGENT_OUT: stream 3 for the
	 * replay from replay_from up to offset, 1 and 2 for what comes live. Offsets count every
	 * byte that any shell of this session ever wrote. The first connection starts the shell.
	 * One connection holds it: AGENT_STDIN is taken from the holder only. AGENT_SIGNAL and
	 * AGENT_RESIZE take the session's id as the exec_id while a shell runs.
	 * ENOENT: no such session. EBUSY: another connection holds it. ESRCH: a viewer came and no shell runs. */
	AGENT_SESSION_ATTACH = 64,
	/* what an overlay mount of an isolated session changed: str id, str dest ("" = its first
	 * overlay), u32 max -> u32 more, u32 n, n x {u8 'A'dded, 'M'odified or 'D'eleted, file item
	 * with a path relative to the mount}: may come in several AGENT_OK with flag
	 * AGENT_FL_MORE */
	AGENT_SESSION_DIFF = 65,
	/* str id, str dest: applies those changes to the directory below the overlay -> u64 entries */
	AGENT_SESSION_COMMIT = 66,

	/* files (CONTROL); each request begins with u32 uid, u32 gid: AGENT_NO_ID = as the agent (root). In every path a leading ~, $NAME and
	 * ${NAME} are expanded as a command's cwd is; EINVAL with AGENT_STEP_PATH for an undefined one. Items carry the expanded path. */
	AGENT_STAT = 70, /* u32 n, n x str path -> n x {u32 errno, file item} */
	/* str path, u32 depth, u32 max -> u32 more, u32 n, n x file item: may come in several
	 * AGENT_OK with flag AGENT_FL_MORE */
	AGENT_LIST = 71,
	AGENT_SEARCH = 72, /* str path, str glob, u32 max -> as AGENT_LIST */
	/* u32 flags (AGENT_RM_*), u32 n, n x str path -> {} */
	AGENT_REMOVE = 73,
	/* str path, str owner, str group, u32 mode (AGENT_NO_MODE) -> {}; with parents */
	AGENT_MKDIR = 74,
	AGENT_CHMOD = 75,   /* str path, str owner, str group, u32 mode -> {} */
	AGENT_MOVE = 76,    /* str src, str dest -> {}; EEXIST */
	AGENT_REPLACE = 77, /* str path, str old, str new -> u64 count */
	AGENT_EXPAND = 78,  /* str path -> str: ~ and $VAR */
	/* files (BULK) */
	/* ids, str path, u64 offset, u64 len (UINT64_MAX = all), u32 flags (AGENT_RD_LINES:
	 * offset/len count lines from 1) -> u64 size, u64 offset, u64 len, file item; then
	 * AGENT_DATA*, an empty one ends; AGENT_ERR in between = failed */
	AGENT_READ = 80,
	/* ids, str path, str owner, str group, u32 mode, u32 flags (AGENT_WR_*) -> {} ; then
	 * the host's AGENT_DATA*, an empty one ends; -> AGENT_OK u64 bytes */
	AGENT_WRITE = 81,
	AGENT_DATA = 82, /* bytes */

	/* AGENT_CONN_DIAL */
	AGENT_DIAL_TCP = 90,  /* u16 port on 127.0.0.1, then ::1 -> {} */
	AGENT_DIAL_UNIX = 91, /* str path -> {} */
	/* the other way round: u32 what (AGENT_AC_API): waits until a program of the guest
	 * connects to 127.0.0.1:44772 -> {}, then raw bytes, as HTTP to the sandbox's own execution
	 * API. Each connection takes one stream that waits. If none waits, the program gets 503.
	 * Programs in isolated sessions get 403. */
	AGENT_DIAL_ACCEPT = 92,
};

#define AGENT_NO_ID   UINT32_MAX
#define AGENT_NO_MODE UINT32_MAX
/* struct agent_hdr.flags of a file request: its payload begins with the str id of an isolated
 * session. Paths then mean what that session sees. */
#define AGENT_FL_SESSION 2u
#define AGENT_FL_MORE    1u /* struct agent_hdr.flags: another answer with this id follows */

enum { AGENT_AC_API = 1 };
enum { AGENT_MO_READ_ONLY = 1, AGENT_MO_FILE = 2 };
enum { AGENT_RM_TREE = 1, AGENT_RM_MISSING_OK = 2, AGENT_RM_NO_DIR = 4 };
enum { AGENT_RD_LINES = 1 };
enum { AGENT_WR_ATOMIC = 1, AGENT_WR_PARENTS = 2 };
enum {
	AGENT_PREP_FREEZE = 1,
	AGENT_PREP_FSFREEZE = 2,
	AGENT_PREP_DROP = 4 /* caches, compact, trim */
};

/* AGENT_EXEC:
 *   str exec_id                        at most 63 bytes, chosen by the host
 *   u32 flags                          enum agent_exec_flags
 *   u32 uid, u32 gid                   uid AGENT_NO_ID: by user
 *   str user                           not used if uid is given; "" = the image's
 *   str cwd                            "" = the session's, else the image's
 *   u64 timeout_ms                     0 = none
 *   u16 cols, u16 rows
 *   str session                        "" = none
 *   u32 argc, argc x str
 *   u32 envc, envc x {str k, str v}
 *   u32 n, n x {u32 resource (RLIMIT_*), u64 soft, u64 hard}
 *                                      from version 2 on, as agreed in AGENT_HELLO
 * The environment is put together in this order, later values win: the image's, the set-up's, the
 * pre-script's, the $EXECD_ENVS file's, the session's, these. */
#define AGENT_LIMITS_MAX 16u
enum agent_exec_flags {
	AGENT_X_SHELL = 1,      /* argv[0] is a text for bash -c, or sh -c where there is no bash */
	AGENT_X_BACKGROUND = 2, /* output goes to a file in the guest; AGENT_LOGS reads it */
	AGENT_X_PTY = 4,
	AGENT_X_STDIN = 8,       /* AGENT_STDIN will come; without it stdin is /dev/null */
	AGENT_X_MERGE = 16,      /* stderr into stdout */
	AGENT_X_EXPAND_CWD = 32, /* ~, $NAME, ${NAME} */
};

enum {
	AGENT_H_CAPS = 1,
	AGENT_H_SECCOMP = 2, /* the filter of isolated sessions */
	AGENT_H_LANDLOCK = 4,
	AGENT_H_NO_NEW_PRIVS = 8, /* set-id programs give nothing */
};
enum agent_layer_state {
	AGENT_LAYER_ACTIVE = 1,
	AGENT_LAYER_DISABLED = 2,
	AGENT_LAYER_DEGRADED = 3, /* active in part: the message says what is missing */
	AGENT_LAYER_UNSUPPORTED = 4,
};
#define AGENT_NOTE_MAX (64u * 1024)
enum agent_session_kind { AGENT_SE_SHELL = 1, AGENT_SE_TERMINAL = 2, AGENT_SE_ISOLATED = 3 };
/* ACTIVE: a run or an attach is possible. DEAD: the shell of an isolated session ended. */
enum agent_session_state { AGENT_SE_ACTIVE = 1, AGENT_SE_DEAD = 2 };
enum agent_session_attach {
	AGENT_SA_VIEW = 1, /* be a viewer: no input; the holder stays */
	AGENT_SA_TAKE = 2, /* take over: the present holder gets AGENT_EVICTED */
	AGENT_SA_PIPE = 4, /* the shell that this starts gets pipes instead of a terminal */
};
enum agent_terminal_mode { AGENT_TM_PTY = 1, AGENT_TM_PIPE = 2 };
/* a session item:
 *   str id, u32 kind, u32 state
 *   u32 runs                           1: a run is in progress, or the terminal's shell runs
 *   u64 created_ns
 *   u64 last_run_ns                    0 = none yet
 *   u64 idle_left_ms                   UINT64_MAX = no idle limit
 *   u64 output_offset                  TERMINAL only
 *   u32 exit_state                     enum agent_state of the last shell or run, 0 = none
 *   u32 exit_code */

enum { AGENT_AT_WATCH = 1 /* a terminal: a viewer. Its input is not taken, the holder stays */ };

enum agent_state {
	AGENT_RUNNING = 1,
	AGENT_EXITED = 2 /* code */,
	AGENT_SIGNALED = 3 /* signal */,
	AGENT_TIMED_OUT = 4,
	AGENT_NOT_STARTED = 5
};

/* a file item: str path, u8 type ('f' 'd' 'l' 'o'), u64 size, i64 mtime_ns, i64 ctime_ns, str
 * owner, str group, u32 mode (07777), u32 uid, u32 gid, str link */

/* where a request failed, so that the daemon can give the documented error */
enum agent_step {
	AGENT_STEP_NONE,
	AGENT_STEP_CWD,
	AGENT_STEP_USER,
	AGENT_STEP_START,
	AGENT_STEP_PATH,
	AGENT_STEP_BUSY,
	AGENT_STEP_ENTROPY,
	AGENT_STEP_CLOCK,
	AGENT_STEP_IDENTITY,
	AGENT_STEP_FREEZE,
	AGENT_STEP_SESSION /* there is no such session, or its shell has ended */
};

/* an isolated session, after its kind:
 *   u32 profile                        enum agent_profile
 *   u32 flags                          AGENT_IS_*
 *   u32 uid, u32 gid, str user         as in AGENT_EXEC
 *   u64 idle_ms                        deleted when nothing ran for so long; 0 = never
 *   u64 memory_bytes, u32 pids         0 = no limit of its own
 *   u64 upper_bytes                    the same; with a limit its writes are kept in memory
 *   u32 n, n x str allowed             absolute directories, for AGENT_IM_CHECKED
 *   u32 n, n x mount
 *   u32 env_mode                       enum agent_env_mode
 *   u32 n, n x str name                for env_mode
 *   u32 envc, envc x {str k, str v}
 *   str note
 * The session's cwd is where its shell starts.
 * mount:
 *   u32 mode                           enum agent_mount_mode
 *   u32 flags                          AGENT_IM_*
 *   str source                         a path of the sandbox
 *   str dest                           a path of the session; "" = source
 * EACCES: a source is not below an allowed directory. */
#define AGENT_MOUNTS_MAX  64u
#define AGENT_ALLOWED_MAX 32u
#define AGENT_NAMES_MAX   256u
enum agent_profile {
	AGENT_STRICT = 1,   /* a /tmp of its own */
	AGENT_BALANCED = 2, /* the sandbox's /tmp */
};
enum { AGENT_IS_NO_NET = 1 /* a network namespace of its own, without devices */ };
enum agent_mount_mode { AGENT_IM_RO = 1, AGENT_IM_RW = 2, AGENT_IM_OVERLAY = 3 };
enum {
	AGENT_IM_CHECKED = 1, /* the source must resolve to a path below an allowed directory */
	AGENT_IM_EPHEMERAL =
		2, /* an overlay whose changes are kept in memory, without diff and commit */
	AGENT_IM_MAKE = 4, /* make the source directory if it is missing */
};
enum agent_env_mode {
	/* the sandbox's variables without configuration and credentials (agent/isolate_conf.c) */
	AGENT_EM_FILTER = 0,
	AGENT_EM_ALLOW = 1, /* only PATH, HOME and the names given */
	AGENT_EM_DENY = 2,  /* as FILTER, and without the names given */
};

/* identity, in AGENT_SETUP and AGENT_THAW:
 *   u64 generation
 *   str entropy                        64 bytes
 *   u64 wall_ns
 *   str hostname
 *   str machine_id                     32 hexadecimal digits
 *   str boot_id                        a UUID
 *   u32 n, n x {str k, str v}          environment of later commands
 *   str resolv_conf                    "" = leave
 *
 * AGENT_SETUP:
 *   identity
 *   u32 n, n x {str k, str v}          the image's ENV
 *   str workdir, str user              the image's
 *   u32 argc, argc x str               entrypoint; 0 = none
 *   str lifecycle_json                 "" = none; the agent runs preStart and the periodic hooks
 * -> {} when the first of pre-script, preStart and entrypoint is being started. It does not say that the start succeeds.
 * The daemon learns the entrypoint's end, or that it could not start (AGENT_NOT_STARTED), by AGENT_STATUS / AGENT_ATTACH of exec_id
 * "entrypoint", whose output is kept like a background command's. */
