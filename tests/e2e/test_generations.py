# SPDX-License-Identifier: Apache-2.0
"""Every generation of the official Python SDK runs the same tour, with exactly the text that it expects (generation_tour.py). JavaScript and Java, whose newest
packages are of the older generation: test_sdks.py."""
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
VENV = pathlib.Path(sys.executable).parent.parent
GENERATIONS = [line.split("==")[1] for line in (HERE / "generations.txt").read_text().splitlines() if line and not line.startswith("#")]
STEPS = ["lines of both streams", "an exit code", "environment and directory", "a log is bytes, whatever the generation", "a session", "a file is bytes, too", "paused and resumed", "killed"]


def tour(python, ending, sdk_env, image):
    r = subprocess.run([python, HERE / "generation_tour.py"], env=os.environ | sdk_env | {"MAYFLY_IMAGE": image, "ENDING": ending}, capture_output=True, text=True, timeout=400)
    assert r.returncode == 0, r.stdout + r.stderr
    assert r.stdout.splitlines() == [f"ok: {s}" for s in STEPS]


def test_the_present_one(sdk_env, base_image):
    tour(sys.executable, "kept", sdk_env, base_image)


@pytest.mark.parametrize("version", GENERATIONS)
def test_another_one(version, sdk_env, base_image):
    older = tuple(int(n) for n in version.split(".")[:3]) < (1, 1, 1)
    tour(VENV / "generations" / version / "bin" / "python", "stripped" if older else "kept", sdk_env, base_image)
