# SPDX-License-Identifier: Apache-2.0
"""A small HTTP/1.1 client on plain sockets with kept connections, so that little code is between the clock and the daemon.

Python's own http.client costs several milliseconds a request where the processor is emulated.
"""
import json
import select
import socket
import threading
import time

from mb_core import Failed


class Conn:
    def __init__(self, host, port, timeout=120):
        self.s = socket.create_connection((host, port), timeout=timeout)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = b""

    def more(self):
        got = self.s.recv(262144)
        if not got:
            raise Failed("the daemon closed the connection")
        self.buf += got

    def line(self):
        while b"\r\n" not in self.buf:
            self.more()
        out, _, self.buf = self.buf.partition(b"\r\n")
        return out

    def exactly(self, n):
        parts, have = [self.buf[:n]], min(n, len(self.buf))
        self.buf = self.buf[n:]
        while have < n:
            got = self.s.recv(min(1 << 20, n - have))
            if not got:
                raise Failed("the daemon closed the connection")
            parts.append(got)
            have += len(got)
        return b"".join(parts)

    def head(self):
        """(status, {name: value}) of the answer."""
        while b"\r\n\r\n" not in self.buf:
            self.more()
        head, _, self.buf = self.buf.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        fields = {}
        for f in lines[1:]:
            k, _, v = f.partition(":")
            fields[k.strip().lower()] = v.strip()
        return int(lines[0].split()[1]), fields

    def pieces(self, fields):
        """The body, as it comes."""
        if "chunked" in fields.get("transfer-encoding", ""):
            while True:
                n = int(self.line().split(b";")[0], 16)
                data = self.exactly(n)
                self.line()
                if n == 0:
                    return
                yield data
        elif "content-length" in fields:
            n = int(fields["content-length"])
            if n:
                yield self.exactly(n)
        else:
            raise Failed("an answer without a length")

    def close(self):
        self.s.close()


