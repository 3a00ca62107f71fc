# SPDX-License-Identifier: Apache-2.0
"""Templates of the user's, through the official Python SDK and `mayfly template`; and the automatic ones, taken ahead."""
import datetime
import json
import os
import re
import subprocess
import time

import pytest
from test_lifecycle import SLOW, call, run, until

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SMALL = {"cpu": "1", "memory": "256Mi"}
# it says who it is once: whoever reads the same was started by the same process
ENTRY = ["sh", "-c", "cat /proc/sys/kernel/random/uuid > /tmp/who; echo $GREETING > /tmp/greeting; sleep 1; touch /tmp/ready; i=0; "
         "while :; do i=$((i+1)); echo $i > /tmp/c; mv /tmp/c /tmp/count; sleep 0.2; done"]


def built(daemon, tpl, *phases):
    end = time.monotonic() + SLOW
    while time.monotonic() < end:
        status, t, _ = call(daemon, "GET", f"/v1/templates/{tpl}")
        assert status == 200, t
        if t["status"]["phase"] in (phases or ("Succeeded", "Failed")):
            return t
        time.sleep(0.3)
    raise AssertionError(f"{tpl} is {t['status']}")


def make(daemon, **more):
    status, t, _ = call(daemon, "POST", "/v1/templates", {"image": "tiny", "publish": "s3://local/one", "resourceLimits": SMALL} | more)
    assert status == 201, t
    return t["templateId"]


def ids(daemon):
    return {s["id"] for s in call(daemon, "GET", "/v1/sandboxes?pageSize=200")[1]["items"]}


def test_sdk_creates_from_a_template(daemon):
    from opensandbox import SandboxManagerSync, SandboxSync
    from opensandbox.config import ConnectionConfigSync
    from opensandbox.exceptions import SandboxApiException
    from opensandbox.models.templates import CreateTemplateRequest, TemplateFilter, TemplateReadiness

    conn = ConnectionConfigSync(domain=daemon.domain, api_key=daemon.api_key, request_timeout=datetime.timedelta(seconds=SLOW))
    manager = SandboxManagerSync.create(connection_config=conn)
    before = ids(daemon)
    made = manager.create_template(CreateTemplateRequest(
        image="tiny", publish="s3://local/sdk", resource_limits=SMALL, entrypoint=ENTRY, env={"GREETING": "hello"}, metadata={"kind": "e2e"},
        readiness=TemplateReadiness(probe="cmd://test -e /tmp/ready")))
    boxes = []
    try:
        assert made.status.phase in ("Pending", "Building") and made.template_id.startswith("tpl-")
        assert ids(daemon) <= before, "the sandbox it is built in is nobody's"
        with pytest.raises(SandboxApiException):
            SandboxSync.create_from_template(made.template_id, timeout=datetime.timedelta(minutes=5), connection_config=conn)
        assert built(daemon, made.template_id)["status"]["phase"] == "Succeeded"
        info = manager.get_template(made.template_id)
        assert info.status.manifest_ref and info.env == {"GREETING": "hello"} and info.metadata == {"kind": "e2e"}
        assert [t.template_id for t in manager.list_templates(TemplateFilter(metadata={"kind": "e2e"})).template_infos] == [made.template_id]
        for _ in range(2):
            boxes.append(SandboxSync.create_from_template(made.template_id, timeout=datetime.timedelta(minutes=5), metadata={"of": "it"},
                                                          connection_config=conn, ready_timeout=datetime.timedelta(seconds=SLOW)))
        look = "cat /tmp/who /tmp/greeting; echo $GREETING $OPENSANDBOX_ID; cat /etc/machine-id; cat /tmp/count"
        seen = ["".join(m.text for m in b.commands.run(look).logs.stdout).split() for b in boxes]
        assert seen[0][:2] == seen[1][:2] and seen[0][1] == "hello", "the entrypoint goes on, it is not started again"
        assert [s[2:4] for s in seen] == [["hello", b.id] for b in boxes]
        assert seen[0][4] != seen[1][4], "and yet they are two machines"
        assert int(seen[0][5]) >= 1
        inspect = call(daemon, "GET", f"/v1/sandboxes/{boxes[0].id}/diagnostics/inspect")[1]
        assert made.template_id[4:] in inspect and "phase_restore_ms" in inspect
        manager.delete_template(made.template_id)
        assert boxes[1].commands.run("cat /tmp/greeting").logs.stdout[0].text.strip() == "hello", "what runs does not mind"
    finally:
        for b in boxes:
            b.kill()
        call(daemon, "DELETE", f"/v1/templates/{made.template_id}")
        manager.close()
    status, e, _ = call(daemon, "POST", "/v1/sandboxes", {"templateId": made.template_id, "timeout": 60})
    assert (status, e["code"]) == (404, "FSB::TEMPLATE_NOT_FOUND")


