/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.c: the names of the steps. mayflyd.
 */
#include "lib/fault.h"

#include <string.h>

static const char *const steps[FAULT_COUNT] = {[FAULT_NONE] = "",
	[FAULT_RECORD] = "record",
	[FAULT_LOAD] = "load",
	[FAULT_POINT_BEGUN] = "point.begun",
	[FAULT_POINT_QUIET] = "point.quiet",
	[FAULT_POINT_NOTED] = "point.noted",
	[FAULT_POINT_ASKED] = "point.asked",
	[FAULT_POINT_FROZEN] = "point.frozen",
	[FAULT_POINT_FOLLOWED] = "point.followed",
	[FAULT_POINT_DURABLE] = "point.durable",
	[FAULT_POINT_SAVED] = "point.saved",
	[FAULT_RESUME_BEGUN] = "resume.begun",
	[FAULT_RESUME_DISK] = "resume.disk",
	[FAULT_RESUME_ASKED] = "resume.asked",
	[FAULT_RESUME_LOADED] = "resume.loaded",
	[FAULT_RESUME_READY] = "resume.ready",
	[FAULT_RESUME_THAWED] = "resume.thawed",
	[FAULT_RESUME_SAVED] = "resume.saved",
	[FAULT_VMM_QUIET] = "vmm.quiet",
	[FAULT_VMM_FROZEN] = "vmm.frozen",
	[FAULT_VMM_SAVED] = "vmm.saved",
	[FAULT_VMM_WRITE] = "vmm.write",
	[FAULT_VMM_DISKS] = "vmm.disks",
	[FAULT_VMM_MEMORY] = "vmm.memory",
	[FAULT_VMM_STATE] = "vmm.state",
	[FAULT_VMM_TABLES] = "vmm.tables",
	[FAULT_VMM_MAPPED] = "vmm.mapped",
	[FAULT_VMM_LOADED] = "vmm.loaded",
	[FAULT_VMM_RUNS] = "vmm.runs"};

static const char *const actions[FAULT_ACTIONS] = {[0] = "",
	[FAULT_KILL] = "kill",
	[FAULT_FAIL] = "fail",
	[FAULT_WAIT] = "wait",
	[FAULT_KILL_VMM] = "kill-vmm",
	[FAULT_PASS] = "pass"};

static size_t index_of(const char *const *names, size_t n, const char *name)
{
	for (size_t i = 1; i < n; i++)
		if (!strcmp(names[i], name))
			return i;
	return 0;
}

enum fault_step fault_step_of(const char *name)
{
	return (enum fault_step)index_of(steps, FAULT_COUNT, name);
}

enum fault_action fault_action_of(const char *name)
{
	return (enum fault_action)index_of(actions, FAULT_ACTIONS, name);
}
