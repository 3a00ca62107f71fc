/* SPDX-License-Identifier: Apache-2.0
 *
 * board_fdt.c: describes the board to the guest's kernel: device tree and command line.
 * mayfly-vmm, before the vCPUs run. No hostile bytes.
 *
 * Bindings: Documentation/devicetree/bindings/{x86/ce4100.txt, virtio/mmio.yaml,
 * rng/microsoft,vmgenid.yaml, misc/pvpanic-mmio.txt}. The interrupt's second cell is the row of the
 * kernel's table of_ioapic_type: 3 = rising edge, high; an irqfd gives exactly that.
 */
#include <libfdt.h>
#include <stdio.h>

#include "vmm/board.h"

#define LAPIC_ADDR  0xfee00000u
#define IOAPIC_ADDR 0xfec00000u
#define EDGE_RISING 3u
#define PH_IOAPIC   1u

/* libfdt's calls fail one by one; the first failure is kept and the rest become no-ops */
struct tree {
	void *fdt;
	int rc;
};

#define DO(t, call) ((t)->rc = (t)->rc ? (t)->rc : (call))

static void begin(struct tree *t, const char *base, uint64_t at)
{
	char name[64];

	snprintf(name, sizeof(name), "%s@%llx", base, (unsigned long long)at);
	DO(t, fdt_begin_node(t->fdt, name));
}

static void reg(struct tree *t, uint64_t at, uint64_t bytes)
{
	fdt64_t r[2] = {cpu_to_fdt64(at), cpu_to_fdt64(bytes)};

	DO(t, fdt_property(t->fdt, "reg", r, sizeof(r)));
}

static void irq(struct tree *t, uint32_t line)
{
	fdt32_t v[2] = {cpu_to_fdt32(line), cpu_to_fdt32(EDGE_RISING)};

	DO(t, fdt_property(t->fdt, "interrupts", v, sizeof(v)));
}

static void put_cpus(struct tree *t, unsigned int n)
{
	DO(t, fdt_begin_node(t->fdt, "cpus"));
	DO(t, fdt_property_u32(t->fdt, "#address-cells", 1));
	DO(t, fdt_property_u32(t->fdt, "#size-cells", 0));
	for (unsigned int i = 0; i < n; i++) {
		begin(t, "cpu", i);
		DO(t, fdt_property_string(t->fdt, "device_type", "cpu"));
		DO(t, fdt_property_string(t->fdt, "compatible", "x86"));
		DO(t, fdt_property_u32(t->fdt, "reg", i));
		DO(t, fdt_end_node(t->fdt));
	}
	DO(t, fdt_end_node(t->fdt));
}

static void put_controllers(struct tree *t)
{
	begin(t, "interrupt-controller", LAPIC_ADDR);
	DO(t, fdt_property_string(t->fdt, "compatible", "intel,ce4100-lapic"));
	reg(t, LAPIC_ADDR, 0x1000);
	DO(t, fdt_end_node(t->fdt));
	begin(t, "interrupt-controller", IOAPIC_ADDR);
	DO(t, fdt_property_string(t->fdt, "compatible", "intel,ce4100-ioapic"));
	reg(t, IOAPIC_ADDR, 0x1000);
	DO(t, fdt_property(t->fdt, "interrupt-controller", NULL, 0));
	DO(t, fdt_property_u32(t->fdt, "#interrupt-cells", 2));
	DO(t, fdt_property_u32(t->fdt, "phandle", PH_IOAPIC));
	DO(t, fdt_end_node(t->fdt));
}

static void put_devices(struct tree *t, const struct board *b)
{
	begin(t, "vmgenid", BOARD_VMGENID_ADDR);
	DO(t, fdt_property_string(t->fdt, "compatible", "microsoft,vmgenid"));
	reg(t, BOARD_VMGENID_ADDR, 16);
	irq(t, BOARD_VMGENID_IRQ);
	DO(t, fdt_end_node(t->fdt));
	begin(t, "pvpanic", BOARD_PVPANIC_ADDR);
	DO(t, fdt_property_string(t->fdt, "compatible", "qemu,pvpanic-mmio"));
	reg(t, BOARD_PVPANIC_ADDR, 2);
	DO(t, fdt_end_node(t->fdt));
	for (unsigned int i = 0; i < BOARD_VIRTIO_SLOTS; i++) {
		uint64_t at = BOARD_VIRTIO_BASE + i * (uint64_t)PAGE_BYTES;

		if (!b->dev[i])
			continue;
		begin(t, "virtio", at);
		DO(t, fdt_property_string(t->fdt, "compatible", "virtio,mmio"));
		reg(t, at, PAGE_BYTES);
		irq(t, BOARD_VIRTIO_IRQ + i);
		DO(t, fdt_end_node(t->fdt));
	}
}

int board_fdt(const struct board *b, unsigned int nvcpus, void *to, size_t cap, size_t *bytes,
	struct err *e)
{
	struct tree t = {.fdt = to};

	DO(&t, fdt_create(to, (int)cap));
	DO(&t, fdt_finish_reservemap(to));
	DO(&t, fdt_begin_node(to, ""));
	DO(&t, fdt_property_string(to, "compatible", "mayfly,board-1"));
	DO(&t, fdt_property_u32(to, "#address-cells", 2));
	DO(&t, fdt_property_u32(to, "#size-cells", 2));
	DO(&t, fdt_property_u32(to, "interrupt-parent", PH_IOAPIC));
	DO(&t, fdt_begin_node(to, "chosen"));
	DO(&t, fdt_end_node(to));
	put_cpus(&t, nvcpus);
	put_controllers(&t);
	put_devices(&t, b);
	DO(&t, fdt_end_node(to));
	DO(&t, fdt_finish(to));
	if (t.rc)
		return err_plain(e, ENOSPC, "device tree: %s", fdt_strerror(t.rc));
	*bytes = fdt_totalsize(to);
	return 0;
}

void board_cmdline(const struct board *b, struct buf *out)
{
	/* reboot=k: by port 0x64, one exit. panic=-1: reboot at once. no_timer_check: there is no
	 * PIT, and a probe would wait until it times out. */
	buf_printf(out, "reboot=k panic=-1 random.trust_cpu=on no_timer_check");
	/* An idle guest sleeps. The guest reads its clock from KVM, so nothing needs the watchdog
	 * that checks the TSC twice a second. Proactive compaction wakes a kernel thread twice a
	 * second; memory is still compacted on demand. */
	buf_printf(out, " tsc=nowatchdog sysctl.vm.compaction_proactiveness=0");
	/* quiet: each byte on a console is an exit or a kick */
	if (b->serial_on)
		buf_printf(out, " console=ttyS0 earlyprintk=serial,ttyS0,115200 loglevel=7");
	else
		buf_printf(out, " quiet loglevel=3 8250.nr_uarts=0");
	if (b->dev[SLOT_CONSOLE])
		buf_printf(out, " console=hvc0");
}
