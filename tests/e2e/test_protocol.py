# SPDX-License-Identifier: Apache-2.0
"""Every endpoint and every documented answer. What is documented is documented.txt (from the protocol's OpenAPI files), BESIDE (from its text, and what is our own) and
the codes; each must have been seen, in golden/ (a real VM: test_wire.py) or here, against the daemon on this host with scripted monitors (hostdaemon.py), or be
listed in NEVER with the reason why no client can get it. The test fails for a served route that is not listed, an answer that is not documented, and a wrong entry of NEVER."""
import concurrent.futures
import difflib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import threading
import time

import pytest

from hostdaemon import BOX, WAIT_S, HostDaemon
from test_template_steps import TPL, built, make

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE / "golden"
NOBODY = "11111111-2222-4333-8444-555555555555"
PARAM = "SANDBOX::INVALID_PARAMETER"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

# of the protocol's text; and, of the last lines, ours
BESIDE = """
GET /docs 200
GET /redoc 200
GET /openapi.json 200
POST /v1/sandboxes 404 413 503 504
POST /v1/sandboxes/{id}/pause 400
POST /v1/sandboxes/{id}/resume 504
GET /v1/sandboxes/{id}/diagnostics/inspect 401
GET /v1/sandboxes/{id}/diagnostics/summary 401
DELETE /v1/templates/{id} 500
POST EXECD/command 413
POST EXECD/pty 400 500
GET EXECD/pty/{id} 404
GET EXECD/stream 426
DELETE EXECD/pty/{id} 404
GET EXECD/pty/{id}/ws 404
GET EXECD/v1/isolated/session/{id}/diff 200 400 404
POST EXECD/v1/isolated/session/{id}/commit 200 400 404
GET EXECD/v1/isolated/session/{id}/files/info 500
DELETE EXECD/v1/isolated/session/{id}/files 404 500
POST EXECD/v1/isolated/session/{id}/files/permissions 400 404 500
POST EXECD/v1/isolated/session/{id}/files/mv 400 404 500
POST EXECD/v1/isolated/session/{id}/files/replace 400 404 500
GET EXECD/v1/isolated/session/{id}/files/search 404 500
POST EXECD/v1/isolated/session/{id}/files/upload 400 404 500
GET EXECD/v1/isolated/session/{id}/files/download 400 500
POST EXECD/v1/isolated/session/{id}/directories 400 404 500
DELETE EXECD/v1/isolated/session/{id}/directories 404 500
GET EXECD/v1/isolated/session/{id}/directories/list 500
POST EXECD/files/permissions 404
POST EXECD/files/replace 404
GET EXECD/v1/filesystem/{uid}/{gid}/files/download 206 416
ANY EXECD/proxy/{port} 200 400 502
ANY EXECD/proxy/{port}/{rest} 200 400 502
GET EXECD/proxy/{port}/{rest} 302
GET EGRESS/healthz 200
POST EGRESS/policy 200
PUT EGRESS/policy 200
ANY EGRESS/credential-vault 501
ANY EGRESS/credential-vault/{rest} 501
GET PROXY/{rest} 302 400 401
ANY PROXY/{rest} 200 404 409 502 504
GET /metrics 200 401
GET /v1/sandboxes/{id}/diagnostics/context 200 401 404
GET /v1/mayfly/sandboxes/{id}/egress 200 401 404
GET /v1/mayfly/templates 200 401
POST /v1/mayfly/templates 201 400 401 409 500
GET /v1/mayfly/templates/{id} 200 401 404
DELETE /v1/mayfly/templates/{id} 204 401 404
GET /v1/mayfly/points/{id} 200 401 404
POST /v1/mayfly/points/{id}/verify 200 401 404
GET /v1/mayfly/volumes 200 401
POST /v1/mayfly/volumes 201 400 401 409
GET /v1/mayfly/volumes/{name} 200 401 404
DELETE /v1/mayfly/volumes/{name} 204 401 404
POST /v1/mayfly/runs 200 401
POST /v1/sandboxes/{id}/fork 202 400 401 404 409 429 500
POST /v1/snapshots/{id}/fork 202 400 401 404 409
POST /v1/sandboxes/{id}/restore 202 400 401 404 409 500
GET /v1/mayfly/images 200 401
POST /v1/mayfly/images 200 400 401
DELETE /v1/mayfly/images 400 401 404
GET /v1/mayfly/quarantine 200 401
DELETE /v1/mayfly/quarantine/{table}/{id} 401 404
"""
# of any route, whatever else it answers: an unknown method, a path with a slash behind it; behind an endpoint: no sandbox, one that does not run, one that
# was lost meanwhile, a token of the sandbox's own that is missing, another user without the right
ANYWHERE = ((r"\w+ /", (405, 307)), (r"\w+ EXECD/", (401, 404, 405, 409, 503)), (r"\w+ EXECD/v1/filesystem/", (403,)), (r"\w+ (EGRESS|PROXY)", (404, 405)), (r"GET EGRESS/credential-vault/", (501,)))

