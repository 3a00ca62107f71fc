/* SPDX-License-Identifier: Apache-2.0
 *
 * procfs.h: the few things that more than one program asks of /proc, /sys and cgroupfs. Any
 * process; reads only what the kernel wrote.
 */
#pragma once

#include "lib/base.h"

/* Field 22 of /proc/PID/stat. With the pid it identifies the process for ever. 0 if there is no
 * such process. */
uint64_t process_start_time(int32_t pid);
/* One write to a file that exists, as the kernel's own files want it: 0 or -errno. */
int file_put(int dir, const char *name, const char *text);
