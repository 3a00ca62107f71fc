/* SPDX-License-Identifier: Apache-2.0
 *
 * store.c: folders, blobs, names and images of the store. The daemon and the command line. What
 * jobs left in a stage is not believed: blobs are hashed here, image.json is parsed here with
 * bounds. All paths are relative to descriptors of our own folders and made of hex.
 */
#include "images/store/store.h"
#include "images/pull/stagefile.h"
#include "images/store/store_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

static const char *const folders[STORE_FOLDERS] = {
	[F_BLOBS] = "blobs/sha256",
	[F_IMAGES] = "images",
	[F_NAMES] = "names",
	[F_PINS] = "pins",
	[F_STAGING] = "staging",
	[F_LOCKS] = "locks",
	[F_PARTS] = "parts",
	[F_GRANTS] = "grants",
};

void image_info_fini(struct image_info *i)
{
	image_config_fini(&i->config);
}

/* Makes the store's folder, and the folders above it that are missing. */
static int make_root(const char *root, struct err *e)
{
	_cleanup_free_ char *p = strdup(root);

	if (!p)
		return err_set(e, ENOMEM, "store");
	for (char *s = p + 1; *s; s++) {
		if (*s != '/')
			continue;
		*s = 0;
		if (mkdir(p, 0755) < 0 && errno != EEXIST)
			return err_set(e, errno, "mkdir %s", p);
		*s = '/';
	}
	if (mkdir(p, 0711) < 0 && errno != EEXIST)
		return err_set(e, errno, "mkdir %s", p);
	return 0;
}

int remove_tree(int dir_fd, const char *name)
{
	_cleanup_close_ int fd =
		openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct dirent *de;
	DIR *d;
	int r = 0;

	if (fd < 0)
		return unlinkat(dir_fd, name, 0) < 0 ? -errno : 0;
	d = fdopendir(fd);
	if (!d)
		return -errno;
	take_fd(&fd);
	while ((de = readdir(d))) {
		if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0)
			continue;
		r = remove_tree(dirfd(d), de->d_name);
		if (r < 0 && r != -ENOENT)
			break;
	}
	closedir(d);
	return unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

int each_entry(int dir_fd, int (*fn)(void *arg, const char *name), void *arg)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *de;

	if (!d) {
		r = -errno;
		close_fd(&fd);
		return r;
	}
	while (r == 0 && (de = readdir(d)))
		if (de->d_name[0] != '.')
			r = fn(arg, de->d_name);
	closedir(d);
	return r;
}

/* ---- parts of downloads ---- */

#define PULL_MARK   "pull"
#define PART_DAYS   2
#define IS_HEX64(s) (strspn((s), "0123456789abcdef") == 64 && !(s)[64])

struct salvage {
	struct store *s;
	int from;
};

static int salvage_one(void *arg, const char *name)
{
	const char *hex = strncmp(name, STAGE_PART, strlen(STAGE_PART)) == 0
				  ? name + strlen(STAGE_PART)
				  : name;
	struct salvage *v = arg;
	struct stat sb, old;

	if (!IS_HEX64(hex) || fstatat(v->from, name, &sb, AT_SYMLINK_NOFOLLOW) < 0 ||
		!S_ISREG(sb.st_mode) || sb.st_nlink != 1 || !sb.st_size)
		return 0;
	if (fstatat(v->s->dir[F_PARTS], hex, &old, AT_SYMLINK_NOFOLLOW) == 0 &&
		old.st_size >= sb.st_size)
		return 0;
	renameat(v->from, name, v->s->dir[F_PARTS], hex);
	return 0;
}

static void salvage(struct store *s, int stage)
{
	struct salvage v = {s, stage};

	if (faccessat(stage, PULL_MARK, F_OK, 0) == 0)
		each_entry(stage, salvage_one, &v);
}

