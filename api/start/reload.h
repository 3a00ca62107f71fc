/* SPDX-License-Identifier: Apache-2.0
 *
 * reload.h: SIGHUP: the configuration is read anew while the daemon serves. mayflyd's loop.
 */
#pragma once

#include "api/core/daemon.h"

/* Says in the log what came of it. What is wrong changes nothing; what only a start can change
 * stays and is named. */
void daemon_reload(struct daemon *d);
/* From now on until the daemon ends, the file is looked at, and changes of the network's lists in it are taken. 0 or -ENOMEM. */
int daemon_watch_lists(struct daemon *d);
/* The log's level as the configuration and the -v of the command line say. */
void daemon_log_level(const struct daemon *d);
