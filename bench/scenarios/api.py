# SPDX-License-Identifier: Apache-2.0
"""What a user of the HTTP API waits for: the daemon, the jail and the agent are inside every number."""
import json
import threading
import time

from mb_core import Failed, us_since


class Arm:
    name = "mayfly"
    runtime = {}

    def __init__(self, ctx):
        self.d = ctx.daemon(**self.runtime)
        self.api, self.image = self.d.api, self.d.image


WHOLE = ("all", "total", "create")  # what the daemon counts over all of its phases


class Create(Arm):
    """phases: what the daemon counted inside the create, the rest until its answer, the request for the endpoint, the first command until its first byte"""

    def sample(self):
        t0 = time.monotonic_ns()
        sid = self.api.create(self.image)
        made = us_since(t0)
        try:
            self.api.execd(sid)
            end = us_since(t0)
            first, _ = self.api.command(sid)
            origin, inner = self.api.inspect(sid)
            if (origin == "template") != self.runtime.get("templates", True):
                raise Failed(f"the sandbox came from {origin or 'nothing known'}")
        finally:
            self.api.delete(sid)
        known = sum(v for k, v in inner.items() if k not in WHOLE)
        phases = {k: v for k, v in inner.items() if k not in WHOLE}
        return {"total": end + first, **phases, "http and rest": max(0.0, made - known), "endpoint": end - made, "first command": first}


class CreateCold(Create):
    """the same with templates switched off: every create boots"""
    name = "mayfly-boot"
    runtime = {"templates": False}


class CreateNoPool(Create):
    """no monitor waits: each create has one jailed and started for it"""
    name = "mayfly-no-pool"
    runtime = {"blank_pool": 0}


class CreateNoJail(Create):
    name = "mayfly-no-jail"
    runtime = {"jail": False}


class CreateNoJailNoPool(Create):
    name = "no jail, no pool"
    runtime = {"jail": False, "blank_pool": 0}


class Exec(Arm):
    def sample(self):
        return {"total": self.api.command(self.d.sandbox(), "true", b"execution_complete")[1]}


class Sessions(Arm):
    """Requests to the execution API of the sandbox that scenarios share."""

    def ask(self, method, path, body=None):
        """(microseconds, the answer's bytes); the status must be of the 200s."""
        at, headers = self.api.execd(self.d.sandbox())
        t0 = time.monotonic_ns()
        data = self.api.raw(method, at + path, [("Content-Type", "application/json"), *headers], b"" if body is None else json.dumps(body).encode())[1]
        return us_since(t0), data

    def new(self):
        took, data = self.ask("POST", "/v1/isolated/session", {"workspace": {"path": "/workspace"}})
        return took, "/v1/isolated/session/" + json.loads(data)["session_id"]


class IsolatedCreate(Sessions):
    """create; the delete is not in the number"""
    name = "create"

    def sample(self):
        took, at = self.new()
        self.ask("DELETE", at)
        return {"total": took}


class IsolatedRun(Sessions):
    name = "run"

    def __init__(self, ctx):
        super().__init__(ctx)
        self.at = self.new()[1]

    def sample(self):
        return {"total": self.ask("POST", self.at + "/run", {"code": "true"})[0]}

    def close(self):
        self.ask("DELETE", self.at)


class ShellRun(Sessions):
    name = "run in a shell session"

    def __init__(self, ctx):
        super().__init__(ctx)
        self.at = "/session/" + json.loads(self.ask("POST", "/session", {})[1])["session_id"]

    def sample(self):
        return {"total": self.ask("POST", self.at + "/run", {"command": "true"})[0]}

    def close(self):
        self.ask("DELETE", self.at)


class PlainCommand(Exec):
    name = "command"


class FirstAfterIdle(Arm):
    """the first command after one second in which nothing was asked"""

    def sample(self):
        sid = self.d.sandbox()
        time.sleep(1)
        return {"total": self.api.command(sid, "true", b"execution_complete")[1]}


class PauseResume(Arm):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.sid = self.api.create(self.image)
        self.api.command(self.sid)

    def sample(self):
        sid, api = self.sid, self.api
        t0 = time.monotonic_ns()
        api.call("POST", f"/v1/sandboxes/{sid}/pause")
        api.wait_state(f"/v1/sandboxes/{sid}", "Paused")
        paused = us_since(t0)
        t1 = time.monotonic_ns()
        api.call("POST", f"/v1/sandboxes/{sid}/resume")
        api.wait_state(f"/v1/sandboxes/{sid}", "Running")
        api.command(sid)
        back = us_since(t1)
        return {"total": paused + back, "pause": paused, "resume to output": back}

    def close(self):
        self.api.delete(self.sid)


class Snapshot(Arm):
    def sample(self):
        sid = self.d.sandbox()
        t0 = time.monotonic_ns()
        snap = self.api.call("POST", f"/v1/sandboxes/{sid}/snapshots", {})["id"]
        answered = us_since(t0)
        self.api.wait_state(f"/v1/snapshots/{snap}", "Ready")
        ready = us_since(t0)
        self.api.call("DELETE", f"/v1/snapshots/{snap}")
        return {"total": ready, "answered": answered, "until Ready": ready - answered}


