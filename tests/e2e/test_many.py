# SPDX-License-Identifier: Apache-2.0
"""A thousand idle sandboxes of one image on one host: 200 creates at once, the others, what an idle one costs, 100 forks at once, and the end of all. And
how long forks, pools and wakes take, beside creates in the same run.

    MAYFLY_STRESS=1 E2E_MEMORY=12G make e2e T=test_a_thousand       MANY=N: so many instead
    MAYFLY_STRESS=1 make e2e T=test_how_long_forks_pools_and_wakes_take
"""
import concurrent.futures
import os
import re
import statistics
import time

import pytest

from test_lifecycle import SLOW, call, create, run, until

STRESS = bool(os.environ.get("MAYFLY_STRESS"))
MANY = int(os.environ.get("MANY", "1000"))
AT_ONCE, FORKS, LOOK_S = min(200, MANY), min(100, MANY), 60
SIZE = {"cpu": "1", "memory": "128Mi"}


def available_mib(daemon):
    return int(re.search(r"MemAvailable:\s+(\d+)", daemon.machine.run("cat", "/proc/meminfo").stdout)[1]) >> 10


def idle_share(daemon, seconds):
    """Of the machine's CPU time, over so many seconds."""
    def look():
        f = list(map(int, daemon.machine.run("head", "-1", "/proc/stat").stdout.split()[1:]))
        return f[3] + f[4], sum(f)
    (idle, all_), _ = look(), time.sleep(seconds)
    idle2, all2 = look()
    return (idle2 - idle) / (all2 - all_)


def monitors(daemon):
    return int(daemon.machine.run("sh", "-c", "pgrep -x mayfly-vmm | wc -l").stdout)


