# SPDX-License-Identifier: Apache-2.0
"""What the previous build paused and snapshotted goes on under this one: its records, its state and memory files, and its agent, which is in that
memory and cannot be exchanged. The previous build is made from the repository's own history, once, and kept beside the kernels."""
import os
import sqlite3
import subprocess
import time

import pytest

from conftest import CACHE, TOP
from hostdaemon import BOX, HostDaemon, WAIT_S
from test_template_steps import TPL
from test_faults import COUNT
from test_lifecycle import call, create, run, until

# the last commit whose monitors, agents and records may still be paused somewhere; moved when a format's version moves
PREVIOUS = "27cc3274"


def git(*args, **kw):
    return subprocess.run(["git", "-C", TOP, *args], capture_output=True, **kw)


@pytest.fixture(scope="module")
def previous():
    """Its folder, built."""
    if git("cat-file", "-e", PREVIOUS + "^{commit}").returncode:
        pytest.skip(f"the history of this clone does not reach back to {PREVIOUS}")
    folder = CACHE / f"previous-{PREVIOUS}"
    if not (folder / "built").exists():
        folder.mkdir(parents=True, exist_ok=True)
        tar = git("archive", PREVIOUS, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=tar, check=True)
        # a newer compiler has warnings for it
        (folder / "Makefile").write_text((folder / "Makefile").read_text().replace(" -Werror", ""))
        env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
        r = subprocess.run(["make", "-s", "-j2", "all"], cwd=folder, env=env, capture_output=True, text=True)
        assert r.returncode == 0, r.stdout[-2000:] + r.stderr[-2000:]
        (folder / "built").touch()
    return folder


def test_what_the_previous_build_left_goes_on(daemon, previous):
    if not hasattr(daemon, "restart"):
        pytest.skip("the daemon is not ours")
    ours = daemon.bin, daemon.host_paths
    daemon.host_paths = []  # its helper knows no volumes
    daemon.bin = daemon.machine.publish(previous / "build" / "bin", CACHE / "guest-vmlinux", previous / "build" / "initramfs.cpio")
    # it would refuse the database of this build, and begins with none
    daemon.machine.run("sh", "-c", "rm -f /var/lib/mayfly/state/state.db*", check=True)
    try:
        daemon.restart()
        ids = [create(daemon)["id"] for _ in range(2)]
        for i in ids:
            run(daemon, i, COUNT + "; head -c 300000 /dev/urandom > /tmp/f; md5sum /tmp/f > /tmp/sum")
        pids = [run(daemon, i, "cat /tmp/pid") for i in ids]
        _, snapshot, _ = call(daemon, "POST", f"/v1/sandboxes/{ids[0]}/snapshots")
        # a pause waits for the snapshot before it
        for i in ids:
            assert call(daemon, "POST", f"/v1/sandboxes/{i}/pause")[0] == 202
    finally:
        daemon.bin, daemon.host_paths = ours
        daemon.restart()
    assert call(daemon, "GET", f"/v1/snapshots/{snapshot['id']}")[1]["status"]["state"] == "Ready"
    status, clone, _ = call(daemon, "POST", "/v1/sandboxes", {"snapshotId": snapshot["id"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}})
    assert status == 202, clone
    until(daemon, clone["id"], "Running")
    for i in ids:
        status, e, _ = call(daemon, "POST", f"/v1/sandboxes/{i}/resume")
        assert status == 202, e
    for k, i in enumerate([*ids, clone["id"]]):
        assert "OK" in run(daemon, i, "md5sum -c /tmp/sum"), i
        assert run(daemon, i, "cat /tmp/pid") == pids[k % 2]
        before = int(run(daemon, i, "cat /tmp/count"))
        run(daemon, i, f"until [ $(cat /tmp/count) -gt {before} ]; do sleep 0.1; done; echo more >> /tmp/f; md5sum /tmp/f > /tmp/sum")
        # and this build pauses it again
        assert call(daemon, "POST", f"/v1/sandboxes/{i}/pause")[0] == 202
        assert call(daemon, "POST", f"/v1/sandboxes/{i}/resume")[0] == 202
        assert "OK" in run(daemon, i, "md5sum -c /tmp/sum"), i
        assert call(daemon, "DELETE", f"/v1/sandboxes/{i}")[0] == 204
    assert call(daemon, "DELETE", f"/v1/snapshots/{snapshot['id']}")[0] == 204


