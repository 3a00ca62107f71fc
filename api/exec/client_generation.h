/* SPDX-License-Identifier: Apache-2.0
 *
 * client_generation.h: which generation of the official clients a User-Agent names.
 */
#pragma once

#include "lib/base.h"

/* Is it an official SDK from before release 1.1.1? */
bool client_is_older(const char *user_agent);
