/* SPDX-License-Identifier: Apache-2.0
 *
 * store_list.c: finding, listing, pinning, removing, pruning. The daemon and the command line.
 * Removing holds the store's lock exclusively, pinning holds it shared: so a disk is not removed
 * between the check for pins and a new pin.
 */
#include "images/store/store_int.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

static int fill_info(
	struct store *s, const struct digest *id, struct image_info *out, struct err *e)
{
	_cleanup_close_ int dir = -1;
	char hex[DIGEST_HEX];
	struct stat sb;
	int r;

	digest_hex(id, hex);
	dir = openat(s->dir[F_IMAGES], hex, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_set(e, errno, "image %.12s", hex);
	if (fstatat(dir, "disk.ext4", &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return err_set(e, errno, "image %.12s: disk.ext4", hex);
	out->disk_stored = (uint64_t)sb.st_blocks * 512;
	out->built = sb.st_mtime;
	out->used = fstatat(dir, "used", &sb, AT_SYMLINK_NOFOLLOW) < 0 ? out->built : sb.st_mtime;
	snprintf(out->disk, sizeof(out->disk), "%s/images/%s/disk.ext4", s->path, hex);
	out->id = *id;
	r = read_config(dir, "image.json", &out->config, e);
	return r < 0 ? err_wrap(e, "image %.12s", hex) : 0;
}

struct count {
	const char *prefix;
	size_t len;
	uint32_t n;
};

static int count_prefix(void *arg, const char *name)
{
	struct count *c = arg;

	c->n += strncmp(name, c->prefix, c->len) == 0;
	return 0;
}

static uint32_t count_pins(struct store *s, const struct digest *id)
{
	char hex[DIGEST_HEX];
	struct count c = {.prefix = digest_hex(id, hex), .len = 64};

	each_entry(s->dir[F_PINS], count_prefix, &c);
	return c.n;
}

uint32_t store_pins(struct store *s, const struct digest *id)
{
	return count_pins(s, id);
}

static void touch(struct store *s, const struct digest *id)
{
	char path[DIGEST_HEX + 8], hex[DIGEST_HEX];

	snprintf(path, sizeof(path), "%s/used", digest_hex(id, hex));
	utimensat(s->dir[F_IMAGES], path, NULL, 0);
}

struct by_prefix {
	const char *prefix;
	char found[DIGEST_HEX];
	uint32_t n;
};

static int match_prefix(void *arg, const char *name)
{
	struct by_prefix *b = arg;

	if (strlen(name) == 64 && strncmp(name, b->prefix, strlen(b->prefix)) == 0) {
		snprintf(b->found, sizeof(b->found), "%s", name);
		b->n++;
	}
	return 0;
}

static int find_id(struct store *s, const char *text, struct digest *out, struct err *e)
{
	struct by_prefix b = {.prefix = text};

	each_entry(s->dir[F_IMAGES], match_prefix, &b);
	if (b.n > 1)
		return err_plain(e, ENOTUNIQ,
			"%s: more than one image begins with this: give more digits", text);
	return b.n == 1 ? digest_parse_hex(b.found, out) : -ENOENT;
}

static int find_any(struct store *s, const char *text, struct name_entry *out, struct err *e)
{
	const char *hex = strncmp(text, "sha256:", 7) == 0 ? text + 7 : text;
	char canonical[REF_MAX];
	struct image_ref ref;
	int r;

	*out = (struct name_entry){0};
	if (strlen(hex) >= 12 && strspn(hex, "0123456789abcdef") == strlen(hex)) {
		r = find_id(s, hex, &out->id, e);
		if (r != -ENOENT || hex != text)
			return r == -ENOENT ? err_plain(e, ENOENT, "no image %s here", text) : r;
	}
	r = ref_parse(text, &ref, e);
	if (r < 0)
		return r;
	r = find_name(s, ref_canonical(&ref, canonical), out);
	if (r == -ENOENT && ref.has_digest && store_image_there(s, &ref.digest)) {
		out->id = ref.digest;
		return 0;
	}
	return r < 0 ? err_plain(e, -r,
			       r == -ENOENT ? "no image %s here"
					    : "the store's entry for %s is damaged",
			       canonical)
		     : 0;
}

int store_resolve(struct store *s, const char *name, struct image_info *out, struct err *e)
{
	struct image_info info = {0};
	struct name_entry n;
	int r = find_any(s, name, &n, e);

	if (r == 0)
		r = fill_info(s, &n.id, &info, e);
	if (r < 0)
		return r;
	str_copy(info.name, sizeof(info.name), n.name);
	info.local = n.local;
	touch(s, &n.id);
	*out = info;
	return 0;
}

/* ---- list ---- */

struct names {
	struct store *s;
	struct name_entry *v;
	size_t n, cap;
};

static int gather_name(void *arg, const char *hex)
{
	struct names *g = arg;

	if (g->n == g->cap) {
		size_t cap = g->cap ? g->cap * 2 : 32;
		struct name_entry *v = realloc(g->v, cap * sizeof(*v));

		if (!v)
			return -ENOMEM;
		g->v = v;
		g->cap = cap;
	}
	if (read_name(g->s, hex, &g->v[g->n]) == 0)
		g->n++;
	return 0;
}

static int name_cmp(const void *a, const void *b)
{
	return strcmp(((const struct name_entry *)a)->name, ((const struct name_entry *)b)->name);
}

static int gather_names(struct store *s, struct names *g)
{
	int r;

	*g = (struct names){.s = s};
	r = each_entry(s->dir[F_NAMES], gather_name, g);
	if (r == 0 && g->n)
		qsort(g->v, g->n, sizeof(*g->v), name_cmp);
	return r;
}

struct lister {
	struct names g;
	int (*fn)(void *arg, const struct image_info *i);
	void *arg;
	struct err *e;
};

static int list_one(struct lister *l, const struct digest *id, const struct name_entry *name)
{
	struct image_info i = {0};
	int r;

	if (fill_info(l->g.s, id, &i, NULL) < 0)
		return 0; /* removed meanwhile, or damaged: `mayfly image inspect` says what is wrong */
	if (name) {
		str_copy(i.name, sizeof(i.name), name->name);
		i.local = name->local;
	}
	i.pins = count_pins(l->g.s, id);
	r = l->fn(l->arg, &i);
	image_info_fini(&i);
	return r;
}

static int list_nameless(void *arg, const char *hex)
{
	struct lister *l = arg;
	struct digest id;

	if (digest_parse_hex(hex, &id) < 0)
		return 0;
	for (size_t i = 0; i < l->g.n; i++)
		if (digest_eq(&l->g.v[i].id, &id))
			return 0;
	return list_one(l, &id, NULL);
}

int store_list(
	struct store *s, int (*fn)(void *arg, const struct image_info *i), void *arg, struct err *e)
{
	struct lister l = {.fn = fn, .arg = arg};
	int r = gather_names(s, &l.g);

	for (size_t i = 0; i < l.g.n && r == 0; i++)
		r = list_one(&l, &l.g.v[i].id, &l.g.v[i]);
	if (r == 0)
		r = each_entry(s->dir[F_IMAGES], list_nameless, &l);
	free(l.g.v);
	return r < 0 ? err_set(e, -r, "listing %s", s->path) : r;
}

/* ---- pins ---- */

static bool owner_ok(const char *o)
{
	size_t n = strspn(o, "abcdefghijklmnopqrstuvwxyz0123456789-");

	return n > 0 && n <= 63 && !o[n];
}

static int pin_path(const struct digest *id, const char *owner, char out[160])
{
	char hex[DIGEST_HEX];

	if (!owner_ok(owner))
		return -EINVAL;
	snprintf(out, 160, "%s.%s", digest_hex(id, hex), owner);
	return 0;
}

int store_pin(struct store *s, const struct digest *id, const char *owner, struct err *e)
{
	_cleanup_close_ int lock = -1, fd = -1;
	char path[160];

	if (pin_path(id, owner, path) < 0)
		return err_plain(e, EINVAL, "pin: malformed owner");
	lock = store_lock(s, LOCK_SH | LOCK_NB);
	if (lock < 0)
		return err_set(e, -lock, "%s/lock", s->path);
	if (!store_image_there(s, id))
		return err_plain(e, ENOENT, "image %.12s was removed", path);
	fd = openat(s->dir[F_PINS], path, O_WRONLY | O_CLOEXEC);
	/* a pin that is there already is durable: no fsync, because a create waits for this */
	if (fd < 0 &&
		((fd = openat(s->dir[F_PINS], path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644)) < 0 ||
			fsync(s->dir[F_PINS]) < 0))
		return err_set(e, errno, "pin %s", path);
	touch(s, id);
	return 0;
}

struct reap {
	struct store *s;
	bool (*lives)(void *arg, const char *image, const char *owner);
	void *arg;
};

static int reap_pin(void *arg, const char *name)
{
	struct reap *r = arg;
	char image[DIGEST_HEX];

	snprintf(image, sizeof(image), "%s", name);
	if (strlen(name) < 66 || name[64] != '.' || !r->lives(r->arg, image, name + 65))
		unlinkat(r->s->dir[F_PINS], name, 0);
	return 0;
}

int store_pins_reap(
	struct store *s, bool (*lives)(void *arg, const char *image, const char *owner), void *arg)
{
	struct reap r = {s, lives, arg};

	return each_entry(s->dir[F_PINS], reap_pin, &r);
}

/* ---- grants: beside the blobs, because one blob may be part of a public and of a private image ---- */

static void grant_path(const struct digest *d, const char *group, char out[DIGEST_HEX + 80])
{
	char hex[DIGEST_HEX];

	/* the digest comes first, so that a group named ".." is no path */
	snprintf(out, DIGEST_HEX + 80, "%s%s%.64s", digest_hex(d, hex), group ? "." : "",
		group ? group : "");
}

static bool grant_there(struct store *s, const struct digest *d, const char *group)
{
	char path[DIGEST_HEX + 80];

	grant_path(d, group, path);
	return faccessat(s->dir[F_GRANTS], path, F_OK, 0) == 0;
}

bool store_may_use(struct store *s, const struct digest *d, const char *group)
{
	return !group || grant_there(s, d, NULL) || grant_there(s, d, group);
}

int store_grant(struct store *s, const struct digest *d, const char *group, struct err *e)
{
	char path[DIGEST_HEX + 80];
	_cleanup_close_ int fd = -1;

	grant_path(d, group, path);
	fd = openat(s->dir[F_GRANTS], path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	return fd < 0 ? err_set(e, errno, "grant %s", path) : 0;
}

/* A grant whose blob and image are both gone. */
static int sweep_grant(void *arg, const char *name)
{
	struct store *s = arg;
	char hex[DIGEST_HEX];

	snprintf(hex, sizeof(hex), "%s", name);
	if (faccessat(s->dir[F_BLOBS], hex, F_OK, 0) < 0 && errno == ENOENT &&
		faccessat(s->dir[F_IMAGES], hex, F_OK, 0) < 0 && errno == ENOENT)
		unlinkat(s->dir[F_GRANTS], name, 0);
	return 0;
}

/* ---- removing: under the exclusive lock ---- */

static int drop_image(struct store *s, const struct digest *id, struct err *e)
{
	char hex[DIGEST_HEX], dead[DIGEST_HEX + 8];

	if (count_pins(s, id))
		return err_plain(e, EBUSY, "image %.12s is in use", digest_hex(id, hex));
	/* renamed first: a kill during the removal leaves no half image, and the next store_open() removes the rest */
	snprintf(dead, sizeof(dead), ".tmp-%s", digest_hex(id, hex));
	if (renameat(s->dir[F_IMAGES], hex, s->dir[F_IMAGES], dead) < 0)
		return err_set(e, errno, "image %.12s", hex);
	remove_tree(s->dir[F_IMAGES], dead);
	return 0;
}

struct used_blobs {
	struct store *s;
	struct digest *v;
	size_t n, cap;
	bool layers; /* count the layers of images that stay as used */
	struct prune *p;
	int64_t now;
};

static int add_used(struct used_blobs *u, const struct digest *d)
{
	if (u->n == u->cap) {
		size_t cap = u->cap ? u->cap * 2 : 256;
		struct digest *v = realloc(u->v, cap * sizeof(*v));

		if (!v)
			return -ENOMEM;
		u->v = v;
		u->cap = cap;
	}
	u->v[u->n++] = *d;
	return 0;
}

static int note_blobs(void *arg, const struct image_info *i)
{
	struct used_blobs *u = arg;
	int r = add_used(u, &i->id);

	if (r == 0)
		r = add_used(u, &i->config.config);
	for (size_t k = 0; r == 0 && u->layers && k < i->config.nlayers; k++)
		r = add_used(u, &i->config.layers[k]);
	return r;
}

static int drop_unused_blob(void *arg, const char *hex)
{
	struct used_blobs *u = arg;
	struct digest d;
	struct stat sb;

	if (digest_parse_hex(hex, &d) < 0 ||
		fstatat(u->s->dir[F_BLOBS], hex, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	for (size_t i = 0; i < u->n; i++)
		if (digest_eq(&u->v[i], &d))
			return 0;
	/* a pull in progress may have put the blob here, and not its image yet */
	if (u->now - sb.st_ctime < (u->p ? 3600 : 60))
		return 0;
	if (u->p) {
		u->p->blob_count++;
		u->p->bytes += (uint64_t)sb.st_blocks * 512;
		if (u->p->dry_run)
			return 0;
	}
	unlinkat(u->s->dir[F_BLOBS], hex, 0);
	return 0;
}

static int sweep_blobs(struct store *s, bool keep_layers, struct prune *p, struct err *e)
{
	struct used_blobs u = {.s = s, .layers = keep_layers, .p = p, .now = time(NULL)};
	int r;

	/* a pull or build in progress may need any of them, however old: the next removal sweeps */
	if (store_is_staging(s))
		return 0;
	r = store_list(s, note_blobs, &u, e);
	if (r == 0)
		r = each_entry(s->dir[F_BLOBS], drop_unused_blob, &u);
	if (r == 0 && !(p && p->dry_run))
		r = each_entry(s->dir[F_GRANTS], sweep_grant, s);
	free(u.v);
	return r;
}

static bool is_meant(const struct name_entry *have, const struct name_entry *asked)
{
	return asked->name[0] ? strcmp(have->name, asked->name) == 0
			      : digest_eq(&have->id, &asked->id);
}

static bool has_other_names(const struct names *g, const struct name_entry *asked)
{
	for (size_t i = 0; i < g->n; i++)
		if (digest_eq(&g->v[i].id, &asked->id) && !is_meant(&g->v[i], asked))
			return true;
	return false;
}

int store_remove(struct store *s, const char *name, struct err *e)
{
	_cleanup_close_ int lock = store_lock(s, LOCK_EX);
	struct name_entry n;
	struct names g = {0};
	int r;

	if (lock < 0)
		return err_set(e, -lock, "%s/lock", s->path);
	r = find_any(s, name, &n, e);
	if (r < 0)
		return r;
	r = gather_names(s, &g);
	if (r < 0)
		return err_set(e, -r, "%s/names", s->path);
	/* the last name is removed together with the image; a request by digest removes all names */
	if (!has_other_names(&g, &n))
		r = drop_image(s, &n.id, e);
	for (size_t i = 0; i < g.n && r == 0; i++)
		if (is_meant(&g.v[i], &n))
			unlinkat(s->dir[F_NAMES], g.v[i].key, 0);
	free(g.v);
	return r < 0 ? r : sweep_blobs(s, true, NULL, e);
}

/* ---- prune ---- */

struct aged {
	struct digest id;
	int64_t used;
	uint64_t bytes;
	bool pinned;
};
struct aged_list {
	struct aged *v;
	size_t n, cap;
	uint64_t bytes;
};

static int gather_aged(void *arg, const struct image_info *i)
{
	struct aged_list *l = arg;

	for (size_t k = 0; k < l->n; k++)
		if (digest_eq(&l->v[k].id, &i->id))
			return 0;
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 32;
		struct aged *v = realloc(l->v, cap * sizeof(*v));

		if (!v)
			return -ENOMEM;
		l->v = v;
		l->cap = cap;
	}
	l->v[l->n++] = (struct aged){i->id, i->used, i->disk_stored, i->pins > 0};
	l->bytes += i->disk_stored;
	return 0;
}

static int aged_cmp(const void *a, const void *b)
{
	int64_t x = ((const struct aged *)a)->used, y = ((const struct aged *)b)->used;

	return x < y ? -1 : x > y;
}

static void drop_names_of(struct store *s, const struct digest *id)
{
	struct names g;

	if (gather_names(s, &g) == 0)
		for (size_t i = 0; i < g.n; i++)
			if (digest_eq(&g.v[i].id, id))
				unlinkat(s->dir[F_NAMES], g.v[i].key, 0);
	free(g.v);
}

/* For parts of killed downloads: of use only if the same blob is pulled again. */
static int drop_part(void *arg, const char *hex)
{
	struct used_blobs *u = arg;
	struct stat sb;

	if (fstatat(u->s->dir[F_PARTS], hex, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	u->p->blob_count++;
	u->p->bytes += (uint64_t)sb.st_blocks * 512;
	if (!u->p->dry_run)
		unlinkat(u->s->dir[F_PARTS], hex, 0);
	return 0;
}

int store_prune(struct store *s, struct prune *p, struct err *e)
{
	_cleanup_close_ int lock = store_lock(s, LOCK_EX);
	struct aged_list l = {0};
	int64_t now = time(NULL);
	int r;

	if (lock < 0)
		return err_set(e, -lock, "%s/lock", s->path);
	r = store_list(s, gather_aged, &l, e);
	if (r == 0 && l.n)
		qsort(l.v, l.n, sizeof(*l.v), aged_cmp);
	for (size_t i = 0; i < l.n && r == 0; i++) {
		bool old = p->unused_s && now - l.v[i].used >= (int64_t)p->unused_s;
		bool over = p->keep_bytes && l.bytes > p->keep_bytes &&
			    now - l.v[i].used >= (int64_t)p->unused_s;

		if (l.v[i].pinned || (!old && !over))
			continue;
		l.bytes -= l.v[i].bytes;
		p->images++;
		p->bytes += l.v[i].bytes;
		if (p->dry_run)
			continue;
		r = drop_image(s, &l.v[i].id, e);
		if (r == 0)
			drop_names_of(s, &l.v[i].id);
	}
	free(l.v);
	if (r == 0)
		r = sweep_blobs(s, !p->blobs, p, e);
	if (r == 0)
		each_entry(s->dir[F_PARTS], drop_part, &(struct used_blobs){.s = s, .p = p});
	return r;
}
