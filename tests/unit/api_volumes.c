/* SPDX-License-Identifier: Apache-2.0
 *
 * api_volumes: the volumes of a create request: good ones are taken, bad ones get the documented answer.
 */
#include "lib/test.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/core/daemon.h"
#include "api/core/database.h"
#include "api/volumes/volume_request.h"
#include "api/volumes/volumes.h"
#include "lib/json.h"
#include "lib/loop.h"

static struct config c = {.allowed_host_paths = {"/srv/data", "/one/"}, .nallowed_host_paths = 2};

static int read_text(const char *text, cJSON **out, struct refusal *x)
{
	cJSON *in = cJSON_Parse(text);
	int rc;

	ASSERT(in);
	*x = (struct refusal){0};
	rc = volumes_read(in, &c, out, x);
	cJSON_Delete(in);
	return rc;
}

static void good_ones(void)
{
	struct volume_item i;
	struct refusal x;
	cJSON *out;

	CHECK_INT(read_text("[]", &out, &x), 0);
	CHECK(!out);
	CHECK_INT(volumes_read(NULL, &c, &out, &x), 0);
	CHECK(!out);
	/* the Python SDK sends what was not given as null */
	REQUIRE(read_text("[{\"name\":\"a\",\"pvc\":{\"claimName\":\"my.claim-1\","
			  "\"createIfNotExists\":null,"
			  "\"storageClass\":null,\"storage\":null,\"accessModes\":null},\"host\":"
			  "null,\"ossfs\":null,"
			  "\"mountPath\":\"/data/\",\"subPath\":null,\"readOnly\":null},"
			  "{\"name\":\"b\",\"host\":{\"path\":\"/srv/data/x\"},\"mountPath\":\"/"
			  "data2\",\"subPath\":\"s/t\",\"readOnly\":true},"
			  "{\"name\":\"c\",\"host\":{\"path\":\"/one\"},\"mountPath\":\"/usr/"
			  "devices\"}]",
			&out, &x) == 0);
	CHECK_INT(cJSON_GetArraySize(out), 3);
	REQUIRE(volume_item_get(cJSON_GetArrayItem(out, 0), &i));
	CHECK(!i.host && i.create && !i.delete_after && !i.read_only && !i.folder);
	CHECK_STR(i.source, "my.claim-1");
	CHECK_STR(i.mount, "/data");
	CHECK_STR(i.sub, "");
	REQUIRE(volume_item_get(cJSON_GetArrayItem(out, 1), &i));
	CHECK(i.host && i.read_only);
	CHECK_STR(i.source, "/srv/data/x");
	CHECK_STR(i.sub, "s/t");
	cJSON_Delete(out);
}

#define HOST(path, mount)                                                                          \
	"{\"name\":\"v\",\"host\":{\"path\":\"" path "\"},\"mountPath\":\"" mount "\"}"
#define CLAIM(name) "{\"name\":\"v\",\"pvc\":{\"claimName\":\"" name "\"},\"mountPath\":\"/m\"}"
#define NAMED(name, mount)                                                                         \
	"{\"name\":\"" name "\",\"pvc\":{\"claimName\":\"c\"},\"mountPath\":\"" mount "\"}"
#define SUB(sub)                                                                                   \
	"{\"name\":\"v\",\"pvc\":{\"claimName\":\"c\"},\"mountPath\":\"/m\",\"subPath\":" sub "}"

