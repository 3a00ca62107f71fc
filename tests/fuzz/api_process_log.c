/* SPDX-License-Identifier: Apache-2.0
 *
 * What a jailed process writes into its log pipe, line by line: no byte behind a line's end is read, no logged line has a NUL, and its level is
 * one of ours.
 */
#include "api/links/process_log.h"

#include <string.h>

#include "lib/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	while (n) {
		const uint8_t *end = memchr(p, '\n', n);
		size_t len = end ? (size_t)(end - p) : n;
		/* a copy of its own: reading behind it is found */
		_cleanup_free_ char *line = malloc(len + 1);
		int level = -7;
		char *text;

		if (!line)
			return 0;
		memcpy(line, p, len);
		line[len] = 'x'; /* the place of the terminator, not of the line */
		text = process_log_line(line, len, &level);
		ASSERT(level >= LOG_ERROR && level <= LOG_DEBUG);
		ASSERT(text >= line && text + strlen(text) == line + len);
		n -= MIN(len + 1, n);
		p += len + 1;
	}
	return 0;
}
