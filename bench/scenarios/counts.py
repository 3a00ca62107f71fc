# SPDX-License-Identifier: Apache-2.0
"""What a path costs, counted instead of timed: page faults, exits, system calls, context switches and bytes copied of one monitor.

The counts mean the same on every machine, an emulated one included. The monitor is driven over its control socket, as the daemon drives it: a blank
monitor waits with its objects made, and is counted from the request on. All threads of the monitor are counted, and what it populates ahead, too.
System calls are counted in a second turn, under strace: tracing adds context switches, which the first turn is free of.
"""
import os
import shutil
import signal
import struct
import subprocess
import time

import mb_vm
from mb_agent import Life, first_output
from mb_control import EV_GUEST_CONN, EV_SNAPSHOT, F_LIVE, SNAPSHOT, STATS, WORKSET, Control, named
from mb_core import Failed, kernel, kvm_needed

REASONS = {"exits, mmio": "kvm.mmio_exits", "exits, port": "kvm.io_exits", "exits, halt": "kvm.halt_exits", "exits, host interrupt": "kvm.irq_exits",
           "guest page faults": "kvm.pf_taken"}
IDLE_S, IDLE_AFTER_S = 8, 20


def host_counts(pid):
    """Of all threads, those that ended included: page faults. Of those that live: context switches, and how often a vCPU's thread went to sleep."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        w = f.read().rpartition(")")[2].split()
    got = {"total": int(w[7]) + int(w[9]), "context switches": 0, "vCPU wake-ups": 0}
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii", errors="replace") as f:
            rows = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
        slept = int(rows["voluntary_ctxt_switches"])
        got["context switches"] += slept + int(rows["nonvoluntary_ctxt_switches"])
        got["vCPU wake-ups"] += slept if rows["Name"].startswith("vcpu") else 0
    return got


def all_counts(c):
    """The monitor's counters. To ask for them has a cost: the caller reads the kernel's counters after this at the start of a span, before this at its end."""
    s = named(c.call(STATS, b""))
    got = {"exits": s.get("kvm.exits", 0), **{k: s.get(v, 0) for k, v in REASONS.items()}}
    got["bytes copied"] = sum(v for k, v in s.items() if "." in k and k.endswith("bytes"))
    return got


class Span:
    """Counts between two moments. The kernel's counters are read nearest to the span, so that asking the monitor is not in them."""

    def __init__(self, c):
        self.c, self.inner = c, all_counts(c)
        self.outer = host_counts(c.pid)

    def end(self):
        outer = host_counts(self.c.pid)
        inner = all_counts(self.c)
        return {**{k: outer[k] - self.outer[k] for k in outer}, **{k: inner[k] - self.inner[k] for k in inner}}


