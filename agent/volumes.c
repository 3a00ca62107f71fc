/* SPDX-License-Identifier: Apache-2.0
 *
 * volumes.c: see volumes.h. A job's thread: a file server that does not answer holds up nobody else. The payload is the host's.
 *
 * All volumes are folders of one virtio-fs, named by their numbers. The file system is mounted at
 * PLACE for a moment; each volume is a bind mount of its folder.
 */
#include "agent/volumes.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "agent/fsutil.h"
#include "agent/jobs.h"
#include "agent/request.h"
#include "lib/proto_fs.h"

#define PLACE "/dev/.mayfly-volumes" /* a file system in memory, which every guest has */

struct mount_ask {
	char path[AGENT_PATH_MAX];
	uint32_t flags;
};

static int make_parents(char *path)
{
	for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
		int rc;

		*p = 0;
		rc = mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
		*p = '/';
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Makes what a mount covers: a folder, or an empty file. */
static int make_point(char *path, bool file)
{
	int rc = make_parents(path), fd;

	if (rc < 0)
		return rc;
	if (!file)
		return mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
	if (access(path, F_OK) == 0)
		return 0;
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

static int mount_volume(uint32_t number, struct mount_ask *v)
{
	unsigned long flags = MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV;
	char from[sizeof(PLACE) + 12];
	int rc = make_point(v->path, v->flags & AGENT_MO_FILE);

	if (rc < 0)
		return rc;
	if (v->flags & AGENT_MO_READ_ONLY)
		flags |= MS_RDONLY;
	snprintf(from, sizeof(from), PLACE "/%u", number);
	if (mount(from, v->path, NULL, MS_BIND, NULL) < 0 ||
		mount(NULL, v->path, NULL, flags, NULL) < 0)
		return -errno;
	return 0;
}

static void run_mount(struct job *j)
{
	uint32_t n = cur_u32(&j->body);
	_cleanup_free_ struct mount_ask *v = NULL;
	bool plain = n > 0 && n <= FS_VOLUMES_MAX;

	v = plain ? calloc(n, sizeof(*v)) : NULL;
	for (uint32_t i = 0; v && i < n; i++) {
		cur_str(&j->body, v[i].path, sizeof(v[i].path));
		v[i].flags = cur_u32(&j->body);
		plain &= v[i].path[0] == '/' && v[i].path[1] &&
			 !(v[i].flags & ~(uint32_t)(AGENT_MO_READ_ONLY | AGENT_MO_FILE));
	}
	if (!v || !plain || !cur_done(&j->body)) {
		job_fail(j, EPROTO, AGENT_STEP_NONE, "the list of volumes is not valid");
		return;
	}
	if (mkdir(PLACE, 0700) < 0 && errno != EEXIST) {
		job_fail(j, errno, AGENT_STEP_NONE, "%s: %s", PLACE, strerror(errno));
		return;
	}
	if (mount(FS_TAG, PLACE, "virtiofs", MS_NOSUID | MS_NODEV, NULL) < 0)
		job_fail(j, errno, AGENT_STEP_NONE, "the volumes cannot be mounted: %s",
			strerror(errno));
	for (uint32_t i = 0; i < n && !j->code; i++) {
		int rc = mount_volume(i, &v[i]);

		if (rc < 0)
			job_fail(j, -rc, AGENT_STEP_PATH, "%.200s: %s", v[i].path, strerror(-rc));
	}
	umount2(PLACE, MNT_DETACH);
	rmdir(PLACE);
}

void req_mount(struct agent *a, struct conn *c, uint32_t id, struct cur *b)
{
	struct job *j = job_create(a, c, id, AGENT_MOUNT, b, run_mount);

	if (!j)
		return;
	j->own_thread = true;
	if (job_submit(j) < 0) {
		job_free(j);
		conn_error(c, id, EAGAIN, AGENT_STEP_NONE, "no thread can be started");
	}
}
