/* SPDX-License-Identifier: Apache-2.0
 *
 * images_int.h: what images.c, images_admin.c and image_jobs.c share.
 */
#pragma once

#include "api/links/helper_client.h"
#include "images/store/obtain.h"

#define IMAGE_JOBS       4u /* workers at a time */
#define IMAGE_JOBS_OWNER 3u /* of these, for one owner */

struct spawner;
struct spawner *spawner_create(
	struct privctl *p, struct loop *loop, int wake_fd, const char *bin_dir, struct err *e);
/* For workers: its functions may be called from any thread but the loop's. */
const struct image_spawner *spawner_of(struct spawner *s);
/* The loop's turn: passes on to the helper what workers asked for. */
void spawner_serve(struct spawner *s);
void spawner_exited(struct spawner *s, const struct priv_msg *ev);
/* any thread */
void images_wake(int fd);
struct images;
struct store *images_store(struct images *im);
