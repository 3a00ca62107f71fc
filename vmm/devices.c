/* SPDX-License-Identifier: Apache-2.0
 *
 * devices.c: see devices.h. mayfly-vmm, the device thread. No hostile bytes here: the devices read
 * them.
 */
#include "vmm/devices.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "lib/log.h"
#include "lib/snap.h"
#include "vmm/balloon.h"
#include "vmm/bio.h"
#include "vmm/console.h"
#include "vmm/rng.h"
#include "vmm/vblk.h"
#include "vmm/vfs.h"
#include "vmm/vnet.h"
#include "vmm/vsock.h"

static void on_guest_conn(void *ctx, uint32_t host_port, uint32_t guest_port, int fd)
{
	struct vm *vm = ctx;
	struct buf b;

	buf_init(&b, 64);
	buf_u32(&b, host_port);
	buf_u32(&b, guest_port);
	vm->hooks.event(vm->hooks.ctx, VMM_EV_GUEST_CONN, b.p, b.len, fd);
	buf_fini(&b);
	close(fd);
}

static struct virtio_dev *make_vsock(struct vm *vm, struct err *e)
{
	struct vsock_config c = {
		.listen_fd = take_fd(&vm->vsock_fd_given), .ctx = vm, .guest_conn = on_guest_conn};

	return vsock_create(&vm->board.env, &c, e);
}

static struct virtio_dev *make_rng(struct vm *vm, struct err *e)
{
	return rng_create(&vm->board.env, e);
}

static void on_console(void *ctx, const void *p, size_t n)
{
	struct vm *vm = ctx;

	vm_console_bytes(vm, p, n);
	if (vm->console_fd >= 0)
		(void)!write(vm->console_fd, p, n);
}

static void on_room(void *ctx)
{
	struct vm *vm = ctx;
	uint64_t one = 1;

	if (vm->room_fd >= 0)
		(void)!write(vm->room_fd, &one, sizeof(one));
}

static struct virtio_dev *make_console(struct vm *vm, struct err *e)
{
	struct console_config c = {.ctx = vm, .out = on_console, .room = on_room};

	vm->board.serial.room = on_room;
	vm->board.serial.room_ctx = vm;

	return console_create(&vm->board.env, &c, e);
}

/* The devices of every VM, in the order of their slots. A restore refuses a snapshot without state
 * for one of them. So a device that older snapshots lack is not in this table: devices_add_*() adds
 * it. */
static const struct {
	unsigned int slot;
	struct virtio_dev *(*make)(struct vm *vm, struct err *e);
	void (*destroy)(struct virtio_dev *d);
} fixed[] = {
	{SLOT_VSOCK, make_vsock, vsock_destroy},
	{SLOT_RNG, make_rng, rng_destroy},
	{SLOT_CONSOLE, make_console, console_destroy},
};

