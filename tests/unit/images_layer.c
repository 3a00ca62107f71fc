/* SPDX-License-Identifier: Apache-2.0
 *
 * images_layer.c: layers of tar bytes made here, applied to the tree: whiteouts, links,
 * replacements, and what must be refused.
 */
#include "lib/test.h"

#include "images/build/layer.h"

#include <archive.h>
#include <archive_entry.h>
#include <locale.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <zlib.h>

struct item {
	const char *path;
	char type;        /* d f l(symlink) h(hardlink) c p */
	const char *data; /* content or target */
};

/* A memfd with a pax tar of these. */
static int make_tar(const struct item *v, size_t n, uint64_t *size)
{
	int fd = memfd_create("tar", 0);
	struct archive *a = archive_write_new();
	struct stat sb;

	archive_write_set_format_pax(a);
	archive_write_open_fd(a, fd);
	for (size_t i = 0; i < n; i++) {
		struct archive_entry *en = archive_entry_new();
		size_t len = v[i].data && v[i].type == 'f' ? strlen(v[i].data) : 0;

		archive_entry_set_pathname(en, v[i].path);
		archive_entry_set_perm(en, v[i].type == 'd' ? 0750 : 04644);
		archive_entry_set_uid(en, 1000);
		archive_entry_set_gid(en, 3000000);
		archive_entry_set_mtime(en, 1234567890, 123456789);
		archive_entry_set_size(en, (la_int64_t)len);
		archive_entry_set_filetype(en, v[i].type == 'd'   ? S_IFDIR
					       : v[i].type == 'l' ? S_IFLNK
					       : v[i].type == 'c' ? S_IFCHR
					       : v[i].type == 'p' ? S_IFIFO
								  : S_IFREG);
		if (v[i].type == 'l')
			archive_entry_set_symlink(en, v[i].data);
		if (v[i].type == 'h')
			archive_entry_set_hardlink(en, v[i].data);
		if (v[i].type == 'c') {
			archive_entry_set_rdevmajor(en, 300);
			archive_entry_set_rdevminor(en, 5);
		}
		archive_write_header(a, en);
		if (len)
			archive_write_data(a, v[i].data, len);
		archive_entry_free(en);
	}
	archive_write_close(a);
	archive_write_free(a);
	fstat(fd, &sb);
	*size = (uint64_t)sb.st_size;
	return fd;
}

static struct {
	struct tree t;
	struct layers l;
	int disk;
	uint32_t no;
	struct err e;
} F;

static void begin(void)
{
	setlocale(LC_CTYPE, "C.UTF-8");
	memset(&F, 0, sizeof(F));
	F.disk = memfd_create("disk", 0);
	tree_init(&F.t);
	F.l = (struct layers){.tree = &F.t,
		.blocks = blocks_create(F.disk, 16, MIB(64)),
		.lim = IMAGE_LIMITS_DEFAULT};
	F.t.freed = blocks_free;
	F.t.freed_arg = F.l.blocks;
}

static void end(void)
{
	tree_fini(&F.t);
	blocks_destroy(F.l.blocks);
	close(F.disk);
}

static int apply(const struct item *v, size_t n)
{
	uint64_t size;
	_cleanup_close_ int fd = make_tar(v, n, &size);
	_cleanup_(stream_closep) struct stream *s = stream_open(fd, size, &F.l.lim, &F.e);

	F.e = (struct err){0};
	return layer_apply(&F.l, s, ++F.no, &F.e);
}
#define APPLY(...)                                                                                 \
	apply((struct item[]){__VA_ARGS__},                                                        \
		sizeof((struct item[]){__VA_ARGS__}) / sizeof(struct item))

static bool there(const char *path)
{
	struct place p;

	return tree_find(&F.t, path, strlen(path), 0, 0, &p, NULL) == 0 && (!p.dir || p.dent);
}

static void metadata_and_data_arrive(void)
{
	char have[6] = "";
	struct node *n;

	begin();
	CHECK_INT(APPLY({"d/", 'd', NULL}, {"d/f", 'f', "hello"}, {"d/h", 'h', "d/f"},
			  {"s", 'l', "d/f"}, {"c", 'c', NULL}, {"p", 'p', NULL}),
		0);
	n = tree_follow(&F.t, "s");
	REQUIRE(n && n == tree_follow(&F.t, "/d/h"));
	CHECK_INT(n->mode, S_IFREG | 04644);
	CHECK_INT(n->uid, 1000);
	CHECK_INT(n->gid, 3000000);
	CHECK_INT(n->mtime.sec, 1234567890);
	CHECK_INT(n->mtime.nsec, 123456789);
	CHECK_INT(n->links, 2);
	CHECK_INT(n->size, 5);
	REQUIRE(n->n_ext == 1 && n->ext[0].pblk == 16);
	CHECK_INT(blocks_flush(F.l.blocks), 0);
	CHECK_INT(pread_full(F.disk, have, 5, 16 * 4096), 0);
	CHECK_STR(have, "hello");
	CHECK_INT(tree_follow(&F.t, "c")->major, 300);
	CHECK_INT(tree_follow(&F.t, "d")->mode, S_IFDIR | 0750);
	end();
}

