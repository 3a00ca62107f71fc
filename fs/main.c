/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: mayfly-fs, the file server of one sandbox. Descriptor 3 is the socket to the monitor, 4 the memory file with the table of
 * nodes, 5 and on are the volumes, in the order of the options:
 *
 *     mayfly-fs [--jail UID] [--purge] --volume ro|rw[,ids][,max=BYTES]...
 *
 * `ids`: files keep the guest's user ids (volume.h: keep_ids). `max`: the volume's limit (max_bytes).
 * With --purge it serves nothing: it removes everything in the first volume and ends. Descriptors 3 and 4 are not used then.
 *
 * After the options all input comes from the guest. Before the first byte is read, fs_seal() gives up every right that is not needed.
 */
#include "fs/purge.h"
#include "fs/seal.h"
#include "fs/server.h"
#include "lib/log.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

#define SOCKET_FD    3
#define TABLE_FD     4
#define FIRST_VOLUME 5
#define SPARE_FDS    320u /* beside nodes and handles: also for a walk of usage.c */

struct options {
	unsigned long uid; /* 0: the option was not given, no jail */
	struct {
		bool read_only, keep_ids;
		uint64_t max_bytes;
	} volume[FS_VOLUMES_MAX];
	unsigned int n;
	bool purge;
};

static int usage(void)
{
	fprintf(stderr,
		"usage: mayfly-fs [--jail UID] [--purge] --volume ro|rw[,ids][,max=BYTES]...\n"
		"The daemon starts this program.\n");
	return 2;
}

static bool parse_volume(struct options *o, const char *text)
{
	const char *more = text + 2;
	uint64_t max = 0;
	char *end;
	bool ids;

	if (o->n == FS_VOLUMES_MAX)
		return false;
	if (strncmp(text, "ro", 2) != 0 && strncmp(text, "rw", 2) != 0)
		return false;
	ids = strncmp(more, ",ids", 4) == 0;
	if (ids)
		more += 4;
	if (strncmp(more, ",max=", 5) == 0) {
		max = strtoull(more + 5, &end, 10);
		if (!max || end == more + 5)
			return false;
		more = end;
	}
	if (*more)
		return false;
	o->volume[o->n].read_only = text[1] == 'o';
	o->volume[o->n].max_bytes = max;
	o->volume[o->n++].keep_ids = ids;
	return true;
}

static bool parse(struct options *o, int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		char *end = NULL;

		if (strcmp(argv[i], "--purge") == 0) {
			o->purge = true;
			continue;
		}
		if (++i == argc)
			return false;
		if (strcmp(argv[i - 1], "--volume") == 0) {
			if (!parse_volume(o, argv[i]))
				return false;
		} else if (strcmp(argv[i - 1], "--jail") == 0) {
			o->uid = strtoul(argv[i], &end, 10);
			if (*end || o->uid == 0 || o->uid >= UINT32_MAX)
				return false;
		} else {
			return false;
		}
	}
	return o->n > 0;
}

/* Half of the descriptors are for open files (handles), half are cached for nodes. */
static unsigned int cache_size(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) < 0 || r.rlim_cur < 4 * SPARE_FDS)
		return SPARE_FDS;
	return (unsigned int)MIN((r.rlim_cur - SPARE_FDS) / 2, (rlim_t)FS_HANDLES_MAX);
}

int main(int argc, char **argv)
{
	struct options o = {0};
	struct volumes vols = {0};
	struct server s = {.vols = &vols, .sock = SOCKET_FD};
	struct fs_jail jail;
	struct err e = {0};
	int rc;

	log_init("mayfly-fs", 2, false);
	if (!parse(&o, argc, argv))
		return usage();
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	jail = (struct fs_jail){.uid = o.uid, .first = FIRST_VOLUME, .n = o.n};
	for (unsigned int i = 0; i < o.n; i++)
		jail.read_only[i] = o.volume[i].read_only;
	/* The monitor has this file, too. If it could shrink the file, SIGBUS would end this process. */
	if (!o.purge && fcntl(TABLE_FD, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
		log_warn("the table of nodes cannot be sealed: %s", strerror(errno));
	if (fs_seal(&jail, &e) < 0) {
		log_error("%s", e.msg);
		return 1;
	}
	if (o.purge) {
		rc = purge_folder(FIRST_VOLUME, &e);
		if (rc < 0)
			log_error("%s", e.msg);
		return rc < 0;
	}
	for (unsigned int i = 0; i < o.n; i++) {
		if (volumes_add(&vols, FIRST_VOLUME + (int)i, o.volume[i].read_only,
			    o.volume[i].keep_ids, &e) < 0) {
			log_error("%s", e.msg);
			return 1;
		}
		vols.v[i].max_bytes = o.volume[i].max_bytes;
	}
	if (nodes_open(&s.nodes, TABLE_FD, &vols, cache_size(), &e) < 0) {
		log_error("%s", e.msg);
		return 1;
	}
	rc = server_run(&s);
	nodes_close(s.nodes);
	volumes_close(&vols);
	return rc < 0;
}
