# SPDX-License-Identifier: Apache-2.0
"""Arms that start a virtual machine by themselves, and the scenarios boot, restore and disk. A sample is {"total": us, phase: us}.

Start line: the moment before the process is spawned. Stop line: the first byte of the guest's mark in what the process writes.
"""
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import time

SHARE = os.path.dirname(os.path.abspath(__file__))
MIB = 256


class Absent(Exception):
    """This arm cannot run here; the text says why."""


class Failed(Exception):
    pass


def find(name, *places):
    for p in [os.environ.get("MAYFLY_BENCH_DIR", "")] + [SHARE] + list(places):
        f = os.path.join(p, name)
        if p and os.path.exists(f):
            return f
    got = shutil.which(name)
    if got:
        return got
    raise Absent(f"{name} is not there")


ROOT = os.path.dirname(SHARE)


def files():
    cache = os.environ.get("MAYFLY_CACHE", os.path.expanduser("~/.cache/mayfly"))
    return {"kernel": find("guest-vmlinux", cache), "initrd": find("testinit.cpio", os.path.join(ROOT, "build"))}


def kvm_needed():
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        raise Absent("no /dev/kvm")


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

    def close(self):
        self.p.kill()
        self.p.wait()
        self.p.stdout.close()


def spawned(argv, mark, timeout=60, times=1):
    p = Proc(argv)
    try:
        return {"total": p.wait_mark(mark, timeout, times)}
    finally:
        p.close()


# ---- boot: spawn of the monitor to the first line of init

def vmm():
    return find("mayfly-vmm", os.path.join(ROOT, "build", "bin"))


def mayfly_argv(f, job, *more):
    return [vmm(), "--kernel", f["kernel"], "--initrd", f["initrd"], "--memory", f"{MIB}M", "--vcpus", "1",
            "--cmdline", f"quiet loglevel=1 testinit={job}", *more]


class BootMayfly:
    name = "mayfly-vmm"

    def __init__(self, ctx):
        kvm_needed()
        self.f = files()
        vmm()

    def sample(self):
        return spawned(mayfly_argv(self.f, "end"), b"TESTINIT")


class BootQemu:
    name = "qemu"

    def __init__(self, ctx):
        kvm_needed()
        self.f = files()
        self.argv = [find("qemu-system-x86_64"), "-M", "microvm,acpi=off,pit=off,pic=off,rtc=off,isa-serial=off,x-option-roms=off",
                     "-accel", "kvm", "-cpu", "host", "-m", f"{MIB}M", "-smp", "1", "-nodefaults", "-no-user-config",
                     "-display", "none", "-chardev", "stdio,id=c", "-device", "virtio-serial-device",
                     "-device", "virtconsole,chardev=c", "-no-reboot", "-kernel", self.f["kernel"],
                     "-initrd", self.f["initrd"], "-append", "console=hvc0 quiet loglevel=1 reboot=t panic=-1 testinit=end"]

    def sample(self):
        return spawned(self.argv, b"TESTINIT")


class BootFirecracker:
    name = "firecracker"

    def __init__(self, ctx):
        kvm_needed()
        self.f = files()
        self.bin = find("firecracker")
        self.conf = os.path.join(ctx.tmp, "fc.json")
        import json
        with open(self.conf, "w") as out:
            json.dump({"boot-source": {"kernel_image_path": self.f["kernel"], "initrd_path": self.f["initrd"],
                                       "boot_args": "console=ttyS0 quiet loglevel=1 reboot=k panic=-1 acpi=off testinit=end"},
                       "drives": [], "machine-config": {"vcpu_count": 1, "mem_size_mib": MIB}}, out)

    def sample(self):
        return spawned([self.bin, "--no-api", "--config-file", self.conf], b"TESTINIT")


class BootCloudHypervisor:
    name = "cloud-hypervisor"

    def __init__(self, ctx):
        kvm_needed()
        self.f = files()
        self.argv = [find("cloud-hypervisor"), "--kernel", self.f["kernel"], "--initramfs", self.f["initrd"], "--cpus", "boot=1",
                     "--memory", f"size={MIB}M", "--console", "off", "--serial", "tty", "--cmdline",
                     "console=ttyS0 quiet loglevel=1 reboot=k panic=-1 testinit=end"]

    def sample(self):
        return spawned(self.argv, b"TESTINIT")


