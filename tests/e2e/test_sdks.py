# SPDX-License-Identifier: Apache-2.0
"""The official clients, unmodified, on real VMs: what README and docs/examples show, as it stands there, and osb. opensandbox-mcp: test_mcp.py."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = TOP / "docs" / "examples"
VENV = pathlib.Path(sys.executable).parent
NODE_MODULES = VENV.parent / "node" / "node_modules"
JARS = VENV.parent / "java"
LIMIT_S = 400


def run(argv, sdk_env, image, **kw):
    r = subprocess.run(argv, env=os.environ | sdk_env | {"MAYFLY_IMAGE": image}, capture_output=True, text=True, timeout=LIMIT_S, **kw)
    assert r.returncode == 0, r.stdout + r.stderr
    return r.stdout


def node(script, tmp_path, sdk_env, image):
    assert shutil.which("node") and NODE_MODULES.exists(), "node or the JavaScript SDK is missing: make deps"
    shutil.copy(script, tmp_path)
    (tmp_path / "node_modules").symlink_to(NODE_MODULES.resolve())
    return run(["node", script.name], sdk_env, image, cwd=tmp_path)


def from_readme(language, to):
    """The README's one example in that language, as it stands there."""
    found = re.findall(rf"^```{language}\n(.*?)^```", (TOP / "README.md").read_text(), re.M | re.S)
    assert len(found) == 1
    to.write_text(found[0])
    return to


def test_readme_in_python(sdk_env, base_image, tmp_path):
    assert run([sys.executable, from_readme("python", tmp_path / "example.py")], sdk_env, base_image) == "hello\n"


def test_readme_in_javascript(sdk_env, base_image, tmp_path):
    src = from_readme("javascript", tmp_path / "source.mjs")
    (tmp_path / "run").mkdir()
    assert node(src, tmp_path / "run", sdk_env, base_image) == "hello\n"


def test_quickstart_in_python(sdk_env, python_image):
    out = run([sys.executable, EXAMPLES / "quickstart.py"], sdk_env, python_image)
    assert "hello from Linux 3" in out and out.count("<h1>a sandbox</h1>") == 2


def test_quickstart_in_javascript(sdk_env, base_image, tmp_path):
    out = node(EXAMPLES / "quickstart.mjs", tmp_path, sdk_env, base_image)
    for line in ("stdout: one", "stderr: two", "exit code: 3", "hello from a file"):
        assert line in out


def test_tour_in_python(sdk_env, python_image):
    out = run([sys.executable, EXAMPLES / "tour.py"], sdk_env, python_image)
    assert out.count("ok: ") == len(out.splitlines()) >= 30 and out.endswith("ok: killed\n")


def test_tour_in_javascript(sdk_env, python_image, tmp_path):
    out = node(EXAMPLES / "tour.mjs", tmp_path, sdk_env, python_image)
    assert out.count("ok: ") == len(out.splitlines()) >= 28 and out.endswith("ok: killed\n")


def test_tour_in_java(sdk_env, python_image):
    assert shutil.which("java") and JARS.exists(), "java or the Java SDK is missing: make deps"
    out = run(["java", "-cp", f"{JARS}/*", EXAMPLES / "Tour.java"], sdk_env, python_image)
    assert out.count("ok: ") == len(out.splitlines()) >= 18 and out.endswith("ok: killed\n")


@pytest.fixture
def host_folder(machine):
    """A folder that volumes may be, as the official suites want it: .path, .written() -> what a sandbox wrote."""
    class Folder:
        path = "/var/lib/mayfly/shared/sdk"

        def written(self):
            return machine.run("cat", f"{self.path}/written", check=True).stdout

    machine.run("sh", "-c", f"rm -rf {Folder.path} && mkdir -p {Folder.path}/datasets/train && cd {Folder.path} && echo outer >marker.txt && echo inner >datasets/train/marker.txt",
                check=True)
    return Folder()


HOST_LINES = "host: outer inner marker.txt\nhost refused: {}\n"


def test_volumes_in_python(sdk_env, base_image, host_folder):
    assert run([sys.executable, EXAMPLES / "volumes.py"], sdk_env | {"MAYFLY_HOST_FOLDER": host_folder.path}, base_image) == \
        "read: 42\nrefused: True\nafter a pause: 42\n" + HOST_LINES.format(True)
    assert host_folder.written() == "by python"


def test_volumes_in_javascript(sdk_env, base_image, tmp_path, host_folder):
    assert node(EXAMPLES / "volumes.mjs", tmp_path, sdk_env | {"MAYFLY_HOST_FOLDER": host_folder.path}, base_image) == \
        "read: 42\nrefused: true\n" + HOST_LINES.format("true")
    assert host_folder.written() == "by javascript"


