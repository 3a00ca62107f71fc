/* SPDX-License-Identifier: Apache-2.0
 *
 * api_execd_files: the execution API (tests/execd_host.h): every file route, from upload to
 * download.
 */
#include "tests/execd_host.h"

/* ---- files. $D in a path or body is the test's folder. */

static char *fill(const char *s)
{
	static char out[8][4096];
	static int k;
	char *to = out[k++ % 8];
	size_t n = 0;

	for (; *s && n < 4000; s++) {
		if (s[0] == '$' && s[1] == 'D') {
			n += (size_t)sprintf(to + n, "%s", S.dir);
			s++;
		} else {
			to[n++] = *s;
		}
	}
	to[n] = 0;
	return to;
}

static void upload(const char *path, const char *body, bool chunked, int uid)
{
	char head[1024], *text = fill(body);
	char prefix[64] = "";

	if (uid >= 0)
		snprintf(prefix, sizeof(prefix), "/v1/filesystem/%d/%d", uid, uid);
	if (!chunked) {
		snprintf(head, sizeof(head),
			"POST %s%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: "
			"multipart/form-data; boundary=BB\r\nContent-Length: %zu\r\n\r\n",
			prefix, path, strlen(text));
		ask_raw(head, text, strlen(text));
		return;
	}
	/* as the Python SDK does: chunks, and here each of 7 bytes */
	{
		char all[16384];
		size_t o = 0, n = strlen(text);

		snprintf(head, sizeof(head),
			"POST %s%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: "
			"multipart/form-data; boundary=BB\r\nTransfer-Encoding: chunked\r\n\r\n",
			prefix, path);
		for (size_t i = 0; i < n; i += 7)
			o += (size_t)sprintf(
				all + o, "%zx\r\n%.7s\r\n", MIN((size_t)7, n - i), text + i);
		o += (size_t)sprintf(all + o, "0\r\n\r\n");
		ask_raw(head, all, o);
	}
}

#define META(json)                                                                                 \
	"--BB\r\nContent-Disposition: form-data; name=\"metadata\"; "                              \
	"filename=\"metadata\"\r\nContent-Type: application/json\r\n\r\n" json "\r\n"
#define DATA(text)                                                                                 \
	"--BB\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n" text "\r"  \
	"\n"
#define END "--BB--\r\n"

static void files_are_uploaded_and_read_back(void)
{
	for (int chunked = 0; chunked < 2; chunked++) {
		upload("/files/upload",
			META("{\"path\":\"$D/new/dir/a.txt\",\"owner\":null,\"mode\":600}")
				DATA("line 1\nline 2\nline 3\n") META("{\"path\":\"$D/b\"}")
					DATA("") END,
			chunked, -1);
		CHECK_INT(R.status, 200);
		if (R.status != 200)
			puts(R.body);
		CHECK(strcasestr(R.raw, "content-length: 0"));
		ask("GET", fill("/files/download?path=$D/new/dir/a.txt"), NULL);
		CHECK_INT(R.status, 200);
		CHECK_STR(R.body, "line 1\nline 2\nline 3\n");
		CHECK(strcasestr(R.raw, "content-disposition: attachment; filename=\"a.txt\"") &&
			strcasestr(R.raw, "content-length: 21"));
		ask("GET", fill("/files/info?path=$D/new/dir/a.txt&path=$D/b"), NULL);
		CHECK_INT(R.status, 200);
		CHECK(strstr(R.body, "\"mode\":600") && strstr(R.body, "\"size\":21") &&
			strstr(R.body, "\"type\":\"file\"") &&
			strstr(R.body, "\"owner\":\"root\""));
	}
	ask("GET", fill("/files/download?path=$D/new/dir/a.txt&offset=2&limit=1"), NULL);
	CHECK_INT(R.status, 200);
	CHECK_STR(R.body, "line 2");
	CHECK(strcasestr(R.raw, "content-type: text/plain"));
	/* as the reference: joined, no newline behind the last */
	ask("GET", fill("/files/download?path=$D/new/dir/a.txt&offset=2"), NULL);
	CHECK_STR(R.body, "line 2\nline 3");
	ask("GET", fill("/files/download?path=$D/new/dir/a.txt&offset=9"), NULL);
	CHECK_INT(R.status, 200);
	CHECK_STR(R.body, "");
	/* a NUL would cut the path behind its check */
	upload("/files/upload", META("{\"path\":\"$D/cut\\u0000.txt\"}") DATA("x") END, 0, -1);
	CHECK_INT(R.status, 400);
	CHECK_STR(code_of(), "INVALID_FILE_METADATA");
	ask("GET", fill("/files/download?path=$D/cut"), NULL);
	CHECK_INT(R.status, 404);
	ask("GET", fill("/files/download?path=$D/nothing"), NULL);
	CHECK_INT(R.status, 404);
	CHECK_STR(code_of(), "FILE_NOT_FOUND");
	ask("GET", "/files/download", NULL);
	CHECK_INT(R.status, 400);
	CHECK_STR(code_of(), "MISSING_QUERY");
	ask("GET", fill("/files/download?path=$D"), NULL);
	CHECK_INT(R.status, 400);
}

