# SPDX-License-Identifier: Apache-2.0
"""Ways into a sandbox, on this very host: the real server, the real routes and the real agent as a process (build/unit/api_execd --serve), servers of this test
as what listens in the sandbox, and real clients: Python's `websockets`, raw sockets. What pause, resume and a killed daemon do to them: test_ways.py."""
import asyncio
import contextlib
import socket
import subprocess
import threading

import pytest
import websockets
import websockets.asyncio.client as wsclient
import websockets.asyncio.server as wsserver

from conftest import TOP
from hostdaemon import BOX, HostDaemon

PROGRAM = TOP / "build" / "unit" / "api_execd"
WAIT_S = 60


@pytest.fixture(scope="module")
def port():
    # PDEATHSIG of the agent: its parent is that program
    p = subprocess.Popen([PROGRAM, "--serve", "0"], stdout=subprocess.PIPE, text=True)
    line = p.stdout.readline()
    if "not built" in line:
        pytest.skip("mayfly-agent is not built")
    yield int(line.rsplit(":", 1)[1])
    p.kill()
    p.wait()


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


DOCUMENTED, GATEWAY = "/v1/sandboxes/x/proxy/{}", "/x/{}"


def url(port, form, backend, rest="/"):
    return f"ws://127.0.0.1:{port}{form.format(backend)}{rest}"


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, WAIT_S))


@contextlib.asynccontextmanager
async def backend(handler, **kw):
    async with wsserver.serve(handler, "127.0.0.1", 0, **kw) as s:
        yield s.sockets[0].getsockname()[1]


async def echo(ws):
    async for m in ws:
        await ws.send(m)


@pytest.mark.parametrize("form", (DOCUMENTED, GATEWAY))
def test_messages_of_every_size_cross(port, form):
    async def go():
        async with backend(echo, max_size=None) as b, wsclient.connect(url(port, form, b), max_size=None) as ws:
            for size in (0, 1, 125, 126, 65535, 65536, 5 << 20):
                await ws.send(b"x" * size)
                assert await ws.recv() == b"x" * size
            await ws.send("tëxt")
            assert await ws.recv() == "tëxt"
            assert await (await ws.ping()) >= 0  # the backend answers: pings are end to end
    run(go())


def test_what_the_backend_sees_and_chooses(port):
    """Subprotocols and Origin pass, credentials and the client's key do not; the backend chooses the subprotocol; no extension."""
    seen = {}

    async def look(ws):
        seen.update(ws.request.headers.raw_items())
        seen["path"] = ws.request.path
        await ws.send(ws.subprotocol)

    async def go():
        async with backend(look, subprotocols=["b"]) as b:
            headers = {"Authorization": "secret", "Cookie": "c=1", "OPEN-SANDBOX-API-KEY": "k", "X-Mine": "yes", "X-Forwarded-For": "6.6.6.6"}
            async with wsclient.connect(url(port, DOCUMENTED, b, "/a%2Fb?q=%20"), subprotocols=["a", "b"], origin="http://page", additional_headers=headers) as ws:
                assert await ws.recv() == "b" and ws.subprotocol == "b"
                assert "Sec-WebSocket-Extensions" not in ws.response.headers
                key = ws.request.headers["Sec-WebSocket-Key"]
        low = {k.lower(): v for k, v in seen.items()}
        assert low["path"] == "/a%2Fb?q=%20" and low["origin"] == "http://page" and low["x-mine"] == "yes" and low["x-forwarded-for"] == "127.0.0.1"
        assert low["sec-websocket-key"] != key and not {"authorization", "cookie", "open-sandbox-api-key", "sec-websocket-extensions"} & set(low)
    run(go())


