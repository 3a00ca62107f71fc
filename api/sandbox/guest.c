/* SPDX-License-Identifier: Apache-2.0
 *
 * guest.c: see guest.h. mayflyd's loop.
 */
#include "api/sandbox/guest.h"

#include <cjson/cJSON.h>

#include "api/sandbox/sandbox.h"

struct agentc *sandbox_agentc(struct sandbox *sb)
{
	return sb->agent;
}

void sandbox_count_exec(struct sandbox *sb, bool failed)
{
	*(failed ? &sb->d->metrics.execs_failed : &sb->d->metrics.execs) += 1;
}

const struct config *sandbox_config(const struct sandbox *sb)
{
	return &sb->d->cfg;
}

const char *sandbox_env(const struct sandbox *sb, const char *name)
{
	return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(sb->spec.env, name));
}

const char *sandbox_image_env(const struct sandbox *sb, const char *name)
{
	const cJSON *env = cJSON_GetObjectItemCaseSensitive(sb->image_config, "env");

	return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(env, name));
}

const char *sandbox_workdir(const struct sandbox *sb)
{
	const char *dir =
		cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(sb->image_config, "workdir"));

	return dir ? dir : "";
}
