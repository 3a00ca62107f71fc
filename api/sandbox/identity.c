/* SPDX-License-Identifier: Apache-2.0
 *
 * identity.c: see identity.h. mayflyd's loop. The image's config and the client's environment were
 * checked when they came; the agent checks again.
 */
#include "api/sandbox/identity.h"

#include <cjson/cJSON.h>

static void put_pairs(struct buf *b, const cJSON *map)
{
	const cJSON *v;

	cJSON_ArrayForEach (v, map) {
		buf_str(b, v->string);
		buf_str(b, v->valuestring);
	}
}

void identity_put(struct buf *b, struct sandbox *sb)
{
	uint8_t entropy[64];
	char machine[37];
	size_t n = 0;

	/* the machine id is the sandbox's id, so it stays the same through every pause */
	for (const char *p = sb->id; *p; p++)
		if (*p != '-')
			machine[n++] = *p;
	machine[n] = 0;
	random_bytes(entropy, sizeof(entropy));
	buf_u64(b, ++sb->generation);
	buf_blob(b, entropy, sizeof(entropy));
	buf_u64(b, wall_ns());
	buf_str(b, sb->id);
	buf_str(b, machine);
	buf_str(b, sb->boot_id);
	buf_u32(b, (uint32_t)cJSON_GetArraySize(sb->spec.env) + 1);
	put_pairs(b, sb->spec.env);
	buf_str(b, "OPENSANDBOX_ID");
	buf_str(b, sb->id);
	/* the resolver is the gateway, in every sandbox (lib/proto_net.h) */
	buf_str(b, sb->d->cfg.network_enabled ? "nameserver 192.0.2.1\n" : "");
}

static const char *config_text(const struct sandbox *sb, const char *name)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(sb->image_config, name);

	return cJSON_IsString(v) ? v->valuestring : "";
}

void setup_put(struct buf *b, struct sandbox *sb)
{
	const cJSON *env = cJSON_GetObjectItemCaseSensitive(sb->image_config, "env"), *v;
	char *hooks;

	identity_put(b, sb);
	buf_u32(b, (uint32_t)cJSON_GetArraySize(env));
	put_pairs(b, env);
	buf_str(b, config_text(sb, "workdir"));
	buf_str(b, config_text(sb, "user"));
	buf_u32(b, (uint32_t)cJSON_GetArraySize(sb->spec.entrypoint));
	cJSON_ArrayForEach (v, sb->spec.entrypoint)
		buf_str(b, v->valuestring);
	hooks = sb->spec.lifecycle ? cJSON_PrintUnformatted(sb->spec.lifecycle) : NULL;
	buf_str(b, hooks ? hooks : "");
	if (sb->spec.lifecycle && !hooks)
		b->bad = true; /* never start without the hooks */
	cJSON_free(hooks);
}
