/* SPDX-License-Identifier: Apache-2.0
 *
 * alias.h: names that an operator lets stand for other images: `images.aliases` of the daemon's configuration, "PATTERN=NAME
 * PATTERN=NAME ...". A pattern is a name, or the beginning of names with a '*' at its end. The daemon writes them beside the store's
 * names, so that `mayfly image ls` shows them.
 */
#pragma once

#include "lib/err.h"

#define ALIASES_MAX 4096u

/* 0; -EINVAL: an entry without '=', an empty side, or a '*' elsewhere. */
int aliases_check(const char *aliases, struct err *e);
/* The first entry whose pattern fits; "docker.io/" and "library/" before a name are ignored. false: none, or it does not fit
 * into `to`. */
bool alias_of(const char *aliases, const char *name, char *to, size_t cap);
/* Into and from the store's folder. */
int aliases_write(const char *store, const char *aliases, struct err *e);
/* "" if there are none. */
void aliases_read(const char *store, char to[ALIASES_MAX]);
/* Each entry in order. */
void aliases_each(const char *aliases, void (*fn)(void *arg, const char *pattern, const char *name),
	void *arg);
