# SPDX-License-Identifier: Apache-2.0
"""The guest's kernel on the monitor, straight to the test init: how often it boots, on how many CPUs, and that its configuration is
what the fragment promises. MAYFLY_STRESS=1: 50 boots with 2 vCPUs and 20 with 4, the rates that docs/ARCHITECTURE.md quotes."""
import gzip
import os
import re
import subprocess

import pytest

from conftest import BIN, CACHE, TOP

STRESS = bool(os.environ.get("MAYFLY_STRESS"))
ROUNDS = {1: 20 if STRESS else 3, 2: 50 if STRESS else 5, 4: 20 if STRESS else 2}
BOOT_LIMIT_S = 40


@pytest.fixture(scope="module")
def files(machine):
    return machine.publish(BIN / "mayfly-vmm", CACHE / "guest-vmlinux", TOP / "build" / "testinit.cpio")


def boot(machine, files, vcpus, words="", memory="256M"):
    """One boot to the test init: what it printed."""
    r = machine.run("timeout", BOOT_LIMIT_S, f"{files}/mayfly-vmm", "--kernel", f"{files}/guest-vmlinux", "--initrd", f"{files}/testinit.cpio",
                    "--memory", memory, "--vcpus", vcpus, "--serial", "--cmdline", f"quiet loglevel=1 {words}", timeout=BOOT_LIMIT_S + 30)
    return r.stdout.replace("\r", "") + r.stderr


@pytest.mark.parametrize("vcpus", ROUNDS)
def test_boots(machine, files, vcpus):
    qemu = re.search(r"version (\d+)", subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True).stdout)
    if vcpus > 1 and int(qemu[1]) < 10 and machine.status()["accel"] == "tcg":
        pytest.skip(f"QEMU {qemu[1]}: a guest with two vCPUs comes up there, but takes about two minutes to its init, beyond the limit here")
    good, times, bad = 0, [], []
    for _ in range(ROUNDS[vcpus]):
        out = boot(machine, files, vcpus)
        m = re.search(r"TESTINIT boot_ms=(\d+) cpus=(\d+) worked=(\d+)", out)
        if m and int(m[2]) == vcpus and int(m[3]) == vcpus and "asked for a reset" in out:
            good += 1
            times.append(int(m[1]))
        else:
            bad.append(out[-2000:])
    times.sort()
    print(f"{vcpus} vCPUs: {good} of {ROUNDS[vcpus]} boots; kernel to init {times[0]}..{times[-1]} ms, median {times[len(times) // 2]}" if times else "none")
    assert good == ROUNDS[vcpus], f"{good} of {ROUNDS[vcpus]}; the first bad one:\n{bad[0]}"


@pytest.mark.parametrize("memory", ["128M", "2G"])
def test_memory_sizes(machine, files, memory):
    assert "TESTINIT boot_ms" in boot(machine, files, 1, memory=memory)


def test_configuration_is_what_the_fragment_promises(machine, files):
    out = boot(machine, files, 1, "testinit=config printk.devkmsg=on")
    packed = bytes.fromhex("".join(re.findall(r"CONFIG ([0-9a-f]+)$", out, re.M)))
    config = set(gzip.decompress(packed).decode().splitlines())
    wanted = [l for l in (TOP / "guest" / "kernel" / "guest.config").read_text().splitlines() if l.startswith("CONFIG_")]
    assert len(wanted) > 250
    missing = [l for l in wanted if not l.endswith("=n") and l not in config]
    assert not missing
    assert not [l for l in wanted if l.endswith("=n") and any(c.startswith(l[:-1]) for c in config)]
