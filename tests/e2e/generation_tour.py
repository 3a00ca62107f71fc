# SPDX-License-Identifier: Apache-2.0
"""One tour for every generation of the official Python SDK, run by test_generations.py with each one's own interpreter. ENDING says whether
the text of an event keeps its line's ending for that generation; all else is the same."""
import os
import time
from datetime import timedelta

from opensandbox import SandboxSync
from opensandbox.config import ConnectionConfigSync
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import WriteEntry

E = {"kept": "\n", "stripped": ""}[os.environ["ENDING"]]


def ok(got, wanted, what):
    assert got == wanted, (what, got, wanted)
    print("ok:", what)


def texts(messages):
    return [m.text for m in messages]


def commands(box):
    r = box.commands.run("echo one; echo; echo two; printf three; echo err >&2; exit 3")
    ok((texts(r.logs.stdout), texts(r.logs.stderr)), ([f"one{E}", "\n", f"two{E}", "three"], [f"err{E}"]), "lines of both streams")
    ok((r.error.name, r.error.value), ("CommandExecError", "3"), "an exit code")
    r = box.commands.run("echo $A; pwd", opts=RunCommandOpts(envs={"A": "b c"}, working_directory="/usr"))
    ok(texts(r.logs.stdout), [f"b c{E}", f"/usr{E}"], "environment and directory")
    bg = box.commands.run("echo working; echo on", opts=RunCommandOpts(background=True))
    while box.commands.get_command_status(bg.id).running:
        time.sleep(0.05)
    ok(box.commands.get_background_command_logs(bg.id).content, "working\non\n", "a log is bytes, whatever the generation")


def sessions(box):
    s = box.commands.create_session(working_directory="/tmp")
    box.commands.run_in_session(s, "cd /usr; export KEPT=yes")
    ok(texts(box.commands.run_in_session(s, "pwd; echo $KEPT").logs.stdout), [f"/usr{E}", f"yes{E}"], "a session")
    box.commands.delete_session(s)


def files(box):
    box.files.write_files([WriteEntry(path="/tmp/t.txt", data="one\ntwo\nthree\n", mode=644)])
    ok(box.files.read_file("/tmp/t.txt"), "one\ntwo\nthree\n", "a file is bytes, too")


def isolated(box):
    if not hasattr(box, "isolation"):
        return
    from opensandbox.models.isolated import CreateIsolatedSessionRequest, IsolatedWorkspaceSpec
    s = box.isolation.create(CreateIsolatedSessionRequest(workspace=IsolatedWorkspaceSpec(path="/workspace")))
    r = s.run("x=1; echo out; echo err >&2")
    assert texts(r.logs.stdout) == [f"out{E}", f"err{E}"], r
    assert texts(s.run("echo $x").logs.stdout) == [f"1{E}"]
    s.delete()


def main():
    c = ConnectionConfigSync(request_timeout=timedelta(minutes=2))
    box = SandboxSync.create(os.environ["MAYFLY_IMAGE"], timeout=timedelta(minutes=10), resource={"cpu": "1", "memory": "512Mi"}, ready_timeout=timedelta(minutes=2), connection_config=c)
    try:
        commands(box)
        sessions(box)
        files(box)
        isolated(box)
        box.pause()
        while box.get_info().status.state != "Paused":
            time.sleep(0.1)
        again = SandboxSync.resume(box.id, connection_config=c)
        ok(texts(again.commands.run("cat /tmp/t.txt").logs.stdout), [f"one{E}", f"two{E}", f"three{E}"], "paused and resumed")
        again.close()
    finally:
        box.kill()
        box.close()
    print("ok: killed")


if __name__ == "__main__":
    main()
