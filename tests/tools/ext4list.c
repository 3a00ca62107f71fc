/* SPDX-License-Identifier: Apache-2.0
 *
 * ext4list.c: DISK -> one line a path, for comparison with a reference unpacking: what libext2fs reads back, independent of how it was
 * written. Fields are separated by tabs, names are hex. A test's tool.
 */
#include <ext2fs/ext2fs.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct walk {
	ext2_filsys fs;
	char path[8192];
	size_t len;
};

static void hex(const void *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		printf("%02x", ((const unsigned char *)p)[i]);
}

static void check(errcode_t r, const char *what)
{
	if (!r)
		return;
	fprintf(stderr, "ext4list: %s: %s\n", what, error_message(r));
	exit(1);
}

static void put_content(struct walk *w, ext2_ino_t ino)
{
	unsigned char d[EVP_MAX_MD_SIZE];
	EVP_MD_CTX *md = EVP_MD_CTX_new();
	static char buf[1 << 20];
	ext2_file_t f;
	unsigned int n;

	EVP_DigestInit_ex(md, EVP_sha256(), NULL);
	check(ext2fs_file_open(w->fs, ino, 0, &f), "open");
	do {
		check(ext2fs_file_read(f, buf, sizeof(buf), &n), "read");
		EVP_DigestUpdate(md, buf, n);
	} while (n);
	ext2fs_file_close(f);
	EVP_DigestFinal_ex(md, d, &n);
	EVP_MD_CTX_free(md);
	hex(d, n);
}

static void put_target(struct walk *w, ext2_ino_t ino, struct ext2_inode *i)
{
	char buf[4096];
	ext2_file_t f;
	unsigned int n;

	if (i->i_size < sizeof(i->i_block)) {
		hex(i->i_block, i->i_size);
		return;
	}
	check(ext2fs_file_open(w->fs, ino, 0, &f), "open");
	check(ext2fs_file_read(f, buf, sizeof(buf), &n), "read");
	ext2fs_file_close(f);
	hex(buf, n);
}

static int put_xattr(char *name, char *value, size_t n, void *arg)
{
	printf(" %s=", name);
	hex(value, n);
	return 0;
}

static void put_inode(struct walk *w, ext2_ino_t ino, struct ext2_inode_large *l)
{
	struct ext2_inode *i = (struct ext2_inode *)l;
	struct ext2_xattr_handle *h;
	long long sec = (long long)(int)l->i_mtime + ((long long)(l->i_mtime_extra & 3) << 32);
	unsigned int major = 0, minor = 0;

	if (LINUX_S_ISCHR(i->i_mode) || LINUX_S_ISBLK(i->i_mode)) {
		major = i->i_block[0] ? i->i_block[0] >> 8 & 0xff : i->i_block[1] >> 8 & 0xfff;
		minor = i->i_block[0] ? i->i_block[0] & 0xff
				      : (i->i_block[1] & 0xff) | (i->i_block[1] >> 12 & 0xfff00);
	}
	hex(w->path, w->len);
	printf("\t%o\t%u\t%u\t%llu\t%u\t%u:%u\t%lld.%09u\t", i->i_mode, inode_uid(*i),
		inode_gid(*i), LINUX_S_ISDIR(i->i_mode) ? 0ULL : (unsigned long long)EXT2_I_SIZE(i),
		i->i_links_count, major, minor, sec, l->i_mtime_extra >> 2);
	if (LINUX_S_ISREG(i->i_mode))
		put_content(w, ino);
	else if (LINUX_S_ISLNK(i->i_mode))
		put_target(w, ino, i);
	printf("\t");
	check(ext2fs_xattrs_open(w->fs, ino, &h), "xattrs");
	check(ext2fs_xattrs_read(h), "xattrs");
	ext2fs_xattrs_iterate(h, put_xattr, NULL);
	ext2fs_xattrs_close(&h);
	printf("\n");
}

static int visit(struct ext2_dir_entry *de, int offset, int blocksize, char *buf, void *arg);

static void walk(struct walk *w, ext2_ino_t ino)
{
	struct ext2_inode_large l;

	check(ext2fs_read_inode_full(w->fs, ino, (struct ext2_inode *)&l, sizeof(l)), "inode");
	put_inode(w, ino, &l);
	if (LINUX_S_ISDIR(l.i_mode))
		check(ext2fs_dir_iterate(w->fs, ino, 0, NULL, visit, w), "directory");
}

static int visit(struct ext2_dir_entry *de, int offset, int blocksize, char *buf, void *arg)
{
	struct walk *w = arg;
	size_t n = (size_t)ext2fs_dirent_name_len(de), had = w->len;

	if ((n == 1 && de->name[0] == '.') || (n == 2 && !memcmp(de->name, "..", 2)))
		return 0;
	w->path[w->len++] = '/';
	memcpy(w->path + w->len, de->name, n);
	w->len += n;
	walk(w, de->inode);
	w->len = had;
	return 0;
}

int main(int argc, char **argv)
{
	struct walk w = {0};

	check(argc == 2 ? 0 : EXT2_ET_INVALID_ARGUMENT, "usage: ext4list DISK");
	check(ext2fs_open(argv[1], EXT2_FLAG_64BITS, 0, 0, unix_io_manager, &w.fs), argv[1]);
	walk(&w, EXT2_ROOT_INO);
	ext2fs_close(w.fs);
	return 0;
}
