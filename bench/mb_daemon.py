# SPDX-License-Identifier: Apache-2.0
"""A daemon of the bench's own, started as the unit file does it: mayfly-priv, jailed monitors, an unprivileged mayflyd; or one given by --api."""
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse

from mb_core import Absent, Failed, find, kernel, kvm_needed, root_needed
from mb_http import Api

IMAGE = "tiny"


class Given:
    def __init__(self, url):
        u = urllib.parse.urlparse(url)
        self.api = Api(u.hostname, u.port or 80, os.environ.get("OPEN_SANDBOX_API_KEY", ""))
        try:
            self.api.call("GET", "/health")
        except (OSError, Failed) as e:
            raise Absent(f"no daemon at {url}: {e}") from e
        self.image, self.one, self.pid = os.environ.get("MAYFLY_BENCH_IMAGE", IMAGE), None, None

    def sandbox(self):
        """A warm sandbox in which all scenarios may run commands. If it ended, this fails once, and the next call makes a new one."""
        if self.one is not None:
            status = self.api.call("GET", f"/v1/sandboxes/{self.one}")["status"]
            if status["state"] != "Running":
                gone, self.one = self.one, None
                raise Failed(f"the sandbox that scenarios share, {gone}, is {status['state']}: {status.get('reason', '')} {status.get('message', '')}")
        if self.one is None:
            self.one = self.api.create(self.image, entrypoint=["sleep", "86400"])
            self.api.command(self.one)
        return self.one

    def warm(self):
        """After this a create is restored: its template is there."""
        end = time.monotonic() + 120
        while True:
            sid = self.api.create(self.image)
            try:
                self.api.command(sid)
                if self.api.inspect(sid)[0] == "template":
                    return
            finally:
                self.api.delete(sid)
            if time.monotonic() > end:
                raise Failed("no template within 120 s")
            time.sleep(0.2)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def apart(k):
    """Groups and users of its own for the helper of the k-th daemon: two that shared them would end each other's monitors, slot by slot."""
    return ["--cgroup", f"/sys/fs/cgroup/mayfly-bench-{os.getpid()}-{k}", "--uid-base", str(300000 + k * 5 * 4096)]


class Daemon(Given):
    count = 0

    def __init__(self, ctx, runtime):
        kvm_needed()
        root_needed()
        if not ctx.store:
            raise Absent("no image store given (--store)")
        self.one, self.image = None, IMAGE
        ctx.disk(IMAGE)
        state = os.path.dirname(ctx.store)  # images are found below the state folder
        Daemon.count += 1
        runtime = dict(runtime)
        jail, network = runtime.pop("jail", True), runtime.pop("network", {})
        if Daemon.count > 1:  # each has a state folder of its own
            state = os.path.join(ctx.tmp, f"state{Daemon.count}")
            shutil.copytree(ctx.store, os.path.join(state, "images"), symlinks=True, copy_function=lambda a, b: subprocess.run(
                ["cp", "-a", "--reflink=auto", "--sparse=always", a, b], check=True))
        self.state = state
        self.run = f"/run/mayfly-bench-{os.getpid()}-{Daemon.count}"
        self.bin = os.path.dirname(find("mayfly-priv"))
        port, key = free_port(), secrets.token_hex(16)
        user = os.environ.get("MAYFLY_BENCH_USER", "mayfly")
        if subprocess.run(["getent", "passwd", user], stdout=subprocess.DEVNULL, check=False).returncode != 0:
            user = "900"
        for d in (self.run, state):
            os.makedirs(d, exist_ok=True)
        conf = os.path.join(self.run, "config.toml")
        with open(conf, "w") as f:
            f.write(f'[server]\nhost = "127.0.0.1"\nport = {port}\napi_key = "{key}"\n[runtime]\nkernel = "{kernel()}"\n'
                    f'initrd = "{find("initramfs.cpio")}"\nstate_dir = "{state}"\nrun_dir = "{self.run}"\n'
                    + "".join(f"{k} = {str(v).lower()}\n" for k, v in runtime.items()) +
                    # an emulated CPU and 3 GiB would admit ten sandboxes; clones of one template share nearly all of their memory
                    '[limits]\ncpu_overcommit = 1000\nmemory_mib = 1048576\n[network]\n' + "".join(f"{k} = {json.dumps(v)}\n" for k, v in network.items()))
        subprocess.run(["chown", "-R", f"{user}:", os.path.join(state, "images"), state], check=True)
        volumes = os.path.join(state, "volumes")  # an earlier run in this appliance left it; it is the helper's
        if os.path.exists(volumes):
            os.chown(volumes, 0, 0)
            os.chmod(volumes, 0o700)
        self.log_path = os.path.join(self.run, "log")
        argv = [os.path.join(self.bin, "mayfly-priv"), "--bin-dir", self.bin, "--run-dir", self.run, "--state-dir", state, "--user", user,
                "--show", kernel(), "--show", find("initramfs.cpio"), *apart(Daemon.count), "--"]
        self.group = apart(Daemon.count)[1]
        if not jail:  # as root mayflyd needs the option twice
            argv = [os.path.join(self.bin, "mayflyd"), "--no-jail", "--no-jail"]
        with open(self.log_path, "w") as log:
            self.p = subprocess.Popen([*argv, "--config", conf], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        ctx.at_end(self.close)
        self.pid = self.p.pid
        self.api = Api("127.0.0.1", port, key)
        self.wait()
        if runtime.get("templates", True):
            self.warm()

    def log(self):
        with open(self.log_path) as f:
            return f.read()[-600:].replace("\n", " | ")

    def wait(self):
        end = time.monotonic() + 60
        while True:
            try:
                self.api.call("GET", "/health")
                return
            except (OSError, Failed):
                if self.p.poll() is not None or time.monotonic() > end:
                    raise Failed("the daemon did not come up: " + self.log()) from None
                time.sleep(0.1)

    def close(self):
        try:
            for s in self.api.call("GET", "/v1/sandboxes?pageSize=200")["items"]:
                self.api.delete(s["id"])
        except (Failed, OSError, KeyError):
            pass
        self.p.send_signal(signal.SIGTERM)
        try:
            self.p.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.p.pid, signal.SIGKILL)
            self.p.wait()
        # ends the monitors that waited in its pool, too
        for path, _, _ in os.walk(self.group, topdown=False):
            try:
                with open(os.path.join(path, "cgroup.kill"), "w") as f:
                    f.write("1")
                os.rmdir(path)
            except OSError:
                pass  # its processes are not reaped yet: an empty group stays
        shutil.rmtree(self.run, ignore_errors=True)
