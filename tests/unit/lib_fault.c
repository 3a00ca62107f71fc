/* SPDX-License-Identifier: Apache-2.0
 *
 * lib_fault: every step and action has a name, and is found by it.
 */
#include "lib/test.h"

#include "lib/fault.h"

static void names_are_found(void)
{
	CHECK_INT(fault_step_of("point.begun"), FAULT_POINT_BEGUN);
	CHECK_INT(fault_step_of("vmm.runs"), FAULT_VMM_RUNS);
	CHECK_INT(fault_step_of(""), FAULT_NONE);
	/* the search looks at every entry of the table: one without a name would not survive it */
	CHECK_INT(fault_step_of("no such step"), FAULT_NONE);
	CHECK_INT(fault_action_of("kill-vmm"), FAULT_KILL_VMM);
	CHECK_INT(fault_action_of("no such action"), 0);
}

static const struct test tests[] = {
	{"names_are_found", names_are_found},
};
TEST_MAIN(tests)
