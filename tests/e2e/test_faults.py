# SPDX-License-Identifier: Apache-2.0
"""Daemon and monitor killed, and out of space, at each step of pause, resume and snapshot (lib/fault.h names them): afterwards there is the old
state or the new one, and what was in the guest's memory, files and database is there. The daemon runs with --faults, which only tests do."""
import itertools
import json
import os
import time
import urllib.error
import urllib.request
import uuid

import pytest

from test_lifecycle import SLOW, call, create, run, until

STRESS = bool(os.environ.get("MAYFLY_STRESS"))
SIZES = itertools.count(11000)  # an image's own disk is smaller
POINT = ["begun", "quiet", "noted", "asked", "frozen", "followed", "durable", "saved"]
RESUME = ["begun", "disk", "asked", "loaded", "ready", "thawed", "saved"]
VMM_POINT = ["quiet", "frozen", "saved", "write", "disks", "memory", "state"]
VMM_RESUME = ["tables", "mapped", "loaded", "runs"]
COUNT = "(i=0; while :; do i=$((i+1)); echo $i > /tmp/c; mv /tmp/c /tmp/count; sleep 0.1; done) >/dev/null 2>&1 & echo $! > /tmp/pid"
WHO = "cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname; cat /tmp/pid"


class Faulty:
    """The session's daemon, restarted with faults allowed, and the file that asks for them."""

    def __init__(self, daemon):
        self.daemon = daemon

    def ask(self, *lines):
        self.daemon.machine.run("dd", "of=/run/mayfly/fault", "status=none", stdin="\n".join(lines) + "\n", check=True)

    def rest(self):
        return self.daemon.machine.run("cat", "/run/mayfly/fault").stdout.split("\n")


@pytest.fixture(scope="module")
def faulty(daemon):
    if not hasattr(daemon, "restart"):
        pytest.skip("the daemon is not ours")
    daemon.restart("[debug]\nfaults = true\n", "--faults")
    yield Faulty(daemon)
    daemon.machine.run("rm", "-f", "/run/mayfly/fault")
    daemon.restart()


def may_be_cut_off(daemon, method, path, body=None):
    """(status, answer), or None when the daemon died under it; then it is waited for."""
    try:
        status, answer, _ = call(daemon, method, path, body)
        return status, answer
    except (urllib.error.URLError, ConnectionError, OSError):
        daemon.wait()
        return None


def settled(daemon, sandbox):
    return until(daemon, sandbox, "Running", "Paused", "Failed", "Terminated")["status"]


