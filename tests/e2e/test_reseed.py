# SPDX-License-Identifier: Apache-2.0
"""Random numbers of processes that a template holds: on this host the two parts of our Node.js image (what every node loads, and the restore hook), and
in real sandboxes three clones of one template. The hook itself, and how it fails: test_template_steps.py."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from test_lifecycle import SLOW, call, until

PARTS = pathlib.Path(__file__).resolve().parents[2] / "images" / "recipes" / "node-reseed" / "opt" / "mayfly"
DRAW = "JSON.stringify({m: Math.random(), u: c.randomUUID(), b: c.randomBytes(8).toString('hex'), i: c.randomInt(2 ** 40), g: Array.from(c.webcrypto.getRandomValues(new Uint32Array(2)))})"
SERVER = f"const c = require('crypto'); {DRAW}; require('http').createServer((q, r) => r.end({DRAW})).listen(8000)"


@pytest.fixture
def node(tmp_path):
    """A node with our part, that answers each line with what it draws."""
    if not shutil.which("node"):
        pytest.skip("no node on this host")
    (tmp_path / "generation").write_text("1\n")
    env = os.environ | {"MAYFLY_GENERATION_FILE": str(tmp_path / "generation"), "MAYFLY_RESEED_DIR": str(tmp_path / "reseed"), "NODE_OPTIONS": f"--require={PARTS}/reseed.js"}
    code = f"const c = require('crypto'); require('readline').createInterface({{input: process.stdin}}).on('line', (l) => console.log(eval(l)))"
    p = subprocess.Popen(["node", "-e", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    p.env, p.folder = env, tmp_path

    def ask(text):
        p.stdin.write(text + "\n")
        p.stdin.flush()
        return p.stdout.readline().strip()
    p.ask = ask
    yield p
    p.kill()
    p.wait()


def test_what_node_draws_is_good(node):
    a, b = (json.loads(node.ask(DRAW)) for _ in range(2))
    assert all(a[k] != b[k] for k in a) and 0 <= a["m"] < 1 and 0 <= a["i"] < 2 ** 40
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", a["u"])
    mean = float(node.ask("let s = 0; for (let i = 0; i < 1e5; i++) s += Math.random(); s / 1e5"))
    assert 0.49 < mean < 0.51
    assert {int(node.ask("c.randomInt(3, 6)")) for _ in range(60)} == {3, 4, 5}
    # what the original refuses is refused in the same way
    for bad in ("c.randomBytes(-1)", "c.randomBytes('x')", "c.randomInt(5, 5)", "c.randomInt(0, 2 ** 50)", "c.randomFillSync({})", "c.webcrypto.getRandomValues(new Float32Array(1))"):
        assert node.ask(f"try {{ {bad}; 'passed' }} catch (e) {{ e.constructor.name }}") != "passed", bad
    assert node.ask("c.randomFillSync(Buffer.alloc(4), 2).subarray(0, 2).toString('hex')") == "0000"


def test_the_hook_waits_for_each_node(node):
    assert node.ask("1 + 1") == "2"
    state = pathlib.Path(f"/proc/{node.pid}/stat")
    os.kill(node.pid, signal.SIGSTOP)
    while state.read_text().rsplit(")", 1)[1].split()[0] != "T":
        time.sleep(0.005)
    (node.folder / "reseed" / "999999999").write_text("a process that is gone")
    (node.folder / "generation").write_text("2\n")
    hook = subprocess.Popen(["sh", PARTS / "reseed"], env=node.env)
    with pytest.raises(subprocess.TimeoutExpired):
        hook.wait(0.5)
    os.kill(node.pid, signal.SIGCONT)
    assert hook.wait(60) == 0
    assert (node.folder / "reseed" / str(node.pid)).read_text() == "2"
    # nothing to wait for
    assert subprocess.run(["sh", PARTS / "reseed"], env=node.env, timeout=60).returncode == 0


def test_clones_of_a_node_draw_different_numbers(daemon):
    """Three sandboxes of one template, whose server has drawn before it was taken."""
    daemon.put_images("node")
    body = {"image": "node", "publish": "s3://local/reseed", "entrypoint": ["node", "-e", SERVER], "readiness": {"probe": "tcp://127.0.0.1:8000"},
            "resourceLimits": {"cpu": "1", "memory": "512Mi"}}
    status, t, _ = call(daemon, "POST", "/v1/templates", body)
    assert status == 201, t
    at, end = f"/v1/templates/{t['templateId']}", time.monotonic() + SLOW
    while (t := call(daemon, "GET", at)[1])["status"]["phase"] in ("Pending", "Building"):
        assert time.monotonic() < end, t
        time.sleep(0.3)
    assert t["status"]["phase"] == "Succeeded", t
    boxes = []
    try:
        for _ in range(3):
            status, sb, _ = call(daemon, "POST", "/v1/sandboxes", {"templateId": t["templateId"], "timeout": 600})
            assert status == 202, sb
            boxes.append(sb["id"])
            until(daemon, sb["id"], "Running")
        drawn = [json.loads(call(daemon, "GET", f"/{b}/8000/")[1]) for b in boxes]
        for k in drawn[0]:
            assert len({str(d[k]) for d in drawn}) == 3, (k, drawn)
    finally:
        for b in boxes:
            call(daemon, "DELETE", f"/v1/sandboxes/{b}")
        call(daemon, "DELETE", at)
