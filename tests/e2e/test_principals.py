# SPDX-License-Identifier: Apache-2.0
"""Who asks: keys with namespaces and roles, what each sees, and what a daemon without a key refuses. The daemon runs on this host with scripted
monitors."""
import contextlib
import hashlib
import http.client
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid

import pytest

from conftest import MAYFLY
from hostdaemon import BOX, PROGRAM, WAIT_S, HostDaemon, stop
from imagekit import small_layout
from registrykit import WHO, Registry, Serving, fetched_by

KEYS = {"server.keys.a": {"key": "key-a"}, "server.keys.a2": {"key": "key-a2", "namespace": "a"}, "server.keys.b": {"key": "key-b"},
        "server.keys.node": {"key": "key-node", "role": "peer"}, "runtime": {"templates": False}}


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


def by(key):
    return {"OPEN-SANDBOX-API-KEY": key}


@pytest.fixture
def tenants(daemon):
    return daemon.start(KEYS, api_key="root")


def create(daemon, key, **more):
    status, box, _ = daemon.ask("POST", "/v1/sandboxes", BOX | more, by(key))
    assert status == 202, box
    return box["id"]


def ids(daemon, key, what="sandboxes"):
    status, got, _ = daemon.ask("GET", f"/v1/{what}?pageSize=200", headers=by(key))
    assert status == 200, got
    return {i["id"] for i in got["items"]}, got["pagination"]["totalItems"]


def test_each_sees_its_namespace_and_the_operator_all(tenants):
    a, b = create(tenants, "key-a"), create(tenants, "key-b")
    assert ids(tenants, "key-a") == ids(tenants, "key-a2") == ({a}, 1)
    assert ids(tenants, "key-b") == ({b}, 1)
    assert ids(tenants, "root") == ({a, b}, 2)
    # the records know it: the next daemon does
    tenants.end()
    tenants.again()
    assert ids(tenants, "key-a") == ({a}, 1) and ids(tenants, "root")[1] == 2


def test_every_lifecycle_request_asks_whose_it_is(tenants):
    a = create(tenants, "key-a")
    tenants.headers = by("root")
    tenants.until(a, "Running")
    tenants.headers = {}
    asked = [("GET", "", None), ("DELETE", "", None), ("PATCH", "/metadata", {"x": "y"}), ("POST", "/pause", None), ("POST", "/resume", None),
             ("POST", "/renew-expiration", {"expiresAt": "2100-01-01T00:00:00Z"}), ("GET", "/endpoints/80", None), ("POST", "/snapshots", {}),
             ("GET", "/networkpolicy", None), ("GET", "/diagnostics/logs", None), ("GET", "/diagnostics/events", None),
             ("GET", "/diagnostics/inspect", None), ("GET", "/diagnostics/summary", None), ("GET", "/diagnostics/context", None)]
    for method, tail, body in asked:
        for prefix in ("", "/v1"):
            status, e, _ = tenants.ask(method, f"{prefix}/sandboxes/{a}{tail}", body, by("key-b"))
            assert (status, e["code"]) == (404, "DOCKER::SANDBOX_NOT_FOUND"), (method, tail, status)
    assert ids(tenants, "key-a") == ({a}, 1)
    assert "owner: a/a\n" in tenants.ask("GET", f"/v1/sandboxes/{a}/diagnostics/inspect", headers=by("key-a2"))[1]


def test_snapshots_and_templates_have_owners_too(tenants):
    a = create(tenants, "key-a")
    tenants.headers = by("root")
    tenants.until(a, "Running")
    tenants.headers = {}
    status, snap, _ = tenants.ask("POST", f"/v1/sandboxes/{a}/snapshots", {}, by("root"))
    assert status == 202, snap
    # it belongs to the sandbox's namespace, whoever took it
    assert ids(tenants, "key-a", "snapshots") == ({snap["id"]}, 1) and ids(tenants, "key-b", "snapshots") == (set(), 0)
    status, tpl, _ = tenants.ask("POST", "/v1/templates", {"image": "tiny", "publish": "t"}, by("key-a"))
    assert status == 201, tpl
    end = time.monotonic() + WAIT_S
    while (tenants.ask("GET", f"/v1/snapshots/{snap['id']}", headers=by("key-a"))[1]["status"]["state"] != "Ready" or
           tenants.ask("GET", f"/v1/templates/{tpl['templateId']}", headers=by("key-a"))[1]["status"]["phase"] != "Succeeded"):
        assert time.monotonic() < end, tenants.log()
        time.sleep(0.05)
    # the records know it: the next daemon does
    tenants.end()
    tenants.again()
    assert tenants.ask("GET", f"/v1/mayfly/points/{snap['id']}", headers=by("root"))[0] == 200
    for path in (f"/v1/snapshots/{snap['id']}", f"/v1/templates/{tpl['templateId']}", f"/v1/mayfly/points/{snap['id']}"):
        assert tenants.ask("GET", path, headers=by("key-b"))[0] == 404, path
    assert ids(tenants, "key-a", "snapshots") == ({snap["id"]}, 1) and ids(tenants, "key-b", "snapshots") == (set(), 0)
    for path in (f"/v1/snapshots/{snap['id']}", f"/v1/templates/{tpl['templateId']}"):
        assert tenants.ask("DELETE", path, headers=by("key-b"))[0] == 404, path
        assert tenants.ask("GET", path, headers=by("key-a2"))[0] == 200, path
    assert [t["templateId"] for t in tenants.ask("GET", "/v1/templates", headers=by("key-b"))[1]["items"]] == []
    # nor is a sandbox made from somebody else's
    made = {"snapshotId": snap["id"], "resourceLimits": BOX["resourceLimits"]}
    status, e, _ = tenants.ask("POST", "/v1/sandboxes", made, by("key-b"))
    assert (status, e["code"]) == (404, "SNAPSHOT::NOT_FOUND"), e
    status, e, _ = tenants.ask("POST", "/v1/sandboxes", {"templateId": tpl["templateId"], "timeout": 60}, by("key-b"))
    assert (status, e["code"]) == (404, "FSB::TEMPLATE_NOT_FOUND") and "not found" in e["message"], e
    for made in (made, {"templateId": tpl["templateId"], "timeout": 60}):
        assert tenants.ask("POST", "/v1/sandboxes", made, by("key-a2"))[0] == 202


