# SPDX-License-Identifier: Apache-2.0
"""What all end-to-end tests share: an appliance (or this host, where its KVM is usable), a daemon in it, and ways to look inside.

The tests and the SDKs run here, where they are fast; only the daemon and its VMs are inside, behind one forwarded port. Fixtures:
  machine   the appliance: .run(cmd...) -> CompletedProcess, .publish(path...) -> path inside, .exchange (folder seen by both)
  daemon    the running daemon: .domain, .api_key, .url, .kill(), .start(), .log()
KEEP=1 leaves both running (and finds them again next time); E2E_MACHINE names the appliance, E2E_MEMORY and E2E_CPUS give it another size,
E2E_KERNEL another kernel (appliance-6.1). A whole run has two sides (pytest-xdist, tests/run), each with an appliance and a daemon of its
own and every test of a file on one side; the second appliance's name ends in -2.
"""
import json
import os
import pathlib
import secrets
import shlex
import shutil
import subprocess
import time
import urllib.request

import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = TOP / "build" / "bin"
MAYFLY = BIN / "mayfly"
CACHE = pathlib.Path(os.environ.get("MAYFLY_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "mayfly")
KEEP = bool(os.environ.get("KEEP"))
DAEMON_WAIT_S = 60
SIDE = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) + 1
# The files that take longest (measured, each over ten seconds) begin first, so that both sides end together. All other files come after them.
LONG_FIRST = ("points", "vm", "faults", "rounds", "image_boot", "agent", "sdks", "pull", "daemon", "images", "hostile", "soak", "guest_kernel", "lifecycle",
              "machine", "disk", "previous", "templates", "wire", "vsock", "exec", "burst", "jail", "vmm_cli", "bench", "cli", "hooks")

# half an hour in large sandboxes
collect_ignore = [] if os.environ.get("MAYFLY_STRESS") else ["test_code_whole.py"]


class Machine:
    """One appliance by name, driven through the command line, as a user would."""

    def __init__(self, name, memory="3G", cpus=1):
        self.name, self.memory, self.cpus = name, memory, cpus
        self.port = 0

    def cli(self, *args, **kw):
        kw.setdefault("timeout", 150)
        return subprocess.run([MAYFLY, "machine", *args[:1], "--name", self.name, *args[1:]], text=kw.pop("text", True), capture_output=True, **kw)

    def start(self, *more):
        kernel = os.environ.get("E2E_KERNEL")  # the name of a kernel that guest/kernel/build made
        if kernel:
            more = ("--kernel", CACHE / f"{kernel}-vmlinux", *more)
        r = self.cli("start", "--port", "0", "--memory", self.memory, "--cpus", str(self.cpus), *more)
        assert r.returncode == 0, r.stderr
        self.port = self.status()["port"]
        return self

    def status(self):
        return json.loads(self.cli("status", "--json").stdout)

    @property
    def exchange(self):
        return pathlib.Path(self.status()["dir"]) / "exchange"

    def run(self, *cmd, check=False, stdin=None, env=(), **kw):
        """Runs a command inside; its exit code is the command's, 125 means that the machine did not run it."""
        opts = [o for e in env for o in ("--env", e)] + ([] if stdin is not None else ["-n"])
        r = self.cli("exec", *opts, "--", *[str(c) for c in cmd], input=stdin, **kw)
        assert not check or r.returncode == 0, f"{cmd}: {r.returncode}\n{r.stdout}\n{r.stderr}"
        return r

    def popen(self, *cmd, **kw):
        return subprocess.Popen([MAYFLY, "machine", "exec", "--name", self.name, "-n", "--", *[str(c) for c in cmd]], **kw)

    def publish(self, *paths):
        r = self.cli("publish", *[str(p) for p in paths])
        assert r.returncode == 0, r.stderr
        return r.stdout.strip()

    def traced(self):
        """For tests/trace/make: the words before a command that run it under strace, and fold its calls into a file of the exchange folder."""
        some = os.environ.get("E2E_TRACE")
        if not some:
            return []
        fold = self.publish(TOP / "tests" / "trace" / "fold") + "/fold"
        # some calls only: the others are not even stopped at, and everything is nearly as fast as without
        some = [] if some == "1" else ["--seccomp-bpf", "-e", f"trace={some}"]
        return ["strace", "-f", "-Y", "-q", *some, "-e", "raw=!execve,execveat", "-e", "signal=KILL", "-o", f"|{fold} >>/exchange/trace"]

    def stop(self):
        return self.cli("stop")

    def remove(self):
        return self.cli("rm")


class Daemon:
    """mayflyd in the appliance, started through mayfly-priv as the unit file does."""

    def __init__(self, machine, config_more="", args=""):
        self.machine, self.args = machine, args
        self.api_key = "e2e-" + secrets.token_hex(8)
        self.domain = f"127.0.0.1:{machine.port}"
        self.url = f"http://{self.domain}"
        self.config_more = config_more
        # a registry that a test starts is on this host's loopback. For the daemon in the appliance it has a private address
        self.plain_http = True
        # a command prefix (shell) under which the helper is started, to imitate a host that lacks something
        self.under = ""
        self.limits_more = ""  # lines of that table
        self.memory_mib, self.overcommit = 65536, 200
        # host folders that volumes may be below: for the helper, and for the daemon
        self.host_paths = ["/var/lib/mayfly/shared", "/tmp/opensandbox-e2e"]
        self.proc = None
        self.bin = machine.publish(BIN, CACHE / "guest-vmlinux", TOP / "build" / "initramfs.cpio")

    def config(self):
        # clients reach it through the forwarded port, so that is what endpoints must name
        return "\n".join([
            "[server]", 'host = "0.0.0.0"', "port = 8080", f'api_key = "{self.api_key}"', f'eip = "{self.domain}"',
            "[runtime]", f'kernel = "{self.bin}/guest-vmlinux"', f'initrd = "{self.bin}/initramfs.cpio"',
            'state_dir = "/var/lib/mayfly/state"', 'run_dir = "/run/mayfly"',
            # a hundred guests at once on one emulated CPU: none is heard within a minute, and none hangs
            *(["step_timeout_seconds = 600", "create_timeout_seconds = 3600"] if os.environ.get("MAYFLY_STRESS") else []),
            # one emulated CPU and 3 GiB would admit ten sandboxes; clones of one template share nearly all of theirs
            "[limits]", f"cpu_overcommit = {self.overcommit}", f"memory_mib = {self.memory_mib}", self.limits_more,
            "[storage]", f"allowed_host_paths = {json.dumps(self.host_paths)}",
            "[images]", f"insecure_registries = {str(self.plain_http).lower()}", self.config_more, ""])

    def write_config(self):
        self.machine.run("dd", "of=/run/mayfly-e2e/config.toml", "status=none", stdin=self.config(), check=True)

    def reconfigure(self):
        """The helper starts the next daemon, which reads it and adopts the sandboxes."""
        self.write_config()
        self.kill()
        self.wait()

    def start(self):
        run = self.machine.run
        run("mkdir", "-p", "/run/mayfly-e2e", "/run/mayfly", "/var/lib/mayfly/state", check=True)
        self.write_config()
        # one that an earlier KEEP=1 left has another key, and maybe older programs
        run("sh", "-c", "pkill -TERM -x mayfly-priv; while pgrep -x 'mayfly-priv|mayflyd' >/dev/null; do sleep 0.1; done; "
            "pkill -KILL -x 'mayfly-broker|mayfly-net'")
        trace = "".join(shlex.quote(a) + " " for a in self.machine.traced())
        # detached: it outlives the connection that started it, as under an init
        run("sh", "-c", f"setsid {trace}{self.under} {self.bin}/mayfly-priv --bin-dir {self.bin} --run-dir /run/mayfly --state-dir /var/lib/mayfly/state "
            f"--user mayfly {' '.join('--host-path ' + p for p in self.host_paths)} -- --config /run/mayfly-e2e/config.toml {self.args} </dev/null >>/run/mayfly-e2e/log 2>&1 & echo $!", check=True)
        self.wait()
        return self

    def wait(self):
        """Until /health answers: the forwarded port accepts long before anybody listens behind it, so it is asked."""
        end, last = time.monotonic() + DAEMON_WAIT_S, None
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5) as r:
                    if r.status == 200:
                        return
            except OSError as e:
                last = e
            time.sleep(0.2)
        raise AssertionError(f"the daemon does not answer ({last}):\n{self.log()}")

    def put_images(self, *names):
        """Images by our own recipes: tiny, base, python, node."""
        r = subprocess.run([TOP / "guest" / "put-images", self.bin, "/var/lib/mayfly/state/images", *names], capture_output=True, text=True,
                           env=os.environ | {"MAYFLY_MACHINE": self.machine.name}, timeout=900)
        assert r.returncode == 0, r.stderr

    def kill(self, sig="KILL", name="mayflyd"):
        return self.machine.run("pkill", f"-{sig}", "-x", name)

    def stop(self):
        self.kill("TERM", "mayfly-priv")

    def end(self):
        """Stops the helper and the daemon, and waits until the helper has ended. Sandboxes go on, and the next helper finds them."""
        self.stop()
        end = time.monotonic() + DAEMON_WAIT_S
        while self.machine.run("pgrep", "-x", "mayfly-priv").returncode == 0:
            assert time.monotonic() < end, "mayfly-priv does not end"
            time.sleep(0.1)

    def restart(self, config_more="", args=""):
        """With another configuration."""
        self.end()
        self.config_more, self.args = config_more, args
        return self.start()

    def log(self, lines=80):
        return self.machine.run("tail", "-n", lines, "/run/mayfly-e2e/log").stdout