def test_a_killed_daemon_builds_it_again(daemon):
    before = ids(daemon)
    tpl = make(daemon, readiness={"warmupSeconds": 3})
    built(daemon, tpl, "Building")
    daemon.kill()
    time.sleep(1)
    daemon.wait()
    try:
        assert built(daemon, tpl)["status"]["phase"] == "Succeeded"
        assert ids(daemon) <= before
        status, sb, _ = call(daemon, "POST", "/v1/sandboxes", {"templateId": tpl, "timeout": 300})
        assert status == 202, sb
        until(daemon, sb["id"], "Running")
        assert run(daemon, sb["id"], "echo alive") == "alive\n"
        call(daemon, "DELETE", f"/v1/sandboxes/{sb['id']}")
    finally:
        assert call(daemon, "DELETE", f"/v1/templates/{tpl}")[0] == 204


def test_what_cannot_be_built_says_why(daemon):
    for more, says in (({"image": "no-such-image:1"}, "image"), ({"entrypoint": ["sh", "-c", "exit 3"], "readiness": {"probe": "tcp://127.0.0.1:81"}}, "code 3")):
        tpl = make(daemon, **more)
        t = built(daemon, tpl)
        assert t["status"]["phase"] == "Failed" and says in t["status"]["message"], t
        status, e, _ = call(daemon, "POST", "/v1/sandboxes", {"templateId": tpl, "timeout": 60})
        assert (status, e["code"]) == (404, "FSB::TEMPLATE_NOT_FOUND")
        assert call(daemon, "DELETE", f"/v1/templates/{tpl}")[0] == 204
        assert call(daemon, "GET", f"/v1/templates/{tpl}")[1]["code"] == "FSB::TEMPLATE_NOT_FOUND"
    # one that is being built goes, too, and its sandbox with it
    tpl = make(daemon, readiness={"probe": "cmd://false"})
    built(daemon, tpl, "Building")
    assert call(daemon, "DELETE", f"/v1/templates/{tpl}")[0] == 204


def test_osb_lists_them(daemon, sdk_env):
    import pathlib
    import sys

    def osb(*args):
        return subprocess.run([pathlib.Path(sys.executable).parent / "osb", *args], env={**os.environ, **sdk_env}, capture_output=True, text=True, timeout=120)
    r = osb("template", "create", "-i", "tiny", "-p", "s3://local/osb", "--resource", "memory=256Mi", "-o", "json")
    assert r.returncode == 0, r.stdout + r.stderr
    tpl = re.search(r"tpl-[0-9a-f-]{36}", r.stdout)[0]
    assert built(daemon, tpl)["status"]["phase"] == "Succeeded"
    assert tpl in osb("template", "list", "-o", "json").stdout
    assert osb("template", "delete", tpl).returncode == 0


@pytest.fixture
def mayfly(sdk_env):
    def cli(*args):
        return subprocess.run([os.path.join(TOP, "build/bin/mayfly"), *args], env={**os.environ, **sdk_env}, capture_output=True, text=True, timeout=SLOW)
    return cli


def origin(daemon, sandbox):
    text = call(daemon, "GET", f"/v1/sandboxes/{sandbox}/diagnostics/inspect")[1]
    return re.search(r"^origin: (.*)$", text, re.M)[1], re.search(r"^origin_id: (.*)$", text, re.M)[1]


