# SPDX-License-Identifier: Apache-2.0
"""A host that lacks a wall of the jail: `mayfly doctor` names it, the daemon does not start on it unless its configuration permits that, and
then every other wall stands. The wall is taken away from the helper and all processes below it: a kernel without Landlock by tests/tools/deny, cgroups
that are not delegated by a read-only mount of them."""
import subprocess

import pytest

from conftest import TOP
from test_jail import look, no_privilege
from test_lifecycle import call, create, run

READ_ONLY = "unshare -m sh -c 'mount -o remount,bind,ro /sys/fs/cgroup && exec \"$@\"' _"
SAYS = {"landlock": "Landlock", "cgroups": "delegated cgroup v2 controllers"}


@pytest.fixture(scope="module")
def lacking(machine):
    subprocess.run(["make", "-s", "build/tools/deny"], cwd=TOP, check=True)
    no_landlock = machine.publish(TOP / "build" / "tools" / "deny") + "/deny landlock_create_ruleset=EOPNOTSUPP --"
    return {"landlock": no_landlock, "cgroups": READ_ONLY, "both": f"{READ_ONLY} {no_landlock}"}


@pytest.mark.parametrize("what", SAYS)
def test_it_is_named_and_refused(machine, daemon, lacking, what):
    doctor = machine.run("sh", "-c", f"{lacking[what]} {daemon.bin}/mayfly doctor {what}")
    assert doctor.returncode != 0 and what in doctor.stdout, doctor.stdout + doctor.stderr
    assert machine.run(f"{daemon.bin}/mayfly", "doctor", what).returncode == 0, "the whole host is called good"
    # beside the daemon that runs: its own folders, users and socket, and it ends by itself
    folder = machine.run("mktemp", "-d", check=True).stdout.strip()
    helper = (f"{lacking[what]} {daemon.bin}/mayfly-priv --cgroup /sys/fs/cgroup/weaker-test --uid-base 700000 --bin-dir {daemon.bin} --run-dir {folder}/run --state-dir {folder}/state --user mayfly "
              f"-- --config {folder}/config.toml")
    config = daemon.config().replace("/var/lib/mayfly/state", f"{folder}/state").replace('"/run/mayfly"', f'"{folder}/run"').replace("port = 8080", "port = 8081")
    machine.run("dd", f"of={folder}/config.toml", "status=none", stdin=config, check=True)
    r = machine.run("timeout", 60, "sh", "-c", helper)
    machine.run("sh", "-c", 'rm -rf "$1"; rmdir /sys/fs/cgroup/weaker-test', "_", folder)
    assert r.returncode == 2, r.stderr
    assert f"this host has no {SAYS[what]}, so jails would be weaker" in r.stderr and "weaker_jail = true" in r.stderr, r.stderr


def test_permitted_it_is_the_strictest_form(machine, daemon, lacking):
    daemon.under = lacking["both"]
    try:
        daemon.restart("[runtime]\nweaker_jail = true\n")
        assert "this host has no Landlock and delegated cgroup v2 controllers: jails are weaker" in daemon.log(400)
        box = create(daemon)["id"]
        assert run(daemon, box, "echo it runs").strip() == "it runs"
        vmms, daemons = look(machine, "mayfly-vmm"), look(machine, "mayflyd")
        assert vmms and len(daemons) == 1
        host = machine.run("readlink", "/proc/1/ns/net").stdout.strip()
        for p in vmms:
            no_privilege(p)
            assert p["root"] == "" and p["ns_net"] != host and p["oom"] == "600", p
        no_privilege(daemons[0])
        assert len({p["Uid"] for p in vmms}) == len(vmms), "two monitors share their user"
        assert call(daemon, "DELETE", f"/v1/sandboxes/{box}")[0] == 204
    finally:
        daemon.under = ""
        daemon.restart()