@pytest.fixture(scope="session")
def machine():
    assert MAYFLY.exists(), "build/bin/mayfly is missing: make"
    name = os.environ.get("E2E_MACHINE", "e2e") + (f"-{SIDE}" if SIDE > 1 else "")
    m = Machine(name, memory=os.environ.get("E2E_MEMORY", "3G"), cpus=os.environ.get("E2E_CPUS", "1")).start()
    yield m
    if not KEEP:
        m.stop()


class Running:
    """A daemon that somebody else started: E2E_DOMAIN=host:port, E2E_API_KEY. It has the images already."""

    def __init__(self):
        self.domain, self.api_key = os.environ["E2E_DOMAIN"], os.environ.get("E2E_API_KEY", "")
        self.url = f"http://{self.domain}"

    def put_images(self, *names):
        pass

    def log(self, lines=80):
        return "(its log is not ours)"


@pytest.fixture(scope="session")
def daemon(request):
    if "E2E_DOMAIN" in os.environ:
        yield Running()
        return
    machine = request.getfixturevalue("machine")
    d = Daemon(machine)
    d.put_images("tiny", "base")
    d.start()
    yield d
    if not KEEP:
        d.stop()


@pytest.fixture(scope="session")
def base_image(daemon):
    return "base"


@pytest.fixture(scope="session")
def python_image(daemon):
    daemon.put_images("python")
    return "python"


