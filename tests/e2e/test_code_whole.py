# SPDX-License-Identifier: Apache-2.0
"""The whole code-interpreter image in real sandboxes, all its kernels warm from a template: MAYFLY_STRESS=1 E2E_MEMORY=8G, about half an hour on an emulated CPU.
Its kernels one by one, on this host: test_code_languages.py. The small image in a sandbox: test_code.py."""
import base64
import concurrent.futures
import os
import pathlib
import subprocess
import time

import pytest
import test_code_host
from conftest import CACHE, TOP
from test_code import IMAGE, readme_example
from test_code_host import Box, Cell, error, kinds, results, text
from test_code_languages import LANGUAGES
from test_lifecycle import call, run, until
from test_templates import built

LIMIT_S = 1800
# The same numbers twice would mean that two sandboxes share a generator.
DRAW = {
    "python": "import random, numpy, ssl, tempfile\nprint(random.random(), numpy.random.random(), ssl.RAND_bytes(8).hex(), next(tempfile._get_candidate_names()))",
    "bash": "echo $RANDOM$RANDOM $SRANDOM",
    "javascript": "{ const c = require('crypto'); console.log(Math.random(), c.randomUUID(), c.generateKeyPairSync('ed25519').publicKey.export({ format: 'jwk' }).x) }",
    "typescript": "import * as c from 'crypto'\nconsole.log(Math.random(), c.randomUUID(), c.generateKeyPairSync('ed25519').publicKey.export({ format: 'jwk' }).x)",
    "java": "System.out.println(Math.random() + \" \" + new Random().nextLong() + \" \" + java.util.concurrent.ThreadLocalRandom.current().nextLong() + \" \" "
            "+ new SplittableRandom().nextLong() + \" \" + UUID.randomUUID() + \" \" + new java.security.SecureRandom().nextLong());",
    "go": 'import ("crypto/rand"; "fmt"; "math/big"; mr "math/rand"; "time")\nmr.Seed(time.Now().UnixNano())\nn, _ := rand.Int(rand.Reader, big.NewInt(1<<62))\nfmt.Println(n, mr.Int63())',
}


class Far(Box):
    """A sandbox of a daemon that runs in the appliance."""

    def __init__(self, daemon, box):
        self.far, self.daemon, self.id = daemon, self, box
        self.port = int(daemon.domain.rsplit(":", 1)[1])

    def ask(self, method, path, body=None):
        status, answer, _ = call(self.far, method, f"/{self.id}/44772{path}", body)
        return status, answer

    def do(self, what, state):
        status, answer, _ = call(self.far, "POST", f"/v1/sandboxes/{self.id}/{what}")
        assert status == 202, answer
        until(self.far, self.id, state)

    def delete(self):
        call(self.far, "DELETE", f"/v1/sandboxes/{self.id}")


@pytest.fixture(scope="module")
def whole(daemon):
    test_code_host.LIMIT_S, kept = LIMIT_S, test_code_host.LIMIT_S
    begun = time.monotonic()
    daemon.put_images("code-interpreter")
    print(f"image there after {time.monotonic() - begun:.0f} s")
    daemon.restart('[images]\naliases = "opensandbox/code-interpreter:*=code-interpreter"\n')
    yield daemon
    daemon.restart()
    test_code_host.LIMIT_S = kept


@pytest.fixture(scope="module")
def template(whole):
    begun = time.monotonic()
    status, t, _ = call(whole, "POST", "/v1/templates", {
        "image": "code-interpreter", "publish": "s3://local/whole", "entrypoint": ["/opt/code-interpreter/code-interpreter.sh"],
        "readiness": {"probe": "cmd:///opt/code-interpreter/warm"}, "resourceLimits": {"cpu": "1", "memory": "2Gi"}})
    assert status == 201, t
    t = built(whole, t["templateId"])
    assert t["status"]["phase"] == "Succeeded", t
    print(f"template built in {time.monotonic() - begun:.0f} s")
    yield t["templateId"]
    call(whole, "DELETE", f"/v1/templates/{t['templateId']}")


def clone(daemon, template):
    status, box, _ = call(daemon, "POST", "/v1/sandboxes", {"templateId": template, "timeout": 7200})
    assert status == 202, box
    until(daemon, box["id"], "Running")
    return Far(daemon, box["id"])


@pytest.fixture(scope="module")
def box(whole, template):
    b = clone(whole, template)
    yield b
    b.delete()


