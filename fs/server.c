/* SPDX-License-Identifier: Apache-2.0
 *
 * server.c: reads requests, calls their handlers, writes replies. The bytes are the guest's, carried by a monitor that may be taken over.
 *
 * Each worker has a buffer for one request and one for one reply, so memory does not grow with what the guest sends. Workers take
 * turns at reading the socket. A guest that does not take its replies blocks the workers, and nobody else.
 */
#include "fs/server.h"

#include "lib/log.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

static const fs_handler handlers[] = {
	[FUSE_LOOKUP] = op_lookup,
	[FUSE_FORGET] = op_forget,
	[FUSE_GETATTR] = op_getattr,
	[FUSE_SETATTR] = op_setattr,
	[FUSE_READLINK] = op_readlink,
	[FUSE_SYMLINK] = op_symlink,
	[FUSE_MKNOD] = op_mknod,
	[FUSE_MKDIR] = op_mkdir,
	[FUSE_UNLINK] = op_unlink,
	[FUSE_RMDIR] = op_rmdir,
	[FUSE_RENAME] = op_rename,
	[FUSE_LINK] = op_link,
	[FUSE_OPEN] = op_open,
	[FUSE_READ] = op_read,
	[FUSE_WRITE] = op_write,
	[FUSE_STATFS] = op_statfs,
	[FUSE_RELEASE] = op_release,
	[FUSE_FSYNC] = op_fsync,
	[FUSE_SETXATTR] = op_setxattr,
	[FUSE_GETXATTR] = op_getxattr,
	[FUSE_LISTXATTR] = op_listxattr,
	[FUSE_REMOVEXATTR] = op_removexattr,
	[FUSE_INIT] = op_init,
	[FUSE_OPENDIR] = op_opendir,
	[FUSE_READDIR] = op_readdir,
	[FUSE_RELEASEDIR] = op_release,
	[FUSE_FSYNCDIR] = op_fsync,
	[FUSE_CREATE] = op_create,
	[FUSE_BATCH_FORGET] = op_batch_forget,
	[FUSE_FALLOCATE] = op_fallocate,
	[FUSE_READDIRPLUS] = op_readdirplus,
	[FUSE_RENAME2] = op_rename2,
	[FUSE_LSEEK] = op_lseek,
	[FUSE_COPY_FILE_RANGE] = op_copy_file_range,
	[FUSE_SYNCFS] = op_syncfs,
	[FUSE_TMPFILE] = op_tmpfile,
};

fs_handler server_handler(uint32_t op)
{
	return op < ARRAY_LEN(handlers) ? handlers[op] : NULL;
}

int call_put(struct fs_call *c, const void *p, size_t n)
{
	if (n > c->out_max - c->out_len)
		return -EINVAL;
	memcpy(c->out + c->out_len, p, n);
	c->out_len += n;
	return 0;
}

/* After these a full claim may have room again. */
static bool may_free(uint32_t op)
{
	static const bool ops[FUSE_TMPFILE + 1] = {
		[FUSE_UNLINK] = true,
		[FUSE_RMDIR] = true,
		[FUSE_RENAME] = true,
		[FUSE_RENAME2] = true,
		[FUSE_SETATTR] = true,
		[FUSE_OPEN] = true,
		[FUSE_CREATE] = true,
		[FUSE_RELEASE] = true,
		[FUSE_FORGET] = true,
		[FUSE_BATCH_FORGET] = true,
		[FUSE_FALLOCATE] = true,
		[FUSE_REMOVEXATTR] = true,
	};

	return op < ARRAY_LEN(ops) && ops[op];
}

struct worker {
	struct server *s;
	uint8_t *in, *out; /* FS_MESSAGE_MAX each */
};

/* One request into w->in. 0 or -errno. */
static int worker_receive(struct worker *w, struct fs_request_hdr *h)
{
	struct server *s = w->s;
	int rc = -EPIPE;

	pthread_mutex_lock(&s->reading);
	if (!s->failed)
		rc = read_full(s->sock, h, sizeof(*h));
	if (rc == 0 && (h->slot >= FS_QUEUE || h->len < FS_MESSAGE_MIN || h->len > FS_MESSAGE_MAX ||
			       h->reserved))
		rc = -EBADMSG;
	if (rc == 0)
		rc = read_full(s->sock, w->in, h->len);
	s->failed = rc < 0;
	pthread_mutex_unlock(&s->reading);
	return rc;
}

