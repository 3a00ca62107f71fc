/* SPDX-License-Identifier: Apache-2.0
 *
 * image_template.c: see template.h. Bounded in number, least recently used go first; one whose kernel,
 * initramfs or board changed is never found again under its key and goes at the next start.
 * mayflyd's loop.
 */
#include "api/checkpoint/image_template.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "api/links/images.h"
#include "api/sandbox/template_build.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/lifecycle/spec.h"
#include "api/core/database.h"
#include "api/lifecycle/template_request.h"
#include "api/checkpoint/working_set.h"
#include "lib/log.h"

/* When it was last used is written so seldom. */
#define USED_SAVE_NS 60000000000ll

struct template
{
	struct template *next;
	char id[37], key[200], image[300];
	bool ready;
	bool failed;
	uint64_t again_ns; /* then: not before that is it tried again */
	struct disk disk;
	struct memory mem;
	int64_t created_ns, used_ns, saved_ns; /* wall clock: it outlives the daemon */
	uint64_t uses;
	struct workset ws;
	struct daemon *d;
};

/* A client that asked for one ahead: of its own sandbox, then maybe of another that was first. */
struct ahead {
	struct ahead *next;
	struct http_req *r;
	struct build *b; /* NULL: it waits for the template of this key */
	char key[200];
};

struct templates {
	struct daemon *d;
	struct template *all;
	struct ahead *waiting;
};

struct templates *templates_create(struct daemon *d)
{
	struct templates *t = calloc(1, sizeof(*t));

	if (t)
		t->d = d;
	return t;
}

static void template_free(struct template *t)
{
	free(t);
}

void templates_destroy(struct templates *ts)
{
	while (ts && ts->all) {
		struct template *t = ts->all;

		ts->all = t->next;
		template_free(t);
	}
	free(ts);
}

static struct template *find(const struct daemon *d, const char *key)
{
	struct template *t = d->templates->all;

	while (t && strcmp(t->key, key) != 0)
		t = t->next;
	return t;
}

static void template_remove(struct daemon *d, struct template *t)
{
	struct template **at = &d->templates->all;

	while (*at && *at != t)
		at = &(*at)->next;
	if (*at)
		*at = t->next;
	database_delete(d->database, DB_TEMPLATE, t->id, false, NULL);
	disk_unref(d->blobs, &t->disk);
	memory_unref(d->blobs, &t->mem);
	template_free(t);
	images_release(d);
}

static void template_save(struct daemon *d, struct template *t)
{
	cJSON *o = cJSON_CreateObject();
	struct err e;

	t->saved_ns = t->used_ns;
	cJSON_AddStringToObject(o, "key", t->key);
	cJSON_AddStringToObject(o, "image", t->image);
	cJSON_AddNumberToObject(o, "created", (double)t->created_ns);
	cJSON_AddNumberToObject(o, "used", (double)t->used_ns);
	cJSON_AddItemToObject(o, "workset", workset_to_json(&t->ws));
	cJSON_AddItemToObject(o, "disk", disk_to_json(&t->disk));
	cJSON_AddItemToObject(o, "mem", memory_to_json(&t->mem));
	if (database_put(d->database, DB_TEMPLATE, t->id, o, true, &e) < 0)
		log_error("template %s: %s", t->id, e.msg);
	cJSON_Delete(o);
}

