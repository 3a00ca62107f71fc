# SPDX-License-Identifier: Apache-2.0
"""Images from end to end, without VMs: sources, the disk compared with a reference unpacking, bad input, the store, kills. Pulls: test_pull.py."""
import gzip
import hashlib
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import tarfile
import time

import pytest

from imagekit import (MAYFLY, Layout, Store, is_clean, list_disk, list_tree, odd_image, odd_layers, recipe, same_as_umoci, small_layout,
                      store, tar)  # noqa: F401 (store is a fixture)


def test_odd_layers_equal_a_reference_unpacking(store, tmp_path):
    layout = odd_image(tmp_path / "layout")
    store.run("import", layout, "odd")
    is_clean(store.disk("odd"))
    same_as_umoci(store.disk("odd"), layout, tmp_path)
    config = json.loads(store.run("inspect", "odd").stdout.split("\n", 1)[1])
    assert (config["env"], config["user"], config["workingDir"], config["cmd"], len(config["layers"])) == (["A=1"], "0:0", "/tmp", ["x"], 45)


def test_the_same_image_makes_the_same_disk(tmp_path):
    layout = odd_image(tmp_path / "layout")
    digests = set()
    for i in range(2):
        s = Store(tmp_path / f"store{i}")
        s.run("import", "--room", "64M", layout, "odd")
        digests.add(hashlib.file_digest(open(s.disk("odd"), "rb"), "sha256").hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize("name", ["tiny", "base", "python", "node"])
def test_recipes_equal_a_reference_unpacking(store, tmp_path, name):
    layout, *names = recipe(name)
    seen = json.loads(subprocess.run(["skopeo", "inspect", f"oci:{layout}:{name}"], capture_output=True, check=True).stdout)
    assert seen["Os"] == "linux" and seen["Labels"] == {"dev.mayfly.recipe": name} and len(seen["Layers"]) == 1
    store.run("build", name)
    # the names that people use are there, and shown for what they are
    assert {(i["name"], i["local"]) for i in store.images()} == {(f"docker.io/library/{n}", True) for n in names}
    lines = store.run("ls").stdout.splitlines()[1:]
    assert sorted(line.split()[:2] for line in lines) == sorted([n, "local"] for n in names)
    is_clean(store.disk(names[0]))
    same_as_umoci(store.disk(names[0]), layout, tmp_path, name)


def test_every_kind_of_source_gives_the_same_tree(store, tmp_path):
    layout = Layout(tmp_path / "layout")
    data = odd_layers()[0]
    layout.layer(data, "zstd")
    layout.close()
    plain = Layout(tmp_path / "plain")
    plain.layer(data, "")
    plain.close()
    subprocess.run(["skopeo", "copy", "-q", f"oci:{plain.path}:t", f"oci-archive:{tmp_path}/oci.tar:t"], check=True)
    subprocess.run(["skopeo", "copy", "-q", f"oci:{plain.path}:t", f"docker-archive:{tmp_path}/docker.tar:x/y:1"], check=True)
    (tmp_path / "root.tar").write_bytes(data)
    (tmp_path / "root.tgz").write_bytes(gzip.compress(data))
    sources = {"layout": layout.path, "oci": tmp_path / "oci.tar", "docker": tmp_path / "docker.tar", "tar": tmp_path / "root.tar", "tgz": tmp_path / "root.tgz"}
    if os.geteuid() == 0:
        (tmp_path / "dir").mkdir()
        subprocess.run(["umoci", "unpack", "--image", f"{plain.path}:t", tmp_path / "b"], check=True, capture_output=True)
        sources["dir"] = tmp_path / "b" / "rootfs"
    want = None
    for name, source in sources.items():
        store.run("import", source, f"s/{name}")
        is_clean(store.disk(f"s/{name}"))
        have = list_disk(store.disk(f"s/{name}"))
        have.pop(b"")
        want = want or have
        assert have == want, name


def test_more_than_a_gibibyte(store, tmp_path):
    """1.05 GiB in large files and small, over two layers, compared path by path."""
    block = random.Random(4).randbytes(8192) * 128  # compresses well, so that the time goes into what is tried here
    out = tmp_path / "large"
    with tarfile.open(out, "w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as t:
        for i in range(17):
            info = tarfile.TarInfo(f"large{i}")
            info.size = 64 << 20
            t.addfile(info, Repeated(block, info.size, i))
    layout = Layout(tmp_path / "layout")
    layout.layer_file(out)
    layout.layer(tar([("small/", "d", None, {})] + [(f"small/f{i}", "f", b"%d" % i + block[i % 8192:i % 8192 + 3000], {}) for i in range(10000)] + [("large3", "f", b"now small", {})]))
    layout.close()
    store.run("import", layout.path, "large")
    is_clean(store.disk("large"))
    assert json.loads(store.run("inspect", "large").stdout.splitlines()[0])["diskStored"] > 1 << 30
    same_as_umoci(store.disk("large"), layout.path, tmp_path)


class Repeated:
    """A file of `size` bytes that is one block again and again, each time with its own beginning."""

    def __init__(self, block, size, seed):
        self.block, self.left, self.at, self.seed = block, size, 0, seed

    def read(self, n):
        n = min(n, self.left)
        out = b""
        while len(out) < n:
            out += b"%16d" % (self.seed << 40 | self.at) + self.block[16:16 + min(len(self.block), n - len(out)) - 16]
            self.at += 1
        self.left -= n
        return out[:n]


def test_names_and_paths_at_their_limits(store, tmp_path):
    """255 bytes of name and 4,095 of path (4,096 with the NUL, as in every kernel) are fine; one more is named in the error above."""
    deep = "/".join(["d" * 255] * 15 + ["d" * 252])
    path = deep + "/" + "f"
    assert len("/" + deep) == 4093 and len("/" + path) == 4095
    layout = Layout(tmp_path / "l")
    layout.layer(tar([(path, "f", b"here", {}), ("l" * 255, "l", "t" * 4095, {})]))
    store.run("import", layout.close(), "deep")
    is_clean(store.disk("deep"))
    listing = list_disk(store.disk("deep"))
    assert listing[b"/" + path.encode()][3] == 4 and listing[b"/" + b"l" * 255][3] == 4095


def sparse_root(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    with open(root / "sparse", "wb") as f:
        f.write(b"begin")
        f.seek(300 << 20)
        f.write(b"end")
    return root


def test_sparse_files_keep_their_holes(store, tmp_path):
    root = sparse_root(tmp_path)
    subprocess.run(["tar", "-C", root, "--sparse", "-cf", tmp_path / "s.tar", "."], check=True)
    store.run("import", tmp_path / "s.tar", "s")
    is_clean(store.disk("s"))
    assert list_disk(store.disk("s"))[b"/sparse"][7] == hashlib.file_digest(open(root / "sparse", "rb"), "sha256").hexdigest()
    assert os.stat(store.disk("s")).st_blocks * 512 < 16 << 20


def test_a_folder_with_holes_and_a_marked_link(store, tmp_path):
    root = sparse_root(tmp_path)
    (root / "link").symlink_to("sparse")
    os.setxattr(root / "link", "security.note", b"of the link", follow_symlinks=False)
    store.run("import", root, "folder")
    is_clean(store.disk("folder"))
    have, want = list_disk(store.disk("folder")), list_tree(root)
    assert have[b"/sparse"][7] == want[b"/sparse"][7]
    assert have[b"/link"][8] == want[b"/link"][8] and have[b"/link"][8]
    assert os.stat(store.disk("folder")).st_blocks * 512 < 16 << 20


def test_acls_survive(store, tmp_path):
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "f").write_text("x")
    (root / "many").write_text("x")

    def acl(*users):
        rows = [(1, 6, 2**32 - 1), *((2, 4, u) for u in users), (4, 4, 2**32 - 1), (16, 4, 2**32 - 1), (32, 0, 2**32 - 1)]
        return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in rows)

    access = acl(1234)
    os.setxattr(root / "f", "system.posix_acl_access", access)
    # as many as the C library sorts another way
    os.setxattr(root / "many", "system.posix_acl_access", acl(*range(2000, 2250)))
    os.setxattr(root / "d", "system.posix_acl_default", access)
    subprocess.run(["tar", "-C", root, "--acls", "-cf", tmp_path / "a.tar", "."], check=True)
    store.run("import", tmp_path / "a.tar", "a")
    is_clean(store.disk("a"))
    have, want = list_disk(store.disk("a")), list_tree(root)
    for p in (b"/f", b"/d", b"/many"):
        assert have[p][8] == want[p][8] and have[p][8], p


# ---- bad images

def thousand(m):
    m["layers"] = m["layers"] * 1000


@pytest.mark.parametrize("what,entries,edit,say", [
    ("dotdot", [("../escape", "f", b"", {})], None, ["layer 1 of 1", "../escape", '".."']),
    ("hard link to nothing", [("h", "h", "nothing", {})], None, ["layer 1 of 1", "entry 1, h", "nothing"]),
    ("hard link out", [("h", "h", "../../etc/passwd", {})], None, ["layer 1 of 1", "hard link"]),
    ("name of 256", [("n" * 256, "f", b"", {})], None, ["name of 256 bytes"]),
    ("path of 4096", [("/".join(["p" * 200] * 21), "f", b"", {})], None, ["path of 4220 bytes"]),
    ("thousand layers", [("f", "f", b"", {})], thousand, ["1000 layers (at most 512)"]),
    ("unknown type", [("f", "f", b"", {})], lambda m: m["layers"][0].update(mediaType="text/plain"), ["layer 1 of 1", "text/plain"]),
    ("wrong size", [("f", "f", b"", {})], lambda m: m["layers"][0].update(size=7), ["layer 1 of 1", "the manifest says 7"]),
    ("wrong digest", [("f", "f", b"", {})], lambda m: m["layers"][0].update(digest="sha256:12"), ["layer 1", "digest"]),
    ("an object's xattr", [("f", "f", b"", {"pax": {"SCHILY.xattr.user.x": "v" * 5000}})], None, ["layer 1, /f: extended attributes of 5006 bytes"]),
])
def test_bad_images_say_where(store, tmp_path, what, entries, edit, say):
    layout = Layout(tmp_path / "l")
    layout.layer(tar(entries))
    layout.close(edit=edit)
    r = store.run("import", layout.path, "bad", check=False)
    assert r.returncode == 1
    for text in ["docker.io/library/bad:latest", *say]:
        assert text in r.stderr, r.stderr
    assert store.images() == []
    assert not (tmp_path / "escape").exists() and list((store.path / "staging").iterdir()) == []


def test_bombs_and_damage(store, tmp_path):
    bomb = tar([("zeros", "f", bytes(1 << 20), {})])
    cases = {
        "cut": (gzip.compress(tar([("f", "f", os.urandom(100000), {})]))[:-500], "truncated"),
        "not gzip": (b"\x1f\x8b" + os.urandom(1000), ""),
        "noise": (os.urandom(4096), ""),
    }
    for name, (blob, say) in cases.items():
        layout = Layout(tmp_path / name)
        layout.layer(bomb, "")
        layout.layers[0].update(layout.put(blob))
        layout.close()
        r = store.run("import", layout.path, "bad", check=False)
        assert r.returncode == 1 and say in r.stderr and "layer 1 of 1" in r.stderr, r.stderr
    # 1.25 GiB of zeros in 1.3 MB: many members of gzip, one after the other, are one stream
    head = tarfile.TarInfo("zeros")
    head.size = 20 << 26
    layout = Layout(tmp_path / "bomb")
    layout.layer(bomb)
    layout.layers[0].update(layout.put(gzip.compress(head.tobuf()) + gzip.compress(bytes(1 << 26)) * 20 + gzip.compress(bytes(1024))))
    r = store.run("import", layout.close(), "bad", check=False)
    assert r.returncode == 1 and "layer 1 of 1" in r.stderr and "decompresses to more than 400 times its size" in r.stderr, r.stderr
    layout = Layout(tmp_path / "entries")
    layout.layer(tar([(f"f{i}", "f", b"", {}) for i in range(5)]))
    r = store.run("import", "--max-entries", "4", layout.close(), "bad", check=False)
    assert r.returncode == 1 and "layer 1 of 1" in r.stderr and "entry 5, f4: more than 4 entries" in r.stderr, r.stderr
    layout = Layout(tmp_path / "diff")
    layout.layer(bomb, diff="sha256:" + "0" * 64)
    r = store.run("import", layout.close(), "bad", check=False)
    assert "the configuration says" in r.stderr
    layout = Layout(tmp_path / "size")
    layout.layer(bomb)
    r = store.run("import", "--max-bytes", "100K", layout.close(), "bad", check=False)
    assert r.returncode == 1 and "more than 102400 bytes" in r.stderr
    assert store.images() == []


# ---- the store

def test_names_pins_and_removal(store, tmp_path):
    layout = small_layout(tmp_path / "l", 1000)
    store.run("import", layout, "a:1")
    store.run("import", "--local", layout, "b:1")
    assert [(i["name"], i["local"]) for i in store.images()] == [("docker.io/library/a:1", False), ("docker.io/library/b:1", True)]
    disk = pathlib.Path(store.disk("a:1"))
    store.run("rm", "a:1")
    assert disk.exists() and store.run("inspect", "a:1", check=False).returncode == 1
    pin = store.path / "pins" / f"{disk.parent.name}.someone"
    pin.touch()
    assert "in use" in store.run("rm", "b:1", check=False).stderr
    assert "removed 0 images" in store.run("prune", "--unused", "0s", "--keep", "1").stdout
    pin.unlink()
    assert "would remove 1 images" in store.run("prune", "--keep", "1", "--dry-run").stdout and disk.exists()
    store.run("rm", "b:1")
    assert not disk.exists() and store.images() == []


def test_kills_at_any_moment_leave_a_correct_store(store, tmp_path):
    layout = odd_image(tmp_path / "layout")
    rng = random.Random(7)
    began = time.monotonic()
    store.run("import", layout, "whole")
    whole = time.monotonic() - began
    want = list_disk(store.disk("whole"))
    store.run("rm", "whole")
    for i in range(20):
        p = subprocess.Popen([MAYFLY, "image", "import", "--store", store.path, layout, "k"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(rng.uniform(0, whole))
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        for image in store.images():
            assert list_disk(image["disk"]) == want
        deadline = time.monotonic() + 10
        while list((store.path / "staging").iterdir()) and time.monotonic() < deadline:
            store.images()  # the job may outlive its parent by a moment, and holds its folder so long
        assert list((store.path / "staging").iterdir()) == []
        assert [p for d in ("images", "names", "blobs/sha256") for p in (store.path / d).iterdir() if p.name.startswith(".tmp")] == []
    store.run("import", layout, "k")
    is_clean(store.disk("k"))
    assert list_disk(store.disk("k")) == want
