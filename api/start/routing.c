/* SPDX-License-Identifier: Apache-2.0
 *
 * routing.c: the tables of routes, and where each is served. They are searched in this order. A new folder with routes adds a row
 * here.
 */
#include "api/start/routing.h"

#include "api/code/code.h"
#include "api/exec/execd.h"
#include "api/lifecycle/route_lifecycle.h"
#include "api/sandbox/access.h"

static const struct router_mount mounts[] = {
	/* table, below /v1, below / */
	{&root_table, false, true},
	{&lifecycle_table, true, true},
	{&v1_table, true, false},
};

static const struct router_port ports[] = {
	{EXECD_PORT, &execd_table, execd_admit},
	{EXECD_PORT, &code_table, execd_admit},
	{EGRESS_PORT, &egress_table, NULL},
	{0, &proxy_table, NULL},
};

const struct router routing = {
	mounts, ARRAY_LEN(mounts), ports, ARRAY_LEN(ports), &sandbox_endpoints};
