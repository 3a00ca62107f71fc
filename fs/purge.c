/* SPDX-License-Identifier: Apache-2.0
 *
 * purge.c: see purge.h. The tree is hostile: of any depth, with any names. So nothing recurses: a folder that is met inside another is
 * moved up to the root under a name of ours, and its turn comes later.
 */
#include "fs/purge.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>

static DIR *folder_open(int dir, const char *name)
{
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d && fd >= 0)
		close(fd);
	return d;
}

/* Moves DIR/NAME to a name in the root that is free. */
static int folder_up(int root, int dir, const char *name, uint64_t *next)
{
	char to[40];

	do {
		snprintf(to, sizeof(to), "purge-%llu", (unsigned long long)++*next);
		if (renameat2(dir, name, root, to, RENAME_NOREPLACE) == 0)
			return 0;
	} while (errno == EEXIST);
	return -errno;
}

/* Files of this folder are removed, its folders moved up. The number of entries, or -errno. */
static int folder_empty(int root, DIR *d, uint64_t *next)
{
	const struct dirent *de;
	int n = 0, rc = 0;

	while (rc == 0 && (errno = 0, de = readdir(d))) {
		if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
			continue;
		n++;
		if (unlinkat(dirfd(d), de->d_name, 0) < 0 && errno != ENOENT)
			rc = errno == EISDIR || errno == EPERM
				     ? folder_up(root, dirfd(d), de->d_name, next)
				     : -errno;
	}
	if (rc == 0 && errno)
		rc = -errno;
	return rc < 0 ? rc : n;
}

/* A folder in the root goes. A file system may skip entries of a folder that is changed while it is read: again until it is empty. */
static int folder_remove(int root, const char *name, uint64_t *next)
{
	int rc = 0;

	while (unlinkat(root, name, AT_REMOVEDIR) < 0) {
		DIR *d;

		if (errno != ENOTEMPTY && errno != EEXIST)
			return errno == ENOENT ? 0 : -errno;
		if (rc < 0)
			return rc;
		d = folder_open(root, name);
		if (!d)
			return -errno;
		rc = folder_empty(root, d, next);
		closedir(d);
		if (rc == 0) /* it was empty and cannot be removed */
			rc = -ENOTEMPTY;
	}
	return 0;
}

int purge_folder(int root_path, struct err *e)
{
	uint64_t next = 0;
	int n = 1, rc = 0;
	char path[16];

	snprintf(path, sizeof(path), "%d", root_path);
	while (rc == 0 && n > 0) {
		int fd = openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		DIR *d = fd < 0 ? NULL : fdopendir(fd);
		const struct dirent *de;

		if (!d)
			return err_set(e, errno, "the volume's folder");
		for (n = 0; rc == 0 && (errno = 0, de = readdir(d));) {
			if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
				continue;
			n++;
			if (unlinkat(fd, de->d_name, 0) < 0 && errno != ENOENT)
				rc = errno == EISDIR || errno == EPERM
					     ? folder_remove(fd, de->d_name, &next)
					     : -errno;
		}
		if (rc == 0 && errno)
			rc = -errno;
		closedir(d);
	}
	return rc < 0 ? err_set(e, -rc, "emptying the volume") : 0;
}
