/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.c: see verify.h. The thread sees its own jobs only: descriptors in, a text for each file out. The files are hostile, and are
 * read by lib/snap and lib/cow only. A file <id>.ok beside a good memory file holds the host's boot id, and is removed with it.
 */
#include "api/checkpoint/verify.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/fsverity.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "api/checkpoint/checkpoint.h"
#include "api/checkpoint/digest.h"
#include "api/core/io_pool.h"
#include "api/http/http.h"
#include "lib/cow_tools.h"
#include "lib/log.h"
#include "lib/snap.h"

#define ASKED_MAX 8u   /* by clients, waiting ones included */
#define QUEUE_MAX 128u /* in the background: a restore that finds it full leaves it to the next */
#define FILES_MAX (DISK_FROZEN_MAX + VMM_MAX_MEM + 3)

enum file_kind { F_STATE, F_MEM, F_WS, F_LAYER, F_INDEX };
static const char *const kind_names[] = {[F_STATE] = "state",
	[F_MEM] = "mem",
	[F_WS] = "ws",
	[F_LAYER] = "layer",
	[F_INDEX] = "index"};

struct file {
	enum file_kind kind;
	char id[BLOB_ID];
	int fd, bitmap_fd;
	uint64_t bytes;
	bool bad;
	char text[sizeof(((struct err *)0)->msg)];
};

struct job {
	struct job *next;
	struct http_req *r; /* NULL: in the background, or the client has gone */
	bool background;
	bool asked;           /* by a client: counted until it has ended */
	struct io_job *other; /* not a verification: then there are no files */
	unsigned int n;
	struct blobs *b;
	struct file f[FILES_MAX];
};

struct verify {
	struct daemon *d;
	verify_damaged_fn in_use;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct job *todo, *done;
	struct job *running; /* the job in the thread: is_queued() looks at it, too */
	bool started;
	unsigned int queued; /* in the background; the loop's */
	unsigned int asked;  /* by clients */
	int wake_fd;
	struct watch *wake_w;
	struct damaged {
		struct damaged *next;
		char id[BLOB_ID], text[sizeof(((struct err *)0)->msg)];
	} * damaged;
};

/* ---- the thread */

static void layer_says(void *arg, const char *text)
{
	struct file *f = arg;

	if (!f->bad)
		snprintf(f->text, sizeof(f->text), "%s", text);
	f->bad = true;
}

static void file_bad(struct file *f, const struct err *e)
{
	f->bad = true;
	snprintf(f->text, sizeof(f->text), "%s", e->msg);
}

/* From then on the kernel checks every page of the file when it is read, also after the next boot. Not
 * every file system has fs-verity. */
static void let_the_kernel_watch(int fd, const char *id)
{
	struct fsverity_enable_arg a = {
		.version = 1, .hash_algorithm = FS_VERITY_HASH_ALG_SHA256, .block_size = 4096};

	if (ioctl(fd, FS_IOC_ENABLE_VERITY, &a) < 0 && errno != EOPNOTSUPP && errno != ENOTTY &&
		errno != EEXIST)
		log_warn("memory file %s: fs-verity cannot be enabled: %s", id, strerror(errno));
}

/* A layer has no checksums of its own, and headers that fit say nothing of its units. */
static int check_digests(struct blobs *b, const struct file *f, struct err *e)
{
	static const char *const of_layer[] = {"data", "bitmap", NULL}, *const of_index[] = {
										"index", NULL};
	int rc = 0;

	for (const char *const *k = f->kind == F_LAYER ? of_layer : of_index; *k && rc == 0; k++)
		rc = digest_check(b, f->id, *k, e);
	return rc == -ENOENT ? 0 : rc; /* published a moment ago: no digest yet */
}

