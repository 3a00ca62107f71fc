/* SPDX-License-Identifier: Apache-2.0
 *
 * route_images.c: the images of this server, for an operator: list, pull, remove. mayflyd's loop. The
 * request is a client's; names, progress and reasons come from image jobs, which read hostile images.
 */
#include <cjson/cJSON.h>
#include <string.h>

#include "api/core/daemon.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/lifecycle/spec.h"
#include "api/links/images.h"
#include "images/oci/ref.h"
#include "lib/json.h"

static void listed(void *arg, const struct buf *answer, const struct err *e)
{
	struct http_req *r = arg;

	if (e)
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "The images cannot be listed: %s",
			e->msg);
	else
		http_reply(r, 200, "application/json", answer->p, answer->len);
}

void route_image_list(struct http_req *r)
{
	if (!images_list(r->app, listed, r))
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
}

static void removed(void *arg, const struct buf *answer, const struct err *e)
{
	struct http_req *r = arg;

	if (!e)
		http_reply_empty(r, 204);
	else if (e->code == ENOENT)
		http_error(r, 404, "MAYFLY::IMAGE_NOT_FOUND", "%s", e->msg);
	else if (e->code == EBUSY)
		http_error(r, 409, "MAYFLY::IMAGE_IN_USE", "%s", e->msg);
	else
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "%s", e->msg);
}

void route_image_delete(struct http_req *r)
{
	const char *name = http_query(r, "name");

	if (!name || !*name || strlen(name) >= REF_MAX)
		http_error(r, 400, "SANDBOX::INVALID_PARAMETER",
			"name: the name or digest of an image is wanted");
	else if (!images_remove(r->app, name, removed, r))
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
}

/* ---- pull: a stream of JSON lines, {"progress"} and last {"digest"} or {"error"} */

struct pull {
	struct http_req *r;
	struct image_job *job; /* NULL: it has ended */
	bool begun;
};

static void line_send(struct pull *p, const char *key, const char *value)
{
	struct buf b;

	if (!p->begun)
		http_stream_begin(p->r, 200, "application/x-ndjson", -1);
	p->begun = true;
	buf_init(&b, KIB(16));
	buf_printf(&b, "{\"%s\":", key);
	json_string(&b, value);
	buf_put(&b, "}\n", 2);
	/* progress that a slow client does not read is left out; the last line is always sent */
	if (!b.bad && (strcmp(key, "progress") != 0 || http_stream_room(p->r) > b.len))
		http_stream_write(p->r, b.p, b.len);
	buf_fini(&b);
}

static void pull_progress(void *arg, const char *text)
{
	line_send(arg, "progress", text);
}

static void pull_ended(void *arg, struct image *img, const struct err *e)
{
	struct pull *p = arg;

	p->job = NULL;
	line_send(p, e ? "error" : "digest", e ? e->msg : img->digest);
	http_stream_end(p->r);
}

/* The client has left: nobody waits for the image. */
static void pull_gone(struct http_req *r)
{
	struct pull *p = r->user;

	if (!p->job)
		return;
	image_cancel(take_ptr(p->job));
	http_abort(r);
}

void route_image_pull(struct http_req *r)
{
	struct pull *p = http_alloc(r, sizeof(*p));
	struct refusal x;
	cJSON *body = json_object(r->body, r->body_len, &x);
	const char *name = body ? json_str(body, "name") : NULL;
	const char *user = body ? json_str(body, "username") : NULL;
	const char *password = body ? json_str(body, "password") : NULL;
	struct image_ref ref;
	char owner[OWNER_MAX];
	struct err e = {0};

	principal_owner(&r->principal, owner);
	if (!body) {
		http_error(r, x.status, x.code, "%s", x.msg);
	} else if (!p) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	} else if (!name || ref_parse(name, &ref, &e) < 0) {
		http_error(r, 400, "SANDBOX::INVALID_PARAMETER", "name: %s",
			name ? e.msg : "the name of an image is wanted");
	} else {
		*p = (struct pull){.r = r};
		r->user = p;
		http_on_gone(r, pull_gone);
		p->job = image_get(
			r->app, name, user, password, owner, pull_progress, pull_ended, p, &e);
		if (!p->job)
			http_error(r, 400, "SANDBOX::INVALID_PARAMETER", "%s", e.msg);
	}
	if (password)
		explicit_bzero((char *)(uintptr_t)password, strlen(password));
	cJSON_Delete(body);
}
