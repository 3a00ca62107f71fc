/* SPDX-License-Identifier: Apache-2.0
 *
 * request.c: the one table of requests. The loop's thread; payloads are the host's, hostile.
 */
#include "agent/request.h"

#include "agent/bulk.h"
#include "agent/dial.h"
#include "agent/files.h"
#include "agent/freeze.h"
#include "agent/harden.h"
#include "agent/inward.h"
#include "agent/life.h"
#include "agent/metrics.h"
#include "agent/ports.h"
#include "agent/req_exec.h"
#include "agent/req_session.h"
#include "agent/upper.h"
#include "agent/usage.h"
#include "agent/volumes.h"

#define CTL (1u << AGENT_CONN_CONTROL)
#define EXE (1u << AGENT_CONN_EXEC)
#define BLK (1u << AGENT_CONN_BULK)
#define DIA (1u << AGENT_CONN_DIAL)

static const struct request requests[] = {
	{AGENT_PING, CTL | EXE, req_ping},
	{AGENT_SETUP, CTL, req_setup},
	{AGENT_PREPARE, CTL, req_prepare},
	{AGENT_THAW, CTL, req_thaw},
	{AGENT_SHUTDOWN, CTL, req_shutdown},
	{AGENT_METRICS, CTL, req_metrics},
	{AGENT_SELF, CTL, req_self},
	{AGENT_WAIT_PORT, CTL, req_wait_port},
	{AGENT_SET_ENV, CTL, req_set_env},
	{AGENT_LIMITS, CTL, req_limits},
	{AGENT_MOUNT, CTL, req_mount},
	{AGENT_HARDEN, CTL, req_harden},
	{AGENT_EXEC, CTL | EXE, req_exec},
	{AGENT_ATTACH, EXE, req_attach},
	{AGENT_ACK, EXE, req_ack},
	{AGENT_STDIN, EXE, req_stdin},
	{AGENT_DETACH, CTL | EXE, req_detach},
	{AGENT_SIGNAL, CTL | EXE, req_signal},
	{AGENT_STATUS, CTL, req_status},
	{AGENT_LOGS, CTL, req_logs},
	{AGENT_RESIZE, CTL | EXE, req_resize},
	{AGENT_EXECS, CTL, req_execs},
	{AGENT_FORGET, CTL, req_forget},
	{AGENT_USAGE, CTL, req_usage},
	{AGENT_SESSION_NEW, CTL, req_session_new},
	{AGENT_SESSION_DEL, CTL, req_session_del},
	{AGENT_SESSION_LIST, CTL, req_session_list},
	{AGENT_SESSION_GET, CTL, req_session_get},
	{AGENT_SESSION_ATTACH, EXE, req_session_attach},
	{AGENT_SESSION_DIFF, CTL, req_session_diff},
	{AGENT_SESSION_COMMIT, CTL, req_session_commit},
	{AGENT_STAT, CTL, req_stat},
	{AGENT_LIST, CTL, req_list},
	{AGENT_SEARCH, CTL, req_search},
	{AGENT_REMOVE, CTL, req_remove},
	{AGENT_MKDIR, CTL, req_mkdir},
	{AGENT_CHMOD, CTL, req_chmod},
	{AGENT_MOVE, CTL, req_move},
	{AGENT_REPLACE, CTL, req_replace},
	{AGENT_EXPAND, CTL, req_expand},
	{AGENT_READ, BLK, req_read},
	{AGENT_WRITE, BLK, req_write},
	{AGENT_DIAL_TCP, DIA, req_dial_tcp},
	{AGENT_DIAL_UNIX, DIA, req_dial_unix},
	{AGENT_DIAL_ACCEPT, DIA, req_dial_accept},
};

const struct request *request_find(uint16_t type)
{
	for (size_t i = 0; i < ARRAY_LEN(requests); i++)
		if (requests[i].type == type)
			return &requests[i];
	return NULL;
}

void req_bad(struct agent *a, struct conn *c, uint32_t id)
{
	a->n.frames_bad++;
	conn_error(c, id, EPROTO, AGENT_STEP_NONE, "the request's fields are not valid");
}
