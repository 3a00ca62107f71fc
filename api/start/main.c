/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: mayflyd: command line, the order of the start, adoption of what the last daemon left, and
 * the end. mayfly-priv starts it under its own user with PRIV_FD; a developer starts it with --no-jail.
 * Sandboxes outlive it.
 */
#include <arpa/inet.h>
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "api/checkpoint/blobs.h"
#include "api/checkpoint/digest.h"
#include "api/network/network.h"
#include "api/volumes/volumes.h"
#include "api/sandbox/disk_guard.h"
#include "api/sandbox/entrypoint_log.h"
#include "api/fleet/pool.h"
#include "api/fleet/worker_run.h"
#include "api/lifecycle/idempotency.h"
#include "api/lifecycle/route_pool.h"
#include "api/links/images.h"
#include "api/ingress/gateway.h"
#include "api/links/helper_client.h"
#include "api/start/reload.h"
#include "api/start/routing.h"
#include "api/core/budgets.h"
#include "api/core/seal.h"
#include "api/sandbox/launch.h"
#include "api/sandbox/take.h"
#include "api/sandbox/snapshot.h"
#include "api/core/database.h"
#include "api/core/io_pool.h"
#include "api/sandbox/fault.h"
#include "api/lifecycle/template_request.h"
#include "api/sandbox/image_template.h"
#include "api/sandbox/user_template.h"
#include "api/checkpoint/verify.h"
#include "lib/fdpass.h"
#include "lib/host_limits.h"
#include "lib/jail.h"
#include "lib/log.h"
#include "lib/opt.h"

#define BOARD_VERSION "2"
/* The CPU class of all sandboxes: everything that this host's KVM supports. It is in the key of templates,
 * because a memory file is only good for one class. */
#define CPU_CLASS    "host"
#define SERVICE_USER "mayfly" /* mayfly-priv's --user */
#define BAD_CONFIG   2 /* exit code: another start would not help, so mayfly-priv ends, too */
#define DRAIN_NS     (10ull * 1000000000)

static struct daemon D = {.kernel_fd = -1, .initrd_fd = -1, .kvm_fd = -1};
static const struct loop_observer observer = {metrics_turn, metrics_handler, &D.metrics};

_noreturn_ static void die_with(int status, const char *what, const struct err *e)
{
	fprintf(stderr, "mayflyd: %s%s%s\n", what, e ? ": " : "", e ? e->msg : "");
	exit(status);
}

_noreturn_ static void die(const char *what, const struct err *e)
{
	die_with(1, what, e);
}

struct options {
	const char *config, *init_config;
	bool check, faults, version, help;
	unsigned int no_jail, verbose;
};

/* The table fills o; argv[1] may be init-config. */
static struct options parse_options(int argc, char **argv)
{
	struct options o = {0};
	const struct opt opts[] = {
		{"config", 'c', OPT_STR, &o.config, "FILE",
			"use this configuration; without it the defaults hold"},
		{"check", 'n', OPT_FLAG, &o.check, NULL,
			"check the configuration, report errors, and exit"},
		{"faults", 0, OPT_FLAG, &o.faults, NULL,
			"allow debug.faults, for tests: files in run_dir then kill the daemon"},
		{"no-jail", 0, OPT_COUNT, &o.no_jail, NULL,
			"start VMs directly, without mayfly-priv: for debugging (as root: twice)"},
		{"verbose", 'v', OPT_COUNT, &o.verbose, NULL, "log more; twice: still more"},
		{"version", 'V', OPT_FLAG, &o.version, NULL, "print the version"},
		{"help", 'h', OPT_FLAG, &o.help, NULL, "print this text"},
	};
	struct err e;
	int rest;

