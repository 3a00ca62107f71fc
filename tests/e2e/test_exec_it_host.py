# SPDX-License-Identifier: Apache-2.0
"""`mayfly exec -i`, `-t` and `-it` against the real server and the real agent on this very host (test_ways_host.py), in a pseudo-terminal of this test."""
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import fcntl

import pytest

from conftest import MAYFLY
from test_ways_host import WAIT_S, port  # noqa: F401 (port is a fixture)

BOX = "01234567-89ab-4def-8123-456789abcdef"  # that server looks at no id


def env(port):
    return os.environ | {"OPEN_SANDBOX_DOMAIN": f"127.0.0.1:{port}", "OPEN_SANDBOX_API_KEY": "k", "TERM": "xterm"}


def plain(port, *words, stdin=b"", **kw):
    return subprocess.run([MAYFLY, "exec", *words], env=env(port), input=stdin, capture_output=True, timeout=WAIT_S, **kw)


class Screen:
    """A command line in a terminal of ours."""

    def __init__(self, port, *words, size=(31, 97), command="exec"):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave, self.seen = slave, b""
        self.p = subprocess.Popen([MAYFLY, command, *words], env=env(port), stdin=slave, stdout=slave, stderr=slave, start_new_session=True)

    def until(self, pattern):
        end = time.monotonic() + WAIT_S
        while not re.search(pattern, self.seen):
            assert time.monotonic() < end, self.seen
            if select.select([self.master], [], [], 1)[0]:
                self.seen += os.read(self.master, 65536)

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self):
        return self.p.wait(WAIT_S)


def test_input_is_a_stream(port):
    """The command has its first line before the second is written; its two streams stay apart; its exit code is ours."""
    p = subprocess.Popen([MAYFLY, "exec", "-i", BOX, "--", "sh", "-c", "while read l; do echo got $l; done; echo end >&2; exit 3"], env=env(port), stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write(b"one\n")
    p.stdin.flush()
    assert p.stdout.readline() == b"got one\n"
    p.stdin.write(b"two\n")
    out, err = p.communicate(timeout=WAIT_S)
    assert (out, err, p.returncode) == (b"got two\n", b"end\n", 3)


def test_files_as_input_and_much_of_it(port, tmp_path):
    (tmp_path / "f").write_bytes(os.urandom(1 << 20) * 4)
    with open(tmp_path / "f", "rb") as f:
        r = subprocess.run([MAYFLY, "exec", "-i", BOX, "--", "cat"], env=env(port), stdin=f, capture_output=True, timeout=WAIT_S)
    assert r.returncode == 0 and r.stdout == (tmp_path / "f").read_bytes(), r.stderr
    assert plain(port, "-i", BOX, "--", "sh", "-c", "echo it\\'s \"$1\"", "sh", "a 'b' $c").stdout == b"it's a 'b' $c\n"


def test_a_terminal(port):
    """Size, resize, ^C, exit code, and our terminal afterwards as it was."""
    s = Screen(port, "-it", "-e", "PS1=$ ", BOX, "--", "bash", "--norc", "--noprofile")
    s.type("stty size; echo $TERM\n")
    s.until(rb"31 97\r\nxterm\r\n")
    fcntl.ioctl(s.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    s.p.send_signal(signal.SIGWINCH)
    s.type("sleep 0.5; stty size\n")
    s.until(rb"40 120\r\n")
    s.type("sh -c 'echo go; exec sleep 1000'\n")
    s.until(rb"[\r\n]go\r\n")
    s.type("\x03")
    s.until(rb"\^C[\s\S]*# ")  # the prompt: what is typed before it may be thrown away with the interrupted line
    s.type("exit 9\n")
    assert s.end() == 9
    assert termios.tcgetattr(s.slave) == s.before


def test_detach_keys(port):
    s = Screen(port, "-it", BOX, "--", "sh", "-c", "echo here; sleep 100")
    s.until(rb"here\r\n")
    s.type("\x10\x11")
    assert s.end() == 0
    s.until(rb"detached; the command goes on in session [0-9a-f-]{36}")


def test_attach_again(port):
    """What was printed is there, keys go to the same shell, another attach takes it over, one looks on, the exit code is the shell's."""
    s = Screen(port, "-it", BOX, "--", "sh", "-c", "X=kept; echo here; while read l; do echo \"$X <$l>\"; done; exit 7")
    s.until(rb"here\r\n")
    s.type("\x10\x11")
    assert s.end() == 0
    s.until(rb"detached; the command goes on in session ([0-9a-f-]{36})")
    session = re.search(rb"session ([0-9a-f-]{36})", s.seen)[1].decode()
    a = Screen(port, BOX, session, command="attach")
    a.until(rb"here\r\n")
    a.type("one\n")
    a.until(rb"kept <one>\r\n")
    look = Screen(port, "--no-stdin", BOX, session, command="attach")
    look.until(rb"kept <one>\r+\n")
    b = Screen(port, BOX, session, command="attach")
    b.until(rb"kept <one>\r\n")
    assert a.end() == 125
    a.until(rb"TAKEN_OVER|taken over")
    b.type("two\n\x04")
    b.until(rb"kept <two>\r\n")
    look.until(rb"kept <two>\r+\n")
    assert b.end() == 7 and look.end() == 7
    assert termios.tcgetattr(b.slave) == b.before
    r = subprocess.run([MAYFLY, "attach", BOX, session], env=env(port), capture_output=True, text=True)
    assert r.returncode == 125 and r.stderr.startswith("mayfly: ")


def test_a_time_limit_and_nonsense(port):
    assert plain(port, "-i", "--timeout", "1", BOX, "--", "sleep", "100").returncode == 137
    assert plain(port, "-i", "-d", BOX, "--", "true").returncode == 2