static int load_one(void *arg, const char *id, cJSON *o)
{
	struct daemon *d = arg;
	const cJSON *key = cJSON_GetObjectItemCaseSensitive(o, "key"),
		    *image = cJSON_GetObjectItemCaseSensitive(o, "image"),
		    *created = cJSON_GetObjectItemCaseSensitive(o, "created"),
		    *used = cJSON_GetObjectItemCaseSensitive(o, "used");
	struct template *t = calloc(1, sizeof(*t));

	if (!t || !disk_from_json(&t->disk, cJSON_GetObjectItemCaseSensitive(o, "disk")) ||
		!memory_from_json(&t->mem, cJSON_GetObjectItemCaseSensitive(o, "mem"))) {
		cJSON_Delete(o);
		free(t);
		return t ? -EINVAL : -ENOMEM;
	}
	t->d = d;
	snprintf(t->id, sizeof(t->id), "%s", id);
	snprintf(t->key, sizeof(t->key), "%s", cJSON_IsString(key) ? key->valuestring : "");
	snprintf(t->image, sizeof(t->image), "%s", cJSON_IsString(image) ? image->valuestring : "");
	t->created_ns = cJSON_IsNumber(created) ? (int64_t)created->valuedouble : 0;
	t->used_ns = t->saved_ns =
		cJSON_IsNumber(used) ? (int64_t)used->valuedouble : t->created_ns;
	workset_from_json(&t->ws, cJSON_GetObjectItemCaseSensitive(o, "workset"));
	t->ready = t->mem.nmem > 0;
	disk_ref(d->blobs, &t->disk);
	memory_ref(d->blobs, &t->mem);
	t->next = d->templates->all;
	d->templates->all = t;
	cJSON_Delete(o);
	return 0;
}

void templates_load(struct daemon *d)
{
	database_load(d->database, DB_TEMPLATE, load_one, d);
}

void templates_drop_stale(struct daemon *d)
{
	struct template *next;

	for (struct template *t = d->templates->all; t; t = next) {
		next = t->next;
		if (!t->ready || !strstr(t->key, d->boot_key))
			template_remove(d, t);
	}
}

unsigned int templates_count(const struct daemon *d)
{
	unsigned int n = 0;

	for (const struct template *t = d->templates->all; t; t = t->next)
		n += t->ready;
	return n;
}

bool templates_stand_on(const struct daemon *d, const char *image)
{
	for (const struct template *t = d->templates->all; t; t = t->next)
		if (strncmp(t->key, image, strlen(image)) == 0 || strstr(t->disk.base, image))
			return true;
	return false;
}

bool template_use(struct sandbox *sb, struct memory *from)
{
	struct daemon *d = sb->d;
	struct template *t;

	snprintf(sb->template_key, sizeof(sb->template_key), "%s|%u|%u|%llu|%s", sb->image_digest,
		sb->cls.mem_mib, sb->cls.vcpus, (unsigned long long)sb->disk.bytes, d->boot_key);
	t = d->cfg.templates ? find(d, sb->template_key) : NULL;
	if (!t || !t->ready)
		return false;
	t->used_ns = (int64_t)wall_ns();
	t->uses++;
	if (t->used_ns - t->saved_ns > USED_SAVE_NS)
		template_save(d, t);
	snprintf(sb->origin_id, sizeof(sb->origin_id), "%s", t->id);
	sb->disk = t->disk;
	sb->memory = t->mem;
	disk_ref(d->blobs, &sb->disk);
	memory_ref(d->blobs, &sb->memory);
	*from = t->mem;
	return true;
}

static void ahead_settle(struct daemon *d, const char *key);

/* A maker that nobody waits for, and whose template it is to leave. */
struct again {
	struct daemon *d;
	char key[200];
};

static void again_built(
	void *arg, int err, const char *text, struct disk *disk, struct memory *mem, cJSON *base)
{
	struct again *g = arg;
	const struct template *t = find(g->d, g->key);

	/* it may never have come as far as the template */
	if (!t || t->ready || t->failed)
		ahead_settle(g->d, g->key);
	free(g);
	if (err)
		log_warn("a template is not there yet: %s", text);
	cJSON_Delete(base);
}

/* No second create is held up by what held up the first: a sandbox is started that nobody waits
 * for. */
