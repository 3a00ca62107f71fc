# SPDX-License-Identifier: Apache-2.0
"""mayfly-vmm as the daemon starts it, over its control socket: descriptors with fixed numbers (lib/proto_vmm.h)."""
import fcntl
import os
import signal
import socket
import struct
import time

from mb_core import MIB, Failed, vmm

PREPARE, RESTORE, SNAPSHOT, STATS, EV_SNAPSHOT = 2, 4, 7, 9, 0x4005
F_RUN, F_LIVE, F_DIFF = 1, 4, 8


class Control:
    def __init__(self, tmp):
        self.path = os.path.join(tmp, f"ctl-{time.monotonic_ns()}")
        self.id, self.events = 0, []
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
        got = self.s.recv(65536)
        if len(got) < 24:
            raise Failed("the monitor closed its control socket")
        _, _, typ, mid, n, status, _ = struct.unpack("<IHHIIiI", got[:24])
        return typ, mid, status, got[24:24 + n]

    def event(self, kind):
        """The payload of the next event of that kind; others are forgotten."""
        while True:
            while self.events:
                typ, data = self.events.pop(0)
                if typ == kind:
                    return data
            typ, _, _, data = self.message()
            self.events.append((typ, data))

    def restored(self, files):
        """Objects made, then running: what a restore answers. The memory files are those behind the first."""
        fds = [os.open(f, os.O_RDONLY) for f in files]
        try:
            self.call(PREPARE, struct.pack("<QIII", MIB << 20, 1, 0, 0))
            t0 = time.monotonic_ns()
            return t0, self.call(RESTORE, struct.pack("<IHH", F_RUN, len(files) - 1, 0), fds)
        finally:
            for fd in fds:
                os.close(fd)

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.s.close()
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
