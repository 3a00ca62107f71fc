# SPDX-License-Identifier: Apache-2.0
"""Pools with monitors that are played by fake/mayfly-vmm: their routes, filling, what a create from one has, and what a kill leaves. Real guests: test_pool.py."""
import concurrent.futures
import time

import pytest

from hostdaemon import HostDaemon

CONF = {"runtime": {"templates": False}}
TEMPLATE = {"spec": {"containers": [{"image": "tiny", "command": ["tail", "-f", "/dev/null"], "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                                     "resources": {"limits": {"memory": "256Mi", "cpu": "1"}}}]}}


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


def cap(low, high, most, least=0):
    return {"bufferMin": low, "bufferMax": high, "poolMin": least, "poolMax": most}


def make(d, name="p", low=2, high=3, most=10, least=0, template=TEMPLATE):
    status, p, _ = d.ask("POST", "/v1/pools", {"name": name, "template": template, "capacitySpec": cap(low, high, most, least)})
    assert status == 201, p
    return p


def status(d, name="p"):
    s = d.ask("GET", f"/v1/pools/{name}")[1]["status"]
    return s["total"], s["allocated"], s["available"]


def until(d, wanted, name="p"):
    end = time.monotonic() + 60
    while (s := status(d, name)) != wanted:
        assert time.monotonic() < end, (s, wanted)
        time.sleep(0.02)


def take(d, name="p", **more):
    ext = more.pop("extensions", {})
    return d.ask("POST", "/v1/sandboxes", {"extensions": {"poolRef": name} | ext} | more)


def listed(d):
    return [s["id"] for s in d.ask("GET", "/v1/sandboxes?pageSize=200")[1]["items"]]


def test_a_create_takes_one_that_waits(daemon):
    daemon.start(CONF)
    p = make(daemon)
    assert p["name"] == "p" and p["capacitySpec"] == cap(2, 3, 10) and p["createdAt"] and p["status"]["revision"] == "1"
    until(daemon, (2, 0, 2))
    assert listed(daemon) == [], "what waits is nobody's"
    boots = [s for _, s in daemon.steps()].count("boot")
    assert [s for _, s in daemon.steps()].count("setup") == 0
    code, box, _ = take(daemon, env={"B": "3", "C": "4"}, entrypoint=["sleep", "9"], metadata={"who": "me"}, timeout=600)
    assert code == 202 and box["status"]["state"] == "Running" and box["metadata"] == {"who": "me"} and box["entrypoint"] == ["sleep", "9"]
    assert box["allocation"] == {"mode": "pool", "poolRef": "p", "state": "allocated"} and box["expiresAt"]
    assert any(e.get("text") == "hello\n" for e in daemon.run(box["id"], "hello"))
    assert daemon.ask("GET", f"/v1/sandboxes/{box['id']}")[1]["image"] == {"uri": "tiny"}
    until(daemon, (3, 1, 2))
    assert [s for _, s in daemon.steps()].count("boot") == boots + 1 and listed(daemon) == [box["id"]]
    other = daemon.create()
    assert listed(daemon) == [other, box["id"]]
    code, third, _ = take(daemon)
    assert listed(daemon) == [third["id"], other, box["id"]], "the newest first, by when a client got it"
    # a deleted one is allocated no more
    for b in (box["id"], third["id"]):
        assert daemon.ask("DELETE", f"/v1/sandboxes/{b}")[0] == 204
    until(daemon, (2, 0, 2))
    daemon.settled(3)


def test_the_environment_is_the_pools_and_the_requests(daemon):
    daemon.start(CONF)
    make(daemon)
    until(daemon, (2, 0, 2))
    code, box, _ = take(daemon, env={"EXECD_ACCESS_TOKEN": "secret"})
    assert code == 202
    for token, want in (("", 401), ("secret", 200)):
        assert daemon.ask("POST", f"/{box['id']}/44772/command", {"command": "x"}, {"X-EXECD-ACCESS-TOKEN": token})[0] == want


def test_bounds(daemon):
    daemon.start(CONF)
    make(daemon, low=1, high=1, most=2)
    until(daemon, (1, 0, 1))
    a, b = (take(daemon)[1]["id"] for _ in range(2))
    until(daemon, (2, 2, 0))
    code, e, head = take(daemon)
    assert (code, e["code"], head["Retry-After"]) == (429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED", "1")
    assert daemon.ask("DELETE", f"/v1/sandboxes/{a}")[0] == 204
    until(daemon, (2, 1, 1))
    code, p, _ = daemon.ask("PUT", "/v1/pools/p", {"capacitySpec": cap(3, 4, 10)})
    assert code == 200 and p["capacitySpec"] == cap(3, 4, 10) and p["status"]["revision"] == "2"
    until(daemon, (4, 1, 3))
    assert daemon.ask("PUT", "/v1/pools/p", {"capacitySpec": cap(0, 1, 10)})[0] == 200
    until(daemon, (2, 1, 1))
    assert daemon.ask("DELETE", "/v1/pools/p")[0] == 204
    assert daemon.ask("GET", "/v1/pools/p")[0] == 404 and daemon.state(b) == "Running"
    daemon.settled(1)
    assert take(daemon)[:2] == (404, {"code": "KUBERNETES::POOL_NOT_FOUND", "message": "Pool p not found."})


def test_an_empty_pool_creates(daemon):
    daemon.start(CONF)
    make(daemon, low=0, high=0, most=2)
    code, box, _ = take(daemon)
    assert code == 202 and box["allocation"]["poolRef"] == "p"
    until(daemon, (1, 1, 0))


def test_an_adaptive_pool_follows_its_creates(daemon):
    daemon.start(CONF)
    size = cap(1, 4, 50) | {"adaptiveSeconds": 3600}
    status_, p, _ = daemon.ask("POST", "/v1/pools", {"name": "p", "template": TEMPLATE, "capacitySpec": size})
    assert status_ == 201 and p["capacitySpec"] == size
    until(daemon, (1, 0, 1))
    boxes = [take(daemon)[1]["id"] for _ in range(3)]
    # as many wait as were taken in the last seconds
    until(daemon, (6, 3, 3))
    boxes += [take(daemon)[1]["id"] for _ in range(3)]
    until(daemon, (10, 6, 4))  # bufferMax
    # it looks back a second, and nobody came in that: the least
    assert daemon.ask("PUT", "/v1/pools/p", {"capacitySpec": size | {"adaptiveSeconds": 1}})[0] == 200
    until(daemon, (7, 6, 1))
    assert all(daemon.state(b) == "Running" for b in boxes)
    # without it the pool keeps its least, whatever is taken
    assert daemon.ask("PUT", "/v1/pools/p", {"capacitySpec": cap(1, 4, 50)})[1]["capacitySpec"] == cap(1, 4, 50)
    take(daemon)
    until(daemon, (8, 7, 1))
    assert daemon.ask("PUT", "/v1/pools/p", {"capacitySpec": size | {"adaptiveSeconds": 3601}})[0] == 400


def test_twenty_at_once(daemon):
    daemon.start(CONF)
    make(daemon, low=5, high=5, most=30)
    until(daemon, (5, 0, 5))
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: take(daemon), range(20)))
    assert all(a[0] == 202 for a in answers) and len({a[1]["id"] for a in answers}) == 20
    until(daemon, (25, 20, 5))


@pytest.mark.parametrize("body,code", [(b"{", 400), ({}, 400), ({"name": "p"}, 400), ({"name": "P", "capacitySpec": cap(0, 0, 0), "template": TEMPLATE}, 400),
                                       ({"name": "-p", "capacitySpec": cap(0, 0, 0), "template": TEMPLATE}, 400), ({"name": "p" * 254, "capacitySpec": cap(0, 0, 0), "template": TEMPLATE}, 400),
                                       ({"name": "p", "capacitySpec": cap(2, 1, 9), "template": TEMPLATE}, 400), ({"name": "p", "capacitySpec": {"bufferMin": 0}, "template": TEMPLATE}, 400),
                                       ({"name": "p", "capacitySpec": cap(0, 0, 0), "template": {}}, 400),
                                       ({"name": "p", "capacitySpec": cap(0, 0, 0), "template": {"spec": {"containers": [{"image": "tiny", "env": [{"name": "x"}]}]}}}, 400),
                                       ({"name": "p", "capacitySpec": cap(0, 0, 0), "template": {"spec": {"containers": [{"image": "tiny", "resources": {"limits": {"memory": "no"}}}]}}}, 400)])
def test_bad_pools(daemon, body, code):
    daemon.start(CONF)
    assert daemon.ask("POST", "/v1/pools", body)[0] == code
    assert daemon.ask("GET", "/v1/pools")[1] == {"items": []}


@pytest.mark.parametrize("more", [{"volumes": []}, {"snapshotId": "x"}, {"templateId": "x"}, {"platform": {}}, {"networkPolicy": {}}, {"image": {"uri": "other"}},
                                  {"resourceLimits": {"memory": "1Gi"}}, {"extensions": {"mayfly.id": "00000000-0000-4000-8000-000000000000"}}, {"env": [1]}])
def test_bad_creates(daemon, more):
    daemon.start(CONF)
    make(daemon)
    until(daemon, (2, 0, 2))
    assert take(daemon, **more)[0] == 400
    assert status(daemon) == (2, 0, 2)
    assert take(daemon, image={"uri": "tiny"}, resourceLimits={"memory": "256Mi"})[0] == 202
    assert daemon.ask("POST", "/v1/pools", {"name": "p", "template": TEMPLATE, "capacitySpec": cap(0, 0, 0)})[0] == 409


def test_one_that_dies_while_it_waits_is_replaced(daemon):
    import os
    import signal
    daemon.start(CONF)
    make(daemon, low=1, high=1)
    until(daemon, (1, 0, 1))
    before, end = {p for p, _ in daemon.steps()}, time.monotonic() + 60
    for pid in daemon.monitors():
        os.kill(pid, signal.SIGKILL)
    while {p for p, _ in daemon.steps()} <= before:
        assert time.monotonic() < end, daemon.log()
        time.sleep(0.02)
    until(daemon, (1, 0, 1))
    assert take(daemon)[0] == 202


def test_a_full_host_and_a_pool(daemon):
    daemon.start(CONF | {"limits": {"memory_mib": 600}})
    make(daemon, low=3, high=3)
    until(daemon, (2, 0, 2))
    assert take(daemon)[0] == 202


@pytest.mark.parametrize("sig", [9, 15])
def test_another_daemon_fills_it_anew(daemon, sig):
    daemon.start(CONF)
    make(daemon)
    until(daemon, (2, 0, 2))
    code, box, _ = take(daemon)
    until(daemon, (3, 1, 2))
    daemon.end(sig)
    daemon.again()
    until(daemon, (3, 1, 2))
    assert listed(daemon) == [box["id"]] and daemon.state(box["id"]) == "Running"
    assert take(daemon)[0] == 202


def test_a_set_up_that_fails_is_the_creates_error(daemon):
    daemon.start(CONF)
    make(daemon, low=1, high=1)
    until(daemon, (1, 0, 1))
    daemon.plan(setup="error")
    code, e, _ = take(daemon)
    assert (code, e["code"]) == (500, "DOCKER::SANDBOX_START_FAILED")
    daemon.plan()
    until(daemon, (1, 0, 1))
    assert take(daemon)[0] == 202
