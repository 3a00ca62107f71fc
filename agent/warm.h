/* SPDX-License-Identifier: Apache-2.0
 *
 * warm.h: reads what nearly every first command needs (shell, loader, C library) into the page
 * cache before a template is taken. So it is in the template's memory, which all restored machines
 * share, and none of them reads it from the disk. In a thread. The files are the image's: hostile.
 */
#pragma once

#include "lib/base.h"

/* Returns how many bytes were read. Once they are WARM_MAX, no further file is read. */
size_t warm_files(void);
#define WARM_MAX MIB(16)
