/* SPDX-License-Identifier: Apache-2.0
 *
 * contexts.c: see contexts.h. Each request to the daemon is a short chain of requests to the Jupyter server: a struct context_ask, whose `next` handles the
 * server's next answer. A sandbox's default contexts are resolved one at a time: two requests at once would make two of them.
 */
#include "api/code/contexts.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "api/code/cell.h"
#include "api/code/kernel_channel.h"
#include "api/links/agent_client.h"
#include "lib/utf8.h"

#define SPECS_MAX    64u
#define CHANNELS_MAX 16u /* idle ones that stay open, for each sandbox */
#define CWD_MAX      1024u

struct spec {
	char name[JUPYTER_ID_MAX + 1], language[CONTEXT_LANGUAGE_MAX + 1];
};

struct contexts {
	struct agentc *agent;
	struct spec specs[SPECS_MAX];
	size_t nspecs;
	LIST_HEAD(context_head, context) all;
	TAILQ_HEAD(ask_list, context_ask) asks;
	struct context_ask *resolving; /* whose turn it is to resolve a default context */
	bool gone;
};

struct context_ask {
	TAILQ_ENTRY(context_ask) link;
	struct contexts *cs;
	struct jupyter_server server;
	char id[JUPYTER_ID_MAX + 1], language[CONTEXT_LANGUAGE_MAX + 1], cwd[CWD_MAX];
	bool any_language, is_default, waits;
	struct jupyter_call *call;
	struct agent_call *mkdir;
	void (*next)(struct context_ask *k, const struct jupyter_answer *a);
	/* the step after the kernel specs, or the list of sessions, came */
	void (*begin)(struct context_ask *k);
	struct context_item *items;
	size_t n, at;
	struct context *ctx; /* the result, if it is one context */
	context_fn fn;
	void *arg;
};

/* ---- contexts that the daemon remembers */

static void contexts_free(void *data)
{
	struct contexts *cs = data;
	struct context_ask *k;
	struct context *x;

	cs->gone = true;
	while ((k = TAILQ_FIRST(&cs->asks))) {
		context_fn fn = k->fn;
		void *arg = k->arg;

		context_cancel(k);
		fn(arg, &(struct context_answer){.err = ECANCELED, .why = "the sandbox has ended"});
	}
	while ((x = LIST_FIRST(&cs->all))) {
		if (x->cell)
			cell_lost(x->cell, ECANCELED, "the sandbox has ended");
		context_forget(x);
	}
	free(cs);
}

struct contexts *contexts_of(struct agentc *a)
{
	struct contexts *cs = agentc_data(a, AGENTC_DATA_CODE);

	if (cs)
		return cs;
	cs = calloc(1, sizeof(*cs));
	if (!cs)
		return NULL;
	cs->agent = a;
	LIST_INIT(&cs->all);
	TAILQ_INIT(&cs->asks);
	agentc_set_data(a, AGENTC_DATA_CODE, cs, contexts_free);
	return cs;
}

struct context *context_find(struct contexts *cs, const char *id)
{
	struct context *x;

	LIST_FOREACH(x, &cs->all, link)
	if (!strcmp(x->id, id))
		return x;
	return NULL;
}

static struct context *find_default(struct contexts *cs, const char *language)
{
	struct context *x;

	LIST_FOREACH(x, &cs->all, link)
	if (x->is_default && !strcmp(x->language, language))
		return x;
	return NULL;
}

void context_forget(struct context *x)
{
	LIST_REMOVE(x, link);
	kernel_channel_destroy(x->channel);
	free(x);
}

unsigned int contexts_running(const struct contexts *cs)
{
	const struct context *x;
	unsigned int n = 0;

	LIST_FOREACH(x, &cs->all, link)
	n += x->cell != NULL;
	return n;
}

static struct context *least_used(struct contexts *cs, bool with_channel, size_t *n)
{
	struct context *x, *old = NULL;

	*n = 0;
	LIST_FOREACH(x, &cs->all, link)
	{
		if (with_channel && !x->channel)
			continue;
		++*n;
		if (!x->cell && (!old || x->used_ns < old->used_ns))
			old = x;
	}
	return old;
}

