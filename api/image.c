/* SPDX-License-Identifier: Apache-2.0
 *
 * image.c: names to disks. mayflyd's loop. An image is a folder <state_dir>/images/<name> with disk.ext4 and config.json, the name with
 * '/' and ':' as '_'. The name is a client's: only letters, digits and "._-@" are left in the path.
 */
#include "api/image.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "api/daemon.h"

struct image_job {
	struct daemon *d;
	image_fn fn;
	void *arg;
	bool cancelled;
	char name[300];
};

static bool folder_of(const char *name, char *to, size_t cap)
{
	size_t n = 0;

	for (; *name && n + 1 < cap; name++) {
		if (*name == '/' || *name == ':')
			to[n++] = '_';
		else if (isalnum((unsigned char)*name) || strchr("._-@", *name))
			to[n++] = *name;
		else
			return false;
	}
	to[n] = 0;
	return n > 0 && to[0] != '.' && !*name;
}

/* ["K=V", ...] as a map */
static cJSON *env_map(const cJSON *list)
{
	cJSON *o = cJSON_CreateObject();
	const cJSON *v;

	cJSON_ArrayForEach(v, list) {
		char *eq = cJSON_IsString(v) ? strchr(v->valuestring, '=') : NULL, key[256];

		if (!eq || (size_t)(eq - v->valuestring) >= sizeof(key))
			continue;
		snprintf(key, sizeof(key), "%.*s", (int)(eq - v->valuestring), v->valuestring);
		cJSON_DeleteItemFromObjectCaseSensitive(o, key);
		cJSON_AddStringToObject(o, key, eq + 1);
	}
	return o;
}

static cJSON *read_config(const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	static char text[65536];
	cJSON *j, *o = cJSON_CreateObject();
	const cJSON *v;
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text));

	j = n > 0 ? cJSON_ParseWithLength(text, (size_t)n) : NULL;
	cJSON_AddItemToObject(o, "env", env_map(cJSON_GetObjectItemCaseSensitive(j, "env")));
	v = cJSON_GetObjectItemCaseSensitive(j, "workdir");
	cJSON_AddStringToObject(o, "workdir", cJSON_IsString(v) ? v->valuestring : "");
	v = cJSON_GetObjectItemCaseSensitive(j, "user");
	cJSON_AddStringToObject(o, "user", cJSON_IsString(v) ? v->valuestring : "");
	cJSON_Delete(j);
	return o;
}

static void find_image(void *arg)
{
	struct image_job *j = arg;
	struct image img = {0};
	struct err e = {0};
	struct stat st;
	char folder[300], path[900];

	if (j->cancelled) {
		free(j);
		return;
	}
	if (!folder_of(j->name, folder, sizeof(folder))) {
		err_plain(&e, EINVAL, "not an image's name");
	} else {
		snprintf(img.disk, sizeof(img.disk), "%.200s/images/%.280s/disk.ext4", j->d->cfg.state_dir, folder);
		if (stat(img.disk, &st) < 0)
			err_plain(&e, errno, "no such image here");
	}
	if (e.code) {
		j->fn(j->arg, NULL, &e);
	} else {
		snprintf(path, sizeof(path), "%.200s/images/%.280s/config.json", j->d->cfg.state_dir, folder);
		img.config = read_config(path);
		snprintf(img.digest, sizeof(img.digest), "%llx.%llx.%llx", (unsigned long long)st.st_ino, (unsigned long long)st.st_size,
			(unsigned long long)st.st_mtim.tv_sec);
		j->fn(j->arg, &img, NULL);
		cJSON_Delete(img.config);
	}
	free(j);
}

struct image_job *image_get(struct daemon *d, const char *name, const char *user, const char *password,
	void (*progress)(void *arg, const char *text), image_fn fn, void *arg, struct err *e)
{
	struct image_job *j = calloc(1, sizeof(*j));

	if (!j || loop_defer(d->loop, find_image, j) < 0) {
		free(j);
		err_set(e, ENOMEM, "image");
		return NULL;
	}
	*j = (struct image_job){.d = d, .fn = fn, .arg = arg};
	snprintf(j->name, sizeof(j->name), "%s", name);
	return j;
}

void image_cancel(struct image_job *j)
{
	j->cancelled = true;
}
