/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_copy.c: `mayfly cp`: files and folders into a sandbox and out of it, by the upload and download
 * of the execution API. File names in a listing of a sandbox are hostile: a name with "..", or
 * outside of the folder that was asked for, is refused. Symbolic links in a folder are not copied.
 */
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/client.h"

#define EXECD(id) "/v1/sandboxes/%s/proxy/44772", id

bool copy_remote_of(const char *word, char *name, size_t cap, const char **path)
{
	const char *colon = strchr(word, ':');

	if (!colon || colon == word || memchr(word, '/', (size_t)(colon - word)))
		return false;
	snprintf(name, cap, "%.*s", (int)(colon - word), word);
	*path = colon[1] ? colon + 1 : ".";
	return true;
}

static bool no_bytes(void *arg, const char *p, size_t n)
{
	return true;
}

int copy_upload(const struct client *c, const char *id, FILE *from, const char *to, unsigned mode,
	struct err *e)
{
	_cleanup_free_ char *base = client_path(EXECD(id)),
			    *path = client_path("%s/files/upload", base);
	struct client_stream s = {.data = no_bytes, .upload = from};
	cJSON *meta = cJSON_CreateObject();
	char octal[16];
	char *text;
	int rc;

	snprintf(octal, sizeof(octal), "%o", mode & 07777);
	cJSON_AddStringToObject(meta, "path", to);
	cJSON_AddNumberToObject(meta, "mode", strtod(octal, NULL));
	text = cJSON_PrintUnformatted(meta);
	cJSON_Delete(meta);
	s.meta = text;
	rc = client_stream(c, "POST", path, NULL, &s, e);
	cJSON_free(text);
	return rc;
}

static bool to_file(void *arg, const char *p, size_t n)
{
	return fwrite(p, 1, n, arg) == n;
}

static int download(
	const struct client *c, const char *id, const char *from, FILE *to, struct err *e)
{
	_cleanup_free_ char *base = client_path(EXECD(id)), *q = client_escape(from),
			    *path = client_path("%s/files/download?path=%s", base, q);
	struct client_stream s = {.data = to_file, .arg = to};
	int rc = client_stream(c, "GET", path, NULL, &s, e);

	if (rc == 0 && fflush(to))
		rc = err_set(e, errno, "write");
	return rc;
}

/* The type of a path inside: 'f', 'd', ... or 0. */
static char remote_type(const struct client *c, const char *id, const char *path, struct err *e)
{
	_cleanup_free_ char *base = client_path(EXECD(id)), *q = client_escape(path),
			    *p = client_path("%s/files/info?path=%s", base, q);
	_cleanup_answer_ struct answer a;

	if (client_call(c, "GET", p, NULL, &a, e) < 0)
		return 0;
	return a.json && a.json->child ? json_text(a.json->child, "type")[0] : 0;
}

static const char *base_name(const char *path)
{
	const char *s = strrchr(path, '/');

	return s ? s + 1 : path;
}

/* ---- in */

static struct {
	const struct client *c;
	const char *id, *to;
	size_t skip;
	struct err e;
} W; /* nftw has no argument */

static int walk(const char *path, const struct stat *st, int type, struct FTW *f)
{
	_cleanup_free_ char *to = client_path("%s%s", W.to, path + W.skip);
	FILE *in;
	int rc;

	if (type == FTW_D || !S_ISREG(st->st_mode))
		return 0;
	in = fopen(path, "re");
	if (!in)
		return err_set(&W.e, errno, "open %s", path);
	rc = copy_upload(W.c, W.id, in, to, st->st_mode, &W.e);
	fclose(in);
	return rc;
}

int copy_in(const struct client *c, const char *from, const char *id, const char *to, struct err *e)
{
	_cleanup_free_ char *target = NULL;
	struct err ignored;
	struct stat st;
	FILE *in;
	int rc;

	if (!strcmp(from, "-"))
		return copy_upload(c, id, stdin, to, 0644, e);
	if (stat(from, &st) < 0)
		return err_set(e, errno, "%s", from);
	/* into a directory that is there, as cp does */
	if (to[strlen(to) - 1] == '/' || remote_type(c, id, to, &ignored) == 'd')
		target = client_path(
			"%s%s%s", to, to[strlen(to) - 1] == '/' ? "" : "/", base_name(from));
	else
		target = strdup(to);
	if (S_ISDIR(st.st_mode)) {
		/* a link to a folder is followed, as a link to a file is; nftw would not */
		_cleanup_free_ char *folder = realpath(from, NULL);

		if (!folder)
			return err_set(e, errno, "%s", from);
		W.c = c;
		W.id = id;
		W.to = target;
		W.skip = strcmp(folder, "/") ? strlen(folder) : 0;
		rc = nftw(folder, walk, 32, FTW_PHYS);
		W.c = NULL;
		W.id = W.to = NULL;
		if (rc)
			*e = W.e;
		return rc ? -e->code : 0;
	}
	in = fopen(from, "re");
	if (!in)
		return err_set(e, errno, "open %s", from);
	rc = copy_upload(c, id, in, target, st.st_mode, e);
	fclose(in);
	return rc;
}

/* ---- out */

static int fetch(
	const struct client *c, const char *id, const char *from, const char *to, struct err *e)
{
	FILE *out = fopen(to, "we");
	int rc;

	if (!out)
		return err_set(e, errno, "create %s", to);
	rc = download(c, id, from, out, e);
	if (fclose(out) && rc == 0)
		rc = err_set(e, errno, "write %s", to);
	return rc;
}

