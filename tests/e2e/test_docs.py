# SPDX-License-Identifier: Apache-2.0
"""The examples of the pages that need a VM, as they stand there. A block of docs/quickstart.md or docs/sdk.md that is run has a comment above it:
<!-- test: NAME -->. The other pages' blocks are listed in test_docs_host.py, with their tests."""
import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from conftest import MAYFLY, TOP
from test_docs_host import block
from test_lifecycle import call
from test_sdks import JARS, VENV, node

DOCS = TOP / "docs"
LIMIT_S = 400


def blocks(page):
    """(name, text) of each block that is to be run, in their order."""
    found = re.findall(r"^<!-- test: (\w+) -->\n```\w*\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)
    assert found, page
    return found


def run(argv, env, **kw):
    r = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LIMIT_S, **kw)
    assert r.returncode == 0, (argv, r.stdout, r.stderr)
    return r.stdout


def test_the_quickstart_page(sdk_env, base_image):
    env = os.environ | sdk_env | {"PATH": f"{MAYFLY.parent}:{os.environ['PATH']}"}
    try:
        out = {name: run(["bash", "-ec", text], env) for name, text in blocks("quickstart.md")}
    finally:
        subprocess.run([MAYFLY, "rm", "demo", "copy"], env=env, capture_output=True, timeout=LIMIT_S)  # of a page that failed half-way
    assert out["first"].startswith("hello from ")
    assert "\n42\n" in out["sandbox"] and " demo " in out["sandbox"] and "MiB" in out["sandbox"]
    assert out["pause"].endswith("42\n")
    assert "\n42\n" in out["snapshot"]
    assert out["network"] == "no network\n"
    assert out["end"].splitlines()[0].isdigit()


@pytest.mark.parametrize("number", range(6))
def test_a_client_of_the_sdk_page(sdk_env, base_image, tmp_path, number):
    kind, text = blocks("sdk.md")[number]
    env = os.environ | sdk_env | {"PATH": f"{VENV}:{os.environ['PATH']}"}
    if kind == "python":
        out = run([sys.executable, "-c", text], env)
    elif kind == "javascript":
        (tmp_path / "source.mjs").write_text(text)
        (tmp_path / "run").mkdir()
        out = node(tmp_path / "source.mjs", tmp_path / "run", sdk_env, base_image)
    elif kind == "java":
        (tmp_path / "Example.java").write_text(text)
        out = run(["java", "-cp", f"{JARS}/*", tmp_path / "Example.java"], env)
    else:
        out = run(["bash", "-ec", text], env)
    assert "hello from " in out or '"items"' in out, out


def test_every_block_of_the_sdk_page_has_its_test():
    assert len(blocks("sdk.md")) == 6


def on_a_terminal(text, env, said="exit\n"):
    """What a shell on a terminal printed while it ran this, and its exit code; at the first prompt of another shell it is told to end."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(TOP)
        os.execve("/bin/bash", ["bash", "-ec", text], env)
    out, told, end = "", False, time.monotonic() + LIMIT_S
    try:
        while True:
            assert select.select([fd], [], [], max(0, end - time.monotonic()))[0], out
            try:
                piece = os.read(fd, 4096)
            except OSError:  # the terminal's other side is closed
                break
            out += piece.decode(errors="replace")
            if not told and out.endswith("# "):
                told = True
                os.write(fd, said.encode())
    finally:
        os.close(fd)  # who still waits for the terminal ends by that
        _, status = os.waitpid(pid, 0)
    return out, os.waitstatus_to_exitcode(status)


def test_the_five_things_of_the_readme(sdk_env, base_image, tmp_path):
    """As they stand there, typed into a terminal; so are the lines of two other pages that set the environment."""
    (tmp_path / "mayfly").mkdir()
    (tmp_path / "mayfly" / "client.env").write_text("".join(f"{k}={v}\n" for k, v in sdk_env.items()))
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    text = block("README.md", 'eval "$(build/bin/mayfly env)"')
    more = block("docs/quickstart.md", "export PATH=") + block("docs/sdk.md", 'eval "$(mayfly env)"') + "command -v mayfly\n"
    *lines, last = text.splitlines()
    assert last.endswith("-- getent hosts debian.org")
    mine = os.environ | sdk_env
    before = set(run([MAYFLY, "ls", "-q"], mine).split())
    try:
        out, code = on_a_terminal("\n".join([lines[0], more, *lines[1:], "echo so far", last]), env)
    finally:
        made = set(run([MAYFLY, "ls", "-q"], mine).split()) - before
        subprocess.run([MAYFLY, "rm", *made], env=mine, capture_output=True, timeout=LIMIT_S)
    # the last line says what the name resolves to, or that it does not, where these tests have no internet
    assert "so far" in out and code in (0, 2), (code, out)
    assert f"{MAYFLY}\r\n" in out and "Linux" in out and " demo " in out
    assert len(made) == 5, out
    assert out.split("so far")[0].count("Running") >= 5, out


def test_the_volumes_page(sdk_env, daemon, machine, base_image, tmp_path):
    """Its commands in their order, and its two volumes in a create request."""
    folder = "/var/lib/mayfly/shared/docs"
    machine.run("mkdir", "-p", folder, check=True)
    (tmp_path / "data-set").mkdir()
    (tmp_path / "data-set" / "one").write_text("1")
    env = os.environ | sdk_env | {"PATH": f"{MAYFLY.parent}:{os.environ['PATH']}"}
    volumes = [json.loads(line.replace("/srv/sets/one", folder)) for line in block("docs/volumes.md", '{"name": "v"').splitlines()]
    try:
        out = run(["bash", "-ec", block("docs/volumes.md", "mayfly volume create data").replace("/srv/sets/one", folder)], env, cwd=tmp_path)
        assert "hello\n" in out and "limited" in out and "10 GiB" in out
        assert (tmp_path / "results" / "file").read_text() == "hello\n"
        status, box, _ = call(daemon, "POST", "/v1/sandboxes", {"image": {"uri": base_image}, "entrypoint": ["tail", "-f", "/dev/null"], "volumes": volumes, "timeout": 600,
                                                               "resourceLimits": {"cpu": "1", "memory": "512Mi"}})
        assert status == 202, box
        assert run([MAYFLY, "exec", box["id"], "--", "sh", "-c", "touch /data/x && ! touch /set/x 2>/dev/null && echo both"], env) == "both\n"
        run([MAYFLY, "rm", box["id"]], env)
    finally:
        subprocess.run([MAYFLY, "volume", "rm", "data", "limited"], env=env, capture_output=True, timeout=LIMIT_S)  # of a page that failed half-way, and of the request
    assert not {"data", "limited"} & set(run([MAYFLY, "volume", "ls"], env).split())


def test_the_appliance_of_contributing(machine):
    """Its two lines in the middle, in the machine of these tests. What starts and ends one is tried in test_machine.py."""
    lines = [line for line in block("CONTRIBUTING.md", "export MAYFLY_MACHINE").splitlines() if re.match(r"P=|build/bin/mayfly machine exec", line)]
    assert len(lines) == 2
    out = run(["bash", "-ec", "\n".join(lines)], os.environ | {"MAYFLY_MACHINE": machine.name}, cwd=TOP, stdin=subprocess.DEVNULL)
    assert "testinit" in out or "mayfly" in out, out
