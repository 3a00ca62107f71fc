/* SPDX-License-Identifier: Apache-2.0
 *
 * vmm_vblk: the block device on memfd disks, driven by the fake guest through its registers; by
 * io_uring (where there is one) and by the worker thread.
 */
#include "lib/test.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "tests/unit/cow_files.h"
#include "tests/unit/lib/fake_guest.h"
#include "vmm/vblk.h"

#define U     ((uint64_t)COW_UNIT)
#define BYTES (64 * U)
#define ALL   (VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC | 1ull << VIRTIO_BLK_F_FLUSH)

struct rig {
	struct fake_guest g;
	struct cow_fds files;
	struct bio *bio;
	struct vblk *b;
	uint64_t hdr, status, data; /* guest addresses */
};

static unsigned int bio_flags; /* every test runs twice */

static bool rig_open(struct rig *r, uint64_t features, bool ro)
{
	struct cow_fds d = cf_dup_all(&r->files);
	struct vblk_conf conf = {.bio = r->bio,
		.serial = "root-0123456789abcdefXYZ",
		.slot = SLOT_DISK0,
		.read_only = ro};
	struct err e = {0};

	if (cow_open(&conf.cow, &d, &e) < 0 || vblk_create(&r->b, &conf, &r->g.env, &e) < 0) {
		printf("%s\n", e.msg);
		return false;
	}
	return fg_probe(&r->g, vblk_dev(r->b), features, 64);
}

static bool rig_up(struct rig *r, uint64_t features)
{
	struct err e = {0};

	memset(r, 0, sizeof(*r));
	fg_init(&r->g);
	r->files = cf_disk(BYTES, BYTES / 2);
	if (bio_create(&r->bio, r->g.loop, VBLK_BIO_DEPTH, bio_flags, &e) < 0)
		return false;
	r->hdr = fg_alloc(&r->g, 64 * 64);
	r->status = fg_alloc(&r->g, 64);
	r->data = fg_alloc(&r->g, MIB(1));
	return rig_open(r, features, false);
}

/* nothing is in flight any more, however long the host takes */
static void drain(struct rig *r)
{
	fg_run(&r->g);
	while (bio_inflight(r->bio)) {
		loop_turn(r->g.loop, 1000);
		fg_run(&r->g);
	}
}

static void rig_down(struct rig *r)
{
	drain(r);
	vblk_destroy(r->b);
	bio_destroy(r->bio);
	fg_fini(&r->g);
	cf_close_all(&r->files);
}

static void put_hdr(struct rig *r, unsigned int slot, uint32_t type, uint64_t sector)
{
	struct virtio_blk_head h = {.type_le = type, .sector_le = sector};

	memcpy(fg_ptr(&r->g, r->hdr + slot * 64), &h, sizeof(h));
	*(uint8_t *)fg_ptr(&r->g, r->status + slot) = 0xee;
}

/* one request, its data in two ranges; makes it available */
static void add(
	struct rig *r, unsigned int slot, uint32_t type, uint64_t off, uint64_t gpa, uint32_t len)
{
	uint32_t cut = len > 1000 ? 1000 : len / 2;
	struct fg_range rg[4] = {{r->hdr + slot * 64, sizeof(struct virtio_blk_head)}, {gpa, cut},
		{gpa + cut, len - cut}};
	unsigned int n = !len ? 0 : cut ? 2 : 1;
	bool in = type == VIRTIO_BLK_T_IN || type == VIRTIO_BLK_T_GET_ID;

	if (n == 1)
		rg[1].len = len;
	put_hdr(r, slot, type, off / 512);
	rg[1 + n] = (struct fg_range){r->status + slot, 1};
	r->g.q[0].indirect = slot & 1;
	fg_add(&r->g, 0, rg, in ? 1 : 1 + n, rg + (in ? 1 : 1 + n), in ? 1 + n : 1);
}

static uint8_t status(struct rig *r, unsigned int slot)
{
	return *(uint8_t *)fg_ptr(&r->g, r->status + slot);
}

/* one request alone, to its end: its status */
static int one(struct rig *r, uint32_t type, uint64_t off, uint64_t gpa, uint32_t len)
{
	uint16_t head;
	uint32_t n;

	add(r, 0, type, off, gpa, len);
	fg_kick(&r->g, 0);
	drain(r);
	if (!fg_used(&r->g, 0, &head, &n))
		return -1;
	return status(r, 0);
}

