/* SPDX-License-Identifier: Apache-2.0
 *
 * log.h: one line a message on stderr (or the descriptor given), text or JSON, with a prefix that says who speaks.
 * Any process, any thread: a line is one write(2). The level is the only global variable of lib/.
 */
#pragma once

#include "lib/base.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE };

/* changes at run time: in the daemon when its configuration is reloaded, in a monitor by VMM_DEBUG */
extern int log_level;

/* who: "mayfly-vmm: vm42/vblk0", shown before each line; copied, cut at 63 bytes. */
void log_init(const char *who, int fd, bool json);
int log_fd(void);
/* ctx may be NULL; else pairs such as "sandbox=<id> request=<id>". They come before the text; in JSON
 * they are the member "ctx". */
void log_write(enum log_level l, const char *ctx, const char *fmt, ...) _printf_(3, 4);

#define log_error(...) log_write(LOG_ERROR, NULL, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, NULL, __VA_ARGS__)
#define log_info(...)  (log_level >= LOG_INFO ? log_write(LOG_INFO, NULL, __VA_ARGS__) : (void)0)
#define log_debug(...) (log_level >= LOG_DEBUG ? log_write(LOG_DEBUG, NULL, __VA_ARGS__) : (void)0)
#define TRACE(...)     (log_level >= LOG_TRACE ? log_write(LOG_TRACE, NULL, __VA_ARGS__) : (void)0)

/* For everything a guest or client can provoke: at most 10 lines a minute from one call site, then a count of what was kept
 * back with the next line that passes. */
struct log_limit {
	uint64_t window_ns;
	uint32_t said, held;
};
bool log_limit_pass(struct log_limit *l, uint32_t *held);
#define log_limited(lvl, ...)                                                                      \
	do {                                                                                       \
		static struct log_limit limit_;                                                    \
		uint32_t held_ = 0;                                                                \
		if (log_limit_pass(&limit_, &held_)) {                                             \
			if (held_)                                                                 \
				log_write(lvl, NULL, "(%u lines like the next kept back)", held_); \
			log_write(lvl, NULL, __VA_ARGS__);                                         \
		}                                                                                  \
	} while (0)
