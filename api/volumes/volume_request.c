/* SPDX-License-Identifier: Apache-2.0
 *
 * volume_request.c: see volume_request.h. mayflyd's loop. Only the form is checked here; whether a source exists, and what it is, is found
 * when the helper opens it, so that nothing can be exchanged in between.
 */
#include "api/volumes/volume_request.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "api/core/text.h"
#include "lib/json.h"
#include "lib/proto_fs.h"

#define CODE(name) "VOLUME::" name

struct reading {
	const struct config *c;
	cJSON *out;
	struct refusal *x;
	const char *name; /* of the volume that is read */
};

/* A DNS label, or with dots a DNS subdomain. */
static bool dns_ok(const char *s, size_t max, bool dots)
{
	size_t n = strlen(s);

	if (n < 1 || n > max)
		return false;
	for (size_t i = 0; i < n; i++) {
		bool edge = i == 0 || i + 1 == n || s[i - 1] == '.' || s[i + 1] == '.';
		bool plain = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9');

		if (!plain && !(s[i] == '-' && !edge) && !(s[i] == '.' && dots && !edge))
			return false;
	}
	return true;
}

bool claim_name_ok(const char *s)
{
	return dns_ok(s, 253, true);
}

/* No empty component, no "." and no "..": so paths can be compared as texts (path_below()). */
static bool path_ok(const char *path, bool absolute)
{
	size_t n = strlen(path);

	if ((path[0] == '/') != absolute || n >= PATH_MAX - 300)
		return false;
	for (const char *p = path + absolute; *p;) {
		size_t k = strcspn(p, "/");

		if (k == 0 || k > NAME_MAX || (k == 1 && p[0] == '.') ||
			(k == 2 && p[0] == '.' && p[1] == '.'))
			return false;
		p += k;
		if (*p && !*++p)
			return false;
	}
	return true;
}

/* Is path the folder, or below it? */
static bool path_below(const char *path, const char *folder)
{
	size_t n = strlen(folder);

	while (n > 1 && folder[n - 1] == '/')
		n--;
	if (n == 1)
		return true;
	return strncmp(path, folder, n) == 0 && (path[n] == '/' || !path[n]);
}

size_t host_folder_of(const struct config *c, const char *path)
{
	size_t best = 0;

	for (unsigned int i = 0; i < c->nallowed_host_paths; i++) {
		const char *folder = c->allowed_host_paths[i];
		size_t n = strlen(folder);

		while (n > 1 && folder[n - 1] == '/')
			n--;
		if (path_below(path, folder))
			best = MAX(best, n);
	}
	return best;
}

static bool host_allowed(const struct config *c, const char *path)
{
	return host_folder_of(c, path) > 0;
}

int volumes_allowed(const cJSON *list, const struct config *c, struct refusal *x)
{
	struct volume_item i;
	const cJSON *v;

	cJSON_ArrayForEach (v, list)
		if (!volume_item_get(v, &i) || (i.host && !host_allowed(c, i.source)))
			return refuse(x, 400, CODE("HOST_PATH_NOT_ALLOWED"),
				"Host path '%.200s' is not below one of storage.allowed_host_paths "
				"any more.",
				i.source ? i.source : "");
	return 0;
}

static int read_host(struct reading *r, const cJSON *h, cJSON *o)
{
	const char *path = json_str(h, "path");

	if (!path || !path_ok(path, true))
		return refuse(r->x, 400, CODE("INVALID_HOST_PATH"),
			"Volume '%s': host.path must be an absolute path without '.', '..' or "
			"empty parts.",
			r->name);
	if (!host_allowed(r->c, path))
		return refuse(r->x, 400, CODE("HOST_PATH_NOT_ALLOWED"),
			"Volume '%s': host path '%.200s' is not below one of "
			"storage.allowed_host_paths.",
			r->name, path);
	cJSON_AddTrueToObject(o, "host");
	cJSON_AddStringToObject(o, "source", path);
	return 0;
}

/* absent and null: the default. false: it is of another type. */
static bool read_flag(const cJSON *o, const char *name, bool dflt, bool *to)
{
	const cJSON *v = json_field(o, name);

	*to = v ? cJSON_IsTrue(v) : dflt;
	return !v || cJSON_IsBool(v);
}

#define STORAGE_MIN MIB(1)

