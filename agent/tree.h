/* SPDX-License-Identifier: Apache-2.0
 *
 * tree.h: requests that walk directories. Job threads.
 */
#pragma once

#include "lib/base.h"

struct job;

void tree_run_list(struct job *j);
void tree_run_search(struct job *j);
/* Removes the directory and everything below it, however deep; follows no link. 0 or -errno. */
int tree_remove(const char *path);
/* Does one name match a shell pattern? * ? [set] [!set] \x; ** is the same as *. */
bool tree_match(const char *pat, const char *name);
/* Removes what is in the directory, not itself. 0 or -errno. */
int tree_empty(int dir);
