/* SPDX-License-Identifier: Apache-2.0
 *
 * client_generation.h: which generation of the official clients a User-Agent names.
 */
#pragma once

#include "lib/base.h"

/* An official SDK of before release 1.1.1. */
bool client_is_older(const char *user_agent);