static bool take_again(struct template *t, const struct sandbox *sb)
{
	static const char *const tail[] = {"tail", "-f", "/dev/null"};
	struct spec s = {.source = SRC_IMAGE,
		.has_entrypoint = true,
		.cpu_millis = sb->spec.cpu_millis,
		.vcpus = sb->spec.vcpus,
		.memory_bytes = sb->spec.memory_bytes};
	struct refusal x;

	struct again *g;
	bool begun;

	if (mono_ns() < t->again_ns)
		return false;
	t->again_ns = mono_ns() + (uint64_t)t->d->cfg.template_retry_seconds * 1000000000ull;
	s.image = strdup(sb->spec.image);
	s.entrypoint = cJSON_CreateStringArray(tail, ARRAY_LEN(tail));
	g = malloc(sizeof(*g));
	if (g) {
		g->d = t->d;
		snprintf(g->key, sizeof(g->key), "%s", t->key);
	}
	begun = g && s.image && s.entrypoint && build_start(t->d, &s, NULL, again_built, g, &x);
	if (!begun) {
		free(g);
		log_warn("template of %s is not taken again yet: %s", t->image,
			g && s.image && s.entrypoint ? x.msg : "out of memory");
	}
	spec_fini(&s);
	return begun;
}

bool template_wanted(struct sandbox *sb)
{
	struct daemon *d = sb->d;
	struct template *t, *oldest = NULL;
	unsigned int n = 0;

	if (!d->cfg.templates || !d->cfg.template_max || sb->spec.source != SRC_IMAGE ||
		!*sb->template_key)
		return false;
	t = find(d, sb->template_key);
	if (t && !t->failed)
		return false;
	if (t && !sb->build) {
		take_again(t, sb);
		return false;
	}
	if (t)
		template_remove(d, t);
	for (t = d->templates->all; t; t = t->next) {
		n++;
		if ((t->ready || t->failed) && !t->ws.recording &&
			(!oldest || t->used_ns < oldest->used_ns))
			oldest = t;
	}
	if (n < (unsigned int)d->cfg.template_max)
		return true;
	if (oldest)
		template_remove(d, oldest);
	return oldest != NULL;
}

void template_bad(struct sandbox *sb, const char *why)
{
	struct template *t = find(sb->d, sb->template_key);

	if (!t || !t->ready || t->ws.recording)
		return;
	log_warn("template %s of %s cannot be restored: %s", t->id, t->image, why);
	template_remove(sb->d, t);
}

void templates_damaged(struct daemon *d, const char *blob)
{
	struct template *next;

	for (struct template *t = d->templates->all; t; t = next) {
		next = t->next;
		if (t->ready && !t->ws.recording && memory_has(&t->mem, blob))
			template_remove(d, t);
	}
}

void template_begun(struct daemon *d, const char *key)
{
	struct template *t = calloc(1, sizeof(*t));

	if (!t)
		return;
	t->d = d;
	uuid_make(t->id);
	snprintf(t->key, sizeof(t->key), "%s", key);
	for (struct sandbox *sb = d->sandboxes; sb; sb = sb->next)
		if (!strcmp(sb->template_key, key) && sb->spec.image)
			snprintf(t->image, sizeof(t->image), "%s", sb->spec.image);
	t->next = d->templates->all;
	d->templates->all = t;
}

void template_failed(struct daemon *d, const char *key, bool held, const struct sandbox *sb)
{
	struct template *t = find(d, key);

	if (!t || t->ready)
		return;
	t->failed = true;
	t->again_ns =
		held ? 0 : mono_ns() + (uint64_t)d->cfg.template_retry_seconds * 1000000000ull;
	if (!held || !sb || sb->gone || d->ending || !take_again(t, sb))
		ahead_settle(d, key);
}

static uint64_t bytes_of(struct daemon *d, const struct template *t)
{
	uint64_t n = blob_bytes(d->blobs, t->disk.index) + blob_bytes(d->blobs, t->mem.ws);

	for (int i = 0; i < t->disk.nfrozen; i++)
		n += blob_bytes(d->blobs, t->disk.frozen[i]);
	for (int i = 0; i < t->mem.nmem; i++)
		n += blob_bytes(d->blobs, t->mem.mem[i]);
	return n;
}

