# SPDX-License-Identifier: Apache-2.0
"""The jails as they are: every process of a running daemon by /proc, and the tests of tests/platform on the kernel and cgroups of the
appliance, which a host may lack."""
import re
import subprocess
import time

import pytest

from conftest import BIN, TOP
from test_lifecycle import call, create, run

PLATFORM = sorted(p.stem for p in (TOP / "tests" / "platform").glob("*.c"))

# one line a process: pid, then what /proc says; `root` lists its root folder
LOOK = r"""
for p in $(pgrep -x "$1"); do
	echo "pid $p"
	grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Threads)' /proc/$p/status
	echo "root:$(ls -A /proc/$p/root/ | tr '\n' ' ')"
	for n in mnt ipc uts net pid; do echo "ns_$n:$(readlink /proc/$p/ns/$n)"; done
	echo "cgroup:$(cat /proc/$p/cgroup)"
	echo "oom:$(cat /proc/$p/oom_score_adj)"
	echo "core:$(grep 'core file' /proc/$p/limits | tr -s ' ')"
	for t in /proc/$p/task/*; do echo "thread $(cat $t/comm) $(grep -E '^Seccomp:' $t/status | tr -d '\t')"; done
done
"""


def look(machine, name):
    found, one = [], None
    for line in machine.run("sh", "-c", LOOK, "_", name, check=True).stdout.splitlines():
        if line.startswith("pid "):
            one = {"pid": int(line[4:]), "threads": []}
            found.append(one)
        elif line.startswith("thread "):
            one["threads"].append(line.split()[1:])
        else:
            key, _, value = line.partition(":")
            one[key] = value.strip()
    return found


def no_privilege(p):
    for cap in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(p[cap], 16) == 0, p
    assert p["NoNewPrivs"] == "1" and p["Groups"] == "", p
    assert p["Seccomp"] == "2" and all(t[1] == "Seccomp:2" for t in p["threads"]), p
    uids = set(p["Uid"].split()) | set(p["Gid"].split())
    assert len(uids) == 1 and uids != {"0"}, p


@pytest.fixture
def two(daemon):
    ids = [create(daemon)["id"] for _ in range(2)]
    yield ids
    for i in ids:
        call(daemon, "DELETE", f"/v1/sandboxes/{i}")


def test_monitors_by_proc(machine, daemon, two):
    host = {n: machine.run("readlink", f"/proc/1/ns/{n}").stdout.strip() for n in ("mnt", "ipc", "uts", "net", "pid")}
    vmms = look(machine, "mayfly-vmm")
    assert len(vmms) >= 2
    for p in vmms:
        no_privilege(p)
        assert p["root"] == "", f"its root is not empty: {p['root']}"
        for n in host:
            assert p[f"ns_{n}"] != host[n], n
        assert re.search(r"/g(\d+)/s\1$", p["cgroup"]), f"not the leaf of a monitor in the group of a sandbox: {p['cgroup']}"
        assert p["oom"] == "600" and "Max core file size 1 1" in p["core"]
        # a vCPU's thread has two lists, one on top of the other; the kernel counts them
        assert int(p["Seccomp_filters"]) >= 1
    for what in ("Uid", "cgroup", *(f"ns_{n}" for n in host)):
        assert len({p[what] for p in vmms}) == len(vmms), f"two monitors share their {what}"


def test_stopped_and_continued_they_go_on(machine, daemon, two):
    """By the host's owner, or a debugger: a call that waited is begun again, and nothing that a list forbids."""
    for _ in range(3):
        for sig in ("STOP", "CONT"):
            machine.run("pkill", f"-{sig}", "-x", "mayfly-vmm|mayflyd", check=True)
    for sandbox in two:
        assert run(daemon, sandbox, "echo on it goes").strip() == "on it goes"


def test_the_daemon_by_proc(machine, daemon):
    host = machine.run("readlink", "/proc/1/ns/mnt").stdout.strip()
    daemons = look(machine, "mayflyd")
    assert len(daemons) == 1
    p = daemons[0]
    no_privilege(p)
    assert p["ns_mnt"] != host and int(p["oom"]) < 0 and "Max core file size 1 1" in p["core"]
    assert not {"root", "home", "boot", "tmp", "mnt", "opt"} & set(p["root"].split()), p["root"]
    # what it could still name: nobody's passwords, no device but two, no other program's state
    r = machine.run("sh", "-c", f"cd /proc/{p['pid']}/root && ls etc dev && ls var/lib 2>/dev/null")
    names = set(r.stdout.split())
    assert not names & {"passwd", "shadow", "kvm", "mem", "vda", "vdb", "sda"}, names
    helpers = look(machine, "mayfly-priv")
    assert len(helpers) == 1 and helpers[0]["Uid"].split()[0] == "0" and int(helpers[0]["oom"]) < int(p["oom"])


def test_reload(machine, daemon, two):
    """As the unit does it. The helper hands the file in, a new one under its name, too: the daemon can open none."""
    def key_is(works):
        end = time.monotonic() + 30
        while works != (call(daemon, "GET", "/v1/sandboxes", headers={"OPEN-SANDBOX-API-KEY": "another"})[0] == 200):
            assert time.monotonic() < end, daemon.log()
            time.sleep(0.1)

    before, conf = look(machine, "mayflyd")[0]["pid"], "/run/mayfly-e2e/config.toml"
    key_is(False)
    machine.run("sh", "-c", f"(cat {conf}; printf '[server.api_keys]\\nb = \"another\"\\n') >{conf}.new && chmod 644 {conf}.new && mv {conf}.new {conf} && pkill -HUP -x mayfly-priv", check=True)
    key_is(True)
    daemon.write_config()
    machine.run("pkill", "-HUP", "-x", "mayfly-priv", check=True)
    key_is(False)
    assert look(machine, "mayflyd")[0]["pid"] == before
    for sandbox in two:
        assert run(daemon, sandbox, "echo on it goes").strip() == "on it goes"


@pytest.mark.parametrize("name", PLATFORM)
def test_platform_tests_inside(machine, name):
    """jail, sealed, priv: what was skipped or weaker on this host runs whole in there: cgroup v2, io_uring, Landlock."""
    subprocess.run(["make", "-s", f"build/platform/{name}"], cwd=TOP, check=True)
    at = machine.publish(BIN, TOP / "build" / "platform")
    # priv looks for the helper beside its own folder
    r = machine.run("sh", "-c", 'd=$(mktemp -d) && mkdir $d/bin $d/platform && cp $1/mayfly-priv $d/bin && cp $1/$2 $d/platform && cd $d && platform/$2; rc=$?; rm -rf $d; exit $rc',
                    "_", at, name, timeout=200)
    # the appliance's kernel and its one CPU have no core scheduling; the program's last line says it
    if name == "cores" and r.returncode == 77:
        pytest.skip(r.stdout.strip().splitlines()[-1])
    assert r.returncode == 0, r.stdout[-4000:] + r.stderr[-1000:]
    assert "not tried" not in r.stdout, r.stdout[:300]
