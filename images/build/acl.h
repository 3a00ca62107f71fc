/* SPDX-License-Identifier: Apache-2.0
 *
 * acl.h: POSIX access control lists, as tar archives carry them (text, parsed by libarchive) and as the kernel's xattrs do.
 */
#pragma once

#include "images/build/tree.h"

struct archive_entry;

/* The entry's ACLs become system.posix_acl_{access,default} of the node. */
int acl_from_entry(struct archive_entry *en, struct node *n, struct err *e);
/* What the kernel would take: version 2, known tags in order, the obligatory ones once. */
bool acl_xattr_valid(const void *value, size_t len);
