/* SPDX-License-Identifier: Apache-2.0
 *
 * image_jobs.c: image jobs through mayfly-priv. mayflyd. Workers may not talk to the helper themselves (the loop owns its socket): they leave
 * a request, wake the loop, and wait for its answer. The last IMAGE_SLOTS slots are for jobs; vm.c has the others.
 */
#include "api/image_int.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "api/image.h"
#include "lib/log.h"

#define JOB_MEMORY (UINT64_C(2) << 30)

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
	/* A slot is given back when its process has ended and its worker is done with it: else the worker's kill could meet the next job. */
	struct {
		bool used, exited, done;
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

void spawner_serve(struct spawner *s)
{
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

static void slot_reset(struct spawner *s, uint32_t i)
{
	pthread_mutex_lock(&s->lock);
	memset(&s->slot[i], 0, sizeof(s->slot[i]));
	pthread_mutex_unlock(&s->lock);
}

static int priv_spawn(void *arg, bool net, const int *fds, size_t nfds, struct err *e)
{
	struct spawner *s = arg;
	struct ask a = {.m = {.op = PRIV_SPAWN, .kind = net ? PRIV_K_IMAGE_PULL : PRIV_K_IMAGE_BUILD, .limits = {.memory_max = JOB_MEMORY}}, .nfds = nfds};
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
	a.m.slot = s->first + i;
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

	pthread_mutex_lock(&s->lock);
	s->slot[i].done = true;
	if (s->slot[i].exited)
		a.m.op = PRIV_FREE;
	pthread_mutex_unlock(&s->lock);
	/* after a kill the end comes as an event, and the slot is given back then */
	if (ask(s, &a) == 0 && a.m.op == PRIV_FREE)
		slot_reset(s, i);
}

static int priv_adopt(void *arg, int fd)
{
	struct ask a = {.m = {.op = PRIV_ADOPT}, .fds = {fd}, .nfds = 1};

	return ask(arg, &a);
}

static void on_freed(void *arg, const struct priv_msg *reply, int fd)
{
	struct spawner *s = arg;

	close_fd(&fd);
	if (reply->status < 0 || reply->slot < s->first || reply->slot - s->first >= IMAGE_SLOTS)
		return; /* something of it still lives: the slot stays taken */
	slot_reset(s, reply->slot - s->first);
}

void spawner_exited(struct spawner *s, const struct priv_msg *ev)
{
	struct priv_msg m = {.op = PRIV_FREE, .slot = ev->slot};
	bool done;

	if (ev->slot < s->first || ev->slot - s->first >= IMAGE_SLOTS)
		return;
	pthread_mutex_lock(&s->lock);
	s->slot[ev->slot - s->first].exited = true;
	done = s->slot[ev->slot - s->first].done;
	pthread_mutex_unlock(&s->lock);
	if (ev->usage.oom_kills)
		log_warn("image job in slot %u: out of its memory limit", ev->slot);
	if (done)
		privctl_call(s->p, &m, NULL, 0, on_freed, s);
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
			privctl_call(s->p, &(struct priv_msg){.op = PRIV_KILL, .slot = r.slot}, NULL, 0, NULL, NULL);
		else
			spawner_exited(s, &(struct priv_msg){.slot = r.slot});
		m.slot = r.slot + 1;
	}
}

struct spawner *spawner_create(struct privctl *p, int wake_fd, const char *bin_dir, struct err *e)
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
	s->ops = (struct image_spawner){.spawn = priv_spawn, .end = priv_end, .adopt = priv_adopt, .arg = s};
	end_old_jobs(s);
	return s;
}

const struct image_spawner *spawner_of(struct spawner *s)
{
	return &s->ops;
}
