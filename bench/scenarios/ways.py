# SPDX-License-Identifier: Apache-2.0
"""The ways into a sandbox, each compared with what it is built on: a key's echo by WebSocket beside the agent's own stream, WebSocket and raw TCP beside a file transfer, and the memory of
idle WebSockets."""
import os
import re
import resource
import socket
import struct
import time

from mb_agent import ERR, HELLO, MAGIC, OK, OUT, exactly, frame, take, text
from mb_core import Absent, Failed, find, us_since
from mb_http import Conn, request

MIB = 16
BYTES = MIB << 20
PIECE = 65536           # of a WebSocket's message
KEYS = 50               # in one sample
PORT = 9100             # of wayload, in the sandbox
IDLE, SHARE = 2000, 500  # WebSockets; how many of them one sandbox has
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
SESSION_ATTACH, STDIN, CONN_EXEC, AGENT_VERSION = 64, 33, 2, 3  # lib/proto_agent.h
VSOCK_OPEN, VSOCK_AGENT = 0x31534B56, 1024                      # lib/proto_vmm.h
INTO = memoryview(bytearray(1 << 20))
OUT_OF = memoryview(bytes(1 << 20))


def drain(c, n):
    """n bytes of a Conn, thrown away."""
    n -= len(c.buf)
    c.buf = b""
    while n > 0:
        got = c.s.recv_into(INTO, min(n, len(INTO)))
        if not got:
            raise Failed("the connection ended")
        n -= got


def upgraded(api, path, protocol):
    """A Conn behind its 101."""
    c = Conn(api.host, api.port)
    c.s.sendall(request("GET", path, f"{api.host}:{api.port}", [("Connection", "Upgrade"), ("Upgrade", protocol), ("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", KEY),
                                                                ("OPEN-SANDBOX-API-KEY", api.key)]))
    status, _ = c.head()
    if status != 101:
        raise Failed(f"{path}: {status}")
    return c


# ---- a key's echo

class Echo:
    """The line discipline of a terminal echoes each key; the program behind it reads nothing until the line ends."""

    def __init__(self, ctx):
        self.d = ctx.daemon()
        self.sid = self.d.sandbox()
        self.path, _ = self.d.api.execd(self.sid)
        self.session = self.d.api.call("POST", self.path + "/pty", {"command": "cat"})["session_id"]
        self.attach()
        self.key()

    def sample(self):
        t0 = time.monotonic_ns()
        for _ in range(KEYS):
            self.key()
        return {"total": us_since(t0) / KEYS}


class EchoAgent(Echo):
    name = "agent stream"

    def attach(self):
        if not getattr(self.d, "run", None):
            raise Absent("the folder of the daemon's sockets is not known")
        inspected = self.d.api.raw("GET", f"/v1/sandboxes/{self.sid}/diagnostics/inspect")[1].decode()
        slot = re.search(r"^vm: slot (\d+)", inspected, re.M)[1]
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(120)
        self.s.connect(os.path.join(self.d.run, "vm", slot, "vsock"))
        self.s.sendall(struct.pack("<III", VSOCK_OPEN, VSOCK_AGENT, 0))
        if struct.unpack("<III", exactly(self.s, 12))[2]:
            raise Failed("the agent's port is closed")
        attach = text(self.session.encode()) + struct.pack("<IQHH", 0, 0, 80, 24)
        self.s.sendall(frame(HELLO, struct.pack("<III", MAGIC, AGENT_VERSION, CONN_EXEC), 0) + frame(SESSION_ATTACH, attach, 1))
        for _ in range(2):
            kind, payload = take(self.s)
            if kind == ERR:
                raise Failed("agent: " + payload[8:].decode("utf-8", "replace"))
            if kind != OK:
                raise Failed(f"the agent answered {kind}")

    def key(self):
        self.s.sendall(frame(STDIN, b"x", 0))
        while True:
            kind, payload = take(self.s)
            if kind == OUT and payload[9:] == b"x":
                return

    def close(self):
        self.s.close()


class EchoWebSocket(Echo):
    name = "mayfly"
    TYPED = b"\x82\x82\0\0\0\0\0x"
    SHOWN = b"\x82\x02\x01x"

    def attach(self):
        self.c = upgraded(self.d.api, f"{self.path}/pty/{self.session}/ws?cols=80&rows=24", "websocket")
        while b'"connected"' not in self.c.buf:
            self.c.more()
        self.c.buf = b""

    def key(self):
        self.c.s.sendall(self.TYPED)
        seen = b""
        while not seen.endswith(self.SHOWN):
            got = self.c.s.recv(4096)
            if not got:
                raise Failed("the daemon closed the connection")
            seen += got

    def close(self):
        self.c.close()


# ---- the same bytes by each way

def serving(d, sid):
    """wayload runs in this sandbox."""
    with open(find("wayload"), "rb") as f:
        d.api.upload(sid, [("/tmp/wayload", f.read())])()
    d.api.output(sid, f"chmod 755 /tmp/wayload; setsid /tmp/wayload {PORT} >/tmp/wayload.log 2>&1 </dev/null &")
    end = time.monotonic() + 30
    while True:
        try:
            upgraded(d.api, f"/{sid}/{PORT}/idle", "websocket").close()
            return sid
        except Failed as e:
            if time.monotonic() > end:
                raise Failed(f"wayload: {e}; {d.api.output(sid, 'cat /tmp/wayload.log')}") from None
            time.sleep(0.2)


class Bulk:
    def __init__(self, ctx):
        self.d = ctx.daemon()
        self.api, self.sid = self.d.api, ctx.once("ways sandbox", lambda: serving(self.d, self.d.sandbox()))

    def sample(self):
        up, down = self.up(), self.down()
        return {"total": up + down, "up": up, "down": down}

    @staticmethod
    def count_down(c, n):
        t0 = time.monotonic_ns()
        drain(c, n)
        return us_since(t0)


