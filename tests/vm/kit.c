/* SPDX-License-Identifier: Apache-2.0
 *
 * kit.c: see kit.h. A test program.
 */
#include "tests/vm/kit.h"

#include <fcntl.h>
#include <string.h>

#include "lib/cow.h"
#include "lib/snap.h"

const char *kit_dir;
int kit_kernel, kit_initrd;

int make_file(const char *what, int number)
{
	char p[300];
	int fd;

	snprintf(p, sizeof(p), "%s/%s.%d", kit_dir, what, number);
	fd = open(p, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	MUST(fd >= 0);
	return fd;
}

/* Closes and removes it: hours of rounds fill a disk. */
static void forget_file(int fd)
{
	char link[64], path[300];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n > 0) {
		path[n] = 0;
		unlink(path);
	}
	close(fd);
}

struct tg_msg ask(struct vmctl *v, uint32_t cmd, uint64_t a, uint64_t b, uint32_t seed)
{
	struct tg_msg m = {.cmd = cmd, .a = a, .b = b, .seed = seed};

	MUST(vmctl_guest(v, &m));
	return m;
}

void check_guest(struct vmctl *v, uint64_t pages)
{
	struct tg_msg m = ask(v, TG_CHECK, 0, 0, 0), c = ask(v, TG_COUNT, 0, 0, 0);

	MUST(m.a == 0 && m.b == pages);
	MUST(c.b == 0);
}

void boot_on(struct vmctl *v, struct vmctl_disk *d, uint64_t mem, uint32_t vcpus)
{
	vmctl_start(v);
	v->disk = d;
	MUST(vmctl_prepare(v, mem, vcpus) == 0);
	MUST(vmctl_boot(v, kit_kernel, kit_initrd, "") == 0);
	MUST(vmctl_wait_ready(v, KIT_LIMIT));
}

void boot(struct vmctl *v, uint64_t mem, uint32_t vcpus)
{
	boot_on(v, NULL, mem, vcpus);
}

struct stored snapshot(
	struct vmctl *v, const struct stored *base, uint32_t flags, uint64_t *stopped)
{
	static int number;
	struct stored s = {.state = make_file("state", number)};
	int mem = make_file("mem", number++);
	struct err e = {0};

	MUST(vmctl_snapshot(v, s.state, mem, flags, stopped) == 0);
	MUST(vmctl_wait_snapshot(v, KIT_LIMIT));
	if (v->snap_status)
		printf("snapshot: %s\n", v->snap_text);
	MUST(v->snap_status == 0);
	for (unsigned int i = 0; base && i < base->n; i++)
		if (v->snap_kept & (1u << i))
			s.mem[s.n++] = base->mem[i];
	MUST(s.n < SNAP_MAX_FILES);
	s.mem[s.n++] = mem;
	if (snap_mem_verify(mem, NULL, &e) < 0)
		printf("%s\n", e.msg);
	MUST(e.code == 0);
	return s;
}

void blank(struct vmctl *v, uint64_t mem, uint32_t vcpus)
{
	vmctl_start(v);
	MUST(vmctl_prepare(v, mem, vcpus) == 0);
}

void restore(struct vmctl *v, const struct stored *s, int ws, uint32_t flags, bool say)
{
	struct buf out;
	struct cur c;
	unsigned int n;

	buf_init(&out, 4096);
	MUST(vmctl_restore(v, s->state, s->mem, s->n, ws, flags | VMM_F_RUN, &out) == 0);
	c = cur_of(out.p, out.len);
	n = cur_u16(&c);
	for (unsigned int i = 0; say && i < n; i++) {
		char name[32];

		cur_str(&c, name, sizeof(name));
		printf(" %s %.2f", name, (double)cur_u64(&c) / 1e6);
	}
	if (say)
		printf(" ms\n");
	buf_fini(&out);
}

void close_stored(const struct stored *old, const struct stored *now)
{
	for (unsigned int i = 0; i < old->n; i++) {
		bool used = false;

		for (unsigned int k = 0; k < now->n; k++)
			used |= old->mem[i] == now->mem[k];
		if (!used)
			forget_file(old->mem[i]);
	}
	if (old->n)
		forget_file(old->state);
}

static int layer_number;

void new_layer(struct vmctl_disk *d)
{
	new_layer_in(d, "");
}

void new_layer_in(struct vmctl_disk *d, const char *folder)
{
	struct err e = {0};
	char data[64], bitmap[64];

	snprintf(data, sizeof(data), "%sdata", folder);
	snprintf(bitmap, sizeof(bitmap), "%sbitmap", folder);
	d->data = make_file(data, layer_number);
	d->bitmap = make_file(bitmap, layer_number++);
	if (cow_layer_create(d->data, d->bitmap, DISK_BYTES, &e) < 0)
		printf("%s\n", e.msg);
	MUST(e.code == 0);
}

void check_disk(struct vmctl *v, uint64_t from, uint64_t n, uint32_t seed)
{
	MUST(ask(v, TG_DISK_CHECK, from, n, seed).a == 0);
}

struct stored freeze(struct vmctl *v, struct vmctl_disk *stack, uint32_t flags, uint64_t *stopped)
{
	struct vmctl_disk fresh = {0};
	struct stored s;
	int index = make_file("index", layer_number);

	fresh.data = make_file("data", layer_number);
	fresh.bitmap = make_file("bitmap", layer_number++);
	v->freeze[0] = index;
	v->freeze[1] = fresh.data;
	v->freeze[2] = fresh.bitmap;
	s = snapshot(v, NULL, flags, stopped);
	if (v->dropped >= 0) {
		stack->nfrozen--;
		memmove(&stack->frozen[v->dropped], &stack->frozen[v->dropped + 1],
			(stack->nfrozen - (unsigned int)v->dropped) * sizeof(int));
	}
	stack->frozen[stack->nfrozen++] = stack->data;
	stack->index = index;
	stack->data = fresh.data;
	stack->bitmap = fresh.bitmap;
	return s;
}
