# SPDX-License-Identifier: Apache-2.0
"""The daemon by itself, its monitors played by fake/mayfly-vmm (hostdaemon.py): start, configuration, keys, admission, idempotency, expiry,
every step of a launch, a pause and a resume failing in every way, adoption, an orderly end."""
import concurrent.futures
import contextlib
import datetime
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import sqlite3
import subprocess
import time

import pytest

from hostdaemon import BOX, PROGRAM, WAIT_S, HostDaemon, kill
from registrykit import free_port

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
NO_TEMPLATES = {"runtime": {"templates": False}}


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


def mayflyd(*args, **kw):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=30, **kw)


# ---- configuration and start

def test_a_fresh_configuration_is_a_good_one(tmp_path):
    f = tmp_path / "c.toml"
    assert mayflyd("init-config", f).returncode == 0
    assert mayflyd("--config", f, "--check").stdout == "ok\n"
    r = mayflyd("init-config", f)
    assert r.returncode == 1 and "exists" in r.stderr
    # an option is not the name of a file
    assert mayflyd("init-config", "--help", cwd=tmp_path).stdout == mayflyd("--help").stdout
    assert mayflyd("init-config", "--check", cwd=tmp_path).returncode == mayflyd("init-config", "--force", cwd=tmp_path).returncode == 2
    assert [p.name for p in tmp_path.iterdir()] == ["c.toml"]
    # another key each time, for its owner only
    text, other = f.read_text(), mayflyd("init-config").stdout
    key = re.search(r'^api_key = "([0-9a-f]{48})"$', text, re.M)[1]
    assert key not in other and re.sub("[0-9a-f]{48}", key, other) == text
    assert f.stat().st_mode & 0o777 == (0o640 if f.stat().st_gid else 0o600)


def test_the_page_of_the_configuration_has_every_key():
    """docs/configuration.md shows the file that init-config writes. RECORD=1 writes it there again."""
    page = TOP / "docs" / "configuration.md"
    now = re.sub('^api_key = ".*"$', 'api_key = "A KEY OF YOUR OWN"', mayflyd("init-config").stdout, flags=re.M)
    text = re.sub(r"(?<=^```toml\n).*?(?=^```$)", lambda _: now, page.read_text(), flags=re.M | re.S)
    if os.environ.get("RECORD"):
        page.write_text(text)
    assert page.read_text() == text, "RECORD=1 make e2e T=page_of_the_configuration"


@pytest.mark.parametrize("text,says", [
    ("[server]\nport = many\n", "line 2"),
    ("[server]\nport = 70000\n", "line 2: port must be from 0 to 65535"),
    ("[server]\nprot = 1\n", "unknown key prot"),
    ("[sever]\n", "unknown table [sever]"),
    ("[server]\nhost = \"0.0.0.0\"\n", "there is no key"),
    ("[server]\nhost = \"::\"\n", "there is no key"),
    ("[server]\nlog_level = \"loud\"\n", "log_level"),
    ("[runtime]\nstate_dir = \"here\"\n", "absolute"),
    ("[server.api_keys]\na = \"\"\n", "an empty key"),
    ("[server]\nhost = \"0.0.0.0\"\ninsecure = true\n", "needs a key"),
    ("[server]\nport = 1 2\n", "something follows"),
])
def test_a_bad_configuration_is_refused_with_its_place(tmp_path, text, says):
    f = tmp_path / "c.toml"
    f.write_text(text)
    for more in (["--check"], ["--no-jail", "--no-jail"]):
        r = mayflyd("--config", f, *more)
        assert r.returncode == 2 and says in r.stderr, r.stderr


@pytest.mark.parametrize("text", ['[server]\nhost = "0.0.0.0"\napi_key = "k"\n',
                                  '[server]\nhost = "::"\n[server.api_keys]\nci = "k"\n', '[server]\nhost = "127.0.0.2"\n'])
def test_listening_elsewhere_wants_a_key(tmp_path, text):
    f = tmp_path / "c.toml"
    f.write_text(text)
    assert mayflyd("--config", f, "--check").stdout == "ok\n"


def test_a_second_daemon_is_kept_out(daemon):
    daemon.start()
    r = mayflyd("--config", daemon.config_path, "--no-jail", "--no-jail")
    assert r.returncode == 1 and "another mayflyd uses this state" in r.stderr
    assert daemon.ask("GET", "/health")[0] == 200
    # the lock goes with its owner, however it went
    daemon.end()
    daemon.again()


def test_keys_have_names_and_any_of_them_will_do(daemon):
    daemon.start({"server.api_keys": {"ci": "key of ci", "ops": "key-of-ops"}}, api_key="first")
    for key in ("first", "key of ci", "key-of-ops"):
        assert daemon.ask("GET", "/v1/sandboxes", headers={"OPEN-SANDBOX-API-KEY": key})[0] == 200
    for path in ("/v1/sandboxes", "/sandboxes", "/v1/no/such", "/metrics", "/v1/metrics/events", "/v1/mayfly/templates"):
        assert daemon.ask("GET", path)[:2] == (401, {"code": "MISSING_API_KEY", "message": daemon.ask("GET", path)[1]["message"]})
        for key in ("firs", "first x", "FIRST", "x" * 300):
            status, e, _ = daemon.ask("GET", path, headers={"OPEN-SANDBOX-API-KEY": key})
            assert (status, e["code"]) == (401, "INVALID_API_KEY"), key
    for path in ("/health", "/version", "/openapi.json", "/docs", "/redoc"):
        assert daemon.ask("GET", path)[0] == 200
    # the way into a sandbox needs none, but not with a way out of it
    assert daemon.ask("GET", "/v1/sandboxes/x/proxy/80/a")[0] == 404
    assert daemon.ask("GET", "/v1/sandboxes/x/proxy/80/../../../sandboxes")[0] == 401


def test_without_a_key_any_is_ignored(daemon):
    daemon.start()
    assert daemon.ask("GET", "/v1/sandboxes", headers={"OPEN-SANDBOX-API-KEY": "whatever"})[0] == 200


def test_logs_are_json_when_told(daemon):
    daemon.start(log_json=True)
    box = daemon.create()
    daemon.ask("GET", f"/v1/sandboxes/{box}", headers={"X-Request-ID": "my-own-request"})
    daemon.ask("DELETE", f"/v1/sandboxes/{box}")
    lines = [json.loads(line) for line in daemon.log_path.read_text().splitlines()]
    assert any(box in line["msg"] for line in lines) and any("request=my-own-request" in line["msg"] for line in lines), lines


