# SPDX-License-Identifier: Apache-2.0
"""What people type first: pip, apt, git and npm in sandboxes of our images; against servers on this host always, and against the real places where this
host itself reaches them (by its own configuration of pip, npm and apt)."""
import ipaddress
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess

import pytest

import netservers
from conftest import MAYFLY
from netservers import DOMAIN, GUEST_SEES, NAME

BUNDLE = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")


def ask(*cmd, **kw):
    """A program of this host's; None: it is not there, or fails."""
    try:
        r = subprocess.run(cmd, capture_output=True, text=True, timeout=40, **kw)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return r.stdout.strip() if r.returncode == 0 else None


def host_of(url):
    return re.sub(r"^[a-z+]+://([^@/]*@)?([^/:]+).*", r"\2", url or "")


class Real:
    """What this host reaches, with its own settings. None where it does not."""

    def __init__(self, tmp):
        pip = os.environ.get("PIP_INDEX_URL") or ask("pip", "config", "get", "global.index-url")
        self.pip_index = pip
        # -v says where it looked, which is the program's own default if nothing is configured
        try:
            looked = subprocess.run(["pip", "-v", "download", "-q", "--retries", "0", "--timeout", "15", "--no-cache-dir", "--no-deps", "-d", tmp, "six"],
                                    capture_output=True, text=True, timeout=60) if shutil.which("pip") else None
        except subprocess.TimeoutExpired:
            looked = None
        self.pip = bool(looked and looked.returncode == 0)
        text = ask("npm", "view", "semver@7.7.1", "repository.url", "dist.tarball", "--json") if shutil.which("npm") else None
        answer = json.loads(text) if text else {}
        answer = answer[-1] if isinstance(answer, list) else answer
        self.npm = ask("npm", "config", "get", "registry") if answer else None
        self.git = None
        url = re.sub(r"^git\+", "", answer.get("repository.url") or "")
        if url and ask("git", "ls-remote", url, "HEAD"):
            self.git = url
        self.apt = self._apt()
        hosts = {host_of(u) for u in (pip, self.npm, self.git, answer.get("dist.tarball"), (self.apt or "").split(" ")[0]) if u}
        if looked:
            hosts |= {host_of(u) for u in re.findall(r"https?://[^\s'\"]+", looked.stdout + looked.stderr)}
        # a resolver that answers with reserved addresses: those are opened for the test
        self.reserved = sorted({a for h in hosts if h for a in addresses(h) if not ipaddress.ip_address(a).is_global})

    @staticmethod
    def _apt():
        """The smallest suite of this host's sources: "URL SUITE"."""
        out = ask("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)") or ""
        for line in sorted(set(out.splitlines())):
            site, suite, component = (line.split(" ") + ["", ""])[:3]
            if suite.endswith("-updates") and component == "main" and ask("curl", "-fsI", "-m", "20", f"{site}/dists/{suite}/Release"):
                return f"{site} {suite}"
        return None


