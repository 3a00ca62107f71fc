/* SPDX-License-Identifier: Apache-2.0
 *
 * oci.c: reading manifests. Image jobs and the store; the JSON is a registry's or an archive's, hostile in both cases.
 */
#include "images/oci/oci.h"

#include <stdio.h>
#include <string.h>

static const struct {
	const char *type;
	enum media kind;
} types[] = {
	{"application/vnd.oci.image.index.v1+json", MEDIA_INDEX},
	{"application/vnd.docker.distribution.manifest.list.v2+json", MEDIA_INDEX},
	{"application/vnd.oci.image.manifest.v1+json", MEDIA_MANIFEST},
	{"application/vnd.docker.distribution.manifest.v2+json", MEDIA_MANIFEST},
	{"application/vnd.oci.image.config.v1+json", MEDIA_CONFIG},
	{"application/vnd.docker.container.image.v1+json", MEDIA_CONFIG},
	{"application/vnd.oci.image.layer.v1.tar", MEDIA_LAYER},
	{"application/vnd.oci.image.layer.v1.tar+gzip", MEDIA_LAYER},
	{"application/vnd.oci.image.layer.v1.tar+zstd", MEDIA_LAYER},
	{"application/vnd.docker.image.rootfs.diff.tar", MEDIA_LAYER},
	{"application/vnd.docker.image.rootfs.diff.tar.gzip", MEDIA_LAYER},
	{"application/vnd.docker.image.rootfs.diff.tar.zstd", MEDIA_LAYER},
	{"application/vnd.oci.image.layer.nondistributable.v1.tar", MEDIA_LAYER_FOREIGN},
	{"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", MEDIA_LAYER_FOREIGN},
	{"application/vnd.oci.image.layer.nondistributable.v1.tar+zstd", MEDIA_LAYER_FOREIGN},
	{"application/vnd.docker.image.rootfs.foreign.diff.tar", MEDIA_LAYER_FOREIGN},
	{"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", MEDIA_LAYER_FOREIGN},
};

enum media media_kind(const char *type)
{
	for (size_t i = 0; type && i < ARRAY_LEN(types); i++)
		if (strcmp(types[i].type, type) == 0)
			return types[i].kind;
	return MEDIA_UNKNOWN;
}

void platform_host(struct platform *p)
{
	memset(p, 0, sizeof(*p));
	str_copy(p->os, sizeof(p->os), "linux");
#if defined(__x86_64__)
	str_copy(p->arch, sizeof(p->arch), "amd64");
#elif defined(__aarch64__)
	str_copy(p->arch, sizeof(p->arch), "arm64");
#else
#error "name this architecture as Go does"
#endif
}

/* Copies a member that may be absent; false when it does not fit. */
static bool take_str(const cJSON *o, const char *key, char *to, size_t cap)
{
	const char *s = json_str(o, key);

	to[0] = 0;
	if (!s)
		return true;
	if (strlen(s) >= cap)
		return false;
	str_copy(to, cap, s);
	return true;
}

int platform_parse(const char *s, struct platform *out)
{
	struct platform p = {0};
	char *field[] = {p.os, p.arch, p.variant};
	const size_t cap[] = {sizeof(p.os), sizeof(p.arch), sizeof(p.variant)};
	size_t n = 0;

	for (;; n++) {
		size_t len = strcspn(s, "/");

		if (n == 3 || len == 0 || len >= cap[n])
			return -EINVAL;
		memcpy(field[n], s, len);
		if (!s[len])
			break;
		s += len + 1;
	}
	if (n == 0)
		return -EINVAL;
	*out = p;
	return 0;
}

static int take_descriptor(const cJSON *o, struct descriptor *out, struct err *e)
{
	const char *digest = json_str(o, "digest");
	const cJSON *platform = json_obj(o, "platform"), *notes = json_obj(o, "annotations");
	struct descriptor d = {0};

	if (!cJSON_IsObject(o))
		return err_plain(e, EBADMSG, "descriptor is not an object");
	if (!digest || digest_parse(digest, &d.digest) < 0)
		return err_plain(e, EBADMSG,
			"descriptor with the digest \"%.90s\" (sha256 is needed)",
			digest ? digest : "");
	if (json_u64(o, "size", &d.size) < 0)
		return err_plain(e, EBADMSG, "descriptor %.19s without a size", digest);
	if (!take_str(o, "mediaType", d.type, sizeof(d.type)))
		return err_plain(
			e, EBADMSG, "descriptor %.19s with an overlong media type", digest);
	d.media = media_kind(d.type);
	if (platform && (!take_str(platform, "os", d.platform.os, sizeof(d.platform.os)) ||
				!take_str(platform, "architecture", d.platform.arch,
					sizeof(d.platform.arch)) ||
				!take_str(platform, "variant", d.platform.variant,
					sizeof(d.platform.variant))))
		return err_plain(e, EBADMSG, "descriptor %.19s with an overlong platform", digest);
	if (notes && !take_str(notes, "org.opencontainers.image.ref.name", d.ref, sizeof(d.ref)))
		d.ref[0] = 0; /* only a name: an overlong one names nothing */
	*out = d;
	return 0;
}

