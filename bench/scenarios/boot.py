# SPDX-License-Identifier: Apache-2.0
"""Cold boots: nothing of the guest runs, then the first byte of a command of the root disk."""
import os

import mb_vm
from mb_core import Absent, find, spawned

MARK = b"COMMAND"


class Boot:
    def sample(self):
        return spawned(self.argv, MARK)


class Mayfly(Boot):
    name = "mayfly-vmm"

    def __init__(self, ctx):
        self.argv = mb_vm.mayfly("run", "--disk", ctx.disk())


class Qemu(Boot):
    name = "qemu"

    def __init__(self, ctx):
        self.argv = mb_vm.qemu("run", ctx.disk())


class Firecracker(Boot):
    name = "firecracker"

    def __init__(self, ctx):
        find("firecracker")
        self.argv = mb_vm.firecracker(ctx, "run", ctx.disk())


class CloudHypervisor(Boot):
    name = "cloud-hypervisor"

    def __init__(self, ctx):
        find("cloud-hypervisor")
        self.argv = mb_vm.cloud_hypervisor("run", ctx.disk())


class Krun(Boot):
    name = "krun"

    def __init__(self, ctx):
        self.argv = mb_vm.krun("run", ctx.disk())


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


SCENARIOS = {
    "boot": {
        "what": "a cold boot to a command of the root disk",
        "start": "before the monitor is spawned",
        "stop": "the read that brings the first byte of `echo COMMAND`, a program of the root disk, over the console",
        "arms": [Mayfly, Qemu, Firecracker, CloudHypervisor, Krun, Docker, Runc],
        "seconds": 120,
    },
}
