# SPDX-License-Identifier: Apache-2.0
"""Making OCI layouts for tests, and listings of trees to compare with what `build/tools/ext4list` reads from a disk."""
import gzip
import hashlib
import io
import json
import os
import pathlib
import random
import shutil
import stat
import struct
import subprocess
import tarfile

import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent.parent

MAYFLY = TOP / "build" / "bin" / "mayfly"


def tar(entries, fmt=tarfile.PAX_FORMAT):
    """entries: (name, kind, value, attributes); kind d f l h c b p; value: content or target or (major, minor)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=fmt, encoding="utf-8", errors="surrogateescape") as t:
        for name, kind, value, attrs in entries:
            i = tarfile.TarInfo(name)
            i.mtime = attrs.get("mtime", 1600000000)
            i.mode = attrs.get("mode", 0o755 if kind == "d" else 0o644)
            i.uid, i.gid = attrs.get("uid", 0), attrs.get("gid", 0)
            i.type = {"d": tarfile.DIRTYPE, "f": tarfile.REGTYPE, "l": tarfile.SYMTYPE, "h": tarfile.LNKTYPE, "c": tarfile.CHRTYPE,
                      "b": tarfile.BLKTYPE, "p": tarfile.FIFOTYPE}[kind]
            i.pax_headers = dict(attrs.get("pax", {}))
            data = None
            if kind == "f":
                i.size, data = len(value), io.BytesIO(value)
            elif kind in "lh":
                i.linkname = value
            elif kind in "cb":
                i.devmajor, i.devminor = value
            t.addfile(i, data)
    return out.getvalue()


class Layout:
    """An OCI layout folder that is written layer by layer."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.blobs = self.path / "blobs" / "sha256"
        self.blobs.mkdir(parents=True)
        (self.path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        self.layers, self.diffs = [], []

    def put(self, data):
        d = hashlib.sha256(data).hexdigest()
        (self.blobs / d).write_bytes(data)
        return {"digest": "sha256:" + d, "size": len(data)}

    def layer(self, data, compress="gzip", diff=None):
        blob = {"gzip": lambda: gzip.compress(data, 1), "": lambda: data,
                "zstd": lambda: subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout}[compress]()
        kind = "application/vnd.oci.image.layer.v1.tar" + ("+" + compress if compress else "")
        self.layers.append({"mediaType": kind, **self.put(blob)})
        self.diffs.append(diff or "sha256:" + hashlib.sha256(data).hexdigest())

    def layer_file(self, path):
        """Adds a layer from a tar.gz file that is too large for memory. The file becomes the blob."""
        with open(path, "rb") as f, gzip.open(path) as plain:
            d, diff = hashlib.file_digest(f, "sha256").hexdigest(), hashlib.file_digest(plain, "sha256").hexdigest()
        size = os.path.getsize(path)
        os.rename(path, self.blobs / d)
        self.layers.append({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": "sha256:" + d, "size": size})
        self.diffs.append("sha256:" + diff)

    def close(self, config=None, name="t", edit=None, arch="amd64"):
        c = self.put(json.dumps({"architecture": arch, "os": "linux", "config": config or {},
                                 "rootfs": {"type": "layers", "diff_ids": self.diffs}}).encode())
        m = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
             "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **c}, "layers": self.layers}
        if edit:
            edit(m)
        d = self.put(json.dumps(m).encode())
        (self.path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [
            {"mediaType": m["mediaType"], **d, "platform": {"architecture": "amd64", "os": "linux"},
             "annotations": {"org.opencontainers.image.ref.name": name}}]}))
        return self.path


def kernel_form(attr):
    """name=hex as getxattr would give it: ext4 keeps access control lists in a denser form of its own (version 1)."""
    name, value = attr.split("=")
    value = bytes.fromhex(value)
    if not name.startswith("system.posix_acl_") or value[:4] != b"\1\0\0\0":
        return attr
    out, at = b"\2\0\0\0", 4
    while at < len(value):
        tag = int.from_bytes(value[at:at + 2], "little")
        named = tag in (2, 8)
        out += value[at:at + 4] + (value[at + 4:at + 8] if named else b"\xff" * 4)
        at += 8 if named else 4
    return f"{name}={out.hex()}"


def read_listing(text):
    """{path: fields} of what ext4list printed."""
    listing = {}
    for line in text.splitlines():
        path, mode, uid, gid, size, links, dev, mtime, content, attrs = line.split("\t")
        assert path not in listing, f"twice in the disk: {bytes.fromhex(path)}"
        listing[bytes.fromhex(path)] = (int(mode, 8), int(uid), int(gid), int(size), int(links), dev, mtime, content, tuple(sorted(map(kernel_form, attrs.split()))))
    return listing


def list_disk(disk):
    """{path: fields} of an ext4 file."""
    return read_listing(subprocess.run([TOP / "build/tools/ext4list", disk], capture_output=True, text=True, check=True).stdout)


def recipe(name):
    """Builds one of our own images (or finds it built): its OCI layout, then its names."""
    r = subprocess.run([TOP / "images/recipes/build", name], capture_output=True, text=True, timeout=900)
    assert r.returncode == 0, r.stderr
    return r.stdout.split()


def list_tree(root):
    """{path: fields} of an unpacked tree, read by Python."""
    root = os.fsencode(root)
    listing = {}

    def add(path):
        s = os.lstat(path)
        content = ""
        if stat.S_ISREG(s.st_mode):
            h = hashlib.sha256()
            with open(path, "rb") as f:
                while chunk := f.read(1 << 20):
                    h.update(chunk)
            content = h.hexdigest()
        elif stat.S_ISLNK(s.st_mode):
            content = os.readlink(path).hex()
        device = stat.S_ISCHR(s.st_mode) or stat.S_ISBLK(s.st_mode)
        dev = f"{os.major(s.st_rdev)}:{os.minor(s.st_rdev)}" if device else "0:0"
        attrs = [f"{a}={os.getxattr(path, a, follow_symlinks=False).hex()}" for a in os.listxattr(path, follow_symlinks=False)]
        size = 0 if stat.S_ISDIR(s.st_mode) else s.st_size
        listing[path[len(root):]] = (s.st_mode, s.st_uid, s.st_gid, size, s.st_nlink, dev, f"{s.st_mtime_ns // 10**9}.{s.st_mtime_ns % 10**9:09}",
                                     content, tuple(sorted(attrs)))

    add(root)
    for folder, dirs, files in os.walk(root):
        for n in dirs + files:
            add(os.path.join(folder, n))
    return listing


class Store:
    def __init__(self, path):
        self.path = path

    def run(self, *args, check=True, **kw):
        kw.setdefault("timeout", 300)
        r = subprocess.run([MAYFLY, "image", args[0], "--store", self.path, *[str(a) for a in args[1:]]], capture_output=True, text=True, **kw)
        assert not check or r.returncode == 0, r.stderr
        return r

    def images(self):
        return [json.loads(line) for line in self.run("ls", "--json").stdout.splitlines()]

    def disk(self, name):
        return json.loads(self.run("inspect", name).stdout.splitlines()[0])["disk"]

    def files(self):
        return sorted(str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file() and p.parent.name not in ("locks",) and p.name != "lock")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def is_clean(disk):
    r = subprocess.run(["e2fsck", "-fn", disk], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr


def same_as_umoci(disk, layout, tmp_path, name="t"):
    if os.geteuid() != 0:
        pytest.skip("a reference unpacking needs root")
    bundle = tmp_path / "bundle"
    subprocess.run(["umoci", "unpack", "--image", f"{layout}:{name}", bundle], check=True, capture_output=True)
    compare(list_disk(disk), list_tree(bundle / "rootfs"))
    shutil.rmtree(bundle)


def compare(have, want):
    have.pop(b"", None), want.pop(b"", None)  # the root itself: no layer says anything about it unless it has an entry
    assert set(have) == set(want)
    different = {p: (have[p], want[p]) for p in want if have[p] != want[p]}
    assert not different, "\n".join(f"{p}\n  disk      {a}\n  reference {b}" for p, (a, b) in list(different.items())[:10])


CAP_NET_RAW = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)


def odd_layers():
    """45 layers: files that come, change type, are hidden, come back."""
    big = random.Random(1).randbytes(300000)
    first = [("etc/", "d", None, {}), ("etc/passwd", "f", b"root:x:0:0::/:/bin/sh\n", {"mode": 0o640, "gid": 42}), ("bin/", "d", None, {}),
             ("bin/su", "f", b"su", {"mode": 0o4755, "mtime": 1.5}), ("bin/ping", "f", b"ping", {"pax": {"SCHILY.xattr.security.capability": CAP_NET_RAW.decode("utf-8", "surrogateescape")}}),
             ("tmp/", "d", None, {"mode": 0o1777}), ("link", "l", "etc/passwd", {}), ("long", "l", "x" * 2000, {}), ("dangling", "l", "/nowhere/../at/all", {}),
             ("dev/", "d", None, {}), ("dev/null", "c", (1, 3), {"mode": 0o666}), ("dev/big", "b", (259, 70000), {}), ("dev/fifo", "p", None, {}),
             ("big", "f", big, {"uid": 100000, "gid": 4000000000}), ("hard", "h", "big", {"uid": 100000, "gid": 4000000000}), ("zeros", "f", bytes(1 << 20), {}), ("empty", "f", b"", {}),
             ("old", "f", b"old", {"mtime": -86400}), ("n" * 255, "f", b"n", {}), ("ü/", "d", None, {}), ("ü/日本", "f", b"u", {"pax": {"SCHILY.xattr.user.note": "grüße"}})]
    layers = [tar(first), tar([("raw-\udcff\udcfe-name", "f", b"raw", {})], tarfile.GNU_FORMAT)]
    many = [("many/", "d", None, {})] + [(f"many/file-{i:05}-with-a-name-of-some-length", "f", b"%d" % i, {}) for i in range(3000)]
    layers.append(tar(many))
    for i in range(40):
        e = [(f"l{i}/", "d", None, {}), (f"l{i}/keep", "f", b"k%d" % i, {}), (f"l{i}/gone", "f", b"g", {}), (f"l{i}/d/", "d", None, {}), (f"l{i}/d/x", "f", b"x", {}),
             (f"l{i}/hl", "h", f"l{i}/keep", {})]
        if i:
            e += [(f"l{i - 1}/", "d", None, {"mtime": 1700000000 + i}), (f"l{i - 1}/.wh.gone", "f", b"", {})]
        if i % 3 == 1:
            e += [(f"l{i - 1}/d/", "d", None, {}), (f"l{i - 1}/d/.wh..wh..opq", "f", b"", {}), (f"l{i - 1}/d/new", "f", b"new", {})]
        if i % 5 == 1:
            e += [(f"l{i - 1}/d/", "d", None, {}), (f"l{i - 1}/keep/", "d", None, {}), (f"l{i - 1}/keep/now-a-directory", "f", b"", {})]
        if i % 7 == 2:
            e += [(f"l{i - 2}", "l", "etc", {})]
        layers.append(tar(e))
    layers.append(tar([(".wh.big", "f", b"", {}), ("many/", "d", None, {}), ("many/.wh.file-00007-with-a-name-of-some-length", "f", b"", {})]))
    layers.append(tar([("big", "f", b"another", {}), ("etc/passwd", "f", b"changed", {})]))
    return layers


def odd_image(path):
    layout = Layout(path)
    for i, data in enumerate(odd_layers()):
        layout.layer(data, ("gzip", "")[i % 2])
    return layout.close({"Env": ["A=1"], "User": "0:0", "WorkingDir": "/tmp", "Cmd": ["x"]})


def small_layout(path, size=3 << 20):
    layout = Layout(path)
    layout.layer(tar([("f", "f", random.Random(3).randbytes(size), {})]), "")
    return layout.close()
