# SPDX-License-Identifier: Apache-2.0
"""Isolated sessions in a real sandbox through the official clients, and what is left when they are gone. On the wire, case by case: the unit test api_isolated;
ways out of a session: the unit test agent_isolated, which test_agent.py runs on glibc, musl and static images."""
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.filesystem import ContentReplaceEntry, DirectoryListEntry, MoveEntry, SearchEntry, SetPermissionEntry, WriteEntry
from opensandbox.models.isolated import (BindMount, CreateIsolatedSessionRequest, EnvPassthroughSpec, IsolatedOverlaySpec, IsolatedRunOpts,
                                         IsolatedWorkspaceSpec)

from test_exec import call
from test_init import probe
from test_sdks import node

WAIT_S = 60
SESSIONS = int(os.environ.get("SESSIONS", "1000" if os.environ.get("MAYFLY_STRESS") else "40"))


def wanted(path="/workspace", mode=None, **more):
    return CreateIsolatedSessionRequest(workspace=IsolatedWorkspaceSpec(path=path, mode=mode), **more)


@pytest.fixture
def session(sandbox):
    s = sandbox.isolation.create(wanted())
    yield s
    s.delete()


def outside(sandbox, text):
    return sandbox.commands.run(text).text


def test_capabilities(sandbox):
    c = sandbox.isolation.capabilities()
    assert c.available and c.isolator == "bwrap" and c.setpriv_available and c.diff_supported and c.commit_supported
    assert c.hardening.init_mode == "pid1" and c.hardening.signal_shield is True
    for layer in (c.hardening.cap_drop, c.hardening.seccomp, c.hardening.landlock):
        assert layer.state == "disabled" and layer.message
    # said, and kept: a user namespace is refused, setpriv is the default by name
    assert c.userns_available is False
    with pytest.raises(SandboxApiException) as e:
        sandbox.isolation.create(wanted(uid=1000, uid_mode="userns"))
    assert e.value.status_code == 503 and "setpriv" in str(e.value)
    with sandbox.isolation.session(wanted("/tmp", uid=1000, uid_mode="setpriv")) as s:
        assert s.run("id -u").text == "1000"


def test_one_shell_for_all_runs(session):
    r = session.run("echo out; echo err >&2; plain=1; export EXP=2; cd /usr")
    assert [m.text for m in r.logs.stdout] == ["out\n", "err\n"] and r.exit_code == 0 and r.error is None
    assert session.run("echo $plain$EXP $(pwd) $$ $(hostname)").text == "12 /usr 2 sandbox"
    r = session.run("(exit 7)")
    assert r.exit_code == 7 and r.error.name == "ExitError" and r.error.value == "7"
    assert session.run("echo $A", opts=IsolatedRunOpts(envs={"A": "it's"})).text == "it's"
    assert session.run("echo ${A-unset}").text == "unset"
    began = time.monotonic()
    r = session.run("sleep 600", opts=IsolatedRunOpts(timeout_seconds=1))
    assert r.error is not None and time.monotonic() - began < WAIT_S
    assert session.run("echo $plain").text == "1"


def test_the_overlay_keeps_changes_apart(sandbox, session):
    outside(sandbox, "mkdir -p /workspace; rm -rf /workspace/*; echo low > /workspace/f")
    s = sandbox.isolation.create(wanted())
    assert s.run("cat f; echo high > f; echo new > n; cat f n").text == "low\nhigh\nnew"
    assert outside(sandbox, "cat /workspace/f; ls /workspace") == "low\nf"
    assert session.run("ls /workspace").text == "f"
    s.delete()
    rw = sandbox.isolation.create(wanted(mode="rw"))
    assert rw.run("echo through > /workspace/rw").exit_code == 0
    assert outside(sandbox, "cat /workspace/rw") == "through"
    rw.delete()
    ro = sandbox.isolation.create(wanted(mode="ro"))
    assert ro.run("touch /workspace/x").exit_code != 0
    with pytest.raises(SandboxApiException):
        ro.run_background("true")
    ro.delete()


