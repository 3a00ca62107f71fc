# SPDX-License-Identifier: Apache-2.0
"""The lifecycle API on real VMs: through the official Python SDK where it has a call for it, with plain HTTP where the wire itself is asked."""
import asyncio
import datetime
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

MINUTE = datetime.timedelta(minutes=1)
# thirty rounds, with a database, are test_points' business
ROUNDS = 1000 if os.environ.get("MAYFLY_STRESS") else 5
# seconds: everything here runs on an emulated CPU that others use, too
SLOW = 1800 if os.environ.get("MAYFLY_STRESS") else 240


def call(daemon, method, path, body=None, headers=None):
    req = urllib.request.Request(daemon.url + path, method=method, data=None if body is None else json.dumps(body).encode(),
                                 headers={"OPEN-SANDBOX-API-KEY": daemon.api_key, "Content-Type": "application/json"} | (headers or {}))
    try:
        with urllib.request.urlopen(req, timeout=SLOW) as r:
            text, status, head = r.read(), r.status, r.headers
    except urllib.error.HTTPError as e:
        text, status, head = e.read(), e.code, e.headers
    assert head["X-Request-ID"], "every answer carries one"
    return status, json.loads(text) if (head["Content-Type"] or "").startswith("application/json") else text.decode(), head


def create(daemon, **more):
    body = {"image": {"uri": "tiny"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "timeout": 600}
    status, sb, head = call(daemon, "POST", "/v1/sandboxes", body | more, more.pop("headers", None))
    assert status == 202, sb
    until(daemon, sb["id"], "Running")
    return sb


def until(daemon, sandbox, *states):
    end = time.monotonic() + SLOW
    while time.monotonic() < end:
        _, sb, _ = call(daemon, "GET", f"/v1/sandboxes/{sandbox}")
        if sb["status"]["state"] in states:
            return sb
        if sb["status"]["state"] in ("Failed", "Terminated"):
            break  # it will not become another
        # a hundred that ask three times a second are more work for an emulated CPU than what they ask about
        time.sleep(0.3 if SLOW < 1000 else 3)
    raise AssertionError(f"{sandbox} is {sb['status']}, not {states}")


def run(daemon, sandbox, command):
    status, text, _ = call(daemon, "POST", f"/{sandbox}/44772/command", {"command": command})
    assert status == 200, text
    events = [json.loads(e) for e in text.split("\n\n") if e.strip()]
    assert events[-1]["type"] == "execution_complete", events
    return "".join(e["text"] for e in events if e["type"] == "stdout")


@pytest.fixture
def sandbox(daemon):
    sb = create(daemon)
    yield sb["id"]
    call(daemon, "DELETE", f"/v1/sandboxes/{sb['id']}")


def test_memory_is_what_was_asked_for(daemon):
    """The machine has the size of its class (512 MiB); its processes together have what the client asked for, booted and restored."""
    boxes = [create(daemon, resourceLimits={"cpu": "1", "memory": "300Mi"})["id"] for _ in range(2)]
    for box in boxes:
        assert run(daemon, box, "dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null; echo $?").strip() == "0"
        assert run(daemon, box, "dd if=/dev/zero of=/dev/null bs=400M count=1 2>/dev/null; echo $?").strip() == "137"
        status, m, _ = call(daemon, "GET", f"/{box}/44772/metrics")
        assert status == 200 and m["mem_total_mib"] == 300, m
    whole = create(daemon, resourceLimits={"cpu": "1", "memory": "512Mi"})["id"]
    assert run(daemon, whole, "dd if=/dev/zero of=/dev/null bs=400M count=1 2>/dev/null; echo $?").strip() == "0"
    for box in (*boxes, whole):
        call(daemon, "DELETE", f"/v1/sandboxes/{box}")


def test_second_one_is_restored(daemon, sandbox):
    """The first of an image boots and leaves a template; the next is restored from it, and is another machine."""
    end = time.monotonic() + SLOW
    while time.monotonic() < end:
        _, t, _ = call(daemon, "GET", "/v1/mayfly/templates")
        # a template is of one size; other tests of this file have other sizes
        if any(i["state"] == "Ready" and "tiny" in i["image"] and i["key"].split("|")[1:3] == ["256", "1"] for i in t["items"]):
            break
        time.sleep(0.5)
    ids = [create(daemon)["id"] for _ in range(3)]
    try:
        texts = [call(daemon, "GET", f"/v1/sandboxes/{i}/diagnostics/inspect")[1] for i in ids]
        assert all("origin: template" in t and "phase_restore_ms" in t for t in texts), texts
        seen = [run(daemon, i, "cat /etc/machine-id /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | md5sum; hostname").split("\n") for i in ids]
        for k in range(4):
            assert len({s[k] for s in seen}) == 3, f"not different: {[s[k] for s in seen]}"
        assert abs(int(run(daemon, ids[0], "date +%s")) - time.time()) < 30
    finally:
        for i in ids:
            call(daemon, "DELETE", f"/v1/sandboxes/{i}")


def test_pause_and_resume_keep_everything(daemon, sandbox):
    run(daemon, sandbox, "(i=0; while :; do i=$((i+1)); echo $i > /tmp/c; mv /tmp/c /tmp/count; sleep 0.1; done) >/dev/null 2>&1 & head -c 300000 /dev/urandom > /tmp/f; sync; md5sum /tmp/f > /tmp/sum")
    for _ in range(ROUNDS):
        before = int(run(daemon, sandbox, "cat /tmp/count"))
        assert call(daemon, "POST", f"/v1/sandboxes/{sandbox}/pause")[0] == 202
        assert call(daemon, "GET", f"/v1/sandboxes/{sandbox}")[1]["status"]["state"] == "Paused"
        assert call(daemon, "GET", f"/{sandbox}/44772/ping")[0] == 409
        status, e, _ = call(daemon, "POST", f"/v1/sandboxes/{sandbox}/pause")
        assert (status, e["code"]) == (409, "DOCKER::SANDBOX_NOT_RUNNING")
        assert call(daemon, "POST", f"/v1/sandboxes/{sandbox}/resume")[0] == 202
        assert "OK" in run(daemon, sandbox, "md5sum -c /tmp/sum && echo more >> /tmp/f && md5sum /tmp/f > /tmp/sum")
        end = time.monotonic() + SLOW
        while int(run(daemon, sandbox, "cat /tmp/count")) <= before:
            assert time.monotonic() < end, "the process that counted does not go on"
    status, e, _ = call(daemon, "POST", f"/v1/sandboxes/{sandbox}/resume")
    assert (status, e["code"]) == (409, "DOCKER::SANDBOX_NOT_PAUSED")


def test_snapshot_outlives_its_source(daemon, sandbox):
    run(daemon, sandbox, "echo kept > /tmp/f; (while :; do sleep 1; done) >/dev/null 2>&1 &")
    status, s, head = call(daemon, "POST", f"/v1/sandboxes/{sandbox}/snapshots", {"name": "one"})
    assert status == 202 and s["status"]["state"] == "Creating" and head["Location"] == f"/v1/snapshots/{s['id']}"
    end = time.monotonic() + SLOW
    while time.monotonic() < end and s["status"]["state"] == "Creating":
        time.sleep(0.3)
        s = call(daemon, "GET", f"/v1/snapshots/{s['id']}")[1]
    assert s["status"]["state"] == "Ready", s
    run(daemon, sandbox, "echo changed > /tmp/f")
    call(daemon, "DELETE", f"/v1/sandboxes/{sandbox}")
    body = {"snapshotId": s["id"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}}
    made = []
    for ext in ({}, {"mayfly.snapshot": "disk"}):
        status, sb, _ = call(daemon, "POST", "/v1/sandboxes", body | {"extensions": ext})
        assert status == 202, sb
        made.append(sb["id"])
        until(daemon, sb["id"], "Running")
        assert run(daemon, sb["id"], "cat /tmp/f") == "kept\n"
    assert call(daemon, "DELETE", f"/v1/snapshots/{s['id']}")[0] == 204
    assert call(daemon, "GET", f"/v1/snapshots/{s['id']}")[1]["code"] == "SNAPSHOT::NOT_FOUND"
    for i in made:
        assert run(daemon, i, "cat /tmp/f") == "kept\n", "its files go when nothing stands on them"
        call(daemon, "DELETE", f"/v1/sandboxes/{i}")


def test_killed_daemon_loses_nothing(daemon, sandbox):
    _, text, _ = call(daemon, "POST", f"/{sandbox}/44772/command", {"command": "echo begun; sleep 8; echo done", "background": True})
    cmd = json.loads(text.split("\n\n")[0])["text"]
    _, before, _ = call(daemon, "GET", f"/v1/sandboxes/{sandbox}")
    daemon.kill()
    time.sleep(1)
    daemon.wait()
    _, after, _ = call(daemon, "GET", f"/v1/sandboxes/{sandbox}")
    assert after == before
    assert run(daemon, sandbox, "echo alive") == "alive\n"
    end = time.monotonic() + SLOW
    while time.monotonic() < end and call(daemon, "GET", f"/{sandbox}/44772/command/status/{cmd}")[1]["running"]:
        time.sleep(0.5)
    assert call(daemon, "GET", f"/{sandbox}/44772/command/{cmd}/logs")[1] == "begun\ndone\n"


@pytest.mark.parametrize("entrypoint,state,says", [(["sh", "-c", "exit 0"], "Terminated", "code 0"), (["sh", "-c", "exit 7"], "Failed", "code 7"),
                                                   (["/no/such"], "Failed", "did not start")])
def test_entrypoints_end_ends_it(daemon, entrypoint, state, says):
    status, sb, _ = call(daemon, "POST", "/v1/sandboxes", {"image": {"uri": "tiny"}, "entrypoint": entrypoint, "resourceLimits": {"memory": "256Mi"}})
    assert status == 202
    end = until(daemon, sb["id"], "Terminated", "Failed")["status"]
    assert end["state"] == state and says in end["message"], end
    assert call(daemon, "DELETE", f"/v1/sandboxes/{sb['id']}")[0] == 204
    assert call(daemon, "GET", f"/v1/sandboxes/{sb['id']}")[1]["code"] == "DOCKER::SANDBOX_NOT_FOUND"


def test_list_metadata_renew(daemon, sandbox):
    path = f"/v1/sandboxes/{sandbox}"
    status, sb, _ = call(daemon, "PATCH", path + "/metadata", {"team": "a b".replace(" ", "-"), "gone": "x"})
    assert status == 200 and sb["metadata"] == {"team": "a-b", "gone": "x"}
    assert call(daemon, "PATCH", path + "/metadata", {"gone": None})[1]["metadata"] == {"team": "a-b"}
    assert call(daemon, "PATCH", path + "/metadata", {"opensandbox.io/x": "y"})[1]["code"] == "INVALID_METADATA_LABEL"
    q = urllib.parse.urlencode({"metadata": "team=a-b", "state": "running"})
    _, found, _ = call(daemon, "GET", "/v1/sandboxes?" + q)
    assert [i["id"] for i in found["items"]] == [sandbox] and found["pagination"]["totalItems"] == 1
    assert call(daemon, "GET", "/v1/sandboxes?metadata=junk")[1]["code"] == "INVALID_METADATA_FORMAT"
    to = (datetime.datetime.now(datetime.timezone.utc) + 20 * MINUTE).isoformat()
    status, r, _ = call(daemon, "POST", path + "/renew-expiration", {"expiresAt": to})
    assert status == 200 and r["expiresAt"][:19] == to[:19]
    assert call(daemon, "POST", path + "/renew-expiration", {"expiresAt": "2020-01-01T00:00:00Z"})[1]["code"] == "DOCKER::INVALID_EXPIRATION"
    _, ep, _ = call(daemon, "GET", path + "/endpoints/18080")
    assert ep["endpoint"].endswith(f"{sandbox}/18080") and "://" not in ep["endpoint"]
    assert call(daemon, "GET", f"/{sandbox}/18080/policy")[1]["mode"] == "allow_all"


def test_idempotency_key(daemon):
    head = {"Idempotency-Key": "one-" + daemon.api_key}
    body = {"image": {"uri": "tiny"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"memory": "256Mi"}}
    a = call(daemon, "POST", "/v1/sandboxes", body, head)
    b = call(daemon, "POST", "/v1/sandboxes", body, head)
    assert a[0] == b[0] == 202 and a[1]["id"] == b[1]["id"]
    call(daemon, "DELETE", f"/v1/sandboxes/{a[1]['id']}")


def test_expiry(daemon):
    sb = create(daemon, timeout=60)
    soon = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=8)).isoformat()
    assert call(daemon, "POST", f"/v1/sandboxes/{sb['id']}/renew-expiration", {"expiresAt": soon})[0] == 200
    end = time.monotonic() + 60
    while time.monotonic() < end and call(daemon, "GET", f"/v1/sandboxes/{sb['id']}")[0] != 404:
        time.sleep(0.3)
    assert call(daemon, "GET", f"/v1/sandboxes/{sb['id']}")[0] == 404


def test_sdk_pause_resume_snapshot(daemon):
    from opensandbox import Sandbox
    from opensandbox.config import ConnectionConfig

    async def main():
        c = ConnectionConfig(domain=daemon.domain, api_key=daemon.api_key, request_timeout=datetime.timedelta(seconds=SLOW))
        ready = datetime.timedelta(seconds=SLOW)
        sb = await Sandbox.create("tiny", connection_config=c, timeout=10 * MINUTE, resource={"cpu": "1", "memory": "256Mi"}, ready_timeout=ready)
        try:
            await sb.files.write_file("/tmp/f", "before")
            await sb.pause()
            assert not await sb.is_healthy()
            sb = await Sandbox.resume(sb.id, connection_config=c)
            assert await sb.files.read_file("/tmp/f") == "before"
            info = await sb.get_info()
            assert info.status.state == "Running"
            await sb.renew(15 * MINUTE)
        finally:
            await sb.kill()

    asyncio.run(asyncio.wait_for(main(), 2 * SLOW))
