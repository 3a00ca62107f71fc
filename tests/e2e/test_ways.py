# SPDX-License-Identifier: Apache-2.0
"""Ways into a real sandbox: what a pause, a resume, a live snapshot and a killed daemon do to a terminal session. The rest: test_ways_host.py, test_pty_host.py."""
import asyncio
import http.client
import json
import re
import time

import websockets.asyncio.client as wsclient

WAIT_S = 240


def ask(daemon, method, path, body=None):
    c = http.client.HTTPConnection(daemon.domain, timeout=WAIT_S)
    c.request(method, path, None if body is None else json.dumps(body), {"OPEN-SANDBOX-API-KEY": daemon.api_key})
    r = c.getresponse()
    text = r.read()
    return r.status, json.loads(text) if text else None


def until(daemon, path, *states):
    end = time.monotonic() + WAIT_S
    while (s := ask(daemon, "GET", path)[1]["status"]["state"]) not in states:
        assert time.monotonic() < end and s != "Failed", s
        time.sleep(0.1)


async def attach(daemon, box, id, query=""):
    return await wsclient.connect(f"ws://{daemon.domain}/{box}/44772/pty/{id}/ws?{query}", open_timeout=WAIT_S)


async def read(ws, pattern):
    seen = b""
    while not re.search(pattern, seen):
        m = await asyncio.wait_for(ws.recv(), WAIT_S)
        seen += m[9 if m[0] == 3 else 1:] if isinstance(m, bytes) else b""
    return seen


def test_a_session_survives_pause_snapshot_and_a_killed_daemon(daemon):
    status, made = ask(daemon, "POST", "/v1/sandboxes", {"image": {"uri": "tiny"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}})
    assert status == 202, made
    box = made["id"]
    id = ask(daemon, "POST", f"/{box}/44772/pty", {"command": "X=kept; while read l; do echo \"$X <$l>\"; done"})[1]["session_id"]

    async def say(line, query="takeover=1"):
        ws = await attach(daemon, box, id, query)
        await ws.send(b"\0" + line.encode() + b"\n")
        seen = await read(ws, rb"kept <" + line.encode() + rb">\r\n")
        return ws, seen

    async def go():
        loop = asyncio.get_running_loop()
        ws, _ = await say("one")
        paused = loop.run_in_executor(None, ask, daemon, "POST", f"/v1/sandboxes/{box}/pause")
        await asyncio.wait_for(ws.wait_closed(), WAIT_S)
        assert ws.close_code == 1001
        assert (await paused)[0] == 202
        until(daemon, f"/v1/sandboxes/{box}", "Paused")
        assert ask(daemon, "POST", f"/v1/sandboxes/{box}/resume")[0] == 202
        ws, seen = await say("two")
        assert b"kept <one>" in seen
        status, snap = ask(daemon, "POST", f"/v1/sandboxes/{box}/snapshots", {})
        assert status == 202
        until(daemon, f"/v1/snapshots/{snap['id']}", "Ready")
        daemon.kill()
        daemon.start()
        ws, seen = await say("three")
        assert b"kept <one>" in seen and b"kept <two>" in seen
        await ws.close()
    asyncio.run(go())
    ask(daemon, "DELETE", f"/v1/sandboxes/{box}")