class File(Bulk):
    name = "file transfer"

    def __init__(self, ctx):
        super().__init__(ctx)
        self.send = self.api.upload(self.sid, [("/tmp/bulk", bytes(BYTES))])

    def up(self):
        t0 = time.monotonic_ns()
        self.send()
        return us_since(t0)

    def down(self):
        path, headers = self.api.execd(self.sid)
        c = Conn(self.api.host, self.api.port)
        ask = request("GET", path + "/files/download?path=/tmp/bulk", f"{self.api.host}:{self.api.port}", [("OPEN-SANDBOX-API-KEY", self.api.key), *headers])
        t0 = time.monotonic_ns()
        c.s.sendall(ask)
        status, fields = c.head()
        if status != 200 or int(fields["content-length"]) != BYTES:
            raise Failed(f"download: {status} {fields}")
        drain(c, BYTES)
        took = us_since(t0)
        c.close()
        return took


class WebSocket(Bulk):
    """in messages of 64 KiB, to and from a server in the sandbox: up by a connection that is open; the time of down includes the opening of one"""
    name = "WebSocket"
    wire_up, wire_down = BYTES // PIECE * (14 + PIECE), BYTES // PIECE * (10 + PIECE)
    # masked by zeros: the mask is the client's work, not the daemon's
    frames = memoryview((b"\x82\xff" + PIECE.to_bytes(8, "big") + b"\0\0\0\0" + bytes(PIECE)) * 16)

    def begun(self, what, n):
        return upgraded(self.api, f"/{self.sid}/{PORT}/{what}/{n}", "websocket")

    def sent(self, c):
        for _ in range(BYTES // PIECE // 16):
            c.s.sendall(self.frames)
        while b"\x82\x01k" not in c.buf:  # the close frame may be behind it
            c.more()

    def up(self):
        c = self.begun("sink", self.wire_up)
        t0 = time.monotonic_ns()
        self.sent(c)
        took = us_since(t0)
        c.close()
        return took

    def down(self):
        t0 = time.monotonic_ns()
        c = self.begun("source", self.wire_down)
        drain(c, self.wire_down)
        took = us_since(t0)
        c.close()
        return took


class Raw(WebSocket):
    """the same by the upgrade of `mayfly port-forward`"""
    name = "raw TCP"
    wire_up = wire_down = BYTES

    def begun(self, what, n):
        c = upgraded(self.api, f"{self.api.execd(self.sid)[0]}/stream?port={PORT}", "mayfly-stream")
        c.s.sendall(f"GET /{what}/{n}\n".encode())
        return c

    def sent(self, c):
        for _ in range(MIB):
            c.s.sendall(OUT_OF)
        while not c.buf.endswith(b"k"):
            c.more()


# ---- idle ones

def pss(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
        return next(float(l.split()[1]) for l in f if l.startswith("Pss:"))


def named(program):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if os.path.basename(f.read().split(b"\0")[0].split(b":")[0]) == program:
                    yield int(pid)
        except OSError:
            continue


class Idle:
    """One sample: the allocator keeps what it had, so a second one of the same daemon would show nothing. For the same reason the daemon is not the one
    that all share, but the one without a pool, which only the scenario `jail` uses besides."""
    name = "mayfly"

    def __init__(self, ctx):
        self.d = ctx.daemon(blank_pool=0)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if hard < IDLE + 200:
            raise Absent(f"a process has at most {hard} descriptors here")
        self.boxes = [serving(self.d, self.d.api.create(self.d.image, entrypoint=["sleep", "86400"])) for _ in range(IDLE // SHARE)]

    @staticmethod
    def memory():
        return {p: sum(map(pss, named(p.encode()))) for p in ("mayflyd", "mayfly-vmm")}

    def warm(self):
        return {"total": 0.0}

    def sample(self):
        time.sleep(2)
        before, open_ = self.memory(), []
        try:
            for sid in self.boxes:
                open_ += [upgraded(self.d.api, f"/{sid}/{PORT}/idle", "websocket") for _ in range(SHARE)]
            time.sleep(2)
            after = self.memory()
        finally:
            for c in open_:
                c.close()
        got = {p: max(0.0, after[p] - before[p]) / IDLE for p in before}
        return {"total": sum(got.values()), "daemon": got["mayflyd"], "monitors": got["mayfly-vmm"]}

    def close(self):
        for sid in self.boxes:
            self.d.api.delete(sid)


SCENARIOS = {
    "ways-echo": {
        "what": f"the echo of a key in a terminal session, mean of {KEYS}: by the agent's own stream over vsock, by the WebSocket",
        "start": "before the key is written", "stop": "its echo is read", "arms": [EchoAgent, EchoWebSocket], "seconds": 20,
    },
    "ways-bytes": {
        "what": f"{MIB} MiB into a sandbox and {MIB} MiB out of it: a file, messages of a WebSocket, a raw connection",
        "start": "up: before the first byte (the connection is open); down: before it is asked for", "stop": "up: the sandbox has said that it has all; down: the last byte",
        "arms": [File, WebSocket, Raw], "seconds": 60, "phase_rate": {"up": MIB, "down": MIB},
    },
    "ways-idle": {
        "what": f"memory of one of {IDLE:,} idle WebSockets to servers in {IDLE // SHARE} sandboxes: proportional shares of the daemon and of the monitors",
        "start": "before the first is opened", "stop": "2 s after the last", "unit": "KiB", "arms": [Idle], "seconds": 120, "samples": 1, "passes": 1,
    },
}
