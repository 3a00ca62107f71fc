/* SPDX-License-Identifier: Apache-2.0
 *
 * isolate_conf.c: the readers of isolate_conf.h, and the filter of a session's environment. The request is the host's, hostile; status lines
 * are written by the session's programs, hostile; the configuration comes from the agent.
 */
#include "agent/isolate_conf.h"

#include <stdio.h>
#include <string.h>

static char *take_text(struct cur *c, size_t max)
{
	size_t n;
	const char *s = cur_strp(c, &n, max);
	char *p;

	if (!s || memchr(s, 0, n)) {
		c->bad = true;
		return NULL;
	}
	p = strndup(s, n);
	if (!p)
		c->bad = true;
	return p;
}

static void take_list(struct cur *c, char **to, size_t *n, size_t max)
{
	uint32_t want = cur_u32(c);

	if (want > max)
		c->bad = true;
	while (!c->bad && *n < want) {
		to[*n] = take_text(c, AGENT_PATH_MAX - 1);
		if (to[*n])
			(*n)++;
	}
}

static void take_mounts(struct cur *c, struct iso_req *r)
{
	uint32_t want = cur_u32(c);

	if (want > AGENT_MOUNTS_MAX)
		c->bad = true;
	while (!c->bad && r->nmounts < want) {
		struct iso_mount *m = &r->mounts[r->nmounts++];

		m->mode = cur_u32(c);
		m->flags = cur_u32(c);
		m->source = take_text(c, AGENT_PATH_MAX - 1);
		m->dest = take_text(c, AGENT_PATH_MAX - 1);
		if (c->bad)
			return;
		if (!*m->dest) {
			free(m->dest);
			m->dest = strdup(m->source);
		}
		if (!m->dest || m->source[0] != '/' || m->dest[0] != '/' || m->mode < AGENT_IM_RO ||
			m->mode > AGENT_IM_OVERLAY ||
			(m->flags & ~(AGENT_IM_CHECKED | AGENT_IM_EPHEMERAL | AGENT_IM_MAKE)))
			c->bad = true;
	}
}

static void take_core(struct cur *c, struct iso_req *r)
{
	r->profile = cur_u32(c);
	r->flags = cur_u32(c);
	r->uid = cur_u32(c);
	r->gid = cur_u32(c);
	cur_str(c, r->user, sizeof(r->user));
	r->idle_ms = cur_u64(c);
	r->memory_bytes = cur_u64(c);
	r->pids = cur_u32(c);
	r->upper_bytes = cur_u64(c);
	take_list(c, r->allowed, &r->nallowed, AGENT_ALLOWED_MAX);
	for (size_t i = 0; i < r->nallowed; i++)
		if (r->allowed[i][0] != '/')
			c->bad = true;
	take_mounts(c, r);
	if ((r->profile != AGENT_STRICT && r->profile != AGENT_BALANCED) ||
		(r->flags & ~AGENT_IS_NO_NET))
		c->bad = true;
}

int iso_req_parse(struct cur *c, struct iso_req *r)
{
	int rc;

	*r = (struct iso_req){0};
	take_core(c, r);
	r->env_mode = cur_u32(c);
	take_list(c, r->names, &r->nnames, AGENT_NAMES_MAX);
	r->env = env_new();
	rc = c->bad ? -EPROTO : r->env ? env_parse(r->env, c) : -ENOMEM;
	r->note = rc == 0 ? take_text(c, AGENT_NOTE_MAX) : NULL;
	if (rc == 0 && (c->bad || r->env_mode > AGENT_EM_DENY))
		rc = -EPROTO;
	if (rc < 0)
		iso_req_free(r);
	return rc;
}

void iso_req_free(struct iso_req *r)
{
	for (size_t i = 0; i < r->nallowed; i++)
		free(r->allowed[i]);
	for (size_t i = 0; i < r->nnames; i++)
		free(r->names[i]);
	for (size_t i = 0; i < r->nmounts; i++) {
		free(r->mounts[i].source);
		free(r->mounts[i].dest);
	}
	env_unref(r->env);
	free(r->note);
	*r = (struct iso_req){0};
}

void iso_conf_put(struct buf *b, const struct iso_conf *c)
{
	buf_u32(b, c->user.uid);
	buf_u32(b, c->user.gid);
	buf_u32(b, (uint32_t)c->user.ngroups);
	for (size_t i = 0; i < c->user.ngroups; i++)
		buf_u32(b, c->user.groups[i]);
	buf_str(b, c->dir);
	buf_str(b, c->state_dir);
	buf_str(b, c->env_file);
	buf_str(b, c->cwd);
	buf_u32(b, c->r.profile);
	buf_u32(b, c->r.flags);
	buf_u32(b, c->r.uid);
	buf_u32(b, c->r.gid);
	buf_str(b, c->r.user);
	buf_u64(b, c->r.idle_ms);
	buf_u64(b, c->r.memory_bytes);
	buf_u32(b, c->r.pids);
	buf_u64(b, c->r.upper_bytes);
	buf_u32(b, (uint32_t)c->r.nallowed);
	for (size_t i = 0; i < c->r.nallowed; i++)
		buf_str(b, c->r.allowed[i]);
	buf_u32(b, (uint32_t)c->r.nmounts);
	for (size_t i = 0; i < c->r.nmounts; i++) {
		buf_u32(b, c->r.mounts[i].mode);
		buf_u32(b, c->r.mounts[i].flags);
		buf_str(b, c->r.mounts[i].source);
		buf_str(b, c->r.mounts[i].dest);
	}
	buf_u32(b, (uint32_t)c->env->n);
	for (size_t i = 0; i < c->env->n; i++) {
		const char *kv = c->env->kv[i], *eq = strchr(kv, '=');

		buf_blob(b, kv, (size_t)(eq - kv));
		buf_str(b, eq + 1);
	}
}

