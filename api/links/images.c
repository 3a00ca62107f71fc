/* SPDX-License-Identifier: Apache-2.0
 *
 * images.c: from names to disks. mayflyd. The loop answers for images that are in the store. Others are
 * fetched and built by image_obtain() in worker threads, at most IMAGE_JOBS at a time; the rest
 * waits in order. A name is a client's, checked by its own grammar. This file keeps credentials only
 * in the struct of the job, until it has ended. The create request (struct spec) keeps its own copy
 * until the job's callback.
 */
#include "api/links/images.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "api/core/daemon.h"
#include "api/core/database.h"
#include "api/core/principal.h"
#include "api/links/images_int.h"
#include "images/store/alias.h"
#include "lib/log.h"

#define PIN_OWNER    "mayflyd"
#define PIN_REAP_NS  UINT64_C(1000000000) /* one look for many deletions */
#define PIN_AGAIN_NS UINT64_C(50000000)   /* while somebody removes images */

enum job_state { JOB_WAITS, JOB_RUNS, JOB_OVER };

struct image_job {
	struct image_job *next;
	struct images *im;
	image_fn fn;
	void *arg;
	void (*progress)(void *arg, const char *text);
	char name[REF_MAX], user[256], password[4096], owner[OWNER_MAX],
		group[OWNER_MAX]; /* the owner's namespace; "": what is in the store is for all */
	enum job_state state;
	pthread_t thread;
	_Atomic bool cancelled;
	_Atomic uint64_t done, total;
	_Atomic int phase;
	_Atomic bool over; /* the thread has ended its work */
	struct pull_base base;
	unsigned int nbases;
	struct image_info info;
	struct err err;
};

struct images {
	struct daemon *d;
	struct store *store;
	struct spawner *spawner;
	const image_user_fn *users; /* asked whether a record needs an image */
	struct image_job *jobs;     /* oldest first */
	int wake_fd;
	struct watch *wake;
	struct timer *reap, *again;
	bool reap_set;
	unsigned int running;
};

static void pump(struct images *im);

/* ["K=V", ...] as a map; the last of a name counts */
static cJSON *env_map(const struct strings *s)
{
	cJSON *o = cJSON_CreateObject();

	for (size_t i = 0; i < s->n; i++) {
		const char *eq = strchr(s->v[i], '=');
		char key[256];

		if (!eq || (size_t)(eq - s->v[i]) >= sizeof(key))
			continue;
		snprintf(key, sizeof(key), "%.*s", (int)(eq - s->v[i]), s->v[i]);
		cJSON_DeleteItemFromObjectCaseSensitive(o, key);
		cJSON_AddStringToObject(o, key, eq + 1);
	}
	return o;
}

static void give(struct image_job *j, const struct image_info *i)
{
	struct image img = {0};
	char hex[DIGEST_HEX];
	struct err e;

	/* kept until no record of this host mentions it: sandboxes, snapshots and templates name
	 * its path */
	j->state = JOB_OVER;
	if (store_pin(j->im->store, &i->id, PIN_OWNER, &e) < 0) {
		if (e.code == EAGAIN) {
			j->state = JOB_WAITS;
			image_info_fini(&j->info);
			j->info = (struct image_info){0};
			timer_after(j->im->again, PIN_AGAIN_NS);
		} else {
			j->fn(j->arg, NULL, &e);
		}
		return;
	}
	snprintf(img.digest, sizeof(img.digest), "%s", digest_hex(&i->id, hex));
	snprintf(img.disk, sizeof(img.disk), "%s", i->disk);
	img.config = cJSON_CreateObject();
	cJSON_AddItemToObject(img.config, "env", env_map(&i->config.env));
	cJSON_AddStringToObject(img.config, "workdir", i->config.workdir);
	cJSON_AddStringToObject(img.config, "user", i->config.user);
	j->fn(j->arg, &img, NULL);
	cJSON_Delete(img.config);
}

static void job_free(struct image_job *j)
{
	explicit_bzero(j->password, sizeof(j->password));
	image_info_fini(&j->info);
	free(j);
}

/* ---- the worker */

static int on_progress(void *arg, enum job_phase phase, uint64_t done, uint64_t total)
{
	struct image_job *j = arg;

	atomic_store(&j->phase, (int)phase);
	atomic_store(&j->done, done);
	atomic_store(&j->total, total);
	images_wake(j->im->wake_fd);
	return atomic_load(&j->cancelled);
}

/* Is this one of the registries that may be on a private address? */
static bool registry_listed(const char *list, const char *registry)
{
	size_t n = strlen(registry);

	for (const char *p = list; *p; p += strcspn(p, " ")) {
		p += strspn(p, " ");
		if (strcspn(p, " ") == n && memcmp(p, registry, n) == 0)
			return true;
	}
	return false;
}

