# SPDX-License-Identifier: Apache-2.0
"""A monitor that was taken over. No process that runs user code can write a file that another sandbox reads, and nothing is published before the kernel
has said so: with scripted monitors on this host, and in the appliance with the descriptors of real ones, taken from outside."""
import os
import re
import subprocess
import time

import pytest

from conftest import TOP
from hostdaemon import BOX, WAIT_S, HostDaemon
from test_lifecycle import SLOW, call, create, run
from test_lifecycle import until as running

BLOBS = "/var/lib/mayfly/state/blobs"


@pytest.fixture
def host(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


def until(get, good, limit=WAIT_S):
    end = time.monotonic() + limit
    while not good(got := get()):
        assert time.monotonic() < end, got
        time.sleep(0.05)
    return got


def snapshot_of(host, box):
    s = host.ask("POST", f"/v1/sandboxes/{box}/snapshots")[1]["id"]
    return until(lambda: host.ask("GET", f"/v1/snapshots/{s}")[1], lambda o: o["status"]["state"] in ("Ready", "Failed"))


# ---- on this host

@pytest.mark.parametrize("plan, why", [({"snapshot": "keep"}, r"\.mem open for writing"), ({"read-only": "keep"}, r"\.data open for writing"),
                                       ({"read-only": "silent"}, "did not give up its write access"), ({"read-only": "error"}, "told to fail")])
def test_a_monitor_that_keeps_write_access_publishes_nothing(host, plan, why):
    host.start({"runtime": {"templates": False}})
    box = host.create()
    host.plan(**plan)
    s = snapshot_of(host, box)
    assert s["status"]["state"] == "Failed" and re.search(why, s["status"]["message"]), s
    status, e, _ = host.ask("POST", "/v1/sandboxes", {"snapshotId": s["id"], "resourceLimits": {"memory": "256Mi"}})
    assert (status, e["code"]) == (409, "SNAPSHOT::NOT_READY")
    # the sandbox goes on; when its monitor has given up what it kept, all of that becomes a snapshot
    assert host.run(box, "echo on")[-1]["type"] == "execution_complete"
    host.plan()
    assert snapshot_of(host, box)["status"]["state"] == "Ready"


def test_a_template_of_such_a_monitor_is_none(host):
    """The create that made it is not held up, and the next one boots."""
    host.plan(**{"read-only": "keep"})
    host.start()
    boxes = [host.create(), host.create()]
    until(host.log, lambda text: "is not published" in text)
    assert "Ready" not in [t["state"] for t in host.ask("GET", "/v1/mayfly/templates")[1]["items"]]
    assert [host.run(b, "echo on")[-1]["type"] for b in boxes] == ["execution_complete"] * 2


@pytest.mark.parametrize("read_only", ["ok", "keep"])
def test_a_sandbox_that_goes_meanwhile(host, read_only):
    """Its monitor is ended first, and with it whatever it kept."""
    host.start({"runtime": {"templates": False}})
    box = host.create()
    host.plan(**{"read-only": read_only})
    s = host.ask("POST", f"/v1/sandboxes/{box}/snapshots")[1]["id"]
    until(host.steps, lambda steps: any(what == "read-only" for _, what in steps))
    assert host.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
    until(lambda: host.ask("GET", f"/v1/snapshots/{s}")[1]["status"]["state"], lambda state: state == "Ready")


def test_garbage_is_no_working_set(host):
    host.start()
    host.create()
    tpl, = until(lambda: host.ask("GET", "/v1/mayfly/templates")[1]["items"], lambda t: t and t[0]["state"] == "Ready")
    host.plan(workset="garbage")
    host.create()
    ws = until(lambda: host.ask("GET", f"/v1/mayfly/points/{tpl['id']}")[1]["workingSet"], lambda w: w["rounds"])
    assert (ws["pagesRead"], ws["pagesWritten"]) == (0, 0)
    assert not [p for p in (host.dir / "state" / "blobs").iterdir() if p.suffix == ".ws"]


def test_a_descriptor_that_its_monitor_makes_blocking(host):
    """The daemon reads what somebody else opened without relying on its flags: its loop would stop for ever."""
    host.plan(ready="hold")
    host.start({"runtime": {"templates": False}})
    box = host.create()
    host.plan(go="yes")
    until(host.steps, lambda steps: any(what == "held" for _, what in steps))
    for _ in range(20):
        assert host.ask("GET", "/health", timeout=20)[0] == 200
    assert host.run(box, "echo on")[-1]["type"] == "execution_complete"


def test_verify_finds_a_changed_byte_of_a_layer(host):
    """A layer has no checksums of its own, and another byte of a unit fits its header: only the digest of what was published can tell."""
    host.start({"runtime": {"templates": False}})
    s = snapshot_of(host, host.create())
    assert s["status"]["state"] == "Ready", s
    path, blobs = f"/v1/mayfly/points/{s['id']}", host.dir / "state" / "blobs"
    layer = host.ask("GET", path)[1]["diskLayers"][-1]["id"]
    until(lambda: (blobs / f"{layer}.sum").exists(), bool)

    def said():
        """Of the layer; the state file of a scripted monitor is none."""
        return [f.get("error") for f in host.ask("POST", f"{path}/verify")[1]["files"] if f["id"] == layer]
    assert said() == [None]
    with open(blobs / f"{layer}.data", "r+b") as f:
        f.seek(7)
        f.write(b"X")
    assert "not the one that was published" in (said()[0] or "good")


# ---- what a client was promised

def test_a_token_does_not_vanish_with_a_memory_snapshot(host):
    """With mayfly.snapshot = memory the environment stays the source's: a token that the create gives would guard nothing."""
    host.start({"runtime": {"templates": False}})
    s = snapshot_of(host, host.create())
    assert s["status"]["state"] == "Ready", s
    body = {"snapshotId": s["id"], "resourceLimits": {"memory": "256Mi"}}
    token = {"env": {"EXECD_ACCESS_TOKEN": "secret"}}
    status, e, _ = host.ask("POST", "/v1/sandboxes", body | token | {"extensions": {"mayfly.snapshot": "memory"}})
    assert status == 400 and "EXECD_ACCESS_TOKEN" in e["message"], e
    # a boot of the snapshot's disk has the token
    status, box, _ = host.ask("POST", "/v1/sandboxes", body | token)
    assert status == 202, box
    host.until(box["id"], "Running")
    assert host.ask("POST", f"/{box['id']}/44772/command", {"command": "true"})[0] == 401


def test_memory_is_not_promised_twice(host):
    """Without limits.memory_mib there is as much as the host has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    host.start({"runtime": {"templates": False}, "limits": {"memory_mib": 0}})
    size = min(total // 4, 16384) >> 7 << 7  # no more is given to one sandbox
    made = 0
    while (answer := host.ask("POST", "/v1/sandboxes", BOX | {"resourceLimits": {"memory": f"{size}Mi"}}))[0] == 202:
        made += 1
        assert made * size <= total, (made, size, total)
    assert answer[0] == 429 and made >= 2, answer
    assert int(re.search(r"MiB free of (\d+)", answer[1]["message"])[1]) <= total, answer


# ---- with real monitors

class Held:
    """All writable descriptors of layers and memory that a process has, copied and kept."""

    def __init__(self, daemon, pid):
        tool = daemon.machine.publish(TOP / "build" / "tools" / "takefd") + "/takefd"
        self.machine, self.files = daemon.machine, set()
        self.proc = daemon.machine.popen(tool, pid, "/blobs/", stdout=subprocess.PIPE, text=True)
        while not (line := self.proc.stdout.readline().strip()).startswith("held "):
            assert line, "the tool has ended"
            self.files.add(line.rsplit("/", 1)[-1])
        self.pid = line.split()[1]

    def release(self):
        self.machine.run("kill", self.pid, check=True)
        self.proc.wait(60)


def monitor_of(daemon, box):
    text = call(daemon, "GET", f"/v1/sandboxes/{box}/diagnostics/inspect")[1]
    return int(re.search(r"^vm: .*pid (\d+)", text, re.M)[1])


def files_of(daemon, point):
    p = call(daemon, "GET", f"/v1/mayfly/points/{point}")[1]
    return {f["id"] for f in p["memoryFiles"] + p["diskLayers"]}


def taken(daemon, box):
    s = call(daemon, "POST", f"/v1/sandboxes/{box}/snapshots")[1]["id"]
    return until(lambda: call(daemon, "GET", f"/v1/snapshots/{s}")[1], lambda o: o["status"]["state"] in ("Ready", "Failed"), SLOW)


def test_a_monitor_cannot_write_what_others_stand_on(daemon):
    """The attack: the first sandbox of an image leaves the template, and then runs the user's code in the same monitor."""
    for t in call(daemon, "GET", "/v1/mayfly/templates")[1]["items"]:
        call(daemon, "DELETE", f"/v1/mayfly/templates/{t['id']}")
    box = create(daemon)["id"]
    # one that another test began may come, too
    made = until(lambda: call(daemon, "GET", "/v1/mayfly/templates")[1]["items"], lambda ts: [t for t in ts if t["state"] == "Ready"] == ts != [], SLOW)
    run(daemon, box, "echo secret > /root/word; sync")
    shared = set().union(*[files_of(daemon, t["id"]) for t in made])
    pid = monitor_of(daemon, box)
    held = Held(daemon, pid)
    # its log is a pipe of its own, and no file can become longer than it may ever need
    assert {f"pipe:{n}" for n in "012"} == {daemon.machine.run("readlink", f"/proc/{pid}/fd/{n}").stdout[:5] + n for n in "012"}
    limit, = re.findall(r"Max file size +(\d+)", daemon.machine.run("cat", f"/proc/{pid}/limits").stdout)
    assert int(limit) < 64 << 30
    assert held.files and not {f for f in held.files if f.split(".")[0] in shared}, held.files
    # what was taken is the private layer: it cannot become a snapshot now, and the sandbox goes on
    s = taken(daemon, box)
    assert s["status"]["state"] == "Failed" and "open for writing" in s["status"]["message"], s
    assert run(daemon, box, "cat /root/word") == "secret\n"
    held.release()
    s = taken(daemon, box)
    assert s["status"]["state"] == "Ready", s
    held = Held(daemon, monitor_of(daemon, box))
    assert not {f for f in held.files if f.split(".")[0] in files_of(daemon, s["id"])}, held.files
    held.release()
    status, clone, _ = call(daemon, "POST", "/v1/sandboxes", {"snapshotId": s["id"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "timeout": 600})
    assert status == 202, clone
    clone = clone["id"]
    running(daemon, clone, "Running")
    assert run(daemon, clone, "cat /root/word") == "secret\n"
    # one unit of a layer is changed by somebody who can: verification finds it
    layer = call(daemon, "GET", f"/v1/mayfly/points/{s['id']}")[1]["diskLayers"][-1]["id"]
    until(lambda: daemon.machine.run("test", "-f", f"{BLOBS}/{layer}.sum").returncode, lambda rc: rc == 0, SLOW)
    assert call(daemon, "POST", f"/v1/mayfly/points/{s['id']}/verify")[1]["ok"]
    daemon.machine.run("sh", "-ec", f"printf X | dd of={BLOBS}/{layer}.data bs=1 seek=7 conv=notrunc 2>/dev/null", check=True)
    bad = call(daemon, "POST", f"/v1/mayfly/points/{s['id']}/verify")[1]
    assert not bad["ok"] and any(f["id"] == layer and "not the one that was published" in f.get("error", "") for f in bad["files"]), bad
    for b in (box, clone):
        call(daemon, "DELETE", f"/v1/sandboxes/{b}")
    call(daemon, "DELETE", f"/v1/snapshots/{s['id']}")
