# SPDX-License-Identifier: Apache-2.0
"""lifecycle.idlePolicy with monitors that are played by fake/mayfly-vmm: what counts as activity, pause and deletion, wakes by requests. A real guest and the
official client: test_idle.py."""
import concurrent.futures
import http.client
import http.server
import json
import threading
import time

import pytest

from hostdaemon import BOX, HostDaemon

CONF = {"runtime": {"templates": False}, "idle": {"min_timeout_seconds": 1}}


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


def idle(d, **policy):
    return d.create(lifecycle={"idlePolicy": policy})


def count(d, step):
    return [s for _, s in d.steps()].count(step)


def waited(what):
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def events(d, box):
    return d.ask("GET", f"/v1/sandboxes/{box}/diagnostics/events?scope=all")[1]["content"]


def hello(d, box):
    return any(e.get("text") == "hello\n" for e in d.run(box, "hello"))


@pytest.mark.parametrize("policy", [{"idleTimeoutSeconds": 60}, {"onIdle": "pause"}, {"idleTimeoutSeconds": 0, "onIdle": "pause"}, {"idleTimeoutSeconds": 9999, "onIdle": "pause"},
                                    {"idleTimeoutSeconds": 60, "onIdle": "sleep"}, {"wakeOnAccess": 1}, {"other": 1}, {"activeProbe": {"port": 0, "path": "/"}},
                                    {"activeProbe": {"port": 80, "path": "x"}}, {"activeProbe": {"port": 80, "path": "/ HTTP/1.1\r\nX: y"}}, {"activeProbe": {"port": 80, "path": "/" + "x" * 512}},
                                    {"activeProbe": {"port": 80, "path": "/", "timeoutSeconds": 11}}, {"activeProbe": {"port": 80}}])
def test_bad_policies(daemon, policy):
    daemon.start(CONF)
    status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX | {"lifecycle": {"idlePolicy": policy}})
    assert status == 400 and "idlePolicy" in e["message"], e


def test_switched_off(daemon):
    daemon.start(CONF | {"idle": {"enabled": False}})
    status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX | {"lifecycle": {"idlePolicy": {"idleTimeoutSeconds": 60, "onIdle": "pause"}}})
    assert status == 400 and "idle.enabled" in e["message"]


@pytest.mark.parametrize("disk_after", [600, 0])
def test_paused_when_idle_and_woken_by_a_request(daemon, disk_after):
    daemon.start(CONF | {"idle": {"min_timeout_seconds": 1, "disk_after_seconds": disk_after}})
    box = idle(daemon, idleTimeoutSeconds=1, onIdle="pause")
    for turn in range(3):
        daemon.until(box, "Paused")
        assert bool(daemon.monitors()) == bool(disk_after)
        assert hello(daemon, box), "the request that wakes it is answered"
    assert events(daemon, box).count("a request wakes it") == 3
    metrics = daemon.ask("GET", "/metrics")[1]
    assert "mayfly_idle_wakes_total 3" in metrics


def test_from_memory_to_disk_after_a_while(daemon):
    daemon.start(CONF | {"idle": {"min_timeout_seconds": 1, "disk_after_seconds": 1}})
    box = idle(daemon, idleTimeoutSeconds=1, onIdle="pause")
    daemon.until(box, "Paused")
    waited(lambda: not daemon.monitors())
    daemon.until(box, "Paused")
    assert "in memory" in events(daemon, box) and "to disk" in events(daemon, box)
    assert hello(daemon, box)


def test_scarce_memory_pauses_to_disk(daemon):
    daemon.start(CONF | {"limits": {"memory_mib": 300}})
    box = idle(daemon, idleTimeoutSeconds=1, onIdle="pause")
    daemon.until(box, "Paused")
    daemon.settled(0)
    assert hello(daemon, box)


def test_an_open_stream_is_activity(daemon):
    daemon.start(CONF)
    box = idle(daemon, idleTimeoutSeconds=1, onIdle="pause")
    daemon.until(box, "Paused")
    c = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    c.request("GET", f"/{box}/44772/metrics/watch")
    r = c.getresponse()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        assert r.read1(1)
        assert daemon.state(box) == "Running"
    c.sock.close() if c.sock else None
    r.close()
    c.close()
    daemon.until(box, "Paused")


def test_what_only_asks_about_it_is_no_activity(daemon):
    daemon.start(CONF)
    box = idle(daemon, idleTimeoutSeconds=2, onIdle="pause")
    end = time.monotonic() + 60
    while daemon.state(box) == "Running":
        assert time.monotonic() < end
        daemon.ask("GET", f"/v1/sandboxes/{box}/endpoints/80")
        time.sleep(0.1)
    assert daemon.state(box) in ("Pausing", "Paused")


def test_deleted_when_idle(daemon):
    daemon.start(CONF)
    box = idle(daemon, idleTimeoutSeconds=1, onIdle="delete")
    assert daemon.until(box, 404)
    daemon.settled(0)