	if (argc > 1 && !strcmp(argv[1], "init-config")) {
		o.init_config = argc > 2 ? argv[2] : "-";
		if (o.init_config[0] != '-' || !o.init_config[1])
			return o;
		/* an option, not the name of a file */
		argc--;
		argv++;
	}
	if (opt_parse(opts, ARRAY_LEN(opts), argc, argv, &rest, &e) < 0)
		die_with(BAD_CONFIG, "options", &e);
	if (o.version) {
		puts("mayflyd " MAYFLY_VERSION " (protocol " PROTOCOL_VERSION ")");
		exit(0);
	}
	if (o.help || o.init_config || rest < argc) {
		FILE *to = o.help ? stdout : stderr;

		fputs("usage: mayflyd [OPTIONS]\n       mayflyd init-config [FILE]\n\ninit-config "
		      "writes a configuration with every key, its default, its meaning and a new "
		      "API key\nto FILE (without FILE: to standard output).\n\n",
			to);
		opt_help(to, opts, ARRAY_LEN(opts));
		exit(o.help ? 0 : BAD_CONFIG);
	}
	return o;
}

static int init_config(const char *path)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_close_ int fd = -1;
	const struct passwd *pw;
	uint8_t raw[24];
	char key[2 * sizeof(raw) + 1];

	random_bytes(raw, sizeof(raw));
	for (size_t i = 0; i < sizeof(raw); i++)
		snprintf(key + 2 * i, 3, "%02x", raw[i]);
	text = conf_example(key);
	if (!text)
		return 1;
	if (!strcmp(path, "-"))
		return write_full(1, text, strlen(text)) < 0;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || write_full(fd, text, strlen(text)) < 0) {
		fprintf(stderr, "mayflyd: %s: %s\n", path, strerror(errno));
		return 1;
	}
	/* It holds the key. Made by root for the service, it is readable by the service's group, whose only member is its user. */
	if (geteuid() == 0 && (pw = getpwnam(SERVICE_USER)) &&
		(fchown(fd, 0, pw->pw_gid) < 0 || fchmod(fd, 0640) < 0)) {
		fprintf(stderr, "mayflyd: %s: %s\n", path, strerror(errno));
		return 1;
	}
	return 0;
}

/* ---- files */

static void read_line(const char *path, char *to, size_t cap)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, to, cap - 1);

	to[n > 0 ? n : 0] = 0;
	to[strcspn(to, "\n")] = 0;
}

static void lock_state(void)
{
	struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	char path[300];
	int fd;
	struct err e;

	if (mkdir(D.cfg.state_dir, 0700) < 0 && errno != EEXIST) {
		err_set(&e, errno, "%s", D.cfg.state_dir);
		die("state", &e);
	}
	if (mkdir(D.cfg.run_dir, 0755) < 0 && errno != EEXIST) {
		err_set(&e, errno, "%s", D.cfg.run_dir);
		die("run", &e);
	}
	snprintf(path, sizeof(path), "%s/lock", D.cfg.state_dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600); /* kept for as long as we live */
	/* A lock of the process (fcntl), not of the open file (flock): if we are killed, a child between
	 * fork and exec must not keep it */
	if (fd < 0 || fcntl(fd, F_SETLK, &whole) < 0) {
		bool taken = errno == EACCES || errno == EAGAIN;

		err_set(&e, errno, "%s", path);
		die(taken ? "another mayflyd uses this state" : "lock", &e);
	}
}

static const char *bin_dir(void)
{
	static char path[512];
	ssize_t n;
	char *slash;

	if (D.cfg.bin_dir[0])
		return D.cfg.bin_dir;
	n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = 0;
	slash = strrchr(path, '/');
	if (slash)
		*slash = 0;
	return path;
}

/* Opens a file for guests: the configured one, or the default. If it is missing, every create fails until
 * a start that finds it. */
static int guest_file(const char *configured, const char *dflt, const char *name, uint64_t *stamp)
{
	char path[400], installed[640];
	struct stat st;
	int fd;

	if (*configured)
		snprintf(path, sizeof(path), "%s", configured);
	else
		snprintf(path, sizeof(path), "%s/%s", D.cfg.state_dir, dflt);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && !*configured) {
		/* as make install puts it */
		snprintf(installed, sizeof(installed), "%s/../../share/mayfly/%s", bin_dir(), name);
		fd = open(installed, O_RDONLY | O_CLOEXEC);
	}
	if (fd < 0 || fstat(fd, &st) < 0) {
		log_error("%s: %s: no sandbox can be started", path, strerror(errno));
		return -1;
	}
	*stamp = *stamp * 1000003u ^ (uint64_t)st.st_size ^ (uint64_t)st.st_mtim.tv_sec << 20 ^
		 (uint64_t)st.st_mtim.tv_nsec;
	return fd;
}

