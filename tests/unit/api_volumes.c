/* SPDX-License-Identifier: Apache-2.0
 *
 * api_volumes: the volumes of a create request: good ones are taken, bad ones get the documented answer.
 */
#include "lib/test.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "api/core/budgets.h"
#include "api/core/daemon.h"
#include "api/checkpoint/blobs.h"
#include "api/core/database.h"
#include "api/links/helper_client.h"
#include "api/links/monitors.h"
#include "api/sandbox/index.h"
#include "api/sandbox/sandbox.h"
#include "api/volumes/volume_request.h"
#include "api/volumes/volumes.h"
#include "lib/fdpass.h"
#include "lib/json.h"
#include "lib/loop.h"
#include "lib/proto_priv.h"

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

static void storage_of_a_claim(void)
{
	static const struct {
		const char *storage;
		uint64_t bytes; /* UINT64_MAX: refused */
	} rows[] = {{"null", 0}, {"\"10Gi\"", 10ull << 30}, {"\"1Mi\"", 1 << 20},
		{"\"1000000\"", UINT64_MAX}, {"\"\"", UINT64_MAX}, {"\"-1Gi\"", UINT64_MAX},
		{"10", UINT64_MAX}, {"\"9999999Ti\"", UINT64_MAX},
		{"\"99999999999Ti\"", UINT64_MAX}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		bool refused = rows[i].bytes == UINT64_MAX;
		struct volume_item item;
		struct refusal x;
		char text[200];
		cJSON *out;

		snprintf(text, sizeof(text),
			"[{\"name\":\"a\",\"mountPath\":\"/"
			"a\",\"pvc\":{\"claimName\":\"c\",\"storage\":%s}}]",
			rows[i].storage);
		CHECK_INT(read_text(text, &out, &x), refused ? -EINVAL : 0);
		if (refused) {
			CHECK_STR(x.code, "SANDBOX::INVALID_PARAMETER");
			continue;
		}
		REQUIRE(volume_item_get(out->child, &item));
		CHECK(item.max_bytes == rows[i].bytes);
		cJSON_Delete(out);
	}
}

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
		{"[" CLAIM("a b") "]", "VOLUME::INVALID_PVC_NAME"},
		{"[" CLAIM("a\\nb") "]", "VOLUME::INVALID_PVC_NAME"},
		{"[" CLAIM("a\\u0001") "]", "VOLUME::INVALID_PVC_NAME"},
		{"[" CLAIM("caf\xc3\xa9") "]", "VOLUME::INVALID_PVC_NAME"},
		{"[" CLAIM("a\xff") "]", "VOLUME::INVALID_PVC_NAME"},
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

/* ---- claims, with a database and a helper that this test is */

static struct {
	struct daemon d;
	char dir[32], path[64];
	int helper; /* the helper's end */
} R;

static void rig_up(void)
{
	/* those of a daemon live as long as it does */
	static struct budgets *budgets;
	static struct sandbox_index *index;

	struct err e;

	memset(&R, 0, sizeof(R));
	R.helper = -1;
	str_copy(R.dir, sizeof(R.dir), "/tmp/api_volumes.XXXXXX");
	REQUIRE(mkdtemp(R.dir));
	snprintf(R.path, sizeof(R.path), "%s/state.db", R.dir);
	R.d.loop = loop_create();
	REQUIRE(R.d.loop && database_open(R.path, R.d.loop, &R.d.database, &e) == 0);
	if (!budgets)
		budgets = budgets_create(&R.d.cfg);
	if (!index)
		index = index_create();
	R.d.budgets = budgets;
	R.d.index = index;
	R.d.blobs = blobs_create(R.dir, NULL, &e);
	R.d.volumes = volumes_create(&R.d, &e);
	REQUIRE(R.d.volumes && R.d.budgets && R.d.index && R.d.blobs);
}

static void rig_down(void)
{
	char cmd[80];

	volumes_destroy(R.d.volumes);
	blobs_destroy(R.d.blobs);
	vms_destroy(R.d.vms);
	privctl_destroy(R.d.priv);
	database_close(R.d.database);
	loop_destroy(R.d.loop);
	close_fd(&R.helper);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", R.dir);
	CHECK_INT(system(cmd), 0);
}

