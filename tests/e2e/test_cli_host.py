# SPDX-License-Identifier: Apache-2.0
"""The command line against a daemon on this host (hostdaemon.py): exit codes, --json, --help and what to do next, for every command. What needs a
guest's shell is in test_cli.py."""
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time

import pytest

from conftest import MAYFLY
from hostdaemon import HostDaemon

COMMANDS = ("run", "create", "ls", "exec", "logs", "events", "stats", "stop", "kill", "wait", "cp", "inspect", "rm", "pause", "resume", "fork", "rollback", "renew", "port-forward", "snapshot", "pool", "worker", "template", "machine", "disk", "image",
            "doctor", "env", "completion", "version")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    d = HostDaemon(tmp_path_factory.mktemp("cli")).start(api_key="k")
    d.headers = {"OPEN-SANDBOX-API-KEY": "k"}
    yield d
    d.clean()


@pytest.fixture
def mayfly(daemon):
    def run(*args, code=0, **env):
        r = subprocess.run([MAYFLY, *args], env=os.environ | {"OPEN_SANDBOX_DOMAIN": f"127.0.0.1:{daemon.port}", "OPEN_SANDBOX_API_KEY": "k"} | env,
                           capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert r.returncode == code, (args, r.returncode, r.stdout, r.stderr)
        return r
    return run


def test_every_command_explains_itself(mayfly):
    listed = mayfly("--help").stdout
    for c in COMMANDS:
        assert f"  {c} " in listed, c
        r = mayfly(c, "--help")
        assert r.stdout.startswith(f"usage: mayfly {c}") and not r.stderr, c
    assert "no command 'frob'" in mayfly("frob", code=2).stderr
    assert "did you mean 'image'?" in mayfly("imgae", code=2).stderr and "did you mean 'pull'?" in mayfly("image", "pul", code=2).stderr
    assert mayfly("ps", "--help").returncode == 0 and mayfly("--version").stdout == mayfly("-v").stdout == mayfly("version").stdout
    assert "usage:" in mayfly(code=2).stderr
    for c in COMMANDS:
        r = mayfly(c, "--no-such-option", code=2)
        assert r.stderr or "usage:" in r.stdout


def test_what_is_missing_is_a_mistake_in_the_usage(mayfly):
    for c in ("run", "create", "exec", "cp", "inspect", "rm", "pause", "resume", "renew", "port-forward", "logs"):
        assert mayfly(c, code=2).stderr, c


def test_fork(mayfly, daemon):
    box = mayfly("create", "-m", "256Mi", "--name", "source", "tiny").stdout.strip()
    ids = mayfly("fork", "source", "-n", "3", "-l", "who=child", "-e", "A=1", "-t", "600").stdout.split()
    assert len({*ids, box}) == 4
    assert {b["id"] for b in json.loads(mayfly("ls", "--json", "-l", "who=child").stdout)} == set(ids)
    made = json.loads(mayfly("fork", "--json", box).stdout)["items"]
    assert len(made) == 1 and "sandbox" in made[0]
    assert "from 1 to 100" in mayfly("fork", box, "-n", "101", code=1).stderr
    assert "KEY=VALUE" in mayfly("fork", box, "-e", "A", code=2).stderr
    assert mayfly("fork", code=2).stderr
    snapshot = mayfly("snapshot", "create", box).stdout.split()[0]
    end = time.monotonic() + 60
    while json.loads(mayfly("snapshot", "inspect", snapshot).stdout)["status"]["state"] == "Creating":
        assert time.monotonic() < end
        time.sleep(0.05)
    more = mayfly("fork", "--snapshot", snapshot, "-n", "2").stdout.split()
    assert len(more) == 2
    assert mayfly("rollback", "source", snapshot).stdout.strip() == box
    assert "has no snapshot" in mayfly("rollback", ids[0], snapshot, code=1).stderr
    assert mayfly("rollback", "source", code=2).stderr
    # a child that cannot be made is an error of its own
    daemon.plan(restore=["ok", "error"])
    r = mayfly("fork", box, "-n", "2", code=1)
    daemon.plan()
    assert len(r.stdout.split()) == 1 and "DOCKER::SANDBOX_START_FAILED" in r.stderr
    mayfly("rm", box, made[0]["sandbox"]["id"], *ids, *more, *r.stdout.split())
    mayfly("snapshot", "rm", snapshot)


def test_pool(mayfly):
    assert mayfly("pool", "create", "--min", "2", "-m", "256Mi", "-e", "A=1", "warm", "tiny").stdout == "warm\n"
    end = time.monotonic() + 60
    while "warm 2" not in " ".join(mayfly("pool", "ls").stdout.split()):
        assert time.monotonic() < end, mayfly("pool", "ls").stdout
        time.sleep(0.05)
    assert mayfly("pool", "scale", "--min", "0", "--total", "5", "warm").stdout == "warm\n"
    p = json.loads(mayfly("pool", "ls", "--json").stdout)[0]
    assert p["name"] == "warm" and p["capacitySpec"] == {"bufferMin": 0, "bufferMax": 0, "poolMin": 0, "poolMax": 5}
    assert mayfly("pool", "create", code=2).stderr
    assert "There is a pool" in mayfly("pool", "create", "warm", "tiny", code=1).stderr
    assert mayfly("pool", "rm", "warm").stdout == "warm\n"
    assert "not found" in mayfly("pool", "rm", "warm", code=1).stderr


WORKER = """---
id: a
name: A
version: 1.0.0
image: tiny
resource_limits: {memory: 256Mi}
task: '{"n": 1}'
constraints: {timeout_seconds: 30, max_attempts: 2, idempotency_key: run_id, status_enum: [ok, retryable_error, invalid_request, invalid_output]}
output_schema: {type: object, properties: {result: {type: object, required: [value]}}}
---
text
"""


def test_worker(mayfly, tmp_path):
    f = tmp_path / "worker.md"
    f.write_text(WORKER)
    a = json.loads(mayfly("worker", "run", "--run-id", "r", f).stdout)
    assert a["run_id"] == "r" and a["status"] == "ok" and a["result"]["value"] == {"n": 1}
    assert json.loads(mayfly("worker", "run", "--run-id", "r", f).stdout) == a
    assert json.loads(mayfly("worker", "run", "--task", "no JSON", f, code=1).stdout)["status"] == "invalid_output"
    (tmp_path / "in").write_text(json.dumps({"run_id": "i", "task": '{"n": 2}', "context": {}}))
    assert json.loads(mayfly("worker", "run", "--input", tmp_path / "in", f).stdout)["result"]["value"] == {"n": 2}
    (tmp_path / "in").write_text(json.dumps({"run_id": "i", "task": "x", "context": {}, "more": 1}))
    assert json.loads(mayfly("worker", "run", "--input", tmp_path / "in", f, code=2).stdout)["status"] == "invalid_request"
    for text, why in (("no front matter", "begins with a line"), (WORKER.replace("id: a\n", ""), "has no 'id'"), (WORKER.replace("idempotency_key: run_id", "idempotency_key: x"), "only be run_id"),
                      (WORKER.replace("[ok,", "[fine,"), "status that a run cannot have"), (WORKER.replace("image: tiny", "image: *x"), "line 5")):
        f.write_text(text)
        assert why in mayfly("worker", "run", f, code=2).stderr
    assert "name one FILE" in mayfly("worker", "run", f, "--run-id", code=2).stderr


def test_life_of_a_sandbox_for_scripts(mayfly):
    made = json.loads(mayfly("create", "--json", "--name", "one", "-l", "a=b", "-m", "256Mi", "-t", "600", "tiny").stdout)
    two = mayfly("create", "-m", "256Mi", "tiny").stdout.strip()
    assert made["status"]["state"] == "Running" and len(two) == 36
    boxes = json.loads(mayfly("ls", "--json").stdout)
    assert [b["id"] for b in boxes] == [two, made["id"]]
    assert [b["id"] for b in json.loads(mayfly("ls", "--json", "-l", "a=b", "-s", "running").stdout)] == [made["id"]]
    assert json.loads(mayfly("ls", "--json", "-s", "paused").stdout) == []
    # the same on a terminal and in a pipe; whole ids where a script reads them
    lines = mayfly("ls").stdout.splitlines()
    assert len(lines) == 3 and lines[0].split()[:4] == ["ID", "NAME", "IMAGE", "STATE"] and lines[2].split()[:4] == [made["id"][:12], "one", "tiny", "Running"]
    assert mayfly("ps", "--no-trunc").stdout.splitlines()[1].split()[0] == two
    assert mayfly("ps", "-q").stdout.split() == [two, made["id"]] and mayfly("ls", "-q", "--names").stdout.split() == [two, "one"]
    assert json.loads(mayfly("inspect", "one").stdout)["metadata"] == {"a": "b", "name": "one"}
    mayfly("pause", "one")
    assert json.loads(mayfly("inspect", "one").stdout)["status"]["state"] == "Paused"
    mayfly("resume", "one")
    mayfly("renew", "one", "1200")
    assert mayfly("logs", "one").returncode == 0
    mayfly("rm", "one", two)
    assert json.loads(mayfly("ls", "--json").stdout) == []


def test_exit_codes_of_commands(mayfly):
    """The command's own, or 125 for what is ours to answer for, as docker run has it. The fake's shell knows "exit N" only."""
    box = mayfly("create", "-m", "256Mi", "tiny").stdout.strip()
    for code in (0, 1, 5, 42, 255):
        mayfly("exec", "-s", box, "--", f"exit {code}", code=code)
        mayfly("run", "-m", "256Mi", "-s", "tiny", "--", f"exit {code}", code=code)
    assert "mayfly ls" in mayfly("exec", "nobody", "--", "true", code=125).stderr
    assert "mayfly: " in mayfly("run", "127.0.0.1:1/no/such:1", "--", "true", code=125).stderr
    assert "mayfly: " in mayfly("run", "-m", "lots", "tiny", "--", "true", code=125).stderr
    assert "mayfly ls" in mayfly("inspect", "nobody", code=1).stderr
    assert mayfly("rm", "nobody", code=1).stderr
    assert "KEY" in mayfly("ls", code=1, OPEN_SANDBOX_API_KEY="wrong").stderr.upper()
    assert "make up" in mayfly("ls", code=1, OPEN_SANDBOX_DOMAIN="127.0.0.1:9").stderr
    mayfly("rm", box)


def test_a_name_or_a_beginning_is_enough_but_not_two(mayfly):
    boxes = [mayfly("create", "-m", "256Mi", "-n", "same", "tiny").stdout.strip() for _ in range(2)]
    assert "same" in mayfly("inspect", "same", code=1).stderr
    assert json.loads(mayfly("inspect", boxes[0][:13]).stdout)["id"] == boxes[0]
    # whoever is named as an id begins is meant by that name
    named = mayfly("create", "-m", "256Mi", "-n", boxes[0][:4], "tiny").stdout.strip()
    assert json.loads(mayfly("inspect", boxes[0][:4]).stdout)["id"] == named
    # snapshots, too, wherever one is given
    at = [mayfly("snapshot", "create", "-n", n, named).stdout.strip() for n in ("first", "first", "last")]
    assert [json.loads(mayfly("snapshot", "inspect", w).stdout)["id"] for w in (at[2][:13], at[2])] == [at[2]] * 2
    assert mayfly("rollback", named, at[2][:13]).stdout.strip() == named
    assert "state" in mayfly("snapshot", "verify", at[2][:13], code=1).stdout, "what the played monitor wrote is none"
    made = [mayfly("create", "-m", "256Mi", "--snapshot", at[2][:13]).stdout.strip(), *mayfly("fork", "--snapshot", at[2][:13]).stdout.split()]
    assert "no snapshot 'last'" in mayfly("snapshot", "rm", "last", code=1).stderr, "an operator sees those of others, who may use the same name"
    assert "no snapshot 'nothing': `mayfly snapshot ls` shows" in mayfly("create", "--snapshot", "nothing", code=1).stderr
    assert "the name of a snapshot is empty" in mayfly("rollback", named, "", code=1).stderr
    mayfly("rm", *boxes, named, *made)
    mayfly("snapshot", "rm", at[2][:13], *at[:2])


def by_a_terminal(argv, setup, lines, env, cwd):
    """What a shell made of each line, a Tab typed after it: lists of words. The shell says them itself: the line becomes the arguments of a function."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    said, end = "", time.monotonic() + 120

    def until(pattern):
        nonlocal said
        while not (m := re.search(pattern, said)):
            assert time.monotonic() < end, (pattern, said)
            if select.select([fd], [], [], 1)[0]:
                said += os.read(fd, 4096).decode(errors="replace")
        said = said[m.end():]
        return m[1]

    try:
        # in two pieces: what is typed, and shown by the terminal, is not what is printed
        os.write(fd, f"{setup}; said() {{ printf '[%s]' \"$@\"; echo; }}; PS1='re''ady> '\n".encode())
        until("(ready> )")
        found = []
        for line in lines:
            os.write(fd, f"{line}\t\x01said \n".encode())
            found.append(until(r"\[(mayfly\]\[.*?)\]\r?\n").split("]["))
        return found
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(fd)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_and_sandboxes(mayfly, daemon, shell, tmp_path):
    """The real shells: with a Tab on a terminal in bash and zsh; fish says by itself what it would offer."""
    mayfly("completion", "csh", code=2)
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed: make deps")
    box = mayfly("create", "-m", "256Mi", "-n", "only-of-this-name", "tiny").stdout.strip()
    lines = {"mayfly por": "port-forward", "mayfly ls --st": "--state", "mayfly create --netw": "--network", "mayfly snapshot veri": "verify", "mayfly pool create --ada": "--adaptive",
             "mayfly pause only-of": "only-of-this-name", "mayfly snapshot create only-of": "only-of-this-name"}
    env = os.environ | {"OPEN_SANDBOX_DOMAIN": f"127.0.0.1:{daemon.port}", "OPEN_SANDBOX_API_KEY": "k", "PATH": f"{MAYFLY.parent}:{os.environ['PATH']}", "HOME": str(tmp_path),
                        "XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "TERM": "dumb"}
    try:
        if shell == "fish":
            script = "mayfly completion fish | source\n" + "".join(f"echo (complete -C '{line}')\n" for line in lines)
            r = subprocess.run(["fish", "--no-config", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
            found = [line.split() for line in r.stdout.splitlines()]
            assert found == [[word] for word in lines.values()], r
        else:
            argv, setup = {"bash": (["bash", "--norc", "--noprofile", "-i"], "set -o emacs; bind 'set enable-bracketed-paste off'"),
                           "zsh": (["zsh", "-f", "-i"], "bindkey -e; autoload -Uz compinit; compinit -u -D")}[shell]
            found = by_a_terminal(argv, f"{setup}; source <(mayfly completion {shell})", lines, env, tmp_path)
            assert found == [[*line.split()[:-1], word] for line, word in lines.items()]
    finally:
        mayfly("rm", box)


def test_completion_offers_every_command_and_option(mayfly, tmp_path):
    """What each --help lists, and sandboxes where its usage names one. No list of them is kept anywhere."""
    script, helps = mayfly("completion", "bash").stdout, {"": mayfly("--help").stdout}
    for c in re.findall(r"^  ([a-z-]+) ", helps[""], re.M):
        helps[c] = mayfly(c, "--help").stdout
        if helps[c].startswith(f"usage: mayfly {c} COMMAND ...\n"):
            helps |= {f"{c} {sub}": mayfly(c, sub, "--help").stdout for sub in re.findall(r"^  ([a-z-]+) ", helps[c], re.M)}
    for words, text in helps.items():
        (tmp_path / f"{words} --help".strip()).write_text(text)
    (tmp_path / "ls --quiet --names").write_text("offered\n$(touch${IFS}made-by-a-name)\n`touch\tmade-by-a-name`\n*\na;b\n")
    # the same texts again, without two hundred processes
    asked = 'timeout() { shift; "$@"; }; mayfly() { printf "%s\\n" "$(<"$*")"; }\n' + "".join(f"echo $(_mayfly_words {words})\n" for words in helps)
    r = subprocess.run(["bash", "-uc", script + asked], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert not r.stderr
    # a daemon's answer is no code of the shell
    tab = 'timeout() { shift; "$@"; }; mayfly() { printf "%s\\n" "$(<"$*")"; }\nCOMP_WORDS=(mayfly exec ""); COMP_CWORD=2; _mayfly; printf "<%s>\\n" "${COMPREPLY[@]}"\n'
    t = subprocess.run(["bash", "-uc", script + tab], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "<offered>" in t.stdout.split() and not t.stderr and not (tmp_path / "made-by-a-name").exists(), t
    offered = dict(zip(helps, [set(line.split()) for line in r.stdout.split("\n")]))
    takes = {words for words, text in helps.items() if re.search(r"^(usage:|      ) mayfly .*\bSANDBOX", text, re.M)}
    assert {"exec", "attach", "stats", "cp", "fork", "rollback", "snapshot create", "egress show"} <= takes and len(helps) > 60
    for words, text in helps.items():
        listed = set(re.findall(r"^  ([a-z][a-z-]*) ", text, re.M)) | set(re.findall(r"^  (?:-., |    )(--[a-z-]+)", text, re.M))
        assert offered[words] == listed | ({"offered"} if words in takes else set()), words
    assert "--network" in offered["create"] and "--deny" in offered["run"] and "--run-id" in offered["worker run"] and "--code" not in offered[""]


def test_what_this_host_is(mayfly):
    assert json.loads(mayfly("version", "--json").stdout)["version"] in mayfly("version").stdout
    looks = {f["name"]: f for f in json.loads(subprocess.run([MAYFLY, "doctor", "--json"], capture_output=True, text=True, timeout=60).stdout)}
    assert {"kernel", "memory", "kvm", "cgroups", "limits", "landlock", "qemu", "guest kernel"} <= set(looks)
    # what two sandboxes can learn of each other (docs/security.md)
    assert {"cpu flaws", "threads", "ksm"} <= set(looks)
    for f in looks.values():
        assert f["verdict"] in ("good", "limited", "bad") and f["found"] and (f["verdict"] == "good" or f["todo"]), "it says the next step"
    # a limit of the host that is too low for a thousand sandboxes is named, and what to raise
    low = subprocess.run(["bash", "-c", f"ulimit -n 1024 && {MAYFLY} doctor limits"], capture_output=True, text=True, timeout=60)
    assert low.returncode == 1 and "open files of a process 1024 of 20000" in low.stdout and "LimitNOFILE" in low.stdout, low
    mayfly("doctor", "kernel")
    mayfly("doctor", "nonsense", code=2)


def test_env_is_for_a_shell_and_for_scripts(mayfly, tmp_path):
    home = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    assert "make up" in mayfly("env", code=1, **home).stderr
    (tmp_path / "mayfly").mkdir()
    (tmp_path / "mayfly" / "client.env").write_text("OPEN_SANDBOX_DOMAIN=127.0.0.1:1\nOPEN_SANDBOX_API_KEY=ab12\n")
    assert mayfly("env", **home).stdout == "export OPEN_SANDBOX_DOMAIN=127.0.0.1:1\nexport OPEN_SANDBOX_API_KEY=ab12\n"
    assert json.loads(mayfly("env", "--json", **home).stdout) == {"OPEN_SANDBOX_DOMAIN": "127.0.0.1:1", "OPEN_SANDBOX_API_KEY": "ab12"}
    (tmp_path / "mayfly" / "client.env").write_text("OPEN_SANDBOX_DOMAIN=$(id)\n")
    assert mayfly("env", code=1, **home).stdout == "", "nothing that a shell would run"