static void open_guest_files(void)
{
	uint64_t stamp = 1;

	D.kernel_fd = guest_file(D.cfg.kernel, "guest-vmlinux", "guest-vmlinux", &stamp);
	D.initrd_fd = guest_file(D.cfg.initrd, "guest-initrd", "initramfs.cpio", &stamp);
	snprintf(D.boot_key, sizeof(D.boot_key), "b" BOARD_VERSION "%s-" CPU_CLASS "-%016llx",
		D.cfg.network_enabled ? "n" : "", (unsigned long long)stamp);
}

/* From here on only our own folders can be opened, even if an attacker controls the daemon.
 * mayfly-priv starts monitors and jobs, not we. */
static void confine(void)
{
	struct err e;
	int rc;

	setenv("SQLITE_TMPDIR", D.cfg.state_dir, 1);
	rc = daemon_landlock(D.cfg.state_dir, D.cfg.run_dir, &e);
	if (rc == -EOPNOTSUPP)
		log_warn("%s: only file permissions keep the daemon from the host's files", e.msg);
	else if (rc < 0)
		die("Landlock", &e);
}

/* ---- the listener */

static int listen_on(const char *name, int64_t port, struct err *e)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
	const char *host = !strcmp(name, "localhost") ? "127.0.0.1" : name;
	bool is6 = inet_pton(AF_INET6, host, &v6.sin6_addr) == 1;
	_cleanup_close_ int fd = -1;
	int one = 1;

	if (!is6 && inet_pton(AF_INET, host, &v4.sin_addr) != 1)
		return err_plain(e, EINVAL, "the host to listen on, %s, is not an address", host);
	fd = socket(is6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_set(e, errno, "socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, is6 ? (void *)&v6 : (void *)&v4, is6 ? sizeof(v6) : sizeof(v4)) < 0 ||
		listen(fd, 1024) < 0)
		return err_set(e, errno, "listening on %s port %lld", host, (long long)port);
	return take_fd(&fd);
}

/* Removes the socket of an earlier daemon. If a server answers on it, that is an error. */
static int clear_socket(const struct sockaddr_un *sa, struct err *e)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return err_set(e, errno, "socket");
	if (!connect(fd, (const void *)sa, sizeof(*sa)))
		return err_plain(e, EADDRINUSE, "server.socket %s: another server answers there",
			sa->sun_path);
	if (errno == ECONNREFUSED && unlink(sa->sun_path) < 0)
		return err_set(e, errno, "unlink %s", sa->sun_path);
	return 0;
}

/* Every user may connect. A caller whose user id is not configured needs a key, as over TCP. */
static int listen_on_socket(const char *path, struct err *e)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	_cleanup_close_ int fd = -1;

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	if (clear_socket(&sa, e) < 0)
		return -e->code;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_set(e, errno, "socket");
	if (bind(fd, (void *)&sa, sizeof(sa)) < 0 || chmod(path, 0666) < 0 || listen(fd, 1024) < 0)
		return err_set(e, errno, "listening on %s", path);
	return take_fd(&fd);
}

static uint16_t port_of(int fd)
{
	struct sockaddr_storage sa = {0};
	socklen_t n = sizeof(sa);

	if (getsockname(fd, (void *)&sa, &n) < 0)
		return 0;
	return ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&sa)->sin6_port
					      : ((struct sockaddr_in *)(void *)&sa)->sin_port);
}

static void say_listening(int fd, int gateway_fd)
{
	if (gateway_fd >= 0)
		log_info("gateway: listening at %s port %u", D.cfg.ingress_host,
			port_of(gateway_fd));
	if (fd >= 0)
		log_info("listening on %s port %u", D.cfg.host, port_of(fd));
	if (D.cfg.socket[0])
		log_info("listening on %s", D.cfg.socket);
}

/* ---- what the last daemon left */

