# SPDX-License-Identifier: Apache-2.0
"""/code with a real Jupyter server, on this very host: the daemon's monitors are played by fake/mayfly-vmm, whose dials lead to this host. What a sandbox
adds is tried by test_code.py."""
import base64
import concurrent.futures
import hashlib
import http.client
import json
import os
import pathlib
import pty
import re
import select
import signal
import socketserver
import struct
import subprocess
import threading
import time

import pytest

from conftest import MAYFLY
from hostdaemon import HostDaemon, stop
from jupyterkit import ROOT, Jupyter

LIMIT_S = 120


class Box:
    """A sandbox, and /code of it."""

    def __init__(self, daemon, **env):
        self.daemon, self.env = daemon, env
        self.id = daemon.create(env=env)

    def ask(self, method, path, body=None):
        status, answer, _ = self.daemon.ask(method, f"/{self.id}/44772{path}", body, timeout=LIMIT_S)
        return status, answer

    def events(self, code, **context):
        """The events of a cell; for an error that is no stream (status, body)."""
        cell = Cell(self, code, **context)
        if cell.answer.status != 200:
            return cell.answer.status, json.loads(cell.answer.read())
        events = cell.rest(pings=True)
        assert events[0]["type"] == "init" and all(e["timestamp"] > 1.6e12 for e in events)
        return [e for e in events if e["type"] != "ping"]

    def python(self, code, **context):
        return self.events(code, **{"language": "python"} | context)

    def context(self, language="python", **more):
        status, c = self.ask("POST", "/code/context", {"language": language} | more)
        assert status == 200 and c["language"] == language, c
        return c["id"]


def kinds(events):
    return [e["type"] for e in events]


def text(events, kind="stdout"):
    return "".join(e["text"] for e in events if e["type"] == kind)


def results(events):
    return [e["results"] for e in events if e["type"] == "result"]


def error(events):
    """The last event, which is an error and not preceded by another end."""
    assert kinds(events)[-1] == "error" and "execution_complete" not in kinds(events), events
    return events[-1]["error"]


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    j = Jupyter(tmp_path_factory.mktemp("jupyter")).start()
    yield j
    j.stop()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    d = HostDaemon(tmp_path_factory.mktemp("daemon")).start({"runtime": {"templates": False}})
    d.plan(mkdir="make")
    yield d
    d.clean()


@pytest.fixture(scope="module")
def box(daemon, jupyter):
    return Box(daemon, **jupyter.env)


def test_events_come_in_order(box):
    e = box.python("print('x'); 1+1")
    assert kinds(e) == ["init", "execution_count", "stdout", "result", "execution_complete"], e
    assert e[1]["execution_count"] == 1 and e[2]["text"] == "x\n" and e[3]["results"] == {"text": "2"} and e[4]["execution_time"] >= 0
    e = box.python("import sys; print('out'); print('err', file=sys.stderr)")
    assert text(e) == "out\n" and text(e, "stderr") == "err\n" and e[1]["execution_count"] == 2 and not results(e)


def test_the_default_context_keeps_its_state(box):
    first = box.python("kept = 41")
    again = box.python("kept + 1")
    assert results(again) == [{"text": "42"}] and first[0]["text"] == again[0]["text"]
    status, found = box.ask("GET", f"/code/contexts/{first[0]['text']}")
    assert (status, found) == (200, {"id": first[0]["text"], "language": "python"})


def test_an_error_has_its_traceback(box):
    e = error(box.python("1/0"))
    assert (e["ename"], e["evalue"]) == ("ZeroDivisionError", "division by zero") and len(e["traceback"]) > 1 and any("1/0" in t or "0" in t for t in e["traceback"])
    e = error(box.python("nosuch"))
    assert e["ename"] == "NameError"
    e = error(box.python("def f(:"))
    assert e["ename"] == "SyntaxError" and e["traceback"]


