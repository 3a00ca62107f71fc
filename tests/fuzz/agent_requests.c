/* SPDX-License-Identifier: Apache-2.0
 *
 * The agent's request parsers that build something: AGENT_EXEC, AGENT_SESSION_NEW, AGENT_SETUP, AGENT_THAW, the lifecycle's JSON. The first byte chooses.
 */
#include <string.h>

#include "agent/exec.h"
#include "agent/harden.h"
#include "agent/hooks.h"
#include "agent/ident.h"
#include "agent/req_session.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void try_exec(struct cur *c, uint32_t version)
{
	struct exec_req r;

	if (exec_parse(c, version, &r) < 0)
		return;
	ASSERT(r.id[0] && r.cwd && r.env && (r.argc || (r.flags & AGENT_X_SHELL)));
	for (uint32_t i = 0; i < r.argc; i++)
		ASSERT(strlen(r.argv[i]) < AGENT_ARGS_MAX);
	ASSERT(!r.argv[r.argc] && r.nlimits <= AGENT_LIMITS_MAX);
	exec_req_free(&r);
}

static void try_session(struct cur *c, uint32_t version)
{
	struct session_req r;

	if (session_parse(c, version, &r) < 0)
		return;
	ASSERT(r.kind == AGENT_SE_SHELL || r.note);
	ASSERT(r.kind != AGENT_SE_TERMINAL || (r.terminal.command && r.terminal.env));
	for (size_t i = 0; i < r.iso.nmounts; i++)
		ASSERT(r.iso.mounts[i].source[0] == '/' && r.iso.mounts[i].dest[0] == '/');
	session_req_free(&r);
}

static void try_harden(struct cur *c)
{
	static struct harden_req r;

	if (harden_parse(c, &r) == 0)
		ASSERT(r.nread <= AGENT_ALLOWED_MAX && r.nwrite <= AGENT_ALLOWED_MAX);
}

static void try_setup(struct cur *c)
{
	struct setup_req r;

	if (setup_parse(c, &r) < 0)
		return;
	ASSERT(r.workdir && r.user && r.lifecycle && r.image_env && r.id.env);
	setup_req_free(&r);
}

static void try_identity(struct cur *c)
{
	struct identity id;

	if (identity_parse(c, &id) < 0)
		return;
	for (const char *h = id.hostname; *h; h++)
		ASSERT(*h != '/' && *h != '\n');
	identity_free(&id);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct cur c = cur_of(p + 1, n ? n - 1 : 0);
	static struct agent a;
	struct err e;
	char *text;

	if (n == 0)
		return 0;
	switch (p[0] % 4) {
	case 0:
		if (p[0] & 16)
			try_harden(&c);
		else if (p[0] & 8)
			try_session(&c, p[0] & 4 ? 2 : 3);
		else
			try_exec(&c, p[0] & 4 ? 1 : 2);
		break;
	case 1:
		try_setup(&c);
		break;
	case 2:
		try_identity(&c);
		break;
	default:
		text = strndup((const char *)p + 1, n - 1);
		ASSERT(text);
		hooks_set(&a, text, &e);
		hooks_fini(&a);
		free(text);
	}
	return 0;
}
