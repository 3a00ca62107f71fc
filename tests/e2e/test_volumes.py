# SPDX-License-Identifier: Apache-2.0
"""Volumes in real sandboxes: host folders and claims, shared, read-only, sub-paths; restarts of the daemon and of the file server."""
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
import uuid

import pytest

from conftest import MAYFLY

SHARED = "/var/lib/mayfly/shared"


class Api:
    def __init__(self, daemon):
        self.daemon = daemon

    def __call__(self, method, path, body=None, timeout=300):
        r = urllib.request.Request(self.daemon.url + path, method=method, data=None if body is None else json.dumps(body).encode(),
                                   headers={"OPEN-SANDBOX-API-KEY": self.daemon.api_key, "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(r, timeout=timeout) as a:
                return a.status, json.loads(a.read() or b"null")
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read() or b"null")

    def create(self, *volumes, **more):
        return self("POST", "/v1/sandboxes", {"image": {"uri": "base"}, "entrypoint": ["sleep", "inf"], "volumes": list(volumes),
                                              "resourceLimits": {"cpu": "1", "memory": "256Mi"}} | more)

    def run(self, box, command, timeout=120):
        """(exit code, output)"""
        r = urllib.request.Request(f"{self.daemon.url}/v1/sandboxes/{box}/proxy/44772/command", data=json.dumps({"command": command}).encode(),
                                   headers={"OPEN-SANDBOX-API-KEY": self.daemon.api_key, "Content-Type": "application/json"})
        out, code = "", None
        with urllib.request.urlopen(r, timeout=timeout) as a:
            for part in a.read().decode().split("\n\n"):
                e = json.loads(part) if part.strip() else {}
                if e.get("type") in ("stdout", "stderr"):
                    out += e["text"]
                elif e.get("type") == "error":
                    code = int(e["error"]["evalue"])
                elif e.get("type") == "execution_complete":
                    code = 0
        return code, out


@pytest.fixture(scope="module")
def api(daemon, machine):
    machine.run("sh", "-c", f"rm -rf {SHARED}; mkdir -p {SHARED}/data/sub {SHARED}/fixed && echo seed >{SHARED}/data/marker.txt && echo below >{SHARED}/data/sub/deep.txt && "
                f"echo fixed >{SHARED}/fixed/f && chown -R 4711:4711 {SHARED}/data {SHARED}/fixed && ln -s /etc {SHARED}/out && mkfifo {SHARED}/fifo", check=True)
    return Api(daemon)


@pytest.fixture
def made(api):
    """Creates sandboxes that end with the test."""
    boxes = []

    def make(*volumes, **more):
        status, answer = api.create(*volumes, **more)
        assert status == 202, (status, answer, api.daemon.log())
        boxes.append(answer["id"])
        return answer["id"]

    yield make
    for b in boxes:
        api("DELETE", f"/v1/sandboxes/{b}")


def servers(machine):
    return set(machine.run("pgrep", "-x", "mayfly-fs").stdout.split())


def host(path, mount, name="v", **more):
    return {"name": name, "host": {"path": path}, "mountPath": mount} | more


def claim(name, mount="/data", volume="v", **more):
    keys = {k: more.pop(k) for k in ("createIfNotExists", "deleteOnSandboxTermination") if k in more}
    return {"name": volume, "pvc": {"claimName": name} | keys, "mountPath": mount} | more


def test_a_host_folder(api, made, machine):
    box = made(host(f"{SHARED}/data", "/mnt/data"), host(f"{SHARED}/data", "/mnt/sub", "s", subPath="sub"), host(f"{SHARED}/fixed", "/ro", "r", readOnly=True),
               host(f"{SHARED}/data/marker.txt", "/etc/marker", "f"))
    code, out = api.run(box, "cat /mnt/data/marker.txt /mnt/sub/deep.txt /ro/f /etc/marker; ls /mnt/sub; echo new >/mnt/data/new && chown 5:5 /mnt/data/new; stat -c '%u %g' /mnt/data/new")
    assert (code, out.split()) == (0, ["seed", "below", "fixed", "seed", "deep.txt", "0", "0"]), out
    assert machine.run("stat", "-c", "%u %g", f"{SHARED}/data/new").stdout.split() == ["4711", "4711"]
    code, out = api.run(box, "echo x >/ro/f; mount -o remount,rw /ro; echo x >/ro/f")
    assert code != 0 and "Read-only" in out and machine.run("cat", f"{SHARED}/fixed/f").stdout == "fixed\n"


def test_a_claim_is_shared_and_outlives_its_sandboxes(api, made):
    name = "c-" + uuid.uuid4().hex[:8]
    one, two = made(claim(name)), made(claim(name, "/other"))
    code, out = api.run(one, "id -u; touch /data/mine && chown 1000:2000 /data/mine && stat -c '%u %g' /data/mine; echo hello >/data/f; chmod 6755 /data/f; stat -c %a /data/f")
    assert (code, out.split()) == (0, ["0", "1000", "2000", "755"]), out
    assert api.run(two, "sleep 1; cat /other/f; stat -c '%u %g' /other/mine") == (0, "hello\n1000 2000\n")
    for b in (one, two):
        assert api("DELETE", f"/v1/sandboxes/{b}")[0] == 204
    three = made(claim(name, "/again", createIfNotExists=False, subPath="deep/er"), claim(name, "/whole", "w"))
    assert api.run(three, "cat /whole/f; ls -a /again | wc -l; ls -d /whole/deep/er") == (0, "hello\n2\n/whole/deep/er\n")


def test_refusals(api):
    long = host(f"{SHARED}/data", "/x")
    for volumes, code in (
            ([host("/etc", "/x")], "HOST_PATH_NOT_ALLOWED"), ([host(f"{SHARED}/out", "/x")], "HOST_PATH_NOT_ALLOWED"),
            ([host(f"{SHARED}/out/ssl", "/x")], "HOST_PATH_NOT_ALLOWED"), ([host(f"{SHARED}/../../etc", "/x")], "INVALID_HOST_PATH"),
            ([host("relative", "/x")], "INVALID_HOST_PATH"), ([host(f"{SHARED}/fifo", "/x")], "INVALID_HOST_PATH"),
            ([host(f"{SHARED}/data", "/")], "INVALID_MOUNT_PATH"), ([host(f"{SHARED}/data", "/proc/x")], "INVALID_MOUNT_PATH"),
            ([host(f"{SHARED}/data", "x")], "INVALID_MOUNT_PATH"), ([long, long], "DUPLICATE_NAME"),
            ([long, host(f"{SHARED}/data", "/x/y", "w")], "INVALID_MOUNT_PATH"), ([long, host(f"{SHARED}/data", "/x", "w")], "INVALID_MOUNT_PATH"),
            ([host(f"{SHARED}/data", "/x", "Bad_Name")], "INVALID_NAME"), ([long | {"subPath": "../x"}], "INVALID_SUB_PATH"), ([long | {"subPath": "/x"}], "INVALID_SUB_PATH"),
            ([{"name": "v", "mountPath": "/x"}], "INVALID_BACKEND"), ([long | {"pvc": {"claimName": "c"}}], "INVALID_BACKEND"),
            ([{"name": "v", "mountPath": "/x", "ossfs": {"bucket": "b", "endpoint": "e"}}], "UNSUPPORTED_BACKEND"),
            ([claim("Bad_Claim")], "INVALID_PVC_NAME"), ([claim("no-such-claim", createIfNotExists=False)], "PVC_NOT_FOUND"),
            ([host(f"{SHARED}/data/marker.txt", "/x", subPath="y")], "INVALID_SUB_PATH")):
        status, answer = api.create(*volumes)
        assert (status, answer["code"]) == (400, "VOLUME::" + code), (volumes, status, answer)


def test_missing_folders_are_made(api, made, machine):
    box = made(host(f"{SHARED}/data/made/here", "/m"))
    assert api.run(box, "echo x >/m/x")[0] == 0
    assert machine.run("stat", "-c", "%u", f"{SHARED}/data/made", f"{SHARED}/data/made/here/x").stdout.split() == ["4711", "4711"]


def test_the_file_server_dies(api, made, machine):
    """A program goes on with its open file; the server is started again."""
    others = servers(machine)
    box = made(claim("c-" + uuid.uuid4().hex[:8]))
    assert api.run(box, "(exec 3>>/data/log; i=0; while [ $i -lt 400 ]; do echo $i >&3 || echo failed >>/failed; i=$((i+1)); sleep 0.05; done; touch /done) >/dev/null 2>&1 &")[0] == 0
    for _ in range(3):
        before = servers(machine) - others
        assert len(before) == 1
        machine.run("kill", "-KILL", *before, check=True)
        code, out = api.run(box, "cat /data/log | wc -l")
        assert code == 0, out
        assert not before & servers(machine)
    code, out = api.run(box, "while ! [ -e /done ]; do sleep 0.2; done; cat /failed 2>/dev/null | wc -l; sort -n -u /data/log | wc -l")
    failed, written = map(int, out.split())
    # a write that was in flight when the server died has failed, and its program knows it
    assert failed <= 3 and written >= 400 - failed, out


def test_the_daemon_dies(api, made, daemon, machine):
    others = servers(machine)
    box = made(claim("c-" + uuid.uuid4().hex[:8]))
    assert api.run(box, "(exec 3>>/data/log; i=0; while [ $i -lt 100 ]; do echo $i >&3 || touch /failed; i=$((i+1)); sleep 0.1; done; touch /done) >/dev/null 2>&1 &")[0] == 0
    before = servers(machine) - others
    daemon.kill()
    daemon.wait()
    code, out = api.run(box, "while ! [ -e /done ]; do sleep 0.2; done; [ ! -e /failed ] && wc -l </data/log")
    assert (code, out.strip()) == (0, "100"), out
    assert before and before <= servers(machine)
    # the new daemon knows the claim, and starts the server again from the table that the monitor kept
    assert api.run(box, "exec 4</data/log; (sleep 3; cat <&4 | wc -l >/count) >/dev/null 2>&1 &")[0] == 0
    machine.run("kill", "-KILL", *before, check=True)
    code, out = api.run(box, "while ! [ -s /count ]; do sleep 0.2; done; cat /count")
    assert (code, out.strip()) == (0, "100"), out


def test_it_goes_with_its_last_sandbox(api, made, machine):
    name = "c-" + uuid.uuid4().hex[:8]
    one = made(claim(name, deleteOnSandboxTermination=True))
    assert api.run(one, "mkdir -p /data/a/b/c/d && echo x >/data/a/b/c/d/e")[0] == 0
    folders = set(machine.run("ls", "/var/lib/mayfly/state/volumes").stdout.split())
    two = made(claim(name))
    assert api("DELETE", f"/v1/sandboxes/{one}")[0] == 204
    assert api.run(two, "cat /data/a/b/c/d/e") == (0, "x\n")
    assert api("DELETE", f"/v1/sandboxes/{two}")[0] == 204
    end = time.monotonic() + 120
    while folders <= set(machine.run("ls", "/var/lib/mayfly/state/volumes").stdout.split()):
        assert time.monotonic() < end, api.daemon.log()
        time.sleep(0.3)
    status, answer = api.create(claim(name, createIfNotExists=False))
    assert (status, answer["code"]) == (400, "VOLUME::PVC_NOT_FOUND")


def test_nothing_half_made_stays(api, machine):
    name = "c-" + uuid.uuid4().hex[:8]
    status, answer = api.create(claim(name, "/a"), host(f"{SHARED}/fifo", "/b", "w"))
    assert (status, answer["code"]) == (400, "VOLUME::INVALID_HOST_PATH"), answer
    status, answer = api.create(claim(name, createIfNotExists=False))
    assert (status, answer["code"]) == (400, "VOLUME::PVC_NOT_FOUND"), answer
    assert not [c for c in api("GET", "/v1/mayfly/volumes")[1]["items"] if c["name"] == name]


WRITER = ("(exec 3>>/data/log 4</data/kept; i=0; while ! [ -e /stop ]; do echo $i >&3 || echo failed >>/failed; i=$((i+1)); sleep 0.02; done; cat <&4 >/read; echo $i >/count) "
          ">/dev/null 2>&1 &")


def written(api, box):
    """What a program wrote that had its files open all the time: (lines, failures, what it read at the end through an old descriptor)."""
    code, out = api.run(box, "touch /stop; while ! [ -s /count ]; do sleep 0.1; done; cat /count; wc -l </data/log; cat /failed 2>/dev/null | wc -l; cat /read")
    assert code == 0, out
    count, lines, failed, *read = out.split()
    assert int(count) == int(lines) > 0 and failed == "0" and read == ["kept"], out


def test_pause_and_resume_with_open_files(api, made, daemon, machine):
    box = made(claim("c-" + uuid.uuid4().hex[:8]), host(f"{SHARED}/fixed", "/ro", "r", readOnly=True))
    assert api.run(box, "echo kept >/data/kept; mkdir /data/d; cd /data/d; exec 5</ro/f; " + WRITER)[0] == 0
    for i in range(3):
        assert api("POST", f"/v1/sandboxes/{box}/pause")[0] == 202, daemon.log()
        end = time.monotonic() + 120
        while api("GET", f"/v1/sandboxes/{box}")[1]["status"]["state"] != "Paused":
            assert time.monotonic() < end, daemon.log()
            time.sleep(0.1)
        if i == 1:  # it is on disk: the daemon may go
            daemon.kill()
            daemon.wait()
        status, answer = api("POST", f"/v1/sandboxes/{box}/resume")
        assert status == 202, (answer, daemon.log())
        assert api.run(box, "cat /ro/f /data/kept") == (0, "fixed\nkept\n")
    written(api, box)
    # of the memory files that it stands on, at most four
    assert 1 <= int(machine.run("sh", "-c", "ls /var/lib/mayfly/state/blobs/*.nodes | wc -l").stdout) <= 4


def snapshot(api, box):
    status, snap = api("POST", f"/v1/sandboxes/{box}/snapshots", {})
    assert status == 202, (snap, api.daemon.log())
    end = time.monotonic() + 180
    while (state := api("GET", f"/v1/snapshots/{snap['id']}")[1]["status"]["state"]) != "Ready":
        assert state == "Creating" and time.monotonic() < end, api.daemon.log()
        time.sleep(0.1)
    return snap["id"]


def test_clones_share_the_volumes(api, made, daemon):
    name = "c-" + uuid.uuid4().hex[:8]
    box = made(claim(name))
    assert api.run(box, "echo kept >/data/kept; echo one >/data/one; (exec 4</data/kept 5</data/one; echo >/open; while ! [ -e /go ]; do sleep 0.1; done; cat <&4 >/got; cat <&5 >/gone 2>&1; "
                        "echo >/over) >/dev/null 2>&1 & while ! [ -e /open ]; do sleep 0.1; done")[0] == 0
    snap = snapshot(api, box)
    # the source goes on, and takes a file away that the clone has open
    assert api.run(box, "rm /data/one; echo two >/data/two; touch /go; while ! [ -e /over ]; do sleep 0.1; done; cat /got /gone") == (0, "kept\none\n")
    status, clone = api("POST", "/v1/sandboxes", {"snapshotId": snap, "resourceLimits": {"cpu": "1", "memory": "256Mi"}})
    assert status == 202, (clone, daemon.log())
    try:
        code, out = api.run(clone["id"], "touch /go; while ! [ -e /over ]; do sleep 0.1; done; cat /got /gone /data/two; echo three >/data/three")
        assert code == 0 and out.splitlines()[0] == "kept" and "tale" in out.splitlines()[1] and out.splitlines()[2] == "two", out
        assert api.run(box, "sleep 1; cat /data/three") == (0, "three\n")
    finally:
        api("DELETE", f"/v1/sandboxes/{clone['id']}")
    # another claim in the place of the first: open files are gone, new ones are there
    status, clone = api("POST", "/v1/sandboxes", {"snapshotId": snap, "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "volumes": [claim(name + "-b")]})
    assert status == 202, (clone, daemon.log())
    try:
        code, out = api.run(clone["id"], "ls /data | wc -l; echo x >/data/x; cat /data/x; touch /go; while ! [ -e /over ]; do sleep 0.1; done; cat /gone")
        assert code == 0 and out.splitlines()[:2] == ["0", "x"] and "tale" in out, out
    finally:
        api("DELETE", f"/v1/sandboxes/{clone['id']}")
    # by its disk alone, with another place: it boots
    status, clone = api("POST", "/v1/sandboxes", {"snapshotId": snap, "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "volumes": [claim(name, "/elsewhere")]})
    assert status == 202, (clone, daemon.log())
    assert api.run(clone["id"], "cat /elsewhere/two; ls /data | wc -l") == (0, "two\n0\n")
    api("DELETE", f"/v1/sandboxes/{clone['id']}")
    api("DELETE", f"/v1/snapshots/{snap}")


def test_the_command_line(api, sdk_env):
    def mayfly(*args, fails=False):
        r = subprocess.run([MAYFLY, *args], env=os.environ | sdk_env, capture_output=True, text=True, timeout=180)
        assert (r.returncode != 0) == fails, r
        return r.stderr if fails else r.stdout

    name = "cli-" + uuid.uuid4().hex[:8]
    assert mayfly("volume", "create", name) == name + "\n"
    assert mayfly("run", "-v", f"{name}/sub:/data", "-v", f"{SHARED}/data:/host:ro", "base", "--", "sh", "-c", "cat /host/marker.txt; echo kept >/data/f; ! touch /host/x 2>/dev/null") == "seed\n"
    box = mayfly("create", "-v", f"{name}:/again", "base").strip()
    assert mayfly("exec", box, "--", "cat", "/again/sub/f") == "kept\n"
    assert name in mayfly("volume", "ls") and '"sandboxes":\t1' in mayfly("volume", "inspect", name).replace(": ", ":\t")
    assert "used by 1" in mayfly("volume", "rm", name, fails=True)
    mayfly("rm", box)
    mayfly("volume", "rm", name)
    assert name not in mayfly("volume", "ls")
    assert "--volume" in mayfly("run", "-v", "nonsense", "base", "--", "true", fails=True)
