/* SPDX-License-Identifier: Apache-2.0
 *
 * user_template.h: templates of the user's (protocol.md 1.17): an image with its entrypoint and environment already started and ready, kept as a point.
 * Built in the background by a sandbox of its own (build.h); built again when what they stand on has changed. mayflyd's loop.
 */
#pragma once

#include "api/checkpoint/checkpoint.h"
#include "api/sandbox/sandbox.h"

extern const struct checkpoint_kind user_template_kind;

/* Takes up the builds that the last daemon left, and those that are out of date. */
void utemplates_go_on(struct daemon *d);

/* POST /sandboxes with templateId. 0, or -EINVAL and x. */
int utemplate_source(struct sandbox *sb, struct refusal *x);
/* Its restore was refused: it is built again. */
void utemplate_bad(struct sandbox *sb);
