# SPDX-License-Identifier: Apache-2.0
"""What one more idle restored guest costs the host, and how many fit."""
import os
import time

import mb_vm
from mb_core import MIB, Failed, Proc, kvm_needed, vmm
from mb_vm import TICKS


def smaps(pid):
    """[(start, end, file, {field: KiB})] of a process."""
    out = []
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            w = line.split()
            if "-" in w[0] and not w[0].endswith(":"):
                a, b = (int(x, 16) for x in w[0].split("-"))
                out.append((a, b, w[5] if len(w) > 5 else "", {}))
            elif len(w) == 3 and w[2] == "kB":
                out[-1][3][w[0].rstrip(":")] = float(w[1])
    return out


def meminfo(name):
    with open("/proc/meminfo") as f:
        return float(next(l for l in f if l.startswith(name + ":")).split()[1])


class One:
    """One restored, running monitor: the PSS of all its memory, the PSS of what is not guest memory, and the guest pages that were written.
    Beyond guest memory, the pages of the program and its libraries are shared with all other monitors; each monitor has its private pages for itself."""
    name = "mayfly-vmm"

    def __init__(self, ctx):
        kvm_needed()
        self.argv = [vmm(), "--restore", mb_vm.ticking(ctx)]

    def sample(self):
        p = Proc(self.argv)
        try:
            p.wait_mark(b"TICK", 30, TICKS)
            time.sleep(0.2)
            maps = smaps(p.p.pid)
            first = min(m[0] for m in maps if os.path.basename(m[2]).startswith("mem"))
            base = first & ~((2 << 20) - 1)  # the reservation begins at a huge page, with guest-physical 0
            guest = [m for m in maps if base <= m[0] < base + (MIB << 20)]
            rest = [m for m in maps if m not in guest]
            return {"total": sum(m[3]["Pss"] for m in maps), "beyond guest memory": sum(m[3]["Pss"] for m in rest),
                    "of that private": sum(m[3]["Anonymous"] for m in rest),
                    "guest pages written": sum(m[3]["Anonymous"] for m in guest)}
        finally:
            p.close()


class Fill:
    """Makes idle sandboxes through the API until memory, the daemon, MAX or SECONDS is the limit. A sample is the cost of one sandbox while all of them run."""
    name = "mayfly"
    MAX = int(os.environ.get("MAYFLY_BENCH_CLONES", "64"))
    SECONDS = 60
    KEEP_KIB = 400 * 1024  # left free for everybody else

    def __init__(self, ctx):
        self.d = ctx.daemon()
        self.ids = []
        self.costs = []

    def fill(self):
        before, why, end = meminfo("MemAvailable"), "the limit of this run", time.monotonic() + self.SECONDS
        while len(self.ids) < self.MAX and time.monotonic() < end:
            if meminfo("MemAvailable") < self.KEEP_KIB:
                why = "memory"
                break
            try:
                # not `tail -f`: busybox's wakes up once a second, and 64 of them keep one emulated CPU busy
                self.ids.append(self.d.api.create(self.d.image, entrypoint=["sleep", "86400"]))
            except Failed as e:
                why = str(e)
                break
        if len(self.ids) < 2:
            raise Failed(f"{len(self.ids)} sandboxes: {why}")
        time.sleep(2)
        taken = (before - meminfo("MemAvailable")) / len(self.ids)
        state = getattr(self.d, "state", "/")  # a monitor that waits in the pool maps nothing from there yet
        for pid in self.monitors():
            try:
                with open(f"/proc/{pid}/maps") as f:
                    if f" {state}" not in f.read():
                        continue
                with open(f"/proc/{pid}/smaps_rollup") as f:
                    pss = {l.split(":")[0]: float(l.split()[1]) for l in f if l.split()[-1] == "kB"}
            except OSError:
                continue
            self.costs.append({"total": pss["Pss"], "anonymous": pss.get("Pss_Anon", 0.0), "memory gone, a sandbox": taken,
                               "sandboxes at once": float(len(self.ids))})
        for sid in self.ids:
            self.d.api.delete(sid)

    @staticmethod
    def monitors():
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    if os.path.basename(f.read().split(b"\0")[0]).startswith(b"mayfly-vmm"):
                        yield int(pid)
            except OSError:
                continue

    def sample(self):
        if not self.costs:
            self.fill()
        return self.costs.pop()


SCENARIOS = {
    "density": {
        "what": "memory of one restored, running monitor", "start": "-", "stop": "0.2 s after its mark", "unit": "KiB", "arms": [One], "seconds": 20,
    },
    "density-fill": {
        "what": "idle sandboxes from one template, as many as memory allows (at most 64, or what 60 s bring): proportional share of each monitor",
        "start": "-", "stop": "2 s after the last create", "unit": "KiB", "arms": [Fill], "seconds": 60, "passes": 1,
        "phase_unit": {"sandboxes at once": "sandboxes"},
    },
}
