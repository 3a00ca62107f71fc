/* SPDX-License-Identifier: Apache-2.0
 *
 * jobs.c: the threads. They start when there is work and end after a second without any. So an idle
 * agent, and the snapshot that it is in, has one thread and a dense heap.
 *
 * A request with another uid switches the thread's file-system ids. On Linux each thread has its
 * own, and a switch drops the capabilities over files. The system calls are raw, because libc's
 * would change every thread.
 */
#include "agent/jobs.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>

#include "agent/conn.h"
#include "agent/env.h"
#include "agent/exec.h"
#include "agent/users.h"

#define POOL_MAX 8u
#define BULK_MAX 64u
#define STACK_BYTES                                                                                \
	MIB(1) /* of which a job touches a few pages; a walk goes as deep as a path is long */
#define IDLE_S    1
#define AHEAD_MAX 4u /* answers of all jobs that the loop has not taken yet */

struct answer {
	struct answer *next;
	struct job *job; /* with its last answer; NULL: more answers follow */
	uint64_t conn;
	uint32_t id;
	struct buf out;
};

struct jobs {
	struct agent *a;
	pthread_mutex_t lock;
	pthread_cond_t work, room, quiet;
	struct job *first, **last;
	struct answer *done, **done_last;
	unsigned ahead, threads, idle, bulk;
	bool stop;
	int wake_fd;
	struct watch *wake_w;
};

void job_fail(struct job *j, int code, enum agent_step step, const char *fmt, ...)
{
	va_list ap;

	if (j->code)
		return;
	j->code = code < 0 ? -code : code;
	j->step = step;
	va_start(ap, fmt);
	vsnprintf(j->text, sizeof(j->text), fmt, ap);
	va_end(ap);
}

void job_free(struct job *j)
{
	if (!j)
		return;
	buf_fini(&j->in);
	buf_fini(&j->out);
	env_unref(j->env);
	close_fd(&j->fd);
	close_fd(&j->ns_fd);
	close_fd(&j->root_fd);
	free(j);
}

struct job *job_create(struct agent *a, struct conn *c, uint32_t id, uint16_t type,
	const struct cur *body, void (*run)(struct job *j))
{
	struct job *j = calloc(1, sizeof(*j));

	if (j) {
		*j = (struct job){.a = a,
			.conn = conn_number(c),
			.id = id,
			.type = type,
			.uid = AGENT_NO_ID,
			.gid = AGENT_NO_ID,
			.run = run,
			.fd = -1,
			.ns_fd = -1,
			.root_fd = -1};
		buf_init(&j->in, AGENT_FRAME_MAX);
		buf_init(&j->out, AGENT_FRAME_MAX);
		buf_put(&j->in, body->p, cur_left(body));
		j->body = cur_of(j->in.p, j->in.len);
	}
	if (!j || j->in.bad) {
		job_free(j);
		conn_error(c, id, ENOMEM, AGENT_STEP_NONE, "no memory");
		return NULL;
	}
	return j;
}

struct job *job_own(struct agent *a, void (*run)(struct job *j))
{
	struct job *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	*j = (struct job){.a = a,
		.uid = AGENT_NO_ID,
		.gid = AGENT_NO_ID,
		.run = run,
		.no_answer = true,
		.fd = -1,
		.ns_fd = -1,
		.root_fd = -1};
	buf_init(&j->in, AGENT_FRAME_MAX);
	buf_init(&j->out, AGENT_FRAME_MAX);
	return j;
}

static void push_answer(struct jobs *js, struct answer *w)
{
	uint64_t one = 1;

	w->next = NULL;
	*js->done_last = w;
	js->done_last = &w->next;
	(void)!write(js->wake_fd, &one, sizeof(one));
}

void job_more(struct job *j)
{
	struct jobs *js = j->a->jobs;
	struct answer *w = calloc(1, sizeof(*w));

	if (!w) {
		job_fail(j, ENOMEM, AGENT_STEP_NONE, "no memory");
		return;
	}
	*w = (struct answer){.conn = j->conn, .id = j->id, .out = j->out};
	buf_init(&j->out, AGENT_FRAME_MAX);
	pthread_mutex_lock(&js->lock);
	while (js->ahead >= AHEAD_MAX && !js->stop)
		pthread_cond_wait(&js->room, &js->lock);
	js->ahead++;
	push_answer(js, w);
	pthread_mutex_unlock(&js->lock);
}

