# SPDX-License-Identifier: Apache-2.0
"""Forks of a real machine: every child goes on with the source's processes, and is another machine. Errors and limits: test_fork_host.py."""
import asyncio
import concurrent.futures
import os
import re
import time

import pytest
import websockets.asyncio.client as wsclient

from pointkit import ask, delete_snapshot, forks_of, from_snapshot, python_box
from test_lifecycle import SLOW, call, until

STRESS = bool(os.environ.get("MAYFLY_STRESS"))
N = 8


@pytest.fixture
def box(daemon, python_image):
    b = python_box(daemon, python_image).start_helper(1.0 if STRESS else 0.05)
    yield b
    b.delete()


def each(fn, items):
    items = list(items)
    with concurrent.futures.ThreadPoolExecutor(max(len(items), 1)) as pool:
        return list(pool.map(fn, items))


def ram_files(daemon):
    """Files in RAM that the daemon holds for forks."""
    out = daemon.machine.run("sh", "-c", "ls -l /proc/$(pgrep -x mayflyd)/fd | grep -c memfd:fork").stdout
    return int(out)


def monitors(daemon):
    return int(daemon.machine.run("sh", "-c", "grep -l snapshot /proc/*/task/*/comm 2>/dev/null | wc -l").stdout)


def test_eight_children_are_other_machines(daemon, box):
    box.ask("insert", 1)
    pid, before = box.ask("pid"), int(box.ask("count"))
    for turn in range(100 if STRESS else 2):
        children = forks_of(box, N, env={"WHO": "child"})
        try:
            # identity, entropy, then what is the same: the process, its database and its count
            look = ("cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname; head -c 16 /dev/urandom | sha256sum | cut -c1-64; "
                    f"{ask('random')}; echo $WHO; {ask('pid')}; {ask('check')}; dmesg | grep -c 'EXT4-fs error' || true")
            seen = [t.split() for t in each(lambda c: c.run(look), [*children, box])]
            for i, what in enumerate(("machine-id", "boot-id", "hostname", "noise", "old process's noise")):
                assert len({s[i] for s in seen}) == N + 1, what
            for s in seen[:N]:
                assert s[5:7] == ["child", pid] and s[7] == "1" and int(s[8]) >= before and s[9:] == ["0"], s
            assert seen[N][5] == pid and seen[N][6] == "1", "the source's environment is its own"
            # each goes its own way
            each(lambda c: c[1].run(f"echo {c[0]} > /root/mine; sync"), enumerate(children))
            assert each(lambda c: c.run("cat /root/mine").strip(), children) == [str(i) for i in range(N)]
            assert box.run("ls /root/mine 2>&1; true").strip().endswith("No such file or directory")
            assert ram_files(daemon) == 2
        finally:
            each(lambda c: c.delete(), children)
    box.ask("check")
    end = time.monotonic() + SLOW
    while ram_files(daemon):
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_family_without_its_source(daemon, python_image):
    box = python_box(daemon, python_image).start_helper()
    box.ask("insert", 1)
    children = snapshot = None
    try:
        children = forks_of(box, 2)
        children += forks_of(children[0], 2)
        box.delete()
        box = None
        children[1].ask("insert", 2)
        # on disk it has all of its memory, whatever was in RAM
        children[1].post("pause")
        children[2].post("pause")
        snapshot = children[3].snapshot()
        for c in (children.pop(0), children.pop(2)):
            c.delete()
        daemon.kill()
        daemon.wait()
        for c in children:
            until(daemon, c.id, "Paused")
            c.post("resume")
            until(daemon, c.id, "Running")
        assert children[0].ask("check").startswith("2 ") and children[1].ask("check").startswith("1 ")
        children.append(from_snapshot(daemon, snapshot))
        assert children[-1].ask("check").startswith("1 ")
        # and a snapshot is forked as well
        more = forks_of(children[0], 2, "snapshots", snapshot)
        children += more
        assert all(c.ask("check").startswith("1 ") for c in more)
    finally:
        each(lambda c: c.delete(), [*(children or []), *([box] if box else [])])
        if snapshot:
            delete_snapshot(daemon, snapshot)