# (statuses, the endpoints, why not)
NEVER = (
    ("403", r"\w+ /v1/(?!pools).*", "what belongs to another namespace is 404, and what only an operator or a peer may do is beside the protocol: test_principals.py"),
    ("422", r"(?!POST /v1/(sandboxes|metrics/events)$|\w+ /v1/pools)\w+ (/v1/|PROXY).*", "what FastAPI says of a request that does not fit; here it is 400 with code and message, as the documents have it"),
    ("500", r"(GET /v1/(sandboxes|snapshots)(/\{id\})?|GET /v1/sandboxes/\{id\}/(endpoints/\{port\}|networkpolicy|diagnostics/(logs|events))|POST /v1/metrics/events)",
     "answered from memory: no disk, helper or guest is asked, or (logs) what is kept is told when the guest does not answer"),
    ("409", r"(DELETE /v1/sandboxes/\{id\}|PATCH /v1/sandboxes/\{id\}/metadata|GET /v1/snapshots/\{id\})", "done in whatever state it is"),
    ("501", r"\w+ /v1/(sandboxes/\{id\}/snapshots|snapshots.*|templates.*|sandboxes/\{id\}/diagnostics/.*)", "for servers without snapshots, templates or diagnostics"),
    ("422 501", r"\w+ /v1/pools.*", "a request that does not fit gets 400; there are pools"),
    ("500", r"GET /v1/pools(/\{name\})?", "answered from memory"),
    ("409", r"(PUT|PATCH|DELETE) /v1/sandboxes/\{id\}/networkpolicy", "a policy may be changed in whatever state it is"),
    ("503", r"\w+ /v1/sandboxes/\{id\}/networkpolicy", "there is no sidecar that could be away"),
    ("401", r"\w+ EGRESS/credential-vault.*", "501 before anything is asked for"),
    ("500", r"GET EGRESS/policy", "answered from memory"),
    ("200 201 204 400 404 409 412", r"\w+ EGRESS/credential-vault.*", "this server has no credential vault: 501"),
    ("200", r"\w+ EXECD/code/context.*", "the scripted agent has no kernel: test_code_host.py has real ones"),
    ("400", r"(GET EXECD/code/contexts|DELETE EXECD/code/contexts/\{id\})", "without a kernel: 500 or 404, whatever is asked for"),
    ("500", r"\w+ EXECD/code/contexts/\{id\}", "there is none: 404"),
    ("200 202 206", r"\w+ EXECD/v1/isolated/(?!capabilities).*", "the scripted agent has no isolated sessions: test_isolated.py and the unit test api_isolated have real ones"),
    ("400", r"GET EXECD/v1/isolated/session/\{id\}/diff", "the same: no overlay of that path"),
    ("400", r"GET EXECD/command/status/\{id\}", "any name is one that a command could have: 404"),
    ("404", r"GET EXECD/command/\{id\}/logs", "the protocol's text has 400 for a command that is none or not in the background"),
    ("400", r"DELETE EXECD/session/\{id\}", "any name is one that a session could have: 404"),
    ("404", r"(POST|DELETE) EXECD/v1/filesystem/\{uid\}/\{gid\}/(files|directories|files/upload)", "for an agent without these routes; what is missing is made (uploads, directories) or ignored (deletions)"),
)
# codes of the protocol that nobody gets, and why not
NEVER_CODES = (
    (r"DOCKER::(INITIALIZATION_ERROR|SANDBOX_QUERY_FAILED|SNAPSHOT_IMAGE_REMOVE_FAILED|NETWORK_MODE_ENDPOINT_UNAVAILABLE|SANDBOX_(EXECD|BOOTSTRAP)_.*)", "of what Docker does"),
    (r"DOCKER::(EXPIRATION_NOT_EXTENDED|INVALID_ENTRYPOINT)", "an expiry may be sooner, and an entrypoint that does not fit is SANDBOX::INVALID_PARAMETER"),
    (r"KUBERNETES::(?!POOL_NOT_FOUND|POOL_ALREADY_EXISTS|POOL_CAPACITY_EXHAUSTED).*", "of what Kubernetes does"),
    (r"(SANDBOX|GENERAL)::UNKNOWN_ERROR", "every error has a name"),
    (r"FSB::(SANDBOX_NOT_FOUND|POOL_NOT_FOUND|API_NOT_SUPPORTED)", "of another backend: a sandbox is DOCKER::SANDBOX_NOT_FOUND, templates are supported"),
    (r"SNAPSHOT::(INVALID_RESTORE_CONFIG|NOT_IMPLEMENTED|RUNTIME_CREATE_CONFLICT|RUNTIME_PREFLIGHT_FAILED|UNSUPPORTED_RUNTIME)", "of backends where a snapshot is an image in a registry"),
    (r"VOLUME::.*OSSFS.*", "ossfs is refused with VOLUME::UNSUPPORTED_BACKEND before its parts are looked at"),
    (r"VOLUME::(HOST_PATH_CREATE_FAILED|PVC_INSPECT_FAILED|PVC_SUBPATH_UNSUPPORTED_DRIVER)", "of a file system that fails; of Docker's volume drivers"),
    (r"SANDBOX_LIST_UNAVAILABLE|TENANT_PROVIDER_UNAVAILABLE", "of a list and of tenants that are kept elsewhere"),
    (r"SANDBOX::UNSUPPORTED_POOL_REF", "for servers without pools"),
    (r"MISSING_OR_INVALID_SECURE_ACCESS", "it needs a gateway, which this daemon has not: test_ingress_host.py"),
    (r"INVALID_FILE_CONTENT", "a file's content is bytes, none of them invalid"),
    (r"ALREADY_CONNECTED|VIEWER_REQUIRES_RUNNING_SESSION", "of terminals, which the scripted agent has not: test_pty_host.py"),
    (r"NOT_SUPPORTED", "everything of the execution API is there"),
)
OUR_CODES = {"FSB::TEMPLATE_FAILED", "SANDBOX::FORK_FAILED", "SANDBOX::INVALID_STATE", "MAYFLY::IMAGE_NOT_FOUND", "MAYFLY::NOT_QUARANTINED", "VOLUME::PVC_EXISTS"}  # of /v1/mayfly/, forks, rollbacks
FORM = {"Content-Type": "multipart/form-data; boundary=BB"}
UPLOAD = (b'--BB\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\n\r\n{"path":"/x"}\r\n'
          b'--BB\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nx\r\n--BB--\r\n')


