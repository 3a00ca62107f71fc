# SPDX-License-Identifier: Apache-2.0
"""Scenarios of the guest agent: one guest without a daemon, its agent asked over vsock by tests/tools/agentload.c.

Every arm of a run talks to the same warm guest. Start and stop lines are docs/benchmarks.md's.
"""
import os
import subprocess
import tempfile

from mb_arms import MIB, ROOT, Absent, Failed, find, kvm_needed, vmm

BIG = 256 << 20
MANY, SMALL = 2000, 4096


class Guest:
    """A guest with an ext4 root that holds the floor's program and nothing else; made once a run."""

    def __init__(self, ctx):
        kvm_needed()
        build = os.path.join(ROOT, "build")
        kernel = find("guest-vmlinux", os.environ.get("MAYFLY_CACHE", os.path.expanduser("~/.cache/mayfly")))
        tool, load = find("mayfly", os.path.join(build, "bin")), find("agentload", os.path.join(build, "tools"))
        floor, initrd = find("forkexec", os.path.join(build, "bench")), find("initramfs.cpio", build)
        d = tempfile.mkdtemp(dir=ctx.tmp)
        root, base, sock = os.path.join(d, "root"), os.path.join(d, "base.raw"), os.path.join(d, "v.sock")
        for sub in ("bin", "etc", "proc", "sys", "dev", "run", "tmp"):
            os.makedirs(os.path.join(root, sub))
        for name in ("forkexec", "true"):
            subprocess.run(["cp", floor, os.path.join(root, "bin", name)], check=True)
        self.run(["mke2fs", "-q", "-t", "ext4", "-d", root, base, "1G"])
        self.run([tool, "disk", "create", "--base", base, "--data", d + "/data", "--bitmap", d + "/bitmap"])
        # the guest's page cache holds the big file: what is measured is the way, not the disk (its own scenario)
        self.vm = subprocess.Popen([vmm(), "--no-jail", "--kernel", kernel, "--initrd", initrd, "--memory", f"{4 * MIB}M", "--vcpus", "1",
                                    "--cmdline", "quiet loglevel=1", "--disk", f"{base},{d}/data,{d}/bitmap", "--vsock", sock],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(d + "/log", "w"))
        while not os.path.exists(sock):
            if self.vm.poll() is not None:
                raise Absent("the guest did not start: " + open(d + "/log").read()[-300:])
        self.load = subprocess.Popen([load, sock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        if self.load.stdout.readline().strip() != "ready":
            raise Absent("no agent: " + open(d + "/log").read()[-300:])

    @staticmethod
    def run(argv):
        r = subprocess.run(argv, text=True, capture_output=True)
        if r.returncode:
            raise Absent(f"{argv[0]}: {r.stderr.strip()[-200:]}")

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
            p.kill()
            p.wait()


def guest(ctx):
    if not hasattr(ctx, "agent_guest"):
        ctx.agent_guest = Guest(ctx)
        ctx.agent_users = 0
    ctx.agent_users += 1
    return ctx.agent_guest


def arm(label, line, warm=3):
    class Arm:
        name = label

        def __init__(self, ctx):
            self.ctx, self.g = ctx, guest(ctx)
            for _ in range(warm):
                self.g.ask(line)

        def sample(self):
            return {"total": self.g.ask(line)}

        def close(self):
            self.ctx.agent_users -= 1
            if not self.ctx.agent_users:
                self.g.close()
                del self.ctx.agent_guest
    return Arm


class Transfer:
    """Up, then down, every byte compared; phases are one way each."""

    def __init__(self, ctx):
        self.ctx, self.g = ctx, guest(ctx)

    def sample(self):
        up, down = self.g.ask("put" + self.what), self.g.ask("get" + self.what)
        return {"total": up + down, "to the guest": up, "from the guest": down}

    close = arm("", "").close


class Big(Transfer):
    name, what = "mayfly-agent", f" {BIG}"


class Many(Transfer):
    name, what = "mayfly-agent", f"s {MANY} {SMALL}"


SCENARIOS = {
    "agent": ("us", [arm("ping", "ping"), arm("true", "true"), arm("true, connecting", "true-cold"), arm("fork+exec+wait", "fork")],
              "round trips to a warm guest's agent; fork, exec and wait of `true` inside it"),
    "agent-256m": ("us", [Big], "a file of 256 MiB to the guest and back"),
    "agent-2000": ("us", [Many], "2,000 files of 4 KiB to the guest and back, one after the other"),
}