def test_clones_draw_their_own_numbers(whole, template):
    drawn = {language: [] for language in DRAW}
    for _ in range(3):
        b = clone(whole, template)
        for language, cell in DRAW.items():
            begun = time.monotonic()
            e = b.events(cell, language=language)
            assert kinds(e)[-1] == "execution_complete", e
            drawn[language].append(text(e).split())
            print(f"{language}: first cell {time.monotonic() - begun:.2f} s: {drawn[language][-1]}")
        # no kernel was started for them: Jupyter's own children
        status, listed = b.ask("GET", "/code/contexts")
        assert len(listed) == len(LANGUAGES), listed
        b.delete()
    for language, clones in drawn.items():
        for values in zip(*clones, strict=True):
            assert len(set(values)) == len(clones), f"{language}: {values}"


def test_memory_of_an_idle_clone(whole, box):
    seen = run(whole, box.id, "free -m; ps -eo rss,args --sort -rss | head -12")
    print(seen)
    assert "Mem:" in seen


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_in_a_sandbox(box, language, tmp_path):
    code = LANGUAGES[language]
    one, two = box.context(language), box.context(language)
    assert kinds(box.events(code.keep, id=one))[-1] == "execution_complete"
    for _ in range(2):
        assert text(box.events(code.show, id=one)) == "42\n"
    assert "42\n" not in text(box.events(code.show, id=two))
    e = error(box.events(code.fails, id=two))
    assert e["ename"] == code.ename and e["evalue"] and e["traceback"], e
    e = box.events(code.sum, id=two)
    assert (results(e)[0]["text"] if code.sum_is_result else text(e).strip()) == "4", e
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for loop in (code.spin, *(c for c in code.also if "FLAG" not in c)):
            cell = Cell(box, loop, one)
            cell.until("begun")
            begun = time.monotonic()
            rest = pool.submit(cell.rest)
            assert box.ask("DELETE", f"/code?id={one}") == (200, "")
            error(rest.result(LIMIT_S))
            print(f"{language}: interrupted after {time.monotonic() - begun:.2f} s")
        a, b = f"/tmp/{language}-a", f"/tmp/{language}-b"
        cells = [pool.submit(box.events, code.meet.replace("A", x, 1).replace('"B"', f'"{y}"').replace("'B'", f"'{y}'").replace("-e B", f"-e {y}"), id=c)
                 for c, x, y in ((one, a, b), (two, b, a))]
        for cell in cells:
            assert text(cell.result(LIMIT_S)).endswith("met\n")
    for c in (one, two):
        assert box.ask("DELETE", f"/code/contexts/{c}") == (200, "")


def test_a_figure(box):
    e = box.python("import matplotlib.pyplot as p, numpy as n\nx = n.linspace(0, 7, 200)\np.plot(x, n.sin(x)); p.title('sin'); p.show()")
    png = base64.b64decode([r["image/png"] for r in results(e) if "image/png" in r][0])
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    (TOP / "build" / "logs" / "figure.png").write_bytes(png)  # to be looked at


COUNT = {
    "python": "import time\nprint('begun', flush=True)\nfor i in range(100): time.sleep(.1)\nprint('after')",
    "bash": "echo begun; for i in $(seq 100); do sleep .1; done; echo after",
    "javascript": "console.log('begun'); for (let i = 0; i < 100; i++) await new Promise((r) => setTimeout(r, 100)); console.log('after')",
    "java": 'System.out.println("begun");\nfor (int i = 0; i < 100; i++) Thread.sleep(100);\nSystem.out.println("after");',
    "go": 'import ("fmt"; "time")\nfmt.Println("begun")\nfor i := 0; i < 100; i++ { time.Sleep(100 * time.Millisecond) }\nfmt.Println("after")',
}


@pytest.mark.parametrize("what", ["pause", "snapshot"])
def test_in_the_middle_of_cells(box, what):
    """One of each language goes on, and its stream says all of it or that something was lost."""
    cells = {language: Cell(box, cell, box.context(language)) for language, cell in COUNT.items()}
    for cell in cells.values():
        cell.until("begun")
    if what == "pause":
        box.do("pause", "Paused")
        box.do("resume", "Running")
    else:
        status, s, _ = call(box.far, "POST", f"/v1/sandboxes/{box.id}/snapshots", {"name": "middle"})
        assert status in (201, 202), s
        end = time.monotonic() + LIMIT_S
        while (s := call(box.far, "GET", f"/v1/snapshots/{s['id']}")[1])["status"]["state"] not in ("Ready", "Failed"):
            assert time.monotonic() < end, s
            time.sleep(0.5)
        assert s["status"]["state"] == "Ready", s
    for language, cell in cells.items():
        e = cell.rest()
        print(f"{language}: {kinds(e)[-1]} {e[-1].get('error', {}).get('ename', '')}")
        assert kinds(e)[-1] == "execution_complete" and "after" in text(e) or error(e)["ename"] == "OutputLost", e
        e = box.events(LANGUAGES[language].sum, id=cell.context)
        assert kinds(e)[-1] == "execution_complete", e
        box.ask("DELETE", f"/code/contexts/{cell.context}")
    if what == "snapshot":
        status, copy, _ = call(box.far, "POST", "/v1/sandboxes", {"snapshotId": s["id"], "timeout": 3600, "resourceLimits": {"cpu": "1", "memory": "2Gi"}})
        assert status == 202, copy
        until(box.far, copy["id"], "Running")
        copy = Far(box.far, copy["id"])
        for language, cell in cells.items():  # its cell goes on there, and nobody reads it: the context is free when it has ended
            end = time.monotonic() + LIMIT_S
            while kinds(e := copy.events(LANGUAGES[language].sum, id=cell.context))[-1] == "error":
                assert time.monotonic() < end, e
                time.sleep(1)
        copy.delete()
        call(box.far, "DELETE", f"/v1/snapshots/{s['id']}")