def test_pictures_and_other_types_arrive_as_strings(box):
    e = box.python("import matplotlib; matplotlib.use('module://matplotlib_inline.backend_inline')\nimport matplotlib.pyplot as p\np.plot([1, 4, 9]); p.show(); 'last'")
    shown = results(e)
    assert len(shown) == 2 and shown[1] == {"text": "'last'"}, [list(s) for s in shown]
    png = base64.b64decode(shown[0]["image/png"])
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and len(png) > 3000
    e = box.python("from IPython.display import JSON, HTML, display\ndisplay(HTML('<b>x</b>')); JSON({'a': [1, None]})")
    assert results(e)[0]["text/html"] == "<b>x</b>" and json.loads(results(e)[1]["application/json"]) == {"a": [1, None]}
    assert all(isinstance(v, str) for r in results(e) for v in r.values())


def test_odd_text_arrives(box):
    assert text(box.python(r"print('a\0b\x1b[1m\u2028\U0001F600é', end='')")) == "a\ufffdb\x1b[1m\u2028\U0001F600é"


def test_contexts_are_apart(box):
    one, two = box.context(), box.context()
    box.events("v = 1", id=one)
    box.events("v = 2", id=two)
    assert results(box.events("v", id=one)) == [{"text": "1"}] and results(box.events("v", id=two)) == [{"text": "2"}]
    assert error(box.events("kept_nowhere", id=one))["ename"] == "NameError"
    status, listed = box.ask("GET", "/code/contexts?language=python")
    assert status == 200 and {one, two} <= {c["id"] for c in listed} and {c["language"] for c in listed} == {"python"}
    assert box.ask("DELETE", f"/code/contexts/{one}") == (200, "")
    for method, path in (("GET", f"/code/contexts/{one}"), ("DELETE", f"/code/contexts/{one}")):
        status, e = box.ask(method, path)
        assert status == 404 and e["code"] == "CONTEXT_NOT_FOUND", e
    status, e = box.events("1", id=one)
    assert status == 400 and e["code"] == "CONTEXT_NOT_FOUND"
    assert results(box.events("v", id=two)) == [{"text": "2"}]


def test_all_contexts_of_a_language_are_deleted(box):
    bash = box.context("bash")
    python = box.context()
    assert text(box.events("echo from $((1 + 1))", id=bash)) == "from 2\n"
    assert box.ask("DELETE", "/code/contexts?language=bash") == (200, "")
    status, listed = box.ask("GET", "/code/contexts")
    assert bash not in [c["id"] for c in listed] and python in [c["id"] for c in listed]
    status, e = box.ask("DELETE", "/code/contexts")
    assert status == 400 and e["code"] == "MISSING_QUERY"


def test_bash_keeps_its_state(box):
    assert kinds(box.events("x=5; cd /tmp", language="bash"))[-1] == "execution_complete"
    assert text(box.events("echo $x $PWD", language="bash")) == "5 /tmp\n"


def test_a_context_has_its_folder(box, tmp_path):
    c = box.context(cwd=f"{tmp_path}/new/folder")
    assert results(box.events("import os; os.getcwd()", id=c)) == [{"text": f"'{tmp_path}/new/folder'"}]


@pytest.mark.parametrize("body, status, code", [
    ({}, 400, "INVALID_REQUEST_BODY"),
    ({"code": ""}, 400, "INVALID_REQUEST_BODY"),
    ({"code": 1}, 400, "INVALID_REQUEST_BODY"),
    ({"code": "1", "context": {"language": "cobol"}}, 400, "INVALID_REQUEST_BODY"),
    ({"code": "1", "context": {"language": "x" * 100}}, 400, "INVALID_REQUEST_BODY"),
    ({"code": "1", "context": {"language": "python", "cwd": "/" + "x" * 2000}}, 400, "INVALID_REQUEST_BODY"),
    ({"code": "1", "context": {"id": "no-such"}}, 400, "CONTEXT_NOT_FOUND"),
    ({"code": "1", "context": {"id": "../kernels"}}, 400, "CONTEXT_NOT_FOUND"),
    ({"code": "1", "context": {"id": "x" * 5000}}, 400, "CONTEXT_NOT_FOUND")])
def test_bad_requests_get_documented_errors(box, body, status, code):
    got, e = box.ask("POST", "/code", body)
    assert (got, e["code"]) == (status, code) and e["message"], e