def documented():
    """{"METHOD path": statuses}, and the codes."""
    rows, codes = {}, set()
    for line in (HERE / "documented.txt").read_text().split("\n") + BESIDE.split("\n"):
        if line.startswith("code "):
            codes |= set(line.split()[1:])
        elif line and not line.startswith("#"):
            method, path, *statuses = line.split()
            for m in METHODS if method == "ANY" else (method,):
                rows.setdefault(f"{m} {path}", set()).update(int(s) for s in statuses)
    return rows, codes


def short(path):
    """A path as the rows have it: what is behind an endpoint by its name."""
    path = path.split("?")[0]
    if m := re.fullmatch(r"/(\{[A-Z]+\}|[0-9a-f-]{36})/(\d+)(/.*)?", path):
        path = f"/v1/sandboxes/{m[1]}/proxy/{m[2]}{m[3] or ''}"
    if re.match(r"/(sandboxes|snapshots|templates|pools)\b", path):
        path = "/v1" + path
    if m := re.fullmatch(r"/v1/sandboxes/[^/]+/proxy/(\d+|\{port\})(/.*)?", path):
        path = {"44772": "EXECD", "18080": "EGRESS"}.get(m[1], "PROXY") + (m[2] or "")
    return path


def erased(row):
    return re.sub(r"\{(?!rest)\w+\}", "{}", row)


class Seen:
    """What was asked and answered, by row; asks."""

    def __init__(self, daemon, rows):
        self.daemon, self.answers, self.codes, self.codeless = daemon, set(), set(), set()
        self.errors = {}  # (row, status, code) -> one exchange, as it is kept in golden/host
        self.patterns = [(row, re.compile(re.sub(r"\\\{rest\\\}", ".*", re.sub(r"\\\{(?!rest)\w+\\\}", "[^/]+", re.escape(row)))))
                         for row in sorted(rows, key=lambda row: (row.count("{rest}"), row.count("{")))]

    def row(self, method, path):
        return next((row for row, pattern in self.patterns if pattern.fullmatch(f"{method} {short(path)}")), None)

    def add(self, method, path, status, code):
        if code:
            self.codes.add(code)
        if row := self.row(method, path):
            self.answers.add((row, status))
            if status >= 400 and not code:
                self.codeless.add((row, status))

    def ask(self, method, path, status, body=None, code=None, **headers):
        got, answer, head = self.daemon.ask(method, path, body, headers)
        assert got == status, (method, path, got, answer)
        found = answer.get("code") if isinstance(answer, dict) else None
        assert (code is None or found == code) and (found is None or answer["message"]), (method, path, answer)
        self.add(method, path, status, found)
        if status >= 400:
            key, text = (self.row(method, path), status, found or ""), self.exchange(method, path, status, body, answer, head)
            self.errors[key] = min(text, self.errors.get(key, text))
        return answer, head

    def exchange(self, method, path, status, body, answer, head):
        if isinstance(answer, dict) and status in (503, 504):
            answer = answer | {"message": "{which step, or how it was lost}"}
        lines = [f"> {method} {path}"] + ([f"> {body.decode() if isinstance(body, bytes) else json.dumps(body)}"] if body else [])
        lines += [f"< {status} {http.client.responses[status]}"] + sorted(f"< {k}: {head[k]}" for k in ("Content-Type", "Retry-After") if head[k])
        text = "\n".join(lines + [f"< {json.dumps(answer) if isinstance(answer, dict) else answer}"]).replace("\r", "").rstrip() + "\n"
        text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "{uuid}", text)
        return re.sub(r"(?<=[/:])(?!44772|18080|65536)\d{4,5}\b", "{port}", text)


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
    rule = {"action": "allow", "target": "a.example"}
    guarded = d.create(timeout=600, networkPolicy={"egress": [rule]})
    policy = at + "/networkpolicy"
    ask("GET", policy, 200)
    ask("PUT", policy, 200, {"egress": [rule]})
    ask("PATCH", policy, 200, [rule])
    ask("DELETE", policy, 200, ["a.example"])
    ask("GET", f"/v1/mayfly/sandboxes/{sb}/egress", 200)
    context, _ = ask("GET", at + "/diagnostics/context", 200)
    assert context["sandboxId"] == sb and context["backendType"] == "mayfly" and set(context["backendIdentifiers"]) == {"slot", "pid", "bootId"}, context
    ask("GET", f"/v1/sandboxes/{NOBODY}/diagnostics/context", 404)
    for wrong in ("since=x", "since=0s", "since=-1h", "container=other"):
        ask("GET", at + f"/diagnostics/logs?{wrong}", 400, code=PARAM)
    ask("GET", f"/v1/mayfly/sandboxes/{NOBODY}/egress", 404)
    for method in ("PUT", "PATCH", "DELETE"):
        ask(method, policy, 400, b"{", PARAM)
    for box in (sb, guarded):
        for method, body in (("GET", None), ("PATCH", [rule]), ("DELETE", ["a.example"])):
            ask(method, f"/{box}/18080/policy", 200 if box == sb else 401, body)
    for method in ("PATCH", "DELETE"):
        ask(method, f"/{sb}/18080/policy", 400, b"{")
    ask("PUT", policy, 200, {"egress": [rule]})
    with d.unwritable("sandboxes", "checkpoints"):  # what then is so: test_unwritten.py
        for method, body in (("PUT", {}), ("PATCH", [rule]), ("DELETE", ["a.example"])):
            ask(method, policy, 500, body, "SANDBOX::INTERNAL_ERROR")
            if method != "PUT":
                ask(method, f"/{sb}/18080/policy", 500, body)
        ask("PATCH", at + "/metadata", 500, {"a": "b"}, "SANDBOX::INTERNAL_ERROR")
        ask("POST", at + "/renew-expiration", 500, {"expiresAt": "2099-01-01T00:00:00Z"}, "SANDBOX::INTERNAL_ERROR")
        ask("POST", at + "/snapshots", 500, code="SNAPSHOT::RUNTIME_CREATE_FAILED")
        ask("POST", "/v1/templates", 503, TPL, "FSB::API_ERROR")
    ask("POST", at + "/pause?mode=other", 400, code=PARAM)
    for body in (b"[", {"name": 1}, {"name": "x" * 128}):
        ask("POST", at + "/snapshots", 400, body, PARAM)
    ask("POST", f"/v1/sandboxes/{d.create()}/renew-expiration", 409, {"expiresAt": "2099-01-01T00:00:00Z"}, "DOCKER::INVALID_EXPIRATION")
    d.plan(prep="error")
    ask("POST", at + "/pause", 500, code="DOCKER::SANDBOX_PAUSE_FAILED")
    d.plan()
    ask("POST", at + "/pause", 202)
    with d.unwritable("sandboxes"):
        ask("POST", at + "/resume", 500, code="DOCKER::SANDBOX_RESUME_FAILED")
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
    with d.unwritable("sandboxes"):
        ask("DELETE", at, 500, code="DOCKER::SANDBOX_DELETE_FAILED")


