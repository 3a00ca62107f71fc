/* SPDX-License-Identifier: Apache-2.0
 *
 * disk_guard.c: see disk_guard.h. mayflyd's loop; the disk itself is asked in a thread of the pool. What a monitor writes is seen from the size of
 * its files: no word of a monitor is believed here.
 */
#include "api/sandbox/disk_guard.h"

#include <string.h>
#include <sys/statvfs.h>

#include "api/checkpoint/blobs.h"
#include "api/core/io_pool.h"
#include "api/links/helper_client.h"
#include "api/links/monitor_client.h"
#include "lib/log.h"

#define LOOK_NS      2000000000ull
#define LOOK_NEAR_NS 500000000ull
/* A sandbox that wrote less than this lately is not paused. */
#define WRITER_BYTES MIB(1)
/* Two files for the private layer, two and an index for each frozen one, and those that a snapshot replaces. */
#define LAYER_INODES 64u
/* At most so many sandboxes get a changed limit at one look. */
#define LIMITS_AT_ONCE 32u

struct sample {
	char id[37], layer[BLOB_ID];
	uint64_t bytes;
};

struct disk_guard {
	struct io_job job;
	struct daemon *d;
	struct timer *timer;
	bool asked;     /* the job is in the pool */
	bool near_full; /* looks more often, and at who writes */
	uint64_t free_bytes;
	size_t n;
	struct sample *samples;
};

/* ---- limits */

static uint32_t project_of(const char *id)
{
	uint32_t h = 2166136261u; /* FNV-1a */

	for (; *id; id++)
		h = (h ^ (uint8_t)*id) * 16777619u;
	return h % PRIV_PROJECT_MAX + 1;
}

/* For the file system this is the limit of all layers together: without one from the operator the guest may fill its disk once, and once more
 * after a snapshot. The monitor applies it to the private layer. */
static uint64_t quota_bytes(const struct sandbox *sb)
{
	int64_t mib = sb->d->cfg.sandbox_disk_mib;

	return mib ? MIB((uint64_t)mib) : 2 * sb->disk.bytes + MIB(64);
}

static void on_quota(void *arg, const struct priv_msg *m, int fd)
{
	close_fd(&fd);
	if (m->status < 0 && m->status != -EOPNOTSUPP)
		log_limited(LOG_WARN, "the disk quota of a sandbox cannot be set: %s",
			strerror(-m->status));
}

void disk_guard_layer(struct sandbox *sb, int data_fd, int bitmap_fd)
{
	struct priv_msg m = {.op = PRIV_QUOTA,
		.what = PRIV_Q_SANDBOX,
		.project = project_of(sb->id),
		.quota = {.bytes = quota_bytes(sb), .inodes = LAYER_INODES}};
	int fds[] = {data_fd, bitmap_fd};

	if (!(privctl_host_flags(sb->d->priv) & PRIV_H_NO_QUOTA))
		privctl_call(sb->d->priv, &m, fds, ARRAY_LEN(fds), on_quota, NULL);
}

static void on_limit(void *arg, const struct vmm_answer *a)
{
	if (a->err && a->err != ECONNRESET)
		log_limited(LOG_WARN, "a monitor has no disk limit: %s", a->text);
}

static void limit_monitor(struct sandbox *sb)
{
	struct buf b;

	buf_init(&b, 16);
	buf_u64(&b, quota_bytes(sb));
	vmmctl_call(sb->vm->ctl, VMM_DISK_LIMIT, &b, NULL, 0, on_limit, NULL);
	buf_fini(&b);
}

void disk_guard_monitor(struct sandbox *sb)
{
	sb->disk_use.limit = quota_bytes(sb);
	if (sb->d->cfg.sandbox_disk_mib && sb->vm && sb->vm->ctl)
		limit_monitor(sb);
}

/* A sandbox whose writes wait at its limit can be neither paused nor snapshotted: its processes cannot be frozen. So a running
 * sandbox gets the limit again when it has changed, and from each new daemon, which does not know the old one. */
static void limit_changed(struct sandbox *sb)
{
	_cleanup_close_ int data = blob_open(sb->d->blobs, sb->disk.data, "data", false);
	_cleanup_close_ int bitmap = blob_open(sb->d->blobs, sb->disk.data, "bitmap", false);

	if (data >= 0 && bitmap >= 0)
		disk_guard_layer(sb, data, bitmap);
	limit_monitor(sb); /* also without a limit: an earlier daemon may have sent one */
	sb->disk_use.limit = quota_bytes(sb);
}

static void limits_look(const struct daemon *d)
{
	unsigned int n = 0;

	for (struct sandbox *sb = d->sandboxes; sb && n < LIMITS_AT_ONCE; sb = sb->next) {
		if (sb->phase != PHASE_RUNNING || sb->op.kind != OP_NONE || !sb->vm ||
			!sb->vm->ctl || !*sb->disk.data || sb->disk_use.limit == quota_bytes(sb))
			continue;
		limit_changed(sb);
		n++;
	}
}

