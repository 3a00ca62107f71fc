# SPDX-License-Identifier: Apache-2.0
"""The monitor by itself, driven over its control socket as the daemon drives it: the memory model from template to clone of a clone, restores in
a row, boots, memory sizes, and every way a guest can end. MAYFLY_STRESS=1 runs the numbers that docs/ARCHITECTURE.md quotes."""
import os
import subprocess

import pytest

from conftest import BIN, CACHE, TOP

STRESS = bool(os.environ.get("MAYFLY_STRESS"))


def driver(machine):
    subprocess.run(["make", "-s", "build/bin/vm-drive", "build/vmguest.cpio", "build/tools/deny"], cwd=TOP, check=True)
    at = machine.publish(BIN / "mayfly-vmm", BIN / "vm-drive", CACHE / "guest-vmlinux", TOP / "build" / "vmguest.cpio",
                         TOP / "build" / "tools" / "deny")

    def run(*what, limit=600, deny=()):
        under = [f"{at}/deny", *deny, "--"] if deny else []
        r = machine.run("timeout", limit, *machine.traced(), *under, f"{at}/vm-drive", f"{at}/mayfly-vmm", f"{at}/guest-vmlinux", f"{at}/vmguest.cpio", "/tmp/vm-drive",
                        *what, timeout=limit + 30)
        print(r.stdout, r.stderr)
        machine.run("rm", "-rf", "/tmp/vm-drive")
        assert r.returncode == 0, r.stdout + r.stderr[-3000:]
        return r.stdout + r.stderr

    return run


@pytest.fixture(scope="module")
def drive(machine):
    return driver(machine)


def test_memory_model(drive):
    out = drive("model", 20 if STRESS else 3, limit=900)
    assert "ok snapshot of a clone, restored" in out


def test_restores_in_a_row(drive):
    n = 1000 if STRESS else 5
    assert f"{n} of {n} good" in drive("rate", n, limit=1800)


def test_boots_with_two_vcpus(drive):
    drive("boots", 50 if STRESS else 2, 2, limit=1800)


@pytest.mark.parametrize("vcpus", [2, 1] if STRESS else [2])
def test_snapshot_in_the_middle_of_everything(drive, vcpus):
    """Disk writes, streams and a counter: the source and every one of its restores, all at once, go on to the same end."""
    n = 20 if STRESS else 3
    assert f"ok {n} restored at once with {vcpus} vCPUs went on" in drive("busy", n, vcpus, limit=1800)


def test_disks_freeze_with_memory(drive):
    out = drive("disks")
    assert "ok ten freezes in a chain" in out and "each with its list of system calls" in out


@pytest.mark.skipif(not STRESS, reason="hours: MAYFLY_STRESS=1")
def test_freed_memory_is_given_back(drive):
    """What a guest used and freed comes back to the host, by free page reports and by inflating; a difference taken then is small, and right."""
    assert "ok 100 rounds of 1024 MiB used, freed and given back" in drive("balloon", 1024, 100, limit=36000)


def test_every_end_has_its_reason(drive):
    out = drive("ends")
    assert "FAILED" not in out and "refused the next time" in out
    for what in ("triple fault", "KVM internal error 1", 'a device needs a reset: "rng: ', "no room for a snapshot", "a base that was shortened", "no room for a layer", "holds no socket"):
        assert what in out


def test_on_an_older_or_stricter_kernel(drive):
    """No io_uring, no PAGEMAP_SCAN (before Linux 6.7), no KVM_PRE_FAULT_MEMORY (before 6.11): the same results by the plain ways."""
    deny = ["io_uring_setup=EPERM", "ioctl:0xc0606610=ENOTTY", "ioctl:0xc040aed5=EOPNOTSUPP"]
    out = drive("disks", deny=deny)
    assert "ok ten freezes in a chain" in out and "no io_uring here" in out and "each with its list of system calls" in out
    if STRESS:
        assert "ok snapshot of a clone, restored" in drive("model", 3, limit=900, deny=deny)


def test_memory_sizes(fresh_machine):
    """128 MiB, 2 GiB, 5 GiB with 1, 4, 2 vCPUs (stress: each with each), and 16 vCPUs; the largest goes beyond the hole below 4 GiB, and is
    snapshotted and restored."""
    fresh_machine.memory = "8G"
    out = driver(fresh_machine.start())("sizes", *(["all"] if STRESS else []), limit=1800 if STRESS else 600)
    assert "ok 5120 MiB, 2 vCPUs" in out and "ok 512 MiB, 16 vCPUs" in out
