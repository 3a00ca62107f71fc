/* SPDX-License-Identifier: Apache-2.0
 *
 * kvmstat.c: see kvmstat.h. The layout of the file is that of <linux/kvm.h>: a header, a table of
 * descriptors, a block of 64-bit values. The kernel wrote all of it. Sizes are checked
 * nevertheless, because a newer kernel may have kinds of counters that this build does not know.
 */
#include "vmm/kvmstat.h"

#include <linux/kvm.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define STATS_MAX      256u
#define STATS_DATA_MAX 16384u

void kvmstat_open(struct kvmstat *s, int vm_fd, const int *vcpu_fd, unsigned int nvcpus)
{
	*s = (struct kvmstat){0};
	for (unsigned int i = 0; i <= nvcpus; i++) {
		int fd = ioctl(i ? vcpu_fd[i - 1] : vm_fd, KVM_GET_STATS_FD, NULL);

		if (fd < 0) {
			kvmstat_close(s);
			return;
		}
		s->fd[s->n++] = fd;
	}
}

void kvmstat_close(struct kvmstat *s)
{
	while (s->n)
		close_fd(&s->fd[--s->n]);
}

/* One descriptor of the table: the offset of its value, or -1 if it is no plain counter. */
static long value_offset(const uint8_t *entry, size_t name_size, char name[KVMSTAT_NAME_MAX])
{
	struct kvm_stats_desc d;

	memcpy(&d, entry, sizeof(d));
	if (d.size != 1 || (d.flags & KVM_STATS_TYPE_MASK) > KVM_STATS_TYPE_PEAK)
		return -1;
	memcpy(name, entry + sizeof(d), MIN(name_size, KVMSTAT_NAME_MAX - 1));
	name[MIN(name_size, KVMSTAT_NAME_MAX - 1)] = 0;
	return (long)d.offset;
}

int kvmstat_read(int fd, kvmstat_fn fn, void *arg)
{
	_cleanup_free_ uint8_t *table = NULL;
	uint8_t data[STATS_DATA_MAX];
	struct kvm_stats_header h;
	int rc = pread_full(fd, &h, sizeof(h), 0);
	size_t entry;
	ssize_t have;

	if (rc < 0)
		return rc;
	entry = sizeof(struct kvm_stats_desc) + h.name_size;
	if (h.num_desc > STATS_MAX || h.name_size > 256)
		return -E2BIG;
	table = malloc(h.num_desc * entry + 1);
	if (!table)
		return -ENOMEM;
	rc = pread_full(fd, table, h.num_desc * entry, h.desc_offset);
	have = rc < 0 ? rc : pread(fd, data, sizeof(data), h.data_offset);
	if (have < 0)
		return rc < 0 ? rc : -errno;
	for (uint32_t i = 0; i < h.num_desc; i++) {
		char name[KVMSTAT_NAME_MAX];
		long at = value_offset(table + i * entry, h.name_size, name);
		uint64_t value;

		if (at < 0 || at + (long)sizeof(value) > have)
			continue;
		memcpy(&value, data + at, sizeof(value));
		fn(arg, name, value);
	}
	return 0;
}

struct sums {
	unsigned int n;
	struct {
		char name[KVMSTAT_NAME_MAX];
		uint64_t value;
	} row[STATS_MAX];
};

static void add(void *arg, const char *name, uint64_t value)
{
	struct sums *s = arg;
	unsigned int i = 0;

	while (i < s->n && strcmp(s->row[i].name, name) != 0)
		i++;
	if (i == STATS_MAX)
		return;
	if (i == s->n) {
		s->n++;
		snprintf(s->row[i].name, sizeof(s->row[i].name), "%s", name);
		s->row[i].value = 0;
	}
	s->row[i].value += value;
}

void kvmstat_report(const struct kvmstat *s, kvmstat_fn fn, void *arg)
{
	_cleanup_free_ struct sums *sums = calloc(1, sizeof(*sums));

	for (unsigned int i = 0; sums && i < s->n; i++)
		kvmstat_read(s->fd[i], add, sums);
	for (unsigned int i = 0; sums && i < sums->n; i++) {
		char full[KVMSTAT_NAME_MAX + 8];

		snprintf(full, sizeof(full), "kvm.%s", sums->row[i].name);
		fn(arg, full, sums->row[i].value);
	}
}