static void whiteouts_hide_lower_layers_only(void)
{
	begin();
	CHECK_INT(APPLY({"a", 'f', "1"}, {"b", 'f', "1"}, {"d/", 'd', NULL}, {"d/x", 'f', "1"},
			  {"d/y/", 'd', NULL}, {"d/y/z", 'f', "1"}, {"hl", 'h', "a"}),
		0);
	/* in one layer: whiteout and file of the same name, in both orders; an opaque marker after
	 * what it must not hide */
	CHECK_INT(APPLY({".wh.a", 'f', ""}, {"b", 'f', "2"}, {".wh.b", 'f', ""},
			  {"d/new", 'f', "2"}, {"d/y/new", 'f', "2"}, {"d/.wh..wh..opq", 'f', ""},
			  {".wh.nothing", 'f', ""}, {"no/such/.wh.x", 'f', ""},
			  {".wh..wh.plnk", 'd', NULL}),
		0);
	CHECK(!there("a"));
	CHECK(there("hl"));
	CHECK_INT(tree_follow(&F.t, "hl")->links, 1);
	CHECK(there("b"));
	CHECK(there("d/new"));
	CHECK(there("d/y/new"));
	CHECK(!there("d/x"));
	CHECK(!there("d/y/z"));
	CHECK(!there("no"));
	CHECK_INT(APPLY({".wh.d", 'f', ""}), 0);
	CHECK(!there("d"));
	end();
}

/* A directory is swept once a layer, however many markers and layers name it; it, and what is in
 * it, still goes when it should. */
static void whiteouts_again_and_again(void)
{
	begin();
	CHECK_INT(APPLY({"d/", 'd', NULL}, {"d/e/", 'd', NULL}, {"d/e/x", 'f', "1"},
			  {"d/k/", 'd', NULL}, {"d/k/y", 'f', "1"}),
		0);
	CHECK_INT(APPLY({"d/e/new", 'f', "2"}, {"d/e/.wh..wh..opq", 'f', ""},
			  {"d/e/.wh..wh..opq", 'f', ""}, {"d/.wh..wh..opq", 'f', ""},
			  {".wh.d", 'f', ""}),
		0);
	CHECK(there("d/e/new"));
	CHECK(!there("d/e/x"));
	CHECK(!there("d/k"));
	CHECK_INT(
		APPLY({"d/later", 'f', "3"}, {"d/.wh.e", 'f', ""}, {"d/.wh..wh..opq", 'f', ""}), 0);
	CHECK(there("d/later"));
	CHECK(!there("d/e"));
	end();
}

static void entries_replace_what_is_there(void)
{
	begin();
	CHECK_INT(APPLY({"usr/", 'd', NULL}, {"usr/lib/", 'd', NULL}, {"lib", 'l', "usr/lib"},
			  {"f", 'f', "1"}, {"dir/", 'd', NULL}, {"dir/x", 'f', "1"}),
		0);
	CHECK_INT(APPLY({"lib/mod", 'f', "2"}, {"f/", 'd', NULL}, {"f/in", 'f', "2"},
			  {"dir", 'f', "2"}, {"./abs/deep/er", 'f', "x"}),
		0);
	CHECK(there("usr/lib/mod"));
	CHECK(S_ISLNK(tree_lookup(&F.t, F.t.root, "lib", 3)->node->mode));
	CHECK(there("f/in"));
	CHECK(S_ISREG(tree_follow(&F.t, "dir")->mode));
	CHECK(there("abs/deep/er"));
	/* a directory in the place of a link is a directory; a link's way out ends at the root */
	CHECK_INT(APPLY({"lib/", 'd', NULL}, {"out", 'l', "../../../../.."}, {"out/etc", 'f', "3"},
			  {"same", 'f', "4"}, {"same", 'h', "same"}),
		0);
	CHECK(!there("lib/mod"));
	CHECK(there("etc"));
	CHECK_INT(tree_follow(&F.t, "same")->links, 1);
	end();
}

