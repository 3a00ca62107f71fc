/* SPDX-License-Identifier: Apache-2.0
 *
 * image_jobs.c: image jobs through mayfly-priv. mayflyd. Workers may not talk to the helper
 * themselves (the loop owns its socket): they queue a request, wake the loop, and wait for its
 * answer. The last IMAGE_SLOTS slots are for jobs; monitors.c has the others.
 */
#include "api/links/images_int.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "api/links/images.h"
#include "lib/log.h"

#define JOB_MEMORY    (UINT64_C(2) << 30)
#define FREE_RETRY_NS 20000000ull

struct ask {
	struct ask *next;
	struct priv_msg m;
	int fds[8];
	size_t nfds;
	struct spawner *s;
	bool sent, answered;
	int status;
};

struct spawner {
	struct privctl *p;
	int wake_fd;
	uint32_t first; /* slot */
	pthread_mutex_t lock;
	pthread_cond_t answered;
	struct ask *asks;
	struct timer *retry;
	/* A slot is given back when its process has ended and its worker is done with it: else the
	 * worker's kill could meet the next job. The helper refuses while files of the job's user
	 * are in its folder, so it is asked again: they are adopted, or removed with the folder. */
	struct {
		bool used, exited, done, freeing;
	} slot[IMAGE_SLOTS];
	struct image_spawner ops;
};

/* A worker's question, answered by the loop. */
static int ask(struct spawner *s, struct ask *a)
{
	a->s = s;
	pthread_mutex_lock(&s->lock);
	a->next = s->asks;
	s->asks = a;
	images_wake(s->wake_fd);
	while (!a->answered)
		pthread_cond_wait(&s->answered, &s->lock);
	for (struct ask **at = &s->asks; *at; at = &(*at)->next)
		if (*at == a) {
			*at = a->next;
			break;
		}
	pthread_mutex_unlock(&s->lock);
	return a->status;
}

static void on_reply(void *arg, const struct priv_msg *reply, int fd)
{
	struct ask *a = arg;

	close_fd(&fd);
	pthread_mutex_lock(&a->s->lock);
	a->status = reply->status;
	a->answered = true;
	pthread_cond_broadcast(&a->s->answered);
	pthread_mutex_unlock(&a->s->lock);
}

static void on_freed(void *arg, const struct priv_msg *reply, int fd)
{
	struct spawner *s = arg;
	uint32_t i = reply->slot - s->first;

	close_fd(&fd);
	if (i >= IMAGE_SLOTS)
		return;
	pthread_mutex_lock(&s->lock);
	s->slot[i].freeing = false;
	if (reply->status == 0 || reply->status == -ENOENT)
		memset(&s->slot[i], 0, sizeof(s->slot[i]));
	pthread_mutex_unlock(&s->lock);
	if (reply->status == -EBUSY)
		timer_after(s->retry, FREE_RETRY_NS);
	else if (reply->status < 0 && reply->status != -ENOENT)
		log_warn("slot %u cannot be used again: %s", reply->slot, strerror(-reply->status));
}

static void free_slots(void *arg)
{
	struct spawner *s = arg;

	for (uint32_t i = 0; s->retry && i < IMAGE_SLOTS; i++) {
		struct priv_msg m = {.op = PRIV_FREE, .slot = s->first + i};
		bool now;

		pthread_mutex_lock(&s->lock);
		now = s->slot[i].used && s->slot[i].exited && s->slot[i].done &&
		      !s->slot[i].freeing;
		s->slot[i].freeing |= now;
		pthread_mutex_unlock(&s->lock);
		if (now && privctl_call(s->p, &m, NULL, 0, on_freed, s) < 0)
			on_freed(s, &(struct priv_msg){.slot = m.slot, .status = -EBUSY}, -1);
	}
}

void spawner_serve(struct spawner *s)
{
	free_slots(s);
	for (;;) {
		struct ask *a;
		int r;

		pthread_mutex_lock(&s->lock);
		for (a = s->asks; a && a->sent; a = a->next)
			;
		if (a)
			a->sent = true;
		pthread_mutex_unlock(&s->lock);
		if (!a)
			return;
		r = privctl_call(s->p, &a->m, a->fds, a->nfds, on_reply, a);
		if (r < 0)
			on_reply(a, &(struct priv_msg){.status = r}, -1);
	}
}

