/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_disk.c: `mayfly disk`: layered disks from the command line, without a daemon: make a layer,
 * measure, flatten, check and repair, rebuild an index. For a disk that nothing runs on. Files may
 * be damaged; lib/cow and lib/cow_tools read them.
 */
#include "cli/cli.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/opt.h"
#include "lib/cow.h"
#include "lib/cow_tools.h"

struct disk_args {
	const char *base, *index, *data, *bitmap, *out;
	struct opt_list frozen, frozen_bitmaps;
	uint64_t size;
	bool repair, json, help;
};

static int file_open(const char *path, int flags, int *fd, struct err *e)
{
	*fd = open(path, flags | O_CLOEXEC, 0644);
	return *fd < 0 ? err_set(e, errno, "%s", path) : 0;
}

static int file_new(const char *path, int *fd, struct err *e)
{
	return file_open(path, O_RDWR | O_CREAT | O_EXCL, fd, e);
}

static void fds_close(struct cow_fds *f)
{
	int *all[] = {&f->base, &f->index, &f->data, &f->bitmap};

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		close_fd(all[i]);
	for (unsigned int i = 0; i < COW_MAX_FROZEN; i++)
		close_fd(&f->frozen[i]);
}

static int fds_open(const struct disk_args *a, struct cow_fds *f, struct err *e)
{
	const struct {
		const char *path;
		int *fd;
	} one[] = {{a->base, &f->base}, {a->index, &f->index}, {a->data, &f->data},
		{a->bitmap, &f->bitmap}};

	*f = COW_FDS_NONE;
	if (!a->base)
		return err_plain(e, EINVAL, "--base is needed");
	if (a->frozen.n > COW_MAX_FROZEN)
		return err_plain(e, EINVAL, "--frozen: at most %u", COW_MAX_FROZEN);
	for (size_t i = 0; i < ARRAY_LEN(one); i++)
		if (one[i].path && file_open(one[i].path, O_RDONLY, one[i].fd, e) < 0)
			return -e->code;
	for (size_t i = 0; i < a->frozen.n; i++)
		if (file_open(a->frozen.v[i], O_RDONLY, &f->frozen[i], e) < 0)
			return -e->code;
	f->nfrozen = (unsigned int)a->frozen.n;
	return 0;
}

static int do_create(const struct disk_args *a, struct err *e)
{
	_cleanup_close_ int data = -1, map = -1;
	struct stat st;
	uint64_t size = a->size;

	if (!a->data || !a->bitmap || (!size && !a->base))
		return err_plain(
			e, EINVAL, "--data, --bitmap and one of --size and --base are needed");
	if (!size && stat(a->base, &st) < 0)
		return err_set(e, errno, "%s", a->base);
	if (!size)
		size = ALIGN_UP((uint64_t)st.st_size, (uint64_t)COW_UNIT);
	if (file_new(a->data, &data, e) < 0)
		return -e->code;
	if (file_new(a->bitmap, &map, e) < 0 || cow_layer_create(data, map, size, e) < 0) {
		unlink(a->data);
		if (map >= 0)
			unlink(a->bitmap);
		return -e->code;
	}
	return 0;
}

static int do_measure(const struct disk_args *a, struct err *e)
{
	struct cow_fds f;
	struct cow_usage u = {0};
	int rc = fds_open(a, &f, e);

	if (rc == 0)
		rc = cow_measure(&f, &u, e);
	fds_close(&f);
	if (rc < 0)
		return rc;
	if (a->json) {
		printf("{\"base_bytes\":%llu,\"private_bytes\":%llu,\"index_bytes\":%llu,\"units_"
		       "data\":%llu,\"units_zero\":%llu,\"frozen\":[",
			(unsigned long long)u.base_bytes, (unsigned long long)u.private_bytes,
			(unsigned long long)u.index_bytes, (unsigned long long)u.units_data,
			(unsigned long long)u.units_zero);
		for (size_t i = 0; i < a->frozen.n; i++)
			printf("%s{\"bytes\":%llu,\"live_units\":%llu}", i ? "," : "",
				(unsigned long long)u.frozen_bytes[i],
				(unsigned long long)u.live_units[i]);
		printf("]}\n");
		return 0;
	}
	printf("base       %10llu KiB\n", (unsigned long long)u.base_bytes >> 10);
	for (size_t i = 0; i < a->frozen.n; i++)
		printf("frozen %-3zu %10llu KiB, %llu units still show\n", i,
			(unsigned long long)u.frozen_bytes[i] >> 10,
			(unsigned long long)u.live_units[i]);
	printf("private    %10llu KiB: %llu units of data, %llu of zeros\n",
		(unsigned long long)u.private_bytes >> 10, (unsigned long long)u.units_data,
		(unsigned long long)u.units_zero);
	return 0;
}

static int do_flatten(const struct disk_args *a, struct err *e)
{
	_cleanup_close_ int out = -1;
	struct cow_fds f;
	struct cow *c = NULL;
	int rc;

	if (!a->out)
		return err_plain(e, EINVAL, "--out is needed");
	rc = fds_open(a, &f, e);
	if (rc == 0)
		rc = cow_open(&c, &f, e);
	if (rc < 0) {
		fds_close(&f);
		return rc;
	}
	rc = file_new(a->out, &out, e);
	if (rc == 0 && (rc = cow_flatten(c, out, NULL, NULL, e)) < 0)
		unlink(a->out);
	cow_close(c);
	return rc;
}