def test_an_orderly_end_finishes_what_runs(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.plan(boot="hang")
    watch = socket.create_connection(("127.0.0.1", daemon.port))
    watch.sendall(f"GET /{box}/44772/metrics/watch HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert watch.recv(65536).startswith(b"HTTP/1.1 200")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with socket.create_connection(("127.0.0.1", daemon.port)) as s:
            # half a request is there when the signal comes: it is still answered
            s.sendall(b"GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\n")
            pool.submit(daemon.ask, "GET", "/health").result()
            daemon.proc.send_signal(signal.SIGTERM)
            end = time.monotonic() + 30
            while "ending; sandboxes go on" not in daemon.log_path.read_text():
                assert time.monotonic() < end
            s.sendall(b"\r\n")
            assert s.recv(100).startswith(b"HTTP/1.1 200")
    assert daemon.proc.wait(30) == 0
    assert len(daemon.monitors()) == 1, "sandboxes go on"
    # what would never end by itself is ended, and not cut
    assert b"".join(iter(lambda: watch.recv(65536), b"")).endswith(b"0\r\n\r\n")
    watch.close()
    daemon.plan().again()
    assert daemon.state(box) == "Running" and daemon.run(box, "echo on")[-1]["type"] == "execution_complete"


def hup(daemon, says):
    """SIGHUP, and what the log says then, as far as `says`."""
    at = daemon.log_path.stat().st_size
    daemon.proc.send_signal(signal.SIGHUP)
    end = time.monotonic() + 30
    while not re.search(says, text := daemon.log_path.read_text()[at:]):
        assert daemon.proc.poll() is None and time.monotonic() < end, text
        time.sleep(0.01)
    return text


def test_the_configuration_is_read_anew_on_hup_and_nothing_is_cut(daemon):
    daemon.start(NO_TEMPLATES | {"server.api_keys": {"old": "old"}}, port=(port := free_port()))
    daemon.headers = {"OPEN-SANDBOX-API-KEY": "old"}
    box = daemon.create()
    stream = socket.create_connection(("127.0.0.1", port))
    stream.sendall(f"GET /{box}/44772/metrics/watch HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    got = stream.recv(65536)
    assert got.startswith(b"HTTP/1.1 200")

    # one key goes, another comes, a limit is lower: at once. What only a start can change is named and stays.
    more = NO_TEMPLATES | {"server.api_keys": {"new": "new"}, "limits": {"max_sandboxes": 1}}
    daemon.config(more, port=port + 1 if port < 65535 else port - 1, log_level="debug")
    text = hup(daemon, "read anew")
    assert "server.port is taken at the next start" in text and "host" not in text, text
    assert daemon.ask("GET", "/v1/sandboxes")[:2][0] == 401
    daemon.headers = {"OPEN-SANDBOX-API-KEY": "new"}
    assert daemon.ask("POST", "/v1/sandboxes", BOX)[0] == 429

    # what is wrong is said with its line, and nothing of it is taken
    daemon.config_path.write_text("[server]\nport = many\n")
    assert "line 2" in hup(daemon, "stays as it is")
    # nor what is right by itself and not with what stays: no key for a host that others reach
    for text in ("[limits]\nmax_sandboxes = 0\n", '[server]\nhost = "0.0.0.0"\n'):
        daemon.config_path.write_text(text)
        hup(daemon, "stays as it is")
    daemon.config_path.unlink()
    hup(daemon, "stays as it is")
    assert daemon.ask("POST", "/v1/sandboxes", BOX)[0] == 429 and daemon.ask("GET", "/v1/sandboxes", headers={"OPEN-SANDBOX-API-KEY": "old"})[0] == 401

    daemon.config(NO_TEMPLATES, port=port)
    hup(daemon, "read anew")
    daemon.headers = {}
    daemon.create()
    stream.settimeout(30)
    assert stream.recv(65536), "the stream of before goes on"
    stream.close()
    assert daemon.end(signal.SIGTERM) == 0


# ---- what a create can meet

@pytest.mark.parametrize("step,how,says", [
    ("prepare", "error", "starting the VMM"), ("prepare", "die", "starting the VMM"), ("prepare", "junk", "starting the VMM"),
    ("boot", "error", "booting"), ("boot", "die", "booting"), ("boot", "junk", "booting"),
    ("setup", "error", "starting the entrypoint"), ("setup", "die", "starting the entrypoint"), ("setup", "junk", "starting the entrypoint"),
])
def test_a_step_that_fails_is_named_and_nothing_is_left(daemon, step, how, says):
    daemon.start(NO_TEMPLATES).plan(**{step: how})
    status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX)
    assert (status, e["code"]) == (500, "DOCKER::SANDBOX_START_FAILED") and e["message"].startswith(says), e
    assert daemon.ask("GET", "/v1/sandboxes")[1]["items"] == []
    daemon.settled(0)
    daemon.cleared("blobs/*")
    assert daemon.plan().run(daemon.create(), "echo next")[-1]["type"] == "execution_complete"


@pytest.mark.parametrize("step,how,says", [("prepare", "hang", "starting the VMM"), ("boot", "hang", "booting"), ("ready", "never", "waiting for the agent"),
                                           ("ready", "junk", "waiting for the agent"), ("setup", "hang", "starting the entrypoint")])
def test_one_deadline_stands_over_every_step(daemon, step, how, says):
    daemon.start({"runtime": {"templates": False, "create_timeout_seconds": 4, "blank_pool": 0 if step == "prepare" else 1}})
    if step != "prepare":
        # a monitor that waits, so that no start of a process stands in the two seconds
        first, end = daemon.create(), time.monotonic() + 60
        while "\nmayfly_blank_vms 1" not in daemon.ask("GET", "/metrics")[1]:
            assert time.monotonic() < end
            time.sleep(0.05)
    daemon.plan(**{step: how})
    status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX)
    assert (status, e["code"]) == (504, "DOCKER::SANDBOX_START_FAILED") and e["message"].startswith(says + ": not done within 4 s"), e
    if step != "prepare":
        assert daemon.state(first) == "Running"


def test_a_monitor_that_takes_a_restore_and_never_answers(daemon):
    """A template's, at a create: its step has a deadline, which is not the one that waits for registries."""
    daemon.start({"runtime": {"step_timeout_seconds": 2}})
    first, end = daemon.create(), time.monotonic() + 60
    while [t["state"] for t in daemon.ask("GET", "/v1/mayfly/templates")[1]["items"]] != ["Ready"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    for step, says in (("restore", "restoring"), ("ready", "waiting for the agent"), ("setup", "starting the entrypoint")):
        daemon.plan(**{step: "never" if step == "ready" else "hang"})
        status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX, timeout=25)
        assert (status, e["code"]) == (504, "DOCKER::SANDBOX_START_FAILED") and e["message"] == f"{says}: not done within 2 s", e
    daemon.plan()
    assert daemon.state(first) == "Running" and daemon.run(daemon.create(), "echo next")[-1]["type"] == "execution_complete"
    daemon.settled(2)


def test_what_takes_long_is_pending_and_ping_is_held(daemon):
    daemon.start({"runtime": {"templates": False, "pending_after_seconds": 1, "create_timeout_seconds": 5}}).plan(ready="never")
    status, b, _ = daemon.ask("POST", "/v1/sandboxes", BOX)
    assert status == 202 and b["status"]["state"] == "Pending" and b["status"]["message"] in ("waiting for the agent", "starting the VMM", "booting"), b
    status, e, _ = daemon.ask("GET", f"/{b['id']}/44772/ping")
    assert status == 409 and e["code"] == "DOCKER::SANDBOX_NOT_RUNNING", "it was held until it failed"
    status, b, _ = daemon.ask("GET", f"/v1/sandboxes/{b['id']}")
    assert b["status"]["state"] == "Failed" and "waiting for the agent: not done within 5 s" in b["status"]["message"]


def test_a_broken_template_is_dropped_and_the_next_create_boots(daemon):
    daemon.start()
    daemon.create()
    end = time.monotonic() + 60
    while [t["state"] for t in daemon.ask("GET", "/v1/mayfly/templates")[1]["items"]] != ["Ready"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    (broken,) = daemon.ask("GET", "/v1/mayfly/templates")[1]["items"]
    daemon.plan(restore="error")
    box = daemon.create()
    assert [s for _, s in daemon.steps()].count("restore") == 1
    assert "origin: boot" in daemon.ask("GET", f"/v1/sandboxes/{box}/diagnostics/inspect")[1]
    assert broken["id"] not in [t["id"] for t in daemon.ask("GET", "/v1/mayfly/templates")[1]["items"]]


def test_no_image_says_which(daemon):
    daemon.start()
    status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX | {"image": {"uri": "localhost:1/no/such:1"}})
    assert (status, e["code"]) == (500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED") and "no/such" in e["message"], e
    assert daemon.ask("GET", "/v1/sandboxes")[1]["items"] == []


def test_a_client_that_gives_up_leaves_a_sandbox_that_can_be_found(daemon):
    daemon.start(NO_TEMPLATES).plan(boot="hang")
    with pytest.raises(OSError):
        daemon.ask("POST", "/v1/sandboxes", BOX, timeout=1)
    (box,) = daemon.ask("GET", "/v1/sandboxes")[1]["items"]
    assert box["status"]["state"] == "Pending"
    assert daemon.ask("DELETE", f"/v1/sandboxes/{box['id']}")[0] == 204
    daemon.settled(0)


# ---- admission

@pytest.mark.parametrize("limits,says", [({"max_sandboxes": 2}, "2 sandboxes"), ({"memory_mib": 512}, "256 MiB of memory requested, 0 MiB free of 512"),
                                         ({"disk_reserve_mib": 1 << 29}, "MiB of disk")])
def test_a_full_host_says_so_and_when_to_ask_again(daemon, limits, says):
    daemon.start({"limits": limits})
    made = [] if "disk_reserve_mib" in limits else [daemon.create(), daemon.create()]
    status, e, head = daemon.ask("POST", "/v1/sandboxes", BOX)
    assert (status, e["code"]) == (429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED") and says in e["message"] and int(head["Retry-After"]) > 0, e
    assert "mayfly_sandboxes_refused_full_total 1" in daemon.ask("GET", "/metrics")[1]
    assert len(daemon.ask("GET", "/v1/sandboxes")[1]["items"]) == len(made)
    if made:
        # what is paused costs no memory; what is gone costs nothing
        daemon.ask("DELETE", f"/v1/sandboxes/{made[0]}")
        daemon.create()


def test_the_heaviest_writer_is_paused_when_the_disk_is_nearly_full(daemon):
    """Not the one that was there first, and not one that writes little; the neighbour runs on, and the paused one resumes."""
    daemon.start({"limits": {"disk_reserve_mib": 0}} | NO_TEMPLATES)
    blobs = daemon.dir / "state" / "blobs"
    quiet = daemon.create()
    before = set(blobs.glob("*.data"))
    loud = daemon.create()
    (layer,) = set(blobs.glob("*.data")) - before
    daemon.reload({"limits": {"disk_reserve_mib": 1 << 29}} | NO_TEMPLATES)
    end = time.monotonic() + WAIT_S
    with open(layer, "r+b") as f:  # as its monitor would; the size of the file stays
        at = 0
        while daemon.state(loud) == "Running":
            assert time.monotonic() < end and at < 60, daemon.log()
            f.seek(at << 20)
            f.write(b"w" * (1 << 20))
            f.flush()
            at += 1
            time.sleep(0.25)
    assert daemon.state(loud) in ("Pausing", "Paused") and daemon.state(quiet) == "Running"
    daemon.until(loud, "Paused")
    summary = daemon.ask("GET", f"/v1/sandboxes/{loud}/diagnostics/events")[1]
    assert "the disk of this host is nearly full" in str(summary), summary
    assert "mayfly_sandboxes_paused_for_disk_total 1" in daemon.ask("GET", "/metrics")[1]
    daemon.reload({"limits": {"disk_reserve_mib": 0}} | NO_TEMPLATES)
    assert daemon.ask("POST", f"/v1/sandboxes/{loud}/resume")[0] == 202
    daemon.until(loud, "Running")


def test_memory_that_guests_gave_back_is_counted(daemon):
    """Each monitor says how much it is so far. One that lies does not get far."""
    daemon.start(NO_TEMPLATES).plan(ready=["given 1000 5000 5000", "given 0 300", f"given {1 << 63}"])
    for total in (5000, 5300, 5300 + (64 << 28)):
        daemon.create()
        end = time.monotonic() + WAIT_S
        while f"mayfly_memory_given_back_bytes_total {total}\n" not in (said := daemon.ask("GET", "/metrics")[1]):
            assert time.monotonic() < end, said
            time.sleep(0.05)


def test_a_changed_disk_limit_is_told_to_running_sandboxes(daemon):
    """One whose writes wait at its limit cannot be paused or snapshotted: nothing else would tell it."""
    def told(n):
        end = time.monotonic() + WAIT_S
        while (seen := sum(what == "disk-limit" for _, what in daemon.steps())) < n:
            assert time.monotonic() < end, daemon.log()
            time.sleep(0.05)
        assert seen == n
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    told(0)
    daemon.reload({"limits": {"sandbox_disk_mib": 100}} | NO_TEMPLATES)
    told(1)
    daemon.reload({"limits": {"sandbox_disk_mib": 0}} | NO_TEMPLATES)
    told(2)
    # a new daemon does not know what the one before it told
    daemon.end()
    daemon.start({"limits": {"sandbox_disk_mib": 100}} | NO_TEMPLATES)
    daemon.until(box, "Running")
    told(3)
    # nor does one that has no limit
    daemon.end()
    daemon.start(NO_TEMPLATES)
    daemon.until(box, "Running")
    told(4)
    assert daemon.run(box, "echo on")[-1]["type"] == "execution_complete"


def test_processors_are_given_away_up_to_a_limit(daemon):
    daemon.start({"limits": {"cpu_overcommit": 1}})
    n = os.sysconf("SC_NPROCESSORS_ONLN")
    for _ in range(n):
        daemon.create()
    status, e, head = daemon.ask("POST", "/v1/sandboxes", BOX)
    assert (status, e["code"]) == (429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED") and int(head["Retry-After"]) > 0 and "CPU" in e["message"], e


def test_creates_take_their_turn(daemon):
    """So many make their VM at one time (turn.h), the next waits and says so; one that ends or takes long lets it in."""
    daemon.start({"runtime": {"templates": False, "pending_after_seconds": 1, "step_timeout_seconds": 20}}).plan(ready="never")
    n = 4 * os.sysconf("SC_NPROCESSORS_ONLN")
    with concurrent.futures.ThreadPoolExecutor(n + 1) as pool:
        boxes = list(pool.map(lambda _: daemon.create(), range(n)))
    end = time.monotonic() + 60
    while [s for _, s in daemon.steps()].count("ready") < n:
        assert time.monotonic() < end, daemon.steps()
        time.sleep(0.02)
    daemon.plan()
    status, b, _ = daemon.ask("POST", "/v1/sandboxes", BOX)
    assert status == 202 and b["status"]["state"] == "Pending" and b["status"]["message"] == "waiting for its turn", b
    gone = daemon.ask("POST", "/v1/sandboxes", BOX)[1]
    assert daemon.ask("DELETE", f"/v1/sandboxes/{gone['id']}")[0] == 204, "one that waits can be deleted"
    assert daemon.ask("DELETE", f"/v1/sandboxes/{boxes[0]}")[0] == 204
    daemon.until(b["id"], "Running")
    daemon.plan(ready="never")
    daemon.create()
    daemon.plan()
    box = daemon.create()
    daemon.until(box, "Running")
    assert [daemon.state(b) for b in boxes[1:]] == ["Pending"] * (n - 1), "they hang, and nobody waits for them"


def test_a_create_gives_its_place_away_when_its_machine_is_made(daemon):
    """What is left is its record. While that is written, however long it takes, others make their machines."""
    n = 4 * os.sysconf("SC_NPROCESSORS_ONLN") + 2
    if n > 64:
        pytest.skip("so many monitors at once take longer than the database may be held")
    daemon.start({"runtime": {"templates": False, "blank_pool": n}})
    box, end = daemon.create(), time.monotonic() + 60
    while f"\nmayfly_blank_vms {n}\n" not in daemon.ask("GET", "/metrics")[1]:
        assert time.monotonic() < end, daemon.log()
        time.sleep(0.05)
    with contextlib.closing(sqlite3.connect(daemon.dir / "state" / "state.db", isolation_level=None)) as db, concurrent.futures.ThreadPoolExecutor(n) as pool:
        db.execute("BEGIN IMMEDIATE")
        end = time.monotonic() + 8  # the daemon waits ten seconds for the database
        made = [pool.submit(daemon.create) for _ in range(n)]
        while [s for _, s in daemon.steps()].count("setup") < n + 1:
            assert time.monotonic() < end, ("too slow, or they keep their places", daemon.steps())
            time.sleep(0.02)
        assert not any(m.done() for m in made), "nobody is told before the record is written"
        db.execute("ROLLBACK")
        boxes = [m.result() for m in made]
    assert {daemon.state(b) for b in [box, *boxes]} == {"Running"}
    assert re.search(r'mayfly_phase_seconds_count\{phase="commit"\} %d\n' % (n + 1), daemon.ask("GET", "/metrics")[1])


# ---- idempotency

def test_one_key_is_one_sandbox(daemon):
    daemon.start({"server.api_keys": {"a": "key-a", "b": "key-b"}})
    daemon.headers = {"OPEN-SANDBOX-API-KEY": "key-a", "Idempotency-Key": "once"}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: daemon.ask("POST", "/v1/sandboxes", BOX), range(8)))
    assert {a[0] for a in answers} == {202} and len({a[1]["id"] for a in answers}) == 1
    box = answers[0][1]["id"]
    daemon.end()
    daemon.again()
    assert daemon.create() == box, "the next daemon knows it"
    assert daemon.ask("POST", "/v1/sandboxes", BOX, {"OPEN-SANDBOX-API-KEY": "key-b"})[1]["id"] != box, "someone else's key is another"
    assert daemon.ask("POST", "/v1/sandboxes", BOX, {"Idempotency-Key": "twice"})[1]["id"] != box
    daemon.ask("DELETE", f"/v1/sandboxes/{box}")
    assert daemon.create() != box, "what is deleted is not handed out again"


def test_a_key_holds_for_24_hours_whatever_the_body_says(daemon, tmp_path):
    step = stepped_clock(daemon, tmp_path)
    daemon.start(NO_TEMPLATES)
    daemon.headers = {"Idempotency-Key": "k"}
    box = daemon.create(metadata={"a": "b"})
    status, again, _ = daemon.ask("POST", "/v1/sandboxes", BOX | {"metadata": {"a": "other"}, "timeout": 60})
    assert status == 202 and again["id"] == box and again["metadata"] == {"a": "b"} and "expiresAt" not in again, again
    assert daemon.ask("POST", "/v1/sandboxes", b"[")[:2] == (202, again), "the key is looked at first"
    step.write_text(str(24 * 3600 - 60))
    assert daemon.create() == box
    step.write_text(str(24 * 3600 + 60))
    second = daemon.create()
    assert second != box and daemon.state(box) == "Running" and daemon.create() == second


def test_a_failed_create_leaves_its_key_free(daemon):
    daemon.start(NO_TEMPLATES).plan(boot="error")
    head = {"Idempotency-Key": "k"}
    assert daemon.ask("POST", "/v1/sandboxes", BOX, head)[0] == 500
    daemon.plan()
    assert daemon.ask("POST", "/v1/sandboxes", BOX, head)[0] == 202


def test_a_create_cut_short_by_a_kill_leaves_its_key_free(daemon):
    """Its client never heard of it: the same request, sent again, is another sandbox and not the one that was not made."""
    daemon.start(NO_TEMPLATES).plan(boot="hang")
    head = {"Idempotency-Key": "k"}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        lost = pool.submit(daemon.ask, "POST", "/v1/sandboxes", BOX, head)
        end = time.monotonic() + 30
        while "boot" not in (step for _, step in daemon.steps()):
            assert time.monotonic() < end
            time.sleep(0.01)
        daemon.end()
        with pytest.raises((OSError, http.client.HTTPException)):
            lost.result()
    daemon.plan().again()
    [cut] = daemon.ask("GET", "/v1/sandboxes")[1]["items"]
    status, made, _ = daemon.ask("POST", "/v1/sandboxes", BOX, head)
    assert cut["status"]["state"] == "Failed" and status == 202 and made["id"] != cut["id"], (cut, status, made)
    assert daemon.run(made["id"], "echo on")[-1]["type"] == "execution_complete"
    assert daemon.ask("POST", "/v1/sandboxes", BOX, head)[1]["id"] == made["id"]


# ---- time

def iso(seconds):
    return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)).isoformat()


