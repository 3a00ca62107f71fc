# SPDX-License-Identifier: Apache-2.0
"""Forks, with monitors that are played by fake/mayfly-vmm: items and errors, what children have of their source, limits, hostile monitors, and kills of
the daemon in the middle. What real guests see of a fork: test_fork.py."""
import concurrent.futures
import os
import pathlib
import time

import pytest

from hostdaemon import HostDaemon

NO_TEMPLATES = {"runtime": {"templates": False}}
RAM = 1024


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


def fork(d, box, count=2, **more):
    return d.ask("POST", f"/v1/sandboxes/{box}/fork", {"count": count} | more)


def forked(d, box, count=2, **more):
    status, answer, _ = fork(d, box, count, **more)
    assert status == 202 and len(answer["items"]) == count, answer
    return [i["sandbox"] for i in answer["items"]]


def listed(d):
    return {s["id"]: s["status"]["state"] for s in d.ask("GET", "/v1/sandboxes?pageSize=200")[1]["items"]}


def ram_files(d):
    """How many files in RAM the daemon holds for forks."""
    n = 0
    for f in pathlib.Path(f"/proc/{d.proc.pid}/fd").iterdir():
        try:
            n += os.readlink(f).startswith("/memfd:fork")
        except OSError:
            pass
    return n


def ram_free(d):
    end = time.monotonic() + 60
    while n := ram_files(d):
        assert time.monotonic() < end, n
        time.sleep(0.02)


def flags(d):
    """Of every snapshot that a monitor was asked for."""
    return [int(step.split("-")[2], 16) for _, step in d.steps() if step.startswith("snapshot-flags-")]


def delete(d, *boxes):
    for b in boxes:
        assert d.ask("DELETE", f"/v1/sandboxes/{b}")[0] == 204


