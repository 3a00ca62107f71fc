# SPDX-License-Identifier: Apache-2.0
"""What every scenario uses: processes whose output is watched for marks, the files that all arms share, the run's context.

An arm is a class with a `name`, __init__(ctx) that raises Absent if it cannot run here, sample() -> {"total": value, phase: value...},
and close() if it holds anything. bench/README.md shows a scenario from end to end.
"""
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

import mb_host

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
MIB = 256     # MiB of guest memory in an arm, unless its scenario says otherwise


class Absent(Exception):
    """This arm cannot run here; the text says why."""


class Failed(Exception):
    """This sample failed; the text says why."""


def find(name, *places):
    """A program or file: beside the bench (inside an appliance everything lies there), in this tree, or on the PATH."""
    for p in [os.environ.get("MAYFLY_BENCH_DIR", ""), HERE, os.path.join(ROOT, "build", "bin"), os.path.join(ROOT, "build", "bench"),
              os.path.join(ROOT, "build"), os.path.join(ROOT, "build", "tools"), *places]:
        f = os.path.join(p, name)
        if p and os.path.exists(f):
            return f
    got = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if got:
        return got
    raise Absent(f"{name} is not there")


def kernel():
    return find("guest-vmlinux", os.environ.get("MAYFLY_CACHE", os.path.expanduser("~/.cache/mayfly")))


def vmm():
    """The monitor under test; --vmm of bench/run names another build."""
    return os.environ.get("MAYFLY_BENCH_VMM") or find("mayfly-vmm")


def kvm_needed():
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        raise Absent("no /dev/kvm")
    if mb_host.virtualization() == "software":
        raise Absent("this /dev/kvm has no hardware behind it: --machine NAME")


def root_needed():
    if os.geteuid() != 0:
        raise Absent("not root")


def us_since(t0_ns):
    return (time.monotonic_ns() - t0_ns) / 1000


class Proc:
    """A child whose output is watched for marks; always killed and reaped."""

    def __init__(self, argv, env=None):
        self.t0 = time.monotonic_ns()
        self.p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
        self.out = b""

    def wait_mark(self, mark, timeout, times=1):
        """Microseconds from the start to the read that brought the mark (for the n-th time)."""
        fd = self.p.stdout.fileno()
        end = time.monotonic() + timeout
        now = time.monotonic_ns()
        while self.out.count(mark) < times:
            left = end - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise Failed(f"no {mark.decode()} within {timeout} s; last: {self.tail()}")
            got = os.read(fd, 65536)
            now = time.monotonic_ns()
            if not got:
                raise Failed(f"ended without {mark.decode()}: {self.tail()}")
            self.out += got
        return (now - self.t0) / 1000

    def tail(self):
        return self.out[-160:].decode("utf-8", "replace").replace("\n", " | ")

    def kill(self):
        self.p.kill()

    def close(self):
        self.p.kill()
        self.p.wait()
        self.p.stdout.close()


def spawned(argv, mark, timeout=60, times=1):
    """Spawn to mark, as a sample."""
    p = Proc(argv)
    try:
        return {"total": p.wait_mark(mark, timeout, times)}
    finally:
        p.close()


def output(argv, timeout=120):
    r = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout)
    if r.returncode != 0:
        raise Failed(f"{os.path.basename(argv[0])} {argv[1] if len(argv) > 1 else ''}: {(r.stderr or r.stdout).strip()[-200:]}")
    return r.stdout


class Context:
    """One run: a scratch folder, and things that several scenarios need. They are made at the first use and ended with the run."""

    def __init__(self, store="", state="", api=""):
        # below the state folder if there is one: the same file system as the product's own files (reflinks, size)
        place = os.path.dirname(state) if state and os.access(os.path.dirname(state) or "/", os.W_OK) else None
        self.tmp = tempfile.mkdtemp(prefix="mayfly-bench-", dir=place)
        os.chmod(self.tmp, 0o711)  # a daemon's user goes through
        self.store, self.state, self.api_url = store, state, api
        self.shared = {}
        self.closing = []
        self.other_build = False  # while an arm is made for --against

    def once(self, key, make):
        """make() the first time; a failure is remembered, too: the next arm is absent for the same reason."""
        if key not in self.shared:
            try:
                self.shared[key] = make()
            except (Absent, Failed, OSError, subprocess.SubprocessError) as e:
                self.shared[key] = e
        if isinstance(self.shared[key], Exception):
            raise Absent(str(self.shared[key]))
        return self.shared[key]

    def of_build(self, name):
        """A name for what the arms of one build share. An older build may lack a device of this build's snapshot, and then refuses it."""
        return name + ("-b" if self.other_build else "")

    def at_end(self, close):
        self.closing.append(close)

    def disk(self, image="tiny"):
        """The root disk of an image in the store, as every arm uses it: a flat read-only ext4 file."""
        def look():
            if not self.store:
                raise Absent("no image store given (--store)")
            for line in output([find("mayfly"), "image", "ls", "--store", self.store, "--json"]).splitlines():
                rec = json.loads(line)
                if rec["name"].endswith(f"/{image}:latest"):
                    return rec["disk"]
            raise Absent(f"no image '{image}' in {self.store}")
        return self.once("disk " + image, look)

    def layer(self, image="tiny"):
        """A fresh private layer over that disk: BASE,DATA,BITMAP as mayfly-vmm --disk takes it."""
        base = self.disk(image)
        n = self.shared["layers"] = self.shared.get("layers", 0) + 1
        data, bitmap = (os.path.join(self.tmp, f"layer{n}.{x}") for x in ("data", "map"))
        output([find("mayfly"), "disk", "create", "--base", base, "--data", data, "--bitmap", bitmap])
        return f"{base},{data},{bitmap}"

    def unlayer(self, disk):
        for f in disk.split(",")[1:]:
            os.unlink(f)

    def overlay(self, image="tiny"):
        """The same for a monitor without layers: a copy of the base (a reflink where the file system can), as its users make it."""
        n = self.shared["layers"] = self.shared.get("layers", 0) + 1
        to = os.path.join(self.tmp, f"copy{n}.raw")
        output(["cp", "--reflink=auto", "--sparse=always", self.disk(image), to])
        return to

    def daemon(self, **runtime):
        """The daemon that all share, or one with other settings of [runtime] (templates=False, blank_pool=0), jail=False, or network={...} for its [network]."""
        import mb_daemon
        if self.other_build:
            raise Absent("a daemon starts the monitor that lies beside it: --against is for scenarios without one")
        if self.api_url:
            if runtime:
                raise Absent("the daemon given has its own settings")
            return self.once("daemon", lambda: mb_daemon.Given(self.api_url))
        return self.once(f"daemon {runtime}", lambda: mb_daemon.Daemon(self, runtime))

    def close(self):
        for c in reversed(self.closing):
            try:
                c()
            except (Failed, OSError, subprocess.SubprocessError):
                pass
        shutil.rmtree(self.tmp, ignore_errors=True)