def test_view_binds_and_the_allowlist(sandbox):
    outside(sandbox, "mkdir -p /data/in /mnt/w; echo d > /data/in/f; ln -sfn /etc /data/out; echo shared > /tmp/seen")
    s = sandbox.isolation.create(wanted(binds=[BindMount(source="/data/in", dest="/tmp/in", readonly=True)], extra_writable=["/mnt/w"]))
    assert s.run("cat /tmp/in/f; touch /tmp/in/x 2>/dev/null || echo ro; echo w > /mnt/w/f; touch /etc/x 2>/dev/null || echo no").text == "d\nro\nno"
    assert outside(sandbox, "cat /mnt/w/f") == "w"
    assert s.run("ls /tmp | grep -v ^in; set -- /proc/[0-9]*; [ $# -lt 8 ] && echo few").text == "few"
    s.delete()
    for wrong in ({"extra_writable": ["/etc"]}, {"binds": [BindMount(source="/data/out")]}, {"extra_writable": ["/data/../etc"]}):
        with pytest.raises(SandboxApiException) as e:
            sandbox.isolation.create(wanted(**wrong))
        assert e.value.status_code == 400 and "allowlist" in str(e.value)
    s = sandbox.isolation.create(wanted(profile="balanced", share_net=False))
    assert s.run("cat /tmp/seen; grep -c : /proc/net/dev").text == "shared\n1"
    s.delete()


def test_overlays_users_and_environment(sandbox):
    outside(sandbox, "mkdir -p /workspace/deep /media/m; chmod 777 /workspace /workspace/deep")
    s = sandbox.isolation.create(CreateIsolatedSessionRequest(
        overlays=[IsolatedOverlaySpec(path="/workspace/deep", mode="rw"), IsolatedOverlaySpec(path="/workspace", persist=False), IsolatedOverlaySpec(path="/media/m", mode="ro")],
        uid=1000, gid=1001, env_passthrough=EnvPassthroughSpec(mode="allow", keys=["OPENSANDBOX_ID"])))
    assert s.run("id -u; id -g; echo $OPENSANDBOX_ID; pwd; touch /workspace/e /workspace/deep/kept; touch /media/m/x 2>/dev/null || echo ro").text == f"1000\n1001\n{sandbox.id}\n/workspace/deep\nro"
    assert outside(sandbox, "ls /workspace /workspace/deep") == "/workspace:\ndeep\nf\nrw\n\n/workspace/deep:\nkept" or "kept" in outside(sandbox, "ls /workspace/deep")
    assert outside(sandbox, "ls /workspace/e 2>/dev/null || echo none") == "none"
    s.delete()
    r = sandbox.commands.run("export MY_TOKEN=secret")  # a command's own: not the sandbox's
    assert r.exit_code == 0
    with sandbox.isolation.session(wanted()) as s:
        assert s.run("env | grep -c -e _TOKEN -e EXECD_; true").text == "0"


def test_as_the_official_suites_create_it(daemon, sandbox, base_image):
    """The documented extension; which variables a session does not see; a workspace that is /tmp."""
    import opensandbox
    hidden = ["MY_API_KEY", "MY_TOKEN", "MY_SECRET", "MY_PASSWORD", "AWS_REGION", "ALIBABA_X", "K8S_X", "KUBE_X", "EXECD_X"]
    box = opensandbox.SandboxSync.create(base_image, connection_config=sandbox.connection_config, resource={"cpu": "1", "memory": "256Mi"},
        extensions={"bootstrap.execd.isolation": "enable"}, env={name: "seen" for name in hidden} | {"PLAIN": "1", "OTHER": "2", "EXECD_ENVS": "/srv/my.envs"})
    try:
        # the file of variables at a path of one's own: its variables are there, filtered; the file is not
        assert box.commands.run("mkdir -p /srv; echo $EXECD_ENVS; printf \"LATER='it is'\\nLATER_TOKEN=seen\\n\" >> $EXECD_ENVS").text == "/srv/my.envs"
        assert box.commands.run("echo $LATER").text == "it is"
        with box.isolation.session(wanted("/tmp")) as s:
            assert s.run("echo $LATER; cat /srv/my.envs | wc -c; echo x 2>/dev/null >> /srv/my.envs; ls /srv; env | grep -c -e EXECD_ENVS -e _TOKEN").text == "it is\n0\nmy.envs\n0"
        assert box.commands.run("grep -c x /srv/my.envs").text == "0"
        assert box.isolation.capabilities().available
        box.commands.run("echo of the sandbox > /tmp/mine")
        with box.isolation.session(wanted("/tmp")) as s:
            assert s.run("cat /tmp/mine; echo $PLAIN$OTHER; env | grep -c =seen").text == "of the sandbox\n12\n0"
        with box.isolation.session(wanted("/tmp", env_passthrough=EnvPassthroughSpec(mode="deny", keys=["PLAIN"]))) as s:
            assert s.run("echo ${PLAIN-none}$OTHER").text == "none2"
        with box.isolation.session(wanted("/tmp", env_passthrough=EnvPassthroughSpec(mode="allow", keys=["PLAIN"]))) as s:
            assert s.run("echo $PLAIN${OTHER-none}").text == "1none"
    finally:
        box.kill()
        box.close()


