/* SPDX-License-Identifier: Apache-2.0
 *
 * ctlmsg.c: see ctlmsg.h. mayfly-vmm. All bytes are hostile.
 */
#include "vmm/ctlmsg.h"

#include <string.h>

/* Takes descriptors in the order of the protocol. bad: there were too few. */
struct fd_cur {
	const int *fds;
	size_t left;
	bool bad;
};

static int next_fd(struct fd_cur *f)
{
	if (!f->left) {
		f->bad = true;
		return -1;
	}
	f->left--;
	return *f->fds++;
}

static int finish(const struct cur *c, const struct fd_cur *f, const char *what, struct err *e)
{
	if (!cur_done(c))
		return err_plain(e, EBADMSG, "%s: payload %s", what,
			c->bad ? "cut off or a field out of range" : "longer than its fields");
	if (f->bad || f->left)
		return err_plain(
			e, EBADMSG, "%s: %s descriptors", what, f->bad ? "too few" : "too many");
	return 0;
}

int ctl_parse_hdr(const void *p, size_t n, struct vmm_hdr *h, struct err *e)
{
	*h = (struct vmm_hdr){0};
	if (n < sizeof(*h))
		return err_plain(e, EBADMSG, "message of %zu bytes: shorter than a header", n);
	memcpy(h, p, sizeof(*h));
	if (h->magic != VMM_MAGIC)
		return err_plain(
			e, EBADMSG, "message with magic %#x, not %#x", h->magic, VMM_MAGIC);
	if (h->version != VMM_VERSION)
		return err_plain(e, EPROTONOSUPPORT, "protocol version %u, this monitor speaks %u",
			h->version, VMM_VERSION);
	if (h->len != n - sizeof(*h))
		return err_plain(e, EBADMSG, "payload of %u bytes in a message of %zu", h->len, n);
	return 0;
}

static int only_flags(uint32_t flags, uint32_t known, const char *what, struct err *e)
{
	return flags & ~known
		       ? err_plain(e, EBADMSG, "%s: flags %#x are not known", what, flags & ~known)
		       : 0;
}

static void read_size(struct cur *c, struct vm_size *s)
{
	*s = (struct vm_size){0};
	s->mem_bytes = cur_u64(c);
	s->vcpus = cur_u32(c);
	cur_str(c, s->tmpl, sizeof(s->tmpl));
	s->serial = (cur_u32(c) & VMM_F_SERIAL) != 0;
}

int ctl_parse_prepare(struct cur *c, struct vm_size *s, struct err *e)
{
	struct fd_cur f = {0};

	read_size(c, s);
	return finish(c, &f, "prepare", e);
}

static void read_disk(struct cur *c, struct fd_cur *f, struct vm_disk *d)
{
	unsigned int n;

	*d = (struct vm_disk){.fds = COW_FDS_NONE};
	d->flags = cur_u32(c);
	cur_str(c, d->serial, sizeof(d->serial));
	n = cur_u16(c);
	if (n > VMM_MAX_FROZEN || (d->flags & ~(uint32_t)VMM_DISK_RO))
		c->bad = true;
	d->fds.base = next_fd(f);
	if (c->bad || (d->flags & VMM_DISK_RO))
		return;
	d->fds.nfrozen = n;
	for (unsigned int i = 0; i < n; i++)
		d->fds.frozen[i] = next_fd(f);
	if (n)
		d->fds.index = next_fd(f);
	d->fds.data = next_fd(f);
	d->fds.bitmap = next_fd(f);
}

static void read_disks(struct cur *c, struct fd_cur *f, struct vm_disk *d, unsigned int n)
{
	if (n > VMM_MAX_DISKS)
		c->bad = true;
	for (unsigned int i = 0; i < n && !c->bad && !f->bad; i++)
		read_disk(c, f, &d[i]);
}

static int boot_tail(struct cur *c, const int *fds, size_t nfds, struct ctl_boot *b, struct err *e)
{
	struct fd_cur f = {fds, nfds, false};
	int rc;

	cur_str(c, b->cmdline, sizeof(b->cmdline));
	b->flags = cur_u32(c);
	b->ndisks = cur_u16(c);
	b->kernel_fd = next_fd(&f);
	b->initrd_fd = next_fd(&f);
	read_disks(c, &f, b->disk, b->ndisks);
	rc = finish(c, &f, "boot", e);
	return rc ? rc
		  : only_flags(b->flags, VMM_F_WITH_PREPARE | VMM_F_NET | VMM_F_BALLOON, "boot", e);
}

