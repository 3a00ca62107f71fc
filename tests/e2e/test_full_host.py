# SPDX-License-Identifier: Apache-2.0
"""The daemon on a file system without a single block, or with a few: a small tmpfs under its state, and monitors that are scripted (tests/e2e/fake).
What real monitors and guests do then is in test_full.py."""
import contextlib
import os
import sqlite3
import subprocess
import time

import pytest
from hostdaemon import BOX, WAIT_S, HostDaemon


class Small(HostDaemon):
    """Its log and what its monitors say are elsewhere: they are not what is tried."""

    def __init__(self, folder, elsewhere):
        super().__init__(folder)
        self.plan_path, self.log_path = elsewhere / "plan", elsewhere / "log"
        (self.dir / "plan.log").symlink_to(elsewhere / "plan.log")
        self.plan()

    def leave(self, kib):
        self.room()
        v = os.statvfs(self.dir)
        with open(self.dir / "filler", "wb") as f:
            os.posix_fallocate(f.fileno(), 0, v.f_bavail * v.f_bsize - kib * 1024)

    def room(self):
        (self.dir / "filler").unlink(missing_ok=True)

    def blobs(self):
        return {p.name for p in (self.dir / "state" / "blobs").iterdir()}

    def state(self, box):
        return self.ask("GET", f"/v1/sandboxes/{box}")[1]["status"]["state"]

    def snapshot_settled(self, snapshot):
        end = time.monotonic() + WAIT_S
        while (state := self.ask("GET", f"/v1/snapshots/{snapshot}")[1]["status"]["state"]) == "Creating":
            assert time.monotonic() < end
            time.sleep(0.02)
        return state

    def alive(self, box):
        assert self.state(box) == "Running" and self.run(box, "echo on")[-1]["type"] == "execution_complete"


@pytest.fixture
def daemon(tmp_path):
    if os.geteuid():
        pytest.skip("not root: nothing can be mounted")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8g", "small", small], check=True)
    d = None
    try:
        d = Small(small / "d", tmp_path)
        # an image's import wants to see more room than it takes
        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        d.start({"runtime": {"templates": False}, "limits": {"disk_reserve_mib": 0}})
        yield d
    finally:
        if d:
            d.clean()
        subprocess.run(["umount", "-l", small], check=True)


def refused(status, e, *statuses):
    assert status in (statuses or (500,)) and ("space" in e["message"].lower() or "written" in e["message"]), (status, e)


LEFT = pytest.mark.parametrize("kib", [0, 4, 8, 16, 32])


@LEFT
def test_create(daemon, kib):
    before = daemon.blobs()
    daemon.leave(kib)
    status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX)
    if status != 202:
        refused(status, e)
        daemon.room()
        assert daemon.ask("GET", "/v1/sandboxes")[1]["items"] == [] and daemon.blobs() == before
    else:
        assert kib, "there was not one block"
        daemon.room()
    daemon.alive(daemon.create())


@LEFT
def test_pause_and_resume(daemon, kib):
    box = daemon.create()
    daemon.plan(snapshot="1")  # a MiB of memory
    daemon.leave(kib)
    refused(*daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[:2])
    daemon.room()
    daemon.alive(box)
    assert not [f for f in daemon.blobs() if f.endswith((".mem", ".state"))]
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202 and daemon.state(box) == "Paused"
    paused = {f for f in daemon.blobs() if f.endswith((".mem", ".state"))}
    daemon.leave(kib)
    status, e, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/resume")
    if status != 202:
        refused(status, e)
        assert daemon.state(box) == "Paused" and paused <= daemon.blobs()
        daemon.room()
        assert daemon.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202
    else:
        assert kib, "there was not one block"
        daemon.room()
    daemon.alive(box)


@LEFT
def test_snapshot(daemon, kib):
    box = daemon.create()
    daemon.plan(snapshot="1")
    before = daemon.blobs()
    daemon.leave(kib)
    status, s, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/snapshots")
    if status == 202:
        assert daemon.snapshot_settled(s["id"]) == "Failed"
        daemon.room()
        assert daemon.ask("DELETE", f"/v1/snapshots/{s['id']}")[0] == 204
    else:
        refused(status, s, 500, 503)
    daemon.room()
    daemon.alive(box)
    assert not [f for f in daemon.blobs() - before if f.endswith((".mem", ".state"))]
    status, s, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/snapshots")
    assert status == 202 and daemon.snapshot_settled(s["id"]) == "Ready"


@LEFT
def test_delete(daemon, kib):
    """What goes makes the room that its own end needs; if even that is too little it is said, and done when there is some."""
    boxes = [daemon.create() for _ in range(2)]
    daemon.leave(kib)
    for box in boxes:
        status, e, _ = daemon.ask("DELETE", f"/v1/sandboxes/{box}")
        assert status == 204 or (status, e["code"]) == (500, "DOCKER::SANDBOX_DELETE_FAILED"), (status, e)
        assert daemon.ask("GET", f"/v1/sandboxes/{box}")[0] == 404
    daemon.settled(0)
    daemon.room()
    end = time.monotonic() + WAIT_S
    while True:
        with contextlib.closing(sqlite3.connect(daemon.dir / "state" / "state.db")) as db:
            if not db.execute("SELECT id FROM sandboxes").fetchall():
                break
        assert time.monotonic() < end
        time.sleep(0.05)
    assert not daemon.blobs()
    daemon.alive(daemon.create())
