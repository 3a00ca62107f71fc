/* SPDX-License-Identifier: Apache-2.0
 *
 * usage.c: what one command uses: the processes of its cgroup, or (where there is no cgroup2) of
 * its setsid() session. The loop's thread. Nothing is kept or sampled in the background. The files
 * are the kernel's; which processes there are, and their names, is the guest's doing.
 */
#include "agent/usage.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "agent/proc.h"
#include "agent/request.h"
#include "agent/text.h"

#define PIDS_MAX 4096u /* most that one request reads: the loop serves others, too */

struct group {
	uint32_t n;
	uint64_t cpu_ns, resident, read, written;
};

/* Field number i (from 3 on) of /proc/PID/stat: a name may hold blanks and brackets. */
static uint64_t stat_field(const char *text, int i)
{
	const char *p = strrchr(text, ')');

	for (; p && i >= 3; i--)
		p = strchr(p + 1, ' ');
	return p ? strtoull(p + 1, NULL, 10) : 0;
}

static uint64_t named(const char *text, const char *name)
{
	const char *p = text ? strstr(text, name) : NULL;

	return p ? strtoull(p + strlen(name), NULL, 10) : 0;
}

static void add_process(struct group *g, pid_t pid, pid_t session, bool with_cpu)
{
	uint64_t tick_ns = 1000000000u / (uint64_t)sysconf(_SC_CLK_TCK);
	_cleanup_free_ char *stat = NULL, *io = NULL;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	stat = text_load(path, 4096, NULL);
	/* it ended meanwhile, or is of another session */
	if (!stat || (session && (pid_t)stat_field(stat, 6) != session))
		return;
	snprintf(path, sizeof(path), "/proc/%d/io", pid);
	io = text_load(path, 4096, NULL);
	g->n++;
	g->resident += stat_field(stat, 24) * PAGE_BYTES;
	if (with_cpu)
		g->cpu_ns += (stat_field(stat, 14) + stat_field(stat, 15)) * tick_ns;
	g->read += named(io, "\nread_bytes: ");
	g->written += named(io, "\nwrite_bytes: ");
}

static void add_session(struct group *g, pid_t session)
{
	DIR *d = opendir("/proc");
	unsigned n = 0;

	for (struct dirent *e; d && n < PIDS_MAX && (e = readdir(d));) {
		if (e->d_name[0] < '1' || e->d_name[0] > '9')
			continue;
		add_process(g, (pid_t)strtol(e->d_name, NULL, 10), session, true);
		n++;
	}
	if (d)
		closedir(d);
}

static bool add_cgroup(struct agent *a, struct group *g, const struct cgroup *cg)
{
	_cleanup_close_ int procs = cgroup_open(a, cg, "cgroup.procs");
	_cleanup_close_ int cpu = cgroup_open(a, cg, "cpu.stat");
	char text[KIB(16)];
	ssize_t k;

	if (procs < 0)
		return false;
	k = cpu < 0 ? 0 : read(cpu, text, sizeof(text) - 1);
	text[MAX(k, 0)] = 0;
	g->cpu_ns = named(text, "usage_usec ") * 1000;
	/* each read gives at most a page, in whole lines */
	while (g->n < PIDS_MAX && (k = read(procs, text, sizeof(text) - 1)) > 0) {
		text[k] = 0;
		for (char *p = text, *end; (p = strtok_r(p, "\n", &end)); p = NULL)
			add_process(g, (pid_t)strtol(p, NULL, 10), 0, cpu < 0);
	}
	return true;
}

void req_usage(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	char name[PROC_ID_MAX + 1];
	struct group g = {0};
	struct proc *p;
	struct buf ok;

	if (!cur_str(b, name, sizeof(name)) || !cur_done(b)) {
		req_bad(a, c, id);
		return;
	}
	p = proc_find(a, name);
	if (!p || p->exited || !p->pid) {
		conn_error(c, id, p ? ESRCH : ENOENT, AGENT_STEP_NONE,
			p ? "process %s does not run" : "no process %s", name);
		return;
	}
	if (!add_cgroup(a, &g, &p->cgroup))
		add_session(&g, p->pid);
	buf_init(&ok, 64);
	buf_u32(&ok, g.n);
	buf_u64(&ok, g.cpu_ns);
	buf_u64(&ok, g.resident);
	buf_u64(&ok, g.read);
	buf_u64(&ok, g.written);
	conn_ok(c, id, &ok);
	buf_fini(&ok);
}
