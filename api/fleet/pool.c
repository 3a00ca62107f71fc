/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.c: see pool.h. mayflyd's loop.
 *
 * A machine that waits is a sandbox that is `internal`: in no list, and deleted by the next daemon, whose pools are filled anew. One machine of a
 * pool is made at a time, and only when no create waits for its turn. Machines that wait count for admission like sandboxes.
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

struct pools {
	struct daemon *d;
	pool_spec_fn parse;
	struct pool *first;
	struct timer *retry;
	bool filling; /* a look at all pools is due */
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

static bool pool_wants_more(const struct pool *p)
{
	uint64_t have = p->nwaiting + (p->making != NULL), total = pool_total(p);

	return total < p->cap.pool_max && have < WAITING_MAX &&
	       (have < p->cap.buffer_min || (total < p->cap.pool_min && have < p->cap.buffer_max));
}

static bool pool_has_too_many(const struct pool *p)
{
	return p->nwaiting > p->cap.buffer_max || (p->nwaiting && pool_total(p) > p->cap.pool_max);
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
	/* what ended this one may end the next one as well */
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
	/* its end is told, too */
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
	/* no create waits for this */
	if (!p->making && !p->all->d->turns->first && pool_wants_more(p))
		machine_make(p);
}

static void pools_fill(void *arg)
{
	struct pools *all = arg;

	all->filling = false;
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

static int pool_save(const struct pool *p, const struct pool_capacity *cap, unsigned int revision,
	struct refusal *x)
{
	_cleanup_json_ cJSON *doc = cJSON_CreateObject();
	struct err e;

	json_put_i64(doc, "created", p->created_ns);
	json_put_i64(doc, "revision", revision);
	cJSON_AddItemToObject(doc, "capacity", capacity_json(cap));
	cJSON_AddItemToObject(doc, "request", cJSON_Duplicate(p->request, true));
	if (database_put(p->all->d->database, DB_POOL, p->name, doc, true, &e) == 0)
		return 0;
	log_error("pool %s: %s", p->name, e.msg);
	return refuse(x, 500, "SANDBOX::INTERNAL_ERROR",
		"The record of pool %.64s cannot be written.", p->name);
}

static int pool_load(void *arg, const char *key, cJSON *doc)
{
	struct pools *all = arg;
	struct pool *p = calloc(1, sizeof(*p));
	int rc = p ? pool_capacity_read(json_obj(doc, "capacity"), &p->cap) : -ENOMEM;

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

int pool_create(struct daemon *d, const char *name, const struct pool_capacity *c, cJSON *request,
	struct refusal *x)
{
	struct pool *p = calloc(1, sizeof(*p));

	if (!p) {
		cJSON_Delete(request);
		return refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	}
	*p = (struct pool){.all = d->pools,
		.cap = *c,
		.request = request,
		.created_ns = (int64_t)wall_ns(),
		.revision = 1};
	str_copy(p->name, sizeof(p->name), name);
	if (pool_save(p, c, p->revision, x) < 0) {
		cJSON_Delete(p->request);
		free(p);
		return -EIO;
	}
	p->next = d->pools->first;
	d->pools->first = p;
	pools_fill_soon(d->pools);
	return 0;
}

int pool_resize(struct pool *p, const struct pool_capacity *c, struct refusal *x)
{
	if (pool_save(p, c, p->revision + 1, x) < 0)
		return -EIO;
	p->cap = *c;
	p->revision++;
	pools_fill_soon(p->all);
	return 0;
}

int pool_delete(struct pool *p, struct refusal *x)
{
	struct pool **at = &p->all->first;
	struct err e;

	if (database_delete(p->all->d->database, DB_POOL, p->name, true, &e) < 0) {
		log_error("pool %s: %s", p->name, e.msg);
		return refuse(x, 500, "SANDBOX::INTERNAL_ERROR",
			"The record of pool %.64s cannot be deleted.", p->name);
	}
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	if (p->making) {
		p->waiting[p->nwaiting++] = p->making;
		p->making = NULL;
	}
	while (p->nwaiting)
		machine_end(p, p->nwaiting - 1, "its pool was deleted");
	cJSON_Delete(p->request);
	free(p);
	return 0;
}

/* ---- what a create asks for */

/* The oldest that waits, or the one that is being made, which then does not wait. NULL: neither. */
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
	pools_fill_soon(p->all);
	if (sb) {
		sb->created = NULL;
		/* the table of sandboxes has one, too */
		sandbox_unref(sb);
		return sb;
	}
	if (pool_total(p) >= p->cap.pool_max)
		refuse(x, 429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED",
			"Pool %.64s has no free capacity: %llu is its poolMax.", p->name,
			(unsigned long long)p->cap.pool_max);
	return NULL;
}