@pytest.mark.parametrize("code, seen", ((1000, 1000), (4242, 4242), (1011, 1011), (None, 1000)))
def test_close_codes_cross_both_ways(port, code, seen):
    frame = b"\x88\x00" if code is None else None  # a close without a code, which websockets would not send

    async def go():
        got = asyncio.get_running_loop().create_future()

        async def closes(ws):
            if frame:
                ws.transport.write(frame)
                await ws.wait_closed()
            else:
                await ws.close(code, "why")

        async def listens(ws):
            await ws.wait_closed()
            got.set_result((ws.close_code, ws.close_reason))

        async with backend(closes) as b, wsclient.connect(url(port, GATEWAY, b)) as ws:
            await ws.wait_closed()
            assert (ws.close_code, ws.close_reason) == (seen, "" if frame else "why")
        async with backend(listens) as b, wsclient.connect(url(port, GATEWAY, b)) as ws:
            if frame:
                ws.transport.write(b"\x88\x80abcd")
            else:
                await ws.close(code, "why")
            assert await got == (seen, "" if frame else "why")
    run(go())


def test_a_backend_that_breaks_off_is_1001(port):
    async def go():
        async def breaks(ws):
            await ws.send("x")
            ws.transport.abort()
        async with backend(breaks) as b, wsclient.connect(url(port, GATEWAY, b)) as ws:
            assert await ws.recv() == "x"
            await ws.wait_closed()
            assert ws.close_code == 1001
    run(go())


def test_a_client_that_breaks_off_is_1001_for_the_backend(port):
    async def go():
        got = asyncio.get_running_loop().create_future()

        async def listens(ws):
            await ws.wait_closed()
            got.set_result(ws.close_code)
        async with backend(listens) as b:
            ws = await wsclient.connect(url(port, GATEWAY, b))
            ws.transport.abort()
            assert await got == 1001
    run(go())


def test_refusals(port):
    """The documented path accepts and closes: 1011 for a backend that is away, 1008 for one that refuses. The other form answers with HTTP."""
    async def code_of(address):
        async with wsclient.connect(address) as ws:
            await ws.wait_closed()
            return ws.close_code

    async def status_of(address):
        with pytest.raises(websockets.exceptions.InvalidStatus) as e:
            await wsclient.connect(address)
        return e.value.response.status_code

    async def go():
        with socket.socket() as s:  # a port that is taken and does not listen
            s.bind(("127.0.0.1", 0))
            nobody = s.getsockname()[1]
            assert await code_of(url(port, DOCUMENTED, nobody)) == 1011
            assert await status_of(url(port, GATEWAY, nobody)) == 502
        async with backend(echo, process_request=lambda c, r: c.respond(403, "no\n")) as b:
            assert await code_of(url(port, DOCUMENTED, b)) == 1008
            assert await status_of(url(port, GATEWAY, b)) == 403
    run(go())


def raw(port, head, more=b""):
    s = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    s.sendall(head.encode() + b"\r\n\r\n" + more)
    return s


def until(s, end):
    got = b""
    while end not in got:
        piece = s.recv(65536)
        assert piece, got
        got += piece
    return got


class Plain(threading.Thread):
    """A server of one connection that answers a head, and then does what its function says."""

    def __init__(self, answer, then):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.answer, self.then, self.head = self.listener.getsockname()[1], answer, then, b""
        self.start()

    def run(self):
        c, _ = self.listener.accept()
        self.listener.close()
        with c:
            c.settimeout(WAIT_S)
            self.head = until(c, b"\r\n\r\n")
            c.sendall(self.answer)
            if self.then:
                self.then(c)


def swallow(c):
    n = 0
    while piece := c.recv(1 << 20):
        n += len(piece)
    c.sendall(b"%d" % n)


