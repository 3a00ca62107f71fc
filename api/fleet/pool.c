/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.c: see pool.h. mayflyd's loop.
 *
 * A machine that waits is a sandbox that is `internal`: in no list, and deleted by the next daemon, which fills its pools again. One machine of a
 * pool is made at a time, and only when no create waits for its turn. Machines that wait count for admission like sandboxes.
 *
 * Changes by operators are made one after the other. Each begins with the result of the one before it. The loop does not wait for the record: a
 * pool changes, and the client is answered, when the commit has ended.
 */
#include "api/fleet/pool.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "api/core/database.h"
#include "api/sandbox/admission.h"
#include "api/sandbox/create_queue.h"
#include "api/sandbox/launch.h"
#include "lib/json.h"
#include "lib/log.h"

#define SEC           1000000000ull
#define RETRY_S       5u    /* after a machine could not be made */
#define WAITING_MAX   1000u /* of one pool */
#define POOL_NAME_MAX 254u
#define ADAPT_MAX_S   3600u
#define TAKES_MAX     WAITING_MAX /* remembered: no pool wants more */

struct pools {
	struct daemon *d;
	pool_spec_fn parse;
	struct pool *first;
	struct timer *retry, *adapt;
	bool filling;                /* a look at all pools is due */
	struct pool_change *changes; /* the first one is being written */
};

enum pool_change_kind { POOL_CHANGE_CREATE, POOL_CHANGE_RESIZE, POOL_CHANGE_DELETE };

struct pool_change {
	struct pool_change *next;
	struct pools *all;
	enum pool_change_kind kind;
	char name[POOL_NAME_MAX];
	struct pool_capacity cap;
	struct cJSON *request;
	struct pool *pool; /* set when its turn comes. A new pool is in no list yet */
	pool_change_fn done;
	void *arg;
};

struct pool {
	struct pool *next;
	struct pools *all;
	char name[POOL_NAME_MAX];
	struct pool_capacity cap;
	struct cJSON *request;
	int64_t created_ns;
	unsigned int revision;
	struct sandbox *making;               /* with a reference */
	struct sandbox *waiting[WAITING_MAX]; /* with references, the oldest first */
	unsigned int nwaiting;
	/* of an adaptive pool: when machines were asked for, by mono_ns(); a ring, the oldest at takes_at */
	uint64_t takes[TAKES_MAX];
	unsigned int takes_at, ntakes;
};

static void pools_fill(void *arg);

static void pools_fill_soon(struct pools *all)
{
	if (!all->filling && loop_defer(all->d->loop, pools_fill, all) == 0)
		all->filling = true;
}

/* Sandboxes of this pool that a client has. */
static unsigned int pool_allocated(const struct pool *p)
{
	unsigned int n = 0;

	for (const struct sandbox *sb = p->all->d->sandboxes; sb; sb = sb->next)
		n += sb->spec.pool && !sb->internal && !strcmp(sb->spec.pool, p->name) &&
		     sb->phase != PHASE_FAILED && sb->phase != PHASE_TERMINATED &&
		     sb->phase != PHASE_DELETED;
	return n;
}

static uint64_t pool_total(const struct pool *p)
{
	return pool_allocated(p) + p->nwaiting + (p->making != NULL);
}

/* ---- how many shall wait */

static void take_note(struct pool *p)
{
	if (!p->cap.adapt_s)
		return;
	p->takes[(p->takes_at + p->ntakes) % TAKES_MAX] = mono_ns();
	if (p->ntakes < TAKES_MAX)
		p->ntakes++;
	else
		p->takes_at = (p->takes_at + 1) % TAKES_MAX;
}

/* Drops the takes that are older than adapt_s. */
static void takes_forget(struct pool *p)
{
	uint64_t now = mono_ns(), back = p->cap.adapt_s * SEC;

	while (p->ntakes && p->takes[p->takes_at] + back <= now) {
		p->takes_at = (p->takes_at + 1) % TAKES_MAX;
		p->ntakes--;
	}
}

