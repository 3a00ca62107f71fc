# SPDX-License-Identifier: Apache-2.0
"""A live snapshot by the monitor alone, of a guest that computes: how long until it is durable, and for how long its vCPU stood."""
import os
import re
import shutil
import signal
import time

import mb_vm
from mb_core import Failed, Proc, us_since


class Live:
    name = "mayfly-vmm"

    def __init__(self, ctx):
        self.dir = os.path.join(ctx.tmp, "live")
        self.p = Proc(mb_vm.mayfly("tick", "--snapshot", self.dir, "--stay"))
        self.p.wait_mark(b"TICK", 120, 100)

    def sample(self):
        p = self.p
        p.out = b""
        t0 = time.monotonic_ns()
        p.p.send_signal(signal.SIGUSR2)
        p.wait_mark(b"snapshot: durable", 60)
        total = us_since(t0)
        p.wait_mark(b"KiB", 5)
        stood = re.search(rb"vCPUs stood for (\d+) us", p.out)
        if not stood:
            raise Failed("the monitor did not say for how long it stood")
        shutil.rmtree(self.dir)
        return {"total": total, "guest stood": float(stood[1]), "written meanwhile": total - float(stood[1])}

    def close(self):
        self.p.close()


SCENARIOS = {
    "snapshot": {
        "what": "a live snapshot of a computing guest by the monitor alone: state and all memory that is not zero, made durable",
        "start": "before the signal that asks for it is sent", "stop": "the read that brings the monitor's word that it is durable",
        "arms": [Live], "seconds": 40,
    },
}
