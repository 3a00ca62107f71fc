# SPDX-License-Identifier: Apache-2.0
"""Fork a running sandbox with the official Python SDK and one plain request. Every child goes on with the memory, the processes and the disk of the source.

    pip install opensandbox
    eval "$(mayfly env)" && python docs/examples/fork.py
"""
import json
import os
import urllib.request
from datetime import timedelta

from opensandbox import SandboxSync


def fork(sandbox_id, count, **options):
    """Ids of the children, and the errors of those that were not made. options: env, metadata, timeout (seconds), pauseSource."""
    request = urllib.request.Request(
        f"http://{os.environ['OPEN_SANDBOX_DOMAIN']}/v1/sandboxes/{sandbox_id}/fork", method="POST",
        data=json.dumps({"count": count} | options).encode(),
        headers={"Content-Type": "application/json", "OPEN-SANDBOX-API-KEY": os.environ.get("OPEN_SANDBOX_API_KEY", "")})
    items = json.load(urllib.request.urlopen(request))["items"]
    return [i["sandbox"]["id"] for i in items if "sandbox" in i], [i["error"] for i in items if "error" in i]


with SandboxSync.create(os.environ.get("MAYFLY_IMAGE", "base"), timeout=timedelta(minutes=10), resource={"cpu": "1", "memory": "256Mi"}) as source:
    source.files.write_file("/tmp/state", "prepared once\n")
    ids, errors = fork(source.id, 3, env={"ROLE": "child"}, timeout=600)
    print(f"{len(ids)} children, {len(errors)} errors")
    for n, child_id in enumerate(ids):
        child = SandboxSync.connect(child_id)
        child.commands.run(f"echo child {n} >> /tmp/state")
        print(child.commands.run("echo $ROLE: $(cat /tmp/state)").text.strip())
        child.kill()
    print("source:", source.files.read_file("/tmp/state").strip())
    source.kill()