def a_sandbox(daemon, **more):
    body = {"image": {"uri": "tiny"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": SMALL, "timeout": 600}
    if "snapshotId" in more:
        del body["image"], body["entrypoint"]
    status, sb, _ = call(daemon, "POST", "/v1/sandboxes", body | more)
    assert status == 202, sb
    until(daemon, sb["id"], "Running")
    return sb["id"]


def flip(daemon, blob, at):
    """One byte of a file of the daemon's becomes another."""
    path = f"/var/lib/mayfly/state/blobs/{blob}"
    daemon.machine.run("sh", "-c", f"b=$(dd if={path} bs=1 skip={at} count=1 2>/dev/null | od -An -tu1); "
                       f"printf \"\\\\$(printf %03o $(( (b + 1) % 256 )))\" | dd of={path} bs=1 seek={at} conv=notrunc 2>/dev/null", check=True)


def test_a_template_is_taken_ahead_and_a_bad_one_costs_no_create(daemon, mayfly):
    r = mayfly("template", "build", "--memory", "300Mi", "tiny")
    assert r.returncode == 0, r.stderr
    tpl = r.stdout.strip()
    assert re.search(rf"{tpl}\s+tiny\s+Ready\s+automatic", mayfly("template", "ls").stdout)
    limits = {"resourceLimits": {"cpu": "1", "memory": "300Mi"}}
    sb = a_sandbox(daemon, **limits)
    assert origin(daemon, sb) == ("template", tpl), "the first one of all is restored"
    # it records what it touched, be it gone before that would have been looked at
    call(daemon, "DELETE", f"/v1/sandboxes/{sb}")
    end = time.monotonic() + SLOW
    while (seen := json.loads(mayfly("template", "inspect", tpl).stdout))["workingSet"] is True or not seen["workingSet"]["rounds"]:
        assert time.monotonic() < end, seen
        time.sleep(0.3)
    assert seen["workingSet"]["pagesRead"] > 0
    # the next two add what they touched beyond it; then it stands
    for rounds in (2, 3):
        before = seen["workingSet"]
        sb = a_sandbox(daemon, **limits)
        run(daemon, sb, "seq 100 | sort -r | md5sum")
        call(daemon, "DELETE", f"/v1/sandboxes/{sb}")
        while (seen := json.loads(mayfly("template", "inspect", tpl).stdout))["workingSet"] is True or seen["workingSet"]["rounds"] < rounds:
            assert time.monotonic() < end, seen
            time.sleep(0.3)
        assert sum(seen["workingSet"][k] - before[k] for k in ("pagesRead", "pagesWritten")) >= 0, (before, seen)
    assert mayfly("template", "verify", tpl).returncode == 0
    # a state is checked at every restore, before anything runs: the sandbox boots instead, and leaves a new template
    _, point, _ = call(daemon, "GET", f"/v1/mayfly/points/{tpl}")
    flip(daemon, point["memoryFiles"][-1]["id"] + ".state", 1000)
    r = mayfly("template", "verify", tpl)
    assert r.returncode == 1 and "BAD  state" in r.stdout
    sb = a_sandbox(daemon, **limits)
    assert origin(daemon, sb)[0] == "boot" and run(daemon, sb, "echo alive") == "alive\n"
    call(daemon, "DELETE", f"/v1/sandboxes/{sb}")
    assert call(daemon, "GET", f"/v1/mayfly/templates/{tpl}")[0] == 404


def test_snapshots_are_read_once_and_damage_is_found(daemon, mayfly):
    source = a_sandbox(daemon)
    run(daemon, source, "head -c 3000000 /dev/urandom > /dev/shm/f; md5sum /dev/shm/f > /tmp/sum")
    r = mayfly("snapshot", "create", source)
    assert r.returncode == 0, r.stderr
    snap, end = r.stdout.strip(), time.monotonic() + SLOW
    while call(daemon, "GET", f"/v1/snapshots/{snap}")[1]["status"]["state"] == "Creating":
        assert time.monotonic() < end
        time.sleep(0.3)
    sb = a_sandbox(daemon, snapshotId=snap)
    assert origin(daemon, sb) == ("memory snapshot", snap)
    assert "OK" in run(daemon, sb, "md5sum -c /tmp/sum")
    while not (seen := json.loads(mayfly("snapshot", "inspect", snap).stdout))["verifiedSinceBoot"] or not seen["workingSet"]["rounds"]:
        assert time.monotonic() < end, seen
        time.sleep(0.3)
    assert mayfly("snapshot", "verify", snap).returncode == 0
    call(daemon, "DELETE", f"/v1/sandboxes/{sb}")
    newest = seen["memoryFiles"][-1]
    flip(daemon, newest["id"] + ".mem", 4096 + 4321)
    r = mayfly("snapshot", "verify", snap)
    assert r.returncode == 1 and re.search("BAD  mem .*chunk [0-9]+ .*is damaged", r.stdout), r.stdout
    _, s, _ = call(daemon, "GET", f"/v1/snapshots/{snap}")
    assert s["status"]["state"] == "Failed" and s["status"]["reason"] == "snapshot_damaged" and "chunk" in s["status"]["message"]
    status, e, _ = call(daemon, "POST", "/v1/sandboxes", {"snapshotId": snap, "resourceLimits": SMALL})
    assert (status, e["code"]) == (409, "SNAPSHOT::NOT_READY")
    call(daemon, "DELETE", f"/v1/sandboxes/{source}")
    assert call(daemon, "DELETE", f"/v1/snapshots/{snap}")[0] == 204
