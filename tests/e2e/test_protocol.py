# SPDX-License-Identifier: Apache-2.0
"""Every endpoint and every documented answer has been seen: in golden/ (a real VM: test_wire.py), or here, against the daemon on this host with
scripted monitors (hostdaemon.py), where what is hard to meet with a real VM is easy. DOCUMENTED is the list; a route that is served and not in
it fails, and so does a line of it that nobody asked for."""
import concurrent.futures
import datetime
import pathlib
import re
import socket
import threading
import time

import pytest

from hostdaemon import BOX, HostDaemon
from test_template_steps import TPL, built, make

GOLDEN = pathlib.Path(__file__).parent / "golden"
NOBODY = "11111111-2222-4333-8444-555555555555"
PARAM = "SANDBOX::INVALID_PARAMETER"

# what is served at the endpoints of ports 44772 and 18080, and at any other, by either way in
EXECD, EGRESS, PROXY = "/v1/sandboxes/{id}/proxy/44772", "/v1/sandboxes/{id}/proxy/18080", "/v1/sandboxes/{id}/proxy/{port}"
DOCUMENTED = """
GET /health 200
GET /version 200
GET /docs 200
GET /redoc 200
GET /openapi.json 200
GET /metrics 200 401
POST /v1/metrics/events 204 400 401 422
POST /v1/sandboxes 202 400 401 404 409 413 429 500 504
GET /v1/sandboxes 200 400 401
GET /v1/sandboxes/{id} 200 401 404
DELETE /v1/sandboxes/{id} 204 401 404
PATCH /v1/sandboxes/{id}/metadata 200 400 401 404
POST /v1/sandboxes/{id}/pause 202 400 401 404 409 500
POST /v1/sandboxes/{id}/resume 202 401 404 409 500 504
POST /v1/sandboxes/{id}/renew-expiration 200 400 401 404 409
GET /v1/sandboxes/{id}/endpoints/{port} 200 400 401 404
POST /v1/sandboxes/{id}/snapshots 202 400 401 404 409
GET /v1/snapshots 200 400 401
GET /v1/snapshots/{id} 200 401 404
DELETE /v1/snapshots/{id} 204 401 404 409
GET /v1/sandboxes/{id}/networkpolicy 200 401 404
PUT /v1/sandboxes/{id}/networkpolicy 401 404 501
PATCH /v1/sandboxes/{id}/networkpolicy 401 404 501
DELETE /v1/sandboxes/{id}/networkpolicy 401 404 501
POST /v1/templates 201 400 401 429
GET /v1/templates 200 400 401
GET /v1/templates/{id} 200 401 404
DELETE /v1/templates/{id} 204 401 404
GET /v1/sandboxes/{id}/diagnostics/logs 200 400 401 404
GET /v1/sandboxes/{id}/diagnostics/events 200 400 401 404
GET /v1/sandboxes/{id}/diagnostics/inspect 200 401 404
GET /v1/sandboxes/{id}/diagnostics/summary 200 401 404
POST /v1/pools 401 501
GET /v1/pools 401 501
GET /v1/pools/{name} 401 501
PUT /v1/pools/{name} 401 501
DELETE /v1/pools/{name} 401 501
GET /v1/mayfly/templates 200 401
POST /v1/mayfly/templates 201 400 401 409
GET /v1/mayfly/templates/{id} 200 401 404
DELETE /v1/mayfly/templates/{id} 204 401 404
GET /v1/mayfly/points/{id} 200 401 404
POST /v1/mayfly/points/{id}/verify 200 401 404
GET EXECD/ping 200 404 409
POST EXECD/command 200 400 409 413
DELETE EXECD/command 200 400 500
GET EXECD/command/status/{id} 200 404
GET EXECD/command/{id}/logs 200 400
POST EXECD/session 200 400 500
POST EXECD/session/{id}/run 200 400 500
DELETE EXECD/session/{id} 200 404
POST EXECD/code 500
DELETE EXECD/code 400 500
POST EXECD/code/context 500
GET EXECD/code/contexts 500
DELETE EXECD/code/contexts 400 500
GET EXECD/code/contexts/{id} 404
DELETE EXECD/code/contexts/{id} 404
GET EXECD/metrics 200
GET EXECD/metrics/watch 200
POST EXECD/pty 501
GET EXECD/pty/{rest} 404
POST EXECD/pty/{rest} 404
PUT EXECD/pty/{rest} 404
PATCH EXECD/pty/{rest} 404
DELETE EXECD/pty/{rest} 404
GET EXECD/v1/isolated/capabilities 200
GET EXECD/v1/isolated/{rest} 503
POST EXECD/v1/isolated/{rest} 503
PUT EXECD/v1/isolated/{rest} 503
PATCH EXECD/v1/isolated/{rest} 503
DELETE EXECD/v1/isolated/{rest} 503
GET EXECD/files/info 200 404 500
DELETE EXECD/files 200 500
POST EXECD/files/permissions 200 400 404 500
POST EXECD/files/mv 200 400 404 500
POST EXECD/files/replace 200 400 404 500
GET EXECD/files/search 200 404 500
POST EXECD/files/upload 200 400 500
GET EXECD/files/download 200 206 400 404 416 500
POST EXECD/directories 200 400 500
DELETE EXECD/directories 200 500
GET EXECD/directories/list 200 400 404 500
GET USER/files/info 200 400 500
DELETE USER/files 400 500
POST USER/files/permissions 400 500
POST USER/files/mv 400 500
POST USER/files/replace 400 500
GET USER/files/search 400 500
POST USER/files/upload 400 500
GET USER/files/download 400 403 500
POST USER/directories 200 400 500
DELETE USER/directories 400 403 500
GET USER/directories/list 400 500
ANY EXECD/proxy/{port} 200 400 502
ANY EXECD/proxy/{port}/{rest} 200 400 502
GET EGRESS/healthz 200
GET EGRESS/policy 200
POST EGRESS/policy 501
PUT EGRESS/policy 501
PATCH EGRESS/policy 501
DELETE EGRESS/policy 501
ANY EGRESS/credential-vault 501
ANY EGRESS/credential-vault/{rest} 501
ANY PROXY/{rest} 200 404 409 502 504
GET PROXY/{rest} 302 400 501
"""
# of the protocol's codes, those of what is served; the rest belong to what is refused with the first of them, or to other backends
CODES = """MISSING_API_KEY INVALID_API_KEY INVALID_METADATA_FORMAT INVALID_METADATA_LABEL DIAGNOSTICS_SCOPE_UNSUPPORTED BACKEND_CONNECTION_FAILED
BACKEND_TIMEOUT BACKEND_RESPONSE_FAILED SANDBOX::API_NOT_SUPPORTED SANDBOX::INVALID_METADATA_LABEL SANDBOX::INVALID_PARAMETER SANDBOX::UNSUPPORTED_POOL_REF
VOLUME::UNSUPPORTED_BACKEND DOCKER::SANDBOX_NOT_FOUND DOCKER::SANDBOX_IMAGE_PULL_FAILED DOCKER::SANDBOX_START_FAILED DOCKER::SANDBOX_NOT_RUNNING
DOCKER::SANDBOX_PAUSE_FAILED DOCKER::SANDBOX_NOT_PAUSED DOCKER::INVALID_EXPIRATION DOCKER::INVALID_PORT KUBERNETES::POOL_NOT_SUPPORTED
KUBERNETES::POOL_CAPACITY_EXHAUSTED FSB::TEMPLATE_NOT_FOUND FSB::TEMPLATE_CONFLICT SNAPSHOT::NOT_FOUND SNAPSHOT::NOT_READY SNAPSHOT::INVALID_STATE
SNAPSHOT::INVALID_SOURCE_STATE INVALID_REQUEST_BODY MISSING_QUERY RUNTIME_ERROR INVALID_FILE INVALID_FILE_METADATA FILE_NOT_FOUND UNKNOWN CONTEXT_NOT_FOUND
NOT_SUPPORTED SERVICE_UNAVAILABLE SESSION_NOT_FOUND"""
FORM = {"Content-Type": "multipart/form-data; boundary=BB"}
UPLOAD = (b'--BB\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\n\r\n{"path":"/x"}\r\n'
          b'--BB\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nx\r\n--BB--\r\n')


