/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_attach.c: `mayfly attach`: our terminal on a terminal session that runs already, one that was left with the detach keys for example.
 */
#include <stdio.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/terminal.h"

/* A WebSocket to a session that has ended starts a new shell. `attach` must not do that. */
static int session_runs(
	const struct client *c, const char *sandbox, const char *session, struct err *e)
{
	_cleanup_free_ char *name = client_escape(session);
	_cleanup_free_ char *path =
		client_path("/v1/sandboxes/%s/proxy/44772/pty/%s", sandbox, name);
	_cleanup_answer_ struct answer a = {0};
	int rc = client_call(c, "GET", path, NULL, &a, e);

	if (rc < 0)
		return rc;
	if (!cJSON_IsTrue(cJSON_GetObjectItem(a.json, "running")))
		return err_plain(e, ESRCH, "session %s does not run", session);
	return 0;
}

int cmd_attach(int argc, char **argv)
{
	struct client_opts co = {0};
	bool look = false;
	const struct opt opts[] = {CLIENT_OPTS(co),
		{"no-stdin", 0, OPT_FLAG, &look, NULL,
			"only look on: the client that holds the session keeps it"}};
	struct terminal_opts t = {.tty = isatty(STDIN_FILENO), .input = true};
	struct client c;
	struct err e;
	char id[64];
	int at, code;

	if (!client_begin(&c, &co,
		    "attach SANDBOX SESSION\n\nAttach to a terminal session that runs: one of "
		    "`mayfly exec "
		    "-it` or `run -it`\nthat was left with Ctrl-P Ctrl-Q, or one of the API's. "
		    "Shows "
		    "up to 1 MiB of what it\nprinted before, takes it over from another client, "
		    "and "
		    "exits with its exit code.\nCtrl-P Ctrl-Q leaves it running again.\n",
		    opts, ARRAY_LEN(opts), argc, argv, 2, &at, &code))
		return code;
	t.session = argv[at + 1];
	t.input = !look;
	t.tty = t.tty && !look;
	if (client_resolve(&c, argv[at], id, &e) < 0 || session_runs(&c, id, t.session, &e) < 0)
		return complain(EXIT_OURS, &e);
	return terminal_run(&c, id, NULL, &t);
}
