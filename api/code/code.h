/* SPDX-License-Identifier: Apache-2.0
 *
 * code.h: /code of the execution API: code runs in contexts of a Jupyter server inside the sandbox. mayflyd's loop.
 */
#pragma once

#include "api/http/http.h"

/* Below port 44772 of a sandbox, beside execd_table. */
extern const struct http_table code_table;