def documented():
    """{(method, path)} -> statuses"""
    rows = {}
    for line in DOCUMENTED.split("\n"):
        if not line:
            continue
        method, path, *statuses = line.split()
        for short, whole in (("EXECD", EXECD), ("EGRESS", EGRESS), ("PROXY", PROXY), ("USER", EXECD + "/v1/filesystem/{uid}/{gid}")):
            path = path.replace(short, whole)
        for m in ("GET", "POST", "PUT", "DELETE", "PATCH") if method == "ANY" else (method,):
            rows.setdefault((m, path), set()).update(int(s) for s in statuses)
    return rows


class Seen:
    """What was asked and answered, by route; asks."""

    def __init__(self, daemon, doc):
        self.daemon, self.answers, self.codes = daemon, set(), set()
        self.any = set()  # (path, status) by whatever method
        self.patterns = sorted(((p, re.compile(re.sub(r"\\\{rest\\\}", ".*", re.sub(r"\\\{(?!rest)\w+\\\}", "[^/]+", re.escape(p))))) for p in doc["paths"]),
                               key=lambda x: (x[0].count("{rest}"), x[0].count("{")))
        self.methods = {p: {m.upper() for m in ops} for p, ops in doc["paths"].items()}

    def route(self, method, path):
        path = path.split("?")[0]
        if m := re.fullmatch(r"/(\{[A-Z]+\}|[0-9a-f-]{36})/(\d+)(/.*)?", path):
            path = f"/v1/sandboxes/{m[1]}/proxy/{m[2]}{m[3] or '/'}"
        if re.match(r"/(sandboxes|snapshots|templates|pools)\b", path):
            path = "/v1" + path
        for p, pattern in self.patterns:
            if pattern.fullmatch(path) and method in self.methods[p]:
                return p
        return None

    def add(self, method, path, status, code):
        if code:
            self.codes.add(code)
        if route := self.route(method, path):
            self.answers.add((method, route, status))
            self.any.add((route, status))

    def ask(self, method, path, status, body=None, code=None, **headers):
        got, answer, head = self.daemon.ask(method, path, body, headers)
        assert got == status, (method, path, got, answer)
        found = answer.get("code") if isinstance(answer, dict) else None
        assert (code is None or found == code) and (found is None or answer["message"]), (method, path, answer)
        self.add(method, path, status, found)
        return answer, head