static struct claim *claim_made(const char *owner, const char *name)
{
	struct claim *made =
		claim_new(R.d.volumes, owner, name, (struct claim_options){0}, NULL, NULL);

	ASSERT(made);
	for (int i = 0; i < 3000 && (!made->committed || made->writes); i++)
		loop_turn(R.d.loop, 10);
	CHECK(made->committed && !made->writes);
	return made;
}

/* A create that is refused at its first volume held nothing: what its list says of claims may be copied from another sandbox's record. */
static void only_what_was_held_is_undone(void)
{
	struct refusal x = {0};
	struct claim *theirs;
	cJSON *list;

	rig_up();
	theirs = claim_made("one", "theirs");
	theirs->uses = 1;
	list = cJSON_Parse("[{\"name\":\"a\",\"source\":\"missing\",\"mount\":\"/a\",\"sub\":"
			   "\"\",\"readOnly\":false},"
			   "{\"name\":\"b\",\"source\":\"theirs\",\"mount\":\"/b\",\"sub\":\"\","
			   "\"readOnly\":false,\"made\":true}]");
	REQUIRE(list);
	cJSON_AddStringToObject(cJSON_GetArrayItem(list, 1), "folder", theirs->folder);
	CHECK_INT(volumes_hold(R.d.volumes, list, "one", &x), -EINVAL);
	CHECK_STR(x.code, "VOLUME::PVC_NOT_FOUND");
	CHECK_INT(theirs->uses, 1);
	CHECK(!theirs->deleting);
	cJSON_DeleteItemFromArray(list, 0);
	CHECK_INT(volumes_hold(R.d.volumes, list, "one", &x), 0);
	CHECK_INT(theirs->uses, 2);
	volumes_release(R.d.volumes, list, true);
	CHECK_INT(theirs->uses, 1);
	CHECK(!theirs->deleting);
	cJSON_Delete(list);
	rig_down();
}

/* A create that was interrupted before it held its claims does not hold them after a restart. */
static void the_record_says_who_holds(void)
{
	static const char id[] = "01234567-89ab-4def-8123-456789abcdef";
	static const struct {
		const char *held;
		unsigned int uses;
	} rows[] = {{"", 1}, {",\"volumesHeld\":false", 0}, {",\"volumesHeld\":true", 1}};
	struct claim *mine;
	char text[400];

	rig_up();
	mine = claim_made("one", "mine");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct sandbox *sb;
		cJSON *o;

		mine->uses = 0;
		snprintf(text, sizeof(text),
			"{\"local\":{\"disk\":{\"base\":\"/"
			"none\",\"bytes\":1}},\"owner\":\"one\",\"volumes\":[{\"name\":\"a\","
			"\"source\":"
			"\"mine\","
			"\"folder\":\"%s\",\"mount\":\"/a\",\"sub\":\"\",\"readOnly\":false}]%s}",
			mine->folder, rows[i].held);
		o = cJSON_Parse(text);
		REQUIRE(o);
		sb = sandbox_from_record(&R.d, id, o);
		cJSON_Delete(o);
		REQUIRE(sb);
		CHECK_INT(mine->uses, rows[i].uses);
		CHECK_INT(sb->volumes_held, rows[i].uses);
		o = sandbox_record(sb);
		CHECK_INT(cJSON_IsTrue(json_field(o, "volumesHeld")), rows[i].uses);
		cJSON_Delete(o);
		index_remove(R.d.index, sb);
		R.d.sandboxes = NULL;
		R.d.nsandboxes = 0;
		sandbox_unref(sb);
	}
	rig_down();
}

static void claim_ended(void *arg, const struct claim *ended, const struct err *e)
{
	unsigned int *failed = arg;

	/* it is still there: its memory is read */
	*failed += e && !strcmp(ended->name, "lost");
}