def snapshots(seen, d):
    ask, sb = seen.ask, d.create()
    d.plan(snapshot="hang")
    snap = ask("POST", f"/v1/sandboxes/{sb}/snapshots", 202)[0]["id"]
    ask("POST", f"/v1/sandboxes/{sb}/snapshots", 409, code="SNAPSHOT::INVALID_SOURCE_STATE")
    ask("POST", "/v1/sandboxes", 409, {"snapshotId": snap, "resourceLimits": {"memory": "256Mi"}}, "SNAPSHOT::NOT_READY")
    ask("DELETE", f"/v1/snapshots/{snap}", 409, code="SNAPSHOT::INVALID_STATE")
    ask("DELETE", f"/v1/sandboxes/{sb}", 204)
    d.plan()
    taken = ask("POST", f"/v1/sandboxes/{d.create()}/snapshots", 202)[0]["id"]
    end = time.monotonic() + WAIT_S
    while ask("GET", f"/v1/snapshots/{taken}", 200)[0]["status"]["state"] != "Ready":
        assert time.monotonic() < end
        time.sleep(0.02)
    with d.unwritable("checkpoints"):
        ask("DELETE", f"/v1/snapshots/{taken}", 500, code="SNAPSHOT::INVALID_STATE")
    ask("DELETE", f"/v1/snapshots/{taken}", 204)


def forks(seen, d):
    ask, sb = seen.ask, d.create()
    at = f"/v1/sandboxes/{sb}/fork"
    ask("POST", at, 400, b"{")
    ask("POST", at, 400, {"count": 0}, PARAM)
    ask("POST", f"/v1/sandboxes/{NOBODY}/fork", 404, {"count": 1}, "DOCKER::SANDBOX_NOT_FOUND")
    ask("POST", at, 429, {"count": 100}, "KUBERNETES::POOL_CAPACITY_EXHAUSTED")
    d.plan(snapshot="error")
    ask("POST", at, 500, {"count": 1}, "SANDBOX::FORK_FAILED")
    d.plan(snapshot="hang")
    snap = ask("POST", f"/v1/sandboxes/{sb}/snapshots", 202)[0]["id"]
    ask("POST", f"/v1/snapshots/{snap}/fork", 409, {"count": 1}, "SNAPSHOT::NOT_READY")
    ask("DELETE", f"/v1/sandboxes/{sb}", 204)
    d.plan()
    sb = d.create()
    child = ask("POST", f"/v1/sandboxes/{sb}/fork", 202, {"count": 1, "pauseSource": True})[0]["items"][0]["sandbox"]["id"]
    d.until(sb, "Paused")
    ask("POST", f"/v1/sandboxes/{sb}/fork", 409, {"count": 1}, "SNAPSHOT::INVALID_SOURCE_STATE")
    snap = ask("POST", f"/v1/sandboxes/{child}/snapshots", 202)[0]["id"]
    end = time.monotonic() + WAIT_S
    while ask("GET", f"/v1/snapshots/{snap}", 200)[0]["status"]["state"] != "Ready":
        assert time.monotonic() < end
        time.sleep(0.02)
    ask("POST", f"/v1/snapshots/{snap}/fork", 400, {"count": 1, "pauseSource": True}, PARAM)
    ask("POST", f"/v1/snapshots/{NOBODY}/fork", 404, {"count": 1}, "SNAPSHOT::NOT_FOUND")
    ask("POST", f"/v1/snapshots/{snap}/fork", 202, {"count": 1})
    back = f"/v1/sandboxes/{child}/restore"
    ask("POST", back, 400, b"{")
    ask("POST", back, 400, {}, PARAM)
    ask("POST", back, 404, {"snapshotId": NOBODY}, "SNAPSHOT::NOT_FOUND")
    ask("POST", f"/v1/sandboxes/{NOBODY}/restore", 404, {"snapshotId": snap}, "DOCKER::SANDBOX_NOT_FOUND")
    with d.unwritable("sandboxes"):
        ask("POST", back, 500, {"snapshotId": snap}, "SANDBOX::INTERNAL_ERROR")
    ask("POST", back, 202, {"snapshotId": snap})
    ask("POST", f"/v1/sandboxes/{child}/pause?mode=resident", 202)
    ask("POST", back, 409, {"snapshotId": snap}, "SANDBOX::INVALID_STATE")
    ask("DELETE", f"/v1/snapshots/{snap}", 204)