def test_every_change_is_in_the_log_with_its_principal(tenants):
    """Also one that was refused. Who only looks is not in it."""
    a = create(tenants, "key-a2")
    assert tenants.ask("PATCH", f"/v1/sandboxes/{a}/metadata", {"x": "y"}, by("key-b") | {"X-Request-ID": "from-b"})[0] == 404
    assert tenants.ask("GET", f"/v1/sandboxes/{a}", headers=by("key-a") | {"X-Request-ID": "looks"})[0] == 200
    assert tenants.ask("DELETE", f"/v1/sandboxes/{a}", headers={"Authorization": "Bearer root", "X-Request-ID": "last"})[0] == 204

    def said():
        lines = [line.split(" info ", 1)[1].strip() for line in tenants.log_path.read_text().splitlines() if " info " in line and ", request " in line]
        return [line.removeprefix("mayflyd: ").rsplit(", request ", 1) for line in lines]
    end = time.monotonic() + WAIT_S
    while len(said()) < 3:  # a line follows its answer
        assert time.monotonic() < end, said()
        time.sleep(0.02)
    want = {f"PATCH /v1/sandboxes/{a}/metadata: 404, by b/b": "from-b", f"DELETE /v1/sandboxes/{a}: 204, by operator/operator": "last"}
    got = dict(said())
    assert got.pop("POST /v1/sandboxes: 202, by a/a2", None) and got == want, said()


def test_what_is_the_hosts_is_the_operators(tenants):
    for path in ("/metrics", "/v1/mayfly/templates"):
        assert tenants.ask("GET", path, headers=by("root"))[0] == 200
        status, e, _ = tenants.ask("GET", path, headers=by("key-a"))
        assert (status, e["code"]) == (403, "FORBIDDEN")


def test_with_tenants_the_server_proxy_asks_for_the_key(tenants):
    a = create(tenants, "key-a")
    tenants.headers = by("root")
    tenants.until(a, "Running")
    tenants.headers = {}
    proxy = f"/v1/sandboxes/{a}/proxy/44772/ping"
    assert tenants.ask("GET", proxy)[0] == 401
    assert tenants.ask("GET", proxy, headers=by("key-b"))[0] == 404
    assert tenants.ask("GET", proxy, headers=by("key-a"))[0] == 200
    # whoever knows the id: the way that endpoints answer with
    assert tenants.ask("GET", f"/{a}/44772/ping")[0] == 200


def test_bearer_is_an_alias_on_lifecycle_routes_only(tenants):
    a = create(tenants, "key-a")
    assert tenants.ask("GET", f"/v1/sandboxes/{a}", headers={"Authorization": "Bearer key-a"})[0] == 200
    assert tenants.ask("GET", f"/v1/sandboxes/{a}", headers={"Authorization": "Bearer key-b"})[0] == 404
    status, e, _ = tenants.ask("GET", "/v1/sandboxes", headers={"Authorization": "Bearer no"})
    assert (status, e["code"]) == (401, "INVALID_API_KEY")
    assert tenants.ask("GET", "/v1/sandboxes", headers={"Authorization": "Basic key-a"})[1]["code"] == "MISSING_API_KEY"
    assert tenants.ask("GET", f"/v1/sandboxes/{a}/proxy/44772/ping", headers={"Authorization": "Bearer key-a"})[0] == 401


def test_a_peer_chooses_ids_and_nobody_else(tenants):
    want = str(uuid.uuid4())
    more = {"extensions": {"mayfly.id": want}}
    for key in ("key-a", "root"):
        status, e, _ = tenants.ask("POST", "/v1/sandboxes", BOX | more, by(key))
        assert (status, e["code"]) == (403, "FORBIDDEN")
    assert create(tenants, "key-node", **more) == want
    assert create(tenants, "key-node", **more) == want, "the same create again"
    assert ids(tenants, "key-node") == ({want}, 1)
    theirs = create(tenants, "key-a")
    status, e, _ = tenants.ask("POST", "/v1/sandboxes", BOX | {"extensions": {"mayfly.id": theirs}}, by("key-node"))
    assert (status, e["code"]) == (409, "SANDBOX::ID_TAKEN")
    assert tenants.ask("POST", "/v1/sandboxes", BOX | {"extensions": {"mayfly.id": "../x"}}, by("key-node"))[0] == 400


