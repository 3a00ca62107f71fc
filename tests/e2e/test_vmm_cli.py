# SPDX-License-Identifier: Apache-2.0
"""mayfly-vmm by hand, as docs/ARCHITECTURE.md says: a VM from a file, what is typed reaches the guest, snapshot and restore by folder, and a
clear word for everything that cannot be."""
import re

import pytest

from conftest import BIN, CACHE, MAYFLY, TOP

# $1 the published folder, the rest arguments; two lines are typed once the guest has said that it is there
TYPE = r"""
at=$1; shift; d=$(mktemp -d) && cd "$d" && mkfifo in
timeout 100 "$at/mayfly-vmm" --kernel "$at/guest-vmlinux" --initrd "$at/testinit.cpio" "$@" < in > out 2> err & v=$!
exec 3> in
for i in $(seq 1000); do grep -q TESTINIT out && break; sleep 0.1; done
printf 'one\ntwo\n' >&3
for i in $(seq 600); do grep -q 'ECHO two' out && break; sleep 0.1; done
printf 'end\n' >&3
wait $v; echo "code $?"; tr -d '\r' < out; cat err; rm -rf "$d"
"""

SNAPSHOT = r"""
at=$1; d=$(mktemp -d) && cd "$d"
timeout 100 "$at/mayfly-vmm" --config vm.conf 2>&1 | grep -v warn; echo "no file: ${PIPESTATUS[0]}"
printf '%s\n' '# a VM' "kernel = $at/guest-vmlinux" "initrd=$at/testinit.cpio" 'memory = 192M' 'vcpus = 2' 'cpu = x86-64-v2' 'cmdline = testinit=vsock' > vm.conf
timeout 100 "$at/mayfly-vmm" --config vm.conf --snapshot "$d/snap" > out 2>&1 < /dev/null; echo "snapshot: $?"; cat out; ls snap
for i in 1 2; do
	"$at/mayfly-vmm" --restore "$d/snap" --vsock "$d/vs" > out 2>&1 < /dev/null & v=$!
	while [ ! -S vs ]; do sleep 0.05; done
	timeout 60 "$at/vsockload" vs echo 4 65536
	kill -TERM $v; wait $v; echo "restore: $?"; grep 'restore: tables' out; rm -f vs
done
damaged() { timeout 100 "$at/mayfly-vmm" --restore "$d/bad" < /dev/null 2>&1 | sed -n "s|.*$d/bad|$1: |p"; echo "$1 ${PIPESTATUS[0]}"; rm -rf bad; cp -r snap bad; }
poke() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
cp -r snap bad
poke bad/state 0 x; damaged magic
poke bad/state 60 '\377\376'; damaged head
poke bad/state 250 '\377\376\375\374\373'; damaged section
truncate -s -1 bad/state; damaged cut
rm bad/mem.0; damaged gone
poke bad/mem.0 20 '\377\376\375'; damaged memory
truncate -s 8192 bad/mem.0; damaged shortened
truncate -s 64M base; timeout 100 "$at/mayfly-vmm" --restore "$d/snap" --disk "$d/base" 2>&1 < /dev/null; echo "disks $?"
rm -rf "$d"
"""


# what was done to a good snapshot, what must be said of it
DAMAGED = {
    "magic": "snapshot state: magic",
    "head": "snapshot state: crc",
    "section": "snapshot state: section 0",
    "cut": "snapshot state: total_bytes",
    "gone": "mem.0: No such file",
    "memory": "memory file 0: memory file: crc",
    "shortened": "(truncated)",
}