/* The least recently used go until the rest fits; the newest stays, however large it is. */
static void bound_bytes(struct daemon *d, const struct template *newest)
{
	for (;;) {
		struct template *oldest = NULL;
		uint64_t sum = 0;

		for (struct template *t = d->templates->all; t; t = t->next) {
			sum += t->ready ? bytes_of(d, t) : 0;
			if (t->ready && t != newest && !t->ws.recording &&
				(!oldest || t->used_ns < oldest->used_ns))
				oldest = t;
		}
		if (sum <= (uint64_t)d->cfg.template_mib << 20 || !oldest)
			return;
		log_info("template %s of %s goes: %llu MiB are too many", oldest->id, oldest->image,
			(unsigned long long)(sum >> 20));
		template_remove(d, oldest);
	}
}

void templates_bound(struct daemon *d)
{
	struct template *newest = NULL;

	for (struct template *t = d->templates->all; t; t = t->next)
		if (t->ready && (!newest || t->created_ns > newest->created_ns))
			newest = t;
	bound_bytes(d, newest);
}

void template_made(
	struct daemon *d, const char *key, const struct disk *disk, const struct memory *mem)
{
	struct template *t = find(d, key);

	if (!t || t->ready) {
		disk_unref(d->blobs, disk);
		memory_unref(d->blobs, mem);
		return;
	}
	t->disk = *disk;
	t->mem = *mem;
	t->created_ns = t->used_ns = (int64_t)wall_ns();
	t->ready = true;
	template_save(d, t);
	bound_bytes(d, t);
	log_info("template %s of %s is ready: %llu KiB", t->id, t->image,
		(unsigned long long)(blob_bytes(d->blobs, t->mem.state) >> 10));
	ahead_settle(d, key);
}

static struct template *by_id(struct daemon *d, const char *id)
{
	struct template *t = d->templates->all;

	while (t && strcmp(t->id, id) != 0)
		t = t->next;
	return t;
}

static void save_owner(void *owner)
{
	struct template *t = owner;

	template_save(t->d, t);
}

bool template_view(struct daemon *d, const char *id, struct point_view *v)
{
	struct template *t = by_id(d, id);

	if (!t || !t->ready)
		return false;
	*v = (struct point_view){
		"template", &t->disk, &t->mem, &t->ws, OWNER_OPERATOR, t, save_owner};
	return true;
}

/* ---- routes: ours, beside the protocol */

static cJSON *to_json(struct daemon *d, const struct template *t)
{
	cJSON *i = cJSON_CreateObject();
	char text[TIME_TEXT];

	cJSON_AddStringToObject(i, "id", t->id);
	cJSON_AddStringToObject(i, "image", t->image);
	cJSON_AddStringToObject(i, "key", t->key);
	cJSON_AddStringToObject(i, "state", t->ready ? "Ready" : t->failed ? "Failed" : "Creating");
	if (t->ready) {
		cJSON_AddStringToObject(i, "createdAt", time_format(t->created_ns, text));
		cJSON_AddStringToObject(i, "usedAt", time_format(t->used_ns, text));
		cJSON_AddNumberToObject(i, "bytes", (double)bytes_of(d, t));
		cJSON_AddNumberToObject(i, "uses", (double)t->uses);
		cJSON_AddBoolToObject(i, "workingSet",
			*t->mem.ws != 0); /* all about it: GET /mayfly/points/{id} */
	}
	return i;
}

void route_auto_templates(struct http_req *r)
{
	struct daemon *d = r->app;
	cJSON *o = cJSON_CreateObject(), *items = cJSON_AddArrayToObject(o, "items");

	for (const struct template *t = d->templates->all; t; t = t->next)
		cJSON_AddItemToArray(items, to_json(d, t));
	http_reply_json(r, 200, o);
}

