/* SPDX-License-Identifier: Apache-2.0
 *
 * mkcpio.c: build tool: writes an initramfs ("newc" cpio) from its command line, without root and
 * reproducibly: no times, no owners, inode numbers by position. Runs on the build machine only;
 * nothing untrusted.
 *
 *   mkcpio OUT dir:/dev nod:/dev/console=c,5,1,600 file:/init=build/bin/mayfly-agent
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base.h"

struct entry {
	const char *name; /* without the leading slash */
	size_t name_len;
	unsigned mode, rmajor, rminor;
	const void *data;
	size_t size;
};

static unsigned next_ino;

static bool put(FILE *f, const struct entry *e)
{
	static const char zeros[4];
	size_t head = 110 + e->name_len + 1;

	fprintf(f, "070701%08x%08x%08x%08x%08x%08x%08zx%08x%08x%08x%08x%08zx%08x", next_ino++,
		e->mode, 0u, 0u, S_ISDIR(e->mode) ? 2u : 1u, 0u, e->size, 0u, 0u, e->rmajor,
		e->rminor, e->name_len + 1, 0u);
	fwrite(e->name, 1, e->name_len, f);
	fwrite(zeros, 1, 1 + (4 - head % 4) % 4, f);
	if (e->size)
		fwrite(e->data, 1, e->size, f);
	fwrite(zeros, 1, (4 - e->size % 4) % 4, f);
	return !ferror(f);
}

static bool put_dir(FILE *f, struct entry *e, const char *value)
{
	e->mode = S_IFDIR | 0755;
	return put(f, e);
}

static bool put_node(FILE *f, struct entry *e, const char *value)
{
	char type;
	unsigned mode;

	if (!value || sscanf(value, "%c,%u,%u,%o", &type, &e->rmajor, &e->rminor, &mode) != 4)
		return false;
	e->mode = (type == 'b' ? S_IFBLK : S_IFCHR) | mode;
	return put(f, e);
}

static bool put_file(FILE *f, struct entry *e, const char *value)
{
	_cleanup_close_ int fd = value ? open(value, O_RDONLY | O_CLOEXEC) : -1;
	_cleanup_free_ void *data = NULL;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !(data = malloc((size_t)st.st_size + 1)) ||
		read_full(fd, data, (size_t)st.st_size) < 0)
		return false;
	e->mode = S_IFREG | ((st.st_mode & 0111) ? 0755 : 0644);
	e->data = data;
	e->size = (size_t)st.st_size;
	return put(f, e);
}

static const struct {
	const char *prefix;
	bool (*fn)(FILE *f, struct entry *e, const char *value);
} kinds[] = {{"dir:/", put_dir}, {"nod:/", put_node}, {"file:/", put_file}};

static bool put_spec(FILE *f, const char *spec)
{
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		size_t skip = strlen(kinds[i].prefix);
		const char *eq = strchr(spec, '=');
		struct entry e = {.name = spec + skip};

		if (strncmp(spec, kinds[i].prefix, skip) != 0)
			continue;
		e.name_len = eq ? (size_t)(eq - e.name) : strlen(e.name);
		return kinds[i].fn(f, &e, eq ? eq + 1 : NULL);
	}
	errno = EINVAL;
	return false;
}

int main(int argc, char **argv)
{
	struct entry end = {.name = "TRAILER!!!", .name_len = 10};
	char tmp[4096];
	FILE *f;

	if (argc < 3 || snprintf(tmp, sizeof(tmp), "%s.new", argv[1]) >= (int)sizeof(tmp)) {
		fprintf(stderr, "usage: mkcpio OUT dir:/D | nod:/N=c,MAJOR,MINOR,MODE | "
				"file:/F=SOURCE ...\n");
		return 2;
	}
	f = fopen(tmp, "we");
	if (!f) {
		perror(tmp);
		return 1;
	}
	next_ino = 1;
	for (int i = 2; i < argc; i++)
		if (!put_spec(f, argv[i])) {
			fprintf(stderr, "mkcpio: %s: %s\n", argv[i], strerror(errno));
			return 1;
		}
	next_ino = 0;
	if (!put(f, &end) || fclose(f) != 0 || rename(tmp, argv[1]) < 0) {
		perror(argv[1]);
		return 1;
	}
	return 0;
}
