# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/quickstart.md and docs/sdk.md, as they stand there, on real VMs. A block that is run has a comment above it: <!-- test: NAME -->."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import MAYFLY
from test_sdks import JARS, VENV, node

DOCS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs"
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