static struct template *route_one(struct http_req *r)
{
	struct template *t = by_id(r->app, http_param(r, "id"));

	if (!t)
		http_error(r, 404, "FSB::TEMPLATE_NOT_FOUND", "Template %.64s not found.",
			http_param(r, "id"));
	return t;
}

void route_auto_template_get(struct http_req *r)
{
	struct template *t = route_one(r);

	if (t)
		http_reply_json(r, 200, to_json(r->app, t));
}

void route_auto_template_delete(struct http_req *r)
{
	struct template *t = route_one(r);

	if (!t)
		return;
	if ((!t->ready && !t->failed) || t->ws.recording) {
		http_error(r, 409, "FSB::TEMPLATE_CONFLICT", "Template %s is being made.", t->id);
	} else {
		template_remove(r->app, t);
		http_reply_empty(r, 204);
	}
}

/* ---- ahead: a sandbox of the image is started for the template it leaves */

static void ahead_answer(struct ahead *a, const struct template *t)
{
	if (t && t->ready)
		http_reply_json(a->r, 201, to_json(t->d, t));
	else
		http_error(a->r, 503, "FSB::TEMPLATE_FAILED",
			"The template could not be taken in time; the log says why. Try again.");
	free(a);
}

static void ahead_settle(struct daemon *d, const char *key)
{
	struct ahead **at = &d->templates->waiting;

	while (*at) {
		struct ahead *a = *at;

		if (strcmp(a->key, key) != 0) {
			at = &a->next;
			continue;
		}
		*at = a->next;
		ahead_answer(a, find(d, key));
	}
}

static void ahead_built(
	void *arg, int err, const char *text, struct disk *disk, struct memory *mem, cJSON *base)
{
	struct ahead *a = arg;
	struct daemon *d = a->r->app;
	const char *key = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(base, "template"));
	struct template *t = key ? find(d, key) : NULL;

	a->b = NULL;
	if (t && !t->ready && !t->failed) {
		/* another sandbox was first, and leaves it */
		snprintf(a->key, sizeof(a->key), "%s", key);
		a->next = d->templates->waiting;
		d->templates->waiting = a;
	} else if (err) {
		http_error(a->r, 500, "FSB::TEMPLATE_FAILED", "%s", text);
		free(a);
	} else {
		ahead_answer(a, t);
	}
	cJSON_Delete(base);
}

static void ahead_gone(struct http_req *r)
{
	struct daemon *d = r->app;
	struct ahead *a = r->user, **at = &d->templates->waiting;

	if (a->b) {
		build_cancel(a->b);
	} else {
		while (*at != a)
			at = &(*at)->next;
		*at = a->next;
	}
	free(a);
	http_abort(r);
}

void route_auto_template_create(struct http_req *r)
{
	struct daemon *d = r->app;
	struct refusal x;
	struct probe p;
	struct spec s = {0};
	struct ahead *a = NULL;
	cJSON *req = json_object(r->body, r->body_len, &x);
	int rc = req ? template_req_spec(req, &d->cfg, &s, &p, &x) : -EINVAL;

	cJSON_Delete(req);
	if (rc == 0 && (!d->cfg.templates || !d->cfg.template_max))
		rc = refuse(&x, 409, "FSB::TEMPLATE_CONFLICT",
			"This server keeps no templates: runtime.templates, runtime.template_max.");
	if (rc == 0 && !(a = calloc(1, sizeof(*a))))
		rc = refuse(&x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	if (a) {
		a->r = r;
		a->b = build_start(d, &s, NULL, ahead_built, a, &x);
		rc = a->b ? 0 : -EINVAL;
	}
	spec_fini(&s);
	if (rc < 0) {
		free(a);
		http_error(r, x.status, x.code, "%s", x.msg);
	} else {
		r->user = a;
		http_on_gone(r, ahead_gone);
	}
}
