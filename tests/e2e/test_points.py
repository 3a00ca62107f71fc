# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: many sandboxes restored from one at the same time, machines that are large or busy, and whether a snapshot is restored with its
memory or booted from its disk. A process from before the checkpoint is asked, not only files. One machine over and over: test_rounds.py."""
import concurrent.futures
import json
import os
import threading
import time
import urllib.request

import pytest

from pointkit import Box, ask, delete_snapshot, from_snapshot, python_box, wall
from test_lifecycle import SLOW, call

STRESS = bool(os.environ.get("MAYFLY_STRESS"))
AT_ONCE = 100 if STRESS else 20


@pytest.fixture
def box(daemon, python_image):
    b = python_box(daemon, python_image).start_helper(1.0 if STRESS else 0.05)
    yield b
    b.delete()


def all_at_once(fn, items):
    items = list(items)
    with concurrent.futures.ThreadPoolExecutor(max(len(items), 1)) as pool:
        return list(pool.map(fn, items))


def clones_of(daemon, snapshot, n):
    """All of them or none: what a failed one leaves behind would be the next test's load."""
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        made = [pool.submit(from_snapshot, daemon, snapshot) for _ in range(n)]
    if any(m.exception() for m in made):
        all_at_once(lambda c: c.delete(), [m.result() for m in made if not m.exception()])
        raise next(m.exception() for m in made if m.exception())
    return [m.result() for m in made]


def test_many_from_one_memory_are_other_machines(daemon, box):
    box.ask("insert", 1)
    box.run("mkdir /root/tree; for i in $(seq 40); do head -c $((i*1000)) /dev/urandom > /root/tree/$i; done; cd /root/tree && sha256sum * > /root/sums")
    pid, before = box.ask("pid"), int(box.ask("count"))
    snapshot = box.snapshot()
    clones = clones_of(daemon, snapshot, AT_ONCE)
    try:
        assert all("origin: memory" in c.inspect() for c in clones)
        # one command each: what must be its own (a process from before the point asks its open source again, too), then what must be the same
        look = ("cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname; head -c 16 /dev/urandom | sha256sum | cut -c1-64; "
                f"{ask('random')}; {ask('pid')}; {ask('check')}; cd /root/tree && sha256sum -c --quiet /root/sums; dmesg | grep -c 'EXT4-fs error' || true")
        seen = [t.split() for t in all_at_once(lambda c: c.run(look), clones)]
        for i, what in enumerate(("machine-id", "boot-id", "hostname", "noise", "old process's noise")):
            assert len({s[i] for s in seen}) == AT_ONCE, what
        for s in seen:
            assert s[5:7] == [pid, "1"] and int(s[7]) > before and s[8:] == ["0"], s
        # the daemon's clock against ours, so that each guest's is compared with a look at ours
        ahead, unsure = wall(daemon.machine)
        for c in clones:
            asked = time.time() + ahead - unsure
            clock = float(c.ask("clock"))
            # what it was told was right when it was sent: it may be late by the way of the thaw
            assert asked - 0.1 - c.phase_ms("setup") / 1000 <= clock <= time.time() + ahead + unsure + 0.1, (asked, clock, c.phase_ms("setup"))
        # and each goes its own way
        all_at_once(lambda c: c[1].run(f"echo {c[0]} > /root/tree/1; sync"), enumerate(clones))
        assert all_at_once(lambda c: c.run("cat /root/tree/1").strip(), clones) == [str(i) for i in range(AT_ONCE)]
        assert box.run("cd /root/tree && sha256sum -c --quiet /root/sums && echo same") == "same\n"
    finally:
        all_at_once(lambda c: c.delete(), clones)
        delete_snapshot(daemon, snapshot)


def test_two_processors_and_five_gib(daemon, python_image):
    b = python_box(daemon, python_image, memory="5Gi", cpu="2").start_helper()
    clone = snapshot = None
    try:
        assert b.run("nproc").strip() == "2" and int(b.run("awk '/MemTotal/{print $2}' /proc/meminfo")) > 4 << 20
        # pages above 4 GiB of guest-physical addresses, too: they are given out first
        b.run("mount -t tmpfs t /mnt; dd if=/dev/urandom of=/mnt/f bs=64k count=256 2>/dev/null; sha256sum /mnt/f > /root/sum")
        b.post("pause")
        b.post("resume")
        assert "OK" in b.run("sha256sum -c /root/sum")
        snapshot = b.snapshot()
        clone = Box(daemon, {"snapshotId": snapshot, "resourceLimits": {"cpu": "1", "memory": "256Mi"}})
        # the snapshot's size stands, whatever was asked for
        assert clone.run("nproc").strip() == "2" and "OK" in clone.run("sha256sum -c /root/sum")
        assert clone.ask("check") and b.ask("check")
    finally:
        for x in (b, clone):
            if x:
                x.delete()
        if snapshot:
            delete_snapshot(daemon, snapshot)