# ---- its records, on this host with scripted monitors

@pytest.fixture
def old(tmp_path, previous):
    d = HostDaemon(tmp_path)
    d.program = previous / "build" / "bin" / "mayflyd"
    yield d.start({"runtime": {"templates": True}})
    d.clean()


def ready(daemon, path, get):
    end = time.monotonic() + WAIT_S
    while get(daemon.ask("GET", path)[1]) not in ("Ready", "Succeeded"):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_records(old, previous):
    """Converted once, in one transaction; everything goes on, belongs to the operator, and the previous build refuses the file and touches nothing."""
    box = old.create(metadata={"a": "b"}, timeout=3600)
    running = old.create()
    ready(old, "/v1/mayfly/templates", lambda o: o["items"] and o["items"][0]["state"])
    assert old.ask("POST", "/v1/sandboxes", BOX, {"Idempotency-Key": "k"})[0] == 202
    snapshot = old.ask("POST", f"/v1/sandboxes/{box}/snapshots", {"name": "n"})[1]["id"]
    ready(old, f"/v1/snapshots/{snapshot}", lambda o: o["status"]["state"])
    tpl = old.ask("POST", "/v1/templates", TPL)[1]
    ready(old, f"/v1/templates/{tpl['templateId']}", lambda o: o["status"]["phase"])
    assert old.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
    paths = [f"/v1/sandboxes/{box}", f"/v1/sandboxes/{running}", f"/v1/snapshots/{snapshot}", f"/v1/templates/{tpl['templateId']}", "/v1/snapshots"]
    before = [old.ask("GET", p)[1] for p in paths]
    old.end()
    blobs = sorted(p.name for p in (old.dir / "state" / "blobs").iterdir())
    old.program = HostDaemon.PROGRAM
    old.again()
    assert [old.ask("GET", p)[1] for p in paths[:3] + paths[4:]] == before[:3] + before[4:]
    ready(old, paths[3], lambda o: o["status"]["phase"])
    assert [i["state"] for i in old.ask("GET", "/v1/mayfly/templates")[1]["items"]] == ["Ready"]
    assert "mayfly_quarantined_records 0" in old.ask("GET", "/metrics")[1]
    assert old.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202
    for b in (box, running):
        assert old.run(b, "echo on")[-1]["type"] == "execution_complete"
    assert old.ask("POST", "/v1/sandboxes", {"snapshotId": snapshot, "resourceLimits": {"memory": "256Mi"}})[0] == 202
    assert old.ask("POST", "/v1/sandboxes", {"templateId": tpl["templateId"], "timeout": 60})[0] == 202
    old.end()
    with sqlite3.connect(old.dir / "state" / "state.db") as db:
        assert {o for t in ("sandboxes", "checkpoints") for (o,) in db.execute(f"SELECT json_extract(doc, '$.owner') FROM {t}")} <= {"operator", None, "operator/operator"}
        rows = db.execute("SELECT count(*) FROM checkpoints").fetchone()
    now = sorted(p.name for p in (old.dir / "state" / "blobs").iterdir())
    assert {f for f in blobs if f.endswith(".mem")} & set(now)
    old.program = previous / "build" / "bin" / "mayflyd"
    with pytest.raises(AssertionError, match="3 columns but 2 values"):
        old.again()
    assert sorted(p.name for p in (old.dir / "state" / "blobs").iterdir()) == now
    with sqlite3.connect(old.dir / "state" / "state.db") as db:
        assert db.execute("SELECT count(*) FROM checkpoints").fetchone() == rows


def test_a_damaged_file_is_not_converted(old):
    for _ in range(12):
        box = old.create(timeout=3600)
    old.end()
    path = old.dir / "state" / "state.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 4096):
        if box.encode() in data[at:at + 4096]:
            data[at:at + 4096] = bytes(4096)
    path.write_bytes(data)
    blobs = sorted(p.name for p in (old.dir / "state" / "blobs").iterdir())
    old.program = HostDaemon.PROGRAM
    with pytest.raises(AssertionError, match="which stays as it was"):
        old.again()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (0,)
    assert sorted(p.name for p in (old.dir / "state" / "blobs").iterdir()) == blobs
