/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: `mayfly`, the command line: one table of commands. Unprivileged; speaks to the daemon
 * only through its HTTP API.
 */
#include "api/cli/cli.h"

static const struct command commands[] = {
	{"machine", cmd_machine, "the appliance: run mayfly where there is no usable KVM"},
	{"disk", cmd_disk, "layered disks: create, measure, flatten, check, index"},
	{"image", cmd_image, "images: pull, import, build, list, remove"},
	{"doctor", cmd_doctor, "what this host can and cannot do, and what to do about it"},
	{"env", cmd_env, "shell exports that the SDKs and osb read: eval \"$(mayfly env)\""},
	{"version", cmd_version, "the version"},
};

int main(int argc, char **argv)
{
	return command_run("mayfly", commands, ARRAY_LEN(commands), argc, argv);
}