bool claim_storage_read(const cJSON *o, const char *key, uint64_t *bytes)
{
	const cJSON *v = json_field(o, key);

	*bytes = 0;
	return !v || (cJSON_IsString(v) && quantity_parse(v->valuestring, bytes) &&
			     *bytes >= STORAGE_MIN && *bytes <= INT64_MAX);
}

static int read_claim(struct reading *r, const cJSON *p, cJSON *o)
{
	const char *name = json_str(p, "claimName");
	bool create, after;
	uint64_t max;

	if (!name || !claim_name_ok(name))
		return refuse(r->x, 400, CODE("INVALID_PVC_NAME"),
			"Volume '%s': pvc.claimName must have 1 to 253 of a-z, 0-9, '-' and '.', "
			"and begin "
			"and end with a letter or digit.",
			r->name);
	if (!read_flag(p, "createIfNotExists", true, &create) ||
		!read_flag(p, "deleteOnSandboxTermination", false, &after))
		return refuse(r->x, 400, "SANDBOX::INVALID_PARAMETER",
			"Volume '%s': pvc.createIfNotExists and pvc.deleteOnSandboxTermination "
			"must be "
			"true or false.",
			r->name);
	if (!claim_storage_read(p, "storage", &max))
		return refuse(r->x, 400, "SANDBOX::INVALID_PARAMETER",
			"Volume '%s': pvc.storage must be a quantity of at least 1Mi, such as "
			"10Gi.",
			r->name);
	cJSON_AddStringToObject(o, "source", name);
	if (max)
		json_put_i64(o, "maxBytes", (int64_t)max);
	cJSON_AddBoolToObject(o, "create", create);
	cJSON_AddBoolToObject(o, "deleteAfter", after);
	return 0;
}

static int read_source(struct reading *r, const cJSON *v, cJSON *o)
{
	const cJSON *host = json_field(v, "host"), *pvc = json_field(v, "pvc"),
		    *ossfs = json_field(v, "ossfs");

	if (!!host + !!pvc + !!ossfs != 1)
		return refuse(r->x, 400, CODE("INVALID_BACKEND"),
			"Volume '%s' needs exactly one of host, pvc and ossfs.", r->name);
	if (ossfs)
		return refuse(r->x, 400, CODE("UNSUPPORTED_BACKEND"),
			"Volume '%s': ossfs is not available on this server.", r->name);
	if (!cJSON_IsObject(host ? host : pvc))
		return refuse(r->x, 400, CODE("INVALID_BACKEND"),
			"Volume '%s': %s must be an object.", r->name, host ? "host" : "pvc");
	return host ? read_host(r, host, o) : read_claim(r, pvc, o);
}