# files that are not what they should be, made inside; $1 the published folder. Prints a line for each: name, code, what was said last.
FILES = r'''import os, subprocess, sys, tempfile
at = sys.argv[1]
kernel = open(at + "/guest-vmlinux", "rb").read()
with tempfile.TemporaryDirectory() as d:
    os.chdir(d)
    def file(name, what):
        with open(name, "wb") as f:
            f.write(what) if isinstance(what, bytes) else f.truncate(what)
        return name
    def poke(name, at, what):
        with open(name, "r+b") as f:
            f.seek(at)
            f.write(what)
    def layer(name):
        subprocess.run([at + "/mayfly", "disk", "create", "--base", "base", "--data", name + ".data", "--bitmap", name + ".map"], check=True)
        return name
    def vmm(name, *args):
        r = subprocess.run([at + "/mayfly-vmm", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        print(name, r.returncode, r.stderr.strip().splitlines()[-1], "TESTINIT" if "TESTINIT" in r.stdout else "")
    def disk(name, *files):
        vmm(name, "--kernel", at + "/guest-vmlinux", "--initrd", at + "/testinit.cpio", "--disk", ",".join(files))
    def on(name):
        disk(name, "base", name + ".data", name + ".map")
    vmm("tiny", "--kernel", file("tiny.elf", kernel[:10]))
    vmm("cut", "--kernel", file("cut.elf", kernel[:1 << 20]))
    vmm("entry", "--kernel", file("entry.elf", kernel[:24] + bytes([0x34, 0x12, 0, 0, 0, 0, 0, 0]) + kernel[32:]))
    vmm("machine", "--kernel", file("machine.elf", kernel[:18] + bytes([0xb7, 0]) + kernel[20:]))
    vmm("initrd", "--kernel", at + "/guest-vmlinux", "--initrd", file("large.cpio", 1 << 30))
    file("base", 63 << 20)
    disk("odd", file("odd.base", 1000))
    disk("none", file("none.base", 0))
    disk("zeros", "base", file("zeros.data", 64 << 20), file("zeros.map", 64 << 10))
    os.truncate(layer("short") + ".data", 4096)
    on("short")
    os.truncate(layer("map") + ".map", 4096)
    on("map")
    poke(layer("header") + ".map", 16, b"\x77")
    on("header")
    poke(layer("state") + ".map", 4096, b"\xff")
    on("state")
    poke(layer("beyond") + ".map", 4096 + 4096 - 1, b"\x01")
    on("beyond")
    layer("first"), layer("second")
    disk("mixed", "base", "first.data", "second.map")
'''
WRONG_FILES = {
    "tiny": "tiny.elf: kernel: only 10 bytes",
    "cut": "cut.elf: kernel: ",
    "entry": "entry.elf: kernel: entry 0x1234 is in no segment",
    "machine": "machine.elf: kernel: not a 64-bit",
    "initrd": "large.cpio: initramfs: 1048576 KiB do not fit",
    "odd": "odd.base: disk 0: base: length: 1000",
    "none": "none.base: disk 0: base: length: 0",
    "zeros": "zeros.map: disk 0: bitmap: ",
    "short": "short.map: disk 0: data file: length: 4096",
    "map": "map.map: disk 0: bitmap: length: 4096",
    "header": "header.map: disk 0: bitmap: header checksum",
    "state": "state.map: disk 0: bitmap: unit 0",
    "beyond": "beyond.map: disk 0: bitmap: unit 16380 is beyond",
    "mixed": "second.map: disk 0: data file: id",
}


@pytest.fixture(scope="module")
def at(machine):
    return machine.publish(BIN / "mayfly-vmm", MAYFLY, TOP / "build" / "tools" / "vsockload", CACHE / "guest-vmlinux", TOP / "build" / "testinit.cpio")


def shell(machine, script, *args, limit=150):
    r = machine.run("bash", "-c", script, "sh", *args, timeout=limit)
    print(r.stdout, r.stderr)
    return r.stdout


@pytest.mark.parametrize("arg", [["--cmdline", "testinit=echo"], ["--serial", "--cmdline", "testinit=echo console=ttyS0"]], ids=["hvc0", "serial"])
def test_what_is_typed_reaches_the_guest(machine, at, arg):
    out = shell(machine, TYPE, at, *arg)
    assert "ECHO one" in out and "ECHO two" in out
    assert "code 0" in out
    assert "ended: reset" in out


def test_a_config_file_snapshot_and_restore(machine, at):
    out = shell(machine, SNAPSHOT, at)
    assert "open vm.conf: No such file" in out and "no file: 2" in out
    assert "snapshot: 0" in out and "snapshot: durable" in out
    assert "mem.0\nstate\n" in out
    assert out.count("echo streams=4 bytes=262144 bad=0") == 2
    assert out.count("restore: 0") == 2 and out.count("restore: tables") == 2
    for name, says in DAMAGED.items():
        assert re.search(rf"^{name}: .*{re.escape(says)}", out, re.M), name
        assert f"{name} 1" in out.splitlines()
    assert "base: disk 0: not in the snapshot" in out and "disks 1" in out


