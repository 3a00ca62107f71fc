# SPDX-License-Identifier: Apache-2.0
"""The agent in real guests: the unit tests of its processes, sessions and terminals, run against the init of a guest with an ext4 root,
on an image with glibc, on one with musl beside a static shell, and on one where nothing is dynamic at all; the soak, by its own counters
and /proc; and that a thaw of which any part fails thaws nothing."""
import os
import shutil
import subprocess

import pytest

from conftest import BIN, CACHE, TOP, has

TOOLS = ["bash", "sh", "cat", "echo", "sleep", "head", "tr", "stty", "tty", "true", "pwd", "setsid", "rm", "mkdir", "date",
         "ls", "wc", "grep", "env", "touch", "sort", "readlink", "ln", "chmod", "cp", "hostname", "yes", "printf", "cut", "rmdir", "mkfifo", "test", "mv", "tail", "mknod", "truncate", "du"]
BUSYBOX = shutil.which("busybox") or "/bin/busybox"
PROGRAM = r'#include <unistd.h>' "\n" r'int main(void) { return write(1, "hello from the image\n", 21) == 21 ? 5 : 1; }' "\n"

SCRIPT = """
cd $(mktemp -d)
{p}/mayfly disk create --data data --bitmap bitmap --base {p}/{image} || exit 90
{p}/mayfly-vmm --no-jail --no-jail --kernel {p}/guest-vmlinux --initrd {p}/initramfs.cpio --disk {p}/{image},data,bitmap --vsock $PWD/v.sock >log 2>&1 &
vm=$!
for i in $(seq 300); do grep -q 'host port 1023' log && break; sleep 0.2; done
export AGENT_VSOCK=$PWD/v.sock AGENT_PROGRAM=/bin/program SOAK={soak}
rc=0
for t in {tests}; do timeout {limit} {p}/$t || rc=1; done
kill -9 $vm
[ $rc = 0 ] || cat log
exit $rc
"""


def base_tree(root):
    for d in ("bin", "etc", "usr", "dev", "proc", "sys", "root"):
        (root / d).mkdir(parents=True)
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\n")
    (root / "program.c").write_text(PROGRAM)


def compile_program(root, *cmd):
    subprocess.run([*cmd, "-o", root / "bin" / "program", root / "program.c"], check=True, capture_output=True)


def static_shell(root):
    shutil.copy(BUSYBOX, root / "bin" / "busybox")
    for t in TOOLS[1:]:
        (root / "bin" / t).symlink_to("busybox")


def glibc(root):
    compile_program(root, "gcc")
    libs = set()
    for t in TOOLS:
        shutil.copy(shutil.which(t), root / "bin" / t)
    for f in (root / "bin").iterdir():
        out = subprocess.run(["ldd", f], text=True, capture_output=True).stdout
        libs |= {w for line in out.splitlines() for w in line.split() if w.startswith("/")}
    for lib in libs:
        to = root / lib.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(lib, to)


def musl(root):
    static_shell(root)
    compile_program(root, "musl-gcc")
    (root / "lib").mkdir()
    shutil.copy("/lib/ld-musl-x86_64.so.1", root / "lib")


def neither(root):
    static_shell(root)
    compile_program(root, "musl-gcc", "-static")


# the programs that ran in each kind of guest; agent_freeze comes last, as it leaves its guest unable to wake
TESTS = {glibc: ["agent_exec", "agent_terminal", "agent_isolated", "agent_freeze"], musl: ["agent_exec", "agent_terminal", "agent_isolated", "agent_soak"], neither: ["agent_exec", "agent_terminal", "agent_isolated"]}
# 50 of them killed midway; in `make stress` 1,000
SOAK = 10000 if os.environ.get("MAYFLY_STRESS") else 500


@pytest.mark.parametrize("make", [glibc, musl, neither], ids=lambda f: f.__name__)
def test_guest(machine, tmp_path, make):
    assert has("musl-gcc") and has("mke2fs"), "musl-tools or e2fsprogs is missing: make deps"
    programs = [TOP / "build" / "unit" / t for t in TESTS[make]]
    subprocess.run(["make", "-s", *[str(t.relative_to(TOP)) for t in programs]], cwd=TOP, check=True)
    root, image = tmp_path / "root", f"{make.__name__}.img"
    base_tree(root)
    make(root)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", root, tmp_path / image, "48M"], check=True)
    p = machine.publish(BIN / "mayfly-vmm", BIN / "mayfly", CACHE / "guest-vmlinux", TOP / "build" / "initramfs.cpio",
                        *programs, tmp_path / image)
    limit = 400 + SOAK if "agent_soak" in TESTS[make] else 400
    r = machine.run("bash", "-c", SCRIPT.format(p=p, image=image, tests=" ".join(TESTS[make]), soak=SOAK, limit=limit), timeout=2 * limit + 100)
    print(r.stdout)
    assert r.returncode == 0, r.stdout[-3000:] + r.stderr[-1000:]
