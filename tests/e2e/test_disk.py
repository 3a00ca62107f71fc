# SPDX-License-Identifier: Apache-2.0
"""A real guest on layered disks: written, synced, read back, discarded, there after a restart; an ext4 root; what the host sees of it."""
import json
import re

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


def boot(machine, files, job, *more):
    r = machine.run("timeout", BOOT_LIMIT_S, f"{files}/mayfly-vmm", "--kernel", f"{files}/guest-vmlinux", "--initrd", f"{files}/testinit.cpio",
                    "--memory", "256M", "--cmdline", f"quiet loglevel=1 testinit={job}", *more, timeout=BOOT_LIMIT_S + 30)
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


def test_a_full_host_disk_is_an_error_in_the_guest(machine, files, disk):
    """The layer lives on a small file system: the guest gets I/O errors, the monitor lives on and ends as asked."""
    machine.run("mkdir", "-p", f"{disk}/small", check=True)
    machine.run("mount", "-t", "tmpfs", "-o", "size=8M", "none", f"{disk}/small", check=True)
    try:
        machine.run(f"{files}/mayfly", "disk", "create", "--base", f"{disk}/base", "--data", f"{disk}/small/data", "--bitmap",
                    f"{disk}/small/map", check=True)
        out = boot(machine, files, "disk", "--disk", f"{disk}/base,{disk}/small/data,{disk}/small/map")
        assert re.search(r"DISK bad=[1-9]", out), out[-2000:]
        assert "asked for a reset" in out
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
