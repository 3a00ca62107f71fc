# SPDX-License-Identifier: Apache-2.0
"""Ways into a real sandbox: what a pause, a resume, a snapshot and a killed daemon do to a terminal session; the gateway of a jailed daemon; a real VNC server in a sandbox. The rest:
test_ways_host.py, test_pty_host.py (its head names a test for each sentence about terminals)."""
import asyncio
import re
import secrets

import pytest
import websockets.asyncio.client as wsclient
import websockets.sync.client as wssync

import vnckit
from test_forward_host import dial, forward
from test_image_boot import mayfly
from test_jail import look, no_privilege
from test_lifecycle import call, create, run, until
from test_ways_clients_host import NOVNC, browser, page  # noqa: F401 (browser is a fixture)

WAIT_S = 240


async def attach(daemon, box, id, query=""):
    return await wsclient.connect(f"ws://{daemon.domain}/{box}/44772/pty/{id}/ws?{query}", open_timeout=WAIT_S, ping_interval=None)


async def meanwhile(fn, *args, **more):
    """What takes long, while the WebSockets go on: the daemon's pings want answers."""
    return await asyncio.to_thread(fn, *args, **more)


async def read(ws, pattern):
    seen = b""
    while not re.search(pattern, seen):
        m = await asyncio.wait_for(ws.recv(), WAIT_S)
        seen += m[9 if m[0] == 3 else 1:] if isinstance(m, bytes) else b""
    return seen


async def say(daemon, box, id, line):
    """Takes the session over, types a line; the WebSocket and all that it has seen until the shell's answer."""
    ws = await attach(daemon, box, id, "takeover=1")
    await ws.send(b"\0" + line.encode() + b"\n")
    return ws, await read(ws, rb"kept <" + line.encode() + rb">\r\n")


@pytest.fixture(scope="module")
def shell(daemon):
    """(sandbox, terminal session) with a shell that remembers."""
    box = create(daemon)["id"]
    status, made, _ = call(daemon, "POST", f"/{box}/44772/pty", {"command": "X=kept; while read l; do echo \"$X <$l>\"; done"})
    assert status == 201
    yield box, made["session_id"]
    call(daemon, "DELETE", f"/v1/sandboxes/{box}")


def test_a_session_survives_a_pause_and_a_killed_daemon(daemon, shell):
    box, id = shell

    async def go():
        ws, _ = await say(daemon, box, id, "one")
        paused = asyncio.create_task(meanwhile(call, daemon, "POST", f"/v1/sandboxes/{box}/pause"))
        await asyncio.wait_for(ws.wait_closed(), WAIT_S)
        assert ws.close_code == 1001
        assert (await paused)[0] == 202
        await meanwhile(until, daemon, box, "Paused")
        assert call(daemon, "POST", f"/v1/sandboxes/{box}/resume")[0] == 202
        ws, seen = await say(daemon, box, id, "two")
        assert b"kept <one>" in seen
        await ws.close()
        daemon.kill()
        daemon.wait()
        ws, seen = await say(daemon, box, id, "three")
        assert b"kept <one>" in seen and b"kept <two>" in seen
        await ws.close()
    asyncio.run(go())


