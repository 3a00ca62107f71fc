# SPDX-License-Identifier: Apache-2.0
"""Everything a sandbox does, once, with the official Python SDK; each step checks what came back.

    pip install opensandbox
    eval "$(mayfly env)" && python docs/examples/tour.py
"""
import os
import threading
import time
import urllib.request
from datetime import timedelta

from opensandbox import SandboxManagerSync, SandboxSync
from opensandbox.config import ConnectionConfigSync
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.execd_sync import ExecutionHandlersSync
from opensandbox.models.filesystem import ContentReplaceEntry, DirectoryListEntry, MoveEntry, SearchEntry, SetPermissionEntry, WriteEntry
from opensandbox.models.sandboxes import SandboxFilter, SnapshotFilter

TAG = f"python-{os.getpid()}"
IMAGE = os.environ.get("MAYFLY_IMAGE", "python")


def ok(holds, what):
    assert holds, what
    print("ok:", what)


def refused(call, status, what):
    try:
        call()
    except SandboxApiException as e:
        ok(e.status_code == status and e.request_id, what)
        return
    raise AssertionError(f"{what}: nothing was refused")


def commands(box):
    seen = []
    r = box.commands.run("echo out; echo err >&2; exit 3", handlers=ExecutionHandlersSync(on_stdout=lambda m: seen.append(m.text), on_stderr=lambda m: seen.append(m.text)))
    ok(sorted(seen) == ["err\n", "out\n"] and r.exit_code == 3, "a failing command, its output handed over as it comes")
    r = box.commands.run("echo $A; pwd; id -u", opts=RunCommandOpts(envs={"A": "b"}, working_directory="/usr", uid=65534))
    ok(r.text == "b\n/usr\n65534" and r.exit_code == 0, "environment, directory and user of a command")
    r = box.commands.run("echo begun; sleep 100", opts=RunCommandOpts(timeout=timedelta(seconds=1)))
    ok(r.error.value == "-1" and "begun" in r.text, "a timeout ends it")

    bg = box.commands.run("echo working; sleep 100", opts=RunCommandOpts(background=True))
    ok(box.commands.get_command_status(bg.id).running, "a command in the background")
    while "working" not in (logs := box.commands.get_background_command_logs(bg.id)).content:
        time.sleep(0.05)
    ok(box.commands.get_background_command_logs(bg.id, cursor=logs.cursor).content == "", "its logs, and where to go on reading")
    box.commands.interrupt(bg.id)
    while (status := box.commands.get_command_status(bg.id)).running:
        time.sleep(0.05)
    ok(status.exit_code != 0, "interrupted")

    # a command in the foreground is interrupted from elsewhere
    begun, end = threading.Event(), []
    run = threading.Thread(target=lambda: end.append(box.commands.run("echo begun; sleep 100", handlers=ExecutionHandlersSync(
        on_init=lambda i: end.append(i.id), on_stdout=lambda m: begun.set()))))
    run.start()
    ok(begun.wait(60), "a command in the foreground")
    box.commands.interrupt(end[0])
    run.join(60)
    ok(len(end) == 2 and end[1].error and not end[1].complete, "interrupted from elsewhere")


def sessions(box):
    s = box.commands.create_session(working_directory="/tmp")
    box.commands.run_in_session(s, "cd /usr; export KEPT=yes")
    ok(box.commands.run_in_session(s, "pwd; echo $KEPT").text == "/usr\nyes", "a session keeps directory and environment")
    ok(box.commands.run_in_session(s, "exit 7").exit_code == 7 and box.commands.run_in_session(s, "echo on").text == "on", "and survives an exit")
    box.commands.delete_session(s)
    refused(lambda: box.commands.run_in_session(s, "pwd"), 500, "a deleted session is gone")


def files(box):
    f = box.files
    f.create_directories([WriteEntry(path="/tmp/t", mode=755)])
    f.write_files([WriteEntry(path="/tmp/t/a.txt", data="one two one\n", mode=644), WriteEntry(path="/tmp/t/sub/b.bin", data=bytes(range(256)), mode=600)])
    ok(f.read_file("/tmp/t/a.txt") == "one two one\n" and f.read_bytes("/tmp/t/sub/b.bin") == bytes(range(256)), "files are written and read")
    ok(f.read_file("/tmp/t/a.txt", range_header="bytes=4-6") == "two" and b"".join(f.read_bytes_stream("/tmp/t/sub/b.bin")) == bytes(range(256)), "in parts, and as a stream")
    ok(f.replace_contents_detailed([ContentReplaceEntry(path="/tmp/t/a.txt", old_content="one", new_content="1")])[0].replaced_count == 2, "replaced")
    f.move_files([MoveEntry(src="/tmp/t/a.txt", dest="/tmp/t/new/c.txt")])
    f.set_permissions([SetPermissionEntry(path="/tmp/t/new/c.txt", mode=640, owner="nobody", group="nogroup")])
    i = f.get_file_info(["/tmp/t/new/c.txt"])["/tmp/t/new/c.txt"]
    ok((i.mode, i.owner, i.group, i.size) == (640, "nobody", "nogroup", 8), "moved, with another owner")
    ok([e.path for e in f.search(SearchEntry(path="/tmp/t", pattern="*.txt"))] == ["/tmp/t/new/c.txt"], "found")
    ok([e.path for e in f.list_directory(DirectoryListEntry(path="/tmp/t", depth=2))] == ["/tmp/t/new", "/tmp/t/new/c.txt", "/tmp/t/sub", "/tmp/t/sub/b.bin"], "listed")
    f.delete_files(["/tmp/t/new/c.txt"])
    refused(lambda: f.read_file("/tmp/t/new/c.txt"), 404, "a deleted file is gone")
    f.delete_directories(["/tmp/t"])


