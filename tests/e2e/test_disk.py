# SPDX-License-Identifier: Apache-2.0
"""A real guest on layered disks: written, synced, read back, discarded, there after a restart; an ext4 root; what the host sees of it."""
import json
import re
import time

import pytest

from conftest import BIN, CACHE, MAYFLY, TOP

BOOT_LIMIT_S = 90


@pytest.fixture(scope="module")
def files(machine):
    return machine.publish(BIN / "mayfly-vmm", MAYFLY, CACHE / "guest-vmlinux", TOP / "build" / "testinit.cpio")


@pytest.fixture
def disk(machine, files, tmp_path_factory):
    """A folder inside with a sparse base of 128 MiB and a private layer on it; the --disk argument."""
    d = f"/tmp/disk-{tmp_path_factory.mktemp('d').name}"
    machine.run("mkdir", "-p", d, check=True)
    machine.run("truncate", "-s", "128M", f"{d}/base", check=True)
    layer(machine, files, d)
    yield d
    machine.run("rm", "-rf", d)


def layer(machine, files, d):
    machine.run("rm", "-f", f"{d}/data", f"{d}/map", check=True)
    machine.run(f"{files}/mayfly", "disk", "create", "--base", f"{d}/base", "--data", f"{d}/data", "--bitmap", f"{d}/map", check=True)


def measure(machine, files, d):
    r = machine.run(f"{files}/mayfly", "disk", "measure", "--json", "--base", f"{d}/base", "--data", f"{d}/data", "--bitmap", f"{d}/map", check=True)
    return json.loads(r.stdout)


def booting(files, job, *more):
    return ("timeout", BOOT_LIMIT_S, f"{files}/mayfly-vmm", "--kernel", f"{files}/guest-vmlinux", "--initrd", f"{files}/testinit.cpio",
            "--memory", "256M", "--cmdline", f"quiet loglevel=1 testinit={job}", *more)


def boot(machine, files, job, *more):
    r = machine.run(*booting(files, job, *more), timeout=BOOT_LIMIT_S + 30)
    return r.stdout.replace("\r", "") + r.stderr


def on(d):
    return ("--disk", f"{d}/base,{d}/data,{d}/map")


def test_written_is_there_after_a_restart(machine, files, disk):
    out = boot(machine, files, "disk", *on(disk))
    assert re.search(r"DISK bad=0 ", out), out[-2000:]
    u = measure(machine, files, disk)
    # 32 MiB written, the first of them discarded: zeros that hide the base, and its space given back
    assert u["units_data"] == 31 * 256
    assert u["units_zero"] == 256
    assert u["private_bytes"] < 32 << 20
    out = boot(machine, files, "check", *on(disk))
    assert "DISK checked bad=0" in out, out[-2000:]
    r = machine.run(f"{files}/mayfly", "disk", "check", "--data", f"{disk}/data", "--bitmap", f"{disk}/map")
    assert r.returncode == 0 and r.stdout == "good\n"
    # the base is as it was
    assert machine.run("bash", "-c", f"tr -d '\\0' <{disk}/base | wc -c").stdout.strip() == "0"


def test_flattened_is_the_same_disk(machine, files, disk):
    boot(machine, files, "disk", *on(disk))
    machine.run(f"{files}/mayfly", "disk", "flatten", "--base", f"{disk}/base", "--data", f"{disk}/data", "--bitmap", f"{disk}/map",
                "--out", f"{disk}/flat", check=True)
    out = boot(machine, files, "check", "--disk", f"{disk}/flat")
    assert "DISK checked bad=0" in out, out[-2000:]


def test_ext4_is_mounted_and_remembers(machine, files, disk):
    machine.run("mke2fs", "-q", "-t", "ext4", f"{disk}/base", check=True)
    assert "MOUNT ok mark=none umount=0" in boot(machine, files, "mount", *on(disk))
    assert "MOUNT ok mark=was here umount=0" in boot(machine, files, "mount", *on(disk))
    machine.run(f"{files}/mayfly", "disk", "flatten", "--base", f"{disk}/base", "--data", f"{disk}/data", "--bitmap", f"{disk}/map",
                "--out", f"{disk}/flat", check=True)
    r = machine.run("e2fsck", "-fn", f"{disk}/flat")
    assert r.returncode == 0, r.stdout
    # another layer on the same base never saw it
    layer(machine, files, disk)
    assert "MOUNT ok mark=none" in boot(machine, files, "mount", *on(disk))


def test_a_full_host_disk_makes_the_guest_wait(machine, files, disk, tmp_path):
    """The layer lives on a small file system: the guest's writes wait, none fails, and all go on when there is room."""
    machine.run("mkdir", "-p", f"{disk}/small", check=True)
    machine.run("mount", "-t", "tmpfs", "-o", "size=8M", "none", f"{disk}/small", check=True)
    try:
        machine.run(f"{files}/mayfly", "disk", "create", "--base", f"{disk}/base", "--data", f"{disk}/small/data", "--bitmap",
                    f"{disk}/small/map", check=True)
        said = tmp_path / "said"
        with open(said, "wb") as to:
            monitor = machine.popen(*booting(files, "disk", "--disk", f"{disk}/base,{disk}/small/data,{disk}/small/map"), stdout=to, stderr=to)
        end = time.monotonic() + BOOT_LIMIT_S
        while b"no room: writes wait" not in said.read_bytes():
            assert monitor.poll() is None and time.monotonic() < end, said.read_text(errors="replace")[-2000:]
            time.sleep(0.1)
        machine.run("mount", "-o", "remount,size=256M", f"{disk}/small", check=True)
        monitor.wait(BOOT_LIMIT_S)
        out = said.read_text(errors="replace")
        assert re.search(r"DISK bad=0 ", out) and "asked for a reset" in out, out[-2000:]
    finally:
        machine.run("umount", f"{disk}/small")


def test_a_damaged_layer_is_named_before_anything_runs(machine, files, disk):
    machine.run("dd", f"of={disk}/map", "bs=1", "count=1", "conv=notrunc", "status=none", stdin="X", check=True)
    out = boot(machine, files, "end", *on(disk))
    assert "bitmap: magic" in out
    assert "TESTINIT" not in out
    r = machine.run(f"{files}/mayfly", "disk", "check", "--repair", "--data", f"{disk}/data", "--bitmap", f"{disk}/map")
    assert r.returncode == 0, r.stdout + r.stderr
    assert "TESTINIT" in boot(machine, files, "end", *on(disk))