static void say(void *arg, const char *text)
{
	printf("%s\n", text);
}

static int do_check(const struct disk_args *a, struct err *e)
{
	_cleanup_close_ int data = -1, map = -1;
	int rc, how = a->repair ? O_RDWR : O_RDONLY;

	if (!a->data || !a->bitmap)
		return err_plain(e, EINVAL, "--data and --bitmap are needed");
	if ((rc = file_open(a->data, how, &data, e)) < 0 ||
		(rc = file_open(a->bitmap, how, &map, e)) < 0 ||
		(rc = cow_layer_check(data, map, a->repair, say, NULL, e)) < 0)
		return rc;
	if (rc > 0)
		return err_plain(e, EUCLEAN, "%d problem%s left%s", rc, rc == 1 ? "" : "s",
			a->repair ? "" : " (--repair mends what it can)");
	printf("good\n");
	return 0;
}

static int do_index(const struct disk_args *a, struct err *e)
{
	int data[COW_MAX_FROZEN], map[COW_MAX_FROZEN], rc = 0;
	_cleanup_close_ int out = -1;
	size_t n = a->frozen.n, i;

	if (!a->out || n == 0 || n > COW_MAX_FROZEN || a->frozen_bitmaps.n != n)
		return err_plain(e, EINVAL,
			"--out, and --frozen with --frozen-bitmap for each layer, oldest first, "
			"are needed");
	for (i = 0; i < COW_MAX_FROZEN; i++)
		data[i] = map[i] = -1;
	for (i = 0; i < n && rc == 0; i++)
		if ((rc = file_open(a->frozen.v[i], O_RDONLY, &data[i], e)) == 0)
			rc = file_open(a->frozen_bitmaps.v[i], O_RDONLY, &map[i], e);
	if (rc == 0 && (rc = file_new(a->out, &out, e)) == 0 &&
		(rc = cow_index_build(out, (unsigned int)n, data, map, e)) < 0)
		unlink(a->out);
	for (i = 0; i < COW_MAX_FROZEN; i++) {
		close_fd(&data[i]);
		close_fd(&map[i]);
	}
	return rc;
}

static const struct {
	const char *name;
	int (*fn)(const struct disk_args *a, struct err *e);
	const char *help;
} subs[] = {
	{"create", do_create, "make an empty private layer: --data, --bitmap, --size or --base"},
	{"measure", do_measure,
		"show the bytes really used: --base [--frozen ... --index] [--data --bitmap]"},
	{"flatten", do_flatten,
		"write the disk's contents to one new sparse file: --out, and as measure"},
	{"check", do_check, "look at a layer: --data, --bitmap; --repair mends what it can"},
	{"index", do_index,
		"rebuild the merged index of frozen layers: --out, --frozen and --frozen-bitmap "
		"for each"},
};

int cmd_disk(int argc, char **argv)
{
	struct disk_args a = {0};
	const struct opt opts[] = {
		{"base", 0, OPT_STR, &a.base, "FILE", "the raw file at the bottom"},
		{"frozen", 0, OPT_LIST, &a.frozen, "FILE",
			"a frozen layer's data file; oldest first"},
		{"frozen-bitmap", 0, OPT_LIST, &a.frozen_bitmaps, "FILE", "index: its bitmap"},
		{"index", 0, OPT_STR, &a.index, "FILE", "the frozen layers' merged index"},
		{"data", 0, OPT_STR, &a.data, "FILE", "the private layer's data file"},
		{"bitmap", 0, OPT_STR, &a.bitmap, "FILE", "its bitmap"},
		{"size", 0, OPT_BYTES, &a.size, "SIZE",
			"create: size of the disk (default: the base's)"},
		{"out", 0, OPT_STR, &a.out, "FILE", "flatten, index: the new file"},
		{"repair", 0, OPT_FLAG, &a.repair, NULL, "check: mend what can be mended"},
		{"json", 0, OPT_FLAG, &a.json, NULL, "measure: one JSON object"},
		{"help", 'h', OPT_FLAG, &a.help, NULL, "this text"},
	};
	struct err e = {0};
	int rest = 1;

	if (argc > 1 && opt_parse(opts, ARRAY_LEN(opts), argc - 1, argv + 1, &rest, &e) < 0)
		return complain(EXIT_USAGE, &e);
	for (size_t i = 0; argc > 1 && !a.help && rest + 1 == argc && i < ARRAY_LEN(subs); i++)
		if (strcmp(argv[1], subs[i].name) == 0)
			return subs[i].fn(&a, &e) < 0
				       ? complain(e.code == EINVAL ? EXIT_USAGE : EXIT_FAILED, &e)
				       : EXIT_OK;
	printf("usage: mayfly disk COMMAND OPTIONS\n\n");
	for (size_t i = 0; i < ARRAY_LEN(subs); i++)
		printf("  %-10s %s\n", subs[i].name, subs[i].help);
	printf("\n");
	opt_help(stdout, opts, ARRAY_LEN(opts));
	return a.help || (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
		       ? EXIT_OK
		       : EXIT_USAGE;
}
