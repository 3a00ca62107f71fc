# SPDX-License-Identifier: Apache-2.0
"""What this host may lack: a tool, a package, room, a registry, a whole source, root. One line says what is wrong and what to do, and a second
try works. Nothing here starts an appliance; the kernel's build is tried on a source that builds in no time."""
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest

from conftest import CACHE, MAYFLY, TOP

MACHINE = ("start", "--name", "bad", "--port", "0", "--memory", "512M")
NEEDED = ("bash", "sh", "sed", "awk", "grep", "cat", "env", "df", "dirname", "sort", "cut", "mke2fs", "tar", "ldd", "sha256sum", "dpkg-query", "mkfs.xfs",
          "qemu-system-x86_64", "stat", "find", "tr", "realpath", "gcc")


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
    """Nothing else is to be found, not where `mayfly` looks beyond its PATH either."""
    (tmp_path / "bin").mkdir()
    for t in NEEDED:
        if t != tool:
            there = pathlib.Path(shutil.which(t, path="/usr/bin:/usr/sbin:/sbin:" + os.environ["PATH"]))
            if there.resolve().parent.name == "sbin":
                shutil.copy(there, tmp_path / "bin")
            else:
                (tmp_path / "bin" / t).symlink_to(there)
    (tmp_path / "bin" / "mayfly").write_text(f'#!/bin/sh\nPATH={tmp_path}/bin exec {MAYFLY} "$@"\n')
    (tmp_path / "bin" / "mayfly").chmod(0o755)
    r = small_disk(pathlib.Path("/usr/sbin"), 64, [tmp_path / "bin" / "mayfly", "machine", *MACHINE], {"XDG_STATE_HOME": str(tmp_path / "state")})
    # the script that makes the root says it, then who called it
    assert r.returncode != 0 and len(r.stderr.strip().splitlines()) <= 2 and all(w in r.stderr for w in words), r.stderr


