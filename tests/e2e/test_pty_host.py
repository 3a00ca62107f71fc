# SPDX-License-Identifier: Apache-2.0
"""Terminal sessions on this very host: the real server, the real agent as a process, Python's `websockets` as the client. A test per sentence of the protocol.
What a pause, a snapshot and a killed daemon leave: test_ways.py.

Each sentence of the protocol about terminals, and its test (ways: test_ways.py, a real sandbox):

POST /pty gives 201 and a session_id, a uuid; the body may be empty         create_look_delete
an unreadable body is 400 INVALID_REQUEST_BODY                              create_look_delete
`cwd`                                                                       a_shell_with_a_terminal, what_does_not_start
`command` is run by `bash -c`                                               a_command_is_bashs_and_knows_its_terminal
without a bash by `sh -c`                                                   ways: a_terminal_without_bash_has_the_sandboxs_variables
without a command it is a plain shell                                       a_shell_with_a_terminal
nothing starts before the first WebSocket                                   nothing_runs_before_the_first_websocket
the environment is a command's, with the file of EXECD_ENVS                 ways: a_terminal_without_bash_has_the_sandboxs_variables
no TERM is set (ours: xterm-256color)                                       a_command_is_bashs_and_knows_its_terminal
GET gives session_id, running, output_offset                                create_look_delete, a_shell_with_a_terminal
output_offset counts every byte ever written                                a_shell_with_a_terminal, the_replay_keeps_a_megabyte
DELETE gives 200 or 404                                                     create_look_delete, a_deleted_session_ends_its_clients
an unknown session is 404 before the upgrade                                unknown_is_404_before_the_upgrade
a second client is 409 ALREADY_CONNECTED                                    one_holder_and_take_over
takeover=1 closes the first with 4001 TAKEN_OVER                            one_holder_and_take_over, a_take_over_needs_a_handshake
pty=0: pipes, stderr apart, both streams in one replay                      pipe_mode
the first size is 80 x 24                                                   a_shell_with_a_terminal, size_of_the_first_terminal
frames 0x01 stdout, 0x02 stderr                                             a_shell_with_a_terminal, pipe_mode
frame 0x03: an offset of eight bytes, then the replay                       replay_and_a_lost_client, the_replay_keeps_a_megabyte
live frames have at most 32 KiB                                             a_shell_with_a_terminal
`connected` with session_id, mode, role                                     a_shell_with_a_terminal, pipe_mode, viewers
first the replay (if there is one), then `connected`, then what is live     a_shell_with_a_terminal, replay_and_a_lost_client
`since` beyond what is kept begins at the oldest byte                       the_replay_keeps_a_megabyte
replay and attach are one step                                              replay_and_attach_are_one_step
the replay keeps 1 MiB                                                      the_replay_keeps_a_megabyte
`exit` with exit_code, then close 1000 "process exited"                     a_shell_with_a_terminal, signals_and_control_characters
a new WebSocket on an ended session: a new shell behind the old replay      the_replay_keeps_a_megabyte
`error` with error and code                                                 frames_that_are_nothing, what_does_not_start
`ping` is answered by `pong`                                                a_shell_with_a_terminal, viewers
stdin as binary 0x00 and as JSON                                            a_shell_with_a_terminal
`resize`                                                                    a_shell_with_a_terminal
`signal`, SIGINT among them                                                 an_interrupt_by_a_frame, signals_and_control_characters
a WebSocket ping after 30 s, the end after 60 s without an answer           a_client_that_is_silent_for_a_minute; with short times unit lib_websocket
mode=viewer: any number, only of a running shell, else 409                  viewers
a viewer has old and live output as 0x03                                    viewers
a viewer that writes: READ_ONLY, closed after five; `ping` is allowed       viewers
a viewer sees `exit`, then the close                                        viewers
START_FAILED, INVALID_FRAME, ALREADY_CONNECTED, TAKEN_OVER, READ_ONLY       what_does_not_start, frames_that_are_nothing, one_holder_and_take_over, viewers
a session survives a lost client                                            replay_and_a_lost_client
a session survives a pause, a resume, a killed daemon                       ways: a_session_survives_a_pause_and_a_killed_daemon
a session is in a sandbox made from a snapshot, with its replay             ways: a_sandbox_from_a_snapshot_has_the_session_and_its_replay
"""
import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import re
import time
import uuid

import pytest
import websockets
import websockets.asyncio.client as wsclient

from test_ways_host import WAIT_S, port, raw, run, until  # noqa: F401 (port is a fixture)

AT = "/x/44772"


