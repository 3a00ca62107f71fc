# SPDX-License-Identifier: Apache-2.0
"""The `mayfly` command line against the real daemon."""
import json
import os
import pathlib
import socket
import subprocess
import time
import urllib.request

import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
MAYFLY = TOP / "build" / "bin" / "mayfly"


@pytest.fixture
def mayfly(sdk_env):
    def run(*args, **kw):
        return subprocess.run([MAYFLY, *args], env={**os.environ, **sdk_env}, capture_output=True, text=kw.pop("text", True), timeout=120, **kw)
    return run


def test_run_streams_and_keeps_the_exit_code(mayfly, base_image):
    r = mayfly("run", base_image, "--", "sh", "-c", "echo out; echo err >&2; exit 4")
    assert (r.returncode, r.stdout, r.stderr) == (4, "out\n", "err\n")
    assert mayfly("run", base_image, "--", "/no/such/program").returncode == 127
    r = mayfly("run", "no-such-image:1", "--", "true")
    assert r.returncode == 125 and r.stderr.startswith("mayfly: ")


def test_run_leaves_nothing_behind(mayfly, base_image):
    before = mayfly("ls", "--json").stdout
    assert mayfly("run", base_image, "--", "true").returncode == 0
    assert [s["id"] for s in json.loads(mayfly("ls", "--json").stdout)] == [s["id"] for s in json.loads(before)]


@pytest.fixture
def named(mayfly, base_image):
    r = mayfly("create", "--name", "cli-test", "-e", "FROM_CREATE=yes", base_image)
    assert r.returncode == 0, r.stderr
    yield r.stdout.strip()
    mayfly("rm", "cli-test")


def test_a_sandbox_goes_by_its_name_or_the_beginning_of_its_id(mayfly, named):
    assert json.loads(mayfly("inspect", "cli-test").stdout)["id"] == named
    assert json.loads(mayfly("inspect", named[:8]).stdout)["id"] == named
    r = mayfly("inspect", "nothing-of-that-name")
    assert r.returncode == 1 and "mayfly ls" in r.stderr
    assert named in mayfly("ls", "-q").stdout.split()
    assert mayfly("exec", "-s", "cli-test", "--", "echo $FROM_CREATE").stdout == "yes\n"
    r = mayfly("exec", "-w", "/usr", "-e", "A=b", "-u", "65534:65534", "cli-test", "--", "sh", "-c", "pwd; echo $A; id -u")
    assert r.stdout == "/usr\nb\n65534\n"
    assert mayfly("exec", "-s", "cli-test", "--", "kill -9 $$").returncode == 137
    assert mayfly("exec", "cli-test", "--", "cat", input="not passed on").stdout == ""
    sent = "".join(f"line {i}\n" for i in range(20000))
    assert mayfly("exec", "-i", "cli-test", "--", "tail", "-n", "1", input=sent).stdout == "line 19999\n"
    assert mayfly("exec", "-i", "-s", "-u", "65534", "cli-test", "--", "wc -l; id -u", input=sent).stdout == "20000\n65534\n"
    assert mayfly("exec", "cli-test", "--", "sh", "-c", "ls -A /tmp | grep -c mayfly-input").stdout == "0\n"


