/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: mayfly-priv, the only part of mayfly that stays root. It starts mayflyd under a user of its own, starts it again when it dies,
 * and serves its requests (the table in serve.c). It parses its command line and those requests.
 * All else that it reads was written by root or by the kernel.
 * On SIGTERM it ends the daemon and itself; the sandboxes go on, and the next helper finds them.
 */
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "lib/fdpass.h"
#include "lib/jail.h"
#include "lib/log.h"
#include "lib/opt.h"
#include "lib/procfs.h"
#include "priv/quota.h"
#include "priv/serve.h"
#include "priv/spawn.h"

/* VOLUME_UID_BASE is 0x70000000: systemd's list of user ids has no owner for the 2^28 from there on */
#define UID_BASE        300000u
#define VOLUME_UID_BASE UINT64_C(1879048192)
#define RESPAWN_MIN_NS  100000000ull
#define RESPAWN_MAX_NS  5000000000ull
#define REQUESTS_A_TURN 64
/* a daemon that ran for longer than this had come up: the next one starts without a longer delay */
#define RESPAWN_LIVED_NS 1000000000ull

static struct priv {
	struct loop *loop;
	struct slots slots;
	struct serve serve;
	const char *cgroup, *user;
	const char *leases[LEASES_MAX];
	uint32_t nleases;
	uint32_t uid_base, uid_count, nslots;
	struct daemon_conf daemon;
	int sock, daemon_pidfd, daemon_pid, bin_fd, lock_fd;
	struct watch *sock_watch, *daemon_watch;
	struct timer *respawn;
	uint64_t backoff_ns, started_ns;
	struct priv_msg reply; /* waits for room in the socket */
	int reply_fd;
	bool reply_waits, ending;
	struct volumes volumes;
	bool core_scheduling;
	uint32_t ids_base;
	struct { /* answers about volumes, which wait for room in the socket */
		struct priv_msg m;
		int fd;
	} late[VOLUME_JOBS_MAX];
	uint32_t nlate;
} P = {.sock = -1,
	.daemon_pidfd = -1,
	.reply_fd = -1,
	.cgroup = "",
	.user = "mayfly",
	.uid_base = UID_BASE,
	.uid_count = PRIV_UID_RANGES * 4096,
	.nslots = 4096,
	.volumes = {.claims_fd = -1},
	.backoff_ns = RESPAWN_MIN_NS,
	.daemon = {.run_dir = "/run/mayfly", .state_dir = "/var/lib/mayfly"}};

static void daemon_start(void *arg);

static bool send_msg(const struct priv_msg *m, int fd)
{
	return fdpass_send(P.sock, m, sizeof(*m), &fd, fd >= 0 ? 1 : 0) != -EAGAIN;
}

static bool flush_reply(void)
{
	if (P.reply_waits && !send_msg(&P.reply, P.reply_fd))
		return false;
	close_fd(&P.reply_fd);
	P.reply_waits = false;
	return true;
}

static bool flush_late(void)
{
	while (P.nlate) {
		if (!send_msg(&P.late[0].m, P.late[0].fd))
			return false;
		close_fd(&P.late[0].fd);
		memmove(&P.late[0], &P.late[1], --P.nlate * sizeof(P.late[0]));
	}
	return true;
}

static bool flush_ends(void)
{
	for (uint32_t i = 0; P.slots.untold && i < P.slots.n; i++) {
		struct slot *s = &P.slots.s[i];
		struct priv_msg m = {.magic = PRIV_MAGIC,
			.version = PRIV_VERSION,
			.op = PRIV_EV_EXITED,
			.slot = i,
			.group = s->at.group,
			.kind = s->kind,
			.uid = s->uid,
			.start_time = s->start_time,
			.wait_status = s->wait_status};
		int fd;

		if (!s->kind || s->pid || s->told)
			continue;
		fd = leaf_open(&P.slots.leases, s->at, i);
		if (fd >= 0)
			cgroup_usage(fd, &m.usage);
		close_fd(&fd);
		if (!send_msg(&m, -1))
			return false;
		s->told = true;
		P.slots.untold--;
	}
	return true;
}