static int load_sandbox(void *arg, const char *id, cJSON *doc)
{
	struct sandbox *sb = fault_in(&D, FAULT_LOAD) < 0 ? NULL : sandbox_from_record(&D, id, doc);

	cJSON_Delete(doc);
	return sb ? 0 : -EINVAL;
}

/* By creation, newest first, as the list shows them. */
static void sort_sandboxes(void)
{
	struct sandbox *sorted = NULL, *sb = D.sandboxes;

	while (sb) {
		struct sandbox *next = sb->next, **at = &sorted;

		while (*at && (*at)->created_ns > sb->created_ns)
			at = &(*at)->next;
		sb->next = *at;
		*at = sb;
		sb = next;
	}
	D.sandboxes = sorted;
	for (struct sandbox **at = &D.sandboxes; *at; at = &(*at)->next)
		(*at)->prev = at;
}

/* Its monitor ended while no server was running, or cannot be taken over. */
static void take_up_ended(struct sandbox *sb)
{
	if (sandbox_apply(sb, EV_VM_ENDED, "VM_ENDED", "The VM ended while no server was running."))
		launch_teardown(sb);
}

static void take_up_unmade(struct sandbox *sb)
{
	idempotency_forget(sb);
	sandbox_apply(sb, EV_FAILED, "START_FAILED",
		"The server was stopped while the sandbox was made.");
}

static void take_up_one(struct sandbox *sb)
{
	bool ran = sb->phase == PHASE_RUNNING || sb->phase == PHASE_RESIDENT,
	     runs = ran && sb->vm_pid > 0 && launch_adopt(sb);

	if (snap_take_up(sb)) {
		/* its files say that it is Paused, or its VM is being asked */
	} else if (sb->phase == PHASE_ACCEPTED && launch_take_up(sb)) {
		log_info("sandbox %s: its create begins again", sb->id);
	} else if (sb->phase == PHASE_ACCEPTED) {
		take_up_unmade(sb);
	} else if (sb->op.kind == OP_RESUME) {
		/* the files of the pause are complete, and the resume was not answered yet */
		sandbox_apply(sb, EV_FAILED, "RESUME_FAILED",
			"The server was stopped while the sandbox was resumed.");
		operation_end(sb);
	} else if (ran && !runs) {
		take_up_ended(sb);
	}
	sandbox_due(sb);
	if (runs)
		log_info("sandbox %s: adopted (slot %u, process %d)", sb->id, sb->vm_slot,
			sb->vm_pid);
}

static void take_up(struct sandbox *sb)
{
	/* no client knows of it: a template's build begins again, and a pool makes another machine */
	if (sb->internal) {
		sandbox_delete(sb, "the server was stopped while it was used");
		return;
	}
	take_up_one(sb);
}

/* The oldest first: creates that begin again wait for their turn in this order. Otherwise the client that
 * waited longest would be the last one after every kill. */
static void take_up_each(void)
{
	size_t n = 0;
	_cleanup_free_ struct sandbox **all = calloc(D.nsandboxes + 1, sizeof(struct sandbox *));

	ASSERT(all);
	for (struct sandbox *sb = D.sandboxes; sb; sb = sb->next)
		all[n++] = sb;
	while (n > 0)
		take_up(all[--n]);
	if (database_complete(D.database))
		sandboxes_bound(&D);
}

/* Connections of sandboxes are kept. The policy of a record may be newer than the broker's: the last daemon may have died between
 * writing it and sending it. */
static void take_up_networks(bool complete)
{
	networks_adopt(D.networks);
	vms_sweep(D.vms, complete);
	for (struct sandbox *sb = D.sandboxes; sb; sb = sb->next)
		launch_network_policy(sb);
	networks_adopted(D.networks);
}

static const struct checkpoint_kind *const checkpoint_kinds[] = {
	&snapshot_kind, &image_template_kind, &user_template_kind, NULL};

