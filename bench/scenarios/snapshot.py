# SPDX-License-Identifier: Apache-2.0
"""A live snapshot by the monitor alone, of a guest that computes: how long until it is durable, how much was written, and for how long its vCPU was stopped."""
import os
import struct
import time

import mb_vm
from mb_control import EV_SNAPSHOT, F_DIFF, F_LIVE, SNAPSHOT, Control
from mb_core import Failed, kvm_needed, us_since


class Full:
    """All memory that is not zero."""
    name, flags = "full", F_LIVE

    def __init__(self, ctx):
        kvm_needed()
        self.tmp = ctx.tmp
        self.files = mb_vm.snapshot_files(mb_vm.ticking(ctx))
        self.out = [os.path.join(ctx.tmp, f"{self.name}.{x}") for x in ("state", "mem")]

    def sample(self):
        """A guest of its own each time, restored a moment ago: none that computes stays behind beside other scenarios."""
        c = Control(self.tmp)
        fds = []
        try:
            c.restored(self.files)
            time.sleep(0.2)  # it computes and prints, and so writes pages of its own
            fds = [os.open(f, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600) for f in self.out]
            t0 = time.monotonic_ns()
            stood = struct.unpack_from("<Q", c.call(SNAPSHOT, struct.pack("<IH", self.flags, 0), fds))[0]
            done = c.event(EV_SNAPSHOT)
            total = us_since(t0)
            _, status, written, n = struct.unpack_from("<IiQI", done)
            if status < 0:
                raise Failed("snapshot: " + done[20:20 + n].decode("utf-8", "replace"))
            return {"total": total, "guest stood": stood / 1000, "written meanwhile": total - stood / 1000, "size": written / 1024}
        finally:
            c.close()
            for fd in fds:
                os.close(fd)
            for f in self.out:
                if os.path.exists(f):
                    os.unlink(f)


class Difference(Full):
    """Only the pages that differ from the files the guest was restored from."""
    name, flags = "difference", F_LIVE | F_DIFF


SCENARIOS = {
    "snapshot": {
        "what": "a live snapshot of a computing guest by the monitor alone: all memory that is not zero, or the difference to what it was restored from",
        "start": "before the request is sent", "stop": "the event that says it is durable; `guest stood` by the monitor's own clock; `size`: state and memory written",
        "arms": [Full, Difference], "seconds": 40, "phase_unit": {"size": "KiB"},
    },
}