static int priv_spawn(void *arg, bool net, const int *fds, size_t nfds, struct err *e)
{
	struct spawner *s = arg;
	struct ask a = {.m = {.op = PRIV_SPAWN,
				.kind = net ? PRIV_K_IMAGE_PULL : PRIV_K_IMAGE_BUILD,
				.limits = {.memory_max = JOB_MEMORY}},
		.nfds = nfds};
	uint32_t i;
	int r;

	if (nfds > ARRAY_LEN(a.fds))
		return err_plain(e, EINVAL, "image job: %zu descriptors", nfds);
	memcpy(a.fds, fds, nfds * sizeof(*fds));
	pthread_mutex_lock(&s->lock);
	for (i = 0; i < IMAGE_SLOTS && s->slot[i].used; i++)
		;
	if (i < IMAGE_SLOTS)
		s->slot[i].used = true;
	pthread_mutex_unlock(&s->lock);
	if (i == IMAGE_SLOTS)
		return err_plain(e, EAGAIN, "image job: none of the %u slots is free", IMAGE_SLOTS);
	a.m.slot = a.m.group = s->first + i;
	r = ask(s, &a);
	if (r < 0) {
		pthread_mutex_lock(&s->lock);
		s->slot[i].used = false;
		pthread_mutex_unlock(&s->lock);
		return err_set(e, -r, "starting an image job");
	}
	return (int)a.m.slot;
}

static void priv_end(void *arg, int handle)
{
	struct spawner *s = arg;
	uint32_t i = (uint32_t)handle - s->first;
	struct ask a = {.m = {.op = PRIV_KILL, .slot = (uint32_t)handle}};
	bool exited;

	pthread_mutex_lock(&s->lock);
	exited = s->slot[i].exited;
	pthread_mutex_unlock(&s->lock);
	if (!exited)
		(void)ask(s, &a);
	/* only after the kill: it might else reach another job in the same slot */
	pthread_mutex_lock(&s->lock);
	s->slot[i].done = true;
	pthread_mutex_unlock(&s->lock);
	images_wake(s->wake_fd);
}

#define WRITER_WAITS 1000 /* of 10 ms: a killed job ends only when it has left its system call */

/* The job was killed and may not be dead yet, or has lent its descriptor to somebody. The file is read, checked and named only when
 * nobody can write it any more. */
static int priv_adopt(void *arg, int fd)
{
	struct ask a = {.m = {.op = PRIV_ADOPT}, .fds = {fd}, .nfds = 1};
	int rc = ask(arg, &a);

	for (int i = 0; rc == 0 || rc == -EBUSY; i++) {
		rc = fd_no_writer(fd);
		if (rc != -EBUSY || i == WRITER_WAITS)
			break;
		poll(NULL, 0, 10);
	}
	return rc;
}

void spawner_exited(struct spawner *s, const struct priv_msg *ev)
{
	if (ev->slot < s->first || ev->slot - s->first >= IMAGE_SLOTS)
		return;
	pthread_mutex_lock(&s->lock);
	s->slot[ev->slot - s->first].exited = true;
	pthread_mutex_unlock(&s->lock);
	if (ev->usage.oom_kills)
		log_warn("image job in slot %u: out of its memory limit", ev->slot);
	/* by a timer, in a turn of the loop: this is also called while the daemon starts */
	timer_after(s->retry, 1);
}

/* Jobs of the daemon before this one: nobody listens to them any more. */
static void end_old_jobs(struct spawner *s)
{
	struct priv_msg m = {.op = PRIV_LIST, .slot = s->first}, r = {0};
	int fd = -1;

	while (m.slot < s->first + IMAGE_SLOTS && privctl_wait(s->p, &m, &r, &fd) == 0) {
		close_fd(&fd);
		if (r.slot < s->first || r.slot - s->first >= IMAGE_SLOTS)
			return;
		s->slot[r.slot - s->first].used = s->slot[r.slot - s->first].done = true;
		if (r.pid)
			privctl_call(s->p, &(struct priv_msg){.op = PRIV_KILL, .slot = r.slot},
				NULL, 0, NULL, NULL);
		else
			spawner_exited(s, &(struct priv_msg){.slot = r.slot});
		m.slot = r.slot + 1;
	}
}

struct spawner *spawner_create(
	struct privctl *p, struct loop *loop, int wake_fd, const char *bin_dir, struct err *e)
{
	struct spawner *s = calloc(1, sizeof(*s));
	char path[600];

	if (!s) {
		err_set(e, ENOMEM, "image jobs");
		return NULL;
	}
	s->p = p;
	s->wake_fd = wake_fd;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->answered, NULL);
	if (privctl_is_direct(p)) {
		snprintf(path, sizeof(path), "%s/mayfly-image", bin_dir);
		s->ops = *image_spawner_direct(path);
		return s;
	}
	if (privctl_slots(p) <= IMAGE_SLOTS) {
		err_plain(e, EINVAL, "mayfly-priv has %u slots only", privctl_slots(p));
		free(s);
		return NULL;
	}
	s->first = privctl_slots(p) - IMAGE_SLOTS;
	s->retry = loop_timer(loop, free_slots, s);
	if (!s->retry) {
		err_set(e, ENOMEM, "image jobs");
		free(s);
		return NULL;
	}
	s->ops = (struct image_spawner){
		.spawn = priv_spawn, .end = priv_end, .adopt = priv_adopt, .arg = s};
	end_old_jobs(s);
	return s;
}

const struct image_spawner *spawner_of(struct spawner *s)
{
	return &s->ops;
}
