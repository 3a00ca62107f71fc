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
STRESS = bool(os.environ.get("MAYFLY_STRESS"))


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


def paused_and_resumed(api, box, daemon):
    assert api("POST", f"/v1/sandboxes/{box}/pause")[0] == 202, daemon.log()
    end = time.monotonic() + 120
    while api("GET", f"/v1/sandboxes/{box}")[1]["status"]["state"] != "Paused":
        assert time.monotonic() < end, daemon.log()
        time.sleep(0.1)
    status, answer = api("POST", f"/v1/sandboxes/{box}/resume")
    assert status == 202, (answer, daemon.log())


# One process with a database and twenty files open for its whole life. It writes what it has written to the root disk, too: at the end both agree.
DATABASE = r"""
import hashlib, os, sqlite3, sys
db = sqlite3.connect("/data/x.db", isolation_level=None)
db.execute("pragma journal_mode=" + sys.argv[1])
db.execute("create table t (n integer primary key, text text)")
files = [open(f"/data/f{i}", "w+b", 0) for i in range(20)]
sums = [hashlib.sha256() for f in files]
n = 0
open("/ready", "w").close()
while not os.path.exists("/stop"):
    db.execute("begin")
    for i in range(5):
        db.execute("insert into t values (?, ?)", (n, f"row {n}"))
        n += 1
    db.execute("commit")
    piece = os.urandom(3000)
    files[n // 5 % 20].write(piece)
    sums[n // 5 % 20].update(piece)
    with open("/rows.new", "w") as f:
        f.write(str(n))
    os.rename("/rows.new", "/rows")
other = sqlite3.connect("/data/x.db")
assert other.execute("pragma integrity_check").fetchone()[0] == "ok"
assert other.execute("select count(*), max(n) from t").fetchone() == (n, n - 1)
assert all(row[1] == f"row {row[0]}" for row in other.execute("select n, text from t"))
for f, s in zip(files, sums):
    f.seek(0)
    assert hashlib.sha256(f.read()).digest() == s.digest()
    with open(f.name, "rb") as again:
        assert hashlib.sha256(again.read()).digest() == s.digest()
print("all right", n)
"""


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_database_through_pauses(api, made, daemon, python_image, journal):
    box = made(claim("c-" + uuid.uuid4().hex[:8]), image={"uri": python_image}, resourceLimits={"cpu": "1", "memory": "512Mi"})
    start = f"cat >/db.py <<'E'\n{DATABASE}\nE\n(python3 /db.py {journal} >/out 2>&1; touch /over) >/dev/null 2>&1 & while ! [ -e /rows ] && ! [ -e /over ]; do sleep 0.1; done; cat /rows /out"
    assert api.run(box, start)[0] == 0
    seen = 0
    for _ in range(50 if STRESS else 2):
        paused_and_resumed(api, box, daemon)
        # it goes on where it was, before the next pause
        code, out = api.run(box, f"while ! [ -e /over ] && [ $(cat /rows) -le {seen} ]; do sleep 0.05; done; cat /rows; cat /out")
        assert code == 0 and out.strip().isdigit() and int(out) > seen, out
        seen = int(out)
    code, out = api.run(box, "touch /stop; while ! [ -e /over ]; do sleep 0.1; done; cat /out")
    assert code == 0 and out.startswith("all right ") and int(out.split()[2]) >= seen, out


