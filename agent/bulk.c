/* SPDX-License-Identifier: Apache-2.0
 *
 * bulk.c: file contents. Runs in a job's thread, which owns the connection's socket and uses it in
 * blocking mode: the socket's flow control is the only one. When the file was transferred, the
 * socket goes back to the loop for the next request. The host's frames are hostile: while a file is
 * written, a frame that is not AGENT_DATA ends the stream.
 */
#include "agent/bulk.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/files.h"
#include "agent/fsutil.h"

#define HDR        sizeof(struct agent_hdr)
#define SMALL_FILE MIB(1) /* most that is read of a file without a size (/proc) */

struct bulk {
	struct job *j;
	uint8_t *frame;  /* header and payload */
	struct buf rest; /* read before the thread had the socket */
	size_t rest_at;
	bool broken; /* the stream cannot go on */
};

static int bulk_send(struct bulk *k, const void *p, size_t n)
{
	int rc = write_full(k->j->fd, p, n);

	if (rc < 0)
		k->broken = true;
	return rc;
}

static void put_header(uint8_t *p, uint32_t len, uint16_t type, uint32_t id)
{
	struct buf b = {.p = p, .cap = HDR, .max = HDR};

	buf_u32(&b, len);
	buf_u16(&b, type);
	buf_u16(&b, 0);
	buf_u32(&b, id);
}

static int send_frame(struct bulk *k, uint16_t type, const void *p, size_t n)
{
	memmove(k->frame + HDR, p, n);
	put_header(k->frame, (uint32_t)n, type, k->j->id);
	return bulk_send(k, k->frame, HDR + n);
}

/* Sends n bytes that are in k->frame already, behind the room for the header. */
static int send_data(struct bulk *k, size_t n)
{
	put_header(k->frame, (uint32_t)n, AGENT_DATA, k->j->id);
	return bulk_send(k, k->frame, HDR + n);
}

static int take_bytes(struct bulk *k, void *to, size_t n)
{
	size_t had = MIN(n, k->rest.len - k->rest_at);
	int rc;

	memcpy(to, k->rest.p + k->rest_at, had);
	k->rest_at += had;
	rc = had < n ? read_full(k->j->fd, (uint8_t *)to + had, n - had) : 0;
	if (rc < 0)
		k->broken = true;
	return rc;
}

static void send_failure(struct bulk *k)
{
	struct buf b;

	buf_init(&b, 2048);
	frame_error(&b, k->j->id, k->j->code, k->j->step, k->j->text);
	if (!k->broken)
		bulk_send(k, b.p, b.len);
	buf_fini(&b);
}

/* Finds the bytes of `count` lines, beginning with line `from` (1-based). */
static int find_lines(
	struct bulk *k, int fd, uint64_t from, uint64_t count, uint64_t *start, uint64_t *len)
{
	uint64_t line = 1, at = 0, begin = UINT64_MAX;
	uint64_t stop = count > UINT64_MAX - from ? UINT64_MAX : from + count;

	if (from <= 1)
		begin = 0;
	while (line < stop) {
		ssize_t n = pread(fd, k->frame + HDR, AGENT_FRAME_MAX, (off_t)at);
		uint8_t *p = k->frame + HDR, *end = p + n;

		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		for (; p < end && line < stop; p++) {
			p = memchr(p, '\n', (size_t)(end - p));
			if (!p)
				break;
			line++;
			if (line == from)
				begin = at + (uint64_t)(p + 1 - (k->frame + HDR));
		}
		at += p ? (uint64_t)(p - (k->frame + HDR)) : (uint64_t)n;
	}
	*start = MIN(begin, at);
	*len = at - *start;
	return 0;
}

struct range {
	uint64_t off, len, size;
	char *text; /* the content of a file without a size; else NULL */
};