/* Two writes of one claim fail, one after the other. The claim lives until the second has ended. */
static void a_claim_outlives_its_writes(void)
{
	unsigned int failed = 0;
	struct claim *lost;
	sqlite3 *db;

	rig_up();
	REQUIRE(sqlite3_open(R.path, &db) == SQLITE_OK);
	REQUIRE(sqlite3_exec(db,
			"CREATE TRIGGER no BEFORE INSERT ON claims BEGIN SELECT RAISE(ABORT, "
			"'full'); END",
			NULL, NULL, NULL) == SQLITE_OK);
	sqlite3_close(db);
	lost = claim_new(
		R.d.volumes, "one", "lost", (struct claim_options){0}, claim_ended, &failed);
	REQUIRE(lost);
	claim_delete(R.d.volumes, lost, claim_ended, &failed);
	CHECK_INT(lost->writes, 2);
	for (int i = 0; i < 3000 && failed < 2; i++)
		loop_turn(R.d.loop, 10);
	CHECK_INT(failed, 2);
	CHECK(!claims_first(R.d.volumes));
	rig_down();
}

static void no_exit(void *arg, const struct priv_msg *m)
{
}

static void *hello_answer(void *arg)
{
	struct priv_msg m;

	ASSERT(recv(R.helper, &m, sizeof(m), 0) == sizeof(m) && m.op == PRIV_HELLO);
	m.nslots = 200;
	m.status = 0;
	ASSERT(send(R.helper, &m, sizeof(m), 0) == sizeof(m));
	return NULL;
}

static void helper_up(void)
{
	struct err e;
	pthread_t t;
	int pair[2];

	REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	R.helper = pair[1];
	str_copy(R.d.cfg.run_dir, sizeof(R.d.cfg.run_dir), R.dir);
	REQUIRE(pthread_create(&t, NULL, hello_answer, NULL) == 0);
	R.d.priv = privctl_create(R.d.loop, pair[0], "", no_exit, NULL, &e);
	pthread_join(t, NULL);
	REQUIRE(R.d.priv);
	fd_set_nonblock(R.helper, true);
	R.d.vms = vms_create(&R.d, &e);
	REQUIRE(R.d.vms);
}

/* What the daemon asked since: opening a claim's folder, or removing it. Those of op are kept for answers, others are answered. */
static unsigned int asked(uint32_t op, struct priv_msg *to, unsigned int n, unsigned int max)
{
	uint8_t msg[sizeof(struct priv_msg) + PRIV_TEXT_MAX];

	while (recv(R.helper, msg, sizeof(msg), 0) >= (ssize_t)sizeof(*to)) {
		ASSERT(n < max);
		memcpy(&to[n], msg, sizeof(*to));
		if (to[n].op == op) {
			n++;
			continue;
		}
		to[n].status = 0; /* a slot that is given back */
		ASSERT(send(R.helper, &to[n], sizeof(*to), 0) == sizeof(*to));
	}
	return n;
}

/* Of twenty deleted claims four are emptied at a time: each takes a process and a slot. */
static void few_claims_are_emptied_at_a_time(void)
{
	enum { CLAIMS = 20, AT_A_TIME = 4 };
	struct priv_msg open[CLAIMS + 1], remove[CLAIMS + 1];
	unsigned int nopen = 0, nremove, ended = 0;
	char name[16];

	rig_up();
	helper_up();
	for (int i = 0; i < CLAIMS; i++) {
		snprintf(name, sizeof(name), "c%d", i);
		claim_delete(R.d.volumes, claim_made("one", name), NULL, NULL);
	}
	while (ended < CLAIMS) {
		for (int i = 0; i < 2000 && nopen < MIN(ended + AT_A_TIME, (unsigned int)CLAIMS);
			i++) {
			loop_turn(R.d.loop, 10);
			nopen = asked(PRIV_VOLUME, open, nopen, CLAIMS + 1);
		}
		/* and no more than that, however often the loop turns */
		for (int i = 0; i < 3; i++) {
			loop_turn(R.d.loop, 1);
			nopen = asked(PRIV_VOLUME, open, nopen, CLAIMS + 1);
		}
		CHECK_INT(nopen, MIN(ended + AT_A_TIME, (unsigned int)CLAIMS));
		if (nopen <= ended)
			break;
		/* the folder is gone already: then it is only removed */
		open[ended].status = -ENOENT;
		REQUIRE(send(R.helper, &open[ended], sizeof(*open), 0) == sizeof(*open));
		for (int i = 0, n = 0; i < 2000 && !n; i++) {
			loop_turn(R.d.loop, 10);
			nremove = asked(PRIV_VOLUME_REMOVE, remove, 0, CLAIMS + 1);
			n = (int)nremove;
		}
		CHECK_INT(nremove, 1);
		remove[0].status = 0;
		REQUIRE(send(R.helper, &remove[0], sizeof(*remove), 0) == sizeof(*remove));
		ended++;
	}
	for (int i = 0; i < 2000 && claims_first(R.d.volumes); i++)
		loop_turn(R.d.loop, 10);
	CHECK(!claims_first(R.d.volumes));
	CHECK_INT(asked(PRIV_VOLUME, open, 0, 1), 0);
	loop_turn(R.d.loop, 10);
	rig_down();
}