static void bad_entries_are_named(void)
{
	static char name256[257], path4096[4200];
	static const struct {
		struct item i;
		int code;
		const char *say;
	} bad[] = {
		{{"../x", 'f', "1"}, EINVAL, "entry 2, ../x: path with \"..\""},
		{{"a/../../x", 'f', "1"}, EINVAL, ".."},
		{{"h", 'h', "nothing"}, ENOENT, "hard link to nothing"},
		{{"h", 'h', "../../etc/passwd"}, EINVAL, "hard link"},
		{{"h", 'h', "d"}, EPERM, "directory"},
		{{".wh.", 'f', ""}, EINVAL, "whiteout of no name"},
		{{".wh..", 'f', ""}, EINVAL, "whiteout of no name"},
		{{".wh...", 'f', ""}, EINVAL, "whiteout of no name"},
		{{name256, 'f', "1"}, ENAMETOOLONG, "name of 256 bytes"},
		{{path4096, 'f', "1"}, ENAMETOOLONG, "path of"},
		{{".", 'f', "1"}, EISDIR, "root"},
		{{"loop/x", 'f', "1"}, ELOOP, "loop/x"},
		{{"file/x", 'f', "1"}, ENOTDIR, "file/x"},
	};

	memset(name256, 'n', 256);
	for (size_t i = 0; i < 4100; i++)
		path4096[i] = i % 100 == 99 ? '/' : 'p';
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		begin();
		CHECK_INT(APPLY({"d/", 'd', NULL}, {"loop", 'l', "loop"}, {"file", 'f', "1"}), 0);
		F.l.entries = 0;
		CHECK_INT(APPLY({"ok", 'f', "1"}, bad[i].i), -bad[i].code);
		if (!strstr(F.e.msg, bad[i].say)) {
			printf("\"%s\" does not say \"%s\"\n", F.e.msg, bad[i].say);
			test_failures++;
		}
		end();
	}
}

static void limits_hold(void)
{
	begin();
	F.l.lim.max_entries = 2;
	CHECK_INT(APPLY({"a", 'f', "1"}, {"b", 'f', "1"}, {"c", 'f', "1"}), -EFBIG);
	end();
	begin();
	F.l.lim.max_bytes = 10;
	CHECK_INT(APPLY({"a", 'f', "123456"}, {"b", 'f', "123456"}), -EFBIG);
	end();
	begin();
	F.l.lim.ratio_from = 1;
	F.l.lim.max_ratio = 0;
	CHECK_INT(APPLY({"a", 'f', "123456"}), -EFBIG);
	end();
}

static void truncated_archives_fail(void)
{
	struct item v[] = {{"a", 'f', "hello"}, {"b", 'f', "world"}};
	uint64_t size;
	int fd = make_tar(v, 2, &size);

	/* cut in the first entry's data, and shorter than promised */
	begin();
	F.no = 1;
	{
		_cleanup_(stream_closep) struct stream *s = stream_open(fd, 1026, &F.l.lim, &F.e);

		CHECK(layer_apply(&F.l, s, 1, &F.e) < 0);
	}
	end();
	begin();
	{
		_cleanup_(stream_closep) struct stream *s =
			stream_open(fd, size + 4096, &F.l.lim, &F.e);
		struct digest a, b;
		uint64_t n;
		int r = layer_apply(&F.l, s, 1, &F.e);

		CHECK(r < 0 || stream_digests(s, &a, &b, &n, &F.e) < 0);
	}
	end();
	close(fd);
}

static size_t gzipped(const void *p, size_t n, uint8_t *to, size_t cap)
{
	z_stream z = {.next_in = (void *)(uintptr_t)p,
		.avail_in = (uInt)n,
		.next_out = to,
		.avail_out = (uInt)cap};

	ASSERT(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK &&
		deflate(&z, Z_FINISH) == Z_STREAM_END);
	deflateEnd(&z);
	return z.total_out;
}

/* What stands between two filters nobody counts: only the first one is taken off. */
static void a_filter_in_a_filter_is_data(void)
{
	uint8_t once[256], twice[512];
	size_t n = gzipped("hello", 5, once, sizeof(once)),
	       m = gzipped(once, n, twice, sizeof(twice));
	int fd = memfd_create("blob", 0);
	const void *p;

	begin();
	CHECK_INT(pwrite_full(fd, twice, m, 0), 0);
	{
		_cleanup_(stream_closep) struct stream *s = stream_open(fd, m, &F.l.lim, &F.e);

		CHECK_INT(stream_next(s, &p, &F.e), n);
		CHECK(!memcmp(p, once, n));
		CHECK_INT(stream_next(s, &p, &F.e), 0);
	}
	end();
	close(fd);
}

static const struct test tests[] = {
	{"a_filter_in_a_filter_is_data", a_filter_in_a_filter_is_data},
	{"metadata_and_data_arrive", metadata_and_data_arrive},
	{"whiteouts_hide_lower_layers_only", whiteouts_hide_lower_layers_only},
	{"whiteouts_again_and_again", whiteouts_again_and_again},
	{"entries_replace_what_is_there", entries_replace_what_is_there},
	{"bad_entries_are_named", bad_entries_are_named},
	{"limits_hold", limits_hold},
	{"truncated_archives_fail", truncated_archives_fail},
};
TEST_MAIN(tests)