int devices_create(struct vm *vm, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(fixed); i++) {
		struct virtio_dev *d = fixed[i].make(vm, e);
		int rc;

		if (!d)
			return -e->code;
		rc = board_attach(&vm->board, fixed[i].slot, d, fixed[i].destroy, e);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static void disk_destroy(struct virtio_dev *d)
{
	vblk_destroy((struct vblk *)(void *)
			d); /* the transport is every device's first member (virtio.h) */
}

static int add_disk(
	struct vm *vm, struct vm_disk *d, unsigned int i, unsigned int *taken, struct err *e)
{
	struct vblk_conf conf = {.bio = vm->bio,
		.serial = d->serial,
		.slot = SLOT_DISK0 + i,
		.read_only = (d->flags & VMM_DISK_RO) != 0};
	_cleanup_(cow_closep) struct cow *cow = NULL;
	int rc = cow_open(&cow, &d->fds, e);

	if (rc < 0)
		return rc;
	*taken = i + 1;
	conf.cow = cow;
	rc = vblk_create(&vm->disk[i], &conf, &vm->board.env, e);
	if (rc < 0)
		return rc;
	cow = NULL;
	vm->ndisks = i + 1;
	return board_attach(&vm->board, SLOT_DISK0 + i, vblk_dev(vm->disk[i]), disk_destroy, e);
}

/* Limits the length of files for good. Every file that this monitor gets for writing is a layer of
 * these disks or holds its guest's memory. So a monitor that was taken over cannot fill the host's
 * disk with a longer one. */
static void bound_files(const struct vm *vm)
{
	uint64_t max = vm->size.mem_bytes + vm->size.mem_bytes / SNAP_CHUNK * 4 +
		       MIB(2) * (SNAP_MAX_EXTENTS + 2);
	struct rlimit l;

	for (unsigned int i = 0; i < vm->ndisks; i++)
		max = MAX(max, cow_bytes(vblk_cow(vm->disk[i])) + COW_UNIT);
	l = (struct rlimit){max, max};
	if (setrlimit(RLIMIT_FSIZE, &l) < 0)
		log_warn("the length of files is not limited: %s", strerror(errno));
}

int vm_add_disks(
	struct vm *vm, struct vm_disk *d, unsigned int n, unsigned int *taken, struct err *e)
{
	int rc = 0;

	*taken = 0;
	if (vm->state != VMM_S_PREPARED || vm->ndisks)
		return err_plain(e, EBUSY, "disks are attached once, to a prepared VM");
	for (unsigned int i = 0; rc == 0 && i < n; i++) {
		rc = add_disk(vm, &d[i], i, taken, e);
		if (rc < 0)
			err_wrap(e, "disk %u", i);
	}
	if (rc == 0 && vm->sealed)
		bound_files(vm);
	return rc;
}

static void on_net_wanted(void *ctx)
{
	struct vm *vm = ctx;

	vm->hooks.event(vm->hooks.ctx, VMM_EV_NET_WANTED, NULL, 0, -1);
}

int devices_add_net(struct vm *vm, struct err *e)
{
	struct vnet_config c = {.ctx = vm, .wanted = on_net_wanted};
	struct virtio_dev *d;

	if (vm->state != VMM_S_PREPARED || vm->board.dev[SLOT_NET])
		return err_plain(e, EBUSY, "the network device is attached once, to a prepared VM");
	d = vnet_create(&vm->board.env, &c, e);
	return d ? board_attach(&vm->board, SLOT_NET, d, vnet_destroy, e) : -e->code;
}

int devices_link_net(
	struct vm *vm, int fd, uint64_t bytes_per_s, uint64_t packets_per_s, struct err *e)
{
	struct vnet_limits l = {.bytes_per_s = bytes_per_s, .packets_per_s = packets_per_s};
	int rc;

	if (!vm->board_up || !vm->board.dev[SLOT_NET]) {
		close_fd(&fd);
		return err_plain(e, ENODEV, "this VM has no network device");
	}
	rc = vnet_link(vm->board.dev[SLOT_NET], fd, &l);
	return rc < 0 ? err_set(e, -rc, "network device: link") : 0;
}

static void on_fs_lost(void *ctx, const char *why)
{
	struct vm *vm = ctx;
	struct buf b;

	buf_init(&b, 256);
	buf_str(&b, why);
	vm->hooks.event(vm->hooks.ctx, VMM_EV_FS_LOST, b.p, b.len, -1);
	buf_fini(&b);
}

int devices_add_fs(struct vm *vm, struct err *e)
{
	struct vfs_config c = {.ctx = vm, .lost = on_fs_lost};
	struct virtio_dev *d;

	if (vm->state != VMM_S_PREPARED || vm->board.dev[SLOT_FS])
		return err_plain(
			e, EBUSY, "the device for volumes is attached once, to a prepared VM");
	d = vfs_create(&vm->board.env, &c, e);
	return d ? board_attach(&vm->board, SLOT_FS, d, vfs_destroy, e) : -e->code;
}

int devices_link_fs(struct vm *vm, int sock, int table, struct err *e)
{
	_cleanup_close_ int sock_fd = sock, table_fd = table;
	int rc;

	if (!vm->board_up || !vm->board.dev[SLOT_FS])
		return err_plain(e, ENODEV, "this VM has no device for volumes");
	rc = vfs_attach(vm->board.dev[SLOT_FS], take_fd(&sock_fd));
	if (rc < 0)
		return err_set(e, -rc, "file server");
	close_fd(&vm->fs_table_fd);
	vm->fs_table_fd = take_fd(&table_fd);
	return 0;
}

int devices_add_balloon(struct vm *vm, struct err *e)
{
	struct virtio_dev *d;

	if (vm->state != VMM_S_PREPARED || vm->board.dev[SLOT_BALLOON])
		return err_plain(e, EBUSY, "the balloon is attached once, to a prepared VM");
	d = balloon_create(&vm->board.env, e);
	return d ? board_attach(&vm->board, SLOT_BALLOON, d, balloon_destroy, e) : -e->code;
}

int devices_balloon(struct vm *vm, uint64_t bytes, uint64_t *actual, struct err *e)
{
	if (!vm->board_up || !vm->board.dev[SLOT_BALLOON])
		return err_plain(e, ENODEV, "this VM has no balloon");
	balloon_set_target(vm->board.dev[SLOT_BALLOON], bytes);
	*actual = balloon_actual(vm->board.dev[SLOT_BALLOON]);
	return 0;
}

void devices_tell_fs_table(struct vm *vm)
{
	if (vm->fs_table_fd >= 0)
		vm->hooks.event(vm->hooks.ctx, VMM_EV_FS_TABLE, NULL, 0, vm->fs_table_fd);
}

int devices_allow_ports(struct vm *vm, const uint32_t *ports, unsigned int n, struct err *e)
{
	int rc;

	if (!vm->board_up)
		return err_plain(e, EBUSY, "ports: the VM is not prepared");
	rc = vsock_allow(vm->board.dev[SLOT_VSOCK], ports, n);
	return rc < 0 ? err_set(e, -rc, "%u ports", n) : 0;
}

struct stat_ctx {
	vm_stat_fn fn;
	void *arg;
};

static void one_stat(void *arg, const char *dev, const char *name, uint64_t value)
{
	struct stat_ctx *c = arg;
	char full[64];

	snprintf(full, sizeof(full), "%s.%s", dev, name);
	c->fn(c->arg, full, value);
}

void devices_stats(struct vm *vm, vm_stat_fn fn, void *arg)
{
	struct stat_ctx c = {fn, arg};

	for (unsigned int i = 0; i < BOARD_VIRTIO_SLOTS; i++)
		if (vm->board.dev[i])
			virtio_stats(vm->board.dev[i], one_stat, &c);
}
