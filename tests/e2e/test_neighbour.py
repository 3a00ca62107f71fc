# SPDX-License-Identifier: Apache-2.0
"""One hostile sandbox and one that works. The hostile one does everything at once, from inside and with its key through the API: it fills its disk,
forks, takes memory and CPU, floods its log, its network, its volume and its own execution API; its client floods the daemon. Meanwhile each request of
the neighbour has an end in time, the daemon's memory is bounded, and what is beyond a bound is refused.
Latencies side by side, quiet and attacked: `bench/run neighbour`."""
import contextlib
import http.client
import json
import threading
import time

import pytest

from hostdaemon import HostDaemon
from test_lifecycle import call, create

ROUNDS = 8
LIMIT_S = 5
# The machine of a test may itself be slow: then a request may take so many times as long as the slowest one did before the attack.
FACTOR = 10

ATTACKS = {
    "disk": "while :; do dd if=/dev/zero of=/root/fill bs=1M count=200 conv=notrunc 2>/dev/null; sync; done",
    "processes": "for i in $(seq 150); do (while :; do :; done) & done; while :; do (exit) & done",
    "memory": "while :; do dd if=/dev/zero of=/dev/null bs=160M count=1 2>/dev/null; done",
    "log": "while :; do echo a line of a flood, long enough to be worth a record of its own; done",
    "kernel log": "while :; do echo flood > /dev/kmsg; echo flood > /dev/hvc0; done",
    "network": "while :; do echo x | nc -w 1 192.0.2.1 9; nslookup a$RANDOM.invalid 192.0.2.1; done",
    "volume": "while :; do for i in $(seq 300); do echo x > /volume/$i; done; rm -f /volume/*; done",
    "own API": "while :; do wget -T 2 -q -O /dev/null http://127.0.0.1:44772/ping; done",
}


def spent(fn):
    began = time.monotonic()
    fn()
    return time.monotonic() - began


class Client:
    """Threads of a hostile client. What they are answered does not matter here; that they are answered, or cut off, does."""

    def __init__(self, url, key):
        self.at, self.key = url.split("//")[1], key
        self.over = threading.Event()
        self.threads, self.answers = [], {}

    def ask(self, method, path, body=None):
        c = http.client.HTTPConnection(self.at, timeout=20)
        try:
            c.request(method, path, None if body is None else json.dumps(body), {"OPEN-SANDBOX-API-KEY": self.key, "Content-Type": "application/json"})
            r = c.getresponse()
            r.read(1 << 20)
            return r.status
        except OSError:
            return "cut off"
        except http.client.HTTPException:
            return "cut off"
        finally:
            c.close()

    def flood(self, name, *ask):
        def loop():
            while not self.over.is_set():
                answer = self.ask(*ask)
                counts = self.answers.setdefault(name, {})
                counts[answer] = counts.get(answer, 0) + 1
        self.threads.append(threading.Thread(target=loop, daemon=True))
        self.threads[-1].start()

    def silent(self, path, body):
        """Asks for an endless answer and never reads it."""
        c = http.client.HTTPConnection(self.at, timeout=20)
        with contextlib.suppress(OSError):
            c.request("POST", path, json.dumps(body), {"OPEN-SANDBOX-API-KEY": self.key, "Content-Type": "application/json"})
        return c

    def end(self):
        self.over.set()
        for t in self.threads:
            t.join(60)


def client_floods(client, victim):
    client.flood("metadata", "PATCH", f"/v1/sandboxes/{victim}/metadata", {f"k{i}": "v" * 200 for i in range(4000)})
    client.flood("listing", "GET", "/v1/sandboxes?pageSize=200")
    client.flood("garbage", "POST", "/v1/sandboxes", {"image": {"uri": "x" * 3000}, "entrypoint": ["y"] * 2000})
    client.flood("commands", "POST", f"/{victim}/44772/command", {"command": "true"})


# ---- the daemon alone, on this host: the hostile guest's agent is scripted

