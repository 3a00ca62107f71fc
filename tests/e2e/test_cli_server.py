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
        if "/files/info" in self.path:
            self.out(404, b'{"code": "FILE_NOT_FOUND", "message": "no"}')
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
            self.out(202, json.dumps({"id": ID, "status": {"state": "Running"}}).encode())
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
    s.log, s.asked, s.answer = [], threading.Event(), threading.Event()
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield s
    s.answer.set()
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
