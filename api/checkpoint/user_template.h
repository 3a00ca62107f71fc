/* SPDX-License-Identifier: Apache-2.0
 *
 * user_template.h: templates of the user's (protocol.md 1.17): an image with its entrypoint and environment already started and ready, kept as a point.
 * Built in the background by a sandbox of its own (build.h); built again when what they stand on has changed. mayflyd's loop.
 */
#pragma once

#include "api/sandbox/sandbox.h"

void utemplates_load(struct daemon *d);
/* Takes up the builds that the last daemon left, and those that are out of date. */
void utemplates_go_on(struct daemon *d);
/* This file is damaged: those that stand on it are built again. */
void utemplates_damaged(struct daemon *d, const char *blob);

/* Does one stand on this image's disk? */
bool utemplates_stand_on(const struct daemon *d, const char *image);

/* POST /sandboxes with templateId. 0, or -EINVAL and x. */
int utemplate_source(struct sandbox *sb, struct refusal *x);
/* Its restore was refused: it is built again. */
void utemplate_bad(struct sandbox *sb);