static void ranges_are_kept(void)
{
	static const struct {
		const char *range;
		int status;
		const char *body, *said;
	} t[] = {
		{"bytes=2-4", 206, "cde", "bytes 2-4/10"},
		{"bytes=7-", 206, "hij", "bytes 7-9/10"},
		{"bytes=-3", 206, "hij", "bytes 7-9/10"},
		{"bytes=-99", 206, "abcdefghij", "bytes 0-9/10"},
		{"bytes=5-99", 206, "fghij", "bytes 5-9/10"},
		{"bytes=10-", 416, NULL, "bytes */10"},
		{"bytes=4-2", 416, NULL, "bytes */10"},
		{"bytes=x", 416, NULL, "bytes */10"},
		{"bytes=0-1,3-4", 200, "abcdefghij", NULL},
		{"items=1-2", 200, "abcdefghij", NULL},
	};

	upload("/files/upload", META("{\"path\":\"$D/r\"}") DATA("abcdefghij") END, false, -1);
	CHECK_INT(R.status, 200);
	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		char head[512];

		snprintf(head, sizeof(head),
			"GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nRange: %s\r\n\r\n",
			fill("/files/download?path=$D/r"), t[i].range);
		ask_raw(head, "", 0);
		if (R.status != t[i].status)
			printf("%s\n", t[i].range);
		CHECK_INT(R.status, t[i].status);
		if (t[i].body)
			CHECK_STR(R.body, t[i].body);
		if (t[i].said)
			CHECK(strstr(R.raw, t[i].said));
	}
	ask_raw(fill("GET /files/download?path=$D/r&offset=1 HTTP/1.1\r\nHost: a\r\nConnection: "
		     "close\r\nRange: bytes=1-2\r\n\r\n"),
		"", 0);
	CHECK_INT(R.status, 400);
}

static void bad_uploads_are_refused(void)
{
	static const char *const bad[] = {
		META("{\"path\":\"$D/z\"}") END,
		DATA("x") END,
		META("{\"path\":\"\"}") DATA("x") END,
		META("{\"path\":\"$D/z\",\"mode\":888}") DATA("x") END,
		META("[]") DATA("x") END,
		META("{\"path\":\"$D/z\"}") META("{\"path\":\"$D/z\"}") DATA("x") END,
		END,
		META("{\"path\":\"$D/z\"}") DATA("x"),
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		upload("/files/upload", bad[i], false, -1);
		if (R.status != 400)
			printf("case %zu: %d %s\n", i, R.status, R.body);
		CHECK_INT(R.status, 400);
		CHECK_STR(code_of(), "INVALID_FILE_METADATA");
	}
	ask("POST", "/files/upload", "{}");
	CHECK_INT(R.status, 400);
	CHECK_STR(code_of(), "INVALID_FILE");
}

