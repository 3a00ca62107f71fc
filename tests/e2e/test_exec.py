# SPDX-License-Identifier: Apache-2.0
"""Commands and sessions through the official Python SDK, in one real sandbox."""
import json
import threading
import time
import urllib.error
import urllib.request
from datetime import timedelta

import pytest

import opensandbox
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts


def test_streams_are_apart_and_the_exit_code_is_kept(sandbox):
    r = sandbox.commands.run("echo out; echo err >&2; exit 3")
    assert [m.text for m in r.logs.stdout] == ["out\n"]
    assert [m.text for m in r.logs.stderr] == ["err\n"]
    assert r.exit_code == 3 and r.error.name == "CommandExecError" and r.error.value == "3"
    assert r.complete is None


def test_success_is_complete(sandbox):
    r = sandbox.commands.run("printf 'a\\r\\nb\\n\\nc'")
    assert [m.text for m in r.logs.stdout] == ["a\r\n", "b\n", "\n", "c"]
    assert r.exit_code == 0 and r.error is None and r.complete is not None
    assert len(r.id) == 32


def test_environment_directory_and_user(sandbox):
    r = sandbox.commands.run("echo $GREETING; pwd; id -u; id -g",
        opts=RunCommandOpts(envs={"GREETING": "hi there"}, working_directory="/usr", uid=1000, gid=1001))
    assert r.text.split("\n") == ["hi there", "/usr", "1000", "1001"]


def test_set_env_reaches_later_commands(sandbox):
    sandbox.commands.set_env("KEPT", "it's \"kept\"")
    assert sandbox.commands.run("echo $KEPT").text == "it's \"kept\""


def test_any_output_arrives(sandbox):
    r = sandbox.commands.run("printf '\\xff\\x00\\xe2\\x82\\xac'")
    assert r.logs.stdout[0].text == "\ufffd\x00\u20ac"
    r = sandbox.commands.run("i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done")
    assert "".join(m.text for m in r.logs.stdout) == "".join(f"{i}\n" for i in range(3000))


def test_timeout_kills_the_whole_group(sandbox):
    began = time.monotonic()
    r = sandbox.commands.run("sleep 61 & sleep 62; echo never", opts=RunCommandOpts(timeout=timedelta(seconds=1)))
    assert time.monotonic() - began < 15
    assert r.error.value == "-1" and r.complete is None
    assert sandbox.commands.run("for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null | grep -c 'sleep 6[12]'").text == "0"


def test_background_has_status_logs_and_can_be_interrupted(sandbox):
    r = sandbox.commands.run("echo begun; echo more >&2; sleep 100", opts=RunCommandOpts(background=True))
    st = sandbox.commands.get_command_status(r.id)
    assert st.running and st.exit_code is None and "sleep 100" in st.content
    end = time.monotonic() + 20
    while (logs := sandbox.commands.get_background_command_logs(r.id)).content != "begun\nmore\n":
        assert time.monotonic() < end, logs
    assert sandbox.commands.get_background_command_logs(r.id, cursor=6).content == "more\n"
    sandbox.commands.interrupt(r.id)
    end = time.monotonic() + 20
    while (st := sandbox.commands.get_command_status(r.id)).running:
        assert time.monotonic() < end
    assert st.exit_code != 0 and st.finished_at is not None
    with pytest.raises(SandboxApiException):
        sandbox.commands.interrupt(r.id)


def test_sessions_keep_directory_and_exports(sandbox):
    s = sandbox.commands.create_session(working_directory="/tmp")
    assert sandbox.commands.run_in_session(s, "pwd; cd /usr; export A=1; B=2").text == "/tmp"
    assert sandbox.commands.run_in_session(s, "pwd; echo a=$A b=$B").text == "/usr\na=1 b="
    r = sandbox.commands.run_in_session(s, "echo e >&2; exit 7")
    assert r.exit_code == 7 and [m.text for m in r.logs.stdout] == ["e\n"]
    assert sandbox.commands.run_in_session(s, "pwd", working_directory="/var").text == "/var"
    sandbox.commands.delete_session(s)
    with pytest.raises(SandboxApiException):
        sandbox.commands.run_in_session(s, "pwd")


def test_metrics(sandbox):
    m = sandbox.get_metrics()
    assert m.cpu_count >= 1 and 0 <= m.cpu_used_percentage <= 100
    assert 0 < m.memory_used_in_mib <= m.memory_total_in_mib
    assert abs(m.timestamp / 1000 - time.time()) < 300


def test_health(sandbox):
    assert sandbox.is_healthy()