# what is wrong, what must be said; @ is the published folder
BAD = [
    (["--kernel", "/nowhere", "--initrd", "@/testinit.cpio"], "open /nowhere: No such file"),
    (["--kernel", "@/testinit.cpio"], "@/testinit.cpio: kernel: not"),
    (["--kernel", "@/guest-vmlinux", "--initrd", "/dev/null"], "/dev/null: initramfs: empty"),
    (["--kernel", "@/guest-vmlinux", "--memory", "64M"], "128 MiB to 16 GiB"),
    (["--kernel", "@/guest-vmlinux", "--memory", "32G"], "128 MiB to 16 GiB"),
    (["--kernel", "@/guest-vmlinux", "--memory", "129M"], "a multiple of 2 MiB"),
    (["--kernel", "@/guest-vmlinux", "--vcpus", "0"], "0 vCPUs: 1 to 16"),
    (["--kernel", "@/guest-vmlinux", "--vcpus", "17"], "17 vCPUs: 1 to 16"),
    (["--kernel", "@/guest-vmlinux", "--cpu", "best"], 'CPU template "best"'),
    (["--kernel", "@/guest-vmlinux", "--cmdline", "x" * 3000], "command line: "),
    (["--kernel", "@/guest-vmlinux", "--disk", "/dev/null,a"], "BASE or BASE,DATA,BITMAP"),
    (["--kernel", "@/guest-vmlinux", "--sparkle"], '"--sparkle" is not an option'),
    (["--restore", "/nowhere"], "open /nowhere/state"),
    (["--config", "/proc/version"], "/proc/version:1"),
]


@pytest.mark.parametrize("args,says", BAD, ids=lambda x: x[:20] if isinstance(x, str) else "")
def test_what_cannot_be_is_named(machine, at, args, says):
    r = machine.run("timeout", 20, f"{at}/mayfly-vmm", *[a.replace("@", at) for a in args])
    assert r.returncode in (1, 2)
    assert says.replace("@", at) in r.stderr
    assert "TESTINIT" not in r.stdout


def test_what_files_hold_is_looked_at_first(machine, at):
    out = machine.run("python3", "-c", FILES, at, timeout=300).stdout
    print(out)
    said = dict(line.split(" ", 1) for line in out.splitlines())
    assert set(said) == set(WRONG_FILES)
    for name, says in WRONG_FILES.items():
        assert said[name].startswith("1 ") and says in said[name], (name, said[name])
        assert "TESTINIT" not in said[name]


def test_wrong_descriptors_are_named(machine, at):
    script = r"""import os, socket, subprocess, sys
def run(**fds):
    def place():
        held = {n: os.dup2(f, 100 + n) for n, f in fds_by_number.items()}
        os.closerange(3, 100)
        for n, f in held.items():
            os.dup2(f, n)
        os.closerange(100, 200)
    fds_by_number = {int(k[2:]): v for k, v in fds.items()}
    r = subprocess.run([sys.argv[1]], stdin=subprocess.DEVNULL, preexec_fn=place, close_fds=False, capture_output=True, text=True, timeout=20)
    print(sorted(fds_by_number), r.returncode, r.stderr.strip())
null = os.open('/dev/null', os.O_RDWR)
pipe = os.pipe()[0]
ctl = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
c = ctl[0].fileno()
run()
run(fd3=null)
run(fd3=stream.fileno())
run(fd3=c, fd4=null)
run(fd3=c, fd5=pipe)
run(fd3=c, fd6=null)
run(fd3=c, fd6=pipe)
"""
    out = machine.run("python3", "-c", script, f"{at}/mayfly-vmm").stdout
    print(out)
    assert out.splitlines() == [
        "[] 2 mayfly-vmm: descriptor 3 is not there: --help says how to start a VM by hand",
        "[3] 2 mayfly-vmm: descriptor 3 is not the control socket",
        "[3] 2 mayfly-vmm: descriptor 3 is a socket, but not the control socket",
        "[3, 4] 2 mayfly-vmm: descriptor 4 is not the listener for streams",
        "[3, 5] 2 mayfly-vmm: descriptor 5 is not the file for last words",
        "[3, 6] 2 mayfly-vmm: descriptor 6 is a device, but not KVM",
        "[3, 6] 2 mayfly-vmm: descriptor 6 is not KVM",
    ]
