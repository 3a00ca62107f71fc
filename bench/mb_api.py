# SPDX-License-Identifier: Apache-2.0
"""Scenarios through the daemon's HTTP API (the Sandbox Protocol), with plain sockets: http.client, connections kept.

Start line: the moment before the request is written. Stop line: as docs/benchmarks.md says for each.
"""
import http.client
import json
import os
import threading
import time
import urllib.parse

from mb_arms import Absent, Failed


class Api:
    def __init__(self, base):
        u = urllib.parse.urlparse(base)
        self.host, self.port = u.hostname, u.port or 80
        self.key = os.environ.get("OPEN_SANDBOX_API_KEY", "")
        self.local = threading.local()
        self.ends = {}

    def conn(self):
        c = getattr(self.local, "c", None)
        if c is None:
            c = self.local.c = http.client.HTTPConnection(self.host, self.port, timeout=120)
            c.connect()
        return c

    def call(self, method, path, body=None, want=(200, 201, 202, 204), headers=None, raw=False):
        c = self.conn()
        h = dict(headers or {})
        if self.key:
            h["OPEN-SANDBOX-API-KEY"] = self.key
        if body is not None and not isinstance(body, (bytes, bytearray)):
            body = json.dumps(body).encode()
            h["Content-Type"] = "application/json"
        try:
            c.request(method, path, body=body, headers=h)
            r = c.getresponse()
            data = r.read()
        except (OSError, http.client.HTTPException):
            self.local.c = None
            raise
        if r.status not in want:
            raise Failed(f"{method} {path}: {r.status} {data[:200].decode('utf-8', 'replace')}")
        return data if raw else (json.loads(data) if data.strip() else None)

    def create(self, image):
        return self.call("POST", "/v1/sandboxes", {"image": {"uri": image}, "entrypoint": ["tail", "-f", "/dev/null"],
                                                   "timeout": 600, "resourceLimits": {"cpu": "1", "memory": "256Mi"}})["id"]

    def delete(self, sid):
        self.call("DELETE", f"/v1/sandboxes/{sid}", want=(204, 404))

    def execd(self, sid):
        """Where the sandbox's own API is, as the SDKs ask for it: (host:port, path, headers)."""
        e = self.call("GET", f"/v1/sandboxes/{sid}/endpoints/44772")
        at = e["endpoint"]
        host, _, path = at.partition("://")[2].partition("/") if "://" in at else at.partition("/")
        return host, ("/" + path).rstrip("/"), e.get("headers") or {}

    def command(self, sid, command="echo hi", mark=b'"stdout"'):
        """Runs it; (microseconds to the first output event, microseconds to the end)."""
        if sid not in self.ends:
            self.ends[sid] = self.execd(sid)
        host, path, headers = self.ends[sid]
        key = "c:" + host
        c = getattr(self.local, key, None) or http.client.HTTPConnection(host, timeout=120)
        setattr(self.local, key, c)
        t0 = time.monotonic_ns()
        c.request("POST", path + "/command", body=json.dumps({"command": command}).encode(),
                  headers={"Content-Type": "application/json", **headers})
        r = c.getresponse()
        if r.status != 200:
            raise Failed(f"command: {r.status} {r.read()[:200]!r}")
        first, data = None, b""
        while True:
            got = r.read1(65536)
            if not got:
                break
            data += got
            if first is None and mark in data:
                first = (time.monotonic_ns() - t0) / 1000
        if b"execution_complete" not in data:
            raise Failed("command: " + data[-200:].decode("utf-8", "replace"))
        return first, (time.monotonic_ns() - t0) / 1000


class ApiArm:
    name = "mayfly"

    def __init__(self, ctx):
        if not ctx.api:
            raise Absent("no daemon given (--api http://HOST:PORT)")
        self.api = Api(ctx.api)
        self.image = ctx.image
        try:
            self.api.call("GET", "/health")
        except OSError as e:
            raise Absent(f"no daemon at {ctx.api}: {e}") from e
        self.sid = None

    def sandbox(self):
        if self.sid is None:
            self.sid = self.api.create(self.image)
            self.api.command(self.sid)
        return self.sid

    def close(self):
        if self.sid:
            self.api.delete(self.sid)


class Create(ApiArm):
    """create call to the first byte of a command's output, template warm"""

    def sample(self):
        t0 = time.monotonic_ns()
        sid = self.api.create(self.image)
        made = (time.monotonic_ns() - t0) / 1000
        try:
            self.api.command(sid)
            t1 = (time.monotonic_ns() - t0) / 1000
        finally:
            self.api.delete(sid)
        return {"total": t1, "create": made, "first command": t1 - made}


class Exec(ApiArm):
    def sample(self):
        return {"total": self.api.command(self.sandbox(), "true", b"execution_complete")[1]}


class FirstAfterIdle(ApiArm):
    """the first command after two seconds in which nothing was asked"""

    def sample(self):
        self.sandbox()
        time.sleep(2)
        return {"total": self.api.command(self.sid, "true", b"execution_complete")[1]}


