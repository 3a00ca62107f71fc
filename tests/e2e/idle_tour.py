# SPDX-License-Identifier: Apache-2.0
"""Idle pause and wake with the pre-release of the official Python SDK that knows idle policies, and its client-side pool. test_idle.py runs it with the
interpreter of the environment that has this SDK."""
import concurrent.futures
import os
import time
from datetime import timedelta

from opensandbox import InMemoryPoolStateStore, PoolCreationSpec, SandboxPoolSync, SandboxSync
from opensandbox.config import ConnectionConfigSync
from opensandbox.models.sandboxes import IdlePolicy, SandboxLifecycle

IMAGE, LIMIT_S = os.environ["MAYFLY_IMAGE"], 180


def config():
    return ConnectionConfigSync(request_timeout=timedelta(minutes=2))


def until(what, wanted):
    end = time.monotonic() + LIMIT_S
    while (seen := what()) != wanted:
        assert time.monotonic() < end, seen
        time.sleep(0.5)


def idle():
    box = SandboxSync.create(IMAGE, timeout=timedelta(minutes=20), resource={"cpu": "1", "memory": "256Mi"}, connection_config=config(),
                             lifecycle=SandboxLifecycle(idle_policy=IdlePolicy(idle_timeout_seconds=30, on_idle="pause")))
    try:
        box.files.write_file("/tmp/kept", "before")
        box.commands.run("mkfifo /tmp/f; (read x < /tmp/f; echo got $x > /tmp/got) >/dev/null 2>&1 &")
        until(lambda: box.get_info().status.state, "Paused")
        print("ok: paused when idle")
        assert box.commands.run("cat /tmp/kept").text.strip() == "before"
        print("ok: a command wakes it")
        box.commands.run("echo 1 > /tmp/f; until [ -s /tmp/got ]; do sleep 0.1; done")
        assert box.files.read_file("/tmp/got").strip() == "got 1"
        print("ok: its processes went on")
        box.pause()
        until(lambda: box.get_info().status.state, "Paused")
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(lambda n: SandboxSync.connect(box.id, connection_config=config(), skip_health_check=True).commands.run(f"echo {n}").text.strip(), range(50)))
        assert answers == [str(n) for n in range(50)]
        print("ok: fifty requests wake it")
    finally:
        box.kill()


def pool():
    p = SandboxPoolSync(pool_name="tour", max_idle=2, state_store=InMemoryPoolStateStore(), connection_config=config(), warmup_ready_timeout=timedelta(minutes=2),
                        acquire_ready_timeout=timedelta(minutes=2), creation_spec=PoolCreationSpec(image=IMAGE, resource={"cpu": "1", "memory": "256Mi"}))
    p.start()
    try:
        until(lambda: len(p.snapshot_idle_entries()), 2)
        boxes = [p.acquire(timedelta(minutes=10)) for _ in range(3)]
        assert len({b.id for b in boxes}) == 3
        assert [b.commands.run("echo hello").text.strip() for b in boxes] == ["hello"] * 3
        print("ok: a client-side pool")
        for b in boxes:
            b.kill()
    finally:
        p.release_all_idle()
        p.shutdown()


idle()
pool()