def test_any_other_upgrade_and_half_closes(port):
    """Raw bytes after a 101 of the backend's, 20 MB one way until a half-close, then the answer the other way."""
    web = Plain(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: mine/2\r\nX-App: 1\r\n\r\nearly", swallow)
    s = raw(port, f"GET /x/{web.port}/tty HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: mine/2")
    head = until(s, b"early")
    assert head.startswith(b"HTTP/1.1 101 ") and b"Upgrade: mine/2" in head and b"X-App: 1" in head
    block = b"z" * (1 << 20)
    for _ in range(20):
        s.sendall(block)
    s.shutdown(socket.SHUT_WR)
    assert s.recv(100) == b"%d" % (20 << 20)
    assert s.recv(100) == b""
    assert b"Upgrade: mine/2\r\n" in web.head and b"Connection: Upgrade\r\n" in web.head


def test_h2c_is_an_offer_that_is_left_alone(port):
    web = Plain(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", None)
    s = raw(port, f"GET /x/{web.port}/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: x")
    assert until(s, b"ok").startswith(b"HTTP/1.1 200 ")
    s.close()
    web.join(WAIT_S)
    assert b"pgrade" not in web.head and b"Connection: close" in web.head


@pytest.mark.parametrize("answer, why", (
    (b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n", "Accept is wrong"),
    (b"HTTP/1.1 101 X\r\nUpgrade: other\r\nConnection: Upgrade\r\n\r\n", "another protocol"),
    (b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "Content-Length")))
def test_a_backend_that_lies_in_its_handshake(port, answer, why):
    web = Plain(answer, None)
    s = raw(port, f"GET /x/{web.port}/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    got = until(s, b"}")
    assert got.startswith(b"HTTP/1.1 502 ") and why.encode() in got


def test_malformed_handshakes_reach_nobody(port):
    for lines, status in (("Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", 426), ("Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short", 400),
                          ("Sec-WebSocket-Version: 13", 400)):
        for form in (DOCUMENTED, GATEWAY):
            s = raw(port, f"GET {form.format(9)}/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{lines}")
            assert until(s, b"}").startswith(b"HTTP/1.1 %d " % status)


def test_bytes_sent_with_the_handshake_are_kept(port):
    web = Plain(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: mine\r\n\r\n", lambda c: c.sendall(b"got " + until(c, b"early")))
    s = raw(port, f"GET /x/{web.port}/ HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: mine", b"early")
    assert until(s, b"got early")


def test_a_slow_reader_holds_up_its_backend_not_the_server(port):
    """The backend writes 200 MB to a client that reads nothing for a while: it is stopped, and afterwards every byte is there."""
    stopped, total = threading.Event(), 200 << 20

    def writes(c):
        block, left = b"y" * (1 << 20), total
        c.settimeout(1)
        while left:
            try:
                left -= c.send(block[:left])
            except TimeoutError:
                stopped.set()
    web = Plain(b"HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: mine\r\n\r\n", writes)
    s = raw(port, f"GET /x/{web.port}/ HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: mine")
    head = until(s, b"\r\n\r\n")
    assert stopped.wait(WAIT_S), "the backend was never held up"
    n = len(head.split(b"\r\n\r\n", 1)[1])
    while n < total:
        n += len(s.recv(1 << 20))
    assert n == total


# ---- the daemon, with scripted monitors: sandboxes in each state

def to(daemon, box, rest, documented=True):
    return f"ws://127.0.0.1:{daemon.port}" + (f"/v1/sandboxes/{box}/proxy/" if documented else f"/{box}/") + str(rest)


async def ends_with(address, **kw):
    async with wsclient.connect(address, **kw) as ws:
        await ws.wait_closed()
        return ws.close_code


async def answers_with(address, **kw):
    with pytest.raises(websockets.exceptions.InvalidStatus) as e:
        await wsclient.connect(address, **kw)
    return e.value.response.status_code


def test_unknown_sandboxes_and_keys(daemon):
    """An unknown sandbox is 1011, a missing or wrong key 1008, another's sandbox 1011; by the other form HTTP's codes."""
    daemon.start({"server.keys.a": {"key": "key-a"}, "server.keys.b": {"key": "key-b"}, "runtime": {"templates": False}}, api_key="root")
    status, made, _ = daemon.ask("POST", "/v1/sandboxes", BOX, {"OPEN-SANDBOX-API-KEY": "key-a"})
    box, none = made["id"], "01234567-89ab-4def-8123-456789abcdef"

    def key(k):
        return {"additional_headers": {"OPEN-SANDBOX-API-KEY": k}}

    async def go():
        async with backend(echo) as b:
            assert await ends_with(to(daemon, none, b), **key("key-a")) == 1011
            assert await answers_with(to(daemon, none, b, False)) == 404
            assert await ends_with(to(daemon, box, b)) == 1008
            assert await ends_with(to(daemon, box, b), **key("wrong")) == 1008
            assert await ends_with(to(daemon, box, b), **key("key-b")) == 1011
            async with wsclient.connect(to(daemon, box, b), **key("key-a")) as ws:
                await ws.send("hello")
                assert await ws.recv() == "hello"
    run(go())


def test_states_of_a_sandbox(daemon):
    """Pending waits, Running serves, Pausing closes with 1001, Paused and gone answer at once, and a resumed one serves again."""
    daemon.plan(boot="slow").start({"runtime": {"templates": False}})
    box = daemon.create()
    daemon.plan()

    async def go():
        loop = asyncio.get_running_loop()
        async with backend(echo) as b:
            async with wsclient.connect(to(daemon, box, b), open_timeout=WAIT_S) as ws, wsclient.connect(to(daemon, box, b, False)) as other:
                await ws.send("hello")
                assert await ws.recv() == "hello"
                paused = loop.run_in_executor(None, daemon.ask, "POST", f"/v1/sandboxes/{box}/pause")
                await ws.wait_closed()
                await other.wait_closed()
                assert ws.close_code == other.close_code == 1001
                assert (await paused)[0] == 202
            await loop.run_in_executor(None, daemon.until, box, "Paused")
            assert await ends_with(to(daemon, box, b)) == 1011
            plain = await loop.run_in_executor(None, daemon.ask, "GET", f"/{box}/{b}/")
            assert await answers_with(to(daemon, box, b, False)) == plain[0] and plain[0] >= 400
            assert (await loop.run_in_executor(None, daemon.ask, "POST", f"/v1/sandboxes/{box}/resume"))[0] == 202
            async with wsclient.connect(to(daemon, box, b), open_timeout=WAIT_S) as ws:
                await ws.send("again")
                assert await ws.recv() == "again"
                assert (await loop.run_in_executor(None, daemon.ask, "DELETE", f"/v1/sandboxes/{box}"))[0] == 204
                await ws.wait_closed()
                assert ws.close_code == 1001
    run(go())


def test_a_daemon_that_ends_says_1001(daemon):
    daemon.start({"runtime": {"templates": False}})
    box = daemon.create()

    async def go():
        async with backend(echo) as b, wsclient.connect(to(daemon, box, b), open_timeout=WAIT_S) as ws:
            await ws.send("hello")
            assert await ws.recv() == "hello"
            daemon.proc.terminate()
            await ws.wait_closed()
            assert ws.close_code == 1001
    run(go())
    assert daemon.proc.wait(WAIT_S) == 0


def test_a_websocket_renews_its_sandbox(daemon):
    daemon.start({"runtime": {"templates": False}, "renew_intent": {"enabled": True}})
    box = daemon.create(timeout=300, extensions={"access.renew.extend.seconds": "3600"})
    daemon.until(box, "Running")
    before = daemon.ask("GET", f"/v1/sandboxes/{box}")[1]["expiresAt"]

    async def go(**kw):
        async with backend(echo) as b, wsclient.connect(to(daemon, box, b), **kw) as ws:
            await ws.send("x")
            await ws.recv()
    run(go(additional_headers={"OpenSandbox-Access-Renew": "skip"}))
    assert daemon.ask("GET", f"/v1/sandboxes/{box}")[1]["expiresAt"] == before
    run(go())
    assert daemon.ask("GET", f"/v1/sandboxes/{box}")[1]["expiresAt"] > before
