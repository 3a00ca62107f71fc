# SPDX-License-Identifier: Apache-2.0
"""guest/up with a command line that only records: where the API key goes. (That it starts a daemon is tried by every `make up`.)"""
import http.server
import os
import pathlib
import re
import shutil
import subprocess
import threading

from conftest import TOP

RECORDER = """#!/bin/sh
# `mayfly` of a host without usable KVM; what it is asked to run in the appliance is kept, not run
[ "$1 $2" != "doctor kvm" ] || exit 1
[ "$1 $2" != "machine status" ] || { echo '{"port":PORT}'; exit 0; }
[ "$1 $2" != "machine publish" ] || { echo /published; exit 0; }
[ "$1 $2" = "machine exec" ] || exit 0
printf '%s\\n' "$*" >>LOG/argv
[ "$3" = -n ] || cat >>LOG/stdin
"""


def up(tmp_path, key=None):
    """(the key, arguments and standard input of what was run in the appliance); guest/up finds `key` kept from before, if there is one."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "guest").mkdir()
    (tmp_path / "build" / "bin").mkdir(parents=True)
    shutil.copy(TOP / "guest" / "up", tmp_path / "guest" / "up")
    (tmp_path / "guest" / "put-images").write_text("#!/bin/sh\n")
    (tmp_path / "guest" / "here").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "build" / "bin" / "mayflyd").write_text("#!/bin/sh\n")

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            started = "mayfly-priv" in (tmp_path / "argv").read_text() if (tmp_path / "argv").exists() else False
            self.send_response(200 if started else 503)
            self.end_headers()

        def log_message(self, *a):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    mayfly = tmp_path / "build" / "bin" / "mayfly"
    mayfly.write_text(RECORDER.replace("LOG", str(tmp_path)).replace("PORT", str(server.server_port)))
    for f in (mayfly, tmp_path / "guest" / "here", tmp_path / "guest" / "put-images", tmp_path / "build" / "bin" / "mayflyd"):
        f.chmod(0o755)
    left = pathlib.Path(tmp_path / "state" / "mayfly")
    left.mkdir(parents=True)
    if key:
        (left / "client.env").write_text(f"OPEN_SANDBOX_API_KEY={key}\n")
        (left / "client.env").chmod(0o644)
    r = subprocess.run([tmp_path / "guest" / "up"], env=os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "MAYFLY_CACHE": str(tmp_path)},
                       capture_output=True, text=True, timeout=60)
    server.shutdown()
    assert r.returncode == 0, r.stderr
    argv, stdin = (tmp_path / "argv").read_text(), (tmp_path / "stdin").read_text()
    assert (left / "client.env").stat().st_mode & 0o777 == 0o600
    now = re.search("^OPEN_SANDBOX_API_KEY=(.*)$", (left / "client.env").read_text(), re.M)[1]
    assert f'api_key = "{now}"' in stdin and now not in argv + r.stdout + r.stderr
    assert "umask 077" in argv and "chmod 400" in argv and "644" not in argv
    return now


def test_the_key_is_the_owners_and_never_an_argument(tmp_path):
    assert up(tmp_path, "kept-from-before") == "kept-from-before"


def test_each_user_has_a_key_of_its_own(tmp_path):
    keys = {up(tmp_path / name) for name in ("a", "b")}
    assert len(keys) == 2 and all(re.fullmatch("[0-9a-f]{48}", k) for k in keys), keys
