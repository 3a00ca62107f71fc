/* SPDX-License-Identifier: Apache-2.0
 *
 * image_config.c: image configurations. Image jobs read the OCI form (hostile), the store reads image.json (written by a job, so not trusted
 * either). Two tables name the members once for both directions.
 */
#include "images/oci/image_config.h"

#include <stdio.h>
#include <string.h>

#define MAX_STRINGS 4096

static const struct {
	const char *oci, *own;
	size_t off;
	bool in_config; /* OCI: inside "config", else at the top */
} scalars[] = {
	{"architecture", "architecture", offsetof(struct image_config, arch), false},
	{"os", "os", offsetof(struct image_config, os), false},
	{"variant", "variant", offsetof(struct image_config, variant), false},
	{"created", "created", offsetof(struct image_config, created), false},
	{"User", "user", offsetof(struct image_config, user), true},
	{"WorkingDir", "workingDir", offsetof(struct image_config, workdir), true},
	{"StopSignal", "stopSignal", offsetof(struct image_config, stop_signal), true},
};

enum shape { ARRAY, KEYS, PAIRS };
static const struct {
	const char *oci, *own;
	size_t off;
	enum shape shape;
} lists[] = {
	{"Env", "env", offsetof(struct image_config, env), ARRAY},
	{"Entrypoint", "entrypoint", offsetof(struct image_config, entrypoint), ARRAY},
	{"Cmd", "cmd", offsetof(struct image_config, cmd), ARRAY},
	{"ExposedPorts", "exposedPorts", offsetof(struct image_config, ports), KEYS},
	{"Volumes", "volumes", offsetof(struct image_config, volumes), KEYS},
	{"Labels", "labels", offsetof(struct image_config, labels), PAIRS},
};

static char **scalar_at(const struct image_config *c, size_t off)
{
	return (char **)((uintptr_t)c + off);
}

static struct strings *list_at(const struct image_config *c, size_t off)
{
	return (struct strings *)((uintptr_t)c + off);
}

static int add_string(struct strings *s, const char *text)
{
	if (text && !(s->v[s->n] = strdup(text)))
		return -ENOMEM;
	s->n += text != NULL;
	return 0;
}

static int read_list(
	const cJSON *v, enum shape shape, struct strings *out, const char *what, struct err *e)
{
	int n = v && !cJSON_IsNull(v) ? cJSON_GetArraySize(v) : 0;
	const cJSON *o;
	int r = 0;

	if (v && !cJSON_IsNull(v) && (shape == ARRAY ? !cJSON_IsArray(v) : !cJSON_IsObject(v)))
		return err_plain(e, EBADMSG, "%s is not %s", what,
			shape == ARRAY ? "an array" : "an object");
	if (n > MAX_STRINGS)
		return err_plain(e, E2BIG, "%s has %d members (at most %d)", what, n, MAX_STRINGS);
	out->v = calloc((size_t)n * 2 + 1, sizeof(*out->v));
	if (!out->v)
		return err_set(e, ENOMEM, "%s", what);
	if (n == 0)
		return 0;
	cJSON_ArrayForEach (o, v) {
		if (shape != KEYS && !cJSON_IsString(o))
			return err_plain(e, EBADMSG, "%s has a member that is not a string", what);
		if (shape != ARRAY)
			r = add_string(out, o->string);
		if (r == 0 && shape != KEYS)
			r = add_string(out, o->valuestring);
		if (r < 0)
			return err_set(e, -r, "%s", what);
	}
	return 0;
}

/* top: the document; run: its member with the in_config scalars and the lists. */
static int read_all(
	const cJSON *top, const cJSON *run, bool own, struct image_config *c, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(scalars); i++) {
		const cJSON *from = scalars[i].in_config ? run : top;
		const char *s = json_str(from, own ? scalars[i].own : scalars[i].oci);
		char **to = scalar_at(c, scalars[i].off);

		*to = strdup(s ? s : "");
		if (!*to)
			return err_set(e, ENOMEM, "configuration");
		if (strlen(*to) >= IMAGE_PATH_MAX)
			return err_plain(e, ENAMETOOLONG, "%s of %zu bytes: at most %u",
				scalars[i].oci, strlen(*to), IMAGE_PATH_MAX - 1);
	}
	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		const char *key = own ? lists[i].own : lists[i].oci;
		int r = read_list(cJSON_GetObjectItemCaseSensitive(run, key), lists[i].shape,
			list_at(c, lists[i].off), key, e);

		if (r < 0)
			return r;
	}
	return 0;
}

