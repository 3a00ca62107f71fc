/* SPDX-License-Identifier: Apache-2.0
 *
 * routing.h: the table of all routes that mayflyd serves.
 */
#pragma once

#include "api/http/router.h"

extern const struct router routing;
