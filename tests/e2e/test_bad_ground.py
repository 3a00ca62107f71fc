# SPDX-License-Identifier: Apache-2.0
"""What this host may lack: a tool, a package, room, a registry, a whole source, root. One line says what is wrong and what to do, and a second
try works. Nothing here starts an appliance; the kernel's build is tried on a source that builds in no time."""
import os
import shutil
import subprocess
import tarfile

import pytest

from conftest import MAYFLY, TOP

MACHINE = ("start", "--name", "bad", "--port", "0", "--memory", "512M")
NEEDED = ("bash", "sh", "sed", "awk", "grep", "cat", "env", "df", "dirname", "sort", "cut", "mke2fs", "tar", "ldd", "sha256sum", "dpkg-query", "mkfs.xfs",
          "qemu-system-x86_64")


@pytest.fixture(scope="module", autouse=True)
def root():
    """The appliance's root is there already: what is missing here is missing later."""
    subprocess.run([TOP / "guest" / "appliance" / "mkroot", TOP / "build" / "bin" / "mayfly-machine-init"], check=True, capture_output=True, timeout=300)


def said(r, *words):
    """It failed with one line of ours that has all these words."""
    lines = r.stderr.strip().splitlines()
    assert r.returncode != 0 and len(lines) == 1 and all(w in lines[0] for w in words), (r.returncode, r.stdout, r.stderr)


def start(env, *more):
    return subprocess.run([MAYFLY, "machine", *MACHINE, *more], capture_output=True, text=True, env=os.environ | env, timeout=100)


def small_disk(folder, kib, command, env=()):
    """command, where folder is a disk of that size; in a mount namespace of its own."""
    folder.mkdir(exist_ok=True)
    user = [] if os.geteuid() == 0 else ["-r"]
    return subprocess.run(["unshare", *user, "-m", "sh", "-c", 'mount -t tmpfs -o size="$1"k t "$2" && shift 2 && exec "$@"', "_", str(kib), folder, *command],
                          capture_output=True, text=True, env=os.environ | dict(env), timeout=100)


@pytest.mark.parametrize("tool, words", [("qemu-system-x86_64", ("apt install qemu-system-x86",)), ("mkfs.xfs", ("apt install xfsprogs",)),
                                         ("mke2fs", ("mke2fs is missing: make deps",))])
def test_no_tool(tmp_path, tool, words):
    (tmp_path / "bin").mkdir()
    for t in NEEDED:
        if t != tool:
            (tmp_path / "bin" / t).symlink_to(shutil.which(t, path=os.environ["PATH"] + ":/usr/sbin:/sbin"))
    r = start({"PATH": str(tmp_path / "bin"), "XDG_STATE_HOME": str(tmp_path / "state")})
    # the script that makes the root says it, then who called it
    assert r.returncode != 0 and len(r.stderr.strip().splitlines()) <= 2 and all(w in r.stderr for w in words), r.stderr


def test_no_kernel(tmp_path):
    said(start({"MAYFLY_CACHE": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}), "appliance-vmlinux", "make kernel")


def test_no_package(tmp_path):
    shutil.copy(TOP / "guest" / "appliance" / "mkroot", tmp_path)
    (tmp_path / "root.list").write_text("coreutils\nno-such-package # what for\n")
    said(subprocess.run([tmp_path / "mkroot", MAYFLY], capture_output=True, text=True), "no-such-package", "make deps")


def test_no_room(tmp_path):
    disk = tmp_path / "disk"
    said(small_disk(disk, 20480, [MAYFLY, "machine", *MACHINE], {"XDG_STATE_HOME": str(disk)}), "MiB free", "XDG_STATE_HOME")
    said(small_disk(disk, 20480, [TOP / "guest" / "appliance" / "mkroot", MAYFLY], {"MAYFLY_CACHE": str(disk)}), "MiB free", "MAYFLY_CACHE")
    said(small_disk(disk, 20480, [TOP / "guest" / "kernel" / "build", "guest"], {"MAYFLY_CACHE": str(disk)}), "MiB free, a kernel build needs")


def test_no_root(tmp_path):
    """Packages are for root to install, and `make deps` says which; where nothing is missing anybody may ask."""
    if os.geteuid() != 0:
        pytest.skip("this is about root's right to drop its rights")
    tmp_path.chmod(0o755)
    for p in tmp_path.parents:
        if p.stat().st_uid == os.geteuid() and p != p.parent and str(p) != "/tmp":
            p.chmod(p.stat().st_mode | 0o711)
    (tmp_path / ".ci").mkdir()
    shutil.copy(TOP / ".ci" / "deps", tmp_path / ".ci")

    def deps(names):
        (tmp_path / "deps.list").write_text(names)
        return subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", tmp_path / ".ci" / "deps"], capture_output=True, text=True)
    said(deps("coreutils # there\nno-such-package # what for\n"), "missing: no-such-package", "as root")
    assert deps("coreutils\n").returncode == 0