void contexts_tidy(struct contexts *cs)
{
	struct context *x;
	size_t n;

	while ((x = least_used(cs, true, &n)) && n > CHANNELS_MAX) {
		kernel_channel_destroy(take_ptr(x->channel));
		x->channel_open = false;
	}
	while ((x = least_used(cs, false, &n)) && n > CONTEXTS_MAX)
		context_forget(x);
}

static struct context *remember(struct contexts *cs, const struct context_item *i)
{
	struct context *x = context_find(cs, i->id);

	/* a session can get another kernel: the old one's channel leads nowhere */
	if (x && strcmp(x->kernel, i->kernel) != 0 && !x->cell) {
		context_forget(x);
		x = NULL;
	}
	if (x)
		return x;
	x = calloc(1, sizeof(*x));
	if (!x)
		return NULL;
	x->of = cs;
	str_copy(x->id, sizeof(x->id), i->id);
	str_copy(x->kernel, sizeof(x->kernel), i->kernel);
	str_copy(x->language, sizeof(x->language), i->language);
	x->is_default = i->is_default;
	x->used_ns = mono_ns();
	LIST_INSERT_HEAD(&cs->all, x, link);
	contexts_tidy(cs);
	return x;
}

/* ---- asks */

static void ask_resolve_begin(struct context_ask *k);

static void ask_next_turn(struct contexts *cs)
{
	struct context_ask *k;

	TAILQ_FOREACH(k, &cs->asks, link)
	{
		if (!k->waits)
			continue;
		k->waits = false;
		cs->resolving = k;
		ask_resolve_begin(k);
		return;
	}
}

static void ask_tell_context(void *arg);
static void ask_tell_no_memory(void *arg);

void context_cancel(struct context_ask *k)
{
	struct contexts *cs;

	if (!k)
		return;
	cs = k->cs;
	TAILQ_REMOVE(&cs->asks, k, link);
	jupyter_cancel(k->call);
	if (k->mkdir)
		agent_call_cancel(k->mkdir);
	loop_undefer(agentc_loop(cs->agent), ask_tell_context, k);
	loop_undefer(agentc_loop(cs->agent), ask_tell_no_memory, k);
	if (cs->resolving == k) {
		cs->resolving = NULL;
		if (!cs->gone)
			ask_next_turn(cs);
	}
	free(k->items);
	free(k);
}

/* Frees k and calls fn. */
static void ask_end(struct context_ask *k, int err, const char *why)
{
	struct context_answer a = {.err = err,
		.why = why,
		.ctx = err ? NULL : k->ctx,
		.items = err ? NULL : k->items,
		.n = err ? 0 : k->n};
	struct context_item *items = take_ptr(k->items);
	context_fn fn = k->fn;
	void *arg = k->arg;

	context_cancel(k);
	fn(arg, &a);
	free(items);
}

/* Called from the loop for a context that was remembered when the request came. It may have been forgotten since. */
static void ask_tell_context(void *arg)
{
	struct context_ask *k = arg;

	k->ctx = k->is_default ? find_default(k->cs, k->language) : context_find(k->cs, k->id);
	ask_end(k, k->ctx ? 0 : ENOENT, "no such context");
}

static void ask_tell_no_memory(void *arg)
{
	ask_end(arg, ENOMEM, "out of memory");
}

static void ask_out_of_memory(struct context_ask *k)
{
	/* this may run before the caller has k, and fn may not be called before that */
	k->next = NULL;
	if (loop_defer(agentc_loop(k->cs->agent), ask_tell_no_memory, k) < 0)
		ask_end(k, ENOMEM, "out of memory");
}

static void ask_answer(void *arg, const struct jupyter_answer *a)
{
	struct context_ask *k = arg;

	k->call = NULL;
	if (a->err)
		ask_end(k, a->err, a->why);
	else
		k->next(k, a);
}

static void ask_server(struct context_ask *k, const char *method, const char *path,
	const char *body, void (*next)(struct context_ask *k, const struct jupyter_answer *a))
{
	k->next = next;
	k->call = jupyter_ask(k->cs->agent, &k->server, method, path, body, ask_answer, k);
	if (!k->call)
		ask_out_of_memory(k);
}

