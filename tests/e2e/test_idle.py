# SPDX-License-Identifier: Apache-2.0
"""Idle policies with the official client that knows them, and a client-side pool of it, on real VMs. Everything that goes wrong: test_idle_host.py."""
import os
import pathlib
import re
import subprocess
import sys

from test_lifecycle import call

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = pathlib.Path(sys.executable).parent.parent / "generations" / "1.1.2.dev20261020" / "bin" / "python"
STEPS = ["paused when idle", "a command wakes it", "its processes went on", "fifty requests wake it", "a client-side pool"]


def counter(daemon, name):
    return int(re.search(rf"^mayfly_{name}_total (\d+)", call(daemon, "GET", "/metrics")[1], re.M)[1])


def test_the_official_client(daemon, sdk_env, base_image):
    before = counter(daemon, "idle_wakes")
    r = subprocess.run([PYTHON, HERE / "idle_tour.py"], env=os.environ | sdk_env | {"MAYFLY_IMAGE": base_image}, capture_output=True, text=True, timeout=900)
    assert r.returncode == 0, r.stdout + r.stderr
    assert r.stdout.splitlines() == [f"ok: {s}" for s in STEPS]
    assert counter(daemon, "idle_wakes") == before + 2