class Stream(threading.Thread):
    """A command whose output comes while the machine is frozen, copied and let go."""

    def __init__(self, daemon, sandbox, command):
        super().__init__(daemon=True)
        self.req = urllib.request.Request(f"{daemon.url}/{sandbox}/44772/command", method="POST", data=json.dumps({"command": command}).encode(),
                                          headers={"OPEN-SANDBOX-API-KEY": daemon.api_key, "Content-Type": "application/json"})
        self.text, self.done, self.begun = "", False, threading.Event()
        self.start()

    def run(self):
        with urllib.request.urlopen(self.req, timeout=SLOW) as r:
            for line in r:
                if not line.strip():
                    continue
                e = json.loads(line)
                if e["type"] == "stdout":
                    self.text += e["text"]
                    self.begun.set()
                self.done |= e["type"] == "execution_complete"


WRITER = ("i=0; while [ ! -e /root/stop ]; do i=$((i+1)); head -c 65536 /dev/urandom > /root/w/new; sha256sum < /root/w/new > /root/w/new.sum; "
          "sync; mv /root/w/new.sum /root/w/$((i%4)).sum; mv /root/w/new /root/w/$((i%4)); echo $i > /root/w/i; done; echo ended > /root/stop")
LOOK = "for n in 0 1 2 3; do [ -e /root/w/$n ] && sha256sum < /root/w/$n | cmp -s - /root/w/$n.sum || echo $n; done"


def test_busy_with_files_and_streams(daemon, box):
    """A writer that syncs all the time and a stream of half a million bytes: not one byte is missing on the source, and the copies go on writing."""
    box.run(f"mkdir /root/w; ({WRITER}) >/dev/null 2>&1 & until [ -e /root/w/i ] && [ $(cat /root/w/i) -gt 4 ]; do sleep 0.1; done")
    stream = Stream(daemon, box.id, "i=0; while [ $i -lt 10000 ]; do i=$((i+1)); echo line-$i-of-the-stream-that-must-be-whole; done")
    assert stream.begun.wait(SLOW)
    snapshots = [box.snapshot(), box.snapshot()]
    clones = []
    try:
        stream.join(SLOW)
        assert stream.done and stream.text == "".join(f"line-{i}-of-the-stream-that-must-be-whole\n" for i in range(1, 10001))
        clones = [from_snapshot(daemon, s) for s in snapshots]
        for b in (box, *clones):
            was = int(b.run("cat /root/w/i"))
            b.run(f"until [ $(cat /root/w/i) -gt {was} ]; do sleep 0.1; done; touch /root/stop; until grep -q ended /root/stop; do sleep 0.1; done")
            # the one pair that was being renamed at the moment of the freeze has moved on since
            assert b.run(LOOK).strip() == "", b.id
            assert int(b.ask("check").split()[1]) > 0
    finally:
        for c in clones:
            c.delete()
        for s in snapshots:
            delete_snapshot(daemon, s)


def test_what_a_snapshot_is_restored_as(daemon, box):
    """Memory where the request asks for nothing that a running process cannot be given; its disk otherwise, or where the request says so."""
    pid = box.ask("pid")
    snapshot = box.snapshot()
    try:
        for more, origin in (({}, "memory"), ({"entrypoint": ["tail", "-f", "/dev/null"]}, "memory"), ({"env": {}}, "memory"),
                             ({"entrypoint": ["sh", "-c", "echo new > /root/new; sleep 1000"]}, "boot"), ({"env": {"A": "1"}}, "boot"),
                             ({"extensions": {"mayfly.snapshot": "disk"}}, "boot"),
                             ({"env": {"A": "1"}, "extensions": {"mayfly.snapshot": "memory"}}, "memory")):
            b = from_snapshot(daemon, snapshot, **more)
            assert f"origin: {origin}" in b.inspect(), (more, b.inspect())
            assert b.run("[ -p /root/in ] && echo disk") == "disk\n"
            if origin == "memory":
                assert b.ask("pid") == pid and int(b.ask("check").split()[1]) > 0
            else:
                assert b.run("pgrep -f helper.py || echo none") == "none\n"
            if "entrypoint" in more and origin == "boot":
                assert b.run("until [ -e /root/new ]; do sleep 0.1; done; cat /root/new") == "new\n"
            b.delete()
        status, e, _ = call(daemon, "POST", "/v1/sandboxes", {"snapshotId": snapshot, "resourceLimits": {"memory": "512Mi"}, "extensions": {"mayfly.snapshot": "neither"}})
        assert status in (400, 422), e
    finally:
        delete_snapshot(daemon, snapshot)
