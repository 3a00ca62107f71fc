/* SPDX-License-Identifier: Apache-2.0
 *
 * control.h: the control socket (lib/proto_vmm.h). mayfly-vmm, the device thread.
 */
#pragma once

#include "vmm/vm.h"

struct control;

/* listen_fd: a SOCK_SEQPACKET listener, or one end of a socket pair (then that is the only
 * connection). Takes it. NULL and *e on error. */
struct control *control_create(struct vm *vm, int listen_fd, struct err *e);
void control_destroy(struct control *c);
/* To the newest connection, or kept for the next one. fd (-1: none) is lent; an event with a
 * descriptor is not kept. */
void control_event(struct control *c, enum vmm_type ev, const void *payload, size_t n, int fd);
