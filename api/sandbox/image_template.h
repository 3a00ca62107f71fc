/* SPDX-License-Identifier: Apache-2.0
 *
 * image_template.h: automatic templates: for each image, size class, kernel and board the machine as it
 * was when its agent was ready and nothing of the user's had run. Taken from the first sandbox,
 * used by every later one. mayflyd's loop.
 */
#pragma once

#include "api/checkpoint/checkpoint.h"
#include "api/sandbox/template_build.h"

extern const struct checkpoint_kind image_template_kind;

struct image_template {
	struct checkpoint c; /* Creating and Failed ones are in memory only */
	char key[200], image[300];
	uint64_t again_ns;         /* Failed: the earliest time of the next try, by mono_ns() */
	int64_t used_ns, saved_ns; /* wall clock: it outlives the daemon */
	uint64_t uses;
};

static inline struct image_template *template_of(struct checkpoint *c)
{
	return (struct image_template *)(void *)c;
}

static inline const struct image_template *template_of_const(const struct checkpoint *c)
{
	return (const struct image_template *)(const void *)c;
}

/* Reads the request of a user template: *s is what to build, *p says when it is ready. s must go to spec_fini() in any case. */
typedef int (*template_request_fn)(const struct cJSON *req, const struct config *c, struct spec *s,
	struct probe *p, struct refusal *x);

/* Waits for the template of this key. */
struct template_wait {
	struct template_wait *next;
	char key[200];
	/* The template is ready (template_is_ready()), or it failed, or there is none (t NULL). w was removed before the call. */
	void (*settled)(struct template_wait *w, const struct image_template *t);
};

struct templates {
	template_request_fn request_read;
	struct template_wait *waiting;
};

/* request_read: the checks of requests are in a room above. NULL: no memory. */
struct templates *templates_create(template_request_fn request_read);
void template_wait(struct daemon *d, struct template_wait *w);
void template_wait_cancel(struct daemon *d, struct template_wait *w);

struct image_template *template_find(const struct daemon *d, const char *key);
bool template_is_ready(const struct image_template *t);
/* What its files take on the disk. */
uint64_t template_bytes(const struct checkpoint *c);
void template_remove(struct image_template *t);

/* Removes templates of another kernel or board, whose key no create has any more. To be called after all
 * records of all kinds are loaded: a user template may use their files. */
void templates_drop_stale(struct daemon *d);
unsigned int templates_count(const struct daemon *d);
/* Is there a template of the image with this digest (hex), in any state? */
bool templates_need_image(const struct daemon *d, const char *image);

/* Sets sb->template_key. true: there is a ready template: sb has its frozen disk and memory now, and
 * *from is what to restore. */
bool template_use(struct sandbox *sb, struct memory *from);
/* sb booted, and nothing of the user's has run in it: shall the template be taken of it? After a
 * failed try the answer is no: then template_wanted() starts a sandbox for the template, and only for
 * that one the answer is yes. */
bool template_wanted(struct sandbox *sb);
void template_bad(struct sandbox *sb, const char *why); /* a restore failed: removes the template */
/* Removes the least recently used ones beyond runtime.template_mib. */
void templates_bound(struct daemon *d);

/* Called by take.c. template_made() takes disk and mem with their references. */
void template_begun(struct daemon *d, const char *key);
void template_made(
	struct daemon *d, const char *key, const struct disk *disk, const struct memory *mem);
/* held: the create of a client waited for the template. Then another sandbox, which no client waits
 * for, is started for it at once, if sb is still there. Else a create tries again later. */
void template_failed(struct daemon *d, const char *key, bool held, const struct sandbox *sb);