static void ask_unexpected(struct context_ask *k, const struct jupyter_answer *a)
{
	struct json_slice m = json_slice_member(a->body, "message");
	char why[400], text[256] = "";

	json_slice_copy(m, text, sizeof(text));
	if (a->status == 401 || a->status == 403)
		snprintf(why, sizeof(why),
			"the Jupyter server refuses the token in JUPYTER_TOKEN (%d)", a->status);
	else
		snprintf(why, sizeof(why), "the Jupyter server answered %d%s%s", a->status,
			*text ? ": " : "", text);
	ask_end(k, EIO, why);
}

/* ---- kernel specs */

static void lower(char *s)
{
	for (; *s; s++)
		*s = (char)tolower((unsigned char)*s);
}

static void specs_read(struct contexts *cs, struct json_slice body)
{
	struct json_walk w = json_walk_of(json_slice_member(body, "kernelspecs"));
	struct json_slice name, value;

	cs->nspecs = 0;
	while (cs->nspecs < SPECS_MAX && json_walk_next(&w, &name, &value)) {
		struct spec *s = &cs->specs[cs->nspecs];

		if (!json_slice_copy(name, s->name, sizeof(s->name)) || !jupyter_id_ok(s->name) ||
			!json_slice_copy(
				json_slice_member(json_slice_member(value, "spec"), "language"),
				s->language, sizeof(s->language)))
			continue;
		lower(s->language);
		cs->nspecs++;
	}
}

/* As the protocol has it: python3 is taken only if the language has no other kernel. */
static const struct spec *spec_for(const struct contexts *cs, const char *language)
{
	const struct spec *found = NULL;

	for (size_t i = 0; i < cs->nspecs; i++)
		if (!strcmp(cs->specs[i].language, language) &&
			(!found || !strcmp(found->name, "python3")))
			found = &cs->specs[i];
	return found;
}

static const char *language_of(const struct contexts *cs, const char *kernel_name)
{
	for (size_t i = 0; i < cs->nspecs; i++)
		if (!strcmp(cs->specs[i].name, kernel_name))
			return cs->specs[i].language;
	return "";
}

static void ask_has_specs(struct context_ask *k, const struct jupyter_answer *a)
{
	if (a->status != 200) {
		ask_unexpected(k, a);
		return;
	}
	specs_read(k->cs, a->body);
	k->begin(k);
}

/* Calls begin when the kernel specs are known. Asks the server again if none of those that are known has the language. */
static void ask_specs(struct context_ask *k, void (*begin)(struct context_ask *k))
{
	k->begin = begin;
	if (k->cs->nspecs && (k->any_language || spec_for(k->cs, k->language)))
		begin(k);
	else
		ask_server(k, "GET", "/api/kernelspecs", NULL, ask_has_specs);
}

/* ---- sessions */

static bool session_is_default(struct json_slice s, const char *language)
{
	char name[sizeof(CONTEXT_DEFAULT_NAME) + CONTEXT_LANGUAGE_MAX];

	snprintf(name, sizeof(name), CONTEXT_DEFAULT_NAME "%s", language);
	return json_slice_is(json_slice_member(s, "name"), name);
}

static bool session_read(const struct contexts *cs, struct json_slice s, struct context_item *i)
{
	struct json_slice kernel = json_slice_member(s, "kernel");
	char name[JUPYTER_ID_MAX + 1];

	*i = (struct context_item){0};
	if (!json_slice_copy(json_slice_member(s, "id"), i->id, sizeof(i->id)) ||
		!jupyter_id_ok(i->id) ||
		!json_slice_copy(json_slice_member(kernel, "id"), i->kernel, sizeof(i->kernel)) ||
		!jupyter_id_ok(i->kernel) ||
		!json_slice_copy(json_slice_member(kernel, "name"), name, sizeof(name)))
		return false;
	str_copy(i->language, sizeof(i->language), language_of(cs, name));
	i->is_default = session_is_default(s, i->language);
	return true;
}

static bool ask_add(struct context_ask *k, const struct context_item *i)
{
	struct context_item *p = reallocarray(k->items, k->n + 1, sizeof(*p));

	if (!p)
		return false;
	k->items = p;
	k->items[k->n++] = *i;
	return true;
}

static void ask_remembers(struct context_ask *k, const struct context_item *i)
{
	k->ctx = remember(k->cs, i);
	ask_end(k, k->ctx ? 0 : ENOMEM, "out of memory");
}

/* ---- a new session */

