/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_image_build.c: `mayfly image build`: runs a recipe, then imports the OCI layout that it made under its local names. The recipe prints the
 * layout's folder on its first line, a name on each further one.
 */
#include "cli/cli.h"
#include "cli/cmd_image.h"
#include "lib/opt.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* Looks in $MAYFLY_RECIPES, else in the source tree that this program was built in, else in the installed place. */
static int find_recipes(char *to, size_t cap, struct err *e)
{
	const char *env = getenv("MAYFLY_RECIPES");
	char exe[2048];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	if (env) {
		snprintf(to, cap, "%s/build", env);
		return access(to, X_OK) < 0 ? err_set(e, errno, "%s", to) : 0;
	}
	exe[n < 0 ? 0 : n] = 0;
	for (int up = 0; up < 5; up++) {
		char *slash = strrchr(exe, '/');

		if (!slash)
			break;
		*slash = 0;
		snprintf(to, cap, "%s/images/recipes/build", exe);
		if (access(to, X_OK) == 0)
			return 0;
		snprintf(to, cap, "%s/share/mayfly/recipes/build", exe);
		if (access(to, X_OK) == 0)
			return 0;
	}
	return err_plain(e, ENOENT, "no recipes found: set MAYFLY_RECIPES to their folder");
}

static int run_recipe(const char *program, const char *name, char *out, size_t cap, struct err *e)
{
	char *argv[] = {(char[]){"build"}, strdup(name), NULL};
	int p[2], status = 0;
	size_t n = 0;
	ssize_t k;
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) < 0)
		return err_set(e, errno, "recipe");
	pid = fork();
	if (pid == 0) {
		dup2(p[1], 1);
		execv(program, argv);
		_exit(127);
	}
	free(argv[1]);
	close(p[1]);
	while (pid > 0 && n + 1 < cap &&
		((k = read(p[0], out + n, cap - n - 1)) > 0 || (k < 0 && errno == EINTR)))
		n += k > 0 ? (size_t)k : 0;
	close(p[0]);
	out[n] = 0;
	if (pid < 0)
		return err_set(e, errno, "recipe");
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status ? err_plain(e, EIO, "recipe %s failed", name) : 0;
}

static int import_names(struct store *s, char *text, uint64_t room, struct err *e)
{
	struct image_request q = {
		.kind = JOB_SRC_LAYOUT, .local = true, .lim = IMAGE_LIMITS_DEFAULT};
	char *save = NULL, *line = strtok_r(text, "\n", &save);
	_cleanup_close_ int fd = -1;
	int r = 0;

	if (room)
		q.lim.room_bytes = room;
	fd = line ? open(line, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	if (fd < 0)
		return err_set(e, line ? errno : EPROTO, "layout %s", line ? line : "");
	q.source = fd;
	while (r == 0 && (line = strtok_r(NULL, "\n", &save))) {
		q.name = line;
		r = image_fetch(s, &q, e);
	}
	return r;
}

int cmd_image_build(int argc, char **argv)
{
	_cleanup_(store_closep) struct store *s = NULL;
	const char *store = NULL;
	char path[4096], text[8192];
	uint64_t room = 0;
	bool help = false;
	struct err e = {0};
	const struct opt opts[] = {
		{"store", 0, OPT_STR, &store, "DIR",
			"the store's folder ($MAYFLY_IMAGES, else for root "
			"/var/lib/mayfly/images)"},
		{"room", 0, OPT_BYTES, &room, "BYTES",
			"free space of the disk beyond the content (8G)"},
		{"help", 'h', OPT_FLAG, &help, NULL, "this text"},
	};
	int rest, r;

	if (opt_parse(opts, ARRAY_LEN(opts), argc, argv, &rest, &e) < 0)
		return complain(EXIT_USAGE, &e);
	if (help || rest >= argc) {
		fprintf(help ? stdout : stderr, "usage: mayfly image build [OPTIONS] RECIPE...\n");
		opt_help(stdout, opts, ARRAY_LEN(opts));
		return help ? EXIT_OK : EXIT_USAGE;
	}
	r = find_recipes(path, sizeof(path), &e);
	if (r == 0)
		r = store_open(store ? store : image_store_default(text, sizeof(text)), &s, &e);
	for (; rest < argc && r == 0; rest++) {
		r = run_recipe(path, argv[rest], text, sizeof(text), &e);
		if (r == 0)
			r = import_names(s, text, room, &e);
	}
	return r < 0 ? complain(EXIT_FAILED, &e) : EXIT_OK;
}