def test_an_unknown_language_names_those_that_there_are(box):
    status, e = box.ask("POST", "/code/context", {"language": "cobol"})
    assert status == 400 and "python" in e["message"] and "bash" in e["message"] and "'cobol'" in e["message"]


def test_an_interrupt_ends_a_cell(box):
    c = box.context()
    box.events("1", id=c)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        cell = Cell(box, "import time\nprint('begun', flush=True)\ntime.sleep(600)", c)
        cell.until("begun")
        begun = time.monotonic()
        rest = pool.submit(cell.rest)
        assert box.ask("DELETE", f"/code?id={c}") == (200, "")
        assert error(rest.result(LIMIT_S))["ename"] == "KeyboardInterrupt"
        assert time.monotonic() - begun < 20  # 3 s on a machine that is not loaded
    assert results(box.events("2", id=c)) == [{"text": "2"}]
    status, e = box.ask("DELETE", "/code?id=00000000-0000-4000-8000-000000000000")
    assert status == 500 and e["code"] == "RUNTIME_ERROR"


class Cell:
    """A cell whose events are read one by one."""

    def __init__(self, box, code, id=None, **context):
        self.context = id
        context |= {"id": id} if id else {}
        self.conn = http.client.HTTPConnection("127.0.0.1", box.daemon.port, timeout=LIMIT_S)
        self.conn.request("POST", f"/{box.id}/44772/code", json.dumps({"code": code} | ({"context": context} if context else {})))
        self.answer = self.conn.getresponse()
        self.seen, self.end = bytearray(), time.monotonic() + LIMIT_S

    def read(self):
        assert time.monotonic() < self.end, f"the cell goes on: {self.seen[-1000:]}"  # pings come for as long as it does
        return self.answer.read1(65536)

    def until(self, word):
        while word.encode() not in self.seen:
            got = self.read()
            assert got, self.seen
            self.seen += got

    def rest(self, pings=False):
        while got := self.read():
            self.seen += got
        return [e for e in map(json.loads, filter(None, self.seen.decode().split("\n\n"))) if pings or e["type"] != "ping"]

    def leave(self):
        self.conn.close()


def test_two_cells_at_once_are_one_too_many(box):
    c = box.context()
    cell = Cell(box, "import time\nprint('begun', flush=True)\ntime.sleep(600)", c)
    cell.until("begun")
    e = box.events("1", id=c)
    assert kinds(e) == ["init", "error"] and e[1]["error"]["evalue"] == "session is busy"
    box.ask("DELETE", f"/code?id={c}")
    error(cell.rest())
    assert results(box.events("1", id=c)) == [{"text": "1"}]


def test_a_client_that_leaves_does_not_stop_the_cell(box, tmp_path):
    c = box.context()
    gate, done = tmp_path / "gate", tmp_path / "done"
    cell = Cell(box, f"import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('{gate}'): time.sleep(.05)\nprint('x' * 3000000)\nopen('{done}', 'w').close()", c)
    cell.until("begun")
    cell.leave()
    assert kinds(box.events("1", id=c)) == ["init", "error"]
    gate.touch()
    end = time.monotonic() + LIMIT_S
    while kinds(e := box.events("6 * 7", id=c))[-1] == "error":
        assert time.monotonic() < end, e
        time.sleep(0.1)
    assert done.exists() and results(e) == [{"text": "42"}]


def test_eight_contexts_at_once(box):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda i: box.context(), range(8)))
        assert len(set(ids)) == 8
        answers = list(pool.map(lambda i: box.events(f"n = {i}\nfor k in range(20): print(n)\nn * n", id=ids[i]), range(8)))
        for i, e in enumerate(answers):
            assert text(e) == f"{i}\n" * 20 and results(e) == [{"text": str(i * i)}]
        # the default context is one, whoever asks first
        box2 = Box(box.daemon, **box.env)
        inits = list(pool.map(lambda i: box2.python("1")[0]["text"], range(4)))
        assert len(set(inits)) == 1
        list(pool.map(lambda c: box.ask("DELETE", f"/code/contexts/{c}"), ids))


