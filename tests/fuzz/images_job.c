/* SPDX-License-Identifier: Apache-2.0
 *
 * images_job.c: the messages of an image job that was taken over by the bytes it read. All that the
 * daemon and the command line believe of a job goes through here. The input is a list of messages,
 * each a type, a length and bytes; the first job of a run has put a manifest and its configuration
 * into its folder, so that right answers lead on to the build.
 */
#include "images/store/obtain.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static const char config[] = "{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{\"type\":"
			     "\"layers\",\"diff_ids\":[]}}";
static const char manifest[] =
	"{\"schemaVersion\":2,\"config\":{\"mediaType\":\"application/"
	"vnd.oci.image.config.v1+json\",\"size\":78,"
	"\"digest\":\"sha256:c5b1d63604f273462ef36fadac3182d43ae6a6138731cf594b314835cf1c034f\"},"
	"\"layers\":[]}";

struct input {
	const uint8_t *p;
	size_t n;
	int sock;
};

static void put_file(int dir, const char *text, size_t n)
{
	struct digest d;
	char hex[DIGEST_HEX];
	int fd;

	digest_of(text, n, &d);
	fd = openat(dir, digest_hex(&d, hex), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	ASSERT(write_full(fd, text, n) == 0);
	close(fd);
}

/* The job: it has said everything before anybody listens. A message of type 0 ends its part; the
 * rest is the next job's. */
static int say(void *arg, bool net, const int *fds, size_t nfds, struct err *e)
{
	struct input *in = arg;

	put_file(fds[1], manifest, sizeof(manifest) - 1);
	put_file(fds[1], config, sizeof(config) - 1);
	for (int i = 0; i < 32 && in->n >= 3; i++) {
		size_t len = MIN((size_t)(in->p[1] | in->p[2] << 8), in->n - 3);
		struct job_hdr h = {.magic = JOB_MAGIC,
			.type = in->p[0] & 0x7f,
			.len = (uint32_t)len + (in->p[0] >> 7)};
		uint8_t m[4096];

		len = MIN(len, sizeof(m) - sizeof(h));
		memcpy(m, &h, sizeof(h));
		memcpy(m + sizeof(h), in->p + 3, len);
		in->p += 3 + len;
		in->n -= 3 + len;
		if (!h.type)
			break;
		if (send(fds[0], m, sizeof(h) + len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			break;
	}
	/* it hears what is answered, and has said its last word */
	in->sock = dup(fds[0]);
	shutdown(in->sock, SHUT_WR);
	return 0;
}

static void end(void *arg, int handle)
{
	close_fd(&((struct input *)arg)->sock);
}

static int adopt(void *arg, int fd)
{
	return 0;
}

static char path[] = "/tmp/images_job.XXXXXX";

static int remove_one(const char *name, const struct stat *sb, int type, struct FTW *f)
{
	return remove(name);
}

static void clean_up(void)
{
	nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct input in = {p, n, -1};
	const struct image_spawner sp = {.spawn = say, .end = end, .adopt = adopt, .arg = &in};
	static struct store *s;
	struct image_request q = {.name = "x.y/z:1",
		.source = -1,
		.always = true,
		.user = "",
		.password = "",
		.token = "",
		.lim = IMAGE_LIMITS_DEFAULT};
	struct image_info info;
	struct err e = {0};

	if (!s) {
		char root[64];

		ASSERT(mkdtemp(path) && atexit(clean_up) == 0);
		snprintf(root, sizeof(root), "%s/store", path);
		ASSERT(store_open(root, &s, &e) == 0);
	}
	if (image_obtain(s, &sp, &q, NULL, NULL, &info, &e) == 0)
		image_info_fini(&info);
	else
		ASSERT(e.code);
	return 0;
}
