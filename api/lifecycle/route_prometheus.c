/* SPDX-License-Identifier: Apache-2.0
 *
 * route_prometheus.c: GET /metrics in Prometheus' text format. mayflyd's loop.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "api/sandbox/image_template.h"
#include "api/core/budgets.h"
#include "api/core/database.h"
#include "api/core/io_pool.h"
#include "api/core/metrics.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/network/network.h"
#include "api/sandbox/sandbox.h"

static void put_hist(struct buf *b, const char *name, const char *label, const struct hist *h)
{
	uint64_t n = 0;
	const char *sep = *label ? "," : "";

	for (int i = 0; i <= HIST_BUCKETS; i++) {
		n += h->bucket[i];
		if (i < HIST_BUCKETS)
			buf_printf(b, "%s_bucket{%s%sle=\"%g\"} %llu\n", name, label, sep,
				(double)(HIST_BUCKET0_NS << i) / 1e9, (unsigned long long)n);
		else
			buf_printf(b, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, label, sep,
				(unsigned long long)n);
	}
	buf_printf(b, *label ? "%s_sum{%s} %.9f\n" : "%s_sum%s %.9f\n", name, label,
		(double)h->sum_ns / 1e9);
	buf_printf(b, *label ? "%s_count{%s} %llu\n" : "%s_count%s %llu\n", name, label,
		(unsigned long long)h->count);
}

static void put_handlers(struct buf *b, const struct metrics *m)
{
	buf_printf(b, "# TYPE mayfly_loop_handler_seconds summary\n");
	for (const struct handler_time *t = m->handlers; t < m->handlers + HANDLERS_MAX; t++)
		if (t->name)
			buf_printf(b,
				"mayfly_loop_handler_seconds_sum{handler=\"%s\"} %.9f\n"
				"mayfly_loop_handler_seconds_count{handler=\"%s\"} %llu\n",
				t->name, (double)t->sum_ns / 1e9, t->name,
				(unsigned long long)t->count);
	buf_printf(b, "# TYPE mayfly_loop_handler_longest_seconds gauge\n");
	for (const struct handler_time *t = m->handlers; t < m->handlers + HANDLERS_MAX; t++)
		if (t->name)
			buf_printf(b, "mayfly_loop_handler_longest_seconds{handler=\"%s\"} %.9f\n",
				t->name, (double)t->max_ns / 1e9);
}

/* Of the daemon, without the sandboxes. */
static uint64_t resident_bytes(void)
{
	_cleanup_close_ int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	unsigned long long pages = 0;
	char text[100] = "";

	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0 ||
		sscanf(text, "%*u %llu", &pages) != 1)
		return 0;
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* At least 1 if a table could not be read: then nobody knows how many records are missing. */
static unsigned int quarantined_count(const struct daemon *d)
{
	unsigned int n = 0;

	for (const struct quarantined *q = database_quarantine(d->database); q; q = q->next)
		n++;
	return n || database_complete(d->database) ? n : 1;
}

struct held_metric {
	const char *name, *type;
	size_t at; /* in struct account */
};

static void put_account(struct buf *b, const struct held_metric *m, const char *what,
	const char *owner, const struct account *a)
{
	uint64_t v;

	memcpy(&v, (const char *)a + m->at, sizeof(v));
	buf_printf(b, "mayfly_%s{what=\"%s\",owner=\"%s\"} %llu\n", m->name, what, owner,
		(unsigned long long)v);
}

