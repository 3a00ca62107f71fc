# SPDX-License-Identifier: Apache-2.0
"""A store on a file system with fs-verity (ext4; the appliance's own is XFS): what was read through once is handed to the kernel, which checks every
page from then on. The next boot of the host trusts it at once, and the kernel finds damage below it at the next read."""
import json
import re
import time

import pytest
from test_lifecycle import SLOW, call, run
from test_templates import a_sandbox, mayfly, origin  # noqa: F401: a fixture

STATE = "/var/lib/mayfly/state"
# The images are read through the other mount, the rest begins empty. `mount -o loop` would hold the device open for writing, which this kernel refuses.
MOUNT = f"""set -e
truncate -s 2G {STATE}-verity.img
mkfs.ext4 -q -O verity {STATE}-verity.img
mkdir -p {STATE}-images
mount --bind {STATE}/images {STATE}-images
chown --reference={STATE} {STATE}-verity.img
mount "$(losetup -f --show {STATE}-verity.img)" {STATE}
mkdir {STATE}/images
mount --bind {STATE}-images {STATE}/images
"""
UNMOUNT = f"umount {STATE}/images {STATE} {STATE}-images; losetup -D; rm -f {STATE}-verity.img; rmdir {STATE}-images"


@pytest.fixture
def on_verity(daemon):
    daemon.end()
    daemon.machine.run("sh", "-c", MOUNT, check=True)
    daemon.start()
    yield
    daemon.end()
    daemon.machine.run("sh", "-c", UNMOUNT, check=True)
    daemon.start()


def file_of(daemon, template):
    """Its newest memory file, once the daemon knows that every one is good."""
    end = time.monotonic() + SLOW
    while not (seen := call(daemon, "GET", f"/v1/mayfly/points/{template}")[1])["verifiedSinceBoot"]:
        assert time.monotonic() < end, seen
        time.sleep(0.3)
    return f"{STATE}/blobs/{seen['memoryFiles'][-1]['id']}"


def is_watched(daemon, path):
    return "V" in daemon.machine.run("lsattr", path, check=True).stdout.split()[0]


def test_the_kernel_watches_what_was_read_once(daemon, on_verity, mayfly):  # noqa: F811
    template = mayfly("template", "build", "--memory", "256Mi", "tiny").stdout.strip()
    box = a_sandbox(daemon)
    assert origin(daemon, box) == ("template", template)
    call(daemon, "DELETE", f"/v1/sandboxes/{box}")
    path = file_of(daemon, template)
    assert is_watched(daemon, path + ".mem")
    # as the next boot finds it: nothing is known but what the file itself says
    daemon.machine.run("rm", path + ".ok", check=True)
    daemon.kill()
    daemon.wait()
    assert json.loads(mayfly("template", "inspect", template).stdout)["verifiedSinceBoot"]
    box = a_sandbox(daemon)
    assert origin(daemon, box) == ("template", template) and run(daemon, box, "echo alive") == "alive\n"
    call(daemon, "DELETE", f"/v1/sandboxes/{box}")
    # the disk lies: its bytes are changed where the file system does not see it
    daemon.end()
    extents = daemon.machine.run("filefrag", "-e", path + ".mem", check=True).stdout
    rows = [[int(v) for v in row] for row in re.findall(r"^ *\d+: +(\d+)\.\. +\d+: +(\d+)\.\. +\d+: +(\d+):", extents, re.M)]
    blocks = int(daemon.machine.run("stat", "-c", "%s", path + ".mem", check=True).stdout) // 4096
    # its pages but the first, whose header everyone reads; what the kernel checks them with lies beyond the end
    rows = [(at + (not page), min(n, blocks - page) - (not page)) for page, at, n in rows if page < blocks]
    assert rows, extents
    for at, n in rows:
        daemon.machine.run("dd", "if=/dev/urandom", f"of={STATE}-verity.img", "bs=4096", f"seek={at}", f"count={n}", "conv=notrunc,fsync", check=True)
    daemon.machine.run("sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches", check=True)
    daemon.start()
    # a create that comes upon it boots instead, and leaves a new one
    box = a_sandbox(daemon)
    assert origin(daemon, box)[0] == "boot" and run(daemon, box, "echo alive") == "alive\n"
    call(daemon, "DELETE", f"/v1/sandboxes/{box}")
    # whoever reads the page first says so: the populating thread, or the guest
    assert re.search(f"template {template} of tiny cannot be restored: (guest memory at|read .* of memory file .*Input/output error)", daemon.log(400))
    assert call(daemon, "GET", f"/v1/mayfly/templates/{template}")[0] == 404
