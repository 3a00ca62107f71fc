/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.c: `mayfly machine ...`: the commands of the appliance. A machine is found running by its
 * lock, so that a kill at any moment leaves nothing to clean up by hand.
 */
#include "cli/appliance/machine.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>

#include "cli/cli.h"
#include "lib/opt.h"
#include "cli/run.h"

enum { ANSWER_WAIT_MS = 90000, STOP_WAIT_MS = 20000, PING_MS = 3000, PUBLISHED_KEPT = 8 };

struct args {
	const char *name, *cwd, *append;
	struct machine_opts o;
	struct opt_list env;
	bool tty, force, json, no_stdin, help, keep_data;
};

static int make_dir(const struct machine *m, struct err *e)
{
	char p[PATH_MAX];

	for (size_t i = 1; m->dir[i - 1]; i++) {
		if (m->dir[i] != '/' && m->dir[i])
			continue;
		snprintf(p, sizeof(p), "%.*s", (int)i, m->dir);
		if (mkdir(p, 0700) < 0 && errno != EEXIST)
			return err_set(e, errno, "%s", p);
	}
	return 0;
}

/* Sends SIGKILL, and waits at most STOP_WAIT_MS until QEMU has ended, which frees its lock. */
static void kill_qemu(struct machine *m)
{
	_cleanup_close_ int pidfd = machine_pidfd(m, NULL);
	struct pollfd p = {.fd = pidfd, .events = POLLIN};

	if (pidfd < 0)
		return;
	syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
	poll(&p, 1, STOP_WAIT_MS);
}

/* Only the newest folders stay: nothing runs that could use the others. */
static void prune_published(const struct machine *m)
{
	struct {
		char path[PATH_MAX];
		time_t at;
	} keep[PUBLISHED_KEPT] = {0};
	char dir[PATH_MAX];
	struct dirent *d;
	DIR *it = opendir(machine_path(m, "share", dir));

	while (it && (d = readdir(it))) {
		char path[PATH_MAX + 300];
		struct stat st;
		size_t oldest = 0;

		snprintf(path, sizeof(path), "%s/%s", dir, d->d_name);
		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0 ||
			stat(path, &st) < 0)
			continue;
		for (size_t i = 1; i < PUBLISHED_KEPT; i++)
			if (keep[i].at < keep[oldest].at)
				oldest = i;
		if (st.st_mtime > keep[oldest].at) {
			if (keep[oldest].path[0])
				tree_remove(keep[oldest].path);
			snprintf(keep[oldest].path, PATH_MAX, "%.*s", PATH_MAX - 1, path);
			keep[oldest].at = st.st_mtime;
		} else {
			tree_remove(path);
		}
	}
	if (it)
		closedir(it);
}

static void print_address(const struct machine *m, const char *what)
{
	printf("machine %s %s: 127.0.0.1:%" PRIu64 " (%" PRIu64 " CPU, %" PRIu64 " MiB, %s)\n",
		m->name, what, m->port, m->cpus, m->memory_bytes >> 20, m->accel);
}