/* The mount path in the guest. The guest's kernel and the agent need the guest's own /proc, /sys and /dev. */
static int read_mount(struct reading *r, const cJSON *v, cJSON *o)
{
	static const char *const taken[] = {"/proc", "/sys", "/dev"};
	const char *mount = json_str(v, "mountPath"), *why = NULL;
	const cJSON *other;
	char path[PATH_MAX];
	size_t n;

	/* a path that is too long is refused like a missing one */
	str_copy(path, sizeof(path), mount && strlen(mount) < sizeof(path) ? mount : "");
	for (n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
		path[n - 1] = 0;
	if (!path_ok(path, true) || !path[1])
		why = "must be an absolute path without '.', '..' or empty parts, and not '/'";
	for (size_t i = 0; !why && i < ARRAY_LEN(taken); i++)
		if (path_below(path, taken[i]))
			why = "is below /proc, /sys or /dev";
	cJSON_ArrayForEach (other, r->out) {
		const char *m = json_str(other, "mount");

		if (!why && (path_below(path, m) || path_below(m, path)))
			why = "is the mount path of another volume, or one lies below the other";
	}
	if (why)
		return refuse(r->x, 400, CODE("INVALID_MOUNT_PATH"),
			"Volume '%s': mountPath '%.100s' %s.", r->name, path, why);
	cJSON_AddStringToObject(o, "mount", path);
	return 0;
}

static int read_sub(struct reading *r, const cJSON *v, cJSON *o)
{
	const cJSON *s = json_field(v, "subPath");
	char path[PATH_MAX];
	size_t n;

	if (s && (!cJSON_IsString(s) || strlen(s->valuestring) >= sizeof(path)))
		return refuse(r->x, 400, CODE("INVALID_SUB_PATH"),
			"Volume '%s': subPath must be a relative path.", r->name);
	str_copy(path, sizeof(path), s ? s->valuestring : "");
	for (n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
		path[n - 1] = 0;
	if (!path_ok(path, false))
		return refuse(r->x, 400, CODE("INVALID_SUB_PATH"),
			"Volume '%s': subPath must be a relative path without '.', '..' or empty "
			"parts.",
			r->name);
	cJSON_AddStringToObject(o, "sub", path);
	return 0;
}

static int read_name(struct reading *r, const cJSON *v, cJSON *o)
{
	const char *name = json_str(v, "name");
	const cJSON *other;

	if (!name || !dns_ok(name, 63, false))
		return refuse(r->x, 400, CODE("INVALID_NAME"),
			"A volume's name must have 1 to 63 of a-z, 0-9 and '-', and begin and end "
			"with a "
			"letter or digit.");
	cJSON_ArrayForEach (other, r->out)
		if (!strcmp(json_str(other, "name"), name))
			return refuse(r->x, 400, CODE("DUPLICATE_NAME"),
				"Two volumes have the name '%s'.", name);
	r->name = name;
	cJSON_AddStringToObject(o, "name", name);
	return 0;
}

static int read_one(struct reading *r, const cJSON *v)
{
	cJSON *o = cJSON_CreateObject();
	bool read_only;
	int rc;

	if (!o)
		return refuse(r->x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	rc = read_name(r, v, o);
	if (rc == 0)
		rc = read_source(r, v, o);
	if (rc == 0)
		rc = read_mount(r, v, o);
	if (rc == 0)
		rc = read_sub(r, v, o);
	if (rc == 0 && !read_flag(v, "readOnly", false, &read_only))
		rc = refuse(r->x, 400, "SANDBOX::INVALID_PARAMETER",
			"Volume '%s': readOnly must be true or false.", r->name);
	if (rc == 0) {
		cJSON_AddBoolToObject(o, "readOnly", read_only);
		cJSON_AddItemToArray(r->out, o);
	} else {
		cJSON_Delete(o);
	}
	return rc;
}

int volumes_read(const cJSON *in, const struct config *c, cJSON **out, struct refusal *x)
{
	struct reading r = {.c = c, .x = x};
	struct volume_item item;
	const cJSON *v;
	int rc = 0;

	*out = NULL;
	if (!in || (cJSON_IsArray(in) && !in->child))
		return 0;
	if (!cJSON_IsArray(in))
		return refuse(x, 400, "SANDBOX::INVALID_PARAMETER", "volumes must be a list.");
	r.out = cJSON_CreateArray();
	cJSON_ArrayForEach (v, in) {
		if (cJSON_GetArraySize(r.out) == FS_VOLUMES_MAX)
			rc = refuse(x, 400, "SANDBOX::INVALID_PARAMETER",
				"A sandbox may have at most %u volumes.", FS_VOLUMES_MAX);
		else if (!cJSON_IsObject(v))
			rc = refuse(x, 400, "SANDBOX::INVALID_PARAMETER",
				"volumes must be a list of objects.");
		if (rc == 0)
			rc = read_one(&r, v);
		if (rc < 0)
			break;
	}
	/* an item is incomplete if an allocation failed */
	cJSON_ArrayForEach (v, r.out)
		if (rc == 0 && !volume_item_get(v, &item))
			rc = refuse(x, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
	if (rc < 0) {
		cJSON_Delete(r.out);
		return rc;
	}
	*out = r.out;
	return 0;
}

bool volume_item_get(const cJSON *v, struct volume_item *to)
{
	*to = (struct volume_item){
		.host = cJSON_IsTrue(json_field(v, "host")),
		.source = json_str(v, "source"),
		.folder = json_str(v, "folder"),
		.sub = json_str(v, "sub"),
		.mount = json_str(v, "mount"),
		.read_only = cJSON_IsTrue(json_field(v, "readOnly")),
		.create = cJSON_IsTrue(json_field(v, "create")),
		.delete_after = cJSON_IsTrue(json_field(v, "deleteAfter")),
		.max_bytes = (uint64_t)json_get_i64(v, "maxBytes"),
	};
	return to->source && to->sub && to->mount && json_str(v, "name") &&
	       json_field(v, "readOnly");
}