def request(method, path, host, headers=(), body=b""):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{k}: {v}" for k, v in headers)]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Api:
    """The Sandbox Protocol, as much of it as the bench needs; connections are kept, one a thread."""

    def __init__(self, host, port, key=""):
        self.host, self.port, self.key = host, port, key
        self.local = threading.local()
        self.ends = {}

    def conn(self):
        """This thread's connection; a new one if the daemon has closed the kept one (nothing else makes it readable between calls)."""
        c = getattr(self.local, "c", None)
        if c is not None and select.select([c.s], [], [], 0)[0]:
            c.close()
            c = None
        if c is None:
            c = self.local.c = Conn(self.host, self.port)
        return c

    def raw(self, method, path, headers=(), body=b"", on_piece=None, want=(200, 201, 202, 204)):
        """(fields, body); on_piece(data) is called as the answer comes."""
        key = [("OPEN-SANDBOX-API-KEY", self.key)] if self.key else []
        c = self.conn()
        try:
            c.s.sendall(request(method, path, f"{self.host}:{self.port}", [*key, *headers], body))
            status, fields = c.head()
            parts = []
            if status != 204:
                for p in c.pieces(fields):
                    parts.append(p)
                    if on_piece:
                        on_piece(p)
        except (OSError, Failed):
            self.local.c = None
            c.close()
            raise
        if fields.get("connection", "").lower() == "close":
            self.local.c = None
            c.close()
        data = b"".join(parts)
        if status not in want:
            raise Failed(f"{method} {path}: {status} {data[:200].decode('utf-8', 'replace')}")
        return fields, data

    def call(self, method, path, body=None, want=(200, 201, 202, 204)):
        headers = [("Content-Type", "application/json")] if body is not None else []
        data = self.raw(method, path, headers, b"" if body is None else json.dumps(body).encode(), want=want)[1]
        return json.loads(data) if data.strip() else None

    def create(self, image="tiny", **more):
        return self.call("POST", "/v1/sandboxes", {"image": {"uri": image}, "entrypoint": ["tail", "-f", "/dev/null"], "timeout": 3600,
                                                   "resourceLimits": {"cpu": "1", "memory": "256Mi"}, **more})["id"]

    def delete(self, sid):
        self.call("DELETE", f"/v1/sandboxes/{sid}", want=(204, 404))

    def execd(self, sid):
        """The endpoint of the sandbox's own API: (path, headers). Asked for once and kept, as the SDKs do."""
        if sid not in self.ends:
            e = self.call("GET", f"/v1/sandboxes/{sid}/endpoints/44772")
            at = e["endpoint"].partition("://")[2] or e["endpoint"]
            self.ends[sid] = "/" + at.partition("/")[2].rstrip("/"), list((e.get("headers") or {}).items())
        return self.ends[sid]

    def command(self, sid, command="echo hi", mark=b'"stdout"'):
        """Runs it; (microseconds to the event with the mark, microseconds to the end of the stream)."""
        path, headers = self.execd(sid)
        seen = {"data": b"", "at": None}
        t0 = time.monotonic_ns()

        def on_piece(p):
            seen["data"] += p
            if seen["at"] is None and mark in seen["data"]:
                seen["at"] = (time.monotonic_ns() - t0) / 1000
        self.raw("POST", path + "/command", [("Content-Type", "application/json"), *headers], json.dumps({"command": command}).encode(), on_piece)
        end = (time.monotonic_ns() - t0) / 1000
        if b"execution_complete" not in seen["data"]:
            raise Failed("command: " + seen["data"][-200:].decode("utf-8", "replace"))
        if seen["at"] is None:
            raise Failed("command: no " + mark.decode())
        return seen["at"], end

    def output(self, sid, command):
        """What a command printed, as text."""
        path, headers = self.execd(sid)
        _, data = self.raw("POST", path + "/command", [("Content-Type", "application/json"), *headers], json.dumps({"command": command}).encode())
        out = []
        for line in data.decode("utf-8", "replace").splitlines():
            line = line.removeprefix("data:").strip()
            if line.startswith("{"):
                ev = json.loads(line)
                if ev.get("type") == "stdout":
                    out.append(ev.get("text", ""))
        return "\n".join(out)

    def upload(self, sid, files):
        """files: [(path in the sandbox, bytes)]. Returns a function that sends them in one request: the clock can start after the body was made."""
        path, headers = self.execd(sid)
        b = "mayflybench"
        parts = []
        for to, data in files:
            parts.append(f'--{b}\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\nContent-Type: application/json\r\n\r\n'
                         f'{json.dumps({"path": to})}\r\n--{b}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n'
                         f'Content-Type: application/octet-stream\r\n\r\n'.encode())
            parts += [data, b"\r\n"]
        body = b"".join(parts) + f"--{b}--\r\n".encode()
        return lambda: self.raw("POST", path + "/files/upload", [("Content-Type", f"multipart/form-data; boundary={b}"), *headers], body)

    def download(self, sid, at):
        path, headers = self.execd(sid)
        return self.raw("GET", f"{path}/files/download?path={at}", headers)[1]

    def inspect(self, sid):
        """What the daemon counted of the create: origin and phases in microseconds."""
        text = self.raw("GET", f"/v1/sandboxes/{sid}/diagnostics/inspect")[1].decode("utf-8", "replace")
        rows = dict(l.split(": ", 1) for l in text.splitlines() if ": " in l)
        return rows.get("origin", ""), {k[6:-3]: float(v) * 1000 for k, v in rows.items() if k.startswith("phase_") and k.endswith("_ms")}

    def wait_state(self, path, wanted, timeout=120):
        """Asks again and again, because the protocol has no event for it. Users wait in the same way."""
        end = time.monotonic() + timeout
        while True:
            state = self.call("GET", path)["status"]["state"]
            if state == wanted:
                return
            if state in ("Failed", "Terminated") or time.monotonic() > end:
                raise Failed(f"{path}: {state} instead of {wanted}")
            time.sleep(0.001)