def test_without_timeout_it_stays_until_it_is_deleted(daemon):
    daemon.start()
    for more in ({}, {"timeout": None}):
        box = daemon.create(**more)
        b = daemon.ask("GET", f"/v1/sandboxes/{box}")[1]
        assert "expiresAt" not in b
        status, e, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/renew-expiration", {"expiresAt": iso(100)})
        assert (status, e["code"]) == (409, "DOCKER::INVALID_EXPIRATION")


def test_the_longest_timeout_is_the_hosts_to_say(daemon):
    daemon.start(max_sandbox_timeout_seconds=120)
    status, e, _ = daemon.ask("POST", "/v1/sandboxes", BOX | {"timeout": 121})
    assert (status, e["code"]) == (400, "SANDBOX::INVALID_PARAMETER") and "120" in e["message"], e
    box = daemon.create(timeout=120)
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/renew-expiration", {"expiresAt": iso(3600)})[0] == 200, "a renewal is not capped by it"
    assert "expiresAt" not in daemon.ask("GET", f"/v1/sandboxes/{daemon.create()}")[1], "nor is one without"


def test_expiry_is_rebuilt_and_what_expired_meanwhile_goes(daemon):
    daemon.start()
    soon, later = daemon.create(timeout=60), daemon.create(timeout=60)
    assert daemon.ask("POST", f"/v1/sandboxes/{soon}/renew-expiration", {"expiresAt": iso(3)})[0] == 200
    assert daemon.ask("POST", f"/v1/sandboxes/{later}/renew-expiration", {"expiresAt": iso(40)})[0] == 200
    daemon.end()
    time.sleep(3.2)
    daemon.again()
    daemon.until(soon, 404)
    assert daemon.state(later) == "Running"
    daemon.until(later, 404)
    daemon.settled(0)