def test_volumes_in_java(sdk_env, base_image, host_folder):
    """The published Java SDK has no volumes in its create: that request is a plain one."""
    assert shutil.which("java") and JARS.exists(), "java or the Java SDK is missing: make deps"
    assert run(["java", "-cp", f"{JARS}/*", EXAMPLES / "Volumes.java"], sdk_env | {"MAYFLY_HOST_FOLDER": host_folder.path}, base_image) == \
        "read: 42\nrefused: true\n" + HOST_LINES.format("true")
    assert host_folder.written() == "by java"


def test_fork_in_python(sdk_env, base_image):
    out = run([sys.executable, EXAMPLES / "fork.py"], sdk_env, base_image)
    assert out.splitlines() == ["3 children, 0 errors", *(f"child: prepared once child {n}" for n in range(3)), "source: prepared once"]


def test_fork_in_javascript(sdk_env, base_image, tmp_path):
    assert node(EXAMPLES / "fork.mjs", tmp_path, sdk_env, base_image) == "2 children\nchild: prepared once\nchild: prepared once\n"


@pytest.fixture
def osb(sdk_env):
    def call(*args, fails=False, out="json"):
        at = args.index("--") if "--" in args else len(args)
        args = [*args[:at], *(["-o", out] if out else []), *args[at:]]
        r = subprocess.run([VENV / "osb", *args], env=os.environ | sdk_env, capture_output=True, text=True, timeout=180)
        assert (r.returncode != 0) == fails, r.stdout + r.stderr
        return json.loads(r.stdout) if out == "json" and r.stdout.strip() and not fails else r.stdout + (r.stderr if fails else "")
    return call


def test_osb_does_the_same(osb, python_image, tmp_path):
    box = osb("sandbox", "create", "--image", python_image, "--metadata", "by=osb")["id"]
    try:
        assert "from osb" in osb("command", "run", box, "--", "echo", "from", "osb", out="raw")
        assert "oops" in osb("command", "run", box, "--", "sh", "-c", "echo oops; exit 3", fails=True, out="raw")
        bg = osb("command", "run", "--background", box, "--", "sh", "-c", "echo begun; sleep 100")
        cid = next(str(v) for k, v in bg.items() if k in ("id", "execution_id", "command_id"))
        assert osb("command", "status", box, cid)["running"]
        end = time.monotonic() + 60
        while "begun" not in osb("command", "logs", box, cid, out="raw"):
            assert time.monotonic() < end
        osb("command", "interrupt", box, cid)
        s = osb("command", "session", "create", box)["session_id"]
        osb("command", "session", "run", box, s, "--", "export", "A=kept", out="raw")
        assert "kept" in osb("command", "session", "run", box, s, "--", "printenv", "A", out="raw")
        osb("command", "session", "delete", box, s)
        osb("file", "mkdir", box, "/tmp/o")
        osb("file", "write", box, "/tmp/o/x", "-c", "by osb")
        assert "by osb" in osb("file", "cat", box, "/tmp/o/x", out="raw")
        (tmp_path / "up").write_bytes(bytes(range(256)))
        osb("file", "upload", box, str(tmp_path / "up"), "/tmp/o/up")
        osb("file", "download", box, "/tmp/o/up", str(tmp_path / "down"))
        assert (tmp_path / "down").read_bytes() == bytes(range(256))
        osb("file", "replace", box, "/tmp/o/x", "--old", "osb", "--new", "it")
        osb("file", "mv", box, "/tmp/o/x", "/tmp/o/y")
        osb("file", "chmod", box, "/tmp/o/y", "--mode", "600")
        assert "600" in json.dumps(osb("file", "info", box, "/tmp/o/y"))
        assert "/tmp/o/y" in json.dumps(osb("file", "search", box, "/tmp/o", "--pattern", "y"))
        osb("file", "rm", box, "/tmp/o/y")
        osb("file", "rmdir", box, "/tmp/o")
        assert osb("sandbox", "get", box)["status"]["state"] == "Running"
        assert box in json.dumps(osb("sandbox", "list", "--metadata", "by=osb"))
        assert "44772" in json.dumps(osb("sandbox", "endpoint", box, "--port", "44772"))
        osb("sandbox", "renew", box, "--timeout", "30m")
        osb("sandbox", "health", box)
        osb("sandbox", "metrics", box)
        osb("egress", "get", box)
        assert "Running" in osb("devops", "summary", box, out="raw")
        osb("diagnostics", "events", box, "--scope", "runtime", out="raw")
        osb("sandbox", "pause", box)
        assert osb("sandbox", "get", box)["status"]["state"] == "Paused"
        osb("sandbox", "resume", box)
        assert "on again" in osb("command", "run", box, "--", "echo", "on", "again", out="raw")
    finally:
        osb("sandbox", "kill", box, out=None)
    assert "NOT_FOUND" in osb("sandbox", "get", box, fails=True, out=None)