def pools(seen, d):
    ask, cap = seen.ask, {"bufferMin": 0, "bufferMax": 0, "poolMin": 0, "poolMax": 0}
    pool = {"name": "p", "capacitySpec": cap, "template": {"spec": {"containers": [{"image": "tiny"}]}}}
    ask("GET", "/v1/pools", 200)
    for body in (b"{", {}, pool | {"name": "P"}, pool | {"template": {}}):
        ask("POST", "/v1/pools", 400, body)
    with d.unwritable("pools"):
        ask("POST", "/v1/pools", 500, pool, "SANDBOX::INTERNAL_ERROR")
    ask("POST", "/v1/pools", 201, pool)
    ask("POST", "/v1/pools", 409, pool, "KUBERNETES::POOL_ALREADY_EXISTS")
    ask("GET", "/v1/pools/p", 200)
    ask("PUT", "/v1/pools/p", 400, {})
    ask("PUT", "/v1/pools/p", 200, {"capacitySpec": cap})
    ask("POST", "/v1/sandboxes", 429, {"extensions": {"poolRef": "p"}}, "KUBERNETES::POOL_CAPACITY_EXHAUSTED")
    with d.unwritable("pools"):
        ask("PUT", "/v1/pools/p", 500, {"capacitySpec": cap}, "SANDBOX::INTERNAL_ERROR")
        ask("DELETE", "/v1/pools/p", 500, code="SANDBOX::INTERNAL_ERROR")
    ask("DELETE", "/v1/pools/p", 204)
    for method in ("GET", "PUT", "DELETE"):
        ask(method, "/v1/pools/p", 404, {} if method == "PUT" else None, "KUBERNETES::POOL_NOT_FOUND")
    ask("POST", "/v1/sandboxes", 404, {"extensions": {"poolRef": "p"}}, "KUBERNETES::POOL_NOT_FOUND")


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
    ask("POST", "/v1/templates", 409, TPL, "FSB::TEMPLATE_CONFLICT")
    assert built(d, tpl)["phase"] == "Succeeded"
    ask("GET", f"/v1/templates/{tpl}", 200)
    ask("GET", "/v1/templates", 200)
    ask("GET", f"/v1/mayfly/points/{tpl}", 200)
    ask("POST", f"/v1/mayfly/points/{tpl}/verify", 200)
    with d.unwritable("checkpoints"):
        ask("DELETE", f"/v1/templates/{tpl}", 500, code="FSB::API_ERROR")
    ask("DELETE", f"/v1/templates/{tpl}", 204)
    for method, path in (("GET", "/v1/mayfly/points/x"), ("POST", "/v1/mayfly/points/x/verify"), ("GET", "/v1/mayfly/templates/x"), ("DELETE", "/v1/mayfly/templates/x")):
        ask(method, path, 404)
    ask("GET", "/v1/mayfly/images", 200)
    ask("POST", "/v1/mayfly/images", 200, {"name": "tiny"})
    ask("POST", "/v1/mayfly/images", 400, {"name": "NOT A NAME"}, PARAM)
    ask("DELETE", "/v1/mayfly/images", 400, None, PARAM)
    ask("DELETE", "/v1/mayfly/images?name=no-such", 404, None, "MAYFLY::IMAGE_NOT_FOUND")
    ask("GET", "/v1/mayfly/quarantine", 200)
    ask("DELETE", f"/v1/mayfly/quarantine/sandboxes/{NOBODY}", 404, code="MAYFLY::NOT_QUARANTINED")
    ask("POST", "/v1/mayfly/templates", 400, b"[", PARAM)
    ask("POST", "/v1/mayfly/templates", 409, {"image": "tiny"}, "FSB::TEMPLATE_CONFLICT")


def automatic_templates(seen, d):
    ask, body = seen.ask, {"image": "tiny", "resourceLimits": {"memory": "256Mi"}}
    d.plan(boot="error")
    ask("POST", "/v1/mayfly/templates", 500, body, "FSB::TEMPLATE_FAILED")
    d.plan()
    t = ask("POST", "/v1/mayfly/templates", 201, body)[0]["id"]
    ask("GET", "/v1/mayfly/templates", 200)
    ask("GET", f"/v1/mayfly/templates/{t}", 200)
    ask("DELETE", f"/v1/mayfly/templates/{t}", 204)


def runs(seen, d):
    """The four statuses: test_runs_host.py."""
    body = {"run_id": "r", "task": "hello", "context": {"worker": {"image": "tiny", "resource_limits": {"memory": "256Mi"}}}}
    assert seen.ask("POST", "/v1/mayfly/runs", 200, body)[0]["status"] == "ok"
    assert seen.ask("POST", "/v1/mayfly/runs", 200, body | {"more": 1})[0]["status"] == "invalid_request"