def call(daemon, sandbox, method, path, body=None):
    """(status, headers, body) of a plain request to the execution API: what no SDK would send."""
    r = urllib.request.Request(f"{daemon.url}/v1/sandboxes/{sandbox.id}/proxy/44772{path}", method=method,
        data=None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(r, timeout=30) as a:
            return a.status, a.headers, a.read()
    except urllib.error.HTTPError as e:
        return e.code, e.headers, e.read()


@pytest.mark.parametrize("method,path,body,status,code", [
    ("POST", "/command", b"{", 400, "INVALID_REQUEST_BODY"),
    ("POST", "/command", {}, 400, "INVALID_REQUEST_BODY"),
    ("POST", "/command", {"command": "a", "argv": ["b"]}, 400, "INVALID_REQUEST_BODY"),
    ("POST", "/command", {"argv": [""]}, 400, "INVALID_REQUEST_BODY"),
    ("POST", "/command", {"command": "a\0b"}, 400, "INVALID_REQUEST_BODY"),
    ("POST", "/command", {"command": "a", "gid": 1}, 400, "INVALID_REQUEST_BODY"),
    ("POST", "/command", {"command": "a", "cwd": "/no/such"}, 400, "INVALID_REQUEST_BODY"),
    ("POST", "/command", {"command": "a", "cwd": "$UNDEFINED/x"}, 400, "INVALID_REQUEST_BODY"),
    ("DELETE", "/command", None, 400, "MISSING_QUERY"),
    ("DELETE", "/command?id=none", None, 500, "RUNTIME_ERROR"),
    ("GET", "/command/status/none", None, 404, "INVALID_REQUEST_BODY"),
    ("GET", "/command/none/logs", None, 400, "INVALID_REQUEST_BODY"),
    ("POST", "/session/none/run", {"command": "true"}, 500, "RUNTIME_ERROR"),
    ("DELETE", "/session/none", None, 404, "SESSION_NOT_FOUND"),
    ("POST", "/code", {"context": {"language": "python"}, "code": "1"}, 500, "RUNTIME_ERROR"),
    ("DELETE", "/code?id=none", None, 500, "RUNTIME_ERROR"),
    ("DELETE", "/code/contexts", None, 400, "MISSING_QUERY"),
    ("DELETE", "/code/contexts/none", None, 404, "CONTEXT_NOT_FOUND"),
    ("GET", "/v1/isolated/session/none", None, 404, "SESSION_NOT_FOUND"),
    ("GET", "/files/info?path=/no/such", None, 404, "FILE_NOT_FOUND"),
    ("GET", "/directories/list?path=/&depth=0", None, 400, "INVALID_REQUEST_BODY"),
    ("POST", "/files/upload", {}, 400, "INVALID_FILE"),
    ("GET", "/v1/filesystem/65534/65534/files/download?path=/proc/1/environ", None, 403, "RUNTIME_ERROR"),
    ("GET", "/v1/filesystem/x/0/files/info?path=/", None, 400, "INVALID_REQUEST_BODY"),
])
def test_every_error_has_its_code(daemon, sandbox, method, path, body, status, code):
    got, headers, text = call(daemon, sandbox, method, path, body)
    assert (got, json.loads(text)["code"]) == (status, code)
    assert json.loads(text)["message"] and headers["X-Request-ID"]


def test_success_without_a_body_says_its_length(daemon, sandbox):
    status, headers, text = call(daemon, sandbox, "GET", "/ping")
    assert (status, headers["Content-Length"], text) == (200, "0", b"")


def follow(r):
    """When each word of a stream came, and the whole of it."""
    with urllib.request.urlopen(r, timeout=120) as a:
        assert a.headers["Content-Type"] == "text/event-stream" and a.headers["Cache-Control"] == "no-cache"
        seen, text = {}, b""
        while chunk := a.read1():
            text += chunk
            for word in (b"one", b"two"):
                if word in text and word not in seen:
                    seen[word] = time.monotonic()
    return seen, text


def test_events_come_when_they_happen(daemon, sandbox):
    r = urllib.request.Request(f"{daemon.url}/v1/sandboxes/{sandbox.id}/proxy/44772/command", method="POST",
        data=json.dumps({"command": "echo one; sleep 3; echo two"}).encode())
    # the first sandbox of an image is stopped once, for its template: that may fall between the two
    seen, text = follow(r)
    if seen[b"two"] - seen[b"one"] <= 1.5:
        seen, text = follow(r)
    assert seen[b"two"] - seen[b"one"] > 1.5
    events = text.decode().split("\n\n")
    assert events.pop() == ""
    kinds = [json.loads(e)["type"] for e in events]
    assert kinds[:3] == ["init", "ping", "stdout"] and kinds[-1] == "execution_complete"
    assert all(e.startswith("{") and json.loads(e)["timestamp"] > 1.6e12 for e in events)


def test_a_client_that_leaves_does_not_end_its_command(daemon, sandbox):
    r = urllib.request.Request(f"{daemon.url}/v1/sandboxes/{sandbox.id}/proxy/44772/command", method="POST",
        data=json.dumps({"command": "echo begun; sleep 1; echo left >/tmp/left"}).encode())
    a = urllib.request.urlopen(r, timeout=60)
    assert b"init" in a.read1()
    a.close()
    assert sandbox.commands.run("for i in $(seq 100); do [ -e /tmp/left ] && cat /tmp/left && exit; sleep 0.1; done; exit 1").text == "left"


def test_a_running_stream_survives_pause_and_resume(daemon, sandbox):
    """The VM's process is gone in between; the output goes on at the next byte, and the exit code comes."""
    seen = []

    def follow():
        r = urllib.request.Request(f"{daemon.url}/v1/sandboxes/{sandbox.id}/proxy/44772/command", method="POST",
            data=json.dumps({"command": "i=0; while [ $i -lt 60 ]; do echo $i; i=$((i+1)); sleep 0.1; done; exit 6"}).encode())
        with urllib.request.urlopen(r, timeout=180) as a:
            text = b""
            while chunk := a.read1():
                text += chunk
                seen.append(text)

    t = threading.Thread(target=follow)
    t.start()
    end = time.monotonic() + 60
    while not (seen and b'"5\\n"' in seen[-1]):
        assert time.monotonic() < end
        time.sleep(0.05)
    sandbox.pause()
    at_pause = seen[-1]
    assert b'"error"' not in at_pause
    opensandbox.SandboxSync.resume(sandbox.id, connection_config=sandbox.connection_config).close()
    t.join(120)
    events = [json.loads(e) for e in seen[-1].decode().split("\n\n")[:-1]]
    assert "".join(e["text"] for e in events if e["type"] == "stdout") == "".join(f"{i}\n" for i in range(60))
    assert events[-1]["error"]["evalue"] == "6"
