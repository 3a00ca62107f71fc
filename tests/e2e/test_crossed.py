# SPDX-License-Identifier: Apache-2.0
"""What crosses: a client that leaves as an answer is due, an answer that comes late or twice, an end or a deletion in the middle of something else. The
daemon lives, answers everybody, and loses nothing that it acknowledged. Monitors are scripted; where a guest's side matters the real agent runs as a process."""
import concurrent.futures
import fcntl
import json
import os
import pathlib
import signal
import socket
import socketserver
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from conftest import TOP
from hostdaemon import BOX, WAIT_S, HostDaemon, stop

NO_TEMPLATES = {"runtime": {"templates": False}}


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    alive = d.proc is None or d.proc.poll() is None
    d.clean()
    assert alive, d.log()


def until(look):
    end = time.monotonic() + WAIT_S
    while not (v := look()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return v


def step(daemon, name):
    until(lambda: any(s == name for _, s in daemon.steps()))


def snapshot(daemon, box, name="n"):
    status, s, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/snapshots", {"name": name})
    assert status == 202, s
    return s["id"]


def taken(daemon, snap):
    return until(lambda: (s := daemon.ask("GET", f"/v1/snapshots/{snap}")[1]["status"])["state"] != "Creating" and s)


def post(daemon, box, what, expect=202, **more):
    status, answer, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/{what}", **more)
    assert status == expect, answer
    return answer


# ---- monitors and guests that answer when nobody expects it

def test_a_snapshot_whose_source_goes_keeps_the_memory_it_stands_on(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    post(daemon, box, "pause")
    post(daemon, box, "resume")  # from here on its memory file is its own alone
    daemon.plan(snapshot="later")
    snap = snapshot(daemon, box)
    step(daemon, "go")
    assert daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
    daemon.plan(go="yes")
    assert taken(daemon, snap)["state"] == "Ready"
    status, b, _ = daemon.ask("POST", "/v1/sandboxes", {"snapshotId": snap, "resourceLimits": {"memory": "256Mi"}})
    assert status == 202, b
    for path in (f"sandboxes/{b['id']}", f"snapshots/{snap}"):
        assert daemon.ask("DELETE", f"/v1/{path}")[0] == 204
    daemon.cleared("blobs/*")


def test_a_monitor_that_answers_what_failed_already(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.plan(snapshot="lies")
    assert taken(daemon, snapshot(daemon, box))["state"] == "Failed"
    step(daemon, "late")  # its answer to what failed
    assert daemon.ask("GET", "/health")[0] == 200


def test_an_agent_that_answers_twice(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.plan(prep="more")
    snap = snapshot(daemon, box)
    step(daemon, "again")  # the second answer, a second later
    assert taken(daemon, snap)["state"] == "Failed" and daemon.ask("GET", "/health")[0] == 200


def cpu_ticks(pid):
    f = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return int(f[11]) + int(f[12])


def test_half_a_message_costs_nothing(daemon):
    daemon.start(NO_TEMPLATES)
    daemon.plan(ready="partial")
    daemon.create()
    step(daemon, "half")  # it comes after a second
    before = cpu_ticks(daemon.proc.pid)
    time.sleep(2)
    assert cpu_ticks(daemon.proc.pid) - before < 20  # of 200


def test_an_entrypoint_that_ends_while_it_is_paused(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    step(daemon, "entry")
    daemon.plan(prep="slow")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        paused = pool.submit(post, daemon, box, "pause")
        step(daemon, "prep")
        daemon.plan(entry="exit 3")
        paused.result()
    daemon.until(box, "Paused")
    post(daemon, box, "resume")
    daemon.until(box, "Failed")


def test_a_deletion_while_the_last_words_are_asked_for(daemon):
    """What they bring ends nothing any more: the deletion has ended it, and its client gets the answer of the deletion."""
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    step(daemon, "entry")
    daemon.plan(agent="silent", entry="exit 3")
    daemon.until(box, "Failed")
    status, answer, _ = daemon.ask("DELETE", f"/v1/sandboxes/{box}")
    assert status == 204, answer


def test_output_asked_for_while_the_sandbox_ends(daemon):
    """The guest is gone before it answers: the answer is what the daemon has kept. `mayfly stop` and then `mayfly logs` ask just then."""
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    step(daemon, "entry")
    daemon.plan(agent="silent")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(daemon.ask, "GET", f"/v1/sandboxes/{box}/diagnostics/logs?tail=2")
        step(daemon, "agent")
        daemon.plan(entry="exit 3")
        assert asked.result()[1] == "line 19999\nlast words of the entrypoint: \u00e4\ufffd\ufffd.\n"
    daemon.until(box, "Failed")


# ---- who waits is answered

def test_a_template_asked_for_ahead_whose_makers_all_fail(daemon):
    daemon.start()
    daemon.plan(prep="hang")
    ahead = {"image": "tiny", "publish": "x", "resourceLimits": {"cpu": "1", "memory": "256Mi"}}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        pool.submit(daemon.ask, "POST", "/v1/sandboxes", BOX)
        step(daemon, "prep")
        asked = pool.submit(daemon.ask, "POST", "/v1/mayfly/templates", ahead)
        step(daemon, "setup")
        daemon.settled(1)  # the sandbox that was started for it is gone: the request waits for the other one's template
        daemon.plan(boot="die")
        assert asked.result()[0] == 503


def test_a_pause_behind_a_template_is_answered_in_time(daemon):
    daemon.start({"runtime": {"pending_after_seconds": 1}})
    daemon.plan(snapshot="later")
    box = daemon.create()
    e = post(daemon, box, "pause", 409)
    assert e["code"] == "DOCKER::SANDBOX_PAUSE_FAILED" and "try again" in e["message"]
    daemon.plan(go="yes")
    post(daemon, box, "pause")
    daemon.until(box, "Paused")


def test_a_resident_resume_has_its_limit(daemon):
    daemon.start({"runtime": {"templates": False, "resume_timeout_seconds": 2}})
    box = daemon.create()
    post(daemon, box, "pause?mode=resident")
    monitor = daemon.monitors()[0]
    stop(monitor)
    e = post(daemon, box, "resume", 504)
    assert e["code"] == "DOCKER::SANDBOX_RESUME_FAILED" and daemon.state(box) == "Paused"
    os.kill(monitor, signal.SIGCONT)
    post(daemon, box, "resume")
    assert daemon.state(box) == "Running"


@pytest.fixture
def late(daemon):
    """A sandbox whose monitor did not stop in time for a pause in memory, and still has that request. Only that step has
    a short limit: the others have the time that a loaded machine needs."""
    limits = {"runtime": {"templates": False, "step_timeout_seconds": WAIT_S, "pending_after_seconds": 1}}
    daemon.start(limits)
    box = daemon.create()
    daemon.plan(pause="later")
    limits["runtime"]["step_timeout_seconds"] = 2
    daemon.reload(limits)
    post(daemon, box, "pause?mode=resident")  # told in time that it is under way
    assert daemon.state(box) in ("Pausing", "Running")
    daemon.until(box, "Running")
    limits["runtime"]["step_timeout_seconds"] = WAIT_S
    daemon.reload(limits)
    return box


def test_a_resident_pause_has_its_limit(daemon, late):
    daemon.plan(go="yes")  # it stops after all: it is let go on
    step(daemon, "continue")
    post(daemon, late, "pause?mode=resident")
    assert daemon.state(late) == "Paused"


def test_a_late_resident_pause_is_not_one_to_disk(daemon, late):
    """Between them the client asked for another: that one is promised to last."""
    post(daemon, late, "pause")
    assert daemon.state(late) == "Pausing"
    daemon.plan(go="yes")
    daemon.until(late, "Paused")
    daemon.settled(0)  # on disk, its process gone
    post(daemon, late, "resume")
    assert daemon.state(late) == "Running"


def test_a_202_to_a_repeated_key_is_kept(daemon):
    daemon.start(NO_TEMPLATES)
    daemon.plan(boot="slow")
    key = {"Idempotency-Key": "k"}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(daemon.ask, "POST", "/v1/sandboxes", BOX, key)
        step(daemon, "boot")
        status, b, _ = daemon.ask("POST", "/v1/sandboxes", BOX, key)
        assert status == 202
        daemon.end()
        daemon.plan()
        daemon.again()
    daemon.until(b["id"], "Running")


def test_a_removal_of_images_holds_up_creates_only(daemon):
    daemon.start(NO_TEMPLATES)
    with open(daemon.dir / "state" / "images" / "lock") as lock, concurrent.futures.ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as `mayfly image rm` does, for as long as the disk likes
        made = pool.submit(daemon.create)
        until(lambda: "getting the image" in str(daemon.ask("GET", "/v1/sandboxes", timeout=5)[1]))
        assert daemon.ask("GET", "/health", timeout=5)[0] == 200 and not made.done()
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert daemon.state(made.result()) == "Running"


def test_who_waited_longest_is_next_after_a_kill(daemon):
    daemon.start({"runtime": {"templates": False, "pending_after_seconds": 1}})
    daemon.plan(boot="hang")
    places = 4 * os.cpu_count()
    if places > 64:
        pytest.skip("more than a page of the list, and this host's memory, would hold")
    with concurrent.futures.ThreadPoolExecutor(places + 3) as pool:
        made = list(pool.map(lambda i: daemon.create(metadata={"n": str(i)}), range(places + 3)))
    daemon.end()
    daemon.again()

    def waiting():
        boxes = daemon.ask("GET", "/v1/sandboxes?pageSize=200")[1]["items"]  # newest first
        assert len(boxes) == len(made)
        return [i for i, b in enumerate(boxes) if b["status"].get("message") == "waiting for its turn"]
    until(lambda: len(waiting()) == 3)
    assert waiting() == [0, 1, 2]


def test_snapshots_are_listed_as_before_a_restart(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    for i in range(6):
        taken(daemon, snapshot(daemon, box, f"n{i}"))
    before = daemon.ask("GET", "/v1/snapshots")[1]["items"]
    daemon.end()
    daemon.again()
    assert [s["name"] for s in before] == [f"n{i}" for i in reversed(range(6))]
    assert daemon.ask("GET", "/v1/snapshots")[1]["items"] == before


def test_a_server_that_answers_while_it_is_asked_does_not_hang(daemon):
    """The client hears nothing before its request is whole: what is larger than the buffers between ends at the backend's limit."""
    class Echo(socketserver.BaseRequestHandler):
        def handle(self):
            head = b""
            while b"\r\n\r\n" not in head:
                head += self.request.recv(65536)
            head, rest = head.split(b"\r\n\r\n", 1)
            left = int(next(h for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")).split(b":")[1])
            try:
                self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left)
                while left > 0 and (rest or (rest := self.request.recv(65536))):
                    self.request.sendall(rest)
                    left, rest = left - len(rest), b""
            except OSError:
                pass

    daemon.start(NO_TEMPLATES, backend_timeout_seconds=2)
    box = daemon.create()
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        for size, whole in ((1 << 20, True), (32 << 20, False)):
            with socket.create_connection(("127.0.0.1", daemon.port), timeout=WAIT_S) as s:
                s.sendall(f"POST /{box}/{web.server_address[1]}/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n".encode())

                def give():
                    try:
                        s.sendall(bytes(size))
                    except OSError:
                        pass
                threading.Thread(target=give, daemon=True).start()
                got = 0
                try:
                    while part := s.recv(1 << 16):
                        got += len(part)
                except ConnectionError:
                    pass
                assert (got > size) == whole, (size, got)
        web.shutdown()


# ---- what cannot be said in JSON as it came

def test_words_cut_inside_a_character(daemon):
    daemon.start(NO_TEMPLATES)
    other, box = daemon.create(), daemon.create()
    daemon.plan(entry="notstarted")
    for b in (other, box):
        daemon.until(b, "Failed")
    status, boxes, _ = daemon.ask("GET", "/v1/sandboxes")
    assert status == 200 and other in {b["id"] for b in boxes["items"]}
    status, e, _ = daemon.ask("GET", "/v1/sandboxes/%ff")
    assert status == 404 and "\ufffd" in e["message"]


def test_a_slash_that_cannot_be_redirected(daemon):
    daemon.start(NO_TEMPLATES)
    for path in ("//x/", "/a\\b/"):
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=WAIT_S) as s:
            s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            assert s.recv(4096).startswith(b"HTTP/1.1 404 "), path


# ---- clients that leave, on the real agent

class Serve:
    """tests/execd_host.h's server and its agent, each of which can be made to stand still, so that what crosses does so every time."""

    def __init__(self):
        self.proc = subprocess.Popen([TOP / "build" / "unit" / "api_execd", "--serve", "0"], stdout=subprocess.PIPE, text=True)
        line = self.proc.stdout.readline()
        assert ":" in line, line
        self.port = int(line.rsplit(":", 1)[1])
        self.agent = int(pathlib.Path(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children").read_text().split()[0])

    def call(self, method, path, body=b"", *headers):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        head = [f"{method} {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers]
        s.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        return s

    def stand(self, *pids):
        for pid in pids:
            stop(pid)

    def go_on(self, *pids):
        """One after the other: each has done what waited for it, and sleeps."""
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
            until(lambda: self.sleeps(pid))

    def sleeps(self, pid):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] == "S"

    def took(self, s):
        """The server has read the request on this connection, and did with it what it can do now."""
        here, there = f":{self.port:04X} ", f":{s.getsockname()[1]:04X} "
        rows = [r for r in pathlib.Path("/proc/net/tcp").read_text().splitlines() if here in r and there in r and r.index(here) < r.index(there)]
        return rows and rows[0].split()[4].endswith(":00000000") and self.sleeps(self.proc.pid)

    def lives(self):
        with self.call("GET", "/metrics") as s:
            assert s.recv(4096).startswith(b"HTTP/1.1 200 "), self.proc.poll()


@pytest.fixture
def serve():
    s = Serve()
    yield s
    for pid in (s.agent, s.proc.pid):
        os.kill(pid, signal.SIGKILL)
    s.proc.wait()


def test_leaving_as_a_command_s_ping_is_due(serve):
    s = serve.call("POST", "/command", b'{"command": "sleep 30"}')
    got = b""
    while b"pong" not in got:
        part = s.recv(4096)
        assert part, serve.proc.poll()
        got += part
    serve.stand(serve.proc.pid)
    s.close()
    time.sleep(3.2)  # a ping is due every three seconds: both have happened when it goes on
    serve.go_on(serve.proc.pid)
    serve.lives()


def test_leaving_as_a_look_at_the_metrics_is_answered(serve):
    s = serve.call("GET", "/metrics/watch")
    assert s.recv(4096)
    serve.stand(serve.agent)
    time.sleep(2.5)  # the next look is asked for
    serve.stand(serve.proc.pid)
    s.close()
    serve.go_on(serve.agent, serve.proc.pid)
    serve.lives()


def test_leaving_as_a_file_s_size_is_told(serve):
    serve.lives()
    serve.stand(serve.agent)
    s = serve.call("GET", "/files/download?path=/nope", b"", "Range: bytes=0-1")
    until(lambda: serve.took(s))
    serve.stand(serve.proc.pid)
    s.close()
    serve.go_on(serve.agent, serve.proc.pid)
    serve.lives()


def test_many_paths_in_one_request(serve, tmp_path):
    for i in range(300):
        (tmp_path / f"f{i}").touch()
    paths = "&".join("path=" + urllib.parse.quote(str(p), safe="") for p in tmp_path.iterdir())
    url = f"http://127.0.0.1:{serve.port}/files"
    with urllib.request.urlopen(f"{url}/info?{paths}") as r:
        assert len(json.load(r)) == 300
    with urllib.request.urlopen(urllib.request.Request(f"{url}?{paths}", method="DELETE")) as r:
        assert r.status == 200
    assert not list(tmp_path.iterdir())


def test_a_large_upload_that_cannot_be_hears_why(serve):
    size = 100 << 20
    before = b'--b\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\nContent-Type: application/json\r\n\r\n{"path": "/proc/nope/x"}\r\n' \
             b'--b\r\nContent-Disposition: form-data; name="file"; filename="file"\r\nContent-Type: application/octet-stream\r\n\r\n'
    after = b"\r\n--b--\r\n"
    with socket.create_connection(("127.0.0.1", serve.port), timeout=WAIT_S) as s:
        s.sendall(f"POST /files/upload HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: {len(before) + size + len(after)}\r\n\r\n".encode() + before)
        for _ in range(size >> 20):
            s.sendall(bytes(1 << 20))
        s.sendall(after)
        answer = s.recv(65536)
    assert answer.startswith(b"HTTP/1.1 404 ") and b"FILE_NOT_FOUND" in answer, answer