@pytest.fixture(scope="module")
def sandbox(daemon, base_image):
    """One sandbox for the tests of a file, through the Python SDK."""
    import opensandbox  # here: its environment is made by tests/run, not needed to look at this file
    from opensandbox.config import ConnectionConfigSync
    box = opensandbox.SandboxSync.create(base_image, connection_config=ConnectionConfigSync(domain=daemon.domain, api_key=daemon.api_key),
        resource={"cpu": "1", "memory": "512Mi"})
    yield box
    box.kill()
    box.close()


@pytest.fixture
def sdk_env(daemon):
    """What the SDKs and osb read from the environment."""
    return {"OPEN_SANDBOX_DOMAIN": daemon.domain, "OPEN_SANDBOX_API_KEY": daemon.api_key}


@pytest.fixture
def fresh_machine(request):
    """A machine of this test's own, gone afterwards."""
    m = Machine("t-" + secrets.token_hex(3), memory="1G")
    yield m
    if not KEEP:
        m.remove()


def pytest_collection_modifyitems(items):
    at = {f"test_{name}": i for i, name in enumerate(LONG_FIRST)}
    items.sort(key=lambda item: at.get(item.path.stem, len(at)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    # a failed test shows what the daemon said last; as a section of its report, which also comes over from another process
    report = (yield).get_result()
    d = getattr(item, "funcargs", {}).get("daemon")
    if d and report.failed and call.when == "call":
        report.sections.append(("daemon log", d.log(50)))


def has(program):
    return shutil.which(program) is not None
