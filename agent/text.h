/* SPDX-License-Identifier: Apache-2.0
 *
 * text.h: small files of the image, read without trusting it: never a FIFO or a device, never longer than asked for.
 */
#pragma once

#include "lib/base.h"

/* The whole regular file, terminated, to be freed; NULL and errno (EINVAL: not a regular file,
 * EFBIG). */
char *text_load(const char *path, size_t max, size_t *len);
/* Writes a whole file in place or (atomic) by rename; 0 or -errno. */
int text_store(const char *path, const char *text, bool atomic);
/* For /proc, /sys and cgroup files: one write; 0 or -errno. */
int text_poke(const char *path, const char *text);
int text_poke_at(int dir, const char *name, const char *text);
/* A whole decimal number and nothing else. */
bool text_u64(const char *s, uint64_t max, uint64_t *v);