static void put_new_session(struct buf *b, const struct context_ask *k, const struct spec *spec)
{
	char name[sizeof(CONTEXT_DEFAULT_NAME) + CONTEXT_LANGUAGE_MAX],
		path[CWD_MAX + sizeof(name) + 16];

	if (k->is_default) {
		snprintf(name, sizeof(name), CONTEXT_DEFAULT_NAME "%s", k->language);
	} else {
		uint8_t raw[16];

		random_bytes(raw, sizeof(raw));
		for (size_t i = 0; i < sizeof(raw); i++)
			snprintf(name + 2 * i, 3, "%02x", raw[i]);
	}
	snprintf(path, sizeof(path), "%s/%s.ipynb", strcmp(k->cwd, "/") ? k->cwd : "", name);
	buf_printf(b, "{\"path\":");
	json_string(b, path);
	buf_printf(b, ",\"name\":\"%s\",\"type\":\"notebook\",\"kernel\":{\"name\":\"%s\"}}", name,
		spec->name);
}

static void ask_created(struct context_ask *k, const struct jupyter_answer *a)
{
	struct context_item i;

	if (a->status != 201 && a->status != 200) {
		ask_unexpected(k, a);
	} else if (!session_read(k->cs, a->body, &i)) {
		ask_end(k, EIO, "the Jupyter server's answer names no session");
	} else {
		/* its kernel's name may be an alias of the one that was asked for */
		str_copy(i.language, sizeof(i.language), k->language);
		i.is_default = k->is_default;
		if (ask_add(k, &i))
			ask_remembers(k, &i);
		else
			ask_end(k, ENOMEM, "out of memory");
	}
}

static void ask_create_session(struct context_ask *k)
{
	const struct spec *spec = spec_for(k->cs, k->language);
	struct buf b;

	buf_init(&b, 16384);
	put_new_session(&b, k, spec);
	if (b.bad)
		ask_out_of_memory(k);
	else
		ask_server(k, "POST", "/api/sessions", buf_cstr(&b), ask_created);
	buf_fini(&b);
}

static void ask_has_folder(void *arg, const struct agent_reply *r)
{
	struct context_ask *k = arg;
	char why[400];

	k->mkdir = NULL;
	if (r->err) {
		snprintf(why, sizeof(why), "cannot make the working directory %.200s: %.150s",
			k->cwd, r->text[0] ? r->text : strerror(r->err));
		ask_end(k, EIO, why);
	} else {
		ask_create_session(k);
	}
}

static void ask_make_folder(struct context_ask *k)
{
	struct buf b;

	if (!spec_for(k->cs, k->language)) {
		char why[400];
		size_t n = (size_t)snprintf(why, sizeof(why),
			"no kernel for the language '%s'. The sandbox has:", k->language);

		for (size_t i = 0; i < k->cs->nspecs && n < sizeof(why); i++)
			if (spec_for(k->cs, k->cs->specs[i].language) == &k->cs->specs[i])
				n += (size_t)snprintf(
					why + n, sizeof(why) - n, " %s", k->cs->specs[i].language);
		ask_end(k, EINVAL, why);
		return;
	}
	buf_init(&b, 4 * CWD_MAX);
	buf_u32(&b, AGENT_NO_ID);
	buf_u32(&b, AGENT_NO_ID);
	buf_str(&b, k->cwd);
	buf_str(&b, "");
	buf_str(&b, "");
	buf_u32(&b, AGENT_NO_MODE);
	k->mkdir = agentc_call(k->cs->agent, AGENT_MKDIR, &b, 30000, ask_has_folder, k);
	buf_fini(&b);
	if (!k->mkdir)
		ask_out_of_memory(k);
}

/* ---- resolve */

static void ask_has_one(struct context_ask *k, const struct jupyter_answer *a)
{
	struct context_item i;

	if (a->status == 404)
		ask_end(k, ENOENT, "no such context");
	else if (a->status != 200)
		ask_unexpected(k, a);
	else if (!session_read(k->cs, a->body, &i) || !ask_add(k, &i))
		ask_end(k, EIO, "the Jupyter server's answer names no session");
	else
		ask_remembers(k, &i);
}

static void ask_one(struct context_ask *k)
{
	char path[32 + JUPYTER_ID_MAX];

	snprintf(path, sizeof(path), "/api/sessions/%s", k->id);
	ask_server(k, "GET", path, NULL, ask_has_one);
}