static void check_file(struct blobs *b, struct file *f, const struct snap *s)
{
	struct err e = {0};
	struct stat st;
	int rc = 0;

	if (fstat(f->fd, &st) == 0)
		f->bytes = (uint64_t)st.st_size;
	if (f->kind == F_MEM)
		rc = snap_mem_verify(f->fd, NULL, &e);
	if (f->kind == F_MEM && rc == 0)
		let_the_kernel_watch(f->fd, f->id);
	if (f->kind == F_WS && s && s->head.nfiles) {
		struct snap_ws_range *r = malloc(SNAP_MAX_WS * sizeof(*r));
		uint32_t n;

		/* guest memory has a hole below 4 GiB, so its last address may be that far beyond its size */
		rc = r ? snap_ws_read(f->fd, s->head.file[s->head.nfiles - 1].id,
				 SNAP_MEM_MAX + GIB(4), r, &n, &e)
		       : err_set(&e, ENOMEM, "working set");
		free(r);
	}
	if (f->kind == F_LAYER)
		rc = cow_layer_check(f->fd, f->bitmap_fd, false, layer_says, f, &e);
	if ((f->kind == F_LAYER || f->kind == F_INDEX) && rc == 0 && !f->bad)
		rc = check_digests(b, f, &e);
	if (rc < 0)
		file_bad(f, &e);
}

/* The state names its memory files: they must be the ones that are there, in their order. */
static void check_state(struct job *j, struct file *f, struct snap *s)
{
	_cleanup_free_ void *p = NULL;
	struct err e = {0};
	size_t n = 0;
	unsigned int k = 0;
	int rc = snap_read_file(f->fd, &p, &n, &e);

	f->bytes = n;
	if (rc == 0)
		rc = snap_parse(s, p, n, &e);
	for (unsigned int i = 0; i < j->n && rc == 0; i++) {
		struct snap_mem_head h;

		if (j->f[i].kind != F_MEM)
			continue;
		rc = k < s->head.nfiles
			     ? snap_mem_check(j->f[i].fd, &s->head.file[k], &h, &e)
			     : err_plain(&e, EBADMSG, "the state refers to %u memory files",
				       s->head.nfiles);
		k++;
	}
	if (rc == 0 && k != s->head.nfiles)
		rc = err_plain(&e, EBADMSG, "the state refers to %u memory files, %u are there",
			s->head.nfiles, k);
	if (rc < 0)
		file_bad(f, &e);
	s->nsecs = 0; /* its sections pointed into p */
}

static void run(struct job *j)
{
	struct snap *s;

	if (j->other) {
		j->other->work(j->other);
		return;
	}
	s = calloc(1, sizeof(*s));
	for (unsigned int i = 0; i < j->n; i++) {
		struct file *f = &j->f[i];

		if (f->fd < 0 || (f->kind == F_LAYER && f->bitmap_fd < 0) || !s) {
			f->bad = true;
			snprintf(f->text, sizeof(f->text), "%s",
				s ? "the file is missing" : "no memory");
		} else if (f->kind == F_STATE) {
			check_state(j, f, s);
		} else {
			check_file(j->b, f, s);
		}
	}
	free(s);
}

static void *thread_main(void *arg)
{
	struct verify *v = arg;
	uint64_t one = 1;

	/* creates come first: only this thread gets the lowest priority */
	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
	pthread_mutex_lock(&v->lock);
	for (;;) {
		struct job *j = v->todo;

		if (!j) {
			pthread_cond_wait(&v->work, &v->lock);
			continue;
		}
		v->todo = j->next;
		v->running = j;
		pthread_mutex_unlock(&v->lock);
		run(j);
		pthread_mutex_lock(&v->lock);
		v->running = NULL;
		j->next = v->done;
		v->done = j;
		(void)!write(v->wake_fd, &one, sizeof(one));
	}
	return NULL;
}

/* ---- in the loop */

static void job_free(struct job *j)
{
	for (unsigned int i = 0; i < j->n; i++) {
		close_fd(&j->f[i].fd);
		close_fd(&j->f[i].bitmap_fd);
	}
	free(j);
}

static void mark_good(struct daemon *d, const char *id)
{
	_cleanup_close_ int mem = blob_open(d->blobs, id, "mem", false), fd = -1;

	if (mem < 0)
		return; /* it was removed meanwhile */
	fd = blob_make(d->blobs, id, "ok");
	if (fd == -EEXIST)
		fd = blob_open(d->blobs, id, "ok", true);
	if (fd >= 0)
		(void)!pwrite(fd, d->host_boot_id, strlen(d->host_boot_id), 0);
}

