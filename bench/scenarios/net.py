# SPDX-License-Identifier: Apache-2.0
"""The network from inside a guest, by its own clock: the same program (bench/netload.c) and guest kernel, beside QEMU's user network."""
import os
import stat
import subprocess
import time

import mb_vm
from mb_core import Absent, Failed, Proc, find, root_needed

SERVER = "10.97.98.99"  # on this host's lo; closed for sandboxes unless the configuration opens it
PHASES = ("down", "up", "requests", "connects", "echoes", "names")


def measured(text):
    for line in text.splitlines():
        if "NET down=" in line:
            v = dict(w.split("=") for w in line[line.index("down="):].split())
            if v["bad"] != "0":
                raise Failed("some requests failed: " + line)
            got = {p: float(v[p]) for p in PHASES}
            return {"total": sum(got.values())} | got
    raise Failed("netload measured nothing: " + text[-200:])


def served(ctx):
    """The server on this host, for as long as the run lasts."""
    def make():
        root_needed()
        subprocess.run(["ip", "addr", "add", f"{SERVER}/32", "dev", "lo"], check=True, capture_output=True)
        ctx.at_end(lambda: subprocess.run(["ip", "addr", "del", f"{SERVER}/32", "dev", "lo"], check=False, capture_output=True))
        p = subprocess.Popen([find("netload"), "serve", SERVER], start_new_session=True)
        ctx.at_end(lambda: (os.killpg(p.pid, 9), p.wait()))
        time.sleep(0.5)
        if p.poll() is not None:
            raise Absent("netload serve ended: are its ports in use?")
        return SERVER
    return ctx.once("netload", make)


def archive(program, to):
    """An initramfs with this program as /init (cpio, newc)."""
    def entry(name, mode, data=b""):
        head = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        text = ("070701" + "".join(f"{n:08x}" for n in head)).encode() + name.encode() + b"\0"
        pad = lambda b: b + b"\0" * (-len(b) % 4)
        return pad(text) + pad(data)
    with open(program, "rb") as f, open(to, "wb") as out:
        out.write(entry("init", stat.S_IFREG | 0o755, f.read()) + entry("TRAILER!!!", 0))


class Mayfly:
    """A sandbox of a daemon; each sample is one run of the program in it."""
    name = "mayfly"

    def __init__(self, ctx):
        served(ctx)
        self.d = ctx.daemon(network={"allow": SERVER, "resolvers": f"{SERVER}:5353", "connection_rate": 100000, "query_rate": 100000})
        self.box = self.d.api.create(self.d.image)
        with open(find("netload"), "rb") as f:
            self.d.api.upload(self.box, [("/tmp/netload", f.read())])()
        self.d.api.output(self.box, "chmod 755 /tmp/netload")

    def sample(self):
        return measured(self.d.api.output(self.box, f"/tmp/netload run {SERVER} 192.0.2.1"))


class Qemu:
    """A machine of QEMU's per sample, with libslirp inside of QEMU. Its resolver is the one of /etc/resolv.conf: the run's own server."""
    name = "qemu"

    def __init__(self, ctx):
        served(ctx)
        init, resolv = os.path.join(ctx.tmp, "netload.cpio"), os.path.join(ctx.tmp, "netload.resolv")
        archive(find("netload"), init)
        with open(resolv, "w") as f:
            f.write("nameserver 127.0.0.1\n")
        argv = mb_vm.qemu("none", init=init, more=["-netdev", "user,id=n", "-device", "virtio-net-device,netdev=n"])
        argv[argv.index("-append") + 1] += f" netload={SERVER}"
        self.argv = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"', resolv, *argv]

    def sample(self):
        p = Proc(self.argv)
        try:
            p.wait_mark(b"NET end", 180)
            return measured(p.out.decode("utf-8", "replace"))
        finally:
            p.close()


SCENARIOS = {
    "net": {
        "what": "a guest and a server on its host: 16 MiB down, 16 MiB up, 20 requests of 64 KiB each on a connection of its own, 50 connections, "
                "200 UDP round trips, 50 DNS questions",
        "start": "before the first byte is asked for, two connections and two questions after the first packet (guest's clock)", "stop": "the last answer",
        "arms": [Mayfly, Qemu], "seconds": 120, "samples": 10, "phase_rate": {"down": 16, "up": 16},
    },
}