static void take_up_all(void)
{
	bool complete;

	volumes_load(D.volumes);
	database_load(D.database, DB_SANDBOX, load_sandbox, NULL);
	sort_sandboxes();
	checkpoints_load(&D, checkpoint_kinds);
	/* a file, image or monitor that no record names may only be removed if every record could be read */
	complete = database_complete(D.database);
	if (!complete)
		log_error("records are quarantined: no file, image or monitor that seems to be "
			  "nobody's is removed. `mayfly doctor` says what to do.");
	blobs_loaded(D.blobs, complete);
	templates_drop_stale(&D);
	idempotency_start(&D);
	entrylog_sweep(&D);
	take_up_each();
	take_up_networks(complete);
	volumes_loaded(D.volumes, complete);
	images_release(&D);
	snapshots_go_on(&D);
	utemplates_go_on(&D);
	pools_load(&D);
	runs_load(&D);
}

static void process_exited(void *arg, const struct priv_msg *ev)
{
	networks_process_exited(D.networks, ev);
	volumes_process_exited(D.volumes, ev);
	vms_process_exited(&D.vms, ev);
}

/* ---- the end */

static struct timer *drain_limit;
static unsigned int draining; /* servers that still have requests */

static void drained(void *arg)
{
	if (--draining == 0)
		loop_stop(D.loop, 0);
}

static void drained_long_enough(void *arg)
{
	loop_stop(D.loop, 0);
}

static void drain(void)
{
	draining = D.gateway ? 2 : 1;
	http_quiesce(D.http, drained, NULL);
	if (D.gateway)
		http_quiesce(D.gateway, drained, NULL);
	drain_limit = loop_timer(D.loop, drained_long_enough, NULL);
	if (drain_limit)
		timer_after(drain_limit, DRAIN_NS);
}