static void ask_find_default(struct context_ask *k, const struct jupyter_answer *a)
{
	struct json_walk w = json_walk_of(a->body);
	struct json_slice value;
	struct context_item i;

	if (a->status != 200) {
		ask_unexpected(k, a);
		return;
	}
	while (json_walk_next(&w, NULL, &value)) {
		if (!session_is_default(value, k->language) || !session_read(k->cs, value, &i))
			continue;
		str_copy(i.language, sizeof(i.language), k->language);
		i.is_default = true;
		ask_remembers(k, &i);
		return;
	}
	ask_specs(k, ask_make_folder);
}

/* The name of a default context has its language, so the kernel specs are needed only to make one. */
static void ask_resolve_begin(struct context_ask *k)
{
	k->ctx = find_default(k->cs, k->language);
	if (!k->ctx)
		ask_server(k, "GET", "/api/sessions", NULL, ask_find_default);
	else if (loop_defer(agentc_loop(k->cs->agent), ask_tell_context, k) < 0)
		ask_out_of_memory(k);
}

/* ---- list and delete */

static void ask_has_list(struct context_ask *k, const struct jupyter_answer *a)
{
	struct json_walk w = json_walk_of(a->body);
	struct json_slice value;
	struct context_item i;

	if (a->status != 200) {
		ask_unexpected(k, a);
		return;
	}
	while (k->n < CONTEXTS_MAX && json_walk_next(&w, NULL, &value)) {
		if (!session_read(k->cs, value, &i) ||
			(!k->any_language && strcmp(i.language, k->language) != 0))
			continue;
		if (!ask_add(k, &i)) {
			ask_end(k, ENOMEM, "out of memory");
			return;
		}
	}
	k->begin(k);
}

static void ask_is_done(struct context_ask *k)
{
	ask_end(k, 0, NULL);
}

static void ask_list(struct context_ask *k)
{
	k->begin = ask_is_done;
	ask_server(k, "GET", "/api/sessions", NULL, ask_has_list);
}

static void forget_deleted(struct contexts *cs, const char *id)
{
	struct context *x = context_find(cs, id);

	if (x && x->cell)
		cell_lost(x->cell, ENOENT, "the context was deleted");
	if (x)
		context_forget(x);
}

static void ask_delete_one(struct context_ask *k, const char *id,
	void (*next)(struct context_ask *k, const struct jupyter_answer *a))
{
	char path[32 + JUPYTER_ID_MAX];

	snprintf(path, sizeof(path), "/api/sessions/%s", id);
	ask_server(k, "DELETE", path, NULL, next);
}

/* 410: its kernel ended before */
static bool is_deleted(int status)
{
	return status == 204 || status == 200 || status == 410;
}

static void ask_deleted(struct context_ask *k, const struct jupyter_answer *a)
{
	if (is_deleted(a->status) || a->status == 404)
		forget_deleted(k->cs, k->id);
	if (is_deleted(a->status))
		ask_end(k, 0, NULL);
	else if (a->status == 404)
		ask_end(k, ENOENT, "no such context");
	else
		ask_unexpected(k, a);
}

static void ask_delete_next(struct context_ask *k);

static void ask_deleted_next(struct context_ask *k, const struct jupyter_answer *a)
{
	if (!is_deleted(a->status) && a->status != 404) {
		ask_unexpected(k, a);
		return;
	}
	forget_deleted(k->cs, k->items[k->at++].id);
	ask_delete_next(k);
}

static void ask_delete_next(struct context_ask *k)
{
	if (k->at == k->n)
		ask_end(k, 0, NULL);
	else
		ask_delete_one(k, k->items[k->at].id, ask_deleted_next);
}

static void ask_delete_all(struct context_ask *k)
{
	k->begin = ask_delete_next;
	ask_server(k, "GET", "/api/sessions", NULL, ask_has_list);
}

/* ---- interrupt */

static void ask_interrupted(struct context_ask *k, const struct jupyter_answer *a)
{
	if (a->status == 204 || a->status == 200)
		ask_end(k, 0, NULL);
	else if (a->status == 404)
		ask_end(k, ENOENT, "no such context");
	else
		ask_unexpected(k, a);
}

