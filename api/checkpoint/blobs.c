/* SPDX-License-Identifier: Apache-2.0
 *
 * blobs.c: files by id with reference counts. mayflyd's loop. The folder is the daemon's own.
 */
#include "api/checkpoint/blobs.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "api/core/text.h"
#include "api/core/io_pool.h"
#include "lib/log.h"

#define BUCKETS 1024
#define IN_STEPS_FROM_BYTES                                                                        \
	MIB(16) /* of blocks; below that freeing is quicker than the hand-over */
#define STEP_BYTES MIB(64)

#define RAM_SEALS    (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)
#define UUID_VERSION 14 /* index of the version digit in the text of a UUID */

static const char *const ram_kinds[] = {"mem", "state"};

struct ram_files {
	int fd[ARRAY_LEN(ram_kinds)]; /* -1: there is none */
	uint64_t sealed_bytes[ARRAY_LEN(ram_kinds)];
};

struct blob {
	struct blob *next;
	char id[BLOB_ID];
	unsigned int refs;
	bool kept; /* a record that could not be read may name it */
	struct ram_files *ram;
};

struct blobs {
	int dir;
	char root[300]; /* the folder above */
	bool loaded;
	struct io_pool *io; /* NULL: everything in the caller's thread */
	atomic_bool dirty;  /* a name was made that may not be on the disk */
	atomic_int sync_error;
	uint64_t ram_bytes;
	struct blob *bucket[BUCKETS];
};

static const char *const kinds[] = {
	"data", "bitmap", "index", "mem", "state", "nodes", "ws", "ok", "sum"};

/* Tried at the start, so that the log says so before the first template fails. */
static int leases_work(struct blobs *b, struct err *e)
{
	static const char name[] = ".lease";
	_cleanup_close_ int fd =
		openat(b->dir, name, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	int rc = fd < 0 || fcntl(fd, F_SETLEASE, F_RDLCK) < 0 ? -errno : 0;

	unlinkat(b->dir, name, 0);
	return rc < 0 ? err_set(e, -rc, "its file system grants no leases") : 0;
}

struct blobs *blobs_create(const char *dir, struct io_pool *io, struct err *e)
{
	struct blobs *b = calloc(1, sizeof(*b));

	if (mkdir(dir, 0700) < 0 && errno != EEXIST) {
		err_set(e, errno, "%s", dir);
		free(b);
		return NULL;
	}
	if (b)
		b->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!b || b->dir < 0) {
		err_set(e, errno, "%s", dir);
		free(b);
		return NULL;
	}
	if (leases_work(b, e) < 0)
		log_warn("%s: %s. No snapshot or template can be published there: use ext4, XFS, "
			 "btrfs or tmpfs, and look at /proc/sys/fs/leases-enable",
			dir, e->msg);
	b->io = io;
	snprintf(b->root, sizeof(b->root), "%.*s",
		strrchr(dir, '/') ? (int)(strrchr(dir, '/') - dir) : 0, dir);
	return b;
}

const char *blobs_relative(const struct blobs *b, const char *path)
{
	size_t n = strlen(b->root);

	return n && !strncmp(path, b->root, n) && path[n] == '/' ? path + n + 1 : path;
}

bool blobs_absolute(const struct blobs *b, const char *path, char *to, size_t cap)
{
	int n;

	if (!*path || *path == '/')
		n = snprintf(to, cap, "%s", path);
	else
		n = snprintf(to, cap, "%s/%s", b->root, path);
	return n >= 0 && (size_t)n < cap && !strstr(path, "../");
}

static void ram_free(struct blobs *b, struct blob *x)
{
	for (size_t i = 0; x->ram && i < ARRAY_LEN(ram_kinds); i++) {
		close_fd(&x->ram->fd[i]);
		b->ram_bytes -= x->ram->sealed_bytes[i];
	}
	free(x->ram);
	free(x);
}

void blobs_destroy(struct blobs *b)
{
	if (!b)
		return;
	for (int i = 0; i < BUCKETS; i++)
		while (b->bucket[i]) {
			struct blob *x = b->bucket[i];

			b->bucket[i] = x->next;
			ram_free(b, x);
		}
	close(b->dir);
	free(b);
}

void blob_id_make(char id[BLOB_ID])
{
	uuid_make(id);
}

void blob_ram_id_make(char id[BLOB_ID])
{
	uuid_make(id);
	id[UUID_VERSION] = '8';
}

bool blob_in_ram(const char *id)
{
	return *id && id[UUID_VERSION] == '8';
}

