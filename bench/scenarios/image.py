# SPDX-License-Identifier: Apache-2.0
"""The scenario image-build: from a layer of 1 GiB to an ext4 disk, beside unpacking it and `mke2fs -d` on the tree. Needs no KVM, but root
(or the reference could not unpack owners). Both begin with the layer in the page cache and end with the disk synced.
"""
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
import time

from mb_core import Failed, find, root_needed, us_since

GIB = 1 << 30
SMALL, LARGE = 20000, 16  # files: half of the bytes in many, half in few


def some_bytes(rng, n):
    """Compress to about a third, as programs and libraries do; the same in every run."""
    words = [rng.randbytes(rng.randint(2, 9)) for _ in range(4096)]
    out = bytearray()
    while len(out) < n:
        out += b"".join(rng.choices(words, k=64)) + rng.randbytes(16)
    return bytes(out[:n])


def add(tar, name, data=None, mode=0o644):
    i = tarfile.TarInfo(name)
    i.mtime, i.mode = 1600000000, mode
    if data is None:
        i.type = tarfile.DIRTYPE
        tar.addfile(i)
        return
    i.size = len(data)
    tar.addfile(i, io.BytesIO(data))


def make_layout(path):
    """An OCI layout of one gzip layer of 1 GiB, once: it is kept in the cache folder. The layer's file."""
    blobs = os.path.join(path, "blobs", "sha256")
    if not os.path.exists(os.path.join(path, "index.json")):
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(blobs)
        tar_path = os.path.join(path, "layer.tar")
        rng = random.Random(2)
        block = some_bytes(rng, 4 << 20)
        with tarfile.open(tar_path, "w", format=tarfile.PAX_FORMAT) as t:
            for i in range(SMALL):
                if i % 200 == 0:
                    add(t, f"d{i // 200}", mode=0o755)
                n = GIB // 2 // SMALL
                at = rng.randrange(len(block) - n)
                add(t, f"d{i // 200}/f{i}", rng.randbytes(64) + block[at:at + n - 64])
            for i in range(LARGE):
                n, data = GIB // 2 // LARGE, b""
                while len(data) < n:
                    at = rng.randrange(len(block) - (1 << 20))
                    data += rng.randbytes(4096) + block[at:at + (1 << 20)]
                add(t, f"large{i}", data[:n])
        diff = digest_of(tar_path)
        subprocess.run(["gzip", "-n", "-3", tar_path], check=True)

        def put(f):
            d, n = digest_of(f), os.path.getsize(f)
            os.rename(f, os.path.join(blobs, d))
            return {"digest": "sha256:" + d, "size": n}

        def put_json(o):
            f = os.path.join(path, "json")
            with open(f, "w") as out:
                json.dump(o, out)
            return put(f)
        base = "application/vnd.oci.image."
        layer = {"mediaType": base + "layer.v1.tar+gzip", **put(tar_path + ".gz")}
        config = put_json({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:" + diff]}})
        m = put_json({"schemaVersion": 2, "mediaType": base + "manifest.v1+json", "config": {"mediaType": base + "config.v1+json", **config}, "layers": [layer]})
        with open(os.path.join(path, "oci-layout"), "w") as f:
            f.write('{"imageLayoutVersion":"1.0.0"}')
        with open(os.path.join(path, "index.json"), "w") as f:
            json.dump({"schemaVersion": 2, "manifests": [{"mediaType": base + "manifest.v1+json", **m}]}, f)
    return max((os.path.join(blobs, b) for b in os.listdir(blobs)), key=os.path.getsize)


def digest_of(f):
    with open(f, "rb") as fd:
        return hashlib.file_digest(fd, "sha256").hexdigest()


class Arm:
    def __init__(self, ctx):
        root_needed()  # the reference unpacks owners
        here = os.path.join(os.environ.get("MAYFLY_CACHE") or os.path.expanduser("~/.cache/mayfly"), "bench")
        self.layout = os.path.join(here, "image-1g")
        self.layer = make_layout(self.layout)
        # beside the layout: the same disk for both, and not a tmpfs
        self.dir = os.path.join(here, f"image-{self.name}-{os.getpid()}")
        shutil.rmtree(self.dir, ignore_errors=True)

    def warm(self):
        with open(self.layer, "rb") as f:
            while f.read(1 << 20):
                pass
        subprocess.run(["sync", "-f", self.layout], check=True)  # no arm writes out what the other left dirty

    def close(self):
        shutil.rmtree(self.dir, ignore_errors=True)


class Mayfly(Arm):
    name = "mayfly"

    def __init__(self, ctx):
        self.program = find("mayfly")
        find("mayfly-image")
        super().__init__(ctx)

    def sample(self):
        """The whole of `mayfly image import`: the layer is copied into the store and verified, too."""
        self.warm()
        t0 = time.monotonic_ns()
        r = subprocess.run([self.program, "image", "import", "--store", self.dir, self.layout, "bench"], capture_output=True, text=True)
        total = us_since(t0)
        if r.returncode:
            raise Failed(r.stderr)
        self.close()
        return {"total": total}


class Mke2fs(Arm):
    name = "tar+mke2fs"

    def __init__(self, ctx):
        for p in ("tar", "mke2fs"):
            find(p)
        super().__init__(ctx)

    def sample(self):
        self.warm()
        tree, disk = os.path.join(self.dir, "tree"), os.path.join(self.dir, "disk")
        os.makedirs(tree)
        t0 = time.monotonic_ns()
        subprocess.run(["tar", "-C", tree, "--numeric-owner", "-xpzf", self.layer], check=True)
        t1 = time.monotonic_ns()
        subprocess.run([find("mke2fs"), "-q", "-t", "ext4", "-O", "^has_journal", "-d", tree, disk, "9G"], check=True, stdout=subprocess.DEVNULL)
        fd = os.open(disk, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        t2 = time.monotonic_ns()
        self.close()
        return {"total": (t2 - t0) / 1000, "unpack": (t1 - t0) / 1000, "mke2fs -d": (t2 - t1) / 1000}


SCENARIOS = {
    "image-build": {
        "what": "an OCI layout with one gzip layer of 1 GiB (20,000 small files, 16 large) to an ext4 disk; beside it `tar -xz` and `mke2fs -d` without a journal",
        "start": "before the program is spawned, the layer in the page cache", "stop": "it has ended: the layer copied and verified, too, the disk synced",
        "arms": [Mayfly, Mke2fs], "seconds": 130, "samples": 3, "passes": 1, "where": "host",
    },
}
