# SPDX-License-Identifier: Apache-2.0
"""A state folder that is really full (test_faults makes such errors by a fault step): the data disk is filled up to what a step leaves, and at
each of create, template, pause and snapshot there is afterwards the old state or the new one, the answer says why, and with room again it works.
To the last block, and resume: test_full_host.py."""
import time

import pytest

from test_lifecycle import SLOW, call, create, run, until

FILLER = "/var/lib/mayfly/filler"
COUNT = "(i=0; while :; do i=$((i+1)); echo $i > /tmp/c; mv /tmp/c /tmp/count; sleep 0.1; done) >/dev/null 2>&1 & echo $! > /tmp/pid"
# a megabyte for each file's first blocks and the database; memory is tens of them
LITTLE_KIB = 6 << 10
BALLAST_MIB = 12


class Disk:
    """The daemon's data disk, and a file that takes what is free of it."""

    def __init__(self, machine):
        self.machine = machine

    def free_kib(self):
        return int(self.machine.run("df", "-k", "/var/lib/mayfly", check=True).stdout.splitlines()[-1].split()[3])

    def leave(self, kib):
        """So many KiB stay free, or a little less; 0: not a block is given."""
        self.room()
        self.machine.run("sh", "-c", f"fallocate -l {self.free_kib() - kib - 64}K {FILLER} && sync -f {FILLER}", check=True)
        if kib:
            assert self.free_kib() <= kib + 256, self.free_kib()
            return
        # in ever smaller pieces, until no block is given: what was removed before comes back late, and XFS counts as free what it keeps for itself
        self.machine.run("sh", "-c", f"sync -f {FILLER}; i=0; for k in 4096 1024 256 64 16 4 4096 256 16 4; do "
            f"while fallocate -l ${{k}}K {FILLER}.$i 2>/dev/null; do i=$((i+1)); done; rm -f {FILLER}.$i; done", check=True)
        assert self.machine.run("fallocate", "-l", "4K", f"{FILLER}.last").returncode != 0

    def room(self):
        self.machine.run("sh", "-c", f"rm -f {FILLER} {FILLER}.*; sync -f /var/lib/mayfly", check=True)


@pytest.fixture(scope="module")
def disk(daemon):
    if not hasattr(daemon, "reconfigure"):
        pytest.skip("the daemon is not ours")
    # else a create on a full disk would be refused long before it is full
    daemon.limits_more = "disk_reserve_mib = 0"
    daemon.reconfigure()
    d = Disk(daemon.machine)
    yield d
    d.room()
    daemon.limits_more = ""
    daemon.reconfigure()


@pytest.fixture
def guest(daemon, disk):
    """A sandbox whose processes, files and memory can be asked, with more memory of its own than LITTLE_KIB."""
    disk.room()
    sb = create(daemon)["id"]
    run(daemon, sb, f"{COUNT}; dd if=/dev/urandom of=/dev/shm/f bs=64k count={BALLAST_MIB * 16} 2>/dev/null; md5sum /dev/shm/f > /root/sum; sync; until [ -e /tmp/count ]; do sleep 0.1; done")
    yield sb
    disk.room()
    call(daemon, "DELETE", f"/v1/sandboxes/{sb}")


def files(daemon):
    return set(daemon.machine.run("ls", "/var/lib/mayfly/state/blobs").stdout.split())


def goes_on(daemon, sb):
    """It runs, it is the one that it was, and nothing of its memory and files is another."""
    was = int(run(daemon, sb, "cat /tmp/count"))
    assert run(daemon, sb, f"md5sum -c /root/sum; kill -0 $(cat /tmp/pid) && until [ $(cat /tmp/count) -gt {was} ]; do sleep 0.1; done; echo counts").split() == ["/dev/shm/f:", "OK", "counts"]


def settled(daemon, snapshot):
    end = time.monotonic() + SLOW
    while (s := call(daemon, "GET", f"/v1/snapshots/{snapshot}")[1])["status"]["state"] == "Creating":
        assert time.monotonic() < end, s
        time.sleep(0.1)
    return s["status"]