static bool is_good(struct daemon *d, const char *id)
{
	_cleanup_close_ int mem = -1, ok = -1;
	struct statx sx;
	char boot[sizeof(d->host_boot_id)] = "";
	ssize_t n;

	/* written once and sealed: no disk can have changed it */
	if (blob_in_ram(id))
		return true;
	ok = blob_open(d->blobs, id, "ok", false);
	n = ok < 0 ? -1 : pread(ok, boot, sizeof(boot) - 1, 0);
	if (n > 0 && !strcmp(boot, d->host_boot_id))
		return true;
	mem = blob_open(d->blobs, id, "mem", false);
	return mem >= 0 && statx(mem, "", AT_EMPTY_PATH, STATX_TYPE, &sx) == 0 &&
	       sx.stx_attributes & STATX_ATTR_VERITY;
}

static void damage_found(struct verify *v, const struct file *f)
{
	struct damaged *x = calloc(1, sizeof(*x));

	log_error("memory file %s: %s", f->id, f->text);
	if (!x)
		return;
	snprintf(x->id, sizeof(x->id), "%s", f->id);
	snprintf(x->text, sizeof(x->text), "%s", f->text);
	x->next = v->damaged;
	v->damaged = x;
	/* sandboxes that were restored from it may have read the damage: their events say so, and
	 * checkpoints that have the file are not used again */
	v->in_use(v->d, f->id, f->text);
	checkpoints_damaged(v->d, f->id, f->text);
}

static void answer(struct job *j)
{
	cJSON *o = cJSON_CreateObject(), *list, *i;
	bool ok = true;

	for (unsigned int k = 0; k < j->n; k++)
		ok &= !j->f[k].bad;
	cJSON_AddBoolToObject(o, "ok", ok);
	list = cJSON_AddArrayToObject(o, "files");
	for (unsigned int k = 0; k < j->n; k++) {
		i = cJSON_CreateObject();
		cJSON_AddStringToObject(i, "id", j->f[k].id);
		cJSON_AddStringToObject(i, "kind", kind_names[j->f[k].kind]);
		cJSON_AddNumberToObject(i, "bytes", (double)j->f[k].bytes);
		cJSON_AddBoolToObject(i, "ok", !j->f[k].bad);
		if (j->f[k].bad)
			cJSON_AddStringToObject(i, "error", j->f[k].text);
		cJSON_AddItemToArray(list, i);
	}
	http_reply_json(j->r, 200, o);
}

static void done_event(void *arg, uint32_t events)
{
	struct verify *v = arg;
	struct job *list, *j;
	uint64_t n;

	(void)!read(v->wake_fd, &n, sizeof(n));
	pthread_mutex_lock(&v->lock);
	list = v->done;
	v->done = NULL;
	pthread_mutex_unlock(&v->lock);
	while ((j = list)) {
		list = j->next;
		v->queued -= j->background;
		v->asked -= j->asked;
		for (unsigned int i = 0; i < j->n; i++) {
			if (j->f[i].kind != F_MEM)
				continue;
			if (j->f[i].bad)
				damage_found(v, &j->f[i]);
			else
				mark_good(v->d, j->f[i].id);
		}
		if (j->other)
			j->other->done(j->other);
		if (j->r)
			answer(j);
		job_free(j);
	}
}

static void submit(struct verify *v, struct job *j)
{
	struct job **at;

	if (!v->started) {
		v->started = pthread_create(&v->thread, NULL, thread_main, v) == 0;
		if (!v->started)
			log_error("cannot start the thread that verifies files");
	}
	pthread_mutex_lock(&v->lock);
	for (at = &v->todo; *at; at = &(*at)->next)
		;
	*at = j;
	pthread_cond_signal(&v->work);
	pthread_mutex_unlock(&v->lock);
}

static void add(
	struct daemon *d, struct job *j, enum file_kind kind, const char *id, const char *name)
{
	struct file *f = &j->f[j->n];

