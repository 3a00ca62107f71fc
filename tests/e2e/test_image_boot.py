# SPDX-License-Identifier: Apache-2.0
"""Images of ours the whole way: recipe, push, a real registry with and without authentication, pull by the daemon, disk, boot; a listing of
every path compared with a reference unpacking, on the disk and from inside the guest. Then: what an idle sandbox writes, and when an image may go.

The registry runs here, on the loopback; from inside the appliance it is 10.0.2.2.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest

from imagekit import TOP, compare, list_tree, read_listing, recipe
from registrykit import WHO, Registry, Serving
from test_lifecycle import call, run, until

STORE = "/var/lib/mayfly/state/images"


def mayfly(daemon, *args):
    """mayfly image ... on the daemon's store, as its own user would."""
    return daemon.machine.run("setpriv", "--reuid=mayfly", "--regid=mayfly", "--clear-groups", f"{daemon.bin}/mayfly", "image", args[0],
                              "--store", STORE, *args[1:])


def inspect(daemon, name):
    r = mayfly(daemon, "inspect", name)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout.splitlines()[0])


def asking_for(image, **more):
    return {"image": {"uri": image, **more}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "timeout": 900}


def start(daemon, image, **more):
    status, sb, _ = call(daemon, "POST", "/v1/sandboxes", asking_for(image, **more))
    assert status == 202, sb
    return sb["id"]


def kill(daemon, sandbox):
    status, text, _ = call(daemon, "DELETE", f"/v1/sandboxes/{sandbox}")
    assert status in (204, 404), text


# what the guest mounts over or is given by the daemon: its own name, addresses and identity
NOT_FROM_THE_IMAGE = re.compile(rb"^(/(dev|proc|sys|run|tmp)(/.*)?|/etc/(hostname|hosts|resolv\.conf|machine-id|mtab)|/etc|/opt|/opt/opensandbox(/.*)?|)$")


HASHED = 65536  # files up to this are read from inside, too: hashing all of a distribution on an emulated CPU takes minutes


def seen_from_inside(daemon, sandbox):
    """{path: [mode, uid, gid, size, links, mtime, target or digest]} as the guest's own programs see it."""
    listing = {}
    # a process for each path would take minutes in there
    out = run(daemon, sandbox, "find / -xdev -exec stat -c '%f %u %g %s %h %Y %n' {} +; echo =; QUOTING_STYLE=literal find / -xdev -type l -exec stat -c '%N' {} +; echo =; "
              f"find / -xdev -type f -size -{HASHED // 512 + 1} -exec sha256sum {{}} +")
    stats, links, sums = [part.strip("\n").split("\n") for part in re.split(r"(?m)^=$", out)]
    for line in stats:
        mode, uid, gid, size, n, mtime, path = line.split(" ", 6)
        mode = int(mode, 16)
        directory = mode & 0o170000 == 0o040000
        listing[os.fsencode(path).rstrip(b"/")] = [mode, int(uid), int(gid), 0 if directory else int(size), int(n), int(mtime), ""]
    for line in links:
        path, target = (x.strip("'") for x in line.split(" -> "))
        listing[os.fsencode(path)][6] = os.fsencode(target).hex()
    for line in sums:
        digest, path = line.split("  ", 1)
        listing[os.fsencode(path)][6] = digest
    return listing


@pytest.fixture(params=[("tiny", "htpasswd"), ("base", "open")], ids=["tiny-htpasswd", "base-open"])
def pulled(request, daemon, tmp_path):
    """A recipe's image in a registry, a sandbox of it made by the daemon: (its name, sandbox, the recipe's layout)."""
    name, auth = request.param
    layout, *_ = recipe(name)
    registry = Registry(tmp_path / "reg", auth)
    request.addfinalizer(registry.close)
    outside = registry.push(layout, f"ours/{name}:1", name)
    inside = "10.0.2.2:" + outside.split(":", 1)[1]
    more = {"auth": {"username": WHO[0], "password": WHO[1]}} if auth != "open" else {}
    if more:  # without them, it says so
        status, said, _ = call(daemon, "POST", "/v1/sandboxes", asking_for(inside))
        assert status == 500 and f"image {inside}: http://{inside.split('/')[0]}: credentials are needed" in said["message"], said
    sb = start(daemon, inside, **more)
    assert until(daemon, sb, "Failed", "Running")["status"]["state"] == "Running", daemon.log()
    yield inside, sb, layout, name
    kill(daemon, sb)


@pytest.mark.skipif(os.geteuid() != 0, reason="a reference unpacking needs root")
def test_a_recipe_pushed_pulled_and_booted_is_the_same_tree(daemon, pulled, tmp_path):
    inside, sb, layout, tag = pulled
    subprocess.run(["umoci", "unpack", "--image", f"{layout}:{tag}", tmp_path / "bundle"], check=True, capture_output=True)
    want = list_tree(tmp_path / "bundle" / "rootfs")
    # the disk that the guest runs on, as the daemon built it: everything, extended attributes too
    disk = inspect(daemon, inside)["disk"]
    tool = daemon.machine.publish(TOP / "build" / "tools" / "ext4list")
    compare(read_listing(daemon.machine.run(f"{tool}/ext4list", disk, check=True).stdout), want)
    r = daemon.machine.run("e2fsck", "-fn", disk)
    assert r.returncode == 0, r.stdout
    # and from inside: what changes at run time is what the guest is given, nothing else
    have = seen_from_inside(daemon, sb)
    names = {p for p in want if not NOT_FROM_THE_IMAGE.match(p)}
    assert names - set(have) == set() and {p for p in have if not NOT_FROM_THE_IMAGE.match(p)} - names == set()
    for p in names:
        mode, uid, gid, size, links, _, mtime, content, _ = want[p]
        if mode & 0o170000 == 0o100000 and size > HASHED:
            content = ""
        assert have[p] == [mode, uid, gid, size, links, int(mtime.split(".")[0]), content], p