static int read_digests(const cJSON *arr, size_t n, struct digest **out, struct err *e)
{
	_cleanup_free_ struct digest *d = calloc(n + 1, sizeof(*d));
	const cJSON *o;
	size_t i = 0;

	if (!d)
		return err_set(e, ENOMEM, "digests");
	cJSON_ArrayForEach (o, arr) {
		if (i == n || !cJSON_IsString(o) || digest_parse(o->valuestring, &d[i++]) < 0)
			return err_plain(e, EBADMSG, "malformed list of digests");
	}
	if (i != n)
		return err_plain(e, EBADMSG, "%zu digests for %zu layers", i, n);
	*out = take_ptr(d);
	return 0;
}

int image_config_from_oci(const void *p, size_t len, uint32_t nlayers, struct image_config *out,
	struct digest **diff, struct err *e)
{
	_cleanup_(json_freep) cJSON *j = json_parse(p, len, e);
	struct image_config c = {0};
	const cJSON *ids;
	int r;

	if (!j)
		return err_wrap(e, "configuration");
	ids = json_arr(json_obj(j, "rootfs"), "diff_ids");
	r = read_all(j, json_obj(j, "config"), false, &c, e);
	if (r == 0 && strcmp(c.os, "linux") != 0)
		r = err_plain(e, ENOTSUP, "the image is for the operating system \"%.30s\"", c.os);
	if (r == 0 && !ids && nlayers)
		r = err_plain(e, EBADMSG, "rootfs without diff_ids");
	if (r == 0)
		r = read_digests(ids, nlayers, diff, e);
	if (r < 0) {
		image_config_fini(&c);
		return err_wrap(e, "configuration");
	}
	digest_of(p, len, &c.config);
	*out = c;
	return 0;
}

static cJSON *list_json(const struct strings *s, enum shape shape)
{
	cJSON *v = shape == PAIRS ? cJSON_CreateObject() : cJSON_CreateArray();

	for (size_t i = 0; i < s->n; i++) {
		if (shape == PAIRS) {
			cJSON_AddStringToObject(v, s->v[i], s->v[i + 1]);
			i++;
		} else {
			cJSON_AddItemToArray(v, cJSON_CreateString(s->v[i]));
		}
	}
	return v;
}

static void add_disk(cJSON *j, const struct image_config *c)
{
	cJSON *d = cJSON_AddObjectToObject(j, "disk");

	cJSON_AddNumberToObject(d, "bytes", (double)c->disk.disk_bytes);
	cJSON_AddNumberToObject(d, "dataBytes", (double)c->disk.data_bytes);
	cJSON_AddNumberToObject(d, "inodes", (double)c->disk.inodes);
	cJSON_AddNumberToObject(d, "inodesUsed", (double)c->disk.inodes_used);
	cJSON_AddNumberToObject(d, "entries", (double)c->entries);
	cJSON_AddStringToObject(d, "uuid", c->disk.uuid);
}

