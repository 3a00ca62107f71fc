# SPDX-License-Identifier: Apache-2.0
"""What a sandbox feels of a hostile neighbour: the same work beside nobody, and beside one that does everything at once. The test of the same name
(tests/e2e/test_neighbour.py) asserts bounds; this measures."""
import json
import os
import time

from mb_core import Failed, us_since

ATTACKS = ("while :; do dd if=/dev/zero of=/root/fill bs=1M count=200 conv=notrunc 2>/dev/null; sync; done",
           "for i in $(seq 150); do (while :; do :; done) & done; while :; do (exit) & done",
           "while :; do dd if=/dev/zero of=/dev/null bs=160M count=1 2>/dev/null; done",
           "while :; do echo a line of a flood, long enough to be worth a record of its own; done",
           "while :; do echo x | nc -w 1 192.0.2.1 9; nslookup a$RANDOM.invalid 192.0.2.1; done",
           "while :; do wget -T 2 -q -O /dev/null http://127.0.0.1:44772/ping; done")
WORK = "true && dd if=/dev/zero of=/root/f bs=64k count=4 conv=fsync 2>/dev/null && echo done"


class Quiet:
    """phases: `true`; a file of 256 KiB written and synced by a command"""
    name = "mayfly"

    def __init__(self, ctx):
        self.d = ctx.daemon()
        self.api = self.d.api
        self.sid = self.api.create(self.d.image)
        self.api.command(self.sid)

    def attack(self):
        pass

    def relent(self):
        pass

    def sample(self):
        self.attack()
        try:
            t0 = time.monotonic_ns()
            self.api.command(self.sid, "true", b"execution_complete")
            done = us_since(t0)
            self.api.command(self.sid, WORK, b"execution_complete")
            total = us_since(t0)
        finally:
            self.relent()
        return {"total": total, "true": done, "file": total - done}

    def close(self):
        self.api.delete(self.sid)


class Attacked(Quiet):
    """the same beside a sandbox that fills its disk, forks, takes memory and CPU, floods log, network and its own API; made for each sample and
    deleted after it, so that the other arm is measured in peace"""
    name = "mayfly, attacked"

    def attack(self):
        self.bad = self.api.create(self.d.image)
        for script in ATTACKS:
            body = json.dumps({"command": script, "background": True}).encode()
            self.api.raw("POST", f"/{self.bad}/44772/command", [("Content-Type", "application/json")], body)
        time.sleep(float(os.environ.get("NEIGHBOUR_SETTLE", "3")))  # all of it has begun

    def relent(self):
        self.api.delete(self.bad)
        end = time.monotonic() + 60
        while any(s["id"] == self.bad for s in self.api.call("GET", "/v1/sandboxes?pageSize=200")["items"]):
            if time.monotonic() > end:
                raise Failed("the hostile sandbox is still listed 60 s after its delete")
            time.sleep(0.1)


SCENARIOS = {
    "neighbour": {
        "what": "a command and a synced file of 256 KiB, beside nobody and beside a hostile sandbox", "start": "before the request of `true` is written",
        "stop": "the end of the stream of the command that wrote the file", "arms": [Quiet, Attacked], "seconds": 120, "samples": 10,
    },
}
