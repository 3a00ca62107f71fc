# SPDX-License-Identifier: Apache-2.0
"""A sandbox with the official Python SDK: commands, files, a web server.

    pip install opensandbox
    eval "$(mayfly env)" && python docs/examples/quickstart.py
"""
import os
import sys
import urllib.request
from datetime import timedelta

from opensandbox import SandboxSync
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import WriteEntry

image = os.environ.get("MAYFLY_IMAGE", "python")

with SandboxSync.create(image, timeout=timedelta(minutes=10), resource={"cpu": "1", "memory": "512Mi"}) as sandbox:
    # a command, its output, its exit code
    hello = sandbox.commands.run("echo hello from $(uname -s); exit 3")
    print(hello.text, hello.exit_code)

    # a file written and run
    sandbox.files.write_files([WriteEntry(path="/srv/app/index.html", data="<h1>a sandbox</h1>\n", mode=644)])
    print(sandbox.files.read_file("/srv/app/index.html").strip())

    # a server inside, reached from outside
    sandbox.commands.run("python3 -m http.server 8000 --directory /srv/app", opts=RunCommandOpts(background=True))
    sandbox.commands.run("until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; do sleep 0.1; done")
    endpoint = sandbox.get_endpoint(8000)
    print(urllib.request.urlopen(f"http://{endpoint.endpoint}/index.html").read().decode().strip())

    sandbox.kill()
sys.exit(0 if hello.exit_code == 3 else 1)
