/* SPDX-License-Identifier: Apache-2.0
 *
 * serve.h: the table of requests and the checks each must pass. mayfly-priv. The daemon faces the network: every request is hostile.
 */
#pragma once

#include "priv/slots.h"
#include "priv/volumes.h"

struct serve {
	struct slots *slots;
	int bin_fd;
	uint32_t daemon_uid, host_flags;
	const char *config; /* the daemon's --config; NULL: it has none */
	uint64_t served, refused;
	/* spawn_jailed(); unit tests and the fuzzer set one that starts nothing */
	int (*spawn)(struct slots *t, int bin_fd, const struct priv_msg *req, struct place at,
		const int *fds, size_t nfds, struct spawned *out);
	/* begins to open a volume: the answer is sent later */
	int (*volume)(struct serve *s, const struct volume_ask *a, const struct priv_msg *m);
	struct volume_jobs *volumes;
	const struct volumes *claims; /* for the quotas of claims; NULL: no claims */
	void (*started)(struct serve *s, uint32_t slot); /* watch its pidfd */
};

/* Answers one request: fills *out and, with descriptors, *out_fd (the caller's then). Borrows fds.
 * Never fails: a refusal is an answer. false: the answer is sent later. */
bool serve_request(struct serve *s, const void *msg, size_t n, const int *fds, size_t nfds,
	struct priv_msg *out, int *out_fd);
