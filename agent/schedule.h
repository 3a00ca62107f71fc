/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule.h: when a periodic hook runs: five cron fields, a descriptor such as @hourly, or @every 1h30m. In UTC.
 */
#pragma once

#include "lib/base.h"

struct schedule {
	/* not 0 (@every): the other fields are not used */
	uint64_t every_s;
	uint64_t minutes, hours, days, months, weekdays; /* bits */
	/* The field of days, or of weekdays, begins with a star (or ?). If one of them does, a day must
	 * fit both fields. If neither does, a day must fit one of them. */
	bool any_day, any_weekday;
};

/* 0 or -EINVAL. */
int schedule_parse(const char *text, struct schedule *s);
/* The first second after `now` at which it is due; 0: never (30 February). */
uint64_t schedule_next(const struct schedule *s, uint64_t now);
