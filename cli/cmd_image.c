/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_image.c: `mayfly image`. ls, pull and rm ask the daemon (cmd_image_remote.c), unless --store or
 * MAYFLY_IMAGES names a folder. The others work on the folder, beside a running daemon if there is
 * one. What reads images runs in a process of its own (mayfly-image).
 */
#include "cli/cli.h"
#include "cli/cmd_image.h"
#include "lib/opt.h"
#include "images/store/alias.h"
#include "images/store/obtain.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

const char *image_store_default(char *to, size_t cap)
{
	const char *env = getenv("MAYFLY_IMAGES"), *home = getenv("HOME");

	if (env && *env)
		snprintf(to, cap, "%s", env);
	else if (geteuid() == 0 || !home)
		snprintf(to, cap, "/var/lib/mayfly/images");
	else
		snprintf(to, cap, "%s/.local/share/mayfly/images", home);
	return to;
}

/* ---- progress: a bar on a terminal, a line now and then elsewhere ---- */

struct bar {
	bool tty, drawn;
	uint64_t last_ns;
};

static int on_progress(void *arg, enum job_phase phase, uint64_t done, uint64_t total)
{
	const char *what = phase == JOB_PH_FETCH ? "fetch" : "build";
	struct bar *b = arg;
	uint64_t now = mono_ns();

	if (!b->tty && now - b->last_ns < 2000000000u)
		return 0;
	b->last_ns = now;
	if (b->tty) {
		char cells[31] = "..............................";
		int n = total ? (int)MIN(30, done * 30 / total) : 0;

		memset(cells, '#', (size_t)n);
		fprintf(stderr, "\r%s [%s] %llu of %llu MiB ", what, total ? cells : "",
			(unsigned long long)(done >> 20), (unsigned long long)(total >> 20));
		b->drawn = true;
	} else if (total) {
		fprintf(stderr, "%s: %llu of %llu MiB\n", what, (unsigned long long)(done >> 20),
			(unsigned long long)(total >> 20));
	} else {
		fprintf(stderr, "%s: %llu MiB\n", what, (unsigned long long)(done >> 20));
	}
	return 0;
}

static void end_progress(struct bar *b)
{
	if (b->drawn)
		fprintf(stderr, "\r\033[K");
}

int image_fetch(struct store *s, const struct image_request *q, struct err *e)
{
	struct bar b = {.tty = isatty(2)};
	struct image_info i;
	char d[DIGEST_STR];
	int r = image_obtain(s, image_spawner_direct(NULL), q, on_progress, &b, &i, e);

	end_progress(&b);
	if (r < 0)
		return r;
	printf("%s %s\n", *i.name ? i.name : q->name, digest_str(&i.id, d));
	image_info_fini(&i);
	return 0;
}

/* ---- options that several commands have ---- */

struct common {
	const char *url, *store, *platform, *user, *registries, *token_file, *kind;
	bool password_stdin, always, json, local, help;
	uint64_t room, max_bytes, max_entries, max_ratio, stall;
};

#define OPT_STORE(c)                                                                               \
	{                                                                                          \
		"store", 0, OPT_STR, &(c).store, "DIR",                                            \
			"work on this folder instead of asking the daemon ($MAYFLY_IMAGES)"        \
	}
/* for the commands that never ask the daemon */
#define OPT_FOLDER(c)                                                                              \
	{                                                                                          \
		"store", 0, OPT_STR, &(c).store, "DIR",                                            \
			"the store's folder ($MAYFLY_IMAGES, else for root "                       \
			"/var/lib/mayfly/images)"                                                  \
	}
#define OPT_URL(c)                                                                                 \
	{                                                                                          \
		"url", 0, OPT_STR, &(c).url, "URL", "the daemon, instead of OPEN_SANDBOX_DOMAIN"   \
	}