int ctl_parse_boot(struct cur *c, const int *fds, size_t nfds, struct ctl_boot *b, struct err *e)
{
	struct cur with = *c;
	int rc;

	*b = (struct ctl_boot){0};
	rc = boot_tail(c, fds, nfds, b, e);
	if (rc == 0 && !(b->flags & VMM_F_WITH_PREPARE))
		return 0;
	/* the other form: the fields of VMM_PREPARE come first */
	*b = (struct ctl_boot){.prepare = true};
	read_size(&with, &b->size);
	rc = boot_tail(&with, fds, nfds, b, e);
	*c = with;
	if (rc == 0 && !(b->flags & VMM_F_WITH_PREPARE))
		return err_plain(e, EBADMSG, "boot: fields of prepare without VMM_F_WITH_PREPARE");
	return rc;
}

int ctl_parse_restore(
	struct cur *c, const int *fds, size_t nfds, struct ctl_restore *r, struct err *e)
{
	struct fd_cur f = {fds, nfds, false};
	int rc;

	*r = (struct ctl_restore){.ws_fd = -1};
	r->flags = cur_u32(c);
	r->nmem = cur_u16(c);
	r->ndisks = cur_u16(c);
	if (r->nmem < 1 || r->nmem > VMM_MAX_MEM)
		c->bad = true;
	r->state_fd = next_fd(&f);
	for (unsigned int i = 0; i < r->nmem && !c->bad; i++)
		r->mem_fd[i] = next_fd(&f);
	if (r->flags & VMM_F_HAS_WS)
		r->ws_fd = next_fd(&f);
	read_disks(c, &f, r->disk, r->ndisks);
	rc = finish(c, &f, "restore", e);
	return rc ? rc
		  : only_flags(r->flags, VMM_F_RUN | VMM_F_HAS_WS | VMM_F_VERIFY, "restore", e);
}

int ctl_parse_snapshot(
	struct cur *c, const int *fds, size_t nfds, struct ctl_snapshot *s, struct err *e)
{
	struct fd_cur f = {fds, nfds, false};
	int rc;

	*s = (struct ctl_snapshot){0};
	s->flags = cur_u32(c);
	s->ndisks = cur_u16(c);
	if (s->ndisks > VMM_MAX_DISKS)
		c->bad = true;
	s->state_fd = next_fd(&f);
	s->mem_fd = next_fd(&f);
	for (unsigned int i = 0; i < s->ndisks && !c->bad; i++) {
		s->disk[i].index_fd = next_fd(&f);
		s->disk[i].data_fd = next_fd(&f);
		s->disk[i].bitmap_fd = next_fd(&f);
	}
	rc = finish(c, &f, "snapshot", e);
	return rc ? rc
		  : only_flags(s->flags,
			    VMM_F_LIVE | VMM_F_DIFF | VMM_F_EXIT | VMM_F_RAM | VMM_F_CARRY,
			    "snapshot", e);
}

int ctl_parse_read_only(
	struct cur *c, const int *fds, size_t nfds, struct ctl_read_only *q, struct err *e)
{
	struct fd_cur f = {fds, nfds, false};

	*q = (struct ctl_read_only){0};
	q->ndisks = cur_u16(c);
	if (q->ndisks > VMM_MAX_DISKS)
		c->bad = true;
	for (unsigned int i = 0; i < q->ndisks && !c->bad; i++) {
		q->disk[i].n = cur_u16(c);
		q->disk[i].index = -1;
		if (q->disk[i].n > VMM_MAX_FROZEN)
			c->bad = true;
		for (unsigned int k = 0; k < q->disk[i].n && !c->bad; k++)
			q->disk[i].frozen[k] = next_fd(&f);
		if (q->disk[i].n && !c->bad)
			q->disk[i].index = next_fd(&f);
	}
	return finish(c, &f, "read-only layers", e);
}

int ctl_parse_ports(
	struct cur *c, uint32_t *ports, unsigned int cap, unsigned int *n, struct err *e)
{
	struct fd_cur f = {0};
	unsigned int k = cur_u16(c);

	if (k > cap)
		return err_plain(e, E2BIG, "%u ports, at most %u", k, cap);
	for (unsigned int i = 0; i < k; i++)
		ports[i] = cur_u32(c);
	*n = k;
	return finish(c, &f, "ports", e);
}