# A guest's root with all capabilities tries to reach what is not in its volumes. Each line that it prints is one that worked.
ESCAPES = r"""
import ctypes, os, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def tried(what, fn):
    try:
        got = fn()
    except OSError:
        return
    if got:
        print("escaped:", what, got)
def secret(path):
    with open(path, "rb", 0) as f:
        return b"outside" in f.read(100)
# dots, through folders, links and open descriptors
os.makedirs("/one/a/b", exist_ok=True)
tried("dots", lambda: secret("/one/../../../../../../secret"))
fd = os.open("/one/a", os.O_PATH)
for up in ("..", "../..", "../../..", "../../../../.."):
    tried(up, lambda: secret(f"/proc/self/fd/{fd}/{up}/secret"))
    tried("link " + up, lambda: (os.path.lexists("/one/up") and os.unlink("/one/up"), os.symlink(up + "/secret", "/one/up"), secret("/one/up"))[2])
tried("absolute link", lambda: (os.symlink("/var/lib/mayfly/shared/secret", "/one/abs"), secret("/one/abs"))[1])
tried("link of the host", lambda: secret("/one/planted"))
tried("link of the host", lambda: secret("/one/planted-folder/secret"))
# hard links to what is outside, and between two volumes
for outside in ("/etc/passwd", "/two/f", "/proc/1/exe"):
    tried("hard link", lambda: (os.link(outside, "/one/hard"), "made")[1])
tried("rename", lambda: (os.rename("/two/f", "/one/moved"), "made")[1])
tried("link of a descriptor", lambda: (os.link(f"/proc/self/fd/{os.open('/two/f', os.O_RDONLY)}", "/one/hard", follow_symlinks=True), "made")[1])
tried("read-only", lambda: (os.open("/ro/f", os.O_WRONLY), "opened")[1])
tried("read-only", lambda: (libc.mount(b"none", b"/ro", None, 32, None) == 0 and os.open("/ro/f", os.O_WRONLY), "opened")[0])
# handles: forged, and of one mount at another
class handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("f", ctypes.c_ubyte * 128)]
def open_handle(mount, h):
    fd = libc.open_by_handle_at(os.open(mount, os.O_RDONLY), ctypes.byref(h), os.O_RDONLY)
    return fd >= 0 and b"outside" in os.pread(fd, 100, 0)
for type in (0x81, 0x82, 1, 2):
    for ino in range(1, 200):
        h = handle(bytes=12 if type > 2 else 8, type=type)
        ctypes.memmove(h.f, (ino).to_bytes(8, "little" if type > 2 else "big") + bytes(8), 16)
        tried("forged handle", lambda: open_handle("/one", h))
h, mount = handle(bytes=128), ctypes.c_int()
if libc.name_to_handle_at(-100, b"/two/f", ctypes.byref(h), ctypes.byref(mount), 0) == 0:
    tried("handle of another volume", lambda: open_handle("/one", h))
# device nodes and set-user-id
tried("device", lambda: (os.mknod("/one/disk", 0o60600, os.makedev(254, 0)), open("/one/disk", "rb").read(1))[1])
tried("set-user-id", lambda: (open("/one/s", "w").close(), os.chmod("/one/s", 0o6755), os.stat("/one/s").st_mode & 0o6000)[2])
# a folder that is a link every other moment, while files are opened below it
stop = time.monotonic() + 3
def swap():
    while time.monotonic() < stop:
        try:
            os.rename("/one/race", "/one/real"); os.symlink("..", "/one/race")
            os.unlink("/one/race"); os.rename("/one/real", "/one/race")
        except OSError:
            pass
os.mkdir("/one/race")
threads = [threading.Thread(target=swap) for _ in range(2)]
[t.start() for t in threads]
while time.monotonic() < stop:
    tried("race", lambda: secret("/one/race/secret"))
    tried("race", lambda: (os.open("/one/race/made", os.O_CREAT | os.O_WRONLY), None)[1])
[t.join() for t in threads]
print("tried")
"""


def test_a_guest_stays_in_its_volumes(api, made, machine, python_image):
    machine.run("sh", "-c", f"mkdir -p {SHARED}/esc && cd {SHARED} && echo outside >secret && ln -s ../secret esc/planted && ln -s .. esc/planted-folder", check=True)
    box = made(host(f"{SHARED}/esc", "/one"), claim("c-" + uuid.uuid4().hex[:8], "/two", "two"), host(f"{SHARED}/fixed", "/ro", "ro", readOnly=True),
               image={"uri": python_image}, resourceLimits={"cpu": "1", "memory": "512Mi"})
    code, out = api.run(box, f"cat >/esc.py <<'E'\n{ESCAPES}\nE\necho two >/two/f; python3 /esc.py")
    assert (code, out) == (0, "tried\n"), out
    # nothing was made beside the volume, and nothing dangerous in it
    assert machine.run("sh", "-c", f"cd {SHARED}; ls; cat secret fixed/f; find esc -type b -o -type c -o -perm /6000").stdout.split() == \
        sorted(["data", "esc", "fifo", "fixed", "out", "secret"]) + ["outside", "fixed"]