STEPPED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t c, struct timespec *t)
{
	char text[32] = "";
	int rc = (int)syscall(SYS_clock_gettime, c, t), fd = c == CLOCK_REALTIME ? open(getenv("CLOCK_STEP"), O_RDONLY) : -1;
	if (fd >= 0) { if (read(fd, text, 31) > 0) t->tv_sec += atol(text); close(fd); }
	return rc;
}
"""


def stepped_clock(daemon, tmp_path):
    """The daemon's wall clock is so many seconds off as the file says."""
    (tmp_path / "step.c").write_text(STEPPED)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "step.so", tmp_path / "step.c"], check=True)
    step = tmp_path / "step"
    step.write_text("0")
    daemon.env = {"LD_PRELOAD": str(tmp_path / "step.so"), "CLOCK_STEP": str(step)}
    return step


def test_expiry_is_right_across_steps_of_the_clock(daemon, tmp_path):
    """expiresAt is a promise in wall-clock time: a clock set back makes it later, one set forward sooner, whatever the timer was set to."""
    step = stepped_clock(daemon, tmp_path)
    daemon.start()
    box = daemon.create(timeout=60)
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/renew-expiration", {"expiresAt": iso(2)})[0] == 200
    step.write_text("-20")
    time.sleep(3)
    assert daemon.state(box) == "Running", "by this clock it has more than three seconds left"
    step.write_text("3600")
    daemon.until(box, 404)


