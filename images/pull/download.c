/* SPDX-License-Identifier: Apache-2.0
 *
 * download.c: blobs of a pull, three at a time, each resumed where it broke off, in this job or one
 * that was killed. Runs in a pull job. A blob's bytes are hashed as they come; more than its
 * descriptor promised is never written.
 */
#include "images/pull/pull_int.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define WORKERS  3
#define ATTEMPTS 5
/* a whole pull may take GRACE times stall_s, and one second more for each FLOOR_BYTES */
#define GRACE       4u
#define FLOOR_BYTES KIB(32)

struct download {
	struct source *s;
	const struct descriptor **d;
	uint32_t n;
	uint64_t total;
	_Atomic uint32_t next;
	_Atomic uint64_t done;
	uint64_t begun_ns;
	_Atomic bool failed;
	pthread_mutex_t lock; /* err, the list of blobs */
	struct err err;
};

/* The download of one blob. */
struct one {
	struct download *dl;
	const struct descriptor *d;
	struct stagefile f;
	struct err *e;
	uint64_t from; /* the offset that was asked for */
	bool old;      /* begins with bytes of an earlier job, which may be wrong */
};

static int begin_anew(struct one *o)
{
	stagefile_abort(&o->f);
	o->old = false;
	return stagefile_resume(&o->f, o->dl->s->p->job->stage, &o->d->digest, o->d->size, o->e);
}

static int on_start(void *arg, long status)
{
	struct one *o = arg;

	/* a registry that ignores the range sends the blob from its start */
	if (o->from && status != 206) {
		atomic_fetch_sub(&o->dl->done, o->f.size);
		return begin_anew(o);
	}
	return 0;
}

/* A registry can send for ever at just over 1 KiB a second, which is no stall. Few pulls may run at a time, so the whole pull has a lowest rate, too. */
static int check_rate(struct download *dl, struct err *e)
{
	uint64_t passed_s = (mono_ns() - dl->begun_ns) / 1000000000u;
	uint64_t allowed_s =
		GRACE * (uint64_t)dl->s->p->lim.stall_s + atomic_load(&dl->done) / FLOOR_BYTES;

	if (passed_s <= allowed_s)
		return 0;
	err_plain(e, ETIME, "%s: less than %llu KiB a second on the whole: the pull is given up",
		dl->s->base.url, (unsigned long long)FLOOR_BYTES >> 10);
	return -ETIME;
}

static int on_data(void *arg, const void *p, size_t n)
{
	struct one *o = arg;
	struct download *dl = o->dl;
	uint64_t done;
	int r = stagefile_write(&o->f, p, n, o->e);

	if (r < 0 || atomic_load(&dl->failed))
		return r < 0 ? r : -ECANCELED;
	done = atomic_fetch_add(&dl->done, n) + n;
	r = check_rate(dl, o->e);
	if (r < 0)
		return r;
	pthread_mutex_lock(&dl->s->lock);
	r = job_progress(dl->s->p->job, JOB_PH_FETCH, done, dl->total);
	pthread_mutex_unlock(&dl->s->lock);
	return r;
}

static bool worth_retrying(const struct err *e)
{
	return e->code == EIO || e->code == ETIMEDOUT;
}

/* Fetches until the file has its full length, or no further attempt can help. */
static int get_rest(struct one *o, struct web *h)
{
	const struct descriptor *d = o->d;
	char path[32 + DIGEST_STR], text[DIGEST_STR];
	int r = 0;

	snprintf(path, sizeof(path), "blobs/%s", digest_str(&d->digest, text));
	for (int k = 0; r == 0 && o->f.size < d->size; k++) {
		struct web_request q = {
			.start = on_start, .body = on_data, .arg = o, .from = o->f.size};
		struct web_reply reply;

		*o->e = (struct err){0};
		o->from = o->f.size;
		r = source_get(o->dl->s, h, path, NULL, &q, &reply, o->e);
		if (r == 0 && o->f.size < d->size)
			r = err_plain(o->e, EIO, "only %llu of %llu bytes came",
				(unsigned long long)o->f.size, (unsigned long long)d->size);
		if (r < 0 && k + 1 < ATTEMPTS && worth_retrying(o->e) &&
			check_rate(o->dl, NULL) == 0) {
			/* longer before each attempt: a registry in trouble gets time */
			poll(NULL, 0, 200 << k);
			r = 0;
		}
	}
	return r;
}

