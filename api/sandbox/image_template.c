/* SPDX-License-Identifier: Apache-2.0
 *
 * image_template.c: see image_template.h. Bounded in number, least recently used go first; one whose kernel,
 * initramfs or board changed is never found again under its key and goes at the next start.
 * mayflyd's loop.
 */
#include "api/sandbox/image_template.h"

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
#include "lib/json.h"
#include "lib/log.h"

/* When it was last used is written so seldom. */
#define USED_SAVE_NS 60000000000ll

struct image_template {
	struct checkpoint c; /* Creating and Failed ones are in memory only */
	char key[200], image[300];
	uint64_t again_ns;         /* then: not before that is it tried again */
	int64_t used_ns, saved_ns; /* wall clock: it outlives the daemon */
	uint64_t uses;
};

static struct image_template *of(struct checkpoint *c)
{
	return (struct image_template *)(void *)c;
}

static const struct image_template *of_const(const struct checkpoint *c)
{
	return (const struct image_template *)(const void *)c;
}

/* A client that asked for one ahead: of its own sandbox, then maybe of another that was first. */
struct ahead {
	struct ahead *next;
	struct http_req *r;
	struct build *b; /* NULL: it waits for the template of this key */
	char key[200];
};

struct templates {
	struct daemon *d;
	struct ahead *waiting;
};

struct templates *templates_create(struct daemon *d)
{
	struct templates *t = calloc(1, sizeof(*t));

	if (t)
		t->d = d;
	return t;
}

static struct checkpoint *first(const struct daemon *d)
{
	return checkpoint_first(d, &image_template_kind);
}

static struct image_template *find(const struct daemon *d, const char *key)
{
	struct checkpoint *c = first(d);

	while (c && strcmp(of(c)->key, key) != 0)
		c = checkpoint_next(c);
	return c ? of(c) : NULL;
}

static bool is_ready(const struct image_template *t)
{
	return t->c.state == CP_READY;
}

static void template_remove(struct image_template *t)
{
	if (checkpoint_has_files(&t->c)) {
		checkpoint_drop(&t->c);
	} else {
		checkpoint_forget(&t->c);
	}
}

/* ---- the record */

static void template_save(const struct checkpoint *c, cJSON *doc, cJSON *local)
{
	cJSON_AddStringToObject(doc, "key", of_const(c)->key);
	cJSON_AddStringToObject(doc, "image", of_const(c)->image);
	json_put_i64(local, "used", of_const(c)->used_ns);
}

static int template_load(struct checkpoint *c, cJSON *doc, const cJSON *local)
{
	struct image_template *t = of(c);
	const char *key = json_str(doc, "key"), *image = json_str(doc, "image");

	if (!key)
		return -EINVAL;
	snprintf(t->key, sizeof(t->key), "%s", key);
	snprintf(t->image, sizeof(t->image), "%s", image ? image : "");
	t->used_ns = t->saved_ns = json_get_i64(local, "used");
	return 0;
}

static void template_damaged(struct checkpoint *c, const char *text)
{
	if (c->state == CP_READY && !c->ws.recording)
		template_remove(of(c));
}

const struct checkpoint_kind image_template_kind = {.purpose = "image-template",
	.word = "template",
	.bytes = sizeof(struct image_template),
	.save = template_save,
	.load = template_load,
	.damaged = template_damaged};

void templates_drop_stale(struct daemon *d)
{
	struct checkpoint *next;

	for (struct checkpoint *c = first(d); c; c = next) {
		next = checkpoint_next(c);
		if (c->state != CP_READY || !c->mem.nmem || !strstr(of(c)->key, d->boot_key))
			checkpoint_drop(c);
	}
}

unsigned int templates_count(const struct daemon *d)
{
	unsigned int n = 0;

	for (const struct checkpoint *c = first(d); c; c = checkpoint_next(c))
		n += c->state == CP_READY;
	return n;
}

bool templates_need_image(const struct daemon *d, const char *image)
{
	for (const struct checkpoint *c = first(d); c; c = checkpoint_next(c))
		if (!strncmp(of_const(c)->key, image, strlen(image)))
			return true;
	return false;
}

