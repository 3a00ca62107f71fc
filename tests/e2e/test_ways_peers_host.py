# SPDX-License-Identifier: Apache-2.0
"""Slow, half-closed and flooding peers on each way into a sandbox, on this very host: they are held up, the daemon keeps little for them, and nothing of them is left. The server proxy, the
gateway and port-forward with the real daemon and scripted monitors; terminals with the real server, routes and agent (build/unit/api_execd --serve)."""
import base64
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import re
import select
import socket
import struct
import subprocess
import threading
import time

import pytest

from conftest import TOP
from test_ingress_host import daemon  # noqa: F401 (a fixture)

WAIT_S = 120
EACH = 2            # connections of one kind
ENOUGH = 96 << 20   # bytes: whoever was not held up until here never is
HELD = 3 << 20      # what the daemon may keep for one connection
LEFT = 8 << 20      # what the allocator may keep of all of them
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ENDLESS = b"\x82\x7f" + (1 << 62).to_bytes(8, "big")          # the head of one binary frame
ENDLESS_MASKED = b"\x82\xff" + (1 << 62).to_bytes(8, "big") + b"\0\0\0\0"


def memory(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) << 10


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def small(s):
    """So that the kernel keeps little between the two ends."""
    for o in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        s.setsockopt(socket.SOL_SOCKET, o, 64 << 10)
    return s


def dial(port):
    s = small(socket.socket())
    s.settimeout(WAIT_S)
    s.connect(("127.0.0.1", port))
    return s


def head_of(s):
    got = b""
    while b"\r\n\r\n" not in got:
        piece = s.recv(1)
        assert piece, got
        got += piece
    return got


def flood(s, first=b"", block=b"f" * 65536):
    """Sends block after block until nobody takes anything for a second."""
    s.sendall(first)
    s.setblocking(False)
    sent = 0
    while sent < ENOUGH:
        try:
            sent += s.send(block[sent % len(block):])
        except BlockingIOError:
            if not select.select([], [s], [], 1)[1]:
                break
    s.settimeout(WAIT_S)
    return sent


