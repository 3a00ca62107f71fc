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
/* Sends an event to the newest connection; if there is none, keeps it for the next one. fd (-1:
 * none) is lent. An event with a descriptor is never kept. */
void control_event(struct control *c, enum vmm_type ev, const void *payload, size_t n, int fd);