def test_sandboxes_of_one_new_image_wait_for_one_download(daemon):
    layout, *_ = recipe("tiny")
    server = Serving()
    name = server.serve(pathlib.Path(layout)).replace("127.0.0.1", "10.0.2.2")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: start(daemon, name), range(4)))
    for sb in made:
        assert until(daemon, sb, "Failed", "Running")["status"]["state"] == "Running", daemon.log()
        kill(daemon, sb)
    server.close()
    asked = [p for p, *_ in server.seen]
    # blobs that the store has from another image of the same content are not even asked for
    assert len([p for p in asked if "/manifests/" in p]) == 1 and len(asked) == len(set(asked)), asked


def test_an_idle_sandbox_writes_next_to_nothing(daemon):
    """Its private layer after some idling and a sync: nobody zeroes inode tables or the like behind its back."""
    blobs = daemon.machine.run("sh", "-c", "ls /var/lib/mayfly/state/blobs").stdout.split()
    sb = start(daemon, "tiny")
    assert until(daemon, sb, "Failed", "Running")["status"]["state"] == "Running"
    end = time.monotonic() + 12  # a kernel that wants to zero in the background begins at once, and does a group every few hundred ms
    while time.monotonic() < end:
        time.sleep(1)
    run(daemon, sb, "sync")
    used = daemon.machine.run("sh", "-c", "cd /var/lib/mayfly/state/blobs && stat -c '%n %b' *.data *.bitmap").stdout.split("\n")
    layers = {}
    for line in filter(None, used):
        name, n = line.split()
        if name not in blobs:
            layers[name] = int(n) * 512
    kill(daemon, sb)
    assert layers and sum(layers.values()) < 1 << 20, layers


def test_an_image_goes_when_nothing_stands_on_it_and_not_before(daemon, tmp_path):
    def pins():
        return inspect(daemon, "goes:1")["pins"]

    def templates():
        digest = inspect(daemon, "goes:1")["digest"].split(":")[1]
        return [t for t in call(daemon, "GET", "/v1/mayfly/templates")[1]["items"] if digest in t["key"]]

    def wait_for(what):
        end = time.monotonic() + 120
        while not what() and time.monotonic() < end:
            time.sleep(0.3)
        return what()
    # tiny with one file more: an image of its own digest, that no other test's records stand on
    layout, *_ = recipe("tiny")
    shutil.copytree(layout, tmp_path / "l")
    subprocess.run(["umoci", "config", "--image", f"{tmp_path}/l:tiny", "--config.env", f"MARK={time.time_ns()}"], check=True, capture_output=True)
    subprocess.run(["umoci", "gc", "--layout", tmp_path / "l"], check=True, capture_output=True)
    subprocess.run(["tar", "-C", tmp_path / "l", "-cf", tmp_path / "goes.tar", "."], check=True)
    r = mayfly(daemon, "import", f"{daemon.machine.publish(tmp_path / 'goes.tar')}/goes.tar", "goes:1")
    assert r.returncode == 0, r.stderr
    disk = inspect(daemon, "goes:1")["disk"]
    assert pins() == 0
    sb = start(daemon, "goes:1")
    assert until(daemon, sb, "Failed", "Running")["status"]["state"] == "Running", daemon.log()
    assert pins() == 1
    assert "in use" in mayfly(daemon, "rm", "goes:1").stderr
    wait_for(lambda: [t for t in templates() if t["state"] == "Ready"])  # written a moment after the first one runs
    kill(daemon, sb)
    for t in templates():
        assert pins() == 1, "its template stands on it"
        status, text, _ = call(daemon, "DELETE", f"/v1/mayfly/templates/{t['id']}")
        assert status in (200, 204), text
    assert wait_for(lambda: pins() == 0), "nothing stands on it, and it is still pinned"
    assert mayfly(daemon, "rm", "goes:1").returncode == 0
    assert daemon.machine.run("test", "-e", disk).returncode == 1


# how long each recipe's own check may take is nobody's promise here: only that it is right
SAYS = {"python": ("python3 -c 'import numpy, sys; print(numpy.arange(10).sum(), sys.version_info[:2] >= (3, 11))'; pip --version | cut -c1-4", "45 True\npip \n"),
        "node": ("node -e 'console.log([1,2,3].map(x => x * x).join(), process.versions.node.split(\".\")[0] >= 18)'", "1,4,9 true\n")}


@pytest.mark.parametrize("name", ["python", "node"])
def test_the_larger_recipes_run(daemon, name):
    daemon.put_images(name)
    sb = start(daemon, name)
    assert until(daemon, sb, "Failed", "Running")["status"]["state"] == "Running", daemon.log()
    try:
        assert run(daemon, sb, SAYS[name][0]) == SAYS[name][1]
    finally:
        kill(daemon, sb)