@pytest.mark.skipif(not STRESS, reason="a thousand sandboxes: make stress")
def test_a_thousand(daemon, base_image):
    # clones of one template share nearly all of their memory
    before = daemon.limits_more, daemon.memory_mib, daemon.overcommit
    daemon.limits_more, daemon.memory_mib, daemon.overcommit = f"max_sandboxes = {MANY + FORKS + 10}", 1 << 20, 10000
    daemon.restart()
    boxes, told, begun = [], [], time.monotonic()

    def step(what):
        nonlocal begun
        told.append(f"{what}: {time.monotonic() - begun:.0f} s, {available_mib(daemon)} MiB available")
        print(told[-1], flush=True)
        begun = time.monotonic()

    def one(_):
        status, sb, _ = call(daemon, "POST", "/v1/sandboxes", {"image": {"uri": "tiny"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": SIZE, "timeout": 80000})
        return status, sb

    try:
        boxes.append(create(daemon, resourceLimits=SIZE, timeout=80000)["id"])
        # the one that leaves the template, and one that uses it
        boxes.append(create(daemon, resourceLimits=SIZE, timeout=80000)["id"])
        step("the first two")
        for clients, upto in ((AT_ONCE, AT_ONCE), (20, MANY)):
            with concurrent.futures.ThreadPoolExecutor(clients) as pool:
                answers = list(pool.map(one, range(upto - len(boxes))))
            boxes += [sb["id"] for status, sb in answers if status == 202]
            assert all(a[0] == 202 for a in answers), [a for a in answers if a[0] != 202][:3]
            with concurrent.futures.ThreadPoolExecutor(20) as pool:
                # a command in each: it runs, and not merely exists
                assert set(pool.map(lambda b: run(daemon, b, "echo here"), boxes)) == {"here\n"}
            step(f"{clients} creates at a time up to {upto}, a command in each")
        told.append(f"idle: {idle_share(daemon, LOOK_S):.1%} of the CPU")
        print(told[-1], flush=True)
        begun = time.monotonic()
        status, answer, _ = call(daemon, "POST", f"/v1/sandboxes/{boxes[1]}/fork", {"count": FORKS, "timeout": 80000})
        assert status == 202, answer
        children = [i["sandbox"]["id"] for i in answer["items"] if "sandbox" in i]
        boxes += children
        assert len(children) == FORKS, [i["error"] for i in answer["items"] if "error" in i][:3]
        step(f"{FORKS} forks at once")
        n = len(boxes)
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            assert set(pool.map(lambda b: call(daemon, "DELETE", f"/v1/sandboxes/{b}")[0], boxes)) == {204}
        boxes.clear()
        end = time.monotonic() + 1800
        while monitors(daemon) > 10:  # the blank ones
            assert time.monotonic() < end, monitors(daemon)
            time.sleep(1)
        step(f"the end of {n}")
    finally:
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda b: call(daemon, "DELETE", f"/v1/sandboxes/{b}"), boxes))
        daemon.limits_more, daemon.memory_mib, daemon.overcommit = before
        daemon.restart()


ROUNDS = 10
BOX = {"image": {"uri": "tiny"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "timeout": 80000}


class Clock:
    """Medians of what was done in turns."""

    def __init__(self):
        self.seen = {}

    def time(self, what, fn):
        begun = time.monotonic()
        value = fn()
        self.seen.setdefault(what, []).append(time.monotonic() - begun)
        return value

    def ratio(self, what, to, goal):
        a, b = (statistics.median(self.seen[k]) for k in (what, to))
        print(f"{what}: {a * 1000:.0f} ms, {a / b:.2f} x {to} ({b * 1000:.0f} ms), goal {goal}", flush=True)


@pytest.mark.skipif(not STRESS, reason="a measurement: make stress")
def test_how_long_forks_pools_and_wakes_take(daemon, base_image):
    clock, template = Clock(), {"spec": {"containers": [{"image": "tiny", "command": BOX["entrypoint"], "resources": {"limits": BOX["resourceLimits"]}}]}}

    def first_output(body):
        status, sb, _ = call(daemon, "POST", "/v1/sandboxes", body)
        assert status == 202 and run(daemon, sb["id"], "echo here") == "here\n", sb
        return sb["id"]

    def delete(*boxes):
        for b in boxes:
            assert call(daemon, "DELETE", f"/v1/sandboxes/{b}")[0] == 204

    def forked(box, n):
        status, answer, _ = call(daemon, "POST", f"/v1/sandboxes/{box}/fork", {"count": n, "timeout": 80000})
        assert status == 202, answer
        ids = [i["sandbox"]["id"] for i in answer["items"]]
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            assert set(pool.map(lambda b: run(daemon, b, "echo here"), ids)) == {"here\n"}
        return ids

    def restored(snapshot, n):
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            return list(pool.map(lambda _: first_output({"snapshotId": snapshot, "resourceLimits": BOX["resourceLimits"], "timeout": 80000}), range(n)))

    def woken(box, mode):
        assert call(daemon, "POST", f"/v1/sandboxes/{box}/pause?mode={mode}")[0] == 202
        until(daemon, box, "Paused")
        return clock.time(f"wake from {mode}", lambda: run(daemon, box, "echo here"))

    boxes = [first_output(BOX), first_output(BOX)]
    source = first_output(BOX | {"lifecycle": {"idlePolicy": {"wakeOnAccess": True}}})
    boxes.append(source)
    status, p, _ = call(daemon, "POST", "/v1/pools", {"name": "fast", "template": template, "capacitySpec": {"bufferMin": 1, "bufferMax": 1, "poolMin": 0, "poolMax": 50}})
    assert status == 201, p
    status, snap, _ = call(daemon, "POST", f"/v1/sandboxes/{source}/snapshots")
    end = time.monotonic() + SLOW
    while call(daemon, "GET", f"/v1/snapshots/{snap['id']}")[1]["status"]["state"] != "Ready":
        assert time.monotonic() < end
        time.sleep(0.2)
    try:
        for i in range(ROUNDS):
            while call(daemon, "GET", "/v1/pools/fast")[1]["status"]["available"] < 1:
                assert time.monotonic() < end + SLOW * (i + 1)
                time.sleep(0.2)
            delete(clock.time("create from a template", lambda: first_output(BOX)))
            delete(clock.time("create from a pool", lambda: first_output({"extensions": {"poolRef": "fast"}, "timeout": 80000})))
            clock.time("warm command", lambda: run(daemon, source, "echo here"))
            woken(source, "resident")
            woken(source, "disk")
            delete(*clock.time("fork of one", lambda: forked(source, 1)))
            if i < 3:
                delete(*clock.time("fork of 16", lambda: forked(source, 16)))
                delete(*clock.time("16 restores", lambda: restored(snap["id"], 16)))
        clock.ratio("create from a pool", "create from a template", "0.35")
        clock.ratio("wake from resident", "warm command", "1.5")
        clock.ratio("wake from disk", "create from a template", "1.3")
        clock.ratio("fork of one", "create from a template", "1.2")
        clock.ratio("fork of 16", "16 restores", "1.2")
    finally:
        call(daemon, "DELETE", "/v1/pools/fast")
        for b in boxes:
            call(daemon, "DELETE", f"/v1/sandboxes/{b}")
        call(daemon, "DELETE", f"/v1/snapshots/{snap['id']}")
