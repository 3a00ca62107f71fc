/* SPDX-License-Identifier: Apache-2.0
 *
 * env.h: sets of environment variables, the file that SDKs append to ($EXECD_ENVS), and the expansion of ~, $NAME and ${NAME}.
 */
#pragma once

#include "lib/buf.h"

#define ENV_VARS_MAX     4096u
#define ENV_VALUE_MAX    (128u * 1024) /* what execve takes in one string */
#define ENV_FILE_MAX     (256u * 1024)
#define ENV_FILE_DEFAULT "/opt/opensandbox/.env"

struct envset {
	unsigned refs; /* only the loop's thread counts */
	size_t n, cap;
	char **kv; /* "NAME=value" */
};

struct envset *env_new(void);
struct envset *env_ref(struct envset *e);
void env_unref(struct envset *e);
/* 0, -ENOMEM, -EINVAL for a name that is empty or holds '=', -E2BIG. */
int env_set(struct envset *e, const char *k, const char *v);
int env_setn(struct envset *e, const char *k, size_t kn, const char *v, size_t vn);
void env_unset(struct envset *e, const char *k);
const char *env_get(const struct envset *e, const char *k);
int env_merge(struct envset *to, const struct envset *from);
/* Reads u32 n, n x {str, str} into e: 0 or -errno (-EPROTO: the bytes are no such list). */
int env_parse(struct envset *e, struct cur *c);
/* Merges lines NAME=value, NAME='value' (may span lines), NAME="escaped"; `export` before them and
 * # lines are fine. Other lines are skipped. Unquoted and double-quoted values expand variables set
 * so far. */
int env_merge_text(struct envset *e, const char *text);
/* Appends `text` with a leading ~ or ~/ and variables replaced. -ENOENT: undefined; *name (64
 * bytes) then says which. */
int env_expand(
	const struct envset *e, const char *text, const char *home, struct buf *to, char name[64]);
