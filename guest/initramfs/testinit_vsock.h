/* SPDX-License-Identifier: Apache-2.0
 *
 * testinit_vsock.h: testinit=vsock. Does not return while it can listen.
 */
#pragma once

void testinit_vsock(void);
