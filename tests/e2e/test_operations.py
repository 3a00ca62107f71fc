# SPDX-License-Identifier: Apache-2.0
"""One operation per sandbox: what is asked for while another operation runs is queued, refused or held as the table says
(api/sandbox/operation_table.c), in a real daemon. Also: records of ended sandboxes are deleted to make room. Monitors are scripted."""
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import time

import pytest
from hostdaemon import BOX, WAIT_S, HostDaemon

NO_TEMPLATES = {"runtime": {"templates": False}}


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    alive = d.proc is None or d.proc.poll() is None
    d.clean()
    assert alive, d.log()


def until(look):
    end = time.monotonic() + WAIT_S
    while not (v := look()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return v


def step(daemon, name, n=1):
    until(lambda: sum(s == name for _, s in daemon.steps()) >= n)


def post(daemon, box, what, expect=202):
    status, answer, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/{what}")
    assert status == expect, answer
    return answer


def snapshot(daemon, box, expect=202):
    status, s, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/snapshots", {})
    assert status == expect, s
    return s.get("id")


def snapshot_state(daemon, snap):
    return daemon.ask("GET", f"/v1/snapshots/{snap}")[1]["status"]["state"]


def waiting(daemon):
    """Is there a request beside this one that is not answered yet?"""
    return int(re.search(r"^mayfly_http_open_connections (\d+)$", daemon.ask("GET", "/metrics")[1], re.M)[1]) > 1


# ---- the queue

def test_a_snapshot_and_a_pause_wait_behind_a_template(daemon):
    daemon.start()
    daemon.plan(snapshot="later")
    box = daemon.create()
    step(daemon, "snapshot")
    snap = snapshot(daemon, box)
    snapshot(daemon, box, 409)  # one of a kind waits
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        pause = pool.submit(post, daemon, box, "pause")
        until(lambda: waiting(daemon))
        assert "being changed by another request" in post(daemon, box, "pause", 409)["message"]
        assert daemon.state(box) == "Running" and snapshot_state(daemon, snap) == "Creating"
        daemon.plan(go="yes")
        pause.result()
    assert daemon.until(box, "Paused") == "Paused"
    assert until(lambda: snapshot_state(daemon, snap) != "Creating" and snapshot_state(daemon, snap)) == "Ready", "it was asked for first"
    post(daemon, box, "resume")
    assert daemon.run(box, "echo on")[-1]["type"] == "execution_complete"


def test_one_pause_waits_and_leaves_with_its_client(daemon):
    """A second pause is refused while one waits. One whose client left is not made, and gives its place back."""
    daemon.start({"runtime": {"pending_after_seconds": WAIT_S}})
    daemon.plan(snapshot="later")
    box = daemon.create()
    step(daemon, "snapshot")
    with socket.create_connection(("127.0.0.1", daemon.port)) as s:
        s.sendall(f"POST /v1/sandboxes/{box}/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        until(lambda: waiting(daemon))
        assert "being changed by another request" in post(daemon, box, "pause", 409)["message"]
    until(lambda: not waiting(daemon))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pause = pool.submit(post, daemon, box, "pause")
        until(lambda: waiting(daemon))
        assert not pause.done()
        daemon.plan(go="yes")
        pause.result()
    daemon.until(box, "Paused")


def test_a_pause_whose_client_left_is_not_made(daemon):
    daemon.start({"runtime": {"pending_after_seconds": WAIT_S}})
    daemon.plan(snapshot="later")
    box = daemon.create()
    step(daemon, "snapshot")
    with socket.create_connection(("127.0.0.1", daemon.port)) as s:
        s.sendall(f"POST /v1/sandboxes/{box}/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        until(lambda: waiting(daemon))
    until(lambda: not waiting(daemon))
    snap = snapshot(daemon, box)
    daemon.plan(go="yes")
    assert until(lambda: snapshot_state(daemon, snap) != "Creating" and snapshot_state(daemon, snap)) == "Ready"
    assert daemon.state(box) == "Running" and daemon.run(box, "echo on")[-1]["type"] == "execution_complete"


def test_a_delete_answers_everybody_who_waits(daemon):
    daemon.start()
    daemon.plan(snapshot="later")
    box = daemon.create()
    step(daemon, "snapshot")
    snap = snapshot(daemon, box)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        pause = pool.submit(post, daemon, box, "pause", 409)
        until(lambda: waiting(daemon))
        assert "being changed by another request" in post(daemon, box, "pause", 409)["message"]
        assert daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
        assert "deleted meanwhile" in pause.result()["message"]
    assert until(lambda: snapshot_state(daemon, snap) == "Failed" and "Failed")
    daemon.plan(go="yes")
    daemon.settled(0)


def test_a_request_waits_while_the_guest_is_frozen(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.plan(prep="slow")
    snap = snapshot(daemon, box)
    assert daemon.run(box, "echo on")[-1]["type"] == "execution_complete"
    assert sum(s == "thaw" for _, s in daemon.steps()) == 1, "not before the guest went on"
    until(lambda: snapshot_state(daemon, snap) == "Ready")


def test_a_monitor_that_never_answers_a_snapshot(daemon):
    """The guest is frozen then, and requests wait for it: for one step's deadline, not for ever."""
    daemon.start({"runtime": {"templates": False, "step_timeout_seconds": 2}})
    box = daemon.create()
    daemon.plan(snapshot="hang")
    snap = snapshot(daemon, box)
    step(daemon, "snapshot")
    status, e, _ = daemon.ask("POST", f"/{box}/44772/command", {"command": "echo on"}, timeout=30)
    assert status == 409 and "Failed" in e["message"], e
    assert "did not answer a snapshot request in time" in daemon.ask("GET", f"/v1/sandboxes/{box}")[1]["status"]["message"]
    until(lambda: snapshot_state(daemon, snap) == "Failed")


def with_step_limit(daemon, seconds):
    """A sandbox that was made without haste; from here on a step has so many seconds."""
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.reload({"runtime": {"templates": False, "step_timeout_seconds": seconds}})
    return box


@pytest.mark.parametrize("mode", ["disk", "resident"])
def test_an_agent_that_never_freezes_its_guest(daemon, mode):
    """Requests wait for that step: for its deadline, not for ever. The pause fails, and the sandbox runs on."""
    box = with_step_limit(daemon, 1)
    daemon.plan(prep="silent")
    e = post(daemon, box, "pause?mode=" + mode, 500)
    assert "did not freeze" in e["message"], e
    daemon.plan()
    daemon.reload(NO_TEMPLATES)
    assert daemon.state(box) == "Running" and daemon.run(box, "echo on")[-1]["type"] == "execution_complete"
    post(daemon, box, "pause?mode=" + mode)
    assert daemon.until(box, "Paused") == "Paused"


def test_a_monitor_that_never_says_where_it_is(daemon):
    """A pause failed and nobody knows on which files the disk stands: the question has a deadline, too."""
    box = with_step_limit(daemon, 2)
    daemon.plan(snapshot="fail-event", layers="hang")
    post(daemon, box, "pause", 500)
    daemon.until(box, "Failed")
    assert "did not answer" in daemon.ask("GET", f"/v1/sandboxes/{box}")[1]["status"]["message"]


def test_a_pause_may_be_written_for_longer_than_a_step(daemon):
    """How long the disk takes has no limit: only the monitor's answers have one."""
    limits = {"runtime": {"templates": False, "pending_after_seconds": 1}}
    daemon.start(limits)
    box = daemon.create()
    limits["runtime"]["step_timeout_seconds"] = 3
    daemon.reload(limits)
    daemon.plan(snapshot="later")
    post(daemon, box, "pause")
    n = sum(s == "go" for _, s in daemon.steps())
    step(daemon, "go", n + 50)  # at most ten a second
    assert daemon.state(box) == "Pausing"
    daemon.plan(go="yes")
    assert daemon.until(box, "Paused", "Failed") == "Paused"


def test_a_resume_needs_room_too(daemon):
    """What a paused sandbox held was given to others meanwhile."""
    daemon.start({"runtime": {"templates": False}, "limits": {"memory_mib": 512}})
    paused, other = daemon.create(), daemon.create()
    post(daemon, paused, "pause")
    third = daemon.create()
    status, e, head = daemon.ask("POST", f"/v1/sandboxes/{paused}/resume")
    assert (status, e["code"]) == (429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED") and "0 MiB free of 512" in e["message"] and int(head["Retry-After"]) > 0, e
    assert daemon.state(paused) == "Paused"
    assert daemon.ask("DELETE", f"/v1/sandboxes/{third}")[0] == 204
    post(daemon, paused, "resume")
    assert daemon.state(paused) == daemon.state(other) == "Running"


def test_every_request_in_every_state(daemon):
    """What the table refuses is answered with the state; nothing is refused that it allows."""
    daemon.start(NO_TEMPLATES)
    daemon.plan(entry="exit 3")
    ended = daemon.create()
    daemon.until(ended, "Failed")
    daemon.plan()
    box = daemon.create()
    wrong = {"Failed": (ended, {"pause": "DOCKER::SANDBOX_NOT_RUNNING", "resume": "DOCKER::SANDBOX_NOT_PAUSED", "snapshots": "SNAPSHOT::INVALID_SOURCE_STATE"}),
             "Running": (box, {"resume": "DOCKER::SANDBOX_NOT_PAUSED"})}
    for state, (b, asks) in wrong.items():
        for what, code in asks.items():
            e = post(daemon, b, what, 409)
            assert e["code"] == code and state in e["message"], e
    for mode in ("disk", "resident"):
        post(daemon, box, f"pause?mode={mode}")
        for what, code in {"pause": "DOCKER::SANDBOX_NOT_RUNNING", "snapshots": "SNAPSHOT::INVALID_SOURCE_STATE"}.items():
            e = post(daemon, box, what, 409)
            assert e["code"] == code and "Paused" in e["message"], e
        post(daemon, box, "resume")
        assert daemon.run(box, "echo on")[-1]["type"] == "execution_complete"
    for b in (ended, box):
        assert daemon.ask("DELETE", f"/v1/sandboxes/{b}")[0] == 204


def test_a_delete_does_not_hold_up_the_daemon(daemon):
    """The database is held by somebody else: the delete waits for its record, nobody else waits for the delete."""
    daemon.start(NO_TEMPLATES)
    box, other = daemon.create(), daemon.create()
    with contextlib.closing(sqlite3.connect(daemon.dir / "state" / "state.db", isolation_level=None)) as db, concurrent.futures.ThreadPoolExecutor(1) as pool:
        db.execute("BEGIN IMMEDIATE")
        asked = pool.submit(daemon.ask, "DELETE", f"/v1/sandboxes/{box}")
        until(lambda: daemon.state(box) == "Stopping")
        assert daemon.run(other, "echo on")[-1]["type"] == "execution_complete"
        status, e, _ = daemon.ask("DELETE", f"/v1/sandboxes/{box}")
        assert status == 409 and "being deleted" in e["message"], e
        assert not asked.done()
        db.execute("ROLLBACK")
        assert asked.result()[0] == 204
    assert daemon.state(box) == 404
    daemon.settled(1)


def test_a_create_does_not_hold_up_the_daemon(daemon):
    """It is answered, and called Running, when its record is written, and not before; others go on meanwhile."""
    daemon.start(NO_TEMPLATES)
    other = daemon.create()
    with contextlib.closing(sqlite3.connect(daemon.dir / "state" / "state.db", isolation_level=None)) as db, concurrent.futures.ThreadPoolExecutor(1) as pool:
        db.execute("BEGIN IMMEDIATE")
        asked = pool.submit(daemon.create)
        step(daemon, "setup", 2)
        assert daemon.run(other, "echo on")[-1]["type"] == "execution_complete"
        boxes = daemon.ask("GET", "/v1/sandboxes")[1]["items"]
        (pending,) = [b for b in boxes if b["id"] != other]
        assert pending["status"]["state"] == "Pending", boxes
        assert not asked.done()
        db.execute("ROLLBACK")
        box = asked.result()
    assert daemon.state(box) == "Running" and daemon.run(box, "echo on")[-1]["type"] == "execution_complete"


@pytest.mark.parametrize("mode", ["disk", "resident"])
def test_a_pause_and_a_resume_do_not_hold_up_the_daemon(daemon, mode):
    """Their beginning is shown when it is written, and not before. Requests wait until then, others go on."""
    daemon.start(NO_TEMPLATES)
    box, other = daemon.create(), daemon.create()
    for what, before, after in (("pause?mode=" + mode, "Running", "Paused"), ("resume", "Paused", "Running")):
        with contextlib.closing(sqlite3.connect(daemon.dir / "state" / "state.db", isolation_level=None)) as db, concurrent.futures.ThreadPoolExecutor(2) as pool:
            db.execute("BEGIN IMMEDIATE")
            asked = pool.submit(post, daemon, box, what)
            until(lambda: waiting(daemon))
            assert daemon.run(other, "echo on")[-1]["type"] == "execution_complete"
            assert daemon.state(box) == before and not asked.done()
            used = pool.submit(daemon.run, box, "echo on")
            until(lambda: waiting(daemon) and not used.done())
            db.execute("ROLLBACK")
            asked.result()
            if what == "resume":
                assert used.result()[-1]["type"] == "execution_complete"
            else:
                assert used.result()[0] == 409
        assert daemon.until(box, after) == after


def test_a_delete_while_a_pause_begins(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    with contextlib.closing(sqlite3.connect(daemon.dir / "state" / "state.db", isolation_level=None)) as db, concurrent.futures.ThreadPoolExecutor(2) as pool:
        db.execute("BEGIN IMMEDIATE")
        pause = pool.submit(post, daemon, box, "pause", 409)
        until(lambda: waiting(daemon))
        deleted = pool.submit(daemon.ask, "DELETE", f"/v1/sandboxes/{box}")
        assert "deleted meanwhile" in pause.result()["message"]
        db.execute("ROLLBACK")
        assert deleted.result()[0] == 204
    assert daemon.state(box) == 404
    daemon.settled(0)
    daemon.cleared("blobs/*")


def test_a_record_written_behind_the_result_does_not_undo_it(daemon):
    """A change of metadata while the result of the create is being written: the next daemon finds both."""
    daemon.start(NO_TEMPLATES)
    with contextlib.closing(sqlite3.connect(daemon.dir / "state" / "state.db", isolation_level=None)) as db, concurrent.futures.ThreadPoolExecutor(2) as pool:
        db.execute("BEGIN IMMEDIATE")
        asked = pool.submit(daemon.create)
        step(daemon, "setup")
        (box,) = daemon.ask("GET", "/v1/sandboxes")[1]["items"]
        patch = pool.submit(daemon.ask, "PATCH", f"/v1/sandboxes/{box['id']}/metadata", {"a": "b"})
        concurrent.futures.wait([patch], 0.3)
        db.execute("ROLLBACK")
        assert patch.result()[0] == 200 and asked.result() == box["id"]
    daemon.end()
    daemon.again()
    after = daemon.ask("GET", f"/v1/sandboxes/{box['id']}")[1]
    assert after["status"]["state"] == "Running" and after["metadata"] == {"a": "b"}, after


def test_an_end_while_a_change_is_written_loses_neither(daemon):
    """The record of the end is made before the change is there, and is written behind it. What is written last has both."""
    daemon.start(NO_TEMPLATES)
    box = daemon.create(metadata={"a": "old"})
    at = f"/v1/sandboxes/{box}"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with held(daemon):
            patch = pool.submit(daemon.ask, "PATCH", at + "/metadata", {"a": "new"})
            until(lambda: waiting(daemon))
            daemon.plan(entry="exit 3")
            daemon.until(box, "Failed")
            assert not patch.done()
        assert patch.result()[0] == 200
    daemon.end()
    daemon.again()
    after = daemon.ask("GET", at)[1]
    assert after["status"]["state"] == "Failed" and after["metadata"] == {"a": "new"}, after


@contextlib.contextmanager
def held(daemon):
    """The database is held by somebody else; at most ten seconds, which is what the daemon waits for it."""
    with contextlib.closing(sqlite3.connect(daemon.dir / "state" / "state.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


CHANGES = {
    "metadata": ("PATCH", "/v1/sandboxes/{box}/metadata", {"a": "b"}, lambda b: b.get("metadata"), {"a": "b"}),
    "expiry": ("POST", "/v1/sandboxes/{box}/renew-expiration", {"expiresAt": "2040-01-01T00:00:00Z"}, lambda b: b["expiresAt"][:4], "2040"),
    "policy": ("PUT", "/v1/sandboxes/{box}/networkpolicy", {"defaultAction": "deny"}, None, None),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_does_not_hold_up_the_daemon(daemon, what):
    """It is answered and shown when it is written, and not before; other requests are answered meanwhile."""
    daemon.start({**NO_TEMPLATES, "network": {"enabled": True}})
    box, other = daemon.create(timeout=600), daemon.create()
    method, path, body, field, want = CHANGES[what]
    at = path.format(box=box)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with held(daemon):
            asked = pool.submit(daemon.ask, method, at, body)
            until(lambda: waiting(daemon))
            assert daemon.run(other, "echo on")[-1]["type"] == "execution_complete"
            before = daemon.ask("GET", f"/v1/sandboxes/{box}")[1]
            shown = field(before) if field else daemon.ask("GET", at)[1].get("policy", {}).get("defaultAction")
            assert shown not in (want, "deny") and not asked.done()
        assert asked.result()[0] == 200, asked.result()
    daemon.end()
    daemon.again()
    if field:
        assert field(daemon.ask("GET", f"/v1/sandboxes/{box}")[1]) == want
    else:
        assert daemon.ask("GET", at)[1]["policy"]["defaultAction"] == "deny"


POOL = {"name": "p", "capacitySpec": {"bufferMin": 0, "bufferMax": 0, "poolMin": 0, "poolMax": 1}, "template": {"spec": {"containers": [{"image": "tiny"}]}}}
RESIZED = {"bufferMin": 0, "bufferMax": 0, "poolMin": 0, "poolMax": 2}
POOL_CHANGES = {
    "create": ("POST", "/v1/pools", POOL, 201, None, POOL["capacitySpec"]),
    "resize": ("PUT", "/v1/pools/p", {"capacitySpec": RESIZED}, 200, POOL["capacitySpec"], RESIZED),
    "delete": ("DELETE", "/v1/pools/p", None, 204, POOL["capacitySpec"], None),
}


@pytest.mark.parametrize("what", POOL_CHANGES)
def test_a_change_of_a_pool_does_not_hold_up_the_daemon(daemon, what):
    """It is answered and shown when it is written, and not before; other requests are answered meanwhile."""
    daemon.start(NO_TEMPLATES)
    other = daemon.create()
    method, path, body, status, before, after = POOL_CHANGES[what]

    def shown():
        return daemon.ask("GET", "/v1/pools/p")[1].get("capacitySpec")
    if before:
        assert daemon.ask("POST", "/v1/pools", POOL)[0] == 201
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with held(daemon):
            asked = pool.submit(daemon.ask, method, path, body)
            until(lambda: waiting(daemon))
            assert daemon.run(other, "echo on")[-1]["type"] == "execution_complete"
            assert shown() == before and not asked.done()
        assert asked.result()[0] == status, asked.result()
    assert shown() == after
    daemon.end()
    daemon.again()
    assert shown() == after


def test_changes_of_a_pool_at_once(daemon):
    """They are made one after the other: one create of a name is the first, every new size is a revision, and nothing is left of what was deleted."""
    daemon.start(NO_TEMPLATES)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        with held(daemon):
            asked = [pool.submit(daemon.ask, "POST", "/v1/pools", POOL) for _ in range(8)]
            until(lambda: waiting(daemon))
        assert sorted(a.result()[0] for a in asked) == [201] + [409] * 7
        with held(daemon):
            asked = [pool.submit(daemon.ask, "PUT", "/v1/pools/p", {"capacitySpec": RESIZED}) for _ in range(8)]
            until(lambda: waiting(daemon))
        assert sorted(a.result()[1]["status"]["revision"] for a in asked) == [str(n) for n in range(2, 10)]
        with held(daemon):
            asked = [pool.submit(daemon.ask, "DELETE", "/v1/pools/p") for _ in range(8)]
            until(lambda: waiting(daemon))
        assert sorted(a.result()[0] for a in asked) == [204] + [404] * 7
    daemon.end()
    assert daemon.again().ask("GET", "/v1/pools")[1] == {"items": []}


def test_a_change_of_a_pool_whose_client_left(daemon):
    daemon.start(NO_TEMPLATES)
    with held(daemon):
        with socket.create_connection(("127.0.0.1", daemon.port)) as s:
            body = json.dumps(POOL).encode()
            s.sendall(b"POST /v1/pools HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            until(lambda: waiting(daemon))
            for _ in range(3):  # turns of the loop, which reads every connection that has something in each
                assert daemon.ask("GET", "/v1/pools/p")[0] == 404
        until(lambda: not waiting(daemon))
    until(lambda: daemon.ask("GET", "/v1/pools/p")[0] == 200)


def test_changes_at_once_lose_nothing(daemon):
    """Each is worked out from what the one before left, and all of them are in the record."""
    daemon.start(NO_TEMPLATES)
    box = daemon.create(metadata={"k0": "old"})
    at, want = f"/v1/sandboxes/{box}", {f"k{i}": "v" for i in range(16)}
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        with held(daemon):
            asked = [pool.submit(daemon.ask, "PATCH", at + "/metadata", {k: v}) for k, v in want.items()]
            until(lambda: waiting(daemon))
        assert [a.result()[0] for a in asked] == [200] * 16
    assert daemon.ask("GET", at)[1]["metadata"] == want
    daemon.end()
    assert daemon.again().ask("GET", at)[1]["metadata"] == want


def test_a_delete_while_changes_are_written(daemon):
    """They are answered as if they had come after it, and bring no record back."""
    daemon.start(NO_TEMPLATES)
    box = daemon.create(timeout=600)
    at = f"/v1/sandboxes/{box}"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        with held(daemon):
            asked = [pool.submit(daemon.ask, "PATCH", at + "/metadata", {k: "v"}) for k in "ab"]
            asked.append(pool.submit(daemon.ask, "POST", at + "/renew-expiration", {"expiresAt": "2040-01-01T00:00:00Z"}))
            until(lambda: int(re.search(r"^mayfly_http_open_connections (\d+)$", daemon.ask("GET", "/metrics")[1], re.M)[1]) > 3)
            deleted = pool.submit(daemon.ask, "DELETE", at)
            until(lambda: daemon.state(box) == "Stopping")
        assert deleted.result()[0] == 204
        assert [(a.result()[0], a.result()[1]["code"]) for a in asked] == [(404, "DOCKER::SANDBOX_NOT_FOUND")] * 3
    daemon.end()
    assert daemon.again().ask("GET", "/v1/sandboxes")[1]["items"] == []


def test_one_key_twice_while_it_is_written(daemon):
    """The second create with the key is answered with the first one's sandbox, and nobody waits for the database meanwhile."""
    daemon.start(NO_TEMPLATES)
    other = daemon.create()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        with held(daemon):
            asked = [pool.submit(daemon.ask, "POST", "/v1/sandboxes", BOX, {"Idempotency-Key": "k"}) for _ in range(2)]
            until(lambda: int(re.search(r"^mayfly_http_open_connections (\d+)$", daemon.ask("GET", "/metrics")[1], re.M)[1]) > 2)
            assert daemon.run(other, "echo on")[-1]["type"] == "execution_complete"
            assert not any(a.done() for a in asked)
        first, second = (a.result() for a in asked)
    assert first[0] == second[0] == 202 and first[1]["id"] == second[1]["id"]
    assert len(daemon.ask("GET", "/v1/sandboxes")[1]["items"]) == 2


# ---- without a server

@pytest.mark.parametrize("before", ["Running", "Paused in memory", "Paused"])
def test_a_monitor_that_ended_while_no_server_was_running(daemon, before):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    if before != "Running":
        post(daemon, box, "pause?mode=" + ("resident" if "memory" in before else "disk"))
        daemon.until(box, "Paused")
    daemon.end()
    for pid in daemon.monitors():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not daemon.monitors())
    daemon.again()
    if before == "Paused":
        post(daemon, box, "resume")
        assert daemon.run(box, "echo on")[-1]["type"] == "execution_complete"
        return
    status = daemon.ask("GET", f"/v1/sandboxes/{box}")[1]["status"]
    assert (status["state"], status["reason"]) == ("Failed", "VM_ENDED") and "while no server was running" in status["message"], status
    assert post(daemon, box, "pause", 409)["code"] == "DOCKER::SANDBOX_NOT_RUNNING"
    assert daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
    assert daemon.state(daemon.create()) == "Running", "its slot is free"


# ---- records of sandboxes that ended

def ended(daemon):
    daemon.plan(entry="exit 1")
    box = daemon.create()
    daemon.until(box, "Failed")
    daemon.plan()
    return box


def test_ended_sandboxes_take_no_place(daemon):
    daemon.start(NO_TEMPLATES | {"limits": {"max_sandboxes": 2}})
    for _ in range(3):
        ended(daemon)
    boxes = [daemon.create() for _ in range(2)]
    status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX)
    assert status == 429 and "it has its 2 sandboxes" in e["message"], e
    assert len(daemon.ask("GET", "/v1/sandboxes")[1]["items"]) == 5
    daemon.ask("DELETE", f"/v1/sandboxes/{boxes[0]}")
    daemon.create()


def test_ended_sandboxes_are_forgotten_after_a_while(daemon):
    daemon.start(NO_TEMPLATES | {"limits": {"ended_keep_seconds": 2}})
    box, live = ended(daemon), daemon.create()
    assert daemon.state(box) == "Failed"
    assert until(lambda: daemon.state(box) == 404)
    assert daemon.state(live) == "Running"
    assert daemon.ask("DELETE", f"/v1/sandboxes/{live}")[0] == 204
    box = ended(daemon)
    daemon.end()
    time.sleep(2)  # the time passes while no server runs
    daemon.again()
    assert until(lambda: daemon.state(box) == 404)


def test_ended_sandboxes_are_bounded(daemon):
    daemon.start(NO_TEMPLATES | {"limits": {"max_ended": 2}})
    boxes = [ended(daemon) for _ in range(4)]
    until(lambda: [daemon.state(b) for b in boxes] == [404, 404, "Failed", "Failed"])


