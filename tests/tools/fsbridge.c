/* SPDX-License-Identifier: Apache-2.0
 *
 * fsbridge: mounts mayfly-fs on this host, through the kernel's own FUSE client, as a guest's kernel would use it by virtio-fs.
 *
 *     fsbridge MAYFLY-FS UID MOUNTPOINT ro|rw[,ids][,max=BYTES]:PATH...
 *
 * Mounts at MOUNTPOINT, where volume N is the folder N, and serves until the mount ends. SIGUSR1 kills mayfly-fs with SIGKILL and starts another on
 * the same table of nodes; requests in flight are answered with EIO. Root only.
 */
#include "lib/base.h"
#include "lib/proto_fs.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define VOLUMES_FIRST 5

struct bridge {
	char **argv; /* of mayfly-fs */
	int volume_fd[FS_VOLUMES_MAX];
	int nvolumes, table, dev;
	pthread_mutex_t lock;
	pthread_cond_t freed;
	int sock; /* under lock */
	pid_t pid;
	uint64_t in_flight[FS_QUEUE]; /* the request's unique number, 0: free */
	bool silent[FS_QUEUE];        /* FUSE wants no answer to it */
};

static _Noreturn void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void start_server(struct bridge *b)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		fail("socketpair");
	b->pid = fork();
	if (b->pid < 0)
		fail("fork");
	if (b->pid == 0) {
		int fds[FS_VOLUMES_MAX + 2] = {pair[1], b->table};

		memcpy(fds + 2, b->volume_fd, sizeof(b->volume_fd));
		/* first out of the way of the numbers they will have */
		for (int i = 0; i < b->nvolumes + 2; i++)
			fds[i] = fcntl(fds[i], F_DUPFD, 100);
		for (int i = 0; i < b->nvolumes + 2; i++)
			dup2(fds[i], 3 + i);
		close_range((unsigned int)(VOLUMES_FIRST + b->nvolumes), ~0u, 0);
		execv(b->argv[0], b->argv);
		fail(b->argv[0]);
	}
	close(pair[1]);
	b->sock = pair[0];
}

/* Sends one request of the kernel's to the server. */
static void forward(struct bridge *b, const uint8_t *p, size_t n)
{
	const struct fuse_in_header *h = (const void *)p;
	struct fs_request_hdr r = {.len = (uint32_t)n, .reply_max = FS_MESSAGE_MAX};
	bool quiet = h->opcode == FUSE_FORGET || h->opcode == FUSE_BATCH_FORGET ||
		     h->opcode == FUSE_INTERRUPT;

	pthread_mutex_lock(&b->lock);
	for (;;) {
		for (r.slot = 0; r.slot < FS_QUEUE && b->in_flight[r.slot]; r.slot++)
			;
		if (r.slot < FS_QUEUE)
			break;
		pthread_cond_wait(&b->freed, &b->lock);
	}
	b->in_flight[r.slot] = h->unique;
	b->silent[r.slot] = quiet;
	if (write_full(b->sock, &r, sizeof(r)) == 0)
		(void)!write_full(b->sock, p, n);
	pthread_mutex_unlock(&b->lock);
}

static void *read_kernel(void *arg)
{
	struct bridge *b = arg;
	uint8_t *p = malloc(FS_MESSAGE_MAX + PAGE_BYTES);
	ssize_t n;

	while ((n = read(b->dev, p, FS_MESSAGE_MAX + PAGE_BYTES)) >= 0 || errno == EINTR ||
		errno == ENOENT || errno == EAGAIN) {
		if (n > 0)
			forward(b, p, (size_t)n);
	}
	free(p);
	exit(errno == ENODEV ? 0 : 1); /* unmounted */
}

static void answer_lost(struct bridge *b)
{
	for (unsigned int i = 0; i < FS_QUEUE; i++) {
		struct fuse_out_header o = {
			.len = sizeof(o), .error = -EIO, .unique = b->in_flight[i]};

		if (b->in_flight[i] && !b->silent[i])
			(void)!write(b->dev, &o, sizeof(o));
		b->in_flight[i] = 0;
	}
	pthread_cond_broadcast(&b->freed);
}

static void *read_server(void *arg)
{
	struct bridge *b = arg;
	uint8_t *p = malloc(FS_MESSAGE_MAX);
	struct fs_reply_hdr h;

	for (;;) {
		if (read_full(b->sock, &h, sizeof(h)) < 0 || h.len > FS_MESSAGE_MAX ||
			read_full(b->sock, p, h.len) < 0) {
			int status = 0;

			pthread_mutex_lock(&b->lock);
			close(b->sock);
			waitpid(b->pid, &status, 0);
			if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
				fail("mayfly-fs ended by itself");
			answer_lost(b);
			start_server(b);
			printf("restarted\n");
			fflush(stdout);
			pthread_mutex_unlock(&b->lock);
			continue;
		}
		if (h.slot >= FS_QUEUE || !b->in_flight[h.slot])
			fail("a reply to nothing");
		if (h.len > 0 && write(b->dev, p, h.len) < 0 && errno != ENOENT && errno != EINTR) {
			const struct fuse_out_header *o = (const void *)p;

			fprintf(stderr,
				"fsbridge: the kernel refused a reply of %u bytes, error %d: %s\n",
				h.len, o->error, strerror(errno));
		}
		pthread_mutex_lock(&b->lock);
		b->in_flight[h.slot] = 0;
		pthread_cond_signal(&b->freed);
		pthread_mutex_unlock(&b->lock);
	}
	return NULL;
}

static void add_volume(struct bridge *b, char *text)
{
	char *path = strchr(text, ':');
	int n = b->nvolumes;

	if (!path || n == FS_VOLUMES_MAX)
		exit(2);
	*path++ = 0;
	b->volume_fd[n] = open(path, O_PATH | O_CLOEXEC);
	if (b->volume_fd[n] < 0)
		fail(path);
	b->argv[3 + 2 * n] = strdup("--volume");
	b->argv[4 + 2 * n] = text;
	b->nvolumes++;
}

int main(int argc, char **argv)
{
	static char *server_argv[2 * FS_VOLUMES_MAX + 4];
	static struct bridge b = {.argv = server_argv,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.freed = PTHREAD_COND_INITIALIZER};
	char options[100];
	pthread_t t[2];
	sigset_t set;
	int sig;

	if (argc < 5)
		return 2;
	b.argv[0] = argv[1];
	b.argv[1] = strdup("--jail");
	b.argv[2] = argv[2];
	for (int i = 4; i < argc; i++)
		add_volume(&b, argv[i]);
	b.table = memfd_create("nodes", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	b.dev = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (b.table < 0 || b.dev < 0)
		fail("/dev/fuse");
	snprintf(options, sizeof(options),
		"fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other", b.dev);
	if (mount("mayfly", argv[3], "fuse", MS_NOSUID | MS_NODEV, options) < 0)
		fail("mount");
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	start_server(&b);
	pthread_create(&t[0], NULL, read_kernel, &b);
	pthread_create(&t[1], NULL, read_server, &b);
	printf("mounted\n");
	fflush(stdout);
	while (sigwait(&set, &sig) == 0) {
		kill(b.pid, SIGKILL);
	}
	return 0;
}
