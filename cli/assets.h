/* SPDX-License-Identifier: Apache-2.0
 *
 * assets.h: where kernels, the appliance's root and our own files are: beside the program, in the
 * build tree or installed.
 */
#pragma once

#include <limits.h>

#include "lib/err.h"

/* The path of a kernel: the given file, or (NULL) name in
 * ${MAYFLY_CACHE:-${XDG_CACHE_HOME:-~/.cache}/mayfly}, or the installed one. The file must be
 * there and whole. 0 or -errno. */
int asset_kernel(const char *name, const char *given, char to[static PATH_MAX], struct err *e);
/* A file of ours: build tree (relative to build/bin) first, then the installed place. 0 or -errno.
 */
int asset_find(const char *built, const char *installed, char to[static PATH_MAX], struct err *e);
/* The appliance's root image: built when it is missing or no longer right. 0 or -errno. */
int asset_machine_root(char to[static PATH_MAX], struct err *e);