static int take_list(const cJSON *arr, uint32_t max, const char *what, struct descriptor **out,
	uint32_t *n, struct err *e)
{
	_cleanup_free_ struct descriptor *d = NULL;
	int count = cJSON_GetArraySize(arr);
	const cJSON *o;
	uint32_t i = 0;

	if (count < 0 || (uint32_t)count > max)
		return err_plain(e, E2BIG, "%d %ss (at most %u)", count, what, max);
	d = calloc((size_t)count + 1, sizeof(*d));
	if (!d)
		return err_set(e, ENOMEM, "%ss", what);
	cJSON_ArrayForEach (o, arr) {
		int r = take_descriptor(o, &d[i++], e);

		if (r < 0)
			return err_wrap(e, "%s %u", what, i);
	}
	*out = take_ptr(d);
	*n = i;
	return 0;
}

static int check_schema(const cJSON *j, struct err *e)
{
	uint64_t v;

	if (json_u64(j, "schemaVersion", &v) < 0 || v != 2)
		return err_plain(e, EBADMSG, "schema version is not 2");
	return 0;
}

int oci_index_parse(const void *p, size_t len, struct oci_index *out, struct err *e)
{
	_cleanup_(json_freep) cJSON *j = json_parse(p, len, e);
	struct oci_index i;
	int r;

	if (!j)
		return err_wrap(e, "index");
	if (check_schema(j, e) < 0)
		return err_wrap(e, "index");
	if (!json_arr(j, "manifests"))
		return err_plain(e, EBADMSG, "index without manifests");
	r = take_list(json_arr(j, "manifests"), 1024, "manifest", &i.d, &i.n, e);
	if (r < 0)
		return err_wrap(e, "index");
	*out = i;
	return 0;
}

void oci_index_fini(struct oci_index *i)
{
	free(i->d);
	*i = (struct oci_index){0};
}

static int check_layers(const struct oci_manifest *m, struct err *e)
{
	for (uint32_t i = 0; i < m->n; i++) {
		const struct descriptor *l = &m->layers[i];

		if (l->media == MEDIA_LAYER_FOREIGN)
			return err_plain(e, ENOTSUP,
				"layer %u of %u is of the type %s: its bytes are not in the "
				"registry",
				i + 1, m->n, l->type);
		if (l->media != MEDIA_LAYER)
			return err_plain(e, ENOTSUP, "layer %u of %u is of the unknown type \"%s\"",
				i + 1, m->n, l->type);
	}
	return 0;
}

int oci_manifest_parse(const void *p, size_t len, struct oci_manifest *out, struct err *e)
{
	_cleanup_(json_freep) cJSON *j = json_parse(p, len, e);
	struct oci_manifest m = {0};
	int r;

	if (!j)
		return err_wrap(e, "manifest");
	r = check_schema(j, e);
	if (r == 0 && !json_obj(j, "config"))
		r = err_plain(e, EBADMSG, "no configuration");
	if (r == 0 && !json_arr(j, "layers"))
		r = err_plain(e, EBADMSG, "no layers");
	if (r == 0)
		r = take_descriptor(json_obj(j, "config"), &m.config, e);
	if (r == 0 && m.config.media != MEDIA_CONFIG)
		r = err_plain(e, ENOTSUP, "not an image: its configuration is of the type \"%s\"",
			m.config.type);
	if (r == 0)
		r = take_list(json_arr(j, "layers"), IMAGE_MAX_LAYERS, "layer", &m.layers, &m.n, e);
	if (r == 0)
		r = check_layers(&m, e);
	if (r < 0) {
		oci_manifest_fini(&m);
		return err_wrap(e, "manifest");
	}
	*out = m;
	return 0;
}

void oci_manifest_fini(struct oci_manifest *m)
{
	free(m->layers);
	*m = (struct oci_manifest){0};
}

enum media oci_document_kind(const void *p, size_t len, struct err *e)
{
	_cleanup_(json_freep) cJSON *j = json_parse(p, len, e);
	enum media k;

	if (!j)
		return MEDIA_UNKNOWN;
	k = media_kind(json_str(j, "mediaType"));
	if (k != MEDIA_UNKNOWN)
		return k;
	if (json_arr(j, "manifests") && !json_arr(j, "layers"))
		return MEDIA_INDEX;
	if (json_arr(j, "layers") && !json_arr(j, "manifests"))
		return MEDIA_MANIFEST;
	err_plain(e, EBADMSG, "neither an image manifest nor an index");
	return MEDIA_UNKNOWN;
}

static bool platform_fits(const struct platform *want, const struct platform *have)
{
	if (strcmp(want->os, have->os) != 0 || strcmp(want->arch, have->arch) != 0)
		return false;
	return !want->variant[0] || !have->variant[0] || strcmp(want->variant, have->variant) == 0;
}

int oci_index_pick(const struct oci_index *i, const struct platform *want,
	const struct descriptor **out, struct err *e)
{
	char list[300] = "";
	size_t at = 0;

	for (uint32_t k = 0; k < i->n; k++) {
		const struct descriptor *d = &i->d[k];

		if (d->media != MEDIA_MANIFEST && d->media != MEDIA_INDEX)
			continue;
		/* in layouts that tools write for one image, the only entry names no platform */
		if (platform_fits(want, &d->platform) || (!d->platform.arch[0] && i->n == 1)) {
			*out = d;
			return 0;
		}
		if (at < sizeof(list))
			at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s/%s",
				at ? ", " : "", d->platform.os, d->platform.arch);
	}
	return err_plain(e, ENOENT, "not there for %s/%s, but for: %s", want->os, want->arch,
		at ? list : "nothing");
}