static bool reads(struct rig *r, uint64_t off, uint32_t len, uint8_t v)
{
	const uint8_t *p = fg_ptr(&r->g, r->data);

	memset(fg_ptr(&r->g, r->data), 0x55, len);
	if (one(r, VIRTIO_BLK_T_IN, off, r->data, len) != 0)
		return false;
	for (uint32_t i = 0; i < len; i++)
		if (p[i] != v)
			return false;
	return true;
}

static int writes(struct rig *r, uint64_t off, uint32_t len, uint8_t v)
{
	memset(fg_ptr(&r->g, r->data), v, len);
	return one(r, VIRTIO_BLK_T_OUT, off, r->data, len);
}

static int zero(struct rig *r, uint32_t type, uint64_t off, uint64_t len, uint32_t flags)
{
	struct virtio_blk_seg s = {off / 512, (uint32_t)(len / 512), flags};

	memcpy(fg_ptr(&r->g, r->data), &s, sizeof(s));
	return one(r, type, 0, r->data, sizeof(s));
}

static void reads_and_writes_all_kinds_of_runs(void)
{
	struct rig r;

	REQUIRE(rig_up(&r, ALL));
	CHECK(reads(&r, 3 * U, 4096, cf_base_byte(3)));
	CHECK(reads(&r, 4 * U + 512, 512, 0));
	CHECK(reads(&r, BYTES / 2, 4 * 4096, 0)); /* beyond the base */
	CHECK_INT(writes(&r, 2 * U, 8192, 'X'), 0);
	CHECK_INT(writes(&r, 5 * U + 512, 1024, 'Y'), 0);
	CHECK_INT(writes(&r, 6 * U + 1024, 3 * 4096, 'Z'), 0); /* partial, whole, whole, partial */
	CHECK(reads(&r, 2 * U, 8192, 'X'));
	CHECK(reads(&r, U, 4096, cf_base_byte(1)));
	CHECK(reads(&r, 5 * U, 512, cf_base_byte(5)));
	CHECK(reads(&r, 5 * U + 512, 1024, 'Y'));
	CHECK(reads(&r, 5 * U + 1536, 2560, cf_base_byte(5)));
	CHECK(reads(&r, 6 * U, 1024, cf_base_byte(6)));
	CHECK(reads(&r, 6 * U + 1024, 3 * 4096, 'Z'));
	CHECK(reads(&r, 9 * U + 1024, 3072, cf_base_byte(9)));
	/* one read across base, private and zeros */
	CHECK_INT(one(&r, VIRTIO_BLK_T_IN, 0, r.data, BYTES), 0);
	CHECK_INT(*(uint8_t *)fg_ptr(&r.g, r.data + 2 * U), 'X');
	CHECK_INT(*(uint8_t *)fg_ptr(&r.g, r.data + 10 * U), cf_base_byte(10));
	CHECK_INT(*(uint8_t *)fg_ptr(&r.g, r.data + BYTES - 1), 0);
	CHECK(r.g.irqs[BOARD_VIRTIO_IRQ + SLOT_DISK0] > 0);
	rig_down(&r);
}

static void flushed_writes_are_there_after_a_restart(void)
{
	struct rig r;

	REQUIRE(rig_up(&r, ALL));
	CHECK_INT(writes(&r, 0, 4096, 'X'), 0);
	CHECK_INT(one(&r, VIRTIO_BLK_T_FLUSH, 0, 0, 0), 0);
	CHECK_INT(writes(&r, U, 4096, 'Y'), 0); /* not flushed: lost, wholly */
	drain(&r);
	vblk_destroy(r.b);
	REQUIRE(rig_open(&r, ALL, false));
	CHECK(reads(&r, 0, 4096, 'X'));
	CHECK(reads(&r, U, 4096, cf_base_byte(1)));
	vblk_destroy(r.b);
	/* a driver that cannot flush: every write is safe when it is done */
	REQUIRE(rig_open(&r, 0, false));
	CHECK_INT(writes(&r, 2 * U + 512, 512, 'Z'), 0);
	drain(&r);
	vblk_destroy(r.b);
	REQUIRE(rig_open(&r, ALL, false));
	CHECK(reads(&r, 2 * U + 512, 512, 'Z'));
	rig_down(&r);
}