bool template_use(struct sandbox *sb, struct memory *from)
{
	struct daemon *d = sb->d;
	struct image_template *t;

	snprintf(sb->template_key, sizeof(sb->template_key), "%s|%u|%u|%llu|%s", sb->image_digest,
		sb->cls.mem_mib, sb->cls.vcpus, (unsigned long long)sb->disk.bytes, d->boot_key);
	t = d->cfg.templates ? find(d, sb->template_key) : NULL;
	if (!t || !is_ready(t))
		return false;
	t->used_ns = (int64_t)wall_ns();
	t->uses++;
	if (t->used_ns - t->saved_ns > USED_SAVE_NS) {
		t->saved_ns = t->used_ns;
		checkpoint_save(&t->c);
	}
	snprintf(sb->origin_id, sizeof(sb->origin_id), "%.36s", t->c.id);
	sb->disk = t->c.disk;
	sb->memory = t->c.mem;
	disk_ref(d->blobs, &sb->disk);
	memory_ref(d->blobs, &sb->memory);
	*from = t->c.mem;
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
	const struct image_template *t = find(g->d, g->key);

	/* it may never have come as far as the template */
	if (!t || t->c.state >= CP_READY)
		ahead_settle(g->d, g->key);
	free(g);
	if (err)
		log_warn("a template is not there yet: %s", text);
	cJSON_Delete(base);
}

/* No second create is held up by what held up the first: a sandbox is started that nobody waits
 * for. */
static bool take_again(struct image_template *t, const struct sandbox *sb)
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
	t->again_ns = mono_ns() + (uint64_t)t->c.d->cfg.template_retry_seconds * 1000000000ull;
	s.image = strdup(sb->spec.image);
	s.entrypoint = cJSON_CreateStringArray(tail, ARRAY_LEN(tail));
	g = malloc(sizeof(*g));
	if (g) {
		g->d = t->c.d;
		snprintf(g->key, sizeof(g->key), "%s", t->key);
	}
	begun = g && s.image && s.entrypoint &&
		build_start(t->c.d, &s, sb->owner, NULL, again_built, g, &x);
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
	struct image_template *t, *oldest = NULL;
	unsigned int n = 0;

	if (!d->cfg.templates || !d->cfg.template_max || sb->spec.source != SRC_IMAGE ||
		!*sb->template_key)
		return false;
	t = find(d, sb->template_key);
	if (t && t->c.state != CP_FAILED)
		return false;
	if (t && !sb->build) {
		take_again(t, sb);
		return false;
	}
	if (t)
		template_remove(t);
	for (struct checkpoint *c = first(d); c; c = checkpoint_next(c)) {
		n++;
		if (c->state >= CP_READY && !c->ws.recording &&
			(!oldest || of(c)->used_ns < oldest->used_ns))
			oldest = of(c);
	}
	if (n < (unsigned int)d->cfg.template_max)
		return true;
	if (oldest)
		template_remove(oldest);
	return oldest != NULL;
}

void template_bad(struct sandbox *sb, const char *why)
{
	struct image_template *t = find(sb->d, sb->template_key);

	if (!t || !is_ready(t) || t->c.ws.recording)
		return;
	log_warn("template %s of %s cannot be restored: %s", t->c.id, t->image, why);
	template_remove(t);
}

void template_begun(struct daemon *d, const char *key)
{
	char id[37];
	struct checkpoint *c;

	uuid_make(id);
	c = checkpoint_new(d, &image_template_kind, id);
	if (!c)
		return;
	c->state = CP_CREATING;
	snprintf(of(c)->key, sizeof(of(c)->key), "%s", key);
	for (struct sandbox *sb = d->sandboxes; sb; sb = sb->next)
		if (!strcmp(sb->template_key, key) && sb->spec.image)
			snprintf(of(c)->image, sizeof(of(c)->image), "%s", sb->spec.image);
	checkpoint_list_add(c);
}

void template_failed(struct daemon *d, const char *key, bool held, const struct sandbox *sb)
{
	struct image_template *t = find(d, key);

	if (!t || is_ready(t))
		return;
	t->c.state = CP_FAILED;
	t->again_ns =
		held ? 0 : mono_ns() + (uint64_t)d->cfg.template_retry_seconds * 1000000000ull;
	if (!held || !sb || sandbox_gone(sb) || d->ending || !take_again(t, sb))
		ahead_settle(d, key);
}

static uint64_t bytes_of(const struct checkpoint *c)
{
	struct blobs *b = c->d->blobs;
	uint64_t n = blob_bytes(b, c->disk.index) + blob_bytes(b, c->mem.ws);

	for (int i = 0; i < c->disk.nfrozen; i++)
		n += blob_bytes(b, c->disk.frozen[i]);
	for (int i = 0; i < c->mem.nmem; i++)
		n += blob_bytes(b, c->mem.mem[i]);
	return n;
}

/* The least recently used go until the rest fits; the newest stays, however large it is. */
static void bound_bytes(struct daemon *d, const struct image_template *newest)
{
	for (;;) {
		struct image_template *oldest = NULL;
		uint64_t sum = 0;

		for (struct checkpoint *c = first(d); c; c = checkpoint_next(c)) {
			if (c->state != CP_READY)
				continue;
			sum += bytes_of(c);
			if (of(c) != newest && !c->ws.recording &&
				(!oldest || of(c)->used_ns < oldest->used_ns))
				oldest = of(c);
		}
		if (sum <= (uint64_t)d->cfg.template_mib << 20 || !oldest)
			return;
		log_info("template %s of %s goes: %llu MiB are too many", oldest->c.id,
			oldest->image, (unsigned long long)(sum >> 20));
		template_remove(oldest);
	}
}