static int find_range(struct bulk *k, int fd, const struct stat *st, uint64_t off, uint64_t len,
	uint32_t flags, struct range *r)
{
	r->size = (uint64_t)st->st_size;
	if (!st->st_size) {
		/* /proc and the like: read all of it now */
		size_t n = 0;
		ssize_t got;

		r->text = malloc(SMALL_FILE);
		if (!r->text)
			return -ENOMEM;
		while (n < SMALL_FILE && (got = read(fd, r->text + n, SMALL_FILE - n)) != 0) {
			if (got < 0)
				return -errno;
			n += (size_t)got;
		}
		r->size = n;
		if (flags & AGENT_RD_LINES)
			off = 0, len = UINT64_MAX;
	} else if (flags & AGENT_RD_LINES) {
		return find_lines(k, fd, off ? off : 1, len, &r->off, &r->len);
	}
	r->off = MIN(off, r->size);
	r->len = MIN(len, r->size - r->off);
	return 0;
}

static void send_range(struct bulk *k, int fd, const struct range *r)
{
	uint64_t at = r->off, left = r->len;

	posix_fadvise(fd, (off_t)at, (off_t)left, POSIX_FADV_SEQUENTIAL);
	while (left > 0 && !k->broken) {
		size_t n = MIN(left, AGENT_FRAME_MAX);
		int rc = 0;

		if (r->text)
			memcpy(k->frame + HDR, r->text + at, n);
		else
			rc = pread_full(fd, k->frame + HDR, n, at);
		if (rc < 0) {
			/* the file became shorter, or the disk failed */
			job_fail(k->j, rc == -EPIPE ? EIO : rc, AGENT_STEP_PATH,
				"the file cannot be read at offset %llu", (unsigned long long)at);
			send_failure(k);
			return;
		}
		send_data(k, n);
		at += n;
		left -= n;
	}
	if (!k->broken)
		send_data(k, 0);
}

static void read_file(struct bulk *k)
{
	struct job *j = k->j;
	_cleanup_close_ int fd = -1;
	char path[AGENT_PATH_MAX];
	struct range r = {0};
	struct userdb db;
	struct stat st;
	uint64_t off, len;
	uint32_t flags;
	int rc;

	if (!fs_path(j, path))
		return;
	off = cur_u64(&j->body);
	len = cur_u64(&j->body);
	flags = cur_u32(&j->body);
	if (!cur_done(&j->body)) {
		job_fail(j, EPROTO, AGENT_STEP_NONE, "the read request is not valid");
		return;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, &st) < 0) {
		fs_fail(j, errno, path);
		return;
	}
	if (!S_ISREG(st.st_mode)) {
		fs_fail(j, S_ISDIR(st.st_mode) ? EISDIR : EINVAL, path);
		return;
	}
	rc = find_range(k, fd, &st, off, len, flags, &r);
	if (rc < 0) {
		fs_fail(j, rc, path);
		free(r.text);
		return;
	}
	userdb_load(&db);
	buf_u64(&j->out, r.size);
	buf_u64(&j->out, r.off);
	buf_u64(&j->out, r.len);
	fs_put_item(&j->out, &db, path, &st, AT_FDCWD, path);
	userdb_free(&db);
	if (send_frame(k, AGENT_OK, j->out.p, j->out.len) == 0)
		send_range(k, fd, &r);
	free(r.text);
}

/* Writes the host's data to fd. After a write error the rest of the data is read and dropped: the
 * error is answered after the data, and then the connection ends. */
static int take_data(struct bulk *k, int fd, uint64_t *bytes)
{
	struct agent_hdr h;
	uint8_t head[HDR];
	int rc = 0;

	*bytes = 0;
	for (;;) {
		if (take_bytes(k, head, HDR) < 0)
			return -ECONNRESET;
		if (frame_header(head, &h) < 0 || h.type != AGENT_DATA) {
			k->broken = true;
			return -EPROTO;
		}
		if (h.len == 0)
			return rc;
		if (take_bytes(k, k->frame, h.len) < 0)
			return -ECONNRESET;
		if (rc == 0)
			rc = write_full(fd, k->frame, h.len);
		*bytes += h.len;
	}
}

static int open_target(const char *path, uint32_t flags, mode_t mode, char *real, char *tmp)
{
	struct stat st;
	int fd;

	if (flags & AGENT_WR_ATOMIC)
		return fs_temp(path, real, tmp, mode);
	/* do not wait for a FIFO's reader; below, refuse a device before anything is written */
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode);
	if (fd < 0)
		return errno == ENXIO ? -EINVAL : -errno;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || ftruncate(fd, 0) < 0) {
		int rc = S_ISREG(st.st_mode) ? -errno : -EINVAL;

		close(fd);
		return rc;
	}
	return fd;
}