/* How many machines shall wait. */
static uint64_t pool_target(const struct pool *p)
{
	return MIN(MAX(p->cap.buffer_min, (uint64_t)p->ntakes), p->cap.buffer_max);
}

static bool pool_wants_more(const struct pool *p)
{
	uint64_t have = p->nwaiting + (p->making != NULL), total = pool_total(p);

	return total < p->cap.pool_max && have < WAITING_MAX &&
	       (have < pool_target(p) || (total < p->cap.pool_min && have < p->cap.buffer_max));
}

static bool pool_has_too_many(const struct pool *p)
{
	uint64_t total = pool_total(p);

	return p->nwaiting > p->cap.buffer_max || (p->nwaiting && total > p->cap.pool_max) ||
	       (p->cap.adapt_s && p->nwaiting > pool_target(p) && total > p->cap.pool_min);
}

/* ---- one machine */

static void waiting_remove(struct pool *p, unsigned int i)
{
	memmove(&p->waiting[i], &p->waiting[i + 1], (p->nwaiting - i - 1) * sizeof(p->waiting[0]));
	p->nwaiting--;
}

static void machine_lost(struct pool *p, struct sandbox *sb, const struct refusal *x)
{
	log_warn("pool %s: a machine is lost: %s", p->name, x->msg);
	for (unsigned int i = 0; i < p->nwaiting; i++)
		if (p->waiting[i] == sb)
			waiting_remove(p, i--);
	if (p->making == sb)
		p->making = NULL;
	sandbox_unref(sb);
	/* the next one may end for the same reason: wait first */
	timer_after(p->all->retry, RETRY_S * SEC);
}

static void machine_known(void *arg, struct sandbox *sb, const struct refusal *x)
{
	struct pool *p = arg;

	if (x) {
		machine_lost(p, sb, x);
		return;
	}
	p->making = NULL;
	p->waiting[p->nwaiting++] = sb;
	/* called again when the machine ends */
	sb->created = machine_known;
	sb->created_arg = p;
	pools_fill_soon(p->all);
}

static struct sandbox *machine_new(struct pool *p, struct refusal *x)
{
	struct daemon *d = p->all->d;
	struct sandbox *sb;
	char id[37];

	uuid_make(id);
	sb = sandbox_new(d, id);
	if (!sb) {
		refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return NULL;
	}
	sb->internal = sb->hold = true;
	if (p->all->parse(&sb->spec, p->request, &d->cfg, x) == 0) {
		sb->spec.pool = strdup(p->name);
		sb->cls = size_class_of(sb->spec.memory_bytes, sb->spec.vcpus ? sb->spec.vcpus : 1);
		sandbox_weigh(sb);
		if (sb->spec.pool && admission_check(sb, x) == 0)
			return sb;
	}
	sandbox_delete(sb, "not made");
	return NULL;
}

static void machine_make(struct pool *p)
{
	struct refusal x = {0};
	struct sandbox *sb = machine_new(p, &x);

	if (!sb) {
		log_limited(LOG_WARN, "pool %s: no machine is made: %s", p->name, x.msg);
		timer_after(p->all->retry, RETRY_S * SEC);
		return;
	}
	sandbox_ref(sb);
	p->making = sb;
	sb->created = machine_known;
	sb->created_arg = p;
	launch_create(sb);
}

static void machine_end(struct pool *p, unsigned int i, const char *why)
{
	struct sandbox *sb = p->waiting[i];

	waiting_remove(p, i);
	sb->created = NULL;
	sandbox_delete(sb, why);
	sandbox_unref(sb);
}

/* ---- all of them */

static void pool_fill(struct pool *p)
{
	while (pool_has_too_many(p))
		machine_end(p, p->nwaiting - 1, "its pool became smaller");
	/* only when no create waits for its turn */
	if (!p->making && !p->all->d->turns->first && pool_wants_more(p))
		machine_make(p);
}

