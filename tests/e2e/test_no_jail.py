# SPDX-License-Identifier: Apache-2.0
"""--no-jail, for debugging: the log warns of it, and root must give it twice."""
import os
import re
import subprocess

import pytest

from conftest import BIN
from hostdaemon import PROGRAM, HostDaemon

TWICE = "say it twice"
root = pytest.mark.skipif(os.geteuid() != 0, reason="what root is refused")


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


def run(*args):
    r = subprocess.run(args, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    return r.returncode, r.stderr


@root
def test_the_daemon_refuses_root_once(daemon):
    rc, said = run(PROGRAM, "--config", daemon.config(), "--no-jail")
    assert rc == 1 and TWICE in said, said
    # in the configuration it is said once, too
    rc, said = run(PROGRAM, "--config", daemon.config({"runtime": {"no_jail": True}}))
    assert rc == 1 and TWICE in said, said
    assert not (daemon.dir / "state" / "state.db").exists(), "it began all the same"


@root
@pytest.mark.parametrize("more", [[], ["--kernel", "/none"], ["--jail", "300000"]])
def test_the_monitor_refuses_root_once(more):
    rc, said = run(BIN / "mayfly-vmm", "--no-jail", *more)
    assert rc == 2 and TWICE in said, said
    rc, said = run(BIN / "mayfly-vmm", "--no-jail", "--no-jail", *more)
    assert rc and TWICE not in said, said


def test_without_its_helper_the_daemon_names_the_way(daemon):
    rc, said = run(PROGRAM, "--config", daemon.config())
    assert rc == 1 and "mayfly-priv starts me" in said and "--no-jail" in said, said


@pytest.mark.parametrize("how", ["arguments", "both"])
def test_it_is_said_loudly(daemon, how):
    daemon.config({"runtime": {"no_jail": how == "both"}})
    daemon.again()
    loud = [line for line in daemon.log().splitlines() if "NOT JAILED" in line]
    assert len(loud) == 1 and re.search(r"\bwarn", loud[0]), daemon.log()
    assert daemon.ask("GET", "/health")[0] == 200


def test_a_monitor_says_it_loudly(tmp_path):
    _, said = run(BIN / "mayfly-vmm", "--no-jail", "--no-jail", "--kernel", tmp_path / "none")
    assert re.search(r"warn.*NOTHING BUT KVM STANDS BETWEEN THE GUEST AND THIS HOST", said), said


@pytest.mark.parametrize("program", [
    ["mayfly-vmm"], ["mayfly-fs", "--volume", "rw"], ["mayfly-net"], ["mayfly-broker"], ["mayfly-image", "--job"]], ids=lambda p: p[0])
def test_no_program_takes_root_as_the_user_of_its_jail(program):
    assert run(BIN / program[0], "--jail", "0", *program[1:])[0] == 2


@pytest.mark.parametrize("options, said", [
    (["--slots", "65534", "--uid-count", "327665"], "--slots must be a number from 1 to 65533"),
    (["--slots", "65533", "--uid-count", "327665", "--volume-uid-base", "131072"], "--volume-uid-base must be a number from 65536 to 131071"),
    (["--volume-uid-base", "65536"], "overlap")])
def test_no_slot_has_the_user_id_of_root_or_of_another(options, said):
    rc, text = run(BIN / "mayfly-priv", *options)
    assert rc == 2 and said in text, text
