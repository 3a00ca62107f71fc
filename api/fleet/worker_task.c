/* SPDX-License-Identifier: Apache-2.0
 *
 * worker_task.c: see worker_task.h. The input has the contract's three members and no other. How the task is run is in context.worker, so that no second
 * document is needed.
 */
#include "api/fleet/worker_task.h"

#include <cjson/cJSON.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

#include "api/core/config.h"
#include "api/fleet/schema.h"
#include "lib/json.h"

struct part {
	struct worker_task *t;
	const cJSON *worker; /* context.worker */
	const struct config *c;
	struct err *e;
};

static int no_memory(struct err *e)
{
	return err_plain(e, EINVAL, "out of memory");
}

/* ---- run_id, task, context */

/* The name goes back to the client in an answer, and must not be cut inside a character. */
static int unknown_member(const char *where, const char *name, const char *known, struct err *e)
{
	return err_plain(e, EINVAL, "%s has the member '%s'; known are %s", where,
		strlen(name) <= 60 ? name : "(a long name)", known);
}

static int read_run_id(struct worker_task *t, struct err *e)
{
	const char *id = json_str(t->body, "run_id");
	size_t n = id ? strlen(id) : 0;

	if (!n || n > WORKER_ID_MAX)
		return err_plain(
			e, EINVAL, "run_id must be a string of 1 to %u bytes", WORKER_ID_MAX);
	memcpy(t->run_id, id, n + 1);
	return 0;
}

static int read_members(struct worker_task *t, struct err *e)
{
	static const char *const known[] = {"run_id", "task", "context"};
	const cJSON *v;

	cJSON_ArrayForEach (v, t->body) {
		size_t i = 0;

		while (i < ARRAY_LEN(known) && strcmp(v->string, known[i]) != 0)
			i++;
		if (i == ARRAY_LEN(known))
			return unknown_member(
				"the input", v->string, "run_id, task and context", e);
	}
	t->task = json_str(t->body, "task");
	if (!t->task || !*t->task || strlen(t->task) > WORKER_TEXT_MAX)
		return err_plain(
			e, EINVAL, "task must be a string of 1 to %u bytes", WORKER_TEXT_MAX);
	if (!json_obj(t->body, "context"))
		return err_plain(e, EINVAL, "context must be an object");
	return 0;
}

static int read_digest(struct part *p)
{
	uint8_t md[SHA256_DIGEST_LENGTH];
	char *text = cJSON_PrintUnformatted(p->t->body);

	if (!text)
		return no_memory(p->e);
	SHA256((const unsigned char *)text, strlen(text), md);
	for (size_t i = 0; i < sizeof(md); i++)
		snprintf(p->t->digest + 2 * i, 3, "%02x", md[i]);
	cJSON_free(text);
	return 0;
}

/* ---- context.worker */

static int read_source(struct part *p)
{
	static const char *const entrypoint[] = {"tail", "-f", "/dev/null"};
	const char *image = json_str(p->worker, "image"),
		   *template = json_str(p->worker, "template");
	const cJSON *limits = json_field(p->worker, "resource_limits");
	cJSON *o = p->t->create = cJSON_CreateObject(), *copy;
	uint64_t most = (uint64_t)p->c->max_sandbox_timeout_seconds;

	if (!image == !template || !*(image ? image : template))
		return err_plain(p->e, EINVAL,
			"context.worker must have one of image and template, a non-empty string");
	if (template && limits)
		return err_plain(p->e, EINVAL,
			"context.worker.resource_limits cannot be used together with template");
	/* a create from a template must have a timeout; the run deletes its sandbox long before */
	cJSON_AddNumberToObject(o, "timeout", (double)(most ? MIN(most, 86400) : 86400));
	if (template)
		return cJSON_AddStringToObject(o, "templateId", template) ? 0 : no_memory(p->e);
	cJSON_AddStringToObject(cJSON_AddObjectToObject(o, "image"), "uri", image);
	cJSON_AddItemToObject(o, "entrypoint", cJSON_CreateStringArray(entrypoint, 3));
	copy = limits ? cJSON_Duplicate(limits, true) : cJSON_CreateObject();
	return cJSON_AddItemToObject(o, "resourceLimits", copy) ? 0 : no_memory(p->e);
}

static const struct {
	const char *name, *program, *option;
} languages[] = {
	{"bash", "bash", "-c"},
	{"javascript", "node", "-e"},
	{"python", "python3", "-c"},
	{"sh", "sh", "-c"},
};

static int read_language(struct part *p)
{
	const cJSON *v = json_field(p->worker, "language");
	struct worker_task *t = p->t;

	if (!v) {
		t->shell = true;
		t->argc = 1;
		t->argv[0] = t->task;
		return 0;
	}
	for (size_t i = 0; cJSON_IsString(v) && i < ARRAY_LEN(languages); i++)
		if (!strcmp(v->valuestring, languages[i].name)) {
			t->argc = 3;
			t->argv[0] = languages[i].program;
			t->argv[1] = languages[i].option;
			t->argv[2] = t->task;
			return 0;
		}
	return err_plain(
		p->e, EINVAL, "context.worker.language must be bash, javascript, python or sh");
}

