# SPDX-License-Identifier: Apache-2.0
"""The protocol on the wire: requests and the answers that are documented for them, in order, against one sandbox on a real VM. Each exchange is also
compared with the one kept in golden/: what differs between two runs (ids, times, numbers that are measured) is made the same first.
    RECORD=1 make e2e T=test_wire        records them again; read the diff"""
import difflib
import http.client
import json
import os
import pathlib
import re
import time
import urllib.parse

import pytest

GOLDEN = pathlib.Path(__file__).parent / "golden"
SHOWN = ("content-type", "content-length", "location", "allow", "retry-after", "deprecation", "cache-control", "x-accel-buffering", "content-disposition", "content-range",
         "accept-ranges", "execd-commands-tail-cursor", "set-cookie", "transfer-encoding", "access-control-allow-origin", "access-control-allow-methods",
         "access-control-allow-headers", "access-control-allow-credentials", "access-control-expose-headers", "access-control-max-age", "connection", "server")
BOX = {"image": {"uri": "python"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1", "memory": "512Mi"}}
PARAM, LABEL = "SANDBOX::INVALID_PARAMETER", "SANDBOX::INVALID_METADATA_LABEL"
NOBODY = "11111111-2222-4333-8444-555555555555"

# what runs in the sandbox, to be reached through the proxy: it says what it was asked
SERVER = r'''
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do(self):
        n = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(n).decode()
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            while (k := int(self.rfile.readline(), 16)):
                body += self.rfile.read(k).decode(); self.rfile.readline()
        if self.path == "/junk":
            self.wfile.write(b"not HTTP at all\r\n\r\n"); return
        if self.path == "/short":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"); return
        if self.path == "/both":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"); return
        if self.path == "/split":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Evil: a\rSet-Cookie: b=c\r\nContent-Length: 0\r\n\r\n"); return
        names = [k for k in self.headers.keys() if k.lower() not in ("accept-encoding", "connection")]
        text = "\n".join([self.requestline] + sorted(f"{k.lower()}: {self.headers[k]}" for k in names) + ["", body]) + "\n"
        self.send_response(302 if self.path == "/away" else 200)
        self.send_header("Set-Cookie", "a=1"); self.send_header("Set-Cookie", "b=2")
        self.send_header("X-Request-ID", "the guest's own"); self.send_header("Access-Control-Allow-Origin", "evil")
        if self.path == "/away":
            self.send_header("Location", "/elsewhere?x=1")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())
    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), H).serve_forever()
'''


# since Python 3.13 they are called "Content Too Large", "Range Not Satisfiable" and "Unprocessable Content"
WORDS = {413: "Request Entity Too Large", 416: "Requested Range Not Satisfiable", 422: "Unprocessable Entity"}


class Wire:
    """Asks, checks, and writes down."""

    def __init__(self, daemon):
        self.daemon, self.text, self.seen = daemon, [], {}
        self.vars = {"NOBODY": NOBODY}

    def raw(self, method, path, body=None, headers=None, key=True):
        host, port = self.daemon.domain.split(":")
        c = http.client.HTTPConnection(host, int(port), timeout=120)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        h = ({"OPEN-SANDBOX-API-KEY": self.daemon.api_key} if key else {}) | (headers or {})
        try:
            c.request(method, path, data, h)
            r = c.getresponse()
            if path.endswith("/metrics/watch"):
                text = r.fp.readline() + r.fp.readline() + r.fp.readline()  # the chunk's size, the line, the end of the chunk
                text = text.split(b"\r\n")[1]
            else:
                text = r.read()
            return r.status, r.headers, text
        finally:
            c.close()

    def ask(self, name, method, path, body=None, status=200, code=None, headers=None, key=True, keep=None, loose=()):
        """keep: {variable: field of the answer}; loose: parts of the body that differ from run to run, as regular expressions."""
        at = re.sub(r"\{([A-Z]+)\}", lambda m: self.vars[m[1]], path)
        got, head, text = self.raw(method, at, json.loads(re.sub(r"\{([A-Z]+)\}", lambda m: self.vars[m[1]], json.dumps(body))) if isinstance(body, (dict, list)) else body,
                                   headers, key)
        shown = text.decode(errors="replace")
        assert got == status, f"{name}: {method} {at}: {got} instead of {status}: {shown}"
        assert head["X-Request-ID"] and len(head.get_all("Date")) == 1 and len(head.get_all("X-Request-ID")) == 1, name
        if headers and "X-Request-ID" in headers:
            assert head["X-Request-ID"] == headers["X-Request-ID"], name
        j = json.loads(shown) if shown and (head["Content-Type"] or "").startswith("application/json") else None
        if code:
            assert j and j["code"] == code and j["message"] and set(j) == {"code", "message"}, f"{name}: {shown}"
        elif status >= 400 and status not in (404, 405, 422, 416, 501) and "/18080/" not in at:  # the egress API's errors are plain text
            raise AssertionError(f"{name}: an error without its code in the table")
        for var, field in (keep or {}).items():
            self.vars[var] = str(j[field]) if j else json.loads(shown.split("\n\n")[0])[field]
        self.write(name, method, path, body, headers, got, head, shown, loose)
        return j if j is not None else shown

    def same(self, text, loose):
        for pattern in loose:
            text = re.sub(pattern, "{loose}", text)
        for var, value in self.vars.items():
            text = text.replace(value, "{" + var + "}")
        text = text.replace(self.daemon.domain, "{domain}")
        text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", "{uuid}", text)
        text = re.sub(r"\b[0-9a-f]{32}\b", "{hex}", text)
        text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", "{time}", text)
        return re.sub(r'("(timestamp|execution_time|modified_at|created_at)":)[\d.]+', r"\1{number}", text)

    def write(self, name, method, path, body, headers, status, head, shown, loose):
        shown = re.sub(r'\{"type":"ping",[^\n]*\n\n', "", shown)  # there is another for every three seconds that a command takes
        out = [f"## {name}", f"> {method} {path}"]
        out += [f"> {k}: {v}" for k, v in (headers or {}).items()]
        if body is not None:
            out += [f"> {body.decode(errors='replace') if isinstance(body, bytes) else json.dumps(body)}"[:600]]
        out += [f"< {status} {WORDS.get(status) or http.client.responses.get(status, '')}"]
        out += sorted(f"< {k}: {self.same(v, loose)}" for k, v in head.items() if k.lower() in SHOWN and not (k == "Content-Length" and int(v) > 60))
        out += [f"< {line}" for line in self.same(shown, loose).split("\n")] if shown else []
        self.text += out + [""]

    def compare(self, name):
        f, text = GOLDEN / name, "\n".join(self.text).replace("\r", "")
        self.text = []
        if os.environ.get("RECORD"):
            f.write_text(text)
        diff = list(difflib.unified_diff(f.read_text().split("\n"), text.split("\n"), "kept", "now", lineterm="", n=6))
        assert not diff, f"golden/{name} (RECORD=1 records anew):\n" + "\n".join(diff[:80])


@pytest.fixture(scope="module")
def wire(daemon, python_image):
    w = Wire(daemon)
    body = BOX | {"metadata": {"wire": "yes", "team/a": "b"}, "timeout": 3000, "env": {"GREETING": "hi", "GONE": None}, "extensions": {"opensandbox.extensions.x": "y", "opaque": "z"},
                  "platform": {"os": "linux", "arch": "amd64"}, "resourceRequests": {"cpu": "1"}}
    w.ask("create", "POST", "/v1/sandboxes", body, 202, keep={"BOX": "id"}, loose=[r'(?<="status":)\{[^}]*\}'])
    end = time.monotonic() + 240
    while json.loads(w.raw("GET", f"/v1/sandboxes/{w.vars['BOX']}")[2])["status"]["state"] != "Running":
        assert time.monotonic() < end
        time.sleep(0.3)
    w.compare("accepted.txt")
    yield w
    w.raw("DELETE", f"/v1/sandboxes/{w.vars['BOX']}")


def test_server(wire):
    a = wire.ask
    wire.text = []
    a("health", "GET", "/health", key=False)
    a("version", "GET", "/version", key=False)
    a("docs", "GET", "/docs", key=False)
    a("redoc", "GET", "/redoc", key=False)
    a("health is not under /v1", "GET", "/v1/health", status=404)
    a("no key", "GET", "/v1/sandboxes", status=401, code="MISSING_API_KEY", key=False)
    a("empty key", "GET", "/v1/sandboxes", status=401, code="MISSING_API_KEY", key=False, headers={"OPEN-SANDBOX-API-KEY": ""})
    a("wrong key", "GET", "/v1/sandboxes", status=401, code="INVALID_API_KEY", key=False, headers={"OPEN-SANDBOX-API-KEY": "no"})
    a("no key, no such route", "GET", "/v1/nothing", status=401, code="MISSING_API_KEY", key=False)
    a("unknown route", "GET", "/v1/nothing", status=404)
    a("wrong method", "PUT", "/v1/sandboxes", status=405)
    a("trailing slash", "GET", "/v1/sandboxes/?page=2", status=307)
    a("a request id is kept", "GET", "/v1/nothing", status=404, headers={"X-Request-ID": "mine, with blanks"})
    a("cross origin", "GET", "/health", headers={"Origin": "http://somewhere"})
    a("preflight", "OPTIONS", "/v1/sandboxes", key=False,
      headers={"Origin": "http://somewhere", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"})
    a("event of an SDK", "POST", "/v1/metrics/events", {"eventType": "sandbox.create", "createDurationMs": 12, "success": True, "sandboxId": "x", "image": "y"}, 204)
    a("another event", "POST", "/v1/metrics/events", {"eventType": "else", "createDurationMs": 12, "success": True}, 422)
    a("an event without its number", "POST", "/v1/metrics/events", {"eventType": "sandbox.create", "success": True}, 422)
    a("events are under /v1 only", "POST", "/metrics/events", {}, 404)
    a("pools: GET", "GET", "/v1/pools")
    a("pools: POST", "POST", "/v1/pools", {}, 400, PARAM)
    for method in ("GET", "PUT", "DELETE"):
        a(f"pools: {method}", method, "/v1/pools/p", {} if method == "PUT" else None, 404, "KUBERNETES::POOL_NOT_FOUND")
    wire.compare("server.txt")


def without(*keys):
    return {k: v for k, v in BOX.items() if k not in keys}


REFUSED = [
    ("no body", None, PARAM), ("not JSON", b"{", PARAM), ("rubbish behind it", json.dumps(BOX).encode() + b" x", PARAM), ("a bad image name", BOX | {"image": {"uri": "UP:per:case"}}, PARAM), ("not an object", b"[]", PARAM), ("deep", b"[" * 100000, PARAM),
    ("a NUL in it", b'{"image":{"uri":"a\\u0000b"}}', PARAM), ("not UTF-8", b'{"image":{"uri":"\xff"},"entrypoint":["a"],"resourceLimits":{}}', PARAM),
    ("neither image nor snapshot", without("image"), PARAM), ("both", BOX | {"snapshotId": "s"}, PARAM), ("a blank snapshot", without("image") | {"snapshotId": "  "}, PARAM),
    ("a blank image", BOX | {"image": {"uri": " "}}, PARAM), ("an image that is a text", BOX | {"image": "python"}, PARAM), ("half an auth", BOX | {"image": {"uri": "a", "auth": {"username": "u"}}}, PARAM),
    ("no entrypoint", without("entrypoint"), PARAM), ("an empty entrypoint", BOX | {"entrypoint": []}, PARAM), ("an entrypoint of numbers", BOX | {"entrypoint": [1]}, PARAM),
    ("a long entrypoint", BOX | {"entrypoint": ["x" * 140000]}, PARAM),
    ("no limits", without("resourceLimits"), PARAM), ("limits that are a list", BOX | {"resourceLimits": []}, PARAM), ("a number for a limit", BOX | {"resourceLimits": {"cpu": 1}}, PARAM),
    *[(f"cpu {v!r}", BOX | {"resourceLimits": {"cpu": v}}, PARAM) for v in ("abc", "0", "-1", "", "1.5.2", "0.0001m", "999")],
    *[(f"memory {v!r}", BOX | {"resourceLimits": {"memory": v}}, PARAM) for v in ("1.5Gi", "0", "-1Gi", "1Xi", "", "99999999999999999999", "99999Ti")],
    ("a GPU", BOX | {"resourceLimits": {"gpu": "1"}}, PARAM),
    *[(f"timeout {v!r}", BOX | {"timeout": v}, PARAM) for v in (59, 0, -1, 60.5, "60", True, 1e30)],
    ("env that is a list", BOX | {"env": ["A=b"]}, PARAM), ("env with a number", BOX | {"env": {"A": 1}}, PARAM), ("env with a bad name", BOX | {"env": {"A=B": "c"}}, PARAM),
    ("long env", BOX | {"env": {"A": "x" * 140000}}, PARAM), ("env of the egress", BOX | {"env": {"OPENSANDBOX_EGRESS_RULES": "x"}}, PARAM),
    *[(f"metadata {k!r}: {v!r}", BOX | {"metadata": {k: v}}, c) for k, v, c in (
        ("opensandbox.io/x", "y", LABEL), ("-a", "y", LABEL), ("a" * 64, "y", LABEL), ("a", "b c", LABEL), ("a", "x" * 64, LABEL), ("A/b/c", "y", LABEL), ("UP/b", "y", LABEL), ("", "y", LABEL), ("a", 1, PARAM))],
    *[(f"renewal by {v!r}", BOX | {"extensions": {"access.renew.extend.seconds": v}}, PARAM) for v in ("299", "86401", "x", "", "-300", "300.5")],
    ("extensions of numbers", BOX | {"extensions": {"a": 1}}, PARAM), ("a pool", BOX | {"extensions": {"poolRef": "p"}}, "KUBERNETES::POOL_NOT_FOUND"),
    *[(f"platform {v}", BOX | {"platform": v}, PARAM) for v in ({"os": "windows", "arch": "amd64"}, {"os": "linux", "arch": "arm64"}, {"os": "linux"})],
    ("a network policy", BOX | {"networkPolicy": {"egress": [{"action": "allow", "target": "no such/rule"}]}}, PARAM), ("credentials without a policy", BOX | {"credentialProxy": {"enabled": True}}, PARAM),
    ("secure access", BOX | {"secureAccess": True}, PARAM), ("volumes", BOX | {"volumes": [{"name": "v", "host": {"path": "/"}, "mountPath": "/v"}]}, "VOLUME::HOST_PATH_NOT_ALLOWED"),
    ("an unknown snapshot", without("image") | {"snapshotId": NOBODY}, "SNAPSHOT::NOT_FOUND"), ("an image that is nowhere", BOX | {"image": {"uri": "127.0.0.1:1/no/such:1"}}, "DOCKER::SANDBOX_IMAGE_PULL_FAILED"),
]


def test_create_refuses(wire):
    wire.text = []
    before = json.loads(wire.raw("GET", "/v1/sandboxes?pageSize=200")[2])["pagination"]["totalItems"]
    for name, body, code in REFUSED:
        status = {"SNAPSHOT::NOT_FOUND": 404, "KUBERNETES::POOL_NOT_FOUND": 404, "DOCKER::SANDBOX_IMAGE_PULL_FAILED": 500}.get(code, 400)
        wire.ask(f"create: {name}", "POST", "/v1/sandboxes", body, status, code, headers={"Content-Type": "application/json"}, loose=[r"x{1000,}", r"(?<=127\.0\.0\.1:1/no/such:1: ).*(?=\")"])
    wire.ask("create: env of the server's own", "POST", "/v1/sandboxes", BOX | {"env": {"OPENSANDBOX_LIFECYCLE": "{}"}}, 422)
    wire.ask("create: a body that is too long", "POST", "/v1/sandboxes", b" " * (1 << 20) + b"{}", 413, PARAM)
    assert json.loads(wire.raw("GET", "/v1/sandboxes?pageSize=200")[2])["pagination"]["totalItems"] == before, "what was refused is nowhere"
    wire.text = [line[:400] for line in wire.text]
    wire.compare("create.txt")


def soon(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + seconds))


def test_lifecycle(wire):
    a, box = wire.ask, "/v1/sandboxes/{BOX}"
    wire.text = []
    a("get", "GET", box)
    a("get, unprefixed", "GET", "/sandboxes/{BOX}")
    for name, i in (("unknown", "{NOBODY}"), ("no id at all", "x"), ("upper case", "11111111-2222-4333-8444-55555555555A"), ("escaped", "%2e%2e"), ("a long one", "a" * 300)):
        for method, rest, body in (("GET", "", None), ("DELETE", "", None), ("PATCH", "/metadata", {}), ("POST", "/pause", None), ("POST", "/resume", None),
                                   ("POST", "/renew-expiration", {"expiresAt": "2100-01-01T00:00:00Z"}), ("GET", "/endpoints/80", None), ("POST", "/snapshots", {}), ("GET", "/networkpolicy", None),
                                   ("GET", "/diagnostics/logs", None), ("GET", "/diagnostics/events", None), ("GET", "/diagnostics/inspect", None), ("GET", "/diagnostics/summary", None)):
            if i != "%2e%2e":
                a(f"{name}: {method} {rest}", method, f"/v1/sandboxes/{i}{rest}", body, 404, "DOCKER::SANDBOX_NOT_FOUND")
    a("list, filtered", "GET", "/v1/sandboxes?metadata=wire%3Dyes&state=running&state=paused")
    a("list, escaped twice", "GET", "/v1/sandboxes?metadata=team%252Fa%3Db&state=running")
    a("list, nothing fits", "GET", "/v1/sandboxes?metadata=wire%3Dno")
    a("list, unknown state", "GET", "/v1/sandboxes?state=Odd&metadata=wire%3Dyes")
    a("list, far page", "GET", "/v1/sandboxes?metadata=wire%3Dyes&page=99")
    for q in ("page=0", "page=x", "page=-1", "pageSize=0", "pageSize=201", "page=1.5", "page="):
        a(f"list: {q}", "GET", f"/v1/sandboxes?{q}", status=400, code=PARAM)
    for q in ("junk", "=x", "a%3D%25zz"):
        a(f"list: metadata {q}", "GET", f"/v1/sandboxes?metadata={q}", status=400, code="INVALID_METADATA_FORMAT")
    a("metadata", "PATCH", box + "/metadata", {"more": "1", "team/a": None}, headers={"Content-Type": "application/merge-patch+json"})
    a("metadata: what is deleted stays so", "PATCH", box + "/metadata", {})
    for name, body, code in (("not JSON", b"{", PARAM), ("a list", [], PARAM), ("reserved", {"opensandbox.io/a": "b"}, "INVALID_METADATA_LABEL"), ("bad value", {"a": "b c"}, LABEL), ("a number", {"a": 1}, PARAM)):
        a(f"metadata: {name}", "PATCH", box + "/metadata", body, 400, code)
    for name, t in (("Z", soon(3700) + "Z"), ("nine digits", soon(3700) + ".123456789Z"), ("an offset", soon(3700) + ".1+00:00"), ("none: UTC", soon(3700)), ("shorter", soon(3600) + "Z")):
        a(f"renew: {name}", "POST", box + "/renew-expiration", {"expiresAt": t}, loose=[re.escape(t[:19])])
    wire.text = [re.sub(r'"expiresAt": "[^"]*"', '"expiresAt": "{soon}"', line) for line in wire.text]
    for name, body, code in (("past", {"expiresAt": "2020-01-01T00:00:00Z"}, "DOCKER::INVALID_EXPIRATION"), ("no time", {"expiresAt": "soon"}, PARAM), ("a number", {"expiresAt": 4102444800}, PARAM),
                             ("nothing", {}, PARAM), ("month 13", {"expiresAt": "2100-13-01T00:00:00Z"}, PARAM), ("not JSON", b"", PARAM)):
        a(f"renew: {name}", "POST", box + "/renew-expiration", body, 400, code)
    a("endpoint", "GET", box + "/endpoints/44772")
    a("endpoint, unprefixed", "GET", "/sandboxes/{BOX}/endpoints/8000?use_server_proxy=true")
    a("endpoint through the server", "GET", box + "/endpoints/8000?use_server_proxy=True")
    a("endpoint of the egress", "GET", box + "/endpoints/18080?use_server_proxy=false")
    for p in ("0", "65536", "-1", "x", "80x", "99999999999999999999"):
        a(f"endpoint: port {p}", "GET", box + f"/endpoints/{p}", status=400, code="DOCKER::INVALID_PORT")
    a("endpoint: signed and proxied", "GET", box + "/endpoints/80?use_server_proxy=true&expires=1", status=400, code=PARAM)
    a("endpoint: signed", "GET", box + "/endpoints/80?expires=4102444800", status=400, code="SANDBOX::API_NOT_SUPPORTED")
    a("endpoint: odd boolean", "GET", box + "/endpoints/80?use_server_proxy=maybe", status=400, code=PARAM)
    a("network policy", "GET", box + "/networkpolicy")
    for m, body, status, code in (("PATCH", {}, 400, PARAM), ("DELETE", {}, 400, PARAM), ("DELETE", ["x.example"], 200, None), ("PUT", {"defaultAction": "allow"}, 200, None)):
        a(f"network policy: {m}", m, box + "/networkpolicy", body, status, code)
    a("egress policy without the key, given after the create", "GET", "/{BOX}/18080/policy", status=401, key=False)
    a("egress policy", "GET", "/{BOX}/18080/policy")
    a("egress health", "GET", "/{BOX}/18080/healthz", key=False)
    for m, path, status in (("POST", "/policy", 200), ("PUT", "/policy", 200), ("PATCH", "/policy", 400), ("DELETE", "/policy", 400), ("POST", "/credential-vault", 501), ("GET", "/credential-vault/credentials", 501)):
        a(f"egress: {m} {path}", m, "/{BOX}/18080" + path, {} if m != "GET" else None, status)
    a("resume what runs", "POST", box + "/resume", status=409, code="DOCKER::SANDBOX_NOT_PAUSED")
    wire.compare("lifecycle.txt")


def test_diagnostics(wire):
    a, box = wire.ask, "/v1/sandboxes/{BOX}/diagnostics"
    wire.text = []
    a("logs", "GET", box + "/logs?scope=container")
    a("logs of all", "GET", box + "/logs?scope=%20ALL%20")
    a("plain logs", "GET", box + "/logs?tail=5")
    for kind, scope in (("logs", "lifecycle"), ("events", "container"), ("logs", "")):
        a(f"{kind} of '{scope}'", "GET", box + f"/{kind}?scope={scope}", status=400, code="DIAGNOSTICS_SCOPE_UNSUPPORTED")
    a("the scope is looked at first", "GET", "/v1/sandboxes/{NOBODY}/diagnostics/logs?scope=x", status=400, code="DIAGNOSTICS_SCOPE_UNSUPPORTED")
    some = [r'(?<="content":")[^"]+', r'(?<="contentLength":)\d+']
    a("events", "GET", box + "/events?scope=runtime", loose=some)
    a("plain events", "GET", box + "/events?limit=50", loose=[r"(?s)^2.*"])
    a("inspect", "GET", box + "/inspect", loose=[r"(?s)^id: .*"])
    a("summary", "GET", box + "/summary?tail=5&event_limit=2", loose=[r"(?s)^== inspect ==.*"])
    wire.compare("diagnostics.txt")


def test_proxy(wire):
    a = wire.ask
    wire.text = []
    up = "import socket,time\nfor i in range(400):\n try: socket.create_connection(('127.0.0.1',8000)); break\n except OSError: time.sleep(.1)"
    wire.raw("POST", f"/{wire.vars['BOX']}/44772/command", {"argv": ["python3", "-c", SERVER], "background": True})
    wire.raw("POST", f"/{wire.vars['BOX']}/44772/command", {"argv": ["python3", "-c", up]})
    wire.text = []
    theirs = {"Cookie": "c=1", "Authorization": "Bearer t", "X-Forwarded-For": "6.6.6.6", "X-Real-IP": "6.6.6.6", "Forwarded": "for=6.6.6.6", "OpenSandbox-Access-Renew": "skip",
              "OpenSandbox-Secure-Access": "s", "Connection": "X-Hop", "X-Hop": "1", "TE": "trailers", "X-Kept": "yes"}
    for name, base in (("documented path", "/v1/sandboxes/{BOX}/proxy/8000"), ("unprefixed", "/sandboxes/{BOX}/proxy/8000"), ("gateway path", "/{BOX}/8000"), ("execd's proxy", "/{BOX}/44772/proxy/8000")):
        a(f"{name}: GET", "GET", base + "/a%20b/../c?q=%41&r", headers=theirs, loose=[r"(?<=x-forwarded-for: )\S+"])
        a(f"{name}: root", "GET", base, loose=[r"(?<=x-forwarded-for: )\S+"], key=False)
        a(f"{name}: Location", "GET", base + "/away", status=302, loose=[r"(?<=x-forwarded-for: )\S+"])
    for m in ("POST", "PUT", "PATCH", "DELETE"):
        a(f"{m} with a body", m, "/{BOX}/8000/x", b"some body", loose=[r"(?<=x-forwarded-for: )\S+"], key=False)
    a("HEAD", "HEAD", "/v1/sandboxes/{BOX}/proxy/8000/", status=405)
    a("preflight is ours", "OPTIONS", "/v1/sandboxes/{BOX}/proxy/8000/", headers={"Origin": "http://x", "Access-Control-Request-Method": "GET"})
    a("nothing listens", "GET", "/{BOX}/8001/", status=502, code="BACKEND_CONNECTION_FAILED")
    for path in ("/junk", "/both", "/split"):
        a(f"no answer of HTTP: {path}", "GET", "/{BOX}/8000" + path, status=502, code="BACKEND_RESPONSE_FAILED")
    with pytest.raises(http.client.IncompleteRead):
        wire.raw("GET", f"/{wire.vars['BOX']}/8000/short")
    a("WebSocket to nobody", "GET", "/{BOX}/8001/", status=502, code="BACKEND_CONNECTION_FAILED",
      headers={"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"})
    for p in ("0", "65536", "99999999"):
        a(f"port {p}", "GET", "/v1/sandboxes/{BOX}/proxy/" + p + "/", status=400, code="DOCKER::INVALID_PORT", key=False)
    a("someone who is not there", "GET", "/v1/sandboxes/{NOBODY}/proxy/8000/", status=404, code="DOCKER::SANDBOX_NOT_FOUND", key=False)
    a("the same at the gateway", "GET", "/{NOBODY}/8000/", status=404, code="DOCKER::SANDBOX_NOT_FOUND", key=False)
    a("a way out of it wants a key", "GET", "/v1/sandboxes/{BOX}/proxy/8000/../../../../sandboxes", status=401, code="MISSING_API_KEY", key=False)
    wire.compare("proxy.txt")


def part(name, filename, data, ctype="application/octet-stream"):
    return f'--BB\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\nContent-Type: {ctype}\r\n\r\n'.encode() + data + b"\r\n"


def upload(*pairs):
    return b"".join(part("metadata", "metadata", json.dumps(m).encode(), "application/json") + part("file", "f", d) for m, d in pairs) + b"--BB--\r\n"


FORM = {"Content-Type": "multipart/form-data; boundary=BB"}
BAD = "INVALID_REQUEST_BODY"


def test_commands(wire):
    wire.text = []
    w = lambda name, method, path, body=None, *r, **kw: wire.ask(name, method, "/{BOX}/44772" + path, body, *r, key=False, **kw)  # noqa: E731
    w("ping", "GET", "/ping")
    w("a command", "POST", "/command", {"command": "echo $GREETING; pwd; sleep 0.1; echo err >&2; exit 3", "cwd": None, "uid": None})
    w("success", "POST", "/command", {"command": "printf 'a\\r\\nb'", "timeout": 60000})
    w("argv", "POST", "/command", {"argv": ["printf", "%s|", "$HOME", "a b"], "cwd": "$HOME", "envs": {"A": "b"}, "some": "unknown field"})
    w("as another", "POST", "/command", {"command": "id -u; id -g", "uid": 65534, "gid": 65534})
    w("timeout", "POST", "/command", {"command": "sleep 60", "timeout": 300})
    w("no such program", "POST", "/command", {"argv": ["/no/such"]}, loose=[r"(?<=\"evalue\":\")[^\"]+", r"(?<=\[\")[^\"]+"])
    for name, body in (("nothing", {}), ("not JSON", b"{"), ("both", {"command": "a", "argv": ["b"]}), ("empty argv", {"argv": [""]}), ("NUL", {"command": "a\0b"}), ("gid alone", {"command": "a", "gid": 1}),
                       ("no such folder", {"command": "a", "cwd": "/no/such"}), ("undefined variable", {"command": "a", "cwd": "$NOPE/x"}), ("odd timeout", {"command": "a", "timeout": -1}),
                       ("odd envs", {"command": "a", "envs": {"A": 1}}), ("odd background", {"command": "a", "background": "yes"}), ("a wrong type", {"command": 1})):
        w(f"command: {name}", "POST", "/command", body, 400, BAD)
    w("command: too long", "POST", "/command", b" " * ((1 << 20) + 1), 413, PARAM)
    w("background", "POST", "/command", {"command": "echo out; echo err >&2; sleep 100", "background": True}, keep={"COMMAND": "text"})
    end = time.monotonic() + 60
    while len(wire.raw("GET", f"/{wire.vars['BOX']}/44772/command/{wire.vars['COMMAND']}/logs")[2]) < 8:
        assert time.monotonic() < end
    w("status", "GET", "/command/status/{COMMAND}")
    w("logs", "GET", "/command/{COMMAND}/logs")
    w("logs from", "GET", "/command/{COMMAND}/logs?cursor=4")
    w("logs from before", "GET", "/command/{COMMAND}/logs?cursor=-3")
    w("interrupt", "DELETE", "/command?id={COMMAND}")
    while b'"running":true' in wire.raw("GET", f"/{wire.vars['BOX']}/44772/command/status/{wire.vars['COMMAND']}")[2]:
        assert time.monotonic() < end
    w("status of one that was interrupted", "GET", "/command/status/{COMMAND}")
    w("interrupt what has ended", "DELETE", "/command?id={COMMAND}", status=500, code="RUNTIME_ERROR")
    w("interrupt nothing", "DELETE", "/command", status=400, code="MISSING_QUERY")
    w("interrupt an unknown one", "DELETE", "/command?id=none", status=500, code="RUNTIME_ERROR")
    w("status of an unknown one", "GET", "/command/status/none", status=404, code=BAD)
    w("logs of an unknown one", "GET", "/command/none/logs", status=400, code=BAD)
    w("status: a way out", "GET", "/command/status/..%2f..%2fping", status=404, code=BAD)
    w("session", "POST", "/session", {"cwd": "/tmp"}, keep={"SESSION": "session_id"})
    w("session: run", "POST", "/session/{SESSION}/run", {"command": "pwd; export A=1; echo err >&2; exit 7"})
    w("session: it keeps", "POST", "/session/{SESSION}/run", {"command": "pwd; echo $A", "cwd": "/usr", "timeout": 0})
    w("session: no command", "POST", "/session/{SESSION}/run", {}, 400, BAD)
    w("session: delete", "DELETE", "/session/{SESSION}")
    w("session: again", "DELETE", "/session/{SESSION}", status=404, code="SESSION_NOT_FOUND")
    w("session: run in none", "POST", "/session/{SESSION}/run", {"command": "true"}, 500, "RUNTIME_ERROR")
    w("session without a body", "POST", "/session", keep={"SESSION": "session_id"})
    w("session: interrupted as a command is", "DELETE", "/command?id={SESSION}")
    w("metrics", "GET", "/metrics", loose=[r"(?<=pct\":)[\d.]+", r"(?<=mib\":)[\d.]+"])
    w("metrics, one after the other", "GET", "/metrics/watch", loose=[r"(?<=pct\":)[\d.]+", r"(?<=mib\":)[\d.]+"])
    w("code", "POST", "/code", {"context": {"language": "python"}, "code": "1"}, 500, "RUNTIME_ERROR")
    w("code that is a command", "POST", "/code", {"context": {"language": "command"}, "code": "echo $((1 + 1))"})
    for name, body in (("none", {}), ("not JSON", b"{"), ("a number", {"code": 1})):
        w(f"code: {name}", "POST", "/code", body, 400, BAD)
    w("code that is a command, in the background", "POST", "/code", {"context": {"language": "background-command"}, "code": "sleep 100"}, keep={"CODE": "text"})
    w("code: interrupt what runs", "DELETE", "/code?id={CODE}")
    w("code: context", "POST", "/code/context", {"language": "python"}, 500, "RUNTIME_ERROR")
    w("code: contexts", "GET", "/code/contexts?language=python", status=500, code="RUNTIME_ERROR")
    w("code: a context", "GET", "/code/contexts/none", status=404, code="CONTEXT_NOT_FOUND")
    w("code: delete a context", "DELETE", "/code/contexts/none", status=404, code="CONTEXT_NOT_FOUND")
    w("code: delete all of none", "DELETE", "/code/contexts", status=400, code="MISSING_QUERY")
    w("code: interrupt", "DELETE", "/code?id=none", status=500, code="RUNTIME_ERROR")
    w("isolated: what there is", "GET", "/v1/isolated/capabilities")
    w("isolated: a session", "POST", "/v1/isolated/session", {"workspace": {"path": "/workspace"}}, 201)
    w("isolated: a path that is not clean", "POST", "/v1/isolated/session", {"workspace": {"path": "/a/.."}}, 400, "INVALID_REQUEST_BODY")
    w("isolated: none of that name", "GET", f"/v1/isolated/session/{NOBODY}", status=404, code="SESSION_NOT_FOUND")
    w("unknown route", "GET", "/nothing", status=404)
    w("wrong method", "PUT", "/command", {}, 405)
    wire.compare("commands.txt")


def as_nobody(w):
    """Every call as a user who owns /tmp/w/b: there it is done, what is not there is not found, and elsewhere he may not."""
    w("info", "GET", "/files/info?path=/tmp/w/a")
    w("a folder of his own", "POST", "/directories", {"/tmp/w/b/mine": {}})
    w("upload", "POST", "/files/upload", upload(({"path": "/tmp/w/b/mine/one", "mode": 640}, b"one\ntwo\n"), ({"path": "/tmp/w/b/new/two"}, b"2")), headers=FORM)
    w("info of his own", "GET", "/files/info?path=/tmp/w/b/mine/one&path=/tmp/w/b/new", loose=[r'(?<="type":"directory","size":)\d+'])
    w("download", "GET", "/files/download?path=/tmp/w/b/mine/one")
    w("download: a range", "GET", "/files/download?path=/tmp/w/b/mine/one", status=206, headers={"Range": "bytes=4-6"})
    w("download: beyond", "GET", "/files/download?path=/tmp/w/b/mine/one", status=416, headers={"Range": "bytes=50-60"})
    w("search", "GET", "/files/search?path=/tmp/w/b&pattern=*")
    w("list", "GET", "/directories/list?path=/tmp/w/b/new")
    w("permissions", "POST", "/files/permissions", {"/tmp/w/b/mine/one": {"mode": 600}})
    w("replace", "POST", "/files/replace?verbose=true", {"/tmp/w/b/mine/one": {"old": "two", "new": "2"}})
    w("move", "POST", "/files/mv", [{"src": "/tmp/w/b/mine/one", "dest": "/tmp/w/b/new/one"}])
    w("delete", "DELETE", "/files?path=/tmp/w/b/new/one&path=/was/never")
    w("delete a folder", "DELETE", "/directories?path=/tmp/w/b/new&path=/was/never")
    none = "/tmp/w/b/none"
    for name, method, path, body in (("info", "GET", f"/files/info?path={none}", None), ("download", "GET", f"/files/download?path={none}", None), ("search", "GET", f"/files/search?path={none}", None),
                                     ("list", "GET", f"/directories/list?path={none}", None), ("permissions", "POST", "/files/permissions", {none: {"mode": 600}}),
                                     ("replace", "POST", "/files/replace", {none: {"old": "a", "new": "b"}}), ("move", "POST", "/files/mv", [{"src": none, "dest": none + "2"}])):
        w(f"missing: {name}", method, path, body, 404, "FILE_NOT_FOUND")
    theirs = "/tmp/w/a/one.txt"
    for name, method, path, body in (("download", "GET", f"/files/download?path={theirs}", None), ("permissions", "POST", "/files/permissions", {theirs: {"mode": 666}}), ("list", "GET", "/directories/list?path=/root", None),
                                     ("replace", "POST", "/files/replace", {theirs: {"old": "t", "new": "b"}}), ("move", "POST", "/files/mv", [{"src": theirs, "dest": "/tmp/w/b/mine/x"}]),
                                     ("search", "GET", "/files/search?path=/root", None), ("info", "GET", "/files/info?path=/root/x", None), ("upload", "POST", "/files/upload", upload(({"path": "/tmp/w/a/two"}, b"x"))),
                                     ("directories", "POST", "/directories", {"/tmp/w/a/b": {}}), ("delete", "DELETE", f"/files?path={theirs}", None), ("delete a folder", "DELETE", "/directories?path=/tmp/w/a", None)):
        w(f"denied: {name}", method, path, body, 403, "RUNTIME_ERROR", headers=FORM if name == "upload" else None)


def test_files(wire):
    wire.text = []
    w = lambda name, method, path, body=None, *r, **kw: wire.ask(name, method, "/{BOX}/44772" + path, body, *r, key=False, **kw)  # noqa: E731
    w("directories", "POST", "/directories", {"/tmp/w/a": {"mode": 755}, "/tmp/w/b": {"owner": "nobody", "group": "nogroup", "mode": 700}})
    w("upload", "POST", "/files/upload", upload(({"path": "/tmp/w/a/one.txt", "mode": 640, "owner": "nobody", "group": None}, b"one\ntwo\nthree\n"), ({"path": "/tmp/w/new/two"}, b"\0\xff")), headers=FORM)
    w("info", "GET", "/files/info?path=/tmp/w/a/one.txt&path=/tmp/w/b")
    w("info of nothing", "GET", "/files/info")
    w("info: missing", "GET", "/files/info?path=/tmp/w/a/one.txt&path=/no/such", status=404, code="FILE_NOT_FOUND")
    w("download", "GET", "/files/download?path=/tmp/w/a/one.txt")
    w("download by lines", "GET", "/files/download?path=/tmp/w/a/one.txt&offset=2&limit=1")
    for name, rng, status in (("a range", "bytes=4-6", 206), ("from", "bytes=8-", 206), ("the last", "bytes=-6", 206), ("beyond", "bytes=50-60", 416), ("all of it and more", "bytes=0-999", 206)):
        w(f"download: {name}", "GET", "/files/download?path=/tmp/w/a/one.txt", status=status, headers={"Range": rng})
    w("download: two ways at once", "GET", "/files/download?path=/tmp/w/a/one.txt&offset=1", status=400, code=BAD, headers={"Range": "bytes=0-1"})
    w("download: missing", "GET", "/files/download?path=/no/such", status=404, code="FILE_NOT_FOUND")
    w("download: no path", "GET", "/files/download", status=400, code="MISSING_QUERY")
    w("download: a directory", "GET", "/files/download?path=/tmp", status=400, code="INVALID_FILE")
    w("search", "GET", "/files/search?path=/tmp/w&pattern=*.txt")
    w("search all", "GET", "/files/search?path=/tmp/w")
    w("search: missing", "GET", "/files/search?path=/no/such&pattern=x", status=404, code="FILE_NOT_FOUND")
    w("search: nowhere", "GET", "/files/search?pattern=x", status=400, code="MISSING_QUERY")
    w("list", "GET", "/directories/list?path=/tmp/w&depth=2", loose=[r'(?<="size":)\d+(?=,"modified_at":"[^"]+","created_at":"[^"]+","owner":"[^"]+","group":"[^"]+","mode":7)'])
    w("list: depth 0", "GET", "/directories/list?path=/tmp/w&depth=0", status=400, code=BAD)
    w("list: missing", "GET", "/directories/list?path=/no/such", status=404, code="FILE_NOT_FOUND")
    w("permissions", "POST", "/files/permissions", {"/tmp/w/a/one.txt": {"owner": "root", "group": "", "mode": 600}})
    w("permissions: missing", "POST", "/files/permissions", {"/no/such": {"mode": 600}}, 404, "FILE_NOT_FOUND")
    w("permissions: mode 888", "POST", "/files/permissions", {"/tmp/w/a/one.txt": {"mode": 888}}, 400, BAD)
    w("permissions: no such user", "POST", "/files/permissions", {"/tmp/w/a/one.txt": {"owner": "nosuchuser"}}, 500, "RUNTIME_ERROR")
    w("replace", "POST", "/files/replace", {"/tmp/w/a/one.txt": {"old": "t", "new": "T"}})
    w("replace, counted", "POST", "/files/replace?verbose=true", {"/tmp/w/a/one.txt": {"old": "T", "new": "t"}})
    w("replace nothing", "POST", "/files/replace", {"/tmp/w/a/one.txt": {"old": "", "new": "T"}}, 400, BAD)
    w("replace: missing", "POST", "/files/replace", {"/no/such": {"old": "a", "new": "b"}}, 404, "FILE_NOT_FOUND")
    w("move", "POST", "/files/mv", [{"src": "/tmp/w/new/two", "dest": "/tmp/w/c/d/three"}])
    w("move: there is one", "POST", "/files/mv", [{"src": "/tmp/w/a/one.txt", "dest": "/tmp/w/c/d/three"}], 500, "RUNTIME_ERROR")
    w("move: missing", "POST", "/files/mv", [{"src": "/no/such", "dest": "/tmp/x"}], 404, "FILE_NOT_FOUND")
    for name, body in (("not a list", {}), ("not JSON", b"["), ("numbers", [1])):
        w(f"move: {name}", "POST", "/files/mv", body, 400, BAD)
    w("delete", "DELETE", "/files?path=/tmp/w/c/d/three&path=/was/never")
    w("delete: a directory", "DELETE", "/files?path=/tmp/w/a", status=500, code="RUNTIME_ERROR")
    one = ({"path": "/tmp/w/x"}, b"x")
    for name, body, code in (("no form", b"{}", "INVALID_FILE"), ("no path", upload(({"path": ""}, b"x")), "INVALID_FILE_METADATA"), ("metadata that is no JSON", upload(one).replace(b'{"path": "/tmp/w/x"}', b"{"), "INVALID_FILE_METADATA"),
                             ("a file without metadata", part("file", "f", b"x") + b"--BB--\r\n", "INVALID_FILE_METADATA"),
                             ("metadata without a file", part("metadata", "metadata", b'{"path":"/tmp/w/x"}') + b"--BB--\r\n", "INVALID_FILE_METADATA"), ("cut short", upload(one)[:-20], "INVALID_FILE_METADATA")):
        w(f"upload: {name}", "POST", "/files/upload", body, 400, code, headers={} if name == "no form" else FORM)
    as_nobody(lambda name, method, path, *r, **kw: w("as nobody: " + name, method, "/v1/filesystem/65534/65534" + path, *r, **kw))
    for ids in ("x/0", "0/4294967295", "-1/0", "0/99999999999"):
        w(f"as {ids}", "GET", f"/v1/filesystem/{ids}/files/info?path=/", status=400, code=BAD)
    w("delete directories", "DELETE", "/directories?path=/tmp/w&path=/was/never")
    wire.compare("files.txt")


def test_snapshots_and_the_end(wire):
    a, box = wire.ask, "/v1/sandboxes/{BOX}"
    wire.text = []
    a("snapshot", "POST", box + "/snapshots", {"name": "wire"}, 202, keep={"SNAP": "id"})
    end = time.monotonic() + 240
    while json.loads(wire.raw("GET", f"/v1/snapshots/{wire.vars['SNAP']}")[2])["status"]["state"] == "Creating":
        assert time.monotonic() < end
        time.sleep(0.2)
    a("snapshot: get", "GET", "/v1/snapshots/{SNAP}")
    a("snapshot: list", "GET", "/v1/snapshots?sandboxId={BOX}&name=wire&state=Ready&pageSize=1")
    a("snapshot: list, nothing fits", "GET", "/v1/snapshots?name=other")
    a("snapshot: list: page 0", "GET", "/v1/snapshots?page=0", status=400, code=PARAM)
    for m in ("GET", "DELETE"):
        a(f"snapshot: {m} an unknown one", m, "/v1/snapshots/{NOBODY}", status=404, code="SNAPSHOT::NOT_FOUND")
    a("pause", "POST", box + "/pause", status=202)
    a("paused", "GET", box)
    a("pause again", "POST", box + "/pause", status=409, code="DOCKER::SANDBOX_NOT_RUNNING")
    a("a command while paused", "POST", "/{BOX}/44772/command", {"command": "true"}, 409, "DOCKER::SANDBOX_NOT_RUNNING")
    a("a snapshot while paused", "POST", box + "/snapshots", {}, 409, "SNAPSHOT::INVALID_SOURCE_STATE")
    a("resume", "POST", box + "/resume", status=202)
    a("snapshot: delete", "DELETE", "/v1/snapshots/{SNAP}", status=204)
    a("delete", "DELETE", box, status=204)
    a("gone", "GET", box, status=404, code="DOCKER::SANDBOX_NOT_FOUND")
    a("delete again", "DELETE", box, status=404, code="DOCKER::SANDBOX_NOT_FOUND")
    a("its port", "GET", "/{BOX}/44772/ping", status=404, code="DOCKER::SANDBOX_NOT_FOUND")
    wire.compare("end.txt")
