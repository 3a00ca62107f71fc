# SPDX-License-Identifier: Apache-2.0
"""Real programs at both ends of the ways into a sandbox, on this very host: Chromium with a terminal's page, a real VNC server with noVNC's page and bridge, a Jupyter server with its
kernels and its page. The real daemon with scripted monitors, or the real server, routes and agent (build/unit/api_execd --serve) where a terminal is needed."""
import asyncio
import contextlib
import http.client
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import uuid

import pytest
import websockets.asyncio.client as wsclient
import websockets.asyncio.server as wsserver
import websockets.sync.client as wssync

from jupyterkit import TOKEN as JUPYTER_TOKEN
from jupyterkit import Jupyter
from registrykit import free_port
from test_forward_host import BOX, dial, forward
from test_ingress_host import App, daemon  # noqa: F401 (a fixture)
from test_ways_host import port  # noqa: F401 (a fixture)
from vnckit import Messages, rfb

WAIT_S = 180


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, WAIT_S))


# ---- a browser

@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """The address of a running Chromium's DevTools."""
    program = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)
    if not program:
        pytest.skip("no Chromium on this host (Debian: chromium-headless-shell, 306 MB, in the set `develop` of deps.list)")
    p = subprocess.Popen([program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0", "--remote-allow-origins=*",
                          f"--user-data-dir={tmp_path_factory.mktemp('chromium')}", "about:blank"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for line in p.stderr:
        if m := re.search(r"DevTools listening on (ws://\S+)", line):
            break
    else:
        raise AssertionError("Chromium ended")
    yield m[1]
    p.kill()
    p.wait()


async def page(browser, url, script):
    """What a script on a page of this address comes to: its promise's value."""
    async with wsclient.connect(browser, max_size=None) as ws:
        n = 0

        async def ask(method, session=None, **params):
            nonlocal n
            n += 1
            await ws.send(json.dumps({"id": n, "method": method, "params": params} | ({"sessionId": session} if session else {})))
            while (got := json.loads(await ws.recv())).get("id") != n:
                seen.append(got)
            assert "error" not in got, got
            return got["result"]
        seen = []
        target = (await ask("Target.createTarget", url="about:blank"))["targetId"]
        session = (await ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        await ask("Page.enable", session)
        await ask("Page.navigate", session, url=url)
        while not any(e.get("method") == "Page.loadEventFired" for e in seen):
            seen.append(json.loads(await ws.recv()))
        got = await ask("Runtime.evaluate", session, expression=script, awaitPromise=True, returnByValue=True)
        await ask("Target.closeTarget", targetId=target)
        assert "exceptionDetails" not in got, got
        return got["result"]["value"]


TERMINAL = """
new Promise(async (done, failed) => {
  const at = location.origin + "/x/44772/pty";
  const made = await (await fetch(at, {method: "POST", body: JSON.stringify({command: "bash --norc --noprofile"})})).json();
  const ws = new WebSocket(at.replace("http", "ws") + "/" + made.session_id + "/ws?pty=1");
  ws.binaryType = "arraybuffer";
  const typed = new TextEncoder(), screen = new TextDecoder();
  let text = "", step = 0;
  const type = s => { const b = typed.encode(s), m = new Uint8Array(b.length + 1); m.set(b, 1); ws.send(m); };
  ws.onerror = failed;
  ws.onclose = e => done({text, code: e.code});
  ws.onmessage = m => {
    if (typeof m.data == "string") {
      if (JSON.parse(m.data).type == "connected") { ws.send(JSON.stringify({type: "resize", cols: 132, rows: 43})); for (const c of "stty size; echo $((6*7))\\n") type(c); }
      return;
    }
    const b = new Uint8Array(m.data);
    text += screen.decode(b.subarray(b[0] == 3 ? 9 : 1));
    if (step == 0 && /43 132\\r\\n42\\r\\n/.test(text)) { step = 1; type("seq 100000 | tail -n +1\\n"); }
    if (step == 1 && /\\r\\n100000\\r\\n/.test(text)) { step = 2; type("exit 3\\n"); }
  };
})"""


def test_a_terminal_in_a_browser(browser, port):
    """As xterm.js does it: each key a message, a resize, 100,000 lines of output, the end."""
    got = run(page(browser, f"http://127.0.0.1:{port}/x/44772/ping", TERMINAL))
    assert got["code"] == 1000 and "\r\n100000\r\n" in got["text"]


def test_pages_of_two_sandboxes_in_a_browser(browser, daemon):
    """By ID-PORT.localhost: a page fetches from its own origin with its cookie and speaks with its WebSocket; another sandbox's origin sees neither cookie nor answer."""
    daemon.gateway("wildcard")
    app = App([("Set-Cookie", "mine=1; Path=/")])
    one, two = daemon.box(), daemon.box()

    async def go():
        async def echo(ws):
            async for m in ws:
                await ws.send(m)
        async with wsserver.serve(echo, "127.0.0.1", 0) as s:
            wsport = s.sockets[0].getsockname()[1]
            here, there = (f"http://{b}-{app.port}.localhost:{daemon.gate}/" for b in (one, two))
            script = f"""new Promise(async (done, failed) => {{
                const again = await (await fetch("/again")).json();
                const ws = new WebSocket("ws://{one}-{wsport}.localhost:{daemon.gate}/");
                const said = await new Promise(ok => {{ ws.onopen = () => ws.send("hello"); ws.onmessage = m => ok(m.data); ws.onerror = () => ok("error"); }});
                const cross = await fetch("{there}").then(() => "read", () => "refused");
                done({{headers: again.headers, said, cross, cookie: document.cookie}});
            }})"""
            got = await page(browser, here, script)
            headers = {k.lower(): v for k, v in got["headers"]}
            assert headers["cookie"] == "mine=1" and headers["host"] == f"{one}-{app.port}.localhost:{daemon.gate}"
            assert (got["said"], got["cross"], got["cookie"]) == ("hello", "refused", "mine=1")
            assert await page(browser, f"http://{two}-{wsport}.localhost:{daemon.gate}/", "document.cookie") == ""
    run(go())
    app.shutdown()


# ---- VNC

@pytest.fixture
def vnc(tmp_path):
    program = shutil.which("Xtigervnc")
    if not program:
        pytest.skip("no Xtigervnc on this host (Debian: tigervnc-standalone-server)")
    number = free_port()
    with open(tmp_path / "log", "wb") as log:
        p = subprocess.Popen([program, f":{number}", "-rfbport", str(number), "-localhost", "-SecurityTypes", "None", "-geometry", "640x480", "-depth", "24"], stdout=log, stderr=log)
    while True:
        with contextlib.suppress(OSError), dial(number) as s:
            assert s.recv(4) == b"RFB "
            break
        assert p.poll() is None, (tmp_path / "log").read_text()
    yield number
    p.terminate()
    p.wait()


@pytest.fixture
def bridge(vnc, tmp_path):
    """The port of a websockify that serves noVNC's page and speaks to that VNC server."""
    program, pages = shutil.which("websockify"), pathlib.Path("/usr/share/novnc")
    if not program or not (pages / "vnc_lite.html").exists():
        pytest.skip("no websockify or no noVNC on this host (Debian: websockify, novnc)")
    number = free_port()
    with open(tmp_path / "bridge", "wb") as log:
        p = subprocess.Popen([program, f"--web={pages}", f"127.0.0.1:{number}", f"127.0.0.1:{vnc}"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    while True:
        with contextlib.suppress(OSError), dial(number):
            break
        assert p.poll() is None, (tmp_path / "bridge").read_text()
    yield number
    p.terminate()
    p.wait()


def test_vnc_by_a_forwarded_port(port, vnc):
    with forward(port, BOX, f"0:{vnc}") as ((local,), _), dial(local) as s:
        def recv(n):
            got = b""
            while len(got) < n:
                got += s.recv(n - len(got))
            return got
        assert rfb(s.sendall, recv)[1] == 640 * 480 * 4


def test_vnc_by_a_websocket(daemon, bridge):
    """A whole picture in binary messages through websockify, by each way to a port."""
    daemon.gateway("wildcard")
    box = daemon.box()
    label = daemon.label(box, bridge)
    for at, url in ((daemon.gate, f"ws://{label}/"), (daemon.port, f"ws://127.0.0.1/{box}/{bridge}/"), (daemon.port, f"ws://127.0.0.1/v1/sandboxes/{box}/proxy/{bridge}/")):
        with wssync.connect(url + "websockify", sock=dial(at), subprotocols=["binary"], max_size=None, open_timeout=WAIT_S) as ws:
            assert ws.subprotocol == "binary"
            assert rfb(ws.send, Messages(ws, WAIT_S).recv)[1] == 640 * 480 * 4, url


NOVNC = """
new Promise(done => {
  const look = () => {
    const canvas = document.querySelector("#screen canvas"), status = document.getElementById("status").textContent;
    if (/^(Disconnected|Something|Failed)/.test(status)) done({status});
    const last = canvas && canvas.width == 640 && canvas.height == 480 ? canvas.getContext("2d").getImageData(639, 479, 1, 1).data : [];
    if (/^Connected to /.test(status) && last[3] == 255) done({status, last: Array.from(last)});
    else requestAnimationFrame(look);
  };
  look();
})"""


def test_novnc_in_a_browser(browser, daemon, bridge):
    """noVNC's own page through the gateway, its WebSocket through the same label, until the last pixel of the desktop is drawn."""
    daemon.gateway("wildcard")
    box = daemon.box()
    name = f"{box}-{bridge}.localhost"
    got = run(page(browser, f"http://{name}:{daemon.gate}/vnc_lite.html?host={name}&port={daemon.gate}&path=websockify", NOVNC))
    assert got["status"].startswith("Connected to ") and got["last"][3] == 255, got


# ---- Jupyter

@pytest.fixture
def jupyter(tmp_path):
    if not (pathlib.Path(sys.executable).parent.parent / "jupyter" / "bin" / "python").exists():
        pytest.skip("the tests' Jupyter server is missing: make deps")
    j = Jupyter(tmp_path / "jupyter")
    with open(j.config, "a") as f:
        f.write("\nc.ServerApp.allow_remote_access = True\n")  # else it takes no Host but localhost; with --ip=0.0.0.0 that is its default
    try:
        yield j.start().wait()
    finally:
        j.stop()


NOTEBOOK = """
new Promise(async (done, failed) => {
  const form = new FormData(document.querySelector("form"));
  form.set("password", "TOKEN");
  const login = await fetch("/login?next=%2Fapi%2Fstatus", {method: "POST", body: new URLSearchParams(form)});
  const xsrf = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie)[1];
  const made = await fetch("/api/kernels", {method: "POST", headers: {"X-XSRFToken": xsrf}, body: JSON.stringify({name: "python"})});
  const kernel = await made.json();
  const ws = new WebSocket(location.origin.replace("http", "ws") + "/api/kernels/" + kernel.id + "/channels");
  let text = "";
  ws.onerror = () => failed("the WebSocket failed");
  ws.onopen = () => ws.send(JSON.stringify({channel: "shell", header: {msg_id: crypto.randomUUID ? crypto.randomUUID() : "m1", msg_type: "execute_request", version: "5.3", username: "",
    session: "s"}, parent_header: {}, metadata: {}, content: {code: "print(6 * 7)", silent: false, store_history: false, allow_stdin: false}}));
  ws.onmessage = m => {
    const j = JSON.parse(m.data);
    if (j.msg_type != "stream") return;
    text += j.content.text;
    ws.onclose = e => done({login: login.status, made: made.status, text, clean: e.wasClean});
    ws.close();
  };
})"""


def test_jupyters_page_in_a_browser(browser, daemon, jupyter):
    """Its login page through the gateway; with the cookie and the XSRF token that it sets, a kernel and that kernel's WebSocket."""
    daemon.gateway("wildcard")
    box = daemon.box()
    got = run(page(browser, f"http://{box}-{jupyter.port}.localhost:{daemon.gate}/login?next=%2Fapi%2Fstatus", NOTEBOOK.replace("TOKEN", JUPYTER_TOKEN)))
    assert got == {"login": 200, "made": 201, "text": "42\n", "clean": True}


def test_jupyter_through_the_gateway(daemon, jupyter):
    """Its REST API and code in a kernel by its WebSocket."""
    daemon.gateway("wildcard")
    box = daemon.box()
    host = daemon.label(box, jupyter.port)

    def ask(method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", daemon.gate, timeout=WAIT_S)
        c.request(method, path, body, {"Host": host, "Authorization": f"token {JUPYTER_TOKEN}", "Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, r.read()
    status, kernel = ask("POST", "/api/kernels", json.dumps({"name": "python"}))
    assert status == 201, kernel
    channels = f"ws://{host}/api/kernels/{json.loads(kernel)['id']}/channels"
    where = {"host": "127.0.0.1", "port": daemon.gate, "additional_headers": {"Authorization": f"token {JUPYTER_TOKEN}"}, "max_size": None, "open_timeout": WAIT_S}

    async def go():
        async with wsclient.connect(channels, origin=f"http://{host}", **where) as ws:
            await ws.send(json.dumps({"channel": "shell", "header": {"msg_id": str(uuid.uuid4()), "msg_type": "execute_request", "version": "5.3", "username": "", "session": "s"},
                                      "parent_header": {}, "metadata": {}, "content": {"code": "print(6 * 7)", "silent": False, "store_history": False, "allow_stdin": False}}))
            while (m := json.loads(await ws.recv()))["msg_type"] != "stream":
                pass
            assert m["content"]["text"] == "42\n"
    run(go())