def test_create(daemon, disk):
    """No block for its private layer or its record: refused, nothing is left, and with room it is there."""
    body = {"image": {"uri": "tiny"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "timeout": 600}
    disk.room()
    before, ids = files(daemon), {s["id"] for s in call(daemon, "GET", "/v1/sandboxes?pageSize=200")[1]["items"]}
    disk.leave(0)
    status, e, _ = call(daemon, "POST", "/v1/sandboxes", body)
    assert status == 500 and "space" in e["message"].lower(), (status, e)
    disk.room()
    assert {s["id"] for s in call(daemon, "GET", "/v1/sandboxes?pageSize=200")[1]["items"]} == ids and files(daemon) <= before
    sb = create(daemon)["id"]
    assert run(daemon, sb, "echo there is room > /root/f; sync; cat /root/f") == "there is room\n"
    call(daemon, "DELETE", f"/v1/sandboxes/{sb}")


def templates(daemon):
    return call(daemon, "GET", "/v1/mayfly/templates")[1]["items"]


def test_template(daemon, disk):
    """The sandbox that should leave one goes on without; the next ones find one when there is room."""
    limits = {"cpu": "1", "memory": "640Mi"}  # a class that no other test's sandbox has: there is no template of it yet
    before = {t["id"] for t in templates(daemon)}
    disk.leave(LITTLE_KIB)
    sb = create(daemon, resourceLimits=limits)["id"]
    assert run(daemon, sb, "echo runs") == "runs\n"
    end = time.monotonic() + SLOW
    while (states := [t["state"] for t in templates(daemon) if t["id"] not in before]) != ["Failed"]:
        assert states != ["Ready"] and time.monotonic() < end, states
        time.sleep(0.1)
    disk.room()
    status, t, _ = call(daemon, "POST", "/v1/mayfly/templates", {"image": "tiny", "resourceLimits": limits})
    assert status == 201 and t["state"] == "Ready", t
    other = create(daemon, resourceLimits=limits)["id"]
    assert t["id"] in call(daemon, "GET", f"/v1/sandboxes/{other}/diagnostics/inspect")[1] and run(daemon, other, "echo restored") == "restored\n"
    for x in (sb, other):
        call(daemon, "DELETE", f"/v1/sandboxes/{x}")
    assert call(daemon, "DELETE", f"/v1/mayfly/templates/{t['id']}")[0] == 204


def test_pause_and_resume(daemon, disk, guest):
    before = files(daemon)
    disk.leave(LITTLE_KIB)
    status, e, _ = call(daemon, "POST", f"/v1/sandboxes/{guest}/pause")
    assert status == 500 and e["code"] == "DOCKER::SANDBOX_PAUSE_FAILED" and ("space" in e["message"].lower() or "written" in e["message"]), (status, e)
    assert call(daemon, "GET", f"/v1/sandboxes/{guest}")[1]["status"]["state"] == "Running"
    disk.room()
    goes_on(daemon, guest)
    # what was begun may have become its private layer; of the memory that did not fit nothing is left
    assert not [f for f in files(daemon) - before if f.endswith((".mem", ".state"))]
    status, e, _ = call(daemon, "POST", f"/v1/sandboxes/{guest}/pause")
    assert status == 202, e
    assert call(daemon, "POST", f"/v1/sandboxes/{guest}/resume")[0] == 202
    goes_on(daemon, guest)


def test_snapshot(daemon, disk, guest):
    before = files(daemon)
    disk.leave(LITTLE_KIB)
    status, s, _ = call(daemon, "POST", f"/v1/sandboxes/{guest}/snapshots")
    if status == 202:
        st = settled(daemon, s["id"])
        assert st["state"] == "Failed" and st["message"], st
        assert call(daemon, "POST", "/v1/sandboxes", {"snapshotId": s["id"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}})[0] == 409
    else:
        assert status == 500 and s["message"], (status, s)
    disk.room()
    goes_on(daemon, guest)
    assert not [f for f in files(daemon) - before if f.endswith((".mem", ".state"))]
    status, good, _ = call(daemon, "POST", f"/v1/sandboxes/{guest}/snapshots")
    assert status == 202 and settled(daemon, good["id"])["state"] == "Ready"
    status, copy, _ = call(daemon, "POST", "/v1/sandboxes", {"snapshotId": good["id"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}})
    assert status == 202, copy
    until(daemon, copy["id"], "Running")
    goes_on(daemon, copy["id"])
    call(daemon, "DELETE", f"/v1/sandboxes/{copy['id']}")
    for x in (s, good):
        if "id" in x:
            assert call(daemon, "DELETE", f"/v1/snapshots/{x['id']}")[0] == 204


def test_a_limit_counts_all_layers_of_a_disk(daemon, disk):
    """The monitor counts its newest layer. The one that a snapshot froze is counted by the file system's project quota. A write beyond the limit waits,
    a neighbour's goes on, and with more room the write ends."""
    def written_mib():
        return int(daemon.machine.run("sh", "-c", "du -ck /var/lib/mayfly/state/blobs/*.data | tail -n 1").stdout.split()[0]) >> 10

    def wait(good):
        end = time.monotonic() + SLOW
        while not good(n := written_mib()):
            assert time.monotonic() < end, n
            time.sleep(0.5)
        return n
    disk.room()
    daemon.limits_more = "disk_reserve_mib = 0\nsandbox_disk_mib = 96"
    daemon.reconfigure()
    try:
        sb, other = create(daemon)["id"], create(daemon)["id"]
        end = time.monotonic() + SLOW
        while [t for t in templates(daemon) if t["state"] == "Creating"]:  # it writes, too
            assert time.monotonic() < end, templates(daemon)
            time.sleep(0.1)
        before = written_mib()
        run(daemon, sb, "dd if=/dev/zero of=/root/one bs=1M count=60 conv=fsync 2>/dev/null")
        status, s, _ = call(daemon, "POST", f"/v1/sandboxes/{sb}/snapshots")
        assert status == 202 and settled(daemon, s["id"])["state"] == "Ready"
        assert call(daemon, "POST", f"/{sb}/44772/command", {"command": "dd if=/dev/zero of=/root/two bs=1M count=60 conv=fsync && touch /tmp/ended", "background": True})[0] == 200
        wait(lambda n: n >= before + 85)
        assert run(daemon, other, "dd if=/dev/zero of=/root/f bs=1M count=10 conv=fsync 2>/dev/null && echo done") == "done\n"
        assert written_mib() <= before + 96 + 10 + 2
        assert run(daemon, sb, "test -e /tmp/ended || echo waits") == "waits\n"
        daemon.limits_more = "disk_reserve_mib = 0"
        daemon.reconfigure()
        wait(lambda n: n >= before + 60 + 60 + 10)
        assert run(daemon, sb, "until [ -e /tmp/ended ]; do sleep 0.1; done; echo ended") == "ended\n"
    finally:
        daemon.limits_more = "disk_reserve_mib = 0"
        daemon.reconfigure()
    for x in (sb, other):
        call(daemon, "DELETE", f"/v1/sandboxes/{x}")
    assert call(daemon, "DELETE", f"/v1/snapshots/{s['id']}")[0] == 204
