# SPDX-License-Identifier: Apache-2.0
"""Lifecycle hooks of a create request through the official Python SDK."""
import time

import pytest


def until(what, seconds=60):
    end = time.monotonic() + seconds
    while not (got := what()):
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.3)
    return got


def create(daemon, lifecycle, **kw):
    import opensandbox
    from opensandbox.config import ConnectionConfigSync
    return opensandbox.SandboxSync.create("base", connection_config=ConnectionConfigSync(domain=daemon.domain, api_key=daemon.api_key),
        resource={"cpu": "1", "memory": "256Mi"}, lifecycle=lifecycle, **kw)


def out(box, command):
    r = box.commands.run(command)
    return "".join(m.text for m in r.logs.stdout)


def hooks(pre=None, periodic=None):
    from opensandbox.models.sandboxes import LifecycleHook, PeriodicLifecycleHook, SandboxLifecycle
    return SandboxLifecycle(preStart=pre and LifecycleHook(command=pre[0], timeoutSeconds=pre[1]),
                            periodic=periodic and [PeriodicLifecycleHook(**p) for p in periodic])


def test_pre_start_and_periodic(daemon):
    pre = (["sh", "-c", "id -u > /root/who; echo $MINE > /root/env; sleep 1; date +%s%N > /root/pre"], 30)
    tick = {"name": "tick", "schedule": "@every 1s", "command": ["sh", "-c", "echo t >> /root/ticks"]}
    box = create(daemon, hooks(pre, [tick]), env={"MINE": "of the request"},
                 entrypoint=["sh", "-c", "date +%s%N > /root/entry; exec tail -f /dev/null"])
    try:
        until(lambda: out(box, "cat /root/entry 2>/dev/null"))
        assert out(box, "cat /root/who /root/env").split("\n")[0].startswith("0")
        assert "of the request" in out(box, "cat /root/env")
        assert int(out(box, "cat /root/pre")) < int(out(box, "cat /root/entry"))
        assert '"preStart"' in out(box, "echo $OPENSANDBOX_LIFECYCLE")
        # it goes on, in a machine that stood still meanwhile, too
        until(lambda: int(out(box, "wc -l < /root/ticks 2>/dev/null || echo 0")) >= 2)
    finally:
        box.kill()
        box.close()


@pytest.mark.parametrize("pre, words", [((["sh", "-c", "exit 3"], 30), "preStart failed with 3"),
                                        ((["sleep", "60"], 1), "preStart took too long")])
def test_a_failed_pre_start_ends_the_sandbox(daemon, pre, words):
    import json
    import urllib.error
    import urllib.request

    def call(method, path, body=None):
        q = urllib.request.Request(daemon.url + path, method=method, data=body and json.dumps(body).encode(),
                                   headers={"OPEN-SANDBOX-API-KEY": daemon.api_key, "Content-Type": "application/json"})
        with urllib.request.urlopen(q, timeout=120) as r:
            return json.loads(r.read() or b"null")
    s = call("POST", "/v1/sandboxes", {"image": {"uri": "base"}, "entrypoint": ["tail", "-f", "/dev/null"], "timeout": 300,
        "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "lifecycle": {"preStart": {"command": pre[0], "timeoutSeconds": pre[1]}}})
    try:
        got = until(lambda: (lambda x: x["status"]["state"] == "Failed" and x)(call("GET", "/v1/sandboxes/" + s["id"])))
        assert words in got["status"]["message"], got["status"]
    finally:
        call("DELETE", "/v1/sandboxes/" + s["id"])


def test_what_the_agent_does_not_understand_fails_the_start(daemon):
    from opensandbox.exceptions import SandboxException
    with pytest.raises(SandboxException) as e:
        create(daemon, hooks(None, [{"name": "x", "schedule": "61 * * * *", "command": ["true"]}])).kill()
    assert "lifecycle" in str(e.value)