static struct blob **find(struct blobs *b, const char *id)
{
	struct blob **at =
		&b->bucket[strtoul((char[]){id[0], id[1], id[2], 0}, NULL, 16) % BUCKETS];

	while (*at && strcmp((*at)->id, id) != 0)
		at = &(*at)->next;
	return at;
}

static void file_name(char out[64], const char *id, const char *kind)
{
	snprintf(out, 64, "%.36s.%s", id, kind);
}

/* ---- files in RAM */

/* Is this file of the blob in RAM? *which: its index in ram_kinds. */
static bool is_ram_file(const char *id, const char *kind, size_t *which)
{
	for (*which = 0; *which < ARRAY_LEN(ram_kinds); ++*which)
		if (!strcmp(ram_kinds[*which], kind))
			return blob_in_ram(id);
	return false;
}

static int ram_make(struct blobs *b, const char *id, size_t which)
{
	struct blob *x = *find(b, id);
	_cleanup_close_ int fd = memfd_create("fork", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int copy;

	if (fd < 0)
		return -errno;
	ASSERT(x);
	if (!x->ram) {
		x->ram = malloc(sizeof(*x->ram));
		if (!x->ram)
			return -ENOMEM;
		*x->ram = (struct ram_files){.fd = {-1, -1}};
	}
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		return -errno;
	close_fd(&x->ram->fd[which]);
	x->ram->fd[which] = take_fd(&fd);
	return copy;
}

static int ram_open(struct blobs *b, const char *id, size_t which)
{
	const struct blob *x = *find(b, id);
	int fd;

	if (!x || !x->ram || x->ram->fd[which] < 0)
		return -ENOENT;
	fd = fcntl(x->ram->fd[which], F_DUPFD_CLOEXEC, 0);
	return fd < 0 ? -errno : fd;
}

/* The kernel refuses the seal while there is a writable mapping or an unfinished operation, and every write afterwards. */
static int ram_seal(struct blobs *b, const char *id, size_t which)
{
	struct blob *x = *find(b, id);
	struct stat st;
	int fd = x && x->ram ? x->ram->fd[which] : -1, have;

	if (fd < 0)
		return -ENOENT;
	have = fcntl(fd, F_GET_SEALS);
	if (have < 0)
		return -errno;
	/* the writer may have sealed it by itself */
	if ((have & RAM_SEALS) != RAM_SEALS && fcntl(fd, F_ADD_SEALS, RAM_SEALS) < 0)
		return -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	b->ram_bytes += (uint64_t)st.st_blocks * 512 - x->ram->sealed_bytes[which];
	x->ram->sealed_bytes[which] = (uint64_t)st.st_blocks * 512;
	return 0;
}

uint64_t blobs_ram_bytes(const struct blobs *b)
{
	return b->ram_bytes;
}

int blob_make(struct blobs *b, const char *id, const char *kind)
{
	char name[64];
	size_t ram;
	int fd;

	if (is_ram_file(id, kind, &ram))
		return ram_make(b, id, ram);
	file_name(name, id, kind);
	fd = openat(b->dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	atomic_store(&b->dirty, true);
	return fd;
}

void blob_discard(struct blobs *b, const char *id, const char *kind)
{
	char name[64];

	file_name(name, id, kind);
	unlinkat(b->dir, name, 0);
}

struct io_pool *blobs_io(const struct blobs *b)
{
	return b->io;
}

int blobs_sync(void *arg, struct err *e)
{
	struct blobs *b = arg;
	int failed = atomic_load(&b->sync_error);

	if (!failed && atomic_exchange(&b->dirty, false) && fsync(b->dir) < 0) {
		/* The kernel reports a failed fsync once, and then counts the data as written. */
		failed = errno;
		atomic_store(&b->sync_error, failed);
	}
	return failed ? err_set(e, failed, "the folder of disks and memory") : 0;
}

int blob_open(struct blobs *b, const char *id, const char *kind, bool rw)
{
	char name[64];
	size_t ram;
	int fd;

	if (!uuid_ok(id))
		return -EINVAL;
	if (is_ram_file(id, kind, &ram))
		return ram_open(b, id, ram);
	file_name(name, id, kind);
	fd = openat(b->dir, name, (rw ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

uint64_t blob_bytes(struct blobs *b, const char *id)
{
	const struct blob *x = blob_in_ram(id) ? *find(b, id) : NULL;
	uint64_t n = 0;
	struct stat st;
	char name[64];

	for (size_t i = 0; x && x->ram && i < ARRAY_LEN(ram_kinds); i++)
		n += fstat(x->ram->fd[i], &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		file_name(name, id, kinds[i]);
		if (fstatat(b->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
			n += (uint64_t)st.st_blocks * 512;
	}
	return n;
}

int blob_has_writer(struct blobs *b, const char *id, const char *kind)
{
	_cleanup_close_ int fd = -1;
	size_t ram;

	if (is_ram_file(id, kind, &ram))
		return ram_seal(b, id, ram);
	fd = blob_open(b, id, kind, false);
	return fd < 0 ? fd : fd_no_writer(fd);
}

bool blob_is_known(struct blobs *b, const char *id)
{
	return *find(b, id) != NULL;
}

void blob_ref(struct blobs *b, const char *id)
{
	struct blob **at, *x;

	if (!*id)
		return;
	at = find(b, id);
	if (!*at) {
		x = calloc(1, sizeof(*x));
		ASSERT(x);
		snprintf(x->id, sizeof(x->id), "%s", id);
		*at = x;
	}
	(*at)->refs++;
}

/* ---- removal: the name at once, the blocks of a large file in steps and in another thread. To free a
 * file of a million pieces in one call takes seconds: the loop would serve nobody meanwhile, and a
 * thread in that call could not be killed. */

struct removal {
	struct io_job job;
	int fd;
};

/* Does nobody else have the file open or mapped? A monitor that maps it would get SIGBUS when it becomes shorter. */
static bool only_ours(int fd)
{
	return fcntl(fd, F_SETLEASE, F_WRLCK) == 0 && fcntl(fd, F_SETLEASE, F_UNLCK) == 0;
}

static void removal_work(struct io_job *j)
{
	struct removal *r = container_of(j, struct removal, job);
	struct stat st;

	if (fstat(r->fd, &st) == 0 && only_ours(r->fd))
		for (off_t n = st.st_size; n > 0 && ftruncate(r->fd, n) == 0;
			n -= (off_t)STEP_BYTES)
			;
	close_fd(&r->fd);
}

static void removal_done(struct io_job *j)
{
	free(container_of(j, struct removal, job));
}

static void file_remove(struct blobs *b, const char *name)
{
	_cleanup_close_ int fd = -1;
	struct removal *r;
	struct stat st;

	if (fstatat(b->dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	if (b->io && (uint64_t)st.st_blocks * 512 >= IN_STEPS_FROM_BYTES)
		fd = openat(b->dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	unlinkat(b->dir, name, 0);
	if (fd < 0)
		return;
	r = calloc(1, sizeof(*r));
	if (!r)
		return;
	*r = (struct removal){.job = {removal_work, removal_done, NULL}, .fd = take_fd(&fd)};
	io_pool_run(b->io, &r->job);
}

static void files_remove(struct blobs *b, const char *id)
{
	char name[64];

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		file_name(name, id, kinds[i]);
		file_remove(b, name);
	}
}

void blob_unref(struct blobs *b, const char *id)
{
	struct blob **at, *x;

	if (!*id)
		return;
	at = find(b, id);
	x = *at;
	if (!x || --x->refs > 0 || x->kept || !b->loaded)
		return;
	files_remove(b, id);
	*at = x->next;
	ram_free(b, x);
}

static void blobs_keep(struct blobs *b)
{
	for (int i = 0; i < BUCKETS; i++)
		for (struct blob *x = b->bucket[i]; x; x = x->next)
			x->kept = true;
}

/* Forgets blobs without a reference: while records were loaded, a later one could still have referred to
 * them. blobs_sweep() removes their files. */
static void blobs_drop_unused(struct blobs *b)
{
	for (int i = 0; i < BUCKETS; i++)
		for (struct blob **at = &b->bucket[i], *x; (x = *at);) {
			if (x->refs > 0) {
				at = &x->next;
				continue;
			}
			*at = x->next;
			ram_free(b, x);
		}
}

/* Removes every file that no record names. */
static void blobs_sweep(struct blobs *b)
{
	int fd = openat(b->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	unsigned int n = 0;

	for (struct dirent *de; d && (de = readdir(d));) {
		char id[BLOB_ID];

		snprintf(id, sizeof(id), "%.36s", de->d_name);
		if (de->d_name[0] == '.' || (uuid_ok(id) && *find(b, id)))
			continue;
		file_remove(b, de->d_name);
		n++;
	}
	if (d)
		closedir(d);
	if (n)
		log_info("removed %u files that no record refers to", n);
}

void blobs_loaded(struct blobs *b, bool complete)
{
	b->loaded = true;
	if (complete) {
		blobs_drop_unused(b);
		blobs_sweep(b);
	} else {
		blobs_keep(b);
	}
}