void templates_bound(struct daemon *d)
{
	struct checkpoint *c = first(d);

	while (c && c->state != CP_READY)
		c = checkpoint_next(c);
	bound_bytes(d, c ? of(c) : NULL);
}

/* Only a template in the record is one: the next daemon would sweep its files. */
static void made_ended(struct checkpoint *c, struct http_req *r, const struct err *e)
{
	struct image_template *t = of(c);
	struct daemon *d = c->d;
	char key[sizeof(t->key)];

	memcpy(key, t->key, sizeof(key));
	if (e) {
		checkpoint_files_drop(c);
		template_failed(d, key, false, NULL);
		return;
	}
	log_info("template %s of %s is ready: %llu KiB", c->id, t->image,
		(unsigned long long)(blob_bytes(d->blobs, c->mem.state) >> 10));
	bound_bytes(d, t);
	ahead_settle(d, key);
}

void template_made(
	struct daemon *d, const char *key, const struct disk *disk, const struct memory *mem)
{
	struct image_template *t = find(d, key);

	if (!t || is_ready(t) || t->c.steps) {
		disk_unref(d->blobs, disk);
		memory_unref(d->blobs, mem);
		return;
	}
	checkpoint_files_set(&t->c, disk, mem);
	t->c.created_ns = t->used_ns = t->saved_ns = (int64_t)wall_ns();
	checkpoint_set(&t->c, CP_READY, true, "", "", made_ended, NULL);
}

/* ---- routes: ours, beside the protocol */

static cJSON *to_json(const struct checkpoint *c)
{
	const struct image_template *t = of_const(c);
	cJSON *i = cJSON_CreateObject();
	char text[TIME_TEXT];

	cJSON_AddStringToObject(i, "id", c->id);
	cJSON_AddStringToObject(i, "image", t->image);
	cJSON_AddStringToObject(i, "key", t->key);
	cJSON_AddStringToObject(i, "state", cp_state_names[c->state]);
	if (c->state == CP_READY) {
		cJSON_AddStringToObject(i, "createdAt", time_format(c->created_ns, text));
		cJSON_AddStringToObject(i, "usedAt", time_format(t->used_ns, text));
		cJSON_AddNumberToObject(i, "bytes", (double)bytes_of(c));
		cJSON_AddNumberToObject(i, "uses", (double)t->uses);
		/* all about it: GET /mayfly/points/{id} */
		cJSON_AddBoolToObject(i, "workingSet", *c->mem.ws != 0);
	}
	return i;
}

void route_auto_templates(struct http_req *r)
{
	cJSON *o = cJSON_CreateObject(), *items = cJSON_AddArrayToObject(o, "items");

	for (struct checkpoint *c = first(r->app); c; c = checkpoint_next(c))
		cJSON_AddItemToArray(items, to_json(c));
	http_reply_json(r, 200, o);
}

static struct checkpoint *route_one(struct http_req *r)
{
	struct checkpoint *c = checkpoint_find(r->app, &image_template_kind, http_param(r, "id"));

	if (!c)
		http_error(r, 404, "FSB::TEMPLATE_NOT_FOUND", "Template %.64s not found.",
			http_param(r, "id"));
	return c;
}

void route_auto_template_get(struct http_req *r)
{
	struct checkpoint *c = route_one(r);

	if (c)
		http_reply_json(r, 200, to_json(c));
}

void route_auto_template_delete(struct http_req *r)
{
	struct checkpoint *c = route_one(r);

	if (!c)
		return;
	if (c->state < CP_READY || c->ws.recording) {
		http_error(r, 409, "FSB::TEMPLATE_CONFLICT", "Template %s is being made.", c->id);
	} else {
		template_remove(of(c));
		http_reply_empty(r, 204);
	}
}

/* ---- ahead: a sandbox of the image is started for the template it leaves */

static void ahead_answer(struct ahead *a, const struct image_template *t)
{
	if (t && is_ready(t))
		http_reply_json(a->r, 201, to_json(&t->c));
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
	struct image_template *t = key ? find(d, key) : NULL;

	a->b = NULL;
	if (t && t->c.state < CP_READY) {
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
		char owner[OWNER_MAX];

		principal_owner(&r->principal, owner);
		a->r = r;
		a->b = build_start(d, &s, owner, NULL, ahead_built, a, &x);
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