/* What is held for whom. An owner's name has no character that would need an escape. */
static void put_budgets(struct buf *b, const struct budgets *bs)
{
	static const struct held_metric metrics[] = {
		{"held", "gauge", offsetof(struct account, used)},
		{"held_limit", "gauge", offsetof(struct account, limit)},
		{"held_refused_total", "counter", offsetof(struct account, refused)},
	};

	for (size_t i = 0; i < ARRAY_LEN(metrics); i++) {
		const struct held_metric *m = &metrics[i];

		buf_printf(b, "# TYPE mayfly_%s %s\n", m->name, m->type);
		put_account(b, m, "bytes", "", &bs->memory);
		put_account(b, m, "tenants_bytes", "", &bs->tenants_memory);
		put_account(b, m, "tenants_connections", "", &bs->tenants_connections);
		for (const struct owner_budget *o = bs->owners; o; o = o->next) {
			put_account(b, m, "bytes", o->owner, &o->memory);
			put_account(b, m, "record_bytes", o->owner, &o->records);
			put_account(b, m, "guest_bytes", o->owner, &o->guests);
			put_account(b, m, "connections", o->owner, &o->connections);
			put_account(b, m, "ended_sandboxes", o->owner, &o->ended);
		}
	}
}

struct counter {
	const char *name;
	uint64_t v;
};

/* In the order of enum net_counter. */
static const char *const network_names[NET_C_COUNT] = {
	[NET_C_TCP_OPENED] = "tcp_opened",
	[NET_C_UDP_OPENED] = "udp_opened",
	[NET_C_ICMP_OPENED] = "icmp_opened",
	[NET_C_OPEN] = "open",
	[NET_C_BYTES_OUT] = "bytes_out",
	[NET_C_BYTES_IN] = "bytes_in",
	[NET_C_QUERIES] = "queries",
	[NET_C_QUERIES_DENIED] = "queries_denied",
	[NET_C_QUERIES_FAILED] = "queries_failed",
	[NET_C_REBINDING] = "rebinding",
	[NET_C_DENIED] = "denied",
	[NET_C_LIMITED] = "limited",
	[NET_C_SHUT] = "shut",
	[NET_C_REFUSED] = "refused",
};

/* All sandboxes together. c NULL: there is no broker, or it does not answer; then these lines are missing. */
static void put_network(struct buf *b, struct cur *c)
{
	uint32_t n = c ? cur_u32(c) : 0;

	for (uint32_t i = 0; i < MIN(n, NET_C_COUNT); i++) {
		uint64_t v = cur_u64(c);
		bool gauge = i == NET_C_OPEN;

		if (c->bad)
			return;
		buf_printf(b, "# TYPE mayfly_network_%s%s %s\nmayfly_network_%s%s %llu\n",
			network_names[i], gauge ? "" : "_total", gauge ? "gauge" : "counter",
			network_names[i], gauge ? "" : "_total", (unsigned long long)v);
	}
}

