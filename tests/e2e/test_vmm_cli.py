# SPDX-License-Identifier: Apache-2.0
"""mayfly-vmm by hand, as docs/ARCHITECTURE.md says: a VM from a file, what is typed reaches the guest, snapshot and restore by folder, and a
clear word for everything that cannot be."""
import pytest

from conftest import BIN, CACHE, TOP

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
printf '%s\n' '# a VM' "kernel = $at/guest-vmlinux" "initrd=$at/testinit.cpio" 'memory = 192M' 'vcpus = 2' 'cmdline = testinit=vsock' > vm.conf
timeout 100 "$at/mayfly-vmm" --config vm.conf --snapshot "$d/snap" > out 2>&1 < /dev/null; echo "snapshot: $?"; cat out; ls snap
for i in 1 2; do
	"$at/mayfly-vmm" --restore "$d/snap" --vsock "$d/vs" > out 2>&1 < /dev/null & v=$!
	while [ ! -S vs ]; do sleep 0.05; done
	timeout 60 "$at/vsockload" vs echo 4 65536
	kill -TERM $v; wait $v; echo "restore: $?"; grep 'restore: run' out; rm -f vs
done
truncate -s 8192 snap/mem.0
timeout 100 "$at/mayfly-vmm" --restore "$d/snap" 2>&1 < /dev/null; echo "shortened: $?"
rm -rf "$d"
"""


@pytest.fixture(scope="module")
def at(machine):
    return machine.publish(BIN / "mayfly-vmm", TOP / "build" / "tools" / "vsockload", CACHE / "guest-vmlinux", TOP / "build" / "testinit.cpio")


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
    assert out.count("restore: 0") == 2 and out.count("restore: run") == 2
    assert "shortened: 1" in out and "memory file 0" in out


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
