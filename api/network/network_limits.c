/* SPDX-License-Identifier: Apache-2.0
 *
 * network_limits.c: limits of one sandbox's network, as a client gives them in `extensions`. mayflyd's loop. Hostile: the texts.
 */
#include <cjson/cJSON.h>
#include <string.h>

#include "api/network/network.h"

#define LIMIT_DIGITS 9u

static const struct {
	const char *name;
	size_t at;
} limits[] = {
	{"mayfly.network.connections", offsetof(struct network_limits, connections)},
	{"mayfly.network.connection_rate", offsetof(struct network_limits, connection_rate)},
	{"mayfly.network.query_rate", offsetof(struct network_limits, query_rate)},
	{"mayfly.network.mbit", offsetof(struct network_limits, mbit)},
	{"mayfly.network.packets", offsetof(struct network_limits, packets)},
};

int network_limits_read(const cJSON *extensions, struct network_limits *out, struct err *e)
{
	struct network_limits l = {0};

	for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
		const cJSON *v = cJSON_GetObjectItemCaseSensitive(extensions, limits[i].name);
		const char *t = cJSON_IsString(v) ? v->valuestring : "";
		size_t n = strlen(t);

		if (!v)
			continue;
		if (!n || n > LIMIT_DIGITS || t[strspn(t, "0123456789")] || *t == '0')
			return err_plain(e, EINVAL,
				"extensions['%s'] is \"%.40s\": it must be a whole number from 1 "
				"to "
				"999999999.",
				limits[i].name, t);
		*(uint64_t *)((char *)&l + limits[i].at) = strtoull(t, NULL, 10);
	}
	*out = l;
	return 0;
}
