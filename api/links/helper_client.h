/* SPDX-License-Identifier: Apache-2.0
 *
 * helper_client.h: the daemon's side of lib/proto_priv.h: processes in jails, their limits, their end. Without a helper (--no-jail, for
 * debugging) the same calls start the programs directly, as this user and with nothing between them and the host.
 */
#pragma once

#include "lib/err.h"
#include "lib/loop.h"
#include "lib/proto_priv.h"

struct privctl;

/* reply->status: 0 or -errno. fd: taken by the callee if >= 0. */
typedef void (*privctl_fn)(void *arg, const struct priv_msg *reply, int fd);
typedef void (*privctl_exit_fn)(void *arg, const struct priv_msg *ev);

/* sock: PRIV_FD, or -1: direct. bin_dir: where the programs are, for direct. */
struct privctl *privctl_create(struct loop *l, int sock, const char *bin_dir,
	privctl_exit_fn exited, void *arg, struct err *e);
void privctl_destroy(struct privctl *p);
bool privctl_is_direct(const struct privctl *p);
/* PRIV_H_*: what this host lacks for the strictest jail */
uint32_t privctl_host_flags(const struct privctl *p);
uint32_t privctl_slots(const struct privctl *p);
/* magic, version and id of the request are filled in. fn may be NULL. fds are lent. 0 or -errno
 * (then fn is not called). */
int privctl_call(struct privctl *p, const struct priv_msg *req, const int *fds, size_t nfds,
	privctl_fn fn, void *arg);
/* PRIV_VOLUME and PRIV_VOLUME_REMOVE, with the text that follows them. within: a host folder that no link of the path may leave; "": none. */
int privctl_volume(struct privctl *p, const struct priv_msg *req, const char *path, const char *sub,
	const char *within, privctl_fn fn, void *arg);
/* A request with one text behind it: PRIV_QUOTA of a claim. */
int privctl_text(
	struct privctl *p, const struct priv_msg *req, const char *text, privctl_fn fn, void *arg);
/* Without a helper: the folder that has the folder of claims. Borrowed. */
void privctl_state_dir(struct privctl *p, const char *dir);
/* privctl_call() that waits for the answer: for the daemon's start only. Returns the status; *fd is the
 * caller's. */
int privctl_wait(struct privctl *p, const struct priv_msg *req, struct priv_msg *reply, int *fd);
