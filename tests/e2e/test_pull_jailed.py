# SPDX-License-Identifier: Apache-2.0
"""A pull as the daemon makes it: a jailed job with network that finds its registry by name and believes it by its certificate. Registry here,
name server (one name) and the certificate that is believed in the appliance, for as long as the test runs."""
import subprocess
import time

import pytest

from conftest import TOP
from registrykit import Registry
from test_lifecycle import call, run, until

NAME = "registry.mayfly.test"
# answers A questions for NAME with the host as seen from inside (10.0.2.2), others with "no such thing"; ends when its input does
NAME_SERVER = """
import socket, sys, threading
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 53))
def serve():
    while True:
        q, who = s.recvfrom(512)
        at, words = 12, []
        while q[at]:
            words.append(q[at + 1:at + 1 + q[at]].decode())
            at += 1 + q[at]
        kind, question = q[at + 1:at + 3], q[12:at + 5]
        known = ".".join(words).lower() == sys.argv[1]
        a = kind == b"\\0\\1" and known
        s.sendto(q[:2] + (b"\\x81\\x80" if known else b"\\x81\\x83") + b"\\0\\1\\0" + (b"\\1" if a else b"\\0") + b"\\0\\0\\0\\0" + question +
                 (b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4\\x0a\\0\\2\\2" if a else b""), who)
threading.Thread(target=serve, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""
FILES = {"/etc/resolv.conf": "nameserver 127.0.0.1\n", "/etc/ssl/certs/ca-certificates.crt": None}


@pytest.fixture
def registry(machine, tmp_path):
    r = Registry(tmp_path / "registry", tls_name=NAME)
    for path in FILES:
        machine.run("sh", "-c", 'if [ -e "$1" ]; then mv "$1" "$1.kept"; fi', "_", path, check=True)
        machine.run("dd", f"of={path}", "status=none", stdin=FILES[path] or r.cert.read_text(), check=True)
    machine.run("dd", "of=/run/names.py", "status=none", stdin=NAME_SERVER, check=True)
    names = subprocess.Popen(machine_exec(machine, "python3", "/run/names.py", NAME), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert names.stdout.readline() == "ready\n"
    yield r
    names.stdin.close()
    names.wait(timeout=30)
    for path in FILES:
        machine.run("sh", "-c", 'if [ -e "$1.kept" ]; then mv "$1.kept" "$1"; else rm "$1"; fi', "_", path)
    r.close()


@pytest.fixture
def over_tls(daemon, registry):
    port, more = registry.host.split(":")[1], daemon.config_more
    daemon.plain_http = False
    # the tables of the configuration end with [images]
    daemon.config_more = f'private_registries = "{NAME}:{port} 10.0.2.2:{port}"\n' + more
    daemon.reconfigure()
    yield daemon
    daemon.plain_http, daemon.config_more = True, more
    daemon.reconfigure()


def machine_exec(machine, *cmd):
    return [TOP / "build" / "bin" / "mayfly", "machine", "exec", "--name", machine.name, "--", *cmd]


def test_by_name_and_certificate(machine, over_tls, registry):
    daemon = over_tls
    layout = subprocess.run([TOP / "images" / "recipes" / "build", "tiny"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    subprocess.run(["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{layout}", f"docker://{registry.host}/a/tls:1"], check=True)
    image = f"{NAME}:{registry.host.split(':')[1]}/a/tls:1"
    body = {"image": {"uri": image}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "timeout": 600}
    status, sb, _ = call(daemon, "POST", "/v1/sandboxes", body)
    assert status == 202, sb
    try:
        until(daemon, sb["id"], "Running")
        assert run(daemon, sb["id"], "echo pulled").strip() == "pulled"
    finally:
        call(daemon, "DELETE", f"/v1/sandboxes/{sb['id']}")
    # the same registry by its address: its certificate is for the name
    status, e, _ = call(daemon, "POST", "/v1/sandboxes", body | {"image": {"uri": image.replace(NAME, "10.0.2.2")}})
    end = time.monotonic() + 60
    while status == 202 and e["status"]["state"] == "Pending" and time.monotonic() < end:
        time.sleep(0.3)
        e = call(daemon, "GET", f"/v1/sandboxes/{e['id']}")[1]
    assert status >= 400 or e["status"]["state"] == "Failed", e
