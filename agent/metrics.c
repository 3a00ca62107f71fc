/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics.c: one answer from a few small reads of /proc. Nothing is kept or sampled in the
 * background: the host computes differences. The loop's thread. It touches the root only by statfs,
 * which a frozen file system answers.
 */
#include "agent/metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "agent/jobs.h"
#include "agent/proc.h"
#include "agent/procio.h"
#include "agent/request.h"
#include "agent/text.h"

struct usage {
	uint32_t cpus;
	uint64_t busy_ns, total_ns, mem_total, mem_used, disk_total, disk_used, net_rx, net_tx;
};

static void read_cpu(struct usage *u)
{
	_cleanup_free_ char *t = text_load("/proc/stat", KIB(256), NULL);
	unsigned long long v[8] = {0};
	uint64_t total = 0, tick_ns = 1000000000u / (uint64_t)sysconf(_SC_CLK_TCK);

	if (!t)
		return;
	sscanf(t, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4],
		&v[5], &v[6], &v[7]);
	for (size_t i = 0; i < ARRAY_LEN(v); i++)
		total += v[i];
	u->total_ns = total * tick_ns;
	u->busy_ns = (total - v[3] - v[4]) * tick_ns; /* neither idle nor waiting for a disk */
	for (const char *p = strstr(t, "\ncpu"); p; p = strstr(p + 1, "\ncpu"))
		u->cpus++;
}

static uint64_t mem_field(const char *t, const char *name)
{
	const char *p = strstr(t, name);
	unsigned long long kib = 0;

	if (p)
		sscanf(p + strlen(name), " %llu", &kib);
	return kib * 1024;
}

static void read_mem(struct usage *u)
{
	_cleanup_free_ char *t = text_load("/proc/meminfo", KIB(64), NULL);
	uint64_t avail;

	if (!t)
		return;
	u->mem_total = mem_field(t, "MemTotal:");
	avail = mem_field(t, "MemAvailable:");
	u->mem_used = avail < u->mem_total ? u->mem_total - avail : 0;
}

static void read_disk(struct usage *u)
{
	struct statvfs s;

	if (statvfs("/", &s) < 0)
		return;
	u->disk_total = (uint64_t)s.f_blocks * s.f_frsize;
	u->disk_used = (uint64_t)(s.f_blocks - s.f_bfree) * s.f_frsize;
}

static void read_net(struct usage *u)
{
	_cleanup_free_ char *t = text_load("/proc/net/dev", KIB(64), NULL);

	for (char *p = t ? strchr(t, '\n') : NULL; p; p = strchr(p + 1, '\n')) {
		unsigned long long rx, tx;
		char name[20];

		if (sscanf(p + 1, " %19[^: ]: %llu %*u %*u %*u %*u %*u %*u %*u %llu", name, &rx,
			    &tx) != 3 ||
			!strcmp(name, "lo"))
			continue;
		u->net_rx += rx;
		u->net_tx += tx;
	}
}

void req_metrics(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct usage u = {0};
	struct buf ok;

	if (!cur_done(b)) {
		req_bad(a, c, id);
		return;
	}
	read_cpu(&u);
	read_mem(&u);
	if (a->memory_limit && a->memory_limit < u.mem_total) {
		u.mem_total = a->memory_limit;
		u.mem_used = MIN(u.mem_used, u.mem_total);
	}
	read_disk(&u);
	read_net(&u);
	buf_init(&ok, 256);
	buf_u32(&ok, u.cpus);
	buf_u64(&ok, u.busy_ns);
	buf_u64(&ok, u.total_ns);
	buf_u64(&ok, u.mem_total);
	buf_u64(&ok, u.mem_used);
	buf_u64(&ok, u.disk_total);
	buf_u64(&ok, u.disk_used);
	buf_u64(&ok, u.net_rx);
	buf_u64(&ok, u.net_tx);
	buf_u64(&ok, wall_ns());
	conn_ok(c, id, &ok);
	buf_fini(&ok);
}

static uint64_t count_entries(const char *path)
{
	DIR *d = opendir(path);
	uint64_t n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n > 2 ? n - 2 : 0;
}

static uint64_t resident_bytes(void)
{
	_cleanup_free_ char *t = text_load("/proc/self/statm", 256, NULL);
	unsigned long long size, resident = 0;

	if (t)
		sscanf(t, "%llu %llu", &size, &resident);
	return resident * PAGE_BYTES;
}

void req_self(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	uint64_t running = 0, kept = 0;
	struct buf ok;

	if (!cur_done(b)) {
		req_bad(a, c, id);
		return;
	}
	for (const struct proc *p = a->procs; p; p = p->next) {
		running += p->pid > 0;
		kept += procio_kept(p);
	}
	const struct {
		const char *name;
		uint64_t value;
	} rows[] = {
		{"conns", a->n.conns},
		{"conns_total", a->n.conns_total},
		{"conns_refused", a->n.conns_refused},
		{"frames_in", a->n.frames_in},
		{"frames_bad", a->n.frames_bad},
		{"bytes_in", a->n.bytes_in},
		{"bytes_out", a->n.bytes_out},
		{"procs", a->nprocs},
		{"procs_running", running},
		{"output_kept_bytes", kept},
		{"execs_total", a->n.execs_total},
		{"reaped_total", a->n.reaped_total},
		{"orphans_reaped", a->n.orphans_reaped},
		{"sinks", a->n.sinks},
		{"cgroups", a->n.cgroups},
		{"session_stores", a->n.stores},
		{"sessions_ahead", a->spare_iso != NULL},
		{"sessions_taken_ahead", a->n.ahead},
		{"jobs_total", a->n.jobs_total},
		{"jobs_running", jobs_running(a)},
		{"dials", a->n.dials},
		{"descriptors", count_entries("/proc/self/fd")},
		{"threads", count_entries("/proc/self/task")},
		{"resident_bytes", resident_bytes()},
		{"frozen", a->frozen},
	};

	buf_init(&ok, 4096);
	buf_u32(&ok, ARRAY_LEN(rows));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		buf_str(&ok, rows[i].name);
		buf_u64(&ok, rows[i].value);
	}
	conn_ok(c, id, &ok);
	buf_fini(&ok);
}
