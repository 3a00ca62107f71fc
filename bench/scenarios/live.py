# SPDX-License-Identifier: Apache-2.0
"""For how long a live snapshot stops a source with PRIVATE_MIB of private memory, beside a bare fork(2) of as many private pages."""
import os
import struct
import time

import mb_vm
from mb_agent import Life, first_output
from mb_control import EV_GUEST_CONN, EV_SNAPSHOT, F_DIFF, F_LIVE, SNAPSHOT, Control
from mb_core import Failed, find, kernel, kvm_needed, output

# A file of 256 MiB in the guest, its copies on the way there, and what the guest wrote before: so much is private.
PRIVATE_MIB, GUEST_MIB = 334, 512
# bytes that are not zero: a difference leaves zeros out
FILL = b"""mkdir -p /dev/shm/f && mount -t tmpfs -o size=400m t /dev/shm/f && cd /dev/shm/f &&
head -c 1m /dev/zero | tr '\\0' x > a && for i in 1 2 3 4; do cat a a a a > b; mv b a; done && echo hi"""


class Monitor:
    """One guest, restored, with a tmpfs full of what it wrote; every sample is a live snapshot of it."""
    name = "mayfly-vmm"

    def __init__(self, ctx):
        kvm_needed()
        self.tmp, self.disk = ctx.tmp, ctx.disk()
        self.files = [os.path.join(ctx.tmp, ctx.of_build("live") + f".{x}") for x in ("state", "mem")]
        self.out = [os.path.join(ctx.tmp, ctx.of_build("live-out") + f".{x}") for x in ("state", "mem")]
        self.booted()
        self.c = Control(ctx.tmp)
        self.c.prepared(GUEST_MIB)
        self.c.restore(self.files, "", self.disk)
        self.c.event(EV_GUEST_CONN)
        Life(self.c.agent()).setup()
        with self.c.agent() as s:
            s.settimeout(240)
            first_output(s, b"fill", (b"/bin/sh", b"-c", FILL))

    def booted(self):
        """A snapshot of a guest that has done nothing."""
        c = Control(self.tmp)
        try:
            c.prepared(GUEST_MIB)
            c.boot(kernel(), mb_vm.initrd("initramfs.cpio"), mb_vm.CMDLINE, self.disk)
            c.event(EV_GUEST_CONN)
            Life(c.agent()).prepare()
            self.snapshot(c, F_LIVE, self.files)
        finally:
            c.close()

    def snapshot(self, c, flags, files):
        """Microseconds for which the source was stopped, and bytes written."""
        fds = [os.open(f, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600) for f in files]
        try:
            stood = struct.unpack_from("<Q", c.call(SNAPSHOT, struct.pack("<IH", flags, 0), fds))[0]
            c.s.settimeout(120)
            _, status, written, _ = struct.unpack_from("<IiQI", c.event(EV_SNAPSHOT))
        finally:
            for fd in fds:
                os.close(fd)
        if status < 0:
            raise Failed("snapshot: " + os.strerror(-status))
        return stood / 1000, written

    def sample(self):
        stood, written = self.snapshot(self.c, F_LIVE | F_DIFF, self.out)
        if not 0.9 < written / (PRIVATE_MIB << 20) < 1.1:
            raise Failed(f"{written >> 20} MiB are private, not {PRIVATE_MIB}")
        time.sleep(0.5)
        return {"total": stood, "private": written / 1024}

    def close(self):
        self.c.close()


class Floor:
    name = "floor"

    def __init__(self, ctx):
        self.argv = [find("bench-floor"), "--fork", str(PRIVATE_MIB), os.path.join(ctx.tmp, "fork.file")]

    def sample(self):
        return {"total": float(output(self.argv).split()[1])}


SCENARIOS = {
    "live-stop": {
        "what": f"how long a live snapshot stops its source with {PRIVATE_MIB} MiB private to it, beside a bare fork(2) of a process with as many private "
                "pages of 4 KiB",
        "start": "the vCPUs are stopped; floor: before fork(2)", "stop": "the vCPUs run again; floor: fork(2) has returned in the parent",
        "arms": [Floor, Monitor], "seconds": 60, "samples": 6, "phase_unit": {"private": "KiB"},
    },
}
