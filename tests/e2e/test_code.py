# SPDX-License-Identifier: Apache-2.0
"""The code interpreter in real sandboxes: the example of the protocol's README with the official packages, unmodified. /code in every detail: test_code_host.py."""
import os
import subprocess
import sys

import pytest

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


def test_the_readme_example(aliased, sdk_env, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(EXAMPLE % PYTHON)
    r = subprocess.run([sys.executable, script], env=os.environ | sdk_env, capture_output=True, text=True, timeout=LIMIT_S)
    assert r.returncode == 0, r.stdout + r.stderr
    lines = r.stdout.split("\n")
    assert lines[0] == "Hello OpenSandbox!" and "Content: Hello World" in lines and "4" in lines and PYTHON in r.stdout.rsplit("\n4\n")[1]
    assert f"image {IMAGE} stands for code-interpreter-python" in aliased.log(400)
    listed = aliased.machine.run(f"{aliased.bin}/mayfly", "image", "ls", "--store", "/var/lib/mayfly/state/images").stdout
    assert ["opensandbox/code-interpreter:*", "alias", "code-interpreter-python"] in [line.split() for line in listed.splitlines()]