/* Sets the timer for the moment at which a pool wants fewer machines. */
static void pools_adapt(struct pools *all)
{
	uint64_t next = 0;

	for (struct pool *p = all->first; p; p = p->next) {
		takes_forget(p);
		if (p->ntakes) {
			uint64_t at = p->takes[p->takes_at] + p->cap.adapt_s * SEC;

			next = next ? MIN(next, at) : at;
		}
	}
	timer_set(all->adapt, next);
}

static void pools_fill(void *arg)
{
	struct pools *all = arg;

	all->filling = false;
	pools_adapt(all);
	for (struct pool *p = all->first; p && !all->d->ending; p = p->next)
		pool_fill(p);
}

static void pools_look_again(struct daemon *d)
{
	if (d->pools->first)
		pools_fill_soon(d->pools);
}

struct pools *pools_create(struct daemon *d, pool_spec_fn parse)
{
	struct pools *all = calloc(1, sizeof(*all));

	if (!all)
		return NULL;
	*all = (struct pools){.d = d, .parse = parse};
	all->retry = loop_timer(d->loop, pools_fill, all);
	all->adapt = loop_timer(d->loop, pools_fill, all);
	d->capacity_changed = pools_look_again;
	return all;
}

struct pool *pool_find(const struct daemon *d, const char *name)
{
	struct pool *p = d->pools->first;

	while (p && strcmp(p->name, name) != 0)
		p = p->next;
	return p;
}

struct pool *pool_next(const struct daemon *d, const struct pool *p)
{
	return p ? p->next : d->pools->first;
}

const char *pool_name(const struct pool *p)
{
	return p->name;
}

const cJSON *pool_request(const struct pool *p)
{
	return p->request;
}

/* ---- records */

static const struct {
	const char *name;
	size_t at;
} capacity_members[] = {{"bufferMin", offsetof(struct pool_capacity, buffer_min)},
	{"bufferMax", offsetof(struct pool_capacity, buffer_max)},
	{"poolMin", offsetof(struct pool_capacity, pool_min)},
	{"poolMax", offsetof(struct pool_capacity, pool_max)}};

static cJSON *capacity_json(const struct pool_capacity *c)
{
	cJSON *o = cJSON_CreateObject();

	for (size_t i = 0; i < ARRAY_LEN(capacity_members); i++) {
		uint64_t n;

		memcpy(&n, (const char *)c + capacity_members[i].at, sizeof(n));
		cJSON_AddNumberToObject(o, capacity_members[i].name, (double)n);
	}
	/* ours: clients that did not ask for it do not see it */
	if (c->adapt_s)
		cJSON_AddNumberToObject(o, "adaptiveSeconds", (double)c->adapt_s);
	return o;
}

int pool_capacity_read(const cJSON *o, struct pool_capacity *c)
{
	for (size_t i = 0; i < ARRAY_LEN(capacity_members); i++) {
		uint64_t n;

		if (!json_whole(json_field(o, capacity_members[i].name), 1000000, &n))
			return -EINVAL;
		memcpy((char *)c + capacity_members[i].at, &n, sizeof(n));
	}
	c->adapt_s = 0;
	if (json_field(o, "adaptiveSeconds") &&
		!json_whole(json_field(o, "adaptiveSeconds"), ADAPT_MAX_S, &c->adapt_s))
		return -EINVAL;
	return c->buffer_min <= c->buffer_max && c->pool_min <= c->pool_max ? 0 : -EINVAL;
}

cJSON *pool_json(const struct pool *p)
{
	cJSON *o = cJSON_CreateObject(), *st;
	unsigned int allocated = pool_allocated(p);
	char text[TIME_TEXT];

	cJSON_AddStringToObject(o, "name", p->name);
	cJSON_AddItemToObject(o, "capacitySpec", capacity_json(&p->cap));
	st = cJSON_AddObjectToObject(o, "status");
	cJSON_AddNumberToObject(st, "total", allocated + p->nwaiting);
	cJSON_AddNumberToObject(st, "allocated", allocated);
	cJSON_AddNumberToObject(st, "available", p->nwaiting);
	snprintf(text, sizeof(text), "%u", p->revision);
	cJSON_AddStringToObject(st, "revision", text);
	cJSON_AddStringToObject(o, "createdAt", time_format(p->created_ns, text));
	return o;
}