def test_no_kernel(tmp_path):
    env = {"MAYFLY_CACHE": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    said(start(env), "appliance-vmlinux is not there", "make kernel")
    whole = (CACHE / "appliance-vmlinux").read_bytes()
    for cut in (0, 30, len(whole) // 2, len(whole) - 1):
        (tmp_path / "appliance-vmlinux").write_bytes(whole[:cut])
        said(start(env), "appliance-vmlinux is not a whole kernel", "make kernel")


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

    def deps(names, *sets):
        (tmp_path / "deps.list").write_text(names)
        return subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", tmp_path / ".ci" / "deps", *sets], capture_output=True, text=True)
    said(deps("coreutils # there\nno-such-package # what for\n"), "missing: no-such-package", "as root")
    assert deps("coreutils\n").returncode == 0
    # one of two names is enough; a set that is not wanted is not looked at
    assert deps("[run]\nno-such-package | coreutils\n").returncode == 0
    assert deps("[run]\ncoreutils\n[test]\nno-such-package\n", "run").returncode == 0
    said(deps("[run]\ncoreutils\n[test]\nno-such-package | neither\n", "run", "test"), "missing: no-such-package | neither", "as root")
    said(deps("[run]\ncoreutils\n", "rum"), "no set rum")


def test_packages_for_tests_start_no_service_and_remove_nothing(tmp_path):
    """make test installs a registry, sshd and a proxy for their programs."""
    if os.geteuid() != 0:
        pytest.skip("packages are for root to install")
    (tmp_path / ".ci").mkdir()
    (tmp_path / "fake").mkdir()
    shutil.copy(TOP / ".ci" / "deps", tmp_path / ".ci")
    (tmp_path / "deps.list").write_text("[test]\nsome-registry # a server\n")
    policy = pathlib.Path("/usr/sbin/policy-rc.d")
    for name, does in {"dpkg-query": "echo installed coreutils", "apt-cache": "echo '  Candidate: 1'", "dpkg": "echo /usr/lib/systemd/system/some-registry.service",
                       "apt-get": f'[ "$1" = --assume-no ] || {{ echo "apt-get $*"; {policy}; echo "policy $?"; }} >>{tmp_path}/asked', "systemctl": f'echo "systemctl $*" >>{tmp_path}/asked'}.items():
        (tmp_path / "fake" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "fake" / name).chmod(0o755)
    before = policy.exists()
    r = subprocess.run([tmp_path / ".ci" / "deps", "test"], capture_output=True, text=True, env=os.environ | {"PATH": f"{tmp_path}/fake:{os.environ['PATH']}"}, timeout=60)
    assert r.returncode == 0 and r.stdout.endswith("these services stay off: some-registry.service \n"), r
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 3 and "--no-remove" in asked[0] and asked[0].endswith("install some-registry") and asked[1] == "policy 101", asked
    assert asked[2] == "systemctl --quiet disable some-registry.service" and policy.exists() == before


VENV = pathlib.Path(sys.executable).parent.parent
NOWHERE = "http://127.0.0.1:9/"
MAVEN_NOWHERE = f"<settings><mirrors><mirror><id>none</id><mirrorOf>*</mirrorOf><url>{NOWHERE}</url></mirror></mirrors></settings>"


@pytest.mark.parametrize("have, env, words", [
    ((), {"PIP_INDEX_URL": NOWHERE, "PIP_RETRIES": "0", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}, ("requirements.txt", "a package index reachable?")),
    (("venv",), {"npm_config_registry": NOWHERE, "npm_config_cache": "HERE", "npm_config_fetch_retries": "0"}, ("package.json", "a package registry reachable?")),
    (("venv", "node"), {"MAVEN_OPTS": "-Duser.home=HERE"}, ("pom.xml", "a Maven repository reachable?"))], ids=("pip", "npm", "maven"))
def test_no_package_registry(tmp_path, have, env, words):
    """The tests' own environment: said once, and nothing half-made is taken for whole."""
    (tmp_path / "e2e").mkdir()
    for name in have:
        whole = VENV if name == "venv" else (VENV / name).resolve()
        (tmp_path / "e2e" / whole.name).mkdir()
        (tmp_path / "e2e" / whole.name / ".ok").touch()
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(MAVEN_NOWHERE)
    env = {k: v.replace("HERE", str(tmp_path)) for k, v in env.items()} | {"MAYFLY_CACHE": str(tmp_path)}
    r = subprocess.run([TOP / "tests" / "e2e" / "venv"], capture_output=True, text=True, env=os.environ | env, timeout=300)
    lines = r.stderr.strip().splitlines()
    assert r.returncode != 0 and len(lines) == 2 and all(w in lines[1] for w in words), r.stderr  # what it does, and why it could not
    assert len(list(tmp_path.rglob(".ok"))) == len(have), "only what is whole says so"
    assert pathlib.Path(lines[1].split()[-1]).stat().st_size > 0


def test_no_package_mirror(tmp_path):
    """An image of ours is made of packages."""
    (tmp_path / "apt").mkdir()
    (tmp_path / "apt" / "nowhere.list").write_text(f"deb {NOWHERE} bookworm main\n")
    nowhere = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-m", "sh", "-c",
               'mount --bind "$1" /etc/apt/sources.list.d && { [ ! -e /etc/apt/sources.list ] || mount --bind /dev/null /etc/apt/sources.list; } && shift && "$@"',
               "_", tmp_path / "apt"]
    build = [TOP / "images" / "recipes" / "build", "tiny"]
    r = subprocess.run(nowhere + build, capture_output=True, text=True, env=os.environ | {"MAYFLY_CACHE": str(tmp_path)}, timeout=100)
    said(r, "tiny cannot be had: is a package mirror reachable?", str(tmp_path / "images" / "log"))
    assert not list((tmp_path / "images").glob(".tmp-*")) and (tmp_path / "images" / "log").stat().st_size > 0
    disk = tmp_path / "disk"
    said(small_disk(disk, 20480, build, {"MAYFLY_CACHE": str(disk)}), "MiB free, an image needs", "MAYFLY_CACHE")


def test_no_compiler_or_header(tmp_path):
    """Before the first file is compiled."""
    tools = [TOP / ".ci" / "tools", "ar"]
    assert subprocess.run(tools, env=os.environ | {"CC": "gcc -m64"}).returncode == 0
    said(subprocess.run([*tools, "no-such-gcc"], capture_output=True, text=True, env=os.environ | {"CC": "no-such-cc"}), "no-such-cc no-such-gcc", "make deps")
    said(small_disk(pathlib.Path("/usr/include/cjson"), 64, tools, {"CC": "gcc"}), "cjson/cJSON.h", "make deps")
    r = subprocess.run(["make", "-s", "-C", TOP, "tools", "MUSL_CC=no-such-gcc"], capture_output=True, text=True)
    assert r.returncode != 0 and r.stderr.splitlines()[0] == "make: missing no-such-gcc: run make deps as root", r.stderr


@pytest.fixture
def lying_df(tmp_path):
    """A PATH with a df that tells of much room the first time: the disk fills up after the look at it."""
    (tmp_path / "lying").mkdir()
    df = tmp_path / "lying" / "df"
    df.write_text(f'#!/bin/sh\n[ -e {tmp_path}/lied ] && exec {shutil.which("df")} "$@"\n: > {tmp_path}/lied; echo; echo "x 1 1 99999999 1% /"\n')
    df.chmod(0o755)
    return {"PATH": f"{df.parent}:{os.environ['PATH']}"}


def test_disk_fills_while_the_root_is_made(tmp_path, lying_df):
    disk = tmp_path / "disk"
    command = [TOP / "guest" / "appliance" / "mkroot", TOP / "build" / "bin" / "mayfly-machine-init"]
    said(small_disk(disk, 20480, command, lying_df | {"MAYFLY_CACHE": str(disk)}), "is full", "MAYFLY_CACHE")


def test_root_image_that_was_cut(tmp_path):
    shutil.copy(TOP / "guest" / "appliance" / "mkroot", tmp_path)
    (tmp_path / "root.list").write_text("mawk\n")

    def make():
        r = subprocess.run([tmp_path / "mkroot", "/bin/true"], capture_output=True, text=True, env=os.environ | {"MAYFLY_CACHE": str(tmp_path)})
        assert r.returncode == 0, r.stderr
        return pathlib.Path(r.stdout.strip())
    image = make()
    size, made = image.stat().st_size, image.stat().st_ino
    assert make().stat().st_ino == made, "it was there already"
    os.truncate(image, size // 2)
    assert make() == image and image.stat().st_size == size and image.stat().st_ino != made


MAKEFILE = """\
allnoconfig:
	mkdir -p $(O); grep -v -e LOST -e =n $(KCONFIG_ALLCONFIG) > $(O)/.config
vmlinux:
	cp /bin/true $(O)/vmlinux; [ ! -e $(FULL) ] || cat /dev/zero > $(O)/fill; [ ! -e $(SLOW) ] || { touch $(SLOW)/begun; sleep 60; }
"""


@pytest.fixture
def kernel(tmp_path):
    """build(...) of guest/kernel with a source and a cache of this test's own."""
    (tmp_path / "src" / "linux").mkdir(parents=True)
    (tmp_path / "src" / "linux" / "Makefile").write_text(MAKEFILE.replace("$(SLOW)", str(tmp_path / "slow")).replace("$(FULL)", str(tmp_path / "full")))
    (tmp_path / "kernel").mkdir()
    shutil.copy(TOP / "guest" / "kernel" / "build", tmp_path / "kernel")
    (tmp_path / "kernel" / "guest.config").write_text("CONFIG_A=y\nCONFIG_B=n\n")
    with tarfile.open(tmp_path / "source.tar.xz", "w:xz") as t:
        t.add(tmp_path / "src" / "linux", "linux")

    class Kernel:
        folder, source, fragment, cache = tmp_path, tmp_path / "source.tar.xz", tmp_path / "kernel" / "guest.config", tmp_path / "cache"

        command = [tmp_path / "kernel" / "build", "guest"]
        env = {"MAYFLY_CACHE": str(cache), "MAYFLY_KERNEL_SOURCE": str(source), "MAKEFLAGS": "", "MFLAGS": ""}

        def start(self):
            return subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | self.env, start_new_session=True)

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


def test_kernel_that_is_unknown_or_has_no_source(kernel):
    """A release of the distribution without that source package is known by the exit code, so that a test can be skipped for it."""
    kernel.command = [kernel.command[0], "appliance-2.0"]
    r = kernel.build()
    assert r.returncode == 3 and "no source of version 2.0 in /usr/src" in r.stderr, r.stderr
    kernel.command = [kernel.command[0], "nosuch"]
    said(kernel.build(), "no kernel named 'nosuch'")


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


def test_disk_fills_while_a_kernel_is_built(kernel, lying_df):
    (kernel.folder / "full").touch()
    said(small_disk(kernel.cache, 20480, kernel.command, kernel.env | lying_df), "is full", "make room, or set MAYFLY_CACHE")


def test_kernel_in_the_cache_was_cut(kernel):
    assert kernel.build().returncode == 0
    vmlinux = kernel.cache / "guest-vmlinux"
    size = vmlinux.stat().st_size
    os.truncate(vmlinux.resolve(), size // 2)
    assert "building" in kernel.build().stdout and vmlinux.stat().st_size == size