static bool set_ids(struct job *j)
{
	struct userdb db;
	struct user u;

	if (j->uid == AGENT_NO_ID)
		return true;
	userdb_load(&db);
	user_by_id(&db, j->uid, j->gid, &u);
	userdb_free(&db);
	/* setfsgid and setfsuid do not report a failure: ask again below */
	if (syscall(SYS_setgroups, u.ngroups, u.groups) < 0)
		return u.uid == geteuid();
	syscall(SYS_setfsgid, u.gid);
	syscall(SYS_setfsuid, u.uid);
	return (uid_t)syscall(SYS_setfsuid, -1) == u.uid &&
	       (gid_t)syscall(SYS_setfsgid, -1) == u.gid;
}

static void reset_ids(struct job *j)
{
	if (j->uid == AGENT_NO_ID)
		return;
	syscall(SYS_setfsuid, geteuid());
	syscall(SYS_setfsgid, getegid());
	syscall(SYS_setgroups, 0, NULL);
}

/* Gives the thread, which ends with this job, the root and the mounts of the session. A path then
 * means what the session's programs see, links included. */
static bool enter_view(struct job *j)
{
	if (j->ns_fd < 0)
		return true;
	ASSERT(j->own_thread);
	return unshare(CLONE_FS) == 0 && setns(j->ns_fd, CLONE_NEWNS) == 0 &&
	       fchdir(j->root_fd) == 0 && chroot(".") == 0;
}

static void run_job(struct jobs *js, struct job *j)
{
	struct answer *w = calloc(1, sizeof(*w));

	if (!enter_view(j))
		job_fail(j, errno, AGENT_STEP_NONE, "cannot enter the session");
	else if (set_ids(j))
		j->run(j);
	else
		job_fail(j, EPERM, AGENT_STEP_USER, "cannot act as user %u", j->uid);
	reset_ids(j);
	/* without this much memory the agent is lost anyway, and a job that never ends would hang
	 * its caller */
	ASSERT(w);
	w->job = j;
	pthread_mutex_lock(&js->lock);
	push_answer(js, w);
	pthread_mutex_unlock(&js->lock);
}

static void *bulk_thread(void *arg)
{
	struct job *j = arg;
	struct jobs *js = j->a->jobs;

	run_job(js, j);
	pthread_mutex_lock(&js->lock);
	js->bulk--;
	pthread_cond_broadcast(&js->quiet);
	pthread_mutex_unlock(&js->lock);
	return NULL;
}

/* The next job. NULL: the thread ends. */
static struct job *next_job(struct jobs *js)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until); /* the wall clock is set after a restore */
	until.tv_sec += IDLE_S;
	js->idle++;
	while (!js->first && !js->stop)
		if (pthread_cond_timedwait(&js->work, &js->lock, &until) == ETIMEDOUT)
			break;
	js->idle--;
	if (!js->first)
		return NULL;
	{
		struct job *j = js->first;

		js->first = j->next;
		if (!js->first)
			js->last = &js->first;
		return j;
	}
}

static void *pool_thread(void *arg)
{
	struct jobs *js = arg;
	struct job *j;

	pthread_mutex_lock(&js->lock);
	while ((j = next_job(js))) {
		pthread_mutex_unlock(&js->lock);
		run_job(js, j);
		pthread_mutex_lock(&js->lock);
	}
	js->threads--;
	pthread_cond_broadcast(&js->quiet);
	pthread_mutex_unlock(&js->lock);
	return NULL;
}

static int make_thread(void *(*fn)(void *), void *arg)
{
	pthread_attr_t at;
	pthread_t t;
	int rc;

	pthread_attr_init(&at);
	pthread_attr_setstacksize(&at, STACK_BYTES);
	pthread_attr_setdetachstate(&at, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&t, &at, fn, arg);
	pthread_attr_destroy(&at);
	return -rc;
}

