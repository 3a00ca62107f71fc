/* SPDX-License-Identifier: Apache-2.0
 *
 * admission.c: counts sandboxes against the limits of the configuration. mayflyd's loop. A sandbox
 * that is paused to disk counts against limits.max_sandboxes only; one that is paused in memory counts against all limits.
 */
#include "api/sandbox/admission.h"

#include <sys/statvfs.h>
#include <sys/sysinfo.h>

#include "api/checkpoint/blobs.h"
#include "api/sandbox/headroom.h"

/* the one documented code of a 429: clients that know it wait and ask again */
#define FULL "KUBERNETES::POOL_CAPACITY_EXHAUSTED"

/* For file systems with a fixed number of inodes (ext4). A sandbox makes a handful of files, its snapshots and pauses make more. */
#define INODES_RESERVE 1024

bool admission_counts(const struct sandbox *sb)
{
	return sb->phase == PHASE_NEW || sb->phase == PHASE_ACCEPTED ||
	       sb->phase == PHASE_RUNNING || sb->phase == PHASE_RESIDENT ||
	       (sb->phase == PHASE_PAUSED && sb->op.kind == OP_RESUME);
}

static uint64_t memory_limit_mib(const struct daemon *d)
{
	struct sysinfo si;

	if (d->cfg.memory_mib)
		return (uint64_t)d->cfg.memory_mib;
	if (sysinfo(&si) < 0)
		return 1024;
	/* no overcommitment that the operator did not ask for */
	return (uint64_t)si.totalram * si.mem_unit >> 20;
}

static uint64_t memory_promised_mib(const struct daemon *d)
{
	return index_load(d->index)->mem_mib + headroom_mib(d) + (blobs_ram_bytes(d->blobs) >> 20);
}

bool admission_has_memory(const struct daemon *d)
{
	return memory_promised_mib(d) <= memory_limit_mib(d);
}

bool admission_is_tight(const struct daemon *d)
{
	return memory_promised_mib(d) * 10 > memory_limit_mib(d) * 8;
}

/* Is there room for sb beside what runs? counted: the index has sb already. */
static void check_load(const struct sandbox *sb, bool counted, struct refusal *x)
{
	const struct daemon *d = sb->d;
	const struct sandbox_load *l = index_load(d->index);
	unsigned long long mib = sb->cls.mem_mib, vcpus = sb->cls.vcpus;
	unsigned long long used_mib = memory_promised_mib(d) - (counted ? mib : 0),
			   used_vcpus = l->vcpus - (counted ? vcpus : 0),
			   max_mib = memory_limit_mib(d),
			   max_vcpus = (unsigned long long)d->cfg.cpu_overcommit * d->cpus;

	if (l->live > (size_t)d->cfg.max_sandboxes)
		refuse(x, 429, FULL,
			"This host is full: it has its %lld sandboxes. Delete one, or raise "
			"limits.max_sandboxes.",
			(long long)d->cfg.max_sandboxes);
	else if (used_mib + mib > max_mib)
		refuse(x, 429, FULL,
			"This host is full: %llu MiB of memory requested, %llu MiB free of %llu. "
			"Delete or pause a sandbox, or raise limits.memory_mib.",
			mib, used_mib < max_mib ? max_mib - used_mib : 0, max_mib);
	else if (used_vcpus + vcpus > max_vcpus)
		refuse(x, 429, FULL,
			"This host is full: %llu virtual CPUs requested, %llu free of %llu. Delete "
			"or pause a sandbox, or raise limits.cpu_overcommit.",
			vcpus, used_vcpus < max_vcpus ? max_vcpus - used_vcpus : 0, max_vcpus);
}

static int refused_full(struct daemon *d, const struct refusal *x)
{
	if (!x->status)
		return 0;
	d->metrics.refused_full++;
	return -EINVAL;
}

static void check_disk(const struct daemon *d, struct refusal *x)
{
	struct statvfs vfs;

	if (statvfs(d->cfg.state_dir, &vfs) < 0)
		return;
	if ((vfs.f_bavail * vfs.f_frsize >> 20) < (uint64_t)d->cfg.disk_reserve_mib)
		refuse(x, 429, FULL,
			"This host is full: less than %lld MiB of disk are free. Delete snapshots, "
			"templates or sandboxes, or lower limits.disk_reserve_mib.",
			(long long)d->cfg.disk_reserve_mib);
	else if (vfs.f_files && d->cfg.disk_reserve_mib && vfs.f_favail < INODES_RESERVE)
		refuse(x, 429, FULL,
			"This host is full: %llu of %llu inodes of the disk are free. Delete "
			"snapshots, templates or sandboxes.",
			(unsigned long long)vfs.f_favail, (unsigned long long)vfs.f_files);
}

int admission_check(struct sandbox *sb, struct refusal *x)
{
	struct daemon *d = sb->d;

	/* its size is known from here on */
	index_count(d->index, sb);
	x->status = 0;
	check_load(sb, true, x);
	if (!x->status)
		check_disk(d, x);
	return refused_full(d, x);
}

int admission_check_resume(const struct sandbox *sb, struct refusal *x)
{
	x->status = 0;
	check_load(sb, false, x);
	return refused_full(sb->d, x);
}
