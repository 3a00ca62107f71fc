# SPDX-License-Identifier: Apache-2.0
"""mayfly-vmm as the daemon starts it, over its control socket: descriptors with fixed numbers (lib/proto_vmm.h)."""
import fcntl
import os
import signal
import socket
import struct
import time

from mb_core import MIB, Failed, vmm

PREPARE, BOOT, RESTORE, SNAPSHOT, STATS, WORKSET, PORTS, EV_SNAPSHOT, EV_GUEST_CONN = 2, 3, 4, 7, 9, 10, 12, 0x4005, 0x4006
F_RUN, F_HAS_WS, F_LIVE, F_DIFF = 1, 2, 4, 8
DISK_RO = 1
VSOCK_MAGIC, PORT_READY, PORT_AGENT = 0x31534B56, 1023, 1024


class Control:
    def __init__(self, tmp):
        self.path = os.path.join(tmp, f"ctl-{time.monotonic_ns()}")
        self.id, self.events, self.held = 0, [], []
        listen = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listen.bind(self.path)
        listen.listen(4)
        vsock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        vsock.bind(self.path + ".vsock")
        vsock.listen(4)
        null = os.open("/dev/null", os.O_RDWR)
        kvm = os.open("/dev/kvm", os.O_RDWR)
        # above the fixed numbers first, so that no dup2 runs over a source: two listeners, last words, KVM
        src = [fcntl.fcntl(f, fcntl.F_DUPFD_CLOEXEC, 20) for f in (listen.fileno(), vsock.fileno(), null, kvm)]
        self.pid = os.posix_spawn(vmm(), [vmm()], os.environ, file_actions=[
            (os.POSIX_SPAWN_DUP2, src[2], 0), (os.POSIX_SPAWN_DUP2, src[2], 1), (os.POSIX_SPAWN_DUP2, src[2], 2),
            (os.POSIX_SPAWN_DUP2, src[0], 3), (os.POSIX_SPAWN_DUP2, src[1], 4), (os.POSIX_SPAWN_DUP2, src[2], 5),
            (os.POSIX_SPAWN_DUP2, src[3], 6)])
        for fd in src + [null, kvm]:
            os.close(fd)
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.s.settimeout(15)
        self.s.connect(self.path)
        listen.close()
        vsock.close()

    def call(self, kind, payload, fds=()):
        self.id += 1
        hdr = struct.pack("<IHHIIiI", 0x314d564d, 1, kind, self.id, len(payload), 0, len(fds))
        socket.send_fds(self.s, [hdr + payload], list(fds))
        while True:
            typ, mid, status, data = self.message()
            if mid == self.id:
                break
            self.events.append((typ, data))
        if status < 0:
            raise Failed(f"request {kind}: {os.strerror(-status)}: {data[4:].decode('utf-8', 'replace')}")
        return data

    def message(self):
        got, fds, _, _ = socket.recv_fds(self.s, 65536, 4)
        self.held += fds  # an agent whose announcement is closed announces itself again
        if len(got) < 24:
            raise Failed("the monitor closed its control socket")
        _, _, typ, mid, n, status, _ = struct.unpack("<IHHIIiI", got[:24])
        return typ, mid, status, got[24:24 + n]

    def event(self, kind):
        """The payload of the next event of that kind. Other events before it are dropped."""
        while True:
            while self.events:
                typ, data = self.events.pop(0)
                if typ == kind:
                    return data
            typ, _, _, data = self.message()
            self.events.append((typ, data))

    def prepared(self, mib=MIB):
        """Makes the objects, and lets the agent announce itself."""
        self.call(PREPARE, struct.pack("<QIII", mib << 20, 1, 0, 0))
        self.call(PORTS, struct.pack("<HI", 1, PORT_READY))
        time.sleep(0.1)  # what a blank monitor makes ready after its answer is not the restore's

    def request(self, kind, payload, files, disk=""):
        """A boot or a restore with files to read, and a read-only root disk behind them."""
        fds = [os.open(f, os.O_RDONLY) for f in [*files, *([disk] if disk else [])]]
        disks = struct.pack("<IIH", DISK_RO, 0, 0) if disk else b""
        try:
            return self.call(kind, payload + disks, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def boot(self, kernel, initrd, cmdline, disk=""):
        text = cmdline.encode()
        return self.request(BOOT, struct.pack("<I", len(text)) + text + struct.pack("<IH", 0, int(bool(disk))), [kernel, initrd], disk)

    def restore(self, files, ws="", disk=""):
        """files: the state, then the memory files; the answer."""
        flags = F_RUN | (F_HAS_WS if ws else 0)
        return self.request(RESTORE, struct.pack("<IHH", flags, len(files) - 1, int(bool(disk))), [*files, *([ws] if ws else [])], disk)

    def restored(self, files):
        """Makes the objects, then restores: (time before the restore, its answer). files: as in restore()."""
        self.call(PREPARE, struct.pack("<QIII", MIB << 20, 1, 0, 0))
        t0 = time.monotonic_ns()
        return t0, self.restore(files)

    def agent(self):
        """A connection to the guest's agent; it waits until the guest takes connections."""
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(60)
        s.connect(self.path + ".vsock")
        s.sendall(struct.pack("<III", VSOCK_MAGIC, PORT_AGENT, 0))
        got = s.recv(12, socket.MSG_WAITALL)
        status = struct.unpack("<III", got)[2] if len(got) == 12 else 1
        if status:
            raise Failed("the guest's agent: " + os.strerror(status))
        return s

    def close(self):
        """The monitor ends with it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.s.close()
        for fd in self.held:
            os.close(fd)
        for p in (self.path, self.path + ".vsock"):
            os.unlink(p)


def named(answer):
    """{name: number} of an answer that lists them: the nanoseconds of a restore's steps, the counters of STATS."""
    got = {}
    n, at = struct.unpack_from("<H", answer)[0], 2
    for _ in range(n):
        size = struct.unpack_from("<I", answer, at)[0]
        name = answer[at + 4:at + 4 + size].decode()
        got[name] = struct.unpack_from("<Q", answer, at + 4 + size)[0]
        at += 12 + size
    return got