def test_the_id_that_a_peer_chose_is_not_given_twice(tenants):
    """A peer's create and delete whose answers were lost: both are sent again, in any order, and meet no other sandbox."""
    want = str(uuid.uuid4())
    box = BOX | {"extensions": {"mayfly.id": want}}
    send = lambda method: tenants.ask(method, "/v1/sandboxes" + (f"/{want}" if method == "DELETE" else ""),  # noqa: E731
                                      box if method == "POST" else None, by("key-node"))
    assert send("POST")[0] == 202 and send("DELETE")[0] == 204
    for _ in range(2):
        status, e, _ = send("POST")
        assert (status, e["code"]) == (409, "SANDBOX::ID_TAKEN"), e
        assert send("DELETE")[0] == 404
        tenants.end()
        tenants.again()
    # ids of ours are never the same; and one whose create failed may be tried again
    want = str(uuid.uuid4())
    box = BOX | {"image": {"uri": "no/such/"}, "extensions": {"mayfly.id": want}}
    assert send("POST")[0] == 400
    box = BOX | {"extensions": {"mayfly.id": want}}
    assert send("POST")[0] == 202


def test_an_idempotency_key_is_its_principals(tenants):
    once = {"Idempotency-Key": "k"}
    box = lambda key: tenants.ask("POST", "/v1/sandboxes", BOX, by(key) | once)[1]["id"]  # noqa: E731
    assert box("key-a") == box("key-a") != box("key-b") != box("key-a2")


