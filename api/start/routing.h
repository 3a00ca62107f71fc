/* SPDX-License-Identifier: Apache-2.0
 *
 * routing.h: everything that mayflyd serves, in one table.
 */
#pragma once

#include "api/http/router.h"

extern const struct router routing;
