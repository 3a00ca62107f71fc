/* SPDX-License-Identifier: Apache-2.0
 *
 * job.h: the job's side of lib/proto_image.h: one request from the socket, one result to it.
 * The process is jailed by then, or a plain child (--job).
 */
#pragma once

/* Serves one job on descriptors 3 and 4; the exit code of the process. */
int job_main(void);
