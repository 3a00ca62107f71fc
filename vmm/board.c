/* SPDX-License-Identifier: Apache-2.0
 *
 * board.c: see board.h. Accesses are the guest's: address, length and bytes are hostile; an address
 * outside the table does nothing.
 */
#include "vmm/board.h"

#include <string.h>
#include <sys/eventfd.h>

#include "lib/log.h"

#define PORT_RESET    0x64u /* the keyboard controller's command port: reboot=k */
#define RESET_COMMAND 0xfeu

enum { PVPANIC_PANICKED = 1, PVPANIC_CRASH_LOADED = 2, PVPANIC_SHUTDOWN = 4 };

static void pulse(void *ctx, unsigned int line)
{
	struct board *b = ctx;
	uint64_t one = 1;

	ASSERT(line < BOARD_LINES);
	(void)!write(b->irq_fd[line], &one, sizeof(one));
}

static void serial_irq(void *ctx)
{
	pulse(ctx, BOARD_SERIAL_IRQ);
}

static void serial_byte(void *ctx, uint8_t byte)
{
	struct board *b = ctx;

	b->hooks.serial_out(b->hooks.ctx, byte);
}

static int connect_line(struct board *b, unsigned int line, struct err *e)
{
	if (b->irq_fd[line] >= 0)
		return 0;
	b->irq_fd[line] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (b->irq_fd[line] < 0)
		return err_set(e, errno, "eventfd of interrupt line %u", line);
	return b->kvm ? kvm_irqfd(b->kvm, b->irq_fd[line], line, e) : 0;
}

/* KVM signals the slot's eventfd from now on. If KVM refuses, each notification is an exit and the
 * vCPU's thread signals the eventfd (virtio.c). */
static void connect_notify(struct board *b, unsigned int slot)
{
	uint64_t at = BOARD_VIRTIO_BASE + slot * (uint64_t)PAGE_BYTES + VIRTIO_MMIO_NOTIFY;
	struct err e = {0};

	b->notify_on |= 1u << slot;
	if (b->kvm && kvm_ioeventfd(b->kvm, b->notify_fd[slot], at, true, &e) < 0)
		log_warn("device slot %u: each notification is an exit: %s", slot, e.msg);
}

