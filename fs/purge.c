/* SPDX-License-Identifier: Apache-2.0
 *
 * purge.c: see purge.h. The tree is hostile: of any depth, with any names. So nothing recurses: a folder inside another one is moved up to
 * the root under a name of ours, and emptied later.
 */
#include "fs/purge.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>

/* Removes one entry of dir, or moves it away: 0 or -errno. */
typedef int (*entry_fn)(int root, int dir, const char *name, uint64_t *next);

/* Calls fn for each entry of a folder. The number of entries, or -errno. (opendir() would call fcntl(), which seal.c does not allow.) */
static int folder_pass(int root, int dir, entry_fn fn, uint64_t *next)
{
	_Alignas(8) char entries[16384];
	int n = 0, rc = 0;
	ssize_t got;

	if (lseek(dir, 0, SEEK_SET) < 0)
		return -errno;
	while (rc == 0 && (got = getdents64(dir, entries, sizeof(entries))) > 0) {
		for (ssize_t at = 0; at < got && rc == 0;) {
			const struct dirent64 *de = (const void *)(entries + at);

			at += de->d_reclen;
			if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
				continue;
			n++;
			rc = fn(root, dir, de->d_name, next);
		}
	}
	return rc < 0 ? rc : got < 0 ? -errno : n;
}

/* Passes over the folder until it is empty: a file system may skip entries of a folder that changes while it is read. 0 or -errno. */
static int folder_empty(int root, int dir, entry_fn fn, uint64_t *next)
{
	int n;

	while ((n = folder_pass(root, dir, fn, next)) > 0)
		;
	return n;
}

/* true: the name is removed, or *rc says why not. false: it is a folder. */
static bool file_removed(int dir, const char *name, int *rc)
{
	*rc = unlinkat(dir, name, 0) == 0 || errno == ENOENT ? 0 : -errno;
	if (*rc != -EISDIR && *rc != -EPERM)
		return true;
	*rc = 0;
	return false;
}

/* Below the root: a folder is moved up. */
static int entry_up(int root, int dir, const char *name, uint64_t *next)
{
	char to[40];
	int rc;

	if (file_removed(dir, name, &rc))
		return rc;
	do {
		snprintf(to, sizeof(to), "purge-%llu", (unsigned long long)++*next);
		if (renameat2(dir, name, root, to, RENAME_NOREPLACE) == 0)
			return 0;
	} while (errno == EEXIST);
	return -errno;
}

static int entry_of_root(int root, int dir, const char *name, uint64_t *next)
{
	_cleanup_close_ int fd = -1;
	int rc;

	if (file_removed(dir, name, &rc))
		return rc;
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = folder_empty(root, fd, entry_up, next);
	if (rc == 0 && unlinkat(dir, name, AT_REMOVEDIR) < 0)
		rc = -errno;
	return rc;
}

int purge_folder(int root_fd, struct err *e)
{
	_cleanup_close_ int root = -1;
	uint64_t next = 0;
	char path[16];
	int rc;

	snprintf(path, sizeof(path), "%d", root_fd);
	root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return err_set(e, errno, "the volume's folder");
	rc = folder_empty(root, root, entry_of_root, &next);
	return rc < 0 ? err_set(e, -rc, "emptying the volume") : 0;
}
