/* SPDX-License-Identifier: Apache-2.0
 *
 * testinit_vsock.h: the job testinit=vsock of testinit.c. Returns only if it cannot listen.
 */
#pragma once

void testinit_vsock(void);
