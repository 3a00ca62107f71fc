# SPDX-License-Identifier: Apache-2.0
"""A host with usable KVM: a Debian system with systemd as its first process, in namespaces of the appliance, where KVM is usable.

The package is installed there, serves, is upgraded with a sandbox running, and is removed. Then the tree's own scripts run there: what `make up`,
`make down` and the last step of `make quickstart` call. E2E_PACKAGE=FILE.deb with E2E_PACKAGE_ROOT=FILE.tar tries a package of another release.
"""
import json
import os
import pathlib
import subprocess
import time

import pytest
from conftest import BIN, CACHE, TOP

WAIT_S = 90
ROOT = "/var/lib/mayfly/host"
# The first process joins a cgroup of its own, so that no process of another namespace is in the group which it sees as the root. Its network
# is its own as well: port 8080 of the appliance belongs to the daemon of the other tests.
BOOT = r"""
exec unshare --pid --fork sh -c '
mkdir -p /sys/fs/cgroup/host && echo 0 >/sys/fs/cgroup/host/cgroup.procs
exec unshare --mount --cgroup --uts --ipc --net sh -c "
ip link set lo up
echo host >/proc/sys/kernel/hostname
mount --make-rprivate / && mount --bind \$1 \$1 && cd \$1
mkdir -p .old share exchange
mount -t proc proc proc; mount -t sysfs sys sys; mount -t cgroup2 cgroup sys/fs/cgroup
mount --rbind /dev dev; mount -t tmpfs run run; mount -t tmpfs tmp tmp
mount --rbind /share share; mount --rbind /exchange exchange
pivot_root . .old && umount -l .old
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=console" _ "$@"' _ "$@"
"""


class Host:
    def __init__(self, machine):
        self.machine, self.pid = machine, None

    def boot(self, tar):
        at = self.machine.publish(tar)
        self.machine.run("sh", "-c", f"rm -rf {ROOT} && mkdir -p {ROOT} && tar -C {ROOT} -xpf {at}/{pathlib.Path(tar).name} && : >{ROOT}/etc/machine-id", check=True, timeout=300)
        self.machine.run("dd", "of=/run/boot-host", "status=none", stdin=BOOT, check=True)
        self.machine.run("sh", "-c", f"setsid sh /run/boot-host {ROOT} </dev/null >/run/host.log 2>&1 &", check=True)
        self.pid = self.until(lambda: self.machine.run("pgrep", "-x", "systemd").stdout.strip(), "systemd does not start")
        self.until(lambda: self.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"), "the system does not come up")
        return self

    def end(self):
        self.machine.run("sh", "-c", f"kill -9 {self.pid}; while [ -e /proc/{self.pid} ]; do sleep 0.1; done; rm -rf {ROOT}", timeout=300)

    def until(self, question, otherwise):
        end = time.monotonic() + WAIT_S
        while True:
            answer = question()
            if answer:
                return answer
            assert time.monotonic() < end, "\n".join([otherwise, self.machine.run("tail", "-n", "20", "/run/host.log").stdout, self.journal() if self.pid else ""])
            time.sleep(0.5)

    def run(self, *cmd, check=False, env=(), user=None, **kw):
        as_user = ["setpriv", "--reuid", user[0], "--regid", user[0], "--groups", user[1]] if user else []
        r = self.machine.run("nsenter", "-t", self.pid, "-a", *as_user, "env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", *env,
                             *cmd, **kw)
        assert not check or r.returncode == 0, f"{cmd}: {r.returncode}\n{r.stdout}\n{r.stderr}\n{self.journal()}"
        return r

    def journal(self):
        return self.run("journalctl", "--no-pager", "-u", "mayfly", "-n", "30").stdout

    def running(self):
        """The names of our programs that run there."""
        out = self.run("sh", "-c", 'for p in /proc/[0-9]*; do e=$(readlink $p/exe) && echo "${e##*/}"; done; true').stdout
        return sorted(n.split()[0] for n in out.splitlines() if n.startswith("mayfly"))

    def has_files(self):
        return self.run("sh", "-c", "ls -d /etc/mayfly /var/lib/mayfly /run/mayfly* /usr/lib/mayfly /usr/bin/mayfly* /usr/share/mayfly /sys/fs/cgroup/system.slice/mayfly* "
                        "2>/dev/null; getent passwd mayfly").stdout.split()


def made(version):
    """A package of this tree, with that version."""
    r = subprocess.run(["make", "-s", "-C", TOP, "package", f"VERSION={version}"], capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stderr
    return next((TOP / "build").glob(f"mayfly_{version}+*.deb"))


def newer_one(deb, tmp):
    """The same package with a higher version: what an upgrade sees."""
    subprocess.run(["dpkg-deb", "-R", deb, tmp / "tree"], check=True)
    control = tmp / "tree" / "DEBIAN" / "control"
    control.write_text(control.read_text().replace("Version: ", "Version: 9."))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tmp / "tree", tmp / "newer.deb"], check=True, capture_output=True)
    return tmp / "newer.deb"