def burst(k):
    class Burst(Arm):
        def sample(self):
            made, lock, errors = [], threading.Lock(), []

            def one():
                try:
                    sid = self.api.create(self.image)
                    with lock:
                        made.append(sid)
                    self.api.command(sid)
                except Exception as e:  # noqa: BLE001: told below
                    errors.append(str(e))
            threads = [threading.Thread(target=one) for _ in range(k)]
            t0 = time.monotonic_ns()
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            took = us_since(t0)
            for sid in made:
                self.api.delete(sid)
            if errors:
                raise Failed(f"{len(errors)} of {k} creates failed: {errors[0]}")
            return {"total": took}
    return Burst


class Sustained(Arm):
    def sample(self):
        t0 = time.monotonic_ns()
        for _ in range(3):
            sid = self.api.create(self.image)
            self.api.command(sid)
            self.api.delete(sid)
        return {"total": us_since(t0) / 3}


class Cheap(Arm):
    """calls that touch no virtual machine, one after the other on one connection"""
    calls = 100
    path = "/v1/sandboxes?pageSize=1"

    def sample(self):
        t0 = time.monotonic_ns()
        for _ in range(self.calls):
            self.api.raw("GET", self.path)
        return {"total": us_since(t0) / self.calls}


class CheapHealth(Cheap):
    name = "mayfly-health"
    path = "/health"


class Kill(Arm):
    def sample(self):
        sid = self.api.create(self.image)
        self.api.command(sid)
        t0 = time.monotonic_ns()
        self.api.delete(sid)
        return {"total": us_since(t0)}


BLOB = 16


class Files(Arm):
    def sample(self):
        sid, body = self.d.sandbox(), b"\xa5" * (BLOB << 20)
        send = self.api.upload(sid, [("/tmp/bench.bin", body)])
        t0 = time.monotonic_ns()
        send()
        up = us_since(t0)
        got = self.api.download(sid, "/tmp/bench.bin")
        both = us_since(t0)
        if got != body:
            raise Failed(f"download: {len(got)} bytes, or other bytes than those sent")
        return {"total": both, "upload": up, "download": both - up}


SCENARIOS = {
    "api-create": {
        "what": "create to the first output of a command, through the API", "start": "before the create request is written",
        "stop": "the first `stdout` event of `echo hi`", "arms": [Create, CreateCold], "seconds": 90,
    },
    "jail": {
        "what": "what the jail costs a create: with it and without it, with monitors waiting and without", "start": "before the create request is written",
        "stop": "the first `stdout` event of `echo hi`", "arms": [Create, CreateNoJail, CreateNoPool, CreateNoJailNoPool], "seconds": 60,
    },
    "api-exec": {
        "what": "command round trip on a warm sandbox, connection kept", "start": "before the request of `true` is written",
        "stop": "the end of its stream", "arms": [Exec], "seconds": 12,
    },
    "api-isolated": {
        "what": "isolated sessions: `create` compared with a plain command (goal: at most 2 x), `run` compared with a run in a shell session (goal: at most 1.2 x)",
        "start": "before the request is written; the code is `true`", "stop": "the answer is read, or the end of its stream",
        "arms": [PlainCommand, IsolatedCreate, ShellRun, IsolatedRun], "seconds": 20,
    },
    "api-idle-exec": {
        "what": "the same, after one second in which nothing was asked", "start": "before the request of `true` is written",
        "stop": "the end of its stream", "arms": [FirstAfterIdle], "seconds": 45,
    },
    "api-pause": {
        "what": "pause and resume", "start": "before the pause request is written", "stop": "the end of the first command after the resume",
        "arms": [PauseResume], "seconds": 40,
    },
    "api-snapshot": {
        "what": "a live snapshot of a running sandbox", "start": "before the request is written",
        "stop": "the snapshot is Ready (asked again and again: the protocol has no event)", "arms": [Snapshot], "seconds": 40,
    },
    **{f"api-burst-{k}": {
        "what": f"{k} create{'s' * (k > 1)} at once", "start": "before the first request is written", "stop": "the end of the last one's `echo hi`",
        "arms": [burst(k)], "seconds": {1: 15, 8: 45, 32: 80}[k], "samples": {1: 30, 8: 12, 32: 6}[k], "passes": {1: 3, 8: 2, 32: 1}[k], "rate": (k, "sandboxes/s"),
    } for k in (1, 8, 32)},
    "api-sustained": {
        "what": "create, command, kill, three in a row: time for one", "start": "before the first create request", "stop": "the last delete is answered",
        "arms": [Sustained], "seconds": 40, "rate": (1, "/s"),
    },
    "api-kill": {
        "what": "the end of one sandbox", "start": "before the delete request is written", "stop": "it is answered", "arms": [Kill], "seconds": 25,
        "rate": (1, "/s"),
    },
    "api-cheap": {
        "what": "calls that touch no virtual machine: list (one row), health; one connection", "start": "before the first request",
        "stop": "the last answer; time for one of 100", "arms": [Cheap, CheapHealth], "seconds": 20, "rate": (1, "/s"),
    },
    "api-files": {
        "what": f"a file of {BLOB} MiB up and down", "start": "before the upload request is written", "stop": "the last byte of the download",
        "arms": [Files], "seconds": 40, "phase_rate": {"upload": BLOB, "download": BLOB}, "rate": (2 * BLOB, "MiB/s"),
    },
}
