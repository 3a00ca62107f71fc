# SPDX-License-Identifier: Apache-2.0
"""A guest that rewrites all of its memory while a live snapshot is written: each page is copied for it, and both copies count against the
sandbox's limit. It survives, its memory is right, and so is the snapshot's. The limit is what it was afterwards."""
import base64
import os
import time

import pytest

from pointkit import from_snapshot, python_box
from test_lifecycle import SLOW, call

ROUNDS = 10 if os.environ.get("MAYFLY_STRESS") else 3
WRITER = r'''
import mmap, os, struct, sys, time
free = next(int(l.split()[1]) for l in open("/proc/meminfo") if l.startswith("MemAvailable"))
pages = (free - 40 * 1024) // 4
m = mmap.mmap(-1, pages * 4096)
turn = 0
while True:
    turn += 1
    for i in range(pages):
        # the page before this turn holds the turn before: nothing was lost, nothing was torn
        if turn > 1 and struct.unpack_from("=QQ", m, i * 4096) != (turn - 1, i):
            open("/root/bad", "w").write("page %d in turn %d" % (i, turn))
            sys.exit(1)
        struct.pack_into("=QQ", m, i * 4096, turn, i)
    with open("/root/turn.new", "w") as f: f.write("%d %d" % (turn, pages))
    os.rename("/root/turn.new", "/root/turn")
'''


@pytest.fixture
def guest(daemon, python_image):
    b = python_box(daemon, python_image)
    yield b
    call(daemon, "DELETE", f"/v1/sandboxes/{b.id}")


def turns(b):
    return int(b.run("cat /root/turn").split()[0])


def limits(daemon):
    """memory.max and memory.oom.group of every monitor's cgroup and of its group."""
    look = ("for f in $(find /sys/fs/cgroup -path '*/g[0-9]*/s[0-9]*/memory.max'); do d=${f%/*};"
            " echo $(cat $d/memory.max $d/memory.oom.group $d/../memory.max $d/../memory.oom.group); done")
    return sorted(daemon.machine.run("sh", "-c", look).stdout.splitlines())


def until_limits(daemon, wanted):
    end = time.monotonic() + 30
    while limits(daemon) != wanted:
        assert time.monotonic() < end, (limits(daemon), wanted)
        time.sleep(0.2)


def test_a_guest_that_rewrites_its_memory_survives(daemon, guest):
    text = base64.b64encode(WRITER.encode()).decode()
    guest.run(f"echo {text} | base64 -d > /root/writer.py; python3 /root/writer.py >/root/err 2>&1 & until [ -f /root/turn ]; do sleep 0.2; done")
    pages = int(guest.run("cat /root/turn").split()[1])
    assert pages * 4096 > 350 << 20, "nearly all of its memory"
    before = limits(daemon)
    # a monitor's limit is 160 MiB above the guest's memory: two copies of all pages do not fit
    assert any(line.split()[0] == str(672 << 20) for line in before), before
    for n in range(ROUNDS):
        at = turns(guest)
        snapshot = guest.snapshot()
        assert call(daemon, "GET", f"/v1/sandboxes/{guest.id}")[1]["status"]["state"] == "Running", n
        end = time.monotonic() + SLOW
        while turns(guest) < at + 2:
            assert time.monotonic() < end, n
            time.sleep(0.2)
        assert guest.run("cat /root/bad /root/err 2>/dev/null; true") == "", n
        if n < ROUNDS - 1:
            assert call(daemon, "DELETE", f"/v1/snapshots/{snapshot}")[0] == 204
    until_limits(daemon, before)
    # the copy is of one moment: its writer goes on from there and checks every page. Both at once are more than an emulated CPU does in time.
    guest.delete()
    clone = from_snapshot(daemon, snapshot)
    try:
        at, end = turns(clone), time.monotonic() + SLOW
        while turns(clone) < at + 1:
            assert time.monotonic() < end
            time.sleep(0.2)
        assert clone.run("cat /root/bad /root/err 2>/dev/null; true") == ""
    finally:
        call(daemon, "DELETE", f"/v1/sandboxes/{clone.id}")
    assert call(daemon, "DELETE", f"/v1/snapshots/{snapshot}")[0] == 204