@pytest.fixture
def slow_disk(machine):
    """A file system of the host below SHARED that can be made to hang, as a lost NFS server does."""
    at = f"{SHARED}/slow"

    class Slow:
        path = at + "/data"

        def hang(self):
            machine.run("fsfreeze", "-f", at, check=True)

        def go_on(self):
            machine.run("fsfreeze", "-u", at)

    # `mount -o loop` would hold the device open for writing, which this kernel refuses
    machine.run("sh", "-ec", f"mkdir -p {at}; truncate -s 64M /var/lib/mayfly/slow.img; mkfs.ext4 -q /var/lib/mayfly/slow.img; "
                f'mount "$(losetup -f --show /var/lib/mayfly/slow.img)" {at}; mkdir {at}/data', check=True)
    yield Slow()
    Slow().go_on()
    machine.run("sh", "-c", f"umount -l {at}; losetup -D; rm -rf {at} /var/lib/mayfly/slow.img")


def test_a_source_that_hangs(api, made, machine, slow_disk):
    others = servers(machine)
    box = made(host(slow_disk.path, "/slow"))
    neighbour = made(claim("c-" + uuid.uuid4().hex[:8]))
    assert api.run(box, "echo before >/slow/f") == (0, "")
    slow_disk.hang()
    try:
        # eight writers: more than the file server has threads
        assert api.run(box, "for i in 1 2 3 4 5 6 7 8; do (echo x >/slow/$i; touch /ended) >/dev/null 2>&1 & done; until cat /proc/[0-9]*/stat 2>/dev/null | grep -q ') D '; do sleep 0.1; done")[0] == 0
        # the sandbox itself works beside its volume, and so do the others and the daemon
        assert api.run(box, "echo alive; ls /ended 2>/dev/null") [1] == "alive\n"
        assert api.run(neighbour, "echo fine >/data/f; cat /data/f") == (0, "fine\n")
        # a folder that would have to be made there
        status, answer = api.create(host(slow_disk.path + "/new/folder", "/x"))
        assert (status, answer["code"]) == (504, "VOLUME::HOST_PATH_NOT_FOUND"), answer
        third = made(claim("c-" + uuid.uuid4().hex[:8]))
        assert api.run(third, "echo third >/data/f; cat /data/f") == (0, "third\n")
        # it can be deleted while its file server waits for the disk
        assert api("DELETE", f"/v1/sandboxes/{box}")[0] == 204
        assert api("GET", f"/v1/sandboxes/{box}")[0] == 404
        assert api.run(neighbour, "cat /data/f") == (0, "fine\n")
    finally:
        slow_disk.go_on()
    for b in (neighbour, third):
        api("DELETE", f"/v1/sandboxes/{b}")
    end = time.monotonic() + 120
    while servers(machine) - others:
        assert time.monotonic() < end, api.daemon.log()
        time.sleep(0.2)


def test_a_claim_with_a_limit(api, made):
    name = "c-" + uuid.uuid4().hex[:8]
    box = made(dict(claim(name), pvc={"claimName": name, "storage": "20Mi"}))
    assert next(c["storageBytes"] for c in api("GET", "/v1/mayfly/volumes")[1]["items"] if c["name"] == name) == 20 << 20
    code, out = api.run(box, "dd if=/dev/zero of=/data/f bs=1M count=30 2>&1; dd if=/dev/zero of=/data/rest bs=4k count=1000 2>/dev/null; df -m /data | tail -n 1; ls -l /data/f")
    assert "No space left" in out, out
    # another sandbox meets the same limit, and what is removed makes room for both
    two = made(claim(name))
    # (a page of attributes for each file may count or not)
    assert api.run(two, "dd if=/dev/zero of=/data/small bs=64k count=1")[0] != 0
    assert api.run(box, "rm /data/f; for i in $(seq 100); do echo x 2>/dev/null >/data/g && exit; sleep 0.1; done; exit 1") == (0, "")
    code, out = api.run(two, "sleep 1.1; dd if=/dev/zero of=/data/h bs=1M count=10 2>&1 && rm /data/h && df -k /data | tail -n 1")
    assert code == 0 and "20480" in out, out
    for wrong in ("much", "12", 5, "-1Gi"):
        status, answer = api.create(dict(claim("c-wrong"), pvc={"claimName": "c-wrong", "storage": wrong}))
        assert (status, answer["code"]) == (400, "SANDBOX::INVALID_PARAMETER"), answer


