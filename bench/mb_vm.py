# SPDX-License-Identifier: Apache-2.0
"""How each monitor is started: the same kernel, initramfs, root disk, one vCPU, 256 MiB. docs/benchmarks.md says what each leaves out."""
import json
import os
import time
import signal

from mb_core import MIB, Absent, Failed, Proc, find, kernel, kvm_needed, vmm

CMDLINE = "quiet loglevel=1"


def initrd(name="testinit.cpio"):
    return find(name)


def mayfly(job, *more, init="testinit.cpio"):
    kvm_needed()
    return [vmm(), "--kernel", kernel(), "--initrd", initrd(init), "--memory", f"{MIB}M", "--vcpus", "1",
            "--cmdline", f"{CMDLINE} testinit={job}", *more]


def qemu(job, disk="", ro=True, init="testinit.cpio", more=()):
    kvm_needed()
    argv = [find("qemu-system-x86_64"), "-M", "microvm,acpi=off,pit=off,pic=off,rtc=off,isa-serial=off,x-option-roms=off",
            "-accel", "kvm", "-cpu", "host", "-m", f"{MIB}M", "-smp", "1", "-nodefaults", "-no-user-config",
            "-display", "none", "-chardev", "stdio,id=c", "-device", "virtio-serial-device",
            "-device", "virtconsole,chardev=c", "-no-reboot", "-kernel", kernel(), "-initrd", initrd(init),
            "-append", f"console=hvc0 {CMDLINE} reboot=t panic=-1 testinit={job}"]
    if disk:
        argv += ["-drive", f"if=none,id=d,file={disk},format=raw,discard=unmap,detect-zeroes=off" + (",readonly=on" if ro else ""),
                 "-device", "virtio-blk-device,drive=d,serial=root"]
    return argv + list(more)


def firecracker(ctx, job, disk=""):
    kvm_needed()
    conf = os.path.join(ctx.tmp, f"firecracker-{job}.json")
    with open(conf, "w") as out:
        json.dump({"boot-source": {"kernel_image_path": kernel(), "initrd_path": initrd(),
                                   "boot_args": f"console=ttyS0 {CMDLINE} reboot=k panic=-1 acpi=off testinit={job}"},
                   "drives": [{"drive_id": "root", "path_on_host": disk, "is_root_device": False, "is_read_only": True}] if disk else [],
                   "machine-config": {"vcpu_count": 1, "mem_size_mib": MIB}}, out)
    return [find("firecracker"), "--no-api", "--config-file", conf]


def cloud_hypervisor(job, disk=""):
    kvm_needed()
    return [find("cloud-hypervisor"), "--kernel", kernel(), "--initramfs", initrd(), "--cpus", "boot=1", "--memory", f"size={MIB}M",
            "--console", "off", "--serial", "tty", "--cmdline", f"console=ttyS0 {CMDLINE} reboot=k panic=-1 testinit={job}",
            *(["--disk", f"path={disk},readonly=on"] if disk else [])]


def krun(job, disk=""):
    """bench/krun.c loads libkrun.so by dlopen; `make bench-deps` builds it."""
    kvm_needed()
    lib = find("libkrun.so")
    return [find("bench-krun"), lib, kernel(), initrd(), f"console=hvc0 {CMDLINE} reboot=t panic=-1 testinit={job}", str(MIB), disk]


# The first mark after a restore may have stood in the console's queue when the snapshot was taken: it comes out although the guest has
# not run. The second was printed by the running guest, a millisecond of its own time after it began; the same for every arm.
TICKS = 2


def looping(ctx, job, mark, times, *more):
    """A snapshot of a guest that prints a mark for ever: its folder. Each build of a run makes it once, with the monitor's own command."""
    name = ctx.of_build(job)

    def make():
        d = os.path.join(ctx.tmp, name)
        os.makedirs(d)
        p = Proc(mayfly(job, "--snapshot", d, *more))
        try:
            p.wait_mark(mark, 90, times)
            p.p.send_signal(signal.SIGUSR2)
            end = time.monotonic() + 120
            while p.p.poll() is None:  # read on, or a full pipe would hold the guest's console
                got = os.read(p.p.stdout.fileno(), 65536)
                p.out = (p.out + got)[-4096:]
                if time.monotonic() > end:
                    raise Failed("no snapshot within 120 s: " + p.tail())
            if p.p.returncode != 0:
                raise Failed("snapshot: " + p.tail())
        finally:
            p.close()
        return d
    return ctx.once("snapshot " + name, make)


def ticking(ctx):
    """The guest computes and prints TICK. The snapshot is taken at the 200th mark, long after the guest began."""
    return looping(ctx, "tick", b"TICK", 200)


def commanding(ctx):
    """The guest runs `echo COMMAND` of the root disk, again and again; its pages are in the guest's own cache."""
    return looping(ctx, "commands", b"COMMAND", 20, "--disk", ctx.disk())


def snapshot_files(d):
    names = sorted(os.listdir(d))
    if "state" not in names or "mem.0" not in names:
        raise Absent("the snapshot folder holds " + ", ".join(names))
    return os.path.join(d, "state"), os.path.join(d, "mem.0")


def floor(mark, d):
    return [find("bench-floor"), mark, *snapshot_files(d)]


def floor_sample(argv, mark):
    """The floor says what its steps took, behind the guest's mark: `PHASE name us`."""
    p = Proc(argv)
    try:
        got = {"total": p.wait_mark(mark, 30, TICKS)}
        p.wait_mark(b"PHASE end", 5)
        for line in p.out.decode("utf-8", "replace").splitlines():
            w = line.split()
            if len(w) == 3 and w[0] == "PHASE":
                got[w[1]] = float(w[2])
        return got
    finally:
        p.close()