static void bad_ones(void)
{
	static const struct {
		const char *text, *code;
	} t[] = {
		{"{}", "SANDBOX::INVALID_PARAMETER"},
		{"[1]", "SANDBOX::INVALID_PARAMETER"},
		{"[{}]", "VOLUME::INVALID_NAME"},
		{"[" NAMED("", "/m") "]", "VOLUME::INVALID_NAME"},
		{"[" NAMED("-a", "/m") "]", "VOLUME::INVALID_NAME"},
		{"[" NAMED("a.b", "/m") "]", "VOLUME::INVALID_NAME"},
		{"[" NAMED("a", "/m") "," NAMED("a", "/n") "]", "VOLUME::DUPLICATE_NAME"},
		{"[{\"name\":\"v\",\"mountPath\":\"/m\"}]", "VOLUME::INVALID_BACKEND"},
		{"[{\"name\":\"v\",\"host\":1,\"mountPath\":\"/m\"}]", "VOLUME::INVALID_BACKEND"},
		{"[{\"name\":\"v\",\"host\":{},\"pvc\":{},\"mountPath\":\"/m\"}]",
			"VOLUME::INVALID_BACKEND"},
		{"[{\"name\":\"v\",\"ossfs\":{},\"mountPath\":\"/m\"}]",
			"VOLUME::UNSUPPORTED_BACKEND"},
		{"[" HOST("", "/m") "]", "VOLUME::INVALID_HOST_PATH"},
		{"[" HOST("srv/data", "/m") "]", "VOLUME::INVALID_HOST_PATH"},
		{"[" HOST("/srv/data/../x", "/m") "]", "VOLUME::INVALID_HOST_PATH"},
		{"[" HOST("/srv//data", "/m") "]", "VOLUME::INVALID_HOST_PATH"},
		{"[" HOST("/srv", "/m") "]", "VOLUME::HOST_PATH_NOT_ALLOWED"},
		{"[" HOST("/srv/database", "/m") "]", "VOLUME::HOST_PATH_NOT_ALLOWED"},
		{"[" HOST("/", "/m") "]", "VOLUME::HOST_PATH_NOT_ALLOWED"},
		{"[" CLAIM("") "]", "VOLUME::INVALID_PVC_NAME"},
		{"[" CLAIM("..") "]", "VOLUME::INVALID_PVC_NAME"},
		{"[" CLAIM("a/b") "]", "VOLUME::INVALID_PVC_NAME"},
		{"[" CLAIM("a..b") "]", "VOLUME::INVALID_PVC_NAME"},
		{"[" CLAIM("A") "]", "VOLUME::INVALID_PVC_NAME"},
		{"[" NAMED("a", "") "]", "VOLUME::INVALID_MOUNT_PATH"},
		{"[" NAMED("a", "m") "]", "VOLUME::INVALID_MOUNT_PATH"},
		{"[" NAMED("a", "/") "]", "VOLUME::INVALID_MOUNT_PATH"},
		{"[" NAMED("a", "///") "]", "VOLUME::INVALID_MOUNT_PATH"},
		{"[" NAMED("a", "/a/../b") "]", "VOLUME::INVALID_MOUNT_PATH"},
		{"[" NAMED("a", "/proc") "]", "VOLUME::INVALID_MOUNT_PATH"},
		{"[" NAMED("a", "/dev/shm") "]", "VOLUME::INVALID_MOUNT_PATH"},
		{"[" NAMED("a", "/m") "," NAMED("b", "/m/") "]", "VOLUME::INVALID_MOUNT_PATH"},
		{"[" NAMED("a", "/m/n") "," NAMED("b", "/m") "]", "VOLUME::INVALID_MOUNT_PATH"},
		{"[" SUB("\"/a\"") "]", "VOLUME::INVALID_SUB_PATH"},
		{"[" SUB("\"../a\"") "]", "VOLUME::INVALID_SUB_PATH"},
		{"[" SUB("\"a/./b\"") "]", "VOLUME::INVALID_SUB_PATH"},
		{"[" SUB("7") "]", "VOLUME::INVALID_SUB_PATH"},
		{"[{\"name\":\"v\",\"pvc\":{\"claimName\":\"c\"},\"mountPath\":\"/"
		 "m\",\"readOnly\":1}]",
			"SANDBOX::INVALID_PARAMETER"},
	};
	struct refusal x;
	cJSON *out;

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		CHECK_INT(read_text(t[i].text, &out, &x), -EINVAL);
		CHECK_INT(x.status, 400);
		CHECK_STR(x.code, t[i].code);
		CHECK(!out && x.msg[0]);
	}
}

/* One byte less than PATH_MAX, and the sizes around it. */
static void paths_that_do_not_fit(void)
{
	static char text[3 * PATH_MAX], path[PATH_MAX + 2];
	struct refusal x;
	cJSON *out;

	for (size_t n = PATH_MAX - 1; n <= PATH_MAX + 1; n++) {
		memset(path, 'a', n);
		path[0] = '/';
		path[n] = 0;
		snprintf(text, sizeof(text), "[" NAMED("v", "%s") "]", path);
		CHECK_INT(read_text(text, &out, &x), -EINVAL);
		CHECK_STR(x.code, "VOLUME::INVALID_MOUNT_PATH");
		snprintf(text, sizeof(text), "[" SUB("\"%s\"") "]", path + 1);
		CHECK_INT(read_text(text, &out, &x), -EINVAL);
		CHECK_STR(x.code, "VOLUME::INVALID_SUB_PATH");
		snprintf(text, sizeof(text), "[" HOST("%s", "/m") "]", path);
		CHECK_INT(read_text(text, &out, &x), -EINVAL);
		CHECK_STR(x.code, "VOLUME::INVALID_HOST_PATH");
	}
}

