# SPDX-License-Identifier: Apache-2.0
"""A host with usable KVM: a Debian system with systemd as its first process, in namespaces of the appliance, where KVM is usable.

The package is installed there, serves, is upgraded with a sandbox running, and is removed. E2E_PACKAGE=FILE.deb with E2E_PACKAGE_ROOT=FILE.tar tries a package of another release.
"""
import json
import os
import pathlib
import subprocess
import time

import pytest
from conftest import TOP

WAIT_S = 90
ROOT = "/var/lib/mayfly/host"
# The first process joins a cgroup of its own, so that no process of another namespace is in the group which it sees as the root.
BOOT = r"""
exec unshare --pid --fork sh -c '
mkdir -p /sys/fs/cgroup/host && echo 0 >/sys/fs/cgroup/host/cgroup.procs
exec unshare --mount --cgroup --uts --ipc sh -c "
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
            assert time.monotonic() < end, otherwise + "\n" + self.machine.run("tail", "-n", "20", "/run/host.log").stdout
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
