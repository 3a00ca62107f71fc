/* SPDX-License-Identifier: Apache-2.0
 *
 * ident.c: identity. The loop's thread. A restored or forked machine must be another one before
 * anything of the user's runs: new randomness, the right time, names of its own. A failure here
 * stops the start (fail closed). An agent of a test (not init) sets no clock, adds no entropy and
 * writes no file in /etc; it sets the host name only with set_names.
 */
#include "agent/ident.h"

#include <ctype.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#include "agent/exec.h"
#include "agent/text.h"

static bool is_hex(const char *s, size_t n, bool dashes)
{
	if (strlen(s) != n)
		return false;
	for (size_t i = 0; i < n; i++) {
		bool dash = dashes && (i == 8 || i == 13 || i == 18 || i == 23);

		if (dash ? s[i] != '-' : !isxdigit((unsigned char)s[i]))
			return false;
	}
	return true;
}

static bool is_hostname(const char *s)
{
	for (const char *p = s; *p; p++)
		if (!isalnum((unsigned char)*p) && *p != '-' && *p != '.' && *p != '_')
			return false;
	return true;
}

static char *take_string(struct cur *c, size_t max)
{
	size_t n;
	const char *s = cur_strp(c, &n, max);
	char *p = s ? malloc(n + 1) : NULL;

	if (!p)
		return NULL;
	memcpy(p, s, n);
	p[n] = 0;
	return p;
}

void identity_free(struct identity *id)
{
	env_unref(id->env);
	free(id->resolv_conf);
	*id = (struct identity){0};
}

int identity_parse(struct cur *c, struct identity *id)
{
	uint32_t n;
	int rc;

	*id = (struct identity){0};
	id->generation = cur_u64(c);
	/* bytes, not text */
	n = cur_u32(c);
	if (n > sizeof(id->entropy) || !cur_copy(c, id->entropy, n))
		return -EPROTO;
	id->entropy_len = n;
	id->wall_ns = cur_u64(c);
	cur_str(c, id->hostname, sizeof(id->hostname));
	cur_str(c, id->machine_id, sizeof(id->machine_id));
	cur_str(c, id->boot_id, sizeof(id->boot_id));
	if (c->bad || !is_hostname(id->hostname) ||
		(id->machine_id[0] && !is_hex(id->machine_id, 32, false)) ||
		(id->boot_id[0] && !is_hex(id->boot_id, 36, true)))
		return -EPROTO;
	id->env = env_new();
	rc = id->env ? env_parse(id->env, c) : -ENOMEM;
	if (rc == 0 && !(id->resolv_conf = take_string(c, KIB(16))))
		rc = c->bad ? -EPROTO : -ENOMEM;
	if (rc < 0)
		identity_free(id);
	return rc;
}

void setup_req_free(struct setup_req *r)
{
	identity_free(&r->id);
	env_unref(r->image_env);
	free(r->workdir);
	free(r->user);
	free(r->lifecycle);
	free(r->argv);
	*r = (struct setup_req){0};
}

int setup_parse(struct cur *c, struct setup_req *r)
{
	int rc;

	*r = (struct setup_req){0};
	rc = identity_parse(c, &r->id);
	if (rc < 0)
		return rc;
	r->image_env = env_new();
	rc = r->image_env ? env_parse(r->image_env, c) : -ENOMEM;
	if (rc == 0) {
		r->workdir = take_string(c, AGENT_PATH_MAX - 1);
		r->user = take_string(c, 127);
		rc = r->workdir && r->user ? exec_parse_argv(c, &r->argc, &r->argv) : -EPROTO;
	}
	if (rc == 0) {
		r->lifecycle = take_string(c, KIB(64));
		if (!r->lifecycle || !cur_done(c))
			rc = -EPROTO;
	}
	if (rc < 0)
		setup_req_free(r);
	return rc;
}

static int add_entropy(const struct identity *id, struct err *e)
{
	struct {
		struct rand_pool_info info;
		uint32_t words[sizeof(id->entropy) / 4];
	} pool = {.info = {.entropy_count = (int)id->entropy_len * 8,
			  .buf_size = (int)id->entropy_len}};
	_cleanup_close_ int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);

	if (id->entropy_len < 32)
		return err_plain(e, EINVAL, "%zu bytes of entropy are too few", id->entropy_len);
	memcpy(pool.words, id->entropy, id->entropy_len);
	if (fd < 0 || ioctl(fd, RNDADDENTROPY, &pool) < 0)
		return err_set(e, errno, "adding entropy");
	if (ioctl(fd, RNDRESEEDCRNG) < 0)
		return err_set(e, errno, "reseeding");
	return 0;
}

