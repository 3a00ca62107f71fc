# SPDX-License-Identifier: Apache-2.0
"""A small image with a real VNC server, a real WebSocket bridge and noVNC's page: of this host's Debian packages only the files that they need to run. Seconds instead of the
minutes that an image of the whole packages takes. And the client's half of VNC's protocol."""
import pathlib
import shutil
import subprocess
import tarfile

import pytest

PACKAGES = "tigervnc-standalone-server, x11-xkb-utils, websockify, novnc, busybox-static"
PYTHON = "/usr/bin/python3"  # the distribution's, which has websockify
# every file that the bridge loads, and those that it loads later
MODULES = """
import sys
sys.modules["numpy"] = None
import encodings.idna, encodings.latin_1, encodings.ascii, http.server, mimetypes, multiprocessing.popen_fork, runpy, signal, socketserver, websockify.__main__, websockify.websocketproxy
for m in list(sys.modules.values()):
    for f in (getattr(m, "__file__", None), getattr(m, "__cached__", None)):
        if f:
            print(f)
"""


def libraries(*programs):
    """What the dynamic linker loads for them."""
    out = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return {w for line in out.splitlines() for w in line.split() if w.startswith("/") and not w.endswith(":")}


def image(path):
    """Writes it as a tar archive of a root file system."""
    programs = {name: shutil.which(name) for name in ("Xtigervnc", "xkbcomp", "busybox")}
    trees = [pathlib.Path(p) for p in ("/usr/share/novnc", "/usr/share/X11/xkb")]
    loaded = subprocess.run([PYTHON, "-I", "-c", MODULES], capture_output=True, text=True, check=False)
    if not all(programs.values()) or not all(t.exists() for t in trees) or loaded.returncode:
        pytest.skip(f"no VNC server or bridge on this host (Debian: {PACKAGES}): {loaded.stderr[-200:]}")
    files = {pathlib.Path(f) for f in [*programs.values(), PYTHON, *loaded.stdout.split()] if pathlib.Path(f).exists()}
    files |= {pathlib.Path(f) for f in libraries(*(str(f) for f in files if f.suffix == ".so" or not f.suffix))}
    with tarfile.open(path, "w") as t:
        def add(name, **more):
            i = tarfile.TarInfo(name)
            i.mode = 0o755
            for k, v in more.items():
                setattr(i, k, v)
            t.addfile(i)
        for folder in ("bin", "etc", "usr/bin", "usr/lib", "lib64", "proc", "sys", "dev", "run", "tmp"):
            add(folder, type=tarfile.DIRTYPE)
        add("lib", type=tarfile.SYMTYPE, linkname="usr/lib")
        for name in ("sh", "sleep", "tail", "cat", "setsid", "ls", "grep", "rm", "mkdir"):
            add(f"bin/{name}", type=tarfile.SYMTYPE, linkname="/usr/bin/busybox")
        for f in sorted(files):
            # Debian's /lib is a link to usr/lib
            name = str(f) if str(f).startswith(("/usr/", "/lib64/")) else "/usr" + str(f)
            t.add(f.resolve(), name, recursive=False)
        for tree in trees:
            t.add(tree, str(tree))
    return path


def rfb(send, recv):
    """A client's handshake and one whole picture: (name of the desktop, bytes of the picture)."""
    assert recv(12).startswith(b"RFB 003.")
    send(b"RFB 003.008\n")
    assert 1 in recv(recv(1)[0])
    send(b"\x01")
    assert recv(4) == b"\0\0\0\0"
    send(b"\x01")
    head = recv(24)
    name = recv(int.from_bytes(head[20:24], "big"))
    width, height, depth = int.from_bytes(head[0:2], "big"), int.from_bytes(head[2:4], "big"), head[4] // 8
    send(b"\x02\0\0\1\0\0\0\0")  # raw pixels
    send(b"\x03\0\0\0\0\0" + head[0:4])
    seen = 0
    while seen < width * height:
        assert recv(2)[0] == 0
        for _ in range(int.from_bytes(recv(2), "big")):
            rect = recv(12)
            area = int.from_bytes(rect[4:6], "big") * int.from_bytes(rect[6:8], "big")
            recv(area * depth)
            seen += area
    return name, seen * depth


class Messages:
    """A WebSocket (websockets.sync) as a stream of bytes: recv(n)."""

    def __init__(self, ws, wait_s):
        self.ws, self.wait_s, self.got = ws, wait_s, bytearray()

    def recv(self, n):
        while len(self.got) < n:
            self.got.extend(self.ws.recv(self.wait_s))
        piece = bytes(self.got[:n])
        del self.got[:n]
        return piece