static int do_start(struct machine *m, struct args *a, int argc, char **argv, struct err *e)
{
	_cleanup_close_ int start_lock = -1;
	uint64_t t0 = mono_ns();
	char path[PATH_MAX];
	struct sysinfo si;
	int rc = make_dir(m, e);

	if (rc < 0)
		return rc;
	start_lock = open(machine_path(m, "start.lock", path), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (start_lock < 0 || flock(start_lock, LOCK_EX) < 0)
		return err_set(e, errno, "%s", path);
	if (machine_is_running(m, false)) {
		/* It runs, but the `mayfly machine start` that started it may have been killed before
		 * it was ready: it must answer. Its clock stopped while this host slept. */
		rc = machine_load(m);
		if (rc == 0)
			rc = machine_set_clock(m, ANSWER_WAIT_MS, e);
		if (rc == -EREMOTEIO) /* an older build, without MACHINE_CLOCK: it answers */
			fprintf(stderr, "note: its clock is not set: %s (stop and start it)\n",
				e->msg);
		if (rc == 0 || rc == -EREMOTEIO) {
			print_address(m, "already runs");
			return 0;
		}
		kill_qemu(m);
		if (machine_is_running(m, false))
			return err_plain(e, EBUSY,
				"machine %s runs, does not answer and cannot be killed", m->name);
	}
	if (m->lock_fd < 0)
		return err_set(e, errno, "%s", machine_path(m, "lock", path));
	if (!a->o.memory_bytes && sysinfo(&si) == 0)
		a->o.memory_bytes =
			MIN((uint64_t)si.totalram * si.mem_unit / 2, GIB(12)) & ~(MIB(2) - 1);
	prune_published(m);
	rc = machine_launch(m, &a->o, e);
	/* its board's clock shows whole seconds */
	if (rc == 0)
		rc = machine_set_clock(m, ANSWER_WAIT_MS, e);
	if (rc < 0) {
		kill_qemu(m);
		return rc;
	}
	print_address(m, "is ready");
	fprintf(stderr, "started in %.1f s\n", (double)(mono_ns() - t0) / 1e9);
	return 0;
}

static int do_stop(struct machine *m, struct args *a, int argc, char **argv, struct err *e)
{
	_cleanup_close_ int pidfd = -1;
	struct pollfd p;

	if (!machine_is_running(m, true)) {
		printf("machine %s does not run\n", m->name);
		return 0;
	}
	pidfd = machine_pidfd(m, NULL);
	if (pidfd < 0)
		return err_plain(e, EBUSY,
			"machine %s is being started by another process: try again", m->name);
	p = (struct pollfd){.fd = pidfd, .events = POLLIN};
	if (!a->force && machine_load(m) == 0) {
		int rc = machine_ask(m, MACHINE_HALT, PING_MS, e);

		/* if the connection broke, the request may have arrived all the same */
		if (rc != -ECONNREFUSED && rc != -ETIMEDOUT && poll(&p, 1, STOP_WAIT_MS) > 0) {
			printf("machine %s stopped\n", m->name);
			return 0;
		}
	}
	kill_qemu(m);
	printf("machine %s killed\n", m->name);
	return 0;
}

static int need_running(struct machine *m, struct err *e)
{
	if (!machine_is_running(m, true))
		return err_plain(e, ENOENT,
			"machine %s does not run: mayfly machine start --name %s", m->name,
			m->name);
	if (machine_load(m) < 0)
		return err_plain(e, EBUSY, "machine %s is being started", m->name);
	return 0;
}

static int do_exec(struct machine *m, struct args *a, int argc, char **argv, struct err *e)
{
	struct machine_exec x = {.argv = (const char *const *)(uintptr_t)argv,
		.nargv = (size_t)argc,
		.cwd = a->cwd,
		.tty = a->tty,
		.null_stdin = a->no_stdin};
	char term[128];
	int rc = need_running(m, e);

	if (rc < 0)
		return rc;
	if (argc == 0)
		return err_plain(
			e, EINVAL, "no command: mayfly machine exec [OPTIONS] -- COMMAND [ARGS]");
	if (a->tty && getenv("TERM") && a->env.n < ARRAY_LEN(a->env.v)) {
		snprintf(term, sizeof(term), "TERM=%s", getenv("TERM"));
		a->env.v[a->env.n++] = term;
	}
	x.env = a->env.v;
	x.nenv = a->env.n;
	return machine_exec_run(m, &x, e);
}

static int do_shell(struct machine *m, struct args *a, int argc, char **argv, struct err *e)
{
	char *shell[] = {(char[]){"bash"}, (char[]){"-l"}, NULL};

	a->tty = isatty(0);
	return do_exec(m, a, 2, shell, e);
}

static int do_publish(struct machine *m, struct args *a, int argc, char **argv, struct err *e)
{
	char path[PATH_MAX];
	int rc = make_dir(m, e);

	if (rc == 0 && mkdir(machine_path(m, "share", path), 0755) < 0 && errno != EEXIST)
		rc = err_set(e, errno, "%s", path);
	if (rc == 0 && argc == 0)
		rc = err_plain(e, EINVAL, "no file: mayfly machine publish FILE|FOLDER...");
	if (rc == 0)
		rc = machine_publish(
			m, (const char *const *)(uintptr_t)argv, (size_t)argc, path, e);
	if (rc == 0)
		puts(path);
	return rc;
}

static int do_logs(struct machine *m, struct args *a, int argc, char **argv, struct err *e)
{
	static const char *const files[] = {"qemu.log", "console.log"};

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		char path[PATH_MAX], b[4096];
		_cleanup_close_ int fd =
			open(machine_path(m, files[i], path), O_RDONLY | O_CLOEXEC);
		ssize_t n;

		while (fd >= 0 && (n = read(fd, b, sizeof(b))) > 0)
			if (write_full(1, b, (size_t)n) < 0)
				return -EPIPE;
	}
	return 0;
}