def golden(seen):
    for f in GOLDEN.glob("*.txt"):
        for exchange in re.split(r"(?m)^## ", f.read_text())[1:]:
            request, status = re.search(r"(?m)^> ([A-Z]+) (\S+)", exchange), re.search(r"(?m)^< (\d{3}) ", exchange)
            code = re.search(r'"code":"([^"]+)"', exchange)
            seen.add(request[1], request[2], int(status[1]), code and code[1])


def without_a_key(seen, doc):
    """Every route that wants one says so, before anything else, to whom has none and to whom has another."""
    for path, ops in doc["paths"].items():
        for method, op in ops.items():
            at = re.sub(r"\{\w+\}", "x", path)
            if "security" in op:
                seen.ask(method.upper(), at, 401, code="MISSING_API_KEY", **{"OPEN-SANDBOX-API-KEY": ""})
                seen.ask(method.upper(), at, 401, code="INVALID_API_KEY", **{"OPEN-SANDBOX-API-KEY": "wrong"})


def lifecycle(seen, d):
    ask, sb = seen.ask, d.create(timeout=600)
    at = f"/v1/sandboxes/{sb}"
    ask("GET", "/openapi.json", 200)
    ask("GET", "/metrics", 200)
    ask("POST", "/v1/metrics/events", 400, b"{")
    for method in ("PUT", "PATCH", "DELETE"):
        ask(method, f"/v1/sandboxes/{NOBODY}/networkpolicy", 404, b"{}")
    ask("POST", at + "/pause?mode=other", 400, code=PARAM)
    for body in (b"[", {"name": 1}, {"name": "x" * 128}):
        ask("POST", at + "/snapshots", 400, body, PARAM)
    ask("POST", f"/v1/sandboxes/{d.create()}/renew-expiration", 409, {"expiresAt": "2099-01-01T00:00:00Z"}, "DOCKER::INVALID_EXPIRATION")
    d.plan(prep="error")
    ask("POST", at + "/pause", 500, code="DOCKER::SANDBOX_PAUSE_FAILED")
    d.plan()
    ask("POST", at + "/pause", 202)
    d.plan(restore="error")
    ask("POST", at + "/resume", 500, code="DOCKER::SANDBOX_START_FAILED")
    d.plan(ready="never")
    ask("POST", at + "/resume", 504, code="DOCKER::SANDBOX_START_FAILED")
    for method, path in (("GET", "/ping"), ("GET", "/proxy/80/a")):
        ask(method, f"/{sb}/44772{path}", 409, code="DOCKER::SANDBOX_NOT_RUNNING")
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        ask(method, f"/{sb}/80/a", 409, b"" if method != "GET" else None, "DOCKER::SANDBOX_NOT_RUNNING")
        ask(method, f"/{NOBODY}/80/a", 404, b"" if method != "GET" else None, "DOCKER::SANDBOX_NOT_FOUND")
    d.plan()
    ask("POST", at + "/resume", 202)
    d.plan(boot="error")
    ask("POST", "/v1/sandboxes", 500, BOX, "DOCKER::SANDBOX_START_FAILED")
    d.plan(boot="hang")
    ask("POST", "/v1/sandboxes", 504, BOX, "DOCKER::SANDBOX_START_FAILED")
    d.plan()
    _, head = ask("POST", "/v1/sandboxes", 429, BOX | {"resourceLimits": {"memory": "8Gi"}}, "KUBERNETES::POOL_CAPACITY_EXHAUSTED")
    assert int(head["Retry-After"]) > 0


