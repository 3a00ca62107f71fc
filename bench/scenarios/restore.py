# SPDX-License-Identifier: Apache-2.0
"""Restores by the monitor alone, beside the floor: from files in the page cache, from disk, in a waiting monitor, many at once."""
import contextlib
import glob
import os
import select
import signal
import time

import mb_vm
from mb_control import STATS, Control, named
from mb_core import Absent, Failed, Proc, kvm_needed, spawned, us_since, vmm
from mb_vm import TICKS


class Mayfly:
    name = "mayfly-vmm"

    def __init__(self, ctx):
        kvm_needed()
        self.argv = [vmm(), "--restore", mb_vm.ticking(ctx)]

    def sample(self):
        return spawned(self.argv, b"TICK", 30, TICKS)


class Floor:
    name = "floor"

    def __init__(self, ctx):
        kvm_needed()
        self.argv = mb_vm.floor("TICK", mb_vm.ticking(ctx))

    def sample(self):
        return mb_vm.floor_sample(self.argv, b"TICK")


def drop_caches():
    try:
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("1")
    except OSError as e:
        raise Absent("cannot empty the page cache: " + str(e)) from e


class MayflyCold(Mayfly):
    def sample(self):
        drop_caches()
        return super().sample()


class FloorCold(Floor):
    def sample(self):
        drop_caches()
        return super().sample()


class BlankMayfly:
    """A monitor that has its objects already, as the daemon's pool keeps them."""
    name = "mayfly-vmm"

    def __init__(self, ctx):
        kvm_needed()
        self.tmp = ctx.tmp
        self.files = mb_vm.snapshot_files(mb_vm.ticking(ctx))

    def sample(self):
        c = Control(self.tmp)
        try:
            t0, answer = c.restored(self.files)
            answered = us_since(t0)
            # The clock stops when the vCPU enters the guest, as the floor's stops before its KVM_RUN. On one CPU the guest then runs first, and
            # the answer, and the step "run", wait for the scheduler.
            entered = 0
            while not entered:  # the answer may be here before the vCPU has gone in
                entered = named(c.call(STATS, b""))["entered_at_ns"]
            return {"total": (entered - t0) / 1000, "until the answer": answered, **{k: v / 1000 for k, v in named(answer).items()}}
        finally:
            c.close()


class BlankFloor(Floor):
    """The floor's steps without making its objects, which a pool has made before. "with its objects": all that KVM makes unavoidable."""

    def sample(self):
        got = super().sample()
        parts = {k: got[k] for k in ("tables", "map", "state")}
        return {"total": sum(parts.values()), **parts, "with its objects": sum(parts.values()) + got["objects"]}


@contextlib.contextmanager
def first():
    """Gives this process real-time priority, so that it has the CPU as soon as there is something to read. Otherwise 32 computing guests would delay
    it until its time limit. Processes that it starts do not inherit the priority. In other scenarios it has none, as a client has none."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:  # not root: as it was
        pass
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def starved(procs):
    """What they did instead of showing a mark: computed, or waited for a CPU."""
    ran = waited = 0
    for p in procs:
        for f in glob.glob(f"/proc/{p.p.pid}/task/*/schedstat"):
            try:
                with open(f, encoding="ascii") as stat:
                    a, b, _ = map(int, stat.read().split())
            except OSError:  # it has just ended
                continue
            ran, waited = ran + a, waited + b
    return f"they ran for {ran / 1e9:.1f} s and waited {waited / 1e9:.1f} s for a CPU"


def wait_all(procs, timeout):
    """Waits until all have shown their mark. Each is stopped after its mark: its guest would compute for ever, while a sandbox becomes idle."""
    waiting = {p.p.stdout.fileno(): p for p in procs}
    end = time.monotonic() + timeout
    while waiting:
        ready = select.select(list(waiting), [], [], max(0, end - time.monotonic()))[0]
        if not ready:
            raise Failed(f"{len(waiting)} of {len(procs)} showed no mark within {timeout} s: {starved(waiting.values())}")
        for fd in ready:
            p = waiting[fd]
            got = os.read(fd, 65536)
            if not got:
                raise Failed("ended without a mark: " + p.tail())
            p.out += got
            if p.out.count(b"TICK") >= TICKS:
                p.p.send_signal(signal.SIGSTOP)
                del waiting[fd]


def burst(k):
    class Burst:
        """k restores started at once; one sample is the time until all of them have shown a mark."""
        name = "mayfly-vmm"
        command = staticmethod(lambda ctx: [vmm(), "--restore", mb_vm.ticking(ctx)])

        def __init__(self, ctx):
            kvm_needed()
            self.argv = self.command(ctx)

        def sample(self):
            with first():
                return self.all_at_once([])

        def all_at_once(self, procs):
            t0 = time.monotonic_ns()
            try:
                for _ in range(k):
                    procs.append(Proc(self.argv))
                wait_all(procs, 120)
                return {"total": us_since(t0)}
            finally:
                for p in procs:
                    p.kill()
                for p in procs:
                    p.close()

    class BurstFloor(Burst):
        name = "floor"
        command = staticmethod(lambda ctx: mb_vm.floor("TICK", mb_vm.ticking(ctx)))
    return [BurstFloor, Burst]


class Teardown(Mayfly):
    """Kill of a running monitor to its being reaped."""

    def sample(self):
        p = Proc(self.argv)
        try:
            p.wait_mark(b"TICK", 30, TICKS)
            t0 = time.monotonic_ns()
            p.p.kill()
            p.p.wait()
            return {"total": us_since(t0)}
        finally:
            p.close()


class TeardownQemu:
    name = "qemu"

    def __init__(self, ctx):
        self.argv = mb_vm.qemu("tick")

    sample = Teardown.sample


TICK_STOP = "the read that brings the running guest's mark (see below)"
SCENARIOS = {
    "restore": {
        "what": "restore by a fresh process, files in the page cache",
        "start": "before the process is spawned", "stop": TICK_STOP,
        "arms": [Floor, Mayfly], "seconds": 20,
    },
    "restore-cold": {
        "what": "the same, the page cache emptied before: the program's own pages come from disk, too",
        "start": "before the process is spawned", "stop": TICK_STOP,
        "arms": [FloorCold, MayflyCold], "seconds": 40,
    },
    "restore-blank": {
        "what": "restore in a monitor that waits with its objects made",
        "start": "before the request is sent; floor: after its objects are made",
        "stop": "the vCPU goes into the guest; floor: the state is set (tables + map + state), its KVM_RUN comes next",
        "arms": [BlankFloor, BlankMayfly], "seconds": 25, "apart": ["until the answer", "run", "with its objects"],
    },
    **{f"burst-{k}": {
        "what": f"{k} restore{'s' * (k > 1)} at once", "start": "before the first process is spawned", "stop": "the second mark of the last one",
        "arms": burst(k), "seconds": {1: 10, 8: 30, 32: 60}[k], "samples": {1: 30, 8: 30, 32: 15}[k], "rate": (k, "restores/s"),
    } for k in (1, 8, 32)},
    "teardown": {
        "what": "the end of one monitor", "start": "before SIGKILL to the running monitor", "stop": "it is reaped",
        "arms": [Teardown, TeardownQemu], "seconds": 50, "rate": (1, "/s"),
    },
}