bool board_connect(struct board *b, bool all)
{
	for (unsigned int i = 0; i < BOARD_VIRTIO_SLOTS; i++) {
		bool free_slot = all && !(b->notify_taken & 1u << i);

		if (b->notify_on & 1u << i || !(free_slot || b->dev[i]))
			continue;
		/* no error here: board_attach() tries again if the slot gets a device */
		if (connect_line(b, BOARD_VIRTIO_IRQ + i, NULL) < 0)
			close_fd(&b->irq_fd[BOARD_VIRTIO_IRQ + i]);
		if (b->notify_fd[i] < 0)
			b->notify_fd[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (b->notify_fd[i] < 0)
			return false;
		connect_notify(b, i);
		return true;
	}
	return false;
}

static int take_notify_fd(void *ctx, unsigned int slot)
{
	struct board *b = ctx;

	/* the device owns it; the number stays here for connect_notify() */
	if (b->notify_fd[slot] < 0)
		b->notify_fd[slot] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	b->notify_taken |= 1u << slot;
	return b->notify_fd[slot];
}

static void dev_needs_reset(void *ctx, const char *dev, const char *why)
{
	struct board *b = ctx;

	b->hooks.needs_reset(b->hooks.ctx, dev, why);
}

static void dev_disk_full(void *ctx, unsigned int disk, unsigned int waiting)
{
	struct board *b = ctx;

	if (b->hooks.disk_full)
		b->hooks.disk_full(b->hooks.ctx, disk, waiting);
}

static void dev_given_back(void *ctx, uint64_t bytes)
{
	struct board *b = ctx;

	if (b->hooks.given_back)
		b->hooks.given_back(b->hooks.ctx, bytes);
}

int board_init(struct board *b, struct kvm *k, struct mem *m, struct loop *l,
	const struct board_hooks *h, struct err *e)
{
	int rc = 0;

	*b = (struct board){.hooks = *h, .kvm = k};
	b->env = (struct dev_env){.mem = m,
		.loop = l,
		.ctx = b,
		.irq = pulse,
		.needs_reset = dev_needs_reset,
		.disk_full = dev_disk_full,
		.given_back = dev_given_back,
		.take_notify_fd = take_notify_fd};
	for (unsigned int i = 0; i < BOARD_LINES; i++)
		b->irq_fd[i] = -1;
	for (unsigned int i = 0; i < BOARD_VIRTIO_SLOTS; i++)
		b->notify_fd[i] = -1;
	serial_init(&b->serial, b, serial_irq, serial_byte);
	for (unsigned int i = BOARD_VMGENID_IRQ; rc == 0 && i < BOARD_VIRTIO_IRQ; i++)
		rc = connect_line(b, i, e);
	return rc;
}

void board_fini(struct board *b)
{
	for (unsigned int i = 0; i < BOARD_VIRTIO_SLOTS; i++)
		if (b->dev[i])
			b->destroy[i](b->dev[i]);
	for (unsigned int i = 0; i < BOARD_LINES; i++)
		close_fd(&b->irq_fd[i]);
	for (unsigned int i = 0; i < BOARD_VIRTIO_SLOTS; i++)
		if (!(b->notify_taken & 1u << i))
			close_fd(&b->notify_fd[i]);
}

int board_attach(struct board *b, unsigned int slot, struct virtio_dev *d,
	void (*destroy)(struct virtio_dev *d), struct err *e)
{
	if (slot >= BOARD_VIRTIO_SLOTS || b->dev[slot])
		return err_plain(e, EBUSY, "device slot %u is taken", slot);
	b->dev[slot] = d;
	b->destroy[slot] = destroy;
	return connect_line(b, BOARD_VIRTIO_IRQ + slot, e);
}

static void on_pvpanic(struct board *b, uint8_t *p, uint32_t len, bool write)
{
	uint8_t v = p[0];

	if (!write) {
		memset(p, 0, len);
		p[0] = PVPANIC_PANICKED | PVPANIC_SHUTDOWN;
		return;
	}
	if (v & (PVPANIC_PANICKED | PVPANIC_CRASH_LOADED))
		b->hooks.panicked(b->hooks.ctx);
	else if (v & PVPANIC_SHUTDOWN)
		b->hooks.end(b->hooks.ctx, VMM_X_POWEROFF, "the guest powered off");
}

static bool virtio_at(uint64_t gpa)
{
	return gpa >= BOARD_VIRTIO_BASE &&
	       gpa - BOARD_VIRTIO_BASE < BOARD_VIRTIO_SLOTS * (uint64_t)PAGE_BYTES;
}

void board_mmio(struct board *b, uint64_t gpa, void *data, uint32_t len, bool write)
{
	if (virtio_at(gpa)) {
		uint64_t off = gpa - BOARD_VIRTIO_BASE;
		struct virtio_dev *d = b->dev[off / PAGE_BYTES];

		if (d && write)
			virtio_mmio_write(d, (uint32_t)(off % PAGE_BYTES), data, len);
		else if (d)
			virtio_mmio_read(d, (uint32_t)(off % PAGE_BYTES), data, len);
		else if (!write)
			memset(data, 0, len); /* the driver reads magic 0: no device here */
		return;
	}
	if (gpa == BOARD_PVPANIC_ADDR) {
		on_pvpanic(b, data, len, write);
		return;
	}
	atomic_fetch_add_explicit(&b->unknown_mmio, 1, memory_order_relaxed);
	if (!write)
		memset(data, 0xff, len);
}

void board_pio(struct board *b, uint16_t port, void *data, uint32_t size, bool write)
{
	uint8_t *p = data;

	if (port >= BOARD_SERIAL_PORT && port < BOARD_SERIAL_PORT + 8 && b->serial_on) {
		if (write)
			serial_write(&b->serial, port - BOARD_SERIAL_PORT, p[0]);
		else
			memset(p, serial_read(&b->serial, port - BOARD_SERIAL_PORT), size);
		return;
	}
	if (write && port == PORT_RESET && p[0] == RESET_COMMAND) {
		b->hooks.end(b->hooks.ctx, VMM_X_RESET, "the guest asked for a reset");
		return;
	}
	atomic_fetch_add_explicit(&b->unknown_pio, 1, memory_order_relaxed);
	/* PORT_RESET reads 0: the driver waits until "input buffer full" is clear */
	if (!write)
		memset(p, port == PORT_RESET ? 0 : 0xff, size);
}

void board_new_generation(struct board *b, bool tell)
{
	uint8_t id[16];

	random_bytes(id, sizeof(id));
	ASSERT(mem_write(b->env.mem, GPA(BOARD_VMGENID_ADDR), id, sizeof(id)));
	if (tell)
		pulse(b, BOARD_VMGENID_IRQ);
}

static void one_quiet(void *arg)
{
	struct board *b = arg;

	if (--b->quiet_left == 0)
		b->quiet_done(b->quiet_arg);
}

int board_quiesce(struct board *b, void (*done)(void *), void *arg)
{
	b->quiet_done = done;
	b->quiet_arg = arg;
	b->quiet_left =
		1; /* for this loop: quiet_done() must not be called before all were asked */
	for (unsigned int i = 0; i < BOARD_VIRTIO_SLOTS; i++) {
		if (!b->dev[i])
			continue;
		b->quiet_left++;
		if (virtio_quiesce(b->dev[i], one_quiet, b) == 0)
			b->quiet_left--;
	}
	return --b->quiet_left ? -EINPROGRESS : 0;
}

void board_resume(struct board *b, bool restored)
{
	if (restored && b->serial_on)
		serial_kick(&b->serial);
	for (unsigned int i = 0; i < BOARD_VIRTIO_SLOTS; i++)
		if (b->dev[i])
			virtio_resume(b->dev[i], restored);
}

void board_save_dev(struct board *b, unsigned int slot, struct buf *out)
{
	virtio_save(b->dev[slot], out);
}

int board_load_dev(struct board *b, unsigned int slot, struct cur *in, struct err *e)
{
	int rc = virtio_load(b->dev[slot], in, e);

	if (rc < 0)
		return err_wrap(e, "device %s in slot %u", b->dev[slot]->ops->name, slot);
	return cur_done(in) ? 0
			    : err_plain(e, EBADMSG, "device %s in slot %u: bytes left over",
				      b->dev[slot]->ops->name, slot);
}

#define BOARD_STATE_VERSION 2 /* 1: without the serial port's registers */

void board_save(struct board *b, struct buf *out)
{
	buf_u16(out, BOARD_STATE_VERSION);
	buf_u8(out, b->serial_on);
	serial_save(&b->serial, out);
}

int board_load(struct board *b, struct cur *in, struct err *e)
{
	uint16_t version = cur_u16(in);
	uint8_t serial = cur_u8(in);

	if (version < 1 || version > BOARD_STATE_VERSION || serial > 1)
		return err_plain(e, EBADMSG, "snapshot state: board: version %u", version);
	if (version > 1 && !serial_load(&b->serial, in))
		return err_plain(e, EBADMSG, "snapshot state: board: cut off");
	if (!cur_done(in))
		return err_plain(e, EBADMSG, "snapshot state: board: bytes left over");
	b->serial_on = serial;
	return 0;
}
