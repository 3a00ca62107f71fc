/* SPDX-License-Identifier: Apache-2.0
 *
 * fdpass.h: one message with descriptors over a Unix socket (SOCK_SEQPACKET keeps the message whole).
 */
#pragma once

#include "lib/base.h"

/* More than any protocol here sends in one message (most: VMM_RESTORE, which vmm/control.c asserts); Linux takes 253. */
#define FDPASS_MAX 128

/* Sends the bytes and lends the descriptors. 0 or -errno (-EAGAIN on a full non-blocking socket:
 * nothing was sent). */
int fdpass_send(int sock, const void *p, size_t n, const int *fds, size_t nfds);
/* Receives one message: bytes received (0 = peer gone) or -errno. *nfds: capacity in, number out; every descriptor that came
 * is close-on-exec and owned by the caller; what exceeds the capacity is closed and the call fails with -EMSGSIZE, as does a
 * message longer than n. */
ssize_t fdpass_recv(int sock, void *p, size_t n, int *fds, size_t *nfds);
/* Closes everything from 3 on but these (any order, doubles and -1 allowed; at most FD_KEEP_MAX):
 * for a forked child that lives on. */
#define FD_KEEP_MAX 256u
int fd_keep_only(const int *keep, size_t n);