static void discards_and_zeroes_hide_the_base(void)
{
	struct rig r;

	REQUIRE(rig_up(&r, ALL | 1ull << VIRTIO_BLK_F_DISCARD | 1ull << VIRTIO_BLK_F_WRITE_ZEROES));
	CHECK_INT(writes(&r, 2 * U, 4096, 'X'), 0);
	CHECK_INT(zero(&r, VIRTIO_BLK_T_DISCARD, U, 3 * U, 0), 0);
	CHECK(reads(&r, U, 3 * 4096, 0));
	CHECK_INT(zero(&r, VIRTIO_BLK_T_DISCARD, 5 * U + 512, 1024, 0),
		0); /* no whole unit: nothing */
	CHECK(reads(&r, 5 * U, 4096, cf_base_byte(5)));
	CHECK_INT(zero(&r, VIRTIO_BLK_T_WRITE_ZEROES, 5 * U + 512, 3 * U, 1), 0);
	CHECK(reads(&r, 5 * U, 512, cf_base_byte(5)));
	CHECK(reads(&r, 5 * U + 512, 3 * 4096, 0));
	CHECK(reads(&r, 8 * U + 512, 3584, cf_base_byte(8)));
	CHECK_INT(writes(&r, 2 * U + 512, 512, 'Y'), 0);
	CHECK(reads(&r, 2 * U, 512, 0));
	CHECK(reads(&r, 2 * U + 512, 512, 'Y'));
	CHECK_INT(zero(&r, VIRTIO_BLK_T_DISCARD, U, U, 1), VIRTIO_BLK_S_UNSUPP);
	CHECK_INT(zero(&r, VIRTIO_BLK_T_WRITE_ZEROES, U, U, 2), VIRTIO_BLK_S_UNSUPP);
	CHECK_INT(zero(&r, VIRTIO_BLK_T_DISCARD, BYTES, U, 0), VIRTIO_BLK_S_IOERR);
	rig_down(&r);
}

static void nonsense_is_an_io_error(void)
{
	struct rig r;
	struct fg_range rg[2];
	uint16_t head;
	uint32_t len;

	REQUIRE(rig_up(&r, ALL));
	CHECK_INT(one(&r, VIRTIO_BLK_T_IN, BYTES, r.data, 512), VIRTIO_BLK_S_IOERR);
	CHECK_INT(one(&r, VIRTIO_BLK_T_IN, BYTES - 512, r.data, 1024), VIRTIO_BLK_S_IOERR);
	CHECK_INT(one(&r, VIRTIO_BLK_T_IN, UINT64_MAX - 511, r.data, 1024), VIRTIO_BLK_S_IOERR);
	CHECK_INT(one(&r, VIRTIO_BLK_T_OUT, 0, r.data, 700), VIRTIO_BLK_S_IOERR);
	CHECK_INT(one(&r, VIRTIO_BLK_T_DISCARD, 0, r.data, 15), VIRTIO_BLK_S_IOERR);
	CHECK_INT(one(&r, 77, 0, r.data, 512), VIRTIO_BLK_S_UNSUPP);
	memset(fg_ptr(&r.g, r.data), 0, 32);
	CHECK_INT(one(&r, VIRTIO_BLK_T_GET_ID, 0, r.data, 20), 0);
	CHECK(memcmp(fg_ptr(&r.g, r.data), "root-0123456789abcdefXYZ", 20) == 0);
	CHECK_INT(*(uint8_t *)fg_ptr(&r.g, r.data + 20), 0);
	/* a header that is cut short */
	rg[0] = (struct fg_range){r.hdr, 8};
	rg[1] = (struct fg_range){r.status, 1};
	*(uint8_t *)fg_ptr(&r.g, r.status) = 0xee;
	fg_add(&r.g, 0, rg, 1, rg + 1, 1);
	fg_kick(&r.g, 0);
	drain(&r);
	CHECK(fg_used(&r.g, 0, &head, &len));
	CHECK_INT(status(&r, 0), VIRTIO_BLK_S_IOERR);
	CHECK_INT(r.g.needs_resets, 0);
	/* no room for a status: nobody could be told */
	rg[0] = (struct fg_range){r.hdr, 16};
	fg_add(&r.g, 0, rg, 1, NULL, 0);
	fg_kick(&r.g, 0);
	drain(&r);
	CHECK_INT(r.g.needs_resets, 1);
	/* and after a reset it works again */
	REQUIRE(fg_probe(&r.g, vblk_dev(r.b), ALL, 64));
	CHECK(reads(&r, 0, 4096, 'a'));
	rig_down(&r);
}