static void ask_interrupt_kernel(struct context_ask *k, const char *kernel)
{
	char path[48 + JUPYTER_ID_MAX];

	snprintf(path, sizeof(path), "/api/kernels/%s/interrupt", kernel);
	ask_server(k, "POST", path, NULL, ask_interrupted);
}

static void ask_has_kernel(struct context_ask *k, const struct jupyter_answer *a)
{
	struct context_item i;

	if (a->status == 404)
		ask_end(k, ENOENT, "no such context");
	else if (a->status != 200 || !session_read(k->cs, a->body, &i))
		ask_unexpected(k, a);
	else
		ask_interrupt_kernel(k, i.kernel);
}

/* ---- the beginning of each */

static struct context_ask *ask_new(struct contexts *cs, const struct jupyter_server *s,
	const char *id, const char *language, context_fn fn, void *arg)
{
	struct context_ask *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	k->cs = cs;
	k->server = *s;
	k->fn = fn;
	k->arg = arg;
	k->any_language = !language;
	snprintf(k->id, sizeof(k->id), "%s", id ? id : "");
	snprintf(k->language, sizeof(k->language), "%s", language ? language : "");
	TAILQ_INSERT_TAIL(&cs->asks, k, link);
	return k;
}

struct context_ask *context_resolve(struct contexts *cs, const struct jupyter_server *s,
	const char *id, const char *language, const char *cwd, context_fn fn, void *arg)
{
	struct context_ask *k = ask_new(cs, s, id, id ? NULL : language, fn, arg);

	if (!k)
		return NULL;
	snprintf(k->cwd, sizeof(k->cwd), "%s", cwd);
	if (id) {
		k->ctx = context_find(cs, id);
		if (!k->ctx)
			ask_specs(k, ask_one);
		else if (loop_defer(agentc_loop(cs->agent), ask_tell_context, k) < 0)
			ask_out_of_memory(k);
		return k;
	}
	k->is_default = true;
	if (cs->resolving) {
		k->waits = true;
	} else {
		cs->resolving = k;
		ask_resolve_begin(k);
	}
	return k;
}

struct context_ask *context_create(struct contexts *cs, const struct jupyter_server *s,
	const char *language, const char *cwd, context_fn fn, void *arg)
{
	struct context_ask *k = ask_new(cs, s, NULL, language, fn, arg);

	if (k) {
		snprintf(k->cwd, sizeof(k->cwd), "%s", cwd);
		ask_specs(k, ask_make_folder);
	}
	return k;
}

struct context_ask *context_list(struct contexts *cs, const struct jupyter_server *s,
	const char *language, context_fn fn, void *arg)
{
	struct context_ask *k = ask_new(cs, s, NULL, language, fn, arg);

	if (k)
		ask_specs(k, ask_list);
	return k;
}

struct context_ask *context_get(struct contexts *cs, const struct jupyter_server *s, const char *id,
	context_fn fn, void *arg)
{
	struct context_ask *k = ask_new(cs, s, id, NULL, fn, arg);

	if (k)
		ask_specs(k, ask_one);
	return k;
}

struct context_ask *context_delete(struct contexts *cs, const struct jupyter_server *s,
	const char *id, context_fn fn, void *arg)
{
	struct context_ask *k = ask_new(cs, s, id, NULL, fn, arg);

	if (k)
		ask_delete_one(k, k->id, ask_deleted);
	return k;
}

struct context_ask *context_delete_all(struct contexts *cs, const struct jupyter_server *s,
	const char *language, context_fn fn, void *arg)
{
	struct context_ask *k = ask_new(cs, s, NULL, language, fn, arg);

	if (k)
		ask_specs(k, ask_delete_all);
	return k;
}

struct context_ask *context_interrupt(struct contexts *cs, const struct jupyter_server *s,
	const char *id, context_fn fn, void *arg)
{
	struct context_ask *k = ask_new(cs, s, id, NULL, fn, arg);
	const struct context *x = context_find(cs, id);
	char path[32 + JUPYTER_ID_MAX];

	if (k && x) {
		ask_interrupt_kernel(k, x->kernel);
	} else if (k) {
		snprintf(path, sizeof(path), "/api/sessions/%s", k->id);
		ask_server(k, "GET", path, NULL, ask_has_kernel);
	}
	return k;
}
