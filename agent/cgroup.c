/* SPDX-License-Identifier: Apache-2.0
 *
 * cgroup.c: cgroup directories. The loop's thread. Programs in the guest may be root and change what stands there: every failure
 * here is survived.
 */
#include "agent/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/text.h"

int cgroups_init(struct agent *a, const char *root)
{
	if (snprintf(a->cgroup, sizeof(a->cgroup), "%s/sandbox", root) >= (int)sizeof(a->cgroup))
		return -ENAMETOOLONG;
	if (mkdir(a->cgroup, 0755) < 0 && errno != EEXIST) {
		a->cgroup[0] = 0;
		return -errno;
	}
	return 0;
}

void cgroup_make(struct agent *a, struct cgroup *g, uint64_t number)
{
	char path[sizeof(a->cgroup) + sizeof(g->name) + 2];

	*g = (struct cgroup){.dir_fd = -1};
	if (!a->cgroup[0])
		return;
	snprintf(g->name, sizeof(g->name), "x%llu", (unsigned long long)number);
	snprintf(path, sizeof(path), "%s/%s", a->cgroup, g->name);
	if (mkdir(path, 0755) == 0) {
		a->n.cgroups++;
		g->dir_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	}
	if (g->dir_fd < 0) {
		log_limited(LOG_WARN, "no cgroup for a process: %s", strerror(errno));
		cgroup_release(a, g);
	}
}

bool cgroup_kill(struct agent *a, const struct cgroup *g)
{
	char path[sizeof(a->cgroup) + sizeof(g->name) + 20];

	if (!g->name[0])
		return false;
	snprintf(path, sizeof(path), "%s/%s/cgroup.kill", a->cgroup, g->name);
	return text_poke(path, "1") == 0;
}

void cgroup_release(struct agent *a, struct cgroup *g)
{
	char path[sizeof(a->cgroup) + sizeof(g->name) + 2];

	close_fd(&g->dir_fd);
	if (!g->name[0])
		return;
	snprintf(path, sizeof(path), "%s/%s", a->cgroup, g->name);
	g->name[0] = 0;
	/* busy while a grandchild lives: cgroups_sweep comes again */
	if (rmdir(path) == 0)
		a->n.cgroups--;
	else if (errno == EBUSY)
		a->n.cgroups_left++;
}

/* Those of running processes are busy and survive the attempt. One that is owned but empty (its process was reaped in this very
 * turn) may go early: its owner then finds nothing to kill, which is right. */
void cgroups_sweep(struct agent *a)
{
	DIR *d;

	if (!a->n.cgroups_left || !(d = opendir(a->cgroup)))
		return;
	for (struct dirent *e; (e = readdir(d));) {
		if (e->d_name[0] != 'x' || unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR) < 0)
			continue;
		a->n.cgroups--;
		if (a->n.cgroups_left)
			a->n.cgroups_left--;
	}
	closedir(d);
}