async def in_terminal(daemon, sandbox, pty, text, wanted):
    """Types into a terminal session until it shows what is wanted; all that it showed, the replay included."""
    out = b""
    async with asyncio.timeout(SLOW), wsclient.connect(f"ws://{daemon.domain}/{sandbox}/44772/pty/{pty}/ws", open_timeout=SLOW, ping_timeout=None) as ws:
        await ws.send(b"\0" + text.encode())
        while wanted not in out:
            frame = await ws.recv()
            # 1: output; 3: the replay, behind the offset of its first byte
            if isinstance(frame, bytes):
                out += frame[1 if frame[0] == 1 else 9:]
    return out


def test_background_commands_terminals_and_a_paused_source(daemon, box):
    status, answer, _ = call(daemon, "POST", f"/{box.id}/44772/command", {"command": "for i in $(seq 1000); do echo $i; sleep 0.1; done", "background": True})
    assert status == 200
    command = re.search(r'"text":"([^"]+)"', answer if isinstance(answer, str) else str(answer))[1]
    pty = call(daemon, "POST", f"/{box.id}/44772/pty", {})[1]["session_id"]
    assert b"[42]" in asyncio.run(in_terminal(daemon, box.id, pty, "kept=inside; echo [$((6*7))]\n", b"[42]"))
    (child,) = forks_of(box, 1, pauseSource=True)
    try:
        until(daemon, box.id, "Paused")
        # the same shell goes on in the child, with what it showed before
        out = asyncio.run(in_terminal(daemon, child.id, pty, "echo [$kept]\n", b"[inside]"))
        assert b"[42]" in out

        def log():
            status, text, _ = call(daemon, "GET", f"/{child.id}/44772/command/{command}/logs")
            assert status == 200, text
            return text if isinstance(text, str) else str(text)
        first, end = log(), time.monotonic() + SLOW
        while log() == first:
            assert time.monotonic() < end
            time.sleep(0.2)
        assert log().split()[:3] == ["1", "2", "3"]
        box.post("resume")
        until(daemon, box.id, "Running")
    finally:
        child.delete()


def test_back_at_a_snapshot_of_its_own(daemon, box):
    box.ask("insert", 1)
    box.run("echo before > /root/mine; sync")
    machine = box.run("cat /etc/machine-id /proc/sys/kernel/random/boot_id")
    snapshot = box.snapshot()
    try:
        for turn in range(2):
            box.ask("insert", 2)
            box.run("echo after > /root/mine; sync")
            pid = box.ask("pid")
            if turn:
                box.post("pause")
                until(daemon, box.id, "Paused")
            status, answer, _ = call(daemon, "POST", f"/v1/sandboxes/{box.id}/restore", {"snapshotId": snapshot})
            assert status == 202, answer
            assert box.ask("check").startswith("1 ") and box.run("cat /root/mine") == "before\n" and box.ask("pid") == pid
            assert box.run("cat /etc/machine-id /proc/sys/kernel/random/boot_id") == machine
            early, clock, late = (float(x) for x in (box.run("date +%s.%N"), box.ask("clock"), box.run("date +%s.%N")))
            assert early - 5 <= clock <= late + 5
    finally:
        delete_snapshot(daemon, snapshot)


def test_a_killed_daemon_leaves_no_monitor_of_a_fork(daemon, box):
    def count():
        return int(daemon.machine.run("sh", "-c", "pgrep -x mayfly-vmm | wc -l").stdout)

    def fork():
        try:
            return call(daemon, "POST", f"/v1/sandboxes/{box.id}/fork", {"count": 4, "timeout": 3600})[0]
        except OSError:
            return 0
    for wait_s in (0, 0.05, 0.2, 0.5):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answer = pool.submit(fork)
            time.sleep(wait_s)  # any moment is a good one
            daemon.kill()
            answer.result()
        daemon.wait()
        assert box.ask("check")
        ids = [s["id"] for s in call(daemon, "GET", "/v1/sandboxes?pageSize=200")[1]["items"]]
        assert ids == [box.id]
    with_daemon = int(re.search(r"^mayfly_vms (\d+)", call(daemon, "GET", "/metrics")[1], re.M)[1]) if "mayfly_vms " in str(call(daemon, "GET", "/metrics")[1]) else None
    if with_daemon is not None:
        end = time.monotonic() + SLOW
        while count() > with_daemon:
            assert time.monotonic() < end, (count(), with_daemon)
            time.sleep(0.5)
