/* SPDX-License-Identifier: Apache-2.0
 *
 * image_template.h: automatic templates: for each image, size class, kernel and board the machine as it
 * was when its agent was ready and nothing of the user's had run. Taken from the first sandbox,
 * used by every later one. mayflyd's loop.
 */
#pragma once

#include "api/checkpoint/checkpoint.h"
#include "api/sandbox/sandbox.h"

extern const struct checkpoint_kind image_template_kind;

struct templates;
struct templates *templates_create(struct daemon *d);
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

/* snap.c tells how it went; disk and mem are handed over with their references */
void template_begun(struct daemon *d, const char *key);
void template_made(
	struct daemon *d, const char *key, const struct disk *disk, const struct memory *mem);
/* held: somebody's create was held up by it, sb if that is still there: then another sandbox is
 * started for it at once, which nobody waits for. Else the next create tries, a while later. */
void template_failed(struct daemon *d, const char *key, bool held, const struct sandbox *sb);
