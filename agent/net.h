/* SPDX-License-Identifier: Apache-2.0
 *
 * net.h: the sandbox's network device, if there is one: its addresses and its gateway, the same in every sandbox (lib/proto_net.h), so
 * that a restore changes nothing. PID 1 of the guest, once, before a template is taken.
 */
#pragma once

/* Nothing happens without a device. What fails is logged: a sandbox without a network still runs commands. */
void net_up(void);
