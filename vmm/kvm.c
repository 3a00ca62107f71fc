/* SPDX-License-Identifier: Apache-2.0
 *
 * kvm.c: see kvm.h. mayfly-vmm, at set-up; kvm_pre_fault() while the vCPUs are parked. No hostile
 * bytes.
 */
#include "vmm/kvm.h"

#include <fcntl.h>
#include <sys/ioctl.h>

int kvm_ioctl(int fd, unsigned long req, void *arg)
{
	int rc;

	do
		rc = ioctl(fd, req, arg);
	while (rc < 0 && errno == EINTR);
	return rc;
}

static int has(int fd, long cap)
{
	int rc = ioctl(fd, KVM_CHECK_EXTENSION, cap);

	return rc < 0 ? 0 : rc;
}

static const struct {
	long cap;
	const char *name;
} needed[] = {
	{KVM_CAP_IRQCHIP, "KVM_CAP_IRQCHIP"},
	{KVM_CAP_USER_MEMORY, "KVM_CAP_USER_MEMORY"},
	{KVM_CAP_IRQFD, "KVM_CAP_IRQFD"},
	{KVM_CAP_IOEVENTFD, "KVM_CAP_IOEVENTFD"},
	{KVM_CAP_IMMEDIATE_EXIT, "KVM_CAP_IMMEDIATE_EXIT"},
	{KVM_CAP_ADJUST_CLOCK, "KVM_CAP_ADJUST_CLOCK"},
	{KVM_CAP_VCPU_EVENTS, "KVM_CAP_VCPU_EVENTS"},
	{KVM_CAP_MP_STATE, "KVM_CAP_MP_STATE"},
};

static const struct {
	long cap;
	uint32_t bit;
} wanted[] = {
	{KVM_CAP_PRE_FAULT_MEMORY, KVM_HAVE_PRE_FAULT},
	{KVM_CAP_TSC_CONTROL, KVM_HAVE_TSC_CONTROL},
	{KVM_CAP_XSAVE2, KVM_HAVE_XSAVE2},
	{KVM_CAP_DEBUGREGS, KVM_HAVE_DEBUGREGS},
	{KVM_CAP_XCRS, KVM_HAVE_XCRS},
};

int kvm_open(struct kvm *k, int fd, struct err *e)
{
	int n;

	*k = (struct kvm){.fd = fd, .vm_fd = -1};
	if (fd < 0)
		k->fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (k->fd < 0)
		return err_set(e, errno, "open /dev/kvm");
	n = ioctl(k->fd, KVM_GET_API_VERSION, 0);
	if (n != KVM_API_VERSION)
		return err_plain(e, ENODEV, "the KVM descriptor speaks version %d, not %d", n,
			KVM_API_VERSION);
	for (size_t i = 0; i < ARRAY_LEN(needed); i++)
		if (!has(k->fd, needed[i].cap))
			return err_plain(e, ENODEV, "this host's KVM lacks %s", needed[i].name);
	for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
		if (has(k->fd, wanted[i].cap))
			k->have |= wanted[i].bit;
	k->xsave_bytes = sizeof(struct kvm_xsave);
	n = ioctl(k->fd, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (n < (int)sizeof(struct kvm_run))
		return err_plain(e, ENODEV, "KVM_GET_VCPU_MMAP_SIZE says %d", n);
	k->run_bytes = (uint32_t)n;
	return 0;
}

static int add_slot(struct kvm *k, uint32_t slot, uint64_t gpa, uint64_t bytes, const uint8_t *hva,
	struct err *e)
{
	struct kvm_userspace_memory_region r = {.slot = slot,
		.guest_phys_addr = gpa,
		.memory_size = bytes,
		.userspace_addr = (uintptr_t)hva};

	if (kvm_ioctl(k->vm_fd, KVM_SET_USER_MEMORY_REGION, &r) < 0)
		return err_set(e, errno, "register %llu MiB of guest memory at %#llx",
			(unsigned long long)(bytes >> 20), (unsigned long long)gpa);
	return 0;
}

int kvm_vm_create(struct kvm *k, const struct mem *m, struct err *e)
{
	uint64_t high = m->ram_bytes - m->low_bytes;
	int n, rc;

	/* EINTR: KVM_CREATE_VM walks all mappings, and a pending signal interrupts that */
	do
		k->vm_fd = ioctl(k->fd, KVM_CREATE_VM, 0);
	while (k->vm_fd < 0 && errno == EINTR);
	if (k->vm_fd < 0)
		return err_set(e, errno, "KVM_CREATE_VM");
	n = has(k->vm_fd, KVM_CAP_XSAVE2);
	if (n > (int)sizeof(struct kvm_xsave))
		k->xsave_bytes = (uint32_t)n;
	rc = add_slot(k, 0, 0, m->low_bytes, m->base, e);
	if (rc == 0 && high)
		rc = add_slot(k, 1, MEM_HOLE_END, high, m->base + MEM_HOLE_END, e);
	return rc;
}

int kvm_irqfd(struct kvm *k, int evfd, unsigned int line, struct err *e)
{
	struct kvm_irqfd q = {.fd = (uint32_t)evfd, .gsi = line};

	if (kvm_ioctl(k->vm_fd, KVM_IRQFD, &q) < 0)
		return err_set(e, errno, "KVM_IRQFD for line %u", line);
	return 0;
}

int kvm_ioeventfd(struct kvm *k, int evfd, uint64_t gpa, bool on, struct err *e)
{
	struct kvm_ioeventfd q = {
		.addr = gpa, .len = 4, .fd = evfd, .flags = on ? 0 : KVM_IOEVENTFD_FLAG_DEASSIGN};

	if (kvm_ioctl(k->vm_fd, KVM_IOEVENTFD, &q) < 0)
		return err_set(e, errno, "KVM_IOEVENTFD at %#llx", (unsigned long long)gpa);
	return 0;
}

int kvm_pre_fault(struct kvm *k, int vcpu_fd, uint64_t gpa, uint64_t bytes)
{
	struct kvm_pre_fault_memory q = {.gpa = gpa, .size = bytes};

	if (!(k->have & KVM_HAVE_PRE_FAULT))
		return -EOPNOTSUPP;
	/* the kernel adds to gpa what is done and takes it from size; EINTR and EAGAIN: call
	 * again */
	while (q.size)
		if (ioctl(vcpu_fd, KVM_PRE_FAULT_MEMORY, &q) < 0 && errno != EINTR &&
			errno != EAGAIN)
			return -errno;
	return 0;
}

void kvm_close(struct kvm *k)
{
	close_fd(&k->vm_fd);
	close_fd(&k->fd);
}
