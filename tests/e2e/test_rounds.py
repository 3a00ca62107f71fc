# SPDX-License-Identifier: Apache-2.0
"""One machine that is paused and resumed, or snapshotted and restored, over and over: its files, its database and a process from before are asked each
time. And a pause that leaves memory where it is."""
import os
import re
import time

import pytest

from pointkit import ask, delete_snapshot, from_snapshot, python_box, wall
from test_lifecycle import call, until

STRESS = bool(os.environ.get("MAYFLY_STRESS"))
CHAIN = 100 if STRESS else 10
ROUNDS = int(os.environ.get("MAYFLY_ROUNDS", 1000 if STRESS else 30))


@pytest.fixture
def box(daemon, python_image):
    b = python_box(daemon, python_image).start_helper()
    yield b
    b.delete()


def test_rounds_of_pause_and_resume_with_a_database(box):
    pid = box.ask("pid")
    identity = box.run("cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname")
    for i in range(ROUNDS):
        assert box.run(f"{ask('insert', i)}; head -c 30000 /dev/urandom > /root/f{i % 20}; cat /root/f* | sha256sum > /root/sum") == "ok\n"
        box.post("pause")
        box.post("resume")
        assert box.run("cat /root/f* | sha256sum | cmp - /root/sum && echo same") == "same\n", i
        if i % 10 == 9:
            rows, _ = map(int, box.ask("check").split())
            assert rows == i + 1
    assert int(box.ask("check").split()[0]) == ROUNDS
    assert box.ask("pid") == pid and box.run("cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname") == identity


def test_chain_of_snapshots(daemon, python_image):
    """Each is taken of a machine that was restored from the one before; what is behind is deleted as the chain goes on."""
    b, snapshot = python_box(daemon, python_image).start_helper(), None
    try:
        pid, count = b.ask("pid"), 0
        for i in range(CHAIN):
            assert b.run(f"{ask('insert', i)}; head -c 30000 /dev/urandom > /root/f{i}; cat /root/f* | sha256sum > /root/sum") == "ok\n"
            taken = b.snapshot()
            b.run("rm -rf /root/f*; echo other > /root/sum")
            b.delete()
            if snapshot:
                delete_snapshot(daemon, snapshot)
            b, snapshot = from_snapshot(daemon, taken), taken
            same, rows, n, its = b.run(f"cat /root/f* | sha256sum | cmp - /root/sum && echo same; {ask('check')}; {ask('pid')}").split()
            assert (same, int(rows), its) == ("same", i + 1, pid) and int(n) > count, i
            count = int(n)
    finally:
        b.delete()
        if snapshot:
            delete_snapshot(daemon, snapshot)


def test_resident_pause(daemon, box):
    """Memory stays where it is: the same monitor before and after, also when the daemon died meanwhile; it ends with that monitor, and says so."""
    def monitor():
        return re.search(r"^vm: slot (\d+), pid (\d+)$", box.inspect(), re.M)[2]

    def state():
        return call(daemon, "GET", f"/v1/sandboxes/{box.id}")[1]["status"]

    was, identity = monitor(), box.run("cat /etc/machine-id /proc/sys/kernel/random/boot_id")
    for killed in (False, True):
        count = int(box.ask("count"))
        box.post("pause?mode=resident")
        assert state()["state"] == "Paused" and monitor() == was
        assert call(daemon, "GET", f"/{box.id}/44772/ping")[0] == 409
        if killed:
            daemon.kill()
            daemon.wait()
            assert state()["state"] == "Paused"
        box.post("resume")
        assert int(box.ask("check").split()[1]) > count and monitor() == was
        assert box.run("cat /etc/machine-id /proc/sys/kernel/random/boot_id") == identity
        ahead, unsure = wall(daemon.machine)
        asked = time.time() + ahead - unsure
        assert asked - 1.5 <= float(box.ask("clock")) <= time.time() + ahead + unsure + 0.1
    assert box.post("pause?mode=other", 400)["code"] == "SANDBOX::INVALID_PARAMETER"
    box.post("pause?mode=resident")
    daemon.machine.run("kill", "-9", was, check=True)
    assert "ended" in until(daemon, box.id, "Failed")["status"]["message"]