def test_a_limit_leaves_the_disk_its_reserve(api, made, machine):
    """Where the host's file system keeps a claim's limit it tells of the limit instead of the disk: a claim as large as the disk, and a small one."""
    filler = "/var/lib/mayfly/filler"
    large, small = ("c-" + uuid.uuid4().hex[:8] for _ in range(2))
    box = made(dict(claim(large, mount="/large"), name="l", pvc={"claimName": large, "storage": "900Gi"}),
               dict(claim(small, mount="/small"), name="s", pvc={"claimName": small, "storage": "600Mi"}))
    write = "dd if=/dev/zero of=/large/f bs=1M count=1 2>&1; dd if=/dev/zero of=/small/f bs=1M count=1 2>&1; touch /small/g; rm -f /*/[fg]; echo wrote"
    code, out = api.run(box, write)
    assert "No space" not in out and code == 0, out
    free = int(machine.run("df", "-k", "/var/lib/mayfly", check=True).stdout.splitlines()[-1].split()[3])
    # more than what is left to the daemon's watermark, less than the reserve
    machine.run("fallocate", "-l", f"{free - (400 << 10)}K", filler, check=True)
    try:
        code, out = api.run(box, "sleep 1; for i in $(seq 300); do touch /large/$i /small/$i || break; done >/dev/null 2>&1; " + write)
        assert out.count("No space") == 3, out
    finally:
        machine.run("rm", "-f", filler)
    code, out = api.run(box, write)
    assert "No space" not in out and code == 0, out


def test_the_command_line(api, sdk_env, tmp_path):
    def mayfly(*args, fails=False):
        r = subprocess.run([MAYFLY, *args], env=os.environ | sdk_env, capture_output=True, text=True, timeout=180)
        assert (r.returncode != 0) == fails, r
        return r.stderr if fails else r.stdout

    name = "cli-" + uuid.uuid4().hex[:8]
    assert mayfly("volume", "create", "--size", "300Mi", name) == name + "\n"
    assert "300 MiB" in mayfly("volume", "ls")
    assert mayfly("run", "-v", f"{name}/sub:/data", "-v", f"{SHARED}/data:/host:ro", "base", "--", "sh", "-c", "cat /host/marker.txt; echo kept >/data/f; ! touch /host/x 2>/dev/null") == "seed\n"
    box = mayfly("create", "-v", f"{name}:/again", "base").strip()
    assert mayfly("exec", box, "--", "cat", "/again/sub/f") == "kept\n"
    assert name in mayfly("volume", "ls") and '"sandboxes":\t1' in mayfly("volume", "inspect", name).replace(": ", ":\t")
    assert "used by 1" in mayfly("volume", "rm", name, fails=True)
    # files into it and out of it, while a sandbox uses it
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "one").write_bytes(bytes(range(256)) * 5000)
    (tree / "deep" / "two").write_text("two")
    mayfly("volume", "cp", tree, f"{name}:")
    mayfly("volume", "cp", tree / "deep" / "two", f"{name}:/sub/three")
    assert mayfly("exec", box, "--", "sh", "-c", "sleep 1; cd /again; cat tree/deep/two sub/three; wc -c <tree/one") == "twotwo1280000\n"
    assert mayfly("exec", box, "--", "sh", "-c", "ln -s /etc/passwd /again/link; echo back >/again/tree/back") == ""
    mayfly("volume", "cp", f"{name}:tree", tmp_path / "back")
    assert (tmp_path / "back" / "back").read_text() == "back\n" and (tmp_path / "back" / "deep" / "two").read_text() == "two"
    assert (tmp_path / "back" / "one").read_bytes() == bytes(range(256)) * 5000
    assert mayfly("volume", "cp", f"{name}:sub/three", "-") == "two"
    mayfly("volume", "cp", f"{name}:", tmp_path / "whole")
    assert sorted(os.listdir(tmp_path / "whole")) == ["sub", "tree"]
    assert "has a '..'" in mayfly("volume", "cp", f"{name}:../etc/passwd", "-", fails=True)
    assert "does not exist" in mayfly("volume", "cp", tree, "no-such-claim:", fails=True)
    assert "one side must be" in mayfly("volume", "cp", tree, tmp_path, fails=True)
    mayfly("rm", box)
    assert '"sandboxes":\t0' in mayfly("volume", "inspect", name).replace(": ", ":\t")  # those that copied have gone
    mayfly("volume", "rm", name)
    assert name not in mayfly("volume", "ls")
    assert "--volume" in mayfly("run", "-v", "nonsense", "base", "--", "true", fails=True)
