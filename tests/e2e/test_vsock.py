# SPDX-License-Identifier: Apache-2.0
"""Streams between host and guest on the monitor itself: 64 at once with every byte compared, each direction alone, a live snapshot in the middle of
16 of them, and restores of it that serve 64 again. MAYFLY_STRESS=1: 1 GiB instead of 64 MiB, 20 restores."""
import os
import re
import subprocess

import pytest

from conftest import BIN, CACHE, TOP

STRESS = bool(os.environ.get("MAYFLY_STRESS"))
EACH = (16 << 20) if STRESS else (1 << 20)
RESTORES = 20 if STRESS else 2
RESTORED = 1 << 18  # bytes for each of 64 streams of a restored guest

# inside the appliance: $1 the published folder, $2 bytes for each of 64 streams, $3 restores, $4 bytes for each of their streams
INSIDE = r"""
set -u
at=$1 each=$2 restores=$3 restored=$4
d=$(mktemp -d) && cd "$d" && mkdir snap
vmm() { rm -f vs.sock; "$at/mayfly-vmm" --no-jail --no-jail --vsock "$d/vs.sock" "$@" >> vmm.log 2>&1 & v=$!; while [ ! -S vs.sock ]; do sleep 0.05; done; }
end() { kill -HUP $v; sleep 0.5; kill $v; wait $v; }
load() { timeout 1800 "$at/vsockload" vs.sock "$@" || echo "FAILED $*"; }
vmm --kernel "$at/guest-vmlinux" --initrd "$at/testinit.cpio" --cmdline testinit=vsock --memory 256M --snapshot "$d/snap" --stay
load echo 1 1000
load echo 64 $each
load sink 1 16777216
load source 1 16777216
while ! grep -q "snapshot: durable" vmm.log; do sleep 0.2; done
load echo 16 2000000 & l=$!
sleep 1
kill -USR2 $v
wait $l
while [ $(grep -c "snapshot: durable" vmm.log) -lt 2 ]; do sleep 0.2; done
end
for i in $(seq $restores); do
	vmm --restore "$d/snap"
	load echo 64 $restored
	end
done
cat vmm.log
rm -rf "$d"
"""


@pytest.fixture(scope="module")
def ran(machine):
    at = machine.publish(BIN / "mayfly-vmm", TOP / "build" / "tools" / "vsockload", CACHE / "guest-vmlinux", TOP / "build" / "testinit.cpio")
    limit = 7200 if STRESS else 400
    r = machine.run("timeout", limit, "bash", "-c", INSIDE, "inside", at, EACH, RESTORES, RESTORED, timeout=limit + 30)
    print(r.stdout, r.stderr)
    return r.stdout


def loads(out, what, streams):
    return re.findall(rf"^{what} streams={streams} bytes=(\d+) bad=(\d+)", out, re.M)


def test_streams_carry_every_byte(ran):
    assert "FAILED" not in ran
    assert loads(ran, "echo", 64)[0] == (str(64 * EACH), "0")
    assert loads(ran, "sink", 1) == [("16777216", "0")]
    assert loads(ran, "source", 1) == [("16777216", "0")]


def test_a_live_snapshot_leaves_the_streams_alone(ran):
    assert loads(ran, "echo", 16) == [("32000000", "0")]


def test_restored_guests_serve_again(ran):
    assert loads(ran, "echo", 64)[1:] == [(str(64 * RESTORED), "0")] * RESTORES
    # the guest was told that its old streams are gone: it made its ready connection anew
    assert len(re.findall(r"VSOCK ready 2 connected", ran)) >= RESTORES
    # nobody came before its listener was to be reached: a new connection waits for the guest instead of being refused
    after = ran[ran.rindex("snapshot: durable"):]
    assert set(re.findall(r"^vsock.refused_connections=(\d+)", after[after.index("restore:"):], re.M)) == {"0"}


def test_nothing_was_wrong_with_the_devices(ran):
    for name in ("refused", "needs_reset", "bad_packets", "credit_violations"):
        assert set(re.findall(rf"^vsock.{name}=(\d+)", ran, re.M)) == {"0"}


INSIDE_ASAN = r"""
set -u
at=$1; d=$(mktemp -d) && cd "$d"
LD_LIBRARY_PATH=$at ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 "$at/mayfly-vmm" --no-jail --no-jail --vsock "$d/vs.sock" --kernel "$at/guest-vmlinux" \
	--initrd "$at/testinit.cpio" --cmdline testinit=vsock --memory 256M > vmm.log 2>&1 & v=$!
while [ ! -S vs.sock ]; do sleep 0.1; done
timeout 120 "$at/vsockload" vs.sock echo 16 262144
kill -HUP $v; sleep 0.5
kill $v; wait $v; echo "vmm ended with $?"
cat vmm.log; rm -rf "$d"
"""


def test_under_address_sanitizer(machine):
    """A real guest on the monitor built with ASan and UBSan: boot, 16 streams, an ordered end, nothing said by either."""
    subprocess.run(["make", "-s", "SAN=asan", "build/asan/bin/mayfly-vmm"], cwd=TOP, check=True)
    vmm = TOP / "build" / "asan" / "bin" / "mayfly-vmm"
    libs = [l.split()[2] for l in subprocess.run(["ldd", vmm], capture_output=True, text=True, check=True).stdout.splitlines()
            if any(n in l for n in ("libasan", "libubsan", "libstdc++", "libgcc_s"))]
    at = machine.publish(vmm, *libs, TOP / "build" / "tools" / "vsockload", CACHE / "guest-vmlinux", TOP / "build" / "testinit.cpio")
    out = machine.run("timeout", 240, "bash", "-c", INSIDE_ASAN, "inside", at, timeout=270).stdout
    print(out)
    assert loads(out, "echo", 16) == [(str(16 * 262144), "0")]
    assert "vmm ended with 0" in out
    assert "Sanitizer" not in out and "runtime error" not in out
