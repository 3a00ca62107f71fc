/* SPDX-License-Identifier: Apache-2.0
 *
 * images.h: an image name becomes a disk and a configuration. mayflyd's loop.
 */
#pragma once

#include "lib/buf.h"
#include "lib/err.h"

struct cJSON;
struct daemon;
struct image_job;

struct image {
	char digest[72];      /* of its manifest, hex */
	char disk[512];       /* path */
	struct cJSON *config; /* {"env":{},"workdir","user"}; the callee's */
};

/* For image_get(): called once, unless the job was cancelled, and never before it returns. img NULL: e says why. */
typedef void (*image_fn)(void *arg, struct image *img, const struct err *e);
/* Returns NULL after an error (*e). owner: whose request it is (api/core/principal.h); one owner cannot use all workers. */
struct image_job *image_get(struct daemon *d, const char *name, const char *user,
	const char *password, const char *owner, void (*progress)(void *arg, const char *text),
	image_fn fn, void *arg, struct err *e);
void image_cancel(struct image_job *j);
/* The image that this name stands for by images.aliases. false: the name is no alias. */
bool image_alias(const struct daemon *d, const char *name, char *to, size_t cap);
/* images.aliases, for `mayfly image ls`: at the start, and when the configuration was read again. */
void images_publish_aliases(const struct daemon *d);

/* So many slots of the helper, the last ones, are for image jobs. */
#define IMAGE_SLOTS 8u
struct images;
struct priv_msg;
/* The store under <state_dir>/images. bin_dir: where mayfly-image is, if there is no helper. */
struct images *images_create(struct daemon *d, const char *bin_dir, struct err *e);
/* Does a sandbox, snapshot or template need the image with this digest (hex)? One function for each kind. */
typedef bool (*image_user_fn)(const struct daemon *d, const char *image);
/* Sets the functions that are asked before the daemon's pin of an image is dropped: a NULL-terminated table that lives as long as the
 * daemon. Before this call no pin is dropped. */
void images_users(struct images *im, const image_user_fn *users);
/* To be called when a sandbox, snapshot or template was deleted: soon after, images that no record needs
 * lose their pin and may be removed (`mayfly image prune`). */
void images_release(struct daemon *d);
void images_process_exited(struct images *im, const struct priv_msg *ev);

/* ---- the store, for an operator. The work is done in a thread; fn is called once, on the loop, never before these return. e: NULL, or why not.
 * False: no memory, and fn is not called. */
typedef void (*image_store_fn)(void *arg, const struct buf *answer, const struct err *e);
/* answer: JSON, {"items":[{name,local,digest,storedBytes,diskBytes,builtAt,usedAt,pins}],"aliases":[{name,alias}]} */
bool images_list(struct daemon *d, image_store_fn fn, void *arg);
/* EBUSY: a sandbox, snapshot or template is based on it. ENOENT: no such image. The answer is empty. */
bool images_remove(struct daemon *d, const char *name, image_store_fn fn, void *arg);