static void on_signal(void *arg, uint32_t events)
{
	struct signalfd_siginfo si;

	while (read(*(int *)arg, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
		if (si.ssi_signo == SIGCHLD)
			continue;
		if (si.ssi_signo == SIGHUP) {
			daemon_reload(&D);
			continue;
		}
		if (D.ending) {
			loop_stop(D.loop, 1);
			continue;
		}
		log_info("signal %u: ending; sandboxes go on", si.ssi_signo);
		D.ending = true;
		drain();
	}
}

static struct watch *signals;

static void watch_signals(void)
{
	static int fd;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	signals = fd < 0 ? NULL : loop_watch(D.loop, fd, EPOLLIN, on_signal, &fd);
	if (!signals)
		die("signals", NULL);
}

/* Ends the start if the host lacks a part of the jail, unless the configuration accepts that. */
static void accept_host(uint32_t flags)
{
	const char *lacks = !(flags & (PRIV_H_NO_CGROUP | PRIV_H_NO_LANDLOCK)) ? NULL
			    : !(flags & PRIV_H_NO_LANDLOCK) ? "delegated cgroup v2 controllers"
			    : !(flags & PRIV_H_NO_CGROUP)
				    ? "Landlock"
				    : "Landlock and delegated cgroup v2 controllers";

	if (lacks && !D.cfg.weaker_jail) {
		fprintf(stderr,
			"mayflyd: this host has no %s, so jails would be weaker: `mayfly doctor` "
			"says what to do, or set runtime.weaker_jail = true\n",
			lacks);
		exit(2); /* the helper does not try again */
	}
	if (lacks)
		log_warn("this host has no %s: jails are weaker, as the configuration permits",
			lacks);
	if ((flags & PRIV_H_NO_IO) &&
		(D.cfg.disk_mib_per_second || D.cfg.disk_operations_per_second))
		log_warn("limits.disk_mib_per_second and limits.disk_operations_per_second do not "
			 "hold: this host has no io controller for the disk of state_dir. Delegate "
			 "the cgroup's controller io, and put state_dir on a block device");
}

static void open_kvm(void)
{
	struct priv_msg m = {.op = PRIV_OPEN, .what = PRIV_F_KVM}, r = {0};
	int rc = privctl_wait(D.priv, &m, &r, &D.kvm_fd);

	if (rc < 0)
		log_error("/dev/kvm: %s: no sandbox can be started", strerror(-rc));
}

static int priv_socket(bool no_jail)
{
	int type;
	socklen_t n = sizeof(type);

	if (no_jail)
		return -1;
	if (getsockopt(PRIV_FD, SOL_SOCKET, SO_TYPE, &type, &n) < 0 || type != SOCK_SEQPACKET)
		die("mayfly-priv starts me; without it: --no-jail (VMs are then not jailed)", NULL);
	fcntl(PRIV_FD, F_SETFD, FD_CLOEXEC);
	return PRIV_FD;
}

/* Which records need an image. */
static const image_user_fn image_users[] = {
	sandboxes_need_image, checkpoints_need_image, templates_need_image, NULL};

/* The gateway is an HTTP server of its own: a flood of strangers uses up its limits, not those of the API. */
static int start_gateway(const struct http_config *api)
{
	struct http_config hc = *api;
	struct err e;
	int fd;

	if (!conf_has_gateway(&D.cfg))
		return -1;
	if (gateway_configure(&D) < 0)
		die("no memory", NULL);
	fd = listen_on(D.cfg.ingress_host, D.cfg.ingress_port, &e);
	if (fd < 0)
		die("ingress", &e);
	hc.listen_fd = fd;
	hc.connections_max = (unsigned int)D.cfg.ingress_max_connections;
	hc.per_address_max = (unsigned int)D.cfg.ingress_max_connections_per_address;
	hc.count_busy = true;
	hc.dispatch = gateway_dispatch;
	hc.dispatch_preflights = true;
	D.gateway = http_create(D.loop, &hc);
	if (!D.gateway)
		die("the gateway cannot be started", NULL);
	return fd;
}

/* Warns at the start: a create that fails because there is no process id left is hard to explain. */
static void name_low_limits(void)
{
	struct host_limit l[HOST_LIMITS];
	size_t n = host_limits_read(l, (uint64_t)D.cfg.max_sandboxes);

	for (size_t i = 0; i < n; i++)
		if (l[i].have < l[i].want)
			log_warn("this host allows %llu %s; %lld sandboxes (limits.max_sandboxes) "
				 "may take %llu: raise %s",
				(unsigned long long)l[i].have, l[i].name,
				(long long)D.cfg.max_sandboxes, (unsigned long long)l[i].want,
				l[i].knob);
}

static void start(bool no_jail)
{
	struct http_config hc = {.app = &D,
		.listen_fd = -1,
		.dispatch = router_dispatch,
		.invoke = router_invoke,
		.done = router_done};
	char path[300];
	int local_fd = -1, gateway_fd;
	struct err e;

	fd_limit_raise(1ul << 18);
	name_low_limits();
	D.start_ns = mono_ns();
	D.cpus = (unsigned int)MAX(sysconf(_SC_NPROCESSORS_ONLN), 1l);
	D.loop = loop_create();
	if (!D.loop)
		die("no loop", NULL);
	watch_signals();
	lock_state();
	read_line("/proc/sys/kernel/random/boot_id", D.host_boot_id, sizeof(D.host_boot_id));
	open_guest_files();
	if (!no_jail)
		confine();
	snprintf(path, sizeof(path), "%s/state.db", D.cfg.state_dir);
	if (database_open(path, D.loop, &D.database, &e) < 0)
		die("state", &e);
	D.io = io_pool_create(D.loop, &e);
	if (!D.io)
		die("I/O", &e);
	snprintf(path, sizeof(path), "%s/blobs", D.cfg.state_dir);
	D.blobs = blobs_create(path, D.io, &e);
	if (!D.blobs)
		die("state", &e);
	database_before_sync(D.database, blobs_sync, D.blobs);
	D.priv = privctl_create(D.loop, priv_socket(no_jail), bin_dir(), process_exited, NULL, &e);
	if (!D.priv || !(D.vms = vms_create(&D, &e)) || !(D.networks = networks_create(&D, &e)) ||
		!(D.volumes = volumes_create(&D, &e)) ||
		!(D.pools = pools_create(&D, pool_spec_read)) ||
		!(D.runs = runs_create(&D, pool_spec_read)))
		die("processes", &e);
	privctl_state_dir(D.priv, D.cfg.state_dir);
	accept_host(privctl_host_flags(D.priv));
	D.images = images_create(&D, bin_dir(), &e);
	if (!D.images)
		die("images", &e);
	images_users(D.images, image_users);
	open_kvm();
	D.index = index_create();
	D.budgets = budgets_create(&D.cfg);
	D.turns = calloc(1, sizeof(*D.turns));
	D.templates = templates_create(template_req_spec);
	D.verify = verify_create(&D, sandboxes_damaged);
	if (!D.index || !D.budgets || !D.turns || !D.templates || !D.verify)
		die("no memory", NULL);
	if (!disk_guard_start(&D))
		die("no memory", NULL);
	take_up_all();
	if (D.cfg.host[0] && (hc.listen_fd = listen_on(D.cfg.host, D.cfg.port, &e)) < 0)
		die("listen", &e);
	if (D.cfg.socket[0] && (local_fd = listen_on_socket(D.cfg.socket, &e)) < 0)
		die("listen", &e);
	hc.connections_max = (unsigned int)D.cfg.max_connections;
	hc.write_limit_s = (unsigned int)D.cfg.write_timeout_seconds;
	hc.per_address_max = (unsigned int)D.cfg.max_connections_per_address;
	hc.head_limit_s = (unsigned int)D.cfg.header_timeout_seconds;
	hc.body_limit_s = (unsigned int)D.cfg.body_timeout_seconds;
	hc.idle_limit_s = (unsigned int)D.cfg.idle_timeout_seconds;
	hc.account = &D.budgets->strangers.memory;
	D.router = &routing;
	D.http = http_create(D.loop, &hc);
	if (!D.http || (local_fd >= 0 && http_listen(D.http, local_fd) < 0))
		die("the HTTP server cannot be started", NULL);
	gateway_fd = start_gateway(&hc);
	if (!no_jail && daemon_seal(&e) < 0)
		die("seccomp", &e);
	/* threads are started after the seal, because they inherit it */
	if (database_start(D.database, &e) < 0 || io_pool_start(D.io, &e) < 0)
		die("threads", &e);
	digests_go_on(&D);
	if (daemon_watch_lists(&D) < 0)
		die("no memory", NULL);
	loop_observe(D.loop, &observer);
	say_listening(hc.listen_fd, gateway_fd);
}

/* Warns if other users can read the keys in the configuration. */
static void warn_of_readers(const char *path)
{
	struct stat st;

	if (path && conf_has_key(&D.cfg) && !stat(path, &st) && (st.st_mode & 0007))
		log_warn("configuration: %s holds keys, and every user of this host can read it: "
			 "chmod o-rwx %s",
			path, path);
}

int main(int argc, char **argv)
{
	struct options o = parse_options(argc, argv);
	struct err e;
	int rc;

	if (o.init_config)
		return init_config(o.init_config);
	conf_defaults(&D.cfg);
	if ((o.config && conf_load(&D.cfg, o.config, &e) < 0) || conf_check(&D.cfg, &e) < 0 ||
		gateway_check(&D.cfg, &e) < 0)
		die_with(BAD_CONFIG, "configuration", &e);
	if (D.cfg.faults && !o.faults)
		die_with(BAD_CONFIG,
			"configuration: debug.faults makes the daemon die where a file says so: "
			"for tests only, and with --faults",
			NULL);
	if (o.check) {
		puts("ok");
		return 0;
	}
	o.no_jail += D.cfg.no_jail;
	if (o.no_jail == 1 && geteuid() == 0)
		die("--no-jail as root runs guests' VMMs as root: say it twice if you mean it",
			NULL);
	log_init("mayflyd", 2, D.cfg.log_json);
	D.config_path = o.config;
	warn_of_readers(o.config);
	D.verbose = o.verbose;
	daemon_log_level(&D);
	if (o.no_jail)
		log_warn("--no-jail: VMS ARE NOT JAILED, and image jobs neither: for debugging "
			 "only");
	start(o.no_jail > 0);
	rc = loop_run(D.loop);
	/* the records are written; processes and files stay as they are for the next daemon */
	watch_remove(signals);
	timer_remove(drain_limit);
	http_destroy(D.gateway);
	http_destroy(D.http);
	database_close(D.database);
	io_pool_destroy(D.io);
	disk_guard_stop(&D);
	log_info("ended");
	return rc < 0 ? 1 : rc;
}
