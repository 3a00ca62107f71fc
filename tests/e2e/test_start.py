# SPDX-License-Identifier: Apache-2.0
"""A start that cannot read everything loses nothing: a damaged page of the database, a row that is not JSON, a field that does not fit, a missing file,
no memory. What can be read is served, what cannot is quarantined and said, and no file, image or monitor that may belong to it is removed."""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import struct
import subprocess
import time

import pytest
from conftest import BIN, MAYFLY
from hostdaemon import BOX, PROGRAM, WAIT_S, HostDaemon
from test_unwritten import again

PARTS = {"runtime": {"templates": False}}
N = 24


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d.start(PARTS)
    d.clean()


def blobs(daemon):
    return sorted(p.name for p in (daemon.dir / "state" / "blobs").iterdir())


def paused(daemon):
    box = daemon.create(timeout=3600)
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
    return box


def database(daemon):
    return contextlib.closing(sqlite3.connect(daemon.dir / "state" / "state.db", isolation_level=None))


def quarantined(daemon):
    text = daemon.ask("GET", "/metrics")[1]
    return int(next(x for x in text.splitlines() if x.startswith("mayfly_quarantined_records ")).split()[1])


def goes_on(daemon, box):
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202
    assert daemon.run(box, "echo on")[-1]["type"] == "execution_complete"
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202


def ended(daemon, sig=signal.SIGTERM):
    daemon.end(sig)
    with database(daemon) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


