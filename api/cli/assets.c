/* SPDX-License-Identifier: Apache-2.0
 *
 * assets.c: finds (and for the appliance's root: makes) what `mayfly` needs beside itself.
 */
#include "api/cli/assets.h"

#include <stdio.h>
#include <string.h>

#include "api/cli/run.h"

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
	return err_plain(
		e, ENOENT, "neither %s nor %s is there, seen from %s", built, installed, exe);
}

int asset_cached(const char *name, char to[static PATH_MAX], const char *how, struct err *e)
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
	/* installed, or told of where it would be made */
	_cleanup_free_ char *made = strdup(to);
	char installed[64];
	struct err none;

	snprintf(installed, sizeof(installed), "../share/mayfly/%s", name);
	if (made && asset_find(installed, installed, to, &none) == 0)
		return 0;
	return err_plain(e, ENOENT, "%s is not there (%s makes it)", made ? made : name, how);
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