def test_records_of_older_builds_are_the_operators(daemon):
    import contextlib
    import sqlite3
    daemon.start({"runtime": {"templates": False}})
    old = daemon.create()
    daemon.end()
    with contextlib.closing(sqlite3.connect(daemon.dir / "state" / "state.db", isolation_level=None)) as db:
        (table,) = [t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'") if "sandbox" in t]
        (doc,) = db.execute(f"SELECT doc FROM {table} WHERE id = ?", (old,)).fetchone()
        doc = json.loads(doc)
        assert doc.pop("owner") == "operator/operator"
        db.execute(f"UPDATE {table} SET doc = ? WHERE id = ?", (json.dumps(doc), old))
    daemon.start(KEYS, api_key="root")
    assert ids(daemon, "root") == ({old}, 1) and ids(daemon, "key-a") == (set(), 0)


def test_cookies_pass_for_programs_that_show_a_key(tenants):
    """A browser's cookies of the daemon's origin are no application's; those of a program with a key, as `mayfly port-forward`, are its own."""
    class Web(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Set-Cookie", "theirs=1")
            self.send_header("Content-Length", "0")
            self.send_header("X-Saw", f"{self.headers.get('Cookie')} {self.headers.get('OPEN-SANDBOX-API-KEY')}")
            self.end_headers()

        def log_message(self, *a):
            pass

    a = create(tenants, "key-a")
    tenants.headers = by("root")
    tenants.until(a, "Running")
    tenants.headers = {}
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    cookie = {"Cookie": "mine=1"}
    head = tenants.ask("GET", f"/{a}/{web.server_port}/", headers=cookie)[2]
    assert head["X-Saw"] == "None None" and not head["Set-Cookie"]
    head = tenants.ask("GET", f"/{a}/{web.server_port}/", headers=cookie | by("wrong"))[2]
    assert head["X-Saw"] == "None None" and not head["Set-Cookie"]
    head = tenants.ask("GET", f"/{a}/{web.server_port}/", headers=cookie | by("key-a"))[2]
    assert head["X-Saw"] == "mine=1 None" and head["Set-Cookie"] == "theirs=1"
    p = subprocess.Popen([MAYFLY, "port-forward", a, f"0:{web.server_port}"], stdout=subprocess.PIPE, text=True,
                         env=os.environ | {"OPEN_SANDBOX_DOMAIN": f"127.0.0.1:{tenants.port}", "OPEN_SANDBOX_API_KEY": "key-a"})
    local_port = int(p.stdout.readline().split(" ->")[0].rsplit(":", 1)[1])
    c = http.client.HTTPConnection("127.0.0.1", local_port, timeout=30)
    c.request("GET", "/", headers=cookie)
    r = c.getresponse()
    assert r.headers["X-Saw"] == "mine=1 None" and r.headers["Set-Cookie"] == "theirs=1"
    p.kill()
    p.wait()
    web.shutdown()


# ---- what each makes the server hold

def test_records_have_a_budget_for_each_key(daemon):
    """One key's records fill its share: it is told so, others are served, and it can still look and delete."""
    daemon.start(KEYS | {"limits": {"budget_key_mib": 4}}, api_key="root")
    big = BOX | {"env": {f"K{i}": "x" * 2000 for i in range(60)}}
    made = []
    while len(made) < 40:
        status, box, _ = daemon.ask("POST", "/v1/sandboxes", big, by("key-a"))
        if status != 202:
            break
        made.append(box["id"])
    assert status == 429 and "records" in box["message"] and 5 <= len(made) < 20, (status, box, len(made))
    assert ids(daemon, "key-a") == (set(made), len(made)), "nothing is left of the refused one"
    # metadata counts, too; less of it is always taken
    status, e, _ = daemon.ask("PATCH", f"/v1/sandboxes/{made[0]}/metadata", {f"k{i}": "v" * 60 for i in range(100)}, by("key-a"))
    assert status in (200, 429), e
    if status == 200:
        assert daemon.ask("PATCH", f"/v1/sandboxes/{made[0]}/metadata", {f"k{i}": None for i in range(100)}, by("key-a"))[0] == 200
    for key in ("key-b", "key-a2", "root"):
        assert daemon.ask("POST", "/v1/sandboxes", big, by(key))[0] == 202, key
    assert daemon.ask("DELETE", f"/v1/sandboxes/{made[0]}", headers=by("key-a"))[0] == 204
    assert daemon.ask("POST", "/v1/sandboxes", big, by("key-a"))[0] == 202
    # the next daemon counts what it finds, and loses nothing of it
    seen = ids(daemon, "key-a")
    daemon.end()
    daemon.again()
    assert ids(daemon, "key-a") == seen
    assert daemon.ask("POST", "/v1/sandboxes", big, by("key-a"))[0] == 429
    # more is given by a configuration that is read again
    daemon.config(KEYS | {"limits": {"budget_key_mib": 16}}, api_key="root", port=0)
    daemon.proc.send_signal(signal.SIGHUP)
    end = time.monotonic() + 60
    while daemon.ask("POST", "/v1/sandboxes", big, by("key-a"))[0] != 202:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_snapshots_and_templates_count_as_records(daemon):
    """The record of a snapshot has its source's environment, that of a template its own: both fill the share of their key, also after a restart."""
    daemon.start(KEYS | {"limits": {"budget_key_mib": 4}}, api_key="root")
    env = {f"K{i}": "x" * 2000 for i in range(60)}
    box = daemon.ask("POST", "/v1/sandboxes", BOX | {"env": env}, by("key-a"))[1]["id"]
    tpl = {"image": "tiny", "publish": "t", "env": env}
    status, t, _ = daemon.ask("POST", "/v1/templates", tpl, by("key-a"))
    assert status == 201, t
    snaps, end = [], time.monotonic() + WAIT_S
    # the sandbox that it is made in counts, too, and makes room when it is gone
    while daemon.ask("GET", f"/v1/templates/{t['templateId']}", headers=by("key-a"))[1]["status"]["phase"] != "Succeeded":
        assert time.monotonic() < end, daemon.log()
        time.sleep(0.02)
    daemon.settled(1)
    full = 0
    while len(snaps) < 40 and full < 5:
        status, s, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/snapshots", {}, by("key-a"))
        assert status in (202, 409, 429), s  # 409: the one before is still written
        snaps += [s["id"]] if status == 202 else []
        full = full + 1 if status == 429 else 0
        time.sleep(0.1 if full else 0.02)
        assert time.monotonic() < end
    assert status == 429 and "records" in s["message"] and 2 <= len(snaps) < 20, (status, s, len(snaps))
    status, e, _ = daemon.ask("POST", "/v1/templates", tpl, by("key-a"))
    assert status == 429 and "records" in e["message"], e
    assert ids(daemon, "key-a", "snapshots") == (set(snaps), len(snaps)), "nothing is left of the refused one"
    status, theirs, _ = daemon.ask("POST", "/v1/templates", tpl, by("key-b"))
    assert status == 201, theirs
    for _ in range(2):
        assert daemon.ask("POST", "/v1/templates", tpl, by("key-a"))[0] == 429
        daemon.end()
        daemon.again()
    while daemon.ask("GET", f"/v1/snapshots/{snaps[0]}", headers=by("key-a"))[1]["status"]["state"] == "Creating":
        time.sleep(0.02)
        assert time.monotonic() < end
    for snap in snaps[:2]:
        assert daemon.ask("DELETE", f"/v1/snapshots/{snap}", headers=by("key-a"))[0] == 204
    assert daemon.ask("POST", "/v1/templates", tpl, by("key-a"))[0] == 201


def test_answers_that_nobody_takes_are_their_principals(daemon):
    """Key a asks for long lists and reads nothing: its answers become 429, key b's do not."""
    daemon.start(KEYS | {"limits": {"budget_key_mib": 8}}, api_key="root")
    # listed in full: the words of the entrypoint
    for _ in range(8):
        assert daemon.ask("POST", "/v1/sandboxes", BOX | {"entrypoint": ["x" * 120000]}, by("key-a"))[0] == 202
    create(daemon, "key-b")
    held = []
    for _ in range(40):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", daemon.port))
        s.sendall(b"GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nOPEN-SANDBOX-API-KEY: key-a\r\n\r\n")
        held.append(s)
    end = time.monotonic() + 60
    while (status := daemon.ask("GET", "/v1/sandboxes", headers=by("key-a"))[0]) != 429:
        assert time.monotonic() < end, status
        time.sleep(0.05)
    assert ids(daemon, "key-b")[1] == 1
    for s in held:
        s.close()
    end = time.monotonic() + 60
    while daemon.ask("GET", "/v1/sandboxes", headers=by("key-a"))[0] != 200:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_ended_sandboxes_are_bounded_for_each_key(daemon):
    daemon.start(KEYS | {"limits": {"max_ended": 2}}, api_key="root")
    daemon.headers = by("root")

    def ended(key):
        box = create(daemon, key)
        daemon.until(box, "Running")
        (vm,) = [p for p in daemon.monitors() if p not in gone]
        gone.append(vm)
        os.kill(vm, signal.SIGKILL)
        daemon.until(box, "Failed")
        return box
    gone = []
    theirs = ended("key-b")
    ours = [ended("key-a") for _ in range(4)]
    end = time.monotonic() + 60
    while ids(daemon, "key-a") != (set(ours[2:]), 2):
        assert time.monotonic() < end, ids(daemon, "key-a")
        time.sleep(0.05)
    assert ids(daemon, "key-b") == ({theirs}, 1), "another's records are older, and stay"


# ---- pages by cursor

def walk(daemon, path, key="root", **during):
    """[ids of each page]"""
    pages, cursor = [], ""
    while cursor is not None:
        status, got, _ = daemon.ask("GET", f"{path}{'&' if '?' in path else '?'}cursor={cursor}", headers=by(key))
        assert status == 200, got
        p = got["pagination"]
        assert p["hasNextPage"] == ("nextCursor" in p) and "page" not in p and "totalItems" not in p
        pages.append([i.get("id") or i["templateId"] for i in got["items"]])
        cursor = p.get("nextCursor")
        if f := during.pop("then", None):
            f(pages)
    return pages


def test_lists_page_by_cursor(tenants):
    made = [create(tenants, key) for key in ("key-a", "key-b") * 4][::-1]
    assert walk(tenants, "/v1/sandboxes?pageSize=3") == [made[:3], made[3:6], made[6:]]
    assert walk(tenants, "/v1/sandboxes?pageSize=8") == [made]
    assert walk(tenants, "/v1/sandboxes?pageSize=2", "key-b") == [made[:4:2], made[4::2]]
    assert walk(tenants, "/v1/sandboxes?pageSize=2&metadata=x%3Dy") == [[]]

    def changes(pages):
        # what comes first is new, what was seen last is gone: nothing is missed, nothing comes twice
        create(tenants, "key-a")
        assert tenants.ask("DELETE", f"/v1/sandboxes/{pages[0][-1]}", headers=by("root"))[0] == 204
        assert tenants.ask("DELETE", f"/v1/sandboxes/{made[4]}", headers=by("root"))[0] == 204
    assert walk(tenants, "/v1/sandboxes?pageSize=3", then=changes) == [made[:3], [made[3], *made[5:7]], made[7:]]
    # the next daemon goes on where this one was
    cursor = tenants.ask("GET", "/v1/sandboxes?pageSize=2&cursor=", headers=by("root"))[1]["pagination"]["nextCursor"]
    rest = lambda: [i["id"] for i in tenants.ask("GET", f"/v1/sandboxes?cursor={cursor}", headers=by("root"))[1]["items"]]  # noqa: E731
    before = rest()
    tenants.end()
    tenants.again()
    assert rest() == before and len(before) == 5
    for bad in ("x", "1", "1.", ".a", "1.A", "1./", "9" * 30 + ".a", "1." + "a" * 64, "&page=1"):
        status, e, _ = tenants.ask("GET", f"/v1/sandboxes?cursor={bad}", headers=by("root"))
        assert (status, e["code"]) == (400, "SANDBOX::INVALID_PARAMETER"), bad


def test_snapshots_and_templates_page_by_cursor(tenants):
    a = create(tenants, "key-a")
    tenants.headers = by("root")
    tenants.until(a, "Running")
    made = []
    for _ in range(3):
        status, snap, _ = tenants.ask("POST", f"/v1/sandboxes/{a}/snapshots", {})
        assert status == 202
        end = time.monotonic() + 60
        while tenants.ask("GET", f"/v1/snapshots/{snap['id']}")[1]["status"]["state"] != "Ready":
            assert time.monotonic() < end
            time.sleep(0.02)
        made.insert(0, snap["id"])
    assert walk(tenants, "/v1/snapshots?pageSize=2") == [made[:2], made[2:]]
    made = []
    for _ in range(3):
        status, t, _ = tenants.ask("POST", "/v1/templates", {"image": "tiny", "publish": "t"})
        assert status == 201
        made.insert(0, t["templateId"])
    assert walk(tenants, "/v1/templates?pageSize=1") == [[m] for m in made]


# ---- without a key

def test_without_a_key_no_web_page_drives_it(daemon):
    daemon.start({"runtime": {"templates": False}})
    asked = lambda **h: daemon.ask("POST", "/v1/sandboxes", BOX, {k.replace("_", "-"): v for k, v in h.items()})[:2]  # noqa: E731
    # a name that its owner points at 127.0.0.1, on any way in
    for path in ("/v1/sandboxes", "/health", f"/{uuid.uuid4()}/80/", f"/v1/sandboxes/{uuid.uuid4()}/proxy/80/"):
        for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "127.evil.example", "localhost.evil.example", "10.0.0.1", ""):
            status, e, _ = daemon.ask("GET", path, headers={"Host": host})
            assert status in (400, 403) and (status == 400 or e["code"] == "FORBIDDEN_HOST"), (path, host, e)
    for host in ("localhost", f"localhost:{daemon.port}", "127.0.0.1", "127.1.2.3:1", "[::1]:80", "a.localhost"):
        assert daemon.ask("GET", "/v1/sandboxes", headers={"Host": host})[0] == 200, host
    # any page, of sandboxes, too, whose pages have this server's own origin
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{daemon.port}", "http://localhost:3000"):
        status, e = asked(Origin=origin)
        assert (status, e["code"]) == (403, "FORBIDDEN_ORIGIN"), origin
    assert daemon.ask("GET", "/health", headers={"Origin": "http://evil.example"})[0] == 200
    assert asked()[0] == 202


def test_a_name_of_the_configuration_is_no_foreign_one(daemon):
    daemon.start({"runtime": {"templates": False}}, eip="box.lan:8080")
    assert daemon.ask("GET", "/v1/sandboxes", headers={"Host": "box.lan:8080"})[0] == 200
    assert daemon.ask("GET", "/v1/sandboxes", headers={"Host": "box.lan.evil.example"})[0] == 403


# ---- the Unix socket

class Local(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("anything")
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def local(path, target, headers=None, uid=None):
    """(status, body) of a GET, by another user if uid is given."""
    r, w = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            if uid is not None:
                os.setgroups([]), os.setgid(uid), os.setuid(uid)
            c = Local(path)
            c.request("GET", target, headers=headers or {})
            a = c.getresponse()
            os.write(w, json.dumps([a.status, json.loads(a.read())]).encode())
        finally:
            os._exit(0)
    os.close(w)
    with os.fdopen(r) as f:
        text = f.read()
    os.waitpid(pid, 0)
    return json.loads(text)


@pytest.mark.skipif(os.geteuid() != 0, reason="other users are tried as root")
def test_the_socket_knows_callers_by_their_user(daemon):
    import tempfile
    with tempfile.TemporaryDirectory() as d:
        os.chmod(d, 0o755)
        path = d + "/api"
        daemon.start(KEYS | {"server.keys.c": {"uid": 40001, "namespace": "a"}}, api_key="root", socket=path)
        a = create(daemon, "key-a")
        assert local(path, "/v1/sandboxes")[1]["pagination"]["totalItems"] == 1, "root is the operator"
        status, got = local(path, "/v1/sandboxes", uid=40001)
        assert status == 200 and [i["id"] for i in got["items"]] == [a]
        assert local(path, "/v1/sandboxes", uid=40002) == [401, local(path, "/v1/sandboxes", uid=40002)[1]]
        status, got = local(path, "/v1/sandboxes", by("key-b"), uid=40002)
        assert status == 200 and got["items"] == [], "with a key it is that key's"
        # the command line, too
        r = subprocess.run([MAYFLY, "ls", "--json"], env=os.environ | {"OPEN_SANDBOX_DOMAIN": "unix://" + path, "OPEN_SANDBOX_API_KEY": ""}, capture_output=True)
        assert r.returncode == 0 and [b["id"] for b in json.loads(r.stdout)] == [a], r
        # a daemon that was killed leaves its socket; the next one takes its place
        daemon.end()
        daemon.again()
        assert local(path, "/health")[0] == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="other users are tried as root")
def test_a_daemon_may_listen_on_the_socket_only(daemon, tmp_path):
    daemon.config({"runtime": {"templates": False}}, host="", socket=(path := str(tmp_path / "api")))
    import time
    from hostdaemon import PROGRAM
    with open(daemon.log_path, "ab") as log:
        daemon.proc = subprocess.Popen([PROGRAM, "--config", daemon.config_path, "--no-jail", "--no-jail"], stdout=log, stderr=log)
    end = time.monotonic() + 30
    while f"listening on {path}" not in daemon.log_path.read_text():
        assert time.monotonic() < end and daemon.proc.poll() is None, daemon.log()
        time.sleep(0.01)
    assert local(path, "/v1/sandboxes")[0] == 200
    assert " port " not in daemon.log_path.read_text()


# ---- images: what one key pulled with its credentials is not given to another

@pytest.fixture
def private(tmp_path):
    """A registry with a password, and an image in it."""
    registry = Registry(tmp_path / "registry", "htpasswd")
    layout = small_layout(tmp_path / "layout", 5000)
    yield registry.push(layout, "secret/app:1"), layout, registry
    registry.close()


def image_fails(daemon, key, uri, **auth):
    """The message of a create that fails because of its image, or None."""
    image = {"uri": uri} | ({"auth": auth} if auth else {})
    status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX | {"image": image}, by(key))
    if status != 202:
        return e["message"]
    daemon.headers = by(key)
    if daemon.until(e["id"], "Failed", "Running") == "Running":
        return None
    return daemon.ask("GET", f"/v1/sandboxes/{e['id']}", headers=by(key))[1]["status"]["message"]


