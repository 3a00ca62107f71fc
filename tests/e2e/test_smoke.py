# SPDX-License-Identifier: Apache-2.0
"""The main job, once, through the official Python SDK and through our own command line."""
import asyncio
import datetime
import subprocess

from conftest import MAYFLY


def test_health_and_key(daemon):
    import urllib.error
    import urllib.request

    with urllib.request.urlopen(daemon.url + "/health", timeout=10) as r:
        assert r.status == 200
    try:
        urllib.request.urlopen(daemon.url + "/v1/sandboxes", timeout=10)
        raise AssertionError("no key was wanted")
    except urllib.error.HTTPError as e:
        assert e.code == 401


def test_python_sdk(daemon):
    from opensandbox import Sandbox
    from opensandbox.config import ConnectionConfig

    async def main():
        c = ConnectionConfig(domain=daemon.domain, api_key=daemon.api_key, request_timeout=datetime.timedelta(seconds=120))
        sandbox = await Sandbox.create("base", connection_config=c, timeout=datetime.timedelta(minutes=5))
        try:
            r = await sandbox.commands.run("echo hello; echo oops >&2")
            assert [l.text.strip() for l in r.logs.stdout] == ["hello"]
            assert [l.text.strip() for l in r.logs.stderr] == ["oops"]
            await sandbox.files.write_file("/tmp/f", "content")
            assert await sandbox.files.read_file("/tmp/f") == "content"
        finally:
            await sandbox.kill()

    asyncio.run(asyncio.wait_for(main(), 180))


def test_command_line(daemon, sdk_env):
    import os

    r = subprocess.run([MAYFLY, "run", "base", "--", "sh", "-c", "echo out; exit 3"], env=os.environ | sdk_env, capture_output=True, text=True,
                       timeout=180)
    assert (r.returncode, r.stdout) == (3, "out\n"), r.stderr