def wait_state(api, path, wanted, timeout=120):
    """The protocol has no event for it: asked again and again, which is part of what its users see."""
    end = time.monotonic() + timeout
    while True:
        s = api.call("GET", path)
        state = s["status"]["state"]
        if state == wanted:
            return
        if state in ("Failed", "Terminated") or time.monotonic() > end:
            raise Failed(f"{path}: {state}")
        time.sleep(0.002)


class PauseResume(ApiArm):
    def sample(self):
        sid = self.sandbox()
        t0 = time.monotonic_ns()
        self.api.call("POST", f"/v1/sandboxes/{sid}/pause")
        wait_state(self.api, f"/v1/sandboxes/{sid}", "Paused")
        t1 = time.monotonic_ns()
        self.api.call("POST", f"/v1/sandboxes/{sid}/resume")
        wait_state(self.api, f"/v1/sandboxes/{sid}", "Running")
        self.api.command(sid)
        t2 = time.monotonic_ns()
        return {"total": (t2 - t0) / 1000, "pause": (t1 - t0) / 1000, "resume to output": (t2 - t1) / 1000}


class Snapshot(ApiArm):
    def sample(self):
        sid = self.sandbox()
        t0 = time.monotonic_ns()
        snap = self.api.call("POST", f"/v1/sandboxes/{sid}/snapshots", {})["id"]
        t1 = time.monotonic_ns()
        wait_state(self.api, f"/v1/snapshots/{snap}", "Ready")
        t2 = time.monotonic_ns()
        self.api.call("DELETE", f"/v1/snapshots/{snap}")
        return {"total": (t2 - t0) / 1000, "answered": (t1 - t0) / 1000}


def burst(k):
    class Burst(ApiArm):
        size = k

        def sample(self):
            made, lock, errors = [], threading.Lock(), []

            def one():
                try:
                    sid = self.api.create(self.image)
                    with lock:
                        made.append(sid)
                    self.api.command(sid)
                except Exception as e:  # noqa: BLE001: told below
                    errors.append(str(e))
            threads = [threading.Thread(target=one) for _ in range(k)]
            t0 = time.monotonic_ns()
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            took = (time.monotonic_ns() - t0) / 1000
            for sid in made:
                self.api.delete(sid)
            if errors:
                raise Failed(f"{len(errors)} of {k}: {errors[0]}")
            return {"total": took, "each": took / k}
    return Burst


class Sustained(ApiArm):
    """ten times create, command, kill, one after the other: microseconds for one of them"""

    def sample(self):
        t0 = time.monotonic_ns()
        for _ in range(10):
            sid = self.api.create(self.image)
            self.api.command(sid)
            self.api.delete(sid)
        return {"total": (time.monotonic_ns() - t0) / 10000}


class Files(ApiArm):
    """16 MiB up, then down, through the sandbox's file API"""

    def sample(self):
        sid = self.sandbox()
        host, path, headers = self.api.execd(sid)
        body = b"\xa5" * (16 << 20)
        b = "mayflybench"
        head = (f'--{b}\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\nContent-Type: application/json\r\n\r\n'
                f'{json.dumps({"path": "/tmp/bench.bin"})}\r\n--{b}\r\nContent-Disposition: form-data; name="file"; filename="bench.bin"\r\n'
                f'Content-Type: application/octet-stream\r\n\r\n').encode()
        c = http.client.HTTPConnection(host, timeout=120)
        t0 = time.monotonic_ns()
        c.request("POST", path + "/files/upload", body=head + body + f"\r\n--{b}--\r\n".encode(),
                  headers={"Content-Type": f"multipart/form-data; boundary={b}", **headers})
        r = c.getresponse()
        r.read()
        if r.status != 200:
            raise Failed(f"upload: {r.status}")
        t1 = time.monotonic_ns()
        c.request("GET", path + "/files/download?path=/tmp/bench.bin", headers=headers)
        r = c.getresponse()
        got = r.read()
        t2 = time.monotonic_ns()
        c.close()
        if got != body:
            raise Failed(f"download: {r.status}, {len(got)} bytes, or other bytes than those sent")
        return {"total": (t2 - t0) / 1000, "upload": (t1 - t0) / 1000, "download": (t2 - t1) / 1000}


SCENARIOS = {
    "api-create": ("us", [Create], "create call to the first output of a command, template warm"),
    "api-exec": ("us", [Exec], "one `true` on a running sandbox, request to end of stream"),
    "api-idle-exec": ("us", [FirstAfterIdle], "the same after two idle seconds"),
    "api-pause": ("us", [PauseResume], "pause to Paused, resume to the first output of a command"),
    "api-snapshot": ("us", [Snapshot], "snapshot call to Ready"),
    "api-burst-1": ("us", [burst(1)], "creates at once until all have given output"),
    "api-burst-8": ("us", [burst(8)], "the same, 8"),
    "api-burst-32": ("us", [burst(32)], "the same, 32"),
    "api-sustained": ("us", [Sustained], "create, command, kill, one after the other: time for one"),
    "api-files": ("us", [Files], "16 MiB up and down"),
}