static int drop_old_part(void *arg, const char *name)
{
	struct store *s = arg;
	struct stat sb;

	if (fstatat(s->dir[F_PARTS], name, &sb, AT_SYMLINK_NOFOLLOW) == 0 &&
		time(NULL) - sb.st_mtime > PART_DAYS * 86400)
		unlinkat(s->dir[F_PARTS], name, 0);
	return 0;
}

int store_part_open(struct store *s, const struct digest *d)
{
	char hex[DIGEST_HEX];
	int fd = openat(s->dir[F_PARTS], digest_hex(d, hex),
		O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/* A stage that nobody has locked belongs to a job that died, perhaps with its daemon. */
static int reap_stage(void *arg, const char *name)
{
	struct store *s = arg;
	_cleanup_close_ int fd =
		openat(s->dir[F_STAGING], name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
		return 0;
	if (fd >= 0)
		salvage(s, fd);
	remove_tree(s->dir[F_STAGING], name);
	return 0;
}

/* Files that were being written when somebody was killed: ".tmp-*". Whoever writes one holds the
 * lock shared. */
static void reap_tmp(int dir_fd)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *de;

	if (!d) {
		close_fd(&fd);
		return;
	}
	while ((de = readdir(d)))
		if (strncmp(de->d_name, ".tmp-", 5) == 0)
			remove_tree(dir_fd, de->d_name);
	closedir(d);
}

int store_lock(struct store *s, int how)
{
	int fd = openat(s->root, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0644);

	if (fd < 0)
		return -errno;
	while (flock(fd, how) < 0)
		if (errno != EINTR) {
			int r = -errno;

			close(fd);
			return r;
		}
	return fd;
}

static int open_folders(struct store *s, struct err *e)
{
	if (mkdirat(s->root, "blobs", 0755) < 0 && errno != EEXIST)
		return err_set(e, errno, "mkdir %s/blobs", s->path);
	for (int i = 0; i < STORE_FOLDERS; i++) {
		if (mkdirat(s->root, folders[i], i == F_STAGING ? 0711 : 0755) < 0 &&
			errno != EEXIST)
			return err_set(e, errno, "mkdir %s/%s", s->path, folders[i]);
		s->dir[i] = openat(s->root, folders[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (s->dir[i] < 0)
			return err_set(e, errno, "%s/%s", s->path, folders[i]);
	}
	return 0;
}

const char *store_path(const struct store *s)
{
	return s->path;
}

int store_open(const char *root, struct store **out, struct err *e)
{
	struct store *s;
	int r, lock;

	if (strlen(root) > 300)
		return err_plain(e, ENAMETOOLONG, "store: its path has %zu bytes: at most 300",
			strlen(root));
	r = make_root(root, e);
	if (r < 0)
		return r;
	s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(e, ENOMEM, "store");
	for (int i = 0; i < STORE_FOLDERS; i++)
		s->dir[i] = -1;
	snprintf(s->path, sizeof(s->path), "%s", root);
	s->root = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = s->root < 0 ? err_set(e, errno, "%s", root) : open_folders(s, e);
	if (r < 0) {
		store_close(s);
		return r;
	}
	lock = store_lock(s, LOCK_EX | LOCK_NB);
	if (lock >= 0) {
		for (int i = 0; i < STORE_FOLDERS; i++)
			if (i != F_STAGING)
				reap_tmp(s->dir[i]);
		each_entry(s->dir[F_PARTS], drop_old_part, s);
		/* under the store's lock, too, because a stage is made and locked in two steps */
		each_entry(s->dir[F_STAGING], reap_stage, s);
		close(lock);
	}
	*out = s;
	return 0;
}

void store_close(struct store *s)
{
	if (!s)
		return;
	for (int i = 0; i < STORE_FOLDERS; i++)
		close_fd(&s->dir[i]);
	close_fd(&s->root);
	free(s);
}

/* ---- stages ---- */

static void random_name(const char *prefix, char *to, size_t cap)
{
	uint8_t b[12];
	size_t n;

	random_bytes(b, sizeof(b));
	n = (size_t)snprintf(to, cap, "%s", prefix);
	for (size_t i = 0; i < sizeof(b) && n + 2 < cap; i++)
		n += (size_t)snprintf(to + n, cap - n, "%02x", b[i]);
}

int store_stage_begin(struct store *s, struct stage *out, struct err *e)
{
	_cleanup_close_ int lock = store_lock(s, LOCK_SH);
	struct stage st;

	if (lock < 0)
		return err_set(e, -lock, "%s/lock", s->path);
	random_name("", st.name, sizeof(st.name));
	if (mkdirat(s->dir[F_STAGING], st.name, 0700) < 0)
		return err_set(e, errno, "%s/staging", s->path);
	st.fd = openat(s->dir[F_STAGING], st.name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* A jailed job has a user of its own and gets this descriptor only. Others cannot find the
	 * folder: its name is random, and they cannot list the one above. */
	if (st.fd < 0 || flock(st.fd, LOCK_EX | LOCK_NB) < 0 || fchmod(st.fd, 0777) < 0)
		return err_set(e, errno, "%s/staging/%s", s->path, st.name);
	*out = st;
	return 0;
}

int store_stage_is_pull(struct stage *st)
{
	_cleanup_close_ int fd = openat(st->fd, PULL_MARK, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	return fd < 0 ? -errno : 0;
}

void store_stage_salvage(struct store *s, struct stage *st)
{
	if (st->fd >= 0)
		salvage(s, st->fd);
}

static int is_held(void *arg, const char *name)
{
	struct store *s = arg;
	_cleanup_close_ int fd =
		openat(s->dir[F_STAGING], name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0;
}

bool store_is_staging(struct store *s)
{
	return each_entry(s->dir[F_STAGING], is_held, s) > 0;
}

void store_stage_end(struct store *s, struct stage *st)
{
	if (st->fd < 0)
		return;
	remove_tree(s->dir[F_STAGING], st->name);
	close_fd(&st->fd);
}

/* ---- blobs ---- */

int store_blob_open(struct store *s, const struct digest *d)
{
	char hex[DIGEST_HEX];
	int fd = openat(s->dir[F_BLOBS], digest_hex(d, hex), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

int store_blob_put(struct store *s, const struct stage *st, const char *name,
	const struct digest *d, uint64_t size, struct err *e)
{
	_cleanup_close_ int fd =
		openat(st->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	char hex[DIGEST_HEX];
	struct digest have;
	struct stat sb;
	int r;

	digest_hex(d, hex);
	if (fd < 0 || fstat(fd, &sb) < 0)
		return err_set(e, errno, "blob %.12s", hex);
	if (!S_ISREG(sb.st_mode) || sb.st_nlink != 1 || (uint64_t)sb.st_size != size)
		return err_plain(e, EBADMSG, "blob %.12s has %lld bytes, not %llu", hex,
			(long long)sb.st_size, (unsigned long long)size);
	r = digest_of_fd(fd, size, &have);
	if (r < 0)
		return err_set(e, -r, "blob %.12s", hex);
	if (!digest_eq(&have, d))
		return err_plain(e, EBADMSG, "blob %.12s: its bytes have another digest", hex);
	(void)fchmod(fd, 0444); /* a job's own file becomes ours by `adopt` before this */
	if (fsync(fd) < 0 || renameat(st->fd, name, s->dir[F_BLOBS], hex) < 0 ||
		fsync(s->dir[F_BLOBS]) < 0)
		return err_set(e, errno, "blob %.12s", hex);
	unlinkat(s->dir[F_PARTS], hex, 0); /* the part is not needed any more */
	return 0;
}

/* ---- images ---- */

bool store_image_there(struct store *s, const struct digest *id)
{
	char hex[DIGEST_HEX];

	return faccessat(s->dir[F_IMAGES], digest_hex(id, hex), F_OK, 0) == 0;
}

int read_config(int dir_fd, const char *name, struct image_config *out, struct err *e)
{
	_cleanup_close_ int fd =
		openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	_cleanup_free_ char *p = NULL;
	struct stat sb;
	int r;

	if (fd < 0 || fstat(fd, &sb) < 0)
		return err_set(e, errno, "%s", name);
	if (!S_ISREG(sb.st_mode) || sb.st_size < 0 || (uint64_t)sb.st_size > IMAGE_MAX_CONFIG)
		return err_plain(e, EBADMSG, "%s is not a file of a sensible size", name);
	p = malloc((size_t)sb.st_size + 1);
	if (!p)
		return err_set(e, ENOMEM, "%s", name);
	r = pread_full(fd, p, (size_t)sb.st_size, 0);
	return r < 0 ? err_set(e, -r, "%s", name)
		     : image_config_read(p, (size_t)sb.st_size, out, e);
}

/* image.json must be of the image that was to be built, and the disk must have the length that it says. */
static int check_built(const struct stage *st, const struct digest *id, struct err *e)
{
	struct image_config c = {0};
	struct stat sb;
	int r = read_config(st->fd, "image.json", &c, e);

	if (r < 0)
		return r;
	if (!digest_eq(&c.id, id))
		r = err_plain(e, EBADMSG, "image.json is of another image");
	else if (fstatat(st->fd, "disk.ext4", &sb, AT_SYMLINK_NOFOLLOW) < 0)
		r = err_set(e, errno, "disk.ext4");
	else if (!S_ISREG(sb.st_mode) || sb.st_nlink != 1 ||
		 (uint64_t)sb.st_size != c.disk.disk_bytes)
		r = err_plain(e, EBADMSG, "disk.ext4 is not the disk that image.json describes");
	image_config_fini(&c);
	return r;
}

static int move_in(int from, int to, const char *name, struct err *e)
{
	_cleanup_close_ int fd = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return err_set(e, errno, "%s", name);
	(void)fchmod(fd, 0444);
	if (fsync(fd) < 0 || renameat(from, name, to, name) < 0)
		return err_set(e, errno, "%s", name);
	return 0;
}

int store_image_put(struct store *s, const struct stage *st, const struct digest *id, struct err *e)
{
	_cleanup_close_ int dir = -1, used = -1, lock = store_lock(s, LOCK_SH);
	char tmp[40], hex[DIGEST_HEX];
	int r = lock < 0 ? err_set(e, -lock, "%s/lock", s->path) : check_built(st, id, e);

	if (r < 0)
		return r;
	digest_hex(id, hex);
	random_name(".tmp-", tmp, sizeof(tmp));
	if (mkdirat(s->dir[F_IMAGES], tmp, 0755) < 0 ||
		(dir = openat(s->dir[F_IMAGES], tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
		return err_set(e, errno, "%s/images", s->path);
	r = move_in(st->fd, dir, "disk.ext4", e);
	if (r == 0)
		r = move_in(st->fd, dir, "image.json", e);
	used = openat(dir, "used", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (r == 0 && (used < 0 || fsync(dir) < 0))
		r = err_set(e, errno, "image %.12s", hex);
	/* somebody else may have built it in the meantime: both are right */
	if (r == 0 && renameat(s->dir[F_IMAGES], tmp, s->dir[F_IMAGES], hex) < 0 &&
		errno != EEXIST && errno != ENOTEMPTY)
		r = err_set(e, errno, "image %.12s", hex);
	if (r == 0 && fsync(s->dir[F_IMAGES]) < 0)
		r = err_set(e, errno, "image %.12s", hex);
	remove_tree(s->dir[F_IMAGES], tmp);
	return r;
}

/* ---- names ---- */

static void name_key(const char *canonical, char hex[DIGEST_HEX])
{
	struct digest d;

	digest_of(canonical, strlen(canonical), &d);
	digest_hex(&d, hex);
}

/* Locks the file of that name. -EAGAIN: the file was removed meanwhile, so that another one may have the name now. */
static int lock_file(int dir, const char *hex)
{
	int fd = openat(dir, hex, O_RDWR | O_CREAT | O_CLOEXEC, 0644), rc = 0;
	struct stat st;

	if (fd < 0)
		return -errno;
	while (flock(fd, LOCK_EX) < 0 && rc == 0)
		rc = errno == EINTR ? 0 : -errno;
	if (rc == 0 && fstat(fd, &st) < 0)
		rc = -errno;
	if (rc == 0 && st.st_nlink == 0)
		rc = -EAGAIN;
	if (rc < 0)
		close(fd);
	return rc < 0 ? rc : fd;
}

int store_name_lock(struct store *s, const char *canonical, struct err *e)
{
	char hex[DIGEST_HEX];
	int fd;

	name_key(canonical, hex);
	do
		fd = lock_file(s->dir[F_LOCKS], hex);
	while (fd == -EAGAIN);
	return fd < 0 ? err_set(e, -fd, "%s/locks", s->path) : fd;
}

void store_name_unlock(struct store *s, const char *canonical, int lock)
{
	char hex[DIGEST_HEX];

	name_key(canonical, hex);
	unlinkat(s->dir[F_LOCKS], hex, 0);
	close(lock);
}

int store_name_set(struct store *s, const struct image_ref *ref, const struct digest *id,
	bool local, struct err *e)
{
	_cleanup_(json_freep) cJSON *j = cJSON_CreateObject();
	char name[REF_MAX], hex[DIGEST_HEX], tmp[40], d[DIGEST_STR];
	_cleanup_free_ char *text = NULL;
	_cleanup_close_ int fd = -1, lock = store_lock(s, LOCK_SH);
	int r;

	if (lock < 0)
		return err_set(e, -lock, "%s/lock", s->path);
	cJSON_AddStringToObject(j, "name", ref_canonical(ref, name));
	cJSON_AddStringToObject(j, "digest", digest_str(id, d));
	cJSON_AddBoolToObject(j, "local", local);
	text = cJSON_PrintUnformatted(j);
	name_key(name, hex);
	random_name(".tmp-", tmp, sizeof(tmp));
	fd = openat(s->dir[F_NAMES], tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0 || !text)
		return err_set(e, text ? errno : ENOMEM, "name %s", name);
	r = write_full(fd, text, strlen(text));
	if (r < 0 || fsync(fd) < 0 || renameat(s->dir[F_NAMES], tmp, s->dir[F_NAMES], hex) < 0 ||
		fsync(s->dir[F_NAMES]) < 0) {
		r = err_set(e, r < 0 ? -r : errno, "name %s", name);
		unlinkat(s->dir[F_NAMES], tmp, 0);
		return r;
	}
	return 0;
}

int read_name(struct store *s, const char *hex, struct name_entry *out)
{
	_cleanup_close_ int fd = openat(s->dir[F_NAMES], hex, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	_cleanup_(json_freep) cJSON *j = NULL;
	char text[4096];
	const char *name, *digest;
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, text, sizeof(text));
	j = n > 0 ? json_parse(text, (size_t)n, NULL) : NULL;
	name = json_str(j, "name");
	digest = json_str(j, "digest");
	if (!name || strlen(name) >= REF_MAX || !digest || digest_parse(digest, &out->id) < 0)
		return -EBADMSG;
	str_copy(out->name, sizeof(out->name), name);
	str_copy(out->key, sizeof(out->key), hex);
	out->local = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(j, "local"));
	return 0;
}

int find_name(struct store *s, const char *canonical, struct name_entry *out)
{
	char hex[DIGEST_HEX];

	name_key(canonical, hex);
	return read_name(s, hex, out);
}

int store_room(struct store *s, uint64_t bytes, struct err *e)
{
	struct statvfs v;

	if (fstatvfs(s->root, &v) < 0)
		return err_set(e, errno, "%s", s->path);
	if ((uint64_t)v.f_bavail * v.f_frsize < bytes)
		return err_plain(e, ENOSPC, "%s: %llu MiB are needed, %llu MiB are free", s->path,
			(unsigned long long)(bytes >> 20),
			(unsigned long long)(((uint64_t)v.f_bavail * v.f_frsize) >> 20));
	return 0;
}