#define OPT_LIMITS(c)                                                                              \
	{"room", 0, OPT_BYTES, &(c).room, "BYTES",                                                 \
		"free space of the disk beyond the content (8G)"},                                 \
		{"max-bytes", 0, OPT_BYTES, &(c).max_bytes, "BYTES", "largest image (64G)"},       \
		{"max-entries", 0, OPT_UINT, &(c).max_entries, "N",                                \
			"most entries in all layers (2000000)"},                                   \
	{                                                                                          \
		"max-ratio", 0, OPT_UINT, &(c).max_ratio, "N",                                     \
			"a layer beyond 1 GiB may decompress to N times its size (400)"            \
	}

/* Do ls, pull and rm work on a folder? Else they ask the daemon. */
static bool wants_folder(const struct common *c)
{
	const char *env = getenv("MAYFLY_IMAGES");

	return c->store || (env && *env && !c->url);
}

static int open_store(const struct common *c, struct store **out, struct err *e)
{
	char path[400];

	return store_open(c->store ? c->store : image_store_default(path, sizeof(path)), out, e);
}

static int set_request(const struct common *c, struct image_request *q, struct err *e)
{
	q->lim = (struct image_limits)IMAGE_LIMITS_DEFAULT;
	if (c->room)
		q->lim.room_bytes = c->room;
	if (c->max_bytes)
		q->lim.max_bytes = c->max_bytes;
	if (c->max_entries)
		q->lim.max_entries = c->max_entries;
	if (c->max_ratio)
		q->lim.max_ratio = (uint32_t)MIN(c->max_ratio, UINT32_MAX);
	if (c->stall)
		q->lim.stall_s = (uint32_t)MIN(c->stall, 3600);
	if (c->platform && platform_parse(c->platform, &q->platform) < 0)
		return err_plain(e, EINVAL, "--platform %s: not OS/ARCH[/VARIANT]", c->platform);
	return 0;
}

/* Parses, answers --help; *rest is where the words begin. -1: go on, else the exit code. */
static int parse(const struct opt *o, size_t n, int argc, char **argv, const char *words, int min,
	int max, const bool *help, int *rest)
{
	struct err e = {0};

	if (opt_parse(o, n, argc, argv, rest, &e) < 0)
		return complain(EXIT_USAGE, &e);
	if (*help || argc - *rest < min || argc - *rest > max) {
		fprintf(*help ? stdout : stderr, "usage: mayfly image %s [OPTIONS] %s\n", argv[0],
			words);
		opt_help(stdout, o, n);
		return *help ? EXIT_OK : EXIT_USAGE;
	}
	return -1;
}

/* ---- pull, import ---- */

static int read_password(char *to, size_t cap, struct err *e)
{
	ssize_t n = read(0, to, cap - 1);

	if (n < 0)
		return err_set(e, errno, "reading the password");
	to[n] = 0;
	to[strcspn(to, "\r\n")] = 0;
	return 0;
}

static int image_pull(int argc, char **argv)
{
	static struct pull_base bases[PULL_MAX_BASES];
	_cleanup_(store_closep) struct store *s = NULL;
	struct common c = {0};
	struct image_request q = {.source = -1, .bases = bases};
	char password[4096] = "";
	struct err e = {0};
	const struct opt opts[] = {
		OPT_URL(c),
		OPT_STORE(c),
		{"platform", 0, OPT_STR, &c.platform, "OS/ARCH",
			"platform of a multi-platform image (default: this machine's)"},
		{"user", 'u', OPT_STR, &c.user, "NAME",
			"user of the registry; give the password with --password-stdin"},
		{"password-stdin", 0, OPT_FLAG, &c.password_stdin, NULL,
			"read the password from standard input; it is not stored"},
		{"registries", 0, OPT_STR, &c.registries, "FILE",
			"lines of REGISTRY URL [plain-http] [private] (default: "
			"$MAYFLY_REGISTRIES)"},
		{"stall", 0, OPT_UINT, &c.stall, "SECONDS",
			"give up on a registry that sends less than 1 KiB/s for SECONDS (30)"},
		{"always", 0, OPT_FLAG, &c.always, NULL,
			"ask the registry even if the name is in the store"},
		OPT_LIMITS(c),
		{"help", 'h', OPT_FLAG, &c.help, NULL, "this text"},
	};
	int rest, r = parse(opts, ARRAY_LEN(opts), argc, argv, "NAME", 1, 1, &c.help, &rest);

	if (r >= 0)
		return r;
	if (!wants_folder(&c)) {
		if (c.platform || c.registries || c.stall || c.always || c.room || c.max_bytes ||
			c.max_entries || c.max_ratio) {
			err_plain(&e, EINVAL,
				"the daemon pulls with its own settings: --platform, --registries, "
				"--stall, --always, --room and --max-* need --store");
			return complain(EXIT_USAGE, &e);
		}
		if (c.password_stdin && read_password(password, sizeof(password), &e) < 0)
			return complain(EXIT_FAILED, &e);
		r = remote_pull(c.url, argv[rest], c.user, password);
		explicit_bzero(password, sizeof(password));
		return r;
	}
	if (!c.registries)
		c.registries = getenv("MAYFLY_REGISTRIES");
	r = set_request(&c, &q, &e);
	if (r == 0 && c.registries)
		r = registries_read(c.registries, bases, &q.nbases, &e);
	if (r == 0 && c.password_stdin)
		r = read_password(password, sizeof(password), &e);
	if (r == 0)
		r = open_store(&c, &s, &e);
	q.name = argv[rest];
	q.user = c.user;
	q.password = password;
	q.always = c.always;
	if (r == 0)
		r = image_fetch(s, &q, &e);
	explicit_bzero(password, sizeof(password));
	return r < 0 ? complain(EXIT_FAILED, &e) : EXIT_OK;
}

