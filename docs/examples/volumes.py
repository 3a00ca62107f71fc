# SPDX-License-Identifier: Apache-2.0
"""Two sandboxes share a claim, with the official Python SDK; the claim is deleted with the last of them. With MAYFLY_HOST_FOLDER also a folder of the host.

    pip install opensandbox
    eval "$(mayfly env)" && python docs/examples/volumes.py
"""
import asyncio
import datetime
import os
import uuid

from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.models.sandboxes import PVC, Host, Volume


async def host_folder(create, host):
    """Read-write as a whole, and read-only from a folder in it."""
    box = await create(Volume(name="all", host=host, mount_path="/all"), Volume(name="train", host=host, mount_path="/train", sub_path="datasets/train", read_only=True))
    try:
        run = await box.commands.run("cat /all/marker.txt /train/marker.txt; ls /train")
        print("host:", *" ".join(m.text for m in run.logs.stdout).split())
        await box.files.write_file("/all/written", "by python")
        run = await box.commands.run("echo no >/train/new")
        print("host refused:", run.error is not None and "Read-only" in run.logs.stderr[0].text)
    finally:
        await box.kill()


async def main():
    config = ConnectionConfig(request_timeout=datetime.timedelta(seconds=300))
    claim = PVC(claim_name=f"python-{uuid.uuid4().hex[:8]}", delete_on_sandbox_termination=True)
    image = os.environ.get("MAYFLY_IMAGE", "base")

    async def create(*volumes):
        return await Sandbox.create(image, connection_config=config, timeout=datetime.timedelta(minutes=10), volumes=list(volumes))

    async def box(**more):
        return await create(Volume(name="data", pvc=claim, mount_path="/data", **more))

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
    if folder := os.environ.get("MAYFLY_HOST_FOLDER"):
        await host_folder(create, Host(path=folder))


asyncio.run(main())
