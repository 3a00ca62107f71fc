# SPDX-License-Identifier: Apache-2.0
"""mayfly-vmm as the daemon starts it, over its control socket: descriptors with fixed numbers (lib/proto_vmm.h)."""
import fcntl
import os
import signal
import socket
import struct
import time

from mb_core import Failed, vmm

PREPARE, RESTORE, STATS, F_RUN = 2, 4, 9, 1


class Control:
    def __init__(self, tmp):
        self.path = os.path.join(tmp, f"ctl-{time.monotonic_ns()}")
        self.id = 0
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
            got = self.s.recv(65536)
            if len(got) < 24:
                raise Failed("the monitor closed its control socket")
            _, _, typ, mid, n, status, _ = struct.unpack("<IHHIIiI", got[:24])
            if mid != self.id:
                continue  # an event
            if status < 0:
                raise Failed(f"request {kind}: {os.strerror(-status)}: {got[28:24 + n].decode('utf-8', 'replace')}")
            return got[24:24 + n]

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