class Guest:
    """A sandbox whose memory, files and running process can be asked whether they are what they were."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.id = create(daemon)["id"]
        self.n = 0
        run(daemon, self.id, COUNT + "; mkdir /tmp/d; head -c 200000 /dev/urandom > /tmp/d/f; md5sum /tmp/d/f > /tmp/sum; sync")
        self.identity = self.who()

    def who(self):
        return run(self.daemon, self.id, WHO)

    def write(self):
        """What is acknowledged before the step: in a file that is not synced, and in the memory of the counting process."""
        self.n += 1
        self.count = int(run(self.daemon, self.id, f"echo line {self.n} >> /tmp/d/log; head -c 50000 /dev/urandom >> /tmp/d/f; md5sum /tmp/d/f > /tmp/sum; cat /tmp/count"))

    def check(self):
        state = settled(self.daemon, self.id)
        assert state["state"] in ("Running", "Paused"), state
        if state["state"] == "Paused":
            status, e, _ = call(self.daemon, "POST", f"/v1/sandboxes/{self.id}/resume")
            assert status == 202, e
        # the last word comes only when the process that counted has gone on
        text = run(self.daemon, self.id, f"md5sum -c /tmp/sum; wc -l < /tmp/d/log; {WHO}; until [ $(cat /tmp/count) -gt {self.count} ]; do sleep 0.1; done; echo counts")
        assert text.split() == ["/tmp/d/f:", "OK", str(self.n), *self.identity.split(), "counts"], text
        return state["state"]

    def delete(self):
        call(self.daemon, "DELETE", f"/v1/sandboxes/{self.id}")


@pytest.fixture
def guest(daemon, faulty):
    g = Guest(daemon)
    yield g
    g.delete()


def paused(daemon, guest):
    if settled(daemon, guest.id)["state"] == "Running":
        status, e, _ = call(daemon, "POST", f"/v1/sandboxes/{guest.id}/pause")
        assert status == 202, e


def test_daemon_killed_at_each_step_of_pause(daemon, faulty, guest):
    seen = {}
    for step in POINT:
        guest.write()
        faulty.ask(f"point.{step} kill")
        assert may_be_cut_off(daemon, "POST", f"/v1/sandboxes/{guest.id}/pause") is None, f"{step}: the daemon lived"
        seen[step] = guest.check()
    assert seen["begun"] == seen["noted"] == "Running" and seen["durable"] == seen["saved"] == "Paused", seen


def test_daemon_killed_while_the_monitor_still_writes(daemon, faulty, guest):
    """The next daemon comes before the monitor is done, or just after."""
    for slow in ("quiet", "write", "state"):
        guest.write()
        faulty.ask(f"vmm.{slow} wait", "point.asked kill")
        assert may_be_cut_off(daemon, "POST", f"/v1/sandboxes/{guest.id}/pause") is None
        assert guest.check() == "Paused", slow


def test_daemon_killed_at_each_step_of_resume(daemon, faulty, guest):
    for step in RESUME:
        guest.write()
        paused(daemon, guest)
        faulty.ask(f"resume.{step} kill")
        assert may_be_cut_off(daemon, "POST", f"/v1/sandboxes/{guest.id}/resume") is None, f"{step}: the daemon lived"
        assert guest.check() == ("Running" if step == "saved" else "Paused"), step


def test_daemon_killed_at_each_step_of_snapshot(daemon, faulty, guest):
    for step in POINT:
        guest.write()
        faulty.ask(f"point.{step} kill")
        name = str(uuid.uuid4())
        may_be_cut_off(daemon, "POST", f"/v1/sandboxes/{guest.id}/snapshots", {"name": name})
        end = time.monotonic() + SLOW
        while any(faulty.rest()):
            assert time.monotonic() < end, step
            time.sleep(0.1)
        daemon.wait()
        assert guest.check() == "Running", step
        s = call(daemon, "GET", f"/v1/snapshots?name={name}")[1]["items"]
        # an unacknowledged one may be gone; one that is there says what it is
        assert not s or s[0]["status"]["state"] == ("Ready" if step == "saved" else "Failed"), (step, s)
        if s:
            assert call(daemon, "DELETE", f"/v1/snapshots/{s[0]['id']}")[0] == 204
    guest.write()
    assert call(daemon, "POST", f"/v1/sandboxes/{guest.id}/pause")[0] == 202
    assert guest.check() == "Paused"


def test_no_space_at_each_step(daemon, faulty, guest):
    """The answer is an error, the sandbox runs on, and the next attempt succeeds."""
    steps, both = [f"vmm.{s}" for s in VMM_POINT], ("pause", "snapshots")
    for step, what in itertools.product(steps, both) if STRESS else zip(steps, itertools.cycle(both)):
        guest.write()
        faulty.ask(f"{step} fail")
        status, answer, _ = call(daemon, "POST", f"/v1/sandboxes/{guest.id}/{what}")
        if what == "pause":
            assert status == 500 and answer["code"] == "DOCKER::SANDBOX_PAUSE_FAILED" and "space" in answer["message"], answer
        else:
            assert status == 202
            end = time.monotonic() + SLOW
            while call(daemon, "GET", f"/v1/snapshots/{answer['id']}")[1]["status"]["state"] == "Creating":
                assert time.monotonic() < end
                time.sleep(0.1)
            assert call(daemon, "GET", f"/v1/snapshots/{answer['id']}")[1]["status"]["state"] == "Failed"
            call(daemon, "DELETE", f"/v1/snapshots/{answer['id']}")
        assert guest.check() == "Running", (step, what)
    paused(daemon, guest)
    for step in VMM_RESUME:
        faulty.ask(f"vmm.{step} fail")
        assert call(daemon, "POST", f"/v1/sandboxes/{guest.id}/resume")[0] == 500
        assert settled(daemon, guest.id)["state"] == "Paused", step
    assert guest.check() == "Paused"


def test_no_space_for_the_record(daemon, faulty, guest):
    """Each write of it fails once; the daemon is killed afterwards, so that what stands in the record is what there is."""
    seen = set()
    for nth in range(4):
        guest.write()
        faulty.ask(*["record pass"] * nth, "record fail")
        status, answer, _ = call(daemon, "POST", f"/v1/sandboxes/{guest.id}/pause")
        assert (status == 202 or answer["code"] == "DOCKER::SANDBOX_PAUSE_FAILED") and not any(faulty.rest()), (nth, answer)
        daemon.kill()
        daemon.wait()
        assert guest.check() == ("Paused" if status == 202 else "Running"), nth
        seen.add(status)
    assert seen == {202, 500}
    for nth in range(2):
        paused(daemon, guest)
        faulty.ask(*["record pass"] * nth, "record fail")
        assert call(daemon, "POST", f"/v1/sandboxes/{guest.id}/resume")[0] == 500
        assert guest.check() == "Paused", nth


def test_monitor_killed_at_each_step_of_resume(daemon, faulty, guest):
    guest.write()
    for step in VMM_RESUME:
        paused(daemon, guest)
        faulty.ask(f"vmm.{step} kill")
        assert call(daemon, "POST", f"/v1/sandboxes/{guest.id}/resume")[0] == 500
        assert guest.check() == "Paused", step
    for step in ("asked", "loaded", "ready", "thawed"):
        paused(daemon, guest)
        faulty.ask(f"resume.{step} kill-vmm")
        status = call(daemon, "POST", f"/v1/sandboxes/{guest.id}/resume")[0]
        # killed while it is told to be Running: then it fails like any VM that is killed, and that is no resume's step any more
        if step == "thawed" and status == 202:
            assert until(daemon, guest.id, "Failed")
            break
        assert status == 500 and guest.check() == "Paused", step


@pytest.mark.parametrize("step", ["quiet", "frozen", "saved"])
def test_monitor_killed_while_it_pauses(daemon, faulty, step):
    """Memory goes with its process. The sandbox says that it failed, and why."""
    g = Guest(daemon)
    try:
        g.write()
        faulty.ask(f"vmm.{step} kill")
        status, answer, _ = call(daemon, "POST", f"/v1/sandboxes/{g.id}/pause")
        assert status == 500 and answer["code"] == "DOCKER::SANDBOX_PAUSE_FAILED", answer
        state = settled(daemon, g.id)
        assert state["state"] == "Failed" and "mayfly-vmm ended" in state["message"], state
    finally:
        g.delete()


def test_monitor_killed_while_its_pause_is_written(daemon, faulty):
    """The writer is a child of the monitor, and dies with it."""
    g = Guest(daemon)
    try:
        g.write()
        faulty.ask("vmm.write wait", "point.asked kill-vmm")
        status, answer, _ = call(daemon, "POST", f"/v1/sandboxes/{g.id}/pause")
        assert status == 500 and answer["code"] == "DOCKER::SANDBOX_PAUSE_FAILED", answer
        assert settled(daemon, g.id)["state"] == "Failed"
    finally:
        g.delete()


def test_writer_of_a_pause_killed(daemon, faulty, guest):
    """The memory is the monitor's, which lives: the pause fails, and the sandbox runs on."""
    for step in ("write", "disks", "memory", "state"):
        guest.write()
        faulty.ask(f"vmm.{step} kill")
        status, answer, _ = call(daemon, "POST", f"/v1/sandboxes/{guest.id}/pause")
        assert status == 500 and "died" in answer["message"], (step, answer)
        assert guest.check() == "Running", step
    guest.write()
    assert call(daemon, "POST", f"/v1/sandboxes/{guest.id}/pause")[0] == 202
    assert guest.check() == "Paused"