	j->b = d->blobs;
	if (!*id || j->n == FILES_MAX)
		return;
	f->kind = kind;
	str_copy(f->id, sizeof(f->id), id);
	f->fd = blob_open(d->blobs, id, name, false);
	f->bitmap_fd = kind == F_LAYER ? blob_open(d->blobs, id, "bitmap", false) : -1;
	j->n++;
}

static bool is_queued(struct verify *v, const char *id)
{
	bool found = false;

	pthread_mutex_lock(&v->lock);
	for (const struct job *j = v->running ? v->running : v->todo; j && !found;
		j = j == v->running ? v->todo : j->next)
		for (unsigned int i = 0; i < j->n; i++)
			found |= j->f[i].kind == F_MEM && !strcmp(j->f[i].id, id);
	pthread_mutex_unlock(&v->lock);
	return found;
}

bool verify_known(struct daemon *d, const struct memory *m)
{
	for (int i = 0; i < m->nmem; i++)
		if (!is_good(d, m->mem[i]))
			return false;
	return true;
}

const char *verify_damage(struct daemon *d, const struct memory *m)
{
	for (const struct damaged *x = d->verify->damaged; x; x = x->next)
		if (memory_has(m, x->id))
			return x->text;
	return NULL;
}

void verify_restored(struct daemon *d, const struct memory *m)
{
	struct job *j;

	for (int i = 0; i < m->nmem && d->verify->queued < QUEUE_MAX; i++) {
		if (is_good(d, m->mem[i]) || is_queued(d->verify, m->mem[i]))
			continue;
		j = calloc(1, sizeof(*j));
		if (!j)
			return;
		add(d, j, F_MEM, m->mem[i], "mem");
		d->verify->queued++;
		j->background = true;
		submit(d->verify, j);
	}
}

void verify_background(struct daemon *d, struct io_job *other)
{
	struct job *j = calloc(1, sizeof(*j));

	/* no memory: the job ends without having run */
	if (!j) {
		other->done(other);
		return;
	}
	j->other = other;
	submit(d->verify, j);
}

static void asker_gone(struct http_req *r)
{
	struct job *j = r->user;

	/* the thread does not use j->r */
	j->r = NULL;
	http_abort(r);
}

void verify_point(struct http_req *r, const struct disk *disk, const struct memory *m)
{
	struct daemon *d = r->app;
	struct job *j = calloc(1, sizeof(*j));

	if (!j) {
		http_error(r, 500, "SANDBOX::INTERNAL_ERROR", "out of memory");
		return;
	}
	/* each holds files open until its turn, also when its client has left */
	if (d->verify->asked >= ASKED_MAX) {
		free(j);
		http_add_header(r, "Retry-After", "5");
		http_error(r, 429, "SANDBOX::TOO_MANY_REQUESTS",
			"%u verifications are in progress or wait. Try again later.", ASKED_MAX);
		return;
	}
	j->asked = true;
	d->verify->asked++;
	j->r = r;
	add(d, j, F_STATE, m->state, "state");
	for (int i = 0; i < m->nmem; i++)
		add(d, j, F_MEM, m->mem[i], "mem");
	add(d, j, F_WS, m->ws, "ws");
	for (int i = 0; i < disk->nfrozen; i++)
		add(d, j, F_LAYER, disk->frozen[i], "data");
	add(d, j, F_INDEX, disk->index, "index");
	r->user = j;
	http_on_gone(r, asker_gone);
	submit(d->verify, j);
}

struct verify *verify_create(struct daemon *d, verify_damaged_fn in_use)
{
	struct verify *v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->d = d;
	v->in_use = in_use;
	pthread_mutex_init(&v->lock, NULL);
	pthread_cond_init(&v->work, NULL);
	v->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	v->wake_w = v->wake_fd < 0 ? NULL : loop_watch(d->loop, v->wake_fd, EPOLLIN, done_event, v);
	if (v->wake_w)
		return v;
	close_fd(&v->wake_fd);
	free(v);
	return NULL;
}
