/* SPDX-License-Identifier: Apache-2.0
 *
 * cow_format.c: headers of the layer and index files, written and checked. mayfly-vmm, daemon,
 * tools. Everything that is read here may be damaged or made by somebody hostile: each field has
 * its error.
 */
#include "lib/cow_format.h"

#include <endian.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <linux/fs.h>

uint32_t cow_crc32(const void *p, size_t n)
{
	const uint8_t *b = p;
	uint32_t c = ~0u;

	/* headers of less than 200 bytes: a table would be larger than what it saves */
	while (n--) {
		c ^= *b++;
		for (int i = 0; i < 8; i++)
			c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
	}
	return ~c;
}

void cow_layer_hdr_fill(
	struct cow_layer_hdr *h, const char *magic, uint64_t bytes, const uint8_t *id)
{
	*h = (struct cow_layer_hdr){.version_le = htole32(COW_VERSION),
		.unit_le = htole32(COW_UNIT),
		.bytes_le = htole64(bytes)};
	memcpy(h->magic, magic, sizeof(h->magic));
	memcpy(h->id, id, sizeof(h->id));
	h->crc_le = htole32(cow_crc32(h, offsetof(struct cow_layer_hdr, crc_le)));
}

void cow_index_hdr_fill(
	struct cow_index_hdr *h, uint64_t bytes, unsigned int n, uint8_t (*ids)[COW_ID_BYTES])
{
	*h = (struct cow_index_hdr){.version_le = htole32(COW_VERSION),
		.unit_le = htole32(COW_UNIT),
		.bytes_le = htole64(bytes),
		.nfrozen_le = htole32(n)};
	memcpy(h->magic, COW_MAGIC_INDEX, sizeof(h->magic));
	memcpy(h->id, ids, (size_t)n * COW_ID_BYTES);
	h->crc_le = htole32(cow_crc32(h, offsetof(struct cow_index_hdr, crc_le)));
}

int cow_file_bytes(int fd, const char *what, uint64_t *bytes, struct err *e)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_set(e, errno, "%s: size", what);
	if (S_ISBLK(st.st_mode)) {
		if (ioctl(fd, BLKGETSIZE64, bytes) < 0)
			return err_set(e, errno, "%s: size of the block device", what);
		return 0;
	}
	if (!S_ISREG(st.st_mode))
		return err_plain(e, EINVAL, "%s: neither a regular file nor a block device", what);
	*bytes = (uint64_t)st.st_size;
	return 0;
}

static int bytes_check(const char *what, uint64_t bytes, struct err *e)
{
	if (bytes == 0 || bytes % COW_UNIT || bytes > COW_MAX_BYTES)
		return err_plain(e, EINVAL, "%s: size: %llu is not a possible disk size", what,
			(unsigned long long)bytes);
	return 0;
}

static int start_check(const char *what, const uint8_t *magic, const char *magic_wanted,
	uint32_t version, uint32_t unit, uint32_t crc, uint32_t crc_wanted, struct err *e)
{
	if (memcmp(magic, magic_wanted, 8) != 0)
		return err_plain(e, EINVAL,
			"%s: magic: this is not such a file, or its header is lost", what);
	if (crc != crc_wanted)
		return err_plain(e, EINVAL, "%s: header checksum: is %08x, computed %08x", what,
			crc, crc_wanted);
	if (version != COW_VERSION)
		return err_plain(e, EINVAL, "%s: version: %u, this program knows %u", what, version,
			COW_VERSION);
	if (unit != COW_UNIT)
		return err_plain(e, EINVAL, "%s: unit: %u bytes, must be %u", what, unit, COW_UNIT);
	return 0;
}

static int layer_hdr_read(int fd, const char *what, uint64_t off, const char *magic,
	struct cow_layer_hdr *h, struct err *e)
{
	int r = pread_full(fd, h, sizeof(*h), off);

	if (r < 0)
		return err_set(e, r == -EPIPE ? EINVAL : -r, "%s: read the header", what);
	r = start_check(what, h->magic, magic, le32toh(h->version_le), le32toh(h->unit_le),
		le32toh(h->crc_le), cow_crc32(h, offsetof(struct cow_layer_hdr, crc_le)), e);
	return r < 0 ? r : bytes_check(what, le64toh(h->bytes_le), e);
}

int cow_data_read_hdr(int fd, const char *what, uint64_t bytes_wanted, uint8_t *id, struct err *e)
{
	struct cow_layer_hdr h;
	uint64_t len;
	int r = cow_file_bytes(fd, what, &len, e);

	if (r < 0)
		return r;
	if (len != cow_data_file_bytes(bytes_wanted))
		return err_plain(e, EINVAL, "%s: length: %llu bytes, a disk of %llu needs %llu",
			what, (unsigned long long)len, (unsigned long long)bytes_wanted,
			(unsigned long long)cow_data_file_bytes(bytes_wanted));
	r = layer_hdr_read(fd, what, bytes_wanted, COW_MAGIC_DATA, &h, e);
	if (r < 0)
		return r;
	if (le64toh(h.bytes_le) != bytes_wanted)
		return err_plain(e, EINVAL, "%s: size: %llu, the disk has %llu", what,
			(unsigned long long)le64toh(h.bytes_le), (unsigned long long)bytes_wanted);
	memcpy(id, h.id, COW_ID_BYTES);
	return 0;
}

