/* SPDX-License-Identifier: Apache-2.0
 *
 * alias.c: see alias.h. Daemon and command line. The patterns are the operator's; the names that are looked up are a client's.
 */
#include "images/store/alias.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define BLANKS " \t\r\n"

/* The entry at *p, cut into its two sides; moves *p behind it. false: there is none, or it is too long. */
static bool next_entry(const char **p, char pattern[512], char name[512])
{
	const char *eq;
	size_t n;

	*p += strspn(*p, BLANKS);
	n = strcspn(*p, BLANKS);
	eq = memchr(*p, '=', n);
	if (!n || !eq || eq - *p >= 512 || *p + n - eq > 512)
		return false;
	snprintf(pattern, 512, "%.*s", (int)(eq - *p), *p);
	snprintf(name, 512, "%.*s", (int)(*p + n - eq - 1), eq + 1);
	*p += n;
	return true;
}

int aliases_check(const char *aliases, struct err *e)
{
	char pattern[512], name[512];
	const char *p = aliases, *star;

	while (p[strspn(p, BLANKS)]) {
		if (!next_entry(&p, pattern, name))
			return err_plain(
				e, EINVAL, "images.aliases: \"%.60s\" is not PATTERN=NAME", p);
		star = strchr(pattern, '*');
		if (!*pattern || !*name || strchr(name, '*') || (star && star[1]))
			return err_plain(e, EINVAL,
				"images.aliases: \"%.60s=%.60s\": a '*' may only be the end of the "
				"pattern, and both sides are needed",
				pattern, name);
	}
	return 0;
}

static const char *plain_name(const char *s)
{
	if (!strncmp(s, "docker.io/", 10))
		s += 10;
	return strncmp(s, "library/", 8) ? s : s + 8;
}

static bool pattern_fits(const char *pattern, const char *name)
{
	size_t n;

	pattern = plain_name(pattern);
	name = plain_name(name);
	n = strlen(pattern);
	if (n && pattern[n - 1] == '*')
		return !strncmp(pattern, name, n - 1);
	return !strcmp(pattern, name);
}

bool alias_of(const char *aliases, const char *name, char *to, size_t cap)
{
	char pattern[512], image[512];

	while (next_entry(&aliases, pattern, image))
		if (pattern_fits(pattern, name))
			return (size_t)snprintf(to, cap, "%s", image) < cap;
	return false;
}

void aliases_each(const char *aliases, void (*fn)(void *arg, const char *pattern, const char *name),
	void *arg)
{
	char pattern[512], name[512];

	while (next_entry(&aliases, pattern, name))
		fn(arg, pattern, name);
}

int aliases_write(const char *store, const char *aliases, struct err *e)
{
	char path[4200], next[4200];
	_cleanup_close_ int fd = -1;
	int rc;

	snprintf(path, sizeof(path), "%s/aliases", store);
	snprintf(next, sizeof(next), "%s/aliases.new", store);
	if (!*aliases)
		return unlink(path) < 0 && errno != ENOENT ? err_set(e, errno, "%s", path) : 0;
	fd = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	rc = fd < 0 ? -errno : write_full(fd, aliases, strlen(aliases));
	if (rc == 0 && rename(next, path) < 0)
		rc = -errno;
	return rc < 0 ? err_set(e, -rc, "%s", path) : 0;
}

void aliases_read(const char *store, char to[ALIASES_MAX])
{
	char path[4200];
	_cleanup_close_ int fd = -1;
	ssize_t n;

	snprintf(path, sizeof(path), "%s/aliases", store);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, to, ALIASES_MAX - 1);
	to[n < 0 ? 0 : n] = 0;
}
