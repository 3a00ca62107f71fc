/* SPDX-License-Identifier: Apache-2.0
 *
 * acl.c: POSIX ACLs between libarchive's form and the xattr form (u32 version, then u16 tag, u16 permissions, u32 id each, little
 * endian, sorted by tag and id). Runs in the image job; lists are hostile: a list that the kernel would refuse as corrupt is an error.
 */
#include "images/build/acl.h"
#include "lib/buf.h"

#include <archive.h>
#include <archive_entry.h>
#include <string.h>

enum {
	TAG_USER_OBJ = 1,
	TAG_USER = 2,
	TAG_GROUP_OBJ = 4,
	TAG_GROUP = 8,
	TAG_MASK = 16,
	TAG_OTHER = 32
};
#define ACL_VERSION 2u
#define ACL_MAX     1000u

struct ace {
	uint16_t tag, perm;
	uint32_t id;
};

static const struct {
	int archive;
	uint16_t tag;
} tags[] = {
	{ARCHIVE_ENTRY_ACL_USER_OBJ, TAG_USER_OBJ},
	{ARCHIVE_ENTRY_ACL_USER, TAG_USER},
	{ARCHIVE_ENTRY_ACL_GROUP_OBJ, TAG_GROUP_OBJ},
	{ARCHIVE_ENTRY_ACL_GROUP, TAG_GROUP},
	{ARCHIVE_ENTRY_ACL_MASK, TAG_MASK},
	{ARCHIVE_ENTRY_ACL_OTHER, TAG_OTHER},
};

static int ace_cmp(const void *pa, const void *pb)
{
	const struct ace *a = pa, *b = pb;

	if (a->tag != b->tag)
		return a->tag < b->tag ? -1 : 1;
	return a->id < b->id ? -1 : a->id > b->id;
}

static int take_acl(
	struct archive_entry *en, int type, const char *xattr, struct node *n, struct err *e)
{
	_cleanup_free_ struct ace *aces = NULL;
	int count = archive_entry_acl_reset(en, type), want, perm, tag, id, r;
	struct buf b;
	size_t k = 0;
	const char *name;

	if (count <= 0 || (type == ARCHIVE_ENTRY_ACL_TYPE_ACCESS && count <= 3))
		return 0; /* nothing beyond the mode */
	if (count > (int)ACL_MAX)
		return err_plain(e, E2BIG, "access control list of %d entries", count);
	aces = calloc((size_t)count + 3, sizeof(*aces));
	if (!aces)
		return err_set(e, ENOMEM, "access control list");
	while (archive_entry_acl_next(en, type, &want, &perm, &tag, &id, &name) == ARCHIVE_OK &&
		k < (size_t)count + 3) {
		struct ace *a = &aces[k++];
		bool named = tag == ARCHIVE_ENTRY_ACL_USER || tag == ARCHIVE_ENTRY_ACL_GROUP;

		for (size_t i = 0; i < ARRAY_LEN(tags); i++)
			if (tags[i].archive == tag)
				a->tag = tags[i].tag;
		if (named && id < 0)
			return err_plain(e, EINVAL,
				"access control list names %.60s without its number",
				name ? name : "");
		a->perm = (uint16_t)(perm & 7);
		a->id = named ? (uint32_t)id : UINT32_MAX;
	}
	qsort(aces, k, sizeof(*aces), ace_cmp);
	buf_init(&b, 65536);
	buf_u32(&b, ACL_VERSION);
	for (size_t i = 0; i < k; i++) {
		buf_u16(&b, aces[i].tag);
		buf_u16(&b, aces[i].perm);
		buf_u32(&b, aces[i].id);
	}
	if (b.bad || !acl_xattr_valid(b.p, b.len))
		r = err_plain(e, EINVAL, "malformed access control list");
	else if ((r = node_set_xattr(n, xattr, b.p, b.len)) < 0)
		err_set(e, -r, "access control list");
	buf_fini(&b);
	return r;
}

int acl_from_entry(struct archive_entry *en, struct node *n, struct err *e)
{
	int types = archive_entry_acl_types(en), r = 0;

	if (types & ARCHIVE_ENTRY_ACL_TYPE_NFS4)
		return err_plain(e, ENOTSUP, "NFSv4 access control list");
	if (types & ARCHIVE_ENTRY_ACL_TYPE_ACCESS)
		r = take_acl(en, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, "system.posix_acl_access", n, e);
	if (r == 0 && (types & ARCHIVE_ENTRY_ACL_TYPE_DEFAULT))
		r = take_acl(en, ARCHIVE_ENTRY_ACL_TYPE_DEFAULT, "system.posix_acl_default", n, e);
	return r;
}

bool acl_xattr_valid(const void *value, size_t len)
{
	struct cur c = cur_of(value, len);
	struct ace last = {0};
	uint32_t seen = 0;

	if (cur_u32(&c) != ACL_VERSION || len < 4 || (len - 4) % 8 || (len - 4) / 8 > ACL_MAX)
		return false;
	while (cur_left(&c)) {
		struct ace a;

		a.tag = cur_u16(&c);
		a.perm = cur_u16(&c);
		a.id = cur_u32(&c);
		if (a.perm > 7 || a.tag == 0 || a.tag > TAG_OTHER || (a.tag & (a.tag - 1)))
			return false;
		if (a.tag != TAG_USER && a.tag != TAG_GROUP)
			a.id = 0; /* these tags have no id */
		if (last.tag && ace_cmp(&last, &a) >= 0)
			return false;
		last = a;
		seen |= a.tag;
	}
	if ((seen & (TAG_USER_OBJ | TAG_GROUP_OBJ | TAG_OTHER)) !=
		(TAG_USER_OBJ | TAG_GROUP_OBJ | TAG_OTHER))
		return false;
	return !(seen & (TAG_USER | TAG_GROUP)) || (seen & TAG_MASK);
}
