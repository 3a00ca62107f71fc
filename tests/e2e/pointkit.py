# SPDX-License-Identifier: Apache-2.0
"""A sandbox with a process that remembers: it counts without a gap, keeps a database and a source of random numbers open, and can be asked."""
import base64
import re
import time

from test_lifecycle import SLOW, call, run, until

HELPER = r'''
import hashlib, os, select, sqlite3, sys, time
noise = open("/dev/urandom", "rb", buffering=0)
log = open("/root/count", "a")
db = sqlite3.connect("/root/db")
db.execute("create table t (k integer primary key, v blob, sum text)")
db.commit()
n, last, longest = 0, time.monotonic(), 0.0
def insert(arg):
    v = os.urandom(20000)
    db.execute("insert into t values (?, ?, ?)", (int(arg), v, hashlib.sha256(v).hexdigest()))
    db.commit()
    return "ok"
def check(arg):
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    rows = db.execute("select k, v, sum from t order by k").fetchall()
    assert all(hashlib.sha256(v).hexdigest() == s for k, v, s in rows)
    log.flush()
    lines = open("/root/count").read().split()
    assert lines == [str(i + 1) for i in range(n)], "the count has a gap"
    return "%d %d" % (len(rows), n)
ask = {"insert": insert, "check": check, "count": lambda a: str(n), "clock": lambda a: repr(time.time()), "pid": lambda a: str(os.getpid()),
       "random": lambda a: (noise.read(16) + os.getrandom(16)).hex()}
os.mkfifo("/root/in"); os.mkfifo("/root/out")
fd = os.open("/root/in", os.O_RDWR)
while True:
    if select.select([fd], [], [], float(sys.argv[1]))[0]:
        name, _, arg = os.read(fd, 4096).decode().strip().partition(" ")
        try: answer = ask[name](arg)
        except Exception as e: answer = "error " + repr(e)
        with open("/root/out", "w") as f: f.write(answer + "\n")
    n += 1
    log.write("%d\n" % n)
'''


def ask(*words):
    """The shell command that asks the helper and prints its answer."""
    return f"echo {' '.join(str(w) for w in words)} > /root/in; cat /root/out"


def wall(machine):
    """How far the clock that the daemon gives to its guests is ahead of ours, and how far from that it may be: the best of a few looks."""
    def look():
        begun = time.time()
        inside = float(machine.run("date", "+%s.%N").stdout)
        return (time.time() - begun) / 2, inside - (begun + time.time()) / 2
    unsure, ahead = min(look() for _ in range(5))
    return ahead, unsure


class Box:
    def __init__(self, daemon, body, **more):
        self.daemon = daemon
        status, sb, _ = call(daemon, "POST", "/v1/sandboxes", {"timeout": 80000} | body | more)
        assert status == 202, sb
        self.id = sb["id"]
        try:
            until(daemon, self.id, "Running")
        except AssertionError:
            self.delete()
            raise

    def start_helper(self, period=0.05):
        """A process that counts once a period and answers what it is asked. (A hundred of them at twenty a second are more than an emulated CPU does.)"""
        text = base64.b64encode(HELPER.encode()).decode()
        self.run(f"echo {text} | base64 -d > /root/helper.py; python3 /root/helper.py {period} >/root/err 2>&1 & until [ -p /root/out ]; do sleep 0.1; done")
        return self

    def run(self, command):
        return run(self.daemon, self.id, command)

    def ask(self, *words):
        answer = self.run(ask(*words)).strip()
        assert not answer.startswith("error"), answer
        return answer

    def post(self, what, expect=202):
        status, answer, _ = call(self.daemon, "POST", f"/v1/sandboxes/{self.id}/{what}")
        assert status == expect, answer
        return answer

    def snapshot(self):
        s = self.post("snapshots")
        end = time.monotonic() + SLOW
        while s["status"]["state"] == "Creating":
            assert time.monotonic() < end, s
            time.sleep(0.1)
            s = call(self.daemon, "GET", f"/v1/snapshots/{s['id']}")[1]
        assert s["status"]["state"] == "Ready", s
        return s["id"]

    def inspect(self):
        return call(self.daemon, "GET", f"/v1/sandboxes/{self.id}/diagnostics/inspect")[1]

    def phase_ms(self, name):
        m = re.search(rf"phase_{name}_ms: ([0-9.]+)", self.inspect())
        return float(m[1]) if m else 0.0

    def delete(self):
        assert call(self.daemon, "DELETE", f"/v1/sandboxes/{self.id}")[0] == 204


def python_box(daemon, image="python", memory="512Mi", cpu="1"):
    return Box(daemon, {"image": {"uri": image}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": cpu, "memory": memory}})


def from_snapshot(daemon, snapshot, **more):
    return Box(daemon, {"snapshotId": snapshot, "resourceLimits": {"cpu": "1", "memory": "512Mi"}}, **more)


def forks_of(box, n, what="sandboxes", source=None, **more):
    """n children of a running sandbox, or of a snapshot (what="snapshots", source=its id)."""
    status, answer, _ = call(box.daemon, "POST", f"/v1/{what}/{source or box.id}/fork", {"count": n, "timeout": 80000} | more)
    assert status == 202 and len(answer["items"]) == n, answer
    children = []
    for i in answer["items"]:
        if "sandbox" in i:
            children.append(Box.__new__(Box))
            children[-1].daemon, children[-1].id = box.daemon, i["sandbox"]["id"]
    errors = [i["error"] for i in answer["items"] if "error" in i]
    if errors:
        for c in children:
            c.delete()
    assert not errors, errors
    for c in children:
        until(c.daemon, c.id, "Running")
    return children


def delete_snapshot(daemon, snapshot):
    assert call(daemon, "DELETE", f"/v1/snapshots/{snapshot}")[0] == 204