def test_a_private_image_is_not_given_to_another_key(daemon, private):
    name, layout, registry = private
    daemon.start(KEYS | {"images": {"private_registries": f"{name.split('/')[0]}"}}, api_key="root")
    who = {"username": WHO[0], "password": WHO[1]}
    assert image_fails(daemon, "key-a", name, **who) is None
    assert image_fails(daemon, "key-a", name) is None, "it is in the store, and this key fetched it"
    assert image_fails(daemon, "key-a2", name) is None, "the same namespace"
    assert "credentials are needed" in image_fails(daemon, "key-b", name)
    status, t, _ = daemon.ask("POST", "/v1/templates", {"image": name, "publish": "s3://local/x", "resourceLimits": {"memory": "256Mi"}}, by("key-b"))
    assert status == 201, t
    end = time.monotonic() + 60
    while (got := daemon.ask("GET", f"/v1/templates/{t['templateId']}", headers=by("key-b"))[1]["status"])["phase"] != "Failed":
        assert time.monotonic() < end and got["phase"] != "Succeeded", got
        time.sleep(0.05)
    assert "credentials are needed" in str(got)
    assert image_fails(daemon, "key-b", name, **who) is None, "with the password it is fetched, and shared from then on"
    assert image_fails(daemon, "key-b", name) is None
    assert image_fails(daemon, "root", name) is None, "the store is the operator's"