def snapshots(seen, d):
    ask, sb = seen.ask, d.create()
    d.plan(snapshot="hang")
    snap = ask("POST", f"/v1/sandboxes/{sb}/snapshots", 202)[0]["id"]
    ask("POST", f"/v1/sandboxes/{sb}/snapshots", 409, code="SNAPSHOT::INVALID_SOURCE_STATE")
    ask("POST", "/v1/sandboxes", 409, {"snapshotId": snap, "resourceLimits": {"memory": "256Mi"}}, "SNAPSHOT::NOT_READY")
    ask("DELETE", f"/v1/snapshots/{snap}", 409, code="SNAPSHOT::INVALID_STATE")
    ask("DELETE", f"/v1/sandboxes/{sb}", 204)
    d.plan()


def templates(seen, d):
    ask = seen.ask
    ask("POST", "/v1/templates", 400, {}, PARAM)
    ask("GET", "/v1/templates?page=0", 400, code=PARAM)
    ask("GET", "/v1/templates?metadata=a%3D%25zz", 400, code="INVALID_METADATA_FORMAT")
    for t in ("x", "tpl-" + NOBODY):
        for method in ("GET", "DELETE"):
            ask(method, f"/v1/templates/{t}", 404, code="FSB::TEMPLATE_NOT_FOUND")
    ask("POST", "/v1/sandboxes", 404, {"templateId": "tpl-" + NOBODY, "timeout": 60}, "FSB::TEMPLATE_NOT_FOUND")
    tpl = ask("POST", "/v1/templates", 201, TPL)[0]["templateId"]
    make(d)
    ask("POST", "/v1/templates", 429, TPL, "FSB::TEMPLATE_CONFLICT")
    assert built(d, tpl)["phase"] == "Succeeded"
    ask("GET", f"/v1/templates/{tpl}", 200)
    ask("GET", "/v1/templates", 200)
    ask("GET", f"/v1/mayfly/points/{tpl}", 200)
    ask("POST", f"/v1/mayfly/points/{tpl}/verify", 200)
    ask("DELETE", f"/v1/templates/{tpl}", 204)
    for method, path in (("GET", "/v1/mayfly/points/x"), ("POST", "/v1/mayfly/points/x/verify"), ("GET", "/v1/mayfly/templates/x"), ("DELETE", "/v1/mayfly/templates/x")):
        ask(method, path, 404)
    ask("POST", "/v1/mayfly/templates", 400, b"[", PARAM)
    ask("POST", "/v1/mayfly/templates", 409, {"image": "tiny"}, "FSB::TEMPLATE_CONFLICT")