static void write_file(struct bulk *k)
{
	char path[AGENT_PATH_MAX], real[AGENT_PATH_MAX], tmp[AGENT_PATH_MAX] = "", owner[64],
							 group[64];
	struct job *j = k->j;
	_cleanup_close_ int fd = -1;
	struct fs_owner o;
	uint64_t bytes = 0;
	uint32_t mode, flags;
	int rc = 0;

	if (!fs_path(j, path))
		return;
	cur_str(&j->body, owner, sizeof(owner));
	cur_str(&j->body, group, sizeof(group));
	mode = cur_u32(&j->body);
	flags = cur_u32(&j->body);
	if (!cur_done(&j->body)) {
		job_fail(j, EPROTO, AGENT_STEP_NONE, "the write request is not valid");
		return;
	}
	if (!fs_owner(j, owner, group, mode, &o))
		return;
	if (flags & AGENT_WR_PARENTS)
		rc = fs_make_parents(path, &o);
	if (rc == 0) {
		fd = open_target(
			path, flags, mode == AGENT_NO_MODE ? 0644 : mode & 07777, real, tmp);
		rc = fd < 0 ? fd : fs_apply_owner(fd, &o);
	}
	if (rc == 0 && send_frame(k, AGENT_OK, "", 0) == 0)
		rc = take_data(k, fd, &bytes);
	if (rc == 0 && k->broken)
		rc = -ECONNRESET;
	/* before the answer: the host may run the file at once, and a file that is open for writing is busy */
	if (rc == 0 && close(take_fd(&fd)) < 0)
		rc = -errno;
	if (rc == 0 && tmp[0])
		rc = fs_commit(tmp, real);
	else if (rc < 0 && tmp[0])
		unlink(tmp);
	if (rc < 0) {
		fs_fail(j, rc, path);
		return;
	}
	buf_reset(&j->out);
	buf_u64(&j->out, bytes);
	send_frame(k, AGENT_OK, j->out.p, j->out.len);
}

static void run_bulk(struct job *j)
{
	struct bulk *k = j->arg;

	k->frame = malloc(HDR + AGENT_FRAME_MAX);
	if (!k->frame || fd_set_nonblock(j->fd, false) < 0)
		job_fail(j, ENOMEM, AGENT_STEP_NONE, "no memory");
	else if (j->type == AGENT_READ)
		read_file(k);
	else
		write_file(k);
	/* send_range() has sent a failure that came after AGENT_OK */
	if (j->code && k->frame && !(j->type == AGENT_READ && j->out.len))
		send_failure(k);
	free(k->frame);
	k->frame = NULL;
}

static void bulk_done(struct agent *a, struct job *j)
{
	struct bulk *k = j->arg;

	/* Back to the loop for the host's next request. Not after a failure, and not if bytes of the
	 * next request were read already: conn_create_bulk() cannot take them. */
	if (!k->broken && !j->code && k->rest_at == k->rest.len &&
		fd_set_nonblock(j->fd, true) == 0)
		conn_create_bulk(a, take_fd(&j->fd));
	buf_fini(&k->rest);
	free(k);
}

static void bulk_request(struct agent *a, struct conn *c, uint32_t id, struct cur *b, uint16_t type)
{
	struct job *j = files_job(a, c, id, type, b, run_bulk);
	struct bulk *k;

	if (!j)
		return;
	k = calloc(1, sizeof(*k));
	if (!k) {
		job_free(j);
		conn_error(c, id, ENOMEM, AGENT_STEP_NONE, "no memory");
		return;
	}
	k->j = j;
	j->arg = k;
	j->own_thread = true;
	j->done = bulk_done;
	j->fd = conn_detach(c, &k->rest);
	if (j->fd < 0 || job_submit(j) < 0) {
		/* the connection is gone either way: the host sees its end */
		log_limited(LOG_WARN, "a file transfer cannot start");
		if (j->fd < 0)
			conn_close(c);
		buf_fini(&k->rest);
		free(k);
		job_free(j);
	}
}

void req_read(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	bulk_request(a, c, id, b, AGENT_READ);
}

void req_write(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	bulk_request(a, c, id, b, AGENT_WRITE);
}