def test_children_run_beside_their_source(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create(timeout=3600, env={"A": "1", "B": "2"}, metadata={"who": "source"})
    items = forked(daemon, box, 3, env={"B": "3", "C": "4"}, metadata={"who": "child"})
    ids = [s["id"] for s in items]
    assert len({*ids, box}) == 4
    source = daemon.ask("GET", f"/v1/sandboxes/{box}")[1]
    for s in items:
        assert s["status"]["state"] == "Running" and s["metadata"] == {"who": "child"}
        assert s["image"] == source["image"] and s["entrypoint"] == source["entrypoint"] and s["expiresAt"] == source["expiresAt"]
        assert any(e.get("text") == "hello\n" for e in daemon.run(s["id"], "hello"))
    assert listed(daemon) == dict.fromkeys([box, *ids], "Running")
    assert flags(daemon) == [RAM | 4], "live, into RAM; the source stands on no memory file"
    # memory and state, once for all
    assert ram_files(daemon) == 2
    assert not list((daemon.dir / "state" / "blobs").glob("*.mem")) and not list((daemon.dir / "state" / "blobs").glob("*.state"))
    delete(daemon, box, *ids[:2])
    assert ram_files(daemon) == 2 and daemon.state(ids[2]) == "Running"
    delete(daemon, ids[2])
    ram_free(daemon)
    daemon.settled(0)
    daemon.cleared("blobs/*")


def test_children_have_tokens_of_their_own(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create(env={"EXECD_ACCESS_TOKEN": "of the source"})
    status, answer, _ = fork(daemon, box, 2)
    tokens = [i["headers"]["X-EXECD-ACCESS-TOKEN"] for i in answer["items"]]
    assert status == 202 and len({*tokens, "of the source"}) == 3
    for i, token in zip(answer["items"], tokens):
        path = f"/{i['sandbox']['id']}/44772/command"
        for given, want in (("of the source", 401), (token, 200)):
            assert daemon.ask("POST", path, {"command": "x"}, {"X-EXECD-ACCESS-TOKEN": given})[0] == want
    # one that the request gives is nobody's secret from its client
    status, answer, _ = fork(daemon, box, 1, env={"EXECD_ACCESS_TOKEN": "mine"})
    assert "headers" not in answer["items"][0]
    assert daemon.ask("POST", f"/{answer['items'][0]['sandbox']['id']}/44772/command", {"command": "x"}, {"X-EXECD-ACCESS-TOKEN": "mine"})[0] == 200


def test_timeout_and_pause_of_the_source(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    (a,) = forked(daemon, box, 1)
    assert "expiresAt" not in a
    (b,) = forked(daemon, box, 1, timeout=600, pauseSource=True)
    assert "expiresAt" in b
    daemon.until(box, "Paused")
    assert daemon.state(b["id"]) == "Running"
    assert fork(daemon, box)[:2] == (409, {"code": "SNAPSHOT::INVALID_SOURCE_STATE", "message": f"Sandbox {box} is Paused, not Running."})
    assert daemon.ask("POST", f"/v1/sandboxes/{box}/resume")[0] == 202


@pytest.mark.parametrize("body", [None, b"x", {}, {"count": 0}, {"count": 101}, {"count": 1.5}, {"count": "1"}, {"count": True}, {"count": 1, "env": []},
                                  {"count": 1, "env": {"A": 1}}, {"count": 1, "metadata": {"a b": "c"}}, {"count": 1, "timeout": 5}, {"count": 1, "pauseSource": "yes"}])
def test_bad_requests(daemon, body):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    status, e, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/fork", body)
    assert status == 400 and e["code"], e
    assert daemon.ask("POST", "/v1/sandboxes/00000000-0000-4000-8000-000000000000/fork", {"count": 1})[0] == 404
    assert listed(daemon) == {box: "Running"} and not flags(daemon)


def test_all_children_fit_or_none_starts(daemon):
    daemon.start(NO_TEMPLATES | {"limits": {"memory_mib": 1024}})
    box = daemon.create()
    status, e, head = fork(daemon, box, 4)
    assert (status, e["code"]) == (429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED") and head["Retry-After"]
    assert listed(daemon) == {box: "Running"} and not flags(daemon)
    assert len(forked(daemon, box, 2)) == 2


def test_a_child_that_fails_is_its_own_item(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.plan(restore=["ok", "error", "ok", "die"])
    status, answer, _ = fork(daemon, box, 4)
    good = [i["sandbox"]["id"] for i in answer["items"] if "sandbox" in i]
    bad = [i["error"] for i in answer["items"] if "error" in i]
    assert status == 202 and len(good) == 2 and len(bad) == 2
    assert all(e["code"] == "DOCKER::SANDBOX_START_FAILED" and e["message"] for e in bad)
    assert listed(daemon) == dict.fromkeys([box, *good], "Running")
    daemon.settled(3)
    delete(daemon, *good)
    ram_free(daemon)


@pytest.mark.parametrize("how", ["error", "fail-event", "map"])
def test_a_point_that_fails_makes_no_child(daemon, how):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.plan(snapshot=how)
    status, e, _ = fork(daemon, box, 3)
    assert (status, e["code"]) == (500, "SANDBOX::FORK_FAILED"), e
    assert listed(daemon) == {box: "Running"}
    ram_free(daemon)
    daemon.settled(1)
    daemon.plan()
    assert len(forked(daemon, box, 1)) == 1


def test_a_source_that_dies_or_is_deleted_meanwhile(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.plan(snapshot="die-after-reply")
    status, e, _ = fork(daemon, box, 3)
    assert (status, e["code"]) == (500, "SANDBOX::FORK_FAILED"), e
    assert daemon.until(box, "Failed") and list(listed(daemon)) == [box]
    daemon.plan()
    box = daemon.create()
    daemon.plan(prep="silent")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(fork, daemon, box, 3)
        asked(daemon, "prep", 2)
        delete(daemon, box)
        assert answer.result()[0] == 500
    ram_free(daemon)
    daemon.settled(0)


def asked(d, step, times=1):
    end = time.monotonic() + 60
    while [s for _, s in d.steps()].count(step) < times:
        assert time.monotonic() < end, d.steps()
        time.sleep(0.02)


def test_one_fork_at_a_time_and_a_snapshot_behind_it(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.plan(snapshot="later")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(fork, daemon, box, 2)
        asked(daemon, "snapshot")
        status, e, _ = fork(daemon, box, 1)
        assert (status, e["code"]) == (409, "SNAPSHOT::INVALID_SOURCE_STATE"), e
        daemon.plan(snapshot="later", go="yes")
        assert first.result()[0] == 202
    assert len(listed(daemon)) == 3


def test_what_is_durable_refers_to_no_file_in_ram(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    (child,) = forked(daemon, box, 1)
    # a fork of a fork may: the daemon has the file
    (grandchild,) = forked(daemon, child["id"], 1)
    status, snap, _ = daemon.ask("POST", f"/v1/sandboxes/{grandchild['id']}/snapshots")
    assert status == 202
    end = time.monotonic() + 60
    while daemon.ask("GET", f"/v1/snapshots/{snap['id']}")[1]["status"]["state"] == "Creating":
        assert time.monotonic() < end
        time.sleep(0.02)
    assert daemon.ask("GET", f"/v1/snapshots/{snap['id']}")[1]["status"]["state"] == "Ready"
    assert daemon.ask("POST", f"/v1/sandboxes/{child['id']}/pause")[0] == 202
    daemon.until(child["id"], "Paused")
    assert flags(daemon) == [RAM | 4, RAM | 4 | 8, 4 | 8 | 3 << 16, 16 | 8 | 1 << 16]
    delete(daemon, box, grandchild["id"])
    ram_free(daemon)
    # both outlive the daemon
    daemon.end()
    daemon.again()
    assert daemon.ask("POST", f"/v1/sandboxes/{child['id']}/resume")[0] == 202
    assert daemon.ask("POST", "/v1/sandboxes", {"snapshotId": snap["id"], "resourceLimits": {"memory": "256Mi"}})[0] == 202


def test_a_monitor_that_refers_to_ram_all_the_same(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    (child,) = forked(daemon, box, 1)
    daemon.plan(snapshot="refers")
    status, snap, _ = daemon.ask("POST", f"/v1/sandboxes/{child['id']}/snapshots")
    end = time.monotonic() + 60
    while (s := daemon.ask("GET", f"/v1/snapshots/{snap['id']}")[1]["status"])["state"] == "Creating":
        assert time.monotonic() < end
        time.sleep(0.02)
    assert s["state"] == "Failed" and "RAM" in s["message"], s
    assert daemon.state(child["id"]) == "Running"


def test_children_go_on_without_the_daemon_that_forked_them(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    (child,) = forked(daemon, box, 1)
    daemon.end()
    daemon.again()
    assert listed(daemon) == dict.fromkeys([box, child["id"]], "Running")
    # this daemon has no file to give to a grandchild: it gets the whole difference
    (grandchild,) = forked(daemon, child["id"], 1)
    assert flags(daemon)[-1] == RAM | 4 | 8 | 1 << 16
    assert daemon.state(grandchild["id"]) == "Running"


@pytest.mark.parametrize("plan", [{"prep": "silent"}, {"snapshot": "later"}, {"restore": "later"}, {"thaw": ["ok", "silent"]}])
def test_a_killed_daemon_leaves_nothing_of_a_fork(daemon, plan):
    daemon.start(NO_TEMPLATES)
    box = daemon.create()
    daemon.plan(**plan)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(fork, daemon, box, 3)
        asked(daemon, list(plan)[0])
        daemon.end()
        with pytest.raises(Exception):
            answer.result()
    daemon.plan(go="yes")
    daemon.again()
    daemon.until(box, "Running")
    assert listed(daemon) == {box: "Running"}
    # The helper ends their monitors, and there is none here. The daemon finds out first how far the point got.
    end = time.monotonic() + 60
    while (status := fork(daemon, box, 2)[0]) == 409:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert status == 202 and len(listed(daemon)) == 3


def test_forks_of_a_snapshot(daemon):
    daemon.start(NO_TEMPLATES)
    box = daemon.create(env={"A": "1"})
    _, snap, _ = daemon.ask("POST", f"/v1/sandboxes/{box}/snapshots")
    end = time.monotonic() + 60
    while daemon.ask("GET", f"/v1/snapshots/{snap['id']}")[1]["status"]["state"] == "Creating":
        assert time.monotonic() < end
        time.sleep(0.02)
    delete(daemon, box)
    path = f"/v1/snapshots/{snap['id']}/fork"
    status, answer, _ = daemon.ask("POST", path, {"count": 3, "timeout": 600})
    assert status == 202
    ids = [i["sandbox"]["id"] for i in answer["items"]]
    assert listed(daemon) == dict.fromkeys(ids, "Running") and ram_files(daemon) == 0
    assert daemon.ask("POST", path, {"count": 1, "pauseSource": True})[0] == 400
    assert daemon.ask("POST", "/v1/snapshots/00000000-0000-4000-8000-000000000000/fork", {"count": 1})[0] == 404
    assert daemon.ask("DELETE", f"/v1/snapshots/{snap['id']}")[0] == 204
    assert all(daemon.state(i) == "Running" for i in ids)