/* ---- the watch */

static void guard_work(struct io_job *job)
{
	struct disk_guard *g = container_of(job, struct disk_guard, job);
	struct statvfs vfs;

	g->free_bytes =
		statvfs(g->d->cfg.state_dir, &vfs) < 0 ? UINT64_MAX : vfs.f_bavail * vfs.f_frsize;
	for (size_t i = 0; i < g->n; i++)
		g->samples[i].bytes = blob_bytes(g->d->blobs, g->samples[i].layer);
}

/* Adds what it wrote since the last look. Older bytes count half as much at every look. */
static void sample_take(struct sandbox *sb, const struct sample *s)
{
	bool same = !strcmp(sb->disk_use.layer, s->layer);
	uint64_t before = same ? sb->disk_use.bytes : s->bytes;

	sb->disk_use.lately = sb->disk_use.lately / 2 + (s->bytes > before ? s->bytes - before : 0);
	sb->disk_use.bytes = s->bytes;
	memcpy(sb->disk_use.layer, s->layer, BLOB_ID);
}

/* A worker run's sandbox may be paused, too: its attempt then ends at its deadline, which deletes the sandbox. */
static bool may_be_paused(const struct sandbox *sb)
{
	return sb->phase == PHASE_RUNNING && sb->op.kind == OP_NONE && (!sb->internal || sb->run) &&
	       sb->disk_use.lately >= WRITER_BYTES;
}

static void pause_heaviest(struct daemon *d, uint64_t free_bytes)
{
	struct sandbox *worst = NULL;

	for (struct sandbox *sb = d->sandboxes; sb; sb = sb->next)
		if (may_be_paused(sb) && (!worst || sb->disk_use.lately > worst->disk_use.lately))
			worst = sb;
	if (!worst)
		return;
	log_warn("the disk of state_dir has %llu MiB left: sandbox %s, which writes most, is "
		 "paused",
		(unsigned long long)(free_bytes >> 20), worst->id);
	sandbox_note(worst,
		"paused in memory: the disk of this host is nearly full, and this sandbox wrote "
		"%llu MiB lately. Make room, then resume it",
		(unsigned long long)(worst->disk_use.lately >> 20));
	worst->disk_use.lately = 0;
	d->metrics.disk_pauses++;
	operation_pause_memory(worst);
}

static void guard_done(struct io_job *job)
{
	struct disk_guard *g = container_of(job, struct disk_guard, job);
	uint64_t reserve = MIB((uint64_t)g->d->cfg.disk_reserve_mib);

	g->asked = false;
	for (size_t i = 0; i < g->n; i++) {
		struct sandbox *sb = index_find(g->d->index, g->samples[i].id);

		if (sb)
			sample_take(sb, &g->samples[i]);
	}
	free(g->samples);
	g->samples = NULL;
	g->n = 0;
	g->near_full = reserve && g->free_bytes / 2 < reserve;
	if (g->free_bytes < reserve / 2)
		pause_heaviest(g->d, g->free_bytes);
	timer_after(g->timer, g->near_full ? LOOK_NEAR_NS : LOOK_NS);
}

static void samples_begin(struct disk_guard *g)
{
	g->samples = calloc(g->d->nsandboxes, sizeof(*g->samples));
	for (const struct sandbox *sb = g->d->sandboxes; g->samples && sb; sb = sb->next) {
		if (sb->phase != PHASE_RUNNING || !*sb->disk.data || g->n == g->d->nsandboxes)
			continue;
		memcpy(g->samples[g->n].id, sb->id, sizeof(sb->id));
		memcpy(g->samples[g->n++].layer, sb->disk.data, BLOB_ID);
	}
}

static void guard_look(void *arg)
{
	struct disk_guard *g = arg;

	limits_look(g->d);
	if (!g->d->cfg.disk_reserve_mib || !g->d->nsandboxes) {
		timer_after(g->timer, LOOK_NS);
		return;
	}
	if (g->near_full)
		samples_begin(g);
	g->asked = true;
	io_pool_run_quick(g->d->io, &g->job);
}

bool disk_guard_start(struct daemon *d)
{
	struct disk_guard *g = calloc(1, sizeof(*g));

	if (!g)
		return false;
	*g = (struct disk_guard){.job = {guard_work, guard_done, NULL}, .d = d};
	g->timer = loop_timer(d->loop, guard_look, g);
	if (!g->timer) {
		free(g);
		return false;
	}
	d->disk_guard = g;
	timer_after(g->timer, LOOK_NS);
	return true;
}

/* After the end of the pool: no job runs. */
void disk_guard_stop(struct daemon *d)
{
	struct disk_guard *g = d->disk_guard;

	if (!g)
		return;
	timer_remove(g->timer);
	free(g->samples);
	free(g);
	d->disk_guard = NULL;
}