def ask(port, method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    c.request(method, AT + path, body if body is None or isinstance(body, bytes) else json.dumps(body).encode())
    r = c.getresponse()
    text = r.read()
    return r.status, json.loads(text) if text else None


def make(port, **body):
    status, got = ask(port, "POST", "/pty", body)
    assert status == 201 and uuid.UUID(got["session_id"])
    return got["session_id"]


class Terminal:
    """One WebSocket and what it has seen."""

    def __init__(self, ws):
        self.ws, self.frames, self.out, self.replay, self.json = ws, [], b"", [], []

    async def next(self):
        m = await self.ws.recv()
        self.frames.append(m)
        if isinstance(m, str):
            self.json.append(json.loads(m))
        elif m[0] == 3:
            self.replay.append((int.from_bytes(m[1:9], "big"), m[9:]))
        else:
            self.out += m[1:]
        return m

    async def until(self, pattern):
        """Until the output matches."""
        while not re.search(pattern, self.seen()):
            await self.next()

    def seen(self):
        return b"".join(d for _, d in self.replay) + self.out

    async def told(self, kind):
        while not (found := [j for j in self.json if j["type"] == kind]):
            await self.next()
        return found[-1]

    async def type(self, text):
        await self.ws.send(b"\0" + text.encode())

    async def say(self, **what):
        await self.ws.send(json.dumps(what))

    async def end(self):
        """(code, reason) of the close."""
        with contextlib.suppress(websockets.exceptions.ConnectionClosed):
            while True:
                await self.next()
        return self.ws.close_code, self.ws.close_reason


@contextlib.asynccontextmanager
async def attach(port, id, query="", form=AT):
    async with wsclient.connect(f"ws://127.0.0.1:{port}{form}/pty/{id}/ws?{query}", max_size=None) as ws:
        yield Terminal(ws)


async def refused(port, id, query="", form=AT):
    with pytest.raises(websockets.exceptions.InvalidStatus) as e:
        await wsclient.connect(f"ws://127.0.0.1:{port}{form}/pty/{id}/ws?{query}")
    return e.value.response.status_code, json.loads(e.value.response.body)["code"]


def test_create_look_delete(port):
    """The body may be empty; nothing starts before the first WebSocket; unknown ids are 404 CONTEXT_NOT_FOUND."""
    status, got = ask(port, "POST", "/pty")
    assert status == 201
    id = got["session_id"]
    assert ask(port, "GET", f"/pty/{id}") == (200, {"session_id": id, "running": False, "output_offset": 0})
    assert ask(port, "DELETE", f"/pty/{id}") == (200, None)
    for method in ("GET", "DELETE"):
        for unknown in (id, "nonsense", "iso-" + id):
            status, got = ask(port, method, f"/pty/{unknown}")
            assert status == 404 and got["code"] == "CONTEXT_NOT_FOUND"
    for bad in (b"{", b"[]", {"cwd": 1}, {"command": []}):
        status, got = ask(port, "POST", "/pty", bad)
        assert status == 400 and got["code"] == "INVALID_REQUEST_BODY"
    _, got = ask(port, "POST", "/session", {})
    status, got = ask(port, "GET", f"/pty/{got['session_id']}")
    assert status == 404, "a shell session is no terminal"


def test_nothing_runs_before_the_first_websocket(port, tmp_path):
    """Not the shell, and not its command."""
    async def go():
        id = make(port, command=f"echo began >{tmp_path}/file; cat {tmp_path}/file")
        assert ask(port, "GET", f"/pty/{id}") == (200, {"session_id": id, "running": False, "output_offset": 0})
        # what is asked later is answered later
        assert ask(port, "POST", "/session", {})[0] == 200 and not (tmp_path / "file").exists()
        async with attach(port, id) as t:
            await t.until(rb"began\r\n")
            assert (await t.told("exit"))["exit_code"] == 0
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_unknown_is_404_before_the_upgrade(port):
    async def go():
        for form in (AT, "/v1/sandboxes/x/proxy/44772"):
            assert await refused(port, uuid.uuid4(), form=form) == (404, "CONTEXT_NOT_FOUND")
            assert await refused(port, "x", form=form) == (404, "CONTEXT_NOT_FOUND")
    run(go())


def test_a_shell_with_a_terminal(port):
    """connected comes first where there is no replay; 80 x 24; resize; an exit code, and close 1000."""
    async def go():
        id = make(port, cwd="/tmp", envs={"PS1": "$ ", "MINE": "yes"})
        async with attach(port, id) as t:
            await t.next()
            assert t.json[0] == {"type": "connected", "session_id": id, "mode": "pty", "role": "holder"}
            await t.type("stty size; tty; pwd; echo $MINE\n")
            await t.until(rb"24 80\r\n/dev/pts/\d+\r\n/tmp\r\nyes\r\n")
            assert ask(port, "GET", f"/pty/{id}")[1]["running"] is True
            await t.say(type="resize", cols=120, rows=40)
            await t.type("stty size\n")
            await t.until(rb"40 120\r\n")
            await t.say(type="stdin", data="echo by-json\n")
            await t.until(rb"[\r\n]by-json\r\n")
            await t.say(type="ping")
            await t.told("pong")
            await t.type("exit 7\n")
            assert await t.told("exit") == {"type": "exit", "exit_code": 7}
            assert await t.end() == (1000, "process exited")
            assert all(m[0] == 1 for m in t.frames if isinstance(m, bytes)) and max(map(len, t.frames)) <= 32769
        look = ask(port, "GET", f"/pty/{id}")[1]
        assert look["running"] is False and look["output_offset"] == len(t.out)
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_size_of_the_first_terminal(port):
    async def go():
        id = make(port, command="stty size")
        async with attach(port, id, "cols=99&rows=33") as t:
            await t.until(rb"33 99")
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_signals_and_control_characters(port):
    async def go():
        id = make(port, envs={"PS1": "$ "})
        async with attach(port, id) as t:
            await t.type("trap 'echo caught' USR1; echo ready\n")
            await t.until(rb"[\r\n]ready\r\n")
            await t.say(type="signal", signal="SIGUSR1")
            # A shell that waits for a line runs the trap when the line has come.
            await t.type("\n")
            await t.until(rb"caught\r\n")
            await t.say(type="signal", signal="SIGNONE")
            assert (await t.told("error"))["code"] == "INVALID_FRAME"
            # dash loses a SIGINT that comes while it forks, so the program is the shell itself
            await t.type("sh -c 'echo go; read line'\n")
            await t.until(rb"[\r\n]go\r\n")
            await t.type("\x03")
            await t.until(rb"\^C[^$#]*[$#] ")
            await t.type("echo code=$?\n")
            await t.until(rb"code=130\r\n")
            await t.say(type="signal", signal="SIGKILL")
            assert await t.told("exit") == {"type": "exit", "exit_code": 137}
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_an_interrupt_by_a_frame(port):
    async def go():
        id = make(port, command="trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.1; done")
        async with attach(port, id) as t:
            await t.until(rb"ready\r\n")
            await t.say(type="signal", signal="SIGINT")
            await t.until(rb"interrupted\r\n")
            assert await t.told("exit") == {"type": "exit", "exit_code": 3}
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_frames_that_are_nothing(port):
    """Unknown JSON types are INVALID_FRAME; unparseable JSON and other binary types are ignored."""
    async def go():
        id = make(port, envs={"PS1": "$ "})
        async with attach(port, id) as t:
            for nothing in ("not json", "[1]", b"\x07abc", b"", b"\0", "{\"type\":\"resize\",\"cols\":\"x\"}"):
                await t.ws.send(nothing)
            await t.say(type="strange")
            error = await t.told("error")
            assert error == {"type": "error", "error": "unknown frame type strange", "code": "INVALID_FRAME"}
            assert len([j for j in t.json if j["type"] == "error"]) == 1
            await t.type("echo alive\n")
            await t.until(rb"[\r\n]alive\r\n")
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_replay_and_a_lost_client(port):
    """The session survives a lost client. The replay comes before connected, begins at `since`, and nothing is lost or repeated."""
    async def go():
        id = make(port, envs={"PS1": "$ "})
        async with attach(port, id) as t:
            await t.type("echo one; sleep 1; echo two\n")
            await t.until(rb"[\r\n]one\r\n")
            t.ws.transport.abort()
        first = t.out
        while True:
            try:
                async with attach(port, id, f"since={len(first)}") as u:
                    await u.until(rb"two\r\n")
                    await u.told("connected")
                    if u.replay:
                        assert u.replay[0][0] == len(first)
                        assert isinstance(u.frames[0], bytes) and u.frames[0][0] == 3
                break
            except websockets.exceptions.InvalidStatus:  # the lost one was not noticed yet
                await asyncio.sleep(0.05)
        async with attach(port, id, "takeover=1") as v:
            await v.told("connected")
            assert v.replay[0][0] == 0
            whole = v.seen()
            assert whole.startswith(first + u.seen())
            await v.type("echo three\n")
            await v.until(rb"[\r\n]three\r\n")
        async with attach(port, id, f"since={10 ** 12}&takeover=1") as w:
            assert json.loads(await w.next())["type"] == "connected"
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_replay_and_attach_are_one_step(port):
    """Clients take over from others, which stay, while the shell writes. From the offset that one has reached the next one has every byte once."""
    last = 60000

    async def go():
        # it waits for a line at the end: where a shell has ended the next client begins another
        id, seen = make(port, command=f"i=0; while [ $i -lt {last} ]; do i=$((i + 1)); echo $i; done; read line"), b""
        async with contextlib.AsyncExitStack() as clients:
            for n in range(21):
                t = await clients.enter_async_context(attach(port, id, f"since={len(seen)}&takeover=1"))
                await t.told("connected")
                while (n == 20 or len(t.seen()) < 1000 * n) and not (seen + t.seen()).endswith(b"\n%d\r\n" % last):
                    await t.next()
                offsets = [o for o, _ in t.replay]
                assert offsets == sorted(offsets) and (not offsets or offsets[0] == len(seen))
                seen += t.seen()
            await t.type("\n")
            await t.told("exit")
        assert seen.split() == [b"%d" % i for i in range(1, last + 1)]
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_the_replay_keeps_a_megabyte(port):
    async def go():
        id = make(port, command="head -c 3000000 /dev/zero | tr '\\0' z; echo END")
        async with attach(port, id) as t:
            await t.told("exit")
        total = len(t.out)
        assert total == 3000005
        async with attach(port, id, "since=5") as t:
            await t.told("connected")
            assert (1 << 20) <= sum(len(d) for _, d in t.replay) <= (2 << 20) and t.seen().endswith(b"END\r\n")
            first, at = t.replay[0][0], t.replay[0][0]
            for off, data in t.replay:
                assert off == at
                at += len(data)
            assert at == total and first > 5
            # a new WebSocket on an ended session starts a new shell behind the same replay
            await t.told("exit")
            assert len(t.out) == total
        assert ask(port, "GET", f"/pty/{id}")[1]["output_offset"] == 2 * total
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_one_holder_and_take_over(port):
    async def go():
        id = make(port, envs={"PS1": "$ "})
        async with attach(port, id) as first:
            await first.type("echo here\n")
            await first.until(rb"[\r\n]here\r\n")
            assert await refused(port, id) == (409, "ALREADY_CONNECTED")
            async with attach(port, id, "takeover=1") as second:
                await second.told("connected")
                assert await first.end() == (4001, "TAKEN_OVER")
                assert second.seen().startswith(first.out)
                await second.type("echo mine\n")
                await second.until(rb"[\r\n]mine\r\n")
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_a_take_over_needs_a_handshake(port):
    """A malformed one evicts nobody."""
    async def go():
        id = make(port, envs={"PS1": "$ "})
        async with attach(port, id) as t:
            await t.told("connected")
            for lines, status in (("Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", 426), ("Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short", 400)):
                s = raw(port, f"GET {AT}/pty/{id}/ws?takeover=1 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{lines}")
                assert until(s, b"}").startswith(b"HTTP/1.1 %d " % status)
                s.close()
            await t.type("echo mine\n")
            await t.until(rb"[\r\n]mine\r\n")
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_a_command_is_bashs_and_knows_its_terminal(port):
    """`bash -c COMMAND` where there is a bash; TERM is whatever the session was made with, or what browsers' terminals are."""
    async def go():
        for envs, name in (({}, b"xterm-256color"), ({"TERM": "vt220"}, b"vt220")):
            id = make(port, command='[[ a == a ]] && echo "bash=${BASH_VERSION:+yes}"; env | grep ^TERM= || echo TERM=none', envs=envs)
            async with attach(port, id) as t:
                assert (await t.told("exit"))["exit_code"] == 0
            assert t.out == b"bash=yes\r\nTERM=" + name + b"\r\n"
            ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_viewers(port):
    """Only of a running shell; old and live output as 0x03; they may not write, and the fifth try closes; they survive a take-over; exit, then close."""
    async def go():
        id = make(port, envs={"PS1": "$ "})
        assert await refused(port, id, "mode=viewer") == (409, "VIEWER_REQUIRES_RUNNING_SESSION")
        async with attach(port, id) as holder:
            await holder.type("echo old\n")
            await holder.until(rb"[\r\n]old\r\n")
            async with attach(port, id, "mode=viewer") as v, attach(port, id, "mode=viewer") as bad:
                assert (await v.told("connected"))["role"] == "viewer"
                await v.until(rb"[\r\n]old\r\n")
                await v.say(type="ping")
                await v.told("pong")
                for i, what in enumerate((b"\0x", json.dumps({"type": "stdin", "data": "x"}), json.dumps({"type": "resize", "cols": 9, "rows": 9}),
                                          json.dumps({"type": "signal", "signal": "SIGKILL"}), b"\0x")):
                    await bad.ws.send(what)
                assert (await bad.end())[0] == 1008
                assert [j["code"] for j in bad.json if j["type"] == "error"] == ["READ_ONLY"] * 5
                async with attach(port, id, "takeover=1") as other:
                    await other.told("connected")
                    await other.type("echo live; exit 3\n")
                    await v.until(rb"[\r\n]live\r\n")
                    assert (await v.told("exit"))["exit_code"] == 3
                    assert await v.end() == (1000, "process exited")
                    assert not v.out and all(m[0] == 3 for m in v.frames if isinstance(m, bytes))
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_pipe_mode(port):
    """Two streams, no terminal, resize is ignored, the end of input is ours to say."""
    async def go():
        id = make(port, command="tty; echo err >&2; cat; echo done")
        async with attach(port, id, "pty=0") as t:
            assert (await t.told("connected"))["mode"] == "pipe"
            await t.say(type="resize", cols=9, rows=9)
            await t.type("typed")
            await t.say(type="eof")
            assert (await t.told("exit"))["exit_code"] == 0
        streams = {n: b"".join(m[1:] for m in t.frames if isinstance(m, bytes) and m[0] == n) for n in (1, 2)}
        assert streams == {1: b"not a tty\ntypeddone\n", 2: b"err\n"}
        async with attach(port, id, "pty=0") as t:
            await t.told("connected")
            assert b"err\n" in t.seen(), "both streams go into one replay"
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_input_and_output_wait_for_whom_they_are_for(port):
    """8 MB in while nobody reads them, then all of them out, to a client that reads late."""
    async def go():
        id, n = make(port, command="sleep 1; cat | md5sum; head -c 20000000 /dev/zero"), 8 << 20
        async with attach(port, id, "pty=0") as t:
            block = b"\0" + b"q" * 65536
            for _ in range(n // 65536):
                await t.ws.send(block)
            await t.say(type="eof")
            await asyncio.sleep(1)
            assert (await t.told("exit"))["exit_code"] == 0
        assert t.out.startswith(hashlib.md5(b"q" * n).hexdigest().encode()) and len(t.out) == 20000000 + 36
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


def test_what_does_not_start(port, tmp_path):
    assert ask(port, "POST", "/pty", {"cwd": "/etc/passwd"})[0] == 400
    (tmp_path / "gone").mkdir()

    async def go():
        id = make(port, cwd=str(tmp_path / "gone"))
        (tmp_path / "gone").rmdir()
        async with attach(port, id) as t:
            assert (await t.told("error"))["code"] == "START_FAILED"
            assert (await t.end())[0] == 1011
        ask(port, "DELETE", f"/pty/{id}")
    run(go())


@pytest.mark.skipif(not os.environ.get("MAYFLY_STRESS"), reason="a minute: MAYFLY_STRESS=1; with short times tests/unit/lib_websocket.c")
def test_a_client_that_is_silent_for_a_minute(port):
    """A ping after 30 s; a client that answers it stays, one that does not is over after 60 s."""
    async def go():
        id = make(port, envs={"PS1": "$ "})
        s = await asyncio.to_thread(raw, port, f"GET {AT}/pty/{id}/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                                    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
        s.settimeout(120)
        began, got = time.monotonic(), b""
        async with attach(port, id, "mode=viewer") as viewer:
            while b"\x89\x00" not in got:
                got += await asyncio.to_thread(s.recv, 4096)
            assert 25 < time.monotonic() - began < 55
            while piece := await asyncio.to_thread(s.recv, 4096):
                got += piece
            assert 55 < time.monotonic() - began < 100
            await viewer.say(type="ping")
            await viewer.told("pong")
        ask(port, "DELETE", f"/pty/{id}")
    asyncio.run(asyncio.wait_for(go(), 150))


def test_a_deleted_session_ends_its_clients(port):
    async def go():
        id = make(port)
        async with attach(port, id) as t:
            await t.told("connected")
            assert ask(port, "DELETE", f"/pty/{id}")[0] == 200
            code, _ = await t.end()
            assert code in (1000, 1001)
        assert await refused(port, id) == (404, "CONTEXT_NOT_FOUND")
    run(go())
