# SPDX-License-Identifier: Apache-2.0
"""Pulls, without VMs: a real registry with each kind of authentication, and registries that hang, lie, send half, or lead elsewhere."""
import hashlib
import json
import os
import pathlib
import pty
import random
import select
import signal
import subprocess
import threading
import time

import pytest

from imagekit import MAYFLY, Layout, Store, is_clean, list_disk, odd_image, same_as_umoci, small_layout, store, tar  # noqa: F401 (a fixture)
from registrykit import WHO, Registry, Serving, range_of


@pytest.fixture(params=["open", "htpasswd", "token"])
def registry(request, tmp_path):
    r = Registry(tmp_path / "reg", request.param)
    yield r
    r.close()


@pytest.fixture
def open_registry(tmp_path):
    r = Registry(tmp_path / "reg")
    yield r
    r.close()


@pytest.fixture
def bad_registry():
    s = Serving()
    yield s
    s.close()


def left_nothing(store):
    assert store.files() == [] and list((store.path / "staging").iterdir()) == []


# ---- a real registry

def test_pull_from_a_real_registry(registry, store, tmp_path):
    layout = odd_image(tmp_path / "layout")
    name = registry.push(layout, "a/b:1")
    creds = ["--user", WHO[0], "--password-stdin"] if registry.auth != "open" else []
    if creds:
        none, wrong = {"htpasswd": ("credentials are needed", "credentials refused"), "token": ("token service says 401",) * 2}[registry.auth]
        assert none in store.run("pull", name, check=False).stderr
        assert wrong in store.run("pull", *creds, name, input="wrong\n", check=False).stderr
        left_nothing(store)
    store.run("pull", *creds, name, input=WHO[1] + "\n")
    if registry.tokens:
        assert registry.tokens.asked[-1] == ("repository:a/b:pull", True)
    everything = b"".join(p.read_bytes() for p in store.path.rglob("*") if p.is_file() and p.stat().st_size < 1 << 20)
    assert WHO[1].encode() not in everything and b"eyJ" not in everything  # neither password nor token is kept
    is_clean(store.disk(name))
    same_as_umoci(store.disk(name), layout, tmp_path)
    digest = store.images()[0]["digest"]
    repo = name.rsplit(":", 1)[0]
    store.run("pull", *creds, f"{repo}@{digest}", input=WHO[1] + "\n")
    assert {i["digest"] for i in store.images()} == {digest}
    r = store.run("pull", *creds, f"{repo}@sha256:{'0' * 64}", input=WHO[1] + "\n", check=False)
    assert r.returncode == 1 and "404" in r.stderr


def test_platforms_of_an_index(open_registry, store, tmp_path):
    layout = Layout(tmp_path / "l")
    entries = []
    for arch in ("amd64", "arm64"):
        layout.layers, layout.diffs = [], []
        layout.layer(tar([("arch", "f", arch.encode(), {})]))
        layout.close(arch=arch)
        entry = json.loads((layout.path / "index.json").read_text())["manifests"][0]
        entries.append({**entry, "platform": {"os": "linux", "architecture": arch}, "annotations": {}})
    kind = "application/vnd.oci.image.index.v1+json"
    inner = layout.put(json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": entries}).encode())
    (layout.path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [
        {"mediaType": kind, **inner, "annotations": {"org.opencontainers.image.ref.name": "t"}}]}))
    name = open_registry.push(layout.path, "m:1", "t", "--all")
    for source in (["pull", "--always", name], ["import", layout.path, "m"]):
        for arch in ("amd64", "arm64"):
            r = store.run(source[0], "--platform", f"linux/{arch}", *source[1:])
            disk = store.disk(r.stdout.split()[0])
            assert list_disk(disk)[b"/arch"][7] == hashlib.sha256(arch.encode()).hexdigest()
        r = store.run(source[0], "--platform", "linux/s390x", *source[1:], check=False)
        assert r.returncode == 1 and "not there for linux/s390x, but for: linux/amd64, linux/arm64" in r.stderr
    # by the digest of the index, for this machine
    r = store.run("pull", f"{name.rsplit(':', 1)[0]}@{inner['digest']}")
    assert list_disk(store.disk(r.stdout.split()[0]))[b"/arch"][7] == hashlib.sha256(b"amd64").hexdigest()


