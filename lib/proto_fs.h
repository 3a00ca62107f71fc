/* SPDX-License-Identifier: Apache-2.0
 *
 * proto_fs.h: the wire between a monitor and its mayfly-fs: one SOCK_STREAM socket that carries FUSE messages as they are.
 *
 * The monitor reads one field of a request, `unique`, because it answers some requests itself, with EIO. It reads nothing else of the
 * messages. It copies each request out of guest memory behind a header, and copies each reply back into the buffers of the
 * request with the same slot. Every request has exactly one reply: for those that FUSE does not answer (FORGET), the reply's
 * length is 0. Both sides are hostile to each other: mayfly-fs reads what a guest wrote,
 * and the monitor believes only slots that are in flight and lengths that fit. A header that breaks a rule ends the connection.
 */
#pragma once

#include "lib/base.h"

#define FS_TAG         "mayfly" /* the tag of the virtio-fs device */
#define FS_QUEUE       128u     /* requests in flight at most; others wait in the device's queue */
#define FS_DATA_MAX    (1024u * 1024)        /* bytes of one READ or WRITE */
#define FS_MESSAGE_MAX (FS_DATA_MAX + 4096u) /* a FUSE message with its headers */
#define FS_MESSAGE_MIN 40u                   /* struct fuse_in_header */
#define FS_VOLUMES_MAX 32u                   /* volumes of one sandbox */
#define FS_NODES_MAX   (1024u * 1024)        /* names that a guest may hold at once */
#define FS_HANDLES_MAX 65536u /* files and folders that a guest may have open at once */

struct fs_request_hdr {
	uint32_t slot; /* the monitor's number of this request, below FS_QUEUE */
	uint32_t len;  /* bytes of FUSE message that follow: FS_MESSAGE_MIN to FS_MESSAGE_MAX */
	uint32_t reply_max; /* bytes that fit into the guest's reply buffers */
	uint32_t reserved;  /* 0 */
};
static_assert(sizeof(struct fs_request_hdr) == 16, "wire size");

struct fs_reply_hdr {
	uint32_t slot;
	uint32_t len; /* 0, or at least sizeof(struct fuse_out_header) and at most reply_max */
};
static_assert(sizeof(struct fs_reply_hdr) == 8, "wire size");