def volumes(seen, d):
    """What is wrong with volumes, by the documented codes. Volumes that are right: test_volumes.py, in a real VM."""
    ask = seen.ask
    here = str(d.dir / "shared")
    pathlib.Path(here).mkdir()
    os.mkfifo(here + "/fifo")
    at = {"name": "v", "mountPath": "/m"}
    for code, v in (("INVALID_NAME", [{"name": "-"}]), ("DUPLICATE_NAME", [at | {"pvc": {"claimName": "c"}}] * 2), ("INVALID_BACKEND", [at]),
                    ("UNSUPPORTED_BACKEND", [at | {"ossfs": {"bucket": "b", "endpoint": "e"}}]), ("INVALID_MOUNT_PATH", [at | {"pvc": {"claimName": "c"}, "mountPath": "/"}]),
                    ("INVALID_SUB_PATH", [at | {"pvc": {"claimName": "c"}, "subPath": ".."}]), ("INVALID_PVC_NAME", [at | {"pvc": {"claimName": "_"}}]),
                    ("INVALID_HOST_PATH", [at | {"host": {"path": "x"}}]), ("INVALID_HOST_PATH", [at | {"host": {"path": here + "/fifo"}}]),
                    ("HOST_PATH_NOT_ALLOWED", [at | {"host": {"path": "/etc"}}]), ("PVC_NOT_FOUND", [at | {"pvc": {"claimName": "c", "createIfNotExists": False}}]),
                    ("HOST_PATH_NOT_FOUND", [at | {"host": {"path": here + "/none/such"}}])):
        answer, _ = d.ask("POST", "/v1/sandboxes", BOX | {"volumes": v})[1:]
        assert answer["code"] == "VOLUME::" + code, (v, answer)
        seen.add("POST", "/v1/sandboxes", 400, answer["code"])
    at = "/v1/mayfly/volumes"
    assert ask("GET", at, 200)[0]["items"] == []
    made = ask("POST", at, 201, {"name": "data"})[0]
    assert made["name"] == "data" and made["sandboxes"] == 0
    ask("POST", at, 409, {"name": "data"}, "VOLUME::PVC_EXISTS")
    ask("POST", at, 400, {"name": "a/b"}, "VOLUME::INVALID_PVC_NAME")
    assert ask("GET", at + "/data", 200)[0] == ask("GET", at, 200)[0]["items"][0] == made == ask("GET", f"{at}/{made['id']}", 200)[0]
    ask("DELETE", at + "/data", 204)
    ask("GET", at + "/data", 404, code="VOLUME::PVC_NOT_FOUND")
    ask("DELETE", at + "/data", 404, code="VOLUME::PVC_NOT_FOUND")
    # another of that name is another one
    assert ask("POST", at, 201, {"name": "data"})[0]["id"] != made["id"]


def execution(seen, d):
    """The scripted agent does no files: what it cannot do is the 500 that is documented for every call."""
    ask, at = seen.ask, f"/{d.create(env={'EXECD_ACCESS_TOKEN': 't'})}/44772"
    ask("GET", at + "/ping", 401)
    at = f"/{d.create()}/44772"
    for method, path, status, body, code in (
            ("POST", "/session", 400, b"[", "INVALID_REQUEST_BODY"), ("POST", "/session", 500, {"cwd": "/x"}, "RUNTIME_ERROR"), ("DELETE", "/code", 400, None, "MISSING_QUERY"),
            ("DELETE", "/code/contexts?language=python", 500, None, "RUNTIME_ERROR"), ("POST", "/code/context", 500, {"language": "python"}, "RUNTIME_ERROR"),
            ("POST", "/code/context", 400, {}, "INVALID_REQUEST_BODY"), ("POST", "/code/context", 400, b"[", "INVALID_REQUEST_BODY"), ("POST", "/pty", 500, {}, "RUNTIME_ERROR"), ("GET", "/stream", 426, None, "INVALID_REQUEST_BODY"), ("POST", "/pty", 400, b"[", "INVALID_REQUEST_BODY"), ("POST", "/directories", 400, b"[", "INVALID_REQUEST_BODY")):
        ask(method, at + path, status, body, code)
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        body = None if method == "GET" else b"{}"
        for path in ("", "/other"):
            ask(method, at.replace("44772", "18080") + "/credential-vault" + path, 501, body)
    for method, path in (("GET", "/pty/x"), ("DELETE", "/pty/x"), ("GET", "/pty/x/ws")):
        ask(method, at + path, 404, None, "CONTEXT_NOT_FOUND")
    for row in documented()[0]:
        method, path = re.sub(r"\{\w+\}", "x", row).split()
        body = None if method == "GET" else b"{}"
        if path.startswith("EGRESS/credential-vault"):
            ask(method, path.replace("EGRESS", at.replace("44772", "18080")), 501, body)
    calls = (("GET", "/files/info?path=/x", None), ("DELETE", "/files?path=/x", None), ("POST", "/files/permissions", {"/x": {"mode": 600}}), ("POST", "/files/mv", [{"src": "/a", "dest": "/b"}]),
             ("POST", "/files/replace", {"/x": {"old": "a", "new": "b"}}), ("GET", "/files/search?path=/", None), ("POST", "/files/upload", UPLOAD), ("GET", "/files/download?path=/x", None),
             ("POST", "/directories", {"/x": {}}), ("DELETE", "/directories?path=/x", None), ("GET", "/directories/list?path=/", None))
    for method, path, body in calls:
        head = FORM if body is UPLOAD else {}
        ask(method, at + path, 500, body, "RUNTIME_ERROR", **head)
        ask(method, at + "/v1/filesystem/1/1" + path, 500, body, "RUNTIME_ERROR", **head)
        ask(method, at + "/v1/filesystem/1/4294967296" + path, 400, body, "INVALID_REQUEST_BODY", **head)
    isolated(ask, at + "/v1/isolated", calls)
    broken_agent(seen, d, at, calls)