/* Sends what waits. As long as the daemon does not read, no more of its requests are taken. */
static void pump_out(void)
{
	if (P.sock < 0)
		return;
	watch_events(
		P.sock_watch, flush_reply() && flush_late() && flush_ends() ? EPOLLIN : EPOLLOUT);
}

/* volume_begin() has kept room for the answer. */
static void volume_answered(void *arg, const struct priv_msg *m, int fd)
{
	if (P.sock < 0 || P.nlate == ARRAY_LEN(P.late)) {
		close_fd(&fd);
		return;
	}
	P.late[P.nlate].m = *m;
	P.late[P.nlate++].fd = fd;
	pump_out();
}

static int volume_begin(struct serve *s, const struct volume_ask *a, const struct priv_msg *m)
{
	return P.nlate + volume_jobs_unanswered(s->volumes) < ARRAY_LEN(P.late)
		       ? volume_start(s->volumes, a, m)
		       : -EAGAIN;
}

static void on_sock(void *arg, uint32_t events)
{
	int fds[FDPASS_MAX];

	/* at most so many: the ends of processes and the timers have their turn, too */
	for (int i = 0; i < REQUESTS_A_TURN && P.sock >= 0 && flush_reply(); i++) {
		size_t nfds = ARRAY_LEN(fds);
		uint8_t msg[sizeof(struct priv_msg) + PRIV_TEXT_MAX + 1];
		ssize_t n = fdpass_recv(P.sock, msg, sizeof(msg), fds, &nfds);

		if (n == -EMSGSIZE)
			n = 1; /* too long: the answer is an error, as for a message that is no request */
		if (n <= 0) {
			if (n != -EAGAIN) {
				watch_remove(P.sock_watch);
				close_fd(&P.sock);
			}
			break;
		}
		P.reply_waits =
			serve_request(&P.serve, msg, (size_t)n, fds, nfds, &P.reply, &P.reply_fd);
		for (size_t k = 0; k < nfds; k++)
			close(fds[k]);
	}
	pump_out();
}

static void on_slot_end(void *arg, uint32_t events)
{
	struct slot *s = arg;
	uint32_t slot = (uint32_t)(s - P.slots.s);
	siginfo_t si = {0};
	int status = -1;

	/* A process that an earlier helper started is not our child: nobody knows how it ended. */
	if (waitid(P_PIDFD, (id_t)s->pidfd, &si, WEXITED | WNOHANG) == 0 && si.si_pid)
		status = si.si_code == CLD_EXITED ? si.si_status << 8 : si.si_status;
	log_info("slot %u: process %d ended, wait status %#x", slot, s->pid, (unsigned int)status);
	slot_ended(&P.slots, slot, status);
	pump_out();
}

static void watch_slot(struct serve *sv, uint32_t slot)
{
	struct slot *s = &sv->slots->s[slot];

	s->watch = loop_watch(P.loop, s->pidfd, EPOLLIN, on_slot_end, s);
	if (!s->watch)
		log_error("slot %u: its process cannot be watched: %s", slot, strerror(errno));
}

static void on_daemon_end(void *arg, uint32_t events)
{
	siginfo_t si = {0};
	int last = -1;

	if (waitid(P_PIDFD, (id_t)P.daemon_pidfd, &si, WEXITED | WNOHANG) == 0 && si.si_pid)
		last = si.si_status;
	watch_remove(P.daemon_watch);
	P.daemon_watch = NULL;
	close_fd(&P.daemon_pidfd);
	P.daemon_pid = 0;
	if (P.sock >= 0)
		watch_remove(P.sock_watch);
	close_fd(&P.sock);
	close_fd(&P.reply_fd);
	P.reply_waits = false;
	volume_jobs_forget(P.serve.volumes);
	for (; P.nlate; P.nlate--)
		close_fd(&P.late[P.nlate - 1].fd);
	if (P.ending || (si.si_code == CLD_EXITED && (last == 0 || last == 2))) {
		/* 0: it was asked to; 2: its configuration is wrong, and will not get better by
		 * trying again */
		loop_stop(P.loop, P.ending ? 0 : last);
		return;
	}
	P.backoff_ns = mono_ns() - P.started_ns > RESPAWN_LIVED_NS
			       ? RESPAWN_MIN_NS
			       : MIN(P.backoff_ns * 2, RESPAWN_MAX_NS);
	log_error("mayflyd ended (%s %d); starting it again in %llu ms",
		si.si_code == CLD_EXITED ? "exit" : "signal", last,
		(unsigned long long)(P.backoff_ns / 1000000));
	timer_after(P.respawn, P.backoff_ns);
}