def test_no_package_index(tmp_path):
    """The tests' own environment: said once, and nothing half-made is taken for whole."""
    env = {"MAYFLY_CACHE": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}
    for _ in range(2):
        r = subprocess.run([TOP / "tests" / "e2e" / "venv"], capture_output=True, text=True, env=os.environ | env, timeout=300)
        assert r.returncode != 0 and r.stderr.strip().splitlines()[-1].endswith("is a package index reachable?"), r.stderr
        assert not list(tmp_path.rglob(".ok"))


MAKEFILE = """\
allnoconfig:
	mkdir -p $(O); grep -v -e LOST -e =n $(KCONFIG_ALLCONFIG) > $(O)/.config
vmlinux:
	cp /bin/true $(O)/vmlinux; [ ! -e $(SLOW) ] || { touch $(SLOW)/begun; sleep 60; }
"""


@pytest.fixture
def kernel(tmp_path):
    """build(...) of guest/kernel with a source and a cache of this test's own."""
    (tmp_path / "src" / "linux").mkdir(parents=True)
    (tmp_path / "src" / "linux" / "Makefile").write_text(MAKEFILE.replace("$(SLOW)", str(tmp_path / "slow")))
    (tmp_path / "kernel").mkdir()
    shutil.copy(TOP / "guest" / "kernel" / "build", tmp_path / "kernel")
    (tmp_path / "kernel" / "guest.config").write_text("CONFIG_A=y\nCONFIG_B=n\n")
    with tarfile.open(tmp_path / "source.tar.xz", "w:xz") as t:
        t.add(tmp_path / "src" / "linux", "linux")

    class Kernel:
        folder, source, fragment, cache = tmp_path, tmp_path / "source.tar.xz", tmp_path / "kernel" / "guest.config", tmp_path / "cache"

        def start(self):
            env = os.environ | {"MAYFLY_CACHE": str(self.cache), "MAYFLY_KERNEL_SOURCE": str(self.source)}
            env = {k: v for k, v in env.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
            return subprocess.Popen([tmp_path / "kernel" / "build", "guest"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                                    start_new_session=True)

        def build(self):
            p = self.start()
            out, err = p.communicate(timeout=100)
            return subprocess.CompletedProcess(p.args, p.returncode, out, err)

    return Kernel()


def test_kernel_source_missing_or_half(kernel):
    whole = kernel.source.read_bytes()
    kernel.source.unlink()
    said(kernel.build(), "source.tar.xz is missing: make deps")
    kernel.source.write_bytes(whole[:len(whole) // 2])
    said(kernel.build(), "cannot unpack", "--reinstall")
    kernel.source.write_bytes(whole)
    r = kernel.build()
    assert r.returncode == 0 and (kernel.cache / "guest-vmlinux").stat().st_size > 0, r.stderr
    assert "building" not in kernel.build().stdout, "it was built already"


def test_kernel_cache_is_never_stale(kernel):
    """Another fragment is another kernel; an option that the configuration drops is named; the one of before is still there."""
    assert kernel.build().returncode == 0
    first = (kernel.cache / "guest-vmlinux").resolve()
    before = kernel.fragment.read_text()
    kernel.fragment.write_text(before + "CONFIG_LOST=y\n")
    r = kernel.build()
    assert r.returncode != 0 and "'CONFIG_LOST=y' did not hold" in r.stderr
    assert (kernel.cache / "guest-vmlinux").resolve() == first
    kernel.fragment.write_text(before + "CONFIG_C=y\n")
    assert "building" in kernel.build().stdout and (kernel.cache / "guest-vmlinux").resolve() != first
    kernel.fragment.write_text(before)
    assert "building" not in kernel.build().stdout and (kernel.cache / "guest-vmlinux").resolve() == first


def test_kernel_build_killed(kernel):
    """In the middle of it: nothing of it is used, and the next one is whole."""
    (kernel.folder / "slow").mkdir()
    p = kernel.start()
    for line in p.stdout:
        if "building" in line:
            break
    end = subprocess.run(["timeout", "60", "sh", "-c", 'until [ -e "$1" ]; do sleep 0.02; done', "_", kernel.folder / "slow" / "begun"])
    assert end.returncode == 0
    os.killpg(p.pid, 9)
    p.communicate()
    assert not (kernel.cache / "guest-vmlinux").exists() and not list((kernel.cache / "kernel").glob("guest-*"))
    shutil.rmtree(kernel.folder / "slow")
    assert kernel.build().returncode == 0 and (kernel.cache / "guest-vmlinux").exists()
