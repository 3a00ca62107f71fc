/* SPDX-License-Identifier: Apache-2.0
 *
 * floor.c: see floor.h.
 */
#include "api/sandbox/floor.h"

#include <string.h>

#include "api/core/config.h"
#include "api/core/hardening.h"
#include "api/links/agent_client.h"

bool floor_wanted(const struct config *c)
{
	return c->harden_caps || c->harden_seccomp || c->harden_no_new_privs || c->landlock;
}

static void put_paths(struct buf *b, const char *list)
{
	size_t at = b->len;
	uint8_t n = 0;

	buf_u32(b, 0);
	for (size_t k; *list && n < AGENT_ALLOWED_MAX; list += k) {
		list += strspn(list, " ");
		k = strcspn(list, " ");
		if (!k)
			break;
		buf_blob(b, list, k);
		n++;
	}
	if (!b->bad)
		b->p[at] = n;
}

void floor_put(struct buf *b, const struct config *c)
{
	uint64_t keep = 0;

	(void)capabilities_parse(c->harden_keep, &keep, NULL); /* hardening_check() has passed */
	buf_u32(b, (c->harden_caps ? AGENT_H_CAPS : 0) | (c->harden_seccomp ? AGENT_H_SECCOMP : 0) |
			   (c->harden_no_new_privs ? AGENT_H_NO_NEW_PRIVS : 0) |
			   (c->landlock ? AGENT_H_LANDLOCK : 0));
	buf_u64(b, keep);
	put_paths(b, c->landlock ? c->landlock_read : "");
	put_paths(b, c->landlock ? c->landlock_write : "");
}

/* Does a layer that was asked for hold? A degraded one does: Landlock is degraded if one of its paths does not exist. */
static bool layer_holds(uint32_t state)
{
	return state == AGENT_LAYER_ACTIVE || state == AGENT_LAYER_DEGRADED;
}

int floor_check(const struct config *c, const struct agent_reply *r, struct err *e)
{
	const struct {
		const char *name;
		bool wanted;
	} layers[] = {{"cap_drop", c->harden_caps}, {"seccomp", c->harden_seccomp},
		{"landlock", c->landlock}};
	struct cur k = r->body;
	bool holds[ARRAY_LEN(layers)] = {false};
	uint32_t n;

	if (r->err)
		return err_plain(e, EOPNOTSUPP, "the agent sets no hardening floor: %s",
			*r->text ? r->text : strerror(r->err));
	n = cur_u32(&k);
	for (uint32_t i = 0; i < n && i < 16 && !k.bad; i++) {
		char name[32], message[256];
		uint32_t state;

		cur_str(&k, name, sizeof(name));
		state = cur_u32(&k);
		cur_str(&k, message, sizeof(message));
		for (size_t l = 0; l < ARRAY_LEN(layers) && !k.bad; l++)
			if (!strcmp(name, layers[l].name))
				holds[l] = layer_holds(state);
	}
	if (!cur_done(&k))
		return err_plain(e, EPROTO, "the agent's answer about hardening is not valid");
	for (size_t l = 0; l < ARRAY_LEN(layers); l++)
		if (layers[l].wanted && !holds[l])
			return err_plain(e, EOPNOTSUPP,
				"the hardening layer %s is configured and not active",
				layers[l].name);
	return 0;
}
