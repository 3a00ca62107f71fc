# SPDX-License-Identifier: Apache-2.0
"""Disk throughput in the guest: its own clock, past its page cache."""
import os

import mb_vm
from mb_core import Failed, Proc, find, output

BYTES = 32 << 20


def sample(argv):
    p = Proc(argv)
    try:
        p.wait_mark(b"DISK bad", 120)
        p.wait_mark(b"TESTINIT end", 30)
        line = [l for l in p.out.decode("utf-8", "replace").splitlines() if "DISK bad" in l][0]
        v = dict(w.split("=") for w in line[line.index("DISK"):].split()[1:])
        if v["bad"] != "0":
            raise Failed("the guest read other bytes than it wrote: " + line)
        return {"total": float(v["write_us"]) + float(v["read_us"]), "write": float(v["write_us"]), "read": float(v["read_us"])}
    finally:
        p.close()


class Mayfly:
    """A fresh private layer on an empty base each time."""
    name = "mayfly-vmm"

    def __init__(self, ctx):
        mb_vm.mayfly("disk")
        self.dir = ctx.tmp
        self.base = os.path.join(ctx.tmp, "base.raw")
        with open(self.base, "wb") as f:
            f.truncate(128 << 20)

    def sample(self):
        data, bitmap = (os.path.join(self.dir, "disk." + x) for x in ("data", "map"))
        for f in (data, bitmap):
            if os.path.exists(f):
                os.unlink(f)
        output([find("mayfly"), "disk", "create", "--base", self.base, "--data", data, "--bitmap", bitmap])
        return sample(mb_vm.mayfly("disk", "--disk", f"{self.base},{data},{bitmap}"))


class Qemu:
    """A fresh sparse raw file each time."""
    name = "qemu"

    def __init__(self, ctx):
        self.img = os.path.join(ctx.tmp, "qemu.raw")
        self.argv = mb_vm.qemu("disk", self.img, ro=False)

    def sample(self):
        with open(self.img, "wb") as f:
            f.truncate(128 << 20)
        return sample(self.argv)


SCENARIOS = {
    "disk": {
        "what": "32 MiB written in pieces of 1 MiB (O_DIRECT, fsync), then read, on a fresh empty disk",
        "start": "before the guest's first write (guest's clock)", "stop": "the last read",
        "arms": [Mayfly, Qemu], "seconds": 80, "rate": (32, "MiB/s"), "phase_rate": {"write": 32, "read": 32},
    },
}
