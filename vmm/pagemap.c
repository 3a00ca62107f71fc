/* SPDX-License-Identifier: Apache-2.0
 *
 * pagemap.c: see pagemap.h. PAGEMAP_SCAN (Linux 6.7) where the kernel has it, plain entries
 * elsewhere. Plain entries do not tell the zero page from a private one, so it is listed, too. No
 * hostile bytes: the kernel writes the page map.
 */
#include "vmm/pagemap.h"

#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>

/* <linux/fs.h> of Linux 6.7 */
struct scan_arg {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof,
		want;
};
struct scan_region {
	uint64_t start, end, categories;
};
#define SCAN_IOCTL  _IOWR('f', 16, struct scan_arg)
#define CAT_FILE    (1u << 2)
#define CAT_PRESENT (1u << 3)
#define CAT_SWAPPED (1u << 4)
#define CAT_PFNZERO (1u << 5)
#define REGIONS     1024u

#define PM_PRESENT (1ull << 63)
#define PM_SWAPPED (1ull << 62)
#define PM_FILE    (1ull << 61)
#define ENTRIES    16384u

void pm_list_fini(struct pm_list *l)
{
	free(l->r);
	*l = (struct pm_list){0};
}

int pm_list_add(struct pm_list *l, uint64_t gpa, uint64_t len, bool priv)
{
	struct pm_range *last = l->n ? &l->r[l->n - 1] : NULL;

	if (last && last->gpa + last->len == gpa && last->priv == priv) {
		last->len += len;
		return 0;
	}
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 1024;
		struct pm_range *r = realloc(l->r, cap * sizeof(*r));

		if (!r)
			return -ENOMEM;
		l->r = r;
		l->cap = cap;
	}
	l->r[l->n++] = (struct pm_range){gpa, len, priv};
	return 0;
}

/* 1: done; 0: this kernel has no PAGEMAP_SCAN; or -errno.
 *
 * walk_end is not used. The kernel collects 512 ranges at a time. It sets walk_end when these are
 * full, and does not set it again if the rest fits. So with 513 to 1023 ranges walk_end is the end
 * of the first 512, although everything was walked (6.12, 6.18). Two things are sure: everything
 * before the end of the last range was walked, and if there was room for one more range, there are
 * no more. */
static int scan(int fd, const struct mem *m, uint64_t gpa, uint64_t len, bool only_private,
	struct pm_list *out)
{
	uint64_t base = (uintptr_t)m->base, at = base + gpa, end = at + len;
	size_t had = out->n;
	struct scan_region *v = malloc(REGIONS * sizeof(*v));
	int rc = v ? 1 : -ENOMEM;

	while (rc > 0 && at < end) {
		struct scan_arg a = {.size = sizeof(a),
			.start = at,
			.end = end,
			.vec = (uintptr_t)v,
			.vec_len = REGIONS,
			.anyof = CAT_PRESENT | CAT_SWAPPED,
			.want = CAT_FILE | CAT_PFNZERO};
		long n;

		if (only_private)
			a.inverted = a.mask = CAT_FILE | CAT_PFNZERO;
		n = ioctl(fd, SCAN_IOCTL, &a);
		if (n < 0) {
			rc = errno == ENOTTY || errno == EINVAL ? 0 : -errno;
			out->n = had; /* read_plain() starts again */
			break;
		}
		for (long i = 0; rc > 0 && i < n; i++) {
			bool priv = !(v[i].categories & (CAT_FILE | CAT_PFNZERO));
			int k = pm_list_add(out, v[i].start - base, v[i].end - v[i].start,
				only_private || priv);

			rc = k < 0 ? k : rc;
		}
		at = n < (long)REGIONS ? end : v[n - 1].end;
	}
	free(v);
	return rc;
}

static int read_plain(int fd, const struct mem *m, uint64_t gpa, uint64_t len, bool only_private,
	struct pm_list *out)
{
	uint64_t *v = malloc(ENTRIES * sizeof(*v)), page = gpa / PAGE_BYTES,
		 left = len / PAGE_BYTES;
	int rc = v ? 0 : -ENOMEM;

	while (rc == 0 && left) {
		uint64_t n = MIN(left, ENTRIES);

		rc = pread_full(fd, v, n * sizeof(*v),
			((uintptr_t)m->base / PAGE_BYTES + page) * sizeof(*v));
		for (uint64_t i = 0; rc == 0 && i < n; i++) {
			bool there = v[i] & (PM_PRESENT | PM_SWAPPED);
			bool priv =
				(v[i] & PM_SWAPPED) || ((v[i] & PM_PRESENT) && !(v[i] & PM_FILE));

			if (there && (priv || !only_private))
				rc = pm_list_add(out, (page + i) * PAGE_BYTES, PAGE_BYTES, priv);
		}
		page += n;
		left -= n;
	}
	free(v);
	return rc;
}

int pagemap_list(int proc_fd, const struct mem *m, bool only_private, bool plain,
	struct pm_list *out, struct err *e)
{
	_cleanup_close_ int fd = openat(proc_fd, "self/pagemap", O_RDONLY | O_CLOEXEC);
	const uint64_t part[2][2] = {
		{0, m->low_bytes}, {MEM_HOLE_END, m->ram_bytes - m->low_bytes}};

	*out = (struct pm_list){0};
	if (fd < 0)
		return err_set(e, errno, "open /proc/self/pagemap");
	for (int i = 0; i < 2; i++) {
		int rc;

		if (!part[i][1])
			continue;
		rc = plain ? 0 : scan(fd, m, part[i][0], part[i][1], only_private, out);
		if (rc == 0)
			rc = read_plain(fd, m, part[i][0], part[i][1], only_private, out);
		if (rc < 0) {
			pm_list_fini(out);
			return err_set(e, -rc, "read the page map");
		}
	}
	return 0;
}
