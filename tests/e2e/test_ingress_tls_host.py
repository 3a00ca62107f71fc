# SPDX-License-Identifier: Apache-2.0
"""TLS in front of the ingress gateway, by docs/examples/haproxy.cfg as it is documented: a real HAProxy, real certificates, WebSockets over TLS, a new certificate without an interruption."""
import asyncio
import contextlib
import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
import time

import pytest
import websockets.asyncio.client as wsclient
import websockets.asyncio.server as wsserver

from conftest import TOP
from test_ingress_host import App, daemon, free_port, seen  # noqa: F401 (a fixture)

WAIT_S = 60


def certificate(folder, name):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=DNS:*.box.example", "-keyout", folder / "key", "-out", folder / "crt"], check=True, capture_output=True)
    return (folder / "crt").read_text() + (folder / "key").read_text()


@pytest.fixture
def proxied(daemon, tmp_path):
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin")
    if not program:
        pytest.skip("no haproxy on this host (Debian: haproxy)")
    daemon.gateway("wildcard", {"behind_proxy": True, "max_connections_per_address": 0})
    tls, pem, cfg = free_port(), tmp_path / "box.pem", tmp_path / "haproxy.cfg"
    pem.write_text(certificate(tmp_path, "first"))
    text = (TOP / "docs" / "examples" / "haproxy.cfg").read_text()
    for a, b in ((":443 ", f"127.0.0.1:{tls} "), ("/etc/haproxy/box.example.org.pem", str(pem)), ("127.0.0.1:8090", f"127.0.0.1:{daemon.gate}")):
        assert a in text
        text = text.replace(a, b)
    cfg.write_text(text)
    p = subprocess.Popen([program, "-W", "-db", "-f", cfg], stderr=subprocess.PIPE)
    end = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", tls)):
            break
        assert p.poll() is None and time.monotonic() < end, p.stderr.read()
        time.sleep(0.02)
    yield tls, pem, p
    p.terminate()
    p.wait()


def context(pem):
    c = ssl.create_default_context(cafile=pem)
    c.verify_flags &= ~ssl.VERIFY_X509_STRICT if hasattr(ssl, "VERIFY_X509_STRICT") else ~0
    return c


def connect(tls, ctx, name):
    return ctx.wrap_socket(socket.create_connection(("127.0.0.1", tls), timeout=WAIT_S), server_hostname=name)


def test_https_and_a_new_certificate(daemon, proxied, tmp_path):
    tls, pem, haproxy = proxied
    app = App()
    box = daemon.box(True)
    host = daemon.label(box, app.port).split(":")[0]
    token = daemon.endpoint(box, app.port)[1]["headers"]["OpenSandbox-Secure-Access"]
    old = context(pem)

    def get(ctx, headers):
        s = connect(tls, ctx, host)
        c = http.client.HTTPConnection(host)
        c.sock = s
        c.request("GET", "/a", headers=headers)
        r = c.getresponse()
        return r.status, r.read().decode()
    assert get(old, {})[0] == 401
    status, text = get(old, {"OpenSandbox-Secure-Access": token, "X-Forwarded-For": "6.6.6.6", "X-Forwarded-Proto": "http"})
    got = seen(text)["headers"]
    assert status == 200 and (got["x-forwarded-proto"], got["x-forwarded-for"], got["host"]) == ("https", "127.0.0.1", host), got

    async def go():
        async def echo(ws):
            async for m in ws:
                await ws.send(m)
        async with wsserver.serve(echo, "127.0.0.1", 0) as s:
            name = daemon.label(box, s.sockets[0].getsockname()[1]).split(":")[0]
            async with wsclient.connect(f"wss://{name}/", ssl=old, host="127.0.0.1", port=tls, additional_headers={"OpenSandbox-Secure-Access": token}) as ws:
                await ws.send(b"x" * 1_000_000)
                assert await ws.recv() == b"x" * 1_000_000
                pem.write_text(certificate(tmp_path, "second"))
                haproxy.send_signal(signal.SIGUSR2)
                new = context(pem)
                end = time.monotonic() + WAIT_S
                while True:
                    with contextlib.suppress(OSError), connect(tls, new, host):
                        break
                    assert time.monotonic() < end
                    await asyncio.sleep(0.05)
                await ws.send("still there")
                assert await ws.recv() == "still there"
    asyncio.run(asyncio.wait_for(go(), 3 * WAIT_S))
    app.shutdown()
    assert json.loads(text)["path"] == "/a"


def test_another_upgrade_with_a_half_close(daemon, proxied):
    """Plain TCP below the TLS of a client that cannot close one half: the bytes of an upgrade other than WebSocket pass both ways."""
    tls, pem, _ = proxied
    box = daemon.box()
    listener = socket.create_server(("127.0.0.1", 0))
    host = daemon.label(box, listener.getsockname()[1]).split(":")[0]
    s = connect(tls, context(pem), host)
    s.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: mine\r\n\r\n".encode())
    c, _ = listener.accept()
    c.settimeout(WAIT_S)
    while b"\r\n\r\n" not in c.recv(65536):
        pass
    c.sendall(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: mine\r\n\r\n")
    got = b""
    while b"\r\n\r\n" not in got:
        got += s.recv(1000)
    assert got.startswith(b"HTTP/1.1 101 ")
    s.sendall(b"up")
    assert c.recv(10) == b"up"
    c.sendall(b"down")
    assert s.recv(10) == b"down"
    s.close()
    c.close()
    listener.close()
