/* SPDX-License-Identifier: Apache-2.0
 *
 * oci.h: descriptors, indexes and manifests of the OCI image specification, and of Docker's older form of it. Readers of hostile
 * JSON: everything is checked here, so that the rest of the code can rely on it.
 */
#pragma once

#include "images/oci/digest.h"
#include "images/oci/json.h"
#include "images/oci/limits.h"

enum media {
	MEDIA_UNKNOWN,
	MEDIA_INDEX,
	MEDIA_MANIFEST,
	MEDIA_CONFIG,
	MEDIA_LAYER,         /* tar, plain, gzip or zstd */
	MEDIA_LAYER_FOREIGN, /* not distributable: only a URL elsewhere */
};
enum media media_kind(const char *type);

struct platform {
	char os[24], arch[24], variant[16];
};
/* this machine's */
void platform_host(struct platform *p);
/* "linux/arm64/v8"; -EINVAL */
int platform_parse(const char *s, struct platform *out);

struct descriptor {
	enum media media;
	char type[112];
	struct digest digest;
	uint64_t size;
	struct platform platform; /* "" = not said */
	char ref[256];            /* org.opencontainers.image.ref.name; "" = not said */
};

struct oci_index {
	struct descriptor *d;
	uint32_t n;
};
struct oci_manifest {
	struct descriptor config;
	struct descriptor *layers;
	uint32_t n;
};

/* 0 or -errno; *out is written only on success and freed by the caller. */
int oci_index_parse(const void *p, size_t len, struct oci_index *out, struct err *e);
void oci_index_fini(struct oci_index *i);
int oci_manifest_parse(const void *p, size_t len, struct oci_manifest *out, struct err *e);
void oci_manifest_fini(struct oci_manifest *m);
/* The kind of a document that came without (or with a wrong) Content-Type: by its mediaType, then
 * by its members. */
enum media oci_document_kind(const void *p, size_t len, struct err *e);
/* The entry for a platform; -ENOENT with a message that lists what there is. */
int oci_index_pick(const struct oci_index *i, const struct platform *want,
	const struct descriptor **out, struct err *e);