static void daemon_start(void *arg)
{
	int s[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) < 0) {
		log_error("socketpair: %s", strerror(errno));
		timer_after(P.respawn, RESPAWN_MAX_NS);
		return;
	}
	fd_set_nonblock(s[0], true);
	P.started_ns = mono_ns();
	P.daemon_pid = spawn_daemon(&P.daemon, s[1], &P.daemon_pidfd);
	close(s[1]);
	if (P.daemon_pid < 0) {
		log_error("start mayflyd: %s", strerror(-P.daemon_pid));
		close(s[0]);
		timer_after(P.respawn, RESPAWN_MAX_NS);
		return;
	}
	P.sock = s[0];
	P.slots.daemon_pidfd = P.daemon_pidfd;
	/* the new daemon finds earlier ends by PRIV_LIST, and receives events of later ones */
	for (uint32_t i = 0; i < P.slots.n; i++)
		P.slots.s[i].told = true;
	P.slots.untold = 0;
	P.sock_watch = loop_watch(P.loop, P.sock, EPOLLIN, on_sock, NULL);
	P.daemon_watch = loop_watch(P.loop, P.daemon_pidfd, EPOLLIN, on_daemon_end, NULL);
	ASSERT(P.sock_watch && P.daemon_watch);
	log_info("mayflyd runs as process %d, user %u", P.daemon_pid, P.serve.daemon_uid);
}

static void on_signal(void *arg, uint32_t events)
{
	struct signalfd_siginfo si;

	while (read(*(int *)arg, &si, sizeof(si)) == sizeof(si)) {
		if (si.ssi_signo == SIGHUP && P.daemon_pid > 0)
			kill(P.daemon_pid, SIGHUP);
		if (si.ssi_signo == SIGCHLD)
			volume_jobs_reap(P.serve.volumes);
		if (si.ssi_signo == SIGCHLD || si.ssi_signo == SIGHUP)
			continue;
		P.ending = true;
		if (P.daemon_pid > 0)
			kill(P.daemon_pid, SIGTERM);
		else
			loop_stop(P.loop, 0);
	}
}

static int lookup_user(const char *name, uint32_t *uid, struct err *e)
{
	char *end;
	unsigned long v = strtoul(name, &end, 10);
	const struct passwd *pw;

	if (*name && !*end && v > 0 && v < UINT32_MAX) {
		*uid = (uint32_t)v;
		return 0;
	}
	pw = getpwnam(name);
	if (!pw || pw->pw_uid == 0)
		return err_plain(e, ENOENT,
			"no user \"%s\" (or it is root): make it with useradd --system %s, or give "
			"--user a number",
			name, name);
	*uid = pw->pw_uid;
	return 0;
}

