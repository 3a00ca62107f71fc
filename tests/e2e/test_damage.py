# SPDX-License-Identifier: Apache-2.0
"""A snapshot whose files were cut, flipped, swapped, of another version or lost: a create from it is refused with the reason before anything runs, and
nothing is left of it; with the files as they were it is restored. (Every field and every bit: tests/unit/vmm_snap, vmm_cpu, cow, and the fuzzers.)"""
import time

import pytest

from test_lifecycle import SLOW, call, create, run, until

BLOBS = "/var/lib/mayfly/state/blobs"
BODY = {"resourceLimits": {"cpu": "1", "memory": "256Mi"}}
# {state} {mem} {layer}: the newest of one snapshot, {other_*}: those of another of the same machine
DAMAGE = {
    "state cut": ("truncate -s -100 {state}", "state"),
    "state empty": ("truncate -s 0 {state}", "state"),
    "state flipped in its head": ("flip {state} 20", "state"),
    "state flipped in a section": ("flip {state} 3000", "state"),
    "state flipped at its end": ("flip {state} $(($(stat -c %s {state}) - 9))", "state"),
    "state of another version": ("printf '\\377' | dd of={state} bs=1 seek=8 conv=notrunc", "state"),
    "state of another snapshot": ("cp {other_state} {state}", "memory file"),
    "state lost": ("rm {state}", "missing"),
    "memory cut": ("truncate -s 8192 {mem}", "memory file"),
    "memory's head flipped": ("flip {mem} 40", "memory file"),
    "memory of another snapshot": ("cp {other_mem} {mem}", "memory file"),
    "memory lost": ("rm {mem}", "missing"),
    "layer cut": ("truncate -s -4096 {layer}", "layer"),
    "layer's head flipped": ("flip {layer} $(($(stat -c %s {layer}) - 4096 + 30))", "layer"),
    "layer of another snapshot": ("cp {other_layer} {layer}", "layer"),
    "layer lost": ("rm {layer}", "missing"),
}
FLIP = ('flip() { b=$(dd if=$1 bs=1 skip=$2 count=1 2>/dev/null | od -An -tu1); '
        'printf "\\\\$(printf %03o $(((b + 1) % 256)))" | dd of=$1 bs=1 seek=$2 conv=notrunc; }; ')


def taken(daemon, sb):
    status, s, _ = call(daemon, "POST", f"/v1/sandboxes/{sb}/snapshots")
    assert status == 202, s
    end = time.monotonic() + SLOW
    while s["status"]["state"] == "Creating":
        assert time.monotonic() < end, s
        time.sleep(0.1)
        s = call(daemon, "GET", f"/v1/snapshots/{s['id']}")[1]
    assert s["status"]["state"] == "Ready", s
    return s["id"]


def newest(daemon, snapshot, prefix=""):
    p = call(daemon, "GET", f"/v1/mayfly/points/{snapshot}")[1]
    mem, layer = p["memoryFiles"][-1]["id"], p["diskLayers"][-1]["id"]
    return {f"{prefix}state": f"{BLOBS}/{mem}.state", f"{prefix}mem": f"{BLOBS}/{mem}.mem", f"{prefix}layer": f"{BLOBS}/{layer}.data"}


@pytest.fixture(scope="module")
def two(daemon):
    """Two snapshots of one machine, which is gone: nobody but they stands on the newest files."""
    sb = create(daemon)["id"]
    ids = []
    for word in ("one", "two"):
        run(daemon, sb, f"echo {word} > /root/word; head -c 300000 /dev/urandom > /root/f; md5sum /root/f > /root/sum; sync")
        ids.append(taken(daemon, sb))
    call(daemon, "DELETE", f"/v1/sandboxes/{sb}")
    files = newest(daemon, ids[1]) | newest(daemon, ids[0], "other_")
    assert len(set(files.values())) == 6, files
    daemon.machine.run("sh", "-c", "set -e; mkdir /var/lib/mayfly/kept; cp -p {state} {mem} {layer} /var/lib/mayfly/kept".format(**files), check=True)
    yield ids[1], files
    daemon.machine.run("rm", "-rf", "/var/lib/mayfly/kept")
    for i in ids:
        call(daemon, "DELETE", f"/v1/snapshots/{i}")


def sandboxes(daemon):
    return {s["id"] for s in call(daemon, "GET", "/v1/sandboxes?pageSize=200")[1]["items"]}


@pytest.mark.parametrize("what", DAMAGE)
def test_it_is_refused_before_anything_runs(daemon, two, what):
    snapshot, files = two
    damage, says = DAMAGE[what]
    before = sandboxes(daemon)
    daemon.machine.run("sh", "-ec", FLIP + "{ " + damage.format(**files) + "; } 2>/dev/null", check=True)
    try:
        status, e, _ = call(daemon, "POST", "/v1/sandboxes", BODY | {"snapshotId": snapshot, "timeout": 60})
        assert status == 500 and says in e["message"], (status, e)
        assert sandboxes(daemon) == before
    finally:
        daemon.machine.run("sh", "-ec", "for f in {state} {mem} {layer}; do cp -p /var/lib/mayfly/kept/${{f##*/}} $f; done".format(**files), check=True)


def test_with_its_files_as_they_were_it_is_restored(daemon, two):
    status, sb, _ = call(daemon, "POST", "/v1/sandboxes", BODY | {"snapshotId": two[0], "timeout": 60})
    assert status == 202, sb
    until(daemon, sb["id"], "Running")
    assert run(daemon, sb["id"], "cat /root/word; md5sum -c /root/sum").split() == ["two", "/root/f:", "OK"]
    call(daemon, "DELETE", f"/v1/sandboxes/{sb['id']}")
