/* SPDX-License-Identifier: Apache-2.0
 *
 * worker_file.h: a worker.md: Markdown whose front matter, between two lines of "---", says what a worker is. Read into JSON. The text is not trusted.
 */
#pragma once

#include "lib/err.h"

struct cJSON;

#define WORKER_FILE_MAX  (256u * 1024)
#define WORKER_DEPTH_MAX 24u

/* The front matter of n bytes, as an object. Of YAML it may have: mappings and lists by indentation, a list's entries on one line each, [lists] and
 * {mappings} on one line, texts (plain, in quotes, or as a block after "|"), numbers, true, false, null, comments. 0, or -EINVAL: e names the line. */
int worker_file_read(struct cJSON **out, const char *text, size_t n, struct err *e);