def test_a_sandbox_from_a_snapshot_has_the_session_and_its_replay(daemon, shell):
    """Of the snapshot's moment: the same id, the output so far, the shell with its variable. The source goes on, and neither sees the other's lines."""
    box, id = shell

    async def go():
        ws, _ = await say(daemon, box, id, "before")
        status, snap, _ = await meanwhile(call, daemon, "POST", f"/v1/sandboxes/{box}/snapshots", {})
        assert status == 202, snap
        snapshot = f"/v1/snapshots/{snap['id']}"
        while (s := (await meanwhile(call, daemon, "GET", snapshot))[1]["status"]["state"]) != "Ready":
            assert s != "Failed"
            await asyncio.sleep(0.2)
        await ws.send(b"\0of the source\n")
        await read(ws, rb"kept <of the source>\r\n")
        status, made, _ = await meanwhile(call, daemon, "POST", "/v1/sandboxes", {"snapshotId": snap["id"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "timeout": 600})
        assert status == 202, made
        copy = made["id"]
        await meanwhile(until, daemon, copy, "Running")
        status, got, _ = call(daemon, "GET", f"/{copy}/44772/pty/{id}")
        assert status == 200 and got["running"] and got["output_offset"] > 0, got
        other, seen = await say(daemon, copy, id, "of the copy")
        assert b"kept <before>" in seen and b"of the source" not in seen
        await ws.send(b"\0after\n")
        assert b"of the copy" not in await read(ws, rb"kept <after>\r\n")
        await other.close()
        await ws.close()
        call(daemon, "DELETE", f"/v1/sandboxes/{copy}")
        call(daemon, "DELETE", snapshot)
    asyncio.run(go())


def test_a_terminal_without_bash_has_the_sandboxs_variables(daemon, shell):
    """The image has no bash; the file that EXECD_ENVS names counts for terminals, too."""
    box, _ = shell
    run(daemon, box, "echo FROM_FILE=yes >>$EXECD_ENVS")
    _, made, _ = call(daemon, "POST", f"/{box}/44772/pty", {"command": "type bash || echo \"<$FROM_FILE> <$0>\"; echo end"})

    async def go():
        ws = await attach(daemon, box, made["session_id"])
        assert re.search(rb"<yes> <(/bin/)?sh>\r\n", await read(ws, rb"end\r\n"))
        await ws.close()
    asyncio.run(go())


# ---- the gateway of a daemon in its jail

GATE = 8091
# run in the appliance, where the gateway is: "GET label path" answers with the status, "WS label path" with the status and the first message
ASK = """
import socket, sys
kind, host, path = sys.argv[1:]
s = socket.create_connection(("127.0.0.1", %d), timeout=240)
more = "Connection: Upgrade\\r\\nUpgrade: websocket\\r\\nSec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n" if kind == "WS" else "Connection: close\\r\\n"
s.sendall(f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\n{more}\\r\\n".encode())
got = b""
while kind == "WS" and b"connected" not in got or kind != "WS":
    piece = s.recv(65536)
    if not piece:
        break
    got += piece
print(got.decode("latin-1"))
""" % GATE


@pytest.fixture
def gated(daemon):
    """The jailed daemon with a gateway."""
    def configure(domain):
        daemon.config_more = f'[ingress]\nmode = "gateway"\nport = {GATE}\n[ingress.gateway]\naddress = "*.{domain}"\n[ingress.secure_access]\nkeys = "a={"A" * 43}="\n'
    configure("one.example")
    daemon.reconfigure()
    yield configure
    daemon.config_more = ""
    daemon.reconfigure()


def test_the_gateway_in_the_jail(machine, daemon, shell, gated):
    """A daemon without privileges serves requests and WebSockets by label, and takes a new address at SIGHUP. What it cannot do: tests/platform/daemon.c."""
    box, id = shell

    def gate(kind, label, path):
        r = machine.run("python3", "-c", ASK, kind, label + ".one.example", path)
        assert r.returncode == 0, r.stderr
        return r.stdout

    def address():
        return call(daemon, "GET", f"/v1/sandboxes/{box}/endpoints/80")[1]["endpoint"]
    no_privilege(look(machine, "mayflyd")[0])
    assert gate("GET", f"{box}-44772", "/ping").startswith("HTTP/1.1 200 ")
    assert gate("GET", f"{secrets.token_hex(4)}-44772", "/ping").startswith("HTTP/1.1 404 ")
    seen = gate("WS", f"{box}-44772", f"/pty/{id}/ws?takeover=1")
    assert seen.startswith("HTTP/1.1 101 ") and '"role":"holder"' in seen
    assert address() == f"{box}-80.one.example"
    gated("two.example")
    daemon.write_config()
    machine.run("pkill", "-HUP", "-x", "mayfly-priv", check=True)

    async def changed():
        while address() != f"{box}-80.two.example":
            await asyncio.sleep(0.1)
    asyncio.run(asyncio.wait_for(changed(), WAIT_S))


# ---- VNC

DESKTOP = """
/usr/bin/Xtigervnc :1 -rfbport 5901 -localhost -SecurityTypes None -geometry 640x480 -depth 24 -desktop in-a-sandbox >/tmp/xvnc.log 2>&1 &
/usr/bin/python3 -m websockify --web=/usr/share/novnc 127.0.0.1:6080 127.0.0.1:5901 >/tmp/bridge.log 2>&1 &
wait
"""


@pytest.fixture(scope="module")
def desktop(daemon, tmp_path_factory):
    """A sandbox with a real VNC server, a WebSocket bridge and noVNC's page."""
    tar = vnckit.image(tmp_path_factory.mktemp("vnc") / "vnc.tar")
    r = mayfly(daemon, "import", "--local", f"{daemon.machine.publish(tar)}/vnc.tar", "vnc")
    assert r.returncode == 0, r.stderr
    box = create(daemon, image={"uri": "vnc"}, entrypoint=["sh", "-c", DESKTOP], resourceLimits={"cpu": "1", "memory": "512Mi"})["id"]

    async def serves():
        while call(daemon, "GET", f"/{box}/6080/vnc_lite.html")[0] != 200 or "Listening" not in log():
            await asyncio.sleep(0.5)

    def log():
        return call(daemon, "GET", f"/{box}/44772/files/download?path=/tmp/xvnc.log")[1]
    asyncio.run(asyncio.wait_for(serves(), WAIT_S))
    yield box
    call(daemon, "DELETE", f"/v1/sandboxes/{box}")


def test_xvnc_in_a_sandbox(daemon, desktop):
    """A whole picture of its desktop: by a forwarded port, and in messages of a WebSocket."""
    host, at = daemon.domain.split(":")
    with forward(int(at), desktop, "0:5901", key=daemon.api_key) as ((local,), _), dial(local) as s:
        def recv(n):
            got = b""
            while len(got) < n:
                piece = s.recv(n - len(got))
                assert piece
                got += piece
            return got
        assert vnckit.rfb(s.sendall, recv) == (b"in-a-sandbox", 640 * 480 * 4)
    with wssync.connect(f"ws://{daemon.domain}/{desktop}/6080/websockify", subprotocols=["binary"], max_size=None, open_timeout=WAIT_S) as ws:
        assert vnckit.rfb(ws.send, vnckit.Messages(ws, WAIT_S).recv) == (b"in-a-sandbox", 640 * 480 * 4)


def test_novnc_against_xvnc_in_a_sandbox(browser, daemon, desktop):
    """noVNC's own page out of the sandbox, in Chromium, until the last pixel of the desktop is drawn."""
    host, at = daemon.domain.split(":")
    url = f"http://{daemon.domain}/{desktop}/6080/vnc_lite.html?host={host}&port={at}&path={desktop}/6080/websockify"
    got = asyncio.run(asyncio.wait_for(page(browser, url, NOVNC), WAIT_S))
    assert got["status"].startswith("Connected to ") and got["last"][3] == 255, got