def addresses(host):
    try:
        return {a[4][0] for a in socket.getaddrinfo(host, 443, socket.AF_INET, socket.SOCK_STREAM)}
    except OSError:
        return set()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    for program in ("git", "openssl", "dpkg-deb"):
        if not shutil.which(program):
            pytest.skip(f"{program} is missing: make deps")
    s = netservers.Servers(tmp_path_factory.mktemp("servers"))
    yield s
    s.close()


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return Real(tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def env(daemon, servers, real):
    more = daemon.config_more
    daemon.put_images("python", "node")
    daemon.restart(more + f'\n[network]\nallow = "{" ".join([GUEST_SEES, *real.reserved])}"\nresolvers = "{GUEST_SEES}:{servers.dns}"\n')
    yield os.environ | {"OPEN_SANDBOX_DOMAIN": daemon.domain, "OPEN_SANDBOX_API_KEY": daemon.api_key}
    daemon.restart(more)


class Box:
    def __init__(self, env, image, bundle):
        self.env = env
        self.id = self.cli("create", "--memory", "1Gi", image).strip()
        subprocess.run([MAYFLY, "cp", "-", f"{self.id}:/etc/ssl/certs/ca-certificates.crt"], input=bundle, env=env, check=True, timeout=60)

    def cli(self, *args):
        r = subprocess.run([MAYFLY, *args], env=self.env, capture_output=True, text=True, timeout=240)
        assert r.returncode == 0, f"{args}: {r.stdout}\n{r.stderr}"
        return r.stdout

    def sh(self, script):
        return self.cli("exec", self.id, "--", "sh", "-ec", script)


@pytest.fixture(scope="module")
def boxes(env, servers):
    """image -> sandbox, with this host's authorities and the test's."""
    bundle = (BUNDLE.read_bytes() if BUNDLE.exists() else b"") + servers.ca.read_bytes()
    made = {}

    def get(image):
        if image not in made:
            made[image] = Box(env, image, bundle)
        return made[image]

    yield get
    for b in made.values():
        b.cli("rm", b.id)


def test_pip(boxes, servers):
    box = boxes("python")
    out = box.sh(f"pip install -q --no-cache-dir --root-user-action=ignore --index-url https://pypi.{DOMAIN}:{servers.https}/simple/ {NAME}; "
                 "python -c 'import hello_mayfly; print(hello_mayfly.greet())'")
    assert out == "hello from a wheel\n"
    assert ("https", f"pypi.{DOMAIN}:{servers.https}", "/files/hello_mayfly-1.0-py3-none-any.whl") in servers.hits


def test_git(boxes, servers):
    out = boxes("python").sh(f"cd /tmp; git clone -q http://git.{DOMAIN}:{servers.http}/repo.git a; git clone -q https://git.{DOMAIN}:{servers.https}/repo.git b; cat a/greeting b/greeting")
    assert out == "hello from git\n" * 2


def test_apt(boxes, servers):
    """From the repository's index to a file of the package, over plain HTTP and TLS."""
    box = boxes("python")
    for scheme, port in (("http", servers.http), ("https", servers.https)):
        out = box.sh(f"echo 'deb [trusted=yes] {scheme}://apt.{DOMAIN}:{port}/debian ./' > /etc/apt/sources.list; apt-get update -qq; "
                     f"apt-get install -qq -y {NAME} >/dev/null 2>&1; cat /usr/share/hello-mayfly/greeting; dpkg -P {NAME} >/dev/null; apt-get clean")
        assert out == "hello from a deb\n"


def test_npm(boxes, servers):
    box = boxes("node")
    out = box.sh(f"mkdir -p /tmp/n; cd /tmp/n; npm install --no-audit --no-fund --no-update-notifier --silent --cafile /etc/ssl/certs/ca-certificates.crt "
                 f"--registry https://npm.{DOMAIN}:{servers.https}/npm/ {NAME} >/dev/null; node -e \"console.log(require('{NAME}')())\"")
    assert out == "hello from npm\n"


INSIDE = """
import errno, json, socket, sys, urllib.request
def tcp(addr, port):
    try:
        socket.create_connection((addr, port), 8).close()
        return "open"
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))
def get(url):
    try:
        return urllib.request.urlopen(url, timeout=20).read(100).decode()
    except OSError as e:
        return str(e)
print(json.dumps([globals()[f](*a) for f, *a in json.loads(sys.argv[1])]))
"""


def test_what_is_closed_stays_closed_from_inside(boxes, env, servers, daemon, machine):
    """The daemon's own API, the appliance's loopback, its metadata address and another sandbox: by name, by address, by IPv6-mapped address, by redirect,
    by a name whose answer changes. The same requests to an open place succeed."""
    own = '10.0.2.15'
    assert own in machine.run('ip', '-4', '-o', 'addr').stdout
    other = Box(env, "python", servers.ca.read_bytes())
    other.sh("setsid python3 -m http.server 9000 >/dev/null 2>&1 </dev/null & sleep 1")
    closed = [(own, 8080), ("127.0.0.1", 8080), ("169.254.169.254", 80), ("10.0.2.3", 80), ("192.0.2.1", 80)]
    asks = []
    for i, (addr, port) in enumerate(closed):
        servers.answers[f"n{i}.closed.example"] = [addr]
        # the first answer is an open place, every later one is not
        servers.answers[f"turn{i}.closed.example"] = [GUEST_SEES, addr]
        servers.redirects[f"/to/{i}"] = f"http://{addr}:{port}/health"
        servers.redirects[f"/again/{i}"] = f"http://turn{i}.closed.example:{port}/health"
        asks += [("tcp", addr, port), ("tcp", f"::ffff:{addr}", port), ("tcp", f"64:ff9b::{addr}", port), ("get", f"http://n{i}.closed.example:{port}/health"),
                 ("get", f"http://web.{DOMAIN}:{servers.http}/to/{i}"), ("get", f"http://turn{i}.closed.example:{servers.http}/again/{i}")]
    asks = [a for a in asks if a[1] not in ("127.0.0.1", "::ffff:127.0.0.1")]  # its own loopback is the guest's own affair
    asks += [("tcp", "192.0.2.2", 9000), ("tcp", "fd6d:666e::2", 9000)]  # the other sandbox has this address, and so has this one
    asks.append(("get", f"http://web.{DOMAIN}:{servers.http}/bytes/5"))
    before = len(servers.hits)
    box = boxes("python")
    subprocess.run([MAYFLY, "cp", "-", f"{box.id}:/tmp/inside.py"], input=INSIDE.encode(), env=env, check=True, timeout=60)
    out = json.loads(box.cli("exec", box.id, "--", "python3", "/tmp/inside.py", json.dumps(asks)))
    for ask_, answer in zip(asks[:-1], out[:-1]):
        assert answer != "open" and "status" not in answer and "healthy" not in answer and "<" in answer or answer.isupper(), (ask_, answer)
    assert out[-1] == "xxxxx"
    # the redirects were followed: the server saw the requests that led to them
    paths = {h[2] for h in servers.hits[before:]}
    assert all(f"/to/{i}" in paths and f"/again/{i}" in paths for i in range(len(closed)) if closed[i][0] != "127.0.0.1")
    seen = json.loads(box.cli("egress", "show", "--json", box.id))["seen"]
    assert seen["counters"]["rebinding"] > 0 and any(own in d["destination"] for d in seen["denied"])
    other.cli("rm", other.id)


def test_a_policy_by_sdk_over_tls(env, servers, daemon):
    """Created with a policy by the Python SDK: the allowed name's TLS server answers, another name does not exist; patch and delete take effect."""
    import datetime

    from opensandbox import SandboxSync
    from opensandbox.config import ConnectionConfigSync
    from opensandbox.models.sandboxes import NetworkPolicy, NetworkRule

    config = ConnectionConfigSync(domain=daemon.domain, api_key=daemon.api_key, request_timeout=datetime.timedelta(seconds=120))
    good = f"good.{DOMAIN}"
    box = SandboxSync.create("python", connection_config=config, timeout=datetime.timedelta(minutes=10), resource={"cpu": "1", "memory": "512Mi"},
                             network_policy=NetworkPolicy(egress=[NetworkRule(action="allow", target=good)]))
    try:
        box.files.write_file("/tmp/ca.pem", servers.ca.read_text())

        def fetch(name):
            code = f"import ssl, urllib.request as u; print(len(u.urlopen('https://{name}:{servers.https}/bytes/777', context=ssl.create_default_context(cafile='/tmp/ca.pem'), timeout=20).read()))"
            return "".join(m.text for m in box.commands.run(f'python3 -c "{code}" 2>&1 | tail -1').logs.stdout)

        assert fetch(good).strip() == "777"
        assert "Name or service not known" in fetch(f"other.{DOMAIN}")
        box.patch_egress_rules([NetworkRule(action="allow", target=f"other.{DOMAIN}")])
        assert fetch(f"other.{DOMAIN}").strip() == "777"
        box.delete_egress_rules([f"other.{DOMAIN}"])
        assert "Name or service not known" in fetch(f"other.{DOMAIN}")
        assert [r.target for r in box.get_egress_policy().egress] == [good]
    finally:
        box.kill()
        box.close()


@pytest.mark.parametrize("place", ["pip's index", "a git server", "apt's mirror", "npm's registry"])
def test_a_real_place(boxes, real, place):
    if place == "pip's index" and real.pip:
        index = f"--index-url {real.pip_index} " if real.pip_index else ""
        assert boxes("python").sh(f"pip install -q --no-cache-dir --root-user-action=ignore {index}six; python -c 'import six; print(six.__name__)'") == "six\n"
    elif place == "a git server" and real.git:
        assert re.match(r"[0-9a-f]{40}\sHEAD", boxes("python").sh(f"git ls-remote {real.git} HEAD"))
    elif place == "apt's mirror" and real.apt:
        site, suite = real.apt.split(" ")
        assert "Release" in boxes("python").sh(f"echo 'deb {site} {suite} main' > /etc/apt/sources.list; apt-get update -qq; ls /var/lib/apt/lists")
    elif place == "npm's registry" and real.npm:
        out = boxes("node").sh(f"mkdir -p /tmp/r; cd /tmp/r; npm install --no-audit --no-fund --no-update-notifier --silent --cafile /etc/ssl/certs/ca-certificates.crt "
                               f"--registry {real.npm} semver@7.7.1 >/dev/null; node -e \"console.log(require('semver').valid('1.2.3'))\"")
        assert out == "1.2.3\n"
    else:
        pytest.skip(f"this host does not reach {place}")
