/* SPDX-License-Identifier: Apache-2.0
 *
 * user_template.h: templates of the user's: a checkpoint of an image whose entrypoint is already started and ready.
 * Built in the background by a sandbox of its own (template_build.h), and again when kernel, board or agent have changed. mayflyd's loop.
 */
#pragma once

#include "api/checkpoint/checkpoint.h"
#include "api/sandbox/sandbox.h"

extern const struct checkpoint_kind user_template_kind;

struct build;

struct utemplate {
	struct checkpoint c; /* its files are used until newer ones are built */
	struct cJSON *req;   /* the request's fields, as they are shown */
	char boot_key[65];
	bool stale; /* it must be built, in any state */
	bool made;  /* its record is committed */
	struct build *build;
};

static inline struct utemplate *utemplate_of(struct checkpoint *c)
{
	return (struct utemplate *)(void *)c;
}

static inline const struct utemplate *utemplate_of_const(const struct checkpoint *c)
{
	return (const struct utemplate *)(const void *)c;
}

/* NULL also while the first commit of its record has not ended. */
struct utemplate *utemplate_find(const struct daemon *d, const char *id);
/* All of them, those that are not committed included. */
unsigned int utemplates_count(const struct daemon *d);
/* A new one. fn is called when the record is committed, or could not be. -ENOMEM, or -EDQUOT and the account that is full: fn is not called,
 * and req is still the caller's. */
int utemplate_accept(struct daemon *d, struct cJSON *req, const char *owner, checkpoint_fn fn,
	struct http_req *r, struct account **full);
/* Its record is committed: it is there, and built as soon as its turn comes. */
void utemplate_begin(struct checkpoint *c);
/* The deletion of its record is committed: its build ends. */
void utemplate_deleted(struct checkpoint *c);

/* Takes up the builds that the last daemon left, and those that are out of date. */
void utemplates_go_on(struct daemon *d);

/* POST /sandboxes with templateId. 0, or -EINVAL and x. */
int utemplate_source(struct sandbox *sb, struct refusal *x);
/* A restore of it failed: drops its files and builds it again. */
void utemplate_bad(struct sandbox *sb);