def test_what_cells_do_wrong(box):
    c = box.context()
    e = box.events("import os\nif not os.fork(): os._exit(0)\nos.wait()\n'parent'", id=c)
    assert results(e) == [{"text": "'parent'"}], e
    assert error(box.events("raise SystemExit(3)", id=c))["ename"] == "SystemExit"
    assert error(box.events("input()", id=c))["ename"] == "StdinNotImplementedError"
    assert error(box.events("import os; os._exit(3)", id=c))["ename"] == "KernelDied"
    box.ask("DELETE", f"/code/contexts/{c}")
    c = box.context()
    # a gigabyte: no client could keep it, and the daemon does not
    cell = Cell(box, "print('begun', flush=True)\nfor i in range(10000): print('x' * 99999)", c)
    cell.until("begun")
    got = 0
    while len(cell.seen) < 64 << 20 and (more := cell.read()):
        got += len(more)
        cell.seen += more
    cell.leave()
    print(f"{len(cell.seen) >> 20} MiB of a gigabyte were read")
    assert box.ask("DELETE", f"/code?id={c}") == (200, "")
    end = time.monotonic() + LIMIT_S
    while kinds(e := box.events("6 * 7", id=c))[-1] == "error":
        assert time.monotonic() < end, e
        time.sleep(0.5)
    assert results(e) == [{"text": "42"}]
    for language, word in (("cobol", "python"), ("", "language")):
        status, e = box.ask("POST", "/code/context", {"language": language})
        assert status == 400 and word in e["message"], e


def test_the_server_goes_away(whole, template):
    b = clone(whole, template)
    cell = Cell(b, "import time\nprint('begun', flush=True)\ntime.sleep(600)", b.context())
    cell.until("begun")
    run(whole, b.id, "pkill -KILL -f /opt/code-interpreter/server; echo done")
    # it is the entrypoint: the sandbox ends with it
    assert error(cell.rest())["ename"] in ("KernelLost", "SandboxEnded")
    until(whole, b.id, "Terminated", "Failed")
    b.delete()


def test_another_version_is_refused(whole):
    for variable in ("PYTHON_VERSION", "JAVA_VERSION", "NODE_VERSION", "GO_VERSION"):
        status, sb, _ = call(whole, "POST", "/v1/sandboxes", {
            "image": {"uri": "opensandbox/code-interpreter:v1"}, "entrypoint": ["/opt/opensandbox/code-interpreter.sh"], "timeout": 600,
            "resourceLimits": {"cpu": "1", "memory": "1Gi"}, "env": {variable: "1.2.3"}})
        assert status == 202, sb
        assert sb["extensions"]["opensandbox.extensions.mayfly.image"] == "code-interpreter", sb
        s = until(whole, sb["id"], "Terminated", "Failed")
        print(s["status"])
        assert "64" in s["status"]["message"], s["status"]
        call(whole, "DELETE", f"/v1/sandboxes/{sb['id']}")


def test_the_readme_example_with_the_whole_image(whole, sdk_env, tmp_path):
    assert f"image {IMAGE} stands for code-interpreter" in readme_example(whole, sdk_env, tmp_path)


def test_two_builds_are_the_same(tmp_path):
    def build(cache):
        r = subprocess.run([TOP / "images" / "recipes" / "build", "code-interpreter"], env=os.environ | {"MAYFLY_CACHE": str(cache)}, capture_output=True, text=True, timeout=LIMIT_S)
        assert r.returncode == 0, r.stderr
        return (pathlib.Path(r.stdout.split()[0]) / "index.json").read_text()
    assert build(CACHE) == build(tmp_path)