static int make_dir(const char *path, uint32_t uid, struct err *e)
{
	char up[300];

	snprintf(up, sizeof(up), "%s", path);
	for (char *p = strchr(up + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		(void)!mkdir(up, 0755);
		*p = '/';
	}
	if (mkdir(path, 0711) < 0 && errno != EEXIST)
		return err_set(e, errno, "mkdir %s", path);
	if (chown(path, uid, uid) < 0)
		return err_set(e, errno, "chown %s", path);
	return 0;
}

/* Two helpers may run on one host. Their ranges of user ids must not overlap, or one user could own two sandboxes. So each
 * holds a lock on its ranges until it ends. */
static int lock_users(struct err *e)
{
	struct flock range = {.l_type = F_WRLCK, .l_start = P.uid_base, .l_len = P.uid_count};
	struct flock files = {
		.l_type = F_WRLCK, .l_start = P.ids_base, .l_len = (P.nslots + 1ll) * SLOT_IDS};
	int fd = open("/run/mayfly-users.lock", O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);

	if (fd < 0)
		return err_set(e, errno, "open /run/mayfly-users.lock");
	if (fcntl(fd, F_OFD_SETLK, &files) < 0)
		return err_set(e, errno,
			"another mayfly-priv serves volumes with user ids from %u on: choose "
			"others with --volume-uid-base",
			P.ids_base);
	return fcntl(fd, F_OFD_SETLK, &range) < 0
		       ? err_set(e, errno,
				 "another mayfly-priv has some of the %u users from %u on: choose "
				 "others with --uid-base, --uid-count",
				 P.uid_count, P.uid_base)
		       : 0;
}

/* Without --lease there is one lease for all sandboxes. */
static int set_up_leases(struct err *e)
{
	struct priv_limits l = {0};
	char path[300];

	if (slots_alloc(&P.slots, P.nslots, P.uid_base, P.uid_count / PRIV_UID_RANGES) < 0)
		return err_set(e, ENOMEM, "%u slots", P.nslots);
	P.slots.ids_base = P.volumes.ids_base = P.ids_base;
	P.slots.core_scheduling = P.core_scheduling;
	if (!P.nleases)
		return leases_add(&P.slots.leases, P.cgroup, &l, e);
	for (uint32_t i = 0; i < P.nleases; i++)
		if (lease_parse(P.leases[i], path, sizeof(path), &l, e) < 0 ||
			leases_add(&P.slots.leases, path, &l, e) < 0)
			return -e->code;
	return 0;
}

/* The host flags for what the disk of the state folder lacks. */
static uint32_t host_disk(void)
{
	_cleanup_close_ int fd = open(P.daemon.state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct leases *t = &P.slots.leases;
	bool io = t->l[0].cgroup_fd >= 0 && cgroup_has_io(t->l[0].cgroup_fd) &&
		  io_device_of(P.daemon.state_dir, t->io_device, sizeof(t->io_device));

	if (!io)
		t->io_device[0] = 0;
	P.serve.claims = &P.volumes;
	return (io ? 0 : PRIV_H_NO_IO) | (fd >= 0 && quota_is_there(fd) ? 0 : PRIV_H_NO_QUOTA);
}

static int set_up(struct err *e)
{
	char dir[320];
	size_t n = strlen(P.daemon.run_dir);

	if (geteuid() != 0)
		return err_plain(
			e, EPERM, "must be started as root (systemctl start mayfly, or sudo)");
	if (lookup_user(P.user, &P.serve.daemon_uid, e) < 0)
		return -e->code;
	P.daemon.uid = P.serve.daemon_uid;
	if (lock_users(e) < 0 || make_dir(P.daemon.run_dir, P.serve.daemon_uid, e) < 0 ||
		make_dir(P.daemon.state_dir, P.serve.daemon_uid, e) < 0)
		return -e->code;
	if (volumes_open(&P.volumes, P.daemon.state_dir, e) < 0)
		return -e->code;
	P.bin_fd = open(P.daemon.bin_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (P.bin_fd < 0)
		return err_set(e, errno, "open %s", P.daemon.bin_dir);
	/* beside the run folder, which is the daemon's: what root trusts may not lie where others
	 * write */
	while (n > 1 && P.daemon.run_dir[n - 1] == '/')
		n--;
	snprintf(dir, sizeof(dir), "%.*s-priv", (int)n, P.daemon.run_dir);
	if (set_up_leases(e) < 0 || slots_take_over(&P.slots, dir, e) < 0)
		return -e->code;
	P.lock_fd = openat(P.slots.dir_fd, "lock", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	if (P.lock_fd < 0)
		return err_set(e, errno, "open %s/lock", dir);
	if (flock(P.lock_fd, LOCK_EX | LOCK_NB) < 0)
		return err_set(e, errno, "another mayfly-priv runs on %s", dir);
	P.serve.host_flags = (P.slots.leases.l[0].cgroup_fd < 0 ? PRIV_H_NO_CGROUP : 0) |
			     (jail_landlock_abi() ? 0 : PRIV_H_NO_LANDLOCK) |
			     (access("/dev/kvm", R_OK | W_OK) ? PRIV_H_NO_KVM : 0) | host_disk();
	return 0;
}

_noreturn_ static void bad_options(const struct err *e)
{
	fprintf(stderr, "mayfly-priv: %s\n", e->msg);
	exit(2);
}

/* Everything behind "--" is the daemon's. Its name is put into the place before that, as argv[0]. */
static void daemon_options(char **argv, int rest)
{
	P.daemon.argv = argv + rest - 1;
	P.daemon.argv[0] = (char *)(uintptr_t) "mayflyd";
	for (char **a = P.daemon.argv; *a; a++)
		if (!strcmp(*a, "--config"))
			P.serve.config = a[1];
}

/* Helpers whose jails have different users have different users for volumes, too: eight ranges, each enough for 4096 slots. The same --uid-base is
 * always the same range, because files of claims belong to it. */
static uint64_t default_ids_base(uint64_t uid_base, uint64_t uid_count)
{
	uint64_t apart = uid_base > UID_BASE && uid_count ? (uid_base - UID_BASE) / uid_count : 0;

	return VOLUME_UID_BASE + apart % 8 * (4096 + 2) * SLOT_IDS;
}

static void parse(int argc, char **argv)
{
	uint64_t uid_base = P.uid_base, uid_count = P.uid_count, slots = P.nslots;
	uint64_t ids_base = 0;
	struct opt_list shown = {0}, leases = {0}, roots = {0};
	unsigned int verbose = 0;
	bool help = false, core_scheduling = false;
	const struct opt opts[] = {
		{"bin-dir", 0, OPT_STR, &P.daemon.bin_dir, "DIR",
			"folder of mayflyd, mayfly-vmm, mayfly-image (where this program is)"},
		{"run-dir", 0, OPT_STR, &P.daemon.run_dir, "DIR",
			"sockets of the daemon (/run/mayfly)"},
		{"state-dir", 0, OPT_STR, &P.daemon.state_dir, "DIR",
			"what lasts: images, snapshots, the database (/var/lib/mayfly)"},
		{"show", 0, OPT_LIST, &shown, "PATH",
			"one more file or folder that mayflyd may read (a kernel or initramfs of "
			"its "
			"configuration); up to 8"},
		{"cgroup", 0, OPT_STR, &P.cgroup, "PATH",
			"cgroup v2 folder below which each sandbox gets its group (the helper's "
			"own)"},
		{"user", 0, OPT_STR, &P.user, "NAME", "the daemon's user, or its number (mayfly)"},
		{"lease", 0, OPT_LIST, &leases, "PATH",
			"PATH[,memory=BYTES][,cpu=MILLIS]: cgroup v2 folder in which sandboxes may "
			"be placed, "
			"instead of --cgroup; repeat it for more: leases are numbered from 0 in "
			"this order"},
		{"uid-base", 0, OPT_UINT, &uid_base, "N", "first user id for jails (300000)"},
		{"uid-count", 0, OPT_UINT, &uid_count, "N",
			"user ids for jails from there on: five for each slot (20480)"},
		{"host-path", 0, OPT_LIST, &roots, "DIR",
			"a host folder that volumes may be below; storage.allowed_host_paths of "
			"the "
			"configuration narrows it; up to 16"},
		{"volume-uid-base", 0, OPT_UINT, &ids_base, "N",
			"first of 65,536 user ids for each slot, and for the files of claims "
			"(1879048192, or higher for another --uid-base)"},
		{"slots", 0, OPT_UINT, &slots, "N",
			"how many jailed processes there may be at a time (4096)"},
		{"core-scheduling", 0, OPT_FLAG, &core_scheduling, NULL,
			"let no two sandboxes share a core's threads at a time (Linux 5.14, "
			"CONFIG_SCHED_CORE)"},
		{"verbose", 'v', OPT_COUNT, &verbose, NULL, "log every request"},
		{"help", 'h', OPT_FLAG, &help, NULL, "print this text"},
	};
	struct err e;
	int rest;

	if (opt_parse(opts, ARRAY_LEN(opts), argc, argv, &rest, &e) < 0)
		bad_options(&e);
	if (help) {
		puts("usage: mayfly-priv [OPTIONS] [-- mayflyd's arguments]");
		opt_help(stdout, opts, ARRAY_LEN(opts));
		exit(0);
	}
	if (!ids_base)
		ids_base = default_ids_base(uid_base, uid_count);
	if (opt_range("slots", slots, 1, PRIV_MAX_SLOTS, &e) < 0 ||
		opt_range("uid-base", uid_base, 1000, 4000000000u, &e) < 0 ||
		opt_range("uid-count", uid_count, PRIV_UID_RANGES, PRIV_UID_RANGES * PRIV_MAX_SLOTS,
			&e) < 0 ||
		opt_range("show", shown.n, 0, ARRAY_LEN(P.daemon.show), &e) < 0 ||
		opt_range("host-path", roots.n, 0, VOLUME_ROOTS_MAX, &e) < 0 ||
		opt_range("volume-uid-base", ids_base, 65536, UINT32_MAX - (slots + 1) * SLOT_IDS,
			&e) < 0 ||
		opt_range("lease", leases.n, 0, LEASES_MAX, &e) < 0)
		bad_options(&e);
	/* one range of user ids for each kind of process: no file server may be the user of a monitor */
	if (ids_base < uid_base + uid_count && uid_base < ids_base + (slots + 1) * SLOT_IDS) {
		err_plain(&e, EINVAL,
			"the user ids from --volume-uid-base on overlap those from --uid-base on");
		bad_options(&e);
	}
	P.uid_base = (uint32_t)uid_base;
	P.uid_count = (uint32_t)uid_count;
	P.nslots = (uint32_t)slots;
	P.ids_base = (uint32_t)ids_base;
	memcpy(P.volumes.root, roots.v, roots.n * sizeof(roots.v[0]));
	P.volumes.nroots = (uint32_t)roots.n;
	memcpy(P.daemon.show, shown.v, shown.n * sizeof(shown.v[0]));
	memcpy(P.leases, leases.v, leases.n * sizeof(leases.v[0]));
	P.nleases = (uint32_t)leases.n;
	P.core_scheduling = core_scheduling;
	if (verbose)
		log_level = LOG_DEBUG;
	if (P.nslots > P.uid_count / PRIV_UID_RANGES) {
		err_plain(&e, EINVAL, "%u slots need %u user ids, --uid-count gives %u", P.nslots,
			P.nslots * PRIV_UID_RANGES, P.uid_count);
		bad_options(&e);
	}
	daemon_options(argv, rest);
}

/* Two descriptors a slot: of its process and of its log. */
static void room_for_descriptors(void)
{
	rlim_t need = (rlim_t)P.nslots * 2 + 1024;
	struct rlimit l;

	/* never lowered: a daemon that may not raise its own limit inherits this one */
	if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur >= need)
		return;
	l.rlim_cur = MIN(l.rlim_max, need);
	setrlimit(RLIMIT_NOFILE, &l);
}

int main(int argc, char **argv)
{
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD};
	static char self[512];
	struct err e = {0};
	sigset_t set;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int sfd, rc;

	if (n > 0 && strrchr(self, '/'))
		*strrchr(self, '/') = 0;
	P.daemon.bin_dir = self;
	log_init("mayfly-priv", 2, false);
	parse(argc, argv);
	room_for_descriptors();
	if (set_up(&e) < 0) {
		log_error("%s", e.msg);
		return 1;
	}
	sigemptyset(&set);
	for (size_t i = 0; i < ARRAY_LEN(signals); i++)
		sigaddset(&set, signals[i]);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	sfd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	P.loop = loop_create();
	P.respawn = P.loop ? loop_timer(P.loop, daemon_start, NULL) : NULL;
	ASSERT(P.respawn && sfd >= 0 && loop_watch(P.loop, sfd, EPOLLIN, on_signal, &sfd));
	P.serve.slots = &P.slots;
	P.serve.bin_fd = P.bin_fd;
	P.serve.spawn = spawn_jailed;
	P.serve.started = watch_slot;
	P.serve.volume = volume_begin;
	P.serve.volumes = volume_jobs_create(P.loop, &P.volumes, volume_answered, NULL);
	ASSERT(P.serve.volumes);
	/* if this dies nothing else can clean up */
	(void)file_put(AT_FDCWD, "/proc/self/oom_score_adj", "-900");
	for (uint32_t i = 0; i < P.slots.n; i++)
		if (P.slots.s[i].pidfd >= 0)
			watch_slot(&P.serve, i);
	daemon_start(NULL);
	rc = loop_run(P.loop);
	log_info("ended: %llu requests, %llu refused", (unsigned long long)P.serve.served,
		(unsigned long long)P.serve.refused);
	return rc;
}
