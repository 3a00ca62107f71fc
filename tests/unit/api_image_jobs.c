/* SPDX-License-Identifier: Apache-2.0
 *
 * api_image_jobs: what the daemon believes of an image job that was killed. The helper's answer to a kill says that the signal was sent: the job may
 * still write. This test is the helper.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/links/images_int.h"
#include "lib/loop.h"

static struct {
	struct loop *loop;
	struct privctl *priv;
	struct spawner *spawner;
	struct watch *wake;
	int wake_fd, helper;
	_Atomic unsigned int adopted; /* the helper was asked for the file */
} R;

static void no_exit(void *arg, const struct priv_msg *ev)
{
	(void)arg;
	(void)ev;
}

/* A helper of 200 slots, none of which has a job of an earlier daemon. */
static void *be_helper(void *arg)
{
	struct priv_msg m;

	(void)arg;
	while (recv(R.helper, &m, sizeof(m), 0) == sizeof(m)) {
		m.nslots = 200;
		m.status = m.op == PRIV_LIST ? -ENOENT : 0;
		if (send(R.helper, &m, sizeof(m), MSG_NOSIGNAL) != sizeof(m))
			break;
		R.adopted += m.op == PRIV_ADOPT;
	}
	return NULL;
}

static void on_wake(void *arg, uint32_t events)
{
	eventfd_t n;

	(void)arg;
	(void)events;
	if (eventfd_read(R.wake_fd, &n) == 0)
		spawner_serve(R.spawner);
}

struct adoption {
	int fd, rc;
	_Atomic bool answered;
};

static void *adopt(void *arg)
{
	const struct image_spawner *sp = spawner_of(R.spawner);
	struct adoption *a = arg;

	a->rc = sp->adopt(sp->arg, a->fd);
	a->answered = true;
	return NULL;
}

static bool until(const _Atomic bool *what, int ms)
{
	for (uint64_t end = mono_ns() + (uint64_t)ms * 1000000; !*what && mono_ns() < end;)
		loop_turn(R.loop, 10);
	return *what;
}

/* The job's file is the daemon's only when nobody can write it any more: not the dying job, and nobody to whom it lent its descriptor. */
static void a_file_is_taken_when_its_job_is_dead(void)
{
	char path[] = "/tmp/image-jobs-XXXXXX";
	int pair[2], writer = mkostemp(path, O_CLOEXEC), other = dup(writer);
	struct adoption a = {.fd = open(path, O_RDONLY | O_CLOEXEC)};
	pthread_t helper, worker;
	struct err e;

	unlink(path);
	REQUIRE(writer >= 0 && other >= 0 && a.fd >= 0);
	REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	R.helper = pair[1];
	R.loop = loop_create();
	R.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	REQUIRE(R.loop && R.wake_fd >= 0);
	REQUIRE(pthread_create(&helper, NULL, be_helper, NULL) == 0);
	R.priv = privctl_create(R.loop, pair[0], "", no_exit, NULL, &e);
	REQUIRE(R.priv);
	R.spawner = spawner_create(R.priv, R.loop, R.wake_fd, "", &e);
	R.wake = loop_watch(R.loop, R.wake_fd, EPOLLIN, on_wake, NULL);
	REQUIRE(R.spawner && R.wake);

	REQUIRE(pthread_create(&worker, NULL, adopt, &a) == 0);
	for (uint64_t end = mono_ns() + 30000000000ull; !R.adopted && mono_ns() < end;)
		loop_turn(R.loop, 10);
	CHECK(R.adopted >= 1);
	/* long enough for many looks */
	CHECK(!until(&a.answered, 200));
	CHECK_INT(pwrite(writer, "late", 4, 0), 4);
	close(writer);
	CHECK(!until(&a.answered, 200));
	close(other);
	CHECK(until(&a.answered, 30000));
	pthread_join(worker, NULL);
	CHECK_INT(a.rc, 0);
	CHECK_INT(R.adopted, 1);

	close(a.fd);
	watch_remove(R.wake);
	shutdown(R.helper, SHUT_RDWR);
	pthread_join(helper, NULL);
}

static const struct test tests[] = {
	{"a_file_is_taken_when_its_job_is_dead", a_file_is_taken_when_its_job_is_dead},
};
TEST_MAIN(tests)
