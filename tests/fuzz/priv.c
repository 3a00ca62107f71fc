/* SPDX-License-Identifier: Apache-2.0
 *
 * priv: requests of a hostile daemon to mayfly-priv's table: several messages in one input, 137 bytes each (one for the number of descriptors).
 */
#include <fcntl.h>
#include <string.h>

#include "lib/log.h"
#include "priv/serve.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct slots T;

static int no_spawn(struct slots *t, int bin_fd, uint32_t kind, uint32_t slot, struct place at,
	const struct priv_limits *l, const int *fds, size_t nfds, int *pidfd)
{
	ASSERT(slot < t->n && kind > 0 && kind < PRIV_K_COUNT && !t->s[slot].kind &&
		at.group < t->n && at.lease == 0);
	return -EAGAIN;
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
		.started = no_start};
	static const int fds[PRIV_SPAWN_FDS] = {-1, -1, -1, -1, -1, -1, -1, -1};

	log_level = -1;
	if (!T.s && slots_alloc(&T, 8, 500000, 4096) < 0)
		return 0;
	T.dir_fd = -1;
	for (size_t i = 0; i < T.n; i++)
		T.s[i] = (struct slot){.pidfd = -1, .kind = i & 1};
	while (n > 0) {
		size_t k = MIN(n - 1, sizeof(struct priv_msg));
		struct priv_msg out;
		int fd;

		serve_request(&s, p + 1, k, fds, p[0] % (PRIV_SPAWN_FDS + 1), &out, &fd);
		if (fd >= 0)
			close(fd);
		p += k + 1;
		n -= k + 1;
	}
	return 0;
}
