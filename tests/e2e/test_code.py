# SPDX-License-Identifier: Apache-2.0
"""The code interpreter in real sandboxes: the example of the protocol's README with the official packages, unmodified; a template with a kernel that waits,
and what its clones draw. /code in every detail: test_code_host.py."""
import base64
import json
import os
import subprocess
import sys

import pytest
from test_lifecycle import call, until
from test_templates import built

IMAGE = "opensandbox/code-interpreter:v1.0.1"
LIMIT_S = 900

EXAMPLE = '''
import asyncio
from datetime import timedelta

from code_interpreter import CodeInterpreter, SupportedLanguage
from opensandbox import Sandbox
from opensandbox.models import WriteEntry

async def main() -> None:
    # 1. Create a sandbox
    sandbox = await Sandbox.create(
        "opensandbox/code-interpreter:v1.0.1",
        entrypoint=["/opt/opensandbox/code-interpreter.sh"],
        env={"PYTHON_VERSION": "%s"},
        timeout=timedelta(minutes=10),
    )

    async with sandbox:

        # 2. Execute a shell command
        execution = await sandbox.commands.run("echo 'Hello OpenSandbox!'")
        print(execution.logs.stdout[0].text)

        # 3. Write a file
        await sandbox.files.write_files([
            WriteEntry(path="/tmp/hello.txt", data="Hello World", mode=644)
        ])

        # 4. Read a file
        content = await sandbox.files.read_file("/tmp/hello.txt")
        print(f"Content: {content}")

        # 5. Create a code interpreter
        interpreter = await CodeInterpreter.create(sandbox)

        # 6. Execute Python code (single-run, pass language directly)
        result = await interpreter.codes.run(
              """
                  import sys
                  print(sys.version)
                  result = 2 + 2
                  result
              """,
              language=SupportedLanguage.PYTHON,
        )

        print(result.result[0].text) # 4
        print(result.logs.stdout[0].text) # 3.11.14

    # 7. Cleanup the sandbox
    await sandbox.kill()

if __name__ == "__main__":
    asyncio.run(main())
'''
# the distribution's Python, which the image has
PYTHON = subprocess.run(["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def aliased(daemon):
    daemon.put_images("code-interpreter-python")
    daemon.restart('[images]\naliases = "opensandbox/code-interpreter:*=code-interpreter-python"\n')
    yield daemon
    daemon.restart()


def readme_example(daemon, sdk_env, folder):
    script = folder / "example.py"
    script.write_text(EXAMPLE % PYTHON)
    r = subprocess.run([sys.executable, script], env=os.environ | sdk_env, capture_output=True, text=True, timeout=LIMIT_S)
    assert r.returncode == 0, r.stdout + r.stderr
    lines = r.stdout.split("\n")
    assert lines[0] == "Hello OpenSandbox!" and "Content: Hello World" in lines and "4" in lines and PYTHON in r.stdout.rsplit("\n4\n")[1]
    return daemon.log(400)


def test_the_readme_example(aliased, sdk_env, tmp_path):
    assert f"image {IMAGE} stands for code-interpreter-python" in readme_example(aliased, sdk_env, tmp_path)
    listed = aliased.machine.run(f"{aliased.bin}/mayfly", "image", "ls", "--store", "/var/lib/mayfly/state/images").stdout
    assert ["opensandbox/code-interpreter:*", "alias", "code-interpreter-python"] in [line.split() for line in listed.splitlines()]


def code(daemon, box, text, language="python"):
    status, answer, _ = call(daemon, "POST", f"/v1/sandboxes/{box}/proxy/44772/code", {"code": text, "context": {"language": language}})
    assert status == 200, answer
    return [e for e in map(json.loads, filter(None, answer.split("\n\n"))) if e["type"] != "ping"]


DRAW = "import random, numpy, ssl, tempfile\n' '.join(map(str, (random.random(), numpy.random.random(), ssl.RAND_bytes(8).hex(), next(tempfile._get_candidate_names()))))"


def test_twenty_clones_of_a_warm_template_draw_their_own_numbers(aliased):
    status, t, _ = call(aliased, "POST", "/v1/templates", {
        "image": "code-interpreter-python", "publish": "s3://local/code", "entrypoint": ["/opt/code-interpreter/code-interpreter.sh"],
        "readiness": {"probe": "cmd:///opt/code-interpreter/warm"}, "resourceLimits": {"cpu": "1", "memory": "1Gi"}})
    assert status == 201, t
    tpl = t["templateId"]
    try:
        t = built(aliased, tpl)
        assert t["status"]["phase"] == "Succeeded", t
        drawn = []
        for i in range(20):
            status, box, _ = call(aliased, "POST", "/v1/sandboxes", {"templateId": tpl, "timeout": 600})
            assert status == 202, box
            until(aliased, box["id"], "Running")
            e = code(aliased, box["id"], DRAW)
            assert e[-1]["type"] == "execution_complete", e
            # the kernel was there: this is its first cell
            assert e[1]["execution_count"] == 1
            drawn.append([x["results"]["text"] for x in e if x["type"] == "result"][0].strip("'").split())
            if i == 0:
                e = code(aliased, box["id"], "import matplotlib.pyplot as p\np.plot([1, 4, 9]); p.show()")
                assert base64.b64decode([x["results"]["image/png"] for x in e if x["type"] == "result" and "image/png" in x["results"]][0]).startswith(b"\x89PNG")
            call(aliased, "DELETE", f"/v1/sandboxes/{box['id']}")
        for kind, values in zip(("random", "numpy", "OpenSSL", "tempfile"), zip(*drawn)):
            assert len(set(values)) == 20, f"{kind}: {values}"
    finally:
        call(aliased, "DELETE", f"/v1/templates/{tpl}")
