/* SPDX-License-Identifier: Apache-2.0
 *
 * obtain.h: the whole way from a name or a file to an image in the store: jobs, verification,
 * names. One blocking call: the daemon makes it from a worker thread, the command line from its
 * only one.
 */
#pragma once

#include "images/pull/registry.h"
#include "images/store/store.h"

/* How jobs are started. The daemon's goes through mayfly-priv; image_spawner_direct() forks and
 * execs. */
struct image_spawner {
	/* Starts mayfly-image; fds become its 3, 4. A handle >= 0, or -errno and e. */
	int (*spawn)(void *arg, bool net, const int *fds, size_t nfds, struct err *e);
	/* Kills the job if it still runs. The direct one waits for its end. The daemon's does not. */
	void (*end)(void *arg, int handle);
	/* fd: a file that a job made; gives it to this process's user. The daemon's also waits until nobody can write the file.
	 * 0 or -errno */
	int (*adopt)(void *arg, int fd);
	void *arg;
};
/* program: path of mayfly-image; NULL: beside this program, or where `make install` has it. The
 * spawner is good until the next call. */
const struct image_spawner *image_spawner_direct(const char *program);

struct image_request {
	const char *name; /* as people write it: what is pulled, and the name it gets */
	int source;       /* -1: pull; else a file or folder to import */
	enum job_source kind;
	bool local;  /* the name was given on this host, and stands for no registry */
	bool always; /* pull even if the name is there */
	/* Whose request it is. NULL: the operator's own, and what is obtained is for all. Else what is here already counts only as
	 * far as this group may use it (store.h): everything else is fetched again, with the credentials of this request. */
	const char *group;
	struct platform platform; /* zeros: this machine's */
	/* NULL, or for this request only: never stored, never logged */
	const char *user, *password, *token;
	struct image_limits lim;
	const struct pull_base *bases;
	unsigned int nbases;
};

/* A non-zero result of progress stops it all (-ECANCELED). total may be 0. */
typedef int (*image_progress_fn)(void *arg, enum job_phase phase, uint64_t done, uint64_t total);

/* What image_obtain would answer without a job. -ENOENT: not here, or not for this group. */
int image_usable(struct store *s, const char *name, const char *group, struct image_info *out,
	struct err *e);
/* out may be NULL. Two calls of one group for one name do one pull: the second waits, and finds it done. With `always`, or for
 * another group, the second one waits and then pulls again. */
int image_obtain(struct store *s, const struct image_spawner *sp, const struct image_request *q,
	image_progress_fn fn, void *arg, struct image_info *out, struct err *e);

/* "REGISTRY URL [plain-http] [private]" a line, # comments. Without such a file there are 0 bases, and that is no error. */
int registries_read(const char *path, struct pull_base *bases, unsigned int *n, struct err *e);