BROKEN = {
    "cut": "UPDATE sandboxes SET doc = substr(doc, 1, 40) WHERE id = ?",
    "not an object": "UPDATE sandboxes SET doc = '7' WHERE id = ?",
    "a field": "UPDATE sandboxes SET local = replace(local, '\"frozen\":[', '\"frozen\":[\"../../etc/passwd\",') WHERE id = ?",
    "a path": "UPDATE sandboxes SET local = replace(local, '\"base\":\"', '\"base\":\"images/../../') WHERE id = ?",
    "no disk": "UPDATE sandboxes SET local = replace(local, '\"disk\"', '\"disc\"') WHERE id = ?",
    "no local part": "UPDATE sandboxes SET local = NULL WHERE id = ?",
    "local part cut": "UPDATE sandboxes SET local = substr(local, 1, 40) WHERE id = ?",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_row(daemon, how):
    boxes = [paused(daemon) for _ in range(3)]
    ended(daemon)
    before = blobs(daemon)
    with database(daemon) as db:
        good = db.execute("SELECT doc, local FROM sandboxes WHERE id = ?", (boxes[1],)).fetchone()
        db.execute(BROKEN[how], (boxes[1],))
    daemon.again()
    assert quarantined(daemon) == 1 and f'record "{boxes[1]}" in table sandboxes is quarantined' in daemon.log(), daemon.log()
    assert blobs(daemon) == before
    assert daemon.state(boxes[0]) == daemon.state(boxes[2]) == "Paused" and daemon.state(boxes[1]) == 404
    goes_on(daemon, boxes[0])
    # what is deleted on purpose goes from the database; its files may be the quarantined record's, too
    assert daemon.ask("DELETE", f"/v1/sandboxes/{boxes[2]}")[0] == 204
    assert [f for f in before if f.endswith((".mem", ".state"))] == [f for f in blobs(daemon) if f in before and f.endswith((".mem", ".state"))]
    ended(daemon)
    with database(daemon) as db:
        db.execute("UPDATE sandboxes SET doc = ?, local = ? WHERE id = ?", (*good, boxes[1]))
    daemon.again()
    assert quarantined(daemon) == 0
    goes_on(daemon, boxes[0])
    goes_on(daemon, boxes[1])
    for box in boxes[:2]:
        assert daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
    daemon.cleared("blobs/*")


def test_a_running_monitor_and_its_image_stay(daemon):
    box = daemon.create(timeout=3600)
    ended(daemon)
    with database(daemon) as db:
        (good,) = db.execute("SELECT doc FROM sandboxes").fetchone()
        db.execute(BROKEN["cut"], (box,))
    daemon.again()
    other = daemon.create()
    assert len(daemon.monitors()) == 2 and daemon.state(box) == 404
    assert daemon.run(other, "echo on")[-1]["type"] == "execution_complete"
    ended(daemon)
    with database(daemon) as db:
        db.execute("UPDATE sandboxes SET doc = ? WHERE id = ?", (good, box))
    daemon.again()
    for b in (box, other):
        assert daemon.state(b) == "Running" and daemon.run(b, "echo on")[-1]["type"] == "execution_complete"


def test_an_image_that_a_lost_record_may_need_stays(daemon):
    """A record that cannot be read may stand on any image: none is given free."""
    box = paused(daemon)
    ended(daemon)
    with database(daemon) as db:
        (good,) = db.execute("SELECT doc FROM sandboxes").fetchone()
        db.execute(BROKEN["cut"], (box,))
    daemon.again()
    assert daemon.ask("DELETE", f"/v1/sandboxes/{daemon.create()}")[0] == 204
    time.sleep(2)  # a look at the images follows each deletion within a second
    status, e, _ = daemon.ask("DELETE", "/v1/mayfly/images?name=tiny")
    assert status == 409, e
    ended(daemon)
    with database(daemon) as db:
        db.execute("UPDATE sandboxes SET doc = ?", (good,))
    daemon.again()
    goes_on(daemon, box)


def test_ended_sandboxes_and_their_output_stay(daemon):
    """As long as a record cannot be read, neither the output of an ended sandbox goes nor the oldest of too many that ended."""
    boxes = []
    for _ in range(3):
        daemon.plan(entry="exit 3")
        boxes.append(daemon.create())
        daemon.until(boxes[-1], "Failed")
        daemon.plan()
    words = [daemon.ask("GET", f"/v1/sandboxes/{b}/diagnostics/logs?tail=1")[1] for b in boxes]
    assert all("last words" in w for w in words), words
    ended(daemon)
    with database(daemon) as db:
        (good,) = db.execute("SELECT doc FROM sandboxes WHERE id = ?", (boxes[1],)).fetchone()
        db.execute(BROKEN["cut"], (boxes[1],))
    daemon.start(PARTS | {"limits": {"max_ended": 1}})
    assert [daemon.state(b) for b in boxes] == ["Failed", 404, "Failed"]
    ended(daemon)
    with database(daemon) as db:
        db.execute("UPDATE sandboxes SET doc = ? WHERE id = ?", (good, boxes[1]))
    daemon.start(PARTS)
    assert [daemon.state(b) for b in boxes] == ["Failed"] * 3
    assert [daemon.ask("GET", f"/v1/sandboxes/{b}/diagnostics/logs?tail=1")[1] for b in boxes] == words


class Helped(HostDaemon):
    """The daemon of a real mayfly-priv, in whose slots the monitors are (bench/scale/monitor.c, which does nothing)."""
    USER = 65533
    has_run = False  # this host can run it: an end is a fault from then on

    def again(self):
        for p in (self.dir, self.dir.parent):
            p.chmod(0o755)
        vmm = self.dir / "bin" / "mayfly-vmm"
        if vmm.is_symlink():
            for p in (self.dir / "bin").iterdir():
                p.unlink()
            for name, at in (("mayflyd", PROGRAM), ("mayfly-image", BIN / "mayfly-image"), ("mayfly-vmm", BIN.parent / "bench" / "scale-monitor")):
                shutil.copy(at, self.dir / "bin" / name)
            (self.dir / "bin" / "stay").touch()
        for p in (self.dir / "state", *(self.dir / "state").rglob("*")):
            if self.dir / "state" / "volumes" not in (p, *p.parents):  # the helper's own
                os.chown(p, self.USER, self.USER, follow_symlinks=False)
        at, apart = self.log_path.stat().st_size if self.log_path.exists() else 0, os.getpid() % 400
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen([BIN / "mayfly-priv", "--bin-dir", self.dir / "bin", "--run-dir", self.dir / "run", "--state-dir", self.dir / "state",
                                          "--user", str(self.USER), "--slots", "64", "--uid-base", str(50_000_000 + 1000 * apart), "--uid-count", "320",
                                          "--volume-uid-base", str(100_000_000 + 5_000_000 * apart), "--show", self.dir / "root.tar", "--",
                                          "--config", self.config_path, "-v"], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + WAIT_S
        while not (m := re.search(r"listening on \S+ port (\d+)", self.log_path.read_text()[at:])):
            if self.proc.poll() is not None:
                assert not self.has_run, self.log()[-3000:]
                pytest.skip(f"mayfly-priv does not run on this host: {self.log()[-300:]}")
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)
        self.has_run = True
        self.port = int(m[1])
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def children(self):
        return {int(p) for p in pathlib.Path(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children").read_text().split()}

    def monitors(self):
        program, found = str(self.dir / "bin" / "mayfly-vmm"), set()
        for p in pathlib.Path("/proc").glob("[0-9]*/exe"):
            with contextlib.suppress(OSError):
                if os.readlink(p) == program:
                    found.add(int(p.parent.name))
        return found

    def end(self, sig=signal.SIGKILL):
        """The helper and its daemon; the monitors stay."""
        both = {self.proc.pid} | (self.children() - self.monitors())
        for pid in both:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.proc.wait(WAIT_S)
        end = time.monotonic() + WAIT_S
        while any(os.path.exists(f"/proc/{pid}/exe") and os.access(f"/proc/{pid}/exe", os.R_OK) for pid in both):
            assert time.monotonic() < end
            time.sleep(0.02)

    def clean(self):
        if self.proc and self.proc.poll() is None:
            self.end()
        for pid in self.monitors():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="mayfly-priv runs as root")
def test_a_monitor_in_a_slot_of_the_helper_stays(tmp_path):
    """A monitor that no record names is ended, unless a record cannot be read: it may be that one's."""
    d = Helped(tmp_path)
    try:
        d.start({"runtime": {"templates": False, "weaker_jail": True}})
        box = d.create()
        (pid,) = d.monitors()
        d.end()
        with database(d) as db:
            (good,) = db.execute("SELECT doc FROM sandboxes").fetchone()
            db.execute(BROKEN["cut"], (box,))
        d.again()
        assert quarantined(d) == 1 and d.state(box) == 404
        other = d.create()
        assert pid in d.monitors() and len(d.monitors()) == 2
        d.end()
        with database(d) as db:
            db.execute("UPDATE sandboxes SET doc = ? WHERE id = ?", (good, box))
        d.again()
        for b in (box, other):
            assert d.state(b) == "Running" and d.run(b, "true")[-1]["type"] == "execution_complete"
        assert pid in d.monitors()
        # what is nobody's for sure is ended
        d.end()
        with database(d) as db:
            db.execute("DELETE FROM sandboxes WHERE id = ?", (box,))
        d.again()
        d.settled(1)
        assert pid not in d.monitors() and d.state(other) == "Running"
    finally:
        d.clean()


def damage(path, key):
    """Zeros over the leaf page that holds this key."""
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 4096):
        if data[at] in (0x0A, 0x0D) and key.encode() in data[at:at + 4096]:
            data[at:at + 4096] = bytes(4096)
            path.write_bytes(data)
            return
    raise AssertionError("the key is in no leaf page")


def test_a_page_of_the_database(daemon):
    boxes = sorted(paused(daemon) for _ in range(N))
    ended(daemon)
    before = blobs(daemon)
    damage(daemon.dir / "state" / "state.db", boxes[N // 2])
    copy = (daemon.dir / "state" / "state.db").read_bytes()
    daemon.again()
    assert quarantined(daemon) and "malformed" in daemon.log(), daemon.log()
    assert blobs(daemon) == before
    there = [b for b in boxes if daemon.state(b) == "Paused"]
    assert N // 2 < len(there) < N and {boxes[0], boxes[-1]} <= set(there), "both sides of the page are read"
    goes_on(daemon, there[0])
    assert copy  # what a tool that recovers databases would be given
    assert len(blobs(daemon)) >= len(before)


def test_a_missing_file(daemon):
    boxes = [paused(daemon) for _ in range(3)]
    ended(daemon)
    before = blobs(daemon)
    with database(daemon) as db:
        (local,) = db.execute("SELECT local FROM sandboxes WHERE id = ?", (boxes[1],)).fetchone()
    lost = next(f for f in before if f.endswith(".mem") and f[:36] in local)
    (daemon.dir / "state" / "blobs" / lost).unlink()
    daemon.again()
    assert set(blobs(daemon)) == set(before) - {lost}
    assert daemon.state(boxes[1]) == "Paused"
    status, e, _ = daemon.ask("POST", f"/v1/sandboxes/{boxes[1]}/resume")
    assert status == 500 and "missing" in e["message"], e
    assert daemon.state(boxes[1]) == "Paused" and len(blobs(daemon)) >= len(before) - 1
    goes_on(daemon, boxes[0])


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def longer(path):
    with open(path, "ab") as f:
        f.write(bytes(5000))


def of_a_later_version(path):
    data = path.read_bytes().ljust(4096, b"\0")
    path.write_bytes(data[:8] + struct.pack("<I", 99) + data[12:])


@pytest.mark.parametrize("kind,how", [("mem", cut), ("state", longer), ("data", cut), ("bitmap", cut), ("index", of_a_later_version), ("mem", of_a_later_version)])
def test_a_file_that_is_not_as_it_was(daemon, kind, how):
    """Its sandbox stays Paused and its files stay: whether they are of use is looked at by a resume, and by an operator."""
    boxes = [paused(daemon) for _ in range(2)]
    ended(daemon)
    before = blobs(daemon)
    with database(daemon) as db:
        (local,) = db.execute("SELECT local FROM sandboxes WHERE id = ?", (boxes[1],)).fetchone()
    how(daemon.dir / "state" / "blobs" / next(f for f in before if f.endswith("." + kind) and f[:36] in local))
    daemon.again()
    assert blobs(daemon) == before and quarantined(daemon) == 0
    assert [daemon.state(b) for b in boxes] == ["Paused", "Paused"]
    goes_on(daemon, boxes[0])
    assert set(before) - set(blobs(daemon)) <= {f for f in before if f[:36] not in local}, "nothing of the other one went"
    for b in boxes:
        assert daemon.ask("DELETE", f"/v1/sandboxes/{b}")[0] == 204
    daemon.cleared("blobs/*")


def with_faults(daemon):
    """It does what the file "fault" in its run_dir says."""
    daemon.end()
    daemon.config(PARTS | {"debug": {"faults": True}})
    (daemon.dir / "run" / "fault").write_text("")
    program = daemon.dir / "faulty"
    program.write_text(f'#!/bin/sh\nexec {os.environ.get("MAYFLYD", pathlib.Path(__file__).parents[2] / "build/bin/mayflyd")} --faults "$@"\n')
    program.chmod(0o755)
    daemon.program = program
    return daemon.again()


def test_no_memory(daemon):
    """A record that could not be made of its row, for want of memory, is not a record that is not there."""
    with_faults(daemon)
    boxes = [paused(daemon) for _ in range(3)]
    ended(daemon)
    before = blobs(daemon)
    (daemon.dir / "run" / "fault").write_text("load pass\nload fail\n")
    daemon.again()
    assert quarantined(daemon) == 1 and blobs(daemon) == before
    assert sorted(str(daemon.state(b)) for b in boxes) == ["404", "Paused", "Paused"]
    again(daemon)
    assert quarantined(daemon) == 0 and blobs(daemon) == before
    for b in boxes:
        goes_on(daemon, b)


@pytest.mark.parametrize("step", ["begun", "disk", "asked", "loaded", "ready", "thawed", "saved"])
def test_a_daemon_killed_in_a_resume(daemon, step):
    """Whatever the record says at that moment is a record: nothing is quarantined by the next daemon, nor by the one after it."""
    with_faults(daemon)
    box = paused(daemon)
    (daemon.dir / "run" / "fault").write_text(f"resume.{step} kill\n")
    with pytest.raises(OSError):  # no answer
        daemon.ask("POST", f"/v1/sandboxes/{box}/resume")
    assert daemon.proc.wait(WAIT_S) == -signal.SIGKILL
    for _ in range(2):
        daemon.again()
        assert quarantined(daemon) == 0, daemon.log()
        if daemon.until(box, "Paused", "Running") == "Paused":
            assert daemon.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202
        assert daemon.run(box, "echo on")[-1]["type"] == "execution_complete"
        assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
        ended(daemon)
    daemon.again()
    assert quarantined(daemon) == 0 and daemon.state(box) == "Paused"
    assert daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
    daemon.cleared("blobs/*")


POOL = {"name": "p", "capacitySpec": {"bufferMin": 0, "bufferMax": 0, "poolMin": 0, "poolMax": 1}, "template": {"spec": {"containers": [{"image": "tiny"}]}}}


@pytest.mark.parametrize("doc", ["substr(doc, 1, 40)", "'7'", "json_remove(doc, '$.capacity')", "json_remove(doc, '$.request')", "json_remove(doc, '$.request.image')"])
def test_a_pool(daemon, doc):
    assert daemon.ask("POST", "/v1/pools", POOL)[0] == 201
    assert daemon.ask("POST", "/v1/pools", POOL | {"name": "q"})[0] == 201
    box = paused(daemon)
    ended(daemon)
    before = blobs(daemon)
    with database(daemon) as db:
        (good,) = db.execute("SELECT doc FROM pools WHERE id = 'p'").fetchone()
        db.execute(f"UPDATE pools SET doc = {doc} WHERE id = 'p'")
    daemon.again()
    assert quarantined(daemon) == 1 and blobs(daemon) == before
    assert [p["name"] for p in daemon.ask("GET", "/v1/pools")[1]["items"]] == ["q"]
    goes_on(daemon, box)
    ended(daemon)
    with database(daemon) as db:
        db.execute("UPDATE pools SET doc = ? WHERE id = 'p'", (good,))
    daemon.again()
    assert quarantined(daemon) == 0 and daemon.ask("GET", "/v1/pools/p")[1]["capacitySpec"] == POOL["capacitySpec"]


@pytest.mark.parametrize("doc", ["{", "{}"])
def test_a_claim(daemon, doc):
    """The record of a volume: nothing that it may name is removed."""
    box = paused(daemon)
    ended(daemon)
    before = blobs(daemon)
    key = "0123456789abcdef0123456789abcdef"
    with database(daemon) as db:
        db.execute("INSERT INTO claims VALUES (?, ?, NULL)", (key, doc))
    daemon.again()
    assert quarantined(daemon) == 1 and blobs(daemon) == before
    goes_on(daemon, box)
    ended(daemon)
    with database(daemon) as db:
        assert db.execute("SELECT id, doc FROM claims").fetchall() == [(key, doc)]


def test_an_idempotency_key(daemon):
    """Its row is read when the key comes again. What cannot be read is no leave to make another sandbox."""
    key = {"Idempotency-Key": "k"}
    assert daemon.ask("POST", "/v1/sandboxes", BOX, key)[0] == 202
    ended(daemon)
    with database(daemon) as db:
        (good,) = db.execute("SELECT doc FROM idempotency").fetchone()
        db.execute("UPDATE idempotency SET doc = substr(doc, 1, 10)")
    daemon.again()
    (box,) = [b["id"] for b in daemon.ask("GET", "/v1/sandboxes")[1]["items"]]
    status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX, key)
    assert status == 500 and "Idempotency-Key" in e["message"], e
    assert [b["id"] for b in daemon.ask("GET", "/v1/sandboxes")[1]["items"]] == [box]
    ended(daemon)
    with database(daemon) as db:
        db.execute("UPDATE idempotency SET doc = ?", (good,))
    daemon.again()
    assert daemon.ask("POST", "/v1/sandboxes", BOX, key)[1]["id"] == box


@pytest.mark.parametrize("doc", ["'{'", "'{}'", "replace(doc, 'input', 'in')"])
def test_the_answer_of_a_run(daemon, doc):
    """What cannot be read is no leave to run the task again."""
    body = {"run_id": "r", "task": "hello", "context": {"worker": {"image": "tiny", "resource_limits": {"memory": "256Mi"}}}}
    answer = daemon.ask("POST", "/v1/mayfly/runs", body)[1]
    assert answer["status"] == "ok"
    ended(daemon)
    with database(daemon) as db:
        (good,) = db.execute("SELECT doc FROM runs").fetchone()
        db.execute(f"UPDATE runs SET doc = {doc}")
    daemon.again()
    assert quarantined(daemon) == 1
    bad = daemon.ask("POST", "/v1/mayfly/runs", body)[1]
    assert bad["status"] == "retryable_error" and "cannot be read" in bad["result"]["message"]
    ended(daemon)
    with database(daemon) as db:
        db.execute("UPDATE runs SET doc = ?", (good,))
    daemon.again()
    assert daemon.ask("POST", "/v1/mayfly/runs", body)[1] == answer
    # the operator gives one up: the run_id is free again
    ended(daemon)
    with database(daemon) as db:
        db.execute(f"UPDATE runs SET doc = {doc}")
    daemon.again()
    (item,) = daemon.ask("GET", "/v1/mayfly/quarantine")[1]["items"]
    assert daemon.ask("DELETE", f"/v1/mayfly/quarantine/{item['table']}/{item['id']}")[0] == 204


@pytest.mark.parametrize("doc", ["{", '{"purpose": "none of ours", "state": "Ready"}', '{"purpose": "snapshot", "state": "Ready"}',
                                 '{"purpose": "user-template", "state": "odd"}'])
def test_a_checkpoint(daemon, doc):
    box = paused(daemon)
    ended(daemon)
    before = blobs(daemon)
    with database(daemon) as db:
        db.execute("INSERT INTO checkpoints VALUES ('00000000-0000-4000-8000-000000000000', ?, NULL)", (doc,))
    (daemon.dir / "state" / "blobs" / "11111111-0000-4000-8000-000000000000.mem").write_text("of a record that cannot be read")
    daemon.again()
    assert quarantined(daemon) == 1 and len(blobs(daemon)) == len(before) + 1
    goes_on(daemon, box)
    ended(daemon)
    with database(daemon) as db:
        db.execute("DELETE FROM checkpoints")
    daemon.again()
    daemon.cleared("blobs/11111111*")
    goes_on(daemon, box)


def test_a_newer_format_is_refused(daemon):
    box = paused(daemon)
    ended(daemon)
    before = blobs(daemon)
    with database(daemon) as db:
        db.execute("PRAGMA user_version = 3")
    with pytest.raises(AssertionError, match="has format 3, and this daemon knows 2"):
        daemon.again()
    assert blobs(daemon) == before
    with database(daemon) as db:
        db.execute("PRAGMA user_version = 2")
    daemon.again()
    goes_on(daemon, box)


def test_records_name_nothing_of_this_host(daemon):
    """The portable part has no path, process or file; the local part has no absolute path."""
    box = paused(daemon)
    with database(daemon) as db:
        doc, local = db.execute("SELECT doc, local FROM sandboxes WHERE id = ?", (box,)).fetchone()
    assert str(daemon.dir) not in doc + local and '"/' not in local
    assert not {"disk", "mem", "vm_slot", "vm_pid", "boot"} & set(json.loads(doc))
    assert {"disk", "mem", "vm_slot"} <= set(json.loads(local))


def test_the_operator_gives_one_up(daemon):
    boxes = [paused(daemon) for _ in range(2)]
    ended(daemon)
    with database(daemon) as db:
        db.execute(BROKEN["cut"], (boxes[0],))
    daemon.again()
    told = daemon.ask("GET", "/v1/mayfly/quarantine")[1]
    assert not told["complete"] and [(i["table"], i["id"]) for i in told["items"]] == [("sandboxes", boxes[0])] and told["items"][0]["reason"]
    look = json.loads(subprocess.run([MAYFLY, "doctor", "--json", "records"], capture_output=True, text=True, env=os.environ | {"OPEN_SANDBOX_DOMAIN": daemon.url}).stdout)
    assert look[0]["verdict"] == "bad" and boxes[0] in look[0]["found"] and "quarantine" in look[0]["todo"], look
    with daemon.unwritable("sandboxes"):
        assert daemon.ask("DELETE", f"/v1/mayfly/quarantine/sandboxes/{boxes[0]}")[0] == 500
    assert daemon.ask("DELETE", f"/v1/mayfly/quarantine/sandboxes/{boxes[1]}")[0] == 404, "only what is quarantined"
    before = blobs(daemon)
    assert daemon.ask("DELETE", f"/v1/mayfly/quarantine/sandboxes/{boxes[0]}")[0] == 204
    assert blobs(daemon) == before
    ended(daemon)
    daemon.again()
    assert daemon.ask("GET", "/v1/mayfly/quarantine")[1] == {"complete": True, "items": []}
    assert set(blobs(daemon)) < set(before), "its files are nobody's now"
    look = json.loads(subprocess.run([MAYFLY, "doctor", "--json", "records"], capture_output=True, text=True, env=os.environ | {"OPEN_SANDBOX_DOMAIN": daemon.url}).stdout)
    assert look[0]["verdict"] == "good"
    goes_on(daemon, boxes[1])


def units(path):
    """What a layer's data is known by: each 4 KiB that is not zeros, after its number."""
    found, at = b"", 0
    with open(path, "rb") as f:
        while True:
            try:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA) // 4096 * 4096
            except OSError:
                return found
            unit = os.pread(f.fileno(), 4096, at).ljust(4096, b"\0")
            if unit.strip(b"\0"):
                found += struct.pack("<Q", at // 4096) + unit
            at += 4096


def test_published_files_have_digests(daemon):
    """Beside each file, in the background, and again for one that has none at the next start."""
    box = daemon.create()
    snapshot = daemon.ask("POST", f"/v1/sandboxes/{box}/snapshots")[1]["id"]

    def sums():
        folder, end = daemon.dir / "state" / "blobs", time.monotonic() + 60
        while True:
            files = daemon.ask("GET", f"/v1/mayfly/points/{snapshot}")
            if files[0] == 200 and all("sha256" in f for f in files[1]["memoryFiles"]) and len(list(folder.glob("*.sum"))) >= 3:
                return files[1]["memoryFiles"]
            assert time.monotonic() < end, (files, blobs(daemon))
            time.sleep(0.02)
    (memory,) = sums()
    folder = daemon.dir / "state" / "blobs"
    assert memory["sha256"] == hashlib.sha256((folder / f"{memory['id']}.mem").read_bytes()).hexdigest()
    for path in folder.glob("*.sum"):
        for line in path.read_text().splitlines():
            kind, how, digest, size = line.split()
            file = folder / f"{path.name[:36]}.{kind}"
            what = units(file) if how == "sha256-units" else file.read_bytes()
            assert (file.stat().st_size, digest) == (int(size), hashlib.sha256(what).hexdigest()), (path, line)
            assert how == ("sha256-units" if kind == "data" else "sha256")
    (folder / f"{memory['id']}.sum").unlink()
    ended(daemon)
    daemon.again()
    assert sums() == [memory]
    assert daemon.ask("DELETE", f"/v1/snapshots/{snapshot}")[0] == 204 and daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
    daemon.cleared("blobs/*")


def test_a_limit_of_the_host_that_is_too_low_is_named(tmp_path):
    """For the sandboxes that the configuration allows; `mayfly doctor limits` says the same for a thousand."""
    d = HostDaemon(tmp_path)
    try:
        few = tmp_path / "few"
        few.write_text(f'#!/bin/sh\nulimit -n 4096\nexec {d.PROGRAM} "$@"\n')
        few.chmod(0o755)
        d.program = few
        d.start({"limits": {"max_sandboxes": 500}})
        assert "this host allows 4096 open files of a process; 500 sandboxes (limits.max_sandboxes) may take 16000: raise LimitNOFILE" in d.log()
        d.end(signal.SIGTERM)
    finally:
        d.clean()