static void partial_writes_to_one_unit_at_once_all_arrive(void)
{
	struct rig r;
	uint8_t *p;
	uint16_t head;
	uint32_t n;

	REQUIRE(rig_up(&r, ALL));
	p = fg_ptr(&r.g, r.data);
	for (unsigned int round = 0; round < 20; round++) {
		uint64_t unit = round * U;

		/* eight sectors of one unit in eight requests, and a whole write of the next unit,
		 * none waiting for another */
		for (unsigned int i = 0; i < 8; i++) {
			memset(p + i * 512, '0' + (int)i, 512);
			add(&r, i, VIRTIO_BLK_T_OUT, unit + i * 512, r.data + i * 512, 512);
		}
		fg_kick(&r.g, 0);
		drain(&r);
		for (unsigned int i = 0; i < 8; i++) {
			CHECK(fg_used(&r.g, 0, &head, &n));
			CHECK_INT(status(&r, i), 0);
		}
		for (unsigned int i = 0; i < 8; i++)
			CHECK(reads(&r, unit + i * 512, 512, (uint8_t)('0' + i)));
	}
	rig_down(&r);
}

static void random_requests_match_a_model(void)
{
	static uint8_t model[BYTES];
	struct rig r;
	unsigned int seed = 1;

	REQUIRE(rig_up(&r, ALL | 1ull << VIRTIO_BLK_F_DISCARD | 1ull << VIRTIO_BLK_F_WRITE_ZEROES));
	memset(model, 0, sizeof(model));
	for (uint64_t u = 0; u < BYTES / U / 2; u++)
		memset(model + u * U, cf_base_byte(u), U);
	for (int i = 0; i < 1500; i++) {
		uint64_t off = (uint64_t)(rand_r(&seed) % (BYTES / 512)) * 512;
		uint64_t want = (uint64_t)(1 + rand_r(&seed) % 60) * 512;
		uint32_t len = (uint32_t)MIN(want, BYTES - off);
		uint8_t v = (uint8_t)rand_r(&seed);

		switch (rand_r(&seed) % 8) {
		case 0:
			CHECK_INT(zero(&r, VIRTIO_BLK_T_WRITE_ZEROES, off, len, 0), 0);
			memset(model + off, 0, len);
			break;
		case 1:
			off = ALIGN_DOWN(off, U);
			CHECK_INT(zero(&r, VIRTIO_BLK_T_DISCARD, off, U, 0), 0);
			memset(model + off, 0, U);
			break;
		case 2:
			CHECK_INT(one(&r, VIRTIO_BLK_T_FLUSH, 0, 0, 0), 0);
			break;
		case 3:
		case 4:
			CHECK_INT(one(&r, VIRTIO_BLK_T_IN, off, r.data, len), 0);
			CHECK(memcmp(fg_ptr(&r.g, r.data), model + off, len) == 0);
			break;
		default:
			CHECK_INT(writes(&r, off, len, v), 0);
			memset(model + off, v, len);
		}
	}
	CHECK_INT(one(&r, VIRTIO_BLK_T_IN, 0, r.data, BYTES), 0);
	CHECK(memcmp(fg_ptr(&r.g, r.data), model, BYTES) == 0);
	rig_down(&r);
}

static struct {
	unsigned int calls, waiting;
} full;

static void on_full(void *ctx, unsigned int disk, unsigned int waiting)
{
	full.calls++;
	full.waiting = waiting;
}

/* A disk on a file system of its own, which is full when `free` units are written. */
static int small_host(struct rig *r, char *dir, unsigned int free_units)
{
	char opt[64], path[80];
	int fd;

	snprintf(opt, sizeof(opt), "size=%llu", (unsigned long long)((free_units + 2) * U));
	if (mount("tmpfs", dir, "tmpfs", 0, opt) < 0)
		return -errno;
	snprintf(path, sizeof(path), "%s/data", dir);
	close_fd(&r->files.data);
	close_fd(&r->files.bitmap);
	r->files.data = fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	r->files.bitmap = cf_file();
	return fd < 0 ? -errno : cow_layer_create(fd, r->files.bitmap, BYTES, NULL);
}