def automatic_templates(seen, d):
    t = seen.ask("POST", "/v1/mayfly/templates", 201, {"image": "tiny", "resourceLimits": {"memory": "256Mi"}})[0]["id"]
    seen.ask("GET", "/v1/mayfly/templates", 200)
    seen.ask("GET", f"/v1/mayfly/templates/{t}", 200)
    seen.ask("DELETE", f"/v1/mayfly/templates/{t}", 204)


def execution(seen, d):
    """The scripted agent does no files: what it cannot do is the 500 that is documented for every call."""
    ask, at = seen.ask, f"/{d.create()}/44772"
    for method, path, status, body, code in (
            ("POST", "/session", 400, b"[", "INVALID_REQUEST_BODY"), ("POST", "/session", 500, {"cwd": "/x"}, "RUNTIME_ERROR"), ("DELETE", "/code", 400, None, "MISSING_QUERY"),
            ("DELETE", "/code/contexts?language=python", 500, None, "RUNTIME_ERROR"), ("POST", "/pty", 501, {}, "NOT_SUPPORTED"), ("POST", "/directories", 400, b"[", "INVALID_REQUEST_BODY")):
        ask(method, at + path, status, body, code)
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        body = None if method == "GET" else b"{}"
        ask(method, at + "/pty/x/ws", 404, body, "SESSION_NOT_FOUND")
        for path in ("session/x", "sessions", "session/x/run", "session/x/diff", "session/x/files/info"):
            ask(method, at + "/v1/isolated/" + path, 503, body, "SERVICE_UNAVAILABLE")
        for path in ("/credential-vault", "/credential-vault/credentials/x", "/credential-vault/bindings"):
            ask(method, at.replace("44772", "18080") + path, 501, body)
    calls = (("GET", "/files/info?path=/x", None), ("DELETE", "/files?path=/x", None), ("POST", "/files/permissions", {"/x": {"mode": 600}}), ("POST", "/files/mv", [{"src": "/a", "dest": "/b"}]),
             ("POST", "/files/replace", {"/x": {"old": "a", "new": "b"}}), ("GET", "/files/search?path=/", None), ("POST", "/files/upload", UPLOAD), ("GET", "/files/download?path=/x", None),
             ("POST", "/directories", {"/x": {}}), ("DELETE", "/directories?path=/x", None), ("GET", "/directories/list?path=/", None))
    for method, path, body in calls:
        head = FORM if body is UPLOAD else {}
        ask(method, at + path, 500, body, "RUNTIME_ERROR", **head)
        ask(method, at + "/v1/filesystem/1/1" + path, 500, body, "RUNTIME_ERROR", **head)
        ask(method, at + "/v1/filesystem/1/4294967296" + path, 400, body, "INVALID_REQUEST_BODY", **head)


