/* SPDX-License-Identifier: Apache-2.0
 *
 * store.h: the images of this host, under one folder. The daemon and the command line use it side
 * by side, in several processes; locks are flock(2), everything enters by fsync and rename, so that
 * a kill at any moment leaves nothing half-done that is used.
 *
 *   blobs/sha256/HEX    manifests, configurations, layers, as verified
 *   images/HEX/         HEX = digest of the manifest: disk.ext4 (0444), image.json; mtime of `used` = last use
 *   names/HEX           HEX = sha256 of the canonical name: JSON {name, digest, local}
 *   pins/HEX.OWNER      OWNER uses that image's disk: it is not removed
 *   staging/ID/         one job's folder, locked by the process that runs the job; removed if nobody has it locked
 *   parts/HEX           what a killed pull has of a blob: not verified, the beginning of the next download
 *   locks/HEX           locked while one name is pulled
 *   grants/HEX.GROUP    GROUP has fetched this manifest or blob from a registry; grants/HEX: all groups may use it
 */
#pragma once

#include "images/oci/image_config.h"
#include "images/oci/ref.h"

struct store;

struct image_info {
	char name[REF_MAX]; /* canonical; "" if it was asked for by digest and has none */
	bool local;         /* the name was given on this host, not by a registry */
	struct digest id;
	char disk[512];       /* path of the disk: open it read-only */
	uint64_t disk_stored; /* bytes it takes on this host */
	int64_t built, used;  /* seconds since 1970 */
	uint32_t pins;        /* filled by store_list only */
	struct image_config config;
};
void image_info_fini(struct image_info *i);

/* Opens the store: makes its folders, removes what dead jobs left. */
int store_open(const char *root, struct store **out, struct err *e);
/* Its folder, as it was opened. */
const char *store_path(const struct store *s);
void store_close(struct store *s);
static inline void store_closep(struct store **s)
{
	store_close(*s);
}

/* A name as people write it, "sha256:<hex>", or at least 12 digits of it. -ENOENT: not here. Counts
 * as use. */
int store_resolve(struct store *s, const char *name, struct image_info *out, struct err *e);
/* Calls fn for every name, and for every image that has none; a non-zero result ends it and is
 * returned. */
int store_list(struct store *s, int (*fn)(void *arg, const struct image_info *i), void *arg,
	struct err *e);
int store_name_set(struct store *s, const struct image_ref *r, const struct digest *id, bool local,
	struct err *e);

/* owner: a DNS label. The daemon has one pin of an image ("mayflyd") for all its records. A second pin of the same owner changes nothing. Never waits for the
 * store's lock: -EAGAIN while something is removed, which takes as long as the disk likes. */
int store_pin(struct store *s, const struct digest *id, const char *owner, struct err *e);
/* How many owners; reads the whole folder of pins, so not for the path of a request. */
uint32_t store_pins(struct store *s, const struct digest *id);
/* Drops each pin for which `lives` returns false. image: hex of its digest */
int store_pins_reap(
	struct store *s, bool (*lives)(void *arg, const char *image, const char *owner), void *arg);

/* ---- who may use what: a manifest, and each blob of it, by groups of users (namespaces). A group that pulled all of it from a registry
 * may use it without pulling again. NULL: all groups (what the operator placed here). */
bool store_may_use(struct store *s, const struct digest *d, const char *group);
int store_grant(struct store *s, const struct digest *d, const char *group, struct err *e);

/* Removes the name, and with the last name the image and the blobs that only it had. -EBUSY: pinned. */
int store_remove(struct store *s, const char *name, struct err *e);
struct prune {
	uint64_t unused_s; /* removes images that were unused for so long; 0: none for its age */
	/* removes the longest unused until the rest fits, but none that was used within unused_s; 0: no such limit */
	uint64_t keep_bytes;
	bool blobs; /* layers too: disks do not need them, later pulls may */
	bool dry_run;
	/* out */
	uint32_t images, blob_count;
	uint64_t bytes;
};
int store_prune(struct store *s, struct prune *p, struct err *e);

/* ---- for whoever runs jobs (images/store/obtain.c) ---- */
struct stage {
	int fd; /* the folder, locked */
	char name[40];
};
int store_stage_begin(struct store *s, struct stage *out, struct err *e);
/* Marks the stage as a pull's: the next store_open() keeps the parts of blobs in it if its job dies. */
int store_stage_is_pull(struct stage *st);
/* Keeps them now. */
void store_stage_salvage(struct store *s, struct stage *st);
void store_stage_end(struct store *s, struct stage *st);
/* Some job has a stage, in this process or another. */
bool store_is_staging(struct store *s);
int store_blob_open(struct store *s, const struct digest *d); /* -ENOENT */
int store_part_open(
	struct store *s, const struct digest *d); /* -ENOENT; bytes that nobody has checked */
/* The file `name` in the stage becomes blob d if its bytes have that digest and size (-EBADMSG
 * else). */
int store_blob_put(struct store *s, const struct stage *st, const char *name,
	const struct digest *d, uint64_t size, struct err *e);
bool store_image_there(struct store *s, const struct digest *id);
/* disk.ext4 and image.json of the stage become image `id`. */
int store_image_put(
	struct store *s, const struct stage *st, const struct digest *id, struct err *e);
/* Waits for, then holds, the right to pull a name. The descriptor is the lock. */
int store_name_lock(struct store *s, const char *canonical, struct err *e);
/* Takes the descriptor, and removes the file: no file stays for each name that was ever asked for. */
void store_name_unlock(struct store *s, const char *canonical, int lock);
/* -ENOSPC, with the numbers in e, unless so many bytes are free. */
int store_room(struct store *s, uint64_t bytes, struct err *e);