static int set_clock(const struct identity *id, struct err *e)
{
	struct timespec t = {.tv_sec = (time_t)(id->wall_ns / 1000000000),
		.tv_nsec = (long)(id->wall_ns % 1000000000)};

	if (id->wall_ns && clock_settime(CLOCK_REALTIME, &t) < 0)
		return err_set(e, errno, "setting the clock");
	return 0;
}

/* A file in the agent's own directory, rewritten in place: it may be bind-mounted over another
 * file, or be watched. */
static int put_run_file(struct agent *a, const char *name, const char *text, char path[300])
{
	snprintf(path, 300, "%s/%s", a->opts.run_dir, name);
	return text_store(path, text, false);
}

static int bind_over(const char *from, const char *onto)
{
	struct stat x, y;

	if (stat(from, &x) == 0 && stat(onto, &y) == 0 && x.st_dev == y.st_dev &&
		x.st_ino == y.st_ino)
		return 0;
	return mount(from, onto, NULL, MS_BIND, NULL) < 0 ? -errno : 0;
}

static int put_ids(struct agent *a, const struct identity *id, struct err *e)
{
	char path[300], text[64];
	int rc = 0;

	if (id->boot_id[0]) {
		snprintf(text, sizeof(text), "%s\n", id->boot_id);
		rc = put_run_file(a, "boot-id", text, path);
		if (rc == 0 && a->opts.init)
			rc = bind_over(path, "/proc/sys/kernel/random/boot_id");
	}
	if (rc == 0 && id->machine_id[0]) {
		snprintf(text, sizeof(text), "%s\n", id->machine_id);
		rc = put_run_file(a, "machine-id", text, path);
	}
	if (rc == 0) {
		snprintf(text, sizeof(text), "%llu\n", (unsigned long long)id->generation);
		rc = put_run_file(a, "generation", text, path);
	}
	return rc < 0 ? err_set(e, -rc, "writing the ids") : 0;
}

int identity_apply(struct agent *a, struct identity *id, enum agent_step *step, struct err *e)
{
	int rc = 0;

	if (a->opts.init) {
		*step = AGENT_STEP_ENTROPY;
		rc = add_entropy(id, e);
		if (rc < 0)
			return rc;
		*step = AGENT_STEP_CLOCK;
		rc = set_clock(id, e);
		if (rc < 0)
			return rc;
	}
	*step = AGENT_STEP_IDENTITY;
	if (id->hostname[0] && (a->opts.init || a->opts.set_names) &&
		sethostname(id->hostname, strlen(id->hostname)) < 0)
		return err_set(e, errno, "setting the host name");
	rc = put_ids(a, id, e);
	if (rc < 0)
		return rc;
	a->generation = id->generation;
	if (id->env && (id->env->n || !a->setup_env)) {
		env_unref(a->setup_env);
		a->setup_env = env_ref(id->env);
	}
	return 0;
}

static int put_hosts(const struct identity *id)
{
	struct buf b;
	int rc;

	buf_init(&b, 4096);
	buf_printf(&b, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
	buf_printf(&b, "ff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n");
	if (id->hostname[0])
		buf_printf(&b, "127.0.1.1\t%s\n", id->hostname);
	rc = text_store("/etc/hosts", buf_cstr(&b), true);
	buf_fini(&b);
	return rc;
}

int identity_apply_root(
	struct agent *a, const struct identity *id, enum agent_step *step, struct err *e)
{
	char text[80], path[300];
	int rc;

	*step = AGENT_STEP_IDENTITY;
	if (!a->opts.init)
		return 0;
	if (mkdir("/etc", 0755) < 0 && errno != EEXIST && errno != EROFS)
		return err_set(e, errno, "/etc");
	rc = put_hosts(id);
	if (rc == 0 && id->hostname[0]) {
		snprintf(text, sizeof(text), "%s\n", id->hostname);
		rc = text_store("/etc/hostname", text, true);
	}
	/* by rename: the image's file may be a link into a directory that is not there */
	if (rc == 0 && id->resolv_conf[0])
		rc = text_store("/etc/resolv.conf", id->resolv_conf, true);
	if (rc == 0 && id->machine_id[0]) {
		int fd = open("/etc/machine-id", O_RDONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0444);

		if (fd >= 0)
			close(fd);
		snprintf(path, sizeof(path), "%s/machine-id", a->opts.run_dir);
		rc = fd < 0 ? -errno : bind_over(path, "/etc/machine-id");
	}
	/* an image that is mounted read-only keeps its own files */
	if (rc < 0 && rc != -EROFS)
		return err_set(e, -rc, "writing the names into /etc");
	return 0;
}
