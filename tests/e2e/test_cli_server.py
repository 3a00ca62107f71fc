# SPDX-License-Identifier: Apache-2.0
"""The command line against a server that is not ours: slow, hostile, or with output that a program rarely has."""
import http.server
import json
import os
import signal
import subprocess
import threading
import time

import pytest
from conftest import MAYFLY

ID = "11111111-1111-4111-8111-111111111111"
WAIT_S = 60


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def out(self, code, body, kind="application/json"):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        if not self.headers.get("Transfer-Encoding"):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        got = b""
        while n := int(self.rfile.readline(), 16):
            got += self.rfile.read(n)
            self.rfile.readline()
        self.rfile.readline()
        return got

    def do_GET(self):
        if "/files/info?path=%2F" in self.path and self.path.endswith("=%2F"):
            self.out(200, b'{"/": {"path": "/", "type": "directory"}}')
        elif "/directories/list?path=%2F&depth=1" in self.path:
            self.out(200, json.dumps([{"path": "/" + n, "type": t} for n, t in (("etc", "directory"), ("proc", "directory"), ("f", "file"))]).encode())
        elif "/directories/list?path=%2Fetc&" in self.path:
            self.out(200, json.dumps([{"path": "/etc/g", "type": "file"}]).encode())
        elif "/files/download" in self.path:
            self.out(200, self.path.rpartition("%2F")[2].encode(), "application/octet-stream")
        elif "/files/info" in self.path:
            self.out(404, b'{"code": "FILE_NOT_FOUND", "message": "no"}')
        elif self.path == f"/v1/mayfly/points/{ID}" and self.server.point:
            self.out(200, b'{"kind":"template","workingSet":{"pages":3}}')
        elif self.path == f"/v1/mayfly/templates/{ID}":
            self.out(200, b'{"id":"x","workingSet":true}')
        elif self.path.startswith("/v1/mayfly/points"):
            self.out(200, b"")
        else:
            self.out(200, json.dumps({"id": ID}).encode())

    def do_DELETE(self):
        self.server.log.append(("DELETE", self.path, b""))
        self.send_response(204)
        self.end_headers()

    def do_POST(self):
        body = self.body()
        self.server.log.append(("POST", self.path, body))
        if self.path.endswith("/upload"):
            self.out(200, b"")
        elif self.path == "/v1/sandboxes":
            self.server.asked.set()
            self.server.answer.wait(WAIT_S)
            self.out(202, json.dumps({"id": ID, "status": {"state": "Running"}, "createdAt": "2030-01-01T00:00:00.5Z"}).encode())
        elif self.path.endswith("/renew-expiration"):
            self.out(200, b'{"expiresAt":"2030-01-01T01:00:00Z"}')
        elif b"wait" in body:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type":"init","text":"a"}\n\n{"type":"stdout","text":"on\\n"}\n\n')
            self.server.ended.wait(WAIT_S)
            self.close_connection = True
        elif b"yes" in body:
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            try:
                self.wfile.write(b'{"type":"init","text":"a"}\n\n')
                while True:
                    self.wfile.write(b'{"type":"stdout","text":"y\\n"}\n\n' * 100)
            except OSError:
                pass
        else:
            self.out(200, b'{"type":"init","text":"a"}\n\n{"type":"stdout","text":"one\\u0000two\\\\u0000 \xef\x80\x80\\n"}\n\n'
                          b'{"type":"execution_complete","execution_time":1}\n\n', "text/event-stream")


@pytest.fixture
def server():
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    s.log, s.asked, s.answer, s.ended, s.point = [], threading.Event(), threading.Event(), threading.Event(), False
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield s
    s.answer.set()
    s.ended.set()
    s.shutdown()


def argv(server, name, *more):
    return [MAYFLY, name, "--url", f"http://127.0.0.1:{server.server_port}", *more]


def mayfly(server, *a):
    return subprocess.run(argv(server, *a), capture_output=True, timeout=WAIT_S, stdin=subprocess.DEVNULL)


def test_output_is_what_the_program_wrote(server):
    r = mayfly(server, "exec", ID, "cat", "/proc/1/environ")
    assert r.returncode == 0 and r.stdout == b"one\0two\\u0000 \xef\x80\x80\n", r


