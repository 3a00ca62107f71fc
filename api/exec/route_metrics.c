/* SPDX-License-Identifier: Apache-2.0
 *
 * route_metrics.c: memory and CPU use of a guest, from its counters. The CPU's share is of the time
 * from the previous sample, or from the guest's boot if there is none. mayflyd. The guest is hostile:
 * its numbers are brought into their ranges.
 */
#include "api/exec/execd_int.h"

#include <string.h>

#include "api/core/daemon.h"

#define WATCH_NS 2000000000ull
/* A sample younger than this is not replaced: a share over so short a time means nothing. */
#define SAMPLE_NS 500000000ull

/* agentc_data(): remembered per sandbox */
struct metrics_last {
	uint64_t busy_ns, total_ns, taken_ns;
	double pct;
};

static double cpu_share(struct agentc *a, uint64_t busy, uint64_t total)
{
	struct metrics_last *m = agentc_data(a, AGENTC_DATA_METRICS);
	double pct;

	if (!m) {
		m = calloc(1, sizeof(*m));
		if (!m)
			return 0;
		agentc_set_data(a, AGENTC_DATA_METRICS, m, free);
	}
	if (m->taken_ns && mono_ns() - m->taken_ns < SAMPLE_NS)
		return m->pct;
	/* counters that ran backwards: a restored or a lying guest */
	if (busy < m->busy_ns || total < m->total_ns)
		m->busy_ns = m->total_ns = 0;
	pct = total > m->total_ns
		      ? 100.0 * (double)(busy - m->busy_ns) / (double)(total - m->total_ns)
		      : m->pct;
	*m = (struct metrics_last){busy, total, mono_ns(), pct < 0 ? 0 : pct > 100 ? 100 : pct};
	return m->pct;
}

/* False: no valid answer. */
static bool put_metrics(struct http_req *r, const struct agent_reply *rep, struct buf *b)
{
	struct agentc *a = sandbox_agentc(r->sandbox);
	struct cur c = rep->body;
	uint32_t cpus = cur_u32(&c);
	uint64_t busy = cur_u64(&c), total = cur_u64(&c), mem = cur_u64(&c), used = cur_u64(&c);
	double pct;

	if (rep->err || c.bad || !a)
		return false;
	pct = cpu_share(a, busy, total);
	if (cpus < 1 || cpus > 4096)
		cpus = 1;
	if (used > mem)
		used = mem;
	buf_printf(b,
		"{\"cpu_count\":%u,\"cpu_used_pct\":%.2f,\"mem_total_mib\":%.2f,\"mem_used_mib\":%."
		"2f,\"timestamp\":%llu}",
		cpus, pct, (double)mem / 1048576.0, (double)used / 1048576.0,
		(unsigned long long)sse_now_ms());
	return true;
}

static void got_metrics(struct http_req *r, void *data, const struct agent_reply *rep)
{
	struct buf b;

	buf_init(&b, 1024);
	if (put_metrics(r, rep, &b)) {
		execd_reply_buf(r, 200, "application/json", &b);
		return;
	}
	buf_fini(&b);
	execd_fail(r, rep->err ? rep : &(struct agent_reply){.err = EPROTO, .text = ""});
}

void route_metrics(struct http_req *r)
{
	execd_ask(r, AGENT_METRICS, NULL, 10000, got_metrics, NULL);
}

/* ---- watch: one object and one \n every two seconds, until the client leaves or the sandbox ends
 */

struct metrics_watch {
	struct http_req *r;
	struct agent_call *call;
	struct timer *next;
	bool streaming, done;
};

static void watch_answer(void *arg, const struct agent_reply *rep)
{
	struct metrics_watch *w = arg;
	struct buf b;

	w->call = NULL;
	buf_init(&b, 1024);
	if (put_metrics(w->r, rep, &b)) {
		if (!w->streaming)
			http_stream_begin(w->r, 200, "text/event-stream", -1);
		w->streaming = true;
		buf_put(&b, "\n", 1);
		if (http_stream_room(w->r) > b.len)
			http_stream_write(w->r, b.p, b.len);
		timer_after(w->next, WATCH_NS);
	} else if (w->streaming) {
		w->done = true;
		http_stream_end(w->r);
	} else {
		w->done = true;
		execd_fail(w->r, rep->err ? rep : &(struct agent_reply){.err = EPROTO, .text = ""});
	}
	buf_fini(&b);
}

static void watch_next(void *arg)
{
	struct metrics_watch *w = arg;
	const struct daemon *d = w->r->app;
	/* a daemon that ends waits for its answers, and this one would never end */
	struct agentc *a = d && d->ending ? NULL : sandbox_agentc(w->r->sandbox);

	w->call = a ? agentc_call(a, AGENT_METRICS, NULL, 10000, watch_answer, w) : NULL;
	if (w->call)
		return;
	w->done = true;
	if (w->streaming)
		http_stream_end(w->r);
	else
		execd_error(w->r, 503, "SERVICE_UNAVAILABLE", "the sandbox does not run");
}

static void watch_gone(struct http_req *r)
{
	struct metrics_watch *w = r->user;

	w->done = true;
	agent_call_cancel(take_ptr(w->call));
	timer_set(w->next, 0);
	http_abort(r);
}

static void watch_free(struct http_req *r)
{
	struct metrics_watch *w = r->user;

	agent_call_cancel(w->call);
	timer_remove(w->next);
}

void route_metrics_watch(struct http_req *r)
{
	struct agentc *a = sandbox_agentc(r->sandbox);
	struct metrics_watch *w = http_alloc(r, sizeof(*w));

	if (w)
		w->next = a ? loop_timer(agentc_loop(a), watch_next, w) : NULL;
	if (!w || !w->next) {
		execd_error(r, 503, "SERVICE_UNAVAILABLE", "the sandbox does not run");
		return;
	}
	w->r = r;
	r->user = w;
	http_on_gone(r, watch_gone);
	http_on_free(r, watch_free);
	watch_next(w);
}
