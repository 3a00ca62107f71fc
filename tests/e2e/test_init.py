# SPDX-License-Identifier: Apache-2.0
"""What PID 1 of a sandbox is to its workloads: its name, its walls, the signals it passes on, how it ends."""
import subprocess
import time

import opensandbox
import pytest
from opensandbox.config import ConnectionConfigSync

# a greeting to the agent's own port through vsock's loopback, as any user of the guest could send it
KNOCK = r"""
socket(S, 40, 1, 0) or die "no socket: $!\n";
connect(S, pack("S S L L L", 40, 0, 1024, %d, 0)) or die "no connection: $!\n";
syswrite(S, pack("L S S L", 12, 1, 0, 1) . pack("L L L", 0x3147414d, 1, 1));
my $n = sysread(S, my $b, 100);
print defined $n && $n > 0 ? "served\n" : "refused\n";
"""


# The base image's programs are linked against glibc. Those of `tiny` are static; it has musl's loader, too, for a program that a test brings along.
LIBCS = ("glibc", "musl", "static")
PROBE_C = r"""
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>
int main(void)
{
	char line[200];
	FILE *f = fopen("/proc/self/status", "r");

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "CapBnd:", 7) || !strncmp(line, "NoNewPrivs:", 11) || !strncmp(line, "Seccomp:", 8))
			fputs(line, stdout);
	if (mount("none", "/tmp", "tmpfs", 0, NULL) == 0)
		puts("mounted");
	if (access("/proc/1/environ", R_OK) == 0 && (f = fopen("/proc/1/environ", "r")) && fgetc(f) != EOF)
		puts("the environment of PID 1");
	if (fopen("/proc/1/mem", "r"))
		puts("the memory of PID 1");
	return 0;
}
"""


def probe(sandbox, libc, tmp_path):
    """A command that prints CapBnd, NoNewPrivs, Seccomp, and whatever it could do that it must not."""
    if libc != "musl":
        return ("grep -e CapBnd -e NoNewPrivs -e Seccomp: /proc/self/status; mount -t tmpfs none /tmp 2>/dev/null && echo mounted; "
                "dd if=/proc/1/environ bs=1 count=1 2>/dev/null; dd if=/proc/1/mem bs=1 count=1 2>/dev/null; true")
    (tmp_path / "probe.c").write_text(PROBE_C)
    subprocess.run(["musl-gcc", "-Os", "-o", tmp_path / "probe", tmp_path / "probe.c"], check=True)
    head = subprocess.run(["readelf", "-l", tmp_path / "probe"], capture_output=True, text=True, check=True).stdout
    assert "ld-musl" in head, head
    sandbox.files.write_file("/root/probe", (tmp_path / "probe").read_bytes(), mode=755)
    return "/root/probe"


def create(daemon, image="base", **kw):
    return opensandbox.SandboxSync.create(image, connection_config=ConnectionConfigSync(domain=daemon.domain, api_key=daemon.api_key),
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


@pytest.mark.parametrize("libc", LIBCS)
def test_pid_1_is_closed_for_programs_of_every_libc(daemon, libc, tmp_path):
    box = create(daemon, "base" if libc == "glibc" else "tiny")
    try:
        assert box.commands.run("cat /proc/1/comm").text == "execd"
        said = box.commands.run(probe(box, libc, tmp_path)).text
        assert "PID 1" not in said and len(said.splitlines()) <= 4 and "CapBnd:" in said, said
    finally:
        box.kill()
        box.close()


@pytest.mark.parametrize("image", ["base", "tiny"])
def test_signals_reach_the_entrypoint_and_term_ends_the_sandbox(daemon, image):
    box = create(daemon, image, entrypoint=["sh", "-c", "for s in HUP USR1 USR2 WINCH; do trap \"echo $s >> /root/got\" $s; done; "
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
            end = time.monotonic() + 60
            while got()[-1] != s:
                assert time.monotonic() < end
                time.sleep(0.1)
        assert got() == ["up", "HUP", "USR1", "USR2", "WINCH"]
        assert box.commands.run("echo $OTHER; env | grep -c secret-of-mine").text == "seen\n0"
        box.commands.run("kill -TERM 1")
        end = time.monotonic() + 60
        while box.get_info().status.state not in ("Terminated", "Failed"):
            assert time.monotonic() < end, box.get_info().status
            time.sleep(0.2)
        assert "7" in (box.get_info().status.message or ""), box.get_info().status
    finally:
        box.kill()
        box.close()