static int pool_load(void *arg, const char *key, cJSON *doc)
{
	struct pools *all = arg;
	struct pool *p = calloc(1, sizeof(*p));
	int rc = p ? pool_capacity_read(json_obj(doc, "capacity"), &p->cap) : -ENOMEM;

	/* creates that name the pool are compared with its image */
	if (rc == 0 && !json_str(json_obj(json_obj(doc, "request"), "image"), "uri"))
		rc = -EINVAL;
	if (rc == 0) {
		*p = (struct pool){.next = all->first,
			.all = all,
			.cap = p->cap,
			.created_ns = json_get_i64(doc, "created"),
			.revision = (unsigned int)json_get_i64(doc, "revision"),
			.request = cJSON_DetachItemFromObjectCaseSensitive(doc, "request")};
		str_copy(p->name, sizeof(p->name), key);
		all->first = p;
	} else {
		free(p);
	}
	cJSON_Delete(doc);
	return rc;
}

void pools_load(struct daemon *d)
{
	database_load(d->database, DB_POOL, pool_load, d->pools);
	pools_fill_soon(d->pools);
}

/* ---- what an operator asks for */

static void pool_free(struct pool *p)
{
	if (p)
		cJSON_Delete(p->request);
	free(p);
}

static struct pool *pool_of_change(struct pool_change *c)
{
	struct pool *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	*p = (struct pool){.all = c->all, .cap = c->cap, .created_ns = (int64_t)wall_ns()};
	p->request = take_ptr(c->request);
	str_copy(p->name, sizeof(p->name), c->name);
	return p;
}

/* Looks at the pool again: a change before this one may have created or deleted it. */
static int change_find_pool(struct pool_change *c, struct refusal *x)
{
	struct pool *p = pool_find(c->all->d, c->name);

	if (c->kind == POOL_CHANGE_CREATE && p)
		return refuse(x, 409, "KUBERNETES::POOL_ALREADY_EXISTS", "There is a pool %.64s.",
			c->name);
	if (c->kind == POOL_CHANGE_CREATE)
		p = pool_of_change(c);
	else if (!p)
		return refuse(
			x, 404, "KUBERNETES::POOL_NOT_FOUND", "Pool %.64s not found.", c->name);
	c->pool = p;
	return p ? 0 : refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
}

static struct transaction *change_transaction(const struct pool_change *c)
{
	_cleanup_json_ cJSON *doc = cJSON_CreateObject();
	struct transaction *t = transaction_new();

	if (!t)
		return NULL;
	transaction_sync(t);
	if (c->kind == POOL_CHANGE_DELETE) {
		transaction_delete(t, DB_POOL, c->name);
		return t;
	}
	json_put_i64(doc, "created", c->pool->created_ns);
	json_put_i64(doc, "revision", c->pool->revision + 1);
	cJSON_AddItemToObject(doc, "capacity", capacity_json(&c->cap));
	cJSON_AddItemToObject(doc, "request", cJSON_Duplicate(c->pool->request, true));
	transaction_put(t, DB_POOL, c->name, doc);
	return t;
}

static void pool_end(struct pool *p)
{
	struct pool **at = &p->all->first;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	if (p->making) {
		p->waiting[p->nwaiting++] = p->making;
		p->making = NULL;
	}
	while (p->nwaiting)
		machine_end(p, p->nwaiting - 1, "its pool was deleted");
	pool_free(p);
}

/* Applies the change: its record is written. */
static void change_apply(struct pool_change *c)
{
	struct pools *all = c->all;

	if (c->kind == POOL_CHANGE_DELETE) {
		pool_end(take_ptr(c->pool));
		return;
	}
	c->pool->cap = c->cap;
	if (!c->cap.adapt_s)
		c->pool->ntakes = 0;
	c->pool->revision++;
	if (c->kind == POOL_CHANGE_CREATE) {
		c->pool->next = all->first;
		all->first = c->pool;
	}
	pools_fill_soon(all);
}

