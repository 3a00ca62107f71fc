/* SPDX-License-Identifier: Apache-2.0
 *
 * priv: requests of a hostile daemon to mayfly-priv's table: several messages in one input. Each has a byte for the number of descriptors, a
 * byte for how many bytes follow the message, the message, and those bytes.
 */
#include <fcntl.h>
#include <string.h>

#include "lib/log.h"
#include "priv/serve.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct slots T;

static int no_spawn(struct slots *t, int bin_fd, const struct priv_msg *req, struct place at,
	const int *fds, size_t nfds, struct spawned *out)
{
	ASSERT(req->slot < t->n && req->kind > 0 && req->kind < PRIV_K_COUNT &&
		!t->s[req->slot].kind && nfds <= PRIV_SPAWN_FDS && at.group < t->n &&
		at.lease == 0);
	return -EAGAIN;
}

static int no_volume(struct serve *s, const struct volume_ask *a, const struct priv_msg *m)
{
	ASSERT(strlen(a->path) < PRIV_TEXT_MAX && strlen(a->sub) < PRIV_TEXT_MAX);
	ASSERT(*a->sub != '/' && !strstr(a->sub, "../") && !strstr(a->path, "../"));
	ASSERT((a->flags & ~(uint32_t)PRIV_V_FLAGS) == 0 && a->slot_ids >= SLOT_IDS);
	return 0;
}

static void no_start(struct serve *s, uint32_t slot)
{
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct serve s = {.slots = &T,
		.bin_fd = -1,
		.daemon_uid = 777,
		.spawn = no_spawn,
		.volume = no_volume,
		.started = no_start};
	static int fds[PRIV_SPAWN_FDS];

	memset(fds, -1, sizeof(fds));
	log_level = -1;
	if (!T.s && slots_alloc(&T, 8, 500000, 4096) < 0)
		return 0;
	T.dir_fd = -1;
	for (size_t i = 0; i < T.n; i++)
		T.s[i] = (struct slot){.pidfd = -1, .kind = i & 1};
	while (n > 2) {
		size_t k = MIN(n - 2, sizeof(struct priv_msg) + p[1]);
		/* a copy of its own: reading behind it is found */
		_cleanup_free_ uint8_t *msg = malloc(k);
		struct priv_msg out;
		int fd;

		if (!msg)
			return 0;
		memcpy(msg, p + 2, k);
		serve_request(&s, msg, k, fds, p[0] % (PRIV_SPAWN_FDS + 1), &out, &fd);
		if (fd >= 0)
			close(fd);
		p += k + 2;
		n -= k + 2;
	}
	return 0;
}