def image_tar(name, env=()):
    layout = subprocess.run([TOP / "images" / "recipes" / "build", name], env=os.environ | dict(env), capture_output=True, text=True, timeout=600)
    assert layout.returncode == 0, layout.stderr
    return pathlib.Path(layout.stdout.splitlines()[0])


@pytest.fixture(scope="module")
def package():
    return pathlib.Path(os.environ["E2E_PACKAGE"]) if "E2E_PACKAGE" in os.environ else made("0.1.0")


@pytest.fixture(scope="module")
def host(machine, package, tmp_path_factory):
    tmp = tmp_path_factory.mktemp("host")
    if "E2E_PACKAGE_ROOT" in os.environ:
        tar = pathlib.Path(os.environ["E2E_PACKAGE_ROOT"])
    else:
        needs = subprocess.run(["dpkg-deb", "-f", package, "Depends"], check=True, capture_output=True, text=True).stdout
        names = " ".join(d.split()[0] for d in needs.split(","))
        layout = image_tar("host", {"MAYFLY_RECIPES_IN": str(TOP / "tests" / "e2e" / "recipes"), "HOST_PACKAGES": names})
        manifest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"].split(":")[1]
        layer = json.loads((layout / "blobs" / "sha256" / manifest).read_text())["layers"][0]["digest"].split(":")[1]
        tar = tmp / "host.tar"
        with open(tar, "wb") as out:
            subprocess.run(["gzip", "-dc", layout / "blobs" / "sha256" / layer], stdout=out, check=True)
    h = Host(machine)
    layout = image_tar("base")
    base = tmp / "base.tar"
    subprocess.run(["tar", "-C", layout, "-cf", base, "."], check=True)
    h.base = machine.publish(base) + "/base.tar"
    h.boot(tar)
    yield h
    if not os.environ.get("KEEP"):
        h.end()


def test_the_package(host, package, machine, tmp_path):
    """Installed, it serves; an upgrade keeps a running sandbox; a removal ends everything and a purge leaves nothing."""
    deb, newer = machine.publish(package) + "/" + package.name, newer_one(package, tmp_path)
    host.run("dpkg", "-i", deb, check=True, timeout=300)
    assert host.run("systemctl", "is-enabled", "mayfly").stdout.strip() == "enabled"
    host.until(lambda: host.run("curl", "-fsS", "http://127.0.0.1:8080/health").returncode == 0, "the service does not answer")
    assert host.run("stat", "-c", "%a %U:%G", "/etc/mayfly/mayfly.toml", "/etc/mayfly/client.env").stdout.split() == ["640", "root:mayfly"] * 2
    host.run("mayfly", "image", "import", "--store", "/var/lib/mayfly/images", "--local", host.base, "base", check=True, timeout=300)
    host.run("chown", "-R", "mayfly:mayfly", "/var/lib/mayfly/images", check=True)
    r = host.run("mayfly", "run", "base", "--", "sh", "-c", "echo out; exit 3", timeout=300)
    assert (r.returncode, r.stdout) == (3, "out\n"), r.stderr + host.journal()

    box = host.run("mayfly", "create", "base", check=True, timeout=300).stdout.strip()
    host.run("mayfly", "exec", box, "--", "sh", "-c", "echo kept >/root/file; sleep 1000 & echo $! >/root/pid", check=True)
    key, old = host.run("cat", "/etc/mayfly/mayfly.toml").stdout, host.run("systemctl", "show", "-p", "MainPID", "mayfly").stdout
    host.run("dpkg", "-i", machine.publish(newer) + "/newer.deb", check=True, timeout=300)
    host.until(lambda: host.run("curl", "-fsS", "http://127.0.0.1:8080/health").returncode == 0, "the upgraded service does not answer")
    assert host.run("systemctl", "show", "-p", "MainPID", "mayfly").stdout != old, "the old helper runs"
    assert host.run("cat", "/etc/mayfly/mayfly.toml").stdout == key
    r = host.run("mayfly", "exec", box, "--", "sh", "-c", "cat /root/file; kill -0 $(cat /root/pid) && echo runs", timeout=120)
    assert r.stdout == "kept\nruns\n", r.stderr + host.journal()

    host.run("dpkg", "-r", "mayfly", check=True, timeout=300)
    assert host.running() == [], "processes outlive the package"
    assert "/etc/mayfly" in host.has_files() and "/usr/bin/mayfly" not in host.has_files()
    host.run("dpkg", "-P", "mayfly", check=True, timeout=300)
    assert host.has_files() == []