class Traced:
    """strace on every thread of the monitor: how many system calls it made."""

    def __init__(self, pid, tmp):
        self.out = os.path.join(tmp, "strace.out")
        self.p = subprocess.Popen(["strace", "-f", "-c", "-o", self.out, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
        threads = len(os.listdir(f"/proc/{pid}/task"))
        while threads:
            line = self.p.stderr.readline()
            if not line:
                raise Failed("strace ended")
            threads -= "attached" in line and " with " not in line
            if " with " in line and "thread" in line:
                threads = 0

    def end(self):
        self.p.send_signal(signal.SIGINT)
        self.p.stderr.read()
        self.p.wait()
        with open(self.out, encoding="ascii", errors="replace") as f:
            last = [line.split() for line in f if line.strip().endswith("total")]
        if not last:  # none: an idle monitor sleeps
            return 0
        return int(last[-1][3] if "." in last[-1][2] or len(last[-1]) > 4 else last[-1][2])


class Path:
    """One way through the monitor: before() is not counted, path() is."""

    def __init__(self, ctx):
        kvm_needed()
        self.tmp, self.disk = ctx.tmp, ctx.disk()

    def before(self, c):
        c.prepared()

    def counted(self, c):
        span = Span(c)
        self.path(c)
        return span.end()

    def sample(self):
        c = Control(self.tmp)
        try:
            self.before(c)
            got = self.counted(c)
        finally:
            c.close()
        if shutil.which("strace"):
            got["system calls"] = self.traced()
        return got

    def traced(self):
        c = Control(self.tmp)
        try:
            self.before(c)
            t = Traced(c.pid, self.tmp)
            self.path(c)
            return t.end()
        finally:
            c.close()


class Boot(Path):
    name = "boot"

    def path(self, c):
        c.boot(kernel(), mb_vm.initrd("initramfs.cpio"), mb_vm.CMDLINE, self.disk)
        c.event(EV_GUEST_CONN)


def command(c):
    c.commands = getattr(c, "commands", 0) + 1
    with c.agent() as s:
        first_output(s, b"c%d" % c.commands)


def created(c, files, ws, disk):
    """What a create from a template asks of the monitor and of the guest."""
    c.restore(files, ws, disk)
    c.event(EV_GUEST_CONN)
    Life(c.agent()).setup()
    command(c)


def make_point(ctx, disk):
    """A snapshot at the agent's announcement, as an image's template is, with a working set of three restores, as the daemon records it."""
    d = os.path.join(ctx.tmp, ctx.of_build("counts"))
    os.makedirs(d, exist_ok=True)
    files = [os.path.join(d, f) for f in ("state", "mem.0")]
    ws = os.path.join(d, "ws")
    c = Control(ctx.tmp)
    try:
        c.prepared()
        c.boot(kernel(), mb_vm.initrd("initramfs.cpio"), mb_vm.CMDLINE, disk)
        c.event(EV_GUEST_CONN)
        Life(c.agent()).prepare()
        fds = [os.open(f, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600) for f in files]
        c.call(SNAPSHOT, struct.pack("<IH", F_LIVE, 0), fds)
        status = struct.unpack_from("<i", c.event(EV_SNAPSHOT), 4)[0]
        if status < 0:
            raise Failed("snapshot: " + os.strerror(-status))
    finally:
        c.close()
    for i in range(3):
        record(ctx, files, ws, disk, i)
    return files, ws


def record(ctx, files, ws, disk, turn):
    """One restore records what it touched; the later ones have what the earlier ones recorded, as in the daemon."""
    c = Control(ctx.tmp)
    try:
        c.prepared()
        created(c, files, ws if turn else "", disk)
        time.sleep(1.5)
        fd = os.open(ws + ".new", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        c.call(WORKSET, b"", [fd])
        os.close(fd)
        os.rename(ws + ".new", ws)
    finally:
        c.close()


class Restore(Path):
    name = "restore"

    def __init__(self, ctx):
        super().__init__(ctx)
        self.files, self.ws = ctx.once(ctx.of_build("counts"), lambda: make_point(ctx, self.disk))

    def path(self, c):
        created(c, self.files, self.ws, self.disk)


class Command(Restore):
    name = "command"

    def before(self, c):
        super().before(c)
        created(c, self.files, self.ws, self.disk)
        for _ in range(2):
            command(c)
        time.sleep(0.5)

    path = staticmethod(command)


class Idle(Command):
    """A guest that was just restored still seeds its random numbers every second or two, ever more rarely."""
    name = "idle"

    def before(self, c):
        super().before(c)
        time.sleep(IDLE_AFTER_S)

    def path(self, c):
        time.sleep(IDLE_S)

    def sample(self):
        return {k: v / IDLE_S for k, v in super().sample().items()}


UNIT = {k: "" for k in ("exits", "context switches", "vCPU wake-ups", "system calls", *REASONS)}
SCENARIOS = {
    "counts": {
        "what": "what a path costs the host, counted: page faults of all threads of the monitor (the total), exits by reason, system calls, context "
                "switches, bytes that devices copied. `restore`: to the first output of a command; `boot`: to the agent's announcement; `command`: one "
                "`echo hi` on a warm sandbox; `idle`: one second in which nothing is asked",
        "start": "before the request is sent to a monitor that waits with its objects made; `idle`: 20 s after the last command",
        "stop": "the first byte of `echo hi` is read; `boot`: the agent has announced itself; `idle`: eight seconds later, divided by eight",
        "arms": [Restore, Boot, Command, Idle], "seconds": 120, "samples": 4, "unit": "faults",
        "apart": ["exits", "context switches", "vCPU wake-ups", "system calls", "bytes copied", *REASONS],
        "phase_unit": {**UNIT, "bytes copied": "bytes"},
    },
}
