/* SPDX-License-Identifier: Apache-2.0
 *
 * quota.c: see quota.h. quotactl_fd() takes a descriptor, so no path of a mount or a device is needed.
 */
#include "priv/quota.h"

#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define FIRST_PROJECT 0x20000000u
#define QUOTA_BLOCK   1024u /* the unit of limits in struct if_dqblk */

static int quota_call(int fd, int cmd, uint32_t project, void *arg)
{
	return syscall(SYS_quotactl_fd, fd, QCMD(cmd, PRJQUOTA), project, arg) < 0 ? -errno : 0;
}

uint32_t quota_project(bool claim, uint32_t number)
{
	return FIRST_PROJECT + (claim ? QUOTA_PROJECTS : 0) + number % QUOTA_PROJECTS;
}

bool quota_is_there(int fd)
{
	struct fs_quota_statv s = {.qs_version = FS_QSTATV_VERSION1};

	return quota_call(fd, Q_XGETQSTATV, 0, &s) == 0 && (s.qs_flags & FS_QUOTA_PDQ_ENFD);
}

int quota_give(int fd, uint32_t project)
{
	struct fsxattr x;
	struct stat st;

	if (fstat(fd, &st) < 0 || ioctl(fd, FS_IOC_FSGETXATTR, &x) < 0)
		return errno == ENOTTY ? -EOPNOTSUPP : -errno;
	x.fsx_projid = project;
	if (S_ISDIR(st.st_mode))
		x.fsx_xflags |= FS_XFLAG_PROJINHERIT;
	if (ioctl(fd, FS_IOC_FSSETXATTR, &x) < 0)
		return errno == ENOTTY ? -EOPNOTSUPP : -errno;
	return 0;
}

int quota_limit(int fd, uint32_t project, const struct priv_quota *limit)
{
	struct if_dqblk d = {
		.dqb_bhardlimit = limit->bytes / QUOTA_BLOCK + (limit->bytes % QUOTA_BLOCK != 0),
		.dqb_ihardlimit = limit->inodes,
		.dqb_valid = QIF_LIMITS};

	return quota_call(fd, Q_SETQUOTA, project, &d);
}

int quota_usage(int fd, uint32_t project, struct priv_quota *used)
{
	struct if_dqblk d;
	int rc;

	memset(&d, 0, sizeof(d));
	rc = quota_call(fd, Q_GETQUOTA, project, &d);
	if (rc == -ENOENT) /* XFS: nothing was ever counted */
		rc = 0;
	if (rc < 0)
		return rc;
	*used = (struct priv_quota){.bytes = d.dqb_curspace, .inodes = d.dqb_curinodes};
	return 0;
}