@pytest.fixture(scope="module")
def tree(host, machine):
    """A built tree in a folder of the host, and its cache: what `make up` has built when it calls guest/up."""
    if "E2E_PACKAGE" in os.environ:
        pytest.skip("the programs of this tree are of another release than that host")
    names = [p for d in ("guest", "images/recipes") for p in (TOP / d).rglob("*") if p.is_file()]
    tar = TOP / "build" / "tree.tar"
    subprocess.run(["tar", "-C", TOP, "-cf", tar, *[p.relative_to(TOP) for p in names], *[f"build/bin/{p.name}" for p in BIN.glob("mayfly*")],
                    "build/initramfs.cpio"], check=True)
    at = machine.publish(tar, CACHE / "guest-vmlinux")
    host.run("sh", "-c", f"mkdir -p /root/.cache/mayfly /root/one /root/two && cp {at}/guest-vmlinux /root/.cache/mayfly/ && "
             f"for t in one two; do tar -C /root/$t -xf {at}/tree.tar; done", check=True, timeout=300)
    # the image is there, as a first run builds it from packages
    host.run("sh", "-c", f"mkdir -p /var/lib/mayfly/images && /root/one/build/bin/mayfly image import --store /var/lib/mayfly/images --local {host.base} base", check=True, timeout=300)
    yield "/root/one"
    host.run("sh", "-c", "pkill -x mayfly-priv; pkill -KILL -x mayfly-vmm; rm -rf /root/one /root/two")


def test_the_tree(host, tree):
    """make up, the last step of make quickstart, make down: on this host, without the appliance."""
    assert host.run(tree + "/guest/here").returncode == 0, "KVM is usable and we are root"
    r = host.run(tree + "/guest/first", timeout=300)
    assert r.returncode == 0 and r.stdout.count("hello from Linux 6.") == 2 and "made from:" in r.stdout, r.stdout + r.stderr
    again = host.run(tree + "/guest/up", check=True, timeout=100)
    assert again.stdout == "mayfly answers at http://127.0.0.1:8080 (host)\n", "a second run starts nothing"
    box = host.run(tree + "/build/bin/mayfly", "create", "base", check=True, timeout=100).stdout.strip()
    other = host.run("/root/two/guest/up", timeout=100)
    assert other.returncode != 0 and "a daemon of another tree runs on this host (/root/one/build/bin/mayfly-priv)" in other.stderr, other.stderr
    host.run("/root/two/guest/down", check=True)
    assert box in host.run(tree + "/build/bin/mayfly", "ls", "-q", check=True).stdout, "the other tree's make down is not for this one"
    host.run(tree + "/guest/down", check=True, timeout=100)
    assert host.running() == [], "make down ends the sandboxes, too"
    host.run(tree + "/guest/down", check=True)


def test_the_port_is_in_use(host, tree):
    port = host.machine.popen("nsenter", "-t", host.pid, "-a", "/usr/bin/bash", "-c", "exec /usr/bin/systemd-socket-activate -a -l 127.0.0.1:8080 /bin/true")
    try:
        host.until(lambda: host.run("bash", "-c", ": <>/dev/tcp/127.0.0.1/8080").returncode == 0, "nobody listens")
        r = host.run(tree + "/guest/up", timeout=100)
        assert r.returncode != 0 and r.stderr == "up: port 8080 is in use by another program: PORT=N make up takes another one\n", r.stderr
        host.run(tree + "/guest/up", env=["PORT=8099"], check=True, timeout=100)
        r = host.run(tree + "/build/bin/mayfly", "run", "base", "--", "echo", "there", timeout=200)
        assert r.stdout == "there\n", r.stderr
    finally:
        port.kill()
        port.wait()
        host.run(tree + "/guest/down", timeout=100)


def test_not_root_but_in_the_group_kvm(host, tree):
    """Trying KVM and a monitor by hand take no root; sandboxes do: `make up` takes the appliance then."""
    host.run("sh", "-c", f"chgrp 104 /dev/kvm && chmod 660 /dev/kvm && chmod 711 /root && chmod -R go+rX {tree}", check=True)
    user = ("1000", "104")
    assert host.run(tree + "/build/bin/mayfly", "doctor", "kvm", user=user).returncode == 0
    assert host.run(tree + "/guest/here", user=user).returncode == 1
    r = host.run("timeout", "60", tree + "/build/bin/mayfly-vmm", "--kernel", "/root/.cache/mayfly/guest-vmlinux", "--initrd", tree + "/build/initramfs.cpio",
                 "--serial", "--cmdline", "loglevel=7", user=user, timeout=100)
    assert "Linux version" in r.stdout, r.stdout + r.stderr
    nobody = host.run(tree + "/build/bin/mayfly", "doctor", "kvm", user=("1000", "1000"))
    assert nobody.returncode != 0 and "ermission denied" in nobody.stdout + nobody.stderr, nobody.stdout + nobody.stderr
