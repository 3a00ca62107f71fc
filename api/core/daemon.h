/* SPDX-License-Identifier: Apache-2.0
 *
 * daemon.h: what the parts of mayflyd share: the configuration, the loop, the connections to helper
 * and database, and the tables. One thread owns all of it.
 */
#pragma once

#include "api/core/config.h"
#include "api/core/metrics.h"
#include "lib/loop.h"
#include "lib/version.h"

struct blobs;
struct budgets;
struct checkpoint;
struct database;
struct disk_guard;
struct images;
struct io_pool;
struct networks;
struct pools;
struct runs;
struct privctl;
struct http;
struct idempotency;
struct ingress;
struct router;
struct turns;
struct sandbox;
struct sandbox_index;
struct templates;
struct verify;
struct headroom;
struct vm;
struct vms;
struct volumes;

#define PROTOCOL_VERSION "1.1.1"

struct daemon {
	struct config cfg;
	struct loop *loop;
	struct http *http;
	struct http *gateway; /* NULL: ingress.mode is direct */
	struct ingress *ingress;
	struct budgets *budgets;     /* what may be held for whom */
	const struct router *router; /* what http serves */
	struct privctl *priv;
	struct database *database;
	struct io_pool *io;
	struct idempotency *keys;
	struct vms *vms;
	struct networks *networks;
	struct volumes *volumes;
	struct templates *templates;
	struct checkpoint *checkpoints; /* all of them, newest first */
	struct verify *verify;
	struct blobs *blobs;
	struct images *images;
	struct pools *pools;
	struct runs *runs;
	/* Called when a sandbox was deleted, and when no create waits for its turn any more. api/fleet sets it; may be NULL. */
	void (*capacity_changed)(struct daemon *d);
	struct sandbox *sandboxes; /* all of them, newest first */
	size_t nsandboxes;
	struct sandbox_index *index; /* the same by id, and what they use */
	struct disk_guard *disk_guard;
	struct headroom *headrooms; /* of live snapshots */
	struct metrics metrics;
	struct turns *turns; /* creates that make their VM, and those that wait */
	unsigned int cpus;   /* of the host, as it was at the start */
	int kernel_fd, initrd_fd, kvm_fd;
	/* kernel, initrd, board, CPU class and whether there is a network device: what templates depend on besides image and size */
	char boot_key[65];
	char host_boot_id[40];
	uint64_t start_ns;
	const char *config_path; /* NULL: there is none */
	unsigned int verbose;
	bool ending;
};
