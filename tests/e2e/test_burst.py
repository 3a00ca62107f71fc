# SPDX-License-Identifier: Apache-2.0
"""Many sandboxes restored from one template at the same time: each is a machine of its own, and nothing of them is left afterwards."""
import concurrent.futures
import os
import re
import time

from pointkit import wall
from test_lifecycle import SLOW, call, create, run

STRESS = bool(os.environ.get("MAYFLY_STRESS"))
AT_ONCE = 100 if STRESS else 20
LOOK = "cat /etc/machine-id; cat /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | od -An -tx1 | tr -d ' '; date +%s; hostname"


def one(daemon, i, ahead, unsure):
    """Restores one, looks at what must be its own, and reads back a file it wrote."""
    sb = create(daemon, metadata={"burst": str(i)}, timeout=7200)["id"]
    asked = time.time() + ahead - unsure
    machine_id, boot_id, noise, clock, name = run(daemon, sb, LOOK).split()
    answered = time.time() + ahead + unsure
    assert run(daemon, sb, f"echo {i} > /root/mine; sync; cat /root/mine").strip() == str(i)
    origin = origin_of(daemon, sb)
    # whole seconds: what `date` prints was cut. What it was told was right when it was sent, and twenty share one emulated CPU.
    assert asked - 10 <= int(clock) <= answered + 0.1, (asked, clock, answered)
    return {"id": sb, "machine_id": machine_id, "boot_id": boot_id, "noise": noise, "hostname": name, "origin": origin}


def origin_of(daemon, sb):
    return re.search(r"^origin: (\w+)", call(daemon, "GET", f"/v1/sandboxes/{sb}/diagnostics/inspect")[1], re.M)[1]


def until_there_is_a_template(daemon):
    """The first sandbox leaves it, and it is written in the background: a create that comes before boots."""
    end = time.monotonic() + SLOW
    while time.monotonic() < end:
        sb = create(daemon)["id"]
        origin = origin_of(daemon, sb)
        if origin == "template":
            call(daemon, "DELETE", f"/v1/sandboxes/{sb}")
            return
        time.sleep(5)  # deleted only then: its template is being written
        call(daemon, "DELETE", f"/v1/sandboxes/{sb}")
    raise AssertionError("no sandbox was restored from a template")


def test_many_at_once_are_different_machines(daemon):
    until_there_is_a_template(daemon)
    clock = wall(daemon.machine)  # the daemon's against ours
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        got = list(pool.map(lambda i: one(daemon, i, *clock), range(AT_ONCE)))
    assert {g["origin"] for g in got} == {"template"}
    for key in ("id", "machine_id", "boot_id", "noise", "hostname"):
        assert len({g[key] for g in got}) == AT_ONCE, key
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        assert {s for s, _, _ in pool.map(lambda g: call(daemon, "DELETE", f"/v1/sandboxes/{g['id']}"), got)} == {204}
    status, listed, _ = call(daemon, "GET", "/v1/sandboxes?pageSize=200")
    assert status == 200 and not [s for s in listed["items"] if s["id"] in {g["id"] for g in got}]
