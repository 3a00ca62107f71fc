/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_image.h: what the commands of `mayfly image` share.
 */
#pragma once

#include "images/store/obtain.h"

const char *image_store_default(char *to, size_t cap);
/* Obtains with progress on stderr, prints "NAME DIGEST". */
int image_fetch(struct store *s, const struct image_request *q, struct err *e);
int cmd_image_build(int argc, char **argv);