static int parse_kind(const char *s, enum job_source *out)
{
	static const char *const names[] = {
		[JOB_SRC_AUTO] = "auto",
		[JOB_SRC_LAYOUT] = "layout",
		[JOB_SRC_ARCHIVE] = "archive",
		[JOB_SRC_ROOTFS_TAR] = "rootfs-tar",
		[JOB_SRC_ROOTFS_DIR] = "rootfs-dir",
	};

	for (unsigned int i = 0; i < ARRAY_LEN(names); i++)
		if (!s || strcmp(s, names[i]) == 0) {
			*out = (enum job_source)i;
			return 0;
		}
	return -EINVAL;
}

static int image_import(int argc, char **argv)
{
	_cleanup_(store_closep) struct store *s = NULL;
	_cleanup_close_ int fd = -1;
	struct common c = {0};
	struct image_request q = {0};
	struct err e = {0};
	const struct opt opts[] = {
		OPT_FOLDER(c),
		{"kind", 0, OPT_STR, &c.kind, "KIND",
			"layout, archive, rootfs-tar, rootfs-dir (default: what it looks like)"},
		{"platform", 0, OPT_STR, &c.platform, "OS/ARCH",
			"platform of a multi-platform image (default: this machine's)"},
		{"local", 0, OPT_FLAG, &c.local, NULL,
			"the name is a local alias, and shown as such"},
		OPT_LIMITS(c),
		{"help", 'h', OPT_FLAG, &c.help, NULL, "this text"},
	};
	int rest, r = parse(opts, ARRAY_LEN(opts), argc, argv, "SOURCE NAME", 2, 2, &c.help, &rest);

	if (r >= 0)
		return r;
	r = set_request(&c, &q, &e);
	if (r == 0 && parse_kind(c.kind, &q.kind) < 0)
		r = err_plain(&e, EINVAL,
			"--kind %s: not layout, archive, rootfs-tar or rootfs-dir", c.kind);
	fd = open(argv[rest], O_RDONLY | O_CLOEXEC);
	if (r == 0 && fd < 0)
		r = err_set(&e, errno, "%s", argv[rest]);
	if (r == 0)
		r = open_store(&c, &s, &e);
	q.source = fd;
	q.name = argv[rest + 1];
	q.local = c.local;
	if (r == 0)
		r = image_fetch(s, &q, &e);
	return r < 0 ? complain(EXIT_FAILED, &e) : EXIT_OK;
}

/* ---- ls, inspect, rm, prune ---- */

static const char *familiar(const char *canonical, char to[REF_MAX])
{
	struct image_ref r;

	return ref_parse(canonical, &r, NULL) == 0 ? ref_familiar(&r, to) : canonical;
}