def isolated(ask, at, calls):
    """The scripted agent is one of before isolated sessions."""
    answer, _ = ask("GET", at + "/capabilities", 200)
    assert answer["available"] is False and "older" in answer["message"], answer
    body, one = {"workspace": {"path": "/workspace"}}, f"/session/{NOBODY}"
    ask("GET", at + "/sessions", 503, code="SERVICE_UNAVAILABLE")
    ask("POST", at + "/session", 503, body, "SERVICE_UNAVAILABLE")
    for wrong in ({}, b"[", {"workspace": {"path": "a"}}):
        ask("POST", at + "/session", 400, wrong, "INVALID_REQUEST_BODY")
    rows = (("GET", "", None), ("DELETE", "", None), ("GET", f"/runs/{NOBODY}", None), ("GET", f"/runs/{NOBODY}/logs", None), ("GET", "/diff", None), ("POST", "/commit", {}),
            ("POST", "/run", {"code": "true", "background": True}))
    for method, path, data in rows:
        ask(method, at + one + path, 503, data, "SERVICE_UNAVAILABLE")
        ask(method, at + "/session/x" + path, 404, data, "SESSION_NOT_FOUND")
    ask("POST", at + one + "/run", 400, {}, "INVALID_REQUEST_BODY")
    ask("POST", at + one + "/commit", 400, b"[", "INVALID_REQUEST_BODY")
    ask("GET", at + one + f"/runs/{NOBODY}/logs?cursor=-1", 400, code="INVALID_REQUEST_BODY")
    for method, path, data in calls:
        head = FORM if data is UPLOAD else {}
        ask(method, at + one + path, 500, data, "RUNTIME_ERROR", **head)
        ask(method, at + "/session/x" + path, 404, data, "SESSION_NOT_FOUND", **head)
        if isinstance(data, (dict, list)):
            ask(method, at + one + path, 400, b"1", "INVALID_REQUEST_BODY")
    for method, path, data, code in (("GET", "/directories/list?path=/&depth=0", None, "INVALID_REQUEST_BODY"), ("GET", "/files/download", None, "MISSING_QUERY"), ("GET", "/files/search", None, "MISSING_QUERY"),
                                     ("POST", "/files/upload", b"x", "INVALID_FILE")):
        ask(method, at + one + path, 400, data, code)


def broken_agent(seen, d, at, calls):
    ask = seen.ask
    calls += tuple((m, f"/v1/isolated/session/{NOBODY}{path}", body) for m, path, body in calls)
    calls += (("POST", "/command", {"command": "true"}), ("POST", "/command", {"command": "true", "background": True}), ("DELETE", "/command?id=x", None), ("GET", "/command/status/x", None),
              ("GET", "/command/x/logs", None), ("POST", "/session", {}), ("POST", "/session/x/run", {"command": "true"}), ("DELETE", "/session/x", None), ("GET", "/metrics", None), ("GET", "/metrics/watch", None))
    for how, status, code in (("error", 500, "RUNTIME_ERROR"), ("close", 503, "SERVICE_UNAVAILABLE")):
        d.plan(agent=how)
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:  # a command tries five seconds to find its agent again
            for w in [pool.submit(ask, m, at + path, status, body, code, **(FORM if body is UPLOAD else {})) for m, path, body in calls]:
                w.result()
    # an agent that never answers, and one whose machine dies meanwhile
    d.plan(agent="silent")
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        first = pool.submit(ask, "GET", at + "/metrics", 503, None, "SERVICE_UNAVAILABLE")
        waits = [pool.submit(ask, m, at + path, 503, body, "SERVICE_UNAVAILABLE", **(FORM if body is UPLOAD else {})) for m, path, body in calls if "metrics" not in path]
        assert "in time" in first.result()[0]["message"]
        for pid in d.monitors():
            os.kill(pid, signal.SIGKILL)
        for w in waits:
            w.result()
    d.plan()


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
            for rest in ("", "/a"):
                seen.ask(method, f"/{sb}/{port}{rest}", 200, body)
            seen.ask(method, f"/{sb}/{none}/a", 502, body, "BACKEND_CONNECTION_FAILED")
            for rest in ("", "/a"):
                seen.ask(method, f"/{sb}/44772/proxy/{port}{rest}", 200, body)
                seen.ask(method, f"/{sb}/44772/proxy/{none}{rest}", 502, body, "BACKEND_CONNECTION_FAILED")
                seen.ask(method, f"/{sb}/44772/proxy/65536{rest}", 400, body, "INVALID_REQUEST_BODY")
        # a server that takes the request and says nothing, by every method at once
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            waits = [pool.submit(seen.ask, m, f"/{sb}/{quiet}/a", 504, None if m == "GET" else b"x", "BACKEND_TIMEOUT") for m in ("GET", "POST", "PUT", "DELETE", "PATCH")]
            began = time.monotonic()
            assert seen.daemon.ask("GET", "/health")[0] == 200 and time.monotonic() - began < 30
            for w in waits:
                w.result()
        d.plan(dial="timeout")
        seen.ask("GET", f"/v1/sandboxes/{sb}/proxy/{port}/a", 504, code="BACKEND_TIMEOUT")
        d.plan()
    finally:
        ok.close()
        silent.close()


