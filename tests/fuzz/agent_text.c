/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts that the image's programs or a client wrote: the environment file, paths with variables, passwd and group, schedules, glob
 * patterns, a session's dump, what an isolated session's programs say and what it is made from. The first byte chooses.
 */
#include <string.h>

#include "agent/agent.h"
#include "agent/env.h"
#include "agent/schedule.h"
#include "agent/isolate_conf.h"
#include "agent/session.h"
#include "agent/tree.h"
#include "agent/users.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void try_env(const char *text)
{
	struct envset *e = env_new();
	struct buf b;
	char name[64];

	ASSERT(e);
	env_set(e, "HOME", "/root");
	env_merge_text(e, text);
	for (size_t i = 0; i < e->n; i++)
		ASSERT(strchr(e->kv[i], '=') > e->kv[i]);
	ASSERT(!e->kv[e->n]);
	buf_init(&b, 4096);
	env_expand(e, text, "/root", &b, name);
	buf_fini(&b);
	env_unref(e);
}

static void try_users(char *text)
{
	char *mid = strchr(text, '\1'), name[64];
	struct userdb db = {.passwd = text, .group = mid ? mid + 1 : text};
	struct user u;

	if (mid)
		*mid = 0;
	user_by_spec(&db, "u:g", &u);
	user_by_spec(&db, text, &u);
	user_by_id(&db, 1000, (gid_t)-1, &u);
	ASSERT(u.ngroups >= 1 && u.ngroups <= USER_GROUPS_MAX && u.uid == 1000);
	name_of_uid(&db, 0, name);
	name_of_gid(&db, 0, name);
}

static void try_schedule(const char *text)
{
	struct schedule s;
	uint64_t next;

	if (schedule_parse(text, &s) < 0)
		return;
	next = schedule_next(&s, 1767225600);
	ASSERT(next == 0 || next > 1767225600);
}

static void try_dump(const char *text, size_t n)
{
	struct agent a = {0};
	struct envset *given = env_new();

	ASSERT(given && env_set(given, "A", "b") == 0 && session_create(&a, "s", "/") == 0);
	session_take_dump(session_find(&a, "s"), text, n, given, false, "/");
	ASSERT(session_cwd(session_find(&a, "s"))[0] == '/');
	session_apply(session_find(&a, "s"), given);
	sessions_free(&a);
	env_unref(given);
}

/* what an isolated session says */
static void try_line(const char *text)
{
	struct iso_line l;

	if (iso_line_parse(text, &l))
		ASSERT(l.text >= text && l.text <= text + strlen(text));
	iso_env_is_private(text, strlen(text));
}

static void try_conf(const char *text, size_t n)
{
	static struct iso_conf c;
	struct cur b = cur_of(text, n);

	if (iso_conf_parse(&b, &c) < 0)
		return;
	ASSERT(c.user.ngroups <= USER_GROUPS_MAX && c.r.nmounts <= AGENT_MOUNTS_MAX);
	iso_conf_free(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	char *text, *mid;

	if (n == 0)
		return 0;
	text = malloc(n);
	ASSERT(text);
	memcpy(text, p + 1, n - 1);
	text[n - 1] = 0;
	switch (p[0] % 7) {
	case 0:
		try_env(text);
		break;
	case 1:
		try_users(text);
		break;
	case 2:
		try_schedule(text);
		break;
	case 3:
		mid = strchr(text, '\1');
		if (mid)
			*mid = 0;
		tree_match(text, mid ? mid + 1 : "some.name");
		break;
	case 4:
		try_dump(text, n - 1);
		break;
	case 5:
		try_line(text);
		break;
	default:
		try_conf(text, n - 1);
	}
	free(text);
	return 0;
}
