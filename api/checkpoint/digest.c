/* SPDX-License-Identifier: Apache-2.0
 *
 * digest.c: digests of published files. A line of <id>.sum is "KIND ALGORITHM HEX BYTES".
 *
 * "sha256" is of all bytes. A layer's data file is as large as the disk and mostly holes; reading them
 * would take minutes. It has "sha256-units": of each 4 KiB unit that is not all zeros its number, 8
 * bytes little-endian, and the unit. That is the same on every file system.
 */
#include "api/checkpoint/digest.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "api/checkpoint/verify.h"
#include "lib/buf.h"
#include "lib/log.h"

#define CHUNK_BYTES KIB(256)
#define UNIT_BYTES  4096u
#define SUM_MAX     1024

static const struct {
	const char *name;
	bool units;
} files[] = {{"state", false}, {"mem", false}, {"index", false}, {"bitmap", false}, {"data", true}};

struct digest {
	struct io_job job;
	struct blobs *b;
	char id[BLOB_ID];
	char text[SUM_MAX]; /* "" if a file could not be read */
};

/* ---- in the thread */

static int hash_all(EVP_MD_CTX *md, int fd, uint8_t *chunk)
{
	ssize_t n;
	off_t at = 0;

	while ((n = pread(fd, chunk, CHUNK_BYTES, at)) > 0) {
		if (EVP_DigestUpdate(md, chunk, (size_t)n) != 1)
			return -ENOMEM;
		at += n;
	}
	return n < 0 ? -errno : 0;
}

static bool is_zero(const uint8_t *p, size_t n)
{
	return p[0] == 0 && !memcmp(p, p + 1, n - 1);
}

static int hash_units(EVP_MD_CTX *md, int fd, uint8_t *chunk)
{
	off_t at = 0;
	ssize_t n;

	while ((at = lseek(fd, at, SEEK_DATA)) >= 0) {
		at = (off_t)ALIGN_DOWN((uint64_t)at, (uint64_t)UNIT_BYTES);
		n = pread(fd, chunk, CHUNK_BYTES, at);
		if (n <= 0)
			break;
		memset(chunk + n, 0, ALIGN_UP((size_t)n, (size_t)UNIT_BYTES) - (size_t)n);
		for (ssize_t i = 0; i < n; i += UNIT_BYTES) {
			uint8_t number[8];

			if (is_zero(chunk + i, UNIT_BYTES))
				continue;
			for (int k = 0; k < 8; k++)
				number[k] = (uint8_t)((uint64_t)(at + i) / UNIT_BYTES >> 8 * k);
			if (EVP_DigestUpdate(md, number, 8) != 1 ||
				EVP_DigestUpdate(md, chunk + i, UNIT_BYTES) != 1)
				return -ENOMEM;
		}
		at += n;
	}
	return errno == ENXIO || at >= 0 ? 0 : -errno;
}

static int file_digest(int fd, bool units, char hex[65])
{
	_cleanup_free_ uint8_t *chunk = malloc(CHUNK_BYTES);
	EVP_MD_CTX *md = EVP_MD_CTX_new();
	uint8_t out[EVP_MAX_MD_SIZE];
	int rc = -ENOMEM;

	if (chunk && md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1)
		rc = units ? hash_units(md, fd, chunk) : hash_all(md, fd, chunk);
	if (rc == 0 && EVP_DigestFinal_ex(md, out, NULL) != 1)
		rc = -ENOMEM;
	EVP_MD_CTX_free(md);
	for (size_t i = 0; i < 32 && rc == 0; i++)
		snprintf(hex + 2 * i, 3, "%02x", out[i]);
	return rc;
}

static void digest_work(struct io_job *j)
{
	struct digest *g = container_of(j, struct digest, job);
	size_t at = 0;

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		_cleanup_close_ int fd = blob_open(g->b, g->id, files[i].name, false);
		struct stat st;
		char hex[65];

		if (fd == -ENOENT)
			continue;
		if (fd < 0 || fstat(fd, &st) < 0 || file_digest(fd, files[i].units, hex) < 0) {
			g->text[0] = 0;
			return;
		}
		at += (size_t)snprintf(g->text + at, sizeof(g->text) - at, "%s %s %s %lld\n",
			files[i].name, files[i].units ? "sha256-units" : "sha256", hex,
			(long long)st.st_size);
	}
}

/* ---- on the loop */

static void digest_done(struct io_job *j)
{
	struct digest *g = container_of(j, struct digest, job);
	_cleanup_close_ int fd = -1;

	/* the blob's files may have been removed meanwhile: then nothing would ever remove the digest */
	if (*g->text && blob_is_known(g->b, g->id))
		fd = blob_make(g->b, g->id, "sum");
	if (fd >= 0 && write_full(fd, g->text, strlen(g->text)) < 0)
		log_warn("file %s: its digest cannot be kept", g->id);
	free(g);
}

static void digest_make(struct daemon *d, const char *id)
{
	_cleanup_close_ int there = *id ? blob_open(d->blobs, id, "sum", false) : -1;
	struct digest *g;

	if (!*id || there >= 0)
		return;
	g = calloc(1, sizeof(*g));
	if (!g)
		return; /* made at the next start */
	g->job = (struct io_job){digest_work, digest_done, NULL};
	g->b = d->blobs;
	str_copy(g->id, sizeof(g->id), id);
	verify_background(d, &g->job);
}

void digests_make(const struct checkpoint *c)
{
	for (int i = 0; i < c->mem.nmem; i++)
		digest_make(c->d, c->mem.mem[i]);
	for (int i = 0; i < c->disk.nfrozen; i++)
		digest_make(c->d, c->disk.frozen[i]);
	digest_make(c->d, c->disk.index);
}

void digests_go_on(struct daemon *d)
{
	for (const struct checkpoint *c = d->checkpoints; c; c = c->next)
		if (c->state == CP_READY)
			digests_make(c);
}

void digest_read(struct blobs *b, const char *id, const char *kind, char hex[static 65])
{
	_cleanup_close_ int fd = blob_open(b, id, "sum", false);
	char text[SUM_MAX] = "", name[16], algorithm[16], value[65], *save = NULL;

	hex[0] = 0;
	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		return;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		if (sscanf(line, "%15s %15s %64s", name, algorithm, value) == 3 &&
			!strcmp(name, kind))
			memcpy(hex, value, sizeof(value));
}

int digest_check(struct blobs *b, const char *id, const char *kind, struct err *e)
{
	_cleanup_close_ int fd = -1;
	char want[65], have[65];
	bool units = false;
	int rc;

	digest_read(b, id, kind, want);
	if (!*want)
		return -ENOENT;
	for (size_t i = 0; i < ARRAY_LEN(files); i++)
		if (!strcmp(files[i].name, kind))
			units = files[i].units;
	fd = blob_open(b, id, kind, false);
	rc = fd < 0 ? fd : file_digest(fd, units, have);
	if (rc < 0)
		return err_set(e, -rc, "%s: its digest", kind);
	if (!strcmp(want, have))
		return 0;
	return err_plain(e, EBADMSG,
		"%s: the content is not the one that was published: SHA-256 %.12s, was %.12s", kind,
		have, want);
}