def test_names_without_a_registry_go_to_the_mirror(bad_registry, store, tmp_path):
    layout = small_layout(tmp_path / "l", 1000)
    bad_registry.serve(layout)
    (tmp_path / "registries").write_text(f"docker.io http://127.0.0.1:{bad_registry.port}/hub plain-http private\n"
                                         f"nowhere.invalid http://127.0.0.1:{bad_registry.port}/none plain-http private\n")
    out = store.run("pull", "--registries", tmp_path / "registries", "python:3.12").stdout
    assert out.startswith("docker.io/library/python:3.12 sha256:")
    assert bad_registry.seen[0][0] == "/hub/v2/library/python/manifests/3.12"
    bad_registry.answer = lambda h: h.reply(404)
    r = store.run("pull", "--registries", tmp_path / "registries", "nowhere.invalid/x:1", check=False)
    # both that were asked have their say
    assert r.returncode == 1 and "the registry says 404; then: https://nowhere.invalid/v2/x/manifests/1: " in r.stderr


# ---- how it is fetched

def many_layers(path, n=6, size=200000):
    layout = Layout(path)
    for i in range(n):
        layout.layer(tar([(f"f{i}", "f", random.Random(i).randbytes(size), {})]), "")
    return layout.close()


def test_layers_come_several_at_a_time(bad_registry, store, tmp_path):
    together = threading.Barrier(3, timeout=60)

    def blob(h, data, n):
        if len(data) > 100000:
            together.wait()  # passes only when three are asked for at once
        h.reply(200, data)
    name = bad_registry.serve(many_layers(tmp_path / "l"), blob)
    store.run("pull", name)
    is_clean(store.disk(name))
    assert not together.broken


