# SPDX-License-Identifier: Apache-2.0
"""As much of the agent's protocol (lib/proto_agent.h) as a first command needs."""
import os
import struct
import time

from mb_core import Failed

HELLO, EXEC, OK, ERR, OUT, EXIT = 1, 30, 2, 3, 50, 51  # lib/proto_agent.h
SETUP, PREPARE, PREP_FREEZE, PREP_DROP = 11, 12, 1, 4
MAGIC, VERSION, CONN_CONTROL, CONN_EXEC = 0x3147414D, 1, 1, 2


def text(s):
    return struct.pack("<I", len(s)) + s


def frame(kind, payload, ident):
    return struct.pack("<IHHI", len(payload), kind, 0, ident) + payload


def exactly(s, n):
    got = b""
    while len(got) < n:
        more = s.recv(n - len(got))
        if not more:
            raise Failed("the agent closed the connection")
        got += more
    return got


def take(s):
    n, kind, _, _ = struct.unpack("<IHHI", exactly(s, 12))
    return kind, exactly(s, n)


def first_output(s, ident=b"first", argv=(b"/bin/echo", b"hi")):
    """A command that prints hi on an EXEC connection, until its first byte. ident: a new one for each command of a guest."""
    body = text(ident) + struct.pack("<III", 0, 0xFFFFFFFF, 0xFFFFFFFF) + text(b"") + text(b"/") + struct.pack("<QHH", 0, 80, 24) + text(b"")
    body += struct.pack("<I", len(argv)) + b"".join(map(text, argv)) + struct.pack("<I", 0)
    s.sendall(frame(HELLO, struct.pack("<III", MAGIC, VERSION, CONN_EXEC), 1) + frame(EXEC, body, 2))
    while True:
        kind, payload = take(s)
        if kind == ERR:
            raise Failed("agent: " + payload[8:].decode("utf-8", "replace"))
        if kind == OUT and payload[9:11] == b"hi":
            return
        if kind == EXIT:
            raise Failed("the command ended without output")


class Life:
    """The agent's control connection: prepares the guest for a snapshot, and gives the guest its identity after a restore, as the daemon does."""

    def __init__(self, s):
        self.s, self.id = s, 0
        self.call(HELLO, struct.pack("<III", MAGIC, VERSION, CONN_CONTROL))

    def call(self, kind, payload):
        self.id += 1
        self.s.sendall(frame(kind, payload, self.id))
        kind, payload = take(self.s)
        if kind == ERR:
            raise Failed("agent: " + payload[12:].decode("utf-8", "replace"))
        return payload

    def prepare(self):
        self.call(PREPARE, struct.pack("<II", PREP_FREEZE | PREP_DROP, 10000))

    def setup(self):
        """An identity, no environment, an image's command that sleeps."""
        ident = struct.pack("<Q", 2) + text(os.urandom(64)) + struct.pack("<Q", time.time_ns()) + text(b"bench") + text(b"0" * 32)
        ident += text(b"00000000-0000-4000-8000-000000000000") + struct.pack("<I", 0) + text(b"")
        argv = [b"sleep", b"86400"]  # busybox's tail -f wakes up once a second
        self.call(SETUP, ident + struct.pack("<I", 0) + text(b"") + text(b"") + struct.pack("<I", len(argv)) + b"".join(map(text, argv)) + text(b""))