class BootKrun:
    name = "krun"

    def __init__(self, ctx):
        raise Absent("no such arm yet")


class RunDocker:
    """A container of an image that is there already: the same stop line, no virtual machine."""
    name = "docker"

    def __init__(self, ctx):
        image = os.environ.get("MAYFLY_BENCH_DOCKER_IMAGE")
        self.argv = [find("docker"), "run", "--rm", "--network", "none", "-m", f"{MIB}m", image or "", "echo", "TESTINIT"]
        if not image:
            raise Absent("MAYFLY_BENCH_DOCKER_IMAGE names no image")

    def sample(self):
        return spawned(self.argv, b"TESTINIT")


class RunRunc:
    """A bundle whose process prints TESTINIT."""
    name = "runc"

    def __init__(self, ctx):
        self.bin = find("runc")
        self.bundle = os.environ.get("MAYFLY_BENCH_RUNC_BUNDLE")
        if not self.bundle:
            raise Absent("MAYFLY_BENCH_RUNC_BUNDLE names no bundle")

    def sample(self):
        return spawned([self.bin, "run", "--bundle", self.bundle, f"mayfly-bench-{os.getpid()}"], b"TESTINIT")


# ---- restore: spawn of the restoring process to the guest's second mark

# The first one may have stood in the console's queue when the snapshot was taken: it comes out although the guest has not run.
# The second was printed by the running guest, a millisecond of its own time after it began; the same for every arm.
TICKS = 2

def make_snapshot(ctx, pages_cold=False):
    """One snapshot of a ticking guest, made once a run, with the monitor's own command."""
    d = os.path.join(ctx.tmp, "snap")
    if os.path.exists(os.path.join(d, "made")):
        return d
    os.makedirs(d, exist_ok=True)
    p = Proc(mayfly_argv(files(), "tick", "--snapshot", d))
    try:
        p.wait_mark(b"TICK", 90)
        time.sleep(0.5)
        p.p.send_signal(signal.SIGUSR2)
        # keep reading, or a full pipe would hold the guest's console
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if not select.select([p.p.stdout.fileno()], [], [], 1)[0]:
                continue
            got = os.read(p.p.stdout.fileno(), 65536)
            if not got:
                break
            p.out = (p.out + got)[-4096:]
        else:
            raise Failed("no snapshot within 120 s: " + p.tail())
        if p.p.wait(30) != 0:
            raise Failed("snapshot: " + p.tail())
    finally:
        p.close()
    open(os.path.join(d, "made"), "w").close()
    return d


def snapshot_files(d):
    names = sorted(os.listdir(d))
    state = [n for n in names if n.startswith("state")]
    mem = [n for n in names if n.startswith("mem")]
    if not state or not mem:
        raise Absent("the snapshot folder holds " + ", ".join(names))
    return os.path.join(d, state[0]), os.path.join(d, mem[0])


class RestoreMayfly:
    name = "mayfly-vmm"

    def __init__(self, ctx):
        kvm_needed()
        self.argv = [vmm(), "--restore", make_snapshot(ctx)]

    def sample(self):
        return spawned(self.argv, b"TICK", 30, TICKS)


class RestoreFloor:
    name = "floor"

    def __init__(self, ctx):
        kvm_needed()
        self.argv = [find("bench-floor", os.path.join(ROOT, "build", "bench")), *snapshot_files(make_snapshot(ctx))]

    def sample(self):
        """The floor says what its steps took, behind the guest's mark: `PHASE name us`."""
        p = Proc(self.argv)
        try:
            got = {"total": p.wait_mark(b"TICK", 30, TICKS)}
            p.wait_mark(b"PHASE end", 5)
            for line in p.out.decode("utf-8", "replace").splitlines():
                w = line.split()
                if len(w) == 3 and w[0] == "PHASE":
                    got[w[1]] = float(w[2])
            return got
        finally:
            p.close()


def drop_caches():
    try:
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("1")
    except OSError as e:
        raise Absent("cannot empty the page cache: " + str(e)) from e


class RestoreMayflyCold(RestoreMayfly):
    """The page cache is emptied before each sample: the monitor's own file and the snapshot come from disk."""

    def sample(self):
        drop_caches()
        return super().sample()


