# SPDX-License-Identifier: Apache-2.0
"""Images from end to end, without VMs: sources, real registries, the disk compared with a reference unpacking, bad input, kills."""
import gzip
import hashlib
import http.server
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from imagekit import TOP, Layout, list_disk, list_tree, tar
import tarfile

MAYFLY = TOP / "build" / "bin" / "mayfly"
subprocess.run(["make", "-s", "-C", TOP, "build/tools/ext4list"], check=True)


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


@pytest.mark.parametrize("recipe", ["tiny", "base"])
def test_recipes_equal_a_reference_unpacking(store, tmp_path, recipe):
    r = subprocess.run([TOP / "images/recipes/build", recipe], capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stderr
    layout, *names = r.stdout.split()
    assert json.loads(subprocess.run(["skopeo", "inspect", f"oci:{layout}:{recipe}"], capture_output=True, check=True).stdout)["Os"] == "linux"
    store.run("import", "--local", layout, names[0])
    is_clean(store.disk(names[0]))
    same_as_umoci(store.disk(names[0]), layout, tmp_path, recipe)


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


def test_sparse_files_keep_their_holes(store, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    with open(root / "sparse", "wb") as f:
        f.write(b"begin")
        f.seek(300 << 20)
        f.write(b"end")
    subprocess.run(["tar", "-C", root, "--sparse", "-cf", tmp_path / "s.tar", "."], check=True)
    store.run("import", tmp_path / "s.tar", "s")
    is_clean(store.disk("s"))
    assert list_disk(store.disk("s"))[b"/sparse"][7] == hashlib.file_digest(open(root / "sparse", "rb"), "sha256").hexdigest()
    assert os.stat(store.disk("s")).st_blocks * 512 < 16 << 20


def test_acls_survive(store, tmp_path):
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "f").write_text("x")
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in [(1, 6, 2**32 - 1), (2, 4, 1234), (4, 4, 2**32 - 1), (16, 4, 2**32 - 1), (32, 0, 2**32 - 1)])
    os.setxattr(root / "f", "system.posix_acl_access", access)
    os.setxattr(root / "d", "system.posix_acl_default", access)
    subprocess.run(["tar", "-C", root, "--acls", "-cf", tmp_path / "a.tar", "."], check=True)
    store.run("import", tmp_path / "a.tar", "a")
    is_clean(store.disk("a"))
    have, want = list_disk(store.disk("a")), list_tree(root)
    for p in (b"/f", b"/d"):
        assert have[p][8] == want[p][8] and have[p][8], p