def test_background_runs(session):
    run = session.run_background("echo one; echo two >&2; exit 4", opts=IsolatedRunOpts(envs={"A": "b"}))
    end = time.monotonic() + WAIT_S
    while (st := session.run_status(run.run_id)).running:
        assert time.monotonic() < end
    assert st.exit_code == 4 and st.finished_at is not None and st.session_id == session.session_id
    logs = session.run_logs(run.run_id)
    assert logs.text == "one\ntwo\n" and logs.cursor == 8
    assert session.run_logs(run.run_id, cursor=4).text == "two\n"
    long = session.run_background("sleep 600")
    assert session.run("echo free").text == "free" and session.run_status(long.run_id).running


def test_files_are_the_merged_view(sandbox, session):
    files = session.files
    files.write_files([WriteEntry(path="/workspace/a.txt", data="alpha beta"), WriteEntry(path="/workspace/d/b.txt", data=b"\0\1", mode=600)])
    assert session.run("cat /workspace/a.txt").text == "alpha beta"
    assert outside(sandbox, "ls /workspace/a.txt 2>/dev/null || echo none") == "none"
    assert files.read_file("/workspace/a.txt") == "alpha beta" and files.read_bytes("/workspace/d/b.txt") == b"\0\1"
    assert files.get_file_info(["/workspace/d/b.txt"])["/workspace/d/b.txt"].mode == 600
    files.replace_contents([ContentReplaceEntry(path="/workspace/a.txt", old_content="alpha", new_content="gamma")])
    files.move_files([MoveEntry(src="/workspace/a.txt", dest="/workspace/c.txt")])
    files.set_permissions([SetPermissionEntry(path="/workspace/c.txt", mode=640)])
    assert session.run("stat -c %a c.txt; cat c.txt").text == "640\ngamma beta"
    files.create_directories([WriteEntry(path="/workspace/made", mode=755)])
    assert "/workspace/made" in [e.path for e in files.list_directory(DirectoryListEntry(path="/workspace"))]
    assert [e.path for e in files.search(SearchEntry(path="/workspace", pattern="c.*"))] == ["/workspace/c.txt"]
    files.delete_files(["/workspace/c.txt"])
    files.delete_directories(["/workspace/made", "/workspace/d"])
    with pytest.raises(SandboxApiException):
        files.read_file("/workspace/c.txt")


def test_diff_and_commit(daemon, sandbox):
    outside(sandbox, "mkdir -p /workspace/dc; cd /workspace/dc && echo 1 > kept && echo 2 > gone")
    s = sandbox.isolation.create(wanted("/workspace/dc"))
    s.run("echo new > added; echo more >> kept; rm gone")
    at = f"/v1/isolated/session/{s.session_id}"
    import json
    status, _, body = call(daemon, sandbox, "GET", at + "/diff")
    assert status == 200 and sorted((c["change"], c["path"]) for c in json.loads(body)) == [("added", "added"), ("deleted", "gone"), ("modified", "kept")]
    status, _, body = call(daemon, sandbox, "POST", at + "/commit", {})
    assert status == 200 and json.loads(body) == {"committed": 3}
    assert outside(sandbox, "cd /workspace/dc && cat added kept; ls | tr '\\n' ' '").split() == ["new", "1", "more", "added", "kept"]
    s.delete()


