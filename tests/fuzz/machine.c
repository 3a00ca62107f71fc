/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.c: fuzz target: the frames between `mayfly machine` and the appliance, as either end
 * reads them.
 */
#include <sys/socket.h>

#include "lib/machine_chan.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct machine_chan ch;
	enum machine_frame type;
	struct cur c;
	int sv[2];

	if (n > KIB(128) ||
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv) < 0)
		return 0;
	chan_init(&ch, sv[0]);
	while (n) { /* in pieces of every size, as a socket gives them */
		size_t k = MIN(n, (size_t)p[0] + 1);
		ssize_t sent = send(sv[1], p, k, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent <= 0)
			break;
		p += sent;
		n -= (size_t)sent;
		if (chan_fill(&ch) < 0)
			break;
		while (chan_next(&ch, &type, &c) > 0) {
			char s[64];

			ASSERT(cur_left(&c) <= MACHINE_FRAME_MAX);
			while (cur_left(&c))
				cur_str(&c, s, sizeof(s));
		}
	}
	chan_fini(&ch);
	close(sv[0]);
	close(sv[1]);
	return 0;
}
