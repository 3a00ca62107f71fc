/* SPDX-License-Identifier: Apache-2.0
 *
 * obtain.c: the other side of the job protocol. Runs in the daemon (a worker thread) and the
 * command line. The job may have been taken over by what it read: its messages are parsed with
 * bounds, its digests are computed again, and it only ever gets descriptors of blobs that the
 * manifest it was given names.
 */
#include "images/store/obtain.h"
#include "lib/fdpass.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#define SILENCE_S 600 /* a job that says nothing for so long is stuck */

struct run {
	struct store *s;
	const struct image_spawner *sp;
	const struct image_request *q;
	image_progress_fn fn;
	void *arg;
	struct stage stage;
	int sock, handle;
	struct digest manifest;
	struct blob_list blobs;
	/* pulls: bytes of blobs that are missing; stopped: it died or was cancelled, rather than
	 * failed */
	uint64_t missing;
	bool stopped;
	/* builds: what may be asked for */
	struct oci_manifest *allowed;
};

static int start_job(struct run *r, bool net, struct err *e)
{
	struct timeval tv = {.tv_sec = SILENCE_S};
	int pair[2], fds[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return err_set(e, errno, "image job");
	setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	/* ends a job that asks and never reads the answers */
	setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	fds[0] = pair[1];
	fds[1] = r->stage.fd;
	r->handle = r->sp->spawn(r->sp->arg, net, fds, 2, e);
	close(pair[1]);
	r->sock = pair[0];
	if (r->handle < 0)
		close_fd(&r->sock);
	return r->handle < 0 ? r->handle : 0;
}

static void end_job(struct run *r)
{
	close_fd(&r->sock);
	if (r->handle >= 0)
		r->sp->end(r->sp->arg, r->handle);
	r->handle = -1;
}

static int send_msg(struct run *r, enum job_type type, struct buf *payload, const int *fds,
	size_t nfds, struct err *e)
{
	struct job_hdr h = {
		.magic = JOB_MAGIC, .type = (uint16_t)type, .len = (uint32_t)payload->len};
	struct buf m;
	int k;

	buf_init(&m, JOB_MSG_MAX);
	buf_put(&m, &h, sizeof(h));
	buf_put(&m, payload->p, payload->len);
	k = m.bad || payload->bad ? -EMSGSIZE : fdpass_send(r->sock, m.p, m.len, fds, nfds);
	explicit_bzero(m.p, m.len); /* it may hold a password */
	buf_fini(&m);
	return k < 0 ? err_set(e, -k, "image job") : 0;
}

static bool is_allowed(struct run *r, const struct digest *d)
{
	if (!r->allowed)
		return false;
	for (uint32_t i = 0; i < r->allowed->n; i++)
		if (digest_eq(&r->allowed->layers[i].digest, d))
			return true;
	return false;
}

/* Is there room for what is missing, and for the disk that is made of it, which takes at least as much again? Checked
 * before the first byte is fetched. */
static int room_for(struct run *r, uint64_t size, struct err *e)
{
	if (__builtin_add_overflow(r->missing, size, &r->missing) || r->missing > UINT64_MAX / 4)
		return err_plain(e, EFBIG,
			"the sizes of the image's blobs are impossible: their sum overflows");
	return store_room(r->s, r->missing * 2 + MIB(64), e);
}

/* A pull asks whether a blob is here already. It gets yes or no, and not the blob, because its manifest is not verified yet.
 * The only bytes that it gets are what an earlier pull of the same digest left: unverified, like those of the registry. */
static int on_need(struct run *r, struct cur *c, struct err *e)
{
	enum job_there there = JOB_NOT_THERE;
	_cleanup_close_ int fd = -1;
	char text[DIGEST_STR];
	bool give = false;
	struct digest d;
	uint64_t size;
	struct buf b;
	int k = 0;

	if (!cur_str(c, text, sizeof(text)) || digest_parse(text, &d) < 0)
		return err_plain(e, EPROTO, "image job: malformed message");
	size = cur_u64(c);
	/* a client can name a digest without knowing the bytes: a pull uses no blob that its group did not fetch before */
	if (r->allowed || store_may_use(r->s, &d, r->q->group))
		fd = store_blob_open(r->s, &d);
	if (fd >= 0) {
		there = JOB_THERE;
		give = is_allowed(r, &d);
	} else if (!r->allowed) {
		fd = r->q->group ? -1 : store_part_open(r->s, &d);
		give = fd >= 0;
		there = give ? JOB_PART_THERE : JOB_NOT_THERE;
		k = room_for(r, size, e);
	}
	if (k < 0)
		return k;
	buf_init(&b, 16);
	buf_u32(&b, there);
	k = send_msg(r, JOB_HAVE, &b, &fd, give, e);
	buf_fini(&b);
	return k;
}

static int on_fetched(struct run *r, struct cur *c, struct err *e)
{
	char text[DIGEST_STR];
	uint32_t n;

	if (!cur_str(c, text, sizeof(text)) || digest_parse(text, &r->manifest) < 0 ||
		(n = cur_u32(c)) > IMAGE_MAX_LAYERS + 8)
		return err_plain(e, EPROTO, "image job: malformed result");
	for (uint32_t i = 0; i < n; i++) {
		struct blob b;

		if (!cur_str(c, text, sizeof(text)) || digest_parse(text, &b.d) < 0)
			return err_plain(e, EPROTO, "image job: malformed result");
		b.size = cur_u64(c);
		if (blob_list_add(&r->blobs, &b) < 0)
			return err_set(e, ENOMEM, "image job");
	}
	return cur_done(c) ? 0 : err_plain(e, EPROTO, "image job: malformed result");
}

static int on_failed(struct cur *c, struct err *e)
{
	uint32_t code = cur_u32(c);
	char text[sizeof(e->msg)];

	if (!cur_str(c, text, sizeof(text)))
		return err_plain(e, EPROTO, "image job: malformed result");
	return err_plain(e, code > 0 && code < 4096 ? (int)code : EIO, "%s", text);
}

/* Serves the job until it sends `want`, fails, or dies. */
static int follow_job(struct run *r, enum job_type want, struct err *e)
{
	_cleanup_free_ uint8_t *m = malloc(JOB_MSG_MAX);

	while (m) {
		ssize_t n = fdpass_recv(r->sock, m, JOB_MSG_MAX, NULL, NULL);
		struct job_hdr h;
		struct cur c;
		int k = 0;

		if (n == 0) {
			r->stopped = true;
			return err_plain(e, EIO, "image job died");
		}
		if (n == -EAGAIN)
			return err_plain(
				e, ETIMEDOUT, "image job said nothing for %d seconds", SILENCE_S);
		if (n < (ssize_t)sizeof(h))
			return err_set(e, n < 0 ? (int)-n : EPROTO, "image job");
		memcpy(&h, m, sizeof(h));
		c = cur_of(m + sizeof(h), (size_t)n - sizeof(h));
		if (h.magic != JOB_MAGIC || h.len != (size_t)n - sizeof(h))
			return err_plain(e, EPROTO, "image job: malformed message");
		if (h.type == JOB_FAILED)
			return on_failed(&c, e);
		if (h.type == JOB_NEED) {
			k = on_need(r, &c, e);
		} else if (h.type == JOB_PROGRESS) {
			uint32_t phase = cur_u32(&c);
			uint64_t done = cur_u64(&c), total = cur_u64(&c);

			if (r->fn && r->fn(r->arg, (enum job_phase)phase, done, total)) {
				r->stopped = true;
				k = err_plain(e, ECANCELED, "cancelled");
			}
		} else if (h.type == want) {
			return want == JOB_FETCHED ? on_fetched(r, &c, e) : 0;
		} else {
			k = err_plain(e, EPROTO, "image job: unexpected message %u", h.type);
		}
		if (k < 0)
			return k;
	}
	return err_set(e, ENOMEM, "image job");
}

static void put_platform(struct buf *b, const struct platform *p)
{
	buf_str(b, p->os);
	buf_str(b, p->arch);
	buf_str(b, p->variant);
}

static int fetch(struct run *r, const char *canonical, struct err *e)
{
	const struct image_request *q = r->q;
	bool pull = q->source < 0;
	struct platform host;
	struct buf b;
	int k;

	platform_host(&host);
	buf_init(&b, JOB_MSG_MAX);
	buf_str(&b, canonical);
	if (!pull)
		buf_u32(&b, q->kind);
	put_platform(&b, q->platform.arch[0] ? &q->platform : &host);
	if (pull) {
		buf_str(&b, q->user);
		buf_str(&b, q->password);
		buf_str(&b, q->token);
	}
	job_put_limits(&b, &q->lim);
	if (pull) {
		buf_u16(&b, (uint16_t)q->nbases);
		for (unsigned int i = 0; i < q->nbases; i++) {
			buf_str(&b, q->bases[i].registry);
			buf_str(&b, q->bases[i].url);
			buf_u32(&b, q->bases[i].flags);
		}
	}
	/* a group's pull gets no parts (on_need), so it leaves none */
	k = pull && !q->group ? store_stage_is_pull(&r->stage) : 0;
	k = k < 0 ? err_set(e, -k, "the staging folder") : start_job(r, pull, e);
	if (k == 0)
		k = send_msg(r, pull ? JOB_PULL : JOB_IMPORT, &b, &q->source, pull ? 0 : 1, e);
	explicit_bzero(b.p, b.len);
	buf_fini(&b);
	if (k == 0)
		k = follow_job(r, JOB_FETCHED, e);
	end_job(r);
	if (pull && !q->group && r->stopped)
		store_stage_salvage(r->s, &r->stage);
	return k;
}

/* The job's files become ours, and then blobs, if their digests are right. */
static int take_blobs(struct run *r, struct err *e)
{
	for (size_t i = 0; i < r->blobs.n; i++) {
		const struct blob *b = &r->blobs.v[i];
		char hex[DIGEST_HEX];
		_cleanup_close_ int fd = openat(r->stage.fd, digest_hex(&b->d, hex),
			O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		int k = fd < 0 ? -errno : r->sp->adopt(r->sp->arg, fd);

		if (k < 0)
			return err_set(e, -k, "blob %.12s", hex);
		k = store_blob_put(r->s, &r->stage, hex, &b->d, b->size, e);
		if (k < 0)
			return k;
	}
	return 0;
}

/* What was fetched whole and verified is the group's from now on. */
static int grant_all(struct run *r, struct err *e)
{
	int k = store_grant(r->s, &r->manifest, r->q->group, e);

	for (size_t i = 0; i < r->blobs.n && k == 0; i++)
		k = store_grant(r->s, &r->blobs.v[i].d, r->q->group, e);
	return k;
}

static int slurp_blob(struct store *s, const struct digest *d, size_t max, int *fd, void **p,
	size_t *n, struct err *e)
{
	char text[DIGEST_STR];

	*fd = store_blob_open(s, d);
	if (*fd < 0)
		return err_set(e, -*fd, "blob %.19s", digest_str(d, text));
	return fd_slurp(*fd, max, p, n, e);
}

/* The job says what it fetched, and may lie. A blob is the group's if its bytes came out of this job's folder (take_blobs looked), or if the
 * group fetched it before. */
static int check_owned(struct run *r, const struct digest *d, struct err *e)
{
	char text[DIGEST_STR];

	for (size_t i = 0; i < r->blobs.n; i++)
		if (digest_eq(&r->blobs.v[i].d, d))
			return 0;
	if (store_may_use(r->s, d, r->q->group))
		return 0;
	return err_plain(e, EACCES, "image job: it did not fetch %.19s, which it names",
		digest_str(d, text));
}

/* The manifest and all that it names: else a manifest of one's own would be a way to another group's layers. */
static int check_all_owned(struct run *r, struct err *e)
{
	_cleanup_free_ void *p = NULL;
	_cleanup_close_ int fd = -1;
	struct oci_manifest m = {0};
	size_t n;
	int k;

	/* NULL: it may use everything */
	if (!r->q->group)
		return 0;
	k = check_owned(r, &r->manifest, e);
	if (k == 0)
		k = slurp_blob(r->s, &r->manifest, IMAGE_MAX_MANIFEST, &fd, &p, &n, e);
	if (k == 0)
		k = oci_manifest_parse(p, n, &m, e);
	if (k < 0)
		return k;
	k = check_owned(r, &m.config.digest, e);
	for (uint32_t i = 0; i < m.n && k == 0; i++)
		k = check_owned(r, &m.layers[i].digest, e);
	oci_manifest_fini(&m);
	return k;
}

/* A request by digest gets that manifest, or one that the index of that digest names. The job is not trusted with this. */
static int check_pinned(struct run *r, const struct digest *want, struct err *e)
{
	_cleanup_free_ void *p = NULL;
	_cleanup_close_ int fd = -1;
	struct oci_index ix = {0};
	bool found = false;
	size_t n;
	int k;

	if (digest_eq(want, &r->manifest))
		return 0;
	k = check_owned(r, want, e);
	if (k < 0)
		return k;
	k = slurp_blob(r->s, want, IMAGE_MAX_MANIFEST, &fd, &p, &n, e);
	if (k == 0)
		k = oci_index_parse(p, n, &ix, e);
	if (k < 0)
		return k;
	for (uint32_t i = 0; i < ix.n; i++)
		found |= digest_eq(&ix.d[i].digest, &r->manifest);
	oci_index_fini(&ix);
	return found ? 0 : err_plain(e, EBADMSG, "what was fetched is not what the digest names");
}

static int adopt_built(struct run *r, const char *name, struct err *e)
{
	_cleanup_close_ int fd =
		openat(r->stage.fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	int k = fd < 0 ? -errno : r->sp->adopt(r->sp->arg, fd);

	return k < 0 ? err_set(e, -k, "%s", name) : 0;
}

/* What a layer's content takes, as far as it can be known without reading it: gzip ends with its
 * length (modulo 4 GiB, and of its last member), zstd mostly not. Only used to refuse early: the
 * limits hold whatever these bytes say. */
static uint64_t content_bytes(struct store *s, const struct descriptor *d)
{
	_cleanup_close_ int fd = store_blob_open(s, &d->digest);
	uint8_t head[4] = {0}, tail[4] = {0};
	uint64_t n;

	if (fd < 0 || d->size < 18 || pread_full(fd, head, 4, 0) < 0 ||
		pread_full(fd, tail, 4, d->size - 4) < 0)
		return d->size;
	if (head[0] == 0x1f && head[1] == 0x8b) {
		n = tail[0] | (uint64_t)tail[1] << 8 | (uint64_t)tail[2] << 16 |
		    (uint64_t)tail[3] << 24;
		return MIN(MAX(n, d->size), d->size * 1032); /* deflate cannot compress better */
	}
	return memcmp(head, "\x28\xb5\x2f\xfd", 4) == 0 ? d->size * 2 : d->size;
}

static int build(struct run *r, const char *canonical, struct err *e)
{
	_cleanup_close_ int manifest_fd = -1, config_fd = -1;
	_cleanup_free_ void *p = NULL;
	struct oci_manifest m = {0};
	uint64_t bytes = 0;
	struct buf b;
	size_t n;
	int fds[2], k;

	k = slurp_blob(r->s, &r->manifest, IMAGE_MAX_MANIFEST, &manifest_fd, &p, &n, e);
	if (k == 0)
		k = oci_manifest_parse(p, n, &m, e);
	if (k < 0)
		return k;
	for (uint32_t i = 0; i < m.n; i++)
		bytes += content_bytes(r->s, &m.layers[i]);
	r->allowed = &m;
	config_fd = store_blob_open(r->s, &m.config.digest);
	k = config_fd < 0 ? err_set(e, -config_fd, "configuration")
			  : store_room(r->s, bytes + MIB(64), e);
	if (k == 0)
		k = start_job(r, false, e);
	buf_init(&b, 4096);
	buf_str(&b, canonical);
	job_put_limits(&b, &r->q->lim);
	fds[0] = manifest_fd;
	fds[1] = config_fd;
	if (k == 0)
		k = send_msg(r, JOB_BUILD, &b, fds, 2, e);
	buf_fini(&b);
	if (k == 0)
		k = follow_job(r, JOB_BUILT, e);
	end_job(r);
	r->allowed = NULL;
	oci_manifest_fini(&m);
	if (k == 0)
		k = adopt_built(r, "disk.ext4", e);
	if (k == 0)
		k = adopt_built(r, "image.json", e);
	return k < 0 ? k : store_image_put(r->s, &r->stage, &r->manifest, e);
}

static int obtain(struct run *r, const struct image_ref *ref, const char *canonical, struct err *e)
{
	int k = store_room(r->s, MIB(256), e);

	if (k == 0)
		k = store_stage_begin(r->s, &r->stage, e);
	if (k == 0)
		k = fetch(r, canonical, e);
	if (k == 0)
		k = take_blobs(r, e);
	if (k == 0)
		k = check_all_owned(r, e);
	if (k == 0 && ref->has_digest)
		k = check_pinned(r, &ref->digest, e);
	if (k == 0 && !store_image_there(r->s, &r->manifest)) {
		struct stage fetched = r->stage;

		/* The build gets a folder of its own: the fetching job's user owned files in the other one.
		 * It begins before the other one ends, because blobs are swept when there is no stage. */
		k = store_stage_begin(r->s, &r->stage, e);
		store_stage_end(r->s, k < 0 ? &r->stage : &fetched);
		if (k == 0)
			k = build(r, canonical, e);
	}
	if (k == 0)
		k = grant_all(r, e);
	if (k == 0)
		k = store_name_set(r->s, ref, &r->manifest, r->q->local, e);
	store_stage_end(r->s, &r->stage);
	return k;
}

int image_usable(
	struct store *s, const char *name, const char *group, struct image_info *out, struct err *e)
{
	int k = store_resolve(s, name, out, e);

	/* a local name was given by the operator: every group may use it */
	if (k < 0 || out->local || store_may_use(s, &out->id, group))
		return k;
	image_info_fini(out);
	return err_plain(
		e, ENOENT, "%s is in the store, but this key has not fetched it yet", name);
}

int image_obtain(struct store *s, const struct image_spawner *sp, const struct image_request *q,
	image_progress_fn fn, void *arg, struct image_info *out, struct err *e)
{
	struct run r = {.s = s,
		.sp = sp,
		.q = q,
		.fn = fn,
		.arg = arg,
		.stage = {.fd = -1},
		.sock = -1,
		.handle = -1};
	_cleanup_close_ int lock = -1;
	struct image_info info;
	char canonical[REF_MAX];
	struct image_ref ref;
	int k = ref_parse(q->name, &ref, e);

	if (k < 0)
		return k;
	ref_canonical(&ref, canonical);
	lock = store_name_lock(s, canonical, e);
	if (lock < 0)
		return -e->code;
	if (q->always || q->source >= 0 || image_usable(s, canonical, q->group, &info, NULL) < 0) {
		k = obtain(&r, &ref, canonical, e);
		blob_list_fini(&r.blobs);
		if (k >= 0)
			k = store_resolve(s, canonical, &info, e);
	}
	store_name_unlock(s, canonical, take_fd(&lock));
	if (k < 0)
		return k;
	if (out)
		*out = info;
	else
		image_info_fini(&info);
	return 0;
}