static int do_rm(struct machine *m, struct args *a, int argc, char **argv, struct err *e)
{
	int rc;

	a->force = true;
	rc = do_stop(m, a, 0, NULL, e);
	if (rc == 0)
		rc = tree_remove(m->dir);
	return rc < 0 && e->code == 0 ? err_set(e, -rc, "%s", m->dir) : rc;
}

static void print_status(struct machine *m, bool json)
{
	bool running = machine_is_running(m, true);
	struct err e;
	bool answers =
		running && machine_load(m) == 0 && machine_ask(m, MACHINE_PING, PING_MS, &e) == 0;
	const char *state = answers ? "ready" : running ? "starting" : "stopped";
	_cleanup_close_ int pidfd = -1;
	int pid = 0;

	machine_load(m);
	if (running)
		pidfd = machine_pidfd(m, &pid);
	if (json)
		printf("{\"name\":\"%s\",\"state\":\"%s\",\"port\":%" PRIu64
		       ",\"pid\":%d,\"cpus\":%" PRIu64 ",\"memory_bytes\":%" PRIu64
		       ",\"accel\":\"%s\",\"dir\":\"%s\"}\n",
			m->name, state, m->port, pid, m->cpus, m->memory_bytes, m->accel, m->dir);
	else
		printf("%-16s %-9s %-6" PRIu64 " %-8d %-5" PRIu64 " %6" PRIu64 " MiB  %s\n",
			m->name, state, m->port, pid, m->cpus, m->memory_bytes >> 20, m->accel);
}

/* One machine by name, or all there are. */
static int do_status(struct machine *m, struct args *a, int argc, char **argv, struct err *e)
{
	char root[PATH_MAX];
	struct dirent *d;
	DIR *it;

	if (!a->json)
		printf("%-16s %-9s %-6s %-8s %-5s %10s  %s\n", "NAME", "STATE", "PORT", "PID",
			"CPUS", "MEMORY", "ACCEL");
	if (argc < 0) { /* --name was given */
		print_status(m, a->json);
		return 0;
	}
	if (machine_root(root, sizeof(root), e) < 0)
		return -e->code;
	it = opendir(root);
	while (it && (d = readdir(it))) {
		struct machine one;
		struct err skip;

		if (d->d_name[0] == '.' || machine_open(&one, d->d_name, &skip) < 0)
			continue;
		print_status(&one, a->json);
		machine_close(&one);
	}
	if (it)
		closedir(it);
	return 0;
}

static const struct sub {
	const char *name;
	int (*fn)(struct machine *m, struct args *a, int argc, char **argv, struct err *e);
	const char *help;
} subs[] = {
	{"start", do_start, "start it if it does not run, and wait until it is ready"},
	{"stop", do_stop, "shut it down (--force: kill it)"},
	{"status", do_status, "list the machines and their states"},
	{"exec", do_exec,
		"run a command in it, with our standard streams; exit with its exit code"},
	{"shell", do_shell, "open a shell in it"},
	{"publish", do_publish, "make files visible in it, and print their path there"},
	{"logs", do_logs, "print the machine's console, and what QEMU said"},
	{"rm", do_rm, "kill it and remove it with its data"},
};

static int usage(FILE *to, const struct opt *o, size_t n)
{
	fprintf(to, "usage: mayfly machine COMMAND [OPTIONS] [-- ARGS]\n\n");
	for (size_t i = 0; i < ARRAY_LEN(subs); i++)
		fprintf(to, "  %-10s %s\n", subs[i].name, subs[i].help);
	if (to == stdout) {
		puts("");
		opt_help(stdout, o, n);
	}
	return to == stdout ? EXIT_OK : EXIT_USAGE;
}