def test_files_and_folders_are_copied_both_ways(mayfly, named, tmp_path):
    src = tmp_path / "src"
    (src / "deep" / "er").mkdir(parents=True)
    (src / "deep" / "er" / "bytes").write_bytes(bytes(range(256)) * 1000)
    (src / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (src / "run.sh").chmod(0o755)
    assert mayfly("cp", str(src), "cli-test:/root/").returncode == 0
    assert mayfly("exec", "cli-test", "/root/src/run.sh").stdout == "ran\n"
    (tmp_path / "link").symlink_to(src)
    assert mayfly("cp", str(tmp_path / "link"), "cli-test:/root/").returncode == 0
    assert mayfly("exec", "cli-test", "/root/link/run.sh").stdout == "ran\n"
    assert mayfly("cp", "cli-test:/root/src", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back" / "deep" / "er" / "bytes").read_bytes() == (src / "deep" / "er" / "bytes").read_bytes()
    assert mayfly("cp", "-", "cli-test:/root/stdin", input="piped").returncode == 0
    assert mayfly("cp", "cli-test:/root/stdin", "-").stdout == "piped"
    assert mayfly("cp", "cli-test:/no/such", str(tmp_path)).returncode == 1


def test_detached_commands_and_their_logs(mayfly, named):
    r = mayfly("exec", "-d", "-s", "cli-test", "--", "echo in the background")
    assert r.returncode == 0
    mayfly("exec", "-s", "cli-test", "--", "sleep 0.5")
    assert mayfly("logs", "cli-test", r.stdout.strip()).stdout == "in the background\n"


def test_a_port_of_a_sandbox_becomes_a_local_one(mayfly, sdk_env, python_image):
    made = mayfly("create", python_image)
    assert made.returncode == 0, made.stderr
    box = made.stdout.strip()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    forward = None
    try:
        assert mayfly("exec", "-d", box, "--", "python3", "-m", "http.server", "8000", "--directory", "/etc").returncode == 0
        wait = "import socket,time\nfor i in range(200):\n try: socket.create_connection(('127.0.0.1',8000)); break\n except OSError: time.sleep(.1)"
        assert mayfly("exec", box, "--", "python3", "-c", wait).returncode == 0
        forward = subprocess.Popen([MAYFLY, "port-forward", box, f"{port}:8000"], env={**os.environ, **sdk_env}, stdout=subprocess.PIPE, text=True)
        assert f":{port} ->" in forward.stdout.readline()
        for _ in range(2):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/passwd", timeout=60) as r:
                assert b"root:" in r.read()
    finally:
        if forward:
            forward.terminate()
            forward.wait()
        mayfly("rm", box)


def test_nothing_answers_says_what_to_do():
    r = subprocess.run([MAYFLY, "ls", "--url", "http://127.0.0.1:9"], capture_output=True, text=True)
    assert r.returncode == 1 and "make up" in r.stderr
    assert subprocess.run([MAYFLY, "run"], capture_output=True).returncode == 2


def test_an_entrypoint_is_followed_stopped_and_waited_for(mayfly, base_image, sdk_env):
    """logs -f ends with the entrypoint; stop and kill end it; wait prints its exit code; stats and events show what there is."""
    def create(name, script):
        r = mayfly("create", "--name", name, base_image, "sh", "-c", script)
        assert r.returncode == 0, r.stderr
        return r.stdout.strip()

    def says(name, text):
        end = time.monotonic() + 120
        while (said := mayfly("logs", name).stdout) != text:
            assert time.monotonic() < end, said
            time.sleep(0.1)

    names = ("cli-polite", "cli-stubborn", "cli-killed")
    try:
        create("cli-polite", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.1; done")
        with subprocess.Popen([MAYFLY, "logs", "-f", "cli-polite"], env={**os.environ, **sdk_env}, stdout=subprocess.PIPE, text=True) as logs:
            assert logs.stdout.readline() == "ready\n"
            stats = mayfly("stats", "--no-stream", "cli-polite").stdout.splitlines()
            assert stats[0].split() == ["ID", "NAME", "CPU", "MEMORY", "USED"] and "cli-polite" in stats[1] and "MiB" in stats[1]
            assert mayfly("stop", "cli-polite").returncode == 0
            assert logs.stdout.read().endswith("bye\n") and logs.wait(60) == 0
        assert mayfly("wait", "cli-polite").stdout == "7\n"
        lines = mayfly("logs", "cli-polite").stdout.splitlines()
        assert lines[0] == "ready" and lines[-1] == "bye"
        assert "CONTAINER_EXITED_ERROR" in mayfly("events", "cli-polite").stdout
        line = [line for line in mayfly("ls").stdout.splitlines() if " cli-polite " in line][0]
        assert "Terminated" in line or "Failed" in line
        assert "code 7" in line
        # who does not listen is killed
        create("cli-stubborn", "trap '' TERM; echo up; while :; do sleep 0.1; done")
        says("cli-stubborn", "up\n")
        assert mayfly("stop", "cli-stubborn").returncode == 0
        assert mayfly("wait", "cli-stubborn").stdout == "137\n"
        create("cli-killed", "trap 'exit 9' USR1; echo up; while :; do sleep 0.1; done")
        says("cli-killed", "up\n")
        assert mayfly("kill", "-s", "SIGUSR1", "cli-killed").returncode == 0
        assert mayfly("wait", "cli-killed").stdout == "9\n"
        assert mayfly("kill", "-s", "NONSENSE", "cli-killed").returncode == 2
    finally:
        mayfly("rm", *names)
