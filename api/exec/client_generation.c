/* SPDX-License-Identifier: Apache-2.0
 *
 * client_generation.c: what an older generation of the official clients expects. mayflyd. The User-Agent is a client's: it decides only how that
 * client's own answer is written.
 *
 * From release 1.1.1 on a text event keeps its line's ending. Older SDKs join the events with newlines of their own, or compare a text with the
 * line alone. They are known by name and version; every other client gets the endings.
 */
#include "api/exec/client_generation.h"

#include <string.h>

#include "api/core/config.h"
#include "api/exec/execd_int.h"

/* A pre-release counts as its release. */
static const struct {
	const char *agent;
	unsigned int last[3]; /* the last version that wants lines without endings; ~0u: any */
} older[] = {
	{"OpenSandbox-Python-SDK/", {1, 1, 0}},
	{"OpenSandbox-JS-SDK/", {0, 1, 11}},
	{"OpenSandbox-Kotlin-SDK/", {1, 0, ~0u}},
	{"OpenSandbox-CSharp-SDK/", {0, 1, ~0u}},
	{"OpenSandbox-Go-SDK/", {1, 0, 5}},
};

/* Up to three numbers with dots between. False: it does not begin with a number. */
static bool read_version(const char *s, unsigned int v[3])
{
	for (size_t i = 0; i < 3; i++) {
		size_t n = 0;

		for (v[i] = 0; n < 6 && s[n] >= '0' && s[n] <= '9'; n++)
			v[i] = v[i] * 10 + (unsigned int)(s[n] - '0');
		if (!n) {
			/* "1.": nothing follows the dot */
			for (size_t k = i; k < 3; k++)
				v[k] = 0;
			return i > 0;
		}
		s += n;
		if (*s++ != '.') {
			while (++i < 3)
				v[i] = 0;
			return true;
		}
	}
	return true;
}

bool client_is_older(const char *user_agent)
{
	for (size_t i = 0; i < ARRAY_LEN(older); i++) {
		size_t n = strlen(older[i].agent), k = 0;
		unsigned int v[3];

		if (strncmp(user_agent, older[i].agent, n) != 0)
			continue;
		if (!read_version(user_agent + n, v))
			return false;
		while (k < 2 && v[k] == older[i].last[k])
			k++;
		return v[k] <= older[i].last[k];
	}
	return false;
}

bool execd_strips_lines(struct http_req *r)
{
	const char *mode = sandbox_config(r->sandbox)->line_endings;
	const char *agent = http_header(r, "User-Agent");

	if (strcmp(mode, "auto") != 0)
		return !strcmp(mode, "strip");
	return agent && client_is_older(agent);
}