def endpoints(box):
    box.files.write_file("/srv/index.html", "<h1>a sandbox</h1>\n")
    box.commands.run("python3 -m http.server 8000 --directory /srv", opts=RunCommandOpts(background=True))
    box.commands.run("until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; do sleep 0.1; done")
    ep = box.get_endpoint(8000)
    ok(b"a sandbox" in urllib.request.urlopen(f"http://{ep.endpoint}/index.html").read(), "a web server inside")
    proxied = SandboxSync.connect(box.id, connection_config=ConnectionConfigSync(use_server_proxy=True))
    ep = proxied.get_endpoint(8000)
    ok("/proxy/8000" in ep.endpoint and b"a sandbox" in urllib.request.urlopen(f"http://{ep.endpoint}/index.html").read(), "the same through the server's proxy")
    ok(proxied.commands.run("echo through").text == "through", "commands, too")
    proxied.close()


def manager(box):
    with SandboxManagerSync.create(ConnectionConfigSync(request_timeout=timedelta(minutes=2))) as m:
        found = m.list_sandbox_infos(SandboxFilter(states=["Running"], metadata={"tour": TAG}, page_size=5))
        ok([i.id for i in found.sandbox_infos] == [box.id] and found.pagination.total_items == 1, "listed by state and metadata")
        ok(m.patch_sandbox_metadata(box.id, {"tour": "on", "more": None}).metadata == {"tour": "on"}, "metadata changed")
        before = m.get_sandbox_info(box.id).expires_at
        m.renew_sandbox(box.id, timedelta(hours=2))
        ok(m.get_sandbox_info(box.id).expires_at > before, "renewed")
        ok("Running" in m.get_diagnostic_events(box.id, "runtime").content, "diagnostics")
        m.pause_sandbox(box.id)
        ok(m.get_sandbox_info(box.id).status.state == "Paused", "paused")
        m.resume_sandbox(box.id)
        ok(box.commands.run("cat /srv/index.html").exit_code == 0, "resumed as it was")
        m.kill_sandbox(box.id)
        refused(lambda: m.get_sandbox_info(box.id), 404, "killed")


def points(box):
    """Pause and resume, and a copy of the machine as it was: its files, and what runs in it."""
    box.commands.run("echo kept > /root/kept; (i=0; while :; do i=$((i+1)); echo $i > /root/count; sleep 0.1; done) >/dev/null 2>&1 & echo $! > /root/pid")
    box.pause()
    resumed = SandboxSync.resume(box.id, connection_config=ConnectionConfigSync(request_timeout=timedelta(minutes=2)), resume_timeout=timedelta(minutes=2))
    ok(resumed.commands.run("kill -0 $(cat /root/pid) && cat /root/kept").text == "kept", "paused, and its processes with it")
    resumed.close()
    with SandboxManagerSync.create(ConnectionConfigSync(request_timeout=timedelta(minutes=2))) as m:
        point = box.create_snapshot(name=TAG)
        while (point := m.get_snapshot(point.id)).status.state == "Creating":
            time.sleep(0.1)
        ok(point.status.state == "Ready" and point.sandbox_id == box.id, "a snapshot, while it ran")
        box.commands.run("echo other > /root/kept")
        ok([s.id for s in m.list_snapshots(SnapshotFilter(sandbox_id=box.id, name=TAG)).snapshot_infos] == [point.id], "the snapshot is listed")
        copy = SandboxSync.create(snapshot_id=point.id, timeout=timedelta(minutes=5), ready_timeout=timedelta(minutes=2), resource={"cpu": "1", "memory": "512Mi"},
                                  connection_config=ConnectionConfigSync(request_timeout=timedelta(minutes=2)))
        try:
            ok(copy.commands.run("kill -0 $(cat /root/pid) && cat /root/kept").text == "kept" and box.commands.run("cat /root/kept").text == "other", "a copy goes on from there")
        finally:
            copy.kill()
            copy.close()
        m.delete_snapshot(point.id)
        refused(lambda: m.get_snapshot(point.id), 404, "the snapshot is gone")


def tour(box):
    ok(box.is_healthy() and box.commands.run("echo $FROM_CREATE").text == "yes", "created, with its environment")
    commands(box)
    sessions(box)
    files(box)
    m = box.get_metrics()
    ok(m.cpu_count == 1 and 0 < m.memory_used_in_mib <= m.memory_total_in_mib, "metrics")
    before = box.get_info().expires_at
    box.renew(timedelta(hours=1))
    ok(box.get_info().expires_at > before, "renewed")
    endpoints(box)
    points(box)
    manager(box)


def main():
    box = SandboxSync.create(IMAGE, timeout=timedelta(minutes=10), resource={"cpu": "1", "memory": "512Mi"}, metadata={"tour": TAG, "more": "x"},
        env={"FROM_CREATE": "yes"}, ready_timeout=timedelta(minutes=2), connection_config=ConnectionConfigSync(request_timeout=timedelta(minutes=2)))
    with box:
        try:
            tour(box)
        except BaseException:
            box.kill()
            raise


if __name__ == "__main__":
    main()
