# SPDX-License-Identifier: Apache-2.0
"""What no client should send, to the daemon on this host (hostdaemon.py): each is answered quickly and as documented, or cut off, and nobody else
notices. The unit tests http_server, lib_http1, api_multipart and api_event_stream, and the fuzzers, look at the same code closer."""
import concurrent.futures
import http.client
import json
import os
import re
import resource
import socket
import threading
import time

import pytest

from hostdaemon import BOX, HostDaemon
from registrykit import Serving

QUICK_S = 20  # what "quickly" is on a machine that others use, too


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    d = HostDaemon(tmp_path_factory.mktemp("hostile")).start({"runtime": {"templates": False}, "server.api_keys": {"a": "k"}}, header_timeout_seconds=2, body_timeout_seconds=2, idle_timeout_seconds=2)
    d.headers = {"OPEN-SANDBOX-API-KEY": "k"}
    d.box = d.create()
    yield d
    assert d.proc.poll() is None and d.run(d.box, "echo on")[-1]["type"] == "execution_complete", "it is as well as before"
    d.clean()


def talk(daemon, data, more=b"", timeout=QUICK_S):
    """Sends, reads to the end: (status or 0, head, body). Its end stays open: a client that closes it has gone, to this server."""
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=timeout) as s:
        try:
            s.sendall(data)
            if more:
                s.sendall(more)
        except OSError:
            pass
        got = b""
        try:
            while chunk := s.recv(65536):
                got += chunk
        except ConnectionError:
            pass
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]) if head.startswith(b"HTTP/1.") else 0, head.decode(), body


def ours(head, body, code):
    j = json.loads(body)
    return j["code"] == code and j["message"] and "X-Request-ID: " in head


POST = b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nOPEN-SANDBOX-API-KEY: k\r\n"
GET = b"GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\nOPEN-SANDBOX-API-KEY: k\r\n"


@pytest.mark.parametrize("framing", [
    b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", b"Transfer-Encoding: identity\r\n\r\n",
    b"Content-Length: +2\r\n\r\n{}", b"Content-Length: 0x2\r\n\r\n{}", b"Content-Length: -1\r\n\r\n", b"Content-Length: 99999999999999999999\r\n\r\n", b"Content-Length: 2, 2\r\n\r\n{}"])
def test_a_length_that_can_be_read_in_two_ways(daemon, framing):
    status, head, body = talk(daemon, POST + framing, GET + b"\r\n")
    assert status in (400, 413), (status, head, body)
    assert head.count("HTTP/1.") == 1 and b"HTTP/1.1 200" not in body, "what follows is not taken for a request"
    if "X-Request-ID" in head:
        assert ours(head, body, "SANDBOX::INVALID_PARAMETER")