def proxying(seen, d):
    """A server in the sandbox (the scripted agent's dials come to this host): one that answers, none, one that is silent, one that cannot be reached."""
    ok, silent = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    unused = socket.create_server(("127.0.0.1", 0))
    none = unused.getsockname()[1]
    unused.close()

    def serve():
        while True:
            try:
                c, _ = ok.accept()
            except OSError:
                return
            with c:
                c.recv(65536)
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    threading.Thread(target=serve, daemon=True).start()
    sb = d.create()
    port, quiet = ok.getsockname()[1], silent.getsockname()[1]
    try:
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
            body = None if method == "GET" else b"x"
            seen.ask(method, f"/{sb}/{port}/a", 200, body)
            seen.ask(method, f"/{sb}/{none}/a", 502, body, "BACKEND_CONNECTION_FAILED")
            for rest in ("", "/a"):
                seen.ask(method, f"/{sb}/44772/proxy/{port}{rest}", 200, body)
                seen.ask(method, f"/{sb}/44772/proxy/{none}{rest}", 502, body, "BACKEND_CONNECTION_FAILED")
                seen.ask(method, f"/{sb}/44772/proxy/65536{rest}", 400, body, "INVALID_REQUEST_BODY")
        # a server that takes the request and says nothing, by every method at once
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            waits = [pool.submit(seen.ask, m, f"/{sb}/{quiet}/a", 504, None if m == "GET" else b"x", "BACKEND_TIMEOUT") for m in ("GET", "POST", "PUT", "DELETE", "PATCH")]
            began = time.monotonic()
            assert seen.daemon.ask("GET", "/health")[0] == 200 and time.monotonic() - began < 2
            for w in waits:
                w.result()
        d.plan(dial="timeout")
        seen.ask("GET", f"/v1/sandboxes/{sb}/proxy/{port}/a", 504, code="BACKEND_TIMEOUT")
        d.plan()
    finally:
        ok.close()
        silent.close()


@pytest.fixture(scope="module")
def doc_and_seen(tmp_path_factory):
    d = HostDaemon(tmp_path_factory.mktemp("protocol"))
    tables = {"runtime": {"templates": False, "template_max": 2, "resume_timeout_seconds": 3, "create_timeout_seconds": 5}, "limits": {"memory_mib": 8192}, "server.api_keys": {"a": "k"}}
    d.headers = {"OPEN-SANDBOX-API-KEY": "k"}
    try:
        d.start(tables, backend_timeout_seconds=2)
        doc = d.ask("GET", "/openapi.json")[1]
        seen = Seen(d, doc)
        for path in ("/health", "/version", "/docs", "/redoc"):
            seen.ask("GET", path, 200)
        golden(seen)
        without_a_key(seen, doc)
        for part in (lifecycle, snapshots, templates, execution, proxying):
            part(seen, d)
        d.end()
        tables["runtime"] |= {"templates": True, "template_max": 64}
        d.start(tables)
        automatic_templates(seen, d)
        yield doc, seen
    finally:
        d.clean()


def test_every_route_that_is_served_is_in_the_list(doc_and_seen):
    doc, _ = doc_and_seen
    served = {(m.upper(), p) for p, ops in doc["paths"].items() for m in ops}
    assert served == set(documented()), (served - set(documented()), set(documented()) - served)


def test_every_documented_answer_has_been_seen(doc_and_seen):
    _, seen = doc_and_seen
    missing = sorted((m, p, s) for (m, p), statuses in documented().items() for s in statuses if (m, p, s) not in seen.answers)
    assert not missing, "\n".join(map(str, missing))


def test_every_documented_code_has_been_seen(doc_and_seen):
    _, seen = doc_and_seen
    assert not set(CODES.split()) - seen.codes, set(CODES.split()) - seen.codes
