/* SPDX-License-Identifier: Apache-2.0
 *
 * purge.h: empties a folder that a guest has filled, before a claim is deleted. mayfly-fs --purge, after the seal.
 */
#pragma once

#include "lib/err.h"

/* Removes all that is in the folder, not the folder. root_fd: an O_PATH descriptor of it; the working folder is /proc/self/fd. */
int purge_folder(int root_fd, struct err *e);
