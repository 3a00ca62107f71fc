/* SPDX-License-Identifier: Apache-2.0
 *
 * acl.h: POSIX access control lists, as tar archives carry them (text, parsed by libarchive) and as the kernel's xattrs do.
 */
#pragma once

#include "images/build/tree.h"

struct archive_entry;

/* The entry's ACLs become system.posix_acl_{access,default} of the node. */
int acl_from_entry(struct archive_entry *en, struct node *n, struct err *e);
/* Would the kernel accept it? Version 2, known tags in order, the obligatory tags once. */
bool acl_xattr_valid(const void *value, size_t len);