@pytest.fixture
def host(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(next(line for line in f if line.startswith("VmRSS")).split()[1])


def test_a_hostile_client_and_its_neighbour(host):
    host.start({"runtime": {"templates": False}, "server.keys.bad": {"key": "bad", "namespace": "bad"}, "server.keys.good": {"key": "good", "namespace": "good"}})
    host.headers = {"OPEN-SANDBOX-API-KEY": "bad"}
    victim = host.create()
    host.headers = {"OPEN-SANDBOX-API-KEY": "good"}
    good = host.create()

    def work():
        assert host.run(good, "echo works")[-1]["type"] == "execution_complete"
        assert host.ask("GET", f"/v1/sandboxes/{good}")[0] == 200
    quiet = [spent(work) for _ in range(ROUNDS)]
    before = resident_kib(host.proc.pid)
    client, unread = Client(host.url, "bad"), []
    try:
        for _ in range(3):
            client_floods(client, victim)
        unread = [client.silent(f"/{victim}/44772/command", {"command": "flood"}) for _ in range(20)]
        attacked = [spent(work) for _ in range(ROUNDS * 3)]
        # the attack has begun, and is refused where it must be
        end = time.monotonic() + 60
        while len(client.answers) < 4:
            assert time.monotonic() < end, client.answers
            attacked.append(spent(work))
    finally:
        client.end()
        for c in unread:
            c.close()
    assert max(attacked) < max(LIMIT_S, FACTOR * max(quiet)), (quiet, attacked)
    assert set(client.answers["metadata"]) <= {400, 413, 429, "cut off"}, client.answers
    assert 202 not in client.answers["garbage"], client.answers
    if "asan" not in str(host.PROGRAM):  # which keeps what was freed
        assert resident_kib(host.proc.pid) - before < 128 << 10, "the daemon keeps what a hostile client sent"
    work()


def test_a_guest_that_takes_each_stream_and_ends_it(host):
    """Programs of a sandbox that connect to its own execution API and hang up: the daemon's work for them has a rate."""
    host.plan(accept="flood")
    host.start({"runtime": {"templates": False}})
    began, box = time.monotonic(), host.create()

    def programs():
        return sum(what == "program" for _, what in host.steps())
    end = time.monotonic() + 60
    while programs() < 250:
        assert time.monotonic() < end, programs()
        time.sleep(0.1)
    # 100 a second, and what was on its way
    assert programs() <= 100 * (time.monotonic() - began + 2)
    assert host.run(box, "echo works")[-1]["type"] == "execution_complete"


# ---- real sandboxes

def monitors_kib(machine):
    text = machine.run("sh", "-c", "for p in $(pgrep -x mayfly-vmm); do grep -h VmRSS /proc/$p/status; done").stdout
    return [int(line.split()[1]) for line in text.splitlines()]


def test_a_hostile_sandbox_and_its_neighbour(daemon):
    claim = {"name": "volume", "mountPath": "/volume", "pvc": {"claimName": "of-the-hostile-one", "createIfNotExists": True}}
    good = create(daemon)["id"]
    bad = create(daemon, volumes=[claim], entrypoint=["sh", "-c", "while :; do echo the entrypoint floods, too; done"])["id"]

    def work():
        status, text, _ = call(daemon, "POST", f"/{good}/44772/command",
                               {"command": "true && dd if=/dev/zero of=/root/f bs=64k count=4 conv=fsync 2>/dev/null && echo done"})
        assert status == 200 and "done" in text and "execution_complete" in text, text

    try:
        work()
        quiet = [spent(work) for _ in range(ROUNDS)]
        for name, script in ATTACKS.items():
            status, text, _ = call(daemon, "POST", f"/{bad}/44772/command", {"command": script, "background": True})
            assert status == 200, (name, text)
        client = Client(daemon.url, daemon.api_key)
        try:
            client_floods(client, bad)
            attacked = [spent(work) for _ in range(ROUNDS)]
        finally:
            client.end()
        assert max(attacked) < max(LIMIT_S, FACTOR * max(quiet)), (quiet, attacked)
        # whatever became of the hostile one, it has cost no more than it was given, and it can be deleted
        if hasattr(daemon, "machine"):
            assert all(kib < (256 + 128) << 10 for kib in monitors_kib(daemon.machine))
            log = daemon.machine.run("sh", "-c", "wc -c < /run/mayfly-e2e/log").stdout
            assert int(log) < 64 << 20, log
    finally:
        assert call(daemon, "DELETE", f"/v1/sandboxes/{bad}")[0] == 204
        call(daemon, "DELETE", f"/v1/sandboxes/{good}")