def test_access_renews(daemon):
    daemon.start({"renew_intent": {"min_interval_seconds": 0}})
    box = daemon.create(timeout=60, extensions={"access.renew.extend.seconds": "300"})
    expires = lambda b: daemon.ask("GET", f"/v1/sandboxes/{b}")[1]["expiresAt"]  # noqa: E731
    first = expires(box)
    daemon.ask("GET", f"/{box}/44772/ping", headers={"OpenSandbox-Access-Renew": "skip"})
    assert expires(box) == first
    daemon.ask("GET", f"/v1/sandboxes/{box}/proxy/44772/ping")
    second = expires(box)
    assert second > first
    daemon.ask("GET", f"/{box}/44772/ping")
    assert expires(box) > second
    plain = daemon.create(timeout=60)
    first = expires(plain)
    daemon.ask("GET", f"/{plain}/44772/ping")
    assert expires(plain) == first


def test_access_renews_only_so_often_and_only_when_told(daemon):
    daemon.start()
    box = daemon.create(timeout=60, extensions={"access.renew.extend.seconds": "300"})
    daemon.ask("GET", f"/{box}/44772/ping")
    first = daemon.ask("GET", f"/v1/sandboxes/{box}")[1]["expiresAt"]
    daemon.ask("GET", f"/{box}/44772/ping")
    assert daemon.ask("GET", f"/v1/sandboxes/{box}")[1]["expiresAt"] == first
    daemon.end()
    daemon.start({"renew_intent": {"enabled": False}})
    box = daemon.create(timeout=60, extensions={"access.renew.extend.seconds": "300"})
    first = daemon.ask("GET", f"/v1/sandboxes/{box}")[1]["expiresAt"]
    daemon.ask("GET", f"/{box}/44772/ping")
    assert daemon.ask("GET", f"/v1/sandboxes/{box}")[1]["expiresAt"] == first


# ---- pause and resume

@pytest.mark.parametrize("step,how", [("prep", "error"), ("snapshot", "error"), ("snapshot", "fail-event")])
def test_a_pause_that_fails_leaves_it_running(daemon, step, how):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.plan(**{step: how})
    status, e, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/pause")
    assert (status, e["code"]) == (500, "DOCKER::SANDBOX_PAUSE_FAILED"), e
    assert daemon.state(box) == "Running"
    daemon.plan()
    assert daemon.run(box, "echo on")[-1]["type"] == "execution_complete"
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202 and daemon.state(box) == "Paused"
    daemon.settled(0)


@pytest.mark.parametrize("how", ["die", "die-after-reply", "junk"])
def test_a_monitor_that_dies_in_a_pause_is_not_called_paused(daemon, how):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.plan(snapshot=how)
    status, e, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/pause")
    assert status >= 400 and e["code"].startswith("DOCKER::SANDBOX_"), e
    assert daemon.until(box, "Failed") == "Failed"
    assert daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
    daemon.settled(0)
    daemon.cleared("blobs/*")


