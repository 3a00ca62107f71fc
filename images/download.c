/* SPDX-License-Identifier: Apache-2.0
 *
 * download.c: blobs of a pull, three at a time, each resumed where it broke off. Runs in a pull job. A blob's bytes are hashed as they come;
 * more than its descriptor promised is never written.
 */
#include "images/pull_int.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define WORKERS	 3
#define ATTEMPTS 5

struct download {
	struct source *s;
	const struct descriptor **d;
	uint32_t n;
	uint64_t total;
	_Atomic uint32_t next;
	_Atomic uint64_t done;
	_Atomic bool failed;
	pthread_mutex_t lock; /* err, the list of blobs */
	struct err err;
};

struct one {
	struct download *dl;
	const struct descriptor *d;
	struct stagefile f;
	struct err *e;
	uint64_t from; /* what was asked for */
};

static int on_start(void *arg, long status)
{
	struct one *o = arg;

	/* a registry that ignores the range begins again */
	if (o->from && status != 206) {
		atomic_fetch_sub(&o->dl->done, o->f.size);
		stagefile_abort(&o->f);
		return stagefile_begin(&o->f, o->dl->s->p->job->stage, o->d->size, o->e);
	}
	return 0;
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
	pthread_mutex_lock(&dl->s->lock);
	r = job_progress(dl->s->p->job, JOB_PH_FETCH, done, dl->total);
	pthread_mutex_unlock(&dl->s->lock);
	return r;
}

static bool worth_retrying(const struct err *e)
{
	return e->code == EIO || e->code == ETIMEDOUT;
}

static int fetch_blob(struct download *dl, struct web *h, const struct descriptor *d, struct err *e)
{
	struct one o = {.dl = dl, .d = d, .e = e};
	char path[32 + DIGEST_STR], text[DIGEST_STR];
	struct blob b;
	int r = stagefile_begin(&o.f, dl->s->p->job->stage, d->size, e);

	snprintf(path, sizeof(path), "blobs/%s", digest_str(&d->digest, text));
	for (int k = 0; r == 0 && o.f.size < d->size; k++) {
		struct web_request q = {.start = on_start, .body = on_data, .arg = &o, .from = o.f.size};
		struct web_reply reply;

		*e = (struct err){0};
		o.from = o.f.size;
		r = source_get(dl->s, h, path, NULL, &q, &reply, e);
		if (r == 0 && o.f.size < d->size)
			r = err_plain(e, EIO, "%.19s: only %llu of %llu bytes came", text, (unsigned long long)o.f.size, (unsigned long long)d->size);
		if (r < 0 && k + 1 < ATTEMPTS && worth_retrying(e)) {
			/* between attempts, off any path that is measured: a registry in trouble gets time */
			poll(NULL, 0, 200 << k);
			r = 0;
		} else if (r == 0) {
			break;
		}
	}
	if (r == 0)
		r = stagefile_end(&o.f, &d->digest, &b, e);
	stagefile_abort(&o.f);
	if (r < 0)
		return r;
	pthread_mutex_lock(&dl->lock);
	r = blob_list_add(&dl->s->p->blobs, &b);
	pthread_mutex_unlock(&dl->lock);
	return r < 0 ? err_set(e, -r, "blob") : 0;
}

static void *work(void *arg)
{
	struct download *dl = arg;
	struct err e = {0};
	struct web *h = web_create(&e);
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

/* Asks the store for each blob first; what is missing goes to the list. */
static int find_missing(struct download *dl, const struct oci_manifest *m, struct err *e)
{
	for (uint32_t i = 0; i <= m->n; i++) {
		const struct descriptor *d = i < m->n ? &m->layers[i] : &m->config;
		uint64_t max = i < m->n ? dl->s->p->lim.max_tar_bytes : IMAGE_MAX_CONFIG;
		char text[DIGEST_STR];
		bool seen = false;
		int r;

		if (d->size > max)
			return err_plain(e, EFBIG, "blob %.19s of %llu bytes", digest_str(&d->digest, text), (unsigned long long)d->size);
		for (uint32_t k = 0; k < dl->n; k++)
			seen |= digest_eq(&dl->d[k]->digest, &d->digest);
		if (seen)
			continue;
		r = job_have(dl->s->p->job, &d->digest, d->size, e);
		if (r < 0)
			return r;
		if (r)
			continue;
		dl->d[dl->n++] = d;
		dl->total += d->size;
	}
	if (dl->total > dl->s->p->lim.max_bytes)
		return err_plain(e, EFBIG, "image of %llu bytes", (unsigned long long)dl->total);
	return 0;
}

int pull_blobs(struct source *s, const struct oci_manifest *m, struct err *e)
{
	struct download dl = {.s = s, .lock = PTHREAD_MUTEX_INITIALIZER};
	pthread_t t[WORKERS];
	int n = 0, r;

	dl.d = calloc(m->n + 1u, sizeof(*dl.d));
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
