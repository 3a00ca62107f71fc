# SPDX-License-Identifier: Apache-2.0
"""The guest agent: one guest without a daemon, its agent asked over vsock by tests/tools/agentload.c.

Every arm of a run talks to the same warm guest.
"""
import os
import subprocess
import tempfile

from mb_core import MIB, Absent, Failed, find, kernel, kvm_needed, output, vmm

BIG = 256 << 20
MANY, SMALL = 2000, 4096


class Guest:
    """A guest with an ext4 root that holds the floor's program and nothing else; made once a run."""

    def __init__(self, ctx):
        kvm_needed()
        tool, load, floor, initrd = find("mayfly"), find("agentload"), find("forkexec"), find("initramfs.cpio")
        d = tempfile.mkdtemp(dir=ctx.tmp)
        root, base, sock = os.path.join(d, "root"), os.path.join(d, "base.raw"), os.path.join(d, "v.sock")
        for sub in ("bin", "etc", "proc", "sys", "dev", "run", "tmp"):
            os.makedirs(os.path.join(root, sub))
        for name in ("forkexec", "true"):
            output(["cp", floor, os.path.join(root, "bin", name)])
        output([find("mke2fs"), "-q", "-t", "ext4", "-d", root, base, "1G"])
        output([tool, "disk", "create", "--base", base, "--data", d + "/data", "--bitmap", d + "/bitmap"])
        # the guest's page cache holds the big file: what is measured is the way, not the disk (its own scenario)
        with open(d + "/log", "w") as log:
            self.vm = subprocess.Popen([vmm(), "--no-jail", "--no-jail", "--kernel", kernel(), "--initrd", initrd, "--memory", f"{4 * MIB}M", "--vcpus", "1",
                                        "--cmdline", "quiet loglevel=1", "--disk", f"{base},{d}/data,{d}/bitmap", "--vsock", sock],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
        ctx.at_end(self.close)
        self.load = None
        while not os.path.exists(sock):
            if self.vm.poll() is not None:
                raise Absent("the guest did not start: " + self.log(d))
        self.load = subprocess.Popen([load, sock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        if self.load.stdout.readline().strip() != "ready":
            raise Absent("no agent: " + self.log(d))

    @staticmethod
    def log(d):
        with open(d + "/log") as f:
            return f.read()[-300:]

    def ask(self, line):
        """Microseconds, by agentload's clock (or the guest's, for the floor)."""
        self.load.stdin.write(line + "\n")
        self.load.stdin.flush()
        got = self.load.stdout.readline().strip()
        try:
            return float(got)
        except ValueError:
            raise Failed(f"{line}: {got or 'agentload ended'}") from None

    def close(self):
        for p in (self.load, self.vm):
            if p:
                p.kill()
                p.wait()


def guest(ctx):
    return ctx.once("agent guest", lambda: Guest(ctx))


def arm(label, line, warm=3):
    class Arm:
        name = label

        def __init__(self, ctx):
            self.g = guest(ctx)
            for _ in range(warm):
                self.g.ask(line)

        def sample(self):
            return {"total": self.g.ask(line)}
    return Arm


class Transfer:
    """Up, then down, every byte compared; phases are one way each."""

    def __init__(self, ctx):
        self.g = guest(ctx)

    def both(self, what):
        up, down = self.g.ask("put" + what), self.g.ask("get" + what)
        return {"total": up + down, "to the guest": up, "from the guest": down}

    def sample(self):
        return self.both(self.what)

    def warm(self):
        return self.both(self.little)


class Big(Transfer):
    name, what, little = "mayfly-agent", f" {BIG}", f" {BIG // 32}"


class Many(Transfer):
    name, what, little = "mayfly-agent", f"s {MANY} {SMALL}", f"s {MANY // 32} {SMALL}"


BYTES = {"start": "before the first byte to the agent", "stop": "to the guest: the agent has said that all is written (not synced); from it: every byte was compared"}
SCENARIOS = {
    "agent": {
        "what": "round trips to a warm guest's agent over vsock, no daemon; fork, exec and wait of the same static `true` inside the guest",
        "start": "ping: before an empty request is written; true: before AGENT_EXEC is written (connecting: before the connection is made); "
                 "fork+exec+wait: before the fork (guest's clock)",
        "stop": "the answer is read; AGENT_EXIT is read; after the wait",
        "arms": [arm("ping", "ping"), arm("true", "true"), arm("true, connecting", "true-cold"), arm("fork+exec+wait", "fork")], "seconds": 8,
    },
    "agent-256m": {
        "what": "a file of 256 MiB to the guest and back", **BYTES, "arms": [Big], "seconds": 50, "samples": 6, "passes": 2, "rate": (512, "MiB/s"),
        "phase_rate": {"to the guest": 256, "from the guest": 256},
    },
    "agent-2000": {
        "what": "2,000 files of 4 KiB to the guest and back, one after the other on one connection", **BYTES, "arms": [Many], "seconds": 70, "samples": 4, "passes": 2,
        "rate": (2 * MANY, "files/s"), "phase_rate": {"to the guest": MANY, "from the guest": MANY},
    },
}