# ---- registries

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(params=["open", "htpasswd"])
def registry(request, tmp_path):
    port = free_port()
    auth = ""
    if request.param == "htpasswd":
        subprocess.run(["htpasswd", "-Bbc", tmp_path / "htpasswd", "u", "p w"], check=True, capture_output=True)
        auth = f"auth: {{htpasswd: {{realm: r, path: {tmp_path}/htpasswd}}}}\n"
    (tmp_path / "registry.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n{auth}")
    p = subprocess.Popen(["docker-registry", "serve", tmp_path / "registry.yml"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.05)
    yield f"127.0.0.1:{port}", request.param == "htpasswd"
    p.terminate()
    p.wait()


def test_pull_from_a_real_registry(registry, store, tmp_path):
    host, auth = registry
    layout = odd_image(tmp_path / "layout")
    subprocess.run(["skopeo", "copy", "-q", "--dest-tls-verify=false", *(["--dest-creds", "u:p w"] if auth else []), f"oci:{layout}:t", f"docker://{host}/a/b:1"], check=True)
    name = f"{host}/a/b:1"
    if auth:
        assert "credentials are needed" in store.run("pull", name, check=False).stderr
        assert "credentials refused" in store.run("pull", "--user", "u", "--password-stdin", name, input="wrong\n", check=False).stderr
        store.run("pull", "--user", "u", "--password-stdin", name, input="p w\n")
        everything = b"".join(p.read_bytes() for p in store.path.rglob("*") if p.is_file() and p.stat().st_size < 1 << 20)
        assert b"p w" not in everything
    else:
        store.run("pull", name)
    is_clean(store.disk(name))
    same_as_umoci(store.disk(name), layout, tmp_path)
    digest = store.images()[0]["digest"]
    again = ["--user", "u", "--password-stdin"] if auth else []
    store.run("pull", *again, f"{host}/a/b@{digest}", input="p w\n")
    assert {i["digest"] for i in store.images()} == {digest} and len(store.images()) == 1  # it was there: nothing to fetch
    assert store.run("pull", *again, f"{host}/a/b@sha256:{'0' * 64}", input="p w\n", check=False).returncode == 1


@pytest.mark.parametrize("registry", ["open"], indirect=True)
def test_two_pulls_of_one_name_do_one_download(registry, store, tmp_path):
    host, _ = registry
    layout = odd_image(tmp_path / "layout")
    subprocess.run(["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{layout}:t", f"docker://{host}/a/b:1"], check=True)
    ps = [subprocess.Popen([MAYFLY, "image", "pull", "--store", store.path, f"{host}/a/b:1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    outs = [p.communicate(timeout=120) for p in ps]
    assert [p.returncode for p in ps] == [0] * 4, outs
    assert len({o for o, _ in outs}) == 1 and len(store.images()) == 1


class Bad(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def do_GET(self):
        self.server.seen.append((self.path, self.headers.get("Range")))
        self.server.answer(self)

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def bad_registry():
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bad)
    s.seen = []
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield s
    s.shutdown()


def serve_layout(server, layout, blob=None, status=200):
    """Answers as a registry would for one image; blob(handler, data, first byte asked for) may spoil it."""
    index = json.loads((layout / "index.json").read_text())["manifests"][0]
    count = {}

    def answer(h):
        what = h.path.rsplit("/", 1)[1]
        digest = what if what.startswith("sha256:") else index["digest"]
        f = layout / "blobs" / "sha256" / digest.split(":")[1]
        if not f.exists():
            return h.reply(404)
        data = f.read_bytes()
        if "/manifests/" in h.path:
            return h.reply(200, data, Content_Type=index["mediaType"])
        count[digest] = count.get(digest, 0) + 1
        if blob:
            return blob(h, data, count[digest])
        h.reply(200, data)
    server.answer = answer
    return f"127.0.0.1:{server.server_port}/x/y:1"


def small_layout(path, size=3 << 20):
    layout = Layout(path)
    layout.layer(tar([("f", "f", random.Random(3).randbytes(size), {})]), "")
    return layout.close()


def test_downloads_are_resumed(bad_registry, store, tmp_path):
    def half(h, data, n):
        start = int((h.headers.get("Range") or "bytes=0-").split("=")[1].split("-")[0])
        if len(data) < 1 << 20 or n > 2:
            return h.reply(206 if start else 200, data[start:])
        h.send_response(206 if start else 200)
        h.send_header("Content-Length", str(len(data) - start))
        h.end_headers()
        h.wfile.write(data[start:start + (1 << 20)])
        h.close_connection = True
    name = serve_layout(bad_registry, small_layout(tmp_path / "l"), half)
    store.run("pull", name)
    is_clean(store.disk(name))
    assert [r for p, r in bad_registry.seen if r], "no range was asked for"


def redirect_to_itself(h):
    h.reply(302, Location=h.path)


@pytest.mark.parametrize("what,answer,say", [
    ("for ever", redirect_to_itself, "redirects"),
    ("to a file", lambda h: h.reply(302, Location="file:///etc/passwd"), "redirected to file"),
    ("garbage", lambda h: h.reply(200, b"<html>"), "not JSON"),
    ("no image", lambda h: h.reply(200, b'{"schemaVersion":2}'), "neither"),
    ("5 MiB", lambda h: h.reply(200, b" " * (5 << 20)), "File too large"),
    ("error", lambda h: h.reply(500), "says 500"),
    ("basic", lambda h: h.reply(401, WWW_Authenticate='Basic realm="x"'), "credentials are needed"),
    ("no realm", lambda h: h.reply(401, WWW_Authenticate='Bearer service="x"'), "not from where"),
])
def test_bad_registries(bad_registry, store, what, answer, say):
    bad_registry.answer = answer
    r = store.run("pull", f"127.0.0.1:{bad_registry.server_port}/x/y:1", check=False)
    assert r.returncode == 1 and say in r.stderr, r.stderr
    assert store.files() == []


def test_a_wrong_blob_never_enters_the_store(bad_registry, store, tmp_path):
    name = serve_layout(bad_registry, small_layout(tmp_path / "l", 100), lambda h, data, n: h.reply(200, data[:-1] + b"!"))
    r = store.run("pull", name, check=False)
    assert r.returncode == 1 and "has the digest" in r.stderr, r.stderr
    assert store.files() == [] and list((store.path / "staging").iterdir()) == []


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
    ("an object's xattr", [("f", "f", b"", {"pax": {"SCHILY.xattr.user.x": "v" * 5000}})], None, ["ext4"]),
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