static int print_line(void *arg, const struct image_info *i)
{
	char d[DIGEST_STR], name[REF_MAX], when[32];
	struct tm tm;
	time_t t = i->used;

	localtime_r(&t, &tm);
	strftime(when, sizeof(when), "%Y-%m-%d %H:%M", &tm);
	digest_str(&i->id, d);
	printf("%-32s %-6s %.12s %8llu MiB %8.1f GiB  %s  %u\n",
		*i->name ? familiar(i->name, name) : "-", i->local ? "local" : "", d + 7,
		(unsigned long long)(i->disk_stored >> 20),
		(double)i->config.disk.disk_bytes / (1 << 30), when, i->pins);
	return 0;
}

static int print_json(void *arg, const struct image_info *i)
{
	_cleanup_(json_freep) cJSON *j = cJSON_CreateObject();
	_cleanup_free_ char *text = NULL;
	char d[DIGEST_STR];

	cJSON_AddStringToObject(j, "name", i->name);
	cJSON_AddBoolToObject(j, "local", i->local);
	cJSON_AddStringToObject(j, "digest", digest_str(&i->id, d));
	cJSON_AddStringToObject(j, "disk", i->disk);
	cJSON_AddNumberToObject(j, "diskStored", (double)i->disk_stored);
	cJSON_AddNumberToObject(j, "diskBytes", (double)i->config.disk.disk_bytes);
	cJSON_AddNumberToObject(j, "built", (double)i->built);
	cJSON_AddNumberToObject(j, "used", (double)i->used);
	cJSON_AddNumberToObject(j, "pins", i->pins);
	text = cJSON_PrintUnformatted(j);
	printf("%s\n", text ? text : "");
	return 0;
}

static void print_alias(void *json, const char *pattern, const char *name)
{
	struct buf b;

	if (!*(bool *)json) {
		printf("%-32s %-6s %s\n", pattern, "alias", name);
		return;
	}
	buf_init(&b, 8192);
	buf_printf(&b, "{\"name\":");
	json_string(&b, pattern);
	buf_printf(&b, ",\"alias\":");
	json_string(&b, name);
	printf("%s}\n", buf_cstr(&b));
	buf_fini(&b);
}

static int image_ls(int argc, char **argv)
{
	_cleanup_(store_closep) struct store *s = NULL;
	struct common c = {0};
	struct err e = {0};
	char aliases[ALIASES_MAX];
	const struct opt opts[] = {
		OPT_URL(c),
		OPT_STORE(c),
		{"json", 0, OPT_FLAG, &c.json, NULL, "one JSON object a line"},
		{"help", 'h', OPT_FLAG, &c.help, NULL, "this text"},
	};
	int rest, r = parse(opts, ARRAY_LEN(opts), argc, argv, "", 0, 0, &c.help, &rest);

	if (r >= 0)
		return r;
	if (!wants_folder(&c))
		return remote_ls(c.url, c.json);
	r = open_store(&c, &s, &e);
	if (r == 0 && !c.json)
		printf("%-32s %-6s %-12s %12s %12s  %-16s  %s\n", "NAME", "", "IMAGE", "STORED",
			"SIZE", "LAST USE", "PINS");
	if (r == 0)
		r = store_list(s, c.json ? print_json : print_line, NULL, &e);
	if (r == 0) {
		aliases_read(store_path(s), aliases);
		aliases_each(aliases, print_alias, &c.json);
	}
	return r < 0 ? complain(EXIT_FAILED, &e) : EXIT_OK;
}

static int image_inspect(int argc, char **argv)
{
	_cleanup_(store_closep) struct store *s = NULL;
	struct image_info i;
	struct common c = {0};
	struct err e = {0};
	const struct opt opts[] = {
		OPT_FOLDER(c),
		{"help", 'h', OPT_FLAG, &c.help, NULL, "this text"},
	};
	int rest, r = parse(opts, ARRAY_LEN(opts), argc, argv, "NAME", 1, 1, &c.help, &rest);

	if (r >= 0)
		return r;
	r = open_store(&c, &s, &e);
	if (r == 0)
		r = store_resolve(s, argv[rest], &i, &e);
	if (r < 0)
		return complain(EXIT_FAILED, &e);
	i.pins = store_pins(s, &i.id);
	print_json(NULL, &i);
	fflush(stdout);
	r = image_config_write(&i.config, 1, &e);
	printf("\n");
	image_info_fini(&i);
	return r < 0 ? complain(EXIT_FAILED, &e) : EXIT_OK;
}