def test_output_that_nobody_takes_ends_the_command(server):
    p = subprocess.Popen(argv(server, "exec", ID, "yes"), stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"y\n"
    p.stdout.close()
    p.wait(WAIT_S)
    assert any(m == "DELETE" and path.endswith("/command?id=a") for m, path, _ in server.log), server.log[-3:]


def test_a_user_is_a_number(server):
    for user in ("nobody", "1000x", "1000:adm", ":5", ""):
        r = mayfly(server, "exec", "-u", user, ID, "id")
        assert r.returncode == 2 and b"by number" in r.stderr and not server.log, (user, r)
    assert mayfly(server, "exec", "-u", "1000:100", ID, "id").returncode == 0
    assert json.loads(server.log[0][2])["uid"] == 1000


def test_a_folder_s_name_may_end_in_a_slash(server, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "f").write_text("x")
    (tmp_path / "sub" / "g").write_text("x")
    assert mayfly(server, "cp", f"{tmp_path}//", f"{ID}:/new").returncode == 0
    sent = b"".join(body for _, path, body in server.log if path.endswith("/upload"))
    assert b'"/new/f"' in sent and b'"/new/sub/g"' in sent, sent


def test_an_answer_without_json(server):
    r = mayfly(server, "snapshot", "inspect", ID)
    assert r.returncode >= 0, r


@pytest.mark.parametrize("command", ["run", "create"])
def test_interrupted_while_it_is_made_nothing_is_left(server, command):
    p = subprocess.Popen(argv(server, command, "tiny", "true"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.asked.wait(WAIT_S)
    p.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert p.poll() is None  # what it asked for must be known
    server.answer.set()
    out, err = p.communicate(timeout=WAIT_S)
    assert p.returncode and "interrupted" in err and not out, (p.returncode, out, err)
    assert ("DELETE", f"/v1/sandboxes/{ID}", b"") in server.log
    assert not any(path.endswith("/command") for _, path, _ in server.log)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_that_is_ended_removes_its_sandbox(server, sig):
    """`timeout 5 mayfly run ...`, a terminal that is closed: nothing is left, and the exit code says which signal it was."""
    server.answer.set()
    # not as under nohup, where SIGHUP is ignored and stays so
    p = subprocess.Popen(argv(server, "run", "tiny", "wait"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    assert p.stdout.readline() == b"on\n"
    p.send_signal(sig)
    if sig == signal.SIGINT:
        time.sleep(1.5)
        assert p.poll() is None, "the first ^C is the command's"
        server.ended.set()
    p.communicate(timeout=WAIT_S)
    assert p.returncode == (125 if sig == signal.SIGINT else 128 + sig)
    assert server.log[-1] == ("DELETE", f"/v1/sandboxes/{ID}", b"")


def test_a_run_that_is_killed_leaves_what_expires(server):
    server.answer.set()
    p = subprocess.Popen(argv(server, "run", "tiny", "wait"), stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"on\n"
    p.kill()
    p.wait()
    assert 60 <= json.loads(server.log[0][2])["timeout"] <= 600, "of itself, if nobody renews it"
    server.log.clear()
    assert mayfly(server, "run", "--keep", "tiny", "true").returncode == 0
    assert "timeout" not in json.loads(server.log[0][2]), "what is kept is kept"


def test_a_run_into_a_closed_pipe_is_quiet(server):
    server.answer.set()
    p = subprocess.Popen(argv(server, "run", "tiny", "yes"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdout.readline() == b"y\n"
    p.stdout.close()
    err = p.stderr.read()
    assert p.wait(WAIT_S) == 128 + signal.SIGPIPE and not err
    assert server.log[-1][:2] == ("DELETE", f"/v1/sandboxes/{ID}")


def test_the_root_folder_is_copied_without_what_is_the_kernels(server, tmp_path):
    assert mayfly(server, "cp", f"{ID}:/", str(tmp_path)).returncode == 0
    assert sorted(str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file()) == ["etc/g", "f"]
    assert (tmp_path / "etc" / "g").read_text() == "g" and not (tmp_path / "proc").exists()


def test_what_two_answers_say_is_shown_once(server):
    server.point = True
    r = subprocess.run([MAYFLY, "template", "inspect", ID], env=os.environ | {"OPEN_SANDBOX_DOMAIN": f"127.0.0.1:{server.server_port}"}, capture_output=True)
    assert r.returncode == 0 and r.stdout.count(b"workingSet") == 1 and b"pages" in r.stdout, r