def ending(seen, d):
    """The daemon was told to end: what it began it ends, and it begins nothing."""
    body = json.dumps(BOX).encode()
    with socket.create_connection(("127.0.0.1", d.port)) as c:
        c.sendall(b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nOPEN-SANDBOX-API-KEY: k\r\nContent-Length: %d\r\n\r\n" % len(body))
        d.ask("GET", "/health")
        d.proc.send_signal(signal.SIGTERM)
        end = time.monotonic() + WAIT_S
        while "ending; sandboxes go on" not in d.log():
            assert time.monotonic() < end
            time.sleep(0.01)
        c.sendall(body)
        r = http.client.HTTPResponse(c)
        r.begin()
        answer = json.loads(r.read())
        assert r.status == 503 and int(r.headers["Retry-After"]) > 0 and r.headers["X-Request-ID"], (r.status, answer)
        seen.add("POST", "/v1/sandboxes", r.status, answer["code"])
    assert d.proc.wait(WAIT_S) == 0


@pytest.fixture(scope="module")
def doc_and_seen(tmp_path_factory):
    d = HostDaemon(tmp_path_factory.mktemp("protocol"))
    tables = {"runtime": {"templates": False, "template_max": 2, "resume_timeout_seconds": 3, "create_timeout_seconds": 5}, "limits": {"memory_mib": 8192}, "server.api_keys": {"a": "k"},
              "storage": {"allowed_host_paths": [str(d.dir / "shared")]}}
    d.headers = {"OPEN-SANDBOX-API-KEY": "k"}
    try:
        d.start(tables, backend_timeout_seconds=2)
        doc = d.ask("GET", "/openapi.json")[1]
        seen = Seen(d, documented()[0])
        for path in ("/health", "/version", "/docs", "/redoc"):
            seen.ask("GET", path, 200)
        golden(seen)
        without_a_key(seen, doc)
        for part in (pools, lifecycle, snapshots, forks, templates, volumes, execution, proxying, ending):
            part(seen, d)
        tables["runtime"] |= {"templates": True, "template_max": 64}
        d.start(tables)
        automatic_templates(seen, d)
        runs(seen, d)
        yield doc, seen
    finally:
        d.clean()


def test_errors_are_what_was_kept(doc_and_seen):
    """One exchange of each error of each route, from where errors can be made at will; RECORD=1 writes them anew. Those of a real VM: test_wire.py."""
    _, seen = doc_and_seen
    rows = [k for k in sorted(seen.errors, key=lambda k: (k[0].split()[1], k)) if k[1] != 401]  # that one is the same everywhere: golden/server.txt
    text, f = "\n".join(f"## {row}\n" + seen.errors[row, status, code] for row, status, code in rows), GOLDEN / "host" / "errors.txt"
    if os.environ.get("RECORD"):
        f.parent.mkdir(exist_ok=True)
        f.write_text(text)
    diff = list(difflib.unified_diff(f.read_text().split("\n"), text.split("\n"), "kept", "now", lineterm="", n=4))
    assert not diff, "golden/host/errors.txt (RECORD=1 records anew):\n" + "\n".join(diff[:80])


def never():
    """{(row, status): reason} of what cannot be met."""
    return {(row, int(s)): why for statuses, pattern, why in NEVER for row, ss in documented()[0].items() if re.fullmatch(pattern, row) for s in statuses.split() if int(s) in ss}


def test_every_route_that_is_served_is_in_the_list_and_the_other_way_round(doc_and_seen):
    doc, seen = doc_and_seen
    served = {erased(f"{m.upper()} {short(p)}") for p, ops in doc["paths"].items() for m in ops}
    rows = {erased(row) for row in documented()[0]}
    assert not served - rows, served - rows
    # a row of the documents may be one of many that a route with {rest} serves
    wide = [re.compile(re.sub(r"\\\{rest\\\}", ".*", re.escape(r))) for r in served if "{rest}" in r]
    assert not [r for r in rows - served if not any(w.fullmatch(r + "/" if r.endswith("PROXY") else r) for w in wide)]


def test_every_documented_answer_has_been_seen_or_cannot_be_met(doc_and_seen):
    _, seen = doc_and_seen
    wanted, cannot = {(row, s) for row, statuses in documented()[0].items() for s in statuses}, never()
    missing = sorted(wanted - seen.answers - set(cannot))
    assert not missing, "never seen:\n" + "\n".join(map(str, missing))
    met = sorted(set(cannot) & seen.answers)
    assert not met, "said to be impossible, and seen:\n" + "\n".join(f"{x}: {cannot[x]}" for x in met)
    assert {why for _, _, why in NEVER} == set(cannot.values()), "a reason for nothing"


def test_every_answer_that_was_seen_is_documented(doc_and_seen):
    _, seen = doc_and_seen
    rows = documented()[0]
    odd = sorted((row, s) for row, s in seen.answers if s not in rows[row] and not any(re.match(p, row) and s in statuses for p, statuses in ANYWHERE))
    assert not odd, odd
    # the SDKs read code and message of every status that is declared; what has none is in another form by the protocol: text, {"detail"}, {"error"}
    assert not [(row, s) for row, s in seen.codeless if not (row.split()[1].startswith("EGRESS/") or s in (405, 422) or (row, s) == ("GET EXECD/ping", 401))], seen.codeless


def test_every_documented_code_has_been_seen_or_cannot_be_met(doc_and_seen):
    _, seen = doc_and_seen
    codes = documented()[1]
    cannot = {c: why for pattern, why in NEVER_CODES for c in codes if re.fullmatch(pattern, c)}
    assert not codes - seen.codes - set(cannot), codes - seen.codes - set(cannot)
    assert not set(cannot) & seen.codes, {c: cannot[c] for c in set(cannot) & seen.codes}
    assert {why for _, why in NEVER_CODES} == set(cannot.values()), "a reason for nothing"
    assert not seen.codes - codes - OUR_CODES, seen.codes - codes - OUR_CODES