def test_many_requests_for_one_image_do_one_download(bad_registry, store, tmp_path):
    layout = many_layers(tmp_path / "l")
    name = bad_registry.serve(layout)
    ps = [subprocess.Popen([MAYFLY, "image", "pull", "--store", store.path, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
          for _ in range(5)]
    outs = [p.communicate(timeout=120) for p in ps]
    assert [p.returncode for p in ps] == [0] * 5, outs
    assert len({o for o, _ in outs}) == 1 and len(store.images()) == 1
    blobs = [p for p, *_ in bad_registry.seen if "/blobs/" in p]
    assert len(blobs) == len(set(blobs)) == 7 and len(bad_registry.seen) == 8


def test_a_pull_that_is_stopped_goes_on(bad_registry, store, tmp_path):
    """A stop and continue of the job, as its host's owner may: a call that waits is begun again by the kernel, which the job's list allows."""
    asked, go = threading.Event(), threading.Event()

    def blob(h, data, n):
        asked.set()
        assert go.wait(60)
        h.reply(200, data)
    name = bad_registry.serve(small_layout(tmp_path / "l"), blob)
    p = subprocess.Popen([MAYFLY, "image", "pull", "--store", store.path, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert asked.wait(60)
    job = int(subprocess.run(["pgrep", "-P", str(p.pid)], capture_output=True, text=True, check=True).stdout)
    for _ in range(3):
        for sig, states in ((signal.SIGSTOP, "Tt"), (signal.SIGCONT, "S")):
            os.kill(job, sig)
            end = time.monotonic() + 30
            while pathlib.Path(f"/proc/{job}/stat").read_text().rsplit(")", 1)[1].split()[0] not in states:
                assert time.monotonic() < end, f"not {states}"
    go.set()
    assert p.wait(120) == 0, p.stderr.read()
    is_clean(store.disk(name))


def test_downloads_are_resumed(bad_registry, store, tmp_path):
    def half(h, data, n):
        start = range_of(h)
        if len(data) < 1 << 20 or n > 2:
            return h.reply(206 if start else 200, data[start:])
        h.send_response(206 if start else 200)
        h.send_header("Content-Length", str(len(data) - start))
        h.end_headers()
        h.wfile.write(data[start:start + (1 << 20)])
        h.close_connection = True
    name = bad_registry.serve(small_layout(tmp_path / "l"), half)
    store.run("pull", name)
    is_clean(store.disk(name))
    assert [r for _, r, _ in bad_registry.seen if r], "no range was asked for"


def size_if_there(path):
    """A job renames its parts while it is looked at."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def pull_killed_in_the_middle(server, store, layout, sent=2 << 20):
    """kill -9 of the whole pull when `sent` bytes of the large blob are out; the rest of that answer never comes."""
    out = threading.Event()

    def blob(h, data, n):
        if len(data) < 1 << 20:
            return h.reply(200, data)
        h.send_response(200)
        h.send_header("Content-Length", str(len(data)))
        h.end_headers()
        h.wfile.write(data[:sent])
        h.wfile.flush()
        out.set()
        server.hang(h)
    name = server.serve(layout, blob)
    p = subprocess.Popen([MAYFLY, "image", "pull", "--store", store.path, name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    assert out.wait(60)
    end = time.monotonic() + 60  # until the job has written what was sent
    while time.monotonic() < end and sum(map(size_if_there, store.path.glob("staging/*/part-*"))) < sent:
        time.sleep(0.02)
    os.killpg(p.pid, signal.SIGKILL)
    p.wait()
    return name


def parts(store):
    return {p.name: size_if_there(p) for p in (store.path / "parts").iterdir()}


def asks_until(store, what):
    """The job may outlive its parent by a moment, and holds its folder so long: each start of the program looks."""
    end = time.monotonic() + 20
    while not what() and time.monotonic() < end:
        store.images()
    return what()


@pytest.mark.parametrize("damage", [False, True])
def test_a_killed_download_is_taken_up_again(bad_registry, store, tmp_path, damage):
    layout = small_layout(tmp_path / "l")
    name = pull_killed_in_the_middle(bad_registry, store, layout)
    assert store.images() == []
    assert asks_until(store, lambda: 2 << 20 in parts(store).values())
    if damage:
        part = next(p for p in (store.path / "parts").iterdir() if p.stat().st_size == 2 << 20)
        part.write_bytes(b"x" + part.read_bytes()[1:])

    def blob(h, data, n):
        start = range_of(h)
        h.reply(206 if start else 200, data[start:])
    bad_registry.seen.clear()
    bad_registry.serve(layout, blob)
    store.run("pull", name)
    ranges = [r for p, r, _ in bad_registry.seen if "/blobs/" in p and r]
    assert ranges == [f"bytes={2 << 20}-"]
    # what was damaged is found out by its digest, and all of it fetched again
    large = ranges and [p for p, r, _ in bad_registry.seen if r][0]
    assert len([1 for p, *_ in bad_registry.seen if p == large]) == (2 if damage else 1)
    assert parts(store) == {}
    assert not list((store.path / "locks").iterdir())  # none stays for each name that was ever asked for
    is_clean(store.disk(name))
    same_as_umoci(store.disk(name), layout, tmp_path)


def test_parts_of_downloads_go_with_a_prune(bad_registry, store, tmp_path):
    pull_killed_in_the_middle(bad_registry, store, small_layout(tmp_path / "l"))
    assert asks_until(store, lambda: parts(store))
    store.run("prune", "--dry-run")
    assert parts(store)
    store.run("prune")
    assert not parts(store)


def test_a_pull_killed_at_any_moment_leaves_a_correct_store(open_registry, store, tmp_path):
    layout = odd_image(tmp_path / "layout")
    name = open_registry.push(layout, "a/b:1")
    began = time.monotonic()
    store.run("pull", name)
    whole = time.monotonic() - began
    want = list_disk(store.disk(name))
    rng = random.Random(5)
    for i in range(20):
        store.run("rm", name, check=False)
        p = subprocess.Popen([MAYFLY, "image", "pull", "--store", store.path, name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(rng.uniform(0, whole))
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        for image in store.images():
            assert list_disk(image["disk"]) == want
        assert asks_until(store, lambda: not list((store.path / "staging").iterdir()))
        for f in (store.path / "blobs" / "sha256").iterdir():
            assert hashlib.file_digest(open(f, "rb"), "sha256").hexdigest() == f.name
    store.run("pull", name)
    is_clean(store.disk(name))
    assert list_disk(store.disk(name)) == want


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(bad_registry, store, tmp_path):
    def blob(h, data, n):
        h.send_response(200)
        h.send_header("Content-Length", str(len(data)))
        h.end_headers()
        for at in range(0, len(data), 1 << 19):
            h.wfile.write(data[at:at + (1 << 19)])
            h.wfile.flush()
            time.sleep(0.15)  # progress is told every 100 ms at most
    name = bad_registry.serve(small_layout(tmp_path / "l"), blob)
    ours, theirs = pty.openpty()
    p = subprocess.Popen([MAYFLY, "image", "pull", "--store", store.path, name], stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            seen += os.read(ours, 65536)
        except OSError:
            break
    os.close(ours)
    assert p.wait() == 0
    assert b"\rfetch [" in seen and b"#" in seen and b"of 3 MiB" in seen and seen.endswith(b"\r\x1b[K"), seen
    r = Store(tmp_path / "other").run("pull", name)
    assert "\r" not in r.stderr and r.stderr.startswith("fetch: ") and "of 3 MiB\n" in r.stderr


# ---- registries that are not what they should be

def redirect_to_itself(h):
    h.reply(302, Location=h.path)


def without_end(status, **headers):
    def answer(h):
        h.send_response(status)
        for k, v in headers.items():
            h.send_header(k, v)
        h.send_header("Content-Length", str(1 << 40))
        h.end_headers()
        while True:
            h.wfile.write(bytes(1 << 16))
    return answer


def headers_without_end(h):
    h.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        h.wfile.write(b"X-Filler: " + b"x" * 60000 + b"\r\n")


def cut(h):
    h.send_response(200)
    h.send_header("Content-Length", "1000")
    h.end_headers()
    h.wfile.write(b'{"schemaVersion":2,')
    h.close_connection = True


def manifest_of(n, **layer):
    blob = {"digest": "sha256:" + "1" * 64, "size": 10}
    one = {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **blob, **layer}
    return json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                       "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **blob}, "layers": [one] * n}).encode()


def says(body, status=200, **headers):
    return lambda h: h.reply(status, body, **headers)


@pytest.mark.parametrize("what,answer,say", [
    ("redirects for ever", redirect_to_itself, "more than 6 redirects"),
    ("redirect to a file", says(b"", 302, Location="file:///etc/passwd"), "redirected to file:"),
    ("redirect to nothing", says(b"", 302, Location="http://[::1"), "malformed redirect"),
    ("garbage", says(b"<html>"), "not JSON"),
    ("half of it", cut, "manifests/1: "),
    ("no image", says(b'{"schemaVersion":2}'), "neither an image manifest nor an index"),
    ("old schema", says(b'{"schemaVersion":1,"layers":[]}'), "schema version is not 2"),
    ("5 MiB", says(b" " * (5 << 20)), "manifest 1: more than 4194304 bytes"),
    ("without end", without_end(200), "manifest 1: more than 4194304 bytes"),
    ("an error without end", without_end(404), "the registry says 404"),
    ("headers without end", headers_without_end, "manifests/1: "),
    ("error", says(b"oops", 500), "the registry says 500"),
    ("basic", says(b"", 401, WWW_Authenticate='Basic realm="x"'), "credentials are needed"),
    ("token from nowhere", says(b"", 401, WWW_Authenticate='Bearer service="x"'), "asks for a token, but does not say from where"),
    ("token from a file", says(b"", 401, WWW_Authenticate='Bearer realm="file:///etc/passwd"'), "token service without TLS"),
    ("a thousand layers", says(manifest_of(1000)), "manifest: 1000 layers (at most 512)"),
    ("unknown media type", says(manifest_of(1, mediaType="text/plain")), 'manifest: layer 1 of 1 is of the unknown type "text/plain"'),
    ("bytes elsewhere", says(manifest_of(1, mediaType="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")), "its bytes are not in the registry"),
    ("wrong digest", says(manifest_of(1, digest="sha256:12")), 'manifest: layer 1: descriptor with the digest "sha256:12"'),
    ("a layer of an exabyte", says(manifest_of(1, size=1 << 50)), "blob sha256:111111111111 of 1125899906842624 bytes"),
    ("an index of itself", says(json.dumps({"schemaVersion": 2, "manifests": [{"mediaType": "application/vnd.oci.image.index.v1+json", "size": 1,
                                                                              "digest": "sha256:" + "1" * 64}]}).encode()), "what came has the digest"),
])
def test_bad_registries(bad_registry, store, what, answer, say):
    bad_registry.answer = answer
    r = store.run("pull", f"127.0.0.1:{bad_registry.port}/x/y:1", check=False)
    assert r.returncode == 1 and f"image 127.0.0.1:{bad_registry.port}/x/y:1: " in r.stderr and say in r.stderr, r.stderr
    left_nothing(store)


def drip(h):
    h.send_response(200)
    h.send_header("Content-Length", "100000")
    h.end_headers()
    while True:
        h.wfile.write(b" ")
        h.wfile.flush()
        time.sleep(0.1)


@pytest.mark.parametrize("what,answer", [("hangs", None), ("drips", drip)])
def test_a_slow_registry_is_left(bad_registry, store, what, answer):
    bad_registry.answer = answer or bad_registry.hang
    r = store.run("pull", "--stall", "1", f"127.0.0.1:{bad_registry.port}/x/y:1", check=False, timeout=60)
    assert r.returncode == 1 and f"127.0.0.1:{bad_registry.port}/v2/x/y/manifests/1: too slow, or no answer" in r.stderr, r.stderr
    left_nothing(store)


@pytest.mark.parametrize("what,say", [
    ("hangs", "too slow, or no answer"),
    ("half", "blobs/"),
    ("more", "blob of more than"),
    ("wrong", "has the digest sha256:"),
    ("gone", "the registry says 404"),
    ("less", "only 99 of "),
])
def test_a_bad_blob_never_enters_the_store(bad_registry, store, tmp_path, what, say):
    def blob(h, data, n):
        if what == "hangs":
            return bad_registry.hang(h)
        if what == "half":
            h.send_response(200)
            h.send_header("Content-Length", str(len(data)))
            h.end_headers()
            h.wfile.write(data[:50])
            h.close_connection = True
            return None
        return h.reply(404 if what == "gone" else 200, {"more": data + b"x" * 1000, "wrong": data[:-1] + b"!", "less": data[:99]}.get(what, data))
    name = bad_registry.serve(small_layout(tmp_path / "l", 100), blob)
    r = store.run("pull", "--stall", "1", name, check=False, timeout=120)
    assert r.returncode == 1 and f"image {name}: blob sha256:" in r.stderr and say in r.stderr, r.stderr
    left_nothing(store)


def test_a_registry_just_above_the_limit_is_left_too(bad_registry, store, tmp_path):
    """Ten times the rate that counts as a stall, for ever: the pull as a whole has a lower bound."""
    sent = []

    def blob(h, data, n):
        h.send_response(200)
        h.send_header("Content-Length", str(len(data)))
        h.end_headers()
        for at in range(0, len(data), 1024):
            h.wfile.write(data[at:at + 1024])
            sent.append(at)
            time.sleep(0.1)
    name = bad_registry.serve(small_layout(tmp_path / "l", 4 << 20), blob)
    r = store.run("pull", "--stall", "2", name, check=False, timeout=120)
    assert r.returncode == 1 and "less than 32 KiB a second on the whole" in r.stderr, r.stderr
    assert 20 < len(sent) < 400  # some seconds of it, not all seven minutes
    left_nothing(store)


def test_who_is_redirected_to_is_not_told_the_password(bad_registry, store, tmp_path):
    other = Serving()
    layout = small_layout(tmp_path / "l", 100)
    bad_registry.serve(layout)
    registry = bad_registry.answer

    def answer(h):
        if "/blobs/" in h.path:
            return h.reply(307, Location=f"http://127.0.0.1:{other.port}{h.path}")
        if not h.headers.get("Authorization"):
            return h.reply(401, WWW_Authenticate='Basic realm="x"')
        return registry(h)
    bad_registry.answer = answer
    name = f"127.0.0.1:{bad_registry.port}/x/y:1"
    creds = ["--user", WHO[0], "--password-stdin"]
    # a host that asks for them itself gets nothing but a refusal
    other.answer = lambda h: h.reply(401, WWW_Authenticate=f'Bearer realm="http://127.0.0.1:{other.port}/token",service="x"')
    r = store.run("pull", *creds, name, input=WHO[1] + "\n", check=False)
    assert r.returncode == 1 and "says 401" in r.stderr, r.stderr
    assert other.seen and not any(a for _, _, a in other.seen) and not any("/token" in p for p, *_ in other.seen)
    other.answer = registry
    store.run("pull", *creds, name, input=WHO[1] + "\n")
    assert not any(a for _, _, a in other.seen)
    is_clean(store.disk(name))
    other.close()


PUBLIC = "8.7.6.5"  # in a network of the test's own


@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
def test_a_public_registry_does_not_lead_to_private_addresses(store, tmp_path):
    """In a network namespace where the loopback device has a public address, too."""
    (tmp_path / "run.py").write_text(f"""
import subprocess, sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from registrykit import Serving
subprocess.run("ip link set lo up && ip addr add {PUBLIC}/32 dev lo && ip addr add 10.9.8.7/32 dev lo", shell=True, check=True)
inner = Serving(lambda h: h.reply(200, b"secret"), host="0.0.0.0")
public = Serving(host={PUBLIC!r})
for target in ("127.0.0.1", "10.9.8.7", "[::ffff:127.0.0.1]"):
    for kind in ("redirect", "token"):
        url = f"http://{{target}}:{{inner.port}}/latest/meta-data"
        public.answer = (lambda h: h.reply(302, Location=url)) if kind == "redirect" else \\
            (lambda h: h.reply(401, WWW_Authenticate=f'Bearer realm="{{url}}",service="s"'))
        open({str(tmp_path / "registries")!r}, "w").write(f"{PUBLIC}:{{public.port}} http://{PUBLIC}:{{public.port}} plain-http\\n")
        r = subprocess.run([{str(MAYFLY)!r}, "image", "pull", "--store", {str(store.path)!r}, "--registries", {str(tmp_path / "registries")!r},
                            f"{PUBLIC}:{{public.port}}/x:1"], capture_output=True, text=True)
        assert r.returncode == 1 and "it leads to a private address" in r.stderr, (target, kind, r.stderr)
assert not inner.seen, inner.seen
print("refused")
""")
    r = subprocess.run(["unshare", "-n", "python3", tmp_path / "run.py"], capture_output=True, text=True, timeout=120)
    assert r.stdout == "refused\n", r.stdout + r.stderr
    left_nothing(store)


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of names of its own needs root")
def test_a_registry_with_several_addresses(bad_registry, store, tmp_path):
    """The resolver sorts them, for which it asks the kernel about ways to each; the first leads nowhere."""
    layout = small_layout(tmp_path / "l", 1000)
    bad_registry.serve(layout)
    (tmp_path / "hosts").write_text("127.0.0.2 many.test\n127.0.0.1 many.test\n127.0.0.3 many.test\n")
    (tmp_path / "registries").write_text(f"many.test http://many.test:{bad_registry.port} plain-http private\n")
    r = subprocess.run(["unshare", "-m", "sh", "-c", 'mount --bind "$1" /etc/hosts; shift; exec "$@"', "_", tmp_path / "hosts", MAYFLY, "image", "pull",
                        "--store", store.path, "--registries", tmp_path / "registries", "many.test/x:1"], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0 and r.stdout.startswith("many.test/x:1 sha256:"), r.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own needs root")
def test_room_is_looked_at_before(bad_registry, store, tmp_path):
    """On a file system of 300 MiB: an image of 400 is refused before its first byte, one that unpacks to more than there is before it is built."""
    def mayfly(*args):
        return subprocess.run(["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=300m none "$0" && "$@"; r=$?; find "$0" -size +1k -type f >&2; exit $r', tmp_path / "m",
                               MAYFLY, "image", args[0], "--store", tmp_path / "m" / "store", *args[1:]], capture_output=True, text=True, timeout=120)
    (tmp_path / "m").mkdir()
    bad_registry.answer = lambda h: h.reply(200, manifest_of(1, size=400 << 20))
    name = f"127.0.0.1:{bad_registry.port}/x/y:1"
    r = mayfly("pull", name)
    assert r.returncode == 1 and "MiB are needed, 29" in r.stderr and "/blobs/" not in str(bad_registry.seen), r.stderr
    layout = Layout(tmp_path / "l")
    layout.layer(tar([("zeros", "f", bytes(280 << 20), {})]))
    r = mayfly("import", layout.close(), "big")
    assert r.returncode == 1 and "MiB are needed, 29" in r.stderr, r.stderr