@pytest.mark.parametrize("step,how", [("prepare", "die"), ("prepare", "error"), ("restore", "error"), ("restore", "die")])
def test_a_resume_that_fails_before_the_guest_ran_can_be_tried_again(daemon, step, how):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
    daemon.plan(**{step: how})
    status, e, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/resume")
    assert status == 500, e
    assert daemon.state(box) == "Paused"
    daemon.plan()
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202 and daemon.state(box) == "Running"
    assert daemon.run(box, "echo on")[-1]["type"] == "execution_complete"


@pytest.mark.parametrize("step,how,says", [("prepare", "hang", "starting the VMM"), ("restore", "hang", "restoring"), ("ready", "never", "waiting for the agent"),
                                           ("thaw", "hang", "giving it its identity")])
def test_a_resume_has_an_end_before_its_client(daemon, step, how, says):
    """The SDKs give up at 30 s; they are told which step it was, and it can be tried again."""
    assert "resume_timeout_seconds = 25" in mayflyd("init-config").stdout
    daemon.start({"runtime": {"templates": False, "resume_timeout_seconds": 4}})
    box = daemon.create()
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 202
    daemon.plan(**{step: how})
    status, e, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/resume", timeout=25)
    assert (status, e["code"]) == (504, "DOCKER::SANDBOX_START_FAILED") and e["message"] == f"{says}: not done within 4 s", e
    assert daemon.state(box) == "Paused"
    daemon.settled(0)
    daemon.end()
    daemon.plan().config({"runtime": {"templates": False}})
    daemon.again()
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202
    assert daemon.run(box, "echo on")[-1]["type"] == "execution_complete"


def test_a_long_pause_is_accepted_and_goes_on(daemon):
    daemon.start({"runtime": {"templates": False, "pending_after_seconds": 1}})
    box, hangs = daemon.create(), daemon.create()
    daemon.plan(snapshot="slow")
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause", timeout=25)[0] == 202 and daemon.state(box) == "Pausing"
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/pause")[0] == 409
    daemon.until(box, "Paused")
    daemon.plan(snapshot="hang")
    assert daemon.ask("POST", f"/v1/sandboxes/{hangs}/pause", timeout=25)[0] == 202 and daemon.state(hangs) == "Pausing"
    assert daemon.ask("DELETE", f"/v1/sandboxes/{hangs}")[0] == 204
    daemon.settled(0)
    daemon.plan()
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202 and daemon.run(box, "echo on")[-1]["type"] == "execution_complete"


