/* SPDX-License-Identifier: Apache-2.0
 *
 * cgroup.c: cgroup directories. The loop's thread. Programs in the guest may be root and change
 * these directories, so every failure is survived.
 */
#include "agent/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/proc.h"
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

int cgroups_memory(struct agent *a, uint64_t bytes)
{
	char path[sizeof(a->cgroup) + 32], text[32];
	int rc;

	if (!a->cgroup[0])
		return -EOPNOTSUPP;
	/* "sandbox" is a child of the root: only the root can hand it the controller */
	snprintf(path, sizeof(path), "%s/../cgroup.subtree_control", a->cgroup);
	rc = text_poke(path, "+memory");
	if (rc < 0)
		return rc == -ENOENT || rc == -EINVAL ? -EOPNOTSUPP : rc;
	snprintf(path, sizeof(path), "%s/memory.max", a->cgroup);
	if (bytes)
		snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
	rc = text_poke(path, bytes ? text : "max");
	if (rc == 0)
		a->memory_limit = bytes;
	return rc;
}

static void cgroup_new(struct agent *a, struct cgroup *g)
{
	char path[sizeof(a->cgroup) + sizeof(g->name) + 2];

	*g = (struct cgroup){.dir_fd = -1};
	if (!a->cgroup[0])
		return;
	snprintf(g->name, sizeof(g->name), "x%llu", (unsigned long long)++a->next_cgroup);
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

void cgroup_make(struct agent *a, struct cgroup *g)
{
	if (!a->spare_cgroup) {
		cgroup_new(a, g);
		return;
	}
	*g = *a->spare_cgroup;
	free(take_ptr(a->spare_cgroup));
}

void cgroup_make_spare(struct agent *a)
{
	struct cgroup *g;

	if (a->spare_cgroup || !a->cgroup[0] || a->frozen || !(g = calloc(1, sizeof(*g))))
		return;
	cgroup_new(a, g);
	if (g->dir_fd < 0)
		free(g);
	else
		a->spare_cgroup = g;
}

void cgroups_fini(struct agent *a)
{
	if (a->spare_cgroup)
		cgroup_release(a, a->spare_cgroup);
	free(take_ptr(a->spare_cgroup));
}

bool cgroup_kill(struct agent *a, const struct cgroup *g)
{
	char path[sizeof(a->cgroup) + sizeof(g->name) + 20];

	if (!g->name[0])
		return false;
	snprintf(path, sizeof(path), "%s/%s/cgroup.kill", a->cgroup, g->name);
	return text_poke(path, "1") == 0;
}

static int poke_number(struct agent *a, const struct cgroup *g, const char *file, uint64_t v)
{
	char path[sizeof(a->cgroup) + sizeof(g->name) + 32], text[32];

	snprintf(path, sizeof(path), "%s/%s/%s", a->cgroup, g->name, file);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)v);
	return text_poke(path, text);
}

int cgroup_limit(struct agent *a, const struct cgroup *g, uint64_t memory_bytes, uint32_t pids)
{
	char path[sizeof(a->cgroup) + 40];
	int rc;

	if (!g->name[0])
		return -ENOTSUP;
	/* from the top: each level hands its controllers down */
	snprintf(path, sizeof(path), "%s/../cgroup.subtree_control", a->cgroup);
	rc = text_poke(path, "+memory +pids");
	snprintf(path, sizeof(path), "%s/cgroup.subtree_control", a->cgroup);
	if (rc == 0)
		rc = text_poke(path, "+memory +pids");
	if (rc == 0 && memory_bytes)
		rc = poke_number(a, g, "memory.max", memory_bytes);
	if (rc == 0 && pids)
		rc = poke_number(a, g, "pids.max", pids);
	return rc == -ENOENT ? -ENOTSUP : rc;
}

uint64_t cgroup_id(struct agent *a, const struct cgroup *g)
{
	char path[sizeof(a->cgroup) + sizeof(g->name) + 2];
	struct stat st;

	if (!g->name[0])
		return 0;
	snprintf(path, sizeof(path), "%s/%s", a->cgroup, g->name);
	return stat(path, &st) < 0 ? 0 : st.st_ino;
}

int cgroup_open(struct agent *a, const struct cgroup *g, const char *file)
{
	char path[sizeof(a->cgroup) + sizeof(g->name) + 32];
	int fd;

	if (!g->name[0])
		return -ENOENT;
	snprintf(path, sizeof(path), "%s/%s/%s", a->cgroup, g->name, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
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

/* A cgroup in use is released by its owner. The sweep must not remove it, even if it is empty
 * because its process was reaped just now: cgroups_left never counted it. If the sweep subtracted
 * it there, the count would be 0 too early, and a cgroup that was left would stay for ever. */
static bool is_owned(const struct agent *a, const char *name)
{
	if (a->spare_cgroup && !strcmp(name, a->spare_cgroup->name))
		return true;
	for (const struct proc *p = a->procs; p; p = p->next)
		if (!strcmp(name, p->cgroup.name))
			return true;
	return false;
}

void cgroups_sweep(struct agent *a)
{
	DIR *d;

	if (!a->n.cgroups_left || !(d = opendir(a->cgroup)))
		return;
	for (struct dirent *e; (e = readdir(d));) {
		if (e->d_name[0] != 'x' || is_owned(a, e->d_name))
			continue;
		if (unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR) < 0)
			continue;
		a->n.cgroups--;
		if (a->n.cgroups_left)
			a->n.cgroups_left--;
	}
	closedir(d);
}
