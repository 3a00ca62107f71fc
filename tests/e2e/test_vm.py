# SPDX-License-Identifier: Apache-2.0
"""The monitor by itself, driven over its control socket as the daemon drives it: the memory model from template to clone of a clone, restores in
a row, boots, memory sizes, and every way a guest can end. MAYFLY_STRESS=1 runs the numbers that docs/ARCHITECTURE.md quotes."""
import os
import subprocess

import pytest

from conftest import BIN, CACHE, TOP

STRESS = bool(os.environ.get("MAYFLY_STRESS"))


def driver(machine):
    subprocess.run(["make", "-s", "build/bin/vm-drive", "build/vmguest.cpio"], cwd=TOP, check=True)
    at = machine.publish(BIN / "mayfly-vmm", BIN / "vm-drive", CACHE / "guest-vmlinux", TOP / "build" / "vmguest.cpio")

    def run(*what, limit=600):
        r = machine.run("timeout", limit, f"{at}/vm-drive", f"{at}/mayfly-vmm", f"{at}/guest-vmlinux", f"{at}/vmguest.cpio", "/tmp/vm-drive",
                        *what, timeout=limit + 30)
        print(r.stdout)
        machine.run("rm", "-rf", "/tmp/vm-drive")
        assert r.returncode == 0, r.stdout + r.stderr[-3000:]
        return r.stdout

    return run


@pytest.fixture(scope="module")
def drive(machine):
    return driver(machine)


def test_memory_model(drive):
    out = drive("model", 20 if STRESS else 3, limit=900)
    assert "ok snapshot of a clone, restored" in out


def test_restores_in_a_row(drive):
    n = 200 if STRESS else 5
    assert f"{n} of {n} good" in drive("rate", n, limit=1800)


def test_boots_with_two_vcpus(drive):
    drive("boots", 50 if STRESS else 2, 2, limit=1800)


def test_disks_freeze_with_memory(drive):
    assert "ok ten freezes in a chain" in drive("disks")


def test_every_end_has_its_reason(drive):
    out = drive("ends")
    assert "FAILED" not in out and "refused the next time" in out


def test_memory_sizes(fresh_machine):
    """128 MiB, 2 GiB, 5 GiB: the last goes beyond the hole below 4 GiB, and is snapshotted and restored."""
    fresh_machine.memory = "8G"
    driver(fresh_machine.start())("sizes")
