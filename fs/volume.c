/* SPDX-License-Identifier: Apache-2.0
 *
 * volume.c: the volumes of one sandbox. The descriptors come from the helper, opened beneath what the configuration allows.
 */
#include "fs/volume.h"

#include <fcntl.h>
#include <sys/stat.h>

int volumes_add(struct volumes *v, int root_fd, bool read_only, bool keep_ids, struct err *e)
{
	_cleanup_close_ int fd = root_fd;
	struct statx st;

	if (v->n == FS_VOLUMES_MAX)
		return err_plain(e, E2BIG, "a sandbox may have %u volumes", FS_VOLUMES_MAX);
	if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME | VOLUME_MNT_ID, &st) < 0)
		return err_set(e, errno, "volume %u", v->n);
	if (!S_ISDIR(st.stx_mode) && !S_ISREG(st.stx_mode))
		return err_plain(e, EINVAL, "volume %u is neither a folder nor a file", v->n);
	v->v[v->n] = (struct volume){
		.number = v->n,
		.root_fd = take_fd(&fd),
		.read_only = read_only,
		.keep_ids = keep_ids,
		.root_ino = st.stx_ino,
		.mnt_id = st.stx_mnt_id,
		.root_btime_ns = st.stx_mask & STATX_BTIME
					 ? st.stx_btime.tv_sec * 1000000000LL + st.stx_btime.tv_nsec
					 : 0,
		.is_folder = S_ISDIR(st.stx_mode),
	};
	v->n++;
	return 0;
}

void volumes_close(struct volumes *v)
{
	for (unsigned int i = 0; i < v->n; i++)
		close_fd(&v->v[i].root_fd);
	v->n = 0;
}