def test_an_operator_pulls_lists_and_removes_images(daemon, private):
    """`mayfly image` asks the daemon; a folder is an option. Keys with a namespace are refused."""
    name, _, _ = private
    daemon.start(KEYS | {"images": {"private_registries": f"{name.split('/')[0]}", "aliases": f"other:*={name}"}}, api_key="root")

    def image(*words, key="root", code=0, stdin=""):
        r = subprocess.run([MAYFLY, "image", *words], env=os.environ | {"OPEN_SANDBOX_DOMAIN": f"127.0.0.1:{daemon.port}", "OPEN_SANDBOX_API_KEY": key, "MAYFLY_IMAGES": ""},
                           input=stdin, capture_output=True, text=True, timeout=120)
        assert r.returncode == code, r
        return r.stdout if code == 0 else r.stderr
    assert "credentials are needed" in image("pull", name, code=1)
    assert re.fullmatch("sha256:[0-9a-f]{64}\n", image("pull", "-u", WHO[0], "--password-stdin", name, stdin=WHO[1]))
    shown = image("ls").splitlines()
    assert shown[0].split()[0] == "NAME" and any(line.startswith(name) and "registry" in line for line in shown), shown
    assert any(line.split()[:3] == ["other:*", "alias", name] for line in shown), shown
    for words in (("ls",), ("pull", name), ("rm", name)):
        assert "operator" in image(*words, key="key-a", code=1)
    status, made, _ = daemon.ask("POST", "/v1/sandboxes", BOX | {"image": {"uri": name}}, by("root"))
    assert status == 202, made
    assert "use" in image("rm", name, code=1)
    assert daemon.ask("DELETE", f"/v1/sandboxes/{made['id']}", headers=by("root"))[0] == 204
    end = time.monotonic() + 60
    while (status := daemon.ask("DELETE", f"/v1/mayfly/images?name={name}", headers=by("root"))[0]) != 204:
        assert status == 409 and time.monotonic() < end
        time.sleep(0.1)
    assert name not in [line.split()[0] for line in image("ls").splitlines()]
    assert image("rm", name, code=1) and image("rm", "--", "", code=1)
    assert "--store" in image("pull", "--always", name, code=2)
    assert "name" in image("pull", "NOT A NAME", code=1)