static void files_are_moved_changed_found_and_removed(void)
{
	upload("/files/upload",
		META("{\"path\":\"$D/t/one.txt\"}") DATA("aXbXc")
			META("{\"path\":\"$D/t/sub/two.txt\"}") DATA("2") END,
		false, -1);
	CHECK_INT(R.status, 200);
	ask("POST", "/files/permissions",
		fill("{\"$D/t/"
		     "one.txt\":{\"mode\":755,\"owner\":\"nobody\",\"group\":\"nogroup\"}}"));
	CHECK_INT(R.status, 200);
	ask("GET", fill("/files/info?path=$D/t/one.txt"), NULL);
	CHECK(strstr(R.body, "\"mode\":755") && strstr(R.body, "\"owner\":\"nobody\"") &&
		strstr(R.body, "\"group\":\"nogroup\""));
	ask("POST", "/files/replace?verbose=true",
		fill("{\"$D/t/one.txt\":{\"old\":\"X\",\"new\":\"--\"}}"));
	CHECK_INT(R.status, 200);
	CHECK(strstr(R.body, "\"replacedCount\":2"));
	ask("POST", "/files/replace", fill("{\"$D/t/one.txt\":{\"old\":\"\",\"new\":\"--\"}}"));
	CHECK_INT(R.status, 400);
	ask("GET", fill("/files/download?path=$D/t/one.txt"), NULL);
	CHECK_STR(R.body, "a--b--c");
	ask("GET", fill("/files/search?path=$D/t&pattern=*.txt"), NULL);
	CHECK_INT(R.status, 200);
	CHECK(strstr(R.body, "one.txt") && strstr(R.body, "two.txt") &&
		!strstr(R.body, "directory"));
	ask("GET", fill("/files/search?path=$D/nothing"), NULL);
	CHECK_INT(R.status, 404);
	ask("GET", fill("/directories/list?path=$D/t"), NULL);
	CHECK(strstr(R.body, "one.txt") && strstr(R.body, "\"type\":\"directory\"") &&
		!strstr(R.body, "two.txt"));
	ask("GET", fill("/directories/list?path=$D/t&depth=2"), NULL);
	CHECK(strstr(R.body, "two.txt") != NULL);
	ask("GET", fill("/directories/list?path=$D/t&depth=0"), NULL);
	CHECK_INT(R.status, 400);
	ask("POST", "/files/mv",
		fill("[{\"src\":\"$D/t/one.txt\",\"dest\":\"$D/t/made/three.txt\"}]"));
	CHECK_INT(R.status, 200);
	ask("POST", "/files/mv", fill("[{\"src\":\"$D/t/one.txt\",\"dest\":\"$D/t/x\"}]"));
	CHECK_INT(R.status, 404);
	ask("POST", "/files/mv",
		fill("[{\"src\":\"$D/t/sub/two.txt\",\"dest\":\"$D/t/made/three.txt\"}]"));
	CHECK_INT(R.status, 500);
	ask("POST", "/directories", fill("{\"$D/d1/d2\":{\"mode\":700},\"$D/d3\":{}}"));
	CHECK_INT(R.status, 200);
	ask("GET", fill("/files/info?path=$D/d1/d2&path=$D/d3"), NULL);
	CHECK(strstr(R.body, "\"mode\":700"));
	ask("DELETE", fill("/files?path=$D/d3"), NULL);
	CHECK_INT(R.status, 500);
	ask("DELETE", fill("/files?path=$D/t/made/three.txt&path=$D/t/nothing"), NULL);
	CHECK_INT(R.status, 200);
	ask("DELETE", fill("/directories?path=$D/t&path=$D/nothing"), NULL);
	CHECK_INT(R.status, 200);
	ask("GET", fill("/files/info?path=$D/t"), NULL);
	CHECK_INT(R.status, 404);
	ask("GET", "/files/info", NULL);
	CHECK_STR(R.body, "{}");
}

static void another_user_has_his_own_rights(void)
{
	upload("/files/upload", META("{\"path\":\"$D/mine\"}") DATA("secret") END, false, -1);
	ask("POST", "/files/permissions", fill("{\"$D/mine\":{\"mode\":600}}"));
	ask("GET", fill("/v1/filesystem/65534/65534/files/download?path=$D/mine"), NULL);
	CHECK_INT(R.status, 403);
	ask("GET", "/v1/filesystem/65534/65534/files/info?path=/tmp", NULL);
	CHECK_INT(R.status, 200);
	ask("GET", "/v1/filesystem/4294967295/0/files/info?path=/tmp", NULL);
	CHECK_INT(R.status, 400);
	ask("GET", "/v1/filesystem/-1/0/files/info?path=/tmp", NULL);
	CHECK_INT(R.status, 400);
}

/* More than every buffer on the way, both ways. */
static void large_files_keep_their_bytes(void)
{
	static char body[3 << 20], all[(3 << 20) + 1024];
	char head[512];
	int n, m;

	for (size_t i = 0; i < sizeof(body); i++)
		body[i] = (char)(i * 7 + i / 251);
	n = snprintf(all, sizeof(all),
		"%s--BB\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n",
		fill(META("{\"path\":\"$D/large\"}")));
	memcpy(all + n, body, sizeof(body));
	m = n + (int)sizeof(body);
	m += snprintf(all + m, sizeof(all) - (size_t)m, "\r\n--BB--\r\n");
	snprintf(head, sizeof(head),
		"POST /files/upload HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: "
		"multipart/form-data; boundary=BB\r\nContent-Length: %d\r\n\r\n",
		m);
	ask_raw(head, all, (size_t)m);
	CHECK_INT(R.status, 200);
	ask("GET", fill("/files/download?path=$D/large"), NULL);
	CHECK_INT(R.len, sizeof(body));
	CHECK(!memcmp(R.body, body, MIN(R.len, sizeof(body))));
}

static const struct test tests[] = {
	{"files_are_uploaded_and_read_back", files_are_uploaded_and_read_back},
	{"ranges_are_kept", ranges_are_kept},
	{"bad_uploads_are_refused", bad_uploads_are_refused},
	{"files_are_moved_changed_found_and_removed", files_are_moved_changed_found_and_removed},
	{"another_user_has_his_own_rights", another_user_has_his_own_rights},
	{"large_files_keep_their_bytes", large_files_keep_their_bytes},
};

int main(int argc, char **argv)
{
	return execd_main(argc, argv, tests, ARRAY_LEN(tests));
}