class RestoreFloorCold(RestoreFloor):
    def sample(self):
        drop_caches()
        return super().sample()


# ---- disk: 32 MiB written and synced, then read, by the guest, past its page cache; microseconds of the guest's clock

class DiskMayfly:
    name = "mayfly-vmm"

    def __init__(self, ctx):
        kvm_needed()
        self.f = files()
        self.tool = find("mayfly", os.path.join(ROOT, "build", "bin"))
        self.d = ctx.tmp
        self.base = os.path.join(self.d, "base.raw")
        with open(self.base, "wb") as f:
            f.truncate(128 << 20)

    def sample(self):
        data, bitmap = os.path.join(self.d, "disk.data"), os.path.join(self.d, "disk.map")
        for f in (data, bitmap):
            if os.path.exists(f):
                os.unlink(f)
        subprocess.run([self.tool, "disk", "create", "--base", self.base, "--data", data, "--bitmap", bitmap], check=True)
        return disk_sample(mayfly_argv(self.f, "disk", "--disk", f"{self.base},{data},{bitmap}"))


class DiskQemu:
    name = "qemu"

    def __init__(self, ctx):
        self.boot = BootQemu(ctx)
        self.img = os.path.join(ctx.tmp, "qemu.raw")
        self.argv = [a.replace("testinit=end", "testinit=disk") for a in self.boot.argv] + [
            "-drive", f"if=none,id=d,file={self.img},format=raw,discard=unmap,detect-zeroes=off", "-device", "virtio-blk-device,drive=d"]

    def sample(self):
        with open(self.img, "wb") as f:
            f.truncate(128 << 20)
        return disk_sample(self.argv)


def disk_sample(argv):
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


# ---- burst: k restores started at once; one sample is the time until all of them have shown a mark

def burst(k):
    class Burst:
        name = "mayfly-vmm"
        size = k

        def __init__(self, ctx):
            kvm_needed()
            self.argv = [vmm(), "--restore", make_snapshot(ctx)]

        def sample(self):
            t0 = time.monotonic_ns()
            procs = []
            try:
                for _ in range(k):
                    procs.append(Proc(self.argv))
                for p in procs:
                    p.wait_mark(b"TICK", 120, TICKS)
                return {"total": (time.monotonic_ns() - t0) / 1000}
            finally:
                for p in procs:
                    p.p.kill()
                for p in procs:
                    p.close()
    return Burst


# ---- density: what one more idle restored guest costs the host

def smaps(pid):
    """[(start, end, file, {field: KiB})] of a process."""
    out = []
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            w = line.split()
            if "-" in w[0] and not w[0].endswith(":"):
                a, b = (int(x, 16) for x in w[0].split("-"))
                out.append((a, b, w[5] if len(w) > 5 else "", {}))
            elif len(w) == 3 and w[2] == "kB":
                out[-1][3][w[0].rstrip(":")] = float(w[1])
    return out


class Density:
    """What one idle restored guest costs: PSS in KiB, all of it and without guest memory."""
    name = "mayfly-vmm"

    def __init__(self, ctx):
        kvm_needed()
        self.argv = [vmm(), "--restore", make_snapshot(ctx)]

    def sample(self):
        p = Proc(self.argv)
        try:
            p.wait_mark(b"TICK", 30, TICKS)
            time.sleep(0.2)
            maps = smaps(p.p.pid)
            first = min(m[0] for m in maps if os.path.basename(m[2]).startswith("mem"))
            base = first & ~((2 << 20) - 1)  # the reservation begins at a huge page, with guest-physical 0
            guest = [m for m in maps if base <= m[0] < base + (MIB << 20)]
            rest = [m for m in maps if m not in guest]
            return {"total": sum(m[3]["Pss"] for m in maps), "beyond guest memory": sum(m[3]["Pss"] for m in rest),
                    "guest pages written": sum(m[3]["Anonymous"] for m in guest)}
        finally:
            p.close()