/* 0, or 1: skipped, -1: failed */
static int full_rig_up(struct rig *r, char *dir, unsigned int free_units)
{
	struct err e = {0};

	memset(r, 0, sizeof(*r));
	if (!mkdtemp(dir) || unshare(CLONE_NEWNS) < 0 ||
		mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return 1;
	full.calls = full.waiting = 0;
	fg_init(&r->g);
	r->g.env.disk_full = on_full;
	r->files = cf_disk(BYTES, BYTES / 2);
	if (small_host(r, dir, free_units) < 0 ||
		bio_create(&r->bio, r->g.loop, VBLK_BIO_DEPTH, bio_flags, &e) < 0)
		return -1;
	r->hdr = fg_alloc(&r->g, 64 * 64);
	r->status = fg_alloc(&r->g, 64);
	r->data = fg_alloc(&r->g, MIB(1));
	return rig_open(r, ALL, false) ? 0 : -1;
}

static void full_rig_down(struct rig *r, const char *dir)
{
	rig_down(r);
	umount(dir);
	rmdir(dir);
}

static void make_room(const char *dir)
{
	CHECK_INT(mount("tmpfs", dir, "tmpfs", MS_REMOUNT, "size=16m"), 0);
}

static void until_used(struct rig *r, unsigned int n)
{
	uint16_t head;
	uint32_t len;

	for (int i = 0; i < 3000 && n; i++) {
		loop_turn(r->g.loop, 10);
		fg_run(&r->g);
		while (n && fg_used(&r->g, 0, &head, &len))
			n--;
	}
	CHECK_INT(n, 0);
}

static void a_write_waits_for_room_on_the_host(void)
{
	char dir[] = "/tmp/vblk.XXXXXX";
	uint16_t head;
	struct rig r;
	uint32_t n;
	int rc = full_rig_up(&r, dir, 4);

	if (rc > 0) {
		printf("(not root: a full host is not tried)\n");
		return;
	}
	REQUIRE(rc == 0);
	memset(fg_ptr(&r.g, r.data), 'W', 16 * U);
	CHECK_INT(writes(&r, 0, 2 * U, 'X'), 0);
	memset(fg_ptr(&r.g, r.data), 'W', 16 * U);
	/* whole units, a copy-up, a discard's rest beside a read that does not wait */
	add(&r, 0, VIRTIO_BLK_T_OUT, 8 * U, r.data, 8 * U);
	add(&r, 1, VIRTIO_BLK_T_OUT, 20 * U + 512, r.data, 512);
	fg_kick(&r.g, 0);
	drain(&r);
	CHECK(full.calls == 1 && full.waiting == 1);
	add(&r, 2, VIRTIO_BLK_T_IN, 0, r.data + 16 * U, U);
	fg_kick(&r.g, 0);
	drain(&r);
	CHECK(fg_used(&r.g, 0, &head, &n) && status(&r, 2) == 0);
	CHECK(status(&r, 0) == 0xee);
	make_room(dir);
	until_used(&r, 2 - (status(&r, 1) != 0xee));
	CHECK(status(&r, 0) == 0 && status(&r, 1) == 0);
	CHECK_INT(full.waiting, 0);
	CHECK(reads(&r, 8 * U, 8 * U, 'W'));
	CHECK(reads(&r, 20 * U + 512, 512, 'W'));
	CHECK(reads(&r, 20 * U, 512, cf_base_byte(20)));
	full_rig_down(&r, dir);
}

/* The byte budget of a sandbox: what waits goes on when the guest discards something, or gets more. */
static void a_write_beyond_the_limit_waits(void)
{
	uint16_t head;
	struct rig r;
	uint32_t n;

	REQUIRE(rig_up(&r, ALL));
	memset(fg_ptr(&r.g, r.data), 'L', 16 * U);
	vblk_limit(r.b, 4 * U);
	CHECK_INT(writes(&r, 0, 4 * U, 'A'), 0);
	/* what is private already costs nothing */
	CHECK_INT(writes(&r, U, 2 * U, 'B'), 0);
	memset(fg_ptr(&r.g, r.data), 'L', 16 * U);
	add(&r, 0, VIRTIO_BLK_T_OUT, 8 * U, r.data, U);
	add(&r, 1, VIRTIO_BLK_T_OUT, 20 * U + 512, r.data, 512);
	fg_kick(&r.g, 0);
	drain(&r);
	CHECK(!fg_used(&r.g, 0, &head, &n));
	vblk_limit(r.b, 6 * U);
	until_used(&r, 2);
	CHECK(status(&r, 0) == 0 && status(&r, 1) == 0);
	CHECK(reads(&r, 8 * U, U, 'L'));
	CHECK(reads(&r, 20 * U + 512, 512, 'L'));
	rig_down(&r);
}

/* A stop does not wait for it, and what is restored of the state does it again. */
static void a_snapshot_has_the_writes_that_wait(void)
{
	char dir[] = "/tmp/vblk.XXXXXX";
	struct vblk_conf conf;
	struct vblk *to = NULL;
	struct cow_fds d;
	struct buf state;
	struct cur c;
	struct rig r;
	int rc = full_rig_up(&r, dir, 2);

	if (rc > 0)
		return;
	REQUIRE(rc == 0);
	memset(fg_ptr(&r.g, r.data), 'W', 16 * U);
	add(&r, 0, VIRTIO_BLK_T_OUT, 8 * U, r.data, 8 * U);
	fg_kick(&r.g, 0);
	drain(&r);
	CHECK_INT(full.calls, 1);
	CHECK_INT(virtio_quiesce(vblk_dev(r.b), NULL, NULL), 0);
	buf_init(&state, 4096);
	virtio_save(vblk_dev(r.b), &state);
	/* while it stands nothing is tried */
	make_room(dir);
	for (int i = 0; i < 8; i++)
		loop_turn(r.g.loop, 100);
	CHECK_INT(status(&r, 0), 0xee);
	d = cf_dup_all(&r.files);
	conf = (struct vblk_conf){.bio = r.bio, .slot = SLOT_DISK0};
	REQUIRE(cow_open(&conf.cow, &d, NULL) == 0 && vblk_create(&to, &conf, &r.g.env, NULL) == 0);
	CHECK_INT(fg_move(&r.g, vblk_dev(to)), 0);
	vblk_destroy(r.b);
	r.b = to;
	virtio_resume(vblk_dev(to), true);
	until_used(&r, 1);
	CHECK_INT(status(&r, 0), 0);
	CHECK(reads(&r, 8 * U, 8 * U, 'W'));
	/* hostile: heads that the ring has not, more than there can be */
	for (size_t i = 0; i < state.len; i++) {
		struct vblk *bad = NULL;
		struct err e;
		uint8_t was = state.p[i];

		d = cf_dup_all(&r.files);
		if (cow_open(&conf.cow, &d, NULL) < 0 ||
			vblk_create(&bad, &conf, &r.g.env, NULL) < 0)
			break;
		state.p[i] = 0xff;
		c = cur_of(state.p, state.len);
		(void)virtio_load(vblk_dev(bad), &c, &e);
		state.p[i] = was;
		vblk_destroy(bad);
	}
	buf_fini(&state);
	full_rig_down(&r, dir);
}

/* A length limit is no full disk: nobody waits for more. */
static void a_file_at_its_limit_is_an_io_error(void)
{
	struct rig r;
	struct rlimit old, lim;

	REQUIRE(rig_up(&r, ALL));
	getrlimit(RLIMIT_FSIZE, &old);
	signal(SIGXFSZ, SIG_IGN);
	lim = (struct rlimit){2 * U + 512, old.rlim_max};
	CHECK_INT(setrlimit(RLIMIT_FSIZE, &lim), 0);
	CHECK_INT(writes(&r, 0, 4096, 'X'), 0);
	CHECK_INT(writes(&r, U, 3 * 4096, 'Y'), VIRTIO_BLK_S_IOERR);
	CHECK_INT(writes(&r, 10 * U + 512, 512, 'Z'), VIRTIO_BLK_S_IOERR);
	setrlimit(RLIMIT_FSIZE, &old);
	CHECK(reads(&r, 0, 4096, 'X'));
	CHECK(reads(&r, 10 * U, 4096, cf_base_byte(10))); /* not half copied up */
	CHECK_INT(writes(&r, 10 * U + 512, 512, 'Z'), 0);
	CHECK(reads(&r, 10 * U, 512, cf_base_byte(10)));
	rig_down(&r);
}

static bool was_quiet;

static void on_quiet(void *arg)
{
	was_quiet = true;
}

static void it_goes_quiet_and_moves(void)
{
	struct rig r;
	struct vblk *to = NULL;
	struct vblk_conf conf;
	struct cow_fds d;
	uint16_t head;
	uint32_t n;
	int rc;

	REQUIRE(rig_up(&r, ALL));
	for (unsigned int i = 0; i < 16; i++)
		add(&r, i, VIRTIO_BLK_T_OUT, i * U + 512, r.data, 1024);
	add(&r, 16, VIRTIO_BLK_T_FLUSH, 0, 0, 0);
	fg_kick(&r.g, 0);
	loop_turn(r.g.loop, 0);
	was_quiet = false;
	rc = virtio_quiesce(vblk_dev(r.b), on_quiet, NULL);
	CHECK(rc == 0 || rc == -EINPROGRESS);
	while (rc == -EINPROGRESS && !was_quiet)
		loop_turn(r.g.loop, 1000);
	CHECK_INT(bio_inflight(r.bio), 0);
	for (unsigned int i = 0; i < 17; i++) {
		CHECK(fg_used(&r.g, 0, &head, &n));
		CHECK_INT(status(&r, i), 0);
	}
	/* what is offered meanwhile waits */
	add(&r, 0, VIRTIO_BLK_T_IN, 512, r.data, 512);
	fg_kick(&r.g, 0);
	fg_run(&r.g);
	CHECK(!fg_used(&r.g, 0, &head, &n));
	CHECK_INT(cow_flush(vblk_cow(r.b), NULL), 0);
	d = cf_dup_all(&r.files);
	conf = (struct vblk_conf){.bio = r.bio, .slot = SLOT_DISK0};
	REQUIRE(cow_open(&conf.cow, &d, NULL) == 0);
	REQUIRE(vblk_create(&to, &conf, &r.g.env, NULL) == 0);
	CHECK_INT(fg_move(&r.g, vblk_dev(to)), 0);
	vblk_destroy(r.b);
	r.b = to;
	virtio_resume(vblk_dev(to), true);
	drain(&r);
	CHECK(fg_used(&r.g, 0, &head, &n));
	CHECK_INT(status(&r, 0), 0);
	CHECK(reads(&r, 3 * U, 512, cf_base_byte(3)));
	rig_down(&r);
}

static void a_reset_with_requests_in_flight_forgets_them(void)
{
	struct rig r;

	REQUIRE(rig_up(&r, ALL));
	for (int round = 0; round < 30; round++) {
		for (unsigned int i = 0; i < 16; i++)
			add(&r, i, i % 3 ? VIRTIO_BLK_T_OUT : VIRTIO_BLK_T_FLUSH, i * 512, r.data,
				i % 3 ? 512 : 0);
		fg_kick(&r.g, 0);
		loop_turn(r.g.loop, 0);
		fg_write(&r.g, 0x70, 0);
		while (fg_read(&r.g, 0x70) !=
			0) /* a driver waits until the device has let go of its memory */
			loop_turn(r.g.loop, 1000);
		REQUIRE(fg_probe(&r.g, vblk_dev(r.b), ALL, 64));
		drain(&r);
		CHECK(reads(&r, 20 * U, 4096, cf_base_byte(20)));
	}
	CHECK_INT(r.g.needs_resets, 0);
	rig_down(&r);
}

/* Virtio 1.2, 2.4.2: who waits for 0 may use its memory again, which a request in flight still
 * writes to. */
static void a_reset_is_over_when_nothing_is_in_flight(void)
{
	enum { PIECES = 100 };
	struct fg_range rg[PIECES + 2];
	struct rig r;

	REQUIRE(rig_up(&r, ALL));
	put_hdr(&r, 0, VIRTIO_BLK_T_OUT, 0);
	rg[0] = (struct fg_range){r.hdr, sizeof(struct virtio_blk_head)};
	for (int i = 0; i < PIECES; i++)
		rg[1 + i] = (struct fg_range){r.data, BYTES / PIECES / 512 * 512};
	rg[PIECES + 1] = (struct fg_range){r.status, 1};
	r.g.q[0].indirect = true;
	fg_add(&r.g, 0, rg, PIECES + 1, rg + PIECES + 1, 1);
	fg_write(&r.g, VIRTIO_MMIO_NOTIFY, 0);
	loop_turn(r.g.loop, 0);
	fg_write(&r.g, 0x70, 0);
	/* the host's answers are taken in the loop's turns only: in between nothing changes */
	do {
		CHECK_INT(fg_read(&r.g, 0x70) != 0, bio_inflight(r.bio) != 0);
	} while (bio_inflight(r.bio) && (loop_turn(r.g.loop, 1000), true));
	CHECK_INT(fg_read(&r.g, 0x70), 0);
	rig_down(&r);
}

/* One that names the same range again and again is as much work as many: the device thread has
 * other things to do in between. */
static void a_turn_is_bounded_by_bytes(void)
{
	enum { N = 8, SEGS = 32 };
	struct fg_range rg[2];
	unsigned int done = 0;
	struct rig r;

	REQUIRE(rig_up(&r, ALL));
	vblk_destroy(r.b);
	cf_close_all(&r.files);
	r.files = cf_disk(GIB(1), U);
	REQUIRE(rig_open(&r, ALL, false));
	for (unsigned int i = 0; i < SEGS; i++) {
		struct virtio_blk_seg s = {.sector_le = 8, .sectors_le = (GIB(1) - U) / 512};

		memcpy(fg_ptr(&r.g, r.data + 16 + 16 * i), &s, sizeof(s));
	}
	for (unsigned int i = 0; i < N; i++) {
		struct virtio_blk_head h = {.type_le = VIRTIO_BLK_T_DISCARD};

		memcpy(fg_ptr(&r.g, r.data), &h, sizeof(h));
		*(uint8_t *)fg_ptr(&r.g, r.status + i) = 0xee;
		rg[0] = (struct fg_range){r.data, 16 + 16 * SEGS};
		rg[1] = (struct fg_range){r.status + i, 1};
		fg_add(&r.g, 0, rg, 1, rg + 1, 1);
	}
	fg_write(&r.g, VIRTIO_MMIO_NOTIFY, 0);
	loop_turn(r.g.loop, 0);
	for (unsigned int i = 0; i < N; i++)
		done += status(&r, i) != 0xee;
	CHECK(done < N);
	drain(&r);
	for (unsigned int i = 0; i < N; i++)
		CHECK_INT(status(&r, i), VIRTIO_BLK_S_OK);
	rig_down(&r);
}

static void a_read_only_disk_stays_as_it_is(void)
{
	struct rig r;

	REQUIRE(rig_up(&r, ALL));
	drain(&r);
	vblk_destroy(r.b);
	REQUIRE(rig_open(&r, ALL, true));
	fg_write(&r.g, 0x14, 0);
	CHECK(fg_read(&r.g, 0x10) & 1u << VIRTIO_BLK_F_RO);
	CHECK_INT(writes(&r, 0, 512, 'X'), VIRTIO_BLK_S_IOERR);
	CHECK_INT(zero(&r, VIRTIO_BLK_T_DISCARD, 0, U, 0), VIRTIO_BLK_S_UNSUPP);
	CHECK_INT(one(&r, VIRTIO_BLK_T_FLUSH, 0, 0, 0), 0);
	CHECK(reads(&r, 0, 4096, 'a'));
	rig_down(&r);
}

static const struct test tests[] = {
	{"reads_and_writes_all_kinds_of_runs", reads_and_writes_all_kinds_of_runs},
	{"flushed_writes_are_there_after_a_restart", flushed_writes_are_there_after_a_restart},
	{"discards_and_zeroes_hide_the_base", discards_and_zeroes_hide_the_base},
	{"nonsense_is_an_io_error", nonsense_is_an_io_error},
	{"partial_writes_to_one_unit_at_once_all_arrive",
		partial_writes_to_one_unit_at_once_all_arrive},
	{"random_requests_match_a_model", random_requests_match_a_model},
	{"a_file_at_its_limit_is_an_io_error", a_file_at_its_limit_is_an_io_error},
	{"a_write_waits_for_room_on_the_host", a_write_waits_for_room_on_the_host},
	{"a_write_beyond_the_limit_waits", a_write_beyond_the_limit_waits},
	{"a_snapshot_has_the_writes_that_wait", a_snapshot_has_the_writes_that_wait},
	{"it_goes_quiet_and_moves", it_goes_quiet_and_moves},
	{"a_reset_with_requests_in_flight_forgets_them",
		a_reset_with_requests_in_flight_forgets_them},
	{"a_reset_is_over_when_nothing_is_in_flight", a_reset_is_over_when_nothing_is_in_flight},
	{"a_turn_is_bounded_by_bytes", a_turn_is_bounded_by_bytes},
	{"a_read_only_disk_stays_as_it_is", a_read_only_disk_stays_as_it_is},
};

int main(int argc, char **argv)
{
	int bad = test_main(argc, argv, tests, ARRAY_LEN(tests));

	printf("again, without io_uring\n");
	bio_flags = BIO_NO_URING;
	return test_main(argc, argv, tests, ARRAY_LEN(tests)) || bad;
}
