# SPDX-License-Identifier: Apache-2.0
"""A change that the database refuses is not answered as done: every route that changes something, with a database that refuses the row (a full or a
broken disk), says so with its documented error, and nothing has changed, neither now nor for the next daemon. Monitors are scripted."""
import concurrent.futures
import contextlib
import datetime
import sqlite3
import time

import pytest
from hostdaemon import BOX, WAIT_S, HostDaemon
from test_template_steps import TPL, built, make

PARTS = {"runtime": {"templates": False}}


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d.start(PARTS)
    d.clean()


def again(daemon):
    daemon.end()
    return daemon.again()


def refused(daemon, code, method, path, body=None, status=500, **headers):
    got, e, _ = daemon.ask(method, path, body, headers)
    assert (got, e["code"]) == (status, code) and e["message"], e


def records(daemon):
    with contextlib.closing(sqlite3.connect(daemon.dir / "state" / "state.db")) as db:
        return db.execute("SELECT id FROM sandboxes").fetchall()


def iso(seconds):
    return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)).isoformat()


@pytest.mark.parametrize("table", ["sandboxes", "idempotency"])
def test_create(daemon, table):
    with daemon.unwritable(table):
        refused(daemon, "DOCKER::SANDBOX_START_FAILED" if table == "sandboxes" else "SANDBOX::INTERNAL_ERROR", "POST", "/v1/sandboxes", BOX, **{"Idempotency-Key": "k"})
        assert daemon.ask("GET", "/v1/sandboxes")[1]["items"] == []
        daemon.settled(0)
        daemon.cleared("blobs/*")
    again(daemon)
    assert daemon.ask("GET", "/v1/sandboxes")[1]["items"] == []
    assert daemon.run(daemon.create(), "echo on")[-1]["type"] == "execution_complete"


def test_metadata(daemon):
    at = f"/v1/sandboxes/{daemon.create(metadata={'a': 'b', 'c': 'd'})}"
    with daemon.unwritable("sandboxes"):
        refused(daemon, "SANDBOX::INTERNAL_ERROR", "PATCH", at + "/metadata", {"a": "other", "c": None, "e": "f"})
        assert daemon.ask("GET", at)[1]["metadata"] == {"a": "b", "c": "d"}
    assert again(daemon).ask("GET", at)[1]["metadata"] == {"a": "b", "c": "d"}
    plain = f"/v1/sandboxes/{daemon.create()}"
    with daemon.unwritable("sandboxes"):
        refused(daemon, "SANDBOX::INTERNAL_ERROR", "PATCH", plain + "/metadata", {"a": "b"})
        assert "metadata" not in daemon.ask("GET", plain)[1]
    assert daemon.ask("PATCH", at + "/metadata", {"a": "other", "c": None})[1]["metadata"] == {"a": "other"}


def test_renewal(daemon):
    at = f"/v1/sandboxes/{daemon.create(timeout=600)}"
    before = daemon.ask("GET", at)[1]["expiresAt"]
    with daemon.unwritable("sandboxes"):
        for seconds in (3, 3600):
            refused(daemon, "SANDBOX::INTERNAL_ERROR", "POST", at + "/renew-expiration", {"expiresAt": iso(seconds)})
            assert daemon.ask("GET", at)[1]["expiresAt"] == before
    time.sleep(3.2)
    assert daemon.ask("GET", at)[1]["expiresAt"] == before, "nor does its timer know the sooner one"
    assert again(daemon).ask("GET", at)[1]["expiresAt"] == before


def test_delete(daemon):
    box = daemon.create()
    with daemon.unwritable("sandboxes"):
        refused(daemon, "DOCKER::SANDBOX_DELETE_FAILED", "DELETE", f"/v1/sandboxes/{box}")
        daemon.settled(0)  # it is gone all the same: only its record could come back
    end = time.monotonic() + WAIT_S
    while records(daemon):
        assert time.monotonic() < end, "it goes as soon as it can"
        time.sleep(0.05)
    assert again(daemon).ask("GET", "/v1/sandboxes")[1]["items"] == []


def test_pause_and_resume(daemon):
    box = daemon.create()
    with daemon.unwritable("sandboxes"):
        refused(daemon, "DOCKER::SANDBOX_PAUSE_FAILED", "POST", f"/v1/sandboxes/{box}/pause")
    assert daemon.state(box) == "Running" and daemon.run(box, "echo on")[-1]["type"] == "execution_complete"
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
    with daemon.unwritable("sandboxes"):
        refused(daemon, "DOCKER::SANDBOX_RESUME_FAILED", "POST", f"/v1/sandboxes/{box}/resume")
        assert daemon.state(box) == "Paused"
    assert again(daemon).ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202
    assert daemon.run(box, "echo on")[-1]["type"] == "execution_complete"


def test_snapshots(daemon):
    box = daemon.create()
    with daemon.unwritable("checkpoints"):
        refused(daemon, "SNAPSHOT::RUNTIME_CREATE_FAILED", "POST", f"/v1/sandboxes/{box}/snapshots")
        assert daemon.ask("GET", "/v1/snapshots")[1]["items"] == []
    status, s, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/snapshots")
    at, end = f"/v1/snapshots/{s['id']}", time.monotonic() + WAIT_S
    while daemon.ask("GET", at)[1]["status"]["state"] != "Ready":
        assert time.monotonic() < end
        time.sleep(0.02)
    with daemon.unwritable("checkpoints"):
        refused(daemon, "SNAPSHOT::INVALID_STATE", "DELETE", at)
        assert daemon.ask("GET", at)[0] == 200
    assert again(daemon).ask("POST", "/v1/sandboxes", {"snapshotId": s["id"], "resourceLimits": {"memory": "256Mi"}})[0] == 202, "it still serves"
    assert daemon.ask("DELETE", at)[0] == 204


def test_templates(daemon):
    with daemon.unwritable("checkpoints"):
        refused(daemon, "FSB::API_ERROR", "POST", "/v1/templates", TPL, 503)
        assert daemon.ask("GET", "/v1/templates")[1]["items"] == []
    tpl = make(daemon)
    assert built(daemon, tpl)["phase"] == "Succeeded"
    with daemon.unwritable("checkpoints"):
        refused(daemon, "FSB::API_ERROR", "DELETE", f"/v1/templates/{tpl}")
        assert daemon.ask("GET", f"/v1/templates/{tpl}")[0] == 200
    again(daemon)
    assert daemon.ask("POST", "/v1/sandboxes", {"templateId": tpl, "timeout": 60})[0] == 202, "it still serves"
    assert daemon.ask("DELETE", f"/v1/templates/{tpl}")[0] == 204
    assert again(daemon).ask("GET", "/v1/templates")[1]["items"] == []


def test_a_promise(daemon):
    """Pending is answered when it is in the record that the next daemon is to make it, and not before."""
    daemon.end()
    daemon.start({"runtime": {"templates": False, "pending_after_seconds": 1}}).plan(boot="hang")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with daemon.unwritable("sandboxes"):
            answer = pool.submit(daemon.ask, "POST", "/v1/sandboxes", BOX)
            concurrent.futures.wait([answer], 2.5)
            assert not answer.done()
        status, b, _ = answer.result()
    assert status == 202 and b["status"]["state"] == "Pending"
    again(daemon.plan()).until(b["id"], "Running")
