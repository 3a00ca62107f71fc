# SPDX-License-Identifier: Apache-2.0
"""mayflyd on this very host, without a helper. fake/mayfly-vmm is in the place of its monitors. So tests see in milliseconds, step by step,
what the daemon does when a monitor, a guest or the host misbehaves. What a real VM does is tried by other tests."""
import contextlib
import json
import os
import pathlib
import re
import select
import signal
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request

from conftest import BIN, MAYFLY

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = os.environ.get("MAYFLYD", BIN / "mayflyd")
WAIT_S = 60
BOX = {"image": {"uri": "tiny"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"memory": "256Mi"}}


def stop(pid):
    """Sends SIGSTOP and waits until every thread has stopped, because a signal arrives some time after it was sent."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + WAIT_S
    while any(t.read_text().rsplit(")", 1)[1].split()[0] not in "Tt" for t in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")):
        assert time.monotonic() < end, f"process {pid} does not stop"
        time.sleep(0.005)


def kill(pid):
    """Sends SIGKILL and waits until the process is dead, because a signal arrives some time after it was sent."""
    fd = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        dead, _, _ = select.select([fd], [], [], WAIT_S)
        assert dead, f"process {pid} does not die"
    finally:
        os.close(fd)


class HostDaemon:
    PROGRAM = PROGRAM

    def __init__(self, folder):
        self.dir = pathlib.Path(folder)
        self.config_path, self.log_path, self.plan_path = self.dir / "config.toml", self.dir / "log", self.dir / "plan"
        for d in ("state", "bin", "root"):
            (self.dir / d).mkdir(parents=True, exist_ok=True)
        (self.dir / "bin" / "mayfly-vmm").symlink_to(HERE / "fake" / "mayfly-vmm")
        (self.dir / "bin" / "mayfly-image").symlink_to(BIN / "mayfly-image")
        (self.dir / "root" / "file").write_text("of an image\n")
        subprocess.run(["tar", "-C", self.dir / "root", "-cf", self.dir / "root.tar", "."], check=True)
        subprocess.run([MAYFLY, "image", "import", "--store", self.dir / "state" / "images", "--local", self.dir / "root.tar", "tiny"],
                       check=True, capture_output=True)
        self.proc, self.url, self.headers, self.env, self.program = None, None, {}, {}, PROGRAM
        self.plan()

    def config(self, more=None, **server):
        """more: {table: {key: value}}"""
        tables = {"server": {"port": 0} | server, "runtime": {"state_dir": f"{self.dir}/state", "run_dir": f"{self.dir}/run", "bin_dir": f"{self.dir}/bin",
                  "kernel": f"{self.dir}/root.tar", "initrd": f"{self.dir}/root.tar", "blank_pool": 0}, "limits": {"disk_mib": 64, "cpu_overcommit": 500, "memory_mib": 1 << 20}}
        for t, kv in (more or {}).items():
            tables.setdefault(t, {}).update(kv)
        self.config_path.write_text("".join(f"[{t}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in kv.items()) for t, kv in tables.items()))
        return self.config_path

    def plan(self, **steps):
        self.plan_path.write_text(json.dumps(steps))
        return self

    def steps(self):
        """The steps that the monitors took: [(pid, step)]."""
        try:
            return [tuple(line.split()[:2]) for line in (self.dir / "plan.log").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def start(self, more=None, **server):
        self.config(more, **server)
        return self.again()

    def again(self):
        """Starts a daemon with the configuration that was written last."""
        at = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen([self.program, "--config", self.config_path, "--no-jail", "--no-jail", "-v"], stdout=log, stderr=log,
                                         stdin=subprocess.DEVNULL, env=os.environ | {"FAKE_PLAN": str(self.plan_path)} | self.env)
        end = time.monotonic() + WAIT_S
        while not (m := re.search(r"listening on \S+ port (\d+)", self.log_path.read_text()[at:])):
            assert self.proc.poll() is None and time.monotonic() < end, self.log_path.read_text()[at:]
            time.sleep(0.01)
        self.port = int(m[1])
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def reload(self, more=None, **server):
        """The configuration is read again while the daemon runs."""
        at = self.log_path.stat().st_size
        self.config(more, **server)
        self.proc.send_signal(signal.SIGHUP)
        end = time.monotonic() + WAIT_S
        while "configuration: read anew" not in self.log_path.read_text()[at:]:
            assert self.proc.poll() is None and time.monotonic() < end, self.log()
            time.sleep(0.01)

    def end(self, sig=signal.SIGKILL):
        self.proc.send_signal(sig)
        return self.proc.wait(WAIT_S)

    def log(self, lines=80):
        return "\n".join(self.log_path.read_text().splitlines()[-lines:]) if self.log_path.exists() else ""

    def monitors(self):
        """Process ids of this daemon's monitors that live."""
        found = []
        for pid in {p for p, _ in self.steps()}:
            try:
                line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                # one that was killed has no command line any more before it is dead
                if b"mayfly-vmm" in line or (not line and state not in "ZX"):
                    found.append(int(pid))
            except OSError:
                pass
        return found

    def clean(self):
        if self.proc and self.proc.poll() is None:
            self.end()
        # also monitors that have logged nothing yet, and children that the daemon has forked and that have not executed their program yet
        ours = os.fsencode(self.dir / "bin" / "mayfly-vmm"), os.fsencode(self.config_path)
        left, end = set(pathlib.Path("/proc").glob("[0-9]*")), time.monotonic() + 1
        while left and time.monotonic() < end:
            for p in list(left):
                with contextlib.suppress(OSError):
                    line = (p / "cmdline").read_bytes()
                    if not line and os.readlink(p / "exe"):
                        continue  # in the middle of an exec: its command line comes in a moment
                    if any(o in line for o in ours):
                        os.kill(int(p.name), signal.SIGKILL)
                left.discard(p)
            time.sleep(0.01 if left else 0)

    @contextlib.contextmanager
    def unwritable(self, *tables):
        """No row of these tables of the database can be written or deleted meanwhile, as on a disk that is full or broken."""
        with contextlib.closing(sqlite3.connect(self.dir / "state" / "state.db", isolation_level=None)) as db:
            pairs = [(t, what) for t in tables for what in ("INSERT", "UPDATE", "DELETE")]
            for t, what in pairs:
                db.execute(f"CREATE TRIGGER no_{what}_{t} BEFORE {what} ON {t} BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
            try:
                yield
            finally:
                for t, what in pairs:
                    db.execute(f"DROP TRIGGER no_{what}_{t}")

    # ---- asking

    def ask(self, method, path, body=None, headers=None, timeout=WAIT_S):
        """(status, parsed body, headers)"""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        req = urllib.request.Request(self.url + path, method=method, data=data, headers=self.headers | (headers or {}))
        try:
            with urllib.request.urlopen(req, timeout=timeout) as r:
                status, text, head = r.status, r.read(), r.headers
        except urllib.error.HTTPError as e:
            status, text, head = e.code, e.read(), e.headers
        assert head["X-Request-ID"], "every answer carries one"
        return status, json.loads(text) if (head["Content-Type"] or "").startswith("application/json") else text.decode(), head

    def create(self, **more):
        status, box, _ = self.ask("POST", "/v1/sandboxes", BOX | more)
        assert status == 202, box
        return box["id"]

    def state(self, box):
        status, b, _ = self.ask("GET", f"/v1/sandboxes/{box}")
        return b["status"]["state"] if status == 200 else status

    def until(self, box, *states):
        end = time.monotonic() + WAIT_S
        while (s := self.state(box)) not in states:
            assert time.monotonic() < end, f"{box} is {s}, not {states}:\n{self.log_path.read_text()[-3000:]}"
            time.sleep(0.02)
        return s

    def run(self, box, command):
        status, text, _ = self.ask("POST", f"/{box}/44772/command", {"command": command})
        return [json.loads(e) for e in text.split("\n\n") if e.strip()] if status == 200 else (status, text)

    def settled(self, want):
        """Waits until `want` monitors live."""
        end = time.monotonic() + WAIT_S
        while len(self.monitors()) != want:
            assert time.monotonic() < end, f"{self.monitors()} live, {want} expected"
            time.sleep(0.02)

    def cleared(self, pattern):
        """Waits until the state folder has no file that matches: files are removed after the answer."""
        end = time.monotonic() + WAIT_S
        while left := list((self.dir / "state").glob(pattern)):
            assert time.monotonic() < end, left
            time.sleep(0.02)
