/* SPDX-License-Identifier: Apache-2.0
 *
 * ref.h: image names as people write them: python, python:3.12, ghcr.io/x/y@sha256:..., localhost:5000/a/b:tag.
 */
#pragma once

#include "images/oci/digest.h"

#define REF_MAX          640 /* of the canonical form */
#define REF_REGISTRY_DEF "docker.io"

struct image_ref {
	char registry[256]; /* host or host:port */
	char repo[256];
	char tag[129]; /* "" when only a digest was given; "latest" when neither */
	bool has_digest;
	struct digest digest;
};

/* -EINVAL, and e says what is wrong. A name without a registry belongs to docker.io; there, a name without a slash
 * belongs to library/. */
int ref_parse(const char *s, struct image_ref *out, struct err *e);
/* registry/repo[:tag][@digest], the one spelling the store knows. */
const char *ref_canonical(const struct image_ref *r, char out[REF_MAX]);
/* The short form for people: without docker.io/ and library/. */
const char *ref_familiar(const struct image_ref *r, char out[REF_MAX]);
