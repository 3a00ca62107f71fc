/* SPDX-License-Identifier: Apache-2.0
 *
 * assets.c: finds (and for the appliance's root: makes) what `mayfly` needs beside itself.
 */
#include "cli/assets.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/run.h"

int asset_find(const char *built, const char *installed, char to[static PATH_MAX], struct err *e)
{
	const char *const rel[] = {built, installed};
	char exe[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	char *slash;

	if (n < 0)
		return err_set(e, errno, "/proc/self/exe");
	exe[n] = 0;
	slash = strrchr(exe, '/');
	*slash = 0;
	for (size_t i = 0; i < ARRAY_LEN(rel); i++) {
		if (snprintf(to, PATH_MAX, "%s/%s", exe, rel[i]) < PATH_MAX &&
			access(to, R_OK) == 0)
			return 0;
	}
	return err_plain(e, ENOENT,
		"neither %s nor %s is in %s: build it (make), or install mayfly again", built,
		installed, exe);
}

/* An ELF file's section headers are its end: one that was cut short has none. */
static bool is_whole(const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	Elf64_Ehdr h;
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && pread(fd, &h, sizeof(h), 0) == sizeof(h) &&
	       !memcmp(h.e_ident, ELFMAG, SELFMAG) && h.e_shoff <= (uint64_t)st.st_size &&
	       (uint64_t)h.e_shnum * h.e_shentsize <= (uint64_t)st.st_size - h.e_shoff;
}

static int kernel_there(const char *name, char to[static PATH_MAX], struct err *e)
{
	const char *cache = getenv("MAYFLY_CACHE"), *xdg = getenv("XDG_CACHE_HOME"),
		   *home = getenv("HOME");

	if (cache && *cache)
		snprintf(to, PATH_MAX, "%s/%s", cache, name);
	else if (xdg && *xdg)
		snprintf(to, PATH_MAX, "%s/mayfly/%s", xdg, name);
	else
		snprintf(to, PATH_MAX, "%s/.cache/mayfly/%s", home ? home : "", name);
	if (access(to, R_OK) == 0)
		return 0;
	/* Else the installed file. The error names the path at which `make kernel` would put it. */
	_cleanup_free_ char *made = strdup(to);
	char installed[64];
	struct err none;

	snprintf(installed, sizeof(installed), "../share/mayfly/%s", name);
	if (made && asset_find(installed, installed, to, &none) == 0)
		return 0;
	return err_plain(e, ENOENT, "%s is not there (make kernel makes it)", made ? made : name);
}

int asset_kernel(const char *name, const char *given, char to[static PATH_MAX], struct err *e)
{
	int rc;

	if (!given)
		rc = kernel_there(name, to, e);
	else
		rc = realpath(given, to) ? 0 : err_set(e, errno, "%s", given);

	if (rc == 0 && !is_whole(to))
		rc = err_plain(
			e, EBADMSG, "%s is not a whole kernel (make kernel makes it again)", to);
	return rc;
}

int asset_machine_root(char to[static PATH_MAX], struct err *e)
{
	char script[PATH_MAX], init[PATH_MAX];
	const char *const argv[] = {"bash", script, init, NULL};
	struct buf out;
	int rc = asset_find(
		"../../guest/appliance/mkroot", "../share/mayfly/appliance/mkroot", script, e);

	if (rc == 0)
		rc = asset_find(
			"mayfly-machine-init", "../lib/mayfly/mayfly-machine-init", init, e);
	if (rc < 0)
		return rc;
	buf_init(&out, PATH_MAX);
	rc = run_program(argv, &out, e);
	if (rc == 0)
		snprintf(to, PATH_MAX, "%.*s", (int)strcspn(buf_cstr(&out), "\n"), buf_cstr(&out));
	buf_fini(&out);
	return rc < 0 ? err_wrap(e, "the machine's root image") : 0;
}