static int image_rm(int argc, char **argv)
{
	_cleanup_(store_closep) struct store *s = NULL;
	struct common c = {0};
	struct err e = {0};
	const struct opt opts[] = {
		OPT_URL(c),
		OPT_STORE(c),
		{"help", 'h', OPT_FLAG, &c.help, NULL, "this text"},
	};
	int rest, bad = 0,
		  r = parse(opts, ARRAY_LEN(opts), argc, argv, "NAME...", 1, 1000, &c.help, &rest);

	if (r >= 0)
		return r;
	if (!wants_folder(&c))
		return remote_rm(c.url, argc - rest, argv + rest);
	if (open_store(&c, &s, &e) < 0)
		return complain(EXIT_FAILED, &e);
	for (; rest < argc; rest++)
		if (store_remove(s, argv[rest], &e) < 0)
			bad = complain(EXIT_FAILED, &e);
	return bad;
}

static bool parse_age(const char *s, uint64_t *out)
{
	static const struct {
		char unit;
		uint64_t s;
	} units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
	char *end;

	if (*s < '0' || *s > '9')
		return false;
	*out = strtoull(s, &end, 10);
	for (size_t i = 0; i < ARRAY_LEN(units); i++)
		if (*end == units[i].unit && !end[1])
			return !__builtin_mul_overflow(*out, units[i].s, out);
	return !*end;
}

static int image_prune(int argc, char **argv)
{
	_cleanup_(store_closep) struct store *s = NULL;
	struct common c = {0};
	struct prune p = {0};
	const char *unused = NULL;
	struct err e = {0};
	const struct opt opts[] = {
		OPT_FOLDER(c),
		{"unused", 0, OPT_STR, &unused, "AGE",
			"remove images that were not used for AGE: 30m, 12h, 7d"},
		{"keep", 0, OPT_BYTES, &p.keep_bytes, "BYTES",
			"remove the longest unused images until BYTES are left"},
		{"layers", 0, OPT_FLAG, &p.blobs, NULL,
			"also remove layers of images that stay (a later pull may need them)"},
		{"dry-run", 'n', OPT_FLAG, &p.dry_run, NULL, "only print what would be removed"},
		{"help", 'h', OPT_FLAG, &c.help, NULL, "this text"},
	};
	int rest, r = parse(opts, ARRAY_LEN(opts), argc, argv, "", 0, 0, &c.help, &rest);

	if (r >= 0)
		return r;
	r = unused && !parse_age(unused, &p.unused_s)
		    ? err_plain(
			      &e, EINVAL, "--unused %s: not an age such as 30m, 12h or 7d", unused)
		    : open_store(&c, &s, &e);
	if (r == 0)
		r = store_prune(s, &p, &e);
	if (r < 0)
		return complain(EXIT_FAILED, &e);
	printf("%s%u images, %u blobs, %llu MiB\n", p.dry_run ? "would remove " : "removed ",
		p.images, p.blob_count, (unsigned long long)(p.bytes >> 20));
	return EXIT_OK;
}

static const struct command commands[] = {
	{"pull", image_pull, "pull an image from a registry"},
	{"import", image_import,
		"import an OCI layout, an archive (OCI, docker save) or a root file system"},
	{"build", cmd_image_build, "build an image from a recipe: base, python, node, tiny, ..."},
	{"ls", image_ls, "list images"},
	{"inspect", image_inspect, "show an image's configuration and disk, as JSON"},
	{"rm", image_rm, "remove a name, and the image with its last name"},
	{"prune", image_prune, "remove images that were not used for long, or are too many"},
};

int cmd_image(int argc, char **argv)
{
	return command_run("mayfly image", commands, ARRAY_LEN(commands), argc, argv);
}
