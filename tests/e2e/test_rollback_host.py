# SPDX-License-Identifier: Apache-2.0
"""A sandbox back at a snapshot of its own, with monitors that are played by fake/mayfly-vmm. A real guest: test_fork.py."""
import concurrent.futures
import time

import pytest

from hostdaemon import HostDaemon

NO_TEMPLATES = {"runtime": {"templates": False}}


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


def snapshot(d, box):
    status, snap, _ = d.ask("POST", f"/v1/sandboxes/{box}/snapshots")
    assert status == 202, snap
    end = time.monotonic() + 60
    while (state := d.ask("GET", f"/v1/snapshots/{snap['id']}")[1]["status"]["state"]) == "Creating":
        assert time.monotonic() < end
        time.sleep(0.02)
    assert state == "Ready"
    return snap["id"]


def restore(d, box, snap):
    return d.ask("POST", f"/v1/sandboxes/{box}/restore", {"snapshotId": snap})


def asked(d, step, times=1):
    end = time.monotonic() + 60
    while [s for _, s in d.steps()].count(step) < times:
        assert time.monotonic() < end, d.steps()
        time.sleep(0.02)


def events(d, box):
    return d.ask("GET", f"/v1/sandboxes/{box}/diagnostics/events?scope=all")[1]


@pytest.mark.parametrize("paused", [False, True])
def test_the_same_sandbox_from_another_monitor(daemon, paused):
    daemon.start(NO_TEMPLATES)
    box = daemon.create(env={"A": "1"}, metadata={"who": "me"}, timeout=3600)
    first, second = snapshot(daemon, box), snapshot(daemon, box)
    before, pids = daemon.ask("GET", f"/v1/sandboxes/{box}")[1], set(daemon.monitors())
    for snap in (first, second, first):
        if paused:
            assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
            daemon.until(box, "Paused")
        assert restore(daemon, box, snap)[0] == 202
        daemon.settled(1)
        assert not pids & set(daemon.monitors())
        pids = set(daemon.monitors())
        after = daemon.ask("GET", f"/v1/sandboxes/{box}")[1]
        assert after["status"]["state"] == "Running"
        assert {k: v for k, v in after.items() if k != "status"} == {k: v for k, v in before.items() if k != "status"}
        assert any(e.get("text") == "hello\n" for e in daemon.run(box, "hello"))
    # it has its files without the snapshots, also for the next daemon
    for s in (first, second):
        assert daemon.ask("DELETE", f"/v1/snapshots/{s}")[0] == 204
    daemon.end()
    daemon.again()
    assert daemon.state(box) == "Running"
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
    daemon.until(box, "Paused")
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202
    assert daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
    daemon.settled(0)
    daemon.cleared("blobs/*")


def test_only_to_a_snapshot_of_its_own(daemon):
    daemon.start(NO_TEMPLATES)
    box, other = daemon.create(), daemon.create()
    snap = snapshot(daemon, other)
    assert restore(daemon, box, snap)[0] == 404
    assert restore(daemon, box, "00000000-0000-4000-8000-000000000000")[0] == 404
    assert daemon.state(box) == "Running"


def test_a_restore_that_fails_leaves_it_paused_at_the_snapshot(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    snap = snapshot(daemon, box)
    daemon.plan(restore="error")
    status, e, _ = restore(daemon, box, snap)
    assert (status, e["code"]) == (500, "DOCKER::SANDBOX_START_FAILED")
    assert daemon.state(box) == "Paused"
    daemon.plan()
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202 and daemon.state(box) == "Running"


def test_a_record_that_cannot_be_written_changes_nothing(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    snap = snapshot(daemon, box)
    pids = daemon.monitors()
    with daemon.unwritable("sandboxes"):
        assert restore(daemon, box, snap)[0] == 500
    assert daemon.state(box) == "Running" and daemon.monitors() == pids
    assert any(e.get("text") == "hello\n" for e in daemon.run(box, "hello"))
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
    daemon.until(box, "Paused")
    with daemon.unwritable("sandboxes"):
        assert restore(daemon, box, snap)[0] == 500
    assert daemon.state(box) == "Paused"
    assert restore(daemon, box, snap)[0] == 202


@pytest.mark.parametrize("step", ["restore", "thaw"])
def test_a_killed_daemon_and_a_delete_meanwhile(daemon, step):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    snap = snapshot(daemon, box)
    n = [s for _, s in daemon.steps()].count(step)
    daemon.plan(**{step: "hang" if step == "restore" else "silent"})
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(restore, daemon, box, snap)
        asked(daemon, step, n + 1)
        assert daemon.ask("POST", f"/v1/sandboxes/{box}/restore", {"snapshotId": snap})[0] == 409
        daemon.end()
        with pytest.raises(Exception):
            answer.result()
    daemon.plan()
    daemon.again()
    assert daemon.until(box, "Paused")
    daemon.plan(**{step: "hang" if step == "restore" else "silent"})
    n = [s for _, s in daemon.steps()].count(step)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(restore, daemon, box, snap)
        asked(daemon, step, n + 1)
        assert daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
        assert answer.result()[0] == 409
    assert daemon.ask("DELETE", f"/v1/snapshots/{snap}")[0] == 204
    daemon.cleared("blobs/*")