/* Does a name that the sandbox gave stay below the target folder? */
static bool name_is_safe(const char *rel)
{
	for (const char *p = rel; *p; p += strcspn(p, "/") + (p[strcspn(p, "/")] == '/'))
		if (!strncmp(p, "..", 2) && (p[2] == '/' || !p[2]))
			return false;
	return *rel == '/';
}

static int copy_tree_out(
	const struct client *c, const char *id, const char *from, const char *to, struct err *e);

/* Folders of / that are not on the sandbox's disk: the kernel's own file systems. */
static bool is_kernels(const char *full)
{
	static const char *const names[] = {"/proc", "/sys", "/dev"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (!strcmp(full, names[i]))
			return true;
	return false;
}

/* Copies /, folder by folder, without the kernel's own file systems. */
static int copy_root_out(
	const struct client *c, const char *id, const cJSON *list, const char *to, struct err *e)
{
	const cJSON *i;
	int rc = 0;

	cJSON_ArrayForEach (i, list) {
		const char *full = json_text(i, "path"), *type = json_text(i, "type");
		_cleanup_free_ char *local = NULL;

		if (rc < 0)
			break;
		if (!name_is_safe(full) || strchr(full + 1, '/'))
			return err_plain(
				e, EINVAL, "the sandbox names a file outside of /: '%s'", full);
		local = client_path("%s%s", to, full);
		if (!strcmp(type, "directory") && !is_kernels(full))
			rc = copy_tree_out(c, id, full, local, e);
		else if (!strcmp(type, "file"))
			rc = fetch(c, id, full, local, e);
	}
	return rc;
}

static int copy_tree_out(
	const struct client *c, const char *id, const char *from, const char *to, struct err *e)
{
	bool root = !strcmp(from, "/");
	_cleanup_free_ char *base = client_path(EXECD(id)), *q = client_escape(from),
			    *path = client_path("%s/directories/list?path=%s&depth=%d", base, q,
				    root ? 1 : 1000);
	_cleanup_answer_ struct answer a;
	const cJSON *i;
	int rc = client_call(c, "GET", path, NULL, &a, e);

	if (rc < 0)
		return rc;
	if (mkdir(to, 0755) < 0 && errno != EEXIST)
		return err_set(e, errno, "create %s", to);
	if (root)
		return copy_root_out(c, id, a.json, to, e);
	cJSON_ArrayForEach (i, a.json) {
		const char *full = json_text(i, "path"), *type = json_text(i, "type"),
			   *rel = full + strlen(from);
		_cleanup_free_ char *local = NULL;

		if (strncmp(full, from, strlen(from)) != 0 || !name_is_safe(rel))
			return err_plain(e, EINVAL, "the sandbox names a file outside of %s: '%s'",
				from, full);
		local = client_path("%s%s", to, rel);
		if (!strcmp(type, "directory") && mkdir(local, 0755) < 0 && errno != EEXIST)
			return err_set(e, errno, "create %s", local);
		if (strcmp(type, "file") != 0)
			continue;
		rc = fetch(c, id, full, local, e);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int copy_out(
	const struct client *c, const char *id, const char *from, const char *to, struct err *e)
{
	_cleanup_free_ char *plain = strdup(from), *target = NULL;
	struct stat st;
	char type;

	if (!strcmp(to, "-"))
		return download(c, id, from, stdout, e);
	for (size_t n = strlen(plain); n > 1 && plain[n - 1] == '/'; n--)
		plain[n - 1] = 0;
	type = remote_type(c, id, plain, e);
	if (!type)
		return -e->code;
	/* the root folder has no name that its copy could have */
	if (stat(to, &st) == 0 && S_ISDIR(st.st_mode) && *base_name(plain))
		target = client_path("%s/%s", to, base_name(plain));
	else
		target = strdup(to);
	return type == 'd' ? copy_tree_out(c, id, plain, target, e)
			   : fetch(c, id, plain, target, e);
}

int cmd_cp(int argc, char **argv)
{
	struct client_opts co = {0};
	const struct opt opts[] = {CLIENT_OPTS(co)};
	char from_name[128], to_name[128], id[64];
	const char *from, *to;
	struct client c;
	struct err e;
	bool out, in;
	int at, code, rc;

	if (!client_begin(&c, &co,
		    "cp FILE|FOLDER|- SANDBOX:PATH\n       mayfly cp SANDBOX:PATH FILE|FOLDER|-\n\n"
		    "Copy files and folders into a sandbox or out of it. - is standard input or "
		    "output.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 2, &at, &code))
		return code;
	out = copy_remote_of(argv[at], from_name, sizeof(from_name), &from);
	in = copy_remote_of(argv[at + 1], to_name, sizeof(to_name), &to);
	if (out == in) {
		fprintf(stderr,
			"mayfly: cp: one side must be SANDBOX:PATH, the other a path here\n");
		return EXIT_USAGE;
	}
	rc = client_resolve(&c, out ? from_name : to_name, id, &e);
	if (rc == 0)
		rc = out ? copy_out(&c, id, from, argv[at + 1], &e)
			 : copy_in(&c, argv[at], id, to, &e);
	return rc < 0 ? complain(EXIT_FAILED, &e) : EXIT_OK;
}