int image_config_write(const struct image_config *c, int fd, struct err *e)
{
	_cleanup_(json_freep) cJSON *j = cJSON_CreateObject();
	_cleanup_free_ char *text = NULL;
	cJSON *layers;
	char d[DIGEST_STR];
	int r;

	cJSON_AddNumberToObject(j, "version", 1);
	cJSON_AddStringToObject(j, "digest", digest_str(&c->id, d));
	cJSON_AddStringToObject(j, "configDigest", digest_str(&c->config, d));
	layers = cJSON_AddArrayToObject(j, "layers");
	for (size_t i = 0; i < c->nlayers; i++)
		cJSON_AddItemToArray(layers, cJSON_CreateString(digest_str(&c->layers[i], d)));
	cJSON_AddNumberToObject(j, "layerBytes", (double)c->layer_bytes);
	for (size_t i = 0; i < ARRAY_LEN(scalars); i++)
		cJSON_AddStringToObject(j, scalars[i].own, *scalar_at(c, scalars[i].off));
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		cJSON_AddItemToObject(j, lists[i].own,
			list_json(
				list_at(c, lists[i].off), lists[i].shape == PAIRS ? PAIRS : ARRAY));
	add_disk(j, c);
	text = cJSON_Print(j);
	if (!text)
		return err_set(e, ENOMEM, "image.json");
	if (strlen(text) > IMAGE_MAX_CONFIG)
		return err_plain(e, EFBIG, "configuration of %zu bytes: at most %llu", strlen(text),
			(unsigned long long)IMAGE_MAX_CONFIG);
	r = write_full(fd, text, strlen(text));
	return r < 0 ? err_set(e, -r, "image.json") : 0;
}

static int read_own(const cJSON *j, struct image_config *c, struct err *e)
{
	const char *id = json_str(j, "digest"), *config = json_str(j, "configDigest"), *uuid;
	const cJSON *disk = json_obj(j, "disk"), *layers = json_arr(j, "layers"), *v;
	int n = cJSON_GetArraySize(layers), r;

	/* all lists in image.json are arrays, except for the labels */
	for (size_t i = 0; i < ARRAY_LEN(scalars); i++) {
		const char *s = json_str(j, scalars[i].own);

		if (!(*scalar_at(c, scalars[i].off) = strdup(s ? s : "")))
			return err_set(e, ENOMEM, "configuration");
	}
	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		v = cJSON_GetObjectItemCaseSensitive(j, lists[i].own);
		r = read_list(v, lists[i].shape == PAIRS ? PAIRS : ARRAY, list_at(c, lists[i].off),
			lists[i].own, e);
		if (r < 0)
			return r;
	}
	if (!id || digest_parse(id, &c->id) < 0 || !config ||
		digest_parse(config, &c->config) < 0 || n < 0 || n > (int)IMAGE_MAX_LAYERS)
		return err_plain(e, EBADMSG, "digests are missing");
	r = read_digests(layers, (size_t)n, &c->layers, e);
	if (r < 0)
		return r;
	c->nlayers = (size_t)n;
	uuid = json_str(disk, "uuid");
	if (json_u64(j, "layerBytes", &c->layer_bytes) < 0 ||
		json_u64(disk, "bytes", &c->disk.disk_bytes) < 0 ||
		json_u64(disk, "dataBytes", &c->disk.data_bytes) < 0 ||
		json_u64(disk, "inodes", &c->disk.inodes) < 0 ||
		json_u64(disk, "inodesUsed", &c->disk.inodes_used) < 0 ||
		json_u64(disk, "entries", &c->entries) < 0 || !uuid || strlen(uuid) != 36)
		return err_plain(e, EBADMSG, "the disk's numbers are missing");
	memcpy(c->disk.uuid, uuid, 37);
	return 0;
}

int image_config_read(const void *p, size_t len, struct image_config *out, struct err *e)
{
	_cleanup_(json_freep) cJSON *j = json_parse(p, len, e);
	struct image_config c = {0};
	int r;

	if (!j)
		return err_wrap(e, "image.json");
	r = read_own(j, &c, e);
	if (r < 0) {
		image_config_fini(&c);
		return err_wrap(e, "image.json");
	}
	*out = c;
	return 0;
}

void image_config_fini(struct image_config *c)
{
	for (size_t i = 0; i < ARRAY_LEN(scalars); i++)
		free(*scalar_at(c, scalars[i].off));
	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		struct strings *s = list_at(c, lists[i].off);

		for (size_t k = 0; s->v && k < s->n; k++)
			free(s->v[k]);
		free(s->v);
	}
	free(c->layers);
	*c = (struct image_config){0};
}
