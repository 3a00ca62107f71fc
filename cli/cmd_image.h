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

/* cmd_image_remote.c: `mayfly image ls`, `pull` and `rm` by the daemon; they return the exit code. user, password: "" or NULL for none. */
int remote_ls(const char *url, bool json);
int remote_pull(const char *url, const char *name, const char *user, const char *password);
int remote_rm(const char *url, int n, char **names);
