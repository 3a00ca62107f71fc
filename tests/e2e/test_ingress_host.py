# SPDX-License-Identifier: Apache-2.0
"""The ingress gateway on this very host: the real daemon with scripted monitors, servers of this test as what listens in the sandboxes, raw sockets and real clients:
Python's `websockets`, the Python and the Java SDK."""
import asyncio
import base64
import contextlib
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid

import pytest
import websockets
import websockets.asyncio.client as wsclient
import websockets.asyncio.server as wsserver

from hostdaemon import BOX, HostDaemon
from registrykit import free_port

WAIT_S = 60
SECRET_A, SECRET_B = b"a" * 32, b"b" * 16
TOKEN = "OpenSandbox-Secure-Access"


def keys(**secrets):
    return ",".join(f"{k}={base64.b64encode(v).decode()}" for k, v in secrets.items())


def b36(n):
    return (b36(n // 36) if n >= 36 else "") + "0123456789abcdefghijklmnopqrstuvwxyz"[n % 36]


def signature(box, port, expires, key="a", secret=SECRET_A):
    """As the protocol has it, written again here."""
    canon = f"v1\nshort\n{box}\n{port}\n{b36(expires)}\n".encode()
    return hashlib.sha256(struct.pack(">I", len(secret)) + secret + struct.pack(">I", len(canon)) + canon).hexdigest()[:8] + key


class App(http.server.ThreadingHTTPServer):
    """Says what it got, and what it was told to."""
    daemon_threads = True

    def __init__(self, extra=()):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                n = int(self.headers.get("Content-Length") or 0)
                text = json.dumps({"path": self.path, "method": self.command, "headers": self.headers.items(), "body": self.rfile.read(n).decode()}).encode()
                self.server.requests.append(self.path)
                self.send_response(200)
                for k, v in self.server.extra:
                    self.send_header(k, v)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
            do_POST = do_OPTIONS = do_PUT = do_GET

            def log_message(self, *a):
                pass
        super().__init__(("127.0.0.1", 0), Handler)
        self.extra, self.requests, self.port = list(extra), [], self.server_port
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.fixture
def app():
    a = App()
    yield a
    a.shutdown()
    a.server_close()


class Gateway(HostDaemon):
    def tables(self, mode="wildcard", **secure):
        address = {"wildcard": f"*.box.example:{self.gate}", "uri": f"127.0.0.1:{self.gate}", "header": f"127.0.0.1:{self.gate}"}[mode]
        return {"runtime": {"templates": False}, "ingress": {"mode": "gateway", "port": self.gate} | self.more, "ingress.gateway": {"address": address},
                "ingress.gateway.route": {"mode": mode}, "ingress.secure_access": {"keys": keys(a=SECRET_A)} | secure}

    def gateway(self, mode="wildcard", more=None, server=None, **secure):
        self.gate, self.more = free_port(), more or {}
        return self.start(self.tables(mode, **secure), **(server or {}))

    def box(self, secure=False, **more):
        status, made, _ = self.ask("POST", "/v1/sandboxes", BOX | ({"secureAccess": True} if secure else {}) | more)
        assert status == 202, made
        self.until(made["id"], "Running")
        return made["id"]

    def endpoint(self, box, port, query=""):
        return self.ask("GET", f"/v1/sandboxes/{box}/endpoints/{port}{query}")

    def via(self, path="/", host=None, method="GET", body=None, headers=None):
        """(status, text, headers) of a request to the gateway"""
        c = http.client.HTTPConnection("127.0.0.1", self.gate, timeout=WAIT_S)
        c.request(method, path, body, ({"Host": host} if host else {}) | (headers or {}))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text, r.headers

    def label(self, box, port, *rest):
        return "-".join(map(str, (box, port, *rest))) + f".box.example:{self.gate}"


@pytest.fixture
def daemon(tmp_path):
    d = Gateway(tmp_path)
    yield d
    d.clean()


def seen(text):
    got = json.loads(text)
    return got | {"headers": {k.lower(): v for k, v in got["headers"]}}


def test_routes_by_label(daemon, app):
    daemon.gateway()
    box = daemon.box()
    for host in (daemon.label(box, app.port), f"{box}-{app.port}.localhost", f"{box}-{app.port}.localhost:1", daemon.label(box, app.port).upper(), f"{box}-{app.port}.box.example."):
        status, text, _ = daemon.via("/a%2Fb?q=%20", host)
        assert status == 200, (host, text)
        assert seen(text)["path"] == "/a%2Fb?q=%20" and seen(text)["headers"]["host"].lower() == host.lower()
    status, text, _ = daemon.via("/", "ignored", headers={"OpenSandbox-Ingress-To": f"{box}-{app.port}"})
    assert status == 200 and seen(text)["headers"]["host"] == f"127.0.0.1:{app.port}"
    status, text, _ = daemon.via("/", "ignored", headers={"OPEN-SANDBOX-INGRESS": f"{box}-{app.port}.any.thing"})
    assert status == 200 and not {"opensandbox-ingress-to", "open-sandbox-ingress"} & set(seen(text)["headers"])
    none = str(uuid.uuid4())
    for host, want in ((f"{none}-80.localhost", 404), ("x.localhost", 400), (f"{box}-80.localhost:1x", 400), (f"{box}-0.localhost", 400), (f"{box}-65536.localhost", 400), (f"{box}.localhost", 400),
                       (f"{box}-80.other.example", 400), ("127.0.0.1", 400), (f"{box}-80-x-y.localhost", 400), (f"x-{box}-80.localhost", 404), (daemon.label(box, free_port()), 502)):
        status, text, head = daemon.via("/", host)
        assert (status, text[:21], head["Content-Type"]) == (want, "OpenSandbox Ingress: ", "text/plain; charset=utf-8"), (host, status, text)


def test_routes_by_path(daemon, app):
    app.extra.append(("Location", "/next"))
    daemon.gateway("uri")
    box = daemon.box()
    for path, want in (("", "/"), ("/", "/"), ("/x/y?z", "/x/y?z")):
        status, text, head = daemon.via(f"/{box}/{app.port}{path}")
        assert status == 200 and seen(text)["path"] == want and head["Location"] == f"/{box}/{app.port}/next"
    assert daemon.via("/deep", f"{box}-{app.port}.localhost")[0] == 200
    # looks signed, and the sandbox wants no signature: the path is the application's
    looks = f"/{b36(2 ** 40)}/01234567a/rest"
    assert seen(daemon.via(f"/{box}/{app.port}{looks}")[1])["path"] == looks
    for path, want in (("/", 400), (f"/{box}", 400), (f"/{box}/0/", 400), (f"/{box}/x/", 400), (f"/{uuid.uuid4()}/80/", 404), (f"/a%2Fb/80/", 400)):
        status, text, _ = daemon.via(path)
        assert status == want and text.startswith("OpenSandbox Ingress: "), (path, status, text)


def test_the_api_is_not_there(daemon, app):
    daemon.gateway("uri", server={"api_key": "root"})
    daemon.headers = {"OPEN-SANDBOX-API-KEY": "root"}
    box = daemon.box()
    for path in ("/v1/sandboxes", "/sandboxes", "/health", "/metrics", f"/v1/sandboxes/{box}/proxy/{app.port}/", f"/sandboxes/{box}"):
        assert daemon.via(path, headers=daemon.headers)[0] == 400, path
    status, text, _ = daemon.via(f"/{box}/{app.port}/", headers=daemon.headers | {"Authorization": "Bearer root"})
    assert status == 200 and not {"open-sandbox-api-key", "authorization"} & set(seen(text)["headers"])
    assert seen(daemon.via(f"/{box}/{app.port}/", headers={"Authorization": "Bearer theirs"})[1])["headers"]["authorization"] == "Bearer theirs"


@pytest.mark.parametrize("mode", ("wildcard", "uri", "header"))
def test_what_endpoints_say(daemon, app, mode):
    daemon.gateway(mode)
    box, open_box = daemon.box(True), daemon.box()
    until = int(time.time()) + 1000
    _, plain, _ = daemon.endpoint(box, app.port)
    _, signed, _ = daemon.endpoint(box, app.port, f"?expires={until}")
    sig = signature(box, app.port, until)
    token = plain["headers"][TOKEN]
    assert len(token) >= 32
    if mode == "wildcard":
        assert (plain["endpoint"], signed["endpoint"]) == (daemon.label(box, app.port), daemon.label(box, app.port, b36(until), sig))
    elif mode == "uri":
        at = f"127.0.0.1:{daemon.gate}/{box}/{app.port}"
        assert (plain["endpoint"], signed["endpoint"]) == (at, f"{at}/{b36(until)}/{sig}")
    else:
        assert plain["endpoint"] == signed["endpoint"] == f"127.0.0.1:{daemon.gate}"
        assert plain["headers"]["OpenSandbox-Ingress-To"] == f"{box}-{app.port}"
        assert signed["headers"] == {"OpenSandbox-Ingress-To": f"{box}-{app.port}-{b36(until)}-{sig}"}
    assert TOKEN not in signed.get("headers", {}), "a signed route gives no more than itself"
    # each answer is one that works
    for e in (plain, signed):
        host, _, path = e["endpoint"].partition("/")
        assert daemon.via("/" + path, host, headers=e.get("headers"))[0] == 200, e
    _, proxied, _ = daemon.endpoint(box, app.port, "?use_server_proxy=true")
    assert proxied["endpoint"] == f"127.0.0.1:{daemon.port}/v1/sandboxes/{box}/proxy/{app.port}" and proxied["headers"] == {TOKEN: token}
    assert TOKEN not in daemon.endpoint(open_box, app.port)[1].get("headers", {})
    assert daemon.endpoint(box, 44772)[1]["headers"][TOKEN] == token, "all ports share one"
    for query in ("?expires=0", "?expires=-1", "?expires=x", f"?expires={int(time.time()) - 1}", f"?expires={1 << 64}", f"?expires={until}&use_server_proxy=true"):
        status, e, _ = daemon.endpoint(box, app.port, query)
        assert status == 400 and e["code"] == "SANDBOX::INVALID_PARAMETER", (query, e)


def test_without_a_gateway(daemon):
    daemon.start({"runtime": {"templates": False}})
    assert daemon.ask("POST", "/v1/sandboxes", BOX | {"secureAccess": True})[0] == 400
    box = daemon.create()
    assert daemon.endpoint(box, 80, "?expires=99999999999")[1]["code"] == "SANDBOX::API_NOT_SUPPORTED"


def test_secure_access(daemon, app):
    """The token opens every form; without it nobody gets in; a wrong one is not made up for by a signature; nothing of either reaches the sandbox."""
    daemon.gateway("uri")
    box = daemon.box(True)
    token = daemon.endpoint(box, app.port)[1]["headers"][TOKEN]
    until = int(time.time()) + 1000
    signed = f"/{box}/{app.port}/{b36(until)}/{signature(box, app.port, until)}"
    paths = {"plain": f"/{box}/{app.port}/", "signed": signed + "/x"}
    for form in ("plain", "signed"):
        for shown, want in ((token, 200), ("", 401), ("wrong", 401), (token[:-1], 401), (token + "x", 401)):
            assert daemon.via(paths[form], headers={TOKEN: shown})[0] == want, (form, shown)
    assert daemon.via(paths["plain"])[0] == 401
    status, text, _ = daemon.via(paths["signed"] + "?a=1", headers={"Referer": f"http://127.0.0.1:{daemon.gate}{signed}/page", "Origin": f"http://127.0.0.1:{daemon.gate}"})
    got = seen(text)
    assert status == 200 and got["path"] == "/x?a=1" and got["headers"]["referer"] == f"http://127.0.0.1:{daemon.gate}/"
    assert b36(until) not in json.dumps(got)
    got = json.dumps(seen(daemon.via(paths["plain"], headers={TOKEN: token})[1]))
    assert token not in got and TOKEN.lower() not in got
    # the daemon's own listener asks for the same
    for path in (f"/{box}/{app.port}/", f"/v1/sandboxes/{box}/proxy/{app.port}/", f"/{box}/44772/ping"):
        status, e, _ = daemon.ask("GET", path)
        assert (status, e["code"]) == (401, "MISSING_OR_INVALID_SECURE_ACCESS"), path
        assert daemon.ask("GET", path, headers={TOKEN: token})[0] == 200

    async def closes():
        async with wsclient.connect(f"ws://127.0.0.1:{daemon.port}/v1/sandboxes/{box}/proxy/{app.port}/") as ws:
            await ws.wait_closed()
            return ws.close_code
    assert asyncio.run(closes()) == 1008
    # the next daemon knows the token
    daemon.end()
    daemon.again()
    assert daemon.via(paths["plain"], headers={TOKEN: token})[0] == 200 and daemon.via(paths["plain"])[0] == 401


def test_a_key_opens_its_own_sandboxes(daemon, app):
    daemon.gateway("uri", server={"api_key": "root"})
    daemon.more = {}
    daemon.end()
    daemon.start(daemon.tables("uri") | {"server.keys.a": {"key": "key-a"}, "server.keys.b": {"key": "key-b"}}, api_key="root")
    daemon.headers = {"OPEN-SANDBOX-API-KEY": "key-a"}
    box = daemon.box(True)
    for key, want in (("key-a", 200), ("root", 200), ("key-b", 401), ("wrong", 401)):
        daemon.headers = {"OPEN-SANDBOX-API-KEY": key}
        assert daemon.ask("GET", f"/{box}/{app.port}/")[0] == want
    assert daemon.via(f"/{box}/{app.port}/", headers={"OPEN-SANDBOX-API-KEY": "root"})[0] == 401, "no key counts at the gateway"


def test_signatures(daemon, app):
    """Forged, expired, foreign and re-keyed ones are refused. Keys rotate while everything runs."""
    daemon.gateway("wildcard")
    box, other = daemon.box(True), daemon.box(True)
    now = int(time.time())
    until = now + 1000
    good = signature(box, app.port, until)

    def status(b=box, port=app.port, expires=until, sig=good):
        return daemon.via("/", daemon.label(b, port, b36(expires), sig))[0]
    assert status() == 200
    flipped = good[:-2] + ("0" if good[-2] != "0" else "1") + "a"
    for what, want in (({"sig": flipped}, 401), ({"sig": good[:8] + "b"}, 401), ({"expires": until + 1}, 401), ({"port": app.port - 1}, 401), ({"b": other}, 401),
                       ({"expires": now - 1, "sig": signature(box, app.port, now - 1)}, 401), ({"sig": signature(box, app.port, until, "a", SECRET_B)}, 401)):
        assert status(**what) == want, what
    assert "expired" in daemon.via("/", daemon.label(box, app.port, b36(now - 1), signature(box, app.port, now - 1)))[1]
    # a second key, then it is the active one, then the first is gone
    b = signature(box, app.port, until, "b", SECRET_B)
    assert status(sig=b) == 401
    daemon.reload(daemon.tables(keys=keys(a=SECRET_A, b=SECRET_B), active_key="b"))
    assert status() == 200 and status(sig=b) == 200
    assert b in daemon.endpoint(box, app.port, f"?expires={until}")[1]["endpoint"]
    daemon.reload(daemon.tables(keys=keys(b=SECRET_B)))
    assert status() == 401 and status(sig=b) == 200
    daemon.reload(daemon.tables(keys=""))
    assert status() == 503 and daemon.endpoint(box, app.port, f"?expires={until}")[0] == 400
    # a file that cannot be used changes nothing
    daemon.config(daemon.tables(keys="a=short"))
    at = daemon.log_path.stat().st_size
    daemon.proc.send_signal(1)
    end = time.monotonic() + WAIT_S
    while "it stays as it is" not in daemon.log_path.read_text()[at:]:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert status() == 503


def test_guessing_has_a_limit(daemon, app):
    daemon.gateway("wildcard")
    box = daemon.box(True)
    until = int(time.time()) + 1000
    good = signature(box, app.port, until)
    wrong = [daemon.via("/", daemon.label(box, app.port, b36(until), f"{i:08x}a"))[0] for i in range(60)]
    assert wrong[:30] == [401] * 30 and 429 in wrong[30:], wrong
    assert daemon.via("/", daemon.label(box, app.port, b36(until), good))[0] in (200, 429)
    token = daemon.endpoint(box, app.port)[1]["headers"][TOKEN]
    assert daemon.via("/", daemon.label(box, app.port), headers={TOKEN: token})[0] == 200, "the token is not guessed, and has no limit"
    end = time.monotonic() + WAIT_S
    while daemon.via("/", daemon.label(box, app.port, b36(until), good))[0] != 200:
        assert time.monotonic() < end
        time.sleep(0.3)


def test_a_signed_label_is_not_shown(daemon, app):
    daemon.gateway("wildcard")
    box = daemon.box(True)
    until = int(time.time()) + 1000
    host = daemon.label(box, app.port, b36(until), signature(box, app.port, until))
    other = daemon.label(box, 1, b36(until), "01234567a")
    for page in (host, other):
        status, text, _ = daemon.via("/", host, headers={"Origin": f"https://{page}", "Referer": f"https://{page}/a?b"})
        got = seen(text)["headers"]
        shown = page.replace(f"-{b36(until)}-{page.split('-')[-1].split('.')[0]}", "")
        assert got["origin"] == f"https://{shown}" and got["referer"] == f"https://{shown}/a?b"
        assert got["host"] == got["x-forwarded-host"] == daemon.label(box, app.port) and b36(until) not in text


def test_an_origin_of_its_own(daemon):
    """On a label cookies and CORS are the application's, but no cookie leaves its label; on a path, which all share, they do not pass."""
    app = App([("Set-Cookie", "a=1; Domain=box.example; Path=/; Secure"), ("Set-Cookie", "b=2"), ("Access-Control-Allow-Origin", "https://friend"), ("Clear-Site-Data", "*")])
    daemon.gateway("uri")
    box = daemon.box()
    browser = {"Cookie": "c=3", "Origin": "https://friend"}
    status, text, head = daemon.via("/", f"{box}-{app.port}.localhost", headers=browser)
    assert status == 200 and head.get_all("Set-Cookie") == ["a=1; Path=/; Secure", "b=2"] and head.get_all("Access-Control-Allow-Origin") == ["https://friend"]
    assert seen(text)["headers"]["cookie"] == "c=3" and head["Clear-Site-Data"] == "*"
    preflight = {"Origin": "https://friend", "Access-Control-Request-Method": "PUT"}
    status, text, head = daemon.via("/x", f"{box}-{app.port}.localhost", "OPTIONS", headers=preflight)
    assert seen(text)["method"] == "OPTIONS" and head.get_all("Access-Control-Allow-Origin") == ["https://friend"]
    status, text, head = daemon.via(f"/{box}/{app.port}/", headers=browser)
    assert status == 200 and not head["Set-Cookie"] and not head["Clear-Site-Data"] and head.get_all("Access-Control-Allow-Origin") == ["*"] and "cookie" not in seen(text)["headers"]
    n = len(app.requests)
    assert daemon.via(f"/{box}/{app.port}/", method="OPTIONS", headers=preflight)[0] == 200 and len(app.requests) == n
    app.shutdown()


def test_behind_a_proxy(daemon, app):
    headers = {"X-Forwarded-For": "6.6.6.6, 9.9.9.9", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil", "X_Forwarded_For": "6.6.6.6", "OPENSANDBOX-EGRESS-AUTH": "t"}
    for behind in (False, True):
        daemon.gateway("uri", {"behind_proxy": behind, "max_connections_per_address": 0})
        box = daemon.box()
        got = seen(daemon.via(f"/{box}/{app.port}/", headers=headers)[1])["headers"]
        assert (got["x-forwarded-for"], got["x-forwarded-proto"]) == (("9.9.9.9", "https") if behind else ("127.0.0.1", "http"))
        assert got["x-forwarded-host"] == f"127.0.0.1:{daemon.gate}" and not {"x_forwarded_for", "opensandbox-egress-auth"} & set(got)
        # a proxy that adds a header of its own behind the client's; what is no address is not believed
        for second, seen_from in (("9.9.9.9", "9.9.9.9"), ("nonsense", "127.0.0.1")):
            s = raw(daemon.gate, f"GET /{box}/{app.port}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: {second}\r\n\r\n".encode())
            got = seen(answers(s).split(b"\r\n\r\n", 1)[1])["headers"]
            assert got["x-forwarded-for"] == (seen_from if behind else "127.0.0.1")
        daemon.end()


def test_states(daemon, app):
    """Pending waits, Running serves, Paused is 503 at once, a resumed one serves, a deleted one is 404."""
    daemon.plan(boot="slow")
    daemon.gateway("uri")
    box = daemon.create()
    assert daemon.via(f"/{box}/{app.port}/")[0] == 200, "waited until it ran"
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
    daemon.until(box, "Paused")
    status, text, _ = daemon.via(f"/{box}/{app.port}/")
    assert status == 503 and text.startswith("OpenSandbox Ingress: ")
    status, text, _ = daemon.via(f"/{box}/44772/ping")
    assert status == 503 and json.loads(text)["code"] == "DOCKER::SANDBOX_NOT_RUNNING", "an API's errors are JSON"
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202
    assert daemon.via(f"/{box}/{app.port}/")[0] == 200
    assert daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
    assert daemon.via(f"/{box}/{app.port}/")[0] == 404


def test_websockets_and_their_origin(daemon):
    """A server that checks that a page's origin is its own host works behind a label; a pause closes with 1001; the end of the daemon, too."""
    daemon.gateway("wildcard")
    box = daemon.box()

    async def go():
        loop = asyncio.get_running_loop()

        def check(connection, request):
            if request.headers["Origin"] != f"http://{request.headers['Host']}":
                return connection.respond(403, "another origin\n")

        async def echo(ws):
            async for m in ws:
                await ws.send(m)
        async with wsserver.serve(echo, "127.0.0.1", 0, process_request=check) as s:
            host = daemon.label(box, s.sockets[0].getsockname()[1])
            where = {"host": "127.0.0.1", "port": daemon.gate}
            async with wsclient.connect(f"ws://{host}/", origin=f"http://{host}", **where) as ws:
                await ws.send(b"x" * 100_000)
                assert await ws.recv() == b"x" * 100_000
                paused = loop.run_in_executor(None, daemon.ask, "POST", f"/v1/sandboxes/{box}/pause")
                await ws.wait_closed()
                assert ws.close_code == 1001 and (await paused)[0] == 202
            with pytest.raises(websockets.exceptions.InvalidStatus) as e:
                await wsclient.connect(f"ws://{host}/", origin=f"http://{host}", **where)
            assert e.value.response.status_code == 503
            assert (await loop.run_in_executor(None, daemon.ask, "POST", f"/v1/sandboxes/{box}/resume"))[0] == 202
            with pytest.raises(websockets.exceptions.InvalidStatus) as e:
                await wsclient.connect(f"ws://{host}/", origin="http://evil", **where)
            assert e.value.response.status_code == 403
            async with wsclient.connect(f"ws://{host}/", origin=f"http://{host}", **where) as ws:
                daemon.proc.terminate()
                await ws.wait_closed()
                assert ws.close_code == 1001
    asyncio.run(asyncio.wait_for(go(), 2 * WAIT_S))
    assert daemon.proc.wait(WAIT_S) == 0


# ---- hostile clients

def raw(port, data):
    s = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    s.sendall(data)
    return s


def answers(s):
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := s.recv(65536):
            got += piece
    return got


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("framing", (
    b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED),
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", b"Transfer-Encoding: xchunked\r\n\r\n", b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", b"Content-Length: +0\r\n\r\n", b"Content-Length: 0x0\r\n\r\n", b"Content-Length : 0\r\n\r\n"))
def test_smuggling(daemon, app, framing):
    daemon.gateway("uri")
    box = daemon.box()
    s = raw(daemon.gate, f"POST /{box}/{app.port}/first HTTP/1.1\r\nHost: a\r\n".encode() + framing + SMUGGLED)
    got = answers(s)
    assert got.startswith(b"HTTP/1.1 400 "), got
    assert "/smuggled" not in app.requests


def test_each_request_of_a_connection_is_judged(daemon, app):
    """What opened the door once opens it for that request only; a body's bytes are no request."""
    daemon.gateway("wildcard")
    box, free = daemon.box(True), daemon.box()
    token = daemon.endpoint(box, app.port)[1]["headers"][TOKEN]
    body = f"GET /inner HTTP/1.1\r\nHost: {daemon.label(box, app.port)}\r\n\r\n"
    s = raw(daemon.gate, (f"GET /1 HTTP/1.1\r\nHost: {daemon.label(box, app.port)}\r\n{TOKEN}: {token}\r\n\r\n"
                          f"GET /2 HTTP/1.1\r\nHost: {daemon.label(box, app.port)}\r\n\r\n"
                          f"POST /3 HTTP/1.1\r\nHost: {daemon.label(free, app.port)}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
                          f"GET /4 HTTP/1.1\r\nHost: {daemon.label(box, app.port)}\r\nConnection: close\r\n\r\n").encode())
    assert re.findall(rb"HTTP/1.1 (\d+) ", answers(s)) == [b"200", b"401", b"200", b"401"] and app.requests == ["/1", "/3"]


def test_what_strangers_may_hold(daemon, app):
    """Slow heads end; one address has its share of connections; the API's listener has its own; half-closed and flooding clients cost nobody else."""
    daemon.gateway("uri", {"max_connections": 64, "max_connections_per_address": 16}, server={"header_timeout_seconds": 1})
    box = daemon.box()
    slow = raw(daemon.gate, b"GET / HTTP/1.1\r\nHo")
    assert answers(slow) == b"", "cut off"
    many = []
    for _ in range(200):
        many.append(raw(daemon.gate, b""))
    assert daemon.ask("GET", "/v1/sandboxes")[0] == 200, "the API has places of its own"
    assert daemon.via(f"/{box}/{app.port}/")[0] == 200, "a newcomer gets the place of one that waits"
    half = raw(daemon.gate, f"GET /{box}/{app.port}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    half.shutdown(socket.SHUT_WR)
    assert answers(half)[:13] in (b"HTTP/1.1 200 ", b""), "answered, or taken for one that left"
    for s in many:
        s.close()
    flood = raw(daemon.gate, b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
    with contextlib.suppress(OSError):
        for _ in range(1000):
            flood.sendall(b"y" * 65536)
    assert daemon.via(f"/{box}/{app.port}/")[0] == 200


def test_an_address_has_its_share_of_websockets(daemon):
    """Upgraded connections are never closed for a newcomer, so they count: the one beyond the share is refused, also while the daemon has room. The share comes back."""
    daemon.gateway("wildcard", {"max_connections_per_address": 8})
    box = daemon.box()

    async def go():
        async def echo(ws):
            async for m in ws:
                await ws.send(m)

        def connect(source):
            return wsclient.connect(f"ws://{host}/", host="127.0.0.1", port=daemon.gate, local_addr=(source, 0))
        async with wsserver.serve(echo, "127.0.0.1", 0) as s:
            host = daemon.label(box, s.sockets[0].getsockname()[1])
            held = [await connect("127.0.0.1") for _ in range(8)]
            with pytest.raises((OSError, EOFError, websockets.exceptions.WebSocketException)):
                await connect("127.0.0.1")
            async with connect("127.0.0.2") as other:
                await other.send("hello")
                assert await other.recv() == "hello"
            await held.pop().close()
            end = time.monotonic() + WAIT_S
            while True:
                with contextlib.suppress(OSError, EOFError, websockets.exceptions.WebSocketException):
                    held.append(await connect("127.0.0.1"))
                    break
                assert time.monotonic() < end
                await asyncio.sleep(0.02)
            for ws in held:
                await ws.send("still")
                assert await ws.recv() == "still"
                await ws.close()
    asyncio.run(asyncio.wait_for(go(), 2 * WAIT_S))


def test_refused_requests_keep_no_sandbox_awake(daemon, app):
    """It is paused although strangers ask all the time, and none of them wakes it; the token does."""
    daemon.gate, daemon.more, over = free_port(), {}, threading.Event()
    daemon.start(daemon.tables("uri") | {"idle": {"min_timeout_seconds": 1}})
    box = daemon.create(secureAccess=True, lifecycle={"idlePolicy": {"idleTimeoutSeconds": 1, "onIdle": "pause"}})
    refused = []

    def strangers():
        while not over.wait(0.1):
            refused.append(daemon.via(f"/{box}/{app.port}/")[0])
            refused.append(daemon.ask("GET", f"/{box}/{app.port}/")[0])
    t = threading.Thread(target=strangers)
    t.start()
    try:
        daemon.until(box, "Paused")
        n = len(refused)
        while len(refused) < n + 4:
            assert t.is_alive()
            time.sleep(0.05)
        assert daemon.state(box) == "Paused" and set(refused) == {401}
    finally:
        over.set()
        t.join()
    token = daemon.endpoint(box, app.port)[1]["headers"][TOKEN]
    assert daemon.via(f"/{box}/{app.port}/", headers={TOKEN: token})[0] == 200, "a request that is let in wakes it"


# ---- the SDKs

def test_python_sdk(daemon, app):
    """Create with secure_access, a command through the gateway, a signed endpoint."""
    from datetime import timedelta

    from opensandbox import SandboxSync
    from opensandbox.config import ConnectionConfigSync
    daemon.gateway("uri")
    config = ConnectionConfigSync(domain=f"127.0.0.1:{daemon.port}", api_key="x")
    box = SandboxSync.create("tiny", connection_config=config, secure_access=True, timeout=timedelta(minutes=5), entrypoint=["tail", "-f", "/dev/null"], resource={"memory": "256Mi"})
    assert box.is_healthy()
    assert box.get_endpoint(app.port).endpoint == f"127.0.0.1:{daemon.gate}/{box.id}/{app.port}"
    signed = box.get_signed_endpoint(app.port, int(time.time()) + 600)
    path = "/" + signed.endpoint.split("/", 1)[1]
    assert daemon.via(path + "/hello")[0] == 200 and daemon.via(f"/{box.id}/{app.port}/hello")[0] == 401
    box.kill()


def test_java_sdk(daemon, app, tmp_path):
    """The newest package knows neither secureAccess nor an endpoint's headers: its own calls, through the gateway."""
    jars = pathlib.Path(sys.executable).parent.parent / "java"
    if not shutil.which("java") or not jars.exists():
        pytest.skip("java or the Java SDK is missing: make deps")
    daemon.gateway("uri")
    (tmp_path / "Ingress.java").write_text(JAVA)
    r = subprocess.run(["java", "-cp", f"{jars}/*", tmp_path / "Ingress.java", f"127.0.0.1:{daemon.port}", str(app.port)], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stdout + r.stderr
    box, endpoint = r.stdout.strip().splitlines()[-1].split(" ")
    assert endpoint == f"127.0.0.1:{daemon.gate}/{box}/{app.port}"
    assert daemon.via("/" + endpoint.split("/", 1)[1] + "/")[0] == 200
    assert f"GET /{box}/44772/ping 200" in daemon.log(10000), "the SDK's own calls came through the gateway"


JAVA = r"""
import com.alibaba.opensandbox.sandbox.Sandbox;
import com.alibaba.opensandbox.sandbox.config.ConnectionConfig;

public class Ingress {
    public static void main(String[] args) throws Exception {
        ConnectionConfig config = ConnectionConfig.builder().domain(args[0]).apiKey("x").build();
        Sandbox box = Sandbox.builder().connectionConfig(config).image("tiny").entrypoint(java.util.List.of("tail", "-f", "/dev/null"))
            .resource(java.util.Map.of("memory", "256Mi")).build();
        if (!box.isHealthy())
            throw new RuntimeException("not healthy");
        System.out.println(box.getId() + " " + box.getEndpoint(Integer.parseInt(args[1])).getEndpoint());
        System.exit(0);
    }
}
"""