def test_writer_of_a_live_snapshot_killed(daemon, faulty, guest):
    for step in ("write", "disks", "memory", "state"):
        guest.write()
        faulty.ask(f"vmm.{step} kill")
        _, s, _ = call(daemon, "POST", f"/v1/sandboxes/{guest.id}/snapshots")
        end = time.monotonic() + SLOW
        while s["status"]["state"] == "Creating":
            assert time.monotonic() < end
            s = call(daemon, "GET", f"/v1/snapshots/{s['id']}")[1]
        assert s["status"]["state"] == "Failed" and "died" in s["status"]["message"], s
        assert guest.check() == "Running", step


@pytest.fixture
def young(daemon, faulty):
    """A sandbox that just runs, with a template of its own still being written: one for a disk of this size has nobody made."""
    daemon.limits_more = f"disk_mib = {next(SIZES)}"
    daemon.reconfigure()
    faulty.ask("vmm.write wait")
    sandbox = create(daemon)["id"]
    yield sandbox
    call(daemon, "DELETE", f"/v1/sandboxes/{sandbox}")
    daemon.limits_more = ""
    daemon.reconfigure()


def snapshot_of(daemon, sandbox):
    status, s, _ = call(daemon, "POST", f"/v1/sandboxes/{sandbox}/snapshots")
    assert status == 202, s
    return s["id"]


def taken(daemon, snapshot):
    end = time.monotonic() + SLOW
    while True:
        s = call(daemon, "GET", f"/v1/snapshots/{snapshot}")[1]
        if s["status"]["state"] != "Creating":
            assert call(daemon, "DELETE", f"/v1/snapshots/{snapshot}")[0] == 204
            return s["status"]
        assert time.monotonic() < end, s
        time.sleep(0.1)


def test_a_snapshot_waits_for_the_template(daemon, young):
    """Nobody who asks for one need know that the daemon writes another, and a pause comes after both."""
    snapshot = snapshot_of(daemon, young)
    status, e, _ = call(daemon, "POST", f"/v1/sandboxes/{young}/pause")
    assert status == 202, e
    until(daemon, young, "Paused")
    assert taken(daemon, snapshot)["state"] == "Ready"


def test_a_snapshot_that_waits_says_that_its_sandbox_went(daemon, young):
    snapshot = snapshot_of(daemon, young)
    assert call(daemon, "DELETE", f"/v1/sandboxes/{young}")[0] == 204
    status = taken(daemon, snapshot)
    assert status["state"] == "Failed" and "ended before" in status["message"], status


def test_faults_are_refused_without_the_flag(daemon, faulty):
    m = daemon.machine
    m.run("dd", "of=/run/mayfly-e2e/f.toml", "status=none", stdin="[debug]\nfaults = true\n", check=True)
    r = m.run(f"{daemon.bin}/mayflyd", "--config", "/run/mayfly-e2e/f.toml", "--check")
    assert r.returncode == 2 and "--faults" in r.stderr, r
    assert m.run(f"{daemon.bin}/mayflyd", "--config", "/run/mayfly-e2e/f.toml", "--faults", "--check").returncode == 0