def test_a_kernel_that_dies_is_told(box):
    c = box.context()
    box.events("v = 1", id=c)
    e = error(box.events("import os; os._exit(3)", id=c))
    assert e["ename"] == "KernelDied" and "lost" in e["evalue"]
    end = time.monotonic() + LIMIT_S
    while True:  # the server starts another one for the same context
        e = box.events("v", id=c)
        if kinds(e)[-1] == "error" and e[-1]["error"]["ename"] == "NameError":
            break
        assert time.monotonic() < end, e
        time.sleep(0.2)


def test_much_output(box):
    e = box.python("for i in range(100): print('%06d' % i + 'x' * 100000)")
    assert text(e) == "".join("%06d" % i + "x" * 100000 + "\n" for i in range(100)) and kinds(e)[-1] == "execution_complete"
    e = error(box.python("print('x' * (40 << 20))"))
    assert e["ename"] == "KernelLost" and "16 MiB" in e["evalue"]
    assert results(box.python("3")) == [{"text": "3"}]


def test_a_client_that_does_not_read_stops_the_kernel_not_the_daemon(box):
    c = box.context()
    cell = Cell(box, "for i in range(40): print('x' * 1000000, flush=True)\nprint('end')", c)
    cell.until("xxxx")
    with open(f"/proc/{box.daemon.proc.pid}/statm") as f:
        before = int(f.read().split()[1])
    assert results(box.python("4")) == [{"text": "4"}]
    with open(f"/proc/{box.daemon.proc.pid}/statm") as f:
        assert (int(f.read().split()[1]) - before) * 4096 < 24 << 20
    e = cell.rest()
    assert kinds(e)[-1] == "execution_complete" and text(e) == ("x" * 1000000 + "\n") * 40 + "end\n", kinds(e)[-3:]


def test_a_cell_that_closes_its_output_and_one_that_forks(box):
    c = box.context()
    box.events("import os, sys; sys.stdout.close()", id=c)
    box.ask("DELETE", f"/code/contexts/{c}")
    e = box.python("import os\npid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0); 'parent'")
    assert results(e)[-1:] == [{"text": "'parent'"}]
    e = box.python("raise SystemExit(3)")
    assert error(e)["ename"] == "SystemExit" and "exit" in text(e, "stderr")
    assert results(box.python("5")) == [{"text": "5"}]


class Hostile(socketserver.ThreadingTCPServer):
    """A Jupyter server of an enemy: `answers` says what it sends for the beginning of a request, `frames` what after a WebSocket's handshake."""
    allow_reuse_address = daemon_threads = True
    SESSION = {"id": "s", "name": "mayfly-default-python", "kernel": {"id": "k", "name": "python"}}

    def __init__(self):
        self.answers, self.frames = {}, b""
        super().__init__(("127.0.0.1", 0), self.serve_one)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def serve_one(self, conn, peer, server):
        head = b""
        try:
            while b"\r\n\r\n" not in head:
                if not (got := conn.recv(65536)):
                    return
                head += got
            line = head.split(b"\r\n")[0].decode()
            for begin, answer in self.answers.items():
                if line.startswith(begin):
                    return conn.sendall(answer)
            if "/channels" not in line:
                return conn.sendall(self.http([self.SESSION] if "sessions" in line else {"kernelspecs": {"python": {"spec": {"language": "python"}}}}))
            key = re.search(rb"(?i)sec-websocket-key: (\S+)", head)[1]
            accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
            conn.sendall(b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
            conn.recv(65536)  # the cell
            conn.sendall(self.frames)
            while conn.recv(65536):
                pass
        except OSError:
            pass

    @staticmethod
    def http(body):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    @staticmethod
    def frame(data, op=1, size=None):
        size = len(data) if size is None else size
        return bytes([0x80 | op]) + (bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size) if size < 65536 else b"\x7f" + struct.pack(">Q", size)) + data


@pytest.fixture(scope="module")
def hostile(daemon):
    with Hostile() as server:
        server.box = Box(daemon, JUPYTER_HOST=f"http://127.0.0.1:{server.server_address[1]}", JUPYTER_TOKEN="t")
        yield server
        server.shutdown()


