# SPDX-License-Identifier: Apache-2.0
"""What a client or a guest can make the daemon hold: each has a budget. Beyond it a request is refused, or a stream ends. The daemon runs on this host. For
the execution API it is the real server with a real agent (test_crossed.Serve). Budgets of streams and bodies: tests/unit/http_budgets.c."""
import json
import os
import pathlib
import re
import signal
import socket
import time

import pytest

from hostdaemon import BOX, HostDaemon
from test_crossed import Serve

WAIT_S = 60


@pytest.fixture
def serve():
    s = Serve()
    yield s
    for pid in (s.agent, s.proc.pid):
        os.kill(pid, signal.SIGKILL)
    s.proc.wait()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    d = HostDaemon(tmp_path_factory.mktemp("budgets")).start({"runtime": {"templates": False}})
    yield d
    assert d.proc.poll() is None
    d.clean()


def rss_kib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def test_a_long_listing_is_streamed(serve, tmp_path):
    """Ten clients list or search 30,000 files each and read nothing: the server holds a page or two of each, not megabytes."""
    for i in range(30000):
        (tmp_path / f"{i:05}-{'x' * 150}").touch()
    ways = [f"/directories/list?path={tmp_path}&depth=1", f"/files/search?path={tmp_path}&pattern=*"]
    for path in ways:
        s = serve.call("GET", path, b"", "Connection: close")
        whole = b"".join(iter(lambda: s.recv(1 << 20), b""))
        assert whole.count(b'"path"') == 30000 and len(whole) > 9 << 20, len(whole)
    before = rss_kib(serve.proc.pid)
    stalled = []
    for n in range(10):
        stalled.append(serve.call("GET", ways[n % 2], b"", "Connection: close"))
        time.sleep(0.5)
    grown = rss_kib(serve.proc.pid) - before
    assert grown < 32 << 10, f"{grown} KiB for ten listings of {len(whole) >> 10} KiB that nobody reads"
    # those that go on reading have all of it
    for s in stalled[:2]:
        assert b"".join(iter(lambda: s.recv(1 << 20), b"")).count(b'"path"') == 30000
    # and another client is served
    s = serve.call("GET", f"/directories/list?path={tmp_path.parent}&depth=1")
    assert s.recv(100).startswith(b"HTTP/1.1 200")
    for s in stalled:
        s.close()


def test_metadata_is_bounded_and_a_patch_is_quick(daemon):
    box = daemon.create()
    big = {f"k{i}": "v" for i in range(40000)}
    begun = time.monotonic()
    status, e, _ = daemon.ask("PATCH", f"/v1/sandboxes/{box}/metadata", big)
    assert status == 413 and "metadata" in e["message"], e
    assert daemon.ask("POST", "/v1/sandboxes", BOX | {"metadata": big})[0] == 413
    # nor in many small steps
    status = 200
    for n in range(10):
        if (status := daemon.ask("PATCH", f"/v1/sandboxes/{box}/metadata", {f"k{n}-{i}": "v" for i in range(100)})[0]) != 200:
            break
    assert status == 413 and len(daemon.ask("GET", f"/v1/sandboxes/{box}")[1]["metadata"]) <= 128
    # what replaces and deletes is no more than before
    have = list(daemon.ask("GET", f"/v1/sandboxes/{box}")[1]["metadata"])
    assert daemon.ask("PATCH", f"/v1/sandboxes/{box}/metadata", {k: None for k in have})[1]["metadata"] == {}
    assert time.monotonic() - begun < 20


def test_events_of_a_sandbox_are_bounded(daemon):
    """The last forty are kept, whatever its client does."""
    box = daemon.create()

    def events():
        return daemon.ask("GET", f"/v1/sandboxes/{box}/diagnostics/events")[1].splitlines()
    first = events()[0]
    for _ in range(12):
        for what in ("pause?mode=resident", "resume"):
            assert daemon.ask("POST", f"/v1/sandboxes/{box}/{what}")[0] == 202
        daemon.until(box, "Running")
    kept = events()
    assert len(kept) == 40 and first not in kept and "Running" in kept[-1] and "Resuming" in kept[-2], kept


def test_environment_and_extensions_are_bounded(daemon):
    for more in ({"env": {f"K{i}": "" for i in range(5000)}}, {"extensions": {f"k{i}": "" for i in range(5000)}}, {"extensions": {"k": "x" * 200000}}):
        status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX | more)
        assert status == 413, (status, e)
    assert daemon.ask("POST", "/v1/sandboxes", BOX | {"env": {f"K{i}": "v" for i in range(500)}})[0] == 202


def test_requests_that_wait_for_a_sandbox_are_bounded(tmp_path):
    """What is sent to a sandbox that is still made waits for it: 256 requests, and those whose clients left do not count."""
    d = HostDaemon(tmp_path).plan(boot="hang").start({"runtime": {"templates": False, "pending_after_seconds": 1}}, max_connections=4096)
    try:
        status, box, _ = d.ask("POST", "/v1/sandboxes", BOX)
        assert status == 202 and box["status"]["state"] == "Pending"

        def asks():
            s = socket.create_connection(("127.0.0.1", d.port), timeout=WAIT_S)
            s.sendall(f"GET /{box['id']}/44772/ping HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            return s

        def until_open(few, many):
            """So many connections are open, the one that asks among them."""
            end = time.monotonic() + WAIT_S
            while not few <= int(d.ask("GET", "/metrics")[1].split("\nmayfly_http_open_connections ")[1].split()[0]) <= many:
                assert time.monotonic() < end
                time.sleep(0.1)

        for _ in range(3):
            waiting = [asks() for _ in range(256)]
            until_open(256, 300)
            time.sleep(0.5)
            more = asks()
            assert more.recv(100).startswith(b"HTTP/1.1 429"), "one too many"
            for s in waiting + [more]:
                s.close()
            until_open(0, 3)
        last = asks()
        last.settimeout(0.5)
        with pytest.raises(TimeoutError):
            last.recv(1)
        assert d.ask("DELETE", f"/v1/sandboxes/{box['id']}")[0] == 204
        last.settimeout(WAIT_S)
        assert last.recv(100).startswith(b"HTTP/1.1 404")
    finally:
        d.clean()
