/* SPDX-License-Identifier: Apache-2.0
 *
 * proto_image.h: between whoever wants an image (mayflyd, `mayfly image`) and mayfly-image, one process per job. Descriptor 3 of the job is a
 * SOCK_SEQPACKET socket, 4 its staging folder, the only place it writes to. Each message is a struct job_hdr and a payload of fields as
 * lib/buf.h writes them, with descriptors (SCM_RIGHTS) in the order given. The job parses hostile bytes: nothing it says is believed
 * before it was checked, and nothing of its folder is used before it was verified.
 */
#pragma once

#include "lib/base.h"

#define JOB_MAGIC    0x3149474du /* "MGI1" */
#define JOB_SOCK_FD  3
#define JOB_STAGE_FD 4
#define JOB_MSG_MAX  65536u

struct job_hdr {
	uint32_t magic;
	uint16_t type, reserved;
	uint32_t len;
};
static_assert(sizeof(struct job_hdr) == 12, "wire size");

enum job_type {
	/* to the job: exactly one of JOB_PULL, JOB_IMPORT and JOB_BUILD. limits are u64
	 * max_bytes, max_entries, max_tar_bytes, ratio_from, room_bytes, u32 max_ratio, stall_s */
	/* str reference, str os, arch, variant, str user, password, token, limits, u16 n, n x {str registry, str base_url, u32 flags}: where to
	 * ask, in order. -> JOB_NEED for each blob, then JOB_FETCHED */
	JOB_PULL = 1,
	/* str name, u32 source (enum job_source), str os, arch, variant, limits; fd: the file or
	 * folder. -> JOB_FETCHED */
	JOB_IMPORT = 2,
	/* str name, limits; fds: manifest, configuration -> JOB_NEED for each layer, then JOB_BUILT
	 * (disk.ext4 and image.json are in the folder) */
	JOB_BUILD = 3,
	/* to the job, the answer to JOB_NEED: u32 enum job_there. fd: for a build the blob that is
	 * there (JOB_THERE), for a pull the part (JOB_PART_THERE) */
	JOB_HAVE = 4,

	/* from the job */
	JOB_NEED = 16,     /* str digest, u64 size */
	JOB_PROGRESS = 17, /* u32 phase (enum job_phase), u64 done, u64 total; 0 = not known */
	/* str manifest digest, u32 n, n x {str digest, u64 size}: blobs that are in the folder,
	 * named by their hex */
	JOB_FETCHED = 18,
	JOB_BUILT = 19,  /* {} */
	JOB_FAILED = 20, /* u32 errno, str text */
};

enum job_source {
	JOB_SRC_AUTO = 0,
	JOB_SRC_LAYOUT = 1,
	JOB_SRC_ARCHIVE = 2,
	JOB_SRC_ROOTFS_TAR = 3,
	JOB_SRC_ROOTFS_DIR = 4
};
enum job_there {
	JOB_NOT_THERE = 0,
	JOB_THERE = 1,
	JOB_PART_THERE = 2 /* as a pull that was killed left it: not verified */
};
enum job_phase { JOB_PH_FETCH = 1, JOB_PH_BUILD = 2 };
enum {
	JOB_REG_PLAIN_HTTP = 1,
	JOB_REG_PRIVATE_OK = 2, /* redirects of it may lead to private addresses */
	/* the registry itself may not be on a private address either: a client chose its name */
	JOB_REG_PUBLIC_ONLY = 4,
};