static void sources_opened(void *arg, const struct refusal *x)
{
	*(int *)arg = x ? -1 : 1;
}

/* The daemon's next request of the helper. */
static bool next_ask(struct priv_msg *to, char text[static PRIV_TEXT_MAX])
{
	uint8_t msg[sizeof(*to) + PRIV_TEXT_MAX];
	ssize_t n = -1;

	for (int i = 0; i < 3000 && n < 0; i++) {
		loop_turn(R.d.loop, 10);
		n = recv(R.helper, msg, sizeof(msg), 0);
	}
	if (n < (ssize_t)sizeof(*to))
		return false;
	memcpy(to, msg, sizeof(*to));
	memset(text, 0, PRIV_TEXT_MAX);
	memcpy(text, msg + sizeof(*to), (size_t)n - sizeof(*to));
	return true;
}

/* A claim with a limit is given to a project when it is opened. What the host cannot count is mayfly-fs' to check. */
static void a_limit_is_the_hosts_if_it_can(void)
{
	static char text[PRIV_TEXT_MAX];
	struct fileserver *f;
	struct claim *limited;
	struct refusal x = {0};
	struct priv_msg m;
	int done = 0, fd;
	cJSON *list;

	rig_up();
	helper_up();
	limited = claim_made("one", "limited");
	limited->max_bytes = MIB(20);
	list = cJSON_Parse("[{\"name\":\"a\",\"source\":\"limited\",\"mount\":\"/"
			   "a\",\"sub\":\"\",\"readOnly\":false}]");
	REQUIRE(list && volumes_hold(R.d.volumes, list, "one", &x) == 0);
	f = fileserver_open(R.d.volumes, list, true, sources_opened, &done, &x);
	REQUIRE(f && next_ask(&m, text) && m.op == PRIV_VOLUME);
	m.status = 0;
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	REQUIRE(fdpass_send(R.helper, &m, sizeof(m), &fd, 1) == 0);
	close(fd);
	REQUIRE(next_ask(&m, text) && m.op == PRIV_QUOTA);
	CHECK_INT(m.what, PRIV_Q_CLAIM);
	CHECK(m.project > 0 && m.project <= PRIV_PROJECT_MAX && m.quota.bytes == MIB(20));
	CHECK_STR(text, limited->folder);
	CHECK_INT(done, 0);
	m.status = -EOPNOTSUPP;
	REQUIRE(send(R.helper, &m, sizeof(m), 0) == sizeof(m));
	for (int i = 0; i < 3000 && !done; i++)
		loop_turn(R.d.loop, 10);
	CHECK_INT(done, 1);
	fileserver_destroy(f);
	REQUIRE(next_ask(&m, text) && m.op == PRIV_FREE);
	m.status = 0;
	REQUIRE(send(R.helper, &m, sizeof(m), 0) == sizeof(m));
	loop_turn(R.d.loop, 10);
	cJSON_Delete(list);
	rig_down();
}

static void source_refusal(void *arg, const struct refusal *x)
{
	ASSERT(x);
	*(struct refusal *)arg = *x;
}

