/* SPDX-License-Identifier: Apache-2.0
 *
 * admission.c: counts what runs against the limits of the configuration. mayflyd's loop. Paused
 * sandboxes cost no memory and no CPU.
 */
#include "api/sandbox/admission.h"

#include <sys/statvfs.h>
#include <sys/sysinfo.h>

#include "api/sandbox/headroom.h"

/* the one documented code of a 429: clients that know it wait and ask again */
#define FULL "KUBERNETES::POOL_CAPACITY_EXHAUSTED"

/* Where inodes are a number of their own (ext4). A sandbox makes a handful of files, its snapshots and pauses make more. */
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
	return index_load(d->index)->mem_mib + headroom_mib(d);
}

bool admission_has_memory(const struct daemon *d)
{
	return memory_promised_mib(d) <= memory_limit_mib(d);
}

int admission_check(struct sandbox *sb, struct refusal *x)
{
	struct daemon *d = sb->d;
	const struct sandbox_load *l = index_load(d->index);
	uint64_t max_mem = memory_limit_mib(d);
	uint64_t max_vcpus = (uint64_t)d->cfg.cpu_overcommit * d->cpus;
	struct statvfs vfs;
	bool have = statvfs(d->cfg.state_dir, &vfs) == 0;

	/* its size is known from here on */
	index_count(d->index, sb);
	x->status = 0;
	if (l->live > (size_t)d->cfg.max_sandboxes)
		refuse(x, 429, FULL, "This host is full: %lld sandboxes are its limit.",
			(long long)d->cfg.max_sandboxes);
	else if (memory_promised_mib(d) > max_mem)
		refuse(x, 429, FULL,
			"This host is full: %llu MiB of memory would be given away, %llu is its "
			"limit.",
			(unsigned long long)memory_promised_mib(d), (unsigned long long)max_mem);
	else if (l->vcpus > max_vcpus)
		refuse(x, 429, FULL,
			"This host is full: %llu virtual CPUs would be given away, %llu is its "
			"limit.",
			(unsigned long long)l->vcpus, (unsigned long long)max_vcpus);
	else if (have && (vfs.f_bavail * vfs.f_frsize >> 20) < (uint64_t)d->cfg.disk_reserve_mib)
		refuse(x, 429, FULL, "This host is full: less than %lld MiB of disk are free.",
			(long long)d->cfg.disk_reserve_mib);
	else if (have && vfs.f_files && d->cfg.disk_reserve_mib && vfs.f_favail < INODES_RESERVE)
		refuse(x, 429, FULL, "This host is full: %llu of %llu inodes of the disk are free.",
			(unsigned long long)vfs.f_favail, (unsigned long long)vfs.f_files);
	if (!x->status)
		return 0;
	d->metrics.refused_full++;
	return -EINVAL;
}