static void change_end(struct pool_change *c, const struct refusal *x)
{
	c->done(c->arg, x ? NULL : c->pool, x);
	if (x && c->kind == POOL_CHANGE_CREATE)
		pool_free(c->pool);
	c->all->changes = c->next;
	cJSON_Delete(c->request);
	free(c);
}

static void changes_go_on(struct pools *all);

static void change_committed(void *arg, const struct err *e)
{
	struct pools *all = arg;
	struct pool_change *c = all->changes;
	struct refusal x;

	if (e) {
		log_error("pool %s: %s", c->name, e->msg);
		refuse(&x, 500, "SANDBOX::INTERNAL_ERROR", "The record of pool %.64s cannot be %s.",
			c->name, c->kind == POOL_CHANGE_DELETE ? "deleted" : "written");
	} else {
		change_apply(c);
	}
	change_end(c, e ? &x : NULL);
	changes_go_on(all);
}

/* false: the change has been answered, nothing is written. */
static bool change_begin(struct pool_change *c)
{
	struct transaction *t;
	struct refusal x;

	if (change_find_pool(c, &x) < 0) {
		change_end(c, &x);
		return false;
	}
	t = change_transaction(c);
	if (!t) {
		refuse(&x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		change_end(c, &x);
		return false;
	}
	database_commit(c->all->d->database, t, change_committed, c->all);
	return true;
}

static void changes_go_on(struct pools *all)
{
	while (all->changes && !change_begin(all->changes))
		;
}

/* Takes request. */
static void change_submit(
	struct pools *all, struct pool_change with, const char *name, struct cJSON *request)
{
	struct pool_change *c = calloc(1, sizeof(*c)), **last = &all->changes;
	struct refusal x;

	if (!c) {
		cJSON_Delete(request);
		refuse(&x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		with.done(with.arg, NULL, &x);
		return;
	}
	*c = with;
	c->all = all;
	c->request = request;
	str_copy(c->name, sizeof(c->name), name);
	while (*last)
		last = &(*last)->next;
	*last = c;
	if (all->changes == c)
		changes_go_on(all);
}

void pool_create(struct daemon *d, const char *name, const struct pool_capacity *cap,
	cJSON *request, pool_change_fn done, void *arg)
{
	change_submit(d->pools,
		(struct pool_change){
			.kind = POOL_CHANGE_CREATE, .cap = *cap, .done = done, .arg = arg},
		name, request);
}

void pool_resize(struct daemon *d, const char *name, const struct pool_capacity *cap,
	pool_change_fn done, void *arg)
{
	change_submit(d->pools,
		(struct pool_change){
			.kind = POOL_CHANGE_RESIZE, .cap = *cap, .done = done, .arg = arg},
		name, NULL);
}

void pool_delete(struct daemon *d, const char *name, pool_change_fn done, void *arg)
{
	change_submit(d->pools,
		(struct pool_change){.kind = POOL_CHANGE_DELETE, .done = done, .arg = arg}, name,
		NULL);
}

/* ---- what a create asks for */

/* The oldest machine that waits. Else the one that is being made, if it has its image: once released it does not stop at STEP_HELD. NULL: neither. */
static struct sandbox *machine_next(struct pool *p)
{
	struct sandbox *sb = NULL;

	if (p->nwaiting) {
		sb = p->waiting[0];
		waiting_remove(p, 0);
	} else if (p->making && p->making->op.step > STEP_IMAGE) {
		sb = take_ptr(p->making);
	}
	return sb;
}

struct sandbox *pool_take(struct pool *p, struct refusal *x)
{
	struct sandbox *sb = machine_next(p);

	x->status = 0;
	take_note(p);
	pools_fill_soon(p->all);
	if (sb) {
		sb->created = NULL;
		/* the table of sandboxes has a reference, too */
		sandbox_unref(sb);
		return sb;
	}
	if (pool_total(p) >= p->cap.pool_max)
		refuse(x, 429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED",
			"Pool %.64s has no free capacity: %llu is its poolMax.", p->name,
			(unsigned long long)p->cap.pool_max);
	return NULL;
}
