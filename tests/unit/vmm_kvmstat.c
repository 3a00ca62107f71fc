/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_kvmstat: KVM's statistics file, as a memfd has it: plain counters are reported by name, a
 * histogram is left out, and a table that is too long or points behind the data is survived.
 */
#include "lib/test.h"

#include <linux/kvm.h>
#include <sys/mman.h>

#include "vmm/kvmstat.h"

#define NAME_SIZE 48u

struct entry {
	struct kvm_stats_desc d;
	char name[NAME_SIZE];
} _packed_;

struct file {
	struct kvm_stats_header h;
	struct entry e[3];
	uint64_t data[4];
} _packed_;

static struct file good(void)
{
	return (struct file){
		.h = {.name_size = NAME_SIZE,
			.num_desc = 3,
			.desc_offset = offsetof(struct file, e),
			.data_offset = offsetof(struct file, data)},
		.e = {{{.size = 1, .offset = 0}, "exits"},
			{{.size = 2, .offset = 8, .flags = KVM_STATS_TYPE_LINEAR_HIST},
				"histogram"},
			{{.size = 1, .offset = 24}, "halt_exits"}},
		.data = {7, 1, 2, 9},
	};
}

struct seen {
	unsigned int n;
	uint64_t sum;
	char last[KVMSTAT_NAME_MAX];
};

static void note(void *arg, const char *name, uint64_t value)
{
	struct seen *s = arg;

	s->n++;
	s->sum += value;
	snprintf(s->last, sizeof(s->last), "%s", name);
}

static int read_it(const struct file *f, size_t bytes, struct seen *s)
{
	_cleanup_close_ int fd = memfd_create("stats", MFD_CLOEXEC);

	*s = (struct seen){0};
	CHECK_INT(pwrite_full(fd, f, bytes, 0), 0);
	return kvmstat_read(fd, note, s);
}

static void plain_counters_are_reported(void)
{
	struct file f = good();
	struct seen s;

	CHECK_INT(read_it(&f, sizeof(f), &s), 0);
	CHECK_INT(s.n, 2);
	CHECK_INT(s.sum, 16);
	CHECK_STR(s.last, "halt_exits");
}

static void nonsense_is_survived(void)
{
	struct file f = good();
	struct seen s;

	f.e[2].d.offset = 0x7fffffff;
	CHECK_INT(read_it(&f, sizeof(f), &s), 0);
	CHECK_INT(s.n, 1);
	f.h.num_desc = 100000;
	CHECK_INT(read_it(&f, sizeof(f), &s), -E2BIG);
	f = good();
	f.h.desc_offset = 1u << 30;
	CHECK(read_it(&f, sizeof(f), &s) < 0);
	CHECK(read_it(&f, 4, &s) < 0);
}

static void a_host_without_statistics_is_no_error(void)
{
	_cleanup_close_ int fd = memfd_create("no kvm", MFD_CLOEXEC);
	struct kvmstat k;
	struct seen s = {0};

	kvmstat_open(&k, fd, &fd, 1);
	CHECK_INT(k.n, 0);
	kvmstat_report(&k, note, &s);
	CHECK_INT(s.n, 0);
}

static const struct test tests[] = {
	{"plain_counters_are_reported", plain_counters_are_reported},
	{"nonsense_is_survived", nonsense_is_survived},
	{"a_host_without_statistics_is_no_error", a_host_without_statistics_is_no_error},
};
TEST_MAIN(tests)