static void prometheus_reply(void *arg, struct cur *network)
{
	struct http_req *r = arg;
	const struct daemon *d = r->app;
	const struct metrics *m = &d->metrics;
	const struct http_stats *hs = http_stats(d->http);
	unsigned int by_state[SB_STATES] = {0};
	const struct counter c[] = {{"sandboxes_created", m->created},
		{"sandboxes_restored", m->restored}, {"sandboxes_booted", m->booted},
		{"sandbox_create_failures", m->create_failed}, {"sandboxes_deleted", m->deleted},
		{"sandboxes_expired", m->expired}, {"idle_pauses", m->idle_pauses},
		{"idle_wakes", m->idle_wakes}, {"sandboxes_ended", m->ended},
		{"sandboxes_refused_full", m->refused_full},
		{"memory_given_back_bytes", m->given_back},
		{"sandboxes_paused_for_disk", m->disk_pauses}, {"http_requests", hs->requests},
		{"http_connections", hs->connections}, {"http_bytes_in", hs->bytes_in},
		{"http_bytes_out", hs->bytes_out}, {"http_clients_gone", hs->gone},
		{"http_refused", hs->refused}, {"http_clients_cut_off", hs->cut_off},
		{"sdk_create_events", m->sdk_events}, {"sdk_create_failures", m->sdk_failures},
		{"execs", m->execs}, {"execs_failed", m->execs_failed},
		{"runs_ok", m->runs[RUN_OK]}, {"runs_retryable_error", m->runs[RUN_RETRYABLE]},
		{"runs_invalid_request", m->runs[RUN_INVALID_REQUEST]},
		{"runs_invalid_output", m->runs[RUN_INVALID_OUTPUT]}};
	uint64_t given = 0;
	struct buf b;

	buf_init(&b, 1 << 20);
	for (size_t i = 0; i < ARRAY_LEN(c); i++)
		buf_printf(&b, "# TYPE mayfly_%s_total counter\nmayfly_%s_total %llu\n", c[i].name,
			c[i].name, (unsigned long long)c[i].v);
	for (const struct sandbox *sb = d->sandboxes; sb; sb = sb->next)
		by_state[sb->state]++;
	given = MIB(index_load(d->index)->mem_mib);
	buf_printf(&b,
		"# TYPE mayfly_sandbox_memory_bytes gauge\nmayfly_sandbox_memory_bytes %llu\n",
		(unsigned long long)given);
	buf_printf(&b, "# TYPE mayfly_daemon_memory_bytes gauge\nmayfly_daemon_memory_bytes %llu\n",
		(unsigned long long)resident_bytes());
	buf_printf(&b, "# TYPE mayfly_sandboxes gauge\n");
	for (int s = 0; s < SB_STATES; s++)
		buf_printf(
			&b, "mayfly_sandboxes{state=\"%s\"} %u\n", sb_state_names[s], by_state[s]);
	buf_printf(&b, "# TYPE mayfly_blank_vms gauge\nmayfly_blank_vms %u\n",
		vms_blank_count(d->vms));
	buf_printf(&b, "# TYPE mayfly_vms gauge\nmayfly_vms %u\n", vms_count(d->vms));
	buf_printf(&b, "# TYPE mayfly_templates gauge\nmayfly_templates %u\n", templates_count(d));
	buf_printf(&b,
		"# TYPE mayfly_http_open_connections gauge\nmayfly_http_open_connections %llu\n",
		(unsigned long long)hs->open);
	buf_printf(&b, "# TYPE mayfly_http_responses_total counter\n");
	for (int i = 1; i < 6; i++)
		buf_printf(&b, "mayfly_http_responses_total{class=\"%dxx\"} %llu\n", i,
			(unsigned long long)m->http_by_class[i]);
	buf_printf(&b, "# TYPE mayfly_phase_seconds histogram\n");
	for (int p = 0; p < PH_COUNT; p++) {
		char label[48];

		snprintf(label, sizeof(label), "phase=\"%s\"", phase_names[p]);
		put_hist(&b, "mayfly_phase_seconds", label, &m->phase[p]);
	}
	buf_printf(&b, "# TYPE mayfly_http_request_seconds histogram\n");
	put_hist(&b, "mayfly_http_request_seconds", "", &m->http);
	buf_printf(&b, "# TYPE mayfly_sdk_create_seconds histogram\n");
	put_hist(&b, "mayfly_sdk_create_seconds", "", &m->sdk_create);
	buf_printf(&b, "# TYPE mayfly_loop_seconds histogram\n");
	put_hist(&b, "mayfly_loop_seconds", "", &m->loop);
	put_handlers(&b, m);
	buf_printf(&b, "# TYPE mayfly_quarantined_records gauge\n");
	buf_printf(&b, "mayfly_quarantined_records %u\n", quarantined_count(d));
	put_budgets(&b, d->budgets);
	buf_printf(&b, "# TYPE mayfly_io_jobs gauge\nmayfly_io_jobs %u\n", io_pool_busy(d->io));
	put_network(&b, network);
	http_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", b.p, b.len);
	buf_fini(&b);
}

static void prometheus_forget(struct http_req *r)
{
	network_forget(((struct daemon *)r->app)->networks, r);
}

void route_prometheus(struct http_req *r)
{
	const struct daemon *d = r->app;

	http_on_free(r, prometheus_forget);
	if (networks_counters(d->networks, prometheus_reply, r) < 0)
		prometheus_reply(r, NULL);
}
