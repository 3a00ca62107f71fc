/* SPDX-License-Identifier: Apache-2.0
 *
 * idle_probe.c: one GET to a port of the guest, which says whether the sandbox is active (see idle.h). mayflyd's loop. What comes back is hostile: at
 * most PROBE_BODY_MAX bytes of it are kept.
 */
#include "api/sandbox/idle.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "api/links/agent_client.h"
#include "api/sandbox/sandbox.h"
#include "lib/http1.h"
#include "lib/json.h"

#define SEC             1000000000ull
#define PROBE_BODY_MAX  4096u
#define PROBE_TIMEOUT_S 2u

struct idle_probe {
	struct agent_dial *dial;
	struct timer *timer;
	struct http1_response answer;
	struct buf body;
	char request[768];
	idle_probe_fn fn;
	void *arg;
};

static void probe_free(struct idle_probe *p)
{
	if (p->dial)
		agent_dial_close(p->dial);
	timer_remove(p->timer);
	http1_fini(&p->answer);
	buf_fini(&p->body);
	free(p);
}

bool idle_probe_read(const void *body, size_t n)
{
	_cleanup_json_ cJSON *j = NULL;

	return json_read(&j, body, n, JSON_OBJECT, NULL) == 0 &&
	       cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(j, "active"));
}

static void probe_end(struct idle_probe *p, bool whole)
{
	bool active = whole && p->answer.status == 200 && !p->body.bad &&
		      idle_probe_read(p->body.p, p->body.len);
	idle_probe_fn fn = p->fn;
	void *arg = p->arg;

	probe_free(p);
	fn(arg, active);
}

static void probe_opened(void *arg)
{
	struct idle_probe *p = arg;

	if (!agent_dial_send(p->dial, p->request, strlen(p->request)))
		probe_end(p, false);
}

static void probe_bytes(void *arg, const uint8_t *bytes, size_t n)
{
	struct idle_probe *p = arg;
	const uint8_t *data;
	size_t len;
	bool closed = n == 0;
	enum http1_ev ev = H1_MORE;

	if (closed) {
		probe_end(p, http1_closed(&p->answer));
		return;
	}
	while (n || ev == H1_DATA || ev == H1_HEAD) {
		ev = http1_next(&p->answer, &bytes, &n, &data, &len);
		if (ev == H1_DATA)
			buf_put(&p->body, data, len);
		if (ev == H1_DONE || ev == H1_BAD || p->body.bad) {
			probe_end(p, ev == H1_DONE);
			return;
		}
		if (ev == H1_MORE)
			return;
	}
}

static void probe_closed(void *arg, const struct agent_reply *r)
{
	struct idle_probe *p = arg;

	p->dial = NULL;
	probe_end(p, r->err == 0 && http1_closed(&p->answer));
}

static void probe_late(void *arg)
{
	probe_end(arg, false);
}

static const struct agent_dial_ops probe_ops = {
	.opened = probe_opened, .bytes = probe_bytes, .closed = probe_closed};

struct idle_probe *idle_probe_start(
	struct sandbox *sb, const cJSON *conf, idle_probe_fn fn, void *arg)
{
	uint64_t port = 0, limit_s = PROBE_TIMEOUT_S;
	const char *path = json_str(conf, "path");
	struct idle_probe *p;

	if (!path || !json_whole(json_field(conf, "port"), 65535, &port) || !sb->agent)
		return NULL;
	json_whole(json_field(conf, "timeoutSeconds"), 10, &limit_s);
	p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->fn = fn;
	p->arg = arg;
	buf_init(&p->body, PROBE_BODY_MAX);
	http1_init(&p->answer, false);
	snprintf(p->request, sizeof(p->request),
		"GET %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nConnection: close\r\nAccept: "
		"application/json\r\n\r\n",
		path, (unsigned int)port);
	p->timer = loop_timer(sb->d->loop, probe_late, p);
	if (p->timer)
		p->dial = agent_dial_tcp(sb->agent, (uint16_t)port, &probe_ops, p);
	if (!p->dial) {
		probe_free(p);
		return NULL;
	}
	timer_after(p->timer, limit_s * SEC);
	return p;
}

void idle_probe_cancel(struct idle_probe *p)
{
	if (p)
		probe_free(p);
}