def test_list_get_attach_and_the_end(sandbox):
    outside(sandbox, "mkdir -p /data/echo /mnt/echo; chmod 755 /workspace")
    asked = wanted(profile="balanced", idle_timeout_seconds=600, extra_writable=["/mnt/echo"], uid=1000, gid=1001, uid_mode="setpriv",
                   binds=[BindMount(source="/data/echo", dest="/tmp/echo", readonly=True), BindMount(source="/data/echo")],
                   env_passthrough=EnvPassthroughSpec(mode="allow", keys=["HOME", "OPENSANDBOX_ID"]))
    s = sandbox.isolation.create(asked)
    for info in (s.info, sandbox.isolation.attach(s.session_id).info):
        for field in ("profile", "extra_writable", "uid", "gid", "uid_mode", "binds", "env_passthrough", "idle_timeout_seconds"):
            said, given = getattr(info, field), getattr(asked, field)
            plain = [[v.model_dump(exclude_none=True) if hasattr(v, "model_dump") else v for v in (x if isinstance(x, list) else [x])] for x in (said, given)]
            assert plain[0] == plain[1], (field, said, given)
    s.delete()
    s = sandbox.isolation.create(wanted(profile="balanced", idle_timeout_seconds=600, extra_writable=[]))
    assert s.session_id in [i.session_id for i in sandbox.isolation.list()]
    again = sandbox.isolation.attach(s.session_id)
    assert again.info.profile == "balanced" and again.info.workspace.path == "/workspace" and again.info.idle_timeout_seconds == 600 and again.info.share_net is True
    st = again.get()
    assert st.status == "active" and 500 < st.idle_remaining_seconds <= 600 and st.created_at == s.info.created_at
    assert again.run("echo here").text == "here"
    assert s.run("exit 3").exit_code == 3
    assert s.get().status == "dead"
    s.delete()
    with pytest.raises(SandboxApiException) as e:
        s.delete()
    assert e.value.status_code == 404
    assert sandbox.isolation.run_once("echo once", workspace="/workspace").text == "once"
    short = sandbox.isolation.create(wanted(idle_timeout_seconds=1))
    end = time.monotonic() + WAIT_S
    while short.session_id in [i.session_id for i in sandbox.isolation.list()]:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_deleted_while_busy(sandbox):
    import threading
    s, ended = sandbox.isolation.create(wanted()), []
    t = threading.Thread(target=lambda: ended.append(s.run("echo on; sleep 6001")))
    t.start()
    end = time.monotonic() + WAIT_S
    while "sleep 6001" not in outside(sandbox, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"):
        assert time.monotonic() < end
    s.delete()
    t.join(WAIT_S)
    assert ended and ended[0].error is not None


def test_sessions_go_through_pause_and_resume(sandbox):
    s = sandbox.isolation.create(wanted())
    s.run("plain=1; echo kept > /workspace/over")
    sandbox.pause()
    end = time.monotonic() + WAIT_S
    while sandbox.get_info().status.state != "Paused":
        assert time.monotonic() < end
        time.sleep(0.1)
    import opensandbox
    again = opensandbox.SandboxSync.resume(sandbox.id, connection_config=sandbox.connection_config)
    s = again.isolation.attach(s.session_id)
    assert s.run("echo $plain; cat /workspace/over").text == "1\nkept"
    s.delete()
    again.close()


def test_nothing_is_left(sandbox):
    left = ("grep -c mayfly-sessions /proc/mounts; ls /var/lib/mayfly-sessions 2>/dev/null | wc -l; cat /proc/[0-9]*/comm 2>/dev/null | grep -c execd-session; "
            "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 30[0]'; find /sys/fs/cgroup -type d | wc -l")
    memory = "sed -n 's/^VmRSS:[^0-9]*//p' /proc/1/status | cut -d ' ' -f 1"
    sandbox.isolation.run_once("true", workspace="/workspace")
    before = began = None
    for i in range(SESSIONS):
        if i == SESSIONS // 4:
            before, began = int(outside(sandbox, memory)), time.monotonic()
        s = sandbox.isolation.create(wanted())
        s.run("echo x > /workspace/x; sleep 300 &")
        if i % 4 == 0:
            s.run_background("sleep 300")
        s.delete()
    # a command that ends and one that asks have a cgroup each, and the commands of earlier tests have none
    end, now = time.monotonic() + WAIT_S, None
    while now is None or now[:4] != [0, 0, 0, 0] or now[4] > 6:
        assert time.monotonic() < end, now
        now = [int(n) for n in outside(sandbox, left).split()]
    after = int(outside(sandbox, memory))
    print(f"{SESSIONS} sessions: {now[0]} mounts, {now[1]} files, {now[2]} + {now[3]} processes, {now[4]} cgroups; the agent has {before} KiB at a quarter, {after} at the end; "
          f"{(time.monotonic() - began) / (SESSIONS - SESSIONS // 4) * 1000:.0f} ms each")
    assert after < before + 1024, (before, after)


def ask_inside(path):
    return f"exec 3<>/dev/tcp/127.0.0.1/44772 && printf 'GET {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' >&3 && cat <&3"


def until_inside(sandbox, text, wanted_text):
    """The stream that was used is replaced: for a moment none may wait."""
    end = time.monotonic() + WAIT_S
    while wanted_text not in (got := sandbox.commands.run(text).text):
        assert "503" in got and time.monotonic() < end, got
    return got


def test_programs_reach_their_own_api_and_no_other(daemon, sandbox):
    assert until_inside(sandbox, ask_inside("/ping"), "HTTP/1.1 200")
    assert '"available":true' in until_inside(sandbox, ask_inside("/v1/isolated/capabilities"), "HTTP/1.1 200")
    # neither the lifecycle API nor the way to a sandbox, be it this one
    for path in ("/v1/sandboxes", "/health", "/openapi.json", f"/{sandbox.id}/44772/ping", f"/v1/sandboxes/{sandbox.id}/proxy/44772/ping"):
        until_inside(sandbox, ask_inside(path), "HTTP/1.1 404")
    # the whole of a long answer, also for a program that reads it late
    outside(sandbox, "head -c 20000000 /dev/zero > /tmp/big")
    end, late = time.monotonic() + WAIT_S, f"({ask_inside('/files/download?path=/tmp/big')}) | (sleep 1; wc -c)"
    while int(outside(sandbox, late)) < 20000000:
        assert time.monotonic() < end
    # a budget of its own: eight at a time
    held = sandbox.commands.run("n=0; while [ $n -lt 40 ]; do n=$((n+1)); exec {fd}<>/dev/tcp/127.0.0.1/44772; sleep 0.05; done; "
                                "printf 'GET /ping HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' >&$fd; head -1 <&$fd")
    assert "503" in held.text, held
    until_inside(sandbox, ask_inside("/ping"), "HTTP/1.1 200")


def test_a_session_does_not_get_out_through_the_api(sandbox, session):
    for uid in (None, 1000):
        s = sandbox.isolation.create(wanted(uid=uid, gid=uid))
        assert "HTTP/1.1 403" in s.run(ask_inside("/ping")).text
        r = s.run_background(ask_inside("/v1/isolated/sessions"))
        end = time.monotonic() + WAIT_S
        while s.run_status(r.run_id).running:
            assert time.monotonic() < end
        assert "HTTP/1.1 403" in s.run_logs(r.run_id).text
        s.delete()
    # programs outside of sessions go on to be served
    until_inside(sandbox, ask_inside("/ping"), "HTTP/1.1 200")


LISTEN = r"""perl -e 'use Socket; socket(S, AF_UNIX, SOCK_STREAM, 0) or die; bind(S, pack("S", AF_UNIX) . "\0doors") or die "$!"; listen(S, 8) or die;
socket(T, AF_INET, SOCK_STREAM, 0) or die; setsockopt(T, SOL_SOCKET, SO_REUSEADDR, 1); bind(T, pack_sockaddr_in(8765, INADDR_LOOPBACK)) or die "$!"; listen(T, 8) or die;
open(F, ">/tmp/doors"); close F; while (accept(C, T)) { syswrite(C, "a server of the sandbox\n"); close C; }'"""
KNOCK = r"""perl -e 'use Socket; socket(S, AF_UNIX, SOCK_STREAM, 0) or die; print connect(S, pack("S", AF_UNIX) . "\0doors") ? "abstract: open\n" : "abstract: $!\n";
for my $to (["127.0.0.1", 8765], ["127.0.0.1", 44772], ["127.0.0.2", 44772], ["127.0.0.1", 1024], ["127.0.0.1", 44771]) {
 socket(T, AF_INET, SOCK_STREAM, 0) or die; my $ok = connect(T, pack_sockaddr_in($to->[1], inet_aton($to->[0])));
 if ($ok) { syswrite(T, "GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"); sysread(T, my $b, 30); $b =~ s/\r?\n.*//s; print "$to->[0]:$to->[1]: $b\n"; } else { print "$to->[0]:$to->[1]: $!\n"; } }
print socket(V, 40, 1, 0) ? "vsock: open\n" : "vsock: $!\n";'"""


def test_doors_that_a_session_finds(sandbox, session):
    """It shares the network: a server of the sandbox answers, and nothing of the agent. Without the network nothing answers. docs/agent.md says so."""
    from opensandbox.models.execd import RunCommandOpts
    server = sandbox.commands.run(LISTEN, opts=RunCommandOpts(background=True))
    end = time.monotonic() + WAIT_S
    while outside(sandbox, "ls /tmp/doors 2>/dev/null || echo none") == "none":
        assert sandbox.commands.get_command_status(server.id).running and time.monotonic() < end
    closed = ["127.0.0.2:44772: Connection refused", "127.0.0.1:1024: Connection refused", "127.0.0.1:44771: Connection refused"]
    # the agent opens its port with the first stream that waits for a program
    until_inside(sandbox, ask_inside("/ping"), "HTTP/1.1 200")
    assert session.run(KNOCK).text.splitlines() == ["abstract: Operation not permitted", "127.0.0.1:8765: a server of the sandbox",
        "127.0.0.1:44772: HTTP/1.1 403 Forbidden", *closed, "vsock: Operation not permitted"]
    # every other port that listens belongs to the sandbox's own programs
    ports = session.run("while read -r _ at _ st _; do [ $st = 0A ] && echo $((16#${at##*:})); done < /proc/net/tcp | sort -u; cat /proc/net/tcp6 2>/dev/null | grep -c ' 0A '").text.split()
    assert set(ports[:-1]) == {"44772", "8765"} and ports[-1] == "0", ports
    with sandbox.isolation.session(wanted(share_net=False)) as alone:
        lines = alone.run(KNOCK).text.splitlines()
        assert len(lines) == 7 and not any("open" in line or "server" in line or "HTTP" in line for line in lines), lines
    sandbox.commands.interrupt(server.id)


FLOOR = """[hardening]
cap_drop = true
seccomp = true
no_new_privs = true
[landlock]
enabled = true
write = "/tmp /dev /proc /run /no/such"
"""


def floor_of(daemon, sandbox, libc, tmp_path):
    """The floor, as programs of another libc than the base image's meet it: commands, the entrypoint and isolated sessions."""
    import opensandbox
    box = opensandbox.SandboxSync.create("tiny", connection_config=sandbox.connection_config, resource={"cpu": "1", "memory": "256Mi"},
        entrypoint=["sh", "-c", "grep -e CapBnd -e NoNewPrivs -e Seccomp: /proc/self/status > /tmp/entry; exec sleep 100000"])
    try:
        said = box.commands.run(probe(box, libc, tmp_path)).text.splitlines()
        assert said == ["CapBnd:\t00000000800404fb", "NoNewPrivs:\t1", "Seccomp:\t2"], (libc, said)
        assert box.commands.run("cat /tmp/entry").text.splitlines() == said
        inner = box.isolation.run_once(probe(box, libc, tmp_path), workspace="/root").text.splitlines()
        assert [line.split()[1] for line in inner] == ["0000000000000000", "1", "2"], (libc, inner)
    finally:
        box.kill()
        box.close()


def test_the_floor_is_set_before_anything_runs(daemon, machine, sandbox, base_image, tmp_path):
    import opensandbox
    more = daemon.config_more
    daemon.config_more = more + "\n" + FLOOR
    try:
        daemon.reconfigure()
        box = opensandbox.SandboxSync.create(base_image, connection_config=sandbox.connection_config, resource={"cpu": "1", "memory": "512Mi"},
            entrypoint=["sh", "-c", "grep -e CapBnd -e NoNewPrivs -e Seccomp: /proc/self/status > /tmp/entry; touch /etc/x; exec sleep 100000"])
        h = box.isolation.capabilities().hardening
        assert (h.cap_drop.state, h.seccomp.state, h.landlock.state) == ("active", "active", "degraded") and "/no/such" in h.landlock.message
        status = box.commands.run("grep -e CapBnd -e NoNewPrivs -e Seccomp: /proc/self/status").text
        assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status and "CapBnd:\t00000000800404fb" in status, status
        assert box.commands.run("cat /tmp/entry; ls /etc/x 2>/dev/null").text == status
        assert box.commands.run("touch /etc/y || touch /tmp/y && mount -t tmpfs none /tmp || unshare -m true || echo held").text == "held"
        # isolated sessions have a stricter one of their own
        assert "CapBnd:\t0000000000000000" in box.isolation.run_once("cat /proc/self/status", workspace="/workspace").text
        box.kill()
        box.close()
        for libc in ("musl", "static"):
            floor_of(daemon, sandbox, libc, tmp_path)
    finally:
        daemon.config_more = more
        daemon.reconfigure()


JS = """
import { Sandbox } from "@alibaba-group/opensandbox";
const box = await Sandbox.create({ image: process.env.MAYFLY_IMAGE, resource: { cpu: "1", memory: "512Mi" } });
try {
  const caps = await box.isolation.capabilities();
  const s = await box.isolation.create({ workspace: { path: "/workspace", mode: "overlay" } });
  const a = await s.run("x=1; echo one; echo two > /workspace/f");
  const b = await s.run("echo $x");
  const again = await box.isolation.attach(s.sessionId);
  const st = await again.get();
  const text = new TextDecoder().decode(await s.files.readBytes("/workspace/f"));
  const listed = (await box.isolation.list()).length;
  await s.delete();
  const once = await box.isolation.runOnce("echo once", "/workspace");
  console.log(JSON.stringify([caps.available, a.logs.stdout.map((m) => m.text), st.status, text, listed, once.logs.stdout.map((m) => m.text)]));
} finally { await box.kill(); }
"""


def test_in_javascript(sdk_env, base_image, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "isolated.mjs").write_text(JS)
    out = node(tmp_path / "isolated.mjs", tmp_path / "run", sdk_env, base_image)
    assert out == '[true,["one"],"active","two\\n",1,["once"]]\n'


JAVA = """
import com.alibaba.opensandbox.sandbox.Sandbox;
import com.alibaba.opensandbox.sandbox.config.ConnectionConfig;
import okhttp3.*;

public class Isolated {
    static OkHttpClient http;
    static String base;

    static String call(String method, String path, String body) throws Exception {
        RequestBody b = body == null ? null : RequestBody.create(body, MediaType.get("application/json"));
        try (Response r = http.newCall(new Request.Builder().url(base + path).method(method, b).build()).execute()) {
            return r.code() + " " + r.body().string().replace("\\n\\n", " ").strip();
        }
    }

    public static void main(String[] args) throws Exception {
        Sandbox box = Sandbox.builder().connectionConfig(ConnectionConfig.builder().build()).image(System.getenv("MAYFLY_IMAGE")).resource(java.util.Map.of("memory", "256Mi")).build();
        try {
            http = box.httpClientProvider().getAuthenticatedClient();
            base = "http://" + box.getEndpoint(44772).getEndpoint() + "/v1/isolated";
            System.out.println(call("GET", "/capabilities", null));
            String made = call("POST", "/session", "{\\"workspace\\":{\\"path\\":\\"/workspace\\"}}");
            System.out.println(made);
            String at = "/session/" + made.split("\\"session_id\\":\\"")[1].substring(0, 36);
            System.out.println(call("POST", at + "/run", "{\\"code\\":\\"x=1; echo one; echo two > /workspace/f\\"}"));
            System.out.println(call("POST", at + "/run", "{\\"code\\":\\"echo $x; (exit 4)\\"}"));
            System.out.println(call("GET", at + "/files/download?path=/workspace/f", null));
            System.out.println(call("GET", at, null));
            System.out.println(call("DELETE", at, null));
            System.out.println(call("GET", at, null));
        } finally { box.kill(); }
        System.exit(0);
    }
}
"""


def test_in_java(sdk_env, base_image, tmp_path):
    """The newest package has no isolated sessions: a program asks with the SDK's own HTTP client, at the endpoint that the SDK says."""
    jars = pathlib.Path(sys.executable).parent.parent / "java"
    assert shutil.which("java") and jars.exists(), "java or the Java SDK is missing: make deps"
    (tmp_path / "Isolated.java").write_text(JAVA)
    r = subprocess.run(["java", "-cp", f"{jars}/*", tmp_path / "Isolated.java"], env=os.environ | sdk_env | {"MAYFLY_IMAGE": base_image}, capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stdout + r.stderr
    lines = [line for line in r.stdout.splitlines() if line[:3] in ("200", "201", "404")]
    assert [line[:3] for line in lines] == ["200", "201", "200", "200", "200", "200", "200", "404"], r.stdout
    assert '"available":true' in lines[0] and '"text":"one' in lines[2] and '"text":"1' in lines[3] and '"evalue":"4"' in lines[3] and lines[4] == "200 two", r.stdout
    assert '"status":"active"' in lines[5] and "SESSION_NOT_FOUND" in lines[7], r.stdout
