# SPDX-License-Identifier: Apache-2.0
"""The scenarios code-*: cells of Python through /code, beside the same Jupyter server driven directly. Both are on this host: the daemon's monitor is played by
tests/e2e/fake/mayfly-vmm, whose dials lead here. So vsock and the agent are not in it, and a relay in Python is.
"""
import base64
import concurrent.futures
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
import urllib.request
import uuid

from mb_core import ROOT, Absent, Failed, find, us_since
from mb_http import Api

E2E = os.path.join(ROOT, "tests", "e2e")
OUTPUT = "import sys\nfor i in range(100): sys.stdout.write('x' * 104857 + '\\n'); sys.stdout.flush()"
OUTPUT_BYTES = 100 * 104858
LIMIT_S = 120


class Host:
    """A Jupyter server and a daemon with one sandbox that reaches it."""

    def __init__(self, ctx):
        if not os.path.isdir(E2E):
            raise Absent("the tests' tree is not there")
        venv = subprocess.run([os.path.join(E2E, "venv")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if venv.returncode:
            raise Absent(venv.stderr.strip()[-200:])
        self.dir = os.path.join(ctx.tmp, "code")
        os.makedirs(self.dir)
        ctx.at_end(self.close)
        # the test kit's server, in its own environment: this Python may lack what the kit needs
        sys.path.insert(0, E2E)
        import jupyterkit
        jupyterkit.VENV = jupyterkit.pathlib.Path(venv.stdout.split()[-1])
        self.jupyter = jupyterkit.Jupyter(os.path.join(self.dir, "jupyter")).start().wait()
        self.daemon = None
        self.start_daemon()
        self.box = self.api.create(env=self.jupyter.env)

    def start_daemon(self):
        d = self.dir
        for f in ("state", "bin", "root"):
            os.makedirs(os.path.join(d, f))
        os.symlink(os.path.join(E2E, "fake", "mayfly-vmm"), f"{d}/bin/mayfly-vmm")
        os.symlink(find("mayfly-image"), f"{d}/bin/mayfly-image")
        with open(f"{d}/root/file", "w") as f:
            f.write("of an image\n")
        subprocess.run(["tar", "-C", f"{d}/root", "-cf", f"{d}/root.tar", "."], check=True)
        subprocess.run([find("mayfly"), "image", "import", "--store", f"{d}/state/images", "--local", f"{d}/root.tar", "tiny"], check=True, capture_output=True)
        with open(f"{d}/plan", "w") as f:
            json.dump({"mkdir": "make"}, f)
        with open(f"{d}/config.toml", "w") as f:
            f.write(f'[server]\nport = 0\n[runtime]\nstate_dir = "{d}/state"\nrun_dir = "{d}/run"\nbin_dir = "{d}/bin"\nkernel = "{d}/root.tar"\n'
                    f'initrd = "{d}/root.tar"\nblank_pool = 0\ntemplates = false\n[limits]\ndisk_mib = 64\n')
        with open(f"{d}/log", "wb") as log:
            self.daemon = subprocess.Popen([find("mayflyd"), "--config", f"{d}/config.toml", "--no-jail", "--no-jail"], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                           env=os.environ | {"FAKE_PLAN": f"{d}/plan"})
        end = time.monotonic() + LIMIT_S
        while not (m := re.search(r"listening on \S+ port (\d+)", open(f"{d}/log").read())):
            if self.daemon.poll() is not None or time.monotonic() > end:
                raise Failed(f"the daemon does not start: {open(f'{d}/log').read()[-300:]}")
            time.sleep(0.05)
        self.api = Api("127.0.0.1", int(m[1]))

    def close(self):
        if getattr(self, "box", None):
            self.api.delete(self.box)
        if getattr(self, "daemon", None):
            self.daemon.kill()
            self.daemon.wait()
        if getattr(self, "jupyter", None):
            self.jupyter.stop()
        shutil.rmtree(self.dir, ignore_errors=True)


class Mayfly:
    name = "mayfly"

    def __init__(self, ctx):
        self.h = ctx.once("code", lambda: Host(ctx))
        self.contexts = {}

    def path(self, what):
        return f"/{self.h.box}/44772{what}"

    def run(self, code, key=0):
        """Runs a cell. How many bytes its stream of events has; its output is in there."""
        if key not in self.contexts:
            self.contexts[key] = self.h.api.call("POST", self.path("/code/context"), {"language": "python"})["id"]
        body = json.dumps({"code": code, "context": {"id": self.contexts[key]}}).encode()
        _, data = self.h.api.raw("POST", self.path("/code"), [("Content-Type", "application/json")], body)
        if b'"execution_complete"' not in data[-300:]:
            raise Failed(f"the cell did not end well: {data[-200:]!r}")
        return len(data)


class Direct:
    """Jupyter's own API, and one WebSocket for each kernel."""
    name = "jupyter"

    def __init__(self, ctx):
        self.h = ctx.once("code", lambda: Host(ctx))
        self.kernels = {}

    def kernel(self, key):
        if key not in self.kernels:
            j = self.h.jupyter
            r = urllib.request.Request(f"{j.env['JUPYTER_HOST']}/api/kernels", method="POST", data=b'{"name": "python"}', headers={"Authorization": f"token {j.env['JUPYTER_TOKEN']}"})
            with urllib.request.urlopen(r, timeout=LIMIT_S) as answer:
                kid = json.load(answer)["id"]
            self.kernels[key] = Channel(j.port, j.env["JUPYTER_TOKEN"], kid)
        return self.kernels[key]

    def run(self, code, key=0):
        return self.kernel(key).run(code)


class Channel:
    """As much of a WebSocket as a kernel's messages need."""

    def __init__(self, port, token, kernel):
        self.s = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = bytearray()
        self.s.sendall((f"GET /api/kernels/{kernel}/channels?session_id={uuid.uuid4().hex} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        f"Authorization: token {token}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n\r\n").encode())
        while b"\r\n\r\n" not in self.buf:
            self.more()
        head, _, rest = bytes(self.buf).partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise Failed(head[:100].decode("latin-1"))
        self.buf = bytearray(rest)

    def more(self):
        got = self.s.recv(262144)
        if not got:
            raise Failed("the Jupyter server closed the connection")
        self.buf += got

    def take(self, n):
        while len(self.buf) < n:
            self.more()
        out = bytes(self.buf[:n])
        del self.buf[:n]
        return out

    def send(self, op, data):
        mask = os.urandom(4)
        size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
        self.s.sendall(bytes([0x80 | op]) + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def message(self):
        parts = []
        while True:
            first, n = self.take(2)
            n = struct.unpack(">H", self.take(2))[0] if n == 126 else struct.unpack(">Q", self.take(8))[0] if n == 127 else n
            data = self.take(n)
            if first & 15 == 9:
                self.send(10, data)
            elif first & 15 in (0, 1, 2):
                parts.append(data)
                if first & 0x80:
                    return b"".join(parts)

    def run(self, code):
        mid, idle, replied, size = uuid.uuid4().hex, False, False, 0
        self.send(1, json.dumps({"channel": "shell", "header": {"msg_id": mid, "msg_type": "execute_request", "username": "b", "session": "b", "date": "", "version": "5.3"},
                                 "parent_header": {}, "metadata": {}, "buffers": [],
                                 "content": {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False, "stop_on_error": True}}).encode())
        while not (idle and replied):
            data = self.message()
            m = json.loads(data)
            if m["parent_header"].get("msg_id") != mid:
                continue
            size += len(data)
            replied = replied or m["msg_type"] == "execute_reply"
            idle = idle or m["msg_type"] == "status" and m["content"]["execution_state"] == "idle"
        return size


def timed(work):
    t0 = time.monotonic_ns()
    work()
    return {"total": us_since(t0)}


def arms(sample):
    """Both, with one way to take a sample."""
    return [type(base.__name__, (base,), {"sample": sample}) for base in (Mayfly, Direct)]


def one(arm):
    arm.run("1 + 1")
    return timed(lambda: arm.run("1 + 1"))


def hundred(arm):
    arm.run("1 + 1")
    return timed(lambda: [arm.run("1 + 1") for _ in range(100)])


def eight(arm):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for key in range(8):
            arm.run("1 + 1", key)
        return timed(lambda: list(pool.map(lambda key: arm.run("1 + 1", key), range(8))))


def output(arm):
    def work():
        if arm.run(OUTPUT) < OUTPUT_BYTES:
            raise Failed("output is missing")
    return timed(work)


START = "before the request to run the cell is written"
SCENARIOS = {
    "code": {"what": "one warm cell `1 + 1` in Python", "start": START, "stop": "the end of its stream; `jupyter`: the kernel is idle and has replied", "arms": arms(one), "seconds": 15, "where": "host"},
    "code-100": {"what": "100 cells `1 + 1` in a row", "start": "before the first request is written", "stop": "the end of the last cell", "arms": arms(hundred), "seconds": 60, "samples": 5, "where": "host"},
    "code-8": {"what": "a cell `1 + 1` in each of 8 contexts at once", "start": "before the first of the eight requests is written", "stop": "the end of the last of them", "arms": arms(eight),
               "seconds": 40, "samples": 10, "where": "host"},
    "code-output": {"what": "a cell that writes 10 MB in 100 pieces", "start": START, "stop": "the end of its stream, all bytes read", "arms": arms(output), "seconds": 40, "samples": 10, "where": "host"},
}
