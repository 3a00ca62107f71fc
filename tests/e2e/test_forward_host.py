# SPDX-License-Identifier: Apache-2.0
"""`mayfly port-forward` on this very host: the real server and routes and the real agent as a process (build/unit/api_execd --serve), so that the ports of a sandbox
are ports of this host. Real clients: ssh against a real sshd, raw sockets. What a pause does is tried with the real daemon and scripted monitors."""
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import MAYFLY
from hostdaemon import HostDaemon
from registrykit import free_port
from test_ways_host import port  # noqa: F401 (a fixture)

WAIT_S = 120


BOX = "01234567-89ab-4def-8123-456789abcdef"


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


@contextlib.contextmanager
def forward(port, box, *words, key=""):
    """Gives the local ports and the process."""
    p = subprocess.Popen([MAYFLY, "port-forward", box, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env=os.environ | {"OPEN_SANDBOX_DOMAIN": f"127.0.0.1:{port}", "OPEN_SANDBOX_API_KEY": key})
    try:
        lines = [p.stdout.readline() for w in words if not w.startswith("--")]
        assert all(" -> " in x for x in lines), (lines, p.stderr.read() if not all(lines) else "")
        yield [int(x.split(" -> ")[0].rsplit(":", 1)[1]) for x in lines], p
    finally:
        p.kill()
        p.wait()


class Server:
    """fn(connection) for each connection, in a thread."""

    def __init__(self, fn, path=None):
        if path:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(path)
        else:
            self.listener = socket.create_server(("127.0.0.1", 0))
            self.port = self.listener.getsockname()[1]
        self.listener.listen(256)
        self.fn = fn
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                c, _ = self.listener.accept()
                threading.Thread(target=self.one, args=(c,), daemon=True).start()

    def one(self, c):
        with c, contextlib.suppress(OSError):
            self.fn(c)

    def __enter__(self):
        return self

    def __exit__(self, *a):
        self.listener.close()


def echo(c):
    while piece := c.recv(1 << 16):
        c.sendall(piece)


def count(c):
    """Answers only at the end of what comes: a half-close."""
    n = 0
    while piece := c.recv(1 << 20):
        n += len(piece)
    c.sendall(b"%d" % n)


def all_of(s):
    got = bytearray()
    while piece := s.recv(1 << 20):
        got += piece
    return bytes(got)


def dial(port):
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


def test_several_ports_many_connections_and_half_closes(port):
    with Server(echo) as a, Server(count) as b, forward(port, BOX, f"0:{a.port}", f"0:{b.port}") as ((ea, cb), _):
        idle = [dial(ea) for _ in range(100)]
        results = []

        def one(i):
            with dial(cb if i % 2 else ea) as s:
                data = os.urandom(100_000 + i)
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
                results.append(all_of(s) == (b"%d" % len(data) if i % 2 else data))
        threads = [threading.Thread(target=one, args=(i,)) for i in range(60)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(WAIT_S)
        assert results == [True] * 60
        for s in idle:
            s.sendall(b"still here")
            assert s.recv(100) == b"still here"
            s.close()


def test_a_unix_socket_of_the_sandbox(port, tmp_path):
    path = str(tmp_path / "a socket?")
    with Server(count, path), forward(port, BOX, f"0:{path}") as ((local,), _), dial(local) as s:
        s.sendall(b"x" * 1000)
        s.shutdown(socket.SHUT_WR)
        assert all_of(s) == b"1000"


def test_both_sides_send_without_reading(port):
    """Neither reads before it has sent 32 MB: only back-pressure that is not blind lets that end, once somebody reads."""
    total = 32 << 20

    def floods(c):
        t = threading.Thread(target=lambda: c.sendall(b"b" * total), daemon=True)
        t.start()
        n = 0
        while n < total:
            n += len(c.recv(1 << 20))
        t.join()
    with Server(floods) as a, forward(port, BOX, f"0:{a.port}") as ((local,), _), dial(local) as s:
        sender = threading.Thread(target=lambda: s.sendall(b"a" * total), daemon=True)
        sender.start()
        n = 0
        while n < total:
            n += len(s.recv(1 << 20))
        sender.join(WAIT_S)
        assert not sender.is_alive() and n == total


def test_a_slow_reader_holds_up_its_server(port):
    stopped = threading.Event()

    def writes(c):
        c.settimeout(1)
        left = 100 << 20
        while left:
            try:
                left -= c.send(b"y" * min(left, 1 << 20))
            except TimeoutError:
                stopped.set()
    with Server(writes) as a, forward(port, BOX, f"0:{a.port}") as ((local,), _), dial(local) as s:
        assert stopped.wait(WAIT_S), "the server was never held up"
        n = 0
        while n < 100 << 20:
            n += len(s.recv(1 << 20))
        assert n == 100 << 20


def test_a_server_that_ends_first_gets_all_of_an_upload(port):
    """As `nc -l -p 9000 </dev/null >file`: it ends its own side at once, and reads slowly what comes after."""
    total, ended, got = 32 << 20, threading.Event(), []

    def reads(c):
        c.shutdown(socket.SHUT_WR)
        assert ended.wait(WAIT_S)
        n = 0
        while piece := c.recv(16384):
            n += len(piece)
        got.append(n)
    with Server(reads) as a, forward(port, BOX, f"0:{a.port}") as ((local,), _):
        for _ in range(3):
            ended.clear()
            with dial(local) as s:
                assert s.recv(10) == b""
                ended.set()
                s.sendall(b"u" * total)
                s.shutdown(socket.SHUT_WR)
            end = time.monotonic() + WAIT_S
            while not got:
                assert time.monotonic() < end
                time.sleep(0.02)
            assert got.pop() == total


def test_what_cannot_be_reached(port):
    nobody = free_port()
    with forward(port, BOX, f"0:{nobody}", "0:/no/such.sock") as (ports, p):
        for local, what in zip(ports, (f"port {nobody}", "/no/such.sock")):
            with dial(local) as s:
                assert s.recv(10) == b""
            said = p.stderr.readline()
            assert what in said and "nothing listens there" in said


@pytest.mark.parametrize("query, more, status", (
    ("port=0", True, 400), ("port=x", True, 400), ("port=65536", True, 400), ("", True, 400), ("port=1&path=/a", True, 400), ("path=a", True, 400),
    ("path=/" + "x" * 107, True, 400), ("port=22", False, 426)))
def test_malformed_requests(port, query, more, status):
    headers = {"Connection": "Upgrade", "Upgrade": "mayfly-stream"} if more else {}
    s = dial(port)
    s.sendall((f"GET /x/44772/stream?{query} HTTP/1.1\r\nHost: localhost\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n").encode())
    assert s.recv(1000).startswith(b"HTTP/1.1 %d " % status)
    s.close()


def test_wrong_words():
    for words in (["0:0"], ["a:80"], ["80:"], ["65536"], ["-:80", "81"], ["--address", "nowhere", "80"]):
        r = subprocess.run([MAYFLY, "port-forward", "--url", "http://127.0.0.1:9", "01234567-89ab-4def-8123-456789abcdef", *words], capture_output=True, text=True)
        assert r.returncode in (1, 2) and r.stderr.startswith("mayfly: "), r


def test_a_pause_closes_and_a_resume_serves_again(daemon):
    daemon.start({"runtime": {"templates": False}})
    box = daemon.create()
    daemon.until(box, "Running")
    with Server(echo) as a, forward(daemon.port, box, f"0:{a.port}") as ((port,), _):
        with dial(port) as s:
            s.sendall(b"hello")
            assert s.recv(10) == b"hello"
            assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
            assert s.recv(10) == b""
        daemon.until(box, "Paused")
        with dial(port) as s:
            assert s.recv(10) == b"", "a paused sandbox has no ports"
        assert daemon.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202
        with dial(port) as s:
            s.sendall(b"again")
            assert s.recv(10) == b"again"


# ---- ssh

@pytest.fixture
def sshd(tmp_path):
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin:" + os.environ["PATH"])
    if not program or not shutil.which("ssh"):
        pytest.skip("no sshd or ssh on this host (Debian: openssh-server, openssh-client)")
    pathlib.Path("/run/sshd").mkdir(exist_ok=True)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key], check=True)
    port = free_port()
    (tmp_path / "config").write_text(f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\nStrictModes no\n"
                                     f"UsePAM no\nPidFile none\nPermitRootLogin yes\nUseDNS no\n")
    with open(tmp_path / "log", "wb") as log:
        p = subprocess.Popen([program, "-D", "-e", "-f", tmp_path / "config"], stderr=log)
    while True:
        with contextlib.suppress(OSError), dial(port) as s:
            assert s.recv(4) == b"SSH-"
            break
        assert p.poll() is None, (tmp_path / "log").read_text()
    yield port, ["ssh", "-F", "none", "-i", tmp_path / "user", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes"]
    p.send_signal(signal.SIGTERM)
    p.wait()


def test_ssh(port, sshd):
    """ssh by a forwarded port, and as its ProxyCommand: output, exit code, eight megabytes through a remote cat."""
    remote, ssh = sshd
    data = os.urandom(8 << 20)
    env = os.environ | {"OPEN_SANDBOX_DOMAIN": f"127.0.0.1:{port}"}
    with forward(port, BOX, f"0:{remote}") as ((local,), _):
        for way in (["-p", str(local)], ["-o", f"ProxyCommand={MAYFLY} port-forward {BOX} -:{remote}"]):
            r = subprocess.run([*ssh, *way, "127.0.0.1", "echo out; echo err >&2; exit 7"], capture_output=True, timeout=WAIT_S, env=env)
            assert (r.returncode, r.stdout, r.stderr) == (7, b"out\n", b"err\n"), r
            r = subprocess.run([*ssh, *way, "127.0.0.1", "cat"], input=data, capture_output=True, timeout=WAIT_S, env=env)
            assert r.returncode == 0 and r.stdout == data
