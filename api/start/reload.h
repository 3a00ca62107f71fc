/* SPDX-License-Identifier: Apache-2.0
 *
 * reload.h: SIGHUP: the configuration is read again while the daemon serves. mayflyd's loop.
 */
#pragma once

#include "api/core/daemon.h"

/* Reads the file again. With an error in it nothing changes. Keys that only a start can change keep their
 * values, and the log names them. */
void daemon_reload(struct daemon *d);
/* Looks at the file every few seconds from now on, and takes changes of the lists in [network]. 0 or -ENOMEM. */
int daemon_watch_lists(struct daemon *d);
/* Sets the log's level by the configuration and the -v of the command line. */
void daemon_log_level(const struct daemon *d);
