# SPDX-License-Identifier: Apache-2.0
"""Two sandboxes share a claim, with the official Python SDK; the claim goes with the last of them.

    pip install opensandbox
    eval "$(mayfly env)" && python docs/examples/volumes.py
"""
import asyncio
import datetime
import os
import uuid

from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.models.sandboxes import PVC, Volume


async def main():
    config = ConnectionConfig(request_timeout=datetime.timedelta(seconds=300))
    claim = PVC(claim_name=f"python-{uuid.uuid4().hex[:8]}", delete_on_sandbox_termination=True)
    image = os.environ.get("MAYFLY_IMAGE", "base")

    async def box(**more):
        return await Sandbox.create(image, connection_config=config, timeout=datetime.timedelta(minutes=10), volumes=[Volume(name="data", pvc=claim, mount_path="/data", **more)])

    writer = await box()
    reader = await box(read_only=True, sub_path="out")
    try:
        await writer.files.write_file("/data/out/result", "42\n")
        run = await reader.commands.run("sleep 1; cat /data/result; echo no >/data/result")
        print("read:", run.logs.stdout[0].text.strip())
        print("refused:", "Read-only" in run.logs.stderr[0].text)
        await writer.pause()
        writer = await Sandbox.resume(writer.id, connection_config=config)
        print("after a pause:", (await writer.files.read_file("/data/out/result")).strip())
    finally:
        await reader.kill()
        await writer.kill()


asyncio.run(main())