@pytest.mark.parametrize("answers", [
    {"GET /api/sessions": b"nonsense\r\n\r\n"}, {"GET /api/sessions": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort"},
    {"GET /api/sessions": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nContent-Length: 1\r\n\r\n"}, {"GET /api/sessions": b""},
    {"GET /api/sessions": Hostile.http(b"[" * 500000)}, {"GET /api/sessions": Hostile.http(b'"' + b"x" * (9 << 20) + b'"')},
    {"GET /api/sessions": Hostile.http([{"name": "mayfly-default-python"}, 1, None, {"id": "../x", "name": "mayfly-default-python", "kernel": {"id": "k"}}]), "POST": Hostile.http({})},
    {"GET /api/sessions": b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n"},
    {"GET /api/sessions": Hostile.http([{"id": "s", "name": "mayfly-default-python", "kernel": {"id": "../../k\r\nX: y", "name": "python"}}]), "POST": Hostile.http({})},
    {"GET /api/sessions": Hostile.http([]), "POST": b"HTTP/1.1 201 x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"},
    {"GET /api/kernels": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}, {"GET /api/kernels": b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n"}],
    ids=lambda a: "-".join(a)[:20])
def test_a_server_of_an_enemy(hostile, answers):
    hostile.answers = answers
    status, e = hostile.box.python("1")
    assert status in (400, 500) and e["message"] and len(e["message"]) < 1000, e
    assert hostile.box.daemon.ask("GET", "/health")[0] == 200


MINE = '"parent_header":{"msg_id":"x"},"content":'


@pytest.mark.parametrize("frames, ename", [
    (Hostile.frame(b"nonsense"), "KernelLost"), (Hostile.frame(b"{}"), "KernelLost"), (Hostile.frame(b"\xff\xfe"), "KernelLost"), (Hostile.frame(b"[" * 100000), "KernelLost"),
    (Hostile.frame(b"x", size=1 << 40), "KernelLost"), (Hostile.frame(b"", op=8), "KernelLost"), (Hostile.frame(b"x", op=3), "KernelLost"),
    (Hostile.frame(b'{"header":{"msg_type":"status"},' + MINE.encode() + b'{"execution_state":"dead"}}'), "KernelDied"),
    (b"".join(Hostile.frame(b'{"header":{"msg_type":"stream"},' + MINE.encode() + b'{"name":"stdout","text":"not of this cell"}}') for _ in range(1000)) + Hostile.frame(b"", op=8), "KernelLost"),
    (Hostile.frame(b"widget", op=2) + Hostile.frame(b'{"header":{"msg_type":"error"},"parent_header":[],"content":{"ename":[],"traceback":"x"}}') + Hostile.frame(b"", op=8), "KernelLost")],
    ids=range(10))
def test_a_kernel_of_an_enemy(hostile, frames, ename):
    hostile.answers, hostile.frames = {}, frames
    e = hostile.box.python("1")
    assert hostile.box.ask("DELETE", "/code/contexts/s") == (200, ""), "the next one has a connection of its own"
    assert error(e)["ename"] == ename and "not of this cell" not in str(e), e
    assert hostile.box.daemon.ask("GET", "/health")[0] == 200


def test_a_kernel_that_hangs(box, jupyter):
    before = set(jupyter.kernels())
    c = box.context()
    cell = Cell(box, "import time\nprint('begun', flush=True)\ntime.sleep(600)", c)
    cell.until("begun")
    pid = (set(jupyter.kernels()) - before).pop()
    stop(pid)
    assert box.ask("DELETE", f"/code?id={c}") == (200, ""), "the signal waits with the kernel"
    assert kinds(box.events("1", id=c)) == ["init", "error"]
    # the server ends it by force
    assert box.ask("DELETE", f"/code/contexts/{c}") == (200, "")
    assert error(cell.rest())["ename"] in ("KernelLost", "KernelDied")
    assert not pathlib.Path(f"/proc/{pid}").exists()


def test_input_is_refused(box):
    assert "input" in error(box.python("input()"))["evalue"]


def test_a_sandbox_that_ends_in_the_middle_of_a_cell(daemon, jupyter):
    box = Box(daemon, **jupyter.env)
    c = box.context()
    cells = [Cell(box, "import time\nprint('begun', flush=True)\ntime.sleep(600)", i) for i in (c, box.context())]
    for cell in cells:
        cell.until("begun")
    cells[1].leave()
    assert daemon.ask("DELETE", f"/v1/sandboxes/{box.id}")[0] == 204
    assert error(cells[0].rest())["ename"] == "SandboxEnded"
    other = Box(daemon, **jupyter.env)
    for i in (c, cells[1].context):  # Jupyter is this host's, and goes on
        other.ask("DELETE", f"/code/contexts/{i}")


def test_a_pause_in_the_middle_of_a_cell(daemon, jupyter, tmp_path):
    box = Box(daemon, **jupyter.env)
    c, gate = box.context(), tmp_path / "gate"
    cell = Cell(box, f"import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('{gate}'): time.sleep(.05)\nprint('after')\n6 * 7", c)
    cell.until("begun")
    assert daemon.ask("POST", f"/v1/sandboxes/{box.id}/pause")[0] == 202
    daemon.until(box.id, "Paused")
    gate.touch()  # it ends meanwhile: this host's kernel is not paused with the sandbox
    assert daemon.ask("POST", f"/v1/sandboxes/{box.id}/resume")[0] == 202
    daemon.until(box.id, "Running")
    e = cell.rest()
    assert kinds(e)[-1] == "execution_complete" and "after" in text(e) and results(e) == [{"text": "42"}] or error(e)["ename"] == "OutputLost", e
    assert results(box.events("7", id=c)) == [{"text": "7"}]


def test_no_jupyter_is_said(daemon, jupyter):
    plain = Box(daemon)
    for method, path, body in (("POST", "/code", {"code": "1", "context": {"language": "python"}}), ("POST", "/code/context", {"language": "python"}),
                               ("GET", "/code/contexts?language=python", None), ("DELETE", "/code/contexts?language=python", None)):
        status, e = plain.ask(method, path, body)
        assert status == 500 and e["code"] == "RUNTIME_ERROR" and "not configured" in e["message"], e
    # a command needs none
    assert text(plain.events("echo hi")) == "echo hi\n"
    wrong = Box(daemon, **jupyter.env | {"JUPYTER_TOKEN": "wrong"})
    status, e = wrong.python("1")
    assert status == 500 and "token" in e["message"], e
    for host in ("https://127.0.0.1:1", "http://example.com", "http://127.0.0.1:99999", "nonsense"):
        status, e = Box(daemon, JUPYTER_HOST=host).python("1")
        assert status == 500 and "JUPYTER_HOST" in e["message"], e


def numpy_of(drawn):
    return drawn[0]["text"].split(", ")[1]


def test_a_warm_kernel_draws_its_own_numbers_in_another_machine(daemon, tmp_path):
    """A restore brings a new machine id, which is how the kernel knows that it runs in a clone. test_code.py has real clones."""
    j = Jupyter(tmp_path / "jupyter").start().wait()
    try:
        box = Box(daemon, **j.env)
        for _ in range(2):  # a probe may come again
            r = j.warm()
            assert r.returncode == 0, r.stderr
        fixed = "import random, numpy\nrandom.seed(42); numpy.random.seed(42); state = random.getstate(), numpy.random.get_state()"
        one = box.python(fixed)
        assert one[1] == {"type": "execution_count", "execution_count": 1, "timestamp": one[1]["timestamp"]}, "the template's kernel, and nothing of it is seen"
        status, listed = box.ask("GET", "/code/contexts?language=python")
        assert [c["id"] for c in listed] == [one[0]["text"]]
        # the kernel's own threads draw from `random` too, at any moment: so it is set and drawn from in one cell
        draw = "(random.random(), numpy.random.random())"
        again = "random.setstate(state[0]); numpy.random.set_state(state[1])\n" + draw
        first = results(box.python(again))
        set_only = "random.setstate(state[0]); numpy.random.set_state(state[1])"
        box.python(set_only)
        assert numpy_of(results(box.python(draw))) == numpy_of(first), "the same machine, as after a resume: what was seeded stays"
        box.python(set_only)
        j.machine_id.write_text("b" * 32)
        other = results(box.python(draw))
        assert other != first and numpy_of(other) != numpy_of(first)
        assert results(box.python(again)) == first, "once: who seeds after that gets what was asked for"
        j.machine_id.write_text("c" * 32)
        box.python(set_only)
        assert numpy_of(results(box.python(draw))) == numpy_of(first), "a later snapshot is not a template"
    finally:
        j.stop()


def test_a_kernel_that_cannot_be_seeded_again_ends(daemon, tmp_path):
    j = Jupyter(tmp_path / "jupyter").start().wait()
    try:
        box = Box(daemon, **j.env)
        assert j.warm().returncode == 0
        j.machine_id.unlink()
        assert error(box.python("1"))["ename"] == "KernelDied"
    finally:
        j.stop()


@pytest.mark.parametrize("variable, version, says", [
    ("PYTHON_VERSION", "1.2.3", "python 1.2.3 was requested"), ("PYTHON_VERSION", "3x", "python 3x was requested"), ("JAVA_VERSION", "1", "java 1 was requested"),
    ("NODE_VERSION", "v1", "node 1 was requested"), ("GO_VERSION", "1.0", "go 1.0 was requested"), ("PYTHON_VERSION", "3", None)])
def test_a_version_is_honoured_or_refused(tmp_path, variable, version, says):
    """By the start script, as it is in the image, with this host's languages."""
    at = ROOT / "opt" / "code-interpreter"
    script = (at / "code-interpreter.sh").read_text().replace("here=/opt/code-interpreter\n", f"here={at}\n")
    script = script.replace("mkdir -p /workspace", "mkdir -p").replace("cd /workspace", f"cd {tmp_path}").replace('exec "$here/server"', "echo started; exit 0 #")
    r = subprocess.run(["bash", "-c", script], env=os.environ | {variable: version, "JUPYTER_RUNTIME_DIR": f"{tmp_path}/run", "EXECD_ENVS": f"{tmp_path}/envs"},
                       capture_output=True, text=True, timeout=LIMIT_S)
    if says:
        assert r.returncode == 64 and says in r.stderr and " only. Leave " in r.stderr and "started" not in r.stdout, r
    else:
        assert r.returncode == 0 and r.stdout.startswith("Switched to python 3.") and "started" in r.stdout and "PATH=" in (tmp_path / "envs").read_text(), r


def test_an_alias_shows(tmp_path):
    d = HostDaemon(tmp_path).start({"runtime": {"templates": False}, "images": {"aliases": "opensandbox/code-interpreter:*=tiny"}})
    try:
        body = {"image": {"uri": "opensandbox/code-interpreter:v9"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"memory": "256Mi"}}
        status, made, _ = d.ask("POST", "/v1/sandboxes", body)
        assert status == 202, made
        _, got, _ = d.ask("GET", f"/v1/sandboxes/{made['id']}")
        _, listed, _ = d.ask("GET", "/v1/sandboxes")
        for answer in (made, got, listed["items"][0]):
            assert answer["extensions"]["opensandbox.extensions.mayfly.image"] == "tiny", answer
        assert got["image"]["uri"] == "opensandbox/code-interpreter:v9"
        assert "image opensandbox/code-interpreter:v9 stands for tiny" in d.log()
        r = subprocess.run([MAYFLY, "image", "ls", "--url", d.url], capture_output=True, text=True, timeout=LIMIT_S)
        assert ["opensandbox/code-interpreter:*", "alias", "tiny"] in [line.split() for line in r.stdout.splitlines()], r
        plain = d.create()
        assert "opensandbox.extensions.mayfly.image" not in d.ask("GET", f"/v1/sandboxes/{plain}")[1].get("extensions", {})
    finally:
        d.clean()


def test_the_command_line_runs_code(daemon, box, tmp_path):
    def mayfly(*args, **kw):
        return subprocess.run([MAYFLY, "code", "--url", daemon.url, "--pictures", tmp_path, *args], capture_output=True, text=True, timeout=LIMIT_S, **kw)
    r = mayfly(box.id, "import sys\nprint('out'); print('err', file=sys.stderr); 6 * 7")
    assert (r.returncode, r.stdout) == (0, "out\n42\n") and "err\n" in r.stderr, r
    r = mayfly("-l", "bash", box.id, input="echo $((3 * 4))\n")
    assert (r.returncode, r.stdout) == (0, "12\n"), r
    r = mayfly(box.id, "1/0")
    assert r.returncode == 1 and "ZeroDivisionError" in r.stderr
    (tmp_path / "figure-1.png").write_text("mine")
    (tmp_path / "cell.py").write_text("import matplotlib; matplotlib.use('module://matplotlib_inline.backend_inline')\nimport matplotlib.pyplot as p\np.plot([1, 2]); p.show()")
    r = mayfly("-f", tmp_path / "cell.py", box.id)
    assert r.returncode == 0 and (tmp_path / "figure-1.png").read_text() == "mine", r
    assert (tmp_path / "figure-2.png").read_bytes().startswith(b"\x89PNG") and "figure-2.png" in r.stderr
    r = mayfly("-l", "cobol", box.id, "1")
    assert r.returncode == 1 and "cobol" in r.stderr and not r.stdout
    r = mayfly("-c", "nosuch", box.id, "1")
    assert r.returncode == 1 and "context" in r.stderr


def test_run_makes_a_sandbox_for_code(daemon, jupyter, tmp_path):
    def mayfly(*args, **kw):
        env = [f"--env={k}={v}" for k, v in jupyter.env.items()]
        return subprocess.run([MAYFLY, "run", "--url", daemon.url, *env, *args], capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path, **kw)
    (tmp_path / "cell.py").write_text("import sys\nprint(sys.version_info[0])\n6 * 7")
    (tmp_path / "cell.sh").write_text("echo $((3 * 4))")
    r = mayfly("tiny", "--code", "cell.py")
    assert (r.returncode, r.stdout) == (0, "3\n42\n"), r
    r = mayfly("tiny", "--code", "cell.sh", "-l", "bash")
    assert (r.returncode, r.stdout) == (0, "12\n"), r
    r = mayfly("--code", "cell.sh", "tiny")
    assert (r.returncode, r.stdout) == (0, "12\n"), "the language comes from the file's name"
    r = mayfly("--code", "-", "--language", "bash", "tiny", input="echo typed; exit_with() { return 3; }; exit_with")
    assert (r.returncode, r.stdout) == (1, "typed\n"), r
    r = mayfly("--code", "nosuch.py", "tiny")
    assert r.returncode == 1 and "nosuch.py" in r.stderr
    for wrong in (["tiny", "--code", "cell.py", "--", "ls"], ["--code", "cell.py", "--shell", "tiny"], ["tiny"], ["tiny", "--"]):
        assert mayfly(*wrong).returncode == 2, wrong
    _, listed, _ = daemon.ask("GET", "/v1/sandboxes?pageSize=100")
    assert not [b for b in listed["items"] if b["entrypoint"] == ["/opt/opensandbox/code-interpreter.sh"]], "they are removed"


def test_code_line_by_line_on_a_terminal(daemon, box):
    pid, master = pty.fork()
    if pid == 0:
        os.execv(MAYFLY, [str(MAYFLY), "code", "--url", daemon.url, box.id])
    seen, end = bytearray(), time.monotonic() + LIMIT_S

    def until(*words):
        """Each in turn, behind the one before."""
        at = 0
        for word in words:
            while (found := seen.find(word.encode(), at)) < 0:
                assert select.select([master], [], [], max(0, end - time.monotonic()))[0], seen
                seen.extend(os.read(master, 4096))
            at = found + len(word)
        del seen[:at]
    try:
        until(">>> ")
        os.write(master, b"x = 20\n")
        until("\n", ">>> ")
        os.write(master, b"x + 1\n")
        until("\n", "21", ">>> ")
        os.write(master, b"for i in range(2):\n")
        until("\n", "... ")
        os.write(master, b"    print('line', i)\n\n")
        until("line 0", "line 1", ">>> ")
        os.write(master, b"import time; print('be' + 'gun', flush=True); time.sleep(600)\n")
        until("begun")
        os.write(master, b"\x03")
        until("KeyboardInterrupt", ">>> ")
        os.write(master, b"x + 2\n")
        until("22", ">>> ")
        os.write(master, b"\x04")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(master)
