# SPDX-License-Identifier: Apache-2.0
"""A monitor without a daemon, the product's own agent in the guest: from nothing to the first byte of a command, restored and booted.

The same kernel, initramfs with the agent, root disk, vCPU and memory in every arm; only the monitor differs. Each arm waits for the
agent to announce itself: with mayfly-vmm that is a line of the monitor's log, under QEMU a connection to the host's vsock port.
"""
import os
import select
import socket
import struct
import time

import mb_vm
from mb_agent import exactly, first_output
from mb_core import Absent, Failed, Proc, kvm_needed, us_since, vmm

READY, AGENT, OPEN_MAGIC = 1023, 1024, 0x31534B56    # lib/proto_vmm.h
CID = 4711
ANNOUNCED = b"to host port 1023"


def whole(s, t0, up):
    first_output(s)
    total = us_since(t0)
    return {"total": total, "agent announced": up, "first command": total - up}


class Restored:
    name = "mayfly-vmm"

    def __init__(self, ctx):
        kvm_needed()
        self.sock = os.path.join(ctx.tmp, "first.sock")
        self.disk = ctx.disk()
        self.argv = self.command(ctx)

    def command(self, ctx):
        d = ctx.once(ctx.of_build("agent snapshot"), lambda: self.snapshot(ctx))
        return [vmm(), "--no-jail", "--no-jail", "--restore", d, "--disk", self.disk, "--vsock", self.sock]

    def snapshot(self, ctx):
        """Taken when the agent announces itself: as an automatic template is."""
        d = os.path.join(ctx.tmp, ctx.of_build("agent-snapshot"))
        p = Proc(mb_vm.mayfly("none", "--disk", self.disk, "--vsock", self.sock, "--snapshot", d, init="initramfs.cpio"))
        try:
            if p.p.wait(120) != 0:
                raise Failed("snapshot: " + p.p.stdout.read().decode("utf-8", "replace")[-200:])
        finally:
            p.close()
        return d

    def connect(self):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(60)
        s.connect(self.sock)
        s.sendall(struct.pack("<III", OPEN_MAGIC, AGENT, 0))
        status = struct.unpack("<III", exactly(s, 12))[2]
        if status:
            raise Failed("the guest's agent: " + os.strerror(status))
        return s

    def sample(self):
        t0 = time.monotonic_ns()
        p = Proc(self.argv)
        try:
            p.wait_mark(ANNOUNCED, 120)
            up = us_since(t0)
            with self.connect() as s:
                return whole(s, t0, up)
        finally:
            p.close()


class Booted(Restored):
    name = "mayfly-vmm-boot"

    def command(self, ctx):
        return mb_vm.mayfly("none", "--disk", self.disk, "--vsock", self.sock, init="initramfs.cpio")


class Qemu:
    name = "qemu"

    def __init__(self, ctx):
        if not os.path.exists("/dev/vhost-vsock"):
            raise Absent("no /dev/vhost-vsock: QEMU cannot give the agent its socket")
        self.argv = mb_vm.qemu("none", ctx.disk(), init="initramfs.cpio", more=["-device", f"vhost-vsock-device,guest-cid={CID}"])
        self.listen = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        self.listen.bind((socket.VMADDR_CID_ANY, READY))
        self.listen.listen(4)

    def sample(self):
        t0 = time.monotonic_ns()
        p = Proc(self.argv)
        try:
            if not select.select([self.listen], [], [], 120)[0]:
                raise Failed("the agent did not announce itself within 120 s")
            ready, _ = self.listen.accept()
            up = us_since(t0)
            with ready, socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as s:
                s.settimeout(60)
                s.connect((CID, AGENT))
                return whole(s, t0, up)
        finally:
            p.close()

    def close(self):
        self.listen.close()


SCENARIOS = {
    "agent-first": {
        "what": "to the first output of a command through the agent, no daemon: restored (`mayfly-vmm`), booted (`mayfly-vmm-boot`, `qemu`)",
        "start": "before the monitor is spawned", "stop": "the read that brings the first byte of `echo hi` from the agent",
        "arms": [Restored, Booted, Qemu], "seconds": 80,
    },
}