class Teardown:
    """Kill of a running monitor to its being reaped."""
    name = "mayfly-vmm"

    def __init__(self, ctx):
        kvm_needed()
        self.argv = [vmm(), "--restore", make_snapshot(ctx)]

    def sample(self):
        p = Proc(self.argv)
        try:
            p.wait_mark(b"TICK", 30, TICKS)
            t0 = time.monotonic_ns()
            p.p.kill()
            p.p.wait()
            return {"total": (time.monotonic_ns() - t0) / 1000}
        finally:
            p.close()


# ---- blank: a waiting monitor is told to restore; request to answer, the vCPUs running

VMM_PREPARE, VMM_RESTORE, VMM_REPLY, VMM_F_RUN = 2, 4, 0x8000, 1


class Control:
    """mayfly-vmm as the daemon starts it: its descriptors have fixed numbers (lib/proto_vmm.h): two listeners, last words, KVM."""

    def __init__(self, tmp):
        self.path = os.path.join(tmp, f"ctl-{time.monotonic_ns()}")
        self.id = 0
        listen = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listen.bind(self.path)
        listen.listen(4)
        vsock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        vsock.bind(self.path + ".vsock")
        vsock.listen(4)
        null = os.open("/dev/null", os.O_RDWR)
        kvm = os.open("/dev/kvm", os.O_RDWR)
        # above the fixed numbers first, so that no dup2 runs over a source
        src = [fcntl.fcntl(f, fcntl.F_DUPFD_CLOEXEC, 20) for f in (listen.fileno(), vsock.fileno(), null, kvm)]
        self.pid = os.posix_spawn(vmm(), [vmm()], os.environ, file_actions=[
            (os.POSIX_SPAWN_DUP2, src[2], 0), (os.POSIX_SPAWN_DUP2, src[2], 1), (os.POSIX_SPAWN_DUP2, src[2], 2),
            (os.POSIX_SPAWN_DUP2, src[0], 3), (os.POSIX_SPAWN_DUP2, src[1], 4), (os.POSIX_SPAWN_DUP2, src[2], 5),
            (os.POSIX_SPAWN_DUP2, src[3], 6)])
        for fd in src + [null, kvm]:
            os.close(fd)
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.s.settimeout(15)
        self.s.connect(self.path)
        listen.close()
        vsock.close()

    def call(self, kind, payload, fds=()):
        self.id += 1
        hdr = struct.pack("<IHHIIiI", 0x314d564d, 1, kind, self.id, len(payload), 0, len(fds))
        socket.send_fds(self.s, [hdr + payload], list(fds))
        while True:
            got = self.s.recv(65536)
            if len(got) < 24:
                raise Failed("the monitor closed its control socket")
            _, _, typ, mid, n, status, _ = struct.unpack("<IHHIIiI", got[:24])
            if mid != self.id:
                continue  # an event
            if status < 0:
                raise Failed(f"request {kind}: {os.strerror(-status)}: {got[28:24 + n].decode('utf-8', 'replace')}")
            return got[24:24 + n]

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.s.close()
        for p in (self.path, self.path + ".vsock"):
            os.unlink(p)


class BlankMayfly:
    name = "mayfly-vmm"

    def __init__(self, ctx):
        kvm_needed()
        self.tmp = ctx.tmp
        self.files = snapshot_files(make_snapshot(ctx))

    def sample(self):
        c = Control(self.tmp)
        fds = [os.open(f, os.O_RDONLY) for f in self.files]
        try:
            c.call(VMM_PREPARE, struct.pack("<QIII", MIB << 20, 1, 0, 0))
            t0 = time.monotonic_ns()
            answer = c.call(VMM_RESTORE, struct.pack("<IHH", VMM_F_RUN, 1, 0), fds)
            got = {"total": (time.monotonic_ns() - t0) / 1000}
            n, at = struct.unpack_from("<H", answer)[0], 2
            for _ in range(n):
                size = struct.unpack_from("<I", answer, at)[0]
                name = answer[at + 4:at + 4 + size].decode()
                got[name] = struct.unpack_from("<Q", answer, at + 4 + size)[0] / 1000
                at += 12 + size
            return got
        finally:
            for fd in fds:
                os.close(fd)
            c.close()


class BlankFloor(RestoreFloor):
    """The floor's steps that remain when its objects are there already."""

    def sample(self):
        got = super().sample()
        parts = {k: got[k] for k in ("tables", "map", "state")}
        return {"total": sum(parts.values()), **parts}