/* How to reach the registry of one name. A client chose the name, so it may not make this host speak to its own loopback or to
 * private addresses, unless the configuration says so. */
static unsigned int bases_of(const struct config *c, const char *name, struct pull_base *b)
{
	bool plain = c->insecure_registries;
	struct image_ref ref;
	const char *host;

	if (ref_parse(name, &ref, NULL) < 0)
		return 0;
	host = ref.registry;
	if (strcmp(host, REF_REGISTRY_DEF) == 0) {
		/* the operator chose this registry, so it may have a private address */
		if (!c->default_registry[0] || strcmp(c->default_registry, REF_REGISTRY_DEF) == 0)
			return 0;
		host = c->default_registry;
		*b = (struct pull_base){
			.flags = plain ? JOB_REG_PLAIN_HTTP | JOB_REG_PRIVATE_OK : 0};
	} else if (plain || registry_listed(c->private_registries, host)) {
		plain |= registry_is_loopback(host);
		*b = (struct pull_base){
			.flags = JOB_REG_PRIVATE_OK | (plain ? JOB_REG_PLAIN_HTTP : 0)};
	} else {
		*b = (struct pull_base){.flags = JOB_REG_PUBLIC_ONLY};
	}
	snprintf(b->registry, sizeof(b->registry), "%s", ref.registry);
	snprintf(b->url, sizeof(b->url), "%s://%s", plain ? "http" : "https", host);
	return 1;
}

static void *work(void *arg)
{
	struct image_job *j = arg;
	struct image_request q = {.name = j->name,
		.source = -1,
		.user = j->user,
		.password = j->password,
		.group = j->group[0] ? j->group : NULL,
		.lim = IMAGE_LIMITS_DEFAULT,
		.bases = &j->base,
		.nbases = j->nbases};

	image_obtain(
		j->im->store, spawner_of(j->im->spawner), &q, on_progress, j, &j->info, &j->err);
	atomic_store(&j->over, true);
	images_wake(j->im->wake_fd);
	return NULL;
}

/* ---- the loop's side */

static void job_over(struct image_job *j)
{
	struct images *im = j->im;

	pthread_join(j->thread, NULL);
	im->running--;
	j->state = JOB_OVER;
	if (j->err.code)
		log_warn("image %s: %s", j->name, j->err.msg);
	if (atomic_load(&j->cancelled))
		return;
	if (j->err.code)
		j->fn(j->arg, NULL, &j->err);
	else
		give(j, &j->info);
}

static void say_progress(struct image_job *j)
{
	uint64_t done = atomic_load(&j->done), total = atomic_load(&j->total);
	char text[128];

	if (!j->progress || !atomic_load(&j->phase))
		return;
	snprintf(text, sizeof(text), "%s: %llu of %llu MiB",
		atomic_load(&j->phase) == JOB_PH_FETCH ? "fetch" : "build",
		(unsigned long long)(done >> 20), (unsigned long long)(total >> 20));
	j->progress(j->arg, text);
}

static void on_wake(void *arg, uint32_t events)
{
	struct images *im = arg;
	uint64_t n;

	if (read(im->wake_fd, &n, sizeof(n)) < 0)
		return;
	spawner_serve(im->spawner);
	pump(im);
}

/* How many workers this owner uses: a registry that is slow on purpose must leave one to others. */
static unsigned int running_for(const struct images *im, const char *owner)
{
	unsigned int n = 0;

	for (const struct image_job *j = im->jobs; j; j = j->next)
		n += j->state == JOB_RUNS && strcmp(j->owner, owner) == 0;
	return n;
}

/* Answers what can be answered, starts what may start, forgets what is over. Callbacks may add jobs
 * and cancel them. */
static void pump(struct images *im)
{
	for (struct image_job *j = im->jobs; j; j = j->next) {
		if (j->state == JOB_RUNS && atomic_load(&j->over))
			job_over(j);
		else if (j->state == JOB_RUNS && !atomic_load(&j->cancelled))
			say_progress(j);
		if (j->state != JOB_WAITS)
			continue;
		if (atomic_load(&j->cancelled)) {
			j->state = JOB_OVER;
		} else if (image_usable(im->store, j->name, j->group[0] ? j->group : NULL, &j->info,
				   &j->err) == 0) {
			give(j, &j->info);
		} else if (j->err.code != ENOENT) {
			j->state = JOB_OVER;
			j->fn(j->arg, NULL, &j->err);
		} else if (im->running < IMAGE_JOBS &&
			   running_for(im, j->owner) < IMAGE_JOBS_OWNER) {
			j->err = (struct err){0};
			/* not in the worker: a reload changes the configuration in this thread */
			j->nbases = bases_of(&im->d->cfg, j->name, &j->base);
			atomic_store(&j->over, false);
			if (pthread_create(&j->thread, NULL, work, j) == 0) {
				j->state = JOB_RUNS;
				im->running++;
			}
		}
	}
	for (struct image_job **at = &im->jobs; *at;) {
		struct image_job *j = *at;

		if (j->state != JOB_OVER) {
			at = &j->next;
			continue;
		}
		*at = j->next;
		job_free(j);
	}
}