int iso_conf_parse(struct cur *b, struct iso_conf *c)
{
	*c = (struct iso_conf){0};
	c->user.uid = cur_u32(b);
	c->user.gid = cur_u32(b);
	c->user.ngroups = cur_u32(b);
	if (c->user.ngroups > USER_GROUPS_MAX)
		return -EPROTO;
	for (size_t i = 0; i < c->user.ngroups; i++)
		c->user.groups[i] = cur_u32(b);
	cur_str(b, c->dir, sizeof(c->dir));
	cur_str(b, c->state_dir, sizeof(c->state_dir));
	cur_str(b, c->env_file, sizeof(c->env_file));
	cur_str(b, c->cwd, sizeof(c->cwd));
	take_core(b, &c->r);
	c->env = env_new();
	if (c->env && !b->bad && env_parse(c->env, b) == 0 && cur_done(b))
		return 0;
	iso_conf_free(c);
	return -EPROTO;
}

void iso_conf_free(struct iso_conf *c)
{
	iso_req_free(&c->r);
	env_unref(c->env);
	c->env = NULL;
}

/* A star stands for any text, at the beginning or at the end. */
static const char *const private_vars[] = {"EXECD_*", "JUPYTER_HOST", "JUPYTER_PORT",
	"JUPYTER_TOKEN", "*_API_KEY", "*_TOKEN", "*_SECRET", "*_PASSWORD", "AWS_*", "ALI*", "K8S_*",
	"KUBE_*"};

bool iso_env_is_private(const char *name, size_t n)
{
	for (size_t i = 0; i < ARRAY_LEN(private_vars); i++) {
		const char *p = private_vars[i];
		size_t k = strlen(p);

		if (*p == '*'             ? n >= k - 1 && !memcmp(name + n - (k - 1), p + 1, k - 1)
			: p[k - 1] == '*' ? n >= k - 1 && !memcmp(name, p, k - 1)
					  : n == k && !memcmp(name, p, k))
			return true;
	}
	return false;
}

static bool is_listed(const struct iso_req *r, const char *name, size_t n)
{
	for (size_t i = 0; i < r->nnames; i++)
		if (strlen(r->names[i]) == n && !memcmp(r->names[i], name, n))
			return true;
	return false;
}

static bool is_passed(const struct iso_req *r, const char *name, size_t n)
{
	bool listed = is_listed(r, name, n);

	if (r->env_mode == AGENT_EM_ALLOW)
		return listed || (n == 4 && !memcmp(name, "PATH", 4));
	return !listed && !iso_env_is_private(name, n);
}

struct envset *iso_env(const struct envset *base, const struct iso_req *r, const char *home)
{
	struct envset *e = env_new();
	int rc = e ? env_set(e, "HOME", home) : -ENOMEM;

	for (size_t i = 0; i < base->n && rc == 0; i++) {
		const char *kv = base->kv[i], *eq = strchr(kv, '=');
		size_t n = (size_t)(eq - kv);

		if (n == 4 && !memcmp(kv, "HOME", 4) && !is_listed(r, kv, n))
			continue;
		if (is_passed(r, kv, n))
			rc = env_setn(e, kv, n, eq + 1, strlen(eq + 1));
	}
	if (rc == 0)
		rc = env_merge(e, r->env);
	if (rc == 0)
		return e;
	env_unref(e);
	return NULL;
}

static const char *take_number(const char *s, uint32_t *v)
{
	uint64_t n = 0;
	const char *p = s;

	while (*p >= '0' && *p <= '9' && p - s < 11)
		n = n * 10 + (uint64_t)(*p++ - '0');
	if (p == s || n > UINT32_MAX)
		return NULL;
	*v = (uint32_t)n;
	return p;
}

bool iso_line_parse(const char *s, struct iso_line *l)
{
	static const struct {
		enum iso_word word;
		int numbers;
		bool text;
	} forms[] = {{ISO_READY, 0, false}, {ISO_FAILED, 1, true}, {ISO_DONE, 1, false},
		{ISO_STARTED, 2, false}, {ISO_ENDED, 2, false}, {ISO_GONE, 1, false}};

	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		uint32_t v[2] = {0};
		const char *p = s + 1;

		if (*s != (char)forms[i].word)
			continue;
		for (int k = 0; k < forms[i].numbers; k++) {
			if (*p != ' ' || !(p = take_number(p + 1, &v[k])))
				return false;
		}
		if (forms[i].text ? *p != ' ' : *p != 0)
			return false;
		*l = (struct iso_line){forms[i].word, v[0], v[1], forms[i].text ? p + 1 : p};
		return true;
	}
	return false;
}