static int read_env(struct part *p)
{
	const cJSON *env = json_field(p->worker, "env"), *v;
	size_t bytes = 0;

	if (env && !cJSON_IsObject(env))
		return err_plain(p->e, EINVAL, "context.worker.env must be an object of strings");
	cJSON_ArrayForEach (v, env) {
		if (!cJSON_IsString(v) || !*v->string || strchr(v->string, '='))
			return err_plain(p->e, EINVAL,
				"context.worker.env must be an object of strings, whose names have "
				"no '='");
		bytes += strlen(v->string) + strlen(v->valuestring) + 2;
	}
	p->t->env = env;
	return bytes <= WORKER_ENV_MAX
		       ? 0
		       : err_plain(p->e, EINVAL, "context.worker.env may have at most %u bytes",
				 WORKER_ENV_MAX);
}

static int read_number(struct part *p, const char *name, uint64_t max, uint64_t dflt, uint64_t *out)
{
	const cJSON *v = json_field(p->worker, name);

	*out = dflt;
	if (!v || (json_whole(v, max, out) && *out))
		return 0;
	return err_plain(p->e, EINVAL, "context.worker.%s must be a whole number from 1 to %llu",
		name, (unsigned long long)max);
}

/* The sandbox of an attempt may not live longer than a client's. */
static int read_bounds(struct part *p)
{
	uint64_t most = (uint64_t)p->c->runs_max_timeout_seconds,
		 sandbox = (uint64_t)p->c->max_sandbox_timeout_seconds;
	int rc;

	most = sandbox ? MIN(most, sandbox) : most;
	rc = read_number(p, "timeout_seconds", most,
		MIN(most, (uint64_t)p->c->runs_timeout_seconds), &p->t->timeout_s);
	return rc < 0 ? rc
		      : read_number(p, "max_attempts", WORKER_ATTEMPT_MAX,
				(uint64_t)p->c->runs_max_attempts, &p->t->attempts);
}

/* input_schema is for the whole input, unchanged. */
static int read_schemas(struct part *p)
{
	const cJSON *in = json_field(p->worker, "input_schema"),
		    *out = json_field(p->worker, "output_schema");
	int rc = in ? schema_check(in, "context.worker.input_schema", p->e) : 0;

	if (rc == 0 && out)
		rc = schema_check(out, "context.worker.output_schema", p->e);
	if (rc == 0 && in)
		rc = schema_match(in, p->t->body, "input", p->e);
	p->t->output_schema = out;
	return rc < 0 ? -EINVAL : 0;
}

static int read_known(struct part *p)
{
	static const char *const known[] = {"image", "template", "resource_limits", "language",
		"env", "timeout_seconds", "max_attempts", "input_schema", "output_schema"};
	const cJSON *v;

	if (!p->worker)
		return err_plain(p->e, EINVAL,
			"context.worker must be an object that names an image or a template");
	cJSON_ArrayForEach (v, p->worker) {
		size_t i = 0;

		while (i < ARRAY_LEN(known) && strcmp(v->string, known[i]) != 0)
			i++;
		if (i == ARRAY_LEN(known))
			return unknown_member("context.worker", v->string,
				"image, template, resource_limits, language, env, timeout_seconds, "
				"max_attempts, input_schema and output_schema",
				p->e);
	}
	return 0;
}

/* Makes the text of context without `worker`. Members are referred to, not copied: they may be large. */
static int read_context(struct part *p)
{
	const cJSON *context = json_obj(p->t->body, "context");
	_cleanup_json_ cJSON *rest = cJSON_CreateObject();
	cJSON *v;

	cJSON_ArrayForEach (v, context)
		if (strcmp(v->string, "worker") != 0 &&
			!cJSON_AddItemReferenceToObject(rest, v->string, v))
			return no_memory(p->e);
	p->t->context = rest ? cJSON_PrintUnformatted(rest) : NULL;
	if (!p->t->context)
		return no_memory(p->e);
	return strlen(p->t->context) <= WORKER_TEXT_MAX
		       ? 0
		       : err_plain(p->e, EINVAL,
				 "context without worker may have at most %u bytes of text",
				 WORKER_TEXT_MAX);
}

int worker_task_read(
	struct worker_task *t, const void *p, size_t n, const struct config *c, struct err *e)
{
	/* cheap checks first */
	static int (*const parts[])(struct part * part) = {read_known, read_language, read_env,
		read_bounds, read_source, read_schemas, read_context, read_digest};
	struct part part = {.t = t, .c = c, .e = e};
	int rc;

	*t = (struct worker_task){0};
	rc = json_read(&t->body, p, n, JSON_OBJECT, e);
	if (rc == 0)
		rc = read_run_id(t, e);
	if (rc == 0)
		rc = read_members(t, e);
	part.worker = json_obj(json_obj(t->body, "context"), "worker");
	for (size_t i = 0; i < ARRAY_LEN(parts) && rc == 0; i++)
		rc = parts[i](&part);
	return rc < 0 ? -EINVAL : 0;
}

void worker_task_fini(struct worker_task *t)
{
	cJSON_Delete(t->body);
	cJSON_Delete(t->create);
	cJSON_free(t->context);
	*t = (struct worker_task){0};
}