static void pump_again(void *arg)
{
	pump(arg);
}

struct image_job *image_get(struct daemon *d, const char *name, const char *user,
	const char *password, const char *owner, void (*progress)(void *arg, const char *text),
	image_fn fn, void *arg, struct err *e)
{
	struct image_job *j = calloc(1, sizeof(*j)), **at;
	char other[REF_MAX];

	if (!j) {
		err_set(e, ENOMEM, "image");
		return NULL;
	}
	if (image_alias(d, name, other, sizeof(other))) {
		log_info("image %s stands for %s (images.aliases)", name, other);
		name = other;
	}
	j->im = d->images;
	j->fn = fn;
	j->arg = arg;
	j->progress = progress;
	if (strlen(name) >= sizeof(j->name) || (user && strlen(user) >= sizeof(j->user)) ||
		(password && strlen(password) >= sizeof(j->password))) {
		err_plain(e, EINVAL, "name or credentials are too long");
		job_free(j);
		return NULL;
	}
	str_copy(j->name, sizeof(j->name), name); /* all fit: measured above */
	str_copy(j->user, sizeof(j->user), user ? user : "");
	str_copy(j->password, sizeof(j->password), password ? password : "");
	snprintf(j->owner, sizeof(j->owner), "%s", owner);
	if (!d->cfg.shared_store && !owner_may(owner, OWNER_OPERATOR))
		snprintf(j->group, sizeof(j->group), "%.*s", (int)strcspn(owner, "/"), owner);
	for (at = &d->images->jobs; *at; at = &(*at)->next)
		;
	*at = j;
	images_wake(d->images->wake_fd);
	return j;
}

bool image_alias(const struct daemon *d, const char *name, char *to, size_t cap)
{
	return alias_of(d->cfg.image_aliases, name, to, cap);
}

void images_publish_aliases(const struct daemon *d)
{
	struct err e = {0};
	char path[300];

	snprintf(path, sizeof(path), "%s/images", d->cfg.state_dir);
	if (aliases_check(d->cfg.image_aliases, &e) < 0 ||
		aliases_write(path, d->cfg.image_aliases, &e) < 0)
		log_warn("%s", e.msg);
}

void image_cancel(struct image_job *j)
{
	atomic_store(&j->cancelled, true);
	images_wake(j->im->wake_fd);
}

void images_wake(int fd)
{
	eventfd_write(fd, 1);
}

/* ---- pins: an image is kept as long as a record of ours needs its disk */

static bool pin_lives(void *arg, const char *image, const char *owner)
{
	const struct daemon *d = arg;

	if (strcmp(owner, PIN_OWNER) != 0)
		return true; /* somebody else's */
	for (const image_user_fn *user = d->images->users; *user; user++)
		if ((*user)(d, image))
			return true;
	return false;
}

static void reap_pins(void *arg)
{
	struct daemon *d = arg;

	d->images->reap_set = false;
	/* a record that could not be read may need any image */
	if (!d->images->users || !database_complete(d->database))
		return;
	store_pins_reap(d->images->store, pin_lives, d);
}

void images_release(struct daemon *d)
{
	if (!d->images || !d->images->reap || d->images->reap_set)
		return;
	d->images->reap_set = true;
	timer_after(d->images->reap, PIN_REAP_NS);
}

void images_process_exited(struct images *im, const struct priv_msg *ev)
{
	if (im)
		spawner_exited(im->spawner, ev);
}

struct store *images_store(struct images *im)
{
	return im->store;
}

void images_users(struct images *im, const image_user_fn *users)
{
	im->users = users;
}

struct images *images_create(struct daemon *d, const char *bin_dir, struct err *e)
{
	struct images *im = calloc(1, sizeof(*im));
	char path[300];

	if (!im) {
		err_set(e, ENOMEM, "images");
		return NULL;
	}
	im->d = d;
	snprintf(path, sizeof(path), "%s/images", d->cfg.state_dir);
	im->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	im->wake = im->wake_fd < 0 ? NULL : loop_watch(d->loop, im->wake_fd, EPOLLIN, on_wake, im);
	im->reap = loop_timer(d->loop, reap_pins, d);
	im->again = loop_timer(d->loop, pump_again, im);
	if (!im->wake || !im->reap || !im->again) {
		err_set(e, errno, "images");
		return NULL;
	}
	if (store_open(path, &im->store, e) < 0)
		return NULL;
	images_publish_aliases(d);
	im->spawner = spawner_create(d->priv, d->loop, im->wake_fd, bin_dir, e);
	return im->spawner ? im : NULL;
}