/* A record's list is looked at again with the configuration of today. */
static void not_allowed_any_more(void)
{
	struct config narrower = {.allowed_host_paths = {"/one"}, .nallowed_host_paths = 1};
	struct refusal x;
	cJSON *out;

	REQUIRE(read_text("[" HOST("/srv/data/x", "/m") "," NAMED("c", "/n") "]", &out, &x) == 0);
	CHECK_INT((int)host_folder_of(&c, "/srv/data/x"), 9);
	CHECK_INT((int)host_folder_of(&c, "/one/x"), 4);
	CHECK_INT((int)host_folder_of(&c, "/srv/data2"), 0);
	CHECK_INT(volumes_allowed(out, &c, &x), 0);
	CHECK_INT(volumes_allowed(out, &narrower, &x), -EINVAL);
	CHECK_STR(x.code, "VOLUME::HOST_PATH_NOT_ALLOWED");
	cJSON_Delete(out);
	REQUIRE(read_text("[" NAMED("c", "/n") "]", &out, &x) == 0);
	CHECK_INT(volumes_allowed(out, &narrower, &x), 0);
	cJSON_Delete(out);
}

static void bounds(void)
{
	cJSON *in = cJSON_CreateArray(), *out;
	struct refusal x;
	char name[300];

	for (int i = 0; i < 33; i++) {
		cJSON *v = cJSON_CreateObject();

		snprintf(name, sizeof(name), "v%d", i);
		cJSON_AddStringToObject(v, "name", name);
		cJSON_AddStringToObject(cJSON_AddObjectToObject(v, "pvc"), "claimName", name);
		snprintf(name, sizeof(name), "/m%d", i);
		cJSON_AddStringToObject(v, "mountPath", name);
		cJSON_AddItemToArray(in, v);
	}
	CHECK_INT(volumes_read(in, &c, &out, &x), -EINVAL);
	cJSON_DeleteItemFromArray(in, 32);
	CHECK_INT(volumes_read(in, &c, &out, &x), 0);
	cJSON_Delete(out);
	cJSON_Delete(in);
	memset(name, 'a', sizeof(name));
	name[253] = 0;
	CHECK(claim_name_ok(name));
	name[253] = 'a';
	name[254] = 0;
	CHECK(!claim_name_ok(name));
}

/* A create that is refused at its first volume held nothing: what its list says of claims may be copied from another sandbox's record. */
static void only_what_was_held_is_undone(void)
{
	static struct daemon d;
	char dir[] = "/tmp/api_volumes.XXXXXX", path[64], cmd[80];
	struct refusal x = {0};
	struct claim *theirs;
	cJSON *list;
	struct err e;

	REQUIRE(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/state.db", dir);
	d.loop = loop_create();
	REQUIRE(d.loop && database_open(path, d.loop, &d.database, &e) == 0);
	d.volumes = volumes_create(&d, &e);
	REQUIRE(d.volumes);
	theirs = claim_new(d.volumes, "one", "theirs", false, NULL, NULL);
	REQUIRE(theirs);
	for (int i = 0; i < 100 && !theirs->committed; i++)
		loop_turn(d.loop, 10);
	CHECK(theirs->committed && !theirs->writes);
	theirs->uses = 1;
	list = cJSON_Parse("[{\"name\":\"a\",\"source\":\"missing\",\"mount\":\"/a\",\"sub\":"
			   "\"\",\"readOnly\":false},"
			   "{\"name\":\"b\",\"source\":\"theirs\",\"mount\":\"/b\",\"sub\":\"\","
			   "\"readOnly\":false,\"made\":true}]");
	REQUIRE(list);
	cJSON_AddStringToObject(cJSON_GetArrayItem(list, 1), "folder", theirs->folder);
	CHECK_INT(volumes_hold(d.volumes, list, "one", &x), -EINVAL);
	CHECK_STR(x.code, "VOLUME::PVC_NOT_FOUND");
	CHECK_INT(theirs->uses, 1);
	CHECK(!theirs->deleting);
	cJSON_DeleteItemFromArray(list, 0);
	CHECK_INT(volumes_hold(d.volumes, list, "one", &x), 0);
	CHECK_INT(theirs->uses, 2);
	volumes_release(d.volumes, list, true);
	CHECK_INT(theirs->uses, 1);
	CHECK(!theirs->deleting);
	cJSON_Delete(list);
	volumes_destroy(d.volumes);
	database_close(d.database);
	loop_destroy(d.loop);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	CHECK_INT(system(cmd), 0);
}

static const struct test tests[] = {
	{"only_what_was_held_is_undone", only_what_was_held_is_undone},
	{"good_ones", good_ones},
	{"bad_ones", bad_ones},
	{"paths_that_do_not_fit", paths_that_do_not_fit},
	{"not_allowed_any_more", not_allowed_any_more},
	{"bounds", bounds},
};
TEST_MAIN(tests)