def test_a_machine_that_will_not_take_its_identity_is_never_handed_out(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.ask("POST", f"/v1/sandboxes/{box}/pause")
    daemon.plan(thaw="error")
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 500
    assert daemon.state(box) == "Paused"
    daemon.settled(0)


def test_two_at_once_are_told_apart(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        got = sorted(a[0] for a in pool.map(lambda _: daemon.ask("POST", f"/v1/sandboxes/{box}/pause"), range(6)))
        assert got[0] == 202 and set(got) <= {202, 409} and got.count(202) == 1, got
        got = sorted(a[0] for a in pool.map(lambda _: daemon.ask("POST", f"/v1/sandboxes/{box}/resume"), range(6)))
        assert got.count(202) == 1 and set(got) == {202, 409}, got
        # and whatever happens together, the record says in the end what is so
        for _ in range(5):
            list(pool.map(lambda what: daemon.ask("POST", f"/v1/sandboxes/{box}/{what}"), ["pause", "resume"] * 3))
    if daemon.until(box, "Running", "Paused") == "Running":
        assert daemon.run(box, "echo on")[-1]["type"] == "execution_complete"
    assert daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
    daemon.settled(0)


def test_deleted_in_the_middle_of_everything(daemon):
    daemon.start(NO_TEMPLATES)
    for step in ("prepare", "boot", "setup"):
        daemon.plan(**{step: "hang"})
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            created = pool.submit(daemon.ask, "POST", "/v1/sandboxes", BOX)
            end = time.monotonic() + 30
            while not (items := daemon.ask("GET", "/v1/sandboxes")[1]["items"]):
                assert time.monotonic() < end
            assert daemon.ask("DELETE", f"/v1/sandboxes/{items[0]['id']}")[0] == 204
            status, e, _ = created.result()
            assert (status, e["code"]) == (409, "DOCKER::SANDBOX_NOT_RUNNING"), e
        daemon.settled(0)
    for step in ("prep", "snapshot"):
        daemon.plan()
        box = daemon.create()
        daemon.plan(**{step: "hang"})
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            paused = pool.submit(daemon.ask, "POST", f"/v1/sandboxes/{box}/pause")
            daemon.until(box, "Pausing")
            assert daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
            assert paused.result()[0] == 409
        daemon.settled(0)
    daemon.cleared("blobs/*")


# ---- ends and adoption

@pytest.mark.parametrize("entry,state", [("exit 0", "Terminated"), ("exit 3", "Failed")])
def test_output_of_an_ended_sandbox_is_kept(daemon, entry, state):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.plan(entry=entry)
    daemon.until(box, state)
    daemon.settled(0)
    for again in (False, True):
        logs = daemon.ask("GET", f"/v1/sandboxes/{box}/diagnostics/logs?scope=container")[1]
        assert logs["content"] == "".join(f"line {i}\n" for i in range(19901, 20000)) + "last words of the entrypoint: \u00e4\ufffd\ufffd.\n" and logs["truncated"]
        assert daemon.ask("GET", f"/v1/sandboxes/{box}/diagnostics/logs?tail=2")[1] == "line 19999\nlast words of the entrypoint: \u00e4\ufffd\ufffd.\n"
        assert daemon.ask("GET", f"/v1/sandboxes/{box}/diagnostics/logs?tail=1&since=1h30m&container=sandbox")[1].startswith("last words")
        summary = daemon.ask("GET", f"/v1/sandboxes/{box}/diagnostics/summary?tail=2")[1]
        assert [line for line in summary.splitlines() if line.startswith("== ")] == ["== inspect ==", "== events ==", "== logs =="]
        assert summary.split("== logs ==\n")[1] == "line 19999\nlast words of the entrypoint: \u00e4\ufffd\ufffd.\n"
        assert 5000 < len(daemon.ask("GET", f"/v1/sandboxes/{box}/diagnostics/logs?tail=10000")[1].splitlines()) < 10000, "so much is kept, and no more"
        if not again:
            daemon.end()
            daemon.again()
    assert daemon.state(box) == state
    daemon.ask("DELETE", f"/v1/sandboxes/{box}")
    daemon.cleared(f"**/*{box}*")


def test_a_monitor_that_is_killed_is_a_failed_sandbox(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    os.kill(daemon.monitors()[0], signal.SIGKILL)
    daemon.until(box, "Failed")
    status, b, _ = daemon.ask("GET", f"/v1/sandboxes/{box}")
    assert b["status"]["reason"] == "VM_ENDED" and "signal 9" in b["status"]["message"]
    assert daemon.ask("GET", f"/{box}/44772/ping")[0] == 409


def process_of(daemon, box):
    """Of a sandbox's monitor."""
    return int(re.search(r"pid (\d+)", daemon.ask("GET", f"/v1/sandboxes/{box}/diagnostics/inspect")[1])[1])


def test_the_next_daemon_takes_up_what_is_there(daemon):
    daemon.start(NO_TEMPLATES)
    runs, paused, killed = (daemon.create(metadata={"n": str(i)}, timeout=600) for i in range(3))
    daemon.ask("POST", f"/v1/sandboxes/{paused}/pause")
    before = [daemon.ask("GET", f"/v1/sandboxes/{i}")[1] for i in (runs, paused)]
    daemon.plan(boot="hang")
    with pytest.raises(OSError):
        daemon.ask("POST", "/v1/sandboxes", BOX, timeout=1)
    pid = process_of(daemon, killed)
    daemon.end()
    kill(pid)
    daemon.plan().again()
    ended = daemon.ask("GET", f"/v1/sandboxes/{killed}")[1]["status"]
    assert (ended["state"], ended["reason"], ended["message"]) == ("Failed", "VM_ENDED", "The VM ended while no server was running.")
    assert [daemon.ask("GET", f"/v1/sandboxes/{i}")[1] for i in (runs, paused)] == before
    assert daemon.run(runs, "echo on")[-1]["type"] == "execution_complete"
    assert daemon.ask("POST", f"/v1/sandboxes/{paused}/resume")[0] == 202
    (half,) = [b for b in daemon.ask("GET", "/v1/sandboxes")[1]["items"] if b["id"] not in (runs, paused, killed)]
    assert half["status"]["state"] == "Failed" and "stopped while" in half["status"]["message"]


def test_what_was_promised_is_made_by_the_next_daemon(daemon):
    for templates in (False, True):
        daemon.start({"runtime": {"templates": templates, "pending_after_seconds": 1}})
        if templates:
            daemon.create()
            end = time.monotonic() + 60
            while [t["state"] for t in daemon.ask("GET", "/v1/mayfly/templates")[1]["items"]] != ["Ready"]:
                assert time.monotonic() < end
                time.sleep(0.02)
        for step in ("prepare", "restore" if templates else "boot", "setup"):
            daemon.plan(**{step: "hang"})
            status, b, _ = daemon.ask("POST", "/v1/sandboxes", BOX | {"metadata": {"a": "b"}, "timeout": 600, "env": {"A": "b"}})
            assert status == 202 and b["status"]["state"] == "Pending", b
            daemon.end()
            daemon.plan().again()
            daemon.until(b["id"], "Running")
            now = daemon.ask("GET", f"/v1/sandboxes/{b['id']}")[1]
            assert {k: now[k] for k in ("metadata", "createdAt", "expiresAt", "entrypoint")} == {k: b[k] for k in ("metadata", "createdAt", "expiresAt", "entrypoint")}
            assert daemon.run(b["id"], "echo on")[-1]["type"] == "execution_complete"
            assert daemon.ask("DELETE", f"/v1/sandboxes/{b['id']}")[0] == 204
        daemon.end()
        for pid in daemon.monitors():  # without the helper nobody knows those of a daemon that died
            kill(pid)


@pytest.mark.parametrize("source,steps", [("memory", ("prepare", "restore", "thaw")), ("disk", ("prepare", "boot", "setup")), ("template", ("prepare", "restore", "thaw"))])
def test_what_was_promised_from_a_point_is_made_by_the_next_daemon(daemon, source, steps):
    """The snapshot's or template's: also when it is deleted after the promise, as the sandbox holds what it stands on."""
    daemon.start({"runtime": {"templates": False, "pending_after_seconds": 1}})
    limits = {"resourceLimits": {"memory": "256Mi"}}
    for step in steps:
        if source == "template":
            at = "/v1/templates/" + daemon.ask("POST", "/v1/templates", {"image": "tiny", "publish": "s3://local/x"} | limits)[1]["templateId"]
            body, good = {"templateId": at[14:], "timeout": 600}, ("phase", "Succeeded")
        else:
            at = "/v1/snapshots/" + daemon.ask("POST", f"/v1/sandboxes/{daemon.create()}/snapshots")[1]["id"]
            body, good = {"snapshotId": at[14:]} | limits | ({"entrypoint": ["sleep", "1000"]} if source == "disk" else {}), ("state", "Ready")
        end = time.monotonic() + 60
        while daemon.ask("GET", at)[1]["status"][good[0]] != good[1]:
            assert time.monotonic() < end
            time.sleep(0.02)
        daemon.plan(**{step: "hang"})
        status, b, _ = daemon.ask("POST", "/v1/sandboxes", body | {"metadata": {"a": "b"}})
        assert status == 202 and b["status"]["state"] == "Pending", b
        assert daemon.ask("DELETE", at)[0] == 204
        daemon.end()
        daemon.plan().again()
        daemon.until(b["id"], "Running", "Failed")
        now = daemon.ask("GET", f"/v1/sandboxes/{b['id']}")[1]
        assert now["status"]["state"] == "Running" and (now["metadata"], now["entrypoint"]) == (b["metadata"], b["entrypoint"]), now
        origin = re.search(r"origin: (.*)", daemon.ask("GET", f"/v1/sandboxes/{b['id']}/diagnostics/inspect")[1])[1]
        assert origin == ("boot" if source == "disk" else "memory snapshot")
        assert daemon.run(b["id"], "echo on")[-1]["type"] == "execution_complete"
        for box in daemon.ask("GET", "/v1/sandboxes")[1]["items"]:
            assert daemon.ask("DELETE", f"/v1/sandboxes/{box['id']}")[0] == 204
        daemon.cleared("blobs/*")
    daemon.end()
    for pid in daemon.monitors():  # without the helper nobody knows those of a daemon that died
        kill(pid)


# ---- what is described and measured

def table_routes():
    """Every row of every table of routes in the daemon's source."""
    found = set()
    for f in (TOP / "api").rglob("*.c"):
        text = f.read_text()
        for m in re.finditer(r'\{\s*"([A-Z*]+)", (prefix )?"(/[^"]*)", (\w+)', text):
            for prefix in ("", "/v1/filesystem/{uid}/{gid}") if m[2] else ("",):
                found.add((m[1], prefix + m[3]))
    return found


def test_openapi_describes_every_route(daemon):
    daemon.start()
    doc = daemon.ask("GET", "/openapi.json")[1]
    described = {(m.upper(), p) for p, methods in doc["paths"].items() for m in methods}
    routes = table_routes()
    assert len(routes) > 60
    for method, path in routes:
        path = path.replace("{rest*}", "{rest}")
        hit = [m for m, p in described if p in (path, "/v1" + path) or (p.startswith("/v1/sandboxes/{id}/proxy/") and p.endswith(path))]
        assert method in hit or (method == "*" and {"GET", "POST", "PUT", "DELETE", "PATCH"} <= set(hit)), (method, path, hit)
    methods = {"get", "put", "post", "delete", "patch", "head", "options", "trace"}
    for p, ops in doc["paths"].items():
        assert set(ops) <= methods, f"{p}: OpenAPI knows no such operation as {set(ops) - methods}"
        for name in re.findall(r"\{(\w+)\}", p):
            assert all(any(q["name"] == name for q in op["parameters"]) for op in ops.values()), p


def test_what_is_measured(daemon):
    daemon.start()
    daemon.headers = {}
    box = daemon.create()
    daemon.run(box, "echo one")
    daemon.run(box, "exit 3")
    daemon.create()
    daemon.ask("POST", f"/v1/sandboxes/{box}/pause")
    daemon.ask("POST", "/v1/metrics/events", {"eventType": "sandbox.create", "createDurationMs": 12.5, "success": True})
    daemon.ask("POST", "/v1/sandboxes", b"{")
    _, text, head = daemon.ask("GET", "/metrics")
    assert head["Content-Type"].startswith("text/plain; version=0.0.4")
    values, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types
            types[name] = kind
        elif not line.startswith("#"):
            k, v = line.rsplit(" ", 1)
            assert k not in values, k
            values[k] = float(v)
            name = k.split("{")[0]
            assert name in types or re.sub(r"_(bucket|sum|count)$", "", name) in types, k
    for k, v in {"mayfly_sandboxes_created_total": 2, "mayfly_sandboxes_booted_total": 1, "mayfly_sandboxes_restored_total": 1, 'mayfly_sandboxes{state="Running"}': 1,
                 'mayfly_sandboxes{state="Paused"}': 1, "mayfly_execs_total": 2, "mayfly_execs_failed_total": 1, "mayfly_sdk_create_events_total": 1, 'mayfly_phase_seconds_count{phase="create"}': 2,
                 'mayfly_phase_seconds_count{phase="restore"}': 1, 'mayfly_phase_seconds_count{phase="pause"}': 1, "mayfly_templates": 1,
                 "mayfly_sandbox_memory_bytes": 256 << 20}.items():
        assert values.get(k) == v, (k, values.get(k))
    assert types["mayfly_loop_seconds"] == "histogram" and values["mayfly_loop_seconds_count"] > 10
    for name in {k.split("{")[0] for k in values if "_seconds_bucket{" in k}:
        for labels in {re.sub(r',?le="[^"]*"', "", k.split("{")[1][:-1]) for k in values if k.startswith(name)}:
            row = [v for k, v in values.items() if k.startswith(name) and re.sub(r',?le="[^"]*"', "", k.split("{")[1][:-1]) == labels]
            count = values[name.replace("_bucket", "_count") + (f"{{{labels}}}" if labels else "")]
            assert len(row) > 10 and row == sorted(row) and row[-1] == count, (name, labels)
    assert {"turn", "image", "disk", "blank", "boot", "restore", "agent", "setup"} <= {m[1] for k in values if (m := re.search(r'_count\{phase="(\w+)"', k))}
    assert values['mayfly_phase_seconds_sum{phase="create"}'] > 0
    assert values["mayfly_http_bytes_out_total"] > 0 and 'mayfly_blank_vms' in values and values['mayfly_http_responses_total{class="4xx"}'] >= 1
    assert values["mayfly_daemon_memory_bytes"] > 1 << 20


# ---- many clients and kills, quickly: the real thing is test_soak.py

STRESS = bool(os.environ.get("MAYFLY_STRESS"))
CLIENTS, SECONDS, KILLS = (200, 120, 10) if STRESS else (16, 12, 3)


def client(daemon, end, n):
    """Creates, runs, pauses, deletes; what the daemon acknowledged must be there, however often it died."""
    wrong, rounds = [], 0

    def ask(*args, **kw):
        while True:
            try:
                return daemon.ask(*args, **kw)
            except (OSError, http.client.HTTPException):  # no answer, or half of one
                if time.monotonic() > end + WAIT_AFTER_S:
                    raise
                time.sleep(0.05)

    while time.monotonic() < end:
        status, b, _ = ask("POST", "/v1/sandboxes", BOX | {"metadata": {"n": f"{n}-{rounds}"}}, {"Idempotency-Key": f"{n}-{rounds}"})
        rounds += 1
        if status != 202:
            wrong += [] if status in (500, 503) and b["code"] == "DOCKER::SANDBOX_START_FAILED" else [(status, b)]
            continue
        box = b["id"]
        for what in (("POST", f"/{box}/44772/command", {"command": "echo x"}), ("POST", f"/v1/sandboxes/{box}/pause"), ("POST", f"/v1/sandboxes/{box}/resume")):
            status, b, _ = ask(*what)
            # 404 would be an acknowledged sandbox that is lost; after a kill it may be in another state than this client thinks
            if status not in (200, 202, 409, 500, 503):
                wrong.append((what[1], status, b))
        status, b, _ = ask("GET", f"/v1/sandboxes/{box}")
        if status != 200 or b["metadata"]["n"] != f"{n}-{rounds - 1}":
            wrong.append(("lost", status, b))
        status, b, _ = ask("DELETE", f"/v1/sandboxes/{box}")
        if status not in (204, 404):
            wrong.append(("delete", status, b))
    return rounds, wrong


WAIT_AFTER_S = 60


def test_clients_and_kills_of_the_daemon(daemon):
    daemon.start()
    port = daemon.port
    end = time.monotonic() + SECONDS
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        work = [pool.submit(client, daemon, end, n) for n in range(CLIENTS)]
        for _ in range(KILLS):
            time.sleep(SECONDS / (KILLS + 1))
            daemon.end()
            daemon.config(port=port)
            daemon.again()
        done = [w.result() for w in work]
    wrong = [w for _, ws in done for w in ws]
    print(f"{sum(r for r, _ in done)} rounds")
    assert not wrong, wrong[:5]
    for b in daemon.ask("GET", "/v1/sandboxes?pageSize=200")[1]["items"]:
        assert b["status"]["state"] in ("Failed", "Terminated"), b
        assert daemon.ask("DELETE", f"/v1/sandboxes/{b['id']}")[0] == 204
    # the template's files stay, and nothing else
    end = time.monotonic() + WAIT_AFTER_S
    while len(left := list((daemon.dir / "state" / "blobs").glob("*"))) > 10:
        assert time.monotonic() < end, left
        time.sleep(0.05)
    daemon.cleared("logs/*")