class Listener(threading.Thread):
    """Servers in the sandbox: /source floods its client, /sink reads nothing, /end floods once its client has sent its last."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listener = small(socket.socket())
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.port, self.open, self.sent, self.lock = self.listener.getsockname()[1], [], [], threading.Lock()
        self.raw_kinds = []  # for raw connections, which name none: the next one's
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                c, _ = self.listener.accept()
                kind = self.raw_kinds.pop(0) if self.raw_kinds else None
                threading.Thread(target=self.one, args=(c, kind), daemon=True).start()

    def one(self, c, kind):
        c.settimeout(WAIT_S)
        websocket = False
        if not kind:
            head = head_of(c).decode()
            kind = head.split(" ")[1].rsplit("/", 1)[1]
            lines = {k.lower(): v for k, v in re.findall(r"([^\r\n:]+): ([^\r\n]*)", head)}
            websocket = lines["upgrade"] == "websocket"
            accept = base64.b64encode(hashlib.sha1((lines.get("sec-websocket-key", "") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
            c.sendall(f"HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: {lines['upgrade']}\r\n".encode() +
                      (f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode() if websocket else b"\r\n"))
        with self.lock:
            self.open.append((kind, c))
        with contextlib.suppress(OSError):
            if kind == "end":
                while c.recv(65536):
                    pass
            if kind != "sink":
                n = flood(c, ENDLESS if websocket else b"")
                with self.lock:
                    self.sent.append(n)

    def close(self):
        for s in (*(c for _, c in self.open), self.listener):
            s.close()


@pytest.fixture
def servers():
    s = Listener()
    yield s
    s.close()


def until(true, what):
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def one_round(servers, connect, protocol):
    """EACH connections of every kind, until all are held up: (clients, bytes of those that flooded)."""
    clients, sent = [], []
    servers.sent.clear()
    for kind in ("source", "sink", "end"):
        for _ in range(EACH):
            s = connect(kind)
            clients.append(s)
            if kind == "sink":
                sent.append(flood(s, ENDLESS_MASKED if protocol == "websocket" else b""))
            elif kind == "end":
                s.shutdown(socket.SHUT_WR)
    # a WebSocket whose client ended its side is over at once: its server may get to send nothing
    until(lambda: len(servers.sent) >= EACH * (1 if protocol == "websocket" else 2), "the servers were never held up")
    return clients, sent + servers.sent


@pytest.mark.parametrize("way, protocol", (("documented", "websocket"), ("path", "mine"), ("label", "websocket"), ("forward", "mayfly-stream")))
def test_peers_that_stall_or_flood(daemon, servers, way, protocol):
    daemon.gateway("wildcard")
    box, n = daemon.box(), servers.port

    def connect(kind):
        at, host, path = {"documented": (daemon.port, "localhost", f"/v1/sandboxes/{box}/proxy/{n}/{kind}"), "path": (daemon.port, "localhost", f"/{box}/{n}/{kind}"),
                          "label": (daemon.gate, daemon.label(box, n), f"/{kind}"), "forward": (daemon.port, "localhost", f"/{box}/44772/stream?port={n}")}[way]
        s = dial(at)
        if way == "forward":
            servers.raw_kinds.append(kind)
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n".encode())
        assert head_of(s).startswith(b"HTTP/1.1 101 ")
        return s
    pid = daemon.proc.pid
    idle = descriptors(pid)
    for _ in range(2):
        before = memory(pid)
        clients, sent = one_round(servers, connect, protocol)
        assert all(x < ENOUGH for x in sent), sent
        assert daemon.ask("GET", f"/v1/sandboxes/{box}")[0] == 200, "the daemon serves others"
        assert memory(pid) - before < len(clients) * HELD + LEFT
        for s in clients:
            s.close()
        # what was sent to a server that reads nothing is still its own
        until(lambda: all(gone(c) for kind, c in servers.open if kind != "sink"), "a server still has its connection")
        for _, c in servers.open:
            c.close()
        servers.open.clear()
        until(lambda: descriptors(pid) <= idle + 2, "descriptors are left")
    until(lambda: memory(pid) - before < LEFT, "memory is left")


@pytest.mark.parametrize("way, protocol", (("label", "websocket"), ("forward", "mayfly-stream")))
def test_clients_that_left_their_bytes_to_servers_that_hang(daemon, servers, way, protocol):
    """The servers read nothing and never end. The bytes of a client are kept while it is there, and for the write limit when it has left."""
    daemon.gateway("wildcard", server={"write_timeout_seconds": 1})
    box, n, pid = daemon.box(), servers.port, daemon.proc.pid
    host, path = {"label": (daemon.label(box, n), "/sink"), "forward": ("localhost", f"/{box}/44772/stream?port={n}")}[way]
    clients = []
    for _ in range(3):
        s = dial(daemon.gate if way == "label" else daemon.port)
        if way == "forward":
            servers.raw_kinds.append("sink")
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n".encode())
        assert head_of(s).startswith(b"HTTP/1.1 101 ")
        assert flood(s, ENDLESS_MASKED if protocol == "websocket" else b"") < ENOUGH
        clients.append(s)
    held = descriptors(pid)
    time.sleep(2)
    assert descriptors(pid) >= held - 2, "a client that is there waits as long as it likes"
    for s in clients:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    until(lambda: descriptors(pid) <= held - 2 * len(clients) + 2, "descriptors are left")


def gone(c):
    """Its other end was closed."""
    p = select.poll()
    p.register(c, select.POLLHUP | select.POLLRDHUP)
    return bool(p.poll(0))


# ---- terminals

@pytest.fixture
def served():
    """(port, process ids of the server and of the agent)"""
    p = subprocess.Popen([TOP / "build" / "unit" / "api_execd", "--serve", "0"], stdout=subprocess.PIPE, text=True)
    line = p.stdout.readline()
    if "not built" in line:
        pytest.skip("mayfly-agent is not built")
    yield int(line.rsplit(":", 1)[1]), [p.pid, *map(int, pathlib.Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text().split())]
    p.kill()
    p.wait()


def test_terminals_whose_clients_stall_or_flood(served):
    """A holder and a viewer that read nothing, a client that types without end to a shell that reads nothing, and one that ended its side."""
    port, pids = served

    def ask(method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        c.request(method, "/x/44772" + path, body and json.dumps(body))
        r = c.getresponse()
        text = r.read()
        c.close()
        return json.loads(text) if text else None

    def attach(id, query):
        s = dial(port)
        s.sendall(f"GET /x/44772/pty/{id}/ws?{query} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n".encode())
        assert head_of(s).startswith(b"HTTP/1.1 101 ")
        return s

    def stands_still(id):
        before = ask("GET", f"/pty/{id}")["output_offset"]
        time.sleep(0.5)
        return 0 < before == ask("GET", f"/pty/{id}")["output_offset"]
    typed = b"\x82\xfe\x80\x00" + b"\0" * 4 + b"\0" + b"t" * 32767  # one masked frame of stdin
    idle = [descriptors(p) for p in pids]
    for _ in range(2):
        before = [memory(p) for p in pids]
        sessions = [ask("POST", "/pty", {"command": c})["session_id"] for c in ("cat /dev/zero", "exec sleep 1000000", "exec sleep 1000000", "cat /dev/zero")]
        clients = [attach(sessions[0], "pty=0"), attach(sessions[1], "pty=0"), attach(sessions[2], "pty=1"), attach(sessions[3], "pty=1"), attach(sessions[0], "mode=viewer")]
        clients[3].shutdown(socket.SHUT_WR)
        assert all(flood(c, block=typed) < ENOUGH for c in clients[1:3])
        until(lambda: stands_still(sessions[0]), "the shell is never held up")
        for p, m in zip(pids, before):
            assert memory(p) - m < len(clients) * HELD + LEFT
        for c in clients:
            c.close()
        for id in sessions:
            ask("DELETE", f"/pty/{id}")
        until(lambda: all(descriptors(p) <= n + 2 for p, n in zip(pids, idle)), "descriptors are left")