def test_naming_a_private_layer_does_not_give_its_bytes(daemon, private):
    """A registry of one's own serves a manifest that names the digest of a private layer. It has everything but that layer."""
    name, _, _ = private
    forged, store = Serving(), daemon.dir / "state" / "images"
    mine = f"127.0.0.1:{forged.port}/x/y:1"
    try:
        daemon.start(KEYS | {"images": {"private_registries": f"{name.split('/')[0]} 127.0.0.1:{forged.port}"}}, api_key="root")
        assert image_fails(daemon, "key-a", name, username=WHO[0], password=WHO[1]) is None
        layers = forged.forge(store, "a")
        assert all((store / "blobs" / "sha256" / hex_digest).is_file() for hex_digest in layers)
        assert "404" in (image_fails(daemon, "key-b", mine) or "given")
        assert {path[-64:] for path, *_ in forged.seen} & layers, "it was not even asked for"
        # an operator may declare the store shared, in so many words
        daemon.end()
        daemon.start(KEYS | {"images": {"private_registries": f"127.0.0.1:{forged.port}", "shared_store": True}}, api_key="root")
        assert image_fails(daemon, "key-b", name) is None
    finally:
        forged.close()


LIAR = """#!%s
# an image job that its input took over: it says that it fetched what it did not. Building it leaves to the real one.
import json, os, socket, struct, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=3)
if struct.unpack_from("<IHHI", sock.recv(65536, socket.MSG_PEEK))[1] == 3:
    os.execv(%r, ["mayfly-image", *sys.argv[1:]])
said = json.load(open(%r))
for name, text in said["files"].items():
    open(f"/proc/self/fd/4/{name}", "w").write(text)
text = lambda t: struct.pack("<I", len(t)) + t.encode()
body = text(said["manifest"]) + struct.pack("<I", len(said["files"]))
for name, content in said["files"].items():
    body += text("sha256:" + name) + struct.pack("<Q", len(content))
sock.send(struct.pack("<IHHI", 0x3149474D, 18, 0, len(body)) + body)
sock.recv(1)
"""


