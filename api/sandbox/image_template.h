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
	uint64_t again_ns;         /* then: not before that is it tried again */
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

/* What to build for the request of a user template, and when that is ready. spec is to be given to spec_fini either way. */
typedef int (*template_request_fn)(const struct cJSON *req, const struct config *c, struct spec *s,
	struct probe *p, struct refusal *x);

/* Waits for the template of this key. */
struct template_wait {
	struct template_wait *next;
	char key[200];
	/* It was taken (template_is_ready()), or failed, or is not there. w waits no more. */
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

/* Those of another kernel or board, which nobody can ask for any more. After all records of all
 * kinds were loaded: a user template may use their files. */
void templates_drop_stale(struct daemon *d);
unsigned int templates_count(const struct daemon *d);
/* Is one made, or being made, of the image of that digest (hex)? */
bool templates_need_image(const struct daemon *d, const char *image);

/* Sets sb->template_key; true: there is one: its frozen disk and memory are sb's now, and *from is
 * what to restore. */
bool template_use(struct sandbox *sb, struct memory *from);
/* This one booted, is quiet and new: shall it become the template? Where one could not be taken
 * before, another is started for that. */
bool template_wanted(struct sandbox *sb);
void template_bad(struct sandbox *sb,
	const char *why); /* its restore was refused: do not use that template again */
void templates_bound(struct daemon *d); /* one that could not go may go now */

/* take.c tells how it went; disk and mem are handed over with their references */
void template_begun(struct daemon *d, const char *key);
void template_made(
	struct daemon *d, const char *key, const struct disk *disk, const struct memory *mem);
/* held: somebody's create was held up by it, sb if that is still there: then another sandbox is
 * started for it at once, which nobody waits for. Else the next create tries, a while later. */
void template_failed(struct daemon *d, const char *key, bool held, const struct sandbox *sb);
