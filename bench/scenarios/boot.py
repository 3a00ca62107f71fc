# SPDX-License-Identifier: Apache-2.0
"""From nothing to the first byte of a command's output, over the console: cold boots, and the restores that replace them."""
import os

import mb_vm
from mb_core import Absent, find, kvm_needed, spawned, vmm

MARK = b"COMMAND"


class Boot:
    def sample(self):
        return spawned(self.argv, MARK)


def booted(label, argv, program=None):
    """An arm: argv(ctx) is the command line; program: the arm is absent without it."""
    class Monitor(Boot):
        name = label

        def __init__(self, ctx):
            if program:
                find(program)
            self.argv = argv(ctx)
    return Monitor


def mayfly(ctx):
    return mb_vm.mayfly("run", "--disk", ctx.disk())


Qemu = booted("qemu", lambda ctx: mb_vm.qemu("run", ctx.disk()))
MONITORS = [
    booted("mayfly-vmm", mayfly),
    Qemu,
    booted("firecracker", lambda ctx: mb_vm.firecracker(ctx, "run", ctx.disk()), "firecracker"),
    booted("cloud-hypervisor", lambda ctx: mb_vm.cloud_hypervisor("run", ctx.disk()), "cloud-hypervisor"),
    booted("krun", lambda ctx: mb_vm.krun("run", ctx.disk())),
]


class Docker(Boot):
    """A container of an image that is there already: the same stop line, no virtual machine."""
    name = "docker"

    def __init__(self, ctx):
        docker = find("docker")
        image = os.environ.get("MAYFLY_BENCH_DOCKER_IMAGE")
        if not image:
            raise Absent("MAYFLY_BENCH_DOCKER_IMAGE names no image")
        self.argv = [docker, "run", "--rm", "--network", "none", "-m", "256m", image, "echo", "COMMAND"]


class Runc(Boot):
    """A bundle whose process prints COMMAND."""
    name = "runc"

    def __init__(self, ctx):
        runc = find("runc")
        bundle = os.environ.get("MAYFLY_BENCH_RUNC_BUNDLE")
        if not bundle:
            raise Absent("MAYFLY_BENCH_RUNC_BUNDLE names no bundle")
        self.argv = [runc, "run", "--bundle", bundle, f"mayfly-bench-{os.getpid()}"]


class Restored:
    """The guest of the snapshot runs the command again and again: the second output after a restore is that of a command started after it."""
    name = "mayfly-vmm"

    def __init__(self, ctx):
        kvm_needed()
        self.argv = [vmm(), "--restore", mb_vm.commanding(ctx), "--disk", ctx.disk()]

    def sample(self):
        return spawned(self.argv, MARK, 60, mb_vm.TICKS)


class RestoredFloor:
    """The same snapshot; the guest has the command in its page cache and asks no disk."""
    name = "floor"

    def __init__(self, ctx):
        kvm_needed()
        self.argv = mb_vm.floor(MARK.decode(), mb_vm.commanding(ctx))

    def sample(self):
        return mb_vm.floor_sample(self.argv, MARK)


SCENARIOS = {
    "boot": {
        "what": "a cold boot to a command of the root disk",
        "start": "before the monitor is spawned",
        "stop": "the read that brings the first byte of `echo COMMAND`, a program of the root disk, over the console",
        "arms": [*MONITORS, Docker, Runc],
        "seconds": 120,
    },
    "first-output": {
        "what": "to the first output of a command of the root disk, without a daemon: restored (`floor`, `mayfly-vmm`), booted (`mayfly-vmm-boot`, `qemu`)",
        "start": "before the monitor is spawned",
        "stop": "the read that brings the first byte of `echo COMMAND`, a program of the root disk, over the console; restored: of a command that was "
                "started after the restore (see below)",
        "arms": [RestoredFloor, Restored, booted("mayfly-vmm-boot", mayfly), Qemu],
        "seconds": 100,
    },
}