@pytest.mark.parametrize("data,statuses", ids=range(11), argvalues=[
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), (0, 400)), (b"GET\r\n\r\n", (0, 400)), (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", (0, 400, 401, 404, 505)), (b"\r\n" * 50000, (0, 400)),
    (b"GET /v1/sandboxes HTTP/1.1\r\n\r\n", (400, 401)), (b"GET  /v1/sandboxes  HTTP/1.1\r\nHost: x\r\n\r\n", (0, 400, 401, 404)), (GET + b"X-A: b\r\n c\r\n\r\n", (0, 200, 400)), (GET + b"X A: b\r\n\r\n", (0, 400)),
    (GET + b"X-A: \0\r\n\r\n", (0, 200, 400)), (b"A" * 200000, (0, 400, 414, 431)), (b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", (0, 400, 414, 431))])
def test_what_is_no_request(daemon, data, statuses):
    status, head, body = talk(daemon, data)
    assert status in statuses, (status, head, body)


@pytest.mark.parametrize("head", ids=["one", "many"], argvalues=[b"X-A: " + b"a" * 70000 + b"\r\n", b"".join(b"X-%d: " % i + b"a" * 80 + b"\r\n" for i in range(800))])
def test_long_headers(daemon, head):
    status, answer, body = talk(daemon, GET + head + b"\r\n")
    assert status == 431 and ours(answer, body, "SANDBOX::INVALID_PARAMETER")
    status, answer, body = talk(daemon, GET + head * 4 + b"\r\n")
    assert status in (0, 413, 431), "far beyond that the connection ends, or libmicrohttpd answers for itself"


def test_long_bodies(daemon):
    for n in ((1 << 20) + 1, 3 << 20):
        status, head, body = talk(daemon, POST + b"Content-Length: %d\r\n\r\n" % n, b" " * n)
        assert status == 413 and ours(head, body, "SANDBOX::INVALID_PARAMETER"), n
    status, head, body = talk(daemon, POST + b"Content-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n")
    assert status == 413 and "100 Continue" not in head
    status, _, _ = talk(daemon, POST + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65536 + b"\r\n" + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 40)
    assert status in (0, 413)


@pytest.mark.parametrize("begin", [b"", b"GET /v1/sand", GET, POST + b"Content-Length: 100\r\n\r\n{"])
def test_slow_clients_are_cut_off(daemon, begin):
    """One byte now and then does not keep a connection: the deadline is for the whole."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=QUICK_S) as s:
        s.sendall(begin)
        s.settimeout(0.2)
        while time.monotonic() - began < QUICK_S:
            try:
                if not s.recv(1000):
                    break
            except socket.timeout:
                pass
            except ConnectionError:
                break
            try:
                s.send(b"X" if begin else b"")
            except ConnectionError:
                break
        else:
            raise AssertionError("still there")
    assert time.monotonic() - began >= 1.5


def test_an_answer_nobody_reads_holds_nobody_up(daemon):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", daemon.port))
        s.sendall((b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n") * 500)
        assert daemon.ask("GET", "/health")[0] == 200


def test_thousands_of_idle_connections(daemon):
    """They cost a descriptor each and no time; at the limit new ones wait outside, and come in when others leave."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))
    n = min(5000, min(hard, 20000) - 500)
    idle = []
    try:
        for _ in range(n):
            idle.append(socket.create_connection(("127.0.0.1", daemon.port)))
            if len(idle) % 500 == 0:
                began = time.monotonic()
                assert daemon.ask("GET", "/health")[0] == 200 and time.monotonic() - began < QUICK_S
        began = time.monotonic()
        assert daemon.run(daemon.box, "echo on")[-1]["type"] == "execution_complete" and time.monotonic() - began < QUICK_S
    finally:
        for s in idle:
            s.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    end = time.monotonic() + QUICK_S
    while int(daemon.ask("GET", "/metrics")[1].split("\nmayfly_http_open_connections ")[1].split()[0]) > 50:
        assert time.monotonic() < end, "they are gone"
        time.sleep(0.1)


def test_more_connections_than_the_limit(tmp_path):
    d = HostDaemon(tmp_path).start(max_connections=32, idle_timeout_seconds=1, header_timeout_seconds=1)
    try:
        idle = [socket.create_connection(("127.0.0.1", d.port)) for _ in range(100)]
        end = time.monotonic() + QUICK_S
        while True:
            try:
                assert d.ask("GET", "/health", timeout=5)[0] == 200
                break
            except OSError:
                assert time.monotonic() < end, "nobody gets in any more"
        for s in idle:
            s.close()
    finally:
        d.clean()


WAYS = ("..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%2Fetc%2Fpasswd", "....//", "a%00b", "%", "%zz", "%c0%ae%c0%ae", "a/../../b", "\\..\\..", "$(id)", "`id`", ";id", "'", "{}", "%0d%0aX-Evil:1")
PARAMETERS = [(m, p) for p in ("/v1/sandboxes/{}", "/v1/snapshots/{}", "/v1/templates/{}", "/v1/mayfly/templates/{}") for m in ("GET", "DELETE") if not (m == "GET" and "mayfly" in p)] + [
    ("GET", "/v1/sandboxes/{}/endpoints/80"), ("GET", "/v1/sandboxes/BOX/endpoints/{}"), ("GET", "/v1/sandboxes/{}/diagnostics/logs"), ("GET", "/v1/sandboxes/{}/proxy/44772/ping"),
    ("GET", "/v1/sandboxes/BOX/proxy/{}/ping"), ("GET", "/{}/44772/ping"), ("GET", "/BOX/{}/ping"), ("GET", "/BOX/44772/command/status/{}"), ("GET", "/BOX/44772/command/{}/logs"),
    ("DELETE", "/BOX/44772/command?id={}"), ("DELETE", "/BOX/44772/session/{}"), ("GET", "/BOX/44772/code/contexts/{}"), ("GET", "/BOX/44772/v1/filesystem/{}/0/files/info?path=/"),
    ("GET", "/BOX/44772/v1/filesystem/0/{}/files/info?path=/"), ("GET", "/BOX/44772/proxy/{}/"), ("GET", "/v1/pools/{}"), ("GET", "/BOX/44772/pty/{}"), ("GET", "/BOX/44772/v1/isolated/session/{}")]


def found_no_way_out(daemon, method, pattern):
    for way in WAYS:
        path = pattern.replace("BOX", daemon.box).replace("{}", way)
        status, head, body = talk(daemon, f"{method} {path} HTTP/1.1\r\nHost: x\r\nOPEN-SANDBOX-API-KEY: k\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        assert 307 == status or 400 <= status < 600, (path, status, body)
        assert b"root:" not in body and b"uid=" not in body and "X-Evil" not in head, (path, body)
        assert "\nLocation: //" not in head and "\nLocation: http" not in head
        assert status != 500 or b"RUNTIME_ERROR" in body, (path, body)
    assert daemon.state(daemon.box) == "Running"


@pytest.mark.parametrize("method,pattern", PARAMETERS)
def test_every_path_parameter(daemon, method, pattern):
    found_no_way_out(daemon, method, pattern)


def test_every_path_parameter_of_every_route(daemon):
    """As /openapi.json names them, so that a new one is tried, too; the others of the path are good ones (nothing listens on port 1)."""
    good, asked = {"id": "BOX", "port": "1", "name": "x", "uid": "0", "gid": "0", "rest": "a", "table": "sandboxes"}, 0
    for path, ops in daemon.ask("GET", "/openapi.json")[1]["paths"].items():
        names = re.findall(r"\{(\w+)\}", path)
        for at, _ in enumerate(names):
            n = iter(range(len(names)))
            pattern = re.sub(r"\{(\w+)\}", lambda m: "{}" if next(n) == at else good.get(m[1], "x"), path)
            for method in ops:
                found_no_way_out(daemon, method.upper(), pattern)
                asked += 1
    assert asked > 100


@pytest.fixture
def web():
    """A server in the "sandbox" (the fake's dials come to this host): it keeps the request and gives the answer it is told to."""
    class Web:
        answer, seen = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""
    w, s = Web(), socket.create_server(("127.0.0.1", 0))
    w.port = s.getsockname()[1]

    def serve():
        while True:
            try:
                c, _ = s.accept()
            except OSError:
                return
            with c:
                w.seen = b""
                while b"\r\n\r\n" not in w.seen and (chunk := c.recv(65536)):
                    w.seen += chunk
                c.sendall(w.answer)
    threading.Thread(target=serve, daemon=True).start()
    yield w
    s.close()


@pytest.mark.parametrize("line", [b"X-A: b\rX-Evil: 1", b"X-A: b\x0b", b"X-A: \x7f", b"X-Evil : 1", b": 1", b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"X-Forwarded-Host: evil"])
def test_headers_do_not_get_injected_into_a_sandbox(daemon, web, line):
    status, head, body = talk(daemon, f"GET /{daemon.box}/{web.port}/a HTTP/1.1\r\nHost: x\r\n".encode() + line + b"\r\nConnection: close\r\n\r\n")
    names = [h.split(b":")[0].lower() for h in web.seen.split(b"\r\n")[1:] if h]
    assert b"x-evil" not in names and names.count(b"connection") <= 1 and names.count(b"host") <= 1 and b"evil" not in web.seen.replace(b"X-A: b X-Evil", b""), web.seen
    assert b"\n" not in web.seen.replace(b"\r\n", b"") and b"\r" not in web.seen.replace(b"\r\n", b"")


@pytest.mark.parametrize("target", [b"/a%0d%0aX-Evil:%201", b"/a?b=%0d%0aX-Evil:1", b"/a%20HTTP/1.1%0d%0a", b"/\x01", b"/a\tb"])
def test_targets_do_not_get_injected_into_a_sandbox(daemon, web, target):
    status, _, _ = talk(daemon, f"GET /{daemon.box}/{web.port}".encode() + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert status in (0, 200, 400)
    if status == 200:
        assert web.seen.split(b"\r\n")[0] == b"GET " + target + b" HTTP/1.1" and b"\r\nX-Evil" not in web.seen


@pytest.mark.parametrize("answer", ids=range(10), argvalues=[b"HTTP/1.1 200 OK\r\nX-A: b\rSet-Cookie: evil=1\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\nA B: c\r\n\r\n", b"HTTP/1.1 200 OK\r\n folded\r\n\r\n",
                                    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 999 X\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100000 + b"\r\n", b""])
def test_a_sandbox_does_not_answer_for_the_server(daemon, web, answer):
    web.answer = answer
    status, head, body = talk(daemon, f"GET /{daemon.box}/{web.port}/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert status == 502 and ours(head, body, "BACKEND_RESPONSE_FAILED"), (status, head, body[:300])
    assert "evil" not in head


def test_an_offer_to_upgrade_may_be_left_alone(daemon, web):
    web.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    offer = b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n\r\n"
    status, _, body = talk(daemon, f"GET /{daemon.box}/{web.port}/a HTTP/1.1\r\nHost: x\r\n".encode() + offer)
    assert status == 200 and body == b"ok" and b"h2c" not in web.seen and b"HTTP2" not in web.seen.upper(), web.seen


def test_what_a_sandbox_says_about_itself_is_not_passed_on(daemon, web):
    web.answer = b"HTTP/1.1 200 OK\r\nServer: mine\r\nX-Request-ID: mine\r\nDate: never\r\nAccess-Control-Allow-Origin: evil\r\nConnection: X-Hop\r\nX-Hop: 1\r\nContent-Length: 2\r\n\r\nok"
    status, head, body = talk(daemon, f"GET /{daemon.box}/{web.port}/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert status == 200 and body == b"ok"
    for word in ("mine", "never", "evil", "X-Hop", "Server"):
        assert word not in head


def test_someone_elses_sandbox_is_not_there(daemon):
    gone = daemon.create()
    daemon.ask("DELETE", f"/v1/sandboxes/{gone}")
    for box in (gone, daemon.box.upper() if daemon.box.upper() != daemon.box else "X" * 36, daemon.box[:-1], daemon.box + "0", daemon.box.replace("-", ""), "0" * 36):
        for path in (f"/v1/sandboxes/{box}", f"/v1/sandboxes/{box}/endpoints/80", f"/v1/sandboxes/{box}/proxy/44772/ping", f"/v1/sandboxes/{box}/proxy/18080/policy", f"/{box}/44772/ping"):
            status, body, _ = daemon.ask("GET", path)
            assert status == 404, (path, body)


def test_many_at_once_with_all_of_it(daemon):
    """The same, from many sides, while others work."""
    junk = [b"\xff" * 5000, POST + b"Content-Length: 5\r\n\r\n{", b"GET / HTTP/1.1\r\n", os.urandom(2000), POST + b"Content-Length: 2\r\n\r\n{}"]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        noise = [pool.submit(talk, daemon, junk[i % len(junk)]) for i in range(400)]
        for _ in range(20):
            assert daemon.run(daemon.box, "echo on")[-1]["type"] == "execution_complete"
        for n in noise:
            assert n.result()[0] in (0, 400, 401, 404)


def test_silent_connections_keep_nobody_out(tmp_path):
    """As many connections as there may be, all silent, and then as many again: a client is served at once, one that showed a key stays."""
    d = HostDaemon(tmp_path).start({"runtime": {"templates": False}}, api_key="k", max_connections=64, header_timeout_seconds=300)
    try:
        known = http.client.HTTPConnection("127.0.0.1", d.port, timeout=10)

        def asks(c):
            c.request("GET", "/v1/sandboxes", headers={"OPEN-SANDBOX-API-KEY": "k"})
            assert (a := c.getresponse()).status == 200
            return a.read()

        asks(known)
        silent = [socket.create_connection(("127.0.0.1", d.port)) for _ in range(160)]
        new = http.client.HTTPConnection("127.0.0.1", d.port, timeout=10)
        asks(new)
        asks(known)
        for s in silent:
            s.close()
    finally:
        d.clean()


def test_one_address_has_its_share_of_silence(tmp_path):
    d = HostDaemon(tmp_path).start({"runtime": {"templates": False}}, api_key="k", max_connections_per_address=16, header_timeout_seconds=300)
    try:
        silent = [socket.create_connection(("127.0.0.1", d.port)) for _ in range(40)]
        d.headers = {"OPEN-SANDBOX-API-KEY": "k"}
        end = time.monotonic() + 20
        while int(re.search(r"^mayfly_http_open_connections (\d+)", d.ask("GET", "/metrics")[1], re.M)[1]) > 18:
            assert time.monotonic() < end
        for s in silent:
            s.close()
    finally:
        d.clean()


# ---- image names lead nowhere that the operator did not open

def fails(daemon, uri):
    """The message of a create that fails because of its image."""
    status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX | {"image": {"uri": uri}})
    if status == 202:
        daemon.until(e["id"], "Failed")
        return daemon.ask("GET", f"/v1/sandboxes/{e['id']}")[1]["status"]["message"]
    return e["message"]


@pytest.fixture
def puller(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


def test_an_image_name_does_not_reach_the_hosts_loopback(puller):
    registry = Serving(lambda h: h.reply(404))
    try:
        puller.start({"runtime": {"templates": False}})
        for host in ("localhost", "127.0.0.1", "[::1]"):
            assert "private address" in fails(puller, f"{host}:{registry.port}/a/b:1")
        assert not registry.seen, "nobody was asked"
        puller.end()
        puller.start({"runtime": {"templates": False}, "images": {"private_registries": f"registry.test localhost:{registry.port}"}})
        assert "private address" not in fails(puller, f"localhost:{registry.port}/a/b:1")
        assert registry.seen
    finally:
        registry.close()


def test_slow_registries_of_one_key_leave_a_place(puller):
    """Eight pulls that never end, of one key: the image of another key is pulled all the same."""
    slow, quick = Serving(), Serving(lambda h: h.reply(404))
    slow.answer = slow.hang
    try:
        puller.start({"runtime": {"templates": False}, "server.keys.one": {"key": "k1", "namespace": "one"}, "server.keys.two": {"key": "k2", "namespace": "two"},
                      "images": {"private_registries": f"127.0.0.1:{slow.port} 127.0.0.1:{quick.port}"}})
        puller.headers = {"OPEN-SANDBOX-API-KEY": "k1"}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for i in range(8):
                pool.submit(puller.ask, "POST", "/v1/sandboxes", BOX | {"image": {"uri": f"127.0.0.1:{slow.port}/a/b{i}:1"}})
            end = time.monotonic() + QUICK_S
            while len(slow.seen) < 3:
                assert time.monotonic() < end
                time.sleep(0.05)
            puller.headers = {"OPEN-SANDBOX-API-KEY": "k2"}
            assert "404" in fails(puller, f"127.0.0.1:{quick.port}/a/b:1") and quick.seen
            assert len(slow.seen) == 3
            slow.gone.set()
    finally:
        slow.close()
        quick.close()
