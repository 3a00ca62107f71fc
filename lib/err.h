/* SPDX-License-Identifier: Apache-2.0
 *
 * err.h: the error a human will read. Caller-owned, fixed size, no allocation. Functions return 0 or -errno and fill it;
 * callers add context with err_wrap(); it is printed or logged exactly once, at the top.
 */
#pragma once

#include "lib/base.h"

struct err {
	int code;      /* positive errno, 0 = none */
	char msg[500]; /* always terminated; cut, never overrun */
};

/* Both return -code, so that `return err_set(e, errno, ...)` reads well. `e` may be NULL. err_set
 * ends the text with ": <strerror>"; err_plain does not, for errors whose words say it all. */
int err_set(struct err *e, int code, const char *fmt, ...) _printf_(3, 4);
int err_plain(struct err *e, int code, const char *fmt, ...) _printf_(3, 4);
/* Puts "<text>: " before the message. Returns -e->code. */
int err_wrap(struct err *e, const char *fmt, ...) _printf_(2, 3);
