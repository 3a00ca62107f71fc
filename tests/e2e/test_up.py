# SPDX-License-Identifier: Apache-2.0
"""guest/up with a command line that only records: where the API key goes. (That it starts a daemon is tried by every `make up`.)"""
import http.server
import os
import pathlib
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


def test_the_key_is_the_owners_and_never_an_argument(tmp_path):
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
    (left / "client.env").write_text("OPEN_SANDBOX_API_KEY=kept-from-before\n")
    (left / "client.env").chmod(0o644)
    r = subprocess.run([tmp_path / "guest" / "up"], env=os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "MAYFLY_CACHE": str(tmp_path)},
                       capture_output=True, text=True, timeout=60)
    server.shutdown()
    assert r.returncode == 0, r.stderr
    argv, stdin = (tmp_path / "argv").read_text(), (tmp_path / "stdin").read_text()
    assert 'api_key = "kept-from-before"' in stdin and "kept-from-before" not in argv + r.stdout + r.stderr
    assert "umask 077" in argv and "chmod 400" in argv and "644" not in argv
    assert (left / "client.env").stat().st_mode & 0o777 == 0o600