def test_wake_only_and_no_wake(daemon):
    daemon.start(CONF)
    box = idle(daemon)
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
    daemon.until(box, "Paused")
    assert hello(daemon, box)
    never = idle(daemon, wakeOnAccess=False)
    assert daemon.ask("POST", f"/v1/sandboxes/{never}/pause")[0] == 202
    daemon.until(never, "Paused")
    status, e, head = daemon.ask("POST", f"/{never}/44772/command", {"command": "x"})
    assert (status, e["code"], head["OpenSandbox-Wake"]) == (503, "DOCKER::SANDBOX_NOT_RUNNING", None)
    assert daemon.state(never) == "Paused"
    plain = daemon.create()
    assert daemon.ask("POST", f"/v1/sandboxes/{plain}/pause")[0] == 202
    daemon.until(plain, "Paused")
    assert daemon.ask("POST", f"/{plain}/44772/command", {"command": "x"})[0] == 409


@pytest.mark.parametrize("mode", ["disk", "resident"])
def test_no_request_comes_before_the_thaw(daemon, mode):
    daemon.start(CONF)
    box = idle(daemon)
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause?mode={mode}")[0] == 202
    daemon.until(box, "Paused")
    thaws = count(daemon, "thaw")
    daemon.plan(thaw="later")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(hello, daemon, box)
        waited(lambda: count(daemon, "thaw") > thaws)
        with pytest.raises(concurrent.futures.TimeoutError):
            answer.result(0.5)
        assert count(daemon, "agent") == 0
        daemon.plan(thaw="later", go="yes")
        assert answer.result()


@pytest.mark.parametrize("mode", ["disk", "resident"])
def test_fifty_requests_make_one_resume(daemon, mode):
    daemon.start(CONF)
    box = idle(daemon)
    for turn in range(2):
        assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause?mode={mode}")[0] == 202
        daemon.until(box, "Paused")
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            assert all(pool.map(lambda _: hello(daemon, box), range(50)))
    assert count(daemon, "restore") == (2 if mode == "disk" else 0)
    assert events(daemon, box).count("a request wakes it") == 2


def test_a_request_in_the_middle_of_the_pause(daemon):
    daemon.start(CONF | {"idle": {"min_timeout_seconds": 1, "disk_after_seconds": 0}})
    box = idle(daemon, idleTimeoutSeconds=1, onIdle="pause")
    daemon.plan(snapshot="later")
    waited(lambda: count(daemon, "snapshot"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answers = [pool.submit(hello, daemon, box) for _ in range(5)]
        time.sleep(0.3)
        assert not any(a.done() for a in answers)
        daemon.plan(go="yes", snapshot="later")
        assert all(a.result() for a in answers)
    assert count(daemon, "restore") == 1


def test_a_wake_that_fails_says_ask_again(daemon):
    daemon.start(CONF)
    box = idle(daemon)
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
    daemon.until(box, "Paused")
    daemon.plan(restore="error")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for status, e, head in pool.map(lambda _: daemon.ask("POST", f"/{box}/44772/command", {"command": "x"}), range(5)):
            assert (status, head["OpenSandbox-Wake"], head["Retry-After"]) == (503, "expired", "1")
    assert daemon.state(box) == "Paused"
    daemon.plan()
    assert hello(daemon, box)


def test_a_full_host_says_ask_again(daemon):
    daemon.start(CONF | {"limits": {"memory_mib": 300}})
    box = idle(daemon)
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
    daemon.until(box, "Paused")
    other = daemon.create()
    status, e, head = daemon.ask("POST", f"/{box}/44772/command", {"command": "x"})
    assert (status, head["OpenSandbox-Wake"]) == (503, "expired")
    assert daemon.ask("DELETE", f"/v1/sandboxes/{other}")[0] == 204
    assert hello(daemon, box)


def test_the_mark_is_ours_alone(daemon):
    """An application's header of that name does not reach the client."""
    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(503)
            self.send_header("OpenSandbox-Wake", "expired")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *a):
            pass
    s = http.server.HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=s.serve_forever, daemon=True).start()
    try:
        daemon.start(CONF)
        box = daemon.create()
        status, _, head = daemon.ask("GET", f"/{box}/{s.server_port}/")
        assert status == 503 and head["OpenSandbox-Wake"] is None
    finally:
        s.shutdown()


@pytest.mark.parametrize("answer,active", [(b'{"active":true}', True), (b'{"active":false}', False), (b'{"active":"yes"}', False), (b"[true]", False), (b"x" * 9000, False), (None, False)])
def test_the_probe(daemon, answer, active):
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if answer is None:
                time.sleep(30)
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *a):
            pass
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    s.daemon_threads = True
    threading.Thread(target=s.serve_forever, daemon=True).start()
    try:
        daemon.start(CONF)
        box = idle(daemon, idleTimeoutSeconds=1, onIdle="pause", activeProbe={"port": s.server_port, "path": "/active?x=1", "timeoutSeconds": 1})
        if active:
            waited(lambda: len(asked) >= 3)
            assert daemon.state(box) == "Running" and "idle" not in events(daemon, box)
        else:
            daemon.until(box, "Paused")
        assert set(asked) == {"/active?x=1"}
    finally:
        s.shutdown()


def test_a_policy_outlives_the_daemon_and_is_forked(daemon):
    daemon.start(CONF)
    box = idle(daemon, idleTimeoutSeconds=3, onIdle="pause")
    daemon.end()
    daemon.again()
    status, answer, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/fork", {"count": 1})
    assert status == 202
    for b in (box, answer["items"][0]["sandbox"]["id"]):
        daemon.until(b, "Paused")
        assert hello(daemon, b)
    daemon.end()
    daemon.again()
    daemon.until(box, "Paused")
