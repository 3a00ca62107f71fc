# SPDX-License-Identifier: Apache-2.0
"""What the previous build paused and snapshotted goes on under this one: its records, its state and memory files, and its agent, which is in that
memory and cannot be exchanged. The previous build is made from the repository's own history, once, and kept beside the kernels."""
import os
import subprocess

import pytest

from conftest import CACHE, TOP
from test_faults import COUNT
from test_lifecycle import call, create, run, until

# the last commit whose monitors, agents and records may still be paused somewhere; moved when a format's version moves
PREVIOUS = "fe2a65ce"


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
        env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
        r = subprocess.run(["make", "-s", "-j2", "all"], cwd=folder, env=env, capture_output=True, text=True)
        assert r.returncode == 0, r.stdout[-2000:] + r.stderr[-2000:]
        (folder / "built").touch()
    return folder


def test_what_the_previous_build_left_goes_on(daemon, previous):
    if not hasattr(daemon, "restart"):
        pytest.skip("the daemon is not ours")
    ours = daemon.bin
    daemon.bin = daemon.machine.publish(previous / "build" / "bin", CACHE / "guest-vmlinux", previous / "build" / "initramfs.cpio")
    daemon.restart()
    try:
        ids = [create(daemon)["id"] for _ in range(2)]
        for i in ids:
            run(daemon, i, COUNT + "; head -c 300000 /dev/urandom > /tmp/f; md5sum /tmp/f > /tmp/sum")
        pids = [run(daemon, i, "cat /tmp/pid") for i in ids]
        _, snapshot, _ = call(daemon, "POST", f"/v1/sandboxes/{ids[0]}/snapshots")
        # a pause waits for the snapshot before it
        for i in ids:
            assert call(daemon, "POST", f"/v1/sandboxes/{i}/pause")[0] == 202
    finally:
        daemon.bin = ours
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
