# SPDX-License-Identifier: Apache-2.0
"""What PID 1 of a sandbox is to its workloads: its name, its walls, the signals it passes on, how it ends."""
import time

import opensandbox
from opensandbox.config import ConnectionConfigSync

# a greeting to the agent's own port through vsock's loopback, as any user of the guest could send it
KNOCK = r"""
socket(S, 40, 1, 0) or die "no socket: $!\n";
connect(S, pack("S S L L L", 40, 0, 1024, %d, 0)) or die "no connection: $!\n";
syswrite(S, pack("L S S L", 12, 1, 0, 1) . pack("L L L", 0x3147414d, 1, 1));
my $n = sysread(S, my $b, 100);
print defined $n && $n > 0 ? "served\n" : "refused\n";
"""


def create(daemon, **kw):
    return opensandbox.SandboxSync.create("base", connection_config=ConnectionConfigSync(domain=daemon.domain, api_key=daemon.api_key),
        resource={"cpu": "1", "memory": "256Mi"}, **kw)


def test_pid_1_is_named_and_closed(sandbox):
    def say(text):
        return sandbox.commands.run(text).text

    assert say("cat /proc/1/comm") == "execd"
    assert say("id -u; for f in environ mem maps auxv; do dd if=/proc/1/$f bs=1 count=1 2>/dev/null | wc -c; done; "
               "readlink /proc/1/exe /proc/1/root /proc/1/ns/mnt; echo end").split("\n") == ["0", "0", "0", "0", "0", "end"]
    for cid in (1, 3):
        assert say("perl -e '%s' 2>&1" % (KNOCK % cid)).split("\n")[-1] != "served"
    assert say("sh -c 'sleep 5 & cat /proc/$!/environ >/dev/null && echo own'") == "own"


def test_signals_reach_the_entrypoint_and_term_ends_the_sandbox(daemon):
    box = create(daemon, entrypoint=["sh", "-c", "for s in HUP USR1 USR2 WINCH; do trap \"echo $s >> /root/got\" $s; done; "
                                     "trap 'exit 7' TERM; echo up >> /root/got; while :; do sleep 0.1; done 2>/dev/null"],
                 env={"EXECD_INIT": "secret-of-mine", "OTHER": "seen"})
    try:
        def got():
            return box.commands.run("cat /root/got 2>/dev/null").text.split()

        end = time.monotonic() + 60
        while got() != ["up"]:
            assert time.monotonic() < end
            time.sleep(0.2)
        for s in ("HUP", "USR1", "USR2", "WINCH"):
            box.commands.run(f"kill -{s} 1")
            while got()[-1] != s:
                assert time.monotonic() < end
                time.sleep(0.1)
        assert got() == ["up", "HUP", "USR1", "USR2", "WINCH"]
        assert box.commands.run("echo $OTHER; env | grep -c secret-of-mine").text == "seen\n0"
        box.commands.run("kill -TERM 1")
        while box.get_info().status.state not in ("Terminated", "Failed"):
            assert time.monotonic() < end, box.get_info().status
            time.sleep(0.2)
        assert "7" in (box.get_info().status.message or ""), box.get_info().status
    finally:
        box.kill()
        box.close()
