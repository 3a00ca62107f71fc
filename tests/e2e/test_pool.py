# SPDX-License-Identifier: Apache-2.0
"""Sandboxes from a pool of real machines: each is another machine, with its own identity, environment and entropy. Routes and errors: test_pool_host.py."""
import concurrent.futures
import time

from test_lifecycle import SLOW, call, run

N = 3


def test_machines_that_waited_are_other_machines(daemon, base_image):
    template = {"spec": {"containers": [{"image": base_image, "env": [{"name": "A", "value": "pool"}], "resources": {"limits": {"cpu": "1", "memory": "256Mi"}}}]}}
    cap = {"bufferMin": N, "bufferMax": N, "poolMin": 0, "poolMax": 10}
    status, p, _ = call(daemon, "POST", "/v1/pools", {"name": "warm", "template": template, "capacitySpec": cap})
    assert status == 201, p
    boxes = []
    try:
        end = time.monotonic() + SLOW
        while call(daemon, "GET", "/v1/pools/warm")[1]["status"]["available"] < N:
            assert time.monotonic() < end
            time.sleep(0.2)
        with concurrent.futures.ThreadPoolExecutor(N) as pool:
            answers = list(pool.map(lambda i: call(daemon, "POST", "/v1/sandboxes", {"extensions": {"poolRef": "warm"}, "env": {"B": str(i)}, "timeout": 3600}), range(N)))
        assert [a[0] for a in answers] == [202] * N, answers
        boxes = [a[1]["id"] for a in answers]
        assert all(a[1]["allocation"]["poolRef"] == "warm" for a in answers)
        seen = [run(daemon, b, "cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname; head -c 16 /dev/urandom | sha256sum | cut -c1-64; echo $A $B $OPENSANDBOX_ID").split() for b in boxes]
        for i, what in enumerate(("machine-id", "boot-id", "hostname", "noise")):
            assert len({s[i] for s in seen}) == N, what
        assert [s[4:] for s in seen] == [["pool", str(i), boxes[i]] for i in range(N)]
        assert all(abs(float(run(daemon, b, "date +%s")) - float(daemon.machine.run("date", "+%s").stdout)) < 5 for b in boxes)
        # the next daemon has the pool, and the sandboxes
        daemon.kill()
        daemon.wait()
        end = time.monotonic() + SLOW
        while (s := call(daemon, "GET", "/v1/pools/warm")[1]["status"])["available"] < N:
            assert time.monotonic() < end, s
            time.sleep(0.2)
        assert s["allocated"] == N and run(daemon, boxes[0], "echo here") == "here\n"
    finally:
        for b in boxes:
            call(daemon, "DELETE", f"/v1/sandboxes/{b}")
        assert call(daemon, "DELETE", "/v1/pools/warm")[0] == 204