static int fetch_blob(struct download *dl, struct web *h, const struct descriptor *d, struct err *e)
{
	struct one o = {.dl = dl, .d = d, .e = e};
	char text[DIGEST_STR];
	struct blob b;
	int r = stagefile_resume(&o.f, dl->s->p->job->stage, &d->digest, d->size, e);

	o.old = o.f.size > 0;
	atomic_fetch_add(&dl->done, o.f.size);
	if (r == 0)
		r = get_rest(&o, h);
	if (r == 0)
		r = stagefile_end(&o.f, &d->digest, &b, e);
	if (r == -EBADMSG && o.old) {
		/* the bytes of the earlier pull were wrong: fetch all of it again */
		atomic_fetch_sub(&dl->done, o.f.size);
		*e = (struct err){0};
		r = begin_anew(&o);
		if (r == 0)
			r = get_rest(&o, h);
		if (r == 0)
			r = stagefile_end(&o.f, &d->digest, &b, e);
	}
	stagefile_abort(&o.f);
	if (r < 0)
		return err_wrap(e, "blob %.19s", digest_str(&d->digest, text));
	pthread_mutex_lock(&dl->lock);
	r = blob_list_add(&dl->s->p->blobs, &b);
	pthread_mutex_unlock(&dl->lock);
	return r < 0 ? err_set(e, -r, "blob") : 0;
}

static void *work(void *arg)
{
	struct download *dl = arg;
	struct err e = {0};
	struct web *h = web_create(dl->s->p->lim.stall_s, &e);
	uint32_t i;
	int r = h ? 0 : -ENOMEM;

	while (r == 0 && !atomic_load(&dl->failed) && (i = atomic_fetch_add(&dl->next, 1)) < dl->n)
		r = fetch_blob(dl, h, dl->d[i], &e);
	web_destroy(h);
	if (r < 0) {
		pthread_mutex_lock(&dl->lock);
		if (!atomic_exchange(&dl->failed, true))
			dl->err = e;
		pthread_mutex_unlock(&dl->lock);
	}
	return NULL;
}

/* What a killed pull left of a blob becomes the beginning of this one's file; fetch_blob hashes it.
 */
static int take_part(int dir, int from, const struct descriptor *d, struct err *e)
{
	_cleanup_free_ uint8_t *buf = malloc(1 << 18);
	char name[80], hex[DIGEST_HEX];
	_cleanup_close_ int to = -1;
	uint64_t at = 0;
	ssize_t k = 1;
	int r = 0;

	snprintf(name, sizeof(name), STAGE_PART "%s", digest_hex(&d->digest, hex));
	to = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (to < 0 && errno == EEXIST)
		return 0; /* already taken, for the mirror that was asked before */
	if (to < 0 || !buf)
		return err_set(e, buf ? errno : ENOMEM, "the staging folder");
	while (r == 0 && at < d->size &&
		(k = pread(from, buf, MIN((uint64_t)1 << 18, d->size - at), (off_t)at)) > 0) {
		r = write_full(to, buf, (size_t)k);
		at += (uint64_t)k;
	}
	return r < 0 ? err_set(e, -r, "the staging folder") : 0;
}

/* Asks the store for each blob first; what is missing goes to the list. */
static int find_missing(struct download *dl, const struct oci_manifest *m, struct err *e)
{
	for (uint32_t i = 0; i <= m->n; i++) {
		const struct descriptor *d = i < m->n ? &m->layers[i] : &m->config;
		uint64_t max = i < m->n ? dl->s->p->lim.max_tar_bytes : IMAGE_MAX_CONFIG;
		_cleanup_close_ int part = -1;
		char text[DIGEST_STR];
		bool seen = false;
		int r;

		if (d->size > max)
			return err_plain(e, EFBIG, "blob %.19s of %llu bytes: at most %llu",
				digest_str(&d->digest, text), (unsigned long long)d->size,
				(unsigned long long)max);
		for (uint32_t k = 0; k < dl->n; k++)
			seen |= digest_eq(&dl->d[k]->digest, &d->digest);
		if (seen)
			continue;
		r = job_have(dl->s->p->job, &d->digest, d->size, &part, e);
		if (r == 0 && part >= 0)
			r = take_part(dl->s->p->job->stage, part, d, e);
		if (r < 0)
			return r;
		if (r)
			continue;
		dl->d[dl->n++] = d;
		dl->total += d->size;
	}
	if (dl->total > dl->s->p->lim.max_bytes)
		return err_plain(e, EFBIG, "the image has %llu bytes to download: at most %llu",
			(unsigned long long)dl->total, (unsigned long long)dl->s->p->lim.max_bytes);
	return 0;
}

int pull_blobs(struct source *s, const struct oci_manifest *m, struct err *e)
{
	struct download dl = {.s = s, .begun_ns = mono_ns(), .lock = PTHREAD_MUTEX_INITIALIZER};
	pthread_t t[WORKERS];
	int n = 0, r;

	dl.d = calloc(m->n + 1u, sizeof(dl.d[0]));
	if (!dl.d)
		return err_set(e, ENOMEM, "blobs");
	r = find_missing(&dl, m, e);
	if (r == 0) {
		while (n < WORKERS && n < (int)dl.n && pthread_create(&t[n], NULL, work, &dl) == 0)
			n++;
		if (n == 0 && dl.n)
			r = err_set(e, EAGAIN, "downloading");
		for (int i = 0; i < n; i++)
			pthread_join(t[i], NULL);
	}
	free(dl.d);
	if (atomic_load(&dl.failed)) {
		*e = dl.err;
		r = -e->code;
	}
	return r;
}