static int check_opts(const struct args *a, struct err *e)
{
	if (a->o.port > 65535)
		return err_plain(e, EINVAL, "--port: there is no port %" PRIu64, a->o.port);
	if (a->o.cpus < 1 || a->o.cpus > 32)
		return err_plain(e, EINVAL, "--cpus: 1 to 32");
	if (a->o.memory_bytes && a->o.memory_bytes < MIB(512))
		return err_plain(e, EINVAL, "--memory: at least 512M");
	if (a->o.disk_bytes < GIB(1))
		return err_plain(e, EINVAL, "--disk: at least 1G");
	return 0;
}

int cmd_machine(int argc, char **argv)
{
	struct args a = {.name = "default",
		.o = {.port = MACHINE_API_PORT, .cpus = 1, .disk_bytes = GIB(64)}};
	const char *given = NULL;
	const struct opt opts[] = {
		{"name", 0, OPT_STR, &given, "NAME",
			"which machine (default: $MAYFLY_MACHINE, else \"default\")"},
		{"port", 'p', OPT_UINT, &a.o.port, "PORT",
			"start: the daemon's port on 127.0.0.1 (8080; 0: any free one)"},
		{"cpus", 0, OPT_UINT, &a.o.cpus, "N",
			"start: emulated CPUs (1; with more, guests may crash under emulation)"},
		{"memory", 'm', OPT_BYTES, &a.o.memory_bytes, "SIZE",
			"start: memory (half of the host's, at most 12G)"},
		{"disk", 0, OPT_BYTES, &a.o.disk_bytes, "SIZE",
			"first start: size of the sparse data disk (64G)"},
		{"idle-poll", 0, OPT_FLAG, &a.o.idle_poll, NULL,
			"start: never sleep when idle: halves latencies, keeps a core busy"},
		{"kernel", 0, OPT_STR, &a.o.kernel, "FILE",
			"start: boot this kernel, an uncompressed ELF file (the one of make "
			"kernel)"},
		{"append", 0, OPT_STR, &a.o.append, "WORDS",
			"start: more words for its kernel's command line"},
		{"force", 0, OPT_FLAG, &a.force, NULL, "stop: kill it at once"},
		{"tty", 't', OPT_FLAG, &a.tty, NULL, "exec: with a terminal"},
		{"no-stdin", 'n', OPT_FLAG, &a.no_stdin, NULL, "exec: stdin is empty"},
		{"cwd", 0, OPT_STR, &a.cwd, "DIR", "exec: working directory"},
		{"env", 'e', OPT_LIST, &a.env, "K=V", "exec: environment; may be repeated"},
		{"json", 0, OPT_FLAG, &a.json, NULL, "status: one JSON object a line"},
		{"help", 'h', OPT_FLAG, &a.help, NULL, "this text"},
	};
	const struct sub *sub = NULL;
	struct machine m;
	struct err e = {0};
	int rest, rc;

	if (argc < 2)
		return usage(stderr, opts, ARRAY_LEN(opts));
	for (size_t i = 0; i < ARRAY_LEN(subs); i++)
		if (strcmp(subs[i].name, argv[1]) == 0)
			sub = &subs[i];
	if (!sub)
		return usage(strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ? stdout
											  : stderr,
			opts, ARRAY_LEN(opts));
	if (opt_parse(opts, ARRAY_LEN(opts), argc - 1, argv + 1, &rest, &e) < 0 ||
		check_opts(&a, &e) < 0)
		return complain(EXIT_USAGE, &e);
	if (a.help)
		return usage(stdout, opts, ARRAY_LEN(opts));
	if (given)
		a.name = given;
	else if (getenv("MAYFLY_MACHINE"))
		a.name = getenv("MAYFLY_MACHINE");
	if (machine_open(&m, a.name, &e) < 0)
		return complain(EXIT_USAGE, &e);
	rest += 1;
	rc = sub->fn(&m, &a, sub->fn == do_status && given ? -1 : argc - rest, argv + rest, &e);
	machine_close(&m);
	if (rc >= 0)
		return rc;
	return complain(sub->fn == do_exec || sub->fn == do_shell ? EXIT_OURS : EXIT_FAILED, &e);
}
