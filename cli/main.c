/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: `mayfly`, the command line: one table of commands. Unprivileged; speaks to the daemon
 * only through its HTTP API.
 */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static const struct command commands[] = {
	{"run", cmd_run, "create a sandbox, run one command in it, remove it"},
	{"create", cmd_create, "create a sandbox"},
	{"ls", cmd_ls, "list sandboxes"},
	{"ps", cmd_ls, "the same as ls"},
	{"exec", cmd_exec, "run a command in a sandbox"},
	{"attach", cmd_attach, "attach to a terminal session that runs"},
	{"code", cmd_code, "run code in a sandbox's code interpreter"},
	{"logs", cmd_logs, "show the output of an entrypoint or a detached command"},
	{"events", cmd_events, "show what happened to a sandbox"},
	{"stats", cmd_stats, "show CPU and memory of running sandboxes"},
	{"cp", cmd_cp, "copy files into a sandbox or out of it"},
	{"inspect", cmd_inspect, "show everything about a sandbox, as JSON"},
	{"stop", cmd_stop, "end sandboxes: SIGTERM to their entrypoints, then SIGKILL"},
	{"kill", cmd_kill, "send a signal to the entrypoint of sandboxes"},
	{"wait", cmd_wait, "wait until sandboxes have ended, and show their exit codes"},
	{"rm", cmd_rm, "remove sandboxes and everything in them"},
	{"pause", cmd_pause, "pause sandboxes: their memory is kept, they use no CPU"},
	{"resume", cmd_resume, "continue paused sandboxes"},
	{"fork", cmd_fork, "create sandboxes that continue from where a running one is"},
	{"rollback", cmd_rollback, "put a sandbox back to a snapshot of its own"},
	{"renew", cmd_renew, "set when a sandbox expires"},
	{"port-forward", cmd_port_forward, "forward local ports into a sandbox"},
	{"egress", cmd_egress, "show and change what a sandbox may reach"},
	{"volume", cmd_volume, "create, copy and remove claims: folders that sandboxes share"},
	{"snapshot", cmd_snapshot, "create, list and remove snapshots"},
	{"pool", cmd_pool, "keep machines of an image ready for later creates"},
	{"worker", cmd_worker, "run a worker's task in a sandbox of its own, once for each run id"},
	{"template", cmd_template, "create, list and remove templates"},
	{"machine", cmd_machine,
		"control the appliance: an emulated machine for hosts without usable KVM"},
	{"disk", cmd_disk, "create, measure, flatten, check and index layered disks"},
	{"image", cmd_image, "pull, import, build, list and remove images"},
	{"doctor", cmd_doctor, "show what this host can and cannot do, and what to do about it"},
	{"env", cmd_env, "print settings for the SDKs and osb: eval \"$(mayfly env)\""},
	{"completion", cmd_completion,
		"print a completion script: source <(mayfly completion bash)"},
	{"version", cmd_version, "print the version"},
};

/* mkfs.xfs and mke2fs are in /usr/sbin. Debian puts that into the PATH of root only. */
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
	if (argc > 1 && (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-v")))
		return cmd_version(1, argv);
	return command_run("mayfly", commands, ARRAY_LEN(commands), argc, argv);
}
