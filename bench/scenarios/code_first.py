# SPDX-License-Identifier: Apache-2.0
"""The scenarios code-first and code-memory: sandboxes of the code-interpreter-python image whose Jupyter server and kernels a user template holds."""
import json
import os
import time

from mb_core import Absent, Failed, us_since
from scenarios.density import Fill, smaps

IMAGE = "code-interpreter-python"
ENTRY = ["/opt/code-interpreter/code-interpreter.sh"]
SIZE = {"cpu": "1", "memory": "1Gi"}
BUILD_S, IDLE_S = 900, 10


class Arm:
    def __init__(self, ctx):
        ctx.disk(IMAGE)
        self.d = ctx.daemon()
        self.api = self.d.api
        self.template = ctx.once("code template", self.build)

    def build(self):
        tpl = self.api.call("POST", "/v1/templates", {"image": IMAGE, "publish": "s3://local/bench", "entrypoint": ENTRY, "resourceLimits": SIZE,
                                                      "readiness": {"probe": "cmd:///opt/code-interpreter/warm"}})["templateId"]
        end = time.monotonic() + BUILD_S
        while (status := self.api.call("GET", f"/v1/templates/{tpl}")["status"])["phase"] in ("Pending", "Building"):
            if time.monotonic() > end:
                raise Absent(f"the template is not built after {BUILD_S} s")
            time.sleep(0.5)
        if status["phase"] != "Succeeded":
            raise Absent(f"the template was not built: {status}")
        return tpl

    def clone(self):
        return self.api.call("POST", "/v1/sandboxes", {"templateId": self.template, "timeout": 3600})["id"]

    def cold(self):
        return self.api.create(IMAGE, entrypoint=ENTRY, resourceLimits=SIZE)

    def first_result(self, sid):
        """Microseconds to the result of `1 + 1`."""
        path, headers = self.api.execd(sid)
        seen = {"data": b"", "at": None}
        t0 = time.monotonic_ns()

        def on_piece(p):
            seen["data"] += p
            if seen["at"] is None and b'"result"' in seen["data"]:
                seen["at"] = us_since(t0)
        body = json.dumps({"code": "1 + 1", "context": {"language": "python"}}).encode()
        self.api.raw("POST", path + "/code", [("Content-Type", "application/json"), *headers], body, on_piece)
        if seen["at"] is None or b'"execution_complete"' not in seen["data"]:
            raise Failed("cell: " + seen["data"][-200:].decode("utf-8", "replace"))
        return seen["at"]

    def timed(self, make, first):
        t0 = time.monotonic_ns()
        sid = make()
        made = us_since(t0)
        try:
            self.api.execd(sid)
            end = us_since(t0)
            at = first(sid)
        finally:
            self.api.delete(sid)
        return {"total": end + at, "create": made, "endpoint": end - made, "first": at}


class Result(Arm):
    """create from the warm template, to the result of `1 + 1`"""
    name = "mayfly"

    def sample(self):
        return self.timed(self.clone, self.first_result)


class Command(Arm):
    """create from the same template, to the first output of `echo hi`"""
    name = "command"

    def sample(self):
        return self.timed(self.clone, lambda sid: self.api.command(sid)[0])


class Cold(Arm):
    """create of the image: Jupyter and the kernel start in the sandbox"""
    name = "mayfly-boot"

    def sample(self):
        return self.timed(self.cold, self.first_result)


class Warm(Arm):
    """an idle clone of the warm template: its Jupyter server and all of its kernels"""
    name = "mayfly"

    def make(self):
        return self.clone()

    def sample(self):
        before = set(Fill.monitors())
        sid = self.make()
        try:
            self.api.command(sid)
            time.sleep(IDLE_S)
            found = []
            for pid in set(Fill.monitors()) - before:
                try:
                    maps = smaps(pid)
                except OSError:
                    continue
                # a monitor that waits in the pool maps no memory file yet
                if any(os.path.basename(m[2]).startswith(("mem", "memfd")) and m[3].get("Rss") for m in maps):
                    found.append(maps)
            if not found:
                raise Failed("no monitor of this sandbox was found")
            maps = max(found, key=lambda maps: sum(m[3]["Rss"] for m in maps))
            return {"total": sum(m[3]["Pss"] for m in maps), "anonymous": sum(m[3]["Anonymous"] for m in maps)}
        finally:
            self.api.delete(sid)


class Plain(Warm):
    """an idle sandbox of the same image and size without them"""
    name = "plain"

    def make(self):
        return self.api.create(IMAGE, entrypoint=["sleep", "86400"], resourceLimits=SIZE)


SCENARIOS = {
    "code-first": {
        "what": "create to the first result of Python (`mayfly`: from a template with warm kernels; `mayfly-boot`: from the image) and, from the same template, to the first output of a command",
        "start": "before the create request is written", "stop": "the `result` event of `1 + 1`; `command`: the first `stdout` event of `echo hi`",
        "arms": [Result, Command, Cold], "seconds": 240, "samples": 10, "images": [IMAGE], "asked": True,
    },
    "code-memory": {
        "what": "memory of an idle sandbox: proportional share of its monitor, with warm kernels from a template and without any", "start": "-",
        "stop": f"{IDLE_S} s after its first command", "unit": "KiB", "arms": [Warm, Plain], "seconds": 120, "samples": 5, "passes": 1, "images": [IMAGE], "asked": True,
    },
}
