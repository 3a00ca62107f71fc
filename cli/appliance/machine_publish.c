/* SPDX-License-Identifier: Apache-2.0
 *
 * machine_publish.c: puts files where the appliance sees them, read-only, under a path named by
 * their content. A share is cached inside; a path that never changes its content cannot go stale,
 * so a new build is a new path.
 */
#include "cli/appliance/machine.h"

#include <dirent.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/run.h"

enum { FILES_MAX = 4096 };

struct file_list {
	char *path[FILES_MAX], *name[FILES_MAX]; /* source, name in the folder */
	size_t n;
};

static void list_free(struct file_list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		free(l->path[i]);
		free(l->name[i]);
	}
}

static int list_add(struct file_list *l, const char *path, const char *name, struct err *e)
{
	if (l->n == FILES_MAX)
		return err_plain(e, E2BIG, "more than %d files", FILES_MAX);
	l->path[l->n] = strdup(path);
	l->name[l->n] = strdup(name);
	return l->path[l->n] && l->name[l->n++] ? 0 : err_set(e, ENOMEM, "%s", path);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_visible(const struct dirent *d)
{
	return d->d_name[0] != '.';
}

/* A file by its own name; a folder's regular files (not deeper) by theirs. */
static int list_path(struct file_list *l, const char *path, struct err *e)
{
	struct dirent **names;
	struct stat st;
	const char *base = strrchr(path, '/');
	int n, rc = 0;

	if (stat(path, &st) < 0)
		return err_set(e, errno, "%s", path);
	if (S_ISREG(st.st_mode))
		return list_add(l, path, base ? base + 1 : path, e);
	n = scandir(path, &names, is_visible, by_name);
	if (n < 0)
		return err_set(e, errno, "%s", path);
	for (int i = 0; i < n; i++) {
		char p[PATH_MAX];

		snprintf(p, sizeof(p), "%s/%s", path, names[i]->d_name);
		if (rc == 0 && stat(p, &st) == 0 && S_ISREG(st.st_mode))
			rc = list_add(l, p, names[i]->d_name, e);
		free(names[i]);
	}
	free(names);
	return rc;
}

static int hash_file(EVP_MD_CTX *ctx, const char *path)
{
	_cleanup_free_ uint8_t *b = malloc(KIB(256));
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	ssize_t n;

	if (!b)
		return -ENOMEM;
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	EVP_DigestUpdate(ctx, &st.st_mode, sizeof(st.st_mode));
	EVP_DigestUpdate(ctx, &st.st_size, sizeof(st.st_size));
	while ((n = read(fd, b, KIB(256))) > 0)
		EVP_DigestUpdate(ctx, b, (size_t)n);
	return n < 0 ? -errno : 0;
}

static int hash_list(const struct file_list *l, char hex[static 17], struct err *e)
{
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	uint8_t sum[EVP_MAX_MD_SIZE];
	int rc = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) ? 0
								   : err_set(e, ENOMEM, "SHA-256");

	for (size_t i = 0; rc == 0 && i < l->n; i++) {
		EVP_DigestUpdate(ctx, l->name[i], strlen(l->name[i]) + 1);
		rc = hash_file(ctx, l->path[i]);
		if (rc < 0)
			err_set(e, -rc, "%s", l->path[i]);
	}
	if (rc == 0)
		EVP_DigestFinal_ex(ctx, sum, NULL);
	EVP_MD_CTX_free(ctx);
	for (int i = 0; rc == 0 && i < 8; i++)
		snprintf(hex + 2 * i, 3, "%02x", sum[i]);
	return rc;
}

static int copy_file(const char *from, const char *to)
{
	_cleanup_close_ int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;
	struct stat st;
	ssize_t n;

	if (in < 0 || fstat(in, &st) < 0)
		return -errno;
	out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (out < 0)
		return -errno;
	while ((n = copy_file_range(in, NULL, out, NULL, MIB(64), 0)) > 0)
		;
	/* every user inside may read it, whatever the umask of the builder was */
	if (n < 0 || fchmod(out, (st.st_mode & 0111) ? 0755 : 0644) < 0)
		return -errno;
	return 0;
}

int machine_publish(const struct machine *m, const char *const *paths, size_t n,
	char to[static PATH_MAX], struct err *e)
{
	_cleanup_free_ struct file_list *l = calloc(1, sizeof(*l));
	char tmp[PATH_MAX], final[PATH_MAX], share[64], hex[17] = "";
	int rc = l ? 0 : err_set(e, ENOMEM, "publish");

	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = list_path(l, paths[i], e);
	if (rc == 0)
		rc = hash_list(l, hex, e);
	snprintf(share, sizeof(share), "share/%s", hex);
	machine_path(m, share, final);
	if (rc == 0 && access(final, F_OK) < 0) {
		snprintf(tmp, sizeof(tmp), "%s/share/.new-%d", m->dir, (int)getpid());
		tree_remove(tmp);
		if (mkdir(tmp, 0755) < 0)
			rc = err_set(e, errno, "%s", tmp);
		for (size_t i = 0; rc == 0 && i < l->n; i++) {
			char one[PATH_MAX + 300];

			snprintf(one, sizeof(one), "%s/%s", tmp, l->name[i]);
			rc = copy_file(l->path[i], one);
			if (rc < 0)
				err_set(e, -rc, "%s", one);
		}
		/* another process may have published the same files meanwhile: then those are used */
		if (rc == 0 && rename(tmp, final) < 0 && errno != EEXIST && errno != ENOTEMPTY)
			rc = err_set(e, errno, "%s", final);
		tree_remove(tmp);
	}
	if (l)
		list_free(l);
	if (rc == 0)
		snprintf(to, PATH_MAX, "/share/%s", hex);
	return rc;
}
