/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: `mayfly`, the command line: one table of commands. Unprivileged; speaks to the daemon
 * only through its HTTP API.
 */
#include "cli/cli.h"

#include <stdio.h>

static const struct command commands[] = {
	{"run", cmd_run, "a sandbox for one command: make, stream, exit with its code, remove"},
	{"create", cmd_create, "make a sandbox"},
	{"ls", cmd_ls, "the sandboxes"},
	{"exec", cmd_exec, "run a command in a sandbox"},
	{"code", cmd_code, "run code in a sandbox's code interpreter"},
	{"logs", cmd_logs, "what an entrypoint or a detached command printed"},
	{"cp", cmd_cp, "copy files in or out"},
	{"inspect", cmd_inspect, "all about a sandbox, as JSON"},
	{"rm", cmd_rm, "remove sandboxes"},
	{"pause", cmd_pause, "stop sandboxes, keeping memory and processes"},
	{"resume", cmd_resume, "let paused sandboxes go on"},
	{"fork", cmd_fork, "make sandboxes that go on from where another one is"},
	{"rollback", cmd_rollback, "put a sandbox back to a snapshot of its own"},
	{"renew", cmd_renew, "set when a sandbox expires"},
	{"port-forward", cmd_port_forward, "local ports that lead into a sandbox"},
	{"egress", cmd_egress, "what a sandbox may reach, and what it tried to"},
	{"volume", cmd_volume, "folders that sandboxes share and that outlive them"},
	{"snapshot", cmd_snapshot, "snapshots of sandboxes"},
	{"pool", cmd_pool, "machines that wait for their creates"},
	{"template", cmd_template, "templates that sandboxes start from"},
	{"machine", cmd_machine, "the appliance: run mayfly where there is no usable KVM"},
	{"disk", cmd_disk, "layered disks: create, measure, flatten, check, index"},
	{"image", cmd_image, "images: pull, import, build, list, remove"},
	{"doctor", cmd_doctor, "what this host can and cannot do, and what to do about it"},
	{"env", cmd_env, "shell exports that the SDKs and osb read: eval \"$(mayfly env)\""},
	{"version", cmd_version, "the version"},
};

/* mkfs.xfs and mke2fs stand where Debian's users who are not root have no path to. */
static void see_sbin(void)
{
	const char *path = getenv("PATH");
	_cleanup_free_ char *longer = NULL;

	if (path && asprintf(&longer, "%s:/usr/sbin:/sbin", path) > 0)
		setenv("PATH", longer, 1);
}

int main(int argc, char **argv)
{
	see_sbin();
	return command_run("mayfly", commands, ARRAY_LEN(commands), argc, argv);
}