/* What the helper says of a source, and what the client receives. */
static void a_source_that_is_refused(void)
{
	static const struct {
		int err;
		bool host, sub;
		int status;
		const char *code;
	} rows[] = {
		{EPERM, true, false, 400, "VOLUME::HOST_PATH_NOT_ALLOWED"},
		{EXDEV, true, false, 400, "VOLUME::HOST_PATH_NOT_ALLOWED"},
		{EXDEV, true, true, 400, "VOLUME::INVALID_SUB_PATH"},
		{EXDEV, false, true, 400, "VOLUME::INVALID_SUB_PATH"},
		{ELOOP, true, false, 400, "VOLUME::INVALID_HOST_PATH"},
		{ENOTDIR, true, false, 400, "VOLUME::INVALID_HOST_PATH"},
		{ENOTDIR, false, true, 400, "VOLUME::INVALID_SUB_PATH"},
		{EMEDIUMTYPE, true, false, 400, "VOLUME::INVALID_HOST_PATH"},
		{EOPNOTSUPP, true, false, 400, "VOLUME::INVALID_HOST_PATH"},
		{ENOENT, true, false, 400, "VOLUME::HOST_PATH_NOT_FOUND"},
		{ENOENT, false, false, 400, "VOLUME::PVC_INSPECT_FAILED"},
		{ETIMEDOUT, true, false, 504, "VOLUME::HOST_PATH_NOT_FOUND"},
		{EAGAIN, true, false, 503, "VOLUME::PVC_INSPECT_FAILED"},
		{EACCES, true, false, 500, "VOLUME::HOST_PATH_CREATE_FAILED"},
		{ENOSPC, true, false, 500, "VOLUME::HOST_PATH_CREATE_FAILED"},
		{EROFS, true, false, 500, "VOLUME::HOST_PATH_CREATE_FAILED"},
		{ENOSPC, false, false, 500, "VOLUME::PVC_INSPECT_FAILED"},
	};
	static char text[PRIV_TEXT_MAX];
	struct refusal x = {0};
	struct fileserver *f;
	struct priv_msg m;

	rig_up();
	helper_up();
	R.d.cfg.nallowed_host_paths = 1;
	str_copy(R.d.cfg.allowed_host_paths[0], sizeof(R.d.cfg.allowed_host_paths[0]), "/srv");
	claim_made("one", "mine");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char list_text[300];
		cJSON *list;

		snprintf(list_text, sizeof(list_text),
			"[{\"name\":\"a\",%s\"source\":\"%s\",\"mount\":\"/a\",\"sub\":\"%s\","
			"\"readOnly\":false}]",
			rows[i].host ? "\"host\":true," : "", rows[i].host ? "/srv/x" : "mine",
			rows[i].sub ? "s" : "");
		list = cJSON_Parse(list_text);
		REQUIRE(list && volumes_hold(R.d.volumes, list, "one", &x) == 0);
		x = (struct refusal){0};
		f = fileserver_open(R.d.volumes, list, true, source_refusal, &x, &x);
		REQUIRE(f && next_ask(&m, text) && m.op == PRIV_VOLUME);
		m.status = -rows[i].err;
		REQUIRE(send(R.helper, &m, sizeof(m), 0) == sizeof(m));
		for (int k = 0; k < 2000 && !x.status; k++)
			loop_turn(R.d.loop, 10);
		CHECK_INT(x.status, rows[i].status);
		CHECK_STR(x.code, rows[i].code);
		CHECK(strstr(x.msg, rows[i].host ? "/srv/x" : "mine"));
		REQUIRE(next_ask(&m, text) && m.op == PRIV_FREE);
		m.status = 0;
		REQUIRE(send(R.helper, &m, sizeof(m), 0) == sizeof(m));
		loop_turn(R.d.loop, 10);
		fileserver_destroy(f);
		volumes_release(R.d.volumes, list, true);
		CHECK_INT(claim_find(R.d.volumes, "one", "mine")->uses, 0);
		cJSON_Delete(list);
	}
	rig_down();
}

static const struct test tests[] = {
	{"a_source_that_is_refused", a_source_that_is_refused},
	{"only_what_was_held_is_undone", only_what_was_held_is_undone},
	{"the_record_says_who_holds", the_record_says_who_holds},
	{"a_claim_outlives_its_writes", a_claim_outlives_its_writes},
	{"few_claims_are_emptied_at_a_time", few_claims_are_emptied_at_a_time},
	{"a_limit_is_the_hosts_if_it_can", a_limit_is_the_hosts_if_it_can},
	{"good_ones", good_ones},
	{"storage_of_a_claim", storage_of_a_claim},
	{"bad_ones", bad_ones},
	{"paths_that_do_not_fit", paths_that_do_not_fit},
	{"not_allowed_any_more", not_allowed_any_more},
	{"bounds", bounds},
};
TEST_MAIN(tests)
