/* SPDX-License-Identifier: Apache-2.0
 *
 * image_template.c: see image_template.h. Their number and bytes are bounded: the least recently used are removed first. The key
 * has the kernel, initramfs and board, so one of an older kernel is not found, and the next start removes it.
 * mayflyd's loop.
 */
#include "api/sandbox/image_template.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "api/core/database.h"
#include "api/sandbox/own_base.h"
#include "lib/json.h"
#include "lib/log.h"

/* At most this often the time of the last use is written. */
#define USED_SAVE_NS 60000000000ll

struct templates *templates_create(template_request_fn request_read)
{
	struct templates *t = calloc(1, sizeof(*t));

	if (t)
		t->request_read = request_read;
	return t;
}

static struct checkpoint *first(const struct daemon *d)
{
	return checkpoint_first(d, &image_template_kind);
}

struct image_template *template_find(const struct daemon *d, const char *key)
{
	struct checkpoint *c = first(d);

	while (c && strcmp(template_of(c)->key, key) != 0)
		c = checkpoint_next(c);
	return c ? template_of(c) : NULL;
}

bool template_is_ready(const struct image_template *t)
{
	return t->c.state == CP_READY;
}

void template_remove(struct image_template *t)
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
	cJSON_AddStringToObject(doc, "key", template_of_const(c)->key);
	cJSON_AddStringToObject(doc, "image", template_of_const(c)->image);
	json_put_i64(local, "used", template_of_const(c)->used_ns);
}

static int template_load(struct checkpoint *c, cJSON *doc, const cJSON *local)
{
	struct image_template *t = template_of(c);
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
		template_remove(template_of(c));
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
		if (c->state != CP_READY || !c->mem.nmem ||
			!strstr(template_of(c)->key, d->boot_key))
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
		if (!strncmp(template_of_const(c)->key, image, strlen(image)))
			return true;
	return false;
}

bool template_use(struct sandbox *sb, struct memory *from)
{
	struct daemon *d = sb->d;
	struct image_template *t;

	char tag[OWN_BASE_TAG] = "";

	if (!d->cfg.share_memory)
		own_base_tag(sb->owner, tag);
	snprintf(sb->template_key, sizeof(sb->template_key), "%s|%u|%u|%llu|%s%s%s",
		sb->image_digest, sb->cls.mem_mib, sb->cls.vcpus,
		(unsigned long long)sb->disk.bytes, d->boot_key, *tag ? "|" : "", tag);
	t = d->cfg.templates ? template_find(d, sb->template_key) : NULL;
	if (!t || !template_is_ready(t))
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

/* ---- waiting for a template */

void template_wait(struct daemon *d, struct template_wait *w)
{
	w->next = d->templates->waiting;
	d->templates->waiting = w;
}

void template_wait_cancel(struct daemon *d, struct template_wait *w)
{
	struct template_wait **at = &d->templates->waiting;

	while (*at && *at != w)
		at = &(*at)->next;
	if (*at)
		*at = w->next;
}

static void template_settled(struct daemon *d, const char *key)
{
	struct template_wait **at = &d->templates->waiting;

	while (*at) {
		struct template_wait *w = *at;

		if (strcmp(w->key, key) != 0) {
			at = &w->next;
			continue;
		}
		*at = w->next;
		w->settled(w, template_find(d, key));
	}
}

/* ---- a template that failed */

/* A sandbox that is started only to leave the template of this key. */
struct again {
	struct daemon *d;
	char key[200];
};

static void again_built(
	void *arg, int err, const char *text, struct disk *disk, struct memory *mem, cJSON *base)
{
	struct again *g = arg;
	const struct image_template *t = template_find(g->d, g->key);

	/* the sandbox may have failed before its template was begun */
	if (!t || t->c.state >= CP_READY)
		template_settled(g->d, g->key);
	free(g);
	if (err)
		log_warn("an image template was not built: %s", text);
	cJSON_Delete(base);
}

/* Starts a sandbox for the template. No client waits for this sandbox: what delayed the first create must
 * not delay a second one. */
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
		log_warn("the template of %s is not tried again yet: %s", t->image,
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
	t = template_find(d, sb->template_key);
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
			(!oldest || template_of(c)->used_ns < oldest->used_ns))
			oldest = template_of(c);
	}
	if (n < (unsigned int)d->cfg.template_max)
		return true;
	if (oldest)
		template_remove(oldest);
	return oldest != NULL;
}

void template_bad(struct sandbox *sb, const char *why)
{
	struct image_template *t = template_find(sb->d, sb->template_key);

	if (!t || !template_is_ready(t) || t->c.ws.recording)
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
	snprintf(template_of(c)->key, sizeof(template_of(c)->key), "%s", key);
	for (struct sandbox *sb = d->sandboxes; sb; sb = sb->next)
		if (!strcmp(sb->template_key, key) && sb->spec.image)
			snprintf(template_of(c)->image, sizeof(template_of(c)->image), "%s",
				sb->spec.image);
	checkpoint_list_add(c);
}

void template_failed(struct daemon *d, const char *key, bool held, const struct sandbox *sb)
{
	struct image_template *t = template_find(d, key);

	if (!t || template_is_ready(t))
		return;
	t->c.state = CP_FAILED;
	t->again_ns =
		held ? 0 : mono_ns() + (uint64_t)d->cfg.template_retry_seconds * 1000000000ull;
	if (!held || !sb || sandbox_gone(sb) || d->ending || !take_again(t, sb))
		template_settled(d, key);
}

uint64_t template_bytes(const struct checkpoint *c)
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
			sum += template_bytes(c);
			if (template_of(c) != newest && !c->ws.recording &&
				(!oldest || template_of(c)->used_ns < oldest->used_ns))
				oldest = template_of(c);
		}
		if (sum <= (uint64_t)d->cfg.template_mib << 20 || !oldest)
			return;
		log_info("template %s of %s is removed: all templates take %llu MiB, more than "
			 "runtime.template_mib",
			oldest->c.id, oldest->image, (unsigned long long)(sum >> 20));
		template_remove(oldest);
	}
}

void templates_bound(struct daemon *d)
{
	struct checkpoint *c = first(d);

	while (c && c->state != CP_READY)
		c = checkpoint_next(c);
	bound_bytes(d, c ? template_of(c) : NULL);
}

/* Without a record it is no template: the next daemon would remove its files. */
static void made_ended(struct checkpoint *c, struct http_req *r, const struct err *e)
{
	struct image_template *t = template_of(c);
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
	template_settled(d, key);
}

void template_made(
	struct daemon *d, const char *key, const struct disk *disk, const struct memory *mem)
{
	struct image_template *t = template_find(d, key);

	if (!t || template_is_ready(t) || t->c.steps) {
		disk_unref(d->blobs, disk);
		memory_unref(d->blobs, mem);
		return;
	}
	checkpoint_files_set(&t->c, disk, mem);
	t->c.created_ns = t->used_ns = t->saved_ns = (int64_t)wall_ns();
	checkpoint_set(&t->c, CP_READY, true, "", "", made_ended, NULL);
}