def test_a_job_that_lies_gives_nothing_of_another_key(daemon, private):
    """Whatever a job says that it fetched: a manifest or a layer that its namespace does not have is not given."""
    name, layout, registry = private
    host = name.split("/")[0]
    daemon.start(KEYS | {"images": {"private_registries": host}}, api_key="root")
    assert image_fails(daemon, "key-a", name, username=WHO[0], password=WHO[1]) is None
    store = daemon.dir / "state" / "images"
    theirs, manifest = fetched_by(store, "a")
    real, plan = daemon.dir / "bin" / "mayfly-image", daemon.dir / "lies"
    program = os.path.realpath(real)
    real.unlink()
    real.write_text(LIAR % (sys.executable, program, str(plan)))
    real.chmod(0o755)

    def lie(said, *files):
        plan.write_text(json.dumps({"manifest": said, "files": {hashlib.sha256(f.encode()).hexdigest(): f for f in files}}))
        return image_fails(daemon, "key-b", f"{host}/mine:1")
    refused = "did not fetch"
    # the private image itself
    assert refused in (lie(f"sha256:{theirs}") or "given")
    # the private layer in an image of one's own
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "0" * 64]}})
    sums = lambda t: "sha256:" + hashlib.sha256(t.encode()).hexdigest()  # noqa: E731
    mine = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": manifest["layers"],
                       "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sums(config), "size": len(config)}})
    assert refused in (lie(sums(mine), mine, config) or "given")
    # the private configuration, whose environment may hold secrets
    mine = json.dumps(manifest | {"layers": [], "annotations": {"a": "b"}})
    assert refused in (lie(sums(mine), mine) or "given")
    grants = {n.name for n in (store / "grants").iterdir() if n.name.endswith(".b")}
    assert not grants & {f"{d['digest'][7:]}.b" for d in [*manifest["layers"], manifest["config"]]} and f"{theirs}.b" not in grants


def memory_has(pid, text):
    """Is it anywhere in what this process can read of its memory?"""
    with open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in open(f"/proc/{pid}/maps"):
            span, rights, *_ = line.split()
            begin, end = (int(x, 16) for x in span.split("-"))
            if "r" not in rights or "[v" in line:  # what the kernel shows of itself
                continue
            mem.seek(begin)
            with contextlib.suppress(OSError):  # it was unmapped meanwhile
                while begin < end and (got := mem.read(end - begin)):
                    if text.encode() in got:
                        return True
                    begin += len(got)
    return False


def test_a_registry_password_is_not_kept(daemon):
    """Nobody needs it once the image is there: it is in the daemon's memory no more while the sandbox lives. The sandbox's metadata is."""
    daemon.start(KEYS, api_key="root")
    password, name = uuid.uuid4().hex, uuid.uuid4().hex
    create(daemon, "key-a", image={"uri": "tiny", "auth": {"username": "somebody", "password": password}}, metadata={"name": name})
    assert memory_has(daemon.proc.pid, name)
    end = time.monotonic() + WAIT_S
    while memory_has(daemon.proc.pid, password):  # the request's connection is closed after its answer
        assert time.monotonic() < end
        time.sleep(0.02)


def test_user_ids_alone_do_not_open_tcp(daemon):
    """Keys that are all user ids: TCP on the loopback would have made everybody the operator."""
    config = daemon.config({"server.keys.alice": {"uid": 1000, "namespace": "alice"}}, socket=str(daemon.dir / "socket"))
    r = subprocess.run([PROGRAM, "--check", "--config", config], capture_output=True, text=True, timeout=30)
    assert r.returncode != 0 and "server.host" in r.stderr, r
    config = daemon.config({"server.keys.alice": {"uid": 1000, "namespace": "alice"}}, socket=str(daemon.dir / "socket"), host="")
    assert subprocess.run([PROGRAM, "--check", "--config", config], capture_output=True, timeout=30).returncode == 0


def test_verifications_that_clients_ask_for_are_bounded(daemon):
    """Eight wait or are under way; who comes then is told so, and a place is free again when one has ended, also one whose client left."""
    daemon.start({"runtime": {"templates": False}})
    box = daemon.create()
    daemon.until(box, "Running")
    daemon.plan(snapshot="64")
    snap = daemon.ask("POST", f"/v1/sandboxes/{box}/snapshots")[1]["id"]
    end = time.monotonic() + 60
    while daemon.ask("GET", f"/v1/snapshots/{snap}")[1]["status"]["state"] != "Ready":
        assert time.monotonic() < end
        time.sleep(0.05)
    files = len(os.listdir(f"/proc/{daemon.proc.pid}/fd"))
    asked = []
    # all of them are there when it looks: one takes longer than the daemon needs to read the others
    stop(daemon.proc.pid)
    for _ in range(40):
        c = http.client.HTTPConnection("127.0.0.1", daemon.port)
        c.request("POST", f"/v1/mayfly/points/{snap}/verify")
        asked.append(c)
    daemon.proc.send_signal(signal.SIGCONT)
    codes = [asked[-1].getresponse().status]
    assert len(os.listdir(f"/proc/{daemon.proc.pid}/fd")) < files + 40 + 8 * 12
    codes += [c.getresponse().status for c in asked[:-1]]
    assert set(codes) == {200, 429} and 8 <= codes.count(200) < 40, codes
    for c in asked:
        c.close()
    # eight that ask and leave, and then the place is free again
    stop(daemon.proc.pid)
    for _ in range(8):
        with socket.create_connection(("127.0.0.1", daemon.port)) as s:
            s.sendall(f"POST /v1/mayfly/points/{snap}/verify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
    daemon.proc.send_signal(signal.SIGCONT)
    end = time.monotonic() + 60
    while (status := daemon.ask("POST", f"/v1/mayfly/points/{snap}/verify")[0]) != 200:
        assert status == 429 and time.monotonic() < end
        time.sleep(0.05)
