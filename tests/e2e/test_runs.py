# SPDX-License-Identifier: Apache-2.0
"""The worker contract on a real VM: docs/examples/worker.md as `mayfly worker run` runs it, its four statuses, code, and a daemon that is killed in the middle.
Errors, limits and attempts: test_runs_host.py."""
import concurrent.futures
import json
import os
import re
import secrets
import subprocess
import time

from conftest import MAYFLY, TOP
from test_lifecycle import SLOW, call

EXAMPLE = TOP / "docs" / "examples" / "worker.md"


def execs(daemon):
    return int(re.search(r"(?m)^mayfly_execs_total (\d+)$", call(daemon, "GET", "/metrics")[1])[1])


def monitors(daemon):
    return set(map(int, daemon.machine.run("pgrep", "-x", "mayfly-vmm").stdout.split()))


def owned(daemon):
    """Monitors of sandboxes that clients have."""
    boxes = [b for b in call(daemon, "GET", "/v1/sandboxes?pageSize=200")[1]["items"] if b["status"]["state"] == "Running"]
    return {int(call(daemon, "GET", f"/v1/sandboxes/{b['id']}/diagnostics/context")[1]["backendIdentifiers"]["pid"]) for b in boxes}


def test_the_example_worker(daemon, base_image, sdk_env, tmp_path):
    # an emulated machine boots its first sandbox in more than 30 s
    (tmp_path / "worker.md").write_text(EXAMPLE.read_text().replace("timeout_seconds: 30", "timeout_seconds: 300"))
    (tmp_path / "short.md").write_text(EXAMPLE.read_text().replace("timeout_seconds: 30", "timeout_seconds: 3"))

    def worker(*args, file="worker.md", code=0):
        r = subprocess.run([MAYFLY, "worker", "run", *args, tmp_path / file], env=os.environ | sdk_env, capture_output=True, text=True, timeout=3 * SLOW)
        assert r.returncode == code, (args, r.returncode, r.stdout, r.stderr)
        return json.loads(r.stdout)

    run_id, context = "run-" + secrets.token_hex(8), ("--context", '{"text": "one two three"}')
    a = worker("--run-id", run_id, *context)
    assert a["run_id"] == run_id and a["status"] == "ok" and a["result"]["value"] == {"words": 3} and a["result"]["attempts"] == 1
    n = execs(daemon)
    assert worker("--run-id", run_id, *context) == a
    assert worker("--context", "{}", code=2)["status"] == "invalid_request"
    assert execs(daemon) == n
    a = worker(*context, "--task", 'echo "{\\"words\\": -1}"', code=1)
    assert a["status"] == "invalid_output" and "output.result.value.words" in a["result"]["message"]
    assert worker(*context, "--task", "sleep 600", file="short.md", code=75)["status"] == "retryable_error"
    # the same as code, in the environment that it was given
    body = {"run_id": "run-" + secrets.token_hex(8), "task": 'echo "$MAYFLY_RUN_ID $MAYFLY_ATTEMPT $A $MAYFLY_CONTEXT"',
            "context": {"n": [1], "worker": {"image": base_image, "language": "bash", "env": {"A": "b"}, "timeout_seconds": 300, "resource_limits": {"cpu": "1", "memory": "256Mi"}}}}
    status, a, _ = call(daemon, "POST", "/v1/mayfly/runs", body)
    assert status == 200 and a["result"]["stdout"] == f'{body["run_id"]} 1 b {{"n":[1]}}\n', a


def test_a_daemon_that_is_killed_leaves_no_sandbox(daemon, base_image):
    body = {"run_id": "run-" + secrets.token_hex(8), "task": "sleep 15; echo done",
            "context": {"worker": {"image": base_image, "timeout_seconds": 300, "resource_limits": {"cpu": "1", "memory": "256Mi"}}}}
    n, end = execs(daemon), time.monotonic() + SLOW
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        lost = pool.submit(call, daemon, "POST", "/v1/mayfly/runs", body)
        while execs(daemon) == n:
            assert time.monotonic() < end and not lost.done(), lost
            time.sleep(0.2)
        then = monitors(daemon)
        daemon.kill()
        assert lost.exception() is not None
    daemon.wait()
    # the next daemon ends the run's monitor, and those that were nobody's yet
    end = time.monotonic() + SLOW
    while left := (monitors(daemon) & then) - owned(daemon):
        assert time.monotonic() < end, left
        time.sleep(0.5)
    status, a, _ = call(daemon, "POST", "/v1/mayfly/runs", body)
    assert status == 200 and a["status"] == "ok" and a["result"]["stdout"] == "done\n", a