int cow_bitmap_read_hdr(int fd, const char *what, uint64_t *bytes, uint8_t *id, struct err *e)
{
	struct cow_layer_hdr h;
	uint64_t len, need;
	int r = layer_hdr_read(fd, what, 0, COW_MAGIC_BITMAP, &h, e);

	if (r < 0 || (r = cow_file_bytes(fd, what, &len, e)) < 0)
		return r;
	need = COW_HDR_BYTES + cow_bitmap_bytes(le64toh(h.bytes_le));
	if (len != need)
		return err_plain(e, EINVAL, "%s: length: %llu bytes, a disk of %llu needs %llu",
			what, (unsigned long long)len, (unsigned long long)le64toh(h.bytes_le),
			(unsigned long long)need);
	*bytes = le64toh(h.bytes_le);
	memcpy(id, h.id, COW_ID_BYTES);
	return 0;
}

int cow_index_read_hdr(int fd, const char *what, uint64_t *bytes, unsigned int *n,
	uint8_t (*ids)[COW_ID_BYTES], struct err *e)
{
	struct cow_index_hdr h;
	uint64_t len, need;
	uint32_t nf;
	int r = pread_full(fd, &h, sizeof(h), 0);

	if (r < 0)
		return err_set(e, r == -EPIPE ? EINVAL : -r, "%s: read the header", what);
	r = start_check(what, h.magic, COW_MAGIC_INDEX, le32toh(h.version_le), le32toh(h.unit_le),
		le32toh(h.crc_le), cow_crc32(&h, offsetof(struct cow_index_hdr, crc_le)), e);
	if (r < 0 || (r = bytes_check(what, le64toh(h.bytes_le), e)) < 0 ||
		(r = cow_file_bytes(fd, what, &len, e)) < 0)
		return r;
	nf = le32toh(h.nfrozen_le);
	if (nf == 0 || nf > COW_MAX_FROZEN)
		return err_plain(
			e, EINVAL, "%s: layers: %u, must be 1 to %u", what, nf, COW_MAX_FROZEN);
	need = COW_HDR_BYTES + cow_index_bytes(le64toh(h.bytes_le));
	if (len != need)
		return err_plain(e, EINVAL, "%s: length: %llu bytes, a disk of %llu needs %llu",
			what, (unsigned long long)len, (unsigned long long)le64toh(h.bytes_le),
			(unsigned long long)need);
	*bytes = le64toh(h.bytes_le);
	*n = nf;
	memcpy(ids, h.id, sizeof(h.id));
	return 0;
}

int cow_each_data(int fd, uint64_t from, uint64_t to,
	int (*fn)(void *arg, uint64_t off, uint64_t len), void *arg)
{
	while (from < to) {
		off_t at = lseek(fd, (off_t)from, SEEK_DATA), end;
		int r;

		if (at < 0 && errno == ENXIO)
			return 0; /* only a hole up to the end of the file */
		if (at < 0)
			return fn(arg, from, to - from);
		if ((uint64_t)at >= to)
			return 0;
		end = lseek(fd, at, SEEK_HOLE);
		if (end <= at || (uint64_t)end > to)
			end = (off_t)to;
		r = fn(arg, (uint64_t)at, (uint64_t)(end - at));
		if (r < 0)
			return r;
		from = (uint64_t)end;
	}
	return 0;
}

static int hdr_write(int fd, const char *magic, uint64_t off, uint64_t bytes, const uint8_t *id)
{
	struct cow_layer_hdr h;

	cow_layer_hdr_fill(&h, magic, bytes, id);
	return pwrite_full(fd, &h, sizeof(h), off);
}

int cow_layer_create(int data_fd, int bitmap_fd, uint64_t bytes, struct err *e)
{
	uint8_t id[COW_ID_BYTES];
	uint64_t len;
	int r = bytes_check("new layer", bytes, e);

	if (r < 0)
		return r;
	/* both must be empty: what they held would read as units of this layer */
	if ((r = cow_file_bytes(data_fd, "new layer's data file", &len, e)) < 0)
		return r;
	if (len != 0)
		return err_plain(e, EEXIST, "new layer's data file: length: not empty");
	if ((r = cow_file_bytes(bitmap_fd, "new layer's bitmap", &len, e)) < 0)
		return r;
	if (len != 0)
		return err_plain(e, EEXIST, "new layer's bitmap: length: not empty");
	random_bytes(id, sizeof(id));
	if (ftruncate(data_fd, (off_t)cow_data_file_bytes(bytes)) < 0)
		return err_set(e, errno, "new layer's data file: set its length");
	if (ftruncate(bitmap_fd, (off_t)(COW_HDR_BYTES + cow_bitmap_bytes(bytes))) < 0)
		return err_set(e, errno, "new layer's bitmap: set its length");
	r = hdr_write(data_fd, COW_MAGIC_DATA, bytes, bytes, id);
	if (r < 0)
		return err_set(e, -r, "new layer's data file: write the header");
	r = hdr_write(bitmap_fd, COW_MAGIC_BITMAP, 0, bytes, id);
	if (r < 0)
		return err_set(e, -r, "new layer's bitmap: write the header");
	return 0;
}