int job_submit(struct job *j)
{
	struct jobs *js = j->a->jobs;
	int rc = 0;

	j->a->n.jobs_total++;
	pthread_mutex_lock(&js->lock);
	if (j->own_thread) {
		/* One place is kept for jobs without a socket, such as AGENT_PREPARE: otherwise
		 * transfers that nobody reads would make every pause fail. */
		if (js->bulk >= BULK_MAX + (j->fd < 0) || make_thread(bulk_thread, j) < 0)
			rc = -EAGAIN;
		else
			js->bulk++;
	} else {
		if (!js->idle && js->threads < POOL_MAX) {
			if (make_thread(pool_thread, js) == 0)
				js->threads++;
			else if (!js->threads)
				rc = -EAGAIN;
		}
		if (rc == 0) {
			j->next = NULL;
			*js->last = j;
			js->last = &j->next;
			pthread_cond_signal(&js->work);
		}
	}
	pthread_mutex_unlock(&js->lock);
	return rc;
}

static void job_finish(struct agent *a, struct answer *w)
{
	struct job *j = w->job;
	struct conn *c = conn_find(a, j ? j->conn : w->conn);

	if (!j) {
		if (c)
			conn_ok_more(c, w->id, &w->out);
		buf_fini(&w->out);
		return;
	}
	if (c && j->code)
		conn_error(c, j->id, j->code, j->step, "%s", j->text);
	else if (c && !j->no_answer)
		conn_ok(c, j->id, &j->out);
	if (j->done)
		j->done(a, j);
	job_free(j);
}

static void jobs_event(void *arg, uint32_t events)
{
	struct jobs *js = arg;
	struct answer *list;
	uint64_t n;

	(void)!read(js->wake_fd, &n, sizeof(n));
	pthread_mutex_lock(&js->lock);
	list = js->done;
	js->done = NULL;
	js->done_last = &js->done;
	js->ahead = 0;
	pthread_cond_broadcast(&js->room);
	pthread_mutex_unlock(&js->lock);
	while (list) {
		struct answer *w = list;

		list = w->next;
		job_finish(js->a, w);
		free(w);
	}
}

size_t jobs_running(const struct agent *a)
{
	size_t n;

	pthread_mutex_lock(&a->jobs->lock);
	n = a->jobs->threads - a->jobs->idle + a->jobs->bulk;
	/* count the queue, because a thread that was woken still counts as idle; and jobs whose
	 * answer the loop has not taken */
	for (const struct job *j = a->jobs->first; j; j = j->next)
		n++;
	n += a->jobs->done != NULL;
	pthread_mutex_unlock(&a->jobs->lock);
	return n;
}

int jobs_init(struct agent *a)
{
	struct jobs *js = calloc(1, sizeof(*js));
	pthread_condattr_t mono;

	if (!js)
		return -ENOMEM;
	js->a = a;
	js->last = &js->first;
	js->done_last = &js->done;
	pthread_mutex_init(&js->lock, NULL);
	pthread_condattr_init(&mono);
	pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
	pthread_cond_init(&js->work, &mono);
	pthread_cond_init(&js->room, NULL);
	pthread_cond_init(&js->quiet, NULL);
	a->jobs = js;
	js->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	js->wake_w =
		js->wake_fd < 0 ? NULL : loop_watch(a->loop, js->wake_fd, EPOLLIN, jobs_event, js);
	return js->wake_w ? 0 : -errno;
}

void jobs_fini(struct agent *a)
{
	struct jobs *js = a->jobs;

	if (!js)
		return;
	pthread_mutex_lock(&js->lock);
	js->stop = true;
	pthread_cond_broadcast(&js->work);
	pthread_cond_broadcast(&js->room);
	while (js->threads || js->bulk)
		pthread_cond_wait(&js->quiet, &js->lock);
	pthread_mutex_unlock(&js->lock);
	jobs_event(js, 0);
	watch_remove(js->wake_w);
	close_fd(&js->wake_fd);
	free(js);
	a->jobs = NULL;
}