static int worker_reply(struct worker *w, uint32_t slot, size_t len)
{
	struct fs_reply_hdr h = {.slot = slot, .len = (uint32_t)len};
	struct iovec iov[2] = {{&h, sizeof(h)}, {w->out, len}};
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
	int rc = 0;

	pthread_mutex_lock(&w->s->writing);
	while (rc == 0 && iov[0].iov_len + iov[1].iov_len > 0) {
		ssize_t n = sendmsg(w->s->sock, &m, MSG_NOSIGNAL);

		if (n < 0 && errno != EINTR)
			rc = -errno;
		for (int i = 0; i < 2 && n > 0; i++) {
			size_t part = MIN((size_t)n, iov[i].iov_len);

			iov[i].iov_base = (uint8_t *)iov[i].iov_base + part;
			iov[i].iov_len -= part;
			n -= (ssize_t)part;
		}
	}
	pthread_mutex_unlock(&w->s->writing);
	return rc;
}

size_t server_answer(
	struct server *s, const void *msg, uint32_t len, uint32_t reply_max, uint8_t *out)
{
	uint32_t room = MIN(reply_max, FS_MESSAGE_MAX);
	struct fuse_out_header *o = (struct fuse_out_header *)(void *)out;
	struct fs_request r;
	int rc = fs_request_parse(&r, msg, len, room);
	const struct fs_shape *shape = fs_shape_of(r.op);
	struct fs_call c = {.s = s, .r = &r, .out = out + sizeof(*o)};

	if (room >= sizeof(*o))
		c.out_max = room - sizeof(*o);
	if (rc == 0)
		rc = server_handler(r.op) ? server_handler(r.op)(&c)
					  : (shape->silent ? 0 : -ENOSYS);
	if (rc == 0 && may_free(r.op))
		usage_freed(&s->usages);
	if (room < sizeof(*o) || (shape && shape->silent))
		return 0;
	ASSERT(c.out_len <= c.out_max);
	if (rc < 0)
		c.out_len = 0;
	*o = (struct fuse_out_header){
		.len = (uint32_t)(sizeof(*o) + c.out_len), .error = rc, .unique = r.unique};
	return o->len;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct fs_request_hdr h;

	while (worker_receive(w, &h) == 0 &&
		worker_reply(w, h.slot, server_answer(w->s, w->in, h.len, h.reply_max, w->out)) ==
			0)
		;
	/* the others wait in read: this ends their wait, too */
	shutdown(w->s->sock, SHUT_RDWR);
	return NULL;
}

static bool worker_init(struct worker *w, struct server *s)
{
	uint8_t *p = mmap(NULL, 2 * ALIGN_UP(FS_MESSAGE_MAX, PAGE_BYTES), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	*w = (struct worker){.s = s};
	if (p == MAP_FAILED)
		return false;
	w->in = p;
	w->out = p + ALIGN_UP(FS_MESSAGE_MAX, PAGE_BYTES);
	return true;
}

static void worker_fini(const struct worker *w)
{
	if (w->in)
		munmap(w->in, 2 * ALIGN_UP(FS_MESSAGE_MAX, PAGE_BYTES));
}

int server_run(struct server *s)
{
	struct worker w[SERVER_THREADS] = {0};
	pthread_t t[SERVER_THREADS];
	unsigned int n = 0;
	int rc = 0;

	pthread_mutex_init(&s->reading, NULL);
	pthread_mutex_init(&s->writing, NULL);
	pthread_mutex_init(&s->syncing, NULL);
	for (; n < SERVER_THREADS && rc == 0; n++) {
		if (!worker_init(&w[n], s) ||
			pthread_create(&t[n], NULL, worker_main, &w[n]) != 0) {
			rc = -ENOMEM;
			shutdown(s->sock, SHUT_RDWR);
			break;
		}
	}
	for (unsigned int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	for (unsigned int i = 0; i < SERVER_THREADS; i++)
		worker_fini(&w[i]);
	server_close(s);
	return rc;
}

void server_close(struct server *s)
{
	if (s->disk_fd1)
		close(s->disk_fd1 - 1);
	s->disk_fd1 = 0;
}
